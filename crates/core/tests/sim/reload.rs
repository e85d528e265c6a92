//! Reloads in the middle of everything: random plans, one after another, end as a fresh start with the last one does, and no
//! session is closed that no plan named.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use standfast_core::announce::VipState;
use standfast_core::health::Expr;
use standfast_core::machine::Rng;
use standfast_core::node::{Fixed, Input, LocalAddress, fixed};
use standfast_core::plan::{Accept, CheckId, FailAction, ListenerVip, Peer, PeerAsn, Plan, Probe};
use standfast_core::{Machine, Prefix};

use crate::bench::octets::Table;
use crate::bench::peer::{p, secs};
use crate::bench::plan::{add_peer, add_vip, check, empty, id, listener, peer, vip};
use crate::world::World;

const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 11);
const ROUTERS: [&str; 3] = ["one", "two", "three"];

fn router(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, 1 + n)
}

/// Some of these VIPs, told to some of these peers, each with or without what it may have. `base` is always told to all, in both
/// families.
fn any(rng: &mut Rng) -> Plan {
    let mut plan = empty(64513, GATEWAY);
    add_vip(&mut plan, vip("base", &["198.51.100.1/32", "2001:db8:100::1/128"], &["http"]), &["http"]);
    plan.checks.insert(CheckId::shared("uplink"), check());
    for (n, name) in ["web", "dns", "api"].into_iter().enumerate() {
        if rng.below(4) == 0 {
            continue;
        }
        let all = [format!("198.51.100.1{n}/32"), format!("198.51.100.2{n}/32"), format!("203.0.113.{n}/32")];
        let some: Vec<&str> = all.iter().take(1 + rng.below(3) as usize).map(String::as_str).collect();
        let checks: &[&str] = [&["http"][..], &["http", "tcp"], &["tcp"]][rng.below(3) as usize];
        let mut vip = vip(name, &some, checks);
        vip.manage = [None, Some("lo"), Some("eth0")][rng.below(3) as usize].map(str::to_owned);
        vip.announce.med = [None, Some(1), Some(2)][rng.below(3) as usize];
        vip.announce.communities = (0..rng.below(3)).map(|n| n as u32).collect();
        if rng.below(3) == 0 {
            vip.fail_action = FailAction::LowerPriority;
        }
        if rng.below(3) == 0 {
            vip.checks.insert("uplink".into(), CheckId::shared("uplink"));
            let both = [vip.policy.clone(), Expr::Check("uplink".into())];
            vip.policy =
                if rng.below(2) == 0 { Expr::All(both.into()) } else { Expr::AtLeast(1, both.into()) };
        }
        add_vip(&mut plan, vip, checks);
        for c in checks {
            let check = plan.checks.get_mut(&id(name, c)).unwrap();
            check.rise = 1 + rng.below(3) as u32;
            if let (Probe::Tcp(tcp), 0) = (&mut check.probe, rng.below(4)) {
                tcp.send = b"ask something else".to_vec();
            }
        }
    }
    for n in 0..3 {
        if rng.below(5) == 0 {
            continue;
        }
        let mut peer = peer(ROUTERS[usize::from(n)], router(n), PeerAsn::Number(64512));
        if rng.below(4) == 0 {
            peer.timers.hold = secs(12);
        }
        if rng.below(4) == 0 {
            peer.timers.connect_retry = secs(2);
        }
        if rng.below(3) == 0 {
            let told = |name: &&str| *name == "base" || rng.below(2) == 0;
            let names: Vec<&str> = ["base", "web", "dns", "api"].into_iter().filter(told).collect();
            peer.vips =
                Some(names.into_iter().map(str::to_owned).filter(|v| plan.vips.contains_key(v)).collect());
        }
        add_peer(&mut plan, peer);
    }
    plan
}

type End = (Vec<Option<BTreeMap<Prefix, String>>>, BTreeSet<LocalAddress>, Vec<(String, VipState)>);

/// What is told to whom, what is on the host, and what each VIP is.
fn end(world: &World, node: usize) -> End {
    let told = |t: &Table| t.0.iter().map(|(p, route)| (*p, format!("{route:?}"))).collect();
    let tables = (0..3).map(|router| world.table_at(router, node).map(told)).collect();
    let vips = world.node(node).unwrap().status(world.now).vips;
    let vips = vips.into_iter().map(|v| (v.name, v.state_name)).collect();
    (tables, world.hosts[node].addresses.clone(), vips)
}

fn begin(seed: u64, plan: Plan, good: &BTreeMap<CheckId, bool>) -> (World, usize) {
    let mut world = World::new(seed);
    for n in 0..3 {
        world.add_foreign(64512, router(n), true);
    }
    let node = world.add_node(plan);
    let known: Vec<CheckId> = world.hosts[node].good.keys().cloned().collect();
    for id in known {
        let is = good.get(&id).copied().unwrap_or(true);
        world.hosts[node].good.insert(id, is);
    }
    (world, node)
}

