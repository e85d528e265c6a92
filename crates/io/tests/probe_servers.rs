//! The `dns` and `udp` checks and name resolution against servers that others wrote: BIND, Unbound, dnsmasq, rsyslog.
//!
//! Every test has a network namespace of its own, in which it starts its server; a server that is not installed is skipped aloud.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use probe_support::*;
use standfast_core::health::Outcome::{Bad, Good};
use standfast_core::health::Verdict;
use standfast_core::plan::{
    Check, DnsProbe, DnsRcode, DnsTransport, DnsType, DnsWant, Expect, Probe, Target, UdpProbe,
};
use standfast_io::netns::Namespace;
use standfast_io::probe::prepare;

/// A server that runs in this thread's namespace until it is dropped.
struct Server(Child);

impl Server {
    /// Starts `line`, whose words are one blank apart; said aloud if it is not installed.
    fn start(test: &str, line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let program = words.next().unwrap();
        let found = ["/usr/sbin", "/usr/bin"].iter().map(|d| Path::new(d).join(program)).find(|p| p.exists());
        let Some(program) = found else {
            eprintln!("SKIP {test}: {program} is not installed");
            return None;
        };
        let mut command = Namespace::current().unwrap().command(program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Some(Self(command.spawn().unwrap()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `test` in a network namespace whose loopback is up, with a directory for its files.
fn isolated(name: &str, test: impl FnOnce(&Path) + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if own_namespace(name) {
                assert!(command("ip link set lo up"));
                let files = tempfile::tempdir().unwrap();
                test(files.path());
            }
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn at(text: &str) -> Target {
    Target::Address(text.parse::<SocketAddr>().unwrap())
}

fn dns(resolver: &str, name: &str, kind: DnsType) -> DnsProbe {
    DnsProbe::new(at(resolver), vec![name.into()], kind)
}

fn run(probe: DnsProbe) -> Verdict {
    here().block_on(once(Probe::Dns(Box::new(probe)), 5000))
}

/// Runs a probe until it says so, while its server comes up or goes.
#[track_caller]
fn comes_to(probe: impl Fn() -> Verdict, is: impl Fn(&Verdict) -> bool) -> Verdict {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let v = probe();
        if is(&v) {
            return v;
        }
        assert!(Instant::now() < end, "{v:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn set(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(|a| (*a).to_owned()).collect()
}

/// A certificate for ns.example.test and 127.0.0.1, made by its own key: the paths of both.
fn certificate(files: &Path) -> (PathBuf, PathBuf) {
    let made =
        rcgen::generate_simple_self_signed(vec!["ns.example.test".into(), "127.0.0.1".into()]).unwrap();
    let (cert, key) = (files.join("cert.pem"), files.join("key.pem"));
    fs::write(&cert, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (cert, key)
}

const ZONE: &str = r#"$TTL 60
@ IN SOA ns.example.test. hostmaster.example.test. 7 3600 600 604800 300
@ IN NS ns.example.test.
@ IN MX 10 Mail.example.test.
@ IN MX 20 mail2.example.test.
@ IN CAA 0 issue "letsencrypt.org"
@ IN TXT "v=spf1 " "-all"
ns IN A 127.0.0.1
web IN A 192.0.2.1
web IN A 192.0.2.2
web IN AAAA 2001:db8::1
web IN HTTPS 1 . alpn=h2,h3 port=8443 ipv4hint=192.0.2.1,192.0.2.2
_svc IN SVCB 0 web.example.test.
www IN CNAME web.example.test.
far IN CNAME www.example.test.
out IN CNAME elsewhere.example.
_sip._tcp IN SRV 10 60 5060 Sip.example.test.
1 IN PTR host.example.test.
"#;

/// BIND on port 5353, and on port 853 with TLS.
fn bind(test: &str, files: &Path) -> Option<Server> {
    let (cert, key) = certificate(files);
    let big: String = (0..60).map(|n| format!("big IN TXT \"{n:060}\"\n")).collect();
    fs::write(files.join("zone"), format!("{ZONE}{big}")).unwrap();
    let conf = format!(
        "tls own {{ cert-file \"{}\"; key-file \"{}\"; }};\n\
         options {{ directory \"{}\"; pid-file none; session-keyfile none; lock-file none; recursion no;\n\
         allow-query {{ any; }}; listen-on-v6 {{ none; }}; listen-on port 5353 {{ any; }};\n\
         listen-on port 853 tls own {{ any; }}; dnssec-validation no; }};\n\
         controls {{ }};\n\
         zone \"example.test\" {{ type primary; file \"zone\"; }};\n",
        cert.display(),
        key.display(),
        files.display()
    );
    fs::write(files.join("named.conf"), conf).unwrap();
    let server = Server::start(test, &format!("named -g -c {}", files.join("named.conf").display()))?;
    comes_to(|| run(dns("127.0.0.1:5353", "web.example.test", DnsType::A)), |v| v.outcome == Good);
    Some(server)
}

#[test]
fn bind_is_understood_in_every_type_code_and_transport() {
    let test = "bind_is_understood_in_every_type_code_and_transport";
    isolated(test, |files| {
        let Some(_server) = bind(test, files) else { return };
        let udp = "127.0.0.1:5353";
        for (name, kind, answers) in [
            ("web.example.test", DnsType::A, &["192.0.2.2", "192.0.2.1"][..]),
            ("WEB.Example.Test", DnsType::Aaaa, &["2001:db8::1"]),
            ("far.example.test", DnsType::A, &["192.0.2.1", "192.0.2.2"]),
            ("far.example.test", DnsType::Cname, &["www.example.test"]),
            ("example.test", DnsType::Ns, &["ns.example.test"]),
            ("example.test", DnsType::Mx, &["10 mail.example.test", "20 mail2.example.test"]),
            (
                "example.test",
                DnsType::Soa,
                &["ns.example.test hostmaster.example.test 7 3600 600 604800 300"],
            ),
            ("example.test", DnsType::Txt, &["v=spf1 -all"]),
            ("example.test", DnsType::Caa, &["0 issue \"letsencrypt.org\""]),
            ("_sip._tcp.example.test", DnsType::Srv, &["10 60 5060 sip.example.test"]),
            ("1.example.test", DnsType::Ptr, &["host.example.test"]),
            ("web.example.test", DnsType::Https, &["1 . alpn=h2,h3 port=8443 ipv4hint=192.0.2.1,192.0.2.2"]),
            ("_svc.example.test", DnsType::Svcb, &["0 web.example.test"]),
        ] {
            let want = DnsWant { answers: Some(set(answers)), authoritative: true, ..DnsWant::default() };
            let v = run(DnsProbe { want, ..dns(udp, name, kind) });
            assert_says(&v, Good, &format!("{} {kind} records for 1 name", answers.len()));
            assert_eq!(v.details.unwrap().answers.len(), answers.len());
        }
        let v = run(dns(udp, "out.example.test", DnsType::A));
        assert_says(&v, Bad, "no such record in the answer, only an alias to elsewhere.example");
        assert_says(&run(dns(udp, "no.example.test", DnsType::A)), Bad, "no.example.test A: NXDOMAIN");
        assert_says(&run(dns(udp, "ns.example.test", DnsType::Aaaa)), Bad, "no such record in the answer");
        assert_says(&run(dns(udp, "web.example.com", DnsType::A)), Bad, "web.example.com A: REFUSED");
        let refused = DnsWant { rcode: DnsRcode(5), min_answers: 0, ..DnsWant::default() };
        let v = run(DnsProbe { want: refused, ..dns(udp, "web.example.com", DnsType::A) });
        assert_says(&v, Good, "REFUSED for 1 name, as wanted");
        let nothing = DnsWant { answers: Some(set(&[])), min_answers: 0, ..DnsWant::default() };
        let v = run(DnsProbe { want: nothing, ..dns(udp, "ns.example.test", DnsType::Aaaa) });
        assert_says(&v, Good, "0 AAAA records for 1 name");
    });
}

#[test]
fn a_large_answer_of_bind_comes_by_tcp_whatever_was_asked_for() {
    let test = "a_large_answer_of_bind_comes_by_tcp_whatever_was_asked_for";
    isolated(test, |files| {
        let Some(_server) = bind(test, files) else { return };
        let big = |transport, udp_size| {
            let probe = dns("127.0.0.1:5353", "big.example.test", DnsType::Txt);
            run(DnsProbe { transport, udp_size, ..probe })
        };
        for udp_size in [0, 512, 1232] {
            let v = big(DnsTransport::Udp, udp_size);
            assert_says(&v, Good, "60 TXT records for 1 name");
            assert!(v.details.unwrap().connect.is_some(), "no TCP with {udp_size}");
        }
        let v = big(DnsTransport::Tcp, 1232);
        assert_says(&v, Good, "60 TXT records for 1 name");
        // With the port closed for TCP it is not there.
        if !command("nft add table ip t")
            || !command("nft add chain ip t c { type filter hook input priority 0 ; }")
            || !command("nft add rule ip t c tcp dport 5353 reject with tcp reset")
        {
            eprintln!("SKIP {test}, without TCP: nft cannot set a rule");
            return;
        }
        assert_says(
            &big(DnsTransport::Udp, 1232),
            Bad,
            "truncated by UDP, and connect 127.0.0.1:5353: connection refused",
        );
    });
}

#[test]
fn bind_is_asked_over_tls_if_its_certificate_is_good() {
    let test = "bind_is_asked_over_tls_if_its_certificate_is_good";
    isolated(test, |files| {
        let Some(_server) = bind(test, files) else { return };
        over_tls("127.0.0.1:853", "web.example.test", &files.join("cert.pem"));
    });
}

/// Asks over TLS with the right authority and name, and with wrong ones.
fn over_tls(resolver: &str, name: &str, cert: &Path) {
    let ask = |server_name: &str, ca: Option<&Path>, insecure| {
        let options = tls(server_name, ca.map(Path::to_owned));
        let options = standfast_core::plan::TlsOptions { insecure, ..options };
        run(DnsProbe { transport: DnsTransport::Tls(options), ..dns(resolver, name, DnsType::A) })
    };
    let v = ask("ns.example.test", Some(cert), false);
    assert_says(&v, Good, " A records for 1 name");
    let saw = v.details.unwrap();
    assert!(saw.tls.is_some() && saw.connect.is_some() && saw.first_byte.is_some(), "{saw:?}");
    assert_says(&ask("127.0.0.1", Some(cert), false), Good, " A records");
    assert_says(&ask("other.example.test", Some(cert), false), Bad, "TLS handshake");
    assert_says(&ask("ns.example.test", None, false), Bad, "TLS handshake");
    assert_says(&ask("other.example.test", None, true), Good, " A records");
}

#[test]
fn unbound_is_understood_by_udp_tcp_and_tls() {
    let test = "unbound_is_understood_by_udp_tcp_and_tls";
    isolated(test, |files| {
        let (cert, key) = certificate(files);
        let conf = format!(
            "server:\n directory: \"{dir}\"\n chroot: \"\"\n username: \"\"\n pidfile: \"\"\n use-syslog: no\n \
             interface: 127.0.0.1@53\n interface: 127.0.0.1@853\n tls-service-key: \"{key}\"\n \
             tls-service-pem: \"{cert}\"\n tls-port: 853\n module-config: \"iterator\"\n \
             local-zone: \"example.test.\" static\n local-data: \"web.example.test. 60 IN A 192.0.2.1\"\n \
             local-data: \"web.example.test. 60 IN AAAA 2001:db8::1\"\nremote-control:\n control-enable: no\n",
            dir = files.display(),
            key = key.display(),
            cert = cert.display()
        );
        fs::write(files.join("unbound.conf"), conf).unwrap();
        let line = format!("unbound -d -c {}", files.join("unbound.conf").display());
        let Some(_server) = Server::start(test, &line) else { return };
        let udp = || dns("127.0.0.1:53", "web.example.test", DnsType::A);
        comes_to(|| run(udp()), |v| v.outcome == Good);
        assert_says(&run(DnsProbe { transport: DnsTransport::Tcp, ..udp() }), Good, "1 A records");
        assert_says(&run(dns("127.0.0.1:53", "web.example.test", DnsType::Aaaa)), Good, "1 AAAA records");
        assert_says(&run(dns("127.0.0.1:53", "no.example.test", DnsType::A)), Bad, "NXDOMAIN");
        over_tls("127.0.0.1:853", "web.example.test", &cert);
    });
}

/// dnsmasq on port 53 that knows one name.
fn dnsmasq(test: &str, name: &str, address: &str) -> Option<Server> {
    Server::start(
        test,
        &format!(
            "dnsmasq -k -C /dev/null -R -h -u root -z -a 127.0.0.1 -T 1 --pid-file= --address=/{name}/{address} \
             --local=/example/"
        ),
    )
}

#[test]
fn dnsmasq_is_understood_and_a_name_follows_it_and_outlives_it() {
    let test = "dnsmasq_is_understood_and_a_name_follows_it_and_outlives_it";
    isolated(test, |files| {
        if !mount(files, "nameserver 127.0.0.1\n") {
            eprintln!("SKIP {test}: nothing can be mounted");
            return;
        }
        // The resolver that all checks of this process share works on one runtime.
        let runtime = here();
        let ask = || {
            runtime.block_on(once(Probe::Dns(Box::new(dns("127.0.0.1:53", "svc.example", DnsType::A))), 5000))
        };
        let Some(server) = dnsmasq(test, "svc.example", "127.0.0.10") else { return };
        comes_to(ask, |v| v.outcome == Good);
        for at in ["127.0.0.10:99", "127.0.0.11:99"] {
            let socket = UdpSocket::bind(at).unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0; 16];
                while let Ok((n, from)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(&buffer[..n], from);
                }
            });
        }
        let probe = UdpProbe {
            expect: Some(Expect::Bytes(b"hello".to_vec())),
            ..UdpProbe::new(Target::Name("svc.example".into(), 99), b"hello".to_vec())
        };
        let check = prepare(&Check::new(Probe::Udp(probe))).unwrap();
        let run = || runtime.block_on(check.run(Duration::from_secs(4)));
        comes_to(run, |v| v.detail == "127.0.0.10:99 answered 5 bytes");
        drop(server);
        let v = comes_to(run, |v| v.detail.contains("(address of svc.example from "));
        assert_says(&v, Good, "127.0.0.10:99 answered 5 bytes");
        let Some(_server) = dnsmasq(test, "svc.example", "127.0.0.11") else { return };
        comes_to(run, |v| v.detail == "127.0.0.11:99 answered 5 bytes");
    });
}

/// Makes `text` the system's `/etc/resolv.conf`, for this thread alone.
fn mount(files: &Path, text: &str) -> bool {
    // SAFETY: unshare takes a number and touches no memory.
    #[expect(unsafe_code, reason = "the standard library has no call for it")]
    let made = unsafe { libc::unshare(libc::CLONE_NEWNS) == 0 };
    let conf = files.join("resolv.conf");
    fs::write(&conf, text).unwrap();
    made && command("mount --make-rprivate /")
        && command(&format!("mount --bind {} /etc/resolv.conf", conf.display()))
}

#[test]
fn a_log_server_answers_nothing_and_is_good_until_it_is_gone() {
    let test = "a_log_server_answers_nothing_and_is_good_until_it_is_gone";
    isolated(test, |files| {
        let log = files.join("log");
        let conf = format!(
            "module(load=\"imudp\")\ninput(type=\"imudp\" port=\"514\" address=\"127.0.0.1\")\n\
             global(workDirectory=\"{}\")\n*.* action(type=\"omfile\" file=\"{}\")\n",
            files.display(),
            log.display()
        );
        fs::write(files.join("rsyslog.conf"), conf).unwrap();
        let line = format!(
            "rsyslogd -n -f {} -i {}",
            files.join("rsyslog.conf").display(),
            files.join("pid").display()
        );
        let Some(server) = Server::start(test, &line) else { return };
        let probe = |silence| {
            let probe = UdpProbe::new(at("127.0.0.1:514"), b"<15>standfast: are you there".to_vec());
            here().block_on(once(Probe::Udp(UdpProbe { silence, ..probe }), 1000))
        };
        let quiet = || probe(Some(Duration::from_millis(200)));
        let v = comes_to(quiet, |v| v.outcome == Good);
        assert_says(&v, Good, "did not answer within");
        comes_to(quiet, |_| fs::read_to_string(&log).is_ok_and(|l| l.contains("standfast: are you there")));
        // Silence was not asked for.
        assert_says(&probe(None), Bad, "no answer from 127.0.0.1:514");
        drop(server);
        assert_says(&quiet(), Bad, "127.0.0.1:514: ICMP port unreachable");
    });
}
