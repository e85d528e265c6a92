//! What can be seen of a [`Node`]: the same words as in log and metrics, with the field names of the HTTP API.
//!
//! Moments are told as seconds ago, so that reading needs no clock.

use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

mod listener;

use super::host::Owner;
use super::{BfdStatus, KernelKey, Node};
use crate::announce::{self, Reason, VipState, VipView};
use crate::bgp::{Down, Session, SessionStatus, State};
use crate::health::{Gate, Health, Outcome, Runs};
use crate::machine::Time;
use crate::plan::{Attributes, CheckId, DrainUntil, PeerAsn, Vip};
use crate::prefix::Prefix;

/// A whole host.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// BGP identifier.
    pub router_id: Ipv4Addr,
    /// Local AS number.
    pub asn: u32,
    /// Why it is leaving, if it is.
    pub stopping: Option<String>,
    /// BGP peers, by name.
    pub peers: Vec<PeerStatus>,
    /// VIPs, by name.
    pub vips: Vec<VipStatus>,
    /// The listener, if that role runs.
    pub listener: Option<ListenerStatus>,
    /// Changes that the kernel has not taken, and why.
    pub kernel_pending: BTreeMap<String, String>,
}

/// A BGP peer.
#[derive(Debug, Clone, Serialize)]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Its AS number: what it said, else what was configured; 0 while `external` or `internal` is all that is known.
    pub peer_asn: u32,
    /// RFC 4271 state.
    pub session_state: State,
    /// Whether `/readyz` needs it.
    pub required: bool,
    /// Seconds established; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uptime: Option<f64>,
    /// Seconds not established; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_for: Option<f64>,
    /// Why it is not established, or why it last was not.
    pub last_down: String,
    /// Negotiated hold time in seconds, while established.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_time: Option<u64>,
    /// Whether the peer keeps our routes over a restart; false while not established.
    pub graceful_restart: bool,
    /// Prefixes that it was told.
    pub told: Vec<Prefix>,
    /// Whether something wanted has not been written to it yet.
    pub pending: bool,
    /// Prefixes that cannot be told to it, and why.
    pub held: BTreeMap<String, String>,
    /// UPDATEs received and checked; nothing of them is kept.
    pub updates_received: u64,
    /// UPDATEs sent.
    pub updates_sent: u64,
    /// Its BFD session, if there is to be one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bfd: Option<BfdStatus>,
}

/// A VIP.
#[derive(Debug, Clone, Serialize)]
pub struct VipStatus {
    /// Its name.
    pub name: String,
    /// Its first prefix.
    pub prefix: Prefix,
    /// All of them.
    pub prefixes: Vec<Prefix>,
    /// 0 withdrawn, 1 announced, 2 pessimized.
    pub state: u8,
    /// The same in a word.
    pub state_name: VipState,
    /// Why.
    pub reason: String,
    /// 0 unknown, 1 healthy, 2 unhealthy.
    pub health: u8,
    /// The same in a word.
    pub health_name: Health,
    /// Seconds since the state last changed.
    pub since: f64,
    /// State changes since the start.
    pub transitions: u64,
    /// Seconds for which its damping still holds it back, healthy or not; absent if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damped: Option<f64>,
    /// Its drain, if anybody wants one, over or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainStatus>,
    /// The share of its link bandwidth that is told, in percent; absent if its service asked for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<u8>,
    /// The share that its service asks for, which the other approaches; absent likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_asked: Option<u8>,
    /// Prepends beyond the one AS of eBGP, as it stands.
    pub as_path_prepend: u8,
    /// Standard communities, as they stand.
    pub communities: Vec<String>,
    /// Established peers that were told it, by name.
    pub told: Vec<String>,
    /// Whether any peer has not been told yet what it should be.
    pub pending: bool,
    /// Its checks.
    pub checks: Vec<CheckStatus>,
}

/// The drain of a VIP.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DrainStatus {
    /// Who wants it: `by command`, `lower_priority_file exists`, `received SIGTERM`.
    pub cause: String,
    /// What the peers are told: `withdraw`, `weight` or `graceful_shutdown`.
    pub mode: &'static str,
    /// Seconds since it began.
    pub since: f64,
    /// Seconds until it is over at the latest; absent once it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<f64>,
    /// Connections at the last count; absent before the first, and where none are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// So many that are left are few enough; absent where none are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor: Option<u64>,
    /// Why connections cannot be counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncounted: Option<String>,
    /// How it ended; absent while it goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    /// Whether its end broke connections, or may have.
    pub rough: bool,
}

