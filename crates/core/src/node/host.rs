//! The machine of one host: the announcer, a session for each peer and member, the listener, and what they tell each other.
//!
//! It drains its children inside its own call. The order that matters is here: an address is on the host before its
//! route is told and is taken off after the route was withdrawn on every session; on a stop, what drains does so first, then
//! routes are withdrawn, then sessions say why and close, then addresses go.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::bfd::Beats;
use super::fleet::{Untold, Watch};
use super::members::{Member, QUIET, Words};
use super::past::Past;
use super::timers::Timers;
use super::{ConnId, Event, Input, KernelKey, Level, LocalAddress, Output};
use crate::announce::{AnnounceInput, AnnounceOutput, Announcer, DrainNews, Reason, VipState};
use crate::bgp::{PeerConfig, Session, SessionInput, SessionOutput, State};
use crate::health::Health;
use crate::listen::{Hop, Links, Listener};
use crate::machine::{Machine, Rng, Time, earliest};
use crate::plan::{Peer, Plan};
use crate::prefix::{Afi, Prefix};
use crate::table::Change;

/// The longest that a change waits for the table of others to be worked off.
const TABLE_WAIT: Duration = Duration::from_millis(200);
/// How long BFD goes on after the last session has ended.
const LAST_WORD: Duration = Duration::from_millis(100);
/// How long packets that are still on their way find the address after the last session has withdrawn its route.
const LINGER: Duration = Duration::from_millis(500);
/// The longest that a stop waits for peers to take the withdrawals.
const STOP_WAIT: Duration = Duration::from_secs(2);
/// What repeats is noted once in this time.
pub(super) const NOTE_PAUSE: Duration = Duration::from_secs(60);
/// The table for the peers is made anew at most once in this time for each VIP and peer, some five times what it takes:
/// thousands of VIPs that turn at once cost a few tables.
const TABLE_PAUSE: Duration = Duration::from_micros(5);

/// All roles of one host.
#[derive(Debug)]
pub struct Node {
    pub(super) plan: Arc<Plan>,
    pub(super) announcer: Announcer,
    pub(super) peers: BTreeMap<String, Session>,
    pub(super) members: BTreeMap<Hop, Member>,
    pub(super) listener: Option<Listener>,
    pub(super) watch: Watch,
    pub(super) kernel_errors: BTreeMap<KernelKey, String>,
    pub(super) stop: Option<(Time, String)>,
    /// Why it stops as soon as nothing drains any more.
    pub(super) farewell: Option<String>,
    pub(super) links: Links,
    pub(super) owners: BTreeMap<ConnId, Owner>,
    pub(super) words: Words,
    pub(super) past: Past,
    pub(super) beats: Beats,
    pub(super) rng: Rng,
    /// When each session has something to do.
    pub(super) timers: Timers<Owner>,
    /// Managed addresses that were asked for, and not released since.
    addresses: BTreeSet<LocalAddress>,
    /// Those of them that nobody needs any more, but peers may still send packets for.
    leaving: BTreeSet<LocalAddress>,
    releases: BTreeMap<LocalAddress, Time>,
    /// How many peers had a number for their connections.
    pub(super) numbered: u64,
    /// When the table for the peers was made last, and when it must be made again.
    advertised: Option<Time>,
    advertise_at: Option<Time>,
    /// When members are told of each other.
    pub(super) reflect_at: Option<Time>,
    withdrawn: Option<Time>,
    closed: bool,
    /// When BFD is switched off too, and all is done.
    stopped_at: Option<Time>,
    /// What the listener did last and was not told yet.
    pub(super) untold: Option<Untold>,
}

/// Whose session it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    Peer(String),
    Member(Hop),
}

