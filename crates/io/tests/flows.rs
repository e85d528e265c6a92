//! Connections through the listener's groups: a client, a router with the groups, and gateways that hold the VIP, each a host of
//! its own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod net_support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use net_support::{Host, until};
use standfast_core::listen::{Group, Hop, Share};
use standfast_core::plan::{Hashing, Listener, ListenerVip, Public};
use standfast_core::prefix::Prefix;
use standfast_core::table::Change;
use standfast_io::fib::Fib;
use standfast_io::nft::{Answer, TABLE, Translation};

const PORT: u16 = 7777;
const FLOWS: usize = 300;
const PATIENCE: Duration = Duration::from_secs(20);

/// Addresses of one family.
struct Family {
    vip: &'static str,
    client: [&'static str; 2],
    /// Our end and the gateway's end of each cable.
    gateways: [[&'static str; 2]; 4],
    len: u8,
}

const V4: Family = Family {
    vip: "198.51.100.10",
    client: ["10.0.0.1", "10.0.0.2"],
    gateways: [
        ["10.0.1.1", "10.0.1.2"],
        ["10.0.2.1", "10.0.2.2"],
        ["10.0.3.1", "10.0.3.2"],
        ["10.0.4.1", "10.0.4.2"],
    ],
    len: 24,
};

const V6: Family = Family {
    vip: "2001:db8:100::10",
    client: ["2001:db8::1", "2001:db8::2"],
    gateways: [
        ["2001:db8:1::1", "2001:db8:1::2"],
        ["2001:db8:2::1", "2001:db8:2::2"],
        ["2001:db8:3::1", "2001:db8:3::2"],
        ["2001:db8:4::1", "2001:db8:4::2"],
    ],
    len: 64,
};

struct Site {
    client: Host,
    router: Host,
    _gateways: Vec<Host>,
    family: &'static Family,
    fib: Fib,
}

impl Site {
    fn new(test: &str, family: &'static Family) -> Option<Self> {
        let (client, router) = (Host::new(test)?, Host::new(test)?);
        let six = if family.len == 64 { "-6" } else { "-4" };
        let address = |host: &Host, address: &str, name: &str| {
            let nodad = if family.len == 64 { "nodad" } else { "" };
            host.ip(&format!("addr add {address}/{} dev {name} {nodad}", family.len));
            if family.len == 64 {
                // Neighbours are asked from a link-local address.
                let last = address.rsplit(':').next().unwrap();
                host.ip(&format!("addr add fe80::{last}/64 dev {name} nodad"));
            }
        };
        router.run(|| {
            for (name, value) in [
                ("ipv4/ip_forward", "1"),
                ("ipv6/conf/all/forwarding", "1"),
                ("ipv4/fib_multipath_hash_policy", "1"),
                ("ipv6/fib_multipath_hash_policy", "1"),
            ] {
                std::fs::write(format!("/proc/sys/net/{name}"), value).unwrap();
            }
        });
        client.cable("eth", &router, "client");
        address(&router, family.client[0], "client");
        address(&client, family.client[1], "eth");
        client.ip(&format!("{six} route add default via {}", family.client[0]));
        let mut gateways = Vec::new();
        for (i, [ours, theirs]) in family.gateways.iter().enumerate() {
            let gateway = Host::new(test)?;
            gateway.cable("eth", &router, &format!("gw{i}"));
            address(&router, ours, &format!("gw{i}"));
            address(&gateway, theirs, "eth");
            gateway.ip(&format!("{six} route add default via {ours}"));
            let vip: IpAddr = family.vip.parse().unwrap();
            gateway.ip(&format!("addr add {vip}/{} dev lo", if family.len == 64 { 128 } else { 32 }));
            let listener = gateway.run(move || {
                until(PATIENCE, || TcpListener::bind((vip, PORT)).ok()).expect("the VIP cannot be bound")
            });
            // A thread for each connection answers each octet with the gateway's number, until the other end is gone.
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let Ok(mut stream) = stream else { return };
                    std::thread::spawn(move || {
                        let mut octet = [0];
                        while matches!(stream.read(&mut octet), Ok(1)) {
                            if octet == *b"!" || stream.write_all(&[i as u8]).is_err() {
                                return;
                            }
                        }
                    });
                }
            });
            gateways.push(gateway);
        }
        let fib = open(&router, family);
        Some(Self { client, router, _gateways: gateways, family, fib })
    }

    fn restart(&mut self) {
        self.fib = open(&self.router, self.family);
    }

