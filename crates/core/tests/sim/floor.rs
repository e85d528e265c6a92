//! Announcers of one VIP with a floor, and a listener that tells them of each other.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use standfast_core::announce::VipState;
use standfast_core::node::Input;
use standfast_core::plan::{FailAction, Floor, PeerAsn};

use crate::bench::peer::secs;
use crate::bench::plan::{add_peer, add_vip, empty, id, listener, peer, vip};
use crate::world::World;

const LISTENER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const WEB: &str = "198.51.100.10/32";
const FLEET: usize = 5;

struct Fleet {
    world: World,
    listener: usize,
    gateways: Vec<usize>,
}

impl Fleet {
    /// Five announcers that stand.
    fn new(seed: u64, members: u16, reflect: bool) -> Self {
        let mut world = World::new(seed);
        let mut plan = empty(64512, LISTENER);
        let mut role = listener("192.0.2.0/25", &[("web", WEB)]);
        role.accept[0].reflect = reflect;
        plan.listener = Some(role);
        let listener = world.add_node(plan);
        let gateways = (0..FLEET as u8)
            .map(|i| {
                let mut plan = empty(64513, Ipv4Addr::new(192, 0, 2, 11 + i));
                add_peer(&mut plan, peer("l", LISTENER, PeerAsn::Number(64512)));
                let mut web = vip("web", &[WEB], &["web"]);
                web.fail_action = FailAction::Withdraw;
                web.lower_priority.as_path_prepend = 6;
                web.floor = Some(Floor { members, ..Floor::default() });
                add_vip(&mut plan, web, &["web"]);
                world.add_node(plan)
            })
            .collect();
        let mut fleet = Self { world, listener, gateways };
        fleet.world.run(secs(20));
        assert_eq!(fleet.states(), [VipState::Announced; FLEET], "seed {seed}");
        fleet
    }

    fn turn(&mut self, n: usize, good: bool) {
        let gateway = self.gateways[n];
        self.world.hosts[gateway].good.insert(id("web", "web"), good);
    }

    fn states(&self) -> Vec<VipState> {
        let state = |&g: &usize| {
            let status = self.world.node(g).map(|node| node.status(self.world.now));
            status.map_or(VipState::Withdrawn, |s| s.vips[0].state_name)
        };
        self.gateways.iter().map(state).collect()
    }

    fn count(&self, state: VipState) -> usize {
        self.states().iter().filter(|s| **s == state).count()
    }

    /// The next hops in the listener's kernel.
    fn routed(&self) -> usize {
        self.world.hosts[self.listener].routes.values().map(|hops| hops.len()).sum()
    }

    fn heard(&self, n: usize, words: &str) -> bool {
        let host = format!("host {} ", self.gateways[n]);
        self.world.log.iter().any(|l| l.contains(&host) && l.contains(words))
    }

    /// Lets it pass in small steps; the fewest that announced it, 0 if nobody was routed to.
    fn watch(&mut self, time: Duration) -> usize {
        let (end, mut fewest, mut gap) = (self.world.now + time, FLEET, false);
        while self.world.now < end {
            self.world.run(Duration::from_millis(20));
            fewest = fewest.min(FLEET - self.count(VipState::Withdrawn));
            gap |= self.routed() == 0;
        }
        if gap { 0 } else { fewest }
    }
}

#[test]
fn one_alone_leaves_at_once() {
    for seed in 0..20 {
        let mut fleet = Fleet::new(seed, 2, true);
        fleet.turn(3, false);
        fleet.watch(secs(6));
        let mut want = [VipState::Announced; FLEET];
        want[3] = VipState::Withdrawn;
        assert_eq!(fleet.states(), want, "seed {seed}");
        assert_eq!(fleet.routed(), FLEET - 1, "seed {seed}");
        fleet.turn(3, true);
        fleet.world.run(secs(20));
        assert_eq!(fleet.count(VipState::Announced), FLEET, "seed {seed}");
    }
}

