//! The checks that are not HTTP: udp, dns, ping and grpc, each against servers on loopback that answer well or badly.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::process::Command;
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, CNAME};
use hickory_proto::rr::{Name, RData, Record};
use probe_support::*;
use standfast_core::health::Outcome::{Bad, Good};
use standfast_core::plan::{
    Check, DnsProbe, DnsType, GrpcCall, GrpcProbe, PingProbe, Probe, Target, UdpProbe,
};
use standfast_io::probe::prepare;

// udp

/// A UDP server that answers each datagram with what `answer` makes of it.
fn udp_server(answer: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((n, from)) = socket.recv_from(&mut buffer) {
            for datagram in answer(&buffer[..n]) {
                let _ = socket.send_to(&datagram, from);
            }
        }
    });
    address
}

fn udp(target: SocketAddr, require_response: bool) -> Probe {
    Probe::Udp(UdpProbe {
        target: Target::Address(target),
        payload: b"ping".to_vec(),
        wait: Duration::from_millis(80),
        require_response,
    })
}

#[tokio::test]
async fn a_udp_answer_is_good_a_refusal_bad_and_silence_what_was_asked() {
    let echo = udp_server(|d| vec![d.to_vec()]);
    assert_says(&once(udp(echo, true), 500).await, Good, "answered 4 bytes");
    let silent = udp_server(|_| Vec::new());
    assert_says(&once(udp(silent, false), 500).await, Good, "did not answer within 80 ms");
    let v = once(udp(silent, true), 500).await;
    assert_says(&v, Bad, "no answer from");
    assert!(!v.timed_out);
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for required in [false, true] {
        assert_says(&once(udp(closed, required), 500).await, Bad, &format!("{closed}: connection refused"));
    }
}

// dns

fn dns(resolver: SocketAddr, names: &[&str], query_type: DnsType) -> Probe {
    Probe::Dns(DnsProbe {
        resolver: Target::Address(resolver),
        names: names.iter().map(|n| (*n).to_owned()).collect(),
        query_type,
    })
}

/// The right answer to `query`, before it is spoiled.
fn right(query: &[u8]) -> Message {
    let query = Message::from_vec(query).unwrap();
    let mut answer = Message::new(query.metadata.id, MessageType::Response, OpCode::Query);
    answer.queries.clone_from(&query.queries);
    let name = query.queries[0].name().clone();
    answer.add_answer(Record::from_rdata(name, 60, RData::A(A(Ipv4Addr::LOCALHOST))));
    answer
}

#[tokio::test]
async fn a_dns_answer_is_good_if_it_holds_what_was_asked() {
    type Spoil = fn(&mut Message);
    let cases: [(Spoil, DnsType, _, &str); 8] = [
        (|_| (), DnsType::A, Good, "2 A records for 2 names"),
        (|_| (), DnsType::Aaaa, Bad, "a.example. AAAA: no such record in the answer"),
        (|m| m.answers.clear(), DnsType::A, Bad, "a.example. A: no such record in the answer"),
        (|m| m.metadata.response_code = ResponseCode::NXDomain, DnsType::A, Bad, "a.example. A: NXDOMAIN"),
        (|m| m.metadata.response_code = ResponseCode::ServFail, DnsType::A, Bad, "a.example. A: SERVFAIL"),
        (
            |m| {
                m.metadata.response_code = ResponseCode::Refused;
                m.queries.clear();
            },
            DnsType::A,
            Bad,
            "REFUSED",
        ),
        (
            |m| {
                let alias = RData::CNAME(CNAME(Name::from_ascii("b.example.").unwrap()));
                m.answers = vec![Record::from_rdata(m.queries[0].name().clone(), 60, alias)];
            },
            DnsType::A,
            Bad,
            "no such record in the answer",
        ),
        (|m| m.metadata.response_code = ResponseCode::FormErr, DnsType::A, Bad, "FORMERR"),
    ];
    for (spoil, kind, outcome, detail) in cases {
        let server = udp_server(move |query| {
            let mut answer = right(query);
            spoil(&mut answer);
            vec![answer.to_vec().unwrap()]
        });
        assert_says(&once(dns(server, &["a.example", "b.example"], kind), 1000).await, outcome, detail);
    }
}

