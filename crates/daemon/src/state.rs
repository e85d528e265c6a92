//! The file that outlives the process: [`Facts`], one JSON object for each router ID in the state directory.
//!
//! Whoever adds a fact adds a field to [`Facts`] in `core` and says there when it changes; nothing is to be done here. The file is
//! replaced as a whole, so that there is always one that is complete, and is made only once there is something to remember. One
//! that cannot be read or written is a warning: the daemon runs without it.

use serde::{Deserialize, Serialize};
use standfast_core::node::{Facts, Input};
use standfast_io::drive::Handle;
use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where the file is if nobody says anything else.
const DIRECTORY: &str = "/var/lib/standfast";
/// A file that is larger is not ours.
const LARGEST: u64 = 16 << 20;
/// The least time between two writings.
const PAUSE: Duration = Duration::from_millis(200);
/// How long the node may take to tell.
const PATIENCE: Duration = Duration::from_secs(2);

/// The file as it is written.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    /// Of this layout.
    version: u32,
    /// Seconds since 1970, from which the ages count.
    written: f64,
    #[serde(flatten)]
    facts: Facts,
}

/// The layout that is written and read.
const VERSION: u32 = 1;

/// The file of one daemon.
#[derive(Debug)]
pub struct State {
    path: PathBuf,
    kept: Mutex<Kept>,
}

/// What is known of the file.
#[derive(Debug, Default)]
struct Kept {
    /// It holds something.
    full: bool,
    /// Why the last writing failed.
    failed: Option<String>,
    /// The daemon ends in order.
    leaves: bool,
}

impl State {
    /// The file of the daemon with this router ID, in the directory that is `configured`, or where the system keeps such files.
    pub fn new(configured: Option<PathBuf>, router_id: std::net::Ipv4Addr) -> Self {
        let systemd = || {
            let given = std::env::var_os("STATE_DIRECTORY")?;
            std::env::split_paths(&given).find(|dir| dir.is_absolute())
        };
        let dir = configured.or_else(systemd).unwrap_or_else(|| PathBuf::from(DIRECTORY));
        let path = dir.join(format!("{router_id}.json"));
        Self { path, kept: Mutex::default() }
    }

    /// Hands the node what an earlier run knew, if anything.
    pub fn recall(&self, handle: &Handle) {
        match read(&self.path, SystemTime::now()) {
            Ok(facts) if facts.is_empty() => {}
            Ok(facts) => {
                self.kept().full = true;
                handle.send(Input::Recalled(Box::new(facts)));
            }
            Err(why) => tracing::warn!(
                "state {}: {why}: drain orders, what floors held, and failures are forgotten",
                self.path.display()
            ),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What keeps the file, on a thread of its own: whoever waits for a disk is nobody else. It is told by the sender that
    /// something has changed.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn keep(self: &Arc<Self>, handle: Handle, changed: Receiver<()>) -> Result<(), String> {
        let state = Arc::clone(self);
        let keep = move || {
            while changed.recv().is_ok() {
                state.save(&handle);
                std::thread::sleep(PAUSE);
            }
        };
        let thread = std::thread::Builder::new().name("state".to_owned()).spawn(keep);
        thread.map(drop).map_err(|e| format!("cannot start the state file's thread: {e}"))
    }

    /// The daemon is about to end in order: writes what the next one is to know. `asked` is dropped once the node has been asked
    /// for that, so that nobody waits for a disk before it goes.
    pub fn leave<T>(&self, handle: &Handle, asked: T) {
        self.kept().leaves = true;
        self.save_and(handle, || drop(asked));
    }

    fn save(&self, handle: &Handle) {
        self.save_and(handle, || {});
    }

    /// Writes what the node knows, unless that is nothing, as in the file, or the node leaves; says so when it has been asked.
    fn save_and(&self, handle: &Handle, asked: impl FnOnce()) {
        let mut kept = self.kept();
        let facts = handle.query(PATIENCE, |node, now| node.facts(now));
        asked();
        let Some(Some(facts)) = facts else { return };
        let facts = if kept.leaves { facts.in_order() } else { facts };
        if facts.is_empty() && !kept.full {
            return;
        }
        match write(&self.path, &facts, SystemTime::now()) {
            Ok(()) => (kept.full, kept.failed) = (!facts.is_empty(), None),
            Err(why) => {
                if kept.failed.as_ref() != Some(&why) {
                    let path = self.path.display();
                    tracing::warn!(
                        "state {path}: {why}: a restart forgets drain orders, what floors hold, and failures (see state_dir)"
                    );
                }
                kept.failed = Some(why);
            }
        }
    }
}

/// The way to tell the thread that something has changed: once is enough, however often it does.
pub fn signal() -> (SyncSender<()>, Receiver<()>) {
    sync_channel(1)
}

/// What the file at `path` holds, as old as it is at `now`; nothing if there is none.
fn read(path: &Path, now: SystemTime) -> Result<Facts, String> {
    // A pipe would wait for somebody to write.
    match std::fs::metadata(path) {
        Ok(meta) if !meta.is_file() => return Err("is no ordinary file".to_owned()),
        _ => {}
    }
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Facts::default()),
        Err(e) => return Err(format!("cannot be read: {e}")),
    };
    let mut text = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut text).map_err(|e| format!("cannot be read: {e}"))?;
    if text.len() as u64 > LARGEST {
        return Err(format!("is larger than {} MiB", LARGEST >> 20));
    }
    let Written { version, written, facts } =
        serde_json::from_slice(&text).map_err(|e| format!("is not what was written: {e}"))?;
    if version != VERSION {
        return Err(format!("has layout {version}, and this standfast knows {VERSION}"));
    }
    let written = UNIX_EPOCH + Duration::try_from_secs_f64(written).unwrap_or_default();
    // A clock that was set back makes nothing younger than it was.
    Ok(facts.aged(now.duration_since(written).unwrap_or_default()))
}

