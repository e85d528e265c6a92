//! The typed, complete, ordered configuration: every default filled, every reference checked.
//!
//! A [`Plan`] is made by the daemon from a file, or by the library's builder. After it, no code asks "is it set?".
//! It holds no file handles and compiles nothing: certificates and expressions of probes are named here and opened in `io`.

mod bfd;
mod dns;
mod drain;
mod listen;
mod vip;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use bfd::{Bfd, BfdAuth};
pub use dns::{DnsProbe, DnsRcode, DnsTransport, DnsType, DnsWant};
pub use drain::{Drain, DrainMode, DrainUntil};
pub use listen::{Accept, Hashing, Listener, ListenerFloor, ListenerVip, OnStop, Public, Weights};
pub use vip::{Attributes, Damping, FailAction, Floor, Vip};

/// Everything one host is to do. A role runs if and only if its part is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Who this speaker is.
    pub router: Router,
    /// The BGP speaker: where it listens and its peers.
    pub bgp: Bgp,
    /// Announcer: the VIPs of this host, by name.
    pub vips: BTreeMap<String, Vip>,
    /// Checks, by VIP and name; shared ones under their name alone.
    pub checks: BTreeMap<CheckId, Check>,
    /// Listener: members accepted and kernel routes made, if the role is asked for.
    pub listener: Option<Listener>,
}

/// Identity of the speaker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Router {
    /// Local AS number, 1..=4294967295 except 23456 (RFC 4893 AS_TRANS).
    pub asn: u32,
    /// BGP identifier; not 0.0.0.0 (RFC 6286).
    pub router_id: Ipv4Addr,
    /// Source of every session and next hop of every route, unless the peer says otherwise. `None`: the session's own local address.
    pub local_address: Option<IpAddr>,
    /// Next hop of IPv6 routes. `None`: the session's own local address, if it is a global IPv6 one.
    pub local_address_ipv6: Option<Ipv6Addr>,
}

/// The BGP speaker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bgp {
    /// Addresses to accept sessions on; empty: never listen (`listen_port: -1`).
    pub listen: Vec<SocketAddr>,
    /// Peers, by name.
    pub peers: BTreeMap<String, Peer>,
}

/// One configured BGP peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Unique name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Interface of a link-local address.
    pub interface: Option<String>,
    /// TCP port to dial; default 179.
    pub port: u16,
    /// The AS number it must have.
    pub asn: PeerAsn,
    /// Source address of the session and, where its family fits, next hop. `None`: `router.local_address`, then the kernel's choice.
    pub local_address: Option<IpAddr>,
    /// Source port; `None`: any.
    pub local_port: Option<u16>,
    /// Wait for the peer to dial instead of dialling.
    pub passive: bool,
    /// Whether `/readyz` needs it established.
    pub required: bool,
    /// How far away it may be.
    pub ttl: Ttl,
    /// TCP MD5 key (RFC 2385).
    pub password: Option<Secret>,
    /// Session timers.
    pub timers: Timers,
    /// Graceful restart (RFC 4724): the restart time told to the peer; `None` is off. 1..=4095 s.
    pub graceful_restart: Option<Duration>,
    /// IPv4 routes with an IPv6 next hop (RFC 8950), where the peer agrees.
    pub extended_next_hop: bool,
    /// Liveness by BFD; default none.
    pub bfd: Option<Bfd>,
    /// Names of the VIPs told to this peer; `None`: all.
    pub vips: Option<BTreeSet<String>>,
}

impl Peer {
    /// A directly connected peer that is dialled on port 179, required, without a key, told every VIP, with the default timers.
    pub fn new(name: &str, address: IpAddr, asn: PeerAsn) -> Self {
        Self {
            name: name.to_owned(),
            address,
            interface: None,
            port: 179,
            asn,
            local_address: None,
            local_port: None,
            passive: false,
            required: true,
            ttl: Ttl::Direct,
            password: None,
            timers: Timers::default(),
            graceful_restart: None,
            extended_next_hop: false,
            bfd: None,
            vips: None,
        }
    }
}

