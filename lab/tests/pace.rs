//! The way from runs to a decision, as an operator meets it: haste, slowness, damping, checks that VIPs share.

use std::net::Ipv4Addr;
use std::time::Duration;

use nix::sys::signal::Signal;
use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const OTHER: &str = "198.51.100.11/32";
const L: u32 = 64512;
const G: u32 = 64513;

fn pair(lab: &Lab) -> (Host, Host, Service) {
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    (l, g, service)
}

fn status(host: &Host) -> serde_json::Value {
    let ((_, body), _) = until_some("the status", secs(10), || host.get(API, "/status"));
    serde_json::from_str(&body).expect("JSON")
}

fn reason(host: &Host, vip: usize) -> String {
    status(host)["vips"][vip]["reason"].as_str().expect("a reason").to_owned()
}

#[test]
fn a_check_between_two_states_runs_at_its_fast_interval() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, service) = pair(&lab);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let check = "check: { type: http, interval: 20s, fast_interval: 200ms, timeout: 100ms, rise: 5, fall: 4, \
                 http: { host: 127.0.0.1, port: 80, url: / } }";
    let _daemon =
        g.spawn(Announcer::new(&g, G).neighbor(l.v4, L, "").vip_with("web", &[VIP], check, WITHDRAW).spec());
    // At the normal pace five runs take more than a minute.
    until("the VIP is known", secs(20), || bird.route(VIP).is_some());
    let calm = || status(&g)["vips"][0]["checks"][0]["hurried"] == false;
    until("it is calm", secs(5), calm);
    // One run may have been planned before it calmed down.
    std::thread::sleep(secs(1));
    let before = service.requests();
    while_holds("it runs at its normal pace", secs(4), || service.requests() <= before + 1);
    service.set("/", false);
    let start = std::time::Instant::now();
    until("the VIP is withdrawn", secs(35), || bird.route(VIP).is_none());
    println!(
        "noticed and decided in {:.1} s, which would take 60 s at the normal pace",
        start.elapsed().as_secs_f64()
    );
    service.set("/", true);
    until("the VIP is known again", secs(35), || bird.route(VIP).is_some());
}

#[test]
fn a_service_that_flaps_is_held_back_and_says_for_how_long() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, service) = pair(&lab);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let policy = "policy: { fail_action: withdraw, damping: { flaps: 2, within: 10m, hold: 15s } }";
    let daemon = g.spawn(Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP], "/", policy).spec());
    until("the VIP is known", secs(10), || bird.route(VIP).is_some());
    service.set("/", false);
    until("the VIP is withdrawn", secs(5), || bird.route(VIP).is_none());
    service.set("/", true);
    until("once is nothing", secs(10), || bird.route(VIP).is_some());
    service.set("/", false);
    until("the VIP is withdrawn again", secs(5), || bird.route(VIP).is_none());
    service.set("/", true);
    until("the check is fine", secs(5), || reason(&g, 0).starts_with("damped: 2 flaps in "));
    let words = reason(&g, 0);
    assert!(words.ends_with(" s more") && words.contains(", held for "), "{words}");
    let left = status(&g)["vips"][0]["damped"].as_f64().expect("seconds");
    assert!(left > 0.0 && left <= 15.0, "{left}");
    assert!(daemon.log().contains("damped: 2 flaps in"), "the log does not say it");
    while_holds("it is held", Duration::from_secs_f64((left - 2.0).max(0.0)), || bird.route(VIP).is_none());
    until("it is let go", secs(15), || bird.route(VIP).is_some());
}

