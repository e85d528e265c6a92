//! Who takes which part, state by state.

use std::collections::BTreeSet;

use super::*;
use crate::bgp::Update;
use crate::listen::{Listener, OrderError};
use crate::machine::Rng;
use crate::plan::{self, ListenerFloor};
use crate::prefix::Prefix;

const START: Time = Time::from_secs(1000);

/// A listener of one VIP, its clock, and what it said.
struct Scene {
    listener: Listener,
    now: Time,
    said: Vec<String>,
}

/// What a member says.
#[derive(Clone, Copy)]
enum Says {
    Plain,
    Leaving,
    /// One AS longer.
    Worse,
    Bandwidth(f32),
}

const RESILIENT: Hashing = Hashing::Resilient {
    buckets: Some(1024),
    idle_timer: Duration::from_secs(60),
    unbalanced_timer: Duration::ZERO,
};

fn web() -> Prefix {
    "198.51.100.10/32".parse().unwrap()
}

fn member(i: u8) -> Hop {
    IpAddr::from([192, 0, 2, i]).into()
}

impl Scene {
    fn new(vip: impl FnOnce(&mut ListenerVip)) -> Self {
        let mut plan = ListenerVip { hashing: RESILIENT, ..ListenerVip::new(web()) };
        vip(&mut plan);
        let vips = [("web".to_owned(), plan)];
        let listener = Listener::new(&plan::Listener::new(Vec::new(), vips.into()));
        Self { listener, now: START, said: Vec::new() }
    }

    fn with_floor(members: u16, secs: u64) -> Self {
        Self::new(|v| v.floor = Some(ListenerFloor { members, hold: Duration::from_secs(secs) }))
    }

    fn settle(&mut self, touched: BTreeSet<Prefix>) {
        for prefix in touched {
            let (_, turns) = self.listener.decide(self.now, &prefix).unwrap();
            self.said.extend(turns.iter().map(|t| format!("{} {t}", t.member.address)));
        }
    }

    fn says(&mut self, i: u8, says: Says) {
        let mut path = Path::new(member(i).address);
        path.as_path = vec![64513];
        match says {
            Says::Plain => {}
            Says::Leaving => path.communities = vec![GRACEFUL_SHUTDOWN],
            Says::Worse => path.as_path.push(64513),
            Says::Bandwidth(bytes) => {
                let n = bytes.to_be_bytes();
                path.extended_communities = vec![[0x40, 4, 0xfc, 1, n[0], n[1], n[2], n[3]]];
            }
        }
        let update = Update { announced: vec![(web(), path)], ..Update::default() };
        let touched = self.listener.learned(self.now, member(i), None, update);
        self.settle(touched);
    }

    fn withdraws(&mut self, i: u8) {
        let update = Update { withdrawn: vec![web()], ..Update::default() };
        let touched = self.listener.learned(self.now, member(i), None, update);
        self.settle(touched);
    }

    fn gone(&mut self, i: u8) {
        let touched = self.listener.gone(self.now, member(i));
        self.settle(touched);
    }

    fn drain(&mut self, i: u8, secs: Option<u64>) {
        let timeout = secs.map(Duration::from_secs);
        let touched = self.listener.drain(self.now, member(i).address, None, timeout).unwrap();
        self.settle(touched);
    }

    fn undrain(&mut self, i: u8) {
        let touched = self.listener.undrain(member(i).address, None).unwrap();
        self.settle(touched);
    }

    fn told(&mut self, busy: &[(u8, u32)]) {
        let buckets =
            busy.iter().map(|&(i, busy)| (member(i), Held { buckets: busy + 5, busy, moved: 0 })).collect();
        if self.listener.told(self.now, &web(), buckets) {
            self.settle([web()].into());
        }
    }

    /// Lets time pass, with everything that is due on the way.
    fn pass(&mut self, secs: u64) {
        let end = self.now + Duration::from_secs(secs);
        while let Some(at) = self.listener.deadline().filter(|at| *at <= end) {
            assert!(at > self.now, "due at {at}, and it is {}", self.now);
            self.now = at;
            let due = self.listener.due(self.now);
            self.settle(due);
        }
        self.now = end;
    }