impl Node {
    /// A host at the start of its life: every VIP withdrawn, every active peer about to be dialled. `seed` feeds jitter only.
    pub fn new(now: Time, plan: impl Into<Arc<Plan>>, seed: u64) -> Self {
        let plan = plan.into();
        let mut rng = Rng::new(seed);
        let peers: BTreeMap<String, Session> = plan
            .bgp
            .peers
            .values()
            .zip(1u64..)
            .map(|(peer, n)| {
                let session = Session::new(now, peer_config(&plan, peer), rng.next_u64(), ConnId(n << 32));
                (peer.name.clone(), session)
            })
            .collect();
        let mut timers = Timers::default();
        for (name, session) in &peers {
            timers.set(Owner::Peer(name.clone()), session.deadline());
        }
        let mut announcer = Announcer::new(now, &plan.vips, &plan.checks);
        announcer.identify(plan.router.asn, plan.router.router_id);
        Self {
            announcer,
            listener: plan.listener.as_ref().map(Listener::new),
            watch: Watch::new(now, &plan),
            peers,
            members: BTreeMap::new(),
            kernel_errors: BTreeMap::new(),
            stop: None,
            farewell: None,
            links: Links::new(),
            owners: BTreeMap::new(),
            words: Words::default(),
            past: Past::default(),
            beats: Beats::default(),
            timers,
            addresses: BTreeSet::new(),
            leaving: BTreeSet::new(),
            releases: BTreeMap::new(),
            numbered: plan.bgp.peers.len() as u64,
            advertised: None,
            advertise_at: None,
            reflect_at: None,
            withdrawn: None,
            closed: false,
            stopped_at: None,
            untold: None,
            rng,
            plan,
        }
    }

    /// The plan that it runs.
    pub const fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    pub(super) fn forward(&mut self, now: Time, conn: ConnId, input: SessionInput, out: &mut Vec<Output>) {
        let Some(owner) = self.owners.get(&conn).cloned() else { return };
        match input {
            SessionInput::Closed(..) => drop(self.owners.remove(&conn)),
            // These may establish a session, which then tells its table.
            SessionInput::Received(..) if self.advertise_at.is_some() => self.advertise(now, out),
            _ => {}
        }
        self.with_session(&owner, out, |session, outputs| session.handle(now, input, outputs), now);
    }

    /// Runs one session and drains what it says. Everything that may move a session's deadline goes through here.
    pub(super) fn with_session(
        &mut self,
        owner: &Owner,
        out: &mut Vec<Output>,
        run: impl FnOnce(&mut Session, &mut Vec<SessionOutput>),
        now: Time,
    ) {
        let session = match owner {
            Owner::Peer(name) => self.peers.get_mut(name),
            Owner::Member(hop) => self.members.get_mut(hop).map(|m| &mut m.session),
        };
        let Some(session) = session else { return };
        let before = session.state();
        let was_up = before == State::Established;
        let mut outputs = Vec::new();
        run(session, &mut outputs);
        self.timers.set(owner.clone(), session.deadline());
        // What one reading brought is one change: a storm of UPDATEs costs as much as its last word.
        let (mut touched, mut up, mut seen) = (BTreeSet::new(), false, Vec::new());
        for output in outputs {
            match output {
                SessionOutput::Dial(dial) => {
                    self.owners.insert(dial.conn, owner.clone());
                    out.push(Output::Dial(dial));
                }
                SessionOutput::Send(conn, octets) => out.push(Output::Send(conn, octets)),
                SessionOutput::Close(conn) => {
                    self.owners.remove(&conn);
                    out.push(Output::Close(conn));
                }
                SessionOutput::Patience(conn, time) => out.push(Output::Patience(conn, time)),
                SessionOutput::Note(level, message) => self.note(now, owner, was_up, (level, message), out),
                SessionOutput::Up => {
                    up = true;
                    if let (Owner::Member(hop), Some(listener)) = (owner, &mut self.listener) {
                        touched.extend(listener.came(now, *hop));
                        if self.stop.is_none() {
                            out.push(Output::Member(*hop, true));
                        }
                    }
                }
                SessionOutput::Down => {
                    if let (Owner::Member(hop), Some(listener)) = (owner, &mut self.listener) {
                        let recalled = listener.recalls(hop);
                        touched.extend(listener.gone(now, *hop));
                        // A stop leaves the routes as they are.
                        if self.stop.is_none() {
                            out.extend(recalled.then_some(Output::Remember));
                            out.push(Output::Member(*hop, false));
                        }
                    }
                    if let Owner::Peer(name) = owner {
                        seen.push(AnnounceInput::Lost(name.clone()));
                    }
                    // The next session is told only what is certain.
                    if matches!(owner, Owner::Peer(_)) && self.announcer.doubts() && self.stop.is_none() {
                        self.advertise_at.get_or_insert(now);
                    }
                }
                SessionOutput::Learned(update) => {
                    if let Owner::Peer(name) = owner {
                        seen.extend(self.saw(name, &update));
                    }
                    if let (Owner::Member(hop), Some(listener)) = (owner, &mut self.listener)
                        && let Some(member) = self.members.get(hop)
                    {
                        let accept = self.plan.listener.as_ref().and_then(|l| l.accept.get(member.range));
                        let allowed = accept.and_then(|a| a.vips.as_ref());
                        touched.extend(listener.learned(now, *hop, allowed, update));
                    }
                }
            }
        }
        if let Owner::Member(hop) = owner {
            if up || !touched.is_empty() {
                self.reflect_soon(now);
            }
            self.reroute(now, touched, Some(*hop), out);
            if self.members.get(hop).is_some_and(|m| m.session.is_idle()) {
                self.forget_member(now, hop, before);
                self.timers.set(owner.clone(), None);
            } else if up {
                self.keep_to_room(now, *hop, out);
            }
        }
        self.follow_bfd(now, owner, out);
        for input in seen {
            self.announce(now, input, out);
        }
        self.let_go(now);
    }

