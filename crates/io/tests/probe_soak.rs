//! Ten thousand failures in every phase of every type of check, through the prober: what they took is given back.
//!
//! It lasts until there were so many, and half a minute at most; `PROBE_SOAK_SECONDS=600` makes it last that long, and wants
//! all of them in that time, of every type of check and in every phase.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use probe_support::*;
use standfast_core::health::Outcome;
use standfast_core::machine::Rng;
use standfast_core::plan::{
    Check, CheckId, DnsProbe, DnsTransport, DnsType, ExecProbe, Expect, GrpcCall, GrpcProbe, HttpProbe,
    PingProbe, Probe, ProxyProtocol, Secret, Target, TcpProbe, UdpProbe, Via,
};
use standfast_io::probe::Prober;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// So many failures are enough, and there must be as many in ten minutes.
const ENOUGH: u64 = 10_000;
const FLOOR: u64 = 1000;

/// Every type of check that can fail by itself.
const KINDS: [&str; 7] = ["http", "tcp", "grpc", "dns", "udp", "ping", "exec"];

/// What a failure says of each phase in which it can be.
const PHASES: [&str; 20] = [
    "connection refused",
    "while connecting",
    "while waiting for the TLS handshake",
    "TLS handshake: ",
    "while waiting for the proxy",
    "proxy: connection closed",
    "while waiting for response headers",
    "the server speaks TLS, and this is a plain",
    "response headers: connection closed without an answer",
    "while reading the body",
    "body does not hold",
    "connection reset",
    "status 503",
    "while waiting for the expected answer",
    "which is not as expected",
    "closed without a word",
    "no answer from",
    "ICMP port unreachable",
    "while running",
    "exit 7",
];
const CHECKS: u64 = 240;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Processes that this one started, those not yet buried included.
fn children() -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .map(|text| text.split_whitespace().count())
        .sum()
}

fn memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// How a server misbehaves.
#[derive(Debug, Clone, Copy)]
enum Way {
    Silent,
    Reset,
    Closes,
    HalfHead,
    Drip,
    Endless,
    Garbage,
    Refuses,
}

/// A server that misbehaves in one way until the other end is gone.
async fn server(way: Way) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(misbehave(stream, way));
        }
    });
    address
}

async fn misbehave(mut stream: TcpStream, way: Way) {
    let mut heard = [0; 4096];
    let first: &[u8] = match way {
        Way::Silent | Way::Closes | Way::Reset => b"",
        Way::HalfHead => b"HTTP/1.1 200 OK\r\nContent-",
        Way::Drip | Way::Endless => b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n",
        Way::Garbage => b"\x16\x03\x03\xff\xff\x00\x00\x00PRI *",
        Way::Refuses => b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n",
    };
    if let Way::Reset = way {
        let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        return;
    }
    let _ = stream.read(&mut heard).await;
    let mut more = stream.write_all(first).await.is_ok() && !matches!(way, Way::Closes | Way::Refuses);
    while more {
        more = match way {
            Way::Endless => stream.write_all(&heard).await.is_ok(),
            Way::Drip => {
                tokio::time::sleep(Duration::from_millis(3)).await;
                stream.write_all(b"a").await.is_ok()
            }
            _ => matches!(stream.read(&mut heard).await, Ok(1..)),
        };
    }
}

/// Where nobody listens, nobody accepts, and nobody answers.
struct Void {
    refused: SocketAddr,
    full: SocketAddr,
    silent: SocketAddr,
    _held: (socket2::Socket, Vec<socket2::Socket>, UdpSocket),
}

impl Void {
    fn new() -> Self {
        let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let socket = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let listener = socket();
        listener.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        listener.listen(0).unwrap();
        let full = listener.local_addr().unwrap();
        let fillers = (0..2).map(|_| {
            let filler = socket();
            filler.set_nonblocking(true).unwrap();
            let _ = filler.connect(&full);
            filler
        });
        let fillers = fillers.collect();
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        Self {
            refused,
            full: full.as_socket().unwrap(),
            silent: silent.local_addr().unwrap(),
            _held: (listener, fillers, silent),
        }
    }
}

