//! What an earlier run left in the kernel, and how long it counts.
//!
//! The members of an earlier run come back one by one. Until each has said what it announces, what it had is kept beside what is
//! wanted, so that a restart moves no flow. One that is back has a moment to say it, and one that leaves again has lost it at once.

use standfast_core::listen::{Group, Hop, Share};
use standfast_core::prefix::Prefix;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

/// How long a member of an earlier run may take to come back.
const ADOPT: Duration = Duration::from_secs(20);
/// How long one that is back may take to announce the rest of what it had.
const SETTLE: Duration = Duration::from_secs(5);

/// Who has lost the part in a VIP that an earlier run left, and why.
pub(super) type Lapsed = BTreeMap<Prefix, Vec<(Hop, End)>>;

/// Why the part of a member of an earlier run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It did not come back in time.
    Late,
    /// It is back, and does not announce the VIP, or has no part in it now: it drains, or others are better.
    Without,
    /// It was back, and its session ended again.
    Gone,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late => write!(f, "not back within {} s", ADOPT.as_secs()),
            Self::Without => f.write_str("back, and without a part in it now"),
            Self::Gone => f.write_str("back, and gone again"),
        }
    }
}

/// The same for one VIP in words.
pub(crate) fn words(ends: &[(Hop, End)]) -> String {
    const NAMED: usize = 8;
    let list: Vec<String> = ends.iter().take(NAMED).map(|(hop, end)| format!("{hop} ({end})")).collect();
    let more = ends.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("no longer kept in it from the run before: {}{more}", list.join(", "))
}

/// The groups of an earlier run, without the members that are back.
#[derive(Debug)]
pub(super) struct Left {
    vips: BTreeMap<Prefix, Vip>,
    /// When what is left of a member that is back ends.
    back: BTreeMap<Hop, Instant>,
    until: Instant,
}

#[derive(Debug)]
struct Vip {
    group: Group,
    /// The kernel's weights of all that it had.
    weights: BTreeMap<Hop, u16>,
}

impl Left {
    /// These groups, from `now` on.
    pub(super) fn new(groups: BTreeMap<Prefix, Group>, now: Instant) -> Self {
        let vip = |(prefix, group): (Prefix, Group)| {
            let weights = group.hops.iter().map(|(hop, share)| (*hop, share.weight)).collect();
            (prefix, Vip { group, weights })
        };
        Self { vips: groups.into_iter().map(vip).collect(), back: BTreeMap::new(), until: now + ADOPT }
    }

    /// The VIPs of which something is left.
    pub(super) fn vips(&self) -> impl Iterator<Item = &Prefix> {
        self.vips.keys()
    }

    /// Of each VIP, the members that are not back, in words.
    pub(super) fn awaited(&self, now: Instant) -> Vec<(Prefix, String)> {
        let left = self.until.saturating_duration_since(now).as_secs();
        let of = |(prefix, vip): (&Prefix, &Vip)| {
            let away = vip.group.hops.keys().filter(|hop| !self.back.contains_key(hop));
            let away: Vec<String> = away.map(Hop::to_string).collect();
            let words = format!(
                "not back since this daemon started: {}, which keeps its part for {left} s more; what goes there is lost if it is dead",
                away.join(", ")
            );
            (!away.is_empty()).then_some((*prefix, words))
        };
        self.vips.iter().filter_map(of).collect()
    }

    /// The next hops of a VIP are decided: whatever becomes of them later is.
    pub(super) fn decided(&mut self, prefix: &Prefix, hops: impl Iterator<Item = Hop>, now: Instant) {
        if self.vips.is_empty() {
            return;
        }
        for hop in hops {
            self.back.entry(hop).or_insert(now + SETTLE);
            if let Some(vip) = self.vips.get_mut(prefix) {
                vip.group.hops.remove(&hop);
                if vip.group.hops.is_empty() {
                    self.vips.remove(prefix);
                }
            }
        }
    }

    /// A member is back: what it announces is decided soon.
    pub(super) fn back(&mut self, hop: Hop, now: Instant) {
        if self.vips.values().any(|vip| vip.group.hops.contains_key(&hop)) {
            self.back.entry(hop).or_insert(now + SETTLE);
        }
    }

    /// A member's session ended: what is left of it ends, too.
    pub(super) fn gone(&mut self, hop: Hop) -> Lapsed {
        self.back.remove(&hop);
        self.end(|other| (*other == hop).then_some(End::Gone))
    }

