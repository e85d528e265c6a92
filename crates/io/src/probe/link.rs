//! A connection that carries HTTP: dialled, perhaps through a proxy, perhaps with TLS, in either version.
//!
//! What drives it are tasks that end with it; dropping a [`Link`] closes the connection whatever the server does.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use crate::dial::Stream;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use hyper::rt::Executor;
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use standfast_core::plan::Target;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::run::{Doing, Failure, failed};
use super::tls::Tls;

/// The most memory of a head: every header of an answer together.
const HEAD_LIMIT: usize = 64 << 10;

/// Octets that an HTTP/2 server may send before they are read.
const WINDOW: u32 = 256 << 10;

/// An HTTP connection.
#[derive(Debug)]
pub(super) struct Link {
    sender: Sender,
    /// When it was opened.
    pub(super) opened: Instant,
    /// Why the connection ended, told by its task.
    ended: oneshot::Receiver<hyper::Error>,
    /// Ends with the link.
    _tasks: Tasks,
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Link {
    /// Shakes hands over `stream`: TLS if there is any, then HTTP in the version that TLS agreed on, or HTTP/1.1.
    pub(super) async fn open(stream: Stream, tls: Option<&Tls>, doing: &Doing<'_>) -> Result<Self, Failure> {
        let tasks = Tasks::default();
        match tls {
            None => Self::http1(stream, tasks).await,
            Some(tls) => Self::secure(stream, tls, tasks, doing).await,
        }
    }

    /// As [`open`](Self::open), but in HTTP/2 whatever the server says of itself.
    pub(super) async fn open_http2(
        stream: Stream,
        tls: Option<&Tls>,
        doing: &Doing<'_>,
    ) -> Result<Self, Failure> {
        let tasks = Tasks::default();
        match tls {
            None => Self::http2(stream, tasks, doing).await,
            Some(tls) => {
                doing.set("waiting for the TLS handshake");
                Self::http2(tls.connect(stream).await?, tasks, doing).await
            }
        }
    }

    /// As [`open`](Self::open) with TLS, after asking the proxy at the other end for a way to `origin`.
    pub(super) async fn open_through(
        stream: Stream,
        proxy: &Proxy,
        origin: &str,
        tls: &Tls,
        doing: &Doing<'_>,
    ) -> Result<Self, Failure> {
        doing.set("waiting for the proxy's answer to CONNECT");
        let tasks = Tasks::default();
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_LIMIT)
            .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
            .await
            .map_err(|e| http_failure("proxy", &e))?;
        tasks.spawn(async {
            let _ = connection.with_upgrades().await;
        });
        let way = Uri::builder().authority(with_port(origin)).build();
        let way = way.map_err(|e| Failure::Bad(format!("origin {origin}: {e}")))?;
        let mut request = Request::new(Empty::new());
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = way;
        if let Ok(host) = HeaderValue::from_str(&with_port(origin)) {
            request.headers_mut().insert(HOST, host);
        }
        if let Some(credentials) = proxy.credentials.clone() {
            request.headers_mut().insert(PROXY_AUTHORIZATION, credentials);
        }
        let response = sender.send_request(request).await.map_err(|e| http_failure("proxy", &e))?;
        if !response.status().is_success() {
            return Err(Failure::Bad(format!(
                "proxy refuses CONNECT with status {}",
                response.status().as_u16()
            )));
        }
        let tunnel = hyper::upgrade::on(response).await.map_err(|e| http_failure("proxy", &e))?;
        Self::secure(TokioIo::new(tunnel), tls, tasks, doing).await
    }

