//! One peer: dialling with back-off, at most two connections (`choose` says which of them it is), and the Adj-RIB-Out.
//!
//! [`SessionInput::Advertise`] carries the whole wanted table; the session keeps what it told and sends the difference,
//! as one UPDATE where one replaces the other. It queues at most [`WINDOW`] octets, so that a peer that reads slowly costs
//! no memory: the rest stays wanted, is shown as pending, and follows when the peer reads. Losing the connection forgets
//! what was told. What a peer sends is checked, and dropped unless `learn` is set.

mod choose;
mod export;

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::connection::{Connection, Expired};
use super::wire::{self, Message, Update};
use super::{Down, Negotiated, Notification, Path, Rib, State};
use crate::machine::{Machine, Rng, Time, earliest};
use crate::node::{ConnId, Dial, Level};
use crate::plan::{PeerAsn, Secret, Timers, Ttl};
use crate::prefix::{Afi, Prefix};

/// Most octets queued on a connection before the session waits for the peer to read.
pub const WINDOW: usize = 64 * 1024;
/// How long a connection may take from its first octet to Established, unless a range says otherwise.
pub const OPEN_WAIT: Duration = Duration::from_secs(15);
/// A session that stood this long is forgotten its earlier failures.
const STABLE: Duration = Duration::from_secs(10);
/// A dial that gets no answer is begun anew after this long, so that a peer's return is met by a fresh SYN.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest pause while nobody answers on the peer's port: knocking is cheap, and its return must be met quickly.
const KNOCK: Duration = Duration::from_secs(1);
/// A session that stood this long and was then lost on its way, not ended by a peer that had enough of it, is no refusal.
const SERVED: Duration = Duration::from_secs(1);
/// Malformed UPDATEs are noted once in this time.
const NOTE_PAUSE: Duration = Duration::from_secs(60);
/// The longest that a restarted speaker waits for its checks before it says End-of-RIB.
const SETTLE: Duration = Duration::from_secs(60);

/// A subcode of Cease (RFC 4486 §3): Administrative Shutdown.
const SHUTDOWN: u8 = 2;
/// Peer De-configured.
pub(crate) const DE_CONFIGURED: u8 = 3;
/// Other Configuration Change, of a session that may be opened anew.
pub(crate) const CONFIGURATION: u8 = 6;

/// One peer, as a session needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerConfig {
    /// Our AS number.
    pub local_asn: u32,
    /// Our BGP identifier.
    pub router_id: Ipv4Addr,
    /// The AS number it must show.
    pub asn: PeerAsn,
    /// Where to dial.
    pub remote: SocketAddr,
    /// Interface of a link-local address.
    pub interface: Option<String>,
    /// Source address of the dial.
    pub local: Option<IpAddr>,
    /// Source port of the dial.
    pub local_port: Option<u16>,
    /// Hop limit.
    pub ttl: Ttl,
    /// TCP MD5 key.
    pub password: Option<Secret>,
    /// Never dial.
    pub passive: bool,
    /// Timers.
    pub timers: Timers,
    /// How long a connection may take from its first octet to Established.
    pub open_wait: Duration,
    /// A connection is completed only once BFD is up, and waits for that so long; `None`: it does not wait.
    pub bfd_hold: Option<Duration>,
    /// Least hold time accepted; zero offers are refused then too.
    pub min_hold: Option<Duration>,
    /// IPv4 unicast is offered.
    pub ipv4: bool,
    /// IPv6 unicast is offered.
    pub ipv6: bool,
    /// RFC 8950 is offered.
    pub extended_next_hop: bool,
    /// Graceful restart is offered, with this restart time.
    pub graceful_restart: Option<Duration>,
    /// Next hop of IPv4 routes; `None`: the session's local address.
    pub next_hop_v4: Option<Ipv4Addr>,
    /// Next hop of IPv6 routes; `None`: the session's local address.
    pub next_hop_v6: Option<Ipv6Addr>,
    /// Give what the peer announces to the owner; otherwise it is checked and dropped.
    pub learn: bool,
}

