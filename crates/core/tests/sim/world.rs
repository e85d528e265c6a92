//! The world: hosts, a simulated TCP and kernel, and the promises that are looked at after every step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use standfast_core::announce::VipState;
use standfast_core::bfd::{self, Bfd};
use standfast_core::bgp::State;
use standfast_core::health::{Expr, Verdict};
use standfast_core::listen::Group;
use standfast_core::machine::Rng;
use standfast_core::node::{ConnId, Input, KernelKey, LocalAddress, Node, Output};
use standfast_core::plan::{CheckId, Plan, Probe};
use standfast_core::table::Change;
use standfast_core::{Machine, Prefix, Time};

use crate::bench::octets::{Parsed, Table, UPDATE, split};
use crate::bench::peer::secs;
use crate::foreign::{Act, Foreign, Wire};

/// What a host runs.
pub(crate) enum Kind {
    /// standfast; `None` while it is not running.
    Node(Option<Box<Node>>),
    Foreign(Foreign),
}

pub(crate) struct Host {
    pub(crate) address: Ipv4Addr,
    pub(crate) kind: Kind,
    pub(crate) plan: Option<Plan>,
    /// Addresses in the kernel, and those that the node has been shown.
    pub(crate) addresses: BTreeSet<LocalAddress>,
    pub(crate) shown: BTreeSet<LocalAddress>,
    /// What an earlier run of the node left behind.
    pub(crate) left: BTreeSet<LocalAddress>,
    /// Routes of the listener in the kernel.
    pub(crate) routes: BTreeMap<Prefix, BTreeSet<IpAddr>>,
    pub(crate) groups: BTreeMap<Prefix, Arc<Group>>,
    /// What each check says when it runs.
    pub(crate) good: BTreeMap<CheckId, bool>,
    /// Whether the prober works at all.
    pub(crate) probing: bool,
    /// The last verdicts of each check that this run of the node has taken.
    pub(crate) verdicts: BTreeMap<CheckId, Vec<bool>>,
    pub(crate) files: BTreeMap<String, bool>,
    pub(crate) stopped: bool,
    /// Whether it went on by another plan since it began.
    reloaded: bool,
    conns: BTreeMap<ConnId, Wire>,
    runs: u64,
    /// The BFD sessions of the node, on their own thread in the world.
    bfd: Option<Bfd>,
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    unsent: VecDeque<u8>,
    flying: VecDeque<(Time, Bytes)>,
    fin: bool,
    /// What was told over it, by our own reading of the octets.
    stream: Vec<u8>,
    told: Table,
}

struct Tcp {
    hosts: [usize; 2],
    ids: [Option<ConnId>; 2],
    /// Whether the end is still there.
    alive: [bool; 2],
    /// Whether the end knows of the connection.
    known: [bool; 2],
    ways: [Way; 2],
}

