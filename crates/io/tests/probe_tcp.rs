//! The `tcp` check against servers that greet, answer, lie, drip and break off, plain and over TLS, and how it leaves this host.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;
mod tls_support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use probe_support::*;
use rustls::{ServerConnection, StreamOwned};
use standfast_core::health::Outcome::{Bad, Good, NoResult};
use standfast_core::health::Verdict;
use standfast_core::plan::{Check, Expect, Probe, ProxyProtocol, Target, TcpProbe, Via};
use standfast_io::probe::prepare;
use tls_support::*;

fn to(target: SocketAddr) -> TcpProbe {
    TcpProbe::new(Target::Address(target))
}

fn text(text: &str) -> Option<Expect> {
    Some(Expect::Bytes(text.into()))
}

fn regex(text: &str) -> Option<Expect> {
    Some(Expect::Regex(text.into()))
}

async fn ask(probe: TcpProbe, millis: u64) -> Verdict {
    once(Probe::Tcp(Box::new(probe)), millis).await
}

/// Says these one after the other, each in a segment of its own, and closes.
fn says(parts: &'static [&'static [u8]]) -> SocketAddr {
    server(move |mut s| {
        let _ = s.set_nodelay(true);
        for part in parts {
            let _ = s.write_all(part);
            sleep(Duration::from_millis(10));
        }
    })
}

#[tokio::test]
async fn a_banner_is_heard_however_it_is_cut() {
    let whole = says(&[b"220 mail.example.test ESMTP\r\n"]);
    let cut = says(&[b"22", b"0 mail.exa", b"mple.test", b" ESMTP\r\n"]);
    for target in [whole, cut] {
        for expect in [text("mail.example.test ESMTP"), regex("^220[ -].*ESMTP")] {
            let v = ask(TcpProbe { expect, ..to(target) }, 5000).await;
            assert_says(&v, Good, &format!("connected to {target}, which said what was expected"));
            let saw = v.details.unwrap();
            assert!(saw.connect.is_some() && saw.first_byte.is_some() && saw.body_bytes.unwrap() >= 20);
            assert_eq!(saw.remote, Some(target));
            assert!(saw.local.unwrap().ip().is_loopback() && saw.tls.is_none());
        }
    }
}

