//! An IP prefix without host bits, and the address family it belongs to.
//!
//! `198.51.100.10/24` is not a [`Prefix`]: host bits are refused where it is parsed, with the prefix that was meant.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address family that standfast announces: unicast only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Afi {
    /// IPv4 unicast (AFI 1, SAFI 1).
    Ipv4,
    /// IPv6 unicast (AFI 2, SAFI 1).
    Ipv6,
}

impl Afi {
    /// The family of an address.
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::Ipv4,
            IpAddr::V6(_) => Self::Ipv6,
        }
    }

    /// Bits in an address of this family.
    pub const fn bits(self) -> u8 {
        match self {
            Self::Ipv4 => 32,
            Self::Ipv6 => 128,
        }
    }
}

impl fmt::Display for Afi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}

/// A network: an address whose bits after `len` are zero. Two spellings of one network are equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

/// Why a text or pair is not a [`Prefix`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrefixError {
    /// Not an address followed by `/` and a length.
    Syntax,
    /// The length is longer than the family's addresses.
    Length(u8),
    /// Bits are set after the length; the network that contains the address is given.
    HostBits(Prefix),
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax => f.write_str("not a prefix; write it like 198.51.100.10/32 or 2001:db8::10/128"),
            Self::Length(max) => write!(f, "the prefix length is over {max}"),
            Self::HostBits(net) => write!(
                f,
                "host bits are set; write the network {net}, or the one address with /{}",
                Afi::of(net.address).bits()
            ),
        }
    }
}

impl std::error::Error for PrefixError {}

impl Prefix {
    /// The prefix `address/len`.
    ///
    /// # Errors
    /// [`PrefixError::Length`] if `len` is too long for the family, [`PrefixError::HostBits`] if bits after it are set.
    pub fn new(address: IpAddr, len: u8) -> Result<Self, PrefixError> {
        let max = Afi::of(address).bits();
        if len > max {
            return Err(PrefixError::Length(max));
        }
        let net = Self { address: mask(address, len), len };
        if net.address == address { Ok(net) } else { Err(PrefixError::HostBits(net)) }
    }

    /// The prefix that holds just `address`.
    pub const fn host(address: IpAddr) -> Self {
        Self { address, len: Afi::of(address).bits() }
    }

    /// The network address.
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// The length in bits.
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> u8 {
        self.len
    }

    /// The address family.
    pub const fn afi(&self) -> Afi {
        Afi::of(self.address)
    }

    /// Whether it holds one address only: /32 or /128.
    pub const fn is_host(&self) -> bool {
        self.len == self.afi().bits()
    }

    /// Whether `address` lies inside.
    pub fn contains(&self, address: IpAddr) -> bool {
        Afi::of(address) == self.afi() && mask(address, self.len) == self.address
    }

    /// Whether the two share an address: one contains the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        if self.len <= other.len { self.contains(other.address) } else { other.contains(self.address) }
    }
}

fn mask(address: IpAddr, len: u8) -> IpAddr {
    match address {
        IpAddr::V4(a) => {
            let m = u32::MAX.checked_shl(32 - u32::from(len.min(32))).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & m))
        }
        IpAddr::V6(a) => {
            let m = u128::MAX.checked_shl(128 - u32::from(len.min(128))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & m))
        }
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;
    fn from_str(s: &str) -> Result<Self, PrefixError> {
        let (address, len) = s.split_once('/').ok_or(PrefixError::Syntax)?;
        let address = address.parse().map_err(|_| PrefixError::Syntax)?;
        if len.is_empty() || !len.bytes().all(|b| b.is_ascii_digit()) {
            return Err(PrefixError::Syntax);
        }
        Self::new(address, len.parse().map_err(|_| PrefixError::Length(Afi::of(address).bits()))?)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl serde::Serialize for Prefix {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(s: &str) -> Prefix {
        s.parse().unwrap()
    }

    #[test]
    fn two_spellings_are_one_prefix() {
        assert_eq!(p("2001:DB8:100:0::10/128"), p("2001:db8:100::10/128"));
    }

    #[test]
    fn host_bits_are_refused_with_the_network_that_was_meant() {
        assert_eq!("198.51.100.10/24".parse::<Prefix>(), Err(PrefixError::HostBits(p("198.51.100.0/24"))));
    }

    #[test]
    fn a_length_outside_the_family_is_refused() {
        assert_eq!("1.2.3.4/33".parse::<Prefix>(), Err(PrefixError::Length(32)));
        assert_eq!("::/129".parse::<Prefix>(), Err(PrefixError::Length(128)));
        assert_eq!("1.2.3.4/".parse::<Prefix>(), Err(PrefixError::Syntax));
        assert_eq!("1.2.3.4/+3".parse::<Prefix>(), Err(PrefixError::Syntax));
        assert_eq!("1.2.3.4/999".parse::<Prefix>(), Err(PrefixError::Length(32)));
    }

    #[test]
    fn overlap_is_containment_either_way_and_never_across_families() {
        assert!(p("198.51.100.0/24").overlaps(&p("198.51.100.10/32")));
        assert!(p("198.51.100.10/32").overlaps(&p("198.51.100.0/24")));
        assert!(!p("198.51.100.0/25").overlaps(&p("198.51.100.128/25")));
        assert!(!p("0.0.0.0/0").overlaps(&p("::/0")));
        assert!(p("0.0.0.0/0").contains("1.2.3.4".parse().unwrap()));
    }
}
