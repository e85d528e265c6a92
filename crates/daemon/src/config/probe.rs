//! Checks: from the file's sections to what the prober opens.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use http::header::{HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use standfast_core::plan::{
    self, DnsProbe, DnsType, GrpcCall, GrpcProbe, HttpProbe, PingProbe, Probe, Secret, Target, TlsOptions,
    UdpProbe,
};
use standfast_core::prefix::Prefix;
use standfast_core::spelling::closest;

use super::file::{Check, Dns, Grpc, Http, Ping, Tcp, Udp};
use super::read::{At, Findings, Pairs, Read};
use super::resolve::{list, or, value};
use super::tree::{Node, Value};
use super::value::{CheckType, Method, Proto, Ratio, Text, show};

/// The check that a section asks for. Whatever was reported is filled with something harmless.
pub(crate) fn check(
    at: &At<Check>,
    kind: &At<CheckType>,
    prefixes: &[Prefix],
    out: &mut Findings,
) -> plan::Check {
    let interval = or(&at.interval, Duration::from_secs(1));
    let timeout = or(&at.timeout, Duration::from_millis(100));
    if let Some(i) = &at.interval {
        if i.value < Duration::from_millis(10) {
            out.error(i, "interval is less than 10ms");
        } else if i.value > Duration::from_secs(86_400) {
            out.error(i, "interval is longer than a day");
        }
    }
    if let Some(t) = &at.timeout {
        if t.is_zero() {
            out.error(t, "timeout must be more than 0");
        } else if timeout >= interval {
            let given = t.verbatim.is_some();
            let message = if given {
                format!("timeout, {}, must be less than interval, {}", show(timeout), show(interval))
            } else {
                format!(
                    "interval, {}, must be more than timeout, which is {} by default",
                    show(interval),
                    show(timeout)
                )
            };
            let place = if given { &t.place } else { at.interval.as_ref().map_or(&t.place, |i| &i.place) };
            let path = if given { &t.path } else { at.interval.as_ref().map_or(&t.path, |i| &i.path) };
            out.at(path, place, message).help("a run must have ended before the next one starts");
        }
    }
    for (section, name) in [
        (at.http.as_ref().map(|s| &s.place), CheckType::Http),
        (at.dns.as_ref().map(|s| &s.place), CheckType::Dns),
        (at.ping.as_ref().map(|s| &s.place), CheckType::Ping),
        (at.tcp.as_ref().map(|s| &s.place), CheckType::Tcp),
        (at.udp.as_ref().map(|s| &s.place), CheckType::Udp),
        (at.grpc.as_ref().map(|s| &s.place), CheckType::Grpc),
    ] {
        if let (Some(place), true) = (section, name != kind.value) {
            let message = format!("`{}` has no effect on a check of type {}", word(name), word(kind.value));
            out.at(&format!("{}.{}", at.path, word(name)), place, message)
                .note(&kind.place, "the type")
                .help("take one of them away");
        }
    }
    let before = out.errors();
    let cx = Context { check: at, kind, prefixes, timeout };
    let probe = match kind.value {
        CheckType::Http => with(&at.http, &cx, out, http),
        CheckType::Dns => with(&at.dns, &cx, out, dns),
        CheckType::Ping => with(&at.ping, &cx, out, ping),
        CheckType::Tcp => with(&at.tcp, &cx, out, tcp),
        CheckType::Udp => with(&at.udp, &cx, out, udp),
        CheckType::Grpc => with(&at.grpc, &cx, out, grpc),
        // Refused where they are read.
        CheckType::Exec
        | CheckType::Push
        | CheckType::Members
        | CheckType::Service
        | CheckType::Vrrp
        | CheckType::Target => None,
    };
    if let Some(probe) = &probe
        && out.errors() == before
    {
        prepare(probe, at, kind, out);
    }
    plan::Check {
        interval,
        timeout,
        rise: at.rise.as_ref().map_or(1, |r| r.to()),
        fall: at.fall.as_ref().map_or(3, |f| f.to()),
        probe: probe.unwrap_or(Probe::External),
    }
}

