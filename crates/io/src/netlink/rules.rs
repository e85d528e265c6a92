//! Hearing that a table of nftables was changed, by its name.

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use super::{BUFFER, attributes, messages, named};

/// The multicast group of nftables (NFNLGRP_NFTABLES).
const GROUP: u32 = 7;
/// The number of nftables among netfilter's parts, in the upper octet of a message's type.
const PART: u8 = 10;
/// In every message the attribute that names the table has this number.
const TABLE: u16 = 1;
/// Of netlink, and of netfilter after it.
const HEADERS: usize = 16 + 4;

/// A socket that hears of changes of nftables.
#[derive(Debug)]
pub(crate) struct Rules {
    socket: Socket,
}

impl Rules {
    /// Opens it.
    ///
    /// # Errors
    /// The kernel has no nftables, or the right (CAP_NET_ADMIN) is missing.
    pub(crate) fn new() -> io::Result<Self> {
        let open = || {
            let mut socket = Socket::new(NETLINK_NETFILTER)?;
            socket.bind(&SocketAddr::new(0, 0))?;
            socket.add_membership(GROUP)?;
            socket.set_non_blocking(true)?;
            Ok(socket)
        };
        open().map(|socket| Self { socket }).map_err(|e: io::Error| named(&e, "watch nftables"))
    }

    /// The descriptor that becomes readable.
    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Empties the socket without waiting; whether one of the tables was changed, or something was missed.
    pub(crate) fn heard(&mut self, tables: &[&str]) -> bool {
        let mut buffer = Vec::with_capacity(BUFFER);
        let mut heard = false;
        loop {
            buffer.clear();
            match self.socket.recv(&mut buffer, 0) {
                Ok(_) => {
                    heard |= messages(&buffer).any(|message| tables.iter().any(|table| is_of(message, table)))
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => heard = true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return heard,
            }
        }
    }
}

/// Whether a message is about this table, or about something in it.
fn is_of(message: &[u8], table: &str) -> bool {
    let kind = message.get(4..6).and_then(|kind| kind.try_into().ok()).map_or(0, u16::from_ne_bytes);
    let name = attributes(message.get(HEADERS..).unwrap_or_default()).find(|(kind, _)| *kind == TABLE);
    kind.to_be_bytes()[0] == PART
        && name.is_some_and(|(_, name)| name.strip_suffix(&[0]).unwrap_or(name) == table.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_table_of_that_name_is_heard() {
        let message = |kind: u16, name: &[u8]| {
            let mut m = vec![0; HEADERS];
            m[4..6].copy_from_slice(&kind.to_ne_bytes());
            m.extend((4 + name.len() as u16).to_ne_bytes());
            m.extend(TABLE.to_ne_bytes());
            m.extend(name);
            m
        };
        assert!(is_of(&message(0x0a02, b"ours\0"), "ours"));
        assert!(is_of(&message(0x0a07, b"ours"), "ours"));
        assert!(!is_of(&message(0x0a02, b"others\0"), "ours"));
        assert!(!is_of(&message(0x0102, b"ours\0"), "ours"), "it is conntrack's");
        for n in 0..HEADERS + 8 {
            assert!(!is_of(&message(0x0a02, b"ours\0")[..n], "ours"), "cut at {n}");
        }
    }
}
