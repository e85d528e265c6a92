//! An HTTP/2 connection, over whatever is open already.
//!
//! What drives it are tasks that end with it; dropping a [`Link`] closes the connection whatever the server does.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper::rt::Executor;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::http1::HEAD_LIMIT;
use super::run::{Doing, Failure, failed};
use super::tls::Tls;
use crate::dial::Stream;

/// Octets that a server may send before they are read.
const WINDOW: u32 = 256 << 10;

/// An HTTP/2 connection.
#[derive(Debug)]
pub(super) struct Link {
    sender: http2::SendRequest<Full<Bytes>>,
    /// Why the connection ended, told by its task.
    ended: oneshot::Receiver<hyper::Error>,
    /// Ends with the link.
    _tasks: Tasks,
}

impl Link {
    /// Shakes hands over `stream`, with TLS if there is any, in HTTP/2 whatever the server says of itself.
    pub(super) async fn open_http2(
        stream: Stream,
        tls: Option<&Tls>,
        doing: &Doing<'_>,
    ) -> Result<Self, Failure> {
        stream.reset_on_drop();
        match tls {
            None => Self::open(stream, doing).await,
            Some(tls) => {
                doing.set("waiting for the TLS handshake");
                Self::open(tls.connect(stream, doing).await?, doing).await
            }
        }
    }

    /// Shakes hands over `stream`.
    pub(super) async fn open<S>(stream: S, doing: &Doing<'_>) -> Result<Self, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        doing.set("waiting for the HTTP/2 handshake");
        let tasks = Tasks::default();
        let (sender, connection) = http2::Builder::new(tasks.spawner())
            .max_header_list_size(u32::try_from(HEAD_LIMIT).unwrap_or(u32::MAX))
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|e| http_failure("HTTP/2 handshake", &e))?;
        let ended = tasks.drive(connection);
        Ok(Self { sender, ended, _tasks: tasks })
    }

    /// Whether the connection has not ended.
    pub(super) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Sends `request` and waits for the headers of the answer.
    pub(super) async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        let sent = match self.sender.ready().await {
            Ok(()) => self.sender.send_request(request).await,
            Err(e) => Err(e),
        };
        match sent {
            // The connection ended by itself, and its own error says why.
            Err(e) if e.is_closed() || e.is_canceled() => Err((&mut self.ended).await.unwrap_or(e)),
            sent => sent,
        }
    }
}

/// An error of hyper with its cause, without repetition.
pub(super) fn http_failure(what: &str, e: &hyper::Error) -> Failure {
    let mut text = format!("{what}: {e}");
    let mut source = std::error::Error::source(e);
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<std::io::Error>() {
            return failed(what, io);
        }
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    Failure::Bad(text)
}

/// The tasks of one connection; they end when it is dropped.
#[derive(Debug, Default)]
struct Tasks(Arc<Mutex<JoinSet<()>>>);

/// Starts tasks as long as their [`Tasks`] is there. A task may hold this without keeping itself alive.
#[derive(Debug, Clone)]
struct Spawner(Weak<Mutex<JoinSet<()>>>);

impl Tasks {
    fn spawner(&self) -> Spawner {
        Spawner(Arc::downgrade(&self.0))
    }

    /// Drives a connection, and tells the error that it ends with.
    fn drive(
        &self,
        connection: impl Future<Output = hyper::Result<()>> + Send + 'static,
    ) -> oneshot::Receiver<hyper::Error> {
        let (tell, told) = oneshot::channel();
        self.spawn(async {
            if let Err(e) = connection.await {
                // Nobody listens if the answer came before the end.
                let _ = tell.send(e);
            }
        });
        told
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawner().execute(task);
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Spawner {
    fn execute(&self, task: F) {
        let Some(tasks) = self.0.upgrade() else { return };
        let mut tasks = tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // What has ended is not kept, however many requests a kept connection serves.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}
