//! Checks as an operator meets them: runs on demand, reports and their leases, commands, metrics, and what the command line says.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const G: u32 = 64513;

/// An answer of the API.
fn json(answer: Option<(u16, String)>) -> (u16, Value) {
    let (status, body) = answer.expect("an answer");
    (status, serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}")))
}

/// Sends a request as it stands, and reads the answer.
fn raw(host: &Host, request: &str) -> (u16, String) {
    let mut stream = host.enter(|| std::net::TcpStream::connect(API)).expect("the API listens");
    exchange(&mut stream, request)
}

fn exchange(stream: &mut (impl std::io::Read + Write), request: &str) -> (u16, String) {
    stream.write_all(request.as_bytes()).expect("it takes the request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status"), body.to_owned())
}

fn post(path: &str, headers: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: {API}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
}

const JSON: &str = "Content-Type: application/json\r\n";

/// Runs the command line in `host`: its exit code, and what it said.
fn standfast(host: &Host, args: &str) -> (i32, String) {
    let bin = standfast_bin().expect("the lab needs it");
    let text = host.attempt(&format!("{} {args}; echo \" code $?\"", bin.display()));
    let (said, code) = text.split_once(" code ").map_or((text.as_str(), "?"), |(a, b)| (a, b));
    // What went to standard error comes after.
    let (code, errors) = code.split_once('\n').unwrap_or((code, ""));
    (code.trim().parse().unwrap_or_else(|_| panic!("no exit code in {text}")), format!("{said}{errors}"))
}

fn status_of(scene: &Scene, check: &str) -> Value {
    let (_, status) = json(scene.g.get(API, "/status"));
    let checks = status["vips"][0]["checks"].as_array().cloned().unwrap_or_default();
    checks.into_iter().find(|c| c["name"] == check).unwrap_or_default()
}

/// A metric's value: the first sample of `name` with all these labels.
fn metric(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let of = |line: &str| {
        let (series, value) = line.rsplit_once(' ')?;
        let (found, rest) = series.split_once('{').unwrap_or((series, ""));
        let fits = labels.iter().all(|(label, value)| rest.contains(&format!("{label}=\"{value}\"")));
        (found == name && fits).then(|| value.parse().ok()).flatten()
    };
    text.lines().filter(|line| !line.starts_with('#')).find_map(of)
}

/// How many samples there are, where every line is one that Prometheus reads, and every sample belongs to the family above it.
#[track_caller]
fn samples(text: &str) -> usize {
    let mut family = (String::new(), String::new());
    let mut seen = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            family = (name.to_owned(), kind.to_owned());
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
            assert!(value.parse::<f64>().is_ok(), "no value: {line}");
            assert!(seen.insert(series.to_owned()), "twice: {line}");
            let name = series.split('{').next().unwrap_or_default();
            let (of, kind) = (&family.0, family.1.as_str());
            let belongs = match kind {
                "histogram" => ["_bucket", "_sum", "_count"].iter().any(|s| *name == format!("{of}{s}")),
                _ => name == of,
            };
            assert!(belongs, "{line} stands under {of}");
            assert_eq!(kind == "counter", name.ends_with("_total") && kind != "histogram", "{line}");
            assert_eq!(series.matches('"').count() % 2, 0, "{line}");
        }
    }
    seen.len()
}

fn scene(lab: &Lab, checks: &str) -> Scene {
    let checks = checks.to_owned();
    Scene::new(lab, G, move |config| config.vip_with("web", &[VIP], &checks, WITHDRAW))
}

fn announced(scene: &Scene) {
    until("the VIP is announced", secs(10), || scene.state_of("web") == "announced");
}

