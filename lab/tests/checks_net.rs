//! Checks whose own path goes away: a VIP leaves when its checks cannot be asked any more, as it leaves when they are not answered.

use std::time::{Duration, Instant};

use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const G: u32 = 64513;

/// Two bad runs, half a second apart.
const COMMON: &str = "interval: 500ms, timeout: 300ms, rise: 1, fall: 2";

/// Waits until the VIP is announced, does `harm`, and waits until it is withdrawn; then `mend`, until it is back.
#[track_caller]
fn leaves_and_returns(scene: &Scene, what: &str, harm: &[&str], mend: &[&str], detail: &str) {
    until(&format!("it is announced before: {what}"), secs(20), || scene.state_of("web") == "announced");
    harm.iter().for_each(|command| drop(scene.g.run(command)));
    let start = Instant::now();
    until(&format!("it leaves: {what}"), secs(20), || scene.state_of("web") == "withdrawn");
    let took = start.elapsed();
    // Two intervals, a timeout, and what a busy machine may add.
    assert!(took < Duration::from_secs(10), "{what}: {took:?}");
    until(&format!("the reason is told: {what}"), secs(10), || {
        scene.g.get(API, "/status").is_some_and(|(_, body)| body.contains(detail))
    });
    mend.iter().for_each(|command| drop(scene.g.run(command)));
}

#[test]
fn a_vip_leaves_when_the_path_of_its_check_is_gone_and_comes_back_with_it() {
    let Some(lab) = lab!("standfast", "nft") else { return };
    let checks = format!(
        "checks:\n      - {{ name: ping, type: ping, {COMMON}, ping: {{ dst_ip: 127.0.0.1, src_ip: 192.0.2.77 }} }}\n      \
         - {{ name: far, type: ping, {COMMON}, ping: {{ dst_ip: 192.0.2.1 }} }}"
    );
    let (p, g) = (lab.host("p", 1), lab.host("g", 11));
    g.run("ip addr add 192.0.2.77/32 dev lo");
    g.run("nft add table ip t");
    g.run("nft add chain ip t o '{ type filter hook output priority 0 ; }'");
    let acceptor = Acceptor::new(&p, p.v4);
    let service = Service::start(&g, (std::net::Ipv4Addr::LOCALHOST, 80));
    let config =
        Announcer::new(&g, G).neighbor(p.v4, Scene::P, "").vip_with("web", &[VIP], &checks, WITHDRAW);
    let daemon = g.spawn(config.spec());
    let scene = Scene { p, g, service, acceptor, daemon };
    leaves_and_returns(
        &scene,
        "the source address is deleted",
        &["ip addr del 192.0.2.77/32 dev lo"],
        &["ip addr add 192.0.2.77/32 dev lo"],
        "from 192.0.2.77: cannot assign requested address",
    );
    leaves_and_returns(
        &scene,
        "the firewall refuses the packet",
        &["nft add rule ip t o ip daddr 192.0.2.1 icmp type echo-request drop"],
        &["nft flush chain ip t o"],
        "operation not permitted",
    );
    leaves_and_returns(
        &scene,
        "the route is gone",
        &["ip route add unreachable 192.0.2.1/32"],
        &["ip route del unreachable 192.0.2.1/32"],
        "no route to host",
    );
    until("it is back in the end", secs(20), || scene.state_of("web") == "announced");
}
