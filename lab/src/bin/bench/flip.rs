//! A service that turns bad and good again: from the answer that decides to the UPDATE, and to the router's kernel.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use standfast_lab::{Host, until};

use crate::Bench;
use crate::monitor::{Monitor, What};
use crate::sample::{Row, STANDFAST};
use crate::speaker::{Speaker, VIP, WAITS, announcer, router};
use crate::tap::{Segment, Tap};

/// Answers of one kind before the service turns.
const STREAK: usize = 3;
const INTERVAL: Duration = Duration::from_millis(20);
const CHECK: &str = "check: { type: http, interval: 20ms, timeout: 19ms, rise: 1, fall: 1, \
                     http: { host: 127.0.0.1, port: 80, url: \"/\" } }";

/// The flips of one service that is checked every 20 ms.
pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    let lab = crate::alone("bench: flips");
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    l.spawn(router(&l, &[g.v4], WAITS));
    let service = Flipping::start(&g);
    let monitor = Monitor::start(&l);
    let (wire, loopback) = (Tap::start(&lab, &l, "eth0", 179), Tap::start(&lab, &g, "lo", 80));
    let config = announcer(&g, l.v4, CHECK);
    let speaker = Speaker::standfast(&lab, &g, &bench.standfast, &config);
    let running = speaker.start();
    let wanted = bench.flips;
    let time = INTERVAL * u32::try_from(STREAK * (wanted + 8)).expect("few flips");
    until("the service has turned often enough", time * 3 + Duration::from_secs(10), || {
        service.answers() >= STREAK * (wanted + 8)
    });
    drop(running);
    let updates = wire.finish();
    let answers: Vec<(Duration, bool)> = loopback.finish().iter().filter_map(answer).collect();
    let changes = monitor.changes();
    let mut flips: Vec<(Duration, bool)> = Vec::new();
    for pair in answers.windows(2) {
        if pair[0].1 != pair[1].1 {
            flips.push(pair[1]);
        }
    }
    // The session comes up during the first ones, and the last has no end.
    let (mut up, mut down, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    for pair in flips[4..].windows(2).take(wanted) {
        let (at, good) = pair[0];
        let between = |time: Duration| time >= at && time < pair[1].0;
        let told = |s: &Segment| {
            let prefix = format!("{VIP}/32");
            *s.from.ip() == g.v4 && if good { s.announces(&prefix) } else { s.withdraws(&prefix) }
        };
        if let Some(update) = updates.iter().find(|s| between(s.time) && told(s)) {
            if good { &mut up } else { &mut down }.push(update.time - at);
        }
        if !good
            && let Some(change) = changes.iter().find(|c| between(c.time) && c.what == What::Removed(VIP))
        {
            gone.push(change.time - at);
        }
    }
    vec![
        Row::times("503 on the wire to the withdrawal on the wire", STANDFAST, wanted / 2, &down),
        Row::times("200 on the wire to the announcement on the wire", STANDFAST, wanted / 2, &up),
        Row::times("503 on the wire to the route gone from BIRD's kernel", STANDFAST, wanted / 2, &gone),
    ]
}

/// The status of an answer, and when it went out.
fn answer(segment: &Segment) -> Option<(Duration, bool)> {
    let good = segment.payload.starts_with(b"HTTP/1.1 200");
    (good || segment.payload.starts_with(b"HTTP/1.1 503")).then_some((segment.time, good))
}

/// An HTTP server that turns by itself after every few answers.
struct Flipping {
    shared: Arc<(AtomicUsize, AtomicBool)>,
}

impl Flipping {
    fn start(host: &Host) -> Self {
        let address = (Ipv4Addr::LOCALHOST, 80);
        let listener = host.enter(|| TcpListener::bind(address)).expect("a listening socket");
        let shared = Arc::<(AtomicUsize, AtomicBool)>::default();
        let ours = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ours.1.load(Ordering::Relaxed) {
                    break;
                }
                let count = ours.0.load(Ordering::Relaxed);
                if respond(stream, (count / STREAK).is_multiple_of(2)).is_some() {
                    ours.0.store(count + 1, Ordering::Relaxed);
                }
            }
        });
        Self { shared }
    }

    fn answers(&self) -> usize {
        self.shared.0.load(Ordering::Relaxed)
    }
}

impl Drop for Flipping {
    fn drop(&mut self) {
        // The next connection ends the thread, or the end of the program does.
        self.shared.1.store(true, Ordering::Relaxed);
    }
}

/// Reads one request and answers it in one segment.
fn respond(mut stream: TcpStream, good: bool) -> Option<()> {
    stream.set_read_timeout(Some(Duration::from_millis(500))).ok()?;
    let (mut request, mut part) = (Vec::new(), [0; 2048]);
    while !request.windows(4).any(|w| w == b"\r\n\r\n") && request.len() < 65536 {
        let length = stream.read(&mut part).ok().filter(|&length| length > 0)?;
        request.extend_from_slice(&part[..length]);
    }
    let status = if good { "200 OK" } else { "503 Service Unavailable" };
    let text = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
    stream.write_all(text.as_bytes()).ok()
}
