//! The gRPC check against servers on loopback that answer well, badly, or not to the end.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod grpc_support;
mod probe_support;
mod tls_support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use grpc_support::*;
use probe_support::{assert_says, once, server};
use rustls::RootCertStore;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use standfast_core::health::Outcome::{Bad, Good};
use standfast_core::plan::{Check, GrpcMethod, GrpcProbe, Probe, Target, TlsOptions};
use standfast_io::probe::{Prepared, prepare};
use tls_support::{Authority, DAY};

const SECOND: Duration = Duration::from_secs(1);

fn ready(probe: Probe) -> Prepared {
    prepare(&Check::new(probe)).unwrap()
}

/// A server of tonic with the health service and reflection in these versions.
async fn tonic_server(v1: bool, v1alpha: bool) -> (SocketAddr, tokio::task::JoinHandle<()>) {
    tonic_server_at("127.0.0.1:0", v1, v1alpha).await
}

async fn tonic_server_at(at: &str, v1: bool, v1alpha: bool) -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter.set_service_status("good.Service", tonic_health::ServingStatus::Serving).await;
    reporter.set_service_status("bad.Service", tonic_health::ServingStatus::NotServing).await;
    let listener = tokio::net::TcpListener::bind(at).await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = v1.then(|| reflection().build_v1().unwrap());
    let v1alpha = v1alpha.then(|| reflection().build_v1alpha().unwrap());
    let server = tonic::transport::Server::builder()
        .add_service(service)
        .add_optional_service(v1)
        .add_optional_service(v1alpha);
    let task = tokio::spawn(async {
        // Ends when the test does.
        let _ = server.serve_with_incoming(incoming).await;
    });
    (address, task)
}

#[tokio::test]
async fn an_ipv6_address_is_asked_by_health_and_by_reflection() {
    if TcpListener::bind("[::1]:0").is_err() {
        return eprintln!("SKIP an_ipv6_address_is_asked_by_health_and_by_reflection: no ::1");
    }
    let (address, server) = tonic_server_at("[::1]:0", true, false).await;
    let by_request = call(unary("/grpc.health.v1.Health/Check", "{}", ".status == \"SERVING\""));
    for call in [health("good.Service"), by_request] {
        let mut check = probe(address, call);
        check.authority = address.to_string();
        let v = once(Probe::Grpc(Box::new(check)), 5000).await;
        assert_says(&v, Good, "");
        assert_eq!(v.details.unwrap().remote, Some(address));
    }
    server.abort();
}

