//! Our routes of one routing table: a prefix over one or several next hops, which must be on a link of this host.

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteNextHop, RouteProtocol, RouteScope,
    RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use standfast_core::prefix::{Afi, Prefix};
use standfast_core::table::Change;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use super::{METRIC, Netlink, PROTOCOL, Table, named, number};

/// Our routes of the routing table with this number; 254 is the main one.
pub struct Routes<'a>(pub &'a mut Netlink, pub u32);

impl Table for Routes<'_> {
    type Key = Prefix;
    type Value = BTreeSet<IpAddr>;

    fn read(&mut self) -> io::Result<BTreeMap<Prefix, BTreeSet<IpAddr>>> {
        self.0.routes(self.1)
    }

    fn write(&mut self, change: &Change<Prefix, BTreeSet<IpAddr>>) -> io::Result<()> {
        match change {
            Change::Set(prefix, next_hops) => {
                let result = self.0.set_route(self.1, prefix, next_hops);
                if result.is_err() {
                    self.make_do(prefix, next_hops);
                }
                result
            }
            Change::Remove(prefix) => self.0.remove_route(self.1, prefix),
        }
    }
}

impl Routes<'_> {
    /// The kernel refuses a whole route for one next hop that it cannot reach: routes over the others until that is mended,
    /// and leaves no way to a member that is not wanted any more.
    fn make_do(&mut self, prefix: &Prefix, next_hops: &BTreeSet<IpAddr>) {
        let mut reached =
            |a: &IpAddr| leg(prefix.afi(), *a).is_ok() && self.0.is_on_link(*a).unwrap_or(false);
        let usable: BTreeSet<IpAddr> = next_hops.iter().copied().filter(|a| reached(a)).collect();
        // Writing what is there already would be heard as another change.
        let Ok(there) = self.read() else { return };
        if there.get(prefix) != Some(&usable).filter(|u| !u.is_empty()) {
            // If this is refused too, the refusal that is reported already says what is wrong.
            let _ = self.0.set_route(self.1, prefix, &usable);
        }
    }
}

impl Netlink {
    /// Our routes in `table`, with their next hops. Those on a link that is down are among them: the kernel passes over them
    /// and takes them back by itself.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub fn routes(&mut self, table: u32) -> io::Result<BTreeMap<Prefix, BTreeSet<IpAddr>>> {
        let mut routes: BTreeMap<Prefix, BTreeSet<IpAddr>> = BTreeMap::new();
        for afi in [Afi::Ipv4, Afi::Ipv6] {
            let all = match self.dump(&RouteNetlinkMessage::GetRoute(ours(afi, table))) {
                // A table exists from its first route on, and IPv6 may be missing.
                Err(e)
                    if matches!(number(&e), Some(libc::ENOENT | libc::EAFNOSUPPORT | libc::EOPNOTSUPP)) =>
                {
                    continue;
                }
                all => all.map_err(|e| named(&e, "read the routes"))?,
            };
            for message in all {
                let RouteNetlinkMessage::NewRoute(message) = message else { continue };
                if let Some((prefix, next_hops)) = row(&message, afi, table) {
                    routes.entry(prefix).or_default().extend(next_hops);
                }
            }
        }
        Ok(routes)
    }

    /// Routes `prefix` over `next_hops`, replacing in one step what we had there; over none removes it.
    ///
    /// # Errors
    /// A next hop is not on a connected network, or the right (CAP_NET_ADMIN) is missing; what we had stays.
    pub fn set_route(&mut self, table: u32, prefix: &Prefix, next_hops: &BTreeSet<IpAddr>) -> io::Result<()> {
        let name = |e: &io::Error| {
            let list: Vec<_> = next_hops.iter().map(IpAddr::to_string).collect();
            named(e, &format!("route {prefix} via {}", list.join(", ")))
        };
        let mut message = addressed(prefix, table);
        message.header.scope = RouteScope::Universe;
        message.header.kind = RouteType::Unicast;
        let legs: io::Result<Vec<_>> = next_hops.iter().map(|hop| leg(prefix.afi(), *hop)).collect();
        let mut legs = legs.map_err(|e| name(&e))?;
        match legs.len() {
            0 => return self.remove_route(table, prefix),
            1 => message.attributes.append(&mut legs),
            _ => message.attributes.push(RouteAttribute::MultiPath(legs.into_iter().map(alone).collect())),
        }
        self.request(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
            .map_err(|e| name(&e))
    }

    /// Whether a next hop is on a connected network now; one that the kernel has no way to is not.
    ///
    /// # Errors
    /// The kernel did not answer.
    fn is_on_link(&mut self, next_hop: IpAddr) -> io::Result<bool> {
        let host = Prefix::host(next_hop);
        let mut message = RouteMessage::default();
        message.header.address_family = family(host.afi());
        message.header.destination_prefix_length = host.len();
        message.attributes.push(RouteAttribute::Destination(next_hop.into()));
        self.send(RouteNetlinkMessage::GetRoute(message), NLM_F_REQUEST | NLM_F_ACK)?;
        let mut on_link = false;
        let answer = self.receive(|m| {
            if let RouteNetlinkMessage::NewRoute(route) = m {
                on_link = route.header.kind == RouteType::Unicast
                    && !route.attributes.iter().any(|a| self::next_hop(a).is_some());
            }
        });
        match answer {
            Err(e) if number(&e).is_some() => Ok(false),
            answer => answer.map(|_| on_link),
        }
    }

    /// Removes our route to `prefix`; one that is not there is fine.
    ///
    /// # Errors
    /// The right (CAP_NET_ADMIN) is missing.
    pub fn remove_route(&mut self, table: u32, prefix: &Prefix) -> io::Result<()> {
        match self.request(RouteNetlinkMessage::DelRoute(addressed(prefix, table)), 0) {
            Err(e) if matches!(number(&e), Some(libc::ESRCH | libc::ENOENT)) => Ok(()),
            result => result.map_err(|e| named(&e, &format!("remove the route to {prefix}"))),
        }
    }
}

