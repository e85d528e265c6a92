//! The daemon beside BIRD, FRR and GoBGP, with a real nginx behind it: what each of them believes is what must hold.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const VIP6: &str = "2001:db8:100::10/128";
const L: u32 = 64512;
const G: u32 = 64513;

/// Health, drain and end of a VIP as a router sees them.
fn a_route_lives_and_dies_with_its_service(lab: &Lab, kind: Kind) {
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let drain = lab.file("drain");
    let nginx = g.spawn(nginx());
    nginx.stop();
    let router = l.spawn(router(kind, L, &[Neighbor::new(g.v4, G)]));
    let config =
        Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP, VIP6], "/healthz", &policy(&drain));
    let daemon = g.spawn(config.spec());
    let gone = || router.route(VIP).is_none() && router.route(VIP6).is_none();
    let there = || router.route(VIP).is_some() && router.route(VIP6).is_some();
    let timed = |what: &str, took: Duration| println!("{kind:?}: {what} after {:.3} s", took.as_secs_f64());

    until("the session is established", secs(15), || router.established(g.v4));
    while_holds("nothing is told before the service is there", Duration::from_millis(500), gone);
    nginx.start_again();
    timed("announced", until("announced", secs(3), there));
    for prefix in [VIP, VIP6] {
        let route = router.route(prefix).expect("the route");
        assert_eq!(route.as_path, [G], "{prefix}");
        assert_eq!(route.communities, [(64513, 100)], "{prefix}");
        assert_eq!(route.large, [(64513, 1, 2)], "{prefix}");
        assert_eq!(route.med, Some(5), "{prefix}");
    }
    assert_eq!(router.route(VIP).and_then(|route| route.next_hop), Some(g.v4.into()));
    assert_eq!(router.route(VIP6).and_then(|route| route.next_hop), Some(g.v6.into()));

    std::fs::write(&drain, "").expect("the drain file");
    let longer =
        |length| move |route: Option<Route>| route.is_some_and(|route| route.as_path.len() == length);
    timed("pessimised", until("pessimised", secs(3), || longer(4)(router.route(VIP))));
    until("pessimised in both families", secs(5), || longer(4)(router.route(VIP6)));
    for prefix in [VIP, VIP6] {
        let route = router.route(prefix).expect("the route");
        assert_eq!(route.as_path, [G; 4], "{prefix}");
        assert_eq!(route.communities, [(64513, 100), (64513, 666)], "{prefix}");
        assert_eq!(route.large, [(64513, 1, 2)], "{prefix}");
        assert_eq!(route.med, Some(5), "{prefix}");
    }
    std::fs::remove_file(&drain).expect("the drain file");
    timed("back", until("no longer pessimised", secs(3), || longer(1)(router.route(VIP))));

    nginx.stop();
    timed("withdrawn after nginx stopped", until("withdrawn", secs(3), gone));
    assert!(router.established(g.v4), "the session stays");
    nginx.start_again();
    until("announced again", secs(3), there);

    daemon.process().signal(Signal::SIGTERM);
    timed("withdrawn after SIGTERM", until("withdrawn at SIGTERM", secs(2), gone));
    assert_eq!(daemon.process().wait(secs(5)), 0);
    daemon.start_again();
    timed("announced after a start", until("announced after a start", secs(12), there));
    daemon.kill();
    timed("withdrawn after SIGKILL", until("withdrawn at SIGKILL", secs(2), gone));
}

/// A router that comes back is told again at once.
fn a_router_that_restarts_is_told_within_3_s(lab: &Lab, kind: Kind) {
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let router = l.spawn(router(kind, L, &[Neighbor::new(g.v4, G).passive()]));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP], "/", WITHDRAW);
    g.spawn(config.spec());
    until("announced", secs(10), || router.route(VIP).is_some());
    router.kill();
    while_holds("the router is away", secs(4), || true);
    std::thread::scope(|scope| {
        let started = scope.spawn(|| {
            until("the port opens", secs(10), || l.run("ss -Htln sport = :179").contains(":179"));
            Instant::now()
        });
        router.start_again();
        until("announced again", secs(20), || router.route(VIP).is_some());
        let took = started.join().expect("the port opened").elapsed();
        println!("{kind:?}: told {:.3} s after its port opened", took.as_secs_f64());
        assert!(took < secs(3), "told only after {took:?}");
    });
}

