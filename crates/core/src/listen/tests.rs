//! The best members of a VIP, whatever came before.

use super::*;
use crate::machine::Rng;

fn member(i: u64) -> IpAddr {
    IpAddr::from([192, 0, 2, 10 + i as u8])
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
        let mut paths: BTreeMap<IpAddr, Path> = BTreeMap::new();
        for _ in 0..60 {
            let from = member(rng.below(6));
            let mut path = Path::new(from);
            path.as_path = vec![64513; 1 + rng.below(2) as usize];
            path.med = [None, Some(0), Some(5)][rng.below(3) as usize];
            path.local_pref = [None, Some(100), Some(200)][rng.below(3) as usize];
            path.communities = if rng.below(3) == 0 { vec![GRACEFUL_SHUTDOWN] } else { vec![] };
            match rng.below(6) {
                0 => {
                    listener.learned(from, Update { withdrawn: vec![web()], ..Update::default() });
                    paths.remove(&from);
                }
                1 => {
                    listener.gone(from);
                    paths.remove(&from);
                }
                2 => {
                    // Somebody else's address as next hop: what it said before is gone, too.
                    path.next_hop = "203.0.113.1".parse().unwrap();
                    listener.learned(from, announce(web(), path));
                    paths.remove(&from);
                }
                3 => {
                    let touched = listener.learned(from, announce("10.0.0.0/8".parse().unwrap(), path));
                    assert!(touched.is_empty());
                }
                _ => {
                    assert!(listener.learned(from, announce(web(), path.clone())).contains(&web()));
                    paths.insert(from, path);
                }
            }
            let want: BTreeSet<IpAddr> = paths
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
        listener.learned(member(0), announce(prefix, Path::new(member(0))));
    }
    assert_eq!(listener.ignored(&member(0)), 10_000);
    assert!(listener.paths.is_empty());
    listener.gone(member(0));
    assert_eq!(listener.ignored(&member(0)), 0);
}
