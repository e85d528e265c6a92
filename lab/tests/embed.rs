//! Services that announce themselves with the library: its examples behind BIRD and behind standfast's listener, under load.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
/// The name of a test, for a skip.
fn here(name: &str) -> String {
    format!("embed::{name}")
}

/// A program of this workspace beside the daemon under test, if it was built: `examples/gateway`, `loaded`.
fn built(test: &str, name: &str) -> Option<PathBuf> {
    let found =
        standfast_bin().ok().and_then(|bin| Some(bin.parent()?.join(name))).filter(|path| path.is_file());
    if found.is_none() {
        skip(&here(test), &format!("needs {name}: cargo build --workspace --all-targets"));
    }
    found
}

/// Two gateways or more behind one router, each serving a page of its own.
struct Scene {
    fleet: Fleet,
    pages: Vec<PathBuf>,
    program: PathBuf,
}

impl Scene {
    fn new(lab: &Lab, program: &Path, gateways: u8) -> Self {
        let fleet = Fleet::new(lab, 1, gateways);
        let page = |g: &Host| {
            let page = lab.file(&format!("{}.html", g.name));
            fs::write(&page, format!("{}\n", g.name)).expect("a page");
            page
        };
        let pages = fleet.gateways.iter().map(page).collect();
        Self { fleet, pages, program: program.to_owned() }
    }

    fn router(&self) -> &Host {
        &self.fleet.listeners[0]
    }

    fn start(&self, nth: usize) -> Arc<Process> {
        let router = self.router().v4.to_string();
        let (program, page) =
            (self.program.to_str().expect("a path"), self.pages[nth].to_str().expect("a path"));
        let env = [("ROUTER", &*router), ("VIP", VIP), ("PAGE", page)];
        self.fleet.gateways[nth].process("service", &[program], &env)
    }

    /// Waits until exactly these gateways are routed to.
    #[track_caller]
    fn routed(&self, gateways: &[usize]) -> Duration {
        let hops: BTreeSet<IpAddr> = gateways.iter().map(|&g| self.fleet.gateways[g].v4.into()).collect();
        until(&format!("routed to {gateways:?}"), secs(30), || self.router().next_hops(VIP) == hops)
    }

    /// As many requests as the service takes, from the client for so many seconds, over connections that stay open.
    fn load(&self, name: &str, seconds: u32, more: &[&str]) -> Load {
        let duration = format!("{seconds}s");
        let mut command = vec!["wrk", "-t", "1", "-c", "20", "-d", &duration, "--timeout", "5s", "--latency"];
        command.extend(more);
        command.push("http://198.51.100.10/");
        Load(self.fleet.client.process(name, &command, &[]))
    }

    /// A hundred requests a second, one after the other, each over a connection of its own.
    fn steady_load(&self, name: &str, seconds: u32) -> Load {
        let duration = format!("{seconds}s");
        let command = ["hey", "-c", "1", "-q", "100", "-z", &duration, "-t", "5", "-disable-keepalive"];
        let command = [&command[..], &["http://198.51.100.10/"]].concat();
        Load(self.fleet.client.process(name, &command, &[]))
    }
}

/// wrk or hey under way.
struct Load(Arc<Process>);

/// What it counted.
#[derive(Debug, Clone, Copy)]
struct Counted {
    requests: u64,
    /// Connections refused, broken or silent, and answers that were not 2xx or 3xx.
    failed: u64,
}

impl Counted {
    /// Of wrk: `350 requests in 9.00s, …`, `Socket errors: connect 0, read 1, …` and `Non-2xx or 3xx responses: 2`.
    fn by_wrk(log: &str) -> Option<Self> {
        let number = |text: &str| text.trim().split(' ').next().and_then(|n| n.parse::<u64>().ok());
        let requests = log.lines().find(|line| line.contains(" requests in ")).and_then(number)?;
        let errors = log.lines().find_map(|line| line.trim().strip_prefix("Socket errors:"));
        let errors: u64 = errors
            .into_iter()
            .flat_map(|line| line.split(','))
            .filter_map(|part| part.trim().rsplit(' ').next()?.parse::<u64>().ok())
            .sum();
        let refused = log.lines().find_map(|line| line.trim().strip_prefix("Non-2xx or 3xx responses:"));
        Some(Self { requests, failed: errors + refused.and_then(number).unwrap_or(0) })
    }

