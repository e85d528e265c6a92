//! The one driver loop: waits for an event or the node's deadline, hands it in, performs what comes out.
//!
//! One thread runs a [`Node`] with its sockets and its kernel tables. Everybody else talks to it through a [`Handle`],
//! over one bounded channel. It never blocks but in `poll`, reads every socket that has something before it lets timers
//! judge, gives each connection a bounded turn, and holds at most what the node queued for a peer.

mod doors;

use bytes::Bytes;
use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use standfast_core::machine::{Machine, Time};
use standfast_core::node::{self, ConnId, Dial, Event, Input, Level, Node, Output};
use standfast_core::plan::{CheckId, DrainUntil, Plan};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use self::doors::Doors;
use crate::bfd;
use crate::clock::Clock;
use crate::count::Counter;
use crate::kernel::Kernel;
use crate::tcp;

const WAKE: Token = Token(0);
const NETLINK: Token = Token(1);
/// Tokens from here up to [`FIRST_CONN`] are listening sockets.
const FIRST_LISTENER: usize = 2;
const FIRST_CONN: usize = 1024;
/// Octets read at once.
const READ: usize = 64 * 1024;
/// Octets read from one connection before the others have their turn: what all of them bring in one round is one change of a route.
const TURN: usize = 128 * 1024;
/// Connections accepted in one turn.
const ACCEPTS: usize = 64;
/// How long a closed connection may take to deliver what was queued, and to see the peer's end.
const CLOSE_WAIT: Duration = Duration::from_secs(1);
/// How often a driver that leaves looks whether BFD has said so.
const LEAVING: Duration = Duration::from_millis(10);
/// Dials and closings at one time; those beyond end at once.
const ENDS: usize = 1024;
/// A failure to accept is said once in this time.
const NOTE_PAUSE: Duration = Duration::from_secs(60);
/// Messages that wait for the node, each of one input or a batch; a report that finds no room is dropped, and silence is a bad
/// verdict.
const CHANNEL: usize = 4 * 1024;

/// Sets the numbers of BFD apart from those of BGP.
const BFD_SEED: u64 = 0x6266_6421;

type OnPace = dyn FnMut(&CheckId, bool) + Send;
type Companion = dyn FnMut(&Node, Time, &mut VecDeque<Input>) -> Option<Instant> + Send;
type OnRemember = dyn FnMut() + Send;
type Question = dyn FnOnce(&Node, Time) + Send;

/// What other threads send to the driver.
enum Command {
    Input(Input),
    Inputs(Vec<Input>),
    Query(Box<Question>),
    Reload(Arc<Plan>, SyncSender<Result<(), String>>),
}

/// The way into a running node, from any thread.
#[derive(Clone)]
pub struct Handle {
    sender: SyncSender<Command>,
    waker: Arc<Waker>,
    /// Whether the driver is woken already: a system call for many commands.
    woken: Arc<AtomicBool>,
}

impl Handle {
    /// Hands in an input, never blocking; false if the node is gone or its channel is full.
    pub fn send(&self, input: Input) -> bool {
        self.command(Command::Input(input))
    }

    /// Hands in several inputs, all of them or none, as [`send`](Self::send) does with one.
    pub fn send_all(&self, inputs: impl IntoIterator<Item = Input>) -> bool {
        self.command(Command::Inputs(inputs.into_iter().collect()))
    }

    /// Has the node go on by `plan`, and waits for it.
    ///
    /// # Errors
    /// Why not, in words; then nothing has changed.
    pub fn reload(&self, plan: Arc<Plan>) -> Result<(), String> {
        let gone = || "the driver is gone".to_owned();
        let (sender, receiver) = sync_channel(1);
        // It waits for room: whoever stopped what is to be other than before must be heard.
        self.sender.send(Command::Reload(plan, sender)).map_err(|_| gone())?;
        self.wake();
        receiver.recv().unwrap_or_else(|_| Err(gone()))
    }

    fn command(&self, command: Command) -> bool {
        let sent = self.sender.try_send(command).is_ok();
        self.wake();
        sent
    }

    /// Has the driver look around soon, and its [companion](Driver::companion) with it. It never blocks and keeps no memory.
    pub fn wake(&self) {
        // A wake that fails leaves the command in the channel: the next event takes it along, and the next command tries again.
        if !self.woken.swap(true, Ordering::AcqRel) && self.waker.wake().is_err() {
            self.woken.store(false, Ordering::Release);
        }
    }

