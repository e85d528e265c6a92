//! Checks that begin with a PROXY header against a real HAProxy that wants one (`accept-proxy`), on loopback.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;
mod tls_support;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use probe_support::*;
use standfast_core::health::Outcome::{Bad, Good};
use standfast_core::health::Verdict;
use standfast_core::plan::{
    Check, Expect, HttpProbe, HttpVersion, Probe, ProxyProtocol, Target, TcpProbe, Via,
};
use standfast_io::probe::prepare;
use tls_support::{Authority, NAME};

/// A HAProxy with its own directory; ends when dropped.
struct Haproxy {
    child: Child,
    _dir: tempfile::TempDir,
    ca: Authority,
    http: SocketAddr,
    https: SocketAddr,
    /// In front of a server that greets.
    tcp: SocketAddr,
    /// The same over TLS.
    tls: SocketAddr,
    /// Wants no header.
    bare: SocketAddr,
}

impl Haproxy {
    /// `None`, said aloud, where there is no HAProxy.
    fn start(test: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let ca = Authority::new();
        let (leaf, key) = ca.good(NAME);
        let pem = dir.path().join("leaf.pem");
        std::fs::write(&pem, leaf.pem() + &key.serialize_pem()).unwrap();
        let pem = pem.display();
        let (http, https, tcp, tls, bare) = (free(), free(), free(), free(), free());
        let greeter = server(|mut s| {
            let _ = s.write_all(b"220 mail.example.test\r\n");
            // Until HAProxy has passed it on.
            let _ = std::io::Read::read(&mut s, &mut [0; 16]);
        });
        let answer = r#"http-request return status 200 content-type text/plain lf-string "client %[src]:%[src_port], over %[req.ver]""#;
        let config = format!(
            "global\n    maxconn 64\n\
             defaults\n    mode http\n    timeout connect 5s\n    timeout client 5s\n    timeout server 5s\n\
             frontend http\n    bind {http} accept-proxy\n    {answer}\n\
             frontend https\n    bind {https} accept-proxy ssl crt {pem} alpn h2,http/1.1\n    {answer}\n\
             frontend bare\n    bind {bare}\n    {answer}\n\
             listen tcp\n    mode tcp\n    bind {tcp} accept-proxy\n    bind {tls} accept-proxy ssl crt {pem}\n    server greeter {greeter}\n"
        );
        let file = dir.path().join("haproxy.cfg");
        std::fs::write(&file, config).unwrap();
        let program =
            if std::path::Path::new("/usr/sbin/haproxy").exists() { "/usr/sbin/haproxy" } else { "haproxy" };
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let spawned =
            Command::new(program).args(["-db", "-f"]).arg(&file).stdout(Stdio::null()).stderr(log).spawn();
        let child = match spawned {
            Ok(child) => child,
            Err(e) => {
                eprintln!("SKIP {test}: haproxy cannot be started: {e}");
                return None;
            }
        };
        let mut haproxy = Self { child, _dir: dir, ca, http, https, tcp, tls, bare };
        let end = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(bare).is_err() || TcpStream::connect(tls).is_err() {
            let ended = haproxy.child.try_wait().unwrap();
            let log = std::fs::read_to_string(haproxy._dir.path().join("log")).unwrap_or_default();
            assert!(ended.is_none() && Instant::now() < end, "haproxy does not serve: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(haproxy)
    }

    fn secure(&self) -> standfast_core::plan::TlsOptions {
        tls(NAME, Some(self.ca.file()))
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `probe` with this header, or with none.
async fn with(probe: Probe, proxy_protocol: Option<ProxyProtocol>) -> Verdict {
    let check = Check { via: Via { proxy_protocol, ..Via::default() }, ..Check::new(probe) };
    prepare(&check).unwrap().run(Duration::from_secs(5)).await
}

const VERSIONS: [Option<ProxyProtocol>; 2] = [Some(ProxyProtocol::V1), Some(ProxyProtocol::V2)];

#[tokio::test]
async fn haproxy_is_asked_in_both_versions_of_http_and_of_the_header() {
    let Some(haproxy) = Haproxy::start("haproxy_is_asked_in_both_versions_of_http_and_of_the_header") else {
        return;
    };
    let plain = HttpProbe { host: NAME.into(), ..get(haproxy.http) };
    let secure =
        HttpProbe { target: Target::Address(haproxy.https), tls: Some(haproxy.secure()), ..plain.clone() };
    for (probe, version, over) in [
        (&plain, HttpVersion::Http1, "1.1"),
        (&secure, HttpVersion::Http1, "1.1"),
        (&secure, HttpVersion::Http2, "2.0"),
    ] {
        // The header names the very connection that it comes over, or none, and then HAProxy says whose it is itself.
        let regex = Some(format!("^client 127\\.0\\.0\\.1:[0-9]+, over {}$", over.replace('.', "\\.")));
        let probe = Probe::Http(Box::new(HttpProbe { version, regex, ..probe.clone() }));
        for header in VERSIONS {
            assert_says(&with(probe.clone(), header).await, Good, "status 200");
        }
        // HAProxy cuts off whoever comes without.
        assert_eq!(with(probe, None).await.outcome, Bad);
    }
    // Where none is wanted, it is no request.
    let bare = Probe::Http(Box::new(HttpProbe { target: Target::Address(haproxy.bare), ..plain }));
    assert_says(&with(bare.clone(), None).await, Good, "status 200");
    for header in VERSIONS {
        assert_eq!(with(bare.clone(), header).await.outcome, Bad);
    }
}

#[tokio::test]
async fn haproxy_lets_a_tcp_check_through_to_the_server_behind_it() {
    let Some(haproxy) = Haproxy::start("haproxy_lets_a_tcp_check_through_to_the_server_behind_it") else {
        return;
    };
    for (at, tls) in [(haproxy.tcp, None), (haproxy.tls, Some(haproxy.secure()))] {
        let expect = Some(Expect::Bytes(b"220 mail.example.test".to_vec()));
        let probe =
            TcpProbe { expect, tls, send: b"QUIT\r\n".to_vec(), ..TcpProbe::new(Target::Address(at)) };
        let probe = Probe::Tcp(Box::new(probe));
        for header in VERSIONS {
            assert_says(&with(probe.clone(), header).await, Good, "which said what was expected");
        }
        assert_eq!(with(probe, None).await.outcome, Bad);
    }
}
