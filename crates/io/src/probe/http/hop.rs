//! Where a request goes and what it says: at first as the check has it, then wherever a redirect leads (RFC 9110 §15.4).
//!
//! A redirect to the check's own host stays with the check's own target: the address that is being checked, and not
//! where a name leads today. Any other host is looked up and connected to, under its own name, and learns nothing that
//! was meant for the first.

use std::net::{IpAddr, SocketAddr};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    ACCEPT, CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE,
    USER_AGENT,
};
use hyper::{Method, Uri, Version};
use standfast_core::plan::{Follow, HttpProbe, Target, TlsOptions};
use url::{Host, Position, Url};

use super::super::run::Failure;
use super::super::tls::Tls;
use super::super::wire::Proxy;

/// What this program calls itself.
const AGENT: &str = concat!("standfast/", env!("CARGO_PKG_VERSION"));

/// The only headers of a check that another host gets.
const HARMLESS: [&str; 4] = ["user-agent", "accept", "accept-language", "accept-encoding"];

/// The longest Location that is followed, in octets.
const LOCATION_LIMIT: usize = 8 << 10;

/// What is asked, wherever that is.
#[derive(Debug, Clone)]
pub(super) struct Request {
    method: Method,
    /// Every header but Host, as it is written in HTTP/1.1.
    headers: Vec<(String, String)>,
    body: Bytes,
    keep_alive: bool,
}

impl Request {
    /// The request of `probe`; the error is for the operator.
    pub(super) fn prepare(probe: &HttpProbe, method: Method) -> Result<Self, String> {
        let mut headers = Vec::new();
        let has =
            |what: HeaderName| probe.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(what.as_str()));
        let agent = (!has(USER_AGENT)).then(|| ("User-Agent".to_owned(), AGENT.to_owned()));
        let json = probe.jq.is_some() && !has(ACCEPT);
        let accept = json.then(|| ("Accept".to_owned(), "application/json".to_owned()));
        for (name, value) in probe.headers.iter().cloned().chain(agent).chain(accept) {
            let key = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| format!("header name {name:?} is not HTTP"))?;
            HeaderValue::from_str(&value)
                .map_err(|_| format!("value of header {name} holds a character that HTTP does not allow"))?;
            if [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE].contains(&key) {
                return Err(format!("header {name} is set by standfast itself"));
            }
            if key != HOST {
                headers.push((name, value));
            }
        }
        let body = probe.body.clone().map(Bytes::from).unwrap_or_default();
        Ok(Self { method, headers, body, keep_alive: probe.keep_alive })
    }

    /// What is asked after a redirect with `status` (RFC 9110 §15.4), of another host or not. Whether that one may see the
    /// body is for the caller to say.
    fn redirected(&self, status: u16, elsewhere: bool) -> Self {
        let mut next = self.clone();
        if elsewhere {
            next.headers.retain(|(name, _)| HARMLESS.iter().any(|h| name.eq_ignore_ascii_case(h)));
        }
        if status == 303 && next.method != Method::HEAD || status < 303 && next.method == Method::POST {
            next.method = Method::GET;
            next.body = Bytes::new();
            next.headers
                .retain(|(name, _)| !name.get(..8).is_some_and(|n| n.eq_ignore_ascii_case("content-")));
        }
        next
    }

    fn has_body(&self) -> bool {
        !self.body.is_empty() || self.method == Method::POST
    }
}

/// One station of a run.
#[derive(Debug, Clone)]
pub(super) struct Hop {
    /// Where to connect, unless a proxy does.
    pub(super) target: Target,
    /// TLS, of an https URL.
    pub(super) tls: Option<Tls>,
    /// The request as HTTP/1.1 writes it.
    pub(super) request: Box<[u8]>,
    /// `None` where nothing but that request can come of it.
    parts: Option<Box<Parts>>,
}

/// What other requests are made of: the same in HTTP/2, and that of the next station.
#[derive(Debug, Clone)]
struct Parts {
    asked: Request,
    /// The Host header.
    host: String,
    /// Path and query.
    path: String,
    uri: Uri,
}

