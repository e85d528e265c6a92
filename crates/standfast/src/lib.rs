//! The announcer inside the service: an address that is announced by BGP only while the service itself says that it can serve.
//!
//! A prober guesses; the service knows. It starts an [`Announcer`], reports how it is from any thread, and its addresses (*VIPs*) are
//! announced to the routers next to it while that is good. It leaves in order when it is told to, at once when it turns bad, by
//! itself when it is wedged, and with its process when that dies.
//!
//! ```no_run
//! use standfast::{Announcer, Peer, Verdict, Vip};
//! use std::net::TcpListener;
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = TcpListener::bind("0.0.0.0:80")?;         // bind first: what is announced must be able to serve
//! let announcer = Announcer::builder()
//!     .asn(64513)
//!     .peer(Peer::new("192.0.2.1", 64512))
//!     .vip(Vip::new("web").prefix("198.51.100.10/32"))
//!     .lease(Duration::from_secs(3))
//!     .start()?;
//!
//! announcer.report(true);                                  // once a second or more often, from whatever does the work
//! announcer.report(Verdict::bad("no database"));           // withdrawn at once
//!
//! let drained = announcer.drain(Duration::from_secs(30)).wait();   // on SIGTERM
//! println!("{drained}");
//! # Ok(())
//! # }
//! ```
//!
//! # The policy
//!
//! 1. **Bind first.** The service listens before the announcer starts. The VIP is on the host already, usually on `lo`, or
//!    [`Vip::manage_address`] puts it there before it is announced and takes it off after it was withdrawn.
//! 2. **Report.** The service says how it is: with [`Announcer::report`] from the loop that does the work, or with a closure that is
//!    asked each second ([`Builder::healthy`]). A report never blocks and keeps no memory: tens of nanoseconds.
//! 3. **Five good samples.** Each second ([`Builder::interval`]) what was reported becomes one sample, however often it was. After
//!    five good ones in a row ([`Builder::rise`]) the VIP is announced: a cold process has served for as long before the world comes.
//! 4. **Withdraw on the first bad one.** A bad report does not wait for the second to be over: within a millisecond the withdrawal
//!    is on the wire. After it five good samples are needed again. [`Builder::fall`] tolerates more.
//! 5. **Silence is bad.** With a [`lease`](Builder::lease) a service that reports nothing for so long is wedged, and leaves.
//! 6. **On SIGTERM drain**, stop listening, and end: [`Announcer::drain`] asks the routers to send no new connections, waits until
//!    those that are here are over or the deadline has passed, withdraws, says goodbye and returns. Only then the service ends.
//!    While it drains it goes on serving: packets that are on their way are answered.
//! 7. **Whatever else happens is a withdrawal.** When the process dies the kernel closes its sessions, and the router forgets its
//!    routes at once. When the whole host dies, or is frozen, the router forgets them after [`Peer::hold_time`], or within
//!    [`Peer::bfd`]'s interval times its multiplier.
//!
//! # Load
//!
//! [`Announcer::share`] says how much of its [`bandwidth`](Vip::bandwidth) a member wants to be used, for listeners that weigh by link
//! bandwidth. What is told to the routers follows smoothly and seldom, so that a load that trembles does not make them
//! rewrite their tables; 0 is told at once.
//!
//! # What it is not
//!
//! It reads no files, runs no checks of its own and accepts no sessions: all that is the daemon `standfast`. It needs no async
//! runtime and is at home in any: each announcer has one thread of its own, and one more for a `healthy` closure. There is no global
//! state, and several announcers may run in one process. There is no `unsafe` in it. It runs on Linux.
//!
//! # Events
//!
//! Everything that happens has a reason in words: [`Announcer::events`] streams them, [`Builder::on_event`] calls for each, and
//! [`Announcer::state`] tells what is, and why.

mod builder;
mod drain;
mod error;
mod event;
mod plan;
mod report;
mod run;

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use standfast_core::node::{Input, Node};
use standfast_io::drive::{Driver, Handle};

pub use builder::{Builder, DrainMode, Peer, Vip};
pub use drain::{Connection, Drain, Drained};
pub use error::{Problem, ShareError, StartError};
pub use event::{Event, Events, Level, PeerStatus, State, VipState, VipStatus};
pub use report::Verdict;

use drain::Leaving;
use run::{Over, Shared, Teller, Watch};

/// How long a question to the announcer's thread may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// A running announcer. Clones are handles to the same one, for any thread; the last that is dropped withdraws and closes.
///
/// That dropping blocks until the sessions are closed, for about half a second and three at most; after a [`drain`](Self::drain)
/// or a [`stop`](Self::stop) it does not.
#[derive(Clone)]
pub struct Announcer(Arc<Inner>);

struct Inner {
    handle: Handle,
    shared: Arc<Shared>,
    /// In the order of their slots.
    vips: Vec<Known>,
    thread: Mutex<Option<JoinHandle<io::Result<()>>>>,
    thread_id: ThreadId,
}