/// The session runs over IPv6, and both families with it.
fn a_session_over_ipv6_carries_both_families(lab: &Lab, kind: Kind) {
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let router = l.spawn(router(kind, L, &[Neighbor::new(g.v6, G)]));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let config = Announcer::new(&g, G).neighbor(l.v6, L, "").vip("web", &[VIP, VIP6], "/", WITHDRAW);
    let daemon = g.spawn(config.spec());
    until("announced", secs(15), || router.route(VIP6).is_some() && router.route(VIP).is_some());
    assert_eq!(router.route(VIP6).and_then(|route| route.next_hop), Some(g.v6.into()));
    assert_eq!(router.route(VIP).and_then(|route| route.next_hop), Some(g.v4.into()));
    daemon.kill();
    until("withdrawn", secs(2), || router.route(VIP6).is_none() && router.route(VIP).is_none());
}

/// A key that is shared opens the session, and one that differs does not.
fn only_the_shared_key_opens_a_session(lab: &Lab, kind: Kind) {
    let (l, g, w) = (lab.host("l", 1), lab.host("g", 11), lab.host("w", 12));
    let neighbors = [Neighbor::new(g.v4, G).password("shared"), Neighbor::new(w.v4, G).password("shared")];
    let router = l.spawn(router(kind, L, &neighbors));
    for (host, key) in [(&g, "shared"), (&w, "other")] {
        let config = Announcer::new(host, G).neighbor(l.v4, L, &format!("auth_password: {key}")).vip(
            "web",
            &[VIP],
            "/",
            WITHDRAW,
        );
        host.spawn(config.spec());
    }
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    until("announced with the shared key", secs(15), || router.route(VIP).is_some());
    while_holds("no session with another key", secs(4), || !router.established(w.v4));
}

/// Each end may be the one that waits.
fn a_passive_neighbor_is_waited_for(lab: &Lab, kind: Kind) {
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let capture = g.capture("eth0");
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "passive: true").vip("web", &[VIP], "/", WITHDRAW);
    g.spawn(config.spec());
    let router = l.spawn(router(kind, L, &[Neighbor::new(g.v4, G)]));
    until("announced", secs(30), || router.route(VIP).is_some());
    let dialled = |event: &Event| event.what == Seen::Syn && event.from.ip() == g.v4;
    assert!(!capture.finish().iter().any(dialled), "the passive end dialled");
}

/// A router in between is no obstacle when both ends allow it.
fn a_session_may_cross_a_router(lab: &Lab, kind: Kind) {
    let (l, r) = (lab.host("l", 1), lab.host("r", 2));
    let g = lab.bare("g", Ipv4Addr::new(198, 18, 0, 11), Ipv6Addr::LOCALHOST);
    lab.link((&r, "south", "198.18.0.1/24"), (&g, "north", "198.18.0.11/24"));
    r.sysctl("net/ipv4/ip_forward", "1");
    g.run("ip route add default via 198.18.0.1");
    l.run("ip route add 198.18.0.0/24 via 192.0.2.2");
    let router = l.spawn(router(kind, L, &[Neighbor::new(g.v4, G).multihop()]));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let config = Announcer::new(&g, G)
        .router(&format!("asn: {G}, router_id: {v4}, local_address: {v4}", v4 = g.v4))
        .neighbor(l.v4, L, "enable_multihop: true, multihop_ttl: 3")
        .vip("web", &[VIP], "/", WITHDRAW);
    g.spawn(config.spec());
    until("announced", secs(15), || router.route(VIP).is_some());
    assert_eq!(router.route(VIP).and_then(|route| route.next_hop), Some(g.v4.into()));
}

