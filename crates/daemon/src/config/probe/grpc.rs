//! The `grpc` section.

use std::collections::BTreeSet;

use ::http::header::{HeaderName, HeaderValue};
use ::http::uri::{Authority, PathAndQuery};
use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use standfast_core::plan::{GrpcCall, GrpcMethod, GrpcProbe, Probe, Target};
use standfast_core::spelling::closest;

use super::super::file::Grpc;
use super::super::read::{At, Findings, Pairs};
use super::super::resolve::{list, or, value};
use super::super::value::Text;
use super::{Context, Tls, authority, regex, unix_socket};

pub(super) fn grpc(at: &Grpc, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    let target = target(at, cx, out);
    let on = or(&at.tls, false);
    let connect = target.as_ref().map_or(String::new(), Target::host);
    let tls = Tls {
        insecure: &at.tls_insecure,
        ca_cert: &at.tls_ca_cert,
        client: Some((&at.tls_client_cert, &at.tls_client_key)),
        server_name: &at.tls_server_name,
        min_remaining: &at.tls_min_remaining,
    };
    let tls = tls.options(on, "`tls: true`", connect.clone(), out);
    let call = match &at.method {
        None => health(at, out),
        Some(method) => GrpcCall::Method(Box::new(unary(at, method, out))),
    };
    let metadata = at.metadata.as_ref().map_or(Vec::new(), |pairs| metadata(pairs, out));
    let sent = match &at.authority {
        Some(authority) => {
            let fine = authority.value.0.parse::<Authority>().is_ok_and(|a| !a.as_str().contains('@'));
            if !fine {
                out.error(authority, "this is not a host, or a host and port");
            }
            authority.value.0.clone()
        }
        None => {
            let name = at.tls_server_name.as_ref().map_or(connect, |n| n.value.0.clone());
            match &target {
                Some(Target::Address(at)) => authority(&name, at.port(), on),
                Some(Target::Name(_, port)) => authority(&name, *port, on),
                Some(Target::Unix(_)) | None => name,
            }
        }
    };
    Some(Probe::Grpc(Box::new(GrpcProbe {
        target: target?,
        authority: sent,
        tls,
        call,
        metadata,
        keep_alive: or(&at.keep_alive, false),
    })))
}

/// Where to connect.
fn target(at: &Grpc, cx: &Context<'_>, out: &mut Findings) -> Option<Target> {
    if let Some(host) = &at.host
        && let Some(target) = unix_socket(host, out)
    {
        if let Some(port) = &at.port {
            out.error(port, "port has no effect with a unix socket").help("take it away");
        }
        return target;
    }
    if at.port.is_none() {
        cx.missing("port", "it is the TCP port to connect to", out);
    }
    let port = at.port.as_ref().map(|p| p.to::<u16>());
    let target = cx.target(&at.host, port.unwrap_or(1), "host", out);
    port.and(target)
}

/// The call of the health service; what belongs to a method is refused.
fn health(at: &Grpc, out: &mut Findings) -> GrpcCall {
    let useless = [
        at.ok_codes.as_ref().map(|a| ("ok_codes", &a.path, &a.place)),
        at.request.as_ref().map(|a| ("request", &a.path, &a.place)),
        at.descriptor_set.as_ref().map(|a| ("descriptor_set", &a.path, &a.place)),
        at.response_text.as_ref().map(|a| ("response_text", &a.path, &a.place)),
        at.response_regex.as_ref().map(|a| ("response_regex", &a.path, &a.place)),
        at.response_jq.as_ref().map(|a| ("response_jq", &a.path, &a.place)),
    ];
    for (key, path, place) in useless.into_iter().flatten() {
        out.at(path, place, format!("{key} has no effect without method"))
            .help("the health service answers SERVING or not");
    }
    GrpcCall::Health { service: at.service.as_ref().map_or(String::new(), |s| s.value.0.clone()) }
}