#[test]
fn a_run_on_demand_tells_everything_and_counts_like_any_other() {
    let Some(lab) = lab!("standfast") else { return };
    let scene = scene(
        &lab,
        "checks:\n      - { name: http, type: http, interval: 10m, timeout: 1s, rise: 2, fall: 2, http: { host: 127.0.0.1, port: 80 } }\n      \
         - { name: say, type: exec, interval: 10m, timeout: 5s, rise: 1, fall: 1, exec: { command: [/bin/echo, all is well] } }",
    );
    // The schedule alone would need ten minutes for the second good run.
    until("one run of each is over", secs(10), || {
        ["http", "say"].iter().all(|c| status_of(&scene, c)["runs"]["good"] == 1)
    });
    assert_eq!(scene.state_of("web"), "withdrawn");
    let (status, answer) = json(scene.g.http(API, "POST", "/api/v1/vips/web/check"));
    assert_eq!(status, 200);
    assert_eq!(answer["vip"], "web");
    assert_eq!(
        answer["state_name"], "announced",
        "the run counts, and the answer says what came of it: {answer:#}"
    );
    assert_eq!(answer["result"]["success"], true);
    let http = &answer["results"]["http"];
    assert_eq!(http["success"], true);
    assert!(http["detail"].as_str().is_some_and(|d| d.starts_with("status 200")), "{http:#}");
    assert!(http["duration"].as_u64().is_some_and(|nanos| nanos > 1000), "{http:#}");
    let details = &http["details"];
    assert_eq!(details["remote"], "127.0.0.1:80");
    assert!(details["connect_ns"].as_u64().is_some_and(|nanos| nanos > 0), "{details:#}");
    assert_eq!(answer["results"]["say"]["details"]["output"], "all is well\n");
    // One check alone, that is bad now.
    scene.service.set("/", false);
    let (_, answer) = json(scene.g.http(API, "POST", "/api/v1/vips/web/check?check=http"));
    assert_eq!(answer["result"]["success"], false);
    assert!(
        answer["results"].as_object().is_some_and(|r| r.len() == 1 && r.contains_key("http")),
        "{answer:#}"
    );
    assert_eq!(answer["state_name"], "announced", "one of two");
    let (_, answer) = json(scene.g.http(API, "POST", "/api/v1/vips/web/check?check=http"));
    assert_eq!(answer["state_name"], "withdrawn", "two of two: {answer:#}");
    // What is not there.
    let (status, answer) = json(scene.g.http(API, "POST", "/api/v1/vips/nix/check"));
    assert_eq!((status, answer["error"].as_str()), (404, Some("VIP not found: nix")));
    assert_eq!(answer["vips"], serde_json::json!(["web"]));
    let (status, answer) = json(scene.g.http(API, "POST", "/api/v1/vips/web/check?check=nix"));
    assert_eq!((status, answer["checks"].as_array().map(Vec::len)), (404, Some(2)));
    // The log says who asked.
    until("the log says who asked", secs(5), || {
        scene.daemon.log().contains("check web/http: run for 127.0.0.1:")
    });
    // The command line says the same.
    let (code, text) = standfast(&scene.g, &format!("check web http --api {API}"));
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("http: bad in ") && text.contains("status 503"), "{text}");
    assert!(text.contains("web is unhealthy and withdrawn: http: fall threshold reached"), "{text}");
    scene.service.set("/", true);
    let config = scene.daemon.config();
    let (code, text) = standfast(&scene.g, &format!("check web -c {}", config.display()));
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("asked 127.0.0.1:80 from 127.0.0.1:") && text.contains("    | all is well"),
        "{text}"
    );
    let (code, text) = standfast(&scene.g, &format!("check nix --api http://{API}/"));
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("VIP not found: nix") && text.contains("there is: web"), "{text}");
    // As it is printed, and without its VIP.
    let (code, text) = standfast(&scene.g, &format!("check web/http --api {API}"));
    assert!(code == 0 && text.contains("http: good"), "{code} {text}");
    let (code, text) = standfast(&scene.g, &format!("check http --api {API}"));
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("VIP not found: http; it is a check: ask for VIP and NAME, web http"), "{text}");
    let (code, text) = standfast(&scene.g, &format!("report web --api {API}"));
    assert!(code == 2 && text.contains("<--ok|--bad>"), "{code} {text}");
    let (code, text) = standfast(&scene.g, "check web --api 127.0.0.1:1");
    assert_eq!(code, 3, "{text}");
    let (code, text) = standfast(&scene.g, &format!("check web say --json --api {API}"));
    assert_eq!(code, 0, "{text}");
    assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON")["result"]["outcome"], "good");
}

