//! When each of many machines has something to do: the first of them is found at once, however many there are.

use std::collections::{BTreeMap, BTreeSet};

use crate::machine::Time;

type Deadline = (Time, &'static str);

/// The deadlines of things named by `K`, in their order.
#[derive(Debug)]
pub(super) struct Timers<K> {
    order: BTreeSet<(Deadline, K)>,
    of: BTreeMap<K, Deadline>,
}

impl<K: Ord> Default for Timers<K> {
    fn default() -> Self {
        Self { order: BTreeSet::new(), of: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Timers<K> {
    /// Takes note of a deadline, or that there is none.
    pub(super) fn set(&mut self, key: K, deadline: Option<Deadline>) {
        let old = self.of.get(&key).copied();
        if old == deadline {
            return;
        }
        if let Some(old) = old {
            self.order.remove(&(old, key.clone()));
        }
        match deadline {
            Some(new) => {
                self.order.insert((new, key.clone()));
                self.of.insert(key, new);
            }
            None => drop(self.of.remove(&key)),
        }
    }

    /// The first deadline.
    pub(super) fn first(&self) -> Option<Deadline> {
        self.order.first().map(|(deadline, _)| *deadline)
    }

    /// Whose deadline is due at `now`, the earliest first.
    pub(super) fn due(&self, now: Time) -> Vec<K> {
        self.order.iter().take_while(|((at, _), _)| *at <= now).map(|(_, key)| key.clone()).collect()
    }
}
