//! The node's kernel tables: VIP addresses, the listener's routes and groups, its translations, and what it keeps from drains.
//!
//! Fast path: a change is written at once. Slow path: at the start, on a kernel event, on overrun and every 30 s the tables
//! are read and the difference is written again, because the kernel drops routes without telling. A change that the kernel
//! refuses stays wanted, is reported, and is tried again. This is when and what is said; [`crate::fib`], [`crate::nft`] and [`crate::steer`] know how.

use standfast_core::listen::{Group, Hop, Links};
use standfast_core::node::{Event, Input, KernelKey, Level, LocalAddress};
use standfast_core::plan::{Listener, OnStop, Plan, Vip};
use standfast_core::prefix::{Afi, Prefix};
use standfast_core::table::Change;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fib::{Count, Done, Fib, words};
use crate::netlink::{Heard, Monitor, Netlink, Rules};
use crate::nft::{self, Translation};
use crate::steer::{self, Steer};

/// How often the tables are read although nothing was heard.
const SYNC_EVERY: Duration = Duration::from_secs(30);
/// How soon a refused change is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Kernel events closer than this are answered by one reading.
const GATHER: Duration = Duration::from_millis(20);
/// How soon the thread of nft is asked for its answer again.
const ANSWER: Duration = Duration::from_millis(20);
/// So many mended VIPs are named, the others are counted.
const NAMED: usize = 16;

/// What the node wants of the kernel, and the way to it.
pub(crate) struct Kernel {
    netlink: Netlink,
    monitor: Monitor,
    /// Hears of changes of nftables, where that matters and can be.
    rules: Option<Rules>,
    /// The listener's plan until it [begins](Kernel::begin): till then its tables are another's.
    waiting: Option<Listener>,
    fib: Option<Fib>,
    translation: Option<Translation>,
    /// Why public addresses are not translated, and whose.
    untranslated: Option<String>,
    steer: Option<Steer>,
    /// Why new connections are not kept from members that drain.
    unsteered: Option<String>,
    public: BTreeSet<Prefix>,
    on_stop: OnStop,
    /// The table that routes go to, and the families of what is routed.
    table: u32,
    families: BTreeSet<Afi>,
    /// What stands in the way of all of them, as the node was told.
    faults: BTreeMap<KernelKey, String>,
    addresses: BTreeSet<LocalAddress>,
    /// Addresses that were there before us: never removed.
    foreign: BTreeSet<LocalAddress>,
    /// Addresses that are to go, which the kernel refused.
    leaving: BTreeSet<LocalAddress>,
    seen: BTreeSet<LocalAddress>,
    /// The interfaces as the node was told of them, if it needs them.
    links: Links,
    asks_links: bool,
    /// Whether an address was put on or taken off since they were read: many changes are answered by one reading.
    reread: bool,
    results: Vec<Input>,
    events: Vec<Event>,
    sync_at: Instant,
    rest_until: Instant,
}

impl Kernel {
    /// Opens the netlink sockets. What is the listener's is left alone until it [begins](Self::begin).
    pub(crate) fn new(plan: &Plan) -> io::Result<Self> {
        let listener = plan.listener.as_ref();
        let vips = || listener.into_iter().flat_map(|l| l.vips.values());
        let mut kernel = Self {
            netlink: Netlink::new()?,
            monitor: Monitor::new()?,
            rules: listener.and_then(|_| Rules::new().ok()),
            waiting: listener.cloned(),
            fib: None,
            translation: None,
            untranslated: None,
            steer: None,
            unsteered: None,
            public: vips().filter(|v| v.public.is_some()).map(|v| v.prefix).collect(),
            on_stop: listener.map_or(OnStop::Keep, |l| l.on_stop),
            table: listener.map_or(0, |l| l.table),
            families: vips().map(|v| v.prefix.afi()).collect(),
            faults: BTreeMap::new(),
            addresses: BTreeSet::new(),
            foreign: BTreeSet::new(),
            leaving: BTreeSet::new(),
            seen: BTreeSet::new(),
            links: Links::new(),
            asks_links: asks_links(plan),
            reread: false,
            results: Vec::new(),
            events: Vec::new(),
            sync_at: Instant::now() + SYNC_EVERY,
            rest_until: Instant::now(),
        };
        kernel.seen = kernel.netlink.addresses()?;
        kernel.read_links();
        let managed: BTreeSet<LocalAddress> = plan.vips.values().flat_map(managed).collect();
        let left: BTreeSet<LocalAddress> = &kernel.netlink.own_addresses()? & &managed;
        if !left.is_empty() {
            kernel.addresses.clone_from(&left);
            kernel.results.push(Input::Left(left));
        }
        Ok(kernel)
    }

