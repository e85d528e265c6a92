//! Names of targets to addresses: `/etc/hosts`, then DNS as `/etc/resolv.conf` says.
//!
//! It never asks the C library, because a static binary cannot rely on that. What this means for checks:
//!
//! - An answer is kept as long as its records' TTL says, at least a second and at most an hour, for all checks of the name
//!   together: a thousand checks of one name cost one question.
//! - A change of either file is seen at the next run.
//! - Once a name has had an answer, only a newer answer replaces it. While the name servers are silent, or say that there is
//!   no such name any more, the old one stays in use: whether the service answers is the check's to find out, and a mistake
//!   in a zone must not take every VIP away. How old it is and why it is used is told with each run.
//! - A name that never had an answer fails the run with the reason; name servers are asked again after a second.
//! - No run waits for name servers for longer than its own timeout lasts, and with an old answer at hand only for the time
//!   that the caller can spare. A question goes on without it, for ten seconds at most, for the next run to profit.
//!
//! Not known here: other sources of names (NIS, mDNS, nsswitch.conf), the zone of a link-local name server, validation (DNSSEC).

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use hickory_resolver::config::{
    LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError, NoRecords};
use hickory_resolver::proto::op::{Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};

use crate::dial::{DialError, words};

/// An answer is kept for at least this long, and a failure for exactly as long.
const LEAST: Duration = Duration::from_secs(1);

/// An answer is kept for at most this long.
const MOST: Duration = Duration::from_secs(3600);

/// The longest that one question may take, all its repetitions included.
const LIMIT: Duration = Duration::from_secs(10);

/// The longest that one name server is waited for, whatever `/etc/resolv.conf` says.
const PATIENCE: Duration = Duration::from_secs(2);

/// How many names are known at one time; the one that was not used for longest makes room.
const NAMES: usize = 4096;

/// How many questions are open at one time, for each takes a few descriptors.
const QUESTIONS: usize = 64;

/// The most of a file that is read.
const FILE_LIMIT: u64 = 16 << 20;

/// Where names are looked up, and what is known of them.
#[derive(Debug)]
pub struct Resolver {
    hosts: PathBuf,
    resolv_conf: PathBuf,
    questions: Semaphore,
    names: Mutex<HashMap<String, Entry>>,
    /// The files as they were read last.
    files: Mutex<Option<Arc<Files>>>,
}

/// The addresses of a name, never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Those that this host has a route to come first.
    pub addresses: Vec<IpAddr>,
    /// Why they are not as fresh as they should be; `None`: they are.
    pub old: Option<Old>,
}

/// An answer whose time is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Old {
    /// How long ago it was given.
    pub age: Duration,
    /// Why there is no newer one, in words.
    pub why: String,
}

