//! Particular inputs of the parsers; `fuzz/` gives them the whole corpus and what becomes of it.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use standfast_io::probe::fuzz;

/// The files of a corpus, by name.
fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let files = fs::read_dir(directory).unwrap().map(|f| f.unwrap().path());
    let mut all: Vec<_> =
        files.map(|p| (p.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read(&p).unwrap())).collect();
    all.sort();
    assert!(all.len() > 10, "the corpus {name} is gone");
    all
}

#[test]
fn only_the_right_icmp_packets_are_answers() {
    let right: Vec<String> =
        corpus("icmp").into_iter().filter(|(_, o)| fuzz::icmp(o)).map(|(n, _)| n).collect();
    assert_eq!(right, ["answer", "answer-of-icmpv6", "answer-with-header", "answer-with-options"]);
}

#[test]
fn answers_that_are_as_large_as_can_be_are_read_in_little_time() {
    // As many records as fit, each of which points to the question's name; and a chain of aliases as long as can be.
    let mut head = corpus("dns").into_iter().find(|(n, _)| n == "empty").unwrap().1;
    let records = (65_535 - head.len()) / 16;
    head[6..8].copy_from_slice(&u16::try_from(records).unwrap().to_be_bytes());
    let address = [0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1];
    let flood = [&head[..], &address.repeat(records)].concat();
    let start = Instant::now();
    fuzz::dns(&flood);
    let mut chain = head.clone();
    let mut owner = 12_u16;
    let mut links = 0_u16;
    while chain.len() < 16_000 {
        // An alias with a label of its own, which the next one hangs on.
        chain.extend_from_slice(&(0xc000 | owner).to_be_bytes());
        chain.extend_from_slice(&[0, 5, 0, 1, 0, 0, 0, 60, 0, 7, 4]);
        chain.extend_from_slice(format!("{links:04}").as_bytes());
        owner = u16::try_from(chain.len() - 5).unwrap();
        chain.extend_from_slice(&[0xc0, 0x10]);
        links += 1;
    }
    chain[6..8].copy_from_slice(&links.to_be_bytes());
    fuzz::dns(&chain);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}
