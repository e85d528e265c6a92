//! What is wrong with a host: a pure function of what it is like, what it is to do, and what its peers agreed to.

use serde_json::Value;
use standfast_core::plan::{DnsTransport, Hashing, Listener, PeerAsn, Plan, Probe, Ttl};
use standfast_core::prefix::{Afi, Prefix};
use standfast_io::netlink::METRIC;
use standfast_io::survey::{Interface, Rival, Survey};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::{Finding, Severity};
use crate::config::Loaded;

/// A dead host should not attract traffic for longer, without anybody having chosen so, in seconds.
const LONG_HOLD: u64 = 30;
/// Addresses, protocol and ports, in `fib_multipath_hash_fields`.
const FIELDS: u32 = 0x37;
/// CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW (capability.h).
const BIND: u32 = 10;
const ADMIN: u32 = 12;
const RAW: u32 = 13;

/// Everything that is wrong, the worst first. `status` is what the running daemon says, if it could be asked.
pub fn judge(loaded: &Loaded, host: &Survey, status: Option<&Value>) -> Vec<Finding> {
    let mut doctor = Doctor { plan: &loaded.plan, host, status, findings: Vec::new() };
    doctor.forwarding();
    doctor.hashing();
    doctor.reverse_path();
    doctor.arp();
    doctor.vips();
    doctor.links();
    doctor.ways_to_vips();
    doctor.rights();
    doctor.ports(loaded.daemon.api.listen);
    doctor.limits();
    doctor.clock();
    doctor.peers();
    doctor.findings.sort_by(|a, b| (a.severity, a.id, &a.on).cmp(&(b.severity, b.id, &b.on)));
    doctor.findings
}

struct Doctor<'a> {
    plan: &'a Plan,
    host: &'a Survey,
    status: Option<&'a Value>,
    findings: Vec<Finding>,
}

/// A VIP's prefix, and whose it is.
struct Vip {
    on: String,
    prefix: Prefix,
    /// It is this host's to announce, and not only to route.
    announced: bool,
    /// Its address must be here, and nobody but the operator puts it here.
    needed: bool,
}