/// Opens and compiles everything as the prober will, so that what was accepted runs.
fn prepare(probe: &Probe, at: &At<Check>, kind: &At<CheckType>, out: &mut Findings) {
    let Err(reason) = standfast_io::probe::prepare(probe) else { return };
    match at.http.as_ref().and_then(|h| h.response_jq.as_ref()) {
        Some(jq) if reason.starts_with("jq program") => {
            let reason = reason.strip_prefix(&format!("jq program {:?}: ", jq.value.0)).unwrap_or(&reason);
            out.error(jq, format!("this jq program does not compile: {reason}"));
        }
        _ => {
            out.error(kind, format!("this check cannot run: {reason}"));
        }
    }
}

/// The type as the file writes it.
pub(crate) fn word(kind: CheckType) -> &'static str {
    match kind {
        CheckType::Http => "http",
        CheckType::Dns => "dns",
        CheckType::Ping => "ping",
        CheckType::Udp => "udp",
        CheckType::Tcp => "tcp",
        CheckType::Grpc => "grpc",
        CheckType::Exec => "exec",
        CheckType::Push => "push",
        CheckType::Members => "members",
        CheckType::Service => "service",
        CheckType::Vrrp => "vrrp",
        CheckType::Target => "target",
    }
}

/// What a probe takes from around it.
struct Context<'a> {
    check: &'a At<Check>,
    kind: &'a At<CheckType>,
    prefixes: &'a [Prefix],
    timeout: Duration,
}

impl Context<'_> {
    /// The VIP's own address: the default of every host.
    fn vip(&self) -> Option<IpAddr> {
        self.prefixes.first().filter(|p| p.is_host()).map(Prefix::address)
    }

    /// Where to connect: as written, or the VIP's address, or it is reported that `key` is missing.
    fn target(&self, host: &Option<At<Text>>, port: u16, key: &str, out: &mut Findings) -> Option<Target> {
        match host {
            Some(at) => {
                let target = host_port(&at.value.0, port);
                if target.is_none() {
                    out.error(at, format!("`{}` is neither an address nor a name", at.value.0));
                }
                target
            }
            None => self.address(key, out).map(|a| Target::Address(SocketAddr::new(a, port))),
        }
    }

    fn address(&self, key: &str, out: &mut Findings) -> Option<IpAddr> {
        if self.vip().is_none() && !self.prefixes.is_empty() {
            let path = format!("{}.{}", self.check.path, word(self.kind.value));
            out.at(
                &path,
                &self.kind.place,
                format!("`{key}` is missing: {} is no single address to check", self.prefixes[0]),
            )
            .help(format!("say which address to check with `{key}`"));
        }
        self.vip()
    }
}

/// Reads the check's own section, or an empty one if it is not given.
fn with<T: Read>(
    section: &Option<At<T>>,
    cx: &Context<'_>,
    out: &mut Findings,
    probe: fn(&T, &Context<'_>, &mut Findings) -> Option<Probe>,
) -> Option<Probe> {
    match section {
        Some(section) => probe(&section.value, cx, out),
        None => {
            let path = format!("{}.{}", cx.check.path, word(cx.kind.value));
            if out.0.iter().any(|f| f.path == path) {
                return None;
            }
            let node = Node { place: cx.kind.place.clone(), value: Value::Null };
            probe(&T::read(&node, &path, out)?, cx, out)
        }
    }
}

/// `host`, `host:port`, `[v6]:port` or a bare IPv6 address.
fn host_port(text: &str, port: u16) -> Option<Target> {
    if let Ok(at) = text.parse::<SocketAddr>() {
        return Some(Target::Address(at));
    }
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Some(Target::Address(SocketAddr::new(address, port)));
    }
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) => (name, port.parse().ok().filter(|&p| p > 0)?),
        None => (text, port),
    };
    is_dns_name(name).then(|| Target::Name(name.trim_end_matches('.').to_owned(), port))
}

