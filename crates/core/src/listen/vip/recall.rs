//! What members withdrew before this process began: the floor may hold it as if this process had been there.
//!
//! A session that ends is never held, and the restart of this host ended all of them. So what was withdrawn counts again only
//! once the member's session is back, and after a moment in which it, and others, could announce the VIP.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use super::{Hop, Offer, Route, Time, Vip};

/// How long after its session is back a member that withdrew before the restart counts as one that withdrew. It is less than the
/// kernel keeps its part in the group of the earlier run.
const AGAIN: Duration = Duration::from_secs(3);

/// A path that a member withdrew while its session lived on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Withdrawal {
    offer: Offer,
}

/// Such a path of an earlier run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recalled {
    withdrawal: Withdrawal,
    at: Time,
    /// When it counts; `None`: the member's session is not back.
    counts_at: Option<Time>,
}

impl Vip {
    /// What the floor may hold: who withdrew, when, and what.
    pub(in crate::listen) fn withdrawn(&self, now: Time) -> impl Iterator<Item = (Hop, Time, Withdrawal)> {
        let hold = self.plan.floor.map(|floor| floor.hold);
        let routes = self.routes.iter();
        let own =
            routes.filter_map(|(member, r)| Some((*member, r.withdrawn?, Withdrawal { offer: r.offer })));
        let earlier = self.recalled.iter().map(|(member, r)| (*member, r.at, r.withdrawal));
        own.chain(earlier).filter(move |(_, at, _)| hold.is_some_and(|hold| now < *at + hold))
    }

    /// Takes what a member withdrew before the restart; it counts once its session is back.
    pub(in crate::listen) fn recall(&mut self, member: Hop, at: Time, withdrawal: Withdrawal) {
        if self.plan.floor.is_some() && !self.routes.contains_key(&member) {
            self.recalled.insert(member, Recalled { withdrawal, at, counts_at: None });
        }
    }

    /// Whether it waits for a member to be back, or for a moment since it is.
    pub(in crate::listen) fn recalls(&self, member: &Hop) -> bool {
        self.recalled.contains_key(member)
    }

    /// The session of a member is back; whether that matters here.
    pub(in crate::listen) fn back(&mut self, now: Time, member: Hop) -> bool {
        let recalled = self.recalled.get_mut(&member);
        recalled.is_some_and(|recalled| recalled.counts_at.replace(now + AGAIN).is_none())
    }

    /// Counts what is to count by now; when the next does.
    pub(super) fn count_recalled(
        &mut self,
        now: Time,
        lead: impl Fn(Hop, std::net::IpAddr) -> Option<Hop>,
    ) -> Option<Time> {
        let due = |r: &Recalled| r.counts_at.is_some_and(|at| at <= now);
        for (member, recalled) in self.recalled.iter().filter(|(_, r)| due(r)) {
            let offer = recalled.withdrawal.offer;
            let route = Route {
                offer,
                hop: lead(*member, offer.next_hop),
                withdrawn: Some(recalled.at),
                drain: None,
                standing: None,
                since: now,
            };
            self.routes.entry(*member).or_insert_with(|| Box::new(route));
        }
        self.recalled.retain(|_, r| !due(r));
        self.recalled.values().filter_map(|r| r.counts_at).min()
    }
}
