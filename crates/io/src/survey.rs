//! What this host is like, as far as it decides whether a VIP works: interfaces and their addresses, ways out, sysctls, rights,
//! who holds a port.
//!
//! It only reads, and everything of the network is that of the calling thread's namespace. What it finds is judged elsewhere.
//! What a kernel lacks, or does not let us read, is absent.

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType};
use standfast_core::prefix::{Afi, Prefix};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::netlink::Netlink;

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Whether it is switched on.
    pub up: bool,
    /// Whether it is the host's own, like `lo`, or a dummy: nobody else is on it.
    pub inward: bool,
    /// Its MTU in octets.
    pub mtu: u32,
    /// Its addresses.
    pub addresses: Vec<Owned>,
}

/// An address on an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    /// The address.
    pub address: IpAddr,
    /// The length of its network's prefix.
    pub len: u8,
    /// It is IPv6 and another host answered that it has it (RFC 4862 §5.4), or that is not known yet: it does not work.
    pub failed: bool,
}

/// Who listens on a TCP port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The address; unspecified: all of that family.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// The program's name and process, where they can be seen.
    pub process: Option<(String, u32)>,
}

/// A route that is not ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rival {
    /// Where it leads to.
    pub prefix: Prefix,
    /// Its metric; the lowest of the routes to a prefix counts.
    pub metric: u32,
}

/// What this host is like.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Survey {
    /// Its interfaces.
    pub interfaces: Vec<Interface>,
    /// The gateways of its default routes in the main table.
    pub gateways: Vec<IpAddr>,
    /// How many routes carry our protocol number.
    pub own_routes: usize,
    /// The networks that the main table reaches without a gateway.
    pub on_link: Vec<Prefix>,
    /// The families whose packets no rule leads to the table.
    pub unread: BTreeSet<Afi>,
    /// Routes of others, in the table and to the prefixes that were asked about or into them.
    pub rivals: Vec<Rival>,
    /// Chains of nftables that drop what is forwarded unless a rule accepts it, as `family table chain`.
    pub drops: Vec<String>,
    /// Sysctls below `net`, by their names with dots, such as `net.ipv4.ip_forward`.
    pub sysctls: BTreeMap<String, String>,
    /// The effective capabilities of this process, a bit each (capability.h).
    pub capabilities: u64,
    /// Its groups: the ranges of `ping_group_range` concern them.
    pub groups: Vec<u32>,
    /// The most files this process may open.
    pub files: Option<u64>,
    /// TCP ports that are listened on.
    pub holders: Vec<Holder>,
    /// Whether the kernel believes that its clock is right; absent where it does not say.
    pub clock: Option<bool>,
    /// Whether the program `nft` is there.
    pub nft: bool,
}

/// The sysctls of which a [`Survey`] has the value, where the kernel has them.
const HOST: &[&str] = &[
    "net.ipv4.fib_multipath_hash_policy",
    "net.ipv6.fib_multipath_hash_policy",
    "net.ipv4.fib_multipath_hash_fields",
    "net.ipv6.fib_multipath_hash_fields",
    "net.ipv4.fib_multipath_hash_seed",
    "net.ipv4.ip_forward",
    "net.ipv6.conf.all.forwarding",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.netfilter.nf_conntrack_tcp_be_liberal",
    "net.netfilter.nf_conntrack_count",
    "net.netfilter.nf_conntrack_max",
];
/// The same, of each interface and of `all` and `default`.
const EACH: &[&str] = &[
    "net.ipv4.conf.*.rp_filter",
    "net.ipv4.conf.*.arp_ignore",
    "net.ipv4.conf.*.arp_announce",
    "net.ipv4.conf.*.send_redirects",
    "net.ipv4.conf.*.forwarding",
    "net.ipv6.conf.*.disable_ipv6",
    "net.ipv6.conf.*.forwarding",
];

