//! Ten thousand VIPs from two members: from the first octet of their UPDATEs to the last change of the kernel's routes, there and
//! away again, and what that takes. All three spread flows by the kernel's ordinary multipath hash.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use standfast_lab::{
    API, Daemon, Host, Message, Neighbor, OpenBytes, Session, bird_raw, frr, secs, standfast,
};

use crate::Bench;
use crate::monitor::rtnetlink;
use crate::sample::{Row, STANDFAST};
use crate::speaker::{MEMBER, ROUTER};

const VIPS: u32 = 10_000;
/// Prefixes in one UPDATE: 5 octets each, in at most 4096.
const BATCH: u32 = 500;
/// The routes do not change any more once nothing was heard for so long.
const QUIET: Duration = Duration::from_millis(150);

/// Each listener in turn, with the same two scripted members.
pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    let rounds = bench.changes.div_ceil(4).max(1);
    let mut rows = BTreeMap::<usize, Vec<Row>>::new();
    for who in [STANDFAST, "BIRD 2.0.12", "FRR 8.4.4"] {
        eprintln!("          {who}");
        for (nth, row) in run(who, rounds).into_iter().enumerate() {
            rows.entry(nth).or_default().push(row);
        }
    }
    rows.into_values().flatten().collect()
}

fn run(who: &'static str, rounds: usize) -> Vec<Row> {
    let lab = crate::alone("bench: scale");
    let (l, a, b) = (lab.host("l", 1), lab.host("a", 11), lab.host("b", 12));
    let daemon = start(who, &l, &[&a, &b]);
    let rest = memory(&daemon);
    let mut sessions = [&a, &b].map(|g| {
        let mut session = Session::dial(g, g.v4, l.v4).expect("a connection to the listener");
        session.establish(&OpenBytes::new(MEMBER, g.v4));
        (g.v4, session)
    });
    std::thread::sleep(secs(2));
    let heard = Heard::start(&l);
    let (mut there, mut away, mut used, mut full) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for _ in 0..rounds {
        for (announces, times) in [(true, &mut there), (false, &mut away)] {
            let (cpu, begun) = (cpu(&daemon), Instant::now());
            std::thread::scope(|scope| {
                for (address, session) in &mut sessions {
                    scope.spawn(move || updates(announces, *address).iter().for_each(|u| session.send(u)));
                }
            });
            let wanted = if announces { 2 * VIPS as usize } else { 0 };
            times.extend(settled(&heard, begun, || legs(&l) == wanted));
            used.push((announces, self::cpu(&daemon) - cpu));
            if announces {
                full = full.max(memory(&daemon));
            }
            std::thread::sleep(secs(1));
        }
    }
    let processor = |announces: bool| {
        let all: Vec<Duration> = used
            .iter()
            .filter(|(a, _)| *a == announces)
            .map(|(_, hundredths)| Duration::from_millis(10 * hundredths))
            .collect();
        all
    };
    vec![
        Row::times("10,000 VIPs of 2 members: announced to routed", who, rounds, &there),
        Row::times("10,000 VIPs of 2 members: withdrawn to removed", who, rounds, &away),
        Row::times("10,000 VIPs: processor time of announcing", who, rounds, &processor(true)),
        Row::times("10,000 VIPs: processor time of withdrawing", who, rounds, &processor(false)),
        Row::memory("RSS before the 10,000 VIPs", who, rest),
        Row::memory("RSS with the 10,000 VIPs", who, full),
    ]
}

fn vip(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 19, 0, 0)) + n)
}

/// Starts one of them, ready to take the two members' sessions.
fn start(who: &str, l: &Host, members: &[&Host]) -> Daemon {
    match who {
        STANDFAST => l.spawn(standfast(&yaml(l))),
        "FRR 8.4.4" => {
            let neighbors: Vec<_> = members.iter().map(|m| Neighbor::new(m.v4, MEMBER).passive()).collect();
            l.spawn(frr(ROUTER, &neighbors))
        }
        _ => {
            let mut text = format!(
                "router id {};\nprotocol device {{}}\nprotocol kernel {{ merge paths yes; ipv4 {{ export all; }}; }}\n",
                l.v4
            );
            for (nth, m) in members.iter().enumerate() {
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "protocol bgp n{nth} {{ local {} as {ROUTER}; neighbor {} as {MEMBER}; passive yes; hold time 9;\n \
                     ipv4 {{ import all; export none; }}; }}",
                    l.v4, m.v4
                );
            }
            l.spawn(bird_raw(&text))
        }
    }
}

