#![allow(clippy::unwrap_used)]
use super::*;
use crate::{Announcer, StartError};

fn good() -> Builder {
    Announcer::builder()
        .asn(64513)
        .router_id([192, 0, 2, 11].into())
        .peer(Peer::new("192.0.2.1", 64512).name("front"))
        .vip(Vip::new("web").prefix("198.51.100.10/32"))
}

/// What is wrong, one line each.
fn wrong(builder: Builder) -> Vec<String> {
    plan(&builder).err().unwrap_or_default().iter().map(ToString::to_string).collect()
}

#[track_caller]
fn one(builder: Builder, words: &str) {
    let wrong = wrong(builder);
    assert!(wrong.len() == 1 && wrong[0].contains(words), "{words:?} is not what is told: {wrong:#?}");
}

#[test]
fn what_is_written_down_is_what_is_run() {
    let builder = good()
        .local_address([192, 0, 2, 11])
        .peer(Peer::new("192.0.2.2", 64513).hold_time(SECOND * 30).ttl_security(1).password("key"))
        .vip(
            Vip::new("dns")
                .prefix(Ipv4Addr::new(198, 51, 100, 53))
                .community("64513:100")
                .large_community("64513:1:100")
                .prepend(2)
                .med(5)
                .bandwidth(125_000_000),
        );
    let (plan, lease) = plan(&builder).unwrap();
    assert_eq!(lease, None);
    let dns = &plan.vips["dns"];
    assert_eq!(dns.prefixes, ["198.51.100.53/32".parse::<Prefix>().unwrap()]);
    assert_eq!(dns.announce.communities, [64513 << 16 | 100].into());
    assert_eq!(dns.announce.large_communities, [(64513, 1, 100)].into());
    assert_eq!((dns.announce.as_path_prepend, dns.announce.med), (2, Some(5)));
    let n = 125e6f32.to_be_bytes();
    assert_eq!(dns.announce.extended_communities, [[0x40, 4, 0xfc, 1, n[0], n[1], n[2], n[3]]].into());
    assert_eq!(dns.drain.mode, plan::DrainMode::GracefulShutdown);
    let check = &plan.checks[&CheckId::new("dns", SERVICE)];
    assert_eq!((check.rise, check.fall, check.interval), (5, 1, Duration::ZERO));
    assert_eq!(plan.bgp.peers["front"].timers.hold, SECOND * 9);
    let other = &plan.bgp.peers["192.0.2.2"];
    assert_eq!((other.ttl, other.timers.hold), (Ttl::Security(1), SECOND * 30));
}

#[test]
fn a_closure_brings_a_lease_of_three_intervals() {
    let (_, lease) = plan(&good().healthy(|| true)).unwrap();
    assert_eq!(lease, Some(SECOND * 3));
    let (_, lease) = plan(&good().healthy(|| true).lease(SECOND * 10)).unwrap();
    assert_eq!(lease, Some(SECOND * 10));
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let error = Announcer::builder()
        .asn(0)
        .rise(0)
        .peer(Peer::new("front.example", 64512))
        .vip(Vip::new("web").prefix("198.51.100.10/24").community("1:2:3"))
        .start()
        .err()
        .unwrap();
    let StartError::Invalid(problems) = &error else { panic!("{error}") };
    assert_eq!(problems.len(), 6, "{error}");
    let text = error.to_string();
    for words in [
        "announcer: a rise of 0",
        "announcer: 0 cannot be an AS number",
        "announcer: there is no router id",
        "peer front.example: `front.example` is not an IP address: write it like 192.0.2.1",
        "vip web: `198.51.100.10/24`: host bits are set; write the network 198.51.100.0/24",
        "vip web: `1:2:3` is a large community: add it with `large_community`",
    ] {
        assert!(text.contains(words), "{words:?} is missing in\n{text}");
    }
}

