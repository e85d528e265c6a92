//! The types of single values: numbers, addresses and words; durations, communities and octets are in files of their own.

mod community;
mod duration;
mod json;
mod octets;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value as JsonValue, json};
use standfast_core::health::{RESERVED, is_check_name};
use standfast_core::plan::{DnsRcode, DnsType, HttpVersion, PeerAsn, Secret};
use standfast_core::prefix::{Prefix, PrefixError};

use super::read::{Complaint, FromText};
pub(crate) use community::{Community, ExtendedCommunity, LargeCommunity};
pub(crate) use duration::{Slow, duration, show};
pub(crate) use json::Json;
pub(crate) use octets::{Base64, Hex};

/// The JSON Schema of a text.
fn text() -> JsonValue {
    json!({ "type": "string" })
}

/// The JSON Schema of a text like `pattern`, or with a placeholder in it.
fn pattern(pattern: &str) -> JsonValue {
    json!({ "type": "string", "pattern": format!("^(?:{pattern})$|%\\{{") })
}

/// `schema`, or a placeholder.
fn or_placeholder(schema: JsonValue) -> JsonValue {
    json!({ "anyOf": [schema, { "type": "string", "pattern": "%\\{" }] })
}

/// Any text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text(pub(crate) String);

impl FromText for Text {
    const WHAT: &'static str = "a text";
    const EMPTY_IS_ABSENT: bool = true;
    fn from_text(text: &str) -> Result<Self, Complaint> {
        if text.len() > 4096 {
            return Err(Complaint::new("is longer than 4096 bytes"));
        }
        Ok(Self(text.to_owned()))
    }
    fn text_schema() -> JsonValue {
        json!({ "type": ["string", "number", "boolean"] })
    }
    fn text_kind() -> String {
        "text".into()
    }
}

/// A name of a neighbour, VIP or range: it appears in logs, metrics and URLs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name(pub(crate) String);

impl FromText for Name {
    const WHAT: &'static str = "a name";
    fn from_text(text: &str) -> Result<Self, Complaint> {
        let fine = |c: char| c.is_ascii_graphic() && !"/\\\"'`%?#{}<>,".contains(c);
        if text.is_empty() || text.len() > 64 || !text.chars().all(fine) {
            return Err(Complaint::new("cannot be a name").help(
                "a name has 1 to 64 letters, digits and marks such as - _ . : without spaces, quotes or /",
            ));
        }
        Ok(Self(text.to_owned()))
    }
    fn text_schema() -> JsonValue {
        json!({ "type": ["string", "number"], "minLength": 1 })
    }
    fn text_kind() -> String {
        "name".into()
    }
}

/// A name of a check, which can stand in a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckName(pub(crate) String);

impl FromText for CheckName {
    const WHAT: &'static str = "a name";
    const EMPTY_IS_ABSENT: bool = true;
    fn from_text(text: &str) -> Result<Self, Complaint> {
        if RESERVED.contains(&text) {
            return Err(Complaint::new("is a word of checks_policy and cannot name a check"));
        }
        if !is_check_name(text) || text.len() > 64 {
            return Err(Complaint::new("cannot name a check")
                .help("begin with a letter or _, go on with letters, digits, _ - and . ; at most 64"));
        }
        Ok(Self(text.to_owned()))
    }
    fn text_schema() -> JsonValue {
        pattern("[A-Za-z_][A-Za-z0-9_.-]*")
    }
    fn text_kind() -> String {
        "name".into()
    }
}

/// The name of a network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface(pub(crate) String);

impl FromText for Interface {
    const WHAT: &'static str = "the name of an interface";
    const EMPTY_IS_ABSENT: bool = true;
    fn from_text(text: &str) -> Result<Self, Complaint> {
        let fine = text.len() < 16
            && !matches!(text, "." | "..")
            && text.bytes().all(|b| b.is_ascii_graphic() && b != b'/' && b != b':');
        if !fine {
            return Err(Complaint::new("cannot name an interface")
                .help("the kernel's names have at most 15 characters, without spaces, / and :"));
        }
        Ok(Self(text.to_owned()))
    }
    fn text_schema() -> JsonValue {
        text()
    }
    fn text_kind() -> String {
        "interface".into()
    }
}

