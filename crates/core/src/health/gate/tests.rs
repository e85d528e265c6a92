//! Verdicts in, health out.

use super::*;
use crate::plan::Probe;

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
    assert_eq!(gate.last().unwrap().1.detail, "no result for 3.0 s");
    assert!(gate.deadline().unwrap() > at(4));
}