/// What a handle knows of a VIP.
struct Known {
    name: String,
    has_bandwidth: bool,
}

impl Announcer {
    /// Begins the description of an announcer.
    pub fn builder() -> Builder {
        Builder::new()
    }

    fn start(mut builder: Builder) -> Result<Self, StartError> {
        let (plan, lease) = plan::plan(&builder).map_err(StartError::Invalid)?;
        let system = |what| move |source| StartError::System { what, source };
        let names: Vec<String> = plan.vips.keys().cloned().collect();
        let has_bandwidth =
            |name: &String| builder.vips.iter().any(|vip| vip.name == *name && vip.bandwidth.is_some());
        let known = |name: &String| Known { name: name.clone(), has_bandwidth: has_bandwidth(name) };
        let vips = names.iter().map(known).collect();
        let prefixes = plan.vips.values().flat_map(|vip| vip.prefixes.iter().copied()).collect();
        let shared = Arc::new(Shared::new(names.len(), Instant::now()));
        let teller = Teller::new(Arc::clone(&shared), builder.on_event.take());
        let (healthy, interval) = (builder.healthy.take(), builder.interval);
        let mut watch =
            Watch::new(Arc::clone(&shared), Arc::clone(&teller), &names, prefixes, &mut builder, lease);
        let seed = RandomState::new().build_hasher().finish();
        let (driver, handle) =
            Driver::new(plan, seed, run::on_event(teller)).map_err(system("its sockets"))?;
        let driver = driver.companion(move |node, now, inputs| watch.look(node, now, inputs));
        let over = Over(Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("standfast".to_owned())
            .spawn(move || {
                let _over = over;
                driver.run()
            })
            .map_err(system("its thread"))?;
        let thread_id = thread.thread().id();
        let inner = Inner { handle, shared, vips, thread: Mutex::new(Some(thread)), thread_id };
        // From here on a failure withdraws and closes: the announcer is there.
        let announcer = Self(Arc::new(inner));
        if let Some(healthy) = healthy {
            let (shared, handle) = (Arc::clone(&announcer.0.shared), announcer.0.handle.clone());
            let asker = std::thread::Builder::new()
                .name("standfast-asks".to_owned())
                .spawn(move || run::ask(healthy, interval, &shared, || handle.wake()))
                .map_err(system("the thread of its closure"))?;
            let thread = asker.thread().clone();
            *announcer.0.shared.asker.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        }
        Ok(announcer)
    }

    /// Says how the service is, for every VIP. It never blocks and keeps no memory, and may be called by any thread, as often as one
    /// likes.
    ///
    /// ```no_run
    /// # use standfast::{Announcer, Verdict};
    /// # fn of(announcer: &Announcer, queue: usize, database: Result<(), std::io::Error>) {
    /// announcer.report(true);
    /// announcer.report(database);                                   // an error's words are the reason
    /// if queue > 1000 {
    ///     announcer.report(Verdict::bad(format!("{queue} requests wait")));
    /// }
    /// # }
    /// ```
    pub fn report<'a>(&self, verdict: impl Into<Verdict<'a>>) {
        self.put(&self.0.shared.slots, &verdict.into());
    }

    fn put(&self, slots: &[report::Slot], verdict: &Verdict<'_>) {
        if slots.iter().fold(false, |news, slot| slot.put(verdict) | news) {
            self.0.handle.wake();
        }
    }

    /// The handle of one VIP, for a service that knows of each of its VIPs how it is; `None` if there is none of this name.
    ///
    /// Look it up once and keep it.
    pub fn vip(&self, name: &str) -> Option<VipHandle> {
        let number = self.0.vips.iter().position(|vip| vip.name == name)?;
        Some(VipHandle { announcer: self.clone(), number })
    }

    /// Asks for so much of the traffic that the VIPs' [bandwidth](Vip::bandwidth) stands for, 0..=100 %; more is 100. It never
    /// blocks, and may be called as often as one likes.
    ///
    /// Listeners that weigh by link bandwidth send new connections in proportion; those that are there stay. What is told follows
    /// what is asked for by a quarter of the way each second, only if it differs by an eighth, and every three seconds at
    /// most. 0 is told at once, and asks for no new connections at all.
    ///
    /// # Errors
    /// [`ShareError::NoBandwidth`] if no VIP has a bandwidth. With several VIPs, those that have one are told.
    pub fn share(&self, percent: u8) -> Result<(), ShareError> {
        let mut news = false;
        let weighed = || self.0.vips.iter().zip(&self.0.shared.slots).filter(|(vip, _)| vip.has_bandwidth);
        for (_, slot) in weighed() {
            news |= slot.ask(percent);
        }
        if news {
            self.0.handle.wake();
        }
        match (weighed().next(), self.0.vips.first()) {
            (None, Some(vip)) => Err(ShareError::NoBandwidth { vip: vip.name.clone() }),
            _ => Ok(()),
        }
    }

