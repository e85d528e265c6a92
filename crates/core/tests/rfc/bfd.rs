//! BFD: RFC 5880, 5881 and 5883, against a scripted peer and between two machines.

use std::time::Duration;

use standfast_core::bfd::wire::{Diagnostic, Packet, Refusal};
use standfast_core::bfd::{Bfd, Input, Key, MAX_SESSIONS, Output, Reason, State};
use standfast_core::machine::{Machine, Rng, Time};
use standfast_core::plan::{self, BfdAuth, Secret, Ttl};
use standfast_core::table::Change;

use crate::bench::bfd::*;

/// Brings a session to `state`.
fn at(state: State) -> BfdBench {
    let mut bench = BfdBench::new(plan());
    match state {
        State::Down => {}
        State::Init => bench.say(their(State::Down)),
        State::Up => bench = BfdBench::up(plan()),
        State::AdminDown => {
            bench.say(their(State::Down));
            bench.handle(Input::Wanted(Change::Remove(key())));
        }
    }
    assert_eq!(bench.state(), state);
    bench
}

#[test]
fn rfc5880_s6_2_every_state_follows_the_table() {
    use State::{AdminDown, Down, Init, Up};
    // Ours, the other end's, what becomes of ours, and the diagnostic of a change.
    let table = [
        (Down, AdminDown, Down, 0),
        (Down, Down, Init, 0),
        (Down, Init, Up, 0),
        (Down, Up, Down, 0),
        (Init, AdminDown, Down, 3),
        (Init, Down, Init, 0),
        (Init, Init, Up, 0),
        (Init, Up, Up, 0),
        (Up, AdminDown, Down, 3),
        (Up, Down, Down, 3),
        (Up, Init, Up, 0),
        (Up, Up, Up, 0),
        (AdminDown, AdminDown, AdminDown, 7),
        (AdminDown, Down, AdminDown, 7),
        (AdminDown, Init, AdminDown, 7),
        (AdminDown, Up, AdminDown, 7),
    ];
    for (ours, theirs, next, diagnostic) in table {
        let mut bench = at(ours);
        bench.say(their(theirs));
        let told = (bench.state(), bench.report().diagnostic);
        assert_eq!(told, (next, Diagnostic(diagnostic)), "{ours}, told {theirs}");
    }
    for (ours, next, diagnostic) in [(Down, Down, 0), (Init, Down, 1), (Up, Down, 1)] {
        let mut bench = at(ours);
        bench.run(Duration::from_secs(4));
        let told = (bench.state(), bench.report().diagnostic);
        assert_eq!(told, (next, Diagnostic(diagnostic)), "{ours}, told nothing");
    }
}

#[test]
fn rfc5880_s6_8_1_the_first_packet_knows_nothing_of_the_other_end() {
    let bench = BfdBench::new(plan());
    let first = bench.last();
    assert_eq!((first.state, first.diagnostic), (State::Down, Diagnostic::NONE));
    assert_eq!((first.your_discriminator, first.poll, first.demand), (0, false, false));
    assert_ne!(first.my_discriminator, 0);
    assert_eq!(first.multiplier, 3);
    assert_eq!(first.required_min_rx, ms(50));
}

#[test]
fn rfc5880_s6_8_1_discriminators_are_unique_and_not_zero() {
    let mut machine = Bfd::new(5);
    let mut out = Vec::new();
    for n in 0..2000u32 {
        let key = Key { address: std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).into(), ..key() };
        machine.handle(Time::from_secs(1), wanted(key, plan()), &mut out);
    }
    machine.tick(Time::from_secs(1), &mut out);
    let sent = out.iter().filter_map(|o| if let Output::Send(_, octets) = o { Some(octets) } else { None });
    let mut numbers: Vec<u32> = sent.map(|o| Packet::decode(o).unwrap().0.my_discriminator).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 2000);
    assert!(!numbers.contains(&0));
    assert!(machine.tag() != 0 && numbers.iter().all(|n| n >> 16 == u32::from(machine.tag())));
}

#[test]
fn rfc5880_s6_8_3_a_session_that_is_not_up_is_slow() {
    let mut bench = BfdBench::new(plan());
    let start = bench.now;
    bench.run(Duration::from_secs(60));
    assert!(bench.since(start).iter().all(|p| p.desired_min_tx == Duration::from_secs(1)));
    assert!((59..=80).contains(&bench.since(start).len()), "{} in a minute", bench.since(start).len());
    // Slower ones stay as slow as they are.
    let bench = BfdBench::new(plan::Bfd { interval: Duration::from_secs(2), ..plan() });
    assert_eq!(bench.last().desired_min_tx, Duration::from_secs(2));
}

