//! The `process` check: a process of this host, followed to its end.
//!
//! A process that was found is held by a descriptor of its own (pidfd_open(2)), which means this process and no other that
//! gets its number later, and which the kernel makes readable in the moment in which it ends: [`Process::ended`] waits for
//! that, and the board has the check run at once. The run tells of the end before it looks for whoever took its place, so
//! that a restart that is faster than everything else is an end all the same.
//!
//! While the process lives a run costs a system call, and for a `pid_file` a look into the file. Whatever may hang, a file
//! system or systemd, is asked on a thread of its own, one at a time; an answer that comes after the run is the next one's.

use std::ffi::c_int;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use standfast_core::plan::{Followed, ProcessProbe};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use super::run::{Doing, Failure, clean};
use crate::dial::{is_exhaustion, words};

/// The largest number of a process (PID_MAX_LIMIT of the kernel).
const MOST: i32 = 1 << 22;
/// Octets of a pid file that are looked at: its first line is the number, and some daemons write more.
const FIRST: u64 = 64;

/// A process that is followed.
#[derive(Debug)]
pub(super) struct Process {
    finder: Arc<Finder>,
    name: Option<String>,
    state: Mutex<State>,
    /// Another process is held.
    found: Notify,
}

#[derive(Debug, Default)]
struct State {
    held: Option<Held>,
    /// How many were held so far.
    count: u64,
}

/// The process that was found.
#[derive(Debug, Clone)]
struct Held {
    pid: i32,
    /// Its name when it was found.
    comm: String,
    /// Readable once it has ended.
    fd: Arc<OwnedFd>,
    number: u64,
}

impl Process {
    pub(super) fn prepare(probe: &ProcessProbe) -> Self {
        Self::with(probe, Systemd::default())
    }

    fn with(probe: &ProcessProbe, systemd: Systemd) -> Self {
        let ProcessProbe { follows, name } = probe;
        let finder =
            Finder { follows: follows.clone(), systemd, answer: Mutex::default(), told: Notify::new() };
        Self { finder: Arc::new(finder), name: name.clone(), state: Mutex::default(), found: Notify::new() }
    }

    /// Whether it lives, and if none is held, whether there is one to hold.
    pub(super) async fn run(&self, doing: &Doing<'_>) -> Result<String, Failure> {
        let held = self.lock().held.clone();
        if let Some(held) = &held {
            if has_ended(&held.fd) {
                self.lock().held = None;
                return Err(Failure::Bad(format!("{held} has ended")));
            }
            if matches!(self.finder.follows, Followed::Unit(_)) {
                return Ok(format!("{held} runs"));
            }
        }
        doing.set(self.finder.words());
        let found = self.finder.find().await;
        match (held, found) {
            // A file that is just being written, or was tidied away, says nothing against a process that is held.
            (Some(held), Err(_)) => Ok(format!("{held} runs")),
            (Some(held), Ok(pid)) if held.pid == pid => Ok(format!("{held} runs")),
            (Some(held), Ok(pid)) => Ok(format!("{} runs", self.hold(pid).unwrap_or(held))),
            (None, Ok(pid)) => self.hold(pid).map(|held| format!("{held} runs")),
            (None, Err(why)) => Err(Failure::Bad(why)),
        }
    }

    /// Takes hold of a process, in place of the one that was held.
    fn hold(&self, pid: i32) -> Result<Held, Failure> {
        let gone = || Failure::Bad(format!("process {pid} of {} does not run", self.finder));
        let fd = open(pid).map_err(|e| match e.raw_os_error() {
            Some(libc::ESRCH | libc::EINVAL) => gone(),
            Some(libc::ENOSYS) => {
                Failure::Local("this kernel cannot follow processes: it is older than 5.3".into())
            }
            _ if is_exhaustion(&e) => Failure::Local(format!("cannot follow process {pid}: {}", words(&e))),
            _ => Failure::Bad(format!("cannot follow process {pid}: {}", words(&e))),
        })?;
        let comm = comm(pid);
        // Nobody buried it yet: its number is still its own.
        if has_ended(&fd) {
            return Err(gone());
        }
        if let Some(name) = self.name.as_ref().filter(|name| **name != comm) {
            let why = format!("process {pid} of {} is {comm} and not {name}", self.finder);
            return Err(Failure::Bad(why));
        }
        let mut state = self.lock();
        state.count += 1;
        let held = Held { pid, comm, fd: Arc::new(fd), number: state.count };
        state.held = Some(held.clone());
        drop(state);
        self.found.notify_one();
        Ok(held)
    }

