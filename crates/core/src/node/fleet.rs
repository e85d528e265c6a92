//! The listener inside the node: what it decides becomes routes, words for the operator, and verdicts of checks of its members.
//!
//! A stop leaves the routes as they are: nothing is decided from then on.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::host::event;
use super::members::{QUIET, few};
use super::{Held, KernelKey, Level, Node, Output};
use crate::announce::AnnounceInput;
use crate::health::Verdict;
use crate::listen::{Hop, OrderError, Turn};
use crate::machine::Time;
use crate::plan::{CheckId, Plan, Probe};
use crate::prefix::Prefix;
use crate::table::Change;

/// More VIPs that change together are told of in one line.
const ONE_BY_ONE: usize = 8;
/// How long members have to come back after the start, before there being too few of them is a bad verdict.
const SETTLE: Duration = Duration::from_secs(10);

/// The checks of members of this host's own listener.
#[derive(Debug, Default)]
pub(super) struct Watch {
    checks: BTreeMap<CheckId, Watched>,
    of: BTreeMap<Prefix, BTreeSet<CheckId>>,
    /// When the first verdict is given at the latest.
    settled_at: Option<Time>,
}

#[derive(Debug)]
struct Watched {
    prefix: Prefix,
    at_least: usize,
    /// Members at the last verdict.
    told: Option<usize>,
}

impl Watch {
    pub(super) fn new(now: Time, plan: &Plan) -> Self {
        let mut watch = Self::default();
        let Some(listener) = &plan.listener else { return watch };
        for (id, check) in &plan.checks {
            let Probe::Members(members) = &check.probe else { continue };
            let Some(vip) = listener.vips.get(&members.vip) else { continue };
            let watched = Watched { prefix: vip.prefix, at_least: members.at_least, told: None };
            watch.checks.insert(id.clone(), watched);
            watch.of.entry(vip.prefix).or_default().insert(id.clone());
            watch.settled_at = Some(now + SETTLE);
        }
        watch
    }
}

/// What the listener did, as long as nobody was told: words take longer than what they are about.
#[derive(Debug)]
pub(super) struct Untold {
    at: Time,
    turns: Vec<(Prefix, Turn)>,
    /// VIPs without a route, and with another one.
    lost: Vec<Prefix>,
    changed: Vec<Prefix>,
    /// The member whose doing it was.
    cause: Option<Hop>,
}

impl Node {
    /// Goes on by the listener of the plan; it ran by that of `old` until now.
    pub(super) fn reload_listener(&mut self, now: Time, old: &Plan, out: &mut Vec<Output>) {
        let plan = std::sync::Arc::clone(&self.plan);
        let (Some(before), Some(after)) = (&old.listener, &plan.listener) else { return };
        let Some(listener) = &mut self.listener else { return };
        let names: BTreeMap<Prefix, String> =
            listener.vips().map(|(prefix, name, _)| (*prefix, name.to_owned())).collect();
        let (mut touched, gone) = listener.reload(after);
        for prefix in gone {
            self.kernel_errors.remove(&KernelKey::Route(prefix));
            out.push(Output::Route(Change::Remove(prefix)));
            let about = format!("listener vip {}", names.get(&prefix).map_or("", String::as_str));
            out.push(event(Level::Info, about, format!("{prefix}: removed from the configuration")));
        }
        touched.extend(self.reload_members(now, (before, old), after, out));
        self.reroute(now, touched, None, out);
        self.reflect_soon(now);
    }

    /// Gives the verdicts of the checks of members that are new, or ask something else.
    pub(super) fn reload_watch(&mut self, now: Time, old: &Plan, out: &mut Vec<Output>) {
        let mut watch = Watch::new(now, &self.plan);
        let settled_at = self.watch.settled_at;
        let mut anew = Vec::new();
        for (id, watched) in &mut watch.checks {
            let same = old.checks.get(id).zip(self.plan.checks.get(id)).is_some_and(|(a, b)| a.asks_as(b));
            match self.watch.checks.get(id).filter(|was| same && was.prefix == watched.prefix) {
                Some(was) => watched.told = was.told,
                None => anew.push(id.clone()),
            }
        }
        // Members of a new VIP have a moment to say so; too few of one that was there are too few at once.
        watch.settled_at = watch.settled_at.filter(|_| !anew.is_empty()).or(settled_at);
        self.watch = watch;
        for id in anew {
            self.report_members(now, &id, out);
        }
    }

