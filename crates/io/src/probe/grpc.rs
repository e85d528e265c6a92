//! The `grpc` check: the standard health service, or any unary method with an empty request.
//!
//! gRPC over HTTP/2 is written out here, because a check needs so little of it: one request message, the status in the
//! trailers and one number of the health answer. A connection lives for one run, so there is no backoff that
//! could keep a check failing after its server is back. Only a status that the server sent counts as one.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use standfast_core::plan::{GrpcCall, GrpcProbe, Target};

use super::link::{Link, http_failure};
use super::reach;
use super::run::{Doing, Failure};
use super::tls::Tls;

/// The most of an answer that is read.
const ANSWER_LIMIT: usize = 64 << 10;

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

/// A gRPC check, ready to run.
#[derive(Debug)]
pub(super) struct Grpc {
    target: Target,
    tls: Option<Tls>,
    uri: Uri,
    headers: HeaderMap,
    message: Bytes,
    call: GrpcCall,
}

impl Grpc {
    /// Reads the files of `probe` and makes its request.
    pub(super) fn prepare(probe: &GrpcProbe) -> Result<Self, String> {
        let GrpcProbe { target, tls, authority, call, metadata } = probe;
        let (path, message) = match call {
            GrpcCall::Health { service } => ("/grpc.health.v1.Health/Check", health_request(service)),
            GrpcCall::Method { path, .. } => (path.as_str(), Vec::new()),
        };
        if !path.starts_with('/') {
            return Err(format!("gRPC method {path:?} must be of the form /package.Service/Method"));
        }
        let scheme = if tls.is_some() { "https" } else { "http" };
        let uri = format!("{scheme}://{authority}{path}");
        let uri =
            uri.parse().map_err(|e| format!("gRPC authority {authority:?} and method {path:?}: {e}"))?;
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
            uri,
            headers,
            message: framed(&message).into(),
            call: call.clone(),
        })
    }

    /// Calls once.
    pub(super) async fn run(&self, doing: &Doing<'_>) -> Result<String, Failure> {
        let stream = reach::tcp(&self.target, doing).await?;
        let mut link = Link::open_http2(stream, self.tls.as_ref(), doing).await?;
        doing.set("waiting for the answer");
        let mut request = Request::new(Full::new(self.message.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = self.headers.clone();
        let response = link.send(request).await.map_err(|e| http_failure("answer", &e))?;
        let (status, message) = answer(response).await?;
        match &self.call {
            GrpcCall::Method { ok_codes, .. } => {
                if ok_codes.contains(&status.code) {
                    return Ok(format!("status {status}"));
                }
                let want: Vec<_> = ok_codes.iter().map(|c| code_name(*c)).collect();
                Err(Failure::Bad(format!("status {status}, want {}", want.join(", "))))
            }
            GrpcCall::Health { .. } if status.code != 0 => {
                Err(Failure::Bad(format!("health status {status}")))
            }
            GrpcCall::Health { service } => {
                let service = if service.is_empty() { "server" } else { service };
                match message.as_deref().and_then(unframed).and_then(health_answer) {
                    Some(1) => Ok(format!("{service} is SERVING")),
                    Some(0) => Err(Failure::Bad(format!("{service} is UNKNOWN, want SERVING"))),
                    Some(2) => Err(Failure::Bad(format!("{service} is NOT_SERVING"))),
                    Some(3) => Err(Failure::Bad(format!("{service} is SERVICE_UNKNOWN, want SERVING"))),
                    Some(n) => Err(Failure::Bad(format!("{service} has health status {n}, want SERVING"))),
                    None => Err(Failure::Bad("health answer cannot be read".into())),
                }
            }
        }
    }
}

/// What the server said of the call.
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
        let message = headers
            .get("grpc-message")
            .map(|m| String::from_utf8_lossy(m.as_bytes()).chars().take(100).collect());
        Some(Self { code, message: message.unwrap_or_default() })
    }
}

