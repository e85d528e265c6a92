//! Gateways that leave on purpose while connections are alive: what breaks (nothing), in which order things happen, and what
//! everybody is told.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use standfast_lab::*;

const PORT: u16 = 7100;

fn target(ipv6: bool) -> SocketAddr {
    SocketAddr::new(Fleet::target(ipv6).ip(), PORT)
}

/// Gateways that run standfast with managed VIPs, before one listener.
struct Scene {
    fleet: Fleet,
    daemons: Vec<Daemon>,
    _services: Vec<Service>,
    _shelf: Shelf,
}

impl Scene {
    /// `drain` is what stands after `drain:` in both VIPs.
    fn new(lab: &Lab, gateways: u8, drain: &str, listener: impl FnOnce(&Fleet) -> Spec) -> Self {
        let fleet = Fleet::new(lab, 1, gateways);
        let l = &fleet.listeners[0];
        l.spawn(listener(&fleet));
        let services = fleet.gateways.iter().map(|g| Service::start(g, (Ipv4Addr::LOCALHOST, 80))).collect();
        let shelf = Shelf::start(&fleet.gateways, PORT);
        let start = |g: &Host| {
            g.run(&format!("ip addr del {}/32 dev lo; ip addr del {}/128 dev lo", Fleet::VIP, Fleet::VIP6));
            let more = format!("address: {{ manage: true }}\n    {WITHDRAW}\n    drain: {drain}");
            let config = Announcer::new(g, Fleet::G).neighbor(l.v4, Fleet::L, "").vip(
                "web",
                &Fleet::PREFIXES,
                "/",
                &more,
            );
            g.spawn(config.spec())
        };
        let daemons = fleet.gateways.iter().map(start).collect();
        let scene = Self { fleet, daemons, _services: services, _shelf: shelf };
        scene.fleet.routed(0, &(0..usize::from(gateways)).collect::<Vec<_>>());
        scene
    }

    fn g(&self, nth: usize) -> &Host {
        &self.fleet.gateways[nth]
    }

    /// Downloads of both families, half each, once they have found their gateways.
    fn downloads(&self, count: usize, pieces: u16) -> [Downloads; 2] {
        let all = [false, true].map(|v6| Downloads::begin(&self.fleet.client, target(v6), count / 2, pieces));
        until("they have begun", secs(20), || all.iter().all(Downloads::are_begun));
        all
    }

    fn vip(&self, nth: usize) -> Value {
        let (_, body) = self.g(nth).get(API, "/status").expect("an answer");
        let status: Value = serde_json::from_str(&body).expect("JSON");
        status["vips"][0].clone()
    }

    fn has_address(&self, nth: usize) -> bool {
        self.g(nth).has_on_lo(Fleet::VIP)
    }
}

/// The exit code and everything that a command said.
fn says(host: &Host, arguments: &str) -> (i32, String) {
    let program = standfast_bin().expect("a program");
    let said = host.attempt(&format!("{} {arguments} --api {API} 2>&1; echo code $?", program.display()));
    let (text, code) = said.trim_end().rsplit_once("code ").expect("a code");
    (code.parse().expect("a number"), text.to_owned())
}

/// Notes when addresses come and go on `lo`.
fn watch_addresses(host: &Host) -> Arc<Process> {
    let process = host.process("addresses", &["stdbuf", "-oL", "ip", "-o", "monitor", "address"], &[]);
    until("the monitor listens", secs(5), || {
        host.attempt("ip addr add 127.9.9.9/32 dev lo; ip addr del 127.9.9.9/32 dev lo");
        process.log().contains("127.9.9.9")
    });
    process
}

/// When this gateway withdrew the VIP last, and when it said goodbye, by the capture.
fn said(capture: &Capture, from: IpAddr) -> (Option<Duration>, Option<Duration>, Option<Duration>) {
    let messages = capture.messages_from(from);
    let update = |of: &dyn Fn(&Update) -> bool| {
        messages.iter().rev().find(|(_, m)| m.update().as_ref().is_some_and(of)).map(|(at, _)| *at)
    };
    let leaving = update(&|u| u.communities().contains(&(65535, 0)));
    let withdrawn = update(&|u| u.withdrawn.iter().any(|p| p == Fleet::PREFIXES[0]));
    let cease = messages.iter().find(|(_, m)| m.code().is_some_and(|(code, _)| code == 6)).map(|(at, _)| *at);
    (leaving, withdrawn, cease)
}

