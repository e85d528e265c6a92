//! The file, one to one: every section and key, its type, its default and what it means.
//!
//! This is the only list of keys. Reading, the check for unknown keys, `standfast schema` and the reference in
//! `docs/configuration.md` all come from it. What keys mean together is decided in `resolve`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use standfast_core::plan::{DnsRcode, DnsType, HttpVersion, PeerAsn, Secret};
use standfast_core::prefix::Prefix;

use super::read::{At, Findings, Key, Pairs, Read, section};
use super::tree::{Node, Value};
use super::value::*;

mod listener;

pub(crate) use listener::{Accept, Listener, ListenerFloor, ListenerVip, Public};

section! {
    /// The whole file.
    Root {
        /// The version of the file's format.
        schema: required Schema;
        /// Who this speaker is.
        router: required Router;
        /// The HTTP API.
        api: section Api;
        /// The log, on standard error.
        logging: section Logging;
        /// pathosd's OpenTelemetry export.
        otel: ignored, "this version exports no OpenTelemetry; metrics are at /metrics of the API";
        /// The directory where standing drain orders, and what floors hold, are kept over a restart. Without it: systemd's StateDirectory, else /var/lib/standfast.
        state_dir: optional PathBuf;
        /// The BGP speaker and its peers.
        bgp: section Bgp;
        /// Checks that VIPs share: each runs once, and a VIP uses it by its name. It needs a name, and an address to check where its type checks one.
        checks: optional [Check];
        /// The addresses that this host announces while their checks say so.
        vips: optional [Vip];
        /// How VIPs are drained that have no section of their own, or lack a key of it.
        drain: optional Drain;
        /// The other end: accepts sessions from members and routes their VIPs over them.
        listener: optional Listener;
        /// The layer 4 balancer.
        balancer: unavailable, "leave it away; vips and listener are available";
        /// Active/passive take-over of addresses.
        vrrp: unavailable, "leave it away; vips and listener are available";
        /// Checks shared out among the members of a site.
        mesh: unavailable, "leave it away; vips and listener are available";
    }
}

section! {
    /// Who this speaker is.
    Router {
        /// Local AS number.
        asn: required Asn;
        /// BGP identifier, written as an IPv4 address; not 0.0.0.0.
        router_id: required Ipv4Addr;
        /// Source of every session and next hop of every route, unless the neighbour says otherwise. Without it: the session's own local address.
        local_address: optional IpAddr;
        /// Next hop of IPv6 routes. Needed for an IPv6 VIP unless every neighbour it is told to is reached over IPv6.
        local_address_ipv6: optional Ipv6Addr;
    }
}

section! {
    /// The HTTP API: status, health, metrics.
    Api {
        /// Address and port. `:59179` is every address of this host.
        listen: default Listen = "127.0.0.1:59179";
        /// How long a client may take to send the head of a request; 0 is for ever.
        read_header_timeout: default Duration = "10s";
        /// How long a client may take to send a whole request; 0 is for ever.
        read_timeout: default Duration = "30s";
        /// How long an answer may take, the run of a triggered check included, and then how long the client may take to read it; 0 is for ever.
        write_timeout: default Duration = "60s";
        /// How long a connection may idle between two requests, at most read_header_timeout; 0 is for ever.
        idle_timeout: default Duration = "120s";
        /// A unix socket besides, such as /run/standfast/api.sock. Whoever may write to it may report for push checks.
        socket: optional PathBuf;
        /// Its mode, in octal. It belongs to the daemon's user and group, or to its directory's group where that has the setgid bit.
        socket_mode: default Mode = "0660";
        /// TLS.
        tls: unavailable, "listen on a loopback address and put a TLS proxy before it";
        /// Tokens for reports over TCP: `Authorization: Bearer TOKEN`. Without any, only this host may report.
        tokens: optional [Secret];
    }
}