    /// Of hey: `[200] 350 responses` for each status, and `[1] Get …: connection reset by peer` for each error.
    fn by_hey(log: &str) -> Option<Self> {
        let (_, told) =
            log.split_once("Status code distribution:").or(log.split_once("Error distribution:"))?;
        let mut counted = Self { requests: 0, failed: 0 };
        for line in told.lines() {
            let Some((number, words)) = line.trim().strip_prefix('[').and_then(|l| l.split_once(']')) else {
                continue;
            };
            let number: u64 = number.parse().ok()?;
            let (many, failed) = match words.trim().strip_suffix(" responses") {
                Some(many) => (many.parse().ok()?, !(200..400).contains(&number)),
                None => (number, true),
            };
            counted.requests += many;
            counted.failed += if failed { many } else { 0 };
        }
        Some(counted)
    }
}

impl Load {
    #[track_caller]
    fn end(self, what: &str) -> Counted {
        assert_eq!(self.0.wait(secs(60)), 0, "{}", self.0.log());
        let log = self.0.log();
        let counted = Counted::by_wrk(&log).or_else(|| Counted::by_hey(&log));
        let counted = counted.unwrap_or_else(|| panic!("no count in {log}"));
        println!("{what}: {} requests, {} failed", counted.requests, counted.failed);
        assert!(counted.requests > 100, "{what}: next to no load: {log}");
        counted
    }
}

#[test]
fn what_both_tools_count_is_understood() {
    let wrk = "  350 requests in 9.00s, 1MB read\n  Socket errors: connect 1, read 2, write 0, timeout 3\n  \
               Non-2xx or 3xx responses: 4\nRequests/sec: 38\n";
    let hey = "Requests/sec: 99\n\nStatus code distribution:\n  [200]\t350 responses\n  [503]\t4 responses\n\n\
               Error distribution:\n  [6]\tGet \"http://198.51.100.10/\": connection reset by peer\n";
    let of = |counted: Option<Counted>| counted.map(|c| (c.requests, c.failed));
    assert_eq!(of(Counted::by_wrk(wrk)), Some((350, 10)));
    assert_eq!(of(Counted::by_hey(hey)), Some((360, 10)));
    assert_eq!((of(Counted::by_wrk(hey)), of(Counted::by_hey(wrk))), (None, None));
}

/// Tells when the kernel's routes and groups of a host change.
struct Changes(Arc<Process>);

impl Changes {
    fn watch(host: &Host) -> Self {
        let process =
            host.process("monitor", &["ip", "-ts", "monitor", "route", "nexthop"], &[("TZ", "UTC")]);
        // It is told of what happens after it has opened its socket, which takes a while on a busy machine.
        until("changes are told", secs(20), || {
            host.run("ip route replace blackhole 203.0.113.250/32; ip route del blackhole 203.0.113.250/32");
            !process.log().is_empty()
        });
        std::thread::sleep(Duration::from_millis(300));
        Self(process)
    }

    /// How long after `from`, a time of day, something changed first.
    fn first_after(&self, from: Duration) -> Duration {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        let time = |line: &str| {
            let clock = line.strip_prefix('[')?.split(']').next()?.split('T').nth(1)?;
            let mut parts = clock.split(':').map(|part| part.parse::<f64>().ok());
            let (h, m, s) = (parts.next()??, parts.next()??, parts.next()??);
            Some(Duration::from_secs_f64(h * 3600.0 + m * 60.0 + s))
        };
        let (found, _) = until_some("a change of the routes is told", secs(5), || {
            let log = self.0.log();
            // Of a day that began meanwhile.
            let since =
                |at: Duration| if at + DAY / 2 < from { at + DAY - from } else { at.saturating_sub(from) };
            log.lines().filter_map(time).map(since).find(|since| !since.is_zero())
        });
        found
    }
}

/// The time of day, UTC.
fn time_of_day() -> Duration {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    Duration::new(now.as_secs() % (24 * 3600), now.subsec_nanos())
}

/// What a router does to the connections of those who stay when the set of gateways changes.
#[derive(Clone, Copy, PartialEq)]
enum Router {
    /// Nothing: no request may fail, however many are under way.
    Keeps,
    /// It sends some of them elsewhere, so that the one request that is under way may fail, and no other one.
    Rehashes,
}

impl Router {
    fn load(self, scene: &Scene, name: &str, seconds: u32) -> Load {
        match self {
            Self::Keeps => scene.load(name, seconds, &[]),
            Self::Rehashes => scene.steady_load(name, seconds),
        }
    }

    /// How many requests may fail for a change of the gateways.
    const fn may_fail(self) -> u64 {
        match self {
            Self::Keeps => 0,
            Self::Rehashes => 1,
        }
    }
}

