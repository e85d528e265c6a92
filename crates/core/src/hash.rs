//! Which of several names owns a slot: weighted rendezvous hashing.
//!
//! Every name draws a number for every slot, and the best draw owns it. Whoever knows the same names and weights makes the same
//! table, whatever the order in which it learned of them; a name that goes gives up its own slots and moves no other; one
//! that comes takes only what it wins. The price is that shares are only as even as dice: a share of n slots has a standard
//! deviation of less than √n. Integers alone are used, so that every machine agrees; the draws never change, so that every
//! version does.

/// A name that may own slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// Its octets, unique among the names.
    pub octets: Vec<u8>,
    /// Its share in relation to those of the others; 0 owns nothing.
    pub weight: u16,
}

/// The owner of each of `slots` slots, by its place in `names`; empty without a name of a weight.
pub fn table(slots: u16, names: &[Name]) -> Vec<usize> {
    let players: Vec<(usize, u64, &Name)> = names
        .iter()
        .enumerate()
        .filter(|(_, n)| n.weight > 0)
        .map(|(i, n)| (i, hash(&n.octets), n))
        .collect();
    if players.is_empty() {
        return Vec::new();
    }
    let owner = |slot: u16| {
        let slot = mix(u64::from(slot).wrapping_add(1).wrapping_mul(GOLDEN));
        let mut best: Option<(u64, &Name, usize)> = None;
        for &(i, hash, name) in &players {
            let cost = cost(mix(hash ^ slot));
            // Costs are compared for the same weight: cost / weight, without a division.
            let wins = best.is_none_or(|(least, other, _)| {
                let (mine, theirs) = (
                    u128::from(cost) * u128::from(other.weight),
                    u128::from(least) * u128::from(name.weight),
                );
                mine < theirs || (mine == theirs && name.octets < other.octets)
            });
            if wins {
                best = Some((cost, name, i));
            }
        }
        best.map_or(0, |(.., i)| i)
    };
    (0..slots).map(owner).collect()
}

/// An odd number near 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// FNV-1a, stirred.
fn hash(octets: &[u8]) -> u64 {
    let fnv = octets
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, &o| (h ^ u64::from(o)).wrapping_mul(0x0000_0100_0000_01b3));
    mix(fnv)
}

/// A permutation of 64 bits in which every bit depends on every other (the finalizer of splitmix64).
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// -log2(draw / 2^64), with [`FRACTION`] bits after the point: an exponential draw. Divided by a weight, the least one wins
/// with the probability of that weight's share.
fn cost(draw: u64) -> u64 {
    let draw = draw | 1;
    let zeros = draw.leading_zeros();
    // The mantissa in [1, 2) with 63 bits after the point, squared once for each bit of its logarithm.
    let mut mantissa = draw << zeros;
    let mut log: u64 = 0;
    for _ in 0..FRACTION {
        let square = (u128::from(mantissa) * u128::from(mantissa)) >> 63;
        let two = square >> 64 != 0;
        log = (log << 1) | u64::from(two);
        mantissa = (square >> u32::from(two)) as u64;
    }
    ((u64::from(zeros) + 1) << FRACTION) - log
}

