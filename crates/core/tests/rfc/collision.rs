//! Two ends that dial each other: RFC 4271 §6.8.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use standfast_core::bgp::State;
use standfast_core::bgp::session::{PeerConfig, Session, SessionInput, SessionOutput};
use standfast_core::machine::Rng;
use standfast_core::node::ConnId;
use standfast_core::plan::PeerAsn;
use standfast_core::{Machine, Time};

use crate::bench::octets::{NOTIFICATION, keepalive, split};
use crate::bench::peer::*;

/// Something on its way to an end.
enum Flight {
    Syn(ConnId),
    Accepted(ConnId),
    Octets(ConnId, Bytes),
    Fin(ConnId),
}

/// Both ends of one TCP connection: the dialler's number and the accepter's.
struct Pair {
    ends: [Session; 2],
    now: Time,
    rng: Rng,
    spread: u64,
    /// Per destination and connection, in order; TCP keeps order on one connection only.
    flights: BTreeMap<(usize, ConnId), VecDeque<(Time, Flight)>>,
    /// The other end's number of a connection.
    other: BTreeMap<(usize, ConnId), ConnId>,
    dialled_by: BTreeMap<(usize, ConnId), usize>,
    sent: BTreeMap<(usize, ConnId), Vec<u8>>,
    open: BTreeMap<(usize, ConnId), bool>,
    accepted: u64,
}

impl Pair {
    fn new(ids: [u8; 2], rng: Rng, spread: u64) -> Self {
        let now = Time::from_secs(1);
        let end = |i: usize, seed| {
            let config = PeerConfig {
                local_asn: 64512 + i as u32,
                router_id: Ipv4Addr::new(192, 0, 2, ids[i]),
                asn: PeerAsn::Number(64512 + 1 - i as u32),
                ..config()
            };
            Session::new(now, config, seed, ConnId(1 + i as u64 * 1_000_000))
        };
        let mut rng = rng;
        let ends = [end(0, rng.next_u64()), end(1, rng.next_u64())];
        Self {
            ends,
            now,
            rng,
            spread,
            flights: BTreeMap::new(),
            other: BTreeMap::new(),
            dialled_by: BTreeMap::new(),
            sent: BTreeMap::new(),
            open: BTreeMap::new(),
            accepted: ConnId::ACCEPTED.0,
        }
    }

    fn fly(&mut self, to: usize, conn: ConnId, flight: Flight) {
        let queue = self.flights.entry((to, conn)).or_default();
        let after = queue.back().map_or(self.now, |(at, _)| *at);
        let at = after.max(self.now + Duration::from_micros(100 + self.rng.below(self.spread)));
        queue.push_back((at, flight));
    }

    fn take(&mut self, end: usize, out: Vec<SessionOutput>) {
        for output in out {
            match output {
                SessionOutput::Dial(dial) => {
                    let theirs = ConnId(self.accepted);
                    self.accepted += 1;
                    self.other.insert((end, dial.conn), theirs);
                    self.other.insert((1 - end, theirs), dial.conn);
                    self.dialled_by.insert((end, dial.conn), end);
                    self.dialled_by.insert((1 - end, theirs), end);
                    self.fly(1 - end, theirs, Flight::Syn(theirs));
                }
                SessionOutput::Send(conn, octets) => {
                    self.sent.entry((end, conn)).or_default().extend_from_slice(&octets);
                    let theirs = self.other[&(end, conn)];
                    self.fly(1 - end, theirs, Flight::Octets(theirs, octets));
                    self.handle(end, SessionInput::Written(conn, 0));
                }
                SessionOutput::Close(conn) => {
                    self.open.insert((end, conn), false);
                    let theirs = self.other[&(end, conn)];
                    self.fly(1 - end, theirs, Flight::Fin(theirs));
                }
                _ => {}
            }
        }
    }

    fn handle(&mut self, end: usize, input: SessionInput) {
        let mut out = Vec::new();
        self.ends[end].handle(self.now, input, &mut out);
        self.take(end, out);
    }

