//! The listener beside announcers of every kind and beside scripted members: kernel routes are what must hold.
//!
//! The listener is `l` (192.0.2.1, AS 64512); members dial it from AS 64513.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const VIP6: &str = "2001:db8:100::10/128";
const L: u32 = 64512;
const G: u32 = 64513;
const ANY: &str = "192.0.2.0/24";
/// An OPEN of AS 64513 without any capability.
const BARE_OPEN: &str = "M 001d 01 04fc010009c000020b00";
/// An UPDATE of AS 64513 (two octets) that announces the VIP with next hop 192.0.2.11.
const BARE_UPDATE: &str = "M 002e 02 0000 0012 40010100 4002040201fc01 400304c000020b 20c633640a";

fn set(hops: &[Ipv4Addr]) -> BTreeSet<IpAddr> {
    hops.iter().map(|&hop| hop.into()).collect()
}

/// A session from `p` to the listener, not yet opened.
fn dial(p: &Host, from: Ipv4Addr, l: &Host) -> Session {
    until_some("the listener accepts", secs(5), || Session::dial(p, from, l.v4).ok()).0
}

/// A member at `from` that has announced the VIP.
fn member(p: &Host, from: Ipv4Addr, l: &Host) -> Session {
    let mut session = dial(p, from, l);
    session.establish(&OpenBytes::new(G, from));
    session.send(&announce_nlri(from, G, "20c633640a", &[]));
    session
}

/// An announcer that is not ours is routed to while it lives, and only for the VIP.
fn an_announcer_is_routed_to_while_it_lives(lab: &Lab, start: impl FnOnce(&Host, &Host) -> Daemon) {
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    l.spawn(listener(&l, ANY, ""));
    assert_eq!(l.next_hops(VIP), set(&[]));
    let announcer = start(&l, &g);
    let took = until("routed", secs(20), || l.next_hops(VIP) == set(&[g.v4]));
    println!("routed after {:.3} s", took.as_secs_f64());
    assert_eq!(l.next_hops("198.51.100.0/24"), set(&[]));
    announcer.kill();
    let took = until("no longer routed", secs(2), || l.next_hops(VIP).is_empty());
    println!("no longer routed {:.3} s after the kill", took.as_secs_f64());
}

fn told() -> Vec<String> {
    vec![VIP.to_owned(), "198.51.100.0/24".to_owned()]
}

#[test]
fn bird_is_routed_to() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    an_announcer_is_routed_to_while_it_lives(&lab, |l, g| {
        g.spawn(bird(G, &[Neighbor::new(l.v4, L).told(told())]))
    });
}

#[test]
fn frr_is_routed_to() {
    let Some(lab) = lab!("standfast", "frr") else { return };
    an_announcer_is_routed_to_while_it_lives(&lab, |l, g| {
        g.spawn(frr(G, &[Neighbor::new(l.v4, L).told(told())]))
    });
}

#[test]
fn gobgp_is_routed_to() {
    let Some(lab) = lab!("standfast", "gobgp") else { return };
    an_announcer_is_routed_to_while_it_lives(&lab, |l, g| {
        let daemon = g.spawn(gobgp(G, &[Neighbor::new(l.v4, L)]));
        daemon.ask(&format!("global rib add {VIP}"));
        daemon.ask("global rib add 198.51.100.0/24");
        daemon
    });
}

#[test]
fn exabgp_is_routed_to() {
    let Some(lab) = lab!("standfast", "exabgp") else { return };
    an_announcer_is_routed_to_while_it_lives(&lab, |l, g| {
        g.spawn(exabgp(
            G,
            l.v4,
            L,
            &["route 198.51.100.10/32 next-hop self", "route 198.51.100.0/24 next-hop self"],
        ))
    });
}

#[test]
fn two_members_share_a_route_and_one_that_leaves_takes_only_its_own() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, a, b) = (lab.host("l", 1), lab.host("a", 11), lab.host("b", 12));
    l.spawn(listener(&l, ANY, ""));
    let start = |g: &Host| {
        let service = Service::start(g, (Ipv4Addr::LOCALHOST, 80));
        let config = Announcer::new(g, G).neighbor(l.v4, L, "").vip("web", &[VIP, VIP6], "/", WITHDRAW);
        (service, g.spawn(config.spec()))
    };
    let ((service, _first), (_other, second)) = (start(&a), start(&b));
    let hops = |v4: &[&Host]| {
        let v6: BTreeSet<IpAddr> = v4.iter().map(|host| host.v6.into()).collect();
        l.next_hops(VIP) == set(&v4.iter().map(|host| host.v4).collect::<Vec<_>>()) && l.next_hops(VIP6) == v6
    };
    until("both are routed to", secs(10), || hops(&[&a, &b]));
    service.set("/", false);
    until("the unhealthy one is not", secs(2), || hops(&[&b]));
    service.set("/", true);
    until("both again", secs(2), || hops(&[&a, &b]));
    second.kill();
    let took = until("the killed one is not", secs(2), || hops(&[&a]));
    println!("gone {took:.3?} after the kill");
    second.start_again();
    until("both again", secs(10), || hops(&[&a, &b]));
    second.process().signal(Signal::SIGTERM);
    let took = until("the one that leaves is not", secs(2), || hops(&[&a]));
    println!("gone {took:.3?} after SIGTERM");
}

