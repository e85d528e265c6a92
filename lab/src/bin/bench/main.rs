//! The side-by-side benchmark: how fast and how small standfast is, beside BIRD, FRR, GoBGP and HAProxy in the same run.
//!
//! `cargo run --release -p standfast-lab --bin bench [-- --quick] [--write] [--only checks]
//! [--fault killed]`. Each measurement has namespaces of its own, and they
//! come one after another. It prints one Markdown table and asserts no figure; with `--write` it puts the table into
//! `benches/README.md`. It builds nothing: it takes the binary that `STANDFAST_BIN` names, or the release build.

mod checks;
mod failover;
mod flip;
mod flows;
mod hops;
mod leave;
mod listen;
mod memory;
mod monitor;
mod probe;
mod sample;
mod scale;
mod sessions;
mod speaker;
mod tap;
mod weights;
mod yard;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sample::{Row, table};
use standfast_lab::{Lab, missing};

/// How often each thing is done, and with which binary.
struct Bench {
    standfast: PathBuf,
    flips: usize,
    lives: usize,
    changes: usize,
    /// How many connections are held open in each family.
    connections: usize,
    /// How often each fault happens to a gateway.
    faults: usize,
    /// The one fault that is looked at; `None`: all.
    fault: Option<String>,
    /// How long the cost of checks is watched.
    window: Duration,
    /// How many such windows each has.
    rounds: usize,
    /// How long idle sessions are watched.
    idle: Duration,
}

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|a| a == checks::SERVE) {
        return match checks::serve() {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("cannot serve: {e}");
                ExitCode::FAILURE
            }
        };
    }
    let only = arguments.iter().position(|a| a == "--only").map(|at| {
        arguments.remove(at);
        if at < arguments.len() { arguments.remove(at) } else { String::new() }
    });
    let steps: Vec<_> =
        STEPS.into_iter().filter(|(key, ..)| only.as_ref().is_none_or(|only| only == key)).collect();
    let tables: Vec<_> =
        TABLES.into_iter().filter(|(key, ..)| only.as_ref().is_none_or(|only| only == key)).collect();
    let fault = arguments.iter().position(|a| a == "--fault").map(|at| {
        arguments.remove(at);
        if at < arguments.len() { arguments.remove(at) } else { String::new() }
    });
    if let Some(fault) =
        fault.as_deref().filter(|f| only.as_deref() != Some("failover") || !failover::knows(f))
    {
        eprintln!(
            "--fault {fault}: it goes with --only failover, and is one of {}",
            failover::FAULTS.join(", ")
        );
        return ExitCode::from(2);
    }
    let partial = only.is_some() && arguments.iter().any(|a| a == "--write");
    if steps.is_empty() && tables.is_empty() || partial {
        let keys = STEPS.iter().map(|(key, ..)| *key).chain(TABLES.iter().map(|(key, ..)| *key));
        let keys: Vec<_> = keys.collect();
        eprintln!("--only takes one of {} and goes without --write", keys.join(", "));
        return ExitCode::from(2);
    }
    if let Some(unknown) = arguments.iter().find(|a| *a != "--quick" && *a != "--write") {
        eprintln!(
            "{unknown}: not an option of this benchmark; there are --quick, --write, --only and --fault"
        );
        return ExitCode::from(2);
    }
    let given = |option: &str| arguments.iter().any(|argument| argument == option);
    let standfast = match binary() {
        Ok(path) => path,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    };
    let needs: &[&str] = match &only {
        Some(only) if ["flows", "weights", "failover", "scale", "sessions"].contains(&only.as_str()) => {
            &["root", "ip", "bird", "frr"]
        }
        Some(only) if only == "checks" => &["root", "ip", "haproxy", "keepalived", "cc"],
        _ => &["root", "ip", "tcpdump", "bird", "frr", "gobgp", "haproxy", "keepalived", "cc"],
    };
    standfast_lab::use_standfast(&standfast);
    if let Some(reason) = missing(needs) {
        eprintln!("the benchmark {reason}");
        return ExitCode::FAILURE;
    }
    let bench = if given("--quick") {
        Bench {
            standfast,
            flips: 60,
            lives: 2,
            changes: 4,
            connections: 200,
            faults: if fault.is_some() { 40 } else { 10 },
            fault,
            window: Duration::from_secs(5),
            rounds: 1,
            idle: Duration::from_secs(75),
        }
    } else {
        Bench {
            standfast,
            flips: 240,
            lives: 20,
            changes: 20,
            connections: 1000,
            faults: if fault.is_some() { 200 } else { 50 },
            fault,
            window: Duration::from_secs(8),
            rounds: 3,
            idle: Duration::from_secs(300),
        }
    };
    let start = Instant::now();
    let load = load();
    let mut rows: Vec<Row> = Vec::new();
    for (_, name, measure) in steps {
        eprintln!("[{:5.1} s] {name}", start.elapsed().as_secs_f64());
        rows.extend(measure(&bench));
    }
    let mut text = if rows.is_empty() { String::new() } else { table(&rows) };
    for (_, name, measure) in tables {
        eprintln!("[{:5.1} s] {name}", start.elapsed().as_secs_f64());
        if !text.is_empty() {
            text.push('\n');
        }
        text += &measure(&bench);
    }
    let waited = WAITED.load(Ordering::Relaxed) / 1000;
    eprintln!(
        "[{:5.1} s] done; {waited} s of it went by while other labs were open",
        start.elapsed().as_secs_f64()
    );
    let text = format!("{text}\nLoad average of the machine: {load} before, {} after.\n", self::load());
    println!("{text}");
    if given("--write") {
        return write(&text);
    }
    ExitCode::SUCCESS
}

