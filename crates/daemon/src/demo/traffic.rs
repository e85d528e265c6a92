//! The client: a new connection every few milliseconds, and what became of each.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two requests.
pub(super) const PERIOD: Duration = Duration::from_millis(5);
/// Threads that share them, so that one that waits in vain delays few others.
const THREADS: u32 = 8;
/// After this long a request is lost.
const PATIENCE: Duration = Duration::from_millis(250);

/// Requests that go on until it is dropped.
pub(super) struct Traffic {
    log: Arc<Mutex<Vec<Request>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// One request: who answered, or why it was lost.
#[derive(Debug, Clone)]
struct Request {
    /// How much later than it should have been: this machine had no time for it.
    late: Duration,
    began: Instant,
    ended: Instant,
    answer: Result<String, String>,
}

/// What became of the requests of some time.
#[derive(Debug, Default)]
pub(super) struct Summary {
    /// Answers, by who gave them.
    pub(super) answers: BTreeMap<String, u64>,
    /// Losses, by their reason.
    pub(super) losses: BTreeMap<String, u64>,
    /// The longest time without an answer.
    pub(super) gap: Duration,
    /// When the last request that was lost began, after the start.
    pub(super) settled: Duration,
    /// The longest time for which this machine itself stood still.
    pub(super) stall: Duration,
}

impl Traffic {
    /// Begins, from the network namespace of the calling thread.
    pub(super) fn start(target: SocketAddr) -> io::Result<Self> {
        let mut traffic = Self { log: Arc::default(), stop: Arc::default(), threads: Vec::new() };
        let first = Instant::now();
        for thread in 0..THREADS {
            let (log, stop) = (Arc::clone(&traffic.log), Arc::clone(&traffic.stop));
            let mut due = first + PERIOD * thread;
            let ask = move || {
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    let began = Instant::now();
                    let late = began.saturating_duration_since(due);
                    let answer = request(target, began + PATIENCE).map_err(|e| reason(&e));
                    lock(&log).push(Request { late, began, ended: Instant::now(), answer });
                    // A turn that was missed is not made up for: the rate stays what it is.
                    due = Instant::max(due + PERIOD * THREADS, Instant::now());
                }
            };
            traffic.threads.push(std::thread::Builder::new().name("client".to_owned()).spawn(ask)?);
        }
        Ok(traffic)
    }

    /// What became of the requests that ended at `from` or later.
    pub(super) fn since(&self, from: Instant) -> Summary {
        let requests: Vec<Request> = lock(&self.log).iter().filter(|r| r.ended >= from).cloned().collect();
        summary(from, Instant::now(), &requests)
    }

    /// Stops, and tells what became of the requests that ended between each of these moments and the next, the last one to the
    /// end. A request that is under way when something happens is a witness of it.
    pub(super) fn finish(mut self, moments: &[Instant]) -> Vec<Summary> {
        self.halt();
        split(&lock(&self.log), moments)
    }

    fn halt(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.halt();
    }
}

fn lock(log: &Mutex<Vec<Request>>) -> MutexGuard<'_, Vec<Request>> {
    // The list is whole even if a thread panicked: each entry is pushed in one step.
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

fn split(log: &[Request], moments: &[Instant]) -> Vec<Summary> {
    let end = log.iter().map(|r| r.ended).max().unwrap_or_else(Instant::now);
    let ends = moments.iter().skip(1).copied().chain([end]);
    let within = |(&from, to): (&Instant, Instant)| {
        let of = |r: &&Request| r.ended >= from && (r.ended < to || to == end);
        summary(from, to, &log.iter().filter(of).cloned().collect::<Vec<_>>())
    };
    moments.iter().zip(ends).map(within).collect()
}

fn summary(from: Instant, to: Instant, requests: &[Request]) -> Summary {
    let mut summary = Summary::default();
    let mut answered = vec![from, to];
    for request in requests {
        summary.stall = summary.stall.max(request.late);
        match &request.answer {
            Ok(who) => {
                *summary.answers.entry(who.clone()).or_default() += 1;
                answered.push(request.ended);
            }
            Err(why) => {
                *summary.losses.entry(why.clone()).or_default() += 1;
                summary.settled = summary.settled.max(request.began.saturating_duration_since(from));
            }
        }
    }
    answered.sort_unstable();
    let gaps = answered.windows(2).map(|w| w[1].duration_since(w[0]));
    summary.gap = gaps.max().unwrap_or_default();
    summary
}

/// GET over a connection of its own; who answered.
fn request(target: SocketAddr, deadline: Instant) -> io::Result<String> {
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok::<_, io::Error>(left),
    };
    let mut stream = TcpStream::connect_timeout(&target, left()?)?;
    stream.set_write_timeout(Some(left()?))?;
    write!(stream, "GET / HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut piece = [0; 512];
    loop {
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut piece)? {
            0 => break,
            n => answer.extend_from_slice(&piece[..n]),
        }
    }
    let answer = String::from_utf8_lossy(&answer);
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.trim().to_owned()),
        Some((head, _)) => {
            Err(io::Error::other(head.lines().next().unwrap_or_default().replacen("HTTP/1.1", "answered", 1)))
        }
        None => Err(io::Error::other("cut off")),
    }
}

fn reason(e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "no answer".to_owned(),
        io::ErrorKind::ConnectionRefused => "refused".to_owned(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => "reset".to_owned(),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => "unreachable".to_owned(),
        _ => e.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(from: Instant, ms: u64) -> Instant {
        from + Duration::from_millis(ms)
    }

    fn request(from: Instant, began: u64, ended: u64, answer: Result<&str, &str>) -> Request {
        let answer = answer.map(str::to_owned).map_err(str::to_owned);
        Request { late: Duration::ZERO, began: at(from, began), ended: at(from, ended), answer }
    }

    #[test]
    fn a_summary_counts_losses_and_measures_the_longest_silence() {
        let from = Instant::now();
        let mut requests = [
            request(from, 1, 2, Ok("a")),
            request(from, 5, 6, Err("reset")),
            request(from, 7, 57, Err("refused")),
            request(from, 10, 42, Ok("b")),
            request(from, 50, 51, Ok("b")),
        ];
        requests[1].late = Duration::from_millis(4);
        let summary = summary(from, at(from, 60), &requests);
        assert_eq!(summary.stall, Duration::from_millis(4));
        assert_eq!(summary.answers, BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]));
        assert_eq!(summary.losses, BTreeMap::from([("refused".to_owned(), 1), ("reset".to_owned(), 1)]));
        assert_eq!(summary.gap, Duration::from_millis(40));
        assert_eq!(summary.settled, Duration::from_millis(7));
    }

    #[test]
    fn a_request_under_way_counts_for_what_happens_then() {
        let from = Instant::now();
        let log = [
            request(from, 1, 2, Ok("a")),
            request(from, 9, 11, Err("reset")),
            request(from, 12, 13, Ok("a")),
            request(from, 20, 30, Ok("b")),
        ];
        let seen = split(&log, &[from, at(from, 10)]);
        let counts: Vec<(u64, u64)> =
            seen.iter().map(|s| (s.answers.values().sum(), s.losses.values().sum())).collect();
        assert_eq!(counts, [(1, 0), (2, 1)]);
        assert_eq!(seen[1].settled, Duration::ZERO);
    }

    #[test]
    fn silence_to_the_end_counts() {
        let from = Instant::now();
        assert_eq!(summary(from, at(from, 3000), &[]).gap, Duration::from_secs(3));
    }
}
