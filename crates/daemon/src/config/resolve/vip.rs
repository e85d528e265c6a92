//! VIPs: what is announced, when, and with what attached.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use standfast_core::health::Expr;
use standfast_core::plan::{self, CheckId, FailAction, Plan};
use standfast_core::prefix::Prefix;

use super::super::file::{Attributes, Damping, Drain, Floor, Policy, Vip};
use super::super::read::{At, Findings};
use super::super::value::{Fail, show};
use super::checks::{self, Shared};
use super::{drain, is_internal, list, or, value};

/// Prefixes with their VIP's number and place.
pub(super) type Placed = Vec<(Prefix, usize, Range<usize>, String)>;

/// Resolves the VIP that is the file's `index`th, with its checks, into `plan`; its prefixes go to `all`. `whole` is the file's
/// own drain section.
pub(super) fn vip(
    index: usize,
    at: &At<Vip>,
    whole: Option<&At<Drain>>,
    shared: &mut Shared<'_>,
    plan: &mut Plan,
    all: &mut Placed,
    out: &mut Findings,
) {
    let given: Vec<&At<Prefix>> = match (&at.prefix, &at.prefixes) {
        (Some(one), Some(several)) => {
            out.error(one, "prefix and prefixes are both given")
                .note(&several.place, "the other one")
                .help("keep one of them");
            vec![one]
        }
        (Some(one), None) => vec![one],
        (None, several) => list(several).iter().collect(),
    };
    for p in &given {
        all.push((p.value, index, p.place.clone(), p.path.clone()));
        let ip = p.address();
        let wrong = match ip {
            _ if p.len() == 0 => Some("is every address there is"),
            a if a.is_multicast() => Some("is multicast"),
            a if a.is_loopback() => Some("is loopback, which no router takes"),
            IpAddr::V6(a) if a.is_unicast_link_local() => Some("is link-local, which no router takes"),
            a if a.is_unspecified() => Some("is not an address of a service"),
            _ => None,
        };
        if let Some(wrong) = wrong {
            out.error(p, format!("`{}` {wrong}", p.value))
                .help("a VIP is the address, or network, of a service");
        }
    }
    if given.is_empty() && !out.under(&format!("{}.prefix", at.path)) {
        out.error(at, "this VIP has no prefix").help("add e.g. `prefix: 198.51.100.10/32`");
    }
    let prefixes: Vec<Prefix> = given.iter().map(|p| p.value).collect();
    let manage = at.address.as_ref().filter(|a| or(&a.manage, false)).and_then(|a| a.interface.as_ref());
    for (p, why) in given.iter().filter(|p| !p.is_host()).flat_map(|p| {
        let local = at.require_local_address.as_ref().filter(|r| r.value).map(|_| "require_local_address");
        [manage.map(|_| "address.manage"), local].into_iter().flatten().map(move |why| (*p, why))
    }) {
        out.error(p, format!("{why} needs a single address, and `{}` is a network", p.value))
            .help(format!("write /{} prefixes, or take {why} away", p.afi().bits()));
    }
    if let (Some(interface), false) = (&at.local_interface, or(&at.require_local_address, false)) {
        out.error(interface, "local_interface has no effect without require_local_address")
            .help("add `require_local_address: true`");
    }
    if let (Some(local), Some(put)) = (&at.local_interface, manage)
        && local.value != put.value
    {
        let message = format!("local_interface is `{}`, and the address is put on `{}`", local.0, put.0);
        out.error(local, message).note(&put.place, "where it is put").help("take local_interface away");
    }
    let name = at.name.as_ref().map_or_else(|| format!("?{index}"), |n| n.value.0.clone());
    let checks = checks::of_vip(&name, at, &prefixes, shared, plan, out);
    let names: Vec<&str> = checks.iter().map(|(name, _)| name.as_str()).collect();
    let expr = expression(at, &names, out);
    let Some(policy) = &at.policy else { return };
    let fail = or(&policy.fail_action, Fail::LowerPriority);
    if let Some(after) = policy.withdraw_after.as_ref().filter(|a| a.is_zero()) {
        out.error(after, "withdraw_after is 0: the VIP would never be a worse choice first")
            .help("write `fail_action: withdraw`");
    }
    if let Some(after) = &policy.withdraw_after
        && fail == Fail::Withdraw
    {
        out.error(
            after,
            "withdraw_after has no effect: with `fail_action: withdraw` an unhealthy VIP leaves at once",
        )
        .help("take one of them away");
    }
    let drain = drain::of_vip(at, whole, plan.router.asn, out);
    let announce = attributes(policy.announce.as_ref(), 0, out);
    let lower_priority = attributes(policy.lower_priority.as_ref(), 6, out);
    let sum = u16::from(announce.as_path_prepend) + u16::from(lower_priority.as_path_prepend);
    if sum > 64 {
        let place = policy.lower_priority.as_ref().and_then(|a| a.as_path_prepend.as_ref());
        let place = place.or(policy.announce.as_ref().and_then(|a| a.as_path_prepend.as_ref()));
        if let Some(at) = place {
            out.error(
                at,
                format!("announce and lower_priority together prepend {sum} times, and 64 is the most"),
            );
        }
    }
    plan.vips.insert(
        name.clone(),
        plan::Vip {
            name,
            prefixes,
            manage: manage.map(|i| i.value.0.clone()),
            require_local_address: or(&at.require_local_address, false),
            local_interface: at.local_interface.as_ref().map(|i| i.value.0.clone()),
            checks: checks.into_iter().collect(),
            policy: expr,
            fail_action: match fail {
                Fail::Withdraw => FailAction::Withdraw,
                Fail::LowerPriority => FailAction::LowerPriority,
            },
            withdraw_after: value(&policy.withdraw_after),
            lower_priority_file: value(&policy.lower_priority_file),
            damping: policy.damping.as_ref().and_then(|d| damping(d, out)),
            drain,
            floor: policy.floor.as_ref().and_then(|f| floor(f, policy, fail, out)),
            announce,
            lower_priority,
        },
    );
}

