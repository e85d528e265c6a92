//! Fail-over: a gateway withdraws, ends, dies, is frozen or loses its cable; how long its listener's kernel and its client's
//! packets follow it, and how soon it is a member again.
//!
//! Every gateway has a VIP of its own, which an anchor that never fails announces too. So each fault is told from all others,
//! and a packet that the anchor does not answer after a fault is a misdirected one. Faults that are noticed within
//! milliseconds come one after another, before one listener at a time. Those that take seconds come to many gateways at
//! nearly the same time, all of which have a session to each of the listeners.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use standfast_lab::secs;

use crate::Bench;
use crate::probe::Probe;
use crate::sample::{now, percentile, ratio};
use crate::yard::{LISTENERS, Listener, Yard, announce, withdraw};

/// What happens to a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Withdraws,
    Terminated,
    Killed,
    /// With so many milliseconds between two packets of BFD, or without it.
    Cut(Option<u16>),
    Frozen(Option<u16>),
}

impl Fault {
    fn words(self) -> String {
        let noticed = |bfd: Option<u16>| match bfd {
            Some(ms) => format!("BFD {ms} ms x 3"),
            None => "hold time 9 s".to_owned(),
        };
        match self {
            Self::Withdraws => "the gateway withdraws".to_owned(),
            Self::Terminated => "SIGTERM of its standfast".to_owned(),
            Self::Killed => "SIGKILL of its standfast".to_owned(),
            Self::Cut(bfd) => format!("its cable is cut, {}", noticed(bfd)),
            Self::Frozen(bfd) => format!("its standfast is frozen, {}", noticed(bfd)),
        }
    }
}

/// What one fault took at one listener; nothing: it did not come about in time.
#[derive(Debug, Clone, Copy, Default)]
struct Took {
    /// To the kernel route without the gateway.
    route: Option<Duration>,
    /// To the last packet that was sent to the gateway.
    packet: Option<Duration>,
    /// From the end of the fault to the kernel route with the gateway.
    back: Option<Duration>,
}

