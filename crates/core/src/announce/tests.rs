//! Every combination of what a decision looks at.

use super::*;
use crate::health::Expr;
use crate::plan::{self, FailAction, Probe};
use crate::prefix::Prefix;

const VIP: &str = "web";

#[derive(Debug, Clone, Copy, PartialEq)]
enum History {
    Nothing,
    NeverHealthy,
    Healthy,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Address {
    NotAsked,
    Required(bool),
    OnInterface(bool),
    Managed(bool),
}

fn vip() -> Vip {
    Vip {
        announce: Attributes { med: Some(1), ..Attributes::default() },
        lower_priority: Attributes { as_path_prepend: 3, ..Attributes::default() },
        ..Vip::new(VIP, vec!["198.51.100.10/32".parse().unwrap()], &["up"])
    }
}

fn check() -> (CheckId, Check) {
    let id = CheckId::new(VIP, "up");
    // No lease: it may stay silent for ever.
    let (interval, timeout) = (Duration::ZERO, Duration::ZERO);
    let check = Check { interval, timeout, fall: 1, fast_interval: interval, ..Check::new(Probe::External) };
    (id, check)
}

fn at(secs: u64) -> Time {
    Time::from_secs(secs)
}

fn on(interface: &str) -> LocalAddress {
    LocalAddress { address: "198.51.100.10".parse().unwrap(), interface: interface.into() }
}

fn started(vip: &Vip) -> Announcer {
    let (id, check) = check();
    Announcer::new(at(0), &[(VIP.to_owned(), vip.clone())].into(), &[(id, check)].into())
}

fn report(announcer: &mut Announcer, now: Time, good: bool) -> Vec<AnnounceOutput> {
    let verdict = if good { Verdict::good("200") } else { Verdict::bad("503") };
    let mut out = Vec::new();
    announcer.handle(now, AnnounceInput::Reported(check().0, verdict), &mut out);
    out
}

#[test]
fn the_state_follows_from_health_file_address_and_plan_in_every_combination() {
    let histories = [History::Nothing, History::NeverHealthy, History::Healthy, History::Failed];
    let addresses = [
        Address::NotAsked,
        Address::Required(true),
        Address::Required(false),
        Address::OnInterface(true),
        Address::OnInterface(false),
        Address::Managed(true),
        Address::Managed(false),
    ];
    let mut count = 0;
    for history in histories {
        for address in addresses {
            for file in [false, true] {
                for fail_action in [FailAction::Withdraw, FailAction::LowerPriority] {
                    for (limit, waited) in [(None, 100), (Some(30), 29), (Some(30), 30)] {
                        one(history, address, file, fail_action, limit, waited);
                        count += 1;
                    }
                }
            }
        }
    }
    assert_eq!(count, 4 * 7 * 2 * 2 * 3);
}

fn one(
    history: History,
    address: Address,
    file: bool,
    fail_action: FailAction,
    limit: Option<u64>,
    waited: u64,
) {
    let case = format!("{history:?} {address:?} file {file} {fail_action:?} {limit:?} after {waited} s");
    let mut vip = vip();
    vip.fail_action = fail_action;
    vip.withdraw_after = limit.map(Duration::from_secs);
    // On another interface it does not count where one is named.
    let addresses: BTreeSet<LocalAddress> = match address {
        Address::Required(true) => [on("eth0")].into(),
        Address::OnInterface(true) | Address::Managed(true) => [on("lo")].into(),
        Address::OnInterface(false) | Address::Managed(false) => [on("eth0")].into(),
        Address::Required(false) | Address::NotAsked => [].into(),
    };
    vip.require_local_address = matches!(address, Address::Required(_) | Address::OnInterface(_));
    vip.local_interface = matches!(address, Address::OnInterface(_)).then(|| "lo".to_owned());
    vip.manage = matches!(address, Address::Managed(_)).then(|| "lo".to_owned());
    let mut announcer = started(&vip);
    let mut out = Vec::new();
    announcer.handle(at(1), AnnounceInput::Addresses(addresses), &mut out);
    announcer.handle(at(1), AnnounceInput::LowerPriorityFile(VIP.into(), file), &mut out);
    assert!(out.is_empty(), "{case}: {out:?} before any verdict");
    if matches!(history, History::Healthy | History::Failed) {
        out.extend(report(&mut announcer, at(2), true));
    }
    if matches!(history, History::NeverHealthy | History::Failed) {
        out.extend(report(&mut announcer, at(10), false));
    }
    announcer.tick(at(10 + waited), &mut out);
    let view = announcer.vip(VIP).unwrap();

    let here = matches!(
        address,
        Address::NotAsked | Address::Required(true) | Address::OnInterface(true) | Address::Managed(true)
    );
    let over = limit.is_some_and(|l| waited >= l);
    let want = match history {
        History::Nothing | History::NeverHealthy => VipState::Withdrawn,
        History::Failed if fail_action == FailAction::Withdraw || over => VipState::Withdrawn,
        _ if !here => VipState::Withdrawn,
        History::Failed => VipState::Pessimised,
        History::Healthy if file => VipState::Pessimised,
        History::Healthy => VipState::Announced,
    };
    assert_eq!(view.state, want, "{case}: {}", view.reason);
    let reason = match (history, fail_action) {
        (History::Nothing, _) => view.reason == Reason::Initial(Vec::new()),
        (History::NeverHealthy, FailAction::Withdraw) => {
            matches!(&view.reason, Reason::Unhealthy(b) if b.check == "up")
        }
        (History::NeverHealthy, FailAction::LowerPriority) => {
            matches!(&view.reason, Reason::NeverHealthy(b) if b.words == "503")
        }
        (History::Failed, FailAction::Withdraw) => {
            matches!(&view.reason, Reason::Unhealthy(b) if b.words == "503")
        }
        (History::Failed, _) if over => matches!(view.reason, Reason::WithdrawAfter(..)),
        _ if !here && vip.manage.is_some() => matches!(view.reason, Reason::AddressPending(_)),
        _ if !here => matches!(view.reason, Reason::AddressMissing(..)),
        (History::Failed, _) => matches!(view.reason, Reason::Unhealthy(..)),
        (History::Healthy, _) if file => view.reason == Reason::LowerPriorityFile,
        (History::Healthy, _) => {
            matches!(&view.reason, Reason::Healthy(Turn::Check(name, _)) if name == "up")
        }
    };
    assert!(reason, "{case}: {}", view.reason);

    let rib = announcer.rib(None, |_| true);
    let path = rib.get(&Prefix::host("198.51.100.10".parse().unwrap()));
    match want {
        VipState::Withdrawn => assert_eq!(path, None, "{case}"),
        VipState::Announced => assert_eq!((path.unwrap().as_path_prepend, path.unwrap().med), (0, Some(1))),
        VipState::Pessimised => assert_eq!((path.unwrap().as_path_prepend, path.unwrap().med), (3, Some(1))),
    }
    let asked = out.iter().rev().find_map(|o| match o {
        AnnounceOutput::Address(_, asked) => Some(*asked),
        _ => None,
    });
    // Once asked for, a managed address stays asked for exactly while the VIP is, or would be, announced.
    let would = matches!(view.reason, Reason::AddressPending(_)) || want != VipState::Withdrawn;
    assert_eq!(asked == Some(true), vip.manage.is_some() && would, "{case}");

    announcer.handle(at(500), AnnounceInput::Stop("bye".into()), &mut Vec::new());
    report(&mut announcer, at(501), true);
    assert!(announcer.rib(None, |_| true).is_empty(), "{case}: told while stopping");
}

#[test]
fn a_withdrawn_vip_that_recovers_has_its_whole_second_stage_again() {
    let mut vip = vip();
    vip.fail_action = FailAction::LowerPriority;
    vip.withdraw_after = Some(Duration::from_secs(30));
    let mut announcer = started(&vip);
    let state = |a: &mut Announcer, now: u64| {
        a.tick(at(now), &mut Vec::new());
        a.vip(VIP).unwrap().state
    };
    report(&mut announcer, at(1), true);
    report(&mut announcer, at(10), false);
    assert_eq!(state(&mut announcer, 40), VipState::Withdrawn);
    report(&mut announcer, at(50), true);
    report(&mut announcer, at(60), false);
    assert_eq!(state(&mut announcer, 89), VipState::Pessimised);
    assert_eq!(state(&mut announcer, 90), VipState::Withdrawn);
}

#[test]
fn a_peer_that_is_told_some_vips_is_told_no_other() {
    let vips: BTreeMap<String, Vip> = ["a", "b"].iter().map(|n| ((*n).to_owned(), named(n))).collect();
    let checks = vips.keys().map(|n| (CheckId::new(n, "up"), check().1)).collect();
    let mut announcer = Announcer::new(at(0), &vips, &checks);
    for id in checks.keys() {
        let input = AnnounceInput::Reported(id.clone(), Verdict::good(""));
        announcer.handle(at(1), input, &mut Vec::new());
    }
    assert_eq!(announcer.rib(None, |_| true).len(), 2);
    let only = announcer.rib(Some(&["b".to_owned()].into()), |_| true);
    assert_eq!(only.keys().copied().collect::<Vec<_>>(), vips["b"].prefixes);
}

fn named(name: &str) -> Vip {
    let octet = name.bytes().next().unwrap();
    Vip {
        name: name.into(),
        prefixes: vec![format!("198.51.100.{octet}/32").parse().unwrap()],
        checks: [("up".to_owned(), CheckId::new(name, "up"))].into(),
        ..vip()
    }
}

/// An announcer of one VIP whose check never is silent, with what it says.
struct Bench(Announcer, Vec<AnnounceOutput>);

impl Bench {
    fn new(vip: &Vip, check: &Check) -> Self {
        let checks = vip.checks.values().map(|id| (id.clone(), check.clone())).collect();
        Self(Announcer::new(at(0), &[(VIP.to_owned(), vip.clone())].into(), &checks), Vec::new())
    }

