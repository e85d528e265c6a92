//! From what was built to the plan that is run, or everything that is wrong with it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use standfast_core::plan::{
    self, Attributes, Bfd, Bgp, Check, CheckId, Drain, DrainUntil, PeerAsn, Plan, Probe, Router, Secret,
    Timers, Ttl,
};
use standfast_core::prefix::{Afi, Prefix};

use crate::builder::{Builder, DrainMode, Peer, Vip};
use crate::error::Problem;

/// The name of the one check that each VIP has: what the service reports.
pub(crate) const SERVICE: &str = "service";
/// RFC 6793: stands for an AS number of four octets where there are two.
const AS_TRANS: u32 = 23456;
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The plan that was asked for, and the silence that it tolerates.
pub(crate) fn plan(builder: &Builder) -> Result<(Plan, Option<Duration>), Vec<Problem>> {
    let mut out = Problems(Vec::new());
    let lease = lease(builder, &mut out);
    let router = router(builder, &mut out);
    let mut plan = Plan {
        bgp: Bgp { listen: Vec::new(), peers: BTreeMap::new() },
        vips: BTreeMap::new(),
        checks: BTreeMap::new(),
        listener: None,
        router,
    };
    for spec in &builder.vips {
        let place = format!("vip {}", spec.name);
        let vip = vip(&place, spec, builder, &mut out);
        // The lease is counted elsewhere, from the moment of the last report. The gate hears of reports once in an interval, and
        // knows from this how old a word may be.
        let interval = lease.map_or(Duration::ZERO, |lease| lease.saturating_add(builder.interval));
        let check = Check {
            interval,
            timeout: Duration::ZERO,
            rise: builder.rise,
            fall: builder.fall,
            fast_interval: interval,
            ..Check::new(Probe::External)
        };
        plan.checks.insert(CheckId::new(&spec.name, SERVICE), check);
        if plan.vips.insert(spec.name.clone(), vip).is_some() {
            out.add(
                &place,
                "there are two of this name",
                "give each VIP its own, or one VIP several prefixes",
            );
        }
    }
    let mut addresses = BTreeSet::new();
    for spec in &builder.peers {
        let Some(peer) = peer(spec, &mut out) else { continue };
        let place = format!("peer {}", peer.name);
        if !addresses.insert((peer.address, peer.port)) {
            out.add(&place, "another peer has this address", "take one of them away");
        }
        if plan.bgp.peers.insert(peer.name.clone(), peer).is_some() {
            out.add(&place, "there are two of this name", "give each peer its own");
        }
    }
    if builder.vips.is_empty() {
        out.add(ANNOUNCER, "there is nothing to announce", "add a VIP with `vip`");
    }
    if builder.peers.is_empty() {
        out.add(ANNOUNCER, "there is nobody to announce to", "add a router with `peer`");
    }
    apart(&plan, &mut out);
    together(&plan, &mut out);
    if out.0.is_empty() { Ok((plan, lease)) } else { Err(out.0) }
}

const ANNOUNCER: &str = "announcer";

struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, place: &str, what: impl Into<String>, help: impl Into<String>) {
        self.0.push(Problem { place: place.to_owned(), what: what.into(), help: help.into() });
    }
}

fn lease(builder: &Builder, out: &mut Problems) -> Option<Duration> {
    if builder.rise == 0 {
        out.add(ANNOUNCER, "a rise of 0 announces what nobody has called good", "take 1 or more");
    }
    if builder.fall == 0 {
        out.add(ANNOUNCER, "a fall of 0 withdraws what nobody has called bad", "take 1 or more");
    }
    let interval = builder.interval;
    if !(Duration::from_millis(10)..=Duration::from_secs(3600)).contains(&interval) {
        out.add(ANNOUNCER, format!("an interval of {interval:?}"), "take 10 ms to one hour");
    }
    let Some(lease) = builder.lease else {
        return builder.healthy.as_ref().map(|_| interval.saturating_mul(3));
    };
    if !(Duration::from_millis(100)..=DAY).contains(&lease) {
        out.add(ANNOUNCER, format!("a lease of {lease:?}"), "take 100 ms to one day");
    } else if builder.healthy.is_some() && lease < interval.saturating_mul(2) {
        let what = format!("a lease of {lease:?} ends before the closure is asked twice, each {interval:?}");
        out.add(
            ANNOUNCER,
            what,
            format!("take {:?} or more, or a shorter interval", interval.saturating_mul(2)),
        );
    }
    Some(lease)
}

fn is_as_number(asn: u32) -> bool {
    asn != 0 && asn != AS_TRANS && asn != u32::MAX
}

