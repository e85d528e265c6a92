//! Paths that are gone or closed.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;

use std::process::Command;

use probe_support::*;
use standfast_core::health::Outcome::Bad;

#[expect(unsafe_code, reason = "the standard library has no call for it")]
fn own_namespace() -> bool {
    // SAFETY: unshare takes a number and touches no memory.
    unsafe { libc::unshare(libc::CLONE_NEWNET) == 0 }
}

#[test]
fn a_path_that_is_gone_or_closed_is_bad_and_never_no_result() {
    let test = "a_path_that_is_gone_or_closed_is_bad_and_never_no_result";
    std::thread::spawn(move || {
        if !own_namespace() {
            eprintln!("SKIP {test}: no network namespace: {}", std::io::Error::last_os_error());
            return;
        }
        let run = |program: &str, arguments: &[&str]| {
            Command::new(program).args(arguments).status().is_ok_and(|s| s.success())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let tcp_at = |at: &str| runtime.block_on(once(tcp(at.parse().unwrap()), 300));
        assert_says(&tcp_at("192.0.2.1:80"), Bad, "connect 192.0.2.1:80: network is unreachable");
        // An interface that is down.
        assert_says(&tcp_at("127.0.0.1:80"), Bad, "connect 127.0.0.1:80: network is unreachable");
        assert!(run("ip", &["link", "set", "lo", "up"]));
        assert!(run("ip", &["route", "add", "unreachable", "192.0.2.0/24"]));
        assert_says(&tcp_at("192.0.2.1:80"), Bad, "connect 192.0.2.1:80: no route to host");
        assert!(run("ip", &["route", "add", "prohibit", "198.51.100.0/24"]));
        assert_says(&tcp_at("198.51.100.1:80"), Bad, "connect 198.51.100.1:80: permission denied");
        let rules = "table ip t { chain c { type filter hook output priority 0; tcp dport 81 drop; }; }";
        if !run("nft", &[rules]) {
            eprintln!("SKIP {test}: nft cannot set a rule");
            return;
        }
        // A packet that may not leave is lost like one on the way.
        let v = tcp_at("127.0.0.1:81");
        assert_says(&v, Bad, "while connecting to 127.0.0.1:81");
        assert!(v.timed_out);
    })
    .join()
    .unwrap();
}