#[tokio::test]
async fn what_came_instead_is_shown_escaped_and_cut() {
    let v = ask(TcpProbe { expect: text("220 "), ..to(says(&[b"554 \x1b[2J no\r\n"])) }, 5000).await;
    assert_says(&v, Bad, r#"closed after "554 \x1b[2J no\r\n", which is not as expected"#);
    let long = says(&[&[b'z'; 5000]]);
    let v = ask(TcpProbe { expect: regex("^220"), ..to(long) }, 5000).await;
    assert_says(&v, Bad, &format!("closed after \"{}\"..., which is not as expected", "z".repeat(60)));
    let v = ask(TcpProbe { expect: text("220"), ..to(says(&[])) }, 5000).await;
    assert_says(&v, Bad, "closed without a word");
    let target = server(|mut s| {
        let _ = s.write_all(b"421 busy\r\n");
        sleep(Duration::from_secs(30));
    });
    let v = ask(TcpProbe { expect: text("220"), ..to(target) }, 300).await;
    assert_says(
        &v,
        Bad,
        &format!("while waiting for the expected answer of {target}, which said \"421 busy\\r\\n\""),
    );
    assert!(v.timed_out);
}

#[tokio::test]
async fn neither_what_was_sent_nor_what_is_expected_is_told() {
    // Redis says what it did not understand.
    let parrot = server(|mut s| {
        let mut heard = [0; 100];
        let n = s.read(&mut heard).unwrap_or_default();
        let _ = s.write_all(&[b"-ERR unknown command ", &heard[..n]].concat());
    });
    let probe = TcpProbe { send: b"AUTH hunter2\r\n".to_vec(), expect: text("+s3cret"), ..to(parrot) };
    let v = ask(probe.clone(), 5000).await;
    assert_says(&v, Bad, r#"closed after "-ERR unknown command AUTH ***\r\n", which is not as expected"#);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = Target::Address(silent.local_addr().unwrap());
    let v = ask(TcpProbe { target, ..probe }, 200).await;
    assert!(v.timed_out && !v.detail.contains("hunter2") && !v.detail.contains("s3cret"), "{v:?}");
}

#[tokio::test]
async fn every_phase_that_hangs_is_named() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().map(|a| (a, silent)).unwrap();
    let v = ask(TcpProbe { expect: text("+PONG"), send: b"PING\r\n".to_vec(), ..to(silent.0) }, 150).await;
    assert_says(
        &v,
        Bad,
        &format!("timed out after 150 ms while waiting for the expected answer of {}", silent.0),
    );
    let v = ask(TcpProbe { send: vec![b'x'; 64 << 20], ..to(silent.0) }, 500).await;
    assert_says(&v, Bad, &format!("timed out after 500 ms while sending to {}", silent.0));
    let mut options = tls(NAME, None);
    options.insecure = true;
    let v = ask(TcpProbe { tls: Some(options), ..to(silent.0) }, 150).await;
    assert_says(&v, Bad, "while waiting for the TLS handshake");
}

#[tokio::test]
async fn at_most_64_kib_are_read_and_that_is_said() {
    let endless = server(|mut s| while s.write_all(&[b'a'; 4096]).is_ok() {});
    let v = ask(TcpProbe { expect: text("b"), ..to(endless) }, 10_000).await;
    assert_says(&v, Bad, "what is expected is not in the first 65536 bytes from");
    assert!(v.detail.contains("the rest was not read"));
    // One octet at a time costs no more than time.
    let drip = server(|mut s| {
        let _ = s.set_nodelay(true);
        while s.write_all(b"a").is_ok() {}
    });
    let start = Instant::now();
    let v = ask(TcpProbe { expect: regex("(a+b)+$"), ..to(drip) }, 20_000).await;
    assert_says(&v, Bad, "is not in the first 65536 bytes");
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_reset_is_told_unless_what_was_wanted_came_before() {
    let resets = |what: &'static [u8]| {
        server(move |mut s| {
            let _ = s.write_all(what);
            sleep(Duration::from_millis(50));
            let _ = socket2::SockRef::from(&s).set_linger(Some(Duration::ZERO));
        })
    };
    let v = ask(TcpProbe { expect: text("220"), ..to(resets(b"")) }, 5000).await;
    assert_says(&v, Bad, "connection reset by peer");
    assert_says(&ask(TcpProbe { expect: text("220"), ..to(resets(b"220 x")) }, 5000).await, Good, "");
    let free = free();
    assert_says(&ask(to(free), 5000).await, Bad, &format!("connect {free}: connection refused"));
}

#[tokio::test]
async fn tls_is_shaken_before_anything_is_said_and_the_certificates_end_is_told() {
    let ca = Authority::new();
    let leaf = ca.good(NAME);
    let config = Arc::new(config(&leaf, &[]));
    let target = server(move |stream| {
        let mut tls = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), stream);
        let mut asked = [0; 6];
        if tls.read_exact(&mut asked).is_ok() && &asked == b"PING\r\n" {
            let _ = tls.write_all(b"+PONG\r\n");
            let _ = tls.flush();
        }
        // Until the other end is gone.
        let _ = tls.read(&mut asked);
    });
    let mut probe =
        TcpProbe { tls: Some(tls(NAME, Some(ca.file()))), send: b"PING\r\n".to_vec(), ..to(target) };
    probe.expect = text("+PONG");
    for reset in [false, true] {
        probe.reset = reset;
        let v = ask(probe.clone(), 5000).await;
        assert_says(&v, Good, &format!("connected with TLS to {target}, which said what was expected"));
        let saw = v.details.unwrap();
        assert!(saw.tls.is_some_and(|t| t > Duration::ZERO));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        assert!(saw.certificate_expires.is_some_and(|end| end > now && end < now + 400 * 86_400));
    }
    probe.tls.as_mut().unwrap().min_remaining = Duration::from_secs(86_400 * 10_000);
    let v = ask(probe.clone(), 5000).await;
    assert_says(&v, Bad, "certificate is valid for another");
    assert!(v.details.unwrap().certificate_expires.is_some());
    probe.tls = Some(tls("other.example.test", Some(ca.file())));
    assert_says(&ask(probe, 5000).await, Bad, "certificate not valid for name");
    // A server without TLS, and one that talks nonsense.
    let mut plain = TcpProbe { tls: Some(tls(NAME, Some(ca.file()))), ..to(says(&[b"220 mail\r\n"])) };
    assert_says(&ask(plain.clone(), 5000).await, Bad, "TLS handshake: ");
    plain.target = Target::Address(says(&[b"\x16\x03\x03\xff\xff\x00"]));
    assert_says(&ask(plain, 5000).await, Bad, "TLS handshake: ");
}