#[test]
fn dns_names_with_underscores_are_names_and_others_are_refused() {
    let resolver = "127.0.0.1:53".parse().unwrap();
    assert!(prepare(&Check::new(dns(resolver, &["_sip._tcp.example.test"], DnsType::Srv))).is_ok());
    assert!(prepare(&Check::new(dns(resolver, &["4.3.2.1.in-addr.arpa"], DnsType::Ptr))).is_ok());
    for wrong in ["a..b", &"a".repeat(64)] {
        let e = prepare(&Check::new(dns(resolver, &[wrong], DnsType::A))).unwrap_err();
        assert!(e.contains(wrong), "{e}");
    }
}

#[tokio::test]
async fn dns_answers_to_other_questions_are_passed_over() {
    let server = udp_server(|query| {
        let good = right(query);
        let mut other_id = good.clone();
        other_id.metadata.id ^= 1;
        let mut other_name = good.clone();
        let name = Name::from_ascii("evil.example.").unwrap();
        other_name.queries[0].set_name(name);
        let mut question = good.clone();
        question.metadata.message_type = MessageType::Query;
        [other_id, other_name, question, good].iter().map(|m| m.to_vec().unwrap()).collect()
    });
    assert_says(&once(dns(server, &["a.example"], DnsType::A), 1000).await, Good, "1 A records for 1 name");
    let nonsense = udp_server(|query| vec![vec![], vec![1], [&query[..2], &[0x80, 0, 0, 9, 0xff]].concat()]);
    assert_says(
        &once(dns(nonsense, &["a.example"], DnsType::A), 1000).await,
        Bad,
        "the answer cannot be read",
    );
    let silent = udp_server(|_| Vec::new());
    let v = once(dns(silent, &["a.example"], DnsType::A), 100).await;
    assert_says(&v, Bad, "timed out after 100 ms while waiting for the answer of");
}

#[tokio::test]
async fn a_cut_dns_answer_is_asked_for_by_tcp() {
    let server = udp_server(|query| {
        let mut cut = query[..12].to_vec();
        cut[2] = 0x82;
        // Cut in the middle of nowhere.
        cut.extend_from_slice(&[7, b'a']);
        vec![cut]
    });
    let v = once(dns(server, &["a.example"], DnsType::A), 1000).await;
    assert_says(&v, Bad, "connection refused");
    let tcp = TcpListener::bind(server).unwrap();
    std::thread::spawn(move || {
        for mut stream in tcp.incoming().flatten() {
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut query).unwrap();
            let mut answer = right(&query);
            let record = answer.answers[0].clone();
            answer.answers = vec![record; 500];
            let wire = answer.to_vec().unwrap();
            stream.write_all(&u16::try_from(wire.len()).unwrap().to_be_bytes()).unwrap();
            stream.write_all(&wire).unwrap();
        }
    });
    let v = once(dns(server, &["a.example"], DnsType::A), 2000).await;
    assert_says(&v, Good, "500 A records for 1 name");
}

#[tokio::test]
async fn a_server_from_before_edns_is_asked_again_without() {
    let server = udp_server(|query| {
        let with_edns = Message::from_vec(query).unwrap().edns.is_some();
        let mut answer = right(query);
        if with_edns {
            answer.metadata.response_code = ResponseCode::FormErr;
            answer.answers.clear();
        }
        vec![answer.to_vec().unwrap()]
    });
    assert_says(&once(dns(server, &["a.example"], DnsType::A), 1000).await, Good, "1 A records");
}

// ping

fn ping(target: IpAddr) -> PingProbe {
    PingProbe {
        target,
        source: None,
        privileged: false,
        count: 3,
        interval: Duration::from_millis(10),
        timeout: Duration::from_millis(500),
        max_loss_permille: 0,
    }
}

