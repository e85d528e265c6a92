//! The daemon against a scripted peer: what it must say and understand, octet by octet.
//!
//! The daemon is `g` (192.0.2.11, AS 64513); the peer is `p` (192.0.2.1, AS 64512), which the daemon dials.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const VIP6: &str = "2001:db8:100::10/128";
const P: u32 = 64512;
const G: u32 = 64513;
/// An OPEN of AS 64512 without any capability.
const BARE_OPEN: &str = "M 001d 01 04fc000009c000020100";

#[test]
fn between_announced_and_pessimised_is_one_update_that_replaces() {
    let Some(lab) = lab!("standfast") else { return };
    let drain = lab.file("drain");
    let scene = Scene::new(&lab, G, |c| c.vip("web", &[VIP], "/", &policy(&drain)));
    let capture = scene.g.capture("eth0");
    let mut session = scene.establish();
    let (_, first) = session.update_of(VIP);
    assert_eq!(first.as_path(4), [G]);
    for _ in 0..3 {
        std::fs::write(&drain, "").expect("the drain file");
        let (_, worse) = session.update_of(VIP);
        assert_eq!((worse.as_path(4), worse.communities()), (vec![G; 4], vec![(64513, 100), (64513, 666)]));
        std::fs::remove_file(&drain).expect("the drain file");
        let (_, back) = session.update_of(VIP);
        assert_eq!((back.as_path(4), back.communities()), (vec![G], vec![(64513, 100)]));
    }
    while_holds("nothing follows", Duration::from_millis(500), || true);
    let sent: Vec<_> = capture.finish().iter().filter_map(|e| e.message().cloned()).collect();
    let sent = updates(&sent);
    assert_eq!(sent.len(), 7, "{sent:#?}");
    assert!(sent.iter().all(|update| update.withdrawn.is_empty()), "{sent:#?}");
}

#[test]
fn as4_path_from_a_two_octet_peer_costs_nothing() {
    let Some(lab) = lab!("standfast") else { return };
    let scene = Scene::new(&lab, G, |c| c.vip("web", &[VIP], "/", WITHDRAW));
    let mut session = scene.acceptor.accept(secs(10));
    session.establish_with(&hex(BARE_OPEN));
    session.send_hex(
        "M 003d 02 0000 0021 40010100 40020602 02fc005ba0 400304c0000201 c0110a0202 0000fc00fa56ea0c 20c633640b",
    );
    session.update_of(VIP);
    let later = session.drain(secs(4));
    assert!(later.iter().any(|message| message.kind() == MessageKind::Keepalive), "{later:?}");
    assert!(updates(&later).is_empty() && later.iter().all(|message| message.code().is_none()), "{later:?}");
}

#[test]
fn a_two_octet_peer_gets_two_octets_and_as4_path_where_needed() {
    let Some(lab) = lab!("standfast") else { return };
    let (p, service_at) = (lab.host("p", 1), (Ipv4Addr::LOCALHOST, 80));
    let acceptor = Acceptor::new(&p, p.v4);
    let drain = lab.file("drain");
    let policy = format!(
        "policy: {{ fail_action: withdraw, lower_priority_file: \"{}\", lower_priority: {{ as_path_prepend: 2 }} }}",
        drain.display()
    );
    // (our AS, My AS of the OPEN, AS_PATH, AS4_PATH)
    for (nth, (asn, short, path, path4)) in [
        (64513_u32, "fc01", "40 02 04 02 01 fc01", None),
        (4_200_000_011, "5ba0", "40 02 04 02 01 5ba0", Some("c0 11 06 02 01 fa56ea0b")),
        (65000, "fde8", "40 02 04 02 01 fde8", None),
    ]
    .into_iter()
    .enumerate()
    {
        let g = lab.host(&format!("g{nth}"), 11 + u8::try_from(nth).expect("a few"));
        let _service = Service::start(&g, service_at);
        let config = Announcer::new(&g, asn).neighbor(p.v4, P, "").vip("web", &[VIP], "/", &policy);
        let daemon = g.spawn(config.spec());
        let mut session = acceptor.accept(secs(10));
        let open = session.establish_with(&hex(BARE_OPEN));
        assert!(open.holds(&format!("ff 01 04 {short}")[3..]), "{open:?}");
        let (message, update) = session.update_of(VIP);
        assert!(message.holds(path), "{message:?}");
        assert_eq!(update.attributes.contains_key(&17), path4.is_some(), "{message:?}");
        assert!(path4.is_none_or(|path4| message.holds(path4)), "{message:?}");
        std::fs::write(&drain, "").expect("the drain file");
        let (message, update) = session.update_of(VIP);
        assert_eq!(update.as_path(2).len(), 3, "{message:?}");
        assert_eq!(update.as4_path(), if path4.is_some() { vec![asn; 3] } else { vec![] }, "{message:?}");
        std::fs::remove_file(&drain).expect("the drain file");
        daemon.kill();
    }
}

