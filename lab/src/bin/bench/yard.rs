//! Where fail-over is measured: gateways that have a VIP each, an anchor that announces all of them and never fails, and one or more
//! listeners with a client behind each.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use standfast_lab::{
    API, Announcer, Daemon, Echo, Host, Lab, Message, Neighbor, OpenBytes, Session, WITHDRAW, bird_bfd,
    bird_raw, frr, secs, standfast, until_some,
};

use crate::Bench;
use crate::hops::Hops;
use crate::sample::STANDFAST;
use crate::speaker::{MEMBER, ROUTER, Speaker};

/// Who listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listener {
    Standfast,
    /// standfast that spreads by the kernel's plain hash, as the others do.
    Plain,
    Bird,
    Frr,
}

pub(crate) const LISTENERS: [Listener; 4] =
    [Listener::Standfast, Listener::Plain, Listener::Bird, Listener::Frr];

/// Gateways with their VIPs, the anchor, and the listeners with a client each.
pub(crate) struct Yard {
    pub(crate) sites: Vec<Site>,
    pub(crate) gateways: Vec<Gateway>,
    _anchor: Vec<Session>,
    _echo: Echo,
}

pub(crate) struct Gateway {
    pub(crate) host: Host,
    pub(crate) vip: Ipv4Addr,
    pub(crate) speaker: Speaker,
}

/// A listener and its client.
pub(crate) struct Site {
    pub(crate) listener: Listener,
    pub(crate) l: Host,
    pub(crate) client: Host,
    pub(crate) hops: Hops,
    _daemon: Daemon,
}

impl Yard {
    pub(crate) fn new(
        lab: &Lab,
        bench: &Bench,
        listeners: &[Listener],
        gateways: u8,
        bfd: Option<u16>,
    ) -> Self {
        let places: Vec<_> = (1..).zip(listeners).map(|(n, _)| place(lab, n)).collect();
        let anchor = lab.host(ANCHOR, 10);
        let hosts: Vec<_> = (1..=gateways).map(|n| lab.host(&format!("g{n}"), 10 + n)).collect();
        let vips: Vec<_> = (1..=gateways).map(|n| Ipv4Addr::new(198, 51, 100, 100 + n)).collect();
        for host in hosts.iter().chain([&anchor]) {
            for (l, client) in &places {
                host.run(&format!("ip route add {}/32 via {}", client.v4, l.v4));
            }
            for key in ["all", "default", "eth0"] {
                host.sysctl(&format!("net/ipv4/conf/{key}/rp_filter"), "0");
            }
        }
        for (host, vip) in hosts.iter().zip(&vips) {
            host.run(&format!("ip addr add {vip}/32 dev lo"));
            anchor.run(&format!("ip addr add {vip}/32 dev lo"));
        }
        let all: Vec<_> = hosts.iter().chain([&anchor]).cloned().collect();
        let echo = Echo::start(&all, PORT);
        let sites: Vec<_> = listeners
            .iter()
            .zip(places)
            .map(|(&listener, (l, client))| {
                let hops = Hops::start(&l);
                let _daemon = listener.start(&l, &all, &vips, bfd);
                Site { listener, l, client, hops, _daemon }
            })
            .collect();
        let gateways = hosts
            .into_iter()
            .zip(&vips)
            .map(|(host, &vip)| {
                let mut config = Announcer::new(&host, MEMBER).bgp("hold_time: 9s");
                for site in &sites {
                    config = config.neighbor(site.l.v4, ROUTER, &bfd_key(bfd));
                }
                let config = config.vip_with("web", &[&format!("{vip}/32")], CHECK, WITHDRAW);
                let speaker = Speaker::standfast(lab, &host, &bench.standfast, &config);
                Gateway { host, vip, speaker }
            })
            .collect();
        let mut yard = Self { sites, gateways, _anchor: Vec::new(), _echo: echo };
        yard._anchor = yard.scripted(&anchor, &vips);
        yard
    }

    /// Sessions from `host` to every listener that announce these.
    pub(crate) fn scripted(&self, host: &Host, vips: &[Ipv4Addr]) -> Vec<Session> {
        let to = |site: &Site| {
            let open = || {
                let mut session = Session::dial(host, host.v4, site.l.v4).ok()?;
                session.try_establish(&OpenBytes::new(MEMBER, host.v4)).then_some(session)
            };
            let (mut session, _) = until_some("a session", secs(20), open);
            session.send(&announce(host, vips).bytes);
            session
        };
        self.sites.iter().map(to).collect()
    }
}

