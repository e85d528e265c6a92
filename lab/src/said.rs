//! What scripted members say, octet by octet: UPDATEs with four-octet AS numbers, good and bad.

use std::net::IpAddr;

use crate::message::{Message, hex};

/// A path attribute.
pub fn attribute(flags: u8, code: u8, value: &[u8]) -> Vec<u8> {
    [&[flags, code, u8::try_from(value.len()).expect("a short attribute")], value].concat()
}

/// MULTI_EXIT_DISC.
pub fn med(value: u32) -> Vec<u8> {
    attribute(0x80, 4, &value.to_be_bytes())
}

/// COMMUNITIES with this one.
pub fn community(high: u16, low: u16) -> Vec<u8> {
    attribute(0xc0, 8, &[high.to_be_bytes(), low.to_be_bytes()].concat())
}

/// An UPDATE of these three fields.
pub fn update(withdrawn: &[u8], attributes: &[u8], nlri: &[u8]) -> Vec<u8> {
    let length = |octets: &[u8]| u16::try_from(octets.len()).expect("it fits").to_be_bytes();
    let body = [&length(withdrawn)[..], withdrawn, &length(attributes), attributes, nlri].concat();
    Message::new(2, &body).bytes
}

/// An UPDATE that announces one prefix of either family, with further attributes as octets.
pub fn announce(prefix: &str, next_hop: impl Into<IpAddr>, path: &[u32], more: &[Vec<u8>]) -> Vec<u8> {
    let (nlri, v6) = nlri(prefix);
    let hop = octets(next_hop.into());
    let mut attributes = [origin_and(path), more.concat()].concat();
    if v6 {
        attributes.extend(attribute(0x80, 14, &reach(&hop, &nlri)));
        return update(&[], &attributes, &[]);
    }
    attributes.extend(attribute(0x40, 3, &hop));
    update(&[], &attributes, &nlri)
}

/// The same for an IPv6 prefix with a next hop of any octets, of AS `asn`.
pub fn announce_via(prefix: &str, next_hop: &[u8], asn: u32) -> Vec<u8> {
    let attributes = [origin_and(&[asn]), attribute(0x80, 14, &reach(next_hop, &nlri(prefix).0))].concat();
    update(&[], &attributes, &[])
}

/// The same for IPv4 prefixes in hexadecimal, of AS `asn`, with any octets as further attributes.
pub fn announce_nlri(next_hop: impl Into<IpAddr>, asn: u32, nlri: &str, more: &[u8]) -> Vec<u8> {
    let hop = attribute(0x40, 3, &octets(next_hop.into()));
    update(&[], &[&origin_and(&[asn])[..], &hop, more].concat(), &hex(nlri))
}

/// An UPDATE that withdraws one prefix of either family.
pub fn withdraw(prefix: &str) -> Vec<u8> {
    let (nlri, v6) = nlri(prefix);
    if v6 {
        update(&[], &attribute(0x80, 15, &[&[0, 2, 1][..], &nlri].concat()), &[])
    } else {
        update(&nlri, &[], &[])
    }
}

/// ORIGIN IGP and an AS_PATH of one sequence.
fn origin_and(path: &[u32]) -> Vec<u8> {
    let numbers: Vec<u8> = path.iter().flat_map(|asn| asn.to_be_bytes()).collect();
    let segment = [&[2, u8::try_from(path.len()).expect("a short path")][..], &numbers].concat();
    [attribute(0x40, 1, &[0]), attribute(0x40, 2, &segment)].concat()
}

fn reach(next_hop: &[u8], nlri: &[u8]) -> Vec<u8> {
    let length = u8::try_from(next_hop.len()).expect("an address or two");
    [&[0, 2, 1, length][..], next_hop, &[0], nlri].concat()
}

/// A prefix as NLRI, and whether it is of IPv6.
fn nlri(prefix: &str) -> (Vec<u8>, bool) {
    let (address, len) = prefix.split_once('/').expect("a prefix");
    let len: u8 = len.parse().expect("a length");
    let octets = octets(address.parse().expect("an address"));
    ([&[len][..], &octets[..usize::from(len.div_ceil(8))]].concat(), octets.len() == 16)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}