#[test]
fn as_trans_without_its_capability_is_refused_by_name() {
    let Some(lab) = lab!("standfast") else { return };
    let scene = Scene::new(&lab, G, |c| c.vip("web", &[VIP], "/", WITHDRAW));
    let mut session = scene.acceptor.accept(secs(10));
    session.send_hex("M 001d 01 045ba00009c000020100");
    assert_eq!(session.message(secs(5)).kind(), MessageKind::Open);
    assert_eq!(session.next(secs(5)).code(), Some((2, 2)));
    until("the log says why", secs(2), || {
        let log = scene.daemon.log().to_lowercase();
        log.contains("four-octet") || log.contains("4-octet") || log.contains("capability 65")
    });
}

#[test]
fn the_smallest_open_is_enough_and_a_notification_may_come_first() {
    let Some(lab) = lab!("standfast") else { return };
    let scene = Scene::new(&lab, G, |c| c.vip("web", &[VIP], "/", WITHDRAW));
    let mut first = scene.acceptor.accept(secs(10));
    first.send_hex("M 0015 03 0602");
    until("the log names it", secs(3), || scene.daemon.log().contains("Administrative Shutdown"));
    let start = Instant::now();
    let mut session = scene.acceptor.accept(secs(10));
    assert!(start.elapsed() > Duration::from_millis(500), "dialled again at once");
    session.establish_with(&hex(BARE_OPEN));
    let (_, update) = session.update_of(VIP);
    assert!(update.classic && update.as_path(2) == [G]);
}

#[test]
fn capabilities_mean_the_same_in_one_parameter_and_in_many() {
    let Some(lab) = lab!("standfast") else { return };
    let scene = Scene::new(&lab, G, |c| c.vip("web", &[VIP, VIP6], "/", WITHDRAW));
    until("the VIP is announced", secs(5), || scene.state_of("web") == "announced");
    let mut told = vec![];
    for open in [
        "M 0031 01 04fc000009c0000201 14 0212 010400010001 0200 40020078 41040000fc00",
        "M 0037 01 04fc000009c0000201 1a 0206010400010001 02020200 020440020078 020641040000fc00",
    ] {
        let mut session = scene.acceptor.accept(secs(10));
        session.establish_with(&hex(open));
        let messages = session.drain(secs(1));
        assert!(updates(&messages).iter().any(|update| update.announced == [VIP]), "{messages:?}");
        told.push(messages.into_iter().filter(|m| m.kind() != MessageKind::Keepalive).collect::<Vec<_>>());
    }
    assert_eq!(told[0], told[1]);
    // A capability that runs past its parameter.
    let mut session = scene.acceptor.accept(secs(10));
    session.send_hex("M 0029 01 04fc000009c0000201 0c 020a 010400010001 41040000");
    assert_eq!(session.message(secs(5)).kind(), MessageKind::Open);
    assert_eq!(session.next(secs(5)).code(), Some((2, 0)));
}

