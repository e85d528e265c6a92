//! The announcer inside a process, over real TCP on loopback, with a router that speaks raw BGP.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod router;

use router::{Door, LEAVING, NOTIFICATION, Router, UPDATE, has};
use standfast::{Announcer, Builder, DrainMode, Event, Level, Peer, ShareError, Verdict, Vip, VipState};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

const MILLIS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn peer(door: &Door) -> Peer {
    Peer::new("127.0.0.1", 64512).name("front").port(door.port()).hold_time(SECOND * 30)
}

fn web() -> Vip {
    Vip::new("web").prefix("198.51.100.10/32")
}

/// Fast: two good samples of 20 ms each.
fn builder(door: &Door) -> Builder {
    let id = [192, 0, 2, 11].into();
    Announcer::builder().asn(64513).router_id(id).peer(peer(door)).rise(2).interval(MILLIS * 20)
}

/// Reports that it is well until it is told otherwise.
struct Heart(Arc<AtomicBool>, Option<thread::JoinHandle<()>>);

impl Heart {
    fn beat(report: impl Fn() + Send + 'static) -> Self {
        let beats = Arc::new(AtomicBool::new(true));
        let on = Arc::clone(&beats);
        let thread = thread::spawn(move || {
            while on.load(Ordering::Relaxed) {
                report();
                thread::sleep(MILLIS * 5);
            }
        });
        Self(beats, Some(thread))
    }

    fn stop(mut self) {
        self.0.store(false, Ordering::Relaxed);
        self.1.take().unwrap().join().unwrap();
    }
}

fn start(door: &Door, builder: Builder) -> (Announcer, Router) {
    let announcer = builder.start().unwrap();
    let router = door.accept();
    (announcer, router)
}

fn announce(announcer: &Announcer, router: &mut Router) {
    let reporter = announcer.clone();
    let heart = Heart::beat(move || reporter.report(true));
    router.announced();
    heart.stop();
}

#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + SECOND * 10;
    while !holds() {
        assert!(Instant::now() < end, "{what} did not come");
        thread::sleep(MILLIS * 2);
    }
}

#[test]
fn handles_go_anywhere() {
    fn anywhere<T: Clone + Send + Sync + 'static>() {}
    anywhere::<Announcer>();
    anywhere::<standfast::VipHandle>();
    anywhere::<standfast::Drain>();
    fn sent<T: Send + 'static>() {}
    sent::<Builder>();
    sent::<standfast::Events>();
    sent::<standfast::Connection>();
}

#[test]
fn good_samples_announce_and_the_first_bad_report_withdraws_with_its_reason() {
    let door = Door::open();
    let (announcer, mut router) = start(&door, builder(&door).vip(web()));
    let mut events = announcer.events();
    announce(&announcer, &mut router);
    until("the news", || announcer.state().unwrap().is_announced());
    let state = announcer.state().unwrap();
    assert_eq!(state.vip("web").unwrap().told, ["front"]);
    assert_eq!(state.vip("web").unwrap().prefixes, ["198.51.100.10/32"]);
    assert!(state.peers[0].established && state.peers[0].asn == 64512);
    let at = Instant::now();
    announcer.report(Verdict::bad("queue is full"));
    router.withdrawn();
    eprintln!("withdrawn {:?} after the report", at.elapsed());
    let state = announcer.state().unwrap();
    let vip = state.vip("web").unwrap();
    assert_eq!(vip.state, VipState::Withdrawn);
    assert_eq!(vip.reason, "service: fall threshold reached: queue is full");
    let mut told = Vec::new();
    until("the events", || {
        told.extend(std::iter::from_fn(|| events.try_next()).filter(|e| matches!(e, Event::Vip { .. })));
        told.len() == 2
    });
    let Event::Vip { name, from, to, reason } = &told[1] else { panic!("{told:?}") };
    assert_eq!((name.as_str(), *from, *to), ("web", VipState::Announced, VipState::Withdrawn));
    assert!(reason.contains("queue is full"), "{reason}");
    assert_eq!(told[1].level(), Level::Warn);
}