    /// The group in words: who, the weight unless it is 1, `d` for draining.
    fn group(&self) -> String {
        let Some(group) = self.listener.group(&web()) else { return "none".into() };
        let word = |(hop, share): (&Hop, &Share)| {
            let IpAddr::V4(address) = hop.address else { panic!() };
            let weight = if share.weight == 1 { String::new() } else { format!("*{}", share.weight) };
            format!("{}{weight}{}", address.octets()[3], if share.draining { "d" } else { "" })
        };
        group.hops.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    fn standing(&self, i: u8) -> &'static str {
        let web = web();
        let mut members = self.listener.members(&web);
        members.find(|(m, ..)| **m == member(i)).map_or("none", |(_, standing, _)| standing.word())
    }

    fn heard(&mut self, words: &str) {
        let said = std::mem::take(&mut self.said).join("\n");
        assert!(said.contains(words), "{words:?} is not in\n{said}");
    }
}

#[test]
fn worse_paths_wait_until_no_better_one_is_left() {
    let mut s = Scene::new(|_| {});
    s.says(1, Says::Plain);
    s.says(2, Says::Worse);
    s.says(3, Says::Worse);
    assert_eq!((s.group(), s.standing(2)), ("1".into(), "spare"));
    s.withdraws(1);
    assert_eq!((s.group(), s.standing(2)), ("2 3".into(), "serving"));
    s.says(1, Says::Plain);
    assert_eq!(s.group(), "1");
    // Pessimised by themselves, all of them serve.
    s.says(1, Says::Worse);
    assert_eq!((s.group(), s.listener.standing(&web())), ("1 2 3".into(), 3));
}

#[test]
fn a_member_that_says_graceful_shutdown_keeps_its_flows_and_gets_no_new_ones() {
    let mut s = Scene::new(|_| {});
    (1..=3).for_each(|i| s.says(i, Says::Plain));
    s.says(2, Says::Leaving);
    assert_eq!((s.group(), s.standing(2)), ("1 2d 3".into(), "draining"));
    assert_eq!(s.listener.standing(&web()), 2);
    s.heard("192.0.2.2 drains (GRACEFUL_SHUTDOWN): no new flows, 300 s for those it has");
    // Busy buckets keep it; the first word about them after a second counts, and one before does not.
    s.told(&[(1, 9), (2, 0), (3, 9)]);
    assert_eq!(s.group(), "1 2d 3", "what the kernel says may be from before");
    s.pass(2);
    s.told(&[(1, 9), (2, 4), (3, 9)]);
    assert_eq!(s.group(), "1 2d 3");
    s.pass(10);
    s.told(&[(1, 9), (2, 0), (3, 9)]);
    assert_eq!((s.group(), s.standing(2)), ("1 3".into(), "drained"));
    s.heard("192.0.2.2 is drained: nothing came for it any more");
    // It stays out while it says so, whatever else happens, and comes back when it does not.
    s.says(2, Says::Leaving);
    s.says(3, Says::Worse);
    assert_eq!(s.group(), "1");
    s.says(2, Says::Plain);
    assert_eq!((s.group(), s.standing(2)), ("1 2".into(), "serving"));
    s.heard("192.0.2.2 drains no longer");
}

#[test]
fn what_was_counted_before_a_drain_is_not_told_of_it() {
    let mut s = Scene::new(|_| {});
    (1..=2).for_each(|i| s.says(i, Says::Plain));
    s.told(&[(1, 9), (2, 0)]);
    let busy = |s: &Scene| s.listener.held(&web(), &member(2)).map(|held| held.busy);
    assert_eq!(busy(&s), Some(0));
    s.pass(10);
    s.drain(2, None);
    assert_eq!(busy(&s), None);
    s.told(&[(1, 9), (2, 0)]);
    assert_eq!(busy(&s), None, "it may be from before");
    s.pass(2);
    s.told(&[(1, 9), (2, 4)]);
    assert_eq!(busy(&s), Some(4));
}

#[test]
fn a_drain_ends_at_its_deadline_however_busy_it_is() {
    let mut s = Scene::new(|v| v.drain = Duration::from_secs(30));
    s.says(1, Says::Plain);
    s.says(2, Says::Plain);
    s.says(2, Says::Leaving);
    s.pass(29);
    s.told(&[(1, 7), (2, 7)]);
    // Saying it again does not begin it anew.
    s.says(2, Says::Leaving);
    assert_eq!(s.group(), "1 2d");
    s.pass(1);
    assert_eq!((s.group(), s.standing(2)), ("1".into(), "drained"));
    s.heard("192.0.2.2 is drained, for its time was up: 7 busy buckets moved");
}

