//! BGP messages by hand, so that the codec is not its own judge.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use standfast_core::Prefix;

pub(crate) const OPEN: u8 = 1;
pub(crate) const UPDATE: u8 = 2;
pub(crate) const NOTIFICATION: u8 = 3;
pub(crate) const KEEPALIVE: u8 = 4;
pub(crate) const ROUTE_REFRESH: u8 = 5;

/// Octets of a hex text; spaces are ignored and `M` is the marker.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let text = text.replace('M', &"ff".repeat(16));
    let digits: Vec<u8> =
        text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).unwrap() as u8).collect();
    assert_eq!(digits.len() % 2, 0, "half an octet in {text}");
    digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect()
}

pub(crate) fn to_hex(octets: &[u8]) -> String {
    octets.iter().fold(String::new(), |mut s, o| {
        let _ = write!(s, "{o:02x}");
        s
    })
}

/// A whole message.
pub(crate) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut m = vec![0xff; 16];
    m.extend(u16::try_from(19 + body.len()).unwrap().to_be_bytes());
    m.push(kind);
    m.extend(body);
    m
}

pub(crate) fn keepalive() -> Vec<u8> {
    message(KEEPALIVE, &[])
}

pub(crate) fn notification(code: u8, subcode: u8, data: &[u8]) -> Vec<u8> {
    message(NOTIFICATION, &[&[code, subcode], data].concat())
}

/// The OPEN of a plain peer: 2-octet AS number, no capability. 29 octets.
pub(crate) fn bare_open(asn: u16, hold: u16, id: [u8; 4]) -> Vec<u8> {
    open(asn, hold, id, &[])
}

/// An OPEN with these capabilities, one optional parameter for all of them.
pub(crate) fn open(asn: u16, hold: u16, id: [u8; 4], capabilities: &[Vec<u8>]) -> Vec<u8> {
    let capabilities = capabilities.concat();
    let mut body = vec![4];
    body.extend(asn.to_be_bytes());
    body.extend(hold.to_be_bytes());
    body.extend(id);
    if capabilities.is_empty() {
        body.push(0);
    } else {
        body.push(u8::try_from(capabilities.len() + 2).unwrap());
        body.push(2);
        body.push(u8::try_from(capabilities.len()).unwrap());
        body.extend(capabilities);
    }
    message(OPEN, &body)
}

pub(crate) fn cap_mp(afi: u8) -> Vec<u8> {
    vec![1, 4, 0, afi, 0, 1]
}

pub(crate) fn cap_as4(asn: u32) -> Vec<u8> {
    [&[65, 4][..], &asn.to_be_bytes()].concat()
}

pub(crate) fn cap_refresh() -> Vec<u8> {
    vec![2, 0]
}

/// Graceful restart: R and N bits, time, IPv4 and IPv6 with the F bit.
pub(crate) fn cap_restart(restarting: bool, notification: bool, secs: u16) -> Vec<u8> {
    let flags = u16::from(restarting) << 15 | u16::from(notification) << 14 | secs;
    [&[64, 10][..], &flags.to_be_bytes(), &[0, 1, 1, 0x80], &[0, 2, 1, 0x80]].concat()
}

pub(crate) fn cap_extended_next_hop() -> Vec<u8> {
    vec![5, 6, 0, 1, 0, 1, 0, 2]
}

/// Cuts a stream into whole messages; the octets of an unfinished one stay.
pub(crate) fn split(stream: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while stream.len() >= 19 {
        assert_eq!(stream[..16], [0xff; 16], "marker");
        let length = usize::from(u16::from_be_bytes([stream[16], stream[17]]));
        assert!((19..=4096).contains(&length), "a message of {length} octets was sent");
        if stream.len() < length {
            break;
        }
        messages.push(stream.drain(..length).collect());
    }
    messages
}

/// One path attribute as it is on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub(crate) flags: u8,
    pub(crate) value: Vec<u8>,
}

