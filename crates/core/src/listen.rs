//! Role: members to routes. Keeps which members announce which VIP, and decides the next hops of each.
//!
//! It takes what sessions learned; it knows nothing of connections. Only VIPs of the plan are kept, whatever a member
//! sends: the rest is counted. A member can only attract traffic to itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use crate::bgp::Update;
use crate::bgp::session::is_link_local;
use crate::machine::Time;
use crate::node::Held;
use crate::plan::{self, Hashing};
use crate::prefix::{Afi, Prefix};
use vip::Vip;

mod vip;
mod weight;

pub use vip::{Balance, Standing, Turn, Why, Withdrawal};

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
    /// The next hop is the address of another member's own session.
    Taken,
    /// The AS_PATH does not begin with the AS of the member, an external one.
    NotItsPath,
    /// The next hop is on no link that the member is on, as far as this host knows.
    OffLink,
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotOurs => "no VIP of this listener",
            Self::NotForTheRange => "a VIP that this range may not announce",
            Self::Foreign => "the next hop is not the member",
            Self::Taken => "the next hop is another member's own address",
            Self::NotItsPath => "the AS path does not begin with the member's AS",
            Self::OffLink => "the next hop is not on the member's link",
        })
    }
}

/// An announcement of a member that was not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// When, the last time.
    pub at: Time,
    /// What it announced.
    pub prefix: Prefix,
    /// With which next hop, where that was looked at.
    pub next_hop: Option<IpAddr>,
    /// Why it was not followed.
    pub why: Ignored,
}

/// Announcements of one member that were not followed.
#[derive(Debug, Default)]
struct Refusals {
    counts: BTreeMap<Ignored, u64>,
    /// The latest of them, the last one last, each prefix once.
    last: VecDeque<Refused>,
}

/// So many refused announcements of a member are named.
const NAMED: usize = 8;

impl Refusals {
    fn note(&mut self, refused: Refused) {
        *self.counts.entry(refused.why).or_default() += 1;
        match self.last.iter().position(|r| r.prefix == refused.prefix) {
            Some(i) => _ = self.last.remove(i),
            None if self.last.len() >= NAMED => _ = self.last.pop_front(),
            None => {}
        }
        self.last.push_back(refused);
    }
}

/// The members of every VIP and the groups that follow.
///
/// What happens is taken first and touches some VIPs; each of those is [decided](Listener::decide) then, once for all that
/// happened together.
#[derive(Debug, Default)]
pub struct Listener {
    vips: BTreeMap<Prefix, Vip>,
    names: BTreeMap<String, Prefix>,
    /// Members whose sessions are established: what leads to their addresses is theirs alone.
    present: BTreeSet<Hop>,
    ignored: BTreeMap<Hop, Refusals>,
    /// `None` until they are known: then nothing is ruled out by them.
    links: Option<Links>,
    orders: Orders,
    /// Whether new flows are kept from members that drain, whatever their group does.
    steers: bool,
    /// Why they are not.
    unsteered: Option<String>,
    alarms: BTreeSet<(Time, Prefix)>,
    /// The group that was made last: that of the next VIP is the same, as a rule.
    like: Option<Arc<Group>>,
}

/// An order to drain a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// When it was given.
    pub at: Time,
    /// How long the member may keep its flows; `None`: as long as the VIP's plan says.
    pub timeout: Option<Duration>,
}

/// Orders that stand: they outlive the member's session, and end when they are taken back or this process ends.
#[derive(Debug, Default)]
struct Orders(BTreeMap<IpAddr, MemberOrders>);

#[derive(Debug, Default)]
struct MemberOrders {
    every: Option<Order>,
    /// For single VIPs, by name.
    some: BTreeMap<String, Order>,
}

impl Orders {
    fn of(&self, member: IpAddr, vip: &str) -> Option<&Order> {
        let orders = self.0.get(&member)?;
        orders.some.get(vip).or(orders.every.as_ref())
    }
}

/// The most members that orders stand for.
const ORDERED: usize = 4096;

/// Why an order is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderError {
    /// The listener has no VIP of this name.
    NoSuchVip(String),
    /// No order stands that could be taken back.
    NotOrdered,
    /// The order is for every VIP, and cannot be taken back for one of them.
    ForEveryVip,
    /// Orders stand for very many members already.
    TooMany,
}

impl fmt::Display for OrderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchVip(name) => write!(f, "the listener has no VIP named {name}"),
            Self::NotOrdered => f.write_str("nobody ordered it to drain"),
            Self::ForEveryVip => {
                f.write_str("it drains for every VIP: undrain it as a whole, then drain it for single VIPs")
            }
            Self::TooMany => write!(f, "{ORDERED} members are ordered to drain: undrain some first"),
        }
    }
}

