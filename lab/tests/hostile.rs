//! What the daemon must bear: peers that flood, lie, stall or send garbage, and a machine that is busy. Nobody else may notice.
//!
//! As in the tests of the wire, the daemon is `g` (192.0.2.11, AS 64513) and the peer `p` (192.0.2.1, AS 64512).

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const P: u32 = 64512;
const G: u32 = 64513;
/// An OPEN of AS 64512 without any capability.
const BARE_OPEN: &str = "M 001d 01 04fc000009c000020100";

#[test]
fn nothing_that_a_neighbor_says_is_passed_on_or_kept() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (a, b, g) = (lab.host("a", 1), lab.host("b", 2), lab.host("g", 11));
    let prefixes = |base: u8| -> Vec<String> {
        (0..10_000).map(|n: u32| format!("{base}.{}.{}.0/24", n / 250, n % 250)).collect()
    };
    // The second one announces the VIP too, which must not come back as ours.
    let mut more = prefixes(11);
    more.push(VIP.to_owned());
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let capture = g.capture("eth0");
    let config = Announcer::new(&g, G).neighbor(a.v4, P, "").neighbor(b.v4, 64515, "");
    let daemon = g.spawn(config.vip("web", &[VIP], "/", WITHDRAW).spec());
    let left = a.spawn(bird(P, &[Neighbor::new(g.v4, G).told(prefixes(10))]));
    let right = b.spawn(bird(64515, &[Neighbor::new(g.v4, G).told(more)]));
    until("both know the VIP", secs(20), || left.learned(g.v4) == 1 && right.learned(g.v4) == 1);
    let process = daemon.process();
    let mut sizes = vec![];
    for _ in 0..5 {
        let before = capture.messages_from(a.v4).len();
        left.ask("reload out all");
        right.ask("reload out all");
        until("the routes are sent again", secs(20), || capture.messages_from(a.v4).len() > before + 20);
        sizes.push(process.rss());
    }
    println!("memory in KiB with 20,000 routes received once and again: {sizes:?}");
    // Routes that were kept would be 60,000 by then; an allocator keeps a page or two.
    assert!(sizes[4] <= sizes[1] + 4096, "memory grows: {sizes:?}");
    assert!(sizes[4] < 64 * 1024, "memory: {sizes:?}");
    assert_eq!((left.learned(g.v4), right.learned(g.v4)), (1, 1));
    let told: Vec<_> = capture.finish().into_iter().filter(|event| event.from.ip() == g.v4).collect();
    let told: Vec<_> = told.iter().filter_map(|event| event.message()?.update()).collect();
    assert!(told.iter().all(|update| update.announced.iter().all(|prefix| prefix == VIP)));
    assert!(told.iter().any(|update| update.announced == [VIP]));
}

#[test]
fn a_peer_that_stops_reading_ends_alone_and_costs_little() {
    let Some(lab) = lab!("standfast") else { return };
    let (p, q, g) = (lab.host("p", 1), lab.host("q", 2), lab.host("g", 11));
    let slow = Acceptor::with_buffer(&p, p.v4, Some(1));
    let quick = Acceptor::new(&q, q.v4);
    let service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let prefixes: Vec<_> = (0..3000).map(|n| format!("10.{}.{}.1/32", n / 250, n % 250)).collect();
    let prefixes: Vec<_> = prefixes.iter().map(String::as_str).collect();
    let communities: Vec<_> = (0..40).map(|n| format!("\"64513:{n}\"")).collect();
    let policy = format!(
        "policy: {{ fail_action: withdraw, announce: {{ communities: [{}] }} }}",
        communities.join(", ")
    );
    let config = Announcer::new(&g, G)
        .bgp("hold_time: 3s\n  send_hold_time: 7s")
        .neighbor(p.v4, P, "")
        .neighbor(q.v4, P, "")
        .vip("many", &prefixes, "/", &policy);
    service.set("/", false);
    let daemon = g.spawn(config.spec());
    let mut stuck = slow.accept(secs(10));
    stuck.establish(&Scene::open());
    let mut reader = quick.accept(secs(10));
    reader.establish(&OpenBytes::new(P, q.v4));
    let before = daemon.process().rss();
    let start = Instant::now();
    let mut table = Table::default();
    let (mut good, mut slowest) = (false, Duration::ZERO);
    let closed = "not taken";
    while !daemon.log().contains("n1") || start.elapsed() < secs(11) {
        good = !good;
        service.set("/", good);
        let (turned, wanted) = (Instant::now(), if good { prefixes.len() } else { 0 });
        while table.0.len() != wanted {
            assert!(turned.elapsed() < secs(3), "the reader has {} of {wanted} ({closed})", table.0.len());
            if let Read::Message(message) = reader.read(secs(1)) {
                table.apply(&[message]);
            }
        }
        slowest = slowest.max(turned.elapsed());
    }
    let grown = daemon.process().rss().saturating_sub(before);
    println!("slowest change at the reader {slowest:.2?}; memory grew by {grown} KiB");
    assert!(slowest < secs(2));
    assert!(grown < 32 * 1024);
    // The connection was cut, and no NOTIFICATION stands in the middle of a message.
    stuck.fall_silent();
    let left = stuck.drain(secs(1));
    assert!(left.iter().all(|message| message.kind() != MessageKind::Notification), "{:?}", left.last());
    let again = slow.try_accept(secs(10));
    assert!(again.is_some(), "the stuck session was never given up");
}