/// What every fault took, by fault and listener.
type Results = BTreeMap<(Fault, &'static str), Vec<Took>>;

const WITHDRAWS: &str = "withdraws";
const TERMINATED: &str = "terminated";
const KILLED: &str = "killed";
/// Faults that are noticed at once.
const QUICK: [&str; 3] = [WITHDRAWS, TERMINATED, KILLED];
/// Those that only time tells: a cable that is cut and a gateway that freezes.
const SLOW: [&str; 3] = ["hold", "bfd-100", "bfd-50"];
/// What `--fault` takes.
pub(crate) const FAULTS: [&str; 6] = [WITHDRAWS, TERMINATED, KILLED, SLOW[0], SLOW[1], SLOW[2]];

/// Whether `--fault` takes this.
pub(crate) fn knows(fault: &str) -> bool {
    FAULTS.contains(&fault)
}

/// The table.
pub(crate) fn measure(bench: &Bench) -> String {
    let mut results = Results::new();
    let wanted = |fault: &str| bench.fault.as_deref().is_none_or(|only| only == fault);
    for listener in LISTENERS {
        if QUICK.into_iter().any(wanted) {
            quick(bench, listener, &wanted, &mut results);
        }
    }
    eprintln!("{}", show(&results));
    for (name, bfd) in SLOW.into_iter().zip([None, Some(100), Some(50)]) {
        if wanted(name) {
            slow(bench, bfd, &mut results);
            eprintln!("{}", show(&results));
        }
    }
    show(&results)
}

/// Faults that are noticed at once, before one listener.
fn quick(bench: &Bench, listener: Listener, wanted: &dyn Fn(&str) -> bool, results: &mut Results) {
    eprintln!("          {}: a gateway withdraws, ends, dies", listener.name());
    let lab = crate::alone("bench: failover");
    let yard = Yard::new(&lab, bench, &[listener], SOME, None);
    let mut sessions: Vec<_> =
        yard.gateways.iter().map(|g| yard.scripted(&g.host, &[g.vip]).remove(0)).collect();
    let site = &yard.sites[0];
    site.full(&yard.gateways);
    std::thread::sleep(secs(1));
    let withdrawals = if wanted(WITHDRAWS) { bench.faults } else { 0 };
    for nth in (0..yard.gateways.len()).cycle().take(withdrawals) {
        let g = &yard.gateways[nth];
        let probe = Probe::start(site, &[g], FINE);
        std::thread::sleep(BEFORE);
        let fault = now();
        sessions[nth].send(&withdraw(g.vip).bytes);
        let route = site.hops.wait(fault, secs(5), g.vip, g.host.v4, false);
        std::thread::sleep(AFTER);
        let packet = probe.finish().remove(0).last(fault, now());
        let again = now();
        sessions[nth].send(&announce(&g.host, &[g.vip]).bytes);
        let back = site.hops.wait(again, secs(5), g.vip, g.host.v4, true);
        let took = Took::new((fault, route), (fault, packet), (again, back));
        results.entry((Fault::Withdraws, listener.name())).or_default().push(took);
        std::thread::sleep(AFTER);
    }
    drop(sessions);
    if !wanted(TERMINATED) && !wanted(KILLED) {
        return;
    }
    for g in &yard.gateways {
        let _ = site.hops.wait(Duration::ZERO, secs(5), g.vip, g.host.v4, false);
    }
    let mut running: Vec<_> = yard.gateways.iter().map(|g| Some(g.speaker.start())).collect();
    let signals =
        [(TERMINATED, Fault::Terminated, Signal::SIGTERM), (KILLED, Fault::Killed, Signal::SIGKILL)];
    for (_, fault, signal) in signals.into_iter().filter(|(name, ..)| wanted(name)) {
        site.full(&yard.gateways);
        std::thread::sleep(secs(1));
        let mut runs = bench.faults;
        while runs > 0 {
            let mut open = Vec::new();
            for (nth, (g, running)) in yard.gateways.iter().zip(&mut running).enumerate().take(runs) {
                let probe = Probe::start(site, &[g], FINE);
                std::thread::sleep(BEFORE);
                let process = running.take().expect("it was started");
                let sent = process.signal(signal);
                let route = site.hops.wait(sent, secs(15), g.vip, g.host.v4, false);
                std::thread::sleep(AFTER);
                let packet = probe.finish().remove(0).last(sent, now());
                process.wait(secs(10));
                let again = g.speaker.start();
                open.push((nth, sent, route, packet, again.started));
                *running = Some(again);
            }
            runs -= open.len();
            eprintln!("          {}, {runs} to go", fault.words());
            let end = Instant::now() + BACK;
            for (nth, sent, route, packet, again) in open {
                let g = &yard.gateways[nth];
                let left = end.saturating_duration_since(Instant::now());
                let back = site.hops.wait(again, left, g.vip, g.host.v4, true);
                let took = Took::new((sent, route), (sent, packet), (again, back));
                results.entry((fault, listener.name())).or_default().push(took);
            }
            std::thread::sleep(secs(1));
        }
    }
}

/// Faults that only time tells, before all listeners at once. How flows are spread makes no difference to them.
fn slow(bench: &Bench, bfd: Option<u16>, results: &mut Results) {
    let how = bfd.map_or_else(|| "hold time 9 s".to_owned(), |ms| format!("BFD {ms} ms x 3"));
    eprintln!("          all listeners: a cable is cut, a gateway freezes: {how}");
    let lab = crate::alone("bench: failover");
    // BFD keeps the processors busy.
    let many = if bfd.is_some() { MANY / 2 } else { MANY };
    let gateways = u8::try_from(bench.faults.min(many)).expect("few");
    let yard = Yard::new(&lab, bench, &TOGETHER, gateways, bfd);
    let running: Vec<_> = yard.gateways.iter().map(|g| g.speaker.start()).collect();
    // A fault lasts for longer than anybody takes to notice.
    let (spread, lasts) = if bfd.is_some() { (1000, secs(2)) } else { (3000, secs(11)) };
    for fault in [Fault::Cut(bfd), Fault::Frozen(bfd)] {
        let mut runs = bench.faults;
        while runs > 0 {
            yard.sites.iter().for_each(|site| site.full(&yard.gateways));
            // The end of a session that was short makes both ends hesitate.
            std::thread::sleep(secs(11));
            let members = yard.gateways.iter().zip(&running);
            let members = members.filter(|(g, _)| yard.sites.iter().all(|site| site.serves(g))).take(runs);
            let (some, running): (Vec<_>, Vec<_>) = members.unzip();
            if some.is_empty() {
                eprintln!("          nobody is left to fail");
                break;
            }
            let probes: Vec<_> = yard.sites.iter().map(|site| Probe::start(site, &some, COARSE)).collect();
            let mut begun = Vec::new();
            for (g, process) in some.iter().zip(&running) {
                begun.push(now());
                match fault {
                    Fault::Cut(_) => lab.cut(&g.host),
                    _ => drop(process.signal(Signal::SIGSTOP)),
                }
                // So that the faults fall evenly between two KEEPALIVEs.
                std::thread::sleep(Duration::from_millis(spread / some.len() as u64));
            }
            std::thread::sleep(lasts);
            let mut ended = Vec::new();
            for (g, process) in some.iter().zip(&running) {
                match fault {
                    Fault::Cut(_) => lab.mend(&g.host),
                    _ => drop(process.signal(Signal::SIGCONT)),
                }
                ended.push(now());
            }
            let tracks: Vec<_> = probes.into_iter().map(Probe::finish).collect();
            let end = Instant::now() + BACK;
            while Instant::now() < end && !some.iter().all(|g| yard.sites.iter().all(|s| s.serves(g))) {
                std::thread::sleep(Duration::from_millis(10));
            }
            for (site, tracks) in yard.sites.iter().zip(tracks) {
                for (nth, (g, track)) in some.iter().zip(tracks).enumerate() {
                    let (from, to) = (begun[nth], ended[nth]);
                    let route = site.hops.wait(from, secs(0), g.vip, g.host.v4, false).filter(|&at| at < to);
                    let back = site.hops.wait(to, secs(0), g.vip, g.host.v4, true);
                    let took = Took::new((from, route), (from, track.last(from, to)), (to, back));
                    results.entry((fault, site.listener.name())).or_default().push(took);
                }
            }
            runs -= some.len();
            eprintln!("          {}, {runs} to go", fault.words());
        }
    }
}

impl Took {
    fn new(
        route: (Duration, Option<Duration>),
        packet: (Duration, Option<Duration>),
        back: (Duration, Option<Duration>),
    ) -> Self {
        let since = |(from, to): (Duration, Option<Duration>)| to.map(|to| to.saturating_sub(from));
        Self { route: since(route), packet: since(packet), back: since(back) }
    }
}

/// What of a fault is told.
type Part = fn(&Took) -> Option<Duration>;

fn show(results: &Results) -> String {
    let names = LISTENERS.map(Listener::name).join(" | ");
    let mut text = format!(
        "| fault | until | {names} | standfast / BIRD | plain / BIRD |\n|---|---|---|---|---|---|---|---|\n"
    );
    let parts: [(&str, Part); 3] = [
        ("the kernel's route changed", |took| took.route),
        ("the last misdirected packet", |took| took.packet),
        ("a member again, from the end of the fault", |took| took.back),
    ];
    let faults: BTreeSet<_> = results.keys().map(|(fault, _)| *fault).collect();
    for fault in faults {
        for (what, part) in parts {
            let mut medians = Vec::new();
            let mut line = format!("| {} | {what} |", fault.words());
            for listener in LISTENERS {
                let Some(all) = results.get(&(fault, listener.name())) else {
                    medians.push(f64::NAN);
                    line += " |";
                    continue;
                };
                let times: Vec<_> = all.iter().filter_map(part).collect();
                let of =
                    if times.len() == all.len() { String::new() } else { format!(", {} of", times.len()) };
                let (median, p99) = (percentile(&times, 50), percentile(&times, 99));
                let _ = write!(line, " {} ({}{of} {}) |", milliseconds(median), milliseconds(p99), all.len());
                medians.push(median);
            }
            let share = |median: f64| Some(ratio(median / medians[2])).filter(|_| median.is_finite());
            let [resilient, plain] = [medians[0], medians[1]].map(|m| share(m).unwrap_or_default());
            let _ = writeln!(text, "{line} {resilient} | {plain} |");
        }
    }
    text
}

fn milliseconds(figure: f64) -> String {
    match figure {
        f if f.is_nan() => "never".to_owned(),
        f if f < 100.0 => format!("{f:.2} ms"),
        f if f < 1000.0 => format!("{f:.0} ms"),
        f => format!("{:.2} s", f / 1000.0),
    }
}

/// Who is before the gateways at the same time.
const TOGETHER: [Listener; 3] = [Listener::Standfast, Listener::Bird, Listener::Frr];
/// How long gateways are waited for to be members again, all of them.
const BACK: Duration = Duration::from_secs(30);
/// Gateways before one listener, and before all of them.
const SOME: u8 = 10;
const MANY: usize = 50;
/// Time between two datagrams of a flow, for faults that take milliseconds and for those that take seconds.
const FINE: Duration = Duration::from_millis(1);
const COARSE: Duration = Duration::from_millis(20);
/// Time in which datagrams show that all is well, before a fault, and that it is over, afterwards.
const BEFORE: Duration = Duration::from_millis(40);
const AFTER: Duration = Duration::from_millis(60);