impl Listener {
    /// A listener without members.
    pub fn new(plan: &plan::Listener) -> Self {
        let vips = || plan.vips.iter();
        Self {
            vips: vips().map(|(name, vip)| (vip.prefix, Vip::new(name.clone(), vip.clone()))).collect(),
            names: vips().map(|(name, vip)| (name.clone(), vip.prefix)).collect(),
            steers: plan.drain_mark.is_some(),
            ..Self::default()
        }
    }

    /// Goes on by another plan: the VIPs that it touches, and those with a group that it has no more. Members of the others stay
    /// what they are; of a new VIP nothing is known until they say it again.
    pub fn reload(&mut self, plan: &plan::Listener) -> (BTreeSet<Prefix>, BTreeSet<Prefix>) {
        let mut before = std::mem::take(&mut self.vips);
        let mut touched = BTreeSet::new();
        for (name, plan) in &plan.vips {
            let vip = match before.remove(&plan.prefix) {
                Some(mut vip) => {
                    if vip.plan != *plan {
                        touched.insert(plan.prefix);
                        vip.plan = plan.clone();
                    }
                    vip.name.clone_from(name);
                    vip
                }
                None => Vip::new(name.clone(), plan.clone()),
            };
            self.vips.insert(plan.prefix, vip);
        }
        self.names = plan.vips.iter().map(|(name, vip)| (name.clone(), vip.prefix)).collect();
        let vips = &self.vips;
        self.alarms.retain(|(_, prefix)| vips.contains_key(prefix));
        for orders in self.orders.0.values_mut() {
            orders.some.retain(|name, _| self.names.contains_key(name));
        }
        self.orders.0.retain(|_, orders| orders.every.is_some() || !orders.some.is_empty());
        let gone = before.into_iter().filter(|(_, vip)| vip.group.is_some());
        (touched, gone.map(|(prefix, _)| prefix).collect())
    }

    /// A member may announce the VIPs in `allowed` only (`None`: all) from now on; the VIPs that this touches.
    pub fn restrict(
        &mut self,
        now: Time,
        member: Hop,
        allowed: Option<&BTreeSet<String>>,
    ) -> BTreeSet<Prefix> {
        let barred = |vip: &Vip| allowed.is_some_and(|names| !names.contains(&vip.name));
        let vips = self.vips.iter_mut().filter(|(_, vip)| barred(vip));
        vips.filter_map(|(prefix, vip)| vip.bar(now, member).then_some(*prefix)).collect()
    }

    /// Takes a member whose session is established; the VIPs that it touches. What others said that leads to its address is
    /// ignored for good: it may not outlive the session of the one whose address it is.
    pub fn came(&mut self, now: Time, member: Hop) -> BTreeSet<Prefix> {
        let mut touched = BTreeSet::new();
        if !self.present.insert(member) {
            return touched;
        }
        touched.extend(self.vips.iter_mut().filter_map(|(p, vip)| vip.back(now, member).then_some(*p)));
        if member.is_link_local() {
            return touched;
        }
        for (prefix, vip) in &mut self.vips {
            for other in vip.disclaim(now, member) {
                let refused =
                    Refused { at: now, prefix: *prefix, next_hop: Some(member.address), why: Ignored::Taken };
                self.ignored.entry(other).or_default().note(refused);
                touched.insert(*prefix);
            }
        }
        touched
    }

    /// Takes an UPDATE of `member`, which may announce the VIPs named in `allowed` (`None`: all); the VIPs that it touches.
    pub fn learned(
        &mut self,
        now: Time,
        member: Hop,
        allowed: Option<&BTreeSet<String>>,
        update: Update,
    ) -> BTreeSet<Prefix> {
        let mut touched = self.came(now, member);
        for prefix in update.withdrawn {
            if self.vips.get_mut(&prefix).is_some_and(|vip| vip.withdrew(now, member)) {
                touched.insert(prefix);
            }
        }
        for prefix in update.not_its_path {
            let why = if self.vips.contains_key(&prefix) { Ignored::NotItsPath } else { Ignored::NotOurs };
            self.ignored.entry(member).or_default().note(Refused { at: now, prefix, next_hop: None, why });
        }
        for (prefix, path) in update.announced {
            let vip = self.vips.get_mut(&prefix);
            let hop = match &vip {
                None => Err(Ignored::NotOurs),
                Some(vip) if allowed.is_some_and(|names| !names.contains(&vip.name)) => {
                    Err(Ignored::NotForTheRange)
                }
                Some(_) => match lead(self.links.as_ref(), member, path.next_hop) {
                    Ok(hop) if hop == member => Ok(hop),
                    Ok(_) | Err(Ignored::OffLink) if self.present.contains(&path.next_hop.into()) => {
                        Err(Ignored::Taken)
                    }
                    led => led,
                },
            };
            if let Err(why) = hop {
                let refused = Refused { at: now, prefix, next_hop: Some(path.next_hop), why };
                self.ignored.entry(member).or_default().note(refused);
            }
            let Some(vip) = vip else { continue };
            // What is off its link is kept: links come. Anything else replaces what the member announced before all the same.
            if hop.is_ok() || hop == Err(Ignored::OffLink) {
                vip.announced(now, member, &path, hop.ok());
                touched.insert(prefix);
            } else if vip.withdrew(now, member) {
                touched.insert(prefix);
            }
        }
        touched
    }

