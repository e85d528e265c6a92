//! Active health checks: what runs when, and that every run ends in a verdict.
//!
//! [`Prober`] owns one task per check and nothing else that lives longer than a run. It judges single runs; what follows
//! from several of them is `core`'s to decide.
//!
//! How a check is timed: its first run is at a random moment, within a millisecond for each check there is and within a
//! second at most, so that a few begin at once and many do not start at one instant; the later ones lie on a grid of its
//! own, each moved by at most 5 % of the interval, so that checks do not march in step and no delay adds up. The first gap
//! is a shorter one, which spreads the grids over the whole interval. Runs of one check never overlap: one that is still
//! going when the next is due counts as an overrun and takes its place.

mod body;
mod dns;
mod exec;
#[doc(hidden)]
pub mod fuzz;
mod grpc;
mod http;
mod http1;
mod icmp;
mod jq;
mod link;
mod ping;
mod reach;
mod run;
mod tcp;
mod tls;
mod udp;
mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use standfast_core::health::Verdict;
use standfast_core::machine::Rng;
use standfast_core::plan::{Check, CheckId};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

pub use run::{Prepared, prepare};

/// The first run of a check is within this time, and within [`EACH`] for every check there is.
const FIRST: Duration = Duration::from_secs(1);

/// Room for the first run of each check: a few checks begin at once, a thousand are spread over a second.
const EACH: Duration = Duration::from_millis(1);

/// A longer interval is taken for this one, so that no moment is out of range.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// How many callers may wait for a run of one check.
const WAITERS: usize = 64;

type Report = dyn Fn(CheckId, Verdict) + Send + Sync;

/// Runs checks and reports each run's verdict. Dropping it ends every run, without a verdict.
pub struct Prober {
    handle: Handle,
    /// Only there if it is our own.
    runtime: Option<Runtime>,
    report: Arc<Report>,
    running: Mutex<BTreeMap<CheckId, Running>>,
}

/// A check that runs.
struct Running {
    check: Check,
    /// Replaced when a file it names may have changed; the schedule goes on.
    prepared: watch::Sender<Arc<Prepared>>,
    trigger: mpsc::Sender<oneshot::Sender<Verdict>>,
    counts: Arc<Counts>,
    task: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Prober {
    /// Starts on `handle`, or on a runtime of its own with two threads. No check runs until [`set`](Self::set).
    ///
    /// `report` is called once for each run, from the check's task: it must not block.
    pub fn start(
        handle: Option<Handle>,
        report: impl Fn(CheckId, Verdict) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (handle, runtime) = match handle {
            Some(handle) => (handle, None),
            None => {
                let runtime = Builder::new_multi_thread()
                    .worker_threads(2)
                    .thread_name("probe")
                    .enable_all()
                    .build()?;
                (runtime.handle().clone(), Some(runtime))
            }
        };
        Ok(Self { handle, runtime, report: Arc::new(report), running: Mutex::default() })
    }

    /// Makes `checks` the ones that run: new ones start, missing ones stop, changed ones start anew, and the others keep
    /// their schedule and only read their files again.
    ///
    /// # Errors
    /// Every check that cannot be prepared, with the reason; then nothing has changed.
    pub fn set(&self, checks: &BTreeMap<CheckId, Check>) -> Result<(), Vec<(CheckId, String)>> {
        let mut ready = Vec::new();
        let mut problems = Vec::new();
        for (id, check) in checks {
            match prepare(check) {
                Ok(prepared) if prepared.is_external() => {}
                Ok(prepared) => ready.push((id, check, Arc::new(prepared))),
                Err(reason) => problems.push((id.clone(), reason)),
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut old = std::mem::take(&mut *running);
        let count = u32::try_from(ready.len()).unwrap_or(u32::MAX);
        let first = EACH.saturating_mul(count).min(FIRST);
        for (id, check, prepared) in ready {
            let next = match old.remove(id) {
                Some(mut same) if same_schedule(&same.check, check) => {
                    same.check = check.clone();
                    same.prepared.send_replace(prepared);
                    same
                }
                _ => self.spawn(id.clone(), check.clone(), prepared, first),
            };
            running.insert(id.clone(), next);
        }
        Ok(())
    }

    /// Runs a check as soon as it is not running, besides its schedule, and tells the verdict that this run reported.
    ///
    /// The run goes on if the receiver is dropped. Callers that ask during a run share the one after it.
    pub fn run_now(&self, id: &CheckId) -> Result<oneshot::Receiver<Verdict>, RunNowError> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let check = running.get(id).ok_or_else(|| RunNowError::Unknown(id.clone()))?;
        let (tell, told) = oneshot::channel();
        check.trigger.try_send(tell).map_err(|_| RunNowError::Busy(id.clone()))?;
        Ok(told)
    }

    /// How often each check ran, and how often it was still running when the next run was due.
    pub fn counts(&self) -> BTreeMap<CheckId, RunCounts> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.iter().map(|(id, check)| (id.clone(), check.counts.read())).collect()
    }

    fn spawn(&self, id: CheckId, check: Check, prepared: Arc<Prepared>, first: Duration) -> Running {
        let (prepared, watched) = watch::channel(prepared);
        let (trigger, triggered) = mpsc::channel(WAITERS);
        let counts = Arc::new(Counts::default());
        let schedule = Schedule {
            first,
            interval: check.interval.clamp(Duration::from_millis(1), LONGEST),
            rng: Rng::new(run::random()),
            grid: Instant::now(),
            due: Instant::now(),
        };
        let task = Task {
            id,
            limit: check.timeout,
            prepared: watched,
            triggered,
            counts: Arc::clone(&counts),
            report: Arc::clone(&self.report),
        };
        let task = self.handle.spawn(task.drive(schedule)).abort_handle();
        Running { check, prepared, trigger, counts, task }
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).clear();
        if let Some(runtime) = self.runtime.take() {
            // May be dropped from within a runtime, where waiting is forbidden.
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Prober {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prober").field("checks", &self.counts()).finish_non_exhaustive()
    }
}

/// Why a run cannot be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunNowError {
    /// No such check runs here.
    Unknown(CheckId),
    /// Too many callers wait for it already.
    Busy(CheckId),
}

impl fmt::Display for RunNowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(id) => write!(f, "no check {id} runs here"),
            Self::Busy(id) => write!(f, "too many callers wait for check {id}"),
        }
    }
}