    /// Takes the listener's tables in hand, with what an earlier run left in them, unless that was done.
    ///
    /// # Errors
    /// The kernel gives no netlink socket or thread, or does not answer; it can be tried again.
    pub(crate) fn begin(&mut self) -> io::Result<()> {
        let Some(plan) = &self.waiting else { return Ok(()) };
        let mut fib = Fib::new(plan)?;
        let translation = Translation::new(plan.vips.values())?;
        let mut steer = Steer::new(plan)?;
        self.monitor.ignore(fib.port()?);
        // A drain of the earlier run goes on as it was, until its members are back and say otherwise.
        let left: BTreeSet<Prefix> =
            plan.vips.values().map(|v| v.prefix).chain(steer.vips().copied()).collect();
        for prefix in left {
            steer.update(prefix, fib.spread(&prefix));
        }
        steer.flush();
        (self.fib, self.translation, self.steer, self.waiting) =
            (Some(fib), Some(translation), Some(steer), None);
        self.read_rules();
        Ok(())
    }

    /// Goes on by another plan, which changes nothing of what is fixed.
    pub(crate) fn change(&mut self, plan: &Plan) {
        self.asks_links = asks_links(plan);
        self.read_links();
        let Some(listener) = &plan.listener else { return };
        self.public = listener.vips.values().filter(|v| v.public.is_some()).map(|v| v.prefix).collect();
        self.families = listener.vips.values().map(|v| v.prefix.afi()).collect();
        self.on_stop = listener.on_stop;
        if let Some(waiting) = &mut self.waiting {
            waiting.clone_from(listener);
        }
        if let Some(translation) = &mut self.translation {
            translation.change(listener.vips.values());
        }
        if let Some(steer) = &mut self.steer {
            steer.change(listener);
        }
        self.read_rules();
    }

    /// The descriptors that become readable on kernel events.
    pub(crate) fn monitor_fds(&self) -> impl Iterator<Item = RawFd> {
        std::iter::once(self.monitor.fd()).chain(self.rules.as_ref().map(Rules::fd))
    }

    /// The usable addresses of this host.
    pub(crate) fn addresses(&mut self) -> BTreeSet<LocalAddress> {
        if self.reread {
            self.read_addresses();
        }
        self.seen.clone()
    }

    /// Something was heard: the tables are read again soon.
    pub(crate) fn readable(&mut self) {
        let rules = self.rules.as_mut().is_some_and(|rules| rules.heard(&[nft::TABLE, steer::TABLE]));
        if self.monitor.read() > Heard::Nothing || rules {
            self.sync_at = self.sync_at.min((Instant::now() + GATHER).max(self.rest_until));
        }
    }

    /// When the tables are read next.
    pub(crate) fn deadline(&self) -> Instant {
        if self.reread {
            return Instant::now();
        }
        let fib = self.fib.as_ref().and_then(Fib::deadline);
        let waits = self.translation.as_ref().is_some_and(Translation::is_waiting)
            || self.steer.as_ref().is_some_and(Steer::is_waiting);
        let answer = waits.then(|| Instant::now() + ANSWER);
        fib.into_iter().chain(answer).fold(self.sync_at, Instant::min)
    }

    /// What became of the changes asked for.
    pub(crate) fn take_results(&mut self) -> Vec<Input> {
        std::mem::take(&mut self.results)
    }

    /// What an operator would want to know of what others did.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Reads and mends the tables if it is time; the addresses if they changed.
    pub(crate) fn refresh(&mut self, now: Instant) -> Option<BTreeSet<LocalAddress>> {
        self.translated();
        self.steered();
        if let Some(fib) = self.fib.as_mut().filter(|f| f.deadline().is_some_and(|at| at <= now)) {
            let (done, held) = fib.tick(now);
            self.done(done);
            self.results.extend(held.and_then(|count| self.with_moved(count)));
        }
        if now < self.sync_at {
            return if self.reread { self.read_addresses() } else { None };
        }
        self.sync_at = now + SYNC_EVERY;
        let begun = Instant::now();
        if let Some(translation) = &mut self.translation {
            translation.check();
        }
        if let Some(fib) = &mut self.fib {
            match fib.sync() {
                Ok(done) => self.done(done),
                Err(_) => self.sync_at = self.sync_at.min(Instant::now() + RETRY),
            }
        }
        if let Some(steer) = &mut self.steer {
            steer.check();
        }
        self.read_rules();
        self.read_links();
        let had = self.seen.clone();
        let before = self.read_addresses();
        let missing: Vec<LocalAddress> = self.addresses.difference(&self.seen).cloned().collect();
        missing.iter().for_each(|address| self.put(address));
        for address in std::mem::take(&mut self.leaving) {
            self.take_off(address);
        }
        // On a host with a full table, reading it may take long: at most a tenth of the time goes into it.
        self.rest_until = Instant::now() + begun.elapsed() * 9;
        let after = self.read_addresses().or(before);
        // What this takes back is no first try, and no link that was down.
        let back = missing.into_iter().filter(|a| had.contains(a) && self.seen.contains(a));
        self.results.extend(back.map(Input::Restored));
        after
    }

