//! A scripted peer: a BGP speaker that does exactly what a test says, octet by octet.

use std::io::{ErrorKind, Read as _, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use crate::host::Host;
use crate::message::{Kind, Message, Update, hex};

/// Waits for connections at an address of a host.
pub struct Acceptor {
    socket: Socket,
}

/// One connection to the speaker under test.
pub struct Session {
    stream: TcpStream,
    buffer: Vec<u8>,
    keeping: Option<Arc<AtomicBool>>,
}

/// What reading a session gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// A message.
    Message(Message),
    /// The other end closed in order.
    Closed,
    /// The other end aborted.
    Reset,
    /// Nothing within the time.
    Silence,
}

/// The fields of an OPEN.
#[derive(Debug, Clone)]
pub struct OpenBytes {
    /// My Autonomous System, or 23456 and capability 65 if it needs four octets.
    pub asn: u32,
    /// Hold time in seconds.
    pub hold: u16,
    /// BGP identifier.
    pub id: Ipv4Addr,
    /// Capabilities, as code and value, all in one parameter; none: no parameters at all.
    pub capabilities: Vec<(u8, Vec<u8>)>,
}

impl OpenBytes {
    /// An OPEN with both unicast families, route refresh and four-octet AS numbers.
    pub fn new(asn: u32, id: Ipv4Addr) -> Self {
        let capabilities =
            vec![(1, vec![0, 1, 0, 1]), (1, vec![0, 2, 0, 1]), (2, vec![]), (65, asn.to_be_bytes().to_vec())];
        Self { asn, hold: 9, id, capabilities }
    }

    /// The message.
    pub fn message(&self) -> Message {
        let short = u16::try_from(self.asn).unwrap_or(23456);
        let mut body = vec![4];
        body.extend_from_slice(&short.to_be_bytes());
        body.extend_from_slice(&self.hold.to_be_bytes());
        body.extend_from_slice(&self.id.octets());
        let mut capabilities = Vec::new();
        for (code, value) in &self.capabilities {
            capabilities.extend_from_slice(&[*code, u8::try_from(value.len()).expect("a short capability")]);
            capabilities.extend_from_slice(value);
        }
        let length = u8::try_from(capabilities.len()).expect("few capabilities");
        if length == 0 {
            body.push(0);
        } else {
            body.extend_from_slice(&[length + 2, 2, length]);
            body.extend_from_slice(&capabilities);
        }
        Message::new(1, &body)
    }
}

impl Acceptor {
    /// Listens at `address`, port 179, in `host`.
    pub fn new(host: &Host, address: impl Into<IpAddr>) -> Self {
        Self::with_buffer(host, address, None)
    }