    /// Tells what a session said, not too much of it.
    pub(super) fn note(
        &mut self,
        now: Time,
        owner: &Owner,
        was_up: bool,
        (mut level, mut message): (Level, String),
        out: &mut Vec<Output>,
    ) {
        let about = match owner {
            Owner::Peer(name) => format!("peer {name}"),
            Owner::Member(hop) => {
                if level == Level::Warn && !was_up && !self.words.may_warn(now, *hop) {
                    level = Level::Debug;
                }
                let last;
                (level, last) = self.words.level(now, *hop, level);
                if last {
                    message += QUIET;
                }
                format!("member {}", self.name(hop))
            }
        };
        out.push(event(level, about, message));
    }

    pub(super) fn announce(&mut self, now: Time, input: AnnounceInput, out: &mut Vec<Output>) {
        let mut said = Vec::new();
        let settled = self.announcer.is_settled();
        self.announcer.handle(now, input, &mut said);
        self.announced(now, said, settled, out);
    }

    /// What the announcer said becomes tables for the peers and words for the operator.
    pub(super) fn announced(
        &mut self,
        now: Time,
        said: Vec<AnnounceOutput>,
        was_settled: bool,
        out: &mut Vec<Output>,
    ) {
        let mut changed = self.announcer.is_settled() != was_settled;
        if said.is_empty() && !changed {
            return;
        }
        // An address that comes must be asked for before, and one that goes after, the routes are told.
        for output in &said {
            match output {
                AnnounceOutput::Vip { .. }
                | AnnounceOutput::Drain(..)
                | AnnounceOutput::Share(..)
                | AnnounceOutput::Floor(..)
                | AnnounceOutput::Certain
                | AnnounceOutput::Arrived
                | AnnounceOutput::Stalled(_)
                | AnnounceOutput::HeldUp(_) => changed = true,
                AnnounceOutput::Address(address, true) => {
                    self.leaving.remove(address);
                    self.releases.remove(address);
                    if self.addresses.insert(address.clone()) {
                        out.push(Output::Address(Change::Set(address.clone(), ())));
                    }
                }
                AnnounceOutput::Address(address, false) => drop(self.leaving.insert(address.clone())),
                AnnounceOutput::Check(..)
                | AnnounceOutput::Pace(..)
                | AnnounceOutput::Count(..)
                | AnnounceOutput::Damped(..) => {}
            }
        }
        if changed {
            let cells = self.plan.vips.len().saturating_mul(self.peers.len());
            let pause = TABLE_PAUSE.saturating_mul(u32::try_from(cells).unwrap_or(u32::MAX)).min(TABLE_WAIT);
            match self.advertised.map(|at| at + pause).filter(|&at| now < at && self.stop.is_none()) {
                Some(at) => self.advertise_at = Some(at),
                None => self.advertise(now, out),
            }
        }
        for output in said {
            match output {
                AnnounceOutput::Check(id, health, detail) => {
                    let (level, word) = match health {
                        Health::Healthy => (Level::Info, "healthy"),
                        Health::Unhealthy => (Level::Warn, "unhealthy"),
                        Health::Unknown => (Level::Info, "unknown"),
                    };
                    out.push(event(level, format!("check {id}"), format!("{word}: {detail}")));
                }
                AnnounceOutput::Vip { name, from, to, reason } => {
                    let bad = to != VipState::Announced;
                    let meant = self.stopping().is_some()
                        || matches!(reason, Reason::Draining(_) | Reason::Drained(..) | Reason::Removed);
                    let level = if bad && !meant { Level::Warn } else { Level::Info };
                    out.extend(self.announcer.is_damped(&name).then_some(Output::Remember));
                    out.push(event(level, format!("vip {name}"), format!("{from} -> {to}: {reason}")));
                }
                AnnounceOutput::Share(name, percent) => {
                    let level = if percent == 0 { Level::Warn } else { Level::Debug };
                    out.push(event(level, format!("vip {name}"), format!("share: {percent} %")));
                }
                AnnounceOutput::Damped(name, held) => {
                    let message = format!("{held}, held for {} s", held.until.since(now).as_secs_f64());
                    out.push(event(Level::Warn, format!("vip {name}"), message));
                    out.push(Output::Remember);
                }
                AnnounceOutput::Drain(name, news) => {
                    let level = match &news {
                        DrainNews::Uncounted(_) => Level::Warn,
                        DrainNews::Over(end) if end.is_rough() => Level::Warn,
                        _ => Level::Info,
                    };
                    out.extend(self.announcer.is_damped(&name).then_some(Output::Remember));
                    out.push(event(level, format!("vip {name}"), news.to_string()));
                }
                AnnounceOutput::Count(name, wanted) => out.push(Output::Count(name, wanted)),
                AnnounceOutput::Floor(name, Some(stay)) => {
                    out.push(event(Level::Warn, format!("vip {name}"), stay.to_string()));
                }
                AnnounceOutput::Stalled(gone) => {
                    let message = format!(
                        "this host stood still for {:.1} s: the silence of the checks does not count",
                        gone.as_secs_f64()
                    );
                    out.push(event(Level::Warn, "standfast".to_owned(), message));
                }
                AnnounceOutput::HeldUp(gone) => {
                    let message = format!(
                        "held up for {:.1} s: their silence does not count until the next results are due",
                        gone.as_secs_f64()
                    );
                    out.push(event(Level::Warn, "checks".to_owned(), message));
                }
                AnnounceOutput::Pace(id, hurried) => out.push(Output::Pace(id, hurried)),
                AnnounceOutput::Floor(_, None)
                | AnnounceOutput::Address(..)
                | AnnounceOutput::Certain
                | AnnounceOutput::Arrived => {}
            }
        }
        self.let_go(now);
    }