/// Whether a session is the same thing by both plans.
fn goes_on(old: &Plan, new: &Plan, name: &str) -> bool {
    let session = |peer: &Peer| {
        let mut peer = peer.clone();
        (peer.vips, peer.timers.connect_retry) = (None, Duration::ZERO);
        peer
    };
    let (old, new) = (old.bgp.peers.get(name), new.bgp.peers.get(name));
    old.map(session) == new.map(session)
}

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("STANDFAST_SEED") {
        Ok(seed) => seed.parse().map(|s| s..s + 1).unwrap(),
        Err(_) => 0..100,
    }
}

#[test]
fn random_reloads_end_as_a_fresh_start_does_and_close_no_session_that_is_not_named() {
    let (mut told, mut ended) = (0, 0);
    for seed in seeds() {
        let mut rng = Rng::new(seed);
        let mut plan = any(&mut rng);
        let (mut world, node) = begin(seed, plan.clone(), &BTreeMap::new());
        for _ in 0..2 + rng.below(4) {
            world.run(Duration::from_millis(rng.below(6_000)));
            for good in world.hosts[node].good.values_mut() {
                *good = rng.below(6) > 0;
            }
            match rng.below(4) {
                0 => world.input(node, Input::DrainVip { vip: Some("web".into()), deadline: Some(secs(2)) }),
                1 => world.input(node, Input::UndrainVip { vip: None }),
                _ => {}
            }
            let next = any(&mut rng);
            assert_eq!(fixed(&plan, &next), [], "seed {seed}");
            let line = world.log.len();
            world.reload(node, next.clone());
            world.run(Duration::from_millis(rng.below(3)));
            for name in ROUTERS {
                let lost = world.log[line..].iter().find(|l| l.contains(&format!("peer {name}: down")));
                ended += u32::from(lost.is_some());
                assert!(lost.is_none() || !goes_on(&plan, &next, name), "seed {seed}: {lost:?}");
            }
            plan = next;
        }
        world.input(node, Input::UndrainVip { vip: None });
        world.run(secs(60));
        let (mut fresh, other) = begin(seed, plan.clone(), &world.hosts[node].good);
        fresh.run(secs(60));
        if std::env::var("STANDFAST_SEED").is_ok() {
            world.log.iter().for_each(|line| eprintln!("{line}"));
        }
        // An address that is the operator's business by now stays for as long as its route is told.
        let free: BTreeSet<Prefix> =
            plan.vips.values().filter(|v| v.manage.is_none()).flat_map(|v| v.prefixes.clone()).collect();
        // One that fails since before this run keeps what it was, and a fresh start cannot know.
        let (mut was, is) = (end(&world, node), end(&fresh, other));
        let pessimised: BTreeSet<String> =
            was.2.iter().filter(|v| v.1 == VipState::Pessimised).map(|v| v.0.clone()).collect();
        let mut is = is;
        let theirs: BTreeSet<Prefix> =
            pessimised.iter().flat_map(|v| plan.vips[v].prefixes.clone()).collect();
        for end in [&mut was, &mut is] {
            end.0.iter_mut().flatten().for_each(|table| table.retain(|p, _| !theirs.contains(p)));
            let meant = |a: &Prefix| !theirs.contains(a) && !free.contains(a);
            end.1.retain(|a| meant(&Prefix::host(a.address)));
            end.2.retain(|v| !pessimised.contains(&v.0));
        }
        assert_eq!(was, is, "seed {seed}");
        told += was.0.iter().flatten().map(BTreeMap::len).sum::<usize>();
    }
    if std::env::var("STANDFAST_SEED").is_err() {
        assert!(told > 300 && ended > 15, "{told} routes, {ended} sessions: they prove little");
    }
}

fn web() -> Plan {
    let mut plan = empty(64513, GATEWAY);
    add_peer(&mut plan, peer("one", router(0), PeerAsn::Number(64512)));
    add_vip(&mut plan, vip("web", &["198.51.100.10/32"], &["http"]), &["http"]);
    plan
}