    /// Asks the node something, and waits at most `timeout` for the answer; `None` if it is gone or busy for longer.
    pub fn query<R: Send + 'static>(
        &self,
        timeout: Duration,
        ask: impl FnOnce(&Node, Time) -> R + Send + 'static,
    ) -> Option<R> {
        let (sender, receiver) = sync_channel(1);
        let sent = self.command(Command::Query(Box::new(move |node, now| {
            // The asker may have given up.
            let _ = sender.send(ask(node, now));
        })));
        if sent { receiver.recv_timeout(timeout).ok() } else { None }
    }
}

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Dialling {
        until: Instant,
    },
    Open,
    /// The node is done with it: what is queued leaves, then it ends.
    Closing {
        until: Instant,
        shut: bool,
    },
}

struct Connection {
    stream: TcpStream,
    token: Token,
    phase: Phase,
    remote: SocketAddr,
    queue: VecDeque<Bytes>,
    queued: usize,
    /// The peer has said its last word: what is read ends with the end.
    ends: bool,
}

/// A node with its sockets and kernel tables, ready to run.
pub struct Driver {
    node: Node,
    clock: Clock,
    poll: Poll,
    receiver: Receiver<Command>,
    woken: Arc<AtomicBool>,
    doors: Doors,
    connections: BTreeMap<ConnId, Connection>,
    tokens: BTreeMap<Token, ConnId>,
    next_token: usize,
    next_accepted: u64,
    /// Connections and listeners that may have more for us without a new event.
    unread: BTreeSet<ConnId>,
    /// Dials and closings, by the moment at which they end.
    ends: BTreeSet<(Instant, ConnId)>,
    /// What is read goes through here.
    buffer: Box<[u8]>,
    unaccepted: BTreeSet<usize>,
    dirty: BTreeSet<ConnId>,
    inputs: VecDeque<Input>,
    kernel: Kernel,
    /// What waits until the kernel knows of the routes that changed: packets go astray until then.
    later: Vec<Output>,
    /// Connections that are over. To close one is to send a packet, which takes as long as to change a route.
    over: Vec<TcpStream>,
    /// Words come last in a round: they may be written to a slow place.
    said: Vec<Event>,
    /// The thread that BFD runs on, if the plan has any.
    bfd: Option<bfd::Handle>,
    /// The thread that counts connections, once any are to be counted.
    counter: Option<Counter>,
    handle: Handle,
    on_event: Box<dyn FnMut(&Event) + Send>,
    on_pace: Box<OnPace>,
    companion: Box<Companion>,
    /// When the companion wants to look again.
    look_at: Option<Instant>,
    on_remember: Box<OnRemember>,
    accept_noted: Option<Instant>,
    seed: u64,
    stopped: bool,
}

impl Driver {
    /// Opens the listening sockets and reads the kernel's tables. `on_event` is called on the driver's thread and must not block.
    ///
    /// # Errors
    /// What could not be opened, by name: a key the kernel refuses, no permission. An address in use is waited for.
    pub fn new(
        plan: impl Into<Arc<Plan>>,
        seed: u64,
        on_event: impl FnMut(&Event) + Send + 'static,
    ) -> io::Result<(Self, Handle)> {
        let plan = plan.into();
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let woken = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = sync_channel(CHANNEL);
        let mut kernel = Kernel::new(&plan)?;
        for fd in kernel.monitor_fds() {
            poll.registry().register(&mut SourceFd(&fd), NETLINK, Interest::READABLE)?;
        }
        let mut on_event: Box<dyn FnMut(&Event) + Send> = Box::new(on_event);
        if let Some(message) = crowded(&plan) {
            on_event(&Event { level: Level::Warn, about: "listener".to_owned(), message });
        }
        let node = Node::new(Time::BEGIN, plan, seed);
        let mut doors = Doors::new(node.plan(), FIRST_LISTENER);
        let inputs = doors.open(poll.registry())?.into();
        if !doors.are_shut() {
            kernel.begin()?;
        } else if node.plan().listener.is_some() {
            let message =
                "another program holds its BGP port: routes and nftables are left alone until it is free"
                    .to_owned();
            on_event(&Event { level: Level::Warn, about: "listener".to_owned(), message });
        }
        let handle = Handle { sender, waker, woken: Arc::clone(&woken) };
        let bfd = bfd::is_wanted(node.plan())
            .then(|| bfd::start(node.plan(), seed ^ BFD_SEED, handle.clone()))
            .transpose()?;
        let driver = Self {
            node,
            clock: Clock::start()?,
            poll,
            receiver,
            woken,
            doors,
            connections: BTreeMap::new(),
            tokens: BTreeMap::new(),
            next_token: FIRST_CONN,
            next_accepted: ConnId::ACCEPTED.0,
            unread: BTreeSet::new(),
            ends: BTreeSet::new(),
            buffer: vec![0; READ].into(),
            unaccepted: BTreeSet::new(),
            dirty: BTreeSet::new(),
            inputs,
            kernel,
            later: Vec::new(),
            over: Vec::new(),
            said: Vec::new(),
            bfd,
            counter: None,
            handle: handle.clone(),
            on_event,
            on_pace: Box::new(|_, _| {}),
            companion: Box::new(|_, _, _| None),
            look_at: None,
            on_remember: Box::new(|| {}),
            accept_noted: None,
            seed,
            stopped: false,
        };
        Ok((driver, handle))
    }

