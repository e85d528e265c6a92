//! What a verdict costs: nanoseconds for each through a whole node, by the number of checks.
//!
//! `cargo run --release -p standfast-core --example verdicts` prints one line for each size: a verdict that changes nothing,
//! one that flips its check and VIP (with the table for one peer, and the octets), what looking at the status takes, and what
//! the start takes, when every VIP becomes healthy within a second.

#![allow(clippy::disallowed_types, reason = "a benchmark looks at the clock")]

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use standfast_core::health::Verdict;
use standfast_core::node::{Input, Node, Output};
use standfast_core::plan::{Bgp, Check, CheckId, Peer, PeerAsn, Plan, Probe, Router, Target, TcpProbe, Vip};
use standfast_core::{Machine, Prefix, Time};

fn main() {
    println!("{:>7}  {:>12}  {:>12}  {:>12}  {:>12}", "checks", "no change", "flip", "status", "start");
    for count in [10, 100, 1_000, 10_000] {
        let mut host = Host::new(count);
        let start = host.round(true);
        let same = (0..10).map(|_| host.round(true)).min().unwrap_or_default();
        let flip = (0..6).map(|n| host.round(n % 2 == 1)).min().unwrap_or_default();
        let begun = Instant::now();
        let vips = host.node.status(host.now).vips.len();
        let status = begun.elapsed();
        assert_eq!(vips, host.ids.len());
        println!(
            "{count:>7}  {:>9} ns  {:>9} ns  {:>9} us  {:>9} us",
            same.as_nanos() / u128::from(count),
            flip.as_nanos() / u128::from(count),
            status.as_micros(),
            start.as_micros()
        );
    }
}

struct Host {
    node: Node,
    ids: Vec<CheckId>,
    now: Time,
}

impl Host {
    /// A host with `count` VIPs of one check each, which runs once a second and needs one result to turn.
    fn new(count: u32) -> Self {
        let router_id = Ipv4Addr::new(192, 0, 2, 11);
        let mut plan = Plan {
            router: Router { asn: 64513, router_id, local_address: None, local_address_ipv6: None },
            bgp: Bgp { listen: Vec::new(), peers: Default::default() },
            vips: Default::default(),
            checks: Default::default(),
            listener: None,
        };
        let peer = Peer::new("front", Ipv4Addr::new(192, 0, 2, 1).into(), PeerAsn::Number(64512));
        plan.bgp.peers.insert(peer.name.clone(), peer);
        let target = Target::Address((Ipv4Addr::LOCALHOST, 80).into());
        for i in 0..count {
            let name = format!("vip{i}");
            let prefix = Prefix::host(Ipv4Addr::from_bits(0xc612_0000 + i).into());
            let check = Check { fall: 1, ..Check::new(Probe::Tcp(Box::new(TcpProbe::new(target.clone())))) };
            plan.checks.insert(CheckId::new(&name, "tcp"), check);
            plan.vips.insert(name.clone(), Vip::new(&name, vec![prefix], &["tcp"]));
        }
        let ids = plan.checks.keys().cloned().collect();
        let now = Time::from_secs(1);
        let mut host = Self { node: Node::new(now, plan, 1), ids, now };
        host.connect();
        host
    }

    /// Establishes the session, as a router does that knows nothing but RFC 4271.
    fn connect(&mut self) {
        let mut out = Vec::new();
        self.node.tick(self.now, &mut out);
        let dial =
            out.iter().find_map(|o| if let Output::Dial(dial) = o { Some(dial.clone()) } else { None });
        let Some(dial) = dial else { return eprintln!("the node dials nobody: flips are told to no peer") };
        let message = |kind: u8, body: &[u8]| {
            let length = u8::try_from(19 + body.len()).unwrap_or(u8::MAX);
            Bytes::from([&[0xff; 16][..], &[0, length, kind], body].concat())
        };
        let open = message(1, &[4, 0xfc, 0x00, 0, 240, 192, 0, 2, 1, 0]);
        let local = (Ipv4Addr::new(192, 0, 2, 11), 40_000).into();
        for input in [
            Input::Connected { conn: dial.conn, local, remote: dial.remote },
            Input::Received(dial.conn, open),
            Input::Received(dial.conn, message(4, &[])),
        ] {
            self.handle(input);
        }
        let status = self.node.status(self.now);
        assert_eq!(status.peers[0].session_state.to_string(), "established");
    }

    /// Hands an input in, as the driver does; the peer takes whatever is sent at once.
    fn handle(&mut self, input: Input) {
        let mut out = Vec::new();
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            self.node.handle(self.now, input, &mut out);
            if self.node.deadline().is_some_and(|(at, _)| at <= self.now) {
                self.node.tick(self.now, &mut out);
            }
            for output in out.drain(..) {
                if let Output::Send(conn, _) = output {
                    inputs.push(Input::Written(conn, 0));
                }
            }
        }
    }

    /// One second: every check reports once, as the driver hands it in; the time that the node took.
    fn round(&mut self, good: bool) -> Duration {
        let step = Duration::from_secs(1) / u32::try_from(self.ids.len()).unwrap_or(1);
        let mut spent = Duration::ZERO;
        for i in 0..self.ids.len() {
            self.now = self.now + step;
            let verdict = if good { Verdict::good("connected") } else { Verdict::bad("refused") };
            let input = Input::Reported(self.ids[i].clone(), verdict);
            let begun = Instant::now();
            self.handle(input);
            spent += begun.elapsed();
        }
        spent
    }
}