section! {
    /// The log, on standard error.
    Logging {
        /// The least level that is written.
        level: default LogLevel = "info";
        /// How it is written.
        format: default LogFormat = "text";
        /// The least level that is exported.
        otel_level: ignored, "this version exports no OpenTelemetry";
        /// Whether each entry begins with the time. Without it: unless the journal, which adds its own, takes the log.
        timestamps: optional bool;
    }
}

section! {
    /// The BGP speaker and its peers.
    Bgp {
        /// Graceful restart (RFC 4724). On, peers keep the routes while standfast restarts, and also when it died: a VIP is then announced for up to the restart time with nobody checking it. A duration is the restart time; `true` takes the hold time.
        graceful_restart: default Restart = "false";
        /// How long a silent session lives: 0 for ever, or 3s to 65535s in whole seconds. The smaller of the two ends' counts.
        hold_time: default Duration = "90s";
        /// Time between two keepalives, at most a third of the hold time. Without it: a third.
        keepalive_time: optional Duration;
        /// Delay before the second dial; it doubles with jitter up to connect_retry_max. The first dial is at once.
        connect_retry: default Duration = "1s";
        /// The longest delay between two dials.
        connect_retry_max: default Duration = "30s";
        /// How long a peer may take nothing of what is sent to it (RFC 9687). Without it: 8 minutes, or twice the hold time if that is longer.
        send_hold_time: optional Duration;
        /// The address to accept sessions on. Without it and listen_addresses: the local addresses above and of the neighbours, or every address if there are none.
        listen_address: optional IpAddr;
        /// The addresses to accept sessions on, if there are several.
        listen_addresses: optional [IpAddr];
        /// TCP port to accept sessions on; -1: accept none.
        listen_port: default Int<-1, 65535> = "179";
        /// pathosd's GoBGP interface.
        gobgp_api: ignored, "there is no GoBGP inside; see the HTTP API";
        /// The peers.
        neighbors: optional [Neighbor];
    }
}

section! {
    /// One BGP peer.
    Neighbor {
        /// Unique name.
        name: required Name;
        /// Its address.
        address: required IpAddr;
        /// The AS number it must have; `external` is any but ours, `internal` is ours.
        peer_asn: required PeerAsn;
        /// Whether /readyz needs the session established.
        required: default bool = "true";
        /// TCP port to dial.
        port: default Int<1, 65535> = "179";
        /// Source of the session and, where its family fits, next hop of the routes. Without it: router.local_address, then the kernel's choice.
        local_address: optional IpAddr;
        /// Source port. Without it: any.
        local_port: optional Int<1, 65535>;
        /// Interface, for a link-local address.
        interface: optional Interface;
        /// Wait for the peer to dial.
        passive: default bool = "false";
        /// Whether an eBGP peer may be more than one hop away.
        enable_multihop: default bool = "false";
        /// TTL of a multihop session, 2..255; 0 is 255.
        multihop_ttl: optional Int<0, 255>;
        /// GTSM (RFC 5082): take only packets that travelled at most this many hops; `true` is one. The peer must do it too.
        ttl_security: default TtlSecurity = "false";
        /// TCP MD5 key (RFC 2385), at most 80 octets.
        auth_password: optional Secret;
        /// TCP-AO keys (RFC 5925).
        auth_key_ao: unavailable, "use auth_password";
        /// Liveness by BFD (RFC 5880).
        bfd: optional Bfd;
        /// IPv4 routes with an IPv6 next hop (RFC 8950), where the peer agrees.
        extended_next_hop: default bool = "false";
        /// Names of the VIPs told to this peer. Without it: all.
        vips: optional [Name];
        /// As bgp.hold_time, for this peer.
        hold_time: optional Duration;
        /// As bgp.keepalive_time, for this peer.
        keepalive_time: optional Duration;
        /// As bgp.connect_retry, for this peer.
        connect_retry: optional Duration;
        /// As bgp.graceful_restart, for this peer.
        graceful_restart: optional Restart;
    }
}