/// A check that connects to its VIP's own address says little of this host where that address may be elsewhere.
pub(super) fn elsewhere(plan: &Plan, vips: &[At<Vip>], out: &mut Findings) {
    for at in vips {
        let Some(vip) = at.name.as_ref().and_then(|n| plan.vips.get(&n.value.0)) else { continue };
        if vip.manage.is_some() || vip.require_local_address {
            continue;
        }
        let hosts = at.prefix.iter().chain(list(&at.prefixes)).filter(|p| p.is_host());
        let asked = hosts.into_iter().find_map(|p| {
            let asks =
                |id: &CheckId| plan.checks.get(id).and_then(|c| c.probe.address()) == Some(p.address());
            Some((p, vip.checks.iter().find(|(_, id)| asks(id))?.0))
        });
        if let Some((prefix, check)) = asked {
            let message = format!(
                "the check `{check}` connects to {}, and nothing makes sure that this host has that address: \
                 another machine may answer",
                prefix.address()
            );
            out.warn(prefix, message)
                .help("add `require_local_address: true`, or `address: { manage: true }` to have it put on");
        }
    }
}

fn damping(at: &At<Damping>, out: &mut Findings) -> Option<plan::Damping> {
    let (flaps, within) = (at.flaps.as_ref()?, at.within.as_ref()?);
    let (hold, max) = (at.hold.as_ref()?, at.max.as_ref()?);
    for (d, name) in [(within, "within"), (hold, "hold")] {
        if d.is_zero() {
            out.error(d, format!("{name} is 0: nothing would ever be held back"))
                .help("take damping away to go without");
        }
    }
    if max.value < hold.value {
        let message = format!("max, {}, must not be less than hold, {}", show(max.value), show(hold.value));
        // The one that was written; the other one is a default.
        let at = if max.verbatim.is_some() { max } else { hold };
        out.error(at, message);
    }
    Some(plan::Damping { flaps: flaps.to(), within: within.value, hold: hold.value, max: max.value })
}

fn floor(at: &At<Floor>, policy: &Policy, fail: Fail, out: &mut Findings) -> Option<plan::Floor> {
    if fail == Fail::LowerPriority && policy.withdraw_after.is_none() {
        out.error(
            at,
            "floor has no effect: with `fail_action: lower_priority` failing checks take nobody away",
        )
        .help("write `fail_action: withdraw`, or add `withdraw_after`, or take floor away");
    }
    let (members, settle) = (at.members.as_ref()?, at.settle.as_ref()?);
    if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&settle.value) {
        out.error(settle, "settle is not 100ms to 60s")
            .help("longer than a change takes to come round by the listener: 500ms is ample on one site");
    }
    Some(plan::Floor { members: members.to(), settle: settle.value })
}

fn expression(at: &At<Vip>, names: &[&str], out: &mut Findings) -> Expr {
    let nothing = Expr::All(Vec::new());
    let Some(policy) = at.checks_policy.as_ref().filter(|_| !names.is_empty()) else { return nothing };
    match Expr::parse_all(&policy.value.0, names) {
        Ok(expr) => expr,
        Err(errors) => {
            for e in errors {
                let finding = out.error_in(policy, e.span, e.message);
                finding.help = e.help;
            }
            nothing
        }
    }
}

