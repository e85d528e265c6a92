//! A listener that holds, drains and counts its members, under random faults and orders.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use standfast_core::Prefix;
use standfast_core::announce::VipState;
use standfast_core::bgp::{GRACEFUL_SHUTDOWN, State};
use standfast_core::node::{Held, Input, ListenerStatus};
use standfast_core::plan::{
    Check, FailAction, Hashing, ListenerFloor, MembersProbe, PeerAsn, Probe, Weights,
};

use crate::bench::peer::{p, secs};
use crate::bench::plan::{add_peer, add_vip, empty, id, listener, peer, vip};
use crate::world::World;

const LISTENER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 201);
const VIPS: [(&str, &str); 3] =
    [("web", "198.51.100.10/32"), ("dns", "198.51.100.53/32"), ("pair", "198.51.100.20/32")];
const HOLD: Duration = Duration::from_secs(20);
const DRAIN: Duration = Duration::from_secs(12);

struct Fleet {
    world: World,
    listener: usize,
    gateways: Vec<usize>,
}

fn hashing(name: &str) -> Hashing {
    match name {
        "pair" => Hashing::Consistent { slots: 30 },
        _ => Hashing::Resilient { buckets: Some(64), idle_timer: secs(10), unbalanced_timer: Duration::ZERO },
    }
}

