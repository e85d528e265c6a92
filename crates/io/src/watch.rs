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
use std::thread;
use std::time::Duration;

/// How often is looked without an event.
const PERIOD: Duration = Duration::from_secs(1);

/// The directories of the files, and the kernel's word of what happens in them.
struct Watches {
    inotify: Inotify,
    poll: Poll,
    events: Events,
    directories: BTreeSet<PathBuf>,
}

/// Calls `tell` with the name and the presence of each of `files` that is there, and again whenever that changes; once more a
/// second later if it gives false.
///
/// # Errors
/// There is no thread for it.
pub fn files(
    files: BTreeMap<String, PathBuf>,
    mut tell: impl FnMut(&str, bool) -> bool + Send + 'static,
) -> io::Result<()> {
    let watch = move || {
        let mut watches = Watches::new(&files).ok();
        let mut known: BTreeMap<&str, bool> = BTreeMap::new();
        loop {
            // Watched before it is looked: what comes between is an event.
            watches.iter_mut().for_each(Watches::renew);
            for (name, path) in &files {
                // A link that leads nowhere is there all the same.
                let is = path.symlink_metadata().is_ok();
                if known.get(&**name).copied().unwrap_or(false) != is && tell(name, is) {
                    known.insert(name, is);
                }
            }
            match &mut watches {
                Some(watches) => watches.wait(),
                None => thread::sleep(PERIOD / 4),
            }
        }
    };
    thread::Builder::new().name("files".to_owned()).spawn(watch).map(drop)
}

impl Watches {
    fn new(files: &BTreeMap<String, PathBuf>) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let poll = Poll::new()?;
        poll.registry().register(&mut SourceFd(&inotify.as_raw_fd()), Token(0), Interest::READABLE)?;
        let directory = |path: &PathBuf| match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let directories = files.values().map(directory).collect();
        Ok(Self { inotify, poll, events: Events::with_capacity(4), directories })
    }

    /// Watches each directory that is there; one that is watched already stays so.
    fn renew(&mut self) {
        let mask = WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVE | WatchMask::ONLYDIR;
        for directory in &self.directories {
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