fn yaml(l: &Host) -> String {
    let vips = (0..VIPS).fold(String::new(), |mut text, n| {
        let _ = writeln!(text, "    - {{ name: v{n}, prefix: {}/32, hashing: plain }}", vip(n));
        text
    });
    format!(
        "schema: v1\nrouter: {{ asn: {ROUTER}, router_id: {v4}, local_address: {v4} }}\napi: {{ listen: \"{API}\" }}\n\
         bgp:\n  hold_time: 9s\nlistener:\n  accept:\n    - {{ name: members, range: 192.0.2.0/24, peer_asn: {MEMBER} }}\n  \
         vips:\n{vips}",
        v4 = l.v4
    )
}

/// The UPDATEs that announce, or withdraw, every VIP.
fn updates(announce: bool, next_hop: Ipv4Addr) -> Vec<Vec<u8>> {
    (0..VIPS)
        .step_by(BATCH as usize)
        .map(|first| {
            let nlri: Vec<u8> = (first..first + BATCH)
                .flat_map(|n| {
                    let [a, b, c, d] = vip(n).octets();
                    [32, a, b, c, d]
                })
                .collect();
            let mut body = Vec::new();
            if announce {
                let mut attributes = vec![0x40, 1, 1, 0, 0x40, 2, 6, 2, 1];
                attributes.extend_from_slice(&MEMBER.to_be_bytes());
                attributes.extend_from_slice(&[0x40, 3, 4]);
                attributes.extend_from_slice(&next_hop.octets());
                body.extend_from_slice(&[0, 0]);
                body.extend_from_slice(&u16::try_from(attributes.len()).expect("few").to_be_bytes());
                body.extend_from_slice(&attributes);
                body.extend_from_slice(&nlri);
            } else {
                body.extend_from_slice(&u16::try_from(nlri.len()).expect("fits").to_be_bytes());
                body.extend_from_slice(&nlri);
                body.extend_from_slice(&[0, 0]);
            }
            Message::new(2, &body).bytes
        })
        .collect()
}

/// How many ways the VIPs have in the kernel, all together.
fn legs(l: &Host) -> usize {
    l.attempt("ip -4 route show root 198.19.0.0/16 | grep -o 'via ' | wc -l")
        .trim()
        .parse()
        .unwrap_or(usize::MAX)
}

/// From `begun` to the last change that was heard when `right` holds; `None` if that never comes.
fn settled(heard: &Heard, begun: Instant, right: impl Fn() -> bool) -> Option<Duration> {
    while begun.elapsed() < secs(60) {
        std::thread::sleep(Duration::from_millis(10));
        let last = heard.last.lock().unwrap().filter(|last| *last > begun);
        if let Some(last) = last.filter(|last| last.elapsed() > QUIET)
            && right()
        {
            return Some(last - begun);
        }
    }
    None
}

fn memory(daemon: &Daemon) -> u64 {
    daemon.processes().iter().map(|p| p.rss()).sum()
}

fn cpu(daemon: &Daemon) -> u64 {
    daemon.processes().iter().map(|p| p.cpu()).sum()
}

/// Hears every change of the kernel's routes and next hops, and remembers when the last one came.
struct Heard {
    last: Arc<Mutex<Option<Instant>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Heard {
    fn start(host: &Host) -> Self {
        let fd = rtnetlink(host);
        setsockopt(&fd, sockopt::RcvBufForce, &(64 << 20)).expect("a large buffer");
        let (last, stop) = (Arc::<Mutex<Option<Instant>>>::default(), Arc::<AtomicBool>::default());
        let (ours, stopped) = (Arc::clone(&last), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; 65536];
            while !stopped.load(Ordering::Relaxed) {
                if recv(fd.as_raw_fd(), &mut buffer, MsgFlags::empty()).is_ok() {
                    *ours.lock().unwrap() = Some(Instant::now());
                }
            }
        });
        Self { last, stop, thread: Some(thread) }
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
