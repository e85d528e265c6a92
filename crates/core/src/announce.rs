//! Role: verdicts to routes. Decides for each VIP whether it is withdrawn, announced or pessimised, and why.
//!
//! It holds the gates, the drain files and what is known of the host's addresses. It knows nothing of peers:
//! [`Announcer::rib`] is what any of them should be told. A VIP starts withdrawn, and one that was never healthy stays so.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::bgp::Rib;
use crate::health::{Gate, Health, Verdict};
use crate::machine::{Machine, Time, earliest};
use crate::node::LocalAddress;
use crate::plan::{Attributes, Check, CheckId, FailAction, Vip};

/// What a VIP is to its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VipState {
    /// Not told to anybody.
    Withdrawn,
    /// Told with its normal attributes.
    Announced,
    /// Told with its normal and its lower-priority attributes together.
    #[serde(rename = "pessimized")]
    Pessimised,
}

impl fmt::Display for VipState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Withdrawn => "withdrawn",
            Self::Announced => "announced",
            Self::Pessimised => "pessimized",
        })
    }
}

/// Why a VIP is what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// No check decided anything yet.
    Initial,
    /// The policy holds; the check that turned it, if one did.
    Healthy(Option<CheckId>),
    /// The policy does not hold; the check that turned it and its last words.
    Unhealthy(Option<CheckId>, String),
    /// It was never healthy since the start, so there is nothing to pessimise.
    NeverHealthy,
    /// Unhealthy for so long that the second stage withdraws it.
    WithdrawAfter(Duration),
    /// The drain file is there.
    LowerPriorityFile,
    /// An address of it is not on this host, or not usable.
    AddressMissing(IpAddr, Option<String>),
    /// Its address is being put on the interface.
    AddressPending(IpAddr),
    /// The daemon leaves.
    Stopping(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Initial => f.write_str("initial: no check has decided yet"),
            Self::Healthy(None) => f.write_str("healthy"),
            Self::Healthy(Some(id)) => write!(f, "{}: rise threshold reached", id.check),
            Self::Unhealthy(None, _) => f.write_str("unhealthy"),
            Self::Unhealthy(Some(id), detail) => {
                write!(f, "{}: fall threshold reached: {detail}", id.check)
            }
            Self::NeverHealthy => f.write_str("unhealthy, and never healthy since the start"),
            Self::WithdrawAfter(d) => write!(f, "unhealthy for {} s (withdraw_after)", d.as_secs_f64()),
            Self::LowerPriorityFile => f.write_str("lower_priority_file exists"),
            Self::AddressMissing(a, None) => write!(f, "address {a} is not on this host, or not usable"),
            Self::AddressMissing(a, Some(i)) => write!(f, "address {a} is not on {i}, or not usable"),
            Self::AddressPending(a) => write!(f, "address {a} is being added"),
            Self::Stopping(why) => write!(f, "stopping: {why}"),
        }
    }
}

/// What happens to the announcer.
#[derive(Debug, Clone)]
pub enum AnnounceInput {
    /// A verdict of a check.
    Reported(CheckId, Verdict),
    /// The host's usable addresses.
    Addresses(BTreeSet<LocalAddress>),
    /// Whether a VIP's drain file exists.
    LowerPriorityFile(String, bool),
    /// Withdraw everything, for this reason.
    Stop(String),
}

/// What the announcer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnnounceOutput {
    /// A check's health flipped.
    Check(CheckId, Health, String),
    /// A VIP's state changed, so [`Announcer::rib`] may have.
    Vip {
        /// The VIP.
        name: String,
        /// Its state before.
        from: VipState,
        /// Its state.
        to: VipState,
        /// Why.
        reason: Reason,
    },
}

/// One VIP as it stands.
#[derive(Debug, Clone)]
pub struct VipView {
    /// Its state.
    pub state: VipState,
    /// Why.
    pub reason: Reason,
    /// Since when.
    pub since: Time,
    /// Health of its policy.
    pub health: Health,
    /// State changes since the start.
    pub transitions: u64,
    file: bool,
    was_healthy: bool,
    unhealthy_since: Option<Time>,
    turned_by: Option<CheckId>,
}

/// The announcer role.
#[derive(Debug)]
pub struct Announcer {
    plans: BTreeMap<String, Vip>,
    vips: BTreeMap<String, VipView>,
    gates: BTreeMap<CheckId, Gate>,
    addresses: BTreeSet<LocalAddress>,
    stopping: Option<String>,
}

impl Announcer {
    /// An announcer whose VIPs are all withdrawn.
    pub fn new(now: Time, vips: &BTreeMap<String, Vip>, checks: &BTreeMap<CheckId, Check>) -> Self {
        let view = |name: &String| {
            let view = VipView {
                state: VipState::Withdrawn,
                reason: Reason::Initial,
                since: now,
                health: Health::Unknown,
                transitions: 0,
                file: false,
                was_healthy: false,
                unhealthy_since: None,
                turned_by: None,
            };
            (name.clone(), view)
        };
        let gate = |(id, c): (&CheckId, &Check)| (id.clone(), Gate::new(now, c.rise, c.fall, c.stale()));
        Self {
            plans: vips.clone(),
            vips: vips.keys().map(view).collect(),
            gates: checks.iter().map(gate).collect(),
            addresses: BTreeSet::new(),
            stopping: None,
        }
    }

