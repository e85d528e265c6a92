//! Walks without faults, one promise each.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use standfast_core::bgp::State;
use standfast_core::health::Verdict;
use standfast_core::node::{ConnId, Facts, Input, Node, Output};
use standfast_core::plan::{Damping, Drain, PeerAsn};
use standfast_core::{Machine, Prefix, Time};

use crate::bench::octets::{Parsed, UPDATE, cap_mp, cap_restart, hex, keepalive, open, split, to_hex};
use crate::bench::peer::{p, secs};
use crate::bench::plan::{add_peer, add_vip, empty, id, listener, peer, vip};
use crate::world::World;

const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 11);

fn gateway(plan: impl FnOnce(&mut standfast_core::plan::Plan)) -> (World, usize, usize) {
    let mut world = World::new(1);
    let router = world.add_foreign(64512, ROUTER, true);
    let mut p = empty(64513, GATEWAY);
    add_peer(&mut p, peer("front", ROUTER, PeerAsn::Number(64512)));
    plan(&mut p);
    let node = world.add_node(p);
    (world, router, node)
}

#[test]
fn a_verdict_becomes_octets_at_the_peer_and_bad_verdicts_take_them_back() {
    let (mut world, router, node) =
        gateway(|p| add_vip(p, vip("web", &["198.51.100.10/32"], &["http"]), &["http"]));
    world.run(secs(5));
    let table = world.table_at(router, node).expect("a session").clone();
    assert_eq!(table.prefixes(), [p("198.51.100.10/32")]);
    let route = &table.0[&p("198.51.100.10/32")];
    assert_eq!(route.next_hop, IpAddr::V4(GATEWAY));
    assert_eq!(to_hex(&route.attributes[&2]), to_hex(&hex("02 01 0000fc01")));
    world.hosts[node].good.values_mut().for_each(|g| *g = false);
    let failed = world.now;
    while !world.table_at(router, node).unwrap().0.is_empty() {
        world.run(std::time::Duration::from_millis(50));
        assert!(world.now.since(failed) < secs(3), "the route stays");
    }
}

#[test]
fn a_silent_prober_takes_the_route_back() {
    let (mut world, router, node) =
        gateway(|p| add_vip(p, vip("web", &["198.51.100.10/32"], &["http"]), &["http"]));
    world.run(secs(5));
    assert_eq!(world.table_at(router, node).unwrap().0.len(), 1);
    world.hosts[node].probing = false;
    world.run(secs(7));
    assert!(world.table_at(router, node).unwrap().0.is_empty());
}

#[test]
fn a_managed_address_comes_before_its_route_and_goes_after_it() {
    let (mut world, router, node) = gateway(|p| {
        let mut web = vip("web", &["198.51.100.10/32"], &["http"]);
        web.manage = Some("lo".into());
        add_vip(p, web, &["http"]);
    });
    for good in [true, false, true] {
        world.hosts[node].good.values_mut().for_each(|g| *g = good);
        world.run(secs(6));
        assert_eq!(world.hosts[node].addresses.len(), usize::from(good));
        assert_eq!(world.table_at(router, node).unwrap().0.len(), usize::from(good));
    }
    world.input(node, Input::Stop("bye".into()));
    world.run(secs(5));
    assert!(world.hosts[node].stopped && world.hosts[node].addresses.is_empty());
}

#[test]
fn a_managed_address_stays_until_a_slow_peer_has_taken_the_withdrawal() {
    let (mut world, router, node) = gateway(|p| {
        let mut web = vip("web", &["198.51.100.10/32"], &["http"]);
        web.manage = Some("lo".into());
        add_vip(p, web, &["http"]);
    });
    world.run(secs(6));
    world.slow.insert(router, 1);
    world.hosts[node].good.values_mut().for_each(|g| *g = false);
    let failed = world.now;
    while !world.table_at(router, node).unwrap().0.is_empty() {
        assert_eq!(world.hosts[node].addresses.len(), 1, "the address left while packets still come");
        world.run(std::time::Duration::from_millis(20));
    }
    assert!(world.now.since(failed) > secs(3), "the peer was not slow: this proves nothing");
    world.slow.clear();
    world.run(secs(2));
    assert!(world.hosts[node].addresses.is_empty());
}