    fn arrive(&mut self, end: usize, flight: Flight) {
        let at = |end: usize| SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1 + end as u8).into(), 179);
        let (local, remote) = (at(end), at(1 - end));
        match flight {
            Flight::Syn(conn) => {
                self.open.insert((end, conn), true);
                let theirs = self.other[&(end, conn)];
                self.fly(1 - end, theirs, Flight::Accepted(theirs));
                self.handle(end, SessionInput::Connected { conn, local, remote });
            }
            Flight::Accepted(conn) if self.open.get(&(end, conn)) != Some(&false) => {
                self.open.insert((end, conn), true);
                self.handle(end, SessionInput::Connected { conn, local, remote });
            }
            Flight::Octets(conn, octets) if self.open.get(&(end, conn)) == Some(&true) => {
                self.handle(end, SessionInput::Received(conn, octets));
            }
            Flight::Fin(conn) if self.open.get(&(end, conn)) != Some(&false) => {
                self.open.insert((end, conn), false);
                self.handle(end, SessionInput::Closed(conn, "closed by peer".into()));
            }
            _ => {}
        }
    }

    fn run(&mut self, d: Duration) {
        let end = self.now + d;
        loop {
            let flight = self.flights.iter().filter_map(|(k, q)| Some((q.front()?.0, *k))).min();
            let tick = (0..2).filter_map(|i| Some((self.ends[i].deadline()?.0, i))).min();
            let next = match (flight, tick) {
                (Some((a, _)), Some((b, _))) => a.min(b),
                (Some((a, _)), None) | (None, Some((a, _))) => a,
                (None, None) => break,
            };
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            if let Some((_, key)) = flight.filter(|&(at, _)| at <= self.now) {
                let (_, flight) = self.flights.get_mut(&key).unwrap().pop_front().unwrap();
                self.arrive(key.0, flight);
            } else if let Some((_, i)) = tick {
                let mut out = Vec::new();
                self.ends[i].tick(self.now, &mut out);
                self.take(i, out);
            }
        }
        self.now = end;
    }
}

#[test]
fn rfc4271_s6_8_two_ends_that_dial_each_other_keep_the_connection_of_the_higher_identifier() {
    let mut collisions = 0;
    for round in 0..800u64 {
        let higher = usize::from(round % 2 == 0);
        let ids = if higher == 0 { [9, 5] } else { [5, 9] };
        // From a quick wire to one of 50 ms, evenly and unevenly.
        let spread = [200, 2_000, 20_000, 100_000][round as usize / 2 % 4];
        let mut pair = Pair::new(ids, Rng::new(round), spread);
        pair.run(Duration::from_millis(2_500));
        for end in &pair.ends {
            assert_eq!(end.state(), State::Established, "round {round}: {:?}", end.status().down);
        }
        let open: Vec<_> = pair.open.iter().filter(|(_, open)| **open).map(|(k, _)| *k).collect();
        assert_eq!(open.len(), 2, "round {round}: one connection has two ends: {open:?}");
        assert_eq!(pair.other[&open[0]], open[1].1, "round {round}");
        // Where both connections were opened by both ends, the rule decides.
        let kinds: BTreeMap<_, Vec<Vec<u8>>> =
            pair.sent.clone().into_iter().map(|(k, mut s)| (k, split(&mut s))).collect();
        let opened = |k: &(usize, ConnId)| {
            let far = (1 - k.0, pair.other[k]);
            kinds.contains_key(k) && kinds.contains_key(&far)
        };
        let lost: Vec<_> =
            pair.open.iter().filter(|(k, open)| !**open && opened(k)).map(|(k, _)| *k).collect();
        if lost.is_empty() {
            continue;
        }
        collisions += 1;
        assert_eq!(lost.len(), 2, "round {round}: more than one connection was lost");
        assert_eq!(
            pair.dialled_by[&open[0]], higher,
            "round {round}: the lower identifier's connection stays"
        );
        let ceased =
            lost.iter().any(|k| kinds[k].iter().any(|m| m[18] == NOTIFICATION && m[19..21] == [6, 7]));
        assert!(ceased, "round {round}: the loser was not told");
    }
    assert!(collisions > 200, "only {collisions} collisions: the rounds prove nothing");
}

#[test]
fn rfc4271_s6_8_an_established_session_that_is_alive_is_not_shaken_by_a_new_connection() {
    let (mut bench, old) = Bench::up(config(), &their_open());
    for round in 0..50 {
        bench.run(Duration::from_millis(100));
        bench.messages(old);
        let new = bench.accept();
        bench.receive(new, &their_open());
        assert!(!bench.is_closed(new) && bench.session.state() == State::Established, "round {round}");
        let asked = bench.messages(old);
        assert_eq!(asked, [keepalive()], "round {round}: the old connection is sounded");
        assert_eq!(bench.patience.pop(), Some((old, Some(secs(1)))));
        // What the newcomer says meanwhile counts for nothing, and a word on the old connection ends it.
        bench.receive(new, &keepalive());
        bench.run(Duration::from_millis(200));
        bench.receive(old, &keepalive());
        assert_eq!(bench.notified(new), (6, 7, vec![]), "round {round}");
        assert_eq!(bench.patience, [(old, None)], "round {round}");
        bench.patience.clear();
    }
    assert!(!bench.is_closed(old));
    assert_eq!((bench.ups, bench.downs), (1, 0));
}

#[test]
fn a_peer_that_lost_its_memory_is_served_as_soon_as_its_host_denies_the_old_connection() {
    let (mut bench, old) = Bench::up(config(), &their_open());
    bench.run_alive(old, secs(60));
    let new = bench.accept();
    bench.receive(new, &[their_open(), keepalive()].concat());
    assert_eq!((bench.ups, bench.downs), (1, 0));
    bench.close(old, "connection reset by peer");
    assert_eq!((bench.ups, bench.downs), (2, 1));
    assert!(!bench.is_closed(new));
    bench.run_alive(new, secs(60));
    assert_eq!((bench.ups, bench.downs), (2, 1));
}

