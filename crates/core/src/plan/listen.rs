//! The listener's part of the plan: whose sessions it takes, and how each VIP's traffic is spread over them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::{Bfd, PeerAsn, Secret, Timers, Ttl};
use crate::prefix::{Afi, Prefix};

/// The listener role: which members are accepted, and which VIPs become kernel routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Ranges that members may dial from; the most specific one that contains the source decides.
    pub accept: Vec<Accept>,
    /// VIPs that members may announce, by name. Anything else is counted and ignored.
    pub vips: BTreeMap<String, ListenerVip>,
    /// Routing table the routes go to; default 254 (main).
    pub table: u32,
    /// What a clean stop does with the kernel's objects.
    pub on_stop: OnStop,
    /// The seed of the kernel's flow hash that every listener of a site should have; `None`: whatever it is. It is compared by
    /// `standfast doctor`, and not set by the daemon.
    pub hash_seed: Option<u32>,
    /// The first eight bits of the packet marks by which new connections are kept from members that drain, which nobody else may
    /// use; default 0x5f000000. `None`: new connections go by the group alone.
    pub drain_mark: Option<u32>,
}

impl Listener {
    /// A listener that routes `vips` of members in `accept` in the main table.
    pub const fn new(accept: Vec<Accept>, vips: BTreeMap<String, ListenerVip>) -> Self {
        Self {
            accept,
            vips,
            table: 254,
            on_stop: OnStop::Keep,
            hash_seed: None,
            drain_mark: Some(0x5f00_0000),
        }
    }
}

/// What a clean stop of a listener does with the routes, next hops and translations it made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnStop {
    /// They stay, so that traffic flows on while standfast is restarted, which adopts them; the default.
    #[default]
    Keep,
    /// They go.
    Remove,
}

/// A VIP that members may announce, and how its traffic is spread over them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerVip {
    /// The prefix; nothing more or less specific is taken.
    pub prefix: Prefix,
    /// How flows find their member.
    pub hashing: Hashing,
    /// What share each member has.
    pub weights: Weights,
    /// Members that their own withdrawal may not take away.
    pub floor: Option<ListenerFloor>,
    /// Where the world finds it, if not at its own address: translated with nftables.
    pub public: Option<Public>,
    /// How long a member that drains may keep its connections before it is removed; default 5 min.
    pub drain: Duration,
}

impl ListenerVip {
    /// A VIP with plain hashing and equal shares, and nothing else.
    pub const fn new(prefix: Prefix) -> Self {
        Self {
            prefix,
            hashing: Hashing::Plain,
            weights: Weights::Equal,
            floor: None,
            public: None,
            drain: Duration::from_secs(300),
        }
    }
}

/// How a flow finds its member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hashing {
    /// One resilient nexthop group: a change of members moves no flow that is alive on a member that stays.
    Resilient {
        /// Hash buckets, 1..=65535, fixed when the group is made. Choose 8 times the flows alive at a time or more. `None`: as many
        /// as a group has that an earlier run left, so that no flow moves, and [`Hashing::BUCKETS`] for a new one.
        buckets: Option<u16>,
        /// How long a bucket must have been silent before it may move; longer than the longest silence inside a flow. Default 120 s.
        idle_timer: Duration,
        /// How long the shares may be wrong before buckets are moved although they are busy, which breaks flows; zero, the default: never.
        unbalanced_timer: Duration,
    },
    /// The same table of slots on every listener that has the same members: what moves from one listener to another finds its member.
    Consistent {
        /// Slots of the table, 1..=512; default 120. The kernel searches them one by one.
        slots: u16,
    },
    /// The kernel's ordinary multipath route: every change of members moves flows of all of them.
    Plain,
}

impl Hashing {
    /// Buckets of a resilient group whose plan names none. The kernel walks through all of them at each change.
    pub const BUCKETS: u16 = 4096;
}

/// What share of the flows each member has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Weights {
    /// The same; the default.
    #[default]
    Equal,
    /// In proportion to the link bandwidth community that each announces; a member without it has the least share that another asks for.
    LinkBandwidth,
}

/// Members that their own withdrawal may not take away (a session that ends always does).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerFloor {
    /// So many are held, 1 or more.
    pub members: u16,
    /// For at most so long; default 10 min.
    pub hold: Duration,
}

/// A public address whose packets are translated to the VIP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Public {
    /// The address, of the VIP's family.
    pub address: IpAddr,
    /// TCP and UDP ports; empty: all of every protocol.
    pub ports: Vec<u16>,
}

/// A range of members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accept {
    /// Unique name.
    pub name: String,
    /// Sources that it covers.
    pub range: Prefix,
    /// The interface that a link-local range is on; `None` for every other range.
    pub interface: Option<String>,
    /// AS number that a member must show.
    pub asn: PeerAsn,
    /// TCP MD5 key of the whole range.
    pub password: Option<Secret>,
    /// Names of the VIPs that members may announce; `None`: all of the listener.
    pub vips: Option<BTreeSet<String>>,
    /// Most members at one time, those with an established session; default 64.
    pub max_members: usize,
    /// Most addresses whose session is not established yet; default `max_members`. The one that has taken longest makes room.
    pub max_opening: usize,
    /// How long a connection may take from its first octet to Established; default 10 s.
    pub open_timeout: Duration,
    /// Least hold time accepted from a member, so that one that goes silent is noticed; default 3 s.
    pub min_hold: Duration,
    /// IPv4 VIPs with an IPv6 next hop (RFC 8950), where the member asks for it; default for IPv6 ranges alone.
    pub extended_next_hop: bool,
    /// How far away members may be.
    pub ttl: Ttl,
    /// Session timers.
    pub timers: Timers,
    /// Liveness by BFD; default none.
    pub bfd: Option<Bfd>,
    /// Tell members who else announces their VIPs, so that each can hold a [`Floor`](super::Floor); default no.
    pub reflect: bool,
}

impl Accept {
    /// Directly connected members of `asn` in `range`, without a key and with every default.
    pub fn new(name: &str, range: Prefix, asn: PeerAsn) -> Self {
        Self {
            name: name.to_owned(),
            range,
            interface: None,
            asn,
            password: None,
            vips: None,
            max_members: 64,
            max_opening: 64,
            open_timeout: Duration::from_secs(10),
            min_hold: Duration::from_secs(3),
            extended_next_hop: range.afi() == Afi::Ipv6,
            ttl: Ttl::Direct,
            timers: Timers::default(),
            bfd: None,
            reflect: false,
        }
    }
}