    async fn secure<S>(stream: S, tls: &Tls, tasks: Tasks, doing: &Doing<'_>) -> Result<Self, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        doing.set("waiting for the TLS handshake");
        let stream = tls.connect(stream).await?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Self::http1(stream, tasks).await;
        }
        Self::http2(stream, tasks, doing).await
    }

    async fn http2<S>(stream: S, tasks: Tasks, doing: &Doing<'_>) -> Result<Self, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        doing.set("waiting for the HTTP/2 handshake");
        let (sender, connection) = http2::Builder::new(tasks.spawner())
            .max_header_list_size(u32::try_from(HEAD_LIMIT).unwrap_or(u32::MAX))
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|e| http_failure("HTTP/2 handshake", &e))?;
        let ended = tasks.drive(connection);
        Ok(Self { sender: Sender::Http2(sender), opened: Instant::now(), ended, _tasks: tasks })
    }

    async fn http1<S>(stream: S, tasks: Tasks) -> Result<Self, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_LIMIT)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|e| http_failure("HTTP", &e))?;
        let ended = tasks.drive(connection);
        Ok(Self { sender: Sender::Http1(sender), opened: Instant::now(), ended, _tasks: tasks })
    }

    /// Whether this is HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2(_))
    }

    /// Sends `request` and waits for the headers of the answer.
    pub(super) async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        let sent = match &mut self.sender {
            Sender::Http1(sender) => match sender.ready().await {
                Ok(()) => sender.send_request(request).await,
                Err(e) => Err(e),
            },
            Sender::Http2(sender) => match sender.ready().await {
                Ok(()) => sender.send_request(request).await,
                Err(e) => Err(e),
            },
        };
        match sent {
            // The connection ended by itself, and its own error says why.
            Err(e) if e.is_closed() || e.is_canceled() => Err((&mut self.ended).await.unwrap_or(e)),
            sent => sent,
        }
    }
}

/// `origin` with the port of https where it names none.
fn with_port(origin: &str) -> String {
    let has_port = origin.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    if has_port { origin.to_owned() } else { format!("{origin}:443") }
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

/// A forward proxy.
pub(super) struct Proxy {
    /// Where it is.
    pub(super) target: Target,
    /// Value of Proxy-Authorization.
    pub(super) credentials: Option<HeaderValue>,
}

impl Proxy {
    /// Takes `http://[user:password@]host[:port]`; the error does not repeat the text, which may hold a password.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || "proxy is not of the form http://[user:password@]host:port".to_owned();
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let authority = uri.authority().ok_or_else(wrong)?;
        if uri.scheme_str() != Some("http") || !matches!(uri.path(), "" | "/") {
            return Err(wrong());
        }
        let credentials = authority.as_str().rsplit_once('@').map(|(user, _)| {
            let encoded = BASE64_STANDARD.encode(percent_decoded(user));
            HeaderValue::from_str(&format!("Basic {encoded}")).map(|mut value| {
                value.set_sensitive(true);
                value
            })
        });
        let port = authority.port_u16().unwrap_or(80);
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let target = match host.parse() {
            Ok(address) => Target::Address(SocketAddr::new(address, port)),
            Err(_) => Target::Name(host.to_owned(), port),
        };
        Ok(Self { target, credentials: credentials.transpose().map_err(|_| wrong())? })
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("target", &self.target).finish_non_exhaustive()
    }
}

/// Octets of `text` with `%41` made `A`; what is no such sequence stays.
fn percent_decoded(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail
            .get(..2)
            .and_then(|h| std::str::from_utf8(h).ok())
            .and_then(|h| u8::from_str_radix(h, 16).ok());
        match (first, hex) {
            (b'%', Some(octet)) => {
                out.push(octet);
                rest = &tail[2..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_with_credentials_is_understood_and_never_printed() {
        let proxy = Proxy::parse("http://us%65r:p%40ss@[::1]:3128").unwrap();
        assert_eq!(proxy.target, Target::Address("[::1]:3128".parse().unwrap()));
        let want = format!("Basic {}", BASE64_STANDARD.encode("user:p@ss"));
        assert_eq!(proxy.credentials.as_ref().unwrap().to_str().unwrap(), want);
        assert!(!format!("{proxy:?}").contains("Basic"));
        assert!(Proxy::parse("https://proxy:1").is_err());
        assert!(!Proxy::parse("ftp://u:hunter2@proxy").unwrap_err().contains("hunter2"));
    }

    #[test]
    fn an_origin_without_port_gets_that_of_https() {
        assert_eq!(with_port("a.example"), "a.example:443");
        assert_eq!(with_port("[2001:db8::1]"), "[2001:db8::1]:443");
        assert_eq!(with_port("[2001:db8::1]:8443"), "[2001:db8::1]:8443");
    }
}