#[tokio::test]
async fn a_check_that_resets_knocks_and_the_servers_program_never_hears_of_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let target = listener.local_addr().unwrap();
    let mark = Via { proxy_protocol: Some(ProxyProtocol::V1), ..Via::default() };
    for (reset, via, heard) in [(true, Via::default(), 0), (false, Via::default(), 20), (true, mark, 20)] {
        let check = Check { via, ..Check::new(Probe::Tcp(Box::new(TcpProbe { reset, ..to(target) }))) };
        let prepared = prepare(&check).unwrap();
        for _ in 0..20 {
            assert_says(&prepared.run(Duration::from_secs(5)).await, Good, "connected to");
        }
        let accepted = std::iter::from_fn(|| listener.accept().ok()).count();
        // The kernel waits for us for a fifth of a second at least, which a busy host may take.
        let near = if heard == 0 { accepted < 10 } else { accepted == heard };
        assert!(near, "reset {reset}: {accepted} accepted");
    }
    // Nobody there is told as ever.
    drop(listener);
    assert_says(&ask(TcpProbe { reset: true, ..to(target) }, 5000).await, Bad, "connection refused");
}

#[tokio::test]
async fn a_check_that_resets_leaves_nothing_in_time_wait() {
    if !own_namespace("a_check_that_resets_leaves_nothing_in_time_wait") || !command("ip link set lo up") {
        return;
    }
    let target = server(|mut s| {
        let mut octet = [0];
        let _ = s.read(&mut octet);
    });
    let waiting = || {
        let table = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
        // 06 is TIME_WAIT.
        table.lines().filter(|l| l.split_whitespace().nth(3) == Some("06")).count()
    };
    // A slow machine uses some of those that wait again.
    for (reset, least, most) in [(true, 0, 0), (false, 1, 20)] {
        for _ in 0..20 {
            assert_says(&ask(TcpProbe { reset, ..to(target) }, 5000).await, Good, "");
        }
        let end = Instant::now() + Duration::from_secs(5);
        while !(least..=most).contains(&waiting()) {
            assert!(Instant::now() < end, "reset {reset}: {} in TIME_WAIT", waiting());
            sleep(Duration::from_millis(20));
        }
    }
}

#[tokio::test]
async fn the_connection_leaves_as_told_and_says_what_is_missing() {
    if !own_namespace("the_connection_leaves_as_told_and_says_what_is_missing") {
        return;
    }
    for line in [
        "ip link set lo up",
        "ip link add va type veth peer name vb",
        "ip addr add 192.0.2.1/24 dev va",
        "ip addr add 192.0.2.7/24 dev va",
        "ip link set va up",
        "ip link set vb up",
        "nft add table inet t",
        "nft add chain inet t out { type filter hook output priority 0; }",
        "nft add rule inet t out meta mark 7 tcp dport 4007 reject with tcp reset",
    ] {
        if !command(line) {
            eprintln!("SKIP the_connection_leaves_as_told_and_says_what_is_missing: {line} failed");
            return;
        }
    }
    let listener = TcpListener::bind("0.0.0.0:4007").unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = write!(stream, "{}", stream.peer_addr().unwrap().ip());
        }
    });
    let target = "192.0.2.1:4007".parse().unwrap();
    let leaving = async |via: Via, expect: Option<Expect>| {
        let probe = Probe::Tcp(Box::new(TcpProbe { expect, ..to(target) }));
        prepare(&Check { via, ..Check::new(probe) }).unwrap().run(Duration::from_secs(3)).await
    };
    let source = "192.0.2.7".parse().unwrap();
    let v = leaving(Via { source: Some(source), ..Via::default() }, text("192.0.2.7")).await;
    assert_says(&v, Good, "");
    assert_eq!(v.details.unwrap().local.unwrap().ip(), source);
    assert_says(&leaving(Via { mark: Some(7), ..Via::default() }, None).await, Bad, "connection refused");
    assert_says(&leaving(Via { mark: Some(8), ..Via::default() }, None).await, Good, "");
    // What leaves by a veth does not come to a loopback address.
    let by = |name: &str| Via { interface: Some(name.into()), ..Via::default() };
    let here = async |via: Via| {
        let probe = Probe::Tcp(Box::new(to("127.0.0.1:4007".parse().unwrap())));
        prepare(&Check { via, ..Check::new(probe) }).unwrap().run(Duration::from_secs(1)).await
    };
    assert_says(&here(by("lo")).await, Good, "");
    assert!(here(by("vb")).await.outcome != Good);
    assert_says(&leaving(by("none0"), None).await, Bad, "by interface none0: no such device");
    // Without the capability that is said, and it says nothing about the server.
    drop_capabilities();
    let v = leaving(Via { mark: Some(8), ..Via::default() }, None).await;
    assert_says(&v, NoResult, "with mark 8: operation not permitted (it needs CAP_NET_ADMIN)");
}

