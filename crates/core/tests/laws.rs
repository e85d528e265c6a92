//! The laws of `machine.rs`, over every machine, with random inputs: what a world would do, and what no world would.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a broken test may stop")]

#[path = "bench/mod.rs"]
mod bench;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use standfast_core::announce::{AnnounceInput, AnnounceOutput, Announcer};
use standfast_core::bfd::wire::{Diagnostic, Packet};
use standfast_core::bfd::{self, Bfd};
use standfast_core::bgp::session::{Session, SessionInput, SessionOutput};
use standfast_core::health::{Expr, Outcome, Verdict};
use standfast_core::machine::Rng;
use standfast_core::node::{
    ConnId, Facts, FlapFact, Held, Input, KernelKey, LocalAddress, Node, OrderFact, Output, StandingFact,
};
use standfast_core::plan::{
    self, BfdAuth, Check, CheckId, Damping, Drain, DrainMode, FailAction, Hashing, ListenerFloor,
    MembersProbe, PeerAsn, Plan, Probe, Secret, Slow, Weights,
};
use standfast_core::table::Change;
use standfast_core::{Machine, Prefix, Time};

use bench::octets::{self, keepalive, notification, update};
use bench::peer::{THEIR_ID, THEM, config, p, plain, prepended, secs, their_open, their_open_with};
use bench::plan::{add_peer, add_vip, check, empty, id, listener, peer, vip};

const START: Time = Time::from_secs(100);

/// Chooses the next input from what the machine said so far.
trait World<M: Machine> {
    fn saw(&mut self, output: &M::Output);
    fn next(&mut self, rng: &mut Rng) -> M::Input;
}

/// Runs `machine` for `steps` random inputs and gives every output with its moment.
fn run<M: Machine>(seed: u64, steps: usize, machine: &mut M, world: &mut impl World<M>) -> Vec<String>
where
    M::Output: Debug,
{
    let mut rng = Rng::new(seed);
    let mut now = START;
    let mut log = Vec::new();
    for _ in 0..steps {
        let mut out = Vec::new();
        let early = machine.deadline();
        if early.is_none_or(|(at, _)| at > now) {
            machine.tick(now, &mut out);
            assert!(out.is_empty(), "seed {seed}: tick before the deadline {early:?} did {out:?}");
            assert_eq!(machine.deadline(), early, "seed {seed}: tick before the deadline moved it");
        }
        match (rng.below(4), machine.deadline()) {
            (0, Some((at, why))) => {
                // On time, or late.
                let late = [0, 0, 1, 700, 5_000][rng.below(5) as usize];
                now = now.max(at) + Duration::from_millis(late);
                machine.tick(now, &mut out);
                if let Some((next, reason)) = machine.deadline() {
                    assert!(
                        next > now,
                        "seed {seed}: after tick for {why}, {reason} is due at {next}, now {now}"
                    );
                }
            }
            _ => {
                now = now + Duration::from_millis(rng.below(400));
                machine.handle(now, world.next(&mut rng), &mut out);
            }
        }
        for output in &out {
            world.saw(output);
            log.push(format!("{now} {output:?}"));
        }
    }
    log
}

fn octets_from(rng: &mut Rng) -> Bytes {
    let path = octets::hex("40010100 40020602010000fc00 400304c0000201");
    let mut message = match rng.below(12) {
        0 => their_open(),
        1 => [their_open(), keepalive()].concat(),
        2 => their_open_with(rng.below(12) as u16, &[octets::cap_restart(rng.below(2) == 0, true, 60)]),
        3 => octets::bare_open(THEM, 9, THEIR_ID),
        4 => notification(rng.below(9) as u8, rng.below(12) as u8, b"\x04text"),
        5 => update(&[], &path, &octets::hex("20c633640a")),
        6 => update(&octets::hex("20c633640a"), &[], &[]),
        7 => octets::message(5, &[0, 1 + rng.below(2) as u8, 0, 1]),
        _ => keepalive(),
    };
    if rng.below(8) == 0 {
        let at = rng.below(message.len() as u64) as usize;
        message[at] ^= 1 << rng.below(8);
    }
    if rng.below(10) == 0 {
        message.truncate(rng.below(message.len() as u64) as usize);
    }
    message.into()
}

