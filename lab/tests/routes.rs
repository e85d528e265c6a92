//! The listener's routes in the kernel: over whom they lead, whatever members, links and other hands do, and over a restart.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const VIP6: &str = "2001:db8:100::10/128";
const L: u32 = 64512;
const G: u32 = 64513;

/// A listener's configuration: `accept` is a list of flow mappings, `vips` of name and prefix.
fn listening(host: &Host, hold: &str, accept: &[&str], vips: &[(&str, &str)]) -> String {
    let accept = accept.iter().fold(String::new(), |text, line| text + &format!("    - {{ {line} }}\n"));
    let vips = vips.iter().fold(String::new(), |text, (name, prefix)| {
        text + &format!("    - {{ name: {name}, prefix: \"{prefix}\" }}\n")
    });
    format!(
        "schema: v1\nrouter: {{ asn: {L}, router_id: {} }}\napi: {{ listen: \"{API}\" }}\n\
         logging: {{ level: debug, timestamps: true }}\nbgp: {{ hold_time: {hold} }}\n\
         listener:\n  accept:\n{accept}  vips:\n{vips}",
        host.v4
    )
}

const ANYONE4: &str = "name: four, range: 192.0.2.0/24, peer_asn: external";
const ANYONE6: &str = "name: six, range: \"2001:db8::/64\", peer_asn: external";
const BOTH: &[(&str, &str)] = &[("web", VIP), ("web6", VIP6)];

/// The gateways of the kernel's route to exactly `prefix`.
fn hops(host: &Host, prefix: &str) -> BTreeSet<IpAddr> {
    host.next_hops(prefix)
}

fn of<A: Into<IpAddr>>(addresses: impl IntoIterator<Item = A>) -> BTreeSet<IpAddr> {
    addresses.into_iter().map(Into::into).collect()
}

/// What the daemon says of its listener.
fn status(host: &Host) -> Value {
    host.status()["listener"].clone()
}

fn members(host: &Host) -> usize {
    status(host)["members"].as_array().map_or(0, Vec::len)
}

/// Notes every change of a route from here on.
fn watch_routes(host: &Host) -> Arc<Process> {
    let process = host.process("routes", &["stdbuf", "-oL", "ip", "-ts", "-o", "monitor", "route"], &[]);
    until("the monitor listens", secs(5), || {
        host.attempt("ip route add 203.0.113.9/32 dev lo; ip route del 203.0.113.9/32 dev lo");
        process.log().contains("203.0.113.9")
    });
    process
}

/// The scripted member number `nth` of host `g`: 192.0.2.(20 + nth), established.
fn scripted(g: &Host, l: &Host, nth: u8) -> (Session, Ipv4Addr) {
    let address = Ipv4Addr::new(192, 0, 2, 20 + nth);
    g.attempt(&format!("ip address add {address}/24 dev eth0"));
    let mut session = Session::dial(g, address, l.v4).expect("a connection");
    session.establish(&OpenBytes::new(G, address));
    (session, address)
}

/// The same over IPv6, from 2001:db8::(20 + nth), digits read as decimal.
fn scripted6(g: &Host, l: &Host, nth: u8) -> (Session, IpAddr) {
    let address: IpAddr = format!("2001:db8::{}", 20 + nth).parse().expect("an address");
    g.attempt(&format!("ip address add {address}/64 dev eth0 nodad"));
    let mut session = Session::dial(g, address, l.v6).expect("a connection");
    session.establish(&OpenBytes::new(G, Ipv4Addr::new(192, 0, 2, 20 + nth)));
    (session, address)
}

/// A BIRD that announces both VIPs to the listener, the IPv6 one over a session of its own.
fn bird_member(g: &Host, l: &Host, options: &str) -> Spec {
    let session = |name: &str, local: IpAddr, peer: IpAddr, channel: &str, vip: &str| {
        format!(
            "protocol static s{name} {{ {channel}; route {vip} blackhole; }}\n\
             protocol bgp n{name} {{\n local {local} as {G};\n neighbor {peer} as {L};\n direct; {options}\n\
             connect retry time 1; connect delay time 1; error wait time 1,2;\n\
             {channel} {{ import none; export where proto = \"s{name}\"; }};\n}}\n"
        )
    };
    bird_raw(&format!(
        "router id {};\nprotocol device {{}}\n{}{}",
        g.v4,
        session("4", g.v4.into(), l.v4.into(), "ipv4", VIP),
        session("6", g.v6.into(), l.v6.into(), "ipv6", VIP6)
    ))
}