#[tokio::test]
async fn health_and_methods_are_judged_by_what_a_real_server_says() {
    let (address, server) = tonic_server(false, false).await;
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
        let v = once(grpc(address, call), 2000).await;
        assert_says(&v, outcome, detail);
        let saw = v.details.unwrap();
        assert!(saw.grpc_status.is_some() && saw.connect.is_some() && saw.first_byte.is_some(), "{saw:?}");
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

const CHECK: &str = "/grpc.health.v1.Health/Check";

#[tokio::test]
async fn reflection_of_either_version_is_enough_for_a_request_and_a_rule() {
    for (v1, v1alpha) in [(true, false), (false, true), (true, true)] {
        let (address, server) = tonic_server(v1, v1alpha).await;
        let of = |service: &str, jq: &str| {
            grpc(address, call(unary(CHECK, &format!("{{\"service\": {service:?}}}"), jq)))
        };
        assert_says(
            &once(of("good.Service", ".status == \"SERVING\""), 5000).await,
            Good,
            "status OK, answer 2 bytes",
        );
        assert_says(
            &once(of("bad.Service", ".status == \"SERVING\""), 5000).await,
            Bad,
            "jq gave false, want true",
        );
        assert_says(
            &once(of("no.Service", ""), 5000).await,
            Bad,
            "status NOT_FOUND (service not registered), want OK",
        );
        let text = |text: &str| GrpcMethod { text: Some(text.into()), ..unary(CHECK, "", "") };
        assert_says(&once(grpc(address, call(text("\"SERVING\""))), 5000).await, Good, "status OK");
        assert_says(&once(grpc(address, call(text("NOT_SERVING"))), 5000).await, Bad, "does not hold");
        let v = once(grpc(address, call(unary(CHECK, "{\"servis\": 1}", ""))), 5000).await;
        assert_says(
            &v,
            Bad,
            "request: this is no grpc.health.v1.HealthCheckRequest: unrecognized field name 'servis'",
        );
        let v = once(grpc(address, call(unary("/grpc.health.v1.Health/Chek", "{}", ""))), 5000).await;
        assert_says(&v, Bad, "grpc.health.v1.Health has no method Chek (it has: Check, Watch)");
        let v = once(grpc(address, call(unary("/grpc.health.v1.Health/Watch", "{}", ""))), 5000).await;
        assert_says(&v, Bad, "is a streaming method: only unary ones can be checked");
        let v = once(grpc(address, call(unary("/no.Such/Method", "{}", ""))), 5000).await;
        assert_says(
            &v,
            Bad,
            "the server's reflection does not know no.Such (NOT_FOUND (symbol 'no.Such' not found))",
        );
        server.abort();
    }
    let (address, _) = tonic_server(false, false).await;
    let v = once(grpc(address, call(unary(CHECK, "{}", ""))), 5000).await;
    assert_says(&v, Bad, "the server has no reflection service: give the check a descriptor set");
}

const LOOK: &str = "/bank.v1.Ledger/Look";
const LOOK_REQUEST: &str = r#"{"account": "a-1", "depth": 3, "packed": [1, 300], "expanded": [1, 2],
    "filter": {"only": "x", "also": {"only": "y"}}, "limits": {"day": "5"},
    "since": "2026-01-02T03:04:05Z", "kind": "LOAN", "token": "AAE="}"#;
// These were made by protobuf's own library for Python.
const LOOK_BYTES: &str =
    "0a03612d3110031a0301ac02200120022b0a0178130a0179142c32070a036461791005420608a5ebdcca06480252020001";
const REPLY_BYTES: &str = concat!(
    "0a0f080c130a0341204214180122020102120608a5ebdcca061a040a02686922270a21747970652e676f6f676c65",
    "617069732e636f6d2f62616e6b2e76312e456e747279120208072a020201350000003f3a05350000c03f"
);

#[tokio::test]
async fn a_service_in_an_edition_is_asked_and_understood_through_reflection() {
    let reflection = reflect(BANK, BANK_SYMBOLS);
    let address = grpc_server(move |path, messages| match path {
        LOOK if messages == [hex(LOOK_BYTES)] => Reply::ok(vec![hex(REPLY_BYTES)]),
        LOOK => Reply::status(3, "not the bytes that protobuf makes"),
        path if path == REFLECTION[0] => reflection(messages),
        _ => Reply::status(12, ""),
    })
    .await;
    let jq = r#".entry.owner.fullName == "A B" and .extra.balance == "7" and .kinds == ["LOAN", "SAVINGS"]"#;
    let v = once(grpc(address, call(unary(LOOK, LOOK_REQUEST, jq))), 5000).await;
    assert_says(&v, Good, "status OK");
    // And through the file of protoc, in which the server has no say.
    let set = GrpcMethod { descriptor_set: Some(descriptor_set("bank.pb")), ..unary(LOOK, LOOK_REQUEST, jq) };
    assert_says(&once(grpc(address, call(set)), 5000).await, Good, "status OK");
    let v = once(grpc(address, call(unary(LOOK, "{}", jq))), 5000).await;
    assert_says(&v, Bad, "status INVALID_ARGUMENT (not the bytes that protobuf makes), want OK");
}

