//! The listener's forwarding in the kernel: a route for each VIP, over next hop objects and a group of them, or over plain legs.
//!
//! [`Fib`] is told what is wanted, and writes the difference to what the kernel holds as far as it knows, in as few system calls
//! as there are steps that depend on each other. [`Fib::sync`] reads what the kernel really holds, since it drops things without
//! telling and others have hands, and mends it. What cannot be made is left out, said, and tried again by whoever calls.
//!
//! A group is one object for each VIP, with a number that follows from the prefix, and is always replaced in place: a resilient
//! group then moves no flow of a member that stays. Next hop objects are shared by all VIPs. The numbers are the same in
//! every run, so that a restart finds them and touches nothing that is right. One listener belongs to a network namespace.
//!
//! It does not decide who is a member, and it does not wait.

mod census;
mod left;
mod rows;
mod target;

use standfast_core::listen::{Group, Hop, Share};
use standfast_core::node::Held;
use standfast_core::plan::{Hashing, Listener};
use standfast_core::prefix::Prefix;
use standfast_core::table::{Change, apply};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::netlink::{
    Batch, Members, Mode, Netlink, Object, Objects, Resilient, Via, gone, named, number, on, unfit,
};
use crate::steer::Spread;
use census::Census;
use left::{Lapsed, Left};

pub(crate) use left::words;
use rows::Rows;
use target::{Ids, Key, NARROW, Target, WIDE, target};

/// How long members of an earlier run may take to come back before they are named.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a write that was refused for a reason that can be mended is tried at once.
const ATTEMPTS: usize = 4;
/// For how long a connection must have been silent to be none any more, where no idle timer says so.
const SILENT: Duration = Duration::from_secs(120);

/// What became of it.
#[derive(Debug, Default)]
pub struct Done {
    /// The VIPs that were changed, and those that are not as they should be, with why.
    pub results: Vec<(Prefix, Result<(), String>)>,
    /// What was not as it had been written, and is again: something else than this run changed it.
    pub mended: Vec<(Prefix, &'static str, Moved)>,
    /// Who has lost the part in a VIP that an earlier run left, and why.
    pub lapsed: Lapsed,
    /// The VIPs that were looked at: they may be [spread](Fib::spread) otherwise than before.
    pub looked: BTreeSet<Prefix>,
}

/// Whether flows of a VIP were spread anew by what others did.
pub type Moved = bool;

/// A VIP, and what each of its next hops holds.
pub type Count = (Prefix, BTreeMap<Hop, Held>);

/// The routes, groups and next hops that the listener wants, and those that the kernel has.
#[derive(Debug)]
pub struct Fib {
    netlink: Netlink,
    table: u32,
    wanted: BTreeMap<Prefix, Arc<Group>>,
    left: Left,
    /// When members of the earlier run that are not back are named.
    awaits: Option<Instant>,
    lapsed: Lapsed,
    dirty: BTreeSet<Prefix>,
    /// The buckets of groups that an earlier run made: another number would be another group, and flows would move.
    kept: BTreeMap<Prefix, u16>,
    census: Census,
    /// The interface behind which each next hop is, or why there is none.
    reach: BTreeMap<Hop, Result<u32, String>>,
    /// What the kernel holds of ours, as far as is known.
    rows: Rows,
    ids: Ids,
    widest: u16,
    /// What this kernel cannot do: such VIPs are spread over the legs of a route.
    lacks: Option<Lack>,
    /// VIPs that are not as they should be.
    pending: BTreeSet<Prefix>,
}

impl Fib {
    /// Reads what an earlier run left of the VIPs of the plan, and takes it over as it is.
    ///
    /// # Errors
    /// The kernel gives no netlink socket, or does not answer.
    pub fn new(plan: &Listener) -> io::Result<Self> {
        let mut fib = Self {
            netlink: Netlink::new()?,
            table: plan.table,
            wanted: BTreeMap::new(),
            left: Left::new(BTreeMap::new(), Instant::now()),
            awaits: None,
            lapsed: Lapsed::new(),
            dirty: BTreeSet::new(),
            kept: BTreeMap::new(),
            census: Census::default(),
            reach: BTreeMap::new(),
            rows: Rows::default(),
            ids: Ids::default(),
            widest: WIDE,
            lacks: None,
            pending: BTreeSet::new(),
        };
        fib.read()?;
        let mut groups = BTreeMap::new();
        for vip in plan.vips.values() {
            if let Some(group) =
                fib.rows.routes().get(&vip.prefix).cloned().and_then(|via| fib.found(&vip.prefix, &via))
            {
                fib.census.plan(vip.prefix, &group, Instant::now());
                if let Hashing::Resilient { buckets: Some(buckets), .. } = group.hashing {
                    fib.kept.insert(vip.prefix, buckets);
                }
                groups.insert(vip.prefix, group);
            }
        }
        fib.awaits = (!groups.is_empty()).then(|| Instant::now() + PATIENCE);
        fib.left = Left::new(groups, Instant::now());
        Ok(fib)
    }