    fn does(&mut self, millis: u64, input: AnnounceInput) {
        let now = Time::from_millis(millis);
        self.wait(millis);
        self.0.handle(now, input, &mut self.1);
    }

    /// Ticks at every deadline until then, as a driver does.
    fn wait(&mut self, millis: u64) {
        let now = Time::from_millis(millis);
        while let Some((due, _)) = self.0.deadline().filter(|(due, _)| *due <= now) {
            self.0.tick(due, &mut self.1);
        }
    }

    fn report(&mut self, millis: u64, good: bool) {
        let verdict = if good { Verdict::good("200") } else { Verdict::bad("503") };
        self.does(millis, AnnounceInput::Reported(check().0, verdict));
    }

    fn addresses(&mut self, millis: u64, here: &[LocalAddress]) {
        self.does(millis, AnnounceInput::Addresses(here.iter().cloned().collect()));
    }

    fn view(&self) -> &VipView {
        self.0.vip(VIP).unwrap()
    }

    fn state(&self) -> VipState {
        self.view().state
    }

    /// The VIP's changes of state, taken away.
    fn changes(&mut self) -> Vec<VipState> {
        let said = std::mem::take(&mut self.1).into_iter();
        said.filter_map(|o| if let AnnounceOutput::Vip { to, .. } = o { Some(to) } else { None }).collect()
    }
}

use VipState::{Announced, Pessimised, Withdrawn};

#[test]
fn a_flapping_vip_is_held_and_comes_back_when_it_has_calmed_down() {
    let secs = Duration::from_secs;
    for (fail_action, held) in [(FailAction::Withdraw, Withdrawn), (FailAction::LowerPriority, Pessimised)] {
        let damping = Some(plan::Damping { flaps: 2, within: secs(60), hold: secs(30), max: secs(45) });
        let mut b = Bench::new(&Vip { damping, fail_action, ..vip() }, &check().1);
        b.report(1_000, true);
        b.report(2_000, false);
        b.report(3_000, true);
        assert_eq!(b.changes(), [Announced, held, Announced], "once is nothing");
        b.report(12_000, false);
        let said = std::mem::take(&mut b.1);
        let words = said
            .iter()
            .find_map(|o| if let AnnounceOutput::Damped(_, h) = o { Some(h.to_string()) } else { None });
        assert_eq!(words.as_deref(), Some("damped: 2 flaps in 10 s"));
        b.report(13_000, true);
        b.wait(41_999);
        assert_eq!((b.changes(), b.state()), (vec![], held), "{:?}", b.view().reason);
        assert!(matches!(b.view().reason, Reason::Damped(h) if h.until == at(42)));
        b.wait(42_000);
        assert_eq!(b.changes(), [Announced]);
        assert!(matches!(b.view().reason, Reason::Healthy(_)));
        // The next one is held for longer, but never for longer than the most.
        b.report(50_000, false);
        b.report(51_000, true);
        b.wait(94_999);
        assert_eq!(b.changes(), [held]);
        b.wait(95_000);
        assert_eq!(b.changes(), [Announced]);
        // It is let go on request.
        b.report(100_000, false);
        b.report(101_000, true);
        assert_eq!(b.changes(), [held]);
        b.does(102_000, AnnounceInput::Undamp(VIP.into()));
        assert_eq!(b.changes(), [Announced]);
        b.report(103_000, false);
        b.report(104_000, true);
        assert_eq!(b.changes(), [held, Announced], "the count starts anew");
    }
}

#[test]
fn a_failing_vip_that_is_held_says_that_it_fails() {
    let damping = Some(plan::Damping { flaps: 1, ..plan::Damping::default() });
    let mut b = Bench::new(&Vip { damping, ..vip() }, &check().1);
    b.report(1_000, true);
    b.report(2_000, false);
    assert!(matches!(&b.view().reason, Reason::Unhealthy(blame) if blame.words == "503"));
    // A VIP that stays down for longer than it is held comes back at once.
    b.wait(40_000);
    b.report(41_000, true);
    assert_eq!(b.state(), Announced);
}

#[test]
fn an_address_that_blinks_is_no_failure_where_a_bad_run_is_none() {
    let required = Vip { require_local_address: true, ..vip() };
    for (fall, blinks) in [(1, 1), (2, 0)] {
        let mut b = Bench::new(&required, &Check { fall, ..check().1 });
        b.addresses(0, &[on("lo")]);
        b.report(1_000, true);
        assert_eq!(b.changes(), [Announced]);
        b.addresses(2_000, &[]);
        b.addresses(2_050, &[on("lo")]);
        b.wait(3_000);
        assert_eq!(b.changes(), vec![Withdrawn; blinks], "fall {fall}");
    }
}

#[test]
fn an_address_that_leaves_takes_the_route_along_and_brings_it_back_after_rise() {
    let required = Vip { require_local_address: true, ..vip() };
    let mut b = Bench::new(&required, &Check { rise: 2, fall: 3, ..check().1 });
    b.addresses(0, &[on("lo")]);
    b.report(1_000, true);
    b.report(2_000, true);
    assert_eq!(b.changes(), [Announced]);
    b.addresses(2_500, &[on("eth0")]);
    b.wait(2_600);
    assert_eq!(b.changes(), [], "any interface will do");
    b.addresses(3_000, &[]);
    b.wait(3_099);
    assert_eq!(b.changes(), []);
    b.wait(3_100);
    assert_eq!(b.changes(), [Withdrawn]);
    assert!(matches!(b.view().reason, Reason::AddressMissing(..)));
    b.report(4_000, true);
    b.addresses(5_000, &[on("lo")]);
    assert!(matches!(b.view().reason, Reason::AddressBack(_)), "{:?}", b.view().reason);
    b.report(6_000, true);
    assert_eq!(b.changes(), [], "what was good without the address does not count");
    b.report(7_000, true);
    assert_eq!(b.changes(), [Announced]);
    // One that leaves again while it is waited for is missing again.
    b.addresses(8_000, &[]);
    b.wait(9_000);
    b.addresses(10_000, &[on("lo")]);
    b.addresses(10_010, &[]);
    assert!(matches!(b.view().reason, Reason::AddressMissing(..)));
    assert_eq!(b.changes(), [Withdrawn]);
}

#[test]
fn an_address_that_is_back_waits_for_the_checks_that_the_policy_needs() {
    let mut required = Vip { require_local_address: true, ..vip() };
    required.checks.insert("b".into(), CheckId::new(VIP, "b"));
    required.policy = Expr::Any(vec![Expr::Check("up".into()), Expr::Check("b".into())]);
    let mut b = Bench::new(&required, &check().1);
    b.addresses(0, &[on("lo")]);
    b.does(500, AnnounceInput::Reported(CheckId::new(VIP, "b"), Verdict::bad("never")));
    b.report(1_000, true);
    b.addresses(2_000, &[]);
    b.addresses(3_000, &[on("lo")]);
    assert_eq!(b.changes(), [Announced, Withdrawn]);
    b.report(4_000, true);
    assert_eq!(b.changes(), [Announced]);
    assert_eq!(b.0.renewing, 0);
}

#[test]
fn a_shared_check_decides_for_every_vip_that_uses_it_and_for_no_other() {
    let mut vips: BTreeMap<String, Vip> =
        ["a", "b", "c"].iter().map(|n| ((*n).to_owned(), named(n))).collect();
    let shared = CheckId::shared("uplink");
    for name in ["a", "b"] {
        let vip = vips.get_mut(name).unwrap();
        vip.checks.insert("uplink".into(), shared.clone());
        vip.policy = Expr::All(vec![Expr::Check("up".into()), Expr::Check("uplink".into())]);
    }
    let mut checks: BTreeMap<_, _> = vips.keys().map(|n| (CheckId::new(n, "up"), check().1)).collect();
    checks.insert(shared.clone(), check().1);
    let mut announcer = Announcer::new(at(0), &vips, &checks);
    let mut out = Vec::new();
    for id in checks.keys() {
        announcer.handle(at(1), AnnounceInput::Reported(id.clone(), Verdict::good("")), &mut out);
    }
    assert!(announcer.is_settled());
    assert_eq!(announcer.rib(None, |_| true).len(), 3);
    announcer.handle(at(2), AnnounceInput::Reported(shared.clone(), Verdict::bad("lost")), &mut out);
    let states = ["a", "b", "c"].map(|n| announcer.vip(n).unwrap().state);
    assert_eq!(states, [Withdrawn, Withdrawn, Announced]);
    assert_eq!(announcer.vip("a").unwrap().reason.to_string(), "uplink: fall threshold reached: lost");
    let flips = out.iter().filter(|o| matches!(o, AnnounceOutput::Check(id, ..) if *id == shared)).count();
    assert_eq!(flips, 2, "it flips once for all of them");
}

#[test]
fn what_was_known_before_a_stall_is_told_to_nobody_anew() {
    let lease = Duration::from_secs(2);
    let mut b = Bench::new(&vip(), &Check { interval: lease, fast_interval: lease, ..check().1 });
    b.report(1_000, true);
    assert_eq!(b.changes(), [Announced]);
    let mut out = Vec::new();
    b.0.tick(at(30), &mut out);
    assert_eq!(out, [AnnounceOutput::Stalled(Duration::from_secs(29))], "silence was nobody's fault");
    assert_eq!((b.0.rib(None, |_| true).len(), b.0.rib(None, |_| false).len()), (1, 0));
    b.report(30_500, true);
    assert!(b.1.contains(&AnnounceOutput::Certain));
    assert_eq!(b.0.rib(None, |_| false).len(), 1);
    // From then on silence counts as ever.
    b.wait(32_500);
    assert_eq!(b.changes(), [Withdrawn]);
}

#[test]
fn a_pace_is_said_when_it_changes_to_whoever_runs_the_check() {
    let target = plan::Target::Address("127.0.0.1:80".parse().unwrap());
    let quick = Check {
        fast_interval: Duration::from_millis(200),
        ..Check::new(Probe::Tcp(Box::new(plan::TcpProbe::new(target))))
    };
    let reported = Check { probe: Probe::External, ..quick.clone() };
    let even = Check { fast_interval: quick.interval, ..quick.clone() };
    for (check, want) in [(quick, "-+-+-"), (even, "-+-+-"), (reported, "")] {
        let mut b = Bench::new(&vip(), &check);
        for (second, good) in
            [(1, true), (2, true), (3, false), (4, false), (5, true), (6, false), (7, false), (8, false)]
        {
            b.report(second * 1000, good);
        }
        let said: String =
            b.1.iter()
                .filter_map(|o| {
                    if let AnnounceOutput::Pace(_, on) = o { Some(if *on { '+' } else { '-' }) } else { None }
                })
                .collect();
        assert_eq!(said, want);
    }
}

#[test]
fn a_managed_address_that_is_required_too_needs_no_second_rise() {
    let both = Vip { require_local_address: true, manage: Some("lo".into()), ..vip() };
    let mut b = Bench::new(&both, &Check { rise: 2, ..check().1 });
    b.addresses(0, &[]);
    b.report(1_000, true);
    b.report(2_000, true);
    assert_eq!(b.changes(), []);
    b.addresses(2_100, &[on("lo")]);
    assert_eq!(b.changes(), [Announced]);
}

#[test]
fn checks_hurry_while_a_vip_waits_for_them_with_its_address_here() {
    let target = plan::Target::Address("127.0.0.1:80".parse().unwrap());
    let quick = Check {
        rise: 2,
        fast_interval: Duration::from_millis(200),
        ..Check::new(Probe::Tcp(Box::new(plan::TcpProbe::new(target))))
    };
    let mut b = Bench::new(&Vip { require_local_address: true, ..vip() }, &quick);
    let paces = |b: &mut Bench| -> Vec<bool> {
        let said = std::mem::take(&mut b.1).into_iter();
        said.filter_map(|o| if let AnnounceOutput::Pace(_, on) = o { Some(on) } else { None }).collect()
    };
    b.addresses(0, &[on("lo")]);
    b.report(1_000, true);
    b.report(1_200, true);
    assert_eq!(paces(&mut b), [false]);
    b.addresses(2_000, &[]);
    b.report(2_200, true);
    assert_eq!(paces(&mut b), [], "no run brings the address back");
    b.addresses(2_300, &[on("lo")]);
    assert_eq!(paces(&mut b), [true]);
    b.addresses(2_350, &[]);
    b.addresses(2_400, &[on("lo")]);
    assert_eq!(paces(&mut b), [false, true]);
    b.report(2_500, true);
    assert_eq!((paces(&mut b), b.state()), (vec![], Withdrawn));
    b.report(2_700, true);
    assert_eq!((paces(&mut b), b.state()), (vec![false], Announced));
}

/// A VIP of three checks.
fn several(policy: Expr) -> Bench {
    let mut vip = vip();
    for name in ["b", "c"] {
        vip.checks.insert(name.into(), CheckId::new(VIP, name));
    }
    vip.policy = policy;
    Bench::new(&vip, &check().1)
}

fn names(names: &[&str]) -> Vec<Expr> {
    names.iter().map(|n| Expr::Check((*n).to_owned())).collect()
}

impl Bench {
    fn says(&mut self, millis: u64, check: &str, words: Result<&str, &str>) {
        let verdict = words.map_or_else(Verdict::bad, Verdict::good);
        self.does(millis, AnnounceInput::Reported(CheckId::new(VIP, check), verdict));
    }

