//! What the kernel is to hold for one VIP: which next hop objects, which group, which route. Pure.

use standfast_core::listen::{Group, Hop, Share};
use standfast_core::plan::Hashing;
use standfast_core::prefix::Prefix;
use std::collections::{BTreeMap, BTreeSet};

use crate::netlink::{Members, Object, Resilient, Via};

/// The heaviest weight that every kernel takes.
pub(super) const NARROW: u16 = 255;
/// The heaviest weight since Linux 6.12.
pub(super) const WIDE: u16 = u16::MAX;

/// What a number of ours stands for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// A next hop, counted from 0: a consistent group needs it once for each of its slots, a resilient one of a single next hop twice.
    Hop(Hop, u16),
    /// The group of a VIP in a routing table. What cannot be changed in a group is part of its name, so that another configuration
    /// has another group: its buckets, none for one that is not resilient.
    Group(u32, Prefix, u16),
}

impl Key {
    /// Numbers for it, best first, the same in every run: in the upper half, where neither the kernel nor FRR counts.
    fn numbers(&self) -> impl Iterator<Item = u32> {
        let text = format!("{self:?}");
        (0_u32..).map(move |again| {
            // FNV-1a, which is short and never changes.
            let octets = text.bytes().chain(again.to_le_bytes());
            let hash = octets.fold(0xcbf2_9ce4_8422_2325_u64, |h, o| {
                (h ^ u64::from(o)).wrapping_mul(0x0000_0100_0000_01b3)
            });
            ((hash ^ (hash >> 32)) as u32 >> 2) | 0x8000_0000
        })
    }
}

/// Which number each of our objects has.
#[derive(Debug, Default)]
pub(super) struct Ids {
    of: BTreeMap<Key, u32>,
    taken: BTreeSet<u32>,
    /// Numbers that others use.
    foreign: BTreeSet<u32>,
}

impl Ids {
    /// The number of `key`: the one it has, or the first that nobody has.
    pub(super) fn number(&mut self, key: &Key) -> u32 {
        if let Some(&id) = self.of.get(key) {
            return id;
        }
        let free = |id: &u32| !self.foreign.contains(id) && !self.taken.contains(id);
        // The search ends: there are more numbers than objects that fit into memory.
        let id = key.numbers().find(free).unwrap_or(u32::MAX);
        self.give(key.clone(), id);
        id
    }

    /// Lets `key` have a number that is known from elsewhere, if it has none yet.
    pub(super) fn give(&mut self, key: Key, id: u32) {
        if !self.of.contains_key(&key) && self.taken.insert(id) {
            self.of.insert(key, id);
        }
    }

    /// Others use these: what has one of them gets another.
    pub(super) fn set_foreign(&mut self, foreign: BTreeSet<u32>) {
        self.foreign = foreign;
        self.drop_foreign();
    }

    /// Somebody else uses this one, too.
    pub(super) fn add_foreign(&mut self, id: u32) {
        self.foreign.insert(id);
        self.drop_foreign();
    }

    fn drop_foreign(&mut self) {
        let Self { of, taken, foreign } = self;
        of.retain(|_, id| !foreign.contains(id) || !taken.remove(id));
    }

    /// Forgets every number that is not in `used`.
    pub(super) fn retain(&mut self, used: &BTreeSet<u32>) {
        self.of.retain(|_, id| used.contains(id));
        self.taken.retain(|id| used.contains(id));
    }
}

/// What one VIP needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// Its next hop objects.
    pub(super) hops: Vec<(u32, Hop, Object)>,
    /// Its group.
    pub(super) group: Option<(u32, Object)>,
    /// The second object for the only next hop of a resilient group.
    pub(super) twin: Option<u32>,
    /// Its route.
    pub(super) via: Via,
}