/// A text that is never printed.
impl FromText for Secret {
    const WHAT: &'static str = "a secret";
    const SECRET: bool = true;
    fn from_text(text: &str) -> Result<Self, Complaint> {
        match text.len() {
            0 => Err(Complaint::new("is empty").help("leave the key away to go without")),
            1..=80 => Ok(Self::new(text.to_owned())),
            n => Err(Complaint::new(format!("has {n} octets, and TCP MD5 takes at most 80"))),
        }
    }
    fn text_schema() -> JsonValue {
        json!({ "type": ["string", "number"], "minLength": 1 })
    }
    fn text_kind() -> String {
        "secret".into()
    }
}

/// A file's path.
impl FromText for PathBuf {
    const WHAT: &'static str = "a path";
    const EMPTY_IS_ABSENT: bool = true;
    fn from_text(text: &str) -> Result<Self, Complaint> {
        if !text.starts_with('/') || text.contains('\0') {
            return Err(Complaint::new("is not an absolute path").help("begin with /"));
        }
        Ok(Self::from(text))
    }
    fn text_schema() -> JsonValue {
        pattern("/.*")
    }
    fn text_kind() -> String {
        "path".into()
    }
}

/// The mode of a file, in octal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mode(pub(crate) u32);

impl FromText for Mode {
    const WHAT: &'static str = "a mode in octal such as 0660";
    fn from_text(text: &str) -> Result<Self, Complaint> {
        let octal = (3..=4).contains(&text.len()).then(|| u32::from_str_radix(text, 8).ok()).flatten();
        match octal {
            Some(mode) if mode <= 0o777 => Ok(Self(mode)),
            _ => Err(Complaint::new("is not a mode").help("write three or four octal digits, such as 0660")),
        }
    }
    fn text_schema() -> JsonValue {
        json!({ "type": ["string", "number"] })
    }
    fn text_kind() -> String {
        "octal mode".into()
    }
}

impl FromText for bool {
    const WHAT: &'static str = "true or false";
    const BARE: bool = true;
    fn from_text(text: &str) -> Result<Self, Complaint> {
        match text {
            "true" | "True" | "TRUE" => Ok(true),
            "false" | "False" | "FALSE" => Ok(false),
            _ => Err(Complaint::new("is neither true nor false")),
        }
    }
    fn text_schema() -> JsonValue {
        or_placeholder(json!({ "type": "boolean" }))
    }
    fn text_kind() -> String {
        "true, false".into()
    }
}

/// A whole number from `MIN` to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Int<const MIN: i64, const MAX: i64>(i64);

impl<const MIN: i64, const MAX: i64> Int<MIN, MAX> {
    pub(crate) const fn get(self) -> i64 {
        self.0
    }

    /// The number as another type; every use has bounds that fit.
    pub(crate) fn to<T: TryFrom<i64> + Default>(self) -> T {
        T::try_from(self.0).unwrap_or_default()
    }
}

impl<const MIN: i64, const MAX: i64> FromText for Int<MIN, MAX> {
    const WHAT: &'static str = "a number";
    const BARE: bool = true;
    fn from_text(text: &str) -> Result<Self, Complaint> {
        let n = integer(text)?;
        if n < MIN || n > MAX {
            return Err(Complaint::new(format!("is not between {MIN} and {MAX}")));
        }
        Ok(Self(n))
    }
    fn text_schema() -> JsonValue {
        or_placeholder(json!({ "type": "integer", "minimum": MIN, "maximum": MAX }))
    }
    fn text_kind() -> String {
        format!("{MIN}..{MAX}")
    }
}

fn integer(text: &str) -> Result<i64, Complaint> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Complaint::new("is not a whole number"));
    }
    if digits.len() > 1 && digits.starts_with('0') {
        return Err(Complaint::new("has a leading zero").help("write it without"));
    }
    text.parse().map_err(|_| Complaint::new("is too large a number"))
}

/// A part of a whole, in thousandths: at least 0 and less than 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ratio(pub(crate) u16);

impl FromText for Ratio {
    const WHAT: &'static str = "a number";
    const BARE: bool = true;
    fn from_text(text: &str) -> Result<Self, Complaint> {
        let number: f64 = text.parse().map_err(|_| Complaint::new("is not a number"))?;
        if !(0.0..1.0).contains(&number) {
            return Err(Complaint::new("is not at least 0 and less than 1"));
        }
        // In range by the check above; rounding up to 1000 would tolerate a dead host.
        Ok(Self(((number * 1000.0).round() as u16).min(999)))
    }
    fn text_schema() -> JsonValue {
        or_placeholder(json!({ "type": "number", "minimum": 0, "exclusiveMaximum": 1 }))
    }
    fn text_kind() -> String {
        "0 <= x < 1".into()
    }
}