fn is_dns_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let label = |l: &str| {
        (1..=63).contains(&l.len())
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    let number = name.rsplit('.').next().is_some_and(|l| l.bytes().all(|b| b.is_ascii_digit()));
    name.len() <= 253 && name.split('.').all(label) && !number
}

fn tcp(at: &Tcp, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    let host = match &at.host {
        Some(host) => Some(host.value),
        None => cx.address("host", out),
    };
    Some(Probe::Tcp { target: SocketAddr::new(host?, at.port.as_ref()?.to()) })
}

fn udp(at: &Udp, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    let port = at.port.as_ref().map(|p| p.to::<u16>());
    let target = cx.target(&at.host, port.unwrap_or(1), "host", out);
    let payload = at.payload.as_ref().map_or(vec![0], |p| p.value.0.clone().into_bytes());
    if let Some(p) = at.payload.as_ref().filter(|_| payload.len() > 1472) {
        out.error(p, format!("the payload has {} octets, and 1472 fit in a datagram", payload.len()));
    }
    port?;
    Some(Probe::Udp(UdpProbe {
        target: target?,
        payload,
        wait: Duration::from_millis(500).min(cx.timeout * 4 / 5),
        require_response: or(&at.require_response, false),
    }))
}

fn dns(at: &Dns, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    let port = at.port.as_ref().map_or(53, |p| p.to());
    let resolver = cx.target(&at.resolver, port, "resolver", out);
    for name in list(&at.names) {
        let dotless = name.value.0.strip_suffix('.').unwrap_or(&name.value.0);
        let fine =
            dotless.len() <= 253 && dotless.split('.').all(|l| (1..=63).contains(&l.len()) && l.is_ascii());
        if !fine && name.value.0 != "." {
            out.error(name, "this is not a DNS name")
                .help("labels have 1 to 63 ASCII characters, a name at most 253");
        }
    }
    if let Some(names) = at.names.as_ref() {
        if names.is_empty() {
            out.error(names, "`names` is empty: there is nothing to ask");
        } else if names.len() > 100 {
            out.error(names, format!("{} names are more than 100", names.len()));
        }
    }
    Some(Probe::Dns(DnsProbe {
        resolver: resolver?,
        names: list(&at.names).iter().map(|n| n.value.0.trim_end_matches('.').to_owned()).collect(),
        query_type: or(&at.query_type, DnsType::A),
    }))
}

fn ping(at: &Ping, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    let target = match &at.dst_ip {
        Some(dst) => Some(dst.value),
        None => cx.address("dst_ip", out),
    };
    if let (Some(src), Some(dst)) = (&at.src_ip, target)
        && src.is_ipv4() != dst.is_ipv4()
    {
        out.error(src, format!("src_ip and the address that is asked, {dst}, are of different families"));
    }
    let count: u32 = at.count.as_ref().map_or(1, |c| c.to());
    let interval = or(&at.interval, cx.timeout / count.max(1));
    let sending = interval * (count.max(1) - 1);
    if let Some(i) = &at.interval
        && sending >= cx.timeout
    {
        let message = format!(
            "{count} packets, one every {}, do not fit in the check's timeout, {}",
            show(interval),
            show(cx.timeout)
        );
        out.error(i, message).help("leave `interval` away, or raise the check's timeout");
    }
    let timeout = or(&at.timeout, cx.timeout);
    if let Some(t) = &at.timeout
        && (t.is_zero() || t.value > cx.timeout)
    {
        out.error(t, format!("a packet is waited for up to the check's timeout, {}", show(cx.timeout)))
            .help("leave it away, or write more than 0 and at most that");
    }
    Some(Probe::Ping(PingProbe {
        target: target?,
        source: value(&at.src_ip),
        privileged: or(&at.privileged, false),
        count,
        interval,
        timeout,
        max_loss_permille: or(&at.max_loss_ratio, Ratio(0)).0,
    }))
}

/// What a URL says.
struct Url {
    https: bool,
    host: String,
    port: Option<u16>,
    path: String,
}

