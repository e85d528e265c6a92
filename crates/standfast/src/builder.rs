//! What an announcer will be, as it is written down: nothing here is judged yet.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use crate::event::Event;
use crate::report::Verdict;
use crate::{Announcer, StartError};

/// A closure that says how the service is.
pub(crate) type Healthy = Box<dyn FnMut() -> Verdict<'static> + Send>;
/// A closure that counts the connections.
pub(crate) type Count = Box<dyn Fn() -> usize + Send>;
/// A closure that hears what happens.
pub(crate) type OnEvent = Box<dyn FnMut(&Event) + Send>;

/// What an announcer will be. Made by [`Announcer::builder`], judged as a whole by [`start`](Self::start).
///
/// Needed are an AS number, a peer and a VIP; everything else has a default.
#[must_use = "nothing happens before `start`"]
pub struct Builder {
    pub(crate) asn: Option<u32>,
    pub(crate) router_id: Option<Ipv4Addr>,
    pub(crate) local_addresses: Vec<IpAddr>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) vips: Vec<Vip>,
    pub(crate) rise: u32,
    pub(crate) fall: u32,
    pub(crate) interval: Duration,
    pub(crate) lease: Option<Duration>,
    pub(crate) drain_mode: DrainMode,
    pub(crate) healthy: Option<Healthy>,
    pub(crate) connections: Option<Count>,
    pub(crate) on_event: Option<OnEvent>,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            asn: None,
            router_id: None,
            local_addresses: Vec::new(),
            peers: Vec::new(),
            vips: Vec::new(),
            rise: 5,
            fall: 1,
            interval: Duration::from_secs(1),
            lease: None,
            drain_mode: DrainMode::GracefulShutdown,
            healthy: None,
            connections: None,
            on_event: None,
        }
    }

    /// Our AS number, 1..=4294967295 but for 23456 (RFC 6793). Needed.
    pub fn asn(mut self, asn: u32) -> Self {
        self.asn = Some(asn);
        self
    }

    /// Our BGP identifier, one that no other speaker of the AS has (RFC 6286).
    ///
    /// Default: the IPv4 [`local_address`](Self::local_address), else the address from which this host reaches its first IPv4 peer.
    pub fn router_id(mut self, id: Ipv4Addr) -> Self {
        self.router_id = Some(id);
        self
    }

    /// The source of sessions and the next hop of routes: at most one for each family.
    ///
    /// Default: for each session the address that the kernel chooses. An IPv6 address is needed to tell an IPv4 peer of an IPv6
    /// prefix, and the other way round.
    pub fn local_address(mut self, address: impl Into<IpAddr>) -> Self {
        self.local_addresses.push(address.into());
        self
    }

    /// Adds a router that is told the VIPs.
    pub fn peer(mut self, peer: Peer) -> Self {
        self.peers.push(peer);
        self
    }

    /// Adds a VIP.
    pub fn vip(mut self, vip: Vip) -> Self {
        self.vips.push(vip);
        self
    }

    /// Good samples in a row before a VIP is announced, 1 or more; default 5. A sample is taken each [`interval`](Self::interval), so
    /// that a cold process has served for so long before the world is sent to it.
    pub fn rise(mut self, samples: u32) -> Self {
        self.rise = samples;
        self
    }

    /// Bad samples in a row before a VIP is withdrawn, 1 or more; default 1. The first bad report counts at once; further ones count
    /// once in an [`interval`](Self::interval).
    pub fn fall(mut self, samples: u32) -> Self {
        self.fall = samples;
        self
    }

    /// How often reports become a sample, and how often the [`healthy`](Self::healthy) closure is asked, 10 ms..=1 h; default 1 s.
    ///
    /// However often it is reported, what was good since the last sample is one good sample, and what was bad once is a bad one.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Silence that counts as a bad report, so that a wedged service leaves by itself; 100 ms or more. Report at least three times
    /// as often.
    ///
    /// Default: three [intervals](Self::interval) with a [`healthy`](Self::healthy) closure; without one, silence says nothing.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Asks `healthy` once in each [`interval`](Self::interval), on a thread of its own, and reports what it says for every VIP.
    ///
    /// A panic in it is a bad verdict with the panic's message, and it is asked again. One that does not come back is silence,
    /// for which there is the [`lease`](Self::lease). Ask something that the service's own threads must answer: a closure that only
    /// says `true` proves that the process has not ended, which the end of the session would tell as well.
    pub fn healthy<V: Into<Verdict<'static>>>(
        mut self,
        mut healthy: impl FnMut() -> V + Send + 'static,
    ) -> Self {
        self.healthy = Some(Box::new(move || healthy().into()));
        self
    }

    /// Counts what a drain waits for: connections or requests that are still served, besides those that were
    /// [counted](Announcer::connection) one by one. Default: the kernel's count of TCP connections to the VIPs, unless any were counted
    /// one by one. It is asked 20 times a second during a drain, on the announcer's thread, and must
    /// not block.
    pub fn connections(mut self, count: impl Fn() -> usize + Send + 'static) -> Self {
        self.connections = Some(Box::new(count));
        self
    }

    /// How a drain begins; default [`DrainMode::GracefulShutdown`].
    pub fn drain_mode(mut self, mode: DrainMode) -> Self {
        self.drain_mode = mode;
        self
    }

    /// Calls `on_event` for whatever happens, on the announcer's thread: it must not block. If it panics it is called no more.
    ///
    /// A handle to the announcer that it holds keeps the announcer alive for ever; see [`Announcer::events`] for another way.
    pub fn on_event(mut self, on_event: impl FnMut(&Event) + Send + 'static) -> Self {
        self.on_event = Some(Box::new(on_event));
        self
    }

    /// Starts it: every VIP withdrawn, every peer dialled at once, on a thread of its own.
    ///
    /// # Errors
    /// [`StartError::Invalid`] with everything that is wrong with what was built; [`StartError::System`] if there is no thread or
    /// socket to be had. A peer that is not there is none: it is dialled until it is.
    pub fn start(self) -> Result<Announcer, StartError> {
        Announcer::start(self)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("asn", &self.asn)
            .field("peers", &self.peers)
            .field("vips", &self.vips)
            .finish_non_exhaustive()
    }
}

