//! The node's kernel tables: VIP addresses and the listener's routes.
//!
//! Fast path: a change is written at once. Slow path: at the start, on a kernel event, on overrun and every 30 s the tables
//! are read and the difference is written again, because the kernel drops routes without telling. A change that the kernel
//! refuses stays wanted, is reported, and is tried again.

use standfast_core::node::{Input, KernelKey, LocalAddress};
use standfast_core::plan::{Plan, Vip};
use standfast_core::prefix::Prefix;
use standfast_core::table::{Change, apply};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use crate::netlink::{Heard, Monitor, Netlink, Routes, sync};

/// How often the tables are read although nothing was heard.
const SYNC_EVERY: Duration = Duration::from_secs(30);
/// How soon a refused change is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How long a route that an earlier run left waits for its members to come back before it is removed.
const ADOPT: Duration = Duration::from_secs(60);
/// Kernel events closer than this are answered by one reading.
const GATHER: Duration = Duration::from_millis(20);

/// What the node wants of the kernel, and the way to it.
pub(crate) struct Kernel {
    netlink: Netlink,
    monitor: Monitor,
    table: Option<u32>,
    routes: BTreeMap<Prefix, BTreeSet<IpAddr>>,
    addresses: BTreeSet<LocalAddress>,
    /// Addresses that were there before us: never removed.
    foreign: BTreeSet<LocalAddress>,
    seen: BTreeSet<LocalAddress>,
    results: Vec<Input>,
    sync_at: Instant,
    adopt_until: Instant,
}

impl Kernel {
    /// Opens the netlink sockets.
    pub(crate) fn new(plan: &Plan) -> io::Result<Self> {
        let mut kernel = Self {
            netlink: Netlink::new()?,
            monitor: Monitor::new()?,
            table: plan.listener.as_ref().map(|l| l.table),
            routes: BTreeMap::new(),
            addresses: BTreeSet::new(),
            foreign: BTreeSet::new(),
            seen: BTreeSet::new(),
            results: Vec::new(),
            sync_at: Instant::now() + SYNC_EVERY,
            adopt_until: Instant::now() + ADOPT,
        };
        kernel.seen = kernel.netlink.addresses()?;
        let managed: BTreeSet<LocalAddress> = plan.vips.values().flat_map(managed).collect();
        let left: BTreeSet<LocalAddress> = &kernel.netlink.own_addresses()? & &managed;
        if !left.is_empty() {
            kernel.addresses.clone_from(&left);
            kernel.results.push(Input::Left(left));
        }
        Ok(kernel)
    }

    /// The descriptor that becomes readable on kernel events.
    pub(crate) fn monitor_fd(&self) -> RawFd {
        self.monitor.fd()
    }

    /// The usable addresses of this host, as last read.
    pub(crate) fn addresses(&self) -> BTreeSet<LocalAddress> {
        self.seen.clone()
    }

    /// Something was heard: the tables are read again soon.
    pub(crate) fn readable(&mut self) {
        if self.monitor.read() > Heard::Nothing {
            self.sync_at = self.sync_at.min(Instant::now() + GATHER);
        }
    }

    /// When the tables are read next.
    pub(crate) const fn deadline(&self) -> Instant {
        self.sync_at
    }

    /// What became of the changes asked for.
    pub(crate) fn take_results(&mut self) -> Vec<Input> {
        std::mem::take(&mut self.results)
    }

    /// Reads and mends the tables if it is time; the addresses if they changed.
    pub(crate) fn refresh(&mut self, now: Instant) -> Option<BTreeSet<LocalAddress>> {
        if now < self.sync_at {
            return None;
        }
        self.sync_at = now + SYNC_EVERY;
        self.sync_routes();
        let before = self.read_addresses();
        for address in self.addresses.difference(&self.seen).cloned().collect::<Vec<_>>() {
            self.put(&address);
        }
        self.read_addresses().or(before)
    }

    fn read_addresses(&mut self) -> Option<BTreeSet<LocalAddress>> {
        let addresses = self.netlink.addresses().ok()?;
        if addresses == self.seen {
            return None;
        }
        self.seen.clone_from(&addresses);
        Some(addresses)
    }

    /// Puts a VIP's address on an interface, or takes it off; one that was there before is left alone.
    pub(crate) fn address(&mut self, change: &Change<LocalAddress, ()>) {
        match change {
            Change::Set(address, ()) => {
                self.addresses.insert(address.clone());
                self.put(address);
            }
            Change::Remove(address) => {
                self.addresses.remove(address);
                if self.foreign.remove(address) {
                    return;
                }
                let result = self.netlink.remove_address(address);
                self.report(KernelKey::Address(address.clone()), result);
            }
        }
        if let Some(addresses) = self.read_addresses() {
            self.results.push(Input::Addresses(addresses));
        }
    }

    fn put(&mut self, address: &LocalAddress) {
        let result = self.netlink.add_address(address).map(|was_there| {
            if was_there {
                self.foreign.insert(address.clone());
            }
        });
        self.report(KernelKey::Address(address.clone()), result);
    }

    /// Changes a route of the listener.
    pub(crate) fn route(&mut self, change: Change<Prefix, BTreeSet<IpAddr>>) {
        let Some(table) = self.table else { return };
        self.write(table, &change);
        apply(&mut self.routes, change);
    }

    fn write(&mut self, table: u32, change: &Change<Prefix, BTreeSet<IpAddr>>) {
        let result = match change {
            Change::Set(prefix, next_hops) => self.netlink.set_route(table, prefix, next_hops),
            Change::Remove(prefix) => self.netlink.remove_route(table, prefix),
        };
        self.report(KernelKey::Route(*change.key()), result);
    }

    fn sync_routes(&mut self) {
        let Some(table) = self.table else { return };
        match self.all_wanted(table).and_then(|wanted| sync(&wanted, &mut Routes(&mut self.netlink, table))) {
            Ok(done) => {
                done.into_iter().for_each(|(prefix, result)| self.report(KernelKey::Route(prefix), result));
            }
            Err(_) => self.sync_at = self.sync_at.min(Instant::now() + RETRY),
        }
    }

    /// What the node wants, and early on what an earlier run left besides: a route that is no longer wanted was removed when the
    /// node said so.
    fn all_wanted(&mut self, table: u32) -> io::Result<BTreeMap<Prefix, BTreeSet<IpAddr>>> {
        let mut wanted =
            if Instant::now() < self.adopt_until { self.netlink.routes(table)? } else { BTreeMap::new() };
        wanted.extend(self.routes.clone());
        Ok(wanted)
    }

    fn report(&mut self, key: KernelKey, result: io::Result<()>) {
        if result.is_err() {
            self.sync_at = self.sync_at.min(Instant::now() + RETRY);
        }
        self.results.push(Input::Kernel(key, result.map_err(|e| e.to_string())));
    }
}

fn managed(vip: &Vip) -> Vec<LocalAddress> {
    let hosts = vip.prefixes.iter().filter(|p| p.is_host());
    let on = |interface: &String| {
        hosts.map(|p| LocalAddress { address: p.address(), interface: interface.clone() }).collect()
    };
    vip.manage.as_ref().map_or_else(Vec::new, on)
}
