//! A reload between real routers: what the new file does not name is neither said nor broken.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use nix::sys::signal::Signal;
use standfast_lab::*;

const L: u32 = 64512;
const G: u32 = 64513;
const VIPS: [&str; 3] = ["198.51.100.10/32", "198.51.100.53/32", "198.51.100.25/32"];

/// Has a daemon read this file, and waits until it has; whether it took it.
fn reload(host: &Host, daemon: &Daemon, yaml: &str) -> bool {
    daemon.write_config(yaml);
    let log = daemon.log().len();
    daemon.process().signal(Signal::SIGHUP);
    let said = || daemon.log().get(log..).unwrap_or_default().to_owned();
    until("the reload is over", secs(10), || {
        said().contains("reloaded: ") || said().contains("reload refused")
    });
    let status = host.status();
    assert_eq!(status["reload"]["done"] == true, said().contains("reloaded: "), "{status:#}");
    status["reload"]["done"] == true
}

/// What was said to an address since there were so many events, KEEPALIVEs aside: UPDATEs in words, and other kinds.
fn told(capture: &Capture, since: usize, from: Ipv4Addr, to: Ipv4Addr) -> Vec<String> {
    let events = capture.events();
    let to_it =
        events[since..].iter().filter(|e| e.from.ip() == IpAddr::V4(from) && e.to.ip() == IpAddr::V4(to));
    let words = to_it.filter_map(|event| {
        let message = event.message()?;
        match (message.update(), message.code()) {
            (Some(update), _) => {
                let words = |what: &str, prefixes: &[String]| match prefixes {
                    [] => String::new(),
                    all => format!("{what} {}", all.join(" ")),
                };
                Some(words("announce", &update.announced) + &words("withdraw", &update.withdrawn))
            }
            (None, Some(code)) => Some(format!("notification {code:?}")),
            (None, None) if format!("{:?}", message.kind()) == "Keepalive" => None,
            (None, None) => Some(format!("{:?}", message.kind())),
        }
    });
    words.collect()
}

fn policy(community: &str) -> String {
    format!("policy: {{ fail_action: withdraw, announce: {{ communities: [\"{community}\"] }} }}")
}

#[test]
fn a_reload_says_nothing_of_what_it_does_not_name() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, m, g) = (lab.host("l", 1), lab.host("m", 2), lab.host("g", 11));
    let service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let [one, two] = [&l, &m].map(|host| host.spawn(bird(L, &[Neighbor::new(g.v4, G)])));
    let base = || Announcer::new(&g, G).neighbor(l.v4, L, "");
    let web = |config: Announcer, community| config.vip("web", &VIPS[..1], "/", &policy(community));
    let dns = |config: Announcer| config.vip("dns", &VIPS[1..2], "/", WITHDRAW);
    let mail = |config: Announcer| config.vip("mail", &VIPS[2..], "/", WITHDRAW);
    let capture = g.capture("eth0");
    let daemon = g.spawn(dns(web(base(), "64513:1")).spec());
    until("both are known", secs(20), || one.learned(g.v4) == 2);
    let mut line = capture.events().len();
    // It was refused until it was a neighbour.
    let ours = |(_, code): &(IpAddr, (u8, u8))| *code != (6, 5);
    // What was said since the last time.
    let mut said = |what: &str, to: &Host| {
        while_holds("the capture catches up", Duration::from_millis(500), || true);
        let said = told(&capture, line, g.v4, to.v4);
        println!("{what}: {said:?}");
        line = capture.events().len();
        said
    };

    assert!(reload(&g, &daemon, &mail(dns(web(base(), "64513:1"))).yaml()));
    until("the new one is known", secs(20), || one.learned(g.v4) == 3);
    assert_eq!(said("a VIP more", &l), ["announce 198.51.100.25/32"]);

    assert!(reload(&g, &daemon, &mail(web(base(), "64513:1")).yaml()));
    until("it is gone", secs(20), || one.learned(g.v4) == 2);
    assert_eq!(said("a VIP less", &l), ["withdraw 198.51.100.53/32"]);

    assert!(reload(&g, &daemon, &mail(web(base(), "64513:2")).yaml()));
    until("the community is another one", secs(20), || {
        one.ask(&format!("show route {} all", VIPS[0])).contains("64513,2")
    });
    assert_eq!(said("another community", &l), ["announce 198.51.100.10/32"]);

    let three = mail(web(base().neighbor(m.v4, L, ""), "64513:2"));
    assert!(reload(&g, &daemon, &three.yaml()));
    until("the new peer knows both", secs(20), || two.learned(g.v4) == 2);
    assert_eq!(said("a peer more", &l), [""; 0]);

    // All of a file that is wrong is refused.
    assert!(!reload(&g, &daemon, &dns(three.clone()).yaml().replace("198.51.100.10/32", "198.51.100.10/33")));
    assert!(!reload(&g, &daemon, &dns(three.clone()).yaml().replace(&format!("asn: {G}"), "asn: 64999")));
    assert_eq!(said("two refusals", &l), [""; 0]);

    // Another hold time: that session alone, and what it is told again.
    let slower = mail(web(base().neighbor(m.v4, L, "hold_time: 30s"), "64513:2"));
    assert!(reload(&g, &daemon, &slower.yaml()));
    until("the session is the new one", secs(20), || {
        two.learned(g.v4) == 2 && daemon.log().matches("peer n2: established").count() == 2
    });
    let events = capture.events();
    let ends: Vec<_> =
        events.iter().filter_map(|e| Some((e.to.ip(), e.message()?.code()?))).filter(ours).collect();
    assert_eq!(ends, [(IpAddr::V4(m.v4), (6, 6))]);
    assert_eq!(said("another hold time of the other", &l), [""; 0]);

    assert!(reload(&g, &daemon, &mail(web(base(), "64513:2")).yaml()));
    until("the other peer knows nothing", secs(20), || two.learned(g.v4) == 0);
    let events = capture.events();
    let ends: Vec<_> =
        events.iter().filter_map(|e| Some((e.to.ip(), e.message()?.code()?))).filter(ours).collect();
    assert_eq!(ends, [(m.v4, (6, 6)), (m.v4, (6, 3))].map(|(ip, code)| (IpAddr::V4(ip), code)));
    assert_eq!(said("a peer less", &l), [""; 0]);

    // The checks go on: those that were there, and those that came.
    service.set("/", false);
    until("both are withdrawn", secs(10), || one.learned(g.v4) == 0);
}