macro_rules! parsed {
    ($ty:ty, $what:literal, $complaint:literal, $kind:literal, $schema:expr) => {
        impl FromText for $ty {
            const WHAT: &'static str = $what;
            const EMPTY_IS_ABSENT: bool = true;
            fn from_text(text: &str) -> Result<Self, Complaint> {
                text.parse().map_err(|_| {
                    let complaint = Complaint::new($complaint);
                    if text.contains('/') {
                        complaint.help("write the address alone, without a length")
                    } else if text.contains(char::is_alphabetic) && !text.contains(':') {
                        complaint.help("names are not looked up here: write the address")
                    } else {
                        complaint
                    }
                })
            }
            fn text_schema() -> JsonValue {
                $schema
            }
            fn text_kind() -> String {
                $kind.into()
            }
        }
    };
}

const V4: &str = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}";
const V6: &str = r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*";

parsed!(IpAddr, "an IP address", "is not an IP address", "IP address", pattern(&format!("|{V4}|{V6}")));
parsed!(Ipv4Addr, "an IPv4 address", "is not an IPv4 address", "IPv4 address", pattern(V4));
parsed!(Ipv6Addr, "an IPv6 address", "is not an IPv6 address", "IPv6 address", pattern(&format!("|{V6}")));

impl FromText for Prefix {
    const WHAT: &'static str = "a prefix such as 198.51.100.10/32";
    fn from_text(text: &str) -> Result<Self, Complaint> {
        text.parse().map_err(|e| match e {
            PrefixError::Syntax => match text.parse::<IpAddr>() {
                Ok(address) => Complaint::new("has no length")
                    .help(format!("write {} for this one address", Self::host(address))),
                Err(_) => Complaint::new("is not a prefix")
                    .help("write it like 198.51.100.10/32 or 2001:db8::10/128"),
            },
            PrefixError::Length(max) => Complaint::new(format!("has a length over {max}")),
            PrefixError::HostBits(net) => Complaint::new("has host bits set").help(format!(
                "write {net} for the network, or end the address with /{} for it alone",
                net.afi().bits()
            )),
        })
    }
    fn text_schema() -> JsonValue {
        pattern(&format!("(?:{V4}|{V6})/[0-9]{{1,3}}"))
    }
    fn text_kind() -> String {
        "prefix".into()
    }
}

/// An address and port to listen on; without an address, every one of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listen(pub(crate) SocketAddr);

impl FromText for Listen {
    const WHAT: &'static str = "an address and port such as 127.0.0.1:59179";
    fn from_text(text: &str) -> Result<Self, Complaint> {
        let spelled = match text.strip_prefix(':') {
            Some(port) => format!("[::]:{port}"),
            None => text.replace("localhost:", "127.0.0.1:"),
        };
        match spelled.parse::<SocketAddr>() {
            Ok(at) if at.port() == 0 => Err(Complaint::new("has port 0")),
            Ok(at) => Ok(Self(at)),
            Err(_) => Err(Complaint::new("is not an address and port").help(
                "write it like 127.0.0.1:59179, [::1]:59179, or :59179 for every address of this host",
            )),
        }
    }
    fn text_schema() -> JsonValue {
        pattern(r".*:[0-9]{1,5}")
    }
    fn text_kind() -> String {
        "address:port".into()
    }
}

/// An AS number of our own: neither 0 nor AS_TRANS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asn(pub(crate) u32);

impl FromText for Asn {
    const WHAT: &'static str = "an AS number";
    const BARE: bool = true;
    fn from_text(text: &str) -> Result<Self, Complaint> {
        match integer(text)? {
            0 => Err(Complaint::new("is reserved and no AS number")
                .help("private AS numbers are 64512 to 65534 and 4200000000 to 4294967294")),
            23456 => {
                Err(Complaint::new("is AS_TRANS, which stands for a 4-octet AS number and belongs to nobody"))
            }
            n => u32::try_from(n).map(Self).map_err(|_| Complaint::new("is not between 1 and 4294967295")),
        }
    }
    fn text_schema() -> JsonValue {
        or_placeholder(
            json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX, "not": { "const": 23456 } }),
        )
    }
    fn text_kind() -> String {
        "AS number".into()
    }
}

