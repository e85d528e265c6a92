//! A listener with a thousand members, by hand and in virtual time: who is admitted, who is heard, and who is ended.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use standfast_core::listen::{Hop, Link, Links};
use standfast_core::node::{ConnId, Input, Level, Node, Output};
use standfast_core::plan::{Accept, Listener, PeerAsn, Plan};
use standfast_core::{Machine, Prefix, Time};

use crate::bench::octets::{self, bare_open, hex, keepalive};
use crate::bench::peer::{p, secs};
use crate::bench::plan::{empty, listener, timers};

const LISTENER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const WEB: &str = "198.51.100.10/32";

struct Crowd {
    now: Time,
    node: Node,
    /// What was said since it was looked at last.
    said: Vec<Output>,
    closed: BTreeSet<ConnId>,
    routes: BTreeMap<Prefix, BTreeSet<Hop>>,
    writes: usize,
}

fn conn(n: u32) -> ConnId {
    ConnId(ConnId::ACCEPTED.0 + u64::from(n))
}

fn address(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0xc612_0100 + n)
}

fn plan(change: impl FnOnce(&mut Accept)) -> Plan {
    let mut plan = empty(64512, LISTENER);
    let mut listener = listener("198.18.0.0/15", &[("web", WEB), ("six", "2001:db8:100::10/128")]);
    listener.accept[0].max_members = 2000;
    listener.accept[0].max_opening = 2000;
    change(&mut listener.accept[0]);
    plan.listener = Some(listener);
    plan
}

impl Crowd {
    fn new(plan: Plan) -> Self {
        let now = Time::from_secs(10);
        let node = Node::new(now, plan, 7);
        Self { now, node, said: Vec::new(), closed: BTreeSet::new(), routes: BTreeMap::new(), writes: 0 }
    }

    fn did(&mut self, out: Vec<Output>) {
        for output in &out {
            match output {
                Output::Close(conn) => drop(self.closed.insert(*conn)),
                Output::Route(change) => {
                    self.writes += 1;
                    match change {
                        standfast_core::table::Change::Set(prefix, group) => {
                            self.routes.insert(*prefix, group.hops.keys().copied().collect());
                        }
                        standfast_core::table::Change::Remove(prefix) => drop(self.routes.remove(prefix)),
                    }
                }
                _ => {}
            }
        }
        self.said.extend(out);
    }

    fn input(&mut self, input: Input) {
        let mut out = Vec::new();
        self.node.handle(self.now, input, &mut out);
        self.did(out);
    }

    fn receive(&mut self, n: u32, octets: Vec<u8>) {
        if !self.closed.contains(&conn(n)) {
            self.input(Input::Received(conn(n), octets.into()));
        }
    }

    fn tick(&mut self) {
        let mut out = Vec::new();
        self.node.tick(self.now, &mut out);
        self.did(out);
    }

    /// Lets time pass, with every timer on time.
    fn pass(&mut self, d: Duration) {
        let end = self.now + d;
        while let Some((at, _)) = self.node.deadline().filter(|(at, _)| *at <= end) {
            self.now = self.now.max(at);
            self.tick();
        }
        self.now = end;
    }

    fn dial(&mut self, n: u32) {
        self.dial_from(n, SocketAddr::new(address(n).into(), 40_000));
    }

    fn dial_from(&mut self, n: u32, remote: SocketAddr) {
        if self.node.admits(remote).is_some() {
            let local = SocketAddr::new(LISTENER.into(), 179);
            self.input(Input::Connected { conn: conn(n), local, remote });
        } else {
            self.closed.insert(conn(n));
        }
        // The socket takes at once whatever is queued.
        self.written(n);
    }

    fn written(&mut self, n: u32) {
        if !self.closed.contains(&conn(n)) {
            self.input(Input::Written(conn(n), 0));
        }
    }

    fn join(&mut self, n: u32) {
        self.dial(n);
        self.open(n);
    }

    fn open(&mut self, n: u32) {
        self.receive(n, bare_open(64513, 9, address(n).octets()));
        self.receive(n, keepalive());
        self.written(n);
    }

    fn announce(&mut self, n: u32) {
        self.receive(n, announcement(address(n)));
    }

