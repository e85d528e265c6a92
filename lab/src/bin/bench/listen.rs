//! The listener: three gateways announce, one withdraws; from its UPDATE on the wire to the changed kernel route.

use std::time::Duration;

use standfast_lab::{API, Host, Lab, Message, Neighbor, OpenBytes, Session, frr, secs};

use crate::Bench;
use crate::monitor::{Monitor, What};
use crate::sample::{Row, STANDFAST, now};
use crate::speaker::{MEMBER, ROUTER, Running, Speaker, VIP, WAITS, router};
use crate::tap::{Segment, Tap};

const GATEWAYS: usize = 3;
/// Between one change and the next: time for everybody to become quiet.
const SETTLE: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listener {
    Standfast,
    Bird,
    Frr,
}

/// Each listener in turn, with the same three scripted gateways.
pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    let (mut leaves, mut joins) = (Vec::new(), Vec::new());
    for listener in [Listener::Standfast, Listener::Bird, Listener::Frr] {
        let (leave, join) = changes(bench, listener);
        let name = listener.name();
        leaves.push(Row::times(
            "withdrawal on the wire to the listener's route",
            name,
            bench.changes,
            &leave,
        ));
        joins.push(Row::times(
            "announcement on the wire to the listener's route",
            name,
            bench.changes,
            &join,
        ));
    }
    leaves.into_iter().chain(joins).collect()
}

impl Listener {
    fn name(self) -> &'static str {
        match self {
            Self::Standfast => STANDFAST,
            Self::Bird => "BIRD 2.0.12",
            Self::Frr => "FRR 8.4.4",
        }
    }

    /// Starts it; what it gives keeps it running.
    fn start(self, bench: &Bench, lab: &Lab, l: &Host, gateways: &[Host]) -> Option<Running> {
        let members: Vec<_> = gateways.iter().map(|g| g.v4).collect();
        match self {
            Self::Standfast => {
                let running = Speaker::standfast_with(lab, l, &bench.standfast, &yaml(l)).start();
                standfast_lab::until("standfast can be asked", secs(10), || l.get(API, "/healthz").is_some());
                return Some(running);
            }
            Self::Bird => l.spawn(router(l, &members, WAITS)),
            Self::Frr => {
                let neighbors: Vec<_> = members.iter().map(|&m| Neighbor::new(m, MEMBER).passive()).collect();
                l.spawn(frr(ROUTER, &neighbors))
            }
        };
        None
    }
}

/// The times of leaving and of joining again.
fn changes(bench: &Bench, listener: Listener) -> (Vec<Duration>, Vec<Duration>) {
    eprintln!("          {}", listener.name());
    let lab = crate::alone("bench: listener");
    let l = lab.host("l", 1);
    let gateways: Vec<Host> =
        (0..GATEWAYS).map(|n| lab.host(&format!("g{n}"), 11 + u8::try_from(n).expect("few"))).collect();
    let _running = listener.start(bench, &lab, &l, &gateways);
    let monitor = Monitor::start(&l);
    let wire = Tap::start(&lab, &l, "eth0", 179);
    let mut sessions: Vec<Session> = gateways
        .iter()
        .map(|g| {
            let mut session = Session::dial(g, g.v4, l.v4).expect("a connection to the listener");
            session.establish(&OpenBytes::new(MEMBER, g.v4));
            session
        })
        .collect();
    for (session, g) in sessions.iter_mut().zip(&gateways) {
        let since = now();
        session.send(&announce(g).bytes);
        let there = monitor.wait(since, secs(20), changed);
        assert!(there.is_some(), "{} did not learn from {}", listener.name(), g.name);
        std::thread::sleep(SETTLE);
    }
    std::thread::sleep(secs(1));
    // (which gateway, whether it leaves, sent, changed)
    let mut done: Vec<(usize, bool, Duration, Duration)> = Vec::new();
    for nth in (0..bench.changes).map(|n| n % GATEWAYS) {
        for leaves in [true, false] {
            let message = if leaves { withdraw() } else { announce(&gateways[nth]) };
            let sent = now();
            sessions[nth].send(&message.bytes);
            done.extend(monitor.wait(sent, secs(5), changed).map(|seen| (nth, leaves, sent, seen)));
            std::thread::sleep(SETTLE);
        }
    }
    let segments = wire.finish();
    let prefix = format!("{VIP}/32");
    let (mut leave, mut join) = (Vec::new(), Vec::new());
    for (nth, leaves, sent, seen) in done {
        let told = |s: &&Segment| {
            *s.from.ip() == gateways[nth].v4
                && s.time >= sent
                && if leaves { s.withdraws(&prefix) } else { s.announces(&prefix) }
        };
        let at = segments.iter().find(told).map(|s| s.time);
        if leaves { &mut leave } else { &mut join }.extend(at.map(|at| seen.saturating_sub(at)));
    }
    (leave, join)
}

/// The route itself, or the group that it uses.
fn changed(what: What) -> bool {
    matches!(what, What::Set(VIP) | What::Removed(VIP) | What::Regrouped)
}

fn announce(g: &Host) -> Message {
    let mut body = vec![0, 0, 0, 20, 0x40, 1, 1, 0, 0x40, 2, 6, 2, 1];
    body.extend_from_slice(&MEMBER.to_be_bytes());
    body.extend_from_slice(&[0x40, 3, 4]);
    body.extend_from_slice(&g.v4.octets());
    body.push(32);
    body.extend_from_slice(&VIP.octets());
    Message::new(2, &body)
}

fn withdraw() -> Message {
    let mut body = vec![0, 5, 32];
    body.extend_from_slice(&VIP.octets());
    body.extend_from_slice(&[0, 0]);
    Message::new(2, &body)
}

fn yaml(l: &Host) -> String {
    format!(
        "schema: v1\nrouter: {{ asn: {ROUTER}, router_id: {v4}, local_address: {v4} }}\napi: {{ listen: \"{API}\" }}\n\
         bgp:\n  hold_time: 9s\nlistener:\n  accept:\n    - {{ name: gateways, range: 192.0.2.0/24, peer_asn: {MEMBER} }}\n  \
         vips:\n    - {{ name: web, prefix: {VIP}/32 }}\n",
        v4 = l.v4
    )
}
