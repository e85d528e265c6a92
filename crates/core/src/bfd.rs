//! Liveness of the path to a peer, in a fraction of a second (BFD, RFC 5880): every session of this host.
//!
//! [`Bfd`] is told which sessions are wanted and which datagrams came, and gives datagrams to send and, when something
//! changes, a [`Report`] of a session. It knows nothing of BGP: what follows from a report is decided in `node`.
//!
//! Supported: asynchronous mode over one hop (RFC 5881) and several (RFC 5883), demand mode where the other end asks for
//! it, polls, keyed and meticulous keyed SHA1. Left out: asking for demand mode, the echo function (we offer none and send
//! none), passwords in clear, MD5, point-to-multipoint.
//!
//! ```text
//!                               +--+
//!                               |  | UP, ADMIN DOWN, TIMER
//!                               |  V
//!                       DOWN  +------+  INIT
//!                +------------|      |------------+
//!                |            | DOWN |            |
//!                |  +-------->|      |<--------+  |
//!                |  |         +------+         |  |
//!                |  | ADMIN DOWN,   ADMIN DOWN,|  |
//!                |  | TIMER         DOWN, TIMER|  |
//!                V  |                          |  V
//!              +------+                      +------+
//!         +----|      |       INIT, UP       |      |----+
//!    DOWN |    | INIT |--------------------->|  UP  |    | INIT, UP
//!         +--->|      |                      |      |<---+
//!              +------+                      +------+
//! ```
//!
//! (RFC 5880 §6.2; arrows are what the other end says, or that it says nothing.)

mod session;
pub mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::machine::{Machine, Rng, Time};
use crate::plan;
use crate::table::Change;
use session::Session;
use wire::{Diagnostic, Packet, Refusal};

/// The UDP port of single-hop sessions (RFC 5881 §4).
pub const PORT: u16 = 3784;
/// The UDP port of multihop sessions (RFC 5883 §5).
pub const MULTIHOP_PORT: u16 = 4784;
/// The most sessions at one time; more are reported as [`Reason::Full`] and wait until one of them is over.
pub const MAX_SESSIONS: usize = 4096;
/// What was counted is told once in this time.
const COUNTED: Duration = Duration::from_secs(1);

/// Who a session is with. There is one session with each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The other end.
    pub address: IpAddr,
    /// The index of the interface, for a link-local address that is not named in [`Config::interface`]; 0 otherwise.
    pub scope: u32,
    /// Over several hops.
    pub multihop: bool,
}

/// How a session is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Timers and keys.
    pub plan: plan::Bfd,
    /// Our address; `None`: the kernel's choice.
    pub local: Option<IpAddr>,
    /// The name of the interface of a link-local address.
    pub interface: Option<String>,
}

/// What happens to the sessions.
#[derive(Debug, Clone)]
pub enum Input {
    /// A session is wanted like this, or no more: then the other end is told that it is switched off, not dead.
    Wanted(Change<Key, Config>),
    /// A datagram came.
    Received {
        /// From whom, and over which port.
        from: Key,
        /// Its hop limit, where the kernel told it.
        ttl: Option<u8>,
        /// What is in it.
        octets: Vec<u8>,
    },
    /// Switch every session off, in order.
    Stop,
}

/// What the world is asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send a datagram.
    Send(Key, Vec<u8>),
    /// Something changed.
    Report(Key, Report),
    /// What was counted over all sessions: told a second after a change, at the earliest.
    Counted(Counters),
    /// A session is over: nothing is sent for it any more.
    Closed(Key),
    /// [`Input::Stop`] is done.
    Stopped,
}

/// States of RFC 5880 §6.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Switched off.
    AdminDown = 0,
    /// Nothing is heard, or the other end just went down.
    Down = 1,
    /// The other end is heard, and may not hear us.
    Init = 2,
    /// Each end hears the other.
    Up = 3,
}

impl State {
    /// The state that two bits stand for.
    const fn of_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::AdminDown,
            1 => Self::Down,
            2 => Self::Init,
            _ => Self::Up,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AdminDown => "admindown",
            Self::Down => "down",
            Self::Init => "init",
            Self::Up => "up",
        })
    }
}

