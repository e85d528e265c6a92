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

/// A server of every kind that a check can ask, on all addresses of a host.
fn serve(host: &Host) -> Vec<Service> {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};
    let udp = |port: u16, answer: fn(&[u8]) -> Vec<u8>| {
        let socket = host.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))).expect("a socket");
        std::thread::spawn(move || {
            let mut heard = [0; 512];
            while let Ok((n, from)) = socket.recv_from(&mut heard) {
                let _ = socket.send_to(&answer(&heard[..n]), from);
            }
        });
    };
    udp(7, <[u8]>::to_vec);
    // One address for every name.
    udp(53, |query| {
        let end = 12 + query[12..].iter().position(|&b| b == 0).unwrap_or(0) + 5;
        let head = [&query[..2], &[0x84, 0, 0, 1, 0, 1, 0, 0, 0, 0]].concat();
        [&head, &query[12..end], &[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 7]].concat()
    });
    // The health service of gRPC in the fewest octets: status 200, SERVING, grpc-status 0.
    let grpc = host.enter(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 50051))).expect("a socket");
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        [&[0, 0, u8::try_from(payload.len()).expect("short"), kind, flags, 0, 0, 0, stream], payload].concat()
    };
    let head = [b"\x88\x5f\x10".as_slice(), b"application/grpc"].concat();
    let trailers = [b"\x00\x0b".as_slice(), b"grpc-status", b"\x010"].concat();
    let settings = [frame(4, 0, 0, &[]), frame(4, 1, 0, &[])].concat();
    let answer =
        [frame(1, 4, 1, &head), frame(0, 0, 1, b"\0\0\0\0\x02\x08\x01"), frame(1, 5, 1, &trailers)].concat();
    std::thread::spawn(move || {
        for mut stream in grpc.incoming().flatten() {
            let (settings, answer) = (settings.clone(), answer.clone());
            std::thread::spawn(move || {
                let mut heard = [0; 24];
                if stream.read_exact(&mut heard).is_err() || stream.write_all(&settings).is_err() {
                    return;
                }
                // The request's body ends it.
                loop {
                    let mut head = [0; 9];
                    if stream.read_exact(&mut head).is_err() {
                        return;
                    }
                    let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
                    if stream.read_exact(&mut payload).is_err() {
                        return;
                    }
                    if matches!(head[3], 0 | 1) && head[4] & 1 == 1 {
                        break;
                    }
                }
                let _ = stream.write_all(&answer);
                let _ = stream.read_to_end(&mut Vec::new());
            });
        }
    });
    vec![Service::start(host, (Ipv4Addr::UNSPECIFIED, 80))]
}

/// A check of each type that asks `host`, and the words that it fails with when the interface on the way is down.
fn of_each_type(host: &str) -> Vec<(&'static str, String)> {
    let asks = |kind: &str, keys: &str| format!("{kind}: {{ {keys} }}");
    vec![
        ("http", asks("http", &format!("host: {host}, port: 80, url: /"))),
        ("tcp", asks("tcp", &format!("host: {host}, port: 80"))),
        ("dns", asks("dns", &format!("resolver: {host}, names: [www.example.com]"))),
        ("udp", asks("udp", &format!("host: {host}, port: 7, payload: x, silence: bad"))),
        ("grpc", asks("grpc", &format!("host: {host}, port: 50051"))),
        ("ping", asks("ping", &format!("dst_ip: {host}"))),
    ]
}

#[test]
fn an_interface_that_goes_down_takes_every_vip_along_whatever_its_check_is() {
    let Some(lab) = lab!("standfast") else { return };
    let (p, g) = (lab.host("p", 1), lab.host("g", 11));
    g.run("ip link add vG type veth peer name vGp; ip link set vG up; ip link set vGp up");
    let acceptor = Acceptor::new(&p, p.v4);
    let mut config = Announcer::new(&g, G).neighbor(p.v4, Scene::P, "");
    let mut vips: Vec<(String, String)> = Vec::new();
    // Checks of this host, whose runs are too far apart to notice anything; and checks of another, over the cable.
    let near = of_each_type("127.0.0.1").into_iter().map(|(kind, keys)| (format!("near-{kind}"), kind, keys));
    let far = of_each_type("192.0.2.1").into_iter().map(|(kind, keys)| (format!("far-{kind}"), kind, keys));
    let exec = ("near-exec".to_owned(), "exec", "exec: { command: [/bin/true] }".to_owned());
    for (n, (name, kind, keys)) in near.chain([exec]).chain(far).enumerate() {
        let (times, more) = if name.starts_with("near") {
            (
                "interval: 60s, fast_interval: 500ms, timeout: 490ms, rise: 2, fall: 2",
                "require_local_address: true\n    local_interface: vG",
            )
        } else {
            ("interval: 500ms, timeout: 490ms, rise: 1, fall: 2", "require_local_address: false")
        };
        let prefix = format!("198.51.100.{}/32", 20 + n);
        g.run(&format!("ip addr add {prefix} dev vG"));
        let check = format!("check: {{ type: {kind}, {times}, {keys} }}");
        config = config.vip_with(&name, &[&prefix], &check, &format!("{more}\n    {WITHDRAW}"));
        vips.push((name, prefix));
    }
    // The API is asked inside, and needs no cable.
    let (_there, _here) = (serve(&p), serve(&g));
    let daemon = g.spawn(config.spec());
    let service = Service::start(&g, (std::net::Ipv4Addr::LOCALHOST, 8081));
    let scene = Scene { p, g, service, acceptor, daemon };
    let states = |which: &str, state: &str| {
        let (_, body) = scene.g.get(API, "/status").unwrap_or_default();
        let status: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
        let all = status["vips"].as_array().cloned().unwrap_or_default();
        let of = |vip: &&serde_json::Value| vip["name"].as_str().is_some_and(|name| name.starts_with(which));
        let wrong: Vec<_> = all.iter().filter(of).filter(|vip| vip["state_name"] != state).collect();
        let words = wrong.first().map(|vip| format!("{}: {}", vip["name"], vip["reason"]));
        if !all.is_empty() { words.unwrap_or_default() } else { "no status".to_owned() }
    };
    let all = |which: &str, state: &str| {
        let mut last = String::new();
        let took = until(&format!("all of {which} are {state}"), secs(40), || {
            let now = states(which, state);
            if now != last {
                println!("{now}");
                last.clone_from(&now);
            }
            now.is_empty()
        });
        println!("{which} {state} after {took:.3?}");
    };
    all("", "announced");
    scene.g.run("ip link set vG down");
    all("near", "withdrawn");
    let (_, body) = scene.g.get(API, "/status").expect("a status");
    assert_eq!(body.matches("is not on vG, or not usable").count(), 7, "{body}");
    assert_eq!(states("far", "announced"), "", "they need no address on vG");
    scene.g.run("ip link set vG up");
    all("near", "announced");
    // The way out is down: no packet leaves, and that is a failure of the check.
    scene.g.run("ip link set eth0 down");
    all("far", "withdrawn");
    assert_eq!(states("near", "announced"), "", "they need no cable");
    let (_, body) = scene.g.get(API, "/status").expect("a status");
    assert_eq!(body.matches("fall threshold reached: ").count(), 6, "{body}");
    assert!(!body.contains("\"last_check_outcome\":\"no_result\""), "{body}");
    scene.g.run("ip link set eth0 up");
    all("far", "announced");
}