    /// Tells whether packets are led to the listener's table, and whether its groups can be made, if that has changed.
    fn read_rules(&mut self) {
        let Some(fib) = &self.fib else { return };
        let mut faults: BTreeMap<KernelKey, String> = BTreeMap::new();
        faults.extend(fib.lacks().map(|why| (KernelKey::Groups, why.to_owned())));
        for afi in self.netlink.unread(self.table, &self.families) {
            let table = self.table;
            let six = if afi == Afi::Ipv6 { "-6 " } else { "" };
            let why = format!(
                "no rule leads to table {table}, so that its routes are not used: run `ip {six}rule add lookup {table}` (with what \
                 it is meant for), or take listener.table away"
            );
            faults.insert(KernelKey::Table(table, afi), why);
        }
        for key in self.faults.keys().filter(|key| !faults.contains_key(*key)) {
            self.results.push(Input::Kernel(key.clone(), Ok(())));
        }
        let new = faults.iter().filter(|(key, why)| self.faults.get(*key) != Some(*why));
        self.results.extend(new.map(|(key, why)| Input::Kernel(key.clone(), Err(why.clone()))));
        self.faults = faults;
    }

    /// Tells of the interfaces, if they are others than before.
    fn read_links(&mut self) {
        if self.asks_links
            && let Ok(links) = self.netlink.linked()
            && links != self.links
        {
            self.links.clone_from(&links);
            self.results.push(Input::Links(links));
        }
    }