section! {
    /// Liveness by BFD (RFC 5880): a dead peer is noticed in a fraction of a second, and its BGP session ends at once.
    Bfd {
        /// `false`: the section is kept without effect.
        enabled: default bool = "true";
        /// Time between two packets sent, 10ms to 10s. The peer may ask for a longer one; while BFD is not up it is a second.
        interval: optional Duration;
        /// The shortest time between two packets that can be received, 10ms to 10s. Without it: as interval.
        min_rx: optional Duration;
        /// Packets in a row that the peer misses before it holds us for dead; how many we wait for is the peer's to say.
        multiplier: optional Int<2, 255>;
        /// Over several hops (RFC 5883, UDP port 4784). Without it: as the BGP session, which is so with enable_multihop, or with ttl_security of 2 or more.
        multihop: optional bool;
        /// The least hop limit of packets received over several hops. Without it: what ttl_security says, else 1.
        min_ttl: optional Int<1, 255>;
        /// Authentication of every packet, by a key that the peer has too.
        auth: optional BfdAuth;
        /// Complete the BGP session only once BFD is up. Without it BGP does not wait for BFD, only ends with it.
        strict: default bool = "false";
        /// With strict: how long a BGP session waits for BFD, 1s to 10m.
        strict_hold_time: optional Duration;
        /// Send nothing before the peer does. Not both ends.
        passive: default bool = "false";
        /// pathosd's: must be the port of RFC 5881 or 5883.
        port: optional Int<0, 65535>;
        /// pathosd's: interval, in microseconds; 0 is 1 s.
        desired_minimum_tx_interval: optional Int<0, 4294967295>;
        /// pathosd's: min_rx, in microseconds; 0 is 1 s.
        required_minimum_receive: optional Int<0, 4294967295>;
        /// pathosd's: multiplier; 0 is 3.
        detection_multiplier: optional Int<0, 255>;
    }
}

section! {
    /// Authentication of BFD packets (RFC 5880 §6.7).
    BfdAuth {
        /// meticulous_sha1: every packet has a number of its own, so that none can be replayed. sha1: the number changes with what is said.
        r#type: default BfdAuthType = "meticulous_sha1";
        /// Number of the key, the same at both ends.
        key_id: required Int<0, 255>;
        /// The key, 1 to 20 octets.
        key: required Secret;
    }
}

section! {
    /// An address, or several, announced together while their checks say so.
    Vip {
        /// Unique name.
        name: required Name;
        /// What is announced. Exactly one of prefix and prefixes.
        prefix: optional Prefix;
        /// What is announced, if there are several.
        prefixes: optional [Prefix];
        /// Announce it although a less specific prefix of another VIP covers it.
        allow_overlap: default bool = "false";
        /// What standfast does with the addresses themselves.
        address: optional Address;
        /// The check, or the name of a shared one. Exactly one of check and checks.
        check: optional CheckUse;
        /// The checks, if there are several; a name is a shared one.
        checks: optional [CheckUse];
        /// When the checks together are healthy: `all`, `any`, or names with && || ! ( ) and `2 of (a, b, c)`.
        checks_policy: default Text = "all";
        /// Announce only while every single address of the VIP is on a local interface.
        require_local_address: default bool = "false";
        /// The only interface that counts for require_local_address. Without it: any.
        local_interface: optional Interface;
        /// What happens when the checks fail, and what is attached to the route.
        policy: section Policy;
        /// How the VIP is drained. A key that it lacks is taken from the file's own `drain`.
        drain: optional Drain;
    }
}