/// The AS number a peer must show in its OPEN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerAsn {
    /// This one.
    Number(u32),
    /// Any but ours.
    External,
    /// Ours.
    Internal,
}

/// The hop limit of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ttl {
    /// Directly connected: eBGP sends TTL 1, iBGP the system's default.
    Direct,
    /// Multihop with this TTL, 2..=255.
    Multihop(u8),
    /// GTSM (RFC 5082): sends 255 and takes only what travelled at most this many hops, 1..=254.
    Security(u8),
}

/// Timers of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timers {
    /// Hold time offered: 0 (never expire) or 3..=65535 s; default 90 s. RFC 4271 §4.2.
    pub hold: Duration,
    /// Keepalive interval; a third of the negotiated hold time if `None`, and never longer than that.
    pub keepalive: Option<Duration>,
    /// Delay before the second dial, growing with jitter up to `connect_retry_max`; the first dial is at once. Default 1 s.
    pub connect_retry: Duration,
    /// The longest delay between two dials; default 30 s.
    pub connect_retry_max: Duration,
    /// Send hold time (RFC 9687): how long the peer may take nothing of what is queued; default max(8 min, 2 x hold).
    pub send_hold: Duration,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            hold: Duration::from_secs(90),
            keepalive: None,
            connect_retry: Duration::from_secs(1),
            connect_retry_max: Duration::from_secs(30),
            send_hold: Duration::from_secs(480),
        }
    }
}

/// A check: `vip/check`, or the name alone of one that VIPs share. A copy of it costs no memory: each verdict carries one.
#[derive(Debug, Clone)]
pub struct CheckId(Arc<CheckName>);

/// The name of a check in its two parts.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckName {
    /// The VIP's name; empty for a shared check.
    pub vip: Box<str>,
    /// The check's name, unique in the VIP or among the shared ones.
    pub check: Box<str>,
    digest: u64,
}

impl CheckId {
    /// The check of this name of a VIP.
    pub fn new(vip: &str, check: &str) -> Self {
        // The same in every process: its keys are fixed.
        let mut digest = DefaultHasher::new();
        (vip, check).hash(&mut digest);
        Self(Arc::new(CheckName { vip: vip.into(), check: check.into(), digest: digest.finish() }))
    }

    /// The shared check of this name.
    pub fn shared(check: &str) -> Self {
        Self::new("", check)
    }

    /// Whether VIPs share it.
    pub fn is_shared(&self) -> bool {
        self.vip.is_empty()
    }

    /// A digest of the name, spread over all 64 bits: finding one of ten thousand by it touches less memory than comparing names.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }
}

impl Deref for CheckId {
    type Target = CheckName;

    fn deref(&self) -> &CheckName {
        &self.0
    }
}

impl PartialEq for CheckId {
    fn eq(&self, other: &Self) -> bool {
        // Nearly always it is a copy.
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for CheckId {}

impl PartialOrd for CheckId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for CheckId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

impl Hash for CheckId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest);
    }
}

impl fmt::Display for CheckId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_shared() { f.write_str(&self.check) } else { write!(f, "{}/{}", self.vip, self.check) }
    }
}

/// How a check runs and how its verdicts become health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Time between the starts of two runs; default 1 s.
    pub interval: Duration,
    /// The longest a run may take, less than `interval`; default 100 ms.
    pub timeout: Duration,
    /// Good runs in a row that make it healthy, at least 1; default 1.
    pub rise: u32,
    /// Bad runs in a row that make it unhealthy, at least 1; default 3.
    pub fall: u32,
    /// Time between the starts of two runs while it is between two states: some good runs but not yet `rise`, or some
    /// bad ones but not yet `fall`. More than `timeout`; default: `interval`.
    pub fast_interval: Duration,
    /// Good runs that are too slow to count as good; default: none is.
    pub slow: Option<Slow>,
    /// How the probe's packets leave this host.
    pub via: Via,
    /// Whether it has metrics of its own besides those that every check has; default: no.
    pub detailed_metrics: bool,
    /// What is asked.
    pub probe: Probe,
}

