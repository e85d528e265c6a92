//! The `ping` check: against the kernel, against nobody, and against a responder that answers late, from elsewhere or wrongly.
//!
//! Every test has a network namespace of its own, in which the kernel's own answers can be kept back.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;

use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use probe_support::*;
use socket2::{Domain, Protocol, Socket, Type};
use standfast_core::health::Outcome::{Bad, Good, NoResult};
use standfast_core::health::Verdict;
use standfast_core::plan::{Check, PingProbe, Probe, Via};
use standfast_io::probe::prepare;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Three packets, 10 ms apart.
fn ping(target: IpAddr) -> PingProbe {
    PingProbe {
        count: 3,
        interval: Duration::from_millis(10),
        ..PingProbe::new(target, Duration::from_secs(2))
    }
}

/// Runs `test` in a network namespace whose loopback is up.
fn isolated(name: &str, test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if own_namespace(name) {
                assert!(command("ip link set lo up"));
                test();
            }
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Sets rules of the firewall; said aloud if that cannot be.
fn firewall(name: &str, rules: &str) -> bool {
    let set = std::process::Command::new("nft").arg(rules).status().is_ok_and(|s| s.success());
    if !set {
        eprintln!("SKIP {name}: nft cannot set a rule");
    }
    set
}

/// Lets every group ping without a right, or none; whether that could be done.
fn group_range(range: &str) -> bool {
    std::fs::write("/proc/sys/net/ipv4/ping_group_range", range).is_ok()
}

fn once_here(probe: PingProbe, millis: u64) -> Verdict {
    here().block_on(once(Probe::Ping(probe), millis))
}

#[test]
fn loopback_answers_both_families_over_both_sockets() {
    let name = "loopback_answers_both_families_over_both_sockets";
    isolated(name, || {
        let datagram = group_range("0 2147483647");
        if !datagram {
            eprintln!("SKIP {name}, over datagram sockets: net.ipv4.ping_group_range cannot be set");
        }
        for target in [LOCALHOST, Ipv6Addr::LOCALHOST.into()] {
            for privileged in [false, true] {
                let probe = PingProbe { privileged, source: Some(target), ..ping(target) };
                let v = once_here(probe, 5000);
                assert_says(&v, Good, "3 of 3 packets back");
                let socket = if privileged || !datagram { "(raw socket)" } else { "(ICMP datagram socket)" };
                assert_says(&v, Good, socket);
                let saw = v.details.unwrap();
                assert_eq!((saw.sent, saw.rtts.len()), (Some(3), 3));
                assert_eq!(saw.remote.map(|a| a.ip()), Some(target));
            }
        }
        // Without the right the datagram kind is not there, and the raw one takes its place.
        if group_range("1 0") {
            assert_says(&once_here(ping(LOCALHOST), 5000), Good, "(raw socket)");
        }
    });
}

#[test]
fn a_process_that_may_not_ping_gets_no_result_and_both_remedies() {
    let name = "a_process_that_may_not_ping_gets_no_result_and_both_remedies";
    isolated(name, || {
        // A fresh namespace allows no group; what cannot be set is so already.
        let _ = group_range("1 0");
        let runtime = here();
        if !become_nobody() {
            eprintln!("SKIP {name}: the rights of a thread cannot be given up");
            return;
        }
        let v = runtime.block_on(once(Probe::Ping(ping(LOCALHOST)), 500));
        assert_says(&v, NoResult, "net.ipv4.ping_group_range");
        assert_says(&v, NoResult, "CAP_NET_RAW");
        let raw = PingProbe { privileged: true, ..ping(LOCALHOST) };
        assert_says(&runtime.block_on(once(Probe::Ping(raw), 500)), NoResult, "CAP_NET_RAW");
    });
}

/// Gives up every right of this thread alone.
fn become_nobody() -> bool {
    // SAFETY: the call takes numbers. Made past the C library, it changes this thread only.
    #[expect(unsafe_code, reason = "the standard library has no call for it")]
    unsafe {
        libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) == 0
    }
}

#[test]
fn lost_packets_are_counted_against_the_ratio_and_never_time_the_run_out() {
    let name = "lost_packets_are_counted_against_the_ratio_and_never_time_the_run_out";
    isolated(name, || {
        if !firewall(
            name,
            "table ip t { chain c { type filter hook input priority 0; icmp type echo-request icmp sequence 1 drop; }; }",
        ) {
            return;
        }
        let with = |count, max_loss_permille, timeout| {
            let timeout = Duration::from_millis(timeout);
            once_here(PingProbe { count, max_loss_permille, timeout, ..ping(LOCALHOST) }, 2500)
        };
        // The wait for each packet is as long as the whole run: the loss is still counted.
        for timeout in [1000, 2500] {
            let v = with(3, 400, timeout);
            assert_says(&v, Good, "2 of 3 packets back");
            assert!(!v.timed_out);
            let v = with(3, 300, timeout);
            assert_says(&v, Bad, "1 of 3 packets lost, 0 may be");
            assert!(!v.timed_out);
        }
        assert_says(&with(1, 0, 1000), Good, "1 of 1 packets back");
    });
}