section! {
    /// How a VIP leaves on purpose, by `standfast drain` or at the end of the daemon: the peers are told to send nothing new, connections are waited for, and then it is withdrawn.
    Drain {
        /// What the peers are told meanwhile: `graceful_shutdown` (RFC 8326) for routers that honour it and standfast's listener, `weight` (a link bandwidth of 0) for those that spread by it, `withdraw` for all others, which breaks what came through them. Without it: graceful_shutdown.
        mode: optional DrainModes;
        /// What ends it before the deadline: `connections` of this host's own TCP sockets, `conntrack` for those that this host forwards, `deadline` for nothing. Without it: connections.
        until: optional DrainUntils;
        /// So many connections that are left are few enough. Without it: 0.
        floor: optional Int<0, 1000000>;
        /// The longest that it takes, 1s to a day; what is left then is cut off. Without it: 30s.
        deadline: optional Duration;
        /// Whether the daemon drains the VIP before it stops. Without it: true; a file without any drain section stops at once.
        on_stop: optional bool;
        /// Whether policy.lower_priority_file drains the VIP instead of making it a worse choice. Without it: false.
        on_file: optional bool;
        /// Whether an order to drain outlives the daemon: it is kept in state_dir. Without it: false.
        persist: optional bool;
    }
}

section! {
    /// What standfast does with a VIP's addresses.
    Address {
        /// Put them on the interface before announcing, take them off after withdrawing.
        manage: default bool = "false";
        /// The interface they are put on.
        interface: default Interface = "lo";
    }
}

section! {
    /// What happens when the checks fail, and what is attached to the route.
    Policy {
        /// What an unhealthy VIP does: leave, or stay as a worse choice.
        fail_action: default Fail = "lower_priority";
        /// With lower_priority: leave after being unhealthy for this long. Without it: never.
        withdraw_after: optional Duration;
        /// While this file exists, the VIP is a worse choice, or with drain.on_file it drains.
        lower_priority_file: optional PathBuf;
        /// Attributes while healthy.
        announce: section Attributes;
        /// Added to `announce` while the VIP is a worse choice.
        lower_priority: section Attributes;
        /// Announcers that failing checks may not take away. The neighbors must tell who else announces the VIP: listeners with accept.reflect.
        floor: optional Floor;
        /// Holds the VIP back for longer each time when it flaps. Without it: it comes back whenever its checks say so.
        damping: optional Damping;
    }
}

section! {
    /// Announcers that failing checks may not take away: they stay as a worse choice, with an alarm. A stop, a drain and a missing address do not ask it.
    Floor {
        /// So many stay. The same on every announcer of the VIP.
        members: default Int<1, 256> = "1";
        /// An announcer that fails leaves once what it sees of others has let it for so long, 100ms to 60s. Longer than news of others takes.
        settle: default Duration = "500ms";
    }
}

section! {
    /// What a flapping VIP is made to wait. A flap is a failure of checks_policy; a drain file or a missing address is none.
    Damping {
        /// Flaps that make it wait.
        flaps: default Int<1, 100> = "3";
        /// The time in which they count. It is forgotten once the VIP has stood for as long after a hold.
        within: default Duration = "60s";
        /// How long the VIP stays as fail_action left it, from its last flap, healthy or not; each further flap doubles it.
        hold: default Duration = "30s";
        /// The longest it becomes.
        max: default Duration = "10m";
    }
}

section! {
    /// What is attached to a route.
    Attributes {
        /// How often the local AS is added beyond the one of eBGP; never for iBGP. Default 0 in announce, 6 in lower_priority.
        as_path_prepend: optional Int<0, 64>;
        /// Communities (RFC 1997): 64513:100, or a name such as no-export or graceful-shutdown.
        communities: optional [Community];
        /// Large communities (RFC 8092): 64513:1:100.
        large_communities: optional [LargeCommunity];
        /// Extended communities (RFC 4360): rt:64513:100, soo:64513:100, bandwidth:64513:125000000 (bytes per second).
        extended_communities: optional [ExtendedCommunity];
        /// MULTI_EXIT_DISC; the smaller is preferred. Without it: not sent.
        med: optional Int<0, 4294967295>;
        /// LOCAL_PREF, for iBGP; the larger is preferred. Without it: 100.
        local_pref: optional Int<0, 4294967295>;
        /// Share of the traffic.
        weight: unavailable, "use extended_communities: [\"bandwidth:ASN:BYTES_PER_SECOND\"]";
    }
}

