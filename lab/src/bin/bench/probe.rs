//! Datagrams of a client, each of a flow that a certain gateway served when it began, and whether the anchor answered instead.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use standfast_lab::{Host, secs, until_some};

use crate::sample::now;
use crate::yard::{ANCHOR, Gateway, PORT, Site};

/// Datagrams of a client to the VIPs of gateways, each of a flow that its gateway served when it began.
pub(crate) struct Probe {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Track>>,
}

/// The datagrams of one flow: when each was sent, and whether the anchor answered.
#[derive(Default)]
pub(crate) struct Track(Vec<(Duration, bool)>);

impl Track {
    /// When the last one that the anchor did not answer was sent, of those sent between the two.
    pub(crate) fn last(&self, from: Duration, to: Duration) -> Option<Duration> {
        let astray = |&&(sent, anchored): &&(Duration, bool)| sent >= from && sent < to && !anchored;
        self.0.iter().rev().find(astray).map(|&(sent, _)| sent)
    }
}

impl Probe {
    pub(crate) fn start(site: &Site, gateways: &[&Gateway], every: Duration) -> Self {
        let sockets: Vec<_> = gateways.iter().map(|g| (flow(&site.client, g), (g.vip, PORT))).collect();
        let stop = Arc::<AtomicBool>::default();
        let ours = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut tracks: Vec<Track> = sockets.iter().map(|_| Track::default()).collect();
            let mut due = Instant::now();
            while !ours.load(Ordering::Relaxed) {
                for ((socket, target), track) in sockets.iter().zip(&mut tracks) {
                    hear(socket, track);
                    let number = u32::try_from(track.0.len()).expect("few datagrams");
                    track.0.push((now(), false));
                    let _ = socket.send_to(&number.to_be_bytes(), target);
                }
                due += every;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            std::thread::sleep(Duration::from_millis(50));
            sockets.iter().zip(&mut tracks).for_each(|((socket, _), track)| hear(socket, track));
            tracks
        });
        Self { stop, thread }
    }

    pub(crate) fn finish(self) -> Vec<Track> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// A socket whose flow to its VIP this gateway serves. It is not connected, for the answers come from the gateway's own address.
fn flow(client: &Host, g: &Gateway) -> UdpSocket {
    let find = || {
        let socket = client.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket option");
        socket.send_to(b"who", (g.vip, PORT)).ok()?;
        let mut answer = [0; 64];
        let length = socket.recv(&mut answer).ok()?;
        answer[..length].starts_with(format!("{} ", g.host.name).as_bytes()).then_some(socket)
    };
    let (socket, _) = until_some("a flow on the gateway", secs(20), find);
    socket.set_nonblocking(true).expect("a socket option");
    socket
}

/// Takes the answers that have come.
fn hear(socket: &UdpSocket, track: &mut Track) {
    let mut answer = [0; 64];
    while let Ok(length) = socket.recv(&mut answer) {
        let Some((name, number)) = answer[..length].split_at_checked(length.saturating_sub(4)) else {
            continue;
        };
        let Ok(number) = <[u8; 4]>::try_from(number).map(u32::from_be_bytes) else { continue };
        if let Some((_, anchored)) = track.0.get_mut(number as usize) {
            *anchored = name == format!("{ANCHOR} ").as_bytes();
        }
    }
}