    fn hop(&self, gateway: usize) -> Hop {
        self.family.gateways[gateway][1].parse::<IpAddr>().unwrap().into()
    }

    /// Spreads the VIP over these gateways; the second of a pair says whether it drains.
    fn spread(&mut self, hashing: Hashing, gateways: &[(usize, bool)]) {
        let share = |&(i, draining): &(usize, bool)| (self.hop(i), Share { weight: 1, draining });
        let hops = gateways.iter().map(share).collect();
        let group = Group { hashing, hops, slots: Vec::new() };
        self.fib.change(Change::Set(Prefix::host(self.family.vip.parse().unwrap()), group.into()));
        let begun = Instant::now();
        let done = self.fib.flush();
        eprintln!("{gateways:?} written in {:?}", begun.elapsed());
        assert!(done.results.iter().all(|(_, r)| r.is_ok()), "{done:?}");
    }

    fn connect(&self, count: usize) -> Vec<TcpStream> {
        self.connect_to(self.family.vip, count)
    }

    fn connect_to(&self, address: &str, count: usize) -> Vec<TcpStream> {
        let to = SocketAddr::new(address.parse().unwrap(), PORT);
        self.client.run(move || {
            let open = || TcpStream::connect_timeout(&to, PATIENCE).expect("a connection is refused");
            let streams: Vec<TcpStream> = (0..count).map(|_| open()).collect();
            streams.iter().for_each(|s| s.set_read_timeout(Some(PATIENCE)).unwrap());
            streams
        })
    }
}

fn open(router: &Host, family: &Family) -> Fib {
    let vip = ListenerVip::new(Prefix::host(family.vip.parse().unwrap()));
    let plan = Listener::new(Vec::new(), BTreeMap::from([("web".to_owned(), vip)]));
    router.run(move || Fib::new(&plan).unwrap())
}

/// Which gateway answers on each connection; `None` where it is broken.
fn ask(streams: &mut [TcpStream]) -> Vec<Option<u8>> {
    let mut answer = [0];
    streams
        .iter_mut()
        .map(|s| s.write_all(b"?").and_then(|()| s.read_exact(&mut answer)).ok().map(|()| answer[0]))
        .collect()
}

fn count(answers: &[Option<u8>], gateway: u8) -> usize {
    answers.iter().filter(|a| **a == Some(gateway)).count()
}

#[test]
fn connections_on_gateways_that_stay_survive_every_change() {
    for family in [&V4, &V6] {
        let Some(mut site) = Site::new("connections_on_gateways_that_stay", family) else { return };
        let idle = Duration::from_secs(60);
        let hashing =
            Hashing::Resilient { buckets: Some(16384), idle_timer: idle, unbalanced_timer: Duration::ZERO };
        let all = |drains: usize| (0..4).map(move |i| (i, i == drains)).collect::<Vec<_>>();
        // One alone, then a second one, and back: the kernel must know the flows of a group of one.
        site.spread(hashing, &[(2, false)]);
        let mut early = site.connect(FLOWS / 4);
        // A bucket that was used in the tick of the clock in which it was given away seems unused to the kernel.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(count(&ask(&mut early), 2), FLOWS / 4);
        site.spread(hashing, &[(2, false), (3, false)]);
        assert_eq!(count(&ask(&mut early), 2), FLOWS / 4);
        site.restart();
        site.spread(hashing, &[(2, false)]);
        assert_eq!(count(&ask(&mut early), 2), FLOWS / 4);
        site.spread(hashing, &all(9));
        assert_eq!(count(&ask(&mut early), 2), FLOWS / 4);
        early.iter_mut().for_each(|f| _ = f.write_all(b"!"));
        let mut flows = site.connect(FLOWS);
        let first = ask(&mut flows);
        assert!((0..4).all(|g| count(&first, g) > FLOWS / 10), "{first:?}");
        // One drains: it keeps what it has, and gets nothing new.
        site.spread(hashing, &all(1));
        let mut fresh = site.connect(FLOWS);
        assert_eq!(ask(&mut flows), first);
        let landed = ask(&mut fresh);
        // A new connection whose hash falls into a bucket of a live one of the drainer goes there: 300 x 75 / 16384.
        assert!(count(&landed, 1) < 12, "{landed:?}");
        // The daemon is started again, and its members come back one by one.
        site.restart();
        assert!(site.fib.sync().unwrap().results.is_empty());
        site.spread(hashing, &[(0, false)]);
        site.spread(hashing, &all(1));
        assert_eq!(ask(&mut flows), first);
        // It leaves: the connections on the others stay.
        site.spread(hashing, &[(0, false), (2, false), (3, false)]);
        let mut stayed = flows.iter_mut().zip(&first).filter(|(_, was)| **was != Some(1));
        assert!(stayed.all(|(flow, was)| ask(std::slice::from_mut(flow))[0] == *was));
        // It joins: they stay, too.
        site.spread(hashing, &all(9));
        let mut stayed = flows.iter_mut().zip(&first).filter(|(_, was)| **was != Some(1));
        assert!(stayed.all(|(flow, was)| ask(std::slice::from_mut(flow))[0] == *was));
        flows.iter_mut().chain(&mut fresh).for_each(|f| _ = f.write_all(b"!"));
    }
}

