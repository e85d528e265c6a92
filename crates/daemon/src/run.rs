//! `standfast run`: wires the driver, the prober, the API and the signals together, and ends in order.

use sd_notify::NotifyState;
use standfast_core::node::{Event, Input, Node};
use standfast_io::drive::{Driver, Handle};
use standfast_io::{memory, watch};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

use crate::api::{self, Api};
use crate::checks::Checks;
use crate::cli;
use crate::config::Loaded;
use crate::reload::{self, Reloads};
use crate::state::{self, State};
use crate::telemetry;

/// How often it is looked how the drains go.
const PERIOD: Duration = Duration::from_secs(1);
/// How long the speaker may take to tell.
const PATIENCE: Duration = Duration::from_millis(500);
/// While a drain goes on, systemd is asked each second to wait for so long, in microseconds.
const GRACE_MICROS: u32 = 10_000_000;

/// The longest that a stop waits for the state file to be written.
const STATE_WAIT: Duration = Duration::from_secs(1);

/// By then every check has run, and what it takes from then on is what it took before.
const SETTLED: Duration = Duration::from_secs(5);

/// Runs the daemon with the configuration at `path` until it is told to stop.
pub fn run(path: &Path) -> ExitCode {
    memory::share();
    let Some(loaded) = cli::load(path) else { return ExitCode::from(cli::WRONG) };
    telemetry::start(&loaded.daemon.logging);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let result = runtime.map_err(|e| format!("cannot start the runtime: {e}")).and_then(|runtime| {
        let result = runtime.block_on(serve(path, loaded));
        // Probes that are still out must not delay the end.
        runtime.shutdown_timeout(Duration::from_millis(100));
        result
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            tracing::error!("{why}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(path: &Path, loaded: Loaded) -> Result<(), String> {
    let (plan, daemon) = loaded.into_running();
    let plan = Arc::new(plan);
    let listeners = api::bind(&daemon.api).await?;
    let json = daemon.logging.json;
    let log = move |event: &Event| telemetry::log(json, event);
    let seed = RandomState::new().build_hasher().finish();
    let (driver, handle) = Driver::new(Arc::clone(&plan), seed, log).map_err(|e| e.to_string())?;
    let mut terminate = hear(SignalKind::terminate())?;
    let mut interrupt = hear(SignalKind::interrupt())?;
    let mut hangup = hear(SignalKind::hangup())?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "starting");
    let checks = Arc::new(Checks::start(&plan, &handle)?);
    let paced = Arc::clone(&checks);
    let driver = driver.on_pace(move |id, on| paced.hurry(id, on));
    let state = Arc::new(State::new(daemon.state_dir.clone(), plan.router.router_id));
    state.recall(&handle);
    let (changed, told) = state::signal();
    // One that finds no room was told already.
    let driver = driver.on_remember(move || _ = changed.try_send(()));
    state.keep(handle.clone(), told)?;
    let (ended, mut over) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("standfast".to_owned())
        .spawn(move || {
            // The receiver is gone only if the daemon already ends.
            let _ = ended.send(driver.run());
        })
        .map_err(|e| format!("cannot start the driver's thread: {e}"))?;
    let node = handle.clone();
    let tell = move |name: &str, is| node.send(Input::LowerPriorityFile(name.to_owned(), is));
    let mut files = watch::Files::new(tell);
    files
        .set(reload::drain_files(&plan))
        .map_err(|e| format!("cannot start the drain files' thread: {e}"))?;
    let served = daemon.api.clone();
    let reloads = Reloads::new(path.to_owned(), daemon, handle.clone(), Arc::clone(&checks), files);
    let reloads = Arc::new(reloads);
    let api = Api::new(handle.clone(), Arc::clone(&checks), Arc::clone(&reloads), served.tokens.clone());
    tokio::spawn(api::serve(listeners, api.router(), served));
    drop(plan);
    // The text and the tree of a large configuration, of which little is left; later what the first runs took.
    memory::give_back();
    tokio::spawn(async {
        tokio::time::sleep(SETTLED).await;
        memory::give_back();
    });
    // Not under systemd: nobody to tell.
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    let mut stopping = Leaving::No;
    // The writing of the state file, once the daemon leaves.
    let mut written = None;
    let supervised = std::env::var_os("NOTIFY_SOCKET").is_some();
    if supervised {
        tokio::spawn(follow(handle.clone(), Arc::clone(&checks)));
    }
    loop {
        let why = tokio::select! {
            ended = &mut over => {
                if let Some(written) = written {
                    // A disk that hangs keeps nobody from leaving.
                    let _ = tokio::time::timeout(STATE_WAIT, written).await;
                }
                return match ended {
                    Ok(Ok(())) => {
                        tracing::info!("stopped");
                        Ok(())
                    }
                    Ok(Err(e)) => Err(format!("the driver failed: {e}")),
                    Err(_) => Err("the driver's thread died".to_owned()),
                };
            }
            _ = terminate.recv() => "received SIGTERM",
            _ = interrupt.recv() => "received SIGINT",
            _ = hangup.recv() => {
                let reloads = Arc::clone(&reloads);
                // What it has to say it says itself.
                tokio::task::spawn_blocking(move || drop(reloads.reload("received SIGHUP")));
                continue;
            }
        };
        // A second signal waits for no drain, and one after that for nothing.
        if stopping != Leaving::No && look(&handle).await.0 == Leaving::Closing {
            return Err("told to stop once more: ended at once; managed addresses stay until the next start"
                .to_owned());
        }
        if written.is_none() {
            let (state, node) = (Arc::clone(&state), handle.clone());
            let (asked, answered) = tokio::sync::oneshot::channel::<()>();
            written = Some(tokio::task::spawn_blocking(move || state.leave(&node, asked)));
            // Nothing is sent: that the sender is gone is what is waited for. A disk is not, before the peers are told.
            let _ = tokio::time::timeout(STATE_WAIT, answered).await;
        }
        if !handle.send(Input::Stop(why.to_owned())) {
            return Err("the driver does not listen: ended at once".to_owned());
        }
        let first = stopping == Leaving::No;
        stopping = look(&handle).await.0;
        if first {
            let _ = sd_notify::notify(&[NotifyState::Stopping]);
            if stopping == Leaving::Draining && !supervised {
                tokio::spawn(follow(handle.clone(), Arc::clone(&checks)));
            }
        }
        if stopping == Leaving::Closing {
            // Nothing is probed any more: no verdict can change the decision to leave.
            checks.stop();
        }
    }
}

fn hear(kind: SignalKind) -> Result<tokio::signal::unix::Signal, String> {
    signal(kind).map_err(|e| format!("cannot watch signals: {e}"))
}

/// How far the daemon is on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    /// It is not.
    No,
    /// It waits for VIPs that drain.
    Draining,
    /// It waits for nobody any more.
    Closing,
}

/// How far it is, and the VIPs that drain or are drained in words. A speaker that does not answer is past waiting for.
async fn look(handle: &Handle) -> (Leaving, String) {
    let ask = |node: &Node, now| {
        let drains = node.drains(now).into_iter().map(|(name, drain)| format!("{name} {drain}"));
        let leaving = match (node.is_closing(), node.stopping()) {
            (true, _) => Leaving::Closing,
            (false, Some(_)) => Leaving::Draining,
            (false, None) => Leaving::No,
        };
        (leaving, drains.collect::<Vec<_>>().join("; "))
    };
    let handle = handle.clone();
    let asked = tokio::task::spawn_blocking(move || handle.query(PATIENCE, ask)).await;
    asked.ok().flatten().unwrap_or((Leaving::Closing, String::new()))
}

/// Tells systemd each second how the drains go, that they may take their time, and ends the checks when none is left to wait for.
async fn follow(handle: Handle, checks: Arc<Checks>) {
    let mut said = String::new();
    loop {
        tokio::time::sleep(PERIOD).await;
        let (leaving, drains) = look(&handle).await;
        if drains != said {
            let text = if drains.is_empty() { "running" } else { &drains };
            // Not under systemd: nobody to tell.
            let _ = sd_notify::notify(&[NotifyState::Status(text)]);
            said = drains;
        }
        match leaving {
            Leaving::No => {}
            Leaving::Draining => drop(sd_notify::notify(&[NotifyState::ExtendTimeoutUsec(GRACE_MICROS)])),
            Leaving::Closing => return checks.stop(),
        }
    }
}