#[test]
fn the_kernel_routes_over_members_of_every_kind_and_only_while_they_announce() {
    let Some(lab) = lab!("standfast", "bird", "frr", "gobgp", "exabgp") else { return };
    let l = lab.host("l", 1);
    let daemon = l.spawn(standfast(&listening(&l, "3s", &[ANYONE4, ANYONE6], BOTH)));
    let [b, f, o, e, s] = [11, 12, 13, 14, 15].map(|n| lab.host(&format!("m{n}"), n));
    let bird = b.spawn(bird_member(&b, &l, "hold time 9;"));
    let frr = f.spawn(frr(G, &[Neighbor::new(l.v4, L)]));
    frr.ask(&format!(
        "configure terminal\nrouter bgp {G}\nno bgp network import-check\naddress-family ipv4 unicast\n\
         network {VIP}\nexit-address-family\naddress-family ipv6 unicast\nnetwork {VIP6}\n"
    ));
    let gobgp = o.spawn(gobgp(G, &[Neighbor::new(l.v4, L)]));
    gobgp.ask(&format!("global rib add -a ipv4 {VIP}"));
    gobgp.ask(&format!("global rib add -a ipv6 {VIP6} nexthop {}", o.v6));
    let routes = [format!("route {VIP} next-hop {}", e.v4), format!("route {VIP6} next-hop {}", e.v6)];
    let exabgp = e.spawn(exabgp(G, l.v4, L, &[&*routes[0], &*routes[1]]));
    let service = Service::start(&s, (Ipv4Addr::LOCALHOST, 80));
    let config = Announcer::new(&s, G).neighbor(l.v4, L, "").vip("web", &[VIP, VIP6], "/", WITHDRAW);
    let announcer = s.spawn(config.spec());

    let mut left = vec![&b, &f, &o, &e, &s];
    let right = |left: &[&Host]| {
        hops(&l, VIP) == of(left.iter().map(|h| h.v4)) && hops(&l, VIP6) == of(left.iter().map(|h| h.v6))
    };
    until("all five carry both VIPs", secs(20), || right(&left));
    let ends: [(&str, u64, &dyn Fn()); 5] = [
        ("BIRD withdraws", 1, &|| {
            bird.ask("disable s4");
            bird.ask("disable s6");
        }),
        ("bgpd is killed", 1, &|| frr.kill()),
        ("gobgpd goes silent", 5, &|| gobgp.process().signal(Signal::SIGSTOP)),
        ("ExaBGP's host is cut off", 5, &|| lab.cut(&e)),
        ("standfast's check fails", 2, &|| service.set("/", false)),
    ];
    for (what, bound, end) in ends {
        left.remove(0);
        end();
        let took = until(what, secs(bound), || {
            let (now4, now6) = (hops(&l, VIP), hops(&l, VIP6));
            let (want4, want6) = (of(left.iter().map(|h| h.v4)), of(left.iter().map(|h| h.v6)));
            assert!(now4.is_superset(&want4) && now6.is_superset(&want6), "{what}: {now4:?} {now6:?}");
            (now4, now6) == (want4, want6)
        });
        println!("{what}: its next hops are gone after {took:.3?}");
    }
    assert!(announcer.process().alive() && exabgp.process().alive() && daemon.process().alive());
    service.set("/", true);
    until("the VIP is back", secs(2), || right(&[&s]));
    announcer.process().signal(Signal::SIGTERM);
    let took = until("gone with an orderly end", secs(2), || right(&[]));
    println!("SIGTERM: gone after {took:.3?}");
}

#[test]
fn a_range_with_a_key_lets_only_that_key_in() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let l = lab.host("l", 1);
    let key = "k".repeat(80);
    let with = |name: &str, range: &str, key: &str| {
        format!("name: {name}, range: \"{range}\", peer_asn: {G}, auth_password: \"{key}\"")
    };
    let [right, wrong, none] = [11, 12, 13].map(|n| lab.host(&format!("m{n}"), n));
    let narrow = [with("four", "192.0.2.0/24", &key), with("six", "2001:db8::/64", &key)];
    let wide = [with("four", "0.0.0.0/0", &key), with("six", "::/0", &key)];
    let nested = [
        with("four", "0.0.0.0/0", "other"),
        with("six", "::/0", "other"),
        with("mine", "192.0.2.11/32", &key),
        with("mine6", "2001:db8::11/128", &key),
        with("third", "192.0.2.13/32", "third"),
        with("third6", "2001:db8::13/128", "third"),
    ];
    let config =
        |ranges: &[String]| listening(&l, "9s", &ranges.iter().map(String::as_str).collect::<Vec<_>>(), BOTH);
    let daemon = l.spawn(standfast(&config(&narrow)));
    let allowed = |hosts: &[&Host]| {
        hops(&l, VIP) == of(hosts.iter().map(|h| h.v4)) && hops(&l, VIP6) == of(hosts.iter().map(|h| h.v6))
    };
    right.spawn(bird_member(&right, &l, &format!("password \"{key}\";")));
    wrong.spawn(bird_member(&wrong, &l, "password \"other\";"));
    none.spawn(bird_member(&none, &l, ""));
    for (what, ranges, hosts) in [
        ("narrow", &narrow[..], &[&right][..]),
        ("wide", &wide[..], &[&right][..]),
        ("nested", &nested[..], &[&right, &wrong][..]),
    ] {
        if what != "narrow" {
            daemon.stop();
            l.run(&format!("ip route del {VIP}; ip -6 route del {VIP6}"));
            daemon.write_config(&config(ranges));
            daemon.start_again();
        }
        until(&format!("{what}: in with the right key"), secs(15), || allowed(hosts));
        while_holds(&format!("{what}: nobody else is"), secs(4), || allowed(hosts));
        assert_eq!(members(&l), 2 * hosts.len(), "{what}");
    }
    let words = daemon.log().lines().filter(|line| line.contains("192.0.2.13")).count();
    assert_eq!(words, 0, "what the kernel dropped is not spoken of");
    let long = "k".repeat(81);
    daemon.stop();
    daemon.write_config(&config(&[with("four", "192.0.2.0/24", &long)]));
    let bin = standfast_bin().expect("the binary");
    let said = l.attempt(&format!("{} validate -c {}", bin.display(), daemon.config().display()));
    assert!(said.contains("auth_password") && said.contains("80"), "{said}");
    assert!(!said.contains(&long), "the key is printed");
}

