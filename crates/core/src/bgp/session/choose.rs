//! Which of a peer's connections becomes its session, and when: collisions (RFC 4271 §6.8), a peer that comes back while its
//! old session still stands, and BFD that must be up first.
//!
//! Each of these defers the answer to a good OPEN. A peer that is back is believed once it has completed TCP, with the key if
//! there is one, and shown the AS and identifier that it had, and the old connection is dead: its host resets it, acknowledges
//! nothing for [`PROBE`], or says nothing for the time in which a KEEPALIVE was due. A word on the old one refuses the new one.

use std::net::SocketAddr;
use std::time::Duration;

use super::{Liveness, STABLE, Session, SessionOutput};
use crate::bgp::connection::Connection;
use crate::bgp::wire::{self, Open};
use crate::bgp::{Down, Negotiated, Notification, State};
use crate::machine::Time;
use crate::node::{ConnId, Level};

/// A dial that is this old has lost its first SYN, if BFD comes up only now.
const STALE_DIAL: Duration = Duration::from_millis(50);
/// How long our own connection is waited for when both ends dialled and ours is the one to keep.
const PREFERRED_WAIT: Duration = Duration::from_secs(2);
/// How long the host at the other end of a session in doubt may take to acknowledge what it is sent.
const PROBE: Duration = Duration::from_secs(1);

impl Session {
    pub(super) fn connected(&mut self, now: Time, at: (ConnId, SocketAddr), out: &mut Vec<SessionOutput>) {
        if self.index(at.0).is_some() {
            return;
        }
        let outgoing = self.dialling == Some(at.0);
        if outgoing {
            self.dialling = None;
        }
        // Once the peer's connection is accepted, one of our own would only collide with it.
        let served = self.connections.iter().any(|c| c.negotiated.is_some());
        if self.stopped.is_some() || (outgoing && served) {
            out.push(SessionOutput::Close(at.0));
            return;
        }
        // A second connection from the peer that is not yet up replaces the first: the first may be a leftover.
        if !outgoing
            && let Some(i) =
                self.connections.iter().position(|c| !c.outgoing && c.state != State::Established)
        {
            let old = self.connections.swap_remove(i);
            out.push(SessionOutput::Close(old.id));
        }
        let restarting = self.config.graceful_restart.is_some_and(|time| now.since(self.start) < time);
        let open = self.config.open(restarting);
        let open = (&open, self.config.open_wait);
        self.connections.push(Connection::new(now, at, outgoing, open, out));
    }

    pub(super) fn opened(&mut self, now: Time, i: usize, open: &Open, out: &mut Vec<SessionOutput>) {
        let negotiated = match self.config.negotiate(open) {
            Ok(negotiated) => negotiated,
            Err((notification, why)) => return self.refuse(now, i, notification, why, out),
        };
        let conn = self.connections[i].id;
        if let Some(other) = self.connections.iter().position(|c| c.id != conn && c.is_open_received()) {
            if self.connections[other].state == State::Established {
                return self.back(now, conn, other, negotiated, out);
            }
            let loser = self.collide(i, other, &negotiated);
            let lost = self.connections[loser].id;
            self.refuse(now, loser, Notification::new(6, 7), "connection collision".to_owned(), out);
            if lost == conn {
                return;
            }
        } else if let Some(ours) = self.preferred(i, &negotiated) {
            // Both ends must choose the same one, whatever order their OPENs arrive in: while ours may still open, the
            // peer's is not answered, so that neither end can have it established.
            self.connections[ours].hurry(now + PREFERRED_WAIT);
            self.connections[i].deferred = Some(negotiated);
            return;
        }
        let Some(i) = self.index(conn) else { return };
        let Some(until) = self.awaits(now) else {
            return self.connections[i].confirm(now, negotiated, &self.config, &mut self.rng, out);
        };
        self.connections[i].deferred = Some(negotiated);
        self.connections[i].wait(until);
        if self.config.bfd_hold.is_none() {
            let s = until.since(now).as_secs_f64();
            let text = format!("waits for BFD, which was lost and is not up yet, for {s:.0} s at most");
            self.note_once(Level::Warn, text, out);
        }
    }

    /// The peer opens a session although its last one, `old`, stands (RFC 4271 §6.8 would have it wait for the hold time).
    fn back(
        &mut self,
        now: Time,
        conn: ConnId,
        old: usize,
        negotiated: Negotiated,
        out: &mut Vec<SessionOutput>,
    ) {
        let Some(was) = self.connections[old].negotiated.clone() else { return };
        let Some(new) = self.index(conn) else { return };
        if (was.asn, was.router_id) != (negotiated.asn, negotiated.router_id) {
            let why = format!("the session with AS {}, router id {} stands", was.asn, was.router_id);
            return self.refuse(now, new, Notification::new(6, 7), why, out);
        }
        if was.graceful_restart {
            // RFC 4724 §4.2: a NOTIFICATION would make it forget what it kept.
            self.connections[new].deferred = Some(negotiated);
            return self.end(now, old, Down::Closed("the peer restarted".to_owned()), out);
        }
        self.connections[new].deferred = Some(negotiated);
        let silent_at = self.connections[old].silent_at();
        if silent_at.is_some_and(|at| at <= now) {
            return self.supersede(now, old, out);
        }
        // A host that has forgotten the connection resets it at the first word. One that filters such a word says nothing.
        self.connections[new].wait(silent_at.unwrap_or(now + 2 * PROBE));
        let old = &mut self.connections[old];
        old.doubted = true;
        if old.queued == 0 {
            old.send(now, wire::keepalive(), out);
        }
        out.push(SessionOutput::Patience(old.id, Some(PROBE)));
    }