/// How a drain begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DrainMode {
    /// The VIPs stay announced until the connections are over, with the community GRACEFUL_SHUTDOWN (RFC 8326), and LOCAL_PREF 0 for
    /// internal peers: a router that honours it sends no new connections, and those that are here go on.
    GracefulShutdown,
    /// The VIPs are withdrawn, and what still comes is served. For routers that do not: those that spread flows by hash
    /// alone send the connections elsewhere, where they break.
    Withdraw,
}

/// A router that is told the VIPs.
///
/// ```
/// use standfast::Peer;
/// use std::time::Duration;
///
/// let peer = Peer::new("192.0.2.1", 64512).name("front").hold_time(Duration::from_secs(9));
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Peer {
    pub(crate) name: Option<String>,
    pub(crate) address: String,
    pub(crate) asn: u32,
    pub(crate) port: u16,
    pub(crate) interface: Option<String>,
    pub(crate) password: Option<Password>,
    pub(crate) hold_time: Duration,
    pub(crate) multihop: Option<u8>,
    pub(crate) ttl_security: Option<u8>,
    pub(crate) bfd: Option<(Duration, u8)>,
}

impl Peer {
    /// A directly connected router at this address (text or an address) with this AS number; ours makes the session an internal one.
    pub fn new(address: impl ToString, asn: u32) -> Self {
        Self {
            name: None,
            address: address.to_string(),
            asn,
            port: 179,
            interface: None,
            password: None,
            hold_time: Duration::from_secs(9),
            multihop: None,
            ttl_security: None,
            bfd: None,
        }
    }

    /// What it is called in the state and in events; default: its address.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The TCP port to dial; default 179.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// The interface of a link-local address.
    pub fn interface(mut self, interface: impl Into<String>) -> Self {
        self.interface = Some(interface.into());
        self
    }

