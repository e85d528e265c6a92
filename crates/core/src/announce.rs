//! Role: verdicts to routes. Decides for each VIP whether it is withdrawn, announced or pessimised, and why.
//!
//! It holds the gates, the drains and what is known of the host's addresses. It knows nothing of peers:
//! [`Announcer::rib`] is what any of them should be told. A VIP starts withdrawn, and one that was never healthy stays so.
//! A verdict that changes nothing costs a look-up and a timer, however many checks and VIPs there are.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::bgp::Rib;
use crate::health::{Gate, Health, Verdict};
use crate::machine::{Machine, Time, earliest};
use crate::node::LocalAddress;
use crate::plan::{Attributes, Check, CheckId, Probe, Vip};
use crate::prefix::Prefix;
use crate::reflect::{self, View};
use damper::Damper;
use floor::{Identity, Views};
use share::Share;

mod damper;
mod decide;
mod drain;
mod floor;
mod reason;
mod reload;
mod share;

pub use damper::{Flapped, Held};
pub use drain::{Cause, DrainNews, Draining, End, connections, mode};
pub use floor::Stay;
pub use reason::{Blame, Reason, Turn};

/// How often the announcer looks at the clock although nothing is due, to notice that this host stood still.
const PULSE: Duration = Duration::from_secs(1);
/// A pulse that is later than this was not late by itself: the process was stopped, or the host suspended.
const STALL: Duration = Duration::from_secs(1);

/// How long before its moment an alarm is put off.
const NEAR: Duration = Duration::from_millis(100);

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

/// What happens to the announcer.
#[derive(Debug, Clone)]
pub enum AnnounceInput {
    /// A verdict of a check.
    Reported(CheckId, Verdict),
    /// The host's usable addresses.
    Addresses(BTreeSet<LocalAddress>),
    /// Who announces a prefix of ours, as this peer tells it; `None`: it does not tell any more.
    Saw(String, Prefix, Option<View>),
    /// The session with this peer is over, and with it what it told of others.
    Lost(String),
    /// Whether a VIP's drain file exists.
    LowerPriorityFile(String, bool),
    /// The share of the traffic that a VIP's service asks for, in percent.
    Share(String, u8),
    /// Forget the failures for which a VIP is held.
    Undamp(String),
    /// Drain this VIP (`None`: every one), for so long at most (`None`: as its plan says).
    Drain(Option<String>, Option<Duration>),
    /// Take such an order back.
    Undrain(Option<String>),
    /// The connections of a VIP that drains, or why they cannot be counted.
    Connections(String, Result<u64, String>),
    /// The host is about to stop, for this reason: what drains first does so, and the rest is withdrawn.
    Leave(String),
    /// What runs the checks was held up for so long.
    HeldUp(Duration),
    /// Withdraw everything, for this reason.
    Stop(String),
}

/// What the announcer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnnounceOutput {
    /// A check's health flipped.
    Check(CheckId, Health, String),
    /// Whether a check is between two states, so that its `fast_interval` is in force and each of its runs may decide. It is
    /// until the first of these comes.
    Pace(CheckId, bool),
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
    /// Another share of a VIP is told than before, in percent, so [`Announcer::rib`] may have changed.
    Share(String, u8),
    /// A VIP failed once more and is held for it.
    Damped(String, Held),
    /// What is new about the drain of a VIP, so [`Announcer::rib`] may have changed.
    Drain(String, DrainNews),
    /// Whether the connections of a VIP are to be counted, each second from now on.
    Count(String, bool),
    /// Whether the floor holds a VIP whose checks fail, and why; also when its mark for others changed.
    Floor(String, Option<Stay>),
    /// Whether a managed address must be on this host, from now on.
    Address(LocalAddress, bool),
    /// This host stood still for so long.
    Stalled(Duration),
    /// What runs the checks was held up for so long.
    HeldUp(Duration),
    /// What was in doubt since a stall is certain again, so [`Announcer::rib`] may have changed.
    Certain,
    /// An address that a reload gave to an announced VIP is here, so [`Announcer::rib`] may have changed.
    Arrived,
}