impl PeerConfig {
    /// Whether a session that was opened by this one goes on as it is with `new`: nothing of what both ends agreed on, and of the
    /// connection itself, is another. A family that is not offered any more may stay agreed.
    pub fn goes_on_with(&self, new: &Self) -> bool {
        let Self {
            local_asn,
            router_id,
            asn,
            remote,
            interface,
            local,
            local_port,
            ttl,
            password,
            passive: _,
            timers: Timers { hold, keepalive, connect_retry: _, connect_retry_max: _, send_hold: _ },
            open_wait: _,
            bfd_hold: _,
            min_hold,
            ipv4,
            ipv6,
            extended_next_hop,
            graceful_restart,
            next_hop_v4,
            next_hop_v6,
            learn: _,
        } = self;
        (local_asn, router_id, asn, remote, interface, local, local_port, ttl, password)
            == (
                &new.local_asn,
                &new.router_id,
                &new.asn,
                &new.remote,
                &new.interface,
                &new.local,
                &new.local_port,
                &new.ttl,
                &new.password,
            )
            && (hold, keepalive) == (&new.timers.hold, &new.timers.keepalive)
            && *min_hold >= new.min_hold
            && (*ipv4 || !new.ipv4)
            && (*ipv6 || !new.ipv6)
            && (extended_next_hop, graceful_restart) == (&new.extended_next_hop, &new.graceful_restart)
            && (next_hop_v4, next_hop_v6) == (&new.next_hop_v4, &new.next_hop_v6)
    }
}

impl PeerConfig {
    /// A family that sessions were not opened with and that alone keeps them from going on with `new`.
    pub fn lacks(&self, new: &Self) -> Option<Afi> {
        let others = Self { ipv4: self.ipv4, ipv6: self.ipv6, ..new.clone() };
        match (new.ipv4 && !self.ipv4, new.ipv6 && !self.ipv6) {
            _ if !self.goes_on_with(&others) => None,
            (true, _) => Some(Afi::Ipv4),
            (_, true) => Some(Afi::Ipv6),
            _ => None,
        }
    }
}

/// What happens to a session.
#[derive(Debug, Clone)]
pub enum SessionInput {
    /// A dial of ours succeeded, or the peer's connection was accepted.
    Connected {
        /// The connection.
        conn: ConnId,
        /// Our end.
        local: SocketAddr,
        /// The peer's end.
        remote: SocketAddr,
    },
    /// Octets arrived.
    Received(ConnId, Bytes),
    /// The socket took octets; this many are still queued.
    Written(ConnId, usize),
    /// The connection ended or the dial failed.
    Closed(ConnId, String),
    /// The whole table to tell, and whether it is settled: every health known, so that End-of-RIB may be said.
    Advertise(Arc<Rib>, bool),
    /// What BFD knows of the way to the peer, whenever that changes.
    Liveness(Liveness),
    /// Tell the peer this, for this reason, and end its connections. The session goes on as after any other end.
    End(Notification, String),
    /// The peer is to be treated like this from now on. A session that does not [go on](PeerConfig::goes_on_with) with it ends
    /// (Cease, Other Configuration Change: RFC 4486 §4) and is opened anew at once.
    Reconfigure(Box<PeerConfig>),
    /// Ask the peer to say everything again (RFC 2918), where it can.
    Refresh,
    /// The peer is none any more, for this reason: as [`Stop`](Self::Stop) (Cease, Peer De-configured).
    Remove(String),
    /// Withdraw everything, then leave for this reason. The session stays down.
    Stop(String),
}

/// What BFD knows of the way to a peer (RFC 5882).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Liveness {
    /// Each end hears the other, or BFD is switched off at the other end: a peer that was away is dialled at once, and a
    /// session that waits for BFD goes on.
    Alive,
    /// It is not up, and was not: that ends no session.
    Unknown,
    /// It was up and went down for this reason: the session ends at once (RFC 9384), and is not completed again before BFD is up or
    /// so much time has passed.
    Lost(String, Duration),
}

/// What a session asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum SessionOutput {
    /// Open a connection.
    Dial(Dial),
    /// Queue octets.
    Send(ConnId, Bytes),
    /// Close after what is queued has left, or after a second.
    Close(ConnId),
    /// Give the connection up if the other end leaves octets unacknowledged for so long; `None`: as long as the system bears it.
    Patience(ConnId, Option<Duration>),
    /// The session is established.
    Up,
    /// The session was established and is not any more: what was learned from it is gone.
    Down,
    /// What an UPDATE said (`learn`).
    Learned(Update),
    /// Something an operator would want to know.
    Note(Level, String),
}

