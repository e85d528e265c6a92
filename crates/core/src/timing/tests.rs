use super::*;
use crate::health::Expr;
use crate::plan::{
    Bfd, Bgp, CheckId, Drain, HttpProbe, MembersProbe, PeerAsn, PingProbe, ProcessProbe, Router, Target,
};
use std::net::{IpAddr, SocketAddr};

const WEB: &str = "web";

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn http() -> Probe {
    let at: SocketAddr = "198.51.100.10:80".parse().unwrap();
    Probe::Http(Box::new(HttpProbe::new(Target::Address(at), "web")))
}

fn ping() -> Probe {
    Probe::Ping(PingProbe::new("198.51.100.10".parse().unwrap(), ms(100)))
}

fn process() -> Probe {
    Probe::Process(ProcessProbe::pid_file("/run/web.pid"))
}

/// One VIP with these checks and this policy, told to one peer with a hold time of 9 s.
fn plan(checks: &[(&str, Check)], policy: &str) -> Plan {
    let names: Vec<&str> = checks.iter().map(|(name, _)| *name).collect();
    let vip = Vip {
        policy: Expr::parse(policy, &names).unwrap(),
        ..Vip::new(WEB, vec!["198.51.100.10/32".parse().unwrap()], &names)
    };
    let peer = peer("front", 9);
    Plan {
        router: Router {
            asn: 64513,
            router_id: [192, 0, 2, 11].into(),
            local_address: None,
            local_address_ipv6: None,
        },
        bgp: Bgp { listen: Vec::new(), peers: [("front".to_owned(), peer)].into() },
        vips: [(WEB.to_owned(), vip)].into(),
        checks: checks.iter().map(|(name, check)| (CheckId::new(WEB, name), check.clone())).collect(),
        listener: None,
    }
}

fn peer(name: &str, hold: u64) -> Peer {
    let address: IpAddr = [192, 0, 2, 1].into();
    let mut peer = Peer::new(name, address, PeerAsn::Number(64512));
    peer.timers.hold = Duration::from_secs(hold);
    peer
}

fn row(plan: &Plan, known: &Known, class: Class) -> Row {
    contract(plan, known).into_iter().find(|row| row.class == class).unwrap()
}

fn formula(plan: &Plan, class: Class) -> String {
    row(plan, &Known::default(), class).formula()
}

fn check(probe: Probe, fall: u32) -> Check {
    Check { fall, ..Check::new(probe) }
}

#[test]
fn a_service_that_dies_is_seen_by_the_check_that_is_first_to_decide() {
    let slow = Check { interval: ms(5000), fast_interval: ms(5000), ..check(http(), 3) };
    let both = plan(&[("http", check(http(), 3)), ("slow", slow.clone())], "http && slow");
    assert_eq!(
        formula(&both, Class::ProcessDies),
        "1.1 x interval 1s + 2 x 1.1 x fast_interval 1s + timeout 100ms + told 10ms = 3.41s"
    );
    let either = plan(&[("http", check(http(), 3)), ("slow", slow)], "http || slow");
    assert!(formula(&either, Class::ProcessDies).ends_with("= 16.6s"), "both must fall");
}

#[test]
fn a_sick_service_may_be_seen_by_the_slowest_check_alone() {
    let slow = Check { interval: ms(5000), fast_interval: ms(500), ..check(http(), 2) };
    let plan = plan(&[("http", check(http(), 3)), ("slow", slow)], "all");
    let row = row(&plan, &Known::default(), Class::ServiceSick);
    assert_eq!(
        row.formula(),
        "1.1 x interval 5s + 1.1 x fast_interval 500ms + 2 x timeout 100ms + told 10ms = 6.26s"
    );
    assert_eq!(row.dominant().unwrap().knob, "interval of check web/slow");
}

#[test]
fn a_followed_process_that_dies_is_told_at_once_and_its_hang_is_not_seen() {
    let plan = plan(&[("process", check(process(), 1))], "process");
    assert_eq!(formula(&plan, Class::ProcessDies), "told 10ms = 10ms");
    let sick = row(&plan, &Known::default(), Class::ServiceSick);
    assert_eq!((sick.worst(), sick.formula().as_str()), (None, "never"));
    assert!(sick.never.contains("ask the service itself"), "{}", sick.never);
}

#[test]
fn a_ping_sees_no_service() {
    let plan = plan(&[("ping", check(ping(), 3))], "ping");
    assert_eq!(formula(&plan, Class::ProcessDies), "never");
    assert_eq!(formula(&plan, Class::ServiceSick), "never");
    let both = super::tests::plan(&[("ping", check(ping(), 3)), ("http", check(http(), 1))], "ping || http");
    assert_eq!(formula(&both, Class::ProcessDies), "never", "the ping holds it up");
}

