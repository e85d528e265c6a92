//! Namespaces, cables and processes in them, with root and without.
//!
//! A namespace for users is entered by a process that has one thread, so this test has a `main` of its own, which starts
//! itself again for each user.

#![expect(clippy::expect_used, reason = "all of it is a test")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use standfast_io::netlink::Netlink;
use standfast_io::netns::{self, Namespace};
use standfast_io::signals::Signals;

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Says to the parent that this machine forbids namespaces.
const FORBIDDEN: u8 = 77;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("inside") => inside(),
        Some("--list") => ExitCode::SUCCESS,
        _ => outside(),
    }
}

fn outside() -> ExitCode {
    let root = fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    // Where nobody can reach it.
    let program = directory.path().join("netns");
    fs::copy(std::env::current_exe().expect("the own program"), &program).expect("a copy");
    let mut code = ExitCode::SUCCESS;
    for nobody in [false, true] {
        let name = if nobody { "namespaces_without_root" } else { "namespaces_as_the_own_user" };
        if nobody && !root {
            eprintln!("SKIP {name}: needs root to become nobody");
            continue;
        }
        let mut command = Command::new(&program);
        command.arg("inside");
        if nobody {
            command.uid(65534).gid(65534);
        }
        let status = command.status().expect("the own program runs");
        if status.code() == Some(FORBIDDEN.into()) {
            eprintln!("SKIP {name}: namespaces are forbidden here");
        } else if status.success() {
            eprintln!("test {name} ... ok");
        } else {
            eprintln!("test {name} ... FAILED ({status})");
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn inside() -> ExitCode {
    match netns::isolate() {
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(FORBIDDEN);
        }
        Ok(isolation) => eprintln!("isolated by {isolation:?}"),
    }
    own_namespace_is_empty();
    let here = Namespace::current().expect("the own namespace");
    let there = Namespace::new().expect("another namespace");
    parameters_are_its_own(&there);
    cable(&here, &there);
    a_cable_carries_connections(&there);
    a_cable_without_an_end_is_named(&here, &there);
    a_process_starts_inside_and_its_signals_are_free(&there);
    a_signal_ends_a_wait();
    ExitCode::SUCCESS
}

fn own_namespace_is_empty() {
    let addresses = Netlink::new().and_then(|mut n| n.addresses()).expect("the addresses");
    assert_eq!(addresses, BTreeSet::new());
}

fn parameters_are_its_own(there: &Namespace) {
    let key = "net/ipv4/ip_forward";
    let read = || fs::read_to_string(Path::new("/proc/sys").join(key));
    let before = read().expect("a parameter");
    there.set_parameter(key, if before.trim() == "0" { "1" } else { "0" }).expect("the parameter is set");
    assert_eq!(read().expect("a parameter"), before);
    assert_ne!(there.within(read).expect("a parameter"), before);
    let error = there.set_parameter("net/ipv4/no_such_thing", "1").expect_err("no such parameter");
    assert!(error.to_string().contains("net/ipv4/no_such_thing"), "{error}");
}

fn cable(here: &Namespace, there: &Namespace) {
    here.within(|| {
        let mut netlink = Netlink::new()?;
        netlink.switch_on("lo")?;
        netlink.add_cable("b", there, "a")?;
        netlink.add_ends("b", A.into(), B.into())?;
        netlink.switch_on("b")
    })
    .expect("this end");
    there
        .within(|| {
            let mut netlink = Netlink::new()?;
            netlink.switch_on("lo")?;
            netlink.add_ends("a", B.into(), A.into())?;
            netlink.switch_on("a")?;
            netlink.add_default_route(A.into())
        })
        .expect("the other end");
}

fn a_cable_carries_connections(there: &Namespace) {
    let listener = there.within(|| TcpListener::bind((B, 0))).expect("a socket inside");
    let port = listener.local_addr().expect("its address").port();
    let limit = Duration::from_secs(5);
    let mut out = TcpStream::connect_timeout(&(B, port).into(), limit).expect("a connection");
    let (mut taken, from) = listener.accept().expect("the connection");
    assert_eq!(from.ip(), IpAddr::from(A));
    out.write_all(b"x").expect("an octet leaves");
    let mut octet = [0];
    taken.read_exact(&mut octet).expect("the octet arrives");
    assert_eq!(&octet, b"x");
    // The way out leads back over the cable, and no further.
    let routes = there.within(|| Netlink::new()?.routes(254)).expect("the routes");
    assert!(routes.is_empty(), "a route that carries our number: {routes:?}");
    let beyond = there.within(|| TcpStream::connect_timeout(&(Ipv4Addr::new(192, 0, 2, 1), 9).into(), limit));
    assert!(beyond.is_err());
}

fn a_cable_without_an_end_is_named(here: &Namespace, there: &Namespace) {
    let again = here.within(|| Netlink::new()?.add_cable("b", there, "a")).expect_err("the name is taken");
    assert!(again.to_string().contains("from b to a"), "{again}");
    let nowhere = here.within(|| Netlink::new()?.switch_on("nowhere")).expect_err("no such interface");
    assert!(nowhere.to_string().contains("nowhere"), "{nowhere}");
}

/// A program sees the namespace that it was started in, does not inherit held-back signals, and dies with who started it.
fn a_process_starts_inside_and_its_signals_are_free(there: &Namespace) {
    Signals::hold().expect("signals are held back");
    let mut command = there.command("sleep");
    command.arg("60").stdin(Stdio::null());
    let mut child = std::thread::scope(|scope| scope.spawn(|| command.spawn()).join())
        .expect("the thread ends")
        .expect("sleep runs");
    // The thread that started it has ended: that kills it, though nobody else did.
    let start = Instant::now();
    while child.try_wait().expect("its state").is_none() {
        assert!(start.elapsed() < Duration::from_secs(5), "it outlives who started it");
        std::thread::sleep(Duration::from_millis(5));
    }

    let mut child = command.spawn().expect("sleep runs");
    let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).expect("its namespace");
    let pid = child.id().to_string();
    assert_ne!(of(&pid), of("self"));
    assert_eq!(of(&pid), there.within(|| fs::read_link("/proc/thread-self/ns/net")).expect("the namespace"));
    let blocked = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
        let line =
            status.lines().find_map(|l| l.strip_prefix("SigBlk:")).expect("its mask").trim().to_owned();
        u64::from_str_radix(&line, 16).expect("a mask")
    };
    assert_ne!(blocked("self"), 0);
    assert_eq!(blocked(&pid), 0);
    child.kill().expect("it ends");
    child.wait().expect("its end");
}

fn a_signal_ends_a_wait() {
    let signals = Signals::hold().expect("signals are held back");
    let start = Instant::now();
    assert!(!signals.sleep(Duration::from_millis(20)));
    assert!(start.elapsed() >= Duration::from_millis(20));
    // Sent to this thread's process while nobody waits: it stays until somebody does.
    let me = std::process::id().to_string();
    let sent = Command::new("sh").args(["-c", &format!("kill -TERM {me}")]).status().expect("sh runs");
    assert!(sent.success());
    assert!(signals.sleep(Duration::from_secs(60)));
    assert!(start.elapsed() < Duration::from_secs(30));
}