#[test]
fn a_next_hop_without_a_bucket_is_drained() {
    let mut s = Scene::new(|_| {});
    s.says(1, Says::Plain);
    s.says(2, Says::Leaving);
    assert_eq!(s.group(), "1 2d", "it may have flows from before this process began");
    s.pass(2);
    s.told(&[(1, 3)]);
    assert_eq!(s.group(), "1");
}

#[test]
fn without_resilient_hashing_one_that_drains_keeps_its_part_until_its_time_is_up() {
    for hashing in [Hashing::Plain, Hashing::Consistent { slots: 60 }] {
        let mut s = Scene::new(|v| {
            v.hashing = hashing;
            v.weights = Weights::LinkBandwidth;
            v.drain = Duration::from_secs(30);
        });
        for (i, bytes) in [(1, 100.0), (2, 300.0), (3, 200.0)] {
            s.says(i, Says::Bandwidth(bytes));
        }
        assert_eq!(s.group(), "1 2*3 3*2");
        let slots = |s: &Scene| s.listener.group(&web()).unwrap().slots.clone();
        let before = slots(&s);
        s.drain(2, None);
        assert_eq!((s.group(), s.standing(2)), ("1 2*3d 3*2".into(), "draining"));
        assert_eq!(slots(&s), before, "no flow moves");
        // What is said of it later is no reason to end a drain that began.
        s.listener.steered(Some("the kernel refuses".into()));
        s.says(1, Says::Bandwidth(100.0));
        s.pass(29);
        assert_eq!(s.standing(2), "draining");
        s.pass(1);
        assert_eq!((s.group(), s.standing(2)), ("1 3*2".into(), "drained"));
        s.heard("192.0.2.2 is drained, for its time was up");
        for (before, after) in before.iter().zip(slots(&s)) {
            assert!(*before == after || *before == member(2), "only its slots move");
        }
        // One that had no part has nothing to keep.
        s.undrain(2);
        s.listener.steered(None);
        s.gone(2);
        s.says(2, Says::Leaving);
        assert_eq!((s.group(), s.standing(2)), ("1 3*2".into(), "drained"));
        // Nor one that has no weight any more.
        s.says(3, Says::Bandwidth(0.0));
        assert_eq!((s.group(), s.standing(3)), ("1".into(), "drained"));
    }
}

#[test]
fn a_member_with_moved_connections_is_not_drained() {
    let mut s = Scene::new(|_| {});
    s.says(1, Says::Plain);
    s.says(2, Says::Leaving);
    s.pass(2);
    let held = |moved| BTreeMap::from([(member(2), Held { buckets: 5, busy: 0, moved })]);
    assert!(!s.listener.told(s.now, &web(), held(1)));
    assert!(s.listener.told(s.now, &web(), held(0)));
}

#[test]
fn without_resilient_hashing_and_a_memory_of_new_flows_a_drain_takes_the_member_out_at_once() {
    for hashing in [Hashing::Plain, Hashing::Consistent { slots: 8 }] {
        let mut s = Scene::new(|v| v.hashing = hashing);
        s.listener.steered(Some("there is no program nft".into()));
        s.says(1, Says::Plain);
        s.says(2, Says::Plain);
        s.says(2, Says::Leaving);
        assert_eq!((s.group(), s.standing(2)), ("1".into(), "drained"));
        s.heard("192.0.2.2 is drained at once (GRACEFUL_SHUTDOWN)");
    }
}

#[test]
fn who_drains_goes_on_serving_while_nobody_else_is_left() {
    let mut s = Scene::new(|v| v.drain = Duration::from_secs(30));
    s.says(1, Says::Plain);
    s.says(1, Says::Leaving);
    assert_eq!((s.group(), s.standing(1)), ("1".into(), "last"));
    s.heard("192.0.2.1 drains (GRACEFUL_SHUTDOWN), but nobody else is left: it goes on taking flows");
    s.pass(100);
    assert_eq!(s.group(), "1");
    // Somebody else comes: now it drains, for the whole of its time.
    s.says(2, Says::Plain);
    assert_eq!((s.group(), s.standing(1)), ("1d 2".into(), "draining"));
    s.pass(29);
    assert_eq!(s.group(), "1d 2");
    s.gone(2);
    assert_eq!((s.group(), s.standing(1)), ("1".into(), "last"));
    s.says(2, Says::Worse);
    s.pass(30);
    assert_eq!((s.group(), s.standing(1)), ("2".into(), "drained"), "a worse path is better than none");
    // And a drained one is better than none, too.
    s.withdraws(2);
    assert_eq!((s.group(), s.standing(1)), ("1".into(), "last"));
    s.gone(1);
    assert_eq!(s.group(), "none");
}