impl Survey {
    /// Looks around; routes of others are kept if they lie in one of `watched` and in `table`.
    ///
    /// # Errors
    /// The kernel did not tell its interfaces, addresses or routes.
    pub fn take(table: u32, watched: &[Prefix]) -> io::Result<Self> {
        let mut netlink = Netlink::new()?;
        let interfaces = interfaces(&mut netlink)?;
        let mut routes = Routes::default();
        routes.read(&mut netlink, table, watched)?;
        let unread = netlink.unread(table, &BTreeSet::from([Afi::Ipv4, Afi::Ipv6]));
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let line = |key: &str| status.lines().find_map(|l| l.strip_prefix(key)).unwrap_or_default();
        let number = |word: &str| word.parse().ok();
        let groups =
            line("Gid:").split_whitespace().nth(1).into_iter().chain(line("Groups:").split_whitespace());
        Ok(Self {
            sysctls: sysctls(&interfaces),
            interfaces,
            gateways: routes.gateways,
            own_routes: routes.own,
            on_link: routes.on_link,
            rivals: routes.rivals,
            unread,
            drops: drops(),
            capabilities: u64::from_str_radix(line("CapEff:").trim(), 16).unwrap_or(0),
            groups: groups.filter_map(number).collect(),
            files: files(),
            holders: holders(),
            clock: clock(),
            nft: std::env::var_os("PATH")
                .is_some_and(|path| std::env::split_paths(&path).any(|d| d.join("nft").is_file())),
        })
    }

    /// A sysctl, if the kernel has it.
    pub fn sysctl(&self, name: &str) -> Option<&str> {
        self.sysctls.get(name).map(String::as_str)
    }
}

/// Sets a sysctl of the calling thread's network namespace, until the next boot.
///
/// # Errors
/// There is none of that name below `net`, or the right (CAP_NET_ADMIN) is missing.
pub fn set_sysctl(name: &str, value: &str) -> io::Result<()> {
    let path = sysctl_path(name).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{name} is no sysctl of the network"))
    })?;
    fs::write(path, value)
}

/// Where a sysctl is. The name of an interface may hold dots: they stand as slashes, as sysctl(8) has it.
fn sysctl_path(name: &str) -> Option<String> {
    let rest = name.strip_prefix("net.")?;
    let swapped: String = rest
        .chars()
        .map(|c| match c {
            '.' => '/',
            '/' => '.',
            c => c,
        })
        .collect();
    let escapes = swapped.split('/').any(|part| part.is_empty() || part == "." || part == "..");
    (!escapes).then(|| format!("/proc/sys/net/{swapped}"))
}

fn sysctls(interfaces: &[Interface]) -> BTreeMap<String, String> {
    let mut names: Vec<String> = HOST.iter().map(|n| (*n).to_owned()).collect();
    for pattern in EACH {
        let whose = ["all", "default"].into_iter().chain(interfaces.iter().map(|i| i.name.as_str()));
        names.extend(whose.map(|w| pattern.replace('*', &w.replace('.', "/"))));
    }
    let read = |name: String| {
        let value = fs::read_to_string(sysctl_path(&name)?).ok()?;
        Some((name, value.split_whitespace().collect::<Vec<_>>().join(" ")))
    };
    names.into_iter().filter_map(read).collect()
}

fn interfaces(netlink: &mut Netlink) -> io::Result<Vec<Interface>> {
    let mut interfaces = BTreeMap::new();
    for message in netlink.dump(&RouteNetlinkMessage::GetLink(LinkMessage::default()))? {
        let RouteNetlinkMessage::NewLink(message) = message else { continue };
        let flags = message.header.flags;
        let mut interface = Interface {
            name: String::new(),
            up: flags.contains(LinkFlags::Up),
            inward: flags.contains(LinkFlags::Loopback) || flags.contains(LinkFlags::Noarp),
            mtu: 0,
            addresses: Vec::new(),
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => interface.name = name,
                LinkAttribute::Mtu(mtu) => interface.mtu = mtu,
                _ => {}
            }
        }
        interfaces.insert(message.header.index, interface);
    }
    for message in netlink.dump(&RouteNetlinkMessage::GetAddress(AddressMessage::default()))? {
        let RouteNetlinkMessage::NewAddress(message) = message else { continue };
        let Some(interface) = interfaces.get_mut(&message.header.index) else { continue };
        let mut flags = AddressFlags::from_bits_retain(u32::from(message.header.flags.bits()));
        let (mut address, mut own) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Address(a) => address = Some(*a),
                AddressAttribute::Local(a) => own = Some(*a),
                AddressAttribute::Flags(f) => flags = *f,
                _ => {}
            }
        }
        let failed = flags.intersects(AddressFlags::Tentative | AddressFlags::Dadfailed);
        let Some(address) = own.or(address) else { continue };
        interface.addresses.push(Owned { address, len: message.header.prefix_len, failed });
    }
    Ok(interfaces.into_values().collect())
}

/// What the routing tables tell.
#[derive(Default)]
struct Routes {
    gateways: Vec<IpAddr>,
    own: usize,
    on_link: Vec<Prefix>,
    rivals: Vec<Rival>,
}