#[tokio::test]
async fn imports_that_a_server_does_not_know_are_done_without() {
    // The method's file imports two files that nobody has, before and after the one that matters.
    let mut set = files(BANK);
    let file = set.remove("bank.proto").unwrap();
    let file = [field(3, b"a/none.proto"), file, field(3, b"z/none.proto")].concat();
    set.insert("bank.proto".into(), [field(1, b"bank.proto"), file].concat());
    let set: Vec<u8> = set.values().flat_map(|f| field(1, f)).collect();
    let reflection = reflect(&set, BANK_SYMBOLS);
    for ends_at_the_first in [false, true] {
        let reflection = reflection.clone();
        let address = grpc_server(move |path, messages| {
            if path != REFLECTION[1] {
                return if path == LOOK { Reply::ok(vec![hex(REPLY_BYTES)]) } else { Reply::status(12, "") };
            }
            let mut reply = reflection(messages);
            if let (true, Some(at)) =
                (ends_at_the_first, reply.messages.iter().position(|m| *m == not_found()))
            {
                reply.messages.truncate(at);
                reply.status = 5;
            }
            reply
        })
        .await;
        let v = once(grpc(address, call(unary(LOOK, LOOK_REQUEST, ".rate == 0.5"))), 5000).await;
        assert_says(&v, Good, "status OK");
    }
}

#[tokio::test]
async fn what_the_server_said_of_its_types_is_kept_until_it_no_longer_fits() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    static MODE: AtomicUsize = AtomicUsize::new(0);
    let reflection = reflect(BANK, BANK_SYMBOLS);
    let address = grpc_server(move |path, messages| {
        let mode = MODE.load(Ordering::SeqCst);
        if path == REFLECTION[0] {
            ASKED.fetch_add(1, Ordering::SeqCst);
            if mode == 2 {
                return Reply::status(14, "reflection is broken");
            }
            // Whoever asks again is told what is true by then.
            let _ = MODE.compare_exchange(1, 0, Ordering::SeqCst, Ordering::SeqCst);
            return reflection(messages);
        }
        match mode {
            1 => Reply::status(12, "moved"),
            _ => Reply::ok(vec![hex(REPLY_BYTES)]),
        }
    })
    .await;
    let prepared = ready(grpc(address, call(unary(LOOK, "{}", ".rate == 0.5"))));
    assert_says(&prepared.run(5 * SECOND).await, Good, "status OK");
    let first = ASKED.load(Ordering::SeqCst);
    assert!((1..=3).contains(&first), "{first} rounds");
    for _ in 0..5 {
        assert_says(&prepared.run(5 * SECOND).await, Good, "status OK");
    }
    assert_eq!(ASKED.load(Ordering::SeqCst), first, "asked again for nothing");
    // The server changes: the run that meets it asks again and is good.
    MODE.store(1, Ordering::SeqCst);
    assert_says(&prepared.run(5 * SECOND).await, Good, "status OK");
    assert!(ASKED.load(Ordering::SeqCst) > first, "a server that changed was not asked again");
    // Reflection that fails is no harm while the types are known.
    MODE.store(2, Ordering::SeqCst);
    assert_says(&prepared.run(5 * SECOND).await, Good, "status OK");
    // Nor when it is time to ask again.
    let later = || async {
        tokio::time::pause();
        tokio::time::advance(301 * SECOND).await;
        tokio::time::resume();
    };
    later().await;
    let asked = ASKED.load(Ordering::SeqCst);
    assert_says(&prepared.run(5 * SECOND).await, Good, "status OK");
    assert_eq!(ASKED.load(Ordering::SeqCst), asked + 1, "what is old was not asked again");
    MODE.store(0, Ordering::SeqCst);
    later().await;
    for _ in 0..3 {
        assert_says(&prepared.run(5 * SECOND).await, Good, "status OK");
    }
    assert_eq!(ASKED.load(Ordering::SeqCst), asked + 1 + first, "asked once in five minutes");
    MODE.store(2, Ordering::SeqCst);
    // To one that knows nothing yet, it is.
    let v = once(grpc(address, call(unary(LOOK, "{}", ".rate == 0.5"))), 5000).await;
    assert_says(&v, Bad, "the server's reflection said UNAVAILABLE (reflection is broken)");
}