enum Event {
    Syn(Wire),
    Established(Wire),
    Arrive(Wire, usize),
    Move(Wire, usize),
    Failed(usize, ConnId, &'static str),
    Kernel(usize),
    Check(usize, CheckId, u64),
    Foreign(usize),
    Start(usize),
    /// An input that waited for its host to be thawed.
    Late(usize, u64, Input),
    /// Something for the BFD sessions of a run, which waits while their host is frozen.
    Bfd(usize, u64, bfd::Input),
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    pub(crate) hosts: Vec<Host>,
    pub(crate) cut: BTreeSet<(usize, usize)>,
    /// BFD's packets are lost everywhere, and BGP's are not.
    pub(crate) deaf: bool,
    /// Hosts that read this many octets per 100 ms.
    pub(crate) slow: BTreeMap<usize, usize>,
    /// When a link or an end was last disturbed.
    pub(crate) disturbed: BTreeMap<usize, Time>,
    pub(crate) log: Vec<String>,
    pub(crate) seed: u64,
    /// Hosts whose process is stopped until then: nothing is read, run or timed, and the kernel goes on.
    frozen: BTreeMap<usize, Time>,
    /// Connections that ended while their host was frozen.
    ending: BTreeSet<(usize, ConnId)>,
    tcp: BTreeMap<Wire, Tcp>,
    events: BTreeMap<(Time, u64), Event>,
    serial: u64,
    delay: u64,
    accepted: u64,
    checked: Time,
}

/// Octets that a kernel takes while nothing gets through.
const SOCKET: usize = 32 * 1024;

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let delay = [300, 2_000, 40_000][rng.below(3) as usize];
        Self {
            now: Time::from_secs(10),
            rng,
            hosts: Vec::new(),
            cut: BTreeSet::new(),
            deaf: false,
            slow: BTreeMap::new(),
            disturbed: BTreeMap::new(),
            log: Vec::new(),
            seed,
            frozen: BTreeMap::new(),
            ending: BTreeSet::new(),
            tcp: BTreeMap::new(),
            events: BTreeMap::new(),
            serial: 0,
            delay,
            accepted: ConnId::ACCEPTED.0,
            checked: Time::ZERO,
        }
    }

    pub(crate) fn add_foreign(&mut self, asn: u16, address: Ipv4Addr, modern: bool) -> usize {
        let host = self.hosts.len();
        let foreign = Foreign::new(asn, address.octets(), modern);
        self.push(address, Kind::Foreign(foreign), None);
        self.at(Duration::from_millis(500), Event::Foreign(host));
        host
    }

    pub(crate) fn add_node(&mut self, plan: Plan) -> usize {
        let host = self.hosts.len();
        let address = plan.router.router_id;
        self.push(address, Kind::Node(None), Some(plan));
        self.start(host);
        host
    }

    fn push(&mut self, address: Ipv4Addr, kind: Kind, plan: Option<Plan>) {
        let good = plan.iter().flat_map(|p| p.checks.keys().map(|id| (id.clone(), true))).collect();
        self.hosts.push(Host {
            address,
            kind,
            plan,
            addresses: BTreeSet::new(),
            shown: BTreeSet::new(),
            left: BTreeSet::new(),
            routes: BTreeMap::new(),
            groups: BTreeMap::new(),
            good,
            probing: true,
            verdicts: BTreeMap::new(),
            files: BTreeMap::new(),
            stopped: false,
            reloaded: false,
            conns: BTreeMap::new(),
            runs: 0,
            bfd: None,
        });
    }

    fn at(&mut self, after: Duration, event: Event) {
        self.serial += 1;
        self.events.insert((self.now + after, self.serial), event);
    }

    fn hop(&mut self) -> Duration {
        Duration::from_micros(50 + self.rng.below(self.delay))
    }

    fn say(&mut self, text: String) {
        self.log.push(format!("{} {text}", self.now));
    }

    pub(crate) fn node(&self, host: usize) -> Option<&Node> {
        match &self.hosts[host].kind {
            Kind::Node(node) => node.as_deref(),
            Kind::Foreign(_) => None,
        }
    }

    pub(crate) fn foreign(&mut self, host: usize) -> &mut Foreign {
        match &mut self.hosts[host].kind {
            Kind::Foreign(foreign) => foreign,
            Kind::Node(_) => panic!("host {host} is a node"),
        }
    }

    pub(crate) fn is_cut(&self, a: usize, b: usize) -> bool {
        self.cut.contains(&(a.min(b), a.max(b)))
    }

    pub(crate) fn disturb(&mut self, host: usize) {
        self.disturbed.insert(host, self.thaws(host).unwrap_or(self.now));
    }

    /// Starts a node, or starts it anew after a kill; what it left in the kernel is still there.
    pub(crate) fn start(&mut self, host: usize) {
        if self.node(host).is_some() {
            return;
        }
        let seed = self.rng.next_u64();
        let h = &mut self.hosts[host];
        let plan = h.plan.clone().unwrap();
        h.runs += 1;
        (h.stopped, h.reloaded) = (false, false);
        h.verdicts.clear();
        h.routes.clear();
        h.groups.clear();
        h.left = h.addresses.clone();
        let node = Node::new(self.now, plan.clone(), seed);
        h.bfd = Some(Bfd::new(seed));
        h.kind = Kind::Node(Some(Box::new(node)));
        let run = h.runs;
        // Those of the listener's members the node gives verdicts for by itself.
        for (id, _) in plan.checks.iter().filter(|(_, c)| !matches!(c.probe, Probe::Members(_))) {
            let jitter = Duration::from_millis(self.rng.below(1000));
            self.at(jitter, Event::Check(host, id.clone(), run));
        }
        self.disturb(host);
        self.say(format!("host {host} starts"));
        self.at(Duration::from_millis(1), Event::Kernel(host));
        for (vip, exists) in self.hosts[host].files.clone() {
            self.input(host, Input::LowerPriorityFile(vip, exists));
        }
    }

    /// Has a node go on by another plan, after it was given its own once more, upon which nothing may happen.
    pub(crate) fn reload(&mut self, host: usize, plan: Plan) {
        let now = self.now;
        if let Kind::Node(Some(node)) = &mut self.hosts[host].kind {
            let (own, before) = (Arc::new(Plan::clone(node.plan())), node.deadline());
            // What is due, or is noticed by any input, is no work of it.
            if before.is_none_or(|(at, _)| at > now) {
                let mut out = Vec::new();
                node.handle(now, Input::Plan(own), &mut out);
                assert!(out.is_empty(), "seed {}: the same plan did {out:?}", self.seed);
            }
        }
        let run = self.hosts[host].runs;
        let known: BTreeSet<CheckId> =
            self.hosts[host].plan.iter().flat_map(|p| p.checks.keys().cloned()).collect();
        for (id, check) in &plan.checks {
            self.hosts[host].good.entry(id.clone()).or_insert(true);
            if !known.contains(id) && !matches!(check.probe, Probe::Members(_)) {
                let jitter = Duration::from_millis(self.rng.below(1000));
                self.at(jitter, Event::Check(host, id.clone(), run));
            }
        }
        let before = self.hosts[host].plan.replace(plan.clone());
        let same = |id: &CheckId| {
            let old = before.as_ref().and_then(|before| before.checks.get(id));
            old.zip(plan.checks.get(id)).is_some_and(|(old, new)| old.asks_as(new))
        };
        self.hosts[host].verdicts.retain(|id, _| same(id));
        self.hosts[host].reloaded = true;
        self.disturb(host);
        self.say(format!("host {host} is reloaded"));
        self.input(host, Input::Plan(Arc::new(plan)));
    }

    pub(crate) fn start_later(&mut self, host: usize, after: Duration) {
        self.at(after, Event::Start(host));
    }

    pub(crate) fn start_later_if_node(&mut self, host: usize, after: Duration) {
        if self.hosts[host].plan.is_some() {
            self.start_later(host, after);
        }
    }

    /// The process dies: its kernel resets what it had open, where anything still gets through.
    pub(crate) fn kill(&mut self, host: usize) {
        self.say(format!("host {host} is killed"));
        self.frozen.remove(&host);
        self.ending.retain(|(h, _)| *h != host);
        self.disturb(host);
        match &mut self.hosts[host].kind {
            Kind::Node(node) => *node = None,
            Kind::Foreign(foreign) => foreign.forget(),
        }
        self.hosts[host].bfd = None;
        self.hosts[host].conns.clear();
        let wires: Vec<(Wire, usize)> = self
            .tcp
            .iter()
            .filter_map(|(w, t)| Some((*w, t.hosts.iter().position(|h| *h == host)?)))
            .collect();
        for (wire, side) in wires {
            self.drop_end(wire, side, true);
        }
    }

    /// Stops the process of a host for so long.
    pub(crate) fn freeze(&mut self, host: usize, d: Duration) {
        self.say(format!("host {host} is stopped for {d:?}"));
        self.frozen.insert(host, self.now + d);
        self.disturbed.insert(host, self.now + d);
    }

    /// When a stopped host goes on.
    fn thaws(&self, host: usize) -> Option<Time> {
        self.frozen.get(&host).copied().filter(|at| *at > self.now)
    }

    pub(crate) fn input(&mut self, host: usize, input: Input) {
        if let Some(thaw) = self.thaws(host) {
            if let Input::Closed(conn, _) = &input {
                self.ending.insert((host, *conn));
            }
            return self.at(thaw.since(self.now), Event::Late(host, self.hosts[host].runs, input));
        }
        if let Input::Closed(conn, _) = &input {
            self.ending.remove(&(host, *conn));
        }
        let now = self.now;
        let mut out = Vec::new();
        if let Input::Addresses(addresses) = &input {
            self.hosts[host].shown.clone_from(addresses);
        }
        if let Kind::Node(Some(node)) = &mut self.hosts[host].kind {
            node.handle(now, input, &mut out);
        }
        self.perform(host, out);
    }

    fn perform(&mut self, host: usize, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Dial(dial) => self.dial(host, dial.conn, dial.remote.ip(), dial.timeout),
                Output::Send(conn, octets) => {
                    let Some(&wire) = self.hosts[host].conns.get(&conn) else {
                        if self.ending.contains(&(host, conn)) {
                            continue;
                        }
                        panic!("seed {}: octets for connection {conn:?} that is not open", self.seed)
                    };
                    self.send(host, wire, &octets);
                }
                Output::Close(conn) => {
                    if let Some(wire) = self.hosts[host].conns.remove(&conn) {
                        let side = self.side(wire, host);
                        self.drop_end(wire, side, false);
                    }
                }
                Output::Address(change) => self.address(host, &change),
                Output::Route(Change::Set(prefix, group)) => {
                    assert!(!group.hops.is_empty());
                    self.hosts[host].routes.insert(prefix, group.addresses());
                    self.hosts[host].groups.insert(prefix, group);
                }
                Output::Route(Change::Remove(prefix)) => {
                    self.hosts[host].groups.remove(&prefix);
                    let had = self.hosts[host].routes.remove(&prefix);
                    assert!(had.is_some(), "seed {}: a route that was not there is removed", self.seed);
                }
                Output::Pace(..)
                | Output::Member(..)
                | Output::Count(..)
                | Output::Patience(..)
                | Output::Remember => {}
                Output::Bfd(change) => {
                    let run = self.hosts[host].runs;
                    self.at(Duration::ZERO, Event::Bfd(host, run, bfd::Input::Wanted(change)));
                }
                Output::Event(event) => {
                    self.say(format!("host {host} {:?} {}: {}", event.level, event.about, event.message));
                }
                Output::Stopped => {
                    self.hosts[host].stopped = true;
                    self.say(format!("host {host} stopped"));
                }
            }
        }
    }

    /// What `host` told over its connections, by its own octets.
    fn told_by(&self, host: usize) -> impl Iterator<Item = &Table> {
        self.tcp.values().filter_map(move |t| {
            let side = t.hosts.iter().position(|h| *h == host)?;
            t.alive[side].then_some(&t.ways[side].told)
        })
    }

    fn address(&mut self, host: usize, change: &Change<LocalAddress, ()>) {
        match change {
            Change::Set(address, ()) => {
                self.hosts[host].addresses.insert(address.clone());
            }
            Change::Remove(address) => {
                let prefix = Prefix::host(address.address);
                let told = self.told_by(host).any(|t| t.0.contains_key(&prefix));
                self.hosts[host].addresses.remove(address);
                let moved = self.hosts[host].addresses.iter().any(|a| a.address == address.address);
                assert!(
                    !told || moved,
                    "seed {}: {prefix} leaves the host while it is still told",
                    self.seed
                );
            }
        }
        self.say(format!("host {host} {change:?}"));
        let after = Duration::from_micros(200 + self.rng.below(20_000));
        let key = KernelKey::Address(change.key().clone());
        self.input(host, Input::Kernel(key, Ok(())));
        self.at(after, Event::Kernel(host));
    }

    fn dial(&mut self, host: usize, conn: ConnId, remote: IpAddr, timeout: Duration) {
        let Some(target) = self.hosts.iter().position(|h| IpAddr::V4(h.address) == remote) else {
            return self.at(timeout, Event::Failed(host, conn, "no such host"));
        };
        if self.is_cut(host, target) {
            return self.at(timeout, Event::Failed(host, conn, "timed out"));
        }
        let from = IpAddr::V4(self.hosts[host].address);
        let listens = match &self.hosts[target].kind {
            Kind::Node(Some(node)) => {
                node.admits(SocketAddr::new(from, 40_000)).is_some() && !node.plan().bgp.listen.is_empty()
            }
            Kind::Node(None) => false,
            Kind::Foreign(_) => true,
        };
        let hop = self.hop();
        if !listens {
            return self.at(hop, Event::Failed(host, conn, "connection refused"));
        }
        self.serial += 1;
        let wire = self.serial;
        self.tcp.insert(
            wire,
            Tcp {
                hosts: [host, target],
                ids: [Some(conn), None],
                alive: [true, true],
                known: [false, false],
                ways: [Way::default(), Way::default()],
            },
        );
        self.hosts[host].conns.insert(conn, wire);
        self.at(hop, Event::Syn(wire));
    }

    fn side(&self, wire: Wire, host: usize) -> usize {
        self.tcp[&wire].hosts.iter().position(|h| *h == host).unwrap()
    }

    fn endpoint(&self, host: usize, port: u16) -> SocketAddr {
        SocketAddr::new(self.hosts[host].address.into(), port)
    }

    fn send(&mut self, host: usize, wire: Wire, octets: &[u8]) {
        let side = self.side(wire, host);
        let way = &mut self.tcp.get_mut(&wire).unwrap().ways[side];
        way.unsent.extend(octets);
        way.stream.extend_from_slice(octets);
        let messages = split(&mut way.stream);
        for message in messages.iter().filter(|m| m[18] == UPDATE) {
            let update = Parsed::new(message);
            self.judge(host, wire, &update);
            self.tcp.get_mut(&wire).unwrap().ways[side].told.apply(&update);
        }
        self.at(Duration::ZERO, Event::Move(wire, side));
    }

    /// Every UPDATE that a node sends, at the moment that it sends it.
    fn judge(&self, host: usize, wire: Wire, update: &Parsed) {
        let Some(node) = self.node(host) else { return };
        if node.plan().listener.iter().flat_map(|l| &l.accept).any(|a| a.reflect) {
            // What it tells its members is no route.
            return;
        }
        let status = node.status(self.now);
        let seed = self.seed;
        let of = |p: &Prefix| status.vips.iter().find(|v| v.prefixes.contains(p));
        for (prefix, _) in &update.announced {
            let vip = of(prefix).unwrap_or_else(|| panic!("seed {seed}: {prefix} is no VIP of host {host}"));
            assert_ne!(vip.state_name, VipState::Withdrawn, "seed {seed}: {prefix} is told while withdrawn");
            let plan = &node.plan().vips[&vip.name];
            if let Some(interface) = &plan.manage {
                let address = LocalAddress { address: prefix.address(), interface: interface.clone() };
                // What was told before a reload gave it an address, or moved that, is told on.
                let goes_on =
                    self.hosts[host].reloaded && self.told_by(host).any(|t| t.0.contains_key(prefix));
                let here = self.hosts[host].shown.contains(&address) || goes_on;
                assert!(here, "seed {seed}: {prefix} is told before its address is on the host");
            }
            let own = |id: &CheckId| *id.vip == *vip.name && node.plan().checks.contains_key(id);
            for (id, last) in self.hosts[host].verdicts.iter().filter(|(id, _)| own(id)) {
                let bad = last.len() >= 2 && last[last.len() - 2..] == [false, false];
                let pessimised = vip.state_name == VipState::Pessimised;
                let needed = !matches!(plan.policy, Expr::AtLeast(..));
                assert!(!bad || pessimised || !needed, "seed {seed}: {prefix} is told while {id} fails");
            }
        }
        let side = self.side(wire, host);
        for prefix in &update.withdrawn {
            let told = self.tcp[&wire].ways[side].told.0.contains_key(prefix);
            assert!(told, "seed {seed}: {prefix} is withdrawn and was never told");
            if self.hosts[host].reloaded {
                // It may be no VIP any more, or not for this peer.
                continue;
            }
            let vip = of(prefix).unwrap_or_else(|| panic!("seed {seed}: {prefix} is no VIP of host {host}"));
            let state = vip.state_name;
            assert_eq!(state, VipState::Withdrawn, "seed {seed}: {prefix} is withdrawn while {state}");
        }
    }

    /// One end lets go: what is queued still leaves, unless it is a reset.
    fn drop_end(&mut self, wire: Wire, side: usize, reset: bool) {
        let Some(tcp) = self.tcp.get_mut(&wire) else { return };
        tcp.alive[side] = false;
        tcp.ways[side].fin = true;
        if reset {
            tcp.ways[side].unsent.clear();
            tcp.ways[side].flying.clear();
        }
        self.at(Duration::ZERO, Event::Move(wire, side));
    }

    /// Moves octets from a socket's queue towards the other end.
    fn move_octets(&mut self, wire: Wire, side: usize) {
        let hop = self.hop();
        let Some(tcp) = self.tcp.get(&wire) else { return };
        let (from, to) = (tcp.hosts[side], tcp.hosts[1 - side]);
        let cut = self.is_cut(from, to);
        let rate = self.slow.get(&to).copied();
        let now = self.now;
        let tcp = self.tcp.get_mut(&wire).unwrap();
        let way = &mut tcp.ways[side];
        let before = way.unsent.len();
        let flying: usize = way.flying.iter().map(|(_, b)| b.len()).sum();
        let room = if cut { SOCKET.saturating_sub(flying) } else { rate.unwrap_or(SOCKET) };
        let take = before.min(room);
        if take > 0 {
            let octets: Bytes = way.unsent.drain(..take).collect::<Vec<u8>>().into();
            let at = way.flying.back().map_or(now, |(at, _)| *at).max(now + hop);
            way.flying.push_back((at, octets));
        }
        let left = way.unsent.len();
        let id = tcp.ids[side].filter(|_| tcp.alive[side] && tcp.known[side]);
        if left > 0 || (tcp.ways[side].fin && tcp.known[1 - side]) {
            self.at(Duration::from_millis(100), Event::Move(wire, side));
        }
        // Behind a cut cable one that waits is enough.
        if take > 0 || !cut {
            self.at(hop, Event::Arrive(wire, side));
        }
        if let (Some(id), true) = (id, before > 0) {
            self.input(from, Input::Written(id, left));
        }
    }

    fn arrive(&mut self, wire: Wire, side: usize) {
        let Some(tcp) = self.tcp.get(&wire) else { return };
        let (from, to) = (tcp.hosts[side], tcp.hosts[1 - side]);
        if self.is_cut(from, to) {
            self.at(Duration::from_millis(200), Event::Arrive(wire, side));
            return;
        }
        loop {
            let now = self.now;
            let Some(tcp) = self.tcp.get_mut(&wire) else { return };
            if !tcp.known[1 - side] && tcp.alive[1 - side] {
                self.at(Duration::from_millis(1), Event::Arrive(wire, side));
                return;
            }
            let way = &mut tcp.ways[side];
            match way.flying.front() {
                Some(&(at, _)) if at > now => {
                    let wait = at.since(now);
                    self.at(wait, Event::Arrive(wire, side));
                    return;
                }
                Some(_) => {
                    let (_, octets) = way.flying.pop_front().unwrap();
                    let id = tcp.ids[1 - side];
                    if tcp.alive[1 - side] {
                        self.deliver(to, wire, id, octets);
                    } else if !tcp.ways[1 - side].fin {
                        return;
                    }
                }
                None if way.fin && way.unsent.is_empty() => {
                    let id = tcp.ids[1 - side];
                    let alive = std::mem::replace(&mut tcp.alive[1 - side], false);
                    self.tcp.remove(&wire);
                    if alive {
                        self.ended(to, wire, id);
                    }
                    return;
                }
                None => return,
            }
        }
    }

    fn deliver(&mut self, host: usize, wire: Wire, id: Option<ConnId>, octets: Bytes) {
        let now = self.now;
        match &mut self.hosts[host].kind {
            Kind::Node(_) => {
                if let Some(id) = id {
                    self.input(host, Input::Received(id, octets));
                }
            }
            Kind::Foreign(foreign) => {
                let acts = foreign.received(now, wire, &octets);
                self.act(host, acts);
            }
        }
    }

    fn ended(&mut self, host: usize, wire: Wire, id: Option<ConnId>) {
        match &mut self.hosts[host].kind {
            Kind::Node(_) => {
                if let Some(id) = id.filter(|id| self.hosts[host].conns.remove(id).is_some()) {
                    self.input(host, Input::Closed(id, "closed by the peer".into()));
                }
            }
            Kind::Foreign(foreign) => foreign.closed(wire),
        }
    }

    pub(crate) fn act(&mut self, host: usize, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Send(wire, octets) => {
                    if self.tcp.contains_key(&wire) {
                        let side = self.side(wire, host);
                        let way = &mut self.tcp.get_mut(&wire).unwrap().ways[side];
                        way.unsent.extend(&octets);
                        self.at(Duration::ZERO, Event::Move(wire, side));
                    }
                }
                Act::Close(wire) => {
                    if self.tcp.contains_key(&wire) {
                        let side = self.side(wire, host);
                        self.drop_end(wire, side, false);
                    }
                }
            }
        }
    }

    /// Resets every connection between two hosts, as a firewall would.
    pub(crate) fn reset(&mut self, a: usize, b: usize) {
        let wires: Vec<Wire> = self
            .tcp
            .iter()
            .filter(|(_, t)| t.hosts == [a, b] || t.hosts == [b, a])
            .map(|(w, _)| *w)
            .collect();
        for wire in wires {
            let Some(tcp) = self.tcp.remove(&wire) else { continue };
            for side in 0..2 {
                if tcp.alive[side] && (tcp.known[side] || side == 0) {
                    self.ended(tcp.hosts[side], wire, tcp.ids[side]);
                }
            }
        }
        self.disturb(a);
        self.disturb(b);
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Syn(wire) => {
                let Some(tcp) = self.tcp.get(&wire) else { return };
                let [from, to] = tcp.hosts;
                let up = matches!(&self.hosts[to].kind, Kind::Node(Some(_)) | Kind::Foreign(_));
                if self.is_cut(from, to) || !tcp.alive[0] || !tcp.alive[1] || !up {
                    let id = tcp.ids[0];
                    let alive = tcp.alive[0];
                    self.tcp.remove(&wire);
                    if alive {
                        self.ended(from, wire, id);
                    }
                    return;
                }
                let conn = ConnId(self.accepted);
                self.accepted += 1;
                let tcp = self.tcp.get_mut(&wire).unwrap();
                tcp.known[1] = true;
                let hop = self.hop();
                self.at(hop, Event::Established(wire));
                let now = self.now;
                let (local, remote) = (self.endpoint(to, 179), self.endpoint(from, 40_000));
                match &mut self.hosts[to].kind {
                    Kind::Node(_) => {
                        self.tcp.get_mut(&wire).unwrap().ids[1] = Some(conn);
                        self.hosts[to].conns.insert(conn, wire);
                        self.input(to, Input::Connected { conn, local, remote });
                    }
                    Kind::Foreign(foreign) => {
                        let acts = foreign.accepted(now, wire, from);
                        self.act(to, acts);
                    }
                }
            }
            Event::Established(wire) => {
                let Some(tcp) = self.tcp.get_mut(&wire) else { return };
                let [from, to] = tcp.hosts;
                if let (Some(conn), true) = (tcp.ids[0], tcp.alive[0]) {
                    tcp.known[0] = true;
                    let (local, remote) = (self.endpoint(from, 40_000), self.endpoint(to, 179));
                    self.input(from, Input::Connected { conn, local, remote });
                }
            }
            Event::Arrive(wire, side) => self.arrive(wire, side),
            Event::Move(wire, side) => self.move_octets(wire, side),
            Event::Failed(host, conn, why) => self.input(host, Input::Closed(conn, why.into())),
            Event::Kernel(host) => {
                let addresses = self.hosts[host].addresses.clone();
                self.input(host, Input::Addresses(addresses));
            }
            Event::Check(host, id, run) => {
                if self.hosts[host].runs != run || self.node(host).is_none() {
                    return;
                }
                if self.hosts[host].plan.as_ref().is_none_or(|plan| !plan.checks.contains_key(&id)) {
                    // Taken away by a reload.
                    return;
                }
                if self.hosts[host].probing && self.thaws(host).is_none() {
                    let good = self.hosts[host].good[&id];
                    self.hosts[host].verdicts.entry(id.clone()).or_default().push(good);
                    let verdict = if good { Verdict::good("200") } else { Verdict::bad("503") };
                    self.input(host, Input::Reported(id.clone(), verdict));
                }
                self.at(secs(1), Event::Check(host, id, run));
            }
            Event::Foreign(host) => {
                let now = self.now;
                let acts = self.foreign(host).tick(now);
                self.act(host, acts);
                self.at(Duration::from_millis(500), Event::Foreign(host));
            }
            Event::Start(host) => self.start(host),
            Event::Late(host, run, input) if run == self.hosts[host].runs => self.input(host, input),
            Event::Late(..) => {}
            Event::Bfd(host, run, input) if run == self.hosts[host].runs => match self.thaws(host) {
                Some(thaw) => self.at(thaw.since(self.now), Event::Bfd(host, run, input)),
                None => self.with_bfd(host, |bfd, now, out| bfd.handle(now, input, out)),
            },
            Event::Bfd(..) => {}
        }
    }

    /// Switches BFD off on a host, in order; its BGP goes on.
    pub(crate) fn stop_bfd(&mut self, host: usize) {
        self.with_bfd(host, |bfd, now, out| bfd.handle(now, bfd::Input::Stop, out));
    }

    /// BFD sessions of a host, those that are being switched off among them.
    pub(crate) fn bfd_sessions(&self, host: usize) -> usize {
        self.hosts[host].bfd.as_ref().map_or(0, Bfd::len)
    }

    fn with_bfd(&mut self, host: usize, f: impl FnOnce(&mut Bfd, Time, &mut Vec<bfd::Output>)) {
        let (now, mut out) = (self.now, Vec::new());
        if let Some(bfd) = &mut self.hosts[host].bfd {
            f(bfd, now, &mut out);
        }
        for output in out {
            match output {
                bfd::Output::Send(to, octets) => {
                    let far = self.hosts.iter().position(|h| IpAddr::V4(h.address) == to.address);
                    if let Some(far) = far.filter(|&far| !self.deaf && !self.is_cut(host, far)) {
                        let from = bfd::Key { address: self.hosts[host].address.into(), ..to };
                        // A cable keeps the order.
                        let (run, hop) = (self.hosts[far].runs, Duration::from_micros(self.delay));
                        let input = bfd::Input::Received { from, ttl: Some(255), octets };
                        self.at(hop, Event::Bfd(far, run, input));
                    }
                }
                bfd::Output::Report(key, report) => self.input(host, Input::Bfd(key, report)),
                bfd::Output::Counted(counters) => self.input(host, Input::BfdCounted(counters)),
                bfd::Output::Closed(_) | bfd::Output::Stopped => {}
            }
        }
    }

    /// Lets `d` pass.
    pub(crate) fn run(&mut self, d: Duration) {
        let end = self.now + d;
        let mut turns = 0u32;
        loop {
            let event = self.events.keys().next().map(|k| k.0);
            let due = |h| {
                Some((self.node(h)?.deadline()?.0.max(self.frozen.get(&h).copied().unwrap_or_default()), h))
            };
            let tick = (0..self.hosts.len()).filter_map(due).min();
            let beat = |h: usize| {
                let thaw = self.frozen.get(&h).copied().unwrap_or_default();
                Some((self.hosts[h].bfd.as_ref()?.deadline()?.0.max(thaw), h))
            };
            let beat = (0..self.hosts.len()).filter_map(beat).min();
            let next = event.into_iter().chain(tick.map(|t| t.0)).chain(beat.map(|t| t.0)).min();
            let next = next.filter(|t| *t <= end);
            let Some(next) = next else { break };
            let late = if next > self.now { 0 } else { turns + 1 };
            turns = late;
            assert!(turns < 1_000_000, "seed {}: time stands still", self.seed);
            self.now = self.now.max(next);
            // As a driver does: what waited for it is read before timers judge.
            let late = |(_, e): (&(Time, u64), &Event)| matches!(e, Event::Late(..));
            let late = !self.ending.is_empty() && self.events.range(..=(self.now, u64::MAX)).any(late);
            // Datagrams that are there are read before anybody is judged.
            let waiting = self.events.keys().next().is_some_and(|k| k.0 <= self.now);
            if let Some((_, host)) = beat.filter(|t| t.0 <= self.now && !waiting) {
                self.with_bfd(host, |bfd, now, out| bfd.tick(now, out));
                continue;
            }
            match tick.filter(|t| t.0 <= self.now && !late) {
                Some((_, host)) => {
                    let now = self.now;
                    let mut out = Vec::new();
                    if let Kind::Node(Some(node)) = &mut self.hosts[host].kind {
                        node.tick(now, &mut out);
                    }
                    self.perform(host, out);
                }
                None => {
                    let (_, event) = self.events.pop_first().unwrap();
                    self.step(event);
                }
            }
            if self.now.since(self.checked) >= secs(1) {
                self.checked = self.now;
                self.promises();
            }
        }
        self.now = end;
    }

    /// A healthy VIP and a session that both stood for 5 s mean that the peer has the route.
    fn promises(&self) {
        for host in 0..self.hosts.len() {
            let Some(node) = self.node(host) else { continue };
            let status = node.status(self.now);
            for peer in &status.peers {
                let Some(far) = self.hosts.iter().position(|h| IpAddr::V4(h.address) == peer.address) else {
                    continue;
                };
                let calm = |h: usize| self.disturbed.get(&h).is_none_or(|at| self.now.since(*at) > secs(5));
                let stood = peer.uptime.is_some_and(|s| s > 5.0);
                if !stood
                    || !calm(host)
                    || !calm(far)
                    || self.slow.contains_key(&far)
                    || self.is_cut(host, far)
                {
                    continue;
                }
                let Kind::Foreign(foreign) = &self.hosts[far].kind else { continue };
                let told: BTreeSet<Prefix> = foreign
                    .up()
                    .iter()
                    .filter(|w| self.tcp.get(w).is_some_and(|t| t.hosts.contains(&host)))
                    .filter_map(|w| foreign.table(*w))
                    .flat_map(|t| t.prefixes())
                    .collect();
                for vip in status.vips.iter().filter(|v| v.since > 5.0) {
                    for prefix in &vip.prefixes {
                        let held = peer.held.contains_key(&prefix.to_string());
                        let vips = &node.plan().bgp.peers[&peer.name].vips;
                        let meant = vips.as_ref().is_none_or(|v| v.contains(&vip.name));
                        let want = meant && vip.state_name != VipState::Withdrawn && !held;
                        assert_eq!(
                            told.contains(prefix),
                            want,
                            "seed {}: {} {prefix} of host {host} at host {far} ({})",
                            self.seed,
                            self.now,
                            vip.reason
                        );
                    }
                }
            }
        }
    }

    /// The one table that `host` told `far`, if exactly one session between them is up at the foreign end.
    pub(crate) fn table_at(&self, far: usize, host: usize) -> Option<&Table> {
        let Kind::Foreign(foreign) = &self.hosts[far].kind else { return None };
        let between = |w: &Wire| self.tcp.get(w).is_some_and(|t| t.hosts.contains(&host));
        let mut up = foreign.up().into_iter().filter(between);
        let table = foreign.table(up.next()?);
        assert_eq!(up.next(), None, "seed {}: two sessions between {host} and {far}", self.seed);
        table
    }

    /// Connections between two hosts whose both ends are there.
    pub(crate) fn connections(&self, a: usize, b: usize) -> usize {
        let between = |t: &&Tcp| t.hosts.contains(&a) && t.hosts.contains(&b) && t.alive == [true, true];
        self.tcp.values().filter(between).count()
    }

    pub(crate) fn is_established(&self, host: usize, peer: IpAddr) -> bool {
        let Some(node) = self.node(host) else { return false };
        let status = node.status(self.now);
        let peers = status.peers.iter().map(|p| (p.address, p.session_state));
        let members = status.listener.iter().flat_map(|l| &l.members).map(|m| (m.address, m.session_state));
        peers.chain(members).any(|(a, s)| a == peer && s == State::Established)
    }
}
