//! The `exec` check: a command of this host, and what it says by its exit status.
//!
//! Each run has a thread that starts the command, reads what it says, and waits for its end: no slow disk and no flood of
//! output holds up the runtime. A command is a process group of its own. The whole group is killed when the command itself
//! has ended, when its time is up, and when the run is given up; the next run waits until nothing of it is left. If the
//! daemon dies, the kernel kills the command. What leaves the group (`setsid`) is found as long as it holds the run's output,
//! ended, and told by the next run. What has become another user, as with `sudo`, is out of reach unless the daemon is root:
//! it is waited for, and nothing new runs.

mod escaped;
mod start;
mod user;

use std::ffi::{CString, c_int};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use standfast_core::health::disturbs;
use standfast_core::plan::ExecProbe;
use tokio::sync::oneshot;

use super::run::{self, Doing, Failure};
use crate::dial::{is_exhaustion, words};
use escaped::Escaped;
use start::{Child, Program, Reached, StartError, Step, reap, signal_group};
use user::User;

/// What a pipe holds at most: all that a command that has ended can have left in it.
const PIPE: usize = 64 * 1024;

/// How often killed processes are looked for while they have not ended yet.
const LOOK: Duration = Duration::from_millis(20);

/// Room for the thread of a run.
const STACK: usize = 256 * 1024;

/// Where commands look for others if this process has no `PATH` to pass on.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A command that can be run.
#[derive(Debug)]
pub(super) struct Exec {
    program: Arc<Program>,
    output_limit: usize,
    nagios: bool,
    /// Held by a run until nothing of it is left.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Whether the run that holds the turn could not be killed.
    immune: Arc<AtomicBool>,
    /// What the last run left outside its group.
    escaped: Arc<Mutex<Option<Escaped>>>,
}

impl Exec {
    /// Looks for the program and the user.
    pub(super) fn prepare(probe: &ExecProbe) -> Result<Self, String> {
        let ExecProbe { argv, env, directory, user, output_limit, nagios } = probe;
        let path = argv.first().ok_or("there is no command")?;
        executable(Path::new(path)).map_err(|why| format!("{path}: {why}"))?;
        if !directory.is_dir() {
            return Err(format!("{}: the working directory is no directory", directory.display()));
        }
        let user = user.as_deref().map(User::find).transpose()?.filter(|user| !user.is_us());
        let text = |text: &str| {
            CString::new(text).map_err(|_| format!("{text:?} holds a zero octet, which no command can take"))
        };
        let mut env = env.clone();
        env.entry("PATH".into()).or_insert_with(|| std::env::var("PATH").unwrap_or(DEFAULT_PATH.into()));
        let program = Program {
            argv: argv.iter().map(|a| text(a)).collect::<Result<_, _>>()?,
            env: env
                .iter()
                .map(|(name, value)| text(&format!("{name}={value}")))
                .collect::<Result<_, _>>()?,
            directory: text(&directory.to_string_lossy())?,
            user,
        };
        Ok(Self {
            program: Arc::new(program),
            output_limit: *output_limit,
            nagios: *nagios,
            turn: Arc::default(),
            immune: Arc::default(),
            escaped: Arc::default(),
        })
    }

    /// Runs the command to its end. Dropping the future kills it, and notes what it said so far.
    pub(super) async fn run(&self, doing: &Doing<'_>) -> Result<String, Failure> {
        let turn = match Arc::clone(&self.turn).try_lock_owned() {
            Ok(turn) => turn,
            Err(_) => {
                doing.set("waiting for what is left of the last run, which was killed, to end");
                let waiting = Waiting { immune: &self.immune, doing };
                let turn = Arc::clone(&self.turn).lock_owned().await;
                drop(waiting);
                turn
            }
        };
        if let Some(Escaped { found, immune }) = self.left_behind().take() {
            let (s, end) =
                (if found == 1 { "" } else { "es" }, if immune { "may not be ended" } else { "ended" });
            doing.remark(format!("the last run left {found} process{s} outside its group: {end}"));
        }
        let path = self.program.argv[0].to_string_lossy();
        doing.set(format!("running {path}"));
        let live = Arc::new(Live::new(self.output_limit, Arc::clone(&self.immune)));
        let run = Run { live: Arc::clone(&live), doing };
        let (tell, told) = oneshot::channel();
        let (program, escaped) = (Arc::clone(&self.program), Arc::clone(&self.escaped));
        let supervise = move || {
            let left = live.supervise(&program, tell);
            *escaped.lock().unwrap_or_else(PoisonError::into_inner) = left;
            live.immune.store(false, Ordering::Relaxed);
            drop(turn);
        };
        std::thread::Builder::new()
            .name("exec".into())
            .stack_size(STACK)
            .spawn(supervise)
            .map_err(|e| Failure::Local(format!("cannot start a thread: {}", words(&e))))?;
        let ended = told.await.map_err(|_| Failure::Local("the command's thread ended early".into()))?;
        let status = ended.map_err(|e| self.not_started(&path, &e))?;
        let line = first_line(&run.live.lock().output);
        doing.note(|saw| saw.exit_code = status.code());
        let Some(code) = status.code() else {
            let signal = status.signal().unwrap_or_default();
            return Err(Failure::Bad(said(format!("killed by {}", signal_name(signal)), &line)));
        };
        if self.nagios { nagios(code, &line) } else { plain(code, &line) }
    }