impl Resolver {
    /// The one that all checks share, of this host's own files.
    pub fn system() -> &'static Arc<Self> {
        static SYSTEM: OnceLock<Arc<Resolver>> = OnceLock::new();
        SYSTEM.get_or_init(|| Self::new("/etc/hosts", "/etc/resolv.conf"))
    }

    /// One of other files than this host's. Nothing is read yet.
    pub fn new(hosts: impl Into<PathBuf>, resolv_conf: impl Into<PathBuf>) -> Arc<Self> {
        Arc::new(Self {
            hosts: hosts.into(),
            resolv_conf: resolv_conf.into(),
            questions: Semaphore::new(QUESTIONS),
            names: Mutex::default(),
            files: Mutex::default(),
        })
    }

    /// The addresses of `name`, for which a newer answer is waited for up to `patience` if there is an old one, and for as
    /// long as the caller likes if there is none.
    ///
    /// # Errors
    /// The name never had an address, and why it has none.
    pub async fn lookup(self: &Arc<Self>, name: &str, patience: Duration) -> Result<Answer, DialError> {
        let stamp = self.stamp();
        loop {
            match self.known(name, stamp, patience) {
                Known::Answer(mut answer) => {
                    routed_first(&mut answer.addresses);
                    return Ok(answer);
                }
                Known::Failure(cause) => return Err(cause.dial_error(name)),
                // The end of a question is that nobody is left to tell of it.
                Known::Asked { mut ended, patience: None } => while ended.changed().await.is_ok() {},
                Known::Asked { mut ended, patience: Some(left) } => {
                    // Whichever it is, what is known then is the answer.
                    let _ = timeout(left, ended.changed()).await;
                }
            }
        }
    }

    /// What is known of `name`; if that is not enough, somebody asks.
    fn known(self: &Arc<Self>, name: &str, stamp: Stamp, patience: Duration) -> Known {
        let mut names = self.names();
        let now = Instant::now();
        if !names.contains_key(name) {
            make_room(&mut names);
        }
        let entry = names.entry(name.to_owned()).or_default();
        entry.used = Some(now);
        if let Some(answer) = &entry.answer
            && answer.stamp == stamp
            && now - answer.given < answer.ttl
        {
            return Known::Answer(Answer { addresses: answer.addresses.clone(), old: None });
        }
        if let Some(failure) = &entry.failure
            && failure.stamp == stamp
            && now - failure.at < LEAST
        {
            let cause = failure.cause.clone();
            return match entry.old(now, || cause.text.clone()) {
                Some(answer) => Known::Answer(answer),
                None => Known::Failure(cause),
            };
        }
        let question = match entry.question.take().filter(Question::is_open) {
            Some(open) => open,
            None => self.ask(name.to_owned(), stamp, now),
        };
        let waited = now - question.since;
        let ended = question.ended.clone();
        entry.question = Some(question);
        let silent = || format!("no name server has answered for {} ms", waited.as_millis());
        match entry.old(now, silent) {
            Some(answer) if waited >= patience => Known::Answer(answer),
            old => Known::Asked { ended, patience: old.map(|_| patience - waited) },
        }
    }

    /// Asks in the background, for [`LIMIT`] at most.
    fn ask(self: &Arc<Self>, name: String, stamp: Stamp, since: Instant) -> Question {
        let (tell, ended) = watch::channel(());
        let resolver = Arc::clone(self);
        tokio::spawn(async move {
            let result = timeout(LIMIT, resolver.question(&name, stamp)).await;
            let result = result.unwrap_or_else(|_| Err(Cause::words("no name server answers")));
            resolver.settle(&name, stamp, result);
            // After what is known has changed.
            drop(tell);
        });
        Question { since, ended }
    }

    /// Keeps what came of a question.
    fn settle(&self, name: &str, stamp: Stamp, result: Result<(Vec<IpAddr>, Duration), Cause>) {
        let now = Instant::now();
        // A name that had to make room is not wanted any more.
        let mut names = self.names();
        let Some(entry) = names.get_mut(name) else { return };
        match result {
            Ok((addresses, ttl)) => {
                entry.answer = Some(Given { addresses, given: now, ttl: ttl.clamp(LEAST, MOST), stamp });
                entry.failure = None;
            }
            Err(cause) => entry.failure = Some(Failure { at: now, cause, stamp }),
        }
    }

    /// The addresses of `name` and how long they are good for.
    async fn question(&self, name: &str, stamp: Stamp) -> Result<(Vec<IpAddr>, Duration), Cause> {
        let _permit =
            self.questions.acquire().await.map_err(|_| Cause::words("this host looks up nothing more"))?;
        let files = self.files(stamp).await?;
        let absolute = absolute(name)?;
        let mut addresses = files.of_hosts(&absolute);
        if !addresses.is_empty() {
            return Ok((addresses, MOST));
        }
        let mut builder =
            TokioResolver::builder_with_config(files.servers.clone(), TokioRuntimeProvider::default());
        *builder.options_mut() = files.options.clone();
        let found = builder.build().map_err(Cause::of)?.lookup_ip(name).await.map_err(Cause::of)?;
        let ttl = found.as_lookup().answers().iter().map(|r| r.ttl).min().unwrap_or(0);
        for address in found.iter() {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if addresses.is_empty() {
            return Err(Cause::words("the name has no address"));
        }
        Ok((addresses, Duration::from_secs(ttl.into())))
    }

    /// The files as they are at `stamp`, read if they were not yet.
    async fn files(&self, stamp: Stamp) -> Result<Arc<Files>, Cause> {
        let kept = self.files.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(files) = kept.filter(|f| f.stamp == stamp) {
            return Ok(files);
        }
        let (hosts, resolv_conf) = (self.hosts.clone(), self.resolv_conf.clone());
        let read = tokio::task::spawn_blocking(move || Files::read(&hosts, &resolv_conf, stamp));
        let files = Arc::new(read.await.map_err(|_| Cause::words("the files could not be read"))??);
        *self.files.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&files));
        Ok(files)
    }

    /// What tells this version of the files from another.
    fn stamp(&self) -> Stamp {
        let of = |path: &Path| {
            let m = fs::metadata(path).ok()?;
            Some([m.dev(), m.ino(), m.mtime().cast_unsigned(), m.mtime_nsec().cast_unsigned(), m.size()])
        };
        Stamp([of(&self.hosts), of(&self.resolv_conf)])
    }

    fn names(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Device, inode, time of the last change and size of each file; `None` for one that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp([Option<[u64; 5]>; 2]);

/// A name's state.
#[derive(Debug, Default)]
struct Entry {
    used: Option<Instant>,
    answer: Option<Given>,
    /// Why the newest question failed, if it did.
    failure: Option<Failure>,
    question: Option<Question>,
}

impl Entry {
    fn old(&self, now: Instant, why: impl FnOnce() -> String) -> Option<Answer> {
        let answer = self.answer.as_ref()?;
        let old = Old { age: now - answer.given, why: why() };
        Some(Answer { addresses: answer.addresses.clone(), old: Some(old) })
    }
}

#[derive(Debug)]
struct Given {
    addresses: Vec<IpAddr>,
    given: Instant,
    ttl: Duration,
    stamp: Stamp,
}

#[derive(Debug)]
struct Failure {
    at: Instant,
    cause: Cause,
    stamp: Stamp,
}

/// A question that goes on for as long as somebody holds the other end of `ended`.
#[derive(Debug)]
struct Question {
    since: Instant,
    ended: watch::Receiver<()>,
}

impl Question {
    fn is_open(&self) -> bool {
        self.ended.has_changed().is_ok()
    }
}

enum Known {
    Answer(Answer),
    Failure(Cause),
    /// Somebody asks; with an old answer at hand that is waited for no longer than `patience`.
    Asked {
        ended: watch::Receiver<()>,
        patience: Option<Duration>,
    },
}

fn make_room(names: &mut HashMap<String, Entry>) {
    if names.len() < NAMES {
        return;
    }
    if let Some(oldest) = names.iter().min_by_key(|(_, e)| e.used).map(|(name, _)| name.clone()) {
        names.remove(&oldest);
    }
}

/// What the two files say.
#[derive(Debug)]
struct Files {
    hosts: Hosts,
    servers: ResolverConfig,
    options: ResolverOpts,
    stamp: Stamp,
}

impl Files {
    fn read(hosts: &Path, resolv_conf: &Path, stamp: Stamp) -> Result<Self, Cause> {
        let read = |path: &Path| -> io::Result<Vec<u8>> {
            let mut octets = Vec::new();
            match File::open(path) {
                Ok(file) => file.take(FILE_LIMIT).read_to_end(&mut octets).map(|_| octets),
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(octets),
                Err(e) => Err(e),
            }
        };
        let failed = |path: &Path, e: &io::Error| Cause {
            os: e.raw_os_error(),
            text: format!("cannot read {}: {}", path.display(), words(e)),
        };
        let mut known = Hosts::default();
        let text = read(hosts).map_err(|e| failed(hosts, &e))?;
        // A line that is no text does not spoil the others.
        let text = String::from_utf8_lossy(&text);
        known.read_hosts_conf(text.as_bytes()).map_err(|e| failed(hosts, &e))?;
        let text = read(resolv_conf).map_err(|e| failed(resolv_conf, &e))?;
        let (servers, mut options) =
            hickory_resolver::system_conf::parse_resolv_conf(&text).unwrap_or_else(|_| {
                // What resolv.conf(5) says of a file without a name server.
                let own = NameServerConfig::udp_and_tcp(IpAddr::from([127, 0, 0, 1]));
                (ResolverConfig::from_parts(None, Vec::new(), vec![own]), ResolverOpts::default())
            });
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        options.ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
        options.timeout = options.timeout.min(PATIENCE);
        options.attempts = options.attempts.min(2);
        Ok(Self { hosts: known, servers, options, stamp })
    }

    /// The addresses in `/etc/hosts`, of both families: a name that is there is not asked for in DNS.
    fn of_hosts(&self, name: &Name) -> Vec<IpAddr> {
        let of = |kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind));
        let found = [RecordType::AAAA, RecordType::A].into_iter().filter_map(of);
        found.flat_map(|l| l.answers().iter().filter_map(|r| r.data.ip_addr()).collect::<Vec<_>>()).collect()
    }
}

