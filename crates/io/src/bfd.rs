//! BFD on a thread of its own: what a peer is told and hears in time must not depend on what else this host does.
//!
//! The thread runs one [`Bfd`] machine with its sockets, ahead of ordinary threads where that is permitted (`SCHED_FIFO`). The
//! node asks it for sessions and is told what becomes of them; it never waits for the node. Datagrams that are there are read
//! before anybody is judged, in bounded turns, with a pause after a full one: a flood cannot take the processor.
//!
//! Packets come in on the ports of RFC 5881 and 5883 with their hop limit, and go out with hop limit 255 from a port of
//! each session's own.

mod socket;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use standfast_core::bfd::{Bfd, Config, Counters, Input, Key, MULTIHOP_PORT, Output, PORT, Reason, Report};
use standfast_core::machine::{Machine, Rng, Time};
use standfast_core::node;
use standfast_core::plan::{self, Plan};
use standfast_core::table::Change;

use crate::clock::Clock;
use crate::drive;
use crate::netlink::interface_index;
use crate::tcp::plain;
use socket::{Inbound, Outbound};

/// A pause after a full turn.
const PAUSE: Duration = Duration::from_micros(500);
/// What could not be opened is tried again after this long.
const RETRY: Duration = Duration::from_secs(1);
/// What the node had no room for is told again after this long.
const AGAIN: Duration = Duration::from_millis(5);

/// The way to a running BFD thread. Dropping it ends the thread, in order.
pub(crate) struct Handle {
    sender: Sender<Command>,
    waker: UnixStream,
    woken: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    /// Why it does not run ahead of other threads.
    pub(crate) ordinary: Option<io::Error>,
}

/// What the thread is told.
enum Command {
    Input(Input),
    /// Packets come in here, and nowhere else, from now on.
    Listen(BTreeSet<SocketAddr>),
}

impl Handle {
    /// Has packets come in where `plan` wants them. What cannot be opened is told, and tried again.
    pub(crate) fn listen(&self, plan: &Plan) {
        self.command(Command::Listen(listening(plan)));
    }

    /// Asks for a session, or for its end. Never blocks.
    pub(crate) fn want(&self, change: Change<Key, Config>) {
        self.send(Input::Wanted(change));
    }

    /// Switches every session off, in order.
    pub(crate) fn stop(&self) {
        self.send(Input::Stop);
    }

    /// Whether the thread has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    fn send(&self, input: Input) {
        self.command(Command::Input(input));
    }

    fn command(&self, command: Command) {
        // A thread that has ended needs nothing.
        let _ = self.sender.send(command);
        if !self.woken.swap(true, Ordering::AcqRel) {
            let _ = (&self.waker).write(&[1]);
        }
    }
}

/// Whether a plan has BFD anywhere.
pub(crate) fn is_wanted(plan: &Plan) -> bool {
    plans(plan).next().is_some()
}

fn plans(plan: &Plan) -> impl Iterator<Item = &plan::Bfd> {
    let peers = plan.bgp.peers.values().filter_map(|p| p.bfd.as_ref());
    peers.chain(plan.listener.iter().flat_map(|l| &l.accept).filter_map(|a| a.bfd.as_ref()))
}

/// Opens the sockets that a plan needs and starts the thread, which tells `node` of everything. A port that is taken is opened
/// as soon as it is free.
///
/// # Errors
/// What will not mend itself: a port that is not permitted, with its address; no thread.
pub(crate) fn start(plan: &Plan, seed: u64, node: drive::Handle) -> io::Result<Handle> {
    let machine = Bfd::new(seed);
    let (mut inbound, mut taken, mut results) = (Vec::new(), BTreeSet::new(), Vec::new());
    for at in listening(plan) {
        match Inbound::open(at, machine.tag()) {
            Ok(sockets) => inbound.extend(sockets.map(|socket| (at, socket))),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                taken.insert(at);
                results.push((at, Err(e.to_string())));
            }
            Err(e) => return Err(e),
        }
    }
    let (sender, receiver) = channel();
    let (waker, wakes) = UnixStream::pair()?;
    waker.set_nonblocking(true)?;
    wakes.set_nonblocking(true)?;
    let woken = Arc::new(AtomicBool::new(false));
    let clock = Clock::start()?;
    let retry_at = (!taken.is_empty()).then(|| clock.now() + RETRY);
    let runner = Runner {
        machine,
        rng: Rng::new(seed.rotate_left(32)),
        clock,
        receiver,
        wakes,
        woken: Arc::clone(&woken),
        inbound,
        taken,
        results,
        sessions: BTreeMap::new(),
        named: BTreeMap::new(),
        closed: BTreeMap::new(),
        retry_at,
        node,
        reports: BTreeMap::new(),
        unsent: BTreeMap::new(),
        counters: None,
        alone: false,
        stopped: false,
    };
    let (said, hears) = channel();
    let thread = std::thread::Builder::new().name("bfd".to_owned()).spawn(move || {
        // The starter may be gone already.
        let _ = said.send(socket::run_ahead().err());
        runner.run();
    })?;
    let ordinary = hears.recv().ok().flatten();
    Ok(Handle { sender, waker, woken, thread, ordinary })
}

