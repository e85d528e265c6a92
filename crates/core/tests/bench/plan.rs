//! Small plans for whole nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use standfast_core::Prefix;
use standfast_core::plan::{
    Accept, Attributes, Bgp, Check, CheckId, Listener, ListenerVip, Peer, PeerAsn, Plan, Probe, Router,
    Target, TcpProbe, Timers, Ttl, Vip,
};

pub(crate) fn timers() -> Timers {
    Timers {
        hold: Duration::from_secs(9),
        connect_retry_max: Duration::from_secs(5),
        send_hold: Duration::from_secs(18),
        ..Timers::default()
    }
}

/// A plan without peers, VIPs or roles.
pub(crate) fn empty(asn: u32, address: Ipv4Addr) -> Plan {
    Plan {
        router: Router {
            asn,
            router_id: address,
            local_address: Some(IpAddr::V4(address)),
            local_address_ipv6: Some(format!("2001:db8::{:x}", address.octets()[3]).parse().unwrap()),
        },
        bgp: Bgp { listen: vec!["0.0.0.0:179".parse().unwrap()], peers: BTreeMap::new() },
        vips: BTreeMap::new(),
        checks: BTreeMap::new(),
        listener: None,
    }
}

pub(crate) fn peer(name: &str, address: Ipv4Addr, asn: PeerAsn) -> Peer {
    Peer {
        name: name.into(),
        address: address.into(),
        interface: None,
        port: 179,
        asn,
        local_address: None,
        local_port: None,
        passive: false,
        required: false,
        ttl: Ttl::Direct,
        password: None,
        timers: timers(),
        graceful_restart: None,
        extended_next_hop: false,
        bfd: None,
        vips: None,
    }
}

/// A VIP that must pass every one of its checks; pessimised by three prepends.
pub(crate) fn vip(name: &str, prefixes: &[&str], checks: &[&str]) -> Vip {
    let prefixes = prefixes.iter().map(|s| s.parse().unwrap()).collect();
    let lower_priority = Attributes { as_path_prepend: 3, ..Attributes::default() };
    Vip { lower_priority, ..Vip::new(name, prefixes, checks) }
}

pub(crate) fn id(vip: &str, check: &str) -> CheckId {
    CheckId::new(vip, check)
}

/// A check of 1 s that rises after 2 and falls after 2, of a probe that times out by itself.
pub(crate) fn check() -> Check {
    let probe = Probe::Tcp(Box::new(TcpProbe::new(Target::Address("127.0.0.1:80".parse().unwrap()))));
    Check { timeout: Duration::from_millis(500), rise: 2, fall: 2, ..Check::new(probe) }
}

pub(crate) fn add_vip(plan: &mut Plan, vip: Vip, checks: &[&str]) {
    for c in checks {
        plan.checks.insert(id(&vip.name, c), check());
    }
    plan.vips.insert(vip.name.clone(), vip);
}

pub(crate) fn add_peer(plan: &mut Plan, peer: Peer) {
    plan.bgp.peers.insert(peer.name.clone(), peer);
}

pub(crate) fn listener(range: &str, vips: &[(&str, &str)]) -> Listener {
    let fleet =
        Accept { timers: timers(), ..Accept::new("fleet", range.parse().unwrap(), PeerAsn::External) };
    let vips = vips.iter().map(|(n, s)| ((*n).into(), ListenerVip::new(s.parse().unwrap())));
    Listener::new(vec![fleet], vips.collect())
}

pub(crate) fn names(list: &[&str]) -> Option<BTreeSet<String>> {
    Some(list.iter().map(|s| (*s).to_owned()).collect())
}

pub(crate) fn prefixes(plan: &Plan) -> Vec<(String, Prefix)> {
    plan.vips.values().flat_map(|v| v.prefixes.iter().map(|p| (v.name.clone(), *p))).collect()
}