    /// Ends a session for the one that its peer wants in its place.
    fn supersede(&mut self, now: Time, old: usize, out: &mut Vec<SessionOutput>) {
        let silent = now.since(self.connections[old].heard_at).as_secs_f64();
        let why =
            format!("the peer is back with a new connection, and was silent on this one for {silent:.1} s");
        self.refuse(now, old, Notification::new(6, 7), why, out);
    }

    /// Something was heard on an established connection: whoever wanted to take its place is refused.
    pub(super) fn stands(&mut self, now: Time, i: usize, out: &mut Vec<SessionOutput>) {
        let connection = &mut self.connections[i];
        if !std::mem::take(&mut connection.doubted) {
            return;
        }
        let since = connection.since;
        out.push(SessionOutput::Patience(connection.id, None));
        let why = "another session with this peer stands, and it is alive on that one";
        if let Some(new) = self.connections.iter().position(|c| c.deferred.is_some()) {
            self.refuse(now, new, Notification::new(6, 7), why.to_owned(), out);
            // In the first moments it is an ordinary collision.
            if now.since(since) >= STABLE {
                let text = "a second session was opened from its address while this one is alive, and refused: look for \
                            another speaker that has the address";
                self.note_once(Level::Warn, text.to_owned(), out);
            }
        }
    }

    /// The time of a connection whose OPEN was not answered yet is over.
    pub(super) fn decide(&mut self, now: Time, i: usize, out: &mut Vec<SessionOutput>) {
        let conn = self.connections[i].id;
        if let Some(old) = self.established() {
            if self.connections[old].silent_at().is_some_and(|at| at <= now) {
                return self.supersede(now, old, out);
            }
            let why = "the session with this peer stands".to_owned();
            return self.refuse(now, i, Notification::new(6, 7), why, out);
        }
        if self.awaits(now).is_some() {
            let why = "BFD did not come up in time (bfd.strict, or it was lost a short while ago)".to_owned();
            return self.refuse(now, i, Notification::new(6, 10), why, out);
        }
        self.resume(now, out);
        if let Some(i) = self.index(conn).filter(|&i| self.connections[i].deferred.is_some()) {
            let why = "the peer did not finish opening the session in time".to_owned();
            self.refuse(now, i, Notification::new(4, 0), why, out);
        }
    }

    /// Until when an OPEN that comes now must wait for BFD.
    fn awaits(&self, now: Time) -> Option<Time> {
        let lost = self.lost.filter(|&until| now < until);
        self.config.bfd_hold.map(|hold| now + hold).or(lost).filter(|_| !self.alive)
    }

    pub(super) fn liveness(&mut self, now: Time, liveness: Liveness, out: &mut Vec<SessionOutput>) {
        self.alive = liveness == Liveness::Alive;
        match liveness {
            Liveness::Alive => {
                self.lost = None;
                self.resume(now, out);
                if self.stopped.is_some() || !self.connections.is_empty() {
                    return;
                }
                match self.dialling {
                    // The way is free again: a SYN that was lost would be repeated after a second or more.
                    Some(conn) if now.since(self.dialled) >= STALE_DIAL => {
                        out.push(SessionOutput::Close(conn));
                        self.dial(now, out);
                    }
                    None if self.retry_at.is_some() => {
                        self.retry_at = None;
                        self.dial(now, out);
                    }
                    _ => {}
                }
            }
            Liveness::Unknown => {}
            Liveness::Lost(why, wait) => {
                self.lost = Some(now + wait);
                // A connection that the peer has just opened may be why: it has begun anew, and that one waits for BFD.
                let spared = |c: &Connection| !c.outgoing && c.negotiated.is_none();
                self.end_all(now, &Notification::new(6, 10), &format!("BFD: {why}"), spared, out);
            }
        }
    }

    /// The connection of ours that stays if it opens, while `i` is one that the peer opened (RFC 4271 §6.8).
    fn preferred(&self, i: usize, peer: &Negotiated) -> Option<usize> {
        let higher = !self.connections[i].outgoing && self.outranks(peer);
        self.connections.iter().position(|c| higher && c.outgoing && c.state == State::OpenSent)
    }

    /// Whether connections that we opened win collisions: by identifier, then by AS number (RFC 6286 §2.3).
    fn outranks(&self, peer: &Negotiated) -> bool {
        (self.config.router_id, self.config.local_asn) > (peer.router_id, peer.asn)
    }

    /// Which of two connections that are not established loses (RFC 4271 §6.8): the one that the higher identifier opened stays.
    fn collide(&self, new: usize, other: usize, peer: &Negotiated) -> usize {
        let (n, o) = (&self.connections[new], &self.connections[other]);
        let keep_outgoing = self.outranks(peer);
        if n.outgoing == o.outgoing || n.outgoing == keep_outgoing { other } else { new }
    }

    /// Answers the peer's connection when there is no better one left, and nothing else, to wait for.
    pub(super) fn resume(&mut self, now: Time, out: &mut Vec<SessionOutput>) {
        if self.stopped.is_some()
            || self.awaits(now).is_some()
            || self.connections.iter().any(|c| c.deferred.is_none())
        {
            return;
        }
        let Some(connection) = self.connections.first_mut() else { return };
        let Some(negotiated) = connection.deferred.take() else { return };
        let conn = connection.id;
        connection.wait(now + self.config.open_wait);
        connection.confirm(now, negotiated, &self.config, &mut self.rng, out);
        self.received(now, conn, &[], out);
    }
}