    /// The number of the socket that it writes with.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn port(&self) -> io::Result<u32> {
        self.netlink.port()
    }

    /// How the connections of a VIP are spread over those of its next hops that can be reached.
    pub fn spread(&mut self, prefix: &Prefix) -> Spread {
        let Some(group) = self.effective(prefix).map(Cow::into_owned) else { return Spread::default() };
        let idle = match group.hashing {
            Hashing::Resilient { idle_timer, .. } => idle_timer,
            Hashing::Consistent { .. } | Hashing::Plain => SILENT,
        };
        let mut hops = BTreeMap::new();
        for (hop, share) in group.hops {
            find(&mut self.reach, &mut self.netlink, &hop);
            if unfit(prefix.afi(), &hop).is_none() && self.reach.get(&hop).is_some_and(Result::is_ok) {
                hops.insert(hop, (!share.draining).then(|| share.weight.max(1)));
            }
        }
        Spread { hops, idle }
    }

    /// Whether a member of a VIP drains.
    pub fn drains(&self, prefix: &Prefix) -> bool {
        self.effective(prefix).is_some_and(|group| group.hops.values().any(|share| share.draining))
    }

    /// Whether a VIP is not as it should be.
    pub fn pending(&self, prefix: &Prefix) -> bool {
        self.pending.contains(prefix)
    }

    /// Takes note of what is wanted; [`flush`](Self::flush) writes it.
    pub fn change(&mut self, change: Change<Prefix, Arc<Group>>) {
        self.dirty.insert(*change.key());
        if let Change::Set(prefix, group) = &change {
            self.left.decided(prefix, group.hops.keys().copied(), Instant::now());
        }
        apply(&mut self.wanted, change);
    }

    /// The session of a member came up, or ended: what an earlier run left for it ends soon, or with the next
    /// [`flush`](Self::flush).
    pub fn member(&mut self, hop: Hop, up: bool, now: Instant) {
        if up {
            self.left.back(hop, now);
        } else {
            let lapsed = self.left.gone(hop);
            self.lapse(lapsed);
        }
    }

    fn lapse(&mut self, lapsed: Lapsed) {
        self.dirty.extend(lapsed.keys().copied());
        for (prefix, ends) in lapsed {
            self.lapsed.entry(prefix).or_default().extend(ends);
        }
    }

    /// Whether something has changed that [`flush`](Self::flush) would write.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Writes what has changed.
    pub fn flush(&mut self) -> Done {
        let dirty = std::mem::take(&mut self.dirty);
        let lapsed = std::mem::take(&mut self.lapsed);
        let results = self.write(&dirty);
        self.count_soon(&dirty);
        Done { results, lapsed, looked: dirty, ..Done::default() }
    }

    /// Has the buckets of groups that have changed counted. It follows the change, which waits for nothing.
    fn count_soon(&mut self, changed: &BTreeSet<Prefix>) {
        let now = Instant::now();
        for prefix in changed {
            if let Some(group) = self.wanted.get(prefix) {
                self.census.plan(*prefix, group, now);
            }
        }
    }

    /// When there is something to do without a change: [`tick`](Self::tick) does it.
    pub fn deadline(&self) -> Option<Instant> {
        [self.left.deadline(), self.census.deadline(), self.awaits].into_iter().flatten().min()
    }

