//! Our routes of one routing table: a prefix over one or several next hops, which must be on a link of this host, or over a next
//! hop object.

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use standfast_core::listen::Hop;
use standfast_core::prefix::{Afi, Prefix};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use super::batch::Batch;
use super::{METRIC, Netlink, PROTOCOL, named, number};

const RTA_VIA: u16 = 18;
const RTA_NH_ID: u16 = 30;

/// Where the packets of a route go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Via {
    /// Over these next hops, each with its weight, 1..=256.
    Hops(BTreeMap<Hop, u16>),
    /// Over the next hop object with this number, a group as a rule.
    Object(u32),
}

impl Via {
    /// Equal shares.
    pub fn equal(hops: impl IntoIterator<Item = IpAddr>) -> Self {
        Self::Hops(hops.into_iter().map(|a| (a.into(), 1)).collect())
    }
}

impl Netlink {
    /// The addresses that our routes in `table` lead to, those of next hop objects among them. Those on a link that is down are
    /// there, too: the kernel passes over them and takes them back by itself.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub fn routes(&mut self, table: u32) -> io::Result<BTreeMap<Prefix, BTreeSet<IpAddr>>> {
        let mut routes: BTreeMap<Prefix, BTreeSet<IpAddr>> = BTreeMap::new();
        self.rows_of(table, |row| {
            routes.entry(row.prefix).or_default().extend(row.hops.keys().map(|h| h.address));
        })?;
        Ok(routes)
    }

    /// Our routes in `table`, as they were written.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub fn ways(&mut self, table: u32) -> io::Result<BTreeMap<Prefix, Via>> {
        let mut routes: BTreeMap<Prefix, Via> = BTreeMap::new();
        self.rows_of(table, |row| match (row.object, routes.get_mut(&row.prefix)) {
            (Some(id), _) => _ = routes.insert(row.prefix, Via::Object(id)),
            // The kernel may tell the next hops of an IPv6 route one by one.
            (None, Some(Via::Hops(hops))) => hops.extend(row.hops),
            (None, _) => _ = routes.insert(row.prefix, Via::Hops(row.hops)),
        })?;
        Ok(routes)
    }

    fn rows_of(&mut self, table: u32, mut take: impl FnMut(Row)) -> io::Result<()> {
        for afi in [Afi::Ipv4, Afi::Ipv6] {
            let of = |message| match message {
                RouteNetlinkMessage::NewRoute(route) => row(&route, afi, table),
                _ => None,
            };
            let all = match self.dump_of(&RouteNetlinkMessage::GetRoute(ours(afi, table)), of) {
                // A table exists from its first route on, and IPv6 may be missing.
                Err(e)
                    if matches!(number(&e), Some(libc::ENOENT | libc::EAFNOSUPPORT | libc::EOPNOTSUPP)) =>
                {
                    continue;
                }
                all => all.map_err(|e| named(&e, "read the routes"))?,
            };
            all.into_iter().for_each(&mut take);
        }
        Ok(())
    }

    /// Routes `prefix` `via` something, replacing in one step what we had there; over no next hop removes it.
    ///
    /// # Errors
    /// A next hop is not on a connected network, or the right (CAP_NET_ADMIN) is missing; what we had stays.
    pub fn set_route(&mut self, table: u32, prefix: &Prefix, via: &Via) -> io::Result<()> {
        let mut batch = Batch::default();
        batch.set_route(table, prefix, via).map_err(|e| self::name(&e, prefix, via))?;
        self.perform(batch)?.into_values().next().map_or(Ok(()), |e| match via {
            Via::Hops(hops) if hops.is_empty() => gone(Err(e), prefix),
            via => Err(self::name(&e, prefix, via)),
        })
    }

    /// The interface behind which a next hop is, if it is on a connected network now.
    ///
    /// # Errors
    /// It is not, or the kernel did not answer.
    pub(crate) fn interface_of(&mut self, next_hop: IpAddr) -> io::Result<u32> {
        let host = Prefix::host(next_hop);
        let mut message = RouteMessage::default();
        message.header.address_family = family(host.afi());
        message.header.destination_prefix_length = host.len();
        message.attributes.push(RouteAttribute::Destination(next_hop.into()));
        self.send(RouteNetlinkMessage::GetRoute(message), NLM_F_REQUEST | NLM_F_ACK)?;
        let mut interface = None;
        let answer = self.receive(|m| {
            if let RouteNetlinkMessage::NewRoute(route) = m
                && route.header.kind == RouteType::Unicast
                && !route.attributes.iter().any(|a| self::next_hop(a).is_some())
            {
                interface = route.attributes.iter().find_map(|a| match a {
                    RouteAttribute::Oif(index) => Some(*index),
                    _ => None,
                });
            }
        });
        match answer {
            Err(e) if number(&e).is_none() => Err(e),
            _ => interface.ok_or_else(|| {
                let why = format!("the next hop {next_hop} is on no network of this host");
                io::Error::new(io::ErrorKind::NetworkUnreachable, why)
            }),
        }
    }

    /// Removes our route to `prefix`; one that is not there is fine.
    ///
    /// # Errors
    /// The right (CAP_NET_ADMIN) is missing.
    pub fn remove_route(&mut self, table: u32, prefix: &Prefix) -> io::Result<()> {
        let mut batch = Batch::default();
        batch.remove_route(table, prefix);
        gone(self.perform(batch)?.into_values().next().map_or(Ok(()), Err), prefix)
    }
}

