//! One VIP: who serves, who waits, who is held, who drains, and with which shares. Every decision is made anew from what the
//! members say, what the operator ordered and what the kernel told; the past counts only where time does.
//!
//! | a member | is |
//! |---|---|
//! | announces, does not drain, none is better | serving |
//! | announces, does not drain, another is better | spare |
//! | withdrew, and the floor needs it | held, for as long as the floor says |
//! | drains, and another serves | draining until its buckets are silent or its time is up, then drained |
//! | the same, with another hashing than resilient | draining until its time is up, if new flows are kept from it; otherwise drained at once |
//! | drains, and nobody else announces | the last: it goes on as if it did not drain |
//! | announces a next hop that is on no link of its yet | away |

use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::weight::{self, Bandwidth};
use super::{Group, Hop, Order, Orders, Share};
use crate::bgp::{GRACEFUL_SHUTDOWN, Path};
use crate::hash::{self, Name};
use crate::machine::Time;
use crate::node::{Held, Level};
use crate::plan::{Hashing, ListenerVip, Weights};
use crate::reflect;
use recall::Recalled;

mod balance;
mod recall;

pub use balance::Balance;
pub use recall::Withdrawal;

/// What the kernel said before this is of a group in which the member did not drain yet.
const SETTLE: Duration = Duration::from_secs(1);

/// What a member is to a VIP that it announces, or did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It takes its share of new flows.
    Serving,
    /// Another one is better.
    Spare,
    /// It withdrew, and the floor keeps it until then.
    Held(Time),
    /// It keeps the flows it has and gets no new ones, until then at the longest.
    Draining(Why, Time),
    /// It has none any more, or its time was up.
    Drained(Why),
    /// It drains, but nobody else announces: it goes on taking flows.
    Last(Why),
    /// Its next hop is on no link of its.
    Away,
    /// It withdrew; the floor could still need it, unless it drained for this reason.
    Withdrawn(Option<Why>),
}

impl Standing {
    /// The same in a word, as status has it.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Spare => "spare",
            Self::Held(_) => "held",
            Self::Draining(..) => "draining",
            Self::Drained(_) => "drained",
            Self::Last(_) => "last",
            Self::Away => "away",
            Self::Withdrawn(_) => "withdrawn",
        }
    }

    /// When it ends by itself.
    pub const fn until(&self) -> Option<Time> {
        match self {
            Self::Held(until) | Self::Draining(_, until) => Some(*until),
            _ => None,
        }
    }

    /// Why it drains, if it does.
    pub const fn why(&self) -> Option<Why> {
        match self {
            Self::Draining(why, _) | Self::Drained(why) | Self::Last(why) => Some(*why),
            Self::Withdrawn(why) => *why,
            _ => None,
        }
    }
}

/// Why a member drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// An operator of this host ordered it.
    Order,
    /// Its path carries GRACEFUL_SHUTDOWN (RFC 8326).
    GracefulShutdown,
    /// Its link bandwidth is 0.
    NoBandwidth,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Order => "by command",
            Self::GracefulShutdown => "GRACEFUL_SHUTDOWN",
            Self::NoBandwidth => "link bandwidth 0",
        })
    }
}

/// What became of a member at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    /// When.
    pub at: Time,
    /// Who.
    pub member: Hop,
    from: Option<Standing>,
    /// `None`: it is no member of the VIP any more.
    to: Option<Standing>,
    /// What ended it, if it is no member of the VIP any more.
    end: End,
    /// Buckets that were busy.
    busy: u32,
}

/// Why a member is none of a VIP any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// It withdrew.
    Withdrawal,
    /// Its session ended.
    Session,
    /// Its next hop is the address of another member's session.
    Taken,
    /// The configuration does not let it announce the VIP any more.
    Barred,
}

impl Turn {
    /// A member that was `from` and is none any more.
    const fn end(at: Time, member: Hop, from: Standing, end: End) -> Self {
        Self { at, member, from: Some(from), to: None, end, busy: 0 }
    }

