//! Verdicts in, health out.

use super::*;
use crate::plan::{Probe, Target, TcpProbe};

/// A gate of a check that may be silent for so many seconds; `None`: for ever.
fn of(rise: u32, fall: u32, lease: Option<u64>) -> Gate {
    let interval = Duration::from_secs(lease.unwrap_or(0));
    Gate::new(at(0), &Check { rise, fall, interval, fast_interval: interval, ..Check::new(Probe::External) })
}

fn at(s: u64) -> Time {
    Time::from_secs(s)
}

fn feed(gate: &mut Gate, now: Time, text: &str) -> Vec<Health> {
    text.chars()
        .filter_map(|c| {
            gate.push(
                now,
                match c {
                    '+' => Verdict::good(""),
                    '-' => Verdict::bad(""),
                    _ => Verdict { outcome: Outcome::NoResult, ..Verdict::good("") },
                },
            )
        })
        .collect()
}

#[test]
fn health_is_unknown_until_one_threshold_is_reached() {
    let mut gate = of(3, 2, None);
    assert_eq!(feed(&mut gate, at(0), "++"), []);
    assert_eq!(gate.health(), Health::Unknown);
    assert_eq!(feed(&mut gate, at(0), "+"), [Health::Healthy]);
    assert_eq!(feed(&mut of(3, 2, None), at(0), "--"), [Health::Unhealthy]);
}

#[test]
fn only_verdicts_in_a_row_count() {
    let mut gate = of(2, 3, None);
    assert_eq!(feed(&mut gate, at(0), "+-+-+"), []);
    assert_eq!(feed(&mut gate, at(0), "+"), [Health::Healthy]);
    assert_eq!(feed(&mut gate, at(0), "--+--+--"), []);
    assert_eq!(feed(&mut gate, at(0), "-"), [Health::Unhealthy]);
    assert_eq!(feed(&mut gate, at(0), "-----"), []);
    assert_eq!(feed(&mut gate, at(0), "++"), [Health::Healthy]);
}

#[test]
fn no_result_neither_counts_nor_starts_the_count_anew() {
    let mut gate = of(2, 2, None);
    assert_eq!(feed(&mut gate, at(0), "+?+"), [Health::Healthy]);
    assert_eq!(feed(&mut gate, at(0), "-?-"), [Health::Unhealthy]);
}

#[test]
fn a_check_that_never_has_a_result_is_silent() {
    let mut gate = of(1, 1, Some(3));
    gate.push(at(1), Verdict::good(""));
    feed(&mut gate, at(3), "?");
    assert_eq!(gate.tick(at(4)), Some(Health::Unhealthy));
}

#[test]
fn silence_is_a_bad_verdict_and_says_so() {
    let mut gate = of(1, 1, Some(3));
    assert_eq!(gate.push(at(1), Verdict::good("fine")), Some(Health::Healthy));
    assert_eq!(gate.deadline(), Some(at(4)));
    assert_eq!(gate.tick(Time::from_millis(3999)), None);
    assert_eq!(gate.tick(at(4)), Some(Health::Unhealthy));
    assert_eq!(gate.last().unwrap().1.detail, "no report for 3.0 s");
    assert!(gate.deadline().unwrap() > at(4));
}

#[test]
fn silence_names_the_last_reason_for_no_result() {
    let mut gate = paced(1, 1, None);
    let local = |why: &str| Verdict { outcome: Outcome::NoResult, ..Verdict::good(why) };
    let silent = |gate: &mut Gate| {
        let at = gate.deadline().unwrap();
        gate.tick(at);
        gate.last().unwrap().1.detail.clone()
    };
    let bare = silent(&mut gate);
    assert!(bare.starts_with("no result for ") && bare.ends_with(" s"), "{bare}");
    gate.push(at(3), local("too many open files"));
    gate.push(at(3), local("this process may not ping"));
    for _ in 0..2 {
        let told = silent(&mut gate);
        assert!(told.ends_with(" s: this process may not ping"), "{told}");
    }
    // It is no reason any more once there was a result.
    gate.push(at(30), Verdict::good("fine"));
    assert_eq!(gate.health(), Health::Healthy);
    let told = silent(&mut gate);
    assert!(told.ends_with(" s"), "{told}");
}