#[test]
fn of_several_that_drain_alone_the_best_serve() {
    let mut s = Scene::new(|_| {});
    s.says(1, Says::Leaving);
    s.says(2, Says::Leaving);
    assert_eq!(s.group(), "1 2");
    s.says(3, Says::Worse);
    assert_eq!(s.group(), "1d 2d 3");
}

#[test]
fn an_order_drains_outlives_the_session_and_is_taken_back() {
    let mut s = Scene::new(|_| {});
    s.says(1, Says::Plain);
    s.says(2, Says::Plain);
    s.drain(2, Some(10));
    assert_eq!((s.group(), s.standing(2)), ("1 2d".into(), "draining"));
    s.heard("192.0.2.2 drains (by command): no new flows, 10 s for those it has");
    s.pass(10);
    assert_eq!(s.group(), "1");
    s.gone(2);
    s.pass(100);
    s.says(2, Says::Plain);
    assert_eq!((s.group(), s.standing(2)), ("1 2d".into(), "draining"), "it may have flows again");
    s.undrain(2);
    assert_eq!((s.group(), s.standing(2)), ("1 2".into(), "serving"));
    assert_eq!(s.listener.undrain(member(2).address, None), Err(OrderError::NotOrdered));
    // A time that was ordered counts, whatever else it drains for.
    s.drain(2, Some(1000));
    s.says(2, Says::Leaving);
    s.pass(300);
    assert_eq!(s.group(), "1 2d");
    s.pass(700);
    assert_eq!(s.group(), "1");
}

#[test]
fn an_order_may_be_for_one_vip_and_is_refused_for_none() {
    let mut s = Scene::new(|_| {});
    s.says(1, Says::Plain);
    s.says(2, Says::Plain);
    let two = member(2).address;
    let no = Err(OrderError::NoSuchVip("dns".into()));
    assert_eq!(s.listener.drain(s.now, two, Some("dns"), None), no);
    assert_eq!(s.listener.undrain(two, Some("dns")), no);
    assert_eq!(s.listener.undrain(two, Some("web")), Err(OrderError::NotOrdered));
    let touched = s.listener.drain(s.now, two, Some("web"), None).unwrap();
    s.settle(touched);
    assert_eq!(s.group(), "1 2d");
    let touched = s.listener.undrain(two, Some("web")).unwrap();
    s.settle(touched);
    assert_eq!((s.group(), s.listener.orders().count()), ("1 2".into(), 0));
    s.drain(2, None);
    assert_eq!(s.listener.undrain(two, Some("web")), Err(OrderError::ForEveryVip));
}

#[test]
fn orders_are_bounded() {
    let mut s = Scene::new(|_| {});
    for i in 0..10_000_u32 {
        let address = std::net::Ipv4Addr::from_bits(0x0a00_0000 + i).into();
        let taken = s.listener.drain(START, address, None, None);
        assert_eq!(taken.is_ok(), i < 4096, "{i}");
    }
    assert_eq!(s.listener.orders().count(), 4096);
}

#[test]
fn shares_follow_the_bandwidths_and_zero_drains_where_they_count() {
    let bandwidths = |v: &mut ListenerVip| v.weights = Weights::LinkBandwidth;
    let mut s = Scene::new(bandwidths);
    s.says(1, Says::Bandwidth(100.0));
    s.says(2, Says::Bandwidth(300.0));
    assert_eq!(s.group(), "1 2*3");
    s.says(3, Says::Plain);
    assert_eq!(s.group(), "1 2*3 3", "who says nothing has the least share");
    s.says(2, Says::Bandwidth(0.0));
    assert_eq!((s.group(), s.standing(2)), ("1 2d 3".into(), "draining"));
    s.says(2, Says::Bandwidth(f32::NAN));
    assert_eq!(s.group(), "1 2 3");
    s.says(2, Says::Bandwidth(200.2));
    assert_eq!(s.group(), "1 2*2 3");
    // A tremble is no change at all.
    s.says(2, Says::Bandwidth(200.0));
    let update = Update::default();
    assert!(s.listener.learned(s.now, member(2), None, update).is_empty());
    let (changed, _) = s.listener.decide(s.now, &web()).unwrap();
    assert!(!changed);
    let mut equal = Scene::new(|_| {});
    equal.says(1, Says::Bandwidth(100.0));
    equal.says(2, Says::Bandwidth(0.0));
    assert_eq!((equal.group(), equal.standing(2)), ("1 2".into(), "serving"));
}

