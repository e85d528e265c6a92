//! Shares by link bandwidth: two gateways ask for one part and three, and then the other way round; how new connections are spread,
//! and how many of those that are held open break.

use std::time::Duration;

use standfast_lab::{Fate, Fleet, Flows, Lab, Member, Spec, Told, land, standfast};

use crate::Bench;
use crate::sample::STANDFAST;

/// A configuration.
type Listens = fn(&Fleet) -> Spec;

/// Who listens, and with which configuration.
const LISTENERS: [(&str, Listens); 4] = [
    (STANDFAST, |fleet| standfast(&Fleet::listener(&fleet.listeners[0], "weights: link_bandwidth"))),
    ("standfast, `hashing: plain`", |fleet| {
        standfast(&Fleet::listener(&fleet.listeners[0], "hashing: plain, weights: link_bandwidth"))
    }),
    ("BIRD 2.0.12", Fleet::bird),
    ("FRR 8.4.4", Fleet::frr),
];

/// The table.
pub(crate) fn measure(bench: &Bench) -> String {
    let columns = LISTENERS.map(|(name, spec)| {
        eprintln!("          {name}");
        column(bench, spec)
    });
    let row = |first: &str, cells: Vec<&str>| format!("| {first} | {} |\n", cells.join(" | "));
    let new = 4 * bench.connections;
    let mut text = row("link bandwidth 1 : 3, IPv4 and IPv6", LISTENERS.map(|(name, _)| name).to_vec());
    text += &row("---", vec!["---"; LISTENERS.len()]);
    for (nth, what) in [
        format!("{new} new connections: those on the first gateway"),
        format!("3 : 1 from then on: broken of {} held open", bench.connections),
    ]
    .iter()
    .enumerate()
    {
        text += &row(what, columns.iter().map(|column| &*column[nth]).collect());
    }
    text
}

fn column(bench: &Bench, spec: fn(&Fleet) -> Spec) -> [String; 2] {
    // Others may do what they like meanwhile: nothing is timed.
    let lab = Lab::new("bench: weights", false);
    let fleet = Fleet::new(&lab, 1, 2);
    let l = &fleet.listeners[0];
    let _daemon = l.spawn(spec(&fleet));
    let member = |nth: usize, bytes| Member::start(&fleet.gateways[nth], l.v4, Some(Told::bandwidth(bytes)));
    let members = [member(0, 125e6), member(1, 375e6)];
    fleet.routed(0, &[0, 1]);
    std::thread::sleep(SETTLE);
    let targets = [false, true].map(Fleet::target);
    let new = 4 * bench.connections;
    let shares = targets.map(|target| {
        let found = land(&fleet.client, target, new);
        let on = found.get(&fleet.gateways[0].name).copied().unwrap_or_default();
        format!("{:.1} %", 100.0 * on as f64 / new as f64)
    });
    let flows = targets.map(|target| Flows::open(&fleet.client, target, bench.connections));
    let before = flows.each_ref().map(Flows::look);
    members[0].tell(Some(Told::bandwidth(375e6)));
    members[1].tell(Some(Told::bandwidth(125e6)));
    std::thread::sleep(SETTLE);
    let broken = [0, 1].map(|nth| Fate::of(&before[nth], &flows[nth].look(), |_| true));
    let broken =
        broken.map(|Fate { of, broken }| format!("{broken} ({:.0} %)", 100.0 * broken as f64 / of as f64));
    [shares.join(", "), broken.join(", ")]
}

/// Time for what was told to be routed.
const SETTLE: Duration = Duration::from_secs(1);
