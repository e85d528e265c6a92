//! The gate between the verdicts of one check and its health: so many good ones in a row, so many bad ones, and silence.

use std::time::Duration;

use super::{Health, Outcome, Verdict};
use crate::machine::Time;

/// Turns verdicts into health.
///
/// It opens after `rise` good verdicts in a row and closes after `fall` bad ones; a run of the other kind starts the count
/// anew. `NoResult` changes no count and breaks no silence. Silence for longer than `stale` counts as one bad verdict, and again after each
/// further `stale`, so that a wedged prober is a bad verdict too. Health is unknown until one threshold was reached.
#[derive(Debug, Clone)]
pub struct Gate {
    rise: u32,
    fall: u32,
    stale: Option<Duration>,
    health: Health,
    good: u32,
    bad: u32,
    heard: Time,
    last: Option<(Time, Verdict)>,
    changed: Time,
}

impl Gate {
    /// A gate that has heard nothing. `rise` and `fall` below 1 count as 1; `stale` of `None` allows silence for ever.
    pub fn new(now: Time, rise: u32, fall: u32, stale: Option<Duration>) -> Self {
        Self {
            rise: rise.max(1),
            fall: fall.max(1),
            stale,
            health: Health::Unknown,
            good: 0,
            bad: 0,
            heard: now,
            last: None,
            changed: now,
        }
    }

    /// Takes a verdict; the new health if it flipped.
    pub fn push(&mut self, now: Time, verdict: Verdict) -> Option<Health> {
        if verdict.outcome != Outcome::NoResult {
            self.heard = now;
        }
        let to = match verdict.outcome {
            Outcome::Good => {
                self.bad = 0;
                self.good = self.good.saturating_add(1).min(self.rise);
                (self.good >= self.rise).then_some(Health::Healthy)
            }
            Outcome::Bad => {
                self.good = 0;
                self.bad = self.bad.saturating_add(1).min(self.fall);
                (self.bad >= self.fall).then_some(Health::Unhealthy)
            }
            Outcome::NoResult => None,
        };
        self.last = Some((now, verdict));
        let to = to.filter(|&to| to != self.health)?;
        self.health = to;
        self.changed = now;
        Some(to)
    }

    /// Counts silence; the new health if it flipped. Does nothing before [`deadline`](Self::deadline).
    pub fn tick(&mut self, now: Time) -> Option<Health> {
        let at = self.deadline()?;
        if now < at {
            return None;
        }
        let silent = now.since(self.heard);
        self.push(now, Verdict::bad(format!("no result for {:.1} s", silent.as_secs_f64())))
    }

    /// When silence will count next.
    pub fn deadline(&self) -> Option<Time> {
        self.stale.map(|stale| self.heard + stale)
    }

    /// The health as it stands.
    pub const fn health(&self) -> Health {
        self.health
    }

    /// Good verdicts in a row, up to `rise`.
    pub const fn consecutive_good(&self) -> u32 {
        self.good
    }

    /// Bad verdicts in a row, up to `fall`.
    pub const fn consecutive_bad(&self) -> u32 {
        self.bad
    }

    /// The last verdict and when it came.
    pub fn last(&self) -> Option<&(Time, Verdict)> {
        self.last.as_ref()
    }

    /// When the health last changed.
    pub const fn changed(&self) -> Time {
        self.changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut gate = Gate::new(at(0), 3, 2, None);
        assert_eq!(feed(&mut gate, at(0), "++"), []);
        assert_eq!(gate.health(), Health::Unknown);
        assert_eq!(feed(&mut gate, at(0), "+"), [Health::Healthy]);
        assert_eq!(feed(&mut Gate::new(at(0), 3, 2, None), at(0), "--"), [Health::Unhealthy]);
    }

    #[test]
    fn only_verdicts_in_a_row_count() {
        let mut gate = Gate::new(at(0), 2, 3, None);
        assert_eq!(feed(&mut gate, at(0), "+-+-+"), []);
        assert_eq!(feed(&mut gate, at(0), "+"), [Health::Healthy]);
        assert_eq!(feed(&mut gate, at(0), "--+--+--"), []);
        assert_eq!(feed(&mut gate, at(0), "-"), [Health::Unhealthy]);
        assert_eq!(feed(&mut gate, at(0), "-----"), []);
        assert_eq!(feed(&mut gate, at(0), "++"), [Health::Healthy]);
    }

    #[test]
    fn no_result_neither_counts_nor_starts_the_count_anew() {
        let mut gate = Gate::new(at(0), 2, 2, None);
        assert_eq!(feed(&mut gate, at(0), "+?+"), [Health::Healthy]);
        assert_eq!(feed(&mut gate, at(0), "-?-"), [Health::Unhealthy]);
    }

    #[test]
    fn a_check_that_never_has_a_result_is_silent() {
        let mut gate = Gate::new(at(0), 1, 1, Some(Duration::from_secs(3)));
        gate.push(at(1), Verdict::good(""));
        feed(&mut gate, at(3), "?");
        assert_eq!(gate.tick(at(4)), Some(Health::Unhealthy));
    }

    #[test]
    fn silence_is_a_bad_verdict_and_says_so() {
        let mut gate = Gate::new(at(0), 1, 1, Some(Duration::from_secs(3)));
        assert_eq!(gate.push(at(1), Verdict::good("fine")), Some(Health::Healthy));
        assert_eq!(gate.deadline(), Some(at(4)));
        assert_eq!(gate.tick(Time::from_millis(3999)), None);
        assert_eq!(gate.tick(at(4)), Some(Health::Unhealthy));
        assert_eq!(gate.last().unwrap().1.detail, "no result for 3.0 s");
        assert!(gate.deadline().unwrap() > at(4));
    }
}