/// What can be seen of a session.
#[derive(Debug, Clone)]
pub struct SessionStatus {
    /// State of its most advanced connection.
    pub state: State,
    /// Since when it is established, or not.
    pub since: Time,
    /// Why it last went down, or was refused.
    pub down: Down,
    /// What became of the last attempt since, if that says less: nobody answered, or the connection just ended.
    pub attempt: Option<Down>,
    /// What was agreed, while established.
    pub negotiated: Option<Negotiated>,
    /// What the peer was told.
    pub told: BTreeMap<Prefix, Path>,
    /// Whether anything wanted has not reached the socket yet.
    pub pending: bool,
    /// Prefixes that cannot be told to this peer, and why.
    pub held: BTreeMap<Prefix, String>,
    /// UPDATEs received.
    pub updates_received: u64,
    /// UPDATEs sent.
    pub updates_sent: u64,
}

/// The machine of one peer.
#[derive(Debug)]
pub struct Session {
    config: PeerConfig,
    rng: Rng,
    next_conn: u64,
    start: Time,
    stopped: Option<String>,
    dialling: Option<ConnId>,
    /// When the last dial began.
    dialled: Time,
    alive: bool,
    /// BFD was lost, and is waited for until then.
    lost: Option<Time>,
    retry_at: Option<Time>,
    knocks: u32,
    refusals: u32,
    connections: Vec<Connection>,
    rib: Arc<Rib>,
    settled: bool,
    wanted: BTreeMap<Prefix, Path>,
    held: BTreeMap<Prefix, String>,
    told: BTreeMap<Prefix, Path>,
    resend: BTreeSet<Prefix>,
    end_of_rib_due: Option<Time>,
    refresh: BTreeSet<Afi>,
    refresh_after: Time,
    since: Time,
    down: Down,
    attempt: Option<Down>,
    noted: Option<String>,
    malformed_noted: Option<Time>,
    updates_received: u64,
    updates_sent: u64,
}

impl Session {
    /// A session that dials at once, unless it is passive. Its connections are numbered from `first_conn` up.
    pub fn new(now: Time, config: PeerConfig, seed: u64, first_conn: ConnId) -> Self {
        let retry_at = (!config.passive).then_some(now);
        Self {
            config,
            rng: Rng::new(seed),
            next_conn: first_conn.0,
            start: now,
            stopped: None,
            dialling: None,
            dialled: now,
            alive: false,
            lost: None,
            retry_at,
            knocks: 0,
            refusals: 0,
            connections: Vec::new(),
            rib: Arc::default(),
            settled: false,
            wanted: BTreeMap::new(),
            held: BTreeMap::new(),
            told: BTreeMap::new(),
            resend: BTreeSet::new(),
            end_of_rib_due: None,
            refresh: BTreeSet::new(),
            refresh_after: now,
            since: now,
            down: Down::NeverUp,
            attempt: None,
            noted: None,
            malformed_noted: None,
            updates_received: 0,
            updates_sent: 0,
        }
    }

    /// What can be seen of it.
    pub fn status(&self) -> SessionStatus {
        SessionStatus {
            state: self.state(),
            since: self.since,
            down: self.down.clone(),
            attempt: self.attempt.clone(),
            negotiated: self.established().and_then(|i| self.connections[i].negotiated.clone()),
            told: self.told.clone(),
            pending: self.pending(),
            held: self.held.clone(),
            updates_received: self.updates_received,
            updates_sent: self.updates_sent,
        }
    }

    /// State of the most advanced connection.
    pub fn state(&self) -> State {
        match self.connections.iter().map(|c| c.state).max() {
            Some(state) => state,
            None if self.stopped.is_some() => State::Idle,
            None if self.dialling.is_some() => State::Connect,
            None => State::Active,
        }
    }

    /// What was agreed, while established.
    pub fn negotiated(&self) -> Option<&Negotiated> {
        self.established().and_then(|i| self.connections[i].negotiated.as_ref())
    }

    /// Whether the peer was told a prefix. While something is [`pending`](Self::pending) a withdrawal may not be on the wire yet.
    pub fn told(&self, prefix: &Prefix) -> bool {
        self.told.contains_key(prefix)
    }

    /// Whether anything wanted has not reached the socket yet.
    pub fn pending(&self) -> bool {
        self.established().is_some_and(|i| {
            self.connections[i].queued > 0 || self.told != self.wanted || !self.resend.is_empty()
        })
    }

    /// Whether it is over: stopped, and every connection gone.
    pub fn is_over(&self) -> bool {
        self.stopped.is_some() && self.connections.is_empty() && self.dialling.is_none()
    }

