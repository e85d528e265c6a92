//! The `grpc` section.

use std::collections::BTreeSet;

use ::http::header::{HeaderName, HeaderValue};
use ::http::uri::PathAndQuery;
use standfast_core::plan::{GrpcCall, GrpcProbe, Probe, Target};
use standfast_core::spelling::closest;

use super::super::file::Grpc;
use super::super::read::{At, Findings};
use super::super::resolve::{list, or};
use super::super::value::Text;
use super::{Context, Tls, authority};

pub(super) fn grpc(at: &Grpc, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    let port = at.port.as_ref().map(|p| p.to::<u16>());
    let target = cx.target(&at.host, port.unwrap_or(1), "host", out);
    let on = or(&at.tls, false);
    let connect = target.as_ref().map_or(String::new(), Target::host);
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
