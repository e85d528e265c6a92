//! The section `listener`: who may dial, and which VIPs are spread how.

use std::time::Duration;

use standfast_core::plan::{PeerAsn, Secret};
use standfast_core::prefix::Prefix;

use super::*;

section! {
    /// The other end: accepts sessions from members and routes their VIPs over them.
    Listener {
        /// Ranges that members may dial from; the most specific one that contains the source decides.
        accept: required [Accept];
        /// VIPs that members may announce; anything else is ignored.
        vips: required [ListenerVip];
        /// Routing table the routes go to; 254 is main.
        table: default Int<1, 4294967295> = "254";
        /// What a clean stop does with the routes, next hops and translations: `keep` lets traffic flow on until the next start, which takes them over; `remove` takes them away.
        on_stop: default OnStop = "keep";
        /// The seed of the kernel's flow hash that all listeners of a site are to have, for `consistent` hashing: `standfast doctor` compares it, and sets it with --fix.
        hash_seed: optional Int<1, 4294967295>;
        /// The first eight bits of the packet marks by which new connections are kept from members that drain: 95 is 0x5f, so that they are 0x5f000001 and up, as are the routing tables beside them. Nothing else on this host may use such marks or tables. 0: a new connection goes by its bucket, to a member that drains too.
        drain_mark: default Int<0, 255> = "95";
    }
}

section! {
    /// A range of members.
    Accept {
        /// Unique name.
        name: required Name;
        /// Sources that it covers. A link-local one, such as fe80::/10, needs its interface.
        range: required Prefix;
        /// The interface of a link-local range.
        interface: optional Interface;
        /// AS number that a member must show; `external` is any but ours, `internal` is ours.
        peer_asn: required PeerAsn;
        /// TCP MD5 key of the whole range, at most 80 octets. Link-local ranges share one: the kernel knows keys by address.
        auth_password: optional Secret;
        /// Names of the VIPs that these members may announce. Without it: all.
        vips: optional [Name];
        /// Most members at one time, those with an established session. A further one is refused.
        max_members: default Int<1, 100000> = "64";
        /// Most addresses whose session is not established yet, one connection each. The one that has taken longest makes room for a new one. Without it: as many as max_members.
        max_opening: optional Int<1, 100000>;
        /// How long a connection may take to become an established session, 1s to 60s.
        open_timeout: default Duration = "10s";
        /// IPv4 VIPs with an IPv6 next hop (RFC 8950), where the member asks for it. Without it: for IPv6 ranges.
        extended_next_hop: optional bool;
        /// The least hold time accepted from a member, so that one that goes silent is noticed.
        min_hold_time: default Duration = "3s";
        /// As bgp.hold_time, for these members.
        hold_time: optional Duration;
        /// As bgp.keepalive_time, for these members.
        keepalive_time: optional Duration;
        /// Whether members with another AS number may be more than one hop away.
        enable_multihop: default bool = "false";
        /// TTL of a multihop session, 2..255; 0 is 255.
        multihop_ttl: optional Int<0, 255>;
        /// GTSM (RFC 5082): take only packets that travelled at most this many hops; `true` is one. The members must do it too.
        ttl_security: default TtlSecurity = "false";
        /// Liveness by BFD (RFC 5880).
        bfd: optional Bfd;
        /// Tell these members who else announces their VIPs, for policy.floor of theirs. They must be announcers of standfast.
        reflect: default bool = "false";
    }
}

section! {
    /// A VIP that members may announce.
    ListenerVip {
        /// Unique name.
        name: required Name;
        /// The prefix; nothing more or less specific is taken.
        prefix: required Prefix;
        /// How flows find their member. `resilient`: a change of members moves no flow of those that stay. `consistent`: the same table on every listener with the same members. `plain`: the kernel's ECMP hash, which moves flows of all members at every change.
        hashing: default Hashing = "resilient";
        /// With resilient hashing: hash buckets, 8 or more for each flow alive at a time. Without it: 4096, or as many as the group has that is there already.
        buckets: optional Int<1, 65535>;
        /// With resilient hashing: how long a bucket must be silent to move, 1s to a day; longer than the longest silence inside a flow. Without it: 120s.
        idle_timer: optional Duration;
        /// With resilient hashing: how long the shares may be wrong before buckets move although they are busy, which breaks flows. Without it, or 0: never.
        unbalanced_timer: optional Duration;
        /// With consistent hashing: slots of the table. More spread more evenly, and the kernel searches them one by one. Without it: 120.
        slots: optional Int<1, 512>;
        /// Shares of the members: `equal`, or in proportion to the `link_bandwidth` community that each announces; a bandwidth of 0 drains.
        weights: default Weights = "equal";
        /// How long a member that drains may keep its connections, at most a day; 0: it leaves at once.
        drain_timeout: default Duration = "5m";
        /// Members that their own withdrawal cannot take away. Without it: one that withdraws is taken out at once, the last one too.
        floor: optional ListenerFloor;
        /// A public address that is translated to the VIP with nftables. Without it: packets come to the VIP itself.
        public: optional Public;
    }
}

section! {
    /// Members that their own withdrawal cannot take away, so that one bad check does not empty a VIP. A session that ends always takes its member out.
    ListenerFloor {
        /// So many are held.
        members: default Int<1, 1000> = "1";
        /// For at most so long after each withdrew.
        hold: default Duration = "10m";
    }
}

section! {
    /// A public address that is translated to the VIP with nftables.
    Public {
        /// The address, of the VIP's family.
        address: required IpAddr;
        /// TCP and UDP ports. Without it: everything that comes to the address.
        ports: optional [Int<1, 65535>];
    }
}