#[test]
fn who_does_not_belong_is_refused_with_the_reason_and_few_words() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let accept = [
        "name: few, range: 192.0.2.0/24, peer_asn: 64513, max_members: 2, min_hold_time: 9s",
        "name: inner, range: \"2001:db8::/64\", peer_asn: internal",
    ];
    let daemon = l.spawn(standfast(&listening(&l, "9s", &accept, BOTH)));
    let refused = |open: &OpenBytes, from: IpAddr, to: IpAddr| {
        let mut session = Session::dial(&g, from, to).expect("a connection");
        session.send(&open.message().bytes);
        let all = session.drain(secs(2));
        let last = all.last().unwrap_or_else(|| panic!("it said nothing: {all:?}"));
        last.notification().map(|(code, subcode, _)| (code, subcode))
    };
    let good = OpenBytes::new(G, g.v4);
    let (v4, v6): (IpAddr, IpAddr) = (g.v4.into(), g.v6.into());
    let wrong_as = OpenBytes::new(G + 1, g.v4);
    let hasty = OpenBytes { hold: 3, ..good.clone() };
    let careless = OpenBytes { hold: 0, ..good.clone() };
    for _ in 0..20 {
        assert_eq!(refused(&wrong_as, v4, l.v4.into()), Some((2, 2)), "another AS");
        assert_eq!(refused(&hasty, v4, l.v4.into()), Some((2, 6)), "too short a hold time");
    }
    assert_eq!(refused(&careless, v4, l.v4.into()), Some((2, 6)), "no hold time at all");
    assert_eq!(refused(&good, v6, l.v6.into()), Some((2, 2)), "an external AS where an internal one belongs");
    assert_eq!(members(&l), 0);
    let log = daemon.log();
    let words = log.lines().filter(|line| line.contains("WARN member 192.0.2.11")).count();
    assert!((1..=2).contains(&words), "{words} warnings for 41 refusals of one member");

    let (first, second) = (scripted(&g, &l, 0), scripted(&g, &l, 1));
    for nth in 2..60 {
        let address = Ipv4Addr::new(192, 0, 2, 20 + nth);
        g.attempt(&format!("ip address add {address}/24 dev eth0"));
        let open = OpenBytes::new(G, address);
        assert_eq!(refused(&open, address.into(), l.v4.into()), Some((6, 5)), "the range is full");
    }
    assert_eq!(members(&l), 2);
    g.run("ip address add 198.18.0.11/24 dev eth0");
    l.run("ip address add 198.18.0.1/24 dev eth0");
    for _ in 0..50 {
        let from: IpAddr = Ipv4Addr::new(198, 18, 0, 11).into();
        assert_eq!(refused(&good, from, Ipv4Addr::new(198, 18, 0, 1).into()), Some((6, 5)), "a stranger");
    }
    let words = daemon.log().lines().filter(|line| line.contains("refused a connection")).count();
    assert!((1..=2).contains(&words), "{words} lines for 108 strangers");
    // There is room again as soon as one goes.
    drop(second);
    until("the one is gone", secs(2), || members(&l) == 1);
    let third = scripted(&g, &l, 3);
    assert_eq!(members(&l), 2);
    drop((first, third));
}

