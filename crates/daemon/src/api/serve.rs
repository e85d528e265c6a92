//! Where the API listens, and what a client may cost: an address, and a unix socket beside it.
//!
//! Every wait has an end, a body is small, connections are counted: no client over TCP takes the places of the unix socket, or
//! those of every other host. A browser that was lured here from another site gets nowhere: names of other hosts and requests
//! of other origins are refused.

mod room;

use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::timeout;
use tower_service::Service;

use crate::config;
use room::{Prompt, Room};

/// The most of a request's body.
const BODY: usize = 16 * 1024;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    /// Over TCP: its address, and ours.
    Tcp {
        /// Its address.
        remote: SocketAddr,
        /// The address that it found us at.
        local: SocketAddr,
    },
    /// Over the unix socket: its user, if the kernel says.
    Unix(Option<u32>),
}

impl Client {
    /// Whether it is a process of this host.
    pub(super) const fn is_local(&self) -> bool {
        match self {
            Self::Tcp { remote, .. } => remote.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { remote, .. } => remote.fmt(f),
            Self::Unix(Some(uid)) => write!(f, "user {uid} at the unix socket"),
            Self::Unix(None) => f.write_str("the unix socket"),
        }
    }
}

/// Where the API listens. The socket's file goes when this is dropped.
#[derive(Debug)]
pub struct Listeners {
    tcp: TcpListener,
    unix: Option<(UnixListener, Remove)>,
}

#[derive(Debug)]
struct Remove(PathBuf);

impl Drop for Remove {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Opens what `api` says.
///
/// # Errors
/// What cannot be opened, by its key, and what to do.
pub async fn bind(api: &config::Api) -> Result<Listeners, String> {
    let address = api.listen;
    let tcp = TcpListener::bind(address).await.map_err(|e| {
        format!(
            "api.listen: cannot listen on {address}: {e}; choose another address or stop the other program"
        )
    })?;
    let unix = match &api.socket {
        None => None,
        Some(path) => Some(socket(path, api.socket_mode).map_err(|why| format!("api.socket: {why}"))?),
    };
    Ok(Listeners { tcp, unix })
}

/// Opens a unix socket; one that a dead daemon left is replaced.
fn socket(path: &Path, mode: u32) -> Result<(UnixListener, Remove), String> {
    let shown = path.display();
    if let Some(parent) = path.parent().filter(|parent| !parent.exists()) {
        std::fs::create_dir_all(parent).map_err(|e| format!("cannot make {}: {e}", parent.display()))?;
    }
    if let Ok(there) = std::fs::symlink_metadata(path) {
        if !there.file_type().is_socket() {
            return Err(format!("{shown} is there and is no socket: choose another path"));
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(format!("another program listens on {shown}: choose another path, or stop it"));
        }
        std::fs::remove_file(path).map_err(|e| format!("cannot replace {shown}: {e}"))?;
    }
    let listener = UnixListener::bind(path).map_err(|e| format!("cannot listen on {shown}: {e}"))?;
    let remove = Remove(path.to_owned());
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, mode).map_err(|e| format!("cannot set the mode of {shown}: {e}"))?;
    Ok((listener, remove))
}

/// Serves `router` until the process ends.
pub async fn serve(listeners: Listeners, router: Router, limits: config::Api) {
    let Listeners { tcp, unix } = listeners;
    let server = Arc::new(Server { router, limits, room: Room::default() });
    let local = async {
        match &unix {
            None => std::future::pending().await,
            Some((unix, _)) => loop {
                match unix.accept().await {
                    Ok((stream, _)) => {
                        let uid = stream.peer_cred().ok().map(|cred| cred.uid());
                        server.connection(stream, Client::Unix(uid));
                    }
                    Err(e) => pause(&e).await,
                }
            },
        }
    };
    let remote = async {
        loop {
            match tcp.accept().await {
                Ok((stream, remote)) => {
                    let Ok(local) = stream.local_addr() else { continue };
                    let socket = socket2::SockRef::from(&stream);
                    // What the kernel still holds for a client that reads nothing goes too. Best effort.
                    let _ = socket.set_tcp_user_timeout(server.limits.write_timeout);
                    server.connection(stream, Client::Tcp { remote, local });
                }
                Err(e) => pause(&e).await,
            }
        }
    };
    tokio::join!(local, remote);
}

