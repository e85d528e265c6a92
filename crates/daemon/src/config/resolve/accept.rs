//! Ranges of members: who may dial the listener, and what of them is taken.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use standfast_core::plan;
use standfast_core::prefix::{Afi, Prefix};
use standfast_core::spelling::closest;

use super::super::file::{Accept, Bgp, Listener};
use super::super::read::{At, Findings};
use super::super::value::show;
use super::{bfd, hops, list, or, timers, unique, value};

/// The ranges that the file asks for.
pub(super) fn ranges(at: &At<Listener>, bgp: &Bgp, out: &mut Findings) -> Vec<plan::Accept> {
    let accept = list(&at.accept);
    unique(accept.iter().filter_map(|a| a.name.as_ref()), "ranges are", |n| n.0.clone(), out);
    for (n, second) in accept.iter().enumerate() {
        for first in &accept[..n] {
            beside(first, second, out);
        }
    }
    let vips: BTreeSet<&str> =
        list(&at.vips).iter().filter_map(|v| v.name.as_ref()).map(|n| n.value.0.as_str()).collect();
    accept.iter().filter_map(|a| range(a, bgp, &vips, out)).collect()
}

/// What two ranges may not have in common.
fn beside(first: &Accept, second: &At<Accept>, out: &mut Findings) {
    let (Some(a), Some(b)) = (&first.range, &second.range) else { return };
    let on = |range: &Accept| range.interface.as_ref().map(|i| i.value.0.clone());
    if a.value == b.value && on(first) == on(second) {
        out.error(b, format!("two ranges are at `{}`", b.value)).note(&a.place, "the first one");
    } else if is_link_local(&a.value)
        && is_link_local(&b.value)
        && a.overlaps(b)
        && value(&first.auth_password) != value(&second.auth_password)
    {
        let place = second.auth_password.as_ref().map_or(&b.place, |p| &p.place);
        out.at(
            &second.path,
            place,
            "two link-local ranges need one key: the kernel knows keys by address, not by interface",
        )
        .note(&a.place, "the other range")
        .help("give both the same `auth_password`, or neither");
    }
}

fn range(at: &At<Accept>, bgp: &Bgp, vips: &BTreeSet<&str>, out: &mut Findings) -> Option<plan::Accept> {
    let timers = timers(bgp, &at.hold_time, &at.keepalive_time, &None, out);
    if timers.hold.is_zero()
        && let Some(hold) = at.hold_time.as_ref().or(bgp.hold_time.as_ref())
    {
        out.at(&at.path, &at.place, "with a hold time of 0 a member that goes silent would never be noticed")
            .note(&hold.place, "the hold time")
            .help("give this range a `hold_time` of 3s or more");
    }
    let ttl = hops(&at.enable_multihop, &at.multihop_ttl, &at.ttl_security, out);
    let min_hold = or(&at.min_hold_time, Duration::from_secs(3));
    if let Some(min) = &at.min_hold_time {
        if min.subsec_nanos() != 0 || !(3..=65535).contains(&min.as_secs()) {
            out.error(min, "min_hold_time is not 3s to 65535s in whole seconds");
        } else if timers.hold >= Duration::from_secs(3) && min_hold > timers.hold {
            out.error(
                min,
                format!(
                    "min_hold_time is longer than the hold time offered, {}: no member could ever connect",
                    show(timers.hold)
                ),
            );
        }
    }
    if let Some(range) = &at.range {
        place(at, range, out);
    }
    for name in list(&at.vips) {
        if !vips.contains(name.value.0.as_str()) {
            let finding = out.error(name, format!("the listener has no VIP named `{}`", name.value.0));
            if let Some(meant) = closest(&name.value.0, vips.iter().copied()) {
                finding.help(format!("did you mean `{meant}`?"));
            }
        }
    }
    if let Some(none) = at.vips.as_ref().filter(|v| v.is_empty()) {
        out.error(none, "members that may announce no VIP would do nothing")
            .help("name some of the listener's VIPs, or leave `vips` away for all of them");
    }
    let open_timeout = or(&at.open_timeout, Duration::from_secs(10));
    if let Some(time) = &at.open_timeout
        && !(Duration::from_secs(1)..=Duration::from_secs(60)).contains(&time.value)
    {
        out.error(time, "open_timeout is not 1s to 60s");
    }
    let (name, range, asn) =
        (&at.name.as_ref()?.value.0, at.range.as_ref()?.value, at.peer_asn.as_ref()?.value);
    let max_members = at.max_members.as_ref().map_or(64, |m| m.to());
    let accept = plan::Accept::new(name, range, asn);
    Some(plan::Accept {
        interface: at.interface.as_ref().map(|i| i.value.0.clone()),
        password: value(&at.auth_password),
        vips: at.vips.as_ref().map(|list| list.iter().map(|n| n.value.0.clone()).collect()),
        max_members,
        max_opening: at.max_opening.as_ref().map_or(max_members, |m| m.to()),
        open_timeout,
        min_hold,
        extended_next_hop: or(&at.extended_next_hop, accept.extended_next_hop),
        bfd: bfd::bfd(&at.bfd, ttl, out),
        reflect: or(&at.reflect, false),
        ttl,
        timers,
        ..accept
    })
}

/// Whether a range fits what else is said of where its members are.
fn place(at: &At<Accept>, range: &At<Prefix>, out: &mut Findings) {
    let link_local = is_link_local(range);
    match &at.interface {
        None if link_local => {
            out.error(range, "a link-local range needs its interface").help("add e.g. `interface: eth0`");
        }
        Some(interface) if !link_local => {
            out.error(interface, "interface is for link-local ranges only")
                .note(&range.place, "this range is not within fe80::/10")
                .help("take it away: which interface these members are on follows from their addresses");
        }
        _ => {}
    }
    if link_local && let Some(multihop) = at.enable_multihop.as_ref().filter(|m| m.value) {
        out.error(multihop, "a link-local member is never more than one hop away");
    }
    if range.afi() == Afi::Ipv4
        && let Some(extended) = at.extended_next_hop.as_ref().filter(|e| e.value)
    {
        out.error(
            extended,
            "extended_next_hop has no effect on an IPv4 range: its members have no IPv6 address there",
        );
    }
}

/// Whether every address of a range means something on one interface only.
pub(super) fn is_link_local(range: &Prefix) -> bool {
    let all = Prefix::new(IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10);
    range.len() >= 10 && all.is_ok_and(|all| all.contains(range.address()))
}
