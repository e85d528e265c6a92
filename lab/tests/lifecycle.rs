//! Start, change and end of the daemon: in which order things happen, and what is left behind.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;
use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const VIP6: &str = "2001:db8:100::10/128";
const L: u32 = 64512;
const G: u32 = 64513;

/// Two hosts, the second one with a service behind port 80.
fn pair(lab: &Lab) -> (Host, Host, Service) {
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    (l, g, service)
}

fn vip() -> IpAddr {
    "198.51.100.10".parse().expect("an address")
}

fn updates(events: &[Event], from: IpAddr) -> Vec<(Duration, Update)> {
    let sent = events.iter().filter(|event| event.from.ip() == from);
    sent.filter_map(|event| Some((event.time, event.message()?.update()?)))
        .filter(|(_, update)| update.end_of_rib.is_none())
        .collect()
}

/// When `prefix` was last announced or withdrawn.
fn last(events: &[Event], from: IpAddr, withdrawn: bool) -> Duration {
    let of =
        |update: &Update| if withdrawn { !update.withdrawn.is_empty() } else { !update.announced.is_empty() };
    updates(events, from).iter().rev().find(|(_, update)| of(update)).expect("such an UPDATE").0
}

/// Notes when the VIP's address comes and goes on `lo`.
fn watch_addresses(host: &Host) -> Arc<Process> {
    // It stamps when it is scheduled: before everybody else, where that is permitted.
    let first =
        std::process::Command::new("chrt").args(["-f", "1", "true"]).status().is_ok_and(|s| s.success());
    let monitor = ["chrt", "-f", "1", "stdbuf", "-oL", "ip", "-ts", "-o", "monitor", "address"];
    let process = host.process("addresses", &monitor[if first { 0 } else { 3 }..], &[]);
    // It says nothing until something changes, so something is changed.
    until("the monitor listens", secs(5), || {
        host.attempt("ip addr add 127.9.9.9/32 dev lo; ip addr del 127.9.9.9/32 dev lo");
        process.log().contains("127.9.9.9")
    });
    process
}

/// The moments, since the epoch, at which `address` came (`true`) and went.
fn moments(monitor: &Process, address: &str) -> Vec<(bool, Duration)> {
    let offset = utc_offset();
    let log = monitor.log();
    let lines = log.lines().filter(|line| line.contains(&format!(" {address}/")));
    lines.map(|line| (!line.contains("Deleted"), stamp(line) - offset)).collect()
}

/// Reads `[2026-01-31T12:00:00.123456]` as if it were UTC.
fn stamp(line: &str) -> Duration {
    let text = line.trim_start_matches('[').split(']').next().expect("a stamp");
    let number = |range: std::ops::Range<usize>| text[range].parse::<u64>().expect("a number in a stamp");
    let (year, month, day) = (number(0..4), number(5..7), number(8..10));
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let years: u64 = (1970..year).map(|year| 365 + u64::from(leap(year))).sum();
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let days = years + lengths.iter().take(usize::try_from(month).expect("small") - 1).sum::<u64>() + day - 1;
    let seconds = days * 86400 + number(11..13) * 3600 + number(14..16) * 60 + number(17..19);
    Duration::new(seconds, u32::try_from(number(20..26)).expect("microseconds") * 1000)
}

/// How far the local time that `ip` prints is ahead of UTC; only zones at or east of it are served.
fn utc_offset() -> Duration {
    let out = std::process::Command::new("date").arg("+%z").output().expect("date runs");
    let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    let number = |range: std::ops::Range<usize>| text[range].parse::<u64>().expect("an offset");
    assert!(text.starts_with('+'), "the time zone is west of UTC: set TZ=UTC");
    secs(number(1..3) * 3600 + number(3..5) * 60)
}

const MANAGED: &str = "address: { manage: true, interface: lo }\n    policy: { fail_action: withdraw }";

