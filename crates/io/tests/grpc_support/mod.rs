//! A gRPC server made of a function, and a reflection service that says what a test wants.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use standfast_core::plan::{GrpcCall, GrpcMethod, GrpcProbe, Probe, Target};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Its sources are in `tests/grpc`.
pub(crate) const BANK: &[u8] = include_bytes!("../grpc/bank.pb");

/// The path of a file in `tests/grpc`.
pub(crate) fn descriptor_set(name: &str) -> std::path::PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/grpc", name].iter().collect()
}

/// A check of `target` without TLS.
pub(crate) fn probe(target: SocketAddr, call: GrpcCall) -> GrpcProbe {
    GrpcProbe {
        target: Target::Address(target),
        tls: None,
        authority: "grpc.example.test".into(),
        call,
        metadata: vec![("x-token".into(), "t".into())],
        keep_alive: false,
    }
}

pub(crate) fn grpc(target: SocketAddr, call: GrpcCall) -> Probe {
    Probe::Grpc(Box::new(probe(target, call)))
}

pub(crate) fn health(service: &str) -> GrpcCall {
    GrpcCall::Health { service: service.into() }
}

/// A method with an empty request and these good codes.
pub(crate) fn method(path: &str, codes: &[u8]) -> GrpcCall {
    let ok_codes = codes.iter().copied().collect();
    GrpcCall::Method(Box::new(GrpcMethod { ok_codes, ..GrpcMethod::new(path) }))
}

/// A method with a request in JSON and a jq program for its answer; an empty text is none.
pub(crate) fn unary(path: &str, request: &str, jq: &str) -> GrpcMethod {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    GrpcMethod { request: some(request), jq: some(jq), ..GrpcMethod::new(path) }
}

pub(crate) fn call(method: GrpcMethod) -> GrpcCall {
    GrpcCall::Method(Box::new(method))
}

/// What a call is answered with.
pub(crate) struct Reply {
    pub(crate) messages: Vec<Vec<u8>>,
    pub(crate) status: u8,
    pub(crate) said: &'static str,
}

impl Reply {
    pub(crate) fn ok(messages: Vec<Vec<u8>>) -> Self {
        Self { messages, status: 0, said: "" }
    }

    pub(crate) fn status(status: u8, said: &'static str) -> Self {
        Self { messages: Vec::new(), status, said }
    }

    fn http(
        self,
    ) -> Response<StreamBody<impl futures_core::Stream<Item = Result<Frame<Bytes>, Infallible>>>> {
        let mut frames: Vec<_> =
            self.messages.iter().map(|m| Ok(Frame::data(Bytes::from(framed(m))))).collect();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from(u16::from(self.status)));
        trailers.insert("grpc-message", HeaderValue::from_static(self.said));
        frames.push(Ok(Frame::trailers(trailers)));
        let mut response = Response::new(StreamBody::new(tokio_stream::iter(frames)));
        response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        response
    }
}

/// What answers a call of this path with these messages.
pub(crate) type Answer = Arc<dyn Fn(&str, Vec<Vec<u8>>) -> Reply + Send + Sync>;

/// Serves one connection until its end.
pub(crate) async fn serve(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, answer: Answer) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = Arc::clone(&answer);
        async move {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            Ok::<_, Infallible>(answer(&path, unframed(&body)).http())
        }
    });
    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let _ = builder.serve_connection(TokioIo::new(io), service).await;
}

/// A server at `address`, port 0 for any; dropping every connection when it is aborted.
pub(crate) async fn server_at(address: SocketAddr, answer: Answer) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve(stream, Arc::clone(&answer)));
        }
    });
    (address, task)
}

/// A server on a free port for as long as the test runs.
pub(crate) async fn grpc_server(
    answer: impl Fn(&str, Vec<Vec<u8>>) -> Reply + Send + Sync + 'static,
) -> SocketAddr {
    server_at("127.0.0.1:0".parse().unwrap(), Arc::new(answer)).await.0
}

pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

fn unframed(mut data: &[u8]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    while let Some((prefix, rest)) = data.split_first_chunk::<5>() {
        let length = u32::from_be_bytes(*prefix.last_chunk().unwrap()) as usize;
        out.push(rest[..length].to_vec());
        data = &rest[length..];
    }
    out
}

/// A length-delimited field.
pub(crate) fn field(number: u8, octets: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = octets.len();
    while length > 0x7f {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(octets);
    out
}

/// The first length-delimited field of a message: its number, and what it holds.
pub(crate) fn first_field(message: &[u8]) -> (u8, &[u8], &[u8]) {
    let (mut length, mut at) = (0, 1);
    for shift in (0..).step_by(7) {
        length |= usize::from(message[at] & 0x7f) << shift;
        at += 1;
        if message[at - 1] & 0x80 == 0 {
            break;
        }
    }
    (message[0] >> 3, &message[at..at + length], &message[at + length..])
}

/// The files of a descriptor set, by name.
pub(crate) fn files(mut set: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    while !set.is_empty() {
        let (_, file, rest) = first_field(set);
        files.insert(String::from_utf8(first_field(file).1.to_vec()).unwrap(), file.to_vec());
        set = rest;
    }
    files
}

/// The two names of the reflection service's method.
pub(crate) const REFLECTION: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// An answer with these descriptors.
pub(crate) fn descriptors(files: &[&[u8]]) -> Vec<u8> {
    field(4, &files.iter().flat_map(|f| field(1, f)).collect::<Vec<u8>>())
}

/// An answer that a file or symbol is not known.
pub(crate) fn not_found() -> Vec<u8> {
    field(7, &[&[8, 5][..], &field(2, b"no such thing")].concat())
}

/// Answers questions one file at a time, as tonic and Java do: `symbols` are in the file beside them.
pub(crate) fn reflect(
    set: &[u8],
    symbols: &'static [(&'static str, &'static str)],
) -> impl Fn(Vec<Vec<u8>>) -> Reply + Clone + Send + Sync + 'static {
    let files = files(set);
    move |questions| {
        let answer = |question: &Vec<u8>| {
            let (kind, name, _) = first_field(question);
            let name = std::str::from_utf8(name).unwrap();
            let file = match kind {
                3 => files.get(name),
                _ => {
                    symbols.iter().find(|(symbol, _)| *symbol == name).and_then(|(_, file)| files.get(*file))
                }
            };
            file.map_or_else(not_found, |file| descriptors(&[file]))
        };
        Reply::ok(questions.iter().map(answer).collect())
    }
}

/// What makes the reflection of [`BANK`].
pub(crate) const BANK_SYMBOLS: &[(&str, &str)] = &[("bank.v1.Ledger", "bank.proto")];

/// A request, and an answer to it, that protobuf's own library for Python made.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|h| u8::from_str_radix(std::str::from_utf8(h).unwrap(), 16).unwrap())
        .collect()
}
