//! Octets captured from other speakers, replayed through a session: what they really send is understood.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a broken test may stop")]

#[path = "../bench/mod.rs"]
mod bench;

use std::collections::BTreeMap;

use standfast_core::bgp::session::PeerConfig;
use standfast_core::bgp::{Down, Path, State};
use standfast_core::listen::Listener;
use standfast_core::{Prefix, Time};

use bench::octets::hex;
use bench::peer::{Bench, config, ip, p, secs};

/// The messages of a capture, marker and all; lines that begin with `#` say where it is from.
fn messages(text: &str) -> Vec<Vec<u8>> {
    let lines = text.lines().filter(|l| !l.starts_with('#') && !l.is_empty());
    let all: Vec<Vec<u8>> = lines.map(|l| hex(&format!("M{l}"))).collect();
    assert!(all.len() > 5 && text.starts_with('#'));
    all
}

struct Replay {
    bench: Bench,
    /// What is left of what was learned, and the most there was at one time.
    table: BTreeMap<Prefix, Path>,
    peak: BTreeMap<Prefix, Path>,
}

/// Replays a capture in pieces of `piece` octets.
fn replay(text: &str, piece: usize) -> Replay {
    let mut bench = Bench::new(PeerConfig { learn: true, graceful_restart: Some(secs(60)), ..config() });
    let conn = bench.answer();
    let (mut table, mut peak) = (BTreeMap::new(), BTreeMap::new());
    for octets in messages(text).concat().chunks(piece) {
        bench.receive(conn, octets);
        for update in bench.learned.drain(..) {
            assert_eq!(update.malformed, None);
            for prefix in update.withdrawn {
                assert!(table.remove(&prefix).is_some(), "{prefix} was not there");
            }
            table.extend(update.announced);
        }
        if table.len() >= peak.len() {
            peak.clone_from(&table);
        }
    }
    assert_eq!(bench.ups, 1, "{:?}", bench.notes);
    Replay { bench, table, peak }
}

fn in_pieces(text: &str) -> Replay {
    let whole = replay(text, usize::MAX);
    for piece in [1, 7, 4096] {
        let again = replay(text, piece);
        assert_eq!(again.table, whole.table);
        assert_eq!(again.bench.session.state(), whole.bench.session.state());
    }
    replay(text, 19)
}

fn plain_v4(path: &Path) {
    assert_eq!(path.next_hop, ip("192.0.2.1"));
    assert_eq!(path.as_path, [64512]);
    assert_eq!(path.local_pref, None);
}

#[test]
fn what_bird_sends_is_understood() {
    let Replay { bench, table, peak } = in_pieces(include_str!("bird.hex"));
    let prefixes: Vec<Prefix> = peak.keys().copied().collect();
    assert_eq!(prefixes, [p("198.51.100.0/24"), p("198.51.100.10/32"), p("2001:db8:100::10/128")]);
    let host = &peak[&p("198.51.100.10/32")];
    plain_v4(host);
    assert_eq!(host.communities, [64512 << 16 | 7]);
    assert_eq!(host.large_communities, [(64512, 1, 2)]);
    let six = &peak[&p("2001:db8:100::10/128")];
    assert_eq!(six.next_hop, ip("2001:db8::1"));
    assert_eq!(six.extended_communities, [[0, 2, 0xfc, 0, 0, 0, 0, 9]]);
    assert!(!table.contains_key(&p("198.51.100.0/24")), "the withdrawal was not understood");
    assert!(matches!(bench.session.status().down, Down::Received(n) if (n.code, n.subcode) == (6, 2)));
}

#[test]
fn what_frr_sends_is_understood() {
    let Replay { bench, table, peak } = in_pieces(include_str!("frr.hex"));
    assert_eq!(table, peak);
    let host = &table[&p("198.51.100.10/32")];
    plain_v4(host);
    assert_eq!(host.med, Some(20));
    assert_eq!(host.communities, [64512 << 16 | 7]);
    assert_eq!(table[&p("2001:db8:100::10/128")].next_hop, ip("::ffff:192.0.2.1"));
    assert_eq!(bench.session.state(), State::Established);
    let n = bench.session.negotiated().unwrap();
    assert!(n.four_octet_as && n.ipv4 && n.ipv6 && n.graceful_restart);
}

#[test]
fn what_gobgp_sends_is_understood() {
    let Replay { bench, table, peak } = in_pieces(include_str!("gobgp.hex"));
    assert_eq!(peak.len(), 3);
    assert_eq!(table.len(), 2);
    plain_v4(&table[&p("198.51.100.10/32")]);
    let Down::Received(n) = bench.session.status().down else { panic!() };
    assert_eq!((n.code, n.subcode), (6, 2));
    assert!(n.to_string().contains("bye"), "{n}");
}

#[test]
fn an_ipv6_route_over_a_mapped_ipv4_address_is_counted_and_not_used() {
    // FRR sends it on an IPv4 session without an IPv6 address of its own; no kernel can use it as an IPv6 next hop.
    let text = include_str!("frr.hex");
    let plan = bench::plan::listener("192.0.2.0/24", &[("six", "2001:db8:100::10/128")]);
    let mut listener = Listener::new(&plan);
    let mut bench = Bench::new(PeerConfig { learn: true, ..config() });
    let conn = bench.answer();
    bench.receive(conn, &messages(text).concat());
    for update in bench.learned.drain(..) {
        for prefix in listener.learned(Time::ZERO, ip("192.0.2.1").into(), None, update) {
            listener.decide(Time::ZERO, &prefix);
        }
    }
    assert!(listener.next_hops(&p("2001:db8:100::10/128")).is_empty());
    assert!(listener.ignored(&ip("192.0.2.1").into()).count() > 0);
}
