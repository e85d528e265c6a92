//! The kernel's addresses and routes over rtnetlink: synchronous requests, and a monitor that says when to read again.
//!
//! Routes of ours carry protocol number [`PROTOCOL`]; addresses of ours carry it too. Nothing else is ever changed.

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressProtocol, AddressScope,
};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteNextHop, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use standfast_core::node::LocalAddress;
use standfast_core::prefix::{Afi, Prefix};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};

use crate::tcp::plain;

mod link;

/// The protocol number of our routes and addresses, in the range that iproute2 leaves to users (`ip route show proto 185`).
pub const PROTOCOL: u8 = 185;

/// Longest answer of a single read: the kernel sends dumps in pieces of at most 32 KiB.
const BUFFER: usize = 64 * 1024;

/// A socket for requests.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Opens the socket.
    ///
    /// # Errors
    /// The kernel gives no netlink socket.
    pub fn new() -> io::Result<Self> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok(socket)
        };
        let socket = open().map_err(|e: io::Error| named(&e, "open a netlink socket"))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// The addresses of this host that can be used: an IPv6 address that is tentative or failed duplicate detection is not there.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub fn addresses(&mut self) -> io::Result<BTreeSet<LocalAddress>> {
        let messages = self.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
        let mut names = BTreeMap::new();
        let mut addresses = BTreeSet::new();
        for message in messages {
            let RouteNetlinkMessage::NewAddress(message) = message else { continue };
            let Some((address, flags)) = address_of(&message) else { continue };
            if flags.intersects(AddressFlags::Tentative | AddressFlags::Dadfailed) {
                continue;
            }
            let index = message.header.index;
            let name = names.entry(index).or_insert_with(|| interface_name(index));
            // An interface that went between the two questions takes its addresses with it.
            if let Some(interface) = name.clone() {
                addresses.insert(LocalAddress { address, interface });
            }
        }
        Ok(addresses)
    }

    /// Puts a host address on an interface; whether it was there before, not put there by us.
    ///
    /// # Errors
    /// The interface does not exist, or the right (CAP_NET_ADMIN) is missing.
    pub fn add_address(&mut self, address: &LocalAddress) -> io::Result<bool> {
        let name = |e: &io::Error| named(e, &format!("add {} to {}", address.address, address.interface));
        let message = address_message(address).map_err(|e| name(&e))?;
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        match self.request(RouteNetlinkMessage::NewAddress(message), flags) {
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                self.own_addresses().map(|own| !own.contains(address)).map_err(|e| name(&e))
            }
            Err(e) => Err(name(&e)),
            Ok(()) => Ok(false),
        }
    }

    /// The addresses that carry our protocol number: put there by us, in this run or an earlier one.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub fn own_addresses(&mut self) -> io::Result<BTreeSet<LocalAddress>> {
        let ours = AddressAttribute::Protocol(AddressProtocol::Other(PROTOCOL));
        let messages = self.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
        let own = messages.iter().filter_map(|m| match m {
            RouteNetlinkMessage::NewAddress(m) if m.attributes.contains(&ours) => {
                Some(LocalAddress { address: address_of(m)?.0, interface: interface_name(m.header.index)? })
            }
            _ => None,
        });
        Ok(own.collect())
    }

    /// Takes a host address off an interface; one that is not there is fine.
    ///
    /// # Errors
    /// The right (CAP_NET_ADMIN) is missing.
    pub fn remove_address(&mut self, address: &LocalAddress) -> io::Result<()> {
        let name =
            |e: &io::Error| named(e, &format!("remove {} from {}", address.address, address.interface));
        let message = address_message(address).map_err(|e| name(&e))?;
        match self.request(RouteNetlinkMessage::DelAddress(message), 0) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::ENODEV)) => Ok(()),
            result => result.map_err(|e| name(&e)),
        }
    }

    /// Our routes in `table`, with their gateways; next hops on links that are gone are not among them.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub fn routes(&mut self, table: u32) -> io::Result<BTreeMap<Prefix, BTreeSet<IpAddr>>> {
        let mut routes: BTreeMap<Prefix, BTreeSet<IpAddr>> = BTreeMap::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            for message in self.dump(RouteNetlinkMessage::GetRoute(message))? {
                let RouteNetlinkMessage::NewRoute(message) = message else { continue };
                if message.header.protocol != RouteProtocol::Other(PROTOCOL) || table_of(&message) != table {
                    continue;
                }
                if let Some((prefix, gateways)) = route_of(&message) {
                    routes.entry(prefix).or_default().extend(gateways);
                }
            }
        }
        Ok(routes)
    }

    /// Routes `prefix` over `next_hops`, replacing in one step what is there.
    ///
    /// # Errors
    /// A next hop is not on a connected network, or the right (CAP_NET_ADMIN) is missing.
    pub fn set_route(&mut self, table: u32, prefix: &Prefix, next_hops: &BTreeSet<IpAddr>) -> io::Result<()> {
        let mut message = route_message(table, prefix);
        let gateway = |a: &IpAddr| match (prefix.afi(), a) {
            (Afi::Ipv4, IpAddr::V6(_)) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{prefix} has the IPv6 next hop {a}, which this listener does not route"),
            )),
            _ => Ok(RouteAttribute::Gateway((*a).into())),
        };
        match next_hops.iter().collect::<Vec<_>>()[..] {
            [] => return self.remove_route(table, prefix),
            [one] => message.attributes.push(gateway(one)?),
            ref many => {
                let leg = |a: &&IpAddr| {
                    let mut hop = RouteNextHop::default();
                    hop.attributes.push(gateway(a)?);
                    Ok(hop)
                };
                let legs: io::Result<Vec<_>> = many.iter().map(leg).collect();
                message.attributes.push(RouteAttribute::MultiPath(legs?));
            }
        }
        self.request(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
            .map_err(|e| named(&e, &format!("route {prefix} via {}", list(next_hops))))
    }

    /// Removes our route to `prefix`; one that is not there is fine.
    ///
    /// # Errors
    /// The right (CAP_NET_ADMIN) is missing.
    pub fn remove_route(&mut self, table: u32, prefix: &Prefix) -> io::Result<()> {
        match self.request(RouteNetlinkMessage::DelRoute(route_message(table, prefix)), 0) {
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            result => result.map_err(|e| named(&e, &format!("remove the route to {prefix}"))),
        }
    }

    /// Sends one request and waits for its acknowledgement.
    pub(crate) fn request(&mut self, payload: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.send(payload, NLM_F_REQUEST | NLM_F_ACK | flags)?;
        self.receive(|_| {})
    }

    fn dump(&mut self, payload: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.send(payload, NLM_F_REQUEST | NLM_F_DUMP)?;
        let mut messages = Vec::new();
        self.receive(|m| messages.push(m))?;
        Ok(messages)
    }

    fn send(&mut self, payload: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(payload);
        message.header.flags = flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut buffer = vec![0; message.buffer_len()];
        message.serialize(&mut buffer);
        self.socket.send(&buffer, 0).map(drop)
    }

    /// Reads until the end of the answer to the last request.
    fn receive(&mut self, mut take: impl FnMut(RouteNetlinkMessage)) -> io::Result<()> {
        let mut buffer = Vec::with_capacity(BUFFER);
        loop {
            buffer.clear();
            self.socket.recv(&mut buffer, 0)?;
            let mut rest = &buffer[..];
            while !rest.is_empty() {
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest);
                let length =
                    rest.get(..4).map_or(0, |l| u32::from_ne_bytes([l[0], l[1], l[2], l[3]]) as usize);
                let Some(next) = rest.get(length.next_multiple_of(4).max(16)..).or(Some(&[])) else { break };
                rest = next;
                // A message that this library cannot read is not one that we asked for.
                let Ok(message) = message else { continue };
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(inner) => take(inner),
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(e) => {
                        return match e.code {
                            None => Ok(()),
                            Some(_) => Err(e.to_io()),
                        };
                    }
                    _ => {}
                }
            }
        }
    }
}