#[test]
fn a_public_address_is_translated_and_its_connections_outlive_the_rules() {
    let test = "a_public_address_is_translated";
    if std::process::Command::new("nft").arg("-v").output().is_err() {
        return eprintln!("SKIP {test}: the package nftables is missing");
    }
    for (family, public) in [(&V4, "203.0.113.5"), (&V6, "2001:db8:200::5")] {
        for ports in [vec![80, PORT], Vec::new()] {
            let Some(mut site) = Site::new(test, family) else { return };
            let idle = Duration::from_secs(60);
            let hashing = Hashing::Resilient {
                buckets: Some(1024),
                idle_timer: idle,
                unbalanced_timer: Duration::ZERO,
            };
            site.spread(hashing, &[(0, false), (1, false)]);
            let mut vip = ListenerVip::new(Prefix::host(family.vip.parse().unwrap()));
            vip.public = Some(Public { address: public.parse().unwrap(), ports });
            let vips = [vip];
            let mut translation = site.router.run(move || Translation::new(vips.iter()).unwrap());
            assert_eq!(answer(&mut translation), Ok(false));
            let mut flows = site.connect_to(public, 20);
            let first = ask(&mut flows);
            assert!(count(&first, 0) > 0 && count(&first, 0) + count(&first, 1) == 20, "{first:?}");
            // Nothing has changed: nothing is written.
            let handle = |site: &Site| nft(site, &format!("-a list table inet {TABLE}"));
            let before = handle(&site);
            translation.check();
            assert_eq!(answer(&mut translation), Ok(false));
            assert_eq!(handle(&site), before);
            // A hand removes the rules, then the table; connections that are there go on all the while.
            for hand in [format!("flush table inet {TABLE}"), format!("delete table inet {TABLE}")] {
                nft(&site, &hand);
                translation.check();
                assert_eq!(answer(&mut translation), Ok(true), "{hand}");
                assert_eq!(ask(&mut flows), first);
                assert!(ask(&mut site.connect_to(public, 1))[0].is_some());
            }
            // The daemon is started again: the table is the same, and no connection is lost.
            drop(translation);
            let mut vip = ListenerVip::new(Prefix::host(family.vip.parse().unwrap()));
            vip.public = Some(Public { address: public.parse().unwrap(), ports: Vec::new() });
            let vips = [vip.clone()];
            let mut translation = site.router.run(move || Translation::new(vips.iter()).unwrap());
            assert_eq!(answer(&mut translation), Ok(false));
            assert_eq!(ask(&mut flows), first);
            // Nothing is public any more.
            drop(translation);
            let mut translation = site.router.run(|| Translation::new([].iter()).unwrap());
            assert_eq!(answer(&mut translation), Ok(false));
            assert!(!nft(&site, "list tables").contains(TABLE));
            translation.remove().unwrap();
            // A clean stop that removes.
            let vips = [vip];
            let mut translation = site.router.run(move || Translation::new(vips.iter()).unwrap());
            assert_eq!(answer(&mut translation), Ok(false));
            assert!(nft(&site, "list tables").contains(TABLE));
            translation.remove().unwrap();
            assert!(!nft(&site, "list tables").contains(TABLE));
            flows.iter_mut().for_each(|f| _ = f.write_all(b"!"));
        }
    }
}

fn answer(translation: &mut Translation) -> Answer {
    until(PATIENCE, || translation.answer()).expect("nft does not answer")
}

fn nft(site: &Site, words: &str) -> String {
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    site.router.run(move || {
        let out = std::process::Command::new("nft").args(&words).output().unwrap();
        assert!(out.status.success(), "nft {words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    })
}
