//! The Adj-RIB-Out at size: windows, message limits, slow readers. RFC 4271 §4 (4096 octets), RFC 9687.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use standfast_core::Prefix;
use standfast_core::bgp::Rib;
use standfast_core::bgp::session::{PeerConfig, WINDOW};
use standfast_core::machine::Rng;
use standfast_core::plan::Attributes;

use crate::bench::octets::{Table, keepalive};
use crate::bench::peer::*;

fn v4(i: u32) -> Prefix {
    Prefix::host(IpAddr::V4(Ipv4Addr::from_bits(0xc633_0000 + i)))
}

fn v6(i: u32) -> Prefix {
    Prefix::host(IpAddr::V6(Ipv6Addr::from_bits(0x2001_0db8_0100_0000_0000_0000_0000_0000 + u128::from(i))))
}

/// 1,500 IPv4 and 500 IPv6 VIPs with 32 communities each.
fn many(prepend: u8) -> Rib {
    let attributes = |i: u32| Attributes {
        as_path_prepend: prepend,
        communities: (0..32).map(|c| 0xfc01_0000 + c + i % 7).collect(),
        ..plain()
    };
    (0..1500).map(|i| (v4(i), attributes(i))).chain((0..500).map(|i| (v6(i), attributes(i)))).collect()
}

/// Few routes that share nothing, so that they fill the window all the same.
fn wide(n: u64, prepend: u64) -> Rib {
    let communities = |i: u32| (0..150).map(|c| i << 16 | c).collect();
    let attributes =
        |i| Attributes { as_path_prepend: prepend as u8, communities: communities(i), ..plain() };
    (0..n as u32).map(|i| (if i % 4 == 0 { v6(i) } else { v4(i) }, attributes(i))).collect()
}

fn agrees(table: &Table, rib: &Rib) {
    assert_eq!(table.prefixes(), rib.keys().copied().collect::<Vec<_>>());
    for (prefix, attributes) in rib {
        let route = &table.0[prefix];
        let communities: Vec<u8> = attributes.communities.iter().flat_map(|c| c.to_be_bytes()).collect();
        assert_eq!(route.attributes.get(&8).cloned().unwrap_or_default(), communities, "{prefix}");
        assert_eq!(route.attributes[&2].len(), 2 + 4 * (1 + usize::from(attributes.as_path_prepend)));
    }
}

#[test]
fn two_thousand_vips_go_up_down_and_up_in_messages_of_at_most_4096_octets() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    let mut table = Table::default();
    for rib in [many(0), Rib::new(), many(0), many(3), many(0), Rib::new()] {
        bench.advertise(rib.clone());
        bench.tell(conn, &mut table);
        agrees(&table, &rib);
        assert!(!bench.session.pending());
        assert_eq!(bench.session.status().told.len(), rib.len());
    }
}

#[test]
fn routes_with_equal_attributes_share_messages() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    bench.advertise((0..1500).map(|i| (v4(i), plain())).collect());
    let updates = bench.updates(conn);
    assert!(updates.len() <= 3, "{} messages for 1500 equal routes", updates.len());
    bench.advertise(Rib::new());
    assert!(bench.updates(conn).len() <= 2);
}

#[test]
fn what_a_slow_reader_gets_in_the_end_is_what_is_wanted() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let (mut bench, conn) = Bench::up(config(), &their_open());
        bench.reading = false;
        let mut table = Table::default();
        let mut rib = Rib::new();
        for _ in 0..20 {
            match rng.below(4) {
                0 => rib = wide(1 + rng.below(200), rng.below(3)),
                1 => rib = Rib::new(),
                2 => {
                    let keep = rng.below(200) as usize;
                    rib = rib.into_iter().skip(keep / 4).take(keep).collect();
                }
                _ => {
                    bench.receive(conn, &crate::bench::octets::message(5, &[0, 1 + rng.below(2) as u8, 0, 1]))
                }
            }
            bench.advertise(rib.clone());
            bench.now = bench.now + std::time::Duration::from_millis(rng.below(1500));
            bench.receive(conn, &keepalive());
            let queued = bench.queued[&conn];
            assert!(queued <= WINDOW + 4096, "{queued} octets queued");
            bench.written(conn, queued - rng.below(queued as u64 + 1) as usize);
            bench.tick();
        }
        // A refresh may still wait for its pause, so the peer reads all there is twice.
        for _ in 0..2 {
            bench.run(secs(2));
            for _ in 0..100 {
                bench.written(conn, 0);
            }
        }
        bench.tell(conn, &mut table);
        assert!(!bench.session.pending(), "seed {seed}");
        agrees(&table, &rib);
    }
}