#[test]
fn a_managed_address_that_somebody_removes_takes_its_route_along() {
    let (mut world, router, node) = gateway(|p| {
        let mut web = vip("web", &["198.51.100.10/32"], &["http"]);
        web.manage = Some("lo".into());
        add_vip(p, web, &["http"]);
    });
    world.run(secs(6));
    world.hosts[node].addresses.clear();
    world.input(node, Input::Addresses([].into()));
    world.run(secs(1));
    assert!(world.table_at(router, node).unwrap().0.is_empty());
}

#[test]
fn a_stop_withdraws_lingers_and_closes_in_that_order() {
    let (mut world, router, node) =
        gateway(|p| add_vip(p, vip("web", &["198.51.100.10/32"], &["http"]), &["http"]));
    world.run(secs(5));
    world.input(node, Input::Stop("bye".into()));
    let asked = world.now;
    world.run(std::time::Duration::from_millis(300));
    let table =
        world.table_at(router, node).expect("the session is still there while packets are on their way");
    assert!(table.0.is_empty(), "not withdrawn first");
    assert!(!world.hosts[node].stopped);
    while !world.hosts[node].stopped {
        world.run(std::time::Duration::from_millis(50));
        assert!(world.now.since(asked) < secs(4));
    }
    world.run(secs(1));
    assert_eq!(world.table_at(router, node), None);
}

/// A gateway whose managed VIP drains before a stop, and says so by GRACEFUL_SHUTDOWN.
fn drained_on_stop() -> (World, usize, usize) {
    gateway(|p| {
        let mut web = vip("web", &["198.51.100.10/32"], &["http"]);
        web.manage = Some("lo".into());
        web.drain = Drain { on_stop: true, ..Drain::default() };
        add_vip(p, web, &["http"]);
        add_vip(p, vip("dns", &["198.51.100.53/32"], &["udp"]), &["udp"]);
    })
}

#[test]
fn a_stop_waits_for_connections_then_withdraws_lets_the_address_go_and_closes() {
    let (mut world, router, node) = drained_on_stop();
    let (web, dns) = (p("198.51.100.10/32"), p("198.51.100.53/32"));
    world.run(secs(5));
    assert_eq!(world.table_at(router, node).unwrap().prefixes(), [web, dns]);
    world.input(node, Input::Stop("bye".into()));
    for left in (1..20).rev() {
        world.run(secs(1));
        world.input(node, Input::Connections("web".into(), Ok(left)));
        let table = world.table_at(router, node).expect("a session");
        assert_eq!(table.prefixes(), [web], "who does not drain is gone, and who does is not");
        assert_eq!(to_hex(&table.0[&web].attributes[&8]), "ffff0000");
        assert_eq!(world.hosts[node].addresses.len(), 1);
    }
    world.input(node, Input::Connections("web".into(), Ok(0)));
    world.run(std::time::Duration::from_millis(300));
    assert!(world.table_at(router, node).expect("still a session").0.is_empty());
    assert!(!world.hosts[node].stopped && world.hosts[node].addresses.len() == 1);
    world.run(secs(4));
    assert!(world.hosts[node].stopped && world.hosts[node].addresses.is_empty());
    assert_eq!(world.table_at(router, node), None);
}

#[test]
fn a_second_stop_waits_for_no_connection_and_is_in_order_all_the_same() {
    let (mut world, router, node) = drained_on_stop();
    world.run(secs(5));
    world.input(node, Input::Stop("bye".into()));
    world.run(secs(3));
    world.input(node, Input::Connections("web".into(), Ok(9)));
    world.input(node, Input::Stop("bye, I said".into()));
    world.run(std::time::Duration::from_millis(300));
    assert!(world.table_at(router, node).expect("still a session").0.is_empty());
    assert_eq!(world.hosts[node].addresses.len(), 1);
    world.run(secs(4));
    assert!(world.hosts[node].stopped && world.hosts[node].addresses.is_empty());
}

#[test]
fn a_stop_waits_for_no_connection_longer_than_until_the_deadline() {
    let (mut world, _, node) = drained_on_stop();
    world.run(secs(5));
    world.input(node, Input::Stop("bye".into()));
    let asked = world.now;
    while !world.hosts[node].stopped {
        world.run(std::time::Duration::from_millis(500));
        world.input(node, Input::Connections("web".into(), Ok(9)));
        assert!(world.now.since(asked) < secs(34));
    }
    assert!(world.now.since(asked) > secs(30));
}

