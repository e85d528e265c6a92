//! Hearing that a table of the kernel's may have changed.

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use socket2::{SockFilter, SockRef};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use super::{BUFFER, PROTOCOL, messages, named, word};

const NEW_NEXTHOP: u16 = 104;
const DELETE_NEXTHOP: u16 = 105;
/// The multicast group of next hop objects, as a bit.
const GROUP_NEXTHOP: u32 = 1 << 31;
/// Room for a burst of changes.
const ROOM: usize = 1 << 20;

/// A socket that hears of changes of links, addresses, and our own routes and next hops.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
}

/// What a [`Monitor`] heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heard {
    /// Nothing that concerns us.
    Nothing,
    /// A link, an address, a route or a next hop of our own changed.
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
            // Without it a burst is an overrun sooner, which is answered all the same.
            let _ = SockRef::from(&socket).set_recv_buffer_size(ROOM);
            socket.bind(&SocketAddr::new(0, groups as u32 | GROUP_NEXTHOP))?;
            socket.set_non_blocking(true)?;
            Ok(socket)
        };
        open().map(|socket| Self { socket }).map_err(|e: io::Error| named(&e, "watch netlink"))
    }

    /// Lets the kernel pass over what the request socket with this number changed, and over routes and next hops of others:
    /// neither then wakes anybody or takes room. A kernel that cannot tells of it all, which is only slower.
    pub fn ignore(&self, port: u32) {
        let _ = SockRef::from(&self.socket).attach_filter(&filter(port));
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

/// Whether a notification is about a link, an address, or a route or next hop with our number: routes of others come by the million.
pub(super) fn concerns_us(message: &[u8]) -> bool {
    let [a, b, ..] = word(message, 4).to_ne_bytes();
    match u16::from_ne_bytes([a, b]) {
        // rtm_protocol is the sixth octet after the header of 16, nh_protocol the third.
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => message.get(16 + 5) == Some(&PROTOCOL),
        NEW_NEXTHOP | DELETE_NEXTHOP => message.get(16 + 2) == Some(&PROTOCOL),
        _ => true,
    }
}

/// The same for the kernel, without what `port` asked for itself. It loads words as if they were of the network's order.
fn filter(port: u32) -> [SockFilter; 13] {
    const LOAD_WORD: u16 = 0x20;
    const LOAD_HALF: u16 = 0x28;
    const LOAD_OCTET: u16 = 0x30;
    const IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let load = |size, at| SockFilter::new(size, 0, 0, at);
    let equal = |value: u32, then, or| SockFilter::new(IF_EQUAL, then, or, value);
    let kind = |kind: u16| u32::from(kind.to_be());
    [
        load(LOAD_WORD, 12),
        equal(port.to_be(), 9, 0),
        load(LOAD_HALF, 4),
        equal(kind(libc::RTM_NEWROUTE), 3, 0),
        equal(kind(libc::RTM_DELROUTE), 2, 0),
        equal(kind(NEW_NEXTHOP), 3, 0),
        equal(kind(DELETE_NEXTHOP), 2, 5),
        load(LOAD_OCTET, 16 + 5),
        equal(u32::from(PROTOCOL), 3, 2),
        load(LOAD_OCTET, 16 + 2),
        equal(u32::from(PROTOCOL), 1, 0),
        load(RETURN, 0),
        load(RETURN, u32::MAX),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_and_next_hops_of_others_do_not_concern_us() {
        for (kind, at) in [(libc::RTM_NEWROUTE, 5), (NEW_NEXTHOP, 2), (DELETE_NEXTHOP, 2)] {
            let mut message = [0; 28];
            message[0] = 28;
            message[4..6].copy_from_slice(&kind.to_ne_bytes());
            message[16 + at] = 12;
            assert!(!concerns_us(&message));
            message[16 + at] = PROTOCOL;
            assert!(concerns_us(&message));
            message[4..6].copy_from_slice(&libc::RTM_NEWADDR.to_ne_bytes());
            message[16 + at] = 12;
            assert!(concerns_us(&message));
        }
    }
}
