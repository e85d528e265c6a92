//! UPDATEs both ways: RFC 4271 §5 and §6.3, RFC 6793, 4760, 7606, 2918.

use std::net::Ipv4Addr;

use standfast_core::bgp::session::{PeerConfig, SessionInput};
use standfast_core::bgp::{State, Update};
use standfast_core::plan::{Attributes, PeerAsn};

use crate::bench::octets::{self, hex, keepalive, update};
use crate::bench::peer::*;

const VIP: &str = "198.51.100.10/32";
const VIP6: &str = "2001:db8:100::10/128";

fn listener() -> PeerConfig {
    PeerConfig {
        local_asn: 64512,
        router_id: Ipv4Addr::new(192, 0, 2, 1),
        asn: PeerAsn::Number(64513),
        learn: true,
        ..config()
    }
}

/// A session of AS 64512 that learns from a modern member of AS 64513.
fn learning() -> (Bench, standfast_core::node::ConnId) {
    let caps = [octets::cap_mp(1), octets::cap_mp(2), octets::cap_refresh(), octets::cap_as4(64513)];
    Bench::up(listener(), &octets::open(64513, 9, [192, 0, 2, 11], &caps))
}

fn two_octet(local_asn: u32) -> (Bench, standfast_core::node::ConnId) {
    Bench::up(PeerConfig { local_asn, ..config() }, &octets::bare_open(THEM, 9, THEIR_ID))
}

#[test]
fn rfc6793_s4_2_3_as4_path_from_a_two_octet_peer_is_merged_and_harmless() {
    let mut bench = Bench::new(listener());
    let conn = bench.establish(&hex("M 001d 01 04fc010009c000020b00"));
    bench.receive(
        conn,
        &hex("M 003d 02 0000 0021 40010100 40020602 02fc015ba0 400304c000020b \
              c0110a0202 0000fc01fa56ea0c 20c633640a"),
    );
    assert_eq!(bench.session.state(), State::Established);
    let [Update { announced, withdrawn, malformed, .. }] = &bench.learned[..] else { panic!() };
    assert_eq!(announced[0].0, p(VIP));
    assert_eq!(announced[0].1.next_hop, ip("192.0.2.11"));
    assert_eq!(announced[0].1.as_path, [64513, 4_200_000_012]);
    assert!(withdrawn.is_empty() && malformed.is_none());
}

#[test]
fn rfc6793_s4_2_2_a_two_octet_peer_gets_two_octets() {
    let (mut bench, conn) = two_octet(64513);
    bench.advertise(rib([(VIP, plain())]));
    let [u] = &bench.updates(conn)[..] else { panic!() };
    assert_eq!(u.value(2), Some(&hex("02 01 fc01")[..]));
    assert_eq!(u.value(17), None, "AS4_PATH without need");
}

#[test]
fn rfc6793_s4_2_2_a_number_that_does_not_fit_goes_into_as4_path() {
    let (mut bench, conn) = two_octet(4_200_000_011);
    bench.advertise(rib([(VIP, plain())]));
    let raw = bench.sent[&conn].clone();
    let [u] = &bench.updates(conn)[..] else { panic!() };
    assert_eq!(u.value(2), Some(&hex("02 01 5ba0")[..]));
    assert_eq!(u.value(17), Some(&hex("02 01 fa56ea0b")[..]));
    let exact = hex("c0 11 06 02 01 fa56ea0b");
    assert!(raw.windows(exact.len()).any(|w| w == exact));
    bench.advertise(rib([(VIP, prepended(2))]));
    let [u] = &bench.updates(conn)[..] else { panic!() };
    assert_eq!(u.path(2, 2), [23456; 3]);
    assert_eq!(u.path(17, 4), [4_200_000_011; 3]);
}

#[test]
fn rfc6793_a_four_octet_peer_gets_four_octets_and_no_as4_path() {
    let (mut bench, conn) = Bench::up(PeerConfig { local_asn: 4_200_000_011, ..config() }, &their_open());
    bench.advertise(rib([(VIP, plain())]));
    let [u] = &bench.updates(conn)[..] else { panic!() };
    assert_eq!(u.value(2), Some(&hex("02 01 fa56ea0b")[..]));
    assert_eq!(u.value(17), None);
}

