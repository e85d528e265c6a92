//! Another plan for a running node: what it does not name stays as it is.
//!
//! [`fixed`] says first what cannot be changed without a restart; then nothing is changed at all. The rest is compared thing by
//! thing: VIPs and checks by the announcer, the listener's VIPs by it, peers and members here. A peer that goes hears so (Cease, Peer De-configured), one whose session
//! cannot go on as it is has it opened anew (Cease, Other Configuration Change), and every other one is told what differs in the table.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use super::host::{Owner, event, peer_config};
use super::members::member_config;
use super::{ConnId, KernelKey, Level, Node, Output};
use crate::bgp::session::{CONFIGURATION, DE_CONFIGURED};
use crate::bgp::{Liveness, Notification, Session, SessionInput};
use crate::machine::{Machine as _, Time};
use crate::plan::{Bgp, Listener, Peer, Plan, Router};
use crate::prefix::{Afi, Prefix};

/// Something that only a restart can change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixed {
    /// The way to it in the file, with names in the place of numbers: `router`, `asn`, or `vips`, `web`, `prefixes`.
    pub path: Vec<String>,
    /// Why, in words; empty if that is plain.
    pub why: String,
}

impl Fixed {
    /// The setting that this path leads to.
    pub fn new<'a>(path: impl IntoIterator<Item = &'a str>, why: &str) -> Self {
        Self { path: path.into_iter().map(str::to_owned).collect(), why: why.to_owned() }
    }

    /// The way to it with dots between its steps.
    pub fn key(&self) -> String {
        self.path.join(".")
    }
}

/// What a node that runs by `old` cannot change to have `new`; empty: it can be reloaded.
pub fn fixed(old: &Plan, new: &Plan) -> Vec<Fixed> {
    let Plan { router, bgp, vips: _, checks: _, listener } = old;
    let Router { asn, router_id, local_address, local_address_ipv6 } = router;
    let every = "every session would be opened anew";
    let mut fixed = Vec::new();
    let mut compare = |same: bool, path: &[&str], why: &str| {
        if !same {
            fixed.push(Fixed::new(path.iter().copied(), why));
        }
    };
    compare(*asn == new.router.asn, &["router", "asn"], every);
    compare(*router_id == new.router.router_id, &["router", "router_id"], every);
    compare(*local_address == new.router.local_address, &["router", "local_address"], every);
    compare(*local_address_ipv6 == new.router.local_address_ipv6, &["router", "local_address_ipv6"], every);
    let Bgp { listen: _, peers } = bgp;
    for (name, peer) in peers {
        let Some(after) = new.bgp.peers.get(name) else { continue };
        if let Some((afi, vip)) = new_family(old, new, peer, after) {
            let why =
                format!("{afi} is new to the session with {name}, which would have to be opened anew for it");
            compare(false, &["vips", vip], &why);
        }
    }
    match (listener, &new.listener) {
        (Some(was), Some(is)) => compare_listeners((old, was), (new, is), &mut compare),
        (was, is) => compare(was == is, &["listener"], "a role begins and ends with the process"),
    }
    fixed
}

fn compare_listeners(
    old: (&Plan, &Listener),
    new: (&Plan, &Listener),
    compare: &mut impl FnMut(bool, &[&str], &str),
) {
    let ((old, was), (new, is)) = (old, new);
    // The rest is compared thing by thing.
    let Listener { accept, vips: _, table, on_stop: _, hash_seed, drain_mark } = was;
    for range in accept {
        let Some(after) = is.accept.iter().find(|a| a.name == range.name) else { continue };
        let remote = SocketAddr::new(range.range.address(), 0);
        let (before, config) = (member_config(old, range, remote), member_config(new, after, remote));
        if let Some(afi) = before.lacks(&config).filter(|_| range.password == after.password) {
            let allowed = |name: &str| after.vips.as_ref().is_none_or(|names| names.contains(name));
            let vip = is.vips.iter().find(|(name, vip)| allowed(name) && vip.prefix.afi() == afi);
            let why = format!(
                "{afi} is new to the sessions of the range {}, which would have to be opened anew for it",
                range.name
            );
            compare(false, &["listener", "vips", vip.map_or("", |(name, _)| name)], &why);
        }
    }
    compare(*table == is.table, &["listener", "table"], "");
    compare(*hash_seed == is.hash_seed, &["listener", "hash_seed"], "");
    compare(*drain_mark == is.drain_mark, &["listener", "drain_mark"], "");
}

/// A family that a peer's session was not opened with and would need for a VIP, if everything else lets the session go on.
fn new_family<'a>(old: &Plan, new: &'a Plan, before: &Peer, after: &Peer) -> Option<(Afi, &'a str)> {
    let afi = peer_config(old, before).lacks(&peer_config(new, after))?;
    let told = |name: &str| after.vips.as_ref().is_none_or(|names| names.contains(name));
    let mut vips = new.vips.iter().filter(|(name, _)| told(name));
    let vip = vips.find(|(_, vip)| vip.prefixes.iter().any(|p| p.afi() == afi))?;
    Some((afi, vip.0))
}