impl Site {
    /// Waits until every gateway is a next hop of its VIP, but not for ever.
    pub(crate) fn full(&self, gateways: &[Gateway]) {
        let start = Instant::now();
        for g in gateways {
            while !self.serves(g) {
                if start.elapsed() > LONG {
                    eprintln!("          {} still has no route to {}", self.listener.name(), g.host.name);
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// Whether a gateway is a next hop of its VIP.
    pub(crate) fn serves(&self, g: &Gateway) -> bool {
        self.hops.holds(g.vip, g.host.v4)
    }
}

/// A listener that forwards, and a client behind it.
pub(crate) fn place(lab: &Lab, n: u8) -> (Host, Host) {
    let l = lab.host(&format!("l{n}"), n);
    let address = Ipv4Addr::new(203, 0, 113, n);
    let client = lab.bare(&format!("c{n}"), address, "2001:db8:7::7".parse().expect("an address"));
    lab.link((&client, "eth0", "10.99.0.2/30"), (&l, "out", "10.99.0.1/30"));
    client.run(&format!("ip addr add {address}/32 dev lo; ip route add default via 10.99.0.1 src {address}"));
    l.run(&format!("ip route add {address}/32 via 10.99.0.2"));
    l.sysctl("net/ipv4/ip_forward", "1");
    l.sysctl("net/ipv4/fib_multipath_hash_policy", "1");
    for host in [&l, &client] {
        for key in ["all", "default", "eth0"] {
            host.sysctl(&format!("net/ipv4/conf/{key}/rp_filter"), "0");
        }
    }
    (l, client)
}

impl Listener {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Standfast => STANDFAST,
            Self::Plain => "standfast, `hashing: plain`",
            Self::Bird => "BIRD 2.0.12",
            Self::Frr => "FRR 8.4.4",
        }
    }

    pub(crate) fn start(self, l: &Host, members: &[Host], vips: &[Ipv4Addr], bfd: Option<u16>) -> Daemon {
        match self {
            Self::Standfast => l.spawn(standfast(&yaml(l, vips, bfd, "resilient"))),
            Self::Plain => l.spawn(standfast(&yaml(l, vips, bfd, "plain"))),
            Self::Bird => l.spawn(bird_raw(&bird_config(l, members, bfd))),
            Self::Frr => {
                let neighbor = |m: &Host| {
                    let neighbor = Neighbor::new(m.v4, MEMBER).passive();
                    bfd.filter(|_| m.name != ANCHOR).into_iter().fold(neighbor, Neighbor::bfd)
                };
                l.spawn(frr(ROUTER, &members.iter().map(neighbor).collect::<Vec<_>>()))
            }
        }
    }
}

/// The key of a neighbour or a range that asks for BFD, if that is wanted.
pub(crate) fn bfd_key(bfd: Option<u16>) -> String {
    bfd.map_or_else(String::new, |ms| format!("bfd: {{ interval: {ms}ms, multiplier: 3 }}"))
}

fn yaml(l: &Host, vips: &[Ipv4Addr], bfd: Option<u16>, hashing: &str) -> String {
    let bfd = bfd_key(bfd);
    let comma = if bfd.is_empty() { "" } else { ", " };
    let mut text = format!(
        "schema: v1\nrouter: {{ asn: {ROUTER}, router_id: {v4}, local_address: {v4} }}\napi: {{ listen: \"{API}\" }}\n\
         listener:\n  accept:\n    - {{ name: gateways, range: 192.0.2.0/24, peer_asn: {MEMBER}, hold_time: 9s{comma}{bfd} }}\n  vips:\n",
        v4 = l.v4
    );
    for (nth, vip) in vips.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    - {{ name: vip{nth}, prefix: {vip}/32, hashing: {hashing} }}");
    }
    text
}

/// BIRD with the shortest pauses that it has, so that it lets a member back as soon as it can.
pub(crate) fn bird_config(l: &Host, members: &[Host], bfd: Option<u16>) -> String {
    let mut text = format!(
        "router id {};\nprotocol device {{}}\nprotocol kernel {{ merge paths yes; ipv4 {{ export all; }}; }}\n",
        l.v4
    );
    text += &bird_bfd(bfd);
    for (nth, member) in members.iter().enumerate() {
        let bfd = if bfd.is_some() && member.name != ANCHOR { "bfd yes; " } else { "" };
        let _ = writeln!(
            text,
            "protocol bgp n{nth} {{ local {} as {ROUTER}; neighbor {} as {MEMBER}; passive yes; {bfd}hold time 9;\n \
             keepalive time 3; error wait time 0,0; ipv4 {{ import all; export none; }}; }}",
            l.v4, member.v4
        );
    }
    text
}

pub(crate) fn announce(host: &Host, vips: &[Ipv4Addr]) -> Message {
    let mut body = vec![0, 0, 0, 20, 0x40, 1, 1, 0, 0x40, 2, 6, 2, 1];
    body.extend_from_slice(&MEMBER.to_be_bytes());
    body.extend_from_slice(&[0x40, 3, 4]);
    body.extend_from_slice(&host.v4.octets());
    for vip in vips {
        body.push(32);
        body.extend_from_slice(&vip.octets());
    }
    Message::new(2, &body)
}

pub(crate) fn withdraw(vip: Ipv4Addr) -> Message {
    let mut body = vec![0, 5, 32];
    body.extend_from_slice(&vip.octets());
    body.extend_from_slice(&[0, 0]);
    Message::new(2, &body)
}

/// The gateways need no service to be asked: they check the one that answers the probes.
pub(crate) const CHECK: &str = "check: { type: tcp, interval: 200ms, timeout: 150ms, rise: 1, fall: 2, tcp: { host: 127.0.0.1, port: 7000 } }";
/// How long gateways may take to be members, all of them.
const LONG: Duration = Duration::from_secs(60);
/// The port of the service.
pub(crate) const PORT: u16 = 7000;
pub(crate) const ANCHOR: &str = "anchor";
