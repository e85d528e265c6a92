//! Sessions as operators set them up beside BIRD and FRR: restarts, hop limits, keys, ports, families, and what a route carries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use nix::sys::signal::Signal;
use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const VIP6: &str = "2001:db8:100::10/128";
const OTHER: &str = "198.51.100.20/32";
const L: u32 = 64512;
const G: u32 = 64513;

/// Two hosts, the second one with a service behind port 80.
fn pair(lab: &Lab) -> (Host, Host, Service) {
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    (l, g, service)
}

/// BIRD with one neighbour: its `local` and `neighbor` words, options of the session, and options of the IPv4 channel.
fn bird_with(local: &str, neighbor: &str, options: &str, ipv4: &str) -> Spec {
    bird_raw(&format!(
        "router id 192.0.2.1;\nprotocol device {{}}\nprotocol bgp n1 {{\n local {local} as {L};\n neighbor {neighbor} as {G};\n\
         {options} hold time 9; connect retry time 1; connect delay time 1; error wait time 1,2;\n\
         ipv4 {{ {ipv4} import all; export none; }};\n ipv6 {{ import all; export none; }};\n}}\n"
    ))
}

fn a_restart_keeps_the_route_until_the_check_has_decided(lab: &Lab, kind: Kind) {
    let (l, g, service) = pair(lab);
    let router = l.spawn(router(kind, L, &[Neighbor::new(g.v4, G)]));
    let capture = g.capture("eth0");
    // The check takes at least 1.2 s from the start to its verdict.
    let check = "check: { type: http, interval: 300ms, timeout: 200ms, rise: 5, fall: 5, \
                 http: { host: 127.0.0.1, port: 80, url: \"/\" } }";
    let config = |restart: &str| {
        let bgp = format!("hold_time: 9s\n  graceful_restart: {restart}");
        Announcer::new(&g, G).bgp(&bgp).neighbor(l.v4, L, "").vip_with("web", &[VIP], check, WITHDRAW)
    };
    let daemon = g.spawn(config("true").spec());
    until("announced", secs(20), || router.route(VIP).is_some());
    for round in 0..2 {
        let before = capture.events().len();
        daemon.kill();
        daemon.start_again();
        while_holds("kept over the restart", secs(5), || router.route(VIP).is_some());
        let events = capture.events();
        let said: Vec<_> = events[before..]
            .iter()
            .filter(|e| e.from.ip() == g.v4)
            .filter_map(|e| Some((e.time, e.message()?.clone())))
            .collect();
        let open = said.iter().find(|(_, m)| m.kind() == MessageKind::Open).expect("an OPEN").0;
        let updates: Vec<_> = said.iter().filter_map(|(t, m)| Some((*t, m.update()?))).collect();
        let told = updates.iter().position(|(_, u)| u.announced == [VIP]).expect("an announcement");
        let end = updates.iter().position(|(_, u)| u.end_of_rib.is_some()).expect("an End-of-RIB");
        assert!(told < end, "the End-of-RIB came before the route");
        let decided = updates[end].0.checked_sub(open).expect("after the OPEN");
        println!("round {round}: End-of-RIB {decided:.3?} after the OPEN");
        assert!(updates.iter().all(|(_, u)| u.withdrawn.is_empty()), "a withdrawal");
    }
    service.set("/", false);
    until("a check that fails withdraws as always", secs(4), || router.route(VIP).is_none());
    service.set("/", true);
    until("announced", secs(4), || router.route(VIP).is_some());
    daemon.process().signal(Signal::SIGTERM);
    let took = until("an orderly end keeps nothing", secs(2), || router.route(VIP).is_none());
    println!("gone {took:.3?} after SIGTERM");
    while_holds("nor later", secs(1), || router.route(VIP).is_none());
    daemon.process().wait(secs(5));

    daemon.write_config(&config("false").yaml());
    daemon.start_again();
    until("announced", secs(20), || router.route(VIP).is_some());
    daemon.kill();
    let took =
        until("without graceful restart a crash keeps nothing", secs(5), || router.route(VIP).is_none());
    println!("gone {took:.3?} after SIGKILL without graceful restart");
}

#[test]
fn a_restart_keeps_the_route_at_bird_until_the_check_has_decided() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    a_restart_keeps_the_route_until_the_check_has_decided(&lab, Kind::Bird);
}

