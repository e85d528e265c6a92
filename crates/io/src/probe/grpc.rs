//! The `grpc` check: the standard health service, or any unary method with a request and rules for its answer.
//!
//! gRPC over HTTP/2 is written out here, because a check needs so little of it: messages in frames, and the status in
//! the trailers. A connection lives for one run unless it is kept, and one that was kept and has ended is opened again
//! in the same run: there is no back-off that could keep a check failing after its server is back. Only a status that the
//! server sent counts as one; a connection that cannot be opened, or ends early, is never one of the good codes.
//!
//! A request in JSON and rules for the answer need the method's types. They come from a descriptor set or from the
//! server's reflection; what the server said is kept for some minutes, and asked again at once when it no longer fits.

mod catalog;
pub(super) mod fuzz;
mod json;
mod reflect;
mod wire;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE, USER_AGENT};
use hyper::{Method as HttpMethod, Request, Response, StatusCode, Version};
use standfast_core::plan::{GrpcCall, GrpcMethod, GrpcProbe, Target};
use tokio::time::Instant;

use self::catalog::Catalog;
use self::json::Method;
use self::wire::{Fields, Frames, Value, frame, put};
use super::body::{Rules, Waiting};
use super::link::{Link, http_failure};
use super::reach;
use super::run::{Doing, Failure};
use super::tls::Tls;
use super::wire::percent_decoded;
use crate::dial::Purpose;

/// The most of an answer that is read.
const ANSWER_LIMIT: usize = 1 << 20;

/// A kept connection is opened anew after this long, so that a changed certificate is seen.
const KEPT_AGE: Duration = Duration::from_secs(60);

/// What the server said of its types is asked again after this long.
const TYPES_AGE: Duration = Duration::from_secs(300);

/// Status codes by number (grpc/grpc, doc/statuscodes.md).
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

const INVALID_ARGUMENT: u8 = 3;
const NOT_FOUND: u8 = 5;
const UNIMPLEMENTED: u8 = 12;

/// A gRPC check, ready to run.
#[derive(Debug)]
pub(super) struct Grpc {
    target: Target,
    tls: Option<Tls>,
    /// Scheme and authority, to be followed by a path.
    origin: String,
    headers: HeaderMap,
    call: Call,
    keep_alive: bool,
    /// The connection of the run before, and when it was opened.
    kept: Mutex<Option<(Link, Instant)>>,
}

/// What is called.
#[derive(Debug)]
enum Call {
    Health { service: String, request: Bytes },
    Method(Box<Unary>),
}

/// A unary method, and what counts as good.
#[derive(Debug)]
struct Unary {
    method: GrpcMethod,
    rules: Rules,
    types: Types,
    /// Something of the server's is being read on a thread of its own. It is let to its end, so there is never a second.
    busy: Arc<AtomicBool>,
}

/// Where the types of a method come from.
#[derive(Debug)]
enum Types {
    /// From nowhere: the request is empty and the answer is not looked at.
    None,
    /// From a file.
    File(Arc<Known>),
    /// From the server; what it said when.
    Server(Mutex<Option<(Instant, Arc<Known>)>>),
}

fn lock<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A method's types, and its request made with them.
#[derive(Debug)]
struct Known {
    method: Method,
    request: Bytes,
}

impl Known {
    fn of(catalog: &Catalog, unary: &GrpcMethod) -> Result<Self, String> {
        let method = catalog.method(&unary.path).map_err(|e| format!("method {}: {e}", unary.path))?;
        let message = match &unary.request {
            Some(json) => method.encode(json).map_err(|e| format!("request: {e}"))?,
            None => Vec::new(),
        };
        let mut request = Vec::new();
        frame(&message, &mut request);
        Ok(Self { method, request: request.into() })
    }
}

