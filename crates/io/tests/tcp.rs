//! Who may connect, from how far, and with which key; each test on hosts of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod net_support;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use net_support::{Host, until};
use socket2::SockRef;
use standfast_core::node::{ConnId, Dial};
use standfast_core::plan::{Secret, Ttl};
use standfast_core::prefix::Prefix;
use standfast_io::tcp;

/// A SYN that is dropped is sent again after a second: what has not come by then will not come.
const NEVER: Duration = Duration::from_millis(1300);
const SOON: Duration = Duration::from_secs(5);

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn secret(text: &str) -> Option<Secret> {
    Some(Secret::new(text.to_owned()))
}

fn to(remote: &str) -> Dial {
    Dial {
        conn: ConnId(1),
        remote: at(remote),
        interface: None,
        local: None,
        local_port: None,
        ttl: Ttl::Multihop(64),
        internal: false,
        password: None,
        timeout: SOON,
    }
}

/// The dialled end once it is connected.
fn connected(dial: Dial, patience: Duration) -> Option<TcpStream> {
    let stream = tcp::dial(&dial).unwrap();
    until(patience, || stream.peer_addr().is_ok().then_some(()))?;
    Some(stream)
}

fn accept(listener: &TcpListener, patience: Duration) -> Option<TcpStream> {
    until(patience, || match listener.accept() {
        Ok((stream, _)) => Some(stream),
        Err(e) if e.kind() == ErrorKind::WouldBlock => None,
        Err(e) => panic!("accept: {e}"),
    })
}

/// Whether an octet gets across.
fn talks(mut from: &TcpStream, mut to: &TcpStream, patience: Duration) -> bool {
    from.write_all(b"x").unwrap();
    let mut octet = [0];
    until(patience, || match to.read(&mut octet) {
        Ok(n) => Some(n == 1),
        Err(e) if e.kind() == ErrorKind::WouldBlock => None,
        Err(e) => panic!("read: {e}"),
    }) == Some(true)
}

/// Two hosts on one cable, .1 and .2 of 192.0.2.0/24 and of 2001:db8::/64, fe80::1 and fe80::2.
fn pair(test: &str) -> Option<(Host, Host)> {
    let (a, b) = (Host::new(test)?, Host::new(test)?);
    a.cable("west", &b, "east");
    for (host, name, n) in [(&a, "west", 1), (&b, "east", 2)] {
        host.ip(&format!("addr add 192.0.2.{n}/24 dev {name}"));
        host.ip(&format!("addr add 2001:db8::{n}/64 dev {name} nodad"));
        host.ip(&format!("addr add fe80::{n}/64 dev {name} nodad"));
    }
    Some((a, b))
}

/// Whether `dial` from `b` reaches a listener at `address` of `a` where these ranges have these keys.
fn meets(a: &Host, b: &Host, address: &str, keys: &[(&str, &str)], dial: Dial, patience: Duration) -> bool {
    let keys: Vec<_> = keys.iter().map(|(range, key)| (net(range), secret(key))).collect();
    let address = at(address);
    let listener = a.run(move || tcp::listen(address).unwrap());
    for (range, key) in &keys {
        tcp::key(&listener, range, key.as_ref()).unwrap();
    }
    let Some(dialled) = b.run(move || connected(dial, patience)) else {
        assert!(accept(&listener, Duration::ZERO).is_none(), "accepted what the dialler does not have");
        return false;
    };
    let accepted = accept(&listener, SOON).unwrap();
    assert!(talks(&dialled, &accepted, SOON) && talks(&accepted, &dialled, SOON));
    true
}

#[test]
fn the_same_key_connects_for_a_host_a_range_and_everybody() {
    let Some((a, b)) = pair("the_same_key_connects") else { return };
    let v4 = ["192.0.2.2/32", "192.0.2.0/24", "192.0.2.0/30", "0.0.0.0/0"];
    let v6 = ["2001:db8::2/128", "2001:db8::/64", "2001:db8::/33", "::/0"];
    let port = 1790;
    for (i, range) in v4.into_iter().chain(v6).enumerate() {
        let ip = if range.contains(':') { "[2001:db8::1]" } else { "192.0.2.1" };
        let address = format!("{ip}:{}", port + i);
        let dial = Dial { password: secret("key"), ..to(&address) };
        assert!(meets(&a, &b, &address, &[(range, "key")], dial, SOON), "{range}");
    }
}