#[test]
fn a_drained_address_goes_when_the_route_is_gone_and_both_come_back() {
    let (mut world, router, node) = drained_on_stop();
    world.run(secs(5));
    for _ in 0..3 {
        world.input(node, Input::DrainVip { vip: Some("web".into()), deadline: None });
        world.run(secs(2));
        world.input(node, Input::Connections("web".into(), Ok(0)));
        world.run(std::time::Duration::from_millis(400));
        assert_eq!(world.table_at(router, node).unwrap().prefixes(), [p("198.51.100.53/32")]);
        assert_eq!(world.hosts[node].addresses.len(), 1, "packets are still on their way");
        world.run(secs(1));
        assert!(world.hosts[node].addresses.is_empty());
        world.input(node, Input::UndrainVip { vip: None });
        world.run(secs(1));
        assert_eq!(world.hosts[node].addresses.len(), 1);
        assert_eq!(world.table_at(router, node).unwrap().0.len(), 2);
    }
}

#[test]
fn an_order_to_drain_and_a_hold_outlive_a_restart_where_they_are_to() {
    let begin = || {
        gateway(|p| {
            for (name, prefix, persist) in
                [("kept", "198.51.100.1/32", true), ("not", "198.51.100.2/32", false)]
            {
                let mut one = vip(name, &[prefix], &["up"]);
                one.drain.persist = persist;
                add_vip(p, one, &["up"]);
            }
            let mut flaps = vip("flaps", &["198.51.100.3/32"], &["up"]);
            flaps.damping = Some(Damping { flaps: 1, within: secs(60), hold: secs(600), max: secs(600) });
            add_vip(p, flaps, &["up"]);
        })
    };
    let (mut world, router, node) = begin();
    world.run(secs(5));
    assert_eq!(world.table_at(router, node).unwrap().0.len(), 3);
    world.input(node, Input::DrainVip { vip: Some("kept".into()), deadline: None });
    world.input(node, Input::DrainVip { vip: Some("not".into()), deadline: None });
    for _ in 0..9 {
        world.input(node, Input::Reported(id("flaps", "up"), Verdict::bad("no")));
    }
    let facts = world.node(node).unwrap().facts(world.now).expect("it does not leave");
    assert_eq!((facts.drained.clone(), facts.flapped.len()), (vec!["kept".to_owned()], 1));

    let (mut world, router, node) = begin();
    world.start(node);
    world.input(node, Input::Recalled(Box::new(facts)));
    world.run(secs(9));
    assert_eq!(world.table_at(router, node).unwrap().prefixes(), [p("198.51.100.2/32")]);
    let status = world.node(node).unwrap().status(world.now);
    assert_eq!(status.vips[1].reason, "drained (by command): it was not announced");
    assert!(
        status.vips[0].reason.starts_with("damped: 1 flap in 0 s, held for 5"),
        "{}",
        status.vips[0].reason
    );
    world.input(node, Input::UndrainVip { vip: None });
    world.input(node, Input::Undamp("flaps".into()));
    world.run(secs(1));
    assert_eq!(world.table_at(router, node).unwrap().0.len(), 3);
    let facts = world.node(node).unwrap().facts(world.now).expect("it does not leave");
    let standing: Vec<_> = facts.standing.iter().map(|s| (&*s.vip, s.announced, s.failures.len())).collect();
    assert_eq!(standing, [("flaps", true, 0)]);
    assert!(facts.in_order().is_empty());
}

#[test]
fn a_host_that_crashes_again_and_again_is_held_and_one_that_ends_in_order_is_not() {
    let begin = || {
        gateway(|p| {
            let mut web = vip("web", &["198.51.100.3/32"], &["up"]);
            web.damping = Some(Damping { flaps: 3, within: secs(300), hold: secs(60), max: secs(600) });
            add_vip(p, web, &["up"]);
        })
    };
    let mut known = Facts::default();
    let mut life = |crash: bool| {
        let (mut world, router, node) = begin();
        // What is remembered is older than the world otherwise.
        world.run(secs(100));
        world.kill(node);
        world.start(node);
        world.input(node, Input::Recalled(Box::new(std::mem::take(&mut known).aged(secs(1)))));
        world.run(secs(9));
        let facts = world.node(node).unwrap().facts(world.now).expect("it does not leave");
        known = if crash { facts } else { facts.in_order() };
        let reason = world.node(node).unwrap().status(world.now).vips[0].reason.clone();
        (world.table_at(router, node).is_some_and(|t| !t.0.is_empty()), reason)
    };
    for crash in [true, false, true, false, false, true] {
        let (announced, reason) = life(crash);
        assert!(announced, "{reason}");
    }
    let (announced, reason) = life(true);
    assert!(!announced && reason.starts_with("damped: 3 flaps in 50 s, held for 5"), "{reason}");
    // It was not announced, so that this crash was none more.
    let (announced, reason) = life(false);
    assert!(!announced && reason.starts_with("damped: 3 flaps in 50 s, held for 4"), "{reason}");
}

