//! The `udp` check against servers on loopback that answer well, badly or not at all.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use probe_support::*;
use standfast_core::health::Outcome::{Bad, Good};
use standfast_core::plan::{Check, Expect, Probe, Target, UdpProbe};
use standfast_io::probe::prepare;

fn udp(target: SocketAddr) -> UdpProbe {
    UdpProbe::new(Target::Address(target), b"ping".to_vec())
}

const QUIET: Option<Duration> = Some(Duration::from_millis(80));
const LONG: Option<Duration> = Some(Duration::from_secs(5));

#[tokio::test]
async fn an_answer_is_good_a_refusal_bad_and_silence_what_was_asked() {
    let run = |probe| once(Probe::Udp(probe), 3000);
    let echo = udp_server(|d| vec![d.to_vec()]);
    let v = run(udp(echo)).await;
    assert_says(&v, Good, "answered 4 bytes");
    let saw = v.details.unwrap();
    assert!(saw.remote == Some(echo) && saw.body_bytes == Some(4) && saw.first_byte.is_some(), "{saw:?}");
    let silent = udp_server(|_| Vec::new());
    let quiet = |target| UdpProbe { silence: QUIET, ..udp(target) };
    assert_says(&run(quiet(silent)).await, Good, "did not answer within");
    let v = run(udp(silent)).await;
    assert_says(&v, Bad, "no answer from");
    assert!(!v.timed_out);
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for probe in [udp(closed), quiet(closed)] {
        assert_says(&run(probe).await, Bad, &format!("{closed}: ICMP port unreachable"));
    }
}

#[tokio::test]
async fn an_ipv6_address_is_asked_like_any_other() {
    let Ok(server) = UdpSocket::bind("[::1]:0") else {
        return eprintln!("SKIP an_ipv6_address_is_asked_like_any_other: no ::1");
    };
    let address = server.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((n, from)) = server.recv_from(&mut [0; 100]) {
            let _ = server.send_to(&b"pong"[..n], from);
        }
    });
    let v = once(Probe::Udp(udp(address)), 3000).await;
    assert_says(&v, Good, &format!("[::1]:{} answered 4 bytes", address.port()));
    assert_eq!(v.details.unwrap().remote, Some(address));
}

#[tokio::test]
async fn an_answer_must_hold_what_is_expected() {
    let server = udp_server(|_| vec![b"\x01\x00NTP \xff4".to_vec()]);
    let expect = |e| once(Probe::Udp(UdpProbe { expect: Some(e), silence: LONG, ..udp(server) }), 8000);
    assert_says(&expect(Expect::Bytes(b"NTP".to_vec())).await, Good, "answered 8 bytes");
    assert_says(&expect(Expect::Bytes(vec![0xff, 0x34])).await, Good, "answered 8 bytes");
    assert_says(&expect(Expect::Regex("^\\x01\\x00NTP".into())).await, Good, "answered 8 bytes");
    // A wrong answer is bad even where none is good, and nothing of it is told.
    let wrong = "answered 8 bytes, which do not hold what is expected";
    assert_says(&expect(Expect::Bytes(b"SNTP".to_vec())).await, Bad, wrong);
    assert_says(&expect(Expect::Regex("^N".into())).await, Bad, wrong);
    let probe = UdpProbe { expect: Some(Expect::Regex("(".into())), ..udp(server) };
    assert!(prepare(&Check::new(Probe::Udp(probe))).unwrap_err().contains("regular expression"));
}

#[tokio::test]
async fn an_answer_of_another_sender_is_none() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    std::thread::spawn(move || {
        let other = UdpSocket::bind("127.0.0.2:0").unwrap();
        let other_port = UdpSocket::bind("127.0.0.1:0").unwrap();
        while let Ok((_, from)) = server.recv_from(&mut [0; 100]) {
            let _ = other.send_to(b"me", from);
            let _ = other_port.send_to(b"me", from);
        }
    });
    assert_says(&once(Probe::Udp(udp(address)), 300).await, Bad, "no answer from");
}

#[test]
fn a_path_that_is_gone_or_closed_is_bad_and_says_why() {
    let test = "a_path_that_is_gone_or_closed_is_bad_and_says_why";
    std::thread::spawn(move || {
        if !own_namespace(test) {
            return;
        }
        let runtime = here();
        let quiet = |at: &str| {
            let probe = UdpProbe { silence: QUIET, ..udp(at.parse().unwrap()) };
            runtime.block_on(once(Probe::Udp(probe), 500))
        };
        assert_says(&quiet("192.0.2.1:9"), Bad, "192.0.2.1:9: network is unreachable");
        assert!(command("ip link set lo up"));
        assert!(command("ip route add unreachable 192.0.2.0/24"));
        assert_says(&quiet("192.0.2.1:9"), Bad, "192.0.2.1:9: no route to host");
        let rules = "table ip t { chain o { type filter hook output priority 0; udp dport 81 drop; }; chain i { type filter \
                     hook input priority 0; udp dport 82 reject with icmp type admin-prohibited; udp dport 83 reject with \
                     icmp type host-unreachable; }; }";
        if !std::process::Command::new("nft").arg(rules).status().is_ok_and(|s| s.success()) {
            eprintln!("SKIP {test}: nft cannot set a rule");
            return;
        }
        assert_says(&quiet("127.0.0.1:81"), Bad, "127.0.0.1:81: operation not permitted");
        assert_says(&quiet("127.0.0.1:82"), Bad, "127.0.0.1:82: ICMP administratively prohibited");
        assert_says(&quiet("127.0.0.1:83"), Bad, "127.0.0.1:83: ICMP host unreachable");
        assert_says(&quiet("[::1]:9"), Bad, "[::1]:9: ICMP port unreachable");
    })
    .join()
    .unwrap();
}
