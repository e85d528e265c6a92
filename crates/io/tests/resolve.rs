//! Name resolution against a scripted name server: how long answers are kept, what replaces them, and what happens without one.
//!
//! Every test has a network namespace of its own, with a name server on port 53 of its loopback.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{RData, Record, RecordType};
use probe_support::*;
use standfast_core::health::Outcome::{Bad, Good};
use standfast_core::plan::{Check, Probe, Target, UdpProbe};
use standfast_io::probe::prepare;
use standfast_io::resolve::{Answer, Resolver};
use tokio::runtime::Runtime;

/// What the name server says to every question.
#[derive(Debug, Clone)]
enum Says {
    Addresses(u32, Vec<IpAddr>),
    Nothing,
    Code(ResponseCode),
}

/// A name server that says the same to everybody until it is told otherwise.
struct Server {
    says: Mutex<Says>,
    /// The names it was asked for an A record.
    asked: Mutex<Vec<String>>,
}

impl Server {
    fn start(at: &str, says: Says) -> Arc<Self> {
        let server = Arc::new(Self { says: Mutex::new(says), asked: Mutex::default() });
        let socket = UdpSocket::bind((at, 53)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let inner = Arc::clone(&server);
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while Arc::strong_count(&inner) > 1 {
                let Ok((n, from)) = socket.recv_from(&mut buffer) else { continue };
                if let Some(answer) = inner.answer(&buffer[..n]) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        server
    }

    fn answer(&self, query: &[u8]) -> Option<Vec<u8>> {
        let query = Message::from_vec(query).unwrap();
        let question = query.queries[0].clone();
        let mut answer = Message::new(query.metadata.id, MessageType::Response, OpCode::Query);
        answer.add_query(question.clone());
        if question.query_type() == RecordType::A {
            self.asked.lock().unwrap().push(question.name().to_string());
        }
        match self.says.lock().unwrap().clone() {
            Says::Nothing => return None,
            Says::Code(code) => answer.metadata.response_code = code,
            Says::Addresses(ttl, all) => {
                for address in all {
                    let data = match (address, question.query_type()) {
                        (IpAddr::V4(a), RecordType::A) => RData::A(A(a)),
                        (IpAddr::V6(a), RecordType::AAAA) => RData::AAAA(AAAA(a)),
                        _ => continue,
                    };
                    answer.add_answer(Record::from_rdata(question.name().clone(), ttl, data));
                }
            }
        }
        Some(answer.to_vec().unwrap())
    }

    fn say(&self, says: Says) {
        *self.says.lock().unwrap() = says;
    }

    fn questions(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

fn v4(last: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, last).into()
}

/// A resolver of its own files, and the runtime that it works on.
struct Bench {
    runtime: Runtime,
    resolver: Arc<Resolver>,
    files: tempfile::TempDir,
}

impl Bench {
    fn hosts(&self) -> PathBuf {
        self.files.path().join("hosts")
    }

    fn resolv_conf(&self) -> PathBuf {
        self.files.path().join("resolv.conf")
    }

    fn within(&self, name: &str, patience: Duration, limit: Duration) -> Option<Result<Answer, String>> {
        let lookup = self.resolver.lookup(name, patience);
        let limited = self.runtime.block_on(async { tokio::time::timeout(limit, lookup).await });
        limited.ok().map(|r| r.map_err(|e| e.to_string()))
    }

    fn lookup(&self, name: &str) -> Result<Answer, String> {
        self.within(name, Duration::from_secs(20), Duration::from_secs(30)).unwrap()
    }

    fn addresses(&self, name: &str) -> Vec<IpAddr> {
        self.lookup(name).unwrap().addresses
    }

    /// Lets what goes on in the background go on.
    fn sleep(&self, millis: u64) {
        self.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(millis)).await });
    }

    fn until(&self, mut is: impl FnMut() -> bool, what: &str) {
        let end = Instant::now() + Duration::from_secs(20);
        while !is() {
            assert!(Instant::now() < end, "{what}");
            self.sleep(50);
        }
    }
}

