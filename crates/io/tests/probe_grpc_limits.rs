//! What the answer of a gRPC server costs where the types, which are the server's own, make much of little: one octet of
//! it may be a long name in JSON.
//!
//! The tests count what the whole process uses, so they take turns.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod grpc_support;
mod probe_support;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use grpc_support::*;
use probe_support::{assert_says, check, id, server, tcp};
use standfast_core::health::Outcome::{Bad, Good};
use standfast_core::health::Verdict;
use standfast_core::plan::GrpcMethod;
use standfast_io::probe::Prober;

const SECOND: Duration = Duration::from_secs(1);

fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most memory that the process ever held.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Ticks of processor time that this process, or a thread of it, has had.
fn ticks(whose: &str) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{whose}/stat")).unwrap();
    // After the name in parentheses the times in user mode and in the kernel are the 12th and the 13th.
    let (_, rest) = stat.rsplit_once(')').unwrap();
    rest.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum()
}

/// A server whose method `/x.S/M` gives a list of `values` enum values; its reflection says that the value's name is so
/// long.
async fn names(length: usize, values: usize) -> SocketAddr {
    let list = [field(1, b"e"), vec![3 << 3, 1, 4 << 3, 3, 5 << 3, 14], field(6, b".x.E")].concat();
    let value = [field(1, &vec![b'A'; length]), vec![2 << 3, 0]].concat();
    let method = [field(1, b"M"), field(2, b".x.Q"), field(3, b".x.R")].concat();
    let file = [
        field(1, b"x.proto"),
        field(2, b"x"),
        field(4, &field(1, b"Q")),
        field(4, &[field(1, b"R"), field(2, &list)].concat()),
        field(5, &[field(1, b"E"), field(2, &value)].concat()),
        field(6, &[field(1, b"S"), field(2, &method)].concat()),
        field(12, b"proto3"),
    ]
    .concat();
    let answer = field(1, &vec![0; values]);
    grpc_server(move |path, questions| match path {
        "/x.S/M" => Reply::ok(vec![answer.clone()]),
        _ => Reply::ok(questions.iter().map(|_| descriptors(&[&file])).collect()),
    })
    .await
}

/// A run that has ended: when, of which check, and the ticks that the thread of the checks had had by then.
type Ended = (Instant, String, Verdict, u64);

/// Lets a check of `names` run `times`, at intervals of 200 ms, beside one of a TCP server; what both said.
fn beside_another(length: usize, values: usize, times: usize) -> Vec<Ended> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let hostile = runtime.block_on(names(length, values));
    let ended = Arc::new(Mutex::new(Vec::<Ended>::new()));
    let into = Arc::clone(&ended);
    let prober = Prober::start(move |verdicts| {
        let (now, ticks) = (Instant::now(), ticks("thread-self"));
        into.lock()
            .unwrap()
            .extend(verdicts.into_iter().map(|(id, v)| (now, id.check.to_string(), v, ticks)));
    })
    .unwrap();
    let method = GrpcMethod { text: Some("A".into()), ..GrpcMethod::new("/x.S/M") };
    let checks = BTreeMap::from([
        (id("hostile"), check(grpc(hostile, call(method)), 200, 60_000)),
        (id("other"), check(tcp(server(drop)), 200, 10_000)),
    ]);
    prober.set(&checks).unwrap();
    let end = Instant::now() + 120 * SECOND;
    while ended.lock().unwrap().iter().filter(|e| e.1 == "hostile").count() < times {
        assert!(Instant::now() < end, "not {times} runs: {:?}", ended.lock().unwrap());
        std::thread::sleep(SECOND / 20);
    }
    drop(prober);
    std::mem::take(&mut ended.lock().unwrap())
}

/// Asserts that the other check ran all the time, and well.
fn assert_other_went_on(ended: &[Ended]) {
    let other: Vec<_> = ended.iter().filter(|e| e.1 == "other").collect();
    other.iter().for_each(|e| assert_says(&e.2, Good, ""));
    let gap = other.windows(2).map(|pair| pair[1].0 - pair[0].0).max();
    assert!(gap.is_some_and(|gap| gap < 3 * SECOND), "{} runs, the longest gap {gap:?}", other.len());
}

#[test]
fn an_answer_that_is_long_in_json_costs_no_more_than_its_bound() {
    let _alone = alone();
    // 200 MB of JSON from 400 kB, and 320 MB from an answer that is short itself.
    for (length, values, want) in [
        (500, 400_000, "the answer as JSON is longer than 4194304 bytes"),
        (20_000, 16_000, "the descriptors have a name that is longer than 512 bytes"),
    ] {
        let before = peak_kib();
        let ended = beside_another(length, values, 5);
        let grown = peak_kib() - before;
        assert!(grown < 100 << 10, "{length} {values}: memory grew by {grown} KiB");
        for (_, _, verdict, _) in ended.iter().filter(|e| e.1 == "hostile") {
            assert_says(verdict, Bad, want);
        }
        assert_other_went_on(&ended);
    }
}

#[test]
fn a_short_answer_that_is_long_in_json_is_not_read_on_the_thread_of_the_checks() {
    let _alone = alone();
    let before = ticks("self");
    let ended = beside_another(250, 16_000, 20);
    let all = ticks("self") - before;
    for (_, _, verdict, _) in ended.iter().filter(|e| e.1 == "hostile") {
        assert_says(verdict, Good, "status OK, answer 16003 bytes");
    }
    assert_other_went_on(&ended);
    let checks = ended.last().unwrap().3;
    assert!(checks < all / 2, "{checks} of {all} ticks were those of the thread that runs all checks");
}
