//! Raw servers that misbehave in one way each, and probes to point at them.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use standfast_core::health::{Outcome, Verdict};
use standfast_core::plan::{Check, CheckId, HttpProbe, Probe, Target, TcpProbe, TlsOptions};
use standfast_io::probe::prepare;

/// A loopback port for a server that is started later, or for nobody: never given twice by this process, and none that the
/// kernel takes for a connection that leaves.
pub(crate) fn free() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 10_000).unwrap();
    loop {
        let address = SocketAddr::from((
            [127, 0, 0, 1],
            15_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 15_000,
        ));
        // Not by listening: a child that another thread is just making would inherit the listener, and hold the port until
        // its program is read from a cold disk.
        if TcpStream::connect(address).is_err() {
            return address;
        }
    }
}

/// A server on a free loopback port that gives each connection to `serve` on a thread of its own.
pub(crate) fn server(serve: impl Fn(TcpStream) + Send + Clone + 'static) -> SocketAddr {
    server_at("127.0.0.1:0", serve)
}

/// A server on a loopback address, or on a free port of it.
pub(crate) fn server_at(at: &str, serve: impl Fn(TcpStream) + Send + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind(at).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

/// A server that reads a request head and then sends these bytes and closes.
pub(crate) fn answers(bytes: impl Into<Vec<u8>>) -> SocketAddr {
    let bytes = bytes.into();
    server(move |mut stream| {
        read_head(&mut stream);
        let _ = stream.write_all(&bytes);
    })
}

/// An answer of status 200 with this body.
pub(crate) fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Reads to the end of a request head; empty at the end of the stream.
pub(crate) fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut octet = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut octet) {
            Ok(1) => head.push(octet[0]),
            _ => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// A plain GET of `/` at `target`.
pub(crate) fn get(target: SocketAddr) -> HttpProbe {
    HttpProbe::new(Target::Address(target), "web.example.test")
}

/// TLS for `name` that trusts the CA file `ca`.
pub(crate) fn tls(name: &str, ca: Option<std::path::PathBuf>) -> TlsOptions {
    TlsOptions {
        insecure: false,
        ca_cert: ca,
        client_cert: None,
        server_name: name.into(),
        min_remaining: Duration::ZERO,
    }
}

/// Runs `probe` once; again if this host was too busy to judge it.
pub(crate) async fn run(probe: HttpProbe, millis: u64) -> Verdict {
    once(Probe::Http(Box::new(probe)), millis).await
}

/// Runs `probe` once; again if this host was too busy to judge it.
pub(crate) async fn once(probe: Probe, millis: u64) -> Verdict {
    let prepared = prepare(&Check::new(probe)).unwrap();
    for _ in 0..10 {
        let verdict = prepared.run(Duration::from_millis(millis)).await;
        if verdict.outcome != Outcome::NoResult || !verdict.detail.contains("this host was stalled") {
            return verdict;
        }
    }
    panic!("this host is too busy to test anything");
}

/// Asserts what a verdict says.
#[track_caller]
pub(crate) fn assert_says(verdict: &Verdict, outcome: Outcome, detail: &str) {
    assert!(
        verdict.outcome == outcome && verdict.detail.contains(detail),
        "{outcome:?} {detail:?} is not in {verdict:?}"
    );
}

/// A connection to `target`.
pub(crate) fn tcp(target: SocketAddr) -> Probe {
    Probe::Tcp(Box::new(TcpProbe::new(Target::Address(target))))
}

/// A check of `probe`.
pub(crate) fn check(probe: Probe, interval: u64, timeout: u64) -> Check {
    let interval = Duration::from_millis(interval);
    Check { interval, fast_interval: interval, timeout: Duration::from_millis(timeout), ..Check::new(probe) }
}

/// The id `vip/name`.
pub(crate) fn id(name: &str) -> CheckId {
    CheckId::new("vip", name)
}

/// A UDP server on loopback that answers each datagram with what `answer` makes of it.
pub(crate) fn udp_server(answer: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((n, from)) = socket.recv_from(&mut buffer) {
            for datagram in answer(&buffer[..n]) {
                let _ = socket.send_to(&datagram, from);
            }
        }
    });
    address
}

/// Moves this thread into a network namespace of its own, which is gone with the thread; said aloud if it may not.
pub(crate) fn own_namespace(test: &str) -> bool {
    // SAFETY: unshare takes a number and touches no memory.
    #[expect(unsafe_code, reason = "the standard library has no call for it")]
    let made = unsafe { libc::unshare(libc::CLONE_NEWNET) == 0 };
    if !made {
        eprintln!("SKIP {test}: no network namespace: {}", std::io::Error::last_os_error());
    }
    made
}

/// Runs a program to its end; whether it went well.
pub(crate) fn command(line: &str) -> bool {
    let mut words = line.split(' ');
    std::process::Command::new(words.next().unwrap()).args(words).status().is_ok_and(|s| s.success())
}

/// A runtime that stays on this thread, and so in its namespaces.
pub(crate) fn here() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
