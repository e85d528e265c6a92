//! The best members of a VIP, whatever came before.

use super::*;
use crate::bgp::{GRACEFUL_SHUTDOWN, Path};
use crate::machine::Rng;

const NOW: Time = Time::from_secs(100);

fn learn(
    listener: &mut Listener,
    from: Hop,
    allowed: Option<&BTreeSet<String>>,
    update: Update,
) -> BTreeSet<Prefix> {
    let touched = listener.learned(NOW, from, allowed, update);
    decided(listener, touched)
}

fn gone(listener: &mut Listener, member: Hop) {
    let touched = listener.gone(NOW, member);
    decided(listener, touched);
}

fn linked(listener: &mut Listener, links: Links) -> BTreeSet<Prefix> {
    let touched = listener.linked(links);
    decided(listener, touched)
}

fn decided(listener: &mut Listener, touched: BTreeSet<Prefix>) -> BTreeSet<Prefix> {
    touched.iter().for_each(|prefix| drop(listener.decide(NOW, prefix)));
    touched
}

fn member(i: u64) -> Hop {
    IpAddr::from([192, 0, 2, 10 + i as u8]).into()
}

fn listener() -> Listener {
    let vip = plan::ListenerVip::new;
    let vips = [("web".to_owned(), vip(web())), ("six".to_owned(), vip("2001:db8::10/128".parse().unwrap()))];
    let plan = plan::Listener::new(Vec::new(), vips.into());
    Listener::new(&plan)
}

fn web() -> Prefix {
    "198.51.100.10/32".parse().unwrap()
}

fn announce(prefix: Prefix, path: Path) -> Update {
    Update { announced: vec![(prefix, path)], ..Update::default() }
}

/// RFC 8326 and the head of RFC 4271 §9.1, one comparison at a time.
fn is_better(a: &Path, b: &Path) -> bool {
    let leaves = |p: &Path| p.communities.contains(&0xffff_0000);
    if leaves(a) != leaves(b) {
        return !leaves(a);
    }
    let (la, lb) = (a.local_pref.unwrap_or(100), b.local_pref.unwrap_or(100));
    if la != lb {
        return la > lb;
    }
    if a.as_path.len() != b.as_path.len() {
        return a.as_path.len() < b.as_path.len();
    }
    a.med.unwrap_or(0) < b.med.unwrap_or(0)
}

#[test]
fn the_next_hops_are_those_of_every_path_that_no_other_beats() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut listener = listener();
        // Nothing but paths decides: who drains is out at once.
        listener.steered(Some("there is no program nft".into()));
        let mut paths: BTreeMap<Hop, Path> = BTreeMap::new();
        for _ in 0..60 {
            let from = member(rng.below(6));
            let mut path = Path::new(from.address);
            path.as_path = vec![64513; 1 + rng.below(2) as usize];
            path.med = [None, Some(0), Some(5)][rng.below(3) as usize];
            path.local_pref = [None, Some(100), Some(200)][rng.below(3) as usize];
            path.communities = if rng.below(3) == 0 { vec![GRACEFUL_SHUTDOWN] } else { vec![] };
            match rng.below(6) {
                0 => {
                    learn(&mut listener, from, None, Update { withdrawn: vec![web()], ..Update::default() });
                    paths.remove(&from);
                }
                1 => {
                    gone(&mut listener, from);
                    paths.remove(&from);
                }
                2 => {
                    // Somebody else's address as next hop: what it said before is gone, too.
                    path.next_hop = "203.0.113.1".parse().unwrap();
                    learn(&mut listener, from, None, announce(web(), path));
                    paths.remove(&from);
                }
                3 => {
                    let touched =
                        learn(&mut listener, from, None, announce("10.0.0.0/8".parse().unwrap(), path));
                    assert!(touched.is_empty());
                }
                _ => {
                    assert!(learn(&mut listener, from, None, announce(web(), path.clone())).contains(&web()));
                    paths.insert(from, path);
                }
            }
            let want: BTreeSet<Hop> = paths
                .iter()
                .filter(|(_, a)| !paths.values().any(|b| is_better(b, a)))
                .map(|(m, _)| *m)
                .collect();
            assert_eq!(listener.next_hops(&web()), want, "seed {seed}");
        }
    }
}

#[test]
fn ten_thousand_foreign_routes_are_counted_and_not_kept() {
    let mut listener = listener();
    for i in 0..10_000u32 {
        let prefix = Prefix::host(std::net::Ipv4Addr::from_bits(0x0a00_0000 + i).into());
        learn(&mut listener, member(0), None, announce(prefix, Path::new(member(0).address)));
    }
    assert_eq!(listener.ignored(&member(0)).collect::<Vec<_>>(), [(Ignored::NotOurs, 10_000)]);
    assert_eq!(listener.members(&web()).count(), 0);
    gone(&mut listener, member(0));
    assert_eq!(listener.ignored(&member(0)).count(), 0);
}