#[test]
fn however_often_it_is_reported_a_sample_takes_its_time() {
    let door = Door::open();
    let (announcer, mut router) = start(&door, builder(&door).vip(web()).rise(3).interval(MILLIS * 300));
    let at = Instant::now();
    announce(&announcer, &mut router);
    assert!(at.elapsed() >= MILLIS * 600, "announced after {:?}", at.elapsed());
}

#[test]
fn one_bad_report_outweighs_thousands_of_good_ones() {
    let door = Door::open();
    let (announcer, mut router) = start(&door, builder(&door).vip(web()));
    announce(&announcer, &mut router);
    let hearts: Vec<_> =
        (0..4).map(|_| announcer.clone()).map(|a| Heart::beat(move || a.report(true))).collect();
    announcer.report(false);
    router.withdrawn();
    router.announced();
    hearts.into_iter().for_each(Heart::stop);
}

#[test]
fn equal_reports_tell_nobody_anything() {
    let door = Door::open();
    let (announcer, mut router) = start(&door, builder(&door).vip(web()));
    let reporter = announcer.clone();
    let heart = Heart::beat(move || reporter.report(true));
    router.announced();
    assert!(router.is_quiet(SECOND), "an equal report was told");
    // A router that comes back is told once.
    drop(router);
    let mut router = door.accept();
    router.announced();
    assert!(router.is_quiet(MILLIS * 500));
    heart.stop();
    announcer.report(false);
    router.withdrawn();
    let reporter = announcer.clone();
    let heart = Heart::beat(move || reporter.report(false));
    assert!(router.is_quiet(MILLIS * 500), "an equal report was told");
    drop(router);
    assert!(door.accept().is_quiet(MILLIS * 500), "a router that comes back hears of what is withdrawn");
    heart.stop();
}

#[test]
fn silence_is_bad_when_the_lease_is_over() {
    let door = Door::open();
    let lease = MILLIS * 700;
    let (announcer, mut router) = start(&door, builder(&door).vip(web()).lease(lease).interval(MILLIS * 200));
    let reporter = announcer.clone();
    let heart = Heart::beat(move || reporter.report(true));
    router.announced();
    heart.stop();
    announcer.report(true);
    let silent = Instant::now();
    router.withdrawn();
    let took = silent.elapsed();
    eprintln!("withdrawn {took:?} after the last report, with a lease of {lease:?}");
    assert!(took >= lease - MILLIS * 5, "after {took:?}, before the lease was over");
    assert!(took < lease + SECOND, "after {took:?}");
    let reason = announcer.state().unwrap().vips[0].reason.clone();
    assert!(reason.contains("no report for 0.7 s"), "{reason}");
}

#[test]
fn a_lease_shorter_than_a_sample_holds_as_long_as_reports_come() {
    let door = Door::open();
    let (announcer, mut router) =
        start(&door, builder(&door).vip(web()).lease(MILLIS * 500).interval(SECOND * 2).rise(1));
    let reporter = announcer.clone();
    let heart = Heart::beat(move || reporter.report(true));
    router.announced();
    assert!(router.is_quiet(SECOND * 3), "it left although it reported");
    heart.stop();
    router.withdrawn();
}

#[test]
fn a_blocked_event_loop_leaves_by_its_lease() {
    let door = Door::open();
    let lease = MILLIS * 600;
    let (announcer, mut router) = start(&door, builder(&door).vip(web()).lease(lease));
    let block = Arc::new(AtomicBool::new(false));
    let (blocks, reporter) = (Arc::clone(&block), announcer.clone());
    let service = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async move {
            tokio::spawn(async move {
                let mut each = tokio::time::interval(MILLIS * 50);
                loop {
                    each.tick().await;
                    reporter.report(true);
                }
            });
            while !blocks.load(Ordering::Relaxed) {
                tokio::time::sleep(MILLIS * 5).await;
            }
            // The mistake that wedges a loop.
            thread::sleep(SECOND * 3);
        });
    });
    router.announced();
    block.store(true, Ordering::Relaxed);
    let blocked = Instant::now();
    router.withdrawn();
    let took = blocked.elapsed();
    eprintln!("withdrawn {took:?} after the loop was blocked, with a lease of {lease:?}");
    assert!(took < lease + SECOND, "after {took:?}");
    service.join().unwrap();
}

