//! The programs that announce, each configured for the same prefixes and started without anything in between.

use std::fmt::Write;
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use standfast_lab::{Announcer, Host, Lab, Spec, WITHDRAW, bird_raw, secs, until};

use crate::sample::{STANDFAST, now};

/// The router's AS number, and that of everybody who announces.
pub(crate) const ROUTER: u32 = 64512;
pub(crate) const MEMBER: u32 = 64513;
/// The address that is announced where one is enough.
pub(crate) const VIP: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);

/// A program that announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Standfast,
    Bird,
    Gobgp,
}

/// A program ready to be started on a host, as often as one likes.
pub(crate) struct Speaker {
    kind: Kind,
    host: Host,
    command: Vec<String>,
    log: PathBuf,
    prefixes: Vec<String>,
}

/// A program that runs. It is killed when dropped.
pub(crate) struct Running {
    /// The moment before it was started.
    pub(crate) started: Duration,
    child: Child,
}

impl Kind {
    /// Its name in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Standfast => STANDFAST,
            Self::Bird => "BIRD 2.0.12",
            Self::Gobgp => "gobgpd 3.10.0",
        }
    }
}

impl Speaker {
    /// standfast with this configuration.
    pub(crate) fn standfast(lab: &Lab, host: &Host, binary: &Path, config: &Announcer) -> Self {
        let yaml = config.yaml().replace("level: debug", "level: info");
        Self::standfast_with(lab, host, binary, &yaml)
    }

    /// standfast with this file.
    pub(crate) fn standfast_with(lab: &Lab, host: &Host, binary: &Path, yaml: &str) -> Self {
        let file = save(lab, host, "standfast.yaml", yaml);
        let binary = binary.to_str().expect("a plain path");
        Self::new(lab, host, Kind::Standfast, &[binary, "run", "-c", &file], vec![])
    }

    /// BIRD that announces static routes, keeps nothing that it is told, and waits for nothing.
    pub(crate) fn bird(lab: &Lab, host: &Host, routers: &[Ipv4Addr], prefixes: Vec<String>) -> Self {
        let mut text = format!(
            "log stderr all;\nrouter id {};\nprotocol device {{}}\nprotocol static vips {{ ipv4;\n",
            host.v4
        );
        for prefix in &prefixes {
            let _ = writeln!(text, " route {prefix} blackhole;");
        }
        text += "}\n";
        for (nth, router) in routers.iter().enumerate() {
            let _ = writeln!(
                text,
                "protocol bgp n{nth} {{ local {} as {MEMBER}; neighbor {router} as {ROUTER}; {QUICK}\n \
                 ipv4 {{ import none; export where proto = \"vips\"; }}; }}",
                host.v4
            );
        }
        let file = save(lab, host, "bird.conf", &text);
        let (socket, pid) = (format!("{file}.sock"), format!("{file}.pid"));
        Self::new(lab, host, Kind::Bird, &["bird", "-f", "-c", &file, "-s", &socket, "-P", &pid], prefixes)
    }

    /// gobgpd; the paths are added once it runs, as it has no configuration for them.
    pub(crate) fn gobgp(lab: &Lab, host: &Host, routers: &[Ipv4Addr], prefixes: Vec<String>) -> Self {
        let mut text =
            format!("[global.config]\n as = {MEMBER}\n router-id = \"{}\"\n port = 179\n", host.v4);
        for router in routers {
            let _ = writeln!(
                text,
                "[[neighbors]]\n [neighbors.config]\n neighbor-address = \"{router}\"\n peer-as = {ROUTER}\n\
                 [neighbors.timers.config]\n hold-time = 3\n keepalive-interval = 1\n connect-retry = 1\n\
                 [neighbors.transport.config]\n local-address = \"{}\"",
                host.v4
            );
        }
        let file = save(lab, host, "gobgpd.toml", &text);
        let command = ["gobgpd", "-f", &file, "--api-hosts", "127.0.0.1:50051"];
        Self::new(lab, host, Kind::Gobgp, &command, prefixes)
    }