#[test]
fn rfc5880_s6_8_3_a_change_of_intervals_is_polled_until_it_is_answered() {
    let mut bench = at(State::Init);
    bench.say(their(State::Init));
    let up = bench.now;
    assert_eq!((bench.last().state, bench.last().poll), (State::Up, true));
    assert_eq!(bench.last().desired_min_tx, ms(50));
    bench.run_alive(ms(400), their(State::Up));
    assert!(bench.since(up).iter().all(|p| p.poll), "nobody answered");
    bench.answer();
    let answered = bench.now;
    bench.run_alive(ms(400), their(State::Up));
    assert!(bench.since(answered).iter().all(|p| !p.poll));
    assert!(bench.since(answered).len() >= 7);
}

#[test]
fn rfc5880_s6_8_3_up_a_longer_interval_counts_only_once_the_other_end_knows() {
    let mut bench = BfdBench::up(plan());
    let slower = plan::Bfd { interval: ms(200), ..plan() };
    bench.handle(wanted(key(), slower));
    let changed = bench.now;
    assert_eq!((bench.last().desired_min_tx, bench.last().poll), (ms(200), true));
    bench.run_alive(ms(400), their(State::Up));
    assert!(bench.gaps(changed).iter().all(|g| *g <= ms(50)), "{:?}", bench.gaps(changed));
    bench.answer();
    let answered = bench.now;
    bench.run_alive(Duration::from_secs(2), their(State::Up));
    let gaps = bench.gaps(answered);
    assert!(gaps.iter().all(|g| (ms(150)..=ms(200)).contains(g)), "{gaps:?}");
    assert_eq!(bench.report().losses, 0);
}

#[test]
fn rfc5880_s6_8_3_up_a_shorter_receive_interval_counts_only_once_the_other_end_knows() {
    let mut bench = BfdBench::up(plan::Bfd { min_rx: ms(200), ..plan() });
    assert_eq!(bench.report().detection_time, Some(ms(600)));
    bench.handle(wanted(key(), plan()));
    bench.say(their(State::Up));
    assert_eq!(bench.report().detection_time, Some(ms(600)));
    bench.answer();
    assert_eq!(bench.report().detection_time, Some(ms(150)));
}

#[test]
fn rfc5880_s6_8_3_another_key_or_reach_is_another_session() {
    let mut bench = BfdBench::up(plan());
    let ours = bench.last().my_discriminator;
    bench.handle(wanted(key(), plan::Bfd { min_ttl: 254, ..plan() }));
    bench.run(Duration::ZERO);
    assert_ne!(bench.last().my_discriminator, ours);
    assert_eq!(bench.state(), State::Down);
}

#[test]
fn rfc5880_s6_8_4_the_detection_time_is_the_other_ends_multiplier_times_the_longer_interval() {
    for (min_rx, desired, multiplier, want) in
        [(50, 50, 3, 150), (50, 100, 5, 500), (200, 100, 2, 400), (50, 10, 1, 50), (50, 1000, 255, 255_000)]
    {
        let mut bench = BfdBench::up(plan::Bfd { min_rx: ms(min_rx), multiplier: 7, ..plan() });
        bench.say(Packet { desired_min_tx: ms(desired), multiplier, ..their(State::Up) });
        let last = bench.now;
        assert_eq!(bench.report().detection_time, Some(ms(want)));
        bench.run(ms(want - 1));
        assert_eq!(bench.state(), State::Up, "{min_rx} {desired} {multiplier}");
        bench.run(ms(1));
        assert_eq!(bench.state(), State::Down, "{min_rx} {desired} {multiplier}");
        assert_eq!(bench.report().reason, Reason::Silent(ms(want)));
        let down = bench.sent.iter().find(|s| s.0 > last && s.1.state == State::Down).unwrap();
        assert_eq!(down.0.since(last), ms(want), "it is said at once");
        assert_eq!(down.1.diagnostic, Diagnostic::EXPIRED);
    }
}

#[test]
fn rfc5880_s6_8_1_after_a_detection_time_of_silence_the_other_end_is_unknown() {
    let mut bench = BfdBench::up(plan());
    bench.run(ms(150));
    assert_eq!(bench.last().your_discriminator, 0);
    // A session that is down forgets, too.
    let mut bench = BfdBench::new(plan());
    bench.say(Packet { required_min_rx: Duration::ZERO, ..their(State::AdminDown) });
    assert_eq!(bench.report().peer_state, Some(State::AdminDown));
    let start = bench.now;
    bench.run(Duration::from_secs(3));
    assert_eq!(bench.report().peer_state, None);
    assert!(!bench.since(start).is_empty(), "it speaks again");
    assert_eq!(bench.last().your_discriminator, 0);
}