    fn left_behind(&self) -> MutexGuard<'_, Option<Escaped>> {
        self.escaped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why nothing ran. Only a lack of this host's own says nothing about the check.
    fn not_started(&self, path: &str, e: &StartError) -> Failure {
        let why = words(&e.cause);
        let text = match (e.step, &self.program.user) {
            (Step::Process | Step::Output, _) => format!("cannot start a process: {why}"),
            (Step::User, Some(User { uid, .. })) => format!("cannot become user {uid}: {why}"),
            (Step::User, None) => format!("cannot become the user: {why}"),
            (Step::Directory, _) => format!("{}: {why}", self.program.directory.to_string_lossy()),
            // The kernel says so of a script whose interpreter is missing, too.
            (Step::Execute, _) if e.cause.kind() == io::ErrorKind::NotFound && Path::new(path).exists() => {
                format!("{path}: its interpreter is missing: look at its first line")
            }
            (Step::Execute, _) => format!("{path}: {why}"),
        };
        let local =
            is_exhaustion(&e.cause) || matches!(e.cause.raw_os_error(), Some(libc::EAGAIN | libc::ENFILE));
        if local { Failure::Local(text) } else { Failure::Bad(text) }
    }
}

/// Whether a file can be executed at all, by anybody.
fn executable(path: &Path) -> Result<(), &'static str> {
    match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err("no such file"),
        Err(_) => Err("this file cannot be reached"),
        Ok(file) if !file.is_file() => Err("this is not a file"),
        Ok(file) if file.permissions().mode() & 0o111 == 0 => Err("this file is not executable: chmod +x"),
        Ok(_) => Ok(()),
    }
}

/// What is said of a run that cannot be killed.
const IMMUNE: &str = "the command could not be killed: it has become another user";

/// The wait for the turn; says why it takes long if it is given up.
struct Waiting<'a> {
    immune: &'a AtomicBool,
    doing: &'a Doing<'a>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.immune.load(Ordering::Relaxed) {
            self.doing.remark(IMMUNE.to_owned());
        }
    }
}

/// One run as its future sees it; gives it up when dropped.
struct Run<'a> {
    live: Arc<Live>,
    doing: &'a Doing<'a>,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let mut state = self.live.lock();
        state.given_up = true;
        if let Some(pid) = state.leader
            && self.live.kill(pid) == Reached::Forbidden
        {
            self.doing.remark(IMMUNE.to_owned());
        }
        if !state.output.is_empty() {
            let output = clean(&state.output);
            self.doing.note(|saw| saw.output = Some(output));
        }
    }
}

/// One run, shared by its future and its thread.
#[derive(Debug)]
struct Live {
    limit: usize,
    immune: Arc<AtomicBool>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The command, from its start until it is reaped: as long as its number is certainly its own.
    leader: Option<libc::pid_t>,
    given_up: bool,
    output: Vec<u8>,
}

impl Live {
    fn new(limit: usize, immune: Arc<AtomicBool>) -> Self {
        Self { limit, immune, state: Mutex::default() }
    }

    /// Kills what may be killed of the group.
    fn kill(&self, pgid: libc::pid_t) -> Reached {
        self.signal(pgid, libc::SIGKILL)
    }