#[test]
fn a_listener_that_gets_a_vip_asks_its_members_and_closes_no_session() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let yaml = |more: &str| {
        format!(
            "schema: v1\nrouter: {{ asn: {L}, router_id: {v4}, local_address: {v4} }}\napi: {{ listen: \"{API}\" }}\n\
             listener:\n  accept:\n    - {{ name: all, range: 192.0.2.0/24, peer_asn: {G}, hold_time: 9s }}\n  vips:\n\
             \x20   - {{ name: web, prefix: 198.51.100.10/32 }}\n{more}",
            v4 = l.v4
        )
    };
    let daemon = l.spawn(standfast(&yaml("")));
    let told = vec![VIPS[0].to_owned(), VIPS[1].to_owned()];
    let _member = g.spawn(bird(G, &[Neighbor::new(l.v4, L).told(told)]));
    until("routed", secs(20), || !l.next_hops(VIPS[0]).is_empty());
    assert!(l.next_hops(VIPS[1]).is_empty());
    assert!(reload(&l, &daemon, &yaml("    - { name: dns, prefix: 198.51.100.53/32 }\n")));
    until("the new one is routed", secs(10), || l.next_hops(VIPS[1]) == [IpAddr::V4(g.v4)].into());
    assert!(!daemon.log().contains("down:"), "no session ended");
    assert!(reload(&l, &daemon, &yaml("")));
    until("and no more", secs(10), || l.next_hops(VIPS[1]).is_empty());
    assert!(!l.next_hops(VIPS[0]).is_empty() && !daemon.log().contains("down:"));
}

#[test]
fn no_connection_breaks_by_a_reload_of_the_listener() {
    let Some(lab) = lab!("standfast") else { return };
    let fleet = Fleet::new(&lab, 1, 3);
    let l = &fleet.listeners[0];
    let yaml = |keys: &str, more: &str| Fleet::listener(l, keys) + more;
    let daemon = l.spawn(standfast(&yaml("", "")));
    let _members = fleet.members();
    fleet.routed(0, &[0, 1, 2]);
    let flows = Flows::open(&fleet.client, Fleet::target(false), 300);
    while_holds("they are under way", secs(1), || true);
    let before = flows.look();
    let ids = || l.run("ip nexthop show");
    let groups = ids();
    let public =
        "    - { name: more, prefix: 198.51.100.77/32, public: { address: 203.0.113.9, ports: [80] } }\n";
    assert!(reload(l, &daemon, &yaml("", public)));
    until("it is translated", secs(10), || l.attempt("nft list ruleset").contains("203.0.113.9"));
    assert_eq!(ids(), groups, "the groups are the same");
    assert!(reload(l, &daemon, &yaml("drain_timeout: 7s, floor: { members: 1 }", "")));
    until("it is translated no more", secs(10), || !l.attempt("nft list ruleset").contains("203.0.113.9"));
    assert_eq!(ids(), groups, "the groups are the same");
    while_holds("all go on", secs(2), || true);
    let fate = Fate::of(&before, &flows.look(), |_| true);
    println!("{} of {} connections broke", fate.broken, fate.of);
    assert!(fate.of >= 290);
    assert_eq!(fate.broken, 0);
}