    /// Forgets a member whose session ended; the VIPs that it touches.
    pub fn gone(&mut self, now: Time, member: Hop) -> BTreeSet<Prefix> {
        self.ignored.remove(&member);
        self.present.remove(&member);
        let vips = self.vips.iter_mut();
        vips.filter_map(|(prefix, vip)| vip.gone(now, member).then_some(*prefix)).collect()
    }

    /// Takes the interfaces as they are; the VIPs that they touch. A link that goes takes no hop away: the kernel knows best
    /// whether it is for a moment.
    pub fn linked(&mut self, links: Links) -> BTreeSet<Prefix> {
        let links = self.links.insert(links);
        let lead = |member, next_hop| lead(Some(links), member, next_hop).ok();
        self.vips.iter_mut().filter_map(|(prefix, vip)| vip.linked(lead).then_some(*prefix)).collect()
    }

    /// Takes how many buckets each next hop of a VIP holds; whether that touches it.
    pub fn told(&mut self, now: Time, prefix: &Prefix, buckets: BTreeMap<Hop, Held>) -> bool {
        self.vips.get_mut(prefix).is_some_and(|vip| vip.told(now, buckets))
    }

    /// Takes why new flows are not kept from members that drain beyond what their groups do, or that they are again. It matters to
    /// drains that begin from then on.
    pub fn steered(&mut self, unsteered: Option<String>) {
        self.unsteered = unsteered;
    }

    /// Why new flows are not kept from members that drain beyond what their groups do, if it is known.
    pub fn unsteered(&self) -> Option<&str> {
        self.unsteered.as_deref()
    }

    /// Orders a member to drain, for one VIP or for all; the VIPs that it touches.
    ///
    /// # Errors
    /// Why not; nothing changed then.
    pub fn drain(
        &mut self,
        now: Time,
        member: IpAddr,
        vip: Option<&str>,
        timeout: Option<Duration>,
    ) -> Result<BTreeSet<Prefix>, OrderError> {
        self.may_drain(member, vip)?;
        let order = Order { at: now, timeout };
        let orders = self.orders.0.entry(member).or_default();
        match vip {
            Some(name) => drop(orders.some.insert(name.to_owned(), order)),
            None => (orders.every, orders.some) = (Some(order), BTreeMap::new()),
        }
        Ok(self.vips_of(member))
    }

    /// Takes an order back, for one VIP or for all; the VIPs that it touches.
    ///
    /// # Errors
    /// Why not; nothing changed then.
    pub fn undrain(&mut self, member: IpAddr, vip: Option<&str>) -> Result<BTreeSet<Prefix>, OrderError> {
        self.may_undrain(member, vip)?;
        if let (Some(name), Some(orders)) = (vip, self.orders.0.get_mut(&member)) {
            orders.some.remove(name);
        }
        let rest = self.orders.0.get(&member).is_some_and(|o| o.every.is_some() || !o.some.is_empty());
        if vip.is_none() || !rest {
            self.orders.0.remove(&member);
        }
        Ok(self.vips_of(member))
    }

    /// Whether [`drain`](Self::drain) would take the order.
    ///
    /// # Errors
    /// Why not.
    pub fn may_drain(&self, member: IpAddr, vip: Option<&str>) -> Result<(), OrderError> {
        if let Some(name) = vip.filter(|name| !self.names.contains_key(*name)) {
            return Err(OrderError::NoSuchVip(name.to_owned()));
        }
        if self.orders.0.len() >= ORDERED && !self.orders.0.contains_key(&member) {
            return Err(OrderError::TooMany);
        }
        Ok(())
    }

