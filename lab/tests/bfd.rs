//! BFD beside BIRD and FRR, over one hop and several, with keys, under hogs and floods: both ends' views are what must hold.
//!
//! `l` (192.0.2.1, AS 64512) listens, `g` (192.0.2.11, AS 64513) announces.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const L: u32 = 64512;
const G: u32 = 64513;
/// A second: between two of ours, which run ahead of other programs where they may.
const FAST: &str = "bfd: { interval: 200ms, multiplier: 5 }";
/// So long that no busy machine makes a router flap, which runs as an ordinary program.
const CALM: &str = "bfd: { interval: 300ms, multiplier: 5 }";

/// What the announcer on `host` says of BFD with its first peer.
fn bfd(host: &Host) -> Value {
    host.status()["peers"][0]["bfd"].clone()
}

/// What the listener on `host` says of BFD with its first member.
fn member(host: &Host) -> Value {
    host.status()["listener"]["members"][0]["bfd"].clone()
}

fn is_up(bfd: &Value) -> bool {
    bfd["state"] == "up" && bfd["peer_state"] == "up"
}

fn announcer(g: &Host, to: impl Into<IpAddr>, more: &str) -> Spec {
    Announcer::new(g, G).neighbor(to, L, more).vip("web", &[VIP], "/", WITHDRAW).spec()
}

fn timed(what: &str, took: Duration) {
    println!("{what} after {:.3} s", took.as_secs_f64());
}

/// Whether the router's own BFD session is up.
fn router_is_up(router: &Daemon) -> bool {
    match router.kind() {
        Kind::Bird => router.ask("show bfd sessions").contains(" Up "),
        Kind::Frr => router.ask("show bfd peers json").contains("\"status\":\"up\""),
        other => panic!("{other:?} has no BFD"),
    }
}

/// Up at both ends, lost at both ends behind a cut cable, back by itself, and no loss when either end leaves in order.
fn a_router_and_we_watch_each_other(lab: &Lab, kind: Kind, v6: bool) {
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let (here, there): (IpAddr, IpAddr) =
        if v6 { (g.v6.into(), l.v6.into()) } else { (g.v4.into(), l.v4.into()) };
    let router = l.spawn(router(kind, L, &[Neighbor::new(here, G).bfd(300)]));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let daemon = g.spawn(announcer(&g, there, CALM));
    let routed = || router.route(VIP).is_some();
    until("announced", secs(15), routed);
    until("up at both ends", secs(10), || is_up(&bfd(&g)) && router_is_up(&router));
    // The router's multiplier is 3.
    until("the fast intervals are agreed", secs(8), || bfd(&g)["detection_time"] == 0.9);
    assert_eq!(bfd(&g)["tx_interval"], 0.3, "{}", bfd(&g));
    while_holds("it stays up", secs(2), || is_up(&bfd(&g)) && router_is_up(&router));

    lab.cut(&g);
    let took = until("the router notices", secs(4), || !router.established(here));
    timed(&format!("{kind:?} noticed the cut"), took);
    until("we notice", secs(3), || g.status()["peers"][0]["session_state"] != "established");
    let why = g.status()["peers"][0]["last_down"].to_string();
    assert!(why.contains("BFD: nothing heard from the peer for 900 ms"), "{why}");
    // FRR clears the routes of a session that has ended in the background: on a busy machine some time later.
    until("its route goes", secs(5), || !routed());
    while_holds("the cable stays cut", secs(2), || !routed());
    lab.mend(&g);
    timed("back", until("back", secs(6), routed));
    until("up again", secs(6), || is_up(&bfd(&g)) && router_is_up(&router));
    if kind == Kind::Frr {
        // Switched off over there, it says nothing of the path. BIRD cannot say so: it falls silent.
        let peers = router.ask("show bfd peers");
        let peer =
            peers.lines().map(str::trim).find(|l| l.starts_with("peer ")).expect("its peer").to_owned();
        let before = bfd(&g)["losses"].clone();
        router.ask(&format!("configure terminal\nbfd\n{peer}\nshutdown"));
        until("switched off", secs(5), || bfd(&g)["reason"] == "the peer switched BFD off");
        while_holds("BGP stays", secs(3), || routed() && bfd(&g)["losses"] == before);
        router.ask(&format!("configure terminal\nbfd\n{peer}\nno shutdown"));
        until("up again", secs(6), || is_up(&bfd(&g)) && router_is_up(&router));
    }
    // We leave in order: the router is not told of a dead path.
    daemon.process().signal(Signal::SIGTERM);
    assert_eq!(daemon.process().wait(secs(6)), 0);
    until("withdrawn", secs(2), || !routed());
}