/// One VIP as it stands.
#[derive(Debug, Clone)]
pub struct VipView {
    /// Its state.
    pub state: VipState,
    /// Why, when it was last decided; [`Announcer::reason`] has the latest words.
    pub reason: Reason,
    /// Since when.
    pub since: Time,
    /// Health of its policy.
    pub health: Health,
    /// State changes since the start.
    pub transitions: u64,
    /// The same by the state that was entered: withdrawn, announced, pessimised.
    pub entered: [u64; 3],
    /// The drain, if anybody wants one, over or not.
    pub drain: Option<Draining>,
    file: bool,
    /// Somebody ordered a drain, for so long at most.
    ordered: Option<Option<Duration>>,
    /// Whether its connections are counted.
    counted: bool,
    was_healthy: bool,
    /// Whether its health is that from before a reload, until its new checks have decided.
    carried: bool,
    unhealthy_since: Option<Time>,
    /// The check, by its name in the policy, whose flip last changed the health.
    turned_by: Option<String>,
    /// What brought it back last.
    turn: Turn,
    damper: Option<Damper>,
    share: Option<Share>,
    /// Whether its checks fail, as far as the floor goes: others must know.
    fails: bool,
    /// Since when the floor lets it go.
    let_go: Option<Time>,
    /// Why the floor does not.
    stay: Option<Stay>,
    /// Since when a required address is not on this host.
    missing: Option<Time>,
    /// Good runs that each gate must have had in all, before the VIP is announced again on an address that came back.
    renewals: Vec<(usize, u64)>,
    /// Whether its gates are pressed for it.
    presses: bool,
    /// Whether its managed addresses are asked for.
    asked: bool,
}

impl VipView {
    /// Whether an address that it requires is not on this host, or not usable.
    pub const fn lacks_address(&self) -> bool {
        self.missing.is_some() || matches!(self.reason, Reason::AddressPending(_))
    }

    /// Whether an order to drain it stands.
    pub const fn is_ordered(&self) -> bool {
        self.ordered.is_some()
    }

    /// The share that its peers are told, and the one that its service asks for, in percent; `None` if it asked for none.
    pub fn share(&self) -> Option<(u8, u8)> {
        self.share.as_ref().map(|share| (share.told(), share.said()))
    }

    /// Why it would be held back at `now`, healthy or not.
    pub fn held(&self, now: Time) -> Option<Held> {
        self.damper.as_ref().and_then(|d| d.held(now))
    }
}

/// The announcer role.
#[derive(Debug)]
pub struct Announcer {
    checks: Vec<Watched>,
    check_numbers: Numbers,
    vips: Vec<Watching>,
    vip_numbers: BTreeMap<String, usize>,
    alarms: BTreeSet<(Time, Alarm)>,
    addresses: BTreeSet<LocalAddress>,
    stopping: Option<String>,
    /// Why the host is about to stop.
    leaving: Option<String>,
    identity: Identity,
    views: Views,
    /// VIPs whose health is not known yet.
    unknown: usize,
    /// Whether every VIP's health was known once: one that a reload adds is no part of what an earlier run told.
    settled: bool,
    /// VIPs that wait for their checks to rise again.
    renewing: usize,
    /// Gates whose last result is from before a stall.
    doubtful: usize,
    /// When it was last called.
    alive: Time,
}

/// A check and who looks at it.
#[derive(Debug)]
struct Watched {
    id: CheckId,
    gate: Gate,
    /// Whether its pace is told.
    paced: bool,
    users: Vec<usize>,
    alarm: Option<Time>,
}

/// A VIP and what it looks at.
#[derive(Debug)]
struct Watching {
    plan: Vip,
    /// Gates by their name in the policy.
    gates: BTreeMap<String, usize>,
    /// Its managed addresses.
    managed: Vec<LocalAddress>,
    /// Those that it was given by a reload while it was announced and that are not here yet.
    arriving: BTreeSet<LocalAddress>,
    /// Whether a check of it connects to one of them, so that they are here all the time.
    checked: bool,
    /// How long a required address may be missing before it is missed.
    patience: Duration,
    view: VipView,
    alarm: Option<Time>,
}