/// A check of a VIP: a section of its own, or the name of a shared one.
pub(crate) enum CheckUse {
    Shared(CheckName),
    Own(Box<At<Check>>),
}

impl Read for CheckUse {
    fn read(node: &Node, path: &str, out: &mut Findings) -> Option<Self> {
        match &node.value {
            Value::Scalar(_) => CheckName::read(node, path, out).map(Self::Shared),
            _ => Check::read(node, path, out).map(|check| Self::Own(Box::new(At::new(check, node, path)))),
        }
    }

    fn schema() -> serde_json::Value {
        serde_json::json!({ "anyOf": [CheckName::schema(), Check::schema()] })
    }

    fn kind() -> String {
        "section, or name".into()
    }

    fn keys() -> Vec<Key> {
        Check::keys()
    }
}

section! {
    /// A check: what is asked, how often, and how its answers become health.
    Check {
        /// Its name in checks_policy and logs, unique in the VIP. Without it: the type.
        name: optional CheckName;
        /// What is asked; details are under the key of the same name.
        r#type: required CheckType;
        /// Time between the starts of two runs, at least 10ms.
        interval: default Duration = "1s";
        /// The longest a run may take, less than interval and fast_interval.
        timeout: default Duration = "100ms";
        /// Good runs in a row that make it healthy.
        rise: default Int<1, 1000> = "1";
        /// Bad runs in a row that make it unhealthy. For `push` and `process` without it, and for `members`: 1.
        fall: default Int<1, 1000> = "3";
        /// Time between the starts of two runs while it is between two states: before its first state, and while some runs were good but not yet rise, or bad but not yet fall. At least 10ms, less than interval. Without it: interval.
        fast_interval: optional Duration;
        /// When slowness is a failure, such as `200ms x 5`: from the fifth good run on that took longer, without a faster one in between, each counts as bad. Less than timeout. `200ms` alone is every such run. Without it: never.
        slow: optional Slow;
        /// More metrics of this check.
        detailed_metrics: default bool = "false";
        /// Source address of the probe's packets, of the target's family. Without it: the kernel's choice.
        source: optional IpAddr;
        /// Interface that they leave by, whatever the routes say. Without it: as routed.
        interface: optional Interface;
        /// Firewall mark that they carry, which needs CAP_NET_ADMIN. Without it: none.
        mark: optional Int<1, 4294967295>;
        /// Header of the PROXY protocol before the first byte of a TCP connection: `v1` tells both ends, `v2` says LOCAL. For http, tcp and grpc. Without it: none.
        proxy_protocol: optional ProxyHeader;
        /// An HTTP request.
        http: optional Http;
        /// DNS questions.
        dns: optional Dns;
        /// ICMP echo requests.
        ping: optional Ping;
        /// A TCP connection.
        tcp: optional Tcp;
        /// A UDP datagram.
        udp: optional Udp;
        /// A gRPC call.
        grpc: optional Grpc;
        /// A command.
        exec: optional Exec;
        /// A process, followed to its end.
        process: optional Process;
        /// Verdicts that the service, or a script, reports by itself.
        push: optional Push;
        /// Members of a VIP of this host's listener.
        members: optional Members;
    }
}