/// Why a session is in its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// It was not up yet.
    New,
    /// Each end hears the other.
    Up,
    /// Nothing was heard for this long.
    Silent(Duration),
    /// The other end says that it is down, for this reason of its own.
    Signalled(Diagnostic),
    /// Somebody switched it off at the other end: that says nothing of the path.
    PeerAdminDown,
    /// We switched it off.
    AdminDown,
    /// There are [`MAX_SESSIONS`] others.
    Full,
    /// No packet can be sent or received, for this reason.
    Unavailable(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New => f.write_str("not up yet"),
            Self::Up => f.write_str("up"),
            Self::Silent(d) => write!(f, "nothing heard from the peer for {} ms", d.as_millis()),
            Self::Signalled(Diagnostic::EXPIRED) => {
                f.write_str("the peer says it is down: it heard nothing from here for its detection time")
            }
            Self::Signalled(Diagnostic::NONE) => f.write_str("the peer says it is down: it started anew"),
            Self::Signalled(diagnostic) => write!(f, "the peer says it is down: {diagnostic}"),
            Self::PeerAdminDown => f.write_str("the peer switched BFD off"),
            Self::AdminDown => f.write_str("switched off here"),
            Self::Full => write!(f, "there are {MAX_SESSIONS} BFD sessions already"),
            Self::Unavailable(why) => f.write_str(why),
        }
    }
}

/// What can be seen of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Its state.
    pub state: State,
    /// The diagnostic that we send.
    pub diagnostic: Diagnostic,
    /// The same in words, and more of it.
    pub reason: Reason,
    /// How often it was up and then lost, without anybody having switched it off.
    pub losses: u64,
    /// The other end's state; `None` while nothing is heard.
    pub peer_state: Option<State>,
    /// The diagnostic that it sent last.
    pub peer_diagnostic: Diagnostic,
    /// Time between two packets of ours, without jitter.
    pub tx_interval: Duration,
    /// Time between two packets of the other end; `None` while nothing is heard.
    pub rx_interval: Option<Duration>,
    /// How long the other end's silence is borne; `None` while nothing is heard.
    pub detection_time: Option<Duration>,
    /// The other end asked for demand mode.
    pub demanded: bool,
    /// The other end's BFD outlives its control plane.
    pub control_plane_independent: bool,
    /// Packets that were for this session and were dropped.
    pub refused: u64,
    /// Why the last of them was.
    pub last_refusal: Option<Refusal>,
}

impl Report {
    /// That of a session that cannot be.
    pub fn unavailable(why: Reason) -> Self {
        Self {
            state: State::Down,
            diagnostic: Diagnostic::NONE,
            reason: why,
            losses: 0,
            peer_state: None,
            peer_diagnostic: Diagnostic::NONE,
            tx_interval: Duration::ZERO,
            rx_interval: None,
            detection_time: None,
            demanded: false,
            control_plane_independent: false,
            refused: 0,
            last_refusal: None,
        }
    }

    /// Whether a BGP session that waits for BFD may go on: it is up, or switched off at the other end (RFC 5882 §3.2).
    pub fn lets_pass(&self) -> bool {
        self.state == State::Up || self.reason == Reason::PeerAdminDown
    }
}

/// Packets, over all sessions, since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counters {
    /// Sent.
    pub sent: u64,
    /// Received and taken.
    pub received: u64,
    /// Received and dropped, by reason.
    pub refused: BTreeMap<Refusal, u64>,
}

/// All BFD sessions of a host.
#[derive(Debug)]
pub struct Bfd {
    rng: Rng,
    /// The upper half of every discriminator.
    tag: u16,
    sessions: BTreeMap<Key, Session>,
    discriminators: BTreeMap<u32, Key>,
    /// When each session has something to do.
    due: BTreeSet<(Time, Key)>,
    reported: BTreeMap<Key, Report>,
    /// Sessions that there is no room for.
    waiting: BTreeMap<Key, plan::Bfd>,
    counters: Counters,
    count_at: Option<Time>,
    /// Sessions whose dropped packets were not told yet.
    refused: BTreeSet<Key>,
    stopping: bool,
    stopped: bool,
}