    /// Ends what an earlier run left, if it is time, and counts the buckets of at most one group.
    pub fn tick(&mut self, now: Instant) -> (Done, Option<Count>) {
        let lapsed = self.left.lapse(now);
        self.lapse(lapsed);
        let mut done = self.flush();
        if self.awaits.is_some_and(|at| at <= now) {
            self.awaits = None;
            for (prefix, words) in self.left.awaited(now) {
                self.pending.insert(prefix);
                done.results.push((prefix, Err(words)));
            }
        }
        let Some(prefix) = self.census.take(now) else { return (done, None) };
        let held = self.held(&prefix);
        if let Some(group) = self.effective(&prefix).map(Cow::into_owned) {
            self.census.taken(prefix, &group, now, Instant::now());
        }
        (done, held.map(|held| (prefix, held)))
    }

    /// Reads what the kernel holds, and makes it be what is wanted.
    ///
    /// # Errors
    /// It could not be read; nothing was changed.
    pub fn sync(&mut self) -> io::Result<Done> {
        let mut mended = self.read()?;
        self.reach.clear();
        let changed = std::mem::take(&mut self.dirty);
        let all: BTreeSet<Prefix> =
            self.wanted.keys().chain(self.left.vips()).chain(self.rows.routes().keys()).copied().collect();
        let results = self.write(&all);
        self.count_soon(&changed);
        self.sweep();
        // What could not be mended is among the results, with why.
        mended.retain(|(prefix, ..)| !self.pending.contains(prefix));
        Ok(Done { results, mended, looked: all, ..Done::default() })
    }

    /// Takes everything of ours out of the kernel.
    ///
    /// # Errors
    /// What was refused; the rest is gone.
    pub fn remove_all(&mut self) -> io::Result<()> {
        self.wanted.clear();
        self.left = Left::new(BTreeMap::new(), Instant::now());
        let done = self.sync()?;
        done.results
            .into_iter()
            .find_map(|(_, result)| result.err())
            .map_or(Ok(()), |e| Err(io::Error::other(e)))
    }

