//! Connections through the listener, held open by the thousand while gateways come, drain and go and the listener restarts:
//! nothing breaks that need not.

use std::net::SocketAddr;
use std::time::Duration;

use standfast_lab::*;

const CONNECTIONS: usize = 1000;

/// The fleet behind one listener, with connections of both families.
struct Scene {
    fleet: Fleet,
    members: Vec<Member>,
    listener: Daemon,
    flows: [Flows; 2],
    seen: [Vec<Flow>; 2],
}

/// A listener's configuration of both VIPs with these keys.
fn config(l: &Host, keys: &str) -> Spec {
    standfast(&Fleet::listener(l, keys))
}

fn targets() -> [SocketAddr; 2] {
    [false, true].map(Fleet::target)
}

impl Scene {
    /// All of the gateways are members, each of the families has its connections, and every gateway has some of them.
    fn new(lab: &Lab, gateways: u8, keys: &str) -> Self {
        let fleet = Fleet::new(lab, 1, gateways);
        let listener = fleet.listeners[0].spawn(config(&fleet.listeners[0], keys));
        let members = fleet.members();
        fleet.routed(0, &(0..fleet.gateways.len()).collect::<Vec<_>>());
        let flows = targets().map(|target| Flows::open(&fleet.client, target, CONNECTIONS));
        let seen = [flows[0].look(), flows[1].look()];
        for g in &fleet.gateways {
            for flows in &seen {
                let on = flows.iter().filter(|flow| flow.gateway == g.name).count();
                let fair = CONNECTIONS / usize::from(gateways);
                assert!((fair / 2..fair * 2).contains(&on), "{on} connections on {}", g.name);
            }
        }
        Self { fleet, members, listener, flows, seen }
    }

    /// What became of the connections on the gateways that stayed, and on this one, in both families.
    fn fates(&mut self, other: Option<usize>) -> (Fate, Fate) {
        let name = other.map_or("", |nth| &self.fleet.gateways[nth].name).to_owned();
        let (mut stayed, mut own) = (Fate::default(), Fate::default());
        for (flows, seen) in self.flows.iter().zip(&mut self.seen) {
            let now = flows.look();
            stayed = stayed + Fate::of(seen, &now, |gateway| gateway != name);
            own = own + Fate::of(seen, &now, |gateway| gateway == name);
            *seen = now;
        }
        println!("{name} stayed {stayed:?}, own {own:?}");
        (stayed, own)
    }

    /// Nothing has broken on the gateways that stayed.
    #[track_caller]
    fn nothing_broke(&mut self, what: &str, but_on: Option<usize>) -> Fate {
        let (stayed, own) = self.fates(but_on);
        assert!(stayed.of > CONNECTIONS / 2, "{what}: {stayed:?}");
        assert_eq!(stayed.broken, 0, "{what}: {stayed:?}");
        own
    }

    /// How many of so many new connections, in each family, land on a gateway.
    fn landed(&self, nth: usize, count: usize) -> usize {
        let name = &self.fleet.gateways[nth].name;
        let found = targets().map(|target| land(&self.fleet.client, target, count));
        println!("new connections: {found:?}");
        assert!(found.iter().all(|found| !found.contains_key("")), "{found:?}");
        found.iter().filter_map(|found| found.get(name)).sum()
    }

    /// Waits until new connections are kept from whoever drains.
    #[track_caller]
    fn moves(&self) {
        self.fleet.moves(0);
    }

    fn all(&self) -> Vec<usize> {
        (0..self.fleet.gateways.len()).collect()
    }

    fn others(&self, nth: usize) -> Vec<usize> {
        self.all().into_iter().filter(|&other| other != nth).collect()
    }
}

/// Connections of both families that were opened while a gateway drained, and are held open.
struct Moved {
    flows: [Flows; 2],
    seen: [Vec<Flow>; 2],
}

impl Moved {
    const COUNT: usize = 150;

