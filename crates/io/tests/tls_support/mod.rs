//! Authorities, certificates of every kind, and TLS servers that tell what they were asked.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use standfast_core::plan::HttpProbe;

use crate::probe_support::{get, ok, server, tls};

pub(crate) const DAY: Duration = Duration::from_secs(86_400);
pub(crate) const NAME: &str = "web.example.test";

/// An authority, with its certificate in a file.
pub(crate) struct Authority {
    pub(crate) issuer: CertifiedIssuer<'static, KeyPair>,
    pub(crate) dir: tempfile::TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // Another name than that of its certificates, or they would look signed by themselves.
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, dir }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    pub(crate) fn issue(&self, name: &str, begins: SystemTime, ends: SystemTime) -> (Certificate, KeyPair) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = begins.into();
        params.not_after = ends.into();
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    pub(crate) fn good(&self, name: &str) -> (Certificate, KeyPair) {
        self.issue(name, SystemTime::now() - DAY, SystemTime::now() + 30 * DAY)
    }
}

pub(crate) fn config((certificate, key): &(Certificate, KeyPair), alpn: &[&[u8]]) -> ServerConfig {
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
    config
}

/// Serves one request over TLS and tells the SNI and the head.
pub(crate) fn serve(stream: TcpStream, config: Arc<ServerConfig>, tell: &Tell) {
    let mut tls = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
    if answer(&mut tls, &ok("fine"), tell) {
        tls.conn.send_close_notify();
        let _ = tls.flush();
    }
}

/// A TLS connection, from the server's side.
pub(crate) type Served = StreamOwned<ServerConnection, TcpStream>;

/// Reads one request, tells the SNI and its head, and answers; whether there was one.
pub(crate) fn answer(tls: &mut Served, answer: &str, tell: &Tell) -> bool {
    let mut head = Vec::new();
    let mut octet = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match tls.read(&mut octet) {
            Ok(1) => head.push(octet[0]),
            _ => return false,
        }
    }
    let sni = tls.conn.server_name().map(Into::into);
    let _ = tell.send((sni, String::from_utf8(head).unwrap()));
    tls.write_all(answer.as_bytes()).is_ok()
}

/// The SNI and the head of each request.
pub(crate) type Tell = mpsc::Sender<(Option<String>, String)>;
/// Where they arrive.
pub(crate) type Heads = mpsc::Receiver<(Option<String>, String)>;

pub(crate) fn tls_server(config: ServerConfig) -> (SocketAddr, Heads) {
    let (tell, told) = mpsc::channel();
    let config = Arc::new(config);
    (server(move |stream| serve(stream, Arc::clone(&config), &tell)), told)
}

pub(crate) fn probe(target: SocketAddr, name: &str, ca: Option<PathBuf>) -> HttpProbe {
    let mut probe = get(target);
    probe.tls = Some(tls(name, ca));
    probe
}