#[test]
fn a_stop_whose_withdrawals_are_late_lingers_after_them_all_the_same() {
    let (mut world, router, node) = gateway(|p| {
        for i in 0..200 {
            let name = format!("v{i}");
            let mut v = vip(&name, &[&format!("198.51.100.{i}/32")], &["http"]);
            v.announce.communities = (0..200).map(|c| i << 16 | c).collect();
            add_vip(p, v, &["http"]);
        }
    });
    world.run(secs(6));
    assert_eq!(world.table_at(router, node).unwrap().0.len(), 200);
    world.slow.insert(router, 80);
    world.input(node, Input::Stop("bye".into()));
    while !world.table_at(router, node).is_some_and(|t| t.0.is_empty()) {
        world.run(std::time::Duration::from_millis(10));
        assert!(!world.hosts[node].stopped, "closed before the peer took the withdrawals");
    }
    let withdrawn = world.now;
    world.slow.clear();
    while !world.hosts[node].stopped {
        world.run(std::time::Duration::from_millis(10));
    }
    let linger = world.now.since(withdrawn);
    assert!(linger >= std::time::Duration::from_millis(300), "only {linger:?} for packets on their way");
}

#[test]
fn two_nodes_that_dial_each_other_end_with_one_connection() {
    for seed in 0..50 {
        let mut world = World::new(seed);
        let mut a = empty(64512, ROUTER);
        add_peer(&mut a, peer("b", GATEWAY, PeerAsn::Number(64513)));
        let mut b = empty(64513, GATEWAY);
        add_peer(&mut b, peer("a", ROUTER, PeerAsn::Number(64512)));
        let (a, b) = (world.add_node(a), world.add_node(b));
        world.run(secs(3));
        assert!(
            world.is_established(a, GATEWAY.into()) && world.is_established(b, ROUTER.into()),
            "seed {seed}"
        );
        assert_eq!(world.connections(a, b), 1, "seed {seed}");
    }
}

#[test]
fn two_routers_in_different_places_are_never_told_of_each_other() {
    let (mut world, first, node) = gateway(|p| {
        add_vip(p, vip("web", &["198.51.100.10/32"], &["http"]), &["http"]);
        add_peer(p, peer("other", Ipv4Addr::new(192, 0, 2, 2), PeerAsn::External));
    });
    let second = world.add_foreign(64999, Ipv4Addr::new(192, 0, 2, 2), true);
    world.run(secs(6));
    for far in [first, second] {
        let acts = world.foreign(far).flood();
        assert!(!acts.is_empty());
        world.act(far, acts);
    }
    world.hosts[node].good.values_mut().for_each(|g| *g = false);
    world.run(secs(30));
    for far in [first, second] {
        assert_eq!(world.table_at(far, node).expect("a session").prefixes(), []);
    }
}