#[test]
fn a_member_can_only_draw_traffic_for_the_listeners_vips_to_itself() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    l.spawn(standfast(&listening(&l, "9s", &[ANYONE4, ANYONE6], BOTH)));
    let (mut honest, a) = scripted(&g, &l, 0);
    honest.send(&announce(VIP, a, &[G], &[]));
    let (mut liar, b) = scripted(&g, &l, 1);
    for prefix in ["198.51.100.11/32", "198.51.100.0/24", "0.0.0.0/0", "198.51.100.10/31"] {
        liar.send(&announce(prefix, b, &[G], &[]));
    }
    for hop in [a, l.v4, g.v4, Ipv4Addr::new(203, 0, 113, 1)] {
        liar.send(&announce(VIP, hop, &[G], &[]));
    }
    let (mut honest6, a6) = scripted6(&g, &l, 0);
    honest6.send(&announce(VIP6, a6, &[G], &[]));
    let (mut liar6, _) = scripted6(&g, &l, 1);
    liar6.send(&announce(VIP6, a6, &[G], &[]));
    liar6.send(&announce("2001:db8:100::/64", a6, &[G], &[]));
    let right = || hops(&l, VIP) == of([a]) && hops(&l, VIP6) == of([a6]);
    until("the honest are routed", secs(2), right);
    while_holds("nobody else is", secs(1), right);
    let all = status(&l);
    let ignored = |address: IpAddr| {
        let members = all["members"].as_array().expect("members");
        let member = members.iter().find(|m| m["address"] == address.to_string()).expect("the member");
        (member["session_state"].clone(), member["ignored"].clone(), member["announces"].clone())
    };
    println!("{all:#}");
    assert_eq!(ignored(a.into()), ("established".into(), 0.into(), vec![VIP].into()));
    let (state, count, announces) = ignored(b.into());
    assert_eq!((state, announces), ("established".into(), Vec::<String>::new().into()));
    // That a next hop is the listener itself, RFC 4271 already calls wrong: how it is counted is another matter.
    assert!(count.as_u64() >= Some(7), "{count}");
    let strangers = l.run("ip route show proto 185; ip -6 route show proto 185");
    assert_eq!(strangers.lines().filter(|line| !line.starts_with('\t')).count(), 2, "{strangers}");
    // What the liar once announced rightly goes when it lies about it.
    liar.send(&announce(VIP, b, &[G], &[]));
    until("both are routed", secs(2), || hops(&l, VIP) == of([a, b]));
    liar.send(&announce(VIP, a, &[G], &[]));
    until("only the honest is", secs(2), || hops(&l, VIP) == of([a]));
}

#[test]
fn a_next_hop_that_cannot_be_takes_nothing_from_the_other_members() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let daemon = l.spawn(standfast(&listening(&l, "9s", &[ANYONE4, ANYONE6], BOTH)));
    let (mut honest, _) = scripted(&g, &l, 0);
    honest.send(&announce(VIP6, g.v6, &[G], &[]));
    until("the honest one is routed", secs(2), || hops(&l, VIP6) == of([g.v6]));
    let (mut late, a6) = scripted6(&g, &l, 2);
    // Over IPv4 it cannot be told whether an IPv6 next hop is the member's own.
    for hop in ["fe80::1", "2001:db8:ffff::1", "::1", "2001:db8::1", "ff02::1"] {
        let (mut liar, _) = scripted(&g, &l, 1);
        liar.send(&announce(VIP6, hop.parse::<IpAddr>().expect("an address"), &[G], &[]));
        std::thread::sleep(Duration::from_millis(200));
        late.send(&announce(VIP6, a6, &[G], &[]));
        until(&format!("{hop}: another is taken"), secs(2), || hops(&l, VIP6) == of([g.v6.into(), a6]));
        late.send(&withdraw(VIP6));
        until(&format!("{hop}: and left"), secs(2), || hops(&l, VIP6) == of([g.v6]));
        liar.send(&withdraw(VIP6));
    }
    assert!(daemon.process().alive());
}

#[test]
fn a_better_path_carries_the_vip_alone() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    l.spawn(standfast(&listening(&l, "9s", &[ANYONE4, ANYONE6], BOTH)));
    let (mut one, a) = scripted(&g, &l, 0);
    let (mut two, b) = scripted(&g, &l, 1);
    let expect = |what: &str, hosts: &[Ipv4Addr]| {
        let took = until(what, secs(2), || hops(&l, VIP) == of(hosts.iter().copied()));
        println!("{what}: {took:.3?}");
    };
    one.send(&announce(VIP, a, &[G], &[]));
    two.send(&announce(VIP, b, &[G], &[]));
    expect("equal paths share", &[a, b]);
    two.send(&announce(VIP, b, &[G, G], &[]));
    expect("the shorter path", &[a]);
    one.send(&announce(VIP, a, &[G, G, G], &[]));
    expect("the other is the shorter now", &[b]);
    one.send(&announce(VIP, a, &[G, G], &[med(10)]));
    expect("no MED is the lowest", &[b]);
    two.send(&announce(VIP, b, &[G, G], &[med(20)]));
    expect("the lower MED", &[a]);
    one.send(&announce(VIP, a, &[G, G], &[med(20)]));
    expect("equal MEDs share", &[a, b]);
    one.send(&announce(VIP, a, &[G], &[community(65535, 0)]));
    expect("who leaves gracefully comes last, however short its path", &[b]);
    two.send(&withdraw(VIP));
    expect("but it is better than nobody", &[a]);
    two.send(&announce(VIP, b, &[G, G, G, G], &[]));
    expect("and worse than anybody", &[b]);
    drop(two);
    expect("whatever became of the better one", &[a]);
}

