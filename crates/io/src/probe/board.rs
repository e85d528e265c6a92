//! The board of all checks: which is due when, which runs, and who waits for it.
//!
//! One task wakes at the next moment that is due and starts runs; an idle check is an entry here and nothing else. Each
//! run is a task of its own that exists only while it runs; one that need not wait for anything never becomes one.
//! All of them share one thread, so that the lock around the board is hardly ever waited for.

use std::collections::{BTreeMap, VecDeque, btree_map};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use standfast_core::health::{Outcome, Verdict};
use standfast_core::plan::{Check, CheckId};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::run::{self, Prepared};
use super::schedule::Schedule;
use super::{RunCounts, RunNowError};
use crate::dial::Opening;

/// A run that starts more than this after its moment is late.
const LATE: Duration = Duration::from_millis(10);

/// Waking up this much too late means that this host, or this process, stood still.
const STILL: Duration = Duration::from_millis(100);

/// And this much, that whoever counts silence must know.
const HELD_UP: Duration = Duration::from_millis(500);

/// How many callers may wait for a run of one check.
const WAITERS: usize = 64;

/// Verdicts are handed over when this many wait, if not before.
const BATCH: usize = 512;

/// A verdict that says nothing new waits for others so long at most: waking up whoever hears it costs more than the run.
const CALM: Duration = Duration::from_millis(50);

/// A check on the board; never used twice, so that what remains of a removed check meets nobody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    place: usize,
    /// How many had this place before.
    turn: u64,
}

/// The board and what it needs to start runs.
pub(super) struct Board {
    table: Mutex<Table>,
    /// Something is due before the moment that the driving task sleeps until.
    sooner: Notify,
    outbox: Arc<Outbox>,
    handle: Handle,
    room: Room,
    /// What the steps of every schedule are counted from.
    origin: Instant,
    held_up: Box<HeldUp>,
}

type HeldUp = dyn Fn(Duration) + Send + Sync;

/// How many runs may be under way at once, and why.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// So many runs.
    pub(super) runs: usize,
    /// The limit of open files that this comes from.
    pub(super) files: u64,
}

#[derive(Default)]
struct Table {
    keys: BTreeMap<CheckId, Key>,
    jobs: Jobs,
    alarms: Alarms,
    /// Checks that are due and found no room, longest first.
    queue: VecDeque<Key>,
    /// Runs that are under way, those of removed checks included.
    runs: usize,
    /// Nothing starts any more.
    stopped: bool,
}

/// The checks, each at its place: a look-up touches no memory but its own.
#[derive(Default)]
struct Jobs {
    places: Vec<Place>,
    free: Vec<usize>,
}

#[derive(Default)]
struct Place {
    turn: u64,
    job: Option<Job>,
}

impl Jobs {
    /// Where the next check will be.
    fn next(&mut self) -> Key {
        let place = self.free.pop().unwrap_or(self.places.len());
        if place == self.places.len() {
            self.places.push(Place::default());
        }
        Key { place, turn: self.places[place].turn }
    }

    fn insert(&mut self, key: Key, job: Job) {
        self.places[key.place].job = Some(job);
    }

    fn get(&self, key: Key) -> Option<&Job> {
        self.places.get(key.place).filter(|place| place.turn == key.turn)?.job.as_ref()
    }

    fn get_mut(&mut self, key: Key) -> Option<&mut Job> {
        self.places.get_mut(key.place).filter(|place| place.turn == key.turn)?.job.as_mut()
    }

    fn remove(&mut self, key: Key) -> Option<Job> {
        let place = self.places.get_mut(key.place).filter(|place| place.turn == key.turn)?;
        let job = place.job.take()?;
        place.turn += 1;
        self.free.push(key.place);
        Some(job)
    }

    fn values_mut(&mut self) -> impl Iterator<Item = &mut Job> {
        self.places.iter_mut().filter_map(|place| place.job.as_mut())
    }
}