#[test]
fn a_peer_whose_host_says_nothing_is_served_anew_once_its_keepalive_is_overdue() {
    for dialled in [Duration::from_millis(100), secs(3), Duration::from_millis(3_300), secs(8)] {
        let (mut bench, old) = Bench::up(config(), &their_open());
        bench.run_alive(old, secs(60));
        let heard = bench.now;
        bench.run(dialled);
        let new = bench.accept();
        bench.receive(new, &[their_open(), keepalive()].concat());
        // A third of the hold time, and a little.
        bench.run_until(heard + dialled.max(Duration::from_millis(3_300)));
        assert_eq!((bench.ups, bench.downs), (2, 1), "dialled after {dialled:?}");
        assert_eq!(bench.notified(old), (6, 7, vec![]), "dialled after {dialled:?}");
        let down = bench.notes.iter().find(|(_, text)| text.starts_with("down: ")).unwrap();
        assert!(down.1.contains("the peer is back with a new connection"), "{down:?}");
        bench.run_alive(new, secs(20));
        assert_eq!((bench.ups, bench.downs), (2, 1));
    }
}

#[test]
fn whoever_shows_another_identifier_than_the_standing_session_is_refused_at_once() {
    let (mut bench, old) = Bench::up(config(), &their_open());
    bench.run(secs(4));
    for id in [[192, 0, 2, 2], [10, 0, 0, 1]] {
        let new = bench.accept();
        bench.receive(new, &crate::bench::octets::open(THEM, 9, id, &[]));
        assert_eq!(bench.notified(new), (6, 7, vec![]));
    }
    // A bad OPEN, half of one, and a connection alone do not even make it doubt.
    let new = bench.accept();
    bench.receive(new, &crate::bench::octets::open(THEM + 1, 9, THEIR_ID, &[]));
    assert_eq!(bench.notified(new).0, 2);
    let new = bench.accept();
    bench.receive(new, &their_open()[..20]);
    bench.run_alive(old, secs(30));
    assert!(bench.patience.is_empty() && !bench.is_closed(old));
    assert_eq!((bench.ups, bench.downs), (1, 0));
}

#[test]
fn without_keepalives_only_the_host_can_say_that_a_connection_is_dead() {
    let (mut bench, old) = Bench::up(PeerConfig { min_hold: None, ..config() }, &their_open_with(0, &[]));
    bench.run(secs(1000));
    let new = bench.accept();
    bench.receive(new, &their_open_with(0, &[]));
    bench.run(secs(3));
    assert_eq!(bench.notified(new), (6, 7, vec![]));
    let new = bench.accept();
    bench.receive(new, &[their_open_with(0, &[]), keepalive()].concat());
    bench.close(old, "connection timed out");
    assert_eq!((bench.ups, bench.downs), (2, 1));
}

#[test]
fn a_newcomer_that_gives_up_leaves_the_session_as_it_was() {
    let (mut bench, old) = Bench::up(config(), &their_open());
    bench.run_alive(old, secs(20));
    for _ in 0..3 {
        let new = bench.accept();
        bench.receive(new, &their_open());
        bench.close(new, "closed by the peer");
    }
    bench.run_alive(old, secs(60));
    assert_eq!(
        bench.patience.last(),
        Some(&(old, None)),
        "the system decides again how long to bear silence"
    );
    assert_eq!((bench.ups, bench.downs), (1, 0));
}

#[test]
fn connections_that_say_nothing_are_bounded() {
    let (mut bench, old) = Bench::up(config(), &their_open());
    let conns: Vec<ConnId> = (0..100).map(|_| bench.accept()).collect();
    let open = conns.iter().filter(|c| !bench.is_closed(**c)).count();
    assert!(open <= 1, "{open} silent connections held");
    bench.run_alive(old, secs(30));
    assert!(conns.iter().all(|c| bench.is_closed(*c)));
    assert_eq!((bench.ups, bench.downs), (1, 0));
}

#[test]
fn the_peers_connection_serves_while_our_own_dial_hangs() {
    let mut bench = Bench::new(config());
    bench.tick();
    let dial = bench.dials[0].1.conn;
    let conn = bench.accept();
    bench.receive(conn, &[their_open(), keepalive()].concat());
    assert_eq!(bench.ups, 1);
    bench.close(dial, "timed out");
    bench.run_alive(conn, secs(60));
    assert_eq!((bench.ups, bench.downs), (1, 0));
}

#[test]
fn an_own_connection_that_never_answers_does_not_starve_the_peers() {
    // Our dial was taken by a kernel whose daemon never reads it; the peer's own connection works.
    let mut bench = Bench::new(PeerConfig { router_id: Ipv4Addr::new(255, 0, 0, 1), ..config() });
    bench.answer();
    let conn = bench.accept();
    bench.receive(conn, &their_open());
    bench.receive(conn, &keepalive());
    bench.run(secs(5));
    assert_eq!(bench.ups, 1, "{:?}", bench.notes);
}