#[test]
fn the_longest_range_decides_which_key() {
    let Some((a, b)) = pair("the_longest_range_decides") else { return };
    let keys = [("0.0.0.0/0", "all"), ("192.0.2.2/32", "one"), ("192.0.2.0/24", "some")];
    let dial = Dial { password: secret("one"), ..to("192.0.2.1:179") };
    assert!(meets(&a, &b, "192.0.2.1:179", &keys, dial, SOON));
}

#[test]
fn a_wrong_key_never_connects() {
    let Some((a, b)) = pair("a_wrong_key") else { return };
    let dial = Dial { password: secret("wrong"), ..to("192.0.2.1:179") };
    assert!(!meets(&a, &b, "192.0.2.1:179", &[("192.0.2.0/24", "right")], dial, NEVER));
    let dial = Dial { password: secret("wrong"), ..to("[2001:db8::1]:179") };
    assert!(!meets(&a, &b, "[2001:db8::1]:179", &[("::/0", "right")], dial, NEVER));
}

#[test]
fn no_key_never_connects_where_one_is_asked_for() {
    let Some((a, b)) = pair("no_key") else { return };
    assert!(!meets(&a, &b, "192.0.2.1:179", &[("0.0.0.0/0", "key")], to("192.0.2.1:179"), NEVER));
    let dial = to("[2001:db8::1]:179");
    assert!(!meets(&a, &b, "[2001:db8::1]:179", &[("2001:db8::2/128", "key")], dial, NEVER));
}

#[test]
fn a_key_never_connects_where_none_is_set() {
    let Some((a, b)) = pair("a_key_where_none_is_set") else { return };
    let dial = Dial { password: secret("key"), ..to("192.0.2.1:179") };
    assert!(!meets(&a, &b, "192.0.2.1:179", &[("198.51.100.0/24", "key")], dial, NEVER));
}

