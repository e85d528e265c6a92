//! The listener: whose sessions it takes, and how the traffic of each VIP is spread.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use standfast_core::plan::{self, ListenerVip, Plan};
use standfast_core::prefix::{Afi, Prefix};
use standfast_core::spelling::closest;

use super::super::file::{self, Bgp, CheckUse, Listener, Root};
use super::super::read::{At, Findings};
use super::super::value::{Hashing, Int, OnStop, Weights, show};
use super::{accept, list, or, unique};

const DAY: Duration = Duration::from_secs(86_400);

/// The listener that the file asks for.
pub(super) fn listener(at: &At<Listener>, bgp: &Bgp, out: &mut Findings) -> plan::Listener {
    for (list, key) in [
        (at.accept.as_ref().map(|l| l.is_empty()), "accept"),
        (at.vips.as_ref().map(|l| l.is_empty()), "vips"),
    ] {
        if list == Some(true) {
            out.error(at, format!("the listener's `{key}` is empty: it would do nothing"));
        }
    }
    let vips = list(&at.vips);
    unique(vips.iter().filter_map(|v| v.name.as_ref()), "VIPs are", |n| n.0.clone(), out);
    unique(vips.iter().filter_map(|v| v.prefix.as_ref()), "VIPs are at", Prefix::to_string, out);
    let accept = accept::ranges(at, bgp, out);
    // Whatever else is wrong with a range.
    let most = list(&at.accept).iter().map(|a| a.max_members.as_ref().map_or(64, |m| m.to::<usize>())).sum();
    let mut public = Vec::new();
    let mut resolved = BTreeMap::new();
    for at in vips {
        if let (Some(name), Some(vip)) = (&at.name, vip(at, most, &mut public, out)) {
            resolved.insert(name.value.0.clone(), vip);
        }
    }
    if let Some(at) = &at.vips {
        weigh(at, &resolved, out);
    }
    let on_stop = match at.on_stop.as_ref().map(|o| o.value) {
        Some(OnStop::Remove) => plan::OnStop::Remove,
        Some(OnStop::Keep) | None => plan::OnStop::Keep,
    };
    let table = at.table.as_ref().map_or(254, |t| t.to());
    let hash_seed = at.hash_seed.as_ref().map(|s| s.to());
    let drain_mark = match at.drain_mark.as_ref().map_or(95, |mark| mark.to::<u32>()) {
        0 => None,
        first => Some(first << 24),
    };
    plan::Listener { accept, vips: resolved, table, on_stop, hash_seed, drain_mark }
}

/// Says so when the buckets of all resilient groups together would fill the kernel's memory.
fn weigh<T>(at: &At<T>, vips: &BTreeMap<String, ListenerVip>, out: &mut Findings) {
    let buckets = |vip: &ListenerVip| match vip.hashing {
        plan::Hashing::Resilient { buckets, .. } => u64::from(buckets.unwrap_or(plan::Hashing::BUCKETS)),
        plan::Hashing::Consistent { .. } | plan::Hashing::Plain => 0,
    };
    let bytes: u64 = vips.values().map(buckets).sum::<u64>() * BUCKET;
    if bytes > MUCH {
        let resilient = vips.values().filter(|vip| buckets(vip) > 0).count();
        let gib = bytes as f64 / f64::from(1 << 30);
        out.warn(at, format!("the buckets of {resilient} resilient VIPs need {gib:.1} GiB of the kernel's memory"))
            .help("write fewer `buckets` for VIPs of few connections, 8 for each that is alive at a time, or `hashing: plain`");
    }
}

/// Bytes of the kernel for each bucket of a resilient group.
const BUCKET: u64 = 32;
/// More than this for buckets alone is worth a word.
const MUCH: u64 = 1 << 30;

