//! A floor over five real announcers and a listener that tells them of each other: whoever fails alone leaves, of all that fail
//! at once exactly the floor stays, and a process that dies always leaves.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use nix::sys::signal::Signal;
use serde_json::Value;
use standfast_lab::*;

const VIPS: [&str; 2] = ["198.51.100.10/32", "2001:db8:100::10/128"];
const FLEET: u8 = 5;

fn reason(g: &Host) -> (String, String) {
    let (_, body) = g.get(API, "/status").expect("an answer");
    let status: Value = serde_json::from_str(&body).expect("JSON");
    let of = |key: &str| status["vips"][0][key].as_str().expect("words").to_owned();
    (of("state_name"), of("reason"))
}

fn count(gateways: &[Host], state: &str) -> usize {
    gateways.iter().filter(|g| reason(g).0 == state).count()
}

#[test]
fn of_five_announcers_that_fail_at_once_exactly_the_floor_stays() {
    let Some(lab) = lab!("standfast") else { return };
    let l = lab.host("l", 1);
    let front = l.spawn(listener(&l, "192.0.2.0/24", "reflect: true"));
    let gateways: Vec<Host> = (1..=FLEET).map(|n| lab.host(&format!("g{n}"), 10 + n)).collect();
    let services: Vec<Service> =
        gateways.iter().map(|g| Service::start(g, SocketAddr::from(([127, 0, 0, 1], 80)))).collect();
    let policy = "policy: { fail_action: withdraw, floor: { members: 2 } }";
    let start = |g: &Host| {
        g.spawn(Announcer::new(g, 64513).neighbor(l.v4, 64512, "").vip("web", &VIPS, "/", policy).spec())
    };
    let mut daemons: Vec<_> = gateways.iter().map(start).collect();
    let hops = |of: &[usize]| -> BTreeSet<IpAddr> { of.iter().map(|&n| gateways[n].v4.into()).collect() };
    let sixes = |of: &[usize]| -> BTreeSet<IpAddr> { of.iter().map(|&n| gateways[n].v6.into()).collect() };
    let routed = |of: &[usize]| l.next_hops(VIPS[0]) == hops(of) && l.next_hops(VIPS[1]) == sixes(of);
    until("all five are routed to", secs(20), || routed(&[0, 1, 2, 3, 4]));

    // One alone.
    services[1].set("/", false);
    until("it is not routed to", secs(5), || routed(&[0, 2, 3, 4]));
    until("it has left", secs(5), || reason(&gateways[1]).0 == "withdrawn");
    services[1].set("/", true);
    until("it is back", secs(5), || routed(&[0, 1, 2, 3, 4]));

    // All at once. That the VIP is always announced is looked at every few milliseconds.
    services.iter().for_each(|s| s.set("/", false));
    let mut least = usize::from(FLEET);
    until("three have left", secs(15), || {
        least = least.min(l.next_hops(VIPS[0]).len());
        count(&gateways, "withdrawn") == 3
    });
    assert!(least > 0, "for a moment nobody was routed to");
    std::thread::sleep(secs(3));
    assert_eq!(count(&gateways, "pessimized"), 2);
    // The lowest identifiers, as nobody had left before.
    assert!(routed(&[0, 1]), "{:?}", l.next_hops(VIPS[0]));
    let (_, words) = reason(&gateways[0]);
    assert!(words.contains("held by the floor: 0 others can serve, and 2 must stay"), "{words}");
    assert!(daemons[0].log().contains("held by the floor"), "no alarm:\n{}", daemons[0].log());

    // A listener that is gone changes nothing.
    front.process().signal(Signal::SIGSTOP);
    std::thread::sleep(secs(1));
    front.process().signal(Signal::SIGCONT);
    std::thread::sleep(secs(1));
    assert_eq!(count(&gateways, "pessimized"), 2);

    // One of the two dies: another comes back in its place.
    daemons[0].kill();
    until("two stay again", secs(10), || {
        let hops = l.next_hops(VIPS[0]);
        hops.len() == 2 && !hops.contains(&IpAddr::V4(gateways[0].v4))
    });
    services.iter().for_each(|s| s.set("/", true));
    daemons[0] = start(&gateways[0]);
    until("all five are routed to again", secs(20), || routed(&[0, 1, 2, 3, 4]));
}

#[test]
fn without_a_listener_that_tells_nobody_leaves_and_status_says_why() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let router = l.spawn(bird(64512, &[Neighbor::new(g.v4, 64513)]));
    let known = || router.ask("show route").contains("198.51.100.10/32");
    let service = Service::start(&g, SocketAddr::from(([127, 0, 0, 1], 80)));
    let policy = "policy: { fail_action: withdraw, floor: {} }";
    let daemon = g.spawn(
        Announcer::new(&g, 64513).neighbor(l.v4, 64512, "").vip("web", &VIPS[..1], "/", policy).spec(),
    );
    until("it is announced", secs(20), known);
    service.set("/", false);
    until("it is pessimised", secs(5), || reason(&g).0 == "pessimized");
    std::thread::sleep(secs(2));
    let (state, words) = reason(&g);
    assert!(
        state == "pessimized" && words.contains("no peer tells who else announces it"),
        "{state}: {words}"
    );
    assert!(known());
    daemon.process().signal(Signal::SIGTERM);
    until("a stop does not ask the floor", secs(5), || !known());
}
