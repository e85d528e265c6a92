//! The `dns` check against scripted servers on loopback: answers that are right, wrong, cut, forged, late or broken.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, CNAME, TXT};
use hickory_proto::rr::{Name, RData, Record};
use probe_support::*;
use standfast_core::health::Outcome::{Bad, Good};
use standfast_core::health::Verdict;
use standfast_core::plan::{
    Check, DnsProbe, DnsRcode, DnsTransport, DnsType, DnsWant, Probe, Target, TlsOptions, Via,
};
use standfast_io::probe::prepare;

fn probe(resolver: SocketAddr, names: &[&str], query_type: DnsType) -> DnsProbe {
    let names = names.iter().map(|n| (*n).to_owned()).collect();
    DnsProbe::new(Target::Address(resolver), names, query_type)
}

fn dns(resolver: SocketAddr, names: &[&str], query_type: DnsType) -> Probe {
    Probe::Dns(Box::new(probe(resolver, names, query_type)))
}

async fn ask(probe: DnsProbe, millis: u64) -> Verdict {
    once(Probe::Dns(Box::new(probe)), millis).await
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
async fn an_answer_is_good_if_it_holds_what_was_asked() {
    type Spoil = fn(&mut Message);
    let cases: [(Spoil, DnsType, _, &str); 8] = [
        (|_| (), DnsType::A, Good, "2 A records for 2 names"),
        (|_| (), DnsType::Aaaa, Bad, "a.example AAAA: no such record in the answer"),
        (|m| m.answers.clear(), DnsType::A, Bad, "a.example A: no such record in the answer"),
        (|m| m.metadata.response_code = ResponseCode::NXDomain, DnsType::A, Bad, "a.example A: NXDOMAIN"),
        (|m| m.metadata.response_code = ResponseCode::ServFail, DnsType::A, Bad, "a.example A: SERVFAIL"),
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
        assert_says(&once(dns(server, &["a.example", "b.example"], kind), 5000).await, outcome, detail);
    }
}

#[test]
fn names_with_underscores_are_names_and_others_are_refused() {
    let resolver = "127.0.0.1:53".parse().unwrap();
    assert!(prepare(&Check::new(dns(resolver, &["_sip._tcp.example.test"], DnsType::Srv))).is_ok());
    assert!(prepare(&Check::new(dns(resolver, &["4.3.2.1.in-addr.arpa"], DnsType::Ptr))).is_ok());
    for wrong in ["a..b", &"a".repeat(64)] {
        let e = prepare(&Check::new(dns(resolver, &[wrong], DnsType::A))).unwrap_err();
        assert!(e.contains(wrong), "{e}");
    }
}

#[tokio::test]
async fn answers_to_other_questions_are_passed_over() {
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
    assert_says(&once(dns(server, &["a.example"], DnsType::A), 5000).await, Good, "1 A records for 1 name");
    let nonsense = udp_server(|query| vec![vec![], vec![1], [&query[..2], &[0x80, 0, 0, 9, 0xff]].concat()]);
    assert_says(
        &once(dns(nonsense, &["a.example"], DnsType::A), 5000).await,
        Bad,
        "the answer cannot be read",
    );
    let silent = udp_server(|_| Vec::new());
    let v = once(dns(silent, &["a.example"], DnsType::A), 100).await;
    assert_says(&v, Bad, "timed out after 100 ms while waiting for the answer of");
}

#[tokio::test]
async fn a_cut_answer_is_asked_for_by_tcp() {
    let server = udp_server(|query| {
        let mut cut = query[..12].to_vec();
        cut[2] = 0x82;
        // Cut in the middle of nowhere.
        cut.extend_from_slice(&[7, b'a']);
        vec![cut]
    });
    let v = once(dns(server, &["a.example"], DnsType::A), 5000).await;
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
    let v = once(dns(server, &["a.example"], DnsType::A), 8000).await;
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
    assert_says(&once(dns(server, &["a.example"], DnsType::A), 5000).await, Good, "1 A records");
}

// Answers octet by octet, to a question for www.example.net with the identifier 0x1234, which is rewritten.

/// The question for the address of www.example.net, from the 13th octet of a message.
const QUESTION: &str = "03777777076578616d706c65036e657400 0001 0001";
/// www.example.net is an alias of host.example.net.
const ALIAS: &str = "c00c 0005 0001 0000003c 0007 04686f7374c010";
/// The address of host.example.net, whose name stands in the alias at octet 45.
const ADDRESS: &str = "c02d 0001 0001 0000003c 0004 c0000201";

/// Octets in hexadecimal.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(&d.iter().collect::<String>(), 16).unwrap()).collect()
}