/// What is due at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    Check(usize),
    Vip(usize),
}

/// How long a required address may be missing where each check of the VIP tolerates a bad run too.
const BLIP: Duration = Duration::from_millis(100);

impl Announcer {
    /// An announcer whose VIPs are all withdrawn.
    pub fn new(now: Time, vips: &BTreeMap<String, Vip>, checks: &BTreeMap<CheckId, Check>) -> Self {
        let watched = |(id, check): (&CheckId, &Check)| Watched::new(now, id, check);
        let mut announcer = Self {
            checks: checks.iter().map(watched).collect(),
            check_numbers: Numbers::new(checks.keys()),
            vips: Vec::new(),
            vip_numbers: vips.keys().cloned().zip(0..).collect(),
            alarms: BTreeSet::new(),
            addresses: BTreeSet::new(),
            stopping: None,
            leaving: None,
            identity: Identity::default(),
            views: Views::default(),
            unknown: vips.len(),
            settled: false,
            renewing: 0,
            doubtful: 0,
            alive: now,
        };
        for (plan, v) in vips.values().zip(0..) {
            announcer.vips.push(Watching::new(now, plan, checks, &announcer.check_numbers));
            for &c in announcer.vips[v].gates.values() {
                announcer.checks[c].users.push(v);
            }
        }
        (0..announcer.checks.len()).for_each(|c| announcer.rearm(c));
        announcer
    }

    /// What a peer that is told the VIPs in `names` (`None`: all) should know.
    ///
    /// A VIP whose checks said nothing since a stall of this host is only told to a peer that `knows` it: what was known
    /// before the stall is no reason to tell anybody anew. The same goes for a prefix whose address a reload has moved, until it is here.
    pub fn rib(&self, names: Option<&BTreeSet<String>>, knows: impl Fn(&Prefix) -> bool) -> Rib {
        let mut rib = Rib::new();
        for vip in &self.vips {
            let Some(attributes) = vip.attributes(self.identity) else { continue };
            if names.is_none_or(|n| n.contains(&vip.plan.name)) {
                let doubtful = self.is_doubtful(vip);
                let prefixes = vip.plan.prefixes.iter();
                let prefixes = prefixes.filter(|p| !doubtful && !vip.awaits(p) || knows(p));
                rib.extend(prefixes.map(|&p| (p, attributes.clone())));
            }
        }
        rib
    }

    /// The attributes that a VIP is told with; `None` while withdrawn.
    pub fn attributes(&self, vip: &str) -> Option<Attributes> {
        self.vip_numbers.get(vip).and_then(|&v| self.vips[v].attributes(self.identity))
    }

    /// Whether every VIP's health is known, so that what is announced is the whole truth.
    pub const fn is_settled(&self) -> bool {
        self.settled || self.unknown == 0
    }

    /// Whether an address is on this host, as far as is known.
    pub fn has(&self, address: &LocalAddress) -> bool {
        self.addresses.contains(address)
    }

    /// Whether any check has said nothing since a stall of this host.
    pub const fn doubts(&self) -> bool {
        self.doubtful > 0
    }

    /// Whether what peers are told depends on what each of them was told before.
    pub fn is_partial(&self) -> bool {
        self.doubts() || self.vips.iter().any(|vip| !vip.arriving.is_empty())
    }

    /// The VIP of this name, or every one.
    fn named(&self, name: Option<&str>) -> std::ops::Range<usize> {
        match name.map(|name| self.vip_numbers.get(name)) {
            None => 0..self.vips.len(),
            Some(Some(&v)) => v..v + 1,
            Some(None) => 0..0,
        }
    }

    fn is_doubtful(&self, vip: &Watching) -> bool {
        self.doubtful > 0 && vip.gates.values().any(|&c| self.checks[c].gate.is_doubtful())
    }

    /// Whether a VIP stands on what its checks said before a stall of this host, so that no peer is told it anew.
    pub fn is_in_doubt(&self, vip: &str) -> bool {
        self.vip_numbers.get(vip).is_some_and(|&v| self.is_doubtful(&self.vips[v]))
    }