/// When the last of the downloads on a gateway ended.
fn last_end(downloads: &[Downloads], gateway: &str) -> Duration {
    let all = downloads.iter().flat_map(Downloads::look).filter(|d| d.gateway == gateway);
    all.filter_map(|d| d.ended).map(|(at, _)| at).max().expect("one that ended")
}

fn epoch() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970")
}

const RESILIENT: &str = "buckets: 65535, idle_timer: 5s";

#[test]
fn a_drain_by_command_and_one_by_signal_break_none_of_200_downloads_and_take_no_new_one() {
    let Some(lab) = lab!("standfast", "stdbuf") else { return };
    let resilient = |fleet: &Fleet| standfast(&Fleet::listener(&fleet.listeners[0], RESILIENT));
    let s = Scene::new(&lab, 2, "{ deadline: 90s }", resilient);
    let (g1, v4) = (s.g(0), IpAddr::from(s.g(0).v4));
    let capture = g1.capture("eth0");
    let monitor = watch_addresses(g1);
    for by_signal in [false, true] {
        let downloads = s.downloads(200, 80);
        let drained: usize = downloads.iter().map(|d| d.on("g1")).sum();
        assert!(drained > 40, "{drained} of 200 are on the gateway: that shows little");
        let begun = epoch();
        let (code, words, new) = std::thread::scope(|scope| {
            let command = (!by_signal).then(|| scope.spawn(|| says(g1, "drain web --wait")));
            if by_signal {
                s.daemons[0].process().signal(Signal::SIGTERM);
            }
            until("the listener knows", secs(10), || {
                let (_, body) = s.fleet.listeners[0].get(API, "/status").expect("an answer");
                body.contains("\"state\":\"draining\"")
            });
            s.fleet.moves(0);
            let new = s.downloads(100, 3);
            until("the new ones are over", secs(20), || new.iter().all(Downloads::are_over));
            assert_eq!(new.iter().map(Downloads::broken).sum::<usize>(), 0);
            let vip = s.vip(0);
            assert_eq!(
                (&vip["state_name"], &vip["drain"]["mode"]),
                (&"announced".into(), &"graceful_shutdown".into())
            );
            let left = vip["drain"]["connections"].as_u64().expect("a number");
            assert!(left > 0 && left <= 200, "{vip}");
            assert!(vip["reason"].as_str().is_some_and(|r| r.contains("connections, ")), "{vip}");
            let metrics = g1.get(API, "/metrics").expect("an answer").1;
            assert!(metrics.contains("standfast_vip_drain{vip=\"web\"} 1"), "{metrics}");
            assert!(metrics.contains("standfast_vip_drain_connections{vip=\"web\"}"), "{metrics}");
            assert!(s.has_address(0));
            let (code, words) = match command {
                Some(command) => command.join().expect("an end"),
                None => (s.daemons[0].process().wait(secs(60)), s.daemons[0].log()),
            };
            (code, words, new.iter().map(|d| d.on("g1")).sum::<usize>())
        });
        until("all is over", secs(60), || downloads.iter().all(Downloads::are_over));
        until("the address is gone", secs(5), || !s.has_address(0));
        let gone = epoch();
        let broken: usize = downloads.iter().map(Downloads::broken).sum();
        std::thread::sleep(Duration::from_millis(200));
        let (leaving, withdrawn, cease) = said(&capture, v4);
        let (leaving, withdrawn) = (leaving.expect("an UPDATE"), withdrawn.expect("a withdrawal"));
        let last = last_end(&downloads, "g1");
        let since = |at: Duration| at.saturating_sub(begun).as_secs_f64();
        println!(
            "by signal: {by_signal}: {drained} of 200 on the one that leaves, {broken} broken, {new} of 100 new ones on it; \
             GRACEFUL_SHUTDOWN after {:.3} s, last download {:.3}, withdrawn {:.3}, address gone {:.3}, Cease {:.3}",
            since(leaving),
            since(last),
            since(withdrawn),
            since(gone),
            cease.map_or(0.0, since)
        );
        assert_eq!((broken, code), (0, 0), "{words}");
        assert_eq!(new, 0, "of 100 new ones went to the gateway that leaves");
        assert!(words.contains("connections, ") || words.contains("connections left"), "{words}");
        assert!(words.contains("no connection is left"), "{words}");
        assert!(leaving < last && last < withdrawn && withdrawn < gone);
        if by_signal {
            assert!(cease.is_some_and(|at| withdrawn < at), "{cease:?}");
        } else {
            assert_eq!(cease, None);
            let (code, words) = says(g1, "undrain --all");
            assert!(code == 0 && words.contains("web"), "{words}");
            s.fleet.routed(0, &[0, 1]);
            assert!(s.has_address(0));
            let (code, words) = says(g1, "undrain web");
            assert!(code == 2 && words.contains("nobody ordered a drain"), "{words}");
        }
    }
    let log = monitor.log();
    let deleted = log.lines().filter(|l| l.starts_with("Deleted") && l.contains("198.51.100.10/")).count();
    assert_eq!(deleted, 2, "{log}");
}