#[test]
fn a_restart_keeps_the_route_at_frr_until_the_check_has_decided() {
    let Some(lab) = lab!("standfast", "frr") else { return };
    a_restart_keeps_the_route_until_the_check_has_decided(&lab, Kind::Frr);
}

#[test]
fn ttl_security_keeps_out_who_is_further_away_than_allowed() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, r) = (lab.host("l", 1), lab.host("r", 2));
    let g = lab.bare("g", Ipv4Addr::new(198, 18, 0, 11), Ipv6Addr::LOCALHOST);
    lab.link((&r, "south", "198.18.0.1/24"), (&g, "north", "198.18.0.11/24"));
    r.sysctl("net/ipv4/ip_forward", "1");
    g.run("ip route add default via 198.18.0.1");
    l.run("ip route add 198.18.0.0/24 via 192.0.2.2");
    let bird = l.spawn(bird_with("192.0.2.1", "198.18.0.11", "multihop 255;", ""));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let config = |hops: &str| {
        Announcer::new(&g, G)
            .router(&format!("asn: {G}, router_id: {v4}, local_address: {v4}", v4 = g.v4))
            .neighbor(l.v4, L, &format!("ttl_security: {hops}"))
            .vip("web", &[VIP], "/", WITHDRAW)
    };
    let daemon = g.spawn(config("true").spec());
    while_holds("two hops are one too many", secs(6), || !bird.established(g.v4));
    daemon.kill();
    daemon.write_config(&config("2").yaml());
    daemon.start_again();
    until("two hops are allowed", secs(12), || bird.route(VIP).is_some());
}

#[test]
fn a_key_counts_over_ipv6_too() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, _service) = pair(&lab);
    let key = "k".repeat(80);
    let options = format!("direct; password \"{key}\";");
    let bird = l.spawn(bird_with("2001:db8::1", "2001:db8::11", &options, ""));
    let config =
        |more: &str| Announcer::new(&g, G).neighbor(l.v6, L, more).vip("web", &[VIP6], "/", WITHDRAW);
    let daemon = g.spawn(config(&format!("auth_password: {key}")).spec());
    until("announced with the shared key", secs(10), || bird.route(VIP6).is_some());
    for more in ["auth_password: other", ""] {
        daemon.stop();
        until("withdrawn", secs(3), || bird.route(VIP6).is_none());
        daemon.write_config(&config(more).yaml());
        daemon.start_again();
        while_holds("no session without it", secs(4), || !bird.established(g.v6));
    }
}

#[test]
fn ports_and_addresses_are_those_of_the_configuration() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, _service) = pair(&lab);
    g.run("ip address add 192.0.2.12/24 dev eth0; ip address add 192.0.2.13/24 dev eth0");
    let bird = l.spawn(bird_with("192.0.2.1 port 1179", "192.0.2.12 port 2179", "direct; passive;", ""));
    let listens = || {
        let mut all: Vec<String> = g
            .run("ss -Htln")
            .lines()
            .filter_map(|line| line.split_whitespace().nth(3).map(str::to_owned))
            .filter(|address| address.ends_with("179") && *address != API.to_string())
            .collect();
        all.sort();
        all
    };
    let config = |bgp: &str, more: &str| {
        let more = format!("port: 1179, local_address: 192.0.2.12{more}");
        Announcer::new(&g, G).bgp(bgp).neighbor(l.v4, L, &more).vip("web", &[VIP], "/", WITHDRAW)
    };
    let several = "listen_addresses: [192.0.2.11, 192.0.2.13, \"2001:db8::11\"]\n  listen_port: 2179";
    let daemon = g.spawn(config(several, ", local_port: 20179").spec());
    until("announced", secs(12), || bird.route(VIP).is_some());
    assert_eq!(listens(), ["192.0.2.11:2179", "192.0.2.13:2179", "[2001:db8::11]:2179"]);
    let source = |port: &str| g.run("ss -Htn state established").contains(&format!("192.0.2.12:{port}"));
    assert!(source("20179 "), "{}", g.run("ss -Htn"));
    assert_eq!(bird.route(VIP).and_then(|r| r.next_hop), Some(Ipv4Addr::new(192, 0, 2, 12).into()));
    // The same port again at once, though the old connection's end is not long ago.
    daemon.kill();
    daemon.write_config(&config("listen_port: -1", ", local_port: 20179").yaml());
    daemon.start_again();
    let took = until("announced", secs(12), || bird.route(VIP).is_some() && source("20179 "));
    println!("from the same source port again after {took:.3?}");
    assert!(listens().is_empty(), "{:?}", listens());
    daemon.kill();
    daemon.write_config(&config("hold_time: 9s", "").yaml());
    daemon.start_again();
    until("announced", secs(12), || bird.route(VIP).is_some() && source(""));
    assert!(
        listens().iter().all(|address| address.ends_with(":179")) && !listens().is_empty(),
        "{:?}",
        listens()
    );
}

