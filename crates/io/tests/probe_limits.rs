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

#[test]
fn no_way_to_hang_delays_another_check() {
    use std::collections::BTreeMap;
    use std::net::UdpSocket;
    use std::sync::Arc;

    use standfast_core::health::Verdict;
    use standfast_core::plan::{
        CheckId, DnsProbe, DnsType, ExecProbe, Expect, GrpcCall, GrpcProbe, PingProbe, Target, TcpProbe,
        UdpProbe,
    };
    use standfast_io::probe::Prober;

    let _alone = alone();
    /// Longer than any check may be late.
    const HANGS: u64 = 5000;
    const GAP: Duration = Duration::from_secs(3);
    let silent = server(linger);
    let half = server(|mut s| {
        read_head(&mut s);
        let _ = s.write_all(b"HTTP/1.1 200 OK\r\nContent-Le");
        linger(s);
    });
    let drips = server(|mut s| {
        read_head(&mut s);
        let _ = s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
        while s.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let endless = server(|mut s| {
        read_head(&mut s);
        let _ = s.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while s.write_all(&[b'a'; 16 << 10]).is_ok() {}
    });
    let quiet = UdpSocket::bind("127.0.0.1:0").unwrap();
    let quiet_at = Target::Address(quiet.local_addr().unwrap());
    // A queue for connections that is full.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    full.listen(0).unwrap();
    let full_at = full.local_addr().unwrap().as_socket().unwrap();
    let fillers: Vec<_> = (0..2)
        .map(|_| {
            let filler = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            filler.set_nonblocking(true).unwrap();
            let _ = filler.connect(&full_at.into());
            filler
        })
        .collect();
    let http = |target| HttpProbe { text: Some("never".into()), body_limit: 64 << 20, ..get(target) };
    let mut secure = get(silent);
    secure.tls = Some(tls("web.example.test", None));
    secure.tls.as_mut().unwrap().insecure = true;
    let regex = Some(Expect::Regex("(a+b)+$".into()));
    let shell = |script: &str| {
        Probe::Exec(Box::new(ExecProbe {
            argv: ["/bin/sh", "-c", script].map(Into::into).to_vec(),
            env: BTreeMap::new(),
            directory: "/".into(),
            user: None,
            output_limit: 512,
            nagios: false,
        }))
    };
    let grpc = GrpcProbe {
        target: Target::Address(silent),
        tls: None,
        authority: "web.example.test".into(),
        call: GrpcCall::Health { service: String::new() },
        metadata: Vec::new(),
        keep_alive: false,
    };
    let hanging = vec![
        tcp(full_at),
        Probe::Http(Box::new(secure)),
        Probe::Http(Box::new(http(silent))),
        Probe::Http(Box::new(http(half))),
        Probe::Http(Box::new(http(drips))),
        Probe::Http(Box::new(http(endless))),
        Probe::Tcp(Box::new(TcpProbe { expect: regex.clone(), ..TcpProbe::new(Target::Address(drips)) })),
        Probe::Udp(UdpProbe { expect: regex, ..UdpProbe::new(quiet_at.clone(), vec![1]) }),
        Probe::Dns(Box::new(DnsProbe::new(quiet_at, vec!["www.example.test".into()], DnsType::A))),
        Probe::Grpc(Box::new(grpc)),
        Probe::Ping(PingProbe::new("240.0.0.1".parse().unwrap(), Duration::from_millis(HANGS - 100))),
        shell("sleep 60"),
        shell("trap '' TERM; sleep 60 & wait; sleep 60"),
        shell("yes"),
    ];
    let id = |name: &str| CheckId::new("limits", name);
    let ended: Arc<Mutex<Vec<(Instant, CheckId, Verdict)>>> = Arc::default();
    let noted = Arc::clone(&ended);
    let prober = Prober::start(move |all| {
        let now = Instant::now();
        noted.lock().unwrap().extend(all.into_iter().map(|(id, verdict)| (now, id, verdict)));
    })
    .unwrap();
    let mut checks =
        BTreeMap::from([(id("quick"), check(Probe::Http(Box::new(get(answers(ok(""))))), 200, 190))]);
    for (n, probe) in hanging.iter().enumerate() {
        checks.insert(id(&n.to_string()), check(probe.clone(), 2 * HANGS, HANGS));
    }
    prober.set(&checks).unwrap();
    for n in 0..hanging.len() {
        drop(prober.run_now(&id(&n.to_string())).unwrap());
    }
    let start = Instant::now();
    let over = || {
        let ended = ended.lock().unwrap();
        (0..hanging.len()).all(|n| ended.iter().any(|(_, of, _)| *of == id(&n.to_string())))
    };
    while !over() {
        assert!(start.elapsed() < Duration::from_secs(60), "some check never ended");
        std::thread::sleep(Duration::from_millis(50));
    }
    let end = Instant::now();
    drop((prober, full, fillers));
    let ended = ended.lock().unwrap();
    let good = ended.iter().find(|(_, of, v)| v.outcome == Good && *of != id("quick"));
    assert!(good.is_none(), "{good:?}");
    let quick: Vec<Instant> =
        ended.iter().filter(|(_, of, _)| *of == id("quick")).map(|(at, ..)| *at).collect();
    let moments: Vec<Instant> = [start].into_iter().chain(quick.iter().copied()).chain([end]).collect();
    let gap = moments.windows(2).map(|w| w[1].saturating_duration_since(w[0])).max().unwrap();
    eprintln!("{} runs beside {} checks that hung, the longest gap {gap:?}", quick.len(), hanging.len());
    assert!(gap < GAP, "nothing ran for {gap:?}");
}
