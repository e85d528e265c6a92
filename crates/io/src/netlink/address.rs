//! Addresses on interfaces: which this host can use, and putting VIPs on and taking them off.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressProtocol, AddressScope,
};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use standfast_core::listen::Links;
use standfast_core::node::LocalAddress;
use standfast_core::prefix::{Afi, Prefix, PrefixError};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use super::{Netlink, PROTOCOL, named, number};

impl Netlink {
    /// The addresses of this host that can be used: an IPv6 address that is tentative or failed duplicate detection is not there,
    /// nor is any of an interface that is down.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub fn addresses(&mut self) -> io::Result<BTreeSet<LocalAddress>> {
        let rows = self.rows()?;
        Ok(rows.into_iter().filter(|r| r.usable).map(|r| r.local).collect())
    }

    /// The interfaces that are up, with this host's addresses there and the networks that those are in.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub fn linked(&mut self) -> io::Result<Links> {
        let mut links = Links::new();
        for (index, link) in self.links()?.into_iter().filter(|(_, link)| link.up) {
            links.insert(index, standfast_core::listen::Link { name: link.name, ..Default::default() });
        }
        for row in self.rows()?.into_iter().filter(|row| row.usable) {
            if let Some(link) = links.get_mut(&row.index) {
                link.addresses.insert(row.local.address);
                link.networks.extend(row.network);
            }
        }
        Ok(links)
    }

    /// The addresses that carry our protocol number: put there by us, in this run or an earlier one.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub fn own_addresses(&mut self) -> io::Result<BTreeSet<LocalAddress>> {
        let rows = self.rows()?;
        Ok(rows.into_iter().filter(|r| r.ours).map(|r| r.local).collect())
    }

    /// Puts a host address on an interface; whether it was there before, not put there by us.
    ///
    /// # Errors
    /// The interface does not exist, or the right (CAP_NET_ADMIN) is missing.
    pub fn add_address(&mut self, address: &LocalAddress) -> io::Result<bool> {
        let name = |e: &io::Error| named(e, &format!("add {} to {}", address.address, address.interface));
        let message = self.address_message(address).map_err(|e| name(&e))?;
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        match self.request(RouteNetlinkMessage::NewAddress(message), flags) {
            Err(e) if number(&e) == Some(libc::EEXIST) => {
                self.own_addresses().map(|own| !own.contains(address)).map_err(|e| name(&e))
            }
            Err(e) => Err(name(&e)),
            Ok(()) => Ok(false),
        }
    }

    /// Takes a host address of ours off an interface; one that is not there is fine, and one that carries no mark of ours where
    /// the kernel keeps marks (since Linux 5.18) stays.
    ///
    /// # Errors
    /// The right (CAP_NET_ADMIN) is missing.
    pub fn remove_address(&mut self, address: &LocalAddress) -> io::Result<()> {
        let name =
            |e: &io::Error| named(e, &format!("remove {} from {}", address.address, address.interface));
        let rows = self.rows().map_err(|e| name(&e))?;
        // The kernel marks its own ones, such as ::1: with any mark there, one without was put there by somebody else.
        let marks = rows.iter().any(|r| r.marked);
        if marks && !rows.iter().any(|r| r.ours && &r.local == address) {
            return Ok(());
        }
        let message = match self.address_message(address) {
            // An interface that is gone took the address along.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            message => message.map_err(|e| name(&e))?,
        };
        match self.request(RouteNetlinkMessage::DelAddress(message), 0) {
            Err(e) if matches!(number(&e), Some(libc::EADDRNOTAVAIL | libc::ENODEV)) => Ok(()),
            result => result.map_err(|e| name(&e)),
        }
    }

    /// Every address, with what matters about it.
    fn rows(&mut self) -> io::Result<Vec<Row>> {
        let links = self.links()?;
        let ask = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let all = self.dump(&ask).map_err(|e| named(&e, "read the addresses"))?;
        let rows = all.into_iter().filter_map(|m| {
            let RouteNetlinkMessage::NewAddress(m) = m else { return None };
            // An interface that went between the two questions takes its addresses with it.
            links.get(&m.header.index).and_then(|link| row(&m, link))
        });
        Ok(rows.collect())
    }

    /// A host address with our mark.
    fn address_message(&mut self, address: &LocalAddress) -> io::Result<AddressMessage> {
        let mut message = AddressMessage::default();
        message.header.index = self.index(&address.interface)?;
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

    /// The number of an interface of the socket's own namespace.
    fn index(&mut self, name: &str) -> io::Result<u32> {
        let links = self.links()?;
        let index = links.iter().find(|(_, link)| link.name == name).map(|(index, _)| *index);
        index.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no interface {name}")))
    }

    /// Every interface by its number.
    fn links(&mut self) -> io::Result<BTreeMap<u32, Link>> {
        let ask = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let all = self.dump(&ask).map_err(|e| named(&e, "read the interfaces"))?;
        let links = all.into_iter().filter_map(|m| {
            let RouteNetlinkMessage::NewLink(m) = m else { return None };
            let name = m.attributes.iter().find_map(|a| match a {
                LinkAttribute::IfName(name) => Some(name.clone()),
                _ => None,
            })?;
            Some((m.header.index, Link { name, up: m.header.flags.contains(LinkFlags::Up) }))
        });
        Ok(links.collect())
    }
}

struct Link {
    name: String,
    up: bool,
}

struct Row {
    local: LocalAddress,
    /// The interface's number.
    index: u32,
    /// What can be reached on that interface without a router, because of this address.
    network: Option<Prefix>,
    usable: bool,
    /// Whether it says who put it there.
    marked: bool,
    /// Whether it says that we did.
    ours: bool,
}

/// Reads an address, whatever is in it.
pub(super) fn fuzz(message: &AddressMessage) {
    let _ = row(message, &Link { name: "lo".into(), up: true });
}

fn row(message: &AddressMessage, link: &Link) -> Option<Row> {
    let (mut address, mut own, mut mark) = (None, None, None);
    let mut flags = AddressFlags::from_bits_retain(u32::from(message.header.flags.bits()));
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Address(a) => address = Some(*a),
            AddressAttribute::Local(a) => own = Some(*a),
            AddressAttribute::Flags(f) => flags = *f,
            AddressAttribute::Protocol(p) => mark = Some(u8::from(*p)),
            _ => {}
        }
    }
    let usable = link.up && !flags.intersects(AddressFlags::Tentative | AddressFlags::Dadfailed);
    // On a point-to-point link IFA_ADDRESS is the other end.
    let local = LocalAddress { address: own.or(address)?, interface: link.name.clone() };
    let network = address.and_then(|a| match Prefix::new(a, message.header.prefix_len) {
        Ok(network) | Err(PrefixError::HostBits(network)) => Some(network),
        Err(_) => None,
    });
    let index = message.header.index;
    Some(Row { local, index, network, usable, marked: mark.is_some(), ours: mark == Some(PROTOCOL) })
}
