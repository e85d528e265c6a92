//! One TCP connection of a peer: its receive buffer, its timers, and how much of what was queued is still unsent.
//!
//! It decides nothing: the session reads messages from it and says what becomes of them.

use bytes::{Bytes, BytesMut};
use std::net::SocketAddr;
use std::time::Duration;

use super::session::{PeerConfig, SessionOutput};
use super::wire::{self, GracefulRestart, Message, Open};
use super::{AS_TRANS, Negotiated, Notification, State};
use crate::machine::{Rng, Time, earliest};
use crate::node::ConnId;
use crate::plan::PeerAsn;

/// A timer this late means that we were stalled: the sockets are read before the peer is judged.
const STALL: Duration = Duration::from_millis(500);
/// How much later than it was due a KEEPALIVE may come before its silence says something.
const LATE: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnId,
    pub(super) local: SocketAddr,
    pub(super) outgoing: bool,
    pub(super) state: State,
    pub(super) since: Time,
    pub(super) negotiated: Option<Negotiated>,
    /// The peer's OPEN was good, but is not answered yet: another connection may be the better one, or BFD is awaited.
    pub(super) deferred: Option<Negotiated>,
    /// The peer wants another connection in its place: it is sounded whether this one is alive.
    pub(super) doubted: bool,
    /// When something whole was heard last.
    pub(super) heard_at: Time,
    pub(super) queued: usize,
    received: BytesMut,
    hold_at: Option<Time>,
    keepalive_every: Duration,
    keepalive_at: Option<Time>,
    progress_at: Time,
    spared: bool,
}

/// What a timer found.
pub(super) enum Expired {
    /// Nothing was heard for the hold time, or no OPEN came.
    Hold,
    /// The peer took nothing for the send hold time.
    SendHold,
}

impl Connection {
    /// Takes over a fresh connection and sends our OPEN.
    pub(super) fn new(
        now: Time,
        (id, local): (ConnId, SocketAddr),
        outgoing: bool,
        (open, open_wait): (&Open, Duration),
        out: &mut Vec<SessionOutput>,
    ) -> Self {
        let mut this = Self {
            id,
            local,
            outgoing,
            state: State::OpenSent,
            since: now,
            negotiated: None,
            deferred: None,
            doubted: false,
            heard_at: now,
            queued: 0,
            received: BytesMut::new(),
            hold_at: Some(now + open_wait),
            keepalive_every: Duration::ZERO,
            keepalive_at: None,
            progress_at: now,
            spared: false,
        };
        this.send(now, open.encode(), out);
        this
    }

    pub(super) fn send(&mut self, now: Time, octets: Bytes, out: &mut Vec<SessionOutput>) {
        if self.queued == 0 {
            self.progress_at = now;
        }
        self.queued += octets.len();
        out.push(SessionOutput::Send(self.id, octets));
    }

    /// The socket took octets and this many are left.
    pub(super) fn written(&mut self, now: Time, queued: usize) {
        if queued < self.queued || queued == 0 {
            self.progress_at = now;
        }
        self.queued = queued;
    }

    pub(super) fn receive(&mut self, octets: &[u8]) {
        self.received.extend_from_slice(octets);
    }

    pub(super) fn next_message(&mut self) -> Option<Result<Message, Notification>> {
        wire::next_message(&mut self.received)
    }

    /// Whether the peer's OPEN came and was good.
    pub(super) const fn is_open_received(&self) -> bool {
        self.negotiated.is_some() || self.deferred.is_some()
    }

    /// Whether more is waiting than a peer may send before its OPEN is answered.
    pub(super) fn is_flooded(&self) -> bool {
        self.received.len() > usize::from(wire::MAX_MESSAGE)
    }

    /// Gives the peer until `at`, at most, to send its OPEN.
    pub(super) fn hurry(&mut self, at: Time) {
        self.hold_at = self.hold_at.map(|old| old.min(at));
    }

    /// Gives it until `at` to be completed.
    pub(super) fn wait(&mut self, at: Time) {
        self.hold_at = Some(at);
    }

    /// Something whole was heard: the hold timer starts anew (RFC 4271 §8.2.2).
    pub(super) fn heard(&mut self, now: Time) {
        self.spared = false;
        self.heard_at = now;
        if self.state == State::Established {
            let hold = self.negotiated.as_ref().map_or(Duration::ZERO, |n| n.hold);
            self.hold_at = (!hold.is_zero()).then(|| now + hold);
        }
    }

    /// When a peer that lives would have said something (RFC 4271 §4.4: every third of the hold time); `None`: it need not.
    pub(super) fn silent_at(&self) -> Option<Time> {
        let hold = self.negotiated.as_ref().map(|n| n.hold).filter(|hold| !hold.is_zero())?;
        Some(self.heard_at + hold / 3 + LATE)
    }

    /// Accepts the peer's OPEN: answers with a KEEPALIVE and starts the negotiated timers.
    pub(super) fn confirm(
        &mut self,
        now: Time,
        negotiated: Negotiated,
        config: &PeerConfig,
        rng: &mut Rng,
        out: &mut Vec<SessionOutput>,
    ) {
        let third = negotiated.hold / 3;
        let wish = config.timers.keepalive.filter(|k| !k.is_zero());
        self.keepalive_every = wish.map_or(third, |k| k.min(third));
        self.negotiated = Some(negotiated);
        self.state = State::OpenConfirm;
        self.send(now, wire::keepalive(), out);
        self.schedule_keepalive(now, rng);
    }