impl Fleet {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed);
        world.add_foreign(64601, ROUTER, true);
        let mut plan = empty(64512, LISTENER);
        let mut role = listener("192.0.2.0/25", &VIPS);
        for (name, vip) in &mut role.vips {
            vip.hashing = hashing(name);
            vip.drain = DRAIN;
            vip.floor = (name != "pair").then_some(ListenerFloor { members: 2, hold: HOLD });
            vip.weights = if name == "dns" { Weights::LinkBandwidth } else { Weights::Equal };
        }
        plan.listener = Some(role);
        // The address of the world, announced upstream while two members carry it.
        let mut front = vip("front", &["203.0.113.5/32"], &["fleet"]);
        front.fail_action = FailAction::Withdraw;
        add_vip(&mut plan, front, &[]);
        let probe = Probe::Members(MembersProbe { vip: "web".into(), at_least: 2 });
        let check =
            Check { interval: Duration::ZERO, fast_interval: Duration::ZERO, fall: 1, ..Check::new(probe) };
        plan.checks.insert(id("front", "fleet"), check);
        add_peer(&mut plan, peer("up", ROUTER, PeerAsn::Number(64601)));
        let listener = world.add_node(plan);
        let gateways = (0..4u8)
            .map(|i| {
                let mut plan = empty(64513, Ipv4Addr::new(192, 0, 2, 11 + i));
                add_peer(&mut plan, peer("l", LISTENER, PeerAsn::Number(64512)));
                for (name, prefix) in VIPS {
                    let mut v = vip(name, &[prefix], &[name]);
                    v.fail_action =
                        if name == "pair" { FailAction::LowerPriority } else { FailAction::Withdraw };
                    // Its drain file makes it leave in order, but for the one that becomes a worse choice.
                    if name != "pair" {
                        v.lower_priority = Default::default();
                        v.lower_priority.communities.insert(GRACEFUL_SHUTDOWN);
                    }
                    let bytes = (100.0_f32 * f32::from(1 + i % 3)).to_be_bytes();
                    v.announce
                        .extended_communities
                        .insert([0x40, 4, 0xfc, 1, bytes[0], bytes[1], bytes[2], bytes[3]]);
                    add_vip(&mut plan, v, &[name]);
                }
                world.add_node(plan)
            })
            .collect();
        Self { world, listener, gateways }
    }

    fn fault(&mut self) {
        let world = &mut self.world;
        let gateway = self.gateways[world.rng.below(4) as usize];
        let name = VIPS[world.rng.below(3) as usize].0;
        let address = IpAddr::V4(world.hosts[gateway].address);
        let link = (gateway.min(self.listener), gateway.max(self.listener));
        match world.rng.below(15) {
            0..4 => {
                let good = world.rng.below(2) == 0;
                world.log.push(format!("{} host {gateway}: {name} turns {good}", world.now));
                world.hosts[gateway].good.insert(id(name, name), good);
            }
            4 | 5 => {
                let exists = world.rng.below(2) == 0;
                world.log.push(format!("{} host {gateway}: file of {name} {exists}", world.now));
                world.hosts[gateway].files.insert(name.into(), exists);
                world.input(gateway, Input::LowerPriorityFile(name.into(), exists));
            }
            6 | 7 => {
                let vip = (world.rng.below(2) == 0).then(|| name.to_owned());
                let timeout = (world.rng.below(2) == 0).then(|| secs(world.rng.below(30)));
                world.input(self.listener, Input::Drain { member: address, vip, timeout });
            }
            8 => world.input(self.listener, Input::Undrain { member: address, vip: None }),
            9 => {
                world.log.push(format!("{} cut {link:?}", world.now));
                world.cut.insert(link);
            }
            10 => {
                world.log.push(format!("{} heal", world.now));
                world.cut.clear();
            }
            11 => world.reset(gateway, self.listener),
            12 => {
                world.kill(gateway);
                let after = Duration::from_millis(world.rng.below(8000));
                world.start_later(gateway, after);
            }
            13 => {
                let long = Duration::from_millis(world.rng.below(12_000));
                world.freeze(gateway, long);
            }
            _ => {
                world.kill(self.listener);
                let after = Duration::from_millis(world.rng.below(4000));
                world.start_later(self.listener, after);
            }
        }
    }

    /// The kernel tells of buckets: those that drain grow silent sooner or later.
    fn tell(&mut self) {
        let groups = self.world.hosts[self.listener].groups.clone();
        for (prefix, group) in groups {
            if matches!(group.hashing, Hashing::Resilient { .. }) {
                let mut held = BTreeMap::new();
                for (hop, share) in &group.hops {
                    let busy = if share.draining { self.world.rng.below(3) } else { 5 } as u32;
                    held.insert(*hop, Held { buckets: busy + 3, busy, moved: 0 });
                }
                self.world.input(self.listener, Input::Buckets(prefix, held));
            }
        }
    }

    fn status(&self) -> Option<ListenerStatus> {
        self.world.node(self.listener)?.listener_status(self.world.now)
    }

    /// What must hold at every moment.
    fn promises(&self) {
        let (seed, now) = (self.world.seed, self.world.now);
        let Some(status) = self.status() else { return };
        let host = &self.world.hosts[self.listener];
        let alive: BTreeSet<IpAddr> = status
            .members
            .iter()
            .filter(|m| m.session_state == State::Established)
            .map(|m| m.address)
            .collect();
        for vip in &status.vips {
            let about = format!("seed {seed} at {now}: {} ({})", vip.name, vip.reason);
            // Told is wanted.
            let told = host.groups.get(&vip.prefix);
            let shown: BTreeSet<(IpAddr, u16, bool)> =
                vip.hops.iter().map(|h| (h.address, h.weight, h.draining)).collect();
            let kernel: BTreeSet<(IpAddr, u16, bool)> = told
                .into_iter()
                .flat_map(|g| &g.hops)
                .map(|(hop, share)| (hop.address, share.weight, share.draining))
                .collect();
            assert_eq!(shown, kernel, "{about}");
            let mut announcing = 0;
            for hop in &vip.hops {
                assert!(alive.contains(&hop.address), "{about}: {} has no session", hop.address);
                assert!(hop.draining || hop.weight > 0);
            }
            let standings = || {
                let all = status.members.iter().flat_map(|m| m.vips.iter().map(move |v| (m, v)));
                all.filter(|(_, v)| v.prefix == vip.prefix)
            };
            for (member, standing) in standings() {
                let in_group = vip.hops.iter().find(|h| h.address == member.address);
                let takes = in_group.is_some_and(|h| !h.draining);
                match standing.state {
                    "serving" | "last" => assert!(takes, "{about}: {} {}", member.address, standing.state),
                    "draining" => {
                        assert!(in_group.is_some_and(|h| h.draining), "{about}");
                        assert!(standing.left.is_some_and(|s| s <= 30.0), "{about}");
                        let slots = in_group.and_then(|h| h.buckets);
                        assert!(vip.name != "pair" || slots > Some(0), "{about}: its slots are gone");
                    }
                    "held" => {
                        assert!(takes, "{about}: {} counts and takes nothing", member.address);
                        assert!(standing.left.is_some_and(|s| s <= HOLD.as_secs_f64()), "{about}");
                        assert!(!member.announces.contains(&vip.prefix));
                    }
                    "drained" | "spare" | "withdrawn" | "away" => assert!(in_group.is_none(), "{about}"),
                    other => panic!("{about}: {other}"),
                }
                announcing += usize::from(member.announces.contains(&vip.prefix));
                // The floor holds whoever it can: nobody whom an order drained, and nobody else that drained beside a sound one.
                let floor = vip.floor.map_or(0, usize::from);
                let may = match standing.drains.as_deref() {
                    None => true,
                    Some("by command") => false,
                    Some(_) => !standings().any(|(_, v)| v.state == "serving"),
                };
                assert!(standing.state != "withdrawn" || vip.members >= floor || !may, "{about}");
            }
            // Nobody is left alone while somebody announces.
            assert!(announcing == 0 || vip.hops.iter().any(|h| !h.draining), "{about}");
            let held = standings().filter(|(_, v)| v.state == "held").count();
            assert_eq!(vip.held, held, "{about}");
            assert!(held == 0 || vip.members <= vip.floor.map_or(0, usize::from), "{about}: too many held");
        }
        self.front(&status);
    }

    /// The listener's own VIP follows the number of its members in the same turn.
    fn front(&self, status: &ListenerStatus) {
        let node = self.world.node(self.listener).unwrap();
        let front = node.vip_status(self.world.now, "front").unwrap();
        let members = status.vips.iter().find(|v| v.name == "web").unwrap().members;
        if front.checks[0].last_check_outcome.is_some() {
            let announced = front.state_name == VipState::Announced;
            assert_eq!(announced, members >= 2, "seed {}: {}", self.world.seed, front.reason);
        } else {
            assert!(members < 2, "seed {}: nobody told the check", self.world.seed);
        }
    }

    /// Everything works again; some checks are bad, some files are there, and no order stands.
    fn heal(&mut self) {
        self.world.cut.clear();
        for host in [&self.gateways[..], &[self.listener]].concat() {
            self.world.start(host);
            self.world.disturb(host);
        }
        for gateway in self.gateways.clone() {
            let member = IpAddr::V4(self.world.hosts[gateway].address);
            self.world.input(self.listener, Input::Undrain { member, vip: None });
        }
    }

    /// When the holds and the drains are long over, only what the members say now counts.
    fn quiet(&self) {
        let seed = self.world.seed;
        let status = self.status().unwrap();
        for (name, prefix) in VIPS {
            let mut says: BTreeMap<IpAddr, bool> = BTreeMap::new();
            for &gateway in &self.gateways {
                let host = &self.world.hosts[gateway];
                let good = host.good[&id(name, name)];
                let file = host.files.get(name).copied().unwrap_or(false);
                // `pair` becomes a worse choice by its file and by its check, unless it was never good.
                let node = self.world.node(gateway).unwrap();
                let state = node.vip_status(self.world.now, name).unwrap().state_name;
                if name != "pair" {
                    let want = if good {
                        if file { VipState::Pessimised } else { VipState::Announced }
                    } else {
                        VipState::Withdrawn
                    };
                    assert_eq!(state, want, "seed {seed}: {name} of host {gateway}");
                }
                if state != VipState::Withdrawn {
                    says.insert(host.address.into(), state == VipState::Announced);
                }
            }
            let best = says.values().copied().max();
            let want: BTreeSet<IpAddr> =
                says.iter().filter(|(_, first)| Some(**first) == best).map(|(a, _)| *a).collect();
            let vip = status.vips.iter().find(|v| v.prefix == p(prefix)).unwrap();
            let got: BTreeSet<IpAddr> = vip.hops.iter().map(|h| h.address).collect();
            assert_eq!(got, want, "seed {seed}: {name}: {}", vip.reason);
            assert!(vip.held == 0 && vip.draining == 0, "seed {seed}: {name}");
        }
    }
}