#[test]
fn silence_of_a_reporter_is_its_lease_and_without_one_it_is_nothing() {
    let lease = Check { interval: ms(3000), fast_interval: ms(3000), ..check(Probe::External, 2) };
    let leased = plan(&[("app", lease)], "app");
    for class in [Class::ProcessDies, Class::ServiceSick, Class::CheckerWedged] {
        assert_eq!(formula(&leased, class), "2 x lease 3s + told 10ms = 6.01s");
    }
    let mute = Check { interval: Duration::ZERO, ..check(Probe::External, 1) };
    let mute = row(&plan(&[("app", mute)], "app"), &Known::default(), Class::CheckerWedged);
    assert_eq!(mute.formula(), "never");
    assert!(mute.never.contains("lease"), "{}", mute.never);
}

#[test]
fn a_wedged_checker_is_its_silence_as_the_gate_counts_it() {
    let fast = Check { fast_interval: ms(200), ..check(http(), 3) };
    let plan = plan(&[("http", fast.clone())], "http");
    let row = row(&plan, &Known::default(), Class::CheckerWedged);
    assert_eq!(row.formula(), "silence 2.1s + 2 x silence 1s + told 10ms = 4.11s");
    let mut gate = crate::health::Gate::new(crate::Time::ZERO, &fast);
    for _ in 0..3 {
        gate.push(crate::Time::ZERO, crate::health::Verdict::good("status 200"));
    }
    let mut now = crate::Time::ZERO;
    while gate.health() == Health::Healthy {
        now = gate.deadline().unwrap();
        gate.tick(now);
    }
    assert_eq!(now.since(crate::Time::ZERO) + TOLD, row.worst().unwrap(), "the gate is of the same mind");
}

#[test]
fn a_pessimised_vip_says_when_it_is_withdrawn() {
    let mut plan = plan(&[("http", check(http(), 1))], "http");
    let vip = plan.vips.get_mut(WEB).unwrap();
    vip.fail_action = FailAction::LowerPriority;
    vip.withdraw_after = Some(Duration::from_secs(30));
    let row = row(&plan, &Known::default(), Class::ServiceSick);
    assert_eq!((row.effect, row.withdrawn_after), (Effect::Pessimized, Some(Duration::from_secs(30))));
}

#[test]
fn a_dead_host_is_noticed_by_the_slowest_peer_that_is_told() {
    let mut plan = plan(&[("http", check(http(), 1))], "http");
    plan.bgp.peers.insert("back".to_owned(), peer("back", 90));
    let mut other = peer("other", 240);
    other.vips = Some(["dns".to_owned()].into());
    plan.bgp.peers.insert("other".to_owned(), other);
    let dead = row(&plan, &Known::default(), Class::HostDies);
    assert_eq!((dead.by.as_deref(), dead.formula().as_str()), (Some("back"), "hold_time 90s = 90s"));
    assert_eq!(dead.dominant().unwrap().knob, "hold_time of neighbor back");
    for class in [Class::CableCut, Class::StandfastHangs] {
        assert_eq!(row(&plan, &Known::default(), class).worst(), dead.worst());
    }
    let agreed = Agreed { hold: Duration::from_secs(6), ..Agreed::default() };
    let known = Known { peers: [("back".to_owned(), agreed)].into(), ..Known::default() };
    let dead = row(&plan, &known, Class::HostDies);
    assert_eq!((dead.by.as_deref(), dead.worst()), (Some("front"), Some(Duration::from_secs(9))));
    assert_eq!(dead.basis, Basis::Configured, "front has agreed to nothing yet");
}

#[test]
fn bfd_counts_by_what_was_agreed_and_only_while_it_is_up() {
    let mut plan = plan(&[("http", check(http(), 1))], "http");
    let bfd = Bfd { interval: ms(50), multiplier: 3, ..Bfd::new() };
    plan.bgp.peers.get_mut("front").unwrap().bfd = Some(bfd);
    assert_eq!(formula(&plan, Class::HostDies), "3 x bfd.interval 50ms = 150ms");
    let known = |bfd| {
        let agreed = Agreed { hold: Duration::from_secs(9), bfd, graceful_restart: false };
        Known { peers: [("front".to_owned(), agreed)].into(), ..Known::default() }
    };
    let slower = row(&plan, &known(Some(ms(300))), Class::HostDies);
    assert_eq!(
        (slower.formula().as_str(), slower.basis),
        ("3 x bfd.interval 300ms = 900ms", Basis::Negotiated)
    );
    let down = row(&plan, &known(None), Class::HostDies);
    assert_eq!(down.formula(), "hold_time 9s = 9s");
    assert!(down.dominant().unwrap().advice.contains("not up"));
}

#[test]
fn a_hold_time_of_zero_without_bfd_notices_nothing() {
    let mut plan = plan(&[("http", check(http(), 1))], "http");
    plan.bgp.peers.insert("mute".to_owned(), peer("mute", 0));
    let dead = row(&plan, &Known::default(), Class::HostDies);
    assert_eq!((dead.worst(), dead.by.as_deref()), (None, Some("mute")));
    assert!(dead.never.contains("hold time of 0"), "{}", dead.never);
}