section! {
    /// An HTTP request. Good is a status of response_codes and every other response_ key that is given.
    Http {
        /// A path, or a full URL: then its host is the Host header and, for https, the name that is verified; the connection still goes to `host`.
        url: default Text = "/";
        /// The scheme, if url is a path. Without it: http.
        proto: optional Proto;
        /// Where to connect. Without it: the VIP's address; a prefix that is no single address needs it.
        host: optional Text;
        /// TCP port. Without it: the URL's, then 80 or 443.
        port: optional Int<1, 65535>;
        /// Unix socket to connect to, in place of host and port.
        unix: optional PathBuf;
        /// HTTP version: `auto` is HTTP/2 where TLS agrees on it and otherwise 1.1; `2` without TLS is HTTP/2 with prior knowledge.
        version: default HttpVersion = "auto";
        /// The request's method.
        method: default Method = "GET";
        /// Body of a POST.
        body: optional Text;
        /// Good status codes. Without it: 200.
        response_codes: optional [Codes];
        /// Text that the body must hold.
        response_text: optional Text;
        /// Regular expression that the body must match.
        response_regex: optional Text;
        /// jq program whose first output must be `true`.
        response_jq: optional Text;
        /// Headers that the answer must have, each with a text that its value must hold.
        response_headers: optional Pairs;
        /// Redirects followed in one run, all within the timeout; 0: a redirect is judged itself. One to the check's own host stays at the checked address.
        follow_redirects: default Int<0, 10> = "0";
        /// Follow a redirect from https to http.
        allow_downgrade: default bool = "false";
        /// The most of a body that is read, in bytes.
        body_limit: default Int<1, 67108864> = "1048576";
        /// Accept any certificate.
        tls_insecure: default bool = "false";
        /// PEM file of authorities trusted besides the system's.
        tls_ca_cert: optional PathBuf;
        /// PEM file of a client certificate.
        tls_client_cert: optional PathBuf;
        /// PEM file of the client certificate's key.
        tls_client_key: optional PathBuf;
        /// SNI and the name that is verified. Without it: the URL's host.
        tls_server_name: optional Text;
        /// Fail when the certificate expires within this time.
        tls_min_remaining: default Duration = "0s";
        /// Further headers; `Host` replaces the URL's.
        headers: optional Pairs;
        /// Forward proxy, http://[user:password@]host:port, or https:// if it is reached over TLS; it resolves the URL's host.
        proxy: optional Text;
        /// PEM file of authorities trusted besides the system's for an https:// proxy.
        proxy_ca_cert: optional PathBuf;
        /// Keep the connection for the next run.
        keep_alive: default bool = "false";
    }
}

section! {
    /// DNS questions, asked one after the other. Good is, for every name, the response code and the records that are wanted: without further keys NOERROR and a record of the type.
    Dns {
        /// The names asked for.
        names: required [Text];
        /// The server: an address or a name, with a port if it has another one. Without it: the VIP's address.
        resolver: optional Text;
        /// Its port. Without it: 53, or 853 with TLS.
        port: optional Int<1, 65535>;
        /// The record type.
        query_type: default DnsType = "A";
        /// How it is asked: `udp` goes over to TCP for an answer that is cut, `tls` is DNS over TLS (RFC 7858).
        transport: default DnsTransport = "udp";
        /// Ask the server to look further than what it knows itself.
        recursion: default bool = "true";
        /// The largest answer that may come by UDP, in bytes (EDNS0), at least 512; 0 asks without EDNS0.
        udp_size: default Int<0, 65535> = "1232";
        /// The response code that is wanted.
        rcode: default DnsRcode = "NOERROR";
        /// Whether the server must speak with authority.
        authoritative: default bool = "false";
        /// The least number of records of the type. Without it: 1 where NOERROR is wanted and `answers` is not empty.
        min_answers: optional Int<0, 1000>;
        /// The records that there must be, these and no others: an address, a name, `10 mail.example.com`. An empty list: none.
        answers: optional [Text];
        /// Records that there must be, with others or without.
        answers_contain: optional [Text];
        /// Regular expression that a record must match.
        answers_regex: optional Text;
        /// With TLS: accept any certificate.
        tls_insecure: default bool = "false";
        /// With TLS: PEM file of authorities trusted besides the system's.
        tls_ca_cert: optional PathBuf;
        /// With TLS: PEM file of a client certificate.
        tls_client_cert: optional PathBuf;
        /// With TLS: PEM file of the client certificate's key.
        tls_client_key: optional PathBuf;
        /// With TLS: SNI and the name that is verified. Without it: the resolver's name or address.
        tls_server_name: optional Text;
        /// With TLS: fail when the certificate expires within this time.
        tls_min_remaining: default Duration = "0s";
    }
}