impl FromText for PeerAsn {
    const WHAT: &'static str = "an AS number, external or internal";
    fn from_text(text: &str) -> Result<Self, Complaint> {
        match text {
            "external" => Ok(Self::External),
            "internal" => Ok(Self::Internal),
            _ => Asn::from_text(text).map(|asn| Self::Number(asn.0)).map_err(|c| {
                if text.bytes().all(|b| b.is_ascii_digit()) {
                    c
                } else {
                    Complaint::new("is not an AS number, external or internal")
                }
            }),
        }
    }
    fn text_schema() -> JsonValue {
        json!({ "anyOf": [Asn::text_schema(), pattern("[0-9]+|external|internal")] })
    }
    fn text_kind() -> String {
        "AS number, external, internal".into()
    }
}

/// A word out of a fixed set.
macro_rules! choice {
    ($(#[doc = $doc:literal])+ $name:ident { $($variant:ident = $word:literal $(, not $why:literal)?;)+ }) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(dead_code)]
        pub(crate) enum $name { $($variant),+ }

        impl $name {
            const ALL: &'static [(&'static str, Self, Option<&'static str>)] =
                &[$(($word, Self::$variant, choice!(@why $($why)?))),+];
        }

        impl FromText for $name {
            const WHAT: &'static str = concat!("one of" $(, " ", $word)+);
            const EMPTY_IS_ABSENT: bool = true;
            fn from_text(text: &str) -> Result<Self, Complaint> {
                match Self::ALL.iter().find(|(word, ..)| word.eq_ignore_ascii_case(text)) {
                    Some((_, value, None)) => Ok(*value),
                    Some((_, _, Some(why))) => Err(Complaint::new("is not available in this version").help(*why)),
                    None => {
                        let words = || Self::ALL.iter().filter(|(.., why)| why.is_none()).map(|&(word, ..)| word);
                        let list: Vec<_> = words().collect();
                        let complaint = Complaint::new(format!("is not one of {}", list.join(", ")));
                        Err(match standfast_core::spelling::closest(text, words()) {
                            Some(meant) => complaint.help(format!("did you mean `{meant}`?")),
                            None => complaint,
                        })
                    }
                }
            }
            fn text_schema() -> JsonValue {
                let words: Vec<_> = Self::ALL.iter().filter(|(.., why)| why.is_none()).map(|&(word, ..)| word).collect();
                pattern(&format!("|{}", words.iter().map(|w| any_case(w)).collect::<Vec<_>>().join("|")))
            }
            fn text_kind() -> String {
                let words: Vec<_> = Self::ALL.iter().filter(|(.., why)| why.is_none()).map(|&(word, ..)| word).collect();
                words.join(", ")
            }
        }
    };
    (@why) => { None };
    (@why $why:literal) => { Some($why) };
}

/// A pattern that matches a word in any case.
fn any_case(word: &str) -> String {
    word.chars()
        .map(|c| {
            if c.is_ascii_alphabetic() {
                format!("[{}{}]", c.to_ascii_lowercase(), c.to_ascii_uppercase())
            } else {
                c.to_string()
            }
        })
        .collect()
}

choice! {
    /// The version of the file's format.
    Schema { V1 = "v1"; }
}
choice! {
    /// How loud an entry of the log must be.
    LogLevel { Debug = "debug"; Info = "info"; Warn = "warn"; Error = "error"; }
}
choice! {
    /// How the log is written.
    LogFormat { Text = "text"; Json = "json"; }
}
choice! {
    /// What a check does.
    CheckType {
        Http = "http"; Dns = "dns"; Ping = "ping"; Udp = "udp"; Tcp = "tcp"; Grpc = "grpc";
        Exec = "exec"; Process = "process"; Push = "push"; Members = "members";
        Service = "service", not "it belongs to the balancer";
        Vrrp = "vrrp", not "it belongs to vrrp";
        Target = "target", not "it belongs to the mesh";
    }
}
choice! {
    /// The scheme of an HTTP check.
    Proto { Http = "http"; Https = "https"; }
}
choice! {
    /// The method of an HTTP check.
    Method { Get = "GET"; Head = "HEAD"; Post = "POST"; }
}
impl FromText for HttpVersion {
    const WHAT: &'static str = "a version of HTTP";
    const EMPTY_IS_ABSENT: bool = true;
    fn from_text(text: &str) -> Result<Self, Complaint> {
        match text {
            "auto" => Ok(Self::Auto),
            "1.1" => Ok(Self::Http1),
            "2" => Ok(Self::Http2),
            _ => Err(Complaint::new("is not one of auto, 1.1, 2")),
        }
    }
    fn text_schema() -> JsonValue {
        or_placeholder(json!({ "enum": ["", "auto", "1.1", "2", 1.1, 2] }))
    }
    fn text_kind() -> String {
        "auto, 1.1, 2".into()
    }
}
choice! {
    /// How a DNS server is asked.
    DnsTransport { Udp = "udp"; Tcp = "tcp"; Tls = "tls"; }
}
choice! {
    /// What it means that nothing is answered.
    Silence { Bad = "bad"; Good = "good"; }
}
choice! {
    /// How a connection ends.
    Close { Fin = "fin"; Reset = "reset"; }
}
choice! {
    /// The version of a PROXY protocol header.
    ProxyHeader { V1 = "v1"; V2 = "v2"; }
}
choice! {
    /// What an unhealthy VIP does.
    Fail { Withdraw = "withdraw"; LowerPriority = "lower_priority"; }
}
choice! {
    /// What the peers are told of a VIP that drains.
    DrainModes { Withdraw = "withdraw"; Weight = "weight"; GracefulShutdown = "graceful_shutdown"; }
}
choice! {
    /// What a drain waits for.
    DrainUntils { Connections = "connections"; Conntrack = "conntrack"; Deadline = "deadline"; }
}
choice! {
    /// How the listener spreads flows.
    Hashing { Resilient = "resilient"; Consistent = "consistent"; Plain = "plain"; }
}
choice! {
    /// What share of the flows each member of the listener has.
    Weights { Equal = "equal"; LinkBandwidth = "link_bandwidth"; }
}
choice! {
    /// What a clean stop does with the listener's kernel objects.
    OnStop { Keep = "keep"; Remove = "remove"; }
}

impl FromText for DnsType {
    const WHAT: &'static str = "a DNS record type";
    const EMPTY_IS_ABSENT: bool = true;
    fn from_text(text: &str) -> Result<Self, Complaint> {
        Self::ALL.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|&(_, t)| t).ok_or_else(|| {
            Complaint::new(format!("is not one of {}", Self::ALL.map(|(name, _)| name).join(", ")))
        })
    }
    fn text_schema() -> JsonValue {
        pattern(&format!("|{}", Self::ALL.map(|(name, _)| any_case(name)).join("|")))
    }
    fn text_kind() -> String {
        Self::ALL.map(|(name, _)| name).join(", ")
    }
}

