//! A connection whose readiness nobody asks for until it is needed.
//!
//! A socket is only made known to the runtime when a call would block. A connection that opens and is closed again at once,
//! as most on a host of its own do, costs the calls for the socket and none for `epoll`.

use std::io::{self, IoSlice, Read};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::{SockAddr, Socket};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::poll_proceed;

/// An open connection: of TCP, or of a unix socket.
#[derive(Debug)]
pub struct Stream {
    /// Dropped before the socket, whose descriptor it watches.
    watch: Option<AsyncFd<RawFd>>,
    socket: Socket,
    peer: Peer,
}

#[derive(Debug)]
enum Peer {
    Address(SocketAddr),
    Path(Box<Path>),
}

impl Stream {
    /// `socket`, which must not block, to be connected to `remote`.
    pub(super) fn new(socket: Socket, remote: SocketAddr) -> Self {
        Self { watch: None, socket, peer: Peer::Address(remote) }
    }

    /// `socket`, connected to a unix socket.
    pub(super) async fn connect_unix(socket: Socket, path: &Path) -> io::Result<Self> {
        let mut stream = Self { watch: None, socket, peer: Peer::Path(path.into()) };
        let path = SockAddr::unix(path)?;
        while !stream.try_once(&path)? {
            stream.wait().await?;
        }
        Ok(stream)
    }

    /// Begins to connect. Whether that is over already: a handshake over loopback has ended when the first call returns, though
    /// that does not say so. The next one does.
    pub(super) fn try_connect(&mut self, remote: SocketAddr) -> io::Result<bool> {
        let remote = remote.into();
        Ok(self.try_once(&remote)? || self.try_once(&remote)?)
    }

    /// Waits for the end of what [`try_connect`](Self::try_connect) began.
    pub(super) async fn connected(&mut self, remote: SocketAddr) -> io::Result<()> {
        loop {
            self.wait().await?;
            if self.try_once(&remote.into())? {
                return Ok(());
            }
        }
    }

    async fn wait(&mut self) -> io::Result<()> {
        self.watch()?.writable().await?.clear_ready();
        Ok(())
    }

    /// Asks the kernel to connect, or how far that is.
    fn try_once(&self, remote: &SockAddr) -> io::Result<bool> {
        loop {
            return match self.socket.connect(remote) {
                Ok(()) => Ok(true),
                Err(e) => match e.raw_os_error() {
                    Some(libc::EISCONN) => Ok(true),
                    Some(libc::EINTR) => continue,
                    Some(libc::EINPROGRESS | libc::EALREADY) => Ok(false),
                    _ => Err(e),
                },
            };
        }
    }

    /// Who is at the other end, in words.
    pub fn peer(&self) -> String {
        match &self.peer {
            Peer::Address(address) => address.to_string(),
            Peer::Path(path) => path.display().to_string(),
        }
    }

    /// Has the connection end with a reset when this is dropped: neither end keeps it in TIME_WAIT, and what the other end
    /// still sends is lost. Without it TCP closes in order, and the end that closes first remembers the connection for a
    /// minute.
    pub fn reset_on_drop(&self) {
        if let Peer::Address(_) = self.peer {
            // It can only fail on what is no socket, and then the connection closes in order.
            let _ = self.socket.set_linger(Some(Duration::ZERO));
        }
    }

    /// Has every write leave at once (`TCP_NODELAY`): else a second one may wait for the other end to acknowledge the first.
    pub(super) fn without_delay(&self) -> io::Result<()> {
        self.socket.set_tcp_nodelay(true)
    }

    pub(super) fn local(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()?.as_socket()
    }

    #[expect(
        unsafe_code,
        reason = "a descriptor is made known to the runtime without giving the socket away"
    )]
    fn watch(&mut self) -> io::Result<&mut AsyncFd<RawFd>> {
        let watch = match self.watch.take() {
            Some(watch) => watch,
            // SAFETY: the descriptor is that of `self.socket`, which is never replaced and is dropped after `self.watch`,
            // so it stays open, and the same, for as long as it is registered.
            None => unsafe { AsyncFd::register(self.socket.as_raw_fd()) }.map_err(|e| e.into_parts().1)?,
        };
        Ok(self.watch.insert(watch))
    }

    /// Waits until there is something to read, the end or an error included, which the next read then finds.
    pub fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.watch() {
            Ok(watch) => watch.poll_read_ready(cx).map(drop),
            Err(_) => Poll::Ready(()),
        }
    }

    /// Calls `work` until it does not say that it would block, waiting for `ready` in between.
    fn poll_work<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: bool,
        mut work: impl FnMut(&Socket) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        if self.watch.is_none() {
            // A server that never pauses must not keep everybody else from their turn.
            let turn = ready!(poll_proceed(cx));
            match work(&self.socket) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                done => {
                    turn.made_progress();
                    return Poll::Ready(done);
                }
            }
        }
        self.watch()?;
        let Self { watch: Some(watch), socket, .. } = self else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        loop {
            let mut guard =
                if write { ready!(watch.poll_write_ready(cx))? } else { ready!(watch.poll_read_ready(cx))? };
            match guard.try_io(|_| work(socket)) {
                Ok(Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(done) => return Poll::Ready(done),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let work = |mut socket: &Socket| socket.read(buf.initialize_unfilled());
        let n = ready!(self.get_mut().poll_work(cx, false, work))?;
        buf.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_work(cx, true, |socket| socket.send_with_flags(buf, libc::MSG_NOSIGNAL))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_work(cx, true, |socket| socket.send_vectored_with_flags(bufs, libc::MSG_NOSIGNAL))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.shutdown(Shutdown::Write))
    }
}
