//! Our policy routing rules: packets with a mark look in a table of their own before they look anywhere else but in `local`.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::RouteProtocol;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use standfast_core::prefix::Afi;
use std::collections::BTreeSet;
use std::io;

use super::batch::Batch;
use super::route::family;
use super::{Netlink, PROTOCOL, named, number};

/// The place of our rules among those of the host: after `local`, and before those that others use to have.
pub const PRIORITY: u32 = 185;

/// A rule of ours: of the packets of a family, those with `mark` in the bits of `mask` look in `table` first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// The family of the packets.
    pub afi: Afi,
    /// The mark.
    pub mark: u32,
    /// The bits of it that count.
    pub mask: u32,
    /// The table.
    pub table: u32,
}

impl Netlink {
    /// Our rules. A kernel without rules has none.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub fn rules(&mut self) -> io::Result<BTreeSet<Rule>> {
        let mut rules = BTreeSet::new();
        for afi in [Afi::Ipv4, Afi::Ipv6] {
            let mut ask = RuleMessage::default();
            ask.header.family = family(afi);
            let of = |message| match message {
                RouteNetlinkMessage::NewRule(rule) => row(&rule, afi),
                _ => None,
            };
            match self.dump_of(&RouteNetlinkMessage::GetRule(ask), of) {
                Err(e) if matches!(number(&e), Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP)) => {}
                all => rules.extend(all.map_err(|e| named(&e, "read the routing rules"))?),
            }
        }
        Ok(rules)
    }
}

impl Batch {
    /// Asks for a rule; one that is there is refused with EEXIST.
    pub(crate) fn set_rule(&mut self, rule: &Rule) {
        self.push(RouteNetlinkMessage::NewRule(message(rule)), NLM_F_CREATE | NLM_F_EXCL);
    }

    /// Asks for a rule to be removed; one that is not there is refused with ENOENT.
    pub(crate) fn remove_rule(&mut self, rule: &Rule) {
        self.push(RouteNetlinkMessage::DelRule(message(rule)), 0);
    }
}

fn message(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = family(rule.afi);
    message.header.action = RuleAction::ToTable;
    message.attributes.extend([
        RuleAttribute::Priority(PRIORITY),
        RuleAttribute::FwMark(rule.mark),
        RuleAttribute::FwMask(rule.mask),
        RuleAttribute::Table(rule.table),
        RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
    ]);
    message
}

/// Reads a rule, whatever is in it.
pub(super) fn fuzz(message: &RuleMessage) {
    let _ = row(message, Afi::Ipv4);
}

/// Reads a rule, if it is one of ours.
fn row(message: &RuleMessage, afi: Afi) -> Option<Rule> {
    let mut rule = Rule { afi, mark: 0, mask: u32::MAX, table: message.header.table.into() };
    let (mut ours, mut here) = (false, false);
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(priority) => here = *priority == PRIORITY,
            RuleAttribute::Protocol(protocol) => ours = u8::from(*protocol) == PROTOCOL,
            RuleAttribute::FwMark(mark) => rule.mark = *mark,
            RuleAttribute::FwMask(mask) => rule.mask = *mask,
            RuleAttribute::Table(table) => rule.table = *table,
            _ => {}
        }
    }
    (ours && here && message.header.action == RuleAction::ToTable).then_some(rule)
}
