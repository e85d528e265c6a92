//! What the keys mean together: from the file's sections to the [`Plan`], or every reason why not.
//!
//! After this nothing asks "is it set?". Problems are collected, never thrown: whatever can still be checked is checked.

mod accept;
mod bfd;
mod checks;
mod drain;
mod listen;
mod vip;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use standfast_core::plan::{self, PeerAsn, Plan, Timers, Ttl};
use standfast_core::prefix::{Afi, Prefix};
use standfast_core::spelling::closest;

use super::file::{Bgp, Neighbor, Root, Router, Vip};
use super::read::{At, Findings};
use super::value::{Int, Restart, TtlSecurity, show};

/// The plan that the file asks for. It is complete only if nothing was reported.
pub(crate) fn plan(root: &Root, out: &mut Findings) -> Plan {
    let nowhere = Nowhere::default();
    let router = router(root.router.as_ref(), out);
    let bgp = root.bgp.as_ref();
    let vips = list(&root.vips);
    let neighbors = bgp.map_or(&[][..], |b| list(&b.neighbors));
    let listener = root.listener.as_ref();
    if vips.is_empty() && listener.is_none() {
        let place = root.vips.as_ref().map_or(&nowhere.place, |v| &v.place);
        out.at("vips", place, "there is nothing to do: no VIP to announce and no listener")
            .help("add a VIP under `vips`, or a `listener` section");
    }
    if !vips.is_empty() && neighbors.is_empty() && !out.under("bgp") {
        let place = bgp.and_then(|b| b.neighbors.as_ref()).map_or(&vips[0].place, |n| &n.place);
        out.at(
            "bgp.neighbors",
            place,
            "there is nobody to announce to: the VIPs need at least one neighbour",
        )
        .help("add one under `bgp.neighbors`");
    }
    let names: BTreeSet<&str> =
        vips.iter().filter_map(|v| v.name.as_ref()).map(|n| n.value.0.as_str()).collect();
    let mut plan = Plan {
        bgp: plan::Bgp { listen: Vec::new(), peers: BTreeMap::new() },
        vips: BTreeMap::new(),
        checks: BTreeMap::new(),
        listener: None,
        router,
    };
    if let Some(at) = &root.drain {
        drain::section(at, out);
    }
    let mut prefixes = Vec::new();
    let mut shared = checks::Shared::new(list(&root.checks), out);
    for (index, at) in vips.iter().enumerate() {
        vip::vip(index, at, root.drain.as_ref(), &mut shared, &mut plan, &mut prefixes, out);
    }
    shared.unused(out);
    unique(vips.iter().filter_map(|v| v.name.as_ref()), "VIPs are", |n| n.0.clone(), out);
    vip::apart(&prefixes, vips, out);
    if let Some(bgp) = bgp {
        speaker(bgp, out);
        for at in neighbors {
            if let Some(peer) = neighbor(at, bgp, &plan, root.router.as_deref(), &names, out) {
                plan.bgp.peers.insert(peer.name.clone(), peer);
            }
        }
        unique(neighbors.iter().filter_map(|n| n.name.as_ref()), "neighbours are", |n| n.0.clone(), out);
        unique(
            neighbors.iter().filter_map(|n| n.address.as_ref()),
            "neighbours are at",
            IpAddr::to_string,
            out,
        );
    }
    if let (Some(listener), Some(bgp)) = (listener, bgp) {
        plan.listener = Some(listen::listener(listener, bgp, out));
    }
    listen::watched(root, out);
    if let Some(bgp) = bgp {
        plan.bgp.listen = listen_on(bgp, &plan, out);
    }
    if let Some(listener) = listener {
        listen::own(listener, &plan, out);
    }
    if let Some(at) = root.router.as_ref() {
        next_hops(at, &plan, neighbors, vips, out);
    }
    entangled(root.router.as_deref(), neighbors, vips, out);
    vip::pessimised(&plan, vips, out);
    drain::idle(vips, &plan, out);
    // Advice is for files that are accepted.
    if out.errors() == 0 {
        vip::elsewhere(&plan, vips, out);
    }
    plan
}