impl FromText for DnsRcode {
    const WHAT: &'static str = "a DNS response code";
    const EMPTY_IS_ABSENT: bool = true;
    fn from_text(text: &str) -> Result<Self, Complaint> {
        let names = || Self::ALL.map(|(name, _)| name);
        Self::ALL.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|&(_, code)| code).ok_or_else(
            || {
                let complaint = Complaint::new(format!("is not one of {}", names().join(", ")));
                match standfast_core::spelling::closest(&text.to_ascii_uppercase(), names()) {
                    Some(meant) => complaint.help(format!("did you mean `{meant}`?")),
                    None => complaint,
                }
            },
        )
    }
    fn text_schema() -> JsonValue {
        pattern(&format!("|{}", Self::ALL.map(|(name, _)| any_case(name)).join("|")))
    }
    fn text_kind() -> String {
        Self::ALL.map(|(name, _)| name).join(", ")
    }
}

choice! {
    /// How BFD packets are authenticated.
    BfdAuthType {
        Meticulous = "meticulous_sha1";
        Keyed = "sha1";
        MeticulousMd5 = "meticulous_md5", not "use meticulous_sha1, which every router has too";
        Md5 = "md5", not "use meticulous_sha1, which every router has too";
        Simple = "simple", not "a password in clear protects from nothing: use meticulous_sha1";
    }
}

/// Graceful restart: off, on, or on with this restart time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restart {
    Off,
    On,
    Time(Duration),
}

impl FromText for Restart {
    const WHAT: &'static str = "true, false or a restart time such as 120s";
    fn from_text(text: &str) -> Result<Self, Complaint> {
        if let Ok(on) = bool::from_text(text) {
            return Ok(if on { Self::On } else { Self::Off });
        }
        let time = Duration::from_text(text)
            .map_err(|_| Complaint::new("is neither true, false nor a restart time such as 120s"))?;
        if time.subsec_nanos() != 0 || !(1..=4095).contains(&time.as_secs()) {
            return Err(Complaint::new(
                "cannot be told to a peer: a restart time is 1s to 4095s, in whole seconds",
            ));
        }
        Ok(Self::Time(time))
    }
    fn text_schema() -> JsonValue {
        json!({ "anyOf": [bool::text_schema(), Duration::text_schema()] })
    }
    fn text_kind() -> String {
        "true, false, duration".into()
    }
}

