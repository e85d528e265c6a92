//! A connection that HTTP is spoken over: dialled, perhaps through a proxy, perhaps with TLS, perhaps both one in another.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::Uri;
use standfast_core::plan::{Target, TlsOptions};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

use super::run::{Doing, Failure};
use super::tls::Tls;
use super::{http1, reach};
use crate::dial::{Purpose, Stream};

/// An open connection.
#[derive(Debug)]
pub(super) enum Wire {
    /// As dialled.
    Plain(Stream),
    /// With TLS over another.
    Tls(Box<TlsStream<Self>>),
}

impl Wire {
    /// Connects to `target`, through `proxy` and with `tls` if there are any.
    ///
    /// Without TLS a proxy is only connected to: it takes whole URLs. `purpose` is what it is for if there is no TLS. When it is dropped, the connection ends with a reset:
    /// whoever asks closes first, and would keep what was answered in TIME_WAIT and what hangs in FIN_WAIT for a minute.
    pub(super) async fn open(
        target: &Target,
        proxy: Option<&Proxy>,
        tls: Option<&Tls>,
        purpose: Purpose,
        doing: &Doing<'_>,
    ) -> Result<Self, Failure> {
        let purpose = match (proxy, tls) {
            (None, None) | (Some(Proxy { tls: None, .. }), None) => purpose,
            _ => Purpose::Talk,
        };
        let wire = Self::Plain(dialled(proxy.map_or(target, |proxy| &proxy.target), purpose, doing).await?);
        // What the rest takes is only there where it is needed.
        match (proxy, tls) {
            (None, None) => Ok(wire),
            (None, Some(tls)) => Box::pin(wire.secure(tls, "waiting for the TLS handshake", doing)).await,
            (Some(proxy), tls) => Box::pin(wire.through(proxy, tls, target, doing)).await,
        }
    }

    /// Shakes hands with the proxy that was connected to and, where there is TLS at `target`, goes through it.
    async fn through(
        mut self,
        proxy: &Proxy,
        tls: Option<&Tls>,
        target: &Target,
        doing: &Doing<'_>,
    ) -> Result<Self, Failure> {
        if let Some(tls) = &proxy.tls {
            let phase = "waiting for the proxy's TLS handshake";
            self = self.secure(tls, phase, doing).await.map_err(|e| e.within("proxy"))?;
        }
        let Some(tls) = tls else { return Ok(self) };
        doing.set("waiting for the proxy's answer to CONNECT");
        proxy.tunnel(&mut self, target).await?;
        self.secure(tls, "waiting for the TLS handshake", doing).await
    }

    async fn secure(self, tls: &Tls, phase: &'static str, doing: &Doing<'_>) -> Result<Self, Failure> {
        doing.set(phase);
        Ok(Self::Tls(Box::new(tls.connect(self, doing).await?)))
    }

    /// Whether TLS agreed on HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(tls) => tls.get_ref().1.alpn_protocol() == Some(b"h2"),
        }
    }

    /// Whether the server sent nothing and did not close, while nothing was asked.
    pub(super) fn is_idle(&mut self) -> bool {
        let mut octet = [0];
        let mut context = Context::from_waker(std::task::Waker::noop());
        Pin::new(self).poll_read(&mut context, &mut ReadBuf::new(&mut octet)).is_pending()
    }
}

async fn dialled(target: &Target, purpose: Purpose, doing: &Doing<'_>) -> Result<Stream, Failure> {
    let stream = reach::tcp(target, purpose, doing).await?;
    stream.reset_on_drop();
    Ok(stream)
}

macro_rules! either {
    ($self:ident, $($call:tt)*) => {
        match $self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).$($call)*,
            Self::Tls(stream) => Pin::new(stream).$($call)*,
        }
    };
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_read(cx, buf))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_shutdown(cx))
    }
}

impl http1::Source for Wire {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Plain(stream) => stream.poll_readable(cx),
            // What TLS has read already is not in the socket.
            Self::Tls(_) => Poll::Ready(()),
        }
    }
}