    /// Why a VIP is what it is, in the checks' latest words.
    pub fn reason(&self, now: Time, name: &str) -> Option<Reason> {
        let vip = &self.vips[*self.vip_numbers.get(name)?];
        let (state, reason) = self.judge(now, vip, self.missing(vip));
        // What has not been decided yet is no reason for what stands.
        Some(if state == vip.view.state { reason } else { vip.view.reason.clone() })
    }

    /// The VIPs that flap, with what should be known of each after a restart.
    pub fn flapped(&self, now: Time) -> impl Iterator<Item = (&str, Flapped)> {
        self.vips.iter().filter_map(move |v| Some((&*v.plan.name, v.view.damper.as_ref()?.flapped(now)?)))
    }

    /// Takes what was known of a VIP before a restart; false if it has no damping any more.
    pub fn recall(&mut self, now: Time, vip: &str, known: Flapped) -> bool {
        let damper = self.vip_numbers.get(vip).and_then(|&v| self.vips[v].view.damper.as_mut());
        damper.map(|damper| damper.recall(now, known)).is_some()
    }

    /// The VIPs with damping that would fail if this process ended without a word, or did so lately: whether they would, and how long
    /// ago each failure was that does not hold them.
    pub fn standing(&self, now: Time) -> impl Iterator<Item = (&str, bool, Vec<Duration>)> {
        self.vips.iter().filter_map(move |v| {
            let announced = v.view.state == VipState::Announced && v.view.drain.is_none();
            let failures: Vec<_> = v.view.damper.as_ref()?.failures(now).collect();
            (announced || !failures.is_empty()).then_some((&*v.plan.name, announced, failures))
        })
    }

    /// Whether it is to be remembered what becomes of a VIP.
    pub fn is_damped(&self, vip: &str) -> bool {
        self.vip(vip).is_some_and(|view| view.damper.is_some())
    }

    /// Takes failures of a VIP that were known before a restart. If it was announced by a process that ended without a word, that is one
    /// more; what it is held for, if that was one too many.
    pub fn recall_standing(
        &mut self,
        now: Time,
        vip: &str,
        announced: bool,
        failures: impl Iterator<Item = Duration>,
    ) -> Option<Held> {
        let damper = self.vip_numbers.get(vip).and_then(|&v| self.vips[v].view.damper.as_mut())?;
        damper.recall_failures(now, failures);
        if announced { damper.down(now) } else { None }
    }

    /// The VIPs whose order to drain is to outlive the process.
    pub fn persistent(&self) -> impl Iterator<Item = &str> {
        let stays = |v: &&Watching| v.plan.drain.persist && v.view.is_ordered();
        self.vips.iter().filter(stays).map(|v| &*v.plan.name)
    }

    /// A VIP as it stands.
    pub fn vip(&self, name: &str) -> Option<&VipView> {
        self.vip_numbers.get(name).map(|&v| &self.vips[v].view)
    }

    /// The gate of a check.
    pub fn gate(&self, id: &CheckId) -> Option<&Gate> {
        self.check_numbers.of(id).map(|c| &self.checks[c].gate)
    }

    fn flipped(&mut self, now: Time, c: usize, to: Health, out: &mut Vec<AnnounceOutput>) {
        let Watched { id, users, .. } = &self.checks[c];
        let words = self.checks[c].gate.last().map_or_else(String::new, |(_, v)| v.detail.clone());
        out.push(AnnounceOutput::Check(id.clone(), to, words));
        for v in users.clone() {
            self.decide_by(now, v, Some(c), out);
        }
    }

