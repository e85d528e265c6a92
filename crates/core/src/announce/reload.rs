//! Another plan for a running announcer: what it does not name stays as it is.
//!
//! A check that asks the same as before keeps its health, whatever its numbers are. One that asks something else, or is new, knows
//! nothing; but a VIP that is announced, or fails, stays what it is until its policy is decided again, by whatever it says then:
//! silence is a bad verdict, so that this does not last. A VIP that is new starts withdrawn, as at the start.

use std::collections::{BTreeMap, BTreeSet};

use super::{Alarm, AnnounceOutput, Announcer, Damper, Numbers, Reason, VipState, Watched, Watching, set};
use crate::health::Health;
use crate::machine::Time;
use crate::node::LocalAddress;
use crate::plan::{CheckId, Plan};

impl Announcer {
    /// Goes on by `new`; it ran by `old` until now.
    pub fn reload(&mut self, now: Time, old: &Plan, new: &Plan, out: &mut Vec<AnnounceOutput>) {
        self.settled |= self.unknown == 0;
        // A VIP that waits for its checks presses those that it has.
        for v in 0..self.vips.len() {
            if std::mem::take(&mut self.vips[v].view.presses) {
                for c in self.vips[v].gates.values() {
                    self.checks[*c].gate.press(false);
                }
            }
        }
        let numbers = Numbers::new(new.checks.keys());
        let (moved, anew) = self.replace_checks(now, old, new, &numbers);
        let mut before: BTreeMap<String, Watching> =
            std::mem::take(&mut self.vips).into_iter().map(|vip| (vip.plan.name.clone(), vip)).collect();
        self.vip_numbers = new.vips.keys().cloned().zip(0..).collect();
        let (mut touched, mut came) = (Vec::new(), Vec::new());
        for (v, (name, plan)) in new.vips.iter().enumerate() {
            let mut vip = Watching::new(now, plan, &new.checks, &numbers);
            for &c in vip.gates.values() {
                self.checks[c].users.push(v);
            }
            match before.remove(name) {
                Some(was) => {
                    let touches = was.plan != *plan || vip.gates.values().any(|c| anew.contains(c));
                    touched.extend(touches.then_some(v));
                    vip.succeed(was, &moved, &self.addresses, (out, &mut came));
                    let (stands, fails) =
                        (vip.view.state != VipState::Withdrawn, vip.view.health == Health::Unhealthy);
                    vip.view.carried |= touches && (stands || fails);
                }
                None => touched.push(v),
            }
            self.vips.push(vip);
        }
        for vip in before.into_values() {
            vip.leave(out);
        }
        // What one VIP gives up another one may have from now on.
        out.append(&mut came);
        self.check_numbers = numbers;
        self.unknown = self.vips.iter().filter(|v| v.view.health == Health::Unknown).count();
        self.renewing = self.vips.iter().filter(|v| !v.view.renewals.is_empty()).count();
        self.doubtful = self.checks.iter().filter(|c| c.gate.is_doubtful()).count();
        self.alarms.clear();
        (0..self.checks.len()).for_each(|c| self.rearm(c));
        for v in 0..self.vips.len() {
            let alarm = self.alarm(now, &self.vips[v]);
            set(&mut self.alarms, &mut self.vips[v].alarm, alarm, Alarm::Vip(v));
        }
        for v in 0..self.vips.len() {
            if touched.binary_search(&v).is_ok() {
                // Who wants it to drain may be another one, and everything else may follow.
                self.follow(now, v, out);
            } else if !self.vips[v].view.renewals.is_empty() {
                self.decide(now, v, out);
            }
        }
    }

    /// Puts the checks of `new` in the place of those of `old`: where each of these is, and which are new or ask something else.
    fn replace_checks(
        &mut self,
        now: Time,
        old: &Plan,
        new: &Plan,
        numbers: &Numbers,
    ) -> (BTreeMap<usize, usize>, BTreeSet<usize>) {
        let (mut moved, mut anew) = (BTreeMap::new(), BTreeSet::new());
        let mut before: BTreeMap<CheckId, (usize, Watched)> = BTreeMap::new();
        for (c, watched) in std::mem::take(&mut self.checks).into_iter().enumerate() {
            before.insert(watched.id.clone(), (c, watched));
        }
        for (id, check) in &new.checks {
            let c = self.checks.len();
            debug_assert_eq!(numbers.of(id), Some(c), "checks are numbered in their order");
            let same = old.checks.get(id).is_some_and(|was| was.asks_as(check));
            match before.remove(id).filter(|_| same) {
                Some((was, mut watched)) => {
                    watched.gate.adopt(check);
                    (watched.users, watched.alarm) = (Vec::new(), None);
                    moved.insert(was, c);
                    self.checks.push(watched);
                }
                None => {
                    anew.insert(c);
                    self.checks.push(Watched::new(now, id, check));
                }
            }
        }
        (moved, anew)
    }
}

impl Watching {
    /// Takes the place of `was`, whose checks are `moved`. What it gives up is said at once, what it asks for goes to `came`.
    fn succeed(
        &mut self,
        was: Self,
        moved: &BTreeMap<usize, usize>,
        here: &BTreeSet<LocalAddress>,
        (out, came): (&mut Vec<AnnounceOutput>, &mut Vec<AnnounceOutput>),
    ) {
        let Self { plan: old, managed, arriving, view, .. } = was;
        let stands = view.state != VipState::Withdrawn;
        self.view = view;
        let view = &mut self.view;
        if view.asked {
            let gone = managed.iter().filter(|a| !self.managed.contains(a));
            out.extend(gone.map(|a| AnnounceOutput::Address(a.clone(), false)));
            for address in self.managed.iter().filter(|a| !managed.contains(a)) {
                if stands && !here.contains(address) {
                    self.arriving.insert(address.clone());
                }
                came.push(AnnounceOutput::Address(address.clone(), true));
            }
        }
        self.arriving.extend(arriving.into_iter().filter(|a| self.managed.contains(a)));
        let renewals = std::mem::take(&mut view.renewals).into_iter();
        view.renewals = renewals.filter_map(|(c, goods)| Some((*moved.get(&c)?, goods))).collect();
        view.turned_by = view.turned_by.take().filter(|name| self.gates.contains_key(name));
        view.file &= self.plan.lower_priority_file.is_some();
        match (&mut view.damper, self.plan.damping) {
            (Some(damper), Some(plan)) => damper.adopt(plan),
            (damper, plan) => *damper = plan.map(Damper::new),
        }
        if self.plan.floor.is_none() {
            (view.fails, view.stay, view.let_go) = (false, None, None);
        }
        if view.counted && old.prefixes != self.plan.prefixes {
            // Others are counted from now on.
            came.push(AnnounceOutput::Count(self.plan.name.clone(), true));
        }
    }

    /// Says what follows from its end.
    fn leave(self, out: &mut Vec<AnnounceOutput>) {
        let Self { plan, managed, view, .. } = self;
        if view.counted {
            out.push(AnnounceOutput::Count(plan.name.clone(), false));
        }
        out.push(AnnounceOutput::Vip {
            name: plan.name,
            from: view.state,
            to: VipState::Withdrawn,
            reason: Reason::Removed,
        });
        if view.asked {
            out.extend(managed.into_iter().map(|a| AnnounceOutput::Address(a, false)));
        }
    }
}