impl Hop {
    /// Writes the request; the error is for the operator.
    pub(super) fn new(
        target: Target,
        tls: Option<Tls>,
        host: &str,
        path: &str,
        asked: Request,
        proxy: Option<&Proxy>,
    ) -> Result<Self, String> {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let uri: Uri =
            format!("{scheme}://{host}{path}").parse().map_err(|e| format!("host {host:?}: {e}"))?;
        let forward = proxy.filter(|_| tls.is_none());
        let whole = forward.map_or(String::new(), |_| format!("http://{}", authority(&target, 80)));
        let mut request = format!("{} {whole}{path} HTTP/1.1\r\nHost: {host}\r\n", asked.method);
        let mut line = |name: &str, value: &str| {
            request.push_str(name);
            request.push_str(": ");
            request.push_str(value);
            request.push_str("\r\n");
        };
        asked.headers.iter().for_each(|(name, value)| line(name, value));
        if asked.has_body() {
            line("Content-Length", &asked.body.len().to_string());
        }
        if let Some(credentials) = forward.and_then(|p| p.credentials.as_ref()) {
            line("Proxy-Authorization", credentials);
        }
        if !asked.keep_alive {
            line("Connection", "close");
        }
        request.push_str("\r\n");
        let mut request = request.into_bytes();
        request.extend_from_slice(&asked.body);
        let parts = Parts { asked, host: host.to_owned(), path: path.to_owned(), uri };
        Ok(Self { target, tls, request: request.into(), parts: Some(Box::new(parts)) })
    }

    /// The same, of which nothing but the one request in HTTP/1.1 will ever come: it takes a quarter of the memory.
    pub(super) fn lean(self) -> Self {
        Self { parts: None, ..self }
    }

    /// The request as HTTP/2 has it, unless this is a [lean](Self::lean) one.
    pub(super) fn http2(&self) -> Option<hyper::Request<Full<Bytes>>> {
        let Parts { asked, uri, .. } = &**self.parts.as_ref()?;
        let mut request = hyper::Request::new(Full::new(asked.body.clone()));
        *request.method_mut() = asked.method.clone();
        *request.uri_mut() = uri.clone();
        *request.version_mut() = Version::HTTP_2;
        let headers: &mut HeaderMap = request.headers_mut();
        for (name, value) in &asked.headers {
            // Both were looked at when the check was prepared.
            if let (Ok(name), Ok(value)) =
                (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value))
            {
                headers.append(name, value);
            }
        }
        if asked.has_body() {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(asked.body.len()));
        }
        Some(request)
    }

    /// Where this is, in words; without a query, which may hold a secret.
    pub(super) fn shown(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let Some(parts) = &self.parts else { return format!("{scheme}://{}", self.target) };
        format!("{scheme}://{}{}", parts.host, parts.path.split('?').next().unwrap_or_default())
    }

    fn url(&self) -> Result<Url, url::ParseError> {
        let uri = self.parts.as_ref().map_or_else(|| self.shown(), |parts| parts.uri.to_string());
        Url::parse(&uri)
    }
}

/// `target` as it stands in a URL whose scheme has this port.
fn authority(target: &Target, port: u16) -> String {
    let text = target.to_string();
    text.strip_suffix(&format!(":{port}")).map(str::to_owned).unwrap_or(text)
}

/// Follows redirects.
#[derive(Debug)]
pub(super) struct Follower {
    /// The most in one run.
    pub(super) limit: u8,
    downgrade: bool,
    /// The URL of the check itself.
    own: Url,
    /// TLS to the check's own host where the check itself has none.
    upgrade: Tls,
    /// TLS to others, whose name is still to be put in.
    others: Tls,
}

impl Follower {
    /// Gets ready to follow from `first` on.
    pub(super) fn prepare(follow: &Follow, first: &Hop, alpn: &[&[u8]]) -> Result<Self, String> {
        let others = TlsOptions { client_cert: None, ..follow.tls.clone() };
        Ok(Self {
            limit: follow.limit,
            downgrade: follow.downgrade,
            own: first.url().map_err(|e| format!("host of {}: {e}", first.shown()))?,
            upgrade: Tls::prepare(&follow.tls, alpn)?,
            others: Tls::prepare(&others, alpn)?,
        })
    }

