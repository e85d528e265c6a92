//! The laboratory itself, with foreign daemons alone: what it reports about others can be trusted.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const VIP6: &str = "2001:db8:100::10/128";

/// The three routers learn the same from one announcer, and the lab reads the same from each.
fn route_is_read_from(lab: &Lab, kind: Kind) {
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let capture = l.capture("eth0");
    let router = l.spawn(router(kind, 64512, &[Neighbor::new(g.v4, 64513)]));
    assert_eq!(router.route(VIP), None);
    assert!(!router.established(g.v4));
    let announcer = g.spawn(exabgp(
        64513,
        l.v4,
        64512,
        &[
            "route 198.51.100.10/32 next-hop self as-path [ 64513 64513 ] med 7 community [ 64513:100 64513:200 ] \
             large-community [ 64513:1:2 ]",
            "route 2001:db8:100::10/128 next-hop 2001:db8::11",
        ],
    ));
    until("both routes are there", secs(20), || router.route(VIP).is_some() && router.route(VIP6).is_some());
    assert!(router.established(g.v4));
    let route = router.route(VIP).expect("the route");
    assert_eq!(route.as_path, [64513, 64513]);
    assert_eq!(route.communities, [(64513, 100), (64513, 200)]);
    assert_eq!(route.large, [(64513, 1, 2)]);
    assert_eq!(route.med, Some(7));
    assert_eq!(route.next_hop, Some(g.v4.into()));
    assert_eq!(router.route(VIP6).expect("the route").next_hop, Some(g.v6.into()));
    announcer.kill();
    until("both routes are gone", secs(12), || router.route(VIP).is_none() && router.route(VIP6).is_none());
    let events = capture.finish();
    let told: Vec<_> = events
        .iter()
        .filter(|event| event.from.ip() == g.v4)
        .filter_map(|event| event.message()?.update())
        .collect();
    let v4 = told.iter().find(|update| update.announced == [VIP]).expect("the UPDATE on the wire");
    assert_eq!(v4.as_path(4), [64513, 64513]);
    assert_eq!(v4.communities(), [(64513, 100), (64513, 200)]);
    assert!(v4.classic);
    let v6 = told.iter().find(|update| update.announced == [VIP6]).expect("the UPDATE on the wire");
    assert_eq!(v6.next_hop, Some(g.v6.into()));
    assert!(!v6.classic);
    assert!(events.iter().any(|event| event.what == Seen::Syn));
    assert!(events.iter().any(|event| matches!(event.what, Seen::Fin | Seen::Reset)));
}

#[test]
fn bird_and_the_wire_agree() {
    let Some(lab) = lab!("bird", "exabgp") else { return };
    route_is_read_from(&lab, Kind::Bird);
}

#[test]
fn frr_and_the_wire_agree() {
    let Some(lab) = lab!("frr", "exabgp") else { return };
    route_is_read_from(&lab, Kind::Frr);
}

#[test]
fn gobgp_and_the_wire_agree() {
    let Some(lab) = lab!("gobgp", "exabgp") else { return };
    route_is_read_from(&lab, Kind::Gobgp);
}

#[test]
fn a_key_and_a_router_between_work() {
    let Some(lab) = lab!("bird") else { return };
    let (l, r) = (lab.host("l", 1), lab.host("r", 2));
    let g = lab.bare("g", Ipv4Addr::new(198, 18, 0, 11), Ipv6Addr::LOCALHOST);
    lab.link((&r, "south", "198.18.0.1/24"), (&g, "north", "198.18.0.11/24"));
    r.sysctl("net/ipv4/ip_forward", "1");
    g.run("ip route add default via 198.18.0.1");
    l.run("ip route add 198.18.0.0/24 via 192.0.2.2");
    let far = Neighbor::new(g.v4, 64513).multihop().password("k1");
    let near = Neighbor::new(l.v4, 64512).multihop().password("k1");
    let left = l.spawn(bird(64512, &[far]));
    let right = g.spawn(bird(64513, &[near.told(vec![VIP.to_owned()])]));
    until("the route is there", secs(20), || left.route(VIP).is_some());
    assert_eq!(left.route(VIP).expect("the route").as_path, [64513]);
    assert_eq!(left.learned(g.v4), 1);
    assert!(right.established(l.v4));
    right.stop();
    until("the route is gone", secs(5), || left.route(VIP).is_none());
    right.start_again();
    until("the route is back", secs(20), || left.route(VIP).is_some());
}

