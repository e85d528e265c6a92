//! Role: members to routes. Keeps which members announce which VIP, and decides the next hops of each.
//!
//! It takes what sessions learned; it knows nothing of connections. Only VIPs of the plan are kept, whatever a member
//! sends: the rest is counted. A member can only attract traffic to itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::bgp::session::is_link_local;
use crate::bgp::{GRACEFUL_SHUTDOWN, Path, Update};
use crate::hash::{self, Name};
use crate::plan::{self, Hashing};
use crate::prefix::{Afi, Prefix};

/// A neighbour on a link of this host: where a member's session comes from, and where packets of a VIP go next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// The member's address on a link of this host.
    pub address: IpAddr,
    /// The index of the interface, for a link-local address; 0 otherwise.
    pub scope: u32,
}

impl Hop {
    /// Whether its address means something on one interface only.
    pub const fn is_link_local(&self) -> bool {
        matches!(self.address, IpAddr::V6(a) if is_link_local(a))
    }
}

impl From<SocketAddr> for Hop {
    fn from(end: SocketAddr) -> Self {
        match end {
            SocketAddr::V6(v6) if is_link_local(*v6.ip()) => Self { address: end.ip(), scope: v6.scope_id() },
            _ => end.ip().into(),
        }
    }
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

/// An interface that is up: its name, and what is on it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// The addresses that this host has there.
    pub addresses: BTreeSet<IpAddr>,
    /// The networks that can be reached there without a router.
    pub networks: BTreeSet<Prefix>,
}

/// The interfaces of this host that are up, by index.
pub type Links = BTreeMap<u32, Link>;

/// Why an announcement of a member is not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ignored {
    /// The prefix is no VIP of this listener: nothing more or less specific is taken.
    NotOurs,
    /// It is one, but not for the range that the member is in.
    NotForTheRange,
    /// The next hop is not the member: somebody else, or an address that nobody can have.
    Foreign,
    /// The next hop is on no link that the member is on, as far as this host knows.
    OffLink,
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotOurs => "no VIP of this listener",
            Self::NotForTheRange => "a VIP that this range may not announce",
            Self::Foreign => "the next hop is not the member",
            Self::OffLink => "the next hop is not on the member's link",
        })
    }
}

/// A path as a member announced it, and where it leads; `None` while no link leads there. A link or an address that goes takes no
/// hop away: the kernel knows best whether it is for a moment.
#[derive(Debug)]
struct Known {
    path: Path,
    hop: Option<Hop>,
}

/// The members of every VIP and the routes that follow.
#[derive(Debug, Default)]
pub struct Listener {
    vips: BTreeMap<Prefix, String>,
    hashing: BTreeMap<Prefix, Hashing>,
    paths: BTreeMap<Prefix, BTreeMap<Hop, Known>>,
    ignored: BTreeMap<Hop, BTreeMap<Ignored, u64>>,
    /// `None` until they are known: then nothing is ruled out by them.
    links: Option<Links>,
}

impl Listener {
    /// A listener without members.
    pub fn new(plan: &plan::Listener) -> Self {
        Self {
            vips: plan.vips.iter().map(|(name, v)| (v.prefix, name.clone())).collect(),
            hashing: plan.vips.values().map(|v| (v.prefix, v.hashing)).collect(),
            ..Self::default()
        }
    }

    /// Takes an UPDATE of `member`, which may announce the VIPs named in `allowed` (`None`: all); the VIPs whose routes may have
    /// changed.
    pub fn learned(
        &mut self,
        member: Hop,
        allowed: Option<&BTreeSet<String>>,
        update: Update,
    ) -> BTreeSet<Prefix> {
        let mut touched = BTreeSet::new();
        for prefix in update.withdrawn {
            if self.paths.get_mut(&prefix).and_then(|paths| paths.remove(&member)).is_some() {
                touched.insert(prefix);
            }
        }
        for (prefix, path) in update.announced {
            let hop = match self.vips.get(&prefix) {
                None => Err(Ignored::NotOurs),
                Some(name) if allowed.is_some_and(|names| !names.contains(name)) => {
                    Err(Ignored::NotForTheRange)
                }
                Some(_) => self.hop(member, path.next_hop),
            };
            if let Err(why) = hop {
                *self.ignored.entry(member).or_default().entry(why).or_default() += 1;
            }
            // What is off its link is kept: links come. Anything else replaces what the member announced before all the same.
            if hop.is_ok() || hop == Err(Ignored::OffLink) {
                self.paths.entry(prefix).or_default().insert(member, Known { path, hop: hop.ok() });
                touched.insert(prefix);
            } else if self.paths.get_mut(&prefix).and_then(|paths| paths.remove(&member)).is_some() {
                touched.insert(prefix);
            }
        }
        touched
    }

    /// Forgets a member whose session ended; the VIPs whose routes may have changed.
    pub fn gone(&mut self, member: Hop) -> BTreeSet<Prefix> {
        self.ignored.remove(&member);
        let mut touched = BTreeSet::new();
        for (prefix, paths) in &mut self.paths {
            if paths.remove(&member).is_some() {
                touched.insert(*prefix);
            }
        }
        touched
    }

