//! The listener's metrics: members, shares and buckets of each VIP.

use std::fmt;

use standfast_core::bgp::State;
use standfast_core::node::{GroupStatus, HopStatus, ListenerStatus};

use super::{Labels, Page, counter, gauge, with};

/// A next hop or member in labels.
fn named(address: std::net::IpAddr, interface: Option<&String>) -> String {
    interface.map_or_else(|| address.to_string(), |interface| format!("{address}%{interface}"))
}

pub(super) fn listener(seen: &ListenerStatus, out: &mut Page<'_, '_>) -> fmt::Result {
    let members: Vec<String> = seen.members.iter().map(|m| named(m.address, m.interface.as_ref())).collect();
    let mut family =
        gauge(out, "standfast_member_established", "Whether the BGP session with a member is up")?;
    for (member, name) in seen.members.iter().zip(&members) {
        let labels = vec![("member", name.as_str()), ("accept", member.accept.as_str())];
        family.gauge(&labels, u32::from(member.session_state == State::Established))?;
    }
    let mut family = counter(
        out,
        "standfast_member_ignored",
        "Announcements of a member that were not followed, since its session began",
    )?;
    for (member, name) in seen.members.iter().zip(&members) {
        for (why, count) in &member.ignored_because {
            let labels = vec![("member", name.as_str()), ("accept", member.accept.as_str())];
            family.counter(&with(&labels, "reason", why), *count)?;
        }
    }
    let prefixes: Vec<String> = seen.vips.iter().map(|v| v.prefix.to_string()).collect();
    let vips: Vec<(Labels<'_>, _)> = seen
        .vips
        .iter()
        .zip(&prefixes)
        .map(|(vip, prefix)| (vec![("vip", vip.name.as_str()), ("nlri", prefix.as_str())], vip))
        .collect();
    for (name, help, of) in [
        (
            "standfast_listener_members",
            "Members of a VIP: those that announce it and do not drain, or are held",
            (|v| v.members) as fn(&GroupStatus) -> usize,
        ),
        ("standfast_listener_held", "Members that withdrew a VIP and are held by its floor", |v| v.held),
        ("standfast_listener_draining", "Members of a VIP that drain", |v| v.draining),
    ] {
        let mut family = gauge(out, name, help)?;
        for (labels, vip) in &vips {
            family.gauge(labels, u32::try_from(of(vip)).unwrap_or(u32::MAX))?;
        }
    }
    let hops: Vec<(&Labels<'_>, String, _)> = vips
        .iter()
        .flat_map(|(labels, vip)| {
            vip.hops.iter().map(move |hop| (labels, named(hop.address, hop.interface.as_ref()), hop))
        })
        .collect();
    let mut family =
        gauge(out, "standfast_listener_share", "The part of a VIP's new flows that a next hop gets, 0 to 1")?;
    for (labels, name, hop) in &hops {
        family.gauge(&with(labels, "hop", name), hop.share)?;
    }
    for (name, help, of) in [
        (
            "standfast_listener_buckets",
            "Buckets, or slots, that a next hop of a VIP holds",
            (|h| h.buckets) as fn(&HopStatus) -> Option<u32>,
        ),
        ("standfast_listener_busy_buckets", "Buckets of a next hop that saw a packet lately", |h| h.busy),
        ("standfast_listener_wanted_buckets", "Buckets that are the share of a next hop", |h| h.wanted),
        (
            "standfast_listener_moved",
            "Connections that were given to a next hop while another one drained, and were heard of lately",
            |h| h.moved,
        ),
    ] {
        let mut family = gauge(out, name, help)?;
        for (labels, hop_name, hop) in &hops {
            if let Some(count) = of(hop) {
                family.gauge(&with(labels, "hop", hop_name), count)?;
            }
        }
    }
    for (name, help, of) in [
        (
            "standfast_listener_idle_ratio",
            "The part of a VIP's buckets that saw no packet lately, 0 to 1",
            (|v| v.idle_share) as fn(&GroupStatus) -> Option<f64>,
        ),
        (
            "standfast_listener_buckets_to_move",
            "Buckets of a VIP that are still to move until each next hop has its share; absent until they were counted",
            |v| v.balance.as_ref().map(|b| b.to_move.into()),
        ),
        ("standfast_listener_buckets_age_seconds", "How long ago a VIP's buckets were counted", |v| {
            v.counted
        }),
    ] {
        let mut family = gauge(out, name, help)?;
        for (labels, vip) in &vips {
            if let Some(value) = of(vip) {
                family.gauge(labels, value)?;
            }
        }
    }
    Ok(())
}