#[test]
fn an_ipv4_route_goes_over_an_ipv6_session_with_an_ipv6_next_hop_where_both_agree() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, _service) = pair(&lab);
    let spec = |ipv4: &str| bird_with("2001:db8::1", "2001:db8::11", "direct;", ipv4);
    let bird = l.spawn(spec("extended next hop on;"));
    let config = Announcer::new(&g, G)
        .router(&format!("asn: {G}, router_id: {}, local_address_ipv6: \"{}\"", g.v4, g.v6))
        .neighbor(l.v6, L, "extended_next_hop: true")
        .vip("web", &[VIP, VIP6], "/", WITHDRAW);
    g.spawn(config.spec());
    until("both are known", secs(12), || bird.route(VIP).is_some() && bird.route(VIP6).is_some());
    for prefix in [VIP, VIP6] {
        assert_eq!(bird.route(prefix).and_then(|r| r.next_hop), Some(g.v6.into()), "{prefix}");
    }
    bird.kill();
    let text = std::fs::read_to_string(bird.config()).expect("its configuration");
    bird.write_config(&text.replace("extended next hop on;", ""));
    bird.start_again();
    until("the IPv6 route is known", secs(12), || bird.route(VIP6).is_some());
    while_holds("an IPv4 route is not told where it was not agreed", secs(1), || bird.route(VIP).is_none());
    let peers = g.status()["peers"].clone();
    assert!(peers[0]["held"].as_object().is_some_and(|held| held.contains_key(VIP)), "{peers:#}");
}

#[test]
fn frr_takes_an_ipv4_route_with_an_ipv6_next_hop() {
    let Some(lab) = lab!("standfast", "frr") else { return };
    let (l, g, _service) = pair(&lab);
    let frr = l.spawn(frr(L, &[Neighbor::new(g.v6, G)]));
    frr.ask(&format!("configure terminal\nrouter bgp {L}\nneighbor {} capability extended-nexthop\n", g.v6));
    let config = Announcer::new(&g, G)
        .router(&format!("asn: {G}, router_id: {}, local_address_ipv6: \"{}\"", g.v4, g.v6))
        .neighbor(l.v6, L, "extended_next_hop: true")
        .vip("web", &[VIP], "/", WITHDRAW);
    g.spawn(config.spec());
    until("known", secs(15), || frr.route(VIP).is_some());
    assert_eq!(frr.route(VIP).and_then(|r| r.next_hop), Some(g.v6.into()));
}

#[test]
fn a_reload_at_bird_is_answered_with_every_route() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, _service) = pair(&lab);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP, OTHER, VIP6], "/", WITHDRAW);
    g.spawn(config.spec());
    until("announced", secs(12), || bird.learned(g.v4) == 3);
    let capture = g.capture("eth0");
    bird.ask("reload in n0");
    let told = || {
        let sent = capture.messages_from(g.v4);
        let updates = sent.iter().filter_map(|(_, m)| m.update());
        let mut all: Vec<String> = updates.flat_map(|u| u.announced).collect();
        all.sort();
        all
    };
    until("every route is told again", secs(3), || told().len() >= 3);
    while_holds("each once, and none is lost", secs(1), || told().len() == 3 && bird.learned(g.v4) == 3);
    let asked = capture.finish().iter().filter(|e| e.from.ip() == l.v4).filter_map(|e| e.message()).count();
    assert!(asked > 0, "BIRD asked nothing");
    assert_eq!(told(), [VIP, OTHER, VIP6]);
}