impl std::fmt::Display for DrainStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cause, left, connections, floor, uncounted, over, .. } = self;
        if let Some(end) = over {
            return write!(f, "drained ({cause}): {end}");
        }
        write!(f, "draining ({cause}): ")?;
        match (connections, floor, uncounted) {
            (Some(n), ..) => write!(f, "{}, ", announce::connections(*n))?,
            (None, _, Some(why)) => write!(f, "connections cannot be counted ({why}), ")?,
            (None, Some(_), None) => f.write_str("counting its connections, ")?,
            (None, None, None) => {}
        }
        write!(f, "{:.0} s left", left.unwrap_or_default().ceil())
    }
}

/// A check.
#[derive(Debug, Clone, Serialize)]
pub struct CheckStatus {
    /// Its name in the VIP.
    pub name: String,
    /// Its health.
    pub health_name: Health,
    /// Seconds since its health last changed, or since the start.
    pub since: f64,
    /// Good verdicts in a row, up to `rise`.
    pub consecutive_ok: u32,
    /// Bad verdicts in a row, up to `fall`.
    pub consecutive_fail: u32,
    /// Whether the last verdict was good; absent before the first.
    pub last_check_success: Option<bool>,
    /// What the last verdict was: bad and no result are two things; absent before the first.
    pub last_check_outcome: Option<Outcome>,
    /// Its words.
    pub last_check_detail: String,
    /// Seconds since it came.
    pub last_check_age: Option<f64>,
    /// How long it took, in seconds.
    pub last_check_duration: Option<f64>,
    /// Whether VIPs share it, so that each of them shows it.
    pub shared: bool,
    /// Whether it is between two states, so that its `fast_interval` is in force.
    pub hurried: bool,
    /// How its runs came out since the start.
    pub runs: Runs,
}

pub use listener::{
    BalanceStatus, EndStatus, GoneStatus, GroupStatus, HopStatus, IgnoredStatus, ListenerSlice,
    ListenerStatus, MemberStatus, MemberVipStatus, OrderStatus,
};

impl Node {
    /// What can be seen at `now`.
    pub fn status(&self, now: Time) -> Status {
        let pending = self.peers.values().any(Session::pending);
        let vips = self.plan.vips.keys().filter_map(|name| self.vip(now, name, pending)).collect();
        Status { vips, listener: self.listener_status(now), ..self.host_status(now) }
    }

    /// What can be seen at `now`, but for the VIPs, the listener's too: see [`vip_status`](Self::vip_status)
    /// and [`listener_slice`](Self::listener_slice).
    pub fn host_status(&self, now: Time) -> Status {
        Status {
            router_id: self.plan.router.router_id,
            asn: self.plan.router.asn,
            stopping: self.stopping().map(str::to_owned),
            peers: self.peers_status(now),
            vips: Vec::new(),
            listener: self.listener_head(now),
            kernel_pending: self
                .kernel_errors
                .iter()
                .map(|(key, why)| (key.to_string(), why.clone()))
                .collect(),
        }
    }

    /// How many changes the kernel has not taken.
    pub fn kernel_pending(&self) -> u32 {
        u32::try_from(self.kernel_errors.len()).unwrap_or(u32::MAX)
    }

    /// Why it leaves, if it does.
    pub fn stopping(&self) -> Option<&str> {
        self.farewell.as_deref()
    }

    /// Whether it leaves and waits for no drain any more.
    pub const fn is_closing(&self) -> bool {
        self.stop.is_some()
    }

    /// The VIPs that drain or are drained, by name.
    pub fn drains(&self, now: Time) -> Vec<(String, DrainStatus)> {
        let drain = |name: &String| Some((name.clone(), self.drain(now, name, self.announcer.vip(name)?)?));
        self.plan.vips.keys().filter_map(drain).collect()
    }

