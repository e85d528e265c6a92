//! How many TCP connections to certain addresses this host forwards, by its connection tracking.
//!
//! Sources: `linux/netfilter/nfnetlink_conntrack.h`, `linux/netfilter/nf_conntrack_tcp.h`.

use netlink_sys::protocols::NETLINK_NETFILTER;
use standfast_core::prefix::Prefix;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Netlink, attributes, named};

/// IPCTNL_MSG_CT_GET of NFNL_SUBSYS_CTNETLINK, and what it answers with: IPCTNL_MSG_CT_NEW.
const GET: u16 = 0x101;
const NEW: u16 = 0x100;
const REQUEST_DUMP: u16 = 0x301;
/// A header, and `struct nfgenmsg`.
const REQUEST: usize = 20;

const TUPLE_ORIG: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const PROTOINFO: u16 = 4;
const TUPLE_IP: u16 = 1;
const PROTOINFO_TCP: u16 = 1;
const TCP_STATE: u16 = 1;
/// Source and destination in a tuple, of IPv4 and of IPv6.
const SOURCE: [u16; 2] = [1, 3];
const DESTINATION: [u16; 2] = [2, 4];
/// ESTABLISHED, FIN_WAIT and CLOSE_WAIT: one end at least may still say something.
const ALIVE: std::ops::RangeInclusive<u8> = 3..=5;

/// Counts tracked connections in the network namespace of the thread that made it.
#[derive(Debug)]
pub struct Tracked(Netlink);

impl Tracked {
    /// Opens the socket.
    ///
    /// # Errors
    /// The kernel gives none.
    pub fn new() -> io::Result<Self> {
        Netlink::open(NETLINK_NETFILTER).map(Self)
    }

    /// The TCP connections that were opened to an address of each of these sets of prefixes, or to one that is translated to it.
    ///
    /// # Errors
    /// The kernel has no connection tracking, this process may not read it (CAP_NET_ADMIN), or there is no answer.
    pub fn connections(&mut self, at: &[&[Prefix]]) -> io::Result<Vec<u64>> {
        let mut counts = vec![0; at.len()];
        let mut ask = [0; REQUEST];
        ask[..4].copy_from_slice(&(REQUEST as u32).to_ne_bytes());
        ask[4..6].copy_from_slice(&GET.to_ne_bytes());
        ask[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
        let taken = self.0.raw_dump_once(&ask, |message| {
            let Some(servers) = servers(message) else { return };
            let is_one = |set: &&[Prefix]| set.iter().any(|p| servers.iter().any(|a| p.contains(*a)));
            if let Some(set) = at.iter().position(is_one) {
                counts[set] += 1;
            }
        });
        taken.map_err(|e| named(&e, "read the connection tracking"))?;
        Ok(counts)
    }
}

/// Whom the client of a TCP connection that lives asked for, and who answers.
fn servers(message: &[u8]) -> Option<[IpAddr; 2]> {
    if message.get(4..6)? != NEW.to_ne_bytes() {
        return None;
    }
    let (mut asked, mut answers, mut lives) = (None, None, false);
    for (kind, value) in attributes(message.get(REQUEST..)?) {
        match kind {
            TUPLE_ORIG => asked = end(value, DESTINATION),
            TUPLE_REPLY => answers = end(value, SOURCE),
            PROTOINFO => {
                let tcp = attributes(value).find(|(kind, _)| *kind == PROTOINFO_TCP);
                let state = tcp.and_then(|(_, tcp)| attributes(tcp).find(|(kind, _)| *kind == TCP_STATE));
                lives = state.and_then(|(_, s)| s.first()).is_some_and(|s| ALIVE.contains(s));
            }
            _ => {}
        }
    }
    lives.then_some([asked?, answers?])
}

/// An end of a tuple.
fn end(tuple: &[u8], kinds: [u16; 2]) -> Option<IpAddr> {
    let (_, addresses) = attributes(tuple).find(|(kind, _)| *kind == TUPLE_IP)?;
    let (_, address) = attributes(addresses).find(|(kind, _)| kinds.contains(kind))?;
    match address.len() {
        4 => <[u8; 4]>::try_from(address).ok().map(|a| Ipv4Addr::from(a).into()),
        16 => <[u8; 16]>::try_from(address).ok().map(|a| Ipv6Addr::from(a).into()),
        _ => None,
    }
}

/// Reads a message as a tracked connection, whatever it is: for fuzzing.
pub(super) fn fuzz(message: &[u8]) {
    let _ = servers(message);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(value.len() + 4).unwrap();
        let mut octets = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        octets.extend(value);
        octets.resize(octets.len().next_multiple_of(4), 0);
        octets
    }

    fn message(state: u8, asked: [u8; 4], answers: [u8; 4]) -> Vec<u8> {
        // Kinds of nested ones carry a flag.
        let nested = |kind: u16, value: &[u8]| attribute(kind | 0x8000, value);
        let addresses = |source: [u8; 4], destination: [u8; 4]| {
            nested(TUPLE_IP, &[attribute(1, &source), attribute(2, &destination)].concat())
        };
        let client = [192, 0, 2, 7];
        let mut octets = vec![0; REQUEST];
        octets[4..6].copy_from_slice(&NEW.to_ne_bytes());
        octets.extend(nested(TUPLE_ORIG, &addresses(client, asked)));
        octets.extend(nested(TUPLE_REPLY, &addresses(answers, client)));
        octets.extend(nested(PROTOINFO, &nested(PROTOINFO_TCP, &attribute(TCP_STATE, &[state]))));
        octets
    }

    #[test]
    fn a_connection_that_lives_tells_whom_it_is_with() {
        let (vip, member) = ([198, 51, 100, 10], [10, 0, 0, 1]);
        let whole = message(3, vip, member);
        assert_eq!(servers(&whole), Some([vip.into(), member.into()]));
        for state in [1, 2, 6, 7, 8] {
            assert_eq!(servers(&message(state, vip, member)), None, "{state}");
        }
        for len in 0..whole.len() {
            assert_eq!(servers(&whole[..len]), None, "{len}");
        }
    }
}