/// Where packets may come in: on the addresses that sessions run from, or on every address where that is left to the kernel.
fn listening(plan: &Plan) -> BTreeSet<SocketAddr> {
    let mut locals: BTreeSet<(IpAddr, u16)> = BTreeSet::new();
    let port = |bfd: &plan::Bfd| if bfd.multihop { MULTIHOP_PORT } else { PORT };
    for peer in plan.bgp.peers.values() {
        let any =
            if peer.address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        if let Some(bfd) = &peer.bfd {
            locals.insert((node::source(plan, peer).unwrap_or(any), port(bfd)));
        }
    }
    for accept in plan.listener.iter().flat_map(|l| &l.accept) {
        let family = plan.bgp.listen.iter().map(SocketAddr::ip);
        let family = family.filter(|a| a.is_ipv4() == accept.range.address().is_ipv4());
        if let Some(bfd) = &accept.bfd {
            locals.extend(family.map(|ip| (ip, port(bfd))));
        }
    }
    let everywhere: Vec<(bool, u16)> =
        locals.iter().filter(|(ip, _)| ip.is_unspecified()).map(|(ip, port)| (ip.is_ipv4(), *port)).collect();
    let kept = locals
        .into_iter()
        .filter(|(ip, port)| ip.is_unspecified() || !everywhere.contains(&(ip.is_ipv4(), *port)));
    kept.map(SocketAddr::from).collect()
}

/// What the thread has.
struct Runner {
    machine: Bfd,
    rng: Rng,
    clock: Clock,
    receiver: Receiver<Command>,
    wakes: UnixStream,
    woken: Arc<AtomicBool>,
    inbound: Vec<(SocketAddr, Inbound)>,
    /// Where a port is another program's.
    taken: BTreeSet<SocketAddr>,
    sessions: BTreeMap<Key, Outbound>,
    /// Sessions whose interface has a name, by their address and its number.
    named: BTreeMap<(IpAddr, u32), (Key, Config)>,
    /// Sessions that are wanted and could not be opened.
    closed: BTreeMap<Key, Config>,
    retry_at: Option<Time>,
    node: drive::Handle,
    /// What the node has not been told yet.
    results: Vec<(SocketAddr, Result<(), String>)>,
    reports: BTreeMap<Key, Report>,
    unsent: BTreeMap<Key, Option<String>>,
    counters: Option<Counters>,
    /// Whoever asks for sessions is gone.
    alone: bool,
    stopped: bool,
}

impl Runner {
    fn run(mut self) {
        let mut full = false;
        while !self.stopped {
            self.wait(full);
            self.take_commands();
            full = self.read();
            let now = self.clock.now();
            if self.machine.deadline().is_some_and(|(at, _)| at <= now) {
                let mut out = Vec::new();
                self.machine.tick(now, &mut out);
                self.perform(out);
            }
            if self.retry_at.is_some_and(|at| at <= now) {
                self.retry_at = None;
                self.listen();
                for (key, config) in std::mem::take(&mut self.closed) {
                    self.open(key, config);
                }
            }
            self.tell();
        }
    }

    /// Closes what is not in `wanted`, and opens what is new.
    fn change(&mut self, wanted: &BTreeSet<SocketAddr>) {
        self.inbound.retain(|(at, _)| wanted.contains(at));
        for gone in self.taken.difference(wanted) {
            self.results.push((*gone, Ok(())));
        }
        let open: BTreeSet<SocketAddr> = self.inbound.iter().map(|(at, _)| *at).collect();
        self.taken = wanted - &open;
        self.listen();
    }

    /// Tries the ports again that were taken.
    fn listen(&mut self) {
        for at in self.taken.clone() {
            match Inbound::open(at, self.machine.tag()) {
                Ok(sockets) => {
                    self.inbound.extend(sockets.map(|socket| (at, socket)));
                    self.taken.remove(&at);
                    self.results.push((at, Ok(())));
                }
                Err(e) => {
                    self.results.push((at, Err(e.to_string())));
                    self.retry_at = Some(self.clock.now() + RETRY);
                }
            }
        }
    }

    /// Waits for a datagram, a command or the next deadline; after a full turn for a moment only.
    fn wait(&mut self, full: bool) {
        if full {
            std::thread::sleep(PAUSE);
            return;
        }
        let now = self.clock.now();
        let deadline = self.machine.deadline().map(|(at, _)| at.since(now));
        let retry = self.retry_at.map(|at| at.since(now));
        let told = self.reports.is_empty()
            && self.unsent.is_empty()
            && self.results.is_empty()
            && self.counters.is_none();
        let again = (!told).then_some(AGAIN);
        let timeout = [deadline, retry, again].into_iter().flatten().min();
        let inbound = self.inbound.iter().map(|(_, socket)| socket.fd());
        // One whose other end is gone is always ready.
        let wakes = (!self.alone).then(|| self.wakes.as_raw_fd());
        let descriptors: Vec<_> = inbound.chain(wakes).collect();
        if socket::wait(&descriptors, timeout).is_err() {
            // Only memory can be missing: then time passes all the same.
            std::thread::sleep(AGAIN);
        }
    }

