//! The listener's side of the node's connections: who may connect, how many, and how much of each is told in the log.
//!
//! What strangers can make this host hold is bounded here: established members by `max_members`, those on their way by
//! `max_opening`, of which the one that has taken longest makes room, so that silent connections keep nobody out. An address has
//! one connection on its way at a time; that a session ended badly is no reason to refuse the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;

use super::host::{NOTE_PAUSE, Owner, event};
use super::status::last_down;
use super::{ConnId, Level, Node, Output};
use crate::bgp::{Notification, PeerConfig, Session, SessionInput, State};
use crate::listen::Hop;
use crate::machine::Time;
use crate::plan::{Accept, Peer, PeerAsn, Plan, Ttl};
use crate::prefix::Afi;

/// Members that are not established are warned of once in [`NOTE_PAUSE`] each, and so many of them at most.
const WARNED: usize = 64;
/// What a member may cause in the log in [`NOTE_PAUSE`] above the level of debugging: so many lines.
const LINES: u32 = 30;
/// Members whose lines are counted; those beyond are told at the level of debugging.
const COUNTED: usize = 1024;

/// A member of the listener, while it has a connection.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) session: Session,
    /// Which range of the plan admitted it.
    pub(super) range: usize,
    /// When its first connection came.
    begun: Time,
}

/// How a connection from an admitted address is to be treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// Its hop limit.
    pub ttl: Ttl,
    /// Whether it is in our AS.
    pub internal: bool,
}

/// What is said of members, so that none of them fills the log.
#[derive(Debug, Default)]
pub(super) struct Words {
    refused: u64,
    refused_noted: Option<Time>,
    /// Members that were warned of lately: their sessions, which would know, end with their connections.
    warned: BTreeMap<Hop, Time>,
    /// Since when lines are counted, and those of each member.
    since: Time,
    lines: BTreeMap<Hop, u32>,
}

impl Words {
    /// Whether a member that does not come up may be warned of, and takes note of it.
    pub(super) fn may_warn(&mut self, now: Time, member: Hop) -> bool {
        self.warned.retain(|_, at| now.since(*at) < NOTE_PAUSE);
        let may = self.warned.len() < WARNED && !self.warned.contains_key(&member);
        if may {
            self.warned.insert(member, now);
        }
        may
    }

    /// The level at which something that a member caused is told, and whether it is the last line of its that is told aloud.
    pub(super) fn level(&mut self, now: Time, member: Hop, level: Level) -> (Level, bool) {
        if level == Level::Debug {
            return (level, false);
        }
        if now.since(self.since) >= NOTE_PAUSE {
            self.since = now;
            self.lines.clear();
        }
        if self.lines.len() >= COUNTED && !self.lines.contains_key(&member) {
            return (Level::Debug, false);
        }
        let lines = self.lines.entry(member).or_default();
        *lines = lines.saturating_add(1);
        (if *lines <= LINES { level } else { Level::Debug }, *lines == LINES)
    }
}

/// What a member's last line of a while ends with.
pub(super) const QUIET: &str = " (too much of this member: the rest of this minute is at level debug)";

impl Node {
    /// Whether a connection from `remote` may be taken at all, and how. Bounds what strangers can make us hold.
    pub fn admits(&self, remote: SocketAddr) -> Option<Admission> {
        if self.stop.is_some() {
            return None;
        }
        if let Some(peer) = self.peer_at(remote) {
            return Some(Admission { ttl: peer.ttl, internal: self.is_internal(peer.asn) });
        }
        let (range, accept) = self.range_of(remote)?;
        let known = self.members.get(&remote.into()).is_some_and(Member::is_up);
        (known || self.established(range) < accept.max_members)
            .then(|| Admission { ttl: accept.ttl, internal: self.is_internal(accept.asn) })
    }