#[test]
fn a_prepend_of_n_shows_n_and_one_entries() {
    for (n, entries) in [(0, 1), (1, 2), (6, 7), (64, 65), (128, 129), (254, 255), (255, 256)] {
        for (open, octets) in [(their_open(), 4), (octets::bare_open(THEM, 9, THEIR_ID), 2)] {
            let (mut bench, conn) = Bench::up(config(), &open);
            bench.advertise(rib([(VIP, prepended(n))]));
            let [u] = &bench.updates(conn)[..] else { panic!("prepend {n}") };
            assert_eq!(u.path(2, octets), vec![64513; entries], "prepend {n}");
        }
    }
}

#[test]
fn rfc4271_s5_1_5_inside_the_as_there_is_local_pref_and_no_prepend() {
    let config = || PeerConfig { asn: PeerAsn::Internal, ..config() };
    let open = octets::open(64513, 9, THEIR_ID, &[octets::cap_mp(1), octets::cap_as4(64513)]);
    let (mut bench, conn) = Bench::up(config(), &open);
    bench.advertise(rib([(VIP, prepended(3))]));
    let [u] = &bench.updates(conn)[..] else { panic!() };
    assert_eq!(u.value(2), Some(&[][..]));
    assert_eq!(u.value(5), Some(&[0, 0, 0, 100][..]));
    bench.advertise(rib([(VIP, Attributes { local_pref: Some(50), ..plain() })]));
    let [u] = &bench.updates(conn)[..] else { panic!() };
    assert_eq!(u.value(5), Some(&[0, 0, 0, 50][..]));
}

#[test]
fn rfc4271_s5_1_5_local_pref_is_never_told_outside_the_as() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    bench.advertise(rib([(VIP, Attributes { local_pref: Some(50), med: Some(7), ..plain() })]));
    let [u] = &bench.updates(conn)[..] else { panic!() };
    assert_eq!(u.value(5), None);
    assert_eq!(u.value(4), Some(&[0, 0, 0, 7][..]));
}

#[test]
fn an_internal_peer_takes_no_prepend_from_an_external_one() {
    // The same table told to both: each session looks only at its own peer.
    let table = || rib([(VIP, prepended(2))]);
    let (mut outer, o) = Bench::up(config(), &their_open());
    let open = octets::open(64513, 9, THEIR_ID, &[octets::cap_as4(64513)]);
    let (mut inner, i) = Bench::up(PeerConfig { asn: PeerAsn::Internal, ..config() }, &open);
    outer.advertise(table());
    inner.advertise(table());
    assert_eq!(outer.updates(o)[0].path(2, 4).len(), 3);
    assert_eq!(inner.updates(i)[0].path(2, 4).len(), 0);
}

#[test]
fn every_attribute_reaches_the_wire_as_its_rfc_writes_it() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    let attributes = Attributes {
        as_path_prepend: 1,
        communities: [0xfc01_0001, 0xffff_0000].into(),
        large_communities: [(64513, 1, 2)].into(),
        extended_communities: [[0, 2, 0xfc, 1, 0, 0, 0, 9]].into(),
        med: Some(5),
        local_pref: None,
    };
    bench.advertise(rib([(VIP, attributes)]));
    let octets = bench.messages(conn).concat();
    assert_eq!(
        octets::to_hex(&octets[19..]),
        "0000004440010100 40020a02020000fc010000fc01 400304c000020b 80040400000005 \
         c00808fc010001ffff0000 c010080002fc0100000009 c0200c0000fc010000000100000002 20c633640a"
            .replace(' ', "")
    );
}

#[test]
fn rfc4760_s3_an_ipv6_vip_on_an_ipv4_session_has_the_ipv6_address_as_next_hop() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    bench.advertise(rib([(VIP6, plain())]));
    let [u] = &bench.updates(conn)[..] else { panic!() };
    assert_eq!(u.announced, [(p(VIP6), ip("2001:db8::11"))]);
    assert!(u.value(3).is_none());
}

