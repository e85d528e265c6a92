//! Every damage to every good message: no panic, bounded memory, and no harm to anybody else.

use standfast_core::bgp::State;
use standfast_core::bgp::session::PeerConfig;
use standfast_core::machine::Rng;

use crate::bench::octets::{self, hex, keepalive, notification, update};
use crate::bench::peer::*;

fn good_updates() -> Vec<Vec<u8>> {
    let v4 = hex("40010100 40020602010000fc00 400304c0000201 80040400000001 c00808fc000001ffff0000 \
                  c0200c0000fc000000000100000002 c010080002fc0000000009");
    let mp = hex("40010100 40020602010000fc00 \
                  800e26 000201 10 20010db8000000000000000000000001 00 8020010db8010000000000000000000010");
    let un = hex("800f14 000201 8020010db8010000000000000000000010");
    vec![
        update(&[], &v4, &hex("20c633640a 18c63364")),
        update(&hex("20c633640a"), &[], &[]),
        update(&[], &mp, &[]),
        update(&[], &un, &[]),
        update(&[], &[], &[]),
        update(&[], &hex("800f03 000201"), &[]),
    ]
}

fn messages() -> Vec<Vec<u8>> {
    let mut all = good_updates();
    all.push(their_open_with(
        9,
        &[octets::cap_restart(true, true, 120), octets::cap_extended_next_hop(), vec![73, 3, 1, b'a', 0]],
    ));
    all.push(hex("M 0031 01 04fc000009c0000201 ff ff0011 02000e 010400010001 0200 41040000fc00"));
    all.push(keepalive());
    all.push(notification(6, 2, b"\x05hello"));
    all.push(notification(6, 9, b"\x06\x02\x05hello"));
    all.push(hex("M 0017 05 00010001"));
    all
}

fn feed(established: bool, octets: &[u8]) -> Bench {
    let config =
        PeerConfig { learn: true, extended_next_hop: true, graceful_restart: Some(secs(60)), ..config() };
    let mut bench = Bench::new(config);
    let conn = bench.answer();
    if established {
        bench.receive(conn, &[their_open(), keepalive()].concat());
    }
    bench.receive(conn, octets);
    bench.run(secs(20));
    bench
}

#[test]
fn every_prefix_of_every_message_is_survived_and_waits_for_more() {
    for message in messages() {
        for length in 0..message.len() {
            for established in [false, true] {
                feed(established, &message[..length]);
                // The rest of it may be anything.
                feed(established, &[&message[..length], &[0xff; 64][..]].concat());
                feed(established, &[&message[..length], &keepalive()[..]].concat());
            }
        }
    }
}

#[test]
fn every_change_of_one_octet_of_every_message_is_survived() {
    for message in messages() {
        for at in 0..message.len() {
            for value in [0, 1, 2, 3, 4, 8, 14, 15, 16, 17, 32, 33, 64, 65, 127, 128, 129, 192, 254, 255]
                .into_iter()
                .chain([message[at].wrapping_add(1), message[at].wrapping_sub(1)])
            {
                let mut bad = message.clone();
                bad[at] = value;
                for established in [false, true] {
                    let bench = feed(established, &bad);
                    assert!(bench.session.state() <= State::Established);
                }
            }
        }
    }
}

#[test]
fn random_octets_after_the_handshake_end_one_session_and_are_said_once() {
    for seed in 0..500 {
        let mut rng = Rng::new(seed);
        let noise: Vec<u8> = (0..rng.below(5000)).map(|_| rng.next_u64() as u8).collect();
        let bench = feed(seed % 2 == 0, &noise);
        let loud = bench.notes.iter().filter(|(l, _)| *l >= standfast_core::node::Level::Warn).count();
        assert!(loud <= 3, "{:?}", bench.notes);
    }
}

#[test]
fn a_flood_of_malformed_updates_is_said_once() {
    let config = PeerConfig { learn: true, ..config() };
    let (mut bench, conn) = Bench::up(config, &their_open());
    let bad = update(&[], &hex("40010100 400304c0000201"), &hex("20c633640a"));
    for _ in 0..10_000 {
        bench.receive(conn, &bad);
    }
    assert_eq!(bench.session.state(), State::Established);
    let loud = bench.notes.iter().filter(|(l, _)| *l >= standfast_core::node::Level::Warn).count();
    assert!(loud <= 1, "{loud} lines");
}

#[test]
fn two_kinds_of_fault_in_turn_do_not_flood_the_log() {
    let config = PeerConfig { learn: true, ..config() };
    let (mut bench, conn) = Bench::up(config, &their_open());
    let one = update(&[], &hex("40010100 400304c0000201"), &hex("20c633640a"));
    let two = update(&[], &hex("40010109 40020602010000fc00 400304c0000201"), &hex("20c633640a"));
    for _ in 0..1000 {
        bench.receive(conn, &one);
        bench.receive(conn, &two);
    }
    let loud = bench.notes.iter().filter(|(l, _)| *l >= standfast_core::node::Level::Warn).count();
    assert!(loud <= 10, "{loud} lines");
}

#[test]
fn nothing_follows_a_notification_on_the_same_connection() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    let stream = [hex("M 0013 09"), keepalive(), their_open(), keepalive()].concat();
    bench.receive(conn, &stream);
    let messages = bench.messages(conn);
    assert_eq!(messages.last().unwrap()[18], octets::NOTIFICATION);
    bench.receive(conn, &keepalive());
    bench.run(std::time::Duration::from_millis(500));
    assert!(bench.messages(conn).is_empty());
}

#[test]
fn rfc4271_s6_1_a_notification_with_a_bad_length_ends_the_session_all_the_same() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    bench.receive(conn, &hex("M 0013 03"));
    assert!(bench.is_closed(conn));
}
