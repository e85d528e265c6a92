//! The announcer inside a process, over real TCP on loopback, with a small peer that speaks raw BGP.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use standfast::plan::{Peer, PeerAsn, Timers};
use standfast::{Announcer, Verdict};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const OPEN: u8 = 1;
const UPDATE: u8 = 2;
const NOTIFICATION: u8 = 3;
const KEEPALIVE: u8 = 4;

/// A router on loopback, AS 64512, that accepts one session.
struct Router {
    stream: TcpStream,
}

impl Router {
    fn accept(listener: &TcpListener) -> Self {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut router = Self { stream };
        assert_eq!(router.next().0, OPEN);
        // Version 4, AS 64512, hold 9 s, identifier 192.0.2.1, no capability: IPv4 and two-octet AS.
        router.send(OPEN, &[4, 0xfc, 0x00, 0, 9, 192, 0, 2, 1, 0]);
        router.send(KEEPALIVE, &[]);
        assert_eq!(router.next().0, KEEPALIVE);
        router
    }

    fn send(&mut self, kind: u8, body: &[u8]) {
        let mut message = vec![0xff; 16];
        message.extend_from_slice(&(19 + body.len() as u16).to_be_bytes());
        message.push(kind);
        message.extend_from_slice(body);
        self.stream.write_all(&message).unwrap();
    }

    fn next(&mut self) -> (u8, Vec<u8>) {
        let mut header = [0; 19];
        self.stream.read_exact(&mut header).unwrap();
        let length = u16::from_be_bytes([header[16], header[17]]) as usize;
        let mut body = vec![0; length - 19];
        self.stream.read_exact(&mut body).unwrap();
        (header[18], body)
    }

    /// The next message that is neither a KEEPALIVE nor an End-of-RIB.
    fn next_of_note(&mut self) -> (u8, Vec<u8>) {
        loop {
            let (kind, body) = self.next();
            if kind != KEEPALIVE && !(kind == UPDATE && body == [0, 0, 0, 0]) {
                return (kind, body);
            }
        }
    }
}

fn peer(port: u16) -> Peer {
    let timers = Timers { hold: Duration::from_secs(9), ..Timers::default() };
    Peer { port, timers, ..Peer::new("front", [127, 0, 0, 1].into(), PeerAsn::Number(64512)) }
}

fn start(lease: Duration) -> (Announcer, Router) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let announcer = Announcer::builder(64513, [192, 0, 2, 11].into())
        .peer_with(peer(listener.local_addr().unwrap().port()))
        .vip("web", "198.51.100.10/32".parse().unwrap())
        .thresholds(2, 1)
        .lease(lease)
        .start()
        .unwrap();
    let router = Router::accept(&listener);
    (announcer, router)
}

const WITHDRAWAL: [u8; 9] = [0, 5, 32, 198, 51, 100, 10, 0, 0];

fn announce(announcer: &Announcer, router: &mut Router) {
    assert!(announcer.report("web", Verdict::good("warm")));
    assert!(announcer.report("web", Verdict::good("warm")));
    let (kind, body) = router.next_of_note();
    assert_eq!(kind, UPDATE);
    assert!(body.ends_with(&[32, 198, 51, 100, 10]), "{body:?}");
}

#[test]
fn good_reports_announce_and_the_first_bad_one_withdraws() {
    let (announcer, mut router) = start(Duration::ZERO);
    announce(&announcer, &mut router);
    assert_eq!(announcer.status().unwrap().vips[0].told, ["front"]);
    announcer.report("web", Verdict::bad("queue is full"));
    assert_eq!(router.next_of_note(), (UPDATE, WITHDRAWAL.to_vec()));
    assert_eq!(announcer.status().unwrap().vips[0].reason, "service: fall threshold reached: queue is full");
}

#[test]
fn a_wedged_service_leaves_when_its_lease_is_over() {
    let lease = Duration::from_millis(400);
    let (announcer, mut router) = start(lease);
    announce(&announcer, &mut router);
    let silent = Instant::now();
    assert_eq!(router.next_of_note(), (UPDATE, WITHDRAWAL.to_vec()));
    assert!(silent.elapsed() >= lease / 2, "withdrawn before the lease was over");
}

#[test]
fn dropping_the_last_handle_withdraws_and_says_why() {
    let (announcer, mut router) = start(Duration::ZERO);
    announce(&announcer, &mut router);
    let other = announcer.clone();
    drop(announcer);
    assert!(other.status().is_some(), "a handle is left, so it runs");
    let reader = std::thread::spawn(move || {
        let withdrawal = router.next_of_note();
        (withdrawal, router.next_of_note())
    });
    drop(other);
    let (withdrawal, (kind, body)) = reader.join().unwrap();
    assert_eq!(withdrawal, (UPDATE, WITHDRAWAL.to_vec()));
    assert_eq!((kind, &body[..2]), (NOTIFICATION, &[6, 2][..]));
    assert_eq!(&body[3..], b"the service ended");
}

#[test]
fn an_announcer_without_a_peer_does_not_start() {
    let builder = Announcer::builder(64513, [192, 0, 2, 11].into());
    let error = builder.vip("web", "198.51.100.10/32".parse().unwrap()).start().err().unwrap();
    assert_eq!(error.to_string(), "an announcer needs at least one peer and one VIP");
}
