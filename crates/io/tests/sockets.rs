//! Connections counted by the kernel's own word, on hosts of their own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod net_support;

use std::io::Read;
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use net_support::{Host, until};
use standfast_core::prefix::Prefix;
use standfast_io::netlink::{Sockets, Tracked};

const SOON: Duration = Duration::from_secs(5);

fn net(text: &str) -> Prefix {
    text.parse().unwrap()
}

/// A server with two VIPs and a client of both, on one cable.
fn scene(test: &str) -> Option<(Host, Host)> {
    let (server, client) = (Host::new(test)?, Host::new(test)?);
    server.cable("eth0", &client, "eth0");
    for (host, number) in [(&server, 1), (&client, 2)] {
        host.ip(&format!("addr add 192.0.2.{number}/24 dev eth0"));
        host.ip(&format!("addr add 2001:db8:1::{number}/64 dev eth0 nodad"));
    }
    server.ip("addr add 198.51.100.10/32 dev lo");
    server.ip("addr add 198.51.100.11/32 dev lo");
    server.ip("addr add 2001:db8:100::10/128 dev lo nodad");
    client.ip("route add 198.51.100.0/24 via 192.0.2.1");
    client.ip("-6 route add 2001:db8:100::/64 via 2001:db8:1::1");
    Some((server, client))
}

/// Connections of `client` to `address`, with the ends that the server has of them.
fn connections(
    server: &TcpListener,
    client: &Host,
    address: &str,
    count: usize,
) -> Vec<(TcpStream, TcpStream)> {
    let at = (address.parse::<IpAddr>().unwrap(), server.local_addr().unwrap().port());
    (0..count)
        .map(|_| {
            let near = client.run(move || TcpStream::connect(at).unwrap());
            (near, server.accept().unwrap().0)
        })
        .collect()
}

#[test]
fn connections_are_counted_by_address_in_both_families_and_in_ipv6_dress() {
    let Some((server, client)) = scene("connections_are_counted") else { return };
    let both = server.run(|| TcpListener::bind("[::]:0").unwrap());
    let four = server.run(|| TcpListener::bind("0.0.0.0:0").unwrap());
    let mut sockets = server.run(|| Sockets::new().unwrap());
    let (web, web6, all) =
        ([net("198.51.100.10/32")], [net("2001:db8:100::10/128")], [net("198.51.100.0/24")]);
    let mut count = || {
        let first = sockets.connections(&[&web, &web6]).unwrap();
        let whole = sockets.connections(&[&all]).unwrap();
        (first[0], first[1], whole[0])
    };
    assert_eq!(count(), (0, 0, 0), "who waits for connections has none");
    let dressed = connections(&both, &client, "198.51.100.10", 3);
    let plain = connections(&four, &client, "198.51.100.10", 4);
    let six = connections(&both, &client, "2001:db8:100::10", 2);
    let other = connections(&four, &client, "198.51.100.11", 5);
    let elsewhere = connections(&four, &client, "192.0.2.1", 6);
    assert_eq!(count(), (7, 2, 12));
    // What this host has with itself is nobody's whom a route could move.
    let own = connections(&four, &server, "198.51.100.10", 8);
    assert_eq!(count(), (7, 2, 12));
    // One whose client has said its last word still waits for the answer.
    plain[0].0.shutdown(Shutdown::Write).unwrap();
    assert!(
        until(SOON, || (plain[0].1.try_clone().unwrap().read(&mut [0]).unwrap() == 0).then_some(()))
            .is_some()
    );
    assert_eq!(count(), (7, 2, 12));
    drop((dressed, plain));
    assert!(until(SOON, || (count() == (0, 2, 5)).then_some(())).is_some(), "{:?}", count());
    drop((six, other, elsewhere, own));
    assert!(until(SOON, || (count() == (0, 0, 0)).then_some(())).is_some(), "{:?}", count());
}

#[test]
fn thousands_are_counted_in_a_moment() {
    let Some((server, client)) = scene("thousands_are_counted") else { return };
    net_support::many_files();
    let listener = server.run(|| TcpListener::bind("[::]:0").unwrap());
    let mut sockets = server.run(|| Sockets::new().unwrap());
    let all = connections(&listener, &client, "198.51.100.10", 4000);
    let web = [net("198.51.100.10/32")];
    let start = Instant::now();
    assert_eq!(sockets.connections(&[&web]).unwrap(), [4000]);
    let took = start.elapsed();
    eprintln!("4000 connections counted in {took:?}");
    assert!(took < SOON, "{took:?}");
    drop(all);
}

#[test]
fn what_is_tracked_is_counted_by_whom_the_client_asked_and_who_answers() {
    let Some((server, client)) = scene("what_is_tracked") else { return };
    // A rule that looks at the state switches the tracking on, and one translates an address to the VIP.
    let rules = "table inet t { chain i { type filter hook input priority 0; ct state established accept; } \
        chain p { type nat hook prerouting priority -100; ip daddr 198.51.100.99 dnat ip to 198.51.100.10; } }";
    let done = server.run(move || std::process::Command::new("nft").arg(rules).status());
    if !done.is_ok_and(|status| status.success()) {
        eprintln!("SKIP what_is_tracked: no nft, or no connection tracking");
        return;
    }
    let listener = server.run(|| TcpListener::bind("[::]:0").unwrap());
    let mut tracked = server.run(|| Tracked::new().unwrap());
    let (web, web6) = ([net("198.51.100.10/32")], [net("2001:db8:100::10/128")]);
    let mut count = || tracked.connections(&[&web, &web6]).unwrap();
    assert_eq!(count(), [0, 0]);
    let asked = connections(&listener, &client, "198.51.100.10", 3);
    let translated = connections(&listener, &client, "198.51.100.99", 4);
    let six = connections(&listener, &client, "2001:db8:100::10", 2);
    let other = connections(&listener, &client, "198.51.100.11", 5);
    assert_eq!(count(), [7, 2]);
    drop((asked, six, other));
    assert!(until(SOON, || (count() == [4, 0]).then_some(())).is_some(), "{:?}", count());
    drop(translated);
}