#[test]
fn a_member_that_vanishes_is_gone_within_its_hold_time_and_back_within_3_s() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    l.spawn(listener(&l, ANY, ""));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let config =
        Announcer::new(&g, G).bgp("hold_time: 3s").neighbor(l.v4, L, "").vip("web", &[VIP], "/", WITHDRAW);
    let daemon = g.spawn(config.spec());
    until("routed", secs(10), || l.next_hops(VIP) == set(&[g.v4]));
    lab.cut(&g);
    let took = until("gone", secs(5), || l.next_hops(VIP).is_empty());
    println!("gone {took:.2?} after the cable was pulled");
    lab.mend(&g);
    let took = until("routed again", secs(5), || l.next_hops(VIP) == set(&[g.v4]));
    println!("routed {took:.2?} after it was plugged in");
    assert!(took < secs(3));
    // A member that was frozen for longer than the hold time.
    daemon.process().signal(Signal::SIGSTOP);
    until("gone", secs(5), || l.next_hops(VIP).is_empty());
    while_holds("frozen", secs(8), || l.next_hops(VIP).is_empty());
    daemon.process().signal(Signal::SIGCONT);
    let took = until("routed again", secs(5), || l.next_hops(VIP) == set(&[g.v4]));
    println!("routed {took:.2?} after it was thawed");
    assert!(took < secs(2));
}

#[test]
fn members_of_every_dialect_are_understood() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, p) = (lab.host("l", 1), lab.host("p", 11));
    l.spawn(listener(&l, ANY, ""));
    for (open, update) in [
        (BARE_OPEN, BARE_UPDATE),
        // AS4_PATH on a two-octet session.
        (
            BARE_OPEN,
            "M 003d 02 0000 0021 40010100 40020602 02fc015ba0 400304c000020b c0110a0202 0000fc01fa56ea0c 20c633640a",
        ),
        ("M 0031 01 04fc010009c000020b 14 0212 010400010001 0200 40020078 41040000fc01", ""),
        ("M 0037 01 04fc010009c000020b 1a 0206010400010001 02020200 020440020078 020641040000fc01", ""),
        ("M 0031 01 04fc010009c000020b ff ff0011 02000e 010400010001 0200 41040000fc01", ""),
        ("M 0031 01 04fc010009c000020b 01 ff0011 02000e 010400010001 0200 41040000fc01", ""),
        ("M 0020 01 04fc010009c000020b ff ff0000", BARE_UPDATE),
    ] {
        let mut session = dial(&p, p.v4, &l);
        session.establish_with(&hex(open));
        session.send(&if update.is_empty() {
            announce_nlri(p.v4, G, "20c633640a", &[])
        } else {
            hex(update)
        });
        until("routed", secs(3), || l.next_hops(VIP) == set(&[p.v4]));
        let later = session.drain(Duration::from_millis(200));
        assert!(later.iter().all(|message| message.code().is_none()), "{open}: {later:?}");
        drop(session);
        until("no longer routed", secs(2), || l.next_hops(VIP).is_empty());
    }
}