#[test]
fn bird_and_we_watch_each_other() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    a_router_and_we_watch_each_other(&lab, Kind::Bird, false);
}

#[test]
fn bird_and_we_watch_each_other_over_ipv6() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    a_router_and_we_watch_each_other(&lab, Kind::Bird, true);
}

#[test]
fn frr_and_we_watch_each_other() {
    let Some(lab) = lab!("standfast", "frr", "bfdd") else { return };
    a_router_and_we_watch_each_other(&lab, Kind::Frr, false);
}

#[test]
fn keys_of_bird_are_ours_and_another_key_ends_nothing() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    for (kind, ours) in [("meticulous keyed sha1", "meticulous_sha1"), ("keyed sha1", "sha1")] {
        let (l, g) = (lab.host(&format!("l{}", ours.len()), 1), lab.host(&format!("g{}", ours.len()), 11));
        let router = l.spawn(bird_raw(&format!(
            "router id {l};\nprotocol device {{}}\n\
             protocol bfd {{ interface \"*\" {{ interval 200 ms; multiplier 5; authentication {kind}; password \"s3cret\" {{ id 7; }}; }}; }}\n\
             protocol bgp n0 {{ local {l} as {L}; neighbor {g} as {G}; direct; bfd yes; hold time 9; connect retry time 1; connect delay time 1; error wait time 1,4; ipv4 {{ import all; export none; }}; }}\n",
            l = l.v4,
            g = g.v4
        )));
        let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
        let with = |key: &str| {
            format!("bfd: {{ interval: 200ms, auth: {{ type: {ours}, key_id: 7, key: {key} }} }}")
        };
        let daemon = g.spawn(announcer(&g, l.v4, &with("s3cret")));
        until("announced", secs(15), || router.route(VIP).is_some());
        until("up at both ends", secs(10), || is_up(&bfd(&g)) && router_is_up(&router));
        while_holds("it stays up", secs(3), || is_up(&bfd(&g)) && router_is_up(&router));
        daemon.stop();
        let config =
            Announcer::new(&g, G).neighbor(l.v4, L, &with("other")).vip("web", &[VIP], "/", WITHDRAW);
        daemon.write_config(&config.yaml());
        daemon.start_again();
        until("announced all the same", secs(15), || router.route(VIP).is_some());
        let another = || bfd(&g)["last_refusal"] == "its packets are made with another key";
        until("another key is said", secs(6), another);
        while_holds("and nothing follows", secs(3), || router.route(VIP).is_some() && !router_is_up(&router));
        lab.cut(&g);
    }
}