#[derive(Default)]
struct Conns(Vec<ConnId>);

impl Conns {
    /// One of those seen, mostly; else one that nobody knows.
    fn pick(&mut self, rng: &mut Rng) -> ConnId {
        match rng.below(8) {
            0 => {
                let conn = ConnId(ConnId::ACCEPTED.0 + rng.below(1000));
                self.0.push(conn);
                conn
            }
            1 => ConnId(rng.below(1 << 34)),
            _ => {
                let recent = self.0.len().min(3) as u64;
                match self.0.len().checked_sub(1 + rng.below(recent.max(1)) as usize) {
                    Some(i) => self.0[i],
                    None => ConnId(1),
                }
            }
        }
    }
}

struct SessionWorld(Conns);

impl World<Session> for SessionWorld {
    fn saw(&mut self, output: &SessionOutput) {
        if let SessionOutput::Dial(dial) = output {
            self.0.0.push(dial.conn);
        }
    }

    fn next(&mut self, rng: &mut Rng) -> SessionInput {
        let conn = self.0.pick(rng);
        let at = |s: &str| s.parse::<SocketAddr>().unwrap();
        match rng.below(20) {
            0..4 => {
                SessionInput::Connected { conn, local: at("192.0.2.11:4000"), remote: at("192.0.2.1:179") }
            }
            4..12 => SessionInput::Received(conn, octets_from(rng)),
            12..14 => SessionInput::Written(conn, rng.below(3) as usize * 40_000),
            14 => SessionInput::Closed(conn, "reset".into()),
            15 if rng.below(10) == 0 => SessionInput::Stop("stop".into()),
            _ => {
                let one = |i: u32| Prefix::host(Ipv4Addr::from_bits(0xc633_6400 + i).into());
                let rib = (0..rng.below(20) as u32).map(|i| (one(i), prepended(rng.below(3) as u8)));
                let rib = rib.chain([(p("2001:db8:100::10/128"), plain())]).collect();
                SessionInput::Advertise(Arc::new(rib), rng.below(2) == 0)
            }
        }
    }
}

fn session(seed: u64) -> Session {
    let mut config = config();
    config.learn = seed.is_multiple_of(2);
    config.passive = seed.is_multiple_of(5);
    config.graceful_restart = (seed.is_multiple_of(3)).then_some(secs(60));
    config.timers.send_hold = secs(20);
    config.timers.connect_retry = if seed.is_multiple_of(7) { Duration::ZERO } else { secs(1) };
    config.timers.hold = secs([9, 3, 0, 90][seed as usize % 4]);
    Session::new(START, config, seed, ConnId(1))
}

