//! Memory of an announcer with 50 VIPs and two peers, before and after each peer has told it 10,000 routes.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use standfast_lab::{Acceptor, Announcer, Host, Message, OpenBytes, Session, WITHDRAW, secs};

use crate::Bench;
use crate::sample::Row;
use crate::speaker::{Kind, MEMBER, ROUTER, Speaker};

const VIPS: u8 = 50;
const ROUTES: u32 = 10_000;
/// Routes in one UPDATE: 5 octets each, in at most 4096.
const BATCH: u32 = 500;

/// Each announcer in turn, between the same two scripted peers.
pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    [Kind::Standfast, Kind::Bird, Kind::Gobgp].into_iter().flat_map(|kind| weigh(bench, kind)).collect()
}

fn weigh(bench: &Bench, kind: Kind) -> Vec<Row> {
    eprintln!("          {}", kind.name());
    let lab = crate::alone("bench: memory");
    let (a, b, g) = (lab.host("a", 1), lab.host("b", 2), lab.host("g", 11));
    accept_and_close(&g);
    let prefixes: Vec<_> = (1..=VIPS).map(|n| format!("198.51.100.{n}/32")).collect();
    let routers = [a.v4, b.v4];
    let speaker = match kind {
        Kind::Standfast => {
            let mut config = Announcer::new(&g, MEMBER).neighbor(a.v4, ROUTER, "").neighbor(b.v4, ROUTER, "");
            for (nth, prefix) in prefixes.iter().enumerate() {
                config = config.vip_with(&format!("v{nth}"), &[prefix], CHECK, WITHDRAW);
            }
            Speaker::standfast(&lab, &g, &bench.standfast, &config)
        }
        Kind::Bird => Speaker::bird(&lab, &g, &routers, prefixes),
        Kind::Gobgp => Speaker::gobgp(&lab, &g, &routers, prefixes),
    };
    let acceptors = [&a, &b].map(|host| (host.v4, Acceptor::new(host, host.v4)));
    let running = speaker.start();
    let mut sessions: Vec<(Ipv4Addr, Session)> = acceptors
        .iter()
        .map(|(address, acceptor)| {
            let mut session = acceptor.accept(secs(20));
            session.establish(&OpenBytes::new(ROUTER, *address));
            (*address, session)
        })
        .collect();
    let all = |session: &mut Session| {
        let (start, mut told) = (Instant::now(), 0);
        while told < usize::from(VIPS) {
            assert!(start.elapsed() < secs(20), "{} told {told} VIPs: {}", kind.name(), speaker.log());
            let messages = session.drain(Duration::from_millis(100));
            told += messages.iter().filter_map(Message::update).map(|u| u.announced.len()).sum::<usize>();
        }
    };
    sessions.iter_mut().for_each(|(_, session)| all(session));
    // Several rounds of checks.
    std::thread::sleep(secs(4));
    let (rss, pss) = running.memory();
    for (address, session) in &mut sessions {
        for first in (0..ROUTES).step_by(BATCH as usize) {
            session.send(&update(first, *address).bytes);
        }
    }
    std::thread::sleep(secs(3));
    let (after, _) = running.memory();
    let name = kind.name();
    vec![
        Row::memory("RSS, 50 VIPs and 2 peers", name, rss),
        Row::memory("PSS, the same", name, pss),
        Row::memory("RSS after each peer has told 10,000 routes", name, after),
    ]
}

/// An UPDATE that announces a batch of single addresses from `first` on.
fn update(first: u32, next_hop: Ipv4Addr) -> Message {
    let mut body = vec![0, 0];
    let mut attributes = vec![0x40, 1, 1, 0, 0x40, 2, 6, 2, 1];
    attributes.extend_from_slice(&ROUTER.to_be_bytes());
    attributes.extend_from_slice(&[0x40, 3, 4]);
    attributes.extend_from_slice(&next_hop.octets());
    body.extend_from_slice(&u16::try_from(attributes.len()).expect("few attributes").to_be_bytes());
    body.extend_from_slice(&attributes);
    for n in first..first + BATCH {
        body.push(32);
        body.extend_from_slice(&(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + n).to_be_bytes());
    }
    Message::new(2, &body)
}

/// What the checks connect to, until the program ends.
fn accept_and_close(host: &Host) {
    let listener = host.enter(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 80))).expect("a listening socket");
    std::thread::spawn(move || listener.incoming().for_each(drop));
}

const CHECK: &str = "check: { type: tcp, interval: 1s, timeout: 300ms, rise: 1, fall: 1, \
                     tcp: { host: 127.0.0.1, port: 80 } }";