    fn members(&self) -> usize {
        self.node.status(self.now).listener.unwrap().members.len()
    }

    fn loud(&mut self) -> Vec<String> {
        let said = std::mem::take(&mut self.said);
        let loud = said.into_iter().filter_map(|o| match o {
            Output::Event(e) if e.level > Level::Debug => Some(format!("{}: {}", e.about, e.message)),
            _ => None,
        });
        loud.collect()
    }
}

fn announcement(next_hop: Ipv4Addr) -> Vec<u8> {
    let path = [&hex("40010100 40020402 01fc01 400304")[..], &next_hop.octets()].concat();
    octets::update(&[], &path, &hex("20c633640a"))
}

fn withdrawal() -> Vec<u8> {
    octets::update(&hex("20c633640a"), &[], &[])
}

/// A thousand members, each with its route.
fn thousand() -> Crowd {
    let mut crowd = Crowd::new(plan(|_| {}));
    for n in 0..1000 {
        crowd.join(n);
        // Fifty of them: who announces is not what this is about.
        if n.is_multiple_of(20) {
            crowd.announce(n);
        }
    }
    assert_eq!(crowd.routes[&p(WEB)].len(), 50);
    crowd
}

#[test]
fn a_thousand_members_that_are_heard_stay_and_are_told_so() {
    let mut crowd = thousand();
    for _ in 0..20 {
        crowd.said.clear();
        crowd.pass(secs(3));
        let told: BTreeSet<ConnId> = crowd
            .said
            .iter()
            .filter_map(|o| if let Output::Send(conn, _) = o { Some(*conn) } else { None })
            .collect();
        assert_eq!(told.len(), 1000, "each gets a KEEPALIVE every 3 s");
        for n in 0..1000 {
            crowd.receive(n, keepalive());
            crowd.written(n);
        }
    }
    assert!(crowd.closed.is_empty());
    // Who falls silent, and nobody else, is ended after the hold time.
    for _ in 0..4 {
        crowd.pass(secs(3));
        for n in 0..900 {
            crowd.receive(n, keepalive());
            crowd.written(n);
        }
    }
    assert_eq!(crowd.closed, (900..1000).map(conn).collect());
    assert_eq!(crowd.routes[&p(WEB)].len(), 45);
    assert_eq!(crowd.members(), 900);
}

/// What a driver does after the process was stopped: sockets first, then timers. Here in every order that its turns may have.
#[test]
fn a_stall_of_seconds_ends_nobody_whose_words_were_waiting() {
    for (stall, read_first) in [(12, 1000), (12, 256), (3600, 0)] {
        let mut crowd = thousand();
        crowd.pass(secs(2));
        crowd.now = crowd.now + secs(stall);
        // One in ten said nothing meanwhile.
        let speaks = |n: &u32| *n % 10 != 5;
        let mut waiting: Vec<u32> = (0..1000).filter(speaks).collect();
        for n in waiting.drain(..waiting.len().min(read_first)) {
            crowd.receive(n, keepalive());
        }
        crowd.tick();
        assert!(crowd.closed.is_empty(), "{stall} s, {read_first} read: {:?}", crowd.closed.len());
        for n in waiting {
            crowd.now = crowd.now + Duration::from_micros(100);
            crowd.receive(n, keepalive());
        }
        crowd.tick();
        assert!(crowd.closed.is_empty(), "{stall} s, {read_first} read before the first look");
        for n in 0..1000 {
            crowd.written(n);
        }
        crowd.pass(secs(1));
        assert_eq!(
            crowd.closed,
            (0..1000).filter(|n| !speaks(n)).map(conn).collect(),
            "the silent ones, and nobody else"
        );
        assert_eq!(crowd.routes[&p(WEB)].len(), 50);
    }
}

