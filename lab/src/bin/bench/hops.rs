//! The next hops of host routes as the kernel tells them, whatever a listener makes them of: a multipath route, a group that
//! is made anew each time, or a group that is changed in place. It must listen before the first of them is made.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::MsgFlags;
use standfast_lab::Host;

use crate::monitor::{attribute, messages, rtnetlink};
use crate::sample::now;

/// Listens until it is dropped.
pub(crate) struct Hops {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    changes: Mutex<Vec<Change>>,
    heard: Condvar,
    stop: AtomicBool,
}

/// A route has other next hops.
struct Change {
    time: Duration,
    route: Ipv4Addr,
    hops: BTreeSet<Ipv4Addr>,
}

impl Hops {
    /// Listens in the namespace of `host`.
    pub(crate) fn start(host: &Host) -> Self {
        let fd = rtnetlink(host);
        let shared = Arc::<Shared>::default();
        let ours = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; 65536];
            let mut tables = Tables::default();
            while !ours.stop.load(Ordering::Relaxed) {
                let Ok(length) = nix::sys::socket::recv(fd.as_raw_fd(), &mut buffer, MsgFlags::empty())
                else {
                    continue;
                };
                let time = now();
                let heard = tables.read(&buffer[..length]);
                let mut changes = ours.changes.lock().unwrap();
                changes.extend(heard.into_iter().map(|(route, hops)| Change { time, route, hops }));
                ours.heard.notify_all();
            }
        });
        Self { shared, thread: Some(thread) }
    }

    /// When `hop` was first seen among the next hops of `route`, or gone from them, after `since`; `None` if it was not within
    /// `deadline` from now.
    pub(crate) fn wait(
        &self,
        since: Duration,
        deadline: Duration,
        route: Ipv4Addr,
        hop: Ipv4Addr,
        there: bool,
    ) -> Option<Duration> {
        let start = Instant::now();
        let mut changes = self.shared.changes.lock().unwrap();
        loop {
            let like = |c: &&Change| c.time >= since && c.route == route && c.hops.contains(&hop) == there;
            if let Some(change) = changes.iter().find(like) {
                return Some(change.time);
            }
            let left = deadline.checked_sub(start.elapsed())?;
            changes = self.shared.heard.wait_timeout(changes, left).unwrap().0;
        }
    }

    /// Whether `hop` is among the next hops of `route` now.
    pub(crate) fn holds(&self, route: Ipv4Addr, hop: Ipv4Addr) -> bool {
        let changes = self.shared.changes.lock().unwrap();
        changes.iter().rev().find(|c| c.route == route).is_some_and(|c| c.hops.contains(&hop))
    }
}

impl Drop for Hops {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// What the kernel has told so far.
#[derive(Default)]
struct Tables {
    routes: BTreeMap<Ipv4Addr, Via>,
    objects: BTreeMap<u32, Object>,
    hops: BTreeMap<Ipv4Addr, BTreeSet<Ipv4Addr>>,
}

/// What a route goes through.
enum Via {
    Hops(BTreeSet<Ipv4Addr>),
    Object(u32),
}

/// A next-hop object.
enum Object {
    Hop(Ipv4Addr),
    Group(Vec<u32>),
}

impl Tables {
    /// Takes netlink messages; the routes whose next hops are others now.
    fn read(&mut self, octets: &[u8]) -> Vec<(Ipv4Addr, BTreeSet<Ipv4Addr>)> {
        let mut changed = Vec::new();
        for (kind, body) in messages(octets) {
            self.take(kind, body);
            let now: Vec<_> = self.routes.iter().map(|(&route, via)| (route, self.through(via))).collect();
            for (route, hops) in now {
                if self.hops.get(&route) != Some(&hops) {
                    self.hops.insert(route, hops.clone());
                    changed.push((route, hops));
                }
            }
        }
        changed
    }

