//! The one dialer of every probe: an address to a connected socket.
//!
//! It has no timeout of its own: a probe's one timeout covers the dial and everything after it.

mod header;
mod stream;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use standfast_core::plan::Via;
use tokio::io::AsyncWriteExt;
use tokio::net::UdpSocket;
use tokio::time::Instant;

pub use stream::Stream;

/// An open connection, and how long opening it took.
#[derive(Debug)]
pub struct Dialled {
    /// The connection.
    pub stream: Stream,
    /// Our end of it.
    pub local: Option<SocketAddr>,
    /// Time from the first system call to the end of the handshake.
    pub took: Duration,
}

/// What a connection is opened for. It decides which options it needs, and each of them is a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Talk of any kind.
    Talk,
    /// One write of so many octets from this end, the answer, and no other before that was heard.
    Ask(usize),
    /// It opens, and is reset at once ([`Stream::reset_on_drop`]): the handshake's last packet is left out. The other end's
    /// kernel has said by then that it has room for it, and its program never hears of it.
    Knock,
}

/// Octets that fit in one segment of any path.
const SEGMENT: usize = 536;

/// A connection that may still be opening.
#[derive(Debug)]
pub(crate) struct Opening {
    stream: Stream,
    purpose: Purpose,
    remote: SocketAddr,
    start: Instant,
    /// Whether its handshake is over.
    is_open: bool,
}

impl Opening {
    /// Begins to open a TCP connection to `remote`, leaving this host as `via` says.
    pub(crate) fn begin(remote: SocketAddr, via: &Via, purpose: Purpose) -> Result<Self, DialError> {
        let start = Instant::now();
        let socket = leaving(Type::STREAM, "connect", remote, via)?;
        // A header makes it a talk.
        let purpose = if via.proxy_protocol.is_some() { Purpose::Talk } else { purpose };
        if purpose == Purpose::Knock {
            // It only leaves out a packet; where that fails the packet is sent.
            let _ = socket.set_tcp_quickack(false);
        }
        let mut stream = Stream::new(socket, remote);
        let is_open = stream.try_connect(remote).map_err(|e| not_connected(e, remote, via))?;
        Ok(Self { stream, purpose, remote, start, is_open })
    }

    /// When it began.
    pub(crate) const fn start(&self) -> Instant {
        self.start
    }

    /// The connection, if it is open already and nothing is to be sent before it is used.
    pub(crate) fn at_once(self, via: &Via) -> Result<Result<Dialled, DialError>, Box<Self>> {
        let is_ready = self.is_open && via.proxy_protocol.is_none();
        if is_ready { Ok(self.opened()) } else { Err(Box::new(self)) }
    }

    fn opened(self) -> Result<Dialled, DialError> {
        let Self { stream, purpose, remote, start, .. } = self;
        let failed = |e| DialError::new(format!("connect {remote}"), e);
        let local = stream.local();
        // A dial to a free port of this host may be given that very port as its source, and then meets itself.
        if local == Some(remote) {
            return Err(failed(io::Error::from_raw_os_error(libc::ECONNREFUSED)));
        }
        let at_once = match purpose {
            Purpose::Talk => false,
            Purpose::Ask(octets) => octets <= SEGMENT,
            Purpose::Knock => true,
        };
        if !at_once {
            // Without this a request of two segments waits for the server's delayed acknowledgement.
            stream.without_delay().map_err(failed)?;
        }
        Ok(Dialled { stream, local, took: start.elapsed() })
    }

    /// Waits until it is open, and sends the header that `via` asks for.
    pub(crate) async fn finish(mut self: Box<Self>, via: &Via) -> Result<Dialled, DialError> {
        let remote = self.remote;
        if !self.is_open {
            self.stream.connected(remote).await.map_err(|e| not_connected(e, remote, via))?;
        }
        let dialled = self.opened()?;
        match (via.proxy_protocol, dialled.local) {
            // What this takes is only there where it is needed.
            (Some(version), Some(local)) => {
                Box::pin(announced(dialled, header::header(version, local, remote), remote)).await
            }
            _ => Ok(dialled),
        }
    }
}