#[test]
fn a_closure_that_panics_is_sick_and_is_asked_again() {
    let door = Door::open();
    let mood = Arc::new(AtomicUsize::new(0));
    let says = Arc::clone(&mood);
    let healthy = move || match says.load(Ordering::Relaxed) {
        0 => Ok(()),
        1 => Err("no database"),
        n => panic!("mood {n}"),
    };
    let (announcer, mut router) = start(&door, builder(&door).vip(web()).healthy(healthy));
    let reason = || announcer.state().unwrap().vips[0].reason.clone();
    router.announced();
    mood.store(2, Ordering::Relaxed);
    router.withdrawn();
    assert_eq!(reason(), "service: fall threshold reached: the closure panicked: mood 2");
    mood.store(0, Ordering::Relaxed);
    router.announced();
    mood.store(1, Ordering::Relaxed);
    router.withdrawn();
    assert_eq!(reason(), "service: fall threshold reached: no database");
}

#[test]
fn a_closure_that_never_comes_back_is_silence() {
    let door = Door::open();
    let hang = Arc::new(AtomicBool::new(false));
    let hangs = Arc::clone(&hang);
    let healthy = move || {
        while hangs.load(Ordering::Relaxed) {
            thread::sleep(MILLIS * 10);
        }
        true
    };
    let (announcer, mut router) =
        start(&door, builder(&door).vip(web()).healthy(healthy).lease(MILLIS * 300));
    router.announced();
    hang.store(true, Ordering::Relaxed);
    let at = Instant::now();
    router.withdrawn();
    assert!(at.elapsed() < SECOND * 2, "after {:?}", at.elapsed());
    let at = Instant::now();
    announcer.stop("deploying");
    assert!(at.elapsed() < SECOND * 4, "a closure that hangs held the stop up for {:?}", at.elapsed());
    hang.store(false, Ordering::Relaxed);
}

#[test]
fn dropping_the_last_handle_withdraws_and_says_why() {
    let door = Door::open();
    let (announcer, mut router) = start(&door, builder(&door).vip(web()));
    announce(&announcer, &mut router);
    let other = announcer.clone();
    drop(announcer);
    assert!(other.state().is_some(), "a handle is left, so it runs");
    let events = other.events();
    drop(other);
    router.withdrawn();
    let (kind, body) = router.note();
    assert_eq!((kind, &body[..2]), (NOTIFICATION, &[6, 2][..]));
    assert_eq!(&body[3..], b"the service ended");
    assert!(events.count() > 0, "the stream of events ends");
}

#[test]
fn a_drain_asks_for_no_new_connections_and_waits_for_those_that_are_here() {
    let door = Door::open();
    let (announcer, mut router) = start(&door, builder(&door).vip(web().bandwidth(1_000)));
    let reporter = announcer.clone();
    let heart = Heart::beat(move || reporter.report(true));
    let normal = router.announced();
    assert!(!has(&normal, &LEAVING));
    let connections = [announcer.connection(), announcer.connection()];
    assert!(!announcer.is_draining());
    let drain = announcer.drain(SECOND * 60);
    assert!(announcer.is_draining());
    let leaving = router.announced();
    assert!(has(&leaving, &LEAVING), "{leaving:?}");
    assert_eq!(announcer.state().unwrap().vips[0].state, VipState::Draining);
    assert!(router.is_quiet(SECOND), "it waits for its connections");
    let [one, two] = connections;
    drop(one);
    assert!(router.is_quiet(MILLIS * 300), "it waits for the last of them");
    drop(two);
    let waiter = thread::spawn(move || drain.wait());
    router.withdrawn();
    assert_eq!(router.note().0, NOTIFICATION);
    let drained = waiter.join().unwrap();
    assert!(drained.is_clean(), "{drained}");
    assert!(drained.took >= SECOND, "{drained}");
    assert!(announcer.state().is_none(), "it is over");
    heart.stop();
}