/// A route whose next hop is the VIP itself leads nowhere, and a session over a VIP ends with it.
fn entangled(router: Option<&Router>, neighbors: &[At<Neighbor>], vips: &[At<Vip>], out: &mut Findings) {
    let hosts: BTreeMap<IpAddr, (&str, &Range<usize>)> = vips
        .iter()
        .flat_map(|v| v.prefix.iter().chain(list(&v.prefixes)).map(move |p| (v, p)))
        .filter(|(_, p)| p.is_host())
        .map(|(v, p)| (p.address(), (v.name.as_ref().map_or("?", |n| n.value.0.as_str()), &p.place)))
        .collect();
    let mut check = |path: &str, place: &Range<usize>, ip: IpAddr, what: &str| {
        if let Some((name, prefix)) = hosts.get(&ip) {
            out.at(path, place, format!("{what} {ip} is the VIP `{name}`, which comes and goes"))
                .note(prefix, "the VIP")
                .help("take an address that stays on this host");
        }
    };
    if let Some(router) = router {
        if let Some(at) = &router.local_address {
            check(&at.path, &at.place, at.value, "the local address");
        }
        if let Some(at) = &router.local_address_ipv6 {
            check(&at.path, &at.place, IpAddr::V6(at.value), "the local address");
        }
    }
    for neighbor in neighbors {
        if let Some(at) = &neighbor.local_address {
            check(&at.path, &at.place, at.value, "the local address");
        }
    }
    for at in neighbors.iter().filter_map(|n| n.address.as_ref()) {
        let ip = at.value;
        if let Some((name, prefix)) = hosts.get(&ip) {
            out.error(at, format!("the neighbour {ip} has the address of the VIP `{name}`"))
                .note(prefix, "the VIP");
        }
    }
}

/// The place of what is not in the file.
#[derive(Default)]
struct Nowhere {
    place: Range<usize>,
}

pub(super) fn list<T>(field: &Option<At<Vec<At<T>>>>) -> &[At<T>] {
    field.as_ref().map_or(&[], |list| &list.value)
}

/// A field's value; the fallback is only for what was reported, or is optional.
pub(super) fn or<T: Clone>(field: &Option<At<T>>, fallback: T) -> T {
    field.as_ref().map_or(fallback, |at| at.value.clone())
}

pub(super) fn value<T: Clone>(field: &Option<At<T>>) -> Option<T> {
    field.as_ref().map(|at| at.value.clone())
}

fn unique<'a, T: 'a>(
    items: impl Iterator<Item = &'a At<T>>,
    what: &str,
    show: impl Fn(&T) -> String,
    out: &mut Findings,
) {
    let mut seen: BTreeMap<String, &At<T>> = BTreeMap::new();
    for item in items {
        let name = show(&item.value);
        if let Some(first) = seen.get(&name) {
            let named = if what.ends_with(" at") { "" } else { " named" };
            out.error(item, format!("two {what}{named} `{name}`")).note(&first.place, "the first one");
        } else {
            seen.insert(name, item);
        }
    }
}

fn router(at: Option<&At<Router>>, out: &mut Findings) -> plan::Router {
    let Some(at) = at else {
        return plan::Router {
            asn: 1,
            router_id: Ipv4Addr::LOCALHOST,
            local_address: None,
            local_address_ipv6: None,
        };
    };
    if let Some(id) = at.router_id.as_ref().filter(|id| id.is_unspecified()) {
        out.error(id, "the router id must not be 0.0.0.0").help("take an IPv4 address of this host");
    }
    if let Some(address) = &at.local_address {
        source_address(address, out);
    }
    if let Some(address) = &at.local_address_ipv6 {
        let ip = IpAddr::V6(address.value);
        if address.is_unicast_link_local() {
            out.error(address, "a link-local address cannot be the next hop of IPv6 routes")
                .help("take a global or unique local IPv6 address of this host");
        } else {
            source_address(
                &At { value: ip, path: address.path.clone(), place: address.place.clone(), verbatim: None },
                out,
            );
        }
    }
    plan::Router {
        asn: at.asn.as_ref().map_or(1, |a| a.value.0),
        router_id: or(&at.router_id, Ipv4Addr::LOCALHOST),
        local_address: value(&at.local_address),
        local_address_ipv6: value(&at.local_address_ipv6),
    }
}

