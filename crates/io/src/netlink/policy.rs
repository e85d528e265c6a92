//! Which routing tables policy rules lead to. Ours are read by nobody if none does.

use netlink_packet_route::rule::{RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use standfast_core::prefix::Afi;
use std::collections::BTreeSet;
use std::io;

use super::{Netlink, named};

/// The kernel's own tables: local, main and default, to which its own rules lead.
const KNOWN: [u32; 3] = [255, 254, 253];

impl Netlink {
    /// The tables that rules of a family lead to; `None`: also those of every VRF.
    ///
    /// # Errors
    /// The kernel has no policy rules, or does not answer.
    pub fn looked_up(&mut self, family: Afi) -> io::Result<Option<BTreeSet<u32>>> {
        let mut ask = RuleMessage::default();
        ask.header.family = match family {
            Afi::Ipv4 => AddressFamily::Inet,
            Afi::Ipv6 => AddressFamily::Inet6,
        };
        let table = |message| {
            let RouteNetlinkMessage::NewRule(rule) = message else { return None };
            let long = rule
                .attributes
                .iter()
                .find_map(|a| if let RuleAttribute::Table(t) = a { Some(*t) } else { None });
            let vrf = rule.attributes.contains(&RuleAttribute::L3MDev(true));
            Some((!vrf).then(|| long.unwrap_or_else(|| rule.header.table.into())))
        };
        let tables = self.dump_of(&RouteNetlinkMessage::GetRule(ask), table);
        Ok(tables.map_err(|e| named(&e, "read the policy rules"))?.into_iter().collect())
    }

    /// The families of `used` whose rules do not lead to `table`, so that nothing looks for a route there.
    pub(crate) fn unread(&mut self, table: u32, used: &BTreeSet<Afi>) -> BTreeSet<Afi> {
        if KNOWN.contains(&table) {
            return BTreeSet::new();
        }
        // A kernel that does not tell is not accused.
        let mut unread = BTreeSet::new();
        for afi in used {
            if self.looked_up(*afi).is_ok_and(|tables| tables.is_some_and(|t| !t.contains(&table))) {
                unread.insert(*afi);
            }
        }
        unread
    }
}
