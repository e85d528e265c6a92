//! What keeps new connections from members that drain, in the kernel: rules, a map and tables; each test on a host of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod net_support;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use net_support::{Host, until};
use standfast_core::listen::Hop;
use standfast_core::plan::{Listener, ListenerVip};
use standfast_core::prefix::Prefix;
use standfast_io::steer::{Outcome, Spread, Steer, TABLE};

const SOON: Duration = Duration::from_secs(20);
const VIP: &str = "198.51.100.10/32";
const VIP6: &str = "2001:db8:100::10/128";
const A: &str = "192.0.2.2";
const B: &str = "192.0.2.3";
const C: &str = "192.0.2.4";
const A6: &str = "2001:db8:1::2";
const B6: &str = "2001:db8:1::3";

/// A host on a cable, .1 of 192.0.2.0/24 and ::1 of 2001:db8:1::/64, that is a listener of these VIPs.
struct Router {
    host: Host,
    _other: Host,
    plan: Listener,
    steer: Option<Steer>,
}

impl Router {
    fn new(test: &str, vips: &[&str]) -> Option<Self> {
        if Command::new("nft").arg("-V").output().is_err() {
            eprintln!("SKIP {test}: the package nftables is missing");
            return None;
        }
        let (host, other) = (Host::new(test)?, Host::new(test)?);
        host.cable("one", &other, "one");
        host.ip("addr add 192.0.2.1/24 dev one");
        host.ip("addr add 2001:db8:1::1/64 dev one nodad");
        let vips = vips.iter().map(|v| ((*v).to_owned(), ListenerVip::new(v.parse().unwrap()))).collect();
        let mut router = Self { host, _other: other, plan: Listener::new(Vec::new(), vips), steer: None };
        router.start();
        Some(router)
    }

    /// The daemon is started, or started again.
    fn start(&mut self) {
        self.steer = None;
        let plan = self.plan.clone();
        self.steer = Some(self.host.run(move || Steer::new(&plan).unwrap()));
    }

    fn steer(&mut self) -> &mut Steer {
        self.steer.as_mut().unwrap()
    }

    /// Has a VIP spread over these, each with its weight; 0 drains.
    fn spread(&mut self, vip: &str, hops: &[(&str, u16)]) -> Outcome {
        let hop = |&(text, weight): &(&str, u16)| (hop(text), (weight > 0).then_some(weight));
        let spread = Spread { hops: hops.iter().map(hop).collect(), idle: Duration::from_secs(60) };
        self.steer().update(vip.parse().unwrap(), spread);
        self.steer().flush();
        self.outcome()
    }

    fn check(&mut self) -> Outcome {
        self.steer().check();
        self.outcome()
    }

    /// The worst of what the thread says until it has nothing left to say.
    fn outcome(&mut self) -> Outcome {
        let mut all = Ok(false);
        let done = until(SOON, || {
            while let Some(outcome) = self.steer().answer() {
                all = match (std::mem::replace(&mut all, Ok(false)), outcome) {
                    (Err(why), _) | (_, Err(why)) => Err(why),
                    (Ok(a), Ok(b)) => Ok(a | b),
                };
            }
            (!self.steer().is_waiting()).then_some(())
        });
        done.expect("the thread does not answer");
        all
    }

