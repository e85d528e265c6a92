//! The listener's routes, groups and next hops in the kernel; each test on a host of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod net_support;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use net_support::{Host, until};
use standfast_core::listen::{Group, Hop, Share};
use standfast_core::node::Held;
use standfast_core::plan::{Hashing, Listener, ListenerVip};
use standfast_core::prefix::Prefix;
use standfast_core::table::Change;
use standfast_io::fib::{Done, Fib};
use standfast_io::netlink::Netlink;

const MAIN: u32 = 254;
const SOON: Duration = Duration::from_secs(10);
const VIP: &str = "198.51.100.10/32";
const VIP6: &str = "2001:db8:100::10/128";
const A: &str = "192.0.2.2";
const B: &str = "192.0.2.3";
const C: &str = "192.0.2.4";
/// Behind the second cable.
const D: &str = "192.0.2.130";
const A6: &str = "2001:db8:1::2";
const B6: &str = "2001:db8:1::3";

fn net(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn hop(text: &str) -> Hop {
    let address: IpAddr = text.parse().unwrap();
    address.into()
}

fn resilient(buckets: u16, idle: Duration) -> Hashing {
    Hashing::Resilient { buckets: Some(buckets), idle_timer: idle, unbalanced_timer: Duration::ZERO }
}

const LONG: Duration = Duration::from_secs(120);

fn group(hashing: Hashing, hops: &[&str]) -> Group {
    shares(hashing, &hops.iter().map(|h| (*h, 1, false)).collect::<Vec<_>>())
}

fn shares(hashing: Hashing, list: &[(&str, u16, bool)]) -> Group {
    let share = |&(text, weight, draining): &(&str, u16, bool)| (hop(text), Share { weight, draining });
    let hops: BTreeMap<Hop, Share> = list.iter().map(share).collect();
    let slots = match hashing {
        Hashing::Consistent { slots } => hops.keys().copied().cycle().take(slots.into()).collect(),
        _ => Vec::new(),
    };
    Group { hashing, hops, slots }
}

/// A host [on two cables](Host::on_two_cables).
struct Router {
    host: Host,
    _other: Host,
    fib: Fib,
    vips: Vec<&'static str>,
}

impl Router {
    fn new(test: &str, vips: &[&'static str]) -> Option<Self> {
        let (host, other) = Host::on_two_cables(test)?;
        let fib = open(&host, vips);
        Some(Self { host, _other: other, fib, vips: vips.to_vec() })
    }

    /// The daemon is started again.
    fn restart(&mut self) {
        self.fib = open(&self.host, &self.vips);
    }

    fn set(&mut self, vip: &str, group: Group) -> Result<(), String> {
        self.fib.change(Change::Set(net(vip), group.into()));
        result(&self.fib.flush(), vip)
    }

    fn remove(&mut self, vip: &str) -> Result<(), String> {
        self.fib.change(Change::Remove(net(vip)));
        result(&self.fib.flush(), vip)
    }

    /// A sync that finds everything as it should be.
    fn calm(&mut self) {
        let done = self.fib.sync().unwrap();
        assert!(done.results.is_empty() && done.mended.is_empty(), "{done:?}");
    }

    fn sync(&mut self) -> Done {
        self.fib.sync().unwrap()
    }

    /// Next hops of the route, as the kernel tells them.
    fn routed(&self, vip: &str) -> Vec<String> {
        let routes = self.host.run(|| Netlink::new().unwrap().routes(MAIN).unwrap());
        routes.get(&net(vip)).into_iter().flatten().map(IpAddr::to_string).collect()
    }

    /// The number of the VIP's group.
    fn id(&self, vip: &str) -> String {
        let six = if vip.contains(':') { "-6" } else { "-4" };
        let route = self.host.ip(&format!("{six} route show {vip}"));
        route
            .split_whitespace()
            .skip_while(|w| *w != "nhid")
            .nth(1)
            .unwrap_or_else(|| panic!("{route}"))
            .to_owned()
    }

    fn objects(&self) -> usize {
        self.host.ip("nexthop show proto 185").lines().count()
    }

    /// The gateway of each bucket.
    fn buckets(&self, vip: &str) -> Vec<String> {
        let objects = self.host.ip("nexthop show");
        let mut gateway = BTreeMap::new();
        for line in objects.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words[2] == "via" {
                gateway.insert(words[1].to_owned(), words[3].to_owned());
            }
        }
        let all = self.host.ip(&format!("nexthop bucket show id {}", self.id(vip)));
        let of = |line: &str| {
            let id = line.split_whitespace().skip_while(|w| *w != "nhid").nth(1).unwrap();
            gateway[id].clone()
        };
        all.lines().map(of).collect()
    }

    /// Counts until the VIP was counted.
    fn held(&mut self, vip: &str) -> BTreeMap<Hop, Held> {
        let now = Instant::now() + Duration::from_secs(40);
        let counted = self.fib.tick(now).1;
        let (prefix, held) = counted.expect("nothing was counted");
        assert_eq!(prefix, net(vip));
        held
    }
}

fn open(host: &Host, vips: &[&str]) -> Fib {
    let vips = vips.iter().map(|v| ((*v).to_owned(), ListenerVip::new(net(v)))).collect();
    let plan = Listener::new(Vec::new(), vips);
    host.run(move || Fib::new(&plan).unwrap())
}

fn result(done: &Done, vip: &str) -> Result<(), String> {
    assert!(done.mended.is_empty(), "{done:?}");
    match &done.results[..] {
        [(prefix, result)] if *prefix == net(vip) => result.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_resilient_group_keeps_its_number_and_the_buckets_of_those_that_stay() {
    for (vip, hops) in [(VIP, [A, B, C]), (VIP6, [A6, B6, "2001:db8:2::2"])] {
        let Some(mut r) = Router::new("a_resilient_group_keeps_its_number", &[vip]) else { return };
        let hashing = resilient(64, LONG);
        r.set(vip, group(hashing, &hops)).unwrap();
        let id = r.id(vip);
        assert_eq!(r.routed(vip).len(), 3);
        let before = r.buckets(vip);
        assert_eq!(before.len(), 64);
        // One leaves: only its buckets move.
        r.set(vip, group(hashing, &hops[..2])).unwrap();
        let after = r.buckets(vip);
        for (was, is) in before.iter().zip(&after) {
            assert!(was == hops[2] && is != hops[2] || was == is, "{before:?} {after:?}");
        }
        // It comes back: no bucket of those that stayed moves before it has been silent for long.
        r.set(vip, group(hashing, &hops)).unwrap();
        assert_eq!(r.id(vip), id);
        r.calm();
        r.remove(vip).unwrap();
        assert!(r.routed(vip).is_empty());
        r.sync();
        assert_eq!(r.objects(), 0, "what nothing uses is swept away");
    }
}

/// What the kernel told of next hop objects since `heard` was opened: which, and where it leads to; nothing: it is gone.
fn told(heard: &netlink_sys::Socket) -> Vec<(u32, Option<IpAddr>)> {
    let word = |octets: &[u8]| u32::from_ne_bytes(octets[..4].try_into().unwrap());
    let mut all = Vec::new();
    let mut datagram = Vec::with_capacity(64 * 1024);
    while heard.recv(&mut datagram, 0).is_ok() {
        let mut rest = &datagram[..];
        while rest.len() >= 24 {
            let (message, next) = rest.split_at(word(rest) as usize);
            rest = next;
            let (mut id, mut gateway) = (0, None);
            let mut attributes = &message[24..];
            while let [a, b, kind, _, value @ ..] = attributes {
                let len = usize::from(u16::from_ne_bytes([*a, *b]));
                match kind {
                    1 => id = word(value),
                    6 => gateway = <[u8; 4]>::try_from(&value[..len - 4]).ok().map(IpAddr::from),
                    _ => {}
                }
                attributes = attributes.get(len.next_multiple_of(4)..).unwrap_or_default();
            }
            // RTM_DELNEXTHOP tells the gateway, too.
            all.push((id, gateway.filter(|_| word(&message[4..]) & 0xffff == 104)));
        }
        datagram.clear();
    }
    all
}

#[test]
fn one_that_goes_gets_nothing_more_before_the_kernel_goes_through_the_buckets() {
    const VIPS: [&str; 3] = [VIP, "198.51.100.11/32", "198.51.100.12/32"];
    let Some(mut r) = Router::new("one_that_goes_gets_nothing_more", &VIPS) else { return };
    let hashing = resilient(4096, LONG);
    for vip in VIPS {
        r.set(vip, group(hashing, &[A, B, C])).unwrap();
    }
    let before = r.buckets(VIP);
    let number = r.host.ip("nexthop show proto 185");
    let number = number.lines().find(|line| line.contains(&format!("via {C} "))).unwrap();
    let number: u32 = number.split_whitespace().nth(1).unwrap().parse().unwrap();
    let heard = r.host.run(|| {
        let mut socket = netlink_sys::Socket::new(netlink_sys::protocols::NETLINK_ROUTE).unwrap();
        socket.bind(&netlink_sys::SocketAddr::new(0, 1 << 31)).unwrap();
        socket.set_non_blocking(true).unwrap();
        socket
    });
    for vip in VIPS {
        r.fib.change(Change::Set(net(vip), group(hashing, &[A, B]).into()));
    }
    let done = r.fib.flush();
    assert!(done.results.len() == 3 && done.results.iter().all(|(_, result)| result.is_ok()), "{done:?}");
    let told = told(&heard);
    // First it leads to a member that stays in all of its groups, then it is gone; nothing else is touched but its groups.
    assert_eq!(told[..2], [(number, Some(B.parse().unwrap())), (number, None)], "{told:?}");
    assert!(told[2..].iter().all(|(_, gateway)| gateway.is_none()), "{told:?}");
    for (was, is) in before.iter().zip(&r.buckets(VIP)) {
        assert!(was == C && is != C || was == is, "{before:?}");
    }
    r.calm();
    // It comes back as what it was.
    for vip in VIPS {
        r.set(vip, group(hashing, &[A, B, C])).unwrap();
        assert_eq!(r.routed(vip), [A, B, C]);
    }
    r.calm();
}

#[test]
fn idle_buckets_of_one_that_drains_move_and_the_count_says_so() {
    let Some(mut r) = Router::new("idle_buckets_of_one_that_drains", &[VIP]) else { return };
    let hashing = resilient(1024, Duration::from_millis(20));
    r.set(VIP, group(hashing, &[A, B, C])).unwrap();
    let held = r.held(VIP);
    assert_eq!(held.values().map(|h| h.buckets).sum::<u32>(), 1024);
    assert!(held.values().all(|h| h.buckets > 300), "{held:?}");
    r.set(VIP, shares(hashing, &[(A, 1, false), (B, 1, true), (C, 1, false)])).unwrap();
    let empty = until(SOON, || {
        let held = r.held(VIP);
        (held[&hop(B)].buckets == 0).then_some(held)
    });
    let held = empty.expect("it kept buckets");
    assert_eq!(held.len(), 3, "it is told of though it holds none");
    assert!(held[&hop(A)].buckets > 500 && held[&hop(C)].buckets > 500, "{held:?}");
    // It is still in the group, with next to no weight.
    assert!(r.routed(VIP).contains(&B.to_owned()));
    r.calm();
    r.set(VIP, group(hashing, &[A, B, C])).unwrap();
    assert!(until(SOON, || (r.held(VIP)[&hop(B)].buckets > 300).then_some(())).is_some());
}

#[test]
fn timers_change_in_place_and_other_buckets_are_another_group() {
    let Some(mut r) = Router::new("timers_change_in_place", &[VIP]) else { return };
    r.set(VIP, group(resilient(64, LONG), &[A, B])).unwrap();
    let id = r.id(VIP);
    r.set(VIP, group(resilient(64, LONG * 2), &[A, B])).unwrap();
    assert_eq!(r.id(VIP), id);
    assert!(r.host.ip(&format!("nexthop show id {id}")).contains("idle_timer 240"));
    r.set(VIP, group(resilient(128, LONG), &[A, B])).unwrap();
    assert_ne!(r.id(VIP), id);
    assert_eq!(r.buckets(VIP).len(), 128);
    r.sync();
    assert_eq!(r.objects(), 3, "the old group is gone");
    for hashing in [Hashing::Consistent { slots: 8 }, Hashing::Plain, resilient(64, LONG)] {
        r.set(VIP, group(hashing, &[A, B])).unwrap();
        assert_eq!(r.routed(VIP), [A, B]);
        r.sync();
        r.calm();
    }
}

#[test]
fn slots_that_do_not_move_stay_where_they_are() {
    let Some(mut r) = Router::new("slots_that_do_not_move", &[VIP, VIP6]) else { return };
    let hashing = Hashing::Consistent { slots: 120 };
    let gateways = |r: &Router| -> Vec<String> {
        let objects = r.host.ip("nexthop show");
        let line =
            |id: &str| objects.lines().find(|l| l.starts_with(&format!("id {id} "))).unwrap().to_owned();
        let group = line(&r.id(VIP));
        let members = group.split_whitespace().skip_while(|w| *w != "group").nth(1).unwrap().to_owned();
        let via = |id: &str| line(id).split_whitespace().nth(3).unwrap().to_owned();
        members.split('/').map(via).collect()
    };
    let mut wanted = group(hashing, &[A, B, C]);
    r.set(VIP, wanted.clone()).unwrap();
    let before = gateways(&r);
    assert_eq!(before, wanted.slots.iter().map(|h| h.address.to_string()).collect::<Vec<_>>());
    let id = r.id(VIP);
    // C goes; its slots are shared by the others.
    wanted.hops.remove(&hop(C));
    for (i, slot) in wanted.slots.iter_mut().filter(|s| **s == hop(C)).enumerate() {
        *slot = [hop(A), hop(B)][i % 2];
    }
    r.set(VIP, wanted).unwrap();
    let after = gateways(&r);
    assert_eq!(r.id(VIP), id);
    for (was, is) in before.iter().zip(&after) {
        assert!(was == C && is != C || was == is);
    }
    // A second VIP shares the objects of the slots.
    let objects = r.objects();
    r.set("198.51.100.11/32", group(hashing, &[A, B])).unwrap();
    assert_eq!(r.objects(), objects + 1);
    r.set(VIP6, group(Hashing::Consistent { slots: 512 }, &[A6, B6])).unwrap();
    assert_eq!(r.routed(VIP6), [A6, B6]);
    r.calm();
}

#[test]
fn a_restart_finds_everything_and_touches_nothing() {
    for hashing in [resilient(256, LONG), Hashing::Consistent { slots: 120 }, Hashing::Plain] {
        let Some(mut r) = Router::new("a_restart_finds_everything", &[VIP, VIP6]) else { return };
        r.set(VIP, shares(hashing, &[(A, 1, false), (B, 1, false), (C, 3, false)])).unwrap();
        r.set(VIP6, group(hashing, &[A6, B6])).unwrap();
        let show =
            |r: &Router| r.host.ip("nexthop show") + &r.host.ip("route show") + &r.host.ip("-6 route show");
        let before = show(&r);
        r.restart();
        r.calm();
        // One after the other is back, and the rest keeps its part.
        for back in [vec![(A, 1, false)], vec![(A, 1, false), (C, 3, false)]] {
            let mut wanted = shares(hashing, &back);
            if let Hashing::Consistent { slots } = hashing {
                let all = shares(hashing, &[(A, 1, false), (B, 1, false), (C, 3, false)]);
                wanted.slots = all.slots;
                for slot in &mut wanted.slots {
                    if !wanted.hops.contains_key(slot) {
                        *slot = hop(A);
                    }
                }
                assert_eq!(wanted.slots.len(), usize::from(slots));
            }
            r.fib.change(Change::Set(net(VIP), wanted.into()));
            let done = r.fib.flush();
            assert!(done.results.is_empty(), "{done:?}");
            assert_eq!(show(&r), before);
        }
        r.calm();
        // One that is decided goes at once.
        r.set(VIP, shares(hashing, &[(A, 1, false)])).unwrap();
        assert_eq!(r.routed(VIP), [A, B]);
        // The time is up for the others.
        let done = r.fib.tick(Instant::now() + Duration::from_secs(61)).0;
        assert_eq!(done.results.len(), 2, "{done:?}");
        assert_eq!(done.lapsed.len(), 2, "{done:?}");
        assert_eq!(r.routed(VIP), [A]);
        assert!(r.routed(VIP6).is_empty());
    }
}

#[test]
fn what_is_left_of_members_that_are_back_without_it_or_leave_again_goes() {
    for hashing in [resilient(64, LONG), Hashing::Consistent { slots: 20 }, Hashing::Plain] {
        let Some(mut r) = Router::new("what_is_left_of_members", &[VIP]) else { return };
        r.set(VIP, group(hashing, &[A, B, C])).unwrap();
        r.restart();
        let now = Instant::now();
        for back in [A, B, C] {
            r.fib.member(hop(back), true, now);
        }
        assert!(r.fib.flush().results.is_empty());
        assert_eq!(r.routed(VIP), [A, B, C], "they have a moment");
        r.fib.member(hop(C), false, now);
        let done = r.fib.flush();
        assert_eq!(done.lapsed.keys().collect::<Vec<_>>(), [&net(VIP)]);
        assert_eq!(r.routed(VIP), [A, B]);
        r.fib.change(Change::Set(net(VIP), group(hashing, &[A]).into()));
        assert!(r.fib.flush().results.iter().all(|(_, result)| result.is_ok()));
        assert_eq!(r.routed(VIP), [A, B]);
        let done = r.fib.tick(now + Duration::from_secs(5)).0;
        assert_eq!(done.lapsed[&net(VIP)].len(), 1, "{done:?}");
        assert_eq!(r.routed(VIP), [A]);
        r.calm();
        // All of them leave again, before they announced anything.
        r.set(VIP, group(hashing, &[A, B])).unwrap();
        r.restart();
        for (member, up) in [(A, true), (B, true), (A, false), (B, false)] {
            r.fib.member(hop(member), up, now);
        }
        let done = r.fib.flush();
        assert_eq!(done.lapsed[&net(VIP)].len(), 2, "{done:?}");
        assert!(r.routed(VIP).is_empty());
        r.calm();
    }
}

#[test]
fn a_link_that_is_down_while_members_are_not_back_is_not_said_to_be_mended() {
    let Some(mut r) = Router::new("a_link_that_is_down_while", &[VIP]) else { return };
    for left in [&[D][..], &[A, D]] {
        r.set(VIP, group(resilient(64, LONG), left)).unwrap();
        r.restart();
        r.host.ip("link set two down");
        let done = r.sync();
        assert!(done.mended.is_empty(), "{done:?}");
        assert!(matches!(&done.results[..], [(_, Err(words))] if words.contains(D)), "{done:?}");
        // When its time is up, it is missed no longer.
        let done = r.fib.tick(Instant::now() + Duration::from_secs(61)).0;
        assert!(matches!(&done.results[..], [(_, Ok(()))]), "{done:?}");
        r.host.ip("link set two up");
        let up = || r.host.ip("link show two").contains("LOWER_UP");
        assert!(until(SOON, || up().then_some(())).is_some());
        r.sync();
    }
}

#[test]
fn a_group_that_an_earlier_run_made_otherwise_is_replaced_when_its_members_are_back() {
    let Some(mut r) = Router::new("a_group_made_otherwise", &[VIP]) else { return };
    r.set(VIP, group(resilient(64, LONG), &[A, B])).unwrap();
    r.restart();
    r.calm();
    r.set(VIP, group(resilient(128, LONG), &[A])).unwrap();
    assert_eq!(r.buckets(VIP).len(), 128);
    assert_eq!(r.routed(VIP), [A, B]);
}

#[test]
fn a_group_of_which_no_buckets_are_named_keeps_those_that_an_earlier_run_gave_it() {
    let Some(mut r) = Router::new("a_group_of_which_no_buckets_are_named", &[VIP, VIP6]) else { return };
    let unnamed = Hashing::Resilient { buckets: None, idle_timer: LONG, unbalanced_timer: Duration::ZERO };
    r.set(VIP, group(resilient(16384, LONG), &[A, B])).unwrap();
    let (id, before) = (r.id(VIP), r.buckets(VIP));
    r.restart();
    for hops in [&[A][..], &[A, B]] {
        r.fib.change(Change::Set(net(VIP), group(unnamed, hops).into()));
        let done = r.fib.flush();
        assert!(done.results.is_empty(), "{done:?}");
        r.calm();
        assert_eq!((r.id(VIP), r.buckets(VIP)), (id.clone(), before.clone()), "{hops:?}");
    }
    // One that nobody made yet is as large as is the rule, and so is the first when a hand has taken it away.
    r.set(VIP6, group(unnamed, &[A6, B6])).unwrap();
    assert_eq!(r.buckets(VIP6).len(), usize::from(Hashing::BUCKETS));
    r.remove(VIP).unwrap();
    r.sync();
    r.restart();
    r.set(VIP, group(unnamed, &[A, B])).unwrap();
    assert_eq!(r.buckets(VIP).len(), usize::from(Hashing::BUCKETS));
}

#[test]
fn an_object_of_somebody_elses_with_our_number_is_left_alone() {
    let Some(mut r) = Router::new("an_object_of_somebody_elses", &[VIP]) else { return };
    r.set(VIP, group(resilient(64, LONG), &[A])).unwrap();
    let id = r.id(VIP);
    let hops = r.host.ip("nexthop show proto 185");
    let single =
        hops.lines().find(|l| l.contains("via")).unwrap().split_whitespace().nth(1).unwrap().to_owned();
    r.host.ip("nexthop flush");
    for id in [&id, &single] {
        r.host.ip(&format!("nexthop add id {id} blackhole"));
    }
    // While it runs, and from the start.
    r.sync();
    assert_eq!(r.routed(VIP), [A]);
    assert_ne!(r.id(VIP), id);
    r.restart();
    r.calm();
    r.set(VIP, group(resilient(64, LONG), &[A, B])).unwrap();
    r.fib.remove_all().unwrap();
    let left = r.host.ip("nexthop show");
    assert_eq!(left.lines().count(), 2, "{left}");
    // It appears between two readings.
    r.host.ip("nexthop flush");
    r.restart();
    for id in [&id, &single] {
        r.host.ip(&format!("nexthop add id {id} blackhole"));
    }
    r.set(VIP, group(resilient(64, LONG), &[A])).unwrap();
    assert_eq!(r.routed(VIP), [A]);
    assert_ne!(r.id(VIP), id);
}

#[test]
fn without_resilient_groups_traffic_flows_all_the_same_and_it_is_said() {
    // What a kernel says that has no such groups, this one says of a group without buckets.
    let refused = || group(resilient(0, LONG), &[A, B]);
    let Some(mut r) = Router::new("without_resilient_groups", &[VIP, VIP6]) else { return };
    assert_eq!(r.fib.lacks(), None);
    r.set(VIP, refused()).unwrap();
    assert_eq!(r.routed(VIP), [A, B]);
    assert!(r.fib.lacks().is_some_and(|why| why.contains("Linux 5.13")));
    r.calm();
    // One that drains keeps its legs, and with them its flows.
    r.fib.change(Change::Set(net(VIP), shares(resilient(0, LONG), &[(A, 1, true), (B, 1, false)]).into()));
    assert!(r.fib.flush().results.is_empty());
    assert_eq!(r.routed(VIP), [A, B]);
    // Consistent groups are of the older kind.
    r.set(VIP6, group(Hashing::Consistent { slots: 16 }, &[A6, B6])).unwrap();
    assert!(r.host.ip("-6 route show").contains("nhid"), "{}", r.host.ip("-6 route show"));
    r.calm();
    // A kernel that has made one can: that it refuses another is no reason to move everybody.
    let Some(mut r) = Router::new("without_resilient_groups", &[VIP, VIP6]) else { return };
    r.set(VIP, group(resilient(64, LONG), &[A, B])).unwrap();
    let failed = r.set(VIP6, group(resilient(0, LONG), &[A6, B6]));
    assert!(failed.is_err(), "{failed:?}");
    assert_eq!(r.fib.lacks(), None);
}

#[test]
fn what_hands_break_is_mended_and_said() {
    let Some(mut r) = Router::new("what_hands_break", &[VIP, VIP6]) else { return };
    r.set(VIP, group(resilient(64, LONG), &[A, B])).unwrap();
    r.set(VIP6, group(Hashing::Consistent { slots: 16 }, &[A6, B6])).unwrap();
    let show =
        |r: &Router| r.host.ip("nexthop show") + &r.host.ip("route show") + &r.host.ip("-6 route show");
    let before = show(&r);
    let id = r.id(VIP);
    let single = r
        .host
        .ip("nexthop show")
        .lines()
        .find(|l| l.contains(B))
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .to_owned();
    let changed = "its next hops had been changed";
    for (hand, words, moves) in [
        (format!("route del {VIP}"), "its route was gone", false),
        (format!("-6 route del {VIP6}"), "its route was gone", false),
        ("nexthop flush proto 185".to_owned(), "its route was gone", true),
        (format!("nexthop del id {single}"), changed, true),
        (format!("nexthop replace id {single} via {C} dev one proto 185"), changed, true),
        (format!("route replace {VIP} via {C} proto 185 metric 20"), "its route had been changed", false),
        (format!("nexthop replace id {id} group {single} type resilient"), changed, true),
    ] {
        r.host.ip(&hand);
        let done = r.sync();
        assert!(
            !done.mended.is_empty() && done.mended.iter().all(|(_, w, _)| *w == words),
            "{hand}: {done:?}"
        );
        // Only a resilient group has flows to lose.
        let moved: Vec<_> = done.mended.iter().filter(|(.., moved)| *moved).map(|(p, ..)| *p).collect();
        assert_eq!(moved, if moves { vec![net(VIP)] } else { Vec::new() }, "{hand}: {done:?}");
        assert!(!done.results.is_empty() && done.results.iter().all(|(_, r)| r.is_ok()), "{hand}: {done:?}");
        assert_eq!(show(&r), before, "{hand}");
        r.calm();
    }
    r.set(VIP, group(Hashing::Plain, &[A, B])).unwrap();
    r.host.ip("route flush proto 185");
    assert_eq!(r.sync().mended.len(), 1);
    assert_eq!(r.routed(VIP), [A, B]);
    // A hand was quicker than the reading.
    r.set(VIP, group(resilient(64, LONG), &[A, B])).unwrap();
    r.host.ip("nexthop flush proto 185");
    let failed = r.set(VIP, group(resilient(64, LONG), &[A, B, C]));
    r.sync();
    assert_eq!(r.routed(VIP), [A, B, C], "{failed:?}");
    r.calm();
}

#[test]
fn an_interface_that_goes_down_and_comes_back() {
    for hashing in [resilient(64, LONG), Hashing::Consistent { slots: 20 }, Hashing::Plain] {
        let Some(mut r) = Router::new("an_interface_that_goes_down", &[VIP]) else { return };
        r.set(VIP, group(hashing, &[A, D])).unwrap();
        r.host.ip("link set two down");
        let done = r.sync();
        assert!(matches!(&done.results[..], [(_, Err(words))] if words.contains(D)), "{done:?}");
        assert!(done.mended.is_empty(), "nobody mends a link that is down: {done:?}");
        assert_eq!(r.routed(VIP), [A]);
        // It is wanted all the same, and said until it is there.
        let done = r.sync();
        assert!(matches!(&done.results[..], [(_, Err(words))] if words.contains(D)), "{done:?}");
        r.host.ip("link set two up");
        let back = until(SOON, || matches!(&r.sync().results[..], [(_, Ok(()))]).then_some(()));
        assert!(back.is_some(), "{:?}", r.sync());
        assert_eq!(r.routed(VIP), [A, D]);
        r.calm();
        // The only one.
        r.set(VIP, group(hashing, &[D])).unwrap();
        r.host.ip("link set two down");
        assert!(matches!(&r.sync().results[..], [(_, Err(_))]));
        assert!(r.routed(VIP).is_empty());
        r.host.ip("link set two up");
        assert!(until(SOON, || matches!(&r.sync().results[..], [(_, Ok(()))]).then_some(())).is_some());
        assert_eq!(r.routed(VIP), [D]);
    }
}

#[test]
fn an_unplugged_cable_and_a_moved_network() {
    let Some(mut r) = Router::new("an_unplugged_cable", &[VIP]) else { return };
    r.set(VIP, group(resilient(64, LONG), &[A, D])).unwrap();
    r._other.ip("link set two down");
    assert!(until(SOON, || (r.sync().results.iter().any(|(_, x)| x.is_err())).then_some(())).is_some());
    assert_eq!(r.routed(VIP), [A]);
    r._other.ip("link set two up");
    assert!(until(SOON, || matches!(&r.sync().results[..], [(_, Ok(()))]).then_some(())).is_some());
    // The second network moves to the first cable: the object follows, under its number.
    r.host.ip("addr del 192.0.2.129/25 dev two");
    r.host.ip("addr add 192.0.2.129/25 dev one");
    r.sync();
    assert_eq!(r.routed(VIP), [A, D]);
    assert!(r.host.ip("nexthop show").contains(&format!("via {D} dev one")));
    r.calm();
}

#[test]
fn a_next_hop_that_cannot_be_is_left_out_and_named() {
    let Some(mut r) = Router::new("a_next_hop_that_cannot_be", &[VIP, VIP6]) else { return };
    for hashing in [resilient(64, LONG), Hashing::Consistent { slots: 20 }, Hashing::Plain] {
        for (vip, good, bad) in
            [(VIP, A, "203.0.113.1"), (VIP6, A6, "2001:db8:3::1"), (VIP6, A6, A), (VIP6, A6, "fe80::1")]
        {
            let words = r.set(vip, group(hashing, &[good, bad])).unwrap_err();
            assert!(words.contains(vip) && words.contains(bad), "{words}");
            assert_eq!(r.routed(vip), [good]);
            r.set(vip, group(hashing, &[good])).unwrap();
        }
    }
}

#[test]
fn an_ipv4_vip_goes_over_ipv6_next_hops_and_link_local_ones() {
    let Some(mut r) = Router::new("an_ipv4_vip_over_ipv6", &[VIP, VIP6]) else { return };
    let index: u32 = r
        .host
        .run(|| std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap())
        .lines()
        .find(|l| l.ends_with("one"))
        .map(|l| u32::from_str_radix(l.split_whitespace().nth(1).unwrap(), 16).unwrap())
        .unwrap();
    let local = Hop { scope: index, ..hop("fe80::2") };
    for hashing in [resilient(64, LONG), Hashing::Consistent { slots: 20 }, Hashing::Plain] {
        for (vip, other) in [(VIP, A), (VIP, B6), (VIP6, B6)] {
            let mut wanted = group(hashing, &[other]);
            wanted.hops.insert(local, Share { weight: 1, draining: false });
            for slot in wanted.slots.iter_mut().step_by(2) {
                *slot = local;
            }
            r.set(vip, wanted).unwrap();
            assert_eq!(r.routed(vip).len(), 2, "{hashing:?} {vip} {other}");
            r.calm();
        }
        r.restart();
        r.calm();
        // Nobody comes back.
        r.fib.tick(Instant::now() + Duration::from_secs(61));
    }
}

#[test]
fn shares_are_as_wide_as_the_kernel_takes_them() {
    let Some(mut r) = Router::new("shares_are_as_wide", &[VIP]) else { return };
    r.set(VIP, shares(resilient(1000, LONG), &[(A, 1000, false), (B, 3000, false)])).unwrap();
    let held = r.held(VIP);
    assert_eq!([held[&hop(A)].buckets, held[&hop(B)].buckets], [250, 750]);
    r.calm();
    r.set(VIP, shares(Hashing::Plain, &[(A, 1000, false), (B, 3000, false)])).unwrap();
    assert!(r.host.ip("route show").contains("weight 255"));
    r.calm();
}

#[test]
fn routes_and_objects_of_others_are_never_touched() {
    let Some(mut r) = Router::new("routes_and_objects_of_others", &[VIP]) else { return };
    r.host.ip(&format!("nexthop add id 7 via {B} dev one"));
    r.host.ip("nexthop add id 8 group 7");
    r.host.ip(&format!("route add {VIP} nhid 8"));
    r.set(VIP, group(resilient(64, LONG), &[A])).unwrap();
    r.remove(VIP).unwrap();
    r.sync();
    r.fib.remove_all().unwrap();
    assert_eq!(r.host.ip("nexthop show").lines().count(), 2);
    assert_eq!(r.id(VIP), "8");
}

#[test]
fn what_an_earlier_run_left_of_a_vip_that_is_not_in_the_plan_goes() {
    let Some(mut r) = Router::new("what_an_earlier_run_left", &[VIP]) else { return };
    r.set(VIP, group(resilient(64, LONG), &[A])).unwrap();
    r.vips = vec![VIP6];
    r.restart();
    r.sync();
    assert!(r.routed(VIP).is_empty());
    assert_eq!(r.objects(), 0);
}

#[test]
fn a_change_without_rights_is_refused_in_words() {
    let Some(mut r) = Router::new("a_change_without_rights", &[VIP]) else { return };
    let words = {
        let mut fib = r.fib;
        let (fib, done) = r.host.run(move || {
            without_rights(|| {
                fib.change(Change::Set(net(VIP), group(resilient(64, LONG), &[A]).into()));
                let done = fib.flush();
                (fib, done)
            })
        });
        r.fib = fib;
        result(&done, VIP).unwrap_err()
    };
    assert!(words.contains("CAP_NET_ADMIN") && words.contains(VIP), "{words}");
    let done = r.sync();
    assert!(matches!(&done.results[..], [(_, Ok(()))]), "{done:?}");
    assert_eq!(r.routed(VIP), [A]);
}

/// Does `f` without the right to change anything, as this thread alone.
#[expect(unsafe_code, reason = "the safe ways change every thread")]
fn without_rights<T>(f: impl FnOnce() -> T) -> T {
    let become_user = |id: libc::uid_t| {
        // SAFETY: by its number the call changes the calling thread alone; it takes numbers, the largest of which means to keep.
        let done = unsafe { libc::syscall(libc::SYS_setresuid, libc::uid_t::MAX, id, libc::uid_t::MAX) };
        assert_eq!(done, 0);
    };
    become_user(65534);
    let result = f();
    become_user(0);
    result
}

#[test]
fn ten_thousand_vips_are_made_changed_and_removed() {
    let Some(mut r) = Router::new("ten_thousand_vips", &[]) else { return };
    let all: Vec<Prefix> =
        (0..10_000_u32).map(|i| Prefix::host(IpAddr::from((0x0a00_0000 + i).to_be_bytes()))).collect();
    // In a group of the kernel's each change waits until no packet is on its way through the old one.
    for (count, hashing) in
        [(10_000, Hashing::Plain), (1000, resilient(16, LONG)), (1000, Hashing::Consistent { slots: 16 })]
    {
        let vips = &all[..count];
        for (what, hops) in [("made", &[A][..]), ("grown", &[A, B]), ("shrunk", &[B]), ("removed", &[])] {
            let begun = Instant::now();
            for vip in vips {
                r.fib.change(match hops {
                    [] => Change::Remove(*vip),
                    hops => Change::Set(*vip, group(hashing, hops).into()),
                });
            }
            let prepared = begun.elapsed();
            let done = r.fib.flush();
            let took = begun.elapsed();
            assert!(done.results.len() == count && done.results.iter().all(|(_, r)| r.is_ok()));
            eprintln!("{count} VIPs, {hashing:?}, {what}: {took:?} ({prepared:?} of it to prepare)");
            let begun = Instant::now();
            let done = r.sync();
            eprintln!("    a sync: {:?}", begun.elapsed());
            assert!(done.results.is_empty() && done.mended.is_empty());
        }
        assert_eq!(r.objects(), 0);
    }
}
