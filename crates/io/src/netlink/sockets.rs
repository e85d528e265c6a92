//! How many TCP connections of this host are at certain addresses, over sock_diag.
//!
//! The kernel gives every connection of the network namespace, in pieces; what is kept of each is a few octets, and nothing of
//! those that are at other addresses. Sources: `linux/inet_diag.h`, `linux/sock_diag.h`.

use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use standfast_core::prefix::Prefix;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Netlink, named, number};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const REQUEST_DUMP: u16 = 0x301;
/// A header, and `struct inet_diag_req_v2`.
const REQUEST: usize = 16 + 56;
/// ESTABLISHED, FIN_WAIT1, CLOSE_WAIT, LAST_ACK and CLOSING: what was written may still have to arrive.
const STATES: u32 = 1 << 1 | 1 << 4 | 1 << 8 | 1 << 9 | 1 << 11;

/// Counts connections in the network namespace of the thread that made it.
#[derive(Debug)]
pub struct Sockets(Netlink);

/// Both ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Ends {
    local: SocketAddr,
    remote: SocketAddr,
}

impl Sockets {
    /// Opens the socket.
    ///
    /// # Errors
    /// The kernel gives none.
    pub fn new() -> io::Result<Self> {
        Netlink::open(NETLINK_SOCK_DIAG).map(Self)
    }

    /// The connections whose own end is at an address of each of these sets of prefixes, and whose other end is elsewhere: those
    /// from this host itself, such as a check's, are moved by no route. It takes about a second for a million connections.
    ///
    /// # Errors
    /// The kernel has no sock_diag, or does not answer.
    pub fn connections(&mut self, at: &[&[Prefix]]) -> io::Result<Vec<u64>> {
        let hasher = RandomState::new();
        // A connection of this host with itself is seen from both ends: its near end is known by the far one.
        let (mut near, mut far) = (Vec::<(usize, u64)>::new(), HashSet::<u64>::new());
        let is_at = |address: IpAddr| at.iter().position(|set| set.iter().any(|p| p.contains(address)));
        for family in [libc::AF_INET, libc::AF_INET6] {
            // It may change while it is read: the next count is a second later.
            let taken = self.0.raw_dump_once(&request(family), |message| {
                let Some(ends) = ends(message) else { return };
                if let Some(set) = is_at(ends.local.ip()) {
                    near.push((set, hasher.hash_one(ends)));
                }
                if is_at(ends.remote.ip()).is_some() {
                    far.insert(hasher.hash_one(Ends { local: ends.remote, remote: ends.local }));
                }
            });
            match taken {
                Ok(_) => {}
                // A kernel without IPv6 has no such connections.
                Err(e) if family == libc::AF_INET6 && number(&e) == Some(libc::ENOENT) => {}
                Err(e) if number(&e) == Some(libc::ENOENT) => {
                    return Err(io::Error::new(
                        e.kind(),
                        "the kernel has no sock_diag for TCP (module tcp_diag)",
                    ));
                }
                Err(e) => return Err(named(&e, "count connections")),
            }
        }
        let mut counts = vec![0; at.len()];
        for (set, _) in near.into_iter().filter(|(_, ends)| !far.contains(ends)) {
            counts[set] += 1;
        }
        Ok(counts)
    }
}

/// Asks for every TCP connection of a family.
fn request(family: i32) -> [u8; REQUEST] {
    let mut ask = [0; REQUEST];
    ask[..4].copy_from_slice(&(REQUEST as u32).to_ne_bytes());
    ask[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    ask[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    // Both families have small numbers.
    ask[16] = family as u8;
    ask[17] = libc::IPPROTO_TCP as u8;
    ask[20..24].copy_from_slice(&STATES.to_ne_bytes());
    ask
}

/// The ends of the connection that a message tells of: a header, and then family, state, two octets, two ports and two
/// addresses of 16 octets each.
fn ends(message: &[u8]) -> Option<Ends> {
    if message.get(4..6)? != SOCK_DIAG_BY_FAMILY.to_ne_bytes() {
        return None;
    }
    let family = i32::from(*message.get(16)?);
    let end = |port: usize, address: usize| {
        let octets: [u8; 16] = message.get(address..address + 16)?.try_into().ok()?;
        let ip = match family {
            libc::AF_INET => IpAddr::V4(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3])),
            // A socket of both families has its IPv4 connections in IPv6 dress.
            libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(octets)).to_canonical(),
            _ => return None,
        };
        let port = u16::from_be_bytes(message.get(port..port + 2)?.try_into().ok()?);
        Some(SocketAddr::new(ip, port))
    };
    Some(Ends { local: end(20, 24)?, remote: end(22, 40)? })
}

/// Reads a message as a connection, whatever it is: for fuzzing.
pub(super) fn fuzz(message: &[u8]) {
    if let Some(Ends { local, remote }) = ends(message) {
        let mapped = |end: SocketAddr| matches!(end.ip(), IpAddr::V6(a) if a.to_ipv4_mapped().is_some());
        assert!(!mapped(local) && !mapped(remote), "{local} {remote}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(family: u8, local: &[u8], remote: &[u8]) -> Vec<u8> {
        let mut octets = vec![0; 16 + 72];
        octets[4] = SOCK_DIAG_BY_FAMILY as u8;
        octets[16] = family;
        octets[20..24].copy_from_slice(&[0, 80, 0x9c, 0x40]);
        octets[24..24 + local.len()].copy_from_slice(local);
        octets[40..40 + remote.len()].copy_from_slice(remote);
        octets
    }

    #[test]
    fn a_connection_is_read_in_each_dress() {
        let (v4, v6) = (libc::AF_INET as u8, libc::AF_INET6 as u8);
        let read = |octets: &[u8]| ends(octets).map(|e| format!("{} {}", e.local, e.remote));
        let plain = message(v4, &[198, 51, 100, 10], &[192, 0, 2, 7]);
        assert_eq!(read(&plain).unwrap(), "198.51.100.10:80 192.0.2.7:40000");
        let dressed = |last: [u8; 4]| [&[0; 10][..], &[0xff, 0xff], &last].concat();
        let mapped = message(v6, &dressed([198, 51, 100, 10]), &dressed([192, 0, 2, 7]));
        assert_eq!(read(&mapped).unwrap(), "198.51.100.10:80 192.0.2.7:40000");
        let six = message(v6, &"2001:db8::10".parse::<Ipv6Addr>().unwrap().octets(), &[0; 16]);
        assert_eq!(read(&six).unwrap(), "[2001:db8::10]:80 [::]:40000");
        assert_eq!(read(&message(1, &[], &[])), None);
        for len in 0..56 {
            assert_eq!(read(&plain[..len]), None, "{len}");
        }
        let mut other = plain;
        other[4] = 3;
        assert_eq!(read(&other), None);
    }
}
