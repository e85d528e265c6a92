//! The listening sockets. One whose port another program holds is opened as soon as it is free; meanwhile this host still dials.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use standfast_core::node::{Input, KernelKey};
use standfast_core::plan::{Plan, Secret, Ttl};
use standfast_core::prefix::Prefix;
use standfast_core::table::{Change, diff};

use crate::tcp;

/// How soon a port that was taken is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The listening sockets of a plan.
pub(super) struct Doors {
    /// By number, which none of them changes: the token comes of it.
    doors: BTreeMap<usize, Door>,
    /// The token of the first; the others follow.
    first: usize,
    retry_at: Option<Instant>,
}

struct Door {
    address: SocketAddr,
    hops: Vec<Ttl>,
    keys: BTreeMap<Prefix, Secret>,
    socket: Option<TcpListener>,
}

impl Doors {
    /// Those of `plan`, none of them open yet, with tokens from `first` up.
    pub(super) fn new(plan: &Plan, first: usize) -> Self {
        let doors = plan.bgp.listen.iter().map(|&address| Door::new(plan, address)).enumerate();
        Self { doors: doors.collect(), first, retry_at: None }
    }

    /// Makes them those of `plan`: those that stay keep waiting for connections, and are fitted to who may connect. What
    /// became of those that are new, as with [`open`](Self::open).
    ///
    /// # Errors
    /// As with [`open`](Self::open); then they are as they were.
    pub(super) fn change(&mut self, plan: &Plan, registry: &Registry) -> io::Result<Vec<Input>> {
        let before: Vec<(usize, BTreeMap<Prefix, Secret>, Vec<Ttl>)> =
            self.doors.iter().map(|(n, door)| (*n, door.keys.clone(), door.hops.clone())).collect();
        let mut come = Vec::new();
        let mut fit = || {
            for &address in &plan.bgp.listen {
                let wanted = Door::new(plan, address);
                match self.doors.values_mut().find(|door| door.address == address) {
                    Some(door) => door.fit(wanted.keys, wanted.hops)?,
                    None => {
                        let free = (0..).find(|n| !self.doors.contains_key(n)).unwrap_or_default();
                        self.doors.insert(free, wanted);
                        come.push(free);
                    }
                }
            }
            self.open(registry)
        };
        match fit() {
            Ok(results) => {
                // Who waits for an address that is free only by this is tried again soon.
                self.doors.retain(|_, door| plan.bgp.listen.contains(&door.address));
                Ok(results)
            }
            Err(e) => {
                self.doors.retain(|n, _| !come.contains(n));
                for (n, keys, hops) in before {
                    if let Some(door) = self.doors.get_mut(&n) {
                        // They were taken before.
                        let _ = door.fit(keys, hops);
                    }
                }
                Err(e)
            }
        }
    }

    /// Opens those that are not open; what became of each. A port that is taken is tried again later.
    ///
    /// # Errors
    /// What will not mend itself, by name: a key the kernel refuses, no permission.
    pub(super) fn open(&mut self, registry: &Registry) -> io::Result<Vec<Input>> {
        self.retry_at = None;
        let mut results = Vec::new();
        for (nth, door) in self.doors.iter_mut().filter(|(_, door)| door.socket.is_none()) {
            let result = match door.open() {
                Ok(mut socket) => {
                    registry.register(&mut socket, Token(self.first + nth), Interest::READABLE)?;
                    door.socket = Some(socket);
                    Ok(())
                }
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                    self.retry_at = Some(Instant::now() + RETRY);
                    Err(e.to_string())
                }
                Err(e) => return Err(e),
            };
            results.push(Input::Kernel(KernelKey::Listen(door.address), result));
        }
        Ok(results)
    }

    /// Whether there are some, and none of them is open: then this host has no members, and another program may.
    pub(super) fn are_shut(&self) -> bool {
        !self.doors.is_empty() && self.doors.values().all(|door| door.socket.is_none())
    }

    /// When those that are not open are tried again.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Tries those that are not open again, if it is time.
    pub(super) fn retry(&mut self, now: Instant, registry: &Registry) -> Vec<Input> {
        if self.retry_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        self.open(registry).unwrap_or_else(|_| {
            // Whatever it is, it was not there at the start and may go again.
            self.retry_at = Some(now + RETRY);
            Vec::new()
        })
    }

    /// The next connection at the `nth` of them.
    ///
    /// # Errors
    /// What the kernel says; `WouldBlock`: nobody is waiting.
    pub(super) fn accept(&self, nth: usize) -> io::Result<(TcpStream, SocketAddr)> {
        let socket = self.doors.get(&nth).and_then(|door| door.socket.as_ref());
        socket.ok_or_else(|| io::ErrorKind::WouldBlock.into()).and_then(TcpListener::accept)
    }
}

