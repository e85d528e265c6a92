//! Traffic: a service on every gateway, connections that a client holds open through a listener, and where new ones land.
//!
//! One thread serves all gateways, one keeps the connections of a client talking. A connection is broken when it is reset or
//! closed, or when a line of it stays unanswered for longer than TCP needs to get over a few losses. It measures no times.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream as Watched, UdpSocket};
use mio::{Events, Interest, Poll, Token};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::host::Host;

/// Answers every line and every datagram with the name of the gateway that it reached. It ends when dropped.
pub struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// Serves on `port` of every address of these hosts, by TCP and UDP, IPv4 and IPv6.
    pub fn start(hosts: &[Host], port: u16) -> Self {
        let unlimited = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit").1;
        setrlimit(Resource::RLIMIT_NOFILE, unlimited, unlimited).expect("as many descriptors as are allowed");
        let server = Server::new(hosts, port);
        let stop = Arc::<AtomicBool>::default();
        let ours = Arc::clone(&stop);
        let thread = std::thread::spawn(move || server.serve(&ours));
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// A gateway's sockets.
struct Site {
    name: String,
    listener: TcpListener,
    datagrams: UdpSocket,
}

struct Server {
    poll: Poll,
    sites: Vec<Site>,
    /// The connections, each with the number of its site; a token is the index and the tokens of the sites before it.
    connections: Vec<Option<(Watched, usize)>>,
    free: Vec<usize>,
}

impl Server {
    fn new(hosts: &[Host], port: u16) -> Self {
        let poll = Poll::new().expect("an epoll descriptor");
        let any = SocketAddr::new(IpAddr::from([0_u16; 8]), port);
        let mut sites = Vec::new();
        for (nth, host) in hosts.iter().enumerate() {
            let socket = |kind, protocol| {
                let socket =
                    host.enter(|| Socket::new(Domain::IPV6, kind, Some(protocol))).expect("a socket");
                socket.set_only_v6(false).expect("a socket option");
                socket.set_reuse_address(true).expect("a socket option");
                socket.bind(&any.into()).expect("the port");
                socket.set_nonblocking(true).expect("a socket option");
                socket
            };
            let stream = socket(Type::STREAM, Protocol::TCP);
            stream.listen(4096).expect("a listening socket");
            let mut listener = TcpListener::from_std(stream.into());
            let mut datagrams = UdpSocket::from_std(socket(Type::DGRAM, Protocol::UDP).into());
            let registry = poll.registry();
            registry.register(&mut listener, Token(2 * nth), Interest::READABLE).expect("epoll takes it");
            registry
                .register(&mut datagrams, Token(2 * nth + 1), Interest::READABLE)
                .expect("epoll takes it");
            sites.push(Site { name: host.name.clone(), listener, datagrams });
        }
        Self { poll, sites, connections: Vec::new(), free: Vec::new() }
    }

    fn serve(mut self, stop: &AtomicBool) {
        let mut events = Events::with_capacity(1024);
        while !stop.load(Ordering::Relaxed) {
            // A signal is no reason to end.
            let _ = self.poll.poll(&mut events, Some(Duration::from_millis(100)));
            for event in &events {
                let Token(token) = event.token();
                match token.checked_sub(2 * self.sites.len()) {
                    Some(connection) => self.answer(connection),
                    None if token % 2 == 0 => self.accept(token / 2),
                    None => self.reflect(token / 2),
                }
            }
        }
    }

    fn accept(&mut self, site: usize) {
        while let Ok((mut stream, _)) = self.sites[site].listener.accept() {
            let _ = stream.set_nodelay(true);
            let place = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            let token = Token(place + 2 * self.sites.len());
            self.poll.registry().register(&mut stream, token, Interest::READABLE).expect("epoll takes it");
            self.connections[place] = Some((stream, site));
            self.answer(place);
        }
    }

    fn answer(&mut self, place: usize) {
        let Some((stream, site)) = &mut self.connections[place] else { return };
        let mut piece = [0; 256];
        loop {
            match stream.read(&mut piece) {
                Ok(length @ 1..) => {
                    let lines = piece[..length].iter().filter(|&&octet| octet == b'\n').count();
                    let answer = format!("{}\n", self.sites[*site].name).repeat(lines);
                    // A few octets always fit, or the connection is broken, which the next reading tells.
                    let _ = stream.write_all(answer.as_bytes());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
            }
        }
        self.connections[place] = None;
        self.free.push(place);
    }

    /// Sends every datagram back with the site's name before it.
    fn reflect(&mut self, site: usize) {
        let Site { name, datagrams, .. } = &self.sites[site];
        let mut piece = [0; 256];
        while let Ok((length, from)) = datagrams.recv_from(&mut piece) {
            let mut answer = format!("{name} ").into_bytes();
            answer.extend_from_slice(&piece[..length]);
            let _ = datagrams.send_to(&answer, from);
        }
    }
}

/// Connections of a client that talk until they break, or this is dropped.
pub struct Flows {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ended: Condvar,
    stop: AtomicBool,
}

#[derive(Default)]
struct State {
    flows: Vec<Flow>,
    /// Rounds begun and ended; in each, every connection sends a line and awaits its answer.
    begun: u64,
    ended: u64,
}

/// One connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// The gateway that it is, or was, on.
    pub gateway: String,
    /// How it broke, if it did.
    pub broken: Option<Broken>,
}

/// How a connection broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Broken {
    /// Somebody who did not know it answered.
    Reset,
    /// The other end closed it.
    Closed,
    /// Nobody answered.
    Silent,
}