/// When slowness is a failure: from the `times`th good run on that took longer than `limit` without a faster one in between,
/// each counts as bad, until one is fast enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slow {
    /// What is too slow; less than the check's timeout.
    pub limit: Duration,
    /// How many in a row, at least 1.
    pub times: u32,
}

/// How a probe's packets leave this host, and what stands before them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Via {
    /// Source address, of the target's family; `None`: the kernel's choice. One that is not on this host fails the run.
    pub source: Option<IpAddr>,
    /// Interface that they leave by (`SO_BINDTODEVICE`); `None`: as routed.
    pub interface: Option<String>,
    /// Firewall mark (`SO_MARK`, needs `CAP_NET_ADMIN`); `None`: none.
    pub mark: Option<u32>,
    /// PROXY protocol header before the first byte of a TCP connection; `None`: none.
    pub proxy_protocol: Option<ProxyProtocol>,
}

/// The version of a PROXY protocol header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProxyProtocol {
    /// The line of text: `PROXY TCP4 ...`.
    V1,
    /// The binary one, with the command LOCAL: what a health check is to send.
    V2,
}

impl Check {
    /// A check with the defaults of a check: each second, for 100 ms, rise 1, fall 3.
    pub fn new(probe: Probe) -> Self {
        let interval = Duration::from_secs(1);
        Self {
            interval,
            timeout: Duration::from_millis(100),
            rise: 1,
            fall: 3,
            fast_interval: interval,
            slow: None,
            via: Via::default(),
            detailed_metrics: false,
            probe,
        }
    }

    /// Whether its runs ask the same as those of `other`: then what the one knows holds for the other.
    pub fn asks_as(&self, other: &Self) -> bool {
        (&self.probe, &self.via) == (&other.probe, &other.via)
    }

    /// How long silence is tolerated before it counts as a bad verdict; `None`: for ever. `hurried`: while `fast_interval` is
    /// in force.
    ///
    /// Two intervals and a timeout, and a second at least: a run that neither ended nor timed out by then means a wedged
    /// prober. For [`Probe::External`] it is the lease: `interval`, or for ever if that is zero.
    pub fn stale(&self, hurried: bool) -> Option<Duration> {
        match self.probe {
            Probe::External => (!self.interval.is_zero()).then_some(self.interval),
            Probe::Members(_) => None,
            _ => Some((self.interval_in_force(hurried) * 2 + self.timeout).max(Duration::from_secs(1))),
        }
    }

    /// The time between the starts of two runs.
    pub fn interval_in_force(&self, hurried: bool) -> Duration {
        if hurried { self.fast_interval } else { self.interval }
    }
}

/// What a check asks. Opened and compiled by `io`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Probe {
    /// HTTP over TCP or TLS.
    Http(Box<HttpProbe>),
    /// A TCP connection that opens, and perhaps what is said over it.
    Tcp(Box<TcpProbe>),
    /// A command of this host.
    Exec(Box<ExecProbe>),
    /// DNS questions to one server.
    Dns(Box<DnsProbe>),
    /// ICMP echo requests.
    Ping(PingProbe),
    /// A UDP datagram and what comes back.
    Udp(UdpProbe),
    /// A gRPC call.
    Grpc(Box<GrpcProbe>),
    /// A process, followed to its end.
    Process(ProcessProbe),
    /// Members of a VIP of this host's listener: the node gives the verdicts itself, each time that their number changes.
    Members(MembersProbe),
    /// Says nothing by itself: verdicts are reported from outside, at least once in each [`Check::interval`].
    External,
}

