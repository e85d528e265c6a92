//! The daemons that a lab can run, their configurations, and how each is asked.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use nix::sys::signal::Signal;

use crate::host::{Host, Process};
use crate::lab::{secs, until};

/// What a daemon is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// BIRD 2.
    Bird,
    /// FRR's zebra and bgpd.
    Frr,
    /// gobgpd.
    Gobgp,
    /// ExaBGP.
    Exabgp,
    /// nginx.
    Nginx,
    /// The daemon under test.
    Standfast,
}

/// What to run: a kind and its configuration.
#[derive(Debug, Clone)]
pub struct Spec {
    kind: Kind,
    config: Config,
}

/// A text, or a text that depends on the host's address.
#[derive(Debug, Clone)]
enum Config {
    Text(String),
    Speaker { asn: u32, neighbors: Vec<Neighbor> },
    Exabgp { asn: u32, peer: Ipv4Addr, peer_asn: u32, lines: Vec<String> },
}

/// A neighbour of a router.
#[derive(Debug, Clone)]
pub struct Neighbor {
    address: IpAddr,
    asn: u32,
    local: Option<IpAddr>,
    password: Option<String>,
    passive: bool,
    multihop: bool,
    bfd: Option<u16>,
    export: Vec<String>,
}

impl Neighbor {
    /// Dialled directly, without a password, told nothing.
    pub fn new(address: impl Into<IpAddr>, asn: u32) -> Self {
        Self {
            address: address.into(),
            asn,
            local: None,
            password: None,
            passive: false,
            multihop: false,
            bfd: None,
            export: vec![],
        }
    }

    /// From this address of ours, not the host's own.
    pub fn from(self, address: impl Into<IpAddr>) -> Self {
        Self { local: Some(address.into()), ..self }
    }

    /// With a TCP MD5 key.
    pub fn password(self, password: &str) -> Self {
        Self { password: Some(password.to_owned()), ..self }
    }

    /// Waits to be dialled.
    pub fn passive(self) -> Self {
        Self { passive: true, ..self }
    }

    /// May be several hops away.
    pub fn multihop(self) -> Self {
        Self { multihop: true, ..self }
    }

    /// Watched by BFD with so many milliseconds between two packets, of which three may be lost (BIRD and FRR only; one hop).
    pub fn bfd(self, interval: u16) -> Self {
        Self { bfd: Some(interval), ..self }
    }

    /// Is told these IPv4 prefixes (BIRD and FRR only).
    pub fn told(self, prefixes: Vec<String>) -> Self {
        Self { export: prefixes, ..self }
    }
}

/// BIRD with these neighbours, both families, everything imported.
pub fn bird(asn: u32, neighbors: &[Neighbor]) -> Spec {
    router(Kind::Bird, asn, neighbors)
}

/// BIRD with a configuration of your own; the log line is added.
pub fn bird_raw(config: &str) -> Spec {
    Spec { kind: Kind::Bird, config: Config::Text(format!("log stderr all;\n{config}")) }
}

/// FRR with these neighbours, both families, everything imported.
pub fn frr(asn: u32, neighbors: &[Neighbor]) -> Spec {
    router(Kind::Frr, asn, neighbors)
}

/// FRR with a configuration of your own.
pub fn frr_raw(config: &str) -> Spec {
    Spec { kind: Kind::Frr, config: Config::Text(config.to_owned()) }
}

/// GoBGP with these neighbours, both families, everything imported.
pub fn gobgp(asn: u32, neighbors: &[Neighbor]) -> Spec {
    router(Kind::Gobgp, asn, neighbors)
}

/// A router of any of the three kinds.
pub fn router(kind: Kind, asn: u32, neighbors: &[Neighbor]) -> Spec {
    Spec { kind, config: Config::Speaker { asn, neighbors: neighbors.to_vec() } }
}

/// ExaBGP that announces static routes, each given as `route … next-hop …`, to one peer.
pub fn exabgp(asn: u32, peer: Ipv4Addr, peer_asn: u32, routes: &[&str]) -> Spec {
    let lines = routes.iter().map(|&line| line.to_owned()).collect();
    Spec { kind: Kind::Exabgp, config: Config::Exabgp { asn, peer, peer_asn, lines } }
}

/// nginx on port 80 of every address, which answers 200 at `/healthz`.
pub fn nginx() -> Spec {
    nginx_at(80)
}

/// The same on another port.
pub fn nginx_at(port: u16) -> Spec {
    let config = format!(
        "daemon off; master_process off; pid nginx.pid; error_log stderr;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3;\n\
         uwsgi_temp_path t4; scgi_temp_path t5;\n\
         server {{ listen {port}; listen [::]:{port}; location = /healthz {{ return 200 \"ok\\n\"; }} }} }}\n"
    );
    Spec { kind: Kind::Nginx, config: Config::Text(config) }
}

