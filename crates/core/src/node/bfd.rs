//! BFD's place in a host: which sessions are wanted, and what follows for BGP from what they say (RFC 5882).
//!
//! The BFD machine itself runs on a thread of its own; the node asks for sessions and is told of their reports. A neighbour is
//! watched always, a member from its first connection on: then one that was lost is known to be back at once. A loss ends the
//! BGP session; a session that never came up, or that was switched off at the other end, ends nothing. Who was lost is known to
//! have BFD: its BGP waits for it, as a strict one's does, a member's for as long as the loss is remembered, a neighbour's less.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::Serialize;

use super::host::{NOTE_PAUSE, Owner, source};
use super::{Level, Node, Output};
use crate::bfd::{Config, Counters, Key, MULTIHOP_PORT, PORT, Reason, Report, State};
use crate::bgp::{Liveness, Session, SessionInput};
use crate::listen::Hop;
use crate::machine::{Machine as _, Time};
use crate::plan;
use crate::table::Change;

/// How long a member waits for BFD at a time where its range is not strict, and how long after a loss a neighbour waits for it: that
/// one may be the only way out.
const HOLD: Duration = Duration::from_secs(30);
/// A BGP session that is established for this long without BFD is told of, once.
const MUTE: Duration = Duration::from_secs(30);

/// How long a member that was lost is waited for: what it says again at once would otherwise come from a stranger.
const AWAITED: Duration = Duration::from_secs(300);
/// How much longer than the detection time the BFD of a member whose BGP ended is kept: it may be about to be lost too.
const MARGIN: Duration = Duration::from_secs(1);
/// So many lost members are waited for at most.
const MOST_AWAITED: usize = 256;

/// The BFD sessions that the node wants, and what it knows of them.
#[derive(Debug, Default)]
pub(super) struct Beats {
    wanted: BTreeMap<Key, Wanted>,
    keys: BTreeMap<Owner, Key>,
    /// Established members that were lost and are not back, and until when that is remembered.
    awaited: BTreeMap<Key, Time>,
    /// When sessions that are established without BFD are told of.
    mute: BTreeMap<Key, Time>,
    counters: Counters,
    begun: bool,
}

#[derive(Debug)]
struct Wanted {
    owner: Owner,
    config: Config,
    seen: Option<Seen>,
    /// Why its packets cannot be sent.
    unsent: Option<String>,
    refusal_noted: Option<Time>,
    mute_noted: bool,
    /// Its BGP session was established.
    served: bool,
}

#[derive(Debug)]
struct Seen {
    since: Time,
    report: Report,
}

/// What can be seen of a BFD session.
#[derive(Debug, Clone, Serialize)]
pub struct BfdStatus {
    /// RFC 5880 state.
    pub state: State,
    /// Seconds since it entered its state; absent before its first report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<f64>,
    /// Why it is in its state, in words.
    pub reason: String,
    /// The diagnostic that we send: why the session last went down.
    pub diagnostic: String,
    /// The other end's state; absent while nothing is heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_state: Option<State>,
    /// The diagnostic that the other end sends; absent while nothing is heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_diagnostic: Option<String>,
    /// Over several hops (RFC 5883).
    pub multihop: bool,
    /// Whether BGP waits for it.
    pub strict: bool,
    /// Seconds between two packets that we send, without jitter.
    pub tx_interval: f64,
    /// Seconds between two packets of the other end; absent while nothing is heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_interval: Option<f64>,
    /// Seconds of silence after which the other end is held for dead; absent while nothing is heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detection_time: Option<f64>,
    /// Whether the other end asked for demand mode.
    pub demanded: bool,
    /// Whether the other end's BFD outlives its control plane.
    pub control_plane_independent: bool,
    /// How often it was up and was lost since the start.
    pub losses: u64,
    /// Packets of the other end that were dropped.
    pub refused: u64,
    /// Why the last of them was; absent if none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_refusal: Option<String>,
    /// Why nothing can be sent; absent if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsent: Option<String>,
}

impl Beats {
    /// When a member that was lost is given up, or one without BFD is told of.
    pub(super) fn deadline(&self) -> Option<(Time, &'static str)> {
        self.awaited.values().chain(self.mute.values()).min().map(|&at| (at, "bfd"))
    }

    /// Whether there is to be any session.
    pub(super) fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    fn of(&self, owner: &Owner) -> Option<&Wanted> {
        self.wanted.get(self.keys.get(owner)?)
    }
}

impl Wanted {
    /// Whether BFD is up, or switched off at the other end.
    fn passes(&self) -> bool {
        self.seen.as_ref().is_some_and(|s| s.report.lets_pass())
    }
}

