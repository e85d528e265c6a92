//! The kernel's own word on its routes: a listening rtnetlink socket that notes when each change was heard.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use standfast_lab::Host;

use crate::sample::now;

/// Listens until it is dropped.
pub(crate) struct Monitor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    changes: Mutex<Vec<Change>>,
    heard: Condvar,
    stop: AtomicBool,
}

/// A change of the kernel's tables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    /// When it was heard, since the epoch of the wall clock.
    pub(crate) time: Duration,
    /// What it was.
    pub(crate) what: What,
}

/// What changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// The route to this address is there, or was replaced.
    Set(Ipv4Addr),
    /// The route to this address is gone.
    Removed(Ipv4Addr),
    /// A next-hop group that was there has other members, or one of its next hops leads elsewhere.
    Regrouped,
}

impl Monitor {
    /// Listens in the namespace of `host`.
    pub(crate) fn start(host: &Host) -> Self {
        let fd = rtnetlink(host);
        let shared = Arc::<Shared>::default();
        let ours = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; 65536];
            let mut objects = Objects::default();
            while !ours.stop.load(Ordering::Relaxed) {
                let Ok(length) = recv(fd.as_raw_fd(), &mut buffer, nix::sys::socket::MsgFlags::empty())
                else {
                    continue;
                };
                let time = now();
                let heard = read(&buffer[..length], &mut objects);
                let mut changes = ours.changes.lock().unwrap();
                changes.extend(heard.into_iter().map(|what| Change { time, what }));
                ours.heard.notify_all();
            }
        });
        Self { shared, thread: Some(thread) }
    }

    /// The first change after `since` that `wanted` likes; `None` if none came within `deadline`.
    pub(crate) fn wait(
        &self,
        since: Duration,
        deadline: Duration,
        wanted: impl Fn(What) -> bool,
    ) -> Option<Duration> {
        let start = Instant::now();
        let mut changes = self.shared.changes.lock().unwrap();
        loop {
            if let Some(change) = changes.iter().find(|c| c.time >= since && wanted(c.what)) {
                return Some(change.time);
            }
            let left = deadline.checked_sub(start.elapsed())?;
            changes = self.shared.heard.wait_timeout(changes, left).unwrap().0;
        }
    }

    /// Everything that was heard.
    pub(crate) fn changes(&self) -> Vec<Change> {
        self.shared.changes.lock().unwrap().clone()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A socket in the namespace of `host` that hears of IPv4 routes and of next-hop objects. Reading it gives up after 100 ms.
pub(crate) fn rtnetlink(host: &Host) -> OwnedFd {
    let fd = host.enter(|| {
        let fd =
            socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)
                .expect("a netlink socket");
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, IPV4_ROUTES | NEXT_HOPS)).expect("the groups");
        fd
    });
    setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::milliseconds(100)).expect("a socket option");
    fd
}

/// The netlink messages of a datagram: the type of each, and what follows the header.
pub(crate) fn messages(octets: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = octets;
    std::iter::from_fn(move || {
        let header = rest.get(..16)?;
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let body = rest.get(16..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([header[4], header[5]]), body))
    })
}

/// The next-hop objects known so far.
#[derive(Default)]
struct Objects {
    groups: BTreeSet<u32>,
    gateways: BTreeMap<u32, Vec<u8>>,
}

/// Reads netlink messages.
fn read(octets: &[u8], objects: &mut Objects) -> Vec<What> {
    let mut found = Vec::new();
    for (kind, body) in messages(octets) {
        match kind {
            NEW_ROUTE | DELETED_ROUTE if body.len() >= 12 => {
                // Only whole addresses: the length octet of the route message.
                let address =
                    attribute(&body[12..], DESTINATION).and_then(|value| <[u8; 4]>::try_from(value).ok());
                if let (Some(address), 32) = (address, body[1]) {
                    let address = Ipv4Addr::from(address);
                    found.push(if kind == NEW_ROUTE { What::Set(address) } else { What::Removed(address) });
                }
            }
            NEW_NEXT_HOP | DELETED_NEXT_HOP if body.len() >= 8 => {
                let id = attribute(&body[8..], NEXT_HOP_ID).and_then(|value| <[u8; 4]>::try_from(value).ok());
                let Some(id) = id.map(u32::from_ne_bytes) else { continue };
                let gateway = attribute(&body[8..], NEXT_HOP_GATEWAY);
                let known = match gateway {
                    _ if kind == DELETED_NEXT_HOP => {
                        objects.gateways.remove(&id);
                        false
                    }
                    Some(to) => objects.gateways.insert(id, to.to_vec()).is_some_and(|before| before != to),
                    None => attribute(&body[8..], NEXT_HOP_GROUP).is_some() && !objects.groups.insert(id),
                };
                if known {
                    found.push(What::Regrouped);
                }
            }
            _ => {}
        }
    }
    found
}

/// The value of an attribute.
pub(crate) fn attribute(mut octets: &[u8], wanted: u16) -> Option<&[u8]> {
    while let [a, b, c, d, ..] = *octets {
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let value = octets.get(4..length)?;
        if u16::from_ne_bytes([c, d]) & 0x3fff == wanted {
            return Some(value);
        }
        octets = octets.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

/// Multicast groups, as bits: RTNLGRP_IPV4_ROUTE (7) and RTNLGRP_NEXTHOP (32).
const IPV4_ROUTES: u32 = 1 << 6;
const NEXT_HOPS: u32 = 1 << 31;
/// RTM_NEWROUTE, RTM_DELROUTE, RTM_NEWNEXTHOP, RTM_DELNEXTHOP; RTA_DST; NHA_ID, NHA_GROUP, NHA_GATEWAY.
const NEW_ROUTE: u16 = 24;
const DELETED_ROUTE: u16 = 25;
const NEW_NEXT_HOP: u16 = 104;
const DELETED_NEXT_HOP: u16 = 105;
const DESTINATION: u16 = 1;
const NEXT_HOP_ID: u16 = 1;
const NEXT_HOP_GROUP: u16 = 2;
const NEXT_HOP_GATEWAY: u16 = 6;