/// A router stands between: packets come with a hop limit of 254.
#[test]
fn bfd_crosses_a_router_where_both_ends_say_so() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, r) = (lab.host("l", 1), lab.host("r", 2));
    let g = lab.bare("g", Ipv4Addr::new(198, 18, 0, 11), Ipv6Addr::LOCALHOST);
    lab.link((&r, "south", "198.18.0.1/24"), (&g, "north", "198.18.0.11/24"));
    r.sysctl("net/ipv4/ip_forward", "1");
    g.run("ip route add default via 198.18.0.1");
    l.run("ip route add 198.18.0.0/24 via 192.0.2.2");
    let router = l.spawn(bird_raw(&format!(
        "router id {l};\nprotocol device {{}}\n\
         protocol bfd {{ multihop {{ interval 100 ms; multiplier 3; }}; }}\n\
         protocol bgp n0 {{ local {l} as {L}; neighbor {g} as {G}; multihop 16; bfd yes; hold time 9; connect retry time 1; connect delay time 1; error wait time 1,4; ipv4 {{ import all; export none; }}; }}\n",
        l = l.v4,
        g = g.v4
    )));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let far = |more: &str| format!("enable_multihop: true, bfd: {{ interval: 100ms{more} }}");
    // BIRD sends with the system's hop limit.
    let daemon = g.spawn(announcer(&g, l.v4, &far("")));
    until("announced", secs(15), || router.route(VIP).is_some());
    until("up at both ends", secs(10), || is_up(&bfd(&g)) && router_is_up(&router));
    r.sysctl("net/ipv4/ip_forward", "0");
    until("noticed", secs(3), || !router.established(g.v4) && bfd(&g)["losses"] != 0);
    r.sysctl("net/ipv4/ip_forward", "1");
    until("back", secs(8), || router.route(VIP).is_some() && is_up(&bfd(&g)));
    // Its hop limit says that it is too far away for one that asks for more.
    daemon.stop();
    let config =
        Announcer::new(&g, G).neighbor(l.v4, L, &far(", min_ttl: 254")).vip("web", &[VIP], "/", WITHDRAW);
    daemon.write_config(&config.yaml());
    daemon.start_again();
    let far = || bfd(&g)["last_refusal"] == "its packets come from too many hops away";
    until("it is too far away", secs(10), far);
    assert_eq!(bfd(&g)["state"], "down");
}

#[test]
fn a_listener_takes_a_lost_member_out_and_back() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, g, other) = (lab.host("l", 1), lab.host("g", 11), lab.host("h", 12));
    l.spawn(listener(&l, "192.0.2.0/24", FAST));
    for host in [&g, &other] {
        host.spawn(announcer(host, l.v4, FAST));
    }
    let _services = [&g, &other].map(|h| Service::start(h, (Ipv4Addr::LOCALHOST, 80)));
    let set = |hops: &[Ipv4Addr]| hops.iter().map(|&hop| hop.into()).collect::<BTreeSet<IpAddr>>();
    let both = || l.next_hops(VIP) == set(&[g.v4, other.v4]);
    until("both are routed to", secs(15), both);
    until("up at both ends", secs(10), || is_up(&bfd(&g)) && is_up(&member(&l)));
    for round in 0..3 {
        // Without a word, or with the cable.
        if round == 1 {
            lab.cut(&g)
        } else {
            lab.loss(&g, 100)
        };
        let took = until("the lost one is out", secs(3), || l.next_hops(VIP) == set(&[other.v4]));
        timed("out", took);
        while_holds("it stays out", secs(1 + round), || l.next_hops(VIP) == set(&[other.v4]));
        if round == 1 {
            lab.mend(&g)
        } else {
            lab.loss(&g, 0)
        };
        timed("back", until("back", secs(5), both));
        until("up at both ends", secs(10), || is_up(&bfd(&g)));
        while_holds("and it stays", secs(2), both);
    }
    assert_eq!(other.status()["peers"][0]["bfd"]["losses"], 0);
}

