//! TLS of probes: which certificate is good, and the handshake.
//!
//! The system's authorities and the operator's own are trusted, unless the operator said that any certificate will do.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
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

use super::run::{Doing, Failure};

/// How long the system's authorities are kept before they are read again: long enough for one reload of many checks.
const ROOTS_AGE: Duration = Duration::from_secs(10);

/// TLS options with their files read. Those that say the same share one configuration, however many they are.
#[derive(Debug, Clone)]
pub(super) struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    min_remaining: Duration,
}

/// Everything that a configuration is made of.
#[derive(Debug, PartialEq, Eq)]
struct Recipe {
    /// The system's authorities; `None`: any certificate will do.
    system: Option<Roots>,
    ca_cert: Option<Vec<u8>>,
    client_cert: Option<(Vec<u8>, Vec<u8>)>,
    alpn: Vec<Vec<u8>>,
}

/// Authorities, compared by where they are: those that are read again are others.
#[derive(Debug, Clone)]
struct Roots(Arc<RootCertStore>);

impl PartialEq for Roots {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Roots {}

impl Tls {
    /// Reads the files that `options` name. `alpn` lists the protocols offered, best first.
    pub(super) fn prepare(options: &TlsOptions, alpn: &[&[u8]]) -> Result<Self, String> {
        /// Configurations that are in use.
        static SHARED: Mutex<Vec<(Recipe, Weak<ClientConfig>)>> = Mutex::new(Vec::new());
        let name = server_name(&options.server_name)?;
        let read = |what: &str, path: &Path| {
            std::fs::read(path).map_err(|e| format!("{what} {}: {}", path.display(), crate::dial::words(&e)))
        };
        let client = options.client_cert.as_ref();
        let recipe = Recipe {
            system: (!options.insecure).then(|| Roots(system_roots())),
            ca_cert: options.ca_cert.as_ref().map(|path| read("certificate file", path)).transpose()?,
            client_cert: client
                .map(|(cert, key)| {
                    Ok::<_, String>((read("certificate file", cert)?, read("client key", key)?))
                })
                .transpose()?,
            alpn: alpn.iter().map(|p| p.to_vec()).collect(),
        };
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let found =
            shared.iter().find(|(known, _)| *known == recipe).and_then(|(_, config)| config.upgrade());
        let config = match found {
            Some(config) => config,
            None => {
                let config = Arc::new(recipe.config(options)?);
                shared.retain(|(_, config)| config.strong_count() > 0);
                shared.push((recipe, Arc::downgrade(&config)));
                config
            }
        };
        Ok(Self { config, name, min_remaining: options.min_remaining })
    }

    /// The same for the server `name`.
    pub(super) fn named(&self, name: &str) -> Result<Self, String> {
        Ok(Self { name: server_name(name)?, ..self.clone() })
    }