/// An UPDATE taken apart, strictly: anything that an RFC 4271, 4760 or 7606 receiver may object to fails the test.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Parsed {
    pub(crate) withdrawn: Vec<Prefix>,
    pub(crate) announced: Vec<(Prefix, IpAddr)>,
    pub(crate) attributes: BTreeMap<u8, Attribute>,
    /// End-of-RIB of this AFI.
    pub(crate) end_of_rib: Option<u16>,
}

impl Parsed {
    pub(crate) fn new(m: &[u8]) -> Self {
        assert_eq!(m[18], UPDATE);
        let body = &m[19..];
        let (withdrawn, rest) = counted(body);
        let (mut attributes, nlri) = counted(rest);
        let mut this = Self { withdrawn: prefixes(withdrawn, false), ..Self::default() };
        let classic = prefixes(nlri, false);
        let mut last = 0;
        while !attributes.is_empty() {
            let (flags, kind) = (attributes[0], attributes[1]);
            let (length, at) = if flags & 0x10 != 0 {
                (usize::from(u16::from_be_bytes([attributes[2], attributes[3]])), 4)
            } else {
                (usize::from(attributes[2]), 3)
            };
            let value = attributes[at..at + length].to_vec();
            attributes = &attributes[at + length..];
            // RFC 7606 §5.1: MP attributes may stand first; the others in order of type.
            if !matches!(kind, 14 | 15) {
                assert!(kind > last, "attribute {kind} after {last}");
                last = kind;
            }
            let want = match kind {
                1 | 2 | 3 | 5 => 0x40,
                4 | 14 | 15 => 0x80,
                8 | 16 | 17 | 18 | 32 => 0xc0,
                _ => panic!("attribute {kind} was sent"),
            };
            assert_eq!(flags & 0xe0, want, "flags of attribute {kind}");
            let twice = this.attributes.insert(kind, Attribute { flags, value });
            assert!(twice.is_none(), "attribute {kind} twice");
        }
        if let Some(mp) = this.attributes.get(&14) {
            let v = &mp.value;
            let (afi, safi, length) = (u16::from_be_bytes([v[0], v[1]]), v[2], usize::from(v[3]));
            assert_eq!(safi, 1);
            assert_eq!(length, 16, "length of the next hop");
            let next_hop = Ipv6Addr::from(<[u8; 16]>::try_from(&v[4..20]).unwrap());
            assert_eq!(v[20], 0, "reserved octet");
            let list = prefixes(&v[21..], afi == 2);
            assert!(!list.is_empty(), "MP_REACH_NLRI without NLRI");
            this.announced.extend(list.into_iter().map(|p| (p, IpAddr::V6(next_hop))));
        }
        if let Some(mp) = this.attributes.get(&15) {
            let afi = u16::from_be_bytes([mp.value[0], mp.value[1]]);
            assert_eq!(mp.value[2], 1);
            let list = prefixes(&mp.value[3..], afi == 2);
            if list.is_empty() {
                assert_eq!(this.attributes.len(), 1);
                this.end_of_rib = Some(afi);
            }
            this.withdrawn.extend(list);
        }
        if body == [0, 0, 0, 0] {
            this.end_of_rib = Some(1);
        }
        if !classic.is_empty() {
            let next_hop = &this.attributes.get(&3).expect("NEXT_HOP").value;
            let next_hop = IpAddr::from(<[u8; 4]>::try_from(&next_hop[..]).expect("4 octets of NEXT_HOP"));
            this.announced.extend(classic.into_iter().map(|p| (p, next_hop)));
        } else {
            assert!(!this.attributes.contains_key(&3), "NEXT_HOP without classic NLRI");
        }
        if this.announced.is_empty() {
            let rest = this.attributes.keys().any(|&k| k != 15);
            assert!(!rest, "attributes without a route: {:?}", this.attributes);
        } else {
            assert!(this.attributes.contains_key(&1) && this.attributes.contains_key(&2));
        }
        for (p, next_hop) in &this.announced {
            assert!(!next_hop.is_unspecified() && !next_hop.is_multicast(), "{p} via {next_hop}");
        }
        let both: BTreeSet<_> = this.announced.iter().map(|(p, _)| p).collect();
        assert!(!this.withdrawn.iter().any(|p| both.contains(p)), "a prefix in both lists");
        this
    }

