//! The gRPC check against servers of others: etcd and GoBGP, on loopback.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod grpc_support;
mod probe_support;

use std::io::{Read, Seek};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use grpc_support::*;
use probe_support::{assert_says, free, once};
use standfast_core::health::Outcome::{Bad, Good};
use standfast_core::plan::{Check, GrpcMethod};
use standfast_io::probe::prepare;

/// A server of its own process; ends when dropped.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// `None`, said aloud, where it cannot be started.
    fn start(test: &str, address: SocketAddr, command: &mut Command) -> Option<Self> {
        let mut said = tempfile::tempfile().unwrap();
        let [stdout, stderr] = [said.try_clone().unwrap(), said.try_clone().unwrap()].map(Stdio::from);
        let spawned = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn();
        let child = match spawned {
            Ok(child) => child,
            Err(e) => {
                eprintln!("SKIP {test}: {:?} cannot be started: {e}", command.get_program());
                return None;
            }
        };
        let mut server = Self { child, address };
        let end = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(address).is_err() {
            if server.child.try_wait().unwrap().is_some() || Instant::now() >= end {
                let mut words = String::new();
                said.rewind().unwrap();
                said.read_to_string(&mut words).unwrap();
                panic!("{command:?} does not serve: {words}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A method with a descriptor set of `tests/grpc`.
fn known(set: &str, path: &str, request: &str, jq: &str) -> standfast_core::plan::GrpcCall {
    call(GrpcMethod { descriptor_set: Some(descriptor_set(set)), ..unary(path, request, jq) })
}

fn etcd(test: &str, directory: &std::path::Path, client: SocketAddr) -> Option<Server> {
    let peer = free();
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(directory).args(["--name", "a"]);
    command.args(["--listen-client-urls", &format!("http://{client}")]);
    command.args(["--advertise-client-urls", &format!("http://{client}")]);
    command.args(["--listen-peer-urls", &format!("http://{peer}")]);
    command.args(["--initial-advertise-peer-urls", &format!("http://{peer}")]);
    command.args(["--initial-cluster", &format!("a=http://{peer}")]);
    // It wants to be told that it may run where it is not built for in the first place.
    if cfg!(target_arch = "aarch64") {
        command.env("ETCD_UNSUPPORTED_ARCH", "arm64");
    }
    Server::start(test, client, &mut command)
}

#[tokio::test]
async fn etcd_is_healthy_while_it_runs_and_again_in_the_first_run_after_its_return() {
    let test = "etcd_is_healthy_while_it_runs_and_again_in_the_first_run_after_its_return";
    let (directory, address) = (tempfile::tempdir().unwrap(), free());
    let Some(server) = etcd(test, directory.path(), address) else { return };
    let end = Instant::now() + Duration::from_secs(60);
    // It listens before it leads.
    while once(grpc(server.address, health("")), 5000).await.outcome != Good {
        assert!(Instant::now() < end, "etcd does not become healthy");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let range = "/etcdserverpb.KV/Range";
    let cases = [
        (health(""), Good, "server is SERVING"),
        (
            known(
                "etcd.pb",
                range,
                r#"{"key": "Zm9v", "limit": 1}"#,
                r#".header.memberId != null and .count == null"#,
            ),
            Good,
            "status OK",
        ),
        (known("etcd.pb", range, r#"{"key": "Zm9v"}"#, ".count == \"1\""), Bad, "jq gave false"),
        (
            known("etcd.pb", "/etcdserverpb.Maintenance/Status", "", r#".version | startswith("3.")"#),
            Good,
            "status OK",
        ),
        // etcd wants a key.
        (
            known("etcd.pb", range, "{}", ""),
            Bad,
            "status INVALID_ARGUMENT (etcdserver: key is not provided), want OK",
        ),
        (method(range, &[3]), Good, "status INVALID_ARGUMENT"),
        (method("/etcdserverpb.KV/Rang", &[0]), Bad, "status UNIMPLEMENTED"),
        // It has no reflection.
        (call(unary(range, "{}", "")), Bad, "no reflection service: give the check a descriptor set"),
    ];
    for (call, outcome, detail) in cases {
        assert_says(&once(grpc(address, call), 5000).await, outcome, detail);
    }
    let check = known("etcd.pb", "/etcdserverpb.Maintenance/Status", "", ".leader != null");
    let prepared = prepare(&Check::new(grpc(address, check))).unwrap();
    drop(server);
    for _ in 0..30 {
        assert_eq!(prepared.run(Duration::from_secs(5)).await.outcome, Bad);
    }
    let Some(_server) = etcd(test, directory.path(), address) else { return };
    // The same question by other means tells when it is back; then the check that failed so often must be good at once.
    let end = Instant::now() + Duration::from_secs(60);
    let status = || known("etcd.pb", "/etcdserverpb.Maintenance/Status", "", ".leader != null");
    while once(grpc(address, status()), 5000).await.outcome != Good {
        assert!(Instant::now() < end, "etcd does not come back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_says(&prepared.run(Duration::from_secs(5)).await, Good, "status OK");
}

#[tokio::test]
async fn gobgp_answers_a_method_that_a_descriptor_set_defines() {
    let test = "gobgp_answers_a_method_that_a_descriptor_set_defines";
    let address = free();
    let mut command = Command::new("gobgpd");
    command.args(["--pprof-disable", "--api-hosts", &address.to_string()]);
    let Some(_server) = Server::start(test, address, &mut command) else { return };
    let get = |jq: &str| grpc(address, known("gobgp.pb", "/apipb.GobgpApi/GetBgp", "", jq));
    // It runs, but no BGP is configured in it.
    assert_says(&once(get(".global | type == \"object\""), 5000).await, Good, "status OK");
    assert_says(&once(get(".global.asn == 64512"), 5000).await, Bad, "jq gave false");
    let v = once(grpc(address, call(unary("/apipb.GobgpApi/GetBgp", "{}", ""))), 5000).await;
    assert_says(&v, Bad, "no reflection service: give the check a descriptor set");
    assert_says(&once(grpc(address, health("")), 5000).await, Bad, "health status UNIMPLEMENTED");
}