struct Story<'a>(&'a mut Fleet);

impl Drop for Story<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = &self.0.world.log;
            let from = log.len().saturating_sub(60);
            eprintln!("{}\nseed {} at {}", log[from..].join("\n"), self.0.world.seed, self.0.world.now);
        }
    }
}

#[test]
fn the_listener_keeps_its_promises_under_faults_and_orders() {
    let only = std::env::var("STANDFAST_SEED").ok().and_then(|s| s.parse::<u64>().ok());
    let (mut held, mut drained) = (0, 0);
    for seed in only.map_or(0..10, |seed| seed..seed + 1) {
        let mut fleet = Fleet::new(seed);
        let story = Story(&mut fleet);
        let fleet = &mut *story.0;
        fleet.world.run(secs(4));
        for _ in 0..40 {
            fleet.fault();
            fleet.promises();
            let pause = [50, 500, 4_000][fleet.world.rng.below(3) as usize];
            for _ in 0..4 {
                let pause = Duration::from_millis(fleet.world.rng.below(pause));
                fleet.world.run(pause);
                fleet.tell();
                fleet.promises();
            }
            let vips = fleet.status().map(|s| s.vips).unwrap_or_default();
            held += vips.iter().map(|v| v.held).sum::<usize>();
            drained += vips.iter().map(|v| v.draining).sum::<usize>();
        }
        fleet.heal();
        for _ in 0..50 {
            fleet.world.run(secs(1));
            fleet.tell();
            fleet.promises();
        }
        fleet.quiet();
    }
    assert!(
        only.is_some() || held > 20 && drained > 20,
        "{held} held, {drained} drained: this proves little"
    );
}