    fn open(scene: &Scene, away_from: &str) -> Self {
        let flows = targets().map(|target| Flows::open(&scene.fleet.client, target, Self::COUNT));
        let seen = [flows[0].look(), flows[1].look()];
        assert!(seen.iter().flatten().all(|flow| flow.gateway != away_from), "{seen:?}");
        Self { flows, seen }
    }

    /// All of them go on, but for those on a gateway that left.
    #[track_caller]
    fn go_on(&self, what: &str, but_on: &str) {
        for (flows, seen) in self.flows.iter().zip(&self.seen) {
            let fate = Fate::of(seen, &flows.look(), |gateway| gateway != but_on);
            assert!(fate.of >= Self::COUNT / 3, "{what}: {fate:?}");
            assert_eq!(fate.broken, 0, "{what}: {fate:?}");
        }
    }
}

/// One of four gateways drains until its time is up. What was opened meanwhile goes on, whatever becomes of the others then.
fn a_drain_keeps_new_connections_away(lab: &Lab, keys: &str) {
    let resilient = !keys.contains("hashing");
    let mut scene = Scene::new(lab, 4, &[keys, "drain_timeout: 1h"].concat());
    scene.members[2].tell(Some(Told::leaving()));
    scene.moves();
    assert_eq!(scene.landed(2, 400), 0, "new connections on the drained one");
    let own = scene.nothing_broke("one drains", Some(2));
    assert!(own.of > 0);
    assert_eq!(own.broken, 0, "the drained gateway's own");
    let moved = Moved::open(&scene, "g3");
    if resilient {
        for end in [Daemon::stop, Daemon::kill] {
            end(&scene.listener);
            scene.nothing_broke("no listener", None);
            assert_eq!(scene.landed(2, 100), 0, "without a listener");
            scene.listener.start_again();
            until("every member is back", secs(20), || scene.members.iter().all(Member::up));
            settle();
            scene.fleet.routed(0, &scene.all());
            assert_eq!(scene.landed(2, 100), 0, "after a restart");
            scene.nothing_broke("a new listener", None);
            moved.go_on("a new listener", "");
        }
    }
    // Its time is up.
    let (l, program) = (&scene.fleet.listeners[0], standfast_bin().expect("a program"));
    l.run(&format!("{} drain {} --timeout 1s --api {API}", program.display(), scene.fleet.gateways[2].v4));
    scene.fleet.routed(0, &scene.others(2));
    settle();
    if !keys.contains("plain") {
        scene.nothing_broke("it is drained", Some(2));
    }
    moved.go_on("it is drained", "");
    assert_eq!(scene.landed(2, 50), 0);
    // Another one goes, comes back, and drains.
    scene.members[0].tell(None);
    scene.fleet.routed(0, &scene.others(2).into_iter().filter(|&g| g != 0).collect::<Vec<_>>());
    settle();
    moved.go_on("another one withdraws", "g1");
    scene.members[0].tell(Some(Told::default()));
    scene.fleet.routed(0, &scene.others(2));
    settle();
    moved.go_on("it joins", "g1");
    scene.members[1].tell(Some(Told::leaving()));
    scene.moves();
    assert_eq!(scene.landed(1, 200), 0, "new connections on the next one that drains");
    moved.go_on("the next one drains", "g1");
}

#[test]
fn a_drain_keeps_new_connections_away_with_resilient_hashing() {
    let Some(lab) = lab!("standfast") else { return };
    a_drain_keeps_new_connections_away(&lab, "");
}

#[test]
fn a_drain_keeps_new_connections_away_with_consistent_hashing() {
    let Some(lab) = lab!("standfast") else { return };
    a_drain_keeps_new_connections_away(&lab, "hashing: consistent, ");
}

#[test]
fn a_drain_keeps_new_connections_away_with_plain_hashing() {
    let Some(lab) = lab!("standfast") else { return };
    a_drain_keeps_new_connections_away(&lab, "hashing: plain, ");
}