#[test]
fn a_stop_waits_for_the_connections_of_a_vip_that_is_to_drain() {
    let mut plan = plan(&[("http", check(http(), 1))], "http");
    let drained = |plan: &mut Plan, mode, on_stop| {
        for vip in plan.vips.values_mut() {
            vip.drain = Drain { mode, on_stop, ..Drain::default() };
        }
        formula(plan, Class::Drain)
    };
    let long = "drain.deadline 30s + told 10ms = 30s";
    assert_eq!(drained(&mut plan, DrainMode::GracefulShutdown, true), long);
    for (mode, on_stop) in [(DrainMode::GracefulShutdown, false), (DrainMode::Withdraw, true)] {
        assert_eq!(drained(&mut plan, mode, on_stop), "told 10ms = 10ms");
    }
}

#[test]
fn a_killed_speaker_is_noticed_at_once_unless_its_routes_are_kept() {
    let mut plan = plan(&[("http", check(http(), 1))], "http");
    assert_eq!(formula(&plan, Class::StandfastDies), "told 10ms = 10ms");
    assert_eq!(formula(&plan, Class::Drain), "told 10ms = 10ms");
    plan.bgp.peers.get_mut("front").unwrap().graceful_restart = Some(Duration::from_secs(120));
    let kept = row(&plan, &Known::default(), Class::StandfastDies);
    assert_eq!(kept.formula(), "told 10ms + restart_time 120s = 120s");
    assert!(kept.dominant().unwrap().advice.starts_with("graceful_restart: false"));
    let agreed = Agreed { hold: Duration::from_secs(9), ..Agreed::default() };
    let known = Known { peers: [("front".to_owned(), agreed)].into(), ..Known::default() };
    let kept = row(&plan, &known, Class::StandfastDies);
    assert_eq!(kept.worst(), Some(TOLD), "this peer does not keep them");
}

#[test]
fn a_listener_tells_of_its_members() {
    let mut plan = plan(
        &[("members", check(Probe::Members(MembersProbe { vip: "pool".into(), at_least: 1 }), 1))],
        "all",
    );
    let mut range = Accept::new("gateways", "192.0.2.0/25".parse().unwrap(), PeerAsn::Number(64513));
    range.timers.hold = Duration::from_secs(9);
    let vip = ListenerVip::new("198.51.100.20/32".parse().unwrap());
    plan.listener = Some(Listener::new(vec![range], [("pool".to_owned(), vip)].into()));
    let of = |plan: &Plan, known: &Known, class| {
        contract(plan, known).into_iter().find(|r| r.listener && r.class == class).unwrap()
    };
    let none = Known::default();
    assert_eq!(of(&plan, &none, Class::HostDies).formula(), "hold_time 9s + told 10ms = 9.01s");
    assert_eq!(of(&plan, &none, Class::StandfastDies).worst(), Some(TOLD));
    assert_eq!(of(&plan, &none, Class::Drain).formula(), "drain_timeout 300s + told 10ms = 300s");
    plan.listener.as_mut().unwrap().accept[0].bfd = Some(Bfd::new());
    assert_eq!(of(&plan, &none, Class::CableCut).formula(), "3 x bfd.interval 300ms + told 10ms = 910ms");
    let member = |name: &str, detection| Member {
        range: "gateways".into(),
        name: name.into(),
        hold: Duration::from_secs(6),
        detection,
    };
    let members = vec![member("192.0.2.11", Some(ms(150))), member("192.0.2.12", None)];
    let dead = of(&plan, &Known { members, ..Known::default() }, Class::HostDies);
    assert_eq!(
        (dead.by.as_deref(), dead.formula().as_str()),
        (Some("192.0.2.12"), "hold_time 6s + told 10ms = 6.01s")
    );
    // The VIP that is announced while there are members: their end is told at once, and nothing can hang.
    assert_eq!(formula(&plan, Class::ServiceSick), "told 10ms = 10ms");
    assert_eq!(formula(&plan, Class::CheckerWedged), "never");
}

#[test]
fn every_vip_has_every_class_once() {
    let plan = plan(&[("http", check(http(), 1))], "http");
    let classes: Vec<Class> = contract(&plan, &Known::default()).iter().map(|r| r.class).collect();
    assert_eq!(classes.len(), 8);
    let mut sorted = classes.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(sorted.len(), 8, "{classes:?}");
}

#[test]
fn durations_are_shown_in_few_digits() {
    for (nanos, text) in [
        (0, "0s"),
        (10_000_000, "10ms"),
        (3_410_000_000, "3.41s"),
        (16_610_000_000, "16.6s"),
        (300_010_000_000, "300s"),
        (200_000, "200us"),
        (1_000_000_000, "1s"),
    ] {
        assert_eq!(show(Duration::from_nanos(nanos)), text);
    }
}