#[test]
fn a_member_that_asked_for_patience_and_died_is_gone_at_once() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    l.spawn(standfast(&listening(&l, "9s", &[ANYONE4, ANYONE6], BOTH)));
    let bird = g.spawn(bird_member(&g, &l, "graceful restart on; graceful restart time 120;"));
    let there = || (hops(&l, VIP), hops(&l, VIP6)) == (of([g.v4]), of([g.v6]));
    let gone = || hops(&l, VIP).is_empty() && hops(&l, VIP6).is_empty();
    for _ in 0..2 {
        until("it is routed", secs(15), there);
        bird.kill();
        let took = until("it is gone", secs(1), gone);
        println!("gone {took:.3?} after the crash");
        assert_eq!(members(&l), 0);
        bird.start_again();
    }
    // Nothing at all is heard of the end: the hold time is what counts, and then as little is left.
    until("it is routed", secs(15), there);
    lab.cut(&g);
    bird.kill();
    let took = until("it is gone within its hold time", secs(12), gone);
    println!("gone {took:.1?} after the cable was cut");
    assert_eq!(members(&l), 0);
}

#[test]
fn of_members_that_came_and_went_nothing_is_left() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    l.run("ip address add 198.18.0.254/24 dev eth0");
    let add: String = (1..=200).map(|n| format!("address add 198.18.0.{n}/24 dev eth0\n")).collect();
    let file = lab.file("addresses");
    std::fs::write(&file, add).expect("a file");
    g.run(&format!("ip -batch {}", file.display()));
    let accept = ["name: many, range: 198.18.0.0/24, peer_asn: external"];
    let daemon = l.spawn(standfast(&listening(&l, "9s", &accept, BOTH)));
    let process = daemon.process();
    until("it is at rest", secs(5), || members(&l) == 0);
    let (descriptors, memory) = (process.descriptors(), process.rss());
    let listener_at = Ipv4Addr::new(198, 18, 0, 254);
    for round in 0..4 {
        let mut sessions = Vec::new();
        for n in 1..=50 {
            let address = Ipv4Addr::new(198, 18, 0, round * 50 + n);
            let mut session = Session::dial(&g, address, listener_at).expect("a connection");
            let mut open = OpenBytes::new(G, address);
            open.capabilities.push((64, vec![0, 120, 0, 1, 1, 0x80]));
            session.establish(&open);
            session.send(&announce(VIP, address, &[G], &[]));
            sessions.push(session);
        }
        until("fifty carry it", secs(5), || hops(&l, VIP).len() == 50);
        for (nth, session) in sessions.iter_mut().enumerate() {
            if nth % 2 == 0 {
                session.send(&Message::new(3, &[6, 2]).bytes);
            }
        }
        drop(sessions);
        let took = until("no route is left", secs(5), || hops(&l, VIP).is_empty());
        println!("the last of fifty gone after {took:.3?}");
    }
    until("nothing is left", secs(5), || members(&l) == 0 && process.descriptors() <= descriptors);
    println!("{memory} KiB before, {} KiB after 200 members", process.rss());
    assert!(process.rss() < memory + 4096);
    assert_eq!(status(&l)["routes"][format!("web {VIP}")], Value::Array(vec![]));
}

