//! Announcers that come and go: from the start to the first UPDATE, and from a signal to the route's end in the router's kernel.

use std::net::Ipv4Addr;
use std::time::Duration;

use nix::sys::signal::Signal;
use standfast_lab::{Service, secs};

use crate::Bench;
use crate::monitor::{Monitor, What};
use crate::sample::Row;
use crate::speaker::{DIALS, Kind, Speaker, VIP, announcer, router};
use crate::tap::Tap;

const CHECK: &str = "check: { type: http, interval: 1s, timeout: 300ms, rise: 1, fall: 1, \
                     http: { host: 127.0.0.1, port: 80, url: \"/\" } }";

/// Each announcer in turn, alone with the router.
pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    [Kind::Standfast, Kind::Bird, Kind::Gobgp].into_iter().flat_map(|kind| lives(bench, kind)).collect()
}

fn lives(bench: &Bench, kind: Kind) -> Vec<Row> {
    eprintln!("          {}", kind.name());
    let lab = crate::alone("bench: lives");
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    l.spawn(router(&l, &[g.v4], DIALS));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let prefix = format!("{VIP}/32");
    let speaker = match kind {
        Kind::Standfast => Speaker::standfast(&lab, &g, &bench.standfast, &announcer(&g, l.v4, CHECK)),
        Kind::Bird => Speaker::bird(&lab, &g, &[l.v4], vec![prefix.clone()]),
        Kind::Gobgp => Speaker::gobgp(&lab, &g, &[l.v4], vec![prefix.clone()]),
    };
    let monitor = Monitor::start(&l);
    let wire = Tap::start(&lab, &l, "eth0", 179);
    let (mut starts, mut terminated, mut killed) = (Vec::new(), Vec::new(), Vec::new());
    for life in 0..bench.lives * 2 {
        let running = speaker.start();
        starts.push(running.started);
        let there = monitor.wait(running.started, secs(30), |what| what == What::Set(VIP));
        assert!(there.is_some(), "{} did not announce: {}", kind.name(), speaker.log());
        std::thread::sleep(SETTLE);
        let (signal, times) =
            if life % 2 == 0 { (Signal::SIGTERM, &mut terminated) } else { (Signal::SIGKILL, &mut killed) };
        let sent = running.signal(signal);
        times.extend(monitor.wait(sent, secs(15), |what| what == What::Removed(VIP)).map(|gone| gone - sent));
        running.wait(secs(10));
    }
    let told: Vec<Duration> = wire
        .finish()
        .iter()
        .filter(|segment| *segment.from.ip() == g.v4 && segment.announces(&prefix))
        .map(|segment| segment.time)
        .collect();
    let mut firsts = Vec::new();
    for (nth, &start) in starts.iter().enumerate() {
        let next = starts.get(nth + 1).copied().unwrap_or(Duration::MAX);
        firsts.extend(told.iter().find(|&&time| time > start && time < next).map(|&time| time - start));
    }
    let mut rows = vec![
        Row::times("SIGTERM to the route gone from BIRD's kernel", kind.name(), bench.lives, &terminated),
        Row::times("SIGKILL to the route gone from BIRD's kernel", kind.name(), bench.lives, &killed),
    ];
    // gobgpd's paths come from its client, so its start says nothing about itself.
    if speaker.kind() != Kind::Gobgp {
        let what = "start of the process to the first announcement on the wire";
        rows.insert(0, Row::times(what, kind.name(), bench.lives * 2, &firsts));
    }
    rows
}

/// Between the route's arrival and the signal: time for both ends to become quiet.
const SETTLE: Duration = Duration::from_millis(150);
