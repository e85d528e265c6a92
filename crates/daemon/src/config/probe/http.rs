//! The `http` section.

use ::http::Uri;
use ::http::header::{HeaderName, HeaderValue};
use ::http::uri::PathAndQuery;
use standfast_core::plan::{Follow, HttpProbe, HttpVersion, Probe, Secret, Target, TlsOptions};

use super::super::file::Http;
use super::super::read::{At, Findings, Pairs};
use super::super::resolve::{list, or, value};
use super::super::value::{Codes, Method, Proto, Text};
use super::{Context, Tls, authority, certificates, host_port};

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
    if text.split_once('[').and_then(|(_, t)| t.split_once(']')).is_some_and(|(host, _)| host.contains('%')) {
        out.error(at, "the URL's address has a zone, which means nothing to a server")
            .help("write the address alone, and where to connect as e.g. `host: \"[fe80::1%2]:80\"`, with the number of the interface");
        return None;
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

fn unbracketed(host: &str) -> String {
    host.trim_start_matches('[').trim_end_matches(']').to_owned()
}

pub(super) fn http(at: &Http, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
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
    proxy_ca(at, proxy.as_ref(), out);
    let target = match (&at.proxy, full) {
        _ if at.unix.is_some() => unix(at, out),
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
    let connect = target.as_ref().map_or(String::new(), Target::host);
    let (headers, host_header) = at.headers.as_ref().map_or((Vec::new(), None), |h| request_headers(h, out));
    let host = host_header.unwrap_or_else(|| match full {
        Some(url) => authority(&url.host, url.port.unwrap_or(scheme_port), https),
        None => match &target {
            Some(Target::Address(at)) => authority(&connect, at.port(), https),
            Some(Target::Name(_, port)) => authority(&connect, *port, https),
            _ => connect.clone(),
        },
    });
    let name = full
        .map_or_else(|| host_port(&host, 0).map_or(connect.clone(), |t| t.host()), |u| unbracketed(&u.host));
    let tls = Tls {
        insecure: &at.tls_insecure,
        ca_cert: &at.tls_ca_cert,
        client: Some((&at.tls_client_cert, &at.tls_client_key)),
        server_name: &at.tls_server_name,
        min_remaining: &at.tls_min_remaining,
    };
    let limit = at.follow_redirects.as_ref().map_or(0, |f| f.to::<u8>());
    let needs = "an https URL, `proto: https` or follow_redirects";
    let options = tls.options(https || limit > 0, needs, name, out);
    let follow = follow(at, limit, options.as_ref(), out);
    let tls = options.filter(|_| https);
    let version = or(&at.version, HttpVersion::Auto);
    if let (Some(version), Some(proxy), false) = (at.version.as_ref(), &at.proxy, https)
        && version.value == HttpVersion::Http2
    {
        out.error(version, "HTTP/2 without TLS does not go through a proxy").note(&proxy.place, "the proxy");
    }
    body_rules(at, out);
    let status = match list(&at.response_codes) {
        [] => vec![(200, 200)],
        codes => codes.iter().map(|c| (c.value.0, c.value.1)).collect(),
    };
    let method = or(&at.method, Method::Get);
    let wanted = at.response_headers.as_ref().map_or(Vec::new(), |h| response_headers(h, out));
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
        response_headers: wanted,
        version,
        follow,
        proxy,
        proxy_ca_cert: value(&at.proxy_ca_cert),
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
        && let Err(reason) = standfast_io::probe::check_pattern(&rule.value.0)
    {
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

/// The headers that an answer must have.
fn response_headers(pairs: &Pairs, out: &mut Findings) -> Vec<(String, String)> {
    for (name, _) in &pairs.0 {
        if name.value.parse::<HeaderName>().is_err() {
            out.error(name, format!("`{}` is not the name of a header", name.value));
        }
    }
    pairs.0.iter().map(|(name, text)| (name.value.clone(), text.value.clone())).collect()
}

/// A unix socket, which takes the place of an address.
fn unix(at: &Http, out: &mut Findings) -> Option<Target> {
    let unix = at.unix.as_ref()?;
    let mut refuse = |path: &str, place| {
        let key = path.rsplit('.').next().unwrap_or(path);
        out.at(path, place, format!("{key} has no effect with a unix socket"))
            .note(&unix.place, "the socket")
            .help("take one of them away");
    };
    at.host.iter().for_each(|a| refuse(&a.path, &a.place));
    at.port.iter().for_each(|a| refuse(&a.path, &a.place));
    at.proxy.iter().for_each(|a| refuse(&a.path, &a.place));
    // The address of a unix socket has this much room (unix(7)).
    if unix.value.as_os_str().len() > 107 {
        out.error(unix, "the path of a unix socket has at most 107 octets");
    }
    Some(Target::Unix(unix.value.clone()))
}

/// What is done with redirects.
fn follow(at: &Http, limit: u8, tls: Option<&TlsOptions>, out: &mut Findings) -> Option<Follow> {
    let downgrade = at.allow_downgrade.as_ref().filter(|d| d.value);
    if limit == 0 {
        if let Some(downgrade) = downgrade {
            out.error(downgrade, "allow_downgrade has no effect without follow_redirects");
        }
        return None;
    }
    let redirects =
        |c: &At<Codes>| matches!((c.value.0, c.value.1), (301..=303, 301..=303) | (307..=308, 307..=308));
    if let (Some(codes), Some(follow)) = (&at.response_codes, &at.follow_redirects)
        && !codes.is_empty()
        && codes.iter().all(redirects)
    {
        out.error(codes, "a redirect is never the last answer where redirects are followed")
            .note(&follow.place, "they are followed")
            .help("take follow_redirects away to check the redirect itself");
    }
    Some(Follow { limit, downgrade: downgrade.is_some(), tls: tls?.clone() })
}

/// The forward proxy.
fn proxy(at: &At<Text>, full_url: bool, out: &mut Findings) -> Option<Secret> {
    if !full_url {
        out.error(at, "a proxy needs a full URL: it connects to the URL's host")
            .help("write e.g. `url: https://www.example.com/healthz`");
    }
    let uri = at.value.0.parse::<Uri>().ok();
    let fine = uri.as_ref().is_some_and(|u| {
        matches!(u.scheme_str(), Some("http" | "https"))
            && u.port_u16().is_some_and(|p| p > 0)
            && matches!(u.path(), "" | "/")
            && u.query().is_none()
    });
    if !fine {
        out.error(at, "this is not a proxy").help("write http://[user:password@]host:port");
    }
    fine.then(|| Secret::new(at.value.0.clone()))
}

/// The file of authorities for a proxy.
fn proxy_ca(at: &Http, proxy: Option<&Secret>, out: &mut Findings) {
    let Some(ca) = &at.proxy_ca_cert else { return };
    if at.proxy.is_none() || proxy.is_some_and(|p| !p.reveal().starts_with("https:")) {
        out.error(ca, "proxy_ca_cert has no effect without a proxy that is reached over TLS")
            .help("it needs `proxy: https://host:port`");
    }
    certificates(ca, out);
}
