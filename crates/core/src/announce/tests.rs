//! Every combination of what a decision looks at.

use super::*;
use crate::plan::{FailAction, Probe};
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
    let id = CheckId { vip: VIP.into(), check: "up".into() };
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
        (History::Nothing, _) => matches!(view.reason, Reason::Initial),
        (History::NeverHealthy, FailAction::Withdraw) => matches!(view.reason, Reason::Unhealthy(Some(_), _)),
        (History::NeverHealthy, FailAction::LowerPriority) => view.reason == Reason::NeverHealthy,
        (History::Failed, FailAction::Withdraw) => {
            matches!(&view.reason, Reason::Unhealthy(_, w) if w == "503")
        }
        (History::Failed, _) if over => matches!(view.reason, Reason::WithdrawAfter(_)),
        _ if !here && vip.manage.is_some() => matches!(view.reason, Reason::AddressPending(_)),
        _ if !here => matches!(view.reason, Reason::AddressMissing(..)),
        (History::Failed, _) => matches!(view.reason, Reason::Unhealthy(..)),
        (History::Healthy, _) if file => view.reason == Reason::LowerPriorityFile,
        (History::Healthy, _) => matches!(view.reason, Reason::Healthy(Some(_))),
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
    let checks = vips.keys().map(|n| (CheckId { vip: n.clone(), check: "up".into() }, check().1)).collect();
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
