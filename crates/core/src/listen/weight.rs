//! Shares from link bandwidth (draft-ietf-idr-link-bandwidth).
//!
//! Bandwidths are rounded to seven bits, less than one part in a hundred, before anything is made of them: a speed that trembles
//! rewrites no group, and what comes out depends on no history, so that two listeners make the same of the same members.

use serde::{Deserialize, Serialize};

/// A link bandwidth as far as shares are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Bandwidth(u16);

/// Bits of the mantissa that count, besides the leading one.
const KEPT: u32 = 6;
/// Bits of a weight above the seven of the least one: 127 << 9 still fits in 16.
const SPREAD: u16 = 9;
/// How many times the least share the greatest one is at most: a member that asks for more than can be starves nobody.
const RATIO: u16 = 256;

impl Bandwidth {
    /// The least that `communities` tell; `None` if none of them tells a number that can be a speed.
    pub(super) fn of(communities: &[[u8; 8]]) -> Option<Self> {
        communities.iter().filter_map(Self::parse).min()
    }

    /// Transitive or not, of any AS, in bytes per second.
    fn parse(community: &[u8; 8]) -> Option<Self> {
        let [0x00 | 0x40, 0x04, _, _, number @ ..] = community else { return None };
        let bytes = f32::from_be_bytes(*number);
        if !bytes.is_finite() || bytes < 0.0 {
            return None;
        }
        if bytes == 0.0 {
            return Some(Self(0));
        }
        // Exponent and mantissa, rounded: the bits of positive numbers are in the order of the numbers.
        let dropped = f32::MANTISSA_DIGITS - 1 - KEPT;
        let rounded = (bytes.max(f32::MIN_POSITIVE).to_bits() + (1 << (dropped - 1))) >> dropped;
        // 8 bits of exponent and 6 of mantissa.
        Some(Self(u16::try_from(rounded).unwrap_or(u16::MAX)))
    }

    /// Whether it asks for nothing at all.
    pub(super) const fn is_none(self) -> bool {
        self.0 == 0
    }

    const fn exponent(self) -> u16 {
        self.0 >> KEPT
    }

    /// In units of 2^(base - 6), at least 1.
    fn scaled(self, base: u16) -> u16 {
        let mantissa = (1 << KEPT) | (self.0 & ((1 << KEPT) - 1));
        let scaled = match self.exponent().checked_sub(base) {
            Some(up) => mantissa << up.min(SPREAD),
            None => mantissa.checked_shr((base - self.exponent()).into()).unwrap_or(0),
        };
        scaled.max(1)
    }
}

/// The weight of each bandwidth, in their order: in proportion to each other up to [`RATIO`], at least 1, as small as they can be.
/// One that says nothing gets the least that another asks for.
pub(super) fn weights(bandwidths: &[Option<Bandwidth>]) -> Vec<u16> {
    let told = || bandwidths.iter().flatten();
    let (Some(most), Some(least)) = (told().max(), told().min()) else { return vec![1; bandwidths.len()] };
    let base = least.exponent().max(most.exponent().saturating_sub(SPREAD));
    let floor = most.scaled(base).div_ceil(RATIO);
    let weight = |b: &Option<Bandwidth>| b.unwrap_or(*least).scaled(base).max(floor);
    let weights: Vec<u16> = bandwidths.iter().map(weight).collect();
    let common = weights.iter().fold(0, |a, &b| gcd(a, b)).max(1);
    weights.into_iter().map(|w| w / common).collect()
}

const fn gcd(mut a: u16, mut b: u16) -> u16 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Rng;

    fn told(bytes: f32) -> [u8; 8] {
        let n = bytes.to_be_bytes();
        [0x40, 0x04, 0xfc, 0x01, n[0], n[1], n[2], n[3]]
    }

    fn of(bytes: &[f32]) -> Vec<u16> {
        weights(&bytes.iter().map(|&b| Bandwidth::of(&[told(b)])).collect::<Vec<_>>())
    }

    #[test]
    fn shares_are_as_the_bandwidths_are() {
        for (bytes, want) in [
            (&[125e6, 375e6][..], &[119, 356][..]),
            (&[100.0, 300.0, 100.0], &[1, 3, 1]),
            (&[1e9, 1e9, 1e9], &[1, 1, 1]),
            (&[1.0, 2.0, 4.0], &[1, 2, 4]),
            (&[1.25e8, 1.25e9], &[119, 1200]),
            (&[f32::NAN, 100.0, 300.0], &[1, 1, 3]),
            (&[f32::NAN, f32::NAN], &[1, 1]),
            (&[f32::INFINITY, -5.0, 2.0, 4.0], &[1, 1, 1, 2]),
            (&[f32::MIN_POSITIVE, f32::MAX], &[1, 256]),
            (&[1000.0, 1e38, 2000.0], &[1, 256, 1]),
            (&[1e-45, f32::MIN_POSITIVE], &[1, 1]),
            (&[], &[]),
        ] {
            assert_eq!(of(bytes), want, "{bytes:?}");
        }
    }

    #[test]
    fn every_share_is_right_within_two_parts_in_a_hundred_and_none_is_lost() {
        for seed in 0..2000 {
            let mut rng = Rng::new(seed);
            let bytes: Vec<f32> = (0..1 + rng.below(10))
                .map(|_| (1 + rng.below(1000)) as f32 * [1.0, 1e3, 1e5][rng.below(3) as usize])
                .collect();
            let weights = of(&bytes);
            let most = bytes.iter().copied().fold(0.0, f32::max);
            let top = *weights.iter().max().unwrap();
            for (b, w) in bytes.iter().zip(&weights) {
                let (exact, got) = (f64::from(b / most), f64::from(*w) / f64::from(top));
                assert!(*w >= 1, "seed {seed}");
                // Of what is less than a 256th nothing is left but the least share.
                let exact = exact.max(1.0 / 256.0);
                let slack = 0.02 * exact + 1.0 / 32_768.0;
                assert!((exact - got).abs() <= slack, "seed {seed}: {b} of {most} is {w} of {top}");
            }
        }
    }

    #[test]
    fn a_tremble_changes_nothing() {
        for percent in [0.9996, 1.0, 1.0004] {
            assert_eq!(of(&[125e6 * percent, 375e6]), of(&[125e6, 375e6]));
        }
        assert_ne!(of(&[125e6 * 1.03, 375e6]), of(&[125e6, 375e6]));
    }

    #[test]
    fn the_least_of_several_counts_and_what_is_no_speed_does_not() {
        let other = [0x40, 0x02, 0, 0, 0, 0, 0, 0];
        let transitive = [0x00, 0x04, 0xfc, 0x01, 0x3f, 0x80, 0, 0];
        assert_eq!(Bandwidth::of(&[other]), None);
        assert_eq!(Bandwidth::of(&[]), None);
        assert_eq!(Bandwidth::of(&[told(f32::NEG_INFINITY), told(-1.0), told(-f32::NAN)]), None);
        assert_eq!(Bandwidth::of(&[told(8.0), transitive, told(2.0), other]), Bandwidth::of(&[told(1.0)]));
        for zero in [0.0, -0.0] {
            assert!(Bandwidth::of(&[told(5.0), told(zero)]).unwrap().is_none());
        }
        assert!(!Bandwidth::of(&[told(1e-45)]).unwrap().is_none());
    }
}