    /// Whether it has no connection at all.
    pub fn is_idle(&self) -> bool {
        self.connections.is_empty() && self.dialling.is_none()
    }

    /// Where it dials, or was first dialled from.
    pub const fn remote(&self) -> SocketAddr {
        self.config.remote
    }

    /// Our end of its most advanced connection.
    pub fn local(&self) -> Option<SocketAddr> {
        self.connections.iter().max_by_key(|c| c.state).map(|c| c.local)
    }

    /// Whether `conn` is one of its connections.
    pub fn owns(&self, conn: ConnId) -> bool {
        self.dialling == Some(conn) || self.index(conn).is_some()
    }

    fn established(&self) -> Option<usize> {
        self.connections.iter().position(|c| c.state == State::Established)
    }

    fn index(&self, conn: ConnId) -> Option<usize> {
        self.connections.iter().position(|c| c.id == conn)
    }

    fn internal(&self, asn: u32) -> bool {
        asn == self.config.local_asn
    }

    fn dial(&mut self, now: Time, out: &mut Vec<SessionOutput>) {
        let conn = ConnId(self.next_conn);
        self.next_conn += 1;
        (self.dialling, self.dialled) = (Some(conn), now);
        let internal = match self.config.asn {
            PeerAsn::Number(n) => self.internal(n),
            PeerAsn::Internal => true,
            PeerAsn::External => false,
        };
        out.push(SessionOutput::Dial(Dial {
            conn,
            remote: self.config.remote,
            interface: self.config.interface.clone(),
            local: self.config.local,
            local_port: self.config.local_port,
            ttl: self.config.ttl,
            internal,
            password: self.config.password.clone(),
            timeout: DIAL_TIMEOUT,
        }));
    }

    fn received(&mut self, now: Time, conn: ConnId, octets: &[u8], out: &mut Vec<SessionOutput>) {
        if let Some(i) = self.index(conn) {
            self.connections[i].receive(octets);
        }
        // Each message may end this connection or another one, so the index is looked up anew.
        while let Some(i) = self.index(conn) {
            if self.connections[i].deferred.is_some() {
                if self.connections[i].is_flooded() {
                    self.unexpected(now, i, "octets", 1, out);
                }
                break;
            }
            match self.connections[i].next_message() {
                None => break,
                Some(Ok(message)) => self.message(now, i, message, out),
                Some(Err(notification)) => {
                    self.refuse(now, i, notification, "malformed message".to_owned(), out);
                }
            }
        }
    }

    fn message(&mut self, now: Time, i: usize, message: Message, out: &mut Vec<SessionOutput>) {
        let state = self.connections[i].state;
        match (state, message) {
            (_, Message::Notification(n)) => self.end(now, i, Down::Received(n), out),
            (State::OpenSent, Message::Open(open)) => self.opened(now, i, &open, out),
            (State::OpenConfirm, Message::Keepalive) => self.up(now, i, out),
            (State::Established, message) => {
                let conn = self.connections[i].id;
                self.connections[i].heard(now);
                self.stands(now, i, out);
                let Some(i) = self.index(conn) else { return };
                match message {
                    Message::Update(update) => self.update(now, i, &update, out),
                    Message::RouteRefresh(Some(afi)) => {
                        self.refresh.insert(afi);
                        self.pump(now, out);
                    }
                    Message::Open(_) => self.unexpected(now, i, "OPEN", 3, out),
                    _ => {}
                }
            }
            (State::OpenConfirm, other) => self.unexpected(now, i, other.name(), 2, out),
            (_, other) => self.unexpected(now, i, other.name(), 1, out),
        }
    }

    /// A message that the state does not allow (RFC 6608).
    fn unexpected(&mut self, now: Time, i: usize, what: &str, subcode: u8, out: &mut Vec<SessionOutput>) {
        let why = format!("unexpected {what} in state {}", self.connections[i].state);
        self.refuse(now, i, Notification::new(5, subcode), why, out);
    }

    /// Ends the connections that are not `spared`.
    fn end_all(
        &mut self,
        now: Time,
        n: &Notification,
        why: &str,
        spared: fn(&Connection) -> bool,
        out: &mut Vec<SessionOutput>,
    ) {
        let conns: Vec<ConnId> = self.connections.iter().filter(|c| !spared(c)).map(|c| c.id).collect();
        for conn in conns {
            if let Some(i) = self.index(conn) {
                self.refuse(now, i, n.clone(), why.to_owned(), out);
            }
        }
    }

