//! Redirects between hosts that have names, in a network and with a hosts file of their own; and a name server that hangs.
//!
//! The only test of its program, because names are remembered for all of it.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where something unexpected happens")]

mod net_support;
mod probe_support;
mod tls_support;

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use probe_support::*;
use rustls::{ServerConnection, StreamOwned};
use standfast_core::health::Outcome::{Bad, Good};
use standfast_core::health::Verdict;
use standfast_core::plan::{
    Check, DnsProbe, DnsType, Follow, GrpcCall, GrpcProbe, HttpProbe, Probe, Target, TcpProbe, UdpProbe,
};
use tls_support::*;

/// A server of `name` over TLS at `at` whose answers begin with the one for a path, and what it was asked.
fn named(ca: &Authority, name: &str, at: &str, paths: &[(&str, String)]) -> Heads {
    let (tell, told) = mpsc::channel();
    let config = Arc::new(config(&ca.good(name), &[]));
    let paths: Vec<_> = paths.iter().map(|(path, answer)| (format!("GET {path} "), answer.clone())).collect();
    server_at(at, move |s| {
        let mut tls = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), s);
        let (tell_here, told_here) = mpsc::channel();
        // Reads the head before it answers, and so knows what to answer.
        if !answer(&mut tls, "", &tell_here) {
            return;
        }
        let (sni, head) = told_here.recv().unwrap();
        let found = paths.iter().find(|(path, _)| head.starts_with(path)).map(|(_, answer)| answer.clone());
        let bytes = found.unwrap_or("HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n".into());
        let _ = tell.send((sni, head));
        let _ = std::io::Write::write_all(&mut tls, bytes.as_bytes());
    });
    told
}

fn moved(status: u16, location: &str) -> String {
    format!("HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n")
}

/// Puts a hosts file in the place of the system's, for this thread alone.
fn mount(hosts: &str, dir: &std::path::Path) -> bool {
    // SAFETY: unshare takes a number and touches no memory.
    #[expect(unsafe_code, reason = "the standard library has no call for it")]
    let made = unsafe { libc::unshare(libc::CLONE_NEWNS) == 0 };
    let private = || Command::new("mount").args(["--make-rprivate", "/"]).status().is_ok_and(|s| s.success());
    made && private() && replace("/etc/hosts", hosts, dir)
}

/// Puts a file with this text in the place of one of the system's.
fn replace(path: &str, text: &str, dir: &std::path::Path) -> bool {
    let file = dir.join(path.rsplit('/').next().unwrap());
    std::fs::write(&file, text).unwrap();
    Command::new("mount").arg("--bind").arg(file).arg(path).status().is_ok_and(|s| s.success())
}