impl Grpc {
    /// Reads the files of `probe` and makes its request.
    pub(super) fn prepare(probe: &GrpcProbe) -> Result<Self, String> {
        let GrpcProbe { target, tls, authority, call, metadata, keep_alive } = probe;
        let call = match call {
            GrpcCall::Health { service } => {
                let (mut message, mut request) = (Vec::new(), Vec::new());
                if !service.is_empty() {
                    put(1, service.as_bytes(), &mut message);
                }
                frame(&message, &mut request);
                Call::Health { service: service.clone(), request: request.into() }
            }
            GrpcCall::Method(method) => Call::Method(Box::new(Unary::prepare(method)?)),
        };
        let origin = format!("{}://{authority}", if tls.is_some() { "https" } else { "http" });
        let path = match &call {
            Call::Health { .. } => HEALTH,
            Call::Method(unary) => &unary.method.path,
        };
        format!("{origin}{path}")
            .parse::<hyper::Uri>()
            .map_err(|e| format!("gRPC authority {authority:?} and method {path:?}: {e}"))?;
        let mut headers = HeaderMap::new();
        for (name, value) in metadata {
            let key = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| format!("metadata name {name:?} is not a header name"))?;
            let value = HeaderValue::from_str(value).map_err(|_| {
                format!("value of metadata {name} holds a character that HTTP does not allow")
            })?;
            headers.append(key, value);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers
            .entry(USER_AGENT)
            .or_insert(HeaderValue::from_static(concat!("standfast/", env!("CARGO_PKG_VERSION"))));
        Ok(Self {
            target: target.clone(),
            tls: tls.as_ref().map(|t| Tls::prepare(t, &[b"h2"])).transpose()?,
            origin,
            headers,
            call,
            keep_alive: *keep_alive,
            kept: Mutex::new(None),
        })
    }

    /// Calls once.
    pub(super) async fn run(&self, doing: &Doing<'_>) -> Result<String, Failure> {
        let mut connection = self.connection(doing).await?;
        let said = match &self.call {
            Call::Health { service, request } => health(&mut connection, service, request, doing).await,
            Call::Method(unary) => unary.run(&mut connection, doing).await,
        };
        // A call that was not answered to its end may have left the connection in any state.
        if self.keep_alive && connection.is_whole && connection.opened.elapsed() < KEPT_AGE {
            *lock(&self.kept) = Some((connection.link, connection.opened));
        }
        said
    }

    /// The kept connection, or a new one.
    async fn connection(&self, doing: &Doing<'_>) -> Result<Connection<'_>, Failure> {
        let kept = lock(&self.kept).take();
        let kept = kept.filter(|(link, opened)| link.is_open() && opened.elapsed() < KEPT_AGE);
        let was_kept = kept.is_some();
        let (link, opened) = match kept {
            Some(kept) => kept,
            None => (self.open(doing).await?, Instant::now()),
        };
        Ok(Connection { grpc: self, link, opened, was_kept, is_whole: false })
    }

    async fn open(&self, doing: &Doing<'_>) -> Result<Link, Failure> {
        let stream = reach::tcp(&self.target, Purpose::Talk, doing).await?;
        Link::open_http2(stream, self.tls.as_ref(), doing).await
    }

    fn request(&self, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, Failure> {
        let uri = format!("{}{path}", self.origin).parse();
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = HttpMethod::POST;
        *request.uri_mut() = uri.map_err(|e| Failure::Bad(format!("{}{path}: {e}", self.origin)))?;
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = self.headers.clone();
        Ok(request)
    }
}

/// An open connection of a run.
struct Connection<'a> {
    grpc: &'a Grpc,
    link: Link,
    opened: Instant,
    /// It was open before this run, so the server may have closed it meanwhile.
    was_kept: bool,
    /// The last call was answered to its end.
    is_whole: bool,
}

impl Connection<'_> {
    /// Sends `body`, whole messages in their frames, to `path`; reads until `wanted` messages have come, or the end, and
    /// at most `limit` octets.
    async fn call(
        &mut self,
        path: &str,
        body: Bytes,
        wanted: usize,
        limit: usize,
        doing: &Doing<'_>,
    ) -> Result<Answer, Failure> {
        self.is_whole = false;
        let mut start = Instant::now();
        let mut sent = self.link.send(self.grpc.request(path, body.clone())?).await;
        // The server may close an idle connection at any moment; that is no failure of the service.
        if sent.is_err() && std::mem::take(&mut self.was_kept) {
            self.link = self.grpc.open(doing).await?;
            start = Instant::now();
            self.opened = start;
            sent = self.link.send(self.grpc.request(path, body)?).await;
        }
        self.was_kept = false;
        let response = sent.map_err(|e| http_failure("answer", &e))?;
        doing.note(|saw| saw.first_byte = Some(start.elapsed()));
        let answer = Answer::read(response, wanted, limit).await?;
        self.is_whole = true;
        Ok(answer)
    }
}