const fn family(afi: Afi) -> AddressFamily {
    match afi {
        Afi::Ipv4 => AddressFamily::Inet,
        Afi::Ipv6 => AddressFamily::Inet6,
    }
}

/// What all of our routes of a family and table have in common.
fn ours(afi: Afi, table: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: family(afi),
        protocol: RouteProtocol::Other(PROTOCOL),
        ..RouteHeader::default()
    };
    message.attributes.push(RouteAttribute::Table(table));
    message
}

/// What names one of them: of any scope and kind.
fn addressed(prefix: &Prefix, table: u32) -> RouteMessage {
    let mut message = ours(prefix.afi(), table);
    message.header.destination_prefix_length = prefix.len();
    message.header.scope = RouteScope::NoWhere;
    message.attributes.push(RouteAttribute::Destination(prefix.address().into()));
    message.attributes.push(RouteAttribute::Priority(METRIC));
    message
}

/// A next hop; one of IPv6 for an IPv4 prefix (RFC 8950) goes into RTA_VIA.
fn leg(afi: Afi, hop: IpAddr) -> io::Result<RouteAttribute> {
    let refused = |why| Err(io::Error::new(io::ErrorKind::Unsupported, why));
    match (afi, hop) {
        (_, IpAddr::V6(a)) if a.is_unicast_link_local() => {
            refused(format!("the next hop {a} is link-local and does not say on which interface"))
        }
        (Afi::Ipv6, IpAddr::V4(a)) => refused(format!("IPv6 does not go over the IPv4 next hop {a}")),
        (Afi::Ipv4, IpAddr::V6(a)) => Ok(RouteAttribute::Via(RouteVia::Inet6(a))),
        (_, hop) => Ok(RouteAttribute::Gateway(hop.into())),
    }
}

fn alone(leg: RouteAttribute) -> RouteNextHop {
    let mut hop = RouteNextHop::default();
    hop.attributes.push(leg);
    hop
}

/// Reads a route, whatever is in it.
pub(super) fn fuzz(message: &RouteMessage) {
    for afi in [Afi::Ipv4, Afi::Ipv6] {
        let _ = row(message, afi, message.header.table.into());
    }
}

/// The prefix and next hops of a route, if it is one of ours in `table`.
fn row(message: &RouteMessage, afi: Afi, table: u32) -> Option<(Prefix, Vec<IpAddr>)> {
    let mut its_table = u32::from(message.header.table);
    let mut destination = match afi {
        Afi::Ipv4 => IpAddr::from([0; 4]),
        Afi::Ipv6 => IpAddr::from([0; 16]),
    };
    let mut next_hops = Vec::new();
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(t) => its_table = *t,
            RouteAttribute::Destination(a) => destination = ip(a)?,
            RouteAttribute::MultiPath(legs) => {
                next_hops.extend(legs.iter().flat_map(|l| &l.attributes).filter_map(next_hop));
            }
            other => next_hops.extend(next_hop(other)),
        }
    }
    let ours = its_table == table && u8::from(message.header.protocol) == PROTOCOL;
    let prefix = Prefix::new(destination, message.header.destination_prefix_length).ok()?;
    ours.then_some((prefix, next_hops))
}

fn next_hop(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Gateway(a) => ip(a),
        RouteAttribute::Via(RouteVia::Inet(a)) => Some((*a).into()),
        RouteAttribute::Via(RouteVia::Inet6(a)) => Some((*a).into()),
        _ => None,
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(a) => Some((*a).into()),
        RouteAddress::Inet6(a) => Some((*a).into()),
        _ => None,
    }
}