/// Starts, drains, turns sick and dies under load. Two others serve all the time, and take what it leaves.
fn lives_and_leaves(scene: &Scene, router: Router) {
    let others = [scene.start(0), scene.start(1)];
    let took = scene.routed(&[0, 1]);
    println!("announced {took:.1?} after its start");
    assert!(took > secs(3), "it was announced before it had served five seconds: {took:?}");

    let load = router.load(scene, "start", 9);
    let one = scene.start(2);
    scene.routed(&[0, 1, 2]);
    let counted = load.end("another one starts");
    assert!(counted.failed <= router.may_fail(), "{counted:?}");

    let load = router.load(scene, "drain", 6);
    std::thread::sleep(secs(1));
    one.signal(Signal::SIGTERM);
    scene.routed(&[0, 1]);
    assert_eq!(one.wait(secs(35)), 0, "{}", one.log());
    let counted = load.end("one drains on SIGTERM");
    assert!(counted.failed <= router.may_fail(), "{counted:?}");
    let said = one.log();
    assert!(said.contains("announced -> draining"), "{said}");
    assert!(said.contains(", no connection left"), "{said}");

    // Sickness is a failure of the service: what it costs is printed, and ends when the route is gone.
    let one = scene.start(2);
    scene.routed(&[0, 1, 2]);
    if scene.program.ends_with("gateway") {
        let load = router.load(scene, "sick", 5);
        std::thread::sleep(secs(1));
        let changes = Changes::watch(scene.router());
        let at = time_of_day();
        fs::remove_file(&scene.pages[2]).expect("a page");
        let took = changes.first_after(at);
        println!("sick: the router knows {took:.1?} after the page was gone");
        assert!(took < secs(2), "{took:?}");
        scene.routed(&[0, 1]);
        load.end("one turns sick");
        fs::write(&scene.pages[2], "g3\n").expect("a page");
        let took = scene.routed(&[0, 1, 2]);
        println!("well again: routed {took:.1?} later");
        assert!(took > secs(3), "back without five good samples: {took:?}");
    }

    let changes = Changes::watch(scene.router());
    let at = time_of_day();
    one.signal(Signal::SIGKILL);
    let took = changes.first_after(at);
    println!("killed: the router's route changed {:.2} ms later", took.as_secs_f64() * 1000.0);
    assert!(took < secs(1), "{took:?}");
    scene.routed(&[0, 1]);
    assert!(others.iter().all(|other| other.alive()));
}

fn behind_the_listener(name: &str, lab: &Lab) {
    let Some(program) = built(name, "examples/gateway") else { return };
    let scene = Scene::new(lab, &program, 3);
    scene.router().spawn(standfast(&Fleet::listener(scene.router(), "")));
    lives_and_leaves(&scene, Router::Keeps);
}

#[test]
fn a_gateway_lives_and_leaves_in_order_behind_our_listener() {
    let Some(lab) = lab!("standfast", "wrk") else { return };
    behind_the_listener("a_gateway_lives_and_leaves_in_order_behind_our_listener", &lab);
}

#[test]
fn a_gateway_lives_and_leaves_in_order_behind_bird() {
    let Some(lab) = lab!("standfast", "bird", "hey") else { return };
    let Some(program) = built("a_gateway_lives_and_leaves_in_order_behind_bird", "examples/gateway") else {
        return;
    };
    let scene = Scene::new(&lab, &program, 3);
    scene.router().spawn(scene.fleet.bird());
    lives_and_leaves(&scene, Router::Rehashes);
}

#[test]
fn a_service_on_axum_lives_and_leaves_in_order() {
    let Some(lab) = lab!("standfast", "wrk") else { return };
    let Some(program) = built("a_service_on_axum_lives_and_leaves_in_order", "examples/axum") else { return };
    let scene = Scene::new(&lab, &program, 3);
    scene.router().spawn(standfast(&Fleet::listener(scene.router(), "")));
    lives_and_leaves(&scene, Router::Keeps);
}