impl Probe {
    /// The address that it connects to, if it is given as one.
    pub fn address(&self) -> Option<IpAddr> {
        let target = match self {
            Self::Tcp(tcp) => &tcp.target,
            Self::Ping(ping) => return Some(ping.target),
            Self::Http(http) => &http.target,
            Self::Dns(dns) => &dns.resolver,
            Self::Udp(udp) => &udp.target,
            Self::Grpc(grpc) => &grpc.target,
            Self::Exec(_) | Self::Process(_) | Self::Members(_) | Self::External => return None,
        };
        match target {
            Target::Address(at) => Some(at.ip()),
            Target::Name(..) | Target::Unix(_) => None,
        }
    }
}

/// An HTTP request and what counts as good.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HttpProbe {
    /// Where to connect, whatever the URL says: the VIP's own address by default.
    pub target: Target,
    /// TLS, if the scheme is https.
    pub tls: Option<TlsOptions>,
    /// GET, HEAD or POST.
    pub method: String,
    /// Path and query, beginning with `/`.
    pub path: String,
    /// The Host header, with the port where it is not the scheme's default.
    pub host: String,
    /// Further headers, in order.
    pub headers: Vec<(String, String)>,
    /// Body of a POST.
    pub body: Option<String>,
    /// Good status codes, as inclusive ranges; default 200 alone.
    pub status: Vec<(u16, u16)>,
    /// Text that the body must hold.
    pub text: Option<String>,
    /// Regular expression that the body must match.
    pub regex: Option<String>,
    /// jq program whose first output must be `true`.
    pub jq: Option<String>,
    /// Headers that the answer must have, each with a text that its value must hold; the text may be empty.
    pub response_headers: Vec<(String, String)>,
    /// The version spoken; default [`HttpVersion::Auto`].
    pub version: HttpVersion,
    /// Redirects are followed; `None`, the default: they are judged themselves.
    pub follow: Option<Follow>,
    /// Forward proxy as `http://[user:password@]host:port`, or `https://` if it is itself reached over TLS.
    pub proxy: Option<Secret>,
    /// PEM file of authorities trusted besides the system's for an `https://` proxy.
    pub proxy_ca_cert: Option<PathBuf>,
    /// Keep the connection for the next run; default off.
    pub keep_alive: bool,
    /// The most of a body that is read; default 1 MiB.
    pub body_limit: usize,
}

impl HttpProbe {
    /// A GET of `/` in plain HTTP, with the defaults of an HTTP check.
    pub fn new(target: Target, host: &str) -> Self {
        Self {
            target,
            tls: None,
            method: "GET".to_owned(),
            path: "/".to_owned(),
            host: host.to_owned(),
            headers: Vec::new(),
            body: None,
            status: vec![(200, 200)],
            text: None,
            regex: None,
            jq: None,
            response_headers: Vec::new(),
            version: HttpVersion::Auto,
            follow: None,
            proxy: None,
            proxy_ca_cert: None,
            keep_alive: false,
            body_limit: 1 << 20,
        }
    }
}

/// The version of HTTP that a check speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HttpVersion {
    /// The one that TLS agrees on, HTTP/2 first; without TLS HTTP/1.1.
    Auto,
    /// HTTP/1.1 alone.
    Http1,
    /// HTTP/2 alone; without TLS with prior knowledge (RFC 9113 §3.3).
    Http2,
}

/// How redirects are followed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Follow {
    /// The most that are followed in one run, 1..=10.
    pub limit: u8,
    /// Whether one may lead from https to http.
    pub downgrade: bool,
    /// TLS for https URLs elsewhere; the name is that of each URL.
    pub tls: TlsOptions,
}

/// A TCP connection: good if it opens and, where something is expected, that comes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TcpProbe {
    /// Where to connect.
    pub target: Target,
    /// TLS, if asked for.
    pub tls: Option<TlsOptions>,
    /// What is sent once it is open; empty: nothing.
    pub send: Vec<u8>,
    /// What the server must say, at the start or after `send`; `None`: nothing is read.
    pub expect: Option<Expect>,
    /// Close with a reset, which leaves no TIME_WAIT at either end.
    pub reset: bool,
}

