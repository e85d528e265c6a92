//! The fuzzers' corpus, each entry whole, cut short and damaged.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a broken test may stop")]

#[path = "bench/mod.rs"]
mod bench;

use standfast_core::machine::Rng;

/// Entries are texts of hex digits, so that a change of one can be read; `#` begins a comment.
fn corpus(text: &str) -> Vec<Vec<u8>> {
    let lines = text.lines().map(|l| l.split('#').next().unwrap_or("").trim()).filter(|l| !l.is_empty());
    lines.map(bench::octets::hex).collect()
}

fn replay(text: &str, target: fn(&[u8])) {
    let entries = corpus(text);
    assert!(entries.len() >= 8);
    for (seed, entry) in entries.iter().enumerate() {
        target(entry);
        let step = entry.len().div_ceil(64);
        for length in (0..entry.len()).step_by(step) {
            target(&entry[..length]);
        }
        let mut rng = Rng::new(seed as u64);
        for _ in 0..300 {
            let mut bad = entry.clone();
            for _ in 0..1 + rng.below(4) {
                let at = rng.below(bad.len() as u64) as usize;
                match rng.below(3) {
                    0 => bad[at] = rng.next_u64() as u8,
                    1 => bad[at] ^= 1 << rng.below(8),
                    _ => bad.insert(at, rng.next_u64() as u8),
                }
            }
            target(&bad);
        }
    }
}

#[test]
fn every_stream_of_the_corpus_is_survived() {
    replay(include_str!("../fuzz/corpus/octets.hex"), bench::fuzz::octets);
}

#[test]
fn every_sequence_of_inputs_of_the_corpus_is_survived() {
    replay(include_str!("../fuzz/corpus/inputs.hex"), bench::fuzz::inputs);
}

#[test]
fn random_sequences_of_inputs_are_survived() {
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let data: Vec<u8> = (0..rng.below(400)).map(|_| rng.next_u64() as u8).collect();
        bench::fuzz::inputs(&data);
    }
}