/// Whether an address can be the source of a session and a next hop at all.
fn source_address(at: &At<IpAddr>, out: &mut Findings) {
    let wrong = match at.value {
        a if a.is_unspecified() => "is not an address of a host",
        a if a.is_multicast() => "is a multicast address",
        IpAddr::V4(a) if a.is_broadcast() => "is the broadcast address",
        IpAddr::V6(a) if a.to_ipv4_mapped().is_some() => "is an IPv4 address in IPv6 dress",
        _ => return,
    };
    out.error(at, format!("`{}` {wrong}: it cannot be a source and next hop", at.value))
        .help("take an address of this host that the neighbours can reach");
}

/// Checks what holds for the whole speaker.
fn speaker(bgp: &Bgp, out: &mut Findings) {
    if let (Some(one), Some(several)) = (&bgp.listen_address, &bgp.listen_addresses) {
        out.error(one, "listen_address and listen_addresses are both given")
            .note(&several.place, "the other one")
            .help("keep one of them");
    }
    if bgp.listen_port.as_ref().is_some_and(|p| p.get() == -1)
        && let Some(at) = &bgp.listen_addresses
    {
        out.error(at, "listen_port -1 accepts no sessions, so there is nothing to listen on");
    }
    timers(bgp, &None, &None, &None, out);
}

/// The timers of a session: its own where it has them, else the speaker's.
fn timers(
    bgp: &Bgp,
    hold: &Option<At<Duration>>,
    keepalive: &Option<At<Duration>>,
    retry: &Option<At<Duration>>,
    out: &mut Findings,
) -> Timers {
    let defaults = Timers::default();
    let hold = hold.as_ref().or(bgp.hold_time.as_ref());
    let keepalive = keepalive.as_ref().or(bgp.keepalive_time.as_ref());
    let retry = retry.as_ref().or(bgp.connect_retry.as_ref());
    let held = hold.map_or(defaults.hold, |h| h.value);
    if let Some(hold) = hold {
        let secs = hold.as_secs();
        if hold.subsec_nanos() != 0 || !(secs == 0 || (3..=65535).contains(&secs)) {
            out.error(hold, format!("a hold time of {} cannot be told to a peer", show(held)))
                .help("write 3s to 65535s in whole seconds, or 0 for a session that never expires");
        }
    }
    if let (Some(keepalive), Some(hold)) = (keepalive, hold) {
        let finding =
            if held.is_zero() {
                Some(out.error(keepalive, "keepalive_time has no effect with a hold time of 0"))
            } else if keepalive.value < Duration::from_secs(1) {
                Some(out.error(keepalive, "keepalive_time is less than 1s"))
            } else if keepalive.value * 3 > held {
                let message = format!(
                    "a keepalive time of {} is more than a third of the hold time, {}",
                    show(keepalive.value),
                    show(held)
                );
                Some(out.error(keepalive, message).help(format!(
                    "write at most {}, or leave it away: a third is the default",
                    show(held / 3)
                )))
            } else {
                None
            };
        if let (Some(finding), true) = (finding, hold.verbatim.is_some()) {
            finding.note(&hold.place, "the hold time");
        }
    }
    let longest = or(&bgp.connect_retry_max, defaults.connect_retry_max);
    if let Some(retry) = retry {
        if retry.value < Duration::from_millis(10) {
            out.error(retry, "connect_retry is less than 10ms");
        } else if retry.value > longest {
            out.error(retry, format!("connect_retry is longer than connect_retry_max, {}", show(longest)));
        }
    }
    let send_hold = or(&bgp.send_hold_time, defaults.send_hold.max(held * 2));
    if let Some(at) = bgp.send_hold_time.as_ref().filter(|s| s.value <= held || s.is_zero()) {
        out.error(at, format!("send_hold_time must be longer than the hold time, {}", show(held)));
    }
    Timers {
        hold: held,
        keepalive: keepalive.map(|k| k.value),
        connect_retry: retry.map_or(defaults.connect_retry, |r| r.value),
        connect_retry_max: longest,
        send_hold,
    }
}