#[test]
fn every_second_packet_lost_is_a_loss_of_one_half() {
    let name = "every_second_packet_lost_is_a_loss_of_one_half";
    isolated(name, || {
        if !firewall(
            name,
            "table ip t { chain c { type filter hook input priority 0; icmp type echo-request numgen inc mod 2 0 drop; }; }",
        ) {
            return;
        }
        let with = |max_loss_permille| {
            once_here(PingProbe { count: 10, max_loss_permille, ..ping(LOCALHOST) }, 4000)
        };
        assert_says(&with(500), Good, "5 of 10 packets back");
        assert_says(&with(499), Bad, "5 of 10 packets lost, 4 may be");
    });
}

#[test]
fn a_dead_host_and_a_path_that_is_gone_are_bad_and_say_why() {
    let name = "a_dead_host_and_a_path_that_is_gone_are_bad_and_say_why";
    isolated(name, || {
        let run = |at: &str| once_here(ping(at.parse().unwrap()), 200);
        assert_says(&run("192.0.2.9"), Bad, "ping 192.0.2.9: network is unreachable");
        // A link to nobody: a neighbour that takes every packet and says nothing.
        assert!(
            command("ip link add d0 type veth peer name d1") && command("ip addr add 192.0.2.1/24 dev d0")
        );
        assert_says(&run("192.0.2.9"), Bad, "ping 192.0.2.9: network is unreachable");
        assert!(command("ip link set d0 up") && command("ip link set d1 up"));
        assert!(command("ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev d0"));
        let v = run("192.0.2.9");
        assert_says(&v, Bad, "192.0.2.9: 3 of 3 packets lost, 0 may be");
        assert!(!v.timed_out);
        assert_eq!(v.details.unwrap().sent, Some(3));
        assert!(command("ip route add unreachable 198.51.100.0/24"));
        assert_says(&run("198.51.100.9"), Bad, "ping 198.51.100.9: no route to host");
        // Our own address, which goes away.
        let from =
            || PingProbe { source: Some("192.0.2.1".parse().unwrap()), ..ping("192.0.2.1".parse().unwrap()) };
        assert_says(&once_here(from(), 3000), Good, "3 of 3 packets back");
        assert!(command("ip addr del 192.0.2.1/24 dev d0"));
        assert_says(&once_here(from(), 200), Bad, " from 192.0.2.1: cannot assign requested address");
        let via = Via { source: Some("192.0.2.1".parse().unwrap()), ..Via::default() };
        let check = Check { via, ..Check::new(Probe::Ping(ping(LOCALHOST))) };
        let v = here().block_on(async { prepare(&check).unwrap().run(Duration::from_millis(200)).await });
        assert_says(&v, Bad, " from 192.0.2.1: cannot assign requested address");
        if !firewall(
            name,
            "table ip t { chain o { type filter hook output priority 0; ip daddr 127.0.0.7 drop; }; chain i { type filter hook \
             input priority 0; ip daddr 127.0.0.8 reject with icmp type admin-prohibited; }; }",
        ) {
            return;
        }
        assert_says(&run("127.0.0.7"), Bad, "3 of 3 packets lost, 0 may be: operation not permitted");
        assert_says(
            &run("127.0.0.8"),
            Bad,
            "3 of 3 packets lost, 0 may be: ICMP administratively prohibited",
        );
    });
}

/// An answer to send: after how long, from where, and what.
type Answer = (Duration, Ipv4Addr, Vec<u8>);