#[test]
fn what_no_member_may_say_is_refused_by_code_and_costs_only_its_own_session() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, p, q) = (lab.host("l", 1), lab.host("p", 11), lab.host("q", 12));
    l.spawn(listener(&l, ANY, ""));
    let _steady = member(&q, q.v4, &l);
    until("routed", secs(3), || l.next_hops(VIP) == set(&[q.v4]));
    for (what, open, expected) in [
        ("hold time 0", "M 001d 01 04fc010000c000020b00", (2, 6)),
        ("hold time 1", "M 001d 01 04fc010001c000020b00", (2, 6)),
        ("hold time 2", "M 001d 01 04fc010002c000020b00", (2, 6)),
        ("another AS", "M 001d 01 04fc050009c000020b00", (2, 2)),
        ("AS_TRANS alone", "M 001d 01 045ba00009c000020b00", (2, 2)),
        ("identifier 0", "M 001d 01 04fc0100090000000000", (2, 3)),
        ("version 3", "M 001d 01 03fc010009c000020b00", (2, 1)),
        (
            "a capability past its parameter",
            "M 0029 01 04fc010009c000020b 0c 020a 010400010001 41040000",
            (2, 0),
        ),
        ("a header of another length", "M 0012 01", (1, 2)),
        ("a message of no type", "M 0013 09", (1, 3)),
        ("no marker", "00ffffffffffffffffffffffffffffff 0013 04", (1, 1)),
        ("a KEEPALIVE first", "M 0013 04", (5, 1)),
    ] {
        let mut session = dial(&p, p.v4, &l);
        session.send_hex(open);
        let answer = session.drain(secs(2));
        assert_eq!(answer.last().and_then(Message::code), Some(expected), "{what}: {answer:?}");
        // One bad attempt locks nobody out.
        let mut session = member(&p, p.v4, &l);
        until("routed after a bad attempt", secs(2), || l.next_hops(VIP) == set(&[p.v4, q.v4]));
        session.send_hex("M 0017 02 0002 080a");
        assert_eq!(session.drain(secs(2)).last().and_then(Message::code), Some((3, 1)));
        until("its route leaves", secs(2), || l.next_hops(VIP) == set(&[q.v4]));
    }
}

#[test]
fn only_the_vips_are_routed_and_only_to_the_member_itself() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, p) = (lab.host("l", 1), lab.host("p", 11));
    let daemon = l.spawn(listener(&l, ANY, ""));
    let before = l.run("ip route");
    let mut session = dial(&p, p.v4, &l);
    session.establish(&OpenBytes::new(G, p.v4));
    // A default route, something wider, something narrower, and the VIP by way of somebody else.
    for nlri in ["00", "18c63364", "20c633640b", "08c6"] {
        session.send(&announce_nlri(p.v4, G, nlri, &[]));
    }
    session.send(&announce_nlri(Ipv4Addr::new(192, 0, 2, 66), G, "20c633640a", &[]));
    let memory = daemon.process().rss();
    // And a great many of them.
    for high in 0..200_u8 {
        let nlri: String = (0..=255_u8).map(|low| format!("18 0a {high:02x} {low:02x} ")).collect();
        session.send(&announce_nlri(p.v4, G, &nlri, &[]));
    }
    session.send(&announce_nlri(p.v4, G, "20c633640a", &[]));
    until("the VIP is routed", secs(5), || l.next_hops(VIP) == set(&[p.v4]));
    let after: Vec<_> = l
        .run("ip route")
        .lines()
        .filter(|line| !line.contains("198.51.100.10") && !line.starts_with('\t'))
        .map(str::to_owned)
        .collect();
    assert_eq!(after, before.lines().collect::<Vec<_>>());
    let grown = daemon.process().rss().saturating_sub(memory);
    println!("memory grew by {grown} KiB for 51,200 routes that nobody wants");
    assert!(grown < 4096, "memory grew by {grown} KiB");
    // The VIP announced again by way of somebody else is an implicit withdrawal.
    session.send(&announce_nlri(Ipv4Addr::new(192, 0, 2, 66), G, "20c633640a", &[]));
    until("no longer routed", secs(2), || l.next_hops(VIP).is_empty());
}

#[test]
fn a_key_of_a_range_lets_in_only_those_who_have_it() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, a, b, c) = (lab.host("l", 1), lab.host("a", 11), lab.host("b", 12), lab.host("c", 13));
    let daemon = l.spawn(listener(&l, ANY, "auth_password: k1"));
    let neighbor = || Neighbor::new(l.v4, L).told(vec![VIP.to_owned()]);
    a.spawn(bird(G, &[neighbor().password("k1")]));
    b.spawn(bird(G, &[neighbor().password("k2")]));
    c.spawn(bird(G, &[neighbor()]));
    until("the one with the key is routed to", secs(10), || l.next_hops(VIP) == set(&[a.v4]));
    while_holds("and no other", secs(4), || l.next_hops(VIP) == set(&[a.v4]));
    assert!(daemon.log().lines().filter(|line| line.contains("ERROR")).count() <= 1);
    drop(daemon);
}

#[test]
fn a_key_of_all_addresses_protects_them_all() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, a, b) = (lab.host("l", 1), lab.host("a", 11), lab.host("b", 12));
    l.spawn(listener(&l, "0.0.0.0/0", "auth_password: k1"));
    let neighbor = || Neighbor::new(l.v4, L).told(vec![VIP.to_owned()]);
    a.spawn(bird(G, &[neighbor().password("k1")]));
    b.spawn(bird(G, &[neighbor()]));
    until("the one with the key is routed to", secs(10), || l.next_hops(VIP) == set(&[a.v4]));
    while_holds("and no other", secs(4), || l.next_hops(VIP) == set(&[a.v4]));
}