    fn up(&mut self, now: Time, i: usize, out: &mut Vec<SessionOutput>) {
        let conn = self.connections[i].id;
        self.connections[i].establish(now);
        let others: Vec<ConnId> = self.connections.iter().map(|c| c.id).filter(|&c| c != conn).collect();
        for other in others {
            if let Some(i) = self.index(other) {
                self.refuse(now, i, Notification::new(6, 7), "connection collision".to_owned(), out);
            }
        }
        self.since = now;
        self.retry_at = None;
        self.attempt = None;
        self.knocks = 0;
        self.noted = None;
        self.told.clear();
        self.resend.clear();
        self.refresh.clear();
        let restarts = self.negotiated().is_some_and(|n| n.graceful_restart);
        self.end_of_rib_due = Some(if restarts { now + SETTLE } else { now });
        out.push(SessionOutput::Up);
        self.note_up(out);
        self.resolve();
        self.pump(now, out);
    }

    fn note_up(&self, out: &mut Vec<SessionOutput>) {
        let Some(n) = self.negotiated() else { return };
        let families = match (n.ipv4, n.ipv6) {
            (true, true) => "IPv4 and IPv6",
            (true, false) => "IPv4",
            (false, true) => "IPv6",
            (false, false) => "no address family in common: nothing can be announced",
        };
        let level = if n.ipv4 || n.ipv6 { Level::Info } else { Level::Warn };
        let text = format!(
            "established: AS {}, router id {}, hold {} s, {families}",
            n.asn,
            n.router_id,
            n.hold.as_secs()
        );
        out.push(SessionOutput::Note(level, text));
    }

    fn update(
        &mut self,
        now: Time,
        i: usize,
        update: &rustbgpd_wire::UpdateMessage,
        out: &mut Vec<SessionOutput>,
    ) {
        self.updates_received += 1;
        let Some(n) = &self.connections[i].negotiated else { return };
        // The next hop that is the peer's own for certain, of the two that an IPv6 route may have.
        let link_local = matches!(self.config.remote.ip(), IpAddr::V6(a) if is_link_local(a));
        let external = (!self.internal(n.asn)).then_some(n.asn);
        match wire::parse_update(update, n.four_octet_as, external, link_local) {
            Ok(mut update) => {
                if let Some(what) = &update.malformed
                    && self.malformed_noted.is_none_or(|at| now.since(at) >= NOTE_PAUSE)
                {
                    self.malformed_noted = Some(now);
                    out.push(SessionOutput::Note(Level::Warn, format!("malformed UPDATE: {what}")));
                }
                // Not for us: a loop (RFC 4271 §9.1.2), a family or a kind of next hop (RFC 8950) that was not agreed.
                // What the peer said before of such a prefix is gone all the same.
                let usable = |(prefix, path): &(Prefix, Path)| {
                    let same = Afi::of(path.next_hop) == prefix.afi();
                    n.has(prefix.afi())
                        && (same || n.extended_next_hop && prefix.afi() == Afi::Ipv4)
                        && !path.as_path.contains(&self.config.local_asn)
                };
                let (used, unused) = update.announced.into_iter().partition(usable);
                let unused: Vec<(Prefix, Path)> = unused;
                update.announced = used;
                update.withdrawn.extend(unused.into_iter().map(|(prefix, _)| prefix));
                if self.config.learn {
                    out.push(SessionOutput::Learned(update));
                }
            }
            Err(n) => self.refuse(now, i, n, "malformed UPDATE".to_owned(), out),
        }
    }

    /// Sends a NOTIFICATION and ends the connection.
    fn refuse(
        &mut self,
        now: Time,
        i: usize,
        notification: Notification,
        why: String,
        out: &mut Vec<SessionOutput>,
    ) {
        self.connections[i].send(now, wire::notification(&notification), out);
        self.end(now, i, Down::Sent(notification, why), out);
    }

