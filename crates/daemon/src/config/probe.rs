//! Checks: from the file's sections to what the prober opens. One module for each type; what they share is here.

mod dns;
mod exec;
mod grpc;
mod http;
mod members;
mod ping;
mod process;
mod push;
mod tcp;
mod udp;

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use standfast_core::plan::{self, Probe, ProxyProtocol, Target, TlsOptions, Via};
use standfast_core::prefix::Prefix;

use super::file::Check;
use super::read::{At, Findings, Read};
use super::resolve::{or, value};
use super::tree::{Node, Value};
use super::value::{CheckType, Int, ProxyHeader, Text, show};
pub(crate) use exec::about;

/// The check that a section asks for. Whatever was reported is filled with something harmless.
///
/// `prefixes` are its VIP's; `None`: it is a shared one.
pub(crate) fn check(
    at: &At<Check>,
    kind: &At<CheckType>,
    prefixes: Option<&[Prefix]>,
    out: &mut Findings,
) -> plan::Check {
    let interval = or(&at.interval, Duration::from_secs(1));
    let timeout = or(&at.timeout, Duration::from_millis(100));
    if let Some(i) = &at.interval {
        if i.value < Duration::from_millis(10) {
            out.error(i, "interval is less than 10ms");
        } else if i.value > Duration::from_secs(86_400) {
            out.error(i, "interval is longer than a day");
        }
    }
    if let Some(t) = &at.timeout {
        if t.is_zero() {
            out.error(t, "timeout must be more than 0");
        } else if timeout >= interval {
            let given = t.verbatim.is_some();
            let message = if given {
                format!("timeout, {}, must be less than interval, {}", show(timeout), show(interval))
            } else {
                format!(
                    "interval, {}, must be more than timeout, which is {} by default",
                    show(interval),
                    show(timeout)
                )
            };
            let place = if given { &t.place } else { at.interval.as_ref().map_or(&t.place, |i| &i.place) };
            let path = if given { &t.path } else { at.interval.as_ref().map_or(&t.path, |i| &i.path) };
            out.at(path, place, message).help("a run must have ended before the next one starts");
        }
    }
    for (section, name) in [
        (at.http.as_ref().map(|s| &s.place), CheckType::Http),
        (at.dns.as_ref().map(|s| &s.place), CheckType::Dns),
        (at.ping.as_ref().map(|s| &s.place), CheckType::Ping),
        (at.tcp.as_ref().map(|s| &s.place), CheckType::Tcp),
        (at.udp.as_ref().map(|s| &s.place), CheckType::Udp),
        (at.grpc.as_ref().map(|s| &s.place), CheckType::Grpc),
        (at.exec.as_ref().map(|s| &s.place), CheckType::Exec),
        (at.process.as_ref().map(|s| &s.place), CheckType::Process),
        (at.push.as_ref().map(|s| &s.place), CheckType::Push),
        (at.members.as_ref().map(|s| &s.place), CheckType::Members),
    ] {
        if let (Some(place), true) = (section, name != kind.value) {
            let message = format!("`{}` has no effect on a check of type {}", word(name), word(kind.value));
            out.at(&format!("{}.{}", at.path, word(name)), place, message)
                .note(&kind.place, "the type")
                .help("take one of them away");
        }
    }
    let paced = !matches!(kind.value, CheckType::Push | CheckType::Members);
    let fast_interval = if paced { pace(at, interval, timeout, out) } else { interval };
    let before = out.errors();
    let shared = prefixes.is_none();
    let cx = Context { check: at, kind, prefixes: prefixes.unwrap_or_default(), shared, timeout };
    let probe = match kind.value {
        CheckType::Http => with(&at.http, &cx, out, http::http),
        CheckType::Dns => with(&at.dns, &cx, out, dns::dns),
        CheckType::Ping => with(&at.ping, &cx, out, ping::ping),
        CheckType::Tcp => with(&at.tcp, &cx, out, tcp::tcp),
        CheckType::Udp => with(&at.udp, &cx, out, udp::udp),
        CheckType::Grpc => with(&at.grpc, &cx, out, grpc::grpc),
        CheckType::Exec => with(&at.exec, &cx, out, exec::exec),
        CheckType::Process => with(&at.process, &cx, out, process::process),
        CheckType::Push => with(&at.push, &cx, out, push::push),
        CheckType::Members => with(&at.members, &cx, out, members::members),
        // Refused where they are read.
        CheckType::Service | CheckType::Vrrp | CheckType::Target => None,
    };
    let given = probe.is_some();
    // Silence is not something to be sure of three times, nor is an end: by default the first one counts.
    let once = !paced || kind.value == CheckType::Process;
    let fall = at.fall.as_ref().filter(|fall| !once || push::is_given(fall, &cx));
    let interval = match kind.value {
        CheckType::Push => at.push.as_ref().and_then(|p| value(&p.lease)).unwrap_or(interval),
        // What the listener said stands until it says otherwise.
        CheckType::Members => Duration::ZERO,
        _ => interval,
    };
    // A check that runs nothing has no pace.
    let fast_interval = if paced { fast_interval } else { interval };
    let check = plan::Check {
        interval,
        timeout,
        rise: at.rise.as_ref().map_or(1, |r| r.to()),
        fall: fall.map_or(if once { 1 } else { 3 }, |f| f.to()),
        fast_interval,
        slow: at.slow.as_ref().map(|s| s.0),
        detailed_metrics: or(&at.detailed_metrics, false),
        via: way(at, kind, probe.as_ref(), out),
        ..plan::Check::new(probe.unwrap_or(Probe::External))
    };
    if given && out.errors() == before {
        prepare(&check, at, kind, out);
    }
    check
}

