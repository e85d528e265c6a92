//! What checks cost: processor time and memory of a thousand and of ten thousand a second, beside HAProxy and keepalived.
//!
//! Every check has an address of its own in 127/8, all of them answered by one server process, whose own cost is not
//! counted. HAProxy has one thread, which is cheaper for it than two, and closes with a reset; so does standfast here.
//! The kernel of the namespace counts the connections that were opened, which are the checks that were really made, and
//! those that the server was given: a reset that comes before the end of the handshake leaves it nothing to accept.
//! keepalived checks nothing where there is no IPVS; one that does nothing is put before the kernel.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use standfast_lab::{Announcer, Host, Lab, Process, secs};

use crate::Bench;
use crate::sample::{Row, STANDFAST};
use crate::speaker::{MEMBER, ROUTER};

const PORT: u16 = 8080;
const HAPROXY: &str = "HAProxy 2.6";
const KEEPALIVED: &str = "keepalived 2.2";
/// Checks of one VIP.
const EACH: usize = 100;
/// By then every check has run several times.
const WARM: Duration = Duration::from_secs(6);

/// A kind and a number of checks, and what the table calls their processor time, memory and lateness.
struct Load {
    http: bool,
    checks: usize,
    names: [&'static str; 3],
}

const LOADS: [Load; 4] = [
    Load {
        http: false,
        checks: 1000,
        names: [
            "processor time of a check, 1,000 tcp checks a second",
            "RSS, the same 1,000 tcp checks",
            "late runs of these 1,000 tcp checks",
        ],
    },
    Load {
        http: true,
        checks: 1000,
        names: [
            "processor time of a check, 1,000 http checks a second",
            "RSS, the same 1,000 http checks",
            "late runs of these 1,000 http checks",
        ],
    },
    Load {
        http: false,
        checks: 10_000,
        names: [
            "processor time of a check, 10,000 tcp checks a second",
            "RSS, the same 10,000 tcp checks",
            "late runs of these 10,000 tcp checks",
        ],
    },
    Load {
        http: true,
        checks: 10_000,
        names: [
            "processor time of a check, 10,000 http checks a second",
            "RSS, the same 10,000 http checks",
            "late runs of these 10,000 http checks",
        ],
    },
];

/// Each load, for everybody in turn.
pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    LOADS.iter().flat_map(|load| carry(bench, load)).collect()
}

/// A load, for everybody in turn and again, so that what else the machine does meets all of them; the medians of the rounds.
/// keepalived, which takes the longest to begin, has one.
fn carry(bench: &Bench, load: &Load) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut figures: BTreeMap<&str, Vec<Figures>> = BTreeMap::new();
    for round in 0..bench.rounds {
        for who in [STANDFAST, HAPROXY, KEEPALIVED] {
            if who == KEEPALIVED && round > 0 {
                continue;
            }
            eprintln!("          {}, {} of {}: {who}", load.names[0], round + 1, bench.rounds);
            match once(bench, load, who) {
                Ok(seen) => figures.entry(who).or_default().push(seen),
                Err(why) => {
                    eprintln!("          {who} {why}");
                    rows.push(Row::nothing(load.names[0], who, why));
                }
            }
        }
    }
    for who in [STANDFAST, HAPROXY, KEEPALIVED] {
        let Some(all) = figures.get_mut(who) else { continue };
        all.sort_by(|a, b| a.micros.total_cmp(&b.micros));
        let made = all.iter().map(|seen| seen.made).sum();
        let mut row = Row::each(load.names[0], who, made, all[all.len() / 2].micros);
        if all.len() > 1 {
            let each: Vec<_> = all.iter().map(|seen| format!("{:.1}", seen.micros)).collect();
            row = row.of(format!("{made} ({})", each.join(", ")));
        }
        rows.push(row);
        rows.push(Row::memory(load.names[1], who, all.iter().map(|seen| seen.kib).max().unwrap_or(0)));
        if who == STANDFAST {
            let runs = all.iter().map(|seen| seen.runs).sum();
            let late: u64 = all.iter().map(|seen| seen.late).sum();
            let [counted, late] = [runs, late].map(|n| f64::from(u32::try_from(n).unwrap_or(u32::MAX)));
            rows.push(Row::share_of(load.names[2], who, runs, late / counted * 100.0));
        }
    }
    rows
}