/// Whether this process may open raw sockets, without which nothing here can be pinged; said aloud if not.
fn may_ping(test: &str) -> bool {
    let raw =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::RAW, Some(socket2::Protocol::ICMPV4));
    if let Err(e) = &raw {
        eprintln!("SKIP {test}: no raw socket: {e}");
    }
    raw.is_ok()
}

#[tokio::test]
async fn loopback_answers_pings_of_both_families_over_both_sockets() {
    if !may_ping("loopback_answers_pings_of_both_families_over_both_sockets") {
        return;
    }
    let v6 = std::fs::read_to_string("/proc/net/if_inet6").is_ok_and(|t| !t.is_empty());
    for target in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        if target.is_ipv6() && !v6 {
            eprintln!("SKIP ping of ::1: no IPv6 address on this host");
            continue;
        }
        for privileged in [false, true] {
            let probe = Probe::Ping(PingProbe { privileged, source: Some(target), ..ping(target) });
            assert_says(&once(probe, 1000).await, Good, "3 of 3 packets back");
        }
    }
    let strange =
        PingProbe { source: Some("192.0.2.77".parse().unwrap()), ..ping(Ipv4Addr::LOCALHOST.into()) };
    let v = once(Probe::Ping(strange), 1000).await;
    assert_says(&v, Bad, "source 192.0.2.77: cannot assign requested address");
}

#[test]
fn lost_pings_are_counted_against_the_ratio_and_never_time_the_run_out() {
    let test = "lost_pings_are_counted_against_the_ratio_and_never_time_the_run_out";
    // A network namespace of this thread's own; it is gone with the thread.
    std::thread::spawn(move || {
        if !own_namespace() {
            eprintln!("SKIP {test}: no network namespace: {}", std::io::Error::last_os_error());
            return;
        }
        let run = |program: &str, arguments: &[&str]| {
            Command::new(program).args(arguments).status().is_ok_and(|s| s.success())
        };
        assert!(run("ip", &["link", "set", "lo", "up"]));
        let rules = "table ip t { chain c { type filter hook input priority 0; icmp type echo-request icmp sequence 1 drop; }; }";
        if !run("nft", &[rules]) {
            eprintln!("SKIP {test}: nft cannot set a rule");
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let target = IpAddr::from(Ipv4Addr::LOCALHOST);
        let with = |count, max_loss_permille, timeout| {
            let timeout = Duration::from_millis(timeout);
            let probe = PingProbe { count, max_loss_permille, timeout, ..ping(target) };
            runtime.block_on(once(Probe::Ping(probe), 150))
        };
        // The wait for each packet is as long as the whole run: the loss is still counted.
        for timeout in [20, 150] {
            let v = with(3, 400, timeout);
            assert_says(&v, Good, "2 of 3 packets back");
            assert!(!v.timed_out);
            let v = with(3, 300, timeout);
            assert_says(&v, Bad, "1 of 3 packets lost, 0 may be");
            assert!(!v.timed_out);
        }
        assert_says(&with(1, 0, 20), Good, "1 of 1 packets back");
        // A name that nobody can be asked about; twice, to see that nothing is left behind.
        let unheard = || Probe::Udp(UdpProbe {
            target: Target::Name("no-such-host.invalid".into(), 9),
            payload: vec![0],
            wait: Duration::from_millis(50),
            require_response: false,
        });
        assert_eq!(runtime.block_on(once(unheard(), 300)).outcome, Bad);
        let tasks = runtime.metrics().num_alive_tasks();
        assert_eq!(runtime.block_on(once(unheard(), 300)).outcome, Bad);
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(50)).await });
        assert!(runtime.metrics().num_alive_tasks() <= tasks, "a lookup left tasks");
        // A target without a route.
        let far = Probe::Ping(ping("192.0.2.1".parse().unwrap()));
        assert_says(&runtime.block_on(once(far, 150)), Bad, "network is unreachable");
    })
    .join()
    .unwrap();
}

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
