use super::*;
use crate::probe::prepare;
use standfast_core::plan::{Probe, Target, UdpProbe};
use std::net::UdpSocket;
use tokio::time::{advance, sleep};

type Seen = Arc<Mutex<Vec<(Instant, String, Verdict)>>>;

const SECOND: Duration = Duration::from_secs(1);

/// A board that starts nothing once the test is over.
struct Stage(Arc<Board>);

impl std::ops::Deref for Stage {
    type Target = Arc<Board>;
    fn deref(&self) -> &Arc<Board> {
        &self.0
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A board that is driven, on a clock that only moves when everything waits.
fn board(runs: usize) -> (Stage, Arc<Outbox>, Seen) {
    let seen = Seen::default();
    let into = Arc::clone(&seen);
    let report = move |ended: Vec<(CheckId, Verdict)>| {
        into.lock()
            .unwrap()
            .extend(ended.into_iter().map(|(id, v)| (Instant::now(), id.check.to_string(), v)));
    };
    let outbox = Arc::new(Outbox::new(Box::new(|_, _| {}), Box::new(report)));
    (stage(runs, &outbox), outbox, seen)
}

fn stage(runs: usize, outbox: &Arc<Outbox>) -> Stage {
    let board =
        Board::new(Handle::current(), Room { runs, files: 1024 }, Arc::clone(outbox), Box::new(|_| {}));
    let stage = Stage(Arc::new(board));
    tokio::spawn(Arc::clone(&stage).drive());
    stage
}

fn id(n: usize) -> CheckId {
    CheckId::new("v", &n.to_string())
}

fn set(board: &Arc<Board>, checks: &[(usize, Check)]) {
    let ids: Vec<_> = checks.iter().map(|(n, _)| id(*n)).collect();
    let ready = checks.iter().zip(&ids).map(|((_, check), id)| (id, check, prepare(check).unwrap()));
    board.set(ready.collect());
}

/// A check whose runs end at once, without touching anything.
fn instant(interval: Duration, fast_interval: Duration) -> Check {
    Check { interval, fast_interval, ..Check::new(Probe::External) }
}

/// A check whose runs take `wait`.
fn slow(to: &UdpSocket, interval: Duration, wait: Duration) -> Check {
    let target = Target::Address(to.local_addr().unwrap());
    let probe = UdpProbe { silence: Some(wait), ..UdpProbe::new(target, vec![0]) };
    Check { interval, fast_interval: interval, timeout: wait * 2, ..Check::new(Probe::Udp(probe)) }
}

fn silent() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").unwrap()
}

fn runs(board: &Board, n: usize) -> u64 {
    board.counts()[&id(n)].runs
}

#[tokio::test(start_paused = true)]
async fn a_check_that_is_to_hurry_runs_on_its_fast_interval_and_then_as_before() {
    let (board, ..) = board(10);
    set(&board, &[(0, instant(10 * SECOND, SECOND)), (1, instant(10 * SECOND, 10 * SECOND))]);
    board.hurry(&id(0), false);
    sleep(30 * SECOND).await;
    assert!((3..=5).contains(&runs(&board, 0)));
    board.hurry(&id(0), true);
    let before = runs(&board, 0);
    sleep(SECOND * 11 / 10).await;
    assert_eq!(runs(&board, 0), before + 1, "the first fast run is at most a fast interval away");
    board.hurry(&id(0), true);
    sleep(20 * SECOND).await;
    assert!((20..=22).contains(&(runs(&board, 0) - before)));
    board.hurry(&id(0), false);
    let before = runs(&board, 0);
    sleep(40 * SECOND).await;
    assert!((4..=5).contains(&(runs(&board, 0) - before)));
    // Nobody else was in a hurry, and an unknown check is none.
    assert!(runs(&board, 1) <= 12);
    board.hurry(&id(7), true);
    let counts = board.counts();
    assert!(counts.values().all(|c| c.overruns == 0 && c.late == 0), "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn good_news_waits_only_where_it_decides_nothing_whatever_the_pace() {
    let (board, outbox, _) = board(10);
    set(&board, &[(0, instant(SECOND, SECOND))]);
    board.hurry(&id(0), false);
    board.lock().jobs.values_mut().for_each(|job| job.good = true);
    let urgent = async || {
        outbox.flush();
        sleep(3 * SECOND).await;
        let held = outbox.lock();
        assert!(!held.ended.is_empty());
        held.urgent
    };
    // A check of this kind is never good by itself.
    assert!(urgent().await);
    let good = |on: bool| {
        board.hurry(&id(0), on);
        let mut table = board.lock();
        let Table { jobs, .. } = &mut *table;
        let job = jobs.values_mut().next().unwrap();
        job.good = true;
        job.is_calm(true)
    };
    assert!(good(false));
    assert!(!good(true), "it is between two states, and this run may be the one that decides");
    assert!(good(false));
    let mut table = board.lock();
    let job = table.jobs.values_mut().next().unwrap();
    assert!(!job.is_calm(false));
    job.good = false;
    assert!(!job.is_calm(true));
}

#[tokio::test(start_paused = true)]
async fn checks_that_were_held_up_say_so_before_they_go_on() {
    let outbox = Arc::new(Outbox::new(Box::new(|_, _| {}), Box::new(|_| {})));
    let told = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&told);
    let held_up = move |gone: Duration| into.lock().unwrap().push(gone);
    let room = Room { runs: 10, files: 1024 };
    let board = Stage(Arc::new(Board::new(Handle::current(), room, outbox, Box::new(held_up))));
    tokio::spawn(Arc::clone(&board).drive());
    set(&board, &[(0, instant(SECOND, SECOND))]);
    sleep(10 * SECOND).await;
    assert!(told.lock().unwrap().is_empty());
    advance(7 * SECOND).await;
    sleep(3 * SECOND).await;
    let told = told.lock().unwrap();
    assert!(matches!(told[..], [gone] if gone > 5 * SECOND && gone <= 7 * SECOND), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn after_a_standstill_nothing_is_made_up_for_and_no_burst_comes() {
    let (board, outbox, seen) = board(1000);
    let checks: Vec<_> = (0..500).map(|n| (n, instant(SECOND, SECOND))).collect();
    set(&board, &checks);
    sleep(5 * SECOND).await;
    outbox.flush();
    seen.lock().unwrap().clear();
    advance(60 * SECOND).await;
    let start = Instant::now();
    sleep(3 * SECOND).await;
    outbox.flush();
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let at_once = seen.iter().filter(|s| s.0 < start + SECOND / 20).count();
    assert!(at_once < 60, "{at_once} of 500 ran at once");
    let counts = board.counts();
    assert!(counts.values().all(|c| (59..=62).contains(&c.overruns)), "{counts:?}");
    assert!(counts.values().all(|c| (6..=11).contains(&c.runs)), "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn what_finds_no_room_in_its_own_time_is_no_result_and_says_so() {
    let to = silent();
    let (board, outbox, seen) = board(2);
    let checks: Vec<_> = (0..5).map(|n| (n, slow(&to, SECOND, SECOND * 9 / 10))).collect();
    set(&board, &checks);
    sleep(20 * SECOND).await;
    outbox.flush();
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let (good, none): (Vec<_>, Vec<_>) = seen.iter().partition(|s| s.2.outcome == Outcome::Good);
    // Two at a time, each for 0.9 s.
    assert!((38..=46).contains(&good.len()), "{}", good.len());
    assert!(none.len() >= 10, "{}", none.len());
    for (_, _, verdict) in none {
        assert_eq!(verdict.outcome, Outcome::NoResult);
        assert!(verdict.detail.starts_with("not run: 2 runs are under way"), "{verdict:?}");
    }
    for n in 0..5 {
        let runs = runs(&board, n);
        assert!((5..=12).contains(&runs), "check {n} had {runs} of 40 turns");
    }
}

#[tokio::test(start_paused = true)]
async fn a_check_that_is_taken_away_leaves_its_room_to_others() {
    let to = silent();
    let (board, ..) = board(1);
    set(&board, &[(0, slow(&to, 100 * SECOND, 40 * SECOND))]);
    sleep(2 * SECOND).await;
    set(&board, &[(1, slow(&to, SECOND, SECOND / 10))]);
    sleep(4 * SECOND).await;
    assert!((3..=6).contains(&runs(&board, 1)));
    // Waiting for room, or asked for while waiting: all of it goes.
    set(&board, &[(1, slow(&to, SECOND, SECOND / 10)), (2, slow(&to, 100 * SECOND, 40 * SECOND))]);
    let asked = board.run_now(&id(2)).unwrap();
    set(&board, &[]);
    assert!(asked.await.is_err());
    sleep(SECOND).await;
    let mut table = board.lock();
    assert!(table.runs == 0 && table.jobs.values_mut().next().is_none() && table.keys.is_empty());
    assert!(table.alarms.all.is_empty() && table.queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_remains_of_a_check_meets_nobody_in_its_place() {
    let to = silent();
    let (board, ..) = board(10);
    set(&board, &[(0, slow(&to, 100 * SECOND, 40 * SECOND))]);
    let old = board.lock().keys[&id(0)];
    set(&board, &[]);
    set(&board, &[(1, slow(&to, 100 * SECOND, 40 * SECOND))]);
    let mut table = board.lock();
    let new = table.keys[&id(1)];
    assert_eq!((new.place, table.jobs.places.len()), (old.place, 1), "the place is used again");
    assert!(table.jobs.get_mut(old).is_none() && table.jobs.remove(old).is_none());
    assert_eq!(table.jobs.get(new).unwrap().id, id(1));
}

#[tokio::test(start_paused = true)]
async fn a_run_asked_for_in_the_queue_is_told_what_became_of_it() {
    let to = silent();
    let (board, ..) = board(1);
    set(&board, &[(0, slow(&to, 100 * SECOND, 40 * SECOND))]);
    sleep(2 * SECOND).await;
    set(&board, &[(0, slow(&to, 100 * SECOND, 40 * SECOND)), (1, slow(&to, SECOND, SECOND / 10))]);
    let told = board.run_now(&id(1)).unwrap().await.unwrap();
    assert_eq!(told.outcome, Outcome::NoResult, "{told:?}");
    sleep(40 * SECOND).await;
    assert_eq!(board.run_now(&id(1)).unwrap().await.unwrap().outcome, Outcome::Good);
}

#[tokio::test(start_paused = true)]
async fn a_moment_that_comes_during_a_run_is_an_overrun_and_the_grid_stays() {
    let to = silent();
    let (board, ..) = board(10);
    let check = Check { timeout: 10 * SECOND, ..slow(&to, SECOND, SECOND * 5 / 2) };
    set(&board, &[(0, check)]);
    sleep(30 * SECOND).await;
    let counts = board.counts()[&id(0)];
    assert!((9..=11).contains(&counts.runs), "{counts:?}");
    assert!((17..=22).contains(&counts.overruns), "{counts:?}");
    // A run that somebody asked for uses up the moment that comes during it, and no other.
    let told = board.run_now(&id(0)).unwrap();
    assert_eq!(told.await.unwrap().outcome, Outcome::Good);
}

#[tokio::test(start_paused = true)]
async fn whoever_listens_may_panic() {
    let outbox = Arc::new(Outbox::new(Box::new(|_, _| {}), Box::new(|_| panic!("of the listener"))));
    let board = stage(9, &outbox);
    set(&board, &[(0, instant(SECOND, SECOND))]);
    for _ in 0..3 {
        assert_eq!(board.run_now(&id(0)).unwrap().await.unwrap().outcome, Outcome::NoResult);
    }
    sleep(5 * SECOND).await;
    assert!(runs(&board, 0) >= 7);
}