/// A forward proxy.
pub(super) struct Proxy {
    /// Where it is.
    pub(super) target: Target,
    /// TLS to it, if it is an `https://` one.
    tls: Option<Tls>,
    /// Value of Proxy-Authorization.
    pub(super) credentials: Option<String>,
}

impl Proxy {
    /// Takes `http[s]://[user:password@]host[:port]`; the error does not repeat the text, which may hold a password.
    pub(super) fn prepare(text: &str, ca_cert: Option<&PathBuf>) -> Result<Self, String> {
        let wrong = || "proxy is not of the form http://[user:password@]host:port".to_owned();
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let authority = uri.authority().ok_or_else(wrong)?;
        let https = uri.scheme_str() == Some("https");
        if !https && uri.scheme_str() != Some("http") || !matches!(uri.path(), "" | "/") {
            return Err(wrong());
        }
        let credentials = authority.as_str().rsplit_once('@').map(|(user, _)| {
            let encoded = BASE64_STANDARD.encode(percent_decoded(user));
            format!("Basic {encoded}")
        });
        let port = authority.port_u16().unwrap_or(if https { 443 } else { 80 });
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let target = match host.parse() {
            Ok(address) => Target::Address(SocketAddr::new(address, port)),
            Err(_) => Target::Name(host.to_owned(), port),
        };
        let options = TlsOptions {
            insecure: false,
            ca_cert: ca_cert.cloned(),
            client_cert: None,
            server_name: host.to_owned(),
            min_remaining: Duration::ZERO,
        };
        let tls = https.then(|| Tls::prepare(&options, &[b"http/1.1"])).transpose();
        Ok(Self { target, tls: tls.map_err(|e| format!("proxy: {e}"))?, credentials })
    }

    /// Asks for a way to `target` over `wire`, which leads to the proxy.
    async fn tunnel(&self, wire: &mut Wire, target: &Target) -> Result<(), Failure> {
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some(credentials) = &self.credentials {
            request.push_str("Proxy-Authorization: ");
            request.push_str(credentials);
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        let mut buffer = Vec::new();
        let answer = http1::ask(wire, request.as_bytes(), &mut buffer, "proxy", |_| (), |head| head.status)
            .await
            .map_err(|e| e.failure)?;
        match answer.taken {
            200..300 if answer.at < buffer.len() => {
                Err(Failure::Bad("proxy sends data before anybody speaks through it".into()))
            }
            200..300 => Ok(()),
            407 if self.credentials.is_some() => Err(Failure::Bad(
                "proxy refuses CONNECT with status 407: it does not take these credentials".into(),
            )),
            407 => Err(Failure::Bad("proxy refuses CONNECT with status 407: it wants credentials".into())),
            status => Err(Failure::Bad(format!("proxy refuses CONNECT with status {status}"))),
        }
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("target", &self.target).finish_non_exhaustive()
    }
}

/// Octets of `text` with `%41` made `A`; what is no such sequence stays.
pub(super) fn percent_decoded(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail
            .get(..2)
            .and_then(|h| std::str::from_utf8(h).ok())
            .and_then(|h| u8::from_str_radix(h, 16).ok());
        match (first, hex) {
            (b'%', Some(octet)) => {
                out.push(octet);
                rest = &tail[2..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_with_credentials_is_understood_and_never_printed() {
        let proxy = Proxy::prepare("http://us%65r:p%40ss@[::1]:3128", None).unwrap();
        assert_eq!(proxy.target, Target::Address("[::1]:3128".parse().unwrap()));
        let want = format!("Basic {}", BASE64_STANDARD.encode("user:p@ss"));
        assert_eq!(proxy.credentials.as_deref(), Some(want.as_str()));
        assert!(!format!("{proxy:?}").contains("Basic"));
        assert!(Proxy::prepare("https://127.0.0.1:1", None).is_ok_and(|p| p.tls.is_some()));
        assert!(!Proxy::prepare("ftp://u:hunter2@proxy", None).unwrap_err().contains("hunter2"));
    }
}