    fn sh(&self, words: &str) -> String {
        let all: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        let out = self.host.run(move || Command::new(&all[0]).args(&all[1..]).output().unwrap());
        assert!(out.status.success(), "{words}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// The rules, as nft shows them.
    fn rules(&self) -> String {
        // A set of hashes is told in the order of its own seed.
        let sorted = |part: &str| {
            let (list, rest) = part.split_once(" }").unwrap_or((part, ""));
            let mut list: Vec<&str> = list.split(", ").collect();
            list.sort_unstable();
            format!("{} }}{rest}", list.join(", "))
        };
        let text = self.sh(&format!("nft -s -t list table inet {TABLE}"));
        let line = |line: &str| match line.contains(" }") {
            true => {
                let mut parts = line.split("{ ");
                let first = parts.next().unwrap_or_default().to_owned();
                parts.fold(first, |text, part| text + "{ " + &sorted(part))
            }
            false => line.to_owned(),
        };
        text.lines().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Which member each mark leads to, of a VIP.
    fn ways(&self, vip: &str) -> BTreeMap<String, String> {
        let six = if vip.contains(':') { "-6" } else { "-4" };
        let address = vip.split('/').next().unwrap();
        let mut ways = BTreeMap::new();
        for rule in self.host.ip(&format!("{six} rule show prio 185")).lines() {
            let word = |name: &str| rule.split_whitespace().skip_while(|w| *w != name).nth(1).unwrap();
            let (mark, mask) = word("fwmark").split_once('/').unwrap();
            assert_eq!(mask, "0xff7fffff", "{rule}");
            let routes = self.host.ip(&format!("{six} route show table {}", word("lookup")));
            for route in routes.lines().filter(|r| r.starts_with(address)) {
                let via = route.split_whitespace().skip_while(|w| *w != "via").nth(1).unwrap();
                ways.insert(mark.to_owned(), via.to_owned());
            }
        }
        ways
    }

    fn is_clean(&self) -> bool {
        let rules = self.host.ip("-4 rule show prio 185") + &self.host.ip("-6 rule show prio 185");
        rules.is_empty() && !self.sh("nft list tables").contains(TABLE)
    }

    /// Puts a connection into the map.
    fn remember(&self, map: &str, from: &str, to: &str, mark: &str) {
        let key = format!("{from} . 4000 . {to} . 443");
        self.sh(&format!("nft add element inet {TABLE} {map} {{ {key} timeout 3h : {mark} }}"));
    }

    fn remembered(&self, map: &str) -> usize {
        self.sh(&format!("nft list map inet {TABLE} {map}")).matches("expires").count()
    }

    /// Waits for a count of the VIP as it is spread.
    fn counted(&mut self, vip: &str) -> BTreeMap<Hop, u32> {
        let prefix: Prefix = vip.parse().unwrap();
        let counts = until(SOON, || {
            while self.steer().answer().is_some() {}
            self.steer().counted(&prefix)
        });
        counts.expect("it is not counted")
    }
}

fn hop(text: &str) -> Hop {
    text.parse::<IpAddr>().unwrap().into()
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[test]
fn while_somebody_drains_there_are_rules_and_ways_and_afterwards_nothing() {
    let Some(mut r) = Router::new("while_somebody_drains", &[VIP, VIP6]) else { return };
    assert_eq!(r.spread(VIP, &[(A, 1), (B, 1)]), Ok(false));
    assert!(r.is_clean(), "nobody drains");
    assert_eq!(r.spread(VIP, &[(A, 0), (B, 1), (C, 3)]), Ok(false));
    assert_eq!(r.ways(VIP), map(&[("0x5f000001", A), ("0x5f000002", B), ("0x5f000003", C)]));
    assert!(r.rules().contains("mod 4 seed 0x5f map { 0 : 0x5f000002, 1-3 : 0x5f000003 }"), "{}", r.rules());
    // Another VIP drains, too, and shares the members' numbers.
    assert_eq!(r.spread(VIP6, &[(A6, 1), (B6, 0)]), Ok(false));
    assert_eq!(r.ways(VIP6), map(&[("0x5f000004", A6), ("0x5f000005", B6)]));
    assert!(r.rules().contains("ip6 daddr 2001:db8:100::10 meta mark set 0x5f000004"), "{}", r.rules());
    // A connection was moved, and outlives the drain.
    r.remember("moved4", "203.0.113.7", "198.51.100.10", "0x5f000002");
    assert_eq!(r.spread(VIP, &[(B, 1), (C, 3)]), Ok(false));
    assert_eq!(r.spread(VIP6, &[(A6, 1)]), Ok(false));
    assert_eq!(r.counted(VIP), [(hop(B), 1)].into());
    assert_eq!(r.ways(VIP), map(&[("0x5f000002", B), ("0x5f000003", C)]));
    assert!(!r.rules().contains("jhash") && r.rules().contains("goto moved4"), "{}", r.rules());
    // Its member leaves: what was given to it goes by the group again.
    assert_eq!(r.spread(VIP, &[(C, 3)]), Ok(false));
    assert_eq!(r.ways(VIP), map(&[("0x5f000003", C)]));
    assert_eq!(r.remembered("moved4"), 1);
    assert_eq!(r.spread(VIP, &[(A, 1), (B, 1), (C, 3)]), Ok(false));
    assert_eq!(r.ways(VIP)["0x5f000002"], B, "it has its number again");
    // With the last connection everything goes, at the next look at it.
    r.sh(&format!("nft flush map inet {TABLE} moved4"));
    assert_eq!(r.spread(VIP, &[(B, 1), (C, 3)]), Ok(false));
    assert!(until(SOON, || r.is_clean().then_some(())).is_some(), "{}", r.rules());
    assert_eq!(r.spread(VIP, &[(B, 1)]), Ok(false));
    assert!(r.is_clean());
}

#[test]
fn a_restart_keeps_the_connections_and_the_numbers() {
    let Some(mut r) = Router::new("a_restart_keeps_the_connections", &[VIP, VIP6]) else { return };
    let spread = [(A, 1), (B, 0), (C, 1)];
    assert_eq!(r.spread(VIP, &[(C, 1), (B, 0)]), Ok(false));
    assert_eq!(r.spread(VIP, &spread), Ok(false));
    let (ways, rules) = (r.ways(VIP), r.rules());
    assert_eq!(ways["0x5f000003"], A);
    r.remember("moved4", "203.0.113.7", "198.51.100.10", "0x5f000003");
    r.start();
    assert_eq!(r.outcome(), Ok(false));
    assert_eq!((r.ways(VIP), r.rules()), (ways.clone(), rules.clone()), "until it is told");
    assert_eq!(r.steer().vips().copied().collect::<Vec<_>>(), [VIP.parse().unwrap()]);
    assert_eq!(r.spread(VIP, &spread), Ok(false));
    assert_eq!((r.ways(VIP), r.rules()), (ways, rules));
    assert_eq!(r.counted(VIP), [(hop(A), 1)].into());
    // With another configuration nothing of it stays.
    r.plan.drain_mark = None;
    r.start();
    assert!(until(SOON, || r.is_clean().then_some(())).is_some(), "{}", r.rules());
    assert_eq!(r.spread(VIP, &spread), Ok(false));
    assert!(r.is_clean(), "it is off");
    r.plan.drain_mark = Some(0x6000_0000);
    r.start();
    assert_eq!(r.spread(VIP, &spread), Ok(false));
    assert_eq!(r.ways(VIP), map(&[("0x60000001", A), ("0x60000002", B), ("0x60000003", C)]));
    r.steer.take().unwrap().remove().unwrap();
    assert!(r.is_clean());
}

#[test]
fn what_somebody_else_changes_is_mended_and_the_connections_stay() {
    let Some(mut r) = Router::new("what_somebody_else_changes", &[VIP]) else { return };
    assert_eq!(r.spread(VIP, &[(A, 1), (B, 0), (C, 1)]), Ok(false));
    r.remember("moved4", "203.0.113.7", "198.51.100.10", "0x5f000001");
    let (ways, rules) = (r.ways(VIP), r.rules());
    assert_eq!(r.check(), Ok(false));
    for change in [
        format!("nft flush chain inet {TABLE} opening"),
        format!("nft add rule inet {TABLE} prerouting drop"),
        "ip -4 rule del prio 185 fwmark 0x5f000001/0xff7fffff".to_owned(),
        "ip -4 rule add prio 185 fwmark 0x5f000099/0xff7fffff lookup 1593835673 protocol 185".to_owned(),
        "ip -4 route del 198.51.100.10 table 1593835523".to_owned(),
        "ip -4 route add 198.51.100.99 via 192.0.2.9 metric 20 table 1593835523 proto 185".to_owned(),
    ] {
        r.sh(&change);
        assert_eq!(r.check(), Ok(true), "{change}");
        assert_eq!((r.ways(VIP), r.rules()), (ways.clone(), rules.clone()), "{change}");
        assert_eq!(r.check(), Ok(false), "{change}");
    }
    assert!(!r.host.ip("-4 rule show prio 185").contains("0x5f000099"));
    assert_eq!(r.remembered("moved4"), 1);
    // Rules of others in the same place are left alone, and so are those of others with our number elsewhere.
    r.host.ip("-4 rule add prio 185 fwmark 7 lookup 77");
    r.host.ip("-4 rule add prio 186 fwmark 8 lookup 77 protocol 185");
    assert_eq!(r.check(), Ok(false));
    // A table that is another altogether is made anew.
    r.sh(&format!("nft delete table inet {TABLE}"));
    r.sh(&format!("nft add table inet {TABLE}"));
    r.sh(&format!("nft add map inet {TABLE} moved4 {{ type ipv4_addr : mark ; }}"));
    assert_eq!(r.check(), Ok(true));
    assert_eq!(r.rules(), rules);
    r.steer.take().unwrap().remove().unwrap();
    let left = r.host.ip("-4 rule show");
    assert!(left.contains("fwmark 0x7") && left.contains("fwmark 0x8") && !left.contains("0x5f"), "{left}");
}

#[test]
fn connections_count_for_their_vip_and_member_as_long_as_they_are_heard_of() {
    let Some(mut r) = Router::new("connections_count_for_their_vip", &[VIP, VIP6]) else { return };
    assert_eq!(r.spread(VIP, &[(A, 1), (B, 0), (C, 1)]), Ok(false));
    assert_eq!(r.spread(VIP6, &[(A6, 1), (B6, 0)]), Ok(false));
    assert_eq!(r.counted(VIP), BTreeMap::new());
    for host in 1..=9 {
        r.remember("moved4", &format!("203.0.113.{host}"), "198.51.100.10", "0x5f000003");
    }
    r.remember("moved4", "203.0.113.1", "198.51.100.99", "0x5f000001");
    r.remember("moved4", "203.0.113.100", "198.51.100.10", "0x5f000001");
    r.remember("moved6", "2001:db8::7", "2001:db8:100::10", "0x5f000004");
    // Nothing was heard of this one for two minutes.
    r.sh(&format!(
        "nft add element inet {TABLE} moved4 {{ 203.0.113.99 . 4000 . 198.51.100.10 . 443 timeout 178m : 0x5f000001 }}"
    ));
    let counted = until(SOON, || {
        let right =
            r.counted(VIP) == [(hop(A), 1), (hop(C), 9)].into() && r.counted(VIP6) == [(hop(A6), 1)].into();
        right.then_some(())
    });
    assert!(counted.is_some(), "{:?} {:?}", r.counted(VIP), r.counted(VIP6));
    // After a change only what was counted since is told.
    assert!(r.steer().counted(&VIP.parse().unwrap()).is_some());
    r.steer().update(VIP.parse().unwrap(), Spread::default());
    assert!(r.steer().counted(&VIP.parse().unwrap()).is_none());
}

#[test]
fn a_vip_in_which_another_one_is_goes_by_its_group() {
    let Some(mut r) = Router::new("a_vip_in_which_another_one_is", &["198.51.100.0/24", VIP]) else { return };
    assert_eq!(r.spread("198.51.100.0/24", &[(A, 1), (B, 0)]), Ok(false));
    assert!(r.is_clean());
    assert_eq!(r.spread(VIP, &[(A, 1), (B, 0)]), Ok(false));
    assert_eq!(r.ways(VIP).len(), 2);
}