#[test]
fn a_drain_by_command_keeps_new_connections_to_a_public_address_away() {
    let Some(lab) = lab!("standfast") else { return };
    let public = ["203.0.113.80", "2001:db8:80::80"];
    let fleet = Fleet::new(&lab, 1, 4);
    let l = &fleet.listeners[0];
    l.spawn(public_at(l, "", public));
    let _members = fleet.members();
    fleet.routed(0, &[0, 1, 2, 3]);
    let targets = public.map(|address| SocketAddr::new(address.parse().expect("an address"), Fleet::PORT));
    let flows = targets.map(|target| Flows::open(&fleet.client, target, 200));
    let before = flows.each_ref().map(Flows::look);
    let standfast = |words: &str| {
        let program = standfast_bin().expect("a program");
        l.run(&format!("{} {words} {} --api {API}", program.display(), fleet.gateways[2].v4))
    };
    standfast("drain");
    fleet.moves(0);
    for target in targets {
        let found = land(&fleet.client, target, 200);
        assert!(!found.contains_key("g3") && !found.contains_key(""), "{found:?}");
    }
    let moved = targets.map(|target| Flows::open(&fleet.client, target, 100));
    let then = moved.each_ref().map(Flows::look);
    standfast("undrain");
    settle();
    for (flows, before) in flows.iter().chain(&moved).zip(before.iter().chain(&then)) {
        let fate = Fate::of(before, &flows.look(), |_| true);
        assert_eq!((fate.of, fate.broken), (before.len(), 0));
    }
}

/// Time for what was routed to be used.
fn settle() {
    std::thread::sleep(Duration::from_millis(300));
}

fn a_change_of_members_breaks_nothing_else(lab: &Lab, gateways: u8) {
    let mut scene = Scene::new(lab, gateways, "");
    // One withdraws.
    scene.members[0].tell(None);
    scene.fleet.routed(0, &scene.others(0));
    settle();
    scene.nothing_broke("one withdraws", Some(0));
    assert_eq!(scene.landed(0, 100), 0);
    // And joins.
    scene.members[0].tell(Some(Told::default()));
    scene.fleet.routed(0, &scene.all());
    settle();
    scene.nothing_broke("it joins", None);
    until("new connections reach it", secs(20), || scene.landed(0, 50) > 0);
    scene.nothing_broke("it is used", None);
    // Another one drains.
    scene.members[2].tell(Some(Told::leaving()));
    scene.moves();
    let own = scene.nothing_broke("another one drains", Some(2));
    assert!(own.of > 0);
    assert_eq!(own.broken, 0, "the drained gateway's own");
    assert_eq!(scene.landed(2, 400), 0, "new connections on the drained one");
    let own = scene.nothing_broke("a drain goes on", Some(2));
    assert_eq!(own.broken, 0, "the drained gateway's own");
    // It changes its mind.
    scene.members[2].tell(Some(Told::default()));
    settle();
    scene.nothing_broke("a drain is called off", None);
}

#[test]
fn a_change_of_4_gateways_breaks_nothing_on_those_that_stay() {
    let Some(lab) = lab!("standfast") else { return };
    a_change_of_members_breaks_nothing_else(&lab, 4);
}

#[test]
fn a_change_of_8_gateways_breaks_nothing_on_those_that_stay() {
    let Some(lab) = lab!("standfast") else { return };
    a_change_of_members_breaks_nothing_else(&lab, 8);
}

#[test]
fn a_restart_of_the_listener_breaks_nothing() {
    let Some(lab) = lab!("standfast") else { return };
    let mut scene = Scene::new(&lab, 4, "");
    for end in [Daemon::stop, Daemon::kill] {
        end(&scene.listener);
        scene.nothing_broke("no listener", None);
        scene.listener.start_again();
        until("every member is back", secs(20), || scene.members.iter().all(Member::up));
        settle();
        scene.fleet.routed(0, &scene.all());
        scene.nothing_broke("a new listener", None);
        // It has what it found in hand.
        scene.members[0].tell(None);
        scene.fleet.routed(0, &scene.others(0));
        settle();
        scene.nothing_broke("one withdraws from the new listener", Some(0));
        scene.members[0].tell(Some(Told::default()));
        scene.fleet.routed(0, &scene.all());
        scene.nothing_broke("and joins", None);
    }
}