#[test]
fn no_request_fails_while_gateways_leave_by_either_signal_and_come_back() {
    let Some(lab) = lab!("standfast") else { return };
    let resilient = |fleet: &Fleet| standfast(&Fleet::listener(&fleet.listeners[0], RESILIENT));
    let s = Scene::new(&lab, 2, "{ deadline: 20s }", resilient);
    let (mut asked, mut failed) = (0, 0);
    let mut ask = || {
        let some = s.downloads(10, 1);
        until("they are over", secs(20), || some.iter().all(Downloads::are_over));
        asked += 10;
        failed += some.iter().map(Downloads::broken).sum::<usize>();
    };
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGTERM, Signal::SIGINT] {
        let daemon = s.daemons[0].process();
        daemon.signal(signal);
        let start = Instant::now();
        while daemon.alive() {
            ask();
            assert!(start.elapsed() < secs(30), "it does not end");
        }
        assert_eq!(daemon.wait(secs(1)), 0, "{}", daemon.log());
        assert!(!s.has_address(0));
        ask();
        s.daemons[0].start_again();
        s.fleet.routed(0, &[0, 1]);
        ask();
    }
    println!("{failed} of {asked} requests failed");
    assert_eq!(failed, 0);
}

/// 200 requests a second all the time, each over a connection of its own. `ROUNDS` says how often each end comes.
#[test]
fn no_request_fails_however_a_daemon_ends_while_another_one_announces() {
    let Some(lab) = lab!("standfast", "hey") else { return };
    let fleet = Fleet::new(&lab, 1, 2);
    let l = &fleet.listeners[0];
    l.spawn(standfast(&Fleet::listener(l, RESILIENT)));
    let _services: Vec<_> =
        fleet.gateways.iter().map(|g| Service::start(g, (Ipv4Addr::UNSPECIFIED, 80))).collect();
    let drain = format!("{WITHDRAW}\n    drain: {{ deadline: 20s }}");
    let start = |g: &Host| {
        let config = Announcer::new(g, Fleet::G).neighbor(l.v4, Fleet::L, "");
        g.spawn(config.vip("web", &Fleet::PREFIXES, "/", &drain).spec())
    };
    let daemons: Vec<_> = fleet.gateways.iter().map(start).collect();
    fleet.routed(0, &[0, 1]);
    let rounds = std::env::var("ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    let command = ["hey", "-c", "2", "-q", "100", "-z", "10m", "-t", "5", "-disable-keepalive"];
    let load = fleet.client.process("load", &[&command[..], &["http://198.51.100.10/"]].concat(), &[]);
    for _ in 0..rounds {
        for end in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGKILL] {
            let process = daemons[0].process();
            process.signal(end);
            let code = process.wait(secs(30));
            assert!(code == 0 || end == Signal::SIGKILL, "{end}: {}", daemons[0].log());
            fleet.routed(0, &[1]);
            daemons[0].start_again();
            fleet.routed(0, &[0, 1]);
        }
    }
    // Told to end, it says what it counted.
    load.signal(Signal::SIGINT);
    load.wait(secs(10));
    let said = load.log();
    let (_, told) = said.split_once("Status code distribution:").expect("what it counted");
    let lines: Vec<&str> = told.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    println!("{rounds} times each of SIGTERM, SIGINT and SIGKILL: {lines:?}");
    assert!(lines.len() == 1 && lines[0].starts_with("[200]"), "{said}");
}