#[test]
fn the_address_is_there_before_the_route_and_goes_after_it() {
    let Some(lab) = lab!("standfast", "bird", "stdbuf") else { return };
    let (l, g, service) = pair(&lab);
    let capture = g.capture("eth0");
    let monitor = watch_addresses(&g);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP, VIP6], "/", MANAGED);
    let daemon = g.spawn(config.spec());
    for (round, end) in ["the check fails", "SIGTERM"].into_iter().enumerate() {
        until("the VIP is known", secs(10), || bird.route(VIP).is_some() && bird.route(VIP6).is_some());
        assert!(g.has_on_lo(vip()));
        let announced = updates(&capture.events(), g.v4.into());
        let first = announced.iter().rev().take_while(|(_, update)| update.withdrawn.is_empty()).last();
        let first = first.expect("an announcement").0;
        if round == 0 {
            service.set("/", false);
        } else {
            daemon.process().signal(Signal::SIGTERM);
        }
        until("the address is gone", secs(5), || !g.has_on_lo(vip()));
        until("the route is gone", secs(5), || bird.route(VIP).is_none() && bird.route(VIP6).is_none());
        until("it is on record", secs(5), || {
            moments(&monitor, "198.51.100.10").len() == 2 * (round + 1)
                && moments(&monitor, "2001:db8:100::10").len() == 2 * (round + 1)
        });
        while_holds("the capture catches up", Duration::from_millis(200), || true);
        let withdrawn = last(&capture.events(), g.v4.into(), true);
        for address in ["198.51.100.10", "2001:db8:100::10"] {
            let moments = moments(&monitor, address);
            let ((came, at), (stayed, gone)) = (moments[2 * round], moments[2 * round + 1]);
            assert!(came && !stayed, "{address}: {moments:?}");
            // The monitor stamps what it prints when it is scheduled, a little after the kernel acted.
            let late = Duration::from_millis(50);
            assert!(
                at < first + late,
                "{address}: {end}: announced {:?} before the address was there",
                at - first
            );
            assert!(
                withdrawn < gone,
                "{address}: {end}: the address went {:?} before the withdrawal",
                withdrawn - gone
            );
        }
        service.set("/", true);
    }
}

#[test]
fn an_address_that_an_operator_added_is_never_removed() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, service) = pair(&lab);
    let by_hand = "198.51.100.20";
    g.run(&format!("ip address add {by_hand}/32 dev lo label lo:vip"));
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let config = Announcer::new(&g, G)
        .neighbor(l.v4, L, "")
        .vip("hand", &["198.51.100.20/32"], "/", MANAGED)
        .vip("own", &[VIP], "/", MANAGED);
    let daemon = g.spawn(config.spec());
    let hand: IpAddr = by_hand.parse().expect("an address");
    until("both are known", secs(10), || bird.learned(g.v4) == 2);
    service.set("/", false);
    until("both are withdrawn", secs(5), || bird.learned(g.v4) == 0);
    until("its own address goes", secs(5), || !g.has_on_lo(vip()));
    while_holds("the operator's stays", secs(1), || g.has_on_lo(hand));
    service.set("/", true);
    until("both are known again", secs(5), || bird.learned(g.v4) == 2 && g.has_on_lo(vip()));
    daemon.process().signal(Signal::SIGTERM);
    assert_eq!(daemon.process().wait(secs(5)), 0);
    assert!(g.has_on_lo(hand) && !g.has_on_lo(vip()));
}

#[test]
fn an_address_left_by_a_killed_daemon_is_taken_over_by_the_next() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, service) = pair(&lab);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP], "/", MANAGED);
    let daemon = g.spawn(config.spec());
    until("the VIP is known", secs(10), || bird.learned(g.v4) == 1);
    daemon.kill();
    assert!(g.has_on_lo(vip()));
    daemon.start_again();
    until("the VIP is known again", secs(12), || bird.learned(g.v4) == 1);
    service.set("/", false);
    until("the VIP is withdrawn", secs(3), || bird.learned(g.v4) == 0);
    until("the address goes, for it was put there by a daemon", secs(3), || !g.has_on_lo(vip()));
    // It goes too if the next one never announces anything.
    service.set("/", true);
    until("the VIP is known again", secs(3), || bird.learned(g.v4) == 1);
    daemon.kill();
    assert!(g.has_on_lo(vip()));
    service.set("/", false);
    daemon.start_again();
    until("the leftover goes", secs(5), || !g.has_on_lo(vip()));
}

