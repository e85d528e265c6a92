//! A session on a bench, in virtual time: the test plays its peer and its operating system.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use standfast_core::bgp::session::{PeerConfig, Session, SessionInput, SessionOutput};
use standfast_core::bgp::{Rib, State, Update};
use standfast_core::node::{ConnId, Dial, Level};
use standfast_core::plan::{Attributes, PeerAsn, Timers, Ttl};
use standfast_core::{Machine, Prefix, Time};

use super::octets::{self, NOTIFICATION, Parsed, Table, UPDATE, split};

pub(crate) const US: u32 = 64513;
pub(crate) const THEM: u16 = 64512;
pub(crate) const THEIR_ID: [u8; 4] = [192, 0, 2, 1];

/// We are 192.0.2.11, AS 64513; the peer is 192.0.2.1, AS 64512.
pub(crate) fn config() -> PeerConfig {
    PeerConfig {
        local_asn: US,
        router_id: Ipv4Addr::new(192, 0, 2, 11),
        asn: PeerAsn::Number(THEM.into()),
        remote: "192.0.2.1:179".parse().unwrap(),
        interface: None,
        local: None,
        local_port: None,
        ttl: Ttl::Direct,
        password: None,
        passive: false,
        timers: Timers { hold: secs(9), ..Timers::default() },
        bfd_hold: None,
        open_wait: standfast_core::bgp::session::OPEN_WAIT,
        min_hold: None,
        ipv4: true,
        ipv6: true,
        extended_next_hop: false,
        graceful_restart: None,
        next_hop_v4: None,
        next_hop_v6: Some("2001:db8::11".parse().unwrap()),
        learn: false,
    }
}

pub(crate) fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

pub(crate) fn p(s: &str) -> Prefix {
    s.parse().unwrap()
}

pub(crate) fn rib<const N: usize>(routes: [(&str, Attributes); N]) -> Rib {
    routes.into_iter().map(|(s, a)| (p(s), a)).collect()
}

pub(crate) fn plain() -> Attributes {
    Attributes::default()
}

pub(crate) fn prepended(n: u8) -> Attributes {
    Attributes { as_path_prepend: n, ..plain() }
}

/// The OPEN of a modern peer: both families, refresh, 4-octet AS.
pub(crate) fn their_open() -> Vec<u8> {
    their_open_with(9, &[])
}

pub(crate) fn their_open_with(hold: u16, more: &[Vec<u8>]) -> Vec<u8> {
    let mut caps =
        vec![octets::cap_mp(1), octets::cap_mp(2), octets::cap_refresh(), octets::cap_as4(THEM.into())];
    caps.extend(more.iter().cloned());
    octets::open(THEM, hold, THEIR_ID, &caps)
}

pub(crate) struct Bench {
    pub(crate) now: Time,
    pub(crate) session: Session,
    /// Octets sent and not yet looked at, by connection.
    pub(crate) sent: BTreeMap<ConnId, Vec<u8>>,
    /// Dials not yet answered, with their moments.
    pub(crate) dials: Vec<(Time, Dial)>,
    pub(crate) closed: Vec<(Time, ConnId)>,
    /// What was asked of connections, in order.
    pub(crate) patience: Vec<(ConnId, Option<Duration>)>,
    pub(crate) ups: u32,
    pub(crate) downs: u32,
    pub(crate) learned: Vec<Update>,
    pub(crate) notes: Vec<(Level, String)>,
    /// Whether the operating system takes every octet at once.
    pub(crate) reading: bool,
    /// Octets queued, by connection, while not reading.
    pub(crate) queued: BTreeMap<ConnId, usize>,
    accepted: u64,
}

impl Bench {
    pub(crate) fn new(config: PeerConfig) -> Self {
        Self::seeded(config, 1)
    }

    pub(crate) fn seeded(config: PeerConfig, seed: u64) -> Self {
        let now = Time::from_secs(1000);
        Self {
            now,
            session: Session::new(now, config, seed, ConnId(1)),
            sent: BTreeMap::new(),
            dials: Vec::new(),
            closed: Vec::new(),
            patience: Vec::new(),
            ups: 0,
            downs: 0,
            learned: Vec::new(),
            notes: Vec::new(),
            reading: true,
            queued: BTreeMap::new(),
            accepted: ConnId::ACCEPTED.0,
        }
    }

    /// A bench whose session is established, every octet so far looked at, with the dialled connection.
    pub(crate) fn up(config: PeerConfig, open: &[u8]) -> (Self, ConnId) {
        let mut bench = Self::new(config);
        let conn = bench.establish(open);
        (bench, conn)
    }

    /// Answers the next dial and opens the session with `open`.
    pub(crate) fn establish(&mut self, open: &[u8]) -> ConnId {
        let conn = self.answer();
        self.receive(conn, open);
        self.receive(conn, &octets::keepalive());
        assert_eq!(self.session.state(), State::Established, "{:?}", self.notes);
        let sent = self.messages(conn);
        assert_eq!(sent[0][18], octets::OPEN);
        assert_eq!(sent[1], octets::keepalive());
        for message in &sent[2..] {
            let parsed = Parsed::new(message);
            assert!(parsed.end_of_rib.is_some(), "unasked {parsed:?}");
        }
        conn
    }

    /// Lets the next dial succeed; waits for it.
    pub(crate) fn answer(&mut self) -> ConnId {
        for _ in 0..1000 {
            if let Some((_, dial)) = self.dials.pop() {
                self.connected(dial.conn);
                return dial.conn;
            }
            let (at, _) = self.session.deadline().expect("a dial is planned");
            self.run_until(at);
        }
        panic!("no dial came");
    }