#[test]
fn rfc5880_s6_8_6_a_packet_without_our_discriminator_counts_only_from_one_that_is_down() {
    let mut bench = BfdBench::up(plan());
    for state in [State::Init, State::Up] {
        bench.arrive(Some(255), &their(state).encode(None));
    }
    assert_eq!(bench.refused(), [("your_discriminator", 2)]);
    bench.arrive(Some(255), &Packet { your_discriminator: 5, ..their(State::Down) }.encode(None));
    assert_eq!(bench.refused(), [("your_discriminator", 2), ("no_session", 1)]);
    assert_eq!(bench.state(), State::Up);
    bench.run(Duration::from_secs(1));
    assert_eq!(bench.state(), State::Down, "what was dropped was not heard");
    assert_eq!(bench.report().refused, 3);
    assert_eq!(bench.counters.refused.values().sum::<u64>(), 3);
}

#[test]
fn rfc5880_s6_8_6_a_packet_for_another_session_is_not_for_its_sender() {
    let mut bench = BfdBench::up(plan());
    let ours = bench.last().my_discriminator;
    let other = Key { address: [192, 0, 2, 2].into(), ..key() };
    let packet = Packet { your_discriminator: ours, ..their(State::Down) }.encode(None);
    bench.handle(Input::Received { from: other, ttl: Some(255), octets: packet.clone() });
    assert_eq!(bench.refused(), [("no_session", 1)]);
    bench.machine.handle(bench.now, wanted(other, plan()), &mut Vec::new());
    bench.handle(Input::Received { from: other, ttl: Some(255), octets: packet });
    assert_eq!(bench.refused(), [("no_session", 1), ("source", 1)]);
    assert_eq!(bench.state(), State::Up);
}

#[test]
fn rfc5880_s6_8_6_what_is_switched_off_drops_everything() {
    let mut bench = at(State::AdminDown);
    bench.say(their(State::Init));
    bench.say(Packet { poll: true, ..their(State::Down) });
    assert_eq!(bench.refused(), [("admin_down", 2)]);
    assert!(bench.since(Time::ZERO).iter().all(|p| !p.is_final));
}

#[test]
fn rfc5880_s6_8_7_a_poll_is_answered_at_once_whatever_the_timers_say() {
    for state in [State::Down, State::Init, State::Up] {
        let mut bench = at(state);
        let quiet = Packet { required_min_rx: Duration::ZERO, poll: true, ..their(State::Up) };
        let before = bench.sent.len();
        bench.say(if state == State::Down { Packet { state: State::Down, ..quiet } } else { quiet });
        assert_eq!(bench.sent.len(), before + 1, "{state}");
        assert!(bench.last().is_final && !bench.last().poll);
    }
}

#[test]
fn a_flood_of_polls_is_answered_no_more_often_than_polls_may_come() {
    let mut bench = BfdBench::up(plan());
    let start = bench.now;
    let poll = Packet { poll: true, ..their(State::Up) };
    for _ in 0..20_000 {
        bench.run(Duration::from_micros(50));
        bench.say(poll);
    }
    // Half of the 50 ms that the other end keeps to, for a second, and a few at once.
    let finals = bench.since(start).iter().filter(|p| p.is_final).count();
    assert!((40..=46).contains(&finals), "{finals}");
    assert_eq!(bench.state(), State::Up);
    // An end that means it is answered each time.
    for _ in 0..20 {
        bench.run_alive(ms(40), their(State::Up));
        let polled = bench.now;
        bench.say(poll);
        assert!(bench.sent.iter().any(|(at, p, _)| *at == polled && p.is_final));
    }
}

#[test]
fn who_asks_to_be_waited_for_longer_than_anybody_should_is_not_heard() {
    let hour = Duration::from_secs(3600);
    let slow = |state| Packet { desired_min_tx: hour, ..their(state) };
    let mut bench = BfdBench::new(plan());
    bench.say(slow(State::Down));
    assert_eq!((bench.state(), bench.refused()), (State::Down, vec![("slow", 1)]));
    // Up, it cannot buy itself time either: the detection time is what it was.
    let mut bench = BfdBench::up(plan());
    let heard = bench.now;
    bench.run(ms(100));
    bench.say(slow(State::Up));
    bench.say(Packet {
        poll: true,
        multiplier: 255,
        desired_min_tx: Duration::from_secs(2),
        ..their(State::Up)
    });
    assert_eq!(bench.report().detection_time, Some(ms(150)));
    bench.run(ms(100));
    assert_eq!((bench.state(), bench.report().reason.clone()), (State::Down, Reason::Silent(ms(150))));
    assert!(bench.now.since(heard) <= ms(200));
    // The most that an end may need before it is up, and the most that is borne.
    for (multiplier, seconds, state) in [(255, 1, State::Init), (3, 100, State::Init), (3, 101, State::Down)]
    {
        let mut bench = BfdBench::new(plan());
        let desired_min_tx = Duration::from_secs(seconds);
        bench.say(Packet { multiplier, desired_min_tx, ..their(State::Down) });
        assert_eq!(bench.state(), state, "{multiplier} x {seconds} s");
    }
}