#[test]
fn clients_that_hang_up_withdraw_nothing() {
    let Some(lab) = lab!("standfast") else { return };
    // Each run takes a while, and one bad run is enough.
    let scene = scene(
        &lab,
        "check: { name: slow, type: exec, interval: 10s, timeout: 9s, rise: 1, fall: 1, \
         exec: { command: [/bin/sh, -c, \"sleep 0.3; echo done\"] } }",
    );
    announced(&scene);
    for _ in 0..20 {
        let mut stream = scene.g.enter(|| std::net::TcpStream::connect(API)).expect("the API listens");
        stream.write_all(post("/api/v1/vips/web/check", "", "").as_bytes()).expect("it takes the request");
        // Long enough to be read, too short to be answered.
        std::thread::sleep(Duration::from_millis(20));
        drop(stream);
    }
    let good = || status_of(&scene, "slow")["runs"]["good"].as_u64().unwrap_or_default();
    until("the runs that were asked for are over", secs(10), || good() >= 2);
    let runs = status_of(&scene, "slow")["runs"].clone();
    assert_eq!(runs["bad"], 0, "{runs:#}");
    assert_eq!(scene.state_of("web"), "announced");
    assert!(good() < 15, "callers share runs: {runs:#}");
    let (_, status) = json(scene.g.get(API, "/status"));
    assert_eq!(status["vips"][0]["transitions"], 1);
    // Somebody who waits is answered all the same.
    let (_, answer) = json(scene.g.http(API, "POST", "/api/v1/vips/web/check"));
    assert_eq!(answer["result"]["success"], true, "{answer:#}");
}

/// A client at `source` that begins a request and never ends it.
fn silent_client(source: &str, to: std::net::SocketAddr) -> std::net::TcpStream {
    let source = std::net::SocketAddr::new(source.parse().expect("an address"), 0);
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&source.into()).expect("a loopback address");
    socket.connect(&to.into()).expect("the API listens");
    let mut stream = std::net::TcpStream::from(socket);
    // It may be closed already.
    let _ = std::io::Write::write_all(&mut stream, b"G");
    stream
}

