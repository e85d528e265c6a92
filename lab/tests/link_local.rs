//! Members that are known by their link-local addresses: one interface each, whatever the address.
//!
//! The listener is `l` (AS 64512); members dial it from AS 64513.

use std::net::Ipv6Addr;

use serde_json::Value;
use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const VIP6: &str = "2001:db8:100::10/128";
const L: u32 = 64512;
const G: u32 = 64513;

fn members(l: &Host) -> Vec<Value> {
    l.status()["listener"]["members"].as_array().expect("members").clone()
}

#[test]
fn link_local_members_are_known_by_their_interface() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, a, b) = (lab.host("l", 1), lab.host("a", 11), lab.host("b", 12));
    lab.link((&l, "d0", "fe80::1/64"), (&a, "far", "fe80::11/64"));
    lab.link((&l, "d1", "fe80::1/64"), (&b, "far", "fe80::11/64"));
    let on = |interface: &str| {
        format!(
            "name: {interface}, range: \"fe80::/10\", interface: {interface}, peer_asn: {G}, auth_password: k1, ttl_security: true"
        )
    };
    let daemon = l.spawn(accepting(&l, &[&on("d0"), &on("d1")]));
    let routes = || l.run(&format!("ip -6 route show exact {VIP6}; ip -4 route show exact {VIP}"));
    let over = |interface: &str| {
        let route = format!("via fe80::11 dev {interface}");
        l.run(&format!("ip -6 route show exact {VIP6}")).contains(&route)
    };
    // The same address at the end of two cables is two members, in the words of another daemon.
    let config = |key: &str| {
        bird_raw(&format!(
            "router id 192.0.2.11;\nprotocol device {{}}\n\
             protocol static {{ ipv6; route {VIP6} blackhole; }}\nprotocol static {{ ipv4; route {VIP} blackhole; }}\n\
             protocol bgp l {{ local fe80::11 as {G}; neighbor fe80::1 % 'far' as {L}; hold time 9; connect retry time 1;\n\
             error wait time 1,1; ttl security on; {key}\n ipv6 {{ import none; export all; }};\n\
             ipv4 {{ import none; export all; extended next hop on; }}; }}\n"
        ))
    };
    let key = "password \"k1\";";
    let left = a.spawn(config(key));
    until("over the first", secs(15), || over("d0") && !over("d1"));
    b.spawn(config(key));
    until("over both", secs(15), || over("d0") && over("d1"));
    println!("{}", routes());
    let v4 = || l.run(&format!("ip -4 route show exact {VIP}"));
    until("the IPv4 VIP too", secs(5), || {
        v4().contains("inet6 fe80::11 dev d0") && v4().contains("inet6 fe80::11 dev d1")
    });
    let both = members(&l);
    let names: Vec<_> = both.iter().map(|m| (m["address"].clone(), m["interface"].clone())).collect();
    assert_eq!(names, [("fe80::11".into(), "d0".into()), ("fe80::11".into(), "d1".into())]);
    left.kill();
    until("over the second alone", secs(3), || !over("d0") && over("d1"));
    // Who has another key, or none, or comes by an interface that no range names, stays outside.
    let none = a.spawn(config(""));
    while_holds("not without the key", secs(4), || !over("d0"));
    none.kill();
    let address = |last: u16| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last);
    l.run("ip address add fe80::1/64 dev eth0 nodad");
    a.run("ip address add fe80::11/64 dev eth0 nodad");
    let refused = Session::dial_link_local(&a, "eth0", address(0x11), address(1));
    assert!(refused.is_err(), "without the key no connection opens, on no interface");
    assert!(daemon.process().alive());
}