#[test]
fn link_local_ends_watch_each_other_by_their_interface() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    lab.link((&l, "d0", "fe80::1/64"), (&g, "d1", "fe80::11/64"));
    let _daemon = l.spawn(standfast(&format!(
        "schema: v1\nrouter: {{ asn: {L}, router_id: {} }}\napi: {{ listen: \"{API}\" }}\nbgp: {{ hold_time: 9s }}\nlistener:\n  accept:\n\
         \x20   - {{ name: d0, range: \"fe80::/10\", interface: d0, peer_asn: {G}, {FAST} }}\n  vips:\n    - {{ name: web, prefix: {VIP} }}\n",
        l.v4
    )));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let fe80: Ipv6Addr = "fe80::1".parse().expect("an address");
    let _announcer = g.spawn(announcer(&g, fe80, &format!("interface: d1, {FAST}")));
    until("up at both ends", secs(20), || is_up(&bfd(&g)) && is_up(&member(&l)));
    while_holds("it stays up", secs(3), || is_up(&bfd(&g)) && bfd(&g)["losses"] == 0);
    l.run("ip link set d0 down");
    until("noticed", secs(4), || bfd(&g)["losses"] == 1);
    l.run("ip link set d0 up; ip addr add fe80::1/64 dev d0 nodad 2>/dev/null; true");
    until("back", secs(15), || is_up(&bfd(&g)) && is_up(&member(&l)));
}

/// Four programs that want the whole processor, for so long.
fn hogs(host: &Host, seconds: u64) {
    for nth in 0..4 {
        let lasts = seconds.to_string();
        host.process(&format!("hog{nth}"), &["timeout", &lasts, "sh", "-c", "while :; do :; done"], &[]);
    }
}

#[test]
fn four_hogs_do_not_make_it_flap() {
    let Some(lab) = lab!(alone; "standfast") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let hundred = "bfd: { interval: 100ms, multiplier: 3 }";
    l.spawn(listener(&l, "192.0.2.0/24", hundred));
    let daemon = g.spawn(announcer(&g, l.v4, hundred));
    if daemon.log().contains("BFD runs as an ordinary thread") {
        return skip("four_hogs_do_not_make_it_flap", "SCHED_FIFO is not permitted here");
    }
    until("up at both ends", secs(15), || is_up(&bfd(&g)) && is_up(&member(&l)));
    let seconds: u64 = std::env::var("HOG_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(20);
    hogs(&g, seconds);
    std::thread::sleep(secs(seconds + 1));
    let (ours, theirs) = (bfd(&g), member(&l));
    assert_eq!((&ours["losses"], &theirs["losses"]), (&0.into(), &0.into()), "{ours} {theirs}");
    assert!(is_up(&ours) && is_up(&theirs));
}

#[test]
fn a_flood_from_strangers_is_counted_and_harms_no_session() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, g, x) = (lab.host("l", 1), lab.host("g", 11), lab.host("x", 66));
    let daemon = l.spawn(listener(&l, "192.0.2.0/24", "bfd: { interval: 100ms, multiplier: 5 }"));
    g.spawn(announcer(&g, l.v4, "bfd: { interval: 100ms, multiplier: 5 }"));
    until("up at both ends", secs(15), || is_up(&bfd(&g)) && is_up(&member(&l)));
    let before = daemon.process().rss();
    x.enter(|| {
        let socket = UdpSocket::bind((x.v4, 49_999)).expect("a socket");
        socket.set_ttl(255).expect("a hop limit");
        // A packet for nobody, garbage of every length, and what a lost member would say.
        let mut packet = hex("20400318 00000001 00000000 000f4240 000f4240 00000000");
        for nth in 0..60_000u32 {
            packet[7] = nth.to_be_bytes()[3];
            packet[1] = nth.to_be_bytes()[2];
            let _ = socket.send_to(&packet[..packet.len() - nth as usize % 25], (l.v4, 3784));
            if nth % 100 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    assert!(is_up(&bfd(&g)) && is_up(&member(&l)), "{} {}", bfd(&g), member(&l));
    assert_eq!(bfd(&g)["losses"], 0);
    let counted = || {
        let metrics = l.get(API, "/metrics").map(|(_, body)| body).unwrap_or_default();
        let line = metrics
            .lines()
            .find(|l| l.starts_with("standfast_bfd_packets_refused_total{reason=\"no_session\""))
            .map(str::to_owned);
        line.and_then(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0)
    };
    until("they are counted", secs(5), || counted() >= 1000.0);
    let after = daemon.process().rss();
    assert!(after < before + 4096, "{before} KiB became {after} KiB");
}