#[test]
fn a_daemon_that_dies_again_and_again_is_held_back_until_it_calms_down_or_somebody_lets_it_go() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, _service) = pair(&lab);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let policy = "policy: { fail_action: withdraw, damping: { flaps: 6, within: 10m, hold: 10m } }";
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip("web", &[VIP], "/", policy);
    let state = lab.file("state");
    let daemon =
        g.spawn(standfast(&format!("{}\nstate_dir: \"{}\"\n", config.yaml().trim_end(), state.display())));
    // What it knows is in its file a moment later, by a thread of its own.
    let file = state.join(format!("{}.json", g.v4));
    let stands = || std::fs::read_to_string(&file).is_ok_and(|text| text.contains("\"announced\":true"));
    let start = std::time::Instant::now();
    for end in [9, 9, 15, 9, 9, 15, 9, 9] {
        until("the VIP is known", secs(20), || bird.route(VIP).is_some());
        until("it is in the file", secs(5), stands);
        let process = daemon.process();
        process.signal(if end == 9 { Signal::SIGKILL } else { Signal::SIGTERM });
        process.wait(secs(10));
        until("the VIP is gone", secs(5), || bird.route(VIP).is_none());
        daemon.start_again();
    }
    println!("killed 6 times, and ended in order twice, within {:.0} s", start.elapsed().as_secs_f64());
    until("the check is fine", secs(10), || reason(&g, 0).starts_with("damped: 6 flaps in "));
    let said = daemon.log();
    assert!(
        said.contains("announced by a process that ended without a word: a failure; damped: 6 flaps in "),
        "{said}"
    );
    while_holds("it is held", secs(5), || bird.route(VIP).is_none());
    // One more restart lets nobody go.
    let process = daemon.process();
    process.signal(Signal::SIGKILL);
    process.wait(secs(10));
    daemon.start_again();
    until("the check is fine", secs(10), || reason(&g, 0).starts_with("damped: 6 flaps in "));
    assert!(bird.route(VIP).is_none());
    let program = standfast_bin().expect("a program");
    g.run(&format!("{} undamp web --api {API}", program.display()));
    until("it is let go", secs(5), || bird.route(VIP).is_some());
    until("nobody remembers the failures", secs(5), || {
        std::fs::read_to_string(&file)
            .is_ok_and(|text| text.contains("\"failures\":[]") && text.contains("\"flapped\":[]"))
    });
}

#[test]
fn a_shared_check_runs_once_for_all_vips_that_use_it() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, service) = pair(&lab);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    let yaml = Announcer::new(&g, G)
        .neighbor(l.v4, L, "")
        .vip_with("a", &[VIP], "check: door", WITHDRAW)
        .vip_with("b", &[OTHER], "checks: [door]", WITHDRAW)
        .yaml();
    let shared = "checks:\n  - { name: door, type: http, interval: 1s, fall: 1, http: { host: 127.0.0.1, port: 80 } }\nvips:\n";
    let yaml = yaml.replacen("vips:\n", shared, 1);
    let _daemon = g.spawn(standfast(&yaml));
    until("both are known", secs(10), || bird.learned(g.v4) == 2);
    let (before, start) = (service.requests(), std::time::Instant::now());
    std::thread::sleep(secs(4));
    let most = start.elapsed().as_secs_f64() * 1.2 + 2.0;
    let asked = service.requests() - before;
    assert!((asked as f64) <= most, "{asked} requests, and one check a second makes {most} at most");
    service.set("/", false);
    until("both are withdrawn", secs(10), || bird.learned(g.v4) == 0);
    assert!(reason(&g, 1).starts_with("door: fall threshold reached"), "{}", reason(&g, 1));
    let seen = status(&g);
    assert_eq!(seen["vips"][0]["checks"][0]["runs"], seen["vips"][1]["checks"][0]["runs"]);
}

#[test]
fn a_stop_of_the_process_is_no_failure_of_the_service() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g, _service) = pair(&lab);
    let bird = l.spawn(bird(L, &[Neighbor::new(g.v4, G)]));
    // Silence counts after 2.1 s, and once is enough.
    let check = "check: { type: tcp, fall: 1, tcp: { host: 127.0.0.1, port: 80 } }";
    let daemon =
        g.spawn(Announcer::new(&g, G).neighbor(l.v4, L, "").vip_with("web", &[VIP], check, WITHDRAW).spec());
    until("the VIP is known", secs(10), || bird.route(VIP).is_some());
    let before = status(&g)["vips"][0]["transitions"].clone();
    daemon.process().signal(Signal::SIGSTOP);
    // The session, with its hold time of 9 s, survives it.
    std::thread::sleep(secs(4));
    daemon.process().signal(Signal::SIGCONT);
    until("it is noticed", secs(5), || daemon.log().contains("this host stood still for"));
    while_holds("the service did not fail", secs(3), || bird.route(VIP).is_some());
    assert_eq!(status(&g)["vips"][0]["transitions"], before);
    // One that the session does not survive: the VIP is told again once its check has had a result.
    daemon.process().signal(Signal::SIGSTOP);
    until("the router has dropped the session", secs(20), || bird.route(VIP).is_none());
    daemon.process().signal(Signal::SIGCONT);
    until("the VIP is known again", secs(20), || bird.route(VIP).is_some());
    assert_eq!(status(&g)["vips"][0]["transitions"], before);
}