fn tcp() -> Probe {
    Probe::Tcp(Box::new(TcpProbe::new(Target::Address("127.0.0.1:80".parse().unwrap()))))
}

/// A gate of a check that runs once a second, or each 200 ms while hurried, with 50 ms for a run.
fn paced(rise: u32, fall: u32, slow: Option<(u64, u32)>) -> Gate {
    let check = Check {
        rise,
        fall,
        timeout: Duration::from_millis(50),
        fast_interval: Duration::from_millis(200),
        slow: slow.map(|(limit, times)| Slow { limit: Duration::from_millis(limit), times }),
        ..Check::new(tcp())
    };
    Gate::new(at(0), &check)
}

fn took(millis: u64) -> Verdict {
    Verdict { took: Duration::from_millis(millis), ..Verdict::good("200") }
}

#[test]
fn a_check_between_two_states_is_in_a_hurry() {
    let mut gate = paced(2, 3, None);
    let mut hurried = vec![gate.is_hurried()];
    for c in "++--+---+-++".chars() {
        feed(&mut gate, at(1), &c.to_string());
        hurried.push(gate.is_hurried());
    }
    let text: String = hurried.iter().map(|h| if *h { '!' } else { '.' }).collect();
    // Unknown; healthy; two bad ones and back; three bad ones; one good one that came to nothing; healthy.
    assert_eq!(text, "!!.!!.!!.!.!.");
    feed(&mut gate, at(1), "?");
    assert!(!gate.is_hurried(), "no result is no step");
}

#[test]
fn silence_is_measured_by_the_interval_in_force_and_is_a_second_at_least() {
    let mut check = Check::new(tcp());
    check.interval = Duration::from_secs(10);
    check.fast_interval = Duration::from_secs(2);
    (check.rise, check.fall) = (1, 2);
    let mut gate = Gate::new(at(0), &check);
    gate.push(at(1), Verdict::good(""));
    assert_eq!(gate.deadline(), Some(Time::from_millis(1_000 + 20_100)));
    gate.push(at(2), Verdict::bad(""));
    assert_eq!(gate.deadline(), Some(Time::from_millis(2_000 + 4_100)));
    gate.push(at(3), Verdict::good(""));
    assert_eq!(gate.deadline(), Some(Time::from_millis(3_000 + 20_100)));
    let mut quick = paced(1, 1, None);
    quick.push(at(1), Verdict::good(""));
    quick.push(at(1), Verdict::bad(""));
    assert_eq!(quick.deadline(), Some(Time::from_millis(3_050)));
    check.interval = Duration::from_millis(20);
    assert_eq!(check.stale(false), Some(Duration::from_secs(1)), "a hiccup of a busy host is no silence");
}

#[test]
fn runs_that_are_slow_too_often_count_as_bad_until_one_is_fast_enough() {
    let mut gate = paced(1, 2, Some((20, 3)));
    gate.push(at(1), took(10));
    assert_eq!(gate.health(), Health::Healthy);
    for _ in 0..2 {
        assert_eq!(gate.push(at(1), took(21)), None);
        assert_eq!(gate.consecutive_bad(), 0);
    }
    // As slow as allowed is not slow, and the count starts anew.
    assert_eq!(gate.push(at(1), took(20)), None);
    (0..2).for_each(|_| assert_eq!(gate.push(at(1), took(30)), None));
    assert_eq!(gate.push(at(1), took(31)), None);
    assert_eq!(gate.last().unwrap().1.detail, "slow: 3 runs in a row over 20ms, the last 31ms");
    assert_eq!((gate.consecutive_good(), gate.consecutive_bad()), (0, 1));
    // A failure between slow runs is no fast one.
    assert_eq!(gate.push(at(1), Verdict::bad("503")), Some(Health::Unhealthy));
    assert_eq!(gate.push(at(1), took(400)), None);
    assert_eq!(gate.last().unwrap().1.detail, "slow: 4 runs in a row over 20ms, the last 400ms");
    assert_eq!(gate.push(at(1), took(1)), Some(Health::Healthy));
    assert_eq!(gate.last().unwrap().1.detail, "200");
    assert_eq!(gate.runs().slow, 6);
    let mut strict = paced(1, 1, Some((20, 1)));
    assert_eq!(strict.push(at(1), took(21)), Some(Health::Unhealthy));
    assert_eq!(strict.last().unwrap().1.detail, "slow: 21ms, over 20ms");
}