impl std::error::Error for RunNowError {}

/// How often a check ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunCounts {
    /// Runs that ended.
    pub runs: u64,
    /// Moments at which a run was due while an earlier one was still going.
    pub overruns: u64,
}

#[derive(Debug, Default)]
struct Counts {
    runs: AtomicU64,
    overruns: AtomicU64,
}

impl Counts {
    fn read(&self) -> RunCounts {
        RunCounts { runs: self.runs.load(Ordering::Relaxed), overruns: self.overruns.load(Ordering::Relaxed) }
    }
}

/// Whether going from `old` to `new` leaves the runs as they are.
fn same_schedule(old: &Check, new: &Check) -> bool {
    // Rise and fall are the gate's.
    old.interval == new.interval
        && old.fast_interval == new.fast_interval
        && old.timeout == new.timeout
        && old.via == new.via
        && old.probe == new.probe
}

/// When a check runs.
struct Schedule {
    /// The first run is within this time.
    first: Duration,
    interval: Duration,
    rng: Rng,
    /// The planned moment of the next run, without its jitter.
    grid: Instant,
    /// The moment of the next run.
    due: Instant,
}

impl Schedule {
    /// Plans the first run.
    fn begin(&mut self, now: Instant) {
        self.grid = now + self.rng.jitter(self.interval.min(self.first), 0);
        self.due = self.grid;
        if self.interval > self.first {
            // The second run comes early by up to half an interval.
            self.grid -= self.interval - self.rng.jitter(self.interval, 50);
        }
    }

    /// Plans the run after the one that was due, and says how many were missed until `now`.
    fn advance(&mut self, now: Instant) -> u64 {
        let tenth = self.interval / 10;
        self.grid += self.interval;
        let mut missed = 0;
        if now > self.grid + tenth {
            let late = (now - self.grid).as_nanos();
            let interval = self.interval.as_nanos();
            missed = u64::try_from(late / interval).unwrap_or(u64::MAX - 1) + 1;
            let into = Duration::from_nanos(u64::try_from(late % interval).unwrap_or(0));
            self.grid = now + (self.interval - into);
        }
        self.due = self.grid - tenth / 2 + self.rng.jitter(tenth, 0);
        missed
    }
}