/// At which moments something is to be done about which checks: the same as every job's `alarm`. Moments are shared by many.
#[derive(Default)]
struct Alarms {
    all: BTreeMap<Instant, Vec<Key>>,
    /// When the driving task wakes.
    wakes: Option<Instant>,
}

/// A check.
struct Job {
    id: CheckId,
    /// A digest of what its schedule comes from.
    made_of: u64,
    /// Has it run when the process that it follows has ended.
    follower: Option<Follower>,
    timeout: Duration,
    /// Whether slowness may make a good run a bad one.
    may_be_slow: bool,
    prepared: Arc<Prepared>,
    schedule: Schedule,
    state: State,
    alarm: Option<Instant>,
    /// Who asked for a run that has not started yet.
    waiters: Vec<oneshot::Sender<Verdict>>,
    counts: RunCounts,
    /// Whether its last run was good.
    good: bool,
}

/// A task that ends with its check.
struct Follower(AbortHandle);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug)]
enum State {
    Idle,
    /// It is due, and there is no room.
    Queued,
    /// A run is under way; `overdue` if its moment came during a run that somebody asked for.
    Running {
        /// `None` if it is no task, or not yet.
        run: Option<AbortHandle>,
        overdue: bool,
    },
}

/// A run that can begin without waiting, and perhaps end.
struct Start {
    flight: Flight,
    prepared: Arc<Prepared>,
    limit: Duration,
}

impl Board {
    pub(super) fn new(handle: Handle, room: Room, outbox: Arc<Outbox>, held_up: Box<HeldUp>) -> Self {
        let (table, sooner) = (Mutex::default(), Notify::new());
        Self { table, sooner, outbox, handle, room, origin: Instant::now(), held_up }
    }

    /// Starts what is due, for ever.
    pub(super) async fn drive(self: Arc<Self>) {
        loop {
            let (starts, next) = self.start_due(Instant::now());
            starts.into_iter().for_each(|start| self.begin(start));
            match next {
                Some(next) => tokio::select! {
                    () = sleep_until(next) => {}
                    () = self.sooner.notified() => {}
                },
                None => self.sooner.notified().await,
            }
        }
    }

    /// Starts nothing any more.
    pub(super) fn stop(&self) {
        self.lock().stopped = true;
    }

    /// Makes these the checks that there are; see [`Prober::set`](super::Prober::set).
    pub(super) fn set(self: &Arc<Self>, checks: Vec<(&CheckId, &Check, Prepared)>) {
        let now = Instant::now();
        let mut table = self.lock();
        let mut old = std::mem::take(&mut table.keys);
        let count = checks.len();
        for (id, check, prepared) in checks {
            let prepared = Arc::new(prepared);
            if let Some((id, key)) = old.remove_entry(id) {
                if let Some(job) = table.jobs.get_mut(key)
                    && job.made_of == made_of(check)
                {
                    job.may_be_slow = check.slow.is_some();
                    job.follower = self.follower(&id, &prepared);
                    job.prepared = prepared;
                    table.keys.insert(id, key);
                    continue;
                }
                table.remove(key);
            }
            let key = table.jobs.next();
            let schedule = Schedule::new(check, count, run::random(), self.origin, now);
            let due = schedule.due;
            let mut job = Job {
                id: id.clone(),
                made_of: made_of(check),
                follower: self.follower(id, &prepared),
                timeout: check.timeout,
                may_be_slow: check.slow.is_some(),
                prepared,
                schedule,
                state: State::Idle,
                alarm: None,
                waiters: Vec::new(),
                counts: RunCounts::default(),
                good: false,
            };
            table.keys.insert(id.clone(), key);
            self.alarm(&mut table.alarms, &mut job, key, due);
            table.jobs.insert(key, job);
        }
        for key in old.into_values() {
            table.remove(key);
        }
        self.fill(&mut table);
    }