/// GTSM: off, or the most hops that a packet may have travelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TtlSecurity(pub(crate) Option<u8>);

impl FromText for TtlSecurity {
    const WHAT: &'static str = "true, false or a number of hops";
    const BARE: bool = true;
    fn from_text(text: &str) -> Result<Self, Complaint> {
        match bool::from_text(text) {
            Ok(on) => Ok(Self(on.then_some(1))),
            Err(_) => match integer(text).ok().and_then(|n| u8::try_from(n).ok()) {
                Some(hops @ 1..=254) => Ok(Self(Some(hops))),
                _ => Err(Complaint::new("is neither true, false nor a number of hops from 1 to 254")),
            },
        }
    }
    fn text_schema() -> JsonValue {
        json!({ "anyOf": [bool::text_schema(), { "type": "integer", "minimum": 1, "maximum": 254 }] })
    }
    fn text_kind() -> String {
        "true, false, 1..254".into()
    }
}

/// Good HTTP status codes: one, a range `200-299`, or a class `2xx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Codes(pub(crate) u16, pub(crate) u16);

impl FromText for Codes {
    const WHAT: &'static str = "a status code";
    fn from_text(text: &str) -> Result<Self, Complaint> {
        let code = |t: &str| t.parse::<u16>().ok().filter(|c| t.len() == 3 && (100..=599).contains(c));
        let range = match (text.strip_suffix("xx").or_else(|| text.strip_suffix("XX")), text.split_once('-'))
        {
            (Some(class), _) => code(&format!("{class}00")).map(|c| (c, c + 99)),
            (None, Some((from, to))) => code(from).zip(code(to)),
            (None, None) => code(text).map(|c| (c, c)),
        };
        match range {
            Some((from, to)) if from <= to => Ok(Self(from, to)),
            Some(_) => Err(Complaint::new("is a range that ends before it begins")),
            None => Err(Complaint::new("is not a status code").help("write 200, 200-299 or 2xx")),
        }
    }
    fn text_schema() -> JsonValue {
        json!({ "anyOf": [{ "type": "integer", "minimum": 100, "maximum": 599 }, pattern("[1-5][0-9]{2}(?:-[1-5][0-9]{2})?|[1-5](?:xx|XX)")] })
    }
    fn text_kind() -> String {
        "200, 200-299, 2xx".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok<T: FromText>(text: &str) -> Option<T> {
        T::from_text(text).ok()
    }

    #[test]
    fn numbers_are_what_they_look_like() {
        assert_eq!(ok::<Int<0, 100>>("10").unwrap().get(), 10);
        for bad in ["010", "1e1", "1.0", "0x10", "+1", "", "-", "101", "-1", "99999999999999999999"] {
            assert!(Int::<0, 100>::from_text(bad).is_err(), "{bad}");
        }
        assert_eq!(ok::<Ratio>("0.5"), Some(Ratio(500)));
        for bad in ["1", "-0.1", "NaN", "inf", "x"] {
            assert!(Ratio::from_text(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn as_numbers_that_belong_to_nobody_are_refused() {
        for bad in ["0", "23456", "4294967296", "-1", "AS1"] {
            assert!(Asn::from_text(bad).is_err(), "{bad}");
            assert!(PeerAsn::from_text(bad).is_err(), "{bad}");
        }
        assert_eq!(ok::<PeerAsn>("external"), Some(PeerAsn::External));
    }

    #[test]
    fn status_codes_come_alone_in_ranges_and_in_classes() {
        assert_eq!(ok::<Codes>("204"), Some(Codes(204, 204)));
        assert_eq!(ok::<Codes>("200-399"), Some(Codes(200, 399)));
        assert_eq!(ok::<Codes>("2xx"), Some(Codes(200, 299)));
        for bad in ["", "99", "600", "20", "2xxx", "6xx", "399-200", "-200", "200-"] {
            assert!(Codes::from_text(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_port_alone_listens_on_every_address() {
        assert_eq!(ok::<Listen>(":59179").unwrap().0.to_string(), "[::]:59179");
        assert_eq!(ok::<Listen>("localhost:1").unwrap().0.to_string(), "127.0.0.1:1");
        for bad in ["", "59179", "example.com:1", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536"] {
            assert!(Listen::from_text(bad).is_err(), "{bad}");
        }
    }
}