#[test]
fn an_address_that_the_operator_put_there_outlives_the_drain() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let bird = l.spawn(bird(Fleet::L, &[Neighbor::new(g.v4, Fleet::G)]));
    g.run(&format!("ip addr add {}/32 dev lo", Fleet::VIP));
    let more = format!("address: {{ manage: true }}\n    {WITHDRAW}");
    let config =
        Announcer::new(&g, Fleet::G).neighbor(l.v4, Fleet::L, "").vip("web", &Fleet::PREFIXES, "/", &more);
    let _daemon = g.spawn(config.spec());
    let v6: IpAddr = Fleet::VIP6.parse().expect("an address");
    until("it is announced", secs(10), || Fleet::PREFIXES.iter().all(|p| bird.route(p).is_some()));
    let (code, words) = says(&g, "drain --all --wait");
    assert!(code == 0 && words.contains("no connection is left"), "{code}: {words}");
    until("ours is gone", secs(5), || !g.has_on_lo(v6));
    while_holds("the operator's is there", secs(1), || g.has_on_lo(Fleet::VIP));
    assert!(Fleet::PREFIXES.iter().all(|p| bird.route(p).is_none()));
}

#[test]
fn an_order_that_is_to_outlive_the_daemon_does_and_the_other_does_not() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let bird = l.spawn(bird(Fleet::L, &[Neighbor::new(g.v4, Fleet::G)]));
    let [kept, not] = Fleet::PREFIXES;
    let persist = format!("{WITHDRAW}\n    drain: {{ persist: true, on_stop: false }}");
    let config = Announcer::new(&g, Fleet::G)
        .neighbor(l.v4, Fleet::L, "")
        .vip("kept", &[kept], "/", &persist)
        .vip("not", &[not], "/", WITHDRAW);
    let state = format!("{}\nstate_dir: \"{}\"\n", config.yaml().trim_end(), lab.file("state").display());
    let daemon = g.spawn(standfast(&state));
    until("both are announced", secs(10), || bird.route(kept).is_some() && bird.route(not).is_some());
    let (code, words) = says(&g, "drain --all --wait");
    assert_eq!(code, 0, "{words}");
    for kill in [false, true] {
        let process = daemon.process();
        process.signal(if kill { Signal::SIGKILL } else { Signal::SIGTERM });
        process.wait(secs(5));
        daemon.start_again();
        until("one is announced", secs(10), || bird.route(not).is_some());
        while_holds("the other is not", secs(2), || bird.route(kept).is_none());
        let (_, table) = says(&g, "status");
        assert!(table.contains("drained (by command): it was not announced"), "{table}");
        assert!(daemon.log().contains("ordered to drain before the restart, and still"), "{}", daemon.log());
    }
    let (code, words) = says(&g, "undrain kept");
    assert_eq!(code, 0, "{words}");
    until("it is back", secs(10), || bird.route(kept).is_some());
    // The file is written a moment later, by a thread of its own.
    let file = lab.file("state").join(format!("{}.json", g.v4));
    let forgotten = || std::fs::read_to_string(&file).is_ok_and(|text| !text.contains("kept"));
    until("the order is out of the file", secs(10), forgotten);
    let process = daemon.process();
    process.signal(Signal::SIGKILL);
    process.wait(secs(5));
    daemon.start_again();
    until("nobody remembers it", secs(10), || bird.route(kept).is_some());
}

#[test]
fn a_lone_gateway_behind_bird_keeps_every_download_until_its_end() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let s = Scene::new(&lab, 1, "{ mode: weight, deadline: 60s }", Fleet::bird);
    let downloads = s.downloads(200, 60);
    let capture = s.g(0).capture("eth0");
    let (code, words) = says(s.g(0), "drain web --wait --timeout 50s");
    println!("{words}");
    assert!(downloads.iter().all(Downloads::are_over), "it was over before they were");
    assert_eq!((downloads.iter().map(Downloads::broken).sum::<usize>(), code), (0, 0), "{words}");
    until("it is withdrawn", secs(5), || s.fleet.listeners[0].next_hops(Fleet::PREFIXES[0]).is_empty());
    until("the address is gone", secs(5), || !s.has_address(0));
    let (_, withdrawn, _) = said(&capture, s.g(0).v4.into());
    assert!(last_end(&downloads, "g1") < withdrawn.expect("a withdrawal"));
    let (code, table) = says(s.g(0), "status");
    assert!(code == 1 && table.contains("drained (by command): no connection is left"), "{table}");
}