    /// The TCP MD5 key (RFC 2385), 1..=80 octets; default none.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(Password(password.into()));
        self
    }

    /// The hold time offered, 3..=65535 s in whole seconds, or zero for a session that never expires; default 9 s. The lesser of the
    /// two ends' is how long a host that died without a word is still sent traffic, unless there is [BFD](Self::bfd).
    pub fn hold_time(mut self, hold: Duration) -> Self {
        self.hold_time = hold;
        self
    }

    /// The router is more than one hop away: sends with this TTL, 2..=255.
    pub fn multihop(mut self, ttl: u8) -> Self {
        self.multihop = Some(ttl);
        self
    }

    /// Sends with TTL 255 and takes only what travelled at most so many hops, 1..=254 (GTSM, RFC 5082). The router must do so too.
    pub fn ttl_security(mut self, hops: u8) -> Self {
        self.ttl_security = Some(hops);
        self
    }

    /// Has BFD (RFC 5880) watch the session: packets each `interval`, 10 ms..=10 s, of which `multiplier`, 2..=255, may be lost.
    ///
    /// It binds a UDP port (RFC 5881) of this host, so only one program of the host can have it, and its own thread asks for
    /// real-time priority.
    pub fn bfd(mut self, interval: Duration, multiplier: u8) -> Self {
        self.bfd = Some((interval, multiplier));
        self
    }
}

/// A key that is never printed.
#[derive(Clone)]
pub(crate) struct Password(pub(crate) String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// An address, or a few, that are announced together while the service says so.
///
/// ```
/// use standfast::Vip;
///
/// let vip = Vip::new("web").prefix("198.51.100.10/32").prefix("2001:db8:100::10/128").community("64513:100");
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Vip {
    pub(crate) name: String,
    pub(crate) prefixes: Vec<String>,
    pub(crate) interface: Option<String>,
    pub(crate) communities: Vec<String>,
    pub(crate) large_communities: Vec<String>,
    pub(crate) prepend: u8,
    pub(crate) med: Option<u32>,
    pub(crate) local_pref: Option<u32>,
    pub(crate) bandwidth: Option<u64>,
}

impl Vip {
    /// A VIP of this name; it needs a [`prefix`](Self::prefix).
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            prefixes: Vec::new(),
            interface: None,
            communities: Vec::new(),
            large_communities: Vec::new(),
            prepend: 0,
            med: None,
            local_pref: None,
            bandwidth: None,
        }
    }

    /// Adds a prefix, as text or as an address: `198.51.100.10/32`, `2001:db8::10`. No other VIP of the announcer has it.
    pub fn prefix(mut self, prefix: impl ToString) -> Self {
        self.prefixes.push(prefix.to_string());
        self
    }

    /// Puts the addresses on this interface, usually `lo`, before they are announced, and takes them off after they were withdrawn.
    /// Needs `CAP_NET_ADMIN`. Default: they are there already, because the service has bound to them.
    pub fn manage_address(mut self, interface: impl Into<String>) -> Self {
        self.interface = Some(interface.into());
        self
    }

    /// Adds a community (RFC 1997), `64513:100`.
    pub fn community(mut self, community: impl ToString) -> Self {
        self.communities.push(community.to_string());
        self
    }

    /// Adds a large community (RFC 8092), `64513:1:100`.
    pub fn large_community(mut self, community: impl ToString) -> Self {
        self.large_communities.push(community.to_string());
        self
    }

    /// How many times our AS number stands in the path beyond the one time of an external session, 0..=64; default 0.
    pub fn prepend(mut self, times: u8) -> Self {
        self.prepend = times;
        self
    }

    /// MULTI_EXIT_DISC; default none.
    pub fn med(mut self, med: u32) -> Self {
        self.med = Some(med);
        self
    }

    /// LOCAL_PREF, told to internal peers only; default 100.
    pub fn local_pref(mut self, local_pref: u32) -> Self {
        self.local_pref = Some(local_pref);
        self
    }

    /// What this member can carry, in bytes per second, told as the link bandwidth community (draft-ietf-idr-link-bandwidth): a
    /// listener with weights spreads new connections in proportion, and [`Announcer::share`] tells less of it. Default: none is told.
    pub fn bandwidth(mut self, bytes_per_second: u64) -> Self {
        self.bandwidth = Some(bytes_per_second);
        self
    }
}