fn plan() -> Plan {
    let mut plan = empty(64513, Ipv4Addr::new(192, 0, 2, 11));
    let mut web = vip("web", &["198.51.100.10/32", "2001:db8:100::10/128"], &["http", "dns"]);
    web.manage = Some("lo".into());
    web.fail_action = FailAction::LowerPriority;
    web.withdraw_after = Some(secs(7));
    web.damping = Some(Damping { flaps: 2, within: secs(5), hold: secs(3), max: secs(9) });
    web.checks.insert("uplink".into(), CheckId::shared("uplink"));
    web.policy = Expr::AtLeast(2, ["http", "dns", "uplink"].map(|c| Expr::Check(c.into())).into());
    web.drain = Drain {
        mode: DrainMode::Weight(64513),
        on_stop: true,
        persist: true,
        deadline: secs(4),
        ..Drain::default()
    };
    add_vip(&mut plan, web, &["http", "dns"]);
    let mut net = vip("net", &["198.51.100.0/25"], &["up"]);
    net.require_local_address = true;
    net.drain = Drain { mode: DrainMode::Withdraw, on_file: true, floor: 1, ..Drain::default() };
    add_vip(&mut plan, net, &["up"]);
    let mut host = vip("host", &["203.0.113.1/32"], &["up"]);
    host.require_local_address = true;
    host.checks.insert("uplink".into(), CheckId::shared("uplink"));
    host.policy = Expr::Any(["up", "uplink"].map(|c| Expr::Check(c.into())).into());
    add_vip(&mut plan, host, &["up"]);
    plan.checks.insert(CheckId::shared("uplink"), check());
    for check in plan.checks.values_mut() {
        check.fast_interval = Duration::from_millis(600);
        check.slow = Some(Slow { limit: Duration::from_millis(50), times: 2 });
    }
    add_peer(&mut plan, peer("front", Ipv4Addr::new(192, 0, 2, 1), PeerAsn::Number(THEM.into())));
    let mut inner = peer("inner", Ipv4Addr::new(192, 0, 2, 2), PeerAsn::External);
    inner.graceful_restart = Some(secs(60));
    add_peer(&mut plan, inner);
    for peer in plan.bgp.peers.values_mut() {
        let strict = (peer.name == "inner").then_some(secs(5));
        peer.bfd = Some(plan::Bfd { strict, ..plan::Bfd::new() });
    }
    let mut role = listener("192.0.2.0/28", &[("web", "198.51.100.10/32"), ("dns", "198.51.100.53/32")]);
    for (name, vip) in &mut role.vips {
        let timers = (secs(30), Duration::ZERO);
        vip.hashing = match &name[..] {
            "web" => {
                Hashing::Resilient { buckets: Some(64), idle_timer: timers.0, unbalanced_timer: timers.1 }
            }
            _ => Hashing::Consistent { slots: 12 },
        };
        vip.floor = Some(ListenerFloor { members: 1, hold: secs(4) });
        vip.weights = Weights::LinkBandwidth;
        vip.drain = secs(3);
    }
    role.accept[0].bfd = Some(plan::Bfd::new());
    plan.listener = Some(role);
    let mut front = vip("front", &["203.0.113.5/32"], &["fleet"]);
    front.withdraw_after = Some(secs(2));
    add_vip(&mut plan, front, &[]);
    let probe = Probe::Members(MembersProbe { vip: "web".into(), at_least: 1 });
    let check = Check { interval: Duration::ZERO, fast_interval: Duration::ZERO, ..Check::new(probe) };
    plan.checks.insert(id("front", "fleet"), check);
    plan
}

/// The plan, or one that differs a little.
fn other_plan(rng: &mut Rng) -> Plan {
    let mut plan = plan();
    match rng.below(8) {
        0 => drop(plan.vips.remove("web")),
        1 => plan.vips.values_mut().for_each(|vip| vip.manage = Some("eth0".into())),
        2 => plan.checks.values_mut().for_each(|check| check.via.mark = Some(1)),
        3 => plan.bgp.peers.clear(),
        4 => plan.bgp.peers.values_mut().for_each(|peer| peer.timers.hold = secs(30)),
        5 => plan.router.asn += 1,
        6 => add_vip(&mut plan, vip("more", &["198.51.100.77/32"], &["http"]), &["http"]),
        _ => {}
    }
    plan
}