    /// Tells each peer the table as it is now.
    pub(super) fn advertise(&mut self, now: Time, out: &mut Vec<Output>) {
        (self.advertised, self.advertise_at) = (Some(now), None);
        // What is in doubt is left out for a moment: the table is not the whole truth.
        let settled = self.announcer.is_settled() && !self.announcer.doubts();
        let partial = self.announcer.is_partial();
        let mut ribs: BTreeMap<Option<BTreeSet<String>>, Arc<crate::bgp::Rib>> = BTreeMap::new();
        for name in self.peers.keys().cloned().collect::<Vec<_>>() {
            // One that is about to go hears no more of it.
            let Some(peer) = self.plan.bgp.peers.get(&name) else { continue };
            let names = &peer.vips;
            let rib = if partial {
                let session = &self.peers[&name];
                Arc::new(self.announcer.rib(names.as_ref(), |p| session.told(p)))
            } else {
                let make = || Arc::new(self.announcer.rib(names.as_ref(), |_| true));
                ribs.entry(names.clone()).or_insert_with(make).clone()
            };
            let input = SessionInput::Advertise(rib, settled);
            self.with_session(&Owner::Peer(name), out, |s, o| s.handle(now, input, o), now);
        }
    }

    /// Plans to release the managed addresses that nobody needs and no session tells of any more.
    pub(super) fn let_go(&mut self, now: Time) {
        // What an earlier run left stays until it is known whether it is wanted: its route may live on by graceful restart.
        if self.leaving.is_empty() || !self.announcer.is_settled() {
            return;
        }
        let pending = self.peers.values().any(Session::pending);
        for address in &self.leaving {
            let prefix = Prefix::host(address.address);
            // One that is on another interface by now may be told for ever.
            let elsewhere = |a: &LocalAddress| {
                a.address == address.address && !self.leaving.contains(a) && self.announcer.has(a)
            };
            let told = !self.addresses.iter().any(elsewhere) && self.peers.values().any(|s| s.told(&prefix));
            if pending || told {
                self.releases.remove(address);
            } else {
                self.releases.entry(address.clone()).or_insert(now + LINGER);
            }
        }
    }