#[test]
fn the_floor_holds_the_last_for_a_while() {
    let mut s = Scene::with_floor(1, 60);
    s.says(1, Says::Plain);
    s.says(2, Says::Plain);
    s.withdraws(1);
    assert_eq!((s.group(), s.standing(1)), ("2".into(), "withdrawn"), "there are enough");
    s.pass(10);
    s.withdraws(2);
    assert_eq!((s.group(), s.standing(2)), ("2".into(), "held"));
    s.heard("192.0.2.2 withdrew, and is held by the floor for 60 s");
    assert_eq!(s.listener.standing(&web()), 1);
    s.pass(59);
    assert_eq!((s.group(), s.standing(1)), ("2".into(), "none"));
    s.pass(1);
    assert_eq!((s.group(), s.standing(2)), ("none".into(), "none"));
    s.heard("192.0.2.2 is let go: the floor has held it for long enough");
    s.says(1, Says::Plain);
    assert_eq!(s.group(), "1");
}

#[test]
fn a_session_that_ends_takes_even_the_last_out() {
    let mut s = Scene::with_floor(2, 60);
    s.says(1, Says::Plain);
    s.says(2, Says::Plain);
    s.withdraws(1);
    assert_eq!((s.group(), s.standing(1)), ("1 2".into(), "held"));
    s.gone(1);
    assert_eq!(s.group(), "2");
    s.heard("192.0.2.1 is gone: its session ended");
    s.gone(2);
    assert_eq!((s.group(), s.listener.standing(&web())), ("none".into(), 0));
}

#[test]
fn who_withdrew_is_taken_back_when_another_dies() {
    let mut s = Scene::with_floor(1, 60);
    s.says(1, Says::Plain);
    s.says(2, Says::Plain);
    s.withdraws(1);
    s.pass(20);
    s.gone(2);
    assert_eq!((s.group(), s.standing(1)), ("1".into(), "held"));
    s.heard("192.0.2.1 withdrew, and is taken back by the floor for 40 s");
    s.pass(40);
    assert_eq!(s.group(), "none");
}

/// The same listener after a restart of its host: it knows what was withdrawn, and has no session yet.
fn restarted(old: &Scene, away: u64) -> Scene {
    let plan = old.listener.vips().map(|(_, name, plan)| (name.to_owned(), plan.clone())).collect();
    let mut listener = Listener::new(&plan::Listener::new(Vec::new(), plan));
    for (vip, member, at, what) in old.listener.withdrawn(old.now) {
        listener.recall(vip, member, at, what);
    }
    Scene { listener, now: old.now + Duration::from_secs(away), said: Vec::new() }
}

impl Scene {
    fn comes(&mut self, i: u8) {
        let touched = self.listener.came(self.now, member(i));
        self.settle(touched);
    }
}

#[test]
fn what_was_withdrawn_before_a_restart_is_held_once_its_session_is_back() {
    let mut old = Scene::with_floor(1, 600);
    old.says(1, Says::Plain);
    old.says(2, Says::Worse);
    old.withdraws(1);
    old.pass(10);
    old.withdraws(2);
    assert_eq!(old.group(), "1", "the better one is held");
    let mut s = restarted(&old, 20);
    s.pass(30);
    assert_eq!(s.group(), "none", "no session, no hold");
    // The worse one is back first. It has a moment to announce, and so have the others.
    s.comes(2);
    s.pass(2);
    assert_eq!(s.group(), "none");
    s.comes(1);
    s.pass(1);
    assert_eq!(s.group(), "2");
    s.pass(2);
    assert_eq!((s.group(), s.standing(1), s.standing(2)), ("1".into(), "held", "withdrawn"));
    s.heard("192.0.2.1 withdrew, and is held by the floor for 535 s");
    // As long as it would have been without the restart, and no longer.
    s.pass(534);
    assert_eq!(s.standing(1), "held");
    s.pass(1);
    assert_eq!(s.standing(1), "none");
    assert_eq!(s.group(), "2", "the other one withdrew later");
    s.pass(10);
    assert_eq!(s.group(), "none");
    assert_eq!(s.listener.withdrawn(s.now).count(), 0);
}

