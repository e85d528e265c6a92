//! OPEN and capabilities: RFC 4271 §4.2 and §6.2, RFC 5492, 6793, 9072, 4760, 6286, 7607.

use std::net::Ipv4Addr;
use std::time::Duration;

use standfast_core::Machine;
use standfast_core::bgp::session::PeerConfig;
use standfast_core::bgp::{Negotiated, State};
use standfast_core::plan::PeerAsn;

use crate::bench::octets::{self, hex, keepalive, notification, split};
use crate::bench::peer::*;

/// The 29 octets of a peer of AS 64513 without capabilities.
const BARE: &str = "M 001d 01 04fc010009c000020b00";

fn listener() -> PeerConfig {
    PeerConfig {
        local_asn: 64512,
        router_id: Ipv4Addr::new(192, 0, 2, 1),
        asn: PeerAsn::Number(64513),
        learn: true,
        ..config()
    }
}

fn negotiated(open: &[u8]) -> Negotiated {
    let (bench, _) = Bench::up(listener(), open);
    bench.session.negotiated().unwrap().clone()
}

/// What a session answers to an OPEN that it refuses.
fn refusal(config: PeerConfig, open: &[u8]) -> (u8, u8, Vec<u8>) {
    let mut bench = Bench::new(config);
    let conn = bench.answer();
    bench.receive(conn, open);
    assert!(bench.ups == 0);
    bench.notified(conn)
}

#[test]
fn rfc4271_s4_2_an_open_without_parameters_is_a_two_octet_ipv4_speaker() {
    let n = negotiated(&hex(BARE));
    assert_eq!((n.asn, n.four_octet_as, n.ipv4, n.ipv6), (64513, false, true, false));
    assert_eq!(n.hold, Duration::from_secs(9));
    assert_eq!(n.router_id, Ipv4Addr::new(192, 0, 2, 11));
}

#[test]
fn rfc4271_s6_2_a_notification_may_be_the_first_message() {
    let mut bench = Bench::new(listener());
    let conn = bench.answer();
    bench.sent.clear();
    bench.receive(conn, &hex("M 0015 03 0602"));
    assert!(bench.is_closed(conn));
    assert!(bench.sent.is_empty(), "a NOTIFICATION is never answered");
    let (_, note) = bench.notes.last().unwrap();
    assert!(note.contains("6/2") && note.contains("Administrative Shutdown"), "{note}");
    assert!(bench.session.deadline().unwrap().0 > bench.now, "no pause before the next dial");
}

#[test]
fn rfc5492_s4_one_parameter_or_one_each_negotiates_the_same() {
    let together =
        negotiated(&hex("M 0031 01 04fc010009c000020b 14 0212 010400010001 0200 40020078 41040000fc01"));
    let apart = negotiated(&hex(
        "M 0037 01 04fc010009c000020b 1a 0206010400010001 02020200 020440020078 020641040000fc01",
    ));
    assert_eq!(together, apart);
    assert!(together.four_octet_as && together.ipv4 && !together.ipv6);
}

#[test]
fn rfc5492_a_capability_that_runs_past_its_parameter_is_an_open_error() {
    let open = hex("M 0029 01 04fc010009c000020b 0c 020a 010400010001 41040000");
    assert_eq!(refusal(listener(), &open).0, 2);
    assert_eq!(refusal(listener(), &open).1, 0);
}

#[test]
fn rfc5492_an_unknown_capability_is_ignored() {
    let n = negotiated(&octets::open(
        64513,
        9,
        [192, 0, 2, 11],
        &[octets::cap_mp(1), vec![200, 3, 1, 2, 3], octets::cap_as4(64513)],
    ));
    assert!(n.four_octet_as && n.ipv4);
}

#[test]
fn rfc9072_extended_parameters_are_understood_whatever_the_old_length_says() {
    let plain = negotiated(&hex("M 002d 01 04fc010009c000020b 10 020e 010400010001 0200 41040000fc01"));
    for open in [
        "M 0031 01 04fc010009c000020b ff ff0011 02000e 010400010001 0200 41040000fc01",
        "M 0031 01 04fc010009c000020b 01 ff0011 02000e 010400010001 0200 41040000fc01",
    ] {
        assert_eq!(negotiated(&hex(open)), plain);
    }
    let empty = negotiated(&hex("M 0020 01 04fc010009c000020b ff ff0000"));
    assert_eq!(empty, negotiated(&hex(BARE)));
}

