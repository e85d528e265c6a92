//! gRPC checks against servers on loopback that answer well or badly, and paths that are gone or closed.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use probe_support::*;
use standfast_core::health::Outcome::{Bad, Good};
use standfast_core::plan::{GrpcCall, GrpcProbe, Probe, Target};

#[expect(unsafe_code, reason = "the standard library has no call for it")]
fn own_namespace() -> bool {
    // SAFETY: unshare takes a number and touches no memory.
    unsafe { libc::unshare(libc::CLONE_NEWNET) == 0 }
}

#[test]
fn a_path_that_is_gone_or_closed_is_bad_and_never_no_result() {
    let test = "a_path_that_is_gone_or_closed_is_bad_and_never_no_result";
    std::thread::spawn(move || {
        if !own_namespace() {
            eprintln!("SKIP {test}: no network namespace: {}", std::io::Error::last_os_error());
            return;
        }
        let run = |program: &str, arguments: &[&str]| {
            Command::new(program).args(arguments).status().is_ok_and(|s| s.success())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let tcp_at = |at: &str| runtime.block_on(once(tcp(at.parse().unwrap()), 300));
        assert_says(&tcp_at("192.0.2.1:80"), Bad, "connect 192.0.2.1:80: network is unreachable");
        // An interface that is down.
        assert_says(&tcp_at("127.0.0.1:80"), Bad, "connect 127.0.0.1:80: network is unreachable");
        assert!(run("ip", &["link", "set", "lo", "up"]));
        assert!(run("ip", &["route", "add", "unreachable", "192.0.2.0/24"]));
        assert_says(&tcp_at("192.0.2.1:80"), Bad, "connect 192.0.2.1:80: no route to host");
        assert!(run("ip", &["route", "add", "prohibit", "198.51.100.0/24"]));
        assert_says(&tcp_at("198.51.100.1:80"), Bad, "connect 198.51.100.1:80: permission denied");
        let rules = "table ip t { chain c { type filter hook output priority 0; tcp dport 81 drop; }; }";
        if !run("nft", &[rules]) {
            eprintln!("SKIP {test}: nft cannot set a rule");
            return;
        }
        // A packet that may not leave is lost like one on the way.
        let v = tcp_at("127.0.0.1:81");
        assert_says(&v, Bad, "while connecting to 127.0.0.1:81");
        assert!(v.timed_out);
    })
    .join()
    .unwrap();
}

// grpc

fn grpc(target: SocketAddr, call: GrpcCall) -> Probe {
    Probe::Grpc(Box::new(GrpcProbe {
        target: Target::Address(target),
        tls: None,
        authority: "grpc.example.test".into(),
        call,
        metadata: vec![("x-token".into(), "t".into())],
    }))
}

fn health(service: &str) -> GrpcCall {
    GrpcCall::Health { service: service.into() }
}

fn method(path: &str, codes: &[u8]) -> GrpcCall {
    GrpcCall::Method { path: path.into(), ok_codes: BTreeSet::from_iter(codes.iter().copied()) }
}

#[tokio::test]
async fn grpc_health_and_methods_are_judged_by_what_a_real_server_says() {
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter.set_service_status("good.Service", tonic_health::ServingStatus::Serving).await;
    reporter.set_service_status("bad.Service", tonic_health::ServingStatus::NotServing).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server =
        tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
    let cases = [
        (health(""), Good, "server is SERVING"),
        (health("good.Service"), Good, "good.Service is SERVING"),
        (health("bad.Service"), Bad, "bad.Service is NOT_SERVING"),
        (health("no.Service"), Bad, "health status NOT_FOUND"),
        (method("/grpc.health.v1.Health/Check", &[0]), Good, "status OK"),
        (method("/no.Such/Method", &[0]), Bad, "status UNIMPLEMENTED, want OK"),
        (method("/no.Such/Method", &[0, 12]), Good, "status UNIMPLEMENTED"),
    ];
    for (call, outcome, detail) in cases {
        assert_says(&once(grpc(address, call), 2000).await, outcome, detail);
    }
    server.abort();
    let _ = server.await;
    // What never reached a server has no status of a server, even if UNAVAILABLE (14) and DEADLINE_EXCEEDED (4) are good.
    let v = once(grpc(address, method("/a.B/C", &[4, 14])), 2000).await;
    assert_says(&v, Bad, "connection refused");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let v = once(grpc(silent.local_addr().unwrap(), method("/a.B/C", &[4, 14])), 100).await;
    assert_says(&v, Bad, "timed out after 100 ms while waiting for the answer");
}

#[tokio::test]
async fn what_is_not_grpc_is_bad() {
    let http1 = answers("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let v = once(grpc(http1, health("")), 1000).await;
    assert!(v.outcome == Bad, "{v:?}");
    let nonsense = server(|mut s| {
        let _ = s.write_all(&[0xff; 1000]);
        let _ = s.read(&mut [0; 100]);
    });
    let v = once(grpc(nonsense, health("")), 1000).await;
    assert!(v.outcome == Bad && !v.timed_out, "{v:?}");
}