fn attributes(at: Option<&At<Attributes>>, prepend: u8, out: &mut Findings) -> plan::Attributes {
    let Some(at) = at else { return plan::Attributes::default() };
    plan::Attributes {
        as_path_prepend: at.as_path_prepend.as_ref().map_or(prepend, |p| p.to()),
        communities: set(&at.communities, |c| c.0, out),
        large_communities: set(&at.large_communities, |c| c.0, out),
        extended_communities: set(&at.extended_communities, |c| c.0, out),
        med: at.med.as_ref().map(|m| m.to()),
        local_pref: at.local_pref.as_ref().map(|l| l.to()),
    }
}

/// A set of communities: it fits in one attribute that every peer takes.
fn set<T, C: Ord>(field: &Option<At<Vec<At<T>>>>, of: impl Fn(&T) -> C, out: &mut Findings) -> BTreeSet<C> {
    if let Some(at) = field.as_ref().filter(|list| list.len() > 64) {
        out.error(at, format!("{} communities are more than 64", at.len()));
    }
    list(field).iter().map(|c| of(&c.value)).collect()
}

/// No two VIPs share an address, unless the more specific one says that it may.
pub(super) fn apart(all: &Placed, vips: &[At<Vip>], out: &mut Findings) {
    let mut sorted: Vec<_> = all.iter().enumerate().collect();
    // Sorted by address then length, a network comes right before everything inside it: only open networks are compared.
    sorted.sort_by_key(|&(i, (p, ..))| (p.afi(), p.address(), p.len(), i));
    let mut open: Vec<&(Prefix, usize, Range<usize>, String)> = Vec::new();
    for (_, here) in sorted {
        let (prefix, vip, place, path) = here;
        while open.last().is_some_and(|(p, ..)| !p.overlaps(prefix)) {
            open.pop();
        }
        if let Some((wide, other, first, _)) = open.last() {
            if wide == prefix {
                let message = format!("`{prefix}` is announced twice");
                out.at(path, place, message).note(first, "here too");
            } else if other == vip {
                out.at(path, place, format!("`{prefix}` lies inside `{wide}` of the same VIP"))
                    .note(first, "the wider prefix");
            } else if !vips.get(*vip).is_some_and(|v| or(&v.allow_overlap, false)) {
                out.at(path, place, format!("`{prefix}` lies inside `{wide}` of another VIP"))
                    .note(first, "the wider prefix")
                    .help("routers prefer the more specific; if that is meant, add `allow_overlap: true` to its VIP");
            }
        }
        open.push(here);
    }
}

/// A VIP that becomes a worse choice must look worse to the neighbours that it has.
pub(super) fn pessimised(plan: &Plan, vips: &[At<Vip>], out: &mut Findings) {
    for at in vips {
        let Some(vip) = at.name.as_ref().and_then(|n| plan.vips.get(&n.value.0)) else { continue };
        let by_file = vip.lower_priority_file.is_some() && !vip.drain.on_file;
        if vip.fail_action == FailAction::Withdraw && !by_file {
            continue;
        }
        let Some(policy) = &at.policy else { continue };
        let place = policy
            .lower_priority
            .as_ref()
            .filter(|l| l.verbatim.is_none())
            .map_or(at.place.clone(), |l| l.place.clone());
        let here =
            At { value: (), path: format!("{}.policy.lower_priority", at.path), place, verbatim: None };
        let low = vip.announce.plus(&vip.lower_priority);
        let external = plan::Attributes { local_pref: vip.announce.local_pref, ..low.clone() };
        let internal = plan::Attributes { as_path_prepend: vip.announce.as_path_prepend, ..low };
        let told =
            plan.bgp.peers.values().filter(|p| p.vips.as_ref().is_none_or(|names| names.contains(&vip.name)));
        for peer in told {
            if is_internal(peer.asn, plan.router.asn) {
                if internal == vip.announce {
                    out.warn(&here, format!("lower_priority changes nothing for the internal neighbour `{}`, where prepends do not count", peer.name))
                        .help("add `local_pref`, `med` or communities to lower_priority");
                    break;
                }
            } else if external == vip.announce {
                out.warn(&here, format!("lower_priority changes nothing for the neighbour `{}`", peer.name))
                    .help("add `as_path_prepend`, `med` or communities to lower_priority");
                break;
            }
        }
    }
}