#[test]
fn on_sigterm_and_sigint_the_withdrawal_comes_before_a_cease_that_says_why() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, g, _service) = pair(&lab);
    let acceptor = Acceptor::new(&l, l.v4);
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP, VIP6], "/", WITHDRAW);
    let daemon = g.spawn(config.spec());
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut session = acceptor.accept(secs(10));
        session.establish(&OpenBytes::new(L, l.v4));
        let mut known = vec![];
        until("both prefixes are told", secs(10), || {
            known.extend(
                session
                    .drain(Duration::from_millis(50))
                    .iter()
                    .filter_map(Message::update)
                    .flat_map(|u| u.announced),
            );
            known.len() == 2
        });
        let start = Instant::now();
        daemon.process().signal(signal);
        let rest = session.drain(secs(3));
        let rest: Vec<_> = rest.into_iter().filter(|m| m.kind() != MessageKind::Keepalive).collect();
        let (end, before) = rest.split_last().expect("a last message");
        let mut withdrawn: Vec<_> =
            before.iter().filter_map(Message::update).flat_map(|u| u.withdrawn).collect();
        withdrawn.sort();
        assert_eq!(withdrawn, [VIP, VIP6], "{rest:?}");
        let (code, subcode, data) = end.notification().expect("a NOTIFICATION at the end");
        assert_eq!((code, subcode), (6, 2), "{rest:?}");
        assert_eq!(usize::from(data[0]), data.len() - 1, "{rest:?}");
        let text = std::str::from_utf8(&data[1..]).expect("UTF-8");
        assert!(text.contains(signal.as_str()), "{text}");
        assert_eq!(daemon.process().wait(secs(3)), 0);
        println!("{signal}: over after {:.3} s, saying: {text}", start.elapsed().as_secs_f64());
        drop(session);
        daemon.start_again();
    }
}

#[test]
fn requests_are_answered_for_a_while_after_the_withdrawal() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let _service = Service::start(&g, (Ipv4Addr::UNSPECIFIED, 80));
    let acceptor = Acceptor::new(&l, l.v4);
    l.run(&format!("ip route add {VIP} via {}", g.v4));
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP], "/", MANAGED);
    let daemon = g.spawn(config.spec());
    let mut session = acceptor.accept(secs(10));
    session.establish(&OpenBytes::new(L, l.v4));
    until("the VIP is told", secs(10), || {
        session
            .drain(Duration::from_millis(20))
            .iter()
            .filter_map(Message::update)
            .any(|u| u.announced == [VIP])
    });
    let ask = || l.get((vip(), 80).into(), "/").map(|answer| answer.0) == Some(200);
    assert!(ask());
    daemon.process().signal(Signal::SIGTERM);
    until("the VIP is withdrawn", secs(5), || {
        session
            .drain(Duration::from_millis(1))
            .iter()
            .filter_map(Message::update)
            .any(|u| u.withdrawn == [VIP])
    });
    let (start, mut answered, mut last) = (Instant::now(), 0, Duration::ZERO);
    while ask() {
        (answered, last) = (answered + 1, start.elapsed());
        assert!(last < secs(5), "the address stays");
    }
    println!("{answered} requests were answered in the {last:.3?} after the withdrawal");
    assert!(answered >= 5 && last > Duration::from_millis(200));
    assert_eq!(daemon.process().wait(secs(3)), 0);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, _service) = pair(&lab);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP], "/", MANAGED);
    let daemon = g.spawn(config.spec());
    until("the VIP is known", secs(10), || bird.learned(g.v4) == 1);
    // The address stays a while after the withdrawal: an orderly end takes its time.
    daemon.process().signal(Signal::SIGTERM);
    while_holds("it waits", Duration::from_millis(100), || daemon.process().alive());
    let start = Instant::now();
    daemon.process().signal(Signal::SIGTERM);
    // An orderly end has code 0, whatever it takes.
    let code = daemon.process().wait(secs(2));
    println!("over {:.3?} after the second signal, with code {code}", start.elapsed());
    assert_ne!(code, 0);
    until("the route is gone", secs(5), || bird.learned(g.v4) == 0);
}

