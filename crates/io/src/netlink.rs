//! The kernel's addresses, routes and next hops over rtnetlink: synchronous requests, many in one call where there are many,
//! and a monitor that says when to read again. Besides, the connections of this host, over sock_diag
//! and from its connection tracking.
//!
//! Routes, next hop objects and addresses of ours carry protocol number [`PROTOCOL`]. Nothing else is ever changed.
//!
//! The [`Monitor`] never says what changed, because the kernel does not tell everything (an interface that goes down
//! takes its routes along in silence) and may drop messages: whoever is told reads again.
//!
//! A socket belongs to the network namespace of the thread that opened it, and stays with it.

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};
use std::ffi::CString;
use std::fmt;
use std::io;
use std::time::Duration;

use crate::tcp::plain;

mod address;
mod batch;
mod link;
mod monitor;
mod nexthop;
mod nftables;
mod policy;
mod route;
mod rule;
mod rules;
mod sockets;
mod tracked;

pub(crate) use batch::Batch;
pub use monitor::{Heard, Monitor};
pub(crate) use nexthop::Mode;
pub use nexthop::{Bucket, Members, Object, Objects, Resilient};
pub use nftables::{Deed, Element, Memory};
pub use route::Via;
pub(crate) use route::{gone, on, unfit};
pub use rule::{PRIORITY, Rule};
pub(crate) use rules::Rules;
pub use sockets::Sockets;
pub use tracked::Tracked;

/// The protocol number of our routes, next hop objects and addresses, in the range that iproute2 leaves to users
/// (`ip route show proto 185`, `ip nexthop show proto 185`).
pub const PROTOCOL: u8 = 185;

/// The metric of our routes. It keeps them apart from an operator's own route to the same prefix, which is never replaced.
pub const METRIC: u32 = 20;

/// Longest answer of a single read: the kernel sends dumps in pieces of at most 32 KiB.
const BUFFER: usize = 64 * 1024;
/// How long the kernel may take to answer. It answers within the call; this is for one that is broken.
const PATIENCE: Duration = Duration::from_secs(5);
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// How often a table is read that changes while it is read.
const READS: usize = 8;