    /// Calls `on_pace` when a check's `fast_interval` comes into force, or its `interval` again, on the driver's thread: it must
    /// not block.
    #[must_use]
    pub fn on_pace(mut self, on_pace: impl FnMut(&CheckId, bool) + Send + 'static) -> Self {
        self.on_pace = Box::new(on_pace);
        self
    }

    /// Calls `look` at the end of each round, and whenever a handle [wakes](Handle::wake) the driver, on the driver's thread: it
    /// sees the node, may give it inputs, and says when it wants to look again. It must not block, and gives nothing once
    /// nothing is new.
    #[must_use]
    pub fn companion(
        mut self,
        look: impl FnMut(&Node, Time, &mut VecDeque<Input>) -> Option<Instant> + Send + 'static,
    ) -> Self {
        self.companion = Box::new(look);
        self
    }

    /// Calls `on_remember` when what [`Node::facts`] tells has changed, on the driver's thread: it must not block.
    #[must_use]
    pub fn on_remember(mut self, on_remember: impl FnMut() + Send + 'static) -> Self {
        self.on_remember = Box::new(on_remember);
        self
    }

    /// Runs until the node has stopped and its connections are closed.
    ///
    /// # Errors
    /// If `poll` itself fails; nothing else ends it.
    pub fn run(mut self) -> io::Result<()> {
        // As many as there are sessions on a large listener: all are read before timers judge.
        let mut events = Events::with_capacity(4096);
        self.inputs.extend(self.kernel.take_results());
        self.inputs.push_back(Input::Addresses(self.kernel.addresses()));
        self.finish();
        self.look();
        self.say_if_bfd_waits();
        let mut leave = None;
        loop {
            if self.stopped {
                let until = *leave.get_or_insert_with(|| Instant::now() + CLOSE_WAIT);
                let bfd_over = self.bfd.as_ref().is_none_or(bfd::Handle::is_over);
                if self.connections.is_empty() && bfd_over || Instant::now() >= until {
                    return Ok(());
                }
            }
            match self.poll.poll(&mut events, Some(self.timeout())) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
            self.take_events(&events);
            self.finish();
            let now = self.now();
            if self.node.deadline().is_some_and(|(at, _)| at <= now) {
                let mut out = Vec::new();
                self.node.tick(now, &mut out);
                self.take(out);
            }
            self.expire();
            if let Some(addresses) = self.kernel.refresh(Instant::now()) {
                self.inputs.push_back(Input::Addresses(addresses));
            }
            self.inputs.extend(self.kernel.take_results());
            self.inputs.extend(self.doors.retry(Instant::now(), self.poll.registry()));
            self.begin();
            self.finish();
            self.look();
        }
    }

    /// Has the companion look until it gives nothing more: it sees what came of what it gave.
    fn look(&mut self) {
        loop {
            self.look_at = (self.companion)(&self.node, self.clock.now(), &mut self.inputs);
            if self.inputs.is_empty() {
                return;
            }
            self.finish();
        }
    }