#[test]
fn connections_on_their_way_make_room_for_newer_ones_and_take_no_members_place() {
    let mut crowd = Crowd::new(plan(|a| {
        a.max_members = 2;
        a.max_opening = 4;
        a.open_timeout = secs(5);
    }));
    crowd.join(0);
    for n in 10..30 {
        crowd.pass(Duration::from_millis(10));
        crowd.dial(n);
        assert!(crowd.members() <= 5);
    }
    // The four youngest are left, and a member is taken all the same.
    assert_eq!(crowd.closed, (10..26).map(conn).collect());
    crowd.join(1);
    crowd.announce(1);
    assert_eq!(crowd.routes[&p(WEB)].len(), 1);
    // The range is full: newcomers are refused, and one that was on its way is told so when it opens.
    crowd.dial(40);
    assert!(crowd.closed.contains(&conn(40)));
    crowd.open(29);
    assert!(crowd.closed.contains(&conn(29)));
    assert!(crowd.loud().iter().any(|line| line.contains("has its 2 members")));
    // Those that say nothing are let go in time.
    for _ in 0..3 {
        crowd.pass(secs(2));
        for n in [0, 1] {
            crowd.receive(n, keepalive());
            crowd.written(n);
        }
    }
    assert_eq!(crowd.members(), 2);
    // A second connection of a member that is up is no newcomer.
    let remote = SocketAddr::new(address(0).into(), 50_000);
    assert!(crowd.node.admits(remote).is_some());
    assert!(crowd.node.admits(SocketAddr::new(address(7).into(), 50_000)).is_none());
    crowd.input(Input::Closed(conn(1), "reset".into()));
    crowd.join(50);
    crowd.announce(50);
    assert_eq!(crowd.routes[&p(WEB)], BTreeSet::from([IpAddr::from(address(50)).into()]));
}

#[test]
fn what_one_reading_brings_is_one_change() {
    let mut crowd = Crowd::new(plan(|_| {}));
    crowd.join(0);
    let storm: Vec<u8> = (0..500).flat_map(|_| [announcement(address(0)), withdrawal()].concat()).collect();
    crowd.receive(0, storm.clone());
    assert_eq!((crowd.writes, crowd.routes.len()), (0, 0), "nothing is left of it");
    crowd.receive(0, [storm, announcement(address(0))].concat());
    assert_eq!((crowd.writes, crowd.routes.len()), (1, 1));
}

#[test]
fn who_is_gone_or_was_refused_is_named_with_the_last_reason() {
    let mut c = Crowd::new(plan(|a| (a.max_members, a.asn) = (2, PeerAsn::Number(64513))));
    c.join(1);
    c.join(2);
    let gone = |c: &Crowd| c.node.listener_status(c.now).unwrap().gone;
    let refuse = |c: &mut Crowd, remote: SocketAddr| {
        assert_eq!(c.node.admits(remote), None);
        c.node.refused(c.now, remote, &mut Vec::new());
    };
    assert!(gone(&c).is_empty());
    refuse(&mut c, SocketAddr::new(address(9).into(), 40_000));
    // One is reset; the other falls silent.
    c.input(Input::Closed(conn(1), "reset by the peer".into()));
    c.pass(secs(60));
    // One comes with another AS, one says nothing, one is nobody's.
    c.dial(3);
    c.receive(3, bare_open(64999, 90, address(3).octets()));
    c.dial(4);
    c.input(Input::Closed(conn(4), "closed by the peer".into()));
    refuse(&mut c, "203.0.113.9:5000".parse().unwrap());
    let seen = gone(&c);
    let of = |a: &str| seen.iter().find(|g| g.address == a.parse::<IpAddr>().unwrap()).expect(a);
    let one = of("198.18.1.1");
    assert!(one.end.was_established && one.end.why.contains("reset by the peer"), "{one:?}");
    assert!((59.0..61.0).contains(&one.since) && one.accept.is_some(), "{one:?}");
    for (who, established, accepted, words) in [
        ("198.18.1.2", true, true, "nothing heard from the peer for the hold time"),
        ("198.18.1.3", false, true, "the peer is AS 64999"),
        ("198.18.1.4", false, true, "closed by the peer, and it had sent no OPEN"),
        ("198.18.1.9", false, true, "is full: it has 2 members"),
        ("203.0.113.9", false, false, "no range covers it"),
    ] {
        let seen = of(who);
        assert!(seen.end.why.contains(words), "{seen:?}");
        assert_eq!((seen.end.was_established, seen.accept.is_some()), (established, accepted), "{seen:?}");
    }
    // One that is back tells of its end in its own row.
    c.join(7);
    c.input(Input::Closed(conn(7), "once".into()));
    c.pass(secs(1));
    let remote = SocketAddr::new(address(7).into(), 5001);
    c.input(Input::Connected { conn: conn(8), local: SocketAddr::new(LISTENER.into(), 179), remote });
    let status = c.node.listener_status(c.now).unwrap();
    let back = status.members.iter().find(|m| m.address == IpAddr::V4(address(7))).unwrap();
    assert!(back.last_end.as_ref().is_some_and(|end| end.why.contains("once") && end.times == 1), "{back:?}");
    assert!(!status.gone.iter().any(|g| g.address == back.address), "it is there");
    // An hour later nobody asks any more.
    c.pass(secs(3700));
    assert!(gone(&c).is_empty(), "{:?}", gone(&c));
}