    /// Ends a connection and plans what follows.
    fn end(&mut self, now: Time, i: usize, why: Down, out: &mut Vec<SessionOutput>) {
        let connection = self.connections.swap_remove(i);
        out.push(SessionOutput::Close(connection.id));
        let was_up = connection.state == State::Established;
        if was_up {
            self.told.clear();
            self.resend.clear();
            self.end_of_rib_due = None;
            self.down = why.clone();
            self.attempt = None;
            let stood = now.since(connection.since);
            self.since = now;
            self.refusals = match self.refusals {
                _ if stood >= STABLE => 0,
                _ if stood >= SERVED && why.is_on_the_way() => 1,
                n => n.saturating_add(1),
            };
            out.push(SessionOutput::Down);
            let level = if matches!(why, Down::Stopped(_)) { Level::Info } else { Level::Warn };
            out.push(SessionOutput::Note(level, format!("down: {why}")));
        } else if self.connections.is_empty() {
            self.refusals = self.refusals.saturating_add(1);
            self.note_once(Level::Warn, format!("not established: {why}"), out);
            self.failed(why);
        } else {
            out.push(SessionOutput::Note(Level::Debug, format!("one of two connections ended: {why}")));
        }
        self.resume(now, out);
        if self.stopped.is_none()
            && !self.config.passive
            && self.connections.is_empty()
            && self.dialling.is_none()
        {
            let delay = match self.refusals {
                0 => Duration::ZERO,
                n => self.backoff(n - 1, self.config.timers.connect_retry_max),
            };
            self.retry_at = Some(now + delay);
        }
    }

    fn dial_failed(&mut self, now: Time, why: String, out: &mut Vec<SessionOutput>) {
        self.dialling = None;
        if self.stopped.is_some() || !self.connections.is_empty() {
            return;
        }
        let most = KNOCK.max(self.config.timers.connect_retry).min(self.config.timers.connect_retry_max);
        // The pause counts from when the dial began: one that waited in vain has made it already.
        self.retry_at = Some(now.max(self.dialled + self.backoff(self.knocks, most)));
        self.knocks = self.knocks.saturating_add(1);
        let why = Down::Unreachable(why);
        self.note_once(Level::Warn, format!("not established: {why}"), out);
        self.failed(why);
    }

    /// Remembers why an attempt failed, without losing the words of a NOTIFICATION or of the last session's end.
    fn failed(&mut self, why: Down) {
        match why {
            Down::Closed(_) | Down::Unreachable(_) => self.attempt = Some(why),
            _ => (self.down, self.attempt) = (why, None),
        }
    }

    /// The pause before attempt `n`: doubling from `connect_retry` to `most`, jittered between 75 % and 100 %.
    fn backoff(&mut self, n: u32, most: Duration) -> Duration {
        let grown = self.config.timers.connect_retry.saturating_mul(1 << n.min(16)).min(most);
        self.rng.jitter(grown, 75)
    }

    /// Says something once, until something else is said: a peer in a loop does not fill the log.
    fn note_once(&mut self, level: Level, text: String, out: &mut Vec<SessionOutput>) {
        let level = if self.noted.as_ref() == Some(&text) { Level::Debug } else { level };
        self.noted = Some(text.clone());
        out.push(SessionOutput::Note(level, text));
    }

    /// Takes another configuration.
    fn reconfigure(&mut self, now: Time, config: PeerConfig, out: &mut Vec<SessionOutput>) {
        let goes_on = self.config.goes_on_with(&config);
        let was_passive = self.config.passive;
        if goes_on {
            self.config = config;
        } else {
            let why = "its configuration has changed";
            self.end_all(now, &Notification::cease(CONFIGURATION, why), why, |_| false, out);
            self.config = config;
            (self.refusals, self.knocks, self.retry_at) = (0, 0, None);
        }
        let dials = self.stopped.is_none() && !self.config.passive;
        if !dials || !goes_on {
            out.extend(self.dialling.take().map(SessionOutput::Close));
            self.retry_at = None;
        }
        if dials && self.is_idle() && (!goes_on || was_passive) {
            self.retry_at = Some(now);
        }
    }

    /// Asks for everything that the peer announces.
    fn ask_again(&mut self, now: Time, out: &mut Vec<SessionOutput>) {
        let Some(i) = self.established() else { return };
        let Some(n) = self.connections[i].negotiated.as_ref().filter(|n| n.route_refresh) else { return };
        for afi in [Afi::Ipv4, Afi::Ipv6].into_iter().filter(|afi| n.has(*afi)).collect::<Vec<_>>() {
            self.connections[i].send(now, wire::route_refresh(afi), out);
        }
    }