fn bfd_report(rng: &mut Rng) -> Input {
    let key =
        bfd::Key { address: [192, 0, 2, [1, 2, 7][rng.below(3) as usize]].into(), scope: 0, multihop: false };
    if rng.below(6) == 0 {
        return Input::BfdUnsent(key, (rng.below(2) == 0).then(|| "no route".into()));
    }
    let reasons = [
        bfd::Reason::Up,
        bfd::Reason::Silent(secs(1)),
        bfd::Reason::Signalled(Diagnostic::EXPIRED),
        bfd::Reason::PeerAdminDown,
        bfd::Reason::Full,
    ];
    let reason = reasons[rng.below(5) as usize].clone();
    let state = if reason == bfd::Reason::Up { bfd::State::Up } else { bfd::State::Down };
    Input::Bfd(key, bfd::Report { state, losses: rng.below(3), ..bfd::Report::unavailable(reason) })
}

fn address(rng: &mut Rng) -> LocalAddress {
    let address = ["198.51.100.10", "2001:db8:100::10", "203.0.113.1"][rng.below(3) as usize];
    LocalAddress {
        address: address.parse().unwrap(),
        interface: ["lo", "eth0"][rng.below(2) as usize].into(),
    }
}

fn addresses(rng: &mut Rng) -> BTreeSet<LocalAddress> {
    (0..rng.below(4)).map(|_| address(rng)).collect()
}

fn verdict(rng: &mut Rng) -> Verdict {
    match rng.below(5) {
        0 => Verdict::bad("no"),
        1 => Verdict { outcome: Outcome::NoResult, ..Verdict::good("none") },
        _ => Verdict { took: Duration::from_millis(rng.below(100)), ..Verdict::good("yes") },
    }
}

fn connections(rng: &mut Rng) -> Result<u64, String> {
    if rng.below(5) == 0 { Err("no".into()) } else { Ok(rng.below(3)) }
}

fn check_id(rng: &mut Rng) -> CheckId {
    let all =
        [("web", "http"), ("web", "dns"), ("net", "up"), ("host", "up"), ("", "uplink"), ("no", "such")];
    let (vip, check) = all[rng.below(6) as usize];
    id(vip, check)
}

struct AnnouncerWorld;

impl World<Announcer> for AnnouncerWorld {
    fn saw(&mut self, _: &AnnounceOutput) {}

    fn next(&mut self, rng: &mut Rng) -> AnnounceInput {
        match rng.below(20) {
            0..12 => AnnounceInput::Reported(check_id(rng), verdict(rng)),
            12..15 => AnnounceInput::Addresses(addresses(rng)),
            15 if rng.below(20) == 0 => AnnounceInput::Stop("stop".into()),
            15 if rng.below(20) == 0 => AnnounceInput::Leave("leave".into()),
            18 => {
                let name =
                    [Some("web"), Some("net"), Some("none"), None][rng.below(4) as usize].map(str::to_owned);
                match rng.below(4) {
                    0 => AnnounceInput::Undrain(name),
                    1 => AnnounceInput::Drain(name, Some(secs(rng.below(3)))),
                    2 => AnnounceInput::Drain(name, None),
                    _ => AnnounceInput::Connections(name.unwrap_or_default(), connections(rng)),
                }
            }
            17 => AnnounceInput::HeldUp(Duration::from_millis(rng.below(5_000))),
            19 if rng.below(2) == 0 => AnnounceInput::Share(
                ["web", "net", "none"][rng.below(3) as usize].into(),
                rng.below(256) as u8,
            ),
            16 => AnnounceInput::Undamp(["web", "net", "none"][rng.below(3) as usize].into()),
            _ => {
                let name = ["web", "net", "none"][rng.below(3) as usize];
                AnnounceInput::LowerPriorityFile(name.into(), rng.below(2) == 0)
            }
        }
    }
}