/// Sends the header.
async fn announced(mut dialled: Dialled, header: Vec<u8>, remote: SocketAddr) -> Result<Dialled, DialError> {
    let sent = dialled.stream.write_all(&header).await;
    sent.map_err(|e| DialError::new(format!("send the PROXY header to {remote}"), e))?;
    Ok(dialled)
}

/// Why a connection did not open.
fn not_connected(e: io::Error, remote: SocketAddr, via: &Via) -> DialError {
    let no_port = lacks_port(&e, remote, via);
    DialError { no_port, ..DialError::new(format!("connect {remote}"), e) }
}

/// Opens a TCP connection to `remote`, leaving this host as `via` says, and sends the header that it asks for.
pub async fn dial(remote: SocketAddr, via: &Via, purpose: Purpose) -> Result<Dialled, DialError> {
    Box::new(Opening::begin(remote, via, purpose)?).finish(via).await
}

/// Opens a connection to the unix socket at `path`.
pub async fn dial_unix(path: &Path) -> Result<Dialled, DialError> {
    let start = Instant::now();
    let failed = |e| DialError::new(format!("connect {}", path.display()), e);
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).map_err(failed)?;
    let stream = Stream::connect_unix(socket, path).await.map_err(failed)?;
    Ok(Dialled { stream, local: None, took: start.elapsed() })
}

/// A UDP socket on a random port that sends to and hears `remote` alone.
pub async fn dial_udp(remote: SocketAddr, via: &Via) -> Result<UdpSocket, DialError> {
    let failed = |e| DialError::new(format!("send to {remote}"), e);
    let socket = leaving(Type::DGRAM, "send to", remote, via)?;
    // The kernel picks a random port where none is bound.
    socket.connect(&remote.into()).map_err(|e| {
        // What the kernel says where all of them are taken; a missing route or address has other words.
        let no_port = e.raw_os_error() == Some(libc::EAGAIN);
        DialError { no_port, ..failed(e) }
    })?;
    // As with TCP: a free port of this host may be our own, and then whatever we send comes back as an answer.
    if socket.local_addr().is_ok_and(|local| local.as_socket() == Some(remote)) {
        return Err(failed(io::Error::from_raw_os_error(libc::ECONNREFUSED)));
    }
    UdpSocket::from_std(socket.into()).map_err(failed)
}

/// Whether a failed connection found no free port on this host. The kernel has the same words for a host that has no
/// address to reach `remote` from, which a datagram socket would miss too.
fn lacks_port(e: &io::Error, remote: SocketAddr, via: &Via) -> bool {
    if e.raw_os_error() != Some(libc::EADDRNOTAVAIL) {
        return false;
    }
    let reached = leaving(Type::DGRAM, "connect", remote, via)
        .and_then(|s| s.connect(&remote.into()).map_err(|e| DialError::new(String::new(), e)));
    reached.map_or_else(|e| e.cause.raw_os_error() != Some(libc::EADDRNOTAVAIL), |()| true)
}

/// A socket to `remote` that leaves this host as `via` says and does not block.
fn leaving(kind: Type, doing: &str, remote: SocketAddr, via: &Via) -> Result<Socket, DialError> {
    let what = || format!("{doing} {remote}");
    let socket = Socket::new(Domain::for_address(remote), kind.nonblocking(), None)
        .map_err(|e| DialError::new(what(), e))?;
    if kind == Type::STREAM && via.source.is_some() {
        // The port is chosen by the whole pair of addresses when it connects: one port serves many targets. A kernel
        // without it takes a port of its own for each connection.
        let _ = crate::tcp::option(&socket, libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT, &1i32);
    }
    leave(&socket, via, via.source, what)?;
    Ok(socket)
}