#[test]
fn whatever_happens_to_links_and_addresses_the_routes_come_back() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, a, b) = (lab.host("l", 1), lab.host("a", 11), lab.host("b", 12));
    lab.link((&l, "d0", "198.18.0.1/24"), (&a, "far", "198.18.0.11/24"));
    lab.link((&l, "d1", "198.18.1.1/24"), (&b, "far", "198.18.1.12/24"));
    l.run("ip -6 address add 2001:db8:a::1/64 dev d0 nodad; sysctl -qw net.ipv6.conf.d0.keep_addr_on_down=1");
    a.run("ip -6 address add 2001:db8:a::11/64 dev far nodad");
    let (a4, b4) = (Ipv4Addr::new(198, 18, 0, 11), Ipv4Addr::new(198, 18, 1, 12));
    let a6: IpAddr = "2001:db8:a::11".parse().expect("an address");
    let accept = [
        "name: four, range: 198.18.0.0/15, peer_asn: external",
        "name: six, range: \"2001:db8:a::/64\", peer_asn: external",
    ];
    let (left, right) = ("198.51.100.1/32", "198.51.100.2/32");
    let vips = [("both", VIP), ("six", VIP6), ("left", left), ("right", right)];
    l.spawn(standfast(&listening(&l, "90s", &accept, &vips)));
    let join = |host: &Host, from: IpAddr, to: IpAddr| {
        let mut session = Session::dial(host, from, to).expect("a connection");
        session.establish(&OpenBytes { hold: 90, ..OpenBytes::new(G, host.v4) });
        session
    };
    let mut one = join(&a, a4.into(), Ipv4Addr::new(198, 18, 0, 1).into());
    let mut two = join(&b, b4.into(), Ipv4Addr::new(198, 18, 1, 1).into());
    let mut six = join(&a, a6, "2001:db8:a::1".parse().expect("an address"));
    for prefix in [VIP, left] {
        one.send(&announce(prefix, a4, &[G], &[]));
    }
    for prefix in [VIP, right] {
        two.send(&announce(prefix, b4, &[G], &[]));
    }
    six.send(&announce(VIP6, a6, &[G], &[]));
    let whole = || {
        hops(&l, VIP) == of([a4, b4])
            && hops(&l, VIP6) == of([a6])
            && hops(&l, left) == of([a4])
            && hops(&l, right) == of([b4])
    };
    until("all is there", secs(3), whole);
    let sessions = || {
        let all = status(&l)["members"].as_array().cloned().unwrap_or_default();
        all.iter().filter(|m| m["session_state"] == "established").count()
    };
    let pends = || {
        let metrics = l.get(API, "/metrics").map(|(_, body)| body).unwrap_or_default();
        !metrics.contains("standfast_kernel_pending 0")
    };
    let faults = [
        ("the link goes down and up", "ip link set d0 down", "ip link set d0 up"),
        (
            "its address goes and comes",
            "ip address del 198.18.0.1/24 dev d0",
            "ip address add 198.18.0.1/24 dev d0",
        ),
        (
            "its IPv6 address goes and comes",
            "ip address del 2001:db8:a::1/64 dev d0",
            "ip address add 2001:db8:a::1/64 dev d0 nodad",
        ),
        (
            "all links go down and up",
            "ip link set d0 down; ip link set d1 down",
            "ip link set d1 up; ip link set d0 up",
        ),
    ];
    for (what, harm, repair) in faults {
        l.run(harm);
        if !what.starts_with("all") {
            // The way that is left is taken all the time.
            while_holds(what, Duration::from_millis(1500), || hops(&l, VIP).contains(&b4.into()));
        }
        until("that the kernel has not all of it is counted", secs(5), pends);
        l.run(repair);
        let took = until(what, secs(5), whole);
        println!("{what}: right again after {took:.3?}");
        until("nothing pends", secs(5), || !pends());
        assert_eq!(sessions(), 3, "BGP had no part in it");
    }
    for prefix in [VIP, VIP6, left] {
        l.run(&format!("ip route del {prefix}"));
        let took = until("a route deleted by hand is back", secs(3), whole);
        println!("{prefix} deleted by hand: back after {took:.3?}");
    }
    l.run(&format!("ip route replace {left} via 198.18.1.12 proto static"));
    let took =
        until("a route replaced by hand is right again", secs(3), || hops(&l, left).contains(&a4.into()));
    println!("replaced by hand: right again after {took:.3?}: {}", l.run(&format!("ip route show {left}")));
}

