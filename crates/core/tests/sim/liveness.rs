//! BFD between an announcer and a listener: what a cut cable, a stop, a frozen host and a peer without BFD make of BGP.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use standfast_core::bfd::{Key, Reason, Report, State as Bfd};
use standfast_core::bgp::State;
use standfast_core::node::{BfdStatus, Input};
use standfast_core::plan::{self, BfdAuth, PeerAsn, Plan, Secret};

use crate::bench::bfd::{ms, plan as fast};
use crate::bench::peer::{p, secs};
use crate::bench::plan::{add_peer, add_vip, empty, listener, peer, vip};
use crate::world::World;

const FRONT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 11);
const VIP: &str = "198.51.100.10/32";

fn front(bfd: Option<plan::Bfd>) -> Plan {
    let mut plan = empty(64512, FRONT);
    let mut listener = listener("192.0.2.0/24", &[("web", VIP)]);
    listener.accept[0].bfd = bfd;
    plan.listener = Some(listener);
    plan
}

fn gateway(bfd: Option<plan::Bfd>) -> Plan {
    let mut plan = empty(64513, GATEWAY);
    let mut front = peer("front", FRONT, PeerAsn::Number(64512));
    front.bfd = bfd;
    add_peer(&mut plan, front);
    add_vip(&mut plan, vip("web", &[VIP], &["http"]), &["http"]);
    plan
}

/// A listener (host 0) and an announcer (host 1).
fn pair(seed: u64, front_bfd: Option<plan::Bfd>, gateway_bfd: Option<plan::Bfd>) -> World {
    let mut world = World::new(seed);
    world.add_node(front(front_bfd));
    world.add_node(gateway(gateway_bfd));
    world
}

fn routed(world: &World) -> bool {
    world.hosts[0].routes.contains_key(&p(VIP))
}

/// What the announcer sees of the listener.
fn sight(world: &World) -> BfdStatus {
    world.node(1).unwrap().status(world.now).peers[0].bfd.clone().unwrap()
}

fn established(world: &World) -> bool {
    world.is_established(1, IpAddr::V4(FRONT)) && world.is_established(0, IpAddr::V4(GATEWAY))
}

fn said(world: &World, what: &str) -> usize {
    world.log.iter().filter(|line| line.contains(what)).count()
}

/// Runs until `what` holds; how long it took.
fn until(world: &mut World, most: Duration, what: impl Fn(&World) -> bool) -> Duration {
    let start = world.now;
    while !what(world) {
        assert!(world.now.since(start) <= most, "not within {most:?}: {:#?}", world.log);
        world.run(ms(5));
    }
    world.now.since(start)
}

#[test]
fn a_cut_cable_takes_the_route_in_the_detection_time_and_a_mended_one_brings_it_back_within_2_s() {
    let auth = Some(BfdAuth { meticulous: true, key_id: 1, key: Secret::new("key".into()) });
    for seed in 0..12 {
        let strict = (seed % 3 == 0).then_some(secs(30));
        let auth = auth.clone().filter(|_| seed % 2 == 0);
        let plan = plan::Bfd { strict, auth, ..fast() };
        let mut world = pair(seed, Some(plan.clone()), Some(plan));
        until(&mut world, secs(6), |w| routed(w) && sight(w).state == Bfd::Up);
        world.run(secs(20));
        assert!(routed(&world) && sight(&world).losses == 0, "seed {seed}");
        for _ in 0..3 {
            world.cut.insert((0, 1));
            let took = until(&mut world, ms(400), |w| !routed(w));
            assert!((ms(99)..=ms(195)).contains(&took), "seed {seed}: {took:?}");
            until(&mut world, ms(200), |w| !established(w));
            let away = Duration::from_millis(world.rng.below(20_000));
            world.run(away);
            assert!(!routed(&world));
            world.cut.clear();
            let took = until(&mut world, secs(2), routed);
            assert!(took < secs(2), "seed {seed}: back after {took:?}, having been away for {away:?}");
            world.run(secs(15));
            assert!(routed(&world), "seed {seed}");
        }
        let status = world.node(1).unwrap().status(world.now);
        let why = &status.peers[0].last_down;
        assert!(
            why.starts_with("BFD: nothing heard from the peer for 150 ms (sent NOTIFICATION 6/10"),
            "{why}"
        );
        assert_eq!(status.peers[0].bfd.as_ref().unwrap().losses, 3);
    }
}

#[test]
fn rfc5882_s4_bfd_that_never_came_up_ends_nothing() {
    for (front, gateway) in [(Some(fast()), None), (None, Some(fast()))] {
        let mut world = pair(1, front, gateway);
        world.run(secs(60));
        assert!(established(&world) && routed(&world));
        assert_eq!(said(&world, "BFD is up") + said(&world, "BFD is down"), 0);
    }
}

