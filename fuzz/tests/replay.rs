//! The corpus of every parser, as it is and with some of it changed, lost, doubled or mixed.
//!
//! Each parser has two seconds for changes (`FUZZ_SECONDS`), always the same ones (`FUZZ_SEED`), and for each input ten
//! seconds and 512 MiB. An input that fails is kept in `fuzz/artifacts/`: mend the parser, and move it to the corpus.

#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use standfast_core::machine::Rng;
use standfast_fuzz::{TARGETS, run};

/// For one input, on a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a parser may add to the memory of this process.
const MEMORY_KIB: u64 = 512 << 10;

/// The longest input that is made.
const LONGEST: usize = 64 << 10;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn names(directory: &Path) -> BTreeSet<String> {
    let all = std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    all.map(|e| e.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = root().join("corpus").join(name);
    let mut files: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 8, "only {} files in {}", files.len(), directory.display());
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

/// A line of `/proc/self/status`, in KiB.
fn memory(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let value = status.lines().find_map(|l| l.strip_prefix(line)).unwrap();
    value.trim_start_matches(':').trim().split(' ').next().unwrap().parse().unwrap()
}

/// Numbers that lengths and counts go wrong at.
const NUMBERS: [&[u8]; 12] = [
    &[0],
    &[1],
    &[0x7f],
    &[0x80],
    &[0xff],
    &[0, 0],
    &[0xff, 0xff],
    &[0x7f, 0xff],
    &[0xff; 4],
    &[0x7f, 0xff, 0xff, 0xff],
    &[0, 0, 0, 0],
    &[0xff; 9],
];

/// One change of `input`; `other` is another one of the corpus.
fn change(input: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
    let below = |rng: &mut Rng, n: usize| rng.below(n as u64) as usize;
    let at = below(rng, input.len() + 1);
    let end = at + below(rng, (input.len() - at).min(64) + 1);
    match rng.below(9) {
        0 => input.truncate(at),
        1 => input.insert(at, rng.below(256) as u8),
        2 if at < input.len() => input[at] = rng.below(256) as u8,
        3 if at < input.len() => input[at] ^= 1 << rng.below(8),
        4 => drop(input.drain(at..end)),
        5 => {
            let again = input[at..end].repeat(1 + below(rng, 8));
            input.splice(at..at, again);
        }
        6 => {
            let number = NUMBERS[below(rng, NUMBERS.len())];
            let end = (at + number.len()).min(input.len());
            input.splice(at..end, number.iter().copied());
        }
        7 => {
            let from = below(rng, other.len() + 1);
            let to = from + below(rng, other.len() - from + 1);
            input.splice(at..end, other[from..to].iter().copied());
        }
        _ => {
            let again = input[at..].to_vec();
            input.extend(again);
        }
    }
    input.truncate(LONGEST);
}

/// Keeps an input that failed.
fn keep(name: &str, input: &[u8], why: &str) -> PathBuf {
    let directory = root().join("artifacts");
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join(format!("{name}-{why}"));
    std::fs::write(&path, input).unwrap();
    path
}

/// Runs one input.
fn survive(name: &str, input: &[u8]) {
    let start = Instant::now();
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(name, input))) {
        eprintln!("{name}: panics on {}", keep(name, input, "panic").display());
        resume_unwind(panic);
    }
    let took = start.elapsed();
    if took > PATIENCE {
        panic!("{name}: takes {took:?} for {}", keep(name, input, "slow").display());
    }
}

/// What is being run, and since when.
type Current = Arc<Mutex<Option<(Instant, Vec<u8>)>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The corpus, and then changes of it until the time is up.
fn all(name: &str, current: &Current) -> u64 {
    let entries = corpus(name);
    let run = |input: &[u8]| {
        *lock(current) = Some((Instant::now(), input.to_vec()));
        survive(name, input);
    };
    run(&[]);
    for (_, entry) in &entries {
        run(entry);
        // Cut short and changed everywhere, or in 64 places.
        for length in (0..entry.len()).step_by(entry.len().div_ceil(64).max(1)) {
            run(&entry[..length]);
            for change in [0x01, 0x80, 0xff, 0xc0] {
                let mut changed = entry.clone();
                changed[length] ^= change;
                run(&changed);
            }
        }
    }
    let end = Instant::now() + Duration::from_secs(setting("FUZZ_SECONDS", 2));
    let mut rng = Rng::new(setting("FUZZ_SEED", 1));
    let mut runs = 0;
    while Instant::now() < end {
        let pick = |rng: &mut Rng| entries[rng.below(entries.len() as u64) as usize].1.clone();
        let (mut input, other) = (pick(&mut rng), pick(&mut rng));
        if rng.below(16) == 0 {
            input = (0..rng.below(400)).map(|_| rng.below(256) as u8).collect();
        }
        for _ in 0..=rng.below(6) {
            change(&mut input, &other, &mut rng);
        }
        run(&input);
        runs += 1;
    }
    *lock(current) = None;
    runs
}

/// One parser at a time, so that its memory can be told from the others'.
static TURN: Mutex<()> = Mutex::new(());

fn replay(name: &'static str) {
    let _turn = lock(&TURN);
    // Makes the highest mark the present one; where that is not allowed, the mark is only higher.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let before = memory("VmRSS");
    let current = Current::default();
    let worker = {
        let current = Arc::clone(&current);
        std::thread::Builder::new().name(name.into()).spawn(move || all(name, &current)).unwrap()
    };
    while !worker.is_finished() {
        std::thread::sleep(Duration::from_millis(20));
        if let Some((since, input)) = &*lock(&current)
            && since.elapsed() > 6 * PATIENCE
        {
            panic!("{name}: does not end for {}", keep(name, input, "hang").display());
        }
    }
    let runs = worker.join().unwrap_or_else(|panic| resume_unwind(panic));
    let more = memory("VmHWM").saturating_sub(before);
    println!("{name}: {runs} changed inputs, {more} KiB more memory at most");
    assert!(more < MEMORY_KIB, "{name}: took {more} KiB");
}

macro_rules! replayed {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                replay(stringify!($name));
            }
        )*

        #[test]
        fn every_parser_has_a_corpus_a_test_and_a_fuzzer() {
            let here = BTreeSet::from([$(stringify!($name).to_owned()),*]);
            let known: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
            assert_eq!(known, here, "tests");
            assert_eq!(known, names(&root().join("corpus")), "directories of the corpus");
            assert_eq!(known, names(&root().join("libfuzzer/fuzz_targets")), "targets of libFuzzer");
            let manifest = std::fs::read_to_string(root().join("libfuzzer/Cargo.toml")).unwrap();
            for name in known {
                assert!(manifest.contains(&format!("\"fuzz_targets/{name}.rs\"")), "libfuzzer/Cargo.toml lacks {name}");
            }
        }
    };
}

replayed! { api bfd bgp body certificate descriptors dns grpc http1 icmp netlink node process protobuf }