#[test]
fn a_malformed_update_ends_its_own_session_with_the_right_code_and_no_other() {
    let Some(lab) = lab!("standfast") else { return };
    let q = lab.host("q", 2);
    let other = Acceptor::new(&q, q.v4);
    let scene = Scene::new(&lab, G, |c| c.neighbor(q.v4, P, "").vip("web", &[VIP], "/", WITHDRAW));
    let mut steady = other.accept(secs(10));
    steady.establish(&OpenBytes::new(P, q.v4));
    steady.update_of(VIP);
    let mut session = scene.establish();
    session.update_of(VIP);
    session.send_hex("M 0017 02 0002 080a");
    assert_eq!(session.drain(secs(5)).last().and_then(Message::code), Some((3, 1)));
    drop(session);

    // Every beginning of a good UPDATE, and every wrong length in it: refused or ignored, never more than that.
    let good =
        hex("M 0034 02 0000 0018 40010100 40020602 010000fc00 400304c0000201 c00804fc000064 20c633640b");
    let good = {
        let mut good = good;
        let n = u16::try_from(good.len()).expect("short");
        good[16..18].copy_from_slice(&n.to_be_bytes());
        let attributes = n - 19 - 4 - 5;
        good[21..23].copy_from_slice(&attributes.to_be_bytes());
        good
    };
    let mut bad: Vec<Vec<u8>> = (19..good.len())
        .map(|end| {
            let mut cut = good[..end].to_vec();
            cut[16..18].copy_from_slice(&u16::try_from(end).expect("short").to_be_bytes());
            cut
        })
        .collect();
    for at in [16, 17, 19, 20, 21, 22, 25, 29, 31, 38, 45] {
        for change in [1_u8, 255] {
            let mut changed = good.clone();
            changed[at] = changed[at].wrapping_add(change);
            bad.push(changed);
        }
    }
    let mut refused = 0;
    for octets in &bad {
        let mut session = until_some("the daemon accepts", secs(5), || {
            let mut session = Session::dial(&scene.p, scene.p.v4, scene.g.v4).ok()?;
            session.send(&Scene::open().message().bytes);
            session.keepalive();
            matches!(session.read(secs(2)), Read::Message(m) if m.kind() == MessageKind::Open)
                .then_some(session)
        })
        .0;
        session.send(octets);
        session.keepalive();
        let answer = session.drain(Duration::from_millis(60));
        refused += usize::from(answer.iter().any(|m| m.kind() == MessageKind::Notification));
        assert!(scene.daemon.process().alive(), "{octets:02x?}");
    }
    println!("{refused} of {} malformed UPDATEs were refused", bad.len());
    assert!(refused > bad.len() / 4);
    let later = steady.drain(Duration::from_millis(1500));
    assert!(
        updates(&later).is_empty() && later.iter().all(|m| m.kind() == MessageKind::Keepalive),
        "{later:?}"
    );
    scene.service.set("/", false);
    assert_eq!(steady.update_of(VIP).1.withdrawn, [VIP]);
}

