//! A gateway of the tests that asks for a share of the traffic as large as its speed: it announces itself with the library.
//!
//! `loaded ROUTER VIP DELAY`: answers every request after as many milliseconds as stand in the file `DELAY`. It would like to
//! answer within 20, and asks for less when it cannot.

use std::io::{BufRead, BufReader, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use standfast::{Announcer, Peer, Vip};

/// What it would like to take for an answer, in microseconds.
const GOAL: u64 = 20_000;

fn main() {
    let [router, vip, delay] = std::env::args().skip(1).collect::<Vec<_>>().try_into().expect("three words");
    let listener = TcpListener::bind("0.0.0.0:80").expect("a listening socket");
    let announcer = Announcer::builder()
        .asn(64513)
        .peer(Peer::new(router, 64512))
        .vip(Vip::new("web").prefix(vip).bandwidth(125_000_000))
        .rise(2)
        .healthy(|| true)
        .on_event(|event| println!("{event}"))
        .start()
        .expect("an announcer");
    let took = Arc::new(AtomicU64::new(0));
    let (pressed, speed) = (announcer.clone(), Arc::clone(&took));
    thread::spawn(move || {
        loop {
            let took = speed.load(Ordering::Relaxed).max(1);
            pressed.share(u8::try_from(GOAL * 100 / took).unwrap_or(100).max(1)).expect("a bandwidth");
            thread::sleep(Duration::from_millis(200));
        }
    });
    for stream in listener.incoming().flatten() {
        let (took, delay) = (Arc::clone(&took), delay.clone());
        // A client that hangs up is its own affair.
        thread::spawn(move || drop(serve(stream, &took, &delay)));
    }
}

fn serve(mut stream: TcpStream, took: &AtomicU64, delay: &str) -> Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    while !lines.next().transpose()?.is_none_or(|line| line.is_empty()) {}
    let at = Instant::now();
    let millis = std::fs::read_to_string(delay)?.trim().parse().unwrap_or(0);
    thread::sleep(Duration::from_millis(millis));
    let now = u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX);
    let before = took.load(Ordering::Relaxed);
    took.store((before * 7 + now) / 8, Ordering::Relaxed);
    stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nok\n")
}
