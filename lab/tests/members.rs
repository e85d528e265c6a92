//! Members that come from everywhere at once, and members that mean harm: whatever they do, the others' routes stay, a change
//! takes no longer, and nothing grows.
//!
//! The listener is `l` (192.0.2.1, AS 64512); members dial it from AS 64513.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
/// The VIP of the member whose changes are timed.
const OTHER: &str = "198.51.100.20/32";
const VIP6: &str = "2001:db8:100::10/128";
const G: u32 = 64513;

const ANYONE: &str = "name: any, range: 192.0.2.0/24, peer_asn: external";

fn member(host: &Host, from: Ipv4Addr, l: &Host) -> Session {
    let (mut session, _) =
        until_some("the listener accepts", secs(5), || Session::dial(host, from, l.v4).ok());
    session.establish(&OpenBytes::new(G, from));
    session
}

fn has(l: &Host, prefix: &str, hop: Ipv4Addr) -> bool {
    l.next_hops(prefix).contains(&IpAddr::V4(hop))
}

fn has6(l: &Host, prefix: &str, hop: Ipv6Addr) -> bool {
    l.next_hops(prefix).contains(&IpAddr::V6(hop))
}

fn members(l: &Host) -> Vec<Value> {
    l.status()["listener"]["members"].as_array().expect("members").clone()
}

#[test]
fn members_announce_the_vips_of_their_range_alone() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, a, b) = (lab.host("l", 1), lab.host("a", 11), lab.host("b", 12));
    let first = "name: web, range: 192.0.2.8/30, peer_asn: external, vips: [web]";
    let second = "name: others, range: 192.0.2.0/24, peer_asn: external, vips: [other, web6]";
    l.spawn(accepting(&l, &[first, second]));
    let (mut one, mut two) = (member(&a, a.v4, &l), member(&b, b.v4, &l));
    for (session, host) in [(&mut one, &a), (&mut two, &b)] {
        for nlri in ["20c633640a", "20c6336414"] {
            session.send(&announce_nlri(host.v4, G, nlri, &[]));
        }
    }
    until("each for its own", secs(3), || has(&l, VIP, a.v4) && has(&l, OTHER, b.v4));
    while_holds("and for no other", secs(1), || !has(&l, VIP, b.v4) && !has(&l, OTHER, a.v4));
    for member in members(&l) {
        assert_eq!(member["ignored"], 1, "{member}");
        assert_eq!(member["announces"].as_array().map(Vec::len), Some(1), "{member}");
    }
}

#[test]
fn connections_that_say_nothing_keep_no_member_out() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, a, x) = (lab.host("l", 1), lab.host("a", 11), lab.host("x", 66));
    let many: Vec<_> = (100..200).map(|n| Ipv4Addr::new(192, 0, 2, n)).collect();
    x.run("for n in $(seq 100 199); do ip address add 192.0.2.$n/24 dev eth0; done");
    let accept = format!("{ANYONE}, max_members: 2, max_opening: 16, open_timeout: 2s");
    let daemon = l.spawn(accepting(&l, &[&accept]));
    let process = daemon.process();
    let descriptors = process.descriptors();
    // Silent ones, one that gets as far as its OPEN, and all of them three times over.
    let mut silent = Vec::new();
    for (nth, address) in many.iter().cycle().take(300).enumerate() {
        let Ok(mut session) = Session::dial(&x, *address, l.v4) else { continue };
        if nth % 3 == 0 {
            session.send(&OpenBytes::new(G, *address).message().bytes);
        }
        silent.push(session);
    }
    assert!(silent.len() > 250, "only {} connections opened", silent.len());
    let start = Instant::now();
    let mut steady = member(&a, a.v4, &l);
    steady.send(&announce_nlri(a.v4, G, "20c633640a", &[]));
    until("a member is taken in the midst of them", secs(3), || has(&l, VIP, a.v4));
    println!("routed {:.3?} after it dialled, beside {} silent connections", start.elapsed(), silent.len());
    until("the others are let go in time", secs(6), || process.descriptors() <= descriptors + 2);
    assert!(silent.iter_mut().all(|s| {
        s.drain(secs(1));
        matches!(s.read(secs(1)), Read::Closed | Read::Reset)
    }));
    let lines = daemon.log().lines().count();
    assert!(lines < 150, "{lines} lines in the log");
    // The second place is still to be had, a third is not; and who is refused once is no worse off later.
    let second = member(&x, many[0], &l);
    let mut third = Session::dial(&x, many[1], l.v4);
    if let Ok(third) = &mut third {
        third.send(&OpenBytes::new(G, many[1]).message().bytes);
        third.keepalive();
        let answer = third.drain(secs(1));
        assert!(answer.iter().all(|m| m.kind() != MessageKind::Keepalive), "{answer:?}");
    }
    drop((second, third));
    let mut sessions = Vec::new();
    until("the place that became free is taken", secs(5), || {
        if let Ok(mut third) = Session::dial(&x, many[1], l.v4) {
            third.send(&OpenBytes::new(G, many[1]).message().bytes);
            third.keepalive();
            third.send(&announce_nlri(many[1], G, "20c633640a", &[]));
            sessions.push(third);
        }
        std::thread::sleep(Duration::from_millis(200));
        has(&l, VIP, many[1])
    });
}