impl Node {
    /// Asks for the sessions with every neighbour, once.
    pub(super) fn begin_bfd(&mut self, now: Time, out: &mut Vec<Output>) {
        if std::mem::replace(&mut self.beats.begun, true) {
            return;
        }
        for name in self.peers.keys().cloned().collect::<Vec<_>>() {
            self.follow_bfd(now, &Owner::Peer(name), out);
        }
    }

    /// Fits the BFD session of a peer or a member to its BGP session.
    pub(super) fn follow_bfd(&mut self, now: Time, owner: &Owner, out: &mut Vec<Output>) {
        if self.is_closed() {
            return;
        }
        let old = self.beats.keys.get(owner).copied();
        let Some((key, config)) = self.bfd_of(owner, old) else {
            if let Some(key) = old {
                self.beats.mute.remove(&key);
                // The other end may have noticed first that BFD was lost, and ended BGP before it is noticed here.
                let wanted = self.beats.wanted.get(&key).filter(|w| w.served);
                let up = wanted.and_then(|w| w.seen.as_ref()).filter(|s| s.report.state == State::Up);
                if let Some(detection) = up.map(|s| s.report.detection_time.unwrap_or_default())
                    && !self.beats.awaited.contains_key(&key)
                {
                    self.wait_for(key, owner, now + (detection + MARGIN).min(AWAITED));
                }
                if !self.beats.awaited.contains_key(&key) {
                    self.unwatch(key, out);
                }
            }
            return;
        };
        if let Some(other) = old.filter(|old| *old != key) {
            self.unwatch(other, out);
        }
        let up = self.bgp_is_up(owner);
        let wanted = self.beats.wanted.entry(key).or_insert_with(|| Wanted {
            owner: owner.clone(),
            config: Config { local: None, interface: None, plan: plan::Bfd::new() },
            seen: None,
            unsent: None,
            refusal_noted: None,
            mute_noted: false,
            served: false,
        });
        if wanted.config != config || old.is_none() {
            wanted.config = config.clone();
            out.push(Output::Bfd(Change::Set(key, config)));
        }
        wanted.served |= up;
        let (passes, noted) = (wanted.passes(), wanted.mute_noted);
        if up && passes {
            self.beats.awaited.remove(&key);
        }
        if !up || passes {
            self.beats.mute.remove(&key);
        } else if !noted {
            self.beats.mute.entry(key).or_insert(now + MUTE);
        }
        self.beats.keys.insert(owner.clone(), key);
    }

    /// Remembers a member until then, if there is room.
    fn wait_for(&mut self, key: Key, owner: &Owner, until: Time) {
        let awaited = &mut self.beats.awaited;
        let room = awaited.len() < MOST_AWAITED || awaited.contains_key(&key);
        if room && matches!(owner, Owner::Member(_)) {
            awaited.insert(key, until);
        }
    }

    /// Whether the BGP session of a peer or a member is established.
    fn bgp_is_up(&self, owner: &Owner) -> bool {
        let session = match owner {
            Owner::Peer(name) => self.peers.get(name),
            Owner::Member(hop) => self.members.get(hop).map(|m| &m.session),
        };
        session.is_some_and(|s| s.state() == crate::bgp::State::Established)
    }

    fn unwatch(&mut self, key: Key, out: &mut Vec<Output>) {
        self.beats.awaited.remove(&key);
        self.beats.mute.remove(&key);
        if let Some(wanted) = self.beats.wanted.remove(&key) {
            self.beats.keys.remove(&wanted.owner);
            out.push(Output::Bfd(Change::Remove(key)));
        }
    }

    /// Switches BFD off: the other ends are told, and do not hold this host for dead.
    pub(super) fn end_bfd(&mut self, out: &mut Vec<Output>) {
        self.beats.begun = true;
        for key in self.beats.wanted.keys().copied().collect::<Vec<_>>() {
            self.unwatch(key, out);
        }
    }

    /// Gives up members that were lost long ago, and tells of sessions that have been without BFD for long.
    pub(super) fn tick_bfd(&mut self, now: Time, out: &mut Vec<Output>) {
        let due = |map: &BTreeMap<Key, Time>| -> Vec<Key> {
            map.iter().filter(|(_, at)| **at <= now).map(|(key, _)| *key).collect()
        };
        for key in due(&self.beats.awaited) {
            self.beats.awaited.remove(&key);
            let owner = self.beats.wanted.get(&key).map(|w| &w.owner);
            // One that has come again has a session like any other's.
            if !matches!(owner, Some(Owner::Member(hop)) if self.members.contains_key(hop)) {
                self.unwatch(key, out);
            }
        }
        for key in due(&self.beats.mute) {
            self.beats.mute.remove(&key);
            let Some(wanted) = self.beats.wanted.get_mut(&key) else { continue };
            wanted.mute_noted = true;
            let why = wanted.seen.as_ref().map_or(Reason::New, |s| s.report.reason.clone());
            let port = if key.multihop { MULTIHOP_PORT } else { PORT };
            let message = format!(
                "BGP is established and BFD is not up ({why}): its death is noticed by the hold time only; see that the other \
                 end has BFD for this address and that UDP {port} may pass in both directions"
            );
            let owner = wanted.owner.clone();
            self.note(now, &owner, false, (Level::Warn, message), out);
        }
    }