    /// Waits until the process that is held has ended, once for each that was: `told` is the number of the last one that was
    /// told of, and what is returned is the next.
    pub(super) async fn ended(&self, told: u64) -> u64 {
        loop {
            let held = self.lock().held.clone().filter(|held| held.number > told);
            let Some(held) = held else {
                self.found.notified().await;
                continue;
            };
            // SAFETY: what is registered owns a descriptor, always the same one, which stays open as long as it is.
            let watched =
                unsafe { AsyncFd::register_with_interest(Arc::clone(&held.fd), Interest::READABLE) };
            // Without a place to wait the next run finds out.
            let Ok(watched) = watched else {
                self.found.notified().await;
                continue;
            };
            tokio::select! {
                _ = watched.readable() => return held.number,
                () = self.found.notified() => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} ({})", self.pid, self.comm)
    }
}

/// Where systemd is, if it runs this host.
#[derive(Debug, Clone)]
struct Systemd {
    /// There where it does (sd_booted(3)).
    booted: PathBuf,
    /// What asks it.
    program: PathBuf,
}

impl Default for Systemd {
    fn default() -> Self {
        Self { booted: "/run/systemd/system".into(), program: "systemctl".into() }
    }
}

/// Finds the number of the process, on a thread that may wait.
#[derive(Debug)]
struct Finder {
    follows: Followed,
    systemd: Systemd,
    answer: Mutex<Answer>,
    told: Notify,
}

#[derive(Debug, Default)]
enum Answer {
    #[default]
    Nothing,
    /// Somebody was asked, and has not answered.
    Asked,
    Here(Result<i32, String>),
}

impl Finder {
    async fn find(self: &Arc<Self>) -> Result<i32, String> {
        loop {
            // Before the look: what is told from here on is heard.
            let told = self.told.notified();
            let asked = match &mut *self.lock() {
                here @ Answer::Here(_) => match std::mem::take(here) {
                    Answer::Here(answer) => return answer,
                    _ => continue,
                },
                Answer::Asked => true,
                nothing => {
                    *nothing = Answer::Asked;
                    false
                }
            };
            if !asked {
                let finder = Arc::clone(self);
                let ask = move || {
                    let answer = finder.ask();
                    *finder.lock() = Answer::Here(answer);
                    finder.told.notify_waiters();
                };
                let started = std::thread::Builder::new().name("process".into()).spawn(ask);
                if let Err(e) = started {
                    *self.lock() = Answer::Nothing;
                    return Err(format!("cannot start a thread: {}", words(&e)));
                }
            }
            told.await;
        }
    }

    fn ask(&self) -> Result<i32, String> {
        match &self.follows {
            Followed::PidFile(path) => of_file(path),
            Followed::Unit(unit) => self.systemd.main_process(unit),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Answer> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn words(&self) -> String {
        match &self.follows {
            Followed::PidFile(path) => format!("reading {}", path.display()),
            Followed::Unit(unit) => format!("asking systemd for {unit}"),
        }
    }
}

impl std::fmt::Display for Finder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.follows {
            Followed::PidFile(path) => path.display().fmt(f),
            Followed::Unit(unit) => unit.fmt(f),
        }
    }
}

/// The number in a pid file.
fn of_file(path: &Path) -> Result<i32, String> {
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => format!(
            "{}: there is no such file: the service does not run, or writes another one",
            path.display()
        ),
        _ => format!("{}: {}", path.display(), words(&e)),
    };
    let mut text = Vec::new();
    File::open(path).and_then(|file| file.take(FIRST).read_to_end(&mut text)).map_err(failed)?;
    number(&text).map_err(|why| format!("{}: {why}", path.display()))
}

