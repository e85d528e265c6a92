//! A running daemon reads its file again: by a signal, by the API and by the command line, with the same outcome.
//!
//! `tests/reload/` holds what a broken reload answers. `GOLDEN=write` writes it anew: read the difference before committing it.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

const STANDFAST: &str = env!("CARGO_BIN_EXE_standfast");

/// A daemon with a directory of its own, which hears what it tells systemd.
struct Daemon {
    directory: TempDir,
    child: Child,
    api: u16,
    systemd: UnixDatagram,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may be over already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file with this in place of its VIPs.
fn file(directory: &Path, api: u16, vips: &str) -> String {
    let at = directory.display();
    format!(
        "schema: v1
router: {{ asn: 64513, router_id: 192.0.2.11, local_address: 127.0.0.1 }}
state_dir: {at}/state
api: {{ listen: 127.0.0.1:{api}, socket: {at}/api.sock }}
bgp:
  listen_port: -1
  neighbors:
    - {{ name: front, address: 127.0.0.2, port: 1, peer_asn: 64512 }}
vips:
{vips}"
    )
}

const WEB: &str = "  - name: web
    prefix: 198.51.100.10/32
    checks: [{ name: app, type: push, push: { lease: 30m } }]
";

const MAIL: &str = "  - name: mail
    prefix: 198.51.100.25/32
    checks: [{ name: app, type: push, push: { lease: 30m } }]
";

impl Daemon {
    fn start(vips: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let systemd = UnixDatagram::bind(directory.path().join("notify")).unwrap();
        systemd.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let api = free.local_addr().unwrap().port();
        drop(free);
        let path = directory.path().join("config.yaml");
        std::fs::write(&path, file(directory.path(), api, vips)).unwrap();
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let child = Command::new(STANDFAST)
            .args(["run", "-c"])
            .arg(&path)
            .env("NOTIFY_SOCKET", directory.path().join("notify"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let daemon = Self { directory, child, api, systemd };
        assert!(daemon.told().contains("READY=1"), "{}", daemon.log());
        daemon
    }

    fn write(&self, vips: &str) {
        std::fs::write(self.path(), file(self.directory.path(), self.api, vips)).unwrap();
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("config.yaml")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// The next thing that systemd is told.
    fn told(&self) -> String {
        let mut octets = [0; 4096];
        let n = self
            .systemd
            .recv(&mut octets)
            .unwrap_or_else(|e| panic!("nothing was told: {e}\n{}", self.log()));
        String::from_utf8(octets[..n].to_vec()).unwrap()
    }

    fn command(&self, args: &[&str]) -> Output {
        Command::new(STANDFAST)
            .args(args)
            .arg("--api")
            .arg(format!("unix:{}/api.sock", self.directory.path().display()))
            .output()
            .unwrap()
    }

    fn reload(&self) -> (Option<i32>, String) {
        let output = self.command(&["reload"]);
        let told = [self.told(), self.told()];
        let monotonic = told[0].split("MONOTONIC_USEC=").nth(1).and_then(|n| n.trim().parse::<u64>().ok());
        assert!(told[0].contains("RELOADING=1") && monotonic.is_some_and(|n| n > 0), "{told:?}");
        assert!(told[1].contains("READY=1") && told[1].contains("STATUS=reload"), "{told:?}");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        (output.status.code(), self.plain(&said))
    }

    /// Without what is another at each run.
    fn plain(&self, text: &str) -> String {
        text.replace(&*self.directory.path().to_string_lossy(), "DIR").replace(&self.api.to_string(), "PORT")
    }

    fn status(&self) -> Value {
        serde_json::from_slice(&self.command(&["status", "--json"]).stdout).unwrap()
    }

    /// Asks over HTTP as any program would.
    fn post(&self, path: &str) -> (u16, Value) {
        let mut stream = UnixStream::connect(self.directory.path().join("api.sock")).unwrap();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap())
    }

    fn state(&self, vip: &str) -> Option<String> {
        let status = self.status();
        let vip = status["vips"].as_array().unwrap().iter().find(|v| v["name"] == vip)?;
        Some(vip["state_name"].as_str().unwrap().to_owned())
    }

    fn until(&self, what: &str, done: impl Fn() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(20), "{what}: never\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reload").join(name);
    if std::env::var("GOLDEN").is_ok_and(|v| v == "write") {
        std::fs::write(&path, text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap_or_default(), "{}", path.display());
}

#[test]
fn what_the_file_does_not_change_goes_on_and_the_rest_follows() {
    let daemon = Daemon::start(WEB);
    assert!(daemon.command(&["report", "web", "--ok"]).status.success());
    daemon.until("announced", || daemon.state("web").as_deref() == Some("announced"));
    let old = daemon.directory.path().join("old.yaml");
    std::fs::copy(daemon.path(), &old).unwrap();

    assert_eq!(daemon.reload(), (Some(0), "nothing changes\n".into()));

    daemon.write(&[WEB, MAIL].concat());
    let plan =
        Command::new(STANDFAST).arg("plan").arg(daemon.path()).arg("--against").arg(&old).output().unwrap();
    let foreseen = String::from_utf8(plan.stdout).unwrap();
    assert!(
        foreseen.contains("+ vip mail") && foreseen.ends_with("2 added, 0 changed, 0 removed\n"),
        "{foreseen}"
    );
    assert_eq!(daemon.reload(), (Some(0), foreseen), "the preview is what is done");
    assert_eq!(daemon.state("mail").as_deref(), Some("withdrawn"), "what is new is closed until it is known");
    assert_eq!(daemon.state("web").as_deref(), Some("announced"));
    assert!(daemon.command(&["report", "mail", "--ok"]).status.success());
    daemon.until("announced too", || daemon.state("mail").as_deref() == Some("announced"));

    // A signal does the same.
    daemon.write(&[&WEB.replace("30m", "20m"), MAIL].concat());
    let signal = Command::new("kill").arg("-HUP").arg(daemon.child.id().to_string()).status();
    assert!(signal.unwrap().success());
    assert!(daemon.told().contains("RELOADING=1"));
    assert!(daemon.told().contains("STATUS=reloaded: 0 added, 1 changed, 0 removed"));
    assert_eq!(daemon.state("web").as_deref(), Some("announced"), "what was said of it still counts");
    assert!(daemon.log().contains("~ check web/app: lease"), "{}", daemon.log());

    // And so does the API. A VIP that goes is gone, with its check.
    daemon.write(MAIL);
    let (status, answer) = daemon.post("/api/v1/reload");
    assert_eq!((status, &answer["reloaded"]), (200, &Value::Bool(true)), "{answer}");
    assert_eq!(answer["result"], "reloaded: 0 added, 0 changed, 2 removed");
    assert_eq!((daemon.state("web"), daemon.state("mail").as_deref()), (None, Some("announced")));
    assert_eq!(daemon.post("/api/v1/vips/web/report").0, 404);
    let status = daemon.status();
    assert_eq!(
        (&status["reload"]["done"], &status["reload"]["result"]),
        (&Value::Bool(true), &answer["result"])
    );
}

#[test]
fn a_file_that_is_wrong_changes_nothing_and_every_problem_is_told_everywhere() {
    let daemon = Daemon::start(WEB);
    assert!(daemon.command(&["report", "web", "--ok"]).status.success());
    daemon.until("announced", || daemon.state("web").as_deref() == Some("announced"));
    let broken = WEB
        .replace("prefix: 198.51.100.10/32", "prefix: 198.51.100.10/33")
        .replace("lease: 30m", "lease: soon");
    daemon.write(&[&broken, MAIL].concat());
    let (code, said) = daemon.reload();
    assert_eq!(code, Some(2));
    golden("broken.stderr", &said);
    let (status, answer) = daemon.post("/api/v1/reload");
    assert_eq!((status, &answer["reloaded"]), (422, &Value::Bool(false)));
    let mut problems = answer["problems"].clone();
    problems
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .for_each(|p| drop(p.as_object_mut().unwrap().remove("report")));
    let text = daemon.plain(&format!("{problems:#}\n"));
    golden("broken.json", &text);
    assert_eq!((daemon.state("web").as_deref(), daemon.state("mail")), (Some("announced"), None));
    let status = daemon.status();
    assert_eq!(status["reload"]["problems"].as_array().unwrap().len(), 2, "{status:#}");
    let shown = String::from_utf8(daemon.command(&["status"]).stdout).unwrap();
    assert!(shown.contains("configuration: reload refused, nothing was changed: 2 problems: "), "{shown}");
    assert!(daemon.log().contains("config.yaml:11:13: "), "{}", daemon.log());

    // One that is right again ends it.
    daemon.write(WEB);
    assert_eq!(daemon.post("/api/v1/reload").0, 200);
    assert_eq!(daemon.status()["reload"]["done"], true);
}

#[test]
fn what_needs_a_restart_is_named_with_its_place_and_nothing_of_the_file_is_applied() {
    let daemon = Daemon::start(WEB);
    let old = daemon.directory.path().join("old.yaml");
    std::fs::copy(daemon.path(), &old).unwrap();
    let text = file(daemon.directory.path(), daemon.api, &[WEB, MAIL].concat());
    let text = text.replace("asn: 64513", "asn: 64999").replace("api.sock", "other.sock");
    let text = text.replace("router_id: 192.0.2.11", "router_id: 192.0.2.12");
    std::fs::write(daemon.path(), text).unwrap();
    let (code, said) = daemon.reload();
    assert_eq!(code, Some(2));
    golden("restart.stderr", &said);
    assert_eq!(daemon.state("mail"), None);
    let plan =
        Command::new(STANDFAST).arg("plan").arg(daemon.path()).arg("--against").arg(&old).output().unwrap();
    let plan = String::from_utf8(plan.stdout).unwrap();
    assert!(plan.contains("! router.asn: ") && plan.contains("! api.socket: "), "{plan}");
}
