//! Why members are not there: the last word on each address whose session ended, or that came and was refused.
//!
//! Strangers can fill it, so it is bounded, and whoever had a session stays longest. It is for people: nothing is decided by it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::listen::Hop;
use crate::machine::Time;

/// So many addresses are remembered.
const MOST: usize = 64;
/// For so long.
const LASTS: Duration = Duration::from_secs(3600);

/// The end of a member's session, or of its attempts to have one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ended {
    /// Why, in words: the last time.
    pub(super) why: String,
    /// When, the last time.
    pub(super) at: Time,
    /// Since when it has no session, as far as is remembered.
    pub(super) away: Time,
    /// Ends since then.
    pub(super) times: u64,
    /// The range that it is in, by its name; empty: none.
    pub(super) accept: String,
    /// It had a session, which has ended.
    pub(super) was_up: bool,
}

/// The last word on each address.
#[derive(Debug, Default)]
pub(super) struct Past(BTreeMap<Hop, Ended>);

impl Past {
    /// Takes note of the end of a session that `was_up`, or of an attempt that failed.
    pub(super) fn note(&mut self, now: Time, member: Hop, was_up: bool, accept: &str, why: String) {
        let fresh = |was_up| Ended {
            why: String::new(),
            at: now,
            away: now,
            times: 0,
            accept: accept.to_owned(),
            was_up,
        };
        if !self.0.contains_key(&member) && self.0.len() >= MOST {
            let first =
                |(hop, ended): (&Hop, &Ended)| (now.since(ended.at) < LASTS && ended.was_up, ended.at, *hop);
            if let Some((.., hop)) = self.0.iter().map(first).min() {
                self.0.remove(&hop);
            }
        }
        let ended = self.0.entry(member).or_insert_with(|| fresh(was_up));
        if was_up || now.since(ended.at) >= LASTS {
            *ended = fresh(was_up);
        }
        (ended.why, ended.at, ended.times) = (why, now, ended.times.saturating_add(1));
    }

    /// What is remembered of an address.
    pub(super) fn of(&self, now: Time, member: &Hop) -> Option<&Ended> {
        self.0.get(member).filter(|ended| now.since(ended.at) < LASTS)
    }

    /// Everything that is remembered.
    pub(super) fn all(&self, now: Time) -> impl Iterator<Item = (&Hop, &Ended)> {
        self.0.iter().filter(move |(_, ended)| now.since(ended.at) < LASTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    fn hop(n: u32) -> Hop {
        IpAddr::V4(Ipv4Addr::from_bits(0xc612_0000 + n)).into()
    }

    #[test]
    fn the_last_word_stands_and_counts_from_the_end_of_the_session() {
        let (mut past, mut now) = (Past::default(), Time::from_secs(10));
        past.note(now, hop(1), true, "gateways", "hold time".to_owned());
        now = now + Duration::from_secs(60);
        past.note(now, hop(1), false, "gateways", "bad AS".to_owned());
        let seen = past.of(now, &hop(1)).unwrap();
        assert_eq!((seen.why.as_str(), seen.times, seen.was_up), ("bad AS", 2, true));
        assert_eq!((seen.at, seen.away), (now, Time::from_secs(10)));
        // It was back in between, and is gone again.
        now = now + Duration::from_secs(60);
        past.note(now, hop(1), true, "gateways", "cease".to_owned());
        let seen = past.of(now, &hop(1)).unwrap();
        assert_eq!((seen.times, seen.away), (1, now));
        assert_eq!(past.of(now + LASTS, &hop(1)), None);
        assert_eq!(past.all(now + LASTS).count(), 0);
    }

    #[test]
    fn strangers_fill_it_and_push_out_nobody_who_was_a_member() {
        let (mut past, mut now) = (Past::default(), Time::from_secs(10));
        past.note(now, hop(0), true, "gateways", "hold time".to_owned());
        for n in 1..10_000 {
            now = now + Duration::from_millis(1);
            past.note(now, hop(n), false, "", "nobody".to_owned());
        }
        assert_eq!(past.all(now).count(), MOST);
        assert!(past.of(now, &hop(0)).is_some());
        assert!(past.of(now, &hop(9_999)).is_some(), "the latest stand");
        assert!(past.of(now, &hop(9_000)).is_none());
    }
}
