//! What can be seen of the listener: its members, what each of them is to every VIP, and the groups that follow.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::super::host::Owner;
use super::super::past::Ended;
use super::super::{BfdStatus, KernelKey, Node};
use crate::bgp::State;
use crate::listen::{Group, Hop, Refused, Standing, Turn};
use crate::machine::Time;
use crate::plan::{Hashing, ListenerVip};
use crate::prefix::Prefix;

/// The listener.
#[derive(Debug, Clone, Serialize)]
pub struct ListenerStatus {
    /// Connected members.
    pub members: Vec<MemberStatus>,
    /// Addresses without a session that had one, or came and were refused, within the last hour; 64 at most.
    pub gone: Vec<GoneStatus>,
    /// What is done with each VIP, in the order of their prefixes.
    pub vips: Vec<GroupStatus>,
    /// Next hops of each VIP, by `name prefix`.
    pub routes: BTreeMap<String, BTreeSet<IpAddr>>,
    /// Orders to drain that stand, of members that are not connected too.
    pub orders: Vec<OrderStatus>,
    /// Why new connections are not kept from members that drain beyond what their groups do; absent if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsteered: Option<String>,
}

/// Why a session ended, or did not come up.
#[derive(Debug, Clone, Serialize)]
pub struct EndStatus {
    /// In words: the last time.
    pub why: String,
    /// Seconds since then.
    pub ago: f64,
    /// How often, since it last had a session.
    pub times: u64,
    /// Whether it had a session that ended; else it was refused, or never came up.
    pub was_established: bool,
}

/// An address that has no session.
#[derive(Debug, Clone, Serialize)]
pub struct GoneStatus {
    /// The address.
    pub address: IpAddr,
    /// The interface of a link-local address; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The range that it is in; absent if none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accept: Option<String>,
    /// Seconds since it lost its session, or first came.
    pub since: f64,
    /// Why.
    #[serde(flatten)]
    pub end: EndStatus,
}

/// An announcement that was not followed.
#[derive(Debug, Clone, Serialize)]
pub struct IgnoredStatus {
    /// What was announced.
    pub prefix: Prefix,
    /// Its next hop; absent where that did not matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_hop: Option<IpAddr>,
    /// Why it was not followed, in words.
    pub because: String,
    /// Seconds since it came.
    pub ago: f64,
}

/// A member of the listener.
#[derive(Debug, Clone, Serialize)]
pub struct MemberStatus {
    /// The same as a next hop.
    #[serde(skip)]
    pub hop: Hop,
    /// Its address.
    pub address: IpAddr,
    /// The interface of a link-local address; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The range that admitted it.
    pub accept: String,
    /// Its AS number; absent until it said it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asn: Option<u32>,
    /// RFC 4271 state.
    pub session_state: State,
    /// Seconds since it is in, or out of, the established state.
    pub since: f64,
    /// Negotiated hold time in seconds, while established.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_time: Option<u64>,
    /// VIPs that it announces, by prefix.
    pub announces: Vec<Prefix>,
    /// What it is to each VIP that it announces, or withdrew lately.
    pub vips: Vec<MemberVipStatus>,
    /// Announcements that were not followed.
    pub ignored: u64,
    /// The same by reason, in words.
    pub ignored_because: BTreeMap<String, u64>,
    /// The latest of them, the last one first: 8 at most.
    pub ignored_last: Vec<IgnoredStatus>,
    /// Why its session before this one ended, or attempts of its failed, within the last hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_end: Option<EndStatus>,
    /// Its BFD session, if there is to be one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bfd: Option<BfdStatus>,
}

/// What a member is to a VIP.
#[derive(Debug, Clone, Serialize)]
pub struct MemberVipStatus {
    /// The VIP's name.
    pub vip: String,
    /// Its prefix.
    pub prefix: Prefix,
    /// `serving`, `spare`, `held`, `draining`, `drained`, `last`, `away` or `withdrawn`.
    pub state: &'static str,
    /// Why it drains, or did when it withdrew; absent if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drains: Option<String>,
    /// Seconds in this state.
    pub since: f64,
    /// Seconds until it is taken out at the latest; absent unless it is held or draining.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<f64>,
    /// The part of the new flows that it gets, 0 to 1.
    pub share: f64,
    /// Why the kernel has no way to it, though it is meant to take flows; absent if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unrouted: Option<String>,
    /// Its busy buckets, as the kernel told last; absent if it told nothing, or nothing since the member drains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<u32>,
    /// Connections that were given to it while another member drained and were heard of lately, as the kernel told last; absent
    /// like `busy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved: Option<u32>,
}

