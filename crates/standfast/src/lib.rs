//! The announcer inside the service: start, report, stop.
//!
//! A service that knows how it is needs no prober. It starts an [`Announcer`], reports verdicts from any thread, and its VIPs
//! are announced by BGP only while the last verdicts say so. Reporting never blocks. With a lease, silence is a bad verdict, so
//! that a wedged service leaves by itself. Dropping the last handle withdraws and closes. There is no global state, several
//! announcers may run in one process, and the host needs no async runtime: each has one thread of its own.
//!
//! ```no_run
//! use standfast::{Announcer, Verdict};
//! use std::time::Duration;
//!
//! # fn main() -> std::io::Result<()> {
//! let announcer = Announcer::builder(64513, [192, 0, 2, 11].into())
//!     .peer("front", [192, 0, 2, 1].into(), 64512)
//!     .vip("web", "198.51.100.10/32".parse().map_err(std::io::Error::other)?)
//!     .lease(Duration::from_secs(3))
//!     .start()?;
//! announcer.report("web", Verdict::good("bound and warm"));
//! // …
//! announcer.stop("deploying 1.2.3");
//! # Ok(())
//! # }
//! ```
//!
//! Left to the daemon: files, active checks, managed addresses, the listener.

use standfast_core::health::Expr;
use standfast_core::node::{Input, Node};
use standfast_core::plan::{Bgp, Check, CheckId, Peer, PeerAsn, Plan, Probe, Router, Timers, Vip};
use standfast_io::drive::{Driver, Handle};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub use standfast_core::health::{Outcome, Verdict};
pub use standfast_core::node::{Event, Level, Status};
pub use standfast_core::plan;
pub use standfast_core::prefix::{Prefix, PrefixError};

/// The name of the one check that each VIP has: what the service reports.
const SERVICE: &str = "service";
/// How long a question to the announcer's thread may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// A running announcer. Clones are handles to the same one; the last that is dropped withdraws and closes.
#[derive(Clone)]
pub struct Announcer(Arc<Inner>);

struct Inner {
    handle: Handle,
    thread: Mutex<Option<JoinHandle<io::Result<()>>>>,
}

/// What an announcer will be. Made by [`Announcer::builder`].
pub struct Builder {
    plan: Plan,
    rise: u32,
    fall: u32,
    lease: Duration,
    on_event: Box<dyn FnMut(&Event) + Send>,
}

impl Announcer {
    /// Begins an announcer with this AS number and BGP identifier.
    pub fn builder(asn: u32, router_id: Ipv4Addr) -> Builder {
        let router = Router { asn, router_id, local_address: None, local_address_ipv6: None };
        let plan = Plan {
            router,
            bgp: Bgp { listen: Vec::new(), peers: BTreeMap::new() },
            vips: BTreeMap::new(),
            checks: BTreeMap::new(),
            listener: None,
        };
        Builder { plan, rise: 5, fall: 1, lease: Duration::ZERO, on_event: Box::new(|_| {}) }
    }

    /// Says how the service behind `vip` is. Never blocks; false if there is no such VIP or the announcer is over.
    ///
    /// The VIP is announced after `rise` good verdicts in a row and leaves after `fall` bad ones.
    pub fn report(&self, vip: &str, verdict: Verdict) -> bool {
        let id = CheckId::new(vip, SERVICE);
        self.0.handle.send(Input::Reported(id, verdict))
    }

    /// What is announced to whom, and why; `None` if the announcer is over.
    pub fn status(&self) -> Option<Status> {
        self.0.handle.query(PATIENCE, Node::status)
    }

    /// Withdraws everything, tells the peers why, closes, and returns when that is done: within about three seconds.
    pub fn stop(&self, why: &str) {
        self.0.stop(why);
    }
}

impl Inner {
    fn stop(&self, why: &str) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            self.handle.send(Input::Stop(why.to_owned()));
            // Its result was for a caller who is gone by then: the sessions are closed either way.
            let _ = thread.join();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop("the service ended");
    }
}

impl Builder {
    /// Adds an eBGP or iBGP peer with a hold time of 9 s.
    #[must_use]
    pub fn peer(self, name: &str, address: IpAddr, asn: u32) -> Self {
        let timers = Timers { hold: Duration::from_secs(9), ..Timers::default() };
        self.peer_with(Peer { timers, ..Peer::new(name, address, PeerAsn::Number(asn)) })
    }

    /// Adds a peer with everything that a peer may have.
    #[must_use]
    pub fn peer_with(mut self, peer: Peer) -> Self {
        self.plan.bgp.peers.insert(peer.name.clone(), peer);
        self
    }

    /// Adds a VIP of one prefix, without attributes, that is withdrawn when the service is bad.
    #[must_use]
    pub fn vip(self, name: &str, prefix: Prefix) -> Self {
        self.vip_with(Vip::new(name, vec![prefix], &[]))
    }

    /// Adds a VIP with everything that a VIP may have; its policy is replaced by the service's own word.
    #[must_use]
    pub fn vip_with(mut self, mut vip: Vip) -> Self {
        vip.policy = Expr::Check(SERVICE.to_owned());
        vip.checks = [(SERVICE.to_owned(), CheckId::new(&vip.name, SERVICE))].into();
        self.plan.vips.insert(vip.name.clone(), vip);
        self
    }

    /// Local addresses of the sessions and next hops of the routes; by default the kernel's choice for each session.
    #[must_use]
    pub fn router(mut self, router: Router) -> Self {
        self.plan.router = router;
        self
    }

    /// Good verdicts in a row before a VIP is announced (default 5), and bad ones before it leaves (default 1).
    #[must_use]
    pub fn thresholds(mut self, rise: u32, fall: u32) -> Self {
        (self.rise, self.fall) = (rise, fall);
        self
    }

    /// Counts silence of this length as a bad verdict, so that a wedged service leaves by itself. Default: never.
    ///
    /// Report at least three times as often.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Calls `on_event` for every change, on the announcer's thread: it must not block.
    #[must_use]
    pub fn on_event(mut self, on_event: impl FnMut(&Event) + Send + 'static) -> Self {
        self.on_event = Box::new(on_event);
        self
    }

    /// Starts it: every VIP withdrawn, every peer dialled at once.
    ///
    /// # Errors
    /// There is no peer or no VIP, or the thread or its sockets cannot be made.
    pub fn start(mut self) -> io::Result<Announcer> {
        if self.plan.bgp.peers.is_empty() || self.plan.vips.is_empty() {
            let why = "an announcer needs at least one peer and one VIP";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        for vip in self.plan.vips.keys() {
            let check = Check {
                interval: self.lease,
                timeout: Duration::ZERO,
                rise: self.rise,
                fall: self.fall,
                fast_interval: self.lease,
                ..Check::new(Probe::External)
            };
            self.plan.checks.insert(CheckId::new(vip, SERVICE), check);
        }
        let seed = RandomState::new().build_hasher().finish();
        let (driver, handle) = Driver::new(self.plan, seed, self.on_event)?;
        let thread = std::thread::Builder::new().name("standfast".to_owned()).spawn(move || driver.run())?;
        Ok(Announcer(Arc::new(Inner { handle, thread: Mutex::new(Some(thread)) })))
    }
}
