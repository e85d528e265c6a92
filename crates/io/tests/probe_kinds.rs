//! Paths that are gone or closed, and a host that has no port left.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;

use std::net::{IpAddr, TcpListener, UdpSocket};
use std::process::Command;

use probe_support::*;
use socket2::{Domain, Socket, Type};
use standfast_core::health::Outcome::{Bad, NoResult};
use standfast_core::plan::{Check, Probe, Target, UdpProbe, Via};
use standfast_io::probe::prepare;

#[test]
fn a_path_that_is_gone_or_closed_is_bad_and_never_no_result() {
    let test = "a_path_that_is_gone_or_closed_is_bad_and_never_no_result";
    std::thread::spawn(move || {
        if !own_namespace(test) {
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

#[test]
fn a_host_without_a_free_port_has_no_result_and_one_without_the_address_a_bad_one() {
    let test = "a_host_without_a_free_port_has_no_result_and_one_without_the_address_a_bad_one";
    let inside = std::thread::spawn(move || {
        if !own_namespace(test) || !command("ip link set lo up") {
            return;
        }
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "50000 50003").unwrap();
        let runtime = here();
        let run = |probe: &Probe, source: Option<&str>| {
            let source: Option<IpAddr> = source.map(|s| s.parse().unwrap());
            let via = Via { source, ..Via::default() };
            let check = prepare(&Check { via, ..Check::new(probe.clone()) }).unwrap();
            runtime.block_on(check.run(std::time::Duration::from_secs(5)))
        };
        let server = TcpListener::bind("127.0.0.1:9").unwrap();
        let by_tcp = tcp(server.local_addr().unwrap());
        let mut held = Vec::new();
        for source in ["127.0.0.1", "127.0.0.3"] {
            for port in 50000..=50003 {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                let at = std::net::SocketAddr::new(source.parse().unwrap(), port);
                socket.bind(&at.into()).unwrap();
                // Its port is free with its end, and not in TIME_WAIT.
                socket.set_linger(Some(std::time::Duration::ZERO)).unwrap();
                socket.connect(&server.local_addr().unwrap().into()).unwrap();
                held.push(socket);
            }
        }
        let none = "127.0.0.1:9: no free port of this host";
        assert_says(&run(&by_tcp, None), NoResult, none);
        assert_says(&run(&by_tcp, Some("127.0.0.3")), NoResult, none);
        let lost = "connect 127.0.0.1:9 from 192.0.2.77: cannot assign requested address";
        assert_says(&run(&by_tcp, Some("192.0.2.77")), Bad, lost);

        let by_udp = Probe::Udp(UdpProbe::new(Target::Address("127.0.0.1:9".parse().unwrap()), vec![1]));
        assert_says(&run(&by_udp, None), Bad, "ICMP port unreachable");
        let taken: Vec<_> = (50000..=50003).map(|port| UdpSocket::bind(("0.0.0.0", port)).unwrap()).collect();
        assert_says(&run(&by_udp, None), NoResult, none);
        let none = "127.0.0.1:9 from 127.0.0.3: no free port of this host";
        assert_says(&run(&by_udp, Some("127.0.0.3")), NoResult, none);
        // With neither kind of port left, it is still the ports.
        assert_says(&run(&by_tcp, None), NoResult, "no free port of this host");
        drop((held, taken));

        // A host without IPv6 has no address to be there from: the kernel's word is the same, and its ports are free.
        std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
        let words = "connect [::1]:9: cannot assign requested address";
        assert_says(&run(&tcp("[::1]:9".parse().unwrap()), None), Bad, words);
    });
    inside.join().unwrap();
}
