//! Prints what checks cost: processor time, memory and threads of a prober at so many checks a second.
//!
//! `cargo run --release -p standfast-io --example probe_cost -- [http|tcp|reset] [checks] [seconds]`. The server is a second
//! process, and `reset` is tcp that closes with a reset.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use standfast_core::health::Outcome;
use standfast_core::plan::{Check, CheckId, HttpProbe, Probe, Target, TcpProbe};
use standfast_io::probe::Prober;

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Fallible<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|a| a == "serve") {
        return serve();
    }
    let kind = arguments.first().map_or("http", String::as_str);
    let checks: usize = arguments.get(1).map_or(Ok(1000), |a| a.parse())?;
    let seconds: u64 = arguments.get(2).map_or(Ok(10), |a| a.parse())?;
    let mut server = Command::new(std::env::current_exe()?).arg("serve").stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    if let Some(out) = &mut server.stdout {
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line)?;
    }
    let measured = measure(kind, line.trim().parse()?, checks, Duration::from_secs(seconds));
    server.kill()?;
    server.wait()?;
    measured
}

fn measure(kind: &str, target: SocketAddr, checks: usize, time: Duration) -> Fallible<()> {
    let (good, other) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (g, o) = (Arc::clone(&good), Arc::clone(&other));
    let prober = Prober::start(move |ended| {
        for (_, verdict) in ended {
            let counter = if verdict.outcome == Outcome::Good { &g } else { &o };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    })?;
    let target = Target::Address(target);
    let probe = match kind {
        "http" => Probe::Http(Box::new(http(target))),
        "tcp" => Probe::Tcp(Box::new(TcpProbe::new(target))),
        "reset" => Probe::Tcp(Box::new(TcpProbe { reset: true, ..TcpProbe::new(target) })),
        other => {
            return Err(format!("{other}: not a type of check here; there are http, tcp and reset").into());
        }
    };
    let check = Check { timeout: Duration::from_millis(500), ..Check::new(probe) };
    let id = |n: usize| CheckId::new("cost", &n.to_string());
    let plan: BTreeMap<_, _> = (0..checks).map(|n| (id(n), check.clone())).collect();
    let start = Instant::now();
    prober.set(&plan).map_err(|e| format!("{e:?}"))?;
    println!("{checks} checks set in {:?}", start.elapsed());
    std::thread::sleep(Duration::from_secs(2));
    // So says whoever judges the runs.
    plan.keys().for_each(|id| prober.hurry(id, false));
    let (runs, (user, system), begin) =
        (good.load(Ordering::Relaxed) + other.load(Ordering::Relaxed), ticks()?, Instant::now());
    std::thread::sleep(time);
    let runs = good.load(Ordering::Relaxed) + other.load(Ordering::Relaxed) - runs;
    // The kernel counts processor time in hundredths of a second.
    let (user_now, system_now) = ticks()?;
    let (user, system) = ((user_now - user) as f64 / 100.0, (system_now - system) as f64 / 100.0);
    let busy = user + system;
    let passed = begin.elapsed().as_secs_f64();
    let counts = prober.counts();
    let overruns: u64 = counts.values().map(|c| c.overruns).sum();
    let late: u64 = counts.values().map(|c| c.late).sum();
    println!(
        "{:.0} runs a second, {} not good, {overruns} overruns, {late} late",
        runs as f64 / passed,
        other.load(Ordering::Relaxed)
    );
    println!("{:.1} % of one processor for 1000 checks a second", busy / runs as f64 * 1000.0 * 100.0);
    let each = |time: f64| time / runs as f64 * 1e6;
    println!("{:.1} us a check in this program and {:.1} us in the kernel", each(user), each(system));
    let status = std::fs::read_to_string("/proc/self/status")?;
    for line in status.lines().filter(|l| l.starts_with("VmHWM") || l.starts_with("Threads")) {
        println!("{line}");
    }
    Ok(())
}

fn http(target: Target) -> HttpProbe {
    HttpProbe {
        path: "/healthz".into(),
        text: Some("ok".into()),
        ..HttpProbe::new(target, "web.example.test")
    }
}

/// Processor time of this process so far, in its own code and in the kernel.
fn ticks() -> Fallible<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field =
        |n: usize| Ok::<_, Box<dyn std::error::Error>>(fields.get(n).ok_or("stat is short")?.parse()?);
    Ok((field(11)?, field(12)?))
}

/// Answers every request with 200 until it is killed.
fn serve() -> Fallible<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let mut buffer = [0; 4096];
    for mut stream in listener.incoming().flatten() {
        let _ = stream.read(&mut buffer);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n");
    }
    Ok(())
}
