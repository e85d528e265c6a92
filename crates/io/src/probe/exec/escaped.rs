//! What a command started and moved out of its process group (`setsid`): found by the output that it still holds.
//!
//! A process keeps the pipe that it was born with unless it closes it. So whoever holds the pipe of a run when the command and
//! its group are gone was started by that run. One that closed it, as a daemon does on purpose, is not found.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::LOOK;

/// How often they are looked for, with a pause between.
const ROUNDS: usize = 50;

/// How often nobody may be seen: one that is just ending, or whom we may not look at.
const UNSEEN: usize = 5;

/// What became of those that were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Escaped {
    /// How many there were.
    pub(super) found: usize,
    /// Whether any of them may not be ended.
    pub(super) immune: bool,
}

/// Ends every process that holds the other end of `pipe`; `None` if there is none.
pub(super) fn end(mut pipe: File, chunk: &mut [u8]) -> Option<Escaped> {
    let target = PathBuf::from(format!("pipe:[{}]", pipe.metadata().ok()?.ino()));
    let (mut found, mut immune, mut unseen) = (BTreeSet::new(), false, 0);
    for _ in 0..ROUNDS {
        if is_over(&mut pipe, chunk) {
            break;
        }
        let holders = holders(&target);
        unseen += usize::from(holders.is_empty());
        for pid in holders {
            found.insert(pid);
            immune |= !kill(pid, &target);
        }
        if immune || unseen == UNSEEN {
            break;
        }
        std::thread::sleep(LOOK);
    }
    (!found.is_empty()).then_some(Escaped { found: found.len(), immune })
}

/// Whether nobody can write to a pipe any more. What was written is dropped.
fn is_over(pipe: &mut File, chunk: &mut [u8]) -> bool {
    // Whoever writes without a pause is not listened to for ever.
    (0..16).any(|_| matches!(pipe.read(chunk), Ok(0)))
}

/// Every process that has the file that a link in `/proc` names `target`, but for ourselves and our copies that are about to
/// become a program.
fn holders(target: &Path) -> Vec<libc::pid_t> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let us = fs::read_link("/proc/self/exe").ok();
    let numbers = processes.flatten().filter_map(|p| p.file_name().to_str()?.parse().ok());
    let strangers = numbers.filter(|&pid: &libc::pid_t| {
        let program = fs::read_link(format!("/proc/{pid}/exe")).ok();
        program.is_some() && program != us
    });
    strangers.filter(|&pid| holds(pid, target)).collect()
}

fn holds(pid: libc::pid_t, target: &Path) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|link| link == target))
}

/// Kills a process if it still holds `target`; false if it may not be killed.
fn kill(pid: libc::pid_t, target: &Path) -> bool {
    // SAFETY: has no conditions on memory.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let Ok(fd) = i32::try_from(fd) else { return true };
    if fd < 0 {
        // It has ended.
        return true;
    }
    // SAFETY: the kernel made this descriptor for us, and nobody else knows it.
    let process = unsafe { OwnedFd::from_raw_fd(fd) };
    // From here on the number is that of this process and of no other.
    if !holds(pid, target) {
        return true;
    }
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null pointer asks for the usual contents of a signal; the descriptor is open.
    let sent =
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), libc::SIGKILL, none, 0) };
    sent == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EPERM)
}