    fn reported(&mut self, now: Time, id: &CheckId, verdict: Verdict, out: &mut Vec<AnnounceOutput>) {
        let Some(c) = self.check_numbers.of(id) else { return };
        let gate = &mut self.checks[c].gate;
        let (was_hurried, was_doubtful) = (gate.is_hurried(), gate.is_doubtful());
        let flip = gate.push(now, verdict);
        if was_doubtful && !gate.is_doubtful() {
            self.doubtful -= 1;
            out.push(AnnounceOutput::Certain);
        }
        self.say_pace(c, was_hurried, out);
        self.rearm(c);
        self.put_off(now);
        match flip {
            Some(to) => self.flipped(now, c, to, out),
            None if self.renewing > 0 => {
                for v in self.checks[c].users.clone() {
                    if !self.vips[v].view.renewals.is_empty() {
                        self.decide(now, v, out);
                    }
                }
            }
            None => {}
        }
    }

    /// Takes the share that the service of a VIP asks for.
    fn shared(&mut self, now: Time, v: usize, percent: u8, out: &mut Vec<AnnounceOutput>) {
        let Watching { view, plan, .. } = &mut self.vips[v];
        let changed = match &mut view.share {
            Some(share) => share.say(now, percent),
            None => view.share.insert(Share::new(now, percent)).told() < 100,
        };
        if changed {
            let told = view.share.as_ref().map_or(100, Share::told);
            out.push(AnnounceOutput::Share(plan.name.clone(), told));
        }
        self.decide(now, v, out);
    }

    fn say_pace(&self, c: usize, was_hurried: bool, out: &mut Vec<AnnounceOutput>) {
        let check = &self.checks[c];
        if check.paced && check.gate.is_hurried() != was_hurried {
            out.push(AnnounceOutput::Pace(check.id.clone(), !was_hurried));
        }
    }

    /// Sets the alarm of a check for the silence that will count next. One that is earlier stays, and is put off when it is
    /// near: most results only put it off.
    fn rearm(&mut self, c: usize) {
        let check = &mut self.checks[c];
        let next = check.gate.deadline();
        if next.is_none() || check.alarm.is_none() || next < check.alarm {
            set(&mut self.alarms, &mut check.alarm, next, Alarm::Check(c));
        }
    }

    /// Puts off the alarms that are near and that results have overtaken.
    fn put_off(&mut self, now: Time) {
        while let Some(&(at, Alarm::Check(c))) = self.alarms.first()
            && at <= now + NEAR
            && self.checks[c].gate.deadline() > Some(at)
        {
            let check = &mut self.checks[c];
            set(&mut self.alarms, &mut check.alarm, check.gate.deadline(), Alarm::Check(c));
        }
    }

    /// Notices whether this host stood still since the last call: then every check is forgiven its silence. Any input does it.
    pub fn wake(&mut self, now: Time, out: &mut Vec<AnnounceOutput>) {
        let gone = now.since(self.alive);
        self.alive = now;
        if gone < PULSE + STALL || self.checks.is_empty() {
            return;
        }
        out.push(AnnounceOutput::Stalled(gone));
        self.excuse(|gate| gate.excuse(now));
    }

    fn excuse(&mut self, excuse: impl Fn(&mut Gate)) {
        self.doubtful = 0;
        for c in 0..self.checks.len() {
            excuse(&mut self.checks[c].gate);
            self.doubtful += usize::from(self.checks[c].gate.is_doubtful());
            self.rearm(c);
        }
    }
}

impl Watched {
    fn new(now: Time, id: &CheckId, check: &Check) -> Self {
        Self {
            id: id.clone(),
            gate: Gate::new(now, check),
            paced: check.probe != Probe::External,
            users: Vec::new(),
            alarm: None,
        }
    }
}