fn hops(
    multihop: &Option<At<bool>>,
    ttl: &Option<At<Int<0, 255>>>,
    security: &Option<At<TtlSecurity>>,
    out: &mut Findings,
) -> Ttl {
    let enabled = or(multihop, false);
    if let Some(ttl) = ttl {
        if ttl.get() == 1 {
            out.error(ttl, "multihop_ttl is 1, which reaches direct neighbours only")
                .help("write 2 to 255, or take enable_multihop away");
        } else if !enabled {
            out.error(ttl, "multihop_ttl has no effect without enable_multihop")
                .help("add `enable_multihop: true`");
        }
    }
    match security {
        Some(at) if at.0.is_some() && enabled => {
            out.error(at, "ttl_security and enable_multihop exclude each other")
                .help("ttl_security takes the number of hops itself, e.g. `ttl_security: 3`");
        }
        Some(At { value: TtlSecurity(Some(hops)), .. }) => return Ttl::Security(*hops),
        _ => {}
    }
    match (enabled, ttl.as_ref().map(|t| t.to::<u8>())) {
        (false, _) => Ttl::Direct,
        (true, None | Some(0)) => Ttl::Multihop(255),
        (true, Some(ttl)) => Ttl::Multihop(ttl),
    }
}

fn neighbor(
    at: &At<Neighbor>,
    bgp: &Bgp,
    plan: &Plan,
    router: Option<&Router>,
    vips: &BTreeSet<&str>,
    out: &mut Findings,
) -> Option<plan::Peer> {
    let ttl = hops(&at.enable_multihop, &at.multihop_ttl, &at.ttl_security, out);
    let bfd = bfd::bfd(&at.bfd, ttl, out);
    let timers = timers(bgp, &at.hold_time, &at.keepalive_time, &at.connect_retry, out);
    let passive = or(&at.passive, false);
    if let Some(at) = at.passive.as_ref().filter(|p| p.value)
        && bgp.listen_port.as_ref().is_some_and(|p| p.get() == -1)
    {
        out.error(at, "a passive neighbour can never connect: listen_port is -1");
    }
    for name in list(&at.vips) {
        if !vips.contains(name.value.0.as_str()) {
            let finding = out.error(name, format!("no VIP named `{}`", name.value.0));
            if let Some(meant) = closest(&name.value.0, vips.iter().copied()) {
                finding.help(format!("did you mean `{meant}`?"));
            }
        }
    }
    let restart = at.graceful_restart.as_ref().or(bgp.graceful_restart.as_ref()).map(|r| r.value);
    let graceful_restart = match restart {
        None | Some(Restart::Off) => None,
        Some(Restart::Time(time)) => Some(time),
        Some(Restart::On) if timers.hold.is_zero() => Some(Duration::from_secs(120)),
        Some(Restart::On) => Some(timers.hold.min(Duration::from_secs(4095))),
    };
    if let Some(address) = &at.address {
        peer_address(at, address, plan, router, out);
    }
    let peer = plan::Peer {
        name: at.name.as_ref()?.value.0.clone(),
        address: at.address.as_ref()?.value,
        interface: at.interface.as_ref().map(|i| i.value.0.clone()),
        port: at.port.as_ref()?.to(),
        asn: at.peer_asn.as_ref()?.value,
        local_address: value(&at.local_address),
        local_port: at.local_port.as_ref().map(|p| p.to()),
        passive,
        required: or(&at.required, true),
        ttl,
        password: value(&at.auth_password),
        timers,
        graceful_restart,
        extended_next_hop: or(&at.extended_next_hop, false),
        bfd,
        vips: at.vips.as_ref().map(|list| list.iter().map(|n| n.value.0.clone()).collect()),
    };
    Some(peer)
}

