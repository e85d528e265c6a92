//! Addresses that come and go by other hands while a VIP needs them: noticed when it happens, not when a check looks.

use std::net::IpAddr;

use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const VIP6: &str = "2001:db8:100::10/128";
const L: u32 = 64512;
const G: u32 = 64513;

/// A check that never fails, and looks too seldom to notice anything here.
fn seldom(rise: u32, fall: u32) -> String {
    format!(
        "check: {{ type: tcp, interval: 3s, timeout: 1s, rise: {rise}, fall: {fall}, tcp: {{ host: 127.0.0.1, port: 80 }} }}"
    )
}

/// A host behind a router, with a VIP that must be on it.
fn guarded(lab: &Lab, prefix: &str, check: &str, more: &str) -> (Host, Daemon, Host, Daemon, Service) {
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let service = Service::start(&g, (std::net::Ipv4Addr::LOCALHOST, 80));
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let more = format!("require_local_address: true{more}\n    {WITHDRAW}");
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip_with("web", &[prefix], check, &more);
    let daemon = g.spawn(config.spec());
    (l, bird, g, daemon, service)
}

/// The VIP's reason and how often its state changed.
fn vip(host: &Host) -> (String, u64) {
    let ((_, body), _) = until_some("the status", secs(10), || host.get(API, "/status"));
    let status: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    let vip = &status["vips"][0];
    (vip["reason"].as_str().expect("a reason").to_owned(), vip["transitions"].as_u64().expect("a number"))
}

#[test]
fn an_address_that_somebody_deletes_takes_its_route_along_and_brings_it_back_after_rise() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (_l, bird, g, _daemon, _service) = guarded(&lab, VIP, &seldom(2, 2), "");
    until("the VIP is missed", secs(15), || vip(&g).0.contains("address 198.51.100.10 is not on this host"));
    // It is assigned after the start, to any interface.
    g.run("ip addr add 198.51.100.10/32 dev eth0");
    until("the route is there", secs(15), || bird.route(VIP).is_some());
    g.run("ip addr add 198.51.100.10/32 dev lo");
    g.run("ip addr del 198.51.100.10/32 dev eth0");
    while_holds("it moved to another interface", secs(1), || bird.route(VIP).is_some());
    g.run("ip addr flush dev lo to 198.51.100.0/24");
    until("the route is gone", secs(5), || bird.route(VIP).is_none());
    assert_eq!(vip(&g).0, "address 198.51.100.10 is not on this host, or not usable");
    g.run("ip addr add 198.51.100.10/32 dev lo");
    until("it waits", secs(5), || {
        vip(&g).0 == "address 198.51.100.10 is back: waiting for the checks to rise again"
    });
    while_holds("two runs are three seconds apart", secs(1), || bird.route(VIP).is_none());
    until("the route is back", secs(15), || bird.route(VIP).is_some());
}

#[test]
fn an_address_that_blinks_makes_no_route_flap_where_one_bad_run_makes_none() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (_l, bird, g, _daemon, _service) = guarded(&lab, VIP, &seldom(1, 2), "");
    g.run("ip addr add 198.51.100.10/32 dev lo");
    until("the route is there", secs(15), || bird.route(VIP).is_some());
    // On a machine that is busy enough, 50 ms may become long: one calm time is enough.
    let calm = (0..5).any(|_| {
        until("the route is there", secs(15), || bird.route(VIP).is_some());
        let before = vip(&g).1;
        g.run("ip addr del 198.51.100.10/32 dev lo; sleep 0.05; ip addr add 198.51.100.10/32 dev lo");
        std::thread::sleep(std::time::Duration::from_millis(500));
        vip(&g).1 == before
    });
    assert!(calm, "every blink was a flap");
}

#[test]
fn an_address_counts_on_its_interface_alone_where_one_is_named() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (_l, bird, g, _daemon, _service) = guarded(&lab, VIP, &seldom(1, 1), "\n    local_interface: vG");
    g.run("ip addr add 198.51.100.10/32 dev lo");
    until("the VIP is missed", secs(15), || vip(&g).0 == "address 198.51.100.10 is not on vG, or not usable");
    // The interface appears after the start, under another name at first.
    g.run("ip link add v9 type veth peer name v9p; ip link set v9p up; ip addr add 198.51.100.10/32 dev v9");
    g.run("ip link set v9 name vG up");
    until("the route is there", secs(15), || bird.route(VIP).is_some());
    g.run("ip link set vG down");
    until("an interface that is down has none", secs(5), || bird.route(VIP).is_none());
    g.run("ip link set vG up");
    until("the route is back", secs(15), || bird.route(VIP).is_some());
    g.run("ip link del vG");
    until("the route is gone", secs(5), || bird.route(VIP).is_none());
}

#[test]
fn an_ipv6_address_that_another_host_has_too_is_not_announced() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, bird, g, _daemon, _service) = guarded(&lab, VIP6, &seldom(1, 1), "");
    let address: IpAddr = "2001:db8:100::10".parse().expect("an address");
    // The router has it, and answers whoever asks whether it is free.
    l.run(&format!("ip addr add {address}/128 dev eth0 nodad"));
    g.sysctl("net/ipv6/conf/eth0/accept_dad", "1");
    g.sysctl("net/ipv6/conf/eth0/dad_transmits", "1");
    g.run(&format!("ip addr add {address}/128 dev eth0"));
    until("duplicate detection failed", secs(10), || g.run("ip -6 addr show dev eth0").contains("dadfailed"));
    while_holds("it is not announced", secs(2), || bird.route(VIP6).is_none());
    assert_eq!(vip(&g).0, format!("address {address} is not on this host, or not usable"));
    // The other one gives it up, and it is asked for anew.
    l.run(&format!("ip addr del {address}/128 dev eth0"));
    g.run(&format!("ip addr del {address}/128 dev eth0; ip addr add {address}/128 dev eth0"));
    until("it is announced once it is found to be unique", secs(15), || bird.route(VIP6).is_some());
}
