//! Active health checks: what runs when, and that every run ends in a verdict.
//!
//! [`Prober`] has one thread for all checks. A check that does not run just then is an entry in a table, and a run is a
//! task that lives no longer than the run. It judges single runs; what follows from several of them is `core`'s to decide.
//!
//! How a check is timed: its first run is at a random moment, within a millisecond for each check there is and within a
//! second at most, so that a few begin at once and many do not start at one instant; the later ones lie on a grid of its
//! own, each moved by at most 5 % of the interval, so that checks do not march in step and no delay adds up. The first gap
//! is a shorter one, which spreads the grids over the whole interval. Runs of one check never overlap: one that is still
//! going when the next is due counts as an overrun and takes its place. The clock is the monotonic one, which neither a
//! change of the time of day nor a suspended host moves; what was missed while this process stood still is not made up for.
//! Within that jitter the later moments of all checks are put together: those of a second fall on whole steps of 16 ms, or
//! shorter ones where there are more than some 10,000, and those of shorter intervals on shorter ones, so that a wake-up
//! starts more than one run.
//!
//! A check that follows a process runs when that ends, besides.
//!
//! How many runs are under way at once is bounded by the limit of open files. One that finds no room in its own time is
//! no result, and says so.

mod board;
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
mod pattern;
mod ping;
mod process;
mod reach;
mod run;
mod schedule;
mod tcp;
mod tls;
mod udp;
mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use standfast_core::health::Verdict;
use standfast_core::plan::{Check, CheckId};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use board::{Board, Outbox, Room};
pub use pattern::check_pattern;
pub use run::{Prepared, prepare};

/// Descriptors that are left to everything that is no run of a check.
const RESERVE: u64 = 256;

/// Descriptors of one run at most: of its connection, and of finding the address of a name.
const EACH: u64 = 2;

/// More runs than this are never under way at once.
const MOST: u64 = 100_000;

/// Runs checks and reports each run's verdict. Dropping it ends every run, without a verdict.
pub struct Prober {
    board: Arc<Board>,
    /// Its end is that of the thread.
    _stop: oneshot::Sender<()>,
}

impl Prober {
    /// Starts the thread of the checks. No check runs until [`set`](Self::set).
    ///
    /// `report` is called on that thread with the runs that have ended, in that order: when no run has anything to do, and
    /// after every 512 of them. It must not block. A good run that follows a good one of a check that is not in a hurry says
    /// nothing new, and may wait up to 50 ms for others.
    ///
    /// The soft limit of open files is raised to the hard one, since each run needs some.
    pub fn start(report: impl Fn(Vec<(CheckId, Verdict)>) + Send + Sync + 'static) -> io::Result<Self> {
        Self::start_telling(|_, _| {}, report, |_| {})
    }

    /// The same, and shows each verdict as soon as it is there, to whoever keeps a part of it: `note` may take from it what
    /// `report` is not to be told. And it says when its thread was held up for half a second or more: `held_up` is called on
    /// that thread as soon as it goes on, before it runs or reports anything. Neither may block.
    pub fn start_telling(
        note: impl Fn(&CheckId, &mut Verdict) + Send + Sync + 'static,
        report: impl Fn(Vec<(CheckId, Verdict)>) + Send + Sync + 'static,
        held_up: impl Fn(Duration) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let files = crate::tcp::raise_file_limit()?;
        let runs = (files.saturating_sub(RESERVE) / EACH).clamp(8, MOST);
        let room = Room { runs: usize::try_from(runs).unwrap_or(usize::MAX), files };
        let outbox = Arc::new(Outbox::new(Box::new(note), Box::new(report)));
        let idle = Arc::clone(&outbox);
        let runtime =
            Builder::new_current_thread().enable_all().on_thread_park(move || idle.rest()).build()?;
        let board = Arc::new(Board::new(runtime.handle().clone(), room, outbox, Box::new(held_up)));
        let (stop, stopped) = oneshot::channel::<()>();
        let driven = Arc::clone(&board);
        std::thread::Builder::new().name("checks".to_owned()).spawn(move || {
            // A task of its own: what wakes a task of this thread wakes nobody else, while the future that is blocked on is
            // woken through the kernel.
            runtime.spawn(driven.drive());
            // Its sender says nothing: it is dropped.
            let _ = runtime.block_on(stopped);
            // Whatever runs on a thread of its own is not waited for.
            runtime.shutdown_background();
        })?;
        Ok(Self { board, _stop: stop })
    }