#[test]
fn routers_show_med_and_communities_of_every_kind_as_configured() {
    let Some(lab) = lab!("standfast", "bird", "frr", "gobgp") else { return };
    let g = lab.host("g", 11);
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let hosts = [lab.host("b", 1), lab.host("f", 2), lab.host("o", 3)];
    let routers: Vec<_> = [Kind::Bird, Kind::Frr, Kind::Gobgp]
        .into_iter()
        .zip(&hosts)
        .map(|(kind, host)| host.spawn(router(kind, L, &[Neighbor::new(g.v4, G)])))
        .collect();
    let drain = lab.file("drain");
    let policy = format!(
        "policy: {{ fail_action: lower_priority, withdraw_after: 3s, lower_priority_file: \"{}\", announce: {{ med: 5, \
         communities: [\"64513:100\", no-export], large_communities: [\"4200000000:1:4294967295\"], \
         extended_communities: [\"rt:64513:100\"] }}, lower_priority: {{ as_path_prepend: 2, med: 95, communities: [\"64513:666\"] }} }}",
        drain.display()
    );
    let config = hosts.iter().fold(Announcer::new(&g, G), |config, host| config.neighbor(host.v4, L, ""));
    g.spawn(config.vip("web", &[VIP, VIP6], "/", &policy).spec());
    for router in &routers {
        let kind = router.kind();
        for prefix in [VIP, VIP6] {
            let mut route = until_some("known", secs(15), || router.route(prefix)).0;
            route.communities.sort_unstable();
            println!("{kind:?} {prefix}: {route:?}");
            assert_eq!((route.as_path, route.med), (vec![G], Some(5)), "{kind:?}");
            // FRR prints the well-known ones as words.
            assert!(route.communities.contains(&(64513, 100)), "{kind:?}");
            assert_eq!(route.large, [(4_200_000_000, 1, u32::MAX)], "{kind:?}");
        }
        let (question, answer) = match kind {
            Kind::Bird => (format!("show route {VIP} all"), "(rt, 64513, 100)"),
            Kind::Frr => (format!("show bgp ipv4 unicast {VIP}"), "RT:64513:100"),
            _ => (format!("global rib {VIP}"), "64513"),
        };
        let shown = router.ask(&question);
        assert!(shown.contains(answer), "{kind:?}: {shown}");
    }
    let worse = |router: &Daemon| {
        router.route(VIP).is_some_and(|r| {
            r.as_path == [G; 3] && r.med == Some(100) && r.communities.contains(&(64513, 666))
        })
    };
    let good = |router: &Daemon| router.route(VIP).is_some_and(|r| r.as_path == [G] && r.med == Some(5));
    std::fs::write(&drain, "").expect("the drain file");
    let took = until("a worse choice while the file is there", secs(2), || routers.iter().all(worse));
    println!("worse {took:.3?} after the file came");
    while_holds("and only worse: nothing failed", secs(4), || routers.iter().all(worse));
    std::fs::remove_file(&drain).expect("the drain file");
    let took = until("a good choice without it", secs(2), || routers.iter().all(good));
    println!("good {took:.3?} after the file went");
}

#[test]
fn an_unhealthy_vip_is_a_worse_choice_first_and_leaves_in_the_end() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, service) = pair(&lab);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let policy =
        "policy: { fail_action: lower_priority, withdraw_after: 2s, lower_priority: { as_path_prepend: 2 } }";
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP], "/", policy);
    g.spawn(config.spec());
    let prepended = || bird.route(VIP).map(|r| r.as_path.len());
    until("announced", secs(12), || prepended() == Some(1));
    service.set("/", false);
    until("a worse choice", secs(2), || prepended() == Some(3));
    let took = until("withdrawn", secs(4), || prepended().is_none());
    println!("withdrawn {took:.3?} later");
    assert!(took > Duration::from_millis(1500), "{took:?}");
    service.set("/", true);
    until("announced as before", secs(2), || prepended() == Some(1));
    // A short failure ends before that, and begins anew the next time.
    for _ in 0..2 {
        service.set("/", false);
        until("a worse choice", secs(2), || prepended() == Some(3));
        while_holds("still there", secs(1), || prepended() == Some(3));
        service.set("/", true);
        until("announced as before", secs(2), || prepended() == Some(1));
    }
}