/// Makes a socket leave this host as `via` says, from `source`; an error begins with `what`.
pub(crate) fn leave(
    socket: &Socket,
    via: &Via,
    source: Option<IpAddr>,
    what: impl Fn() -> String,
) -> Result<(), DialError> {
    let Via { source: _, interface, mark, proxy_protocol: _ } = via;
    let failed = |how: String, cause| DialError::new(what() + &how, cause);
    if let Some(mark) = *mark {
        socket
            .set_mark(mark)
            .map_err(|e| failed(format!(" with mark {mark}"), e).needing("CAP_NET_ADMIN"))?;
    }
    if let Some(name) = interface {
        socket
            .bind_device(Some(name.as_bytes()))
            .map_err(|e| failed(format!(" by interface {name}"), e).needing("CAP_NET_RAW"))?;
    }
    if let Some(source) = source {
        socket.bind(&SocketAddr::new(source, 0).into()).map_err(|e| {
            // Of any port, none is left.
            let no_port = e.raw_os_error() == Some(libc::EADDRINUSE);
            DialError { no_port, ..failed(format!(" from {source}"), e) }
        })?;
    }
    Ok(())
}

/// Why a connection could not be opened; nothing is left open.
#[derive(Debug)]
pub struct DialError {
    what: String,
    /// The capability that this process lacks.
    needs: Option<&'static str>,
    /// Whether all ports that this host may take are taken.
    no_port: bool,
    cause: io::Error,
}

impl DialError {
    pub(crate) fn new(what: String, cause: io::Error) -> Self {
        Self { what, needs: None, no_port: false, cause }
    }

    /// If it was not permitted, `capability` is what permits it.
    fn needing(self, capability: &'static str) -> Self {
        let denied = self.cause.kind() == io::ErrorKind::PermissionDenied;
        Self { needs: denied.then_some(capability), ..self }
    }

    /// Whether the cause is in this process alone, and says nothing about the other end: it ran out of descriptors,
    /// memory or ports, or lacks a capability.
    pub fn is_local(&self) -> bool {
        self.no_port || self.needs.is_some() || is_exhaustion(&self.cause)
    }
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.no_port {
            return write!(f, "{}: no free port of this host", self.what);
        }
        write!(f, "{}: {}", self.what, words(&self.cause))?;
        self.needs.map_or(Ok(()), |needs| write!(f, " (it needs {needs})"))
    }
}

impl std::error::Error for DialError {}