#[test]
fn the_listener_routes_over_its_best_members_and_without_the_dead() {
    let mut world = World::new(3);
    let mut l = empty(64512, ROUTER);
    l.listener = Some(listener("192.0.2.0/24", &[("web", "198.51.100.10/32")]));
    let l = world.add_node(l);
    let members: Vec<usize> = (11..14)
        .map(|i| {
            let mut plan = empty(64513, Ipv4Addr::new(192, 0, 2, i));
            add_peer(&mut plan, peer("l", ROUTER, PeerAsn::Number(64512)));
            add_vip(&mut plan, vip("web", &["198.51.100.10/32"], &["http"]), &["http"]);
            world.add_node(plan)
        })
        .collect();
    world.run(secs(6));
    let hops = |world: &World| world.hosts[l].routes.get(&p("198.51.100.10/32")).cloned().unwrap_or_default();
    let of =
        |world: &World, list: &[usize]| list.iter().map(|i| IpAddr::V4(world.hosts[*i].address)).collect();
    assert_eq!(hops(&world), of(&world, &members));
    // One drains: the others carry the traffic; all drain: all carry it.
    for n in 0..3 {
        world.input(members[n], Input::LowerPriorityFile("web".into(), true));
        world.run(secs(1));
        let rest = if n == 2 { &members[..] } else { &members[n + 1..] };
        assert_eq!(hops(&world), of(&world, rest), "{n} drain");
    }
    world.kill(members[0]);
    world.run(secs(1));
    assert_eq!(hops(&world), of(&world, &members[1..]));
    // One behind a cut cable is gone within the hold time.
    let cut = (l.min(members[1]), l.max(members[1]));
    world.cut.insert(cut);
    world.run(secs(10));
    assert_eq!(hops(&world), of(&world, &members[2..]));
    world.cut.remove(&cut);
    world.run(secs(12));
    assert_eq!(hops(&world), of(&world, &members[1..]));
}

#[test]
fn members_that_leave_leave_nothing_behind() {
    let mut world = World::new(5);
    let mut l = empty(64512, ROUTER);
    let mut role = listener("192.0.2.0/24", &[("web", "198.51.100.10/32")]);
    role.accept[0].max_members = 16;
    l.listener = Some(role);
    let l = world.add_node(l);
    let members: Vec<usize> = (10..34)
        .map(|i| {
            let mut plan = empty(64513, Ipv4Addr::new(192, 0, 2, i));
            let mut up = peer("l", ROUTER, PeerAsn::Number(64512));
            up.graceful_restart = Some(secs(5));
            add_peer(&mut plan, up);
            add_vip(&mut plan, vip("web", &["198.51.100.10/32"], &["http"]), &["http"]);
            world.add_node(plan)
        })
        .collect();
    world.run(secs(10));
    let connected = |world: &World| world.node(l).unwrap().status(world.now).listener.unwrap().members.len();
    assert_eq!(connected(&world), 16, "as many as the range has room for");
    assert_eq!(world.hosts[l].routes[&p("198.51.100.10/32")].len(), 16);
    // A third dies, a third vanishes behind a cut cable, a third leaves in order.
    for (i, &member) in members.iter().enumerate() {
        match i % 3 {
            0 => world.kill(member),
            1 => {
                world.cut.insert((l.min(member), l.max(member)));
            }
            _ => world.input(member, Input::Stop("bye".into())),
        }
    }
    world.run(secs(12));
    assert_eq!(connected(&world), 0);
    assert!(world.hosts[l].routes.is_empty());
    assert!(members.iter().all(|&m| world.connections(l, m) == 0 || world.is_cut(l, m)));
}

#[test]
fn a_stranger_is_not_served() {
    let mut world = World::new(6);
    let mut l = empty(64512, ROUTER);
    l.listener = Some(listener("192.0.2.0/28", &[("web", "198.51.100.10/32")]));
    let l = world.add_node(l);
    let mut plan = empty(64513, Ipv4Addr::new(192, 0, 2, 200));
    add_peer(&mut plan, peer("l", ROUTER, PeerAsn::Number(64512)));
    add_vip(&mut plan, vip("web", &["198.51.100.10/32"], &["http"]), &["http"]);
    let stranger = world.add_node(plan);
    world.run(secs(30));
    assert!(world.hosts[l].routes.is_empty() && world.connections(l, stranger) == 0);
}

#[test]
fn a_stop_of_the_process_that_the_session_survives_takes_no_route_back() {
    let (mut world, router, node) = gateway(|p| {
        add_vip(p, vip("web", &["198.51.100.10/32"], &["http"]), &["http"]);
        p.checks.values_mut().for_each(|c| c.fall = 1);
    });
    world.run(secs(5));
    world.freeze(node, secs(5));
    for _ in 0..150 {
        world.run(std::time::Duration::from_millis(100));
        let table = world.table_at(router, node).expect("the session holds for longer");
        assert_eq!(table.0.len(), 1, "at {}", world.now);
    }
}

