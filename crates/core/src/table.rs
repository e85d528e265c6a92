//! A table is an ordered map that standfast owns; [`diff`] turns two tables into changes.
//!
//! Routes told to a peer, routes and addresses in the kernel, running probes and the configuration itself
//! all change through this one function. It does not apply anything.

use std::collections::BTreeMap;

/// One step from an old table to a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<K, V> {
    /// The key is new or its value differs: set it to this value, replacing what is there.
    Set(K, V),
    /// The key is gone.
    Remove(K),
}

impl<K, V> Change<K, V> {
    /// The key it is about.
    pub const fn key(&self) -> &K {
        match self {
            Self::Set(k, _) | Self::Remove(k) => k,
        }
    }
}

/// The changes that make `old` equal to `new`: first every set, in key order, then every removal (add before remove).
///
/// Equal tables give nothing, so equality is the no-op test everywhere.
pub fn diff<K: Ord + Clone, V: PartialEq + Clone>(
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
) -> Vec<Change<K, V>> {
    let sets =
        new.iter().filter(|&(k, v)| old.get(k) != Some(v)).map(|(k, v)| Change::Set(k.clone(), v.clone()));
    let removals = old.keys().filter(|k| !new.contains_key(k)).map(|k| Change::Remove(k.clone()));
    sets.chain(removals).collect()
}

/// Makes one change to `table`.
pub fn apply<K: Ord, V>(table: &mut BTreeMap<K, V>, change: Change<K, V>) {
    match change {
        Change::Set(k, v) => {
            table.insert(k, v);
        }
        Change::Remove(k) => {
            table.remove(&k);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn applying_the_difference_gives_the_new_table(
            old: BTreeMap<u8, u8>,
            new: BTreeMap<u8, u8>,
        ) {
            let changes = diff(&old, &new);
            let mut table = old.clone();
            for change in changes.clone() {
                apply(&mut table, change);
            }
            prop_assert_eq!(&table, &new);
            prop_assert_eq!(changes.is_empty(), old == new);
            // No key is touched twice, nothing that is right already is touched, and removals come last.
            let keys: std::collections::BTreeSet<u8> = changes.iter().map(|c| *c.key()).collect();
            prop_assert_eq!(keys.len(), changes.len());
            prop_assert!(keys.iter().all(|k| old.get(k) != new.get(k)));
            let removal = |c: &Change<u8, u8>| matches!(c, Change::Remove(_));
            prop_assert!(changes.is_sorted_by_key(removal));
        }
    }
}