#[test]
fn extended_optional_parameters_are_understood() {
    let Some(lab) = lab!("standfast") else { return };
    let scene = Scene::new(&lab, G, |c| c.vip("web", &[VIP], "/", WITHDRAW));
    for open in [
        "M 0031 01 04fc000009c0000201 ff ff0011 02000e 010400010001 0200 41040000fc00",
        "M 0031 01 04fc000009c0000201 01 ff0011 02000e 010400010001 0200 41040000fc00",
        "M 0020 01 04fc000009c0000201 ff ff0000",
    ] {
        let mut session = scene.acceptor.accept(secs(10));
        let theirs = session.establish_with(&hex(open));
        // Ours is short, so it is in the classic form.
        assert_eq!(usize::from(theirs.bytes[28]), theirs.bytes.len() - 29, "{theirs:?}");
        session.update_of(VIP);
    }
}

#[test]
fn only_the_families_that_both_named_are_spoken() {
    let Some(lab) = lab!("standfast") else { return };
    let scene = Scene::new(&lab, G, |c| c.vip("web", &[VIP, VIP6], "/", WITHDRAW));
    until("the VIP is announced", secs(5), || scene.state_of("web") == "announced");
    let mut session = scene.acceptor.accept(secs(10));
    let mut only_v6 = Scene::open();
    only_v6.capabilities.remove(0);
    session.establish(&only_v6);
    let messages = session.drain(secs(1));
    let told: Vec<_> = messages.iter().filter_map(Message::update).collect();
    assert!(told.iter().any(|update| update.announced == [VIP6]), "{told:?}");
    assert!(told.iter().all(|update| !update.classic && update.end_of_rib != Some(1)), "{told:?}");
    drop(session);

    let mut session = scene.acceptor.accept(secs(10));
    let mut neither = Scene::open();
    neither.capabilities.retain(|(code, _)| *code != 1);
    session.establish(&neither);
    let messages = session.drain(secs(1));
    let told: Vec<_> = messages.iter().filter_map(Message::update).collect();
    assert!(told.iter().any(|update| update.announced == [VIP] && update.classic), "{told:?}");
    assert!(told.iter().all(|update| update.announced != [VIP6] && update.end_of_rib != Some(2)), "{told:?}");
}

#[test]
fn the_smaller_hold_time_counts_and_one_and_two_seconds_are_refused() {
    let Some(lab) = lab!("standfast") else { return };
    let g = lab.host("g", 11);
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let mut config = Announcer::new(&g, G).vip("web", &[VIP], "/", WITHDRAW);
    let offers: Vec<u16> = vec![180, 9, 3, 2, 1, 0];
    let peers: Vec<_> =
        (1..).zip(&offers).map(|(number, hold)| (lab.host(&format!("p{number}"), number), *hold)).collect();
    for (p, _) in &peers {
        config = config.neighbor(p.v4, P, "");
    }
    let acceptors: Vec<_> = peers.iter().map(|(p, _)| Acceptor::new(p, p.v4)).collect();
    let daemon = g.spawn(config.spec());
    let began = daemon.process().cpu();
    std::thread::scope(|scope| {
        for (acceptor, (p, hold)) in acceptors.iter().zip(&peers) {
            scope.spawn(move || {
                let mut session = acceptor.accept(secs(10));
                session.send(&OpenBytes { hold: *hold, ..OpenBytes::new(P, p.v4) }.message().bytes);
                assert_eq!(session.message(secs(5)).kind(), MessageKind::Open);
                if matches!(hold, 1 | 2) {
                    assert_eq!(session.next(secs(5)).code(), Some((2, 6)), "hold time {hold}");
                    return;
                }
                session.keepalive();
                assert_eq!(session.message(secs(5)).kind(), MessageKind::Keepalive);
                session.keepalive();
                let start = Instant::now();
                let mut keepalives = vec![];
                let end = loop {
                    match session.read(secs(12).saturating_sub(start.elapsed())) {
                        Read::Message(m) if m.kind() == MessageKind::Keepalive => {
                            keepalives.push(start.elapsed())
                        }
                        Read::Message(m) if m.kind() == MessageKind::Notification => {
                            break Some((m.code(), start.elapsed()));
                        }
                        Read::Message(_) => {}
                        Read::Silence => break None,
                        other => panic!("{other:?}"),
                    }
                };
                println!("hold time {hold}: keepalives at {keepalives:.1?}, end {end:.1?}");
                let agreed = u64::from((*hold).min(9));
                if agreed == 0 {
                    assert!(keepalives.is_empty() && end.is_none(), "hold time 0: {keepalives:?} {end:?}");
                    return;
                }
                let (end, when) = end.expect("the hold time runs out");
                assert_eq!(end, Some((4, 0)));
                let expected = secs(agreed);
                assert!(
                    when > expected - Duration::from_millis(200) && when < expected + secs(2),
                    "{hold}: {when:?}"
                );
                // One each third of the hold time, or a little sooner.
                assert!((2..=4).contains(&keepalives.len()), "hold time {hold}: {keepalives:?}");
            });
        }
    });
    let used = daemon.process().cpu() - began;
    assert!(used < 200, "the processor was busy for {used} hundredths of a second");
}