#[test]
fn a_refused_session_is_tried_again_with_growing_pauses_and_few_words() {
    let Some(lab) = lab!("standfast") else { return };
    let scene = Scene::new(&lab, G, |c| {
        c.bgp("hold_time: 9s\n  connect_retry_max: 8s").vip("web", &[VIP], "/", WITHDRAW)
    });
    let start = Instant::now();
    let mut attempts = vec![];
    while start.elapsed() < secs(24) {
        let Some(mut session) = scene.acceptor.try_accept(Duration::from_millis(200)) else { continue };
        attempts.push(start.elapsed());
        session.send(&Scene::open().message().bytes);
        session.send_hex(if start.elapsed() < secs(12) { "M 0015 03 0602" } else { "M 0015 03 0202" });
        session.drain(Duration::from_millis(100));
    }
    println!("attempts at {attempts:.1?}");
    assert!((3..=8).contains(&attempts.len()), "{attempts:?}");
    let gaps: Vec<_> = attempts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.last() > gaps.first(), "{gaps:?}");
    let log = scene.daemon.log();
    assert!(!log.contains(" established: AS"), "{log}");
    let lines = log.lines().filter(|line| line.contains("n1") && !line.contains("DEBUG")).count();
    assert!(lines <= 3 * attempts.len(), "{lines} lines for {} attempts", attempts.len());
    let start = Instant::now();
    let mut session = scene.establish();
    session.update_of(VIP);
    assert!(start.elapsed() < secs(9), "{:?}", start.elapsed());
}