    /// Ends the checks that are not in `stay` with what they are made of; see [`Prober::retire`](super::Prober::retire).
    pub(super) fn retire(self: &Arc<Self>, stay: BTreeMap<CheckId, u64>) {
        let (board, (done, over)) = (Arc::clone(self), std::sync::mpsc::channel::<()>());
        // On the thread of the checks no run is between its end and its report.
        self.handle.spawn(async move {
            let mut guard = board.lock();
            let Table { keys, jobs, .. } = &mut *guard;
            let stays = |id: &CheckId, key: &Key| stay.get(id) == jobs.get(*key).map(|job| &job.made_of);
            let gone: Vec<Key> = keys.extract_if(.., |id, key| !stays(id, key)).map(|(_, key)| key).collect();
            gone.into_iter().for_each(|key| guard.remove(key));
            drop(guard);
            board.outbox.flush();
            drop(done);
        });
        // Nothing is sent: its end is what is waited for.
        let _ = over.recv();
    }

    /// What waits for the end of the process that a check follows.
    fn follower(self: &Arc<Self>, id: &CheckId, prepared: &Prepared) -> Option<Follower> {
        let (process, id, board) = (prepared.process()?, id.clone(), Arc::downgrade(self));
        let follow = async move {
            let mut told = 0;
            loop {
                told = process.ended(told).await;
                let Some(board) = board.upgrade() else { return };
                // Its verdict goes where every verdict goes; if others wait for it, it runs anyway.
                let _ = board.run_now(&id);
            }
        };
        Some(Follower(self.handle.spawn(follow).abort_handle()))
    }

    /// Runs a check now or after the run that is under way.
    pub(super) fn run_now(self: &Arc<Self>, id: &CheckId) -> Result<oneshot::Receiver<Verdict>, RunNowError> {
        let mut table = self.lock();
        let unknown = || RunNowError::Unknown(id.clone());
        let key = *table.keys.get(id).ok_or_else(unknown)?;
        let job = table.jobs.get_mut(key).ok_or_else(unknown)?;
        if job.waiters.len() >= WAITERS {
            return Err(RunNowError::Busy(id.clone()));
        }
        let (tell, told) = oneshot::channel();
        job.waiters.push(tell);
        if let State::Idle = job.state {
            self.start(&mut table, key, None);
        }
        Ok(told)
    }

    pub(super) fn hurry(&self, id: &CheckId, on: bool) {
        let now = Instant::now();
        let mut table = self.lock();
        let Table { keys, jobs, alarms, .. } = &mut *table;
        let Some(&key) = keys.get(id) else { return };
        let Some(job) = jobs.get_mut(key) else { return };
        // The alarm of a check in the queue is another one: how long it may stay there.
        if job.schedule.hurry(on, now) && !matches!(job.state, State::Queued) {
            let due = job.schedule.due;
            self.alarm(alarms, job, key, due);
        }
    }