    /// Whether it changes what the floor may hold.
    pub const fn is_of_floor(&self) -> bool {
        const fn withdrew(standing: Option<&Standing>) -> bool {
            matches!(standing, Some(Standing::Held(_) | Standing::Withdrawn(_)))
        }
        withdrew(self.from.as_ref()) || withdrew(self.to.as_ref())
    }

    /// How loud it is; `None`: the change of the group tells it.
    pub fn level(&self) -> Option<Level> {
        match (&self.from, &self.to) {
            (_, Some(Standing::Held(_) | Standing::Last(_))) => Some(Level::Warn),
            (_, None) if matches!(self.end, End::Taken | End::Barred) => Some(Level::Info),
            (Some(Standing::Held(until)), None) if self.end == End::Withdrawal && *until <= self.at => {
                Some(Level::Warn)
            }
            (Some(Standing::Draining(..)), Some(Standing::Drained(_))) if self.busy > 0 => Some(Level::Warn),
            (_, Some(Standing::Draining(..) | Standing::Drained(_)))
            | (
                Some(Standing::Held(_) | Standing::Draining(..) | Standing::Drained(_) | Standing::Last(_)),
                _,
            ) => Some(Level::Info),
            _ => None,
        }
    }
}

/// What happened, without the name of the member before it.
impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = |until: &Time| until.since(self.at).as_secs_f64();
        match (&self.from, &self.to) {
            (_, None) if self.end == End::Session => f.write_str("is gone: its session ended"),
            (_, None) if self.end == End::Barred => {
                f.write_str("is left out: its range may not announce it any more")
            }
            (_, None) if self.end == End::Taken => {
                f.write_str("is left out: its next hop is another member's own address")
            }
            (Some(Standing::Held(until)), None) if *until <= self.at => {
                f.write_str("is let go: the floor has held it for long enough")
            }
            (Some(Standing::Held(_)), Some(Standing::Withdrawn(Some(why)))) => {
                write!(f, "is let go: it drains ({why})")
            }
            (Some(Standing::Held(_)), None | Some(Standing::Withdrawn(_))) => {
                f.write_str("is let go: enough others announce it")
            }
            (_, None | Some(Standing::Withdrawn(_))) => f.write_str("withdrew it"),
            (Some(Standing::Held(_)), Some(Standing::Serving | Standing::Spare)) => {
                f.write_str("announces it again, and is held no longer")
            }
            (
                Some(Standing::Draining(..) | Standing::Drained(_) | Standing::Last(_)),
                Some(Standing::Serving | Standing::Spare),
            ) => f.write_str("drains no longer"),
            (_, Some(Standing::Serving)) => f.write_str("serves"),
            (_, Some(Standing::Spare)) => f.write_str("waits: another is better"),
            (Some(Standing::Withdrawn(_)), Some(Standing::Held(until))) => {
                write!(f, "withdrew, and is taken back by the floor for {:.0} s", left(until))
            }
            (_, Some(Standing::Held(until))) => {
                write!(f, "withdrew, and is held by the floor for {:.0} s", left(until))
            }
            (_, Some(Standing::Draining(why, until))) => {
                write!(f, "drains ({why}): no new flows, {:.0} s for those it has", left(until))
            }
            (Some(Standing::Draining(..)), Some(Standing::Drained(_))) if self.busy > 0 => {
                write!(f, "is drained, for its time was up: {} busy buckets moved", self.busy)
            }
            (Some(Standing::Draining(_, until)), Some(Standing::Drained(_))) if *until <= self.at => {
                f.write_str("is drained, for its time was up")
            }
            (Some(Standing::Draining(..)), Some(Standing::Drained(_))) => {
                f.write_str("is drained: nothing came for it any more")
            }
            (_, Some(Standing::Drained(why))) => write!(f, "is drained at once ({why})"),
            (_, Some(Standing::Last(why))) => {
                write!(f, "drains ({why}), but nobody else is left: it goes on taking flows")
            }
            (_, Some(Standing::Away)) => f.write_str("has a next hop that is on no link of its"),
        }
    }
}