    fn release(&mut self, now: Time, out: &mut Vec<Output>) {
        let due: Vec<LocalAddress> =
            self.releases.iter().filter(|(_, at)| **at <= now).map(|(a, _)| a.clone()).collect();
        for address in due {
            self.releases.remove(&address);
            self.leaving.remove(&address);
            self.addresses.remove(&address);
            out.push(Output::Address(Change::Remove(address)));
        }
    }

    fn begin_stop(&mut self, now: Time, why: String, out: &mut Vec<Output>) {
        if self.stop.is_some() {
            return;
        }
        if self.farewell.is_none() {
            out.push(event(Level::Info, "standfast".to_owned(), format!("stopping: {why}")));
            self.farewell = Some(why.clone());
            self.announce(now, AnnounceInput::Leave(why), out);
            if self.announcer.drains() {
                return;
            }
            return self.stop_now(now, out);
        }
        let message = format!("stopping: {why}: no drain is waited for");
        out.push(event(Level::Info, "standfast".to_owned(), message));
        self.stop_now(now, out);
    }

    /// Withdraws everything, whatever drains.
    fn stop_now(&mut self, now: Time, out: &mut Vec<Output>) {
        let Some(why) = self.farewell.clone().filter(|_| self.stop.is_none()) else { return };
        self.stop = Some((now, why.clone()));
        self.announce(now, AnnounceInput::Stop(why), out);
        // What was withdrawn just before does not wait for its turn.
        if self.advertise_at.is_some() {
            self.advertise(now, out);
        }
        self.go_on_stopping(now, out);
    }

    /// Closes sessions when the withdrawals are out and have settled, then takes the addresses off.
    fn go_on_stopping(&mut self, now: Time, out: &mut Vec<Output>) {
        if self.stop.is_none() && self.farewell.is_some() && !self.announcer.drains() {
            return self.stop_now(now, out);
        }
        let Some((_, why)) = self.stop.clone() else { return };
        if self.withdrawn.is_none() && !self.peers.values().any(Session::pending) {
            self.withdrawn = Some(now);
        }
        if !self.closed && self.close_at().is_some_and(|at| at <= now) {
            let owners: Vec<Owner> = self
                .peers
                .keys()
                .map(|n| Owner::Peer(n.clone()))
                .chain(self.members.keys().map(|hop| Owner::Member(*hop)))
                .collect();
            // BFD goes on until the other ends have read that BGP ends: else some say that BFD failed, and hold it against this host.
            self.closed = true;
            self.stopped_at = Some(if self.beats.is_empty() { now } else { now + LAST_WORD });
            for owner in owners {
                let input = SessionInput::Stop(why.clone());
                self.with_session(&owner, out, |s, o| s.handle(now, input, o), now);
            }
            self.releases.clear();
            self.leaving.clear();
            for address in std::mem::take(&mut self.addresses) {
                out.push(Output::Address(Change::Remove(address)));
            }
        }
        if self.stopped_at.is_some_and(|at| at <= now) {
            self.stopped_at = None;
            self.end_bfd(out);
            out.push(Output::Stopped);
        }
    }

    /// Whether it said everything that there was to say.
    pub(super) const fn is_closed(&self) -> bool {
        self.closed
    }

    /// When a stop may close the sessions: at once if nobody was told anything, else the linger after all is written.
    fn close_at(&self) -> Option<Time> {
        let (since, _) = self.stop.as_ref().filter(|_| !self.closed)?;
        let announces = !self.plan.vips.is_empty();
        if !announces || self.peers.values().all(|s| s.state() != State::Established) {
            return Some(*since);
        }
        Some(self.withdrawn.map_or(*since + STOP_WAIT, |at| at + LINGER))
    }

