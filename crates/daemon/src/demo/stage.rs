//! The stage: a client, a front and its gateways, each in a network namespace of its own, and the programs that they run.
//!
//! The client's namespace is this process's own. The front has a cable to each of the others:
//!
//! ```text
//! client 10.77.1.2 --- 10.77.1.1 front 10.77.0.1 -+- 10.77.0.11 gw1
//!                                                 +- 10.77.0.12 gw2
//!                                                 +- 10.77.0.13 gw3
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use standfast_core::prefix::Prefix;
use standfast_io::netlink::Netlink;
use standfast_io::netns::{self, Namespace};

use super::responder;

/// The address that the client knows.
pub(super) const VIP: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);
/// Another one, whose connections the front spreads by the kernel's plain hash.
pub(super) const PLAIN_VIP: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 11);
/// Where the API of every daemon listens, each in its own namespace.
pub(super) const API: &str = "127.0.0.1:59179";

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 2);
/// The front as the client sees it.
const FRONT_OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 1);
/// The front as the gateways see it.
const FRONT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The kernel's main routing table.
const MAIN: u32 = 254;
/// The interface towards the front.
const UPLINK: &str = "eth0";

/// Everything that runs. It ends, with its files, when this is dropped.
pub(super) struct Stage {
    pub(super) program: PathBuf,
    /// Whether a user namespace was needed.
    pub(super) unprivileged: bool,
    directory: tempfile::TempDir,
    pub(super) front: Host,
    pub(super) gateways: Vec<Gateway>,
}

/// The front, or the part of a gateway that it has too.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) address: Ipv4Addr,
    namespace: Namespace,
    daemon: Option<Process>,
}

/// A gateway: a host with a service.
pub(super) struct Gateway {
    pub(super) host: Host,
    responder: Option<Process>,
}

/// A child that does not outlive its handle.
struct Process(Child);

impl Stage {
    /// Moves this process into private namespaces and makes the hosts; nothing runs on them yet.
    pub(super) fn new(gateways: u8) -> Result<Self, String> {
        let unprivileged = netns::isolate().map_err(|e| e.to_string())? == netns::Isolation::User;
        let client =
            Namespace::current().map_err(|e| format!("cannot open the own network namespace: {e}"))?;
        let directory = tempfile::Builder::new().prefix("standfast-demo-").tempdir();
        let mut stage = Self {
            program: std::env::current_exe().map_err(|e| format!("cannot find the own program: {e}"))?,
            unprivileged,
            directory: directory.map_err(|e| format!("cannot make a directory for temporary files: {e}"))?,
            front: Host::new("front", FRONT)?,
            gateways: Vec::new(),
        };
        stage.front.set_parameters(&[
            ("net/ipv4/ip_forward", "1"),
            // By address and port, so that every connection is spread anew.
            ("net/ipv4/fib_multipath_hash_policy", "1"),
        ])?;
        let front = &stage.front.namespace;
        wire(front, "client", FRONT_OUTSIDE, &client, CLIENT).map_err(|e| e.to_string())?;
        for number in 1..=gateways {
            let host = Host::new(&format!("gw{number}"), Ipv4Addr::new(10, 77, 0, 10 + number))?;
            host.set_parameters(&[])?;
            wire(front, &host.name, FRONT, &host.namespace, host.address).map_err(|e| e.to_string())?;
            stage.gateways.push(Gateway { host, responder: None });
        }
        Ok(stage)
    }

    /// Starts the front's daemon.
    pub(super) fn start_front(&mut self) -> Result<(), String> {
        let text = FRONT_YAML
            .replace("$FRONT", &FRONT.to_string())
            .replace("$VIP", &VIP.to_string())
            .replace("$PLAIN", &PLAIN_VIP.to_string())
            .replace("$API", API);
        self.front.start_daemon(&self.program, self.directory.path(), &text)
    }

