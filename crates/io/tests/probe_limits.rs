//! What probes cost: memory of large bodies, descriptors and tasks after many failures, and what happens without descriptors.
//!
//! The tests count what the whole process holds, so they take turns.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use probe_support::*;
use standfast_core::health::Outcome::{Bad, Good, NoResult};
use standfast_core::machine::Rng;
use standfast_core::plan::{Check, HttpProbe, Probe, Secret};
use standfast_io::probe::prepare;
use tokio::runtime::{Builder, Runtime};

fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// The most memory that the process ever held.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Reads until the other end is gone.
fn linger(mut stream: TcpStream) {
    let mut sink = [0; 4096];
    while stream.read(&mut sink).is_ok_and(|n| n > 0) {}
}

#[test]
fn a_body_of_100_mb_costs_no_more_than_what_is_kept_of_it() {
    let _alone = alone();
    const SIZE: usize = 100 << 20;
    let target = server(|mut s| {
        read_head(&mut s);
        let _ = s.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n").as_bytes());
        let chunk = vec![b'x'; 1 << 16];
        for _ in 0..SIZE / chunk.len() {
            if s.write_all(&chunk).is_err() {
                return;
            }
        }
    });
    let before = peak_kib();
    runtime().block_on(async {
        let mut whole = get(target);
        whole.body_limit = 2 * SIZE;
        assert_says(&run(whole, 60_000).await, Good, "status 200, body 104857600 bytes");
        let mut bounded = get(target);
        bounded.text = Some("y".into());
        assert_says(
            &run(bounded, 60_000).await,
            Bad,
            "in its first 1048576 bytes, and the rest was not read",
        );
    });
    let grown = peak_kib() - before;
    assert!(grown < 16 << 10, "memory grew by {grown} KiB");
}

#[test]
fn after_500_failures_every_descriptor_and_task_is_back() {
    let _alone = alone();
    let refused = free();
    let targets: Vec<SocketAddr> = vec![
        refused,
        server(linger),
        server(drop),
        server(|s| {
            let _ = socket2::SockRef::from(&s).set_linger(Some(Duration::ZERO));
        }),
        server(|mut s| {
            read_head(&mut s);
            let _ = s.write_all(b"HTTP/1.1 200 OK\r\nContent-Le");
            linger(s);
        }),
        server(|mut s| {
            read_head(&mut s);
            let _ = s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nab");
            linger(s);
        }),
        server(|mut s| {
            read_head(&mut s);
            while s.write_all(&[b'x'; 4096]).is_ok() {}
        }),
        answers("HTTP/1.1 500 No\r\n\r\n"),
        answers("HTTP/1.1 200 Connection established\r\n\r\n"),
        server(|mut s| {
            let _ = s.write_all(b"\x16\x03\x03\xff\xff");
            linger(s);
        }),
    ];
    let runtime = runtime();
    let once = |probe: HttpProbe, limit| {
        let v = runtime
            .block_on(runtime.spawn(async move {
                prepare(&Check::new(Probe::Http(Box::new(probe))))
                    .unwrap()
                    .run(Duration::from_millis(limit))
                    .await
            }))
            .unwrap();
        assert!(v.outcome != Good && !v.detail.contains("panicked"), "{v:?}");
    };
    once(get(refused), 50);
    let (descriptors_before, tasks_before) = (descriptors(), runtime.metrics().num_alive_tasks());
    let mut rng = Rng::new(7);
    let mut pick = |n: usize| rng.below(n as u64) as usize;
    for _ in 0..500 {
        let target = targets[pick(targets.len())];
        let mut probe = get(target);
        probe.status = vec![(299, 299)];
        probe.keep_alive = pick(2) == 0;
        if pick(2) == 0 {
            probe.tls = Some(tls("web.example.test", None));
            probe.tls.as_mut().unwrap().insecure = true;
        }
        if pick(3) == 0 {
            probe.proxy = Some(Secret::new(format!("http://{}", targets[pick(targets.len())])));
        }
        // A status that is right but a body that is not.
        if pick(3) == 0 {
            probe.status = vec![(200, 200)];
            probe.text = Some("never".into());
        }
        once(probe, 1 + pick(15) as u64);
    }
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let (d, t) = (descriptors(), runtime.metrics().num_alive_tasks());
        if d <= descriptors_before && t <= tasks_before {
            break;
        }
        assert!(Instant::now() < end, "descriptors {descriptors_before} -> {d}, tasks {tasks_before} -> {t}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn without_descriptors_there_is_no_result_and_with_them_again_there_is() {
    let _alone = alone();
    let target = answers(ok(""));
    let runtime = runtime();
    let (http, tcp) = (
        prepare(&Check::new(Probe::Http(Box::new(get(target))))).unwrap(),
        prepare(&Check::new(tcp(target))).unwrap(),
    );
    let limit = Duration::from_secs(2);
    assert_says(&runtime.block_on(http.run(limit)), Good, "status 200");
    let before = set_descriptor_limit(0);
    let (v, w) = (runtime.block_on(http.run(limit)), runtime.block_on(tcp.run(limit)));
    set_descriptor_limit(before);
    for v in [v, w] {
        assert_says(&v, NoResult, "too many open files");
    }
    assert_says(&runtime.block_on(http.run(limit)), Good, "status 200");
    assert_says(&runtime.block_on(tcp.run(limit)), Good, "connected to 127.0.0.1");
}

/// Sets the soft limit and returns the one before.
#[expect(unsafe_code, reason = "the standard library has no call for it")]
fn set_descriptor_limit(soft: libc::rlim_t) -> libc::rlim_t {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit that outlives both calls.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        let before = limit.rlim_cur;
        limit.rlim_cur = soft;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        before
    }
}

#[test]
fn a_hostile_body_and_a_large_expression_hold_up_no_other_check() {
    let _alone = alone();
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    let said = Arc::new(AtomicBool::new(false));
    let hostile = {
        let said = said.clone();
        server(move |mut s| {
            read_head(&mut s);
            let _ = s.write_all(ok(&"a".repeat(32_000)).as_bytes());
            said.store(true, Ordering::SeqCst);
        })
    };
    let other = answers(ok(""));
    let mut probe = get(hostile);
    // Close to the largest that is allowed: what it needs to be sure is seconds.
    probe.regex = Some("a[ab]{8000}c".into());
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let mut hostile = std::pin::pin!(run(probe, 5000));
        let mut others = 0;
        let verdict = loop {
            let later = said.load(Ordering::SeqCst);
            tokio::select! {
                biased;
                verdict = &mut hostile => break verdict,
                v = run(get(other), 5000) => {
                    assert_says(&v, Good, "status 200");
                    others += u32::from(later);
                }
            }
        };
        assert_eq!(verdict.outcome, Bad, "{verdict:?}");
        assert!(others >= 10, "only {others} others ran meanwhile: {verdict:?}");
    });
}