    fn stop(&mut self, now: Time, why: String, subcode: u8, out: &mut Vec<SessionOutput>) {
        if self.stopped.is_some() {
            return;
        }
        self.rib = Arc::default();
        self.resolve();
        self.pump(now, out);
        self.stopped = Some(why.clone());
        self.retry_at = None;
        if let Some(conn) = self.dialling.take() {
            out.push(SessionOutput::Close(conn));
        }
        while let Some(connection) = self.connections.first_mut() {
            let hard = connection.negotiated.as_ref().is_some_and(|n| n.notification_restart);
            let cease = Notification::cease(subcode, &why);
            let notification = if hard { cease.hard_reset() } else { cease };
            connection.send(now, wire::notification(&notification), out);
            self.end(now, 0, Down::Stopped(why.clone()), out);
        }
    }
}

impl Machine for Session {
    type Input = SessionInput;
    type Output = SessionOutput;

    fn handle(&mut self, now: Time, input: SessionInput, out: &mut Vec<SessionOutput>) {
        match input {
            SessionInput::Connected { conn, local, .. } => {
                self.connected(now, (conn, local), out);
            }
            SessionInput::Received(conn, octets) => self.received(now, conn, &octets, out),
            SessionInput::Written(conn, queued) => {
                if let Some(i) = self.index(conn) {
                    self.connections[i].written(now, queued);
                    self.pump(now, out);
                }
            }
            SessionInput::Closed(conn, why) => {
                if self.dialling == Some(conn) {
                    self.dial_failed(now, why, out);
                } else if let Some(i) = self.index(conn) {
                    self.end(now, i, Down::Closed(why), out);
                }
            }
            SessionInput::Advertise(rib, settled) => {
                if self.stopped.is_none() {
                    self.rib = rib;
                    self.settled = settled;
                    self.resolve();
                    self.pump(now, out);
                }
            }
            SessionInput::Liveness(liveness) => self.liveness(now, liveness, out),
            SessionInput::End(notification, why) => {
                self.end_all(now, &notification, &why, |_| false, out);
            }
            SessionInput::Reconfigure(config) => self.reconfigure(now, *config, out),
            SessionInput::Refresh => self.ask_again(now, out),
            SessionInput::Remove(why) => self.stop(now, why, DE_CONFIGURED, out),
            SessionInput::Stop(why) => self.stop(now, why, SHUTDOWN, out),
        }
    }

    fn tick(&mut self, now: Time, out: &mut Vec<SessionOutput>) {
        let ids: Vec<ConnId> = self.connections.iter().map(|c| c.id).collect();
        for conn in ids {
            let Some(i) = self.index(conn) else { continue };
            match self.connections[i].tick(now, &self.config, &mut self.rng, out) {
                None => {}
                Some(Expired::Hold) if self.connections[i].deferred.is_some() => self.decide(now, i, out),
                Some(Expired::Hold) => {
                    let why = match self.connections[i].state {
                        State::Established => "nothing heard from the peer for the hold time",
                        _ => "the peer did not finish opening the session in time",
                    };
                    self.refuse(now, i, Notification::new(4, 0), why.to_owned(), out);
                }
                // Nothing more is written: the last message may be half out (RFC 9687 §4.2).
                Some(Expired::SendHold) => {
                    self.end(now, i, Down::SendHold(self.config.timers.send_hold), out);
                }
            }
        }
        if self.pump_deadline().is_some_and(|(at, _)| at <= now) {
            self.pump(now, out);
        }
        // Last, because a connection that has just ended may be replaced at once.
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            if self.connections.is_empty() && self.dialling.is_none() {
                self.dial(now, out);
            }
        }
    }

    fn deadline(&self) -> Option<(Time, &'static str)> {
        let retry = self.retry_at.map(|t| (t, "dial"));
        let connections = self.connections.iter().map(|c| c.deadline(&self.config)).fold(None, earliest);
        earliest(earliest(retry, connections), self.pump_deadline())
    }
}

impl Message {
    const fn name(&self) -> &'static str {
        match self {
            Self::Open(_) => "OPEN",
            Self::Update(_) => "UPDATE",
            Self::Notification(_) => "NOTIFICATION",
            Self::Keepalive => "KEEPALIVE",
            Self::RouteRefresh(_) => "ROUTE-REFRESH",
        }
    }
}

/// Whether an IPv6 address is link-local (fe80::/10).
pub(crate) const fn is_link_local(a: Ipv6Addr) -> bool {
    a.segments()[0] & 0xffc0 == 0xfe80
}