    /// Decides the VIPs that were `touched` by `cause`, and asks for what differs.
    pub(super) fn reroute(
        &mut self,
        now: Time,
        touched: BTreeSet<Prefix>,
        cause: Option<Hop>,
        out: &mut Vec<Output>,
    ) {
        self.explain(out);
        let Some(listener) = self.listener.as_mut().filter(|_| self.stop.is_none()) else { return };
        let (mut lost, mut changed, mut turns) = (Vec::new(), Vec::new(), Vec::new());
        for &prefix in &touched {
            let Some((regrouped, became)) = listener.decide(now, &prefix) else { continue };
            turns.extend(became.into_iter().map(|turn| (prefix, turn)));
            match listener.group(&prefix).filter(|_| regrouped) {
                Some(group) => {
                    out.push(Output::Route(Change::Set(prefix, Arc::clone(group))));
                    changed.push(prefix);
                }
                None if regrouped => {
                    self.kernel_errors.remove(&KernelKey::Route(prefix));
                    out.push(Output::Route(Change::Remove(prefix)));
                    lost.push(prefix);
                }
                None => {}
            }
        }
        if turns.iter().any(|(_, turn)| turn.is_of_floor()) {
            out.push(Output::Remember);
        }
        if !turns.is_empty() || !lost.is_empty() || !changed.is_empty() {
            self.untold = Some(Untold { at: now, turns, lost, changed, cause });
        }
        let watched = touched.iter().filter_map(|prefix| self.watch.of.get(prefix)).flatten();
        for id in watched.cloned().collect::<Vec<_>>() {
            self.report_members(now, &id, out);
        }
    }

    /// Says in words what the last [`act`](Self::act) did to the listener's routes, if that was not said yet.
    pub fn explain(&mut self, out: &mut Vec<Output>) {
        let Some(Untold { at, turns, lost, changed, cause }) = self.untold.take() else { return };
        self.tell_turns(at, &turns, cause, out);
        self.tell_routes(at, (Level::Warn, &lost, "no member left: route removed"), &turns, cause, out);
        self.tell_routes(at, (Level::Info, &changed, ""), &turns, cause, out);
    }

    /// An operator's order to drain, with its time, or to drain no longer.
    pub(super) fn ordered(
        &mut self,
        now: Time,
        member: IpAddr,
        vip: Option<&str>,
        drain: Option<Option<Duration>>,
        out: &mut Vec<Output>,
    ) {
        let Some(listener) = &mut self.listener else { return };
        let of = vip.map_or_else(|| "every VIP".to_owned(), |name| format!("VIP {name}"));
        let (done, words) = match drain {
            Some(timeout) => {
                let within = timeout.map(|t| format!(" within {} s", t.as_secs_f64())).unwrap_or_default();
                (listener.drain(now, member, vip, timeout), format!("drain of {of} ordered{within}"))
            }
            None => (listener.undrain(member, vip), format!("drain of {of} taken back")),
        };
        let about = format!("member {member}");
        match done {
            Ok(touched) => {
                out.push(event(Level::Info, about, words));
                out.push(Output::Remember);
                self.reroute(now, touched, None, out);
            }
            Err(why) => out.push(event(Level::Warn, about, format!("{words}, and refused: {why}"))),
        }
    }