impl TcpProbe {
    /// A connection to `target` that opens, and is closed in order.
    pub const fn new(target: Target) -> Self {
        Self { target, tls: None, send: Vec::new(), expect: None, reset: false }
    }
}

/// What octets must hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Expect {
    /// These octets, anywhere.
    Bytes(Vec<u8>),
    /// A match of this regular expression, over octets.
    Regex(String),
}

/// A command; good if it exits with 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExecProbe {
    /// The program, by its absolute path, and its arguments; no shell is between. At least one.
    pub argv: Vec<String>,
    /// Its whole environment, besides `PATH` if it is not here. A file's checks have `STANDFAST_VIP` and `STANDFAST_CHECK` in it.
    pub env: BTreeMap<String, String>,
    /// Its working directory; default `/`.
    pub directory: PathBuf,
    /// The user it runs as, by name or number, with that user's group; `None`: the daemon's.
    pub user: Option<String>,
    /// Octets of its output that are kept; the rest is read and dropped. Default 4096.
    pub output_limit: usize,
    /// Exit codes as of Nagios plugins: 0 and 1 (warning) are good, 2 is bad, 3 (unknown) is no result. Otherwise 0 alone is good.
    pub nagios: bool,
}

/// ICMP echo requests; good if few enough of them stay unanswered and the others come back fast enough.
///
/// The whole run fits in the check's timeout: the last packet leaves early enough to be waited for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PingProbe {
    /// Who is asked: the VIP's own address by default.
    pub target: IpAddr,
    /// Source address, of the target's family; `None`: the one of [`Via`], or the kernel's choice.
    pub source: Option<IpAddr>,
    /// Use a raw socket (needs `CAP_NET_RAW`) instead of an ICMP datagram socket.
    pub privileged: bool,
    /// Packets in a run, 1..=60; default 1.
    pub count: u32,
    /// Time between two packets; it and `count` fit in the check's timeout. By default the timeout is divided evenly.
    pub interval: Duration,
    /// How long each packet is waited for; at most the check's timeout, which is the default.
    pub timeout: Duration,
    /// The part of the packets that may be lost without harm, in thousandths: 0..=999; default 0.
    pub max_loss_permille: u16,
    /// The longest that packets may take on average; `None`: as long as they are waited for.
    pub max_rtt: Option<Duration>,
}

impl PingProbe {
    /// One packet to `target`, waited for as long as `timeout`, the check's own.
    pub const fn new(target: IpAddr, timeout: Duration) -> Self {
        Self {
            target,
            source: None,
            privileged: false,
            count: 1,
            interval: timeout,
            timeout,
            max_loss_permille: 0,
            max_rtt: None,
        }
    }
}

/// A UDP datagram and what comes back. An ICMP error is bad.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UdpProbe {
    /// Where to.
    pub target: Target,
    /// What is sent; default one zero octet. At most 1472 octets.
    pub payload: Vec<u8>,
    /// What the answer must hold; `None`: anything, even nothing.
    pub expect: Option<Expect>,
    /// Silence is good once it has lasted this long; `None`: an answer must come within the check's timeout. Default `None`.
    pub silence: Option<Duration>,
}

impl UdpProbe {
    /// A datagram that must be answered, with anything.
    pub const fn new(target: Target, payload: Vec<u8>) -> Self {
        Self { target, payload, expect: None, silence: None }
    }
}

/// A gRPC call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GrpcProbe {
    /// Where to connect.
    pub target: Target,
    /// TLS, if asked for; plain HTTP/2 otherwise.
    pub tls: Option<TlsOptions>,
    /// The `:authority` header.
    pub authority: String,
    /// What is called.
    pub call: GrpcCall,
    /// Further request headers (metadata), in order; names in lower case.
    pub metadata: Vec<(String, String)>,
    /// Keep the connection for the next run; default off.
    pub keep_alive: bool,
}