/// What an earlier run may have known, or a hand written.
fn facts(rng: &mut Rng) -> Facts {
    let ago = [0.0, 5.0, 1e30, -3.0, f64::NAN][rng.below(5) as usize];
    let (member, vip) = (IpAddr::from([192, 0, 2, 7 + rng.below(3) as u8]), Some("web".to_owned()));
    let flaps =
        FlapFact { vip: "web".into(), flaps: 3, over: ago, ago, hold: [3.0, ago][rng.below(2) as usize] };
    let drained = vec![["web", "net", "none"][rng.below(3) as usize].to_owned()];
    let orders = vec![OrderFact { member, vip, ago, timeout: Some(ago) }];
    let standing =
        StandingFact { vip: "web".into(), announced: rng.below(2) == 0, failures: vec![ago, 3.0, f64::NAN] };
    Facts { orders, drained, flapped: vec![flaps], standing: vec![standing], ..Facts::default() }
}

#[derive(Default)]
struct NodeWorld {
    conns: Conns,
    /// A member that behaves, for a while.
    member: VecDeque<Input>,
    members: u64,
}

impl NodeWorld {
    /// What a member does that comes up and says something of the VIPs.
    fn script(&mut self, rng: &mut Rng) {
        self.members += 1;
        let conn = ConnId(ConnId::ACCEPTED.0 + 5_000 + self.members);
        let host = 7 + rng.below(3) as u8;
        let remote = SocketAddr::new([192, 0, 2, host].into(), 5000);
        let path = [&octets::hex("40010100 40020602010000fc00 400304c00002")[..], &[host]].concat();
        self.member.extend([
            Input::Connected { conn, local: "192.0.2.11:179".parse().unwrap(), remote },
            Input::Received(conn, their_open().into()),
            Input::Received(conn, keepalive().into()),
        ]);
        for _ in 0..rng.below(6) {
            // Leaving, of a speed of 0, of one that is no number, of some other.
            let more = [
                "",
                "c00804ffff0000",
                "c010084004fc0100000000",
                "c010084004fc017fc00000",
                "c010084004fc014c000000",
            ];
            let more = octets::hex(more[rng.below(5) as usize]);
            let vip = octets::hex(["20c633640a", "20c6336435"][rng.below(2) as usize]);
            let said = match rng.below(3) {
                0 => update(&vip, &[], &[]),
                _ => update(&[], &[&path[..], &more].concat(), &vip),
            };
            self.member.push_back(Input::Received(conn, said.into()));
        }
        if rng.below(2) == 0 {
            self.member.push_back(Input::Closed(conn, "reset".into()));
        }
    }
}

impl World<Node> for NodeWorld {
    fn saw(&mut self, output: &Output) {
        if let Output::Dial(dial) = output {
            self.conns.0.push(dial.conn);
        }
    }

