//! BGP messages as a test sees them: just enough decoding to say what was told, independent of the code under test.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One whole message, header included.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// Its octets, from the marker on.
    pub bytes: Vec<u8>,
}

/// The type octet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// 1
    Open,
    /// 2
    Update,
    /// 3
    Notification,
    /// 4
    Keepalive,
    /// 5
    Refresh,
    /// Anything else.
    Other(u8),
}

/// What an UPDATE says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Update {
    /// Prefixes taken back, both families.
    pub withdrawn: Vec<String>,
    /// Prefixes told, both families.
    pub announced: Vec<String>,
    /// Attributes by type code.
    pub attributes: BTreeMap<u8, Vec<u8>>,
    /// From NEXT_HOP or MP_REACH_NLRI.
    pub next_hop: Option<IpAddr>,
    /// Whether classic NLRI or withdrawn routes were used.
    pub classic: bool,
    /// End-of-RIB of this address family (1 or 2).
    pub end_of_rib: Option<u16>,
}

impl Message {
    /// A message of this type around `body`.
    pub fn new(kind: u8, body: &[u8]) -> Self {
        let mut bytes = vec![0xff; 16];
        bytes.extend_from_slice(&u16::try_from(body.len() + 19).expect("a short body").to_be_bytes());
        bytes.push(kind);
        bytes.extend_from_slice(body);
        Self { bytes }
    }

    /// Takes one whole message off the front of `stream`; `Err` with the octets if they are not BGP.
    pub fn take(stream: &mut Vec<u8>) -> Result<Option<Self>, Vec<u8>> {
        if stream.iter().take(16).any(|&octet| octet != 0xff) {
            return Err(std::mem::take(stream));
        }
        if stream.len() < 19 {
            return Ok(None);
        }
        let length = usize::from(u16::from_be_bytes([stream[16], stream[17]]));
        if length < 19 {
            return Err(std::mem::take(stream));
        }
        if stream.len() < length {
            return Ok(None);
        }
        Ok(Some(Self { bytes: stream.drain(..length).collect() }))
    }

    /// Its type.
    pub fn kind(&self) -> Kind {
        match self.bytes[18] {
            1 => Kind::Open,
            2 => Kind::Update,
            3 => Kind::Notification,
            4 => Kind::Keepalive,
            5 => Kind::Refresh,
            other => Kind::Other(other),
        }
    }

    /// What follows the header.
    pub fn body(&self) -> &[u8] {
        &self.bytes[19..]
    }

    /// Code, subcode and data, if it is a NOTIFICATION.
    pub fn notification(&self) -> Option<(u8, u8, &[u8])> {
        match (self.kind(), self.body()) {
            (Kind::Notification, [code, subcode, data @ ..]) => Some((*code, *subcode, data)),
            _ => None,
        }
    }

    /// Code and subcode, if it is a NOTIFICATION.
    pub fn code(&self) -> Option<(u8, u8)> {
        self.notification().map(|(code, subcode, _)| (code, subcode))
    }

    /// Whether these octets, in hexadecimal, stand in it.
    pub fn holds(&self, octets: &str) -> bool {
        let octets = hex(octets);
        self.bytes.windows(octets.len()).any(|window| window == octets)
    }