#[test]
fn rfc5880_s6_8_7_packets_keep_to_the_longer_interval_less_a_quarter_at_random() {
    for (desired, theirs, multiplier, range) in [
        (50, 50, 3, ms(37)..=ms(50)),
        (50, 200, 3, ms(150)..=ms(200)),
        (200, 50, 3, ms(150)..=ms(200)),
        (100, 50, 1, ms(75)..=ms(90)),
    ] {
        let mut bench = BfdBench::up(plan::Bfd { interval: ms(desired), multiplier, ..plan() });
        let alive = Packet { required_min_rx: ms(theirs), ..their(State::Up) };
        bench.say(alive);
        bench.run_alive(Duration::from_secs(1), alive);
        let start = bench.now;
        bench.run_alive(Duration::from_secs(40), alive);
        let gaps = bench.gaps(start);
        assert!(gaps.iter().all(|g| range.contains(g)), "{desired} {theirs} {multiplier}: {gaps:?}");
        // They are spread, and over the whole of it.
        let (least, most) = (gaps.iter().min().unwrap(), gaps.iter().max().unwrap());
        let width = *range.end() - *range.start();
        assert!(*most - *least > width * 3 / 4, "{desired} {theirs} {multiplier}: {least:?} to {most:?}");
    }
}

#[test]
fn rfc5880_s6_8_7_nothing_is_sent_to_one_that_wants_nothing() {
    let mut bench = BfdBench::up(plan());
    let deaf = Packet { required_min_rx: Duration::ZERO, ..their(State::Up) };
    bench.say(deaf);
    let start = bench.now;
    bench.run_alive(Duration::from_secs(5), deaf);
    assert!(bench.since(start).is_empty());
    assert_eq!(bench.state(), State::Up);
    bench.run_alive(Duration::from_secs(1), their(State::Up));
    assert!(bench.since(start).len() >= 15);
}

#[test]
fn rfc5880_s6_1_the_passive_end_waits_until_it_is_spoken_to() {
    let mut bench = BfdBench::new(plan::Bfd { passive: true, ..plan() });
    bench.run(Duration::from_secs(5));
    assert!(bench.sent.is_empty());
    bench.arrive(Some(255), &their(State::Down).encode(None));
    assert_eq!((bench.state(), bench.last().state), (State::Init, State::Init));
}

#[test]
fn rfc5880_s6_6_demand_mode_of_the_other_end_is_kept_to_while_both_are_up() {
    let mut bench = BfdBench::up(plan());
    let demand = Packet { demand: true, ..their(State::Up) };
    bench.say(demand);
    let start = bench.now;
    bench.run_alive(Duration::from_secs(5), demand);
    assert!(bench.since(start).is_empty(), "it wants no periodic packets");
    bench.say(Packet { poll: true, ..demand });
    assert_eq!(bench.since(start).iter().filter(|p| p.is_final).count(), 1);
    // A poll of ours is repeated all the same.
    bench.handle(wanted(key(), plan::Bfd { interval: ms(60), ..plan() }));
    let polled = bench.now;
    bench.run_alive(ms(400), demand);
    assert!(bench.since(polled).len() >= 5 && bench.since(polled).iter().all(|p| p.poll));
    bench.say(Packet { is_final: true, ..demand });
    let answered = bench.now;
    bench.run_alive(ms(400), demand);
    assert!(bench.since(answered).is_empty());
    // Its silence is none the less noticed, and then we speak.
    bench.run(Duration::from_secs(2));
    assert_eq!(bench.state(), State::Down);
    assert!(!bench.since(answered).is_empty());
}

#[test]
fn rfc5880_s6_4_we_offer_no_echo() {
    let mut bench = BfdBench::up(plan());
    bench.run_alive(Duration::from_secs(1), Packet { required_min_echo_rx: ms(50), ..their(State::Up) });
    assert!(bench.sent.iter().all(|s| s.1.required_min_echo_rx.is_zero()));
}

#[test]
fn rfc5880_s4_1_our_liveness_ends_with_our_control_plane() {
    let mut bench = BfdBench::up(plan());
    bench.say(Packet { control_plane_independent: true, ..their(State::Up) });
    assert!(bench.report().control_plane_independent);
    assert!(bench.sent.iter().all(|s| !s.1.control_plane_independent && !s.1.demand));
}