#[test]
fn a_restart_holds_nobody_who_announces_again_or_dies_or_was_let_go() {
    let mut old = Scene::with_floor(1, 600);
    for i in 1..=4 {
        old.says(i, Says::Plain);
    }
    (1..=3).for_each(|i| old.withdraws(i));
    old.gone(4);
    old.gone(3);
    let s = restarted(&old, 1);
    assert_eq!(s.listener.withdrawn(s.now).count(), 2, "who is gone is forgotten");
    // A second restart before any session is back forgets nothing.
    let mut s = restarted(&s, 1);
    assert_eq!(s.listener.withdrawn(s.now).count(), 2);
    s.comes(2);
    s.says(2, Says::Plain);
    s.comes(1);
    s.gone(1);
    assert_eq!(s.listener.withdrawn(s.now).count(), 0);
    s.pass(60);
    assert_eq!((s.group(), s.standing(1)), ("2".into(), "none"));
    // Its time was up while this host was away.
    let mut s = restarted(&old, 599);
    s.comes(1);
    s.pass(60);
    assert_eq!(s.group(), "none");
    // A VIP whose floor was taken away holds nobody.
    let mut s = Scene::new(|_| {});
    for (vip, member, at, what) in old.listener.withdrawn(old.now) {
        s.listener.recall(vip, member, at, what);
    }
    s.now = old.now;
    s.comes(1);
    s.pass(60);
    assert_eq!(s.group(), "none");
}

#[test]
fn the_held_are_let_go_when_enough_announce_again() {
    let mut s = Scene::with_floor(2, 60);
    (1..=3).for_each(|i| s.says(i, Says::Plain));
    for i in 1..=3 {
        s.withdraws(i);
        s.pass(1);
    }
    assert_eq!((s.group(), s.standing(1)), ("2 3".into(), "withdrawn"), "who withdrew last is held");
    s.says(1, Says::Plain);
    assert_eq!((s.group(), s.standing(2)), ("1 3".into(), "withdrawn"));
    s.heard("192.0.2.2 is let go: enough others announce it");
    s.says(3, Says::Plain);
    assert_eq!((s.group(), s.standing(3)), ("1 3".into(), "serving"));
    s.heard("192.0.2.3 announces it again, and is held no longer");
}

#[test]
fn the_held_serve_beside_a_worse_one_and_a_better_one() {
    let mut s = Scene::with_floor(2, 60);
    s.says(1, Says::Plain);
    s.says(2, Says::Worse);
    assert_eq!(s.group(), "1");
    s.withdraws(1);
    assert_eq!(s.group(), "1 2", "the one that is sound, and the one that the floor holds");
    s.says(1, Says::Plain);
    s.withdraws(2);
    assert_eq!((s.group(), s.standing(2)), ("1 2".into(), "held"), "what counts as a member takes its share");
}

#[test]
fn the_floor_holds_the_best_and_all_that_it_holds_take_their_share() {
    let mut s = Scene::with_floor(2, 60);
    (1..=3).for_each(|i| s.says(i, Says::Plain));
    s.says(4, Says::Worse);
    s.says(5, Says::Worse);
    for i in 1..=5 {
        s.withdraws(i);
        s.pass(1);
    }
    assert_eq!((s.group(), s.listener.standing(&web())), ("2 3".into(), 2), "the best, not the latest");
    s.gone(1);
    s.gone(2);
    assert_eq!((s.group(), s.listener.standing(&web())), ("3 5".into(), 2));
}