#[test]
fn an_ipv6_vip_without_an_ipv6_next_hop_is_held_with_the_reason() {
    let (mut bench, conn) = Bench::up(PeerConfig { next_hop_v6: None, ..config() }, &their_open());
    bench.advertise(rib([(VIP6, plain()), (VIP, plain())]));
    let [u] = &bench.updates(conn)[..] else { panic!() };
    assert_eq!(u.announced.len(), 1);
    let held = bench.session.status().held;
    assert!(held[&p(VIP6)].contains("next hop"), "{held:?}");
    // A link-local end is no next hop either.
    for local in ["[fe80::1]:179", "[::ffff:192.0.2.11]:179"] {
        let mut bench = Bench::new(PeerConfig { next_hop_v6: None, ..config() });
        let conn = bench.answer_at(local);
        bench.receive(conn, &[their_open(), keepalive()].concat());
        bench.messages(conn);
        bench.advertise(rib([(VIP6, plain())]));
        assert_eq!(bench.updates(conn), [], "{local}");
    }
}

#[test]
fn rfc8950_an_ipv4_vip_has_an_ipv6_next_hop_only_where_both_agreed() {
    let config = |on| PeerConfig { extended_next_hop: on, next_hop_v4: None, ..config() };
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut bench = Bench::new(config(ours));
        let conn = bench.answer_at("[2001:db8::11]:40000");
        let caps = if theirs { vec![octets::cap_extended_next_hop()] } else { vec![] };
        bench.receive(conn, &[their_open_with(9, &caps), keepalive()].concat());
        bench.messages(conn);
        bench.advertise(rib([(VIP, plain())]));
        let updates = bench.updates(conn);
        if ours && theirs {
            assert_eq!(updates[0].announced, [(p(VIP), ip("2001:db8::11"))]);
            bench.advertise(rib([]));
            let [u] = &bench.updates(conn)[..] else { panic!() };
            assert_eq!(u.withdrawn, [p(VIP)]);
            assert_eq!(&u.value(15).unwrap()[..3], [0, 1, 1], "withdrawn as it was announced");
        } else {
            assert_eq!(updates, [], "ours {ours} theirs {theirs}");
            assert!(bench.session.status().held.contains_key(&p(VIP)));
        }
    }
}

#[test]
fn rfc4271_s3_1_a_change_of_attributes_is_one_update_and_never_a_withdrawal() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    bench.advertise(rib([(VIP, plain()), (VIP6, plain())]));
    assert_eq!(bench.updates(conn).len(), 2);
    for n in [3, 0, 3] {
        bench.advertise(rib([(VIP, prepended(n)), (VIP6, prepended(n))]));
        let updates = bench.updates(conn);
        assert_eq!(updates.len(), 2);
        assert!(updates.iter().all(|u| u.withdrawn.is_empty() && u.announced.len() == 1));
    }
}

#[test]
fn an_equal_table_sends_nothing() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    bench.advertise(rib([(VIP, plain())]));
    bench.updates(conn);
    for _ in 0..60 {
        bench.advertise(rib([(VIP, plain())]));
        bench.run_alive(conn, secs(1));
    }
    assert_eq!(bench.updates(conn), []);
}

#[test]
fn after_a_new_session_each_route_is_told_exactly_once() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    bench.advertise(rib([(VIP, plain()), (VIP6, plain())]));
    bench.run_alive(conn, secs(60));
    bench.close(conn, "reset by peer");
    bench.advertise(rib([(VIP, plain())]));
    let conn = bench.answer();
    bench.receive(conn, &[their_open(), keepalive()].concat());
    let updates = bench.updates(conn);
    let routes: Vec<_> = updates.iter().flat_map(|u| &u.announced).collect();
    assert_eq!(routes.len(), 1);
    assert!(updates.iter().all(|u| u.withdrawn.is_empty()));
}

#[test]
fn overlapping_prefixes_come_and_go_each_on_its_own() {
    let all = ["198.51.100.0/24", "198.51.100.0/25", "198.51.100.10/32"];
    let (mut bench, conn) = Bench::up(config(), &their_open());
    let mut table = octets::Table::default();
    for pattern in (0..8u8).chain((0..8).rev()).chain([5, 2, 7, 0]) {
        let up = (0..3).filter(|i| pattern & 1 << i != 0).map(|i: usize| all[i]);
        let want: Vec<_> = up.clone().map(p).collect();
        bench.advertise(up.map(|s| (p(s), plain())).collect());
        bench.tell(conn, &mut table);
        assert_eq!(table.prefixes(), want, "pattern {pattern}");
    }
}