impl Node {
    /// Goes on by `new`.
    pub(super) fn reload(&mut self, now: Time, new: Arc<Plan>, out: &mut Vec<Output>) {
        if *self.plan == *new {
            return;
        }
        let mut refuse = |why: String| {
            let message = format!("not reloaded, nothing was changed: {why}");
            out.push(event(Level::Warn, "configuration".to_owned(), message));
        };
        if self.stopping().is_some() {
            return refuse("this host is leaving".to_owned());
        }
        if let Some(fixed) = fixed(&self.plan, &new).first() {
            return refuse(format!("{}: restart to change this", fixed.key()));
        }
        let old = std::mem::replace(&mut self.plan, Arc::clone(&new));
        // A peer may come back under another name.
        for name in old.bgp.peers.keys().filter(|name| !new.bgp.peers.contains_key(*name)) {
            self.remove_peer(now, name, out);
        }
        for (name, peer) in &new.bgp.peers {
            match old.bgp.peers.get(name) {
                Some(before) => self.change_peer(now, &old, before, peer, out),
                None => self.add_peer(now, peer, out),
            }
        }
        let kept = |at: &SocketAddr| !old.bgp.listen.contains(at) || new.bgp.listen.contains(at);
        self.kernel_errors.retain(|key, _| !matches!(key, KernelKey::Listen(at) if !kept(at)));
        self.reload_listener(now, &old, out);
        let settled = self.announcer.is_settled();
        let mut said = Vec::new();
        self.announcer.reload(now, &old, &new, &mut said);
        self.announced(now, said, settled, out);
        self.reload_watch(now, &old, out);
        self.advertise(now, out);
        self.let_go(now);
        out.push(Output::Remember);
    }

    fn add_peer(&mut self, now: Time, peer: &Peer, out: &mut Vec<Output>) {
        self.numbered += 1;
        let first = ConnId(self.numbered << 32);
        let session = Session::new(now, peer_config(&self.plan, peer), self.rng.next_u64(), first);
        let owner = Owner::Peer(peer.name.clone());
        self.timers.set(owner.clone(), session.deadline());
        self.peers.insert(peer.name.clone(), session);
        self.follow_bfd(now, &owner, out);
    }

    fn remove_peer(&mut self, now: Time, name: &str, out: &mut Vec<Output>) {
        let owner = Owner::Peer(name.to_owned());
        let input = SessionInput::Remove("removed from the configuration".to_owned());
        self.with_session(&owner, out, |s, o| s.handle(now, input, o), now);
        self.peers.remove(name);
        self.timers.set(owner.clone(), None);
        self.owners.retain(|_, of| *of != owner);
        self.follow_bfd(now, &owner, out);
    }

    fn change_peer(&mut self, now: Time, old: &Plan, before: &Peer, peer: &Peer, out: &mut Vec<Output>) {
        let (was, is) = (peer_config(old, before), peer_config(&self.plan, peer));
        let owner = Owner::Peer(peer.name.clone());
        let asks = is.learn && !was.learn;
        if was != is {
            let input = SessionInput::Reconfigure(Box::new(is));
            self.with_session(&owner, out, |s, o| s.handle(now, input, o), now);
        }
        if before.bfd != peer.bfd {
            self.follow_bfd(now, &owner, out);
        }
        // Nobody is waited for who is not asked, nor believed who was not heard.
        let liveness = match (&before.bfd, &peer.bfd) {
            (Some(_), None) => Some(Liveness::Alive),
            (None, Some(_)) => Some(Liveness::Unknown),
            _ => None,
        };
        for input in
            liveness.map(SessionInput::Liveness).into_iter().chain(asks.then_some(SessionInput::Refresh))
        {
            self.with_session(&owner, out, |s, o| s.handle(now, input, o), now);
        }
    }

    /// Fits the sessions of members to the ranges of the plan; the VIPs that this touches.
    pub(super) fn reload_members(
        &mut self,
        now: Time,
        (before, old): (&Listener, &Plan),
        after: &Listener,
        out: &mut Vec<Output>,
    ) -> BTreeSet<Prefix> {
        let mut touched = BTreeSet::new();
        let allowed = |vips: &Option<BTreeSet<String>>, all: &Listener| -> BTreeSet<Prefix> {
            let may = |name: &String| vips.as_ref().is_none_or(|names| names.contains(name));
            all.vips.iter().filter(|(name, _)| may(name)).map(|(_, vip)| vip.prefix).collect()
        };
        for hop in self.members.keys().copied().collect::<Vec<_>>() {
            let Some(member) = self.members.get(&hop) else { continue };
            let remote = member.session.remote();
            let Some(was) = before.accept.get(member.range) else { continue };
            let is_peer = self.peer_at(remote).is_some();
            let Some((range, accept)) = self.range_of(remote).filter(|_| !is_peer) else {
                let why = "no range of the configuration covers it any more".to_owned();
                self.end(now, hop, Notification::cease(DE_CONFIGURED, &why), why, out);
                continue;
            };
            let accept = accept.clone();
            let owner = Owner::Member(hop);
            let mut config = member_config(&self.plan, &accept, remote);
            config.bfd_hold = config.bfd_hold.or_else(|| self.must_wait(hop));
            let goes_on = member_config(old, was, remote).goes_on_with(&config);
            if !goes_on || was.password != accept.password {
                let why = "the configuration of its range has changed".to_owned();
                self.end(now, hop, Notification::cease(CONFIGURATION, &why), why, out);
                continue;
            }
            if let Some(member) = self.members.get_mut(&hop) {
                member.range = range;
            }
            let input = SessionInput::Reconfigure(Box::new(config));
            self.with_session(&owner, out, |s, o| s.handle(now, input, o), now);
            let (had, has) = (allowed(&was.vips, before), allowed(&accept.vips, after));
            if let Some(listener) = &mut self.listener {
                touched.extend(listener.restrict(now, hop, accept.vips.as_ref()));
            }
            if !has.is_subset(&had) {
                // What it said of these was not kept.
                self.with_session(&owner, out, |s, o| s.handle(now, SessionInput::Refresh, o), now);
            }
        }
        touched
    }
}