section! {
    /// ICMP echo requests. Good is a loss of at most max_loss_ratio, and answers that come as fast as max_rtt wants.
    Ping {
        /// Who is asked. Without it: the VIP's address.
        dst_ip: optional IpAddr;
        /// Source address. Without it: the kernel's choice.
        src_ip: optional IpAddr;
        /// Use a raw socket, which needs CAP_NET_RAW. Without it: only where net.ipv4.ping_group_range allows no other.
        privileged: default bool = "false";
        /// Packets in a run.
        count: default Int<1, 60> = "1";
        /// How long a packet is waited for. Without it: until the check's timeout.
        timeout: optional Duration;
        /// Time between two packets. Without it: the check's timeout divided by count.
        interval: optional Duration;
        /// The part of the packets that may be lost: at least 0 and less than 1.
        max_loss_ratio: default Ratio = "0";
        /// The longest that the packets that come back may take on average. Without it: as long as they are waited for.
        max_rtt: optional Duration;
    }
}

section! {
    /// A TCP connection. Good is that it opens and, where something is expected, that the server says it.
    Tcp {
        /// Where to connect: an address, a name, or unix:/path. Without it: the VIP's address; a prefix that is no single address needs it.
        host: optional Text;
        /// TCP port; needed unless host is a unix socket.
        port: optional Int<1, 65535>;
        /// Use TLS.
        tls: default bool = "false";
        /// Accept any certificate.
        tls_insecure: default bool = "false";
        /// PEM file of authorities trusted besides the system's.
        tls_ca_cert: optional PathBuf;
        /// PEM file of a client certificate.
        tls_client_cert: optional PathBuf;
        /// PEM file of the client certificate's key.
        tls_client_key: optional PathBuf;
        /// SNI and the name that is verified. Without it: `host`.
        tls_server_name: optional Text;
        /// Fail when the certificate expires within this time.
        tls_min_remaining: default Duration = "0s";
        /// What is sent once the connection is open, as text, such as "PING\r\n" in double quotes. Without it and its other form: nothing.
        send: optional Text;
        /// What is sent, in hexadecimal.
        send_hex: optional Hex;
        /// Text that the server must say, at the start or after `send`, within its first 64 KiB. Without it and its two forms: nothing is read.
        expect: optional Text;
        /// Octets that the server must say, in hexadecimal.
        expect_hex: optional Hex;
        /// Regular expression that must match what the server says; it is looked at as it comes.
        expect_regex: optional Text;
        /// How the connection ends: `fin` closes it in order, which leaves it in TIME_WAIT on this host for a minute; `reset` breaks it off, which leaves nothing but may show in the server's log.
        close: default Close = "fin";
    }
}

section! {
    /// A UDP datagram. Good is an answer; silence is good only if `silence` says so, and an ICMP error is bad in any case.
    Udp {
        /// Where to: an address or a name. Without it: the VIP's address; a prefix that is no single address needs it.
        host: optional Text;
        /// UDP port.
        port: required Int<1, 65535>;
        /// What is sent, as text. Without it and its two forms: one zero octet.
        payload: optional Text;
        /// What is sent, in hexadecimal.
        payload_hex: optional Hex;
        /// What is sent, in base64.
        payload_base64: optional Base64;
        /// Text that the answer must hold. Without it and its two forms: any answer will do.
        expect: optional Text;
        /// Octets that the answer must hold, in hexadecimal.
        expect_hex: optional Hex;
        /// Regular expression that the answer must match.
        expect_regex: optional Text;
        /// What it means that nothing is answered: `bad`, within the check's timeout; `good`, within 500ms or four fifths of the timeout, whichever is less. Without it: as require_response says, and bad if that is not given either.
        silence: optional Silence;
        /// pathosd's way to say `silence`: `true` is bad, `false` is good.
        require_response: optional bool;
    }
}