/// Takes every capability from this thread.
#[expect(unsafe_code, reason = "the standard library has no call for it")]
fn drop_capabilities() {
    // Version 3, this thread; no capability in any set.
    let header: [u32; 2] = [0x2008_0522, 0];
    let none = [0u32; 6];
    // SAFETY: the kernel reads a header of 8 octets and, for version 3, two sets of 12, all of which outlive the call.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) }, 0);
}

#[tokio::test]
async fn the_proxy_header_is_what_the_server_hears_first() {
    let (tell, told) = mpsc::channel();
    let target = server(move |mut s| {
        let mut heard = Vec::new();
        let _ = s.read_to_end(&mut heard);
        tell.send((s.peer_addr().unwrap(), heard)).unwrap();
    });
    for version in [ProxyProtocol::V1, ProxyProtocol::V2] {
        let probe = Probe::Tcp(Box::new(TcpProbe { send: b"hello".to_vec(), ..to(target) }));
        let via = Via { proxy_protocol: Some(version), ..Via::default() };
        let v = prepare(&Check { via, ..Check::new(probe) }).unwrap().run(Duration::from_secs(5)).await;
        assert_says(&v, Good, "");
        let (client, heard) = told.recv_timeout(Duration::from_secs(5)).unwrap();
        let line =
            format!("PROXY TCP4 {} {} {} {}\r\n", client.ip(), target.ip(), client.port(), target.port());
        let header: &[u8] = match version {
            ProxyProtocol::V1 => line.as_bytes(),
            ProxyProtocol::V2 => b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
        };
        assert_eq!(heard, [header, b"hello"].concat());
    }
}

#[tokio::test]
async fn a_unix_socket_is_asked_and_takes_nothing_that_it_has_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"ready");
        }
    });
    let probe = TcpProbe { expect: text("ready"), ..TcpProbe::new(Target::Unix(path.clone())) };
    assert_says(&ask(probe.clone(), 5000).await, Good, &format!("connected to {}", path.display()));
    let via = Via { mark: Some(1), ..Via::default() };
    let e = prepare(&Check { via, ..Check::new(Probe::Tcp(Box::new(probe))) }).unwrap_err();
    assert!(e.contains("a unix socket has no source address"), "{e}");
}

#[tokio::test]
async fn redis_answers_a_ping() {
    let port = free().port();
    let mut redis = match Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .stdout(Stdio::null())
        .spawn()
    {
        Ok(redis) => redis,
        Err(e) => {
            eprintln!("SKIP redis_answers_a_ping: redis-server: {e}");
            return;
        }
    };
    let target: SocketAddr = format!("127.0.0.1:{port}").parse().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(target).is_err() && Instant::now() < end {
        sleep(Duration::from_millis(20));
    }
    let ping = TcpProbe { send: b"PING\r\n".to_vec(), expect: text("+PONG"), ..to(target) };
    let (good, bad) =
        (ask(ping.clone(), 5000).await, ask(TcpProbe { send: b"NONSENSE\r\n".to_vec(), ..ping }, 1000).await);
    redis.kill().unwrap();
    redis.wait().unwrap();
    assert_says(&good, Good, "which said what was expected");
    assert_says(&bad, Bad, "which said \"-ERR unknown command");
}