#[test]
fn every_run_is_counted_for_what_it_was() {
    let mut gate = paced(2, 2, Some((20, 2)));
    feed(&mut gate, at(1), "+");
    gate.push(at(1), Verdict { timed_out: true, ..Verdict::bad("timed out") });
    feed(&mut gate, at(1), "?++-+");
    let flips = (0..3).filter_map(|_| gate.push(at(1), took(30)));
    assert_eq!(flips.collect::<Vec<_>>(), [Health::Unhealthy]);
    gate.tick(at(9));
    let want = Runs { good: 5, bad: 4, no_result: 1, timed_out: 1, absorbed: 5, slow: 3, silent: 1 };
    assert_eq!(*gate.runs(), want);
}

#[test]
fn checks_that_were_held_up_are_forgiven_once_until_the_next_result() {
    let mut gate = paced(1, 1, None);
    gate.push(at(1), Verdict::good(""));
    gate.forgive(at(3));
    assert_eq!(gate.tick(Time::from_millis(5_049)), None);
    assert!(gate.is_doubtful());
    // Nothing comes, and they were held up once more: nobody runs them.
    gate.forgive(at(5));
    assert_eq!(gate.tick(Time::from_millis(5_050)), Some(Health::Unhealthy));
    gate.push(at(6), Verdict::good(""));
    gate.forgive(at(8));
    assert_eq!(gate.tick(Time::from_millis(10_049)), None, "a result came in between");
    let mut push = of(1, 1, Some(2));
    push.push(at(1), Verdict::good(""));
    push.forgive(at(2));
    assert_eq!(push.tick(at(3)), Some(Health::Unhealthy), "whoever reports was not held up");
}

#[test]
fn a_host_that_stood_still_forgives_silence_and_doubts_what_is_old() {
    let mut gate = paced(1, 1, None);
    gate.push(at(1), Verdict::good(""));
    gate.excuse(at(60));
    assert_eq!(gate.tick(at(61)), None, "nobody was silent: this host did not listen");
    assert_eq!(gate.health(), Health::Healthy);
    assert!(gate.is_doubtful());
    feed(&mut gate, at(61), "?");
    assert!(gate.is_doubtful(), "no result is no reason to believe");
    feed(&mut gate, at(61), "+");
    assert!(!gate.is_doubtful());
    gate.excuse(at(62));
    assert!(!gate.is_doubtful(), "one interval is no age");
    // Silence from then on counts as ever.
    assert_eq!(gate.tick(Time::from_millis(64_049)), None);
    assert_eq!(gate.tick(Time::from_millis(64_050)), Some(Health::Unhealthy));
    let mut word = of(1, 1, None);
    word.push(at(1), Verdict::good(""));
    word.excuse(at(9_999));
    assert!(!word.is_doubtful(), "a word that stands for ever has no age");
}

#[test]
fn a_verdict_may_hold_for_less_than_its_check_allows_and_not_for_more() {
    let leased = |secs| Verdict { lease: Some(Duration::from_secs(secs)), ..Verdict::good("") };
    let mut gate = of(1, 2, Some(10));
    gate.push(at(100), leased(3));
    assert_eq!(gate.deadline(), Some(at(103)));
    assert_eq!((gate.tick(at(103)), gate.deadline()), (None, Some(at(106))), "again after as long");
    assert_eq!(gate.tick(at(106)), Some(Health::Unhealthy));
    gate.push(at(200), leased(60));
    assert_eq!(gate.deadline(), Some(at(210)), "no longer than the check's own");
    gate.push(at(300), Verdict::good(""));
    assert_eq!(gate.deadline(), Some(at(310)), "the next one has none");
    let mut forever = of(1, 1, None);
    forever.push(at(0), leased(3));
    assert_eq!(forever.tick(at(3)), Some(Health::Unhealthy));
    forever.push(at(10), leased(0));
    assert_eq!(forever.deadline(), None, "a lease of nothing is none");
}