    /// Takes the listener's tables in hand once members can come.
    fn begin(&mut self) {
        if !self.doors.are_shut()
            && let Err(e) = self.kernel.begin()
        {
            let message = format!("cannot take its kernel tables in hand, and tries again: {e}");
            self.said.push(Event { level: Level::Warn, about: "listener".to_owned(), message });
        }
    }

    /// Says, once, that the processor's other work can delay BFD.
    fn say_if_bfd_waits(&mut self) {
        if let Some(why) = self.bfd.as_ref().and_then(|bfd| bfd.ordinary.as_ref()) {
            let message = format!(
                "BFD runs as an ordinary thread ({}): a busy processor can delay it by more than a short interval lasts; grant \
                 CAP_SYS_NICE (SCHED_FIFO), or choose intervals of 300ms or more",
                tcp::plain(why)
            );
            (self.on_event)(&Event { level: Level::Warn, about: "bfd".to_owned(), message });
        }
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    /// How long `poll` may wait: until the first of all deadlines, or not at all if something was left over.
    fn timeout(&self) -> Duration {
        if self.stopped && self.bfd.is_some() {
            return LEAVING;
        }
        if !self.unread.is_empty() || !self.unaccepted.is_empty() || !self.inputs.is_empty() {
            return Duration::ZERO;
        }
        let node = self.node.deadline().map(|(at, _)| at.since(self.now()));
        let now = Instant::now();
        let ends = self.ends.first().map(|(until, _)| until.saturating_duration_since(now));
        let kernel = self.kernel.deadline().saturating_duration_since(now);
        let doors = self.doors.deadline().map(|at| at.saturating_duration_since(now));
        let look = self.look_at.map(|at| at.saturating_duration_since(now));
        ends.into_iter().chain(node).chain(doors).chain(look).fold(kernel, Duration::min)
    }

    fn take_events(&mut self, events: &Events) {
        for event in events {
            match event.token() {
                WAKE => self.take_commands(),
                NETLINK => self.kernel.readable(),
                Token(t) if t < FIRST_CONN => {
                    self.unaccepted.insert(t - FIRST_LISTENER);
                }
                token => {
                    let Some(&conn) = self.tokens.get(&token) else { continue };
                    if event.is_writable() {
                        self.writable(conn);
                    }
                    if event.is_read_closed()
                        && let Some(c) = self.connections.get_mut(&conn)
                    {
                        c.ends = true;
                    }
                    if event.is_readable() || event.is_read_closed() {
                        self.unread.insert(conn);
                    }
                }
            }
        }
        for i in std::mem::take(&mut self.unaccepted) {
            self.accept(i);
        }
        for conn in std::mem::take(&mut self.unread) {
            self.read(conn);
        }
    }

    fn take_commands(&mut self) {
        // Before the channel is emptied: what comes after this wakes anew.
        self.woken.swap(false, Ordering::AcqRel);
        for _ in 0..CHANNEL {
            match self.receiver.try_recv() {
                Ok(Command::Input(input)) => self.inputs.push_back(input),
                Ok(Command::Inputs(inputs)) => self.inputs.extend(inputs),
                Ok(Command::Query(ask)) => {
                    self.settle();
                    ask(&self.node, self.now());
                }
                Ok(Command::Reload(plan, answer)) => {
                    self.settle();
                    // The asker may have given up.
                    let _ = answer.send(self.reload(plan));
                }
                Err(_) => break,
            }
        }
    }

    /// Opens what `plan` needs, and has the node go on by it.
    fn reload(&mut self, plan: Arc<Plan>) -> Result<(), String> {
        if self.node.stopping().is_some() {
            return Err("this host is leaving".to_owned());
        }
        if let Some(fixed) = node::fixed(self.node.plan(), &plan).first() {
            return Err(format!("{}: restart to change this", fixed.key()));
        }
        if bfd::is_wanted(&plan) && self.bfd.is_none() {
            let started = bfd::start(&plan, self.seed ^ BFD_SEED, self.handle.clone());
            self.bfd = Some(started.map_err(|e| e.to_string())?);
            self.say_if_bfd_waits();
        }
        let opened = self.doors.change(&plan, self.poll.registry()).map_err(|e| e.to_string())?;
        if let Some(bfd) = &self.bfd {
            bfd.listen(&plan);
        }
        self.kernel.change(&plan);
        if let Some(message) = crowded(&plan) {
            self.said.push(Event { level: Level::Warn, about: "listener".to_owned(), message });
        }
        self.inputs.push_back(Input::Plan(plan));
        self.inputs.extend(opened);
        self.settle();
        Ok(())
    }

    /// Hands in every input that waits, and performs what follows, until nothing is left.
    fn settle(&mut self) {
        while let Some(input) = self.inputs.pop_front() {
            let now = self.now();
            let mut out = Vec::new();
            self.node.act(now, input, &mut out);
            self.take(out);
        }
    }

    /// Ends a round: the kernel's tables are written once for all that happened in it, then everybody else is told, and words are
    /// said.
    fn finish(&mut self) {
        loop {
            self.settle();
            self.kernel.flush();
            self.node.explain(&mut self.later);
            self.perform();
            self.over.clear();
            self.said.extend(self.kernel.take_events());
            self.said.drain(..).for_each(|event| (self.on_event)(&event));
            self.inputs.extend(self.kernel.take_results());
            if self.inputs.is_empty() {
                return;
            }
        }
    }

    /// Takes what the node asks for. While routes are to change the rest waits for them, until the end of the round.
    fn take(&mut self, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Route(change) => self.kernel.route(change),
                Output::Member(hop, up) => self.kernel.member(hop, up),
                other => self.later.push(other),
            }
        }
        if !self.kernel.is_dirty() {
            self.perform();
        }
    }

    /// Performs what has waited.
    fn perform(&mut self) {
        for output in std::mem::take(&mut self.later) {
            match output {
                Output::Dial(dial) => self.dial(&dial),
                Output::Send(conn, octets) => {
                    if let Some(c) = self.connections.get_mut(&conn) {
                        c.queued += octets.len();
                        c.queue.push_back(octets);
                        self.dirty.insert(conn);
                    }
                }
                Output::Close(conn) => self.close(conn),
                Output::Patience(conn, time) => {
                    // A socket that is over already needs none.
                    let _ = self.connections.get(&conn).map(|c| tcp::patience(&c.stream, time));
                }
                Output::Address(change) => {
                    // What the peers must know first is written first.
                    self.flush_all();
                    self.kernel.address(&change);
                }
                // These have gone ahead.
                Output::Route(_) | Output::Member(..) => {}
                Output::Pace(id, hurried) => (self.on_pace)(&id, hurried),
                Output::Count(vip, wanted) => self.count(vip, wanted),
                Output::Bfd(change) => {
                    if let Some(bfd) = &self.bfd {
                        bfd.want(change);
                    }
                }
                Output::Remember => (self.on_remember)(),
                Output::Event(event) => self.said.push(event),
                Output::Stopped => {
                    self.kernel.stop();
                    self.stopped = true;
                    if let Some(bfd) = &self.bfd {
                        bfd.stop();
                    }
                }
            }
        }
        self.flush_all();
        self.inputs.extend(self.kernel.take_results());
    }

    /// Has the connections of a VIP counted, or not any more.
    fn count(&mut self, vip: String, wanted: bool) {
        if self.counter.is_none() && wanted {
            match Counter::start(self.handle.clone()) {
                Ok(counter) => self.counter = Some(counter),
                Err(e) => {
                    let why = format!("no thread: {}", tcp::plain(&e));
                    self.inputs.push_back(Input::Connections(vip, Err(why)));
                    return;
                }
            }
        }
        let Some(counter) = &self.counter else { return };
        let plan = self.node.plan().vips.get(&vip).filter(|_| wanted);
        let tracked = plan.is_some_and(|v| v.drain.until == DrainUntil::Conntrack);
        counter.want(vip, tracked, plan.map(|v| v.prefixes.clone()));
    }

    fn flush_all(&mut self) {
        for conn in std::mem::take(&mut self.dirty) {
            self.flush(conn);
        }
    }

    fn dial(&mut self, dial: &Dial) {
        match tcp::dial(dial) {
            Ok(stream) => {
                let until = Instant::now() + dial.timeout;
                self.adopt(dial.conn, stream, dial.remote, Phase::Dialling { until });
            }
            Err(e) => self.inputs.push_back(Input::Closed(dial.conn, e.to_string())),
        }
    }

    fn adopt(&mut self, conn: ConnId, mut stream: TcpStream, remote: SocketAddr, phase: Phase) {
        let token = Token(self.next_token);
        self.next_token = self.next_token.checked_add(1).unwrap_or(FIRST_CONN);
        let interest = Interest::READABLE | Interest::WRITABLE;
        if let Err(e) = self.poll.registry().register(&mut stream, token, interest) {
            self.inputs.push_back(Input::Closed(conn, format!("cannot watch the socket: {e}")));
            return;
        }
        self.tokens.insert(token, conn);
        if let Phase::Dialling { until } = phase {
            self.ends.insert((until, conn));
        }
        let connection =
            Connection { stream, token, phase, remote, queue: VecDeque::new(), queued: 0, ends: false };
        self.connections.insert(conn, connection);
    }

    fn accept(&mut self, i: usize) {
        for _ in 0..ACCEPTS {
            let (mut stream, remote) = match self.doors.accept(i) {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                // The connection died in the queue: the next one may be fine.
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(e) => {
                    self.accept_failed(&e);
                    return;
                }
            };
            let remote = match remote.ip().to_canonical() {
                ip if ip.is_ipv4() => SocketAddr::new(ip, remote.port()),
                // With the interface of a link-local address.
                _ => remote,
            };
            let Some(admission) = self.node.admits(remote) else {
                let mut out = Vec::new();
                let now = self.now();
                if let Some(words) = self.node.refused(now, remote, &mut out) {
                    // Best effort, and nothing is kept of it. What it said already is read, so that its end is no reset.
                    let _ = stream.write(&words).and_then(|_| stream.read(&mut self.buffer));
                }
                self.take(out);
                continue;
            };
            let local = stream.local_addr();
            let prepared = tcp::accepted(&stream, admission.ttl, admission.internal);
            if let Err(e) = &prepared {
                let (about, message) = ("bgp".to_owned(), e.to_string());
                (self.on_event)(&Event { level: Level::Debug, about, message });
            }
            let (Ok(local), Ok(())) = (local, prepared) else { continue };
            let conn = ConnId(self.next_accepted);
            self.next_accepted += 1;
            self.adopt(conn, stream, remote, Phase::Open);
            self.inputs.push_back(Input::Connected { conn, local, remote });
            self.settle();
        }
        self.unaccepted.insert(i);
    }

    fn writable(&mut self, conn: ConnId) {
        let Some(c) = self.connections.get_mut(&conn) else { return };
        if let Phase::Dialling { until } = c.phase {
            match c.stream.take_error() {
                Ok(None) => {}
                Ok(Some(e)) | Err(e) => return self.lost(conn, tcp::plain(&e)),
            }
            // Writable without an error and without a peer is a spurious event: the dial goes on.
            let (Ok(local), Ok(_)) = (c.stream.local_addr(), c.stream.peer_addr()) else { return };
            c.phase = Phase::Open;
            self.ends.remove(&(until, conn));
            let remote = c.remote;
            self.inputs.push_back(Input::Connected { conn, local, remote });
            self.settle();
        } else {
            self.flush(conn);
        }
    }

    /// Writes what the socket takes, and tells the node how much is left.
    fn flush(&mut self, conn: ConnId) {
        let Some(c) = self.connections.get_mut(&conn) else { return };
        if matches!(c.phase, Phase::Dialling { .. }) || c.queue.is_empty() {
            return self.shut(conn);
        }
        while !c.queue.is_empty() {
            let slices: Vec<IoSlice<'_>> = c.queue.iter().take(64).map(|b| IoSlice::new(b)).collect();
            match c.stream.write_vectored(&slices) {
                Ok(0) => break,
                Ok(mut n) => {
                    c.queued -= n;
                    while let Some(front) = c.queue.front_mut() {
                        if n < front.len() {
                            let _written = front.split_to(n);
                            break;
                        }
                        n -= front.len();
                        c.queue.pop_front();
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return self.lost(conn, tcp::plain(&e)),
            }
        }
        if c.phase == Phase::Open {
            let queued = c.queued;
            self.inputs.push_back(Input::Written(conn, queued));
        }
        self.shut(conn);
    }

    /// Ends our direction of a closing connection once everything is written.
    fn shut(&mut self, conn: ConnId) {
        let Some(c) = self.connections.get_mut(&conn) else { return };
        if let Phase::Closing { until, shut: false } = c.phase
            && c.queue.is_empty()
        {
            // A peer that is gone already makes this fail, which is fine.
            let _ = c.stream.shutdown(Shutdown::Write);
            c.phase = Phase::Closing { until, shut: true };
            self.unread.insert(conn);
        }
    }

    fn read(&mut self, conn: ConnId) {
        let mut budget = TURN;
        while budget > 0 {
            let Some(c) = self.connections.get_mut(&conn) else { return };
            if matches!(c.phase, Phase::Dialling { .. }) {
                return;
            }
            match c.stream.read(&mut self.buffer) {
                Ok(0) => return self.lost(conn, "closed by the peer".to_owned()),
                Ok(n) => {
                    budget = budget.saturating_sub(n);
                    // Less than there was room for is all there is, but for the end, of which an event told.
                    let drained = n < self.buffer.len() && !c.ends;
                    if c.phase == Phase::Open {
                        self.inputs
                            .push_back(Input::Received(conn, Bytes::copy_from_slice(&self.buffer[..n])));
                        self.settle();
                    }
                    if drained {
                        return;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return self.lost(conn, tcp::plain(&e)),
            }
        }
        self.unread.insert(conn);
    }

    fn close(&mut self, conn: ConnId) {
        self.flush_all();
        let Some(c) = self.connections.get_mut(&conn) else { return };
        if matches!(c.phase, Phase::Dialling { .. }) {
            self.forget(conn);
            return;
        }
        let until = Instant::now() + CLOSE_WAIT;
        c.phase = Phase::Closing { until, shut: false };
        self.ends.insert((until, conn));
        self.shut(conn);
        // However fast connections come and go: the oldest have had the most time to say their last word.
        while self.ends.len() > ENDS {
            let Some(&(_, oldest)) = self.ends.first() else { break };
            self.end(oldest);
        }
    }

    /// The connection is over by itself: the node is told, unless it was done with it.
    fn lost(&mut self, conn: ConnId, why: String) {
        let phase = self.connections.get(&conn).map(|c| c.phase);
        self.forget(conn);
        if phase.is_some_and(|p| !matches!(p, Phase::Closing { .. })) {
            self.inputs.push_back(Input::Closed(conn, why));
            self.settle();
        }
    }

    fn forget(&mut self, conn: ConnId) {
        if let Some(c) = self.connections.remove(&conn) {
            if let Phase::Dialling { until } | Phase::Closing { until, .. } = c.phase {
                self.ends.remove(&(until, conn));
            }
            self.tokens.remove(&c.token);
            self.over.push(c.stream);
        }
        self.unread.remove(&conn);
        self.dirty.remove(&conn);
    }

    /// Ends dials and closings whose time is up.
    fn expire(&mut self) {
        let now = Instant::now();
        while let Some(&(until, conn)) = self.ends.first()
            && until <= now
        {
            self.end(conn);
        }
    }

    fn end(&mut self, conn: ConnId) {
        let why = "no answer (the peer is down, a filter drops it, or only one end has the MD5 key)";
        self.lost(conn, why.to_owned());
    }

    /// Says that accepting fails, once a minute however often it does. The next connection is tried again.
    fn accept_failed(&mut self, e: &io::Error) {
        let now = Instant::now();
        if self.accept_noted.is_none_or(|at| now.duration_since(at) >= NOTE_PAUSE) {
            self.accept_noted = Some(now);
            let message = format!("cannot accept a connection: {}", tcp::plain(e));
            (self.on_event)(&Event { level: Level::Warn, about: "bgp".to_owned(), message });
        }
    }
}

/// Raises the limit of open files for the members that there may be, and says so if it is too low for them.
fn crowded(plan: &Plan) -> Option<String> {
    /// For everything but members: listening sockets, netlink, the API.
    const OTHERS: usize = 128;
    let ranges = &plan.listener.as_ref()?.accept;
    let members: usize = ranges.iter().map(|a| a.max_members.saturating_add(a.max_opening)).sum();
    let files = crate::tcp::raise_file_limit().ok()?;
    (members.saturating_add(OTHERS) as u64 > files).then(|| {
        format!(
            "up to {members} connections of members are allowed, and {files} open files: raise LimitNOFILE, or lower max_members"
        )
    })
}
