//! A VIP of the announcer: what is announced, while what holds, with what attached, and how it leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use super::{CheckId, Drain};
use crate::health::Expr;
use crate::prefix::Prefix;

/// A VIP: prefixes that are announced together while its checks say so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vip {
    /// Unique name.
    pub name: String,
    /// What is announced; at least one, none shared with another VIP.
    pub prefixes: Vec<Prefix>,
    /// Put the addresses on this interface before announcing and take them off after withdrawing; `None`: the operator does.
    pub manage: Option<String>,
    /// Announce only while every host prefix is on a local interface (for IPv6: and usable, not tentative or dadfailed).
    pub require_local_address: bool,
    /// The only interface that counts for `require_local_address`; `None`: any.
    pub local_interface: Option<String>,
    /// Its checks, by their name in `policy`: its own, and shared ones.
    pub checks: BTreeMap<String, CheckId>,
    /// When the VIP as a whole is healthy, from the health of its checks.
    pub policy: Expr,
    /// What to do when it is not.
    pub fail_action: FailAction,
    /// With [`FailAction::LowerPriority`]: withdraw after this long of being unhealthy; `None`: never.
    pub withdraw_after: Option<Duration>,
    /// While this file exists, the VIP is pessimised, or drains: see [`Drain::on_file`].
    pub lower_priority_file: Option<PathBuf>,
    /// What a flapping VIP is made to wait; `None`: nothing.
    pub damping: Option<Damping>,
    /// How it is drained.
    pub drain: Drain,
    /// Announcers that failing checks may not take away; `None`: none.
    pub floor: Option<Floor>,
    /// Attributes while healthy.
    pub announce: Attributes,
    /// Added to `announce` while pessimised.
    pub lower_priority: Attributes,
}

impl Vip {
    /// A VIP whose own checks of these names must all be healthy; without attributes, and withdrawn when it is not healthy.
    pub fn new(name: &str, prefixes: Vec<Prefix>, checks: &[&str]) -> Self {
        let own = |c: &&str| ((*c).to_owned(), CheckId::new(name, c));
        Self {
            name: name.to_owned(),
            prefixes,
            manage: None,
            require_local_address: false,
            local_interface: None,
            checks: checks.iter().map(own).collect(),
            policy: Expr::All(checks.iter().map(|c| Expr::Check((*c).to_owned())).collect()),
            fail_action: FailAction::Withdraw,
            withdraw_after: None,
            lower_priority_file: None,
            damping: None,
            drain: Drain::default(),
            floor: None,
            announce: Attributes::default(),
            lower_priority: Attributes::default(),
        }
    }
}

/// How a flapping VIP is calmed: after `flaps` failures within `within` it stays as its fail action left it for `hold` from
/// its last failure, healthy or not, and twice as long for each further failure, up to `max`.
///
/// It is forgotten once the VIP has stood for `within` after a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damping {
    /// Failures that make it flapping, at least 1; default 3.
    pub flaps: u32,
    /// The time in which they count, and the quiet time that ends it; default 60 s.
    pub within: Duration,
    /// The first hold; default 30 s.
    pub hold: Duration,
    /// The longest hold, not less than `hold`; default 10 minutes.
    pub max: Duration,
}

impl Default for Damping {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Self { flaps: 3, within: secs(60), hold: secs(30), max: secs(600) }
    }
}

/// Announcers of a VIP that failing checks may not take away: they stay, pessimised. It needs a peer that tells who else
/// announces the VIP: a listener of standfast with `reflect`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Floor {
    /// So many stay, 1 to 256; default 1. The same on every announcer.
    pub members: u16,
    /// How long what is seen of others must let one go before it goes; default 500 ms. Longer than news of another that fails takes.
    pub settle: Duration,
}

impl Default for Floor {
    fn default() -> Self {
        Self { members: 1, settle: Duration::from_millis(500) }
    }
}

/// What an unhealthy VIP does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailAction {
    /// It leaves.
    Withdraw,
    /// It stays, pessimised; see [`Vip::withdraw_after`] for the second stage.
    LowerPriority,
}

/// What is attached to a route. Pessimised is the sum of two of these ([`Attributes::plus`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// How many times the local AS is added beyond the one that eBGP adds; never applied to iBGP. 0..=64.
    pub as_path_prepend: u8,
    /// Standard communities (RFC 1997), as `asn << 16 | value`.
    pub communities: BTreeSet<u32>,
    /// Large communities (RFC 8092).
    pub large_communities: BTreeSet<(u32, u32, u32)>,
    /// Extended communities (RFC 4360), the eight octets.
    pub extended_communities: BTreeSet<[u8; 8]>,
    /// MULTI_EXIT_DISC; `None`: not sent.
    pub med: Option<u32>,
    /// LOCAL_PREF, on iBGP only; `None`: 100.
    pub local_pref: Option<u32>,
}

impl Attributes {
    /// The sum: prepends and MED add up, communities unite, and LOCAL_PREF is the other's where it has one.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            as_path_prepend: self.as_path_prepend.saturating_add(other.as_path_prepend),
            communities: &self.communities | &other.communities,
            large_communities: &self.large_communities | &other.large_communities,
            extended_communities: &self.extended_communities | &other.extended_communities,
            med: match (self.med, other.med) {
                (Some(a), Some(b)) => Some(a.saturating_add(b)),
                (a, b) => a.or(b),
            },
            local_pref: other.local_pref.or(self.local_pref),
        }
    }
}
