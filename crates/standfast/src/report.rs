//! What a service says of itself, and the place where it waits for the announcer.
//!
//! A report is a few atomic operations: it never blocks, asks the kernel for nothing unless it turns bad, and keeps no memory.
//! What it means is decided elsewhere, on the announcer's thread.

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How the service is, in its own words.
///
/// Anything that turns into one can be reported: `true` and `false`, a `Result` whose error says why not, or a `Verdict`.
///
/// ```
/// use standfast::Verdict;
///
/// assert_eq!(Verdict::from(true), Verdict::Good);
/// assert_eq!(Verdict::from(Err::<(), _>("queue is full")), Verdict::bad("queue is full"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// It can serve.
    Good,
    /// It cannot, for this reason in words for an operator. The first 240 octets are kept, and shown in the state, in events and
    /// to whoever asks why the address is not announced. Never put a secret into it.
    Bad(Cow<'a, str>),
}

impl<'a> Verdict<'a> {
    /// A bad verdict for this reason, such as `"no database"` or `format!("{n} requests wait")`.
    pub fn bad(reason: impl Into<Cow<'a, str>>) -> Self {
        Self::Bad(reason.into())
    }
}

impl From<bool> for Verdict<'_> {
    /// `false` is bad, without a reason of its own.
    fn from(good: bool) -> Self {
        if good { Self::Good } else { Self::Bad(Cow::Borrowed("the service says so")) }
    }
}

impl<T, E: Display> From<Result<T, E>> for Verdict<'_> {
    /// An error is bad, and its words are the reason.
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(_) => Self::Good,
            Err(e) => Self::Bad(Cow::Owned(e.to_string())),
        }
    }
}

/// Octets of a reason that are kept.
const WORDS: usize = 240;
/// No share was asked for.
const UNSAID: u8 = u8::MAX;
const GOOD: u8 = 1;
const BAD: u8 = 2;

/// Where the reports for one VIP wait until the announcer looks.
#[derive(Debug)]
pub(crate) struct Slot {
    /// What was reported since the announcer looked: [`GOOD`], [`BAD`] or both.
    flags: AtomicU8,
    /// When anything was reported last, in nanoseconds since `epoch`.
    heard: AtomicU64,
    share: AtomicU8,
    /// Why the last bad verdict was bad. Never waited for by who reports: another one that reports at this very moment has a
    /// reason that is as good.
    words: Mutex<Words>,
    epoch: Instant,
}

#[derive(Debug)]
struct Words {
    len: usize,
    octets: [u8; WORDS],
}

impl Slot {
    pub(crate) fn new(epoch: Instant) -> Self {
        Self {
            flags: AtomicU8::new(0),
            heard: AtomicU64::new(0),
            share: AtomicU8::new(UNSAID),
            words: Mutex::new(Words { len: 0, octets: [0; WORDS] }),
            epoch,
        }
    }

    /// Takes a report; whether the announcer should look at once.
    pub(crate) fn put(&self, verdict: &Verdict<'_>) -> bool {
        let flag = match verdict {
            Verdict::Good => GOOD,
            Verdict::Bad(reason) => {
                self.explain(reason);
                BAD
            }
        };
        let nanos = u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.heard.fetch_max(nanos, Ordering::Relaxed);
        let before = self.flags.fetch_or(flag, Ordering::AcqRel);
        flag == BAD && before & BAD == 0
    }

    fn explain(&self, reason: &str) {
        let mut words = match self.words.try_lock() {
            Ok(words) => words,
            Err(TryLockError::Poisoned(words)) => words.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let reason = &reason[..reason.floor_char_boundary(WORDS)];
        words.octets[..reason.len()].copy_from_slice(reason.as_bytes());
        words.len = reason.len();
    }

    /// Takes the share that is asked for; whether it is another one than before.
    pub(crate) fn ask(&self, percent: u8) -> bool {
        let percent = percent.min(100);
        self.share.swap(percent, Ordering::AcqRel) != percent
    }

    /// The share that was asked for last.
    pub(crate) fn share(&self) -> Option<u8> {
        Some(self.share.load(Ordering::Acquire)).filter(|&share| share != UNSAID)
    }

    /// Whether anything bad waits.
    pub(crate) fn is_bad(&self) -> bool {
        self.flags.load(Ordering::Acquire) & BAD != 0
    }

    /// Takes out what waits: one bad report outweighs any number of good ones.
    pub(crate) fn take(&self) -> Option<Verdict<'static>> {
        match self.flags.swap(0, Ordering::AcqRel) {
            0 => None,
            GOOD => Some(Verdict::Good),
            _ => {
                let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
                let reason = String::from_utf8_lossy(&words.octets[..words.len]).into_owned();
                Some(Verdict::bad(reason))
            }
        }
    }

    /// When anything was reported last; the start, if nothing was.
    pub(crate) fn heard(&self) -> Instant {
        self.epoch + Duration::from_nanos(self.heard.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_bad_report_outweighs_good_ones_until_it_is_taken() {
        let slot = Slot::new(Instant::now());
        assert_eq!(slot.take(), None);
        assert!(!slot.put(&Verdict::Good));
        assert!(slot.put(&Verdict::bad("full")), "the first bad one is worth a look");
        assert!(!slot.put(&Verdict::bad("fuller")), "the second waits for the same look");
        slot.put(&Verdict::Good);
        assert!(slot.is_bad());
        assert_eq!(slot.take(), Some(Verdict::bad("fuller")));
        assert_eq!(slot.take(), None);
        slot.put(&Verdict::Good);
        assert_eq!(slot.take(), Some(Verdict::Good));
    }

    #[test]
    fn long_reasons_are_cut_between_characters() {
        let slot = Slot::new(Instant::now());
        slot.put(&Verdict::bad("é".repeat(1000)));
        assert_eq!(slot.take(), Some(Verdict::bad("é".repeat(120))));
        slot.put(&Verdict::bad("x".to_owned() + &"é".repeat(1000)));
        assert_eq!(slot.take(), Some(Verdict::bad("x".to_owned() + &"é".repeat(119))));
        slot.put(&Verdict::bad(""));
        assert_eq!(slot.take(), Some(Verdict::bad("")));
    }

    #[test]
    fn a_report_waits_for_nobody_and_is_not_lost() {
        let slot = Slot::new(Instant::now());
        let held = slot.words.lock().unwrap();
        slot.put(&Verdict::bad("unheard"));
        drop(held);
        assert_eq!(slot.take(), Some(Verdict::bad("")), "it is bad, if without its words");
    }

    #[test]
    fn shares_are_percents_and_only_another_one_is_news() {
        let slot = Slot::new(Instant::now());
        assert_eq!(slot.share(), None);
        assert!(slot.ask(250));
        assert_eq!(slot.share(), Some(100));
        assert!(!slot.ask(100));
        assert!(slot.ask(0));
        assert_eq!(slot.share(), Some(0));
    }
}
