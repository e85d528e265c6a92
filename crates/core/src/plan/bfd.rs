//! BFD's part of the plan: how fast a peer or a member is watched, and what follows.

use std::time::Duration;

use super::{Secret, Ttl};

/// How one BGP neighbour, or each member of a range, is watched by BFD (RFC 5880).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bfd {
    /// Time between two packets that we wish to send (Desired Min TX Interval), 10 ms..=10 s; default 300 ms. While a session is
    /// not up it is a second at least (RFC 5880 §6.8.3).
    pub interval: Duration,
    /// Time between two packets that we can take (Required Min RX Interval), 10 ms..=10 s; default: as `interval`.
    pub min_rx: Duration,
    /// Packets in a row that the peer may miss before it holds us for dead, 2..=255; default 3. How many we wait for is the peer's to say.
    pub multiplier: u8,
    /// UDP port 4784 (RFC 5883) instead of 3784 (RFC 5881): the peer may be more than one hop away.
    pub multihop: bool,
    /// Packets must come with this hop limit at least: 255 on a single hop (RFC 5881 §5), where nobody can forge them from further away.
    pub min_ttl: u8,
    /// Authentication of every packet; default none.
    pub auth: Option<BfdAuth>,
    /// The BGP session is not completed before BFD is up, and waits for it this long; `None`, the default: BGP does not wait.
    pub strict: Option<Duration>,
    /// Send nothing before the peer does (RFC 5880 §6.1); default off.
    pub passive: bool,
}

impl Bfd {
    /// 300 ms, three packets, on a single hop, without a key.
    pub const fn new() -> Self {
        let interval = Duration::from_millis(300);
        Self {
            interval,
            min_rx: interval,
            multiplier: 3,
            multihop: false,
            min_ttl: 255,
            auth: None,
            strict: None,
            passive: false,
        }
    }

    /// Whether a BGP session with this hop limit is watched over several hops, unless it is said otherwise; and the least hop limit.
    pub const fn reach(ttl: Ttl) -> (bool, u8) {
        match ttl {
            Ttl::Direct | Ttl::Security(0 | 1) => (false, 255),
            // At least 1: a packet that arrives has a hop limit.
            Ttl::Multihop(_) => (true, 1),
            Ttl::Security(hops) => (true, 255 - (hops - 1)),
        }
    }
}

impl Default for Bfd {
    fn default() -> Self {
        Self::new()
    }
}

/// Authentication of BFD packets (RFC 5880 §6.7.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BfdAuth {
    /// Meticulous: every packet has a number of its own, so that none can be replayed.
    pub meticulous: bool,
    /// Number of the key, the same at both ends.
    pub key_id: u8,
    /// The key, 1..=20 octets.
    pub key: Secret,
}