#[test]
fn what_is_ignored_is_named_the_latest_first_and_a_few() {
    let mut c = Crowd::new(plan(|_| {}));
    c.join(1);
    for n in 0..20 {
        let attributes = hex("40010100 40020402 01fc01 400304c6120101");
        c.receive(1, octets::update(&[], &attributes, &[24, 10, 0, n]));
    }
    let status = c.node.listener_status(c.now).unwrap();
    let last = &status.members[0].ignored_last;
    assert_eq!(status.members[0].ignored, 20);
    assert_eq!(last.len(), 8);
    assert_eq!(last[0].prefix, p("10.0.19.0/24"));
    assert_eq!(last[7].prefix, p("10.0.12.0/24"));
    assert!(last.iter().all(|i| i.because == "no VIP of this listener"), "{last:?}");
    // A VIP with a foreign next hop is told with it, and the same one again stands once.
    for _ in 0..3 {
        let attributes = hex("40010100 40020402 01fc01 400304c6120199");
        c.receive(1, octets::update(&[], &attributes, &hex("20c633640a")));
    }
    let last = &c.node.listener_status(c.now).unwrap().members[0].ignored_last;
    assert_eq!((last[0].prefix, last[0].next_hop), (p(WEB), Some("198.18.1.153".parse().unwrap())));
    assert_eq!(last[1].prefix, p("10.0.19.0/24"));
}

#[test]
fn the_listener_is_seen_in_slices_as_it_is_seen_at_once() {
    let mut plan = plan(|_| {});
    for n in 0..50 {
        let vip = standfast_core::plan::ListenerVip::new(p(&format!("203.0.113.{n}/32")));
        plan.listener.as_mut().unwrap().vips.insert(format!("more{n}"), vip);
    }
    let mut c = Crowd::new(plan);
    for n in 1..=3 {
        c.join(n);
        let hop = address(n).octets();
        let attributes = [&hex("40010100 40020402 01fc01 400304")[..], &hop].concat();
        for vip in (0..50).filter(|vip| vip % 4 != u8::try_from(n).unwrap()) {
            c.receive(n, octets::update(&[], &attributes, &[32, 203, 0, 113, vip]));
        }
    }
    let whole = c.node.listener_status(c.now).unwrap();
    assert_eq!(whole.vips.len(), 52);
    assert!(whole.members.iter().all(|m| m.vips.len() > 30 && m.announces.len() == m.vips.len()));
    for most in [1, 7, 52, 1000] {
        let mut parts = c.node.listener_head(c.now).unwrap();
        let (mut after, mut slices) = (None, 0);
        loop {
            let slice = c.node.listener_slice(c.now, after, most);
            after = slice.last();
            if after.is_none() {
                break;
            }
            slices += 1;
            parts.add(slice);
        }
        assert_eq!(slices, 52_usize.div_ceil(most));
        assert_eq!(format!("{parts:?}"), format!("{whole:?}"));
    }
}

