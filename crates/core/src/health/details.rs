//! What one run saw, beyond its outcome: for whoever asks for a run, for `status` and for metrics. Nothing is decided on it.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// What one run saw. Whatever did not happen, or has no meaning for the type of check, is `None` or empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Details {
    /// Our end of the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<SocketAddr>,
    /// The other end: the address that was really asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<SocketAddr>,
    /// Finding the addresses of a name.
    #[serde(rename = "resolve_ns", skip_serializing_if = "Option::is_none", serialize_with = "nanos")]
    pub resolve: Option<Duration>,
    /// Opening the connection: from the first system call to the end of the handshake.
    #[serde(rename = "connect_ns", skip_serializing_if = "Option::is_none", serialize_with = "nanos")]
    pub connect: Option<Duration>,
    /// The TLS handshake.
    #[serde(rename = "tls_ns", skip_serializing_if = "Option::is_none", serialize_with = "nanos")]
    pub tls: Option<Duration>,
    /// From the request's last byte to the answer's first.
    #[serde(rename = "first_byte_ns", skip_serializing_if = "Option::is_none", serialize_with = "nanos")]
    pub first_byte: Option<Duration>,
    /// When the server's certificate expires, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_expires: Option<i64>,
    /// HTTP status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
    /// HTTP version, `1.0`, `1.1` or `2`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_version: Option<&'static str>,
    /// Octets of the body that were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_bytes: Option<u64>,
    /// Redirects that were followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirects: Option<u8>,
    /// DNS response code by name, such as `NOERROR`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rcode: Option<String>,
    /// DNS answers that counted, as text, bounded and cleaned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<String>,
    /// gRPC status by name, such as `OK`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc_status: Option<String>,
    /// Echo requests sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<u32>,
    /// Round trip of each echo request that was answered, in the order of sending.
    #[serde(rename = "rtts_ns", skip_serializing_if = "Vec::is_empty", serialize_with = "all_nanos")]
    pub rtts: Vec<Duration>,
    /// Exit status of a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// What a command said, bounded and cleaned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

/// Whether a character could disturb a terminal or a log: a control character, one that turns the direction of the text
/// around it, or one that begins a new line.
pub fn disturbs(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[expect(clippy::ref_option, reason = "the form that serde wants")]
fn nanos<S: Serializer>(d: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
    d.map(|d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)).serialize(s)
}

fn all_nanos<S: Serializer>(all: &[Duration], s: S) -> Result<S::Ok, S::Error> {
    s.collect_seq(all.iter().map(|d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
}