impl Flows {
    /// Opens so many connections to `target`, each known by the gateway that answers its first line.
    #[track_caller]
    pub fn open(client: &Host, target: SocketAddr, count: usize) -> Self {
        let streams = client.enter(|| {
            let open = |_| connect(target, b"hello\n");
            (0..count).map(open).collect::<std::io::Result<Vec<_>>>()
        });
        let streams = streams.unwrap_or_else(|error| panic!("{count} connections to {target}: {error}"));
        let shared = Arc::<Shared>::default();
        let talk = Talk::new(streams);
        shared.state.lock().unwrap().flows.clone_from(&talk.flows);
        let ours = Arc::clone(&shared);
        let thread = std::thread::spawn(move || talk.run(&ours));
        Self { shared, thread: Some(thread) }
    }

    /// What has become of each after a round of lines that began just now.
    pub fn look(&self) -> Vec<Flow> {
        let mut state = self.shared.state.lock().unwrap();
        let round = state.begun + 1;
        while state.ended < round {
            state = self.shared.ended.wait(state).unwrap();
        }
        state.flows.clone()
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// The talking end of the connections.
struct Talk {
    poll: Poll,
    streams: Vec<Option<Watched>>,
    flows: Vec<Flow>,
    waiting: Vec<bool>,
}

impl Talk {
    fn new(opened: Vec<(TcpStream, String)>) -> Self {
        let poll = Poll::new().expect("an epoll descriptor");
        let (mut streams, mut flows) = (Vec::new(), Vec::new());
        for (nth, (stream, gateway)) in opened.into_iter().enumerate() {
            stream.set_nonblocking(true).expect("a socket option");
            let mut stream = Watched::from_std(stream);
            poll.registry().register(&mut stream, Token(nth), Interest::READABLE).expect("epoll takes it");
            streams.push(Some(stream));
            flows.push(Flow { gateway, broken: None });
        }
        let waiting = vec![false; flows.len()];
        Self { poll, streams, flows, waiting }
    }

    fn run(mut self, shared: &Shared) {
        while !shared.stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            shared.state.lock().unwrap().begun += 1;
            self.round(shared);
            let mut state = shared.state.lock().unwrap();
            state.flows.clone_from(&self.flows);
            state.ended = state.begun;
            drop(state);
            shared.ended.notify_all();
            std::thread::sleep(ROUND.saturating_sub(start.elapsed()));
        }
    }

    /// Sends a line on each, a few at a time, and waits for the answers.
    fn round(&mut self, shared: &Shared) {
        for nth in 0..self.streams.len() {
            if let Some(stream) = &mut self.streams[nth] {
                match stream.write_all(b"still there?\n") {
                    Ok(()) => self.waiting[nth] = true,
                    Err(_) => self.end(nth, Broken::Reset),
                }
            }
            if nth % SLICE == SLICE - 1 {
                self.listen(Duration::from_millis(5));
            }
        }
        let start = Instant::now();
        while self.waiting.contains(&true) && start.elapsed() < PATIENCE {
            self.listen(Duration::from_millis(20));
            if shared.stop.load(Ordering::Relaxed) {
                return;
            }
        }
        for nth in 0..self.streams.len() {
            if self.waiting[nth] {
                self.end(nth, Broken::Silent);
            }
        }
    }

    fn listen(&mut self, at_most: Duration) {
        let mut events = Events::with_capacity(1024);
        let _ = self.poll.poll(&mut events, Some(at_most));
        for event in &events {
            let Token(nth) = event.token();
            let mut piece = [0; 256];
            while let Some(stream) = &mut self.streams[nth] {
                match stream.read(&mut piece) {
                    Ok(length @ 1..) => {
                        if piece[..length].contains(&b'\n') {
                            self.waiting[nth] = false;
                        }
                    }
                    Ok(0) => self.end(nth, Broken::Closed),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => self.end(nth, Broken::Reset),
                }
            }
        }
    }

    fn end(&mut self, nth: usize, broken: Broken) {
        self.streams[nth] = None;
        self.waiting[nth] = false;
        self.flows[nth].broken.get_or_insert(broken);
    }
}

/// Opens so many new connections to `target`, one after another, and counts which gateway answered; nobody has the empty name.
pub fn land(client: &Host, target: SocketAddr, count: usize) -> BTreeMap<String, usize> {
    client.enter(|| {
        let mut found = BTreeMap::new();
        for _ in 0..count {
            let gateway = connect(target, b"who?\n").map(|(_, gateway)| gateway).unwrap_or_default();
            *found.entry(gateway).or_default() += 1;
        }
        found
    })
}

/// A connection, and who answered its first line. It leaves no state behind when it is closed.
fn connect(target: SocketAddr, line: &[u8]) -> std::io::Result<(TcpStream, String)> {
    let mut stream = TcpStream::connect_timeout(&target, Duration::from_secs(5))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    stream.write_all(line)?;
    let (mut name, mut piece) = (Vec::new(), [0; 64]);
    while name.last() != Some(&b'\n') {
        match stream.read(&mut piece)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            length => name.extend_from_slice(&piece[..length]),
        }
    }
    Ok((stream, String::from_utf8_lossy(&name).trim().to_owned()))
}

/// A round takes at least so long.
const ROUND: Duration = Duration::from_millis(500);
/// So many lines leave at once.
const SLICE: usize = 25;
/// TCP repeats a lost segment after 0.2, 0.6, 1.4, 3.0 and 6.2 s: that is how long a line waits.
const PATIENCE: Duration = Duration::from_secs(8);