/// What `group` needs: `reach` gives the interface behind which a next hop is, if it can be reached. `None` if none can. A
/// resilient group of which the plan names no buckets has so many as `kept`, if something is.
pub(super) fn target(
    (table, prefix): (u32, Prefix),
    (group, kept): (&Group, Option<u16>),
    reach: impl Fn(&Hop) -> Option<u32>,
    (ids, widest): (&mut Ids, u16),
) -> Option<Target> {
    let hops = group.hops.iter().filter(|(hop, _)| reach(hop).is_some());
    let mut hops: BTreeMap<Hop, Share> = hops.map(|(hop, share)| (*hop, *share)).collect();
    if hops.is_empty() {
        return None;
    }
    let mut objects = Vec::new();
    let mut object = |hop: Hop, nth: u16, ids: &mut Ids| {
        let id = ids.number(&Key::Hop(hop, nth));
        let single = |interface| Object::Single { gateway: hop.address, interface };
        objects.extend(reach(&hop).map(|interface| (id, hop, single(interface))));
        id
    };
    let mut twin = None;
    let (members, resilient) = match group.hashing {
        Hashing::Plain => {
            // Which flows one that drains has follows from its weight: it stays as it is.
            hops.values_mut().for_each(|share| share.draining = false);
            let mut legs: BTreeMap<Hop, u16> = weights(&hops, NARROW).into_iter().collect();
            if let (1, Some(weight)) = (legs.len(), legs.values_mut().next()) {
                *weight = 1;
            }
            return Some(Target { hops: Vec::new(), group: None, twin, via: Via::Hops(legs) });
        }
        Hashing::Resilient { buckets, idle_timer, unbalanced_timer } => {
            let weights = weights(&hops, widest).into_iter();
            let mut members: Vec<(u32, u16)> = weights.map(|(h, w)| (object(h, 0, ids), w)).collect();
            // With one next hop the kernel looks at no bucket, and all of them seem silent when the next one comes. So there is
            // another object for the same next hop, whose part is rounded to no bucket where weights are wide.
            if let (1, Some(hop)) = (members.len(), hops.keys().next()) {
                let again = object(*hop, 1, ids);
                members = vec![(members[0].0, widest), (again, 1)];
                twin = Some(again);
            }
            let buckets = buckets.or(kept).unwrap_or(Hashing::BUCKETS);
            (members, Some(Resilient::new(buckets, idle_timer, unbalanced_timer)))
        }
        Hashing::Consistent { .. } => {
            let mut used: BTreeMap<Hop, u16> = BTreeMap::new();
            let all: Vec<Hop> = hops.keys().copied().collect();
            let slots = group.slots.iter().enumerate();
            let members = slots.map(|(i, hop)| {
                // The slots of one that cannot be reached are lent to the others, and no slot of another moves.
                let hop = if hops.contains_key(hop) { *hop } else { all[i % all.len()] };
                let nth = used.entry(hop).or_default();
                *nth += 1;
                (object(hop, *nth - 1, ids), 1)
            });
            (members.collect(), None)
        }
    };
    let buckets = resilient.map_or(0, |r: Resilient| r.buckets);
    let id = ids.number(&Key::Group(table, prefix, buckets));
    let group = Object::Group(Members { members, resilient });
    Some(Target { hops: objects, group: Some((id, group)), twin, via: Via::Object(id) })
}

/// The kernel's weights, those of draining next hops first.
///
/// The kernel gives each member of a group the buckets between two rounded bounds, which add up in this order. A draining one is
/// to have none: it has the weight 1, and the others so much that its part is less than half a bucket, if weights are wide
/// enough for that.
fn weights(hops: &BTreeMap<Hop, Share>, widest: u16) -> Vec<(Hop, u16)> {
    let drains = hops.values().any(|s| s.draining);
    let Some(heaviest) = hops.values().filter(|s| !s.draining).map(|s| s.weight.max(1)).max() else {
        // All drain: there is nowhere else to go.
        let stay = |(h, s): (&Hop, &Share)| (*h, Share { draining: false, ..*s });
        return if drains { weights(&hops.iter().map(stay).collect(), widest) } else { Vec::new() };
    };
    let scale = |weight: u16| -> u16 {
        if heaviest > widest {
            let scaled = u32::from(weight) * u32::from(widest) / u32::from(heaviest);
            // It is not over `widest`, which is a u16.
            scaled.max(1) as u16
        } else if drains {
            weight.max(1) * (widest / heaviest)
        } else {
            weight.max(1)
        }
    };
    let draining = hops.iter().filter(|(_, s)| s.draining).map(|(h, _)| (*h, 1));
    let staying = hops.iter().filter(|(_, s)| !s.draining).map(|(h, s)| (*h, scale(s.weight)));
    draining.chain(staying).collect()
}