    /// Ends the parts of which `end` says why.
    fn end(&mut self, end: impl Fn(&Hop) -> Option<End>) -> Lapsed {
        let mut lapsed = Lapsed::new();
        for (prefix, vip) in &mut self.vips {
            vip.group.hops.retain(|hop, _| {
                let end = end(hop);
                if let Some(end) = end {
                    lapsed.entry(*prefix).or_default().push((*hop, end));
                }
                end.is_none()
            });
        }
        self.vips.retain(|_, vip| !vip.group.hops.is_empty());
        lapsed
    }

    /// When something of it ends.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let back = self.back.values().copied().min().unwrap_or(self.until);
        (!self.vips.is_empty()).then_some(back.min(self.until))
    }

    /// Ends what is due.
    pub(super) fn lapse(&mut self, now: Instant) -> Lapsed {
        if self.deadline().is_none_or(|at| now < at) {
            return Lapsed::new();
        }
        let back = std::mem::take(&mut self.back);
        let late = self.until <= now;
        let lapsed = self.end(|hop| match back.get(hop) {
            Some(at) => (late || *at <= now).then_some(End::Without),
            None => late.then_some(End::Late),
        });
        // Those are decided everywhere.
        self.back = back.into_iter().filter(|(_, at)| *at > now).collect();
        lapsed
    }

    /// What a VIP is to have: what is `wanted`, and what is left besides.
    pub(super) fn beside<'a>(&'a self, prefix: &Prefix, wanted: Option<&'a Group>) -> Option<Cow<'a, Group>> {
        let Some(Vip { group: left, weights }) = self.vips.get(prefix) else {
            return wanted.map(Cow::Borrowed);
        };
        let Some(wanted) = wanted else { return Some(Cow::Borrowed(left)) };
        let mut group = wanted.clone();
        // The kernel knows weights in relation to each other alone: one that is in both tells what they mean.
        let heaviest = weights.values().copied().max().unwrap_or(1);
        let both = wanted.hops.iter().filter(|(_, s)| !s.draining);
        let both = both.filter_map(|(hop, share)| Some((*weights.get(hop)?, share.weight))).max();
        let most = wanted.hops.values().map(|s| s.weight).max().unwrap_or(1);
        let (before, after) = both.unwrap_or((heaviest, most));
        for (hop, share) in &left.hops {
            let weight = u32::from(share.weight) * u32::from(after) / u32::from(before.max(1));
            let share =
                Share { weight: u16::try_from(weight).unwrap_or(u16::MAX).max(1), draining: share.draining };
            group.hops.entry(*hop).or_insert(share);
        }
        if left.slots.len() == group.slots.len() {
            for (slot, before) in group.slots.iter_mut().zip(&left.slots) {
                if left.hops.contains_key(before) {
                    *slot = *before;
                }
            }
        }
        Some(Cow::Owned(group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use standfast_core::plan::Hashing;

    fn hop(n: u8) -> Hop {
        std::net::IpAddr::from([192, 0, 2, n]).into()
    }

    fn group(list: &[(u8, u16)], slots: &[u8]) -> Group {
        let hops = list.iter().map(|&(n, weight)| (hop(n), Share { weight, draining: false })).collect();
        Group { hashing: Hashing::Plain, hops, slots: slots.iter().map(|n| hop(*n)).collect() }
    }

    fn vip(n: u8) -> Prefix {
        Prefix::host(std::net::IpAddr::from([198, 51, 100, n]))
    }

    fn left(list: &[(u8, Group)], now: Instant) -> Left {
        Left::new(list.iter().map(|(n, group)| (vip(*n), group.clone())).collect(), now)
    }

    #[test]
    fn members_that_are_not_back_keep_their_part_until_they_are_or_the_time_is_up() {
        let now = Instant::now();
        let mut left = left(&[(1, group(&[(1, 1), (2, 1), (3, 1)], &[]))], now);
        let first = group(&[(1, 1)], &[]);
        assert_eq!(left.beside(&vip(1), None).unwrap().hops.len(), 3);
        left.decided(&vip(1), first.hops.keys().copied(), now);
        let beside = left.beside(&vip(1), Some(&first)).unwrap().into_owned();
        assert_eq!(beside, group(&[(1, 1), (2, 1), (3, 1)], &[]));
        // The first is decided: when it goes, it goes.
        assert_eq!(left.beside(&vip(1), None).unwrap().hops.len(), 2);
        assert!(left.lapse(now + ADOPT - SETTLE).is_empty());
        let late = vec![(hop(2), End::Late), (hop(3), End::Late)];
        assert_eq!(left.lapse(now + ADOPT), Lapsed::from([(vip(1), late)]));
        assert_eq!(left.beside(&vip(1), Some(&first)).unwrap().into_owned(), first);
        assert_eq!(left.beside(&vip(1), None), None);
        assert_eq!(left.deadline(), None);
    }

    #[test]
    fn one_that_is_back_has_a_moment_for_the_rest_of_what_it_had() {
        let now = Instant::now();
        let had = group(&[(1, 1), (2, 1)], &[]);
        let mut left = left(&[(1, had.clone()), (2, had.clone())], now);
        left.decided(&vip(1), [hop(1)].into_iter(), now);
        assert_eq!(left.deadline(), Some(now + SETTLE));
        assert!(left.lapse(now + SETTLE / 2).is_empty());
        assert_eq!(left.lapse(now + SETTLE), Lapsed::from([(vip(2), vec![(hop(1), End::Without)])]));
        assert_eq!(left.beside(&vip(2), None).unwrap().into_owned(), group(&[(2, 1)], &[]));
        assert_eq!(left.deadline(), Some(now + ADOPT));
    }

    #[test]
    fn one_that_is_back_and_announces_nothing_has_the_same_moment_and_one_that_leaves_again_none() {
        let now = Instant::now();
        let had = group(&[(1, 1), (2, 1), (3, 1)], &[]);
        let mut left = left(&[(1, had)], now);
        left.back(hop(1), now);
        left.back(hop(2), now + SETTLE / 2);
        left.back(hop(9), now);
        assert!(left.lapse(now + SETTLE / 2).is_empty());
        assert_eq!(left.gone(hop(2)), Lapsed::from([(vip(1), vec![(hop(2), End::Gone)])]));
        assert!(left.gone(hop(9)).is_empty(), "it had nothing");
        let lapsed = left.lapse(now + SETTLE);
        assert_eq!(lapsed, Lapsed::from([(vip(1), vec![(hop(1), End::Without)])]));
        assert_eq!(
            words(&lapsed[&vip(1)]),
            "no longer kept in it from the run before: 192.0.2.1 (back, and without a part in it now)"
        );
        assert_eq!(left.beside(&vip(1), None).unwrap().into_owned(), group(&[(3, 1)], &[]));
        assert_eq!(left.deadline(), Some(now + ADOPT));
    }

    #[test]
    fn shares_that_are_left_are_in_relation_to_those_that_are_wanted() {
        let now = Instant::now();
        let mut had = group(&[(1, 65535), (2, 1), (3, 21845)], &[]);
        had.hops.insert(hop(2), Share { weight: 1, draining: true });
        let mut left = left(&[(1, had)], now);
        left.decided(&vip(1), [hop(1)].into_iter(), now);
        let beside = left.beside(&vip(1), Some(&group(&[(1, 3)], &[]))).unwrap().into_owned();
        assert_eq!(beside.hops[&hop(2)], Share { weight: 1, draining: true });
        assert_eq!(beside.hops[&hop(3)], Share { weight: 1, draining: false });
    }

    #[test]
    fn one_that_is_light_and_back_first_does_not_make_the_others_light() {
        let now = Instant::now();
        let had = group(&[(1, 1), (2, 1), (3, 3)], &[]);
        let mut left = left(&[(1, had.clone())], now);
        left.decided(&vip(1), [hop(1)].into_iter(), now);
        assert_eq!(left.beside(&vip(1), Some(&group(&[(1, 1)], &[]))).unwrap().into_owned(), had);
    }

    #[test]
    fn slots_of_those_that_are_not_back_stay() {
        let now = Instant::now();
        let mut left = left(&[(1, group(&[(1, 1), (2, 1)], &[1, 2, 1, 2]))], now);
        let first = group(&[(1, 1)], &[1, 1, 1, 1]);
        left.decided(&vip(1), [hop(1)].into_iter(), now);
        let beside = left.beside(&vip(1), Some(&first)).unwrap().into_owned();
        assert_eq!(beside.slots, [hop(1), hop(2), hop(1), hop(2)]);
    }
}