impl Door {
    fn new(plan: &Plan, address: SocketAddr) -> Self {
        let v4 = address.is_ipv4();
        let keys = keys(plan).filter(|(range, _)| range.address().is_ipv4() == v4).collect();
        Self { address, hops: hops(plan, v4), keys, socket: None }
    }

    /// Fits it to other keys and hop limits; connections that were accepted stay as they are.
    fn fit(&mut self, keys: BTreeMap<Prefix, Secret>, hops: Vec<Ttl>) -> io::Result<()> {
        if let Some(socket) = &self.socket {
            if hops != self.hops {
                tcp::reach(socket, &hops)?;
            }
            // A range that is gone may hold one that comes.
            for change in diff(&self.keys, &keys).iter().rev() {
                match change {
                    Change::Set(range, key) => tcp::key(socket, range, Some(key))?,
                    Change::Remove(range) => tcp::key(socket, range, None)?,
                }
            }
        }
        (self.keys, self.hops) = (keys, hops);
        Ok(())
    }

    fn open(&self) -> io::Result<TcpListener> {
        let socket = tcp::listen(self.address)?;
        tcp::reach(&socket, &self.hops)?;
        for (range, key) in &self.keys {
            tcp::key(&socket, range, Some(key))?;
        }
        Ok(socket)
    }
}

/// The MD5 keys that listening sockets need: who, and the key.
fn keys(plan: &Plan) -> impl Iterator<Item = (Prefix, Secret)> {
    let peers = plan.bgp.peers.values().filter_map(|p| Some((Prefix::host(p.address), p.password.clone()?)));
    let ranges = plan.listener.iter().flat_map(|l| &l.accept);
    // A neighbour's own key comes before that of a range of its address alone.
    ranges.filter_map(|a| Some((a.range, a.password.clone()?))).chain(peers)
}

/// The hop limits of those of a family who may dial.
fn hops(plan: &Plan, v4: bool) -> Vec<Ttl> {
    let peers = plan.bgp.peers.values().filter(|p| p.address.is_ipv4() == v4).map(|p| p.ttl);
    let ranges = plan.listener.iter().flat_map(|l| &l.accept);
    let members = ranges.filter(|a| a.range.address().is_ipv4() == v4).map(|a| a.ttl);
    peers.chain(members).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use standfast_core::plan::{Bgp, Router};
    use std::net::Ipv4Addr;

    #[test]
    fn a_host_whose_only_port_is_taken_is_shut_until_it_is_free() {
        let one = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let router_id = Ipv4Addr::LOCALHOST;
        let router = Router { asn: 64512, router_id, local_address: None, local_address_ipv6: None };
        let mut plan = Plan {
            router,
            bgp: Bgp { listen: vec![one.local_addr().unwrap()], peers: BTreeMap::new() },
            vips: BTreeMap::new(),
            checks: BTreeMap::new(),
            listener: None,
        };
        let poll = mio::Poll::new().unwrap();
        let mut doors = Doors::new(&plan, 0);
        let results = doors.open(poll.registry()).unwrap();
        assert!(matches!(&results[..], [Input::Kernel(_, Err(_))]) && doors.are_shut(), "{results:?}");
        drop(one);
        let results = doors.retry(Instant::now() + RETRY, poll.registry());
        assert!(matches!(&results[..], [Input::Kernel(_, Ok(()))]) && !doors.are_shut(), "{results:?}");
        plan.bgp.listen.clear();
        assert!(!Doors::new(&plan, 0).are_shut(), "one that wants no door waits for none");
    }
}