/// Checks a neighbour's address against ours.
fn peer_address(
    at: &At<Neighbor>,
    address: &At<IpAddr>,
    plan: &Plan,
    router: Option<&Router>,
    out: &mut Findings,
) {
    let ip = address.value;
    let ours = [at.local_address.as_ref(), router.and_then(|r| r.local_address.as_ref())];
    let ours_v6 = router.and_then(|r| r.local_address_ipv6.as_ref());
    let own = ours.into_iter().flatten().find(|a| a.value == ip).map(|a| &a.place);
    let own = own.or_else(|| ours_v6.filter(|a| IpAddr::V6(a.value) == ip).map(|a| &a.place));
    if let Some(place) = own {
        out.error(address, format!("the neighbour {ip} is this speaker itself"))
            .note(place, "our own address")
            .help("write the address of the router at the other end");
    } else if ip.is_unspecified() || ip.is_multicast() || matches!(ip, IpAddr::V4(a) if a.is_broadcast()) {
        out.error(address, format!("`{ip}` is not the address of a neighbour"));
    }
    let link_local = matches!(ip, IpAddr::V6(a) if a.is_unicast_link_local());
    match &at.interface {
        None if link_local => {
            out.error(address, "a link-local neighbour needs its interface")
                .help("add e.g. `interface: eth0`");
        }
        Some(interface) if !link_local => {
            out.error(interface, "interface is for link-local neighbours only")
                .help("choose the source with local_address");
        }
        _ => {}
    }
    if let Some(local) = &at.local_address {
        source_address(local, out);
        if Afi::of(local.value) != Afi::of(ip) {
            let message = format!(
                "an {} local address cannot reach an {} neighbour",
                Afi::of(local.value),
                Afi::of(ip)
            );
            out.error(local, message).note(&address.place, "the neighbour");
        } else {
            reachable(local, ip, &address.place, out);
        }
    }
    let asn = at.peer_asn.as_ref();
    if let Some(multihop) = at.enable_multihop.as_ref().filter(|m| m.value)
        && asn.is_some_and(|a| is_internal(a.value, plan.router.asn))
        && at.multihop_ttl.is_none()
    {
        out.warn(
            multihop,
            "enable_multihop has no effect on an internal neighbour, which may be any number of hops away",
        );
    }
}

fn is_internal(asn: PeerAsn, ours: u32) -> bool {
    asn == PeerAsn::Internal || asn == PeerAsn::Number(ours)
}

/// A loopback address is no next hop for a neighbour elsewhere.
fn reachable(local: &At<IpAddr>, peer: IpAddr, place: &Range<usize>, out: &mut Findings) {
    if local.is_loopback() && !peer.is_loopback() {
        out.error(
            local,
            format!("the neighbour {peer} cannot reach a loopback address, which would be its next hop"),
        )
        .note(place, "the neighbour")
        .help("take an address of this host that the neighbour can reach");
    }
}