#[test]
fn rfc2918_a_refresh_tells_each_route_of_the_family_once_and_withdraws_nothing() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    let pessimised = "198.51.100.11/32";
    bench.advertise(rib([(VIP, plain()), (pessimised, prepended(3)), (VIP6, plain())]));
    bench.advertise(rib([(VIP, plain()), (pessimised, prepended(3)), (VIP6, plain())]));
    bench.updates(conn);
    bench.receive(conn, &hex("M 0017 05 00010001"));
    let updates = bench.updates(conn);
    let mut routes: Vec<_> = updates.iter().flat_map(|u| u.announced.iter().map(|a| a.0)).collect();
    routes.sort();
    assert_eq!(routes, [p(VIP), p(pessimised)]);
    assert!(updates.iter().all(|u| u.withdrawn.is_empty()));
    let prepends: Vec<_> = updates.iter().map(|u| u.path(2, 4).len()).collect();
    assert!(prepends.contains(&1) && prepends.contains(&4));
}

#[test]
fn rfc2918_a_refresh_of_a_foreign_family_is_ignored() {
    let (mut bench, conn) = Bench::up(PeerConfig { ipv6: false, ..config() }, &their_open());
    bench.advertise(rib([(VIP, plain())]));
    bench.updates(conn);
    for foreign in ["M 0017 05 00020001", "M 0017 05 00190046", "M 0017 05 00010080", "M 0017 05 00010101"] {
        bench.receive(conn, &hex(foreign));
    }
    bench.run_alive(conn, secs(5));
    assert_eq!(bench.updates(conn), []);
    assert_eq!(bench.session.state(), State::Established);
}

#[test]
fn rfc2918_s3_a_refresh_of_another_length_is_a_bad_message_length() {
    for longer in ["M 0018 05 0001000100", "M 001f 05 00010001 0140000500000000"] {
        let (mut bench, conn) = Bench::up(config(), &their_open());
        bench.receive(conn, &hex(longer));
        let (code, subcode, ..) = bench.notified(conn);
        assert_eq!((code, subcode), (1, 2), "{longer}");
    }
}

#[test]
fn rfc2918_a_thousand_refreshes_in_a_second_are_answered_about_once() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    bench.advertise(rib([(VIP, plain())]));
    bench.updates(conn);
    let since = bench.session.status().since;
    for _ in 0..1000 {
        bench.receive(conn, &hex("M 0017 05 00010001"));
        bench.run(std::time::Duration::from_millis(1));
    }
    bench.run_alive(conn, secs(5));
    let answers = bench.updates(conn).len();
    assert!((1..=3).contains(&answers), "{answers} answers");
    assert_eq!(bench.session.status().since, since);
}

#[test]
fn rfc2918_a_route_withdrawn_while_a_refresh_waits_for_a_slow_peer_is_withdrawn() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    // More than fits the window: every route has attributes of its own.
    let wide = |i: u32| Attributes { communities: (0..200).map(|c| i << 16 | c).collect(), ..plain() };
    let all = |n: u32| {
        (0..n).map(|i| (standfast_core::Prefix::host(Ipv4Addr::from_bits(0xc633_0000 | i).into()), wide(i)))
    };
    bench.advertise(all(200).collect());
    let mut table = octets::Table::default();
    bench.tell(conn, &mut table);
    assert_eq!(table.0.len(), 200);
    bench.reading = false;
    bench.receive(conn, &hex("M 0017 05 00010001"));
    bench.advertise(rib([]));
    for _ in 0..100 {
        bench.written(conn, 0);
    }
    bench.tell(conn, &mut table);
    assert_eq!(table.prefixes(), [], "the peer keeps routes that nobody wants");
    assert!(!bench.session.pending());
}

#[test]
fn rfc7606_a_missing_as_path_withdraws_the_route_and_keeps_the_session() {
    let (mut bench, conn) = learning();
    let good = hex("40010100 4002060201 0000fc01 400304c000020b");
    bench.receive(conn, &update(&[], &good, &hex("20c633640a")));
    assert_eq!(bench.learned[0].announced.len(), 1);
    bench.receive(conn, &update(&[], &hex("40010100 400304c000020b"), &hex("20c633640a")));
    assert_eq!(bench.session.state(), State::Established);
    assert_eq!(bench.learned[1].announced, []);
    assert_eq!(bench.learned[1].withdrawn, [p(VIP)]);
    assert!(bench.learned[1].malformed.is_some());
}

