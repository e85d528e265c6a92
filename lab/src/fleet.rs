//! A fleet: a client, one or more listeners, and gateways that hold the VIP; scripted members that do what a test says.
//!
//! ```text
//! c 203.0.113.7 --- l1 192.0.2.1 -+- 192.0.2.11 g1
//!               \-- l2 192.0.2.2 -+- 192.0.2.12 g2 ...
//! ```
//!
//! Every gateway has both VIPs on its `lo` from the beginning, so that only routing decides who serves.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::daemons::{API, Neighbor, Spec, bird_raw, frr};
use crate::flows::{Echo, Flow};
use crate::host::Host;
use crate::lab::{Lab, secs, until};
use crate::message::Message;
use crate::peer::{OpenBytes, Read, Session};

/// The hosts, and the service on the gateways.
pub struct Fleet {
    /// Whose connections they are.
    pub client: Host,
    /// Through whom they go; the client uses the first, until [`via`](Self::via) says otherwise.
    pub listeners: Vec<Host>,
    /// Who serves them.
    pub gateways: Vec<Host>,
    _echo: Echo,
}

impl Fleet {
    /// The AS of the listeners, and that of the gateways.
    pub const L: u32 = 64512;
    /// That of the gateways.
    pub const G: u32 = 64513;
    /// The VIPs.
    pub const VIP: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);
    /// The other one, as text for once.
    pub const VIP6: &str = "2001:db8:100::10";
    /// Both as routes.
    pub const PREFIXES: [&str; 2] = ["198.51.100.10/32", "2001:db8:100::10/128"];
    /// The port of the service.
    pub const PORT: u16 = 7000;

    /// Makes the hosts; nothing runs on them but the service.
    pub fn new(lab: &Lab, listeners: u8, gateways: u8) -> Self {
        let client =
            lab.bare("c", Ipv4Addr::new(203, 0, 113, 7), "2001:db8:7::7".parse().expect("an address"));
        client.run(&format!("ip addr add {}/32 dev lo; ip addr add {}/128 dev lo", client.v4, client.v6));
        let listeners: Vec<_> = (1..=listeners).map(|n| lab.host(&format!("l{n}"), n)).collect();
        for (nth, l) in listeners.iter().enumerate() {
            let (up, down) = (format!("eth{nth}"), "out");
            lab.link((&client, &up, &format!("10.99.{nth}.2/30")), (l, down, &format!("10.99.{nth}.1/30")));
            client.run(&format!("ip addr add fd99:{nth}::2/64 dev {up} nodad"));
            l.run(&format!(
                "ip addr add fd99:{nth}::1/64 dev {down} nodad
                 ip route add {}/32 via 10.99.{nth}.2; ip -6 route add {}/128 via fd99:{nth}::2",
                client.v4, client.v6
            ));
            for (key, value) in [
                ("net/ipv4/ip_forward", "1"),
                ("net/ipv6/conf/all/forwarding", "1"),
                // By addresses, protocol and ports. Policy 1 would take the hash of the sender's socket, which comes along
                // over a veth pair and is another one after a line was sent again.
                ("net/ipv4/fib_multipath_hash_policy", "3"),
                ("net/ipv6/fib_multipath_hash_policy", "3"),
                ("net/ipv4/fib_multipath_hash_fields", "55"),
                ("net/ipv6/fib_multipath_hash_fields", "55"),
            ] {
                l.sysctl(key, value);
            }
        }
        let gateways: Vec<_> = (1..=gateways).map(|n| lab.host(&format!("g{n}"), 10 + n)).collect();
        for g in &gateways {
            g.run(&format!("ip addr add {}/32 dev lo; ip addr add {}/128 dev lo", Self::VIP, Self::VIP6));
        }
        for host in listeners.iter().chain(&gateways).chain([&client]) {
            for key in ["all", "default", "eth0"] {
                host.sysctl(&format!("net/ipv4/conf/{key}/rp_filter"), "0");
            }
        }
        let echo = Echo::start(&gateways, Self::PORT);
        let fleet = Self { client, listeners, gateways, _echo: echo };
        fleet.via(0);
        fleet
    }

    /// Sends the client's packets, and those that come back, through this listener.
    pub fn via(&self, listener: usize) {
        let (c, l) = (&self.client, &self.listeners[listener]);
        for g in &self.gateways {
            g.run(&format!(
                "ip route replace {}/32 via {}; ip -6 route replace {}/128 via {}",
                c.v4, l.v4, c.v6, l.v6
            ));
        }
        c.run(&format!(
            "ip route replace default via 10.99.{listener}.1 src {}; \
             ip -6 route replace default via fd99:{listener}::1 src {}",
            c.v4, c.v6
        ));
    }

    /// Where the client connects to, in IPv4 or IPv6.
    pub fn target(ipv6: bool) -> SocketAddr {
        let vip6 = || Self::VIP6.parse().expect("an address");
        SocketAddr::new(if ipv6 { vip6() } else { Self::VIP.into() }, Self::PORT)
    }

    /// A scripted member on every gateway, of the first listener, that announces both VIPs.
    pub fn members(&self) -> Vec<Member> {
        self.gateways.iter().map(|g| Member::start(g, self.listeners[0].v4, Some(Told::default()))).collect()
    }

    /// Waits until exactly these gateways are next hops of both VIPs at a listener.
    #[track_caller]
    pub fn routed(&self, listener: usize, gateways: &[usize]) {
        let hosts: Vec<_> = gateways.iter().map(|&g| &self.gateways[g]).collect();
        let v4: BTreeSet<IpAddr> = hosts.iter().map(|g| g.v4.into()).collect();
        let v6: BTreeSet<IpAddr> = hosts.iter().map(|g| g.v6.into()).collect();
        let l = &self.listeners[listener];
        until(&format!("routed to {gateways:?}"), secs(20), || {
            l.next_hops(Self::PREFIXES[0]) == v4 && l.next_hops(Self::PREFIXES[1]) == v6
        });
    }

    /// Waits until a listener keeps new connections of both families from whoever drains, which is moments after it knows that.
    #[track_caller]
    pub fn moves(&self, listener: usize) {
        let l = &self.listeners[listener];
        let told = || l.attempt("nft -t list chain inet standfast_drain opening 2>&1");
        let moves = |rules: String| rules.contains("jump new4") && rules.contains("jump new6");
        until("new connections are moved", secs(20), || moves(told()));
    }

    /// standfast as a listener of members in 192.0.2.0/24, with these keys at both VIPs, as in `hashing: plain`.
    pub fn listener(l: &Host, keys: &str) -> String {
        let comma = if keys.is_empty() { "" } else { ", " };
        format!(
            "schema: v1\nrouter: {{ asn: {asn}, router_id: {v4}, local_address: {v4}, local_address_ipv6: \"{v6}\" }}\n\
             api: {{ listen: \"{API}\" }}\nlogging: {{ level: info, timestamps: true }}\nlistener:\n  accept:\n\
             \x20   - {{ name: gateways, range: 192.0.2.0/24, peer_asn: {member}, hold_time: 9s }}\n  vips:\n\
             \x20   - {{ name: web, prefix: {vip}/32{comma}{keys} }}\n\
             \x20   - {{ name: web6, prefix: \"{vip6}/128\"{comma}{keys} }}\n",
            asn = Self::L,
            v4 = l.v4,
            v6 = l.v6,
            member = Self::G,
            vip = Self::VIP,
            vip6 = Self::VIP6
        )
    }

    /// BIRD as a listener of these gateways: it merges paths, and prefers those of gateways that shut down least (RFC 8326).
    pub fn bird(&self) -> Spec {
        let mut text = format!(
            "router id {};\nprotocol device {{ scan time 1; }}\n\
             protocol kernel {{ merge paths on; ipv4 {{ export all; }}; }}\n\
             protocol kernel {{ merge paths on; ipv6 {{ export all; }}; }}\n\
             filter taken {{ if (65535, 0) ~ bgp_community then bgp_local_pref = 0; accept; }}\n",
            self.listeners[0].v4
        );
        for (nth, g) in self.gateways.iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "protocol bgp n{nth} {{ local {} as {}; neighbor {} as {}; direct; passive yes; hold time 9;\n \
                 error wait time 1,4; ipv4 {{ import filter taken; export none; }};\n \
                 ipv6 {{ import filter taken; export none; }}; }}",
                self.listeners[0].v4,
                Self::L,
                g.v4,
                Self::G
            );
        }
        bird_raw(&text)
    }

    /// FRR as a listener of these gateways; it honours RFC 8326 by itself.
    pub fn frr(&self) -> Spec {
        let members: Vec<_> = self.gateways.iter().map(|g| Neighbor::new(g.v4, Self::G).passive()).collect();
        frr(Self::L, &members)
    }
}