    fn signal(&self, pgid: libc::pid_t, signal: c_int) -> Reached {
        let reached = signal_group(pgid, signal);
        self.immune.fetch_or(reached == Reached::Forbidden, Ordering::Relaxed);
        reached
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the command, tells how it ended, and returns when nothing of it is left, with what had left its group.
    fn supervise(
        &self,
        program: &Program,
        tell: oneshot::Sender<Result<ExitStatus, StartError>>,
    ) -> Option<Escaped> {
        let (child, pipe) = match self.start(program) {
            Ok(started) => started,
            Err(e) => {
                // Nobody may be waiting any more.
                let _ = tell.send(Err(e));
                return None;
            }
        };
        let mut chunk = vec![0; 16 * 1024];
        let open = self.listen(&child, pipe, &mut chunk);
        // Whoever is left of the group, while the dead leader still keeps its number from others.
        self.kill(child.pid);
        let status = {
            let mut state = self.lock();
            state.leader = None;
            reap(child.pid)
        };
        let ended = status.map(ExitStatus::from_raw).ok_or_else(|| StartError {
            step: Step::Process,
            cause: io::Error::other("somebody else took its status"),
        });
        // Nobody may be waiting any more.
        let _ = tell.send(ended);
        // As the first process of a container we inherit the rest of the group; otherwise there is nothing here.
        while reap(-child.pid).is_some() {}
        while self.signal(child.pid, 0) != Reached::Nobody && is_alive(child.pid) {
            std::thread::sleep(LOOK);
        }
        escaped::end(open?, &mut chunk)
    }

    fn start(&self, program: &Program) -> Result<(Child, File), StartError> {
        let failed = |cause| StartError { step: Step::Output, cause };
        let null = File::open("/dev/null").map_err(failed)?;
        let (reader, writer) = io::pipe().map_err(failed)?;
        let reader = OwnedFd::from(reader);
        nonblocking(&reader).map_err(failed)?;
        let child = start::start(program, null.as_fd(), writer.as_fd())?;
        let mut state = self.lock();
        state.leader = Some(child.pid);
        if state.given_up {
            self.kill(child.pid);
        }
        Ok((child, File::from(reader)))
    }

    /// Reads what the command says until it has ended, and then what it had said before; the pipe, if others may still write.
    fn listen(&self, child: &Child, mut pipe: File, chunk: &mut [u8]) -> Option<File> {
        let mut open = true;
        loop {
            let (ended, readable) = wait(&child.ended, open.then_some(&pipe));
            if readable && !ended {
                open = self.take(&mut pipe, chunk).is_some();
            }
            if ended {
                break;
            }
        }
        // Others may still write: no more is read than what can have been there at the end.
        let mut left = PIPE;
        while open && left > 0 {
            match self.take(&mut pipe, chunk) {
                Some(0) => break,
                Some(n) => left = left.saturating_sub(n),
                None => open = false,
            }
        }
        open.then_some(pipe)
    }

    /// Reads once: how much there was, or `None` at the end. Keeps no more than the limit.
    fn take(&self, pipe: &mut File, chunk: &mut [u8]) -> Option<usize> {
        match pipe.read(chunk) {
            Ok(0) => None,
            Ok(n) => {
                let mut state = self.lock();
                let room = self.limit.saturating_sub(state.output.len()).min(n);
                state.output.extend_from_slice(&chunk[..room]);
                Some(n)
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Some(0),
            Err(_) => None,
        }
    }
}

/// Waits until the command has ended, or said something.
fn wait(ended: &OwnedFd, pipe: Option<&File>) -> (bool, bool) {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // A negative descriptor is left out.
    let mut entries = [entry(ended.as_raw_fd()), entry(pipe.map_or(-1, AsRawFd::as_raw_fd))];
    // SAFETY: `entries` is a live local of two entries, and both descriptors are open.
    let n = unsafe { libc::poll(entries.as_mut_ptr(), 2, -1) };
    if n < 0 {
        return (false, false);
    }
    (entries[0].revents != 0, entries[1].revents != 0)
}

fn nonblocking(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: sets a flag of a descriptor that is open.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Whether any process of a group that exists has not ended yet. One that nobody buries has.
fn is_alive(pgid: libc::pid_t) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    let mut seen = false;
    for process in processes.flatten() {
        let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // The name, in parentheses, may hold anything.
        let mut fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
        let (state, group) = (fields.next().unwrap_or("Z"), fields.nth(1));
        if group.and_then(|g| g.parse().ok()) == Some(pgid) {
            if !matches!(state, "Z" | "X") {
                return true;
            }
            seen = true;
        }
    }
    // Where /proc hides other users' processes, nobody is seen of a group of theirs.
    !seen
}

fn plain(code: i32, line: &str) -> Result<String, Failure> {
    let text = said(format!("exit {code}"), line);
    if code == 0 { Ok(text) } else { Err(Failure::Bad(text)) }
}

/// The exit codes of Nagios plugins; what follows a `|` is performance data.
fn nagios(code: i32, line: &str) -> Result<String, Failure> {
    let line = line.split('|').next().unwrap_or_default().trim_end();
    let or = |word: &str| if line.is_empty() { word.to_owned() } else { line.to_owned() };
    match code {
        0 => Ok(or("OK")),
        1 => Ok(or("WARNING")),
        2 => Err(Failure::Bad(or("CRITICAL"))),
        3 => Err(Failure::Local(or("UNKNOWN"))),
        _ => Err(Failure::Bad(said(format!("exit {code}, which no plugin returns"), line))),
    }
}

fn said(how: String, line: &str) -> String {
    if line.is_empty() { how } else { format!("{how}: {line}") }
}

/// The first line that says anything, without what could not be seen.
fn first_line(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let said = |line: &str| line.chars().filter(|&c| !disturbs(c)).collect::<String>().trim().to_owned();
    text.lines().map(said).find(|line| !line.is_empty()).unwrap_or_default()
}

/// Output as text that disturbs no terminal.
fn clean(output: &[u8]) -> String {
    let clean = |c: char| if matches!(c, '\n' | '\t') { c } else { run::clean(c) };
    String::from_utf8_lossy(output).chars().map(clean).collect()
}

fn signal_name(signal: c_int) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGABRT => "SIGABRT",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGBUS => "SIGBUS",
        libc::SIGXCPU => "SIGXCPU",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}
