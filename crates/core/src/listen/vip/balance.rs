//! Whether the buckets of a resilient group are where the shares want them, since when, and when they will be.
//!
//! The kernel moves a bucket only once it is silent, so that a group whose members or shares have changed may take long, or for
//! ever if flows never pause. It tells how many each next hop holds when it is asked; this compares, and decides nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Group, Hashing, Held, Hop, Time, Vip};

/// How far a group is from its shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Balance {
    /// Buckets that are still to move; 0: it is balanced. What rounding makes of shares does not count.
    pub to_move: u32,
    /// Since when it is balanced, or not; as far as was counted.
    pub since: Time,
    /// When that was counted last.
    pub at: Time,
    /// The most that were to move since then.
    most: u32,
}

impl Balance {
    /// How long it will take from when it was counted, if it goes on as it went so far; `None` if nothing has moved yet.
    pub fn left(&self) -> Option<Duration> {
        let moved = self.most.saturating_sub(self.to_move);
        let took = self.at.since(self.since).as_secs_f64();
        (moved > 0).then(|| Duration::from_secs_f64(took * f64::from(self.to_move) / f64::from(moved)))
    }
}

impl Group {
    /// The buckets that a next hop should hold of a resilient group that has so many; `None` for other groups.
    pub fn wanted(&self, hop: &Hop, buckets: u32) -> Option<u32> {
        let Hashing::Resilient { .. } = self.hashing else { return None };
        let weight =
            |hop: &Hop| self.hops.get(hop).filter(|s| !s.draining).map_or(0, |share| u64::from(share.weight));
        let all: u64 = self.hops.keys().map(weight).sum();
        let part = (u64::from(buckets) * weight(hop) * 2 + all).checked_div(all * 2).unwrap_or(0);
        Some(u32::try_from(part).unwrap_or(u32::MAX))
    }

    /// The buckets that are to move yet, by what each next hop holds: those beyond its share, but for one of rounding.
    fn to_move(&self, held: &BTreeMap<Hop, Held>) -> Option<u32> {
        let all = held.values().map(|held| held.buckets).sum();
        let beyond =
            |(hop, held): (&Hop, &Held)| Some(held.buckets.saturating_sub(self.wanted(hop, all)? + 1));
        held.iter().map(beyond).sum()
    }
}

impl Vip {
    /// Compares what was told with the shares.
    pub(super) fn weigh(&mut self, now: Time) {
        let to_move = self.group.as_ref().and_then(|group| group.to_move(&self.buckets));
        self.balance = to_move.map(|to_move| {
            let fresh = Balance { to_move, since: now, at: now, most: to_move };
            match self.balance.filter(|b| (b.to_move == 0) == (to_move == 0)) {
                Some(old) => Balance { to_move, at: now, most: old.most.max(to_move), ..old },
                None => fresh,
            }
        });
    }
}
