//! Probes and their schedule against raw servers on loopback: what hangs, drips, breaks off or lies.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::sleep;
use std::time::{Duration, Instant};

use probe_support::*;
use standfast_core::health::Outcome::{Bad, Good};
use standfast_core::health::Verdict;
use standfast_core::plan::{Check, Follow, Probe, Secret, Target};
use standfast_io::probe::{Prober, RunNowError, prepare};

const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_good_answer_is_good_and_says_so() {
    let v = run(get(answers(ok("hello"))), 1000).await;
    assert_says(&v, Good, "status 200, body 5 bytes");
    assert!(!v.timed_out && v.took > Duration::ZERO);
}

#[tokio::test]
async fn another_status_is_bad_and_names_both() {
    let v = run(get(answers("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")), 1000).await;
    assert_says(&v, Bad, "status 503, want 200");
    let mut probe = get(answers("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"));
    probe.status = vec![(200, 299), (503, 503)];
    assert_says(&run(probe, 1000).await, Good, "status 503");
}

#[tokio::test]
async fn a_redirect_is_judged_itself() {
    let v = run(
        get(answers("HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n")),
        1000,
    )
    .await;
    assert_says(&v, Bad, "status 302 (redirects are not followed), want 200");
}

#[tokio::test]
async fn every_phase_that_hangs_ends_at_the_timeout_and_is_named() {
    // A full backlog: the kernel drops the SYN.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    full.listen(0).unwrap();
    let full_address = full.local_addr().unwrap().as_socket().unwrap();
    let _fillers: Vec<_> = (0..2)
        .map(|_| {
            let s = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            s.set_nonblocking(true).unwrap();
            let _ = s.connect(&full_address.into());
            s
        })
        .collect();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_address = silent.local_addr().unwrap();
    let half_head = server(|mut s| {
        read_head(&mut s);
        let _ = s.write_all(b"HTTP/1.1 200 OK\r\nContent-");
        sleep(LONG);
    });
    let drip_head = server(|mut s| {
        read_head(&mut s);
        let _ = s.write_all(b"HTTP/1.1 200 OK\r\nX: ");
        while s.write_all(b"a").is_ok() {
            sleep(Duration::from_millis(5));
        }
    });
    let no_body = server(|mut s| {
        read_head(&mut s);
        let _ = s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
        sleep(LONG);
    });
    let drip_body = server(|mut s| {
        read_head(&mut s);
        let _ = s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
        while s.write_all(b"a").is_ok() {
            sleep(Duration::from_millis(5));
        }
    });
    let mut tls_silent = get(silent_address);
    tls_silent.tls = Some(tls("web.example.test", None));
    tls_silent.tls.as_mut().unwrap().insecure = true;
    let mut proxy_silent = tls_silent.clone();
    proxy_silent.proxy = Some(Secret::new(format!("http://{silent_address}")));
    let mut proxy_tls_silent = get(silent_address);
    proxy_tls_silent.proxy = Some(Secret::new(format!("https://{silent_address}")));
    let mut redirected = get(answers(format!(
        "HTTP/1.1 302 Found\r\nLocation: http://{silent_address}/\r\nContent-Length: 0\r\n\r\n"
    )));
    let follow = Follow { limit: 1, downgrade: false, tls: tls_silent.tls.clone().unwrap() };
    redirected.follow = Some(follow);
    let cases = [
        (get(full_address), format!("connecting to {full_address}")),
        (get(silent_address), "waiting for response headers".into()),
        (get(half_head), "waiting for response headers".into()),
        (get(drip_head), "waiting for response headers".into()),
        (get(no_body), "reading the body".into()),
        (get(drip_body), "reading the body".into()),
        (tls_silent, "waiting for the TLS handshake".into()),
        (proxy_silent, "waiting for the proxy's answer to CONNECT".into()),
        (proxy_tls_silent, "waiting for the proxy's TLS handshake".into()),
        (redirected, "waiting for response headers".into()),
    ];
    for (probe, phase) in cases {
        let v = run(probe, 120).await;
        assert_says(&v, Bad, &format!("timed out after 120 ms while {phase}"));
        assert!(v.timed_out);
        assert!((120..300).contains(&v.took.as_millis()), "{phase}: {v:?}");
    }
}