#[test]
fn a_wedged_gateway_and_a_frozen_one_leave() {
    let Some(lab) = lab!("standfast", "wrk") else { return };
    let Some(program) = built("a_wedged_gateway_and_a_frozen_one_leave", "examples/gateway") else { return };
    let scene = Scene::new(&lab, &program, 2);
    scene.router().spawn(standfast(&Fleet::listener(scene.router(), "")));
    let (_first, second) = (scene.start(0), scene.start(1));
    scene.routed(&[0, 1]);

    // Whoever reads the page waits for a writer that never comes: its closure for one.
    let changes = Changes::watch(scene.router());
    let page = scene.pages[1].to_str().expect("a path");
    let at = time_of_day();
    scene.router().run(&format!("mkfifo {page}.fifo && mv -f {page}.fifo {page}"));
    let took = changes.first_after(at);
    // The last answer was up to a second ago.
    println!("wedged: the route changed {took:.2?} later; the lease is 3 s");
    assert!(took > secs(1) && took < secs(5), "{took:?}");
    scene.routed(&[0]);
    let said = second.log();
    assert!(said.contains("no report for 3.0 s"), "{said}");
    // A writer comes, the closure goes on, and what it says counts again.
    fs::rename(&scene.pages[1], lab.file("fifo")).expect("a name");
    fs::write(&scene.pages[1], "g2\n").expect("a page");
    fs::write(lab.file("fifo"), "late\n").expect("a reader");
    scene.routed(&[0, 1]);

    // A process that does nothing at all cannot say so: the other end's hold time, of 9 s, is what is left.
    second.signal(Signal::SIGSTOP);
    let took = scene.routed(&[0]);
    println!("frozen: the route changed {took:.2?} later; the hold time is 9 s");
    assert!(took < secs(11), "{took:?}");
    second.signal(Signal::SIGCONT);
    let took = scene.routed(&[0, 1]);
    println!("thawed: routed {took:.2?} later");
}

#[test]
fn a_slow_gateway_gets_a_smaller_share_and_breaks_nothing() {
    let Some(lab) = lab!("standfast", "wrk") else { return };
    let Some(program) = built("a_slow_gateway_gets_a_smaller_share_and_breaks_nothing", "loaded") else {
        return;
    };
    let scene = Scene::new(&lab, &program, 3);
    let l = scene.router();
    l.spawn(standfast(&Fleet::listener(l, "weights: link_bandwidth, idle_timer: 2s")));
    let delay = |nth: usize, millis: u32| {
        fs::write(&scene.pages[nth], millis.to_string()).expect("a delay");
    };
    let router = l.v4.to_string();
    let services: Vec<_> = (0..3)
        .map(|nth| {
            delay(nth, 10);
            let page = scene.pages[nth].to_str().expect("a path");
            scene.fleet.gateways[nth].process(
                "loaded",
                &[program.to_str().expect("a path"), &router, VIP, page],
                &[],
            )
        })
        .collect();
    scene.routed(&[0, 1, 2]);
    let share = |nth: usize| {
        let (_, body) = l.get(API, "/status").expect("an answer");
        let status: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        let address = scene.fleet.gateways[nth].v4.to_string();
        let members = status["listener"]["members"].as_array().cloned().unwrap_or_default();
        let member = members.iter().find(|member| member["address"] == address.as_str());
        member
            .and_then(|member| member["vips"][0]["share"].as_f64())
            .unwrap_or_else(|| panic!("no share in {status}"))
    };
    until("all have the same share", secs(10), || (0..3).all(|nth| (share(nth) - 0.33).abs() < 0.05));
    let flows = Flows::open(&scene.fleet.client, Fleet::target(false), 300);
    let before = flows.look();
    let load = scene.load("load", 30, &["-H", "Connection: close"]);
    std::thread::sleep(secs(2));
    delay(0, 100);
    let took = until("the slow one has a smaller share", secs(25), || share(0) < 0.15 && share(1) > 0.4);
    println!(
        "the slow one has {:.0} % {took:.1?} later, the others {:.0} and {:.0} %",
        share(0) * 100.0,
        share(1) * 100.0,
        share(2) * 100.0
    );
    let counted = load.end("one of three is slow");
    assert_eq!(counted.failed, 0, "{counted:?}");
    let broken = flows
        .look()
        .iter()
        .zip(&before)
        .filter(|(now, was)| was.broken.is_none() && now.broken.is_some())
        .count();
    assert_eq!(broken, 0, "of {} connections", before.len());
    let load = scene.load("again", 15, &["-H", "Connection: close"]);
    delay(0, 10);
    let took = until("it has its share again", secs(40), || share(0) > 0.3);
    println!("it has its share again {took:.1?} later");
    load.end("it is fast again");
    let changes = services[0].log().lines().filter(|line| line.starts_with("vip web: share:")).count();
    println!("{changes} changes of its share were told");
    assert!((2..=20).contains(&changes), "{}", services[0].log());
}