/// A socket for requests.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// Opens a socket of rtnetlink.
    ///
    /// # Errors
    /// The kernel gives no netlink socket.
    pub fn new() -> io::Result<Self> {
        Self::open(NETLINK_ROUTE)
    }

    /// Opens a socket of nfnetlink, for [`elements`](Self::elements) and [`memorise`](Self::memorise).
    ///
    /// # Errors
    /// The kernel gives no such socket: it has no netfilter.
    pub fn netfilter() -> io::Result<Self> {
        Self::open(NETLINK_NETFILTER)
    }

    /// The same for another protocol of netlink.
    fn open(protocol: isize) -> io::Result<Self> {
        let open = || {
            let mut socket = Socket::new(protocol)?;
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
        // Room for the refusals of a whole batch; the default has it, too, where it was not made smaller.
        let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(BUFFER * 16);
        Ok(Self { socket, sequence: 0, buffer: Vec::new() })
    }

    /// The number of this socket, by which a [`Monitor`] knows what came of its own requests.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn port(&self) -> io::Result<u32> {
        let mut address = SocketAddr::new(0, 0);
        self.socket.get_address(&mut address)?;
        Ok(address.port_number())
    }

    /// Sends one request and waits for its acknowledgement.
    pub(crate) fn request(&mut self, payload: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.send(payload, NLM_F_REQUEST | NLM_F_ACK | flags)?;
        self.receive(|_| {}).map(drop)
    }

    /// Reads a whole table, as it was at one moment.
    pub(crate) fn dump(&mut self, payload: &RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.dump_of(payload, Some)
    }

    /// The same, of each message only what is wanted: a table may be long.
    fn dump_of<T>(
        &mut self,
        payload: &RouteNetlinkMessage,
        mut of: impl FnMut(RouteNetlinkMessage) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        for _ in 0..READS {
            self.send(payload.clone(), NLM_F_REQUEST | NLM_F_DUMP)?;
            let mut rows = Vec::new();
            if self.receive(|m| rows.extend(of(m)))? {
                return Ok(rows);
            }
        }
        Err(unsteady())
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
        self.receive_raw(|message| {
            // A message that this library cannot read is not one that we asked for.
            let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message) else { return };
            if let NetlinkPayload::InnerMessage(inner) = message.payload {
                take(inner);
            }
        })
    }

    /// The same for messages as they are.
    fn receive_raw(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<bool> {
        let mut still = true;
        let mut end = Ok(());
        let sequence = self.sequence;
        // Leftovers of a request that was given up are not an answer to this one.
        self.listen(|message| {
            if word(message, 8) != sequence {
                return Step::Next;
            }
            let kind_and_flags = word(message, 4).to_ne_bytes();
            let kind = u16::from_ne_bytes([kind_and_flags[0], kind_and_flags[1]]);
            still &= u16::from_ne_bytes([kind_and_flags[2], kind_and_flags[3]]) & NLM_F_DUMP_INTR == 0;
            if kind != NLMSG_ERROR && kind != NLMSG_DONE {
                take(message);
                return Step::Next;
            }
            let code = word(message, 16).cast_signed();
            if code != 0 {
                let rest = if kind == NLMSG_ERROR { message.get(20..).unwrap_or_default() } else { &[] };
                end = Err(refusal(code, rest));
            }
            Step::End
        })?;
        end.map(|()| still)
    }

    /// Reads messages until it is told to stop.
    fn listen(&mut self, mut take: impl FnMut(&[u8]) -> Step) -> io::Result<()> {
        self.buffer.reserve(BUFFER);
        loop {
            self.buffer.clear();
            match self.socket.recv(&mut self.buffer, 0) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel does not answer"));
                }
                Err(e) => return Err(e),
            }
            for message in messages(&self.buffer) {
                if take(message) == Step::End {
                    return Ok(());
                }
            }
        }
    }

    /// Asks for a table for which the library has no words, and gives its messages to `take`; `again` empties what was taken when
    /// the table changed while it was read.
    fn raw_dump<T>(
        &mut self,
        ask: &[u8],
        to: &mut T,
        again: impl Fn(&mut T),
        take: impl Fn(&[u8], &mut T),
    ) -> io::Result<()> {
        for _ in 0..READS {
            if self.raw_dump_once(ask, |message| take(message, to))? {
                return Ok(());
            }
            again(to);
        }
        Err(unsteady())
    }

    /// The same once; whether the table stood still.
    fn raw_dump_once(&mut self, ask: &[u8], take: impl FnMut(&[u8])) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut ask = ask.to_vec();
        ask[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        self.socket.send(&ask, 0)?;
        self.receive_raw(take)
    }
}

/// Whether the answer goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Next,
    End,
}

fn unsteady() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "the table kept changing while it was read")
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

/// The attributes in `octets`: kinds without their flags, and values.
fn attributes(mut octets: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let &[l0, l1, k0, k1] = octets.get(..4)? else { return None };
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = octets.get(4..len)?;
        octets = octets.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([k0, k1]) & 0x3fff, value))
    })
}

fn word(octets: &[u8], at: usize) -> u32 {
    octets.get(at..at + 4).and_then(|w| w.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// Reads a datagram as an answer, whatever it is: for fuzzing.
#[doc(hidden)]
pub fn fuzz(datagram: &[u8]) {
    for message in messages(datagram) {
        let _ = monitor::concerns_us(message);
        nexthop::fuzz(message);
        sockets::fuzz(message);
        tracked::fuzz(message);
        nftables::each(message, &mut |_| {});
        let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message) else { continue };
        match message.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => route::fuzz(&route),
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRule(rule)) => rule::fuzz(&rule),
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
    let words = attributes(rest.get(16..).unwrap_or_default()).find(|(kind, _)| *kind == MESSAGE);
    let Some((_, words)) = words else { return error };
    let words = String::from_utf8_lossy(words).trim_end_matches(['\0', '.']).to_owned();
    io::Error::new(error.kind(), Refusal { number, words })
}

/// The number of an error that [`Netlink::request`] gave.
pub(crate) fn number(e: &io::Error) -> Option<i32> {
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

pub(crate) fn named(e: &io::Error, what: &str) -> io::Error {
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
}