    /// The session that a peer or a member is to have now.
    fn bfd_of(&self, owner: &Owner, old: Option<Key>) -> Option<(Key, Config)> {
        let (address, scope, interface, plan, local) = match owner {
            Owner::Peer(name) => {
                let peer = self.plan.bgp.peers.get(name).filter(|p| p.bfd.is_some())?;
                let session = self.peers.get(name)?;
                // Where the session runs from, or did, is where its path begins.
                let before = || self.beats.wanted.get(&old?)?.config.local;
                let local =
                    session.local().map(|l| l.ip()).or_else(|| source(&self.plan, peer)).or_else(before);
                (peer.address, 0, peer.interface.clone(), peer.bfd.clone()?, local)
            }
            Owner::Member(hop) => {
                let member = self.members.get(hop)?;
                let local = member.session.local().map(|l: SocketAddr| l.ip())?;
                (hop.address, hop.scope, None, self.accept(member)?.bfd.clone()?, Some(local))
            }
        };
        let multihop = plan.multihop;
        let local = local.map(|l: IpAddr| l.to_canonical());
        Some((Key { address, scope, multihop }, Config { plan, local, interface }))
    }

    /// How long the session of a member that comes again must wait for BFD, if it is lost.
    pub(super) fn must_wait(&self, member: Hop) -> Option<Duration> {
        let key = self.beats.keys.get(&Owner::Member(member))?;
        self.beats.awaited.contains_key(key).then_some(HOLD)
    }

    /// Tells that a member comes again before BFD is up.
    pub(super) fn note_wait(&mut self, now: Time, member: Hop, out: &mut Vec<Output>) {
        let owner = Owner::Member(member);
        let Some(wanted) = self.beats.of(&owner).filter(|w| !w.passes()) else { return };
        if self.must_wait(member).is_some() {
            let why = wanted.seen.as_ref().map_or(Reason::New, |s| s.report.reason.clone());
            let minutes = AWAITED.as_secs() / 60;
            let message =
                format!("waits for BFD, which lost it less than {minutes} minutes ago and is not up ({why})");
            self.note(now, &owner, false, (Level::Warn, message), out);
        }
    }

    /// Tells the new session of a member that was lost whether BFD is up already.
    pub(super) fn greet(&self, now: Time, member: Hop, session: &mut Session) {
        if self.beats.of(&Owner::Member(member)).is_some_and(Wanted::passes) {
            // It has no connection yet: nothing follows.
            session.handle(now, SessionInput::Liveness(Liveness::Alive), &mut Vec::new());
        }
    }