/// Answers echo requests in this namespace's loopback as `answer` says, which is given the ICMP part of each request; the
/// kernel's own answers are kept back.
fn responder(name: &str, mut answer: impl FnMut(&[u8]) -> Vec<Answer> + Send + 'static) -> bool {
    if !firewall(
        name,
        "table ip t { chain o { type filter hook output priority 0; icmp type echo-reply meta mark != 7 drop; }; }",
    ) {
        return false;
    }
    let socket = raw(Ipv4Addr::LOCALHOST);
    let senders = [raw(Ipv4Addr::LOCALHOST), raw(Ipv4Addr::new(127, 0, 0, 2))];
    socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    std::thread::spawn(move || {
        let mut due: Vec<(Instant, Ipv4Addr, Vec<u8>)> = Vec::new();
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            let mut buffer = [MaybeUninit::<u8>::uninit(); 256];
            if let Ok(n) = socket.recv(&mut buffer) {
                // SAFETY: the call has written that many octets.
                #[expect(unsafe_code, reason = "this crate's buffers are uninitialised")]
                let packet: Vec<u8> = buffer[20..n].iter().map(|b| unsafe { b.assume_init() }).collect();
                if packet[0] == 8 {
                    due.extend(answer(&packet).into_iter().map(|(d, a, p)| (Instant::now() + d, a, p)));
                }
            }
            due.retain(|(at, from, packet)| {
                let wait = *at > Instant::now();
                if !wait {
                    let sender = &senders[usize::from(*from != Ipv4Addr::LOCALHOST)];
                    let _ = sender.send_to(packet, &SocketAddr::new(LOCALHOST, 0).into());
                }
                wait
            });
        }
    });
    true
}

/// A raw socket whose packets the firewall lets pass.
fn raw(source: Ipv4Addr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
    socket.set_mark(7).unwrap();
    socket.bind(&SocketAddr::new(source.into(), 0).into()).unwrap();
    socket
}