/// What one window showed.
struct Figures {
    /// Checks that were made.
    made: u64,
    /// Processor time of each.
    micros: f64,
    /// Resident memory at the end.
    kib: u64,
    /// Runs and late ones, by standfast's own account.
    runs: u64,
    late: u64,
}

fn once(bench: &Bench, load: &Load, who: &str) -> Result<Figures, &'static str> {
    let lab = crate::alone("bench: checks");
    let host = lab.host("g", 11);
    let _server = serve_in(&host);
    let file = lab.file(&format!("{}.yaml", who.split(' ').next().unwrap_or(who)));
    let text = match who {
        STANDFAST => standfast(&host, load),
        HAPROXY => haproxy(load),
        _ => keepalived(load),
    };
    std::fs::write(&file, text).expect("a configuration file");
    let process = start(&lab, &host, who, &bench.standfast, &file);
    std::thread::sleep(WARM);
    let runs = if who == STANDFAST { runs(&host) } else { (0, 0) };
    // What was asked for just now is over.
    std::thread::sleep(Duration::from_millis(500));
    let (before, opened, begin) = (tree(process.pid()), connections(process.pid()), Instant::now());
    std::thread::sleep(bench.window);
    let passed = begin.elapsed().as_secs_f64();
    let (after, connections) = (tree(process.pid()), connections(process.pid()));
    if !process.alive() {
        eprintln!("          {who} checks nothing: {}", process.log().lines().last().unwrap_or_default());
        return Err("ended at once");
    }
    let [made, given] = [0, 1].map(|i| connections[i].saturating_sub(opened[i]));
    if made == 0 {
        return Err("made no check");
    }
    let [checks, accepted] = [made, given].map(|n| f64::from(u32::try_from(n).unwrap_or(u32::MAX)));
    eprintln!(
        "          {:.0} checks a second, of which the server was given {:.0}",
        checks / passed,
        accepted / passed
    );
    // The kernel counts processor time in hundredths of a second.
    let ticks = u32::try_from(after.0.saturating_sub(before.0)).unwrap_or(u32::MAX);
    let (all, late) = if who == STANDFAST { self::runs(&host) } else { (0, 0) };
    let (runs, late) = (all.saturating_sub(runs.0), late.saturating_sub(runs.1));
    Ok(Figures { made, micros: f64::from(ticks) * 1e4 / checks, kib: after.1, runs, late })
}

fn start(lab: &Lab, host: &Host, who: &str, standfast: &Path, file: &Path) -> Arc<Process> {
    let file = file.to_str().expect("a plain path");
    let standfast = standfast.to_str().expect("a plain path");
    match who {
        STANDFAST => host.process(who, &[standfast, "run", "-c", file], &[]),
        HAPROXY => host.process("haproxy", &["haproxy", "-db", "-f", file], &[]),
        _ => {
            let ipvs = ipvs(lab);
            let ipvs = ipvs.to_str().expect("a plain path");
            host.process("keepalived", &["keepalived", "-n", "-l", "-C", "-f", file], &[("LD_PRELOAD", ipvs)])
        }
    }
}

/// What answers in the place of IPVS.
fn ipvs(lab: &Lab) -> PathBuf {
    let (source, library) = (lab.file("ipvs.c"), lab.file("ipvs.so"));
    std::fs::write(&source, include_str!("ipvs.c")).expect("a file");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(compiled.is_ok_and(|status| status.success()), "cc does not compile {}", source.display());
    library
}

/// The addresses of the checks.
fn targets(load: &Load) -> impl Iterator<Item = Ipv4Addr> {
    (0..load.checks).map(|n| {
        let octet = |n: usize| u8::try_from(n).expect("less than 250");
        Ipv4Addr::new(127, 1, octet(n / 250), octet(n % 250 + 1))
    })
}