/// What the same server answers by UDP, one after the other, and by TCP, each with the question's identifier.
fn scripted(by_udp: Vec<Vec<u8>>, by_tcp: Option<Vec<u8>>) -> SocketAddr {
    let with = |id: &[u8], mut answer: Vec<u8>| {
        for (to, from) in answer.iter_mut().zip(id) {
            *to = *from;
        }
        answer
    };
    let server = udp_server(move |query| by_udp.iter().map(|a| with(&query[..2], a.clone())).collect());
    if let Some(answer) = by_tcp {
        let tcp = TcpListener::bind(server).unwrap();
        std::thread::spawn(move || {
            for mut stream in tcp.incoming().flatten() {
                let mut query = [0; 14];
                if stream.read_exact(&mut query).is_ok() {
                    let answer = with(&query[2..4], answer.clone());
                    let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
                    let _ = stream.write_all(&[&length[..], &answer].concat());
                }
            }
        });
    }
    server
}

async fn www(server: SocketAddr, millis: u64) -> Verdict {
    ask(probe(server, &["www.example.net"], DnsType::A), millis).await
}

fn message(head: &str, rest: &[&str]) -> Vec<u8> {
    hex(&format!("{head} {QUESTION} {}", rest.concat()))
}

#[tokio::test]
async fn an_alias_with_its_address_is_good_and_an_alias_or_nothing_alone_is_not() {
    let both = message("1234 8180 0001 0002 0000 0000", &[ALIAS, ADDRESS]);
    let v = www(scripted(vec![both], None), 5000).await;
    assert_says(&v, Good, "1 A records for 1 name");
    let saw = v.details.unwrap();
    assert_eq!((saw.rcode.as_deref(), &saw.answers[..]), (Some("NOERROR"), &["192.0.2.1".to_owned()][..]));
    let alone = message("1234 8180 0001 0001 0000 0000", &[ALIAS]);
    let v = www(scripted(vec![alone], None), 5000).await;
    assert_says(
        &v,
        Bad,
        "www.example.net A: no such record in the answer, only an alias to host.example.net",
    );
    let empty = message("1234 8180 0001 0000 0000 0000", &[]);
    let v = www(scripted(vec![empty], None), 5000).await;
    assert_says(&v, Bad, "www.example.net A: no such record in the answer");
    // An address of a name that nobody asked about.
    let astray = message("1234 8180 0001 0001 0000 0000", &["c010 0001 0001 0000003c 0004 c0000201"]);
    assert_says(&www(scripted(vec![astray], None), 5000).await, Bad, "no such record in the answer");
    // An alias of itself.
    let circle = message("1234 8180 0001 0001 0000 0000", &["c00c 0005 0001 0000003c 0002 c00c"]);
    assert_says(&www(scripted(vec![circle], None), 5000).await, Bad, "no such record in the answer");
}

#[tokio::test]
async fn case_makes_no_difference() {
    let mut answer = message("1234 8180 0001 0002 0000 0000", &[ALIAS, ADDRESS]);
    answer[12..28].copy_from_slice(b"\x03wWw\x07eXample\x03neT");
    assert_says(&www(scripted(vec![answer.clone()], None), 5000).await, Good, "1 A records");
    let upper = probe(scripted(vec![answer], None), &["WWW.Example.NET"], DnsType::A);
    assert_says(&ask(upper, 5000).await, Good, "1 A records");
}