    fn read_addresses(&mut self) -> Option<BTreeSet<LocalAddress>> {
        self.reread = false;
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
                self.leaving.remove(address);
                self.put(address);
            }
            Change::Remove(address) => {
                self.addresses.remove(address);
                if !self.foreign.remove(address) {
                    self.take_off(address.clone());
                }
            }
        }
        self.reread = true;
    }

    fn put(&mut self, address: &LocalAddress) {
        let result = self.netlink.add_address(address).map(|was_there| {
            if was_there {
                self.foreign.insert(address.clone());
            } else {
                self.foreign.remove(address);
            }
        });
        self.report(KernelKey::Address(address.clone()), result);
    }

    fn take_off(&mut self, address: LocalAddress) {
        let result = self.netlink.remove_address(&address);
        if result.is_err() {
            self.leaving.insert(address.clone());
        }
        self.report(KernelKey::Address(address), result);
    }

    /// Takes note of a change of the listener's; [`flush`](Self::flush) writes it.
    pub(crate) fn route(&mut self, change: Change<Prefix, Arc<Group>>) {
        if let Some(fib) = &mut self.fib {
            fib.change(change);
        }
    }

    /// The session of a member came up, or ended; [`flush`](Self::flush) writes what follows.
    pub(crate) fn member(&mut self, hop: Hop, up: bool) {
        if let Some(fib) = &mut self.fib {
            fib.member(hop, up, Instant::now());
        }
    }

    /// Whether there is something to [`flush`](Self::flush).
    pub(crate) fn is_dirty(&self) -> bool {
        self.fib.as_ref().is_some_and(Fib::is_dirty)
    }

    /// Writes the changes of the listener's.
    pub(crate) fn flush(&mut self) {
        if let Some(fib) = &mut self.fib {
            let done = fib.flush();
            self.done(done);
        }
    }

    /// A clean stop: what was made stays, or goes, as the plan says.
    pub(crate) fn stop(&mut self) {
        if self.on_stop == OnStop::Keep {
            return;
        }
        let routes = self.fib.take().map_or(Ok(()), |mut fib| fib.remove_all()).map_err(|e| e.to_string());
        let rules = self.translation.take().map_or(Ok(()), Translation::remove);
        let moved = self.steer.take().map_or(Ok(()), Steer::remove);
        for why in [routes, rules, moved].into_iter().filter_map(Result::err) {
            let message = format!("not everything could be removed: {why}");
            self.events.push(Event { level: Level::Warn, about: "listener".to_owned(), message });
        }
    }

    fn done(&mut self, done: Done) {
        let lacks = self.fib.as_ref().and_then(Fib::lacks).is_some();
        if lacks && !self.faults.contains_key(&KernelKey::Groups) {
            self.read_rules();
        }
        let mended = done.mended.into_iter().map(|(prefix, what, moved)| {
            let flows = if moved { ", but flows were spread anew: those that moved are broken" } else { "" };
            (prefix, format!("{what} by something else, the kernel or a hand: mended{flows}"))
        });
        self.tell(mended, "had been changed or were gone, too: mended");
        let lapsed = done.lapsed.into_iter().map(|(prefix, ends)| (prefix, words(&ends)));
        self.tell(lapsed, "have lost members of the earlier run, too");
        for (prefix, result) in done.results {
            self.report_route(prefix, result);
        }
        let (Some(fib), Some(steer)) = (&mut self.fib, &mut self.steer) else { return };
        for prefix in done.looked {
            if steer.knows(&prefix) || fib.drains(&prefix) {
                steer.update(prefix, fib.spread(&prefix));
            }
        }
        steer.flush();
    }

    /// What the next hops of a VIP hold, with the connections that are remembered for them; `None` until those are known.
    fn with_moved(&self, (prefix, mut held): Count) -> Option<Input> {
        if let Some(steer) = &self.steer {
            let moved = steer.counted(&prefix)?;
            for (hop, count) in moved {
                if let Some(held) = held.get_mut(&hop) {
                    held.moved = count;
                }
            }
        }
        Some(Input::Buckets(prefix, held))
    }

    /// Warns of VIPs: the first by name, the others by their number and what they have in common.
    fn tell(&mut self, mut all: impl Iterator<Item = (Prefix, String)>, common: &str) {
        let warn = |about, message| Event { level: Level::Warn, about, message };
        for (prefix, message) in all.by_ref().take(NAMED) {
            self.events.push(warn(format!("route {prefix}"), message));
        }
        let more = all.count();
        if more > 0 {
            self.events.push(warn("listener".to_owned(), format!("{more} other routes {common}")));
        }
    }

    /// A VIP works when it is routed, and its public address translated.
    fn report_route(&mut self, prefix: Prefix, result: Result<(), String>) {
        let result = match &self.untranslated {
            Some(why) if result.is_ok() && self.public.contains(&prefix) => Err(why.clone()),
            _ => result,
        };
        if result.is_err() {
            self.sync_at = self.sync_at.min(Instant::now() + RETRY);
        }
        self.results.push(Input::Kernel(KernelKey::Route(prefix), result));
    }

    /// Takes the answers of nft.
    fn translated(&mut self) {
        while let Some(answer) = self.translation.as_mut().and_then(Translation::answer) {
            let before = self.untranslated.take();
            match answer {
                Ok(true) => {
                    let message = "the table had been changed by something else: mended".to_owned();
                    let about = format!("nftables table inet {}", nft::TABLE);
                    self.events.push(Event { level: Level::Warn, about, message });
                }
                Ok(false) => {}
                Err(why) => {
                    self.sync_at = self.sync_at.min(Instant::now() + RETRY);
                    self.untranslated = Some(why);
                }
            }
            if self.untranslated != before {
                let routed = |p: &Prefix| self.fib.as_ref().is_none_or(|f| f.pending(p));
                let all: Vec<Prefix> = self.public.iter().filter(|p| !routed(p)).copied().collect();
                all.into_iter().for_each(|prefix| self.report_route(prefix, Ok(())));
            }
        }
    }

    /// Takes the answers of the thread that keeps new connections from members that drain.
    fn steered(&mut self) {
        while let Some(answer) = self.steer.as_mut().and_then(Steer::answer) {
            let warn = |about: String, message| Event { level: Level::Warn, about, message };
            let why = match answer {
                Ok(mended) => {
                    if mended {
                        let message = "it, or a rule or route beside it, had been changed by something else, the kernel or a hand: mended";
                        self.events
                            .push(warn(format!("nftables table inet {}", steer::TABLE), message.to_owned()));
                    }
                    None
                }
                Err(why) => Some(why),
            };
            if why != self.unsteered {
                if let Some(why) = &why {
                    let message = format!(
                        "new connections to a member that drains cannot be kept from it where they fall into a bucket of its: {why}"
                    );
                    self.events.push(warn("listener".to_owned(), message));
                }
                self.results.push(Input::Unsteered(why.clone()));
                self.unsteered = why;
            }
        }
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

/// Whether the node needs to know of the interfaces.
fn asks_links(plan: &Plan) -> bool {
    plan.listener.is_some() || plan.bgp.peers.values().any(|p| p.interface.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use standfast_core::plan::{Bgp, Hashing, ListenerVip, Public, Router};
    use std::net::{IpAddr, Ipv4Addr};

    const MAIN: u32 = 254;

    /// Runs `f` on a host whose `lo` is up, with the tables of a node that wants nothing yet; says aloud if it cannot.
    fn alone(test: &str, f: impl FnOnce(Kernel) + Send) {
        let host = match Namespace::new() {
            Ok(host) => host,
            Err(e) => return eprintln!("SKIP {test}: {e}"),
        };
        let inside = || {
            Netlink::new()?.switch_on("lo")?;
            let mut kernel = Kernel::new(&plan())?;
            kernel.begin()?;
            f(kernel);
            Ok(())
        };
        host.within(inside).unwrap();
    }

    fn plan() -> Plan {
        Plan {
            router: Router {
                asn: 64512,
                router_id: Ipv4Addr::new(192, 0, 2, 1),
                local_address: None,
                local_address_ipv6: None,
            },
            bgp: Bgp { listen: Vec::new(), peers: BTreeMap::new() },
            vips: BTreeMap::new(),
            checks: BTreeMap::new(),
            listener: Some(Listener::new(Vec::new(), BTreeMap::new())),
        }
    }

    fn vip() -> LocalAddress {
        LocalAddress { address: "198.51.100.10".parse().unwrap(), interface: "lo".to_owned() }
    }

    /// What was reported since: whether each change was taken.
    fn taken(kernel: &mut Kernel) -> Vec<bool> {
        let results = kernel.take_results().into_iter();
        results.filter_map(|i| if let Input::Kernel(_, r) = i { Some(r.is_ok()) } else { None }).collect()
    }

    fn refresh(kernel: &mut Kernel) -> Option<BTreeSet<LocalAddress>> {
        kernel.refresh(kernel.sync_at)
    }

    /// Does `f` without the right to change anything, as this thread alone.
    #[expect(unsafe_code, reason = "the safe ways change every thread")]
    fn without_rights(f: impl FnOnce()) {
        let become_user = |id: libc::uid_t| {
            // SAFETY: by its number the call changes the calling thread alone; it takes numbers, the largest of which means to keep.
            let done = unsafe { libc::syscall(libc::SYS_setresuid, libc::uid_t::MAX, id, libc::uid_t::MAX) };
            assert_eq!(done, 0);
        };
        become_user(65534);
        f();
        become_user(0);
    }

    #[test]
    fn a_refused_route_stays_wanted_and_is_made_when_it_can_be() {
        alone("a_refused_route", |mut kernel| {
            let prefix: Prefix = "198.51.100.10/32".parse().unwrap();
            let via = BTreeSet::from([IpAddr::from([192, 0, 2, 2])]);
            kernel.route(Change::Set(prefix, Group::plain(via.iter().copied()).into()));
            kernel.flush();
            assert_eq!(taken(&mut kernel), [false]);
            assert!(kernel.deadline() <= Instant::now() + RETRY, "it is tried again soon");
            refresh(&mut kernel);
            assert_eq!(taken(&mut kernel), [false]);
            // A gateway on `lo` is never reachable; one behind a cable is, once its network is there.
            let other = Namespace::new().unwrap();
            let mut operator = Netlink::new().unwrap();
            operator.add_cable("out", &other, "in").unwrap();
            operator.add_ends("out", IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2])).unwrap();
            operator.switch_on("out").unwrap();
            let addresses = refresh(&mut kernel).unwrap();
            assert!(addresses.iter().any(|a| a.interface == "out"), "{addresses:?}");
            assert_eq!(taken(&mut kernel), [true]);
            assert_eq!(operator.routes(MAIN).unwrap(), BTreeMap::from([(prefix, via)]));
            refresh(&mut kernel);
            assert!(taken(&mut kernel).is_empty(), "what is right is left alone");
        });
    }

    #[test]
    fn an_address_that_somebody_deletes_comes_back() {
        alone("an_address_that_somebody_deletes", |mut kernel| {
            kernel.address(&Change::Set(vip(), ()));
            assert!(kernel.addresses().contains(&vip()));
            Netlink::new().unwrap().remove_address(&vip()).unwrap();
            kernel.readable();
            assert!(kernel.deadline() <= Instant::now() + GATHER, "it was heard");
            refresh(&mut kernel);
            assert!(Netlink::new().unwrap().addresses().unwrap().contains(&vip()));
            let mut results = kernel.take_results();
            assert!(
                matches!(results.pop(), Some(Input::Restored(address)) if address == vip()),
                "it is not said"
            );
            let taken = results.iter().filter(|i| matches!(i, Input::Kernel(_, Ok(())))).count();
            assert_eq!(taken, 2, "{results:?}");
            refresh(&mut kernel);
            let again = kernel.take_results().into_iter().any(|i| matches!(i, Input::Restored(_)));
            assert!(!again, "it is said once");
        });
    }

    #[test]
    fn an_address_of_the_operators_stays_and_one_that_took_its_place_goes() {
        if std::process::Command::new("ip").arg("-V").output().is_err() {
            return eprintln!("SKIP an_address_of_the_operators: the package iproute2 is missing");
        }
        alone("an_address_of_the_operators", |mut kernel| {
            let mut operator = Netlink::new().unwrap();
            let IpAddr::V4(address) = vip().address else { unreachable!() };
            operator.add_ends("lo", address.into(), address.into()).unwrap();
            kernel.address(&Change::Set(vip(), ()));
            kernel.address(&Change::Remove(vip()));
            assert!(operator.addresses().unwrap().contains(&vip()), "it was there before us");
            kernel.address(&Change::Set(vip(), ()));
            // The operator takes it away while the node wants it: from then on it is ours.
            assert!(
                std::process::Command::new("ip")
                    .args(["addr", "flush", "dev", "lo"])
                    .status()
                    .unwrap()
                    .success()
            );
            refresh(&mut kernel);
            assert_eq!(operator.own_addresses().unwrap(), BTreeSet::from([vip()]));
            kernel.address(&Change::Remove(vip()));
            assert!(!operator.addresses().unwrap().contains(&vip()));
        });
    }

    #[test]
    fn an_address_that_could_not_be_taken_off_is_taken_off_later() {
        alone("an_address_that_could_not_be_taken_off", |mut kernel| {
            kernel.address(&Change::Set(vip(), ()));
            without_rights(|| kernel.address(&Change::Remove(vip())));
            assert_eq!(taken(&mut kernel), [true, false]);
            assert!(kernel.addresses().contains(&vip()));
            assert!(kernel.deadline() <= Instant::now() + RETRY, "it is tried again soon");
            refresh(&mut kernel);
            assert_eq!(taken(&mut kernel), [true]);
            assert!(!kernel.addresses().contains(&vip()));
            // One that is wanted again meanwhile stays.
            kernel.address(&Change::Set(vip(), ()));
            without_rights(|| kernel.address(&Change::Remove(vip())));
            kernel.address(&Change::Set(vip(), ()));
            refresh(&mut kernel);
            assert!(kernel.addresses().contains(&vip()));
        });
    }

    /// A host with a cable whose network has members, and what `ip` says there.
    fn cabled(test: &str, f: impl FnOnce(Kernel) + Send) {
        if std::process::Command::new("ip").arg("-V").output().is_err() {
            return eprintln!("SKIP {test}: the package iproute2 is missing");
        }
        alone(test, |mut kernel| {
            let other = Namespace::new().unwrap();
            let mut operator = Netlink::new().unwrap();
            operator.add_cable("out", &other, "in").unwrap();
            operator.add_ends("out", IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2])).unwrap();
            // Addresses that come by themselves would be heard later.
            ip("link set out addrgenmode none");
            operator.switch_on("out").unwrap();
            other.within(|| Netlink::new()?.switch_on("in")).unwrap();
            // Until the carrier is there.
            let end = Instant::now() + Duration::from_secs(10);
            while taken_route(&mut kernel) != [true] {
                assert!(Instant::now() < end, "the route is never made");
                std::thread::sleep(Duration::from_millis(10));
                kernel.readable();
            }
            let mut silent = 0;
            while silent < 30 {
                std::thread::sleep(Duration::from_millis(10));
                silent = if kernel.monitor.read() == Heard::Nothing { silent + 1 } else { 0 };
            }
            refresh(&mut kernel);
            kernel.take_results();
            kernel.take_events();
            f(kernel);
        });
    }

    fn ip(words: &str) -> String {
        let out = std::process::Command::new("ip").args(words.split(' ')).output().unwrap();
        assert!(out.status.success(), "ip {words}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    fn prefix() -> Prefix {
        "198.51.100.10/32".parse().unwrap()
    }

    fn resilient(draining: bool) -> Group {
        let mut group = Group::plain([IpAddr::from([192, 0, 2, 2])]);
        group.hashing = Hashing::Resilient {
            buckets: Some(64),
            idle_timer: Duration::from_secs(120),
            unbalanced_timer: Duration::ZERO,
        };
        group.hops.values_mut().for_each(|share| share.draining = draining);
        group
    }

    fn taken_route(kernel: &mut Kernel) -> Vec<bool> {
        kernel.route(Change::Set(prefix(), resilient(false).into()));
        kernel.flush();
        let done = taken(kernel);
        kernel.refresh(kernel.sync_at);
        [done, taken(kernel)].concat().into_iter().rev().take(1).collect()
    }

    #[test]
    fn a_hand_in_the_tables_is_heard_mended_and_told_and_our_own_is_not() {
        cabled("a_hand_in_the_tables", |mut kernel| {
            let far = kernel.sync_at;
            kernel.route(Change::Remove(prefix()));
            kernel.route(Change::Set(prefix(), resilient(true).into()));
            kernel.flush();
            kernel.route(Change::Set("198.51.100.11/32".parse().unwrap(), resilient(false).into()));
            kernel.flush();
            kernel.readable();
            assert_eq!(kernel.sync_at, far, "our own changes need no reading");
            assert_eq!(kernel.monitor.read(), Heard::Nothing);
            let _ = kernel.take_results();
            ip("nexthop flush proto 185");
            kernel.readable();
            assert!(kernel.deadline() <= Instant::now() + GATHER, "it was heard");
            refresh(&mut kernel);
            let events = kernel.take_events();
            assert!(
                events.len() == 2
                    && events.iter().all(|e| e.level == Level::Warn && e.message.contains("mended")),
                "{events:?}"
            );
            assert_eq!(taken(&mut kernel), [true, true]);
            assert_eq!(Netlink::new().unwrap().routes(MAIN).unwrap().len(), 2);
            refresh(&mut kernel);
            assert!(kernel.take_events().is_empty() && taken(&mut kernel).is_empty());
        });
    }

    #[test]
    fn the_tables_of_another_are_left_alone_until_it_begins() {
        cabled("the_tables_of_another", |kernel| {
            let listener = || {
                let vips = [("web".to_owned(), ListenerVip::new(prefix()))];
                Plan { listener: Some(Listener::new(Vec::new(), vips.into())), ..plan() }
            };
            let shown = || ip("nexthop show proto 185") + &ip("route show proto 185");
            let before = shown();
            assert!(before.contains("192.0.2.2"), "{before}");
            let mut second = Kernel::new(&listener()).unwrap();
            let long = Instant::now() + Duration::from_secs(100);
            second.route(Change::Remove(prefix()));
            second.flush();
            second.refresh(long);
            assert_eq!(shown(), before);
            let mut third = Kernel::new(&listener()).unwrap();
            third.on_stop = OnStop::Remove;
            third.stop();
            assert_eq!(shown(), before);
            // The first is gone, and what it left is the second's from now on.
            drop(kernel);
            second.begin().unwrap();
            second.sync_at = Instant::now();
            refresh(&mut second);
            assert_eq!(shown(), before);
            second.refresh(long);
            assert_eq!(shown(), "");
        });
    }

    #[test]
    fn a_public_table_that_somebody_deletes_is_heard_and_written_anew() {
        if std::process::Command::new("nft").arg("-v").output().is_err() {
            return eprintln!("SKIP a_public_table_that_somebody_deletes: the package nftables is missing");
        }
        alone("a_public_table_that_somebody_deletes", |_| {
            let public = Some(Public { address: [203, 0, 113, 5].into(), ports: vec![443] });
            let vip = ListenerVip { public, ..ListenerVip::new(prefix()) };
            let listener = Listener::new(Vec::new(), [("web".to_owned(), vip)].into());
            let mut kernel = Kernel::new(&Plan { listener: Some(listener), ..plan() }).unwrap();
            kernel.begin().unwrap();
            let nft = |words: &str| {
                std::process::Command::new("nft").args(words.split(' ')).output().unwrap().status.success()
            };
            let end = Instant::now() + Duration::from_secs(20);
            while kernel.translation.as_ref().unwrap().is_waiting() {
                assert!(Instant::now() < end, "the table is never made");
                std::thread::sleep(Duration::from_millis(10));
                kernel.translated();
            }
            // What it wrote itself.
            kernel.readable();
            kernel.refresh(kernel.sync_at);
            while kernel.translation.as_ref().unwrap().is_waiting() {
                assert!(Instant::now() < end, "it is never looked at");
                std::thread::sleep(Duration::from_millis(10));
                kernel.translated();
            }
            kernel.take_events();
            // The kernel tells of `lo` late on a busy machine.
            let mut silent = 0;
            while silent < 30 {
                assert!(Instant::now() < end, "it is never silent");
                std::thread::sleep(Duration::from_millis(10));
                let rules = kernel.rules.as_mut().is_some_and(|rules| rules.heard(&[nft::TABLE]));
                silent = if kernel.monitor.read() == Heard::Nothing && !rules { silent + 1 } else { 0 };
            }
            assert!(nft("add table inet somebody"));
            let far = kernel.sync_at;
            kernel.readable();
            assert_eq!(kernel.sync_at, far, "the tables of others are theirs");
            // Refused if another transaction comes between: ours look whether they can be done.
            while !nft("delete table inet standfast_public") {
                assert!(Instant::now() < end, "it cannot be deleted");
                std::thread::sleep(Duration::from_millis(10));
            }
            kernel.readable();
            assert!(kernel.sync_at < far, "it was not heard");
            let mut events = Vec::new();
            while !events.iter().any(|e: &Event| e.message.contains("mended")) {
                assert!(Instant::now() < end, "it is never mended: {events:?}");
                std::thread::sleep(Duration::from_millis(10));
                kernel.refresh(Instant::now());
                events.extend(kernel.take_events());
            }
            assert!(nft("list table inet standfast_public"));
        });
    }

    #[test]
    fn a_table_that_no_rule_leads_to_is_told_until_one_does() {
        cabled("a_table_that_no_rule_leads_to", |mut kernel| {
            kernel.table = 100;
            kernel.families = BTreeSet::from([Afi::Ipv4]);
            kernel.read_rules();
            let told = |kernel: &mut Kernel| match kernel.take_results().pop() {
                Some(Input::Kernel(key, result)) => (key.to_string(), result),
                other => panic!("{other:?}"),
            };
            let (about, why) = told(&mut kernel);
            assert_eq!(about, "IPv4 in table 100");
            assert!(why.as_ref().is_err_and(|why| why.contains("ip rule add lookup 100")), "{why:?}");
            kernel.read_rules();
            assert!(kernel.take_results().is_empty(), "it is told once");
            ip("rule add lookup 100");
            kernel.read_rules();
            assert_eq!(told(&mut kernel), ("IPv4 in table 100".to_owned(), Ok(())));
            // A rule of another family leads nowhere here, and every VRF has its own.
            kernel.families.insert(Afi::Ipv6);
            kernel.read_rules();
            let (about, why) = told(&mut kernel);
            assert!(about == "IPv6 in table 100" && why.is_err_and(|why| why.contains("ip -6 rule")));
        });
    }

    #[test]
    fn many_that_are_mended_are_counted() {
        cabled("many_that_are_mended", |mut kernel| {
            for n in 0..100 {
                let prefix = Prefix::host(IpAddr::from([198, 51, 100, n]));
                kernel.route(Change::Set(prefix, resilient(false).into()));
            }
            kernel.flush();
            ip("nexthop flush proto 185");
            refresh(&mut kernel);
            let events = kernel.take_events();
            assert_eq!(events.len(), NAMED + 1);
            assert!(events[NAMED].message.starts_with("84 other routes"), "{:?}", events[NAMED]);
        });
    }

    #[test]
    fn a_clean_stop_keeps_everything_or_removes_everything() {
        // The group, and its one next hop twice.
        for (on_stop, left) in [(OnStop::Keep, 3), (OnStop::Remove, 0)] {
            cabled("a_clean_stop", |mut kernel| {
                kernel.on_stop = on_stop;
                kernel.stop();
                assert!(kernel.take_events().is_empty());
                assert_eq!(ip("nexthop show proto 185").lines().count(), left);
                assert_eq!(Netlink::new().unwrap().routes(MAIN).unwrap().len(), left / 3);
            });
        }
    }

    #[test]
    fn buckets_are_told_while_a_member_drains() {
        cabled("buckets_are_told", |mut kernel| {
            kernel.route(Change::Set(prefix(), resilient(true).into()));
            kernel.flush();
            kernel.take_results();
            assert!(kernel.deadline() <= Instant::now() + Duration::from_secs(1));
            let hop = IpAddr::from([192, 0, 2, 2]).into();
            kernel.refresh(Instant::now() + Duration::from_secs(2));
            let told = kernel.take_results().into_iter().find_map(|input| match input {
                Input::Buckets(at, held) if at == prefix() => Some(held),
                _ => None,
            });
            assert_eq!(told.unwrap()[&hop].buckets, 64);
            assert!(kernel.deadline() <= Instant::now() + Duration::from_secs(4), "and again");
        });
    }
}