/// The daemon under test, with this YAML.
pub fn standfast(config: &str) -> Spec {
    Spec { kind: Kind::Standfast, config: Config::Text(config.to_owned()) }
}

/// Makes this the binary under test for the rest of this process, unless one was named before.
pub fn use_standfast(binary: &Path) {
    let _ = CHOSEN.set(binary.to_owned());
}

static CHOSEN: OnceLock<PathBuf> = OnceLock::new();

/// The binary under test, or why there is none.
pub fn standfast_bin() -> Result<PathBuf, String> {
    if let Some(chosen) = CHOSEN.get() {
        return Ok(chosen.clone());
    }
    let workspace = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let given = std::env::var_os("STANDFAST_BIN").map(PathBuf::from);
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
    let binary = given.unwrap_or_else(|| target.join("debug/standfast"));
    if binary.is_file() { Ok(binary) } else { Err(format!("needs {}", binary.display())) }
}

/// A running, or stopped, daemon on a host.
pub struct Daemon {
    kind: Kind,
    name: String,
    host: Host,
    dir: PathBuf,
    running: Mutex<Vec<Arc<Process>>>,
}

impl Daemon {
    pub(crate) fn start(host: &Host, spec: Spec) -> Self {
        let kind = spec.kind;
        let mut name = format!("{kind:?}").to_lowercase();
        let mut dir = host.registry.dir.join(format!("{}-{name}", host.name));
        for copy in 2.. {
            if fs::create_dir(&dir).is_ok() {
                break;
            }
            name = format!("{}{copy}", format!("{kind:?}").to_lowercase());
            dir = host.registry.dir.join(format!("{}-{name}", host.name));
        }
        let daemon = Self { kind, name, host: host.clone(), dir, running: Mutex::default() };
        daemon.write_config(&spec.config.render(kind, host));
        daemon.start_again();
        daemon
    }

    /// Writes another configuration; the daemon is not told.
    pub fn write_config(&self, text: &str) {
        fs::write(self.config(), text).expect("a configuration file");
    }

    /// Starts it after it ended, and waits until it can be asked.
    pub fn start_again(&self) {
        let dir = self.dir.to_str().expect("a plain path");
        let file = self.config();
        let file = file.to_str().expect("a plain path");
        let (socket, lock) = (format!("{dir}/sock"), format!("{dir}/pid"));
        let zserv = format!("{dir}/zserv");
        let (bfd_pid, bfd_control) = (format!("{dir}/bfdd-pid"), format!("{dir}/bfdd-control"));
        let bin = standfast_bin().ok();
        let commands: Vec<Vec<&str>> = match self.kind {
            Kind::Bird => vec![vec!["bird", "-f", "-c", file, "-s", &socket, "-P", &lock]],
            Kind::Frr => {
                let program = |program, pid, file| {
                    let mut command = vec![program, "-z", &*zserv];
                    command.extend([
                        "--vty_socket",
                        dir,
                        "-P",
                        "0",
                        "--log",
                        "stdout",
                        "-i",
                        pid,
                        "-f",
                        file,
                    ]);
                    command
                };
                let mut commands = vec![program("/usr/lib/frr/zebra", &*lock, "/dev/null")];
                if fs::read_to_string(self.config()).is_ok_and(|text| text.contains(" bfd ")) {
                    let mut bfdd = program("/usr/lib/frr/bfdd", &*bfd_pid, "/dev/null");
                    bfdd.extend(["--bfdctl", &*bfd_control]);
                    commands.push(bfdd);
                }
                commands.push(program("/usr/lib/frr/bgpd", &*socket, file));
                commands
            }
            Kind::Gobgp => vec![vec!["gobgpd", "-f", file, "--api-hosts", "127.0.0.1:50051"]],
            Kind::Exabgp => vec![vec!["exabgp", file]],
            Kind::Nginx => vec![vec!["nginx", "-e", "stderr", "-p", dir, "-c", file]],
            Kind::Standfast => {
                let bin = bin.as_ref().and_then(|bin| bin.to_str()).expect("the binary under test");
                vec![vec![bin, "run", "-c", file]]
            }
        };
        let env: &[_] = match self.kind {
            Kind::Exabgp => &[
                ("exabgp.daemon.user", "root"),
                ("exabgp.daemon.daemonize", "false"),
                ("exabgp.api.cli", "false"),
                ("exabgp.cache.attributes", "false"),
            ],
            // Each has its own, whatever runs beside it.
            Kind::Standfast => &[("STATE_DIRECTORY", dir)],
            _ => &[],
        };
        if self.kind == Kind::Frr {
            // FRR drops to its own user, whatever user it is given.
            self.host.run(&format!("chown -R frr:frr {dir}"));
        }
        let mut running = self.running.lock().unwrap();
        for (nth, command) in commands.iter().enumerate() {
            let name = match commands.len() - 1 - nth {
                0 => self.name.clone(),
                _ => format!("{}-{}", self.name, command[0].rsplit('/').next().unwrap_or_default()),
            };
            running.push(self.host.process(&name, command, env));
            if nth + 1 < commands.len() {
                until("zebra serves", secs(10), || std::path::Path::new(&zserv).exists());
            }
        }
        drop(running);
        let ready = || match self.kind {
            Kind::Bird => self.ask("show status").contains("Daemon is up"),
            Kind::Frr => self.ask("show bgp summary json").contains('{'),
            Kind::Gobgp => self.ask("global").contains('{'),
            Kind::Nginx => self.dir.join("nginx.pid").exists(),
            Kind::Exabgp => true,
            Kind::Standfast => self.host.get(API, "/healthz").is_some(),
        };
        until(&format!("{} on {} is ready", self.name, self.host.name), secs(15), || {
            assert!(
                self.process().alive(),
                "{} ended: {}",
                self.name,
                crate::lab::tail(&self.process().log, 20)
            );
            ready()
        });
    }