/// A path alone, or a full URL.
fn url(at: &At<Text>, out: &mut Findings) -> Option<Result<Url, String>> {
    let text = at.value.0.as_str();
    if text.contains('#') {
        out.error(at, "a fragment, from # on, is never sent to a server").help("take it away");
        return None;
    }
    if text.starts_with('/') {
        return match text.parse::<PathAndQuery>() {
            Ok(path) => Some(Err(path.as_str().to_owned())),
            Err(_) => {
                out.error(at, "this is not a path and query").help("write other characters as %20 and so on");
                None
            }
        };
    }
    let parsed =
        text.parse::<Uri>().ok().filter(|u| u.scheme().is_some() && u.host().is_some_and(|h| !h.is_empty()));
    let Some(uri) = parsed else {
        out.error(at, "this is neither a path nor a full URL")
            .help("write /healthz, or https://www.example.com/healthz");
        return None;
    };
    let https = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => {
            out.error(at, "only http and https can be checked");
            return None;
        }
    };
    if uri.authority().is_some_and(|a| a.as_str().contains('@')) {
        out.error(at, "the URL holds a user name")
            .help("put an `Authorization` header under `headers` instead");
        return None;
    }
    let bad_port = uri.authority().is_some_and(|a| a.port().is_some() && a.port_u16().is_none_or(|p| p == 0));
    if bad_port {
        out.error(at, "the URL's port is not 1 to 65535");
        return None;
    }
    let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    Some(Ok(Url { https, host: uri.host().unwrap_or_default().to_owned(), port: uri.port_u16(), path }))
}

/// `host` with the port if it is not the scheme's own.
fn authority(host: &str, port: u16, https: bool) -> String {
    let host =
        if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() };
    if port == if https { 443 } else { 80 } { host } else { format!("{host}:{port}") }
}

fn unbracketed(host: &str) -> String {
    host.trim_start_matches('[').trim_end_matches(']').to_owned()
}

fn http(at: &Http, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    let url_at = at.url.as_ref()?;
    let parsed = url(url_at, out);
    let full = parsed.as_ref().and_then(|p| p.as_ref().ok());
    if let (Some(url), Some(proto)) = (full, &at.proto)
        && url.https != (proto.value == Proto::Https)
    {
        out.error(proto, "proto and the URL's scheme disagree")
            .note(&url_at.place, "the URL")
            .help("leave proto away");
    }
    let https = full.map_or(value(&at.proto) == Some(Proto::Https), |u| u.https);
    let scheme_port = if https { 443 } else { 80 };
    let port = at.port.as_ref().map(|p| p.to()).or(full.and_then(|u| u.port)).unwrap_or(scheme_port);
    let proxy = at.proxy.as_ref().and_then(|p| proxy(p, full.is_some(), out));
    let target = match (&at.proxy, full) {
        (Some(_), Some(url)) => {
            if let Some(host) = &at.host {
                out.error(host, "host has no effect with a proxy, which connects to the URL's host")
                    .help("take it away");
            }
            host_port(&url.host, port)
        }
        (Some(_), None) => None,
        (None, _) => cx.target(&at.host, port, "host", out),
    };
    let connect = match &target {
        Some(Target::Address(a)) => a.ip().to_string(),
        Some(Target::Name(name, _)) => name.clone(),
        None => String::new(),
    };
    let (headers, host_header) = at.headers.as_ref().map_or((Vec::new(), None), |h| request_headers(h, out));
    let host = host_header.unwrap_or_else(|| match full {
        Some(url) => authority(&url.host, url.port.unwrap_or(scheme_port), https),
        None => authority(&connect, port, https),
    });
    let name = full.map_or_else(
        || {
            host_port(&host, 0).map_or(connect.clone(), |t| match t {
                Target::Address(a) => a.ip().to_string(),
                Target::Name(n, _) => n,
            })
        },
        |u| unbracketed(&u.host),
    );
    let tls = Tls {
        insecure: &at.tls_insecure,
        ca_cert: &at.tls_ca_cert,
        client: Some((&at.tls_client_cert, &at.tls_client_key)),
        server_name: &at.tls_server_name,
        min_remaining: &at.tls_min_remaining,
    };
    let tls = tls.options(https, "an https URL or `proto: https`", name, out);
    body_rules(at, out);
    let status = match list(&at.response_codes) {
        [] => vec![(200, 200)],
        codes => codes.iter().map(|c| (c.value.0, c.value.1)).collect(),
    };
    let method = or(&at.method, Method::Get);
    Some(Probe::Http(Box::new(HttpProbe {
        target: target?,
        tls,
        method: match method {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
        }
        .into(),
        path: match parsed? {
            Ok(url) => url.path,
            Err(path) => path,
        },
        host,
        headers,
        body: at.body.as_ref().map(|b| b.value.0.clone()),
        status,
        text: at.response_text.as_ref().map(|t| t.value.0.clone()),
        regex: at.response_regex.as_ref().map(|t| t.value.0.clone()),
        jq: at.response_jq.as_ref().map(|t| t.value.0.clone()),
        proxy,
        keep_alive: or(&at.keep_alive, false),
        body_limit: at.body_limit.as_ref().map_or(1 << 20, |b| b.to()),
    })))
}

