//! Datagrams of a client, each of a flow that a certain gateway served when it began, and whether the anchor answered instead.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use standfast_lab::Host;

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
    /// When the last one that the anchor did not answer was sent, of those sent between the two: `from` if all were answered by
    /// it, nothing if none was sent.
    pub(crate) fn last(&self, from: Duration, to: Duration) -> Option<Duration> {
        let astray = |&&(sent, anchored): &&(Duration, bool)| sent >= from && sent < to && !anchored;
        let last = self.0.iter().rev().find(astray).map_or(from, |&(sent, _)| sent);
        (!self.0.is_empty()).then_some(last)
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
                    let Some(socket) = socket else { continue };
                    hear(socket, track);
                    let number = u32::try_from(track.0.len()).expect("few datagrams");
                    track.0.push((now(), false));
                    let _ = socket.send_to(&number.to_be_bytes(), target);
                }
                due += every;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            std::thread::sleep(Duration::from_millis(50));
            for ((socket, _), track) in sockets.iter().zip(&mut tracks) {
                socket.iter().for_each(|socket| hear(socket, track));
            }
            tracks
        });
        Self { stop, thread }
    }

    pub(crate) fn finish(self) -> Vec<Track> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// A socket whose flow to its VIP this gateway serves, if one is found. It is not connected, for the answers come from the
/// gateway's own address.
fn flow(client: &Host, g: &Gateway) -> Option<UdpSocket> {
    let find = |_| {
        let socket = client.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket option");
        socket.send_to(b"who", (g.vip, PORT)).ok()?;
        let mut answer = [0; 64];
        let length = socket.recv(&mut answer).ok()?;
        answer[..length].starts_with(format!("{} ", g.host.name).as_bytes()).then_some(socket)
    };
    // Every second one is expected to be served by it.
    let socket = (0..40).find_map(find);
    match &socket {
        Some(socket) => socket.set_nonblocking(true).expect("a socket option"),
        None => eprintln!("          no flow of {} to {} found", client.name, g.host.name),
    }
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
