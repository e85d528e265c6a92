//! A thousand idle sessions with hold 9: the processor and the memory that a listener needs for them.

use std::time::{Duration, Instant};

use standfast_lab::{API, CROWDED, Crowd, Daemon, Host, bird_raw, frr_raw, secs, standfast, until};

use crate::Bench;
use crate::sample::{Row, STANDFAST};
use crate::speaker::{MEMBER, ROUTER};

const SESSIONS: usize = 1000;

/// Each listener in turn, with the same crowd.
pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    let rows = [STANDFAST, "BIRD 2.0.12", "FRR 8.4.4"].map(|who| run(bench, who));
    let [a, b, c] = rows;
    a.into_iter().zip(b).zip(c).flat_map(|((a, b), c)| [a, b, c]).collect()
}

fn run(bench: &Bench, who: &'static str) -> Vec<Row> {
    eprintln!("          {who}");
    let lab = crate::alone("bench: sessions");
    let (l, p) = (lab.host("l", 1), lab.host("p", 11));
    // The listeners take what they are told to listen on from the addresses that are there.
    l.run(&format!("ip address add {CROWDED}/15 dev eth0"));
    standfast_lab::many_files();
    let daemon = start(who, &l);
    let processor = |daemon: &Daemon| daemon.processes().iter().map(|p| p.cpu()).sum::<u64>();
    let memory = |daemon: &Daemon| daemon.processes().iter().map(|p| p.rss()).sum::<u64>();
    let rest = memory(&daemon);
    let begun = Instant::now();
    let crowd = Crowd::start(&p, &l, SESSIONS, MEMBER);
    until("all are established", secs(120), || crowd.established() == SESSIONS);
    eprintln!("          {SESSIONS} sessions after {:.2?}", begun.elapsed());
    std::thread::sleep(secs(5));
    let (before, begun) = (processor(&daemon), Instant::now());
    // Five minutes; the short form of the benchmark watches for a fifteenth of that.
    std::thread::sleep(bench.window * 15);
    let hundredths = processor(&daemon) - before;
    let share = Duration::from_millis(10 * hundredths).as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
    let lost = crowd.ended();
    if lost > 0 {
        eprintln!("          {who} lost {lost} sessions meanwhile");
    }
    vec![
        Row::share("1,000 idle sessions with hold 9: processor", who, share),
        Row::memory("RSS before the 1,000 sessions", who, rest),
        Row::memory("RSS with the 1,000 sessions", who, memory(&daemon)),
    ]
}

fn start(who: &str, l: &Host) -> Daemon {
    match who {
        STANDFAST => l.spawn(standfast(&format!(
            "schema: v1\nrouter: {{ asn: {ROUTER}, router_id: {v4}, local_address: {CROWDED} }}\napi: {{ listen: \"{API}\" }}\n\
             bgp:\n  hold_time: 9s\nlistener:\n  accept:\n    - {{ name: crowd, range: 198.18.0.0/15, peer_asn: {MEMBER}, max_members: 2000 }}\n  \
             vips:\n    - {{ name: web, prefix: 198.51.100.10/32, hashing: plain }}\n",
            v4 = l.v4
        ))),
        "FRR 8.4.4" => l.spawn(frr_raw(&format!(
            "router bgp {ROUTER}\n bgp router-id {}\n no bgp ebgp-requires-policy\n bgp listen limit 2000\n\
             \x20neighbor crowd peer-group\n neighbor crowd remote-as {MEMBER}\n neighbor crowd timers 3 9\n\
             \x20bgp listen range 198.18.0.0/15 peer-group crowd\n",
            l.v4
        ))),
        _ => l.spawn(bird_raw(&format!(
            "router id {};\nprotocol device {{}}\nprotocol kernel {{ ipv4 {{ export all; }}; }}\n\
             protocol bgp crowd {{ local {CROWDED} as {ROUTER}; neighbor range 198.18.0.0/15 as {MEMBER};\n\
             dynamic name \"m\"; hold time 9; ipv4 {{ import all; export none; }}; }}\n",
            l.v4
        ))),
    }
}
