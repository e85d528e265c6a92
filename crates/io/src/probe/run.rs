//! One run of a probe: prepared once, run many times, always ending in a verdict.
//!
//! The one timeout, the one place that catches panics, and the one that bounds and cleans what is told to the operator.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use standfast_core::health::{Details, Outcome, Verdict, disturbs};
use standfast_core::plan::{Check, PingProbe, Probe, Target, Via};
use tokio::time::{Instant, timeout_at};

use super::process::Process;
use super::{dns, exec, grpc, http, ping, tcp, udp};
use crate::dial::{DialError, Opening, is_exhaustion, words};

/// The most bytes of a verdict's detail.
const DETAIL_LIMIT: usize = 300;

/// A run that ends this much after its timeout was held up by this host: it says nothing about the service.
const STALL: Duration = Duration::from_millis(100);

/// A probe with its files read and its expressions compiled.
#[derive(Debug)]
pub struct Prepared {
    kind: Kind,
    via: Via,
}

#[derive(Debug)]
enum Kind {
    Http(Box<http::Http>),
    Tcp(Box<tcp::Tcp>),
    Udp(Box<udp::Udp>),
    Dns(Box<dns::Dns>),
    Ping(Box<PingProbe>),
    Grpc(Box<grpc::Grpc>),
    Exec(Box<exec::Exec>),
    Process(Arc<Process>),
    External,
}

/// Reads the files that a check's probe names and compiles its expressions; the error is for the operator who wrote them.
///
/// It blocks on the file system, and needs no runtime.
pub fn prepare(check: &Check) -> Result<Prepared, String> {
    let via = check.via.clone();
    if via != Via::default() && is_unix(&check.probe) {
        return Err("a unix socket has no source address, interface, mark or PROXY header".into());
    }
    let kind = match &check.probe {
        Probe::Http(http) => Kind::Http(Box::new(http::Http::prepare(http)?)),
        Probe::Tcp(tcp) => Kind::Tcp(Box::new(tcp::Tcp::prepare(tcp)?)),
        // The listener of this host reports, to the node alone.
        Probe::External | Probe::Members(_) => Kind::External,
        Probe::Dns(dns) => Kind::Dns(Box::new(dns::Dns::prepare(dns)?)),
        Probe::Ping(ping) => Kind::Ping(Box::new(ping.clone())),
        Probe::Udp(udp) => Kind::Udp(Box::new(udp::Udp::prepare(udp)?)),
        Probe::Grpc(grpc) => Kind::Grpc(Box::new(grpc::Grpc::prepare(grpc)?)),
        Probe::Exec(exec) => Kind::Exec(Box::new(exec::Exec::prepare(exec)?)),
        Probe::Process(process) => Kind::Process(Arc::new(Process::prepare(process))),
    };
    Ok(Prepared { kind, via })
}

/// Whether `probe` asks a unix socket.
fn is_unix(probe: &Probe) -> bool {
    let target = match probe {
        Probe::Http(http) => &http.target,
        Probe::Tcp(tcp) => &tcp.target,
        Probe::Grpc(grpc) => &grpc.target,
        Probe::Udp(_)
        | Probe::Dns(_)
        | Probe::Ping(_)
        | Probe::Exec(_)
        | Probe::Process(_)
        | Probe::Members(_)
        | Probe::External => return false,
    };
    matches!(target, Target::Unix(_))
}

impl Prepared {
    /// Whether verdicts come from outside, so that there is nothing to run.
    pub fn is_external(&self) -> bool {
        matches!(self.kind, Kind::External)
    }

    /// The process whose end is known before the next run.
    pub(super) fn process(&self) -> Option<Arc<Process>> {
        match &self.kind {
            Kind::Process(process) => Some(Arc::clone(process)),
            _ => None,
        }
    }

    /// Whether a run begins with a connection to an address that is known.
    pub(super) fn can_begin(&self) -> bool {
        match &self.kind {
            Kind::Tcp(tcp) => tcp.opens().is_some(),
            Kind::Http(http) => http.opens().is_some(),
            _ => false,
        }
    }

    /// Begins a run without waiting for anything: its verdict, if that is all there is to do, or with what to [`go_on`](Self::go_on).
    ///
    /// Many runs that begin together and go on together are cheaper than one after the other: the servers' programs are
    /// woken once for all of them.
    pub(super) fn begin(&self) -> Result<Verdict, Option<Box<Opening>>> {
        let start = Instant::now();
        let mut details = Box::<Details>::default();
        let begun = catch_unwind(AssertUnwindSafe(|| match &self.kind {
            Kind::Tcp(tcp) => tcp.begin(&self.via, &mut details),
            Kind::Http(http) => http.begin(&self.via, &mut details),
            _ => Err(None),
        }));
        let ended = begun.unwrap_or_else(|panic| {
            Ok(Err(Failure::Bad(format!("the probe panicked while connecting: {}", message(&*panic)))))
        })?;
        let took = details.connect.unwrap_or_else(|| start.elapsed());
        // What a run that ends at once says has nothing from a server in it.
        let verdict = ended.map_or_else(|failure| verdict(Err(failure)), Verdict::good);
        Ok(Verdict { took, details: Some(details), ..verdict })
    }