    /// What a peer that is told the VIPs in `names` (`None`: all) should know.
    pub fn rib(&self, names: Option<&BTreeSet<String>>) -> Rib {
        let mut rib = Rib::new();
        for (name, view) in &self.vips {
            let Some(attributes) = self.attributes(name, view.state) else { continue };
            if names.is_none_or(|n| n.contains(name)) {
                rib.extend(self.plans[name].prefixes.iter().map(|&p| (p, attributes.clone())));
            }
        }
        rib
    }

    /// The attributes that go with a state; `None` while withdrawn.
    pub fn attributes(&self, vip: &str, state: VipState) -> Option<Attributes> {
        let plan = self.plans.get(vip)?;
        match state {
            VipState::Withdrawn => None,
            VipState::Announced => Some(plan.announce.clone()),
            VipState::Pessimised => Some(plan.announce.plus(&plan.lower_priority)),
        }
    }

    /// Whether every VIP's health is known, so that what is announced is the whole truth.
    pub fn is_settled(&self) -> bool {
        self.vips.values().all(|v| v.health != Health::Unknown)
    }

    /// The VIPs as they stand, by name.
    pub const fn vips(&self) -> &BTreeMap<String, VipView> {
        &self.vips
    }

    /// The gate of a check.
    pub fn gate(&self, id: &CheckId) -> Option<&Gate> {
        self.gates.get(id)
    }

    /// The managed addresses that must be on this host now: those of VIPs that are, or are about to be, announced,
    /// and those that the VIP's own checks connect to.
    pub fn addresses_wanted(&self, checks: &BTreeMap<CheckId, Check>) -> BTreeSet<LocalAddress> {
        let mut wanted = BTreeSet::new();
        for (name, vip) in &self.plans {
            let Some(interface) = &vip.manage else { continue };
            let view = &self.vips[name];
            let announces = view.state != VipState::Withdrawn
                || matches!(view.reason, Reason::AddressPending(_) | Reason::AddressMissing(..));
            for prefix in vip.prefixes.iter().filter(|p| p.is_host()) {
                let checked = self.stopping.is_none()
                    && checks
                        .iter()
                        .any(|(id, c)| id.vip == *name && c.probe.address() == Some(prefix.address()));
                if announces || checked {
                    wanted.insert(LocalAddress { address: prefix.address(), interface: interface.clone() });
                }
            }
        }
        wanted
    }

    /// Evaluates one VIP anew and says what changed.
    fn decide(&mut self, now: Time, name: &str, out: &mut Vec<AnnounceOutput>) {
        let (Some(plan), Some(view)) = (self.plans.get(name), self.vips.get(name)) else { return };
        let of = |check: &str| {
            let id = CheckId { vip: name.to_owned(), check: check.to_owned() };
            self.gates.get(&id).map_or(Health::Unknown, Gate::health)
        };
        let health = plan.policy.evaluate(&of);
        let was_healthy = view.was_healthy || health == Health::Healthy;
        let unhealthy_since =
            if health == Health::Healthy { None } else { view.unhealthy_since.or(Some(now)) };
        let (state, reason) = self.judge(now, plan, view, health, was_healthy, unhealthy_since);
        let Some(view) = self.vips.get_mut(name) else { return };
        view.health = health;
        view.was_healthy = was_healthy;
        view.unhealthy_since = unhealthy_since;
        if view.reason != reason && (view.state != state || reason_kind(&view.reason) != reason_kind(&reason))
        {
            view.reason = reason.clone();
        }
        if view.state != state {
            let from = view.state;
            view.state = state;
            view.since = now;
            view.transitions += 1;
            out.push(AnnounceOutput::Vip { name: name.to_owned(), from, to: state, reason });
        }
    }

    fn judge(
        &self,
        now: Time,
        plan: &Vip,
        view: &VipView,
        health: Health,
        was_healthy: bool,
        unhealthy_since: Option<Time>,
    ) -> (VipState, Reason) {
        let by = || view.turned_by.clone();
        if let Some(why) = &self.stopping {
            return (VipState::Withdrawn, Reason::Stopping(why.clone()));
        }
        if !was_healthy {
            let reason = match health {
                Health::Unhealthy if plan.fail_action == FailAction::Withdraw => {
                    Reason::Unhealthy(by(), self.last_words(by().as_ref()))
                }
                Health::Unhealthy => Reason::NeverHealthy,
                _ => Reason::Initial,
            };
            return (VipState::Withdrawn, reason);
        }
        if health != Health::Healthy {
            let reason = Reason::Unhealthy(by(), self.last_words(by().as_ref()));
            if plan.fail_action == FailAction::Withdraw {
                return (VipState::Withdrawn, reason);
            }
            if let (Some(limit), Some(since)) = (plan.withdraw_after, unhealthy_since)
                && now.since(since) >= limit
            {
                return (VipState::Withdrawn, Reason::WithdrawAfter(limit));
            }
            return self.with_address(plan, VipState::Pessimised, reason);
        }
        if view.file {
            return self.with_address(plan, VipState::Pessimised, Reason::LowerPriorityFile);
        }
        self.with_address(plan, VipState::Announced, Reason::Healthy(by()))
    }

