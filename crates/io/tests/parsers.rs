//! The parsers of what servers send, over a corpus of bytes and what becomes of them when some are changed.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

use std::path::Path;

use standfast_core::machine::Rng;
use standfast_io::probe::fuzz;

/// Gives every file of a directory of the corpus to `parse`, as it is and with some octets changed, lost or doubled.
fn replay(directory: &str, parse: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(directory);
    let mut files: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "only {} files in {}", files.len(), directory.display());
    let mut rng = Rng::new(1);
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        parse(&bytes);
        for _ in 0..40 {
            let mut changed = bytes.clone();
            for _ in 0..=rng.below(3) {
                let at = rng.below(changed.len() as u64 + 1) as usize;
                match rng.below(4) {
                    0 => changed.truncate(at),
                    1 => changed.insert(at, rng.below(256) as u8),
                    2 if at < changed.len() => changed[at] = rng.below(256) as u8,
                    _ => {
                        let again = changed[at..].to_vec();
                        changed.extend(again);
                    }
                }
            }
            parse(&changed);
        }
    }
}

#[test]
fn http1_answers_mean_the_same_however_they_come() {
    replay("http1", fuzz::http1);
}
