//! What a VIP is to be, and why: one look at its health, its drain, its addresses and its past.

use std::net::IpAddr;

use super::{
    Alarm, AnnounceOutput, Announcer, Blame, Draining, End, Reason, Share, Turn, VipState, Watching, set,
};
use crate::health::Health;
use crate::machine::Time;
use crate::node::LocalAddress;
use crate::plan::{DrainMode, FailAction};

impl Announcer {
    /// Evaluates one VIP anew and says what changed.
    pub(super) fn decide(&mut self, now: Time, v: usize, out: &mut Vec<AnnounceOutput>) {
        self.decide_by(now, v, None, out);
    }

    /// The same, because check `by` flipped.
    pub(super) fn decide_by(
        &mut self,
        now: Time,
        v: usize,
        by: Option<usize>,
        out: &mut Vec<AnnounceOutput>,
    ) {
        let Watching { plan, view, .. } = &mut self.vips[v];
        if let Some(share) = &mut view.share
            && share.tick(now)
        {
            out.push(AnnounceOutput::Share(plan.name.clone(), share.told()));
        }
        let vip = &self.vips[v];
        let evaluated = vip.plan.policy.evaluate(&|name: &str| self.health(vip, name));
        let missing = self.missing(vip);
        let (was, view) = (vip.view.health, &vip.view);
        let carried = view.carried && evaluated == Health::Unknown;
        let health = if carried { was } else { evaluated };
        let was_healthy = view.was_healthy || health == Health::Healthy;
        let unhealthy_since =
            if health == Health::Healthy { None } else { view.unhealthy_since.or(Some(now)) };
        let since = missing.map(|_| view.missing.unwrap_or(now));
        // What the checks said while the address was not missed yet still counts.
        let returned = view.missing.filter(|&at| missing.is_none() && now.since(at) >= vip.patience);
        let renewals: Option<Vec<(usize, u64)>> = returned.map(|_| {
            let goods = vip.gates.values().map(|&c| {
                let gate = &self.checks[c].gate;
                (c, gate.runs().good + u64::from(gate.rise()))
            });
            goods.collect()
        });
        let Watching { view, gates, .. } = &mut self.vips[v];
        if was != health {
            let name = by.and_then(|by| gates.iter().find(|&(_, c)| *c == by));
            view.turned_by = name.map(|(name, _)| name.clone());
        }
        (view.health, view.was_healthy, view.unhealthy_since, view.missing, view.carried) =
            (health, was_healthy, unhealthy_since, since, carried);
        self.unknown -= usize::from(was == Health::Unknown);
        self.unknown += usize::from(health == Health::Unknown);
        if let Some(renewals) = renewals {
            self.renewing -= usize::from(!view.renewals.is_empty());
            self.renewing += usize::from(!renewals.is_empty());
            view.renewals = renewals;
        }
        if was == Health::Healthy
            && health == Health::Unhealthy
            // A service that is stopped while nobody needs it does not flap.
            && view.drain.is_none()
            && let Some(held) = view.damper.as_mut().and_then(|d| d.down(now))
        {
            out.push(AnnounceOutput::Damped(self.vips[v].plan.name.clone(), held));
        }
        self.renew(v);
        self.press(v, missing.is_none(), out);
        self.end_if_late(now, v, out);
        let (failed, held) = (self.vips[v].view.fails, self.vips[v].view.stay);
        self.ask_floor(now, v);
        let (mut state, mut reason) = self.judge(now, &self.vips[v], missing);
        let drains = self.vips[v].view.drain.as_ref().is_some_and(Draining::goes_on);
        if drains && state == VipState::Withdrawn && !matches!(reason, Reason::Draining(_)) {
            // There is nothing to wait for any more.
            self.end_drain(v, End::Absent, out);
            (state, reason) = self.judge(now, &self.vips[v], missing);
        }
        if matches!(reason, Reason::Healthy(_)) && !matches!(self.vips[v].view.reason, Reason::Healthy(_)) {
            let turn = Turn::after(&self.vips[v].view.reason, self.turned(&self.vips[v]));
            self.vips[v].view.turn = turn.clone();
            reason = Reason::Healthy(turn);
        }
        let Watching { plan, view, arriving, .. } = &mut self.vips[v];
        if state == VipState::Withdrawn {
            arriving.clear();
        }
        view.reason = reason.clone();
        if view.state != state {
            let from = view.state;
            view.state = state;
            view.since = now;
            view.transitions += 1;
            view.entered[state as usize] += 1;
            out.push(AnnounceOutput::Vip { name: plan.name.clone(), from, to: state, reason });
        }
        if view.fails != failed || view.stay != held {
            out.push(AnnounceOutput::Floor(plan.name.clone(), view.stay));
        }
        self.ask(v, out);
        self.say_count(v, out);
        let alarm = self.alarm(now, &self.vips[v]);
        set(&mut self.alarms, &mut self.vips[v].alarm, alarm, Alarm::Vip(v));
    }

