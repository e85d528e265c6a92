//! The timing contract: how long each kind of failure can last at most before the traffic of a VIP is let go.
//!
//! Computed from the plan, and from what was agreed with the peers where that is known. It ends when the peer has been told,
//! or has noticed by itself: what the peer then takes to move traffic is the peer's. It holds on a host that is not starved.
//! Pure arithmetic: it measures nothing.

use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::health::Health;
use crate::plan::{Accept, Check, DrainMode, FailAction, Listener, ListenerVip, Peer, Plan, Probe, Vip};

/// From the verdict that decides, or the end of a process as the kernel tells it, to the octets on the wire. A quiet host
/// takes a tenth of it.
pub const TOLD: Duration = Duration::from_millis(10);

/// How much further apart two runs can be than their interval, in percent: each is moved by 5 % at most.
const JITTER: u32 = 110;

/// A kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The process of the service ends. Every check that asks the service sees it, and the first that decides counts.
    ProcessDies,
    /// The service answers wrongly, or not at all. Only the slowest check sees it.
    ServiceSick,
    /// What runs the checks, or whoever reports, hangs: silence.
    CheckerWedged,
    /// The host loses power: nobody says anything any more.
    HostDies,
    /// The way between this host and the peer is cut.
    CableCut,
    /// standfast (of a listener: the member's speaker) is killed: the kernel closes its sessions.
    StandfastDies,
    /// standfast is stopped, or starved: its sessions are open and silent.
    StandfastHangs,
    /// standfast is stopped in order, or told to drain.
    Drain,
}

impl Class {
    /// In a few words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::ProcessDies => "process dies",
            Self::ServiceSick => "service sick",
            Self::CheckerWedged => "checker wedged",
            Self::HostDies => "host dies",
            Self::CableCut => "cable cut",
            Self::StandfastDies => "standfast dies",
            Self::StandfastHangs => "standfast hangs",
            Self::Drain => "clean drain",
        }
    }
}

/// What was agreed with a peer whose session is established.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Agreed {
    /// The hold time; zero: none.
    pub hold: Duration,
    /// Time between two of our BFD packets; `None`: BFD is not up.
    pub bfd: Option<Duration>,
    /// Whether the peer keeps our routes over a restart.
    pub graceful_restart: bool,
}

/// A member of the listener whose session is established.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The range that admitted it.
    pub range: String,
    /// Its address.
    pub name: String,
    /// The hold time; zero: none.
    pub hold: Duration,
    /// After so long a silence BFD holds it for dead; `None`: BFD is not up.
    pub detection: Option<Duration>,
}

/// What a running daemon knows and the plan does not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Known {
    /// What was agreed with each peer whose session is established.
    pub peers: BTreeMap<String, Agreed>,
    /// The members that are here.
    pub members: Vec<Member>,
}

/// What becomes of the VIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Its route is gone.
    Withdrawn,
    /// It stays, with worse attributes.
    Pessimized,
    /// The member is out of the listener's group.
    TakenOut,
}

/// What the numbers of a row come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The configuration alone.
    Configured,
    /// What was agreed with the peer, too.
    Negotiated,
}

/// A part of a worst case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Term {
    /// As it stands in the formula: `2 x fast_interval 200ms`.
    pub text: String,
    /// How long it is, in nanoseconds in JSON.
    #[serde(rename = "ns", serialize_with = "nanos")]
    pub time: Duration,
    /// What sets it.
    pub knob: String,
    /// What would make it shorter.
    pub advice: String,
}

fn nanos<S: serde::Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u64(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

/// The worst case of one VIP in one kind of failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The VIP.
    pub vip: String,
    /// Whether it is a VIP of the listener, whose members fail; otherwise this host announces it.
    pub listener: bool,
    /// The kind of failure.
    pub class: Class,
    /// What has become of the VIP by then.
    pub effect: Effect,
    /// The peer, or the range of members, that is the last to notice; `None` where this host tells all of them itself.
    pub by: Option<String>,
    /// What the numbers come from.
    pub basis: Basis,
    /// The parts of the worst case, which is their sum; `None`: nothing notices it.
    pub terms: Option<Vec<Term>>,
    /// With [`Effect::Pessimized`]: how long after that it is withdrawn; `None`: never.
    pub withdrawn_after: Option<Duration>,
    /// Why nothing notices it, and what would; empty otherwise.
    pub never: String,
}

impl Row {
    /// The worst case; `None`: for ever.
    pub fn worst(&self) -> Option<Duration> {
        self.terms.as_ref().map(|terms| sum(terms))
    }

    /// The sum, written out.
    pub fn formula(&self) -> String {
        match &self.terms {
            None => "never".to_owned(),
            Some(terms) => {
                let parts: Vec<&str> = terms.iter().map(|t| t.text.as_str()).collect();
                format!("{} = {}", parts.join(" + "), show(sum(terms)))
            }
        }
    }