#[test]
fn rfc4760_s8_ipv4_is_implied_only_without_any_multiprotocol_capability() {
    let rib = || rib([("198.51.100.10/32", plain()), ("2001:db8:100::10/128", plain())]);
    let open = |caps: &[Vec<u8>]| octets::open(THEM, 9, THEIR_ID, caps);

    let (mut bench, conn) = Bench::up(config(), &open(&[octets::cap_mp(2)]));
    bench.advertise(rib());
    let updates = bench.updates(conn);
    assert_eq!(updates.len(), 1);
    assert_eq!(updates[0].announced, [(p("2001:db8:100::10/128"), ip("2001:db8::11"))]);
    assert!(bench.session.status().held.contains_key(&p("198.51.100.10/32")));

    let (mut bench, conn) = Bench::up(config(), &open(&[]));
    bench.advertise(rib());
    let updates = bench.updates(conn);
    assert_eq!(updates.len(), 1);
    assert_eq!(updates[0].announced, [(p("198.51.100.10/32"), ip("192.0.2.11"))]);
    assert!(updates[0].value(14).is_none());

    // A family that we do not speak, or do not know at all, is still an explicit list.
    for family in [[0, 25, 0, 70], [0x40, 5, 0, 200]] {
        let (mut bench, conn) = Bench::up(config(), &open(&[[&[1, 4][..], &family].concat()]));
        bench.advertise(rib());
        assert_eq!(bench.updates(conn), [], "{family:?}");
    }
}

#[test]
fn rfc4760_no_end_of_rib_for_a_family_that_was_not_agreed() {
    let mut bench = Bench::new(config());
    let conn = bench.answer();
    bench.receive(conn, &octets::open(THEM, 9, THEIR_ID, &[octets::cap_mp(2)]));
    bench.receive(conn, &keepalive());
    let families: Vec<_> = bench.updates(conn).iter().map(|u| u.end_of_rib).collect();
    assert_eq!(families, [Some(2)]);
}

#[test]
fn rfc4271_s4_2_the_smaller_hold_time_counts_and_a_third_of_it_is_the_keepalive_interval() {
    for (offered, hold) in [(180, 9), (9, 9), (3, 3)] {
        let (mut bench, conn) = Bench::up(config(), &their_open_with(offered, &[]));
        assert_eq!(bench.session.negotiated().unwrap().hold, secs(hold));
        let start = bench.now;
        bench.run_alive(conn, secs(60));
        let count = bench.messages(conn).len() as u64;
        let third = hold / 3;
        assert!((60 / third..=60 * 4 / 3 / third + 1).contains(&count), "{count} in 60 s at hold {hold}");
        // The peer falls silent.
        let silent = bench.now;
        bench.run(secs(hold) - Duration::from_millis(1));
        assert!(!bench.is_closed(conn), "judged early");
        bench.run(Duration::from_millis(2));
        assert_eq!(bench.notified(conn), (4, 0, vec![]));
        assert!(bench.now.since(silent) < secs(hold + 1) && silent > start);
    }
}

#[test]
fn rfc4271_s6_2_a_hold_time_of_one_or_two_seconds_is_unacceptable() {
    for hold in [1, 2] {
        let (code, subcode, _) = refusal(config(), &their_open_with(hold, &[]));
        assert_eq!((code, subcode), (2, 6), "hold {hold}");
    }
}

#[test]
fn rfc4271_s4_2_a_hold_time_of_zero_turns_the_timers_off() {
    let (mut bench, conn) = Bench::up(config(), &their_open_with(0, &[]));
    bench.run(secs(3600));
    assert_eq!(bench.messages(conn), Vec::<Vec<u8>>::new(), "keepalives without a hold time");
    assert_eq!(bench.session.state(), State::Established);
}

#[test]
fn a_least_hold_time_refuses_zero_and_what_is_shorter() {
    let config = || PeerConfig { min_hold: Some(secs(5)), ..config() };
    for hold in [0, 3, 4] {
        let (code, subcode, _) = refusal(config(), &their_open_with(hold, &[]));
        assert_eq!((code, subcode), (2, 6), "hold {hold}");
    }
    Bench::up(config(), &their_open_with(5, &[]));
}

#[test]
fn a_keepalive_interval_of_zero_or_over_a_third_is_not_taken_at_its_word() {
    for keepalive in [Duration::ZERO, secs(20)] {
        let mut config = config();
        config.timers.keepalive = Some(keepalive);
        let (mut bench, conn) = Bench::up(config, &their_open());
        bench.run_alive(conn, secs(60));
        let count = bench.messages(conn).len();
        assert!((20..=28).contains(&count), "{count} keepalives in 60 s at hold 9 s");
    }
}

