//! What the checks of names, pings and datagrams do without descriptors, and that they leave none behind.
//!
//! One test, for it takes away what the whole process has.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use probe_support::*;
use standfast_core::health::Outcome::{Good, NoResult};
use standfast_core::plan::{Check, DnsProbe, DnsTransport, DnsType, PingProbe, Probe, Target, UdpProbe};
use standfast_io::probe::prepare;

#[test]
fn without_descriptors_there_is_no_result_and_after_many_failures_none_is_missing() {
    let test = "without_descriptors_there_is_no_result_and_after_many_failures_none_is_missing";
    let inside = std::thread::spawn(move || {
        if own_namespace(test) {
            assert!(command("ip link set lo up"));
            starve_and_fail(test);
        }
    });
    inside.join().unwrap();
}

fn starve_and_fail(test: &str) {
    let limit = Duration::from_secs(2);
    let runtime = here();
    let echo = udp_server(|d| vec![d.to_vec()]);
    let dns = DnsProbe::new(Target::Address(echo), vec!["a.example".into()], DnsType::A);
    let mut probes = vec![
        Probe::Udp(UdpProbe::new(Target::Address(echo), vec![1])),
        Probe::Udp(UdpProbe::new(Target::Name("a.example".into(), 9), vec![1])),
        Probe::Dns(Box::new(dns.clone())),
        Probe::Dns(Box::new(DnsProbe { transport: DnsTransport::Tcp, ..dns })),
    ];
    let ping = Probe::Ping(PingProbe::new("127.0.0.1".parse().unwrap(), limit));
    let may_ping = runtime.block_on(once(ping.clone(), 2000)).outcome != NoResult;
    if may_ping {
        probes.push(ping);
    } else {
        eprintln!("SKIP {test}, of ping: this process may not");
    }
    let checks: Vec<_> = probes.into_iter().map(|p| prepare(&Check::new(p)).unwrap()).collect();
    let run = |n: usize, limit| runtime.block_on(checks[n].run(limit));

    let before = set_descriptor_limit(0);
    let starved: Vec<_> = (0..checks.len()).map(|n| run(n, limit)).collect();
    set_descriptor_limit(before);
    for v in starved {
        assert_says(&v, NoResult, "too many open files");
    }
    assert_says(&run(0, limit), Good, "answered 1 bytes");

    // Answers that never come, refusals, and runs that end in the middle of something.
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = udp_server(|_| Vec::new());
    let mut failing = Vec::new();
    for target in [closed, silent] {
        let dns = DnsProbe::new(Target::Address(target), vec!["a.example".into()], DnsType::A);
        failing.push(Probe::Udp(UdpProbe::new(Target::Address(target), vec![1])));
        failing.push(Probe::Dns(Box::new(DnsProbe { transport: DnsTransport::Tcp, ..dns.clone() })));
        failing.push(Probe::Dns(Box::new(dns)));
    }
    if may_ping {
        failing.push(Probe::Ping(PingProbe::new("192.0.2.1".parse().unwrap(), Duration::from_millis(20))));
    }
    let failing: Vec<_> = failing.into_iter().map(|p| prepare(&Check::new(p)).unwrap()).collect();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    for n in 0..300 {
        let check = &failing[n % failing.len()];
        let v = runtime.block_on(check.run(Duration::from_millis(1 + n as u64 % 20)));
        assert!(v.outcome != Good && !v.detail.contains("panicked"), "{v:?}");
        if v.outcome == NoResult {
            assert!(v.detail.contains("stalled"), "{v:?}");
        }
    }
    let end = Instant::now() + Duration::from_secs(10);
    while descriptors() > before {
        assert!(Instant::now() < end, "descriptors {before} -> {}", descriptors());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(run(0, limit).outcome, Good);
    // A name that is not there is the service's trouble, not this host's.
    assert_ne!(run(1, limit).outcome, Good);
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