#[test]
fn rfc5882_s3_2_a_peer_that_switches_bfd_off_stays() {
    let mut world = pair(1, Some(fast()), Some(fast()));
    world.run(secs(10));
    assert_eq!(sight(&world).state, Bfd::Up);
    // The listener's BFD leaves in order, its BGP does not.
    world.stop_bfd(0);
    world.run(secs(60));
    assert_eq!((sight(&world).state, sight(&world).losses), (Bfd::Down, 0));
    assert!(established(&world) && routed(&world));
    assert_eq!(said(&world, "the peer switched BFD off: nothing follows"), 1);
}

#[test]
fn a_stop_is_no_loss_for_the_other_end() {
    for leaves in [0, 1] {
        let mut world = pair(1, Some(fast()), Some(fast()));
        world.run(secs(10));
        world.input(leaves, Input::Stop("bye".into()));
        world.run(secs(5));
        assert!(world.hosts[leaves].stopped);
        assert_eq!(said(&world, "BFD is down"), 0, "{:#?}", world.log);
    }
}

#[test]
fn a_killed_announcer_is_noticed_though_nothing_tells_of_it_and_taken_back() {
    for seed in 0..5 {
        let mut world = pair(seed, Some(fast()), Some(fast()));
        until(&mut world, secs(6), |w| routed(w) && sight(w).state == Bfd::Up);
        world.run(secs(5));
        // The host dies: no FIN, no RST.
        world.cut.insert((0, 1));
        world.kill(1);
        until(&mut world, ms(200), |w| !routed(w));
        world.run(secs(30));
        world.cut.clear();
        world.start(1);
        // Its check needs two good runs.
        until(&mut world, secs(4), routed);
    }
}

#[test]
fn a_host_that_stood_still_blames_nobody_and_is_back_within_2_s() {
    for seed in 0..8 {
        let mut world = pair(seed, Some(fast()), Some(fast()));
        until(&mut world, secs(6), |w| routed(w) && sight(w).state == Bfd::Up);
        world.run(secs(15));
        let frozen = Duration::from_millis(30 + world.rng.below(6000));
        world.freeze(1, frozen);
        if frozen > ms(200) {
            until(&mut world, ms(200), |w| !routed(w));
            world.run(frozen - ms(200));
            until(&mut world, secs(3), routed);
        }
        world.run(secs(20));
        assert!(established(&world) && routed(&world), "seed {seed}: {frozen:?}");
        // The listener was right to say so; the announcer had no reason of its own.
        let blames = world.log.iter().filter(|l| l.contains("host 1") && l.contains("nothing heard")).count();
        assert_eq!(blames, 0, "seed {seed}: {:#?}", world.log);
    }
}

#[test]
fn strict_bgp_waits_for_bfd_and_says_so_when_it_waited_in_vain() {
    let strict = plan::Bfd { strict: Some(secs(5)), ..fast() };
    // The other end has no BFD at all: the session never opens.
    let mut world = pair(1, None, Some(strict.clone()));
    world.run(secs(60));
    assert!(!world.is_established(1, IpAddr::V4(FRONT)) && !routed(&world));
    assert!(said(&world, "BFD did not come up in time (bfd.strict") > 0, "{:#?}", world.log);
    let status = world.node(1).unwrap().status(world.now);
    assert_ne!(status.peers[0].session_state, State::Established);
    // Only one end is strict, or both: it opens as soon as BFD is up.
    for (front, gateway) in [(fast(), strict.clone()), (strict.clone(), fast()), (strict.clone(), strict)] {
        let mut world = pair(2, Some(front), Some(gateway));
        until(&mut world, secs(5), routed);
        assert_eq!(sight(&world).state, Bfd::Up);
        world.run(secs(20));
        assert!(routed(&world));
    }
}

#[test]
fn a_loss_that_is_told_together_with_its_end_locks_a_strict_peer_out_for_no_longer_than_a_dial() {
    for strict in [None, Some(secs(30))] {
        let plan = plan::Bfd { strict, ..fast() };
        let mut world = pair(1, Some(plan.clone()), Some(plan));
        until(&mut world, secs(6), |w| routed(w) && sight(w).state == Bfd::Up);
        world.run(secs(10));
        for (host, peer) in [(0, GATEWAY), (1, FRONT)] {
            // Between two turns of the BFD thread: down, init, up.
            let key = Key { address: peer.into(), scope: 0, multihop: false };
            let report =
                Report { state: Bfd::Up, reason: Reason::Up, losses: 9, ..Report::unavailable(Reason::Up) };
            world.input(host, Input::Bfd(key, report));
            until(&mut world, secs(1), |w| !routed(w));
            until(&mut world, secs(2), |w| routed(w) && established(w));
            world.run(secs(60));
            assert!(routed(&world) && established(&world), "{:#?}", world.log);
        }
        assert_eq!(said(&world, "BFD is down: up"), 0, "{:#?}", world.log);
        assert!(said(&world, "BFD was down for a moment") >= 2, "{:#?}", world.log);
    }
}

