//! A fleet, a listener and routers under a random schedule of faults.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use standfast_core::Prefix;
use standfast_core::announce::VipState;
use standfast_core::node::Input;
use standfast_core::plan::{FailAction, PeerAsn};

use crate::bench::octets::as_path;
use crate::bench::peer::secs;
use crate::bench::plan::{add_peer, add_vip, empty, listener, names, peer, vip};
use crate::world::World;

const LISTENER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const VIPS: [(&str, &str); 3] =
    [("web", "198.51.100.10/32"), ("dns", "198.51.100.53/32"), ("six", "2001:db8:100::10/128")];

struct Fleet {
    world: World,
    listener: usize,
    routers: [usize; 2],
    gateways: Vec<usize>,
}

impl Fleet {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed);
        let old = world.rng.below(2) == 0;
        let first = Ipv4Addr::new(192, 0, 2, 201);
        let second = Ipv4Addr::new(192, 0, 2, 202);
        let routers = [world.add_foreign(64601, first, true), world.add_foreign(64602, second, !old)];
        let mut plan = empty(64512, LISTENER);
        plan.listener = Some(listener("192.0.2.0/25", &VIPS));
        let listener = world.add_node(plan);
        let gateways = (0..3u8)
            .map(|i| {
                // The first has an AS number of four octets.
                let asn = if i == 0 { 4_200_000_011 } else { 64513 };
                let mut plan = empty(asn, Ipv4Addr::new(192, 0, 2, 11 + i));
                add_peer(&mut plan, peer("l", LISTENER, PeerAsn::Number(64512)));
                add_peer(&mut plan, peer("first", first, PeerAsn::External));
                let mut limited = peer("second", second, PeerAsn::Number(64602));
                limited.vips = names(&["web", "six"]);
                limited.graceful_restart = (i == 1).then_some(secs(30));
                add_peer(&mut plan, limited);
                let mut web = vip("web", &[VIPS[0].1], &["http", "tcp"]);
                web.manage = Some("lo".into());
                add_vip(&mut plan, web, &["http", "tcp"]);
                let mut dns = vip("dns", &[VIPS[1].1], &["dns"]);
                dns.fail_action = FailAction::LowerPriority;
                dns.withdraw_after = Some(secs(6));
                add_vip(&mut plan, dns, &["dns"]);
                let mut six = vip("six", &[VIPS[2].1], &["six"]);
                six.require_local_address = true;
                add_vip(&mut plan, six, &["six"]);
                let host = world.add_node(plan);
                world.hosts[host].addresses.insert(six_address());
                host
            })
            .collect();
        Self { world, listener, routers, gateways }
    }

    fn any(&mut self) -> usize {
        let n = self.world.rng.below(self.gateways.len() as u64) as usize;
        self.gateways[n]
    }

    fn other(&mut self) -> usize {
        [self.listener, self.routers[0], self.routers[1]][self.world.rng.below(3) as usize]
    }

    fn fault(&mut self) {
        let (gateway, far) = (self.any(), self.other());
        let world = &mut self.world;
        let link = (gateway.min(far), gateway.max(far));
        match world.rng.below(17) {
            0..4 => {
                let n = world.rng.below(4) as usize;
                let id = world.hosts[gateway].good.keys().nth(n).unwrap().clone();
                let good = world.rng.below(2) == 0;
                world.log.push(format!("{} host {gateway}: {id} turns {good}", world.now));
                world.hosts[gateway].good.insert(id, good);
            }
            4 | 5 => {
                let exists = world.rng.below(2) == 0;
                let name = VIPS[world.rng.below(3) as usize].0;
                world.hosts[gateway].files.insert(name.into(), exists);
                world.log.push(format!("{} host {gateway}: file of {name} {exists}", world.now));
                world.input(gateway, Input::LowerPriorityFile(name.into(), exists));
            }
            6 => {
                let host = &mut world.hosts[gateway];
                if !host.addresses.remove(&six_address()) {
                    host.addresses.insert(six_address());
                }
                let addresses = host.addresses.clone();
                world.log.push(format!("{} host {gateway}: addresses {addresses:?}", world.now));
                world.input(gateway, Input::Addresses(addresses));
            }
            7 | 8 => {
                world.log.push(format!("{} cut {link:?}", world.now));
                world.cut.insert(link);
                world.disturb(far);
            }
            9 => {
                world.cut.clear();
                world.log.push(format!("{} heal", world.now));
                for host in 0..world.hosts.len() {
                    world.disturb(host);
                }
            }
            10 => {
                world.log.push(format!("{} reset {gateway} {far}", world.now));
                world.reset(gateway, far);
            }
            11 => {
                world.kill(gateway);
                let after = Duration::from_millis(world.rng.below(8000));
                world.start_later(gateway, after);
            }
            12 => {
                world.kill(far);
                let after = Duration::from_millis(world.rng.below(8000));
                world.start_later_if_node(far, after);
            }
            13 => {
                let acts = match (far == self.listener, world.rng.below(2)) {
                    (true, _) => vec![],
                    (_, 0) => world.foreign(far).flood(),
                    _ => world.foreign(far).refresh(),
                };
                world.act(far, acts);
            }
            14 => {
                let rate = 20 + world.rng.below(2000) as usize;
                if world.slow.remove(&far).is_none() {
                    world.slow.insert(far, rate);
                }
                world.disturb(far);
            }
            15 => {
                let long = Duration::from_millis(world.rng.below(15_000));
                world.freeze(gateway, long);
            }
            _ => {
                world.hosts[gateway].probing = world.rng.below(2) == 0;
            }
        }
    }

    /// Everything works again; some checks are bad and some files are there.
    fn heal(&mut self) {
        let world = &mut self.world;
        world.cut.clear();
        world.slow.clear();
        for host in 0..world.hosts.len() {
            world.disturb(host);
            world.hosts[host].probing = true;
            if world.hosts[host].plan.is_some() {
                world.start(host);
            }
        }
        world.log.push(format!("{} all is well", world.now));
    }

    /// What must hold when nothing has happened for long.
    fn quiet(&self) {
        let world = &self.world;
        let seed = world.seed;
        let mut paths: BTreeMap<Prefix, BTreeMap<IpAddr, usize>> = BTreeMap::new();
        for &gateway in &self.gateways {
            let node = world.node(gateway).unwrap();
            let status = node.status(world.now);
            let address = IpAddr::V4(world.hosts[gateway].address);
            let mut want: BTreeMap<&str, Option<usize>> = BTreeMap::new();
            for (name, prefix) in VIPS {
                let vip = status.vips.iter().find(|v| v.name == name).unwrap();
                let mut checks = world.hosts[gateway].good.iter().filter(|(id, _)| *id.vip == *name);
                let good = checks.all(|(_, good)| *good);
                let file = world.hosts[gateway].files.get(name).copied().unwrap_or(false);
                let here = name != "six" || world.hosts[gateway].addresses.contains(&six_address());
                // The second stage of `dns` is long over.
                let state = match (good && here, file) {
                    (true, false) => VipState::Announced,
                    (true, true) => VipState::Pessimised,
                    (false, _) => VipState::Withdrawn,
                };
                assert_eq!(vip.state_name, state, "seed {seed}: {name} of host {gateway}: {}", vip.reason);
                let length = match state {
                    VipState::Withdrawn => None,
                    VipState::Announced => Some(1),
                    VipState::Pessimised => Some(4),
                };
                want.insert(prefix, length);
                if let Some(length) = length {
                    paths.entry(prefix.parse().unwrap()).or_default().insert(address, length);
                }
                let managed = world.hosts[gateway].addresses.iter().any(|a| a.address == web_address());
                if name == "web" {
                    // Its address stays while it is announced only: no check connects to it.
                    let left = world.hosts[gateway].left.iter().any(|a| a.address == web_address());
                    let announced = state != VipState::Withdrawn;
                    assert!(managed == announced || (managed && left), "seed {seed}: host {gateway}");
                }
            }
            for peer in &status.peers {
                assert!(
                    peer.uptime.is_some(),
                    "seed {seed}: {} of host {gateway}: {}",
                    peer.name,
                    peer.last_down
                );
                assert!(!peer.pending, "seed {seed}: {} of host {gateway} is pending", peer.name);
            }
            for (i, &router) in self.routers.iter().enumerate() {
                assert_eq!(world.connections(gateway, router), 1, "seed {seed}: {gateway} and {router}");
                let table = world.table_at(router, gateway).expect("a session");
                let told: BTreeMap<Prefix, usize> = table
                    .0
                    .iter()
                    .map(|(p, r)| {
                        let four = r.attributes[&2].len() % 4 == 2;
                        (*p, as_path(&r.attributes[&2], if four && self.four(i) { 4 } else { 2 }).len())
                    })
                    .collect();
                let wanted: BTreeMap<Prefix, usize> = want
                    .iter()
                    .filter(|(p, _)| i == 0 || **p != VIPS[1].1)
                    .filter(|(p, _)| self.four(i) || !p.contains(':'))
                    .filter_map(|(p, n)| Some((p.parse().unwrap(), (*n)?)))
                    .collect();
                assert_eq!(told, wanted, "seed {seed}: host {gateway} at router {router}");
            }
            assert_eq!(world.connections(gateway, self.listener), 1, "seed {seed}: {gateway}");
        }
        for (_, prefix) in VIPS {
            let prefix: Prefix = prefix.parse().unwrap();
            let lengths = paths.remove(&prefix).unwrap_or_default();
            let best = lengths.values().min().copied();
            let hop = |a: IpAddr| match (prefix.afi(), a) {
                (standfast_core::Afi::Ipv6, IpAddr::V4(a)) => {
                    format!("2001:db8::{:x}", a.octets()[3]).parse().unwrap()
                }
                (_, a) => a,
            };
            let want: BTreeSet<IpAddr> =
                lengths.into_iter().filter(|(_, n)| Some(*n) == best).map(|(a, _)| hop(a)).collect();
            let got = world.hosts[self.listener].routes.get(&prefix).cloned().unwrap_or_default();
            assert_eq!(got, want, "seed {seed}: routes of {prefix} at the listener");
        }
    }

    fn four(&self, router: usize) -> bool {
        match &self.world.hosts[self.routers[router]].kind {
            crate::world::Kind::Foreign(f) => f.modern,
            crate::world::Kind::Node(_) => true,
        }
    }
}