#[test]
fn a_pulled_cable_carries_nothing_until_it_is_plugged_in() {
    let Some(lab) = lab!() else { return };
    let (a, b) = (lab.host("a", 1), lab.host("b", 2));
    let bind = |host: &Host| host.enter(|| UdpSocket::bind((host.v4, 4000)).expect("a socket"));
    let (from, to) = (bind(&a), bind(&b));
    to.set_read_timeout(Some(Duration::from_millis(50))).expect("a socket option");
    let arrived = || {
        (0..40).for_each(|_| drop(from.send_to(&[0], (b.v4, 4000))));
        (0..40).take_while(|_| to.recv(&mut [0]).is_ok()).count()
    };
    until("the first packets pass", secs(5), || arrived() == 40);
    lab.cut(&b);
    assert_eq!(arrived(), 0);
    lab.mend(&b);
    until("the cable works again", secs(5), || arrived() == 40);
    lab.loss(&b, 100);
    assert_eq!(arrived(), 0);
    lab.loss(&b, 50);
    assert!((1..40).contains(&arrived()));
    lab.loss(&b, 0);
    assert_eq!(arrived(), 40);
}

#[test]
fn a_scripted_peer_and_bird_speak() {
    let Some(lab) = lab!("bird") else { return };
    let (l, p) = (lab.host("l", 1), lab.host("p", 11));
    let bird = l.spawn(bird(64512, &[Neighbor::new(p.v4, 64513).passive().told(vec!["10.1.0.0/16".into()])]));
    let mut session = until_some("a connection", secs(5), || Session::dial(&p, p.v4, l.v4).ok()).0;
    // No capabilities at all: AS numbers of two octets, and AS4_PATH tells the rest.
    session.establish_with(&hex("M 001d 01 04fc010009c000020b00"));
    let update = session.next(secs(5)).update().expect("an UPDATE");
    assert_eq!(update.announced, ["10.1.0.0/16"]);
    assert_eq!(update.as_path(2), [64512]);
    assert_eq!(session.next(secs(5)).update().expect("an UPDATE").end_of_rib, Some(1));
    session.send_hex(
        "M 003d 02 0000 0021 40010100 40020602 02fc015ba0 400304c000020b c0110a0202 0000fc01fa56ea0c 20c633640a",
    );
    until("the route is there", secs(5), || bird.route(VIP).is_some());
    assert_eq!(bird.route(VIP).expect("the route").as_path, [64513, 4_200_000_012]);
    session.send_hex("M 0017 02 0002 080a");
    let end = session.next(secs(5));
    assert_eq!(end.notification().map(|(code, subcode, _)| (code, subcode)), Some((3, 1)), "{end:?}");
    until("the route is gone", secs(5), || bird.route(VIP).is_none());
}

#[test]
fn an_acceptor_takes_what_bird_dials() {
    let Some(lab) = lab!("bird") else { return };
    let (l, p) = (lab.host("l", 1), lab.host("p", 11));
    let acceptor = Acceptor::with_buffer(&p, p.v4, Some(1024));
    let bird = l.spawn(bird(64512, &[Neighbor::new(p.v4, 64513)]));
    let mut session = acceptor.accept(secs(5));
    session.establish(&OpenBytes::new(64513, p.v4));
    until("BIRD believes it", secs(5), || bird.established(p.v4));
    assert_eq!(session.drain(Duration::from_millis(300)).iter().filter_map(Message::update).count(), 2);
    session.fall_silent();
    let end = session.next(secs(12));
    assert_eq!(end.notification().map(|(code, _, _)| code), Some(4), "{end:?}");
}