    /// Withdrawn instead, while an address that must be here is not.
    fn with_address(&self, plan: &Vip, state: VipState, reason: Reason) -> (VipState, Reason) {
        for prefix in plan.prefixes.iter().filter(|p| p.is_host()) {
            let here = |interface: Option<&String>| {
                self.addresses
                    .iter()
                    .any(|a| a.address == prefix.address() && interface.is_none_or(|i| *i == a.interface))
            };
            if plan.manage.is_some() && !here(plan.manage.as_ref()) {
                return (VipState::Withdrawn, Reason::AddressPending(prefix.address()));
            }
            if plan.require_local_address && !here(plan.local_interface.as_ref()) {
                let reason = Reason::AddressMissing(prefix.address(), plan.local_interface.clone());
                return (VipState::Withdrawn, reason);
            }
        }
        (state, reason)
    }

    fn last_words(&self, id: Option<&CheckId>) -> String {
        let last = id.and_then(|id| self.gates.get(id)).and_then(Gate::last);
        last.map_or_else(String::new, |(_, v)| v.detail.clone())
    }

    fn flipped(&mut self, now: Time, id: CheckId, to: Health, out: &mut Vec<AnnounceOutput>) {
        let detail = self.last_words(Some(&id));
        out.push(AnnounceOutput::Check(id.clone(), to, detail));
        if let Some(view) = self.vips.get_mut(&id.vip) {
            view.turned_by = Some(id.clone());
        }
        self.decide(now, &id.vip, out);
    }

    fn decide_all(&mut self, now: Time, out: &mut Vec<AnnounceOutput>) {
        for name in self.plans.keys().cloned().collect::<Vec<_>>() {
            self.decide(now, &name, out);
        }
    }

    /// When the second stage of a VIP is due.
    fn second_stage(&self, name: &str, view: &VipView) -> Option<Time> {
        let plan = self.plans.get(name)?;
        let limit = plan.withdraw_after.filter(|_| plan.fail_action == FailAction::LowerPriority)?;
        let pending =
            view.was_healthy && self.stopping.is_none() && !matches!(view.reason, Reason::WithdrawAfter(_));
        view.unhealthy_since.filter(|_| pending).map(|since| since + limit)
    }
}

/// Reasons of one kind differ only in the words of a check; the first words are kept until the kind changes.
fn reason_kind(reason: &Reason) -> std::mem::Discriminant<Reason> {
    std::mem::discriminant(reason)
}

impl Machine for Announcer {
    type Input = AnnounceInput;
    type Output = AnnounceOutput;

    fn handle(&mut self, now: Time, input: AnnounceInput, out: &mut Vec<AnnounceOutput>) {
        match input {
            AnnounceInput::Reported(id, verdict) => {
                if let Some(to) = self.gates.get_mut(&id).and_then(|g| g.push(now, verdict)) {
                    self.flipped(now, id, to, out);
                }
            }
            AnnounceInput::Addresses(addresses) => {
                self.addresses = addresses;
                self.decide_all(now, out);
            }
            AnnounceInput::LowerPriorityFile(name, exists) => {
                if let Some(view) = self.vips.get_mut(&name) {
                    view.file = exists;
                    self.decide(now, &name, out);
                }
            }
            AnnounceInput::Stop(why) => {
                self.stopping.get_or_insert(why);
                self.decide_all(now, out);
            }
        }
    }

    fn tick(&mut self, now: Time, out: &mut Vec<AnnounceOutput>) {
        let flips: Vec<(CheckId, Health)> = self
            .gates
            .iter_mut()
            .filter_map(|(id, gate)| gate.tick(now).map(|to| (id.clone(), to)))
            .collect();
        for (id, to) in flips {
            self.flipped(now, id, to, out);
        }
        let due: Vec<String> = self
            .vips
            .iter()
            .filter(|(name, view)| self.second_stage(name, view).is_some_and(|at| at <= now))
            .map(|(name, _)| name.clone())
            .collect();
        for name in due {
            self.decide(now, &name, out);
        }
    }

    fn deadline(&self) -> Option<(Time, &'static str)> {
        let gates = self.gates.values().filter_map(Gate::deadline).min().map(|t| (t, "silent check"));
        let stage = self.vips.iter().filter_map(|(n, v)| self.second_stage(n, v)).min();
        earliest(gates, stage.map(|t| (t, "withdraw_after")))
    }
}

#[cfg(test)]
mod tests;