#[test]
fn a_member_that_cannot_be_reached_spoils_no_route_over_the_others() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, a, b) = (lab.host("l", 1), lab.host("a", 11), lab.host("b", 12));
    lab.link((&l, "d0", "198.18.0.1/24"), (&a, "far", "198.18.0.11/24"));
    lab.link((&l, "d1", "198.18.1.1/24"), (&b, "far", "198.18.1.12/24"));
    b.run("ip address add 198.18.1.13/24 dev far");
    let accept = ["name: four, range: 198.18.0.0/15, peer_asn: external"];
    let daemon = l.spawn(standfast(&listening(&l, "90s", &accept, &[("web", VIP)])));
    let join = |host: &Host, from: Ipv4Addr, to: [u8; 4]| {
        let mut session = Session::dial(host, from, Ipv4Addr::from(to)).expect("a connection");
        session.establish(&OpenBytes { hold: 90, ..OpenBytes::new(G, host.v4) });
        session
    };
    let (a4, b4, c4) =
        (Ipv4Addr::new(198, 18, 0, 11), Ipv4Addr::new(198, 18, 1, 12), Ipv4Addr::new(198, 18, 1, 13));
    let (mut one, mut two) = (join(&a, a4, [198, 18, 0, 1]), join(&b, b4, [198, 18, 1, 1]));
    one.send(&announce(VIP, a4, &[G], &[]));
    two.send(&announce(VIP, b4, &[G], &[]));
    until("two share it", secs(3), || hops(&l, VIP) == of([a4, b4]));
    l.run("ip link set d0 down");
    let expect = |what: &str, hosts: &[Ipv4Addr]| {
        let took = until(what, secs(2), || hops(&l, VIP) == of(hosts.iter().copied()));
        println!("{what}: {took:.3?}");
    };
    let mut three = join(&b, c4, [198, 18, 1, 1]);
    three.send(&announce(VIP, c4, &[G], &[]));
    expect("a third is taken although the first cannot be reached", &[b4, c4]);
    two.send(&withdraw(VIP));
    expect("who withdraws is left", &[c4]);
    let (_, all) = l.get(API, "/status").expect("an answer");
    assert!(all.contains("pending") && all.contains(VIP), "{all}");
    let used = daemon.process().cpu();
    std::thread::sleep(secs(2));
    let used = daemon.process().cpu() - used;
    assert!(used < 20, "trying again takes {used} hundredths of 2 s");
    three.send(&withdraw(VIP));
    expect("also who is the last that can be reached", &[]);
    three.send(&announce(VIP, c4, &[G], &[]));
    expect("and is taken again", &[c4]);
    l.run("ip link set d0 up");
    expect("with the first as soon as it is reached", &[a4, c4]);
    until("nothing pends", secs(3), || {
        let (_, all) = l.get(API, "/status").expect("an answer");
        serde_json::from_str::<Value>(&all).expect("JSON")["kernel_pending"] == serde_json::json!({})
    });
}

#[test]
fn an_ipv6_route_changes_its_next_hops_without_ever_being_absent() {
    let Some(lab) = lab!("standfast", "stdbuf") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    l.spawn(standfast(&listening(&l, "9s", &[ANYONE4, ANYONE6], BOTH)));
    let monitor = watch_routes(&l);
    let mut sessions: Vec<_> = (0..3).map(|nth| scripted6(&g, &l, nth)).collect();
    let questions = lab.file("questions");
    std::fs::write(&questions, "route get 2001:db8:100::10\n".repeat(1000)).expect("a file");
    let mut probe = None;
    for members in [3, 2, 1, 3, 2, 3, 1, 2] {
        for (nth, (session, address)) in sessions.iter_mut().enumerate() {
            if nth < members {
                session.send(&announce(VIP6, *address, &[G], &[]));
            } else {
                session.send(&withdraw(VIP6));
            }
        }
        let wanted: BTreeSet<IpAddr> = sessions[..members].iter().map(|(_, a)| *a).collect();
        until(&format!("exactly {members} next hops"), secs(3), || hops(&l, VIP6) == wanted);
        probe.get_or_insert_with(|| {
            let ask = format!(
                "while :; do ip -6 -force -batch {} 2>&1 | grep -vc ' via '; done",
                questions.display()
            );
            l.process("probe", &["sh", "-c", &ask], &[])
        });
        std::thread::sleep(Duration::from_millis(200));
    }
    let probe = probe.expect("the probe");
    probe.kill();
    let answers = probe.log();
    println!("{}000 look-ups while the next hops changed", answers.lines().count());
    assert!(answers.lines().count() > 1, "the probe hardly asked");
    assert!(answers.lines().all(|line| line == "0"), "so many of each 1000 found no route: {answers}");
    assert!(
        !monitor.log().lines().any(|line| line.contains("Deleted 2001:db8:100::10")),
        "{}",
        monitor.log()
    );
    for (session, _) in &mut sessions {
        session.send(&withdraw(VIP6));
    }
    until("no route without a member", secs(2), || hops(&l, VIP6).is_empty());
    for (session, address) in &mut sessions[1..] {
        session.send(&announce(VIP6, *address, &[G], &[]));
    }
    let two: BTreeSet<IpAddr> = sessions[1..].iter().map(|(_, a)| *a).collect();
    until("exactly two from nothing", secs(3), || hops(&l, VIP6) == two);
    let objects = l.run(&format!("ip -6 -o route show exact {VIP6}"));
    assert_eq!(objects.lines().count(), 1, "one route object: {objects}");
}