    /// Asks it a question in its own words and gives the answer.
    pub fn ask(&self, question: &str) -> String {
        let dir = self.dir.display();
        match self.kind {
            Kind::Bird => self.local("birdc", &["-s", &format!("{dir}/sock"), question]),
            Kind::Frr => self.local("vtysh", &["--vty_socket", &dir.to_string(), "-c", question]),
            Kind::Gobgp => self.host.attempt(&format!("gobgp -j {question} 2>/dev/null")),
            other => panic!("{other:?} cannot be asked"),
        }
    }

    /// Ends it in order.
    pub fn stop(&self) {
        for process in self.running.lock().unwrap().drain(..).rev() {
            process.signal(Signal::SIGTERM);
            process.wait(secs(10));
        }
        let _ = fs::remove_file(self.dir.join("zserv"));
        let _ = fs::remove_file(self.dir.join("nginx.pid"));
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&self) {
        for process in self.running.lock().unwrap().drain(..).rev() {
            process.kill();
        }
        let _ = fs::remove_file(self.dir.join("zserv"));
        let _ = fs::remove_file(self.dir.join("nginx.pid"));
    }

    /// Its process; of FRR, bgpd.
    pub fn process(&self) -> Arc<Process> {
        Arc::clone(self.running.lock().unwrap().last().expect("it runs"))
    }

    /// All of its processes; FRR has two.
    pub fn processes(&self) -> Vec<Arc<Process>> {
        self.running.lock().unwrap().clone()
    }

    /// Everything that it has written, over all its starts.
    pub fn log(&self) -> String {
        let log = self.host.registry.dir.join(format!("{}-{}.log", self.host.name, self.name));
        String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its configuration file.
    pub fn config(&self) -> PathBuf {
        self.dir.join(if self.kind == Kind::Standfast { "config.yaml" } else { "config" })
    }

    /// Asks over a unix socket, for which no namespace need be entered.
    fn local(&self, program: &str, arguments: &[&str]) -> String {
        let out = Command::new(program).args(arguments).output().expect("a client that runs");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }
}

impl Config {
    fn render(&self, kind: Kind, host: &Host) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Exabgp { asn, peer, peer_asn, lines } => format!(
                "neighbor {peer} {{\n router-id {id};\n local-address {id};\n local-as {asn};\n peer-as {peer_asn};\n\
                 hold-time 9;\n family {{ ipv4 unicast; ipv6 unicast; }}\n static {{\n{} }}\n}}\n",
                lines.iter().fold(String::new(), |text, line| text + "  " + line + ";\n"),
                id = host.v4
            ),
            Self::Speaker { asn, neighbors } => match kind {
                Kind::Bird => bird_config(host, *asn, neighbors),
                Kind::Frr => frr_config(host, *asn, neighbors),
                Kind::Gobgp => gobgp_config(host, *asn, neighbors),
                other => panic!("{other:?} is no router"),
            },
        }
    }
}

/// The end of the session on `host`.
fn own(host: &Host, neighbor: &Neighbor) -> IpAddr {
    neighbor.local.unwrap_or(if neighbor.address.is_ipv4() { host.v4.into() } else { host.v6.into() })
}

