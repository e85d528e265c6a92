//! Hosts for tests of the kernel's side: each a thread in a network namespace of its own, which vanishes with it.
#![expect(unsafe_code, reason = "unshare and gettid have no safe face")]
#![allow(dead_code, reason = "each test binary uses its part")]

use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

type Job = Box<dyn FnOnce() + Send>;

/// A host: `lo` is up, and nothing else there.
pub(crate) struct Host {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    id: libc::pid_t,
}

impl Host {
    /// Makes one, or says aloud why the test `name` is skipped.
    pub(crate) fn new(name: &str) -> Option<Self> {
        if Command::new("ip").arg("-V").output().is_err() {
            eprintln!("SKIP {name}: the package iproute2 is missing");
            return None;
        }
        let (jobs, work) = channel::<Job>();
        let (ready, made) = channel();
        let thread = thread::spawn(move || {
            // SAFETY: it takes flags and touches no memory of ours.
            let done = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            // SAFETY: it only returns a number.
            let id = unsafe { libc::gettid() };
            let made = if done == 0 { Ok(id) } else { Err(std::io::Error::last_os_error()) };
            let fine = made.is_ok();
            ready.send(made).unwrap();
            if fine {
                work.into_iter().for_each(|job| job());
            }
        });
        match made.recv().unwrap() {
            Err(e) => {
                eprintln!("SKIP {name}: no network namespace, it needs root: {e}");
                None
            }
            Ok(id) => {
                let host = Self { jobs: Some(jobs), thread: Some(thread), id };
                host.ip("link set lo up");
                Some(host)
            }
        }
    }

    /// Makes one on two cables: .1 of 192.0.2.0/25 and .129 of 192.0.2.128/25, ::1 of 2001:db8:1::/64 and of 2001:db8:2::/64. The
    /// other ends are on the second host, without addresses.
    pub(crate) fn on_two_cables(name: &str) -> Option<(Self, Self)> {
        let (host, other) = (Self::new(name)?, Self::new(name)?);
        for (cable, v4, v6) in
            [("one", "192.0.2.1/25", "2001:db8:1::1/64"), ("two", "192.0.2.129/25", "2001:db8:2::1/64")]
        {
            host.cable(cable, &other, cable);
            host.ip(&format!("addr add {v4} dev {cable}"));
            host.ip(&format!("addr add {v6} dev {cable} nodad"));
        }
        Some((host, other))
    }

    /// Runs `f` inside. What it opens there stays there.
    pub(crate) fn run<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        let job = move || {
            let _ = done.send(f());
        };
        self.jobs.as_ref().unwrap().send(Box::new(job)).unwrap();
        result.recv().expect("what ran inside panicked")
    }

    /// Runs `ip` with these words inside, and insists.
    pub(crate) fn ip(&self, words: &str) -> String {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        self.run(move || {
            let out = Command::new("ip").args(&words).output().unwrap();
            assert!(out.status.success(), "ip {words:?}: {}", String::from_utf8_lossy(&out.stderr));
            String::from_utf8_lossy(&out.stdout).into_owned()
        })
    }

    /// Lays a cable: `here` in this host, `there` in the other, both up and without addresses.
    pub(crate) fn cable(&self, here: &str, other: &Self, there: &str) {
        self.ip(&format!("link add {here} type veth peer name {there} netns {}", other.id));
        for (host, name) in [(self, here), (other, there)] {
            host.ip(&format!("link set {name} addrgenmode none"));
            host.ip(&format!("link set {name} up"));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Asks until there is an answer, or the time is up.
pub(crate) fn until<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + patience;
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Lets this process have as many open files as the system allows.
pub(crate) fn many_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write the one structure, which lives over them.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}
