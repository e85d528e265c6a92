//! Links: cables between namespaces, the addresses of their ends, switching on, and the way out. For networks that we made
//! ourselves: nothing of it carries our protocol number.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{Netlink, interface_index, named};
use crate::netns::Namespace;

impl Netlink {
    /// Lays a cable: `here` in this namespace, `there` in the other.
    ///
    /// # Errors
    /// A name is taken, the kernel has no veth, or the right (CAP_NET_ADMIN) is missing in either namespace.
    pub fn add_cable(&mut self, here: &str, other: &Namespace, there: &str) -> io::Result<()> {
        let mut peer = LinkMessage::default();
        peer.attributes.push(LinkAttribute::IfName(there.to_owned()));
        peer.attributes.push(LinkAttribute::NetNsFd(other.as_raw_fd()));
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(here.to_owned()));
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        self.request(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
            .map_err(|e| named(&e, &format!("lay a cable (veth) from {here} to {there}")))
    }

    /// Gives an interface the address of our end of a cable, and the one of the other end.
    ///
    /// # Errors
    /// There is no such interface, the addresses are of two families, or the right (CAP_NET_ADMIN) is missing.
    pub fn add_ends(&mut self, interface: &str, ours: IpAddr, theirs: IpAddr) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = if ours.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        message.header.prefix_len = if ours.is_ipv4() { 32 } else { 128 };
        message.header.scope = AddressScope::Universe;
        message.header.index = interface_index(interface)?;
        message.attributes.push(AddressAttribute::Local(ours));
        message.attributes.push(AddressAttribute::Address(theirs));
        self.request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
            .map_err(|e| named(&e, &format!("add {ours} to {interface}")))
    }

    /// Switches an interface on.
    ///
    /// # Errors
    /// There is no such interface, or the right (CAP_NET_ADMIN) is missing.
    pub fn switch_on(&mut self, interface: &str) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = interface_index(interface)?;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.request(RouteNetlinkMessage::SetLink(message), 0)
            .map_err(|e| named(&e, &format!("switch on {interface}")))
    }

    /// Sends what has no other way to `gateway`.
    ///
    /// # Errors
    /// The gateway is not on a connected network, or the right (CAP_NET_ADMIN) is missing.
    pub fn add_default_route(&mut self, gateway: IpAddr) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: if gateway.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 },
            table: RouteHeader::RT_TABLE_MAIN,
            protocol: RouteProtocol::Static,
            scope: RouteScope::Universe,
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        };
        message.attributes.push(RouteAttribute::Gateway(gateway.into()));
        self.request(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
            .map_err(|e| named(&e, &format!("route everything via {gateway}")))
    }
}
