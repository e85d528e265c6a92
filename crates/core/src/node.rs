//! All roles of one host: the machine that the driver runs.
//!
//! [`Node`] takes verdicts, bytes and kernel events and gives bytes, connections, addresses, routes and events.
//! It owns the announcer, the sessions and the listener, and drains their outputs inside its own call.

mod bfd;
mod facts;
mod fleet;
mod host;
mod members;
mod past;
mod reflect;
mod reload;
mod status;
mod timers;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub use bfd::BfdStatus;
pub use facts::{Facts, FlapFact, OrderFact, StandingFact, WithdrawnFact};
pub use host::{Node, source};
pub use members::Admission;
pub use reload::{Fixed, fixed};
pub use status::{
    BalanceStatus, CheckStatus, DrainStatus, EndStatus, GoneStatus, GroupStatus, HopStatus, IgnoredStatus,
    ListenerSlice, ListenerStatus, MemberStatus, MemberVipStatus, OrderStatus, PeerStatus, Status, VipStatus,
};

use crate::health::Verdict;
use crate::listen::{Group, Hop, Links};
use crate::plan::{CheckId, Plan, Secret, Ttl};
use crate::prefix::{Afi, Prefix};
use crate::table::Change;

/// A TCP connection. Dialled ones are numbered by the node, accepted ones by the driver from [`ConnId::ACCEPTED`] up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

impl ConnId {
    /// The first number of an accepted connection.
    pub const ACCEPTED: Self = Self(1 << 63);
}

/// What the world did.
#[derive(Debug, Clone)]
pub enum Input {
    /// A check ended, or somebody reported for it.
    Reported(CheckId, Verdict),
    /// A dial succeeded, or a peer's connection was accepted.
    Connected {
        /// The connection.
        conn: ConnId,
        /// Our end.
        local: SocketAddr,
        /// The peer's end.
        remote: SocketAddr,
    },
    /// Octets arrived, in order.
    Received(ConnId, Bytes),
    /// The socket took octets; this many are still queued.
    Written(ConnId, usize),
    /// The connection ended, or the dial failed, for this reason in words. Nothing more comes of it.
    Closed(ConnId, String),
    /// The addresses that this host has now, and can use.
    Addresses(BTreeSet<LocalAddress>),
    /// The interfaces that are up, told before the first connection is.
    Links(Links),
    /// Managed addresses that an earlier run left: they go like withdrawn ones once the checks have decided, if they are not wanted.
    Left(BTreeSet<LocalAddress>),
    /// Whether a VIP's `lower_priority_file` exists.
    LowerPriorityFile(String, bool),
    /// The share of the traffic that the service behind a VIP asks for, 0..=100 %, of the link bandwidth that it announces.
    /// Smoothed and told seldom, but for 0, which is told at once.
    Share(String, u8),
    /// Forget the failures for which a VIP is held back by its damping.
    Undamp(String),
    /// What runs the checks did nothing for so long although it should have.
    HeldUp(Duration),
    /// The kernel took, or refused, the last change of this managed address or route; it stays pending until it is taken.
    Kernel(KernelKey, Result<(), String>),
    /// Drain a member of the listener, by its address: no new flows, and out when those that it has are over or the time is up.
    Drain {
        /// Its address.
        member: IpAddr,
        /// The VIP, by name; `None`: all of them.
        vip: Option<String>,
        /// How long it may keep its flows; `None`: as long as the VIP's plan says.
        timeout: Option<Duration>,
    },
    /// Take such an order back.
    Undrain {
        /// The member's address.
        member: IpAddr,
        /// The VIP, by name; `None`: all of them.
        vip: Option<String>,
    },
    /// Drain a VIP of this host: its peers are told that it leaves, and when its connections are over, or its time is up, it is
    /// withdrawn.
    DrainVip {
        /// The VIP, by name; `None`: all of them.
        vip: Option<String>,
        /// The longest that it may take; `None`: as long as the VIP's plan says.
        deadline: Option<Duration>,
    },
    /// Take such an order back.
    UndrainVip {
        /// The VIP, by name; `None`: all of them.
        vip: Option<String>,
    },
    /// The connections of a VIP, by name, or why they cannot be counted. Told every second while [`Output::Count`] asks for it.
    Connections(String, Result<u64, String>),
    /// Somebody took a managed address off, and it is there again.
    Restored(LocalAddress),
    /// How many buckets of a resilient group each of its next hops holds, and how many of those are busy. Told every second while
    /// one of them is draining.
    Buckets(Prefix, BTreeMap<Hop, Held>),
    /// Why new connections are not kept from members that drain beyond what their groups do, or that they are again.
    Unsteered(Option<String>),
    /// What BFD says of a session.
    Bfd(crate::bfd::Key, crate::bfd::Report),
    /// Why the packets of a BFD session cannot be sent, or that they can again.
    BfdUnsent(crate::bfd::Key, Option<String>),
    /// BFD packets since the start, over all sessions.
    BfdCounted(crate::bfd::Counters),
    /// What was known before a restart; handed in before members can come.
    Recalled(Box<Facts>),
    /// Go on by another plan. Nothing happens by one that [changes what is fixed](fixed).
    Plan(Arc<Plan>),
    /// Leave in order: drain what is to be drained first, withdraw, say why, close. A second one waits for no drain.
    Stop(String),
}