    /// Counts a connection or request that a drain is to wait for, until what is returned is dropped.
    ///
    /// ```no_run
    /// # fn serve(stream: std::net::TcpStream) {}
    /// # fn of(announcer: standfast::Announcer, stream: std::net::TcpStream) {
    /// let connection = announcer.connection();
    /// std::thread::spawn(move || {
    ///     serve(stream);
    ///     drop(connection);
    /// });
    /// # }
    /// ```
    pub fn connection(&self) -> Connection {
        self.0.shared.leaving.connect()
    }

    /// Leaves in order: asks the routers to send no new connections ([`DrainMode`]), waits until those that are
    /// [counted](Self::connection) are over or `deadline` has passed since this call, withdraws, and closes the sessions.
    ///
    /// It begins at once and goes on by itself. Wait for it with [`Drain::wait`] or `.await`, and go on serving meanwhile; a
    /// service with connections that stay open for long should close them as soon as they are idle ([`is_draining`](Self::is_draining)).
    /// If none was ever counted, by [`connection`](Self::connection) or [`Builder::connections`], the kernel's count of TCP connections
    /// to the VIPs is waited for, idle ones included. Afterwards the announcer is over. A second call can only bring the deadline forward.
    pub fn drain(&self, deadline: Duration) -> Drain {
        self.leaving().begin(deadline);
        self.0.handle.wake();
        Drain { announcer: self.clone() }
    }

    /// Whether a drain was ordered: answer `Connection: close`, take no more work.
    pub fn is_draining(&self) -> bool {
        self.leaving().is_draining()
    }

    /// Withdraws everything without waiting for connections, tells the peers why, closes, and returns when that is done: within
    /// about three seconds. Nothing that is reported afterwards has any effect.
    pub fn stop(&self, why: &str) {
        self.0.stop(why);
    }

    /// What is announced to whom, and why; `None` if the announcer is over. It waits for the announcer's thread, a second at most.
    ///
    /// From within [`Builder::on_event`] it is always `None`.
    pub fn state(&self) -> Option<State> {
        if self.0.is_this_thread() {
            return None;
        }
        self.0.handle.query(PATIENCE, Node::status).map(State::of)
    }

    /// Events from now on. Each call is a stream of its own; it ends when the announcer is over.
    ///
    /// ```no_run
    /// # fn of(announcer: &standfast::Announcer) {
    /// let events = announcer.events();
    /// std::thread::spawn(move || events.for_each(|event| eprintln!("{event}")));
    /// # }
    /// ```
    pub fn events(&self) -> Events {
        self.0.shared.events()
    }

    fn leaving(&self) -> &Leaving {
        &self.0.shared.leaving
    }
}

impl fmt::Debug for Announcer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.vips.iter().map(|vip| vip.name.as_str());
        f.debug_tuple("Announcer").field(&names.collect::<Vec<_>>()).finish()
    }
}

impl Inner {
    fn stop(&self, why: &str) {
        // The first waits for drains, the second for none.
        let now = || [Input::Stop(why.to_owned()), Input::Stop(why.to_owned())];
        if self.is_this_thread() {
            // It cannot wait for itself.
            self.handle.send_all(now());
            return;
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            self.handle.send_all(now());
            // Its result was for a caller who is gone by then: the sessions are closed either way.
            let _ = thread.join();
        }
    }

    /// Whether this is called from within the announcer's own thread, by a closure that it calls.
    fn is_this_thread(&self) -> bool {
        std::thread::current().id() == self.thread_id
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop("the service ended");
    }
}

/// One VIP of a running announcer; a handle that keeps the announcer alive, for any thread.
#[derive(Debug, Clone)]
pub struct VipHandle {
    announcer: Announcer,
    number: usize,
}

impl VipHandle {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.known().name
    }

    /// Says how the service behind it is; otherwise as [`Announcer::report`].
    pub fn report<'a>(&self, verdict: impl Into<Verdict<'a>>) {
        self.announcer.put(std::slice::from_ref(self.slot()), &verdict.into());
    }

    /// Asks for a share of its traffic; otherwise as [`Announcer::share`].
    ///
    /// # Errors
    /// [`ShareError::NoBandwidth`] if it was not built with one.
    pub fn share(&self, percent: u8) -> Result<(), ShareError> {
        let vip = self.known();
        if !vip.has_bandwidth {
            return Err(ShareError::NoBandwidth { vip: vip.name.clone() });
        }
        if self.slot().ask(percent) {
            self.announcer.0.handle.wake();
        }
        Ok(())
    }

    fn known(&self) -> &Known {
        &self.announcer.0.vips[self.number]
    }

    fn slot(&self) -> &report::Slot {
        &self.announcer.0.shared.slots[self.number]
    }
}

/// The README's examples are compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