    /// Whether [`undrain`](Self::undrain) would take it back.
    ///
    /// # Errors
    /// Why not.
    pub fn may_undrain(&self, member: IpAddr, vip: Option<&str>) -> Result<(), OrderError> {
        if let Some(name) = vip.filter(|name| !self.names.contains_key(*name)) {
            return Err(OrderError::NoSuchVip(name.to_owned()));
        }
        let orders = self.orders.0.get(&member).ok_or(OrderError::NotOrdered)?;
        match vip {
            Some(name) if !orders.some.contains_key(name) && orders.every.is_some() => {
                Err(OrderError::ForEveryVip)
            }
            Some(name) if !orders.some.contains_key(name) => Err(OrderError::NotOrdered),
            _ => Ok(()),
        }
    }

    /// Decides one VIP anew: whether its group changed, and what became of its members. `None`: it is no VIP of the plan.
    pub fn decide(&mut self, now: Time, prefix: &Prefix) -> Option<(bool, Vec<Turn>)> {
        let vip = self.vips.get_mut(prefix)?;
        let before = vip.alarm;
        let links = self.links.as_ref();
        let lead = |member, next_hop| lead(links, member, next_hop).ok();
        let steered = self.steers && self.unsteered.is_none();
        let decided = vip.decide(now, &self.orders, steered, lead, &mut self.like);
        if vip.alarm != before {
            self.alarms.extend(vip.alarm.map(|at| (at, *prefix)));
            if let Some(at) = before {
                self.alarms.remove(&(at, *prefix));
            }
        }
        Some(decided)
    }

    /// VIPs that change by themselves at `now`.
    pub fn due(&self, now: Time) -> BTreeSet<Prefix> {
        self.alarms.iter().take_while(|(at, _)| *at <= now).map(|(_, prefix)| *prefix).collect()
    }

    /// When the first VIP changes by itself.
    pub fn deadline(&self) -> Option<Time> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// What the kernel is to do with a VIP's packets, as decided last; `None` without members.
    pub fn group(&self, prefix: &Prefix) -> Option<&Arc<Group>> {
        self.vips.get(prefix)?.group.as_ref()
    }

    /// The next hops of a VIP, as decided last.
    pub fn next_hops(&self, prefix: &Prefix) -> BTreeSet<Hop> {
        self.group(prefix).into_iter().flat_map(|g| g.hops.keys().copied()).collect()
    }

    /// How many members a VIP has: those that announce it and do not drain, or are held.
    pub fn standing(&self, prefix: &Prefix) -> usize {
        self.vips.get(prefix).map_or(0, |vip| vip.standing)
    }

    /// What happened last to a VIP's members.
    pub fn last(&self, prefix: &Prefix) -> Option<Turn> {
        self.vips.get(prefix)?.last
    }

    /// The members of a VIP, what each of them is to it and since when, as decided last.
    pub fn members(&self, prefix: &Prefix) -> impl Iterator<Item = (&Hop, Standing, Time)> {
        self.vips.get(prefix).into_iter().flat_map(Vip::members)
    }

    /// Whether a member announces a VIP.
    pub fn announces(&self, prefix: &Prefix, member: &Hop) -> bool {
        self.vips.get(prefix).is_some_and(|vip| vip.is_announced_by(member))
    }

    /// The members that announce a VIP and do not drain, and whether the checks of each hold.
    pub fn offers(&self, prefix: &Prefix) -> impl Iterator<Item = (&Hop, bool)> {
        self.vips.get(prefix).into_iter().flat_map(Vip::offers)
    }

    /// Where the announcement of a member leads; `None`: nowhere.
    pub fn hop(&self, prefix: &Prefix, member: &Hop) -> Option<Hop> {
        self.vips.get(prefix)?.hop(member)
    }

    /// What a member of a VIP holds, as the kernel told last; `None` for one that drains until it was counted after its drain began.
    pub fn held(&self, prefix: &Prefix, member: &Hop) -> Option<Held> {
        self.vips.get(prefix)?.held_by(member)
    }

    /// The buckets that a next hop of a VIP holds, as the kernel told last.
    pub fn buckets(&self, prefix: &Prefix, hop: &Hop) -> Option<Held> {
        self.vips.get(prefix)?.buckets(hop)
    }

    /// When the kernel told of a VIP's buckets last; `None`: not yet, or it has none.
    pub fn told_at(&self, prefix: &Prefix) -> Option<Time> {
        self.vips.get(prefix)?.told_at()
    }

    /// How far the group of a VIP is from its shares; `None` if that was not counted since the group last changed.
    pub fn balance(&self, prefix: &Prefix) -> Option<Balance> {
        self.vips.get(prefix)?.balance()
    }

