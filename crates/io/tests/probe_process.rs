//! Processes that are followed: their end is reported when they end, and not at the next run.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use standfast_core::health::{Outcome, Verdict};
use standfast_core::plan::{Check, CheckId, Probe, ProcessProbe};
use standfast_io::probe::Prober;

const PATIENCE: Duration = Duration::from_secs(10);

/// A process of ours; killed and buried at the end.
struct Sleeper(Child);

impl Sleeper {
    fn new(file: &Path) -> Self {
        let child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        std::fs::write(file, child.id().to_string()).unwrap();
        Self(child)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn id() -> CheckId {
    CheckId::new("web", "process")
}

/// A check of the process in `file`, whose schedule is of no help.
fn check(file: &Path) -> Check {
    let (interval, timeout) = (Duration::from_secs(3600), Duration::from_secs(10));
    let probe = Probe::Process(ProcessProbe::pid_file(file));
    Check { interval, timeout, fast_interval: interval, ..Check::new(probe) }
}

fn started(checks: &BTreeMap<CheckId, Check>) -> (Prober, Receiver<Verdict>) {
    let (told, verdicts) = channel();
    let prober =
        Prober::start(move |ended| ended.into_iter().for_each(|(_, v)| told.send(v).unwrap())).unwrap();
    prober.set(checks).unwrap();
    (prober, verdicts)
}

#[test]
fn an_end_is_reported_at_once_each_time() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("web.pid");
    let mut process = Sleeper::new(&file);
    let (prober, verdicts) = started(&[(id(), check(&file))].into());
    assert_eq!(verdicts.recv_timeout(PATIENCE).unwrap().outcome, Outcome::Good);
    let mut took = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        process.kill();
        let verdict = verdicts.recv_timeout(PATIENCE).unwrap();
        took.push(start.elapsed());
        assert_eq!(verdict.outcome, Outcome::Bad);
        assert_eq!(verdict.detail, format!("process {} (sleep) has ended", process.0.id()));
        process = Sleeper::new(&file);
        prober.run_now(&id()).unwrap();
        assert_eq!(verdicts.recv_timeout(PATIENCE).unwrap().outcome, Outcome::Good);
    }
    println!("from the kill to the verdict: {took:.2?}");
}

#[test]
fn a_check_that_is_taken_away_follows_nobody_and_one_that_stays_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("web.pid");
    let mut process = Sleeper::new(&file);
    let checks = [(id(), check(&file))].into();
    let (prober, verdicts) = started(&checks);
    assert_eq!(verdicts.recv_timeout(PATIENCE).unwrap().outcome, Outcome::Good);
    prober.set(&checks).unwrap();
    prober.run_now(&id()).unwrap();
    assert_eq!(verdicts.recv_timeout(PATIENCE).unwrap().outcome, Outcome::Good);
    process.kill();
    assert_eq!(
        verdicts.recv_timeout(PATIENCE).unwrap().outcome,
        Outcome::Bad,
        "it is followed after a reload too"
    );
    drop(process);
    let mut process = Sleeper::new(&file);
    prober.run_now(&id()).unwrap();
    assert_eq!(verdicts.recv_timeout(PATIENCE).unwrap().outcome, Outcome::Good);
    prober.set(&BTreeMap::new()).unwrap();
    process.kill();
    assert!(verdicts.recv_timeout(Duration::from_millis(300)).is_err(), "nobody asked");
}