#[test]
fn a_peer_that_reads_nothing_does_not_hold_up_the_end() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, p, g) = (lab.host("l", 1), lab.host("p", 2), lab.host("g", 11));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let acceptor = Acceptor::with_buffer(&p, p.v4, Some(1));
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let prefixes: Vec<_> = (0..3000).map(|n| format!("10.{}.{}.1/32", n / 250, n % 250)).collect();
    let prefixes: Vec<_> = prefixes.iter().map(String::as_str).collect();
    let config = Announcer::new(&g, G)
        .neighbor(l.v4, L, "")
        .neighbor(p.v4, L, "")
        .vip("many", &prefixes, "/", WITHDRAW)
        .vip("web", &[VIP], "/", MANAGED);
    let daemon = g.spawn(config.spec());
    let mut session = acceptor.accept(secs(10));
    session.establish(&OpenBytes::new(L, p.v4));
    until("the reader knows all", secs(10), || bird.learned(g.v4) == 3001);
    let start = Instant::now();
    daemon.process().signal(Signal::SIGTERM);
    until("the reader's routes are gone", secs(5), || bird.learned(g.v4) == 0);
    assert_eq!(daemon.process().wait(secs(5)), 0);
    println!("over after {:.3} s", start.elapsed().as_secs_f64());
    assert!(!g.has_on_lo(vip()));
}

#[test]
fn a_slow_http_client_does_not_hold_up_the_withdrawal_and_hanging_up_changes_nothing() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, _service) = pair(&lab);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP], "/", WITHDRAW);
    let daemon = g.spawn(config.spec());
    until("the VIP is known", secs(10), || bird.learned(g.v4) == 1);
    assert_eq!(g.get(API, "/readyz").map(|answer| answer.0), Some(200));
    for _ in 0..20 {
        let mut stream = g.enter(|| std::net::TcpStream::connect(API)).expect("the API");
        let request = b"POST /api/v1/vips/web/check HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
        std::io::Write::write_all(&mut stream, request).expect("a request");
    }
    while_holds("the VIP stays", secs(1), || bird.learned(g.v4) == 1);
    let mut slow = g.enter(|| std::net::TcpStream::connect(API)).expect("the API");
    std::io::Write::write_all(&mut slow, b"GET /metrics HTTP/1.1\r\nHo").expect("half a request");
    daemon.process().signal(Signal::SIGTERM);
    until("the VIP is withdrawn", secs(5), || bird.learned(g.v4) == 0);
    assert_eq!(daemon.process().wait(secs(3)), 0);
}

#[test]
fn sighup_takes_nothing_away() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, _service) = pair(&lab);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP], "/", WITHDRAW);
    let daemon = g.spawn(config.spec());
    until("the VIP is known", secs(10), || bird.learned(g.v4) == 1);
    daemon.process().signal(Signal::SIGHUP);
    while_holds("the VIP stays", secs(1), || bird.learned(g.v4) == 1 && daemon.process().alive());
}

