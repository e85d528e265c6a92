//! The kernel's addresses and routes over rtnetlink: synchronous requests, and a monitor that says when to read again.
//!
//! Routes of ours carry protocol number [`PROTOCOL`]; addresses of ours carry it too. Nothing else is ever changed.
//!
//! The [`Monitor`] never says what changed, because the kernel does not tell everything (an interface that goes down
//! takes its routes along in silence) and may drop messages: whoever is told reads again, and [`sync`] finds out.
//!
//! A socket belongs to the network namespace of the thread that opened it, and stays with it.

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use standfast_core::table::{Change, diff};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use crate::tcp::plain;

mod address;
mod link;
mod route;

pub use route::Routes;

/// The protocol number of our routes and addresses, in the range that iproute2 leaves to users (`ip route show proto 185`).
pub const PROTOCOL: u8 = 185;

/// The metric of our routes. It keeps them apart from an operator's own route to the same prefix, which is never replaced.
pub const METRIC: u32 = 20;

/// Longest answer of a single read: the kernel sends dumps in pieces of at most 32 KiB.
const BUFFER: usize = 64 * 1024;
/// How long the kernel may take to answer. It answers within the call; this is for one that is broken.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a table is read that changes while it is read.
const READS: usize = 8;

/// A kernel table of which we own some rows.
pub trait Table {
    /// What a row is called.
    type Key: Ord + Clone;
    /// What it holds.
    type Value: PartialEq + Clone;

    /// Reads our own rows.
    ///
    /// # Errors
    /// The kernel did not answer.
    fn read(&mut self) -> io::Result<BTreeMap<Self::Key, Self::Value>>;

    /// Makes one change; removing what is not there is fine.
    ///
    /// # Errors
    /// The kernel refused; the row holds at most a part of what was wanted, or what it held before.
    fn write(&mut self, change: &Change<Self::Key, Self::Value>) -> io::Result<()>;
}

/// Makes our rows of `table` be `wanted`: reads, and writes the difference. Gives each change with how it went.
///
/// Rows that match are not touched, and a row that fails does not keep the others from being written.
///
/// # Errors
/// The table could not be read; nothing was changed.
pub fn sync<T: Table>(
    wanted: &BTreeMap<T::Key, T::Value>,
    table: &mut T,
) -> io::Result<Vec<(T::Key, io::Result<()>)>> {
    let there = table.read()?;
    Ok(diff(&there, wanted).iter().map(|change| (change.key().clone(), table.write(change))).collect())
}

/// A socket for requests.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Opens the socket.
    ///
    /// # Errors
    /// The kernel gives no netlink socket.
    pub fn new() -> io::Result<Self> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            socket2::SockRef::from(&socket).set_read_timeout(Some(PATIENCE))?;
            Ok(socket)
        };
        let socket = open().map_err(|e: io::Error| named(&e, "open a netlink socket"))?;
        // Reasons in words and without the request repeated; a kernel that has none still gives the number.
        let _ = socket.set_ext_ack(true).and_then(|()| socket.set_cap_ack(true));
        // The kernel picks our routes out of a full table; one that cannot gives them all, and we pick.
        let _ = socket.set_netlink_get_strict_chk(true);
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends one request and waits for its acknowledgement.
    pub(crate) fn request(&mut self, payload: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.send(payload, NLM_F_REQUEST | NLM_F_ACK | flags)?;
        self.receive(|_| {}).map(drop)
    }

    /// Reads a whole table, as it was at one moment.
    fn dump(&mut self, payload: &RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        for _ in 0..READS {
            self.send(payload.clone(), NLM_F_REQUEST | NLM_F_DUMP)?;
            let mut messages = Vec::new();
            if self.receive(|m| messages.push(m))? {
                return Ok(messages);
            }
        }
        Err(io::Error::new(io::ErrorKind::Interrupted, "the table kept changing while it was read"))
    }

    fn send(&mut self, payload: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(payload);
        message.header.flags = flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut buffer = vec![0; message.buffer_len()];
        message.serialize(&mut buffer);
        self.socket.send(&buffer, 0).map(drop)
    }

    /// Reads until the end of the answer to the last request; whether the table stood still meanwhile.
    fn receive(&mut self, mut take: impl FnMut(RouteNetlinkMessage)) -> io::Result<bool> {
        let mut buffer = Vec::with_capacity(BUFFER);
        let mut still = true;
        loop {
            buffer.clear();
            match self.socket.recv(&mut buffer, 0) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel does not answer"));
                }
                Err(e) => return Err(e),
            }
            // Leftovers of a request that was given up are not an answer to this one.
            for message in messages(&buffer).filter(|m| word(m, 8) == self.sequence) {
                // A message that this library cannot read is not one that we asked for.
                let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message) else {
                    continue;
                };
                still &= message.header.flags & NLM_F_DUMP_INTR == 0;
                match message.payload {
                    NetlinkPayload::InnerMessage(inner) => take(inner),
                    NetlinkPayload::Done(d) if d.code != 0 => return Err(refusal(d.code, &[])),
                    NetlinkPayload::Done(_) => return Ok(still),
                    NetlinkPayload::Error(e) if e.code.is_none() => return Ok(still),
                    NetlinkPayload::Error(e) => return Err(refusal(e.raw_code(), &e.header)),
                    _ => {}
                }
            }
        }
    }
}

/// A socket that hears of changes of links, addresses and our own routes.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
}

/// What a [`Monitor`] heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heard {
    /// Nothing that concerns us.
    Nothing,
    /// A link, an address, or a route of our own changed.
    Change,
    /// Messages were lost, so anything may have changed.
    Overrun,
}

