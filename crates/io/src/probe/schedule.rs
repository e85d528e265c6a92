//! When a check runs: a grid of its own, a little jitter around it, and a step that it shares with all others.
//!
//! The step is small beside the interval: 16 ms of a second. What is due within it is due together, so that one wake-up
//! starts it all: on a host that has little else to do, waking up costs more than a run. Where there are many checks it is
//! shorter, so that no wake-up starts more than a few dozen.

use std::time::Duration;

use standfast_core::machine::Rng;
use standfast_core::plan::Check;
use tokio::time::Instant;

/// The first run of a check is within this time, and within [`EACH`] for every check there is.
const FIRST: Duration = Duration::from_secs(1);

/// Room for the first run of each check: a few checks begin at once, a thousand are spread over a second.
const EACH: Duration = Duration::from_millis(1);

/// A longer interval is taken for this one, so that no moment is out of range.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// A step is at most an interval divided by this, so that moving to one stays within the jitter.
const STEPS: u32 = 50;

/// The longest step. The others are halves of it, and of those.
const LONGEST_STEP: Duration = Duration::from_millis(16);

/// The shortest one that checks are put together in because they are many.
const SHORTEST_STEP: Duration = Duration::from_millis(4);

/// The runs that are to begin in one step, about.
const TOGETHER: u32 = 160;

/// The moments at which one check runs.
#[derive(Debug)]
pub(super) struct Schedule {
    interval: Duration,
    fast: Duration,
    /// The longest step, with so many checks as there were when this one came.
    step: Duration,
    /// Whether `fast` is in force.
    hurry: bool,
    rng: Rng,
    /// What steps are counted from, the same for every check.
    origin: Instant,
    /// The planned moment of the next run, without its jitter.
    grid: Instant,
    /// The moment of the next run.
    pub(super) due: Instant,
}

impl Schedule {
    /// The schedule of a check that begins at `now` together with `count` checks: in a hurry, for nothing is known of it yet.
    ///
    /// Steps are counted from `origin`.
    pub(super) fn new(check: &Check, count: usize, seed: u64, origin: Instant, now: Instant) -> Self {
        let bounded = |d: Duration| d.clamp(Duration::from_millis(1), LONGEST);
        let (interval, fast) = (bounded(check.interval), bounded(check.fast_interval));
        let every = fast.min(interval);
        let mut rng = Rng::new(seed);
        let first = EACH.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX)).min(FIRST);
        let due = now + rng.jitter(every.min(first), 0);
        let count = u32::try_from(count).unwrap_or(u32::MAX).max(1);
        let step = (interval.saturating_mul(TOGETHER) / count).max(SHORTEST_STEP);
        let mut schedule = Self { interval, fast, step, hurry: true, rng, origin, grid: due, due };
        if every > first {
            schedule.spread();
        }
        schedule
    }

    /// Brings the run after the next one forward by up to half of the time between two, so that checks that were together
    /// are not any more.
    fn spread(&mut self) {
        let every = self.every();
        let early = every - self.rng.jitter(every, 50);
        // Before the start of the clock there is no moment, and then nothing needs spreading.
        self.grid = self.grid.checked_sub(early).unwrap_or(self.grid);
    }

    /// Whether the check is between two states, so that the fast interval is in force and every run may be the one that decides.
    pub(super) const fn is_hurried(&self) -> bool {
        self.hurry
    }

    /// The time between two runs.
    pub(super) fn every(&self) -> Duration {
        if self.hurry { self.fast } else { self.interval }
    }

    /// Plans the run after the one that was due, and says how many were missed until `now`.
    pub(super) fn advance(&mut self, now: Instant) -> u64 {
        let every = self.every();
        self.grid += every;
        let mut missed = 0;
        if now > self.grid + every / 10 {
            let late = (now - self.grid).as_nanos();
            let step = every.as_nanos();
            missed = u64::try_from(late / step).unwrap_or(u64::MAX - 1) + 1;
            let into = Duration::from_nanos(u64::try_from(late % step).unwrap_or(0));
            self.grid = now + (every - into);
        }
        self.place(every);
        missed
    }

    /// Sets the moment of the run that is planned on the grid, one of those that are `every` apart: 5 % around it, on a step.
    fn place(&mut self, every: Duration) {
        let step = step(self.step.min(every / STEPS));
        let tenth = every / 10;
        let planned = self.grid - tenth / 2 + self.rng.jitter(tenth - step, 0);
        let past = planned.saturating_duration_since(self.origin).as_nanos() % step.as_nanos().max(1);
        let past = Duration::from_nanos(u64::try_from(past).unwrap_or(0));
        self.due = if past.is_zero() { planned } else { planned + (step - past) };
    }

    /// Takes up or leaves the fast interval. Says whether the next run has moved: it comes within a fast interval of
    /// `now` from here on, but no run that is planned is put off.
    pub(super) fn hurry(&mut self, on: bool, now: Instant) -> bool {
        let was = std::mem::replace(&mut self.hurry, on);
        if self.fast == self.interval {
            return false;
        }
        if was && !on {
            // Many that became certain together would march in step from here on.
            self.spread();
        }
        if !on || was || self.due <= now + self.fast {
            return false;
        }
        self.grid = now + self.fast;
        self.place(self.fast);
        true
    }
}

