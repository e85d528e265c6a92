//! What a VIP is to be, and why: one look at its health, its drain file, its addresses and its past.

use std::net::IpAddr;

use super::{Alarm, AnnounceOutput, Announcer, Reason, VipState, Watching, set};
use crate::health::Health;
use crate::machine::Time;
use crate::node::LocalAddress;
use crate::plan::{CheckId, FailAction};

impl Announcer {
    /// Evaluates one VIP anew and says what changed.
    pub(super) fn decide(&mut self, now: Time, v: usize, out: &mut Vec<AnnounceOutput>) {
        let vip = &self.vips[v];
        let health = vip.plan.policy.evaluate(&|name: &str| self.health(vip, name));
        let missing = self.missing(vip);
        let (was, view) = (vip.view.health, &vip.view);
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
        let view = &mut self.vips[v].view;
        (view.health, view.was_healthy, view.unhealthy_since, view.missing) =
            (health, was_healthy, unhealthy_since, since);
        self.unknown -= usize::from(was == Health::Unknown);
        self.unknown += usize::from(health == Health::Unknown);
        if let Some(renewals) = renewals {
            self.renewing -= usize::from(!view.renewals.is_empty());
            self.renewing += usize::from(!renewals.is_empty());
            view.renewals = renewals;
        }
        if was == Health::Healthy
            && health == Health::Unhealthy
            && let Some(held) = view.damper.as_mut().and_then(|d| d.down(now))
        {
            out.push(AnnounceOutput::Damped(self.vips[v].plan.name.clone(), held));
        }
        self.renew(v);
        self.press(v, missing.is_none(), out);
        let (state, reason) = self.judge(now, &self.vips[v], missing);
        let Watching { plan, view, .. } = &mut self.vips[v];
        if view.reason != reason && (view.state != state || kind(&view.reason) != kind(&reason)) {
            view.reason = reason.clone();
        }
        if view.state != state {
            let from = view.state;
            view.state = state;
            view.since = now;
            view.transitions += 1;
            view.entered[state as usize] += 1;
            out.push(AnnounceOutput::Vip { name: plan.name.clone(), from, to: state, reason });
        }
        self.ask(v, out);
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

    fn judge(&self, now: Time, vip: &Watching, missing: Option<IpAddr>) -> (VipState, Reason) {
        let Watching { plan, view, .. } = vip;
        let unhealthy =
            || Reason::Unhealthy(view.turned_by.clone(), self.last_words(view.turned_by.as_ref()));
        if let Some(why) = &self.stopping {
            return (VipState::Withdrawn, Reason::Stopping(why.clone()));
        }
        if !view.was_healthy {
            let reason = match view.health {
                Health::Unhealthy if plan.fail_action == FailAction::Withdraw => unhealthy(),
                Health::Unhealthy => Reason::NeverHealthy,
                _ => Reason::Initial,
            };
            return (VipState::Withdrawn, reason);
        }
        if view.health != Health::Healthy {
            if plan.fail_action == FailAction::Withdraw {
                return (VipState::Withdrawn, unhealthy());
            }
            if let (Some(limit), Some(since)) = (plan.withdraw_after, view.unhealthy_since)
                && now.since(since) >= limit
            {
                return (VipState::Withdrawn, Reason::WithdrawAfter(limit));
            }
            return self.with_address(now, vip, missing, (VipState::Pessimised, unhealthy()));
        }
        if let Some(held) = view.held(now) {
            let state = match plan.fail_action {
                FailAction::Withdraw => VipState::Withdrawn,
                FailAction::LowerPriority => VipState::Pessimised,
            };
            return self.with_address(now, vip, missing, (state, Reason::Damped(held)));
        }
        let healthy = match view.file {
            true => (VipState::Pessimised, Reason::LowerPriorityFile),
            false => (VipState::Announced, Reason::Healthy(view.turned_by.clone())),
        };
        self.with_address(now, vip, missing, healthy)
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
        if let Some(pending) = vip.managed.iter().find(|a| !self.addresses.contains(a)) {
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
    fn missing(&self, vip: &Watching) -> Option<IpAddr> {
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
                Reason::AddressPending(_) | Reason::AddressMissing(..) | Reason::AddressBack(_)
            );
        let wanted = announces || (vip.checked && self.stopping.is_none());
        if wanted != vip.view.asked {
            vip.view.asked = wanted;
            out.extend(vip.managed.iter().map(|a| AnnounceOutput::Address(a.clone(), wanted)));
        }
    }

    /// The next moment at which the VIP changes by itself.
    fn alarm(&self, now: Time, vip: &Watching) -> Option<Time> {
        if self.stopping.is_some() {
            return None;
        }
        let Watching { plan, view, .. } = vip;
        let limit =
            plan.withdraw_after.filter(|_| plan.fail_action == FailAction::LowerPriority && view.was_healthy);
        let stage = view.unhealthy_since.zip(limit).map(|(since, limit)| since + limit);
        let missed = view.missing.map(|at| at + vip.patience);
        let held = view.held(now).map(|held| held.until);
        [stage, missed, held].into_iter().flatten().filter(|&at| at > now).min()
    }

    pub(super) fn last_words(&self, id: Option<&CheckId>) -> String {
        let last = id.and_then(|id| self.gate(id)).and_then(crate::health::Gate::last);
        last.map_or_else(String::new, |(_, v)| v.detail.clone())
    }
}

/// Reasons of one kind differ only in the words of a check; the first words are kept until the kind changes.
fn kind(reason: &Reason) -> std::mem::Discriminant<Reason> {
    std::mem::discriminant(reason)
}