/// What a gRPC check calls and what counts as good.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GrpcCall {
    /// `grpc.health.v1.Health/Check` of this service (empty: the whole server); good if it is SERVING.
    Health {
        /// The service asked about.
        service: String,
    },
    /// A unary method.
    Method(Box<GrpcMethod>),
}

/// A unary method, its request, and what counts as good.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GrpcMethod {
    /// `/package.Service/Method`, with the leading slash.
    pub path: String,
    /// The request in JSON; `None`: an empty one.
    pub request: Option<String>,
    /// Good status codes, 0..=16; default OK alone. A status made up locally (no connection, deadline) is never good.
    pub ok_codes: BTreeSet<u8>,
    /// A file of `protoc --descriptor_set_out` that defines the method; `None`: the server is asked by reflection, if
    /// `request` or a rule for the answer needs it.
    pub descriptor_set: Option<PathBuf>,
    /// Text that the answer in JSON must hold.
    pub text: Option<String>,
    /// Regular expression that the answer in JSON must match.
    pub regex: Option<String>,
    /// jq program whose first output on the answer must be `true`.
    pub jq: Option<String>,
}

impl GrpcMethod {
    /// An empty request to `path`, to be answered with OK.
    pub fn new(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            request: None,
            ok_codes: BTreeSet::from([0]),
            descriptor_set: None,
            text: None,
            regex: None,
            jq: None,
        }
    }
}

/// A process of this host; good while it lives. Its end is a bad verdict in the moment in which it ends, whoever takes its place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProcessProbe {
    /// What tells which process.
    pub follows: Followed,
    /// The name that it must have (`/proc/PID/comm`, 15 octets at most), so that a number that another process has by now is
    /// not taken for it; `None`: any.
    pub name: Option<String>,
}

impl ProcessProbe {
    /// The process whose number is in this file.
    pub fn pid_file(path: impl Into<PathBuf>) -> Self {
        Self { follows: Followed::PidFile(path.into()), name: None }
    }

    /// The main process of this unit.
    pub fn unit(name: &str) -> Self {
        Self { follows: Followed::Unit(name.to_owned()), name: None }
    }
}

/// What tells which process is followed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Followed {
    /// A file whose first line is its number.
    PidFile(PathBuf),
    /// A service of systemd, by its full name, whose main process it is.
    Unit(String),
}

/// Members of a VIP of this host's listener; good while so many announce it, or are held for it, and do not drain.
///
/// Its check has `rise` and `fall` 1 and no pace: a verdict stands until the number of members changes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MembersProbe {
    /// The VIP, by its name in [`Listener::vips`].
    pub vip: String,
    /// The least number of members, 1 or more; default 1.
    pub at_least: usize,
}

/// Where a probe connects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// An address.
    Address(SocketAddr),
    /// A name, resolved again when its answer is too old.
    Name(String, u16),
    /// A unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(at) => at.fmt(f),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

impl Target {
    /// The address or the name alone, as it stands in a URL without brackets; `localhost` for a unix socket.
    pub fn host(&self) -> String {
        match self {
            Self::Address(at) => at.ip().to_string(),
            Self::Name(name, _) => name.clone(),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }
}

/// TLS of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TlsOptions {
    /// Accept any certificate.
    pub insecure: bool,
    /// PEM file of authorities trusted besides the system's.
    pub ca_cert: Option<PathBuf>,
    /// PEM files of a client certificate and its key.
    pub client_cert: Option<(PathBuf, PathBuf)>,
    /// SNI and the name verified.
    pub server_name: String,
    /// Least time the certificate must still be valid.
    pub min_remaining: Duration,
}

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(String);

impl Secret {
    /// Wraps `text`.
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself, for the one place that uses it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}