    /// Whether an order to drain a member, or to drain it no longer, would be taken.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn may_order(&self, member: IpAddr, vip: Option<&str>, drain: bool) -> Result<(), String> {
        let Some(listener) = &self.listener else {
            return Err("this host has no listener".to_owned());
        };
        let may = if drain { listener.may_drain(member, vip) } else { listener.may_undrain(member, vip) };
        may.map_err(|e: OrderError| e.to_string())
    }

    /// The kernel told how many buckets the next hops of a VIP hold.
    pub(super) fn told_buckets(
        &mut self,
        now: Time,
        prefix: Prefix,
        buckets: BTreeMap<Hop, Held>,
        out: &mut Vec<Output>,
    ) {
        if self.listener.as_mut().is_some_and(|l| l.told(now, &prefix, buckets)) {
            self.reroute(now, BTreeSet::from([prefix]), None, out);
        }
    }

    pub(super) fn tick_listener(&mut self, now: Time, out: &mut Vec<Output>) {
        let Some(listener) = self.listener.as_ref().filter(|_| self.stop.is_none()) else { return };
        let due = listener.due(now);
        self.reroute(now, due, None, out);
        if self.watch.settled_at.is_some_and(|at| at <= now) {
            self.watch.settled_at = None;
            for id in self.watch.checks.keys().cloned().collect::<Vec<_>>() {
                self.report_members(now, &id, out);
            }
        }
    }

    pub(super) fn listener_deadline(&self) -> Option<(Time, &'static str)> {
        let listener = self.listener.as_ref().filter(|_| self.stop.is_none())?;
        let first = listener.deadline().into_iter().chain(self.watch.settled_at).min();
        first.map(|at| (at, "members"))
    }

    /// Gives the verdict of a check of members, if their number is another than at the last one.
    fn report_members(&mut self, now: Time, id: &CheckId, out: &mut Vec<Output>) {
        let (Some(listener), Some(watched)) = (&self.listener, self.watch.checks.get_mut(id)) else { return };
        let n = listener.standing(&watched.prefix);
        let good = n >= watched.at_least;
        let early = watched.told.is_none() && self.watch.settled_at.is_some() && !good;
        if early || watched.told == Some(n) {
            return;
        }
        watched.told = Some(n);
        let vip = listener.name(&watched.prefix);
        let s = if n == 1 { "" } else { "s" };
        let verdict = if good {
            Verdict::good(format!("{vip} has {n} member{s}"))
        } else {
            Verdict::bad(format!("{vip} has {n} member{s}, and {} are needed", watched.at_least))
        };
        self.announce(now, AnnounceInput::Reported(id.clone(), verdict), out);
    }

    /// Tells what became of members: one by one if there are few, else in one line for each member and kind of change.
    fn tell_turns(&mut self, now: Time, turns: &[(Prefix, Turn)], cause: Option<Hop>, out: &mut Vec<Output>) {
        let mut told: BTreeMap<(Level, Hop, String), Vec<Prefix>> = BTreeMap::new();
        for (prefix, turn) in turns {
            if let Some(level) = turn.level() {
                told.entry((level, turn.member, turn.to_string())).or_default().push(*prefix);
            }
        }
        let mut lines = Vec::new();
        for ((level, member, words), prefixes) in told {
            let name = self.name(&member);
            if prefixes.len() > ONE_BY_ONE {
                let message =
                    format!("{} VIPs: {name} {words}: {}", prefixes.len(), few(self.names(&prefixes)));
                lines.push((level, "listener".to_owned(), message));
            } else {
                let names = self.names(&prefixes).zip(&prefixes);
                lines.extend(names.map(|(vip, prefix)| {
                    (level, format!("listener vip {vip}"), format!("{prefix}: {name} {words}"))
                }));
            }
        }
        self.tell_lines(now, lines, cause, out);
    }

    /// Tells of changed routes, in the order of their prefixes: one by one if they are few, else all in one line, each with those
    /// `turns` that have no line of their own.
    fn tell_routes(
        &mut self,
        now: Time,
        (level, vips, words): (Level, &[Prefix], &str),
        turns: &[(Prefix, Turn)],
        cause: Option<Hop>,
        out: &mut Vec<Output>,
    ) {
        let whose = |of: &[Prefix]| {
            let quiet = |turn: &Turn, prefix| turn.level().is_none() && of.binary_search(prefix).is_ok();
            // There may be thousands of VIPs, and what became of the members of each is much the same.
            let mut kinds = BTreeSet::new();
            kinds.extend(turns.iter().filter(|(prefix, turn)| quiet(turn, prefix)).map(|(_, turn)| *turn));
            let words = kinds.iter().map(|turn| format!("{} {turn}", self.name(&turn.member)));
            let words: BTreeSet<String> = words.collect();
            if words.is_empty() { String::new() } else { format!(" ({})", few(words)) }
        };
        let lines = if vips.len() > ONE_BY_ONE {
            let words = if words.is_empty() { "new next hops" } else { words };
            let message = format!("{} VIPs: {words}: {}{}", vips.len(), few(self.names(vips)), whose(vips));
            vec![(level, "listener".to_owned(), message)]
        } else {
            let line = |(prefix, name): (&Prefix, &str)| {
                let message = match words {
                    "" => format!("{prefix} via {}", few(self.via(prefix))),
                    words => format!("{prefix} has {words}"),
                } + &whose(&[*prefix]);
                (level, format!("listener vip {name}"), message)
            };
            vips.iter().zip(self.names(vips)).map(line).collect()
        };
        self.tell_lines(now, lines, cause, out);
    }

    fn tell_lines(
        &mut self,
        now: Time,
        lines: Vec<(Level, String, String)>,
        cause: Option<Hop>,
        out: &mut Vec<Output>,
    ) {
        for (level, about, mut message) in lines {
            let (level, last) = cause.map_or((level, false), |member| self.words.level(now, member, level));
            if last {
                message += QUIET;
            }
            out.push(event(level, about, message));
        }
    }

    fn names<'a>(&'a self, vips: &'a [Prefix]) -> impl ExactSizeIterator<Item = &'a str> {
        vips.iter().map(|prefix| self.listener.as_ref().map_or("", |l| l.name(prefix)))
    }

    /// The next hops of a VIP, with what is not ordinary about their shares.
    fn via(&self, prefix: &Prefix) -> Vec<String> {
        let Some(group) = self.listener.as_ref().and_then(|l| l.group(prefix)) else { return Vec::new() };
        let weighed = group.hops.values().any(|share| share.weight > 1);
        let word = |(hop, share): (&Hop, &crate::listen::Share)| {
            let name = self.name(hop);
            match (share.draining, weighed) {
                (true, _) => format!("{name} (draining)"),
                (false, true) => format!("{name} (weight {})", share.weight),
                (false, false) => name,
            }
        };
        group.hops.iter().map(word).collect()
    }
}