/// What no UPDATE may hold, each as further attributes of one that announces the VIP.
fn bad_attributes() -> Vec<Vec<u8>> {
    [
        "400101 05",
        "4001020000",
        "400101 00 40010100",
        "400202 01ff",
        "400206 0200 0000fc01",
        "400206 0301 0000fc01 ",
        "400303 c00002",
        "400304 00000000",
        "400304 7f000001",
        "400304 e0000001",
        "800403 000000",
        "800405 0000000000",
        "400503 000000",
        "c0080364 0000",
        "c00805 fc010064 00",
        "c01007 00 04 fc01 000000",
        "c0200b 0000fc01 00000001 000000",
        "e02000",
        "c0070300fc01",
        "800e05 0001010400",
        "800e03 000201",
        "800f02 0002",
        "800e1d 000201 10 fe80000000000000000000000000000b 00 80 2001",
        "90110004 02010000",
        "d0ff ffff 00",
        "c0ff00",
        "40ff0401020304",
        "",
    ]
    .iter()
    .map(|text| hex(text))
    .collect()
}

/// Everything that a member can do wrong, at full speed, for as long as `going`.
fn harm(nth: usize, x: &Host, l: &Host, going: &AtomicBool) -> u64 {
    let mut rounds = 0;
    let bad = bad_attributes();
    let first = 100 + 20 * u8::try_from(nth).expect("few");
    let mut from = (first..first + 20).cycle().map(|n| Ipv4Addr::new(192, 0, 2, n));
    let is_on = || going.load(Ordering::Relaxed);
    while is_on() {
        let address = from.next().expect("one more");
        let Ok(mut session) = Session::dial(x, address, l.v4) else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        session.send(&OpenBytes::new(G, address).message().bytes);
        session.keepalive();
        if session.drain(Duration::from_millis(20)).iter().all(|m| m.kind() != MessageKind::Keepalive) {
            continue;
        }
        rounds += 1;
        match nth {
            // Comes and goes every 50 ms, with a route.
            0 => {
                session.send(&announce_nlri(address, G, "20c633640a", &[]));
                std::thread::sleep(Duration::from_millis(30));
            }
            // Tens of thousands of prefixes that nobody asked for, the VIP by way of others, and a default route.
            1 => {
                for high in 0..200_u8 {
                    let nlri: String =
                        (0..=255_u8).map(|low| format!("18 0a {high:02x} {low:02x} ")).collect();
                    session.send(&announce_nlri(address, G, &nlri, &[]));
                    session.send(&announce_nlri(Ipv4Addr::new(192, 0, 2, 11), G, "20c633640a", &[]));
                    session.send(&announce_nlri(address, G, "00", &[]));
                    if !is_on() {
                        break;
                    }
                }
            }
            // The VIP there and away again, and with every other preference, as fast as it is taken.
            2 => {
                let storm: Vec<u8> = (0..200_u32)
                    .flat_map(|n| {
                        let med = [&hex("800404")[..], &n.to_be_bytes()].concat();
                        [announce_nlri(address, G, "20c633640a", &med), withdraw(VIP)].concat()
                    })
                    .collect();
                for _ in 0..100 {
                    session.send(&storm);
                    if !is_on() {
                        break;
                    }
                }
            }
            // What costs an answer, a look or a place: refreshes, KEEPALIVEs, the next hops of those who have not come yet, and again
            // and again a second session beside its own.
            3 => {
                for nth in 0..200_u8 {
                    let round = [
                        hex("M 0017 05 00010001 M 0017 05 00020001 M 0013 04").repeat(20),
                        announce_nlri(Ipv4Addr::new(192, 0, 2, 200 + nth % 50), G, "20c633640a", &[]),
                        announce_via(VIP6, &[0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, nth], G),
                    ]
                    .concat();
                    session.send(&round);
                    session.drain(Duration::ZERO);
                    if nth % 20 == 0
                        && let Ok(mut second) = Session::dial(x, address, l.v4)
                    {
                        second.send(&OpenBytes::new(G, address).message().bytes);
                    }
                    if !is_on() {
                        break;
                    }
                }
            }
            // One malformed UPDATE after the other, until it is thrown out.
            _ => {
                for more in &bad {
                    session.send(&announce_nlri(address, G, "20c633640a", more));
                }
                session.drain(Duration::from_millis(50));
            }
        }
    }
    rounds
}