/// Checks what the body must be like, against the method.
fn body_rules(at: &Http, out: &mut Findings) {
    let method = or(&at.method, Method::Get);
    if let (Some(body), true) = (&at.body, method != Method::Post) {
        out.error(body, "body needs `method: POST`");
    }
    let rules = [
        ("response_text", &at.response_text),
        ("response_regex", &at.response_regex),
        ("response_jq", &at.response_jq),
    ];
    for (key, rule) in rules {
        if let (Some(rule), Method::Head, Some(method)) = (rule, method, &at.method) {
            out.error(rule, format!("{key} can never match: the answer to HEAD has no body"))
                .note(&method.place, "the method")
                .help("use `method: GET`");
        }
    }
    if let Some(rule) = &at.response_regex
        && let Err(e) = regex::RegexBuilder::new(&rule.value.0).size_limit(4 << 20).build()
    {
        let text = e.to_string();
        let reason =
            text.lines().rev().find_map(|l| l.trim().strip_prefix("error: ")).unwrap_or(&text).to_owned();
        out.error(rule, format!("this regular expression does not compile: {reason}"));
    }
}

/// The headers to send, and the Host header if one is given.
fn request_headers(pairs: &Pairs, out: &mut Findings) -> (Vec<(String, String)>, Option<String>) {
    let (mut headers, mut host) = (Vec::new(), None);
    for (name, text) in &pairs.0 {
        let fine = name.value.parse::<HeaderName>().is_ok();
        if !fine {
            out.error(name, format!("`{}` is not the name of a header", name.value));
        } else if text.value.parse::<HeaderValue>().is_err() {
            out.error(text, "this cannot be sent in a header")
                .help("line breaks and other control characters are not allowed");
        } else if ["connection", "content-length", "transfer-encoding", "upgrade"]
            .contains(&name.value.to_ascii_lowercase().as_str())
        {
            out.error(name, format!("`{}` is set by standfast itself", name.value));
        } else if name.value.eq_ignore_ascii_case("host") {
            host = Some(text.value.clone());
        } else {
            headers.push((name.value.clone(), text.value.clone()));
        }
    }
    (headers, host)
}

fn proxy(at: &At<Text>, full_url: bool, out: &mut Findings) -> Option<Secret> {
    if !full_url {
        out.error(at, "a proxy needs a full URL: it connects to the URL's host")
            .help("write e.g. `url: https://www.example.com/healthz`");
    }
    let uri = at.value.0.parse::<Uri>().ok();
    let fine =
        uri.as_ref().is_some_and(|u| u.scheme_str() == Some("http") && u.port_u16().is_some_and(|p| p > 0));
    if uri.is_some_and(|u| u.scheme_str() == Some("https")) {
        out.error(at, "a proxy reached over TLS is not available in this version")
            .help("write http://[user:password@]host:port");
    } else if !fine {
        out.error(at, "this is not a proxy").help("write http://[user:password@]host:port");
    }
    fine.then(|| Secret::new(at.value.0.clone()))
}

