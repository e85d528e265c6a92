//! A host of a lab: a network namespace, commands run in it, and the processes that it keeps.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::capture::Capture;
use crate::daemons::{API, Daemon, Spec};
use crate::lab::Registry;

/// A network namespace with a name and addresses. Cheap to clone: a handle.
#[derive(Clone)]
pub struct Host {
    /// Its name in the lab.
    pub name: String,
    /// The address on the switch.
    pub v4: Ipv4Addr,
    /// The IPv6 address on the switch.
    pub v6: Ipv6Addr,
    pub(crate) ns: String,
    pub(crate) registry: Arc<Registry>,
}

/// A process in a host, ended by the lab at the latest. Its output goes to a log.
pub struct Process {
    pub(crate) name: String,
    pub(crate) log: PathBuf,
    child: Mutex<Child>,
}

impl Host {
    pub(crate) fn new(name: &str, ns: String, v4: Ipv4Addr, v6: Ipv6Addr, registry: Arc<Registry>) -> Self {
        Self { name: name.to_owned(), v4, v6, ns, registry }
    }

    /// Starts a daemon and waits until it can be asked.
    pub fn spawn(&self, spec: Spec) -> Daemon {
        Daemon::start(self, spec)
    }

    /// Starts a bare process. It is killed when the calling thread ends, so that nothing outlives a killed test.
    pub fn process(&self, name: &str, command: &[&str], env: &[(&str, &str)]) -> Arc<Process> {
        let name = format!("{}/{name}", self.name);
        let log = self.registry.dir.join(format!("{}.log", name.replace('/', "-")));
        let out = File::options().create(true).append(true).open(&log).expect("a log file");
        let child = Command::new("ip")
            .args(["netns", "exec", &self.ns, "setpriv", "--pdeathsig", "KILL"])
            .args(command)
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a second handle"))
            .stderr(out)
            .spawn()
            .expect("ip runs");
        let process = Arc::new(Process { name, log, child: Mutex::new(child) });
        self.registry.processes.lock().unwrap().push(Arc::clone(&process));
        process
    }

    /// Runs a shell command here to its end and gives its output; panics if it fails.
    #[track_caller]
    pub fn run(&self, command: &str) -> String {
        let out = self.shell(command);
        assert!(
            out.status.success(),
            "{}: {command}: {}{}",
            self.name,
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// The same, giving whatever it said even if it failed.
    pub fn attempt(&self, command: &str) -> String {
        let out = self.shell(command);
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
    }

    /// Runs `f` on a thread inside this namespace. Sockets made there stay there, whoever uses them later.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let file = File::open(Path::new("/run/netns").join(&self.ns)).expect("the namespace");
                setns(file, CloneFlags::CLONE_NEWNET).expect("entering the namespace");
                f()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Sets a `net/…` kernel parameter.
    pub fn sysctl(&self, key: &str, value: &str) {
        self.enter(|| std::fs::write(Path::new("/proc/sys").join(key), value).expect("a kernel parameter"));
    }

    /// Whether `address` is on interface `lo`.
    pub fn has_on_lo(&self, address: impl Into<IpAddr>) -> bool {
        let address = address.into();
        self.run("ip -o address show dev lo")
            .split_whitespace()
            .filter_map(|word| word.split('/').next()?.parse::<IpAddr>().ok())
            .any(|found| found == address)
    }

    /// The next hops of this host's kernel route to exactly `prefix`, those on dead links aside; none: no route.
    pub fn next_hops(&self, prefix: &str) -> BTreeSet<IpAddr> {
        let family = if prefix.contains(':') { "-6" } else { "-4" };
        let answer = self.run(&format!("ip -j {family} route show exact {prefix}"));
        let routes: serde_json::Value = serde_json::from_str(&answer).unwrap_or_default();
        let gateway = |of: &serde_json::Value| {
            if of["flags"].as_array().is_some_and(|flags| flags.contains(&"dead".into())) {
                return None;
            }
            let via = of["gateway"].as_str().or_else(|| of["via"]["host"].as_str());
            via.and_then(|address| address.parse::<IpAddr>().ok())
        };
        let mut found = BTreeSet::new();
        for route in routes.as_array().into_iter().flatten() {
            found.extend(gateway(route));
            found.extend(route["nexthops"].as_array().into_iter().flatten().filter_map(gateway));
        }
        found
    }

    /// Watches the BGP traffic of an interface from here on.
    pub fn capture(&self, interface: &str) -> Capture {
        Capture::start(self, interface)
    }

    /// GET over HTTP/1.0 from inside: status and body, or `None` if nothing answered.
    pub fn get(&self, address: SocketAddr, path: &str) -> Option<(u16, String)> {
        self.http(address, "GET", path)
    }

    /// What the daemon here says of itself over its API.
    #[track_caller]
    pub fn status(&self) -> serde_json::Value {
        let start = Instant::now();
        loop {
            let answer = self.get(API, "/status").and_then(|(_, body)| serde_json::from_str(&body).ok());
            if let Some(status) = answer {
                return status;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "{} does not answer", self.name);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Any method without a body, over HTTP/1.0 from inside.
    pub fn http(&self, address: SocketAddr, method: &str, path: &str) -> Option<(u16, String)> {
        let mut stream = self.enter(|| TcpStream::connect_timeout(&address, Duration::from_secs(1))).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(stream, "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: 0\r\n\r\n").ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    fn shell(&self, command: &str) -> std::process::Output {
        Command::new("ip")
            .args(["netns", "exec", &self.ns, "sh", "-c", command])
            .stdin(Stdio::null())
            .output()
            .expect("ip runs")
    }
}

impl Process {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.lock().unwrap().id()
    }

    /// Whether it has not ended.
    pub fn alive(&self) -> bool {
        self.child.lock().unwrap().try_wait().expect("its state").is_none()
    }

    /// Sends it a signal, if it has not ended.
    pub fn signal(&self, signal: Signal) {
        let mut child = self.child.lock().unwrap();
        if child.try_wait().expect("its state").is_none() {
            kill(Pid::from_raw(child.id().cast_signed()), signal).expect("a signal");
        }
    }

    /// Waits for its end; panics after `deadline`. Gives the exit code, or 128 + the signal that ended it.
    #[track_caller]
    pub fn wait(&self, deadline: Duration) -> i32 {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.lock().unwrap().try_wait().expect("its state") {
                return code(status);
            }
            assert!(start.elapsed() < deadline, "{} did not end within {deadline:?}", self.name);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends it at once.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Everything that it has written.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Memory in use, in KiB.
    pub fn rss(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("its status");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
        line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
    }

    /// Processor time used, in hundredths of a second.
    pub fn cpu(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("its state");
        let rest = &stat[stat.rfind(')').expect("its name") + 2..];
        rest.split(' ').skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum()
    }

    /// Open descriptors.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("its descriptors").count()
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