    /// The health of a check by its name in the policy.
    fn health(&self, vip: &Watching, name: &str) -> Health {
        vip.gates.get(name).map_or(Health::Unknown, |&c| self.checks[c].gate.health())
    }

    /// Ends the wait of a VIP whose address came back, if its policy holds on what was said since.
    fn renew(&mut self, v: usize) {
        let vip = &self.vips[v];
        if vip.view.renewals.is_empty() {
            return;
        }
        let since = vip.plan.policy.evaluate(&|name: &str| match self.health(vip, name) {
            Health::Healthy => {
                let c = vip.gates[name];
                let enough =
                    |&(of, goods): &(usize, u64)| of != c || self.checks[c].gate.runs().good >= goods;
                if vip.view.renewals.iter().all(enough) { Health::Healthy } else { Health::Unknown }
            }
            health => health,
        });
        if since == Health::Healthy {
            self.vips[v].view.renewals = Vec::new();
            self.renewing -= 1;
        }
    }

    /// Has the checks hurry while the VIP waits for them with its address here.
    fn press(&mut self, v: usize, here: bool, out: &mut Vec<AnnounceOutput>) {
        let vip = &mut self.vips[v];
        let presses = here && !vip.view.renewals.is_empty() && self.stopping.is_none();
        if presses == vip.view.presses {
            return;
        }
        vip.view.presses = presses;
        for c in vip.gates.values().copied().collect::<Vec<_>>() {
            let was_hurried = self.checks[c].gate.is_hurried();
            self.checks[c].gate.press(presses);
            self.say_pace(c, was_hurried, out);
            self.rearm(c);
        }
    }

    /// The state that a VIP is to have at `now`, and why.
    pub(super) fn judge(&self, now: Time, vip: &Watching, missing: Option<IpAddr>) -> (VipState, Reason) {
        if let Some(why) = &self.stopping {
            return (VipState::Withdrawn, Reason::Stopping(why.clone()));
        }
        let Some(drain) = &vip.view.drain else {
            return match &self.leaving {
                Some(why) => (VipState::Withdrawn, Reason::Stopping(why.clone())),
                None => self.stand(now, vip, missing),
            };
        };
        if let Some(end) = &drain.over {
            return (VipState::Withdrawn, Reason::Drained(drain.cause.clone(), end.clone()));
        }
        if vip.plan.drain.mode == DrainMode::Withdraw {
            return (VipState::Withdrawn, Reason::Draining(drain.cause.clone()));
        }
        match self.stand(now, vip, missing) {
            (VipState::Withdrawn, reason) => (VipState::Withdrawn, reason),
            (state, _) => (state, Reason::Draining(drain.cause.clone())),
        }
    }