fn standfast(host: &Host, load: &Load) -> String {
    let peer = Ipv4Addr::from(u32::from(host.v4) + 1);
    let mut config = Announcer::new(host, MEMBER).neighbor(peer, ROUTER, "passive: true");
    let targets: Vec<_> = targets(load).collect();
    for (nth, targets) in targets.chunks(EACH).enumerate() {
        let mut checks = "checks:".to_owned();
        for (n, target) in targets.iter().enumerate() {
            let what = if load.http {
                format!("type: http, http: {{ host: {target}, port: {PORT}, url: /healthz }}")
            } else {
                format!("type: tcp, tcp: {{ host: {target}, port: {PORT}, close: reset }}")
            };
            // Writing to a string cannot fail.
            let _ = write!(checks, "\n      - {{ name: c{n}, interval: 1s, timeout: 500ms, {what} }}");
        }
        config = config.vip_with(&format!("v{nth}"), &[&format!("198.51.100.{nth}/32")], &checks, "");
    }
    config.yaml().replace("level: debug", "level: warn")
}

fn haproxy(load: &Load) -> String {
    let mut text =
        "global\n  nbthread 1\n  maxconn 1000\ndefaults\n  timeout connect 500ms\n  timeout client 1s\n  \
                    timeout server 1s\n  timeout check 500ms\nfrontend f\n  bind 127.0.0.1:1\nbackend b\n"
            .to_owned();
    if load.http {
        text += "  mode http\n  option httpchk GET /healthz\n";
    }
    for (n, target) in targets(load).enumerate() {
        let _ = writeln!(text, "  server s{n} {target}:{PORT} check inter 1s");
    }
    text
}

fn keepalived(load: &Load) -> String {
    let check = if load.http {
        "HTTP_GET { url { path /healthz status_code 200 } connect_timeout 1 }"
    } else {
        "TCP_CHECK { connect_timeout 1 }"
    };
    let mut text = format!(
        "global_defs {{ router_id bench }}\nvirtual_server 198.51.100.10 {PORT} {{\n delay_loop 1\n protocol TCP\n \
         lvs_sched rr\n"
    );
    for target in targets(load) {
        let _ = writeln!(text, " real_server {target} {PORT} {{\n  weight 1\n  {check}\n }}");
    }
    text + "}\n"
}

/// Processor time in ticks and resident KiB of a process and everything it started.
fn tree(pid: u32) -> (u64, u64) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |n: usize| fields.get(n).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let rss = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0);
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children
        .split_whitespace()
        .filter_map(|child| child.parse().ok())
        .map(tree)
        .fold((field(11) + field(12), rss), |(ticks, memory), (more, also)| (ticks + more, memory + also))
}

/// TCP connections that were opened so far in the namespace of a process, and those that a server there was given.
fn connections(pid: u32) -> [u64; 2] {
    let text = std::fs::read_to_string(format!("/proc/{pid}/net/snmp")).unwrap_or_default();
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let mut next = || lines.next().unwrap_or_default().split_whitespace();
    let values: BTreeMap<_, _> = next().zip(next()).collect();
    ["ActiveOpens", "PassiveOpens"].map(|name| values.get(name).and_then(|v| v.parse().ok()).unwrap_or(0))
}

/// Runs so far, and those that were late, as standfast's metrics tell: these two alone, for all of them are megabytes.
fn runs(host: &Host) -> (u64, u64) {
    let api = SocketAddr::from((Ipv4Addr::LOCALHOST, 59179));
    let path = format!("/metrics?name[]={RUNS}&name[]={LATE}");
    let Some((_, text)) = host.get(api, &path) else { return (0, 0) };
    let sum = |name: &str| {
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
    };
    (sum(RUNS), sum(LATE))
}

const RUNS: &str = "pathosd_check_duration_seconds_count";
const LATE: &str = "standfast_check_late_total";

/// Starts the server of every check in its namespace.
fn serve_in(host: &Host) -> Arc<Process> {
    let program = std::env::current_exe().expect("this program's path");
    let server = host.process("server", &[program.to_str().expect("a plain path"), SERVE], &[]);
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    standfast_lab::until("the server serves", secs(10), || host.get(at, "/").is_some());
    server
}

/// The argument that makes this program the server.
pub(crate) const SERVE: &str = "serve-checks";

/// Answers every request on every address with 200, one connection after the other, until it is killed.
pub(crate) fn serve() -> std::io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)).into())?;
    socket.listen(4096)?;
    let listener = std::net::TcpListener::from(socket);
    let mut request = [0; 2048];
    for mut stream in listener.incoming().flatten() {
        let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
        // A check that only connects is gone by now.
        if stream.read(&mut request).is_ok_and(|n| n > 0) {
            let _ =
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n");
        }
    }
    Ok(())
}