    fn take(&mut self, kind: u16, body: &[u8]) {
        match kind {
            NEW_ROUTE | DELETED_ROUTE if body.len() >= 12 && body[1] == 32 => {
                let Some(route) = attribute(&body[12..], DESTINATION).and_then(address) else { return };
                let via = if kind == DELETED_ROUTE { Via::Hops(BTreeSet::new()) } else { via(&body[12..]) };
                self.routes.insert(route, via);
            }
            NEW_NEXT_HOP | DELETED_NEXT_HOP if body.len() >= 8 => {
                let Some(id) = attribute(&body[8..], NEXT_HOP_ID).and_then(number) else { return };
                let group = attribute(&body[8..], NEXT_HOP_GROUP);
                let hop = attribute(&body[8..], NEXT_HOP_GATEWAY).and_then(address);
                match (group, hop) {
                    // It is told before its groups have let go of it, each of which is told afterwards.
                    _ if kind == DELETED_NEXT_HOP && self.is_grouped(id) => {}
                    _ if kind == DELETED_NEXT_HOP => drop(self.objects.remove(&id)),
                    (Some(group), _) => {
                        let members = group.chunks_exact(8).filter_map(|entry| number(&entry[..4]));
                        self.objects.insert(id, Object::Group(members.collect()));
                    }
                    (None, Some(hop)) => drop(self.objects.insert(id, Object::Hop(hop))),
                    (None, None) => {}
                }
            }
            _ => {}
        }
    }

    /// Whether a next hop is in a group.
    fn is_grouped(&self, id: u32) -> bool {
        self.objects.values().any(|object| matches!(object, Object::Group(members) if members.contains(&id)))
    }

    fn through(&self, via: &Via) -> BTreeSet<Ipv4Addr> {
        let hop = |id| match self.objects.get(id) {
            Some(Object::Hop(hop)) => Some(*hop),
            _ => None,
        };
        match via {
            Via::Hops(hops) => hops.clone(),
            Via::Object(id) => match self.objects.get(id) {
                Some(Object::Group(members)) => members.iter().filter_map(hop).collect(),
                _ => hop(id).into_iter().collect(),
            },
        }
    }
}

fn via(attributes: &[u8]) -> Via {
    if let Some(id) = attribute(attributes, ROUTE_NEXT_HOP_ID).and_then(number) {
        return Via::Object(id);
    }
    let mut hops: BTreeSet<_> = attribute(attributes, GATEWAY).and_then(address).into_iter().collect();
    let mut rest = attribute(attributes, MULTIPATH).unwrap_or_default();
    while let [a, b, ..] = *rest {
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let Some(entry) = rest.get(8..length) else { break };
        hops.extend(attribute(entry, GATEWAY).and_then(address));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Via::Hops(hops)
}

fn address(octets: &[u8]) -> Option<Ipv4Addr> {
    <[u8; 4]>::try_from(octets).ok().map(Ipv4Addr::from)
}

fn number(octets: &[u8]) -> Option<u32> {
    <[u8; 4]>::try_from(octets).ok().map(u32::from_ne_bytes)
}

/// RTM_NEWROUTE, RTM_DELROUTE, RTM_NEWNEXTHOP, RTM_DELNEXTHOP.
const NEW_ROUTE: u16 = 24;
const DELETED_ROUTE: u16 = 25;
const NEW_NEXT_HOP: u16 = 104;
const DELETED_NEXT_HOP: u16 = 105;
/// RTA_DST, RTA_GATEWAY, RTA_MULTIPATH, RTA_NH_ID.
const DESTINATION: u16 = 1;
const GATEWAY: u16 = 5;
const MULTIPATH: u16 = 9;
const ROUTE_NEXT_HOP_ID: u16 = 30;
/// NHA_ID, NHA_GROUP, NHA_GATEWAY.
const NEXT_HOP_ID: u16 = 1;
const NEXT_HOP_GROUP: u16 = 2;
const NEXT_HOP_GATEWAY: u16 = 6;
