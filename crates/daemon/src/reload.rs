//! A reload: the file is read and resolved as a whole, and then everything that it changes is changed, or nothing is.
//!
//! However it is asked for (SIGHUP, `standfast reload`, `POST /api/v1/reload`), it is the same, one at a time: its outcome is
//! answered, logged, told to systemd, and kept for status. What it changes is what `standfast plan FILE --against RUNNING` shows.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use hyper::{Method, StatusCode};
use sd_notify::NotifyState;
use serde_json::{Value, json};
use standfast_core::plan::Plan;
use standfast_io::drive::Handle;
use standfast_io::{memory, watch};

use crate::checks::Checks;
use crate::cli;
use crate::client::Api;
use crate::config::{self, Daemon, Problem, Severity};

/// How long a reload of a large file may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What can have a running daemon read its file again.
pub struct Reloads {
    path: PathBuf,
    handle: Handle,
    checks: Arc<Checks>,
    /// One reload at a time.
    running: Mutex<Running>,
    last: Mutex<Option<Value>>,
}

struct Running {
    daemon: Daemon,
    files: watch::Files,
}

/// What became of a reload.
#[derive(Debug)]
pub struct Outcome {
    /// Whether what runs is what the file says.
    pub done: bool,
    /// The same in one line.
    pub words: String,
    /// Everything, for whoever asked.
    pub answer: Value,
}

impl Reloads {
    /// Reloads of the daemon that runs with the file at `path`, whose drain files are watched by `files`.
    pub fn new(
        path: PathBuf,
        daemon: Daemon,
        handle: Handle,
        checks: Arc<Checks>,
        files: watch::Files,
    ) -> Self {
        let running = Mutex::new(Running { daemon, files });
        Self { path, handle, checks, running, last: Mutex::default() }
    }

    /// Reads the file and changes what it changes. It may wait for the disk, and for an earlier reload.
    pub fn reload(&self, by: &str) -> Outcome {
        let mut running = lock(&self.running);
        let now = NotifyState::monotonic_usec_now();
        // Not under systemd: nobody to tell.
        let _ = sd_notify::notify(&[NotifyState::Reloading].into_iter().chain(now).collect::<Vec<_>>());
        tracing::info!("configuration: {by}: reading {} again", self.path.display());
        let outcome = self.apply(&mut running);
        memory::give_back();
        match outcome.done {
            true => tracing::info!("configuration: {}", outcome.words),
            false => tracing::warn!("configuration: {}", outcome.words),
        }
        let _ = sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(&outcome.words)]);
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut last = json!({ "at": at, "done": outcome.done, "result": outcome.words });
        if let Some(problems) = outcome.answer.get("problems") {
            last["problems"] = problems.clone();
        }
        *lock(&self.last) = Some(last);
        outcome
    }

    /// The last one, if there was any.
    pub fn last(&self) -> Option<Value> {
        lock(&self.last).clone()
    }

    fn apply(&self, running: &mut Running) -> Outcome {
        let new = match config::load(&self.path) {
            Ok(new) => new,
            Err(problems) => return refused(problems.0.iter().map(told).collect()),
        };
        let old = self.checks.plan();
        let fixed = new.fixed(&old, &running.daemon);
        if !fixed.is_empty() {
            return refused(fixed.iter().map(told).collect());
        }
        let changes = cli::changes(&old, &running.daemon, &new);
        let config::Loaded { plan, daemon, warnings, .. } = new;
        let plan = Arc::new(plan);
        if let Err(problems) = self.checks.reload(&plan, || self.handle.reload(Arc::clone(&plan))) {
            return refused(problems.into_iter().map(|message| json!({ "message": message })).collect());
        }
        running.daemon = daemon;
        if let Err(e) = running.files.set(drain_files(&plan)) {
            tracing::warn!("cannot start the drain files' thread: {e}");
        }
        for line in changes.lines() {
            tracing::info!("configuration: {line}");
        }
        let count = changes.summary();
        let words = if changes.is_empty() {
            "reloaded: nothing changes".into()
        } else {
            format!("reloaded: {count}")
        };
        let answer = json!({
            "reloaded": true,
            "result": words,
            "changes": changes.json()["changes"],
            "text": changes.text(),
            "warnings": warnings.iter().map(told).collect::<Vec<_>>(),
        });
        Outcome { done: true, words, answer }
    }
}

