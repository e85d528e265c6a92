//! The one contract: time is an argument, effects are values.
//!
//! A [`Machine`] is a pure function of its state, an input and a moment. It never reads a clock, never
//! waits, and never performs anything: it appends what should happen to `out`, and a driver does it.
//! Randomness comes from a seed given to the constructor ([`Rng`]).
//!
//! Laws that hold for every machine, each a test in `tests/laws.rs`:
//! 1. the same seed and the same inputs at the same times give the same outputs;
//! 2. `tick` before [`Machine::deadline`] does nothing, and after `tick(now)` the deadline is later than `now`, or none;
//! 3. no input, however malformed or out of order, panics;
//! 4. a parent drains its children inside its own `handle` and `tick`: nobody outside sees a child's outputs.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A pure state machine: inputs and moments in, outputs appended.
pub trait Machine {
    /// What the world did.
    type Input;
    /// What the world is asked to do.
    type Output;

    /// Takes one input at `now` and appends what follows from it to `out`.
    fn handle(&mut self, now: Time, input: Self::Input, out: &mut Vec<Self::Output>);

    /// Does what is due at `now`. Before [`deadline`](Self::deadline) it does nothing.
    fn tick(&mut self, now: Time, out: &mut Vec<Self::Output>);

    /// The next moment at which `tick` has something to do, with the reason in one word; `None` if nothing is planned.
    fn deadline(&self) -> Option<(Time, &'static str)>;
}

/// A moment: nanoseconds of a monotonic clock that counts from an arbitrary start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The start of the clock.
    pub const ZERO: Self = Self(0);

    /// The moment at which a process begins, ten years in: what an earlier one knew has a moment too.
    pub const BEGIN: Self = Self::from_secs(10 * 365 * 86_400);

    /// The moment `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The moment `millis` milliseconds after the start.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// The moment `secs` seconds after the start.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs * 1_000_000_000)
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The moment so long before this one; the start of the clock if that is before it.
    pub fn before(self, d: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The time from `earlier` to this moment; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Time> for Time {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000 / 1000)
    }
}

/// The earlier of two optional deadlines.
pub fn earliest(
    a: Option<(Time, &'static str)>,
    b: Option<(Time, &'static str)>,
) -> Option<(Time, &'static str)> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b.0 < a.0 { b } else { a }),
        (a, b) => a.or(b),
    }
}

/// A small seeded generator (splitmix64) for jitter; never for secrets.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A generator that always gives the same sequence for the same `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64 }
    }

    /// A duration between `percent` % of `d` and all of `d`, evenly spread.
    pub fn jitter(&mut self, d: Duration, percent: u32) -> Duration {
        let whole = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let low = whole / 100 * u64::from(percent.min(100));
        Duration::from_nanos(low + self.below((whole - low).saturating_add(1)))
    }
}
