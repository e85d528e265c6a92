//! Waiting in a way that Ctrl-C ends in order: for a program that is one thread and children, without a runtime.

#![expect(
    unsafe_code,
    reason = "signals are held back and waited for by system calls that the standard library lacks"
)]

use std::io;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// SIGINT, SIGTERM and SIGHUP, held back until somebody waits for them.
#[derive(Clone, Copy)]
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Holds them back in this thread and in every one that it starts.
    ///
    /// # Errors
    /// The kernel refuses; it never does.
    pub fn hold() -> io::Result<Self> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` writes the whole set, the others read and change a set that is initialised.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            let mut set = set.assume_init();
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&raw mut set, signal);
            }
            set
        };
        // SAFETY: the set is initialised, and the old one is not asked for.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
            0 => Ok(Self(set)),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Waits for so long, or until one of them arrives or has arrived; whether one has.
    pub fn sleep(&self, duration: Duration) -> bool {
        let end = Instant::now() + duration;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let time = libc::timespec {
                tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
                tv_nsec: libc::c_long::from(left.subsec_nanos()),
            };
            // SAFETY: both structures are initialised, and nothing about the signal is asked for.
            if unsafe { libc::sigtimedwait(&raw const self.0, std::ptr::null_mut(), &raw const time) } > 0 {
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
    }
}
