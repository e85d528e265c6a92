//! What keeps a flapping VIP away for longer each time, and lets it come back when it has calmed down.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::machine::Time;
use crate::plan::Damping;

/// The failures of one VIP, and how long it is held for them. See [`Damping`] for the rule.
#[derive(Debug, Clone)]
pub(super) struct Damper {
    plan: Damping,
    /// The latest failures, never more than `flaps`.
    downs: VecDeque<Time>,
    episode: Option<Episode>,
}

/// From the failure that was one too many until it is forgotten.
#[derive(Debug, Clone, Copy)]
struct Episode {
    /// From the first failure to the last.
    over: Duration,
    last: Time,
    flaps: u32,
    hold: Duration,
    until: Time,
}

/// What should be known of an episode after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flapped {
    /// Failures that were counted.
    pub flaps: u32,
    /// From the first of them to the last.
    pub over: Duration,
    /// Since the last of them.
    pub ago: Duration,
    /// For how long it is held from the last of them on.
    pub hold: Duration,
}

/// Why a VIP is held, in words without the time that is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Failures that were counted.
    pub flaps: u32,
    /// From the first of them to the last.
    pub over: Duration,
    /// When it may come back.
    pub until: Time,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.flaps == 1 { "" } else { "s" };
        write!(f, "damped: {} flap{s} in {:.0} s", self.flaps, self.over.as_secs_f64())
    }
}

impl Damper {
    pub(super) const fn new(plan: Damping) -> Self {
        Self { plan, downs: VecDeque::new(), episode: None }
    }

    /// Goes on by other numbers; a hold that has begun lasts as long as it was to.
    pub(super) const fn adopt(&mut self, plan: Damping) {
        self.plan = plan;
    }

    /// The VIP failed; what it is held for if this was one too many.
    pub(super) fn down(&mut self, now: Time) -> Option<Held> {
        let Damping { flaps, within, hold, max } = self.plan;
        self.episode = match self.episode.filter(|e| now < e.until + within) {
            Some(e) => {
                let hold = e.hold.saturating_mul(2).min(max);
                let over = e.over.saturating_add(now.since(e.last));
                Some(Episode { over, last: now, flaps: e.flaps.saturating_add(1), hold, until: now + hold })
            }
            None => {
                self.downs.push_back(now);
                while self.downs.len() > flaps as usize
                    || self.downs.front().is_some_and(|&t| now.since(t) > within)
                {
                    self.downs.pop_front();
                }
                let first = self.downs.front().copied().unwrap_or(now);
                let hold = hold.min(max);
                (self.downs.len() >= flaps as usize).then(|| Episode {
                    over: now.since(first),
                    last: now,
                    flaps,
                    hold,
                    until: now + hold,
                })
            }
        };
        self.held(now)
    }

    /// What it is held for at `now`, if it is.
    pub(super) fn held(&self, now: Time) -> Option<Held> {
        let Episode { over, flaps, until, .. } = self.episode?;
        (now < until).then_some(Held { flaps, over, until })
    }

    /// What should be known after a restart, if anything.
    pub(super) fn flapped(&self, now: Time) -> Option<Flapped> {
        let e = self.episode.filter(|e| now < e.until + self.plan.within)?;
        Some(Flapped { flaps: e.flaps, over: e.over, ago: now.since(e.last), hold: e.hold })
    }

    /// Takes what was known before a restart, which makes up for no time of the hold.
    pub(super) fn recall(&mut self, now: Time, known: Flapped) {
        let Flapped { flaps, over, ago, hold } = known;
        let hold = hold.min(self.plan.max);
        // One that is long over is forgotten here as it would have been there.
        if ago < hold.saturating_add(self.plan.within) {
            let until = now + hold.saturating_sub(ago);
            self.episode = Some(Episode { over, last: now, flaps, hold, until });
        }
    }

    /// How long ago each failure was that counts and did not hold it, the oldest first.
    pub(super) fn failures(&self, now: Time) -> impl Iterator<Item = Duration> {
        let within = self.plan.within;
        let counts = self.episode.is_none_or(|e| now >= e.until + within);
        let agos = self.downs.iter().map(move |&down| now.since(down));
        agos.filter(move |&ago| counts && ago <= within)
    }

    /// Takes failures that were known before a restart.
    pub(super) fn recall_failures(&mut self, now: Time, failures: impl Iterator<Item = Duration>) {
        let agos = failures.filter(|&ago| ago <= self.plan.within);
        self.downs.extend(agos.map(|ago| now.before(ago)));
        self.downs.make_contiguous().sort_unstable();
        let too_many = self.downs.len().saturating_sub(self.plan.flaps as usize);
        self.downs.drain(..too_many);
    }