#[test]
fn services_are_as_good_as_told() {
    let Some(lab) = lab!("nginx") else { return };
    let g = lab.host("g", 11);
    let nginx = g.spawn(nginx());
    let at = |port| SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port);
    assert_eq!(g.get(at(80), "/healthz").map(|answer| answer.0), Some(200));
    assert_eq!(g.get(at(80), "/nowhere").map(|answer| answer.0), Some(404));
    nginx.stop();
    assert_eq!(g.get(at(80), "/healthz"), None);
    nginx.start_again();
    assert_eq!(g.get(at(80), "/healthz").map(|answer| answer.0), Some(200));

    let service = Service::start(&g, at(8080));
    assert_eq!(g.get(at(8080), "/healthz").map(|answer| answer.0), Some(200));
    service.set("/healthz", false);
    assert_eq!(g.get(at(8080), "/healthz").map(|answer| answer.0), Some(503));
    assert_eq!(g.get(at(8080), "/other").map(|answer| answer.0), Some(200));
    assert_eq!(service.requests(), 3);
}

#[test]
fn nothing_of_a_lab_outlives_it() {
    let Some(lab) = lab!("bird") else { return };
    let l = lab.host("l", 1);
    let bird = l.spawn(bird(64512, &[]));
    let process = bird.process();
    let lab_id = format!("{}-", lab.id());
    let (pid, dir) = (process.pid(), bird.config().parent().expect("a directory").to_owned());
    let spaces = || {
        let names = std::process::Command::new("ip").args(["netns", "list"]).output().expect("ip runs");
        String::from_utf8_lossy(&names.stdout).matches(lab_id.as_str()).count()
    };
    assert_eq!(spaces(), 2);
    let panicked = std::thread::spawn(move || {
        let _lab = lab;
        std::panic::resume_unwind(Box::new("a failing test"));
    });
    assert!(panicked.join().is_err());
    assert!(!process.alive());
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    assert!(!dir.exists());
    assert_eq!(spaces(), 0);
}

#[test]
fn what_is_missing_is_named() {
    assert_eq!(missing(&["sh"]), None);
    assert_eq!(missing(&["sh", "no-such-program"]), Some("needs no-such-program".into()));
    assert_eq!(missing(&["/no/such/file"]), Some("needs /no/such/file".into()));
}

#[test]
fn a_test_that_lacks_something_is_skipped_aloud_and_on_record() {
    let record = std::env::temp_dir().join(format!("sfl-skips-{}", std::process::id()));
    let out = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "bird_and_the_wire_agree"])
        .env("PATH", "/nonexistent")
        .env("LAB_SKIPS", &record)
        .output()
        .expect("this program runs");
    let line = std::fs::read_to_string(&record).expect("a record");
    std::fs::remove_file(&record).expect("the record");
    assert!(line.starts_with("harness::bird_and_the_wire_agree: needs "), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(out.status.success());
    assert!(String::from_utf8_lossy(&out.stderr).contains(&format!("SKIP {}", line.trim())), "{out:?}");
}

#[test]
fn connections_that_break_behind_bird_are_told() {
    let Some(lab) = lab!("bird") else { return };
    let fleet = Fleet::new(&lab, 1, 4);
    fleet.listeners[0].spawn(fleet.bird());
    let members = fleet.members();
    fleet.routed(0, &[0, 1, 2, 3]);
    for (v6, nth) in [(false, 0), (true, 3)] {
        let target = Fleet::target(v6);
        let flows = Flows::open(&fleet.client, target, 200);
        let before = flows.look();
        assert_eq!(Fate::of(&before, &flows.look(), |_| true), Fate { of: 200, broken: 0 });
        members[nth].tell(None);
        let others: Vec<_> = (0..4).filter(|&other| other != nth).collect();
        fleet.routed(0, &others);
        std::thread::sleep(Duration::from_millis(300));
        let after = flows.look();
        let left = fleet.gateways[nth].name.clone();
        // All of those that were on it, and a third of the others: the parts of the hash have other borders.
        let own = Fate::of(&before, &after, |gateway| gateway == left);
        assert!(own.of > 20 && own.broken == own.of, "{own:?}");
        let others = Fate::of(&before, &after, |gateway| gateway != left);
        assert!(others.broken * 10 > others.of && others.broken * 2 < others.of, "{others:?}");
        assert!(after.iter().all(|flow| flow.broken.is_none_or(|how| how == Broken::Reset)));
        let found = land(&fleet.client, target, 60);
        assert!(!found.contains_key(&left) && !found.contains_key("") && found.len() == 3, "{found:?}");
        members[nth].tell(Some(Told::default()));
        fleet.routed(0, &[0, 1, 2, 3]);
    }
}