#[test]
fn no_more_members_than_allowed_are_taken_and_none_from_outside_the_range() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, p) = (lab.host("l", 1), lab.host("p", 11));
    p.run("for n in 12 13 14 200; do ip address add 192.0.2.$n/24 dev eth0; done");
    l.spawn(listener(&l, "192.0.2.0/25", "max_members: 3"));
    let address = |last| Ipv4Addr::new(192, 0, 2, last);
    let mut sessions: Vec<_> = [11, 12, 13].into_iter().map(|last| member(&p, address(last), &l)).collect();
    let three = set(&[address(11), address(12), address(13)]);
    until("three are routed to", secs(3), || l.next_hops(VIP) == three);
    for refused in [14, 200] {
        {
            let mut session = dial(&p, address(refused), &l);
            session.send(&OpenBytes::new(G, address(refused)).message().bytes);
            let answer = session.drain(secs(1));
            assert_eq!(answer.last().and_then(Message::code), Some((6, 5)), "192.0.2.{refused}: {answer:?}");
        }
        assert_eq!(l.next_hops(VIP), three);
    }
    sessions.remove(1);
    until("one has left", secs(2), || l.next_hops(VIP) == set(&[address(11), address(13)]));
    let _fourth = member(&p, address(14), &l);
    until("its place is free", secs(3), || l.next_hops(VIP) == set(&[address(11), address(13), address(14)]));
}

#[test]
fn a_hundred_members_that_came_and_went_leave_nothing_behind() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, p) = (lab.host("l", 1), lab.host("p", 11));
    p.run("for n in $(seq 100 199); do ip address add 192.0.2.$n/24 dev eth0; done");
    let daemon = l.spawn(listener(&l, ANY, "max_members: 8"));
    let process = daemon.process();
    let (descriptors, memory) = (process.descriptors(), process.rss());
    for last in 100..200 {
        let address = Ipv4Addr::new(192, 0, 2, last);
        let session = member(&p, address, &l);
        until("routed", secs(3), || l.next_hops(VIP).contains(&address.into()));
        drop(session);
    }
    until("no route is left", secs(3), || l.next_hops(VIP).is_empty());
    until("no descriptor is left", secs(3), || process.descriptors() <= descriptors);
    let (_, body) = l.get(API, "/status").expect("the status");
    let status: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    let listener = &status["listener"];
    assert_eq!(listener["members"], serde_json::json!([]), "{body}");
    // Those that were here last are named, and no more.
    assert_eq!(listener["gone"].as_array().map(Vec::len), Some(64), "{body}");
    let grown = process.rss().saturating_sub(memory);
    println!("memory grew by {grown} KiB");
    assert!(grown < 4096);
}

#[test]
fn a_member_that_says_nothing_is_let_go_in_time() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, q) = (lab.host("l", 1), lab.host("q", 12));
    let daemon = l.spawn(listener(&l, ANY, ""));
    let mut silent = dial(&q, q.v4, &l);
    let begun = Instant::now();
    let mut last = Read::Silence;
    while begun.elapsed() < secs(20) && !matches!(last, Read::Closed | Read::Reset) {
        last = silent.read(secs(1));
    }
    println!("the silent one was let go after {:.1?}", begun.elapsed());
    assert!(matches!(last, Read::Closed | Read::Reset));
    drop(daemon);
}

#[test]
fn routes_stay_over_a_restart_of_the_listener() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let daemon = l.spawn(listener(&l, ANY, ""));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP, VIP6], "/", WITHDRAW);
    let member = g.spawn(config.spec());
    let routed = || l.next_hops(VIP) == set(&[g.v4]) && l.next_hops(VIP6) == BTreeSet::from([g.v6.into()]);
    until("routed", secs(10), routed);
    daemon.kill();
    while_holds("routed without a listener", secs(1), routed);
    daemon.start_again();
    while_holds("routed while the member comes back", secs(5), routed);
    member.kill();
    until("the new listener has it in hand", secs(2), || {
        l.next_hops(VIP).is_empty() && l.next_hops(VIP6).is_empty()
    });
}

#[test]
fn a_route_that_the_kernel_drops_is_put_back() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, p) = (lab.host("l", 1), lab.host("p", 11));
    l.spawn(listener(&l, ANY, ""));
    let _member = member(&p, p.v4, &l);
    until("routed", secs(3), || l.next_hops(VIP) == set(&[p.v4]));
    // The kernel says nothing of the route in the second case.
    for lost in [format!("ip route del {VIP}"), "ip link set eth0 down; ip link set eth0 up".to_owned()] {
        l.run(&lost);
        let took = until("the route is back", secs(5), || l.next_hops(VIP) == set(&[p.v4]));
        println!("{lost}: back after {took:.3?}");
    }
}