/// The method of the health service.
const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// Asks the health service about `service`.
async fn health(
    connection: &mut Connection<'_>,
    service: &str,
    request: &Bytes,
    doing: &Doing<'_>,
) -> Result<String, Failure> {
    doing.set("waiting for the answer");
    let answer = connection.call(HEALTH, request.clone(), usize::MAX, ANSWER_LIMIT, doing).await?;
    let status = answer.status()?;
    doing.note(|saw| saw.grpc_status = Some(code_name(status.code)));
    if status.code != 0 {
        return Err(Failure::Bad(format!("health status {status}")));
    }
    let message = answer.single()?;
    let service = if service.is_empty() { "server" } else { service };
    match health_answer(&message) {
        Some(1) => Ok(format!("{service} is SERVING")),
        Some(0) => Err(Failure::Bad(format!("{service} is UNKNOWN, want SERVING"))),
        Some(2) => Err(Failure::Bad(format!("{service} is NOT_SERVING"))),
        Some(3) => Err(Failure::Bad(format!("{service} is SERVICE_UNKNOWN, want SERVING"))),
        Some(n) => Err(Failure::Bad(format!("{service} has health status {n}, want SERVING"))),
        None => Err(Failure::Bad("health answer cannot be read".into())),
    }
}

/// The status of `HealthCheckResponse { status = 1 }`; fields unknown to us are skipped.
fn health_answer(message: &[u8]) -> Option<u64> {
    let mut status = 0;
    for field in Fields::of(message) {
        if let (1, Value::Number(number)) = field? {
            status = number;
        }
    }
    Some(status)
}

impl Unary {
    fn prepare(method: &GrpcMethod) -> Result<Self, String> {
        let rules = Rules::new(method.text.as_deref(), method.regex.as_deref(), method.jq.as_deref())?;
        if !method.path.starts_with('/') {
            return Err(format!("gRPC method {:?} must be of the form /package.Service/Method", method.path));
        }
        if let Some(request) = &method.request {
            serde_json::from_str::<serde::de::IgnoredAny>(request).map_err(|e| format!("request: {e}"))?;
        }
        let types = match &method.descriptor_set {
            Some(path) => {
                let wrong = |e: String| format!("descriptor set {}: {e}", path.display());
                let catalog = std::fs::read(path).map_err(|e| wrong(crate::dial::words(&e)));
                let catalog = Catalog::of_set(&catalog?).map_err(wrong)?;
                Types::File(Arc::new(Known::of(&catalog, method)?))
            }
            None if method.request.is_none() && rules.is_empty() => Types::None,
            None => Types::Server(Mutex::new(None)),
        };
        Ok(Self { method: method.clone(), rules, types, busy: Arc::default() })
    }

    async fn run(&self, connection: &mut Connection<'_>, doing: &Doing<'_>) -> Result<String, Failure> {
        let kept = match &self.types {
            Types::None => return self.call(connection, None, doing).await.map_err(|(why, _)| why),
            Types::File(known) => {
                return self.call(connection, Some(known), doing).await.map_err(|(why, _)| why);
            }
            Types::Server(kept) => kept,
        };
        let mut first = None;
        if let Some(known) = self.known(kept, connection, doing).await {
            match self.call(connection, Some(&known), doing).await {
                Err((why, Fits::No)) => first = Some(why),
                said => return said.map_err(|(why, _)| why),
            }
        }
        // Nothing is known yet, or the server has changed: a new server is not failed for what the old one said.
        *lock(kept) = None;
        let known = match self.ask(connection, doing).await {
            Ok(known) => known,
            Err(why) => return Err(first.unwrap_or(why)),
        };
        *lock(kept) = Some((Instant::now(), Arc::clone(&known)));
        self.call(connection, Some(&known), doing).await.map_err(|(why, _)| why)
    }