fn router(builder: &Builder, out: &mut Problems) -> Router {
    match builder.asn {
        None => out.add(ANNOUNCER, "it has no AS number", "set it with `asn`"),
        Some(asn) if !is_as_number(asn) => {
            out.add(
                ANNOUNCER,
                format!("{asn} cannot be an AS number"),
                "take that of your network, or a private one such as 64513",
            );
        }
        Some(_) => {}
    }
    let mut of: [Option<IpAddr>; 2] = [None, None];
    for &address in &builder.local_addresses {
        if let Some(why) = no_source(address) {
            out.add(
                ANNOUNCER,
                format!("the local address {address} {why}"),
                "take an address of this host that the peers can reach",
            );
        }
        let slot = &mut of[usize::from(address.is_ipv6())];
        if slot.replace(address).is_some() {
            out.add(
                ANNOUNCER,
                format!("there are two {} local addresses", Afi::of(address)),
                "take one of them away",
            );
        }
    }
    let [v4, v6] = of;
    let own = match v4 {
        Some(IpAddr::V4(own)) => Some(own),
        _ => None,
    };
    let router_id = builder.router_id.or(own).or_else(|| towards(&builder.peers));
    match router_id {
        Some(id) if id.is_unspecified() => {
            out.add(ANNOUNCER, "the router id 0.0.0.0", "take an IPv4 address of this host");
        }
        Some(_) => {}
        None => out.add(
            ANNOUNCER,
            "there is no router id, and no IPv4 address towards a peer to take for it",
            "set it with `router_id` to any IPv4 address that no other speaker has",
        ),
    }
    Router {
        asn: builder.asn.unwrap_or(1),
        router_id: router_id.unwrap_or(Ipv4Addr::LOCALHOST),
        local_address: v4.or(v6),
        local_address_ipv6: match v6 {
            Some(IpAddr::V6(a)) => Some(a),
            _ => None,
        },
    }
}

/// The address from which this host reaches its first IPv4 peer. No packet is sent.
fn towards(peers: &[Peer]) -> Option<Ipv4Addr> {
    let peer: Ipv4Addr = peers.iter().find_map(|peer| peer.address.parse().ok())?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((peer, 179)).ok()?;
    match socket.local_addr().ok()? {
        SocketAddr::V4(own) if !own.ip().is_unspecified() => Some(*own.ip()),
        _ => None,
    }
}

/// Why an address cannot be a source and next hop at all.
fn no_source(address: IpAddr) -> Option<&'static str> {
    match address {
        a if a.is_unspecified() => Some("is not an address of a host"),
        a if a.is_multicast() => Some("is a multicast address"),
        IpAddr::V4(a) if a.is_broadcast() => Some("is the broadcast address"),
        IpAddr::V6(a) if a.is_unicast_link_local() => Some("is link-local, which cannot be a next hop"),
        IpAddr::V6(a) if a.to_ipv4_mapped().is_some() => Some("is an IPv4 address in IPv6 dress"),
        _ => None,
    }
}