    /// Makes `checks` the ones that run: new ones start, missing ones stop, changed ones start anew, and the others keep
    /// their schedule and only read their files again.
    ///
    /// # Errors
    /// Every check that cannot be prepared, with the reason; then nothing has changed.
    pub fn set(&self, checks: &BTreeMap<CheckId, Check>) -> Result<(), Vec<(CheckId, String)>> {
        self.put(Self::ready(checks)?);
        Ok(())
    }

    /// Prepares checks, so that nothing can fail when they are [put](Self::put) in the place of others.
    ///
    /// # Errors
    /// As with [`set`](Self::set).
    pub fn ready(checks: &BTreeMap<CheckId, Check>) -> Result<Ready<'_>, Vec<(CheckId, String)>> {
        let mut ready = Vec::new();
        let mut problems = Vec::new();
        for (id, check) in checks {
            match prepare(check) {
                Ok(prepared) if prepared.is_external() => {}
                Ok(prepared) => ready.push((id, check, prepared)),
                Err(reason) => problems.push((id.clone(), reason)),
            }
        }
        if problems.is_empty() { Ok(Ready(ready)) } else { Err(problems) }
    }

    /// Ends the checks that run otherwise than in `ready`, or are not in it. What they had to say is reported when this returns,
    /// and nothing more comes of them. It waits for the thread of the checks.
    pub fn retire(&self, ready: &Ready<'_>) {
        let stay: BTreeMap<CheckId, u64> =
            ready.0.iter().map(|(id, check, _)| (CheckId::clone(id), board::made_of(check))).collect();
        self.board.retire(stay);
    }

    /// Makes these the checks that run, as [`set`](Self::set) does.
    pub fn put(&self, ready: Ready<'_>) {
        self.board.set(ready.0);
    }

    /// Runs a check as soon as it is not running, besides its schedule, and tells the verdict that this run reported.
    ///
    /// The run goes on if the receiver is dropped. Callers that ask during a run share the one after it.
    pub fn run_now(&self, id: &CheckId) -> Result<oneshot::Receiver<Verdict>, RunNowError> {
        self.board.run_now(id)
    }

    /// Has a check run every [`fast_interval`](Check::fast_interval), as it does until it is told for the first time, or every
    /// interval again. None of the runs in a hurry waits to be reported, even if the two intervals are the same.
    ///
    /// Its next run is at most a fast interval away once it is to hurry. A run that is planned is never put off. Nothing
    /// happens if no such check runs here.
    pub fn hurry(&self, id: &CheckId, on: bool) {
        self.board.hurry(id, on);
    }

    /// How often each check ran, and how often not in time.
    pub fn counts(&self) -> BTreeMap<CheckId, RunCounts> {
        self.board.counts()
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        // The thread ends by itself. It is not waited for: it may be the one that drops this.
        self.board.stop();
    }
}

impl fmt::Debug for Prober {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prober").field("checks", &self.counts()).finish_non_exhaustive()
    }
}

/// Checks that are [prepared](Prober::ready).
pub struct Ready<'a>(Vec<(&'a CheckId, &'a Check, Prepared)>);

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
    /// Moments at which a run was due and did not start: an earlier one was still going, there was no room, or this
    /// process stood still.
    pub overruns: u64,
    /// Runs that started more than 10 ms after their moment.
    pub late: u64,
}
