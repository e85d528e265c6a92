//! The `http` check: one request, and what its answer must be.
//!
//! HTTP/1.1, or HTTP/2 where TLS agrees on it or the check insists. A redirect is judged itself, unless the check follows.
//! Informational answers are skipped. Nothing is decompressed.

mod hop;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Method, Response, Uri};
use standfast_core::health::Details;
use standfast_core::plan::{HttpProbe, HttpVersion, Target, Via};
use tokio::time::Instant;

use super::body::Rules;
use super::http1::{self, Framing, Head, put_back};
use super::link::{Link, http_failure};
use super::reach;
use super::run::{Begun, Doing, Failure};
use super::tls::Tls;
use super::wire::{Proxy, Wire};
use crate::dial::Purpose;
use hop::{Follower, Hop, Request};

/// A kept connection is opened anew after this long, so that a changed certificate is seen.
const KEPT_AGE: Duration = Duration::from_secs(60);

/// An HTTP check, ready to run.
#[derive(Debug)]
pub(super) struct Http {
    /// Where the check itself goes.
    first: Hop,
    follower: Option<Box<Follower>>,
    proxy: Option<Box<Proxy>>,
    version: HttpVersion,
    status: Vec<(u16, u16)>,
    /// What headers of the answer must hold.
    wanted: Vec<(String, String)>,
    rules: Rules,
    body_limit: usize,
    keep_alive: bool,
    /// Added to good details.
    remark: &'static str,
    kept: Mutex<Option<Box<Kept>>>,
}

/// A connection for the next run.
#[derive(Debug)]
struct Kept {
    conn: Conn,
    opened: Instant,
}

#[derive(Debug)]
enum Conn {
    Http1(Wire),
    Http2(Box<Link>),
}

/// What an answer's head comes to.
enum Judged {
    /// It is good as far as it goes.
    Good,
    /// It leads elsewhere.
    Moved(Vec<u8>),
    /// It is not what it should be.
    Bad(String),
}

/// What one visit comes to.
enum Visit {
    Good(String),
    Moved(u16, Vec<u8>),
}