/// Connections that bring no session: from the neighbour's own address and from a stranger's.
#[test]
fn hostile_connections_disturb_nobody_and_are_let_go() {
    let Some(lab) = lab!(alone; "standfast", "bird") else { return };
    let (l, p, x, g) = (lab.host("l", 1), lab.host("p", 2), lab.host("x", 66), lab.host("g", 11));
    let service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let bird = l.spawn(bird(P, &[Neighbor::new(g.v4, G)]));
    let config = Announcer::new(&g, G).neighbor(l.v4, P, "").neighbor(p.v4, P, "passive: true").vip(
        "web",
        &[VIP],
        "/",
        WITHDRAW,
    );
    let daemon = g.spawn(config.spec());
    until("the VIP is known", secs(10), || bird.learned(g.v4) == 1);
    let process = daemon.process();
    let (memory, descriptors) = (process.rss(), process.descriptors());
    let begun = daemon.log().len();

    let half = hex(BARE_OPEN)[..25].to_vec();
    let garbage: Vec<u8> = (0..5000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for host in [&p, &x] {
        let says: [&[u8]; 6] = [&garbage, &half, &[], &[0xff; 18], &hex("M 0012 01"), &hex("M ffff 02")];
        for octets in says {
            let Ok(mut session) = Session::dial(host, host.v4, g.v4) else { continue };
            session.send(octets);
            // It is either ended at once, or still waited for.
            let answer = session.drain(Duration::from_millis(100));
            assert!(
                answer.iter().all(|m| matches!(m.kind(), MessageKind::Open | MessageKind::Notification)),
                "{answer:?}"
            );
        }
    }
    // Half an OPEN is not waited for for ever.
    let mut silent = Session::dial(&p, p.v4, g.v4).expect("the daemon accepts its neighbour");
    silent.send(&half);
    let start = Instant::now();
    let mut last = Read::Silence;
    while start.elapsed() < secs(20) && !matches!(last, Read::Closed | Read::Reset) {
        last = silent.read(secs(1));
    }
    println!("let go after {:.1?}", start.elapsed());
    assert!(matches!(last, Read::Closed | Read::Reset), "still held after {:?}", start.elapsed());
    // Ten thousand, some hundred of them at a time.
    let mut most = 0;
    for host in [&p, &x] {
        let mut open = std::collections::VecDeque::new();
        host.enter(|| {
            for _ in 0..5000 {
                let stream =
                    std::net::TcpStream::connect_timeout(&SocketAddr::new(g.v4.into(), 179), secs(2));
                open.extend(stream.ok());
                if open.len() > 300 {
                    open.pop_front();
                }
                most = most.max(open.len());
            }
        });
        assert!(bird.established(g.v4));
        let start = Instant::now();
        service.set("/", false);
        until("a change passes meanwhile", secs(2), || bird.learned(g.v4) == 0);
        service.set("/", true);
        until("and back", secs(2), || bird.learned(g.v4) == 1);
        println!("two changes passed in {:.2?} beside the connections", start.elapsed());
    }
    until("the descriptors are given back", secs(20), || process.descriptors() <= descriptors + 4);
    let grown = process.rss().saturating_sub(memory);
    let written = daemon
        .log()
        .lines()
        .filter(|line| !line.contains("DEBUG"))
        .map(str::len)
        .sum::<usize>()
        .saturating_sub(begun);
    println!("memory grew by {grown} KiB, the log by {written} octets, at most {most} connections were open");
    assert!(grown < 16 * 1024, "memory grew by {grown} KiB");
    assert!(written < 64 * 1024, "the log grew by {written} octets");
    assert!(bird.established(g.v4));
    let log = bird.log();
    assert!(!log.contains("Error") && !log.contains("closed"), "{log}");
}

#[test]
fn a_daemon_that_was_stopped_for_a_while_keeps_its_sessions() {
    let Some(lab) = lab!("standfast") else { return };
    let scene = Scene::new(&lab, G, |c| c.vip("web", &[VIP], "/", WITHDRAW));
    let mut session = scene.establish();
    session.update_of(VIP);
    scene.daemon.process().signal(Signal::SIGSTOP);
    session.drain(secs(2));
    scene.daemon.process().signal(Signal::SIGCONT);
    let later = session.drain(secs(4));
    assert!(later.iter().any(|message| message.kind() == MessageKind::Keepalive), "{later:?}");
    assert!(later.iter().all(|message| message.code().is_none()), "{later:?}");
    assert_eq!(scene.state_of("web"), "announced");
}

#[test]
fn a_peer_that_floods_delays_no_change_to_others() {
    let Some(lab) = lab!(alone; "standfast") else { return };
    let q = lab.host("q", 2);
    let other = Acceptor::new(&q, q.v4);
    let scene = Scene::new(&lab, G, |c| c.neighbor(q.v4, P, "").vip("web", &[VIP], "/", WITHDRAW));
    let mut reader = other.accept(secs(10));
    reader.establish(&OpenBytes::new(P, q.v4));
    reader.update_of(VIP);
    let mut flood = scene.establish();
    let memory = scene.daemon.process().rss();
    // Whole UPDATEs of a thousand prefixes, KEEPALIVEs and refresh requests, as fast as they are taken.
    let mut body = hex("0000 0014 40010100 400206020100 00fc00 400304c0000201");
    for n in 0..1000_u32 {
        body.extend_from_slice(&[24, 10, (n >> 8) as u8, n as u8]);
    }
    let update = Message::new(2, &body).bytes;
    let mixed = [&update[..], &Message::new(4, &[]).bytes, &hex("M 0017 05 00010001")].concat();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 0_u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                flood.send(&mixed);
                flood.drain(Duration::ZERO);
                sent += 1;
            }
            sent
        });
        let mut slowest = Duration::ZERO;
        for good in [false, true, false, true, false, true] {
            scene.service.set("/", good);
            let start = Instant::now();
            let (_, update) = reader.update_of(VIP);
            assert_eq!(update.withdrawn.is_empty(), good);
            slowest = slowest.max(start.elapsed());
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let sent = sender.join().expect("the flood");
        println!("slowest change {slowest:.3?} beside {sent} UPDATEs of 1,000 prefixes");
        assert!(sent > 100, "only {sent} UPDATEs were taken");
        assert!(slowest < secs(3), "{slowest:?}");
    });
    let grown = scene.daemon.process().rss().saturating_sub(memory);
    println!("memory grew by {grown} KiB");
    assert!(grown < 16 * 1024, "memory grew by {grown} KiB");
}