/// Runs `test` in a network namespace, with files that name 127.0.0.1 as the name server.
fn bench(name: &str, test: impl FnOnce(Bench) + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if !own_namespace(name) {
                return;
            }
            assert!(command("ip link set lo up"));
            let files = tempfile::tempdir().unwrap();
            fs::write(files.path().join("hosts"), "127.0.0.1 localhost\n").unwrap();
            fs::write(files.path().join("resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
            let resolver = Resolver::new(files.path().join("hosts"), files.path().join("resolv.conf"));
            test(Bench { runtime: here(), resolver, files });
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn an_answer_is_kept_for_its_ttl_and_then_asked_for_again() {
    bench("an_answer_is_kept_for_its_ttl_and_then_asked_for_again", |b| {
        let server = Server::start("127.0.0.1", Says::Addresses(3, vec![v4(1), v4(2)]));
        assert_eq!(b.addresses("a.example"), [v4(1), v4(2)]);
        let got = Instant::now();
        server.say(Says::Addresses(3600, vec![v4(3)]));
        for _ in 0..100 {
            assert_eq!(b.lookup("a.example").unwrap().old, None);
        }
        assert!(
            server.questions() == 1 || got.elapsed() > Duration::from_secs(2),
            "asked again within the TTL"
        );
        b.until(|| b.addresses("a.example") == [v4(3)], "the answer was never replaced");
        assert!(got.elapsed() > Duration::from_secs(2), "replaced after {:?}", got.elapsed());
    });
}

#[test]
fn many_checks_of_one_name_ask_once_and_a_ttl_of_zero_counts_as_a_second() {
    bench("many_checks_of_one_name_ask_once_and_a_ttl_of_zero_counts_as_a_second", |b| {
        let server = Server::start("127.0.0.1", Says::Addresses(0, vec![v4(1)]));
        let start = Instant::now();
        b.runtime.block_on(async {
            let mut all = tokio::task::JoinSet::new();
            for _ in 0..500 {
                let resolver = Arc::clone(&b.resolver);
                all.spawn(async move { resolver.lookup("a.example", Duration::ZERO).await.unwrap() });
            }
            while let Some(answer) = all.join_next().await {
                assert_eq!(answer.unwrap().addresses, [v4(1)]);
            }
        });
        let seconds = usize::try_from(start.elapsed().as_secs()).unwrap();
        assert!(server.questions() <= 1 + seconds, "{} questions", server.questions());
    });
}

#[test]
fn without_its_name_server_a_name_keeps_its_answer_and_says_how_old_it_is() {
    bench("without_its_name_server_a_name_keeps_its_answer_and_says_how_old_it_is", |b| {
        let server = Server::start("127.0.0.1", Says::Addresses(1, vec![v4(1)]));
        assert_eq!(b.addresses("a.example"), [v4(1)]);
        for (says, why) in [
            (Says::Code(ResponseCode::ServFail), "the name server says Server Failure"),
            (Says::Code(ResponseCode::NXDomain), "there is no such name (NXDOMAIN)"),
            (Says::Addresses(1, vec![]), "the name has no address"),
            (Says::Nothing, "no name server answers"),
        ] {
            server.say(says);
            b.until(
                || {
                    let answer = b.lookup("a.example").unwrap();
                    assert_eq!(answer.addresses, [v4(1)]);
                    answer.old.is_some_and(|old| old.age >= Duration::from_secs(1) && old.why == why)
                },
                why,
            );
        }
        server.say(Says::Addresses(1, vec![v4(2)]));
        b.until(|| b.addresses("a.example") == [v4(2)], "the new answer was never taken");
        assert_eq!(b.lookup("a.example").unwrap().old, None);
    });
}

#[test]
fn a_name_that_never_was_fails_at_once_and_is_asked_for_again_after_a_second() {
    bench("a_name_that_never_was_fails_at_once_and_is_asked_for_again_after_a_second", |b| {
        let server = Server::start("127.0.0.1", Says::Code(ResponseCode::NXDomain));
        let start = Instant::now();
        for _ in 0..50 {
            let e = b.lookup("a.example").unwrap_err();
            assert_eq!(e, "look up a.example: there is no such name (NXDOMAIN)");
        }
        let elapsed = start.elapsed();
        assert!(elapsed < Duration::from_secs(10));
        assert!(server.questions() <= 1 + usize::try_from(elapsed.as_secs()).unwrap());
        server.say(Says::Addresses(60, vec![v4(1)]));
        b.until(|| b.lookup("a.example").is_ok(), "a name that came into being was never found");
    });
}

#[test]
fn both_files_are_read_again_when_they_change() {
    bench("both_files_are_read_again_when_they_change", |b| {
        let first = Server::start("127.0.0.1", Says::Addresses(3600, vec![v4(1)]));
        let second = Server::start("127.0.0.2", Says::Addresses(3600, vec![v4(2)]));
        assert_eq!(b.addresses("a.example"), [v4(1)]);
        fs::write(b.resolv_conf(), "nameserver 127.0.0.2\n").unwrap();
        assert_eq!(b.addresses("a.example"), [v4(2)]);
        // A name of the hosts file is not asked for, of neither family.
        fs::write(b.hosts(), b"192.0.2.3 A.Example other\n2001:db8::3 a.example # not 192.0.2.4\n\xff\n")
            .unwrap();
        let asked = (first.questions(), second.questions());
        let mut found = b.addresses("a.example");
        found.sort();
        assert_eq!(found, [v4(3), "2001:db8::3".parse().unwrap()]);
        assert_eq!(b.addresses("other"), [v4(3)]);
        assert_eq!((first.questions(), second.questions()), asked);
        fs::remove_file(b.hosts()).unwrap();
        assert_eq!(b.addresses("a.example"), [v4(2)]);
        // Without a name server in it, or without the file, this host itself is asked.
        for broken in ["# nothing\n", "nameserver nonsense\n"] {
            fs::write(b.resolv_conf(), broken).unwrap();
            assert_eq!(b.addresses("a.example"), [v4(1)], "{broken}");
        }
        fs::remove_file(b.resolv_conf()).unwrap();
        assert_eq!(b.addresses("a.example"), [v4(1)]);
    });
}

#[test]
fn nobody_waits_longer_than_it_wants_and_a_question_ends_by_itself() {
    bench("nobody_waits_longer_than_it_wants_and_a_question_ends_by_itself", |b| {
        let server = Server::start("127.0.0.1", Says::Nothing);
        // Those of this namespace, where only the name server's own may stay.
        let sockets = || fs::read_to_string("/proc/thread-self/net/udp").unwrap().lines().count() - 1;
        for n in 0..20 {
            let name = format!("n{n}.example");
            assert_eq!(b.within(&name, Duration::from_secs(9), Duration::from_millis(20)), None, "{name}");
        }
        b.until(|| b.runtime.metrics().num_alive_tasks() == 0, "a question goes on for ever");
        assert_eq!(sockets(), 1);
        // With an old answer the patience counts, and only once for each question.
        server.say(Says::Addresses(1, vec![v4(1)]));
        assert_eq!(b.addresses("a.example"), [v4(1)]);
        server.say(Says::Nothing);
        b.sleep(1100);
        let patience = Duration::from_millis(300);
        for _ in 0..2 {
            let start = Instant::now();
            let answer = b.within("a.example", patience, Duration::from_secs(9)).unwrap().unwrap();
            assert!(answer.old.is_some() && answer.addresses == [v4(1)], "{answer:?}");
            assert!(start.elapsed() < patience + Duration::from_secs(3), "{:?}", start.elapsed());
        }
    });
}

#[test]
fn an_address_without_a_route_comes_last() {
    bench("an_address_without_a_route_comes_last", |b| {
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        let _server = Server::start("127.0.0.1", Says::Addresses(3600, vec![v4(1), v6]));
        assert!(command("ip route add 192.0.2.0/24 dev lo"));
        assert_eq!(b.addresses("a.example"), [v4(1), v6]);
        assert!(command("ip route del 192.0.2.0/24 dev lo") && command("ip route add 2001:db8::/32 dev lo"));
        assert_eq!(b.addresses("a.example"), [v6, v4(1)]);
    });
}

#[test]
fn a_search_list_and_several_name_servers_are_used() {
    bench("a_search_list_and_several_name_servers_are_used", |b| {
        let server = Server::start("127.0.0.2", Says::Addresses(60, vec![v4(1)]));
        fs::write(b.resolv_conf(), "search corp.example\nnameserver 127.0.0.1\nnameserver 127.0.0.2\n")
            .unwrap();
        assert_eq!(b.addresses("web"), [v4(1)]);
        assert_eq!(server.asked.lock().unwrap()[0], "web.corp.example.");
    });
}

/// Makes `text` the system's `/etc/resolv.conf` and a hosts file without names its `/etc/hosts`, for this thread alone.
fn mount(files: &tempfile::TempDir, text: &str) -> bool {
    // SAFETY: unshare takes a number and touches no memory.
    #[expect(unsafe_code, reason = "the standard library has no call for it")]
    let made = unsafe { libc::unshare(libc::CLONE_NEWNS) == 0 };
    let conf = files.path().join("system.conf");
    fs::write(&conf, text).unwrap();
    made && command("mount --make-rprivate /")
        && command(&format!("mount --bind {} /etc/resolv.conf", conf.display()))
        && command(&format!("mount --bind {} /etc/hosts", files.path().join("hosts").display()))
}

#[test]
fn a_check_of_a_name_outlives_its_name_server_and_follows_the_name() {
    let test = "a_check_of_a_name_outlives_its_name_server_and_follows_the_name";
    bench(test, |b| {
        if !mount(&b.files, "nameserver 127.0.0.1\n") {
            eprintln!("SKIP {test}: nothing can be mounted");
            return;
        }
        let address = |last| IpAddr::from([127, 0, 0, last]);
        let server = Server::start("127.0.0.1", Says::Addresses(1, vec![address(10)]));
        let services: Vec<UdpSocket> = [10, 11].map(|n| UdpSocket::bind((address(n), 99)).unwrap()).into();
        for service in services {
            std::thread::spawn(move || {
                while let Ok((n, from)) = service.recv_from(&mut [0; 10]) {
                    let _ = service.send_to(&vec![0; n], from);
                }
            });
        }
        let probe = UdpProbe::new(Target::Name("service.example".into(), 99), vec![1]);
        let check = prepare(&Check::new(Probe::Udp(probe))).unwrap();
        let run = || b.runtime.block_on(check.run(Duration::from_secs(4)));
        let v = run();
        assert_says(&v, Good, "127.0.0.10:99 answered 1 bytes");
        assert!(!v.detail.contains("address of") && v.details.unwrap().resolve.is_some());
        server.say(Says::Code(ResponseCode::NXDomain));
        b.until(
            || {
                let v = run();
                assert_says(&v, Good, "127.0.0.10:99 answered 1 bytes");
                v.detail
                    .contains("(address of service.example from 1 s ago: there is no such name (NXDOMAIN))")
            },
            "the old answer is not told",
        );
        server.say(Says::Addresses(1, vec![address(11)]));
        b.until(|| run().detail == "127.0.0.11:99 answered 1 bytes", "the check does not follow its name");
        // The check's own result decides, whatever the name server says.
        server.say(Says::Addresses(1, vec![address(12)]));
        b.until(|| run().outcome == Bad, "nobody is there");
        assert_says(&run(), Bad, "127.0.0.12:99: ICMP port unreachable");
    });
}