#[tokio::test]
async fn hostile_reflection_costs_neither_time_nor_memory() {
    type Say = fn(usize, Vec<Vec<u8>>) -> Reply;
    // A file that defines nothing and imports the next one.
    let endless: Say = |n, questions| {
        let file = |i: usize| {
            [
                field(1, format!("{n}-{i}.proto").as_bytes()),
                field(3, format!("{}-{i}.proto", n + 1).as_bytes()),
            ]
            .concat()
        };
        Reply::ok((0..questions.len()).map(|i| descriptors(&[&file(i)])).collect())
    };
    let cycle: Say = |_, questions| {
        let file =
            |name: &str, import: &str| [field(1, name.as_bytes()), field(3, import.as_bytes())].concat();
        Reply::ok(questions.iter().map(|_| descriptors(&[&file("a", "b"), &file("b", "a")])).collect())
    };
    let huge: Say = |_, _| Reply::ok(vec![descriptors(&[&vec![0x4a; 9 << 20]])]);
    let many: Say = |_, _| {
        let import = field(3, &[b'x'; 64]);
        let imports: Vec<u8> = (0..70_000).flat_map(|_| import.clone()).collect();
        Reply::ok(vec![descriptors(&[&[field(1, b"a"), imports].concat()])])
    };
    let cases: [(&str, Say, &str); 8] = [
        ("imports without end", endless, "not complete after 64 rounds"),
        ("imports in a circle", cycle, "does not know bank.v1.Ledger"),
        ("a huge file", huge, "is longer than 8388608"),
        ("many imports", many, "more than 65536 elements"),
        ("no answer", |_, _| Reply::ok(Vec::new()), "the server's reflection said OK"),
        ("garbage", |_, _| Reply::ok(vec![vec![0xff; 100]]), "reflection answer cannot be read"),
        ("a broken file", |_, _| Reply::ok(vec![descriptors(&[&[0xff; 30]])]), "a descriptor cannot be read"),
        (
            "nothing known",
            |_, q| Reply::ok(vec![not_found(); q.len()]),
            "does not know bank.v1.Ledger (no such thing)",
        ),
    ];
    for (name, say, want) in cases {
        let n = AtomicUsize::new(0);
        let address = grpc_server(move |path, messages| {
            if path == REFLECTION[0] {
                say(n.fetch_add(1, Ordering::SeqCst), messages)
            } else {
                Reply::status(12, "")
            }
        })
        .await;
        let v = once(grpc(address, call(unary(LOOK, "{}", ""))), 20_000).await;
        assert!(v.outcome == Bad && v.detail.contains(want), "{name}: {v:?}");
    }
}

#[tokio::test]
async fn an_answer_is_one_message_of_its_type_and_of_bounded_length() {
    let long = 2 << 20;
    let cases: [(&str, Reply, &str); 6] = [
        ("none", Reply::ok(Vec::new()), "the answer has no message"),
        ("two", Reply::ok(vec![Vec::new(), Vec::new()]), "more than one message"),
        ("long", Reply::ok(vec![vec![0; long]]), "is longer than 1048576"),
        ("another type", Reply::ok(vec![vec![0x0d, 1]]), "the answer is no bank.v1.LookReply"),
        ("an unknown status", Reply::status(77, ""), "status code 77, want OK"),
        (
            "a status in words",
            Reply::status(9, "not%20yet%3A%20%E2%82%AC"),
            "FAILED_PRECONDITION (not yet: \u{20ac})",
        ),
    ];
    for (name, reply, want) in cases {
        let reply = std::sync::Mutex::new(Some(reply));
        let address = grpc_server(move |_, _| reply.lock().unwrap().take().unwrap()).await;
        let set = GrpcMethod { descriptor_set: Some(descriptor_set("bank.pb")), ..unary(LOOK, "{}", "true") };
        let v = ready(grpc(address, call(set))).run(10 * SECOND).await;
        assert!(v.outcome == Bad && v.detail.contains(want), "{name}: {v:?}");
    }
}