    /// Takes what happened, as [`handle`](Machine::handle) does, but for the words on the listener's routes: for a driver that has the
    /// kernel changed before it asks to [`explain`](Self::explain) that.
    pub fn act(&mut self, now: Time, input: Input, out: &mut Vec<Output>) {
        self.explain(out);
        // Before anything else is told: was this host away?
        self.begin_bfd(now, out);
        let mut said = Vec::new();
        self.announcer.wake(now, &mut said);
        self.announced(now, said, self.announcer.is_settled(), out);
        match input {
            Input::Reported(id, verdict) => {
                self.announce(now, AnnounceInput::Reported(id, verdict), out);
            }
            Input::Connected { conn, local, remote } if conn >= ConnId::ACCEPTED => {
                self.accepted(now, conn, (local, remote), out);
            }
            Input::Connected { conn, local, remote } => {
                self.forward(now, conn, SessionInput::Connected { conn, local, remote }, out);
            }
            Input::Received(conn, octets) => {
                self.forward(now, conn, SessionInput::Received(conn, octets), out);
            }
            Input::Written(conn, queued) => {
                self.forward(now, conn, SessionInput::Written(conn, queued), out);
            }
            Input::Closed(conn, why) => self.forward(now, conn, SessionInput::Closed(conn, why), out),
            Input::Addresses(addresses) => {
                self.announce(now, AnnounceInput::Addresses(addresses), out);
            }
            Input::Links(links) => {
                self.links.clone_from(&links);
                let touched = self.listener.as_mut().map(|l| l.linked(links));
                self.reroute(now, touched.unwrap_or_default(), None, out);
            }
            Input::Left(addresses) => {
                let unwanted: Vec<_> = addresses.difference(&self.addresses).cloned().collect();
                self.leaving.extend(unwanted);
                self.addresses.extend(addresses);
                self.let_go(now);
            }
            Input::HeldUp(gone) => self.announce(now, AnnounceInput::HeldUp(gone), out),
            Input::Share(vip, percent) => self.announce(now, AnnounceInput::Share(vip, percent), out),
            Input::Undamp(vip) => {
                self.announce(now, AnnounceInput::Undamp(vip), out);
                out.push(Output::Remember);
            }
            Input::LowerPriorityFile(vip, exists) => {
                self.announce(now, AnnounceInput::LowerPriorityFile(vip, exists), out);
            }
            Input::Kernel(key, result) => match result {
                Ok(()) => {
                    if self.kernel_errors.remove(&key).is_some() && matches!(key, KernelKey::Listen(_)) {
                        out.push(event(Level::Info, key.to_string(), "open at last".to_owned()));
                    }
                }
                Err(why) => {
                    if self.kernel_errors.get(&key) != Some(&why) {
                        out.push(event(Level::Warn, key.to_string(), format!("pending: {why}")));
                    }
                    self.kernel_errors.insert(key, why);
                }
            },
            Input::Drain { member, vip, timeout } => {
                self.ordered(now, member, vip.as_deref(), Some(timeout), out);
            }
            Input::Undrain { member, vip } => self.ordered(now, member, vip.as_deref(), None, out),
            Input::DrainVip { vip, deadline } => {
                self.announce(now, AnnounceInput::Drain(vip, deadline), out);
                out.push(Output::Remember);
            }
            Input::UndrainVip { vip } => {
                self.announce(now, AnnounceInput::Undrain(vip), out);
                out.push(Output::Remember);
            }
            Input::Connections(vip, count) => {
                self.announce(now, AnnounceInput::Connections(vip, count), out);
            }
            Input::Buckets(prefix, buckets) => self.told_buckets(now, prefix, buckets, out),
            Input::Unsteered(why) => {
                if let Some(listener) = &mut self.listener {
                    listener.steered(why);
                }
            }
            Input::Restored(LocalAddress { address, interface }) => {
                let message = "somebody removed it: put back".to_owned();
                out.push(event(Level::Warn, format!("address {address} on {interface}"), message));
            }
            Input::Recalled(facts) => self.recall(now, *facts, out),
            Input::Bfd(key, report) => self.bfd_reported(now, key, report, out),
            Input::BfdUnsent(key, why) => self.bfd_unsent(now, key, why, out),
            Input::BfdCounted(counters) => self.bfd_counted(counters),
            Input::Plan(plan) => self.reload(now, plan, out),
            Input::Stop(why) => self.begin_stop(now, why, out),
        }
        self.go_on_stopping(now, out);
    }
}