#[test]
fn a_neighbor_is_told_the_vips_that_are_meant_for_it() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, m, g) = (lab.host("l", 1), lab.host("m", 2), lab.host("g", 11));
    let service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let (some, all) =
        (l.spawn(bird(L, &[Neighbor::new(g.v4, G)])), m.spawn(bird(L, &[Neighbor::new(g.v4, G)])));
    let config = Announcer::new(&g, G)
        .neighbor(l.v4, L, "vips: [web]")
        .neighbor(m.v4, L, "")
        .vip("web", &[VIP], "/web", WITHDRAW)
        .vip("other", &[OTHER], "/other", WITHDRAW);
    g.spawn(config.spec());
    let right = || some.route(VIP).is_some() && all.route(VIP).is_some() && all.route(OTHER).is_some();
    until("each has its own", secs(12), right);
    while_holds("and nothing else", secs(1), || some.learned(g.v4) == 1);
    for good in [false, true] {
        service.set("/other", good);
        until("the other follows its check", secs(2), || all.route(OTHER).is_some() == good);
        assert_eq!(some.learned(g.v4), 1);
    }
}

#[test]
fn a_daemon_that_is_late_by_less_than_the_hold_time_keeps_its_session() {
    let Some(lab) = lab!(alone; "standfast", "bird") else { return };
    let (l, g, _service) = pair(&lab);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let config =
        Announcer::new(&g, G).bgp("hold_time: 9s").neighbor(l.v4, L, "").vip("web", &[VIP], "/", WITHDRAW);
    let daemon = g.spawn(config.spec());
    until("announced", secs(12), || bird.route(VIP).is_some());
    let capture = g.capture("eth0");
    // With the three seconds between two keepalives, at most eight of nine seconds of silence.
    for _ in 0..2 {
        daemon.process().signal(Signal::SIGSTOP);
        std::thread::sleep(secs(5));
        daemon.process().signal(Signal::SIGCONT);
        std::thread::sleep(secs(4));
    }
    while_holds("the route stays", secs(1), || bird.route(VIP).is_some());
    let events = capture.finish();
    let ends = events.iter().filter(|e| matches!(e.what, Seen::Fin | Seen::Reset | Seen::Syn)).count();
    assert_eq!(ends, 0, "the session ended");
    let times: Vec<_> = events
        .iter()
        .filter(|e| e.from.ip() == IpAddr::V4(g.v4) && e.message().is_some())
        .map(|e| e.time)
        .collect();
    let gap = times.windows(2).map(|two| two[1] - two[0]).max().expect("messages");
    println!("stopped for 5 s twice: the longest silence was {gap:.3?}");
    assert!(gap < secs(9));
}

#[test]
fn a_key_counts_for_who_dials_us_over_an_interface_that_came_later_or_anew() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, _service) = pair(&lab);
    l.run("ip address add fe80::1/64 dev eth0 nodad");
    g.run("ip address add fe80::11/64 dev eth0 nodad; ip link set eth0 down; ip link set eth0 name later");
    let bird = l.spawn(bird_with("fe80::1", "fe80::11 % 'eth0'", "direct; password \"shared\";", ""));
    let peer: Ipv6Addr = "fe80::1".parse().expect("an address");
    let more = "passive: true, interface: eth0, local_address: \"fe80::11\", auth_password: shared";
    let config = Announcer::new(&g, G).bgp("listen_address: \"::\"").neighbor(peer, L, more);
    g.spawn(config.vip("web", &[VIP6], "/", WITHDRAW).spec());
    g.run(
        "ip link set later name eth0; ip link set eth0 up; ip address add fe80::11/64 dev eth0 nodad || true",
    );
    let took = until("announced over the interface that came later", secs(15), || bird.route(VIP6).is_some());
    println!("announced {took:.3?} after the interface came");
    lab.replace_interface(&g);
    g.run("ip address add fe80::11/64 dev eth0 nodad");
    // The router need not find out by itself that the link-layer address is another.
    l.run("ip -6 neigh flush dev eth0");
    until("the old session ends", secs(12), || bird.route(VIP6).is_none());
    let took = until("announced over the new interface", secs(15), || bird.route(VIP6).is_some());
    println!("announced {took:.3?} after the old session ended");
}