/// A VIP, its members, and the group that follows.
#[derive(Debug)]
pub(super) struct Vip {
    pub(super) name: String,
    pub(super) plan: ListenerVip,
    /// Shared with other VIPs that have the same, and with whoever was told of it: there may be thousands.
    pub(super) group: Option<Arc<Group>>,
    /// Members that serve, wait or are held.
    pub(super) standing: usize,
    /// What happened last.
    pub(super) last: Option<Turn>,
    /// When it changes by itself.
    pub(super) alarm: Option<Time>,
    /// Boxed, because a node of the map has room for eleven and most VIPs of a large listener have two.
    routes: BTreeMap<Hop, Box<Route>>,
    buckets: BTreeMap<Hop, Held>,
    /// When the kernel told of them last, and how many there are.
    told: Option<(Time, u32)>,
    /// What follows for the shares, if it was of the group as it is.
    balance: Option<Balance>,
    /// Members that went since the last decision.
    left: Vec<Turn>,
    /// What was withdrawn before this process began.
    recalled: BTreeMap<Hop, Recalled>,
}

/// What a member says of a VIP, and what it is to it.
#[derive(Debug)]
struct Route {
    offer: Offer,
    /// Where it leads; `None` while no link leads there.
    hop: Option<Hop>,
    /// When it withdrew, while its session goes on.
    withdrawn: Option<Time>,
    drain: Option<Drain>,
    standing: Option<Standing>,
    since: Time,
}

/// A drain that has begun.
#[derive(Debug, Clone, Copy)]
struct Drain {
    since: Time,
    done: bool,
}

/// A path, as far as the choice of members goes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Offer {
    next_hop: IpAddr,
    rank: Rank,
    leaving: bool,
    /// Its checks fail, and it stays because a floor holds it.
    failing: bool,
    bandwidth: Option<Bandwidth>,
}

/// Lower is better: the order of RFC 4271 §9.1 as far as equal cost goes.
type Rank = (u32, usize, u32);

impl From<&Path> for Offer {
    fn from(path: &Path) -> Self {
        let local_pref = u32::MAX - path.local_pref.unwrap_or(100);
        Self {
            next_hop: path.next_hop,
            rank: (local_pref, path.as_path.len(), path.med.unwrap_or(0)),
            leaving: path.communities.contains(&GRACEFUL_SHUTDOWN),
            failing: reflect::is_failing(&path.large_communities),
            bandwidth: Bandwidth::of(&path.extended_communities),
        }
    }
}

/// A member while a decision is made.
struct View {
    member: Hop,
    /// Where it leads, if anywhere.
    hop: Option<Hop>,
    offer: Offer,
    withdrawn: Option<Time>,
    drains: Option<Why>,
}

impl View {
    const fn announces(&self) -> bool {
        self.hop.is_some() && self.withdrawn.is_none()
    }
}

impl Vip {
    pub(super) const fn new(name: String, plan: ListenerVip) -> Self {
        Self {
            name,
            plan,
            group: None,
            standing: 0,
            last: None,
            alarm: None,
            routes: BTreeMap::new(),
            buckets: BTreeMap::new(),
            told: None,
            balance: None,
            left: Vec::new(),
            recalled: BTreeMap::new(),
        }
    }

    /// A member announces it.
    pub(super) fn announced(&mut self, now: Time, member: Hop, path: &Path, hop: Option<Hop>) {
        let offer = Offer::from(path);
        let fresh = Route { offer, hop, withdrawn: None, drain: None, standing: None, since: now };
        let route = self.routes.entry(member).or_insert_with(|| Box::new(fresh));
        (route.offer, route.hop, route.withdrawn) = (offer, hop, None);
        self.recalled.remove(&member);
    }

    /// Members that announce it and do not drain, and whether the checks of each hold.
    pub(super) fn offers(&self) -> impl Iterator<Item = (&Hop, bool)> {
        let stays = |r: &Route| r.withdrawn.is_none() && r.drain.is_none() && !r.offer.leaving;
        self.routes.iter().filter(move |(_, r)| stays(r)).map(|(member, r)| (member, !r.offer.failing))
    }