#[test]
fn rfc7606_each_fault_has_its_disposition() {
    const WITHDRAW: &str = "withdraw";
    const DISCARD: &str = "discard";
    const RESET: &str = "reset";
    let origin = "40010100";
    let path = "40020602010000fc01";
    let hop = "400304c000020b";
    let cases = [
        ("ORIGIN of value 9", format!("40010109 {path} {hop}"), WITHDRAW),
        ("ORIGIN of two octets", format!("4001020000 {path} {hop}"), WITHDRAW),
        ("no ORIGIN", format!("{path} {hop}"), WITHDRAW),
        ("no NEXT_HOP", format!("{origin} {path}"), WITHDRAW),
        ("NEXT_HOP of three octets", format!("{origin} {path} 400303c00002"), WITHDRAW),
        ("AS_PATH segment of an unknown type", format!("{origin} 40020609010000fc01 {hop}"), WITHDRAW),
        ("AS_PATH segment past its end", format!("{origin} 40020602050000fc01 {hop}"), WITHDRAW),
        ("AS_PATH segment of length zero", format!("{origin} 4002020200 {hop}"), WITHDRAW),
        ("AS_SET (RFC 9774)", format!("{origin} 40020c 02010000fc01 01010000fde8 {hop}"), WITHDRAW),
        (
            "AS_CONFED_SEQUENCE (RFC 5065)",
            format!("{origin} 40020c 03010000fc02 02010000fc01 {hop}"),
            WITHDRAW,
        ),
        ("MED of three octets", format!("{origin} {path} {hop} 800403000001"), WITHDRAW),
        ("COMMUNITIES of five octets", format!("{origin} {path} {hop} c008050000000001"), WITHDRAW),
        ("LARGE_COMMUNITY of four octets", format!("{origin} {path} {hop} c0200400000001"), WITHDRAW),
        ("EXTENDED_COMMUNITIES of four octets", format!("{origin} {path} {hop} c0100400000001"), WITHDRAW),
        ("ORIGIN with the optional flag", format!("c0010100 {path} {hop}"), WITHDRAW),
        ("LOCAL_PREF from outside", format!("{origin} {path} {hop} 400504000000ff"), DISCARD),
        ("ATOMIC_AGGREGATE of one octet", format!("{origin} {path} {hop} 40060100"), DISCARD),
        ("AGGREGATOR of two octets", format!("{origin} {path} {hop} c007020000"), DISCARD),
        ("ORIGIN twice", format!("{origin} 40010102 {path} {hop}"), DISCARD),
        ("two MP_REACH_NLRI", format!("{origin} {path} {hop} {MP} {MP}"), RESET),
        ("unknown well-known attribute", format!("{origin} {path} {hop} 40630100"), WITHDRAW),
        ("last attribute runs past the field", format!("{origin} {path} {hop} c00810fc01"), WITHDRAW),
        ("two octets left in the field", format!("{origin} {path} {hop} c008"), WITHDRAW),
        ("unknown optional attribute", format!("{origin} {path} {hop} c0630100"), "fine"),
        ("extended length where it is not needed", format!("50010001 00 {path} {hop}"), "fine"),
    ];
    for (what, attributes, want) in cases {
        let (mut bench, conn) = learning();
        bench.receive(conn, &update(&[], &hex(&attributes), &hex("20c633640a")));
        let got = match &bench.learned[..] {
            [] => {
                assert_eq!(bench.notified(conn).0, 3, "{what}");
                RESET
            }
            [u] if u.withdrawn == [p(VIP)] && u.announced.is_empty() => WITHDRAW,
            [u] if u.announced.len() == 1 && u.malformed.is_some() => {
                assert_eq!(u.announced[0].1.local_pref, None, "{what}");
                DISCARD
            }
            [u] if u.announced.len() == 1 => "fine",
            other => panic!("{what}: {other:?}"),
        };
        // RFC 7606 §3 (c): repeated attributes but the first are dropped; saying so is not asked for.
        let same = got == want || (want == DISCARD && got == "fine");
        assert!(same, "{what}: {got}, not {want}: {:?}", bench.learned);
    }
}