#[test]
fn an_announced_vip_stays_until_its_new_checks_have_decided() {
    for good in [true, false] {
        let (mut world, node) = begin(1, web(), &BTreeMap::new());
        world.run(secs(10));
        let mut next = web();
        let web = next.vips.get_mut("web").unwrap();
        web.checks.insert("tcp".into(), id("web", "tcp"));
        web.policy = Expr::All(["http", "tcp"].map(|c| Expr::Check(c.into())).into());
        next.checks.insert(id("web", "tcp"), check());
        world.reload(node, next);
        world.hosts[node].good.insert(id("web", "tcp"), good);
        let status = |world: &World| world.node(node).unwrap().status(world.now).vips.remove(0);
        let vip = status(&world);
        assert_eq!((vip.state_name, vip.transitions), (VipState::Announced, 1));
        assert_eq!(vip.reason, "healthy before the reload, and not decided since: tcp");
        world.run(secs(10));
        let vip = status(&world);
        assert_eq!(vip.transitions, if good { 1 } else { 2 }, "{}", vip.reason);
        assert_eq!(world.table_at(0, node).unwrap().0.len(), usize::from(good));
    }
}

#[test]
fn checks_that_never_speak_take_a_vip_that_waits_for_them_away() {
    let (mut world, node) = begin(1, web(), &BTreeMap::new());
    world.run(secs(10));
    let mut next = web();
    let Probe::Tcp(tcp) = &mut next.checks.get_mut(&id("web", "http")).unwrap().probe else { panic!() };
    tcp.reset = true;
    world.hosts[node].probing = false;
    world.reload(node, next);
    assert_eq!(world.table_at(0, node).unwrap().0.len(), 1);
    world.run(secs(10));
    assert_eq!(world.table_at(0, node).unwrap().0.len(), 0, "silence is a bad verdict");
}

#[test]
fn a_new_prefix_is_told_once_its_address_is_here_and_the_old_one_stays() {
    let mut plan = web();
    plan.vips.get_mut("web").unwrap().manage = Some("lo".into());
    let (mut world, node) = begin(1, plan.clone(), &BTreeMap::new());
    world.run(secs(10));
    plan.vips.get_mut("web").unwrap().prefixes.push(p("198.51.100.11/32"));
    world.reload(node, plan);
    let peer = world.node(node).unwrap().status(world.now).peers.remove(0);
    assert_eq!(peer.told.len(), 1, "the address is not shown yet");
    world.run(secs(2));
    assert_eq!(world.table_at(0, node).unwrap().0.len(), 2);
    assert_eq!(world.node(node).unwrap().status(world.now).vips[0].transitions, 1);
}

#[test]
fn what_only_a_restart_can_change_is_named_and_changes_nothing() {
    let (mut world, node) = begin(1, web(), &BTreeMap::new());
    world.run(secs(10));
    let mut next = web();
    next.router.asn = 64514;
    next.vips.clear();
    assert_eq!(fixed(&web(), &next), [Fixed::new(["router", "asn"], "every session would be opened anew")]);
    world.input(node, Input::Plan(std::sync::Arc::new(next)));
    assert_eq!(**world.node(node).unwrap().plan(), web());
    let mut six = web();
    six.vips.get_mut("web").unwrap().prefixes.push(p("2001:db8:100::10/128"));
    let why = "IPv6 is new to the session with one, which would have to be opened anew for it";
    assert_eq!(fixed(&web(), &six), [Fixed::new(["vips", "web"], why)]);
    six.bgp.peers.get_mut("one").unwrap().timers.hold = secs(30);
    assert_eq!(fixed(&web(), &six), [], "it is opened anew anyway");
    world.run(secs(5));
    assert_eq!(world.table_at(0, node).unwrap().0.len(), 1);
    // One that leaves does not begin anything.
    world.input(node, Input::Stop("bye".into()));
    let mut out = Vec::new();
    if let crate::world::Kind::Node(Some(node)) = &mut world.hosts[node].kind {
        node.handle(world.now, Input::Plan(std::sync::Arc::new(six)), &mut out);
    }
    assert!(
        format!("{out:?}").contains("not reloaded, nothing was changed: this host is leaving"),
        "{out:?}"
    );
}

const LISTENER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// A listener of these VIPs, and two members that announce `web` and `dns` to it.
fn fleet(plan: impl FnOnce(&mut Plan)) -> (World, usize, [usize; 2], Plan) {
    let mut world = World::new(3);
    let mut at = empty(64512, LISTENER);
    at.listener = Some(listener("192.0.2.0/24", &[("web", "198.51.100.10/32")]));
    plan(&mut at);
    let node = world.add_node(at.clone());
    let members = [11, 12].map(|n| {
        let mut plan = empty(64513, Ipv4Addr::new(192, 0, 2, n));
        add_peer(&mut plan, peer("front", LISTENER, PeerAsn::Number(64512)));
        add_vip(&mut plan, vip("web", &["198.51.100.10/32"], &["http"]), &["http"]);
        add_vip(&mut plan, vip("dns", &["198.51.100.53/32"], &["http"]), &["http"]);
        world.add_node(plan)
    });
    world.run(secs(10));
    (world, node, members, at)
}