#[test]
fn a_hostile_member_harms_no_other_and_nothing_grows() {
    let Some(lab) = lab!(alone; "standfast") else { return };
    let (l, a, b, x) = (lab.host("l", 1), lab.host("a", 11), lab.host("b", 12), lab.host("x", 66));
    x.run("for n in $(seq 100 199); do ip address add 192.0.2.$n/24 dev eth0; done");
    let daemon = l.spawn(accepting(&l, &[ANYONE]));
    let process = daemon.process();
    let mut steady = member(&a, a.v4, &l);
    steady.send(&announce_nlri(a.v4, G, "20c633640a", &[]));
    let mut mover = member(&b, b.v4, &l);
    until("the steady one is routed", secs(3), || has(&l, VIP, a.v4));
    let going = AtomicBool::new(true);
    let mut sizes = Vec::new();
    let mut times = Vec::new();
    let mut logged = Vec::new();
    std::thread::scope(|scope| {
        let hostile: Vec<_> = (0..5)
            .map(|nth| {
                let (x, l, going) = (&x, &l, &going);
                scope.spawn(move || harm(nth, x, l, going))
            })
            .collect();
        let start = Instant::now();
        // The first half makes the daemon's memory what it will be; in the second half it may not grow.
        while start.elapsed() < secs(16) {
            for there in [true, false] {
                let begun = Instant::now();
                mover.send(&if there { announce_nlri(b.v4, G, "20c6336414", &[]) } else { withdraw(OTHER) });
                let seen = until_some("a change of the mover", secs(10), || {
                    assert!(has(&l, VIP, a.v4), "the steady member's route is gone");
                    (has(&l, OTHER, b.v4) == there).then_some(())
                });
                let _ = seen;
                times.push(begun.elapsed());
            }
            sizes.push((start.elapsed(), process.rss()));
            logged.push(daemon.log().len());
        }
        going.store(false, Ordering::Relaxed);
        let rounds: Vec<_> = hostile.into_iter().map(|h| h.join().expect("no panic")).collect();
        println!("sessions of each hostile member: {rounds:?}");
        assert!(rounds.iter().all(|&n| n > 2), "{rounds:?}");
    });
    times.sort();
    let (median, slowest) = (times[times.len() / 2], times[times.len() - 1]);
    let half: Vec<_> = sizes.iter().filter(|(at, _)| *at > secs(8)).map(|(_, size)| *size).collect();
    let (first, last) = (half[0], half[half.len() - 1]);
    println!(
        "{} changes of another member, median {median:.3?}, slowest {slowest:.3?}; memory {first} KiB at half time, {last} KiB at the end; {} octets of log",
        times.len(),
        logged.last().copied().unwrap_or(0)
    );
    assert!(slowest < secs(5), "{slowest:?}");
    assert!(median < secs(2), "{median:?}");
    assert!(last < first + 8 * 1024, "memory grows: {sizes:?}");
    assert!(last < 96 * 1024, "memory: {sizes:?}");
    assert!(logged.last() < Some(&(512 * 1024)), "the log grows: {logged:?}");
    for (session, who) in [(&mut steady, "steady"), (&mut mover, "mover")] {
        let later = session.drain(secs(1));
        assert!(
            later.iter().all(|m| m.kind() == MessageKind::Keepalive
                || m.kind() == MessageKind::Update
                || m.kind() == MessageKind::Open),
            "{who}: {later:?}"
        );
    }
    until("only the steady one is left", secs(15), || {
        l.next_hops(VIP) == [IpAddr::from(a.v4)].into() && members(&l).len() == 2
    });
}

