//! Another plan for a running node: what it does not name stays as it is.
//!
//! [`fixed`] says first what cannot be changed without a restart; then nothing is changed at all. The rest is compared thing by
//! thing: VIPs and checks by the announcer, peers here. A peer that goes hears so (Cease, Peer De-configured), one whose session
//! cannot go on as it is has it opened anew (Cease, Other Configuration Change), and every other one is told what differs in the table.

use std::net::SocketAddr;
use std::sync::Arc;

use super::host::{Owner, event, peer_config};
use super::{ConnId, KernelKey, Level, Node, Output};
use crate::bgp::{Liveness, PeerConfig, Session, SessionInput};
use crate::machine::{Machine as _, Time};
use crate::plan::{Bgp, Listener, Peer, Plan, Router};
use crate::prefix::Afi;

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
        (Some(old), Some(new)) => compare_listeners(old, new, &mut compare),
        (old, new) => compare(old == new, &["listener"], "a role begins and ends with the process"),
    }
    fixed
}

fn compare_listeners(old: &Listener, new: &Listener, compare: &mut impl FnMut(bool, &[&str], &str)) {
    let Listener { accept, vips, table, on_stop, hash_seed, drain_mark } = old;
    compare(*accept == new.accept, &["listener", "accept"], "");
    compare(*vips == new.vips, &["listener", "vips"], "");
    compare(*table == new.table, &["listener", "table"], "");
    compare(*on_stop == new.on_stop, &["listener", "on_stop"], "");
    compare(*hash_seed == new.hash_seed, &["listener", "hash_seed"], "");
    compare(*drain_mark == new.drain_mark, &["listener", "drain_mark"], "");
}

/// A family that a peer's session was not opened with and would need for a VIP, if everything else lets the session go on.
fn new_family<'a>(old: &Plan, new: &'a Plan, before: &Peer, after: &Peer) -> Option<(Afi, &'a str)> {
    let (was, is) = (peer_config(old, before), peer_config(new, after));
    let others = PeerConfig { ipv4: was.ipv4, ipv6: was.ipv6, ..is.clone() };
    if !was.goes_on_with(&others) {
        return None;
    }
    let afi = match (is.ipv4 && !was.ipv4, is.ipv6 && !was.ipv6) {
        (true, _) => Afi::Ipv4,
        (_, true) => Afi::Ipv6,
        _ => return None,
    };
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
        let settled = self.announcer.is_settled();
        let mut said = Vec::new();
        self.announcer.reload(now, &old, &new, &mut said);
        self.announced(now, said, settled, out);
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
}
