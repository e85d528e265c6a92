//! Dialling: how soon, how often, how long. RFC 4271 §8.2.2 (ConnectRetryTimer, DampPeerOscillations).

use std::time::Duration;

use standfast_core::bgp::State;
use standfast_core::bgp::session::{Liveness, PeerConfig, SessionInput};
use standfast_core::{Machine, Time};

use crate::bench::octets::{keepalive, notification};
use crate::bench::peer::*;

/// Moments of dials in `d`, each answered by `answer`.
fn attempts(bench: &mut Bench, d: Duration, mut answer: impl FnMut(&mut Bench)) -> Vec<Time> {
    let end = bench.now + d;
    let mut moments = Vec::new();
    loop {
        if !bench.dials.is_empty() {
            moments.push(bench.now);
            assert!(moments.len() < 1000, "a hot loop");
            answer(bench);
            continue;
        }
        match bench.session.deadline() {
            Some((at, _)) if at <= end => bench.run_until(at),
            _ => break,
        }
    }
    bench.now = end;
    moments
}

fn refuses(code: u8, subcode: u8) -> impl FnMut(&mut Bench) {
    move |bench| {
        let conn = bench.answer();
        if code == 6 {
            bench.receive(conn, &their_open());
        }
        bench.receive(conn, &notification(code, subcode, &[]));
    }
}

fn unreachable(bench: &mut Bench) {
    let (_, dial) = bench.dials.pop().unwrap();
    bench.run(Duration::from_millis(1));
    bench.close(dial.conn, "connection refused");
}

#[test]
fn a_peer_that_refuses_is_tried_at_most_15_times_in_a_minute() {
    for (code, subcode) in [(6, 2), (2, 2), (6, 5)] {
        for seed in 0..20 {
            let mut bench = Bench::seeded(config(), seed);
            let moments = attempts(&mut bench, secs(60), refuses(code, subcode));
            assert!((3..=15).contains(&moments.len()), "{} attempts", moments.len());
            assert_eq!(bench.ups, 0);
            let loud = bench.notes.iter().filter(|(l, _)| *l > standfast_core::node::Level::Debug).count();
            assert!(loud <= 2, "{:?}", bench.notes);
        }
    }
}

#[test]
fn a_peer_that_ends_each_session_at_once_is_tried_at_most_15_times_in_a_minute() {
    let mut bench = Bench::new(config());
    let moments = attempts(&mut bench, secs(60), |bench| {
        let conn = bench.establish(&their_open());
        bench.receive(conn, &notification(6, 2, &[]));
    });
    assert!((3..=15).contains(&moments.len()), "{}", moments.len());
}

#[test]
fn a_peer_that_refused_for_long_is_up_within_the_longest_delay() {
    let mut bench = Bench::new(config());
    attempts(&mut bench, secs(600), refuses(6, 2));
    let healed = bench.now;
    bench.establish(&their_open());
    assert!(bench.now.since(healed) <= secs(30), "{:?}", bench.now.since(healed));
}

#[test]
fn nobody_listening_is_knocked_at_every_second() {
    let mut bench = Bench::new(config());
    let moments = attempts(&mut bench, secs(600), unreachable);
    let gaps: Vec<_> = moments.windows(2).map(|w| w[1].since(w[0])).collect();
    assert!(gaps.iter().all(|g| *g <= secs(1) && *g >= Duration::from_millis(700)), "{gaps:?}");
    let loud = bench.notes.iter().filter(|(l, _)| *l > standfast_core::node::Level::Debug).count();
    assert!(loud <= 2, "{loud} lines");
}

#[test]
fn a_dial_into_a_black_hole_asks_for_a_short_timeout() {
    let mut bench = Bench::new(config());
    bench.tick();
    assert!(bench.dials[0].1.timeout <= secs(1));
}

#[test]
fn nobody_answering_is_dialled_again_when_the_timeout_has_passed_and_a_little_later_at_most() {
    let mut bench = Bench::new(config());
    let moments = attempts(&mut bench, secs(600), |bench| {
        let (_, dial) = bench.dials.pop().unwrap();
        bench.run(dial.timeout);
        bench.close(dial.conn, "no answer");
    });
    let gaps: Vec<_> = moments.windows(2).map(|w| w[1].since(w[0])).collect();
    assert!(gaps.iter().all(|g| *g >= secs(1) && *g <= Duration::from_millis(1050)), "{gaps:?}");
}

#[test]
fn the_first_dial_is_at_once() {
    let mut bench = Bench::new(config());
    let start = bench.now;
    bench.answer();
    assert_eq!(bench.now, start);
}

#[test]
fn a_stable_session_forgets_earlier_failures() {
    let mut bench = Bench::new(config());
    attempts(&mut bench, secs(300), refuses(6, 2));
    let conn = bench.establish(&their_open());
    bench.run_alive(conn, secs(60));
    bench.close(conn, "reset");
    let lost = bench.now;
    bench.establish(&their_open());
    assert!(bench.now.since(lost) <= secs(2), "{:?}", bench.now.since(lost));
}

