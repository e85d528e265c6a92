//! What the kernel holds of ours, as far as is known: as it was read, and changed by what it has acknowledged since. Pure.

use standfast_core::prefix::Prefix;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::target::Target;
use crate::netlink::{Members, Object, Via};

/// From so many buckets on it takes longer to go through them than to change one next hop.
const MANY: u32 = 8192;

/// Our routes and next hop objects.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// One of them may be that of thousands of VIPs.
    routes: BTreeMap<Prefix, Arc<Via>>,
    /// The one that was made last: the next one is the same, as a rule.
    like: Option<Arc<Via>>,
    objects: BTreeMap<u32, Object>,
    /// The groups that each next hop is in.
    users: BTreeMap<u32, BTreeSet<u32>>,
    /// The groups that a route leads to.
    routed: BTreeSet<u32>,
}

impl Rows {
    /// As they were read.
    pub(super) fn new(routes: BTreeMap<Prefix, Via>, objects: BTreeMap<u32, Object>) -> Self {
        let mut rows = Self::default();
        objects.into_iter().for_each(|(id, object)| rows.set_object(id, object));
        routes.into_iter().for_each(|(prefix, via)| rows.set_route(prefix, via));
        rows
    }

    /// The routes.
    pub(super) const fn routes(&self) -> &BTreeMap<Prefix, Arc<Via>> {
        &self.routes
    }

    /// The next hop objects.
    pub(super) const fn objects(&self) -> &BTreeMap<u32, Object> {
        &self.objects
    }

    /// The members of a group.
    pub(super) fn group(&self, id: u32) -> Option<&Members> {
        match self.objects.get(&id) {
            Some(Object::Group(members)) => Some(members),
            _ => None,
        }
    }

    /// Whether an object is as it is to be. Weights mean something in relation to each other alone.
    pub(super) fn holds(&self, id: u32, object: &Object) -> bool {
        match (self.objects.get(&id), object) {
            (Some(Object::Group(is)), Object::Group(to_be)) => {
                let of = |g: &Members| g.members.first().map_or(1, |(_, weight)| u32::from(*weight));
                let (a, b) = (of(is), of(to_be));
                let same = |((i, v), (j, w)): (&(u32, u16), &(u32, u16))| {
                    i == j && u32::from(*v) * b == u32::from(*w) * a
                };
                is.resilient == to_be.resilient
                    && is.members.len() == to_be.members.len()
                    && is.members.iter().zip(&to_be.members).all(same)
            }
            (is, to_be) => is == Some(to_be),
        }
    }

    /// A route was made.
    pub(super) fn set_route(&mut self, prefix: Prefix, via: Via) {
        let via = match self.like.take() {
            Some(like) if *like == via => like,
            _ => Arc::new(via),
        };
        self.like = Some(Arc::clone(&via));
        self.remove_route(&prefix);
        if let Via::Object(id) = *via {
            self.routed.insert(id);
        }
        self.routes.insert(prefix, via);
    }

    /// A route was removed, or is not known any more.
    pub(super) fn remove_route(&mut self, prefix: &Prefix) {
        if let Some(Via::Object(id)) = self.routes.remove(prefix).as_deref() {
            self.routed.remove(id);
        }
    }

    /// An object was made, or replaced.
    pub(super) fn set_object(&mut self, id: u32, object: Object) {
        self.leave(id);
        if let Object::Group(group) = &object {
            for (member, _) in &group.members {
                self.users.entry(*member).or_default().insert(id);
            }
        }
        self.objects.insert(id, object);
    }

    /// An object was removed, or is not known any more; whether it was known.
    pub(super) fn remove_object(&mut self, id: u32) -> bool {
        self.leave(id);
        self.objects.remove(&id).is_some()
    }

    /// What a group was is over: its members are not in it.
    fn leave(&mut self, id: u32) {
        let Some(Object::Group(group)) = self.objects.get(&id) else { return };
        for (member, _) in &group.members {
            if let Some(users) = self.users.get_mut(member) {
                users.remove(&id);
                if users.is_empty() {
                    self.users.remove(member);
                }
            }
        }
    }

    /// A next hop was removed: the kernel took it out of its groups, and with its last next hop a group is gone.
    pub(super) fn take_out(&mut self, id: u32) {
        for user in self.users.remove(&id).unwrap_or_default() {
            let Some(Object::Group(group)) = self.objects.get_mut(&user) else { continue };
            group.members.retain(|(member, _)| *member != id);
            if group.members.is_empty() {
                self.objects.remove(&user);
            }
        }
        self.objects.remove(&id);
    }