fn bird_config(host: &Host, asn: u32, neighbors: &[Neighbor]) -> String {
    let mut text = format!("log stderr all;\nrouter id {};\nprotocol device {{}}\n", host.v4);
    text += &bird_bfd(neighbors.iter().find_map(|n| n.bfd));
    for (nth, n) in neighbors.iter().enumerate() {
        let export = if n.export.is_empty() {
            "none".to_owned()
        } else {
            let routes =
                n.export.iter().fold(String::new(), |text, p| text + &format!("route {p} blackhole; "));
            text += &format!("protocol static s{nth} {{ ipv4; {routes} }}\n");
            format!("where proto = \"s{nth}\"")
        };
        let bfd = if n.bfd.is_some() { " bfd yes;" } else { "" };
        let session = if n.multihop { "multihop 16;".to_owned() } else { format!("direct;{bfd}") };
        let password = n.password.as_ref().map_or_else(String::new, |p| format!("password \"{p}\"; "));
        let passive = if n.passive { "passive yes; " } else { "" };
        let gateway = if asn == n.asn && !n.multihop { "gateway direct; " } else { "" };
        text += &format!(
            "protocol bgp n{nth} {{\n local {} as {asn};\n neighbor {} as {};\n {session} {password}{passive}\n\
             hold time 9; keepalive time 3; connect retry time 1; connect delay time 1; error wait time 1,4;\n\
             ipv4 {{ {gateway}import all; export {export}; }};\n ipv6 {{ {gateway}import all; export none; }};\n}}\n",
            own(host, n),
            n.address,
            n.asn
        );
    }
    text
}

/// BIRD's BFD with so many milliseconds between two packets, of which three may be lost; nothing without it.
pub fn bird_bfd(interval: Option<u16>) -> String {
    interval.map_or_else(String::new, |ms| {
        format!(
            "protocol bfd {{ interface \"*\" {{ min rx interval {ms} ms; min tx interval {ms} ms; multiplier 3; }}; }}\n"
        )
    })
}

fn frr_config(host: &Host, asn: u32, neighbors: &[Neighbor]) -> String {
    let mut text = format!(
        "router bgp {asn}\n bgp router-id {}\n no bgp ebgp-requires-policy\n no bgp default ipv4-unicast\n no bgp network import-check\n",
        host.v4
    );
    for n in neighbors {
        let a = n.address;
        text += &format!(
            " neighbor {a} remote-as {}\n neighbor {a} timers 3 9\n neighbor {a} timers connect 1\n",
            n.asn
        );
        text += &format!(" neighbor {a} update-source {}\n", own(host, n));
        if let Some(password) = &n.password {
            text += &format!(" neighbor {a} password {password}\n");
        }
        if n.passive {
            text += &format!(" neighbor {a} passive\n");
        }
        if n.multihop && n.asn != asn {
            text += &format!(" neighbor {a} ebgp-multihop 16\n");
        }
        if let Some(ms) = n.bfd {
            text += &format!(" neighbor {a} bfd 3 {ms} {ms}\n");
        }
    }
    for family in ["ipv4", "ipv6"] {
        text += &format!(" address-family {family} unicast\n");
        for prefix in neighbors.iter().flat_map(|n| &n.export).filter(|_| family == "ipv4") {
            text += &format!("  network {prefix}\n");
        }
        for n in neighbors {
            text += &format!("  neighbor {} activate\n", n.address);
        }
        text += " exit-address-family\n";
    }
    text
}

fn gobgp_config(host: &Host, asn: u32, neighbors: &[Neighbor]) -> String {
    let mut text = format!("[global.config]\n as = {asn}\n router-id = \"{}\"\n port = 179\n", host.v4);
    for n in neighbors {
        text += &format!(
            "[[neighbors]]\n [neighbors.config]\n neighbor-address = \"{}\"\n peer-as = {}\n",
            n.address, n.asn
        );
        if let Some(password) = &n.password {
            text += &format!(" auth-password = \"{password}\"\n");
        }
        text += &format!(
            " [neighbors.timers.config]\n hold-time = 9\n keepalive-interval = 3\n connect-retry = 1\n\
             [neighbors.transport.config]\n local-address = \"{}\"\n passive-mode = {}\n",
            own(host, n),
            n.passive
        );
        if n.multihop && n.asn != asn {
            text += " [neighbors.ebgp-multihop.config]\n enabled = true\n multihop-ttl = 16\n";
        }
        for family in ["ipv4", "ipv6"] {
            text += &format!(
                " [[neighbors.afi-safis]]\n  [neighbors.afi-safis.config]\n  afi-safi-name = \"{family}-unicast\"\n"
            );
        }
    }
    text
}

/// Where the daemon under test is asked, on its host's own loopback address.
pub const API: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 59179);