impl Http {
    /// Reads the files and compiles the expressions of `probe`.
    pub(super) fn prepare(probe: &HttpProbe) -> Result<Self, String> {
        let rules = Rules::prepare(probe)?;
        let method = Method::from_bytes(probe.method.as_bytes())
            .map_err(|_| format!("method {:?} is not HTTP", probe.method))?;
        if method == Method::HEAD && !rules.is_empty() {
            return Err("HEAD has no body, so nothing can be asked of it: use GET".into());
        }
        let path: Uri = probe.path.parse().map_err(|e| format!("path {:?}: {e}", probe.path))?;
        if !probe.path.starts_with('/') || path.authority().is_some() {
            return Err(format!("path {:?} must begin with one /", probe.path));
        }
        for (name, _) in &probe.response_headers {
            hyper::header::HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| format!("name {name:?} of a wanted header is not HTTP"))?;
        }
        if probe.version == HttpVersion::Http2 && probe.tls.is_none() && probe.proxy.is_some() {
            return Err("HTTP/2 without TLS does not go through a proxy".into());
        }
        if probe.proxy.is_some() && matches!(probe.target, Target::Unix(_)) {
            return Err("a unix socket is not reached through a proxy".into());
        }
        let alpn = alpn(probe.version);
        let tls = probe.tls.as_ref().map(|t| Tls::prepare(t, alpn)).transpose()?;
        let proxy = probe.proxy.as_ref();
        let proxy = proxy
            .map(|p| Proxy::prepare(p.reveal(), probe.proxy_ca_cert.as_ref()).map(Box::new))
            .transpose()?;
        let request = Request::prepare(probe, method)?;
        let host = probe.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("host"));
        let host = host.map_or(&probe.host, |(_, value)| value);
        let first = Hop::new(probe.target.clone(), tls, host, &probe.path, request, proxy.as_deref())?;
        let follower = probe.follow.as_ref().map(|f| Follower::prepare(f, &first, alpn).map(Box::new));
        let follower = follower.transpose()?;
        let only = follower.is_none() && first.tls.is_none() && probe.version != HttpVersion::Http2;
        let first = if only { first.lean() } else { first };
        let insecure = probe.tls.as_ref().or(probe.follow.as_ref().map(|f| &f.tls));
        Ok(Self {
            first,
            follower,
            proxy,
            version: probe.version,
            status: probe.status.clone(),
            wanted: probe.response_headers.clone(),
            rules,
            body_limit: probe.body_limit,
            keep_alive: probe.keep_alive,
            remark: if insecure.is_some_and(|t| t.insecure) { ", certificate not verified" } else { "" },
            kept: Mutex::new(None),
        })
    }

    /// The address that it connects to, if that is known and a new connection is needed.
    pub(super) fn opens(&self) -> Option<SocketAddr> {
        match self.first.target {
            Target::Address(address) if self.proxy.is_none() && !self.keep_alive => Some(address),
            _ => None,
        }
    }

    /// Begins to connect.
    pub(super) fn begin(&self, via: &Via, saw: &mut Details) -> Begun {
        let address = self.opens().ok_or(None)?;
        let opening = reach::begin(address, via, self.purpose(&self.first), saw);
        opening.map_or_else(|e| Ok(Err(e)), |opening| Err(Some(Box::new(opening))))
    }

    fn purpose(&self, hop: &Hop) -> Purpose {
        match self.version {
            HttpVersion::Http2 => Purpose::Talk,
            HttpVersion::Auto | HttpVersion::Http1 => Purpose::Ask(hop.request.len()),
        }
    }

    /// Asks, and asks again where the answer leads to if the check follows.
    pub(super) async fn run(&self, doing: &Doing<'_>) -> Result<String, Failure> {
        let mut hop = Cow::Borrowed(&self.first);
        let mut followed = 0;
        loop {
            let visit = self.visit(&hop, followed, doing).await;
            let visit = visit.map_err(|e| match followed {
                0 => e,
                _ => e.within(&format!("redirected to {}", hop.shown())),
            })?;
            let (status, location) = match (visit, followed) {
                (Visit::Good(text), 0) => return Ok(text + self.remark),
                (Visit::Good(text), 1) => return Ok(format!("{text}, after 1 redirect{}", self.remark)),
                (Visit::Good(text), n) => return Ok(format!("{text}, after {n} redirects{}", self.remark)),
                (Visit::Moved(status, location), _) => (status, location),
            };
            // A visit only says so if there is one.
            let Some(follower) = &self.follower else { return Err(Failure::Bad("a redirect".into())) };
            followed += 1;
            if followed > follower.limit {
                let last = follower.shown(&hop, &location);
                return Err(Failure::Bad(format!(
                    "more than {} redirects, the last with status {status} to {last}",
                    follower.limit
                )));
            }
            // What is told is what the last station did.
            doing.note(|saw| *saw = Details { redirects: Some(followed), ..Details::default() });
            hop = Cow::Owned(follower.next(&self.first, &hop, status, &location, self.proxy.as_deref())?);
        }
    }

    /// Asks at `hop`, on the kept connection if it still works.
    async fn visit(&self, hop: &Hop, followed: u8, doing: &Doing<'_>) -> Result<Visit, Failure> {
        let may_keep = self.keep_alive && followed == 0;
        let mut buffer = Vec::new();
        let mut found = None;
        let kept = if may_keep { lock(&self.kept).take() } else { None };
        if let Some(mut kept) = kept {
            let alive = match &mut kept.conn {
                Conn::Http1(wire) => wire.is_idle(),
                Conn::Http2(link) => link.is_open(),
            };
            if alive && kept.opened.elapsed() < KEPT_AGE {
                // The server may close an idle connection at any moment; that is no failure of the service.
                match self.ask(&mut kept.conn, hop, &mut buffer, doing).await {
                    Ok(answer) => found = Some((answer, kept)),
                    Err(e) if e.silent => {}
                    Err(e) => return Err(e.failure),
                }
            }
        }
        let (answer, mut kept) = match found {
            Some(found) => found,
            None => {
                let opened = Instant::now();
                let mut conn = self.open(hop, doing).await?;
                let answer = self.ask(&mut conn, hop, &mut buffer, doing).await.map_err(|e| e.failure)?;
                (answer, Box::new(Kept { conn, opened }))
            }
        };
        let (visit, keep) = self.judge(answer, &mut kept.conn, buffer, may_keep, doing).await?;
        if keep {
            *lock(&self.kept) = Some(kept);
        }
        Ok(visit)
    }

    async fn open(&self, hop: &Hop, doing: &Doing<'_>) -> Result<Conn, Failure> {
        let purpose = self.purpose(hop);
        let wire = Wire::open(&hop.target, self.proxy.as_deref(), hop.tls.as_ref(), purpose, doing).await?;
        let http2 = match (self.version, hop.tls.is_some()) {
            (HttpVersion::Http1, _) | (HttpVersion::Auto, false) => false,
            (HttpVersion::Auto, true) => wire.is_http2(),
            // Over TLS an older version is not taken for what was asked for.
            (HttpVersion::Http2, true) if !wire.is_http2() => {
                return Err(Failure::Bad("the server does not agree on HTTP/2".into()));
            }
            (HttpVersion::Http2, _) => true,
        };
        if !http2 {
            return Ok(Conn::Http1(wire));
        }
        Ok(Conn::Http2(Box::new(Box::pin(Link::open(wire, doing)).await?)))
    }

    /// Sends the request of `hop` and judges the head of its answer.
    async fn ask(
        &self,
        conn: &mut Conn,
        hop: &Hop,
        buffer: &mut Vec<u8>,
        doing: &Doing<'_>,
    ) -> Result<Answered, http1::NoHead> {
        doing.set("waiting for response headers");
        match conn {
            Conn::Http1(wire) => {
                let interim = |n: usize| {
                    let s = if n == 1 { "" } else { "s" };
                    doing.set(format!("waiting for response headers after {n} interim answer{s}"));
                };
                let answer = http1::ask(wire, &hop.request, buffer, "response headers", interim, |head| {
                    (head.status, head.minor, self.judge_head(head.status, &Fields::Http1(head)))
                })
                .await?;
                let (status, minor, judged) = answer.taken;
                doing.note(|saw| {
                    saw.first_byte = Some(answer.first_byte);
                    saw.http_version = Some(if minor == 0 { "1.0" } else { "1.1" });
                });
                let body =
                    Body::Http1 { framing: answer.framing, at: answer.at, persistent: answer.persistent };
                Ok(Answered { status, judged, body })
            }
            Conn::Http2(link) => {
                let asked = Instant::now();
                let request = hop.http2().ok_or_else(|| http1::NoHead {
                    failure: Failure::Bad("HTTP/2, which was not asked for".into()),
                    silent: false,
                })?;
                let response = Box::pin(link.send(request)).await.map_err(|e| http1::NoHead {
                    failure: http_failure("response headers", &e),
                    // What a server does with a kept connection that it closes has many forms.
                    silent: true,
                })?;
                doing.note(|saw| {
                    saw.first_byte = Some(asked.elapsed());
                    saw.http_version = Some("2");
                });
                let status = response.status().as_u16();
                let judged = self.judge_head(status, &Fields::Http2(response.headers()));
                Ok(Answered { status, judged, body: Body::Http2(Box::new(response)) })
            }
        }
    }

    fn judge_head(&self, status: u16, fields: &Fields<'_>) -> Judged {
        if self.follower.is_some()
            && matches!(status, 301 | 302 | 303 | 307 | 308)
            && let Some(location) = fields.first("location")
        {
            return Judged::Moved(location.to_vec());
        }
        if !self.status.iter().any(|(low, high)| (*low..=*high).contains(&status)) {
            return Judged::Bad(self.wrong_status(status));
        }
        for (name, text) in &self.wanted {
            match fields.holds(name, text) {
                Some(true) => {}
                Some(false) => return Judged::Bad(format!("header {name} does not hold what is wanted")),
                None => return Judged::Bad(format!("there is no header {name}")),
            }
        }
        Judged::Good
    }

    /// Reads and judges the body, if the head is good; and whether the connection may be kept.
    async fn judge(
        &self,
        answered: Answered,
        conn: &mut Conn,
        mut buffer: Vec<u8>,
        may_keep: bool,
        doing: &Doing<'_>,
    ) -> Result<(Visit, bool), Failure> {
        let status = answered.status;
        doing.note(|saw| saw.http_status = Some(status));
        let early = match answered.judged {
            Judged::Good => None,
            Judged::Moved(location) => Some(Ok((Visit::Moved(status, location), false))),
            Judged::Bad(text) => Some(Err(Failure::Bad(text))),
        };
        if let Some(early) = early {
            put_back(buffer);
            return early;
        }
        doing.set("reading the body");
        let keep_body = !self.rules.is_empty();
        let (ended, reusable) = match (answered.body, &mut *conn) {
            (Body::Http1 { framing, at, persistent }, Conn::Http1(wire)) => {
                let read = http1::body(wire, &mut buffer, at, framing, self.body_limit, keep_body).await?;
                ((read.length, read.cut), may_keep && persistent && read.clean)
            }
            (Body::Http2(response), _) => {
                buffer.clear();
                let (length, cut) = Box::pin(self.read(response.into_body(), &mut buffer, keep_body)).await?;
                ((length, cut), may_keep && !cut)
            }
            // A connection answers in its own version.
            (Body::Http1 { .. }, Conn::Http2(_)) => ((0, false), false),
        };
        let (length, cut) = ended;
        doing.note(|saw| saw.body_bytes = Some(length as u64));
        if keep_body {
            doing.set("judging the body");
            buffer = Box::pin(self.rules.judge(buffer, cut)).await?;
        }
        put_back(buffer);
        let rest = if cut { ", the rest not read" } else { "" };
        Ok((Visit::Good(format!("status {status}, body {length} bytes{rest}")), reusable))
    }

    /// Reads to the end or the bound: the length, and whether it was cut.
    async fn read(
        &self,
        mut body: Incoming,
        into: &mut Vec<u8>,
        keep: bool,
    ) -> Result<(usize, bool), Failure> {
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| http_failure("body", &e))?;
            let Some(data) = frame.data_ref() else { continue };
            let room = self.body_limit - length;
            let taken = &data[..data.len().min(room)];
            length += taken.len();
            if keep {
                into.extend_from_slice(taken);
            }
            if data.len() > room {
                return Ok((length, true));
            }
        }
        Ok((length, false))
    }

    fn wrong_status(&self, status: u16) -> String {
        let range =
            |(low, high): &(u16, u16)| if low == high { low.to_string() } else { format!("{low}-{high}") };
        let want = self.status.iter().map(range).collect::<Vec<_>>().join(", ");
        let note = match (status, &self.follower) {
            (300..400, None) => " (redirects are not followed)",
            (301..=303 | 307 | 308, Some(_)) => " (a redirect without Location)",
            (407, _) if self.proxy.is_some() => " (the proxy wants credentials)",
            _ => "",
        };
        format!("status {status}{note}, want {want}")
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The head of an answer, judged, and where its body is.
struct Answered {
    status: u16,
    judged: Judged,
    body: Body,
}

enum Body {
    Http1 { framing: Framing, at: usize, persistent: bool },
    Http2(Box<Response<Incoming>>),
}

/// The headers of an answer in either version.
enum Fields<'a> {
    Http1(&'a Head<'a>),
    Http2(&'a HeaderMap),
}

impl Fields<'_> {
    fn first(&self, name: &str) -> Option<&[u8]> {
        match self {
            Self::Http1(head) => head.values(name).next(),
            Self::Http2(map) => map.get(name).map(|v| v.as_bytes()),
        }
    }

    /// Whether a value of the header holds `text`; `None` if there is no such header.
    fn holds(&self, name: &str, text: &str) -> Option<bool> {
        let holds = |value: &[u8]| text.is_empty() || value.windows(text.len()).any(|w| w == text.as_bytes());
        let mut found = match self {
            Self::Http1(head) => head.values(name).map(holds).collect::<Vec<_>>(),
            Self::Http2(map) => map.get_all(name).iter().map(|v| holds(v.as_bytes())).collect(),
        };
        found.sort_unstable();
        found.last().copied()
    }
}

/// The protocols offered in the TLS handshake, best first.
fn alpn(version: HttpVersion) -> &'static [&'static [u8]] {
    match version {
        HttpVersion::Auto => &[b"h2", b"http/1.1"],
        HttpVersion::Http1 => &[b"http/1.1"],
        HttpVersion::Http2 => &[b"h2"],
    }
}
