//! Who announces a VIP, told to those who do: by the listener to members that ask for it, and read by their announcers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::host::{Owner, has_floor};
use super::{Node, Output};
use crate::announce::AnnounceInput;
use crate::bgp::{Rib, SessionInput, State, Update};
use crate::machine::{Machine, Time};
use crate::prefix::Prefix;
use crate::reflect::{self, View};

/// What happens to members within this time is told to the others together.
const PAUSE: Duration = Duration::from_millis(10);

impl Node {
    /// What a peer's UPDATE tells of the announcers of our VIPs with a floor. Nothing else of it is looked at.
    pub(super) fn saw(&self, peer: &str, update: &Update) -> Vec<AnnounceInput> {
        let ours = |prefix: &Prefix| has_floor(&self.plan, prefix);
        let told = update.announced.iter().filter(|(p, _)| ours(p));
        let told = told.map(|(prefix, path)| (*prefix, reflect::view(&path.large_communities)));
        let gone = update.withdrawn.iter().filter(|p| ours(p)).map(|p| (*p, None));
        gone.chain(told).map(|(prefix, view)| AnnounceInput::Saw(peer.to_owned(), prefix, view)).collect()
    }

    /// Members came, went or said something: the others hear of it soon.
    pub(super) fn reflect_soon(&mut self, now: Time) {
        if self.plan.listener.as_ref().is_some_and(|l| l.accept.iter().any(|a| a.reflect)) {
            self.reflect_at.get_or_insert(now + PAUSE);
        }
    }

    /// Tells members of each other, if it is time.
    pub(super) fn reflect_due(&mut self, now: Time, out: &mut Vec<Output>) {
        if self.reflect_at.is_none_or(|at| at > now) {
            return;
        }
        self.reflect_at = None;
        let plan = Arc::clone(&self.plan);
        let Some(listener) = &plan.listener else { return };
        let reflecting = listener.accept.iter().enumerate().filter(|(_, a)| a.reflect);
        for (range, accept) in reflecting {
            let vips = listener.vips.iter();
            let allowed = vips.filter(|(name, _)| accept.vips.as_ref().is_none_or(|v| v.contains(*name)));
            let told = |prefix: &Prefix| reflect::attributes(plan.router.asn, &self.view(prefix));
            let rib: Arc<Rib> = Arc::new(allowed.map(|(_, vip)| (vip.prefix, told(&vip.prefix))).collect());
            let up = |(hop, m): (&_, &super::members::Member)| {
                (m.range == range && m.session.state() == State::Established).then_some(*hop)
            };
            for hop in self.members.iter().filter_map(up).collect::<Vec<_>>() {
                let input = SessionInput::Advertise(Arc::clone(&rib), true);
                self.with_session(&Owner::Member(hop), out, |s, o| s.handle(now, input, o), now);
            }
        }
    }

    /// The members that announce a VIP, by BGP identifier. One that has two sessions fails if it says so on one of them.
    fn view(&self, prefix: &Prefix) -> View {
        let mut view = BTreeMap::new();
        for (hop, sound) in self.listener.iter().flat_map(|l| l.offers(prefix)) {
            let negotiated = self.members.get(hop).and_then(|m| m.session.negotiated());
            if let Some(n) = negotiated {
                view.entry(n.router_id).and_modify(|s| *s &= sound).or_insert(sound);
            }
        }
        view
    }
}
