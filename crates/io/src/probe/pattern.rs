//! Regular expressions over what others sent: compiled with a bound on their size, matched without holding up other checks.
//!
//! A match takes at worst time in proportion to the size of the expression times the length of what it looks at. Where
//! both are small it is done at once; otherwise on a thread of its own, of which each expression has at most one. A match
//! cannot be interrupted, so the bound on the size is also what ends a thread that nobody waits for any more.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use regex::bytes::{Regex, RegexBuilder};

use super::run::Failure;

/// The most memory of a compiled expression, in octets.
const SIZE: usize = 1 << 20;

/// The most memory of what a match remembers of an expression to be fast, in octets.
const CACHE: usize = 1 << 20;

/// The smallest size that expressions are told apart by.
const SMALLEST: usize = 1 << 10;

/// The most octets of program times octets looked at that are done at once: some 10 ms at worst, as measured with
/// expressions like `a[ab]{50}c`, which no shortcut helps.
const AT_ONCE: usize = 64 << 20;

/// A compiled expression.
#[derive(Clone)]
pub(super) struct Pattern(Arc<Inner>);

struct Inner {
    regex: Regex,
    /// At least its size, and at most twice as much.
    size: usize,
    /// A thread matches. One that is late holds this, so that there is never a second one.
    busy: AtomicBool,
}

/// Why `text` is no regular expression that a check can have: a mistake in it, or its size.
pub fn check_pattern(text: &str) -> Result<(), String> {
    let sized = |size| RegexBuilder::new(text).size_limit(size).dfa_size_limit(CACHE).build();
    sized(SIZE).map(drop).map_err(|e| reason(&e))
}

/// The error in one line; the library draws the whole expression first.
fn reason(e: &regex::Error) -> String {
    if let regex::Error::CompiledTooBig(_) = e {
        let most = SIZE >> 10;
        return format!(
            "it takes more than {most} KiB once compiled; make its counts ({{n}}) smaller, or its classes with (?-u)"
        );
    }
    let text = e.to_string();
    text.lines().rev().find_map(|l| l.trim().strip_prefix("error: ")).unwrap_or(&text).to_owned()
}

impl Pattern {
    /// Compiles `text`; the error is for the operator.
    pub(super) fn compile(text: &str) -> Result<Self, String> {
        let mut size = SMALLEST;
        loop {
            match RegexBuilder::new(text).size_limit(size).dfa_size_limit(CACHE).build() {
                Ok(regex) => return Ok(Self(Arc::new(Inner { regex, size, busy: AtomicBool::new(false) }))),
                Err(regex::Error::CompiledTooBig(_)) if size < SIZE => size *= 2,
                Err(e) => return Err(format!("regular expression {text:?}: {}", reason(&e))),
            }
        }
    }

    /// The expression as it was written.
    pub(super) fn as_str(&self) -> &str {
        self.0.regex.as_str()
    }

    /// Whether so many octets can be looked at without holding up others.
    pub(super) fn is_quick(&self, octets: usize) -> bool {
        self.0.size.saturating_mul(octets) <= AT_ONCE
    }

    /// Whether it matches, now and on this thread: for octets that are few, or on a thread that may take its time.
    pub(super) fn is_match(&self, octets: &[u8]) -> bool {
        self.0.regex.is_match(octets)
    }

    /// Whether it matches one of `all`, and `all` again. The caller bounds the wait.
    pub(super) async fn matches<T>(&self, all: Vec<T>) -> Result<(bool, Vec<T>), Failure>
    where
        T: AsRef<[u8]> + Send + 'static,
    {
        if self.is_quick(all.iter().map(|octets| octets.as_ref().len()).sum()) {
            return Ok((all.iter().any(|octets| self.is_match(octets.as_ref())), all));
        }
        if self.0.busy.swap(true, Ordering::AcqRel) {
            return Err(Failure::Bad("the regular expression of an earlier run has not ended yet".into()));
        }
        let (tell, told) = tokio::sync::oneshot::channel();
        let busy = Busy(self.clone());
        let spawned = std::thread::Builder::new().name("pattern".into()).spawn(move || {
            let found = all.iter().any(|octets| busy.0.is_match(octets.as_ref()));
            // Before it is told, so that a run which follows at once finds the place free.
            drop(busy);
            // Nobody listens any more if the run's time was up.
            let _ = tell.send((found, all));
        });
        // Where there is no thread, what it was given was dropped, and the place is free again.
        spawned.map_err(|e| {
            Failure::Local(format!("thread for the regular expression: {}", crate::dial::words(&e)))
        })?;
        told.await.map_err(|_| Failure::Bad("the regular expression panicked".into()))
    }
}

/// Frees the place of the one matching thread, also when it panics.
struct Busy(Pattern);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.0.busy.store(false, Ordering::Release);
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({:?})", self.as_str())
    }
}

#[cfg(test)]
mod tests;
