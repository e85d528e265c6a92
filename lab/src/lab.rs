//! A lab: one private network, its hosts, and the promise that nothing of it outlives it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::capture::Capture;
use crate::daemons::standfast_bin;
use crate::host::{Host, Process};

/// One private network: a switch, and hosts on it.
pub struct Lab {
    id: String,
    switch: String,
    registry: Arc<Registry>,
    hosts: Mutex<Vec<Host>>,
    _turn: File,
}

/// What must end with the lab.
pub(crate) struct Registry {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    pub(crate) processes: Mutex<Vec<Arc<Process>>>,
    pub(crate) captures: Mutex<Vec<Capture>>,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Lab {
    /// Makes the switch. With `alone`, waits until no other lab of this machine is open, and keeps others waiting.
    pub fn new(name: &str, alone: bool) -> Self {
        let turn = turn(alone);
        sweep();
        let id = format!("sfl-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(&id);
        fs::create_dir_all(&dir).expect("the lab's directory");
        let switch = format!("{id}-sw");
        ip(&["netns", "add", &switch]);
        batch(
            &switch,
            "link set lo up\nlink add br0 type bridge stp_state 0 mcast_snooping 0\nlink set br0 up\n",
        );
        let registry = Arc::new(Registry {
            name: name.to_owned(),
            dir,
            processes: Mutex::default(),
            captures: Mutex::default(),
        });
        Self { id, switch, registry, hosts: Mutex::default(), _turn: turn }
    }

    /// What the names of its namespaces begin with.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A path for a file of the test's own, removed with the lab.
    pub fn file(&self, name: &str) -> PathBuf {
        self.registry.dir.join(name)
    }

    /// A host on the switch: `eth0` with 192.0.2.`number`/24 and 2001:db8::`number`/64, the number read as decimal digits in both.
    pub fn host(&self, name: &str, number: u8) -> Host {
        let v4 = Ipv4Addr::new(192, 0, 2, number);
        let v6: Ipv6Addr = format!("2001:db8::{number}").parse().expect("an IPv6 address");
        let host = self.bare(name, v4, v6);
        self.plug(&host);
        host
    }

    /// Gives a host its `eth0` on the switch, with its addresses.
    fn plug(&self, host: &Host) {
        let (name, ns, v4, v6) = (&host.name, &host.ns, host.v4, host.v6);
        batch(
            &self.switch,
            &format!(
                "link add p-{name} type veth peer name eth0 netns {ns}\n\
                 link set p-{name} master br0\nlink set p-{name} up\n"
            ),
        );
        batch(ns, &format!("addr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\nlink set eth0 up\n"));
    }

    /// Takes the host's `eth0` away and gives it another one, with another index.
    pub fn replace_interface(&self, host: &Host) {
        batch(&self.switch, &format!("link del p-{}\n", host.name));
        self.plug(host);
    }

    /// A host without any link but `lo`; `v4` and `v6` are the addresses that it will be known by.
    pub fn bare(&self, name: &str, v4: Ipv4Addr, v6: Ipv6Addr) -> Host {
        let ns = format!("{}-{name}", self.id);
        ip(&["netns", "add", &ns]);
        let host = Host::new(name, ns, v4, v6, Arc::clone(&self.registry));
        self.hosts.lock().unwrap().push(host.clone());
        for key in ["all", "default"] {
            host.sysctl(&format!("net/ipv6/conf/{key}/accept_dad"), "0");
        }
        batch(&host.ns, "link set lo up\n");
        host
    }

    /// A cable between two hosts, each end given as (host, interface name, address with length).
    pub fn link(&self, a: (&Host, &str, &str), b: (&Host, &str, &str)) {
        batch(&a.0.ns, &format!("link add {} type veth peer name {} netns {}\n", a.1, b.1, b.0.ns));
        for (host, interface, address) in [a, b] {
            batch(&host.ns, &format!("addr add {address} dev {interface}\nlink set {interface} up\n"));
        }
    }

    /// Pulls the host's cable: carrier goes at both ends.
    pub fn cut(&self, host: &Host) {
        batch(&self.switch, &format!("link set p-{} down\n", host.name));
    }

    /// Plugs it in again.
    pub fn mend(&self, host: &Host) {
        batch(&self.switch, &format!("link set p-{} up\n", host.name));
    }

    /// Loses this share of the packets that reach `host`, or none with 0.
    pub fn loss(&self, host: &Host, percent: u8) {
        host.run("nft delete table inet loss 2>/dev/null; true");
        let share = match percent {
            0 => return,
            1..100 => format!("numgen random mod 100 < {percent} "),
            _ => String::new(),
        };
        host.run(&format!(
            "nft 'table inet loss {{ chain losses {{ type filter hook input priority 0; iif != lo {share}drop; }}; }}'"
        ));
    }

    fn report(&self) {
        eprintln!("\n======== lab {} failed; what its hosts knew ========", self.registry.name);
        for host in self.hosts.lock().unwrap().iter() {
            for command in ["ip -brief address", "ip route", "ip -6 route", "nft list ruleset", "ss -tanp"] {
                eprintln!("-------- {}: {command}\n{}", host.name, host.attempt(command));
            }
        }
        for process in self.registry.processes.lock().unwrap().iter() {
            eprintln!("-------- log of {}\n{}", process.name, tail(&process.log, 60));
        }
        for capture in self.registry.captures.lock().unwrap().iter() {
            eprintln!("-------- last events on {}", capture.place());
            let events = capture.events();
            for event in events.iter().skip(events.len().saturating_sub(30)) {
                eprintln!("{event}");
            }
        }
        eprintln!("======== end of lab {} ========\n", self.registry.name);
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A report that fails must not turn a panic into an abort.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.report()));
        }
        if let Ok(mut processes) = self.registry.processes.lock() {
            for process in processes.drain(..).rev() {
                process.kill();
            }
        }
        if let Ok(hosts) = self.hosts.lock() {
            for host in hosts.iter() {
                remove(&host.ns);
            }
        }
        remove(&self.switch);
        if std::env::var_os("LAB_KEEP").is_none() {
            let _ = fs::remove_dir_all(&self.registry.dir);
        }
    }
}

