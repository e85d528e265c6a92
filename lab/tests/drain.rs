//! Draining and holding members of a running listener: the command, what the kernel routes over, and what status says.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use serde_json::Value;
use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const NLRI: &str = "20c633640a";

fn address(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, n)
}

fn set(hosts: &[u8]) -> BTreeSet<IpAddr> {
    hosts.iter().map(|&n| address(n).into()).collect()
}

/// A member that has announced nothing.
fn connected(p: &Host, n: u8, l: &Host) -> Session {
    let (mut session, _) =
        until_some("the listener accepts", secs(5), || Session::dial(p, address(n), l.v4).ok());
    session.establish(&OpenBytes::new(64513, address(n)));
    session.keep_alive(secs(1));
    session
}

/// A member that has announced the VIP.
fn member(p: &Host, n: u8, l: &Host) -> Session {
    let mut session = connected(p, n, l);
    session.send(&announcement(n));
    session
}

fn announcement(n: u8) -> Vec<u8> {
    let mut body = hex("0000 0014 40010100 40020602010000fc01 400304");
    body.extend_from_slice(&address(n).octets());
    body.extend_from_slice(&hex(NLRI));
    Message::new(2, &body).bytes
}

fn withdrawal() -> Vec<u8> {
    Message::new(2, &hex(&format!("0005 {NLRI} 0000"))).bytes
}

fn status(l: &Host) -> Value {
    let (_, body) = l.get(API, "/status").expect("an answer");
    serde_json::from_str(&body).expect("JSON")
}

/// The exit code and everything that a command said.
fn standfast_says(l: &Host, arguments: &str) -> (i32, String) {
    let program = standfast_bin().expect("a program");
    let said = l.attempt(&format!("{} {arguments} --api {API} 2>&1; echo code $?", program.display()));
    let (text, code) = said.trim_end().rsplit_once("code ").expect("a code");
    (code.parse().expect("a number"), text.to_owned())
}

#[test]
fn members_drain_by_command_and_are_held_by_the_floor() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, p) = (lab.host("l", 1), lab.host("p", 11));
    p.run("ip address add 192.0.2.12/24 dev eth0");
    l.spawn(standfast(&format!(
        "schema: v1\nrouter: {{ asn: 64512, router_id: 192.0.2.1, local_address: 192.0.2.1 }}\n\
         api: {{ listen: \"{API}\" }}\nlogging: {{ level: debug, timestamps: true }}\n\
         bgp: {{ neighbors: [{{ name: up, address: 192.0.2.99, peer_asn: 64500 }}] }}\n\
         vips:\n  - name: front\n    prefix: 203.0.113.0/24\n    policy: {{ fail_action: withdraw }}\n\
         \x20   check: {{ type: members, members: {{ vip: web }} }}\n\
         listener:\n  accept: [{{ name: members, range: 192.0.2.0/24, peer_asn: 64513, hold_time: 9s }}]\n\
         \x20 vips:\n    - {{ name: web, prefix: {VIP}, buckets: 64, idle_timer: 2s, floor: {{ members: 1, hold: 8s }} }}\n"
    )));
    let mut first = member(&p, 11, &l);
    let mut second = member(&p, 12, &l);
    until("both are routed to", secs(5), || l.next_hops(VIP) == set(&[11, 12]));
    let front = || status(&l)["vips"][0].clone();
    assert_eq!(front()["state_name"], "announced", "{}", front()["reason"]);

    let (code, said) = standfast_says(&l, "drain 192.0.2.12");
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("192.0.2.12 web draining (by command), "), "{said}");
    // Nothing flows: the kernel says so, and it is taken out long before its five minutes are over.
    until("it is drained", secs(20), || l.next_hops(VIP) == set(&[11]));
    let vip = status(&l)["listener"]["vips"][0].clone();
    assert!(vip["reason"].as_str().unwrap_or_default().contains("192.0.2.12 is drained"), "{vip}");
    let (_, table) = standfast_says(&l, "status");
    for part in ["web drained (by command)", "web serving 100%", "ordered to drain: 192.0.2.12 for every VIP"]
    {
        assert!(table.contains(part), "{part:?} is missing in\n{table}");
    }

    let (code, said) = standfast_says(&l, "drain 192.0.2.11 --vip web --timeout 1s");
    assert!(code == 0 && said.contains("192.0.2.11 web last (by command)"), "{said}");
    assert!(said.contains("nobody else is left"), "{said}");
    let still = l.next_hops(VIP);
    assert!(still.contains(&address(11).into()), "{still:?}");
    for n in [11, 12] {
        let (code, said) = standfast_says(&l, &format!("undrain 192.0.2.{n}"));
        assert!(code == 0 && said.contains("web serving"), "{said}");
    }
    until("both serve again", secs(3), || l.next_hops(VIP) == set(&[11, 12]));

    for (wrong, words) in [
        ("drain 203.0.113.9", "no range of the listener covers it"),
        ("drain 192.0.2.11 --vip wbe", "there is: web"),
        ("drain 192.0.2.11 --timeout 30", "has no unit"),
        ("drain web", "a member of its listener is drained by its address"),
        ("drain web --vip web", "is no address of a member"),
        ("drain 192.0.2.11 --wait", "--wait is for VIPs of this host"),
        ("drain", "required"),
        ("undrain 192.0.2.11", "nobody ordered it to drain"),
    ] {
        let (code, said) = standfast_says(&l, wrong);
        assert!(code == 2 && said.contains(words), "{wrong}: {code}: {said}");
    }

    // Both withdraw, and their sessions live: the floor keeps the one that withdrew last, and its VIP upstream.
    first.send(&withdrawal());
    until("one is left", secs(3), || l.next_hops(VIP) == set(&[12]));
    second.send(&withdrawal());
    until("it is held", secs(3), || status(&l)["listener"]["vips"][0]["held"] == 1);
    assert_eq!(l.next_hops(VIP), set(&[12]));
    assert_eq!(front()["state_name"], "announced");
    let (code, table) = standfast_says(&l, "status");
    assert!(code == 1 && table.contains("1 HELD") && table.contains("web held, "), "{table}");
    let metrics = l.get(API, "/metrics").expect("an answer").1;
    let held = format!("standfast_listener_held{{vip=\"web\",nlri=\"{VIP}\"}} 1");
    assert!(metrics.contains(&held), "{metrics}");
    until("it is let go", secs(15), || l.next_hops(VIP).is_empty());
    assert_eq!(front()["state_name"], "withdrawn");
    assert_eq!(front()["checks"][0]["last_check_detail"], "web has 0 members, and 1 are needed");

    // A session that ends is never held.
    second.send(&announcement(12));
    until("it serves again", secs(3), || l.next_hops(VIP) == set(&[12]));
    drop(second);
    let took = until("it is gone", secs(3), || l.next_hops(VIP).is_empty());
    assert!(took < Duration::from_secs(3));
}