const MP: &str = "800e1e 000201 10 20010db8000000000000000000000011 00 4820010db801000000 00";

#[test]
fn rfc7606_s5_3_a_prefix_length_that_cannot_be_resets_the_session() {
    let good = hex("40010100 40020602010000fc01 400304c000020b");
    for (withdrawn, nlri) in [("", "21c633640a00"), ("21c633640a00", ""), ("", "20c63364"), ("20c6", "")] {
        let (mut bench, conn) = learning();
        bench.receive(conn, &update(&hex(withdrawn), if nlri.is_empty() { &[] } else { &good }, &hex(nlri)));
        let (code, subcode, _) = bench.notified(conn);
        assert_eq!((code, subcode), (3, 10), "{withdrawn} {nlri}");
        assert_eq!(bench.downs, 1);
    }
}

#[test]
fn rfc4271_s6_3_lengths_that_contradict_each_other_are_a_malformed_attribute_list() {
    for message in
        ["M 0017 02 0002 080a", "M 0017 02 0001 0000", "M 0017 02 0000 0001", "M 0018 02 0005 0000 00"]
    {
        let (mut bench, conn) = learning();
        bench.receive(conn, &hex(message));
        let (code, subcode, _) = bench.notified(conn);
        assert_eq!((code, subcode), (3, 1), "{message}");
        assert_eq!(bench.downs, 1);
    }
}

#[test]
fn rfc4271_s5_1_5_the_local_pref_of_an_external_peer_does_not_count() {
    let (mut bench, conn) = learning();
    let attributes = hex("40010100 40020602010000fc01 400304c000020b 400504000000ff");
    bench.receive(conn, &update(&[], &attributes, &hex("20c633640a")));
    let [Update { announced, .. }] = &bench.learned[..] else { panic!() };
    assert_eq!((announced[0].0, announced[0].1.local_pref), (p(VIP), None));
}

#[test]
fn rfc4271_s6_3_a_path_that_does_not_begin_with_the_external_peer_is_a_withdrawal_and_told() {
    let good = "40020602010000fc01";
    for (what, path, fine) in [
        ("its own", good, true),
        ("its own, and another", "40020a02020000fc010000fde8", true),
        ("empty", "400200", false),
        ("another's", "40020602010000fde8", false),
        ("another's before its own", "40020a02020000fde80000fc01", false),
    ] {
        let (mut bench, conn) = learning();
        for path in [good, path] {
            let attributes = hex(&format!("40010100 {path} 400304c000020b"));
            bench.receive(conn, &update(&[], &attributes, &hex("20c633640a")));
        }
        assert_eq!(bench.session.state(), State::Established, "{what}");
        let [_, Update { announced, withdrawn, not_its_path, .. }] = &bench.learned[..] else { panic!() };
        let vip = if fine { vec![] } else { vec![p(VIP)] };
        assert_eq!((announced.len(), withdrawn, not_its_path), (usize::from(fine), &vip, &vip), "{what}");
    }
}

#[test]
fn rfc4271_s9_1_2_a_path_with_our_own_as_number_is_not_used() {
    let (mut bench, conn) = learning();
    let attributes = hex("40010100 40020a02020000fc010000fc00 400304c000020b");
    bench.receive(conn, &update(&[], &attributes, &hex("20c633640a")));
    assert_eq!(bench.session.state(), State::Established);
    assert!(bench.learned.iter().all(|u| u.announced.is_empty()), "{:?}", bench.learned);
    assert_eq!(bench.learned[0].withdrawn, [p(VIP)]);
}

#[test]
fn rfc4760_s6_routes_of_a_family_that_was_not_agreed_are_not_used() {
    let mut bench = Bench::new(listener());
    let conn = bench.establish(&octets::open(
        64513,
        9,
        [192, 0, 2, 11],
        &[octets::cap_mp(1), octets::cap_as4(64513)],
    ));
    let attributes = hex(&format!("40010100 40020602010000fc01 {MP}"));
    bench.receive(conn, &update(&[], &attributes, &[]));
    assert!(bench.learned.iter().all(|u| u.announced.is_empty()), "{:?}", bench.learned);
}