#[test]
fn a_drain_ends_at_its_deadline_and_tells_what_was_left() {
    let door = Door::open();
    let left = Arc::new(AtomicUsize::new(3));
    let counted = Arc::clone(&left);
    let count = move || counted.load(Ordering::Relaxed);
    let (announcer, mut router) = start(&door, builder(&door).vip(web()).connections(count));
    announce(&announcer, &mut router);
    let counted = announcer.connection();
    let at = Instant::now();
    let drain = announcer.drain(SECOND * 60);
    // A second order cannot move it away, but can bring it forward.
    let waiter = thread::spawn(move || drain.wait());
    announcer.drain(SECOND);
    announcer.drain(SECOND * 90);
    assert!(has(&router.announced(), &LEAVING));
    router.withdrawn();
    let drained = waiter.join().unwrap();
    assert_eq!(drained.left, 4);
    assert!(at.elapsed() >= SECOND, "after {:?}", at.elapsed());
    assert!(drained.to_string().contains("with 4 connections that were not over"), "{drained}");
    drop(counted);
}

#[test]
fn a_stop_waits_for_no_drain() {
    let door = Door::open();
    let (announcer, mut router) = start(&door, builder(&door).vip(web()));
    announce(&announcer, &mut router);
    let _connection = announcer.connection();
    let drain = announcer.drain(SECOND * 600);
    router.announced();
    let at = Instant::now();
    announcer.stop("never mind");
    assert!(at.elapsed() < SECOND * 5, "{:?}", at.elapsed());
    router.withdrawn();
    drain.wait();
}

#[test]
fn what_nobody_counts_the_kernel_counts() {
    let door = Door::open();
    let (announcer, mut router) = start(&door, builder(&door).vip(web()));
    announce(&announcer, &mut router);
    // Nobody is connected to the VIP, which is not even on this host.
    let drain = announcer.drain(SECOND * 60);
    assert!(has(&router.announced(), &LEAVING));
    router.withdrawn();
    let drained = drain.wait();
    assert!(drained.is_clean() && drained.took < SECOND * 20, "{drained}");
}

#[test]
fn a_service_that_turns_bad_while_it_drains_is_withdrawn() {
    let door = Door::open();
    let (announcer, mut router) = start(&door, builder(&door).vip(web()));
    announce(&announcer, &mut router);
    let _connection = announcer.connection();
    let _drain = announcer.drain(SECOND * 60);
    router.announced();
    announcer.report(Verdict::bad("out of memory"));
    router.withdrawn();
}

#[test]
fn a_drain_may_begin_with_the_withdrawal() {
    let door = Door::open();
    let (announcer, mut router) =
        start(&door, builder(&door).vip(web()).fall(3).drain_mode(DrainMode::Withdraw));
    let reporter = announcer.clone();
    let heart = Heart::beat(move || reporter.report(true));
    router.announced();
    let connection = announcer.connection();
    let drain = announcer.drain(SECOND * 60);
    router.withdrawn();
    assert!(router.is_quiet(SECOND), "good reports bring it back while it drains, or it did not wait");
    drop(connection);
    assert!(drain.wait().is_clean());
    heart.stop();
}

#[test]
fn a_drain_is_a_future_that_needs_no_runtime() {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let door = Door::open();
    let (announcer, mut router) = start(&door, builder(&door).vip(web()));
    announce(&announcer, &mut router);
    drop(announcer.connection());
    let mut drain = pin!(announcer.drain(SECOND * 60));
    let reader = thread::spawn(move || {
        router.announced();
        router.withdrawn();
    });
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    let drained = loop {
        match drain.as_mut().poll(&mut cx) {
            Poll::Ready(drained) => break drained,
            Poll::Pending => thread::park_timeout(SECOND * 20),
        }
    };
    assert!(drained.is_clean() && drained.took < SECOND * 15, "{drained}");
    reader.join().unwrap();
}

#[test]
fn a_share_is_told_as_bandwidth_and_nothing_of_it_at_once() {
    let door = Door::open();
    let (announcer, mut router) = start(&door, builder(&door).vip(web().bandwidth(1_000)));
    let bandwidth = |bytes: f32| {
        let [a, b, c, d] = bytes.to_be_bytes();
        [0x40, 4, 0xfc, 1, a, b, c, d]
    };
    let reporter = announcer.clone();
    let heart = Heart::beat(move || reporter.report(true));
    let all = router.announced();
    assert!(has(&all, &bandwidth(1_000.0)), "{all:?}");
    announcer.share(50).unwrap();
    let half = router.announced();
    assert!(has(&half, &bandwidth(500.0)), "the first word is told as it is: {half:?}");
    // What trembles is not told.
    for n in 0..50 {
        announcer.share(47 + n % 6).unwrap();
        thread::sleep(MILLIS * 10);
    }
    assert!(router.is_quiet(MILLIS * 700));
    announcer.share(0).unwrap();
    let nothing = router.announced();
    assert!(has(&nothing, &bandwidth(0.0)), "{nothing:?}");
    let state = announcer.state().unwrap();
    assert_eq!(state.vips[0].share, Some(0));
    heart.stop();
}