#[test]
fn a_key_of_80_octets_connects_and_one_more_is_refused_with_its_length() {
    let Some((a, b)) = pair("a_key_of_80_octets") else { return };
    let long = "k".repeat(80);
    let dial = Dial { password: secret(&long), ..to("192.0.2.1:179") };
    assert!(meets(&a, &b, "192.0.2.1:179", &[("192.0.2.0/24", &long)], dial, SOON));
    // All of the 80 count.
    let nearly = format!("{}x", "k".repeat(79));
    let dial = Dial { password: secret(&nearly), ..to("192.0.2.1:180") };
    assert!(!meets(&a, &b, "192.0.2.1:180", &[("192.0.2.0/24", &long)], dial, NEVER));
    let dial = Dial { password: secret(&"k".repeat(81)), ..to("192.0.2.1:179") };
    let e = b.run(move || tcp::dial(&dial)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
    assert!(e.to_string().contains("81 octets"), "{e}");
    let dial = Dial { password: secret(""), ..to("192.0.2.1:179") };
    assert_eq!(b.run(move || tcp::dial(&dial)).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_key_that_is_taken_back_is_not_asked_for_and_may_be_taken_back_twice() {
    let Some((a, b)) = pair("a_key_taken_back") else { return };
    let listener = a.run(|| tcp::listen(at("192.0.2.1:179")).unwrap());
    let range = net("192.0.2.0/24");
    tcp::key(&listener, &range, secret("key").as_ref()).unwrap();
    tcp::key(&listener, &range, None).unwrap();
    tcp::key(&listener, &range, None).unwrap();
    assert!(b.run(|| connected(to("192.0.2.1:179"), SOON)).is_some());
    // A range of the other family is not this socket's business.
    tcp::key(&listener, &net("::/0"), secret("key").as_ref()).unwrap();
}

#[test]
fn a_changed_key_holds_for_new_connections_and_leaves_old_ones() {
    let Some((a, b)) = pair("a_changed_key") else { return };
    let listener = a.run(|| tcp::listen(at("192.0.2.1:179")).unwrap());
    let range = net("192.0.2.0/24");
    tcp::key(&listener, &range, secret("old").as_ref()).unwrap();
    let dial = |key| Dial { password: secret(key), ..to("192.0.2.1:179") };
    let (old, new) = (dial("old"), dial("new"));
    let first = b.run(move || connected(old, SOON)).unwrap();
    let accepted = accept(&listener, SOON).unwrap();
    tcp::key(&listener, &range, secret("new").as_ref()).unwrap();
    assert!(b.run(move || connected(new, SOON)).is_some());
    assert!(talks(&first, &accepted, SOON) && talks(&accepted, &first, SOON));
}

#[test]
fn a_link_local_peer_connects_by_its_interface_with_and_without_a_key() {
    let Some((a, b)) = pair("a_link_local_peer") else { return };
    let listener = a.run(|| tcp::listen(at("[::]:179")).unwrap());
    let dial = |password| Dial { interface: Some("east".to_owned()), password, ..to("[fe80::1]:179") };
    let bare = dial(None);
    assert!(b.run(move || connected(bare, SOON)).is_some());
    let listener = a.run(move || {
        tcp::key(&listener, &net("fe80::2/128"), secret("key").as_ref()).unwrap();
        listener
    });
    let keyed = Dial { local: Some("fe80::2".parse().unwrap()), ..dial(secret("key")) };
    assert!(b.run(move || connected(keyed, SOON)).is_some());
    let bare = Dial { local: Some("fe80::2".parse().unwrap()), ..dial(None) };
    assert!(b.run(move || connected(bare, NEVER)).is_none());
    drop(listener);
}

#[test]
fn a_link_local_peer_without_an_interface_is_refused_in_words() {
    let e = tcp::dial(&to("[fe80::1]:179")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
    assert!(e.to_string().contains("fe80::1") && e.to_string().contains("interface"), "{e}");
    let e = tcp::dial(&Dial { interface: Some("nowhere0".to_owned()), ..to("[fe80::1]:179") }).unwrap_err();
    assert!(e.to_string().contains("nowhere0"), "{e}");
}

/// What the listener's side makes of a dial: accepted and talking, refused when accepted, or never there.
fn gtsm(a: &Host, b: &Host, address: &str, others: &[Ttl], listens: Ttl, dials: Ttl) -> &'static str {
    let address_ = at(address);
    let listener = a.run(move || tcp::listen(address_).unwrap());
    let all = [&[listens], others].concat();
    tcp::reach(&listener, &all).unwrap();
    let dial = Dial { ttl: dials, ..to(address) };
    let Some(dialled) = b.run(move || connected(dial, NEVER)) else { return "never" };
    let accepted = accept(&listener, SOON).unwrap();
    match tcp::accepted(&accepted, listens, false) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            assert!(e.to_string().contains("hop limit"), "{e}");
            "refused"
        }
        Err(e) => panic!("{e}"),
        Ok(()) if talks(&dialled, &accepted, SOON) && talks(&accepted, &dialled, SOON) => "talks",
        Ok(()) => "mute",
    }
}

#[test]
fn gtsm_takes_a_neighbour_that_sends_255_and_refuses_one_that_does_not() {
    let Some((a, b)) = pair("gtsm") else { return };
    let (near, far) = (Ttl::Security(1), Ttl::Multihop(64));
    for ip in ["192.0.2.1", "[2001:db8::1]"] {
        let to = |port| format!("{ip}:{port}");
        assert_eq!(gtsm(&a, &b, &to(1), &[], near, near), "talks", "{ip}");
        assert_eq!(gtsm(&a, &b, &to(2), &[], near, far), "never", "{ip}: all are near");
        assert_eq!(gtsm(&a, &b, &to(3), &[], near, Ttl::Multihop(254)), "never", "{ip}");
        assert_eq!(gtsm(&a, &b, &to(4), &[], Ttl::Security(2), Ttl::Multihop(254)), "talks", "{ip}");
        assert_eq!(gtsm(&a, &b, &to(5), &[], far, near), "never", "{ip}: the dialler takes 255 only");
        assert_eq!(gtsm(&a, &b, &to(6), &[far], near, near), "talks", "{ip}: beside others");
        assert_eq!(gtsm(&a, &b, &to(7), &[far], near, far), "refused", "{ip}: by its SYN");
        assert_eq!(gtsm(&a, &b, &to(8), &[near], far, far), "talks", "{ip}: beside a near one");
        let farther = Ttl::Security(3);
        assert_eq!(
            gtsm(&a, &b, &to(9), &[farther], near, Ttl::Multihop(253)),
            "refused",
            "{ip}: not that far"
        );
        assert_eq!(gtsm(&a, &b, &to(10), &[farther], near, Ttl::Multihop(252)), "never", "{ip}");
    }
}

#[test]
fn an_accepted_connection_has_the_hop_limit_of_its_peer() {
    let Some((a, b)) = pair("hop_limits") else { return };
    let listener = a.run(|| tcp::listen(at("192.0.2.1:179")).unwrap());
    let listener6 = a.run(|| tcp::listen(at("[2001:db8::1]:179")).unwrap());
    for (ttl, internal, hops) in [
        (Ttl::Direct, false, 1),
        (Ttl::Direct, true, 64),
        (Ttl::Multihop(7), false, 7),
        (Ttl::Multihop(255), true, 255),
    ] {
        let dial = Dial { ttl, internal, ..to("192.0.2.1:179") };
        let dialled = b.run(move || connected(dial, SOON)).unwrap();
        let stream = accept(&listener, SOON).unwrap();
        tcp::accepted(&stream, ttl, internal).unwrap();
        for end in [&dialled, &stream] {
            assert_eq!(SockRef::from(end).ttl_v4().unwrap(), hops, "{ttl:?} {internal}");
            assert_eq!(SockRef::from(end).tos_v4().unwrap(), 0xc0);
            assert!(end.nodelay().unwrap());
        }
        assert!(talks(&dialled, &stream, SOON) && talks(&stream, &dialled, SOON));
        let dial = Dial { ttl, internal, ..to("[2001:db8::1]:179") };
        let dialled = b.run(move || connected(dial, SOON)).unwrap();
        let stream = accept(&listener6, SOON).unwrap();
        tcp::accepted(&stream, ttl, internal).unwrap();
        for end in [&dialled, &stream] {
            assert_eq!(SockRef::from(end).unicast_hops_v6().unwrap(), hops, "{ttl:?} {internal}");
            assert_eq!(SockRef::from(end).tclass_v6().unwrap(), 0xc0);
        }
    }
}

#[test]
fn a_dial_comes_from_the_address_and_port_asked_for_and_the_port_serves_two_peers() {
    let Some((a, b)) = pair("source_port") else { return };
    a.ip("addr add 192.0.2.3/24 dev west");
    b.ip("addr add 192.0.2.9/24 dev east");
    let listeners = a.run(|| ["192.0.2.1:179", "192.0.2.3:179"].map(|l| tcp::listen(at(l)).unwrap()));
    let from =
        |remote| Dial { local: Some(IpAddr::from([192, 0, 2, 9])), local_port: Some(4179), ..to(remote) };
    let (first, second) = (from("192.0.2.1:179"), from("192.0.2.3:179"));
    let streams = b.run(move || [first, second].map(|d| connected(d, SOON).unwrap()));
    for (listener, stream) in listeners.iter().zip(&streams) {
        let accepted = accept(listener, SOON).unwrap();
        assert_eq!(accepted.peer_addr().unwrap(), at("192.0.2.9:4179"));
        assert_eq!(stream.local_addr().unwrap(), at("192.0.2.9:4179"));
    }
    let only_port = Dial { local_port: Some(4180), ..to("192.0.2.1:179") };
    let stream = b.run(move || connected(only_port, SOON)).unwrap();
    assert_eq!(stream.local_addr().unwrap().port(), 4180);
}

#[test]
fn a_source_that_is_not_here_is_refused_by_name() {
    let Some(host) = Host::new("a_source_that_is_not_here") else { return };
    let dial = Dial { local: Some(IpAddr::from([203, 0, 113, 9])), ..to("127.0.0.1:179") };
    let e = host.run(move || tcp::dial(&dial)).unwrap_err();
    assert!(e.to_string().contains("203.0.113.9"), "{e}");
    let dial = Dial { local: Some("::1".parse().unwrap()), ..to("127.0.0.1:179") };
    let e = host.run(move || tcp::dial(&dial)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
    assert!(e.to_string().contains("famil"), "{e}");
}

#[test]
fn a_listener_may_come_before_its_address_and_both_families_share_a_port() {
    let Some(host) = Host::new("a_listener_before_its_address") else { return };
    let listener = host.run(|| tcp::listen(at("198.51.100.1:179")).unwrap());
    let _six = host.run(|| tcp::listen(at("[2001:db8::1]:179")).unwrap());
    let _all = host.run(|| [tcp::listen(at("0.0.0.0:180")).unwrap(), tcp::listen(at("[::]:180")).unwrap()]);
    host.ip("addr add 198.51.100.1/32 dev lo");
    assert!(host.run(|| connected(to("198.51.100.1:179"), SOON)).is_some());
    assert!(accept(&listener, SOON).is_some());
    let e = host.run(|| tcp::listen(at("198.51.100.1:179"))).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AddrInUse);
    assert!(e.to_string().contains("198.51.100.1:179"), "{e}");
}
