//! Connections held open through a listener while its gateways come, drain and go and it restarts itself: how many break.
//!
//! Nothing is timed here, so the fleets of 4 and of 8 gateways are played side by side.

use std::time::Duration;

use standfast_lab::{Daemon, Fate, Fleet, Flows, Lab, Member, Spec, Told, land, secs, standfast, until};

use crate::Bench;
use crate::sample::STANDFAST;

/// A listener's configuration for a fleet.
type Configure = fn(&Fleet) -> Spec;

/// Who listens, and with which configuration.
const LISTENERS: [(&str, Configure); 4] = [
    (STANDFAST, |fleet| standfast(&Fleet::listener(&fleet.listeners[0], "hashing: resilient"))),
    ("standfast, `hashing: plain`", |fleet| {
        standfast(&Fleet::listener(&fleet.listeners[0], "hashing: plain"))
    }),
    ("BIRD 2.0.12", Fleet::bird),
    ("FRR 8.4.4", Fleet::frr),
];

/// What is done, and what is counted then.
const EVENTS: [&str; 8] = [
    "one withdraws: broken on those that stay",
    "it joins again: broken",
    "one drains: broken on those that stay",
    "one drains: broken on the one that drains",
    "one drains: new connections that it gets",
    "one drains: new connections that nobody answers",
    "the listener is ended by SIGTERM and starts again: broken",
    "the listener is killed and starts again: broken",
];

/// The table.
pub(crate) fn measure(bench: &Bench) -> String {
    let row = |first: &str, cells: &[&str]| format!("| {first} | {} |\n", cells.join(" | "));
    let mut text = row("connections held, IPv4 and IPv6", &LISTENERS.map(|(name, _)| name));
    text += &row("---", &["---"; LISTENERS.len()]);
    let parts = std::thread::scope(|scope| {
        let threads = [4, 8].map(|gateways| scope.spawn(move || (gateways, part(bench, gateways))));
        threads.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    for (gateways, columns) in parts {
        for (nth, event) in EVENTS.iter().enumerate() {
            let cells: Vec<&str> = columns.iter().map(|column| &*column[nth]).collect();
            text += &row(&format!("{gateways} gateways, {event}"), &cells);
        }
    }
    text
}

/// A column for each listener.
fn part(bench: &Bench, gateways: u8) -> Vec<[String; EVENTS.len()]> {
    let play = |&(name, spec): &(&str, Configure)| {
        eprintln!("          {gateways} gateways, {name}");
        // Others may do what they like meanwhile.
        let lab = Lab::new("bench: flows", false);
        let fleet = Fleet::new(&lab, 1, gateways);
        let daemon = fleet.listeners[0].spawn(spec(&fleet));
        let members = fleet.members();
        Play { fleet, daemon, members, connections: bench.connections }.run()
    };
    LISTENERS.iter().map(play).collect()
}

struct Play {
    fleet: Fleet,
    daemon: Daemon,
    members: Vec<Member>,
    connections: usize,
}

impl Play {
    fn run(&self) -> [String; EVENTS.len()] {
        let all: Vec<usize> = (0..self.members.len()).collect();
        let but = |nth| all.iter().copied().filter(|&g| g != nth).collect::<Vec<_>>();
        self.routed(&all);
        let withdraws = self.broken(Some(0), || {
            self.members[0].tell(None);
            self.routed(&but(0));
        });
        let joins = self.broken(None, || {
            self.members[0].tell(Some(Told::default()));
            self.routed(&all);
        });
        let mut fresh = [0, 0];
        let drains = self.broken(Some(2), || {
            self.members[2].tell(Some(Told::leaving()));
            std::thread::sleep(secs(1));
            for found in [false, true].map(|v6| land(&self.fleet.client, Fleet::target(v6), NEW)) {
                fresh[0] += found.get(&self.fleet.gateways[2].name).unwrap_or(&0);
                fresh[1] += found.get("").unwrap_or(&0);
            }
        });
        self.members[2].tell(Some(Told::default()));
        std::thread::sleep(secs(1));
        let [terminated, killed] = [Daemon::stop, Daemon::kill].map(|end: fn(&Daemon)| {
            self.routed(&all);
            self.broken(None, || {
                end(&self.daemon);
                until("the members have noticed", secs(20), || {
                    self.members.iter().all(|member| !member.up())
                });
                self.daemon.start_again();
                until("the members are back", secs(120), || self.members.iter().all(Member::up));
                self.routed(&all);
            })
        });
        [
            show(withdraws.0),
            show(joins.0),
            show(drains.0),
            show(drains.1),
            format!("{} of {}", fresh[0], 2 * NEW),
            format!("{} of {}", fresh[1], 2 * NEW),
            show(terminated.0),
            show(killed.0),
        ]
    }

    fn routed(&self, gateways: &[usize]) {
        self.fleet.routed(0, gateways);
        std::thread::sleep(SETTLE);
    }

    /// What `change` does to connections opened before it: on the other gateways and on this one, each in IPv4 and IPv6.
    fn broken(&self, on: Option<usize>, change: impl FnOnce()) -> ([Fate; 2], [Fate; 2]) {
        let name = on.map_or("", |nth| &self.fleet.gateways[nth].name);
        let open = |v6| Flows::open(&self.fleet.client, Fleet::target(v6), self.connections);
        let flows = [open(false), open(true)];
        let before = flows.each_ref().map(Flows::look);
        change();
        let after = flows.each_ref().map(Flows::look);
        let fates = |stayed: bool| {
            let of = |nth: usize| Fate::of(&before[nth], &after[nth], |g| (g == name) != stayed);
            [of(0), of(1)]
        };
        (fates(true), fates(false))
    }
}

/// Both families' counts, IPv4 first.
fn show(fates: [Fate; 2]) -> String {
    let [v4, v6] = fates.map(|fate| match fate.of {
        0 => "0 of 0".to_owned(),
        of => format!("{} of {of} ({:.0} %)", fate.broken, 100.0 * fate.broken as f64 / of as f64),
    });
    format!("{v4}, {v6}")
}

/// New connections in each family while one drains.
const NEW: usize = 400;
/// Time for what was routed to be used.
const SETTLE: Duration = Duration::from_millis(300);