/// Bits after the point of a [`cost`].
const FRACTION: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Rng;

    fn names(n: u8) -> Vec<Name> {
        (0..n).map(|i| Name { octets: vec![192, 0, 2, 11 + i], weight: 1 }).collect()
    }

    fn owners(slots: u16, names: &[Name]) -> Vec<Vec<u8>> {
        table(slots, names).into_iter().map(|i| names[i].octets.clone()).collect()
    }

    #[test]
    fn the_order_in_which_names_come_does_not_matter() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut all = names(2 + rng.below(10) as u8);
            all.iter_mut().for_each(|n| n.weight = 1 + rng.below(5) as u16);
            let want = owners(120, &all);
            for _ in 0..5 {
                let i = rng.below(all.len() as u64) as usize;
                let name = all.remove(i);
                all.push(name);
                assert_eq!(owners(120, &all), want, "seed {seed}");
            }
        }
    }

    #[test]
    fn a_name_that_goes_moves_no_slot_of_another_and_one_that_comes_takes_only_its_own() {
        for n in 2..=16 {
            let all = names(n);
            let with = owners(512, &all);
            for gone in 0..usize::from(n) {
                let mut left = all.clone();
                let gone = left.remove(gone);
                let without = owners(512, &left);
                for (before, after) in with.iter().zip(&without) {
                    assert!(before == after || *before == gone.octets);
                    assert_ne!(*after, gone.octets);
                }
            }
        }
    }

    #[test]
    fn a_larger_weight_takes_from_others_and_gives_nothing_away() {
        let light = names(5);
        let mut heavy = light.clone();
        heavy[2].weight = 3;
        let (before, after) = (owners(512, &light), owners(512, &heavy));
        let moved: Vec<_> = before.iter().zip(&after).filter(|(a, b)| a != b).collect();
        assert!(moved.len() > 50, "{}", moved.len());
        assert!(moved.iter().all(|(_, to)| **to == heavy[2].octets));
        // A common factor is no change.
        heavy.iter_mut().for_each(|n| n.weight *= 700);
        assert_eq!(owners(512, &heavy), after);
    }

    #[test]
    fn shares_are_as_even_as_dice_and_follow_the_weights() {
        for n in 1..=16_u16 {
            let mut sums = vec![0_u32; n.into()];
            let runs = 40;
            for seed in 0..runs {
                let all: Vec<Name> =
                    (0..n).map(|i| Name { octets: vec![10, seed, 7, i as u8], weight: 1 + i % 3 }).collect();
                let total: u32 = all.iter().map(|n| u32::from(n.weight)).sum();
                let table = table(512, &all);
                for (i, name) in all.iter().enumerate() {
                    let share = f64::from(name.weight) / f64::from(total);
                    let (want, got) = (512.0 * share, table.iter().filter(|&&o| o == i).count());
                    let deviation = (512.0 * share * (1.0 - share)).sqrt();
                    assert!(
                        (got as f64 - want).abs() <= 5.0 * deviation + 1.0,
                        "{n} names: {got}, not {want}"
                    );
                    sums[i] += u32::try_from(got).unwrap();
                }
            }
            let total: u32 = (0..n).map(|i| u32::from(1 + i % 3)).sum();
            for (i, &sum) in sums.iter().enumerate() {
                let want = f64::from(runs) * 512.0 * f64::from(1 + i as u32 % 3) / f64::from(total);
                assert!((f64::from(sum) - want).abs() < 4.5 * want.sqrt(), "{n} names: {sum}, not {want}");
            }
        }
    }

    #[test]
    fn a_cost_is_a_logarithm() {
        for draw in [1, 3, 1 << 20, u64::MAX / 3, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
            let exact = 64.0 - ((draw | 1) as f64).log2();
            let got = cost(draw) as f64 / (1u64 << FRACTION) as f64;
            assert!((got - exact).abs() < 1e-6, "{draw}: {got}, not {exact}");
        }
    }

    #[test]
    fn nobody_owns_a_table_of_nobody() {
        assert_eq!(table(7, &[]), []);
        assert_eq!(table(7, &[Name { octets: vec![1], weight: 0 }]), []);
        assert_eq!(table(0, &names(2)), []);
        assert_eq!(table(3, &names(1)), [0, 0, 0]);
    }

    /// Two versions that disagree here send the flows of one listener astray when another takes over.
    #[test]
    fn versions_agree() {
        let mut all = names(4);
        let text = |all: &[Name]| -> String { table(60, all).iter().map(ToString::to_string).collect() };
        assert_eq!(text(&all), "232003311111220221101300131231001110203313022211212003200112");
        all[3].weight = 3;
        assert_eq!(text(&all), "232333313313223331101330131331303130303333322211212303200133");
        let six: Vec<Name> = (1..=3)
            .map(|i: u8| Name { octets: [&[0x20, 1, 0xd, 0xb8][..], &[0; 11], &[i]].concat(), weight: 1 })
            .collect();
        assert_eq!(text(&six), "220111221022200221201100110202202021102020001222220202012110");
    }
}