impl Batch {
    /// Asks for a route, in place of what we had there; over no next hop for its removal.
    pub(crate) fn set_route(&mut self, table: u32, prefix: &Prefix, via: &Via) -> io::Result<()> {
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        let hops = match via {
            Via::Object(id) => {
                self.begin_route(libc::RTM_NEWROUTE, flags, (table, prefix));
                self.attribute(RTA_NH_ID, &id.to_ne_bytes());
                return Ok(());
            }
            Via::Hops(hops) => hops,
        };
        if let Some(why) = hops.keys().find_map(|hop| unfit(prefix.afi(), hop)) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        match hops.len() {
            0 => self.remove_route(table, prefix),
            1 => {
                self.begin_route(libc::RTM_NEWROUTE, flags, (table, prefix));
                for hop in hops.keys() {
                    self.gateway(prefix.afi(), hop);
                    if hop.scope != 0 {
                        self.attribute(libc::RTA_OIF, &hop.scope.to_ne_bytes());
                    }
                }
            }
            _ => {
                self.begin_route(libc::RTM_NEWROUTE, flags, (table, prefix));
                self.nested(libc::RTA_MULTIPATH, |batch| {
                    for (hop, weight) in hops {
                        let weight = (*weight).clamp(1, 256).wrapping_sub(1) as u8;
                        batch.leg(weight, hop.scope, |batch| batch.gateway(prefix.afi(), hop));
                    }
                });
            }
        }
        Ok(())
    }

    /// Asks for our route to `prefix` to be removed.
    pub(crate) fn remove_route(&mut self, table: u32, prefix: &Prefix) {
        self.begin_route(libc::RTM_DELROUTE, 0, (table, prefix));
    }

    /// Begins a request with what names one of our routes; one for a removal, of any scope and kind.
    fn begin_route(&mut self, request: u16, flags: u16, (table, prefix): (u32, &Prefix)) {
        let (scope, kind) = match request {
            libc::RTM_DELROUTE => (libc::RT_SCOPE_NOWHERE, libc::RTN_UNSPEC),
            _ => (libc::RT_SCOPE_UNIVERSE, libc::RTN_UNICAST),
        };
        let family = u8::from(family(prefix.afi()));
        self.begin(request, flags, &[family, prefix.len(), 0, 0, 0, PROTOCOL, scope, kind, 0, 0, 0, 0]);
        match prefix.address() {
            IpAddr::V4(a) => self.attribute(libc::RTA_DST, &a.octets()),
            IpAddr::V6(a) => self.attribute(libc::RTA_DST, &a.octets()),
        }
        self.attribute(libc::RTA_PRIORITY, &METRIC.to_ne_bytes());
        self.attribute(libc::RTA_TABLE, &table.to_ne_bytes());
    }