/// Whether each check of type members asks for a VIP that the listener has, and for no more members than it takes.
pub(super) fn watched(root: &Root, out: &mut Findings) {
    let own = list(&root.vips).iter().flat_map(|vip| vip.check.iter().chain(list(&vip.checks)));
    let own = own.filter_map(|used| match &used.value {
        CheckUse::Own(check) => Some(&**check),
        CheckUse::Shared(_) => None,
    });
    let listener = root.listener.as_ref();
    let names: Vec<&str> = listener
        .iter()
        .flat_map(|l| list(&l.vips))
        .filter_map(|v| v.name.as_ref().map(|n| n.value.0.as_str()))
        .collect();
    let ranges = listener.iter().flat_map(|l| list(&l.accept));
    let most: i64 = ranges.filter_map(|a| a.max_members.as_ref().map(|m| m.get())).sum();
    for at in list(&root.checks).iter().chain(own).filter_map(|check| check.members.as_ref()) {
        if let Some(vip) = at.vip.as_ref().filter(|vip| !names.contains(&vip.value.0.as_str())) {
            let finding = out.error(vip, format!("the listener has no VIP named `{}`", vip.value.0));
            match closest(&vip.value.0, names.iter().copied()) {
                Some(meant) => finding.help(format!("did you mean `{meant}`?")),
                None if listener.is_none() => finding.help("add a `listener` section with it"),
                None => finding.help("add it under `listener.vips`"),
            };
        } else if let Some(n) = at.at_least.as_ref().filter(|n| listener.is_some() && n.get() > most) {
            let message = format!(
                "{} members are more than `max_members` allows, {most}: it could never be good",
                n.get()
            );
            out.error(n, message);
        }
    }
}

/// Whether a VIP, or its public address, is something that this host needs for itself.
pub(super) fn own(at: &At<file::Listener>, plan: &Plan, out: &mut Findings) {
    let router = [plan.router.local_address, plan.router.local_address_ipv6.map(IpAddr::V6)];
    let spoken = plan.bgp.listen.iter().map(|a| a.ip()).filter(|a| !a.is_unspecified());
    let own: BTreeSet<IpAddr> = router.into_iter().flatten().chain(spoken).collect();
    let ports: BTreeSet<u16> = plan.bgp.listen.iter().map(|a| a.port()).collect();
    for vip in list(&at.vips) {
        if let Some(prefix) = &vip.prefix {
            let address = prefix.address();
            let wrong = if address.is_loopback() || address.is_multicast() || address.is_unspecified() {
                Some("is no network that members can serve".to_owned())
            } else {
                own.iter()
                    .find(|a| prefix.contains(**a))
                    .map(|a| format!("holds this host's own address, {a}"))
            };
            if let Some(wrong) = wrong {
                out.error(prefix, format!("the VIP {} {wrong}", prefix.value))
                    .help("write the address that the members have and announce");
            }
        }
        let Some(public) = &vip.public else { continue };
        let Some(address) = public.address.as_ref().filter(|a| own.contains(&a.value)) else { continue };
        let given: BTreeSet<u16> = list(&public.ports).iter().map(|p| p.to::<u16>()).collect();
        let taken = given.is_empty() || !given.is_disjoint(&ports);
        if taken {
            let message = format!(
                "{} is this host's own address: what comes for it, BGP and the way in among it, would be sent on to the VIP",
                address.value
            );
            out.error(address, message).help("name the `ports` that are to be translated, without those of this host, or take an address of its own");
        }
    }
    if let Some(table) = at.table.as_ref().filter(|t| t.get() == 255) {
        out.error(table, "table 255 is the kernel's own table of local addresses")
            .help("take it away for the main table");
    }
}

/// Public addresses with their ports, and where they stand.
type Translations = Vec<(IpAddr, BTreeSet<u16>, Range<usize>)>;