#[test]
fn a_session_that_is_lost_on_its_way_is_dialled_again_within_a_second_however_often() {
    // The peer is cut off or frozen for a while again and again, by BFD's word, the hold timer's or none.
    for (code, subcode) in [(6, 10), (4, 0), (0, 0)] {
        let mut bench = Bench::new(config());
        let mut lost = bench.now;
        for _ in 0..10 {
            let conn = bench.establish(&their_open());
            assert!(bench.now.since(lost) <= secs(1), "{:?}", bench.now.since(lost));
            bench.run_alive(conn, secs(3));
            match code {
                0 => bench.close(conn, "reset"),
                _ => bench.receive(conn, &notification(code, subcode, &[])),
            }
            lost = bench.now;
        }
    }
}

#[test]
fn a_peer_that_ends_each_session_at_once_without_a_word_is_tried_at_most_15_times_in_a_minute() {
    let mut bench = Bench::new(config());
    let moments = attempts(&mut bench, secs(60), |bench| {
        let conn = bench.establish(&their_open());
        bench.close(conn, "closed by the peer");
    });
    assert!((3..=15).contains(&moments.len()), "{}", moments.len());
}

#[test]
fn a_hold_timer_that_ends_a_stable_session_is_followed_by_a_dial() {
    let (mut bench, conn) = Bench::up(config(), &their_open());
    bench.run_alive(conn, secs(60));
    let silent = bench.now;
    while !bench.is_closed(conn) {
        bench.run(Duration::from_millis(100));
    }
    assert!(bench.now.since(silent) <= Duration::from_millis(9200));
    bench.establish(&their_open());
    assert!(bench.now.since(silent) <= secs(12));
}

#[test]
fn a_passive_session_never_dials() {
    let mut bench = Bench::new(PeerConfig { passive: true, ..config() });
    bench.run(secs(600));
    let conn = bench.accept();
    bench.receive(conn, &[their_open(), keepalive()].concat());
    assert_eq!(bench.ups, 1);
    bench.run_alive(conn, secs(60));
    bench.close(conn, "reset");
    bench.run(secs(600));
    assert!(bench.dials.is_empty());
}

#[test]
fn a_stopped_session_neither_dials_nor_accepts() {
    let mut bench = Bench::new(config());
    bench.tick();
    let dial = bench.dials[0].1.conn;
    bench.input(SessionInput::Stop("bye".into()));
    assert!(bench.is_closed(dial));
    bench.run(secs(600));
    assert!(bench.dials.is_empty());
    let conn = bench.accept();
    assert!(bench.is_closed(conn));
    assert!(bench.session.is_over());
}

#[test]
fn a_refused_handshake_is_never_called_established() {
    let mut bench = Bench::new(config());
    attempts(&mut bench, secs(60), refuses(6, 2));
    assert!(!bench.notes.iter().any(|(_, n)| n.starts_with("established")), "{:?}", bench.notes);
}

#[test]
fn rfc5882_s4_a_session_that_bfd_lost_is_not_completed_before_bfd_is_up_and_is_after_30_s() {
    let lose = |bench: &mut Bench| {
        bench.input(SessionInput::Liveness(Liveness::Alive));
        bench.input(SessionInput::Liveness(Liveness::Lost("nothing heard".into(), secs(30))));
    };
    for back in [Some(secs(3)), None] {
        let (mut bench, conn) = Bench::up(config(), &their_open());
        bench.run_alive(conn, secs(60));
        lose(&mut bench);
        assert_eq!(bench.notified(conn), (6, 10, vec![]));
        let lost = bench.now;
        let conn = bench.answer();
        bench.receive(conn, &[their_open(), keepalive()].concat());
        let answered = |bench: &mut Bench| bench.messages(conn).contains(&keepalive());
        assert!(!answered(&mut bench), "its OPEN is answered before BFD is up");
        let wait = back.unwrap_or(secs(30));
        bench.run_until(lost + (wait - Duration::from_millis(100)));
        assert!(!answered(&mut bench) && bench.session.state() != State::Established);
        bench.run_until(lost + wait);
        if back.is_some() {
            bench.input(SessionInput::Liveness(Liveness::Alive));
        }
        assert_eq!((bench.ups, bench.downs), (2, 1), "{:?}", bench.notes);
        let waits = bench.notes.iter().filter(|(_, text)| text.starts_with("waits for BFD")).count();
        assert_eq!(waits, 1, "{:?}", bench.notes);
        bench.run_alive(conn, secs(60));
        assert_eq!((bench.ups, bench.downs), (2, 1));
    }
    // What was lost long ago is not waited for.
    let (mut bench, conn) = Bench::up(config(), &their_open());
    lose(&mut bench);
    assert!(bench.is_closed(conn));
    bench.run(secs(31));
    bench.dials.clear();
    let conn = bench.accept();
    bench.receive(conn, &[their_open(), keepalive()].concat());
    assert_eq!(bench.ups, 2);
}

#[test]
fn a_connection_that_the_peer_opened_anew_outlives_the_loss_that_tells_of_its_restart() {
    let (mut bench, old) = Bench::up(config(), &their_open());
    bench.run_alive(old, secs(60));
    bench.input(SessionInput::Liveness(Liveness::Alive));
    let new = bench.accept();
    bench.receive(new, &[their_open(), keepalive()].concat());
    bench.input(SessionInput::Liveness(Liveness::Lost("the peer started anew".into(), secs(30))));
    assert!(bench.is_closed(old) && !bench.is_closed(new));
    assert_eq!((bench.ups, bench.downs), (1, 1));
    bench.input(SessionInput::Liveness(Liveness::Alive));
    assert_eq!((bench.ups, bench.downs), (2, 1));
}