    /// The state that a VIP would have if nobody wanted it to leave, and why.
    fn stand(&self, now: Time, vip: &Watching, missing: Option<IpAddr>) -> (VipState, Reason) {
        let Watching { plan, view, .. } = vip;
        let unhealthy = || Reason::Unhealthy(self.blame(vip));
        if !view.was_healthy {
            let reason = match view.health {
                Health::Unhealthy if plan.fail_action == FailAction::Withdraw => unhealthy(),
                Health::Unhealthy => Reason::NeverHealthy(self.blame(vip)),
                _ => Reason::Initial(self.waiting(vip)),
            };
            return (VipState::Withdrawn, reason);
        }
        if view.health != Health::Healthy {
            if plan.fail_action == FailAction::Withdraw {
                return self.leave(now, vip, missing, unhealthy());
            }
            if let (Some(limit), Some(since)) = (plan.withdraw_after, view.unhealthy_since)
                && now.since(since) >= limit
            {
                return self.leave(now, vip, missing, Reason::WithdrawAfter(limit, self.blame(vip)));
            }
            return self.with_address(now, vip, missing, (VipState::Pessimised, unhealthy()));
        }
        if let Some(held) = view.held(now) {
            return match plan.fail_action {
                FailAction::Withdraw => self.leave(now, vip, missing, Reason::Damped(held)),
                FailAction::LowerPriority => {
                    self.with_address(now, vip, missing, (VipState::Pessimised, Reason::Damped(held)))
                }
            };
        }
        let healthy = match view.file && !plan.drain.on_file {
            true => (VipState::Pessimised, Reason::LowerPriorityFile),
            false => (VipState::Announced, Reason::Healthy(self.brought_back(vip))),
        };
        self.with_address(now, vip, missing, healthy)
    }

    /// Withdrawn for this reason, unless the floor holds it.
    fn leave(&self, now: Time, vip: &Watching, missing: Option<IpAddr>, why: Reason) -> (VipState, Reason) {
        match self.holds(now, vip) {
            Some(stay) => {
                let held = (VipState::Pessimised, Reason::Floor(stay, Box::new(why)));
                self.with_address(now, vip, missing, held)
            }
            None => (VipState::Withdrawn, why),
        }
    }