    /// What it says, if it is an UPDATE. Panics on one that is malformed: the speaker under test must not send that.
    pub fn update(&self) -> Option<Update> {
        if self.kind() != Kind::Update {
            return None;
        }
        let body = self.body();
        let (withdrawn, rest) = field(body);
        let (attributes, nlri) = field(rest);
        let mut update = Update {
            withdrawn: prefixes(withdrawn, 1),
            announced: prefixes(nlri, 1),
            classic: !withdrawn.is_empty() || !nlri.is_empty(),
            ..Update::default()
        };
        if body == [0, 0, 0, 0] {
            update.end_of_rib = Some(1);
        }
        let mut rest = attributes;
        while let [flags, code, tail @ ..] = rest {
            let (value, tail) = if flags & 0x10 == 0 {
                let (&length, tail) = tail.split_first().expect("an attribute length");
                tail.split_at(usize::from(length))
            } else {
                field(tail)
            };
            match code {
                3 => update.next_hop = Some(address(value)),
                14 => {
                    let afi = u16::from_be_bytes([value[0], value[1]]);
                    let length = usize::from(value[3]);
                    update.next_hop = Some(address(&value[4..4 + length.min(16)]));
                    update.announced.extend(prefixes(&value[5 + length..], afi));
                }
                15 => {
                    let afi = u16::from_be_bytes([value[0], value[1]]);
                    update.withdrawn.extend(prefixes(&value[3..], afi));
                    if value.len() == 3 {
                        update.end_of_rib = Some(afi);
                    }
                }
                _ => {}
            }
            assert!(
                update.attributes.insert(*code, value.to_vec()).is_none(),
                "attribute {code} twice in {self:?}"
            );
            rest = tail;
        }
        Some(update)
    }
}

impl Update {
    /// AS_PATH as plain numbers, from AS numbers of `width` octets; segments are joined.
    pub fn as_path(&self, width: usize) -> Vec<u32> {
        Self::path(self.attributes.get(&2), width)
    }

    /// AS4_PATH as plain numbers, or nothing.
    pub fn as4_path(&self) -> Vec<u32> {
        Self::path(self.attributes.get(&17), 4)
    }

    /// COMMUNITIES, as (AS, value), in the order sent.
    pub fn communities(&self) -> Vec<(u16, u16)> {
        self.attributes.get(&8).map_or_else(Vec::new, |value| {
            value
                .chunks(4)
                .map(|c| (u16::from_be_bytes([c[0], c[1]]), u16::from_be_bytes([c[2], c[3]])))
                .collect()
        })
    }

    fn path(attribute: Option<&Vec<u8>>, width: usize) -> Vec<u32> {
        let mut path = Vec::new();
        let mut rest = attribute.map_or(&[][..], Vec::as_slice);
        while let [_, count, tail @ ..] = rest {
            let (numbers, tail) = tail.split_at(usize::from(*count) * width);
            path.extend(numbers.chunks(width).map(|n| n.iter().fold(0, |sum, &o| sum << 8 | u32::from(o))));
            rest = tail;
        }
        path
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind())?;
        let shown = &self.body()[..self.body().len().min(80)];
        for octet in shown {
            write!(f, " {octet:02x}")?;
        }
        if shown.len() < self.body().len() { write!(f, " … {} octets", self.body().len()) } else { Ok(()) }
    }
}

/// Octets from hexadecimal text; `M` stands for the marker, and spaces for nothing.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.replace('M', &"f".repeat(32)).split_whitespace().collect();
    assert!(digits.len().is_multiple_of(2), "half an octet: {text}");
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits"))
        .collect()
}

/// Splits off a field that a two-octet length begins.
fn field(octets: &[u8]) -> (&[u8], &[u8]) {
    let length = usize::from(u16::from_be_bytes([octets[0], octets[1]]));
    octets[2..].split_at(length)
}

fn prefixes(mut octets: &[u8], afi: u16) -> Vec<String> {
    let mut found = Vec::new();
    while let [length, rest @ ..] = octets {
        let (given, rest) = rest.split_at(usize::from(*length).div_ceil(8));
        let mut whole = [0; 16];
        whole[..given.len()].copy_from_slice(given);
        let address = if afi == 1 { address(&whole[..4]) } else { address(&whole) };
        found.push(format!("{address}/{length}"));
        octets = rest;
    }
    found
}

fn address(octets: &[u8]) -> IpAddr {
    <[u8; 4]>::try_from(octets).map_or_else(
        |_| Ipv6Addr::from(<[u8; 16]>::try_from(octets).expect("4 or 16 octets")).into(),
        |four| Ipv4Addr::from(four).into(),
    )
}