section! {
    /// A gRPC call: the health service, or a unary method. Good is SERVING; of a method, a status of ok_codes and every response_ key that is given.
    Grpc {
        /// Where to connect: an address, a name, or `unix:/path`. Without it: the VIP's address; a prefix that is no single address needs it.
        host: optional Text;
        /// TCP port. A unix socket has none; everything else needs it.
        port: optional Int<1, 65535>;
        /// Use TLS.
        tls: default bool = "false";
        /// Accept any certificate.
        tls_insecure: default bool = "false";
        /// PEM file of authorities trusted besides the system's.
        tls_ca_cert: optional PathBuf;
        /// PEM file of a client certificate.
        tls_client_cert: optional PathBuf;
        /// PEM file of the client certificate's key.
        tls_client_key: optional PathBuf;
        /// SNI and the name that is verified. Without it: `host`.
        tls_server_name: optional Text;
        /// Fail when the certificate expires within this time.
        tls_min_remaining: default Duration = "0s";
        /// The `:authority` that is sent. Without it: tls_server_name or `host`, with the port.
        authority: optional Text;
        /// The service that the health service is asked about. Without it: the whole server.
        service: optional Text;
        /// `package.Service/Method`, a unary method. Without it: grpc.health.v1.Health/Check.
        method: optional Text;
        /// The request of `method`, in JSON or as a section of the same form. Without it: an empty one.
        request: optional Json;
        /// File of `protoc --include_imports --descriptor_set_out` that defines `method`. Without it, the server is asked by reflection where a request or a response_ key needs it.
        descriptor_set: optional PathBuf;
        /// Good status codes of `method`. Without it: OK.
        ok_codes: optional [Text];
        /// Text that the answer of `method`, in JSON, must hold.
        response_text: optional Text;
        /// Regular expression that the answer of `method`, in JSON, must match.
        response_regex: optional Text;
        /// jq program whose first output on the answer of `method` must be `true`.
        response_jq: optional Text;
        /// Further request headers; a value of one whose name ends in -bin is base64.
        metadata: optional Pairs;
        /// Keep the connection for the next run.
        keep_alive: default bool = "false";
    }
}

section! {
    /// A command of this host. Good is exit status 0; the first line that it prints is the reason.
    Exec {
        /// The program, by its absolute path, and its arguments, as a list. There is no shell between: write [/bin/sh, -c, "..."] for one.
        command: required [Text];
        /// Its environment. Besides: PATH, and STANDFAST_VIP and STANDFAST_CHECK with the names of the VIP and the check.
        env: optional Pairs;
        /// Its working directory.
        directory: default PathBuf = "/";
        /// The user it runs as, by name or number of /etc/passwd, with that user's groups. Without it: the daemon's. Needs root.
        user: optional Name;
        /// The most of its output that is kept for status, in bytes; the rest is read and dropped.
        output_limit: default Int<0, 65536> = "4096";
        /// Exit codes as of Nagios plugins: 0 and 1 (warning) are good, 2 is bad, 3 (unknown) is no result.
        nagios: default bool = "false";
    }
}

section! {
    /// A process of this host. Good is that it lives; its end is a bad verdict in the moment in which it ends.
    Process {
        /// The file that its number is in, by its absolute path. Without it: `unit`.
        pid_file: optional PathBuf;
        /// The service of systemd whose main process it is, such as nginx.service. Without it: `pid_file`.
        unit: optional Text;
        /// The name that it must have, as in /proc/PID/comm, so that a number that another process has by now is not taken for it. Without it: any.
        name: optional Text;
    }
}

section! {
    /// Verdicts that are reported from outside: POST /api/v1/vips/VIP/checks/CHECK/report, `standfast notify` or `standfast report`.
    Push {
        /// How long a verdict holds, unless it says less. Silence for longer counts as a bad one, and again after each further lease.
        lease: required Duration;
    }
}

section! {
    /// Members of a VIP of this host's listener. Good is that so many announce it, or are held for it, and do not drain.
    Members {
        /// The VIP's name in `listener.vips`.
        vip: required Name;
        /// The least number of members.
        at_least: default Int<1, 1000> = "1";
    }
}