fn unary(at: &Grpc, method: &At<Text>, out: &mut Findings) -> GrpcMethod {
    if let Some(service) = &at.service {
        out.error(service, "service has no effect with method")
            .help("it is what the health service is asked about");
    }
    let path = method.value.0.strip_prefix('/').unwrap_or(&method.value.0);
    let whole = path.split_once('/').is_some_and(|(s, m)| !s.is_empty() && !m.is_empty() && !m.contains('/'));
    if !whole || format!("/{path}").parse::<PathAndQuery>().is_err() {
        out.error(method, "this is not a gRPC method").help("write package.Service/Method");
    }
    let mut ok_codes: BTreeSet<u8> = list(&at.ok_codes).iter().filter_map(|c| status_code(c, out)).collect();
    if let Some(codes) = &at.ok_codes
        && !ok_codes.is_empty()
        && !ok_codes.contains(&0)
    {
        let rules = [
            ("response_text", &at.response_text),
            ("response_regex", &at.response_regex),
            ("response_jq", &at.response_jq),
        ];
        for (key, rule) in rules {
            if let Some(rule) = rule {
                out.error(
                    rule,
                    format!("{key} can never be judged: only a call that ends with OK has an answer"),
                )
                .note(&codes.place, "OK is not among these")
                .help("add OK to ok_codes, or take one of them away");
            }
        }
    }
    if ok_codes.is_empty() {
        ok_codes.insert(0);
    }
    let text = |at: &Option<At<Text>>| at.as_ref().map(|t| t.value.0.clone());
    GrpcMethod {
        path: format!("/{path}"),
        request: at.request.as_ref().map(|r| r.value.text.clone()),
        ok_codes,
        descriptor_set: value(&at.descriptor_set),
        text: text(&at.response_text),
        regex: regex(&at.response_regex, out),
        jq: text(&at.response_jq),
    }
}

fn metadata(pairs: &Pairs, out: &mut Findings) -> Vec<(String, String)> {
    let mut metadata = Vec::new();
    for (name, text) in &pairs.0 {
        let lower = name.value.to_ascii_lowercase();
        if lower.parse::<HeaderName>().is_err() || lower.starts_with("grpc-") {
            out.error(name, format!("`{}` cannot be sent as metadata", name.value))
                .help("names have letters, digits, - and _ ; grpc- belongs to the protocol");
        } else if ["te", "content-type", "content-length", "connection", "host"].contains(&lower.as_str()) {
            out.error(name, format!("`{}` is set by standfast itself", name.value));
        } else if lower.ends_with("-bin")
            && BASE64_STANDARD_NO_PAD.decode(text.value.trim_end_matches('=')).is_err()
        {
            out.error(text, "this is not base64, as metadata whose name ends in -bin must be");
        } else if text.value.parse::<HeaderValue>().is_err() || !text.value.is_ascii() {
            out.error(text, "this cannot be sent as metadata").help("printable ASCII only");
        } else {
            metadata.push((lower, text.value.clone()));
        }
    }
    metadata
}

/// What a failed preparation says of the keys of this section: where, and the words without what the place tells.
pub(super) fn blame<'a>(at: &'a Grpc, reason: &str) -> Option<(&'a str, std::ops::Range<usize>, String)> {
    let rest = |prefix: &str| reason.strip_prefix(prefix).map(str::to_owned);
    let after =
        |prefix: &str| reason.strip_prefix(prefix).and_then(|r| r.split_once(": ")).map(|r| r.1.to_owned());
    if let (Some(request), Some(mut why)) = (&at.request, rest("request: ")) {
        let mut place = request.place.clone();
        if request.value.is_section() {
            why.truncate(why.find(" at line ").unwrap_or(why.len()));
            let named = why.split('\'').nth(1).and_then(|name| request.value.key(name));
            place = named.cloned().unwrap_or(place);
        }
        return Some((&request.path, place, why));
    }
    if let (Some(set), Some(why)) = (&at.descriptor_set, after("descriptor set ")) {
        return Some((&set.path, set.place.clone(), format!("cannot use this file: {why}")));
    }
    if let (Some(method), Some(why)) = (&at.method, after("method ")) {
        return Some((&method.path, method.place.clone(), why));
    }
    if let (Some(jq), Some(_)) = (&at.response_jq, rest("jq program ")) {
        let own = format!("jq program {:?}: ", jq.value.0);
        let why = reason.strip_prefix(&own).unwrap_or(reason);
        return Some((&jq.path, jq.place.clone(), format!("this jq program does not compile: {why}")));
    }
    None
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
