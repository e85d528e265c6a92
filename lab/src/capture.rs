//! What really went over a wire: the BGP messages of an interface, in order, with their times.
//!
//! A tcpdump writes, and this reads the file and puts the TCP streams together. A stream is read from its SYN on or, if that
//! was missed, from the first segment that begins with a BGP marker.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::host::{Host, Process};
use crate::lab::{secs, until};
use crate::message::Message;

/// A running or ended capture. Cheap to clone: a handle.
#[derive(Clone)]
pub struct Capture {
    host: String,
    interface: String,
    file: PathBuf,
    process: Arc<Process>,
}

/// Something seen on the wire.
#[derive(Clone)]
pub struct Event {
    /// When, since the epoch of the wall clock.
    pub time: Duration,
    /// Who sent it.
    pub from: SocketAddr,
    /// To whom.
    pub to: SocketAddr,
    /// What it was.
    pub what: Seen,
}

/// What was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// The first segment of a connection.
    Syn,
    /// A whole BGP message, at the time of its last segment.
    Message(Message),
    /// Octets that are not BGP.
    Garbage(Vec<u8>),
    /// The sender will send no more.
    Fin,
    /// The connection was aborted.
    Reset,
}

impl Event {
    /// The message, if it is one.
    pub fn message(&self) -> Option<&Message> {
        match &self.what {
            Seen::Message(message) => Some(message),
            _ => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6} {} > {} {:?}", self.time.as_secs_f64(), self.from, self.to, self.what)
    }
}

impl Capture {
    pub(crate) fn start(host: &Host, interface: &str) -> Self {
        let file = host.registry.dir.join(format!("{}-{interface}.pcap", host.name));
        let path = file.to_str().expect("a plain path");
        let command = [
            "tcpdump",
            "-Z",
            "root",
            "-i",
            interface,
            "-s",
            "0",
            "-B",
            "32768",
            "-U",
            "--immediate-mode",
            "--time-stamp-precision=nano",
            "-w",
            path,
            "tcp port 179",
        ];
        let process = host.process(&format!("tcpdump-{interface}"), &command, &[]);
        until("tcpdump listens", secs(10), || process.log().contains("listening on"));
        let capture = Self { host: host.name.clone(), interface: interface.to_owned(), file, process };
        host.registry.captures.lock().unwrap().push(capture.clone());
        capture
    }

    /// Everything so far. Packets of the last few milliseconds may be missing.
    pub fn events(&self) -> Vec<Event> {
        decode(&std::fs::read(&self.file).unwrap_or_default())
    }

    /// Ends the capture and gives everything.
    pub fn finish(&self) -> Vec<Event> {
        // What tcpdump has not fetched yet when the signal comes, it leaves: give it a moment.
        std::thread::sleep(Duration::from_millis(100));
        self.process.signal(Signal::SIGTERM);
        self.process.wait(secs(5));
        self.events()
    }

    /// The messages from one address so far.
    pub fn messages_from(&self, address: impl Into<IpAddr>) -> Vec<(Duration, Message)> {
        let address = address.into();
        let sent = self.events().into_iter().filter(|event| event.from.ip() == address);
        sent.filter_map(|event| Some((event.time, event.message()?.clone()))).collect()
    }

    pub(crate) fn place(&self) -> String {
        format!("{} {}", self.host, self.interface)
    }
}

/// One direction of a connection.
#[derive(Default)]
struct Stream {
    next: u32,
    waiting: BTreeMap<u32, Vec<u8>>,
    octets: Vec<u8>,
}

impl Stream {
    /// Adds a segment and moves everything that is then in order to `octets`.
    fn push(&mut self, sequence: u32, payload: &[u8]) {
        self.waiting.insert(sequence, payload.to_vec());
        while let Some((&at, _)) =
            self.waiting.iter().find(|(at, _)| (self.next.wrapping_sub(**at)).cast_signed() >= 0)
        {
            let segment = self.waiting.remove(&at).unwrap_or_default();
            let known = self.next.wrapping_sub(at) as usize;
            if let Some(fresh) = segment.get(known..) {
                self.octets.extend_from_slice(fresh);
                self.next = self.next.wrapping_add(u32::try_from(fresh.len()).unwrap_or(0));
            }
        }
    }
}

