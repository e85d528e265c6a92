//! The driver's clock: monotonic, and counting while the host is suspended too.
//!
//! Nobody sets it, so a step of the time of day fires nothing and delays nothing. It goes on while the host sleeps, because
//! what was known before is as old as it is: the clock of `std::time::Instant` stands still then.

#![expect(unsafe_code, reason = "the standard library has no clock that counts a suspension")]

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use standfast_core::Time;

/// A clock that starts at [`Time::BEGIN`].
#[derive(Debug)]
pub(crate) struct Clock {
    start: Duration,
}

impl Clock {
    /// Starts one.
    ///
    /// # Errors
    /// The kernel has no such clock, which every Linux since 2.6.39 has.
    pub(crate) fn start() -> io::Result<Self> {
        Ok(Self { start: read()? })
    }

    /// The time since the start.
    pub(crate) fn now(&self) -> Time {
        // It was read once, so it can be read again; if not, time stands still rather than run backwards.
        Time::BEGIN + read().unwrap_or(self.start).saturating_sub(self.start)
    }
}

/// Time since the host was started, suspended or not.
fn read() -> io::Result<Duration> {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the pointer is to memory of the right size and alignment, which the call fills if it returns 0.
    if unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, time.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: filled by the call above.
    let time = unsafe { time.assume_init() };
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Ok(Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_at_the_beginning_and_only_goes_forward() {
        let clock = Clock::start().unwrap();
        let mut last = clock.now();
        assert!(last >= Time::BEGIN && last < Time::BEGIN + Duration::from_secs(60), "{last}");
        for _ in 0..1000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(clock.now() >= last + Duration::from_millis(20));
    }
}