    pub(super) fn counts(&self) -> BTreeMap<CheckId, RunCounts> {
        // What takes long is done without the lock, which whoever starts a run needs.
        let found: Vec<_> = self.lock().jobs.values_mut().map(|job| (job.id.clone(), job.counts)).collect();
        found.into_iter().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts every run that is due, and says which of them are to be begun and when the next one is due.
    fn start_due(self: &Arc<Self>, now: Instant) -> (Vec<Start>, Option<Instant>) {
        let mut starts = Vec::new();
        let wakes = self.lock().alarms.wakes;
        let behind = wakes.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        if behind >= HELD_UP {
            // As with a report.
            let _ = catch_unwind(AssertUnwindSafe(|| (self.held_up)(behind)));
        }
        let still = behind > STILL;
        let mut table = self.lock();
        while let Some((at, keys)) = table.alarms.due(now) {
            // After a standstill only what is due just then runs: the others have their next moment, spread as ever.
            let gone = still && now > at + LATE;
            starts.extend(keys.into_iter().filter_map(|key| self.fire(&mut table, key, at, now, gone)));
        }
        table.alarms.wakes = table.alarms.all.first_key_value().map(|(&at, _)| at);
        self.outbox.wakes(table.alarms.wakes);
        (starts, table.alarms.wakes)
    }

    /// The moment of a check has come. A run that can begin without waiting is the caller's to begin.
    fn fire(
        self: &Arc<Self>,
        table: &mut Table,
        key: Key,
        at: Instant,
        now: Instant,
        gone: bool,
    ) -> Option<Start> {
        let job = table.jobs.get_mut(key)?;
        job.alarm = None;
        match &mut job.state {
            State::Idle if gone => {
                job.counts.overruns += 1 + job.schedule.advance(now);
                let due = job.schedule.due;
                self.alarm(&mut table.alarms, job, key, due);
            }
            State::Idle if job.prepared.can_begin() && table.runs < self.room.runs && !table.stopped => {
                table.runs += 1;
                job.state = State::Running { run: None, overdue: false };
                let flight = self.flight(job, key, Some(at));
                return Some(Start { flight, prepared: Arc::clone(&job.prepared), limit: job.timeout });
            }
            State::Idle => self.start(table, key, Some(at)),
            State::Running { overdue, .. } => *overdue = true,
            State::Queued => {
                job.counts.overruns += 1 + job.schedule.advance(now);
                let end = job.schedule.due + job.schedule.every();
                let verdict = self.room.refusal();
                let (id, waiters) = (job.id.clone(), std::mem::take(&mut job.waiters));
                self.alarm(&mut table.alarms, job, key, end);
                self.outbox.put(id, verdict, waiters, true);
            }
        }
        None
    }

    /// Begins a run, which becomes a task if it does not end at once.
    fn begin(&self, Start { mut flight, prepared, limit }: Start) {
        flight.begins();
        match prepared.begin() {
            Ok(verdict) => flight.land(verdict),
            Err(opening) => {
                let key = flight.key;
                let task = self.handle.spawn(fly(flight, prepared, limit, opening)).abort_handle();
                match self.lock().jobs.get_mut(key).map(|job| &mut job.state) {
                    Some(State::Running { run, .. }) => *run = Some(task),
                    // The check was taken away meanwhile.
                    _ => task.abort(),
                }
            }
        }
    }

    /// Starts a run, if there is room.
    fn start(self: &Arc<Self>, table: &mut Table, key: Key, slot: Option<Instant>) {
        let Some(job) = table.jobs.get_mut(key) else { return };
        if table.stopped {
            return;
        }
        if table.runs >= self.room.runs {
            job.state = State::Queued;
            table.queue.push_back(key);
            // By then it should have run once more.
            let end = job.schedule.due + job.schedule.every();
            self.alarm(&mut table.alarms, job, key, end);
            return;
        }
        table.runs += 1;
        let flight = self.flight(job, key, slot);
        let run = fly(flight, Arc::clone(&job.prepared), job.timeout, None);
        let run = self.handle.spawn(run).abort_handle();
        job.state = State::Running { run: Some(run), overdue: false };
    }

    /// The run of a check, which is counted already.
    fn flight(self: &Arc<Self>, job: &mut Job, key: Key, slot: Option<Instant>) -> Flight {
        let waiters = std::mem::take(&mut job.waiters);
        Flight { board: Some(Arc::clone(self)), key, slot, late: false, waiters }
    }

    /// A run is over: there is room for another one, and the check has its next moment.
    fn over(self: &Arc<Self>, key: Key, slot: Option<Instant>, ended: Option<Ended>) {
        let mut table = self.lock();
        table.runs -= 1;
        let mut told = None;
        let Table { jobs, alarms, .. } = &mut *table;
        if let Some(job) = jobs.get_mut(key) {
            let overdue = matches!(job.state, State::Running { overdue: true, .. });
            job.state = State::Idle;
            if let Some(Ended { verdict, late, waiters }) = ended {
                job.counts.runs += 1;
                job.counts.late += u64::from(late);
                let good = verdict.outcome == Outcome::Good;
                let calm = job.is_calm(good);
                job.good = good;
                told = Some((job.id.clone(), verdict, waiters, !calm));
            }
            let due = if slot.is_some() {
                job.counts.overruns += job.schedule.advance(Instant::now());
                Some(job.schedule.due)
            } else {
                overdue.then_some(job.schedule.due)
            };
            let asked = !job.waiters.is_empty();
            if let Some(due) = due {
                self.alarm(alarms, job, key, due);
            }
            if asked {
                self.start(&mut table, key, None);
            }
        }
        self.fill(&mut table);
        drop(table);
        if let Some((id, verdict, waiters, urgent)) = told {
            self.outbox.put(id, verdict, waiters, urgent);
        }
    }

    /// Starts what waits for room.
    fn fill(self: &Arc<Self>, table: &mut Table) {
        while table.runs < self.room.runs
            && !table.stopped
            && let Some(key) = table.queue.pop_front()
        {
            if let Some(job) = table.jobs.get_mut(key)
                && let State::Queued = job.state
            {
                let due = job.schedule.due;
                let slot = (due <= Instant::now()).then_some(due);
                if slot.is_none() {
                    // Somebody asked for it; its own moment is still to come.
                    self.alarm(&mut table.alarms, job, key, due);
                } else if let Some(at) = job.alarm.take() {
                    table.alarms.remove(at, key);
                }
                self.start(table, key, slot);
            }
        }
    }

    /// Sets the alarm of a check.
    fn alarm(&self, alarms: &mut Alarms, job: &mut Job, key: Key, at: Instant) {
        if let Some(old) = job.alarm.replace(at) {
            alarms.remove(old, key);
        }
        alarms.all.entry(at).or_default().push(key);
        if alarms.wakes.is_none_or(|wakes| at < wakes) {
            alarms.wakes = Some(at);
            self.sooner.notify_one();
        }
    }
}

impl Alarms {
    /// Takes out those of the first moment that has come.
    fn due(&mut self, now: Instant) -> Option<(Instant, Vec<Key>)> {
        self.all.first_entry().filter(|first| *first.key() <= now).map(|first| first.remove_entry())
    }