#[test]
fn nothing_is_announced_anew_on_what_was_known_before_the_process_was_stopped() {
    // The session ends while the process is stopped, or was gone before.
    for gone_before in [false, true] {
        let (mut world, router, node) =
            gateway(|p| add_vip(p, vip("web", &["198.51.100.10/32"], &["http"]), &["http"]));
        world.run(secs(5));
        if gone_before {
            world.cut.insert((router.min(node), router.max(node)));
            world.run(secs(15));
        }
        world.hosts[node].probing = false;
        world.freeze(node, secs(60));
        world.run(secs(59));
        assert_eq!(world.table_at(router, node), None, "the router's hold time is over");
        world.cut.clear();
        let mut sessions = 0;
        // Silence counts after 2.5 s, and it takes two of it to fail.
        for _ in 0..58 {
            world.run(std::time::Duration::from_millis(100));
            sessions += u32::from(world.table_at(router, node).is_some());
            assert!(world.table_at(router, node).is_none_or(|t| t.0.is_empty()), "told at {}", world.now);
        }
        assert!(sessions > 3, "no session came up: this proves nothing");
        let vip = world.node(node).unwrap().status(world.now).vips.remove(0);
        assert_eq!(vip.transitions, 1, "it failed");
        assert!(vip.reason.contains("this host stood still"), "{}", vip.reason);
        // One result is enough: the check did not fail while nobody looked.
        world.hosts[node].probing = true;
        world.run(secs(2));
        assert_eq!(world.table_at(router, node).expect("a session").0.len(), 1);
    }
}

#[test]
fn many_vips_that_turn_at_once_are_told_at_once_with_a_few_tables() {
    let names: Vec<String> = (0..200).map(|i| format!("v{i}")).collect();
    let (mut world, router, node) = gateway(|p| {
        for (i, name) in names.iter().enumerate() {
            add_vip(p, vip(name, &[&format!("198.51.100.{i}/32")], &["http"]), &["http"]);
        }
    });
    world.hosts[node].probing = false;
    world.run(secs(2));
    for _ in 0..2 {
        for name in &names {
            world.input(node, Input::Reported(id(name, "http"), Verdict::good("200")));
        }
    }
    world.run(std::time::Duration::from_millis(300));
    assert_eq!(world.table_at(router, node).expect("a session").0.len(), 200);
    let sent = world.node(node).unwrap().status(world.now).peers[0].updates_sent;
    assert!(sent < 10, "{sent} UPDATEs");
}

/// A node with `count` VIPs whose session is all but up: it lacks the peer's KEEPALIVE.
fn all_but_up(count: u32) -> (Node, Time, ConnId) {
    let mut plan = empty(64513, GATEWAY);
    let mut front = peer("front", ROUTER, PeerAsn::Number(64512));
    front.graceful_restart = Some(secs(60));
    add_peer(&mut plan, front);
    for i in 0..count {
        let prefix = format!("{}/32", Ipv4Addr::from_bits(0xc612_0000 + i));
        add_vip(&mut plan, vip(&format!("v{i}"), &[&prefix], &["http"]), &["http"]);
    }
    let now = Time::from_secs(10);
    let mut node = Node::new(now, plan, 1);
    let mut out = Vec::new();
    node.tick(now, &mut out);
    let dialled =
        out.iter().find_map(|o| if let Output::Dial(d) = o { Some((d.conn, d.remote)) } else { None });
    let (conn, remote) = dialled.expect("it dials at once");
    let local = SocketAddr::new(GATEWAY.into(), 40_000);
    node.handle(now, Input::Connected { conn, local, remote }, &mut out);
    let open = open(64512, 240, ROUTER.octets(), &[cap_mp(1), cap_restart(false, false, 60)]);
    node.handle(now, Input::Received(conn, open.into()), &mut out);
    (node, now, conn)
}

/// The UPDATEs among these outputs.
fn updates(out: &[Output]) -> Vec<Parsed> {
    let mut octets = Vec::new();
    out.iter().for_each(|o| {
        if let Output::Send(_, sent) = o {
            octets.extend_from_slice(sent)
        }
    });
    let messages = split(&mut octets);
    messages.iter().filter(|m| m[18] == UPDATE).map(|m| Parsed::new(m)).collect()
}

/// The prefixes that these outputs announce.
fn announced(out: &[Output]) -> Vec<Prefix> {
    updates(out).into_iter().flat_map(|u| u.announced.into_iter().map(|(p, _)| p)).collect()
}

/// Whether they say that the table is complete (RFC 4724 §2).
fn is_complete(out: &[Output]) -> bool {
    updates(out).iter().any(|u| u.announced.is_empty() && u.withdrawn.is_empty())
}