/// In one AS the path stays empty, prepends do nothing, and LOCAL_PREF speaks.
fn an_internal_neighbor_sees_no_as_and_a_local_pref(lab: &Lab, kind: Kind) {
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let router = l.spawn(router(kind, G, &[Neighbor::new(g.v4, G)]));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let drain = lab.file("drain");
    let policy = format!(
        "policy: {{ fail_action: withdraw, lower_priority_file: \"{}\", announce: {{ communities: [\"64513:100\"] }}, \
         lower_priority: {{ as_path_prepend: 3, local_pref: 10, communities: [\"64513:666\"] }} }}",
        drain.display()
    );
    let config = Announcer::new(&g, G).neighbor(l.v4, G, "").vip("web", &[VIP, VIP6], "/", &policy);
    g.spawn(config.spec());
    until("announced", secs(15), || router.route(VIP).is_some() && router.route(VIP6).is_some());
    for prefix in [VIP, VIP6] {
        let route = router.route(prefix).expect("the route");
        assert_eq!((route.as_path, route.local_pref), (vec![], Some(100)), "{prefix}");
        assert_eq!(route.communities, [(64513, 100)], "{prefix}");
    }
    std::fs::write(&drain, "").expect("the drain file");
    let worse = |prefix: &str| router.route(prefix).is_some_and(|route| route.local_pref == Some(10));
    until("pessimised", secs(3), || worse(VIP) && worse(VIP6));
    let route = router.route(VIP).expect("the route");
    assert!(route.as_path.is_empty());
    assert_eq!(route.communities, [(64513, 100), (64513, 666)]);
}

/// An AS number of four octets is one like any other.
fn an_as_of_four_octets_is_shown_whole(lab: &Lab, kind: Kind) {
    const BIG: u32 = 4_200_000_011;
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let router = l.spawn(router(kind, BIG + 1, &[Neighbor::new(g.v4, BIG)]));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let config = Announcer::new(&g, BIG).neighbor(l.v4, BIG + 1, "").vip("web", &[VIP], "/", WITHDRAW);
    g.spawn(config.spec());
    until("announced", secs(15), || router.route(VIP).is_some());
    assert_eq!(router.route(VIP).expect("the route").as_path, [BIG]);
}

macro_rules! with_each_router {
    ($($scenario:ident),* $(,)?) => {
        with_each_router!(@ bird, "bird", Bird, $($scenario),*);
        with_each_router!(@ frr, "frr", Frr, $($scenario),*);
        with_each_router!(@ gobgp, "gobgp", Gobgp, $($scenario),*);
    };
    (@ $module:ident, $need:literal, $kind:ident, $($scenario:ident),*) => {
        mod $module {
            use super::*;
            $(
                #[test]
                fn $scenario() {
                    let Some(lab) = lab!("standfast", "nginx", $need) else { return };
                    super::$scenario(&lab, Kind::$kind);
                }
            )*
        }
    };
}

with_each_router!(
    a_route_lives_and_dies_with_its_service,
    a_router_that_restarts_is_told_within_3_s,
    a_session_over_ipv6_carries_both_families,
    only_the_shared_key_opens_a_session,
    a_passive_neighbor_is_waited_for,
    a_session_may_cross_a_router,
    an_internal_neighbor_sees_no_as_and_a_local_pref,
    an_as_of_four_octets_is_shown_whole,
);

/// BIRD's configuration for one neighbour, with `options` of the protocol.
fn bird_with(local: &str, neighbor: &str, options: &str) -> Spec {
    bird_raw(&format!(
        "router id 192.0.2.1;\nprotocol device {{}}\nprotocol bgp n1 {{\n local {local} as {L};\n neighbor {neighbor} as {G};\n\
         direct; {options} hold time 9; connect retry time 1; connect delay time 1; error wait time 1,2;\n\
         ipv4 {{ import all; export none; }};\n ipv6 {{ import all; export none; }};\n}}\n"
    ))
}