#[test]
fn rfc5880_s6_8_16_who_is_switched_off_says_so_and_not_forever() {
    let mut bench = BfdBench::up(plan());
    let start = bench.now;
    bench.handle(Input::Stop);
    assert_eq!((bench.last().state, bench.last().diagnostic), (State::AdminDown, Diagnostic::ADMIN_DOWN));
    assert!(!bench.stopped);
    bench.run(Duration::from_secs(5));
    assert!(bench.stopped);
    let goodbyes = bench.sent.iter().filter(|s| s.0 >= start && s.1.state == State::AdminDown).count();
    // Three at the least, and for a detection time: of the longer multiplier, and at a pace that the other end knows.
    assert!((4..=6).contains(&goodbyes), "{goodbyes}");
    assert!(bench.sent.last().unwrap().0.since(start) >= ms(150));
    // RFC 5880 §6.8.3: who is not up says that he is slow.
    let slow = |s: &(Time, Packet, Vec<u8>)| s.1.desired_min_tx >= Duration::from_secs(1);
    assert!(bench.sent.iter().filter(|s| s.1.state == State::AdminDown).all(slow));
    let mut bench = BfdBench::up(plan::Bfd { multiplier: 10, ..plan() });
    let start = bench.now;
    bench.handle(Input::Wanted(Change::Remove(key())));
    bench.run(Duration::from_secs(5));
    let last = bench.sent.last().unwrap().0.since(start);
    assert!(last >= ms(500) && last < ms(600), "{last:?}");
    // Nobody need be told where nobody was heard.
    let mut bench = BfdBench::new(plan());
    bench.handle(Input::Stop);
    assert!(bench.stopped);
    assert_eq!(bench.sent.len(), 1);
}

#[test]
fn rfc5882_s3_2_a_peer_that_is_switched_off_is_not_lost() {
    let mut bench = BfdBench::up(plan());
    bench.say(Packet { diagnostic: Diagnostic::ADMIN_DOWN, ..their(State::AdminDown) });
    assert_eq!(bench.report().reason, Reason::PeerAdminDown);
    assert_eq!(bench.report().losses, 0);
    assert!(bench.report().lets_pass());
    // It says that it is down, or nothing at all: lost, once.
    for silent in [false, true] {
        let mut bench = BfdBench::up(plan());
        if !silent {
            bench.say(Packet { diagnostic: Diagnostic::EXPIRED, ..their(State::Down) });
        }
        bench.run(Duration::from_secs(3));
        assert_eq!(bench.report().losses, 1);
        assert!(!bench.report().lets_pass());
    }
}

#[test]
fn rfc5881_s5_a_packet_from_more_than_one_hop_away_is_dropped() {
    let mut bench = BfdBench::new(plan());
    let packet = their(State::Down).encode(None);
    for ttl in [None, Some(0), Some(1), Some(254)] {
        bench.arrive(ttl, &packet);
    }
    assert_eq!((bench.state(), bench.refused()), (State::Down, vec![("hops", 4)]));
    bench.arrive(Some(255), &packet);
    assert_eq!(bench.state(), State::Init);
}

#[test]
fn rfc5883_s5_a_multihop_session_takes_the_hop_limit_that_it_is_given_and_is_one_of_its_own() {
    assert_eq!(plan::Bfd::reach(Ttl::Direct), (false, 255));
    assert_eq!(plan::Bfd::reach(Ttl::Security(1)), (false, 255));
    assert_eq!(plan::Bfd::reach(Ttl::Security(3)), (true, 253));
    assert_eq!(plan::Bfd::reach(Ttl::Multihop(16)), (true, 1));
    let mut machine = Bfd::new(1);
    let far = Key { multihop: true, ..key() };
    let now = Time::from_secs(1);
    machine.handle(now, wanted(far, plan::Bfd { multihop: true, min_ttl: 200, ..plan() }), &mut Vec::new());
    let mut state = |from, ttl| {
        let mut out = Vec::new();
        let octets = their(State::Down).encode(None);
        machine.handle(now, Input::Received { from, ttl: Some(ttl), octets }, &mut out);
        out.into_iter().find_map(|o| if let Output::Report(_, r) = o { Some(r.state) } else { None })
    };
    assert_eq!(state(far, 199), None);
    assert_eq!(state(key(), 255), None, "the port is another session's");
    assert_eq!(state(far, 200), Some(State::Init));
}

fn auth(meticulous: bool) -> Option<BfdAuth> {
    Some(BfdAuth { meticulous, key_id: 7, key: Secret::new("key".into()) })
}

/// A packet of the peer with this sequence number.
fn signed(bench: &BfdBench, state: State, sequence: u32) -> Vec<u8> {
    let your_discriminator = bench.last().my_discriminator;
    let packet = Packet { your_discriminator, ..their(state) };
    packet.encode(bench.plan.auth.as_ref().map(|a| (a, sequence)))
}