#[tokio::test]
async fn a_cut_answer_passes_if_that_by_tcp_does_and_else_is_told_as_truncated() {
    let cut = hex("1234 8380 0001 0000 0000 0000 03777777076578616d706c65036e657400 0001 0001");
    let whole = message("1234 8180 0001 0002 0000 0000", &[ALIAS, ADDRESS]);
    let server = |by_tcp: Option<&Vec<u8>>| scripted(vec![cut.clone()], by_tcp.cloned());
    assert_says(&www(server(Some(&whole)), 8000).await, Good, "1 A records");
    assert_says(&www(server(None), 8000).await, Bad, "truncated by UDP, and connect 127.0.0.1:");
    let again = www(server(Some(&cut)), 8000).await;
    assert_says(&again, Bad, "truncated by UDP, and www.example.net A: the answer by TCP");
    assert_says(&again, Bad, "is truncated");
    let empty = message("1234 8180 0001 0000 0000 0000", &[]);
    assert_says(&www(server(Some(&empty)), 8000).await, Bad, "no such record in the answer");
    let mut other = whole;
    other[14] = b'x';
    assert_says(&www(server(Some(&other)), 8000).await, Bad, "is to another question");
    // By TCP alone nothing is asked by UDP.
    let tcp = probe(server(Some(&other)), &["wxw.example.net"], DnsType::A);
    assert_says(&ask(DnsProbe { transport: DnsTransport::Tcp, ..tcp }, 8000).await, Good, "1 A records");
}

#[tokio::test]
async fn a_pointer_to_itself_is_bad_at_once() {
    let mut loops = message("1234 8180 0001 0001 0000 0000", &["c021 0001 0001 0000003c 0004 c0000201"]);
    assert_eq!(loops[33..35], [0xc0, 0x21]);
    let start = Instant::now();
    let v = www(scripted(vec![loops.clone()], None), 20_000).await;
    assert_says(&v, Bad, "www.example.net A: the answer cannot be read");
    assert!(!v.timed_out && start.elapsed() < Duration::from_secs(10), "{v:?}");
    // In the question itself.
    loops[12..14].copy_from_slice(&[0xc0, 0x0c]);
    assert_says(&www(scripted(vec![loops], None), 20_000).await, Bad, "the answer cannot be read");
}

#[tokio::test]
async fn what_is_no_answer_is_passed_over_until_the_time_is_up() {
    let good = message("1234 8180 0001 0002 0000 0000", &[ALIAS, ADDRESS]);
    let mut other_name = good.clone();
    other_name[13] = b'x';
    let mut other_type = good.clone();
    other_type[30] = 28;
    let mut query = good.clone();
    query[2] &= 0x7f;
    let mut two_questions = good.clone();
    two_questions[5] = 2;
    let wrong = vec![other_name, other_type, query, two_questions];
    let v = www(scripted(wrong.clone(), None), 2000).await;
    assert_says(&v, Bad, "about www.example.net; 4 that came were none");
    assert!(v.timed_out);
    let then_right = [wrong, vec![good]].concat();
    assert_says(&www(scripted(then_right, None), 8000).await, Good, "1 A records");
}

#[tokio::test]
async fn an_answer_with_a_wrong_identifier_or_of_another_sender_is_passed_over() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let asked: Arc<Mutex<Vec<(u16, u16)>>> = Arc::default();
    let seen = Arc::clone(&asked);
    std::thread::spawn(move || {
        let other = UdpSocket::bind("127.0.0.2:0").unwrap();
        let mut buffer = [0; 512];
        while let Ok((n, from)) = server.recv_from(&mut buffer) {
            let mut answer = right(&buffer[..n]);
            seen.lock().unwrap().push((from.port(), answer.metadata.id));
            let _ = other.send_to(&answer.to_vec().unwrap(), from);
            answer.metadata.id ^= 0x0100;
            let _ = server.send_to(&answer.to_vec().unwrap(), from);
        }
    });
    for _ in 0..8 {
        let v = ask(probe(address, &["a.example"], DnsType::A), 200).await;
        assert_says(&v, Bad, "timed out after 200 ms");
    }
    // Each question has a port and an identifier of its own.
    let asked = asked.lock().unwrap();
    let ports: BTreeSet<u16> = asked.iter().map(|a| a.0).collect();
    let ids: BTreeSet<u16> = asked.iter().map(|a| a.1).collect();
    assert!(asked.len() >= 8 && ports.len() >= 7 && ids.len() >= 7, "{asked:?}");
}

#[tokio::test]
async fn a_late_answer_is_not_taken_for_one_to_the_next_run() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        let mut before = None;
        // Each answer is sent when the next question is there, and to whoever asks then as well.
        while let Ok((n, from)) = server.recv_from(&mut buffer) {
            if let Some((answer, to)) = before.replace((right(&buffer[..n]).to_vec().unwrap(), from)) {
                let _ = server.send_to(&answer, to);
                let _ = server.send_to(&answer, from);
            }
        }
    });
    for _ in 0..4 {
        let v = ask(probe(address, &["a.example"], DnsType::A), 150).await;
        assert_says(&v, Bad, "timed out after 150 ms");
    }
}