/// A VIP of members, of whom there are at most `most`.
fn vip(
    at: &At<file::ListenerVip>,
    most: usize,
    public: &mut Translations,
    out: &mut Findings,
) -> Option<ListenerVip> {
    let hashing = hashing(at, most, out);
    if let Some(long) = at.drain_timeout.as_ref().filter(|d| d.value > DAY) {
        out.error(long, "drain_timeout is longer than a day");
    }
    let floor = at.floor.as_ref().and_then(|f| floor(f, most, out));
    let drain = or(&at.drain_timeout, Duration::from_secs(300));
    if let plan::Hashing::Resilient { idle_timer, .. } = hashing
        && drain < idle_timer
        && !drain.is_zero()
    {
        let message = format!(
            "drain_timeout, {}, is less than idle_timer, {}: no bucket is known to be silent by then, so every drain breaks flows",
            show(drain),
            show(idle_timer)
        );
        let given = at.drain_timeout.as_ref().filter(|d| d.place != at.place);
        let place = given.or(at.idle_timer.as_ref()).map_or_else(|| at.whole(), At::whole);
        out.warn(&place, message).help("write a longer drain_timeout, or 0 if members are to leave at once");
    }
    let prefix = at.prefix.as_ref()?;
    Some(ListenerVip {
        prefix: prefix.value,
        hashing,
        weights: match at.weights.as_ref().map(|w| w.value) {
            Some(Weights::LinkBandwidth) => plan::Weights::LinkBandwidth,
            Some(Weights::Equal) | None => plan::Weights::Equal,
        },
        floor,
        public: at.public.as_ref().and_then(|p| translation(p, prefix, public, out)),
        drain,
    })
}

/// How flows are spread. A key of another way of hashing is refused: it would look as if it did something.
fn hashing(at: &At<file::ListenerVip>, most: usize, out: &mut Findings) -> plan::Hashing {
    let (kind, word) = match at.hashing.as_ref().map(|h| h.value) {
        Some(Hashing::Plain) => (Hashing::Plain, "plain"),
        Some(Hashing::Consistent) => (Hashing::Consistent, "consistent"),
        Some(Hashing::Resilient) | None => (Hashing::Resilient, "resilient"),
    };
    let place = at.hashing.as_ref().map(|h| h.place.clone()).filter(|place| *place != at.place);
    let mut refuse = |key: &str, given: Option<At<()>>, of: Hashing, name: &str| {
        if let Some(given) = given.filter(|_| of != kind) {
            let finding = out.error(&given, format!("{key} has no effect with {word} hashing"));
            if let Some(place) = &place {
                finding.note(place, "the hashing");
            }
            finding.help(format!("take it away, or write `hashing: {name}`"));
        }
    };
    refuse("buckets", at.buckets.as_ref().map(At::whole), Hashing::Resilient, "resilient");
    refuse("idle_timer", at.idle_timer.as_ref().map(At::whole), Hashing::Resilient, "resilient");
    refuse("unbalanced_timer", at.unbalanced_timer.as_ref().map(At::whole), Hashing::Resilient, "resilient");
    refuse("slots", at.slots.as_ref().map(At::whole), Hashing::Consistent, "consistent");
    let mut room = |key: &str, given: &At<()>, n: usize| {
        if n < most {
            let message = format!(
                "{n} {key} are not enough for the {most} members that there may be: some would get no traffic"
            );
            out.warn(given, message).help(format!("write more {key}, or a smaller `max_members`"));
        }
    };
    match kind {
        Hashing::Plain => plan::Hashing::Plain,
        Hashing::Consistent => {
            let slots = at.slots.as_ref().map_or(120, |s| s.to::<u16>());
            if let Some(at) = &at.slots {
                room("slots", &at.whole(), slots.into());
            }
            plan::Hashing::Consistent { slots }
        }
        Hashing::Resilient => {
            let buckets = at.buckets.as_ref().map(|b| b.to::<u16>());
            if let (Some(at), Some(n)) = (&at.buckets, buckets) {
                room("buckets", &at.whole(), n.into());
            }
            let idle_timer = or(&at.idle_timer, Duration::from_secs(120));
            let unbalanced_timer = or(&at.unbalanced_timer, Duration::ZERO);
            if let Some(at) = &at.idle_timer {
                if idle_timer < Duration::from_secs(1) {
                    out.error(at, "idle_timer is less than 1s: flows would move in every short silence")
                        .help("write more than the longest silence inside a flow, or `hashing: plain`");
                } else if idle_timer > DAY {
                    out.error(at, "idle_timer is longer than a day");
                }
            }
            if let Some(at) = at.unbalanced_timer.as_ref().filter(|u| !u.is_zero()) {
                if unbalanced_timer > DAY {
                    out.error(at, "unbalanced_timer is longer than a day");
                } else if unbalanced_timer < idle_timer {
                    let message = format!(
                        "unbalanced_timer, {}, is shorter than idle_timer, {}: buckets would be moved before any of them can be idle",
                        show(unbalanced_timer),
                        show(idle_timer)
                    );
                    out.error(at, message)
                        .help("write more, or take it away so that no busy bucket is ever moved");
                }
            }
            plan::Hashing::Resilient { buckets, idle_timer, unbalanced_timer }
        }
    }
}