#[test]
fn a_peer_that_vanishes_is_noticed_in_hold_time_and_told_everything_when_it_is_back() {
    let Some(lab) = lab!("standfast") else { return };
    let scene = Scene::new(&lab, G, |c| c.bgp("hold_time: 3s").vip("web", &[VIP], "/", WITHDRAW));
    let mut session = scene.establish();
    session.update_of(VIP);
    let port = session.remote().port();
    scene.p.run("nft 'table inet gone { chain a { type filter hook input priority 0; tcp sport 179 drop; tcp dport 179 drop; }; chain b { type filter hook output priority 0; tcp sport 179 drop; tcp dport 179 drop; }; }'");
    let log = || scene.daemon.log();
    let took = until("the peer is given up", secs(5), || log().contains("hold time"));
    println!("given up after {:.1} s", took.as_secs_f64());
    while_holds("it stays away", secs(4), || true);
    scene.p.run("nft delete table inet gone");
    let healed = Instant::now();
    let mut session = loop {
        // Leftovers of dials that were given up may come first.
        let mut next = scene.acceptor.accept(secs(10));
        next.send(&Scene::open().message().bytes);
        if matches!(next.read(secs(1)), Read::Message(m) if m.kind() == MessageKind::Open) {
            next.keepalive();
            next.keep_alive(secs(1));
            break next;
        }
    };
    assert_ne!(session.remote().port(), port);
    assert_eq!(session.message(secs(2)).kind(), MessageKind::Keepalive);
    session.update_of(VIP);
    println!("told again {:.1} s after the network was mended", healed.elapsed().as_secs_f64());
    assert!(healed.elapsed() < secs(5));
}

#[test]
fn a_peer_that_rebooted_and_dials_is_served_within_hold_time_and_a_retry() {
    let Some(lab) = lab!("standfast") else { return };
    let scene = Scene::new(&lab, G, |c| c.bgp("hold_time: 3s").vip("web", &[VIP], "/", WITHDRAW));
    let mut old = scene.establish();
    old.update_of(VIP);
    // The old connection looks established to the daemon, and nobody is at its other end.
    let port = old.remote().port();
    scene.p.run(&format!("nft 'table inet gone {{ chain a {{ type filter hook output priority 0; tcp sport 179 tcp dport {port} drop; }}; }}'"));
    old.fall_silent();
    let start = Instant::now();
    let served = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let acceptor = &scene.acceptor;
                // It may dial us, or take one of our dials.
                while start.elapsed() < secs(10) {
                    for session in [
                        acceptor.try_accept(Duration::from_millis(100)),
                        Session::dial(&scene.p, scene.p.v4, scene.g.v4).ok(),
                    ] {
                        let Some(mut session) = session else { continue };
                        session.send(&Scene::open().message().bytes);
                        if !matches!(session.read(secs(1)), Read::Message(m) if m.kind() == MessageKind::Open)
                        {
                            continue;
                        }
                        session.keepalive();
                        session.keep_alive(secs(1));
                        let told = session.drain(Duration::from_millis(700));
                        if updates(&told).iter().any(|update| update.announced == [VIP]) {
                            return Some(start.elapsed());
                        }
                    }
                    std::thread::sleep(Duration::from_millis(200));
                }
                None
            })
            .join()
            .expect("the peer")
    });
    println!("served again after {served:?}");
    assert!(served.is_some_and(|took| took < secs(7)), "{served:?}");
}

