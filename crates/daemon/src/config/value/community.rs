//! Communities: standard, large and extended, as text and as they are encoded.

use std::net::Ipv4Addr;

use serde_json::Value as JsonValue;
use standfast_core::spelling::closest;

use super::super::read::{Complaint, FromText};
use super::pattern;

/// A standard community (RFC 1997): `asn:value`, or a well-known name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Community(pub(crate) u32);

/// RFC 1997, 8326, 7999, 3765, 9494.
const WELL_KNOWN: [(&str, u32); 9] = [
    ("graceful-shutdown", 0xFFFF_0000),
    ("accept-own", 0xFFFF_0001),
    ("llgr-stale", 0xFFFF_0006),
    ("no-llgr", 0xFFFF_0007),
    ("blackhole", 0xFFFF_029A),
    ("no-export", 0xFFFF_FF01),
    ("no-advertise", 0xFFFF_FF02),
    ("no-export-subconfed", 0xFFFF_FF03),
    ("no-peer", 0xFFFF_FF04),
];

impl FromText for Community {
    const WHAT: &'static str = "a community such as 64513:100";
    fn from_text(text: &str) -> Result<Self, Complaint> {
        let folded = text.to_ascii_lowercase().replace('_', "-");
        if let Some(&(_, value)) = WELL_KNOWN.iter().find(|(name, _)| *name == folded) {
            return Ok(Self(value));
        }
        let parts: Vec<_> = text.split(':').map(decimal).collect();
        match parts[..] {
            [Some(high), Some(low)] => match (u16::try_from(high), u16::try_from(low)) {
                (Ok(high), Ok(low)) => Ok(Self(u32::from(high) << 16 | u32::from(low))),
                (Err(_), _) if high <= u64::from(u32::MAX) && low <= u64::from(u32::MAX) => Err(Complaint::new(
                    "cannot be encoded: both halves of a community are at most 65535",
                )
                .help(format!("a 4-octet AS number needs a large community: large_communities: [\"{high}:0:{low}\"]"))),
                _ => Err(Complaint::new("cannot be encoded: both halves of a community are at most 65535")),
            },
            [Some(_), Some(_), Some(_)] => {
                Err(Complaint::new("is a large community").help("put it under large_communities"))
            }
            _ => {
                let names = WELL_KNOWN.map(|(name, _)| name);
                Err(match closest(text, names) {
                    Some(meant) => Complaint::new("is not a community").help(format!("did you mean `{meant}`?")),
                    None => Complaint::new("is not a community").help(format!("write it like 64513:100, or one of {}", names.join(", "))),
                })
            }
        }
    }
    fn text_schema() -> JsonValue {
        pattern("[0-9]{1,5}:[0-9]{1,5}|[A-Za-z][A-Za-z_-]*")
    }
    fn text_kind() -> String {
        "community".into()
    }
}

