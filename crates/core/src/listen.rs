//! Role: members to routes. Keeps which members announce which VIP, and decides the next hops of each.
//!
//! It takes what sessions learned; it knows nothing of connections. Only VIPs of the plan are kept, whatever a member
//! sends: the rest is counted. A member can only attract traffic to itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use crate::bgp::{GRACEFUL_SHUTDOWN, Path, Update};
use crate::plan::{self, Hashing};
use crate::prefix::{Afi, Prefix};

/// Where packets of a VIP go next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// The member's address on a link of this host.
    pub address: IpAddr,
    /// The index of the interface, for a link-local address; 0 otherwise.
    pub scope: u32,
}

impl From<IpAddr> for Hop {
    fn from(address: IpAddr) -> Self {
        Self { address, scope: 0 }
    }
}

impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scope {
            0 => self.address.fmt(f),
            scope => write!(f, "{}%{scope}", self.address),
        }
    }
}

/// The share of a next hop in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    /// In relation to those of the others; 1 or more.
    pub weight: u16,
    /// It keeps the flows it has and gets no new ones: the kernel is to tell how many of its buckets are busy.
    pub draining: bool,
}

/// What the kernel is to do with the packets of a VIP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// How flows are spread.
    pub hashing: Hashing,
    /// Over which next hops; at least one.
    pub hops: BTreeMap<Hop, Share>,
    /// With [`Hashing::Consistent`]: the next hop of each slot, as many as the plan says; otherwise empty.
    pub slots: Vec<Hop>,
}

impl Group {
    /// An ordinary multipath group of equal shares.
    pub fn plain(hops: impl IntoIterator<Item = IpAddr>) -> Self {
        let share = Share { weight: 1, draining: false };
        Self {
            hashing: Hashing::Plain,
            hops: hops.into_iter().map(|a| (a.into(), share)).collect(),
            slots: Vec::new(),
        }
    }

    /// The addresses of its next hops.
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        self.hops.keys().map(|h| h.address).collect()
    }
}

/// The members of every VIP and the routes that follow.
#[derive(Debug, Default)]
pub struct Listener {
    vips: BTreeMap<Prefix, String>,
    paths: BTreeMap<Prefix, BTreeMap<IpAddr, Path>>,
    ignored: BTreeMap<IpAddr, u64>,
}

impl Listener {
    /// A listener without members.
    pub fn new(plan: &plan::Listener) -> Self {
        Self { vips: plan.vips.iter().map(|(name, v)| (v.prefix, name.clone())).collect(), ..Self::default() }
    }

    /// Takes an UPDATE of `member`; the VIPs whose routes may have changed.
    pub fn learned(&mut self, member: IpAddr, update: Update) -> BTreeSet<Prefix> {
        let mut touched = BTreeSet::new();
        for prefix in update.withdrawn {
            if self.paths.get_mut(&prefix).and_then(|paths| paths.remove(&member)).is_some() {
                touched.insert(prefix);
            }
        }
        for (prefix, path) in update.announced {
            // A next hop of the other family cannot be compared, but a mapped IPv4 address is none that a kernel can use.
            let foreign = match path.next_hop {
                IpAddr::V6(a) if a.to_ipv4_mapped().is_some() => true,
                hop => Afi::of(hop) == Afi::of(member) && hop != member,
            };
            if !self.vips.contains_key(&prefix) || foreign {
                *self.ignored.entry(member).or_default() += 1;
                // What it announced before is replaced all the same.
                if self.paths.get_mut(&prefix).and_then(|paths| paths.remove(&member)).is_some() {
                    touched.insert(prefix);
                }
                continue;
            }
            self.paths.entry(prefix).or_default().insert(member, path);
            touched.insert(prefix);
        }
        touched
    }

    /// Forgets a member whose session ended; the VIPs whose routes may have changed.
    pub fn gone(&mut self, member: IpAddr) -> BTreeSet<Prefix> {
        self.ignored.remove(&member);
        let mut touched = BTreeSet::new();
        for (prefix, paths) in &mut self.paths {
            if paths.remove(&member).is_some() {
                touched.insert(*prefix);
            }
        }
        touched
    }

    /// What the kernel is to do with a VIP's packets; `None` without members.
    pub fn group(&self, prefix: &Prefix) -> Option<Group> {
        let hops = self.next_hops(prefix);
        (!hops.is_empty()).then(|| Group::plain(hops))
    }

    /// The next hops of a VIP: those of every path that no other is better than.
    pub fn next_hops(&self, prefix: &Prefix) -> BTreeSet<IpAddr> {
        let Some(paths) = self.paths.get(prefix) else { return BTreeSet::new() };
        let best = paths.values().map(rank).min();
        paths.values().filter(|p| Some(rank(p)) == best).map(|p| p.next_hop).collect()
    }

    /// The members of a VIP and their paths.
    pub fn members(&self, prefix: &Prefix) -> impl Iterator<Item = (&IpAddr, &Path)> {
        self.paths.get(prefix).into_iter().flatten()
    }

    /// The VIPs of the plan: prefix and name.
    pub const fn vips(&self) -> &BTreeMap<Prefix, String> {
        &self.vips
    }

    /// Announcements of a member that were not for us.
    pub fn ignored(&self, member: &IpAddr) -> u64 {
        self.ignored.get(member).copied().unwrap_or(0)
    }
}

/// Lower is better: leaving last (RFC 8326), then the order of RFC 4271 §9.1 as far as equal cost goes.
fn rank(path: &Path) -> (bool, u32, usize, u32) {
    let leaving = path.communities.contains(&GRACEFUL_SHUTDOWN);
    let local_pref = u32::MAX - path.local_pref.unwrap_or(100);
    (leaving, local_pref, path.as_path.len(), path.med.unwrap_or(0))
}

#[cfg(test)]
mod tests;