    /// Where `location` leads from `hop`, in words; without a query.
    pub(super) fn shown(&self, hop: &Hop, location: &[u8]) -> String {
        Self::url(hop, location)
            .map_or_else(|_| "nowhere".into(), |url| url[..Position::AfterPath].to_owned())
    }

    fn url(hop: &Hop, location: &[u8]) -> Result<Url, Failure> {
        let wrong = || Failure::Bad("redirected, but its Location is no URL".into());
        let text = std::str::from_utf8(location).map_err(|_| wrong())?;
        if text.len() > LOCATION_LIMIT {
            return Err(Failure::Bad(format!(
                "redirected to a URL longer than {} KiB",
                LOCATION_LIMIT >> 10
            )));
        }
        hop.url().and_then(|base| base.join(text)).map_err(|_| wrong())
    }

    /// The hop after `hop`, whose answer had `status` and `location`.
    pub(super) fn next(
        &self,
        first: &Hop,
        hop: &Hop,
        status: u16,
        location: &[u8],
        proxy: Option<&Proxy>,
    ) -> Result<Hop, Failure> {
        let url = Self::url(hop, location)?;
        let shown = &url[..Position::AfterPath];
        let bad = |text: String| Err(Failure::Bad(text));
        let https = match url.scheme() {
            "https" => true,
            "http" => false,
            other => return bad(format!("redirected to a URL of scheme {other}, which is not followed")),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return bad("redirected to a URL with a user name, which is not followed".into());
        }
        if hop.tls.is_some() && !https && !self.downgrade {
            return bad(format!(
                "redirected from https to {shown}, which is not followed without allow_downgrade"
            ));
        }
        let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else {
            return bad("redirected, but its Location names no host".into());
        };
        let own_host = url.host() == self.own.host();
        let own_port = Some(port) == self.own.port_or_known_default();
        let origin = own_host && own_port && https == first.tls.is_some();
        let upgrade = own_host && https && port == 443 && self.own.port_or_known_default() == Some(80);
        let target = match &first.target {
            target if origin => target.clone(),
            Target::Address(at) if own_host => Target::Address(SocketAddr::new(at.ip(), port)),
            Target::Name(name, _) if own_host => Target::Name(name.clone(), port),
            _ => match &host {
                Host::Domain(name) => Target::Name((*name).to_owned(), port),
                Host::Ipv4(a) => Target::Address(SocketAddr::new(IpAddr::V4(*a), port)),
                Host::Ipv6(a) => Target::Address(SocketAddr::new(IpAddr::V6(*a), port)),
            },
        };
        let tls = match (https, own_host, &first.tls) {
            (false, ..) => None,
            (true, true, Some(own)) => Some(own.clone()),
            (true, true, None) => Some(self.upgrade.clone()),
            (true, false, _) => Some(self.others.named(&bare(&host)).map_err(Failure::Bad)?),
        };
        let (Some(own), Some(here)) = (&first.parts, &hop.parts) else {
            return bad("redirected, which is not followed here".into());
        };
        let named = if origin { own.host.as_str() } else { &url[Position::BeforeHost..Position::AfterPort] };
        let path = &url[Position::BeforePath..Position::AfterQuery];
        let elsewhere = !origin && !upgrade;
        let asked = here.asked.redirected(status, elsewhere);
        if elsewhere && !asked.body.is_empty() {
            return bad(format!("redirected to another server, which must not see the body: {shown}"));
        }
        Hop::new(target, tls, named, path, asked, proxy)
            .map_err(|_| Failure::Bad(format!("redirected to {shown}, which cannot be asked for")))
    }
}

/// A host as a certificate names it.
fn bare(host: &Host<&str>) -> String {
    match host {
        Host::Domain(name) => (*name).to_owned(),
        Host::Ipv4(a) => a.to_string(),
        Host::Ipv6(a) => a.to_string(),
    }
}

#[cfg(test)]
mod tests;