    /// The same with a receive buffer of so many bytes (the kernel doubles it, and has a least size).
    pub fn with_buffer(host: &Host, address: impl Into<IpAddr>, bytes: Option<usize>) -> Self {
        let address = SocketAddr::new(address.into(), 179);
        let socket =
            host.enter(|| Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP)));
        let socket = socket.expect("a socket");
        socket.set_reuse_address(true).expect("a socket option");
        if let Some(bytes) = bytes {
            socket.set_recv_buffer_size(bytes).expect("a socket option");
        }
        socket.bind(&address.into()).expect("the address");
        socket.listen(1024).expect("a listening socket");
        socket.set_nonblocking(true).expect("a socket option");
        Self { socket }
    }

    /// The next connection, or `None` if none comes in time.
    pub fn try_accept(&self, deadline: Duration) -> Option<Session> {
        let start = Instant::now();
        loop {
            if let Ok((socket, _)) = self.socket.accept() {
                socket.set_nonblocking(false).expect("a socket option");
                return Some(Session::new(socket.into()));
            }
            if start.elapsed() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The next connection; panics if none comes in time.
    #[track_caller]
    pub fn accept(&self, deadline: Duration) -> Session {
        self.try_accept(deadline).unwrap_or_else(|| panic!("nobody connected within {deadline:?}"))
    }
}

impl Session {
    /// Dials from `local` to port 179 of `remote`, inside `host`.
    pub fn dial(host: &Host, local: impl Into<IpAddr>, remote: impl Into<IpAddr>) -> std::io::Result<Self> {
        let (local, remote) = (SocketAddr::new(local.into(), 0), SocketAddr::new(remote.into(), 179));
        host.enter(|| {
            let socket = Socket::new(Domain::for_address(remote), Type::STREAM, Some(Protocol::TCP))?;
            socket.bind(&local.into())?;
            socket.connect_timeout(&remote.into(), Duration::from_secs(2))?;
            Ok(Self::new(socket.into()))
        })
    }

    /// Dials port 179 of a link-local address from another one, both on this interface of `host`.
    pub fn dial_link_local(
        host: &Host,
        interface: &str,
        local: Ipv6Addr,
        remote: Ipv6Addr,
    ) -> std::io::Result<Self> {
        let index = host.run(&format!("cat /sys/class/net/{interface}/ifindex"));
        let index = index.trim().parse().expect("an index");
        let at = |address, port| SocketAddr::from(SocketAddrV6::new(address, port, 0, index));
        host.enter(|| {
            let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?;
            socket.bind(&at(local, 0).into())?;
            socket.connect_timeout(&at(remote, 179).into(), Duration::from_secs(2))?;
            Ok(Self::new(socket.into()))
        })
    }

    fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("a socket option");
        stream.set_write_timeout(Some(Duration::from_secs(5))).expect("a socket option");
        Self { stream, buffer: Vec::new(), keeping: None }
    }

    /// Sends these octets; that the other end has gone is not an error here.
    pub fn send(&mut self, octets: &[u8]) {
        let _ = self.stream.write_all(octets);
    }

    /// Sends octets written as hexadecimal text; `M` is the marker.
    pub fn send_hex(&mut self, text: &str) {
        self.send(&hex(text));
    }

    /// Sends a KEEPALIVE.
    pub fn keepalive(&mut self) {
        self.send(&Message::new(4, &[]).bytes);
    }

    /// Sends KEEPALIVEs every `interval` from now on, until dropped or [`fall_silent`](Self::fall_silent).
    pub fn keep_alive(&mut self, interval: Duration) {
        let flag = Arc::new(AtomicBool::new(true));
        let (going, mut stream) = (Arc::clone(&flag), self.stream.try_clone().expect("a second handle"));
        std::thread::spawn(move || {
            let message = Message::new(4, &[]).bytes;
            while going.load(Ordering::Relaxed) && stream.write_all(&message).is_ok() {
                let due = Instant::now() + interval;
                while going.load(Ordering::Relaxed) && Instant::now() < due {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        });
        self.keeping = Some(flag);
    }

    /// Sends no more KEEPALIVEs.
    pub fn fall_silent(&mut self) {
        if let Some(flag) = self.keeping.take() {
            flag.store(false, Ordering::Relaxed);
        }
    }

    /// The next message, or why there is none.
    pub fn read(&mut self, deadline: Duration) -> Read {
        let start = Instant::now();
        loop {
            match Message::take(&mut self.buffer) {
                Ok(Some(message)) => return Read::Message(message),
                Ok(None) => {}
                Err(octets) => panic!("not BGP: {octets:02x?}"),
            }
            let left = deadline.saturating_sub(start.elapsed()).max(Duration::from_millis(1));
            self.stream.set_read_timeout(Some(left)).expect("a socket option");
            let mut part = [0; 65536];
            match self.stream.read(&mut part) {
                Ok(0) => return Read::Closed,
                Ok(n) => self.buffer.extend_from_slice(&part[..n]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if start.elapsed() >= deadline {
                        return Read::Silence;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Read::Reset,
            }
        }
    }

    /// The next message; panics if there is none in time.
    #[track_caller]
    pub fn message(&mut self, deadline: Duration) -> Message {
        match self.read(deadline) {
            Read::Message(message) => message,
            other => panic!("no message within {deadline:?}: {other:?}"),
        }
    }

    /// The next message that is not a KEEPALIVE.
    #[track_caller]
    pub fn next(&mut self, deadline: Duration) -> Message {
        let start = Instant::now();
        loop {
            let message = self.message(deadline.saturating_sub(start.elapsed()));
            if message.kind() != Kind::Keepalive {
                return message;
            }
        }
    }

    /// Reads on until an UPDATE announces or withdraws `prefix`, and gives it.
    #[track_caller]
    pub fn update_of(&mut self, prefix: &str) -> (Message, Update) {
        let start = Instant::now();
        loop {
            let message = self.next(Duration::from_secs(10).saturating_sub(start.elapsed()));
            let Some(update) = message.update() else { panic!("{message:?} where an UPDATE was awaited") };
            if update.announced.iter().chain(&update.withdrawn).any(|told| told == prefix) {
                return (message, update);
            }
        }
    }

    /// Everything that comes until nothing has come for `quiet`, or the connection ends.
    pub fn drain(&mut self, quiet: Duration) -> Vec<Message> {
        let mut all = Vec::new();
        let mut since = Instant::now();
        while since.elapsed() < quiet {
            match self.read(quiet.saturating_sub(since.elapsed())) {
                Read::Message(message) => {
                    if message.kind() != Kind::Keepalive {
                        since = Instant::now();
                    }
                    all.push(message);
                }
                Read::Silence => {}
                Read::Closed | Read::Reset => break,
            }
        }
        all
    }

    /// Answers an OPEN with these octets, exchanges KEEPALIVEs, and goes on sending them every second. Gives the OPEN received.
    #[track_caller]
    pub fn establish_with(&mut self, open: &[u8]) -> Message {
        self.send(open);
        let theirs = self.message(Duration::from_secs(5));
        assert_eq!(theirs.kind(), Kind::Open, "{theirs:?}");
        self.keepalive();
        let answer = self.message(Duration::from_secs(5));
        assert_eq!(answer.kind(), Kind::Keepalive, "{answer:?}");
        self.keep_alive(Duration::from_secs(1));
        theirs
    }

    /// The same with an ordinary OPEN, but `false` where the other end does not play along.
    pub fn try_establish(&mut self, open: &OpenBytes) -> bool {
        self.send(&open.message().bytes);
        for kind in [Kind::Open, Kind::Keepalive] {
            match self.read(Duration::from_secs(5)) {
                Read::Message(message) if message.kind() == kind => self.keepalive(),
                _ => return false,
            }
        }
        self.keep_alive(Duration::from_secs(1));
        true
    }

    /// The same with an ordinary OPEN.
    #[track_caller]
    pub fn establish(&mut self, open: &OpenBytes) -> Message {
        self.establish_with(&open.message().bytes)
    }

    /// Our own port.
    pub fn local(&self) -> SocketAddr {
        self.stream.local_addr().expect("a local address")
    }

    /// Their port.
    pub fn remote(&self) -> SocketAddr {
        self.stream.peer_addr().expect("a remote address")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.fall_silent();
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}