    /// The same from this end of ours.
    pub(crate) fn answer_at(&mut self, local: &str) -> ConnId {
        let (at, _) = self.session.deadline().expect("a dial is planned");
        self.run_until(at);
        let (_, dial) = self.dials.pop().expect("a dial");
        self.connected_at(dial.conn, local);
        dial.conn
    }

    pub(crate) fn connected(&mut self, conn: ConnId) {
        self.connected_at(conn, "192.0.2.11:40000");
    }

    fn connected_at(&mut self, conn: ConnId, local: &str) {
        let local: SocketAddr = local.parse().unwrap();
        let remote: SocketAddr = "192.0.2.1:179".parse().unwrap();
        self.input(SessionInput::Connected { conn, local, remote });
    }

    /// The peer dials us.
    pub(crate) fn accept(&mut self) -> ConnId {
        let conn = ConnId(self.accepted);
        self.accepted += 1;
        self.connected(conn);
        conn
    }

    pub(crate) fn input(&mut self, input: SessionInput) {
        let mut out = Vec::new();
        self.session.handle(self.now, input, &mut out);
        self.take(out);
    }

    fn take(&mut self, out: Vec<SessionOutput>) {
        let mut wrote = Vec::new();
        for output in out {
            match output {
                SessionOutput::Dial(dial) => self.dials.push((self.now, dial)),
                SessionOutput::Send(conn, octets) => {
                    assert!(
                        !self.closed.iter().any(|(_, c)| *c == conn),
                        "octets for a connection that was closed"
                    );
                    *self.queued.entry(conn).or_default() += octets.len();
                    self.sent.entry(conn).or_default().extend_from_slice(&octets);
                    wrote.push(conn);
                }
                SessionOutput::Close(conn) => {
                    self.dials.retain(|(_, d)| d.conn != conn);
                    self.closed.push((self.now, conn));
                }
                SessionOutput::Patience(conn, time) => self.patience.push((conn, time)),
                SessionOutput::Up => self.ups += 1,
                SessionOutput::Down => self.downs += 1,
                SessionOutput::Learned(update) => self.learned.push(update),
                SessionOutput::Note(level, text) => self.notes.push((level, text)),
            }
        }
        if self.reading {
            for conn in wrote {
                if self.queued.get(&conn).is_some_and(|&q| q > 0) {
                    self.written(conn, 0);
                }
            }
        }
    }

    /// The socket took octets; this many are left.
    pub(crate) fn written(&mut self, conn: ConnId, left: usize) {
        self.queued.insert(conn, left);
        self.input(SessionInput::Written(conn, left));
    }

    pub(crate) fn receive(&mut self, conn: ConnId, octets: &[u8]) {
        self.input(SessionInput::Received(conn, Bytes::copy_from_slice(octets)));
    }

    pub(crate) fn close(&mut self, conn: ConnId, why: &str) {
        self.input(SessionInput::Closed(conn, why.into()));
    }

    pub(crate) fn advertise(&mut self, rib: Rib) {
        self.input(SessionInput::Advertise(Arc::new(rib), true));
    }

    pub(crate) fn run_until(&mut self, to: Time) {
        let mut turns = 0;
        while let Some((at, _)) = self.session.deadline().filter(|&(at, _)| at <= to) {
            self.now = self.now.max(at);
            self.tick();
            turns += 1;
            assert!(turns < 100_000, "a busy loop: {:?}", self.session.deadline());
        }
        self.now = self.now.max(to);
    }

    pub(crate) fn run(&mut self, d: Duration) {
        self.run_until(self.now + d);
    }

    /// Passes time while the peer sends a KEEPALIVE each second.
    pub(crate) fn run_alive(&mut self, conn: ConnId, d: Duration) {
        let end = self.now + d;
        while self.now < end && self.session.owns(conn) {
            self.run_until((self.now + secs(1)).min(end));
            self.receive(conn, &octets::keepalive());
        }
    }

    pub(crate) fn tick(&mut self) {
        let mut out = Vec::new();
        self.session.tick(self.now, &mut out);
        self.take(out);
    }

    /// Whole messages sent on `conn` since the last look.
    pub(crate) fn messages(&mut self, conn: ConnId) -> Vec<Vec<u8>> {
        self.sent.get_mut(&conn).map_or(vec![], split)
    }

    /// The UPDATEs among them; a KEEPALIVE between is passed over.
    pub(crate) fn updates(&mut self, conn: ConnId) -> Vec<Parsed> {
        self.messages(conn).iter().filter(|m| m[18] == UPDATE).map(|m| Parsed::new(m)).collect()
    }

    /// Code, subcode and data of the NOTIFICATION that ends what was sent on `conn`.
    pub(crate) fn notified(&mut self, conn: ConnId) -> (u8, u8, Vec<u8>) {
        let messages = self.messages(conn);
        let last = messages.last().expect("a NOTIFICATION");
        assert_eq!(last[18], NOTIFICATION, "{last:02x?}");
        assert!(self.is_closed(conn), "a NOTIFICATION without a close");
        (last[19], last[20], last[21..].to_vec())
    }

    pub(crate) fn is_closed(&self, conn: ConnId) -> bool {
        self.closed.iter().any(|(_, c)| *c == conn)
    }

    /// Applies everything sent since the last look to `table`.
    pub(crate) fn tell(&mut self, conn: ConnId, table: &mut Table) {
        for update in self.updates(conn) {
            table.apply(&update);
        }
    }
}

pub(crate) fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}