/// A socket that hears of every change of links, addresses and routes.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
}

impl Monitor {
    /// Opens it.
    ///
    /// # Errors
    /// The kernel gives no netlink socket.
    pub fn new() -> io::Result<Self> {
        let groups = libc::RTMGRP_LINK
            | libc::RTMGRP_IPV4_IFADDR
            | libc::RTMGRP_IPV6_IFADDR
            | libc::RTMGRP_IPV4_ROUTE
            | libc::RTMGRP_IPV6_ROUTE;
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind(&SocketAddr::new(0, groups as u32))?;
            socket.set_non_blocking(true)?;
            Ok(socket)
        };
        open().map(|socket| Self { socket }).map_err(|e: io::Error| named(&e, "watch netlink"))
    }

    /// The descriptor that becomes readable.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Empties the socket; whether anything was heard, or missed (an overrun is as good a reason to read the tables).
    pub fn read(&mut self) -> bool {
        let mut buffer = Vec::with_capacity(BUFFER);
        let mut heard = false;
        loop {
            buffer.clear();
            match self.socket.recv(&mut buffer, 0) {
                Ok(_) => heard = true,
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => heard = true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return heard,
            }
        }
    }
}

fn address_of(message: &AddressMessage) -> Option<(IpAddr, AddressFlags)> {
    let mut address = None;
    let mut local = None;
    let mut flags = AddressFlags::from_bits_retain(u32::from(message.header.flags.bits()));
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Address(a) => address = Some(*a),
            AddressAttribute::Local(a) => local = Some(*a),
            AddressAttribute::Flags(f) => flags = *f,
            _ => {}
        }
    }
    // On a point-to-point link IFA_ADDRESS is the other end.
    Some((local.or(address)?, flags))
}