    /// What the server said of its types, asked again if that is long ago.
    async fn known(
        &self,
        kept: &Mutex<Option<(Instant, Arc<Known>)>>,
        connection: &mut Connection<'_>,
        doing: &Doing<'_>,
    ) -> Option<Arc<Known>> {
        let (asked, known) = lock(kept).clone()?;
        if asked.elapsed() < TYPES_AGE {
            return Some(known);
        }
        // A reflection service that fails must not make a service fail whose types are known.
        let part = doing.before_the_end().saturating_duration_since(Instant::now()) / 3;
        let fresh = tokio::time::timeout(part, self.ask(connection, doing)).await;
        let known = fresh.ok().and_then(Result::ok).unwrap_or(known);
        *lock(kept) = Some((Instant::now(), Arc::clone(&known)));
        Some(known)
    }

    /// Asks the server for the method's types.
    async fn ask(&self, connection: &mut Connection<'_>, doing: &Doing<'_>) -> Result<Arc<Known>, Failure> {
        let catalog = reflect::fetch(connection, &self.method.path, doing).await?;
        doing.set("reading the server's descriptors");
        let method = self.method.clone();
        let known = self.apart(move |_| Known::of(&catalog, &method)).await?;
        known.map(Arc::new).map_err(Failure::Bad)
    }

    /// Does `work` on a thread of its own: what may take a while, in which other checks are to run. It is told when
    /// nobody waits for it any more.
    async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce(&AtomicBool) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        if self.busy.swap(true, Ordering::AcqRel) {
            return Err(Failure::Bad("what the server said to an earlier run is still being read".into()));
        }
        let busy = Busy(Arc::clone(&self.busy));
        // Dropped with this future, when the run's time is up.
        let waiting = Waiting(Arc::default());
        let abandoned = Arc::clone(&waiting.0);
        let done = tokio::task::spawn_blocking(move || {
            let done = work(&abandoned);
            // Before it is told, so that a run which follows at once finds the place free.
            drop(busy);
            done
        });
        done.await.map_err(|_| Failure::Bad("what the server said cannot be read".into()))
    }

    /// Calls the method once and judges what comes back.
    async fn call(
        &self,
        connection: &mut Connection<'_>,
        known: Option<&Arc<Known>>,
        doing: &Doing<'_>,
    ) -> Result<String, (Failure, Fits)> {
        doing.set("waiting for the answer");
        let request = known.map_or_else(|| Bytes::from_static(&[0; 5]), |known| known.request.clone());
        let called = connection.call(&self.method.path, request, usize::MAX, ANSWER_LIMIT, doing).await;
        let answer = called.map_err(|e| (e, Fits::Yes))?;
        let status = answer.status().map_err(|e| (e, Fits::Yes))?;
        doing.note(|saw| saw.grpc_status = Some(code_name(status.code)));
        if !self.method.ok_codes.contains(&status.code) {
            let fits =
                if matches!(status.code, INVALID_ARGUMENT | UNIMPLEMENTED) { Fits::No } else { Fits::Yes };
            let want: Vec<_> = self.method.ok_codes.iter().map(|c| code_name(*c)).collect();
            return Err((Failure::Bad(format!("status {status}, want {}", want.join(", "))), fits));
        }
        let said = format!("status {status}");
        // A call that failed as it should has no message.
        let Some(known) = known.filter(|_| status.code == 0 && !self.rules.is_empty()) else {
            return Ok(said);
        };
        let message = answer.single().map_err(|e| (e, Fits::Yes))?;
        let length = message.len();
        doing.note(|saw| saw.body_bytes = Some(length as u64));
        doing.set("judging the answer");
        // However short it is: what it becomes may be long.
        let known = Arc::clone(known);
        let read = self.apart(move |abandoned| known.method.decode(&message, abandoned)).await;
        let json = read.map_err(|e| (e, Fits::Yes))?;
        let json = json.map_err(|e| (Failure::Bad(e), Fits::No))?;
        self.rules.judge(json, false).await.map_err(|e| (e, Fits::Yes))?;
        Ok(format!("{said}, answer {length} bytes"))
    }
}