/// What happened to connections between two looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fate {
    /// Connections that were whole.
    pub of: usize,
    /// Those of them that are broken.
    pub broken: usize,
}

impl Fate {
    /// Of the connections on the gateways that `which` likes.
    pub fn of(before: &[Flow], after: &[Flow], which: impl Fn(&str) -> bool) -> Self {
        let mut fate = Self::default();
        for (before, after) in before.iter().zip(after) {
            if before.broken.is_none() && which(&before.gateway) {
                fate.of += 1;
                fate.broken += usize::from(after.broken.is_some());
            }
        }
        fate
    }
}

impl std::ops::Add for Fate {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { of: self.of + other.of, broken: self.broken + other.broken }
    }
}

/// What a member tells of both VIPs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Told {
    /// Communities.
    pub communities: Vec<(u16, u16)>,
    /// The link bandwidth community (draft-ietf-idr-link-bandwidth), in bytes a second.
    pub bandwidth: Option<f32>,
}

impl Told {
    /// On its way out (RFC 8326).
    pub fn leaving() -> Self {
        Self { communities: vec![(65535, 0)], bandwidth: None }
    }

    /// So many bytes a second.
    pub fn bandwidth(bytes: f32) -> Self {
        Self { communities: Vec::new(), bandwidth: Some(bytes) }
    }

