//! Members that are back before the listener has heard that they were gone, and what merely looks like it.
//!
//! The listener is `l` (192.0.2.1, AS 64512); the member is 192.0.2.11 of AS 64513.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const L: u32 = 64512;
const G: u32 = 64513;
const ANY: &str = "192.0.2.0/24";
/// Says nothing to a host whose connection it does not know, as a filter that tracks connections does.
const MUTE: &str = "nft 'table inet mute { chain out { type filter hook output priority 0; tcp flags & rst == rst drop; }; }'";

/// How often the member's session came up.
fn sessions(listener: &Daemon) -> usize {
    let log = listener.log();
    log.lines().filter(|line| line.contains("member 192.0.2.11") && line.contains("established: AS")).count()
}

fn routed(l: &Host) -> bool {
    l.next_hops(VIP).contains(&Ipv4Addr::new(192, 0, 2, 11).into())
}

fn announcer(host: &Host, l: &Host, more: &str) -> (Service, Daemon) {
    let service = Service::start(host, (Ipv4Addr::LOCALHOST, 80));
    let config = Announcer::new(host, G).bgp("hold_time: 30s").neighbor(l.v4, L, more);
    let config = config.vip("web", &[VIP], "/", WITHDRAW);
    (service, host.spawn(config.spec()))
}

/// The member's host vanishes without a word, and one with its address takes its place. Gives the time from the start of the new
/// member to its session.
fn reboot(lab: &Lab, more: &str, filter: &str) -> Duration {
    let (l, old) = (lab.host("l", 1), lab.host("old", 11));
    let comma = if more.is_empty() { "" } else { ", " };
    // A third of it is long: nobody is believed for silence here.
    let range = format!("name: members, range: {ANY}, peer_asn: {G}, hold_time: 30s{comma}{more}");
    let listener = l.spawn(accepting(&l, &[&range]));
    let _old = announcer(&old, &l, more);
    until("routed", secs(10), || routed(&l));
    assert_eq!(sessions(&listener), 1);
    lab.cut(&old);
    let new = lab.host("new", 11);
    new.run(filter);
    let start = Instant::now();
    let _new = announcer(&new, &l, more);
    until("the new member has a session", secs(12), || sessions(&listener) == 2);
    let took = start.elapsed();
    println!(
        "a session {took:.3?} after the start ({more}; {})",
        if filter == "true" { "RST" } else { "mute" }
    );
    until("routed", secs(5), || routed(&l));
    while_holds("it stays", secs(4), || routed(&l));
    assert_eq!(sessions(&listener), 2);
    took
}

#[test]
fn a_member_whose_host_rebooted_is_back_within_2_s_although_its_old_session_still_stands() {
    let Some(lab) = lab!("standfast") else { return };
    assert!(reboot(&lab, "", "true") < secs(2));
}

#[test]
fn one_whose_filter_denies_nothing_is_back_too() {
    let Some(lab) = lab!("standfast") else { return };
    // A second without an acknowledgment, and a bit.
    assert!(reboot(&lab, "", MUTE) < secs(5));
}

#[test]
fn one_with_a_key_is_back_too() {
    let Some(lab) = lab!("standfast") else { return };
    assert!(reboot(&lab, "auth_password: k1", "true") < secs(4));
}

#[test]
fn one_with_bfd_is_back_too() {
    let Some(lab) = lab!("standfast") else { return };
    assert!(reboot(&lab, "bfd: { interval: 300ms, multiplier: 5 }", "true") < secs(5));
}

#[test]
fn a_frozen_process_gives_way_to_another_one_on_its_host_once_its_keepalive_is_overdue() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let listener = l.spawn(listener(&l, ANY, ""));
    let (_service, frozen) = announcer(&g, &l, "");
    until("routed", secs(10), || routed(&l));
    frozen.process().signal(Signal::SIGSTOP);
    let start = Instant::now();
    let mut other = Session::dial(&g, g.v4, l.v4).expect("a connection");
    other.send(&OpenBytes::new(G, g.v4).message().bytes);
    other.keep_alive(secs(1));
    until("the other one has a session", secs(8), || sessions(&listener) == 2);
    // The hold time would have ended the old one after 9 s, and the other one would have been refused before.
    println!("a session {:.3?} after the freeze", start.elapsed());
    frozen.process().signal(Signal::SIGCONT);
    // It is told why it lost its session, and does not get it back by dialling again and again.
    while_holds("the other one stays", secs(8), || sessions(&listener) == 2);
    until("what goes on is told", secs(25), || {
        listener.log().contains("look for another speaker that has the address")
    });
    drop(other);
    until("the first one is back once the other one has gone", secs(35), || sessions(&listener) == 3);
}

#[test]
fn no_connection_ends_a_session_that_is_alive_whatever_is_said_on_it() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let listener = l.spawn(listener(&l, ANY, ""));
    let _member = announcer(&g, &l, "");
    until("routed", secs(10), || routed(&l));
    let monitor = l.process("routes", &["stdbuf", "-oL", "ip", "-o", "monitor", "route"], &[]);
    let good = OpenBytes::new(G, g.v4);
    let says: [Vec<u8>; 6] = [
        Vec::new(),
        good.message().bytes[..25].to_vec(),
        vec![0x55; 4000],
        OpenBytes::new(G + 1, g.v4).message().bytes,
        OpenBytes::new(G, Ipv4Addr::new(10, 9, 8, 7)).message().bytes,
        Message::new(3, &[6, 2]).bytes,
    ];
    for _ in 0..20 {
        for octets in &says {
            let Ok(mut session) = Session::dial(&g, g.v4, l.v4) else { continue };
            session.send(octets);
            session.drain(Duration::from_millis(10));
        }
    }
    // With everything that the member itself would say it waits for the member's next word, and is refused by that.
    for _ in 0..3 {
        let mut session = Session::dial(&g, g.v4, l.v4).expect("a connection");
        session.send(&good.message().bytes);
        session.keepalive();
        let answer = session.drain(secs(5));
        assert_eq!(answer.last().and_then(Message::code), Some((6, 7)), "{answer:?}");
    }
    assert_eq!(sessions(&listener), 1);
    assert!(routed(&l) && !monitor.log().contains("198.51.100.10"), "{}", monitor.log());
}