/// The files that are watched for the VIPs of a plan.
pub fn drain_files(plan: &Plan) -> std::collections::BTreeMap<String, PathBuf> {
    let file = |(name, vip): (&String, &standfast_core::plan::Vip)| {
        Some((name.clone(), vip.lower_priority_file.clone()?))
    };
    plan.vips.iter().filter_map(file).collect()
}

/// A problem for a program, with the report that a person reads.
fn told(problem: &Problem) -> Value {
    let mut told = json!({
        "severity": if problem.severity == Severity::Error { "error" } else { "warning" },
        "path": problem.path,
        "message": problem.message,
        "help": problem.help,
        "file": problem.file(),
        "report": problem.render(false),
    });
    if let Some((line, column)) = problem.position() {
        told["line"] = line.into();
        told["column"] = column.into();
    }
    if let Some(token) = problem.token() {
        told["token"] = token.into();
    }
    told
}

fn refused(problems: Vec<Value>) -> Outcome {
    for problem in &problems {
        let place = match (problem["file"].as_str(), problem["line"].as_u64(), problem["column"].as_u64()) {
            (Some(file), Some(line), Some(column)) => format!("{file}:{line}:{column}: "),
            (Some(file), ..) => format!("{file}: "),
            _ => String::new(),
        };
        tracing::warn!("configuration: {place}{}", line(problem));
    }
    let errors = problems.iter().filter(|p| p["severity"] != "warning").count();
    let s = if errors == 1 { "" } else { "s" };
    let first = problems.iter().find(|p| p["severity"] != "warning").map(line).unwrap_or_default();
    let words = format!("reload refused, nothing was changed: {errors} problem{s}: {first}");
    let answer = json!({ "reloaded": false, "error": words, "problems": problems });
    Outcome { done: false, words, answer }
}

/// A problem in one line.
fn line(problem: &Value) -> String {
    let word = |key: &str| problem[key].as_str().unwrap_or_default();
    let colon = if word("path").is_empty() { "" } else { ": " };
    let help = problem["help"].as_str().map(|help| format!(" ({help})")).unwrap_or_default();
    format!("{}{colon}{}{help}", word("path"), word("message"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the running daemon read its configuration again, and shows what that changed.
///
/// What the file does not change goes on as it was. With a file that is wrong, or that changes what only a restart can, nothing
/// is changed at all. `standfast plan --against` shows beforehand what a reload will do. Exit code 0: what runs is what the file
/// says. 2: it was refused, and nothing has changed. 3: the daemon cannot be reached. A token, where the daemon wants one, is
/// taken from STANDFAST_TOKEN.
#[derive(Debug, Args)]
pub struct Reload {
    /// Which daemon.
    #[command(flatten)]
    pub daemon: cli::Daemon,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Asks for a reload and prints what became of it.
pub fn run(args: &Reload) -> Result<ExitCode, ExitCode> {
    let api = args.daemon.running()?;
    let answer = match api.ask(&Method::POST, "/api/v1/reload", None, PATIENCE) {
        Ok(answer) => answer,
        Err(why) => return Ok(cli::unreachable(&api, &why)),
    };
    Ok(show(&api, answer.status, &answer.value, args.json))
}

fn show(api: &Api, status: StatusCode, answer: &Value, json: bool) -> ExitCode {
    let done = status.is_success();
    if json {
        cli::print(&format!("{answer:#}\n"));
    } else {
        for problem in
            answer["problems"].as_array().into_iter().chain(answer["warnings"].as_array()).flatten()
        {
            let report =
                problem["report"].as_str().map_or_else(|| format!("error: {}", line(problem)), str::to_owned);
            eprintln!("{report}\n");
        }
        match (done, answer["error"].as_str()) {
            (true, _) => _ = cli::print(answer["text"].as_str().unwrap_or_default()),
            (false, Some(error)) => eprintln!("standfast: {error}"),
            (false, None) => {
                eprintln!("standfast: the daemon at {api} does not know how to reload: {status}")
            }
        }
    }
    if done { ExitCode::SUCCESS } else { ExitCode::from(cli::WRONG) }
}