/// Whether this host ran out of descriptors or memory. A missing source address or route is not that: it counts against
/// the check, because nobody could be served over it.
pub(crate) fn is_exhaustion(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// An I/O error as an operator reads it: in lower case and without its number.
pub(crate) fn words(e: &io::Error) -> String {
    let text = e.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use standfast_core::plan::ProxyProtocol;
    use tokio::io::AsyncReadExt;

    #[tokio::test]
    async fn a_refused_dial_names_the_address_and_the_reason() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let e = dial(free, &Via::default(), Purpose::Talk).await.unwrap_err();
        assert_eq!(e.to_string(), format!("connect {free}: connection refused"));
        assert!(!e.is_local());
    }

    #[tokio::test]
    async fn a_missing_source_address_counts_against_the_check() {
        let via = Via { source: Some("192.0.2.77".parse().unwrap()), ..Via::default() };
        let e = dial("127.0.0.1:1".parse().unwrap(), &via, Purpose::Talk).await.unwrap_err();
        assert_eq!(e.to_string(), "connect 127.0.0.1:1 from 192.0.2.77: cannot assign requested address");
        assert!(!e.is_local());
    }

    #[tokio::test]
    async fn an_ipv6_literal_is_bracketed_in_errors() {
        let e = dial("[::1]:1".parse().unwrap(), &Via::default(), Purpose::Talk).await.unwrap_err();
        assert!(e.to_string().starts_with("connect [::1]:1: "), "{e}");
    }

    #[tokio::test]
    async fn a_dial_never_meets_itself() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        // The same address and port at both ends is what the kernel does by chance; here it is done on purpose.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(free).unwrap();
        let itself = socket.connect(free).await.unwrap();
        assert_eq!(itself.local_addr().unwrap(), itself.peer_addr().unwrap());
        drop(itself);
        for _ in 0..200 {
            assert!(dial(free, &Via::default(), Purpose::Talk).await.is_err());
        }
    }

    #[tokio::test]
    async fn an_interface_that_is_not_there_is_named() {
        let via = Via { interface: Some("nosuch0".into()), ..Via::default() };
        let e = dial("127.0.0.1:1".parse().unwrap(), &via, Purpose::Talk).await.unwrap_err();
        assert_eq!(e.to_string(), "connect 127.0.0.1:1 by interface nosuch0: no such device");
        let e = dial_udp("127.0.0.1:1".parse().unwrap(), &via).await.unwrap_err();
        assert_eq!(e.to_string(), "send to 127.0.0.1:1 by interface nosuch0: no such device");
    }

    #[tokio::test]
    async fn the_proxy_header_comes_before_everything() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let remote = server.local_addr().unwrap();
        for version in [ProxyProtocol::V1, ProxyProtocol::V2] {
            let via = Via { proxy_protocol: Some(version), ..Via::default() };
            let mut dialled = dial(remote, &via, Purpose::Talk).await.unwrap();
            dialled.stream.write_all(b"hello").await.unwrap();
            let (local, mut accepted) = (dialled.local.unwrap(), server.accept().await.unwrap().0);
            drop(dialled);
            let mut heard = Vec::new();
            accepted.read_to_end(&mut heard).await.unwrap();
            assert_eq!(heard, [header::header(version, local, remote), b"hello".to_vec()].concat());
        }
    }

    #[tokio::test]
    async fn a_connection_from_a_source_address_shares_its_port_with_others() {
        // Both connections leave from the one port that there is.
        let (a, b) = (listener("127.0.0.1:0"), listener("127.0.0.2:0"));
        let via = Via { source: Some("127.0.0.3".parse().unwrap()), ..Via::default() };
        let one = dial(a.local_addr().unwrap(), &via, Purpose::Talk).await.unwrap();
        let socket = leaving(Type::STREAM, "connect", b.local_addr().unwrap(), &via).unwrap();
        assert_eq!(socket.local_addr().unwrap().as_socket().unwrap().port(), 0, "a port was taken early");
        assert_eq!(one.local.unwrap().ip(), via.source.unwrap());
    }

    #[tokio::test]
    async fn a_stream_waits_reads_and_writes_more_than_fits() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut stream =
            dial(server.local_addr().unwrap(), &Via::default(), Purpose::Talk).await.unwrap().stream;
        let (mut accepted, _) = server.accept().await.unwrap();
        let octets: Vec<u8> = (0..4_000_000u32).map(|n| (n % 251) as u8).collect();
        let copy = octets.clone();
        let echo = tokio::spawn(async move {
            let mut heard = vec![0; copy.len()];
            accepted.read_exact(&mut heard).await.unwrap();
            assert!(heard == copy);
            tokio::time::sleep(Duration::from_millis(20)).await;
            accepted.write_all(&heard).await.unwrap();
        });
        stream.write_all(&octets).await.unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).await.unwrap();
        assert!(back == octets);
        echo.await.unwrap();
    }

    #[tokio::test]
    async fn a_reset_is_what_the_other_end_sees_where_it_was_asked_for() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        for reset in [false, true] {
            let stream =
                dial(server.local_addr().unwrap(), &Via::default(), Purpose::Talk).await.unwrap().stream;
            if reset {
                stream.reset_on_drop();
            }
            let (mut accepted, _) = server.accept().await.unwrap();
            drop(stream);
            let seen = accepted.read_u8().await.unwrap_err().kind();
            let want = if reset { io::ErrorKind::ConnectionReset } else { io::ErrorKind::UnexpectedEof };
            assert_eq!(seen, want);
        }
    }

    #[tokio::test]
    async fn a_unix_socket_that_nobody_listens_on_is_refused_by_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let e = dial_unix(&path).await.unwrap_err();
        assert_eq!(e.to_string(), format!("connect {}: connection refused", path.display()));
        std::fs::remove_file(&path).unwrap();
        let server = tokio::net::UnixListener::bind(&path).unwrap();
        let mut stream = dial_unix(&path).await.unwrap().stream;
        stream.reset_on_drop();
        stream.write_all(b"hello").await.unwrap();
        let mut accepted = server.accept().await.unwrap().0;
        drop(stream);
        let mut heard = String::new();
        accepted.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "hello");
    }

    fn listener(at: &str) -> std::net::TcpListener {
        std::net::TcpListener::bind(at).unwrap()
    }
}