    /// Links came: whether any path that led nowhere leads somewhere now.
    pub(super) fn linked(&mut self, lead: impl Fn(Hop, IpAddr) -> Option<Hop>) -> bool {
        let mut any = false;
        for (&member, route) in self.routes.iter_mut().filter(|(_, r)| r.hop.is_none()) {
            route.hop = lead(member, route.offer.next_hop);
            any |= route.hop.is_some();
        }
        any
    }

    /// A member withdraws it; whether it had announced it.
    pub(super) fn withdrew(&mut self, now: Time, member: Hop) -> bool {
        let Some(route) = self.routes.get_mut(&member).filter(|r| r.withdrawn.is_none()) else {
            return false;
        };
        // Without a floor the next decision forgets it.
        route.withdrawn = Some(now);
        true
    }

    /// The session of a member ended; whether that matters here.
    pub(super) fn gone(&mut self, now: Time, member: Hop) -> bool {
        self.leave(now, member, End::Session)
    }

    /// A member may not announce it any more; whether that matters here. No floor holds it.
    pub(super) fn bar(&mut self, now: Time, member: Hop) -> bool {
        self.leave(now, member, End::Barred)
    }

    fn leave(&mut self, now: Time, member: Hop, end: End) -> bool {
        let recalled = self.recalled.remove(&member).is_some();
        let Some(route) = self.routes.remove(&member) else { return recalled };
        self.left.extend(route.standing.map(|from| Turn::end(now, member, from, end)));
        true
    }

    /// The session of a member was established: forgets what others announced that leads to its address; whose.
    pub(super) fn disclaim(&mut self, now: Time, owner: Hop) -> Vec<Hop> {
        let claims = self.routes.iter().filter(|(_, route)| route.offer.next_hop == owner.address);
        let others: Vec<Hop> = claims.map(|(member, _)| *member).filter(|member| *member != owner).collect();
        for other in &others {
            let from = self.routes.remove(other).and_then(|route| route.standing);
            self.left.extend(from.map(|from| Turn::end(now, *other, from, End::Taken)));
        }
        others
    }

    /// How many buckets each next hop holds. Whether somebody is drained by that.
    pub(super) fn told(&mut self, now: Time, buckets: BTreeMap<Hop, Held>) -> bool {
        let mut any = false;
        for route in self.routes.values_mut() {
            let Some(drain) = route.drain.as_mut().filter(|d| !d.done && now >= d.since + SETTLE) else {
                continue;
            };
            let held = route.hop.and_then(|hop| buckets.get(&hop));
            drain.done = held.is_none_or(|held| held.busy == 0 && held.moved == 0);
            any |= drain.done;
        }
        let all = buckets.values().map(|held| held.buckets).sum();
        (self.buckets, self.told) = (buckets, Some((now, all)));
        self.weigh(now);
        any
    }

