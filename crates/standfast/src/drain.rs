//! Leaving in order: connections that are counted, and what became of a drain.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::Announcer;

/// A drain under way. It goes on whether it is waited for or not; dropping this only stops the waiting.
///
/// It can be waited for by a thread ([`wait`](Self::wait)) or in any async runtime (it is a [`Future`]), once or from several places.
/// It keeps the announcer alive until it is over.
#[derive(Debug, Clone)]
pub struct Drain {
    pub(crate) announcer: Announcer,
}

impl Drain {
    /// Waits until the drain is over: every connection has ended or the deadline has passed, the VIPs are withdrawn, the sessions
    /// closed, and managed addresses taken off. That takes about a second longer than the connections.
    pub fn wait(self) -> Drained {
        self.announcer.leaving().wait()
    }
}

impl Future for Drain {
    type Output = Drained;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Drained> {
        self.announcer.leaving().poll(cx)
    }
}

/// What became of a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Connections that were left when the deadline passed.
    pub left: usize,
    /// How long it took, from the order to the end of the last session.
    pub took: Duration,
}

impl Drained {
    /// Whether every connection had ended by itself.
    pub const fn is_clean(&self) -> bool {
        self.left == 0
    }
}

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secs = self.took.as_secs_f64();
        match self.left {
            0 => write!(f, "drained in {secs:.1} s, no connection left"),
            1 => write!(f, "left after {secs:.1} s with 1 connection that was not over"),
            n => write!(f, "left after {secs:.1} s with {n} connections that were not over"),
        }
    }
}

/// A connection or request that a drain waits for, until this is dropped. Made by [`Announcer::connection`].
#[derive(Debug)]
#[must_use = "it counts until it is dropped"]
pub struct Connection(pub(crate) Arc<Leaving>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How an announcer leaves, for those who order it and those who wait for it.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    connections: AtomicUsize,
    /// Whether connections were ever counted here.
    counts: AtomicBool,
    draining: AtomicBool,
    order: Mutex<Order>,
    over: Condvar,
}

#[derive(Debug, Default)]
struct Order {
    since: Option<Instant>,
    deadline: Option<Instant>,
    left: usize,
    over: Option<Instant>,
    wakers: Vec<Waker>,
}

impl Leaving {
    /// Counts one more connection.
    pub(crate) fn connect(self: &Arc<Self>) -> Connection {
        self.counts.store(true, Ordering::Relaxed);
        self.connections.fetch_add(1, Ordering::AcqRel);
        Connection(Arc::clone(self))
    }

    /// Connections that are counted here; `None` if none ever was.
    pub(crate) fn connections(&self) -> Option<usize> {
        self.counts.load(Ordering::Relaxed).then(|| self.connections.load(Ordering::Acquire))
    }

    /// Orders a drain that ends by `deadline` from now, or brings the end of an earlier order forward.
    pub(crate) fn begin(&self, deadline: Duration) {
        let now = Instant::now();
        let mut order = self.lock();
        order.since.get_or_insert(now);
        // Further than the clock reaches is as good as for ever.
        if let Some(until) = now.checked_add(deadline) {
            order.deadline = Some(order.deadline.map_or(until, |earlier| earlier.min(until)));
        }
        drop(order);
        self.draining.store(true, Ordering::Release);
    }

    /// Whether it was ordered.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// When the drain must end, if it must.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.lock().deadline
    }

    /// Says how many connections were left when it was given up.
    pub(crate) fn leave(&self, left: usize) {
        self.lock().left = left;
    }

    /// Says that all is over.
    pub(crate) fn finish(&self) {
        let mut order = self.lock();
        order.over.get_or_insert_with(Instant::now);
        let wakers = std::mem::take(&mut order.wakers);
        drop(order);
        self.over.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.lock().over.is_some()
    }

    fn wait(&self) -> Drained {
        let mut order = self.lock();
        loop {
            if let Some(drained) = order.drained() {
                return drained;
            }
            order = self.over.wait(order).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<Drained> {
        let mut order = self.lock();
        if let Some(drained) = order.drained() {
            return Poll::Ready(drained);
        }
        if !order.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            order.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Order {
    fn drained(&self) -> Option<Drained> {
        let over = self.over?;
        Some(Drained { left: self.left, took: over.duration_since(self.since.unwrap_or(over)) })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_second_order_can_only_bring_the_end_forward() {
        let leaving = Leaving::default();
        leaving.begin(Duration::from_secs(60));
        let first = leaving.deadline().unwrap();
        leaving.begin(Duration::MAX);
        leaving.begin(Duration::from_secs(600));
        assert_eq!(leaving.deadline(), Some(first));
        leaving.begin(Duration::from_secs(1));
        assert!(leaving.deadline().unwrap() < first);
    }

    #[test]
    fn connections_count_until_they_are_dropped() {
        let leaving = Arc::new(Leaving::default());
        assert_eq!(leaving.connections(), None);
        let (one, two) = (leaving.connect(), leaving.connect());
        assert_eq!(leaving.connections(), Some(2));
        drop(one);
        drop(two);
        assert_eq!(leaving.connections(), Some(0));
    }
}