/// An HTTP/2 frame.
fn h2(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// `:status: 200` and `content-type: application/grpc`, in HPACK.
fn headers(flags: u8) -> Vec<u8> {
    h2(1, flags, 1, &[&[0x88, 0x0f, 0x10, 16][..], b"application/grpc"].concat())
}

/// Reads until the headers of a request have come, so that what is sent then is an answer.
fn await_request(stream: &mut TcpStream) {
    let mut heard = vec![0; 24];
    let mut head = [0; 9];
    if stream.read_exact(&mut heard).is_err() {
        return;
    }
    while stream.read_exact(&mut head).is_ok() {
        heard.resize(u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize, 0);
        if stream.read_exact(&mut heard).is_err() || head[3] == 1 {
            return;
        }
    }
}

#[tokio::test]
async fn a_server_that_stops_in_any_phase_is_bad_within_the_timeout() {
    let settings = || h2(4, 0, 0, &[]);
    let ends: [(&str, Vec<u8>, bool, &str); 9] = [
        ("accepts and says nothing", Vec::new(), true, "timed out"),
        ("settings and silence", settings(), true, "timed out"),
        ("headers without trailers", [settings(), headers(4)].concat(), true, "timed out"),
        (
            "half a message",
            [settings(), headers(4), h2(0, 0, 1, &[0, 0, 0, 0, 9, 1])].concat(),
            true,
            "timed out",
        ),
        ("a reset", [settings(), h2(3, 0, 1, &[0, 0, 0, 2])].concat(), false, "answer"),
        ("GOAWAY at once", [settings(), h2(7, 0, 0, &[0; 8])].concat(), false, "answer"),
        ("the end after the settings", settings(), false, "answer"),
        ("headers that end the call", [settings(), headers(5)].concat(), false, "without a gRPC status"),
        (
            "half a message and the end",
            [settings(), headers(4), h2(0, 1, 1, &[0, 0, 0, 0, 9, 1])].concat(),
            false,
            "ends within a message",
        ),
    ];
    for (name, bytes, stays, want) in ends {
        let address = server(move |mut stream| {
            let mut buffer = [0; 4096];
            await_request(&mut stream);
            let _ = stream.write_all(&bytes);
            let until = Instant::now() + if stays { 20 * SECOND } else { SECOND / 5 };
            let _ = stream.set_read_timeout(Some(SECOND / 20));
            while Instant::now() < until {
                match stream.read(&mut buffer) {
                    Ok(0) => return,
                    Ok(_) => {}
                    Err(_) => {}
                }
            }
        });
        for call in [health(""), method(LOOK, &[0, 4, 14]), call(unary(LOOK, "{}", ""))] {
            let start = Instant::now();
            let v = once(grpc(address, call), if stays { 300 } else { 10_000 }).await;
            assert!(v.outcome == Bad && v.detail.contains(want), "{name}: {v:?}");
            assert_eq!(v.timed_out, stays, "{name}: {v:?}");
            assert!(start.elapsed() < 8 * SECOND, "{name}: {:?}", start.elapsed());
        }
    }
}

#[tokio::test]
async fn endless_and_dripping_answers_end_with_the_bound_or_the_timeout() {
    let endless = server(|mut stream| {
        await_request(&mut stream);
        let _ = stream.write_all(&[h2(4, 0, 0, &[]), headers(4)].concat());
        let data = h2(0, 0, 1, &[0; 16_000]);
        while stream.write_all(&data).is_ok() {}
    });
    let v = once(grpc(endless, health("")), 10_000).await;
    assert!(v.outcome == Bad && !v.timed_out, "{v:?}");
    let drip = server(|mut stream| {
        await_request(&mut stream);
        let _ = stream.write_all(&[h2(4, 0, 0, &[]), headers(4)].concat());
        while stream.write_all(&h2(0, 0, 1, &[0])).is_ok() {
            std::thread::sleep(SECOND / 50);
        }
    });
    let v = once(grpc(drip, health("")), 300).await;
    assert_says(&v, Bad, "timed out after 300 ms while waiting for the answer");
}

#[tokio::test]
async fn what_is_not_grpc_is_bad() {
    let http1 = probe_support::answers("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let v = once(grpc(http1, health("")), 1000).await;
    assert!(v.outcome == Bad, "{v:?}");
    let nonsense = server(|mut s| {
        let _ = s.write_all(&[0xff; 1000]);
        let _ = s.read(&mut [0; 100]);
    });
    let v = once(grpc(nonsense, health("")), 1000).await;
    assert!(v.outcome == Bad && !v.timed_out, "{v:?}");
}

#[tokio::test]
async fn the_first_run_after_a_server_is_back_is_good() {
    let answer: Answer = Arc::new(|_, _| Reply::ok(vec![vec![8, 1]]));
    for keep_alive in [false, true] {
        let (address, mut task) = server_at("127.0.0.1:0".parse().unwrap(), Arc::clone(&answer)).await;
        let check = grpc_support::probe(address, health(""));
        let prepared = ready(Probe::Grpc(Box::new(GrpcProbe { keep_alive, ..check })));
        for round in 0..3 {
            assert_says(&prepared.run(5 * SECOND).await, Good, "SERVING");
            task.abort();
            let _ = (&mut task).await;
            // Many failures in a row leave nothing behind that would delay the next run.
            for _ in 0..20 {
                let v = prepared.run(5 * SECOND).await;
                assert!(v.outcome == Bad, "round {round}: {v:?}");
            }
            task = server_at(address, Arc::clone(&answer)).await.1;
            let v = prepared.run(5 * SECOND).await;
            assert!(v.outcome == Good, "round {round}, keep_alive {keep_alive}: {v:?}");
        }
        task.abort();
    }
}

#[tokio::test]
async fn a_kept_connection_serves_many_runs_and_one_that_ended_is_opened_again() {
    static OPENED: AtomicUsize = AtomicUsize::new(0);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let answer: Answer = Arc::new(|_, _| Reply::ok(vec![vec![8, 1]]));
        let mut last: Option<tokio::task::JoinHandle<()>> = None;
        while let Ok((stream, _)) = listener.accept().await {
            if let Some(last) = last.take() {
                last.abort();
            }
            OPENED.fetch_add(1, Ordering::SeqCst);
            last = Some(tokio::spawn(serve(stream, Arc::clone(&answer))));
        }
    });
    let kept = |keep_alive| {
        let probe = grpc_support::probe(address, health(""));
        ready(Probe::Grpc(Box::new(GrpcProbe { keep_alive, ..probe })))
    };
    let prepared = kept(true);
    for _ in 0..10 {
        assert_says(&prepared.run(5 * SECOND).await, Good, "SERVING");
    }
    assert_eq!(OPENED.load(Ordering::SeqCst), 1);
    // Another connection ends the kept one.
    assert_says(&kept(false).run(5 * SECOND).await, Good, "SERVING");
    assert_says(&prepared.run(5 * SECOND).await, Good, "SERVING");
    assert_eq!(OPENED.load(Ordering::SeqCst), 3);
    server.abort();
}

