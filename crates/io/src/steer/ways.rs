//! Where marked packets go: each member has a number, a table of that number with a route for each VIP that it is in, and a rule that
//! leads its mark there. A member that leaves a VIP loses the route, and what is marked for it goes by the VIP's group again.
//!
//! The numbers are read back from the tables, so that a restart changes none.

use standfast_core::listen::Hop;
use standfast_core::prefix::Prefix;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::rules::Marks;
use crate::netlink::{Batch, Netlink, Rule, Via, number};

/// The numbers of members, and the rules and routes that the kernel holds of ours, as far as is known.
#[derive(Debug)]
pub(super) struct Ways {
    netlink: Netlink,
    marks: Marks,
    numbers: BTreeMap<Hop, u16>,
    held: Held,
}

/// Rules and routes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Held {
    rules: BTreeSet<Rule>,
    routes: BTreeMap<(u32, Prefix), Via>,
}

/// What was asked of the kernel.
enum Asked {
    Rule(Rule, bool),
    Route((u32, Prefix), Option<Via>),
}

impl Ways {
    /// Those that an earlier run left.
    ///
    /// # Errors
    /// The kernel gives no netlink socket, or does not answer.
    pub(super) fn new(marks: Marks) -> io::Result<Self> {
        let mut ways =
            Self { netlink: Netlink::new()?, marks, numbers: BTreeMap::new(), held: Held::default() };
        ways.held = ways.read()?;
        let routes = ways.held.routes.iter();
        let found = routes.filter_map(|((table, _), via)| Some((marks.member(*table)?, via)));
        for (member, via) in found {
            if let (Via::Hops(hops), false) = (via, ways.numbers.values().any(|n| *n == member)) {
                ways.numbers.extend(hops.keys().next().map(|hop| (*hop, member)));
            }
        }
        Ok(ways)
    }

    /// The VIPs that have routes.
    pub(super) fn vips(&self) -> BTreeSet<Prefix> {
        self.held.routes.keys().map(|(_, prefix)| *prefix).collect()
    }

    /// Whether there is anything of ours.
    pub(super) fn is_empty(&self) -> bool {
        self.held == Held::default()
    }

    /// A member's number; `None` if all are taken.
    pub(super) fn number(&mut self, hop: Hop) -> Option<u16> {
        if let Some(&number) = self.numbers.get(&hop) {
            return Some(number);
        }
        let taken: BTreeSet<u16> = self.numbers.values().copied().collect();
        let free = (1..=u16::MAX).find(|n| !taken.contains(n))?;
        self.numbers.insert(hop, free);
        Some(free)
    }

    /// The member of a mark.
    pub(super) fn member(&self, mark: u32) -> Option<Hop> {
        let number = self.marks.member(mark)?;
        self.numbers.iter().find(|(_, n)| **n == number).map(|(hop, _)| *hop)
    }

    /// Forgets the numbers: no connection is moved any more.
    pub(super) fn forget(&mut self) {
        self.numbers.clear();
    }

    /// Has these members, by their numbers, as next hops of these VIPs, and no others.
    ///
    /// # Errors
    /// What was refused first; the rest is done.
    pub(super) fn set(&mut self, wanted: &BTreeMap<(u16, Prefix), Hop>) -> Result<(), String> {
        let mut to_be = Held::default();
        for ((number, prefix), hop) in wanted {
            let mark = self.marks.of(*number);
            to_be.rules.insert(Rule { afi: prefix.afi(), mark, mask: Marks::MASK, table: mark });
            to_be.routes.insert((mark, *prefix), Via::Hops([(*hop, 1)].into()));
        }
        let (mut batch, mut asked) = (Batch::default(), Vec::new());
        let mut first: Option<String> = None;
        for (at, via) in &to_be.routes {
            if self.held.routes.get(at) != Some(via) {
                match batch.set_route(at.0, &at.1, via) {
                    Ok(()) => asked.push(Asked::Route(*at, Some(via.clone()))),
                    Err(e) => _ = first.get_or_insert(format!("route {} in table {}: {e}", at.1, at.0)),
                }
            }
        }
        for rule in to_be.rules.difference(&self.held.rules) {
            batch.set_rule(rule);
            asked.push(Asked::Rule(*rule, true));
        }
        for at in self.held.routes.keys().filter(|at| !to_be.routes.contains_key(at)) {
            batch.remove_route(at.0, &at.1);
            asked.push(Asked::Route(*at, None));
        }
        for rule in self.held.rules.difference(&to_be.rules) {
            batch.remove_rule(rule);
            asked.push(Asked::Rule(*rule, false));
        }
        let refused = self.netlink.perform(batch);
        for (i, asked) in asked.into_iter().enumerate() {
            let refusal = match &refused {
                Ok(refused) => refused.get(&i),
                Err(e) => Some(e),
            };
            let is = |e: &io::Error, numbers: &[i32]| number(e).is_some_and(|n| numbers.contains(&n));
            match (asked, refusal) {
                (Asked::Rule(rule, true), refusal) if refusal.is_none_or(|e| is(e, &[libc::EEXIST])) => {
                    self.held.rules.insert(rule);
                }
                (Asked::Rule(rule, false), refusal) if refusal.is_none_or(|e| is(e, &[libc::ENOENT])) => {
                    self.held.rules.remove(&rule);
                }
                (Asked::Route(at, Some(via)), None) => _ = self.held.routes.insert(at, via),
                (Asked::Route(at, None), refusal)
                    if refusal.is_none_or(|e| is(e, &[libc::ESRCH, libc::ENOENT])) =>
                {
                    self.held.routes.remove(&at);
                }
                (Asked::Route(at, via), Some(e)) => {
                    if via.is_some() {
                        self.held.routes.remove(&at);
                    }
                    first.get_or_insert_with(|| format!("route {} in table {}: {e}", at.1, at.0));
                }
                (Asked::Rule(rule, _), Some(e)) => {
                    first.get_or_insert_with(|| format!("rule for the mark {:#x}: {e}", rule.mark));
                }
                // Those without a refusal are above.
                (_, None) => {}
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Looks at what the kernel holds; whether that is what it held.
    ///
    /// # Errors
    /// It could not be read.
    pub(super) fn check(&mut self) -> io::Result<bool> {
        let held = self.read()?;
        let same = held == self.held;
        self.held = held;
        Ok(same)
    }

    fn read(&mut self) -> io::Result<Held> {
        let mut rules = self.netlink.rules()?;
        // Ours have the number of the mark as their table, which none of the system's tables has.
        rules.retain(|rule| rule.table == rule.mark && rule.table > u32::from(u16::MAX));
        let mut tables: BTreeSet<u32> = rules.iter().map(|rule| rule.table).collect();
        tables.extend(self.held.routes.keys().map(|(table, _)| *table));
        let mut routes = BTreeMap::new();
        for table in tables {
            let there = self.netlink.ways(table)?.into_iter();
            routes.extend(there.map(|(prefix, via)| ((table, prefix), via)));
        }
        Ok(Held { rules, routes })
    }
}