#[test]
fn a_report_holds_for_its_lease_and_silence_withdraws() {
    let Some(lab) = lab!("standfast") else { return };
    let socket = lab.file("api.sock");
    let lease = secs(3);
    let checks = "checks:\n      - { name: app, type: push, push: { lease: 3s } }\n      \
                  - { name: http, type: http, interval: 1s, timeout: 500ms, http: { host: 127.0.0.1, port: 80 } }";
    let scene = Scene::new(&lab, G, |config| {
        config
            .vip_with("web", &[VIP], checks, WITHDRAW)
            .api(&format!("listen: \"{API}\", socket: {}", socket.display()))
    });
    let mut session = scene.establish();
    let mut table = Table::default();
    assert_eq!(scene.state_of("web"), "withdrawn");
    // Over the socket, with the command line: the only push check needs no name.
    let (code, text) =
        standfast(&scene.g, &format!("report web --ok --reason warm --api unix:{}", socket.display()));
    assert_eq!((code, text.as_str()), (0, ""));
    announced(&scene);
    until("the peer knows", secs(5), || {
        table.apply(&session.drain(Duration::from_millis(20)));
        table.0.contains_key(VIP)
    });
    assert_eq!(status_of(&scene, "app")["last_check_detail"], "warm");
    // As long as reports come, it stays; and over TCP from this host.
    let path = "/api/v1/vips/web/checks/app/report";
    assert_eq!(raw(&scene.g, &post(path, JSON, "{\"ok\": true}")).0, 200);
    // One source that takes every connection over TCP that it gets keeps nobody else out.
    let flood: Vec<_> = scene.g.enter(|| (0..300).map(|_| silent_client("127.0.0.9", API)).collect());
    let start = Instant::now();
    let mut last = start;
    while start.elapsed() < lease + secs(1) {
        last = Instant::now();
        let mut stream = UnixStream::connect(&socket).expect("the socket listens");
        assert_eq!(exchange(&mut stream, &post(path, JSON, "{\"ok\": true}")).0, 200);
        std::thread::sleep(Duration::from_millis(500));
    }
    drop(flood);
    assert_eq!(scene.state_of("web"), "announced");
    // Silence.
    until("the peer is told", lease + secs(5), || {
        table.apply(&session.drain(Duration::from_millis(20)));
        session.keepalive();
        !table.0.contains_key(VIP)
    });
    let after = last.elapsed();
    println!("withdrawn {after:.3?} after the last report, of a lease of {lease:?}");
    assert!(after >= lease && after < lease + secs(3), "{after:?}");
    assert!(
        status_of(&scene, "app")["last_check_detail"]
            .as_str()
            .is_some_and(|d| d.starts_with("no report for 3"))
    );
    // A bad word is enough at once, and says why.
    assert_eq!(raw(&scene.g, &post(path, JSON, "{\"ok\": true}")).0, 200);
    announced(&scene);
    let config = scene.daemon.config();
    let (code, text) =
        standfast(&scene.g, &format!("report web app --bad --reason 'disk is full' -c {}", config.display()));
    assert_eq!((code, text.as_str()), (0, ""));
    let (_, status) = json(scene.g.get(API, "/status"));
    assert_eq!(status["vips"][0]["state_name"], "withdrawn");
    assert!(
        status["vips"][0]["reason"].as_str().is_some_and(|r| r.contains("app") && r.contains("disk is full"))
    );
    // What is refused, and why.
    let ask = |path: &str, headers: &str, body: &str| {
        let (status, body) = raw(&scene.g, &post(path, headers, body));
        (
            status,
            serde_json::from_str::<Value>(&body).unwrap_or_default()["error"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        )
    };
    for (path, headers, body, status, words) in [
        ("/api/v1/vips/nix/checks/app/report", JSON, "{\"ok\":true}", 404, "VIP not found: nix"),
        ("/api/v1/vips/web/checks/nix/report", JSON, "{\"ok\":true}", 404, "check not found: nix"),
        ("/api/v1/vips/web/checks/http/report", JSON, "{\"ok\":true}", 409, "is of type http"),
        (path, JSON, "{\"ok\":1}", 400, "this is no report"),
        (path, JSON, "{}", 400, "missing field `ok`"),
        (path, JSON, "{\"ok\":true,\"weight\":9}", 400, "unknown field `weight`"),
        (path, JSON, "{\"ok\":true,\"lease\":\"1ms\"}", 400, "lease 1ms is less than 100ms"),
        (path, "Content-Type: text/plain\r\n", "{\"ok\":true}", 415, "as JSON"),
        (
            path,
            "Content-Type: application/json\r\nOrigin: http://evil.example\r\n",
            "{\"ok\":true}",
            403,
            "another site",
        ),
        ("/api/v1/vips/web/check", "Sec-Fetch-Site: cross-site\r\n", "", 403, "another site"),
        ("/api/v1/vips/web/check?chek=http", JSON, "", 400, "unknown field `chek`, expected `check`"),
    ] {
        let (found, error) = ask(path, headers, body);
        assert!(found == status && error.contains(words), "{path} {headers} {body}: {found} {error}");
    }
    assert_eq!(ask(path, JSON, &"x".repeat(20_000)).0, 413);
    let (found, error) =
        raw(&scene.g, "GET /status HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert!(found == 421 && error.contains("names another host"), "{found} {error}");
    // The socket is the owner's and the group's, and goes with the daemon.
    assert_eq!(scene.g.run(&format!("stat -c %a {}", socket.display())).trim(), "660");
    let mut stream = UnixStream::connect(&socket).expect("the socket listens");
    let request = post("/api/v1/vips/web/report", JSON, "{\"ok\":true}");
    assert_eq!(exchange(&mut stream, &request).0, 200);
    scene.daemon.kill();
    assert!(socket.exists());
    scene.daemon.start_again();
    let (code, _) = standfast(&scene.g, &format!("report web --ok --api {}", socket.display()));
    assert_eq!(code, 0, "a socket that a killed daemon left is taken over");
    scene.daemon.process().signal(Signal::SIGTERM);
    assert_eq!(scene.daemon.process().wait(secs(5)), 0);
    assert!(!socket.exists());
}

#[test]
fn reports_from_elsewhere_need_a_token() {
    let Some(lab) = lab!("standfast") else { return };
    let check = "check: { name: app, type: push, push: { lease: 1m } }";
    for tokens in [false, true] {
        let (p, g) = match tokens {
            true => (lab.host("p2", 2), lab.host("g2", 12)),
            false => (lab.host("p1", 1), lab.host("g1", 11)),
        };
        let api = format!(
            "listen: \":{}\"{}",
            API.port(),
            if tokens { ", tokens: [secret-1, secret-2]" } else { "" }
        );
        let config =
            Announcer::new(&g, G).neighbor(p.v4, Scene::P, "").vip_with("web", &[VIP], check, WITHDRAW);
        let _daemon = g.spawn(config.api(&api).spec());
        let away = std::net::SocketAddr::from((g.v4, API.port()));
        let report = |from: &Host, to: std::net::SocketAddr, token: &str| {
            let mut stream = from.enter(|| std::net::TcpStream::connect(to)).expect("the API listens");
            let headers = if token.is_empty() {
                JSON.to_owned()
            } else {
                format!("{JSON}Authorization: Bearer {token}\r\n")
            };
            exchange(&mut stream, &post("/api/v1/vips/web/report", &headers, "{\"ok\":true}")).0
        };
        let found = [
            report(&p, away, ""),
            report(&p, away, "secret-2"),
            report(&p, away, "secret-3"),
            report(&g, API, ""),
            report(&g, API, "secret-1"),
        ];
        assert_eq!(found, if tokens { [401, 200, 401, 401, 200] } else { [403, 403, 403, 200, 200] });
    }
}

#[test]
fn a_command_decides_and_goes_with_its_daemon() {
    let Some(lab) = lab!("standfast") else { return };
    let flag = lab.file("flag");
    let marker = format!("3600.{}", std::process::id());
    let checks = format!(
        "checks:\n      - {{ name: flag, type: exec, interval: 200ms, timeout: 190ms, rise: 1, fall: 2, \
         exec: {{ command: [/bin/sh, -c, \"test -e {} || {{ echo the flag is down; exit 3; }}\"] }} }}\n      \
         - {{ name: hangs, type: exec, interval: 60s, timeout: 50s, exec: {{ command: [/bin/sleep, \"{marker}\"] }} }}\n    \
         checks_policy: \"flag || hangs\"",
        flag.display()
    );
    std::fs::write(&flag, "").expect("a file");
    let scene = scene(&lab, &checks);
    announced(&scene);
    std::fs::remove_file(&flag).expect("a file");
    until("the VIP is withdrawn", secs(5), || scene.state_of("web") == "withdrawn");
    let (code, text) = standfast(&scene.g, &format!("status --api {API}"));
    assert_eq!(code, 1);
    assert!(text.contains("exit 3: the flag is down") && text.contains("web/hangs  exec"), "{text}");
    std::fs::write(&flag, "").expect("a file");
    announced(&scene);
    // A daemon that dies takes its commands along.
    let runs = || {
        Path::new("/proc").read_dir().into_iter().flatten().flatten().any(|p| {
            let line = std::fs::read(p.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).starts_with(&format!("/bin/sleep\0{marker}"))
        })
    };
    until("the command runs", secs(5), runs);
    scene.daemon.kill();
    until("the command is gone", secs(5), || !runs());
    scene.daemon.start_again();
    until("the command runs again", secs(10), runs);
    scene.daemon.process().signal(Signal::SIGTERM);
    assert_eq!(scene.daemon.process().wait(secs(5)), 0);
    until("the command is gone", secs(5), || !runs());
}

#[test]
fn metrics_say_what_happened() {
    let Some(lab) = lab!("standfast") else { return };
    let scene = scene(
        &lab,
        "checks:\n      - { name: http, type: http, interval: 100ms, timeout: 90ms, rise: 1, fall: 1000, detailed_metrics: true, http: { host: 127.0.0.1, port: 80 } }\n      \
         - { name: hangs, type: exec, interval: 200ms, timeout: 50ms, exec: { command: [/bin/sleep, \"9\"] } }\n      \
         - { name: app, type: push, push: { lease: 1m } }\n    checks_policy: \"http || hangs || app\"",
    );
    let mut session = scene.establish();
    announced(&scene);
    let scrape = || scene.g.get(API, "/metrics").expect("metrics").1;
    let web = ("vip", "web");
    scene.service.set("/", false);
    let absorbed = || metric(&scrape(), "pathosd_check_rise_fall_absorbed_total", &[web, ("check", "http")]);
    until("failures are absorbed", secs(10), || absorbed() > Some(20.0));
    until("the peer is told", secs(5), || {
        session.keepalive();
        let _ = session.drain(Duration::from_millis(20));
        metric(&scrape(), "pathosd_route_state", &[web, ("peer", "n1"), ("family", "ipv4_unicast")])
            == Some(1.0)
    });
    let timed_out = || metric(&scrape(), "pathosd_check_timeout_exceeded_total", &[("check", "hangs")]);
    until("runs time out", secs(10), || timed_out() > Some(1.0));
    let text = scrape();
    assert!(samples(&text) > 30, "{text}");
    let of = |name: &str, labels: &[(&str, &str)]| {
        metric(&text, name, labels).unwrap_or_else(|| panic!("no {name} {labels:?} in\n{text}"))
    };
    assert_eq!(of("pathosd_vip_state", &[web, ("nlri", VIP)]), 1.0);
    assert_eq!(of("pathosd_vip_transitions_total", &[web, ("to", "announced")]), 1.0);
    assert_eq!(of("pathosd_vip_transitions_total", &[web, ("to", "withdrawn")]), 0.0);
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let age = now - of("pathosd_vip_last_transition_timestamp", &[web]);
    assert!((0.0..60.0).contains(&age), "{age}");
    assert_eq!(of("pathosd_vip_priority_status", &[web]), 0.0);
    assert_eq!(of("pathosd_build_info", &[]), 1.0);
    let http = [web, ("check", "http"), ("type", "http")];
    let total = |result| of("pathosd_check_total", &[web, ("check", "http"), ("result", result)]);
    assert!(total("success") >= 1.0 && total("fail") > 20.0);
    assert_eq!(of("pathosd_check_last_result", &http), 0.0);
    // Runs go on between one number and the next: there is one in 100 ms.
    let count = of("pathosd_check_duration_seconds_count", &http);
    assert!((count - total("success") - total("fail")).abs() <= 10.0);
    assert_eq!(of("pathosd_check_duration_seconds_bucket", &[web, ("check", "http"), ("le", "+Inf")]), count);
    assert!(of("pathosd_check_duration_seconds_sum", &http) > 0.0);
    assert_eq!(of("standfast_peer_established", &[("peer", "n1")]), 1.0);
    assert!(metric(&text, "standfast_check_overruns_total", &http).is_some());
    // Details where they were asked for, and only there.
    assert!(of("standfast_check_phase_seconds", &[("check", "http"), ("phase", "connect")]) > 0.0);
    assert!(metric(&text, "standfast_check_exit_code", &[("check", "hangs")]).is_none());
    // Families that are asked for by name come alone, with or without what is appended to them.
    let path = "/metrics?name[]=standfast_vip_health&name[]=pathosd_check_total";
    let (_, some) = scene.g.get(API, path).expect("metrics");
    assert!(samples(&some) > 2, "{some}");
    assert_eq!(metric(&some, "standfast_vip_health", &[web]), Some(1.0));
    assert!(metric(&some, "pathosd_check_total", &[web, ("check", "http"), ("result", "fail")]) > Some(20.0));
    assert_eq!(some.lines().filter(|line| line.starts_with("# TYPE")).count(), 2, "{some}");
    // The other format ends as it must.
    let (_, open) = raw(
        &scene.g,
        &format!(
            "GET /metrics HTTP/1.1\r\nHost: {API}\r\nConnection: close\r\nAccept: application/openmetrics-text\r\n\r\n"
        ),
    );
    assert!(open.contains("# EOF"), "{open}");
}

#[test]
fn clients_that_say_nothing_or_too_much_cost_little_and_go() {
    let Some(lab) = lab!("standfast") else { return };
    let api = format!("listen: \"{API}\", read_header_timeout: 2s, read_timeout: 2s");
    let scene = Scene::new(&lab, G, |config| config.vip("web", &[VIP], "/", WITHDRAW).api(&api));
    let mut session = scene.establish();
    announced(&scene);
    let dial = || scene.g.enter(|| std::net::TcpStream::connect(API)).expect("the API listens");
    let before = scene.daemon.process().descriptors();
    // More than may be open; some say half a head, or half a body.
    let mut clients: Vec<_> = (0..400).map(|_| dial()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        let half = match n % 3 {
            0 => continue,
            1 => "GET /status HTT",
            _ => "POST /api/v1/vips/web/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n123",
        };
        // One that was closed already cannot be written to.
        let _ = client.write_all(half.as_bytes());
    }
    let most = scene.daemon.process().descriptors();
    assert!(most <= before + 300, "{before} descriptors became {most}");
    // Meanwhile the speaker speaks.
    session.keepalive();
    scene.service.set("/", false);
    until("the peer is told", secs(5), || {
        updates(&session.drain(Duration::from_millis(20))).iter().any(|update| update.withdrawn == [VIP])
    });
    scene.service.set("/", true);
    let closed = |client: &mut std::net::TcpStream| {
        client.set_read_timeout(Some(secs(10))).expect("a socket option");
        let mut rest = Vec::new();
        !matches!(std::io::Read::read_to_end(client, &mut rest), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
    };
    assert!(clients.iter_mut().all(closed), "somebody is still served");
    drop(clients);
    until("every descriptor is back", secs(5), || scene.daemon.process().descriptors() <= before + 2);
    announced(&scene);
}