/// After a failed accept: a client that has gone costs nothing, a lack of descriptors is waited out.
async fn pause(e: &std::io::Error) {
    tracing::debug!("api: cannot accept a connection: {e}");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

struct Server {
    router: Router,
    limits: config::Api,
    room: Room,
}

impl Server {
    fn connection(
        self: &Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        client: Client,
    ) {
        let place = match self.room.place(client) {
            Ok(place) => place,
            Err(why) => {
                tracing::debug!("api: closed a connection of {client}: {why}");
                return;
            }
        };
        let server = Arc::clone(self);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let server = Arc::clone(&server);
                async move { Ok::<_, Infallible>(server.answer(request, client).await) }
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).max_buf_size(64 * 1024);
            // The wait for the next request's head is idling too: one timer serves both.
            let limits = [server.limits.read_header_timeout, server.limits.idle_timeout];
            http.header_read_timeout(limits.into_iter().flatten().min());
            let stream = Prompt::new(stream, server.limits.write_timeout);
            if let Err(e) = http.serve_connection(TokioIo::new(stream), service).await {
                tracing::debug!("api: a connection of {client} ended: {e}");
            }
            drop(place);
        });
    }

    async fn answer(&self, request: Request<Incoming>, client: Client) -> Response {
        if let Err(refusal) = admit(client, request.method(), request.headers()) {
            return *refusal;
        }
        let (mut head, body) = request.into_parts();
        let whole = Limited::new(body, BODY).collect();
        let body = match within(self.limits.read_timeout, whole).await {
            Some(Ok(body)) => body.to_bytes(),
            Some(Err(e)) if e.downcast_ref::<LengthLimitError>().is_some() => {
                return refuse(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 16 KiB");
            }
            Some(Err(_)) => return refuse(StatusCode::BAD_REQUEST, "the body did not arrive"),
            None => return refuse(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
        };
        head.extensions.insert(client);
        let request = Request::from_parts(head, Body::from(body));
        // A router is always ready.
        match within(self.limits.write_timeout, self.router.clone().call(request)).await {
            Some(Ok(response)) => response,
            Some(Err(never)) => match never {},
            None => refuse(StatusCode::GATEWAY_TIMEOUT, "there was no answer within api.write_timeout"),
        }
    }
}

/// Serves a client that sends `octets` and hears to the end.
pub(super) fn fuzz(octets: &[u8], router: Router) {
    let limits = config::Api {
        listen: SocketAddr::from(([127, 0, 0, 1], 1)),
        read_header_timeout: None,
        read_timeout: None,
        write_timeout: None,
        idle_timeout: None,
        socket: None,
        socket_mode: 0,
        tokens: Vec::new(),
    };
    let server = Arc::new(Server { router, limits, room: Room::default() });
    let here = SocketAddr::from(([127, 0, 0, 1], 1));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { panic!("there is no runtime") };
    runtime.block_on(async {
        for client in [Client::Tcp { remote: here, local: here }, Client::Unix(Some(0))] {
            let (ours, theirs) = tokio::io::duplex(64 << 10);
            server.connection(theirs, client);
            let (mut read, mut write) = tokio::io::split(ours);
            let send = async {
                // The server may have heard enough.
                let _ = write.write_all(octets).await;
                let _ = write.shutdown().await;
            };
            let hear = async {
                let mut answer = Vec::new();
                let _ = read.read_to_end(&mut answer).await;
            };
            let both = async { tokio::join!(send, hear) };
            assert!(
                timeout(Duration::from_secs(20), both).await.is_ok(),
                "a connection of {client} does not end"
            );
        }
    });
}

async fn within<F: Future>(limit: Option<Duration>, work: F) -> Option<F::Output> {
    match limit {
        Some(limit) => timeout(limit, work).await.ok(),
        None => Some(work.await),
    }
}

/// An answer that says why not.
pub(super) fn refuse(status: StatusCode, why: impl Into<String>) -> Response {
    (status, Json(json!({ "error": why.into() }))).into_response()
}

/// Refuses what a page of another site could have made a browser send. Programs send neither `Origin` nor `Sec-Fetch-Site`.
fn admit(client: Client, method: &Method, headers: &HeaderMap) -> Result<(), Box<Response>> {
    let Client::Tcp { local, .. } = client else { return Ok(()) };
    let refuse = |status, why: &str| Err(Box::new(refuse(status, why)));
    let text = |name: header::HeaderName| headers.get(name).map(|v| v.to_str().unwrap_or("?"));
    let host = text(header::HOST);
    if local.ip().to_canonical().is_loopback() && host.is_some_and(|host| !names_loopback(host)) {
        return refuse(
            StatusCode::MISDIRECTED_REQUEST,
            "the Host header names another host: ask localhost, 127.0.0.1 or [::1]",
        );
    }
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    let site = headers.get("sec-fetch-site").map(|v| v.to_str().unwrap_or("?"));
    let foreign = match (site, text(header::ORIGIN)) {
        (Some("same-origin" | "none"), _) | (None, None) => false,
        (Some(_), _) => true,
        (None, Some(origin)) => origin.split_once("://").map(|(_, host)| host) != host,
    };
    if foreign {
        return refuse(StatusCode::FORBIDDEN, "a page of another site asked for this");
    }
    let kind = text(header::CONTENT_TYPE).map(|kind| kind.split(';').next().unwrap_or_default().trim());
    if kind.is_some_and(|kind| !kind.eq_ignore_ascii_case("application/json")) {
        return refuse(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "send the body as JSON: with curl, add -H 'Content-Type: application/json' or use --json",
        );
    }
    Ok(())
}

/// Whether a Host header, with or without a port, names this host's loopback.
fn names_loopback(host: &str) -> bool {
    if let Ok(address) = host.parse::<SocketAddr>() {
        return address.ip().is_loopback();
    }
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return address.is_loopback();
    }
    let name =
        host.rsplit_once(':').map_or(host, |(name, _)| name).trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpSocket, TcpStream, UnixStream};

    fn client(local: &str) -> Client {
        Client::Tcp { remote: "192.0.2.7:40000".parse().unwrap(), local: local.parse().unwrap() }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (header::HeaderName::from_static(n), v.parse().unwrap())).collect()
    }

    #[test]
    fn names_of_other_hosts_are_refused_on_loopback_and_only_there() {
        for (host, fine) in [
            ("localhost:59179", true),
            ("LOCALHOST.", true),
            ("api.localhost:1", true),
            ("127.0.0.1:59179", true),
            ("127.9.9.9", true),
            ("[::1]:59179", true),
            ("[::1]", true),
            ("evil.example", false),
            ("evil.example:59179", false),
            ("127.0.0.1.evil.example", false),
            ("localhost.evil.example", false),
            ("192.0.2.1", false),
            ("", false),
        ] {
            let h = headers(&[("host", host)]);
            assert_eq!(admit(client("127.0.0.1:59179"), &Method::GET, &h).is_ok(), fine, "{host}");
            assert_eq!(admit(client("[::ffff:127.0.0.1]:59179"), &Method::GET, &h).is_ok(), fine, "{host}");
            assert!(admit(client("192.0.2.11:59179"), &Method::GET, &h).is_ok(), "{host}");
        }
        assert!(admit(client("127.0.0.1:59179"), &Method::GET, &HeaderMap::new()).is_ok());
    }

    #[test]
    fn pages_of_other_sites_cannot_post_and_programs_can() {
        let here = client("127.0.0.1:59179");
        let post = |pairs: &[(&'static str, &str)]| {
            let mut all = headers(pairs);
            all.insert(header::HOST, "127.0.0.1:59179".parse().unwrap());
            admit(here, &Method::POST, &all).is_ok()
        };
        assert!(post(&[]));
        assert!(post(&[("content-type", "application/json; charset=utf-8")]));
        assert!(post(&[("origin", "http://127.0.0.1:59179")]));
        assert!(post(&[("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:59179")]));
        assert!(!post(&[("origin", "http://evil.example")]));
        assert!(!post(&[("origin", "null")]));
        assert!(!post(&[("sec-fetch-site", "cross-site")]));
        assert!(!post(&[("sec-fetch-site", "same-site")]));
        for kind in ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", ""]
        {
            assert!(!post(&[("content-type", kind)]), "{kind}");
        }
    }

    /// A server at a free port and a socket in `directory`, whose answers are larger than what kernels hold.
    async fn server(directory: &Path, write_timeout: Duration) -> (SocketAddr, PathBuf) {
        let path = directory.join("api.sock");
        let limits = config::Api {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            read_header_timeout: Some(Duration::from_secs(60)),
            read_timeout: None,
            write_timeout: Some(write_timeout),
            idle_timeout: None,
            socket: Some(path.clone()),
            socket_mode: 0o600,
            tokens: Vec::new(),
        };
        let listeners = bind(&limits).await.unwrap();
        let at = listeners.tcp.local_addr().unwrap();
        let router = Router::new()
            .route("/", axum::routing::get(|| async { "here" }))
            .route("/large", axum::routing::get(|| async { "x".repeat(16 << 20) }));
        tokio::spawn(serve(listeners, router, limits));
        (at, path)
    }

    /// Whether a request gets its answer.
    async fn answers(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> bool {
        let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let mut answer = String::new();
        let whole = async {
            stream.write_all(request).await?;
            stream.read_to_string(&mut answer).await
        };
        timeout(Duration::from_secs(20), whole).await.is_ok_and(|done| done.is_ok())
            && answer.ends_with("here")
    }

    #[tokio::test]
    async fn a_flood_over_tcp_takes_no_place_of_others() {
        let directory = tempfile::tempdir().unwrap();
        let (at, path) = server(directory.path(), Duration::from_secs(60)).await;
        let mut flood = Vec::new();
        for _ in 0..300 {
            let mut stream = TcpStream::connect(at).await.unwrap();
            // The server may have closed it.
            let _ = stream.write_all(b"G").await;
            flood.push(stream);
        }
        assert!(!answers(TcpStream::connect(at).await.unwrap()).await, "the flood's source has its share");
        let other = TcpSocket::new_v4().unwrap();
        other.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        assert!(answers(other.connect(at).await.unwrap()).await, "another source");
        assert!(answers(UnixStream::connect(&path).await.unwrap()).await, "the unix socket");
        drop(flood);
        for _ in 0..200 {
            if answers(TcpStream::connect(at).await.unwrap()).await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("places are not given back");
    }

    #[tokio::test]
    async fn who_reads_nothing_of_an_answer_loses_the_connection() {
        let directory = tempfile::tempdir().unwrap();
        let (at, path) = server(directory.path(), Duration::from_secs(1)).await;
        let request = b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let mut unix = UnixStream::connect(&path).await.unwrap();
        let mut tcp = TcpStream::connect(at).await.unwrap();
        unix.write_all(request).await.unwrap();
        tcp.write_all(request).await.unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        // Whoever was cut off finds what was sent before, and no more.
        for stream in [&mut unix as &mut dyn Stream, &mut tcp] {
            let mut answer = Vec::new();
            let ended = timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
            assert!(ended.is_ok(), "the connection is still open");
            assert!(answer.len() < 16 << 20, "the whole answer came: {}", answer.len());
        }
    }

    trait Stream: AsyncRead + Unpin + Send {}
    impl<T: AsyncRead + Unpin + Send> Stream for T {}

    #[tokio::test]
    async fn only_a_socket_that_nobody_serves_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/api.sock");
        let (first, remove) = socket(&path, 0o640).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(socket(&path, 0o600).unwrap_err().contains("another program listens"));
        // As after a kill: the file stays and nobody listens.
        drop(first);
        std::mem::forget(remove);
        let second = socket(&path, 0o600).unwrap();
        drop(second);
        assert!(!path.exists());
        std::fs::write(&path, "notes").unwrap();
        assert!(socket(&path, 0o600).unwrap_err().contains("is no socket"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "notes");
    }
}