impl Routes {
    fn read(&mut self, netlink: &mut Netlink, table: u32, watched: &[Prefix]) -> io::Result<()> {
        for message in netlink.dump(&RouteNetlinkMessage::GetRoute(RouteMessage::default()))? {
            if let RouteNetlinkMessage::NewRoute(route) = message {
                self.take(&route, table, watched);
            }
        }
        Ok(())
    }

    fn take(&mut self, route: &RouteMessage, table: u32, watched: &[Prefix]) {
        let ours = u8::from(route.header.protocol) == crate::netlink::PROTOCOL;
        self.own += usize::from(ours);
        if route.header.kind != RouteType::Unicast {
            return;
        }
        let mut its_table = u32::from(route.header.table);
        let (mut destination, mut metric, mut through) = (None, 0, false);
        let mut gateways = Vec::new();
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Table(t) => its_table = *t,
                RouteAttribute::Destination(to) => destination = ip(to),
                RouteAttribute::Priority(p) => metric = *p,
                RouteAttribute::Gateway(gateway) => gateways.extend(ip(gateway)),
                RouteAttribute::MultiPath(legs) => {
                    for attribute in legs.iter().flat_map(|l| &l.attributes) {
                        if let RouteAttribute::Gateway(gateway) = attribute {
                            gateways.extend(ip(gateway));
                        }
                    }
                }
                RouteAttribute::Via(_) => through = true,
                _ => {}
            }
        }
        let main = its_table == u32::from(RouteHeader::RT_TABLE_MAIN);
        let len = route.header.destination_prefix_length;
        let Some(prefix) = destination.and_then(|to| Prefix::new(to, len).ok()) else {
            if main && len == 0 {
                self.gateways.append(&mut gateways);
            }
            return;
        };
        if main && gateways.is_empty() && !through && !ours {
            self.on_link.push(prefix);
        }
        if its_table == table
            && !ours
            && watched.iter().any(|w| w.contains(prefix.address()) && w.len() <= len)
        {
            self.rivals.push(Rival { prefix, metric });
        }
    }
}

/// The chains of nftables that drop what is forwarded, as far as the program tells.
fn drops() -> Vec<String> {
    let asked = std::process::Command::new("nft")
        .args(["list", "chains"])
        .stdin(std::process::Stdio::null())
        .output();
    asked.map(|said| dropping(&String::from_utf8_lossy(&said.stdout))).unwrap_or_default()
}

/// The same, of what `nft list chains` says.
fn dropping(text: &str) -> Vec<String> {
    let (mut table, mut chain, mut found) = ("", "", Vec::new());
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("table ") {
            table = name.trim_end_matches('{').trim();
        } else if let Some(name) = line.strip_prefix("chain ") {
            chain = name.trim_end_matches('{').trim();
        } else if line.contains("hook forward") && line.contains("policy drop") {
            found.push(format!("{table} {chain}"));
        }
    }
    found
}

const fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(a) => Some(IpAddr::V4(*a)),
        RouteAddress::Inet6(a) => Some(IpAddr::V6(*a)),
        _ => None,
    }
}

fn files() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|l| l.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Who listens on TCP: the sockets of this namespace, and the processes that we may look into.
fn holders() -> Vec<Holder> {
    let mut holders = Vec::new();
    for file in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
        holders.extend(text.lines().skip(1).filter_map(listening));
    }
    let wanted: BTreeMap<u64, usize> =
        holders.iter().enumerate().map(|(i, (_, inode))| (*inode, i)).collect();
    let mut found: Vec<Holder> = holders.iter().map(|(holder, _)| holder.clone()).collect();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(id) = process.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        for link in fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            let Ok(target) = fs::read_link(link.path()) else { continue };
            let inode =
                target.to_str().and_then(|t| t.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            let Some(&at) = inode.and_then(|i: u64| wanted.get(&i)) else { continue };
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            // A holder out of `wanted` is within `found`.
            if let Some(holder) = found.get_mut(at) {
                holder.process.get_or_insert((name.trim().to_owned(), id));
            }
        }
    }
    found
}

/// A line of /proc/net/tcp, if that socket listens; and its inode.
fn listening(line: &str) -> Option<(Holder, u64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    // The state LISTEN.
    if *words.get(3)? != "0A" {
        return None;
    }
    let (address, port) = words.get(1)?.split_once(':')?;
    let holder =
        Holder { address: hex_address(address)?, port: u16::from_str_radix(port, 16).ok()?, process: None };
    Some((holder, words.get(9)?.parse().ok()?))
}