/// Opens a lab that keeps others away, and remembers how long others kept it waiting.
fn alone(name: &str) -> Lab {
    let start = Instant::now();
    let lab = Lab::new(name, true);
    WAITED.fetch_add(u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    lab
}

/// Milliseconds that went into opening labs, most of them for others' sake.
static WAITED: AtomicU64 = AtomicU64::new(0);

/// Measures one thing, for everybody that does it.
type Measure = fn(&Bench) -> Vec<Row>;

/// The word for `--only`, what is measured, and by what.
const STEPS: [(&str, &str, Measure); 7] = [
    ("flips", "a failing check: to the wire, and to the router's kernel", flip::measure),
    ("lives", "start, SIGTERM and SIGKILL", leave::measure),
    ("memory", "memory", memory::measure),
    ("listener", "the listener", listen::measure),
    ("scale", "ten thousand VIPs", scale::measure),
    ("sessions", "a thousand sessions", sessions::measure),
    ("checks", "what checks cost", checks::measure),
];

/// Measures one thing, and gives a table of its own.
type Tell = fn(&Bench) -> String;

/// What has a table of its own: the word for `--only`, what is measured, and by what.
const TABLES: [(&str, &str, Tell); 3] = [
    ("flows", "connections through a listener", flows::measure),
    ("weights", "shares by link bandwidth", weights::measure),
    ("failover", "fail-over", failover::measure),
];

/// The binary under test.
fn binary() -> Result<PathBuf, String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
    let path =
        std::env::var_os("STANDFAST_BIN").map_or_else(|| target.join("release/standfast"), PathBuf::from);
    let path = path.canonicalize().map_err(|e| {
        format!(
            "{}: {e}; build it with `cargo build --release`, or name another one in STANDFAST_BIN",
            path.display()
        )
    })?;
    Ok(path)
}

/// Runnable tasks over the last minute.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}

/// Replaces the table in the README.
fn write(text: &str) -> ExitCode {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/README.md");
    let replaced = std::fs::read_to_string(&path).map_err(|e| e.to_string()).and_then(|old| {
        let (head, rest) = old.split_once(BEGIN).ok_or(format!("no line {BEGIN}"))?;
        let (_, tail) = rest.split_once(END).ok_or(format!("no line {END}"))?;
        std::fs::write(&path, format!("{head}{BEGIN}\n\n{text}\n{END}{tail}")).map_err(|e| e.to_string())
    });
    match replaced {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{}: {why}", path.display());
            ExitCode::FAILURE
        }
    }
}

const BEGIN: &str = "<!-- figures -->";
const END: &str = "<!-- end of figures -->";