    fn new(lab: &Lab, host: &Host, kind: Kind, command: &[&str], prefixes: Vec<String>) -> Self {
        Self {
            kind,
            host: host.clone(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            log: lab.file(&format!("{}-{kind:?}.log", host.name)),
            prefixes,
        }
    }

    /// What it is.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Starts it from a thread inside the namespace, so that no other program runs in between.
    pub(crate) fn start(&self) -> Running {
        let out = File::options().create(true).append(true).open(&self.log).expect("a log file");
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).stdin(Stdio::null()).process_group(0);
        command.stdout(out.try_clone().expect("a second handle")).stderr(out);
        let (started, child) = self.host.enter(|| (now(), command.spawn().expect("the program runs")));
        let running = Running { started, child };
        if self.kind == Kind::Gobgp && !self.prefixes.is_empty() {
            let ask = |question: &str| self.host.attempt(&format!("gobgp {question}"));
            until("gobgpd can be asked", secs(10), || ask("global").contains("AS:"));
            let add: String = self.prefixes.iter().fold(String::new(), |script, prefix| {
                script + &format!("gobgp global rib add {prefix} -a ipv4; ")
            });
            self.host.run(&add);
        }
        running
    }

    /// The end of its log, for a word on why something did not come.
    pub(crate) fn log(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Running {
    /// Sends a signal; gives the moment before.
    pub(crate) fn signal(&self, signal: Signal) -> Duration {
        let before = now();
        kill(self.id(), signal).expect("a signal");
        before
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self, deadline: Duration) {
        let start = Instant::now();
        while self.child.try_wait().expect("its state").is_none() {
            assert!(start.elapsed() < deadline, "process {} did not end", self.child.id());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Resident and proportional memory, in KiB.
    pub(crate) fn memory(&self) -> (u64, u64) {
        let path = format!("/proc/{}/smaps_rollup", self.child.id());
        let text = std::fs::read_to_string(path).expect("its memory");
        let field = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).expect("a field");
            line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
        };
        (field("Rss:"), field("Pss:"))
    }

    fn id(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The router at the other end: BIRD, which puts what it learns from `members` into its kernel, spread over all of them.
/// `dialling` is [`DIALS`] or [`WAITS`].
pub(crate) fn router(host: &Host, members: &[Ipv4Addr], dialling: &str) -> Spec {
    let mut text = format!(
        "router id {};\nprotocol device {{}}\nprotocol kernel {{ merge paths yes; ipv4 {{ export all; }}; }}\n",
        host.v4
    );
    for (nth, member) in members.iter().enumerate() {
        let _ = writeln!(
            text,
            "protocol bgp n{nth} {{ local {} as {ROUTER}; neighbor {member} as {MEMBER}; {dialling} {QUICK}\n \
             ipv4 {{ import all; export none; }}; }}",
            host.v4
        );
    }
    bird_raw(&text)
}

/// An announcer's configuration with the VIP, as good as these checks say.
pub(crate) fn announcer(host: &Host, router: Ipv4Addr, check: &str) -> Announcer {
    let prefix = format!("{VIP}/32");
    Announcer::new(host, MEMBER).neighbor(router, ROUTER, "").vip_with("web", &[&prefix], check, WITHDRAW)
}

fn save(lab: &Lab, host: &Host, name: &str, text: &str) -> String {
    let path = lab.file(&format!("{}-{name}", host.name));
    std::fs::write(&path, text).expect("a configuration file");
    path.to_str().expect("a plain path").to_owned()
}

/// A router that dials its members, and one that waits for them to dial.
pub(crate) const DIALS: &str = "";
pub(crate) const WAITS: &str = "passive yes;";
/// The shortest pauses that BIRD has: none (which it takes as a second) before it dials, and none after an error. It lets its first
/// UPDATE wait for the next KEEPALIVE, so these are a second apart.
const QUICK: &str =
    "hold time 3; keepalive time 1; connect delay time 0; connect retry time 1; error wait time 0,0;";
