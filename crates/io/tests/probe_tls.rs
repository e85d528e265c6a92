//! TLS of probes: which certificates pass, what the server is told, and tunnels through a proxy.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;
mod tls_support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use probe_support::*;
use rcgen::KeyPair;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use standfast_core::health::Outcome::{Bad, Good};
use standfast_core::plan::{Check, Probe, Secret, Target};
use standfast_io::probe::prepare;
use tls_support::*;

#[tokio::test]
async fn the_right_certificate_passes_and_the_server_sees_name_and_host() {
    let ca = Authority::new();
    let (target, heads) = tls_server(config(&ca.good(NAME), &[]));
    let mut probe = probe(target, NAME, Some(ca.file()));
    probe.host = format!("{NAME}:8443");
    probe.text = Some("fine".into());
    assert_says(&run(probe, 3000).await, Good, "status 200, body 4 bytes");
    let (sni, head) = heads.recv().unwrap();
    assert_eq!(sni.as_deref(), Some(NAME));
    assert!(head.to_lowercase().contains("\r\nhost: web.example.test:8443\r\n"), "{head}");
}

#[tokio::test]
async fn an_address_as_name_is_verified_and_not_sent() {
    let ca = Authority::new();
    let (target, heads) = tls_server(config(&ca.good("127.0.0.1"), &[]));
    assert_says(&run(probe(target, "127.0.0.1", Some(ca.file())), 3000).await, Good, "status 200");
    assert_eq!(heads.recv().unwrap().0, None);
}

#[tokio::test]
async fn an_ipv6_literal_is_connected_to_verified_and_named_in_brackets() {
    let (tell, heads) = std::sync::mpsc::channel();
    let ca = Authority::new();
    for (name, outcome, words) in [
        ("::1", Good, "status 200"),
        ("::2", Bad, "certificate not valid for name"),
        (NAME, Bad, "valid for name"),
    ] {
        let (secure, tell) = (Arc::new(config(&ca.good(name), &[])), tell.clone());
        let Ok(listener) = std::net::TcpListener::bind("[::1]:0") else {
            return eprintln!("SKIP an_ipv6_literal_is_connected_to_verified_and_named_in_brackets: no ::1");
        };
        let target = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(listener.accept().unwrap().0, secure, &tell));
        let mut probe = probe(target, "::1", Some(ca.file()));
        probe.host = target.to_string();
        assert_says(&run(probe, 5000).await, outcome, words);
        if outcome == Good {
            let (sni, head) = heads.recv().unwrap();
            assert_eq!(sni, None, "an address is no name to show");
            assert!(head.contains(&format!("\r\nHost: [::1]:{}\r\n", target.port())), "{head}");
        }
    }
}

#[tokio::test]
async fn every_wrong_certificate_is_bad_and_says_why() {
    let (ca, other) = (Authority::new(), Authority::new());
    let now = SystemTime::now();
    let second = Duration::from_secs(1);
    let cases = [
        (ca.issue(NAME, now - 2 * DAY, now - second), ca.file(), "certificate expired"),
        (ca.issue(NAME, now + DAY, now + 9 * DAY), ca.file(), "certificate not valid yet"),
        (ca.good("other.example.test"), ca.file(), "certificate not valid for name"),
        (ca.good("127.0.0.1"), ca.file(), "certificate not valid for name"),
        (ca.good(NAME), other.file(), "invalid peer certificate"),
    ];
    for (leaf, trusted, detail) in cases {
        let (target, _heads) = tls_server(config(&leaf, &[]));
        let v = run(probe(target, NAME, Some(trusted)), 3000).await;
        assert_says(&v, Bad, "TLS handshake: invalid peer certificate");
        assert_says(&v, Bad, detail);
        // Of one that has expired the moment is told all the same.
        let expired = v.details.and_then(|saw| saw.certificate_expires);
        let end = now.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() - 1;
        assert_eq!(expired, (detail == "certificate expired").then_some(end.cast_signed()), "{detail}");
        // An operator who said that any will do gets just that.
        let mut any = probe(target, NAME, None);
        any.tls.as_mut().unwrap().insecure = true;
        assert_says(&run(any, 3000).await, Good, "status 200");
    }
}

#[tokio::test]
async fn a_server_without_tls_is_bad_and_says_so() {
    let target = answers("HTTP/1.1 400 Bad Request\r\n\r\n");
    let mut probe = probe(target, NAME, None);
    probe.tls.as_mut().unwrap().insecure = true;
    let v = run(probe, 1000).await;
    assert!(v.outcome == Bad && v.detail.starts_with("TLS handshake: ") || v.timed_out, "{v:?}");
}

#[tokio::test]
async fn a_certificate_that_ends_too_soon_is_bad() {
    let ca = Authority::new();
    let leaf = ca.issue(NAME, SystemTime::now() - DAY, SystemTime::now() + 5 * DAY + DAY / 2);
    let (target, _heads) = tls_server(config(&leaf, &[]));
    let mut probe = probe(target, NAME, Some(ca.file()));
    probe.tls.as_mut().unwrap().min_remaining = 5 * DAY;
    assert_says(&run(probe.clone(), 3000).await, Good, "status 200");
    probe.tls.as_mut().unwrap().min_remaining = 14 * DAY;
    assert_says(&run(probe, 3000).await, Bad, "certificate is valid for another 5 days, want 14 days");
}