#[test]
fn rfc5882_s4_1_a_member_that_bfd_lost_serves_no_more_before_bfd_is_up() {
    let mut world = pair(1, Some(fast()), Some(fast()));
    until(&mut world, secs(6), |w| routed(w) && sight(w).state == Bfd::Up);
    // A filter drops UDP from here on, and lets TCP pass.
    world.deaf = true;
    until(&mut world, secs(1), |w| !routed(w));
    for _ in 0..120 {
        world.run(secs(1));
        assert!(!routed(&world), "{:#?}", world.log);
    }
    let waits = said(&world, "Warn member 192.0.2.11: waits for BFD, which lost it less than 5 minutes ago");
    assert!((1..=3).contains(&waits), "{:#?}", world.log);
    world.deaf = false;
    until(&mut world, secs(4), routed);
    // What was lost long ago is forgotten: BFD may have been taken out of use there.
    world.deaf = true;
    until(&mut world, secs(1), |w| !routed(w));
    let took = until(&mut world, secs(400), routed);
    assert!(took > secs(299), "{took:?}");
}

#[test]
fn only_members_that_were_established_are_waited_for() {
    let strict = plan::Bfd { strict: Some(secs(5)), ..fast() };
    let mut world = pair(1, Some(strict), Some(fast()));
    let key = Key { address: GATEWAY.into(), scope: 0, multihop: false };
    world.deaf = true;
    until(&mut world, secs(3), |w| w.bfd_sessions(0) == 1);
    let report = Report { losses: 1, ..Report::unavailable(Reason::Silent(ms(150))) };
    world.input(0, Input::Bfd(key, report));
    world.cut.insert((0, 1));
    world.run(secs(100));
    assert_eq!(world.bfd_sessions(0), 0);
}

#[test]
fn bgp_without_bfd_is_told_of_once_where_bfd_was_wanted() {
    for (front, gateway) in [(Some(fast()), None), (None, Some(fast()))] {
        let mut world = pair(1, front, gateway);
        world.run(secs(20));
        assert_eq!(said(&world, "BFD is not up"), 0);
        world.run(secs(600));
        assert_eq!(said(&world, "BGP is established and BFD is not up (not up yet)"), 1, "{:#?}", world.log);
        assert!(established(&world) && routed(&world));
    }
    let mut world = pair(1, None, Some(fast()));
    world.run(secs(10));
    assert_eq!(sight(&world).reason, "not up yet, though BGP is established");
    let mut world = pair(1, Some(fast()), Some(fast()));
    world.run(secs(100));
    assert_eq!(said(&world, "BFD is not up"), 0);
}

#[test]
fn the_end_of_bgp_is_said_before_bfd_is_switched_off() {
    for leaves in [0, 1] {
        let mut world = pair(1, Some(fast()), Some(fast()));
        world.run(secs(10));
        world.input(leaves, Input::Stop("bye".into()));
        until(&mut world, secs(5), |w| w.hosts[leaves].stopped);
        // The other end knows that BGP ended, and nothing of BFD yet.
        let (far, near) = if leaves == 0 { (1, FRONT) } else { (0, GATEWAY) };
        assert!(!world.is_established(far, IpAddr::V4(near)));
        assert_eq!(said(&world, "the peer switched BFD off"), 0, "{:#?}", world.log);
    }
}

#[test]
fn members_that_were_lost_are_not_waited_for_forever() {
    let mut world = pair(1, Some(fast()), Some(fast()));
    world.run(secs(10));
    world.cut.insert((0, 1));
    world.run(secs(1));
    assert!(said(&world, "BFD is down") >= 2);
    assert_eq!(world.bfd_sessions(0), 1);
    world.run(secs(320));
    assert_eq!(world.bfd_sessions(0), 0);
    world.cut.clear();
    world.run(secs(6));
    assert!(routed(&world));
}

#[test]
fn keys_that_differ_are_said_and_end_nothing() {
    let with = |key: &str| plan::Bfd {
        auth: Some(BfdAuth { meticulous: true, key_id: 1, key: Secret::new(key.into()) }),
        ..fast()
    };
    let mut world = pair(1, Some(with("one")), Some(with("other")));
    world.run(secs(30));
    assert!(established(&world) && routed(&world));
    assert!(said(&world, "BFD drops what the peer sends: its packets are made with another key") >= 1);
    assert_eq!(sight(&world).last_refusal.as_deref(), Some("its packets are made with another key"));
}