/// The status of an answer, and its message if there is one.
async fn answer(response: Response<Incoming>) -> Result<(Status, Option<Vec<u8>>), Failure> {
    if response.status() != StatusCode::OK {
        return Err(Failure::Bad(format!(
            "HTTP status {} where gRPC was expected",
            response.status().as_u16()
        )));
    }
    let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    if !kind.starts_with(b"application/grpc") {
        return Err(Failure::Bad(format!("content type {:?} is not gRPC", String::from_utf8_lossy(kind))));
    }
    // An answer of headers alone carries its status there.
    let mut status = Status::of(response.headers());
    let mut body = response.into_body();
    let mut data = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| http_failure("answer", &e))?;
        if let Some(octets) = frame.data_ref() {
            if data.len() + octets.len() > ANSWER_LIMIT {
                return Err(Failure::Bad(format!("answer is longer than {ANSWER_LIMIT} bytes")));
            }
            data.extend_from_slice(octets);
        } else if let Some(trailers) = frame.trailers_ref() {
            status = Status::of(trailers).or(status);
        }
    }
    let status =
        status.ok_or_else(|| Failure::Bad("the server ended the call without a gRPC status".into()))?;
    Ok((status, (!data.is_empty()).then_some(data)))
}

fn code_name(code: u8) -> String {
    CODES.get(usize::from(code)).map_or_else(|| format!("code {code}"), |name| (*name).to_owned())
}

/// A message with its prefix: not compressed, this long.
fn framed(message: &[u8]) -> Vec<u8> {
    let mut out = vec![0];
    out.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(message);
    out
}

/// The first message in `data`; `None` if it is cut or compressed.
fn unframed(data: &[u8]) -> Option<&[u8]> {
    let (prefix, rest) = data.split_first_chunk::<5>()?;
    let [0, length @ ..] = prefix else { return None };
    rest.get(..usize::try_from(u32::from_be_bytes(*length)).ok()?)
}

/// `HealthCheckRequest { service = 1 }`.
fn health_request(service: &str) -> Vec<u8> {
    let mut out = Vec::new();
    if service.is_empty() {
        return out;
    }
    out.push(1 << 3 | 2);
    let mut length = service.len();
    while length > 0x7f {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(service.as_bytes());
    out
}

/// The status of `HealthCheckResponse { status = 1 }`; fields unknown to us are skipped.
fn health_answer(mut message: &[u8]) -> Option<u64> {
    let mut status = 0;
    while !message.is_empty() {
        let key = varint(&mut message)?;
        match key & 7 {
            0 if key >> 3 == 1 => status = varint(&mut message)?,
            0 => _ = varint(&mut message)?,
            1 => message = message.get(8..)?,
            2 => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                message = message.get(length..)?;
            }
            5 => message = message.get(4..)?,
            _ => return None,
        }
    }
    Some(status)
}

/// Takes a base-128 number off the front.
fn varint(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = from.split_first()?;
        *from = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_health_request_is_the_bytes_of_the_protocol() {
        assert_eq!(health_request(""), b"");
        assert_eq!(health_request("a.B"), b"\x0a\x03a.B");
        let long = health_request(&"x".repeat(300));
        assert_eq!(long[..3], [0x0a, 0xac, 0x02]);
        assert_eq!(framed(b"\x08\x01"), [0, 0, 0, 0, 2, 8, 1]);
    }

    #[test]
    fn a_health_answer_is_read_whatever_surrounds_it() {
        assert_eq!(health_answer(b""), Some(0));
        assert_eq!(health_answer(b"\x08\x01"), Some(1));
        assert_eq!(
            health_answer(b"\x12\x02hi\x1d1234\x21\x31\x32\x33\x34\x35\x36\x37\x38\x18\x05\x08\x02"),
            Some(2)
        );
        for broken in
            [&b"\x08"[..], b"\x12\x7fhi", b"\x0b", b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"]
        {
            assert_eq!(health_answer(broken), None, "{broken:?}");
        }
        assert_eq!(unframed(&framed(b"ab")), Some(&b"ab"[..]));
        assert_eq!(unframed(b"\x01\0\0\0\0"), None);
        assert_eq!(unframed(b"\0\xff\xff\xff\xffab"), None);
    }
}