    /// Runs once, for at most `limit`. Dropping the future ends the run and closes what it opened.
    ///
    /// Two runs of one `Prepared` may overlap, but only one of them finds the kept connection.
    pub async fn run(&self, limit: Duration) -> Verdict {
        self.go_on(limit, None).await
    }

    /// Runs once, beginning with a connection that is opening already, for at most `limit` since its start.
    pub(super) async fn go_on(&self, limit: Duration, opening: Option<Box<Opening>>) -> Verdict {
        let start = opening.as_ref().map_or_else(Instant::now, |opening| opening.start());
        let doing = Doing::new(start, limit, &self.via);
        doing.seen().opening = opening;
        let ended = timeout_at(start + limit, caught(self.probe(&doing))).await;
        let took = start.elapsed();
        let mut timed_out = false;
        let ended = match ended {
            Ok(Ok(ended)) => ended,
            Ok(Err(message)) => Err(Failure::Bad(format!("the probe panicked while {doing}: {message}"))),
            Err(_) if took > limit + STALL => {
                let late = (took - limit).as_millis();
                Err(Failure::Local(format!("this host was stalled for {late} ms while {doing}")))
            }
            Err(_) => {
                timed_out = true;
                Err(Failure::Bad(format!("timed out after {} ms while {doing}", limit.as_millis())))
            }
        };
        let mut verdict = Verdict { took, timed_out, details: Some(doing.saw()), ..verdict(ended) };
        if let Some(remark) = doing.remarked() {
            verdict.detail = tidy(format!("{} ({remark})", verdict.detail));
        }
        verdict
    }

    async fn probe(&self, doing: &Doing<'_>) -> Result<String, Failure> {
        // Each in a box of its own: a run takes the room of its own kind, and not of the largest.
        match &self.kind {
            Kind::Http(http) => Box::pin(http.run(doing)).await,
            Kind::Tcp(tcp) => Box::pin(tcp.run(doing)).await,
            Kind::Udp(udp) => Box::pin(udp.run(doing)).await,
            Kind::Dns(dns) => Box::pin(dns.run(doing)).await,
            Kind::Ping(ping) => Box::pin(ping::run(ping, doing)).await,
            Kind::Grpc(grpc) => Box::pin(grpc.run(doing)).await,
            Kind::Exec(exec) => Box::pin(exec.run(doing)).await,
            Kind::Process(process) => Box::pin(process.run(doing)).await,
            Kind::External => Err(Failure::Local("verdicts come from outside".into())),
        }
    }
}

/// What the beginning of a run came to: its end, or a connection that is opening.
pub(super) type Begun = Result<Result<String, Failure>, Option<Box<Opening>>>;

/// What a run comes to, without its time.
fn verdict(ended: Result<String, Failure>) -> Verdict {
    let (outcome, detail) = match ended {
        Ok(detail) => (Outcome::Good, detail),
        Err(Failure::Bad(detail)) => (Outcome::Bad, detail),
        Err(Failure::Local(detail)) => (Outcome::NoResult, detail),
    };
    Verdict { outcome, ..Verdict::good(tidy(detail)) }
}

/// Why a run is not good.
#[derive(Debug)]
pub(super) enum Failure {
    /// The service did not answer as it should.
    Bad(String),
    /// This host could not ask.
    Local(String),
}

impl Failure {
    /// The same, of a part of the run.
    pub(super) fn within(self, what: &str) -> Self {
        match self {
            Self::Bad(text) => Self::Bad(format!("{what}: {text}")),
            Self::Local(text) => Self::Local(format!("{what}: {text}")),
        }
    }
}

impl From<DialError> for Failure {
    fn from(e: DialError) -> Self {
        if e.is_local() { Self::Local(e.to_string()) } else { Self::Bad(e.to_string()) }
    }
}

/// A failed system call on a socket that was open already.
pub(super) fn failed(what: &str, e: &io::Error) -> Failure {
    let text = format!("{what}: {}", words(e));
    if is_exhaustion(e) { Failure::Local(text) } else { Failure::Bad(text) }
}

/// 64 bits that others cannot guess.
pub(super) fn random() -> u64 {
    // Keyed by the system's random source once for each thread, and then differently for each call.
    RandomState::new().hash_one(0)
}