/// Waits, polling, until `check` holds; panics with `what` after `deadline`. Gives the time that it took.
#[track_caller]
pub fn until(what: &str, deadline: Duration, mut check: impl FnMut() -> bool) -> Duration {
    until_some(what, deadline, || check().then_some(())).1
}

/// Waits, polling, until `check` gives something; panics with `what` after `deadline`. Gives it and the time that it took.
#[track_caller]
pub fn until_some<T>(what: &str, deadline: Duration, mut check: impl FnMut() -> Option<T>) -> (T, Duration) {
    let start = Instant::now();
    loop {
        if let Some(found) = check() {
            return (found, start.elapsed());
        }
        assert!(start.elapsed() < deadline, "not within {deadline:?}: {what}");
        std::thread::sleep(POLL);
    }
}

/// Polls for all of `duration` and panics with `what` as soon as `check` does not hold.
#[track_caller]
pub fn while_holds(what: &str, duration: Duration, mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while start.elapsed() < duration {
        assert!(check(), "ended after {:?}: {what}", start.elapsed());
        std::thread::sleep(POLL);
    }
}

/// So many seconds.
pub fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The first of `needs` that this machine lacks, in words.
pub fn missing(needs: &[&str]) -> Option<String> {
    needs.iter().find_map(|need| match *need {
        "root" => (!nix_root()).then(|| "needs root".to_owned()),
        "standfast" => standfast_bin().err(),
        "frr" => missing(&["/usr/lib/frr/zebra", "/usr/lib/frr/bgpd", "vtysh"]),
        "bfdd" => missing(&["/usr/lib/frr/bfdd"]),
        "gobgp" => missing(&["gobgpd"]).or_else(|| (!on_path("gobgp")).then(|| "needs gobgp".to_owned())),
        path if path.starts_with('/') => (!Path::new(path).exists()).then(|| format!("needs {path}")),
        name => (!on_path(name)).then(|| format!("needs {name}")),
    })
}

/// Says that a test is skipped, and records it in the file that `LAB_SKIPS` names.
pub fn skip(test: &str, reason: &str) {
    // Not eprintln: of a test that passes, the test harness would keep it to itself.
    let _ = writeln!(std::io::stderr(), "SKIP {test}: {reason}");
    if let Some(path) = std::env::var_os("LAB_SKIPS") {
        let mut file = OpenOptions::new().create(true).append(true).open(&path).expect("the file of skips");
        writeln!(file, "{test}: {reason}").expect("a line in the file of skips");
    }
}

/// Runs `ip` with these arguments; panics if it fails.
pub(crate) fn ip(arguments: &[&str]) {
    let out = Command::new("ip").args(arguments).output().expect("ip runs");
    assert!(out.status.success(), "ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&out.stderr));
}

/// Runs lines of `ip` commands in a namespace; panics if one fails.
pub(crate) fn batch(ns: &str, lines: &str) {
    let mut child = Command::new("ip")
        .args(["-n", ns, "-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ip runs");
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("ip reads");
    let out = child.wait_with_output().expect("ip ends");
    assert!(out.status.success(), "ip in {ns}: {lines}{}", String::from_utf8_lossy(&out.stderr));
}

/// The last `count` lines of a file.
pub(crate) fn tail(path: &Path, count: usize) -> String {
    let text = String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Takes part in the machine-wide order of labs: many shared ones, or one alone.
fn turn(alone: bool) -> File {
    let path = std::env::temp_dir().join("sfl-turn");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).expect("the turn file");
    let locked = if alone { file.lock() } else { file.lock_shared() };
    locked.expect("a turn");
    file
}

/// Removes what labs of processes that were killed left behind: namespaces, what runs in them, and directories.
fn sweep() {
    let orphans = |dir: &Path| -> Vec<String> {
        let names = fs::read_dir(dir).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter(|name| pid_of(name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()))
            .collect()
    };
    for name in orphans(Path::new("/run/netns")) {
        remove(&name);
    }
    for name in orphans(&std::env::temp_dir()) {
        let _ = fs::remove_dir_all(std::env::temp_dir().join(name));
    }
}

/// The process that a lab's namespace or directory is named after.
fn pid_of(name: &str) -> Option<u32> {
    name.strip_prefix("sfl-")?.split('-').next()?.parse().ok()
}

/// Ends whatever still runs in a namespace of ours, and deletes it.
fn remove(ns: &str) {
    if let Ok(out) = Command::new("ip").args(["netns", "pids", ns]).output() {
        for pid in String::from_utf8_lossy(&out.stdout).split_whitespace().filter_map(|p| p.parse().ok()) {
            // A lab's thread may still be inside a namespace: never ourselves.
            if pid != std::process::id().cast_signed() {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
        }
    }
    let _ = Command::new("ip").args(["netns", "del", ns]).stderr(Stdio::null()).status();
}

fn on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|dir| dir.join(name).is_file())
}

fn nix_root() -> bool {
    nix::unistd::geteuid().is_root()
}

const POLL: Duration = Duration::from_millis(15);