#[test]
fn keepalives_are_punctual_beside_a_thousand_checks_a_second_on_a_busy_machine() {
    let Some(lab) = lab!(alone; "standfast") else { return };
    let names: Vec<_> =
        (1..=100).map(|n| (format!("v{n}"), format!("198.51.100.{n}/32"), format!("/{n}"))).collect();
    let scene = Scene::new(&lab, G, |mut c| {
        c = c.bgp("hold_time: 3s");
        for (name, prefix, path) in &names {
            c = c.vip(name, &[prefix], path, WITHDRAW);
        }
        c
    });
    let mut session = scene.establish();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (mut keepalives, before) = (vec![], scene.service.requests());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            });
        }
        let start = Instant::now();
        while start.elapsed() < secs(10) {
            match session.read(secs(3)) {
                Read::Message(message) if message.kind() == MessageKind::Keepalive => {
                    keepalives.push(start.elapsed())
                }
                Read::Message(message) => assert_eq!(message.code(), None, "{message:?}"),
                other => {
                    stop.store(true, std::sync::atomic::Ordering::Relaxed);
                    panic!("{other:?}");
                }
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let widest = keepalives.windows(2).map(|pair| pair[1] - pair[0]).max().expect("keepalives");
    println!("widest gap {widest:.2?} beside {} requests in 10 s", scene.service.requests() - before);
    assert!(widest < secs(2), "{keepalives:?}");
}

#[test]
fn a_peer_of_another_as_is_refused_and_the_log_says_which() {
    let Some(lab) = lab!("standfast") else { return };
    let scene = Scene::new(&lab, G, |c| c.vip("web", &[VIP], "/", WITHDRAW));
    let mut session = scene.acceptor.accept(secs(10));
    session.send(&OpenBytes::new(64999, scene.p.v4).message().bytes);
    assert_eq!(session.message(secs(5)).kind(), MessageKind::Open);
    assert_eq!(session.next(secs(5)).code(), Some((2, 2)));
    until("the log names both", secs(2), || {
        let log = scene.daemon.log();
        log.lines().any(|line| line.contains("64999") && line.contains("64512"))
    });
    // A loop with ourselves: the same identifier in the same AS would be refused, in another AS it is allowed.
    let mut session = scene.acceptor.accept(secs(10));
    session.establish(&OpenBytes::new(P, scene.g.v4));
    session.update_of(VIP);
}

#[test]
fn an_end_is_prompt_while_nobody_can_be_reached() {
    let Some(lab) = lab!("standfast") else { return };
    let g = lab.host("g", 11);
    let mut config = Announcer::new(&g, G);
    for number in 1..=9 {
        config = config.neighbor(Ipv4Addr::new(192, 0, 2, number), P, "");
    }
    // One that nobody answers for, and one without a route.
    let config = config.neighbor(Ipv4Addr::new(203, 0, 113, 1), P, "").vip(
        "web",
        &[VIP],
        "/",
        "address: { manage: true, interface: lo }",
    );
    let daemon = g.spawn(config.spec());
    while_holds("it tries", secs(2), || daemon.process().alive());
    let start = Instant::now();
    daemon.process().signal(Signal::SIGTERM);
    assert_eq!(daemon.process().wait(secs(3)), 0);
    println!("over after {:.3?}", start.elapsed());
    let log = daemon.log();
    let lines = log.lines().filter(|line| !line.contains("DEBUG")).count();
    assert!(lines < 60, "{lines} lines: {log}");
}

#[test]
fn slow_and_greedy_http_clients_delay_no_change() {
    let Some(lab) = lab!("standfast") else { return };
    let scene = Scene::new(&lab, G, |c| c.vip("web", &[VIP], "/", WITHDRAW));
    let mut session = scene.establish();
    session.update_of(VIP);
    let memory = scene.daemon.process().rss();
    let mut clients = vec![];
    scene.g.enter(|| {
        for n in 0..300 {
            let Ok(mut stream) = std::net::TcpStream::connect_timeout(&API, secs(1)) else { continue };
            let _ = stream.set_write_timeout(Some(Duration::from_millis(20)));
            // Half a head, a head without an end, and a body that is far too large.
            let _ = match n % 3 {
                0 => std::io::Write::write_all(&mut stream, b"GET /status HT"),
                1 => std::io::Write::write_all(&mut stream, &[b'a'; 20_000]),
                _ => std::io::Write::write_all(
                    &mut stream,
                    b"POST /api/v1/vips/web/check HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
                )
                .and_then(|()| std::io::Write::write_all(&mut stream, &[b'b'; 100_000])),
            };
            clients.push(stream);
        }
    });
    for good in [false, true, false] {
        scene.service.set("/", good);
        let start = Instant::now();
        session.update_of(VIP);
        assert!(start.elapsed() < secs(3), "{:?}", start.elapsed());
    }
    let grown = scene.daemon.process().rss().saturating_sub(memory);
    println!("memory grew by {grown} KiB for {} clients", clients.len());
    assert!(grown < 48 * 1024, "memory grew by {grown} KiB");
    drop(clients);
    until("others are answered again", secs(5), || scene.g.get(API, "/healthz").map(|a| a.0) == Some(200));
}