    /// Forgets every failure.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.plan);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn at(n: u64) -> Time {
        Time::from_secs(n)
    }

    fn damper() -> Damper {
        Damper::new(Damping { flaps: 3, within: s(60), hold: s(30), max: s(100) })
    }

    #[test]
    fn the_third_failure_in_time_holds_and_each_further_one_holds_twice_as_long_up_to_the_most() {
        let mut d = damper();
        assert_eq!(d.down(at(0)), None);
        assert_eq!(d.down(at(20)), None);
        assert_eq!(d.down(at(42)), Some(Held { flaps: 3, over: s(42), until: at(72) }));
        assert!(d.held(at(71)).is_some() && d.held(at(72)).is_none());
        // Before 60 quiet seconds are over, one is enough.
        assert_eq!(d.down(at(131)), Some(Held { flaps: 4, over: s(131), until: at(191) }));
        assert_eq!(d.down(at(132)), Some(Held { flaps: 5, over: s(132), until: at(232) }));
        assert_eq!(d.down(at(133)), Some(Held { flaps: 6, over: s(133), until: at(233) }));
        // And after them it is as if nothing had been.
        assert_eq!(d.down(at(293)), None);
        assert_eq!(d.down(at(300)), None);
        assert_eq!(d.down(at(301)).unwrap().until, at(331));
    }

    #[test]
    fn failures_that_are_far_apart_hold_nothing_and_take_no_room() {
        let mut d = damper();
        for n in 0..1000 {
            assert_eq!(d.down(at(n * 31)), None, "{n}");
            assert!(d.downs.len() <= 3);
        }
    }

    #[test]
    fn a_hold_outlives_a_restart_and_grows_on() {
        let mut before = damper();
        for n in [0, 1, 2, 40] {
            before.down(at(n));
        }
        let known = before.flapped(at(50)).unwrap();
        assert_eq!(known, Flapped { flaps: 4, over: s(40), ago: s(10), hold: s(60) });
        // Five seconds without anybody count too.
        let mut d = damper();
        d.recall(at(0), Flapped { ago: s(15), ..known });
        assert_eq!(d.held(at(44)), Some(Held { flaps: 4, over: s(40), until: at(45) }));
        assert_eq!(d.held(at(45)), None);
        assert_eq!(d.down(at(50)).unwrap().until, at(150), "twice as long, up to the most");
        for (ago, is) in [(119, true), (120, false), (u64::MAX, false)] {
            let mut d = damper();
            d.recall(at(7), Flapped { ago: s(ago), ..known });
            assert_eq!((d.held(at(7)), d.flapped(at(7)).is_some()), (None, is), "{ago}");
        }
        assert_eq!(before.flapped(at(160)), None, "what is forgotten is not known");
    }

    #[test]
    fn failures_that_are_not_too_many_yet_count_after_a_restart() {
        let mut before = damper();
        assert_eq!((before.down(at(0)), before.down(at(50)), before.down(at(70))), (None, None, None));
        let known: Vec<_> = before.failures(at(80)).collect();
        assert_eq!(known, [s(30), s(10)], "those of the last minute");
        let mut d = damper();
        d.recall_failures(at(100), known.iter().map(|ago| *ago + s(5)));
        assert_eq!(d.down(at(101)), Some(Held { flaps: 3, over: s(36), until: at(131) }));
        assert_eq!(d.failures(at(101)).count(), 0, "what holds it is told as that");
        // Whatever stands in the file: in no order, too old, or too many.
        let mut d = damper();
        d.recall_failures(at(100), [5, 61, 20, 7, 9, u64::MAX].map(s).into_iter());
        assert_eq!(d.failures(at(100)).collect::<Vec<_>>(), [s(9), s(7), s(5)]);
        assert_eq!(d.down(at(100)).map(|held| held.over), Some(s(7)));
    }

    #[test]
    fn a_reset_forgets() {
        let mut d = damper();
        assert_eq!((0..3).filter_map(|n| d.down(at(n))).count(), 1);
        d.reset();
        assert_eq!(d.held(at(3)), None);
        assert_eq!(d.down(at(4)), None);
    }

    #[test]
    fn one_flap_is_enough_where_one_is_too_many() {
        let mut d = Damper::new(Damping { flaps: 1, within: s(1), hold: s(5), max: s(5) });
        assert_eq!(d.down(at(9)), Some(Held { flaps: 1, over: s(0), until: at(14) }));
    }
}