/// A check that fails, whatever it is, and its type; `None` now and then, so that some are taken away.
fn failing(rng: &mut Rng, servers: &[SocketAddr], void: &Void) -> Option<(&'static str, Check)> {
    let mut pick = |n: u64| rng.below(n);
    if pick(10) == 0 {
        return None;
    }
    let at = match pick(8) {
        0 => void.refused,
        1 => void.full,
        _ => servers[pick(servers.len() as u64) as usize],
    };
    let secure = (pick(3) == 0).then(|| {
        let mut options = tls("web.example.test", None);
        options.insecure = true;
        options
    });
    let target = Target::Address(at);
    let probe = match pick(12) {
        0..5 => Probe::Http(Box::new(HttpProbe {
            text: Some("never".into()),
            keep_alive: pick(2) == 0,
            tls: secure,
            proxy: (pick(4) == 0).then(|| Secret::new(format!("http://user:pass@{at}"))),
            ..HttpProbe::new(target, "web.example.test")
        })),
        5..8 => Probe::Tcp(Box::new(TcpProbe {
            send: b"PING\r\n".to_vec(),
            expect: Some(Expect::Bytes(b"+PONG".to_vec())),
            tls: secure,
            reset: pick(2) == 0,
            ..TcpProbe::new(target)
        })),
        8 => Probe::Grpc(Box::new(GrpcProbe {
            target,
            tls: secure,
            authority: "web.example.test".into(),
            call: GrpcCall::Health { service: String::new() },
            metadata: Vec::new(),
            keep_alive: pick(2) == 0,
        })),
        9 => {
            let names = vec!["www.example.test".into()];
            let (resolver, transport) = match pick(4) {
                0 => (void.silent, DnsTransport::Udp),
                1 => (void.refused, DnsTransport::Udp),
                _ => (at, secure.map_or(DnsTransport::Tcp, DnsTransport::Tls)),
            };
            let dns = DnsProbe::new(Target::Address(resolver), names, DnsType::A);
            Probe::Dns(Box::new(DnsProbe { transport, ..dns }))
        }
        10 => {
            let to = if pick(2) == 0 { void.silent } else { void.refused };
            Probe::Udp(UdpProbe::new(Target::Address(to), vec![0]))
        }
        // A reserved address: no answer, or no way to it.
        _ if pick(2) == 0 => {
            Probe::Ping(PingProbe::new("240.0.0.1".parse().unwrap(), Duration::from_millis(30)))
        }
        _ => Probe::Exec(Box::new(ExecProbe {
            argv: ["/bin/sh", "-c", if pick(2) == 0 { "sleep 60 & sleep 60" } else { "exit 7" }]
                .map(Into::into)
                .to_vec(),
            env: BTreeMap::new(),
            directory: PathBuf::from("/"),
            user: None,
            output_limit: 512,
            nagios: false,
        })),
    };
    let connects = matches!(probe, Probe::Http(_) | Probe::Tcp(_));
    let proxy_protocol = (connects && pick(4) == 0).then_some(ProxyProtocol::V1);
    let kind = match &probe {
        Probe::Http(_) => "http",
        Probe::Tcp(_) => "tcp",
        Probe::Grpc(_) => "grpc",
        Probe::Dns(_) => "dns",
        Probe::Udp(_) => "udp",
        Probe::Ping(_) => "ping",
        Probe::Exec(_) => "exec",
        Probe::Process(_) => "process",
        Probe::External | Probe::Members(_) => unreachable!("nothing runs"),
    };
    let via = Via { proxy_protocol, ..Via::default() };
    Some((kind, Check { via, ..check(probe, 100 + pick(100), 20 + pick(60)) }))
}

/// How often each type of check failed, and how often each phase was named.
#[derive(Debug, Default)]
struct Tally {
    kinds: BTreeMap<String, u64>,
    phases: BTreeMap<&'static str, u64>,
    /// What was said that names none of the phases, without its numbers.
    others: BTreeMap<String, u64>,
}

impl Tally {
    fn note(&mut self, id: &CheckId, detail: &str) {
        *self.kinds.entry(id.vip.to_string()).or_default() += 1;
        match PHASES.iter().find(|phase| detail.contains(**phase)) {
            Some(phase) => *self.phases.entry(phase).or_default() += 1,
            None if self.others.len() < 64 => {
                let text: String = detail.chars().filter(|c| !c.is_ascii_digit()).take(60).collect();
                *self.others.entry(text).or_default() += 1;
            }
            None => {}
        }
    }