impl Bfd {
    /// No sessions yet. Discriminators, the first sequence numbers and jitter come from `seed`.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        // At most 65535, and never 0.
        let tag = 1 + rng.below(u64::from(u16::MAX)) as u16;
        Self {
            rng,
            tag,
            sessions: BTreeMap::new(),
            discriminators: BTreeMap::new(),
            due: BTreeSet::new(),
            reported: BTreeMap::new(),
            waiting: BTreeMap::new(),
            counters: Counters::default(),
            count_at: None,
            refused: BTreeSet::new(),
            stopping: false,
            stopped: false,
        }
    }

    /// The upper half of every discriminator of this host. Who sends it has heard one of its sessions: that tells known senders from
    /// strangers before anything is read.
    pub const fn tag(&self) -> u16 {
        self.tag
    }

    /// How many sessions there are.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Packets since the start.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    fn wanted(&mut self, now: Time, change: Change<Key, Config>, out: &mut Vec<Output>) {
        let (key, plan) = match change {
            Change::Set(key, Config { plan, .. }) if !self.stopping => (key, plan),
            Change::Set(key, _) | Change::Remove(key) => {
                if self.waiting.remove(&key).is_some() {
                    out.push(Output::Closed(key));
                }
                if !self.sessions.contains_key(&key) {
                    self.reported.remove(&key);
                }
                return self.with(now, key, out, |session, _, _| session.leave(now));
            }
        };
        let mut adopted = false;
        self.with(now, key, out, |session, rng, _| adopted = session.adopt(now, &plan, rng));
        if adopted {
            return;
        }
        if self.sessions.len() >= MAX_SESSIONS && !self.sessions.contains_key(&key) {
            self.waiting.insert(key, plan);
            self.report(key, Report::unavailable(Reason::Full), out);
            return;
        }
        self.begin(now, key, plan, out);
    }

    /// Begins a session, in place of one with the same peer that is leaving.
    fn begin(&mut self, now: Time, key: Key, plan: plan::Bfd, out: &mut Vec<Output>) {
        self.forget(key);
        let discriminator = self.discriminator();
        self.discriminators.insert(discriminator, key);
        // Only its last 32 bits are used.
        let session = Session::new(now, plan, discriminator, self.rng.next_u64() as u32);
        if let Some((at, _)) = session.deadline() {
            self.due.insert((at, key));
        }
        let report = session.report();
        self.sessions.insert(key, session);
        self.report(key, report, out);
    }

    /// A discriminator that no session has. There are many more of them than sessions.
    fn discriminator(&mut self) -> u32 {
        loop {
            let one = u32::from(self.tag) << 16 | (self.rng.next_u64() >> 48) as u32;
            if !self.discriminators.contains_key(&one) {
                return one;
            }
        }
    }

    fn received(&mut self, now: Time, from: Key, ttl: Option<u8>, octets: &[u8], out: &mut Vec<Output>) {
        let taken = match self.select(from, ttl, octets) {
            Err(refusal) => Err(refusal),
            Ok((packet, section)) => {
                let mut result = Ok(());
                self.with(now, from, out, |session, rng, replies| {
                    result = session.receive(now, &packet, (octets, section), rng, replies);
                    if let Err(refusal) = result {
                        session.refused += 1;
                        session.last_refusal = Some(refusal);
                    }
                });
                result
            }
        };
        match taken {
            Ok(()) => self.counters.received += 1,
            Err(refusal) => *self.counters.refused.entry(refusal).or_default() += 1,
        }
        self.count_at.get_or_insert(now + COUNTED);
    }

    /// The packet, if it is for the session with its sender (§6.8.6). Nothing is done for one that is for nobody.
    fn select(
        &mut self,
        from: Key,
        ttl: Option<u8>,
        octets: &[u8],
    ) -> Result<(Packet, Option<wire::Authentication>), Refusal> {
        let Some(session) = self.sessions.get_mut(&from) else { return Err(Refusal::NoSession) };
        let judged = if ttl.is_none_or(|ttl| ttl < session.min_ttl()) {
            Err(Refusal::Hops)
        } else {
            Packet::decode(octets).and_then(|(packet, section)| match packet.your_discriminator {
                yours if yours == session.discriminator || yours == 0 => Ok((packet, section)),
                yours if self.discriminators.contains_key(&yours) => Err(Refusal::Source),
                _ => Err(Refusal::NoSession),
            })
        };
        if let Err(refusal) = judged {
            session.refused += 1;
            session.last_refusal = Some(refusal);
            self.refused.insert(from);
        }
        judged
    }

    /// Lets `f` do something with a session, and sees to what follows from it.
    fn with(
        &mut self,
        now: Time,
        key: Key,
        out: &mut Vec<Output>,
        f: impl FnOnce(&mut Session, &mut Rng, &mut Vec<Vec<u8>>),
    ) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if let Some((at, _)) = session.deadline() {
            self.due.remove(&(at, key));
        }
        let mut packets = Vec::new();
        f(session, &mut self.rng, &mut packets);
        // What became due by it leaves with it. Nobody is judged here: more packets may be waiting.
        session.send(now, &mut self.rng, &mut packets);
        if let Some((at, _)) = session.deadline() {
            self.due.insert((at, key));
        }
        let (report, over) = (session.report(), session.is_over());
        if !packets.is_empty() {
            self.counters.sent += packets.len() as u64;
            self.count_at.get_or_insert(now + COUNTED);
        }
        out.extend(packets.into_iter().map(|packet| Output::Send(key, packet)));
        self.report(key, report, out);
        if over {
            self.forget(key);
            out.push(Output::Closed(key));
            if let Some((key, plan)) = self.waiting.pop_first() {
                self.begin(now, key, plan, out);
            }
        }
    }

    /// Tells what is new of a session. That packets were dropped is told later: many may come.
    fn report(&mut self, key: Key, report: Report, out: &mut Vec<Output>) {
        let old = self.reported.get(&key);
        let same = old.is_some_and(|old| {
            *old == Report { refused: old.refused, last_refusal: old.last_refusal, ..report.clone() }
        });
        if same {
            if old.is_some_and(|old| old.refused != report.refused) {
                self.refused.insert(key);
            }
            return;
        }
        self.refused.remove(&key);
        self.reported.insert(key, report.clone());
        out.push(Output::Report(key, report));
    }

    fn forget(&mut self, key: Key) {
        if let Some(session) = self.sessions.remove(&key) {
            self.discriminators.remove(&session.discriminator);
            if let Some((at, _)) = session.deadline() {
                self.due.remove(&(at, key));
            }
        }
        self.reported.remove(&key);
        self.refused.remove(&key);
    }

    fn go_on_stopping(&mut self, out: &mut Vec<Output>) {
        if self.stopping && !self.stopped && self.sessions.is_empty() {
            self.stopped = true;
            out.push(Output::Stopped);
        }
    }
}

