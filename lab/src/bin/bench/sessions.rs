//! A thousand idle sessions with hold 9: the processor and the memory that a listener needs for them.
//!
//! It is the listeners' own time that is counted, so they are watched side by side.

use std::time::{Duration, Instant};

use standfast_lab::{
    API, CROWDED, Crowd, Daemon, Host, Lab, bird_raw, crowd_addresses, frr_raw, secs, standfast,
};

use crate::Bench;
use crate::sample::{Row, STANDFAST};
use crate::speaker::{MEMBER, ROUTER};

const SESSIONS: usize = 1000;

/// Each listener with a crowd of its own.
pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    let [a, b, c] = std::thread::scope(|scope| {
        let threads = [STANDFAST, "BIRD 2.0.12", "FRR 8.4.4"].map(|who| scope.spawn(move || run(bench, who)));
        threads.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    a.into_iter().zip(b).zip(c).flat_map(|((a, b), c)| [a, b, c]).collect()
}

fn run(bench: &Bench, who: &'static str) -> Vec<Row> {
    let lab = Lab::new("bench: sessions", false);
    let (l, p) = (lab.host("l", 1), lab.host("p", 11));
    // The listeners take what they are told to listen on from the addresses that are there.
    l.run(&format!("ip address add {CROWDED}/15 dev eth0"));
    known(&l, &p);
    standfast_lab::many_files();
    let daemon = start(who, &l);
    let processor = |daemon: &Daemon| daemon.processes().iter().map(|p| p.cpu()).sum::<u64>();
    let memory = |daemon: &Daemon| daemon.processes().iter().map(|p| p.rss()).sum::<u64>();
    let rest = memory(&daemon);
    let begun = Instant::now();
    let crowd = Crowd::start(&p, &l, SESSIONS, MEMBER);
    // However many come: some may be refused while the listener is busy with the others.
    let (mut count, mut last) = (0, Instant::now());
    while count < SESSIONS && last.elapsed() < secs(20) {
        std::thread::sleep(Duration::from_millis(50));
        if crowd.established() > count {
            (count, last) = (crowd.established(), Instant::now());
        }
    }
    eprintln!("          {who}: {count} sessions after {:.2?}", last - begun);
    std::thread::sleep(secs(5));
    let gone = crowd.ended();
    let (before, begun) = (processor(&daemon), Instant::now());
    // Five minutes; the short form of the benchmark watches for a fifteenth of that.
    std::thread::sleep(bench.idle);
    let hundredths = processor(&daemon) - before;
    let share = Duration::from_millis(10 * hundredths).as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
    eprintln!("          {who}: {} sessions at the end, {} lost", crowd.established(), crowd.ended() - gone);
    vec![
        Row::share("1,000 idle sessions with hold 9: processor", who, share),
        Row::memory("RSS before the 1,000 sessions", who, rest),
        Row::memory("RSS with the 1,000 sessions", who, memory(&daemon)),
    ]
}

/// Tells a listener the link address of its crowd: what it would ask for by itself counts for the whole machine, of which 1024 are kept.
fn known(l: &Host, p: &Host) {
    let link = p.attempt("ip -o link show eth0");
    let address =
        link.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).expect("an address");
    let lines: String = crowd_addresses(SESSIONS)
        .iter()
        .map(|member| format!("neigh add {member} lladdr {address} nud permanent dev eth0\n"))
        .collect();
    l.run(&format!("ip -batch - <<END\n{lines}END"));
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