// What is wanted

#[tokio::test]
async fn records_codes_and_authority_are_as_wanted_or_bad() {
    let server = udp_server(|query| {
        let mut answer = right(query);
        let name = answer.queries[0].name().clone();
        for last in [7, 7, 8] {
            let address = RData::A(A(Ipv4Addr::new(192, 0, 2, last)));
            answer.add_answer(Record::from_rdata(name.clone(), 60, address));
        }
        if name.to_ascii() == "gone.example." {
            answer.metadata.response_code = ResponseCode::NXDomain;
            answer.answers.clear();
        }
        answer.metadata.authoritative = name.to_ascii() == "own.example.";
        vec![answer.to_vec().unwrap()]
    });
    let set = |all: &[&str]| -> BTreeSet<String> { all.iter().map(|a| (*a).to_owned()).collect() };
    let want = |name: &'static str, want: DnsWant| {
        ask(DnsProbe { want, ..probe(server, &[name], DnsType::A) }, 8000)
    };
    let any = DnsWant::default;
    let all = ["127.0.0.1", "192.0.2.8", "192.0.2.7"];
    let gone = || DnsWant { rcode: DnsRcode(3), min_answers: 0, ..any() };
    for (name, wanted, outcome, detail) in [
        ("a.example", any(), Good, "4 A records for 1 name"),
        ("a.example", DnsWant { min_answers: 4, ..any() }, Good, "4 A records"),
        ("a.example", DnsWant { min_answers: 5, ..any() }, Bad, "4 records, at least 5 are wanted"),
        ("a.example", DnsWant { answers: Some(set(&all)), ..any() }, Good, "4 A records"),
        ("a.example", DnsWant { answers: Some(set(&all[1..])), ..any() }, Bad, "127.0.0.1 is among"),
        ("a.example", DnsWant { contain: set(&["192.0.2.8"]), ..any() }, Good, "4 A records"),
        ("a.example", DnsWant { contain: set(&["192.0.2.9"]), ..any() }, Bad, "192.0.2.9 is not among the 4"),
        ("a.example", DnsWant { regex: Some(r"^192\.0\.2\.".into()), ..any() }, Good, "4 A records"),
        ("a.example", DnsWant { regex: Some("^198".into()), ..any() }, Bad, "none of 4 A records matches"),
        ("a.example", DnsWant { authoritative: true, ..any() }, Bad, "does not speak with authority"),
        ("own.example", DnsWant { authoritative: true, ..any() }, Good, "4 A records"),
        ("gone.example", any(), Bad, "gone.example A: NXDOMAIN"),
        ("gone.example", gone(), Good, "NXDOMAIN for 1 name, as wanted"),
        ("a.example", gone(), Bad, "NOERROR, want NXDOMAIN"),
    ] {
        assert_says(&want(name, wanted).await, outcome, detail);
    }
    let names = ["a.example", "own.example", "gone.example", "b.example"];
    let v = ask(probe(server, &names, DnsType::A), 8000).await;
    assert_says(&v, Bad, "gone.example A: NXDOMAIN");
    let saw = v.details.unwrap();
    assert_eq!((saw.rcode.as_deref(), saw.answers.len()), (Some("NXDOMAIN"), 8));
    let wrong = DnsWant { contain: set(&["web.example"]), ..any() };
    let wrong = DnsProbe { want: wrong, ..probe(server, &["a"], DnsType::A) };
    assert!(prepare(&Check::new(Probe::Dns(Box::new(wrong)))).unwrap_err().contains("is no A record"));
}

#[tokio::test]
async fn the_question_says_what_was_configured() {
    let asked: Arc<Mutex<Vec<Message>>> = Arc::default();
    let seen = Arc::clone(&asked);
    let server = udp_server(move |query| {
        seen.lock().unwrap().push(Message::from_vec(query).unwrap());
        vec![right(query).to_vec().unwrap()]
    });
    let base = || probe(server, &["a.example"], DnsType::A);
    for probe in
        [base(), DnsProbe { recursion: false, udp_size: 4096, ..base() }, DnsProbe { udp_size: 0, ..base() }]
    {
        assert_says(&ask(probe, 8000).await, Good, "1 A records");
    }
    let told = |m: &Message| (m.metadata.recursion_desired, m.edns.as_ref().map(|e| e.max_payload()));
    let told: Vec<_> = asked.lock().unwrap().iter().map(told).collect();
    assert_eq!(told, [(true, Some(1232)), (false, Some(4096)), (true, None)]);
}