    fn next(&mut self, rng: &mut Rng) -> Input {
        if rng.below(2) == 0 {
            if self.member.is_empty() {
                self.script(rng);
            }
            return self.member.pop_front().unwrap();
        }
        let conn = self.conns.pick(rng);
        let remote = ["192.0.2.1", "192.0.2.2", "192.0.2.7", "203.0.113.9"][rng.below(4) as usize];
        match rng.below(32) {
            0..4 => Input::Connected {
                conn,
                local: "192.0.2.11:179".parse().unwrap(),
                remote: SocketAddr::new(remote.parse().unwrap(), 5000),
            },
            4..14 => Input::Received(conn, octets_from(rng)),
            14..16 => Input::Written(conn, rng.below(3) as usize * 40_000),
            16 => Input::Closed(conn, "reset".into()),
            17..23 => Input::Reported(check_id(rng), verdict(rng)),
            23 => Input::Addresses(addresses(rng)),
            24 if rng.below(3) == 0 => Input::LowerPriorityFile("web".into(), rng.below(2) == 0),
            24 if rng.below(3) == 0 => Input::Share("web".into(), rng.below(120) as u8),
            24 => {
                let vip = [None, Some("web"), Some("none")][rng.below(3) as usize].map(str::to_owned);
                match rng.below(3) {
                    0 => Input::UndrainVip { vip },
                    1 => Input::DrainVip { vip, deadline: Some(secs(rng.below(4))) },
                    _ => Input::Connections(vip.unwrap_or_default(), connections(rng)),
                }
            }
            25 => Input::Kernel(KernelKey::Address(address(rng)), Err("no".into())),
            26 => Input::Kernel(KernelKey::Route(p("198.51.100.10/32")), Ok(())),
            28 if rng.below(2) == 0 => Input::HeldUp(Duration::from_millis(rng.below(5_000))),
            28 if rng.below(2) == 0 => Input::Recalled(Box::new(facts(rng))),
            28 => Input::Undamp("web".into()),
            30 | 31 => bfd_report(rng),
            29 => {
                let member = IpAddr::from([192, 0, 2, 7 + rng.below(3) as u8]);
                let vip = [None, Some("web"), Some("none")][rng.below(3) as usize].map(str::to_owned);
                match rng.below(6) {
                    0 => Input::Undrain { member, vip },
                    1 => Input::Links(BTreeMap::new()),
                    5 => Input::Unsteered((rng.below(2) == 0).then(|| "no nft".into())),
                    n => {
                        let prefix =
                            p(["198.51.100.10/32", "198.51.100.53/32", "10.0.0.0/8"][n as usize - 2]);
                        let held = Held { buckets: 9, busy: rng.below(2) as u32, moved: rng.below(2) as u32 };
                        match rng.below(3) {
                            0 => Input::Buckets(prefix, BTreeMap::from([(member.into(), held)])),
                            1 => Input::Buckets(prefix, BTreeMap::new()),
                            _ => Input::Drain { member, vip, timeout: Some(secs(rng.below(3))) },
                        }
                    }
                }
            }
            27 if rng.below(3) == 0 => Input::Plan(Arc::new(other_plan(rng))),
            27 if rng.below(60) == 0 => Input::Stop("stop".into()),
            _ => Input::Received(conn, keepalive().into()),
        }
    }
}

/// Peers that know the discriminators of those sessions, keys of some of them, and noise.
#[derive(Default)]
struct BfdWorld(Vec<(bfd::Key, u32)>);

impl BfdWorld {
    fn key(rng: &mut Rng) -> bfd::Key {
        let address = [192, 0, 2, 1 + rng.below(4) as u8].into();
        bfd::Key { address, scope: 0, multihop: rng.below(4) == 0 }
    }

    fn plan(rng: &mut Rng) -> plan::Bfd {
        let pick = |rng: &mut Rng| Duration::from_millis([0, 10, 50, 300, 2000][rng.below(5) as usize]);
        let auth = (rng.below(3) == 0).then(|| BfdAuth {
            meticulous: rng.below(2) == 0,
            key_id: 1,
            key: Secret::new("key".into()),
        });
        plan::Bfd {
            interval: pick(rng),
            min_rx: pick(rng),
            multiplier: 1 + rng.below(4) as u8,
            min_ttl: if rng.below(4) == 0 { 1 } else { 255 },
            passive: rng.below(5) == 0,
            auth,
            ..plan::Bfd::new()
        }
    }
}

impl World<Bfd> for BfdWorld {
    fn saw(&mut self, output: &bfd::Output) {
        if let bfd::Output::Send(key, octets) = output {
            let ours = Packet::decode(octets).unwrap().0.my_discriminator;
            self.0.push((*key, ours));
        }
    }

