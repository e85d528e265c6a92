//! Many members in one thread: each with an address of its own, an open session, and little to say.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use crate::host::Host;
use crate::lab::batch;
use crate::message::{Kind, Message};
use crate::peer::OpenBytes;

/// Members that dial, open, and keep what opens alive, until it is dropped.
pub struct Crowd {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    established: AtomicUsize,
    ended: AtomicUsize,
    stop: AtomicBool,
    outbox: Mutex<Vec<(usize, Vec<u8>)>>,
}

struct Member {
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
    up: bool,
}

/// The addresses of a crowd: 198.18.0.1/15 is the listener's, and these are the members'.
pub fn crowd_addresses(count: usize) -> Vec<Ipv4Addr> {
    let first = u32::from(Ipv4Addr::new(198, 18, 1, 0));
    (0..count).map(|n| Ipv4Addr::from(first + u32::try_from(n).expect("few"))).collect()
}

/// The listener's address towards a crowd.
pub const CROWDED: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

/// Lets this process, and the daemons that it starts from here on, have as many open files as the system allows.
pub fn many_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Where that is refused, whoever needs more files says so.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

impl Crowd {
    /// Puts the addresses on both hosts, and lets `count` members of this AS on `host` dial `listener`, one after the other, with
    /// hold 9 and a KEEPALIVE every 3 s.
    pub fn start(host: &Host, listener: &Host, count: usize, asn: u32) -> Self {
        many_files();
        let members = crowd_addresses(count);
        let lines: String = members.iter().map(|a| format!("addr add {a}/15 dev eth0\n")).collect();
        batch(&host.ns, &lines);
        if !listener.attempt("ip -o address show dev eth0").contains("198.18.0.1/") {
            batch(&listener.ns, &format!("addr add {CROWDED}/15 dev eth0\n"));
        }
        let shared = Arc::<Shared>::default();
        let (ours, host) = (Arc::clone(&shared), host.clone());
        let thread = std::thread::spawn(move || host.enter(|| run(&ours, &members, asn)));
        Self { shared, thread: Some(thread) }
    }

    /// Sessions that are established.
    pub fn established(&self) -> usize {
        self.shared.established.load(Ordering::Relaxed)
    }

    /// Connections that the listener, or a failure, has ended.
    pub fn ended(&self) -> usize {
        self.shared.ended.load(Ordering::Relaxed)
    }

    /// Sends these octets from one of the members.
    pub fn send(&self, member: usize, octets: Vec<u8>) {
        self.shared.outbox.lock().expect("nobody panics with it").push((member, octets));
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, addresses: &[Ipv4Addr], asn: u32) {
    let mut members: Vec<Member> = Vec::new();
    let mut keepalive = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        // A few more, so that those that are up are not kept waiting. Where the listener's queue is full, they come later.
        for address in addresses.iter().skip(members.len()).take(4) {
            let Ok(stream) = dial(*address) else { break };
            let mut member = Member { stream: Some(stream), buffer: Vec::new(), up: false };
            member.say(&OpenBytes::new(asn, *address).message().bytes);
            members.push(member);
        }
        for member in &mut members {
            member.read(shared);
        }
        for (nth, octets) in std::mem::take(&mut *shared.outbox.lock().expect("nobody panics with it")) {
            if let Some(stream) = members.get_mut(nth).and_then(|m| m.stream.as_mut()) {
                let _ = stream.write_all(&octets);
            }
        }
        if keepalive.elapsed() >= Duration::from_secs(3) {
            keepalive = Instant::now();
            for member in members.iter_mut().filter(|m| m.up) {
                member.say(&Message::new(4, &[]).bytes);
            }
        }
        if members.len() == addresses.len() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn dial(local: Ipv4Addr) -> std::io::Result<TcpStream> {
    let (local, remote) = (SocketAddr::new(local.into(), 0), SocketAddr::new(IpAddr::V4(CROWDED), 179));
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&local.into())?;
    socket.connect_timeout(&remote.into(), Duration::from_millis(500))?;
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

impl Member {
    fn say(&mut self, octets: &[u8]) {
        if let Some(stream) = &mut self.stream {
            let _ = stream.write_all(octets);
        }
    }

    fn read(&mut self, shared: &Shared) {
        let mut part = [0; 4096];
        let Some(stream) = &mut self.stream else { return };
        match stream.read(&mut part) {
            Ok(n) if n > 0 => self.buffer.extend_from_slice(&part[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return,
            _ => {
                self.stream = None;
                shared.ended.fetch_add(1, Ordering::Relaxed);
                if std::mem::take(&mut self.up) {
                    shared.established.fetch_sub(1, Ordering::Relaxed);
                }
                return;
            }
        }
        while let Ok(Some(message)) = Message::take(&mut self.buffer) {
            match message.kind() {
                Kind::Open => self.say(&Message::new(4, &[]).bytes),
                Kind::Keepalive if !self.up => {
                    self.up = true;
                    shared.established.fetch_add(1, Ordering::Relaxed);
                }
                _ => {}
            }
        }
    }
}
