//! Time that does not pass as it should: stalls of our own. RFC 4271 §10.

use std::time::Duration;

use standfast_core::bgp::State;

use crate::bench::octets::keepalive;
use crate::bench::peer::*;

#[test]
fn a_stall_of_our_own_judges_no_peer_before_another_chance_to_read() {
    for late in [2, 60, 3600] {
        let (mut bench, conn) = Bench::up(config(), &their_open());
        bench.run_alive(conn, secs(5));
        // Nothing ran for the hold time and more, while the peer's keepalives wait in the socket.
        bench.now = bench.now + secs(9 + late);
        bench.tick();
        assert!(!bench.is_closed(conn), "judged on {late} s of our own absence");
        bench.receive(conn, &keepalive());
        bench.run_alive(conn, secs(30));
        assert_eq!(bench.session.state(), State::Established);
    }
}

#[test]
fn a_peer_that_is_still_silent_after_a_stall_is_judged() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    bench.now = bench.now + secs(12);
    bench.tick();
    assert!(!bench.is_closed(conn));
    bench.run(secs(1));
    assert_eq!(bench.notified(conn).0, 4);
}

#[test]
fn stall_after_stall_does_not_keep_a_dead_peer() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    for _ in 0..20 {
        bench.now = bench.now + secs(12);
        bench.tick();
    }
    assert!(bench.is_closed(conn), "a host that is always late never notices a dead peer");
}

#[test]
fn rfc4271_s10_keepalives_are_jittered_and_never_further_apart_than_a_third() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    let mut gaps = Vec::new();
    let mut last = bench.now;
    bench.messages(conn);
    while gaps.len() < 50 {
        bench.run(Duration::from_millis(50));
        if !bench.messages(conn).is_empty() {
            gaps.push(bench.now.since(last));
            last = bench.now;
            bench.receive(conn, &keepalive());
        }
    }
    let (least, most) = (gaps.iter().min().unwrap(), gaps.iter().max().unwrap());
    assert!(*most <= Duration::from_millis(3050) && *least >= Duration::from_millis(2200), "{gaps:?}");
    assert!(*most - *least > Duration::from_millis(200), "no jitter: {gaps:?}");
}

#[test]
fn keepalives_go_out_while_the_peer_is_busy_sending() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    let mut count = 0;
    for _ in 0..600 {
        bench.run(Duration::from_millis(100));
        bench.receive(conn, &keepalive());
        count += bench.messages(conn).len();
    }
    assert!((20..=28).contains(&count), "{count}");
}