#[test]
fn a_peer_that_never_reads_costs_a_bounded_queue() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    bench.reading = false;
    let before = bench.queued[&conn];
    for n in 0..30 {
        bench.advertise(many(n as u8 % 3));
        bench.receive(conn, &keepalive());
    }
    let queued = bench.queued[&conn] - before;
    assert!(queued <= WINDOW + 4096, "{queued} octets queued for a peer that reads nothing");
    assert!(bench.session.pending());
}

#[test]
fn pending_is_told_apart_from_told() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    bench.reading = false;
    bench.advertise(rib([("198.51.100.10/32", plain())]));
    assert!(bench.session.pending() && bench.session.told(&p("198.51.100.10/32")));
    bench.written(conn, 0);
    assert!(!bench.session.pending() && bench.session.told(&p("198.51.100.10/32")));
    bench.advertise(Rib::new());
    assert!(bench.session.pending(), "the withdrawal is not on the wire yet");
    bench.written(conn, 0);
    assert!(!bench.session.pending() && !bench.session.told(&p("198.51.100.10/32")));
}

#[test]
fn attributes_that_fit_no_message_are_held_with_the_reason_and_the_old_route_leaves() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    let vip = "198.51.100.10/32";
    let mut table = Table::default();
    bench.advertise(rib([(vip, plain())]));
    bench.tell(conn, &mut table);
    let huge = Attributes { communities: (0..2000).collect(), ..plain() };
    bench.advertise(rib([(vip, huge.clone()), ("198.51.100.11/32", plain())]));
    bench.tell(conn, &mut table);
    assert_eq!(
        table.prefixes(),
        [p("198.51.100.11/32")],
        "the peer keeps a route that is not wanted any more"
    );
    assert!(bench.session.status().held.contains_key(&p(vip)), "nothing says why");
    assert!(!bench.session.pending(), "pending for ever");
    bench.advertise(rib([(vip, plain())]));
    bench.tell(conn, &mut table);
    assert_eq!(table.prefixes(), [p(vip)]);
}

#[test]
fn rfc9687_a_peer_that_takes_nothing_is_left_without_another_octet() {
    let mut config: PeerConfig = config();
    config.timers.send_hold = secs(60);
    let (mut bench, conn) = Bench::up(config, &their_open());
    bench.reading = false;
    bench.queued.insert(conn, 0);
    bench.written(conn, 0);
    bench.advertise(rib([("198.51.100.10/32", plain())]));
    let sent = bench.sent[&conn].len();
    let start = bench.now;
    while !bench.is_closed(conn) && bench.now < start + secs(200) {
        bench.run(secs(1));
        bench.receive(conn, &keepalive());
    }
    let took = bench.now.since(start);
    assert!(bench.is_closed(conn) && (60..=61).contains(&took.as_secs()), "{took:?}");
    assert_eq!(bench.sent[&conn].len(), sent, "octets were added to a message that may be half out");
    assert_eq!(bench.downs, 1);
    assert!(bench.notes.iter().any(|(_, n)| n.contains("took nothing")), "{:?}", bench.notes);
}

#[test]
fn rfc9687_a_peer_that_takes_a_little_now_and_then_is_kept() {
    let mut config: PeerConfig = config();
    config.timers.send_hold = secs(60);
    let (mut bench, conn) = Bench::up(config, &their_open());
    bench.reading = false;
    bench.advertise(many(0));
    for _ in 0..20 {
        bench.run_alive(conn, secs(30));
        let left = bench.queued[&conn] - 100;
        bench.written(conn, left);
        assert!(!bench.is_closed(conn));
    }
}
