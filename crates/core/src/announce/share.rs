//! The share of the traffic that a service asks for: smoothed, and told seldom.
//!
//! A load that trembles must not make every listener rewrite its groups. What the service says is approached step by step, and
//! peers are told only what differs enough from what they know, at most once in a while. Only 0 is told at once: it asks for
//! nothing more at all. What is told is the link bandwidth community of the VIP (draft-ietf-idr-link-bandwidth), so much of
//! it; a VIP that announces none has no share to tell.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::machine::Time;

/// How often what is told may come nearer to what was said; each time by a quarter of the way, so that nine tenths of it take
/// eight of these.
const STEP: Duration = Duration::from_secs(1);
/// The least time between two changes of what is told, but for 0.
const PAUSE: Duration = Duration::from_secs(3);
/// The way is measured in so many parts of one percent.
const PARTS: u32 = 256;

/// What a VIP's service asks for, and what its peers are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Share {
    said: u8,
    /// Where it is on its way, in [`PARTS`] of a percent.
    smooth: u32,
    told: u8,
    /// Since when it is.
    since: Time,
    /// When it moves on.
    next: Option<Time>,
}

impl Share {
    /// The first that a service says, in percent: there is nothing to be smooth about.
    pub(super) fn new(now: Time, percent: u8) -> Self {
        let said = percent.min(100);
        Self { said, smooth: u32::from(said) * PARTS, told: said, since: now, next: None }
    }

    /// Takes what the service says, in percent; whether other than before is told.
    pub(super) fn say(&mut self, now: Time, percent: u8) -> bool {
        self.said = percent.min(100);
        if self.said == 0 {
            self.smooth = 0;
            self.next = None;
            return self.tell(now, 0);
        }
        if self.next.is_none() && self.is_on_its_way() {
            self.next = Some(now + STEP);
        }
        false
    }

    /// Moves on; whether other than before is told. Does nothing before its deadline.
    pub(super) fn tick(&mut self, now: Time) -> bool {
        if self.next.is_none_or(|at| now < at) {
            return false;
        }
        let goal = u32::from(self.said) * PARTS;
        let step = goal.abs_diff(self.smooth).div_ceil(4);
        self.smooth = if goal > self.smooth { self.smooth + step } else { self.smooth - step };
        if goal.abs_diff(self.smooth) < PARTS {
            self.smooth = goal;
        }
        // What is asked for as long as it is above 0 is never rounded down to nothing.
        let near = u8::try_from((self.smooth + PARTS / 2) / PARTS).unwrap_or(100).clamp(1, 100);
        let changed = self.is_far(near) && now.since(self.since) >= PAUSE && self.tell(now, near);
        self.next = self.is_on_its_way().then(|| now + STEP);
        changed
    }

    /// When it moves on.
    pub(super) const fn deadline(&self) -> Option<Time> {
        self.next
    }

    /// What peers are told, in percent.
    pub(super) const fn told(&self) -> u8 {
        self.told
    }

    /// What the service said last, in percent.
    pub(super) const fn said(&self) -> u8 {
        self.said
    }

    fn tell(&mut self, now: Time, percent: u8) -> bool {
        let changes = self.told != percent;
        if changes {
            (self.told, self.since) = (percent, now);
        }
        changes
    }

    fn is_on_its_way(&self) -> bool {
        self.smooth != u32::from(self.said) * PARTS || self.is_far(self.said)
    }

    /// Whether this is worth telling: an eighth more or less than what is told, two points at least, or all.
    const fn is_far(&self, percent: u8) -> bool {
        let band = if self.told / 8 > 2 { self.told / 8 } else { 2 };
        percent.abs_diff(self.told) >= band || (percent == 100 && self.told != 100)
    }
}

