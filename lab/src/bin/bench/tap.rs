//! Packets with the kernel's times, read after the measurement.
//!
//! The capture gathers in the kernel and is fetched once a second: a tcpdump that woke for each packet would compete for the
//! processor with what is measured. It knows Ethernet, IPv4 and TCP, and no reassembly.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use standfast_lab::{Host, Lab, Message, Process, Update, secs, until};

/// A running capture of one interface.
pub(crate) struct Tap {
    file: PathBuf,
    process: Arc<Process>,
}

/// A TCP segment that carries something.
pub(crate) struct Segment {
    /// When the kernel saw it, since the epoch of the wall clock.
    pub(crate) time: Duration,
    /// Who sent it.
    pub(crate) from: SocketAddrV4,
    /// What it carries.
    pub(crate) payload: Vec<u8>,
}

impl Tap {
    /// Captures the TCP segments of `port` on an interface of `host`.
    pub(crate) fn start(lab: &Lab, host: &Host, interface: &str, port: u16) -> Self {
        let file = lab.file(&format!("{}-{interface}-{port}.pcap", host.name));
        let path = file.to_str().expect("a plain path");
        let (name, filter) = (format!("tap-{interface}-{port}"), format!("tcp port {port}"));
        let command = [
            "tcpdump",
            "-Z",
            "root",
            "-i",
            interface,
            "-s",
            "2048",
            "-B",
            "32768",
            "--time-stamp-precision=nano",
            "-w",
            path,
            &filter,
        ];
        let process = host.process(&name, &command, &[]);
        until("tcpdump listens", secs(10), || process.log().contains("listening on"));
        Self { file, process }
    }

    /// Ends the capture and gives every segment with a payload, in order.
    pub(crate) fn finish(self) -> Vec<Segment> {
        // The kernel hands its buffer over once a second.
        std::thread::sleep(Duration::from_millis(1300));
        self.process.signal(Signal::SIGTERM);
        self.process.wait(secs(5));
        decode(&std::fs::read(&self.file).expect("the capture"))
    }
}

impl Segment {
    /// The UPDATEs that begin and end in this segment.
    pub(crate) fn updates(&self) -> Vec<Update> {
        let mut stream = self.payload.clone();
        let mut found = Vec::new();
        while let Ok(Some(message)) = Message::take(&mut stream) {
            found.extend(message.update());
        }
        found
    }

    /// Whether it announces this prefix.
    pub(crate) fn announces(&self, prefix: &str) -> bool {
        self.updates().iter().any(|update| update.announced.iter().any(|p| p == prefix))
    }

    /// Whether it withdraws this prefix.
    pub(crate) fn withdraws(&self, prefix: &str) -> bool {
        self.updates().iter().any(|update| update.withdrawn.iter().any(|p| p == prefix))
    }

    fn parse(time: Duration, packet: &[u8]) -> Option<Self> {
        let ip = packet.get(14..)?;
        if packet.get(12..14)? != [0x08, 0x00] {
            return None;
        }
        let header = usize::from(ip.first()? & 15) * 4;
        let total = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
        let tcp = ip.get(header..total)?;
        let address = Ipv4Addr::from(<[u8; 4]>::try_from(ip.get(12..16)?).ok()?);
        let port = u16::from_be_bytes([*tcp.first()?, *tcp.get(1)?]);
        let payload = tcp.get(usize::from(*tcp.get(12)? >> 4) * 4..)?;
        (!payload.is_empty()).then(|| Self {
            time,
            from: SocketAddrV4::new(address, port),
            payload: payload.to_vec(),
        })
    }
}

fn decode(file: &[u8]) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut rest = file.get(24..).unwrap_or_default();
    while rest.len() >= 16 {
        let word = |at: usize| u32::from_ne_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
        let (time, length) = (Duration::new(word(0).into(), word(4)), word(8) as usize);
        let Some(packet) = rest.get(16..16 + length) else { break };
        segments.extend(Segment::parse(time, packet));
        rest = &rest[16 + length..];
    }
    segments
}