#[test]
fn a_member_that_flaps_fills_no_log_and_the_words_of_others_are_still_heard() {
    let mut crowd = Crowd::new(plan(|_| {}));
    let mut n = 0;
    for _ in 0..500 {
        // Its next connection has a number of its own.
        n += 1;
        let remote = SocketAddr::new(address(0).into(), 40_000);
        crowd.dial_from(n, remote);
        crowd.receive(n, bare_open(64513, 9, address(0).octets()));
        crowd.receive(n, keepalive());
        crowd.receive(n, announcement(address(0)));
        crowd.input(Input::Closed(conn(n), "reset".into()));
        crowd.pass(Duration::from_millis(50));
    }
    let lines = crowd.loud();
    assert!((10..=80).contains(&lines.len()), "{} lines", lines.len());
    assert!(lines.iter().any(|line| line.contains("at level debug")), "{lines:?}");
    crowd.join(1000);
    crowd.announce(1000);
    assert!(crowd.loud().iter().any(|line| line.contains(&address(1000).to_string())));
}

fn links() -> Links {
    let link = |name: &str| Link { name: name.to_owned(), ..Link::default() };
    BTreeMap::from([(2, link("eth0")), (3, link("eth1"))])
}

#[test]
fn a_link_local_address_is_one_member_on_each_interface() {
    let on = |interface: &str| Accept {
        interface: Some(interface.to_owned()),
        timers: timers(),
        ..Accept::new(interface, p("fe80::/10"), PeerAsn::External)
    };
    let mut plan = plan(|_| {});
    let vips = plan.listener.take().unwrap().vips;
    plan.listener = Some(Listener::new(vec![on("eth0"), on("eth1")], vips));
    let mut crowd = Crowd::new(plan);
    let local = |scope| {
        SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x11), 40_000, 0, scope))
    };
    assert!(crowd.node.admits(local(2)).is_none(), "no interface is known yet");
    crowd.input(Input::Links(links()));
    assert!(crowd.node.admits(local(4)).is_none());
    let six =
        [&hex("0002 01 10 fe800000000000000000000000000011 00 80 20010db8010000000000000000000010")[..]]
            .concat();
    let reach = [&hex("40010100 40020402 01fc01 800e")[..], &[six.len() as u8], &six].concat();
    for (n, scope) in [(0, 2), (1, 3)] {
        crowd.dial_from(n, local(scope));
        let open = octets::open(64513, 9, [192, 0, 2, 11], &[octets::cap_mp(1), octets::cap_mp(2)]);
        crowd.receive(n, open);
        crowd.receive(n, keepalive());
        crowd.receive(n, octets::update(&[], &reach, &[]));
    }
    let hop = |scope| Hop { address: local(0).ip(), scope };
    assert_eq!(crowd.routes[&p("2001:db8:100::10/128")], BTreeSet::from([hop(2), hop(3)]));
    assert_eq!(crowd.node.name(&hop(2)), "fe80::11%eth0");
    crowd.input(Input::Closed(conn(0), "reset".into()));
    assert_eq!(crowd.routes[&p("2001:db8:100::10/128")], BTreeSet::from([hop(3)]));
    assert!(crowd.loud().iter().any(|line| line.contains("fe80::11%eth1")));
}

#[test]
fn members_that_come_and_go_are_told_whatever_they_announce_but_not_by_a_stop() {
    let mut crowd = Crowd::new(plan(|_| {}));
    let told = |crowd: &mut Crowd| -> Vec<(Hop, bool)> {
        let member = |o: &Output| if let Output::Member(hop, up) = o { Some((*hop, *up)) } else { None };
        crowd.said.drain(..).collect::<Vec<_>>().iter().filter_map(member).collect()
    };
    let hop = |n| Hop::from(IpAddr::from(address(n)));
    crowd.dial(0);
    assert!(told(&mut crowd).is_empty(), "it has no session yet");
    crowd.open(0);
    crowd.join(1);
    crowd.announce(1);
    assert_eq!(told(&mut crowd), [(hop(0), true), (hop(1), true)]);
    crowd.input(Input::Closed(conn(0), "reset".to_owned()));
    assert_eq!(told(&mut crowd), [(hop(0), false)]);
    crowd.input(Input::Stop("an update".to_owned()));
    crowd.pass(secs(10));
    assert!(told(&mut crowd).is_empty(), "a stop leaves the routes as they are");
    assert!(crowd.closed.contains(&conn(1)));
}