/// Replaces the file at `path` by one that holds `facts`, and makes its directory if there is none.
fn write(path: &Path, facts: &Facts, now: SystemTime) -> Result<(), String> {
    let dir = path.parent().unwrap_or_else(|| Path::new("/"));
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir)
        .map_err(|e| format!("cannot make the directory {}: {e}", dir.display()))?;
    let written = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let text = serde_json::to_vec(&Written { version: VERSION, written, facts: facts.clone() })
        .map_err(|e| format!("cannot be made: {e}"))?;
    let replace = || {
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.write_all(&text)?;
        file.as_file().sync_data()?;
        file.persist(path).map(drop).map_err(|e| e.error)
    };
    replace().map_err(|e: std::io::Error| format!("cannot be written: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use standfast_core::node::OrderFact;

    fn facts(ago: f64) -> Facts {
        let order =
            OrderFact { member: [192, 0, 2, 11].into(), vip: Some("web".to_owned()), ago, timeout: None };
        Facts { orders: vec![order], ..Facts::default() }
    }

    #[test]
    fn what_is_written_is_read_and_is_older_then() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/192.0.2.1.json");
        let then = UNIX_EPOCH + Duration::from_secs(1_000_000);
        assert_eq!(read(&path, then), Ok(Facts::default()), "there is none at first");
        write(&path, &facts(10.0), then).unwrap();
        assert_eq!(read(&path, then + Duration::from_secs(50)), Ok(facts(60.0)));
        assert_eq!(read(&path, then - Duration::from_secs(50)), Ok(facts(10.0)), "the clock was set back");
        write(&path, &Facts::default(), then).unwrap();
        assert_eq!(read(&path, then), Ok(Facts::default()));
        let left = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "a half-written file is left");
    }

    #[test]
    fn a_file_that_is_not_ours_is_refused_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("192.0.2.1.json");
        for (text, part) in [
            ("", "not what was written"),
            ("{}", "not what was written"),
            (r#"{"version": 1, "written": "today"}"#, "not what was written"),
            (r#"{"version": 2, "written": 0}"#, "has layout 2"),
        ] {
            std::fs::write(&path, text).unwrap();
            let why = read(&path, UNIX_EPOCH).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
        // What a later standfast adds is passed over, and numbers that make no sense harm nobody.
        std::fs::write(&path, r#"{"version": 1, "written": -1e300, "drains": [7], "orders": []}"#).unwrap();
        assert_eq!(read(&path, UNIX_EPOCH), Ok(Facts::default()));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(read(&path, UNIX_EPOCH), Err("is no ordinary file".to_owned()));
        // A pipe is not waited for.
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert_eq!(read(&pipe, UNIX_EPOCH), Err("is no ordinary file".to_owned()));
        assert!(write(&path, &facts(0.0), UNIX_EPOCH).unwrap_err().contains("cannot be written"));
    }
}