/// A VIP of the listener and its group.
#[derive(Debug, Clone, Serialize)]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// Its prefix.
    pub prefix: Prefix,
    /// `resilient`, `consistent` or `plain`.
    pub hashing: &'static str,
    /// Members that announce it and do not drain, or are held.
    pub members: usize,
    /// Of these, members that say that their checks fail and that a floor of theirs holds them, or that others serve.
    pub failing: usize,
    /// Of these, members that are held.
    pub held: usize,
    /// Members that drain, as long as they have flows.
    pub draining: usize,
    /// Members under which the floor holds; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor: Option<u16>,
    /// What packets of it are sent to.
    pub hops: Vec<HopStatus>,
    /// Buckets of its group, as the kernel told last, or as planned until then; or slots; absent with plain hashing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buckets: Option<u32>,
    /// The part of the buckets that are busy, 0 to 1; absent if the kernel told nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_share: Option<f64>,
    /// The part of the buckets that are idle, and so free to move, 0 to 1; absent if the kernel told nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_share: Option<f64>,
    /// Seconds since the buckets were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counted: Option<f64>,
    /// Whether each next hop holds its share of the buckets.
    #[serde(flatten)]
    pub balance: Option<BalanceStatus>,
    /// What happened last, in words.
    pub reason: String,
    /// Seconds since then; absent if nothing happened yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<f64>,
}

/// Whether the buckets of a group are where its shares want them; absent until they were counted since it last changed.
#[derive(Debug, Clone, Serialize)]
pub struct BalanceStatus {
    /// Buckets that are still to move; 0: it is balanced.
    pub to_move: u32,
    /// Seconds for which it is balanced, or not.
    pub balance_since: f64,
    /// Seconds until it is balanced, if buckets fall silent as they did so far; absent while none has, or if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balanced_in: Option<f64>,
}

/// Some VIPs of the listener, in the order of their prefixes, and what members are to them.
#[derive(Debug)]
pub struct ListenerSlice {
    vips: Vec<GroupStatus>,
    routes: Vec<(String, BTreeSet<IpAddr>)>,
    of: BTreeMap<Hop, Vec<MemberVipStatus>>,
    announced: BTreeMap<Hop, Vec<Prefix>>,
}

impl ListenerSlice {
    /// The last VIP of it; `None`: there was none left.
    pub fn last(&self) -> Option<Prefix> {
        self.vips.last().map(|vip| vip.prefix)
    }
}

impl ListenerStatus {
    /// Adds the next VIPs. What they say of a member that has come or gone since is left out.
    pub fn add(&mut self, slice: ListenerSlice) {
        let ListenerSlice { vips, routes, mut of, mut announced } = slice;
        self.vips.extend(vips);
        self.routes.extend(routes);
        for member in &mut self.members {
            member.vips.extend(of.remove(&member.hop).unwrap_or_default());
            member.announces.extend(announced.remove(&member.hop).unwrap_or_default());
        }
    }
}

/// A next hop of a group.
#[derive(Debug, Clone, Serialize)]
pub struct HopStatus {
    /// Its address.
    pub address: IpAddr,
    /// The interface of a link-local address; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Its weight among the others.
    pub weight: u16,
    /// The part of the new flows that it gets, 0 to 1.
    pub share: f64,
    /// It keeps its flows and gets no new ones.
    pub draining: bool,
    /// Why the kernel has no way to it; absent if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unrouted: Option<String>,
    /// Buckets that it holds, as the kernel told last, or slots; absent if neither is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buckets: Option<u32>,
    /// Of these, busy ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<u32>,
    /// Buckets that are its share; absent without resilient hashing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted: Option<u32>,
    /// Connections besides, that were given to it while another member drained and were heard of lately; absent if the kernel
    /// told nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved: Option<u32>,
}

/// An order to drain that stands.
#[derive(Debug, Clone, Serialize)]
pub struct OrderStatus {
    /// The member.
    pub member: IpAddr,
    /// The VIP, by name; absent: every one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vip: Option<String>,
    /// Seconds since it was given.
    pub since: f64,
    /// Seconds that the member may keep its flows; absent: as the VIP says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<f64>,
    /// Whether the member has a session.
    pub connected: bool,
}

impl Node {
    /// What can be seen of the listener at `now`; `None` without one.
    pub fn listener_status(&self, now: Time) -> Option<ListenerStatus> {
        let mut status = self.listener_head(now)?;
        status.add(self.listener_slice(now, None, usize::MAX));
        Some(status)
    }