#[test]
fn a_session_that_comes_up_is_told_the_table_as_it_is_and_not_as_it_was_when_it_was_last_made() {
    let (mut node, mut now, conn) = all_but_up(3000);
    let mut out = Vec::new();
    for good in [true, true, false, false] {
        now = now + std::time::Duration::from_micros(100);
        let verdict = if good { Verdict::good("200") } else { Verdict::bad("503") };
        node.handle(now, Input::Reported(id("v7", "http"), verdict), &mut out);
    }
    let due = node.deadline().expect("the table must be made").0;
    assert!(due > now, "the table was made already: this proves nothing");
    node.handle(now, Input::Received(conn, keepalive().into()), &mut out);
    assert_eq!(node.status(now).peers[0].session_state, State::Established);
    assert_eq!(announced(&out), [], "a withdrawn VIP is told");
}

#[test]
fn a_session_that_comes_up_as_the_first_thing_after_a_stop_is_told_nothing_old() {
    for stop in [0, 60] {
        let (mut node, mut now, conn) = all_but_up(1);
        let mut out = Vec::new();
        for _ in 0..2 {
            node.handle(now, Input::Reported(id("v0", "http"), Verdict::good("200")), &mut out);
        }
        now = now + secs(stop);
        // What waited in the socket is read before any timer judges.
        node.handle(now, Input::Received(conn, keepalive().into()), &mut out);
        assert_eq!(node.status(now).peers[0].session_state, State::Established);
        assert_eq!(announced(&out).len(), usize::from(stop == 0), "after {stop} s");
        assert_eq!(is_complete(&out), stop == 0, "the peer would drop the routes that it kept");
        now = now + std::time::Duration::from_millis(1);
        node.handle(now, Input::Reported(id("v0", "http"), Verdict::good("200")), &mut out);
        assert_eq!(announced(&out).len(), 1, "after {stop} s");
        assert!(is_complete(&out), "after {stop} s");
    }
}

#[test]
fn a_route_is_there_before_the_words_on_it() {
    let mut plan = empty(64512, ROUTER);
    plan.listener = Some(listener("192.0.2.0/24", &[("web", "198.51.100.10/32")]));
    let (mut node, now, conn) = (Node::new(Time::ZERO, plan, 1), Time::from_secs(1), ConnId::ACCEPTED);
    let end = |ip: Ipv4Addr, port| SocketAddr::new(ip.into(), port);
    let connected = Input::Connected { conn, local: end(ROUTER, 179), remote: end(GATEWAY, 50_000) };
    let open = open(64513, 9, GATEWAY.octets(), &[cap_mp(1)]);
    let update = |withdrawn: &[u8], attributes: &[u8], nlri: &[u8]| {
        Input::Received(conn, crate::bench::octets::update(withdrawn, attributes, nlri).into())
    };
    // ORIGIN, AS_PATH 64513 (two octets for each AS), NEXT_HOP 192.0.2.11.
    let attributes = hex("400101004002040201fc01400304c000020b");
    let prefix = hex("20c633640a");
    let routes = |out: &[Output]| out.iter().filter(|o| matches!(o, Output::Route(_))).count();
    let words = |out: &[Output]| {
        let about_it = |o: &&Output| matches!(o, Output::Event(e) if e.about == "listener vip web");
        out.iter().filter(about_it).count()
    };
    let mut out = Vec::new();
    node.handle(now, connected, &mut out);
    node.handle(now, Input::Received(conn, open.into()), &mut out);
    node.handle(now, Input::Received(conn, keepalive().into()), &mut out);
    out.clear();
    node.act(now, update(&[], &attributes, &prefix), &mut out);
    assert_eq!((routes(&out), words(&out)), (1, 0));
    // Nobody asked: they come before what happens next.
    out.clear();
    node.act(now, update(&prefix, &[], &[]), &mut out);
    assert_eq!((routes(&out), words(&out)), (1, 1));
    out.clear();
    node.explain(&mut out);
    node.explain(&mut out);
    assert_eq!((routes(&out), words(&out)), (0, 1));
    // The ordinary way says everything at once.
    out.clear();
    node.handle(now, update(&[], &attributes, &prefix), &mut out);
    assert_eq!((routes(&out), words(&out)), (1, 1));
}