    /// The longest part: what to change first.
    pub fn dominant(&self) -> Option<&Term> {
        self.terms.as_ref()?.iter().rev().max_by_key(|term| term.time)
    }
}

/// The worst case of every VIP in every kind of failure, by what the plan says and what is `known` of the sessions.
pub fn contract(plan: &Plan, known: &Known) -> Vec<Row> {
    let mut rows: Vec<Row> = plan.vips.values().flat_map(|vip| announced(plan, vip, &known.peers)).collect();
    if let Some(listener) = &plan.listener {
        rows.extend(
            listener.vips.iter().flat_map(|(name, vip)| listened(listener, name, vip, &known.members)),
        );
    }
    rows
}

/// A duration as people write it, in four digits at most.
pub fn show(d: Duration) -> String {
    let short = |n: f64, unit: &str| {
        let digits = if n < 10.0 { 2 } else { usize::from(n < 100.0) };
        let text = format!("{n:.digits$}");
        let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        format!("{text}{unit}")
    };
    match d.as_secs_f64() {
        0.0 => "0s".to_owned(),
        s if s < 0.001 => short(s * 1e6, "us"),
        s if s < 1.0 => short(s * 1e3, "ms"),
        s => short(s, "s"),
    }
}

fn sum(terms: &[Term]) -> Duration {
    terms.iter().fold(Duration::ZERO, |all, term| all.saturating_add(term.time))
}

fn told() -> Term {
    Term {
        text: format!("told {}", show(TOLD)),
        time: TOLD,
        knob: "nothing".to_owned(),
        advice: "this is the floor: decision and UPDATE".to_owned(),
    }
}

/// `times` times `what`, with the jitter of schedules if `moved`.
fn term(times: u32, moved: bool, what: &str, each: Duration, knob: String, advice: &str) -> Term {
    let factor = if moved { JITTER } else { 100 };
    let times_text = match (times, moved) {
        (1, false) => String::new(),
        (1, true) => "1.1 x ".to_owned(),
        (n, false) => format!("{n} x "),
        (n, true) => format!("{n} x 1.1 x "),
    };
    Term {
        text: format!("{times_text}{what} {}", show(each)),
        time: each.saturating_mul(times).saturating_mul(factor) / 100,
        knob,
        advice: advice.to_owned(),
    }
}

// --- this host announces ---

fn announced(plan: &Plan, vip: &Vip, agreed: &BTreeMap<String, Agreed>) -> Vec<Row> {
    let row = |class, terms: Option<Vec<Term>>| Row {
        vip: vip.name.clone(),
        listener: false,
        class,
        effect: Effect::Withdrawn,
        by: None,
        basis: Basis::Configured,
        terms,
        withdrawn_after: None,
        never: String::new(),
    };
    let mut rows = Vec::new();
    for class in [Class::ProcessDies, Class::ServiceSick, Class::CheckerWedged] {
        // With a floor it is the worse choice first, and may stay it.
        let pessimised = vip.fail_action == FailAction::LowerPriority || vip.floor.is_some();
        let terms = checked(plan, vip, class);
        rows.push(Row {
            effect: if pessimised { Effect::Pessimized } else { Effect::Withdrawn },
            withdrawn_after: vip.withdraw_after.filter(|_| pessimised),
            never: if terms.is_none() { unnoticed(class) } else { String::new() },
            ..row(class, terms)
        });
    }
    let peers = plan.bgp.peers.values().filter(|p| p.vips.as_ref().is_none_or(|v| v.contains(&vip.name)));
    let peers: Vec<&Peer> = peers.collect();
    for class in [Class::HostDies, Class::CableCut, Class::StandfastDies, Class::StandfastHangs] {
        let cases = peers.iter().map(|peer| {
            let known = agreed.get(&peer.name);
            let terms = noticed(peer, known, class);
            Row {
                by: Some(peer.name.clone()),
                basis: if known.is_some() { Basis::Negotiated } else { Basis::Configured },
                never: if terms.is_none() { silent(peer) } else { String::new() },
                ..row(class, terms)
            }
        });
        // Nothing at all is the worst, and then what takes longest.
        rows.extend(cases.max_by_key(|row| row.worst().unwrap_or(Duration::MAX)));
    }
    rows.push(row(Class::Drain, Some(drained(vip))));
    rows
}

/// What a stop of the daemon waits for, and until its end is told.
fn drained(vip: &Vip) -> Vec<Term> {
    if !vip.drain.on_stop || vip.drain.mode == DrainMode::Withdraw {
        return vec![told()];
    }
    let knob = format!("drain.deadline of VIP {}", vip.name);
    let advice = "a shorter deadline, or a floor; a VIP whose connections end earlier is withdrawn earlier";
    vec![term(1, false, "drain.deadline", vip.drain.deadline, knob, advice), told()]
}

