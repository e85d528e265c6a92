//! The `http` check: one request, and what its answer must be.
//!
//! HTTP/1.1, or HTTP/2 where TLS agrees on it. Redirects are not followed: the answer itself is judged. Informational
//! answers are skipped. Nothing is decompressed.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHORIZATION, USER_AGENT,
};
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use standfast_core::plan::{HttpProbe, Target};

use super::body::Rules;
use super::link::{Link, Proxy, http_failure};
use super::reach;
use super::run::{Doing, Failure};
use super::tls::Tls;

/// A kept connection is opened anew after this long, so that a changed certificate is seen.
const KEPT_AGE: Duration = Duration::from_secs(60);

/// An HTTP check, ready to run.
#[derive(Debug)]
pub(super) struct Http {
    target: Target,
    proxy: Option<Proxy>,
    tls: Option<Tls>,
    /// Name and port of the origin, for the Host header and for a proxy.
    host: String,
    method: Method,
    path: Uri,
    /// Every header but Host.
    headers: HeaderMap,
    body: Bytes,
    status: Vec<(u16, u16)>,
    rules: Rules,
    body_limit: usize,
    keep_alive: bool,
    kept: Mutex<Option<Link>>,
}

impl Http {
    /// Reads the files and compiles the expressions of `probe`.
    pub(super) fn prepare(probe: &HttpProbe) -> Result<Self, String> {
        let HttpProbe {
            target,
            tls,
            method,
            path,
            host,
            headers,
            body,
            status,
            proxy,
            keep_alive,
            body_limit,
            ..
        } = probe;
        let rules = Rules::prepare(probe)?;
        let method =
            Method::from_bytes(method.as_bytes()).map_err(|_| format!("method {method:?} is not HTTP"))?;
        if method == Method::HEAD && !rules.is_empty() {
            return Err("HEAD has no body, so nothing can be asked of it: use GET".into());
        }
        let parsed: Uri = path.parse().map_err(|e| format!("path {path:?}: {e}"))?;
        if !path.starts_with('/') || parsed.authority().is_some() {
            return Err(format!("path {path:?} must begin with one /"));
        }
        let mut host = host.clone();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let key = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| format!("header name {name:?} is not HTTP"))?;
            let text = HeaderValue::from_str(value)
                .map_err(|_| format!("value of header {name} holds a character that HTTP does not allow"))?;
            if key == HOST {
                host.clone_from(value);
            } else {
                map.append(key, text);
            }
        }
        format!("http://{host}{path}").parse::<Uri>().map_err(|e| format!("host {host:?}: {e}"))?;
        map.entry(USER_AGENT)
            .or_insert(HeaderValue::from_static(concat!("standfast/", env!("CARGO_PKG_VERSION"))));
        if probe.jq.is_some() {
            map.entry(ACCEPT).or_insert(HeaderValue::from_static("application/json"));
        }
        let alpn: &[&[u8]] = &[b"h2", b"http/1.1"];
        Ok(Self {
            target: target.clone(),
            proxy: proxy.as_ref().map(|p| Proxy::parse(p.reveal())).transpose()?,
            tls: tls.as_ref().map(|t| Tls::prepare(t, alpn)).transpose()?,
            host,
            method,
            path: parsed,
            headers: map,
            body: body.clone().map(Bytes::from).unwrap_or_default(),
            status: status.clone(),
            rules,
            body_limit: *body_limit,
            keep_alive: *keep_alive,
            kept: Mutex::new(None),
        })
    }

    /// Asks once.
    pub(super) async fn run(&self, doing: &Doing<'_>) -> Result<String, Failure> {
        let (response, link) = self.ask(doing).await?;
        let status = response.status();
        if !self.status.iter().any(|(low, high)| (*low..=*high).contains(&status.as_u16())) {
            return Err(Failure::Bad(self.wrong_status(status)));
        }
        doing.set("reading the body");
        let (body, length, cut) = self.read(response.into_body()).await?;
        doing.set("judging the body");
        self.rules.judge(body, cut).await?;
        if self.keep_alive && !cut && link.opened.elapsed() < KEPT_AGE {
            *self.kept() = Some(link);
        }
        let rest = if cut { ", the rest not read" } else { "" };
        Ok(format!("status {}, body {length} bytes{rest}", status.as_u16()))
    }

    /// Sends the request and waits for the headers of the answer, on the kept connection if it still works.
    async fn ask(&self, doing: &Doing<'_>) -> Result<(Response<Incoming>, Link), Failure> {
        let kept = self.kept().take().filter(|link| link.opened.elapsed() < KEPT_AGE);
        if let Some(mut link) = kept {
            doing.set("waiting for response headers");
            // The server may close an idle connection at any moment; that is no failure of the service.
            if let Ok(response) = link.send(self.request(&link)).await {
                return Ok((response, link));
            }
        }
        let mut link = self.open(doing).await?;
        doing.set("waiting for response headers");
        let response =
            link.send(self.request(&link)).await.map_err(|e| http_failure("response headers", &e))?;
        Ok((response, link))
    }

    /// Opens a connection, through the proxy and TLS as asked.
    async fn open(&self, doing: &Doing<'_>) -> Result<Link, Failure> {
        let Some(proxy) = &self.proxy else {
            let stream = reach::tcp(&self.target, doing).await?;
            return Link::open(stream, self.tls.as_ref(), doing).await;
        };
        let stream = reach::tcp(&proxy.target, doing).await?;
        match &self.tls {
            None => Link::open(stream, None, doing).await,
            Some(tls) => Link::open_through(stream, proxy, &self.host, tls, doing).await,
        }
    }

    fn request(&self, link: &Link) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.headers_mut() = self.headers.clone();
        let forward = self.proxy.as_ref().filter(|_| self.tls.is_none());
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        // A whole URI becomes :authority in HTTP/2, and is what a forward proxy wants in HTTP/1.1.
        let whole = || format!("{scheme}://{}{}", self.host, self.path).parse();
        *request.uri_mut() = match (link.is_http2() || forward.is_some()).then(whole) {
            Some(Ok(uri)) => uri,
            // Parsed when prepared, so never an error here.
            _ => self.path.clone(),
        };
        if link.is_http2() {
            *request.version_mut() = Version::HTTP_2;
            return request;
        }
        if let Ok(host) = HeaderValue::from_str(&self.host) {
            request.headers_mut().insert(HOST, host);
        }
        if !self.keep_alive {
            request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(credentials) = forward.and_then(|p| p.credentials.clone()) {
            request.headers_mut().insert(PROXY_AUTHORIZATION, credentials);
        }
        request
    }

    /// Reads to the end or the bound: what the rules need of it, its length, and whether it was cut.
    async fn read(&self, mut body: Incoming) -> Result<(Vec<u8>, usize, bool), Failure> {
        let keep = !self.rules.is_empty();
        let mut kept = Vec::new();
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| http_failure("body", &e))?;
            let Some(data) = frame.data_ref() else { continue };
            let room = self.body_limit - length;
            let taken = &data[..data.len().min(room)];
            length += taken.len();
            if keep {
                kept.extend_from_slice(taken);
            }
            if data.len() > room {
                return Ok((kept, length, true));
            }
        }
        Ok((kept, length, false))
    }

    fn wrong_status(&self, status: StatusCode) -> String {
        let range =
            |(low, high): &(u16, u16)| if low == high { low.to_string() } else { format!("{low}-{high}") };
        let want = self.status.iter().map(range).collect::<Vec<_>>().join(", ");
        let note = if status.is_redirection() { " (redirects are not followed)" } else { "" };
        format!("status {}{note}, want {want}", status.as_u16())
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Option<Link>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