#[test]
fn a_restart_forgets_no_order_and_empties_no_vip_that_is_held() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, p) = (lab.host("l", 1), lab.host("p", 11));
    p.run("ip address add 192.0.2.12/24 dev eth0");
    let daemon = l.spawn(standfast(&format!(
        "schema: v1\nrouter: {{ asn: 64512, router_id: 192.0.2.1, local_address: 192.0.2.1 }}\n\
         api: {{ listen: \"{API}\" }}\nlogging: {{ level: debug, timestamps: true }}\n\
         listener:\n  accept: [{{ name: members, range: 192.0.2.0/24, peer_asn: 64513, hold_time: 9s }}]\n\
         \x20 vips:\n    - {{ name: web, prefix: {VIP}, buckets: 64, floor: {{ members: 1, hold: 2m }} }}\n"
    )));
    let mut first = member(&p, 11, &l);
    let mut second = member(&p, 12, &l);
    until("both are routed to", secs(5), || l.next_hops(VIP) == set(&[11, 12]));
    first.send(&withdrawal());
    until("one is left", secs(3), || l.next_hops(VIP) == set(&[12]));
    second.send(&withdrawal());
    until("it is held", secs(3), || status(&l)["listener"]["vips"][0]["held"] == 1);
    let (code, said) = standfast_says(&l, "drain 192.0.2.13 --timeout 90s");
    assert!(code == 0 && said.contains("is it the right address?"), "{said}");
    type End = fn(&Daemon);
    let ends: [End; 2] = [Daemon::stop, |daemon| {
        // What is written soon is not written at once.
        std::thread::sleep(secs(1));
        daemon.kill();
    }];
    for end in ends {
        end(&daemon);
        daemon.start_again();
        let orders = status(&l)["listener"]["orders"].clone();
        assert_eq!(orders[0]["member"], "192.0.2.13", "{orders}");
        assert_eq!(orders[0]["timeout"], 90.0, "{orders}");
        // They come back, and have nothing to announce.
        let back: Vec<Session> = [11, 12].map(|n| connected(&p, n, &l)).into();
        until("it is held again", secs(10), || status(&l)["listener"]["vips"][0]["held"] == 1);
        // Longer than what an earlier run left would last by itself.
        let end = std::time::Instant::now() + secs(7);
        while std::time::Instant::now() < end {
            assert_eq!(l.next_hops(VIP), set(&[12]));
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let left = status(&l)["listener"]["members"][1]["vips"][0]["left"].as_f64();
        assert!(left.is_some_and(|left| left < 115.0), "the hold begins anew: {left:?}");
        drop(back);
        // Of that end both knows.
        until("their sessions are over", secs(5), || l.next_hops(VIP).is_empty());
        first = member(&p, 11, &l);
        second = member(&p, 12, &l);
        until("both are routed to", secs(5), || l.next_hops(VIP) == set(&[11, 12]));
        first.send(&withdrawal());
        until("one is left", secs(3), || l.next_hops(VIP) == set(&[12]));
        second.send(&withdrawal());
        until("it is held", secs(3), || status(&l)["listener"]["vips"][0]["held"] == 1);
    }
    // A file that cannot be read is said, and nothing else.
    daemon.stop();
    let file = daemon.config().with_file_name("192.0.2.1.json");
    std::fs::write(&file, "{").expect("the file is there");
    daemon.start_again();
    assert!(daemon.log().contains("is not what was written"), "{}", daemon.log());
    let orders = status(&l)["listener"]["orders"].clone();
    assert_eq!(orders, serde_json::json!([]));
}