/// How the probe's packets leave this host.
fn way(at: &Check, kind: &At<CheckType>, probe: Option<&Probe>, out: &mut Findings) -> Via {
    let sends =
        !matches!(kind.value, CheckType::Exec | CheckType::Process | CheckType::Push | CheckType::Members);
    let connects = matches!(kind.value, CheckType::Http | CheckType::Tcp | CheckType::Grpc);
    let unix = match probe {
        Some(Probe::Http(http)) => matches!(http.target, Target::Unix(_)),
        Some(Probe::Tcp(tcp)) => matches!(tcp.target, Target::Unix(_)),
        Some(Probe::Grpc(grpc)) => matches!(grpc.target, Target::Unix(_)),
        _ => false,
    };
    let mut refuse = |given: Given<'_>, fits: bool| {
        let Some((path, place)) = given.filter(|_| !fits || unix) else { return };
        let key = path.rsplit('.').next().unwrap_or_default();
        let what = if unix {
            "with a unix socket".into()
        } else {
            format!("on a check of type {}", word(kind.value))
        };
        out.at(path, place, format!("{key} has no effect {what}")).help("take it away");
    };
    refuse(place(&at.source), sends);
    refuse(place(&at.interface), sends);
    refuse(place(&at.mark), sends);
    refuse(place(&at.proxy_protocol), connects);
    if let Some(source) = &at.source {
        let other = probe.and_then(Probe::address).filter(|a| a.is_ipv4() != source.is_ipv4());
        if source.is_unspecified() || source.is_multicast() {
            out.error(source, format!("{} is no address of a host", source.value));
        } else if let Some(target) = other {
            out.error(
                source,
                format!("nothing goes from {} to {target}: they are of two families", source.value),
            );
        }
        if let Some(own) = at.ping.as_ref().and_then(|p| p.src_ip.as_ref()) {
            out.error(source, "source and ping.src_ip say the same thing")
                .note(&own.place, "the other one")
                .help("take one of them away");
        }
    }
    Via {
        source: value(&at.source),
        interface: at.interface.as_ref().map(|i| i.value.0.clone()),
        mark: at.mark.as_ref().map(|m| m.to()),
        proxy_protocol: at.proxy_protocol.as_ref().map(|p| match p.value {
            ProxyHeader::V1 => ProxyProtocol::V1,
            ProxyHeader::V2 => ProxyProtocol::V2,
        }),
    }
}