/// A name without a search list.
fn absolute(name: &str) -> Result<Name, Cause> {
    let mut absolute = Name::from_str_relaxed(name).map_err(|e| Cause::words(&e.to_string()))?;
    absolute.set_fqdn(true);
    Ok(absolute)
}

/// Moves addresses without a route behind the others, for the first is the one that a datagram goes to.
fn routed_first(addresses: &mut [IpAddr]) {
    if addresses.iter().all(IpAddr::is_ipv4) || addresses.iter().all(IpAddr::is_ipv6) {
        return;
    }
    // Connecting a datagram socket asks the routing table and sends nothing.
    let routed = |address: &IpAddr| {
        let any: IpAddr = if address.is_ipv4() { [0, 0, 0, 0].into() } else { [0; 16].into() };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0));
        socket.and_then(|s| s.connect(SocketAddr::new(*address, 9))).is_ok()
    };
    addresses.sort_by_cached_key(|address| !routed(address));
}

/// Why a question failed.
#[derive(Debug, Clone)]
struct Cause {
    os: Option<i32>,
    text: String,
}

impl Cause {
    fn words(text: &str) -> Self {
        Self { os: None, text: text.to_owned() }
    }

    fn of(e: NetError) -> Self {
        match &e {
            NetError::Io(io) => Self { os: io.raw_os_error(), text: format!("name server: {}", words(io)) },
            NetError::Timeout => Self::words("no name server answers"),
            NetError::NoConnections => Self::words("no name server can be reached"),
            NetError::Dns(DnsError::NoRecordsFound(NoRecords { response_code, .. })) => match response_code {
                ResponseCode::NXDomain => Self::words("there is no such name (NXDOMAIN)"),
                ResponseCode::NoError => Self::words("the name has no address"),
                code => Self::words(&format!("the name server says {code}")),
            },
            NetError::Dns(DnsError::ResponseCode(code)) => {
                Self::words(&format!("the name server says {code}"))
            }
            other => Self::words(&other.to_string()),
        }
    }

    fn dial_error(&self, name: &str) -> DialError {
        let cause = match self.os {
            Some(number) => io::Error::from_raw_os_error(number),
            None => io::Error::other(self.text.clone()),
        };
        DialError::new(format!("look up {name}"), cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_was_not_used_for_longest_makes_room() {
        let mut names = HashMap::new();
        let start = Instant::now();
        for n in 0..NAMES + 10 {
            make_room(&mut names);
            let used = Some(start + Duration::from_millis(n as u64));
            names.insert(n.to_string(), Entry { used, ..Entry::default() });
            // One is always in use.
            if let Some(first) = names.get_mut("0") {
                first.used = used;
            }
        }
        assert_eq!(names.len(), NAMES);
        assert!(names.contains_key("0") && !names.contains_key("1") && names.contains_key("11"));
    }

    #[tokio::test]
    async fn localhost_comes_from_the_hosts_file() {
        let found = Resolver::system().lookup("localhost", Duration::ZERO).await.unwrap();
        assert!(found.addresses.iter().all(IpAddr::is_loopback) && found.old.is_none(), "{found:?}");
    }
}