fn floor(at: &At<file::ListenerFloor>, most: usize, out: &mut Findings) -> Option<plan::ListenerFloor> {
    let (members, hold) = (at.members.as_ref()?, at.hold.as_ref()?);
    if usize::from(members.to::<u16>()) > most {
        let message =
            format!("a floor of {} members is more than `max_members` allows, {most}", members.get());
        out.error(members, message);
    }
    if hold.is_zero() {
        out.error(hold, "hold is 0: nobody would ever be held").help("take floor away to go without");
    } else if hold.value > DAY {
        out.error(hold, "hold is longer than a day");
    }
    Some(plan::ListenerFloor { members: members.to(), hold: hold.value })
}

/// The translation of a public address to `prefix`, which no other of `all` may be in conflict with.
fn translation(
    at: &At<file::Public>,
    prefix: &At<Prefix>,
    all: &mut Translations,
    out: &mut Findings,
) -> Option<plan::Public> {
    let address = at.address.as_ref()?;
    let ip = address.value;
    let wrong = match ip {
        a if a.is_unspecified() || a.is_multicast() || a.is_loopback() => {
            Some("is no address that the world can reach")
        }
        IpAddr::V6(a) if a.is_unicast_link_local() => Some("is link-local: the world cannot reach it"),
        a if Afi::of(a) != prefix.afi() => Some("is not of the VIP's family"),
        a if prefix.contains(a) => Some("is the VIP itself: there is nothing to translate"),
        _ => None,
    };
    if let Some(wrong) = wrong {
        out.error(address, format!("the public address {ip} {wrong}")).note(&prefix.place, "the VIP");
    }
    if !prefix.is_host() {
        out.error(
            prefix,
            format!("a public address is translated to a single one, and `{}` is a network", prefix.value),
        )
        .note(&at.place, "the public address")
        .help(format!("write a /{} prefix, or take `public` away", prefix.afi().bits()));
    }
    let given: &[At<Int<1, 65535>>] = list(&at.ports);
    if let Some(empty) = at.ports.as_ref().filter(|p| p.is_empty()) {
        out.error(empty, "an empty list of ports translates nothing")
            .help("take it away to translate everything");
    }
    let mut ports = BTreeSet::new();
    for port in given {
        if !ports.insert(port.to::<u16>()) {
            out.error(port, format!("port {} is given twice", port.get()));
        }
    }
    if ports.len() > 1000 {
        out.error(at, format!("{} ports are more than 1000", ports.len()))
            .help("take `ports` away to translate everything");
    }
    let clash = all.iter().find(|(other, theirs, _)| {
        *other == ip && (ports.is_empty() || theirs.is_empty() || !ports.is_disjoint(theirs))
    });
    if let Some((_, theirs, place)) = clash {
        let what = match ports.intersection(theirs).next() {
            Some(port) => format!("port {port} of {ip} is translated to two VIPs"),
            None => format!("{ip} is translated to two VIPs, and one of them takes every port"),
        };
        out.error(address, what).note(place, "the other one");
    }
    all.push((ip, ports.clone(), address.place.clone()));
    Some(plan::Public { address: ip, ports: ports.into_iter().collect() })
}