impl Monitor {
    /// Opens it.
    ///
    /// # Errors
    /// The kernel gives no netlink socket.
    pub fn new() -> io::Result<Self> {
        let groups = libc::RTMGRP_LINK
            | libc::RTMGRP_IPV4_IFADDR
            | libc::RTMGRP_IPV6_IFADDR
            | libc::RTMGRP_IPV4_ROUTE
            | libc::RTMGRP_IPV6_ROUTE;
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind(&SocketAddr::new(0, groups as u32))?;
            socket.set_non_blocking(true)?;
            Ok(socket)
        };
        open().map(|socket| Self { socket }).map_err(|e: io::Error| named(&e, "watch netlink"))
    }

    /// The descriptor that becomes readable.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Empties the socket without waiting; what was heard, or that something was missed.
    pub fn read(&mut self) -> Heard {
        let mut buffer = Vec::with_capacity(BUFFER);
        let mut heard = Heard::Nothing;
        loop {
            buffer.clear();
            match self.socket.recv(&mut buffer, 0) {
                Ok(_) if messages(&buffer).any(concerns_us) => heard = heard.max(Heard::Change),
                Ok(_) => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => heard = Heard::Overrun,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return heard,
            }
        }
    }
}

/// Whether a notification is about a link, an address, or a route with our number: routes of others come by the million.
fn concerns_us(message: &[u8]) -> bool {
    let kind = (word(message, 4) & 0xffff) as u16;
    let route = kind == libc::RTM_NEWROUTE || kind == libc::RTM_DELROUTE;
    // rtm_protocol is the sixth octet after the header of 16.
    !route || message.get(16 + 5) == Some(&PROTOCOL)
}

/// The messages in one datagram.
fn messages(mut datagram: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        // At least a header, so that every turn goes forward.
        let len = (word(datagram.get(..16)?, 0) as usize).max(16);
        let message = datagram.get(..len)?;
        datagram = datagram.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

fn word(octets: &[u8], at: usize) -> u32 {
    octets.get(at..at + 4).and_then(|w| w.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// Reads a datagram as an answer, whatever it is: for fuzzing.
#[doc(hidden)]
pub fn fuzz(datagram: &[u8]) {
    for message in messages(datagram) {
        let _ = concerns_us(message);
        let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message) else { continue };
        match message.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => route::fuzz(&route),
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(address)) => address::fuzz(&address),
            NetlinkPayload::Done(done) => _ = refusal(done.code, &[]).to_string(),
            NetlinkPayload::Error(error) => _ = refusal(error.raw_code(), &error.header).to_string(),
            _ => {}
        }
    }
}

/// An error number of the kernel's, with its own words.
#[derive(Debug)]
struct Refusal {
    number: i32,
    words: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", plain(&io::Error::from_raw_os_error(self.number)), self.words)
    }
}

impl std::error::Error for Refusal {}

/// What a negative answer says; `rest` is the header of the request and then attributes.
fn refusal(code: i32, rest: &[u8]) -> io::Error {
    const MESSAGE: u16 = 1;
    let number = code.saturating_abs();
    let error = io::Error::from_raw_os_error(number);
    let mut attributes = rest.get(16..).unwrap_or_default();
    while let Some(&[l0, l1, k0, k1]) = attributes.get(..4) {
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let Some(value) = attributes.get(4..len) else { break };
        if u16::from_ne_bytes([k0, k1]) == MESSAGE {
            let words = String::from_utf8_lossy(value).trim_end_matches(['\0', '.']).to_owned();
            return io::Error::new(error.kind(), Refusal { number, words });
        }
        attributes = attributes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    error
}

/// The number of an error that [`Netlink::request`] gave.
fn number(e: &io::Error) -> Option<i32> {
    let refusal = e.get_ref().and_then(|e| e.downcast_ref::<Refusal>());
    refusal.map(|r| r.number).or_else(|| e.raw_os_error())
}

pub(crate) fn interface_index(name: &str) -> io::Result<u32> {
    let text = CString::new(name)?;
    // SAFETY: `text` is a NUL-terminated string that lives over the call.
    match unsafe { libc::if_nametoindex(text.as_ptr()) } {
        0 => Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no interface {name}"))),
        index => Ok(index),
    }
}

fn named(e: &io::Error, what: &str) -> io::Error {
    let advice = match number(e) {
        Some(libc::EPERM | libc::EACCES) => " (it needs CAP_NET_ADMIN)",
        _ => "",
    };
    io::Error::new(e.kind(), format!("cannot {what}: {}{advice}", plain(e)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_of_nonsense_ends() {
        assert_eq!(messages(&[0; 64]).count(), 4);
        assert_eq!(messages(&[255; 64]).count(), 0);
        assert_eq!(messages(&[16, 0, 0]).count(), 0);
    }

    #[test]
    fn a_refusal_keeps_its_number_and_says_the_kernels_words() {
        let mut rest = vec![0; 16];
        rest.extend(8u16.to_ne_bytes());
        rest.extend(1u16.to_ne_bytes());
        rest.extend(b"bad\0");
        let e = refusal(-libc::ESRCH, &rest);
        assert_eq!(number(&e), Some(libc::ESRCH));
        assert_eq!(e.to_string(), "no such process: bad");
        assert_eq!(number(&refusal(-libc::EPERM, &[1, 2, 3])), Some(libc::EPERM));
    }

    #[test]
    fn a_route_of_others_does_not_concern_us() {
        let mut message = [0; 28];
        message[0] = 28;
        message[4..6].copy_from_slice(&libc::RTM_NEWROUTE.to_ne_bytes());
        message[16 + 5] = 12;
        assert!(!concerns_us(&message));
        message[16 + 5] = PROTOCOL;
        assert!(concerns_us(&message));
        message[4..6].copy_from_slice(&libc::RTM_NEWADDR.to_ne_bytes());
        assert!(concerns_us(&message));
    }
}