    fn rarest(&self) -> (&'static str, u64) {
        let kinds = KINDS.iter().map(|kind| (*kind, self.kinds.get(*kind).copied().unwrap_or(0)));
        let phases = PHASES.iter().map(|phase| (*phase, self.phases.get(phase).copied().unwrap_or(0)));
        kinds.chain(phases).min_by_key(|(_, n)| *n).unwrap()
    }
}

#[test]
fn after_ten_thousand_failures_everything_is_given_back() {
    let asked = std::env::var("PROBE_SOAK_SECONDS").ok().and_then(|s| s.parse().ok());
    let limit = Duration::from_secs(asked.unwrap_or(30));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let ways = [
        Way::Silent,
        Way::Reset,
        Way::Closes,
        Way::HalfHead,
        Way::Drip,
        Way::Endless,
        Way::Garbage,
        Way::Refuses,
    ];
    let servers: Vec<_> = ways.into_iter().map(|way| runtime.block_on(server(way))).collect();
    let void = Void::new();
    let (failures, others) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let wrong = Arc::new(Mutex::new(Vec::new()));
    let tally = Arc::new(Mutex::new(Tally::default()));
    let (f, o, w, t) = (Arc::clone(&failures), Arc::clone(&others), Arc::clone(&wrong), Arc::clone(&tally));
    let before = (descriptors(), threads(), children());
    let prober = Prober::start(move |ended| {
        for (id, verdict) in ended {
            match verdict.outcome {
                Outcome::Bad => {
                    t.lock().unwrap().note(&id, &verdict.detail);
                    f.fetch_add(1, Ordering::Relaxed)
                }
                _ => o.fetch_add(1, Ordering::Relaxed),
            };
            if verdict.outcome == Outcome::Good || verdict.detail.contains("panicked") {
                w.lock().unwrap().push((id, verdict));
            }
        }
    })
    .unwrap();
    let mut rng = Rng::new(11);
    let mut checks = BTreeMap::new();
    let start = Instant::now();
    let mut settled = None;
    while start.elapsed() < limit && (asked.is_some() || failures.load(Ordering::Relaxed) < ENOUGH) {
        // A quarter of them are others from here on, in the middle of whatever they do.
        for _ in 0..CHECKS / 4 {
            let place = rng.below(CHECKS).to_string();
            checks.retain(|id: &CheckId, _| *id.check != *place);
            if let Some((kind, check)) = failing(&mut rng, &servers, &void) {
                checks.insert(CheckId::new(kind, &place), check);
            }
        }
        prober.set(&checks).unwrap();
        for id in checks.keys().step_by(20) {
            // Nobody waits for it.
            let _ = prober.run_now(id);
        }
        std::thread::sleep(Duration::from_millis(500));
        if settled.is_none() && failures.load(Ordering::Relaxed) > ENOUGH / 4 {
            settled = Some(memory_kib());
        }
    }
    let (failed, other) = (failures.load(Ordering::Relaxed), others.load(Ordering::Relaxed));
    let grown = settled.map(|kib| memory_kib().saturating_sub(kib));
    let _ = writeln!(
        std::io::stderr(),
        "{failed} failures and {other} runs without a result in {:?}, memory grew by {grown:?} KiB",
        start.elapsed()
    );
    let tally = std::mem::take(&mut *tally.lock().unwrap());
    let _ = writeln!(std::io::stderr(), "{tally:#?}");
    prober.set(&BTreeMap::new()).unwrap();
    drop(prober);
    assert!(wrong.lock().unwrap().is_empty(), "{:?}", wrong.lock().unwrap().first());
    let floor = asked.map_or(FLOOR, |seconds| ENOUGH * seconds / 600);
    assert!(failed >= floor, "only {failed} failures, want {floor}");
    // In a short run on a slow machine the rarest phase may not have had its turn.
    if let Some(seconds) = asked {
        let ((what, times), least) = (tally.rarest(), (seconds / 60).max(1));
        assert!(times >= least, "only {times} failures of or in {what:?}, want {least}");
    }
    assert!(grown.is_none_or(|kib| kib < 32 << 10), "memory grew by {grown:?} KiB");
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let now = (descriptors(), threads(), children());
        if now.0 <= before.0 && now.1 <= before.1 && now.2 <= before.2 {
            let _ =
                writeln!(std::io::stderr(), "descriptors, threads and children: {before:?}, then {now:?}");
            return;
        }
        assert!(Instant::now() < end, "descriptors, threads and children were {before:?} and are {now:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