fn decode(file: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    let mut streams: HashMap<(SocketAddr, SocketAddr), Stream> = HashMap::new();
    let mut rest = file.get(24..).unwrap_or_default();
    while rest.len() >= 16 {
        let word = |at: usize| u32::from_ne_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
        let (time, length) = (Duration::new(word(0).into(), word(4)), word(8) as usize);
        let Some(packet) = rest.get(16..16 + length) else { break };
        if let Some(segment) = Segment::parse(packet) {
            segment.record(time, &mut streams, &mut events);
        }
        rest = &rest[16 + length..];
    }
    events
}

struct Segment<'a> {
    from: SocketAddr,
    to: SocketAddr,
    sequence: u32,
    flags: u8,
    payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Reads Ethernet, IPv4 or IPv6 without extension headers, and TCP.
    fn parse(packet: &'a [u8]) -> Option<Self> {
        let ip = packet.get(14..)?;
        let (from, to, tcp): (IpAddr, IpAddr, _) = match packet.get(12..14)? {
            [0x08, 0x00] => {
                let header = usize::from(ip.first()? & 15) * 4;
                let total = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
                let four = |at| Some(Ipv4Addr::from(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?));
                (four(12)?.into(), four(16)?.into(), ip.get(header..total)?)
            }
            [0x86, 0xdd] => {
                let length = usize::from(u16::from_be_bytes([*ip.get(4)?, *ip.get(5)?]));
                let sixteen = |at| Some(Ipv6Addr::from(<[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?));
                (sixteen(8)?.into(), sixteen(24)?.into(), ip.get(40..40 + length)?)
            }
            _ => return None,
        };
        let port = |at: usize| Some(u16::from_be_bytes([*tcp.get(at)?, *tcp.get(at + 1)?]));
        Some(Self {
            from: SocketAddr::new(from, port(0)?),
            to: SocketAddr::new(to, port(2)?),
            sequence: u32::from_be_bytes(tcp.get(4..8)?.try_into().ok()?),
            flags: *tcp.get(13)?,
            payload: tcp.get(usize::from(*tcp.get(12)? >> 4) * 4..)?,
        })
    }

    fn record(
        &self,
        time: Duration,
        streams: &mut HashMap<(SocketAddr, SocketAddr), Stream>,
        events: &mut Vec<Event>,
    ) {
        let mut see = |what| events.push(Event { time, from: self.from, to: self.to, what });
        let key = (self.from, self.to);
        if self.flags & SYN != 0 {
            streams.insert(key, Stream { next: self.sequence.wrapping_add(1), ..Stream::default() });
            if self.flags & ACK == 0 {
                see(Seen::Syn);
            }
            return;
        }
        if self.payload.starts_with(&[0xff; 16]) && !streams.contains_key(&key) {
            streams.insert(key, Stream { next: self.sequence, ..Stream::default() });
        }
        if let Some(stream) = streams.get_mut(&key)
            && !self.payload.is_empty()
        {
            stream.push(self.sequence, self.payload);
            loop {
                match Message::take(&mut stream.octets) {
                    Ok(Some(message)) => see(Seen::Message(message)),
                    Ok(None) => break,
                    Err(octets) => {
                        see(Seen::Garbage(octets));
                        break;
                    }
                }
            }
        }
        if self.flags & FIN != 0 {
            see(Seen::Fin);
        }
        if self.flags & RST != 0 {
            see(Seen::Reset);
        }
    }
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_come_out_in_order_and_once_across_the_wrap() {
        let mut stream = Stream { next: u32::MAX - 1, ..Stream::default() };
        stream.push(1, b"de");
        assert_eq!(stream.octets, b"");
        stream.push(u32::MAX - 1, b"ab");
        assert_eq!(stream.octets, b"ab");
        stream.push(u32::MAX, b"bc");
        stream.push(1, b"de");
        stream.push(u32::MAX - 1, b"ab");
        assert_eq!(stream.octets, b"abcde");
    }
}