#[test]
fn the_log_says_whose_word_changed_a_route() {
    let mut fleet = Fleet::new(1);
    fleet.world.run(secs(6));
    let gateway = fleet.gateways[0];
    let address = fleet.world.hosts[gateway].address;
    fleet.world.kill(gateway);
    fleet.world.run(secs(20));
    let log = fleet.world.log.join("\n");
    let gone = format!("({address} is gone: its session ended)");
    let line = |l: &str| l.contains("listener vip web: ") && l.contains(" via ") && l.ends_with(&gone);
    assert!(log.lines().any(line), "{gone} is not in\n{log}");
}

#[test]
fn a_member_that_leaves_in_order_is_drained_before_it_goes() {
    let mut fleet = Fleet::new(1);
    fleet.world.run(secs(6));
    let web = p(VIPS[0].1);
    let gateway = fleet.gateways[0];
    let address = fleet.world.hosts[gateway].address;
    fleet.world.input(gateway, Input::LowerPriorityFile("web".into(), true));
    fleet.world.run(secs(2));
    let share = |fleet: &Fleet| {
        let group = &fleet.world.hosts[fleet.listener].groups[&web];
        group.hops.get(&IpAddr::V4(address).into()).map(|s| s.draining)
    };
    assert_eq!(share(&fleet), Some(true));
    let hop = IpAddr::V4(address).into();
    for (busy, stays) in [(7, true), (1, true), (0, false)] {
        let held = BTreeMap::from([(hop, Held { buckets: 9, busy, moved: 0 })]);
        fleet.world.input(fleet.listener, Input::Buckets(web, held));
        assert_eq!(share(&fleet), stays.then_some(true), "{busy} busy");
        fleet.world.run(secs(1));
    }
    // Its VIP with another hashing, whose flows cannot be seen, became a worse choice and is out at once.
    fleet.world.input(gateway, Input::LowerPriorityFile("pair".into(), true));
    fleet.world.run(secs(1));
    let pair: Prefix = p(VIPS[2].1);
    assert!(!fleet.world.hosts[fleet.listener].routes[&pair].contains(&IpAddr::V4(address)));
}