    /// Takes what BFD says of a session.
    pub(super) fn bfd_reported(&mut self, now: Time, key: Key, report: Report, out: &mut Vec<Output>) {
        // Who was told of the end may switch BFD off in its own way.
        if self.is_closed() {
            return;
        }
        let Some(wanted) = self.beats.wanted.get_mut(&key) else { return };
        let owner = wanted.owner.clone();
        let old = wanted.seen.as_ref().map(|s| &s.report);
        let was = old.map(|r| (r.state, r.losses, r.reason.clone(), r.lets_pass(), r.last_refusal));
        let (state, losses, reason, passed, refusal) =
            was.unwrap_or((State::Down, 0, Reason::New, false, None));
        let since = match &wanted.seen {
            Some(seen) if state == report.state => seen.since,
            _ => now,
        };
        // What is said of a session that was switched off here is of an earlier one.
        let lost = report.losses > 0 && report.losses != losses && report.state != State::AdminDown;
        let refused = report.last_refusal.filter(|r| report.state != State::Up && refusal != Some(*r));
        let refused = refused.filter(|_| wanted.refusal_noted.is_none_or(|at| now.since(at) >= NOTE_PAUSE));
        if refused.is_some() {
            wanted.refusal_noted = Some(now);
        }
        wanted.seen = Some(Seen { since, report: report.clone() });
        let passes = report.lets_pass();
        let words = if lost && passes {
            Some((
                Level::Warn,
                format!("BFD was down for a moment; what it says by this time: {}", report.reason),
            ))
        } else if lost {
            Some((Level::Warn, format!("BFD is down: {}", report.reason)))
        } else if report.state == State::Up && state != State::Up {
            Some((Level::Info, "BFD is up".to_owned()))
        } else if report.reason != reason {
            match &report.reason {
                Reason::PeerAdminDown => Some((Level::Info, format!("{}: nothing follows", report.reason))),
                Reason::Full | Reason::Unavailable(_) => {
                    Some((Level::Warn, format!("BFD cannot work: {}", report.reason)))
                }
                _ => None,
            }
        } else {
            None
        };
        let refused = refused.map(|r| (Level::Warn, format!("BFD drops what the peer sends: {r}")));
        for line in words.into_iter().chain(refused) {
            self.note(now, &owner, true, line, out);
        }
        if lost && (self.bgp_is_up(&owner) || self.beats.awaited.contains_key(&key)) {
            self.wait_for(key, &owner, now + AWAITED);
        }
        if lost {
            let why = if passes { "it was down for a moment".to_owned() } else { report.reason.to_string() };
            let wait = if matches!(owner, Owner::Peer(_)) { HOLD } else { AWAITED };
            self.tell_liveness(now, &owner, Liveness::Lost(why, wait), out);
        }
        // A loss and what followed it may be told in one: what was lost must hear that it is back.
        if passes && (lost || !passed) {
            self.tell_liveness(now, &owner, Liveness::Alive, out);
        } else if passed && !passes && !lost {
            self.tell_liveness(now, &owner, Liveness::Unknown, out);
        }
    }

    fn tell_liveness(&mut self, now: Time, owner: &Owner, liveness: Liveness, out: &mut Vec<Output>) {
        let input = SessionInput::Liveness(liveness);
        self.with_session(owner, out, |s, o| s.handle(now, input, o), now);
    }

    /// Takes why the packets of a session cannot be sent, or that they can again.
    pub(super) fn bfd_unsent(&mut self, now: Time, key: Key, why: Option<String>, out: &mut Vec<Output>) {
        let Some(wanted) = self.beats.wanted.get_mut(&key) else { return };
        if wanted.unsent != why {
            wanted.unsent.clone_from(&why);
            let owner = wanted.owner.clone();
            if let Some(why) = why {
                self.note(now, &owner, true, (Level::Warn, format!("BFD cannot send: {why}")), out);
            }
        }
    }

    pub(super) fn bfd_counted(&mut self, counters: Counters) {
        self.beats.counters = counters;
    }

    /// What can be seen of the session with a peer or a member, if there is to be one.
    pub(super) fn bfd_status(&self, now: Time, owner: &Owner) -> Option<BfdStatus> {
        let wanted = self.beats.of(owner)?;
        let plan = &wanted.config.plan;
        let unknown = Seen { since: now, report: Report::unavailable(Reason::New) };
        let Seen { since, report } = wanted.seen.as_ref().unwrap_or(&unknown);
        Some(BfdStatus {
            state: report.state,
            since: wanted.seen.as_ref().map(|_| now.since(*since).as_secs_f64()),
            reason: if report.reason == Reason::New && self.bgp_is_up(owner) {
                format!("{}, though BGP is established", Reason::New)
            } else {
                report.reason.to_string()
            },
            diagnostic: report.diagnostic.to_string(),
            peer_state: report.peer_state,
            peer_diagnostic: report.peer_state.map(|_| report.peer_diagnostic.to_string()),
            multihop: plan.multihop,
            strict: plan.strict.is_some(),
            tx_interval: report.tx_interval.as_secs_f64(),
            rx_interval: report.rx_interval.map(|d| d.as_secs_f64()),
            detection_time: report.detection_time.map(|d| d.as_secs_f64()),
            demanded: report.demanded,
            control_plane_independent: report.control_plane_independent,
            losses: report.losses,
            refused: report.refused,
            last_refusal: report.last_refusal.map(|r| r.to_string()),
            unsent: wanted.unsent.clone(),
        })
    }

    /// Every session that there is to be: with a `peer` or a `member`, its name or address, and what can be seen of it.
    pub fn bfd_sessions(&self, now: Time) -> Vec<(&'static str, String, BfdStatus)> {
        let named = self.beats.keys.keys().filter_map(|owner| {
            let status = self.bfd_status(now, owner)?;
            Some(match owner {
                Owner::Peer(name) => ("peer", name.clone(), status),
                Owner::Member(hop) => ("member", self.name(hop), status),
            })
        });
        named.collect()
    }

    /// BFD packets of this host since the start.
    pub const fn bfd_counters(&self) -> &Counters {
        &self.beats.counters
    }
}