/// Whether one of the kernel's weights is that of a draining next hop, beside the `heaviest`: the opposite of [`weights`].
pub(super) fn drains(weight: u16, heaviest: u16) -> bool {
    let scaled = heaviest > WIDE / 2 || (heaviest > NARROW / 2 && heaviest <= NARROW);
    scaled && weight == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn hop(n: u8) -> Hop {
        std::net::IpAddr::from([192, 0, 2, n]).into()
    }

    fn shares(list: &[(u16, bool)]) -> BTreeMap<Hop, Share> {
        let share =
            |(i, &(weight, draining)): (usize, &(u16, bool))| (hop(i as u8 + 1), Share { weight, draining });
        list.iter().enumerate().map(share).collect()
    }

    /// How many buckets the kernel gives each, as in its nh_res_group_rebalance.
    fn wanted(weights: &[(Hop, u16)], buckets: u64) -> BTreeMap<Hop, u64> {
        let total: u64 = weights.iter().map(|(_, w)| u64::from(*w)).sum();
        let (mut sum, mut before) = (0, 0);
        let share = |(hop, weight): &(Hop, u16)| {
            sum += u64::from(*weight);
            let bound = (buckets * sum + total / 2) / total;
            let share = (*hop, bound - before);
            before = bound;
            share
        };
        weights.iter().map(share).collect()
    }

    #[test]
    fn a_draining_hop_is_to_have_no_bucket() {
        for staying in 1..=8 {
            for draining in 1..=4 {
                for weight in [1, 3, 100, 255, 65_535] {
                    let mut list = vec![(weight, false); staying];
                    list.extend(vec![(weight, true); draining]);
                    let wanted = wanted(&weights(&shares(&list), WIDE), 16384);
                    let got: u64 = (0..draining).map(|i| wanted[&hop((staying + i) as u8 + 1)]).sum();
                    // One does not quite outweigh two others.
                    let most = u64::from(draining >= 2 * staying);
                    assert!(got <= most, "{staying} {draining} {weight}: {wanted:?}");
                }
            }
        }
    }

    #[test]
    fn shares_are_kept_by_a_drain_and_by_narrow_weights() {
        assert_eq!(weights(&shares(&[(1, false), (3, false)]), WIDE), [(hop(1), 1), (hop(2), 3)]);
        let drain = weights(&shares(&[(9, true), (1, false), (3, false)]), WIDE);
        assert_eq!(drain, [(hop(1), 1), (hop(2), 21845), (hop(3), 65535)]);
        assert!(drain.iter().all(|(h, w)| drains(*w, 65535) == (*h == hop(1))));
        assert!(!drains(1, 3));
        let narrow = weights(&shares(&[(1000, false), (3000, false), (1, false)]), NARROW);
        assert_eq!(narrow, [(hop(1), 85), (hop(2), 255), (hop(3), 1)]);
        assert_eq!(weights(&shares(&[(2, true), (4, true)]), WIDE), [(hop(1), 2), (hop(2), 4)]);
        assert_eq!(weights(&shares(&[]), WIDE), []);
        assert_eq!(weights(&shares(&[(0, false)]), WIDE), [(hop(1), 1)]);
    }

    fn group(hashing: Hashing, list: &[(u16, bool)]) -> Group {
        let hops = shares(list);
        let slots = match hashing {
            Hashing::Consistent { slots } => hops.keys().copied().cycle().take(slots.into()).collect(),
            _ => Vec::new(),
        };
        Group { hashing, hops, slots }
    }

    fn at(group: &Group, reached: &[u8], ids: &mut Ids) -> Option<Target> {
        let reach = |h: &Hop| reached.iter().any(|n| hop(*n) == *h).then_some(7);
        target((254, "198.51.100.10/32".parse().unwrap()), (group, None), reach, (ids, WIDE))
    }

    fn members(target: &Target) -> Vec<(u32, u16)> {
        match &target.group {
            Some((_, Object::Group(m))) => m.members.clone(),
            _ => panic!("{target:?}"),
        }
    }

    fn resilient(buckets: u16) -> Hashing {
        Hashing::Resilient {
            buckets: Some(buckets),
            idle_timer: Duration::from_secs(60),
            unbalanced_timer: Duration::ZERO,
        }
    }

    #[test]
    fn one_that_is_alone_is_there_twice_and_its_twin_has_no_bucket() {
        let mut ids = Ids::default();
        let alone = at(&group(resilient(4096), &[(7, false)]), &[1], &mut ids).unwrap();
        let [(only, heavy), (twin, light)] = members(&alone)[..] else { panic!("{alone:?}") };
        assert_eq!((heavy, light, Some(twin)), (WIDE, 1, alone.twin));
        let same = |(_, hop, object): &(u32, Hop, Object)| (*hop, object.clone());
        assert_eq!(same(&alone.hops[0]), same(&alone.hops[1]));
        let buckets = wanted(&[(hop(1), heavy), (hop(2), light)], 4096);
        assert_eq!((buckets[&hop(1)], buckets[&hop(2)]), (4096, 0));
        // With another beside it the twin goes, and the object that has the buckets stays.
        let two = at(&group(resilient(4096), &[(7, false), (1, false)]), &[1, 2], &mut ids).unwrap();
        let numbers: Vec<u32> = members(&two).iter().map(|(id, _)| *id).collect();
        assert!(numbers.len() == 2 && numbers.contains(&only) && two.twin.is_none(), "{two:?}");
    }

    #[test]
    fn a_group_keeps_its_number_until_what_cannot_change_changes() {
        let mut ids = Ids::default();
        let one = at(&group(resilient(64), &[(1, false)]), &[1], &mut ids).unwrap();
        let two = at(&group(resilient(64), &[(1, false), (1, false)]), &[1, 2], &mut ids).unwrap();
        assert_eq!(one.via, two.via);
        assert_eq!(members(&two)[0].0, members(&one)[0].0);
        let again = at(&group(resilient(64), &[(1, false)]), &[1], &mut Ids::default()).unwrap();
        assert_eq!(again, one, "the same in every run");
        assert_ne!(at(&group(resilient(65), &[(1, false)]), &[1], &mut ids).unwrap().via, one.via);
        let slots = Hashing::Consistent { slots: 4 };
        assert_ne!(at(&group(slots, &[(1, false)]), &[1], &mut ids).unwrap().via, one.via);
    }

    #[test]
    fn a_number_of_somebody_elses_is_left_alone() {
        let mut ids = Ids::default();
        let group = group(resilient(64), &[(1, false)]);
        let Via::Object(first) = at(&group, &[1], &mut ids).unwrap().via else { panic!() };
        ids.add_foreign(first);
        let Via::Object(second) = at(&group, &[1], &mut ids).unwrap().via else { panic!() };
        assert_ne!(first, second);
        let mut ids = Ids::default();
        ids.set_foreign(BTreeSet::from([first]));
        assert_eq!(at(&group, &[1], &mut ids).unwrap().via, Via::Object(second));
    }

    #[test]
    fn slots_keep_their_hop_when_another_cannot_be_reached() {
        let mut ids = Ids::default();
        let group = group(Hashing::Consistent { slots: 9 }, &[(1, false), (1, false), (1, false)]);
        let gateways = |target: &Target| -> Vec<Hop> {
            let of: BTreeMap<u32, Hop> = target.hops.iter().map(|(id, hop, _)| (*id, *hop)).collect();
            members(target).iter().map(|(id, _)| of[id]).collect()
        };
        let all = at(&group, &[1, 2, 3], &mut ids).unwrap();
        assert_eq!(gateways(&all), group.slots);
        let numbers: BTreeSet<u32> = members(&all).into_iter().map(|(id, _)| id).collect();
        assert_eq!(numbers.len(), 9, "the kernel takes no number twice");
        let without = at(&group, &[1, 3], &mut ids).unwrap();
        for (slot, hop) in group.slots.iter().zip(gateways(&without)) {
            assert!(*slot == self::hop(2) && hop != self::hop(2) || *slot == hop);
        }
        assert_eq!(without.via, all.via);
        assert_eq!(at(&group, &[], &mut ids), None);
    }

    #[test]
    fn in_a_plain_route_who_drains_has_the_weight_that_it_had() {
        let via = |list: &[(u16, bool)]| {
            at(&group(Hashing::Plain, list), &[1, 2], &mut Ids::default()).unwrap().via
        };
        assert_eq!(via(&[(1, false), (3, true)]), Via::Hops([(hop(1), 1), (hop(2), 3)].into()));
        assert_eq!(via(&[(1, true), (1, true)]), Via::Hops([(hop(1), 1), (hop(2), 1)].into()));
        assert_eq!(via(&[(1000, false), (2000, false)]), Via::Hops([(hop(1), 127), (hop(2), 255)].into()));
    }
}