#[tokio::test]
async fn a_kept_connection_that_ends_as_it_is_used_is_no_failure_of_the_service() {
    let address = server(|mut stream| {
        await_request(&mut stream);
        let message = h2(0, 0, 1, &framed(&[8, 1]));
        let status = [&[0, 11][..], b"grpc-status", &[1], b"0"].concat();
        let _ = stream.write_all(&[h2(4, 0, 0, &[]), headers(4), message, h2(1, 5, 1, &status)].concat());
        // The next request is heard and not answered. What was read already may be part of it.
        let mut octet = [0; 9];
        while stream.read_exact(&mut octet).is_ok() && octet[3] != 1 {
            let length = u32::from_be_bytes([0, octet[0], octet[1], octet[2]]);
            let _ = stream.read_exact(&mut vec![0; length as usize]);
        }
    });
    let probe = GrpcProbe { keep_alive: true, ..grpc_support::probe(address, health("")) };
    let prepared = ready(Probe::Grpc(Box::new(probe)));
    for _ in 0..5 {
        assert_says(&prepared.run(10 * SECOND).await, Good, "SERVING");
    }
}

#[tokio::test]
async fn tls_proves_both_ends_and_warns_of_a_certificate_that_expires() {
    let authority = Authority::new();
    let mut roots = RootCertStore::empty();
    roots.add(authority.issuer.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build().unwrap();
    let (certificate, key) = authority.good("grpc.example.test");
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let answer: Answer = Arc::new(|_, _| Reply::ok(vec![vec![8, 1]]));
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, answer) = (acceptor.clone(), Arc::clone(&answer));
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    serve(stream, answer).await;
                }
            });
        }
    });
    let (certificate, key) = authority.good("probe");
    let (cert_file, key_file) =
        (authority.dir.path().join("probe.pem"), authority.dir.path().join("probe.key"));
    std::fs::write(&cert_file, certificate.pem()).unwrap();
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    let good = TlsOptions {
        client_cert: Some((cert_file, key_file)),
        ..probe_support::tls("grpc.example.test", Some(authority.file()))
    };
    let cases = [
        (good.clone(), Good, "server is SERVING"),
        // The alert that says why may be overtaken by the end of the connection.
        (TlsOptions { client_cert: None, ..good.clone() }, Bad, ""),
        (TlsOptions { ca_cert: None, ..good.clone() }, Bad, "UnknownIssuer"),
        (TlsOptions { server_name: "other.example.test".into(), ..good.clone() }, Bad, "not valid for name"),
        (
            TlsOptions { ca_cert: None, insecure: true, server_name: "x".into(), ..good.clone() },
            Good,
            "SERVING",
        ),
        (TlsOptions { min_remaining: DAY * 20, ..good.clone() }, Good, "SERVING"),
        (TlsOptions { min_remaining: DAY * 40, ..good }, Bad, "want 40 days"),
    ];
    for (tls, outcome, detail) in cases {
        let check = GrpcProbe { tls: Some(tls), ..grpc_support::probe(address, health("")) };
        let v = once(Probe::Grpc(Box::new(check)), 10_000).await;
        assert_says(&v, outcome, detail);
        let saw = v.details.unwrap();
        let known = saw.tls.is_some() && saw.certificate_expires.is_some();
        assert!(outcome == Bad || known, "{saw:?}");
    }
    server.abort();
}