    fn remove(&mut self, at: Instant, key: Key) {
        if let btree_map::Entry::Occupied(mut keys) = self.all.entry(at) {
            keys.get_mut().retain(|&other| other != key);
            if keys.get().is_empty() {
                keys.remove();
            }
        }
    }
}

impl Job {
    /// Whether a run that was `good` or not says nothing new: whoever listens knows it already, and waits for nothing else.
    fn is_calm(&self, good: bool) -> bool {
        good && self.good && !self.schedule.is_hurried() && !self.may_be_slow
    }
}

impl Table {
    /// Takes a check off the board, and ends its run.
    fn remove(&mut self, key: Key) {
        let Some(job) = self.jobs.remove(key) else { return };
        if let Some(at) = job.alarm {
            self.alarms.remove(at, key);
        }
        match job.state {
            State::Idle => {}
            State::Queued => self.queue.retain(|&queued| queued != key),
            // The task is dropped on its own thread, never here.
            State::Running { run, .. } => run.iter().for_each(AbortHandle::abort),
        }
    }
}

/// What has ended and was not reported yet.
pub(super) struct Outbox {
    held: Mutex<Held>,
    note: Box<Note>,
    report: Box<Report>,
}

#[derive(Default)]
struct Held {
    ended: Vec<(CheckId, Verdict)>,
    /// When the first of them ended.
    since: Option<Instant>,
    /// Whether one of them must not wait.
    urgent: bool,
    /// When the thread wakes by itself.
    wakes: Option<Instant>,
}

type Note = dyn Fn(&CheckId, &mut Verdict) + Send + Sync;
type Report = dyn Fn(Vec<(CheckId, Verdict)>) + Send + Sync;

impl Outbox {
    pub(super) fn new(note: Box<Note>, report: Box<Report>) -> Self {
        Self { held: Mutex::default(), note, report }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread will wake then.
    fn wakes(&self, at: Option<Instant>) {
        self.lock().wakes = at;
    }

    /// Takes a verdict, and tells it to those who asked for it once it is reported.
    ///
    /// One that is not `urgent` may wait a little for others.
    fn put(&self, id: CheckId, mut verdict: Verdict, waiters: Vec<oneshot::Sender<Verdict>>, urgent: bool) {
        let copy = (!waiters.is_empty()).then(|| verdict.clone());
        // As with a report.
        let _ = catch_unwind(AssertUnwindSafe(|| (self.note)(&id, &mut verdict)));
        let mut held = self.lock();
        held.ended.push((id, verdict));
        held.urgent |= urgent;
        held.since.get_or_insert_with(Instant::now);
        let full = held.ended.len() >= BATCH;
        drop(held);
        if full || copy.is_some() {
            self.flush();
        }
        for waiter in waiters {
            if let Some(verdict) = &copy {
                // A caller that went away changes nothing.
                let _ = waiter.send(verdict.clone());
            }
        }
    }

    /// The thread goes to sleep: reports what has ended, unless it can wait until the thread wakes again.
    pub(super) fn rest(&self) {
        let held = self.lock();
        let waits = |since: Instant| !held.urgent && held.wakes.is_some_and(|at| at < since + CALM);
        if held.since.is_some_and(|since| !waits(since)) {
            drop(held);
            self.flush();
        }
    }

    /// Reports what has ended.
    pub(super) fn flush(&self) {
        let mut held = self.lock();
        (held.since, held.urgent) = (None, false);
        // The room stays: growing it anew for each batch has the allocator put its small pieces together each time.
        let ended: Vec<_> = held.ended.drain(..).collect();
        drop(held);
        if !ended.is_empty() {
            // The panic of whoever listens has been told by the panic hook; the checks go on.
            let _ = catch_unwind(AssertUnwindSafe(|| (self.report)(ended)));
        }
    }
}

impl Room {
    fn refusal(self) -> Verdict {
        let Self { runs, files } = self;
        let detail = format!(
            "not run: {runs} runs are under way, no more fit in the limit of {files} open files (raise LimitNOFILE)"
        );
        Verdict { outcome: Outcome::NoResult, ..Verdict::bad(detail) }
    }
}

/// A digest of everything that makes the runs of a check other runs if it changes. Two checks that share one by chance would
/// share a schedule and nothing else.
pub(super) fn made_of(check: &Check) -> u64 {
    // Rise and fall, and what is slow, are the gate's.
    let Check { interval, fast_interval, timeout, via, probe, .. } = check;
    let mut digest = DefaultHasher::new();
    (interval, fast_interval, timeout, via, probe).hash(&mut digest);
    digest.finish()
}

/// A run under way: however it ends, the board hears of it.
struct Flight {
    /// `None` once the board knows.
    board: Option<Arc<Board>>,
    key: Key,
    /// The moment it was due; `None` if somebody asked for it.
    slot: Option<Instant>,
    late: bool,
    /// Who asked for it, or until it started.
    waiters: Vec<oneshot::Sender<Verdict>>,
}

/// How a run ended.
struct Ended {
    verdict: Verdict,
    late: bool,
    waiters: Vec<oneshot::Sender<Verdict>>,
}

impl Flight {
    /// It begins.
    fn begins(&mut self) {
        self.late = self.slot.is_some_and(|at| at.elapsed() > LATE);
    }

    /// It has ended.
    fn land(&mut self, verdict: Verdict) {
        let ended = Ended { verdict, late: self.late, waiters: std::mem::take(&mut self.waiters) };
        if let Some(board) = self.board.take() {
            board.over(self.key, self.slot, Some(ended));
        }
    }
}

/// Makes a run, of which `opening` may have been done already.
async fn fly(mut flight: Flight, prepared: Arc<Prepared>, limit: Duration, opening: Option<Box<Opening>>) {
    if opening.is_none() {
        flight.begins();
    }
    let verdict = prepared.go_on(limit, opening).await;
    flight.land(verdict);
}

impl Drop for Flight {
    /// Tells of a run that was ended, or broke.
    fn drop(&mut self) {
        if let Some(board) = self.board.take() {
            board.over(self.key, self.slot, None);
        }
    }
}

#[cfg(test)]
mod tests;
