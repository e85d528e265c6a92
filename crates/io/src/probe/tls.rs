//! TLS of probes: which certificate is good, and the handshake.
//!
//! The system's authorities and the operator's own are trusted, unless the operator said that any certificate will do.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use standfast_core::plan::TlsOptions;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::run::Failure;

/// How long the system's authorities are kept before they are read again: long enough for one reload of many checks.
const ROOTS_AGE: Duration = Duration::from_secs(10);

/// TLS options with their files read.
#[derive(Debug, Clone)]
pub(super) struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    min_remaining: Duration,
}

impl Tls {
    /// Reads the files that `options` name. `alpn` lists the protocols offered, best first.
    pub(super) fn prepare(options: &TlsOptions, alpn: &[&[u8]]) -> Result<Self, String> {
        let name = server_name(&options.server_name)?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|e| format!("TLS: {e}"))?;
        let builder = if options.insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        } else {
            let roots = roots(options.ca_cert.as_deref())?;
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider)
                .build()
                .map_err(|e| format!("TLS authorities: {e}"))?;
            builder.with_webpki_verifier(verifier)
        };
        let mut config = match &options.client_cert {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let chain = certificates(cert)?;
                let secret = PrivateKeyDer::from_pem_file(key)
                    .map_err(|e| format!("client key {}: {}", key.display(), pem_words(e)))?;
                builder
                    .with_client_auth_cert(chain, secret)
                    .map_err(|e| format!("client certificate {}: {e}", cert.display()))?
            }
        };
        // A resumed session would skip the server's certificate, and a check is there to look at it.
        config.resumption = rustls::client::Resumption::disabled();
        config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
        Ok(Self { config: Arc::new(config), name, min_remaining: options.min_remaining })
    }

    /// The same for the server `name`.
    pub(super) fn named(&self, name: &str) -> Result<Self, String> {
        Ok(Self { name: server_name(name)?, ..self.clone() })
    }

    /// Shakes hands over `io` and looks at how long the server's certificate is still valid.
    pub(super) async fn connect<S>(&self, io: S) -> Result<TlsStream<S>, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let stream = TlsConnector::from(Arc::clone(&self.config))
            .connect(self.name.clone(), io)
            .await
            .map_err(|e| Failure::Bad(format!("TLS handshake: {}", crate::dial::words(&e))))?;
        if !self.min_remaining.is_zero() {
            let leaf = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let left =
                leaf.and_then(remaining).ok_or_else(|| Failure::Bad("certificate cannot be read".into()))?;
            if left < self.min_remaining {
                return Err(Failure::Bad(format!(
                    "certificate is valid for another {}, want {}",
                    days(left),
                    days(self.min_remaining)
                )));
            }
        }
        Ok(stream)
    }
}

fn server_name(name: &str) -> Result<ServerName<'static>, String> {
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(bare.to_owned())
        .map_err(|_| format!("TLS server name {bare:?} is neither a host name nor an address"))
}

/// How long `leaf` is still valid, zero if it is not any more.
fn remaining(leaf: &CertificateDer<'_>) -> Option<Duration> {
    let (_, leaf) = x509_parser::parse_x509_certificate(leaf).ok()?;
    let end = u64::try_from(leaf.validity().not_after.timestamp()).unwrap_or(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(Duration::from_secs(end).saturating_sub(now))
}

/// Reads `octets` as a certificate, whatever they are.
pub(super) fn fuzz(octets: &[u8]) {
    let _ = remaining(&CertificateDer::from(octets)).map(days);
}

/// A lifetime in the unit that a person would use.
fn days(d: Duration) -> String {
    match d.as_secs() {
        s if s >= 2 * 86_400 => format!("{} days", s / 86_400),
        s if s >= 2 * 3600 => format!("{} hours", s / 3600),
        s => format!("{s} s"),
    }
}

/// The system's authorities, and those in `own`.
fn roots(own: Option<&Path>) -> Result<Arc<RootCertStore>, String> {
    let system = system_roots();
    let Some(path) = own else {
        if system.is_empty() {
            return Err(
                "this host has no certificate authorities: install them (ca-certificates) or name a CA file"
                    .into(),
            );
        }
        return Ok(system);
    };
    let mut roots = RootCertStore::clone(&system);
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|e| format!("CA file {}: {e}", path.display()))?;
    }
    Ok(Arc::new(roots))
}

/// The system's authorities, read at most every [`ROOTS_AGE`].
fn system_roots() -> Arc<RootCertStore> {
    static KEPT: Mutex<Option<(Instant, Arc<RootCertStore>)>> = Mutex::new(None);
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((read, roots)) = &*kept
        && read.elapsed() < ROOTS_AGE
    {
        return Arc::clone(roots);
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let roots = Arc::new(roots);
    *kept = Some((Instant::now(), Arc::clone(&roots)));
    roots
}

/// Every certificate in the PEM file `path`; an error if there is none.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |e| format!("certificate file {}: {}", path.display(), pem_words(e));
    let all: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
    if all.is_empty() {
        return Err(format!("certificate file {} holds no certificate in PEM", path.display()));
    }
    Ok(all)
}

fn pem_words(e: rustls::pki_types::pem::Error) -> String {
    match e {
        rustls::pki_types::pem::Error::Io(e) => crate::dial::words(&e),
        e => e.to_string(),
    }
}

/// Takes every certificate, but still wants the server to hold its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