    fn drain(&self, now: Time, name: &str, view: &VipView) -> Option<DrainStatus> {
        let (drain, plan) = (view.drain.as_ref()?, self.plan.vips.get(name)?.drain);
        let counts = plan.until != DrainUntil::Deadline;
        Some(DrainStatus {
            cause: drain.cause.to_string(),
            mode: announce::mode(plan.mode),
            since: now.since(drain.since).as_secs_f64(),
            left: drain.goes_on().then(|| drain.until.since(now).as_secs_f64()),
            connections: drain.left(),
            floor: counts.then_some(plan.floor),
            uncounted: drain.connections.as_ref().and_then(|c| c.as_ref().err()).cloned(),
            over: drain.over.as_ref().map(ToString::to_string),
            rough: drain.over.as_ref().is_some_and(announce::End::is_rough),
        })
    }

    /// What can be seen of every peer at `now`.
    pub fn peers_status(&self, now: Time) -> Vec<PeerStatus> {
        self.peers.iter().map(|(name, s)| self.peer(now, name, s)).collect()
    }

    /// What can be seen of one VIP at `now`.
    pub fn vip_status(&self, now: Time, name: &str) -> Option<VipStatus> {
        self.vip(now, name, self.peers.values().any(Session::pending))
    }

    /// A VIP as it stands, with the attributes that go with its state (`None` while withdrawn).
    pub fn vip_view(&self, name: &str) -> Option<(&VipView, Option<Attributes>)> {
        let view = self.announcer.vip(name)?;
        Some((view, self.announcer.attributes(name)))
    }

    /// The gate of a check.
    pub fn gate(&self, id: &CheckId) -> Option<&Gate> {
        self.announcer.gate(id)
    }

    fn peer(&self, now: Time, name: &str, session: &Session) -> PeerStatus {
        let plan = &self.plan.bgp.peers[name];
        let status = session.status();
        let configured = match plan.asn {
            PeerAsn::Number(n) => n,
            PeerAsn::Internal => self.plan.router.asn,
            PeerAsn::External => 0,
        };
        PeerStatus {
            name: name.to_owned(),
            address: plan.address,
            peer_asn: status.negotiated.as_ref().map_or(configured, |n| n.asn),
            session_state: status.state,
            required: plan.required,
            uptime: status.negotiated.is_some().then(|| now.since(status.since).as_secs_f64()),
            last_down: last_down(&status),
            down_for: status.negotiated.is_none().then(|| now.since(status.since).as_secs_f64()),
            hold_time: status.negotiated.as_ref().map(|n| n.hold.as_secs()),
            graceful_restart: status.negotiated.as_ref().is_some_and(|n| n.graceful_restart),
            told: status.told.keys().copied().collect(),
            pending: status.pending,
            held: status.held.into_iter().map(|(p, why)| (p.to_string(), why)).collect(),
            updates_received: status.updates_received,
            updates_sent: status.updates_sent,
            bfd: self.bfd_status(now, &Owner::Peer(name.to_owned())),
        }
    }

    fn vip(&self, now: Time, name: &str, pending: bool) -> Option<VipStatus> {
        let plan = self.plan.vips.get(name)?;
        let view = self.announcer.vip(name)?;
        let attributes = self.announcer.attributes(name).unwrap_or_default();
        let is_told = |s: &Session| plan.prefixes.iter().any(|p| s.told(p));
        Some(VipStatus {
            name: name.to_owned(),
            prefix: plan.prefixes.first().copied()?,
            prefixes: plan.prefixes.clone(),
            state: view.state as u8,
            state_name: view.state,
            reason: self.reason(now, name, view),
            health: view.health as u8,
            health_name: view.health,
            since: now.since(view.since).as_secs_f64(),
            transitions: view.transitions,
            damped: view.held(now).map(|held| held.until.since(now).as_secs_f64()),
            drain: self.drain(now, name, view),
            share: view.share().map(|(told, _)| told),
            share_asked: view.share().map(|(_, asked)| asked),
            as_path_prepend: attributes.as_path_prepend,
            communities: attributes
                .communities
                .iter()
                .map(|c| format!("{}:{}", c >> 16, c & 0xffff))
                .collect(),
            told: self.peers.iter().filter(|(_, s)| is_told(s)).map(|(n, _)| n.clone()).collect(),
            pending,
            checks: plan
                .checks
                .iter()
                .filter_map(|(name, id)| Some(check(now, name, id, self.announcer.gate(id)?)))
                .collect(),
        })
    }
}