    /// The next hops that leave every group they are in, and the VIPs whose groups are then as they are to be, weights aside.
    /// Where there are [`MANY`] buckets to go through, with an heir, if there is one: a next hop of its family that stays in all of the groups.
    ///
    /// Removing such a next hop is one request, however many groups it is in, and the kernel waits once for packets on their way;
    /// replacing the groups is one request for each, and it waits each time.
    pub(super) fn leaving(
        &self,
        targets: &[(Prefix, Option<Target>)],
    ) -> (BTreeMap<u32, Option<u32>>, Vec<Prefix>) {
        let mut leaves: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        let mut stay: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut touched = Vec::new();
        for (prefix, target) in targets {
            let Some(target) = target else { continue };
            let Some((id, Object::Group(after))) = target.group.as_ref() else { continue };
            let Some(before) = self.group(*id) else { continue };
            // The second object of one that is left alone comes later.
            let but_twin = |group: &Members| -> Vec<u32> {
                group.members.iter().map(|(id, _)| *id).filter(|id| Some(*id) != target.twin).collect()
            };
            let (before, after) = (but_twin(before), but_twin(after));
            // The usual change is none of the members: both are short then.
            let stays = |id: &u32| after.contains(id);
            let known = |id: &u32| before.contains(id);
            if after.len() < before.len() && after.iter().all(known) {
                touched.push(*prefix);
                for gone in before.iter().filter(|b| !stays(b)) {
                    leaves.entry(*gone).or_default().insert(*id);
                    // Those that drain come first: the last one is best.
                    let all = || after.iter().rev().copied().collect();
                    stay.entry(*gone).and_modify(|heirs| heirs.retain(stays)).or_insert_with(all);
                }
            }
        }
        let everywhere = |(hop, from): &(u32, BTreeSet<u32>)| {
            let users = self.users.get(hop);
            users.is_some_and(|users| users.difference(from).all(|group| !self.routed.contains(group)))
        };
        let heir = |hop: u32| {
            let groups = self.users.get(&hop)?.iter().filter_map(|id| self.group(*id)?.resilient);
            if groups.map(|r| u32::from(r.buckets)).sum::<u32>() < MANY {
                return None;
            }
            let family = self.family(hop)?;
            stay.get(&hop)?.iter().copied().find(|heir| self.family(*heir) == Some(family))
        };
        let leaving: BTreeMap<u32, Option<u32>> =
            leaves.into_iter().filter(everywhere).map(|(hop, _)| (hop, heir(hop))).collect();
        if leaving.is_empty() {
            touched.clear();
        }
        (leaving, touched)
    }