#[test]
fn a_route_of_another_program_for_the_vip_survives_and_is_told_of_or_hides_nothing() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    // As other daemons write them: the same destination, a metric and a protocol of their own.
    l.run(&format!("ip -6 route add {VIP6} via 2001:db8::66 dev eth0 proto static metric 1024"));
    l.run(&format!("ip route add {VIP} via 192.0.2.66 proto static metric 100"));
    l.spawn(standfast(&listening(&l, "9s", &[ANYONE4, ANYONE6], BOTH)));
    let (mut four, a4) = scripted(&g, &l, 0);
    let (mut six, a6) = scripted6(&g, &l, 1);
    for round in 0..3 {
        four.send(&announce(VIP, a4, &[G], &[]));
        six.send(&announce(VIP6, a6, &[G], &[]));
        let leads = |family: &str, vip: &str| l.attempt(&format!("ip {family} route get {vip}"));
        let right = || {
            leads("-4", "198.51.100.10").contains(&format!("via {a4} "))
                && leads("-6", "2001:db8:100::10").contains(&format!("via {a6} "))
        };
        until("packets go to the member", secs(5), right);
        let own = |family: &str, vip: &str| {
            let all = l.run(&format!("ip {family} -o route show exact {vip}"));
            all.lines().filter(|line| !line.contains("proto static")).count()
        };
        assert_eq!((own("-4", VIP), own("-6", VIP6)), (1, 1), "round {round}: one route of ours");
        let foreign = |family: &str, vip: &str| {
            l.run(&format!("ip {family} -o route show exact {vip}")).contains("proto static")
        };
        let told = l.status()["kernel_pending"].to_string();
        for (family, vip) in [("-4", VIP), ("-6", VIP6)] {
            assert!(
                foreign(family, vip) || told.contains(vip),
                "round {round}: {vip} is gone and nobody says so"
            );
        }
        four.send(&withdraw(VIP));
        six.send(&withdraw(VIP6));
        until("no route of ours is left", secs(5), || (own("-4", VIP), own("-6", VIP6)) == (0, 0));
    }
}

#[test]
fn a_restart_takes_its_routes_over_without_a_gap_and_removes_those_that_nobody_announces() {
    let Some(lab) = lab!("standfast", "bird", "stdbuf") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let daemon = l.spawn(standfast(&listening(&l, "9s", &[ANYONE4, ANYONE6], BOTH)));
    let bird = g.spawn(bird_member(&g, &l, ""));
    let right = || (hops(&l, VIP), hops(&l, VIP6)) == (of([g.v4]), of([g.v6]));
    until("routed", secs(15), right);
    let monitor = watch_routes(&l);
    for end in ["SIGTERM", "SIGKILL"] {
        if end == "SIGTERM" {
            daemon.stop();
        } else {
            daemon.kill();
        }
        while_holds("the routes stay", secs(1), right);
        daemon.start_again();
        until("the members are back", secs(15), || {
            assert!(right());
            members(&l) == 2
        });
        while_holds("the routes stay", secs(1), right);
        assert!(!monitor.log().contains("Deleted 198.51.100.10"), "{end}: {}", monitor.log());
        assert!(!monitor.log().contains("Deleted 2001:db8:100::10"), "{end}: {}", monitor.log());
    }
    daemon.kill();
    bird.ask("disable s6");
    daemon.start_again();
    let took = until("what nobody announces goes", secs(65), || {
        assert_eq!(hops(&l, VIP), of([g.v4]));
        hops(&l, VIP6).is_empty()
    });
    println!("the abandoned route went {:.1} s after the start", took.as_secs_f64());
}

#[test]
fn ten_thousand_routes_of_a_member_cost_nothing_and_are_passed_to_nobody() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, o) = (lab.host("l", 1), lab.host("g", 11), lab.host("o", 12));
    let daemon = l.spawn(standfast(&listening(&l, "9s", &[ANYONE4, ANYONE6], BOTH)));
    let quiet = o.spawn(bird(G, &[Neighbor::new(l.v4, L).told(vec![VIP.to_owned()])]));
    until("the quiet one is routed", secs(15), || hops(&l, VIP) == of([o.v4]));
    let capture = o.capture("eth0");
    let before = daemon.process().rss();
    let many = (0..10_000).map(|n| format!("10.{}.{}.0/24", n / 256, n % 256));
    let start = Instant::now();
    let loud = g.spawn(bird(G, &[Neighbor::new(l.v4, L).told(many.chain([VIP.to_owned()]).collect())]));
    until("the loud one is routed too", secs(20), || hops(&l, VIP) == of([g.v4, o.v4]));
    let ignored = || {
        let all = status(&l);
        let members = all["members"].as_array().cloned().unwrap_or_default();
        members.iter().filter_map(|m| m["ignored"].as_u64()).sum::<u64>()
    };
    until("all are ignored", secs(10), || ignored() >= 10_000);
    let after = daemon.process().rss();
    println!(
        "10,000 routes in {:.1} s: {before} KiB before, {after} KiB after",
        start.elapsed().as_secs_f64()
    );
    assert!(after < before + 8192, "{before} -> {after} KiB");
    assert_eq!(quiet.learned(l.v4) + loud.learned(l.v4), 0);
    let told = capture.finish();
    let mut told = told.iter().filter(|e| e.from.ip() == l.v4).filter_map(|e| e.message()?.update());
    assert!(!told.any(|u| u.end_of_rib.is_none()), "a member was told something");
    loud.kill();
    until("only the quiet one is left", secs(2), || hops(&l, VIP) == of([o.v4]));
}