impl Node {
    /// A managed address of a VIP, this one or any, that the kernel refuses, and its words.
    fn refusal(&self, plan: &Vip, address: Option<IpAddr>) -> Option<(IpAddr, &str)> {
        let interface = plan.manage.as_ref()?;
        self.kernel_errors.iter().find_map(|(key, words)| match key {
            KernelKey::Address(a)
                if a.interface == *interface
                    && plan.prefixes.contains(&Prefix::host(a.address))
                    && address.is_none_or(|address| address == a.address) =>
            {
                Some((a.address, words.as_str()))
            }
            _ => None,
        })
    }

    /// The reason of a VIP's state, with what only the whole host knows: the file, and the kernel's words.
    fn reason(&self, now: Time, name: &str, view: &VipView) -> String {
        let plan = &self.plan.vips[name];
        let why = self.announcer.reason(now, name).unwrap_or_else(|| view.reason.clone());
        let reason = match &why {
            Reason::LowerPriorityFile => match &plan.lower_priority_file {
                Some(file) => format!("{why}: {}", file.display()),
                None => why.to_string(),
            },
            Reason::Draining(_) | Reason::Drained(..) => {
                self.drain(now, name, view).map_or_else(|| why.to_string(), |drain| drain.to_string())
            }
            Reason::AddressPending(address) => match self.refusal(plan, Some(*address)) {
                Some((_, words)) => format!("{why}: {words}"),
                None => why.to_string(),
            },
            Reason::Damped(held) => {
                format!("{held}, held for {:.0} s more", held.until.since(now).as_secs_f64())
            }
            // A check of an address that the kernel refuses fails for that.
            Reason::Initial(_)
            | Reason::Unhealthy(_)
            | Reason::NeverHealthy(_)
            | Reason::WithdrawAfter(..) => match self.refusal(plan, None) {
                Some((address, words)) => format!("address {address} is being added: {words}; {why}"),
                None => why.to_string(),
            },
            _ => why.to_string(),
        };
        let reason = match view.share() {
            Some((_, asked)) if asked < 100 && view.state != VipState::Withdrawn => {
                format!("{reason}; its service asks for {asked} % of its share")
            }
            _ => reason,
        };
        if view.state != VipState::Withdrawn && self.announcer.is_in_doubt(name) {
            return format!("{reason} (this host stood still: told to nobody anew until its checks report)");
        }
        reason
    }
}

/// The last end or refusal of a session, and what became of the last attempt since.
pub(super) fn last_down(status: &SessionStatus) -> String {
    match (&status.down, &status.attempt) {
        (down, None) => down.to_string(),
        (Down::NeverUp, Some(attempt)) => attempt.to_string(),
        (down, Some(attempt)) => format!("{down}; last attempt: {attempt}"),
    }
}

fn check(now: Time, name: &str, id: &CheckId, gate: &Gate) -> CheckStatus {
    let last = gate.last();
    CheckStatus {
        name: name.to_owned(),
        health_name: gate.health(),
        since: now.since(gate.changed()).as_secs_f64(),
        consecutive_ok: gate.consecutive_good(),
        consecutive_fail: gate.consecutive_bad(),
        last_check_success: last.map(|(_, v)| v.outcome == Outcome::Good),
        last_check_outcome: last.map(|(_, v)| v.outcome),
        last_check_detail: last.map_or_else(String::new, |(_, v)| v.detail.clone()),
        last_check_age: last.map(|(at, _)| now.since(*at).as_secs_f64()),
        last_check_duration: last.map(|(_, v)| v.took.as_secs_f64()),
        shared: id.is_shared(),
        hurried: gate.is_hurried(),
        runs: *gate.runs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Verdict;
    use crate::plan::{Check, Probe};

    #[test]
    fn no_result_is_told_apart_from_a_bad_one() {
        let mut gate = Gate::new(Time::ZERO, &Check::new(Probe::External));
        let id = CheckId::new("web", "host");
        let told = |gate: &Gate| {
            let status = check(Time::ZERO, "host", &id, gate);
            (status.last_check_outcome, status.last_check_success, status.last_check_detail)
        };
        assert_eq!(told(&gate), (None, None, String::new()));
        for (outcome, success) in [(Outcome::Good, true), (Outcome::Bad, false), (Outcome::NoResult, false)] {
            gate.push(Time::ZERO, Verdict { outcome, ..Verdict::good("words") });
            assert_eq!(told(&gate), (Some(outcome), Some(success), "words".into()));
        }
    }
}