    /// The UPDATEs: one for each family.
    fn updates(&self, g: &Host) -> Vec<Message> {
        let mut common = vec![0x40, 1, 1, 0, 0x40, 2, 6, 2, 1];
        common.extend_from_slice(&Fleet::G.to_be_bytes());
        let mut late = Vec::new();
        if !self.communities.is_empty() {
            let octets: Vec<u8> = self
                .communities
                .iter()
                .flat_map(|&(a, b)| [a.to_be_bytes(), b.to_be_bytes()])
                .flatten()
                .collect();
            late.extend_from_slice(&[0xc0, 8, u8::try_from(octets.len()).expect("few communities")]);
            late.extend_from_slice(&octets);
        }
        if let Some(bandwidth) = self.bandwidth {
            late.extend_from_slice(&[0xc0, 16, 8, 0x40, 4]);
            late.extend_from_slice(&u16::try_from(Fleet::G).expect("a short AS").to_be_bytes());
            late.extend_from_slice(&bandwidth.to_be_bytes());
        }
        let v4 = {
            let mut body = common.clone();
            body.extend_from_slice(&[0x40, 3, 4]);
            body.extend_from_slice(&g.v4.octets());
            body.extend_from_slice(&late);
            update(&body, &[&[32], &Fleet::VIP.octets()[..]].concat())
        };
        let v6 = {
            let mut body = vec![0x80, 14, 38, 0, 2, 1, 16];
            body.extend_from_slice(&g.v6.octets());
            body.extend_from_slice(&[0, 128]);
            body.extend_from_slice(&vip6());
            body.extend_from_slice(&common);
            body.extend_from_slice(&late);
            update(&body, &[])
        };
        vec![v4, v6]
    }
}

fn vip6() -> [u8; 16] {
    Fleet::VIP6.parse::<std::net::Ipv6Addr>().expect("an address").octets()
}

fn update(attributes: &[u8], nlri: &[u8]) -> Message {
    let length = u16::try_from(attributes.len()).expect("short attributes");
    Message::new(2, &[&[0, 0], &length.to_be_bytes()[..], attributes, nlri].concat())
}

fn withdrawals() -> Vec<Message> {
    let v4 = [&[0, 5, 32], &Fleet::VIP.octets()[..], &[0, 0]].concat();
    let v6 = [&[0x80, 15, 20, 0, 2, 1, 128], &vip6()[..]].concat();
    vec![Message::new(2, &v4), update(&v6, &[])]
}

/// A scripted gateway: keeps a session to a listener, comes back when it ends, and tells what it was told to.
pub struct Member {
    shared: Arc<Wish>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Wish {
    told: Mutex<(u64, Option<Told>)>,
    up: AtomicBool,
    stop: AtomicBool,
}

impl Member {
    /// Dials `listener` from `host`, again and again, and tells this.
    pub fn start(host: &Host, listener: Ipv4Addr, told: Option<Told>) -> Self {
        let shared = Arc::new(Wish { told: Mutex::new((0, told)), ..Wish::default() });
        let (ours, host) = (Arc::clone(&shared), host.clone());
        let thread = std::thread::spawn(move || ours.play(&host, listener));
        Self { shared, thread: Some(thread) }
    }

    /// Tells this of the VIPs from now on; nothing: withdraws them.
    pub fn tell(&self, told: Option<Told>) {
        let mut wish = self.shared.told.lock().unwrap();
        *wish = (wish.0 + 1, told);
    }

    /// Whether its session is established, and everything is told.
    pub fn up(&self) -> bool {
        self.shared.up.load(Ordering::Relaxed)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

impl Wish {
    fn play(&self, host: &Host, listener: Ipv4Addr) {
        while !self.stop.load(Ordering::Relaxed) {
            if let Ok(mut session) = Session::dial(host, host.v4, listener)
                && session.try_establish(&OpenBytes::new(Fleet::G, host.v4))
            {
                self.hold(host, &mut session);
            }
            self.up.store(false, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Tells what is to be told until the session ends.
    fn hold(&self, host: &Host, session: &mut Session) {
        let mut done = None;
        while !self.stop.load(Ordering::Relaxed) {
            let (version, told) = self.told.lock().unwrap().clone();
            if done != Some(version) {
                let messages = told.map_or_else(withdrawals, |told| told.updates(host));
                messages.iter().for_each(|message| session.send(&message.bytes));
                done = Some(version);
                self.up.store(true, Ordering::Relaxed);
            }
            if matches!(session.read(Duration::from_millis(20)), Read::Closed | Read::Reset) {
                return;
            }
        }
    }
}