    /// Decides anew who takes which part; whether the group changed, and what became of whom.
    /// `steered` says whether new flows are kept from members that drain whatever their group does, and `like` is the group that
    /// was made last.
    pub(super) fn decide(
        &mut self,
        now: Time,
        orders: &Orders,
        steered: bool,
        lead: impl Fn(Hop, IpAddr) -> Option<Hop>,
        like: &mut Option<Arc<Group>>,
    ) -> (bool, Vec<Turn>) {
        let mut turns = std::mem::take(&mut self.left);
        let counts_at = self.count_recalled(now, lead);
        self.forget(now, &mut turns);
        let views: Vec<View> = self.views(orders);
        let active = views.iter().any(|v| v.announces() && v.drains.is_none());
        let serves = |v: &View| v.announces() && (v.drains.is_none() || !active);
        let serving = views.iter().filter(|v| serves(v)).count();
        let held = self.held(&views, serving, active);
        let best = views.iter().filter(|v| serves(v)).map(|v| v.offer.rank).min();
        // What is held counts as a member, so it does what a member does, whatever its rank.
        let takes = |v: &View| serves(v) && Some(v.offer.rank) == best || held.contains(&v.member);
        // Where weights decide who has which flow, one that drains keeps its own, and nobody's change.
        let keeps = |v: &View| active && v.announces() && self.keeps(v, steered);
        let mut hops = self.shares(views.iter().filter(|v| takes(v) || keeps(v)));
        let weight = |hop| hops.get(&hop).map(|share| (hop, share.weight));
        let kept: BTreeMap<Hop, u16> =
            views.iter().filter(|v| keeps(v)).filter_map(|v| weight(v.hop?)).collect();
        if !kept.is_empty() {
            let taking: BTreeSet<Hop> = views.iter().filter(|v| takes(v)).filter_map(|v| v.hop).collect();
            hops.retain(|hop, _| taking.contains(hop));
        }
        let resilient = matches!(self.plan.hashing, Hashing::Resilient { .. });
        self.alarm = counts_at;
        for view in &views {
            let drains = view.drains.filter(|_| active && view.withdrawn.is_none());
            let standing = match drains {
                Some(why) => {
                    let weight = view.hop.and_then(|hop| kept.get(&hop).copied());
                    self.drain(now, orders, (view, why), resilient.then_some(1).or(weight), &mut hops)
                }
                None => self.stand(view, serves(view), takes(view), held.contains(&view.member)),
            };
            self.turn(now, view, standing, &mut turns);
        }
        self.standing = serving + held.len();
        self.last = turns.last().copied().or(self.last);
        (self.regroup(hops, like), turns)
    }

    /// Forgets members that withdrew, when the floor cannot need them any more.
    fn forget(&mut self, now: Time, turns: &mut Vec<Turn>) {
        let hold = self.plan.floor.map(|f| f.hold);
        self.routes.retain(|&member, route| {
            let stays = route.withdrawn.is_none_or(|at| hold.is_some_and(|hold| now < at + hold));
            if let (false, Some(_)) = (stays, route.standing.filter(|s| !matches!(s, Standing::Withdrawn(_))))
            {
                turns.extend(route.standing.map(|from| Turn::end(now, member, from, End::Withdrawal)));
            }
            stays
        });
    }

    fn views(&self, orders: &Orders) -> Vec<View> {
        let view = |member: Hop, route: &Route| {
            let offer = route.offer;
            let no_bandwidth = || {
                self.plan.weights == Weights::LinkBandwidth && offer.bandwidth.is_some_and(Bandwidth::is_none)
            };
            let drains = if orders.of(member.address, &self.name).is_some() {
                Some(Why::Order)
            } else if offer.leaving {
                Some(Why::GracefulShutdown)
            } else {
                no_bandwidth().then_some(Why::NoBandwidth)
            };
            View { member, hop: route.hop, offer, withdrawn: route.withdrawn, drains }
        };
        self.routes.iter().map(|(member, route)| view(*member, route)).collect()
    }

    /// The members that withdrew and are held: as many as lack to the floor, the best first, then who withdrew last. One that
    /// drained meant to go: it comes last, only while nobody `active` is left, and by an operator's order not at all.
    fn held(&self, views: &[View], serving: usize, active: bool) -> Vec<Hop> {
        let Some(floor) = self.plan.floor else { return Vec::new() };
        let may = |v: &&View| match v.drains {
            None => true,
            Some(Why::Order) => false,
            Some(Why::GracefulShutdown | Why::NoBandwidth) => !active,
        };
        let gone = |v: &&View| v.withdrawn.is_some() && v.hop.is_some();
        let mut withdrawn: Vec<&View> = views.iter().filter(gone).filter(may).collect();
        withdrawn.sort_by_key(|v| (v.drains.is_some(), v.offer.rank, Reverse(v.withdrawn), v.member));
        let lack = usize::from(floor.members).saturating_sub(serving);
        withdrawn.into_iter().take(lack).map(|v| v.member).collect()
    }

