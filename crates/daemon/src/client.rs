//! Asking a running daemon: over its address, or its unix socket.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use standfast_io::resolve::Resolver;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// The most of an answer that is read.
const ANSWER: usize = 256 << 20;

/// Where a daemon can be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Api {
    /// A host, by address or name, and a port.
    Tcp(String, u16),
    /// A unix socket.
    Unix(PathBuf),
}

impl From<SocketAddr> for Api {
    fn from(at: SocketAddr) -> Self {
        // Who listens everywhere is asked at home.
        let ip = match at.ip() {
            ip if ip.is_unspecified() && ip.is_ipv4() => "127.0.0.1".to_owned(),
            ip if ip.is_unspecified() => "::1".to_owned(),
            ip => ip.to_string(),
        };
        Self::Tcp(ip, at.port())
    }
}

impl FromStr for Api {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = text.strip_prefix("unix:").map(|path| path.strip_prefix("//").unwrap_or(path));
        if let Some(path) = path.or_else(|| Some(text).filter(|text| text.starts_with('/'))) {
            return match path.starts_with('/') {
                true => Ok(Self::Unix(PathBuf::from(path))),
                false => Err("the socket's path is not absolute: write unix:/run/standfast/api.sock".into()),
            };
        }
        if text.starts_with("https://") {
            return Err("the daemon speaks plain HTTP: write http://".into());
        }
        let rest = text.strip_prefix("http://").unwrap_or(text);
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !path.is_empty() {
            return Err(format!("leave the path away: write {authority}"));
        }
        if let Ok(at) = authority.parse::<SocketAddr>() {
            return Ok(Self::Tcp(at.ip().to_string(), at.port()));
        }
        let help = "write ADDRESS:PORT, a URL, or unix:/path/of/the/socket";
        let (host, port) = authority.rsplit_once(':').ok_or(help)?;
        let port = port.parse().ok().filter(|&port| port > 0).ok_or(help)?;
        let name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if host.is_empty() || !host.chars().all(name) {
            return Err(help.into());
        }
        Ok(Self::Tcp(host.to_owned(), port))
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// An answer: its status and what it says.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// The JSON in it.
    pub value: Value,
}

impl Answer {
    /// Why the daemon refused, if it did.
    pub fn error(&self) -> Option<&str> {
        self.value.get("error").and_then(Value::as_str)
    }
}

impl Api {
    /// Asks, and waits at most `patience` for the whole answer.
    ///
    /// # Errors
    /// Why there was no answer of a daemon, in words.
    pub fn ask(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
        patience: Duration,
    ) -> Result<Answer, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|e| e.to_string())?.block_on(async {
            tokio::time::timeout(patience, self.exchange(method, path, body))
                .await
                .unwrap_or_else(|_| Err(format!("no answer within {} s", patience.as_secs())))
        })
    }

    async fn exchange(&self, method: &Method, path: &str, body: Option<&Value>) -> Result<Answer, String> {
        let mut request = Request::builder().method(method).uri(path).header(
            "host",
            match self {
                Self::Tcp(..) => self.to_string(),
                Self::Unix(_) => "localhost".into(),
            },
        );
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        if let Ok(token) = std::env::var("STANDFAST_TOKEN") {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let body = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        let request = request.body(Full::new(body)).map_err(|e| e.to_string())?;
        match self {
            Self::Unix(path) => {
                send(UnixStream::connect(path).await.map_err(|e| e.to_string())?, request).await
            }
            Self::Tcp(host, port) => send(connect(host, *port).await?, request).await,
        }
    }
}

/// Connects to the first address of `host` that answers.
async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    let addresses = match host.parse() {
        Ok(address) => vec![address],
        Err(_) => {
            let found = Resolver::system().lookup(host, Duration::ZERO).await;
            found.map_err(|e| e.to_string())?.addresses
        }
    };
    let mut failure = String::new();
    for address in addresses {
        match TcpStream::connect((address, port)).await {
            Ok(stream) => return Ok(stream),
            Err(e) => failure = e.to_string(),
        }
    }
    Err(failure)
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Answer, String> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER).collect().await.map_err(|e| e.to_string())?;
    let value = serde_json::from_slice(&body.to_bytes())
        .map_err(|_| format!("{status}: the answer is not standfast's"))?;
    Ok(Answer { status, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_is_written_as_an_address_a_url_or_a_path() {
        let tcp = |host: &str, port| Ok(Api::Tcp(host.into(), port));
        let unix = Ok(Api::Unix("/run/api.sock".into()));
        for (text, api) in [
            ("127.0.0.1:59179", tcp("127.0.0.1", 59179)),
            ("localhost:1", tcp("localhost", 1)),
            ("http://gw1.example.net:59179/", tcp("gw1.example.net", 59179)),
            ("[::1]:59179", tcp("::1", 59179)),
            ("http://[::1]:59179", tcp("::1", 59179)),
            ("unix:/run/api.sock", unix.clone()),
            ("unix:///run/api.sock", unix.clone()),
            ("/run/api.sock", unix),
        ] {
            assert_eq!(text.parse::<Api>(), api, "{text}");
        }
        for bad in [
            "",
            "localhost",
            "localhost:",
            "localhost:0",
            ":59179",
            "::1:59179",
            "https://a:1",
            "http://a:1/status",
            "unix:api.sock",
            "a b:1",
        ] {
            assert!(bad.parse::<Api>().is_err(), "{bad}");
        }
        assert_eq!(Api::from("[::]:59179".parse::<SocketAddr>().unwrap()).to_string(), "[::1]:59179");
    }
}