#[test]
fn rfc4271_s6_2_a_wrong_as_number_is_bad_peer_as() {
    assert_eq!(refusal(config(), &octets::bare_open(64999, 9, THEIR_ID)).1, 2);
    let external = PeerConfig { asn: PeerAsn::External, ..config() };
    assert_eq!(refusal(external.clone(), &octets::bare_open(64513, 9, THEIR_ID)).1, 2);
    let internal = PeerConfig { asn: PeerAsn::Internal, ..config() };
    assert_eq!(refusal(internal, &octets::bare_open(64512, 9, THEIR_ID)).1, 2);
    Bench::up(external, &octets::bare_open(65001, 9, THEIR_ID));
}

#[test]
fn rfc7607_as_zero_is_bad_peer_as() {
    let external = PeerConfig { asn: PeerAsn::External, ..config() };
    let zero = octets::open(64512, 9, THEIR_ID, &[octets::cap_as4(0)]);
    assert_eq!(refusal(external.clone(), &zero).1, 2);
    assert_eq!(refusal(external, &octets::bare_open(0, 9, THEIR_ID)).1, 2);
}

#[test]
fn rfc6793_as_trans_without_the_capability_is_refused_and_the_capability_is_named() {
    let external = PeerConfig { asn: PeerAsn::External, ..config() };
    let mut bench = Bench::new(external);
    let conn = bench.answer();
    bench.receive(conn, &octets::bare_open(23456, 9, THEIR_ID));
    let (code, subcode, _) = bench.notified(conn);
    assert_eq!((code, subcode), (2, 2));
    let said = bench.notes.iter().any(|(_, n)| n.contains("4-octet AS capability"));
    assert!(said, "{:?}", bench.notes);
}

#[test]
fn rfc6793_s4_1_our_open_shows_as_trans_and_the_number_in_the_capability() {
    let mut bench = Bench::new(PeerConfig { local_asn: 4_200_000_011, ..config() });
    let conn = bench.answer();
    let open = &bench.messages(conn)[0];
    assert_eq!(&open[20..22], [0x5b, 0xa0]);
    let capability = octets::cap_as4(4_200_000_011);
    assert!(open.windows(6).any(|w| w == capability));
}

#[test]
fn rfc6286_a_router_id_of_zero_is_refused_and_ours_only_inside_the_as() {
    let bad = |config: PeerConfig, open: &[u8]| refusal(config, open).1;
    assert_eq!(bad(config(), &octets::bare_open(THEM, 9, [0; 4])), 3);
    let internal = || PeerConfig { asn: PeerAsn::Internal, ..config() };
    assert_eq!(bad(internal(), &octets::bare_open(64513, 9, [192, 0, 2, 11])), 3);
    // A class E or a tiny identifier is an identifier like any other.
    Bench::up(config(), &octets::bare_open(THEM, 9, [192, 0, 2, 11]));
    Bench::up(config(), &octets::bare_open(THEM, 9, [0, 0, 0, 1]));
    Bench::up(config(), &octets::bare_open(THEM, 9, [250, 0, 0, 1]));
}

#[test]
fn rfc4271_s6_2_an_unknown_version_is_refused_with_ours() {
    let mut open = their_open();
    open[19] = 3;
    let (code, subcode, data) = refusal(config(), &open);
    assert_eq!((code, subcode), (2, 1));
    assert_eq!(data, [0, 4]);
}

#[test]
fn rfc4271_s6_1_header_errors_carry_their_subcode_and_data() {
    let mut bad_marker = keepalive();
    bad_marker[3] = 0;
    type Case<'a> = (&'a [u8], u8, Option<&'a [u8]>);
    let cases: [Case; 8] = [
        (&bad_marker, 1, None),
        (&hex("M 0012 04"), 2, Some(&[0, 0x12])),
        (&hex("M 1001 02"), 2, Some(&[0x10, 1])),
        (&hex("M 0014 04 00"), 2, Some(&[0, 0x14])),
        (&hex("M 001c 01"), 2, Some(&[0, 0x1c])),
        (&hex("M 0016 02"), 2, Some(&[0, 0x16])),
        (&hex("M 0013 09"), 3, Some(&[9])),
        (&hex("M 0020 09 00000000000000000000000000"), 3, Some(&[9])),
    ];
    for (octets, subcode, data) in cases {
        for established in [false, true] {
            let mut bench = Bench::new(config());
            let conn = if established { bench.establish(&their_open()) } else { bench.answer() };
            bench.receive(conn, octets);
            let got = bench.notified(conn);
            assert_eq!((got.0, got.1), (1, subcode), "{octets:02x?}");
            if let Some(data) = data {
                assert_eq!(got.2, data, "{octets:02x?}");
            }
        }
    }
}