    fn next(&mut self, rng: &mut Rng) -> bfd::Input {
        let one = Self::key(rng);
        match rng.below(40) {
            0..3 => {
                let config = bfd::Config { plan: Self::plan(rng), local: None, interface: None };
                return bfd::Input::Wanted(Change::Set(one, config));
            }
            3 => return bfd::Input::Wanted(Change::Remove(one)),
            4 if rng.below(20) == 0 => return bfd::Input::Stop,
            _ => {}
        }
        let recent = self.0.len().min(8) as u64;
        let seen = self.0.len().checked_sub(1 + rng.below(recent.max(1)) as usize).map(|i| self.0[i]);
        let (from, ours) = seen.filter(|_| rng.below(10) > 0).unwrap_or((one, 5));
        let micros = |rng: &mut Rng| {
            Duration::from_micros([0, 1, 50_000, 1_000_000, u64::from(u32::MAX)][rng.below(5) as usize])
        };
        let packet = Packet {
            diagnostic: Diagnostic(rng.below(32) as u8),
            state: [bfd::State::AdminDown, bfd::State::Down, bfd::State::Init, bfd::State::Up]
                [(rng.below(8) as usize).min(3)],
            poll: rng.below(4) == 0,
            is_final: rng.below(4) == 0,
            control_plane_independent: rng.below(2) == 0,
            demand: rng.below(6) == 0,
            multiplier: [0, 1, 3, 255][rng.below(4) as usize],
            my_discriminator: rng.below(3) as u32,
            your_discriminator: if rng.below(5) == 0 { 0 } else { ours },
            desired_min_tx: micros(rng),
            required_min_rx: micros(rng),
            required_min_echo_rx: micros(rng),
        };
        let auth = BfdAuth { meticulous: rng.below(2) == 0, key_id: 1, key: Secret::new("key".into()) };
        let mut octets = packet.encode((rng.below(4) == 0).then_some((&auth, rng.below(6) as u32)));
        if rng.below(10) == 0 {
            let at = rng.below(octets.len() as u64) as usize;
            octets[at] ^= 1 << rng.below(8);
            octets.truncate(at + 20);
        }
        bfd::Input::Received {
            from,
            ttl: [Some(255), Some(255), Some(3), None][rng.below(4) as usize],
            octets,
        }
    }
}

const SEEDS: u64 = 200;

#[test]
fn bfd_keeps_the_laws_and_gives_the_same_for_the_same_seed() {
    let mut lively = 0;
    for seed in 0..SEEDS {
        let go = || run(seed, 1000, &mut Bfd::new(seed), &mut BfdWorld::default());
        let log = go();
        lively += u32::from(log.iter().any(|l| l.contains("reason: Up")));
        assert_eq!(log, go(), "seed {seed}");
    }
    assert!(lively > 50, "only {lively} runs came up: they prove little");
}

#[test]
fn a_session_keeps_the_laws_and_gives_the_same_for_the_same_seed() {
    let mut lively = 0;
    for seed in 0..SEEDS {
        let go = || run(seed, 300, &mut session(seed), &mut SessionWorld(Conns::default()));
        let log = go();
        lively += u32::from(log.iter().any(|l| l.ends_with(" Up")));
        assert_eq!(log, go(), "seed {seed}");
    }
    assert!(lively > 50, "only {lively} runs came up: they prove little");
}

#[test]
fn an_announcer_keeps_the_laws_and_gives_the_same_for_the_same_seed() {
    for seed in 0..SEEDS {
        let plan = plan();
        let make = || Announcer::new(START, &plan.vips, &plan.checks);
        let go = || run(seed, 300, &mut make(), &mut AnnouncerWorld);
        assert_eq!(go(), go(), "seed {seed}");
    }
}

#[test]
fn a_node_keeps_the_laws_and_gives_the_same_for_the_same_seed() {
    let mut lively = 0;
    for seed in 0..SEEDS {
        let go = || {
            let mut node = Node::new(START, plan(), seed);
            run(seed, 300, &mut node, &mut NodeWorld::default())
        };
        let log = go();
        lively += u32::from(log.iter().any(|l| l.contains("Route(Set")));
        assert_eq!(log, go(), "seed {seed}");
    }
    assert!(lively > 100, "only {lively} runs routed anything: they prove little");
}

#[test]
fn another_seed_gives_another_jitter() {
    let run = |seed| {
        run(7, 200, &mut Session::new(START, config(), seed, ConnId(1)), &mut SessionWorld(Conns::default()))
    };
    assert_ne!(run(1), run(2));
}