/// A listener's configuration with these keys at both VIPs, and these public addresses.
fn public_at(l: &Host, keys: &str, addresses: [&str; 2]) -> Spec {
    let keys = format!("{keys}public: {{ address: \"PUBLIC\", ports: [7000] }}");
    let text = Fleet::listener(l, &keys);
    standfast(&addresses.iter().fold(text, |text, address| text.replacen("PUBLIC", address, 1)))
}

/// The next hops to which a listener's kernel sends each of these source ports of the client, in both families.
fn mapped(fleet: &Fleet, l: &Host, ports: std::ops::Range<u16>) -> [Vec<String>; 2] {
    let c = &fleet.client;
    let ask = |family: &str, from: String, to: &str| {
        let port = Fleet::PORT;
        let line =
            |sport| format!("route get {to} from {from} iif out ipproto tcp sport {sport} dport {port}\n");
        let file = std::env::temp_dir().join(format!("{}-asked", l.name));
        std::fs::write(&file, ports.clone().map(line).collect::<String>()).expect("a file");
        let said = l.run(&format!("ip {family} -o -batch {file}; rm {file}", file = file.display()));
        let via =
            |line: &str| line.split_whitespace().skip_while(|&word| word != "via").nth(1).map(str::to_owned);
        said.lines().filter(|line| line.contains(to)).map(|line| via(line).expect("a next hop")).collect()
    };
    [ask("-4", c.v4.to_string(), &Fleet::VIP.to_string()), ask("-6", c.v6.to_string(), Fleet::VIP6)]
}

/// Two listeners of the same four gateways, that learn of them in opposite orders and hash with the same seed.
fn two_listeners(lab: &Lab, configure: impl Fn(&Host) -> Spec) -> (Fleet, [Vec<Member>; 2]) {
    let fleet = Fleet::new(lab, 2, 4);
    for l in &fleet.listeners {
        for family in ["ipv4", "ipv6"] {
            // IPv6 has no seed of its own where it follows that of IPv4.
            l.attempt(&format!("sysctl -qw net.{family}.fib_multipath_hash_seed=424242"));
        }
        // A listener that sees one direction of a flow late, or not at all, must not take its segments for invalid.
        l.attempt("sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=1");
        l.spawn(configure(l));
    }
    let start = |listener: usize, order: [usize; 4]| {
        let mut members: Vec<_> = (0..4).map(|_| None).collect();
        for nth in order {
            let (g, l) = (&fleet.gateways[nth], fleet.listeners[listener].v4);
            let member = Member::start(g, l, Some(Told::default()));
            until("it is up", secs(10), || member.up());
            members[nth] = Some(member);
        }
        members.into_iter().flatten().collect::<Vec<_>>()
    };
    let members = [start(0, [0, 1, 2, 3]), start(1, [3, 2, 1, 0])];
    (0..2).for_each(|listener| fleet.routed(listener, &[0, 1, 2, 3]));
    (fleet, members)
}