    /// A next hop's address; one of IPv6 for an IPv4 prefix (RFC 8950) goes into RTA_VIA.
    fn gateway(&mut self, afi: Afi, hop: &Hop) {
        match (afi, hop.address) {
            (_, IpAddr::V4(a)) => self.attribute(libc::RTA_GATEWAY, &a.octets()),
            (Afi::Ipv6, IpAddr::V6(a)) => self.attribute(libc::RTA_GATEWAY, &a.octets()),
            (Afi::Ipv4, IpAddr::V6(a)) => {
                let mut via = [0; 18];
                via[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                via[2..].copy_from_slice(&a.octets());
                self.attribute(RTA_VIA, &via);
            }
        }
    }
}

/// What became of a removal: what is not there is fine.
pub(crate) fn gone(result: io::Result<()>, prefix: &Prefix) -> io::Result<()> {
    match result {
        Err(e) if matches!(number(&e), Some(libc::ESRCH | libc::ENOENT)) => Ok(()),
        result => result.map_err(|e| named(&e, &format!("remove the route to {prefix}"))),
    }
}

/// Names the route that was refused.
pub(crate) fn name(e: &io::Error, prefix: &Prefix, via: &Via) -> io::Error {
    let over = match via {
        Via::Object(id) => format!("next hop object {id}"),
        Via::Hops(hops) => hops.keys().map(Hop::to_string).collect::<Vec<_>>().join(", "),
    };
    named(e, &format!("route {prefix} via {over}"))
}

pub(super) const fn family(afi: Afi) -> AddressFamily {
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

/// Why packets of a family cannot go over a next hop, wherever it is.
pub(crate) fn unfit(afi: Afi, hop: &Hop) -> Option<String> {
    match (afi, hop.address) {
        (_, IpAddr::V6(a)) if a.is_unicast_link_local() && hop.scope == 0 => {
            Some(format!("the next hop {a} is link-local and does not say on which interface"))
        }
        (Afi::Ipv6, IpAddr::V4(a)) => Some(format!("IPv6 does not go over the IPv4 next hop {a}")),
        _ => None,
    }
}

/// Reads a route, whatever is in it.
pub(super) fn fuzz(message: &RouteMessage) {
    for afi in [Afi::Ipv4, Afi::Ipv6] {
        let _ = row(message, afi, message.header.table.into());
    }
}

/// A route of ours, as the kernel tells it. It tells the next hops of an object, too.
struct Row {
    prefix: Prefix,
    hops: BTreeMap<Hop, u16>,
    object: Option<u32>,
}

/// Reads a route, if it is one of ours in `table`.
fn row(message: &RouteMessage, afi: Afi, table: u32) -> Option<Row> {
    let mut its_table = u32::from(message.header.table);
    let mut destination = match afi {
        Afi::Ipv4 => IpAddr::from([0; 4]),
        Afi::Ipv6 => IpAddr::from([0; 16]),
    };
    let (mut hops, mut one, mut interface, mut object) = (BTreeMap::new(), None, 0, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(t) => its_table = *t,
            RouteAttribute::Destination(a) => destination = ip(a)?,
            RouteAttribute::NhId(id) => object = Some(*id),
            RouteAttribute::Oif(index) => interface = *index,
            RouteAttribute::MultiPath(legs) => {
                for leg in legs {
                    let address = leg.attributes.iter().find_map(next_hop);
                    let hop = address.map(|a| on(a, leg.interface_index));
                    hops.extend(hop.map(|h| (h, u16::from(leg.hops) + 1)));
                }
            }
            other => one = one.or(next_hop(other)),
        }
    }
    hops.extend(one.map(|a| (on(a, interface), 1)));
    let ours = its_table == table && u8::from(message.header.protocol) == PROTOCOL;
    let prefix = Prefix::new(destination, message.header.destination_prefix_length).ok()?;
    ours.then_some(Row { prefix, hops, object })
}

/// The interface matters to a link-local address alone.
pub(crate) fn on(address: IpAddr, interface: u32) -> Hop {
    let local = matches!(address, IpAddr::V6(a) if a.is_unicast_link_local());
    Hop { address, scope: if local { interface } else { 0 } }
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