impl Machine for Bfd {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Time, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Wanted(change) => self.wanted(now, change, out),
            Input::Received { from, ttl, octets } => self.received(now, from, ttl, &octets, out),
            Input::Stop => {
                self.stopping = true;
                self.waiting.clear();
                for key in self.sessions.keys().copied().collect::<Vec<_>>() {
                    self.with(now, key, out, |session, _, _| session.leave(now));
                }
            }
        }
        self.go_on_stopping(out);
    }

    fn tick(&mut self, now: Time, out: &mut Vec<Output>) {
        while let Some(&(at, key)) = self.due.first() {
            if at > now {
                break;
            }
            self.with(now, key, out, |session, rng, packets| session.tick(now, rng, packets));
        }
        if self.count_at.is_some_and(|at| at <= now) {
            self.count_at = None;
            for key in std::mem::take(&mut self.refused) {
                if let Some(session) = self.sessions.get(&key) {
                    let report = session.report();
                    self.reported.insert(key, report.clone());
                    out.push(Output::Report(key, report));
                }
            }
            out.push(Output::Counted(self.counters.clone()));
        }
        self.go_on_stopping(out);
    }

    fn deadline(&self) -> Option<(Time, &'static str)> {
        let session = self.due.first().map(|&(at, _)| (at, "bfd session"));
        crate::machine::earliest(session, self.count_at.map(|at| (at, "bfd counters")))
    }
}