/// The number that a pid file begins with.
fn number(text: &[u8]) -> Result<i32, &'static str> {
    let line = text.split(|&b| b == b'\n').next().unwrap_or_default().trim_ascii();
    if line.is_empty() {
        return Err("it is empty: the service has not written its number yet");
    }
    let digits = std::str::from_utf8(line).ok().filter(|l| l.bytes().all(|b| b.is_ascii_digit()));
    let number = digits.and_then(|digits| digits.parse().ok()).filter(|n| (1..=MOST).contains(n));
    number.ok_or("its first line is not the number of a process")
}

impl Systemd {
    /// Asks for the main process of a unit.
    fn main_process(&self, unit: &str) -> Result<i32, String> {
        if !self.booted.exists() {
            return Err(
                "there is no systemd on this host: follow the service's pid_file instead of its unit".into(),
            );
        }
        let said = Command::new(&self.program)
            .args(["show", "--property=LoadState,ActiveState,SubState,MainPID", "--", unit])
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("cannot run {}: {}", self.program.display(), words(&e)))?;
        if !said.status.success() {
            let why = String::from_utf8_lossy(&said.stderr);
            let why: String = why.trim().chars().map(clean).take(200).collect();
            let why = if why.is_empty() { said.status.to_string() } else { why };
            return Err(format!("systemctl show {unit}: {why}"));
        }
        main_process(unit, &said.stdout)
    }
}

/// The main process in what `systemctl show` says of a unit, or why there is none.
fn main_process(unit: &str, said: &[u8]) -> Result<i32, String> {
    let said = String::from_utf8_lossy(said);
    let of = |key: &str| {
        let value =
            said.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default();
        value.chars().map(clean).take(40).collect::<String>()
    };
    let (load, active, sub) = (of("LoadState"), of("ActiveState"), of("SubState"));
    if load == "not-found" {
        return Err(format!("systemd knows no {unit}"));
    }
    if active.is_empty() {
        return Err(format!("systemd says nothing of {unit}"));
    }
    // One that is about to be there is not, and one that leaves is followed to its end by whoever holds it.
    if !["active", "reloading", "refreshing"].contains(&active.as_str()) {
        return Err(format!("{unit} is {active} ({sub})"));
    }
    let pid = of("MainPID").parse().ok().filter(|n| (0..=MOST).contains(n));
    match pid {
        Some(0) => Err(format!("{unit} is {active} ({sub}) and has no main process")),
        Some(pid) => Ok(pid),
        None => Err(format!("systemd says nothing of the main process of {unit}")),
    }
}

/// Reads a pid file, and what systemd says of a unit.
pub(super) fn fuzz(octets: &[u8]) {
    for found in [number(octets).map_err(str::to_owned), main_process("web.service", octets)] {
        match found {
            Ok(pid) => assert!((1..=MOST).contains(&pid), "{pid} is no process"),
            Err(why) => assert!(why.chars().count() <= 200, "{why}"),
        }
    }
}

/// The name of a process; empty if it is gone.
fn comm(pid: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end_matches('\n').chars().map(clean).collect()
}

/// A descriptor of a process.
fn open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes two numbers and no pointer; a flag is not set.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = c_int::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel made this descriptor for us, closed on exec, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether the process of a descriptor has ended, whether it was waited for or not.
fn has_ended(fd: &OwnedFd) -> bool {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `entry` is a live local, one of one, and its descriptor is open.
    let ready = unsafe { libc::poll(&raw mut entry, 1, 0) };
    ready > 0 && entry.revents & libc::POLLIN != 0
}

#[cfg(test)]
mod tests;