    /// Counts and notes, once a minute however many there are, a connection that [`admits`](Self::admits) refused. What its other end
    /// is to be told before it is closed (RFC 4486 §4): nothing by a host that stops, and may be back soon.
    pub fn refused(&mut self, now: Time, remote: SocketAddr, out: &mut Vec<Output>) -> Option<Bytes> {
        self.words.refused += 1;
        if self.stop.is_some() {
            return None;
        }
        let (accept, why) = match self.range_of(remote) {
            Some((_, range)) => {
                let why = format!("the range {} is full: it has {} members", range.name, range.max_members);
                (range.name.clone(), why)
            }
            None => (String::new(), "no neighbor has this address and no range covers it".to_owned()),
        };
        self.past.note(now, remote.into(), false, &accept, why.clone());
        if self.words.refused_noted.is_none_or(|at| now.since(at) >= NOTE_PAUSE) {
            let message =
                format!("refused a connection: {why} ({} refused since the start)", self.words.refused);
            self.words.refused_noted = Some(now);
            out.push(event(Level::Warn, format!("address {}", self.name(&remote.into())), message));
        }
        Some(Notification::new(6, 5).encode())
    }

    /// A neighbour in words: its address, and for a link-local one the name of its interface.
    pub fn name(&self, hop: &Hop) -> String {
        match self.interface(hop.scope) {
            Some(name) => format!("{}%{name}", hop.address),
            None => hop.to_string(),
        }
    }

    fn interface(&self, scope: u32) -> Option<&str> {
        self.links.get(&scope).map(|link| link.name.as_str())
    }

    /// The range that admitted a member.
    pub(super) fn accept(&self, member: &Member) -> Option<&Accept> {
        self.plan.listener.as_ref()?.accept.get(member.range)
    }

    fn is_internal(&self, asn: PeerAsn) -> bool {
        match asn {
            PeerAsn::Number(n) => n == self.plan.router.asn,
            PeerAsn::Internal => true,
            PeerAsn::External => false,
        }
    }

    /// The configured peer at an address.
    pub(super) fn peer_at(&self, remote: SocketAddr) -> Option<&Peer> {
        let hop = Hop::from(remote);
        let at = |p: &&Peer| {
            p.address == hop.address
                && (hop.scope == 0
                    || p.interface.is_none()
                    || p.interface.as_deref() == self.interface(hop.scope))
        };
        self.plan.bgp.peers.values().find(at)
    }

    /// The range that an address is in: the most specific one.
    pub(super) fn range_of(&self, remote: SocketAddr) -> Option<(usize, &Accept)> {
        let hop = Hop::from(remote);
        let on = |a: &Accept| a.interface.is_none() || a.interface.as_deref() == self.interface(hop.scope);
        let ranges = self.plan.listener.iter().flat_map(|l| &l.accept).enumerate();
        ranges.filter(|(_, a)| a.range.contains(hop.address) && on(a)).max_by_key(|(_, a)| a.range.len())
    }

    /// Members of a range that have a session.
    fn established(&self, range: usize) -> usize {
        self.members.values().filter(|m| m.range == range && m.is_up()).count()
    }

    /// Takes an accepted connection: it is a configured peer's, or a member's.
    pub(super) fn accepted(
        &mut self,
        now: Time,
        conn: ConnId,
        (local, remote): (SocketAddr, SocketAddr),
        out: &mut Vec<Output>,
    ) {
        let input = SessionInput::Connected { conn, local, remote };
        if self.owners.contains_key(&conn) {
            return;
        }
        if let Some(peer) = self.peer_at(remote) {
            let owner = Owner::Peer(peer.name.clone());
            self.owners.insert(conn, owner);
            return self.forward(now, conn, input, out);
        }
        let range = self.range_of(remote).filter(|_| self.admits(remote).is_some());
        let Some((range, accept)) = range.map(|(range, accept)| (range, accept.clone())) else {
            let words = self.refused(now, remote, out);
            out.extend(words.map(|words| Output::Send(conn, words)));
            out.push(Output::Close(conn));
            return;
        };
        let hop = Hop::from(remote);
        if !self.members.contains_key(&hop) {
            self.make_room(now, range, accept.max_opening, out);
            let mut config = member_config(&self.plan, &accept, remote);
            config.bfd_hold = config.bfd_hold.or_else(|| self.must_wait(hop));
            let mut session = Session::new(now, config, self.rng.next_u64(), ConnId(0));
            self.greet(now, hop, &mut session);
            self.members.insert(hop, Member { session, range, begun: now });
            self.note_wait(now, hop, out);
        }
        self.owners.insert(conn, Owner::Member(hop));
        self.forward(now, conn, input, out);
    }

