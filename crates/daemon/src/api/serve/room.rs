//! What a connection may take of others: a place among a bounded number, and time to hear its answer.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::Client;

/// Connections over TCP at one time, and as many over the unix socket; one more is closed at once.
const CONNECTIONS: usize = 256;

/// Those of one source over TCP.
const SOURCE: usize = 64;

/// The places of all clients.
#[derive(Debug, Default, Clone)]
pub(super) struct Room(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    tcp: usize,
    unix: usize,
    sources: HashMap<IpAddr, usize>,
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    room: Room,
    source: Option<IpAddr>,
}

impl Room {
    /// A place for a client, or why there is none.
    pub(super) fn place(&self, client: Client) -> Result<Place, String> {
        let source = match client {
            Client::Tcp { remote, .. } => Some(source(remote.ip())),
            Client::Unix(_) => None,
        };
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = if source.is_some() { taken.tcp } else { taken.unix };
        if all >= CONNECTIONS {
            return Err(format!("{CONNECTIONS} are open"));
        }
        match source {
            None => taken.unix += 1,
            Some(source) => {
                let own = taken.sources.entry(source).or_default();
                if *own >= SOURCE {
                    return Err(format!("{SOURCE} of {source} are open"));
                }
                *own += 1;
                taken.tcp += 1;
            }
        }
        Ok(Place { room: self.clone(), source })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.room.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(source) = self.source else {
            taken.unix -= 1;
            return;
        };
        taken.tcp -= 1;
        if let Some(own) = taken.sources.get_mut(&source) {
            *own -= 1;
            if *own == 0 {
                taken.sources.remove(&source);
            }
        }
    }
}

/// Who counts as one: an IPv4 address, or the /64 that an IPv6 host chooses its addresses from.
fn source(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
        ip => ip,
    }
}

/// A stream whose client must take what is written, up to each flush, within a limit.
pub(super) struct Prompt<S> {
    stream: S,
    limit: Option<Duration>,
    /// Runs since a write first had to wait.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S: Unpin> Prompt<S> {
    /// `limit` of `None`: for ever.
    pub(super) fn new(stream: S, limit: Option<Duration>) -> Self {
        Self { stream, limit, waiting: None }
    }

    /// Passes on what a write came to, or that its time is up.
    fn bound<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let Some(limit) = self.limit.filter(|_| written.is_pending()) else { return written };
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        match waiting.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                let why = "the client did not take its answer within api.write_timeout";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prompt<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prompt<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.bound(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.bound(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            // Everything was written: the next answer has its own time.
            self.waiting = None;
        }
        self.bound(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.bound(cx, shut)
    }
}