#[test]
fn a_share_needs_a_bandwidth_to_be_taken_of() {
    let door = Door::open();
    let (announcer, _router) =
        start(&door, builder(&door).vip(web()).vip(Vip::new("dns").prefix("198.51.100.53").bandwidth(1_000)));
    assert_eq!(announcer.share(50), Ok(()), "one of them has one");
    let error = announcer.vip("web").unwrap().share(50).unwrap_err();
    assert_eq!(error, ShareError::NoBandwidth { vip: "web".to_owned() });
    assert!(error.to_string().contains("Vip::bandwidth"), "{error}");
    until("the share", || announcer.state().unwrap().vip("dns").unwrap().share == Some(50));
    assert_eq!(announcer.state().unwrap().vip("web").unwrap().share, None);
}

#[test]
fn each_vip_stands_for_itself() {
    let door = Door::open();
    let (announcer, mut router) =
        start(&door, builder(&door).vip(web()).vip(Vip::new("dns").prefix("198.51.100.53")));
    assert!(announcer.vip("wbe").is_none());
    let (web, dns) = (announcer.vip("web").unwrap(), announcer.vip("dns").unwrap());
    assert_eq!(web.name(), "web");
    let heart = Heart::beat(move || {
        web.report(true);
        dns.report(false);
    });
    router.announced();
    let state = announcer.state().unwrap();
    assert_eq!(state.vip("web").unwrap().state, VipState::Announced);
    assert_eq!(state.vip("dns").unwrap().state, VipState::Withdrawn);
    assert!(!state.is_announced());
    heart.stop();
    announcer.report(false);
    router.withdrawn();
}

#[test]
fn several_announcers_live_in_one_process_and_end_alone() {
    let doors = [Door::open(), Door::open()];
    let [(one, mut first), (two, mut second)] =
        [&doors[0], &doors[1]].map(|door| start(door, builder(door).vip(web())));
    announce(&one, &mut first);
    announce(&two, &mut second);
    drop(one);
    first.withdrawn();
    assert!(second.is_quiet(MILLIS * 300));
    assert!(two.state().unwrap().is_announced());
}

#[test]
fn a_dead_peer_delays_no_other() {
    let (door, dead) = (Door::open(), Door::open());
    let builder =
        builder(&door).vip(web()).peer(Peer::new("127.0.0.1", 64512).name("dead").port(dead.port()));
    let (announcer, mut router) = start(&door, builder);
    announce(&announcer, &mut router);
    announcer.report(false);
    router.withdrawn();
    let state = announcer.state().unwrap();
    let established: Vec<_> = state.peers.iter().map(|p| (p.name.as_str(), p.established)).collect();
    assert_eq!(established, [("dead", false), ("front", true)]);
}

#[test]
fn a_closure_for_events_may_panic_and_ask() {
    let door = Door::open();
    let asked: Arc<Mutex<Option<Announcer>>> = Arc::default();
    let (slot, seen) = (Arc::clone(&asked), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&seen);
    let on_event = move |_: &Event| {
        let Some(announcer) = slot.lock().unwrap().take() else { return };
        let at = Instant::now();
        assert!(announcer.state().is_none(), "it cannot answer itself");
        assert!(at.elapsed() < MILLIS * 900, "it waited for itself");
        counted.fetch_add(1, Ordering::Relaxed);
        panic!("no more");
    };
    let (announcer, mut router) = start(&door, builder(&door).vip(web()).on_event(on_event));
    let mut events = announcer.events();
    *asked.lock().unwrap() = Some(announcer.clone());
    announce(&announcer, &mut router);
    until("the words", || {
        std::iter::from_fn(|| events.try_next())
            .any(|e| e.to_string().contains("on_event panicked, and is called no more: no more"))
    });
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    announcer.report(false);
    router.withdrawn();
    assert_eq!(UPDATE, 2);
}