/// Checks that every route has a next hop in the session that tells it.
fn next_hops(
    router: &At<Router>,
    plan: &Plan,
    neighbors: &[At<Neighbor>],
    vips: &[At<Vip>],
    out: &mut Findings,
) {
    for at in neighbors {
        let (Some(address), Some(peer)) =
            (&at.address, at.name.as_ref().and_then(|n| plan.bgp.peers.get(&n.value.0)))
        else {
            continue;
        };
        if let (None, Some(local)) = (&at.local_address, &router.local_address)
            && Afi::of(local.value) == Afi::of(address.value)
        {
            reachable(local, address.value, &address.place, out);
        }
        let told =
            plan.vips.values().filter(|v| peer.vips.as_ref().is_none_or(|names| names.contains(&v.name)));
        let families: BTreeSet<Afi> = told.flat_map(|v| v.prefixes.iter().map(Prefix::afi)).collect();
        let session = Afi::of(address.value);
        let of_vip = |afi| {
            let vip = plan.vips.values().find(|v| v.prefixes.iter().any(|p| p.afi() == afi))?;
            let at = vips.iter().find(|v| v.name.as_ref().is_some_and(|n| n.value.0 == vip.name))?;
            Some((prefix_place(at, afi)?, vip.name.clone()))
        };
        if session == Afi::Ipv4
            && families.contains(&Afi::Ipv6)
            && router.local_address_ipv6.is_none()
            && let Some((place, name)) = of_vip(Afi::Ipv6)
        {
            let message = format!(
                "`local_address_ipv6` is missing: the IPv6 routes of `{name}` need a next hop towards {}",
                address.value
            );
            out.at(&router.path, &router.place, message)
                    .note(&place, "this VIP is IPv6")
                    .help("add `local_address_ipv6` with a global IPv6 address of this host, or give the neighbour an IPv6 address");
        }
        let v4 = [at.local_address.as_ref(), router.local_address.as_ref()]
            .into_iter()
            .flatten()
            .any(|a| a.is_ipv4());
        if session == Afi::Ipv6
            && families.contains(&Afi::Ipv4)
            && !v4
            && !peer.extended_next_hop
            && let Some((place, name)) = of_vip(Afi::Ipv4)
        {
            let message = format!("the IPv4 routes of `{name}` have no next hop towards {}", address.value);
            out.error(address, message)
                    .note(&place, "this VIP is IPv4")
                    .help("add an IPv4 `router.local_address`, or `extended_next_hop: true` to this neighbour if it knows RFC 8950");
        }
    }
}

fn prefix_place(vip: &At<Vip>, afi: Afi) -> Option<Range<usize>> {
    let all = vip.prefix.iter().chain(list(&vip.prefixes));
    all.into_iter().find(|p| p.afi() == afi).map(|p| p.place.clone())
}

/// Where to accept sessions.
fn listen_on(bgp: &Bgp, plan: &Plan, out: &mut Findings) -> Vec<SocketAddr> {
    let port: u16 = match bgp.listen_port.as_ref().map(|p| p.get()) {
        Some(-1) => {
            if let (Some(_), Some(port)) = (&plan.listener, &bgp.listen_port) {
                out.error(port, "the listener can never accept a member: listen_port is -1");
            }
            return Vec::new();
        }
        None | Some(0) => 179,
        Some(port) => u16::try_from(port).unwrap_or(179),
    };
    let given = bgp.listen_address.iter().chain(list(&bgp.listen_addresses));
    let mut addresses: BTreeSet<IpAddr> = given
        .inspect(|a| {
            if a.is_multicast() {
                out.error(a, "a multicast address accepts no sessions");
            }
        })
        .map(|a| a.value)
        .collect();
    if addresses.is_empty() {
        let peers = plan.bgp.peers.values();
        let mut families: BTreeSet<Afi> = peers.clone().map(|p| Afi::of(p.address)).collect();
        families.extend(plan.listener.iter().flat_map(|l| l.accept.iter().map(|a| a.range.afi())));
        let locals: BTreeSet<IpAddr> = peers
            .clone()
            .filter_map(|p| p.local_address)
            .chain(plan.router.local_address)
            .chain(plan.router.local_address_ipv6.map(IpAddr::V6))
            .collect();
        for family in families {
            let mut own = locals.iter().filter(|a| Afi::of(**a) == family).copied().peekable();
            // A link-local neighbour or member dials our link-local address, which nobody wrote down.
            let mut ranges = plan.listener.iter().flat_map(|l| &l.accept);
            let link_local = family == Afi::Ipv6
                && (peers.clone().any(|p| matches!(p.address, IpAddr::V6(a) if a.is_unicast_link_local()))
                    || ranges.any(|a| accept::is_link_local(&a.range)));
            match family {
                Afi::Ipv4 if own.peek().is_none() => addresses.extend([IpAddr::V4(Ipv4Addr::UNSPECIFIED)]),
                Afi::Ipv6 if own.peek().is_none() || link_local => {
                    addresses.extend([IpAddr::V6(Ipv6Addr::UNSPECIFIED)])
                }
                Afi::Ipv4 | Afi::Ipv6 => addresses.extend(own),
            }
        }
    }
    addresses.into_iter().map(|a| SocketAddr::new(a, port)).collect()
}