    /// Takes the interfaces as they are; the VIPs whose routes may have changed.
    pub fn linked(&mut self, links: Links) -> BTreeSet<Prefix> {
        self.links = Some(links);
        let lost = |known: &Known| known.hop.is_none();
        let pairs =
            self.paths.iter().flat_map(|(prefix, known)| known.iter().map(move |(m, k)| (*prefix, *m, k)));
        let lost: Vec<_> = pairs.filter(|(.., k)| lost(k)).map(|(p, m, k)| (p, m, k.path.next_hop)).collect();
        let mut touched = BTreeSet::new();
        for (prefix, member, next_hop) in lost {
            if let (Ok(hop), Some(paths)) = (self.hop(member, next_hop), self.paths.get_mut(&prefix))
                && let Some(known) = paths.get_mut(&member)
            {
                known.hop = Some(hop);
                touched.insert(prefix);
            }
        }
        touched
    }

    /// Where a path of `member` leads. A member can only attract traffic to itself: of its session's own family that is the
    /// session's own address; of the other one, which a session over IPv4 gives for an IPv6 VIP, it is an address on a
    /// network of an interface that the session's address is on too, and none of this host's.
    fn hop(&self, member: Hop, next_hop: IpAddr) -> Result<Hop, Ignored> {
        if next_hop == member.address {
            return Ok(member);
        }
        let nobody = match next_hop {
            IpAddr::V4(a) => a.is_unspecified() || a.is_loopback() || a.is_multicast() || a.is_broadcast(),
            // A mapped IPv4 address is none that a kernel can use; a link-local one says nothing of its link.
            IpAddr::V6(a) => {
                a.is_unspecified()
                    || a.is_loopback()
                    || a.is_multicast()
                    || a.to_ipv4_mapped().is_some()
                    || is_link_local(a)
            }
        };
        if nobody || Afi::of(next_hop) == Afi::of(member.address) && !member.is_link_local() {
            return Err(Ignored::Foreign);
        }
        let Some(links) = &self.links else { return Ok(next_hop.into()) };
        let has = |link: &Link, a: IpAddr| link.networks.iter().any(|n| n.contains(a));
        let there = match member.scope {
            0 => links.values().any(|l| has(l, member.address) && has(l, next_hop)),
            scope => links.get(&scope).is_some_and(|l| has(l, next_hop)),
        };
        let ours = links.values().any(|l| l.addresses.contains(&next_hop));
        if there && !ours { Ok(next_hop.into()) } else { Err(Ignored::OffLink) }
    }

    /// What the kernel is to do with a VIP's packets; `None` without members.
    pub fn group(&self, prefix: &Prefix) -> Option<Group> {
        let hops = self.next_hops(prefix);
        let hashing = *self.hashing.get(prefix)?;
        let share = Share { weight: 1, draining: false };
        (!hops.is_empty()).then(|| {
            let names: Vec<Name> = hops.iter().map(name).collect();
            let slots = match hashing {
                Hashing::Consistent { slots } => hash::table(slots, &names),
                Hashing::Resilient { .. } | Hashing::Plain => Vec::new(),
            };
            let order: Vec<Hop> = hops.iter().copied().collect();
            let slots = slots.into_iter().map(|i| order[i]).collect();
            Group { hashing, hops: hops.into_iter().map(|hop| (hop, share)).collect(), slots }
        })
    }

    /// The next hops of a VIP: those of every path that can be followed and that no other such is better than.
    pub fn next_hops(&self, prefix: &Prefix) -> BTreeSet<Hop> {
        let Some(paths) = self.paths.get(prefix) else { return BTreeSet::new() };
        let usable: Vec<_> = paths.values().filter_map(|k| Some((k.hop?, rank(&k.path)))).collect();
        let best = usable.iter().map(|(_, rank)| *rank).min();
        usable.into_iter().filter(|(_, rank)| Some(*rank) == best).map(|(hop, _)| hop).collect()
    }

    /// The members of a VIP and their paths.
    pub fn members(&self, prefix: &Prefix) -> impl Iterator<Item = (&Hop, &Path)> {
        self.paths.get(prefix).into_iter().flatten().map(|(member, known)| (member, &known.path))
    }

    /// What a member announces for a VIP.
    pub fn path(&self, prefix: &Prefix, member: &Hop) -> Option<&Path> {
        self.paths.get(prefix)?.get(member).map(|known| &known.path)
    }

    /// The VIPs of the plan: prefix and name.
    pub const fn vips(&self) -> &BTreeMap<Prefix, String> {
        &self.vips
    }

    /// The interfaces, if they are known.
    pub const fn links(&self) -> Option<&Links> {
        self.links.as_ref()
    }

    /// Announcements of a member that were not followed, by reason.
    pub fn ignored(&self, member: &Hop) -> impl Iterator<Item = (Ignored, u64)> {
        self.ignored.get(member).into_iter().flatten().map(|(why, n)| (*why, *n))
    }
}

/// A next hop as every listener knows it.
fn name(hop: &Hop) -> Name {
    let octets = match hop.address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    };
    Name { octets, weight: 1 }
}

/// Lower is better: leaving last (RFC 8326), then the order of RFC 4271 §9.1 as far as equal cost goes.
fn rank(path: &Path) -> (bool, u32, usize, u32) {
    let leaving = path.communities.contains(&GRACEFUL_SHUTDOWN);
    let local_pref = u32::MAX - path.local_pref.unwrap_or(100);
    (leaving, local_pref, path.as_path.len(), path.med.unwrap_or(0))
}

#[cfg(test)]
mod tests;