impl Watching {
    fn new(now: Time, plan: &Vip, checks: &BTreeMap<CheckId, Check>, numbers: &Numbers) -> Self {
        let own = || plan.checks.values().filter_map(|id| checks.get(id));
        let hosts = || plan.prefixes.iter().filter(|p| p.is_host()).map(Prefix::address);
        let managed = plan.manage.iter().flat_map(|interface| {
            hosts().map(|address| LocalAddress { address, interface: interface.clone() })
        });
        Self {
            gates: plan.checks.iter().filter_map(|(n, id)| Some((n.clone(), numbers.of(id)?))).collect(),
            managed: managed.collect(),
            arriving: BTreeSet::new(),
            checked: hosts().any(|a| own().any(|c| c.probe.address() == Some(a))),
            patience: if own().all(|c| c.fall > 1) { BLIP } else { Duration::ZERO },
            view: VipView {
                state: VipState::Withdrawn,
                reason: Reason::Initial(Vec::new()),
                since: now,
                health: Health::Unknown,
                transitions: 0,
                entered: [0; 3],
                drain: None,
                file: false,
                ordered: None,
                counted: false,
                was_healthy: false,
                carried: false,
                unhealthy_since: None,
                turned_by: None,
                turn: Turn::None,
                damper: plan.damping.map(Damper::new),
                share: None,
                fails: false,
                let_go: None,
                stay: None,
                missing: None,
                renewals: Vec::new(),
                presses: false,
                asked: false,
            },
            alarm: None,
            plan: plan.clone(),
        }
    }

    fn attributes(&self, me: Identity) -> Option<Attributes> {
        let mut attributes = match self.view.state {
            VipState::Withdrawn => return None,
            VipState::Announced => self.plan.announce.clone(),
            VipState::Pessimised => {
                let mut sum = self.plan.announce.plus(&self.plan.lower_priority);
                if self.view.fails {
                    sum.large_communities.insert(reflect::failing(me.asn));
                }
                sum
            }
        };
        if let Some(share) = self.view.share.as_ref().filter(|share| share.told() < 100) {
            attributes.extended_communities = share::scaled(&attributes.extended_communities, share.told());
        }
        match self.view.drain {
            Some(_) => self.plan.drain.attributes(attributes),
            None => Some(attributes),
        }
    }

    /// Whether the address of a prefix is on its way.
    fn awaits(&self, prefix: &Prefix) -> bool {
        self.arriving.iter().any(|a| Prefix::host(a.address) == *prefix)
    }

    /// Whether its checks keep it from serving, now that they have once said that it can.
    fn fails(&self, now: Time) -> bool {
        self.view.was_healthy && (self.view.health != Health::Healthy || self.view.held(now).is_some())
    }
}

/// Numbers of checks, found by the digest of their names: of ten thousand, one is within a few entries of where its digest
/// says.
#[derive(Debug)]
struct Numbers {
    /// By digest.
    all: Vec<(u64, CheckId, usize)>,
    /// Where in `all` the digests begin that have these upper bits.
    starts: Vec<usize>,
    /// The bits below those.
    lower: u32,
}

impl Numbers {
    /// Numbers these from 0.
    fn new<'a>(ids: impl Iterator<Item = &'a CheckId>) -> Self {
        let mut all: Vec<_> = ids.zip(0..).map(|(id, n)| (id.digest(), id.clone(), n)).collect();
        all.sort_unstable();
        let upper = all.len().max(2).next_power_of_two();
        let lower = u64::BITS - upper.trailing_zeros();
        let starts =
            (0..=upper as u64).map(|bits| all.partition_point(|&(digest, ..)| digest >> lower < bits));
        Self { starts: starts.collect(), lower, all }
    }

    fn of(&self, id: &CheckId) -> Option<usize> {
        let bits = usize::try_from(id.digest() >> self.lower).ok()?;
        let near = self.all.get(*self.starts.get(bits)?..*self.starts.get(bits + 1)?)?;
        near.iter().find(|(digest, other, _)| *digest == id.digest() && other == id).map(|&(.., n)| n)
    }
}

/// Moves an alarm.
fn set(alarms: &mut BTreeSet<(Time, Alarm)>, at: &mut Option<Time>, next: Option<Time>, alarm: Alarm) {
    if *at == next {
        return;
    }
    if let Some(old) = at.take() {
        alarms.remove(&(old, alarm));
    }
    if let Some(next) = next {
        alarms.insert((next, alarm));
    }
    *at = next;
}

impl Machine for Announcer {
    type Input = AnnounceInput;
    type Output = AnnounceOutput;

