//! Whether files are there, told by the kernel at once (inotify), on a thread of its own: a file system that hangs delays nobody
//! else.
//!
//! What inotify does not see is looked for each second: a file whose directory comes later or is replaced, and one that another
//! host makes on a network file system.

use inotify::{Inotify, WatchMask};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How often is looked without an event.
const PERIOD: Duration = Duration::from_secs(1);

/// The kernel's word of what happens in the directories of the files.
struct Watches {
    inotify: Inotify,
    poll: Poll,
    events: Events,
}

/// Files that are watched.
pub struct Files {
    shared: Arc<Mutex<Shared>>,
    /// The thread's, until it starts with the first file.
    tell: Option<Box<Tell>>,
}

type Tell = dyn FnMut(&str, bool) -> bool + Send;

/// What the thread is told.
#[derive(Default)]
struct Shared {
    files: Arc<BTreeMap<String, PathBuf>>,
    /// Names that were nobody's at some moment: what is known of them is of another.
    gone: BTreeSet<String>,
}

impl Files {
    /// Calls `tell` with the name and the presence of each file that is there, and again whenever that changes; once more a
    /// second later if it gives false.
    pub fn new(tell: impl FnMut(&str, bool) -> bool + Send + 'static) -> Self {
        Self { shared: Arc::default(), tell: Some(Box::new(tell)) }
    }

    /// Makes these the files that are watched, from the next second on if others were before.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn set(&mut self, files: BTreeMap<String, PathBuf>) -> io::Result<()> {
        let starts = !files.is_empty();
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = shared.files.keys().filter(|name| !files.contains_key(*name)).cloned().collect::<Vec<_>>();
        shared.gone.extend(gone);
        shared.files = Arc::new(files);
        drop(shared);
        let Some(tell) = self.tell.take_if(|_| starts) else { return Ok(()) };
        let shared = Arc::clone(&self.shared);
        thread::Builder::new().name("files".to_owned()).spawn(move || watch(&shared, tell)).map(drop)
    }
}

/// Looks for ever.
fn watch(shared: &Mutex<Shared>, mut tell: Box<Tell>) {
    let mut watches = Watches::new().ok();
    let mut known: BTreeMap<String, bool> = BTreeMap::new();
    loop {
        let (files, gone) = {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            (Arc::clone(&shared.files), std::mem::take(&mut shared.gone))
        };
        known.retain(|name, _| !gone.contains(name));
        // Watched before it is looked: what comes between is an event.
        watches.iter_mut().for_each(|watches| watches.renew(&files));
        for (name, path) in &*files {
            // A link that leads nowhere is there all the same.
            let is = path.symlink_metadata().is_ok();
            if known.get(name).copied().unwrap_or(false) != is && tell(name, is) {
                known.insert(name.clone(), is);
            }
        }
        match &mut watches {
            Some(watches) => watches.wait(),
            None => thread::sleep(PERIOD / 4),
        }
    }
}

impl Watches {
    fn new() -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let poll = Poll::new()?;
        poll.registry().register(&mut SourceFd(&inotify.as_raw_fd()), Token(0), Interest::READABLE)?;
        Ok(Self { inotify, poll, events: Events::with_capacity(4) })
    }

    /// Watches each directory that is there; one that is watched already stays so.
    fn renew(&mut self, files: &BTreeMap<String, PathBuf>) {
        let directory = |path: &PathBuf| match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let directories: BTreeSet<PathBuf> = files.values().map(directory).collect();
        let mask = WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVE | WatchMask::ONLYDIR;
        for directory in &directories {
            // One that is missing is looked for again in a second.
            let _ = self.inotify.watches().add(directory, mask);
        }
    }

    /// Waits for anything to happen in them, or for a second.
    fn wait(&mut self) {
        // An interrupted wait is a short one, and what happened is seen by looking.
        let _ = self.poll.poll(&mut self.events, Some(PERIOD));
        let mut buffer = [0; 4096];
        while self.inotify.read_events(&mut buffer).is_ok_and(|mut events| events.next().is_some()) {}
    }
}
