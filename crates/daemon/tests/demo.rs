//! `standfast demo`, as an operator runs it: with root and without.

#![expect(clippy::unwrap_used, reason = "all of it is a test")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

/// Who runs it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum User {
    Own,
    Nobody,
}

/// A place of its own for the program and its temporary files: whatever is left there, or runs from there, was left behind.
struct Place {
    directory: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

/// One demo at a time, for it measures.
static TURN: Mutex<()> = Mutex::new(());

impl Place {
    fn new() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let open = fs::Permissions::from_mode(0o777);
        let directory = tempfile::Builder::new().permissions(open.clone()).tempdir().unwrap();
        // The mode of a new directory is masked.
        fs::set_permissions(directory.path(), open).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_standfast"), directory.path().join("standfast")).unwrap();
        Self { directory, _turn: turn }
    }

    fn program(&self) -> PathBuf {
        self.directory.path().join("standfast")
    }

    fn demo(&self, user: User, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        command.arg("demo").args(arguments);
        command.env("TMPDIR", self.directory.path()).env("HOME", self.directory.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if user == User::Nobody {
            command.uid(65534).gid(65534);
        }
        command
    }

    /// Process ids of what runs from here, and files that are not the program.
    fn left(&self) -> (Vec<String>, Vec<PathBuf>) {
        let program = self.program();
        let runs = |pid: &String| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program);
        let numbers =
            fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().into_string().ok());
        let pids = numbers.filter(|n| n.bytes().all(|b| b.is_ascii_digit())).filter(runs).collect();
        let files = fs::read_dir(self.directory.path()).unwrap().flatten().map(|e| e.path());
        (pids, files.filter(|f| *f != program).collect())
    }
}

/// Whether a user can be had for a test; says so if not.
fn available(test: &str, user: User) -> bool {
    let available = user == User::Own || geteuid().is_root();
    if !available {
        eprintln!("SKIP {test}: needs root to become nobody");
    }
    available
}

/// Whether what the demo said means that this machine forbids namespaces; says so then.
fn forbidden(test: &str, said: &str) -> bool {
    let line = said.lines().find(|l| {
        [
            "cannot make a user namespace",
            "cannot make a network namespace",
            "cannot become root of a user namespace",
        ]
        .iter()
        .any(|text| l.contains(text))
    });
    if let Some(line) = line {
        eprintln!("SKIP {test}: {line}");
    }
    line.is_some()
}

fn everything_holds(test: &str, user: User) {
    if !available(test, user) {
        return;
    }
    let place = Place::new();
    let start = Instant::now();
    let output = place.demo(user, &["--fast", "--json"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if forbidden(test, &said) {
        return;
    }
    assert!(output.status.success(), "{}: {said}{}", output.status, String::from_utf8_lossy(&output.stdout));
    assert!(start.elapsed() < Duration::from_secs(20), "it took {:?}: {said}", start.elapsed());

    // Nothing but the object is on standard output.
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["ok"], true, "{object:#}");
    for gateway in ["gw1", "gw2", "gw3"] {
        assert!(object["gateways"][gateway].as_u64().unwrap() > 100, "{object:#}");
    }
    let events = object["events"].as_array().unwrap();
    let names: Vec<&str> = events.iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["join", "unhealthy", "recovered", "killed", "returned"]);
    for event in events {
        // How many may be lost is part of what the demo judges, for it knows how busy the machine was.
        assert!(event["requests_lost"].is_u64(), "{object:#}");
        assert!(event["gap_ms"].as_u64().unwrap() >= 1, "{object:#}");
    }
    // A service that answers with errors is noticed by the check, so by then a client has noticed too.
    assert!(events[1]["requests_lost"].as_u64().unwrap() > 0, "{object:#}");
    let connections = object["connections"].as_array().unwrap();
    let of = |hashing: &str| -> Vec<(&str, u64, u64)> {
        let of = connections.iter().filter(|c| c["hashing"] == hashing);
        let number = |c: &serde_json::Value, key: &str| c[key].as_u64().unwrap();
        of.map(|c| (c["event"].as_str().unwrap(), number(c, "on_survivors"), number(c, "broken"))).collect()
    };
    for hashing in ["plain", "resilient"] {
        let events: Vec<&str> = of(hashing).iter().map(|c| c.0).collect();
        assert_eq!(events, ["drained", "killed", "joined"], "{object:#}");
        // Two thirds are on gateways that are not killed, or so.
        assert!(
            of(hashing).iter().all(|&(_, on_survivors, _)| (200..=400).contains(&on_survivors)),
            "{object:#}"
        );
    }
    assert!(of("resilient").iter().all(|&(.., broken)| broken == 0), "{object:#}");
    // A drain breaks nothing either way, as long as new connections can be kept elsewhere.
    assert!(of("plain").iter().all(|&(event, _, broken)| broken > 0 || event == "drained"), "{object:#}");
    assert_eq!(place.left(), (Vec::new(), Vec::new()));
}

#[test]
fn everything_holds_as_the_own_user() {
    everything_holds("everything_holds_as_the_own_user", User::Own);
}

#[test]
fn everything_holds_without_root() {
    everything_holds("everything_holds_without_root", User::Nobody);
}

/// Starts it and waits until all gateways are members; `None` where namespaces are forbidden.
fn started(test: &str, place: &Place) -> Option<Child> {
    let user = if geteuid().is_root() { User::Nobody } else { User::Own };
    let mut child = place.demo(user, &["--keep"]).spawn().unwrap();
    let mut said = String::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok) {
        if line.contains("are members too") {
            return Some(child);
        }
        said.push_str(&line);
        said.push('\n');
    }
    child.wait().unwrap();
    assert!(forbidden(test, &said), "it ended: {said}");
    None
}

#[test]
fn a_signal_ends_it_and_leaves_nothing() {
    let place = Place::new();
    let Some(mut child) = started("a_signal_ends_it_and_leaves_nothing", &place) else { return };
    // Itself, the front's daemon, and two processes on each gateway.
    assert_eq!(place.left().0.len(), 8);
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(place.left(), (Vec::new(), Vec::new()));
}

#[test]
fn nothing_outlives_it_even_if_it_is_killed() {
    let place = Place::new();
    let Some(mut child) = started("nothing_outlives_it_even_if_it_is_killed", &place) else { return };
    child.kill().unwrap();
    child.wait().unwrap();
    let start = Instant::now();
    while !place.left().0.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(5), "still there: {:?}", place.left().0);
        std::thread::sleep(Duration::from_millis(10));
    }
}