fn web_address() -> IpAddr {
    "198.51.100.10".parse().unwrap()
}

fn six_address() -> standfast_core::node::LocalAddress {
    let address = "2001:db8:100::10".parse().unwrap();
    standfast_core::node::LocalAddress { address, interface: "lo".into() }
}

/// Prints what happened when a promise breaks.
struct Story<'a>(&'a mut Fleet, bool);

impl Drop for Story<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() || self.1 {
            let log = &self.0.world.log;
            let from = if self.1 { 0 } else { log.len().saturating_sub(120) };
            eprintln!("{}\nseed {} at {}", log[from..].join("\n"), self.0.world.seed, self.0.world.now);
        }
    }
}

fn one(seed: u64, verbose: bool) {
    let mut fleet = Fleet::new(seed);
    let story = Story(&mut fleet, verbose);
    let fleet = &mut *story.0;
    fleet.world.run(secs(3));
    for _ in 0..40 {
        fleet.fault();
        let pause = [50, 500, 3_000][fleet.world.rng.below(3) as usize];
        let pause = Duration::from_millis(fleet.world.rng.below(pause));
        fleet.world.run(pause);
    }
    fleet.heal();
    // Hold time, back-off and rise, with room.
    fleet.world.run(secs(30));
    fleet.quiet();
    // And it stays so, without a single UPDATE.
    let updates = |f: &Fleet| -> u64 {
        f.gateways
            .iter()
            .flat_map(|g| f.world.node(*g).unwrap().status(f.world.now).peers)
            .map(|p| p.updates_sent)
            .sum()
    };
    let before = updates(fleet);
    fleet.world.run(secs(20));
    assert_eq!(updates(fleet), before, "seed {seed}: UPDATEs while nothing happens");
    fleet.quiet();
}

fn seeds(range: std::ops::Range<u64>) {
    match std::env::var("STANDFAST_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) if range.contains(&0) => one(seed, true),
        Some(_) => {}
        None => range.for_each(|seed| one(seed, false)),
    }
}

#[test]
fn every_promise_holds_under_random_faults_and_once_it_is_quiet() {
    seeds(0..50);
}

#[test]
fn every_promise_holds_under_other_random_faults_too() {
    seeds(50..100);
}
