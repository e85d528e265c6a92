//! A router on loopback, AS 64512, that speaks just enough raw BGP to be told something.

#![allow(clippy::unwrap_used, dead_code)]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

pub(crate) const UPDATE: u8 = 2;
pub(crate) const NOTIFICATION: u8 = 3;
const OPEN: u8 = 1;
const KEEPALIVE: u8 = 4;

/// The withdrawal of 198.51.100.10/32.
pub(crate) const WITHDRAWAL: [u8; 9] = [0, 5, 32, 198, 51, 100, 10, 0, 0];
/// The end of its announcement.
pub(crate) const PREFIX: [u8; 5] = [32, 198, 51, 100, 10];
/// GRACEFUL_SHUTDOWN as the COMMUNITIES attribute.
pub(crate) const LEAVING: [u8; 7] = [0xc0, 8, 4, 0xff, 0xff, 0, 0];

/// Where it waits.
pub(crate) struct Door(TcpListener);

impl Door {
    pub(crate) fn open() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    /// Accepts and establishes a session.
    pub(crate) fn accept(&self) -> Router {
        // Whoever should come may have died: nobody waits for it for ever.
        self.0.set_nonblocking(true).unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        let stream = loop {
            match self.0.accept() {
                Ok((stream, _)) => break stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(e) => panic!("nobody connects: {e}"),
            }
        };
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut router = Router { stream, updates: 0 };
        assert_eq!(router.next().unwrap().0, OPEN);
        // Version 4, AS 64512, hold 30 s, identifier 192.0.2.1, no capability: IPv4 and two-octet AS.
        router.send(OPEN, &[4, 0xfc, 0x00, 0, 30, 192, 0, 2, 1, 0]);
        router.send(KEEPALIVE, &[]);
        assert_eq!(router.next().unwrap().0, KEEPALIVE);
        router
    }
}

pub(crate) struct Router {
    stream: TcpStream,
    /// UPDATEs that said something.
    pub(crate) updates: usize,
}

impl Router {
    fn send(&mut self, kind: u8, body: &[u8]) {
        let mut message = vec![0xff; 16];
        message.extend_from_slice(&(19 + body.len() as u16).to_be_bytes());
        message.push(kind);
        message.extend_from_slice(body);
        self.stream.write_all(&message).unwrap();
    }

    fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut header = [0; 19];
        match self.stream.read_exact(&mut header) {
            Ok(()) => {}
            Err(e) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                return None;
            }
            Err(e) => panic!("nothing came: {e}"),
        }
        let length = u16::from_be_bytes([header[16], header[17]]) as usize;
        let mut body = vec![0; length - 19];
        self.stream.read_exact(&mut body).unwrap();
        if header[18] == KEEPALIVE {
            self.send(KEEPALIVE, &[]);
        }
        Some((header[18], body))
    }

    /// The next message that is neither a KEEPALIVE nor an End-of-RIB.
    #[track_caller]
    pub(crate) fn note(&mut self) -> (u8, Vec<u8>) {
        loop {
            let (kind, body) = self.next().expect("the session goes on");
            if kind != KEEPALIVE && !(kind == UPDATE && body == [0, 0, 0, 0]) {
                self.updates += usize::from(kind == UPDATE);
                return (kind, body);
            }
        }
    }

    /// Expects the announcement, and gives it.
    #[track_caller]
    pub(crate) fn announced(&mut self) -> Vec<u8> {
        let (kind, body) = self.note();
        assert!(kind == UPDATE && body.ends_with(&PREFIX), "{kind} {body:?}");
        body
    }

    #[track_caller]
    pub(crate) fn withdrawn(&mut self) {
        assert_eq!(self.note(), (UPDATE, WITHDRAWAL.to_vec()));
    }

    /// Whether nothing is said for so long.
    pub(crate) fn is_quiet(&mut self, time: Duration) -> bool {
        let end = Instant::now() + time;
        self.stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut octet = [0];
        let mut quiet = true;
        while quiet && Instant::now() < end {
            quiet = match self.stream.peek(&mut octet) {
                Ok(0) => false,
                Ok(_) => match self.next() {
                    Some((KEEPALIVE, _)) => true,
                    Some((UPDATE, body)) => body == [0, 0, 0, 0],
                    _ => false,
                },
                Err(e) => matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            };
        }
        self.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        quiet
    }
}

/// Whether `octets` are in `body`.
pub(crate) fn has(body: &[u8], octets: &[u8]) -> bool {
    body.windows(octets.len()).any(|window| window == octets)
}