    pub(super) fn establish(&mut self, now: Time) {
        self.state = State::Established;
        self.since = now;
        // The send hold timer starts here (RFC 9687 §3.2), whatever the peer has not taken of what came before.
        self.progress_at = now;
        self.heard(now);
    }

    fn schedule_keepalive(&mut self, now: Time, rng: &mut Rng) {
        // RFC 4271 §10: jitter between 75 % and 100 %.
        self.keepalive_at =
            (!self.keepalive_every.is_zero()).then(|| now + rng.jitter(self.keepalive_every, 75));
    }

    pub(super) fn tick(
        &mut self,
        now: Time,
        config: &PeerConfig,
        rng: &mut Rng,
        out: &mut Vec<SessionOutput>,
    ) -> Option<Expired> {
        if self.send_hold_at(config).is_some_and(|at| at <= now) {
            return Some(Expired::SendHold);
        }
        if let Some(at) = self.hold_at.filter(|&at| at <= now) {
            if now.since(at) < STALL || self.spared {
                return Some(Expired::Hold);
            }
            self.spared = true;
            self.hold_at = Some(now + STALL / 2);
        }
        if self.keepalive_at.is_some_and(|at| at <= now) {
            // Octets that the peer has not taken yet say as much as a KEEPALIVE behind them would.
            if self.queued == 0 {
                self.send(now, wire::keepalive(), out);
            }
            self.schedule_keepalive(now, rng);
        }
        None
    }

    pub(super) fn deadline(&self, config: &PeerConfig) -> Option<(Time, &'static str)> {
        let hold = self.hold_at.map(|t| (t, "hold"));
        let keepalive = self.keepalive_at.map(|t| (t, "keepalive"));
        let send_hold = self.send_hold_at(config).map(|t| (t, "send hold"));
        earliest(earliest(hold, keepalive), send_hold)
    }

    fn send_hold_at(&self, config: &PeerConfig) -> Option<Time> {
        (self.queued > 0 && self.state == State::Established)
            .then(|| self.progress_at + config.timers.send_hold)
    }
}

impl PeerConfig {
    pub(super) fn open(&self, restarting: bool) -> Open {
        Open {
            asn: self.local_asn,
            two_octet_asn: u16::try_from(self.local_asn).unwrap_or(AS_TRANS),
            four_octet_as: true,
            hold: self.timers.hold,
            router_id: self.router_id,
            families: Some((self.ipv4, self.ipv6)),
            extended_next_hop: self.extended_next_hop,
            route_refresh: true,
            graceful_restart: self.graceful_restart.map(|time| GracefulRestart {
                restarting,
                notification: true,
                time,
            }),
        }
    }

    /// Judges the peer's OPEN (RFC 4271 §6.2): what was agreed, or the NOTIFICATION and the reason in words.
    pub(super) fn negotiate(&self, open: &Open) -> Result<Negotiated, (Notification, String)> {
        if !open.four_octet_as && open.two_octet_asn == AS_TRANS {
            let why = "the peer's AS is 23456 (AS_TRANS) without the 4-octet AS capability (65)".to_owned();
            return Err((Notification::new(2, 2), why));
        }
        let wanted = match self.asn {
            PeerAsn::Number(n) => open.asn == n,
            PeerAsn::External => open.asn != self.local_asn && open.asn != 0,
            PeerAsn::Internal => open.asn == self.local_asn,
        };
        if !wanted {
            let expected = match self.asn {
                PeerAsn::Number(n) => format!("AS {n}"),
                PeerAsn::External => format!("any AS but {}", self.local_asn),
                PeerAsn::Internal => format!("AS {}", self.local_asn),
            };
            let why = format!("the peer is AS {}, configured is {expected}", open.asn);
            return Err((Notification::new(2, 2), why));
        }
        let internal = open.asn == self.local_asn;
        // RFC 6286 §2.2: not zero, and unique inside the AS.
        if open.router_id.is_unspecified() || (internal && open.router_id == self.router_id) {
            let why = format!("the peer's router id {} is zero or ours", open.router_id);
            return Err((Notification::new(2, 3), why));
        }
        let offered = open.hold.as_secs();
        let least = self.min_hold.map_or(0, |d| d.as_secs());
        if matches!(offered, 1 | 2) || (least > 0 && offered < least) {
            let why =
                format!("the peer's hold time of {offered} s is too short (at least {} s)", least.max(3));
            return Err((Notification::new(2, 6), why));
        }
        let (ipv4, ipv6) = open.families.unwrap_or((true, false));
        let restart = self.graceful_restart.is_some() && open.graceful_restart.is_some();
        Ok(Negotiated {
            asn: open.asn,
            router_id: open.router_id,
            hold: self.timers.hold.min(open.hold),
            four_octet_as: open.four_octet_as,
            ipv4: self.ipv4 && ipv4,
            ipv6: self.ipv6 && ipv6,
            extended_next_hop: self.extended_next_hop && open.extended_next_hop,
            graceful_restart: restart,
            route_refresh: open.route_refresh,
            notification_restart: restart && open.graceful_restart.is_some_and(|gr| gr.notification),
        })
    }
}