    /// So many VIPs of the plan, in the order of their prefixes, from the first one after `after`.
    pub fn some_vips(
        &self,
        after: Option<Prefix>,
        most: usize,
    ) -> impl Iterator<Item = (&Prefix, &str, &plan::ListenerVip)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let vips = self.vips.range((from, Bound::Unbounded)).take(most);
        vips.map(|(prefix, vip)| (prefix, vip.name.as_str(), &vip.plan))
    }

    /// How many buckets the group of a VIP has: as the kernel told last, else as its plan says; `None` if it is not resilient.
    pub fn all_buckets(&self, prefix: &Prefix) -> Option<u32> {
        self.vips.get(prefix)?.all_buckets()
    }

    /// The VIPs of the plan: prefix, name, and how it is treated.
    pub fn vips(&self) -> impl Iterator<Item = (&Prefix, &str, &plan::ListenerVip)> {
        self.vips.iter().map(|(prefix, vip)| (prefix, vip.name.as_str(), &vip.plan))
    }

    /// The name of a VIP; empty if it is none.
    pub fn name(&self, prefix: &Prefix) -> &str {
        self.vips.get(prefix).map_or("", |vip| &vip.name)
    }

    /// The prefix of the VIP of this name.
    pub fn prefix(&self, name: &str) -> Option<&Prefix> {
        self.names.get(name)
    }

    /// The orders that stand: for which member, for which VIP (`None`: all), and what was ordered.
    pub fn orders(&self) -> impl Iterator<Item = (IpAddr, Option<&str>, &Order)> {
        self.orders.0.iter().flat_map(|(&member, orders)| {
            let every = orders.every.iter().map(move |order| (member, None, order));
            every.chain(orders.some.iter().map(move |(name, order)| (member, Some(name.as_str()), order)))
        })
    }

    /// What floors may hold: which VIP, who withdrew it, when, and what.
    pub fn withdrawn(&self, now: Time) -> impl Iterator<Item = (&str, Hop, Time, Withdrawal)> {
        let vips = self.vips.values();
        vips.flat_map(move |vip| vip.withdrawn(now).map(|(member, at, what)| (&*vip.name, member, at, what)))
    }

    /// Takes what a member withdrew from a VIP, by name, before this process began: it counts again once the member's session is
    /// back and has had a moment to announce the VIP.
    pub fn recall(&mut self, vip: &str, member: Hop, at: Time, withdrawal: Withdrawal) {
        if let Some(vip) = self.names.get(vip).and_then(|prefix| self.vips.get_mut(prefix)) {
            vip.recall(member, at, withdrawal);
        }
    }

    /// Whether something is [recalled](Self::recall) of a member that does not count again yet.
    pub fn recalls(&self, member: &Hop) -> bool {
        self.vips.values().any(|vip| vip.recalls(member))
    }

    /// Announcements of a member that were not followed, by reason.
    pub fn ignored(&self, member: &Hop) -> impl Iterator<Item = (Ignored, u64)> {
        self.ignored.get(member).into_iter().flat_map(|r| &r.counts).map(|(why, n)| (*why, *n))
    }

    /// The latest of them, the last one first: a few.
    pub fn refused(&self, member: &Hop) -> impl Iterator<Item = &Refused> {
        self.ignored.get(member).into_iter().flat_map(|r| r.last.iter().rev())
    }

    /// The VIPs that have members at an address, on whatever interface.
    fn vips_of(&self, address: IpAddr) -> BTreeSet<Prefix> {
        let has = |vip: &Vip| vip.members().any(|(member, ..)| member.address == address);
        self.vips.iter().filter(|(_, vip)| has(vip)).map(|(prefix, _)| *prefix).collect()
    }
}

/// Where a path of `member` leads. A member can only attract traffic to itself: of its session's own family that is the
/// session's own address; of the other one, which a session over IPv4 gives for an IPv6 VIP, it is an address on a
/// network of an interface that the session's address is on too, and none of this host's.
fn lead(links: Option<&Links>, member: Hop, next_hop: IpAddr) -> Result<Hop, Ignored> {
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
    let Some(links) = links else { return Ok(next_hop.into()) };
    let has = |link: &Link, a: IpAddr| link.networks.iter().any(|n| n.contains(a));
    let there = match member.scope {
        0 => links.values().any(|l| has(l, member.address) && has(l, next_hop)),
        scope => links.get(&scope).is_some_and(|l| has(l, next_hop)),
    };
    let ours = links.values().any(|l| l.addresses.contains(&next_hop));
    if there && !ours { Ok(next_hop.into()) } else { Err(Ignored::OffLink) }
}

#[cfg(test)]
mod tests;