    /// The reason as an operator reads it at this moment.
    #[track_caller]
    fn reads(&self, millis: u64, want: &str) {
        let reason = self.0.reason(Time::from_millis(millis), VIP).unwrap().to_string();
        assert_eq!(reason, want);
    }
}

#[test]
fn the_reason_names_the_checks_that_decide_in_their_latest_words() {
    let mut b = several(Expr::All(names(&["up", "b", "c"])));
    b.reads(0, "initial: no check has decided yet");
    b.says(1, "up", Ok("fine"));
    b.reads(1, "initial: not decided yet: b, c");
    b.says(2, "b", Ok("fine"));
    b.says(3, "c", Ok("fine"));
    b.reads(3, "c: rise threshold reached");
    b.says(4, "b", Err("refused"));
    b.reads(4, "b: fall threshold reached: refused");
    b.says(5, "b", Err("status 503"));
    b.reads(5, "b: fall threshold reached: status 503");
    b.says(6, "c", Err("lost"));
    b.reads(6, "b: fall threshold reached: status 503 (and c)");
    assert_eq!(b.view().reason.to_string(), "b: fall threshold reached: status 503 (and c)");
    b.says(7, "b", Ok("fine"));
    b.reads(7, "c: fall threshold reached: lost");
    b.says(8, "c", Ok("fine"));
    b.reads(8, "c: rise threshold reached");
}

#[test]
fn a_check_that_does_not_decide_is_no_reason() {
    let mut b = several(Expr::Any(names(&["up", "b"])));
    b.says(1, "up", Err("refused"));
    b.reads(1, "initial: not decided yet: b");
    b.says(2, "b", Ok("fine"));
    b.reads(2, "b: rise threshold reached");
    b.says(3, "up", Ok("fine"));
    b.reads(3, "b: rise threshold reached");
    b.says(4, "b", Err("refused"));
    b.reads(4, "healthy: up");
    assert_eq!(b.changes(), [Announced]);
    b.says(5, "c", Err("nobody asks"));
    b.reads(5, "healthy: up");
    // A policy may want a check not to be good.
    let mut b = several(Expr::Not(Box::new(Expr::Check("c".into()))));
    b.says(1, "c", Err("no maintenance"));
    b.reads(1, "c: fall threshold reached");
    b.says(2, "c", Ok("maintenance until noon"));
    b.reads(2, "c: rise threshold reached: maintenance until noon");
}

#[test]
fn a_vip_that_is_back_says_what_brought_it_back() {
    let damping = Some(plan::Damping { flaps: 1, ..plan::Damping::default() });
    let mut b = Bench::new(&Vip { damping, ..vip() }, &check().1);
    b.report(1_000, true);
    b.reads(1_000, "up: rise threshold reached");
    b.does(2_000, AnnounceInput::LowerPriorityFile(VIP.into(), true));
    b.reads(2_000, "lower_priority_file exists");
    b.does(3_000, AnnounceInput::LowerPriorityFile(VIP.into(), false));
    b.reads(3_000, "healthy, and lower_priority_file is gone");
    b.report(4_000, false);
    b.report(5_000, true);
    b.wait(34_000);
    b.reads(34_000, "healthy, and no longer damped");
    let mut b = Bench::new(&Vip { require_local_address: true, ..vip() }, &check().1);
    b.report(1_000, true);
    b.addresses(2_000, &[on("lo")]);
    b.report(3_000, true);
    b.reads(3_000, "healthy, and address 198.51.100.10 is here");
}

#[test]
fn the_second_stage_and_a_vip_that_was_never_healthy_say_which_check_fails() {
    let limit = Some(Duration::from_secs(30));
    let second = Vip { withdraw_after: limit, fail_action: FailAction::LowerPriority, ..vip() };
    let mut b = Bench::new(&second, &check().1);
    b.report(1_000, false);
    b.reads(1_000, "unhealthy, and never healthy since the start: up: 503");
    b.report(2_000, true);
    b.report(3_000, false);
    b.wait(33_000);
    b.reads(33_000, "unhealthy for 30 s (withdraw_after): up: 503");
}

#[test]
fn a_share_scales_the_bandwidth_that_is_told_and_nothing_else() {
    let bandwidth = |bytes: f32| {
        let [a, b, c, d] = bytes.to_be_bytes();
        [0x40, 4, 0xfc, 1, a, b, c, d]
    };
    let announce = Attributes {
        extended_communities: [bandwidth(1_000.0)].into(),
        med: Some(1),
        ..Attributes::default()
    };
    let vip = Vip { announce: announce.clone(), ..vip() };
    let mut announcer = started(&vip);
    report(&mut announcer, at(1), true);
    let told = |announcer: &Announcer| announcer.rib(None, |_| true).values().next().cloned().unwrap();
    assert_eq!(told(&announcer), announce);
    let mut out = Vec::new();
    announcer.handle(at(2), AnnounceInput::Share(VIP.into(), 50), &mut out);
    assert_eq!(out, [AnnounceOutput::Share(VIP.into(), 50)]);
    let half = Attributes { extended_communities: [bandwidth(500.0)].into(), ..announce.clone() };
    assert_eq!(told(&announcer), half);

    // More is approached, step by step, by the clock alone; and the VIP is what it was all the time.
    out.clear();
    announcer.handle(at(3), AnnounceInput::Share(VIP.into(), 100), &mut out);
    let mut now = at(3);
    while let Some((due, _)) = announcer.deadline()
        && due < at(60)
    {
        assert!(due > now);
        now = due;
        announcer.tick(now, &mut out);
    }
    assert!(out.iter().all(|o| matches!(o, AnnounceOutput::Share(..))), "{out:?}");
    assert!((2..=8).contains(&out.len()), "{out:?}");
    assert_eq!(out.last(), Some(&AnnounceOutput::Share(VIP.into(), 100)));
    assert_eq!(told(&announcer), announce);

    // Nothing is told at once, and a VIP that is not there has no share.
    out.clear();
    announcer.handle(at(60), AnnounceInput::Share("none".into(), 1), &mut out);
    assert!(out.is_empty());
    announcer.handle(at(60), AnnounceInput::Share(VIP.into(), 0), &mut out);
    assert_eq!(told(&announcer).extended_communities, [bandwidth(0.0)].into());
    assert_eq!(announcer.vip(VIP).unwrap().share(), Some((0, 0)));
}

#[test]
fn results_put_an_alarm_off_before_its_moment_and_silence_still_counts_at_its_own() {
    let id = |n: u64| CheckId::new("", &n.to_string());
    let stale = Duration::from_secs(3);
    let of = |n| (id(n), Check { fall: 1, interval: stale, ..Check::new(Probe::External) });
    let checks = (0..10).map(of).collect::<BTreeMap<_, _>>();
    let mut announcer = Announcer::new(at(0), &BTreeMap::new(), &checks);
    let mut out = Vec::new();
    let tenths = |n: u64| at(0) + Duration::from_millis(100 * n);
    // Each has a result every second, a tenth of a second after the one before it.
    for n in 0..200 {
        let now = tenths(n);
        announcer.handle(now, AnnounceInput::Reported(id(n % 10), Verdict::good("")), &mut out);
        let (first, _) = announcer.alarms.first().unwrap();
        assert!(*first > now, "an alarm that is nobody's wakes at {first:?}, as soon as {now:?}");
        assert_eq!(announcer.alarms.len(), 10);
    }
    out.clear();
    // Nothing comes any more: the first that ran last is the first to be missed.
    let mut missed = Vec::new();
    while missed.len() < 10 {
        let (due, _) = announcer.deadline().unwrap();
        announcer.tick(due, &mut out);
        missed.extend(out.drain(..).filter_map(|out| match out {
            AnnounceOutput::Check(id, Health::Unhealthy, _) => Some((id, due)),
            _ => None,
        }));
    }
    for (n, (missed, when)) in (0..).zip(missed) {
        assert_eq!((missed, when), (id(n), tenths(190 + n) + stale));
    }
}