/// The right answer to a request, changed by `change` before its checksum is made.
fn reply(request: &[u8], change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut packet = request.to_vec();
    packet[0] = 0;
    change(&mut packet);
    packet[2..4].copy_from_slice(&[0, 0]);
    let mut sum: u32 = packet.chunks(2).map(|c| u32::from(u16::from_be_bytes([c[0], c[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    packet[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    packet
}

/// Both kinds of socket, as far as this namespace has them.
fn kinds() -> Vec<bool> {
    if group_range("0 2147483647") { vec![false, true] } else { vec![true] }
}

const NOW: Duration = Duration::ZERO;

#[test]
fn a_late_answer_never_satisfies_the_next_run() {
    let name = "a_late_answer_never_satisfies_the_next_run";
    isolated(name, || {
        // Sent when the first run is over and others go on, and what the others ask with their own sequence number.
        let late = Duration::from_millis(300);
        if !responder(name, move |request| vec![(late, Ipv4Addr::LOCALHOST, reply(request, |_| ()))]) {
            return;
        }
        for privileged in kinds() {
            for _ in 0..6 {
                let probe = PingProbe {
                    privileged,
                    count: 1,
                    timeout: Duration::from_millis(200),
                    ..ping(LOCALHOST)
                };
                assert_says(&once_here(probe, 200), Bad, "1 of 1 packets lost");
            }
            // Of one run too: a packet whose time is up is lost, although the run still listens.
            let probe = PingProbe {
                privileged,
                count: 2,
                interval: Duration::from_millis(500),
                timeout: Duration::from_millis(200),
                ..ping(LOCALHOST)
            };
            assert_says(&once_here(probe, 5000), Bad, "2 of 2 packets lost");
            // Whoever waits long enough hears it.
            assert_says(
                &once_here(PingProbe { privileged, ..ping(LOCALHOST) }, 5000),
                Good,
                "3 of 3 packets back",
            );
        }
    });
}

#[test]
fn an_answer_that_is_slow_is_bad_if_a_bound_is_set() {
    let name = "an_answer_that_is_slow_is_bad_if_a_bound_is_set";
    isolated(name, || {
        let slow = Duration::from_millis(60);
        if !responder(name, move |request| vec![(slow, Ipv4Addr::LOCALHOST, reply(request, |_| ()))]) {
            return;
        }
        let bounded = |millis| PingProbe {
            max_rtt: Some(Duration::from_millis(millis)),
            timeout: Duration::from_secs(4),
            ..ping(LOCALHOST)
        };
        assert_says(
            &once_here(bounded(50), 4000),
            Bad,
            "on average over 3 packets, at most 50.000 ms may be",
        );
        assert_says(&once_here(bounded(3000), 4000), Good, "3 of 3 packets back");
    });
}

#[test]
fn an_answer_from_elsewhere_or_to_another_request_is_none() {
    let name = "an_answer_from_elsewhere_or_to_another_request_is_none";
    isolated(name, || {
        let elsewhere = Ipv4Addr::new(127, 0, 0, 2);
        let answers = move |request: &[u8]| -> Vec<Answer> {
            let here = Ipv4Addr::LOCALHOST;
            vec![
                (NOW, elsewhere, reply(request, |_| ())),
                (NOW, here, reply(request, |p| p[4] ^= 1)),
                (NOW, here, reply(request, |p| p[8] ^= 1)),
                (NOW, here, reply(request, |p| p[15] ^= 1)),
                (NOW, here, reply(request, |p| p[6] = 1)),
                (NOW, here, reply(request, |p| p[0] = 8)),
                (NOW, here, reply(request, |p| p[1] = 1)),
                (NOW, here, reply(&request[..12], |_| ())),
                // Once and again, but only of the first packet.
                (NOW, here, reply(request, |p| p[6..8].copy_from_slice(&[0, 0]))),
                (NOW, here, reply(request, |p| p[6..8].copy_from_slice(&[0, 0]))),
            ]
        };
        if !responder(name, answers) {
            return;
        }
        for privileged in kinds() {
            let probe = PingProbe { privileged, ..ping(LOCALHOST) };
            let v = once_here(probe, 3000);
            assert_says(&v, Bad, "2 of 3 packets lost, 0 may be");
            assert_eq!(v.details.unwrap().rtts.len(), 1);
        }
    });
}

/// The second daemon of the test below is this very program, and does only that; then this says for how long.
const SECOND: &str = "STANDFAST_SECOND_PINGER_SECONDS";

/// `PROBE_PING_SECONDS=300` makes it last that long.
#[test]
fn of_500_pings_of_each_of_two_processes_no_dead_target_ever_passes_and_no_live_one_fails() {
    let name = "of_500_pings_of_each_of_two_processes_no_dead_target_ever_passes_and_no_live_one_fails";
    let seconds = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    if let Some(seconds) = seconds(SECOND) {
        return pings_of_many(Duration::from_secs(seconds));
    }
    let seconds = seconds("PROBE_PING_SECONDS").unwrap_or(12);
    isolated(name, || {
        if !firewall(
            name,
            "table ip t { chain c { type filter hook input priority 0; ip daddr 127.0.1.0/24 drop; }; }",
        ) {
            return;
        }
        // In this namespace, since this thread starts it.
        let second = std::process::Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact"])
            .env(SECOND, seconds.to_string())
            .stdout(std::process::Stdio::null())
            .spawn();
        let mut second = second.unwrap();
        pings_of_many(Duration::from_secs(seconds));
        assert!(second.wait().unwrap().success(), "the second process saw something wrong");
    });
}

/// Pings 250 targets twice at the same time, every second one of them dead, over each kind of socket, for so long.
fn pings_of_many(time: Duration) {
    let runtime = here();
    let kinds = kinds();
    let (mut pings, mut stalled) = (0, 0);
    for &privileged in &kinds {
        let before = descriptors();
        // Half of those that live share one target.
        let target = |n: u8| match n {
            _ if n % 2 == 1 => Ipv4Addr::new(127, 0, 1, n),
            _ if n.is_multiple_of(4) => Ipv4Addr::LOCALHOST,
            _ => Ipv4Addr::new(127, 0, 0, n),
        };
        let checks: Vec<_> = (0..500u16)
            .map(|n| {
                let target = target((n % 250) as u8);
                let probe = PingProbe { privileged, count: 2, ..ping(target.into()) };
                (target, Arc::new(prepare(&Check::new(Probe::Ping(probe))).unwrap()))
            })
            .collect();
        let end = Instant::now() + time / u32::try_from(kinds.len()).unwrap();
        while Instant::now() < end {
            runtime.block_on(async {
                let mut runs = tokio::task::JoinSet::new();
                for (target, check) in &checks {
                    let (target, check) = (*target, Arc::clone(check));
                    runs.spawn(async move { (target, check.run(Duration::from_secs(3)).await) });
                }
                while let Some(ended) = runs.join_next().await {
                    let (target, v) = ended.unwrap();
                    let dead = target.octets()[2] == 1;
                    let fine = match v.outcome {
                        Good => !dead,
                        Bad => dead,
                        // This host is busy with other tests.
                        NoResult => v.detail.contains("stalled"),
                    };
                    assert!(fine, "{target}: {v:?}");
                    pings += 1;
                    stalled += u64::from(v.outcome == NoResult);
                }
            });
        }
        until(|| descriptors() <= before, || format!("descriptors {before} -> {}", descriptors()));
    }
    eprintln!("{pings} pings of process {}, {stalled} of them held up by this host", std::process::id());
    assert!(stalled < pings, "this host is too busy to test anything");
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Waits a few seconds for something to become true.
fn until(mut is: impl FnMut() -> bool, what: impl Fn() -> String) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is() {
        assert!(Instant::now() < end, "{}", what());
        std::thread::sleep(Duration::from_millis(20));
    }
}