#[test]
fn rfc5880_s6_7_4_sequence_numbers_move_on_inside_a_window() {
    // How far ahead of the last one, and whether it is taken.
    let keyed = [(0, true), (9, true), (10, false), (u32::MAX, false)];
    let meticulous = [(0, false), (1, true), (9, true), (10, false), (u32::MAX, false)];
    for (kind, cases) in [(false, &keyed[..]), (true, &meticulous[..])] {
        // At the end of the number space they go round.
        for first in [0, 77, u32::MAX - 4] {
            for &(ahead, taken) in cases {
                let mut bench = BfdBench::new(plan::Bfd { auth: auth(kind), ..plan() });
                bench.arrive(Some(255), &signed(&bench, State::Down, first));
                assert_eq!(bench.state(), State::Init);
                bench.arrive(Some(255), &signed(&bench, State::Init, first.wrapping_add(ahead)));
                let want = if taken { State::Up } else { State::Init };
                assert_eq!(bench.state(), want, "{first} + {ahead}, meticulous: {kind}");
                let refused = if taken { vec![] } else { vec![("auth_sequence", 1)] };
                assert_eq!(bench.refused(), refused);
            }
        }
    }
}

#[test]
fn rfc5880_s6_8_1_sequence_numbers_are_forgotten_after_two_detection_times() {
    let mut bench = BfdBench::new(plan::Bfd { auth: auth(true), ..plan() });
    bench.arrive(Some(255), &signed(&bench, State::Down, 1000));
    bench.run(ms(299));
    bench.arrive(Some(255), &signed(&bench, State::Down, 5));
    assert_eq!(bench.refused(), [("auth_sequence", 1)]);
    bench.run(ms(1));
    bench.arrive(Some(255), &signed(&bench, State::Down, 5));
    assert_eq!(bench.refused(), [("auth_sequence", 1)]);
    assert_eq!(bench.state(), State::Init);
}

#[test]
fn rfc5880_s6_7_4_what_is_not_authentic_is_not_heard() {
    let ours = plan::Bfd { auth: auth(true), ..plan() };
    let forge = |change: &dyn Fn(&mut BfdAuth)| {
        let mut bench = BfdBench::new(ours.clone());
        let mut other = ours.auth.clone().unwrap();
        change(&mut other);
        bench.arrive(Some(255), &their(State::Down).encode(Some((&other, 1))));
        assert_eq!(bench.state(), State::Down);
        bench.refused()
    };
    assert_eq!(forge(&|a| a.key = Secret::new("kez".into())), [("auth_digest", 1)]);
    assert_eq!(forge(&|a| a.key_id = 8), [("auth_key", 1)]);
    assert_eq!(forge(&|a| a.meticulous = false), [("auth_type", 1)]);
    let mut bench = BfdBench::new(ours.clone());
    bench.say(their(State::Down));
    assert_eq!((bench.state(), bench.refused()), (State::Down, vec![("auth_type", 1)]));
    bench.run(Duration::from_secs(2));
    assert_eq!(bench.report().last_refusal, Some(Refusal::AuthType));
    let mut bench = BfdBench::new(plan());
    bench.arrive(Some(255), &their(State::Down).encode(Some((&ours.auth.unwrap(), 1))));
    assert_eq!((bench.state(), bench.refused()), (State::Down, vec![("auth_type", 1)]));
    // A forged number moves no window.
    let mut bench = BfdBench::new(plan::Bfd { auth: auth(false), ..plan() });
    bench.arrive(Some(255), &signed(&bench, State::Down, 10));
    let mut forged = signed(&bench, State::Init, 15);
    *forged.last_mut().unwrap() ^= 1;
    bench.arrive(Some(255), &forged);
    bench.arrive(Some(255), &signed(&bench, State::Init, 11));
    assert_eq!((bench.state(), bench.refused()), (State::Up, vec![("auth_digest", 1)]));
}

#[test]
fn rfc5880_s6_7_4_our_numbers_move_with_every_packet_or_with_every_change() {
    for meticulous in [false, true] {
        let mut bench = BfdBench::new(plan::Bfd { auth: auth(meticulous), ..plan() });
        bench.run(Duration::from_secs(5));
        let sequence = |octets: &[u8]| Packet::decode(octets).unwrap().1.unwrap().sequence;
        let numbers: Vec<u32> = bench.sent.iter().map(|s| sequence(&s.2)).collect();
        let step = u32::from(meticulous);
        assert!(numbers.windows(2).all(|w| w[1] == w[0].wrapping_add(step)), "{numbers:?}");
        bench.arrive(Some(255), &signed(&bench, State::Down, 1));
        let last = *numbers.last().unwrap();
        assert_eq!(sequence(&bench.sent.last().unwrap().2), last.wrapping_add(1));
    }
}