    /// The same but for the VIPs, which [`listener_slice`](Self::listener_slice) gives.
    pub fn listener_head(&self, now: Time) -> Option<ListenerStatus> {
        let listener = self.listener.as_ref()?;
        let end = |ended: &Ended| EndStatus {
            why: ended.why.clone(),
            ago: now.since(ended.at).as_secs_f64(),
            times: ended.times,
            was_established: ended.was_up,
        };
        let members = self.members.iter().map(|(hop, m)| {
            let status = m.session.status();
            let ignored = |r: &Refused| IgnoredStatus {
                prefix: r.prefix,
                next_hop: r.next_hop,
                because: r.why.to_string(),
                ago: now.since(r.at).as_secs_f64(),
            };
            MemberStatus {
                hop: *hop,
                address: hop.address,
                interface: self.links.get(&hop.scope).map(|link| link.name.clone()),
                accept: self.accept(m).map(|a| a.name.clone()).unwrap_or_default(),
                asn: status.negotiated.as_ref().map(|n| n.asn),
                session_state: status.state,
                since: now.since(status.since).as_secs_f64(),
                hold_time: status.negotiated.as_ref().map(|n| n.hold.as_secs()),
                announces: Vec::new(),
                vips: Vec::new(),
                ignored: listener.ignored(hop).map(|(_, n)| n).sum(),
                ignored_because: listener.ignored(hop).map(|(why, n)| (why.to_string(), n)).collect(),
                ignored_last: listener.refused(hop).map(ignored).collect(),
                last_end: self.past.of(now, hop).map(end),
                bfd: self.bfd_status(now, &Owner::Member(*hop)),
            }
        });
        let away = self.past.all(now).filter(|(hop, _)| !self.members.contains_key(hop));
        let gone = away.map(|(hop, ended)| GoneStatus {
            address: hop.address,
            interface: self.links.get(&hop.scope).map(|link| link.name.clone()),
            accept: Some(ended.accept.clone()).filter(|name| !name.is_empty()),
            since: now.since(ended.away).as_secs_f64(),
            end: end(ended),
        });
        let orders = listener.orders().map(|(member, vip, order)| OrderStatus {
            member,
            vip: vip.map(str::to_owned),
            since: now.since(order.at).as_secs_f64(),
            timeout: order.timeout.map(|t| t.as_secs_f64()),
            connected: self.members.keys().any(|hop| hop.address == member),
        });
        Some(ListenerStatus {
            members: members.collect(),
            gone: gone.collect(),
            vips: Vec::new(),
            routes: BTreeMap::new(),
            orders: orders.collect(),
            unsteered: listener.unsteered().map(str::to_owned),
        })
    }

    /// At most `most` VIPs of the listener, from the first one after `after`, in the order of their prefixes.
    pub fn listener_slice(&self, now: Time, after: Option<Prefix>, most: usize) -> ListenerSlice {
        let mut slice = ListenerSlice {
            vips: Vec::new(),
            routes: Vec::new(),
            of: BTreeMap::new(),
            announced: BTreeMap::new(),
        };
        let Some(listener) = &self.listener else { return slice };
        for (prefix, name, plan) in listener.some_vips(after, most) {
            for (member, standing, since) in listener.members(prefix) {
                let status = self.member_vip(now, prefix, name, *member, standing, since);
                slice.of.entry(*member).or_default().push(status);
                if listener.announces(prefix, member) {
                    slice.announced.entry(*member).or_default().push(*prefix);
                }
            }
            let via = listener.group(prefix).map(|group| group.addresses()).unwrap_or_default();
            slice.routes.push((format!("{name} {prefix}"), via));
            slice.vips.extend(self.group_status(now, (prefix, name, plan)));
        }
        slice
    }

    fn member_vip(
        &self,
        now: Time,
        prefix: &Prefix,
        name: &str,
        member: Hop,
        standing: Standing,
        since: Time,
    ) -> MemberVipStatus {
        let hop = self.listener.as_ref().and_then(|l| l.hop(prefix, &member));
        let takes = matches!(standing, Standing::Serving | Standing::Held(_) | Standing::Last(_));
        let group = self.listener.as_ref().and_then(|l| l.group(prefix));
        let held = self.listener.as_ref().and_then(|l| l.held(prefix, &member));
        MemberVipStatus {
            vip: name.to_owned(),
            prefix: *prefix,
            state: standing.word(),
            drains: standing.why().map(|why| why.to_string()),
            since: now.since(since).as_secs_f64(),
            left: standing.until().map(|until| until.since(now).as_secs_f64()),
            share: group.zip(hop).filter(|_| takes).map_or(0.0, |(group, hop)| share(group, &hop)),
            unrouted: hop.filter(|_| takes).and_then(|hop| self.unrouted(prefix, &hop)),
            busy: held.map(|held| held.busy),
            moved: held.map(|held| held.moved),
        }
    }