    /// Shakes hands over `io`, notes what was seen, and looks at how long the server's certificate is still valid.
    pub(super) async fn connect<S>(&self, io: S, doing: &Doing<'_>) -> Result<TlsStream<S>, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let start = Instant::now();
        let stream = TlsConnector::from(Arc::clone(&self.config))
            .connect(self.name.clone(), io)
            .await
            .map_err(|e| {
                if let Some(expired) = expired(&e) {
                    doing.note(|saw| saw.certificate_expires = Some(expired));
                }
                Failure::Bad(format!("TLS handshake: {}", crate::dial::words(&e)))
            })?;
        let leaf = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let expires = leaf.and_then(expiry);
        doing.note(|saw| {
            saw.tls = Some(start.elapsed());
            saw.certificate_expires = expires;
        });
        if !self.min_remaining.is_zero() {
            let left = expires
                .and_then(remaining)
                .ok_or_else(|| Failure::Bad("certificate cannot be read".into()))?;
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

impl Recipe {
    /// What was read from the files that `options` name, as one configuration.
    fn config(&self, options: &TlsOptions) -> Result<ClientConfig, String> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|e| format!("TLS: {e}"))?;
        let builder = match &self.system {
            None => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
            Some(Roots(system)) => {
                let own = options.ca_cert.as_deref().zip(self.ca_cert.as_deref());
                let verifier = WebPkiServerVerifier::builder_with_provider(roots(system, own)?, provider)
                    .build()
                    .map_err(|e| format!("TLS authorities: {e}"))?;
                builder.with_webpki_verifier(verifier)
            }
        };
        let mut config = match options.client_cert.as_ref().zip(self.client_cert.as_ref()) {
            None => builder.with_no_client_auth(),
            Some(((cert, key), (cert_text, key_text))) => {
                let chain = certificates(cert, cert_text)?;
                let secret = PrivateKeyDer::from_pem_slice(key_text)
                    .map_err(|e| format!("client key {}: {}", key.display(), pem_words(e)))?;
                builder
                    .with_client_auth_cert(chain, secret)
                    .map_err(|e| format!("client certificate {}: {e}", cert.display()))?
            }
        };
        // A resumed session would skip the server's certificate, and a check is there to look at it.
        config.resumption = rustls::client::Resumption::disabled();
        config.alpn_protocols.clone_from(&self.alpn);
        Ok(config)
    }
}

fn server_name(name: &str) -> Result<ServerName<'static>, String> {
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(bare.to_owned())
        .map_err(|_| format!("TLS server name {bare:?} is neither a host name nor an address"))
}

/// When `leaf` expires, in seconds since 1970.
fn expiry(leaf: &CertificateDer<'_>) -> Option<i64> {
    let (_, leaf) = x509_parser::parse_x509_certificate(leaf).ok()?;
    Some(leaf.validity().not_after.timestamp())
}

/// Of a handshake that failed for it: when the certificate expired, in seconds since 1970.
fn expired(e: &std::io::Error) -> Option<i64> {
    use rustls::{CertificateError::ExpiredContext, Error::InvalidCertificate};
    match e.get_ref()?.downcast_ref::<rustls::Error>()? {
        InvalidCertificate(ExpiredContext { not_after, .. }) => i64::try_from(not_after.as_secs()).ok(),
        _ => None,
    }
}

/// How long it is until `expires`, zero if that is over.
fn remaining(expires: i64) -> Option<Duration> {
    let end = u64::try_from(expires).unwrap_or(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(Duration::from_secs(end).saturating_sub(now))
}

/// Reads `octets` as a certificate, whatever they are.
pub(super) fn fuzz(octets: &[u8]) {
    let _ = expiry(&CertificateDer::from(octets)).and_then(remaining).map(days);
}

/// A lifetime in the unit that a person would use.
fn days(d: Duration) -> String {
    match d.as_secs() {
        s if s >= 2 * 86_400 => format!("{} days", s / 86_400),
        s if s >= 2 * 3600 => format!("{} hours", s / 3600),
        s => format!("{s} s"),
    }
}

/// The system's authorities, and those in `own`, a file and its text.
fn roots(system: &Arc<RootCertStore>, own: Option<(&Path, &[u8])>) -> Result<Arc<RootCertStore>, String> {
    let Some((path, text)) = own else {
        if system.is_empty() {
            return Err(
                "this host has no certificate authorities: install them (ca-certificates) or name a CA file"
                    .into(),
            );
        }
        return Ok(Arc::clone(system));
    };
    let mut roots = RootCertStore::clone(system);
    for certificate in certificates(path, text)? {
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

/// Every certificate in the PEM file `path`, which holds `text`; an error if there is none.
fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let all = all.map_err(|e| format!("certificate file {}: {}", path.display(), pem_words(e)))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn options(name: &str) -> TlsOptions {
        TlsOptions {
            insecure: true,
            ca_cert: None,
            client_cert: None,
            server_name: name.into(),
            min_remaining: Duration::ZERO,
        }
    }

    #[test]
    fn checks_that_want_the_same_share_one_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let pem = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap().cert.pem();
        std::fs::write(&path, pem("a.example.test")).unwrap();
        let with_file =
            TlsOptions { insecure: false, ca_cert: Some(path.clone()), ..options("a.example.test") };
        let one = Tls::prepare(&with_file, &[b"h2"]).unwrap();
        let two =
            Tls::prepare(&TlsOptions { server_name: "b.example.test".into(), ..with_file.clone() }, &[b"h2"]);
        assert!(Arc::ptr_eq(&one.config, &two.unwrap().config));
        let other = |o: &TlsOptions, alpn: &[&[u8]]| {
            !Arc::ptr_eq(&one.config, &Tls::prepare(o, alpn).unwrap().config)
        };
        assert!(other(&with_file, &[]));
        assert!(other(&options("a.example.test"), &[b"h2"]));
        // A file that has changed is another one.
        std::fs::write(&path, pem("c.example.test")).unwrap();
        assert!(other(&with_file, &[b"h2"]));
    }

    #[test]
    fn a_configuration_goes_with_the_last_check_that_uses_it() {
        let alpn: &[&[u8]] = &[b"only here"];
        let one = Tls::prepare(&options("a.example.test"), alpn).unwrap();
        let weak = Arc::downgrade(&one.config);
        drop(one);
        assert!(weak.upgrade().is_none());
        assert_eq!(Tls::prepare(&options("b.example.test"), alpn).unwrap().config.alpn_protocols, alpn);
    }
}