fn peer(spec: &Peer, out: &mut Problems) -> Option<plan::Peer> {
    let name = spec.name.clone().unwrap_or_else(|| spec.address.clone());
    let place = format!("peer {name}");
    name_of(&place, &name, out);
    let Ok(address) = spec.address.parse::<IpAddr>() else {
        out.add(
            &place,
            format!("`{}` is not an IP address", spec.address),
            "write it like 192.0.2.1; names are not looked up",
        );
        return None;
    };
    if address.is_unspecified()
        || address.is_multicast()
        || address == IpAddr::V4(Ipv4Addr::BROADCAST)
        || matches!(address, IpAddr::V6(a) if a.to_ipv4_mapped().is_some())
    {
        out.add(&place, format!("{address} is not the address of a router"), "write that of its interface");
    }
    let link_local = matches!(address, IpAddr::V6(a) if a.is_unicast_link_local());
    match &spec.interface {
        None if link_local => {
            out.add(&place, "a link-local address needs its interface", "add `interface(\"eth0\")`");
        }
        Some(_) if !link_local => {
            out.add(
                &place,
                "an interface has no effect on an address that is not link-local",
                "take it away; `local_address` chooses the source",
            );
        }
        _ => {}
    }
    if !is_as_number(spec.asn) {
        out.add(&place, format!("{} cannot be an AS number", spec.asn), "write the AS number of the router");
    }
    if spec.port == 0 {
        out.add(&place, "port 0 cannot be dialled", "leave it away for 179");
    }
    let hold = spec.hold_time;
    if hold.subsec_nanos() != 0 || !(hold.is_zero() || (3..=65535).contains(&hold.as_secs())) {
        out.add(
            &place,
            format!("a hold time of {hold:?} cannot be told"),
            "take 3 s to 65535 s in whole seconds, or zero for a session that never expires",
        );
    }
    let ttl = match (spec.multihop, spec.ttl_security) {
        (Some(_), Some(_)) => {
            out.add(
                &place,
                "multihop and ttl_security exclude each other",
                "ttl_security takes the number of hops itself",
            );
            Ttl::Direct
        }
        (Some(ttl), None) => {
            if ttl < 2 {
                out.add(&place, format!("multihop with TTL {ttl}"), "take 2 to 255, or leave it away");
            }
            Ttl::Multihop(ttl)
        }
        (None, Some(hops)) => {
            if !(1..=254).contains(&hops) {
                out.add(&place, format!("ttl_security of {hops} hops"), "take 1 to 254");
            }
            Ttl::Security(hops)
        }
        (None, None) => Ttl::Direct,
    };
    if let Some(key) = &spec.password
        && !(1..=80).contains(&key.0.len())
    {
        out.add(&place, format!("a password of {} octets", key.0.len()), "TCP MD5 takes 1 to 80");
    }
    let bfd = spec.bfd.map(|(interval, multiplier)| {
        if !(Duration::from_millis(10)..=SECOND * 10).contains(&interval) {
            out.add(&place, format!("a BFD interval of {interval:?}"), "take 10 ms to 10 s");
        }
        if multiplier < 2 {
            out.add(
                &place,
                format!("a BFD multiplier of {multiplier}"),
                "take 2 or more: one packet may be lost",
            );
        }
        let (multihop, min_ttl) = Bfd::reach(ttl);
        Bfd { interval, min_rx: interval, multiplier, multihop, min_ttl, ..Bfd::new() }
    });
    let defaults = Timers::default();
    let timers = Timers { hold, send_hold: defaults.send_hold.max(hold.saturating_mul(2)), ..defaults };
    Some(plan::Peer {
        port: spec.port,
        interface: spec.interface.clone(),
        ttl,
        password: spec.password.as_ref().map(|key| Secret::new(key.0.clone())),
        timers,
        bfd,
        ..plan::Peer::new(&name, address, PeerAsn::Number(spec.asn))
    })
}

fn name_of(place: &str, name: &str, out: &mut Problems) {
    let plain = |c: char| !c.is_control() && !c.is_whitespace();
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        out.add(
            place,
            format!("`{}` is not a name", name.escape_debug()),
            "take 1 to 64 characters without spaces",
        );
    }
}

fn vip(place: &str, spec: &Vip, builder: &Builder, out: &mut Problems) -> plan::Vip {
    name_of(place, &spec.name, out);
    let mut prefixes = Vec::new();
    if spec.prefixes.is_empty() {
        out.add(place, "it has no prefix", "add one, such as `prefix(\"198.51.100.10/32\")`");
    }
    for text in &spec.prefixes {
        let prefix = match text.parse::<IpAddr>() {
            Ok(address) => Ok(Prefix::host(address)),
            Err(_) => text.parse::<Prefix>(),
        };
        match prefix {
            Ok(prefix) if prefix.address().is_multicast() || prefix.address().is_loopback() => {
                out.add(
                    place,
                    format!("`{text}` cannot be announced"),
                    "take a unicast address that is routed",
                );
            }
            Ok(prefix) => prefixes.push(prefix),
            Err(e) => out.add(place, format!("`{text}`"), e.to_string()),
        }
    }
    let mut announce = Attributes {
        as_path_prepend: spec.prepend,
        med: spec.med,
        local_pref: spec.local_pref,
        ..Attributes::default()
    };
    if spec.prepend > 64 {
        out.add(
            place,
            format!("{} prepends", spec.prepend),
            "take at most 64: routers refuse paths much longer",
        );
    }
    for text in &spec.communities {
        match numbers(text)[..] {
            [Some(high), Some(low)] if high <= 65535 && low <= 65535 => {
                announce.communities.insert(high << 16 | low);
            }
            [Some(_), Some(_), Some(_)] => {
                out.add(place, format!("`{text}` is a large community"), "add it with `large_community`");
            }
            _ => out.add(
                place,
                format!("`{text}` is not a community"),
                "write it like 64513:100, both halves at most 65535; a longer AS number needs a large community",
            ),
        }
    }
    for text in &spec.large_communities {
        match numbers(text)[..] {
            [Some(a), Some(b), Some(c)] => drop(announce.large_communities.insert((a, b, c))),
            _ => out.add(place, format!("`{text}` is not a large community"), "write it like 64513:1:100"),
        }
    }
    if spec.bandwidth == Some(0) {
        out.add(
            place,
            "a bandwidth of 0 asks for nothing",
            "take what this member can carry, in bytes per second",
        );
    }
    if let Some(bandwidth) = spec.bandwidth {
        announce.extended_communities.insert(link_bandwidth(builder.asn.unwrap_or(0), bandwidth));
    }
    // The service's connections are counted beside the node, which then stops: by itself only the deadline ends a drain.
    let drain = Drain {
        mode: match builder.drain_mode {
            DrainMode::GracefulShutdown => plan::DrainMode::GracefulShutdown,
            DrainMode::Withdraw => plan::DrainMode::Withdraw,
        },
        until: DrainUntil::Deadline,
        ..Drain::default()
    };
    plan::Vip {
        manage: spec.interface.clone(),
        announce,
        drain,
        ..plan::Vip::new(&spec.name, prefixes, &[SERVICE])
    }
}