#[test]
fn redirects_lead_by_name_and_the_own_host_stays_at_the_checked_address() {
    let test = "redirects_lead_by_name_and_the_own_host_stays_at_the_checked_address";
    let Some(host) = net_support::Host::new(test) else { return };
    host.run(move || {
        let dir = tempfile::tempdir().unwrap();
        // Of a.example.test the file says where it is today, which is not the machine that is checked.
        if !mount("127.0.0.66 a.example.test\n127.0.0.20 b.example.test\n", dir.path()) {
            eprintln!("SKIP {test}: nothing can be mounted");
            return;
        }
        let trap = TcpListener::bind("127.0.0.66:443").unwrap();
        trap.set_nonblocking(true).unwrap();
        let ca = Authority::new();
        let paths = [
            ("/to-b", moved(307, "https://b.example.test/x?y=z")),
            ("/own", moved(302, "https://a.example.test/fine")),
            ("/port", moved(301, "https://a.example.test:8443/fine")),
            ("/loop", moved(302, "https://b.example.test/back")),
            ("/down", moved(302, "http://b.example.test/plain")),
            ("/fine", ok("a")),
        ];
        let at_a = named(&ca, "a.example.test", "127.0.0.10:443", &paths);
        let _other_port = named(&ca, "a.example.test", "127.0.0.10:8443", &paths);
        let paths = [("/x?y=z", ok("b")), ("/back", moved(302, "https://a.example.test/loop"))];
        let at_b = named(&ca, "b.example.test", "127.0.0.20:443", &paths);
        let _plain = server_at("127.0.0.20:80", |mut s| {
            read_head(&mut s);
            let _ = std::io::Write::write_all(&mut s, ok("plain").as_bytes());
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let checked: SocketAddr = "127.0.0.10:443".parse().unwrap();
        let ask = |path: &str, body: &str, downgrade: bool| -> Verdict {
            let mut probe = HttpProbe::new(Target::Address(checked), "a.example.test");
            let tls = tls("a.example.test", Some(ca.file()));
            probe.path = path.into();
            probe.headers = vec![("Authorization".into(), "Bearer s3cret".into())];
            probe.follow = Some(Follow { limit: 5, downgrade, tls: tls.clone() });
            probe.tls = Some(tls);
            probe.text = (!body.is_empty()).then(|| body.into());
            let check = Check::new(Probe::Http(Box::new(probe)));
            runtime.block_on(standfast_io::probe::prepare(&check).unwrap().run(Duration::from_secs(10)))
        };
        assert_says(&ask("/to-b", "b", false), Good, "after 1 redirect");
        let (sni, head) = at_b.recv_timeout(Duration::from_secs(5)).unwrap();
        assert_eq!(sni.as_deref(), Some("b.example.test"));
        assert!(head.starts_with("GET /x?y=z HTTP/1.1\r\nHost: b.example.test\r\n"), "{head}");
        assert!(!head.contains("s3cret"), "{head}");
        let (sni, head) = at_a.recv_timeout(Duration::from_secs(5)).unwrap();
        assert!(sni.as_deref() == Some("a.example.test") && head.contains("s3cret"), "{head}");
        for path in ["/own", "/port"] {
            assert_says(&ask(path, "a", false), Good, "after 1 redirect");
        }
        let v = ask("/loop", "", false);
        assert_says(
            &v,
            Bad,
            "more than 5 redirects, the last with status 302 to https://a.example.test/loop",
        );
        assert!(!v.timed_out, "{v:?}");
        // Not on the way there, and not when it is its turn again.
        let heads: Vec<_> = at_b.try_iter().collect();
        assert_eq!(heads.len(), 3, "{heads:?}");
        for (sni, head) in heads {
            assert_eq!(sni.as_deref(), Some("b.example.test"));
            assert!(head.starts_with("GET /back HTTP/1.1\r\nHost: b.example.test\r\n"), "{head}");
            assert!(!head.contains("s3cret"), "{head}");
        }
        assert_says(&ask("/down", "", false), Bad, "redirected from https to http://b.example.test/plain");
        assert_says(&ask("/down", "plain", true), Good, "after 1 redirect");
        assert!(trap.accept().is_err(), "somebody went where the name leads");
        a_name_server_that_hangs(&runtime, dir.path());
    });
}

/// Every type of check that takes a name is over in its own time while the name server says nothing.
fn a_name_server_that_hangs(runtime: &tokio::runtime::Runtime, dir: &std::path::Path) {
    let silent = UdpSocket::bind("127.0.0.1:53").unwrap();
    assert!(replace("/etc/resolv.conf", "nameserver 127.0.0.1\n", dir));
    let at = |name: &str| Target::Name(format!("{name}.example.test"), 9);
    let asked = DnsProbe::new(at("dns"), vec!["www.example.test".into()], DnsType::A);
    let grpc = GrpcProbe {
        target: at("grpc"),
        tls: None,
        authority: "grpc.example.test".into(),
        call: GrpcCall::Health { service: String::new() },
        metadata: Vec::new(),
        keep_alive: false,
    };
    for (name, probe) in [
        ("udp", Probe::Udp(UdpProbe::new(at("udp"), vec![1]))),
        ("dns", Probe::Dns(Box::new(asked))),
        ("tcp", Probe::Tcp(Box::new(TcpProbe::new(at("tcp"))))),
        ("http", Probe::Http(Box::new(HttpProbe::new(at("http"), "http.example.test")))),
        ("grpc", Probe::Grpc(Box::new(grpc))),
    ] {
        let v = runtime.block_on(once(probe, 400));
        assert_says(&v, Bad, &format!("timed out after 400 ms while looking up {name}.example.test"));
        assert!(v.timed_out && v.took < Duration::from_millis(1400), "{name}: {v:?}");
    }
    silent.set_nonblocking(true).unwrap();
    assert!(silent.recv_from(&mut [0; 512]).is_ok(), "nobody asked the name server");
}