/// What the checks take until the policy does not hold, and until that is told; `None`: it goes on holding.
fn checked(plan: &Plan, vip: &Vip, class: Class) -> Option<Vec<Term>> {
    let named = vip.policy.checks();
    let mut seen: Vec<(&str, Vec<Term>)> = named
        .into_iter()
        .filter_map(|name| {
            let id = vip.checks.get(name)?;
            Some((name, sees(&id.to_string(), plan.checks.get(id)?, class)?))
        })
        .collect();
    seen.sort_by_key(|(_, terms)| sum(terms));
    let fails = |bad: &[(&str, Vec<Term>)]| {
        let of = |name: &str| match bad.iter().any(|(n, _)| *n == name) {
            true => Health::Unhealthy,
            false => Health::Healthy,
        };
        vip.policy.evaluate(&of) != Health::Healthy
    };
    if !fails(&seen) {
        return None;
    }
    // Where all see it, the first ones that are enough; what only one sees may be what the slowest asks for.
    let last = match class {
        Class::ServiceSick => seen.len(),
        _ => (1..seen.len()).find(|&n| fails(&seen[..n])).unwrap_or(seen.len()),
    };
    let (_, mut terms) = seen.into_iter().take(last).next_back()?;
    terms.push(told());
    Some(terms)
}

/// What a check takes until its health has turned; `None`: it does not see such a failure.
fn sees(id: &str, check: &Check, class: Class) -> Option<Vec<Term>> {
    let knob = |key: &str| format!("{key} of check {id}");
    let fall = check.fall.max(1);
    if check.probe == Probe::External {
        let lease = check.stale(false)?;
        let advice =
            "a shorter lease, and reports three times as often; a service that reports bad is heard at once";
        return Some(vec![term(fall, false, "lease", lease, knob("push.lease"), advice)]);
    }
    let (slower, faster) = (check.interval, check.fast_interval);
    let again = |event: bool| {
        let advice = match event {
            true => "fall: 1: the end of a process needs no second opinion",
            false => "a lower fall, or a shorter fast_interval",
        };
        term(fall - 1, true, "fast_interval", faster, knob("fall and fast_interval"), advice)
    };
    let mut terms = Vec::new();
    match (class, &check.probe) {
        // The listener's own word comes with the change itself, and nothing runs that could hang.
        (Class::ServiceSick, Probe::Members(_)) => {}
        (_, Probe::Members(_)) => return None,
        (Class::CheckerWedged, _) => {
            let advice = "a shorter interval: silence counts after two intervals and a timeout, and after a second at least";
            terms.push(term(1, false, "silence", check.stale(false)?, knob("interval"), advice));
            if fall > 1 {
                let advice = "a lower fall, or a shorter fast_interval";
                let each = check.stale(true)?;
                terms.push(term(fall - 1, false, "silence", each, knob("fall and fast_interval"), advice));
            }
        }
        (Class::ProcessDies, Probe::Process(_)) => {
            if fall > 1 {
                terms.extend([again(true)]);
            }
        }
        // A hung process lives, and the host answers for it.
        (Class::ServiceSick, Probe::Process(_)) | (_, Probe::Ping(_)) => return None,
        _ => {
            let advice = match class {
                Class::ProcessDies => {
                    "a check of type process, which sees the end itself; or a shorter interval"
                }
                _ => "a shorter interval; or a check of type push, where the service says so at once",
            };
            terms.push(term(1, true, "interval", slower, knob("interval"), advice));
            let mut timeouts = 1;
            if fall > 1 {
                terms.push(again(false));
                // The hurry begins when the first bad run has ended.
                timeouts += u32::from(faster < slower);
            }
            let advice = "a shorter timeout";
            terms.push(term(timeouts, false, "timeout", check.timeout, knob("timeout"), advice));
        }
    }
    Some(terms)
}

/// Why no check sees it.
fn unnoticed(class: Class) -> String {
    match class {
        Class::ProcessDies => "no check of it would see that: ask the service itself, or follow its process (type process)",
        Class::ServiceSick => "no check of it would see that: ask the service itself (http, tcp, grpc, dns, udp, exec), or let it report (push)",
        _ => "nothing would see that: give the push check a lease",
    }
    .to_owned()
}