#[test]
fn who_drained_and_withdraws_is_not_held_while_anybody_sound_serves() {
    let mut s = Scene::with_floor(2, 600);
    (1..=2).for_each(|i| s.says(i, Says::Plain));
    s.says(2, Says::Leaving);
    s.withdraws(2);
    assert_eq!((s.group(), s.standing(2)), ("1".into(), "withdrawn"));
    s.gone(1);
    assert_eq!((s.group(), s.standing(2)), ("2".into(), "held"), "it is better than none");
    // Whom an operator drained is never held.
    let mut s = Scene::with_floor(2, 600);
    (1..=2).for_each(|i| s.says(i, Says::Plain));
    s.drain(2, None);
    s.withdraws(2);
    assert_eq!((s.group(), s.standing(2)), ("1".into(), "withdrawn"));
    s.gone(1);
    assert_eq!((s.group(), s.standing(2)), ("none".into(), "withdrawn"));
}

#[test]
fn who_drains_does_not_count_for_the_floor_and_is_held_last_of_all() {
    let mut s = Scene::with_floor(1, 60);
    s.says(1, Says::Plain);
    s.says(2, Says::Plain);
    s.drain(2, Some(600));
    s.withdraws(1);
    assert_eq!((s.group(), s.standing(2)), ("2".into(), "last"), "it serves before one that withdrew");
    s.says(1, Says::Plain);
    assert_eq!(s.group(), "1 2d");
    s.withdraws(2);
    s.withdraws(1);
    assert_eq!((s.group(), s.standing(1)), ("1".into(), "held"));
}

#[test]
fn slots_are_the_same_whatever_came_before() {
    let plan = |v: &mut ListenerVip| v.hashing = Hashing::Consistent { slots: 60 };
    let mut first = Scene::new(plan);
    (1..=4).for_each(|i| first.says(i, Says::Plain));
    let slots = |s: &Scene| s.listener.group(&web()).unwrap().slots.clone();
    let want = slots(&first);
    assert_eq!(want.len(), 60);
    for seed in 0..50 {
        let mut rng = Rng::new(seed);
        let mut s = Scene::new(plan);
        for _ in 0..30 {
            let i = 1 + rng.below(6) as u8;
            match rng.below(4) {
                0 => s.withdraws(i),
                1 => s.gone(i),
                2 => s.says(i, Says::Worse),
                _ => s.says(i, Says::Plain),
            }
        }
        (1..=4).rev().for_each(|i| s.says(i, Says::Plain));
        (5..=6).for_each(|i| s.gone(i));
        assert_eq!(slots(&s), want, "seed {seed}");
    }
    // Links have other numbers on another host: they do not matter.
    let scoped = |scope| -> BTreeMap<Hop, Share> {
        let hop = |i: u8| Hop { address: format!("fe80::{i}").parse().unwrap(), scope };
        (1..=3).map(|i| (hop(i), Share { weight: 1, draining: false })).collect()
    };
    let addresses = |scope| table(60, &scoped(scope)).iter().map(|h| h.address).collect::<Vec<_>>();
    assert_eq!(addresses(2), addresses(7));
    // One address on two links is two members.
    let twins: BTreeMap<Hop, Share> = scoped(2).into_iter().chain(scoped(3)).collect();
    let owners: BTreeSet<Hop> = table(512, &twins).into_iter().collect();
    assert_eq!(owners.len(), 6);
}