/// Checks what makes a check sooner or stricter against its other times; the interval while it is between two states.
fn pace(at: &At<Check>, interval: Duration, timeout: Duration, out: &mut Findings) -> Duration {
    if let Some(slow) = at.slow.as_ref().filter(|s| s.0.limit >= timeout) {
        let (limit, timeout) = (show(slow.0.limit), show(timeout));
        let finding = out.error(slow, format!("slow, {limit}, must be less than timeout, {timeout}"));
        if let Some(t) = at.timeout.as_ref().filter(|t| t.verbatim.is_some()) {
            finding.note(&t.place, "the timeout");
        }
        finding.help("a run that takes longer than its timeout fails in any case");
    }
    let Some(fast) = &at.fast_interval else { return interval };
    let once = |n: &Option<At<Int<1, 1000>>>| n.as_ref().is_none_or(|n| n.get() == 1);
    let wrong = if fast.value < Duration::from_millis(10) {
        Some(("fast_interval is less than 10ms".to_owned(), None))
    } else if fast.value >= interval {
        let message =
            format!("fast_interval, {}, must be less than interval, {}", show(fast.value), show(interval));
        Some((message, Some("leave it away to run at the same pace at all times")))
    } else if fast.value <= timeout {
        let message =
            format!("fast_interval, {}, must be more than timeout, {}", show(fast.value), show(timeout));
        Some((message, Some("a run must have ended before the next one starts")))
    } else if once(&at.rise) && once(&at.fall) {
        let message = "fast_interval has no effect: with a rise and a fall of 1 every run decides";
        Some((message.to_owned(), Some("take it away, or raise `rise` or `fall`")))
    } else {
        None
    };
    if let Some((message, help)) = wrong {
        let finding = out.error(fast, message);
        finding.help = help.map(str::to_owned);
        return interval;
    }
    fast.value
}

/// Opens and compiles everything as the prober will, so that what was accepted runs.
fn prepare(check: &plan::Check, at: &At<Check>, kind: &At<CheckType>, out: &mut Findings) {
    let Err(reason) = standfast_io::probe::prepare(check) else { return };
    if at.exec.as_ref().is_some_and(|exec| exec::refuse(exec, &reason, out)) {
        return;
    }
    if let Some((path, place, why)) = at.grpc.as_ref().and_then(|g| grpc::blame(g, &reason)) {
        out.at(path, &place, why);
        return;
    }
    match at.http.as_ref().and_then(|h| h.response_jq.as_ref()) {
        Some(jq) if reason.starts_with("jq program") => {
            let reason = reason.strip_prefix(&format!("jq program {:?}: ", jq.value.0)).unwrap_or(&reason);
            out.error(jq, format!("this jq program does not compile: {reason}"));
        }
        _ => {
            out.error(kind, format!("this check cannot run: {reason}"));
        }
    }
}

/// The type as the file writes it.
pub(crate) fn word(kind: CheckType) -> &'static str {
    match kind {
        CheckType::Http => "http",
        CheckType::Dns => "dns",
        CheckType::Ping => "ping",
        CheckType::Udp => "udp",
        CheckType::Tcp => "tcp",
        CheckType::Grpc => "grpc",
        CheckType::Exec => "exec",
        CheckType::Process => "process",
        CheckType::Push => "push",
        CheckType::Members => "members",
        CheckType::Service => "service",
        CheckType::Vrrp => "vrrp",
        CheckType::Target => "target",
    }
}

/// What a probe takes from around it.
struct Context<'a> {
    check: &'a At<Check>,
    kind: &'a At<CheckType>,
    prefixes: &'a [Prefix],
    /// Whether several VIPs may use it, so that there is no address of its own to check.
    shared: bool,
    timeout: Duration,
}

impl Context<'_> {
    /// The VIP's own address: the default of every host.
    fn vip(&self) -> Option<IpAddr> {
        self.prefixes.first().filter(|p| p.is_host()).map(Prefix::address)
    }

    /// Where to connect: as written, or the VIP's address, or it is reported that `key` is missing.
    fn target(&self, host: &Option<At<Text>>, port: u16, key: &str, out: &mut Findings) -> Option<Target> {
        match host {
            Some(at) => {
                let target = host_port(&at.value.0, port);
                if target.is_none() {
                    out.error(at, format!("`{}` is neither an address nor a name", at.value.0));
                }
                target
            }
            None => self.address(key, out).map(|a| Target::Address(SocketAddr::new(a, port))),
        }
    }

    /// Reports that `key` of the check's own section is needed and not there.
    fn missing(&self, key: &str, why: &str, out: &mut Findings) {
        let path = format!("{}.{}", self.check.path, word(self.kind.value));
        // It is there, and wrong.
        if out.0.iter().any(|f| f.path == format!("{path}.{key}")) {
            return;
        }
        let tcp = self.check.tcp.as_ref().filter(|_| self.kind.value == CheckType::Tcp).map(|s| &s.place);
        let process =
            self.check.process.as_ref().filter(|_| self.kind.value == CheckType::Process).map(|s| &s.place);
        let section = tcp.or(process).or(self.check.grpc.as_ref().map(|s| &s.place));
        let place = section.unwrap_or(&self.kind.place);
        out.at(&path, place, format!("`{key}` is missing: `{path}` needs it")).help(why);
    }

    fn address(&self, key: &str, out: &mut Findings) -> Option<IpAddr> {
        if self.shared {
            let path = format!("{}.{}", self.check.path, word(self.kind.value));
            let message =
                format!("`{key}` is missing: a shared check has no VIP whose address it could take");
            out.at(&path, &self.kind.place, message)
                .help(format!("say which address to check with `{key}`, e.g. 127.0.0.1"));
        } else if self.vip().is_none() && !self.prefixes.is_empty() {
            let path = format!("{}.{}", self.check.path, word(self.kind.value));
            out.at(
                &path,
                &self.kind.place,
                format!("`{key}` is missing: {} is no single address to check", self.prefixes[0]),
            )
            .help(format!("say which address to check with `{key}`"));
        }
        self.vip()
    }
}