type OptionalPath = Option<At<PathBuf>>;

/// The TLS keys of a check.
struct Tls<'a> {
    insecure: &'a Option<At<bool>>,
    ca_cert: &'a Option<At<PathBuf>>,
    client: Option<(&'a OptionalPath, &'a OptionalPath)>,
    server_name: &'a Option<At<Text>>,
    min_remaining: &'a Option<At<Duration>>,
}

impl Tls<'_> {
    fn options(&self, on: bool, needs: &str, name: String, out: &mut Findings) -> Option<TlsOptions> {
        let insecure = self.insecure.as_ref().filter(|i| i.value);
        let remaining = self.min_remaining.as_ref().filter(|m| !m.is_zero());
        let (cert, key) = self.client.map_or((None, None), |(c, k)| (c.as_ref(), k.as_ref()));
        if !on {
            let mut refuse = |path: &str, place| {
                let key = path.rsplit('.').next().unwrap_or(path);
                out.at(path, place, format!("{key} has no effect without TLS"))
                    .help(format!("it needs {needs}"));
            };
            insecure.into_iter().for_each(|a| refuse(&a.path, &a.place));
            remaining.into_iter().for_each(|a| refuse(&a.path, &a.place));
            self.server_name.iter().for_each(|a| refuse(&a.path, &a.place));
            [self.ca_cert.as_ref(), cert, key].into_iter().flatten().for_each(|a| refuse(&a.path, &a.place));
            return None;
        }
        if let (Some(insecure), Some(ca)) = (insecure, self.ca_cert) {
            out.error(insecure, "tls_insecure and tls_ca_cert exclude each other: one accepts anything")
                .note(&ca.place, "the authority");
        }
        if let Some(ca) = self.ca_cert {
            certificates(ca, out);
        }
        match (cert, key) {
            (Some(cert), Some(key)) => {
                certificates(cert, out);
                if let Err(e) = PrivateKeyDer::from_pem_file(&key.value) {
                    out.error(key, format!("cannot use this key: {}", pem(&e, "PRIVATE KEY")));
                }
            }
            (Some(one), None) => {
                out.error(one, "a client certificate needs its key").help("add `tls_client_key`");
            }
            (None, Some(one)) => {
                out.error(one, "a client key needs its certificate").help("add `tls_client_cert`");
            }
            (None, None) => {}
        }
        let server_name = self.server_name.as_ref().map_or(name, |n| n.value.0.clone());
        if let Some(at) = self.server_name
            && !is_dns_name(&server_name)
            && server_name.parse::<IpAddr>().is_err()
        {
            out.error(at, "this is not the name or address of a server");
        }
        Some(TlsOptions {
            insecure: insecure.is_some(),
            ca_cert: value(self.ca_cert),
            client_cert: cert.zip(key).map(|(c, k)| (c.value.clone(), k.value.clone())),
            server_name,
            min_remaining: or(self.min_remaining, Duration::ZERO),
        })
    }
}

fn certificates(at: &At<PathBuf>, out: &mut Findings) {
    let result = CertificateDer::pem_file_iter(&at.value).and_then(|all| all.collect::<Result<Vec<_>, _>>());
    match result {
        Err(e) => {
            out.error(at, format!("cannot use this file: {}", pem(&e, "CERTIFICATE")));
        }
        Ok(all) if all.is_empty() => {
            out.error(at, "there is no certificate in this file")
                .help("it must hold PEM: -----BEGIN CERTIFICATE-----");
        }
        Ok(_) => {}
    }
}

fn pem(e: &rustls_pki_types::pem::Error, what: &str) -> String {
    use rustls_pki_types::pem::Error;
    match e {
        Error::Io(e) => super::in_words(e),
        Error::NoItemsFound => format!("it holds no PEM block -----BEGIN {what}-----"),
        other => format!("it is not PEM ({other})"),
    }
}

