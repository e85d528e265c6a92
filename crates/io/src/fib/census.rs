//! When the buckets of which group are counted: each second while a member of it drains, and otherwise 5 s after it has changed and
//! every 30 s.
//!
//! A group may have 65535 buckets, and there may be thousands of groups: however many there are, counting takes at most a tenth
//! of the time for those that drain, and a fiftieth for the rest.

use standfast_core::listen::Group;
use standfast_core::plan::Hashing;
use standfast_core::prefix::Prefix;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const DRAINING: Duration = Duration::from_secs(1);
const CALM: Duration = Duration::from_secs(30);
/// By then the kernel has moved what was silent.
const CHANGED: Duration = Duration::from_secs(5);

/// The groups that are to be counted.
#[derive(Debug, Default)]
pub(super) struct Census {
    planned: BTreeMap<Prefix, (bool, Instant)>,
    draining: Queue,
    calm: Queue,
}

#[derive(Debug, Default)]
struct Queue {
    order: BTreeSet<(Instant, Prefix)>,
    rest_until: Option<Instant>,
}

impl Queue {
    fn deadline(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| self.rest_until.map_or(*at, |rest| rest.max(*at)))
    }
}

impl Census {
    /// The group of a VIP has changed, or is new.
    pub(super) fn plan(&mut self, prefix: Prefix, group: &Group, now: Instant) {
        let before = self.planned.get(&prefix).copied();
        if !matches!(group.hashing, Hashing::Resilient { .. }) {
            self.forget(&prefix);
            return;
        }
        let drains = group.hops.values().any(|s| s.draining);
        let at = now + if drains { DRAINING } else { CHANGED };
        // One that changes all the time is counted all the same.
        if before.is_none_or(|(drained, before)| drained != drains || at < before) {
            self.set(prefix, drains, at);
        }
    }

    fn set(&mut self, prefix: Prefix, drains: bool, at: Instant) {
        self.forget(&prefix);
        self.planned.insert(prefix, (drains, at));
        self.queue(drains).order.insert((at, prefix));
    }

    fn forget(&mut self, prefix: &Prefix) {
        if let Some((drains, at)) = self.planned.remove(prefix) {
            self.queue(drains).order.remove(&(at, *prefix));
        }
    }

    const fn queue(&mut self, drains: bool) -> &mut Queue {
        if drains { &mut self.draining } else { &mut self.calm }
    }

    /// When the next is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.draining.deadline().into_iter().chain(self.calm.deadline()).min()
    }

    /// The one that is due, which is forgotten until [`taken`](Self::taken) plans it again.
    pub(super) fn take(&mut self, now: Instant) -> Option<Prefix> {
        let due = |queue: &Queue| queue.deadline().is_some_and(|at| at <= now);
        let queue = [&self.draining, &self.calm].into_iter().find(|q| due(q))?;
        let prefix = queue.order.first()?.1;
        self.forget(&prefix);
        Some(prefix)
    }

    /// It was counted, from `begun` until `now`.
    pub(super) fn taken(&mut self, prefix: Prefix, group: &Group, begun: Instant, now: Instant) {
        let drains = group.hops.values().any(|s| s.draining);
        if matches!(group.hashing, Hashing::Resilient { .. }) {
            self.set(prefix, drains, begun + if drains { DRAINING } else { CALM });
        }
        let took = now.saturating_duration_since(begun);
        self.draining.rest_until = Some(now + took * 9);
        self.calm.rest_until = Some(now + took * 49);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use standfast_core::listen::Share;

    fn group(draining: bool) -> Group {
        let hashing = Hashing::Resilient {
            buckets: Some(8),
            idle_timer: Duration::from_secs(1),
            unbalanced_timer: Duration::ZERO,
        };
        let hop = std::net::IpAddr::from([192, 0, 2, 1]).into();
        Group { hashing, hops: [(hop, Share { weight: 1, draining })].into(), slots: Vec::new() }
    }

    fn vip(n: u8) -> Prefix {
        Prefix::host(std::net::IpAddr::from([198, 51, 100, n]))
    }

    #[test]
    fn a_drain_is_counted_each_second_and_before_all_others() {
        let start = Instant::now();
        let mut census = Census::default();
        assert_eq!(census.deadline(), None);
        for n in 0..100 {
            census.plan(vip(n), &group(false), start);
        }
        assert_eq!(census.deadline(), Some(start + CHANGED));
        assert_eq!(census.take(start + CHANGED / 2), None);
        let late = start + CALM * 2;
        census.plan(vip(7), &group(true), late);
        census.plan(vip(7), &group(true), late + DRAINING / 2);
        let drained = (0..10).filter(|i| {
            let now = late + DRAINING * (i + 1);
            let one = census.take(now).unwrap();
            census.taken(one, &group(one == vip(7)), now, now);
            one == vip(7)
        });
        assert_eq!(drained.count(), 10);
    }

    #[test]
    fn a_group_that_has_changed_is_counted_soon_and_then_seldom() {
        let start = Instant::now();
        let mut census = Census::default();
        census.plan(vip(1), &group(false), start);
        let first = start + CHANGED;
        assert_eq!(census.take(first), Some(vip(1)));
        census.taken(vip(1), &group(false), first, first);
        assert_eq!(census.deadline(), Some(first + CALM));
        // However often it changes, the first of the changes counts.
        for n in 0..10 {
            census.plan(vip(1), &group(false), first + Duration::from_secs(1 + n));
        }
        assert_eq!(census.deadline(), Some(first + Duration::from_secs(1) + CHANGED));
    }

    #[test]
    fn counting_takes_a_fiftieth_of_the_time() {
        let start = Instant::now();
        let mut census = Census::default();
        for n in 0..2 {
            census.plan(vip(n), &group(false), start);
        }
        let now = start + CALM;
        let one = census.take(now).unwrap();
        let took = Duration::from_millis(100);
        census.taken(one, &group(false), now, now + took);
        assert_eq!(census.deadline(), Some(now + took * 50));
        assert_eq!(census.take(now + took * 49), None);
        assert_eq!(census.take(now + took * 50), Some(vip(1)));
    }

    #[test]
    fn what_is_not_resilient_has_no_buckets() {
        let start = Instant::now();
        let mut census = Census::default();
        census.plan(vip(1), &group(false), start);
        let plain = Group { hashing: Hashing::Plain, ..group(false) };
        census.plan(vip(1), &plain, start);
        assert_eq!(census.deadline(), None);
    }
}