    /// Starts, or starts again, a gateway's service and its daemon.
    pub(super) fn start_gateway(&mut self, number: usize) -> Result<(), String> {
        let drain = self.drain_file(number).display().to_string();
        let gateway = &mut self.gateways[number];
        let mut command = gateway.host.command(&self.program, self.directory.path(), "responder")?;
        command.args([super::RESPONDER, &gateway.host.name]).stdin(Stdio::piped());
        gateway.responder = Some(Process::start(command)?);
        let text = GATEWAY_YAML
            .replace("$SELF", &gateway.host.address.to_string())
            .replace("$FRONT", &FRONT.to_string())
            .replace("$VIP", &VIP.to_string())
            .replace("$PLAIN", &PLAIN_VIP.to_string())
            .replace("$DRAIN", &drain)
            .replace("$API", API)
            .replace("$PORT", &responder::PORT.to_string());
        gateway.host.start_daemon(&self.program, self.directory.path(), &text)
    }

    /// Kills everything on a gateway at once, as when its power fails.
    pub(super) fn kill(&mut self, number: usize) {
        let gateway = &mut self.gateways[number];
        let mut dead = [gateway.responder.take(), gateway.host.daemon.take()];
        // The service goes first, so that nothing is saved by an orderly sequence; only then is anybody waited for.
        for process in dead.iter_mut().flatten() {
            // One that has ended already is fine.
            let _ = process.0.kill();
        }
    }

    /// Switches a gateway's service on or off.
    pub(super) fn switch(&mut self, number: usize, on: bool) -> Result<(), String> {
        let gateway = &mut self.gateways[number];
        let line = if on { responder::ON } else { responder::OFF };
        let input = gateway.responder.as_mut().and_then(|r| r.0.stdin.as_mut());
        let written = input.map_or(Err(io::ErrorKind::NotFound.into()), |i| writeln!(i, "{line}"));
        written.map_err(|e| format!("cannot switch the service of {}: {e}", gateway.host.name))
    }

    /// Has a gateway announce that it is on its way out, or that it is not.
    pub(super) fn drain(&mut self, number: usize, on: bool) -> Result<(), String> {
        let file = self.drain_file(number);
        let done = if on { File::create(&file).map(drop) } else { fs::remove_file(&file) };
        done.map_err(|e| format!("cannot change {}: {e}", file.display()))
    }

    fn drain_file(&self, number: usize) -> PathBuf {
        self.directory.path().join(format!("{}.drain", self.gateways[number].host.name))
    }

    /// The next hops of a VIP in the front's kernel.
    pub(super) fn next_hops(&self, vip: Ipv4Addr) -> Result<BTreeSet<IpAddr>, String> {
        let routes = self.front.namespace.within(|| Netlink::new()?.routes(MAIN));
        let mut routes = routes.map_err(|e| format!("cannot read the front's routes: {e}"))?;
        Ok(routes.remove(&Prefix::host(vip.into())).unwrap_or_default())
    }

    /// The name of a daemon that has ended although nobody asked it to.
    pub(super) fn ended(&mut self) -> Option<String> {
        let gateways = self.gateways.iter_mut().flat_map(|g| {
            let responder = g.responder.as_mut().map(|r| (format!("the service of {}", g.host.name), r));
            let daemon = g.host.daemon.as_mut().map(|d| (format!("standfast on {}", g.host.name), d));
            responder.into_iter().chain(daemon)
        });
        let front = self.front.daemon.as_mut().map(|d| ("standfast on the front".to_owned(), d));
        for (name, process) in front.into_iter().chain(gateways) {
            if let Ok(Some(status)) = process.0.try_wait() {
                return Some(format!("{name} ended ({status})"));
            }
        }
        None
    }

    /// The hosts.
    pub(super) fn hosts(&self) -> impl Iterator<Item = &Host> {
        std::iter::once(&self.front).chain(self.gateways.iter().map(|g| &g.host))
    }