    /// Ends the connection that has been on its way for longest, if there are too many of them.
    fn make_room(&mut self, now: Time, range: usize, most: usize, out: &mut Vec<Output>) {
        let opening = self.members.iter().filter(|(_, m)| m.range == range && !m.is_up());
        let (mut count, mut oldest) = (0, None);
        for (hop, member) in opening {
            count += 1;
            oldest = oldest.min(Some((member.begun, *hop))).or(Some((member.begun, *hop)));
        }
        if let Some((_, hop)) = oldest.filter(|_| count >= most) {
            let why = "it took too long to open a session while others waited".to_owned();
            self.end(now, hop, Notification::new(6, 5), why, out);
        }
    }

    /// Ends the session of a member that came up after the last place was taken.
    pub(super) fn keep_to_room(&mut self, now: Time, hop: Hop, out: &mut Vec<Output>) {
        let Some(member) = self.members.get(&hop) else { return };
        let Some(accept) = self.accept(member) else { return };
        if self.established(member.range) > accept.max_members {
            let why = format!("the range {} has its {} members", accept.name, accept.max_members);
            self.end(now, hop, Notification::new(6, 5), why, out);
        }
    }

    /// Takes a member out that has no connection any more, and remembers why; its session was in this state until then.
    pub(super) fn forget_member(&mut self, now: Time, hop: &Hop, before: State) {
        let Some(member) = self.members.remove(hop) else { return };
        if self.stop.is_some() {
            return;
        }
        let mut why = last_down(&member.session.status());
        if before == State::OpenSent && !why.contains("NOTIFICATION") {
            why += ", and it had sent no OPEN";
        }
        let accept = self.accept(&member).map(|a| a.name.clone()).unwrap_or_default();
        self.past.note(now, *hop, before == State::Established, &accept, why);
    }

    pub(super) fn end(&mut self, now: Time, hop: Hop, n: Notification, why: String, out: &mut Vec<Output>) {
        let input = SessionInput::End(n, why);
        self.with_session(&Owner::Member(hop), out, |s, o| crate::Machine::handle(s, now, input, o), now);
    }
}

impl Member {
    fn is_up(&self) -> bool {
        self.session.state() == State::Established
    }
}

/// The first few of a long list, and how many more there are.
pub(super) fn few<T: fmt::Display>(list: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>) -> String {
    const SHOWN: usize = 8;
    let mut list = list.into_iter();
    let shown: Vec<String> = list.by_ref().take(SHOWN).map(|item| item.to_string()).collect();
    let more = if list.len() > 0 { format!(" and {} more", list.len()) } else { String::new() };
    shown.join(", ") + &more
}

pub(super) fn member_config(plan: &Plan, accept: &Accept, remote: SocketAddr) -> PeerConfig {
    let families: BTreeSet<Afi> = plan
        .listener
        .iter()
        .flat_map(|l| &l.vips)
        .filter(|(name, _)| accept.vips.as_ref().is_none_or(|names| names.contains(*name)))
        .map(|(_, vip)| vip.prefix.afi())
        .collect();
    PeerConfig {
        local_asn: plan.router.asn,
        router_id: plan.router.router_id,
        asn: accept.asn,
        remote,
        interface: accept.interface.clone(),
        local: None,
        local_port: None,
        ttl: accept.ttl,
        password: None,
        passive: true,
        timers: accept.timers.clone(),
        open_wait: accept.open_timeout,
        bfd_hold: accept.bfd.as_ref().and_then(|bfd| bfd.strict),
        min_hold: Some(accept.min_hold).filter(|d| *d != Duration::ZERO),
        ipv4: families.contains(&Afi::Ipv4),
        ipv6: families.contains(&Afi::Ipv6),
        extended_next_hop: accept.extended_next_hop && matches!(remote.ip(), IpAddr::V6(_)),
        graceful_restart: None,
        next_hop_v4: None,
        // What is reflected is no route, and needs a next hop all the same: of the other family it is none that leads anywhere.
        next_hop_v6: accept.reflect.then(|| plan.router.router_id.to_ipv6_mapped()),
        learn: true,
    }
}