    /// The shares of those who take new flows. Two members that lead to one hop are one, of the lesser bandwidth.
    fn shares<'a>(&self, views: impl Iterator<Item = &'a View>) -> BTreeMap<Hop, Share> {
        let mut bandwidths: BTreeMap<Hop, Option<Bandwidth>> = BTreeMap::new();
        for (hop, offer) in views.filter_map(|v| Some((v.hop?, v.offer))) {
            let told = bandwidths.entry(hop).or_default();
            *told = told.iter().copied().chain(offer.bandwidth.filter(|b| !b.is_none())).min();
        }
        let weights = match self.plan.weights {
            Weights::Equal => vec![1; bandwidths.len()],
            Weights::LinkBandwidth => weight::weights(&bandwidths.values().copied().collect::<Vec<_>>()),
        };
        let share = |weight| Share { weight, draining: false };
        bandwidths.into_keys().zip(weights.into_iter().map(share)).collect()
    }

    /// A member that drains while others serve: it stays in the group until it is done, with this weight. Without one it is done
    /// at once.
    fn drain(
        &mut self,
        now: Time,
        orders: &Orders,
        (view, why): (&View, Why),
        weight: Option<u16>,
        hops: &mut BTreeMap<Hop, Share>,
    ) -> Standing {
        let order = orders.of(view.member.address, &self.name);
        let Some(route) = self.routes.get_mut(&view.member) else { return Standing::Away };
        let drain = route.drain.get_or_insert(Drain { since: now, done: false });
        // Whoever gives an order with a time of its own means that time.
        let until = match order {
            Some(&Order { at, timeout: Some(timeout) }) => drain.since.max(at) + timeout,
            Some(&Order { at, timeout: None }) if why == Why::Order && !view.offer.leaving => {
                drain.since.max(at) + self.plan.drain
            }
            _ => drain.since + self.plan.drain,
        };
        drain.done |= weight.is_none() || until <= now;
        let Some(weight) = weight.filter(|_| !drain.done) else { return Standing::Drained(why) };
        let Some(hop) = view.hop else { return Standing::Away };
        hops.entry(hop).or_insert(Share { weight, draining: true });
        self.alarm = self.alarm.into_iter().chain([until]).min();
        Standing::Draining(why, until)
    }

    /// Whether a member that drains keeps its part of the group although the kernel does not know which flows those are: it has
    /// one, and all new flows are taken elsewhere, or were when it began. One that asks for no bandwidth has no weight any more by
    /// which its flows would stay where they are.
    fn keeps(&self, view: &View, steered: bool) -> bool {
        let resilient = matches!(self.plan.hashing, Hashing::Resilient { .. });
        let drain = self.routes.get(&view.member).and_then(|route| route.drain);
        let in_it =
            || view.hop.is_some_and(|hop| self.group.as_ref().is_some_and(|g| g.hops.contains_key(&hop)));
        let weighs =
            self.plan.weights == Weights::Equal || !view.offer.bandwidth.is_some_and(Bandwidth::is_none);
        !resilient && view.drains.is_some() && weighs && drain.map_or_else(|| steered && in_it(), |d| !d.done)
    }

    /// What a member is that does not drain, or is the last.
    fn stand(&mut self, view: &View, serves: bool, takes: bool, held: bool) -> Standing {
        let Some(route) = self.routes.get_mut(&view.member) else { return Standing::Away };
        route.drain = None;
        if let (Some(at), Some(floor)) = (view.withdrawn, self.plan.floor) {
            let until = at + floor.hold;
            self.alarm = self.alarm.into_iter().chain([until]).min();
            return if held { Standing::Held(until) } else { Standing::Withdrawn(view.drains) };
        }
        match (serves, takes, view.drains) {
            (false, ..) => Standing::Away,
            (true, true, Some(why)) => Standing::Last(why),
            (true, true, None) => Standing::Serving,
            (true, false, _) => Standing::Spare,
        }
    }

    fn turn(&mut self, now: Time, view: &View, to: Standing, turns: &mut Vec<Turn>) {
        let Some(route) = self.routes.get_mut(&view.member) else { return };
        let from = route.standing.replace(to);
        if from.as_ref().map(Standing::word) == Some(to.word()) {
            return;
        }
        route.since = now;
        let busy = match to {
            Standing::Drained(_) => view.hop.and_then(|hop| self.buckets.get(&hop)).map_or(0, |h| h.busy),
            _ => 0,
        };
        turns.push(Turn { at: now, member: view.member, from, to: Some(to), end: End::Withdrawal, busy });
    }

    /// Takes the shares as the group; whether that is a change.
    fn regroup(&mut self, hops: BTreeMap<Hop, Share>, like: &mut Option<Arc<Group>>) -> bool {
        if self.group.as_ref().map_or(hops.is_empty(), |g| g.hops == hops) {
            return false;
        }
        self.buckets.retain(|hop, _| hops.contains_key(hop));
        self.balance = None;
        let hashing = self.plan.hashing;
        let slots = match hashing {
            Hashing::Consistent { slots } => table(slots, &hops),
            Hashing::Resilient { .. } | Hashing::Plain => Vec::new(),
        };
        self.group = None;
        if !hops.is_empty() {
            let group = Group { hashing, hops, slots };
            if like.as_deref() != Some(&group) {
                *like = Some(Arc::new(group));
            }
            self.group.clone_from(like);
        }
        true
    }

    /// What each member is, and since when, with its next hop's buckets.
    pub(super) fn members(&self) -> impl Iterator<Item = (&Hop, Standing, Time)> {
        self.routes.iter().filter_map(|(member, r)| Some((member, r.standing?, r.since)))
    }

    /// Whether a member announces it.
    pub(super) fn is_announced_by(&self, member: &Hop) -> bool {
        self.routes.get(member).is_some_and(|r| r.withdrawn.is_none())
    }

    /// Where what a member says leads.
    pub(super) fn hop(&self, member: &Hop) -> Option<Hop> {
        self.routes.get(member)?.hop
    }

    /// What a member holds, as the kernel told last; of one that drains only what was counted since it does.
    pub(super) fn held_by(&self, member: &Hop) -> Option<Held> {
        let route = self.routes.get(member)?;
        if route.drain.is_some_and(|drain| self.told.is_none_or(|(at, _)| at < drain.since + SETTLE)) {
            return None;
        }
        self.buckets(&route.hop?)
    }

    /// When the kernel told of buckets last.
    pub(super) const fn told_at(&self) -> Option<Time> {
        match self.told {
            Some((at, _)) => Some(at),
            None => None,
        }
    }

    /// How far its group is from its shares; `None` if that was not counted since the group last changed.
    pub(super) const fn balance(&self) -> Option<Balance> {
        self.balance
    }

    /// How many buckets its group has: as the kernel told last, else as its plan says.
    pub(super) fn all_buckets(&self) -> Option<u32> {
        let Hashing::Resilient { buckets, .. } = self.plan.hashing else { return None };
        let planned = u32::from(buckets.unwrap_or(Hashing::BUCKETS));
        Some(self.told.map_or(planned, |(_, all)| all))
    }

    /// The buckets that the kernel last told of a next hop.
    pub(super) fn buckets(&self, hop: &Hop) -> Option<Held> {
        self.buckets.get(hop).copied()
    }
}

/// Slots by rendezvous over the addresses of the hops: the same on every listener. An interface has another number on each of
/// them, so it only tells apart what has one address.
fn table(slots: u16, hops: &BTreeMap<Hop, Share>) -> Vec<Hop> {
    let mut names: Vec<Name> = Vec::with_capacity(hops.len());
    let mut before: Option<(IpAddr, u8)> = None;
    for (hop, share) in hops {
        let again =
            before.filter(|(address, _)| *address == hop.address).map_or(0, |(_, n)| n.saturating_add(1));
        before = Some((hop.address, again));
        let mut octets = match hop.address {
            IpAddr::V4(a) => a.octets().to_vec(),
            IpAddr::V6(a) => a.octets().to_vec(),
        };
        octets.extend((again > 0).then_some(again));
        names.push(Name { octets, weight: share.weight });
    }
    let order: Vec<Hop> = hops.keys().copied().collect();
    hash::table(slots, &names).into_iter().map(|i| order[i]).collect()
}

#[cfg(test)]
mod tests;