fn decimal(text: &str) -> Option<u64> {
    (text.len() <= 15 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// A large community (RFC 8092): `asn:value:value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LargeCommunity(pub(crate) (u32, u32, u32));

impl FromText for LargeCommunity {
    const WHAT: &'static str = "a large community such as 64513:1:100";
    fn from_text(text: &str) -> Result<Self, Complaint> {
        let parts: Vec<_> = text.split(':').map(|p| decimal(p).and_then(|n| u32::try_from(n).ok())).collect();
        match parts[..] {
            [Some(a), Some(b), Some(c)] => Ok(Self((a, b, c))),
            [_, _, _] => {
                Err(Complaint::new("cannot be encoded: each part of a large community is 0 to 4294967295"))
            }
            [_, _] => Err(Complaint::new("has two parts")
                .help("a large community has three, as in 64513:1:100; put this one under communities")),
            _ => Err(Complaint::new("is not a large community").help("write it like 64513:1:100")),
        }
    }
    fn text_schema() -> JsonValue {
        pattern("[0-9]{1,10}:[0-9]{1,10}:[0-9]{1,10}")
    }
    fn text_kind() -> String {
        "large community".into()
    }
}

/// An extended community (RFC 4360, 5668): `rt:`, `soo:`, or link bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtendedCommunity(pub(crate) [u8; 8]);

impl FromText for ExtendedCommunity {
    const WHAT: &'static str = "an extended community such as rt:64513:100";
    fn from_text(text: &str) -> Result<Self, Complaint> {
        let not = || {
            Complaint::new("is not an extended community")
                .help("write rt:ASN:VALUE, soo:ASN:VALUE (an IPv4 address can stand for the ASN) or bandwidth:ASN:BYTES_PER_SECOND")
        };
        let mut parts = text.splitn(3, ':');
        let (Some(kind), Some(admin), Some(value)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(not());
        };
        let value = decimal(value).ok_or_else(not)?;
        let subtype =
            match kind {
                "rt" => 0x02,
                "soo" => 0x03,
                "bandwidth" => return bandwidth(admin, value).ok_or_else(|| {
                    Complaint::new(
                        "cannot be encoded: link bandwidth takes a 2-octet AS number and bytes per second",
                    )
                }),
                _ => return Err(not()),
            };
        let two = |v: u64| u16::try_from(v).map(u16::to_be_bytes);
        let four = |v: u64| u32::try_from(v).map(u32::to_be_bytes);
        let too_large =
            |most: u32| Complaint::new(format!("cannot be encoded: the last part is at most {most} here"));
        if let Ok(address) = admin.parse::<Ipv4Addr>() {
            let [a, b, c, d] = address.octets();
            let [e, f] = two(value).map_err(|_| too_large(65535))?;
            return Ok(Self([0x01, subtype, a, b, c, d, e, f]));
        }
        let admin = decimal(admin).ok_or_else(not)?;
        if let Ok([a, b]) = two(admin) {
            let [c, d, e, f] = four(value).map_err(|_| too_large(u32::MAX))?;
            return Ok(Self([0x00, subtype, a, b, c, d, e, f]));
        }
        let [a, b, c, d] = four(admin).map_err(|_| not())?;
        let [e, f] = two(value).map_err(|_| too_large(65535))?;
        Ok(Self([0x02, subtype, a, b, c, d, e, f]))
    }
    fn text_schema() -> JsonValue {
        pattern(r"(?:rt|soo):[0-9.]+:[0-9]+|bandwidth:[0-9]+:[0-9]+")
    }
    fn text_kind() -> String {
        "extended community".into()
    }
}

/// Link bandwidth, non-transitive: an AS number and an IEEE 754 single in bytes per second.
fn bandwidth(asn: &str, bytes: u64) -> Option<ExtendedCommunity> {
    let [a, b] = u16::try_from(decimal(asn)?).ok()?.to_be_bytes();
    let [c, d, e, f] = (bytes as f32).to_be_bytes();
    Some(ExtendedCommunity([0x40, 0x04, a, b, c, d, e, f]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok<T: FromText>(text: &str) -> Option<T> {
        T::from_text(text).ok()
    }

    #[test]
    fn communities_are_encoded_or_refused() {
        assert_eq!(ok::<Community>("64513:100").unwrap().0, 64513 << 16 | 100);
        assert_eq!(ok::<Community>("no-export").unwrap().0, 0xFFFF_FF01);
        assert_eq!(ok::<Community>("GRACEFUL_SHUTDOWN").unwrap().0, 0xFFFF_0000);
        for bad in
            ["65536:1", "1:65536", "1:2:3", "x", "", "1:", ":1", "1:-1", "1:+1", "1 :2", "4200000000:1"]
        {
            assert!(Community::from_text(bad).is_err(), "{bad}");
        }
        let help = Community::from_text("4200000000:7").err().unwrap().help.unwrap();
        assert!(help.contains("4200000000:0:7"), "{help}");
        assert_eq!(ok::<LargeCommunity>("4200000000:1:2").unwrap().0, (4_200_000_000, 1, 2));
        assert!(LargeCommunity::from_text("4294967296:1:2").is_err());
    }

    #[test]
    fn extended_communities_are_encoded_by_their_rfcs() {
        assert_eq!(ok::<ExtendedCommunity>("rt:64513:100").unwrap().0, [0, 2, 0xFC, 1, 0, 0, 0, 100]);
        assert_eq!(ok::<ExtendedCommunity>("soo:192.0.2.1:7").unwrap().0, [1, 3, 192, 0, 2, 1, 0, 7]);
        assert_eq!(ok::<ExtendedCommunity>("rt:4200000000:7").unwrap().0, [2, 2, 0xFA, 0x56, 0xEA, 0, 0, 7]);
        assert_eq!(
            ok::<ExtendedCommunity>("bandwidth:64513:125000000").unwrap().0,
            [0x40, 4, 0xFC, 1, 0x4C, 0xEE, 0x6B, 0x28]
        );
        for bad in [
            "rt:1",
            "rt:x:1",
            "xx:1:1",
            "rt:192.0.2.1:65536",
            "rt:4200000000:65536",
            "bandwidth:65536:1",
            "rt:1:4294967296",
        ] {
            assert!(ExtendedCommunity::from_text(bad).is_err(), "{bad}");
        }
    }
}