#[tokio::test]
async fn a_client_certificate_is_shown_where_the_server_asks() {
    let ca = Authority::new();
    let leaf = ca.good(NAME);
    let mut roots = RootCertStore::empty();
    roots.add(ca.issuer.der().clone()).unwrap();
    let provider = Arc::new(default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build().unwrap();
    let wanting = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![leaf.0.der().clone()],
            PrivateKeyDer::try_from(leaf.1.serialize_der()).unwrap(),
        )
        .unwrap();
    let (target, _heads) = tls_server(wanting);
    let mut probe = probe(target, NAME, Some(ca.file()));
    assert_eq!(run(probe.clone(), 3000).await.outcome, Bad);
    let client = ca.good("client.example.test");
    let (cert, key) = (ca.dir.path().join("client.pem"), ca.dir.path().join("client.key"));
    std::fs::write(&cert, client.0.pem()).unwrap();
    std::fs::write(&key, client.1.serialize_pem()).unwrap();
    probe.tls.as_mut().unwrap().client_cert = Some((cert, key));
    assert_says(&run(probe.clone(), 3000).await, Good, "status 200");
    // The wrong key is found before anything runs.
    let wrong = ca.dir.path().join("wrong.key");
    std::fs::write(&wrong, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    probe.tls.as_mut().unwrap().client_cert.as_mut().unwrap().1 = wrong;
    let e = prepare(&Check::new(Probe::Http(Box::new(probe)))).unwrap_err();
    assert!(e.contains("client certificate"), "{e}");
}

#[tokio::test]
async fn http2_that_says_nothing_or_nonsense_ends_the_run() {
    let ca = Authority::new();
    let leaf = ca.good(NAME);
    for nonsense in [false, true] {
        let config = Arc::new(config(&leaf, &[b"h2"]));
        let target = server(move |stream| {
            let mut tls = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), stream);
            let mut preface = [0; 24];
            if tls.read_exact(&mut preface).is_err() || &preface[..3] != b"PRI" {
                return;
            }
            if nonsense {
                let _ = tls.write_all(&[0xff; 4096]);
            }
            sleep(Duration::from_secs(5));
        });
        let v = run(probe(target, NAME, Some(ca.file())), 1000).await;
        assert!(v.outcome == Bad && v.timed_out != nonsense, "{v:?}");
    }
}

#[tokio::test]
async fn a_new_connection_sees_a_new_certificate_although_connections_are_kept() {
    let ca = Authority::new();
    let expired = ca.issue(NAME, SystemTime::now() - 2 * DAY, SystemTime::now() - DAY);
    let current = Arc::new(Mutex::new(Arc::new(config(&ca.good(NAME), &[]))));
    let (tell, _heads) = mpsc::channel();
    let shown = Arc::clone(&current);
    let target = server(move |stream| {
        let config = Arc::clone(&shown.lock().unwrap());
        serve(stream, config, &tell);
    });
    let mut keeping = probe(target, NAME, Some(ca.file()));
    keeping.keep_alive = true;
    let keeping = prepare(&Check::new(Probe::Http(Box::new(keeping)))).unwrap();
    assert_says(&keeping.run(Duration::from_secs(3)).await, Good, "status 200");
    *current.lock().unwrap() = Arc::new(config(&expired, &[]));
    // The server closed after its answer, so the next run dials anew.
    assert_says(&keeping.run(Duration::from_secs(3)).await, Bad, "certificate expired");
}

#[tokio::test]
async fn tls_goes_through_a_tunnel_that_the_proxy_resolves() {
    let ca = Authority::new();
    let (origin, heads) = tls_server(config(&ca.good(NAME), &[]));
    let (tell, told) = mpsc::channel();
    let proxy = server(move |mut client| {
        tell.send(read_head(&mut client)).unwrap();
        let mut server = TcpStream::connect(origin).unwrap();
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").unwrap();
        let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let up = std::thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
        let _ = std::io::copy(&mut server, &mut client);
        let _ = client.shutdown(std::net::Shutdown::Both);
        let _ = up.join();
    });
    let mut probe = probe("192.0.2.1:443".parse().unwrap(), NAME, Some(ca.file()));
    probe.target = Target::Name(NAME.into(), 443);
    probe.proxy = Some(Secret::new(format!("http://user:pass@{proxy}")));
    assert_says(&run(probe, 3000).await, Good, "status 200");
    let connect = told.recv().unwrap().to_lowercase();
    assert!(connect.starts_with("connect web.example.test:443 http/1.1\r\n"), "{connect}");
    assert!(connect.contains("\r\nproxy-authorization: basic "), "{connect}");
    let (sni, head) = heads.recv().unwrap();
    assert_eq!(sni.as_deref(), Some(NAME));
    assert!(head.starts_with("GET / HTTP/1.1") && !head.to_lowercase().contains("proxy-auth"), "{head}");
}
