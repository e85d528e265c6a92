//! The HTTP check against servers that redirect, renew, hide behind a unix socket or close too soon.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where something unexpected happens")]

mod net_support;
mod probe_support;
mod tls_support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::sleep;
use std::time::Duration;

use probe_support::*;
use rustls::{ServerConnection, StreamOwned};
use standfast_core::health::Outcome::{Bad, Good};
use standfast_core::plan::{Check, Follow, HttpProbe, HttpVersion, Probe, Target, TlsOptions};
use standfast_io::probe::{Prepared, prepare};
use tls_support::*;

const LONG: Duration = Duration::from_secs(30);

fn ready(probe: HttpProbe) -> Prepared {
    prepare(&Check::new(Probe::Http(Box::new(probe)))).unwrap()
}

fn moved(status: u16, location: &str) -> String {
    format!("HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n")
}

/// A server that answers every request with this, and tells the heads.
fn tells(at: &str, bytes: impl Into<String>) -> (SocketAddr, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let bytes = bytes.into();
    let address = server_at(at, move |mut s| {
        let _ = tell.send(read_head(&mut s));
        let _ = s.write_all(bytes.as_bytes());
    });
    (address, told)
}

/// `probe`, following up to `limit` redirects; TLS of those trusts `ca`.
fn following(mut probe: HttpProbe, limit: u8, ca: Option<std::path::PathBuf>) -> HttpProbe {
    let insecure = ca.is_none();
    let tls = TlsOptions { insecure, ..probe.tls.clone().unwrap_or(tls(NAME, ca)) };
    probe.follow = Some(Follow { limit, downgrade: false, tls });
    probe
}

#[tokio::test]
async fn a_redirect_is_followed_to_another_host_under_its_own_name() {
    let (b, heads_b) = tells("127.0.0.2:0", ok("here"));
    for status in [301, 302, 303, 307, 308] {
        let (a, heads_a) = tells("127.0.0.1:0", moved(status, &format!("http://{b}/x?y=z#w")));
        let mut probe = following(get(a), 1, None);
        probe.headers =
            vec![("Authorization".into(), "Bearer s3cret".into()), ("Cookie".into(), "s3cret".into())];
        probe.text = Some("here".into());
        let v = run(probe, 3000).await;
        assert_says(&v, Good, "status 200, body 4 bytes, after 1 redirect");
        let details = v.details.unwrap();
        assert_eq!((details.redirects, details.remote, details.http_status), (Some(1), Some(b), Some(200)));
        assert!(
            heads_a
                .recv_timeout(LONG)
                .unwrap()
                .contains("\r\nHost: web.example.test\r\nAuthorization: Bearer s3cret\r\n")
        );
        let head = heads_b.recv_timeout(LONG).unwrap();
        assert!(head.starts_with(&format!("GET /x?y=z HTTP/1.1\r\nHost: {b}\r\n")), "{head}");
        assert!(!head.contains("s3cret"), "{head}");
    }
}

#[tokio::test]
async fn a_redirect_to_the_own_host_stays_at_the_checked_address() {
    // No resolver knows this name, and nothing listens where it would be.
    let count = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&count);
    let a = server(move |mut s| {
        let head = read_head(&mut s);
        let first = counting.fetch_add(1, Ordering::SeqCst) == 0;
        let again =
            head.starts_with("GET /again HTTP/1.1\r\nHost: web.example.test:8080\r\nX-Token: s3cret\r\n");
        let bytes = match (first, again) {
            (true, _) => moved(302, "http://web.example.test:8080/again"),
            (false, true) => ok(""),
            (false, false) => "HTTP/1.1 400 No\r\n\r\n".into(),
        };
        let _ = s.write_all(bytes.as_bytes());
    });
    let mut probe = following(get(a), 3, None);
    probe.host = "web.example.test:8080".into();
    probe.headers = vec![("X-Token".into(), "s3cret".into())];
    assert_says(&run(probe, 3000).await, Good, "status 200, body 0 bytes, after 1 redirect");
}