#[test]
fn a_host_that_stood_still_holds_nobody_for_dead_until_it_has_listened() {
    let mut bench = BfdBench::up(plan());
    bench.say(their(State::Up));
    // It slept for a minute: the peer has another detection time to be heard, and only one.
    bench.now = bench.now + Duration::from_secs(60);
    bench.tick();
    assert_eq!(bench.state(), State::Up);
    bench.say(their(State::Up));
    bench.run(ms(149));
    assert_eq!(bench.state(), State::Up);
    bench.now = bench.now + Duration::from_secs(60);
    bench.tick();
    bench.run(ms(149));
    assert_eq!(bench.state(), State::Up);
    bench.run(ms(1));
    assert_eq!(bench.state(), State::Down);
    // Packets that waited in the socket are read before anybody judges, the bad ones among them too.
    let mut bench = BfdBench::up(plan());
    bench.say(their(State::Up));
    bench.now = bench.now + ms(160);
    bench.arrive(Some(254), &their(State::Up).encode(None));
    bench.say(their(State::Up));
    bench.tick();
    assert_eq!(bench.state(), State::Up);
}

#[test]
fn rfc5880_s6_8_6_both_poll_and_final_are_no_reason_to_drop_a_packet() {
    let mut bench = BfdBench::up(plan());
    bench.say(Packet { poll: true, is_final: true, ..their(State::Up) });
    assert!(bench.last().is_final && !bench.last().poll);
    assert_eq!(bench.report().refused, 0);
}

#[test]
fn sessions_are_bounded_in_number() {
    let mut machine = Bfd::new(5);
    let mut out = Vec::new();
    let one = |n: usize| Key { address: std::net::Ipv4Addr::from_bits(n as u32 + 1).into(), ..key() };
    for n in 0..=MAX_SESSIONS {
        machine.handle(Time::from_secs(1), wanted(one(n), plan()), &mut out);
    }
    let full = out.iter().filter(|o| matches!(o, Output::Report(_, r) if r.reason == Reason::Full)).count();
    assert_eq!(full, 1);
    // Who waits is next as soon as there is room, unless nobody wants it any more.
    machine.handle(Time::from_secs(1), wanted(one(MAX_SESSIONS + 1), plan()), &mut out);
    out.clear();
    machine.handle(Time::from_secs(1), Input::Wanted(Change::Remove(one(MAX_SESSIONS))), &mut out);
    assert_eq!(out, [Output::Closed(one(MAX_SESSIONS))]);
    machine.handle(Time::from_secs(1), Input::Wanted(Change::Remove(one(0))), &mut out);
    let begun = |o: &Output| matches!(o, Output::Report(k, r) if *k == one(MAX_SESSIONS + 1) && r.reason == Reason::New);
    assert!(out.iter().any(begun), "{out:?}");
    assert_eq!(machine.len(), MAX_SESSIONS);
}

/// Two machines and the wire between them.
struct Pair {
    ends: [Bfd; 2],
    now: Time,
    rng: Rng,
    flying: Vec<(Time, usize, Vec<u8>)>,
    /// Which directions lose everything.
    cut: [bool; 2],
    loss_percent: u64,
    state: [State; 2],
    reason: [Reason; 2],
    losses: [u64; 2],
    changed: [Time; 2],
}

impl Pair {
    fn new(seed: u64, plans: [plan::Bfd; 2]) -> Self {
        let now = Time::from_secs(1);
        let mut pair = Self {
            ends: [Bfd::new(seed), Bfd::new(seed ^ 0xffff)],
            now,
            rng: Rng::new(seed),
            flying: Vec::new(),
            cut: [false; 2],
            loss_percent: 0,
            state: [State::Down; 2],
            reason: [Reason::New, Reason::New],
            losses: [0; 2],
            changed: [now; 2],
        };
        for (end, plan) in plans.into_iter().enumerate() {
            pair.handle(end, wanted(key(), plan));
        }
        pair
    }

    fn handle(&mut self, end: usize, input: Input) {
        let mut out = Vec::new();
        self.ends[end].handle(self.now, input, &mut out);
        self.take(end, out);
    }

    fn take(&mut self, end: usize, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Send(_, octets) => {
                    let lost = self.cut[end] || self.rng.below(100) < self.loss_percent;
                    let at = self.now + Duration::from_micros(200 + self.rng.below(800));
                    // A cable keeps the order.
                    let last = self.flying.iter().filter(|f| f.1 == 1 - end).map(|f| f.0).max();
                    let at = last.map_or(at, |last| at.max(last));
                    if !lost {
                        self.flying.push((at, 1 - end, octets));
                    }
                }
                Output::Report(_, report) => {
                    if report.state != self.state[end] {
                        self.changed[end] = self.now;
                    }
                    self.state[end] = report.state;
                    self.reason[end] = report.reason;
                    self.losses[end] = report.losses;
                }
                Output::Counted(_) | Output::Closed(_) | Output::Stopped => {}
            }
        }
    }

    fn run(&mut self, d: Duration) {
        let end = self.now + d;
        loop {
            let flight = self.flying.iter().map(|f| f.0).min();
            let due = (0..2).filter_map(|i| Some((self.ends[i].deadline()?.0, i))).min();
            let next = flight.into_iter().chain(due.map(|d| d.0)).min().filter(|t| *t <= end);
            let Some(next) = next else { break };
            self.now = self.now.max(next);
            if let Some(i) = self.flying.iter().position(|f| f.0 <= self.now) {
                let (_, to, octets) = self.flying.remove(i);
                self.handle(to, Input::Received { from: key(), ttl: Some(255), octets });
            } else if let Some((_, i)) = due {
                let mut out = Vec::new();
                self.ends[i].tick(self.now, &mut out);
                self.take(i, out);
            }
        }
        self.now = end;
    }
}