    /// The last lines of what a host's daemon said.
    pub(super) fn log(&self, host: &Host) -> String {
        let text = fs::read(log(self.directory.path(), &host.name, "standfast")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// Where configurations and logs are.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }
}

impl Host {
    fn new(name: &str, address: Ipv4Addr) -> Result<Self, String> {
        let namespace = Namespace::new().map_err(|e| e.to_string())?;
        namespace.within(|| Netlink::new()?.switch_on("lo")).map_err(|e| format!("{name}: {e}"))?;
        Ok(Self { name: name.to_owned(), address, namespace, daemon: None })
    }

    /// The process id of its daemon.
    pub(super) fn pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(|d| d.0.id())
    }

    fn set_parameters(&self, more: &[(&str, &str)]) -> Result<(), String> {
        // Inherited from the machine, where a strict one may be wanted.
        let filters = [("net/ipv4/conf/all/rp_filter", "0"), ("net/ipv4/conf/default/rp_filter", "0")];
        for (key, value) in filters.iter().chain(more) {
            self.namespace.set_parameter(key, value).map_err(|e| format!("{}: {e}", self.name))?;
        }
        Ok(())
    }

    fn start_daemon(&mut self, program: &Path, directory: &Path, configuration: &str) -> Result<(), String> {
        let file = directory.join(format!("{}.yaml", self.name));
        fs::write(&file, configuration).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        let mut command = self.command(program, directory, "standfast")?;
        command.args(["run", "--config"]).arg(&file).stdin(Stdio::null());
        self.daemon = Some(Process::start(command)?);
        Ok(())
    }

    /// The own program inside, with its output in a file.
    fn command(&self, program: &Path, directory: &Path, what: &str) -> Result<Command, String> {
        let path = log(directory, &self.name, what);
        let open = || {
            let file = File::options().create(true).append(true).open(&path)?;
            Ok::<_, io::Error>((file.try_clone()?, file))
        };
        let (out, err) = open().map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        let mut command = self.namespace.command(program);
        command.stdout(out).stderr(err).env_remove("NOTIFY_SOCKET");
        Ok(command)
    }
}

impl Process {
    fn start(mut command: Command) -> Result<Self, String> {
        command
            .spawn()
            .map(Self)
            .map_err(|e| format!("cannot start {}: {e}", command.get_program().display()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended already is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn log(directory: &Path, host: &str, what: &str) -> PathBuf {
    directory.join(format!("{host}-{what}.log"))
}

/// Lays a cable between the front and a host, which sends everything that way.
fn wire(
    front: &Namespace,
    name: &str,
    front_address: Ipv4Addr,
    host: &Namespace,
    address: Ipv4Addr,
) -> io::Result<()> {
    front.within(|| {
        let mut netlink = Netlink::new()?;
        netlink.add_cable(name, host, UPLINK)?;
        netlink.add_ends(name, front_address.into(), address.into())?;
        netlink.switch_on(name)
    })?;
    host.within(|| {
        let mut netlink = Netlink::new()?;
        netlink.add_ends(UPLINK, address.into(), front_address.into())?;
        netlink.switch_on(UPLINK)?;
        netlink.add_default_route(front_address.into())
    })
}

const FRONT_YAML: &str = r#"schema: v1
router:
  asn: 64512
  router_id: $FRONT
  local_address: $FRONT
api:
  listen: "$API"
listener:
  accept:
    - { name: gateways, range: 10.77.0.0/24, peer_asn: 64513 }
  vips:
    - { name: web, prefix: $VIP/32, hashing: resilient }
    - { name: plain, prefix: $PLAIN/32, hashing: plain }
"#;

const GATEWAY_YAML: &str = r#"schema: v1
router:
  asn: 64513
  router_id: $SELF
  local_address: $SELF
api:
  listen: "$API"
bgp:
  hold_time: 9s
  listen_port: -1
  neighbors:
    - { name: front, address: $FRONT, peer_asn: 64512 }
vips:
  - name: web
    prefixes: [$VIP/32, $PLAIN/32]
    address: { manage: true, interface: lo }
    check:
      type: http
      interval: 100ms
      timeout: 90ms
      rise: 2
      fall: 2
      http: { url: "/healthz", port: $PORT }
    policy:
      fail_action: withdraw
      # While the file is there, others are asked to drain this gateway (RFC 8326).
      lower_priority_file: "$DRAIN"
      lower_priority: { communities: ["65535:0"] }
"#;