#[tokio::test]
async fn https_redirects_show_and_verify_the_name_of_each_host() {
    let (ca, other) = (Authority::new(), Authority::new());
    // The only name that is looked up without a resolver.
    let (b, heads) = tls_server(config(&ca.good("localhost"), &[]));
    let (a, _heads) = tells("127.0.0.1:0", moved(307, &format!("https://localhost:{}/x", b.port())));
    assert_says(&run(following(get(a), 2, Some(ca.file())), 3000).await, Good, "after 1 redirect");
    let (sni, head) = heads.recv_timeout(LONG).unwrap();
    assert_eq!(sni.as_deref(), Some("localhost"));
    assert!(head.starts_with(&format!("GET /x HTTP/1.1\r\nHost: localhost:{}\r\n", b.port())), "{head}");
    // The wrong authority, and the right one for another name.
    let v = run(following(get(a), 2, Some(other.file())), 3000).await;
    let at =
        format!("redirected to https://localhost:{}/x: TLS handshake: invalid peer certificate", b.port());
    assert_says(&v, Bad, &at);
    let (c, _heads) = tls_server(config(&ca.good(NAME), &[]));
    let (a, _heads) = tells("127.0.0.1:0", moved(302, &format!("https://localhost:{}/", c.port())));
    assert_says(
        &run(following(get(a), 2, Some(ca.file())), 3000).await,
        Bad,
        "certificate not valid for name",
    );
    // An operator who takes any certificate reads so in every verdict.
    let v = run(following(get(a), 2, None), 3000).await;
    assert_says(&v, Good, "after 1 redirect, certificate not verified");
}

#[tokio::test]
async fn https_is_left_for_http_only_where_that_is_allowed() {
    let ca = Authority::new();
    let (b, _heads) = tells("127.0.0.2:0", ok(""));
    let (tell, _told) = mpsc::channel();
    let secure = Arc::new(config(&ca.good(NAME), &[]));
    let a = server(move |s| {
        let mut tls = StreamOwned::new(ServerConnection::new(Arc::clone(&secure)).unwrap(), s);
        answer(&mut tls, &moved(302, &format!("http://{b}/x")), &tell);
    });
    let mut probe = following(probe(a, NAME, Some(ca.file())), 1, None);
    let v = run(probe.clone(), 3000).await;
    assert_says(
        &v,
        Bad,
        &format!("redirected from https to http://{b}/x, which is not followed without allow_downgrade"),
    );
    probe.follow.as_mut().unwrap().downgrade = true;
    assert_says(&run(probe, 3000).await, Good, "after 1 redirect");
}

#[tokio::test]
async fn a_loop_ends_at_the_limit_and_one_timeout_covers_all_of_it() {
    let delay = Arc::new(Mutex::new(Duration::ZERO));
    let turns = Arc::clone(&delay);
    let a = server(move |mut s| {
        read_head(&mut s);
        sleep(*turns.lock().unwrap());
        let _ = s.write_all(moved(302, "/again?s3cret").as_bytes());
    });
    let v = run(following(get(a), 10, None), 20_000).await;
    assert_says(&v, Bad, "more than 10 redirects, the last with status 302 to http://web.example.test/again");
    assert!(!v.timed_out && !v.detail.contains("s3cret"), "{v:?}");
    assert_eq!(v.details.unwrap().redirects, Some(10));
    *delay.lock().unwrap() = Duration::from_millis(200);
    let v = run(following(get(a), 10, None), 500).await;
    assert!(v.timed_out && v.took < Duration::from_millis(1500), "{v:?}");
}

#[tokio::test]
async fn what_looks_like_a_redirect_is_judged_where_nothing_is_to_be_followed() {
    let no_location = answers("HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n");
    assert_says(
        &run(following(get(no_location), 1, None), 2000).await,
        Bad,
        "status 302 (a redirect without Location)",
    );
    let not_modified = answers("HTTP/1.1 304 Not\r\nLocation: /x\r\n\r\n");
    assert_says(&run(following(get(not_modified), 1, None), 2000).await, Bad, "status 304, want 200");
    let (closed, _heads) = tells("127.0.0.1:0", moved(302, "http://127.0.0.2:1/x"));
    let v = run(following(get(closed), 1, None), 2000).await;
    assert_says(&v, Bad, "redirected to http://127.0.0.2:1/x: connect 127.0.0.2:1: connection refused");
    let details = v.details.unwrap();
    assert_eq!((details.redirects, details.remote), (Some(1), Some("127.0.0.2:1".parse().unwrap())));
    assert_eq!((details.http_status, details.first_byte), (None, None), "of the station before");
}