#[test]
fn of_two_connections_that_cross_the_higher_identifier_keeps_its_own() {
    let Some(lab) = lab!("standfast") else { return };
    let scene = Scene::new(&lab, G, |c| {
        c.bgp("hold_time: 9s\n  connect_retry: 1s\n  connect_retry_max: 2s").vip("web", &[VIP], "/", WITHDRAW)
    });
    for (id, theirs_wins) in [(Ipv4Addr::new(192, 0, 2, 200), true), (Ipv4Addr::new(192, 0, 2, 2), false)] {
        for round in 0..4 {
            let mut ours = scene.acceptor.accept(secs(10));
            let mut theirs = until_some("the daemon accepts", secs(5), || {
                Session::dial(&scene.p, scene.p.v4, scene.g.v4).ok()
            })
            .0;
            let open = OpenBytes::new(P, id).message().bytes;
            if round % 2 == 0 {
                ours.send(&open);
                theirs.send(&open);
            } else {
                theirs.send(&open);
                ours.send(&open);
            }
            let (winner, loser) =
                if theirs_wins { (&mut theirs, &mut ours) } else { (&mut ours, &mut theirs) };
            assert_eq!(winner.message(secs(5)).kind(), MessageKind::Open);
            let end = loser.drain(secs(1));
            let end = end.last().and_then(Message::code);
            assert!(end.is_none() || end == Some((6, 7)), "{id} {round}: {end:?}");
            winner.keepalive();
            winner.keep_alive(secs(1));
            assert_eq!(winner.message(secs(5)).kind(), MessageKind::Keepalive, "{id} {round}");
            winner.update_of(VIP);
            assert!(
                matches!(loser.read(secs(1)), Read::Closed | Read::Reset),
                "{id} {round}: two connections live"
            );
        }
    }
}

#[test]
fn two_ends_that_start_together_meet_every_time() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let config = Announcer::new(&g, G).neighbor(l.v4, P, "").vip("web", &[VIP], "/", WITHDRAW);
    let bird = l.spawn(bird(P, &[Neighbor::new(g.v4, G)]));
    let daemon = g.spawn(config.spec());
    let mut slowest = Duration::ZERO;
    for round in 0..8 {
        let took = until("the VIP is known", secs(8), || bird.learned(g.v4) == 1);
        slowest = slowest.max(took);
        let sessions = g.run("ss -Htn state established '( sport = :179 or dport = :179 )'");
        assert_eq!(sessions.lines().count(), 1, "round {round}: {sessions}");
        daemon.kill();
        bird.kill();
        bird.start_again();
        daemon.start_again();
    }
    println!("slowest meeting {:.2} s", slowest.as_secs_f64());
}

#[test]
fn an_ipv6_route_over_ipv4_has_its_global_next_hop_of_16_octets() {
    let Some(lab) = lab!("standfast") else { return };
    let scene = Scene::new(&lab, G, |c| c.vip("web", &[VIP6], "/", WITHDRAW));
    let mut session = scene.establish();
    let (message, update) = session.update_of(VIP6);
    assert_eq!(update.next_hop, Some(scene.g.v6.into()));
    let reach = &update.attributes[&14];
    assert_eq!(reach[..5], [0, 2, 1, 16, 0x20], "{message:?}");
    assert!(!update.attributes.contains_key(&3), "{message:?}");
}