/// Reads the check's own section, or an empty one if it is not given.
fn with<T: Read>(
    section: &Option<At<T>>,
    cx: &Context<'_>,
    out: &mut Findings,
    probe: fn(&T, &Context<'_>, &mut Findings) -> Option<Probe>,
) -> Option<Probe> {
    match section {
        Some(section) => probe(&section.value, cx, out),
        None => {
            let path = format!("{}.{}", cx.check.path, word(cx.kind.value));
            if out.0.iter().any(|f| f.path == path) {
                return None;
            }
            let node = Node { place: cx.kind.place.clone(), value: Value::Null };
            probe(&T::read(&node, &path, out)?, cx, out)
        }
    }
}

/// The text of a regular expression, or it is reported that it is none.
fn regex(at: &Option<At<Text>>, out: &mut Findings) -> Option<String> {
    let at = at.as_ref()?;
    if let Err(reason) = standfast_io::probe::check_pattern(&at.value.0) {
        out.error(at, format!("this regular expression does not compile: {reason}"));
    }
    Some(at.value.0.clone())
}

/// The octets of a text. One that holds a backslash and a letter where a line break is meant earns a warning: only double
/// quotes make it one.
fn octets(at: &Option<At<Text>>, out: &mut Findings) -> Option<Vec<u8>> {
    let at = at.as_ref()?;
    let text = &at.value.0;
    let escape = ["\\r", "\\n", "\\t", "\\0", "\\x"].into_iter().find(|escape| text.contains(escape));
    if let Some(escape) = escape {
        let key = at.path.rsplit('.').next().unwrap_or_default();
        let letter = &escape[1..];
        out.warn(
            at,
            format!("{key} holds a backslash and the letter `{letter}`, not what {escape} stands for"),
        )
        .help(format!("write it in double quotes, or as {key}_hex"));
    }
    Some(text.clone().into_bytes())
}

type Given<'a> = Option<(&'a str, &'a Range<usize>)>;

/// Where a key is given.
fn place<T>(at: &Option<At<T>>) -> Given<'_> {
    at.as_ref().map(|a| (a.path.as_str(), &a.place))
}

/// Reports all but the first of several keys that say the same thing.
fn one_of(given: [Given<'_>; 3], out: &mut Findings) {
    let mut given = given.into_iter().flatten();
    let Some((first, at)) = given.next() else { return };
    for (path, place) in given {
        let key = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
        out.at(path, place, format!("{} and {} exclude each other", key(first), key(path)))
            .note(at, "the other one")
            .help("take one of them away");
    }
}

/// The unix socket in `unix:/path`; `None` if the text is something else, `Some(None)` if its path is wrong, which is reported.
fn unix_socket(at: &At<Text>, out: &mut Findings) -> Option<Option<Target>> {
    let path = at.value.0.strip_prefix("unix:")?;
    // What a socket address has room for (unix(7)).
    let fine = path.starts_with('/') && path.len() < 108 && !path.contains('\0');
    if !fine {
        out.error(at, "this is not a unix socket").help("write unix:/path, of at most 107 bytes");
    }
    Some(fine.then(|| Target::Unix(path.into())))
}

/// `host`, `host:port`, `[v6]:port` or a bare IPv6 address.
fn host_port(text: &str, port: u16) -> Option<Target> {
    if let Ok(at) = text.parse::<SocketAddr>() {
        return Some(Target::Address(at));
    }
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Some(Target::Address(SocketAddr::new(address, port)));
    }
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) => (name, port.parse().ok().filter(|&p| p > 0)?),
        None => (text, port),
    };
    is_dns_name(name).then(|| Target::Name(name.trim_end_matches('.').to_owned(), port))
}