#[test]
fn a_deadline_and_a_second_signal_cut_what_is_left_and_say_so() {
    let Some(lab) = lab!("standfast") else { return };
    let resilient = |fleet: &Fleet| standfast(&Fleet::listener(&fleet.listeners[0], RESILIENT));
    let s = Scene::new(&lab, 1, "{ floor: 2 }", resilient);
    let downloads = s.downloads(20, 600);
    let start = Instant::now();
    let (code, words) = says(s.g(0), "drain web --wait --timeout 3s");
    println!("{words}");
    assert!(code == 1 && words.contains("its time is up, with 20 connections left"), "{code}: {words}");
    assert!(start.elapsed() >= secs(3));
    assert!(s.daemons[0].log().contains("drained: its time is up, with 20 connections left"));
    until("the address is gone", secs(5), || !s.has_address(0));
    drop(downloads);
    says(s.g(0), "undrain web");
    s.fleet.routed(0, &[0]);

    // With two left it is over: they are few enough.
    let two = s.downloads(2, 600);
    let (code, words) = says(s.g(0), "drain web --wait");
    assert!(code == 0 && words.contains("2 connections left, which is few enough"), "{code}: {words}");
    drop(two);
    says(s.g(0), "undrain web");
    s.fleet.routed(0, &[0]);

    let capture = s.g(0).capture("eth0");
    let _many = s.downloads(20, 600);
    let daemon = s.daemons[0].process();
    daemon.signal(Signal::SIGTERM);
    while_holds("it waits for them", secs(3), || daemon.alive() && s.has_address(0));
    assert_eq!(s.g(0).get(API, "/readyz").expect("an answer").0, 503);
    let (code, words) = says(s.g(0), "drain web");
    assert!(code == 2 && words.contains("leaves already: received SIGTERM"), "{code}: {words}");
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(secs(5)), 0, "{}", daemon.log());
    assert!(daemon.log().contains("drained: cut short, with 20 connections left"), "{}", daemon.log());
    assert!(!s.has_address(0));
    std::thread::sleep(Duration::from_millis(200));
    let (_, withdrawn, cease) = said(&capture, s.g(0).v4.into());
    assert!(withdrawn.is_some() && withdrawn < cease, "{withdrawn:?} {cease:?}");
}

#[test]
fn a_drain_file_counts_within_a_second_however_seldom_the_check_runs() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let _service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let bird = l.spawn(bird(Fleet::L, &[Neighbor::new(g.v4, Fleet::G)]));
    let check = "check: { type: tcp, interval: 60s, timeout: 1s, rise: 1, fall: 1, tcp: { host: 127.0.0.1, port: 80 } }";
    let (worse, drained) = (lab.file("worse"), lab.file("drained"));
    let policy = |file: &std::path::Path| {
        format!("policy: {{ fail_action: withdraw, lower_priority_file: \"{}\" }}", file.display())
    };
    let config = Announcer::new(&g, Fleet::G)
        .neighbor(l.v4, Fleet::L, "")
        .vip_with("worse", &["198.51.100.20/32"], check, &policy(&worse))
        .vip_with(
            "drained",
            &["198.51.100.21/32"],
            check,
            &format!("{}\n    drain: {{ on_file: true }}", policy(&drained)),
        );
    let _daemon = g.spawn(config.spec());
    let path = |prefix: &str| bird.route(prefix).map(|route| route.as_path.len());
    until("both are there", secs(20), || {
        path("198.51.100.20/32") == Some(1) && path("198.51.100.21/32") == Some(1)
    });
    let mut took = Vec::new();
    for round in 0..6 {
        let start = Instant::now();
        if round % 2 == 0 {
            std::fs::write(&worse, "").expect("a file")
        } else {
            std::fs::remove_file(&worse).expect("no file")
        }
        until("it is worse, or not", secs(10), || {
            path("198.51.100.20/32") == Some(if round % 2 == 0 { 7 } else { 1 })
        });
        took.push(start.elapsed());
    }
    took.sort();
    println!(
        "the drain file counted after {:.3?} (median of {}, the longest {:.3?})",
        took[3],
        took.len(),
        took[5]
    );
    assert!(took[3] < secs(1), "{took:?}");
    std::fs::write(&drained, "").expect("a file");
    // Nobody is connected: it is over when the routers have had their second.
    until("it is withdrawn", secs(10), || path("198.51.100.21/32").is_none());
    std::fs::remove_file(&drained).expect("no file");
    until("it is back", secs(10), || path("198.51.100.21/32").is_some());
}