/// The longest step that is no longer than this, or next to nothing.
fn step(most: Duration) -> Duration {
    let mut step = LONGEST_STEP;
    while step > most {
        step /= 2;
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;
    use standfast_core::plan::Probe;
    use std::collections::BTreeSet;

    const INTERVAL: Duration = Duration::from_secs(10);

    fn schedule(interval: Duration, seed: u64, now: Instant) -> Schedule {
        let check = Check { interval, fast_interval: interval, ..Check::new(Probe::External) };
        let mut schedule = Schedule::new(&check, usize::MAX, seed, now, now);
        (schedule.fast, schedule.hurry) = (interval / 5, false);
        schedule
    }

    #[test]
    fn runs_keep_to_a_grid_of_their_own_within_5_percent() {
        for (seed, interval) in [(1, INTERVAL), (2, Duration::from_millis(100)), (3, Duration::from_secs(1))]
        {
            let now = Instant::now();
            let mut s = schedule(interval, seed, now);
            assert!(s.due >= now && s.due <= now + interval.min(FIRST));
            let mut last = s.due;
            // A second run that comes early, but not at once.
            assert_eq!(s.advance(last), 0);
            assert!(s.due - last >= interval * 44 / 100 && s.due - last <= interval * 106 / 100);
            let origin = s.grid;
            last = s.due;
            let mut gaps = BTreeSet::new();
            for n in 1..=1000u32 {
                assert_eq!(s.advance(last + interval / 3), 0);
                assert_eq!(s.grid, origin + interval * n, "the grid drifts");
                assert!(s.due + interval / 20 >= s.grid && s.due <= s.grid + interval / 20);
                gaps.insert(s.due - last);
                last = s.due;
            }
            assert!(gaps.len() > 7, "no jitter: {}", gaps.len());
        }
    }

    #[test]
    fn what_is_due_within_a_step_is_due_at_once() {
        let origin = Instant::now();
        let quarter = Duration::from_millis(250);
        for (interval, count, step) in [
            (INTERVAL, 1, 16_000_000),
            (INTERVAL, 100_000, 16_000_000),
            (INTERVAL, 200_000, 8_000_000),
            (INTERVAL, usize::MAX, 4_000_000),
            (quarter, 1, 4_000_000),
            (quarter / 10, 1, 500_000),
        ] {
            let check = Check { interval, fast_interval: interval, ..Check::new(Probe::External) };
            for seed in 0..50 {
                let now = origin + Duration::from_micros(seed * 777);
                let mut s = Schedule::new(&check, count, seed, origin, now);
                let mut steps = BTreeSet::new();
                for _ in 0..20 {
                    s.advance(s.due);
                    assert_eq!((s.due - origin).as_nanos() % step, 0);
                    steps.insert((s.due - origin).as_nanos() % (2 * step));
                }
                assert_eq!(steps.len(), 2, "the step is longer");
            }
        }
    }

    #[test]
    fn second_runs_of_long_intervals_spread_over_half_of_one() {
        let now = Instant::now();
        let seconds: Vec<_> = (0..200)
            .map(|seed| {
                let mut s = schedule(INTERVAL, seed, now);
                s.advance(s.due);
                s.due
            })
            .collect();
        let (first, last) = (seconds.iter().min().unwrap(), seconds.iter().max().unwrap());
        assert!(*last - *first > INTERVAL * 4 / 10, "{:?}", *last - *first);
    }

    #[test]
    fn missed_runs_are_counted_once_and_not_made_up_for() {
        let mut s = schedule(INTERVAL, 9, Instant::now());
        s.advance(s.due);
        let grid = s.grid;
        // A little late is not missed.
        assert_eq!(s.advance(grid + INTERVAL + INTERVAL / 20), 0);
        // Three moments and a half later.
        let now = s.grid + INTERVAL * 7 / 2;
        assert_eq!(s.advance(now), 3);
        assert_eq!(s.grid, grid + INTERVAL * 5);
        assert!(s.due > now);
    }

    #[test]
    fn a_check_of_which_nothing_is_known_is_in_a_hurry() {
        let fast_interval = INTERVAL / 5;
        let check = Check { interval: INTERVAL, fast_interval, ..Check::new(Probe::External) };
        let mut gaps = BTreeSet::new();
        for seed in 0..100 {
            let now = Instant::now();
            let mut s = Schedule::new(&check, usize::MAX, seed, now, now);
            assert!(s.due <= now + FIRST);
            for n in 0..4 {
                let due = s.due;
                assert_eq!(s.advance(due), 0);
                let gap = s.due - due;
                let least = if n == 0 { 44 } else { 89 };
                assert!(gap >= fast_interval * least / 100 && gap <= fast_interval * 111 / 100, "{gap:?}");
            }
            // It calms down after the run that is planned, and not together with others.
            s.hurry(false, s.due);
            let due = s.due;
            s.advance(due);
            assert!(s.due - due >= INTERVAL * 44 / 100 && s.due - due <= INTERVAL * 106 / 100);
            gaps.insert(s.due - due);
            let due = s.due;
            s.advance(due);
            assert!(s.due - due >= INTERVAL * 89 / 100);
        }
        let (least, most) = (gaps.first().unwrap(), gaps.last().unwrap());
        assert!(*most - *least > INTERVAL * 4 / 10, "{gaps:?}");
    }

    #[test]
    fn haste_brings_the_next_run_near_and_keeps_it_there_until_it_is_over() {
        let mut s = schedule(INTERVAL, 4, Instant::now());
        s.advance(s.due);
        s.advance(s.due);
        let fast = INTERVAL / 5;
        let now = s.due - INTERVAL / 2;
        assert!(s.hurry(true, now));
        assert!(s.due >= now + fast * 95 / 100 && s.due <= now + fast * 105 / 100);
        let (grid, due) = (s.grid, s.due);
        // Said again, it changes nothing.
        assert!(!s.hurry(true, now) && s.due == due);
        s.advance(due);
        assert_eq!(s.grid, grid + fast);
        // A run that is planned stays; the one after it is between half an interval and a whole one later.
        let due = s.due;
        assert!(!s.hurry(false, due - fast) && s.due == due);
        s.advance(due);
        assert!(s.due - due >= INTERVAL * 44 / 100 && s.due - due <= INTERVAL * 106 / 100);
        // One that is nearer than the fast interval is not put off.
        let near = s.due;
        assert!(!s.hurry(true, near - fast / 2) && s.due == near);
    }
}