fn is_dns_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let label = |l: &str| {
        (1..=63).contains(&l.len())
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    let number = name.rsplit('.').next().is_some_and(|l| l.bytes().all(|b| b.is_ascii_digit()));
    name.len() <= 253 && name.split('.').all(label) && !number
}

/// `host` with the port if it is not the scheme's own.
fn authority(host: &str, port: u16, https: bool) -> String {
    let host =
        if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() };
    if port == if https { 443 } else { 80 } { host } else { format!("{host}:{port}") }
}

type OptionalPath = Option<At<PathBuf>>;

/// The TLS keys of a check.
struct Tls<'a> {
    insecure: &'a Option<At<bool>>,
    ca_cert: &'a Option<At<PathBuf>>,
    client: Option<(&'a OptionalPath, &'a OptionalPath)>,
    server_name: &'a Option<At<Text>>,
    min_remaining: &'a Option<At<Duration>>,
}

impl Tls<'_> {
    fn options(&self, on: bool, needs: &str, name: String, out: &mut Findings) -> Option<TlsOptions> {
        let insecure = self.insecure.as_ref().filter(|i| i.value);
        let remaining = self.min_remaining.as_ref().filter(|m| !m.is_zero());
        let (cert, key) = self.client.map_or((None, None), |(c, k)| (c.as_ref(), k.as_ref()));
        if !on {
            let mut refuse = |path: &str, place| {
                let key = path.rsplit('.').next().unwrap_or(path);
                out.at(path, place, format!("{key} has no effect without TLS"))
                    .help(format!("it needs {needs}"));
            };
            insecure.into_iter().for_each(|a| refuse(&a.path, &a.place));
            remaining.into_iter().for_each(|a| refuse(&a.path, &a.place));
            self.server_name.iter().for_each(|a| refuse(&a.path, &a.place));
            [self.ca_cert.as_ref(), cert, key].into_iter().flatten().for_each(|a| refuse(&a.path, &a.place));
            return None;
        }
        if let (Some(insecure), Some(ca)) = (insecure, self.ca_cert) {
            out.error(insecure, "tls_insecure and tls_ca_cert exclude each other: one accepts anything")
                .note(&ca.place, "the authority");
        }
        if let Some(ca) = self.ca_cert {
            certificates(ca, out);
        }
        match (cert, key) {
            (Some(cert), Some(key)) => {
                certificates(cert, out);
                if let Err(e) = PrivateKeyDer::from_pem_file(&key.value) {
                    out.error(key, format!("cannot use this key: {}", pem(&e, "PRIVATE KEY")));
                }
            }
            (Some(one), None) => {
                out.error(one, "a client certificate needs its key").help("add `tls_client_key`");
            }
            (None, Some(one)) => {
                out.error(one, "a client key needs its certificate").help("add `tls_client_cert`");
            }
            (None, None) => {}
        }
        let server_name = self.server_name.as_ref().map_or(name, |n| n.value.0.clone());
        if let Some(at) = self.server_name
            && !is_dns_name(&server_name)
            && server_name.parse::<IpAddr>().is_err()
        {
            out.error(at, "this is not the name or address of a server");
        }
        Some(TlsOptions {
            insecure: insecure.is_some(),
            ca_cert: value(self.ca_cert),
            client_cert: cert.zip(key).map(|(c, k)| (c.value.clone(), k.value.clone())),
            server_name,
            min_remaining: or(self.min_remaining, Duration::ZERO),
        })
    }
}

fn certificates(at: &At<PathBuf>, out: &mut Findings) {
    let result = CertificateDer::pem_file_iter(&at.value).and_then(|all| all.collect::<Result<Vec<_>, _>>());
    match result {
        Err(e) => {
            out.error(at, format!("cannot use this file: {}", pem(&e, "CERTIFICATE")));
        }
        Ok(all) if all.is_empty() => {
            out.error(at, "there is no certificate in this file")
                .help("it must hold PEM: -----BEGIN CERTIFICATE-----");
        }
        Ok(_) => {}
    }
}

fn pem(e: &rustls_pki_types::pem::Error, what: &str) -> String {
    use rustls_pki_types::pem::Error;
    match e {
        Error::Io(e) => super::in_words(e),
        Error::NoItemsFound => format!("it holds no PEM block -----BEGIN {what}-----"),
        other => format!("it is not PEM ({other})"),
    }
}