#[test]
fn of_a_fleet_that_turns_sick_exactly_the_floor_stays() {
    for seed in 0..40 {
        let members = 1 + (seed % 3) as u16;
        let mut fleet = Fleet::new(seed, members, true);
        (0..FLEET).for_each(|n| fleet.turn(n, false));
        let fewest = fleet.watch(secs(15));
        assert!(fewest >= usize::from(members), "seed {seed}: only {fewest} for a moment");
        assert_eq!(
            fleet.count(VipState::Pessimised),
            usize::from(members),
            "seed {seed}: {:?}",
            fleet.states()
        );
        assert_eq!(fleet.routed(), usize::from(members), "seed {seed}");
        let stays: Vec<usize> = (0..FLEET).filter(|&n| fleet.states()[n] == VipState::Pessimised).collect();
        assert!(stays.iter().all(|&n| fleet.heard(n, "held by the floor")), "seed {seed}: no alarm");
        // One of them dies: it leaves, and another takes its place, although it is sick.
        fleet.world.kill(fleet.gateways[stays[0]]);
        fleet.watch(secs(10));
        assert_eq!(
            fleet.count(VipState::Pessimised),
            usize::from(members),
            "seed {seed}: {:?}",
            fleet.states()
        );
        assert_eq!(fleet.routed(), usize::from(members), "seed {seed}");
        // The rest recovers.
        (0..FLEET).for_each(|n| fleet.turn(n, true));
        fleet.world.run(secs(20));
        assert_eq!(fleet.count(VipState::Announced), FLEET - 1, "seed {seed}");
    }
}

#[test]
fn who_sees_nobody_does_not_leave_and_who_left_does_not_come_back_for_it() {
    for seed in 0..20 {
        // Nobody tells.
        let mut fleet = Fleet::new(seed, 1, false);
        fleet.turn(0, false);
        fleet.watch(secs(15));
        assert_eq!(fleet.states()[0], VipState::Pessimised, "seed {seed}");
        assert!(fleet.heard(0, "no peer tells who else announces it"), "seed {seed}");

        // A cut cable: nothing changes while it lasts.
        let mut fleet = Fleet::new(seed, 1, true);
        fleet.turn(4, false);
        fleet.watch(secs(6));
        assert_eq!(fleet.states()[4], VipState::Withdrawn, "seed {seed}");
        for n in [2, 4] {
            let link = (fleet.listener.min(fleet.gateways[n]), fleet.listener.max(fleet.gateways[n]));
            fleet.world.cut.insert(link);
        }
        fleet.world.run(secs(120));
        fleet.turn(2, false);
        fleet.world.run(secs(10));
        assert_eq!(fleet.states()[2], VipState::Pessimised, "seed {seed}: it sees nobody");
        assert_eq!(fleet.states()[4], VipState::Withdrawn, "seed {seed}: it left before");
        fleet.world.cut.clear();
        fleet.world.run(secs(60));
        assert_eq!(fleet.states()[2], VipState::Withdrawn, "seed {seed}: it sees the others again");
    }
}

#[test]
fn a_drain_and_a_stop_do_not_ask_the_floor() {
    let mut fleet = Fleet::new(7, 5, true);
    let gateway = fleet.gateways[1];
    fleet.world.input(gateway, Input::LowerPriorityFile("web".into(), true));
    fleet.watch(secs(2));
    assert_eq!(fleet.states()[1], VipState::Pessimised);
    assert!(!fleet.heard(1, "held by the floor"), "a drain file is no failure");
    fleet.world.input(gateway, Input::Stop("upgrade".into()));
    fleet.watch(secs(4));
    let address = IpAddr::V4(fleet.world.hosts[gateway].address);
    let routes = &fleet.world.hosts[fleet.listener].routes;
    assert!(routes.values().all(|hops| !hops.contains(&address)));
}

#[test]
fn one_that_the_floor_holds_drains_like_any_other() {
    let mut fleet = Fleet::new(3, 1, true);
    (0..FLEET).for_each(|n| fleet.turn(n, false));
    fleet.watch(secs(15));
    assert_eq!(fleet.states()[0], VipState::Pessimised);
    let order = Input::DrainVip { vip: Some("web".into()), deadline: Some(secs(6)) };
    fleet.world.input(fleet.gateways[0], order);
    fleet.watch(secs(3));
    assert_eq!(fleet.states()[0], VipState::Pessimised, "it has connections still");
    fleet.watch(secs(8));
    assert_eq!(fleet.states()[0], VipState::Withdrawn);
    // Another one has come back for it.
    assert_eq!(fleet.count(VipState::Pessimised), 1);
}