fn numbers(text: &str) -> Vec<Option<u32>> {
    let number = |part: &str| part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse().ok()).flatten();
    text.split(':').map(number).collect()
}

/// Link bandwidth, non-transitive; the number is an IEEE 754 single.
fn link_bandwidth(asn: u32, bytes_per_second: u64) -> [u8; 8] {
    let [a, b] = u16::try_from(asn).unwrap_or(AS_TRANS as u16).to_be_bytes();
    let [c, d, e, f] = (bytes_per_second as f32).to_be_bytes();
    [0x40, 0x04, a, b, c, d, e, f]
}

/// Finds prefixes that are announced twice, or lie inside each other.
fn apart(plan: &Plan, out: &mut Problems) {
    let all: Vec<(&str, Prefix)> =
        plan.vips.values().flat_map(|v| v.prefixes.iter().map(|&p| (v.name.as_str(), p))).collect();
    for (i, &(name, prefix)) in all.iter().enumerate() {
        for &(other, wide) in &all[..i] {
            if prefix == wide {
                let what = match name == other {
                    true => format!("`{prefix}` is there twice"),
                    false => format!("`{prefix}` is also of vip {other}: one would take it from the other"),
                };
                out.add(&format!("vip {name}"), what, "take one of them away");
            } else if prefix.overlaps(&wide) {
                out.add(
                    &format!("vip {name}"),
                    format!("`{prefix}` and `{wide}` of vip {other} overlap: routers prefer the longer one"),
                    "keep one of them",
                );
            }
        }
    }
}

/// What peers, local addresses and prefixes must be to each other.
fn together(plan: &Plan, out: &mut Problems) {
    let vip_of = |address: IpAddr| {
        plan.vips.values().find(|v| v.prefixes.iter().any(|p| p.is_host() && p.address() == address))
    };
    let locals: BTreeSet<IpAddr> =
        plan.router.local_address.into_iter().chain(plan.router.local_address_ipv6.map(IpAddr::V6)).collect();
    for local in &locals {
        if let Some(vip) = vip_of(*local) {
            out.add(
                ANNOUNCER,
                format!("the local address {local} is vip {}, which comes and goes", vip.name),
                "take an address that stays on this host",
            );
        }
    }
    let has = |afi| plan.vips.values().flat_map(|v| &v.prefixes).find(|p| p.afi() == afi);
    for peer in plan.bgp.peers.values() {
        let place = format!("peer {}", peer.name);
        if locals.contains(&peer.address) {
            out.add(&place, "its address is our own", "write the address of the router at the other end");
        }
        if let Some(vip) = vip_of(peer.address) {
            out.add(
                &place,
                format!("its address is vip {}", vip.name),
                "write the address of the router itself",
            );
        }
        let loopback = locals.iter().find(|a| Afi::of(**a) == Afi::of(peer.address) && a.is_loopback());
        if let (Some(local), false) = (loopback, peer.address.is_loopback()) {
            out.add(
                &place,
                format!("it cannot reach the local address {local}, which would be the next hop"),
                "take an address of this host that it can reach",
            );
        }
        let link_local = matches!(peer.address, IpAddr::V6(a) if a.is_unicast_link_local());
        if let (true, Some(prefix), None) = (link_local, has(Afi::Ipv6), plan.router.local_address_ipv6) {
            out.add(
                &place,
                format!("`{prefix}` has no next hop on a session between link-local addresses"),
                "add an IPv6 `local_address`",
            );
        }
        let other = match Afi::of(peer.address) {
            Afi::Ipv4 => Afi::Ipv6,
            Afi::Ipv6 => Afi::Ipv4,
        };
        if let Some(prefix) = has(other)
            && !locals.iter().any(|a| Afi::of(*a) == other)
        {
            out.add(
                &place,
                format!("`{prefix}` has no next hop on a session over {}", Afi::of(peer.address)),
                format!("add a `local_address` of {other}, or a peer with an {other} address instead"),
            );
        }
    }
}

#[cfg(test)]
mod tests;
