//! Graceful restart as the restarting speaker: RFC 4724, RFC 8538.

use std::sync::Arc;

use standfast_core::bgp::session::{PeerConfig, SessionInput};
use standfast_core::node::ConnId;

use crate::bench::octets::{self, keepalive};
use crate::bench::peer::*;

const VIP: &str = "198.51.100.10/32";

fn graceful() -> PeerConfig {
    PeerConfig { graceful_restart: Some(secs(120)), ..config() }
}

fn graceful_open() -> Vec<u8> {
    their_open_with(9, &[octets::cap_restart(false, true, 120)])
}

/// The graceful restart capability of an OPEN that holds it.
fn capability(open: &[u8]) -> Option<Vec<u8>> {
    let mut caps = &open[31..];
    while caps.len() >= 2 {
        let length = usize::from(caps[1]);
        if caps[0] == 64 {
            return Some(caps[2..2 + length].to_vec());
        }
        caps = &caps[2 + length..];
    }
    None
}

fn our_capability(bench: &mut Bench) -> (ConnId, Option<Vec<u8>>) {
    let conn = bench.answer();
    let open = bench.messages(conn).remove(0);
    (conn, capability(&open))
}

#[test]
fn rfc4724_s3_the_restart_bit_is_set_only_while_restarting() {
    let mut bench = Bench::new(graceful());
    let (conn, capability) = our_capability(&mut bench);
    let capability = capability.unwrap();
    let flags = u16::from_be_bytes([capability[0], capability[1]]);
    assert_eq!(flags & 0x8000, 0x8000, "R");
    assert_eq!(flags & 0x4000, 0x4000, "N");
    assert_eq!(flags & 0x0fff, 120);
    assert_eq!(capability[2..], [0, 1, 1, 0x80, 0, 2, 1, 0x80], "both families, forwarding preserved");
    bench.receive(conn, &[graceful_open(), keepalive()].concat());
    bench.run_alive(conn, secs(180));
    bench.close(conn, "reset");
    let (_, capability) = our_capability(&mut bench);
    let flags = capability.unwrap()[0];
    assert_eq!(flags & 0x80, 0, "R long after the start");
    assert_eq!(flags & 0x40, 0x40);
}

#[test]
fn rfc4724_s3_without_the_option_there_is_no_capability() {
    assert_eq!(our_capability(&mut Bench::new(config())).1, None);
}

#[test]
fn rfc4724_s4_1_end_of_rib_is_said_only_after_the_checks_have_decided() {
    let mut bench = Bench::new(graceful());
    let conn = bench.answer();
    bench.receive(conn, &[graceful_open(), keepalive()].concat());
    assert_eq!(bench.updates(conn), []);
    bench.input(SessionInput::Advertise(Arc::new(rib([(VIP, plain())])), false));
    bench.run_alive(conn, secs(5));
    let updates = bench.updates(conn);
    assert!(updates.iter().all(|u| u.end_of_rib.is_none()), "{updates:?}");
    bench.advertise(rib([(VIP, plain())]));
    let ends: Vec<_> = bench.updates(conn).iter().filter_map(|u| u.end_of_rib).collect();
    assert_eq!(ends, [1, 2]);
    bench.advertise(rib([]));
    bench.advertise(rib([(VIP, plain())]));
    assert!(bench.updates(conn).iter().all(|u| u.end_of_rib.is_none()), "said twice");
}

#[test]
fn rfc4724_s4_1_a_check_that_never_decides_delays_end_of_rib_by_a_minute_at_most() {
    let mut bench = Bench::new(graceful());
    let conn = bench.answer();
    bench.receive(conn, &[graceful_open(), keepalive()].concat());
    bench.run_alive(conn, secs(61));
    assert_eq!(bench.updates(conn).len(), 2);
}

#[test]
fn rfc4724_s2_end_of_rib_comes_after_the_routes() {
    let mut bench = Bench::new(graceful());
    bench.advertise(rib([(VIP, plain()), ("2001:db8:100::10/128", plain())]));
    let conn = bench.answer();
    bench.receive(conn, &[graceful_open(), keepalive()].concat());
    let updates = bench.updates(conn);
    let first = updates.iter().position(|u| u.end_of_rib.is_some()).unwrap();
    assert_eq!(first, 2);
    assert_eq!(updates.len(), 4);
}

#[test]
fn rfc8538_s3_1_a_stop_is_a_hard_reset_so_that_the_peer_keeps_nothing() {
    let (mut bench, conn) = {
        let mut bench = Bench::new(graceful());
        bench.advertise(rib([(VIP, plain())]));
        let conn = bench.answer();
        bench.receive(conn, &[graceful_open(), keepalive()].concat());
        (bench, conn)
    };
    bench.input(SessionInput::Stop("bye".into()));
    let (code, subcode, data) = bench.notified(conn);
    assert_eq!((code, subcode), (6, 9));
    assert_eq!(data, [&[6, 2, 3][..], b"bye"].concat());
}

#[test]
fn rfc8538_without_the_n_bit_of_both_a_stop_is_a_plain_cease() {
    for open in [their_open(), their_open_with(9, &[octets::cap_restart(false, false, 120)])] {
        let mut bench = Bench::new(graceful());
        let conn = bench.answer();
        bench.receive(conn, &[open, keepalive()].concat());
        bench.input(SessionInput::Stop("bye".into()));
        let (code, subcode, _) = bench.notified(conn);
        assert_eq!((code, subcode), (6, 2));
    }
}

#[test]
fn rfc4724_s4_2_a_new_connection_of_a_restarting_peer_replaces_the_old_one_without_a_notification() {
    let mut bench = Bench::new(graceful());
    bench.advertise(rib([(VIP, plain())]));
    let old = bench.answer();
    bench.receive(old, &[graceful_open(), keepalive()].concat());
    bench.messages(old);
    let new = bench.accept();
    bench.receive(new, &their_open_with(9, &[octets::cap_restart(true, true, 120)]));
    assert!(bench.is_closed(old));
    assert_eq!(bench.messages(old), Vec::<Vec<u8>>::new(), "the peer would lose what it kept");
    bench.receive(new, &keepalive());
    assert_eq!((bench.ups, bench.downs), (2, 1));
    let routes: usize = bench.updates(new).iter().map(|u| u.announced.len()).sum();
    assert_eq!(routes, 1, "the new session is told everything");
}

#[test]
fn rfc4724_s4_2_only_the_speaker_itself_restarts_its_session() {
    let (mut bench, old) = Bench::up(graceful(), &graceful_open());
    bench.run(secs(4));
    // Another identifier is another speaker, whatever it says of restarts.
    for id in [[192, 0, 2, 2], [10, 0, 0, 1]] {
        let new = bench.accept();
        bench.receive(new, &octets::open(THEM, 9, id, &[octets::cap_restart(true, true, 120)]));
        assert_eq!(bench.notified(new), (6, 7, vec![]));
    }
    assert!(!bench.is_closed(old));
    assert_eq!((bench.ups, bench.downs), (1, 0));
    // It itself is taken at once.
    let new = bench.accept();
    bench.receive(new, &[graceful_open(), keepalive()].concat());
    assert!(bench.is_closed(old));
    assert_eq!((bench.ups, bench.downs), (2, 1));
}