/// What a run is doing, to be named if its time is up: completes "timed out while ...". And what it saw so far.
#[derive(Debug)]
pub(super) struct Doing<'a> {
    seen: Mutex<Seen>,
    start: Instant,
    limit: Duration,
    /// How its packets leave.
    pub(super) via: &'a Via,
}

#[derive(Debug)]
struct Seen {
    what: What,
    details: Box<Details>,
    remark: Option<String>,
    /// The connection that was begun before the run could wait for it.
    opening: Option<Box<Opening>>,
}

/// What is going on; only made a text if it is told.
#[derive(Debug)]
enum What {
    Text(Cow<'static, str>),
    With(&'static str, SocketAddr),
}

impl<'a> Doing<'a> {
    pub(super) fn new(start: Instant, limit: Duration, via: &'a Via) -> Self {
        let what = What::Text(Cow::Borrowed("starting"));
        let seen = Mutex::new(Seen { what, details: Box::default(), remark: None, opening: None });
        Self { seen, start, limit, via }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down what the run saw.
    pub(super) fn note(&self, write: impl FnOnce(&mut Details)) {
        write(&mut self.seen().details);
    }

    /// The connection that was begun already.
    pub(super) fn take_opening(&self) -> Option<Box<Opening>> {
        self.seen().opening.take()
    }

    fn saw(&self) -> Box<Details> {
        std::mem::take(&mut self.seen().details)
    }

    pub(super) fn set(&self, what: impl Into<Cow<'static, str>>) {
        self.seen().what = What::Text(what.into());
    }

    /// The same, with whom.
    pub(super) fn set_with(&self, what: &'static str, whom: SocketAddr) {
        self.seen().what = What::With(what, whom);
    }

    /// Adds something to what the run says in the end, whatever that is.
    pub(super) fn remark(&self, text: String) {
        self.seen().remark = Some(text);
    }

    fn remarked(&self) -> Option<String> {
        self.seen().remark.take()
    }

    /// The time that is left.
    pub(super) fn left(&self) -> Duration {
        (self.start + self.limit).saturating_duration_since(Instant::now())
    }

    /// How much of its time a run can spare for something that it can do without.
    pub(super) fn patience(&self) -> Duration {
        self.limit / 4
    }

    /// That this host was held up, if it is much later than `moment`, for which the probe had waited: what did not come
    /// until then says nothing.
    pub(super) fn stalled(&self, moment: Instant) -> Option<Failure> {
        let late = Instant::now().saturating_duration_since(moment);
        (late > STALL).then(|| {
            Failure::Local(format!("this host was stalled for {} ms while {self}", late.as_millis()))
        })
    }

    /// The moment by which a probe that counts must stop counting, to be judged before its time is up.
    pub(super) fn before_the_end(&self) -> Instant {
        let margin = (self.limit / 20).clamp(Duration::from_millis(3), Duration::from_millis(50));
        self.start + self.limit.saturating_sub(margin)
    }
}

impl std::fmt::Display for Doing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.seen().what {
            What::Text(text) => f.write_str(text),
            What::With(what, whom) => write!(f, "{what} {whom}"),
        }
    }
}

/// Drives `work`; a panic in it becomes its message.
async fn caught<F: Future>(work: F) -> Result<F::Output, String> {
    let mut work = pin!(work);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(message(&*panic))),
    })
    .await
}

/// The text of a panic.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

/// A character from somewhere else, or what stands for it where it could disturb a terminal or a log.
pub(super) fn clean(c: char) -> char {
    if disturbs(c) { '\u{fffd}' } else { c }
}

/// Bounds a detail and replaces what could disturb a terminal or a log: parts of it may come from a server.
fn tidy(detail: String) -> String {
    if detail.len() <= DETAIL_LIMIT && detail.bytes().all(|b| matches!(b, b' '..=b'~')) {
        return detail;
    }
    let mut out: String = detail.chars().take(DETAIL_LIMIT).map(clean).collect();
    if out.len() > DETAIL_LIMIT {
        out.truncate(out.floor_char_boundary(DETAIL_LIMIT));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_becomes_its_message() {
        assert_eq!(caught(async { panic!("of {}", 7) }).await, Err::<(), _>("of 7".into()));
        assert_eq!(caught(async { 7 }).await, Ok(7));
    }

    #[test]
    fn details_are_bounded_and_hold_no_control_characters() {
        assert_eq!(tidy("a\x1b[2Jb\n".into()), "a\u{fffd}[2Jb\u{fffd}");
        for turn in
            ['\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}']
        {
            assert_eq!(tidy(format!("ä{turn}b")), "ä\u{fffd}b");
        }
        assert_eq!(tidy("a\u{200d}b\u{2030}".into()), "a\u{200d}b\u{2030}", "nothing else is touched");
        let long = tidy("ä".repeat(1000));
        assert!(long.len() <= DETAIL_LIMIT && long.chars().all(|c| c == 'ä'));
    }
}