#[test]
fn an_internal_neighbor_takes_no_prepend_away_from_an_external_one() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, i, g) = (lab.host("l", 1), lab.host("i", 2), lab.host("g", 11));
    let drain = lab.file("drain");
    std::fs::write(&drain, "").expect("the drain file");
    let external = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let internal = i.spawn(bird(G, &[Neighbor::new(g.v4, G)]));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").neighbor(i.v4, G, "");
    g.spawn(config.vip("web", &[VIP], "/", &policy(&drain)).spec());
    until("both know it", secs(10), || external.route(VIP).is_some() && internal.route(VIP).is_some());
    assert_eq!(external.route(VIP).expect("the route").as_path, [G; 4]);
    assert!(internal.route(VIP).expect("the route").as_path.is_empty());
}

#[test]
fn ttl_security_opens_a_session_only_where_both_ends_ask_for_it() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let bird = l.spawn(bird_with("192.0.2.1", "192.0.2.11", "ttl security on;"));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let config = |more: &str| Announcer::new(&g, G).neighbor(l.v4, L, more).vip("web", &[VIP], "/", WITHDRAW);
    let daemon = g.spawn(config("").spec());
    while_holds("no session with TTL 1", secs(4), || !bird.established(g.v4));
    daemon.kill();
    daemon.write_config(&config("ttl_security: true").yaml());
    // BIRD still holds the connections whose packets it does not take, and answers no other for as long.
    bird.kill();
    bird.start_again();
    daemon.start_again();
    until("announced", secs(10), || bird.route(VIP).is_some());
}

#[test]
fn with_graceful_restart_a_route_outlives_a_crash_but_no_orderly_end() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let config = Announcer::new(&g, G).bgp("hold_time: 9s\n  graceful_restart: 5s").neighbor(l.v4, L, "");
    let daemon = g.spawn(config.vip("web", &[VIP, VIP6], "/", WITHDRAW).spec());
    let both = || bird.route(VIP).is_some() && bird.route(VIP6).is_some();
    let none = || bird.route(VIP).is_none() && bird.route(VIP6).is_none();
    until("announced", secs(10), both);
    daemon.kill();
    while_holds("kept over the crash", secs(1), both);
    daemon.start_again();
    while_holds("kept over the restart", secs(4), both);
    assert!(bird.established(g.v4));
    // What is not healthy after a restart is not kept for long.
    daemon.kill();
    service.set("/", false);
    daemon.start_again();
    until("a route that is not announced again goes", secs(6), none);
    service.set("/", true);
    until("announced again", secs(5), both);
    daemon.kill();
    let took = until("gone at the restart time", secs(8), none);
    println!("gone {:.1} s after the crash", took.as_secs_f64());
    assert!(took > secs(3));
    daemon.start_again();
    until("announced again", secs(12), both);
    daemon.process().signal(Signal::SIGTERM);
    until("withdrawn at SIGTERM", secs(2), none);
    while_holds("and not kept", secs(1), none);
}

#[test]
fn a_key_counts_on_a_link_local_session_and_after_the_interface_was_replaced() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    l.run("ip address add fe80::1/64 dev eth0 nodad");
    g.run("ip address add fe80::11/64 dev eth0 nodad");
    let bird = l.spawn(bird_with("fe80::1", "fe80::11 % 'eth0'", "password \"shared\";"));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let config = |key: &str| {
        let peer: Ipv6Addr = "fe80::1".parse().expect("an address");
        let more = format!("interface: eth0, local_address: \"fe80::11\"{key}");
        Announcer::new(&g, G).neighbor(peer, L, &more).vip("web", &[VIP6], "/", WITHDRAW)
    };
    let daemon = g.spawn(config(", auth_password: shared").spec());
    until("announced with the shared key", secs(10), || bird.route(VIP6).is_some());
    lab.replace_interface(&g);
    g.run("ip address add fe80::11/64 dev eth0 nodad");
    until("the old session ends", secs(12), || bird.route(VIP6).is_none());
    until("announced over the new interface", secs(12), || bird.route(VIP6).is_some());
    for key in [", auth_password: other", ""] {
        daemon.kill();
        until("withdrawn", secs(3), || bird.route(VIP6).is_none());
        daemon.write_config(&config(key).yaml());
        daemon.start_again();
        while_holds("no session without the key", secs(4), || bird.route(VIP6).is_none());
    }
}