#[tokio::test]
async fn an_answer_that_takes_long_to_read_holds_up_nobody() {
    // A million numbers, which have no name, in as many octets.
    let entries = [&[0x2a, 0xc0, 0x84, 0x3d][..], &[9; 1_000_000]].concat();
    let address = grpc_server(move |_, _| Reply::ok(vec![entries.clone()])).await;
    let set = GrpcMethod { descriptor_set: Some(descriptor_set("bank.pb")), ..unary(LOOK, "{}", "true") };
    let prepared = Arc::new(ready(grpc(address, call(set))));
    let long = tokio::spawn({
        let prepared = Arc::clone(&prepared);
        async move { prepared.run(60 * SECOND).await }
    });
    // On the one thread that this test has, time goes on all the while.
    let mut longest = Duration::ZERO;
    while !long.is_finished() {
        let start = Instant::now();
        tokio::time::sleep(SECOND / 100).await;
        longest = longest.max(start.elapsed());
    }
    let v = long.await.unwrap();
    assert_says(&v, Good, "answer 1000004 bytes");
    assert!(longest < v.took / 2, "{longest:?} of {v:?}");
}

#[tokio::test]
async fn a_unix_socket_is_a_place_to_connect_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("grpc.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let server = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            serve(stream, Arc::new(|_, _| Reply::ok(vec![vec![8, 1]]))).await;
        }
    });
    let mut check = grpc_support::probe("127.0.0.1:1".parse().unwrap(), health(""));
    check.target = Target::Unix(path);
    assert_says(&ready(Probe::Grpc(Box::new(check.clone()))).run(5 * SECOND).await, Good, "SERVING");
    server.abort();
    check.target = Target::Unix(dir.path().join("none"));
    assert_says(&ready(Probe::Grpc(Box::new(check))).run(5 * SECOND).await, Bad, "no such file");
}