/// An address as /proc/net writes it: words of the host's byte order in hex.
fn hex_address(text: &str) -> Option<IpAddr> {
    let word = |i: usize| u32::from_str_radix(text.get(8 * i..8 * i + 8)?, 16).ok().map(u32::to_ne_bytes);
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let mut octets = [0; 16];
            octets.iter_mut().zip(words.iter().flatten()).for_each(|(to, from)| *to = *from);
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

/// Whether the kernel's clock is kept right by somebody.
#[expect(unsafe_code, reason = "std does not ask the kernel")]
fn clock() -> Option<bool> {
    // SAFETY: `timex` is a plain structure of numbers, of which all zeros is a valid value: it asks and sets nothing.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: it points to a `timex` of ours for the length of the call.
    let state = unsafe { libc::adjtimex(&raw mut timex) };
    (state >= 0).then_some(state != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;

    #[test]
    fn names_of_sysctls_lead_below_net_and_nowhere_else() {
        let path = |name| sysctl_path(name);
        assert_eq!(path("net.ipv4.ip_forward").as_deref(), Some("/proc/sys/net/ipv4/ip_forward"));
        assert_eq!(
            path("net.ipv4.conf.eth0/100.rp_filter").as_deref(),
            Some("/proc/sys/net/ipv4/conf/eth0.100/rp_filter")
        );
        for wrong in ["kernel.panic", "net.", "net.ipv4..x", "net.//.//.kernel.panic", "net"] {
            assert_eq!(path(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_line_of_the_kernel_tells_who_listens() {
        let v4 = "   0: 0100007F:00B3 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100";
        let (holder, inode) = listening(v4).unwrap();
        assert_eq!((holder.address.to_string().as_str(), holder.port, inode), ("127.0.0.1", 179, 4711));
        let v6 = "   1: B80D0120000000000000000001000000:00B3 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 9 1";
        assert_eq!(listening(v6).unwrap().0.address.to_string(), "2001:db8::1");
        assert!(listening(&v4.replace(" 0A ", " 01 ")).is_none(), "established");
        for wrong in ["", "x", "0: 0100007F 0 0A", "0: 01:00B3 0 0A 0 0 0 0 0 x"] {
            assert!(listening(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_chain_that_drops_is_named() {
        let text = "table ip filter {\n\tchain INPUT {\n\t\ttype filter hook input priority filter; policy drop;\n\t}\n\
            \tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy drop;\n\t}\n}\ntable inet mine {\n\
            \tchain f {\n\t\ttype filter hook forward priority 0; policy accept;\n\t}\n}\n";
        assert_eq!(dropping(text), ["ip filter FORWARD"]);
    }

    #[test]
    fn a_survey_sees_what_was_made() {
        let (here, there) = match (Namespace::new(), Namespace::new()) {
            (Ok(here), Ok(there)) => (here, there),
            (Err(e), _) | (_, Err(e)) => return eprintln!("SKIP a_survey_sees_what_was_made: {e}"),
        };
        let inside = || {
            let mut netlink = Netlink::new()?;
            netlink.switch_on("lo")?;
            netlink.add_cable("out", &there, "in")?;
            netlink.add_ends("out", [192, 0, 2, 1].into(), [192, 0, 2, 2].into())?;
            netlink.switch_on("out")?;
            netlink.add_default_route([192, 0, 2, 2].into())?;
            set_sysctl("net.ipv4.conf.out.rp_filter", "2")?;
            let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
            let vip = "198.51.100.0/24".parse().unwrap();
            Ok((Survey::take(254, &[vip])?, taken.local_addr()?))
        };
        let (survey, taken) = here.within(inside).unwrap();
        let out = survey.interfaces.iter().find(|i| i.name == "out").unwrap();
        assert!(out.up && !out.inward && out.mtu == 1500, "{out:?}");
        assert!(out.addresses.iter().any(|a| a.address == IpAddr::from([192, 0, 2, 1]) && a.len == 32));
        assert!(survey.interfaces.iter().any(|i| i.name == "lo" && i.inward));
        assert_eq!(survey.on_link, ["192.0.2.2/32".parse().unwrap()]);
        assert_eq!(survey.gateways, [IpAddr::from([192, 0, 2, 2])]);
        assert_eq!(survey.sysctl("net.ipv4.conf.out.rp_filter"), Some("2"));
        assert!(survey.sysctl("net.ipv4.conf.default.rp_filter").is_some());
        let holder = survey.holders.iter().find(|h| h.port == taken.port()).unwrap();
        assert_eq!(holder.process.as_ref().unwrap().1, std::process::id());
    }
}
