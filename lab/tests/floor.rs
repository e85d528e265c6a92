//! A fleet that a bad check, or a fault that all of it shares, would switch off: what the listener's floor keeps, and what it never
//! keeps.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const L: u32 = 64512;
const G: u32 = 64513;

fn spec(l: &Host, floor: &str) -> Spec {
    standfast(&format!(
        "schema: v1\nrouter: {{ asn: {L}, router_id: {v4}, local_address: {v4} }}\napi: {{ listen: \"{API}\" }}\n\
         logging: {{ level: info, timestamps: true }}\nlistener:\n\
         \x20 accept: [{{ name: fleet, range: 192.0.2.0/24, peer_asn: {G}, hold_time: 9s }}]\n\
         \x20 vips: [{{ name: web, prefix: {VIP}{floor} }}]\n",
        v4 = l.v4
    ))
}

/// Four announcers, each with a service of its own.
struct Four {
    l: Host,
    hosts: Vec<Host>,
    services: Vec<Service>,
    daemons: Vec<Daemon>,
    _listener: Daemon,
}

impl Four {
    fn new(lab: &Lab, floor: &str) -> Self {
        let l = lab.host("l", 1);
        let listener = l.spawn(spec(&l, floor));
        let hosts: Vec<_> = (11..15).map(|n| lab.host(&format!("g{n}"), n)).collect();
        let services: Vec<_> = hosts.iter().map(|g| Service::start(g, (Ipv4Addr::LOCALHOST, 80))).collect();
        let spawn = |g: &Host| {
            g.spawn(Announcer::new(g, G).neighbor(l.v4, L, "").vip("web", &[VIP], "/", WITHDRAW).spec())
        };
        let daemons = hosts.iter().map(spawn).collect();
        let four = Self { l, hosts, services, daemons, _listener: listener };
        until("all four are routed to", secs(20), || four.hops() == four.set(&[0, 1, 2, 3]));
        four
    }

    fn hops(&self) -> BTreeSet<IpAddr> {
        self.l.next_hops(VIP)
    }

    fn set(&self, of: &[usize]) -> BTreeSet<IpAddr> {
        of.iter().map(|&n| self.hosts[n].v4.into()).collect()
    }

    fn all(&self, good: bool) {
        self.services.iter().for_each(|service| service.set("/", good));
    }

    fn held(&self) -> u64 {
        self.l.status()["listener"]["vips"][0]["held"].as_u64().expect("a number")
    }
}

#[test]
fn without_a_floor_a_check_that_fails_everywhere_takes_the_whole_fleet_away() {
    let Some(lab) = lab!("standfast") else { return };
    let four = Four::new(&lab, "");
    four.all(false);
    until("nobody is left", secs(5), || four.hops().is_empty());
    four.all(true);
    until("all are back", secs(10), || four.hops().len() == 4);
}

#[test]
fn a_floor_keeps_as_many_as_it_says_and_who_dies_is_never_kept() {
    let Some(lab) = lab!("standfast") else { return };
    let four = Four::new(&lab, ", floor: { members: 1, hold: 60s }");
    // A check that fails everywhere: one stays, and an alarm says so.
    four.all(false);
    until("one is held", secs(5), || four.hops().len() == 1 && four.held() == 1);
    while_holds("and stays", secs(2), || four.hops().len() == 1);
    let metrics = four.l.get(API, "/metrics").map(|(_, body)| body).unwrap_or_default();
    assert!(
        metrics.contains(&format!("standfast_listener_held{{vip=\"web\",nlri=\"{VIP}\"}} 1")),
        "{metrics}"
    );
    four.all(true);
    until("all are back", secs(10), || four.hops().len() == 4 && four.held() == 0);
    // One real failure after the other: each goes, until the last one, which the floor keeps.
    for failed in 0..4 {
        four.services[failed].set("/", false);
        let left: Vec<usize> = if failed == 3 { vec![3] } else { (failed + 1..4).collect() };
        until(&format!("{} failed", failed + 1), secs(5), || {
            four.hops() == four.set(&left) && four.held() == u64::from(failed == 3)
        });
    }
    // One that recovers takes its place.
    four.services[1].set("/", true);
    until("the sound one alone", secs(5), || four.hops() == four.set(&[1]) && four.held() == 0);
    // Who dies is not held, and the next best is not taken from the grave either: the ones that still live are.
    for dead in [1, 0, 2] {
        four.daemons[dead].kill();
        let gone: IpAddr = four.hosts[dead].v4.into();
        until("the dead one is gone", secs(5), || !four.hops().contains(&gone));
        until("one that lives is held", secs(5), || four.hops().len() == 1 && four.held() == 1);
    }
    four.daemons[3].kill();
    until("with the last one the route goes", secs(5), || four.hops().is_empty());
}