#[tokio::test]
async fn a_kept_connection_is_renewed_after_a_minute_so_that_a_new_certificate_is_seen() {
    let ca = Authority::new();
    let now = std::time::SystemTime::now();
    let expired = ca.issue(NAME, now - 2 * DAY, now - Duration::from_secs(1));
    let shown = Arc::new(Mutex::new(Arc::new(config(&ca.good(NAME), &[]))));
    let accepted = Arc::new(AtomicUsize::new(0));
    let (tell, _heads) = mpsc::channel();
    let (config_now, count) = (Arc::clone(&shown), Arc::clone(&accepted));
    let target = server(move |s| {
        count.fetch_add(1, Ordering::SeqCst);
        let config = Arc::clone(&config_now.lock().unwrap());
        let mut tls = StreamOwned::new(ServerConnection::new(config).unwrap(), s);
        while answer(&mut tls, &ok("fine"), &tell) {}
    });
    let mut keeping = probe(target, NAME, Some(ca.file()));
    keeping.keep_alive = true;
    let keeping = ready(keeping);
    assert_says(&keeping.run(LONG).await, Good, "status 200");
    *shown.lock().unwrap() = Arc::new(config(&expired, &[]));
    // Just before a minute is over the old connection still serves.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(50)).await;
    tokio::time::resume();
    assert_says(&keeping.run(LONG).await, Good, "status 200");
    assert_eq!(accepted.load(Ordering::SeqCst), 1);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    assert_says(&keeping.run(LONG).await, Bad, "certificate expired");
    assert_eq!(accepted.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_kept_connection_that_the_server_filled_or_closed_is_not_used_again() {
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    // Says more than it was asked for, so that the next answer would be read from the wrong place.
    let target = server(move |mut s| {
        count.fetch_add(1, Ordering::SeqCst);
        read_head(&mut s);
        let _ = s.write_all(ok("").as_bytes());
        sleep(Duration::from_millis(20));
        let _ = s.write_all(b"HTTP/1.1 503 Late\r\nContent-Length: 0\r\n\r\n");
        let _ = s.read(&mut [0; 100]);
    });
    let mut probe = get(target);
    probe.keep_alive = true;
    let probe = ready(probe);
    for _ in 0..5 {
        assert_says(&probe.run(LONG).await, Good, "status 200");
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn a_unix_socket_is_asked_like_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("web.sock");
    let mut probe = HttpProbe::new(Target::Unix(path.clone()), "localhost");
    let v = run(probe.clone(), 2000).await;
    assert_says(&v, Bad, &format!("connect {}: no such file or directory", path.display()));
    let listener = UnixListener::bind(&path).unwrap();
    let served = std::thread::spawn(move || {
        let mut s = listener.accept().unwrap().0;
        let mut head = [0; 4096];
        let length = s.read(&mut head).unwrap();
        s.write_all(ok("fine").as_bytes()).unwrap();
        // Then nobody listens, and then nobody answers.
        let hangs = listener.accept().unwrap().0;
        sleep(Duration::from_millis(400));
        drop(hangs);
        String::from_utf8_lossy(&head[..length]).into_owned()
    });
    probe.text = Some("fine".into());
    assert_says(&run(probe.clone(), 2000).await, Good, "status 200, body 4 bytes");
    let v = run(probe.clone(), 100).await;
    assert_says(&v, Bad, "timed out after 100 ms while waiting for response headers");
    assert!(served.join().unwrap().starts_with("GET / HTTP/1.1\r\nHost: localhost\r\n"));
    assert_says(&run(probe, 2000).await, Bad, "connection refused");
}

#[tokio::test]
async fn headers_of_the_answer_can_be_asked_for() {
    let target = answers("HTTP/1.1 200 OK\r\nX-Ready: no\r\nx-ready: yes, I am\r\nContent-Length: 0\r\n\r\n");
    let cases = [
        (vec![("X-Ready", "yes")], Good, "status 200"),
        (vec![("x-READY", "")], Good, "status 200"),
        (vec![("X-Ready", "maybe")], Bad, "header X-Ready does not hold what is wanted"),
        (vec![("X-Ready", "yes"), ("Server", "")], Bad, "there is no header Server"),
    ];
    for (wanted, outcome, words) in cases {
        let mut probe = get(target);
        probe.response_headers = wanted.into_iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
        assert_says(&run(probe, 2000).await, outcome, words);
    }
}

#[tokio::test]
async fn a_version_that_is_insisted_on_is_the_only_one() {
    let ca = Authority::new();
    let (target, _heads) = tls_server(config(&ca.good(NAME), &[]));
    let mut probe = probe(target, NAME, Some(ca.file()));
    for (version, outcome, words) in [
        (HttpVersion::Auto, Good, "status 200"),
        (HttpVersion::Http1, Good, "status 200"),
        (HttpVersion::Http2, Bad, "the server does not agree on HTTP/2"),
    ] {
        probe.version = version;
        assert_says(&run(probe.clone(), 3000).await, outcome, words);
    }
    // A server of HTTP/1 that is spoken to in HTTP/2.
    let mut plain = get(answers("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"));
    plain.version = HttpVersion::Http2;
    let v = run(plain, 2000).await;
    assert!(v.outcome == Bad, "{v:?}");
}

#[tokio::test]
async fn bodies_that_break_off_or_never_end_are_told_apart() {
    let resets = server(|mut s| {
        read_head(&mut s);
        let _ = s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc");
        sleep(Duration::from_millis(50));
        let _ = socket2::SockRef::from(&s).set_linger(Some(Duration::ZERO));
    });
    assert_says(&run(get(resets), 3000).await, Bad, "body: connection reset by peer");
    for head in ["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"] {
        let endless = server(move |mut s| {
            read_head(&mut s);
            let _ = s.write_all(head.as_bytes());
            let piece = if head.contains("chunked") {
                format!("1000\r\n{}\r\n", "x".repeat(4096))
            } else {
                "x".repeat(4096)
            };
            while s.write_all(piece.as_bytes()).is_ok() {}
        });
        let v = run(get(endless), 10_000).await;
        assert_says(&v, Good, "status 200, body 1048576 bytes, the rest not read");
    }
}

#[tokio::test]
async fn a_body_that_only_the_end_of_tls_ends_needs_that_end() {
    let ca = Authority::new();
    let secure = Arc::new(config(&ca.good(NAME), &[]));
    for (bytes, farewell, outcome, words) in [
        ("HTTP/1.1 200 OK\r\n\r\nfine", true, Good, "status 200, body 4 bytes"),
        ("HTTP/1.1 200 OK\r\n\r\nfine", false, Bad, "body: TLS ended without close_notify"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine", false, Good, "status 200, body 4 bytes"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfine",
            false,
            Bad,
            "body: connection closed after 4 of its 5 bytes",
        ),
        ("HTTP/1.1 200 O", false, Bad, "response headers: connection closed before they were complete"),
    ] {
        let (tell, _told) = mpsc::channel();
        let secure = Arc::clone(&secure);
        let target = server(move |s| {
            let mut tls = StreamOwned::new(ServerConnection::new(Arc::clone(&secure)).unwrap(), s);
            answer(&mut tls, bytes, &tell);
            if farewell {
                tls.conn.send_close_notify();
            }
            let _ = tls.flush();
            let _ = tls.sock.shutdown(std::net::Shutdown::Write);
            let _ = tls.sock.read(&mut [0; 64]);
        });
        assert_says(&run(probe(target, NAME, Some(ca.file())), 3000).await, outcome, words);
    }
}

#[tokio::test]
async fn an_early_refusal_is_read_although_the_request_was_not() {
    let target = server(|mut s| {
        let _ = s.write_all(b"HTTP/1.1 503 Full\r\nContent-Length: 0\r\n\r\n");
        let _ = s.shutdown(std::net::Shutdown::Write);
        sleep(Duration::from_millis(300));
    });
    let mut probe = get(target);
    probe.method = "POST".into();
    probe.body = Some("x".repeat(4096));
    assert_says(&run(probe, 3000).await, Bad, "status 503, want 200");
}

/// Connections in FIN_WAIT or TIME_WAIT in this namespace.
fn left_behind() -> usize {
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let state = |l: &str| l.split_whitespace().nth(3).is_some_and(|s| ["04", "05", "06"].contains(&s));
    table.lines().filter(|l| state(l)).count()
}

#[test]
fn no_check_leaves_anything_in_time_wait_or_fin_wait() {
    let Some(host) = net_support::Host::new("no_check_leaves_anything_in_time_wait_or_fin_wait") else {
        return;
    };
    let ca = Authority::new();
    let left = host.run(move || {
        // Leave it to the client to close first.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap();
        let secure = Arc::new(config(&ca.good(NAME), &[b"http/1.1"]));
        std::thread::spawn(move || {
            let (tell, _told) = mpsc::channel();
            for (n, s) in listener.incoming().flatten().enumerate() {
                let mut s = s;
                if n % 2 == 1 {
                    let mut tls = StreamOwned::new(ServerConnection::new(Arc::clone(&secure)).unwrap(), s);
                    while answer(&mut tls, &ok("fine"), &tell) {}
                    continue;
                }
                read_head(&mut s);
                // A good answer and one that is judged by its head, in turn.
                let status = if n % 4 == 0 { 200 } else { 503 };
                let _ =
                    s.write_all(format!("HTTP/1.1 {status} X\r\nContent-Length: 4\r\n\r\nfine").as_bytes());
                while s.read(&mut [0; 64]).is_ok_and(|n| n > 0) {}
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let plain = ready(get(target));
        let tls = ready(probe(target, NAME, Some(ca.file())));
        for n in 0..40 {
            let v = runtime.block_on(if n % 2 == 0 { plain.run(LONG) } else { tls.run(LONG) });
            assert_says(&v, if n % 4 == 2 { Bad } else { Good }, "status");
        }
        // And where nobody answers.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let hangs = ready(get(silent.local_addr().unwrap()));
        for _ in 0..10 {
            let v = runtime.block_on(hangs.run(Duration::from_millis(20)));
            assert!(v.outcome != Good, "{v:?}");
        }
        left_behind()
    });
    assert_eq!(left, 0);
}

/// A header block of HTTP/2 with this status alone.
fn status_frame(status: &str, last: bool) -> Vec<u8> {
    // Its name is that of the eighth entry of the static table; the value is three digits.
    let block = [&[0x08, 3], status.as_bytes()].concat();
    frame(1, if last { 5 } else { 4 }, 1, &block)
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// A server of HTTP/2 without TLS that reads a request and then says these one after the other, with a pause between them.
fn h2(says: Vec<Vec<u8>>, pause: Duration) -> SocketAddr {
    server(move |mut s| {
        let mut preface = [0; 24];
        if s.read_exact(&mut preface).is_err() || s.write_all(&frame(4, 0, 0, &[])).is_err() {
            return;
        }
        loop {
            let mut head = [0; 9];
            if s.read_exact(&mut head).is_err() {
                return;
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            if s.read_exact(&mut vec![0; length]).is_err() {
                return;
            }
            match (head[3], head[4]) {
                (4, 0) => drop(s.write_all(&frame(4, 1, 0, &[]))),
                (1, _) => break,
                _ => {}
            }
        }
        for frame in &says {
            sleep(pause);
            if s.write_all(frame).is_err() {
                return;
            }
        }
        // Until the other end has read it.
        let _ = s.read_to_end(&mut Vec::new());
    })
}

#[tokio::test]
async fn interim_answers_of_http2_are_skipped_and_never_the_final_one() {
    let interim = |status| status_frame(status, false);
    for (says, outcome, words) in [
        (vec![interim("103"), interim("100"), status_frame("200", true)], Good, "status 200"),
        (vec![interim("103"), status_frame("503", true)], Bad, "status 503, want 200"),
        (
            vec![interim("102"); 20].into_iter().chain([status_frame("200", true)]).collect(),
            Good,
            "status 200",
        ),
    ] {
        let probe = HttpProbe { version: HttpVersion::Http2, ..get(h2(says, Duration::ZERO)) };
        assert_says(&run(probe, 5000).await, outcome, words);
    }
}

#[tokio::test]
async fn one_timeout_covers_interim_answers_that_drip_in_both_versions() {
    let pause = Duration::from_millis(40);
    let endless = vec![status_frame("103", false); 1000];
    let second = HttpProbe { version: HttpVersion::Http2, ..get(h2(endless, pause)) };
    // Of the first version an octet at a time.
    let first = get(server(move |mut s| {
        read_head(&mut s);
        let _ = s.set_nodelay(true);
        for octet in b"HTTP/1.1 103 Early Hints\r\n\r\n".iter().cycle() {
            sleep(pause / 10);
            if s.write_all(&[*octet]).is_err() {
                return;
            }
        }
    }));
    // Those of HTTP/2 are not counted.
    for (probe, words) in [(first, "interim answer"), (second, "while waiting for response headers")] {
        let v = run(probe, 600).await;
        assert!(v.timed_out && v.took < Duration::from_millis(1600), "{v:?}");
        assert_says(&v, Bad, words);
    }
}