#[test]
fn a_path_that_does_not_begin_with_the_member_is_counted() {
    let mut listener = listener();
    let foreign: Prefix = "10.0.0.0/8".parse().unwrap();
    learn(&mut listener, member(0), None, announce(web(), Path::new(member(0).address)));
    let both = vec![web(), foreign];
    learn(
        &mut listener,
        member(0),
        None,
        Update { not_its_path: both.clone(), withdrawn: both, ..Update::default() },
    );
    assert_eq!(
        listener.ignored(&member(0)).collect::<Vec<_>>(),
        [(Ignored::NotOurs, 1), (Ignored::NotItsPath, 1)]
    );
    assert!(listener.next_hops(&web()).is_empty());
}

fn links() -> Links {
    let link = |name: &str, addresses: &[&str], networks: &[&str]| Link {
        name: name.to_owned(),
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        networks: networks.iter().map(|n| n.parse().unwrap()).collect(),
    };
    let lan = ["192.0.2.1", "2001:db8::1", "fe80::1"];
    let other = ["203.0.113.1", "2001:db8:1::1", "fe80::1"];
    BTreeMap::from([
        (2, link("lan", &lan, &["192.0.2.0/24", "2001:db8::/64", "fe80::/64"])),
        (3, link("other", &other, &["203.0.113.0/24", "2001:db8:1::/64", "fe80::/64"])),
    ])
}

#[test]
fn a_member_attracts_traffic_to_itself_alone() {
    let six: Prefix = "2001:db8::10/128".parse().unwrap();
    let scoped = |address: &str, scope| Hop { address: address.parse().unwrap(), scope };
    let (v4, v6) = (scoped("192.0.2.11", 0), scoped("2001:db8::11", 0));
    let local = scoped("fe80::11", 2);
    for (from, next_hop, want) in [
        (v4, "192.0.2.11", Ok(v4)),
        (v4, "192.0.2.12", Err(Ignored::Foreign)),
        (v4, "192.0.2.1", Err(Ignored::Foreign)),
        (v4, "2001:db8::11", Ok(v6)),
        (v4, "2001:db8::1", Err(Ignored::OffLink)),
        (v4, "2001:db8:1::11", Err(Ignored::OffLink)),
        (v4, "2001:db8:9::11", Err(Ignored::OffLink)),
        (v4, "fe80::11", Err(Ignored::Foreign)),
        (v4, "::ffff:192.0.2.11", Err(Ignored::Foreign)),
        (v4, "::1", Err(Ignored::Foreign)),
        (v4, "ff02::1", Err(Ignored::Foreign)),
        (v4, "::", Err(Ignored::Foreign)),
        (v4, "0.0.0.0", Err(Ignored::Foreign)),
        (v6, "2001:db8::11", Ok(v6)),
        (v6, "2001:db8::12", Err(Ignored::Foreign)),
        (v6, "192.0.2.11", Ok(v4)),
        (v6, "192.0.2.1", Err(Ignored::OffLink)),
        (v6, "203.0.113.11", Err(Ignored::OffLink)),
        (v6, "255.255.255.255", Err(Ignored::Foreign)),
        (local, "fe80::11", Ok(local)),
        (local, "fe80::12", Err(Ignored::Foreign)),
        (local, "2001:db8::11", Ok(v6)),
        (local, "2001:db8:1::11", Err(Ignored::OffLink)),
        (local, "192.0.2.11", Ok(v4)),
        (local, "203.0.113.11", Err(Ignored::OffLink)),
        (scoped("fe80::11", 9), "2001:db8::11", Err(Ignored::OffLink)),
        (scoped("198.51.100.1", 0), "198.51.100.1", Ok(scoped("198.51.100.1", 0))),
        (scoped("198.51.100.1", 0), "2001:db8::11", Err(Ignored::OffLink)),
    ] {
        let mut listener = listener();
        linked(&mut listener, links());
        learn(&mut listener, from, None, announce(six, Path::new(next_hop.parse().unwrap())));
        let hops = listener.next_hops(&six);
        assert_eq!(hops, want.ok().into_iter().collect(), "{from} says {next_hop}");
        let ignored: Vec<_> = listener.ignored(&from).collect();
        assert_eq!(
            ignored,
            want.err().map(|why| (why, 1)).into_iter().collect::<Vec<_>>(),
            "{from} {next_hop}"
        );
    }
}

#[test]
fn a_next_hop_counts_once_its_link_is_there_and_until_the_kernel_says_otherwise() {
    let mut listener = listener();
    let six: Prefix = "2001:db8::10/128".parse().unwrap();
    let via = |listener: &Listener| listener.next_hops(&six).len();
    linked(&mut listener, BTreeMap::new());
    learn(&mut listener, member(1), None, announce(six, Path::new("2001:db8::11".parse().unwrap())));
    assert_eq!(via(&listener), 0);
    assert_eq!(linked(&mut listener, links()), BTreeSet::from([six]));
    assert_eq!(via(&listener), 1);
    assert!(linked(&mut listener, BTreeMap::new()).is_empty());
    assert_eq!(via(&listener), 1);
}