/// Frees the place of the one reading thread, also when it panics.
struct Busy(Arc<AtomicBool>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Whether the types that a call was made with are still the server's, as far as can be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fits {
    Yes,
    No,
}

/// What the server said of the call.
#[derive(Debug)]
struct Status {
    code: u8,
    message: String,
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&code_name(self.code))?;
        if !self.message.is_empty() {
            write!(f, " ({})", self.message)?;
        }
        Ok(())
    }
}

impl Status {
    /// The status in these headers or trailers, if there is one.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let code = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
        let message = headers.get("grpc-message").map(|m| {
            let text = m.to_str().unwrap_or_default();
            String::from_utf8_lossy(&percent_decoded(text)).chars().take(100).collect()
        });
        Some(Self { code, message: message.unwrap_or_default() })
    }
}

/// What came back.
#[derive(Debug)]
struct Answer {
    http: StatusCode,
    /// As the server sent it. There is none where the server did not come to its end.
    status: Option<Status>,
    messages: Vec<Vec<u8>>,
}

impl Answer {
    /// Reads until `wanted` messages have come, or to the end; at most `limit` octets.
    async fn read(response: Response<Incoming>, wanted: usize, limit: usize) -> Result<Self, Failure> {
        let http = response.status();
        let mut answer = Self { http, status: None, messages: Vec::new() };
        if http != StatusCode::OK {
            return Ok(answer);
        }
        let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        if !kind.starts_with(b"application/grpc") {
            let kind = String::from_utf8_lossy(kind);
            return Err(Failure::Bad(format!("content type {kind:?} is not gRPC")));
        }
        // An answer of headers alone carries its status there.
        answer.status = Status::of(response.headers());
        let mut body = response.into_body();
        let mut frames = Frames::new(limit);
        while answer.messages.len() < wanted {
            let Some(part) = body.frame().await else { break };
            let part = part.map_err(|e| http_failure("answer", &e))?;
            if let Some(data) = part.data_ref() {
                frames.feed(data, &mut answer.messages).map_err(Failure::Bad)?;
            } else if let Some(trailers) = part.trailers_ref() {
                answer.status = Status::of(trailers).or(answer.status);
            }
        }
        if frames.is_cut() && answer.messages.len() < wanted {
            return Err(Failure::Bad("the answer ends within a message".into()));
        }
        Ok(answer)
    }

    /// The status that the server sent.
    fn status(&self) -> Result<&Status, Failure> {
        if self.http != StatusCode::OK {
            return Err(Failure::Bad(format!("HTTP status {} where gRPC was expected", self.http.as_u16())));
        }
        let none = || Failure::Bad("the server ended the call without a gRPC status".into());
        self.status.as_ref().ok_or_else(none)
    }

    /// Whether there is no such method; to HTTP servers it is a page that they do not have.
    fn is_unimplemented(&self) -> bool {
        self.http == StatusCode::NOT_FOUND || self.status.as_ref().is_some_and(|s| s.code == UNIMPLEMENTED)
    }

    /// The one message of a unary call that went well.
    fn single(mut self) -> Result<Vec<u8>, Failure> {
        match (self.messages.pop(), self.messages.len()) {
            (Some(message), 0) => Ok(message),
            (None, _) => Err(Failure::Bad("the answer has no message".into())),
            (Some(_), _) => Err(Failure::Bad("the answer has more than one message".into())),
        }
    }
}

fn code_name(code: u8) -> String {
    CODES.get(usize::from(code)).map_or_else(|| format!("code {code}"), |name| (*name).to_owned())
}

#[cfg(test)]
mod tests;