/// What the task of a check holds.
struct Task {
    id: CheckId,
    limit: Duration,
    prepared: watch::Receiver<Arc<Prepared>>,
    triggered: mpsc::Receiver<oneshot::Sender<Verdict>>,
    counts: Arc<Counts>,
    report: Arc<Report>,
}

impl Task {
    async fn drive(mut self, mut schedule: Schedule) {
        schedule.begin(Instant::now());
        let mut waiters = Vec::new();
        loop {
            tokio::select! {
                biased;
                () = sleep_until(schedule.due) => {
                    self.run(&mut waiters).await;
                    let missed = schedule.advance(Instant::now());
                    self.counts.overruns.fetch_add(missed, Ordering::Relaxed);
                }
                Some(waiter) = self.triggered.recv() => {
                    waiters.push(waiter);
                    self.run(&mut waiters).await;
                }
            }
        }
    }

    /// Runs once; `waiters` and whoever asked until the start are told the verdict too.
    async fn run(&mut self, waiters: &mut Vec<oneshot::Sender<Verdict>>) {
        while let Ok(waiter) = self.triggered.try_recv() {
            waiters.push(waiter);
        }
        let prepared = Arc::clone(&self.prepared.borrow());
        let verdict = prepared.run(self.limit).await;
        self.counts.runs.fetch_add(1, Ordering::Relaxed);
        (self.report)(self.id.clone(), verdict.clone());
        for waiter in waiters.drain(..) {
            // A caller that went away changes nothing.
            let _ = waiter.send(verdict.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    fn schedule(interval: Duration, seed: u64, now: Instant) -> Schedule {
        let mut schedule = Schedule { first: FIRST, interval, rng: Rng::new(seed), grid: now, due: now };
        schedule.begin(now);
        schedule
    }

    #[test]
    fn runs_keep_to_a_grid_of_their_own_within_5_percent() {
        for (seed, interval) in [(1, INTERVAL), (2, Duration::from_millis(100)), (3, Duration::from_secs(1))]
        {
            let now = Instant::now();
            let mut s = schedule(interval, seed, now);
            assert!(s.due >= now && s.due <= now + interval.min(FIRST));
            let mut last = s.due;
            // A second run that comes early, but not at once.
            assert_eq!(s.advance(last), 0);
            assert!(s.due - last >= interval * 44 / 100 && s.due - last <= interval * 106 / 100);
            let origin = s.grid;
            last = s.due;
            let mut gaps = std::collections::BTreeSet::new();
            for n in 1..=1000u32 {
                assert_eq!(s.advance(last + interval / 3), 0);
                assert_eq!(s.grid, origin + interval * n, "the grid drifts");
                assert!(s.due + interval / 20 >= s.grid && s.due <= s.grid + interval / 20);
                gaps.insert(s.due - last);
                last = s.due;
            }
            assert!(gaps.len() > 900, "no jitter");
        }
    }

    #[test]
    fn second_runs_of_long_intervals_spread_over_half_of_one() {
        let now = Instant::now();
        let seconds: Vec<_> = (0..200)
            .map(|seed| {
                let mut s = schedule(INTERVAL, seed, now);
                s.advance(s.due);
                s.due
            })
            .collect();
        let (first, last) = (seconds.iter().min().unwrap(), seconds.iter().max().unwrap());
        assert!(*last - *first > INTERVAL * 4 / 10, "{:?}", *last - *first);
    }

    #[test]
    fn missed_runs_are_counted_once_and_not_made_up_for() {
        let mut s = schedule(INTERVAL, 9, Instant::now());
        s.advance(s.due);
        let grid = s.grid;
        // A little late is not missed.
        assert_eq!(s.advance(grid + INTERVAL + INTERVAL / 20), 0);
        // Three moments and a half later.
        let now = s.grid + INTERVAL * 7 / 2;
        assert_eq!(s.advance(now), 3);
        assert_eq!(s.grid, grid + INTERVAL * 5);
        assert!(s.due > now);
    }
}