fn ranges(plan: &mut Plan) -> &mut Vec<Accept> {
    &mut plan.listener.as_mut().unwrap().accept
}

fn add_dns(plan: &mut Plan) {
    let vips = &mut plan.listener.as_mut().unwrap().vips;
    vips.insert("dns".into(), ListenerVip::new(p("198.51.100.53/32")));
}

#[test]
fn a_vip_that_a_listener_gets_has_its_members_at_once_and_the_others_keep_theirs() {
    let (mut world, node, members, mut plan) = fleet(|_| {});
    let (web, dns) = (p("198.51.100.10/32"), p("198.51.100.53/32"));
    assert_eq!(world.hosts[node].routes.keys().collect::<Vec<_>>(), [&web]);
    let before = world.hosts[node].groups[&web].clone();
    let line = world.log.len();
    add_dns(&mut plan);
    world.reload(node, plan.clone());
    world.run(secs(2));
    assert_eq!(world.hosts[node].groups[&dns].hops, before.hops, "they said it again when they were asked");
    plan.listener.as_mut().unwrap().vips.remove("web");
    world.reload(node, plan);
    world.run(secs(2));
    assert_eq!(world.hosts[node].routes.keys().collect::<Vec<_>>(), [&dns]);
    let said = world.log[line..].join("\n");
    assert!(
        !said.contains("down:") && said.contains("vip web: 198.51.100.10/32: removed from the configuration"),
        "{said}"
    );
    let touched = said.matches("vip web: 198.51.100.10/32 via").count();
    assert_eq!(touched, 0, "{said}");
    assert!(members.iter().all(|m| world.is_established(*m, LISTENER.into())));
}

#[test]
fn a_range_that_changes_closes_the_sessions_that_it_must_and_no_other() {
    let (mut world, node, [one, two], mut plan) = fleet(|plan| {
        let mut other = Accept::new("other", p("192.0.2.12/32"), PeerAsn::External);
        other.timers.hold = secs(9);
        ranges(plan).push(other);
        add_dns(plan);
    });
    let (web, dns) = (p("198.51.100.10/32"), p("198.51.100.53/32"));
    let down = |world: &World, line: usize, n: u8| {
        world.log[line..].iter().any(|l| l.contains(&format!("member 192.0.2.{n}: down")))
    };
    // What it may announce, and how many may come, is live; its place in the list is nothing.
    let line = world.log.len();
    ranges(&mut plan).reverse();
    ranges(&mut plan)[0].vips = Some(["web".to_owned()].into());
    ranges(&mut plan)[1].max_members = 7;
    world.reload(node, plan.clone());
    world.run(secs(2));
    assert!(!down(&world, line, 11) && !down(&world, line, 12));
    assert_eq!(world.hosts[node].groups[&web].hops.len(), 2);
    assert_eq!(world.hosts[node].groups[&dns].hops.len(), 1, "one may not announce it any more");
    ranges(&mut plan)[0].vips = None;
    world.reload(node, plan.clone());
    world.run(secs(2));
    assert_eq!(world.hosts[node].groups[&dns].hops.len(), 2, "it may again, and was asked");
    assert!(!down(&world, line, 11) && !down(&world, line, 12));

    // Its timers are agreed.
    ranges(&mut plan)[0].timers.hold = secs(6);
    let line = world.log.len();
    world.reload(node, plan.clone());
    world.run(secs(5));
    assert!(!down(&world, line, 11) && down(&world, line, 12));
    assert!(world.is_established(one, LISTENER.into()) && world.is_established(two, LISTENER.into()));

    // Without a range that covers it a member is told so.
    ranges(&mut plan)[1].range = p("192.0.2.64/26");
    let line = world.log.len();
    world.reload(node, plan);
    world.run(secs(5));
    assert!(down(&world, line, 11) && !down(&world, line, 12));
    assert!(
        world.log[line..].iter().any(|l| l.contains("peer front: down: peer sent NOTIFICATION 6/3")),
        "{:#?}",
        &world.log[line..]
    );
    assert_eq!(world.hosts[node].groups[&web].hops.len(), 1);
}

#[test]
fn a_listener_is_neither_begun_nor_ended_by_a_reload() {
    let (_, _, _, plan) = fleet(|_| {});
    let mut without = plan.clone();
    without.listener = None;
    assert_eq!(fixed(&plan, &without).len(), 1);
    assert_eq!(fixed(&without, &plan).len(), 1);
    let mut six = plan.clone();
    six.listener.as_mut().unwrap().vips.insert("six".into(), ListenerVip::new(p("2001:db8:100::10/128")));
    assert_eq!(fixed(&plan, &six)[0].path, ["listener", "vips", "six"]);
}