    fn handle(&mut self, now: Time, input: AnnounceInput, out: &mut Vec<AnnounceOutput>) {
        self.wake(now, out);
        match input {
            AnnounceInput::Reported(id, verdict) => self.reported(now, &id, verdict, out),
            AnnounceInput::Addresses(addresses) => {
                self.addresses = addresses;
                for v in 0..self.vips.len() {
                    let Watching { managed, plan, arriving, .. } = &mut self.vips[v];
                    let before = arriving.len();
                    arriving.retain(|address| !self.addresses.contains(address));
                    if arriving.len() < before {
                        out.push(AnnounceOutput::Arrived);
                    }
                    if plan.require_local_address || !managed.is_empty() {
                        self.decide(now, v, out);
                    }
                }
            }
            AnnounceInput::LowerPriorityFile(name, exists) => {
                if let Some(&v) = self.vip_numbers.get(&name) {
                    self.vips[v].view.file = exists;
                    self.follow(now, v, out);
                }
            }
            AnnounceInput::Share(name, percent) => {
                if let Some(&v) = self.vip_numbers.get(&name) {
                    self.shared(now, v, percent, out);
                }
            }
            AnnounceInput::Saw(peer, prefix, view) => {
                if self.views.saw(peer, prefix, view) {
                    self.saw(now, &prefix, out);
                }
            }
            AnnounceInput::Lost(peer) => {
                for prefix in self.views.lost(&peer) {
                    self.saw(now, &prefix, out);
                }
            }
            AnnounceInput::Undamp(name) => {
                if let Some(&v) = self.vip_numbers.get(&name) {
                    self.vips[v].view.damper.iter_mut().for_each(Damper::reset);
                    self.decide(now, v, out);
                }
            }
            AnnounceInput::Drain(name, most) => {
                for v in self.named(name.as_deref()) {
                    self.order(now, v, Some(most), out);
                }
            }
            AnnounceInput::Undrain(name) => {
                for v in self.named(name.as_deref()) {
                    self.order(now, v, None, out);
                }
            }
            AnnounceInput::Connections(name, count) => {
                if let Some(&v) = self.vip_numbers.get(&name) {
                    self.counted(now, v, count, out);
                }
            }
            AnnounceInput::Leave(why) => {
                self.leaving.get_or_insert(why);
                for v in 0..self.vips.len() {
                    self.follow(now, v, out);
                }
            }
            AnnounceInput::HeldUp(gone) => {
                self.excuse(|gate| gate.forgive(now));
                out.push(AnnounceOutput::HeldUp(gone));
            }
            AnnounceInput::Stop(why) => {
                self.stopping.get_or_insert(why);
                for v in 0..self.vips.len() {
                    if let Some(left) = self.vips[v].view.drain.as_ref().map(Draining::left) {
                        self.end_drain(v, End::Cut(left), out);
                    }
                    self.decide(now, v, out);
                }
            }
        }
    }

    fn tick(&mut self, now: Time, out: &mut Vec<AnnounceOutput>) {
        if self.deadline().is_none_or(|(at, _)| at > now) {
            return;
        }
        self.wake(now, out);
        while let Some(&(at, alarm)) = self.alarms.first().filter(|(at, _)| *at <= now) {
            self.alarms.remove(&(at, alarm));
            match alarm {
                Alarm::Check(c) => {
                    self.checks[c].alarm = None;
                    let was_hurried = self.checks[c].gate.is_hurried();
                    let flip = self.checks[c].gate.tick(now);
                    self.say_pace(c, was_hurried, out);
                    self.rearm(c);
                    if let Some(to) = flip {
                        self.flipped(now, c, to, out);
                    }
                }
                Alarm::Vip(v) => {
                    self.vips[v].alarm = None;
                    self.decide(now, v, out);
                }
            }
        }
    }

    fn deadline(&self) -> Option<(Time, &'static str)> {
        let pulse = (!self.checks.is_empty()).then(|| (self.alive + PULSE, "pulse"));
        let alarm = self.alarms.first().map(|&(at, alarm)| match alarm {
            Alarm::Check(_) => (at, "silent check"),
            Alarm::Vip(_) => (at, "vip"),
        });
        earliest(alarm, pulse)
    }
}

#[cfg(test)]
mod tests;