/// What a peer takes to notice by itself; `None`: it never does.
fn noticed(peer: &Peer, agreed: Option<&Agreed>, class: Class) -> Option<Vec<Term>> {
    let knob = |key: &str| format!("{key} of neighbor {}", peer.name);
    let mut terms = Vec::new();
    if class == Class::StandfastDies {
        terms.push(told());
    } else {
        let configured = peer.bfd.as_ref();
        let interval = match agreed {
            Some(agreed) => agreed.bfd,
            None => configured.map(|bfd| bfd.interval),
        };
        let hold = agreed.map_or(peer.timers.hold, |agreed| agreed.hold);
        terms.push(match (configured, interval) {
            (Some(bfd), Some(interval)) => term(
                bfd.multiplier.into(),
                false,
                "bfd.interval",
                interval,
                knob("bfd"),
                "a shorter bfd.interval or a smaller multiplier; the peer may ask for slower packets",
            ),
            _ if hold.is_zero() => return None,
            (Some(_), None) => term(
                1,
                false,
                "hold_time",
                hold,
                knob("hold_time"),
                "BFD is configured and not up: `standfast status` says why",
            ),
            (None, _) => term(
                1,
                false,
                "hold_time",
                hold,
                knob("hold_time"),
                "bfd: { enabled: true } at both ends; or a shorter hold_time (3s at least)",
            ),
        });
    }
    if let Some(restart) = peer.graceful_restart.filter(|_| agreed.is_none_or(|a| a.graceful_restart)) {
        let advice =
            "graceful_restart: false: the peer keeps the routes of a speaker that is gone for as long";
        terms.push(term(1, false, "restart_time", restart, knob("graceful_restart"), advice));
    }
    Some(terms)
}

fn silent(peer: &Peer) -> String {
    format!(
        "neighbor {} has a hold time of 0 and no BFD: silence is never noticed; set hold_time or bfd",
        peer.name
    )
}

// --- this host listens ---

fn listened(listener: &Listener, name: &str, vip: &ListenerVip, members: &[Member]) -> Vec<Row> {
    let row = |class, terms: Option<Vec<Term>>| Row {
        vip: name.to_owned(),
        listener: true,
        class,
        effect: Effect::TakenOut,
        by: None,
        basis: Basis::Configured,
        terms,
        withdrawn_after: None,
        never: String::new(),
    };
    let may = |range: &&Accept| range.vips.as_ref().is_none_or(|vips| vips.contains(name));
    let ranges: Vec<&Accept> = listener.accept.iter().filter(may).collect();
    let mut rows = Vec::new();
    for class in [Class::HostDies, Class::CableCut, Class::StandfastDies, Class::StandfastHangs] {
        let cases = ranges.iter().flat_map(|range| {
            let here: Vec<&Member> = members.iter().filter(|m| m.range == range.name).collect();
            let case = |terms: Option<Vec<Term>>, by: &str, basis| Row {
                by: Some(by.to_owned()),
                basis,
                never: match terms {
                    Some(_) => String::new(),
                    None => format!(
                        "range {} takes a hold time of 0 and has no BFD: set its hold_time or bfd",
                        range.name
                    ),
                },
                ..row(class, terms)
            };
            if here.is_empty() {
                return vec![case(missed(range, None, class), &range.name, Basis::Configured)];
            }
            let one = |m: &&Member| case(missed(range, Some(m), class), &m.name, Basis::Negotiated);
            here.iter().map(one).collect()
        });
        rows.extend(cases.max_by_key(|row| row.worst().unwrap_or(Duration::MAX)));
    }
    let knob = format!("drain_timeout of VIP {name} of the listener");
    let advice = "a shorter drain_timeout; a member whose flows end earlier is out earlier";
    let drain = term(1, false, "drain_timeout", vip.drain, knob, advice);
    rows.push(row(Class::Drain, Some(vec![drain, told()])));
    rows
}

/// What this host takes to notice that a member, this one or any of a range, is gone.
fn missed(range: &Accept, member: Option<&Member>, class: Class) -> Option<Vec<Term>> {
    let knob = |key: &str| format!("{key} of range {}", range.name);
    let faster = "a shorter interval or a smaller multiplier in the member's own BFD";
    let first = match (class, &range.bfd, member) {
        (Class::StandfastDies, ..) => return Some(vec![told()]),
        (_, _, Some(Member { detection: Some(time), .. })) => {
            term(1, false, "bfd.detection_time", *time, knob("bfd"), faster)
        }
        (_, Some(bfd), None) => {
            term(bfd.multiplier.into(), false, "bfd.interval", bfd.min_rx, knob("bfd"), faster)
        }
        (_, bfd, member) => {
            let hold = member.map_or(range.timers.hold, |m| m.hold);
            if hold.is_zero() {
                return None;
            }
            let advice = match bfd {
                Some(_) => "BFD is configured and not up: `standfast status` says why",
                None => "bfd for the range and at its members; or a shorter hold_time (3s at least)",
            };
            term(1, false, "hold_time", hold, knob("hold_time"), advice)
        }
    };
    Some(vec![first, told()])
}

#[cfg(test)]
mod tests;