    /// The checks that make the policy's value what it is, and what they say.
    fn deciding<'a>(&self, vip: &'a Watching) -> Vec<&'a str> {
        vip.plan.policy.deciding(&|name: &str| self.health(vip, name))
    }

    /// The check that turned the policy, if it is one of those that decide.
    fn turned(&self, vip: &Watching) -> Turn {
        let deciding = self.deciding(vip);
        match vip.view.turned_by.as_deref().filter(|name| deciding.contains(name)) {
            Some(name) => Turn::Check(name.to_owned(), self.health(vip, name)),
            None => Turn::Checks(deciding.into_iter().map(str::to_owned).collect()),
        }
    }

    /// What brought a VIP back, as far as it still holds it up.
    fn brought_back(&self, vip: &Watching) -> Turn {
        if vip.view.carried {
            return Turn::Kept(self.deciding(vip).into_iter().map(str::to_owned).collect());
        }
        match &vip.view.turn {
            Turn::Check(..) | Turn::Checks(_) => self.turned(vip),
            other => other.clone(),
        }
    }

    /// The checks for which the policy does not hold.
    fn blame(&self, vip: &Watching) -> Blame {
        let deciding = self.deciding(vip);
        let turned = vip.view.turned_by.as_deref().filter(|name| deciding.contains(name));
        let check = turned.or(deciding.first().copied()).unwrap_or_default();
        let others = deciding.iter().filter(|name| **name != check).map(|name| (*name).to_owned()).collect();
        let words = vip.gates.get(check).map_or("", |&c| self.checks[c].gate.words()).to_owned();
        Blame { check: check.to_owned(), health: self.health(vip, check), words, others }
    }

    /// The checks without which the policy is not decided; empty while no check of the VIP has decided.
    fn waiting(&self, vip: &Watching) -> Vec<String> {
        if vip.gates.values().all(|&c| self.checks[c].gate.health() == Health::Unknown) {
            return Vec::new();
        }
        self.deciding(vip).into_iter().map(str::to_owned).collect()
    }

    /// Withdrawn instead, while an address that must be here is not.
    fn with_address(
        &self,
        now: Time,
        vip: &Watching,
        missing: Option<IpAddr>,
        otherwise: (VipState, Reason),
    ) -> (VipState, Reason) {
        if otherwise.0 == VipState::Withdrawn {
            return otherwise;
        }
        let pending = |a: &&LocalAddress| !self.addresses.contains(a) && !vip.arriving.contains(a);
        if let Some(pending) = vip.managed.iter().find(pending) {
            return (VipState::Withdrawn, Reason::AddressPending(pending.address));
        }
        match (missing, vip.view.missing) {
            // One that is missing for a moment takes nothing back, and is no reason to announce.
            (Some(a), Some(at)) if now.since(at) >= vip.patience || vip.view.state == VipState::Withdrawn => {
                (VipState::Withdrawn, Reason::AddressMissing(a, vip.plan.local_interface.clone()))
            }
            (None, _) if !vip.view.renewals.is_empty() && vip.view.health == Health::Healthy => {
                let address = vip.plan.prefixes.iter().find(|p| p.is_host()).map(|p| p.address());
                match address {
                    Some(address) => (VipState::Withdrawn, Reason::AddressBack(address)),
                    None => otherwise,
                }
            }
            _ => otherwise,
        }
    }

    /// The first required address that is not here.
    pub(super) fn missing(&self, vip: &Watching) -> Option<IpAddr> {
        // A managed one is put there by us, and waited for by itself.
        if !vip.plan.require_local_address || vip.plan.manage.is_some() {
            return None;
        }
        let here = |address: IpAddr| match &vip.plan.local_interface {
            Some(interface) => {
                self.addresses.contains(&LocalAddress { address, interface: interface.clone() })
            }
            None => {
                let first = LocalAddress { address, interface: String::new() };
                self.addresses.range(first..).next().is_some_and(|a| a.address == address)
            }
        };
        let hosts = vip.plan.prefixes.iter().filter(|p| p.is_host());
        hosts.map(|p| p.address()).find(|&a| !here(a))
    }

    /// Asks for the managed addresses of a VIP that is, or is about to be, announced, and for those that its own checks
    /// connect to; or says that they are not needed any more.
    fn ask(&mut self, v: usize, out: &mut Vec<AnnounceOutput>) {
        let vip = &mut self.vips[v];
        let announces = vip.view.state != VipState::Withdrawn
            || matches!(
                vip.view.reason,
                Reason::AddressPending(_)
                    | Reason::AddressMissing(..)
                    | Reason::AddressBack(_)
                    | Reason::Draining(_)
            );
        let stays = self.stopping.is_none() && self.leaving.is_none() && vip.view.drain.is_none();
        let wanted = announces || (vip.checked && stays);
        if wanted != vip.view.asked {
            vip.view.asked = wanted;
            out.extend(vip.managed.iter().map(|a| AnnounceOutput::Address(a.clone(), wanted)));
        }
    }

    /// The next moment at which the VIP changes by itself.
    pub(super) fn alarm(&self, now: Time, vip: &Watching) -> Option<Time> {
        if self.stopping.is_some() {
            return None;
        }
        let Watching { plan, view, .. } = vip;
        let limit =
            plan.withdraw_after.filter(|_| plan.fail_action == FailAction::LowerPriority && view.was_healthy);
        let stage = view.unhealthy_since.zip(limit).map(|(since, limit)| since + limit);
        let missed = view.missing.map(|at| at + vip.patience);
        let held = view.held(now).map(|held| held.until);
        let drained = view.drain.as_ref().filter(|d| Draining::goes_on(d)).map(|d| d.until);
        let share = view.share.as_ref().and_then(Share::deadline);
        let gone = view.let_go.zip(plan.floor).map(|(since, floor)| since + floor.settle);
        [stage, missed, held, drained, share, gone].into_iter().flatten().filter(|&at| at > now).min()
    }
}