impl Machine for Node {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Time, input: Input, out: &mut Vec<Output>) {
        self.act(now, input, out);
        self.explain(out);
    }

    fn tick(&mut self, now: Time, out: &mut Vec<Output>) {
        let owners = self.timers.due(now);
        for owner in owners {
            self.with_session(&owner, out, |s, o| s.tick(now, o), now);
        }
        if self.announcer.deadline().is_some_and(|(at, _)| at <= now) {
            let settled = self.announcer.is_settled();
            let mut said = Vec::new();
            self.announcer.tick(now, &mut said);
            self.announced(now, said, settled, out);
        }
        self.tick_listener(now, out);
        if self.advertise_at.is_some_and(|at| at <= now) {
            self.advertise(now, out);
        }
        if self.stop.is_none() {
            self.release(now, out);
            self.reflect_due(now, out);
        }
        self.tick_bfd(now, out);
        self.go_on_stopping(now, out);
        self.explain(out);
    }

    fn deadline(&self) -> Option<(Time, &'static str)> {
        let sessions = self.timers.first();
        let announcer = self.announcer.deadline();
        let release = self.releases.values().min().filter(|_| self.stop.is_none());
        let rest = earliest(release.map(|&t| (t, "address release")), self.close_at().map(|t| (t, "stop")));
        let rest = earliest(rest, self.stopped_at.map(|t| (t, "last word")));
        let rest = earliest(rest, self.advertise_at.map(|t| (t, "routes")));
        let reflect = self.reflect_at.filter(|_| self.stop.is_none());
        let rest = earliest(rest, reflect.map(|t| (t, "reflection")));
        let rest = earliest(rest, earliest(self.listener_deadline(), self.beats.deadline()));
        earliest(earliest(sessions, announcer), rest)
    }
}

pub(super) fn event(level: Level, about: String, message: String) -> Output {
    Output::Event(Event { level, about, message })
}

const fn v4(a: Option<IpAddr>) -> Option<Ipv4Addr> {
    match a {
        Some(IpAddr::V4(a)) => Some(a),
        _ => None,
    }
}

const fn v6(a: Option<IpAddr>) -> Option<Ipv6Addr> {
    match a {
        Some(IpAddr::V6(a)) if !crate::bgp::session::is_link_local(a) => Some(a),
        _ => None,
    }
}

/// The source of a peer's session, if it is given.
pub fn source(plan: &Plan, peer: &Peer) -> Option<IpAddr> {
    let same = |a: &IpAddr| Afi::of(*a) == Afi::of(peer.address);
    peer.local_address.or(plan.router.local_address).filter(same).or(match peer.address {
        IpAddr::V6(a) if !crate::bgp::session::is_link_local(a) => {
            plan.router.local_address_ipv6.map(IpAddr::V6)
        }
        _ => None,
    })
}

/// Whether a prefix is of a VIP with a floor.
pub(super) fn has_floor(plan: &Plan, prefix: &Prefix) -> bool {
    plan.vips.values().any(|vip| vip.floor.is_some() && vip.prefixes.contains(prefix))
}

pub(super) fn peer_config(plan: &Plan, peer: &Peer) -> PeerConfig {
    let told = |p: &Prefix, afi| p.afi() == afi;
    let prefixes: Vec<Prefix> = plan
        .vips
        .iter()
        .filter(|(name, _)| peer.vips.as_ref().is_none_or(|v| v.contains(*name)))
        .flat_map(|(_, v)| v.prefixes.iter().copied())
        .collect();
    let ipv6 = prefixes.iter().any(|p| told(p, Afi::Ipv6));
    PeerConfig {
        local_asn: plan.router.asn,
        router_id: plan.router.router_id,
        asn: peer.asn,
        remote: SocketAddr::new(peer.address, peer.port),
        interface: peer.interface.clone(),
        local: source(plan, peer),
        local_port: peer.local_port,
        ttl: peer.ttl,
        password: peer.password.clone(),
        passive: peer.passive,
        timers: peer.timers.clone(),
        open_wait: crate::bgp::session::OPEN_WAIT,
        bfd_hold: peer.bfd.as_ref().and_then(|bfd| bfd.strict),
        min_hold: None,
        ipv4: prefixes.iter().any(|p| told(p, Afi::Ipv4)) || !ipv6,
        ipv6,
        extended_next_hop: peer.extended_next_hop,
        graceful_restart: peer.graceful_restart,
        next_hop_v4: v4(peer.local_address).or(v4(plan.router.local_address)),
        next_hop_v6: v6(peer.local_address).or(plan.router.local_address_ipv6),
        // Only to read who else announces them.
        learn: prefixes.iter().any(|p| has_floor(plan, p)),
    }
}
