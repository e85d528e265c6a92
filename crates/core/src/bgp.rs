//! The BGP-4 speaker: sessions that announce our own prefixes and, for the listener, learn members' prefixes.
//!
//! | file | holds |
//! |---|---|
//! | `wire` | octets to messages and back; the only file that names the codec crate |
//! | `connection` | one TCP connection: its OPEN, timers and send queue |
//! | `session` | one peer: dialling, collision, what was told and what is wanted |
//!
//! Supported: RFC 4271, 6286 (AS-wide unique id), 6793 (4-octet AS), 4760 (IPv4 and IPv6 unicast), 8950 (IPv6 next hop
//! for IPv4), 2918 (route refresh), 4724 and 8538 (graceful restart, as the restarting speaker), 5492, 9072 (capabilities),
//! 7606 (revised error handling), 9003 (shutdown text), 9687 (send hold timer), 1997, 4360, 8092 (communities), 8326.
//! Left out on purpose: transit (nothing learned is ever told), route reflection, confederations, ADD-PATH,
//! extended messages, and the helper side of graceful restart.

mod connection;
pub mod session;
mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use bytes::Bytes;

pub use session::{Liveness, PeerConfig, Session, SessionInput, SessionOutput, SessionStatus};
pub use wire::Update;

use crate::plan::Attributes;
use crate::prefix::{Afi, Prefix};

/// Everything that one peer should be told: the whole wanted table, never a step.
pub type Rib = BTreeMap<Prefix, Attributes>;

/// A route as it stands on the wire of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// Where packets go.
    pub next_hop: IpAddr,
    /// AS_PATH, nearest first.
    pub as_path: Vec<u32>,
    /// LOCAL_PREF.
    pub local_pref: Option<u32>,
    /// MULTI_EXIT_DISC.
    pub med: Option<u32>,
    /// Standard communities, `asn << 16 | value`.
    pub communities: Vec<u32>,
    /// Large communities.
    pub large_communities: Vec<(u32, u32, u32)>,
    /// Extended communities.
    pub extended_communities: Vec<[u8; 8]>,
}

impl Path {
    /// A path without attributes but this next hop.
    pub const fn new(next_hop: IpAddr) -> Self {
        Self {
            next_hop,
            as_path: Vec::new(),
            local_pref: None,
            med: None,
            communities: Vec::new(),
            large_communities: Vec::new(),
            extended_communities: Vec::new(),
        }
    }
}

/// GRACEFUL_SHUTDOWN (RFC 8326): the path is about to go.
pub const GRACEFUL_SHUTDOWN: u32 = 0xffff_0000;

/// AS_TRANS (RFC 6793): stands in two octets for an AS number that needs four.
pub const AS_TRANS: u16 = 23456;

/// States of RFC 4271 §8.2.2, of the peer's most advanced connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Not trying.
    Idle,
    /// Waiting for the next dial, or for the peer to dial.
    Active,
    /// A dial is on its way.
    Connect,
    /// OPEN sent.
    OpenSent,
    /// OPEN received and accepted.
    OpenConfirm,
    /// Routes may flow.
    Established,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Active => "active",
            Self::Connect => "connect",
            Self::OpenSent => "opensent",
            Self::OpenConfirm => "openconfirm",
            Self::Established => "established",
        })
    }
}

/// What both ends agreed on in their OPENs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    /// The peer's AS number.
    pub asn: u32,
    /// The peer's BGP identifier.
    pub router_id: Ipv4Addr,
    /// The smaller of both hold times; zero: no timers.
    pub hold: Duration,
    /// Both ends carry AS numbers in four octets.
    pub four_octet_as: bool,
    /// IPv4 unicast may flow.
    pub ipv4: bool,
    /// IPv6 unicast may flow.
    pub ipv6: bool,
    /// IPv4 routes may have an IPv6 next hop.
    pub extended_next_hop: bool,
    /// The peer keeps our routes over a restart.
    pub graceful_restart: bool,
    /// The peer says everything again if it is asked (RFC 2918).
    pub route_refresh: bool,
    /// Both sent the N bit: a NOTIFICATION other than a hard reset keeps routes too (RFC 8538).
    pub notification_restart: bool,
}

impl Negotiated {
    /// Whether routes of this family may flow.
    pub const fn has(&self, afi: Afi) -> bool {
        match afi {
            Afi::Ipv4 => self.ipv4,
            Afi::Ipv6 => self.ipv6,
        }
    }
}

/// A NOTIFICATION (RFC 4271 §4.5): every decode error is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// Error code.
    pub code: u8,
    /// Error subcode.
    pub subcode: u8,
    /// Data of the code's own kind.
    pub data: Bytes,
}

impl Notification {
    /// One without data.
    pub const fn new(code: u8, subcode: u8) -> Self {
        Self { code, subcode, data: Bytes::new() }
    }

    /// Cease with a text for the peer's operator (RFC 9003): at most 128 octets are sent.
    pub fn cease(subcode: u8, text: &str) -> Self {
        Self { code: 6, subcode, data: wire::shutdown_text(text) }
    }

    /// The whole message.
    pub fn encode(&self) -> Bytes {
        wire::notification(self)
    }

    /// A hard reset (RFC 8538 §3.1) that carries this notification: the peer keeps nothing.
    pub fn hard_reset(&self) -> Self {
        let mut data = vec![self.code, self.subcode];
        data.extend_from_slice(&self.data);
        Self { code: 6, subcode: 9, data: data.into() }
    }
}

impl fmt::Display for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} {}", self.code, self.subcode, wire::describe(self))?;
        match wire::text_of(self) {
            Some(text) if !text.is_empty() => write!(f, ": \"{}\"", text.escape_debug()),
            _ => Ok(()),
        }
    }
}

/// Why a session is not up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Down {
    /// It never came up since the start.
    NeverUp,
    /// The dial failed.
    Unreachable(String),
    /// The connection ended without a NOTIFICATION.
    Closed(String),
    /// The peer sent a NOTIFICATION.
    Received(Notification),
    /// We sent one, for the reason in words.
    Sent(Notification, String),
    /// The peer took nothing of what was queued for the send hold time (RFC 9687).
    SendHold(Duration),
    /// Deliberately, by us.
    Stopped(String),
}

impl Down {
    /// Whether it tells of the way to the peer, or of its end without a word, and not of a peer that wants no session.
    const fn is_on_the_way(&self) -> bool {
        match self {
            Self::Closed(_) | Self::SendHold(_) => true,
            // Hold timer expired, and BFD down (RFC 9384).
            Self::Received(n) | Self::Sent(n, _) => matches!((n.code, n.subcode), (4, _) | (6, 10)),
            Self::NeverUp | Self::Unreachable(_) | Self::Stopped(_) => false,
        }
    }
}

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverUp => f.write_str("not up since the start"),
            Self::Unreachable(why) => write!(f, "cannot connect: {why}"),
            Self::Closed(why) => write!(f, "connection closed: {why}"),
            Self::Received(n) => write!(f, "peer sent NOTIFICATION {n}"),
            Self::Sent(n, why) => write!(f, "{why} (sent NOTIFICATION {n})"),
            Self::SendHold(d) => write!(f, "peer took nothing of what was queued for {} s", d.as_secs()),
            Self::Stopped(why) => write!(f, "stopped: {why}"),
        }
    }
}