    /// Whether a next hop is one of IPv4; `None` if it is no single one.
    fn family(&self, id: u32) -> Option<bool> {
        match self.objects.get(&id)? {
            Object::Single { gateway, .. } => Some(gateway.is_ipv4()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Resilient;
    use std::time::Duration;

    fn group(members: &[u32]) -> Object {
        Object::Group(Members { members: members.iter().map(|m| (*m, 1)).collect(), resilient: None })
    }

    fn vip(n: u8) -> Prefix {
        Prefix::host(std::net::IpAddr::from([198, 51, 100, n]))
    }

    /// Groups 101, 102, … of these members, each with a route.
    fn rows(groups: &[&[u32]]) -> Rows {
        let mut rows = Rows::default();
        for (i, members) in (1..).zip(groups) {
            rows.set_object(100 + u32::from(i), group(members));
            rows.set_route(vip(i), Via::Object(100 + u32::from(i)));
        }
        for id in 1..9 {
            let gateway = std::net::IpAddr::from([192, 0, 2, u8::try_from(id).unwrap()]);
            rows.set_object(id, Object::Single { gateway, interface: 7 });
        }
        rows
    }

    fn targets(groups: &[(u8, &[u32])]) -> Vec<(Prefix, Option<Target>)> {
        let target = |&(n, members): &(u8, &[u32])| {
            let id = 100 + u32::from(n);
            let some = Target {
                hops: Vec::new(),
                group: Some((id, group(members))),
                twin: None,
                via: Via::Object(id),
            };
            (vip(n), (!members.is_empty()).then_some(some))
        };
        groups.iter().map(target).collect()
    }

    fn leaving(rows: &Rows, groups: &[(u8, &[u32])]) -> Vec<u32> {
        rows.leaving(&targets(groups)).0.into_keys().collect()
    }

    #[test]
    fn the_heir_of_one_that_leaves_stays_wherever_it_was() {
        let mut rows = rows(&[&[1, 2, 3, 4], &[2, 3, 4]]);
        assert_eq!(
            rows.leaving(&targets(&[(1, &[1, 3, 4]), (2, &[3, 4])])).0,
            [(2, None)].into(),
            "few buckets"
        );
        for (id, buckets) in [(101, 4096), (102, 4096)] {
            let Some(group) = rows.group(id).cloned() else { panic!() };
            let resilient = Some(Resilient::new(buckets, Duration::ZERO, Duration::ZERO));
            rows.set_object(id, Object::Group(Members { resilient, ..group }));
        }
        let heirs = |rows: &Rows, groups: &[(u8, &[u32])]| rows.leaving(&targets(groups)).0;
        assert_eq!(heirs(&rows, &[(1, &[1, 3, 4]), (2, &[3, 4])]), [(2, Some(4))].into());
        assert_eq!(heirs(&rows, &[(1, &[1, 3]), (2, &[3])]), [(2, Some(3)), (4, Some(3))].into());
        assert_eq!(heirs(&rows, &[(1, &[1, 4]), (2, &[3])]), [(2, None)].into(), "nobody stays in both");
        let gateway = "fe80::4".parse().unwrap();
        rows.set_object(4, Object::Single { gateway, interface: 7 });
        assert_eq!(heirs(&rows, &[(1, &[1, 3, 4]), (2, &[3, 4])]), [(2, Some(3))].into(), "of its family");
    }

    #[test]
    fn a_hop_that_leaves_everywhere_is_removed_at_once() {
        let mut rows = rows(&[&[1, 2, 3], &[1, 2], &[1, 3]]);
        assert_eq!(leaving(&rows, &[(1, &[1, 3]), (2, &[1])]), [2]);
        assert_eq!(leaving(&rows, &[(1, &[1]), (2, &[1]), (3, &[1])]), [2, 3]);
        rows.take_out(2);
        assert_eq!(rows.objects().get(&101), Some(&group(&[1, 3])));
        assert_eq!(rows.objects().get(&102), Some(&group(&[1])));
        assert_eq!(leaving(&rows, &[(1, &[1]), (3, &[1])]), [3]);
    }

    #[test]
    fn a_group_of_the_same_relations_is_the_same() {
        let weighted = |weights: &[u16]| {
            let members = (1..).zip(weights.iter().copied()).collect();
            Object::Group(Members { members, resilient: None })
        };
        let mut rows = Rows::default();
        rows.set_object(101, weighted(&[21845, 65535]));
        assert!(rows.holds(101, &weighted(&[1, 3])));
        for other in [&[1, 2][..], &[3, 1], &[1], &[1, 3, 1], &[]] {
            assert!(!rows.holds(101, &weighted(other)), "{other:?}");
        }
        assert!(!rows.holds(102, &weighted(&[1, 3])));
    }

    #[test]
    fn a_hop_that_somebody_still_wants_stays() {
        let rows = rows(&[&[1, 2, 3], &[1, 2]]);
        assert!(leaving(&rows, &[(1, &[1, 3])]).is_empty(), "the second has it");
        assert!(leaving(&rows, &[(1, &[1, 3]), (2, &[1, 2])]).is_empty());
        assert!(leaving(&rows, &[(1, &[1, 4]), (2, &[1])]).is_empty(), "the first is another for a moment");
        assert!(leaving(&rows, &[(1, &[4]), (2, &[1])]).is_empty(), "the first would be empty for a moment");
        assert!(
            leaving(&rows, &[(1, &[1, 3]), (2, &[])]).is_empty(),
            "the second has it until its route is gone"
        );
    }

    #[test]
    fn groups_without_a_route_do_not_keep_it() {
        let mut rows = rows(&[&[1, 2], &[2]]);
        rows.remove_route(&vip(2));
        assert_eq!(leaving(&rows, &[(1, &[1])]), [2]);
        rows.take_out(2);
        assert_eq!(rows.group(102), None, "with its last next hop the group went, too");
    }
}