#[test]
fn a_daemon_killed_and_started_within_a_second_is_believed_again_every_time() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, _service) = pair(&lab);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP], "/", WITHDRAW);
    let daemon = g.spawn(config.spec());
    until("the VIP is known", secs(10), || bird.learned(g.v4) == 1);
    let mut times = vec![];
    for round in 0..6 {
        if round % 2 == 0 {
            daemon.kill();
        } else {
            // The router keeps the old session: what ends it never arrives.
            g.run("nft 'table inet mute { chain m { type filter hook output priority 0; tcp sport 179 drop; tcp dport 179 drop; }; }'");
            daemon.kill();
            while_holds("nothing reaches the router", Duration::from_millis(300), || true);
            g.run("nft delete table inet mute");
        }
        let start = Instant::now();
        daemon.start_again();
        until("the VIP is known to the new session", secs(12), || {
            bird.learned(g.v4) == 1
                && g.run("ss -Htnp state established '( sport = :179 or dport = :179 )'")
                    .contains(&format!("pid={},", daemon.process().pid()))
        });
        times.push(start.elapsed());
    }
    println!("known again after {times:.2?}");
}

#[test]
fn equal_results_send_nothing_and_a_new_session_is_told_once() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, g, service) = pair(&lab);
    let acceptor = Acceptor::new(&l, l.v4);
    let drain = lab.file("drain");
    std::fs::write(&drain, "").expect("the drain file");
    let (up, worse, down) = ("198.51.100.1/32", "198.51.100.2/32", "198.51.100.3/32");
    let config = Announcer::new(&g, G)
        .neighbor(l.v4, L, "")
        .vip("up", &[up], "/up", WITHDRAW)
        .vip("worse", &[worse], "/worse", &policy(&drain))
        .vip("down", &[down], "/down", WITHDRAW);
    service.set("/down", false);
    g.spawn(config.spec());
    for _ in 0..2 {
        let mut session = acceptor.accept(secs(10));
        session.establish(&OpenBytes::new(L, l.v4));
        let told = session.drain(secs(2));
        let mut announced: Vec<_> =
            told.iter().filter_map(Message::update).flat_map(|update| update.announced).collect();
        announced.sort();
        assert_eq!(announced, [up, worse]);
        let start = (Instant::now(), service.requests());
        while start.0.elapsed() < secs(5) {
            if let Read::Message(message) = session.read(secs(1)) {
                assert_eq!(message.kind(), MessageKind::Keepalive, "{message:?}");
            }
        }
        assert!(service.requests() > start.1 + 100, "the checks went on");
    }
}

#[test]
fn a_change_reaches_each_session_of_its_family_once_and_a_dead_neighbor_delays_none() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (a, b, dead, g) = (lab.host("a", 1), lab.host("b", 2), lab.host("dead", 3), lab.host("g", 11));
    let service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let capture = g.capture("eth0");
    for host in [&a, &b] {
        host.spawn(bird(L, &[Neighbor::new(g.v4, G), Neighbor::new(g.v6, G)]));
    }
    let mut config = Announcer::new(&g, G).neighbor(dead.v4, L, "vips: [four, six]");
    for host in [&a, &b] {
        config = config.neighbor(host.v4, L, "vips: [four]").neighbor(host.v6, L, "vips: [six]");
    }
    lab.cut(&dead);
    let config = config.vip("four", &[VIP], "/four", WITHDRAW).vip("six", &[VIP6], "/six", WITHDRAW);
    g.spawn(config.spec());
    let peers: [IpAddr; 4] = [a.v4.into(), b.v4.into(), a.v6.into(), b.v6.into()];
    // What each session was told so far: (announced, withdrawn) per prefix.
    let counts = || {
        let mut counts: BTreeMap<(IpAddr, String), (usize, usize)> = BTreeMap::new();
        for event in capture.events() {
            let Some(update) = event.message().and_then(Message::update) else { continue };
            for prefix in update.announced {
                counts.entry((event.to.ip(), prefix)).or_default().0 += 1;
            }
            for prefix in update.withdrawn {
                counts.entry((event.to.ip(), prefix)).or_default().1 += 1;
            }
        }
        counts
    };
    let settled = |four: (usize, usize), six: (usize, usize)| {
        let wanted: BTreeMap<_, _> = peers
            .iter()
            .map(|peer| {
                if peer.is_ipv4() { ((*peer, VIP.to_owned()), four) } else { ((*peer, VIP6.to_owned()), six) }
            })
            .collect();
        until("each session was told", secs(15), || counts() == wanted);
        while_holds("and no more", Duration::from_millis(400), || counts() == wanted);
    };
    settled((1, 0), (1, 0));
    service.set("/four", false);
    settled((1, 1), (1, 0));
    service.set("/six", false);
    settled((1, 1), (1, 1));
    service.set("/four", true);
    service.set("/six", true);
    settled((2, 1), (2, 1));
    // The change is on every wire within milliseconds, dead neighbour or not.
    let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock");
    service.set("/four", false);
    settled((2, 2), (2, 1));
    let times: Vec<_> = [&a, &b]
        .iter()
        .map(|host| {
            let to = capture.events().into_iter().filter(|event| event.to.ip() == IpAddr::from(host.v4));
            let mut told = to.filter(|event| event.message().and_then(Message::update).is_some());
            told.next_back().expect("an UPDATE").time - before
        })
        .collect();
    println!("withdrawn at {times:.3?} after the service turned");
    assert!(times.iter().all(|time| *time < secs(3)), "{times:?}");
}