#[test]
fn each_mistake_has_its_words() {
    assert_eq!(wrong(good()), [""; 0]);
    let peer = |address: &str| Peer::new(address, 64512);
    let vip = |prefix: &str| Vip::new("other").prefix(prefix);
    let front = || good().peer(peer("192.0.2.2"));
    assert_eq!(wrong(front()), [""; 0]);

    one(good().peer(peer("192.0.2.1")), "another peer has this address");
    one(good().peer(peer("192.0.2.2").name("front")), "two of this name");
    one(good().peer(peer("192.0.2.2").name("")), "is not a name");
    one(good().peer(peer("224.0.0.5")), "not the address of a router");
    one(good().peer(peer("192.0.2.2").port(0)), "port 0");
    one(good().peer(Peer::new("192.0.2.2", 0)), "cannot be an AS number");
    one(good().peer(Peer::new("192.0.2.2", 23456)), "cannot be an AS number");
    for hold in [SECOND, SECOND * 65536, Duration::from_millis(3500), Duration::MAX] {
        one(good().peer(peer("192.0.2.2").hold_time(hold)), "a hold time of");
    }
    one(good().peer(peer("192.0.2.2").multihop(1)), "multihop with TTL 1");
    one(good().peer(peer("192.0.2.2").ttl_security(0)), "ttl_security of 0 hops");
    one(good().peer(peer("192.0.2.2").ttl_security(1).multihop(2)), "exclude each other");
    one(good().peer(peer("192.0.2.2").password("")), "a password of 0 octets");
    one(good().peer(peer("192.0.2.2").password("x".repeat(81))), "a password of 81 octets");
    one(good().peer(peer("192.0.2.2").bfd(SECOND * 60, 3)), "a BFD interval of 60s");
    one(good().peer(peer("192.0.2.2").bfd(SECOND, 1)), "a BFD multiplier of 1");
    one(good().peer(peer("192.0.2.2").interface("eth0")), "not link-local");
    one(good().peer(peer("fe80::1")).local_address([192, 0, 2, 11]), "needs its interface");

    one(good().vip(vip("198.51.100.10/32")), "is also of vip");
    one(good().vip(vip("198.51.100.0/24")), "overlap");
    one(good().vip(vip("198.51.100.11").prefix("198.51.100.11/32")), "is there twice");
    one(good().vip(vip("198.51.100.0/33")), "the prefix length is over 32");
    one(good().vip(vip("web")), "not a prefix");
    one(good().vip(vip("127.0.0.1")), "cannot be announced");
    one(good().vip(Vip::new("none")), "has no prefix");
    one(good().vip(Vip::new("web").prefix("198.51.100.11")), "two of this name");
    one(good().vip(vip("198.51.100.11").prepend(65)), "65 prepends");
    one(good().vip(vip("198.51.100.11").community("65536:1")), "not a community");
    one(good().vip(vip("198.51.100.11").large_community("1:2")), "not a large community");
    one(good().vip(vip("198.51.100.11").bandwidth(0)), "a bandwidth of 0");
    one(good().vip(vip("192.0.2.1")), "its address is vip other");
    one(good().vip(vip("2001:db8::10")), "no next hop on a session over IPv4");
    one(good().vip(vip("192.0.2.11")).local_address([192, 0, 2, 11]), "which comes and goes");

    one(good().local_address([0, 0, 0, 0]), "not an address of a host");
    one(good().local_address([192, 0, 2, 11]).local_address([192, 0, 2, 12]), "two IPv4 local addresses");
    one(good().local_address([127, 0, 0, 1]), "cannot reach the local address");
    one(good().local_address([192, 0, 2, 1]), "its address is our own");
    one(good().router_id([0, 0, 0, 0].into()), "the router id 0.0.0.0");
    one(good().fall(0), "a fall of 0");
    one(good().interval(Duration::ZERO), "an interval of 0ns");
    one(good().interval(Duration::MAX).healthy(|| true), "an interval of");
    one(good().lease(Duration::from_millis(1)), "a lease of 1ms");
    one(good().lease(Duration::MAX), "a lease of");
    one(good().lease(SECOND).healthy(|| true), "before the closure is asked twice");
}