#[test]
fn two_ends_come_up_notice_a_cut_cable_in_time_and_come_back_within_a_second_and_a_bit() {
    for seed in 0..200 {
        let plans = [plan(), plan::Bfd { interval: ms(100), min_rx: ms(30), ..plan() }];
        let mut pair = Pair::new(seed, plans);
        pair.run(ms(1100));
        assert_eq!(pair.state, [State::Up; 2], "seed {seed}");
        pair.run(Duration::from_secs(20));
        assert_eq!(pair.losses, [0, 0], "seed {seed}");
        pair.cut = [true, true];
        let cut = pair.now;
        pair.run(Duration::from_secs(5));
        // The second sends each 100 ms, the first each 50 ms: three of them, and what was on its way.
        for (end, most) in [(0, ms(301)), (1, ms(151))] {
            let took = pair.changed[end].since(cut);
            let least = most * 6 / 10;
            assert!((least..=most).contains(&took), "seed {seed}: end {end} took {took:?}");
            assert!(matches!(pair.reason[end], Reason::Silent(_)));
        }
        pair.cut = [false, false];
        let mended = pair.now;
        pair.run(Duration::from_secs(3));
        assert_eq!(pair.state, [State::Up; 2], "seed {seed}");
        let took = pair.changed[0].max(pair.changed[1]).since(mended);
        assert!(took < ms(1010), "seed {seed}: back after {took:?}");
    }
}

#[test]
fn a_cable_that_is_cut_in_one_direction_is_noticed_by_both_ends() {
    for seed in 0..100 {
        let mut pair = Pair::new(seed, [plan(), plan()]);
        pair.run(Duration::from_secs(5));
        pair.cut = [true, false];
        let cut = pair.now;
        pair.run(ms(160));
        assert_eq!(pair.state, [State::Down; 2], "seed {seed}");
        assert_eq!(pair.reason[0], Reason::Signalled(Diagnostic::EXPIRED));
        assert!(matches!(pair.reason[1], Reason::Silent(_)));
        assert!(pair.changed[0].since(cut) < ms(155));
    }
}

#[test]
fn one_packet_in_ten_may_be_lost() {
    let mut losses = 0;
    for seed in 0..20 {
        for auth in [None, auth(false), auth(true)] {
            let plan = plan::Bfd { multiplier: 5, auth, ..plan() };
            let mut pair = Pair::new(seed, [plan.clone(), plan]);
            pair.loss_percent = 10;
            pair.run(Duration::from_secs(60));
            losses += pair.losses[0] + pair.losses[1];
            assert_eq!(pair.state, [State::Up; 2], "seed {seed}");
        }
    }
    // Five in a row: one in 100,000 packets, of which 2 each 50 ms or so: about two in these 60 minutes.
    assert!(losses < 20, "{losses} losses");
}

#[test]
fn an_end_that_is_switched_off_is_no_loss_for_the_other_one() {
    let mut pair = Pair::new(3, [plan(), plan()]);
    pair.run(Duration::from_secs(5));
    pair.handle(0, Input::Wanted(Change::Remove(key())));
    pair.run(Duration::from_secs(60));
    assert_eq!((pair.losses[1], &pair.reason[1]), (0, &Reason::PeerAdminDown));
    pair.handle(0, wanted(key(), plan()));
    pair.run(ms(1100));
    assert_eq!(pair.state, [State::Up; 2]);
}

#[test]
fn an_end_that_dies_and_starts_anew_is_taken_back_with_its_new_numbers() {
    for auth in [None, auth(false), auth(true)] {
        let plan = plan::Bfd { auth, ..plan() };
        let mut pair = Pair::new(3, [plan.clone(), plan.clone()]);
        pair.run(Duration::from_secs(5));
        pair.ends[0] = Bfd::new(99);
        pair.handle(0, wanted(key(), plan));
        pair.run(ms(2500));
        assert_eq!(pair.state, [State::Up; 2]);
        assert_eq!(pair.losses[1], 1);
    }
}