#[test]
fn rfc4271_s6_3_a_next_hop_that_is_no_host_address_is_not_used() {
    for hop in ["00000000", "7f000001", "e0000001", "ffffffff"] {
        let (mut bench, conn) = learning();
        let attributes = hex(&format!("40010100 40020602010000fc01 400304{hop}"));
        bench.receive(conn, &update(&[], &attributes, &hex("20c633640a")));
        assert_eq!(bench.session.state(), State::Established);
        assert!(bench.learned.iter().all(|u| u.announced.is_empty()), "{hop}: {:?}", bench.learned);
    }
    for hop in ["0".repeat(32), format!("{:0>32}", "1"), format!("ff02{:0>28}", "1")] {
        let (mut bench, conn) = learning();
        let value = hex(&format!("000201 10 {hop} 00 4020010db801000000"));
        let mp = [&[0x80, 14, u8::try_from(value.len()).unwrap()][..], &value].concat();
        let attributes = [hex("40010100 40020602010000fc01"), mp].concat();
        bench.receive(conn, &update(&[], &attributes, &[]));
        assert!(bench.learned.iter().all(|u| u.announced.is_empty()), "{hop}: {:?}", bench.learned);
    }
}

#[test]
fn rfc8950_s4_an_ipv4_route_over_an_ipv6_next_hop_is_used_only_where_both_agreed() {
    let value = hex("000101 10 20010db8000000000000000000000011 00 20c633640a");
    let mp = [&[0x80, 14, u8::try_from(value.len()).unwrap()][..], &value].concat();
    let attributes = [hex("40010100 40020602010000fc01"), mp].concat();
    for agreed in [false, true] {
        let mut caps = vec![octets::cap_mp(1), octets::cap_mp(2), octets::cap_as4(64513)];
        if agreed {
            caps.push(octets::cap_extended_next_hop());
        }
        let config = PeerConfig { extended_next_hop: agreed, ..listener() };
        let (mut bench, conn) = Bench::up(config, &octets::open(64513, 9, [192, 0, 2, 11], &caps));
        bench.receive(conn, &update(&[], &attributes, &[]));
        assert_eq!(bench.session.state(), State::Established);
        let used = bench.learned.iter().any(|u| !u.announced.is_empty());
        assert_eq!(used, agreed, "{:?}", bench.learned);
    }
}

#[test]
fn nothing_learned_is_kept_or_told() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    bench.advertise(rib([(VIP, plain())]));
    bench.updates(conn);
    let attributes = hex("40010100 40020602010000fc00 400304c0000201");
    for i in 0..10_000u32 {
        let nlri = [&[32][..], &(0x0a00_0000 + i).to_be_bytes()].concat();
        bench.receive(conn, &update(&[], &attributes, &nlri));
    }
    assert_eq!(bench.learned, []);
    assert_eq!(bench.updates(conn), []);
    assert_eq!(bench.session.status().updates_received, 10_000);
    assert_eq!(bench.session.status().told.len(), 1);
}

#[test]
fn a_vip_that_the_peer_announces_too_is_still_withdrawn() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    bench.advertise(rib([(VIP, plain())]));
    bench.updates(conn);
    let attributes = hex("40010100 40020602010000fc00 400304c0000201");
    bench.receive(conn, &update(&[], &attributes, &hex("20c633640a")));
    bench.advertise(rib([]));
    let [u] = &bench.updates(conn)[..] else { panic!() };
    assert_eq!(u.withdrawn, [p(VIP)]);
    bench.run_alive(conn, secs(30));
    assert_eq!(bench.updates(conn), []);
}

#[test]
fn a_stop_withdraws_first_and_then_says_why() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    bench.advertise(rib([(VIP, plain()), (VIP6, plain())]));
    bench.updates(conn);
    bench.input(SessionInput::Stop("maintenance".into()));
    let messages = bench.messages(conn);
    assert_eq!(messages.len(), 3);
    let mut withdrawn: Vec<_> = messages[..2].iter().flat_map(|m| octets::Parsed::new(m).withdrawn).collect();
    withdrawn.sort();
    assert_eq!(withdrawn, [p(VIP), p(VIP6)]);
    assert_eq!(&messages[2][19..], [&[6, 2, 11][..], b"maintenance"].concat());
    bench.run(secs(600));
    assert!(bench.dials.is_empty() && bench.session.is_over());
}