#[tokio::test]
async fn an_answer_cannot_write_to_the_terminal() {
    let server = udp_server(|query| {
        let mut answer = right(query);
        let text = "a\x1b[2J\x07\n\u{202e}b ä";
        answer.answers[0].data = RData::TXT(TXT::new(vec![text.to_owned()]));
        vec![answer.to_vec().unwrap()]
    });
    let clean = "a\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}b ä";
    let v = ask(probe(server, &["a.example"], DnsType::Txt), 8000).await;
    assert_says(&v, Good, "1 TXT records");
    assert_eq!(v.details.unwrap().answers, [clean]);
    // Where the words of the verdict tell it, too.
    let want = DnsWant { contain: BTreeSet::from(["other".to_owned()]), ..DnsWant::default() };
    let v = ask(DnsProbe { want, ..probe(server, &["a.example"], DnsType::Txt) }, 8000).await;
    assert_says(&v, Bad, "other");
    assert!(!v.detail.contains(['\x1b', '\x07', '\n', '\u{202e}']), "{v:?}");
}

#[tokio::test]
async fn a_flood_of_records_is_told_in_part() {
    let server = udp_server(|query| {
        let mut answer = right(query);
        answer.answers = vec![answer.answers[0].clone(); 200];
        vec![answer.to_vec().unwrap()]
    });
    let v = ask(probe(server, &["a.example"], DnsType::A), 8000).await;
    assert_says(&v, Good, "200 A records");
    assert_eq!(v.details.unwrap().answers.len(), 16);
}

#[test]
fn a_path_that_is_gone_or_closed_is_bad_by_every_transport() {
    let test = "a_path_that_is_gone_or_closed_is_bad_by_every_transport";
    let inside = std::thread::spawn(move || {
        if !own_namespace(test) {
            return;
        }
        let runtime = here();
        let run = |resolver: &str, transport: DnsTransport, via: Via| {
            let probe = probe(resolver.parse().unwrap(), &["a.example"], DnsType::A);
            let probe = Probe::Dns(Box::new(DnsProbe { transport, ..probe }));
            let check = prepare(&Check { via, ..Check::new(probe) }).unwrap();
            runtime.block_on(async { check.run(Duration::from_secs(1)).await })
        };
        let insecure = || DnsTransport::Tls(TlsOptions { insecure: true, ..tls("ns.example", None) });
        let all = || [DnsTransport::Udp, DnsTransport::Tcp, insecure()];
        for transport in all() {
            let v = run("192.0.2.1:53", transport, Via::default());
            assert_says(&v, Bad, "192.0.2.1:53: network is unreachable");
        }
        assert!(command("ip link set lo up") && command("ip route add unreachable 192.0.2.0/24"));
        for transport in all() {
            assert_says(
                &run("192.0.2.1:53", transport, Via::default()),
                Bad,
                "192.0.2.1:53: no route to host",
            );
        }
        for transport in all() {
            let via = Via { source: Some("192.0.2.77".parse().unwrap()), ..Via::default() };
            let v = run("127.0.0.1:53", transport, via);
            assert_says(&v, Bad, "127.0.0.1:53 from 192.0.2.77: cannot assign requested address");
        }
        assert_says(
            &run("[::1]:53", DnsTransport::Udp, Via::default()),
            Bad,
            "[::1]:53: ICMP port unreachable",
        );
        assert_says(&run("[::1]:53", DnsTransport::Tcp, Via::default()), Bad, "[::1]:53: connection refused");
        let rules = "table ip t { chain o { type filter hook output priority 0; udp dport 53 drop; }; }";
        if !std::process::Command::new("nft").arg(rules).status().is_ok_and(|s| s.success()) {
            eprintln!("SKIP {test}: nft cannot set a rule");
            return;
        }
        let v = run("127.0.0.1:53", DnsTransport::Udp, Via::default());
        assert_says(&v, Bad, "127.0.0.1:53: operation not permitted");
    });
    inside.join().unwrap();
}