    fn take_commands(&mut self) {
        if self.woken.swap(false, Ordering::AcqRel) {
            let mut octets = [0; 64];
            while matches!(self.wakes.read(&mut octets), Ok(n) if n > 0) {}
        }
        loop {
            match self.receiver.try_recv() {
                Ok(Command::Input(Input::Wanted(Change::Set(key, config)))) => self.open(key, config),
                Ok(Command::Listen(wanted)) => self.change(&wanted),
                Ok(Command::Input(input)) => {
                    if let Input::Wanted(Change::Remove(key)) = &input {
                        self.closed.remove(key);
                    }
                    self.handle(input);
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) if self.alone => return,
                Err(TryRecvError::Disconnected) => {
                    self.alone = true;
                    return self.handle(Input::Stop);
                }
            }
        }
    }

    /// Opens what a session needs, and tells the machine of it.
    fn open(&mut self, key: Key, config: Config) {
        self.closed.remove(&key);
        match self.socket(key, &config) {
            Ok(()) => self.handle(Input::Wanted(Change::Set(key, config))),
            Err(e) => {
                if !self.sessions.contains_key(&key) {
                    self.reports.insert(key, Report::unavailable(Reason::Unavailable(e.to_string())));
                }
                self.open_later(key, config);
            }
        }
    }

    fn open_later(&mut self, key: Key, config: Config) {
        self.closed.insert(key, config);
        self.retry_at.get_or_insert(self.clock.now() + RETRY);
    }

    /// Makes the socket that a session's packets go out from, if it has none that fits.
    fn socket(&mut self, key: Key, config: &Config) -> io::Result<()> {
        let scope = match &config.interface {
            Some(name) => interface_index(name)?,
            None => key.scope,
        };
        let fits = |s: &Outbound| (s.local(), s.scope()) == (config.local, scope);
        if self.sessions.get(&key).is_some_and(fits) {
            return Ok(());
        }
        let port = if key.multihop { MULTIHOP_PORT } else { PORT };
        let socket = Outbound::open(config.local, key.address, scope, port, &mut self.rng)?;
        self.sessions.insert(key, socket);
        self.forget_name(key);
        if config.interface.is_some() {
            self.named.insert((key.address, scope), (key, config.clone()));
        }
        Ok(())
    }

    fn forget_name(&mut self, key: Key) {
        self.named.retain(|_, (known, _)| *known != key);
    }

    /// Reads what came; whether there may be more.
    fn read(&mut self) -> bool {
        let mut full = false;
        for i in 0..self.inbound.len() {
            let (mut read, turn) = (0, self.inbound[i].1.turn());
            while read < turn {
                let Some((from, ttl, octets)) = self.inbound[i].1.receive() else { break };
                read += 1;
                let multihop = self.inbound[i].1.multihop();
                let (address, scope) = match from {
                    SocketAddr::V4(v4) => (IpAddr::V4(*v4.ip()), 0),
                    SocketAddr::V6(v6) => (IpAddr::V6(*v6.ip()), v6.scope_id()),
                };
                let key = Key { address, scope, multihop };
                let from = self.named.get(&(address, scope)).map_or(key, |(key, _)| *key);
                self.handle(Input::Received { from, ttl, octets });
            }
            full |= read == turn;
        }
        full
    }

    fn handle(&mut self, input: Input) {
        let mut out = Vec::new();
        self.machine.handle(self.clock.now(), input, &mut out);
        self.perform(out);
    }

    fn perform(&mut self, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Send(key, octets) => {
                    let Some(socket) = self.sessions.get_mut(&key) else { continue };
                    if let Some(why) = socket.send(&octets) {
                        self.unsent.insert(key, why.map(|e| plain(&e)));
                        // The interface may be another one by now.
                        if let Some((_, config)) = self.named.get(&(key.address, socket.scope())).cloned() {
                            self.open_later(key, config);
                        }
                    }
                }
                Output::Report(key, report) => drop(self.reports.insert(key, report)),
                Output::Counted(counters) => self.counters = Some(counters),
                Output::Closed(key) => {
                    self.sessions.remove(&key);
                    self.forget_name(key);
                }
                Output::Stopped => self.stopped = true,
            }
        }
    }

    /// Tells the node; what it has no room for stays for the next time.
    fn tell(&mut self) {
        let node = &self.node;
        self.results.retain(|(at, result)| {
            !node.send(node::Input::Kernel(node::KernelKey::Listen(*at), result.clone()))
        });
        self.reports.retain(|key, report| !node.send(node::Input::Bfd(*key, report.clone())));
        self.unsent.retain(|key, why| !node.send(node::Input::BfdUnsent(*key, why.clone())));
        if let Some(counters) = self.counters.take()
            && !node.send(node::Input::BfdCounted(counters.clone()))
        {
            self.counters = Some(counters);
        }
    }
}