fn address_message(address: &LocalAddress) -> io::Result<AddressMessage> {
    let mut message = AddressMessage::default();
    message.header.index = interface_index(&address.interface)?;
    message.header.prefix_len = Afi::of(address.address).bits();
    message.header.scope = AddressScope::Universe;
    let ip = address.address;
    message.attributes.push(AddressAttribute::Local(ip));
    message.attributes.push(AddressAttribute::Address(ip));
    match ip {
        IpAddr::V4(_) => message.header.family = AddressFamily::Inet,
        IpAddr::V6(_) => {
            message.header.family = AddressFamily::Inet6;
            // The same VIP is on many hosts on purpose: duplicate detection would take it for a mistake.
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
    }
    message.attributes.push(AddressAttribute::Protocol(AddressProtocol::Other(PROTOCOL)));
    Ok(message)
}

fn route_message(table: u32, prefix: &Prefix) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: match prefix.afi() {
            Afi::Ipv4 => AddressFamily::Inet,
            Afi::Ipv6 => AddressFamily::Inet6,
        },
        destination_prefix_length: prefix.len(),
        table: u8::try_from(table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC),
        protocol: RouteProtocol::Other(PROTOCOL),
        scope: RouteScope::Universe,
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    message.attributes.push(RouteAttribute::Destination(prefix.address().into()));
    message.attributes.push(RouteAttribute::Table(table));
    message
}

fn table_of(message: &RouteMessage) -> u32 {
    let long = message.attributes.iter().find_map(|a| match a {
        RouteAttribute::Table(t) => Some(*t),
        _ => None,
    });
    long.unwrap_or(u32::from(message.header.table))
}

fn route_of(message: &RouteMessage) -> Option<(Prefix, Vec<IpAddr>)> {
    use netlink_packet_route::route::{RouteAddress, RouteNextHopFlags};
    let ip = |a: &RouteAddress| match a {
        RouteAddress::Inet(a) => Some(IpAddr::V4(*a)),
        RouteAddress::Inet6(a) => Some(IpAddr::V6(*a)),
        _ => None,
    };
    let mut destination = match message.header.address_family {
        AddressFamily::Inet => IpAddr::from([0; 4]),
        _ => IpAddr::from([0; 16]),
    };
    let mut gateways = Vec::new();
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(a) => destination = ip(a)?,
            RouteAttribute::Gateway(a) => gateways.extend(ip(a)),
            RouteAttribute::MultiPath(legs) => {
                for leg in legs.iter().filter(|l| !l.flags.contains(RouteNextHopFlags::Dead)) {
                    let gateway = |a: &RouteAttribute| match a {
                        RouteAttribute::Gateway(a) => ip(a),
                        _ => None,
                    };
                    gateways.extend(leg.attributes.iter().filter_map(gateway));
                }
            }
            _ => {}
        }
    }
    Some((Prefix::new(destination, message.header.destination_prefix_length).ok()?, gateways))
}

pub(crate) fn interface_index(name: &str) -> io::Result<u32> {
    let text = CString::new(name)?;
    // SAFETY: `text` is a NUL-terminated string that lives over the call.
    match unsafe { libc::if_nametoindex(text.as_ptr()) } {
        0 => Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no interface {name}"))),
        index => Ok(index),
    }
}

fn interface_name(index: u32) -> Option<String> {
    let mut buffer = [0 as libc::c_char; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the IF_NAMESIZE octets that the call may write.
    let name = unsafe { libc::if_indextoname(index, buffer.as_mut_ptr()) };
    if name.is_null() {
        return None;
    }
    // SAFETY: on success the buffer holds a NUL-terminated string.
    unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_str().ok().map(str::to_owned)
}

fn list(addresses: &BTreeSet<IpAddr>) -> String {
    addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}

fn named(e: &io::Error, what: &str) -> io::Error {
    let advice = match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => " (it needs CAP_NET_ADMIN)",
        _ => "",
    };
    io::Error::new(e.kind(), format!("cannot {what}: {}{advice}", plain(e)))
}