#[test]
fn rfc6608_a_message_out_of_turn_names_the_state() {
    let update = octets::update(&[], &[], &[]);
    let mut bench = Bench::new(config());
    let conn = bench.answer();
    bench.receive(conn, &keepalive());
    assert_eq!(bench.notified(conn), (5, 1, vec![]));

    let mut bench = Bench::new(config());
    let conn = bench.answer();
    bench.receive(conn, &their_open());
    bench.receive(conn, &update);
    assert_eq!(bench.notified(conn), (5, 2, vec![]));
    assert_eq!(bench.ups, 0);

    let (mut bench, conn) = Bench::up(config(), &their_open());
    bench.receive(conn, &their_open());
    assert_eq!(bench.notified(conn), (5, 3, vec![]));
}

#[test]
fn a_session_is_up_only_after_the_keepalive() {
    let mut bench = Bench::new(config());
    let conn = bench.answer();
    bench.advertise(rib([("198.51.100.10/32", plain())]));
    bench.receive(conn, &their_open());
    assert_eq!(bench.ups, 0);
    assert!(bench.updates(conn).is_empty(), "routes before the session is up");
    bench.receive(conn, &keepalive());
    assert_eq!(bench.ups, 1);
    assert_eq!(bench.updates(conn).len(), 2 + 1, "one route and End-of-RIB for two families");
}

#[test]
fn a_message_may_come_one_octet_at_a_time() {
    let mut bench = Bench::new(config());
    let conn = bench.answer();
    for octet in [their_open(), keepalive()].concat() {
        bench.receive(conn, &[octet]);
    }
    assert_eq!(bench.session.state(), State::Established);
}

#[test]
fn a_connection_that_never_opens_is_given_up() {
    let mut bench = Bench::new(config());
    let conn = bench.answer();
    bench.run(secs(20));
    let (code, subcode, _) = bench.notified(conn);
    assert_eq!((code, subcode), (4, 0));
}

#[test]
fn rfc9003_a_shutdown_text_is_shown_without_harm() {
    let texts: [&[u8]; 7] = [
        b"maintenance until 9",
        b"\x1b[2J\x07 cleared",
        "rechts \u{202e}sknil".as_bytes(),
        b"\xff\xfe\xc3\x28",
        "über".as_bytes(),
        b"",
        &[b'x'; 254],
    ];
    for text in texts {
        let lengths = [text.len(), text.len() + 1, 255];
        for length in lengths {
            let (mut bench, conn) = Bench::up(config(), &their_open());
            let mut data = vec![u8::try_from(length).unwrap()];
            data.extend(text);
            bench.receive(conn, &notification(6, 2, &data));
            assert_eq!(bench.downs, 1);
            let (_, note) = bench.notes.iter().rfind(|(_, n)| n.contains("6/2")).unwrap();
            let hostile = |c: char| c.is_control() || c == '\u{202e}';
            assert!(!note.contains(hostile), "{note:?}");
            if length == text.len() && text == b"maintenance until 9" {
                assert!(note.contains("maintenance until 9"), "{note}");
            }
        }
    }
}

#[test]
fn rfc9003_our_text_is_cut_between_characters() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    let why = format!("x{}", "ü".repeat(300));
    bench.input(standfast_core::bgp::session::SessionInput::Stop(why));
    let (code, subcode, data) = bench.notified(conn);
    assert_eq!((code, subcode), (6, 2));
    assert_eq!(usize::from(data[0]), data.len() - 1);
    assert!(data.len() > 100 && data.len() <= 256);
    assert!(std::str::from_utf8(&data[1..]).is_ok());
}

#[test]
fn golden_our_open_is_the_same_octets_every_time() {
    let mut bench = Bench::new(config());
    let conn = bench.answer();
    let mut stream = bench.sent[&conn].clone();
    let messages = split(&mut stream);
    assert_eq!(
        octets::to_hex(&messages[0][19..]),
        "04fc010009c000020b16\
         0214010400010001010400020001020041040000fc01"
            .replace(' ', "")
    );
}