#[test]
fn a_route_refresh_is_answered_once_with_what_is_announced() {
    let Some(lab) = lab!("standfast") else { return };
    let drain = lab.file("drain");
    std::fs::write(&drain, "").expect("the drain file");
    let (up, worse, down) = ("198.51.100.1/32", "198.51.100.2/32", "198.51.100.3/32");
    let scene = Scene::new(&lab, G, |c| {
        c.vip("up", &[up], "/up", WITHDRAW).vip("worse", &[worse], "/worse", &policy(&drain)).vip(
            "down",
            &[down],
            "/down",
            WITHDRAW,
        )
    });
    scene.service.set("/down", false);
    let mut session = scene.acceptor.accept(secs(10));
    let mut only_v4 = Scene::open();
    only_v4.capabilities.remove(1);
    session.establish(&only_v4);
    let mut told = Table::default();
    until("the first dump is over", secs(10), || {
        told.apply(&session.drain(secs(1)));
        told.0.len() == 2
    });
    session.send_hex("M 0017 05 00010001");
    let answer = updates(&session.drain(secs(2)));
    let mut mentioned: Vec<_> = answer.iter().flat_map(|u| u.announced.clone()).collect();
    mentioned.sort();
    assert_eq!(mentioned, [up, worse], "{answer:#?}");
    assert!(answer.iter().all(|update| update.withdrawn.is_empty()), "{answer:#?}");
    assert!(
        answer.iter().any(|update| update.announced == [worse] && update.as_path(4) == [G; 4]),
        "{answer:#?}"
    );
    // A family that was never agreed.
    session.send_hex("M 0017 05 00020001");
    assert!(updates(&session.drain(secs(2))).is_empty());
    for _ in 0..1000 {
        session.send_hex("M 0017 05 00010001");
    }
    let burst = session.drain(secs(3));
    assert!(burst.iter().all(|message| message.code().is_none()), "{burst:?}");
    let answers = updates(&burst).len();
    println!("1,000 requests brought {answers} UPDATEs");
    assert!((2..=10).contains(&answers), "{answers} UPDATEs");
}

#[test]
fn two_thousand_prefixes_with_many_communities_follow_one_check_completely() {
    let Some(lab) = lab!(alone; "standfast") else { return };
    let v4: Vec<_> = (0..1500).map(|n| format!("10.{}.{}.1/32", n / 250, n % 250)).collect();
    let v6: Vec<_> = (0..500).map(|n| format!("2001:db8:100::{n:x}:1/128")).collect();
    let all: Vec<_> = v4.iter().chain(&v6).map(String::as_str).collect();
    let communities: Vec<_> = (0..32).map(|n| format!("\"64513:{n}\"")).collect();
    let policy = format!(
        "policy: {{ fail_action: withdraw, announce: {{ communities: [{}] }} }}",
        communities.join(", ")
    );
    let scene = Scene::new(&lab, G, |c| c.vip("many", &all, "/", &policy));
    let mut session = scene.establish();
    let mut table = Table::default();
    let mut turn = |good: bool, wanted: usize| {
        scene.service.set("/", good);
        let start = Instant::now();
        while table.0.len() != wanted {
            let message = session.message(secs(5));
            assert!(message.bytes.len() <= 4096, "{} octets", message.bytes.len());
            table.apply(&[message]);
            assert!(start.elapsed() < secs(5), "{} of {wanted}", table.0.len());
        }
        start.elapsed()
    };
    let took = [turn(true, 2000), turn(false, 0), turn(true, 2000)];
    println!("up, down, up in {took:.2?}");
    assert!(took[1] + took[2] < secs(6));
    let more = session.drain(Duration::from_millis(500));
    assert!(updates(&more).is_empty(), "more followed: {more:?}");
}

#[test]
fn checks_that_turn_together_lose_no_change() {
    let Some(lab) = lab!("standfast") else { return };
    let names: Vec<_> =
        (1..=12).map(|n| (format!("v{n}"), format!("198.51.100.{n}/32"), format!("/{n}"))).collect();
    let scene = Scene::new(&lab, G, |mut c| {
        for (name, prefix, path) in &names {
            c = c.vip(name, &[prefix], path, WITHDRAW);
        }
        c
    });
    let mut session = scene.establish();
    let mut table = Table::default();
    for round in 0..6 {
        let wanted: Vec<_> =
            names.iter().enumerate().filter(|(n, _)| round == 0 || (n + round) % 3 > 0).collect();
        for (n, (_, _, path)) in names.iter().enumerate() {
            scene.service.set(path, round == 0 || (n + round) % 3 > 0);
        }
        until("the table is what is healthy", secs(5), || {
            table.apply(&session.drain(Duration::from_millis(20)));
            table.0.len() == wanted.len()
                && wanted.iter().all(|(_, (_, prefix, _))| table.0.contains_key(prefix))
        });
    }
}