    /// AS numbers of an AS_PATH (2) or AS4_PATH (17).
    pub(crate) fn path(&self, kind: u8, octets: usize) -> Vec<u32> {
        self.attributes.get(&kind).map_or(vec![], |a| as_path(&a.value, octets))
    }

    pub(crate) fn value(&self, kind: u8) -> Option<&[u8]> {
        self.attributes.get(&kind).map(|a| &a.value[..])
    }
}

pub(crate) fn as_path(mut value: &[u8], octets: usize) -> Vec<u32> {
    let mut path = Vec::new();
    while !value.is_empty() {
        assert_eq!(value[0], 2, "only AS_SEQUENCE is sent");
        let count = usize::from(value[1]);
        assert!(count > 0, "an empty segment");
        for asn in value[2..2 + count * octets].chunks(octets) {
            path.push(asn.iter().fold(0u32, |n, &o| n << 8 | u32::from(o)));
        }
        value = &value[2 + count * octets..];
    }
    path
}

fn counted(octets: &[u8]) -> (&[u8], &[u8]) {
    let length = usize::from(u16::from_be_bytes([octets[0], octets[1]]));
    octets[2..].split_at(length)
}

fn prefixes(mut octets: &[u8], v6: bool) -> Vec<Prefix> {
    let mut list = Vec::new();
    while let Some((&bits, rest)) = octets.split_first() {
        let length = usize::from(bits).div_ceil(8);
        let (net, rest) = rest.split_at(length);
        let address = if v6 {
            let mut a = [0; 16];
            a[..length].copy_from_slice(net);
            IpAddr::V6(Ipv6Addr::from(a))
        } else {
            let mut a = [0; 4];
            a[..length].copy_from_slice(net);
            IpAddr::V4(Ipv4Addr::from(a))
        };
        list.push(Prefix::new(address, bits).expect("no host bits on the wire"));
        octets = rest;
    }
    list
}

/// What a peer believes: its Adj-RIB-In, by applying UPDATEs.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Table(pub(crate) BTreeMap<Prefix, Route>);

/// A route as the peer holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) next_hop: IpAddr,
    pub(crate) attributes: BTreeMap<u8, Vec<u8>>,
}

impl Table {
    pub(crate) fn apply(&mut self, update: &Parsed) {
        for p in &update.withdrawn {
            self.0.remove(p);
        }
        let attributes: BTreeMap<u8, Vec<u8>> = update
            .attributes
            .iter()
            .filter(|(k, _)| !matches!(k, 3 | 14 | 15))
            .map(|(&k, a)| (k, a.value.clone()))
            .collect();
        for &(p, next_hop) in &update.announced {
            self.0.insert(p, Route { next_hop, attributes: attributes.clone() });
        }
    }

    pub(crate) fn prefixes(&self) -> Vec<Prefix> {
        self.0.keys().copied().collect()
    }
}

/// The body of an UPDATE: withdrawn, attributes, NLRI.
pub(crate) fn update(withdrawn: &[u8], attributes: &[u8], nlri: &[u8]) -> Vec<u8> {
    let mut body = u16::try_from(withdrawn.len()).unwrap().to_be_bytes().to_vec();
    body.extend(withdrawn);
    body.extend(u16::try_from(attributes.len()).unwrap().to_be_bytes());
    body.extend(attributes);
    body.extend(nlri);
    message(UPDATE, &body)
}
