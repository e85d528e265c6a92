//! The floor: a failing health signal may not take the last announcers of a VIP away. They stay, pessimised.
//!
//! It needs to see who else announces: a peer that reflects its members ([`crate::reflect`]) tells it. Not seeing others is
//! no reason to leave, and none to come back. Whoever fails is pessimised at once, and leaves once what it saw has let it for
//! the settle time without a break: by then others that fail at the same moment have been seen. Of those that must stay the
//! lowest BGP identifiers do, so that all agree without asking each other.
//!
//! A stop, a drain and an address that is missing do not ask the floor; a process that is dead asks nobody.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use super::{AnnounceOutput, Announcer, VipState, Watching};
use crate::machine::Time;
use crate::plan;
use crate::prefix::Prefix;
use crate::reflect::View;

/// Why a VIP that fails is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// It leaves soon, if what it sees lets it for so long.
    Settling(Duration),
    /// Too few others can serve: so many, and the floor is so many.
    Needed {
        /// Others whose checks hold.
        sound: usize,
        /// The floor.
        members: u16,
    },
    /// It sees nobody else: no peer tells it.
    Blind,
}

impl fmt::Display for Stay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settling(d) => write!(f, "leaves within {} s, as others serve", d.as_secs_f64()),
            Self::Needed { sound, members } => {
                write!(f, "held by the floor: {sound} others can serve, and {members} must stay")
            }
            Self::Blind => f.write_str("held by the floor: no peer tells who else announces it"),
        }
    }
}

/// What is seen of others, and by whom: by prefix and peer.
#[derive(Debug, Default)]
pub(super) struct Views(BTreeMap<Prefix, BTreeMap<String, View>>);

/// Who this is among the announcers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity {
    pub(super) asn: u32,
    pub(super) router_id: Ipv4Addr,
}

impl Default for Identity {
    fn default() -> Self {
        Self { asn: 0, router_id: Ipv4Addr::UNSPECIFIED }
    }
}

impl Views {
    /// Takes what a peer tells of a prefix; whether that is news.
    pub(super) fn saw(&mut self, peer: String, prefix: Prefix, view: Option<View>) -> bool {
        match view {
            Some(view) => self.0.entry(prefix).or_default().insert(peer, view.clone()) != Some(view),
            None => self.0.get_mut(&prefix).is_some_and(|views| views.remove(&peer).is_some()),
        }
    }

    /// The session of a peer ended: it tells nothing any more. The prefixes that it told of.
    pub(super) fn lost(&mut self, peer: &str) -> Vec<Prefix> {
        let told = self.0.iter_mut().filter_map(|(p, views)| views.remove(peer).map(|_| *p));
        told.collect()
    }

    /// Why a VIP may not leave; `None`: it may. Each peer that tells anything must let it go.
    fn stay(&self, plan: &plan::Vip, floor: plan::Floor, me: Ipv4Addr, state: VipState) -> Option<Stay> {
        let mut views =
            plan.prefixes.iter().filter_map(|p| self.0.get(p)).flat_map(BTreeMap::values).peekable();
        if views.peek().is_none() {
            // Who left before stays away.
            return (state != VipState::Withdrawn).then_some(Stay::Blind);
        }
        views.find_map(|view| {
            let others = || view.iter().filter(|(id, _)| **id != me);
            let sound = others().filter(|(_, sound)| **sound).count();
            let lack = usize::from(floor.members).saturating_sub(sound);
            // One that has left comes back only if too few stay; one that stays goes if enough stay who come before it.
            let before = |id: &Ipv4Addr| state == VipState::Withdrawn || *id < me;
            let stay = others().filter(|(id, sound)| !**sound && before(id)).count();
            (stay < lack).then_some(Stay::Needed { sound, members: floor.members })
        })
    }
}

impl Announcer {
    /// Says who this is among the announcers of a VIP with a floor: without it, whoever comes before all others.
    pub fn identify(&mut self, asn: u32, router_id: Ipv4Addr) {
        self.identity = Identity { asn, router_id };
    }

    /// Others announce what a VIP announces: decides it anew.
    pub(super) fn saw(&mut self, now: Time, prefix: &Prefix, out: &mut Vec<AnnounceOutput>) {
        let with_floor = |vip: &Watching| vip.plan.floor.is_some() && vip.plan.prefixes.contains(prefix);
        let touched: Vec<usize> = (0..self.vips.len()).filter(|&v| with_floor(&self.vips[v])).collect();
        for v in touched {
            self.decide(now, v, out);
        }
    }

    /// Notes whether a VIP fails, and since when it is let go.
    pub(super) fn ask_floor(&mut self, now: Time, v: usize) {
        let vip = &self.vips[v];
        let Some(floor) = vip.plan.floor else { return };
        // A drain ends with its withdrawal whatever the floor says; until then it stands as it stood.
        let fails = self.stopping.is_none() && vip.fails(now);
        let stay = self.views.stay(&vip.plan, floor, self.identity.router_id, vip.view.state);
        let view = &mut self.vips[v].view;
        view.fails = fails;
        view.let_go = if fails && stay.is_none() { view.let_go.or(Some(now)) } else { None };
        view.stay = stay.filter(|_| fails);
    }

    /// Why a VIP that fails stays nevertheless; `None`: nothing holds it.
    pub(super) fn holds(&self, now: Time, vip: &Watching) -> Option<Stay> {
        let floor = vip.plan.floor?;
        match vip.view.let_go {
            Some(since) if now.since(since) >= floor.settle || vip.view.state == VipState::Withdrawn => None,
            Some(_) => Some(Stay::Settling(floor.settle)),
            None => vip.view.stay,
        }
    }
}