/// The buckets that a next hop holds in a resilient group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// All of them.
    pub buckets: u32,
    /// Those that saw a packet within the group's idle timer.
    pub busy: u32,
    /// Connections besides, remembered for the next hop since another one drained, that were heard of within the idle timer.
    pub moved: u32,
}

/// An address on an interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalAddress {
    /// The address.
    pub address: IpAddr,
    /// The interface's name.
    pub interface: String,
}

/// A kernel object that the node asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum KernelKey {
    /// A VIP's address on an interface.
    Address(LocalAddress),
    /// A route of the listener.
    Route(Prefix),
    /// Next hop groups of a kind that the kernel may not have.
    Groups,
    /// A routing table of the listener's, which packets of a family must be led to.
    Table(u32, Afi),
    /// A socket that waits for connections.
    Listen(SocketAddr),
}

impl fmt::Display for KernelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(a) => write!(f, "address {} on {}", a.address, a.interface),
            Self::Route(prefix) => write!(f, "route {prefix}"),
            Self::Groups => f.write_str("next hop groups"),
            Self::Table(table, afi) => {
                write!(f, "{} in table {table}", if *afi == Afi::Ipv4 { "IPv4" } else { "IPv6" })
            }
            Self::Listen(address) => write!(f, "socket {address}"),
        }
    }
}

/// What the world is asked to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Open a connection.
    Dial(Dial),
    /// Queue these octets.
    Send(ConnId, Bytes),
    /// Close after what is queued has left, or after a second.
    Close(ConnId),
    /// Give a connection up if the other end leaves octets unacknowledged for so long; `None`: as long as the system bears it.
    Patience(ConnId, Option<Duration>),
    /// Put a VIP's address on an interface, or take it off. One that was there before is left alone.
    Address(Change<LocalAddress, ()>),
    /// Route a prefix over the next hops of a group, or stop.
    Route(Change<Prefix, Arc<Group>>),
    /// The session of a member of the listener came up, or ended: what an earlier run left for it in the kernel is over soon, or at
    /// once. What it announces is told by the routes that follow. Told when this host stops: of no member.
    Member(Hop, bool),
    /// Whether a check is between two states, so that its runs are to come at its `fast_interval` and each of them may decide.
    /// It is until the first of these comes.
    Pace(CheckId, bool),
    /// Count the connections of a VIP, by name, each second from now on, or stop that.
    Count(String, bool),
    /// Have a BFD session, or switch it off.
    Bfd(Change<crate::bfd::Key, crate::bfd::Config>),
    /// What [`Node::facts`] tells is something else from here on.
    Remember,
    /// Something an operator would want to know.
    Event(Event),
    /// Everything that [`Input::Stop`] asked for is done.
    Stopped,
}

/// How to open a connection.
#[derive(Debug, Clone, PartialEq)]
pub struct Dial {
    /// Its number.
    pub conn: ConnId,
    /// Where to.
    pub remote: SocketAddr,
    /// Interface, for a link-local address.
    pub interface: Option<String>,
    /// Source address.
    pub local: Option<IpAddr>,
    /// Source port.
    pub local_port: Option<u16>,
    /// Hop limit.
    pub ttl: Ttl,
    /// Whether the peer is in our AS (then [`Ttl::Direct`] does not limit hops).
    pub internal: bool,
    /// TCP MD5 key.
    pub password: Option<Secret>,
    /// Give up after this long.
    pub timeout: Duration,
}

/// How loud an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A decision or a packet of interest when looking closely.
    Debug,
    /// A VIP, peer or member changed state.
    Info,
    /// An operator may be woken.
    Warn,
}

/// Something an operator would want to know, with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// How loud.
    pub level: Level,
    /// What it is about: `vip web`, `peer front`, `member 192.0.2.11`.
    pub about: String,
    /// What happened and why, in the words that status shows too.
    pub message: String,
}