/// The same communities with link bandwidths of so many percent.
pub(super) fn scaled(communities: &BTreeSet<[u8; 8]>, percent: u8) -> BTreeSet<[u8; 8]> {
    let scale = |community: &[u8; 8]| match *community {
        [kind @ (0x00 | 0x40), 0x04, a, b, number @ ..] => {
            let [c, d, e, f] = (f32::from_be_bytes(number) * f32::from(percent) / 100.0).to_be_bytes();
            [kind, 0x04, a, b, c, d, e, f]
        }
        other => other,
    };
    communities.iter().map(scale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Rng;

    fn at(secs: u64) -> Time {
        Time::from_secs(secs)
    }

    /// What is told over time, as seconds and percent, while nothing new is said.
    fn told(share: &mut Share, mut now: Time) -> Vec<(u64, u8)> {
        let mut told = Vec::new();
        for _ in 0..100 {
            let Some(at) = share.deadline() else { break };
            assert!(at > now, "a deadline is later than now");
            now = at;
            if share.tick(now) {
                told.push((now.as_nanos() / 1_000_000_000, share.told()));
            }
        }
        assert_eq!(share.deadline(), None, "it comes to rest: {share:?}");
        told
    }

    #[test]
    fn a_change_is_approached_in_a_few_steps_and_reached_within_an_eighth() {
        for (from, to) in [(100, 20), (20, 100), (100, 50), (3, 100), (50, 60), (100, 1)] {
            let mut share = Share::new(at(0), from);
            assert!(!share.say(at(10), to));
            let steps = told(&mut share, at(10));
            assert!((1..=8).contains(&steps.len()), "{from} -> {to}: {steps:?}");
            let last = share.told();
            assert!(last.abs_diff(to) <= (to / 8).max(2), "{from} -> {to}: {steps:?}");
            assert!(steps.windows(2).all(|s| s[1].0 - s[0].0 >= 3), "{from} -> {to}: {steps:?}");
            let towards = |s: &[(u64, u8)]| if to > from { s[1].1 > s[0].1 } else { s[1].1 < s[0].1 };
            assert!(steps.windows(2).all(towards), "{from} -> {to}: {steps:?}");
            assert!(steps.last().is_some_and(|s| s.0 <= 40), "{from} -> {to}: {steps:?}");
        }
    }

    #[test]
    fn all_and_nothing_are_told_exactly() {
        let mut share = Share::new(at(0), 97);
        share.say(at(10), 100);
        told(&mut share, at(10));
        assert_eq!(share.told(), 100);
        assert!(share.say(at(60), 0), "nothing is told at once");
        assert_eq!((share.told(), share.deadline()), (0, None));
        assert!(!share.say(at(61), 0), "it is told already");
    }

    #[test]
    fn after_nothing_it_comes_back_slowly_and_never_as_nothing() {
        let mut share = Share::new(at(0), 100);
        share.say(at(10), 0);
        share.say(at(11), 100);
        assert_eq!(share.told(), 0);
        let steps = told(&mut share, at(11));
        assert!(steps[0].1 < 80, "{steps:?}");
        assert_eq!(share.told(), 100);
        share.say(at(100), 1);
        told(&mut share, at(100));
        assert!(share.told() >= 1);
    }

    #[test]
    fn a_tremble_is_not_told() {
        let mut rng = Rng::new(1);
        let mut share = Share::new(at(0), 60);
        let mut now = at(0);
        for _ in 0..10_000 {
            now = now + Duration::from_millis(100);
            assert!(!share.tick(now) && !share.say(now, 55 + rng.below(10) as u8), "{share:?}");
        }
    }

    #[test]
    fn whatever_is_said_is_told_every_three_seconds_at_most() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut share = Share::new(at(0), 100);
            let (mut now, mut last) = (at(0), at(0));
            for _ in 0..2_000 {
                now = now + Duration::from_millis(rng.below(300));
                let changed = share.tick(now) | share.say(now, 1 + rng.below(110) as u8);
                if changed {
                    assert!(now.since(last) >= PAUSE, "seed {seed}");
                    last = now;
                }
                assert!((1..=100).contains(&share.told()));
            }
            assert!(last > at(0), "seed {seed}: something was told");
        }
    }

    #[test]
    fn only_bandwidths_are_scaled() {
        let n = 125e6f32.to_be_bytes();
        let bandwidth = [0x40, 4, 0xfc, 1, n[0], n[1], n[2], n[3]];
        let target = [0, 2, 0xfc, 1, 0, 0, 0, 7];
        let half = scaled(&[bandwidth, target].into(), 50);
        assert!(half.contains(&target));
        let [.., c, d, e, f] = *half.iter().find(|c| c[1] == 4).unwrap();
        assert!((f32::from_be_bytes([c, d, e, f]) - 62.5e6).abs() < 1.0);
        assert_eq!(scaled(&[bandwidth].into(), 100), [bandwidth].into());
    }
}