#[tokio::test]
async fn broken_answers_are_bad_and_say_how() {
    let closes = server(|mut s| {
        read_head(&mut s);
    });
    let resets = server(|mut s| {
        read_head(&mut s);
        let _ = socket2::SockRef::from(&s).set_linger(Some(Duration::ZERO));
    });
    let speaks_first = server(|mut s| {
        let _ = s.write_all(b"220 smtp ready\r\n");
        read_head(&mut s);
    });
    let v = run(get(speaks_first), 2000).await;
    assert!(v.outcome == Bad && !v.timed_out && !v.detail.contains("channel closed"), "{v:?}");
    let cases = [
        (closes, "response headers: connection closed without an answer"),
        (resets, "response headers: connection reset by peer"),
        (answers("220 smtp ready\r\n"), "invalid HTTP version"),
        (
            answers("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"),
            "body: connection closed after 3 of its 9 bytes",
        ),
        (answers("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "body: "),
        (answers(format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "a".repeat(1 << 20))), "response headers: "),
    ];
    for (target, detail) in cases {
        assert_says(&run(get(target), 2000).await, Bad, detail);
    }
}

#[tokio::test]
async fn informational_answers_are_skipped_and_never_the_final_one() {
    let good = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let cases = [
        (format!("HTTP/1.1 100 Continue\r\n\r\n{good}"), Good),
        (format!("{}{good}", "HTTP/1.1 102 Processing\r\n\r\n".repeat(20)), Good),
        (
            "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"
                .into(),
            Bad,
        ),
        ("HTTP/1.1 100 Continue\r\n\r\n".into(), Bad),
        ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n".into(), Bad),
    ];
    for (bytes, outcome) in cases {
        let v = run(get(answers(bytes.clone())), 1000).await;
        assert!(v.outcome == outcome && !v.timed_out, "{bytes:?} gave {v:?}");
    }
}

#[tokio::test]
async fn a_timeout_after_interim_answers_says_how_many_came() {
    for (count, words) in [(1, "response headers after 1 interim answer"), (20, "after 20 interim answers")] {
        let target = server(move |mut s| {
            read_head(&mut s);
            let _ = s.write_all("HTTP/1.1 102 Processing\r\n\r\n".repeat(count).as_bytes());
            let _ = s.read(&mut [0; 16]);
        });
        let v = run(get(target), 1500).await;
        assert_says(&v, Bad, words);
        assert!(v.timed_out && v.detail.ends_with(words), "{v:?}");
    }
}

#[tokio::test]
async fn the_request_carries_host_path_headers_and_body() {
    let (tell, told) = mpsc::channel();
    let address = server(move |mut s| {
        let head = read_head(&mut s);
        let mut body = [0; 4];
        s.read_exact(&mut body).unwrap();
        tell.send((head, body)).unwrap();
        s.write_all(ok("").as_bytes()).unwrap();
    });
    let mut probe = get(address);
    probe.method = "POST".into();
    probe.path = "/health?deep=1".into();
    probe.host = "web.example.test:8080".into();
    probe.headers = vec![("X-One".into(), "1".into()), ("x-one".into(), "2".into())];
    probe.body = Some("ping".into());
    assert_says(&run(probe.clone(), 1000).await, Good, "");
    let (head, body) = told.recv_timeout(LONG).unwrap();
    let head = head.to_lowercase();
    assert!(head.starts_with("post /health?deep=1 http/1.1\r\n"), "{head}");
    for line in [
        "host: web.example.test:8080",
        "x-one: 1",
        "x-one: 2",
        "content-length: 4",
        "connection: close",
        "user-agent: standfast/",
    ] {
        assert!(head.contains(&format!("\r\n{line}")), "{line} is not in {head}");
    }
    assert_eq!(&body, b"ping");
    // A Host among the headers is sent as it stands, once.
    probe.headers.push(("host".into(), "other.example.test".into()));
    assert_says(&run(probe, 1000).await, Good, "");
    let head = told.recv_timeout(LONG).unwrap().0.to_lowercase();
    assert!(head.contains("host: other.example.test\r\n") && head.matches("host: ").count() == 1, "{head}");
}

#[tokio::test]
async fn a_body_is_judged_by_text_regex_and_jq() {
    let body = r#"{"status":"ok","n":3,"secret":"hunter2"}"#;
    let target = answers(ok(body));
    type Rule = (Option<&'static str>, Option<&'static str>, Option<&'static str>);
    let cases: [(Rule, _, &str); 11] = [
        ((Some("\"ok\""), None, None), Good, ""),
        ((Some("fine"), None, None), Bad, "body does not hold what response_text wants"),
        ((None, Some(r#""n":\d"#), None), Good, ""),
        ((None, Some("^x"), None), Bad, "body does not match response_regex"),
        ((None, None, Some(".n > 2 and .status == \"ok\"")), Good, ""),
        ((None, None, Some(".n > 3")), Bad, "jq gave false, want true"),
        ((None, None, Some(".n")), Bad, "jq gave a number, want true"),
        ((None, None, Some("empty")), Bad, "jq gave nothing, want true"),
        ((None, None, Some(".secret | .x")), Bad, "jq program ended with an error"),
        ((None, None, Some("halt")), Bad, "jq program ended with an error"),
        ((Some("\"ok\""), Some("n"), Some("false, true")), Bad, "jq gave false"),
    ];
    for ((text, regex, jq), outcome, detail) in cases {
        let mut probe = get(target);
        (probe.text, probe.regex, probe.jq) =
            (text.map(Into::into), regex.map(Into::into), jq.map(Into::into));
        let v = run(probe, 2000).await;
        assert_says(&v, outcome, detail);
        assert!(!v.detail.contains("hunter2"), "{v:?}");
    }
}

#[tokio::test]
async fn hostile_json_is_bad_and_harms_nothing() {
    for body in ["[".repeat(100_000), "{\"a\":".repeat(50_000), "not json".into(), String::new()] {
        let mut probe = get(answers(ok(&body)));
        probe.jq = Some("true".into());
        assert_says(&run(probe, 5000).await, Bad, "body is not JSON");
    }
    // The same through a string in the body.
    let mut probe = get(answers(ok(&format!("\"{}\"", "[".repeat(100_000)))));
    probe.jq = Some("fromjson | true".into());
    assert_says(&run(probe, 5000).await, Bad, "jq program ended with an error");
}

#[tokio::test]
async fn a_jq_program_that_never_ends_ends_with_the_run_and_leaves_nothing_behind() {
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        tasks
            .filter(|t| std::fs::read_to_string(t.path().join("comm")).is_ok_and(|c| c == "body-rules\n"))
            .count()
    };
    for program in
        ["repeat(.) | select(false)", "[range(1e18)]", "def f: f; f", "[repeat(.)]", "def f: 1 + f; f"]
    {
        let mut probe = get(answers(ok("1")));
        probe.jq = Some(program.into());
        let probe = prepare(&Check::new(Probe::Http(Box::new(probe)))).unwrap();
        // The first has all the time it wants, the second far less.
        let v = probe.run(LONG).await;
        assert!(v.outcome == Bad && !v.timed_out && v.detail.starts_with("jq program "), "{program}: {v:?}");
        let v = probe.run(Duration::from_millis(20)).await;
        assert!(v.outcome != Good, "{program}: {v:?}");
    }
    until("no thread runs a program any more", || threads() == 0);
}

#[tokio::test]
async fn body_rules_that_cannot_be_stopped_are_never_started_twice() {
    let mut probe = get(answers(ok("1")));
    // One step of the program, and many comparisons.
    probe.jq = Some("[range(30000)] | contains(map(29999 - .))".into());
    let probe = prepare(&Check::new(Probe::Http(Box::new(probe)))).unwrap();
    let v = probe.run(Duration::from_millis(150)).await;
    assert_says(&v, Bad, "while judging the body");
    assert!(v.timed_out);
    assert_says(&probe.run(Duration::from_millis(150)).await, Bad, "an earlier run have not ended");
    // Once it ends the check is judged again.
    let end = Instant::now() + LONG;
    while probe.run(Duration::from_millis(20)).await.detail.contains("an earlier run") {
        assert!(Instant::now() < end);
    }
}

#[tokio::test]
async fn a_cut_body_says_so() {
    let target = answers(ok(&"x".repeat(5000)));
    let mut probe = get(target);
    probe.body_limit = 1000;
    assert_says(&run(probe.clone(), 1000).await, Good, "body 1000 bytes, the rest not read");
    probe.text = Some("y".into());
    assert_says(&run(probe.clone(), 1000).await, Bad, "in its first 1000 bytes, and the rest was not read");
    probe.text = None;
    probe.jq = Some("true".into());
    assert_says(&run(probe, 1000).await, Bad, "body is longer than 1000 bytes");
}

#[tokio::test]
async fn a_plain_request_goes_through_a_proxy_in_absolute_form() {
    let (tell, told) = mpsc::channel();
    let proxy = server(move |mut s| {
        tell.send(read_head(&mut s)).unwrap();
        s.write_all(ok("").as_bytes()).unwrap();
    });
    let mut probe = get("192.0.2.1:80".parse().unwrap());
    probe.target = Target::Name("web.example.test".into(), 80);
    probe.proxy = Some(Secret::new(format!("http://user:pass@{proxy}")));
    assert_says(&run(probe.clone(), 1000).await, Good, "");
    let head = told.recv_timeout(LONG).unwrap().to_lowercase();
    assert!(head.starts_with("get http://web.example.test/ http/1.1\r\n"), "{head}");
    assert!(
        head.contains("\r\nproxy-authorization: basic dxnlcjpwyxnz\r\n")
            && head.contains("\r\nhost: web.example.test\r\n"),
        "{head}"
    );
    // One that refuses the tunnel.
    let refusing = answers("HTTP/1.1 407 Who\r\nContent-Length: 0\r\n\r\n");
    probe.proxy = Some(Secret::new(format!("http://{refusing}")));
    probe.tls = Some(tls("web.example.test", None));
    probe.tls.as_mut().unwrap().insecure = true;
    assert_says(&run(probe, 1000).await, Bad, "proxy refuses CONNECT with status 407");
}

#[tokio::test]
async fn an_ipv6_address_is_reached_and_named_as_the_host() {
    let listener = match TcpListener::bind("[::1]:0") {
        Ok(listener) => listener,
        Err(e) => {
            eprintln!("SKIP an_ipv6_address_is_reached_and_named_as_the_host: no ::1: {e}");
            return;
        }
    };
    let target = listener.local_addr().unwrap();
    let served = std::thread::spawn(move || {
        let mut s = listener.accept().unwrap().0;
        let head = read_head(&mut s);
        s.write_all(ok("").as_bytes()).unwrap();
        drop(s);
        // The tcp check.
        drop(listener.accept().unwrap());
        head
    });
    let mut probe = get(target);
    probe.host = target.to_string();
    assert_says(&run(probe, 2000).await, Good, "status 200");
    assert_says(&once(tcp(target), 2000).await, Good, &format!("connected to [::1]:{}", target.port()));
    let head = served.join().unwrap().to_lowercase();
    assert!(head.contains(&format!("\r\nhost: {target}\r\n")), "{head}");
}

#[tokio::test]
async fn a_name_is_looked_up_in_the_hosts_file() {
    let target = answers(ok(""));
    let mut probe = get(target);
    probe.target = Target::Name("localhost".into(), target.port());
    assert_says(&run(probe, 2000).await, Good, "status 200");
}

#[tokio::test]
async fn a_kept_connection_serves_again_and_a_closed_one_is_replaced() {
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    let target = server(move |mut s| {
        count.fetch_add(1, Ordering::SeqCst);
        for _ in 0..3 {
            if read_head(&mut s).is_empty() {
                return;
            }
            let _ = s.write_all(ok("").as_bytes());
        }
        let _ = s.shutdown(Shutdown::Both);
    });
    let mut probe = get(target);
    probe.keep_alive = true;
    let probe = prepare(&Check::new(Probe::Http(Box::new(probe)))).unwrap();
    for _ in 0..9 {
        assert_says(&probe.run(LONG).await, Good, "status 200");
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 3);
}

#[test]
fn what_cannot_work_is_refused_when_prepared() {
    let base = get("127.0.0.1:80".parse().unwrap());
    type Spoil = fn(&mut standfast_core::plan::HttpProbe);
    let cases: [(Spoil, &str); 9] = [
        (|p| p.regex = Some("(".into()), "regular expression \"(\""),
        (|p| p.jq = Some(".a | frobnicate".into()), "undefined filter frobnicate"),
        (|p| p.jq = Some(".a |".into()), "jq program"),
        (|p| p.path = "health".into(), "must begin with one /"),
        (|p| p.host = "a b".into(), "host \"a b\""),
        (|p| p.headers = vec![("a b".into(), String::new())], "header name \"a b\""),
        (|p| p.headers = vec![("content-length".into(), "3".into())], "is set by standfast itself"),
        (|p| p.tls = Some(tls("x", Some("/nonexistent/ca.pem".into()))), "/nonexistent/ca.pem: no such file"),
        (
            |p| {
                p.method = "HEAD".into();
                p.text = Some("x".into());
            },
            "HEAD has no body",
        ),
    ];
    for (spoil, text) in cases {
        let mut probe = base.clone();
        spoil(&mut probe);
        let e = prepare(&Check::new(Probe::Http(Box::new(probe)))).unwrap_err();
        assert!(e.contains(text), "{text:?} is not in {e:?}");
    }
}

/// Collects verdicts with the moment and the check's name.
type Seen = Arc<Mutex<Vec<(Instant, String, Verdict)>>>;

fn prober() -> (Prober, Seen) {
    let seen = Seen::default();
    let into = Arc::clone(&seen);
    let prober = Prober::start(move |ended| {
        let now = Instant::now();
        into.lock().unwrap().extend(ended.into_iter().map(|(id, v)| (now, id.check.to_string(), v)));
    })
    .unwrap();
    (prober, seen)
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < end, "never happened: {what}");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn checks_run_at_their_interval_each_on_its_own_phase() {
    let target = answers(ok(""));
    let (prober, seen) = prober();
    let checks: BTreeMap<_, _> =
        (0..20).map(|n| (id(&n.to_string()), check(tcp(target), 200, 100))).collect();
    let start = Instant::now();
    prober.set(&checks).unwrap();
    sleep(Duration::from_millis(2100));
    drop(prober);
    let seen = seen.lock().unwrap();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for n in 0..20 {
        let times: Vec<_> = seen.iter().filter(|s| s.1 == n.to_string()).map(|s| s.0 - start).collect();
        assert!((8..=12).contains(&times.len()), "check {n} ran {} times", times.len());
        first.push(times[0]);
        second.push(times[1]);
        // No drift: the last is where the second plus whole intervals says, give or take the jitter and this machine.
        let gaps: Vec<_> = times.windows(2).map(|w| w[1] - w[0]).collect();
        let want = times[1] + Duration::from_millis(200) * (gaps.len() - 1) as u32;
        assert!(
            times.last().unwrap().abs_diff(want) < Duration::from_millis(150),
            "check {n} drifted: {gaps:?}"
        );
    }
    first.sort();
    second.sort();
    assert!(*first.last().unwrap() < Duration::from_millis(300), "a few checks begin at once: {first:?}");
    assert!(second[19] - second[0] > Duration::from_millis(40), "then all at one instant: {second:?}");
}

#[test]
fn setting_keeps_what_is_unchanged_and_stops_what_is_gone() {
    let target = answers(ok(""));
    let (prober, seen) = prober();
    let tcp = || tcp(target);
    let mut checks =
        BTreeMap::from([(id("same"), check(tcp(), 3_000, 100)), (id("gone"), check(tcp(), 20, 10))]);
    checks.insert(id("outside"), check(Probe::External, 1000, 100));
    prober.set(&checks).unwrap();
    until("both ran", || prober.counts().values().all(|c| c.runs > 0));
    assert_eq!(prober.counts().len(), 2);
    checks.remove(&id("gone"));
    // Rise and fall are judged elsewhere.
    checks.get_mut(&id("same")).unwrap().fall = 7;
    prober.set(&checks).unwrap();
    assert_eq!(prober.counts().keys().collect::<Vec<_>>(), [&id("same")]);
    sleep(Duration::from_millis(50));
    let before = seen.lock().unwrap().len();
    sleep(Duration::from_millis(300));
    assert_eq!(seen.lock().unwrap().len(), before, "a stopped check ran");
    assert_eq!(prober.counts()[&id("same")].runs, 1, "an unchanged check started anew");
    // A wrong one among them changes nothing.
    let mut wrong = get(target);
    wrong.regex = Some("(".into());
    let with_wrong = BTreeMap::from([(id("wrong"), check(Probe::Http(Box::new(wrong)), 1000, 100))]);
    let problems = prober.set(&with_wrong).unwrap_err();
    assert_eq!(problems[0].0, id("wrong"));
    assert_eq!(prober.counts().keys().collect::<Vec<_>>(), [&id("same")]);
    // A changed one starts anew.
    checks.get_mut(&id("same")).unwrap().interval = Duration::from_secs(2);
    prober.set(&checks).unwrap();
    until("it started anew", || prober.counts()[&id("same")].runs > 0);
}

#[test]
fn a_run_asked_for_outlives_its_caller_and_runs_never_overlap() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (n, m) = (Arc::clone(&now), Arc::clone(&most));
    let target = server(move |mut s| {
        read_head(&mut s);
        m.fetch_max(n.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        sleep(Duration::from_millis(100));
        n.fetch_sub(1, Ordering::SeqCst);
        let _ = s.write_all(ok("").as_bytes());
    });
    let (prober, seen) = prober();
    let slow = id("slow");
    prober
        .set(&BTreeMap::from([(slow.clone(), check(Probe::Http(Box::new(get(target))), 800, 790))]))
        .unwrap();
    drop(prober.run_now(&slow).unwrap());
    until("the run was reported though nobody waits", || !seen.lock().unwrap().is_empty());
    let waiting: Vec<_> = (0..20).map(|_| prober.run_now(&slow).unwrap()).collect();
    for told in waiting {
        assert_says(&told.blocking_recv().unwrap(), Good, "status 200");
    }
    sleep(Duration::from_millis(1000));
    assert_eq!(most.load(Ordering::SeqCst), 1);
    assert!(seen.lock().unwrap().len() < 10, "callers did not share a run");
    assert_eq!(prober.run_now(&id("none")).unwrap_err(), RunNowError::Unknown(id("none")));
}

#[test]
fn a_prober_may_be_dropped_inside_a_runtime_and_with_runs_going() {
    let hangs = TcpListener::bind("127.0.0.1:0").unwrap();
    let probe = get(hangs.local_addr().unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (prober, seen) = prober();
        prober
            .set(&BTreeMap::from([(id("hangs"), check(Probe::Http(Box::new(probe)), 10_000, 9_000))]))
            .unwrap();
        let told = prober.run_now(&id("hangs")).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(prober);
        assert!(told.await.is_err());
        assert!(seen.lock().unwrap().is_empty());
    });
}