#[test]
fn nested_prefixes_each_follow_their_own_check() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, service) = pair(&lab);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let nested = [("wide", "198.51.100.0/24"), ("half", "198.51.100.0/25"), ("one", VIP)];
    let mut config = Announcer::new(&g, G).neighbor(l.v4, L, "");
    for (name, prefix) in nested {
        let more = format!("{WITHDRAW}\n    allow_overlap: true");
        config = config.vip(name, &[prefix], &format!("/{name}"), &more);
    }
    g.spawn(config.spec());
    until("all are known", secs(10), || bird.learned(g.v4) == 3);
    for pattern in [0b000, 0b001, 0b011, 0b010, 0b110, 0b111, 0b101, 0b100, 0b111] {
        let wanted = |nth: usize| pattern & (1 << nth) != 0;
        for (nth, (name, _)) in nested.iter().enumerate() {
            service.set(&format!("/{name}"), wanted(nth));
        }
        until(&format!("the pattern {pattern:03b} is known"), secs(3), || {
            nested.iter().enumerate().all(|(nth, (_, prefix))| bird.route(prefix).is_some() == wanted(nth))
        });
    }
}

#[test]
fn a_prefix_in_two_vips_is_refused_with_both_places_whatever_its_spelling() {
    let Some(lab) = lab!("standfast") else { return };
    let g = lab.host("g", 11);
    for (name, left, right) in [("same", VIP, VIP), ("spelling", VIP6, "2001:DB8:100:0::10/128")] {
        let config = Announcer::new(&g, G)
            .neighbor(Ipv4Addr::new(192, 0, 2, 1), L, "")
            .vip("first", &[left], "/", WITHDRAW)
            .vip("second", &[right], "/", WITHDRAW);
        let file = lab.file("twice.yaml");
        std::fs::write(&file, config.yaml()).expect("a file");
        let bin = standfast_bin().expect("the binary");
        let process = g.process(
            name,
            &[bin.to_str().expect("a path"), "run", "-c", file.to_str().expect("a path")],
            &[],
        );
        assert_eq!(process.wait(secs(5)), 2);
        let log = process.log();
        assert_eq!(log.matches("prefixes: [").count(), 2, "{log}");
    }
}

