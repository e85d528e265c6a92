//! The one dialer of every probe: an address to a connected socket.
//!
//! It has no timeout of its own: a probe's one timeout covers the dial and everything after it.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use standfast_core::plan::Via;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UdpSocket, UnixStream};
use tokio::time::Instant;

/// An open connection: of TCP, or of a unix socket.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// A unix socket.
    Unix(UnixStream),
}

impl Stream {
    /// Who is at the other end, in words.
    pub fn peer(&self) -> String {
        match self {
            Self::Tcp(tcp) => tcp.peer_addr().map_or_else(|e| words(&e), |a| a.to_string()),
            Self::Unix(unix) => {
                let path =
                    unix.peer_addr().ok().and_then(|a| a.as_pathname().map(|p| p.display().to_string()));
                path.unwrap_or_else(|| "a unix socket".into())
            }
        }
    }
}

macro_rules! either {
    ($self:ident, $($call:tt)*) => {
        match $self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).$($call)*,
            Self::Unix(stream) => Pin::new(stream).$($call)*,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_shutdown(cx))
    }
}

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

/// Opens a TCP connection to `remote`, leaving this host as `via` says.
pub async fn dial(remote: SocketAddr, via: &Via) -> Result<Dialled, DialError> {
    let start = Instant::now();
    let what = || format!("connect {remote}");
    let socket = match remote {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }
    .map_err(|e| DialError::new(what(), e))?;
    if let Some(source) = via.source {
        socket
            .bind(SocketAddr::new(source, 0))
            .map_err(|e| DialError::new(format!("connect {remote} from {source}"), e))?;
    }
    let stream = socket.connect(remote).await.map_err(|e| DialError::new(what(), e))?;
    let local = stream.local_addr().ok();
    // A dial to a free port of this host may be given that very port as its source, and then meets itself.
    if local == Some(remote) {
        return Err(DialError::new(what(), io::Error::from_raw_os_error(libc::ECONNREFUSED)));
    }
    // Without this a request of two segments waits for the server's delayed acknowledgement.
    stream.set_nodelay(true).map_err(|e| DialError::new(what(), e))?;
    Ok(Dialled { stream: Stream::Tcp(stream), local, took: start.elapsed() })
}

/// Opens a connection to the unix socket at `path`.
pub async fn dial_unix(path: &Path) -> Result<Dialled, DialError> {
    let start = Instant::now();
    let stream = UnixStream::connect(path).await;
    let stream = stream.map_err(|e| DialError::new(format!("connect {}", path.display()), e))?;
    Ok(Dialled { stream: Stream::Unix(stream), local: None, took: start.elapsed() })
}

/// A UDP socket on a random port that sends to and hears `remote` alone.
pub async fn dial_udp(remote: SocketAddr, via: &Via) -> Result<UdpSocket, DialError> {
    let any: IpAddr =
        if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let failed = |e| DialError::new(format!("send to {remote}"), e);
    let socket = UdpSocket::bind(SocketAddr::new(via.source.unwrap_or(any), 0)).await.map_err(failed)?;
    socket.connect(remote).await.map_err(failed)?;
    Ok(socket)
}

/// Why a connection could not be opened; nothing is left open.
#[derive(Debug)]
pub struct DialError {
    what: String,
    cause: io::Error,
}

impl DialError {
    pub(crate) fn new(what: String, cause: io::Error) -> Self {
        Self { what, cause }
    }

    /// Whether the cause is that this host ran out of descriptors or memory, which says nothing about the other end.
    pub fn is_exhaustion(&self) -> bool {
        is_exhaustion(&self.cause)
    }
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, words(&self.cause))
    }
}

impl std::error::Error for DialError {}

/// Whether this host ran out of descriptors or memory. A missing source address or route is not that: it counts against
/// the check, because nobody could be served over it.
pub(crate) fn is_exhaustion(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// Raises the soft limit of open files to the hard one, and says what it is.
#[allow(unsafe_code, reason = "the standard library has no call for it")]
pub(crate) fn raise_file_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit that outlives the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if limit.rlim_cur < limit.rlim_max {
        let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
        // SAFETY: `raised` is a valid rlimit that outlives the call.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0 {
            return Ok(raised.rlim_cur);
        }
        // A sandbox may forbid it, and then the soft limit is the one that counts.
    }
    Ok(limit.rlim_cur)
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

    #[tokio::test]
    async fn a_refused_dial_names_the_address_and_the_reason() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let e = dial(free, &Via::default()).await.unwrap_err();
        assert_eq!(e.to_string(), format!("connect {free}: connection refused"));
        assert!(!e.is_exhaustion());
    }

    #[tokio::test]
    async fn a_missing_source_address_is_no_exhaustion() {
        let via = Via { source: Some("192.0.2.77".parse().unwrap()), ..Via::default() };
        let e = dial("127.0.0.1:1".parse().unwrap(), &via).await.unwrap_err();
        assert_eq!(e.to_string(), "connect 127.0.0.1:1 from 192.0.2.77: cannot assign requested address");
        assert!(!e.is_exhaustion());
    }

    #[tokio::test]
    async fn an_ipv6_literal_is_bracketed_in_errors() {
        let e = dial("[::1]:1".parse().unwrap(), &Via::default()).await.unwrap_err();
        assert!(e.to_string().starts_with("connect [::1]:1: "), "{e}");
    }

    #[tokio::test]
    async fn a_dial_never_meets_itself() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        // The same address and port at both ends is what the kernel does by chance; here it is done on purpose.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(free).unwrap();
        let itself = socket.connect(free).await.unwrap();
        assert_eq!(itself.local_addr().unwrap(), itself.peer_addr().unwrap());
        drop(itself);
        for _ in 0..200 {
            assert!(dial(free, &Via::default()).await.is_err());
        }
    }
}