#[test]
fn a_link_local_member_has_its_link_local_next_hop_whatever_else_it_says() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, a, b) = (lab.host("l", 1), lab.host("a", 11), lab.host("b", 12));
    lab.link((&l, "d0", "fe80::1/64"), (&a, "far", "fe80::11/64"));
    lab.link((&l, "d1", "fe80::1/64"), (&b, "far", "fe80::11/64"));
    l.run("ip -6 address add 2001:db8:d::1/64 dev d0 nodad; ip -6 address add 2001:db8:e::1/64 dev d1 nodad");
    let range = format!("name: wire, range: \"fe80::/10\", interface: d0, peer_asn: {G}, vips: [web6]");
    l.spawn(accepting(&l, &[&range]));
    let address = |last: u16| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last);
    let mut session = Session::dial_link_local(&a, "far", address(0x11), address(1)).expect("a connection");
    session.establish(&OpenBytes::new(G, a.v4));
    let route = || l.run(&format!("ip -6 route show exact {VIP6}"));
    let v6 = |text: &str| text.parse::<Ipv6Addr>().expect("an address").octets();
    let two = [v6("2001:db8:d::11"), v6("fe80::11")].concat();
    for (next_hop, wanted) in [
        (&v6("fe80::11")[..], Some("via fe80::11 dev d0")),
        (&v6("fe80::12")[..], None),
        (&two[..], Some("via fe80::11 dev d0")),
        (&v6("2001:db8:e::11")[..], None),
        (&v6("2001:db8:d::11")[..], Some("via 2001:db8:d::11 dev d0")),
        (&v6("2001:db8:d::1")[..], None),
    ] {
        session.send(&announce_via(VIP6, next_hop, G));
        until(&format!("{next_hop:x?}"), secs(3), || match wanted {
            Some(wanted) => route().contains(wanted),
            None => route().is_empty(),
        });
    }
    // On the other cable nobody is expected: what comes is closed, and the next one is not kept waiting by it.
    let mut other = Session::dial_link_local(&b, "far", address(0x11), address(1)).expect("a connection");
    other.send(&OpenBytes::new(G, b.v4).message().bytes);
    let answer = other.drain(secs(1));
    assert!(answer.iter().all(|m| m.kind() != MessageKind::Open), "{answer:?}");
    session.send(&announce_via(VIP6, &v6("fe80::11"), G));
    until("routed again", secs(3), || route().contains("via fe80::11 dev d0"));
    drop(session);
    until("gone with its session", secs(3), || route().is_empty());
}

#[test]
fn a_range_whose_interface_comes_later_under_another_name_or_anew_takes_its_members() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, a) = (lab.host("l", 1), lab.host("a", 11));
    let range = format!("name: wire, range: \"fe80::/10\", interface: d0, peer_asn: {G}, auth_password: k1");
    let daemon = l.spawn(accepting(&l, &[&range]));
    let start = || {
        lab.link((&l, "raw0", "fe80::1/64"), (&a, "far", "fe80::11/64"));
        // As udev does: down, renamed, up.
        l.run("ip link set raw0 down; ip link set raw0 name d0; ip link set d0 up; ip address replace fe80::1/64 dev d0 nodad");
    };
    let routed = || l.run(&format!("ip -6 route show exact {VIP6}")).contains("via fe80::11 dev d0");
    while_holds("it waits for its interface", secs(1), || daemon.process().alive() && members(&l).is_empty());
    start();
    let bird = a.spawn(bird_raw(&format!(
        "router id 192.0.2.11;\nprotocol device {{ scan time 1; }}\nprotocol static {{ ipv6; route {VIP6} blackhole; }}\n\
         protocol bgp l {{ local fe80::11 as {G}; neighbor fe80::1 % 'far' as {L}; hold time 9; connect retry time 1;\n\
         connect delay time 1; error wait time 1,1; password \"k1\"; ipv6 {{ import none; export all; }}; }}\n"
    )));
    until("its first member", secs(15), routed);
    for round in 0..2 {
        l.run("ip link del d0");
        until("no route over what is not there", secs(12), || !routed());
        start();
        let took = until("its member is back", secs(20), routed);
        println!("round {round}: back {took:.1?} after the interface");
    }
    assert!(bird.process().alive());
}