    /// What the kernel says of a VIP's route, if it is that there is none to this next hop.
    fn unrouted(&self, prefix: &Prefix, hop: &Hop) -> Option<String> {
        let words = self.kernel_errors.get(&KernelKey::Route(*prefix))?;
        let name = hop.to_string();
        let named = words.split_whitespace().any(|word| word.trim_end_matches([',', ';', ':']) == name);
        let clause = |c: &&str| c.split_whitespace().any(|word| word == name);
        let own = words.rsplit(": ").next().and_then(|clauses| clauses.split("; ").find(clause));
        named.then(|| own.unwrap_or(words).to_owned())
    }

    fn group_status(
        &self,
        now: Time,
        (prefix, name, plan): (&Prefix, &str, &ListenerVip),
    ) -> Option<GroupStatus> {
        let listener = self.listener.as_ref()?;
        let count = |is: fn(&Standing) -> bool| listener.members(prefix).filter(|(_, s, _)| is(s)).count();
        let group = listener.group(prefix);
        let hops: Vec<HopStatus> = group
            .iter()
            .flat_map(|group| group.hops.iter().map(move |(hop, s)| (group, hop, s)))
            .map(|(group, hop, s)| {
                let told = listener.buckets(prefix, hop);
                let slots = group.slots.iter().filter(|slot| *slot == hop).count();
                let slots = (!group.slots.is_empty()).then(|| u32::try_from(slots).unwrap_or(u32::MAX));
                HopStatus {
                    address: hop.address,
                    interface: self.links.get(&hop.scope).map(|link| link.name.clone()),
                    weight: s.weight,
                    share: share(group, hop),
                    draining: s.draining,
                    unrouted: self.unrouted(prefix, hop),
                    buckets: told.map(|t| t.buckets).or(slots),
                    busy: told.map(|t| t.busy),
                    wanted: listener.all_buckets(prefix).and_then(|all| group.wanted(hop, all)),
                    moved: told.map(|t| t.moved),
                }
            })
            .collect();
        let (hashing, buckets) = match plan.hashing {
            Hashing::Resilient { .. } => ("resilient", listener.all_buckets(prefix)),
            Hashing::Consistent { slots } => ("consistent", Some(slots.into())),
            Hashing::Plain => ("plain", None),
        };
        let told = hops.iter().any(|hop| hop.busy.is_some());
        let busy: u32 = hops.iter().filter_map(|hop| hop.busy).sum();
        let busy_share = buckets.filter(|all| told && *all > 0).map(|all| f64::from(busy) / f64::from(all));
        let balance = listener.balance(prefix).map(|b| BalanceStatus {
            to_move: b.to_move,
            balance_since: now.since(b.since).as_secs_f64(),
            balanced_in: b
                .left()
                .filter(|_| b.to_move > 0)
                .map(|left| left.saturating_sub(now.since(b.at)).as_secs_f64()),
        });
        let last = listener.last(prefix);
        Some(GroupStatus {
            name: name.to_owned(),
            prefix: *prefix,
            hashing,
            members: listener.standing(prefix),
            failing: listener.offers(prefix).filter(|(_, sound)| !sound).count(),
            held: count(|s| matches!(s, Standing::Held(_))),
            draining: count(|s| matches!(s, Standing::Draining(..))),
            floor: plan.floor.map(|f| f.members),
            busy_share,
            idle_share: busy_share.map(|share| 1.0 - share),
            counted: listener.told_at(prefix).map(|at| now.since(at).as_secs_f64()),
            balance,
            hops,
            buckets,
            reason: last.map_or_else(|| "no member yet".to_owned(), |turn| self.turn_in_words(&turn)),
            since: last.map(|turn| now.since(turn.at).as_secs_f64()),
        })
    }

    fn turn_in_words(&self, turn: &Turn) -> String {
        format!("{} {turn}", self.name(&turn.member))
    }
}

/// The part of new flows that a next hop gets.
fn share(group: &Group, hop: &Hop) -> f64 {
    let weight = |share: &crate::listen::Share| if share.draining { 0 } else { u64::from(share.weight) };
    let all: u64 = group.hops.values().map(weight).sum();
    let own = group.hops.get(hop).map_or(0, weight);
    if all == 0 { 0.0 } else { own as f64 / all as f64 }
}