/// The rules of the head of the file, written down once more without any memory.
#[test]
fn whatever_happens_the_group_follows_from_what_stands() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let floor = rng.below(3) as u16;
        let mut s = Scene::new(|v| {
            v.floor = (floor > 0).then(|| ListenerFloor { members: floor, hold: Duration::from_secs(50) });
            v.drain = Duration::from_secs(20);
        });
        // What each member says, and since when it does not.
        let mut said: BTreeMap<u8, (bool, bool)> = BTreeMap::new();
        let mut withdrew: BTreeMap<u8, (Time, bool)> = BTreeMap::new();
        for _ in 0..60 {
            let i = 1 + rng.below(5) as u8;
            match rng.below(8) {
                0 | 1 => {
                    s.withdraws(i);
                    if let Some((leaving, _)) = said.remove(&i) {
                        withdrew.insert(i, (s.now, leaving));
                    }
                }
                2 => {
                    s.gone(i);
                    said.remove(&i);
                    withdrew.remove(&i);
                }
                3 => s.pass(rng.below(30)),
                4 => s.told(&[(i, 0)]),
                n => {
                    let (leaving, worse) = (n == 5, n == 6);
                    s.says(
                        i,
                        if leaving {
                            Says::Leaving
                        } else if worse {
                            Says::Worse
                        } else {
                            Says::Plain
                        },
                    );
                    said.insert(i, (leaving, worse));
                    withdrew.remove(&i);
                }
            }
            let group = s.listener.group(&web());
            let takes: BTreeSet<Hop> = group
                .into_iter()
                .flat_map(|g| &g.hops)
                .filter(|(_, share)| !share.draining)
                .map(|(hop, _)| *hop)
                .collect();
            let active = said.values().any(|(leaving, _)| !leaving);
            let serving: Vec<_> = said.iter().filter(|(_, (leaving, _))| !active || !leaving).collect();
            let best = serving.iter().map(|(_, (_, worse))| *worse).min();
            let holds = |i: &u8| {
                withdrew.get(i).is_some_and(|(at, leaving)| {
                    s.now < *at + Duration::from_secs(50) && !(*leaving && active)
                })
            };
            let held = withdrew.keys().filter(|i| holds(i)).count();
            let held = held.min(usize::from(floor).saturating_sub(serving.len()));
            assert_eq!(s.listener.standing(&web()), serving.len() + held, "seed {seed}");
            let best_serve = serving.iter().filter(|(_, (_, worse))| Some(*worse) == best).count();
            assert_eq!(takes.len(), best_serve + held, "seed {seed}: what counts as held takes its share");
            for (i, (_, worse)) in &serving {
                assert_eq!(takes.contains(&member(**i)), Some(*worse) == best, "seed {seed}: {i}");
            }
            // A dead session is never in the group, whatever else.
            for hop in group.into_iter().flat_map(|g| g.hops.keys()) {
                let i = (1..=5).find(|i| member(*i) == *hop).unwrap();
                assert!(said.contains_key(&i) || holds(&i), "seed {seed}: {i} is dead and routed to");
                let drains = said.get(&i).is_some_and(|(leaving, _)| *leaving && active);
                assert_eq!(group.unwrap().hops[hop].draining, drains, "seed {seed}: {i}");
            }
            if serving.is_empty() && held > 0 {
                assert!(!takes.is_empty(), "seed {seed}: the floor lets everything go");
            }
        }
    }
}

#[test]
fn buckets_that_are_still_to_move_are_counted_and_the_rest_of_the_time_told() {
    let mut s = Scene::new(|_| {});
    let web = web();
    let told = |s: &mut Scene, held: &[(u8, u32)]| {
        let buckets =
            held.iter().map(|&(i, buckets)| (member(i), Held { buckets, busy: buckets, moved: 0 })).collect();
        s.listener.told(s.now, &web, buckets);
        s.listener.balance(&web).unwrap()
    };
    s.says(1, Says::Plain);
    s.says(2, Says::Plain);
    assert_eq!(s.listener.balance(&web), None, "nothing was counted");
    assert_eq!(s.listener.group(&web).unwrap().wanted(&member(1), 1024), Some(512));
    assert_eq!(told(&mut s, &[(1, 513), (2, 511)]).to_move, 0, "what rounding makes is nothing");
    // A third one joins, and the others' flows go on.
    s.says(3, Says::Plain);
    assert_eq!(s.listener.balance(&web), None, "it was another group");
    let first = told(&mut s, &[(1, 512), (2, 512), (3, 0)]);
    assert_eq!((first.to_move, first.left()), (340, None), "{first:?}");
    s.pass(30);
    let later = told(&mut s, &[(1, 512), (2, 427), (3, 85)]);
    assert_eq!((later.to_move, later.since), (255, s.now.before(Duration::from_secs(30))));
    assert_eq!(later.left(), Some(Duration::from_secs(90)));
    s.pass(90);
    let last = told(&mut s, &[(1, 342), (2, 342), (3, 340)]);
    assert_eq!((last.to_move, last.since), (0, s.now));
    // One that drains is to have none.
    s.says(3, Says::Leaving);
    assert_eq!(s.listener.group(&web).unwrap().wanted(&member(3), 1024), Some(0));
    assert_eq!(told(&mut s, &[(1, 412), (2, 412), (3, 200)]).to_move, 199);
    // Other ways of hashing have no buckets.
    let s = Scene::new(|v| v.hashing = Hashing::Plain);
    assert_eq!(s.listener.balance(&web), None);
}