fn grpc(at: &Grpc, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    let port = at.port.as_ref().map(|p| p.to::<u16>());
    let target = cx.target(&at.host, port.unwrap_or(1), "host", out);
    let on = or(&at.tls, false);
    let connect = match &target {
        Some(Target::Address(a)) => a.ip().to_string(),
        Some(Target::Name(name, _)) => name.clone(),
        None => String::new(),
    };
    let tls = Tls {
        insecure: &at.tls_insecure,
        ca_cert: &at.tls_ca_cert,
        client: None,
        server_name: &at.tls_server_name,
        min_remaining: &None,
    };
    let tls = tls.options(on, "`tls: true`", connect.clone(), out);
    let call = match &at.method {
        None => {
            if let Some(codes) = &at.ok_codes {
                out.error(codes, "ok_codes has no effect without method")
                    .help("the health service answers SERVING or not");
            }
            GrpcCall::Health { service: at.service.as_ref().map_or(String::new(), |s| s.value.0.clone()) }
        }
        Some(method) => {
            if let Some(service) = &at.service {
                out.error(service, "service has no effect with method")
                    .help("it is what the health service is asked about");
            }
            let path = method.value.0.strip_prefix('/').unwrap_or(&method.value.0);
            let whole =
                path.split_once('/').is_some_and(|(s, m)| !s.is_empty() && !m.is_empty() && !m.contains('/'));
            if !whole || format!("/{path}").parse::<PathAndQuery>().is_err() {
                out.error(method, "this is not a gRPC method").help("write package.Service/Method");
            }
            let mut ok_codes: BTreeSet<u8> =
                list(&at.ok_codes).iter().filter_map(|c| status_code(c, out)).collect();
            if ok_codes.is_empty() {
                ok_codes.insert(0);
            }
            GrpcCall::Method { path: format!("/{path}"), ok_codes }
        }
    };
    let mut metadata = Vec::new();
    for (name, text) in at.metadata.iter().flat_map(|m| &m.0) {
        let lower = name.value.to_ascii_lowercase();
        if lower.parse::<HeaderName>().is_err() || lower.starts_with("grpc-") || lower.ends_with("-bin") {
            out.error(name, format!("`{}` cannot be sent as metadata", name.value))
                .help("names have letters, digits, - and _ ; grpc- belongs to the protocol, and -bin values are not available");
        } else if text.value.parse::<HeaderValue>().is_err() || !text.value.is_ascii() {
            out.error(text, "this cannot be sent as metadata").help("printable ASCII only");
        } else {
            metadata.push((lower, text.value.clone()));
        }
    }
    let name = at.tls_server_name.as_ref().map_or(connect, |n| n.value.0.clone());
    Some(Probe::Grpc(Box::new(GrpcProbe {
        target: target?,
        authority: authority(&name, port?, on),
        tls,
        call,
        metadata,
    })))
}

/// The gRPC status codes, by number.
const STATUS: [&str; 17] = [
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

fn status_code(at: &At<Text>, out: &mut Findings) -> Option<u8> {
    let fold = |s: &str| s.replace(['_', '-'], "").to_ascii_uppercase();
    let text = fold(&at.value.0);
    // One name has two spellings, CANCELLED and Canceled.
    let text = if text == "CANCELED" { "CANCELLED".to_owned() } else { text };
    let found = STATUS.iter().position(|s| {
        fold(s) == text || text.parse::<usize>().ok().is_some_and(|n| STATUS.get(n) == Some(s))
    });
    if found.is_none() {
        let finding = out.error(at, format!("`{}` is not a gRPC status", at.value.0));
        match closest(&at.value.0, STATUS) {
            Some(meant) => finding.help(format!("did you mean `{meant}`?")),
            None => finding.help("write a name such as OK, NOT_FOUND or UNIMPLEMENTED"),
        };
    }
    found.and_then(|n| u8::try_from(n).ok())
}