    /// What a VIP is to have: what is wanted, and for a while what an earlier run left.
    fn effective(&self, prefix: &Prefix) -> Option<Cow<'_, Group>> {
        self.left.beside(prefix, self.wanted.get(prefix).map(Arc::as_ref))
    }

    /// Writes what is to change of these VIPs, in three steps: next hops, then groups and routes; what others stood in the way of
    /// is tried again.
    fn write(&mut self, prefixes: &BTreeSet<Prefix>) -> Vec<(Prefix, Result<(), String>)> {
        let mut results = BTreeMap::new();
        let mut again = self.attempt(prefixes, &mut results);
        for _ in 1..ATTEMPTS {
            if again.is_empty() {
                break;
            }
            again = self.attempt(&again, &mut results);
        }
        for prefix in prefixes {
            if let Some(why) = self.unreached(prefix) {
                results.entry(*prefix).or_insert(Ok(())).clone_from(&Err(why));
            }
        }
        for prefix in prefixes {
            match results.get(prefix) {
                Some(Err(_)) => _ = self.pending.insert(*prefix),
                Some(Ok(())) => _ = self.pending.remove(prefix),
                None if self.pending.remove(prefix) => _ = results.insert(*prefix, Ok(())),
                None => {}
            }
        }
        results.into_iter().collect()
    }

    /// Writes what differs; the VIPs for which it is worth while to try again at once.
    fn attempt(
        &mut self,
        prefixes: &BTreeSet<Prefix>,
        results: &mut BTreeMap<Prefix, Result<(), String>>,
    ) -> BTreeSet<Prefix> {
        let mut again = BTreeSet::new();
        let targets: Vec<_> = prefixes.iter().map(|prefix| (*prefix, self.target(prefix))).collect();
        let (made, failed) = self.write_hops(&targets, results);
        let (mut batch, mut asked) = (Batch::default(), Vec::new());
        for (prefix, target) in targets {
            let Some(target) = target else {
                if self.rows.routes().contains_key(&prefix) {
                    batch.remove_route(self.table, &prefix);
                    asked.push((prefix, Asked::Removal));
                }
                continue;
            };
            if target.hops.iter().any(|(id, ..)| failed.contains(id)) {
                again.insert(prefix);
                continue;
            }
            if target.hops.iter().any(|(id, ..)| made.contains(id)) {
                results.entry(prefix).or_insert(Ok(()));
            }
            if let Some((id, group)) = target.group
                && !self.rows.holds(id, &group)
            {
                batch.set_object(id, &group, self.mode(id));
                asked.push((prefix, Asked::Group(id, group)));
            }
            if self.rows.routes().get(&prefix).map(Arc::as_ref) != Some(&target.via) {
                match batch.set_route(self.table, &prefix, &target.via) {
                    Ok(()) => asked.push((prefix, Asked::Route(target.via))),
                    Err(e) => _ = results.insert(prefix, Err(e.to_string())),
                }
            }
        }
        let refused = self.netlink.perform(batch);
        for (i, (prefix, asked)) in asked.into_iter().enumerate() {
            let refusal = match &refused {
                Ok(refused) => refused.get(&i),
                Err(e) => Some(e),
            };
            match (refusal, again.contains(&prefix)) {
                (None, _) => {
                    results.entry(prefix).or_insert(Ok(()));
                    match asked {
                        Asked::Group(id, group) => self.rows.set_object(id, group),
                        Asked::Route(via) => self.rows.set_route(prefix, via),
                        Asked::Removal => self.rows.remove_route(&prefix),
                    }
                }
                // It follows from a refusal that is being dealt with.
                (Some(_), true) => {}
                (Some(e), false) => match self.refused(&prefix, &asked, e) {
                    None => _ = again.insert(prefix),
                    Some(result) => {
                        if !matches!(results.get(&prefix), Some(Err(_))) {
                            results.insert(prefix, result);
                        }
                    }
                },
            }
        }
        for prefix in &again {
            results.remove(prefix);
        }
        again
    }

    /// Makes next hops, before the groups that need them: a group with one that cannot be made would be refused as a whole. Removes
    /// those that leave every group. Those that were made, and those that failed.
    ///
    /// To remove one the kernel goes through every bucket of every group. Where there are many it is led to another member's gateway
    /// first: that takes effect at once for all groups, and what comes for a dead member meanwhile has nowhere better to go.
    fn write_hops(
        &mut self,
        targets: &[(Prefix, Option<Target>)],
        results: &mut BTreeMap<Prefix, Result<(), String>>,
    ) -> (BTreeSet<u32>, BTreeSet<u32>) {
        let mut batch = Batch::default();
        let (leaving, shrunk) = self.rows.leaving(targets);
        let led = |(id, heir): (&u32, &Option<u32>)| Some((*id, self.rows.objects().get(&(*heir)?)?.clone()));
        let led: Vec<(u32, Object)> = leaving.iter().filter_map(led).collect();
        led.iter().for_each(|(id, object)| batch.set_object(*id, object, Mode::Replace));
        leaving.keys().for_each(|id| batch.remove_object(*id));
        let mut asked = BTreeMap::new();
        for (id, hop, object) in targets.iter().flat_map(|(_, t)| t).flat_map(|t| &t.hops) {
            if !self.rows.holds(*id, object) && !asked.contains_key(id) {
                asked.insert(*id, (batch.len(), *hop, object.clone()));
                batch.set_object(*id, object, self.mode(*id));
            }
        }
        let refused = self.netlink.perform(batch);
        let refusal = |i: &usize| match &refused {
            Ok(refused) => refused.get(i),
            Err(e) => Some(e),
        };
        let removals = led.len()..;
        for (i, (id, object)) in led.into_iter().enumerate() {
            if refusal(&i).is_none() {
                self.rows.set_object(id, object);
            }
        }
        for (i, id) in removals.zip(leaving.into_keys()) {
            // One that was gone already left its groups, too; else the groups are replaced.
            if refusal(&i).is_none_or(|e| number(e) == Some(libc::ENOENT)) {
                self.rows.take_out(id);
                results.extend(shrunk.iter().map(|prefix| (*prefix, Ok(()))));
            }
        }
        let (mut made, mut failed) = (BTreeSet::new(), BTreeSet::new());
        for (id, (i, hop, object)) in asked {
            let Some(e) = refusal(&i) else {
                self.rows.set_object(id, object);
                made.insert(id);
                continue;
            };
            failed.insert(id);
            if !self.stepped_aside(id, e) && !self.gives_up(&object, e) {
                let why = named(e, &format!("make the next hop {hop}")).to_string();
                self.reach.insert(hop, Err(why));
            }
        }
        (made, failed)
    }

    /// What follows from a refusal: `None` if it is to be tried again.
    fn refused(&mut self, prefix: &Prefix, asked: &Asked, e: &io::Error) -> Option<Result<(), String>> {
        match asked {
            Asked::Group(id, group) => {
                let heavy =
                    |g: &Object| matches!(g, Object::Group(m) if m.members.iter().any(|(_, w)| *w > NARROW));
                if number(e) == Some(libc::EINVAL) && self.widest > NARROW && heavy(group) {
                    self.widest = NARROW;
                    return None;
                }
                if self.stepped_aside(*id, e) || self.gives_up(group, e) {
                    return None;
                }
                self.rows.remove_object(*id);
                let what = format!("spread {prefix} over {}", self.names(prefix));
                Some(Err(named(e, &what).to_string()))
            }
            Asked::Route(via) => {
                self.rows.remove_route(prefix);
                // The legs of a plain route may have moved to another network, or to none.
                let (moved, hops) = match via {
                    Via::Hops(hops) => (true, hops.keys().copied().collect()),
                    Via::Object(_) => (false, Vec::new()),
                };
                if moved && hops.iter().filter(|h| self.look_again(h)).count() > 0 {
                    return None;
                }
                let what = format!("route {prefix} via {}", self.names(prefix));
                Some(Err(named(e, &what).to_string()))
            }
            Asked::Removal => {
                self.rows.remove_route(prefix);
                let again = io::Error::new(e.kind(), e.to_string());
                match number(e) {
                    Some(libc::ESRCH | libc::ENOENT) => Some(Ok(())),
                    _ => Some(gone(Err(again), prefix).map_err(|e| e.to_string())),
                }
            }
        }
    }

    /// Looks for the way to a next hop again; whether it has changed.
    fn look_again(&mut self, hop: &Hop) -> bool {
        let before = self.reach.remove(hop);
        find(&mut self.reach, &mut self.netlink, hop);
        self.reach.get(hop) != before.as_ref()
    }

    /// Whether a refusal is one that is mended by trying again: the number is another's, or the object is gone.
    fn stepped_aside(&mut self, id: u32, e: &io::Error) -> bool {
        match number(e) {
            Some(libc::EEXIST) => {
                self.rows.remove_object(id);
                self.ids.add_foreign(id);
                true
            }
            // Replacing what is not there, or a group one of whose next hops is not there any more.
            Some(libc::ENOENT) if self.rows.remove_object(id) => true,
            _ => false,
        }
    }

    /// Whether a refusal means that this kernel does not know such objects, so that its routes have legs of their own from here on.
    /// A kernel that has taken one of a kind knows them.
    fn gives_up(&mut self, object: &Object, e: &io::Error) -> bool {
        let known = |resilient: bool| {
            let is = |o: &Object| matches!(o, Object::Group(m) if m.resilient.is_some());
            self.rows.objects().values().any(|o| !resilient || is(o))
        };
        let lack = match object {
            Object::Group(Members { resilient: Some(_), .. })
                if matches!(number(e), Some(libc::EINVAL | libc::EOPNOTSUPP)) && !known(true) =>
            {
                Lack::Resilient
            }
            _ if number(e) == Some(libc::EOPNOTSUPP) && !known(false) => Lack::Objects,
            _ => return false,
        };
        self.lacks.replace(lack) != Some(lack)
    }

    /// What this kernel cannot do, and what follows.
    pub fn lacks(&self) -> Option<&'static str> {
        self.lacks.map(|lack| match lack {
            Lack::Objects => {
                "this kernel has no next hop objects (Linux 5.3 has, and resilient groups since 5.13): every VIP is spread with plain \
                 hashing, and each change of its members breaks flows of others"
            }
            Lack::Resilient => {
                "this kernel has no resilient groups (Linux 5.13 has): VIPs with resilient hashing are spread with plain hashing, and \
                 each change of their members breaks flows of others"
            }
        })
    }

    fn mode(&self, id: u32) -> Mode {
        if self.rows.objects().contains_key(&id) { Mode::Replace } else { Mode::Create }
    }

    fn target(&mut self, prefix: &Prefix) -> Option<Target> {
        let mut group = self.left.beside(prefix, self.wanted.get(prefix).map(Arc::as_ref))?;
        match (self.lacks, group.hashing) {
            (Some(Lack::Objects), _) | (Some(Lack::Resilient), Hashing::Resilient { .. }) => {
                let group = group.to_mut();
                (group.hashing, group.slots) = (Hashing::Plain, Vec::new());
            }
            _ => {}
        }
        for hop in group.hops.keys() {
            find(&mut self.reach, &mut self.netlink, hop);
        }
        let reach = |hop: &Hop| {
            let fit = unfit(prefix.afi(), hop).is_none();
            self.reach.get(hop).and_then(|r| r.as_ref().ok()).copied().filter(|_| fit)
        };
        let kept = self.kept.get(prefix).copied();
        target((self.table, *prefix), (&group, kept), reach, (&mut self.ids, self.widest))
    }

    /// Why a VIP does not go over all of its next hops.
    fn unreached(&self, prefix: &Prefix) -> Option<String> {
        let group = self.effective(prefix)?;
        let why = |hop: &Hop| unfit(prefix.afi(), hop).or_else(|| self.reach.get(hop)?.clone().err());
        let all: Vec<String> = group.hops.keys().filter_map(why).collect();
        (!all.is_empty())
            .then(|| format!("cannot route {prefix} over all of its next hops: {}", all.join("; ")))
    }

    fn names(&self, prefix: &Prefix) -> String {
        let group = self.effective(prefix);
        group.map_or_else(String::new, |g| g.hops.keys().map(Hop::to_string).collect::<Vec<_>>().join(", "))
    }

    /// Reads what the kernel holds of ours; what is not as it was written.
    fn read(&mut self) -> io::Result<Vec<(Prefix, &'static str, Moved)>> {
        let objects = match self.netlink.next_hop_objects() {
            Err(e) if number(&e) == Some(libc::EOPNOTSUPP) => {
                self.lacks.get_or_insert(Lack::Objects);
                Objects::default()
            }
            objects => objects?,
        };
        let routes = self.netlink.ways(self.table)?;
        let mut mended = Vec::new();
        for (prefix, via) in self.rows.routes() {
            let words = match routes.get(prefix) {
                _ if self.pending.contains(prefix) => continue,
                None => "its route was gone",
                Some(other) if *other != **via => "its route had been changed",
                Some(_) if !self.intact(via, &objects.ours) => "its next hops had been changed",
                Some(_) => continue,
            };
            // A resilient group knows its flows by the next hops that its buckets have.
            let resilient = |id| self.rows.group(id).is_some_and(|group| group.resilient.is_some());
            let moved = matches!(**via, Via::Object(id) if resilient(id)) && !self.intact(via, &objects.ours);
            mended.push((*prefix, words, moved));
        }
        let added =
            routes.keys().filter(|p| !self.rows.routes().contains_key(p) && !self.pending.contains(p));
        mended.extend(added.map(|p| (*p, "a route with our protocol number had been added", false)));
        self.rows = Rows::new(routes, objects.ours);
        self.ids.set_foreign(objects.foreign);
        Ok(mended)
    }

    /// Whether the group of a route and its next hops are as they were written.
    fn intact(&self, via: &Via, there: &BTreeMap<u32, Object>) -> bool {
        let Via::Object(id) = via else { return true };
        let same = |id: &u32| self.rows.objects().get(id) == there.get(id);
        match self.rows.group(*id) {
            Some(group) => same(id) && group.members.iter().all(|(id, _)| same(id)),
            _ => same(id),
        }
    }

    /// The group that an earlier run made for a VIP, and its numbers.
    fn found(&mut self, prefix: &Prefix, via: &Via) -> Option<Group> {
        let share = |weight, draining| Share { weight, draining };
        let (id, members, resilient) = match via {
            Via::Hops(hops) => {
                let hops = hops.iter().map(|(hop, weight)| (*hop, share(*weight, false))).collect();
                return Some(Group { hashing: Hashing::Plain, hops, slots: Vec::new() });
            }
            Via::Object(id) => {
                let Members { members, resilient } = self.rows.group(*id)?;
                (*id, members.clone(), *resilient)
            }
        };
        let mut used: BTreeMap<Hop, u16> = BTreeMap::new();
        let (mut hops, mut slots) = (BTreeMap::new(), Vec::new());
        let heaviest = members.iter().map(|(_, weight)| *weight).max().unwrap_or(0);
        for (id, weight) in members {
            let Some(Object::Single { gateway, interface }) = self.rows.objects().get(&id) else { continue };
            let hop = on(*gateway, *interface);
            let nth = used.entry(hop).or_default();
            self.ids.give(Key::Hop(hop, *nth), id);
            *nth += 1;
            // A second object for the only next hop of a resilient group says nothing.
            hops.entry(hop).or_insert(share(weight, target::drains(weight, heaviest)));
            slots.push(hop);
        }
        let (hashing, buckets) = match resilient {
            Some(r) => {
                slots.clear();
                let (idle_timer, unbalanced_timer) = (r.idle_timer(), r.unbalanced_timer());
                (Hashing::Resilient { buckets: Some(r.buckets), idle_timer, unbalanced_timer }, r.buckets)
            }
            None => (Hashing::Consistent { slots: u16::try_from(slots.len()).unwrap_or(u16::MAX) }, 0),
        };
        self.ids.give(Key::Group(self.table, *prefix, buckets), id);
        (!hops.is_empty()).then_some(Group { hashing, hops, slots })
    }

    /// Removes the objects of ours that nothing uses any more. Groups go first: taking a next hop out of a group costs more.
    fn sweep(&mut self) {
        let mut used = BTreeSet::new();
        for via in self.rows.routes().values() {
            if let Via::Object(id) = &**via {
                used.insert(*id);
                if let Some(group) = self.rows.group(*id) {
                    used.extend(group.members.iter().map(|(id, _)| *id));
                }
            }
        }
        let mut unused: Vec<(bool, u32)> = Vec::new();
        for (id, object) in self.rows.objects().iter().filter(|(id, _)| !used.contains(id)) {
            unused.push((!matches!(object, Object::Group(_)), *id));
        }
        unused.sort_unstable();
        let mut batch = Batch::default();
        for (_, id) in &unused {
            batch.remove_object(*id);
            self.rows.remove_object(*id);
        }
        // One that stays is found by the next reading.
        let _ = self.netlink.perform(batch);
        self.ids.retain(&used);
    }

    /// What each next hop of a VIP holds of its buckets; `None` if it has no resilient group.
    fn held(&mut self, prefix: &Prefix) -> Option<BTreeMap<Hop, Held>> {
        let Via::Object(id) = &**self.rows.routes().get(prefix)? else { return None };
        let Members { members, resilient: Some(resilient) } = self.rows.group(*id)? else { return None };
        let idle_timer = Resilient::idle_timer(resilient);
        let mut held: BTreeMap<u32, Held> = members.iter().map(|(id, _)| (*id, Held::default())).collect();
        self.netlink
            .buckets(*id, |bucket| {
                let held = held.entry(bucket.hop).or_default();
                held.buckets += 1;
                held.busy += u32::from(bucket.idle < idle_timer);
            })
            .ok()?;
        let mut of: BTreeMap<Hop, Held> = BTreeMap::new();
        for (id, held) in held {
            if let Some(Object::Single { gateway, interface }) = self.rows.objects().get(&id) {
                let sum = of.entry(on(*gateway, *interface)).or_default();
                (sum.buckets, sum.busy) = (sum.buckets + held.buckets, sum.busy + held.busy);
            }
        }
        Some(of)
    }
}

/// What a kernel cannot do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    /// Next hop objects, and so groups.
    Objects,
    /// Resilient groups.
    Resilient,
}

/// Finds the way to a next hop, if that was not tried yet.
fn find(reach: &mut BTreeMap<Hop, Result<u32, String>>, netlink: &mut Netlink, hop: &Hop) {
    if reach.contains_key(hop) {
        return;
    }
    let interface = match hop.scope {
        0 => netlink.interface_of(hop.address).map_err(|e| e.to_string()),
        scope => Ok(scope),
    };
    reach.insert(*hop, interface);
}

/// What was asked of the kernel for a VIP.
enum Asked {
    Group(u32, Object),
    Route(Via),
    Removal,
}