#[test]
fn a_managed_address_that_somebody_deletes_comes_back() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, _service) = pair(&lab);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP, VIP6], "/", MANAGED);
    let daemon = g.spawn(config.spec());
    until("the VIP is known", secs(10), || bird.learned(g.v4) == 2);
    for prefix in [VIP, VIP6] {
        g.run(&format!("ip address del {prefix} dev lo"));
        let address: IpAddr = prefix.split('/').next().and_then(|a| a.parse().ok()).expect("an address");
        let took = until("it is back", secs(3), || g.has_on_lo(address));
        println!("{prefix}: back after {took:.3?}");
        let words = format!("address {address} on lo: somebody removed it: put back");
        until("the log says so", secs(3), || daemon.log().contains(&words));
    }
    until("the VIP is known", secs(3), || bird.learned(g.v4) == 2);
}

#[test]
fn a_vip_that_needs_its_address_follows_it() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, _service) = pair(&lab);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let more = format!("{WITHDRAW}\n    require_local_address: true");
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP, VIP6], "/", &more);
    g.spawn(config.spec());
    until("the session is there", secs(10), || bird.established(g.v4));
    while_holds("nothing is told without the addresses", secs(1), || bird.learned(g.v4) == 0);
    g.run(&format!("ip address add {VIP} dev lo"));
    while_holds("nothing is told with one of two", Duration::from_millis(500), || bird.learned(g.v4) == 0);
    g.run(&format!("ip address add {VIP6} dev lo"));
    until("told with both", secs(2), || bird.learned(g.v4) == 2);
    g.run(&format!("ip address del {VIP6} dev lo"));
    let took = until("withdrawn without one", secs(2), || bird.learned(g.v4) == 0);
    println!("withdrawn {took:.3?} after the address went");
}

#[test]
fn a_local_address_that_appears_after_the_start_is_waited_for() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, _service) = pair(&lab);
    g.run(&format!("ip address del {}/24 dev eth0", g.v4));
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP], "/", WITHDRAW);
    let daemon = g.spawn(config.spec());
    while_holds("it waits", secs(2), || daemon.process().alive() && bird.learned(g.v4) == 0);
    g.run(&format!("ip address add {}/24 dev eth0", g.v4));
    let took = until("the VIP is known", secs(10), || bird.learned(g.v4) == 1);
    println!("known {took:.3?} after the address came");
    until("it listens there too", secs(5), || g.run("ss -Htln sport = :179").contains("192.0.2.11:179"));
}

#[test]
fn a_pulled_cable_is_survived_and_its_return_met_within_3_s() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, service) = pair(&lab);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let config =
        Announcer::new(&g, G).bgp("hold_time: 3s").neighbor(l.v4, L, "").vip("web", &[VIP], "/", WITHDRAW);
    g.spawn(config.spec());
    until("the VIP is known", secs(10), || bird.learned(g.v4) == 1);
    lab.cut(&g);
    until("the router notices", secs(10), || bird.learned(g.v4) == 0);
    while_holds("it lasts", secs(10), || bird.learned(g.v4) == 0);
    lab.mend(&g);
    let took = until("the VIP is known again", secs(10), || bird.learned(g.v4) == 1);
    println!("known {took:.3?} after the cable was plugged in");
    assert!(took < secs(3), "{took:?}");
    // Changes of a time without a network are not repeated afterwards: only the end counts.
    lab.cut(&g);
    service.set("/", false);
    until("the router notices", secs(10), || bird.learned(g.v4) == 0);
    lab.mend(&g);
    while_holds("nothing is told", secs(4), || bird.learned(g.v4) == 0);
    assert!(bird.established(g.v4));
}

#[test]
fn a_lossy_link_delays_changes_and_loses_none() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, service) = pair(&lab);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP], "/", WITHDRAW);
    let daemon = g.spawn(config.spec());
    until("the VIP is known", secs(10), || bird.learned(g.v4) == 1);
    lab.loss(&g, 15);
    lab.loss(&l, 15);
    for good in [false, true, false, true, false, true] {
        service.set("/", good);
        until("the change arrives", secs(6), || bird.learned(g.v4) == usize::from(good));
    }
    assert_eq!(daemon.log().matches("established: AS").count(), 1, "the session was lost");
}