#[test]
fn a_worse_path_serves_when_the_better_one_leads_nowhere() {
    let mut listener = listener();
    linked(&mut listener, links());
    let six: Prefix = "2001:db8::10/128".parse().unwrap();
    let own: Hop = "2001:db8::12".parse::<IpAddr>().unwrap().into();
    let worse = Path { as_path: vec![64513; 3], ..Path::new(own.address) };
    learn(&mut listener, member(1), None, announce(six, Path::new("2001:db8:9::1".parse().unwrap())));
    learn(&mut listener, own, None, announce(six, worse));
    assert_eq!(listener.next_hops(&six), BTreeSet::from([own]));
}

#[test]
fn a_range_announces_its_own_vips_alone() {
    let mut listener = listener();
    let names = BTreeSet::from(["six".to_owned()]);
    let six: Prefix = "2001:db8::10/128".parse().unwrap();
    let mut path = Path::new(member(1).address);
    assert!(learn(&mut listener, member(1), Some(&names), announce(web(), path.clone())).is_empty());
    path.next_hop = "2001:db8::11".parse().unwrap();
    assert!(learn(&mut listener, member(1), Some(&names), announce(six, path)).contains(&six));
    assert_eq!(listener.ignored(&member(1)).collect::<Vec<_>>(), [(Ignored::NotForTheRange, 1)]);
}

#[test]
fn the_address_of_a_members_own_session_is_that_members_alone() {
    let six: Prefix = "2001:db8::10/128".parse().unwrap();
    let (owner, own): (Hop, IpAddr) = ("2001:db8::11".parse::<IpAddr>().unwrap().into(), member(1).address);
    let leaving = Path { communities: vec![GRACEFUL_SHUTDOWN], ..Path::new(owner.address) };
    let claim = || announce(six, Path::new(owner.address));
    for before in [true, false] {
        let mut listener = listener();
        linked(&mut listener, links());
        let other: Hop = "2001:db8::12".parse::<IpAddr>().unwrap().into();
        learn(&mut listener, other, None, announce(six, Path::new(other.address)));
        if before {
            learn(&mut listener, member(1), None, claim());
            assert_eq!(listener.next_hops(&six), BTreeSet::from([owner, other]));
            // Established is enough, and what was said before is left out.
            assert_eq!(listener.came(NOW, owner), BTreeSet::from([six]));
            decided(&mut listener, [six].into());
            assert_eq!(listener.next_hops(&six), BTreeSet::from([other]));
        }
        learn(&mut listener, owner, None, announce(six, leaving.clone()));
        if !before {
            learn(&mut listener, member(1), None, claim());
        }
        assert!(!listener.announces(&six, &own.into()), "{before}");
        assert_eq!(listener.ignored(&own.into()).collect::<Vec<_>>(), [(Ignored::Taken, 1)], "{before}");
        assert_eq!(listener.next_hops(&six), BTreeSet::from([other]), "{before}: its drain is its own");
        gone(&mut listener, owner);
        gone(&mut listener, other);
        assert!(listener.next_hops(&six).is_empty(), "{before}: nobody keeps it after its death");
    }
}

#[test]
fn of_two_that_lead_to_one_address_the_lesser_bandwidth_counts() {
    let six: Prefix = "2001:db8::10/128".parse().unwrap();
    let vip = plan::ListenerVip { weights: plan::Weights::LinkBandwidth, ..plan::ListenerVip::new(six) };
    let mut listener = Listener::new(&plan::Listener::new(Vec::new(), [("six".to_owned(), vip)].into()));
    linked(&mut listener, links());
    for (from, hop, bytes) in
        [(1, "2001:db8::11", 100.0), (2, "2001:db8::11", 1e30_f32), (3, "2001:db8::13", 200.0)]
    {
        let n = bytes.to_be_bytes();
        let path = Path {
            extended_communities: vec![[0x40, 4, 0xfc, 1, n[0], n[1], n[2], n[3]]],
            ..Path::new(hop.parse().unwrap())
        };
        learn(&mut listener, member(from), None, announce(six, path));
    }
    let weights: Vec<u16> = listener.group(&six).unwrap().hops.values().map(|share| share.weight).collect();
    assert_eq!(weights, [1, 2]);
}

#[test]
fn one_host_that_says_a_vip_on_two_sessions_is_one_next_hop() {
    let mut listener = listener();
    linked(&mut listener, links());
    let six: Prefix = "2001:db8::10/128".parse().unwrap();
    let v6: Hop = "2001:db8::11".parse::<IpAddr>().unwrap().into();
    for from in [member(1), v6] {
        learn(&mut listener, from, None, announce(six, Path::new(v6.address)));
    }
    assert_eq!(listener.next_hops(&six), BTreeSet::from([v6]));
    gone(&mut listener, member(1));
    assert_eq!(listener.next_hops(&six), BTreeSet::from([v6]));
    gone(&mut listener, v6);
    assert!(listener.next_hops(&six).is_empty());
}