impl<'a> Doctor<'a> {
    fn found(
        &mut self,
        (id, severity): (&'static str, Severity),
        on: &str,
        what: impl Into<String>,
        why: &'static str,
        mend: impl Into<String>,
    ) {
        let (on, what, mend) = (on.to_owned(), what.into(), mend.into());
        self.findings.push(Finding { id, severity, on, what, why, mend, sysctls: Vec::new() });
    }

    /// Something that a sysctl mends; with `safe`, without breaking what works.
    fn wants(
        &mut self,
        (id, severity): (&'static str, Severity),
        on: &str,
        (name, is, wanted): (&str, &str, &str),
        why: &'static str,
        safe: bool,
    ) {
        self.found(
            (id, severity),
            on,
            format!("{name} is {is}, want {wanted}"),
            why,
            format!("sysctl -w {name}={wanted}"),
        );
        if let Some(finding) = self.findings.last_mut().filter(|_| safe) {
            finding.sysctls.push((name.to_owned(), wanted.to_owned()));
        }
    }

    fn listens(&self) -> bool {
        self.plan.listener.is_some()
    }

    fn announces(&self) -> bool {
        !self.plan.vips.is_empty()
    }

    fn all_vips(&self) -> Vec<Vip> {
        let announced = self.plan.vips.values().flat_map(|vip| {
            vip.prefixes.iter().map(|&prefix| Vip {
                on: format!("vip {}", vip.name),
                prefix,
                announced: true,
                needed: vip.require_local_address && vip.manage.is_none(),
            })
        });
        let routed = self.plan.listener.iter().flat_map(|l| &l.vips).map(|(name, vip)| Vip {
            on: format!("listener vip {name}"),
            prefix: vip.prefix,
            announced: false,
            needed: false,
        });
        announced.chain(routed).collect()
    }

    fn has(&self, afi: Afi) -> bool {
        self.all_vips().iter().any(|v| v.prefix.afi() == afi)
    }

    /// The interfaces that lead to others and are up.
    fn outward(&self) -> impl Iterator<Item = &'a Interface> + use<'a> {
        self.host.interfaces.iter().filter(|i| i.up && !i.inward)
    }

    /// The same, as sysctls name them.
    fn names(&self) -> Vec<String> {
        self.outward().map(|i| sysctl_name(&i.name)).collect()
    }

    /// What the kernel goes by where the larger of `all` and the interface's own counts.
    fn effective(&self, interface: &str, key: &str) -> Option<i64> {
        let value =
            |whose: &str| self.host.sysctl(&format!("net.ipv4.conf.{whose}.{key}"))?.parse::<i64>().ok();
        match (value("all"), value(interface)) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        }
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.host.sysctl(name) == Some(value)
    }

    fn forwarding(&mut self) {
        let families = [
            (Afi::Ipv4, "net.ipv4.ip_forward", "forwarding-off", "forwarding-on"),
            (Afi::Ipv6, "net.ipv6.conf.all.forwarding", "forwarding6-off", "forwarding6-on"),
        ];
        for (afi, name, off, on) in families {
            if !self.has(afi) {
                continue;
            }
            if self.listens() && self.is(name, "0") {
                let why = "the routes are there and look right, and every packet for a VIP is dropped";
                self.wants((off, Severity::Fault), "host", (name, "0", "1"), why, true);
            }
            if !self.listens() && self.is(name, "1") {
                let why = "packets for a VIP that has just left this host go back to the router, round and round, instead of being \
                           refused; forwarding may be wanted for other reasons (containers): then leave it";
                self.wants((on, Severity::Warning), "host", (name, "1", "0"), why, false);
            }
        }
        for whose in ["all", "lo"] {
            let name = format!("net.ipv6.conf.{whose}.disable_ipv6");
            if self.has(Afi::Ipv6) && self.is(&name, "1") {
                let why = "an IPv6 VIP cannot be put on this host, while the IPv4 half works";
                self.wants(("ipv6-disabled", Severity::Fault), whose, (&name, "1", "0"), why, true);
            }
        }
    }

    fn hashing(&mut self) {
        let Some(listener) = &self.plan.listener else { return };
        // Another hash moves every flow once: nobody minds while nothing is routed.
        let unused = self.host.own_routes == 0;
        for (afi, family, id) in [(Afi::Ipv4, "ipv4", "hash-policy"), (Afi::Ipv6, "ipv6", "hash-policy6")] {
            let name = format!("net.{family}.fib_multipath_hash_policy");
            let fields = self.host.sysctl(&format!("net.{family}.fib_multipath_hash_fields"));
            let fields = fields.map(bits);
            let routed = listener.vips.values().any(|v| v.prefix.afi() == afi);
            // Those want more, and are told by that.
            let routed = routed && !consistent(listener, afi);
            // 0: addresses only; 3: what `fields` says, of which 0x30 are the ports.
            let is = match self.host.sysctl(&name) {
                Some("0") if routed => "0",
                Some("3") if routed && fields.is_some_and(|f| f & 0x30 != 0x30) => "3 without the ports",
                _ => continue,
            };
            let why = "flows are spread by addresses alone: all clients behind one address translation land on one member";
            self.wants((id, Severity::Fault), "host", (&name, is, "1"), why, unused);
        }
        let name = "net.ipv4.fib_multipath_hash_seed";
        if ![Afi::Ipv4, Afi::Ipv6].iter().any(|afi| consistent(listener, *afi)) {
            return;
        }
        self.same_fields(listener, unused);
        if listener
            .vips
            .values()
            .any(|v| v.public.is_some() && matches!(v.hashing, Hashing::Consistent { .. }))
        {
            let name = "net.netfilter.nf_conntrack_tcp_be_liberal";
            if self.is(name, "0") {
                let why = "a flow that comes over from the other listener is seen in the middle: its packets count as invalid and are \
                           not translated";
                self.wants(("liberal", Severity::Fault), "host", (name, "0", "1"), why, true);
            }
        }
        let Some(is) = self.host.sysctl(name) else { return };
        let why = "this host's hash is not the other listener's: when traffic moves from one to the other most flows find another \
                   member, although both tables are the same";
        match listener.hash_seed.map(|seed| seed.to_string()) {
            Some(wanted) if wanted != is => {
                self.wants(("hash-seed", Severity::Fault), "host", (name, is, &wanted), why, unused);
            }
            None if is == "0" => {
                let what = format!("{name} is 0: each host rolls its own dice");
                let mend = "`hash_seed: NUMBER` in the listener section, the same on every listener, then `standfast doctor --fix`";
                self.found(("hash-seed", Severity::Fault), "host", what, why, mend);
            }
            _ => {}
        }
    }

    /// With policy 1 the kernel takes a hash that the sender's socket or the network card has made, where there is one: two
    /// listeners are sure to reckon alike only by fields that they both look at.
    fn same_fields(&mut self, listener: &Listener, unused: bool) {
        for (afi, family, id) in [(Afi::Ipv4, "ipv4", "hash-fields"), (Afi::Ipv6, "ipv6", "hash-fields6")] {
            let policy = format!("net.{family}.fib_multipath_hash_policy");
            let name = format!("net.{family}.fib_multipath_hash_fields");
            let Some(is) = self.host.sysctl(&name).filter(|_| consistent(listener, afi)) else { continue };
            let fields = bits(is);
            if self.is(&policy, "3") && fields & FIELDS == FIELDS {
                continue;
            }
            let why = "the same flow finds another member at another listener: by policy 1 a packet may carry a hash that its sender or \
                       the network card made, which the other does not see, and by 0 all flows of a client are one";
            let what =
                format!("{policy} is {}, and {name} is {is}", self.host.sysctl(&policy).unwrap_or("missing"));
            let mend = format!("sysctl -w {name}={FIELDS} {policy}=3");
            self.found((id, Severity::Fault), "host", what, why, mend);
            if let Some(finding) = self.findings.last_mut().filter(|_| unused) {
                finding.sysctls = vec![(name, FIELDS.to_string()), (policy, "3".to_owned())];
            }
        }
    }

    fn reverse_path(&mut self) {
        if !self.has(Afi::Ipv4) {
            return;
        }
        let names = self.names();
        let strict: Vec<&String> =
            names.iter().filter(|n| self.effective(n, "rp_filter") == Some(1)).collect();
        // With one way in and out there is no other interface.
        if names.len() > 1 {
            for name in &strict {
                let why = "packets whose answers would leave by another interface are dropped, and no counter that anybody looks at \
                           tells; the kernel goes by the larger of `all` and the interface's own, and 2 (loose) absorbs 1";
                let sysctl = format!("net.ipv4.conf.{name}.rp_filter");
                let is = if self.is(&sysctl, "1") { "1" } else { "0, and 1 in `all`" };
                self.wants(("rp-filter", Severity::Fault), name, (&sysctl, is, "2"), why, true);
            }
        }
        if self.is("net.ipv4.conf.default.rp_filter", "1") && (strict.is_empty() || names.len() < 2) {
            let why = "every interface made from now on filters strictly, although those of today do not: the next cable, VLAN or \
                       restart of the network loses packets";
            let sysctl = ("net.ipv4.conf.default.rp_filter", "1", "2");
            self.wants(("default-trap", Severity::Warning), "default", sysctl, why, true);
        }
        let ways = self.host.interfaces.iter().filter(|i| !i.inward).count();
        if self.listens()
            && ways == 1
            && let [only] = names.as_slice()
        {
            for whose in ["all", only.as_str()] {
                let name = format!("net.ipv4.conf.{whose}.send_redirects");
                if self.is(&name, "1") {
                    let why = "with one interface, clients on the link are told to send to a member directly: they go past the hash, \
                               and keep going there when the member has left";
                    self.wants(("redirects", Severity::Warning), whose, (&name, "1", "0"), why, true);
                }
            }
        }
    }

    /// The connected networks, with the interfaces that lead to them.
    fn connected(&self) -> Vec<(String, Prefix)> {
        let owned = self.outward().flat_map(|i| i.addresses.iter().map(move |o| (i, o)));
        let networks = owned.filter_map(|(i, o)| Some((i.name.clone(), network(o.address, o.len)?)));
        networks.filter(|(_, n)| !n.is_host() && !is_link_local(n.address())).collect()
    }

    fn arp(&mut self) {
        if self.listens() {
            return;
        }
        let vips: Vec<IpAddr> = self
            .all_vips()
            .iter()
            .filter(|v| v.prefix.afi() == Afi::Ipv4)
            .map(|v| v.prefix.address())
            .collect();
        let near: BTreeSet<String> = self
            .connected()
            .iter()
            .filter(|(_, network)| vips.iter().any(|v| network.contains(*v)))
            .map(|(name, _)| sysctl_name(name))
            .collect();
        for name in near {
            let wanted = [
                (
                    "arp-ignore",
                    "arp_ignore",
                    1,
                    "every gateway that has the VIP answers when somebody on the link asks for it: one of them, by chance, gets all \
                     of that traffic, whether it announces the VIP or not",
                ),
                (
                    "arp-announce",
                    "arp_announce",
                    2,
                    "this host asks for its neighbours in the name of the VIP, and they note that the VIP is here",
                ),
            ];
            for (id, key, least, why) in wanted {
                if self.effective(&name, key).is_some_and(|v| v < least) {
                    let sysctl = format!("net.ipv4.conf.{name}.{key}");
                    let is = self.host.sysctl(&sysctl).unwrap_or("0").to_owned();
                    self.wants((id, Severity::Fault), &name, (&sysctl, &is, &least.to_string()), why, true);
                }
            }
        }
    }

    fn ipv6_off(&self) -> bool {
        ["all", "lo"].iter().any(|whose| self.is(&format!("net.ipv6.conf.{whose}.disable_ipv6"), "1"))
    }

    fn vips(&mut self) {
        let lo_down = self.host.interfaces.iter().any(|i| i.name == "lo" && !i.up);
        let connected = self.connected();
        for vip in self.all_vips() {
            let prefix = vip.prefix;
            for (interface, network) in connected.iter().filter(|(_, n)| n.contains(prefix.address())) {
                let why = "hosts on that link take the VIP for a neighbour and ask for it there instead of sending to the router: the \
                           routes announced for it do not matter to them";
                let mend = "take a VIP outside the networks of your links";
                let what = format!("{prefix} lies inside {network}, the network of {interface}");
                self.found(("vip-in-transit", Severity::Fault), &vip.on, what, why, mend);
            }
            if !vip.announced || !prefix.is_host() {
                continue;
            }
            let mut there = false;
            for interface in &self.host.interfaces {
                let Some(owned) = interface.addresses.iter().find(|o| o.address == prefix.address()) else {
                    continue;
                };
                there = true;
                let name = &interface.name;
                let mend = format!(
                    "ip addr add {prefix} dev lo; ip addr del {}/{} dev {name}",
                    owned.address, owned.len
                );
                if owned.failed {
                    let why = "the kernel does not use the address: another host on the link has it, as it should be with a VIP, and \
                               duplicate detection takes that for a mistake; on `lo` there is none";
                    let what = format!("{prefix} on {name} failed duplicate detection, or has not passed it");
                    self.found(("vip-duplicate", Severity::Fault), &vip.on, what, why, mend);
                } else if !interface.inward {
                    let why = "this host answers for the VIP on the link, announced or not, and the address goes with the cable: on \
                               `lo` it does neither";
                    let what = format!("{prefix} is on {name}, which leads to others");
                    self.found(("vip-on-nic", Severity::Warning), &vip.on, what, why, mend);
                }
            }
            // What took it off is told by itself.
            let told = lo_down || prefix.afi() == Afi::Ipv6 && self.ipv6_off();
            if vip.needed && !there && !told {
                let why =
                    "the VIP stays withdrawn while its address is not on this host (`require_local_address`)";
                let mend =
                    format!("ip addr add {prefix} dev lo, or `address: {{ manage: true, interface: lo }}`");
                self.found(
                    ("vip-absent", Severity::Fault),
                    &vip.on,
                    format!("{prefix} is on no interface"),
                    why,
                    mend,
                );
            }
        }
        if self.announces() && lo_down {
            let why = "addresses on lo do not answer, and checks of 127.0.0.1 fail";
            self.found(("lo-down", Severity::Fault), "lo", "lo is down", why, "ip link set lo up");
        }
    }

    fn links(&mut self) {
        let mtus: BTreeSet<u32> = self.outward().map(|i| i.mtu).collect();
        if self.listens() && mtus.len() > 1 {
            let list: Vec<_> = self.outward().map(|i| format!("{} {}", i.name, i.mtu)).collect();
            let why = "a packet that fits one link and not the next is answered by ICMP, which the hash may give to another member than \
                       the one that sent it: large transfers hang, small ones work";
            let mend = "ip link set IFACE mtu N, the same on all; or clamp the MSS of TCP to the least";
            let what = format!("the MTUs of the interfaces differ: {}", list.join(", "));
            self.found(("mtu", Severity::Warning), "host", what, why, mend);
        }
        // The answers of a gateway behind a translation must pass the translator. Where it is cannot be seen from here, so a default
        // route by way of no neighbour is only told where there is no other choice than a neighbour.
        let peers: BTreeSet<IpAddr> = self.plan.bgp.peers.values().map(|p| p.address).collect();
        let (first, connected) = (self.host.gateways.first().copied(), self.connected());
        if let Some(gateway) = first.filter(|g| self.announces() && !self.listens() && !peers.contains(g)) {
            let beside = |p: &&IpAddr| connected.iter().any(|(_, n)| n.contains(**p) && n.contains(gateway));
            if let Some(peer) = peers.iter().find(beside) {
                let why = "answers leave by another way than requests come: nothing works where that neighbour translates addresses \
                           (`public`), and strict filters on the way drop the answers";
                let what = format!(
                    "the default route goes by {gateway}, which is no neighbour, while {peer} is on the same network"
                );
                self.found(
                    ("way-back", Severity::Warning),
                    "host",
                    what,
                    why,
                    format!("ip route replace default via {peer}"),
                );
            }
        }
    }

    /// What keeps packets for a listener's VIP from its route.
    fn ways_to_vips(&mut self) {
        let Some(listener) = &self.plan.listener else { return };
        let families: BTreeSet<Afi> = listener.vips.values().map(|vip| vip.prefix.afi()).collect();
        for afi in families.intersection(&self.host.unread) {
            let (table, six) = (listener.table, if *afi == Afi::Ipv6 { "-6 " } else { "" });
            let what = format!("no rule leads to table {table}, which the routes to VIPs are in");
            let why =
                "the kernel looks for routes where rules lead: packets for the VIPs go another way, or none";
            let mend = format!(
                "ip {six}rule add lookup {table}, with what it is meant for; or take listener.table away"
            );
            self.found(("unread-table", Severity::Fault), "listener", what, why, mend);
        }
        for (name, vip) in &listener.vips {
            let (on, prefix) = (format!("listener vip {name}"), vip.prefix);
            let here = |wanted: IpAddr| {
                self.host.interfaces.iter().find(|i| i.addresses.iter().any(|o| o.address == wanted))
            };
            if let Some(interface) = here(prefix.address()).filter(|_| prefix.is_host()) {
                let why = "this host answers for the VIP itself, and no member gets anything";
                let (what, interface) =
                    (format!("{prefix} is an address of this host, on {}", interface.name), &interface.name);
                self.found(
                    ("vip-here", Severity::Fault),
                    &on,
                    what,
                    why,
                    format!("ip addr del {prefix} dev {interface}"),
                );
            }
            let shadows = |r: &&Rival| r.prefix != prefix || r.metric < METRIC;
            if let Some(rival) =
                self.host.rivals.iter().find(|r| prefix.contains(r.prefix.address()) && shadows(r))
            {
                let why =
                    "the kernel prefers it: packets for the VIP go there, while everything else looks right";
                let what = format!("another route leads to {}, with metric {}", rival.prefix, rival.metric);
                let mend =
                    format!("see `ip route show table {} {}` and remove it", listener.table, rival.prefix);
                self.found(("shadowed", Severity::Fault), &on, what, why, mend);
            }
            let Some(public) = vip.public.as_ref().filter(|p| here(p.address).is_none()) else { continue };
            if let Some((interface, network)) =
                self.connected().iter().find(|(_, n)| n.contains(public.address))
            {
                let why = "hosts on that link, the router among them, ask for the address there, and nobody answers";
                let what = format!(
                    "{} lies inside {network}, the network of {interface}, and on no interface",
                    public.address
                );
                let mend = format!(
                    "ip addr add {} dev {interface}, or have the router route it to this host",
                    Prefix::host(public.address)
                );
                self.found(("public-nowhere", Severity::Fault), &on, what, why, mend);
            }
        }
        for chain in &self.host.drops {
            let why = "what no rule of it accepts is dropped on its way to the members, without a word; programs that run containers \
                       make such chains";
            let what = format!("the nftables chain `{chain}` drops what is forwarded");
            let mend = "accept the VIPs there, for example `ip daddr VIP accept` and `ip saddr VIP accept`";
            self.found(("forward-drop", Severity::Warning), "host", what, why, mend);
        }
        for interface in self.host.interfaces.iter().filter(|i| !i.up && !i.inward) {
            let networks: Vec<Prefix> =
                interface.addresses.iter().filter_map(|o| network(o.address, o.len)).collect();
            let range = listener.accept.iter().find(|a| networks.iter().any(|n| n.overlaps(&a.range)));
            if let Some(range) = range {
                let why = "no member of that range can come, and routes over it are gone";
                let what = format!("the interface of range {} is down", range.name);
                let mend = format!("ip link set {} up", interface.name);
                self.found(("link-down", Severity::Fault), &interface.name, what, why, mend);
            }
        }
    }

    fn rights(&mut self) {
        let lacks = |bit: u32| self.host.capabilities & (1 << bit) == 0;
        let plan = self.plan;
        let mut missing = Vec::new();
        let keys = plan.listener.iter().flat_map(|l| &l.accept).any(|a| a.password.is_some());
        let wanted = [
            (self.listens(), "the routes of the listener"),
            (plan.vips.values().any(|v| v.manage.is_some()), "managed addresses"),
            (keys || plan.bgp.peers.values().any(|p| p.password.is_some()), "TCP MD5 keys"),
            (plan.checks.values().any(|c| c.via.mark.is_some()), "marks of checks"),
        ];
        let wanted: Vec<_> = wanted.iter().filter_map(|(is, what)| is.then_some(*what)).collect();
        if lacks(ADMIN) && !wanted.is_empty() {
            missing.push(("CAP_NET_ADMIN", wanted.join(", ")));
        }
        let first = self
            .host
            .sysctl("net.ipv4.ip_unprivileged_port_start")
            .and_then(|v| v.parse().ok())
            .unwrap_or(1024);
        if let Some(low) = plan.bgp.listen.iter().find(|a| lacks(BIND) && a.port() < first) {
            missing.push(("CAP_NET_BIND_SERVICE", format!("listening on {low}")));
        }
        let pings = plan.checks.values().any(|c| matches!(c.probe, Probe::Ping(_)));
        if pings && lacks(RAW) && !self.may_ping() {
            missing.push((
                "CAP_NET_RAW",
                "checks of type ping (net.ipv4.ping_group_range leaves this group out)".into(),
            ));
        }
        for (capability, what) in missing {
            let why = "it is refused when it is needed, which may be much later (a daemon under another user has other rights)";
            let mend = format!(
                "AmbientCapabilities={capability} in the unit, or `setcap {}=ep` on the program",
                capability.to_lowercase()
            );
            self.found(
                ("rights", Severity::Fault),
                "host",
                format!("this user lacks {capability}: {what}"),
                why,
                mend,
            );
        }
    }

    fn may_ping(&self) -> bool {
        let range = self.host.sysctl("net.ipv4.ping_group_range").unwrap_or_default();
        let ends: Vec<u32> = range.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        matches!(ends.as_slice(), [low, high] if self.host.groups.iter().any(|g| (low..=high).contains(&g)))
    }

    fn ports(&mut self, api: SocketAddr) {
        // What answers as the daemon is the daemon.
        if self.status.is_some() {
            return;
        }
        let wanted: Vec<_> =
            self.plan.bgp.listen.iter().map(|a| ("BGP", *a)).chain([("the API", api)]).collect();
        for (what, address) in wanted {
            let taken = self.host.holders.iter().find(|h| {
                let all = h.address.is_unspecified() || address.ip().is_unspecified();
                let same = h.address == address.ip() || all && h.address.is_ipv4() == address.is_ipv4();
                h.port == address.port() && same
            });
            let Some(taken) = taken else { continue };
            let (who, mend) = match &taken.process {
                Some((name, id)) => (
                    format!("{name} (process {id})"),
                    format!("stop {name}, or give one of the two another port or address"),
                ),
                None => {
                    ("another process".to_owned(), format!("see who: ss -ltnp sport = :{}", address.port()))
                }
            };
            let why = "standfast cannot listen there";
            let what = format!("{who} listens on {address}, where {what} is to be");
            self.found(("port-taken", Severity::Fault), &format!("port {}", address.port()), what, why, mend);
        }
    }

    fn limits(&mut self) {
        let members: usize = self.plan.listener.iter().flat_map(|l| &l.accept).map(|a| a.max_members).sum();
        // For each one that is open and one that closes, and some for the rest.
        let needed = 2 * (self.plan.checks.len() + self.plan.bgp.peers.len() + members) as u64 + 64;
        if let Some(files) = self.host.files.filter(|&f| f < needed) {
            let why = "when many are busy at once, checks end without a result and members are refused";
            let mend = format!("LimitNOFILE={} in the unit, or `ulimit -n`", needed.next_power_of_two());
            let what = format!("{files} open files are allowed, and up to {needed} may be needed");
            self.found(("files", Severity::Warning), "host", what, why, mend);
        }
        let number = |name: &str| self.host.sysctl(name).and_then(|v| v.parse::<u64>().ok());
        let name = "net.netfilter.nf_conntrack_max";
        if let (Some(count), Some(max)) = (number("net.netfilter.nf_conntrack_count"), number(name))
            && max > 0
            && count >= max / 10 * 8
        {
            let why = "when the table is full new connections are dropped, while old ones work";
            let mend = format!("sysctl -w {name}={}", max.saturating_mul(2));
            self.found(
                ("conntrack", Severity::Warning),
                "host",
                format!("{count} of {max} tracked connections are taken"),
                why,
                mend,
            );
        }
        let public = self.plan.listener.iter().flat_map(|l| l.vips.values()).any(|v| v.public.is_some());
        if public && !self.host.nft {
            let why = "public addresses are translated by nftables, and without the program nothing is";
            self.found(
                ("nft", Severity::Fault),
                "host",
                "the program nft is not there",
                why,
                "apt-get install nftables",
            );
        } else if self.plan.listener.as_ref().is_some_and(|l| l.drain_mark.is_some()) && !self.host.nft {
            let why = "without it a member that drains still gets the new connections that fall into one of its buckets, and with \
                       other than resilient hashing it is taken out at once, with its connections";
            let mend = "apt-get install nftables, or `drain_mark: 0` in the listener section to go without";
            self.found(("nft", Severity::Warning), "host", "the program nft is not there", why, mend);
        }
    }

    fn clock(&mut self) {
        let judged = self.plan.checks.iter().find(|(_, c)| has_tls(&c.probe));
        if let (Some((id, _)), Some(false)) = (judged, self.host.clock) {
            let why =
                "certificates are judged by this clock: a wrong one fails every TLS check of a site at once";
            let what = format!("the clock is not synchronised, and check {id} asks for a certificate");
            self.found(("clock", Severity::Warning), "host", what, why, "run chrony or systemd-timesyncd");
        }
    }

    fn peers(&mut self) {
        for (what, why) in self.status.and_then(|s| s["kernel_pending"].as_object()).into_iter().flatten() {
            let told = format!("it is not as it should be: {}", why.as_str().unwrap_or_default());
            let why = "the daemon wants it, the kernel refuses it, and it is tried again each second";
            self.found(("pending", Severity::Fault), what, told, why, "do what the reason says");
        }
        let rows = self.status.and_then(|s| s["peers"].as_array()).into_iter().flatten();
        for peer in rows.filter(|p| p["session_state"] == "established") {
            let on = format!("peer {}", peer["name"].as_str().unwrap_or_default());
            if peer["graceful_restart"] == true && self.announces() {
                let why = "when this host dies the peer goes on sending to it until the restart time is over, two minutes as a rule";
                let mend = "`graceful_restart: false` here, or switch off the peer's helper for this session";
                self.found(
                    ("graceful-restart", Severity::Warning),
                    &on,
                    "it keeps our routes for a restart",
                    why,
                    mend,
                );
            }
            let bfd = peer["bfd"]["state"] == "up";
            match peer["hold_time"].as_u64().filter(|_| !bfd) {
                Some(0) => {
                    let why = "when this host or the cable dies, nobody ever notices";
                    let mend = "`hold_time: 9s` on both sides, or BFD";
                    self.found(
                        ("hold-time", Severity::Fault),
                        &on,
                        "a hold time of 0 was agreed to",
                        why,
                        mend,
                    );
                }
                Some(hold) if hold > LONG_HOLD => {
                    let why = "a dead host or a cut cable attracts traffic for so long";
                    let mend = "`hold_time: 9s` on either side (the lower one counts), or BFD";
                    self.found(
                        ("hold-time", Severity::Warning),
                        &on,
                        format!("a hold time of {hold} s was agreed to"),
                        why,
                        mend,
                    );
                }
                _ => {}
            }
        }
        // One hop of reach over a gateway in between: it never comes up, and says only that it cannot connect.
        let connected = self.connected();
        let plan = self.plan;
        for peer in plan.bgp.peers.values() {
            let internal =
                matches!(peer.asn, PeerAsn::Internal) || peer.asn == PeerAsn::Number(plan.router.asn);
            let near = connected.iter().any(|(_, n)| n.contains(peer.address))
                || self.host.on_link.iter().any(|n| n.contains(peer.address));
            let here = peer.address.is_loopback() || is_link_local(peer.address);
            if peer.ttl != Ttl::Direct || internal || near || here {
                continue;
            }
            let why = "packets of eBGP may travel one hop unless told otherwise: they never arrive, and both sides see nothing";
            let what = format!("{} is on no network of this host, and enable_multihop is off", peer.address);
            self.found(
                ("multihop", Severity::Fault),
                &format!("peer {}", peer.name),
                what,
                why,
                "`enable_multihop: true` on both sides",
            );
        }
    }
}

/// Whether a VIP of this family is to be spread alike by several listeners.
fn consistent(listener: &Listener, afi: Afi) -> bool {
    listener.vips.values().any(|v| v.prefix.afi() == afi && matches!(v.hashing, Hashing::Consistent { .. }))
}

/// A number as the kernel prints it, or an operator with a hexadecimal habit.
fn bits(text: &str) -> u32 {
    let hex = text.strip_prefix("0x").map(|hex| u32::from_str_radix(hex, 16));
    hex.unwrap_or_else(|| text.parse()).unwrap_or(0)
}

/// The name of an interface as sysctl(8) has it.
fn sysctl_name(interface: &str) -> String {
    interface.replace('.', "/")
}

/// The network of an address.
fn network(address: IpAddr, len: u8) -> Option<Prefix> {
    let bits = match address {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(len.min(32))).unwrap_or(0);
            IpAddr::from((u32::from(a) & mask).to_be_bytes())
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(len.min(128))).unwrap_or(0);
            IpAddr::from((u128::from(a) & mask).to_be_bytes())
        }
    };
    Prefix::new(bits, len).ok()
}

const fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(a) if a.is_unicast_link_local())
}

fn has_tls(probe: &Probe) -> bool {
    match probe {
        Probe::Http(http) => http.tls.is_some(),
        Probe::Tcp(tcp) => tcp.tls.is_some(),
        Probe::Grpc(grpc) => grpc.tls.is_some(),
        Probe::Dns(dns) => matches!(dns.transport, DnsTransport::Tls(_)),
        Probe::Exec(_)
        | Probe::Process(_)
        | Probe::Ping(_)
        | Probe::Udp(_)
        | Probe::Members(_)
        | Probe::External => false,
    }
}