#[test]
fn a_listener_that_stood_still_for_longer_than_the_hold_time_keeps_six_hundred_sessions() {
    let Some(lab) = lab!(alone; "standfast") else { return };
    let (l, p) = (lab.host("l", 1), lab.host("p", 11));
    let range = format!("name: crowd, range: 198.18.0.0/15, peer_asn: {G}, max_members: 1000");
    let daemon = l.spawn(accepting(&l, &[&range]));
    let crowd = Crowd::start(&p, &l, 600, G);
    until("all are established", secs(30), || crowd.established() == 600);
    let nlri = "20c633640a";
    for (nth, address) in crowd_addresses(600).into_iter().enumerate().take(8) {
        crowd.send(nth, announce_nlri(address, G, nlri, &[]));
    }
    until("eight carry the VIP", secs(5), || l.next_hops(VIP).len() == 8);
    daemon.process().signal(Signal::SIGSTOP);
    std::thread::sleep(secs(12));
    daemon.process().signal(Signal::SIGCONT);
    while_holds("nobody is thrown out", secs(4), || crowd.ended() == 0 && l.next_hops(VIP).len() == 8);
    assert_eq!(crowd.established(), 600);
    assert_eq!(members(&l).len(), 600);
    let lines = daemon.log().lines().filter(|line| line.contains("established: AS")).count();
    assert_eq!(lines, 600, "a session ended and came back");
}

#[test]
fn a_port_that_is_taken_is_waited_for() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, a) = (lab.host("l", 1), lab.host("a", 11));
    let other = l.enter(|| std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, 179))).expect("the port");
    let daemon = l.spawn(accepting(&l, &[ANYONE]));
    let pending = || l.status()["kernel_pending"].to_string();
    until("it says what it waits for", secs(3), || pending().contains(":179"));
    while_holds("it goes on", secs(2), || daemon.process().alive());
    drop(other);
    let mut session = member(&a, a.v4, &l);
    session.send(&announce_nlri(a.v4, G, "20c633640a", &[]));
    until("routed", secs(3), || has(&l, VIP, a.v4));
    assert_eq!(pending(), "{}");
    let log = daemon.log();
    assert_eq!(log.lines().filter(|line| line.contains("WARN") && line.contains("179")).count(), 1, "{log}");
}

#[test]
fn an_ipv6_vip_over_an_ipv4_session_says_why_it_is_not_routed() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, a) = (lab.host("l", 1), lab.host("a", 11));
    l.run("ip address del 2001:db8::1/64 dev eth0");
    l.spawn(accepting(&l, &[ANYONE]));
    let mut session = member(&a, a.v4, &l);
    session.send(&announce(VIP6, a.v6, &[G], &[]));
    let vip = || members(&l)[0]["vips"][0].clone();
    let group = || {
        l.status()["listener"]["vips"].as_array().expect("VIPs").iter().find(|v| v["name"] == "web6").cloned()
    };
    let group = || group().expect("the VIP");
    until("no link leads there", secs(5), || vip()["state"] == "away");
    assert_eq!(group()["reason"], "192.0.2.11 has a next hop that is on no link of its");
    let add = "ip address add 2001:db8::1/64 dev eth0 nodad";
    l.run(add);
    until("it serves", secs(5), || has6(&l, VIP6, a.v6) && vip()["state"] == "serving");
    until("and nothing stands against it", secs(5), || vip()["unrouted"].is_null());
    // What goes may be back in a moment, so it is not given up: but it is told.
    l.run("ip address del 2001:db8::1/64 dev eth0");
    let why = "the next hop 2001:db8::11 is on no network of this host";
    until("the state says why it is not routed", secs(5), || vip()["unrouted"] == why);
    assert_eq!(group()["hops"][0]["unrouted"], why);
    let program = standfast_bin().expect("a program");
    let table = l.attempt(&format!("{} status --api {API}", program.display()));
    assert!(
        table.contains("web6 serving, NOT ROUTED: ") && table.contains("2001:db8::11 NOT ROUTED"),
        "{table}"
    );
    l.run(add);
    until("it serves again", secs(5), || has6(&l, VIP6, a.v6) && vip()["unrouted"].is_null());
}