#[test]
fn consistent_listeners_map_alike_and_a_move_between_them_breaks_nothing() {
    let Some(lab) = lab!("standfast") else { return };
    let (fleet, members) = two_listeners(&lab, |l| config(l, "hashing: consistent"));
    let of = |listener: usize| mapped(&fleet, &fleet.listeners[listener], 20_000..30_000);
    let first = of(0);
    assert!(first.iter().all(|family| family.len() == 10_000));
    assert_eq!(first, of(1));
    for (nth, g) in fleet.gateways.iter().enumerate() {
        for (family, address) in first.iter().zip([g.v4.to_string(), g.v6.to_string()]) {
            let share = family.iter().filter(|&via| *via == address).count();
            println!("{share} of 10,000 at g{}", nth + 1);
            assert!((1250..5000).contains(&share), "{share} of 10,000 at {address}");
        }
    }
    // What one of them had, the others take, and no more moves.
    members.iter().for_each(|members| members[1].tell(None));
    (0..2).for_each(|listener| fleet.routed(listener, &[0, 2, 3]));
    let without = of(0);
    assert_eq!(without, of(1));
    let left = [fleet.gateways[1].v4.to_string(), fleet.gateways[1].v6.to_string()];
    for (before, after) in first.iter().flatten().zip(without.iter().flatten()) {
        assert!(before == after || left.contains(before), "moved from {before} to {after}");
    }
    members.iter().for_each(|members| members[1].tell(Some(Told::default())));
    (0..2).for_each(|listener| fleet.routed(listener, &[0, 1, 2, 3]));
    assert_eq!(of(0), first);
    a_move_breaks_nothing(&fleet, targets());
}

/// The connections of one listener go on through the other, and back.
fn a_move_breaks_nothing(fleet: &Fleet, targets: [SocketAddr; 2]) {
    let flows = targets.map(|target| Flows::open(&fleet.client, target, 400));
    let before = flows.each_ref().map(Flows::look);
    for listener in [1, 0] {
        fleet.via(listener);
        for (flows, before) in flows.iter().zip(&before) {
            let now = flows.look();
            let fate = Fate::of(before, &now, |_| true);
            let how: Vec<_> = now.iter().filter_map(|flow| flow.broken).collect();
            assert_eq!((fate.of, fate.broken), (400, 0), "through listener {listener}: {how:?}");
        }
    }
}

#[test]
fn a_move_between_consistent_listeners_that_translate_breaks_nothing() {
    let Some(lab) = lab!("standfast") else { return };
    let public = ["203.0.113.80", "2001:db8:80::80"];
    let (fleet, _members) = two_listeners(&lab, |l| public_at(l, "hashing: consistent, ", public));
    let targets = public.map(|address| SocketAddr::new(address.parse().expect("an address"), Fleet::PORT));
    a_move_breaks_nothing(&fleet, targets);
}

#[test]
fn shares_follow_the_link_bandwidth_and_a_change_of_them_breaks_nothing() {
    let Some(lab) = lab!("standfast") else { return };
    let fleet = Fleet::new(&lab, 1, 2);
    let l = &fleet.listeners[0];
    l.spawn(config(l, "weights: link_bandwidth"));
    let member = |nth: usize, bytes| Member::start(&fleet.gateways[nth], l.v4, Some(Told::bandwidth(bytes)));
    let members = [member(0, 125e6), member(1, 375e6)];
    fleet.routed(0, &[0, 1]);
    settle();
    for target in targets() {
        let found = land(&fleet.client, target, 4000);
        let share = 100.0 * found["g1"] as f64 / 4000.0;
        println!("{target}: {found:?}: {share:.1} %");
        assert!((22.0..=28.0).contains(&share), "{found:?}");
        assert!(!found.contains_key(""), "{found:?}");
    }
    let flows = targets().map(|target| Flows::open(&fleet.client, target, CONNECTIONS));
    let before = flows.each_ref().map(Flows::look);
    for (first, second) in [(375e6, 125e6), (1e9, 1e6), (125e6, 125e6)] {
        members[0].tell(Some(Told::bandwidth(first)));
        members[1].tell(Some(Told::bandwidth(second)));
        settle();
        for (flows, before) in flows.iter().zip(&before) {
            let fate = Fate::of(before, &flows.look(), |_| true);
            assert_eq!((fate.of, fate.broken), (CONNECTIONS, 0), "{first} to {second}");
        }
    }
}
