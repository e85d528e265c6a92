//! HTTP checks through a real forward proxy, on loopback: with and without credentials, over TLS, and TLS to it.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;
mod tls_support;

use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use probe_support::*;
use standfast_core::health::Outcome::{Bad, Good};
use standfast_core::plan::{HttpProbe, Secret, Target};
use tls_support::*;

/// A squid with its own directory that knows where `web.example.test` is and wants credentials on one port.
struct Squid {
    child: Child,
    dir: tempfile::TempDir,
    open: SocketAddr,
    guarded: SocketAddr,
    secure: SocketAddr,
}

impl Squid {
    /// `None`, said aloud, where there is no squid.
    fn start(test: &str, ca: &Authority) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        // It gives up being root.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let at = dir.path().display();
        let (open, guarded, secure) = (free(), free(), free());
        let (certificate, key) = ca.good("127.0.0.1");
        let file = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
        file("proxy.pem", certificate.pem() + &key.serialize_pem());
        file("hosts", format!("127.0.0.1 localhost {NAME}\n"));
        // `pa ss:wd`
        file("passwords", "user:$apr1$standfst$wATmAV5Vwn8hThmlr21e00\n".into());
        file(
            "squid.conf",
            format!(
                "http_port {open} name=open\nhttp_port {guarded} name=guarded\n\
                 https_port {secure} name=secure tls-cert={at}/proxy.pem\n\
                 auth_param basic program /usr/lib/squid/basic_ncsa_auth {at}/passwords\n\
                 auth_param basic children 1 startup=1 idle=1\n\
                 acl guarded myportname guarded\nacl known proxy_auth REQUIRED\n\
                 http_access deny guarded !known\nhttp_access allow all\n\
                 hosts_file {at}/hosts\ndns_nameservers 127.0.0.1\nvisible_hostname proxy.example.test\n\
                 cache deny all\ncache_mem 8 MB\nmemory_pools off\nmax_filedescriptors 256\n\
                 access_log stdio:{at}/access.log\ncache_log {at}/cache.log\npid_filename none\n\
                 netdb_filename none\ncoredump_dir {at}\npinger_enable off\nshutdown_lifetime 0 seconds\n"
            ),
        );
        let program =
            if std::path::Path::new("/usr/sbin/squid").exists() { "/usr/sbin/squid" } else { "squid" };
        let spawned = Command::new(program)
            .arg("-N")
            .arg("-f")
            .arg(dir.path().join("squid.conf"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match spawned {
            Ok(child) => child,
            Err(e) => {
                eprintln!("SKIP {test}: squid cannot be started: {e}");
                return None;
            }
        };
        let mut squid = Self { child, dir, open, guarded, secure };
        let end = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(squid.secure).is_err() {
            let ended = squid.child.try_wait().unwrap();
            let log = std::fs::read_to_string(squid.dir.path().join("cache.log")).unwrap_or_default();
            assert!(ended.is_none() && Instant::now() < end, "squid does not serve: {log}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(squid)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("access.log")).unwrap_or_default()
    }
}

impl Drop for Squid {
    fn drop(&mut self) {
        // In order, so that its helper ends too.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let end = Instant::now() + Duration::from_secs(5);
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn through(mut probe: HttpProbe, proxy: String, origin: SocketAddr) -> HttpProbe {
    probe.target = Target::Name(NAME.into(), origin.port());
    probe.host = format!("{NAME}:{}", origin.port());
    probe.proxy = Some(Secret::new(proxy));
    probe
}

#[tokio::test]
async fn squid_is_asked_for_plain_and_secure_urls_with_the_credentials_it_wants() {
    let ca = Authority::new();
    let test = "squid_is_asked_for_plain_and_secure_urls_with_the_credentials_it_wants";
    let Some(squid) = Squid::start(test, &ca) else { return };
    let plain = answers(ok("plain"));
    let (secure, heads) = tls_server(config(&ca.good(NAME), &[]));
    for (probe, origin, words) in [
        (get(plain), plain, "status 200, body 5 bytes"),
        (probe(secure, NAME, Some(ca.file())), secure, "status 200, body 4 bytes"),
    ] {
        let Squid { open, guarded, .. } = &squid;
        let is_plain = origin == plain;
        assert_says(
            &run(through(probe.clone(), format!("http://{open}"), origin), 10_000).await,
            Good,
            words,
        );
        let known = format!("http://user:pa%20ss%3Awd@{guarded}");
        assert_says(&run(through(probe.clone(), known, origin), 10_000).await, Good, words);
        let v = run(through(probe.clone(), format!("http://user:wrong@{guarded}"), origin), 10_000).await;
        assert_says(&v, Bad, if is_plain { "status 407" } else { "it does not take these credentials" });
        let v = run(through(probe.clone(), format!("http://{guarded}"), origin), 10_000).await;
        assert_says(
            &v,
            Bad,
            if is_plain { "status 407 (the proxy wants credentials)" } else { "it wants credentials" },
        );
        assert!(!v.detail.contains("ss:wd"), "{v:?}");
    }
    let (sni, head) = heads.recv().unwrap();
    assert_eq!(sni.as_deref(), Some(NAME));
    assert!(head.contains(&format!("\r\nHost: {NAME}:{}\r\n", secure.port())), "{head}");
    assert!(squid.log().contains(&format!("CONNECT {NAME}:{}", secure.port())), "{}", squid.log());
    // What the proxy cannot reach is its refusal, and not the origin's.
    let gone = free();
    let v = run(through(probe(gone, NAME, Some(ca.file())), format!("http://{}", squid.open), gone), 10_000)
        .await;
    assert_says(&v, Bad, "proxy refuses CONNECT with status 503");
}

#[tokio::test]
async fn squid_is_reached_over_tls_and_verified() {
    let (ca, other) = (Authority::new(), Authority::new());
    let Some(squid) = Squid::start("squid_is_reached_over_tls_and_verified", &ca) else { return };
    let plain = answers(ok("plain"));
    let (secure, _heads) = tls_server(config(&ca.good(NAME), &[]));
    for (probe, origin) in [(get(plain), plain), (probe(secure, NAME, Some(ca.file())), secure)] {
        let mut probe = through(probe, format!("https://{}", squid.secure), origin);
        probe.proxy_ca_cert = Some(ca.file());
        assert_says(&run(probe.clone(), 10_000).await, Good, "status 200");
        probe.proxy_ca_cert = Some(other.file());
        let words = "proxy: TLS handshake: invalid peer certificate";
        assert_says(&run(probe.clone(), 10_000).await, Bad, words);
        probe.proxy_ca_cert = Some(ca.file());
        probe.proxy = Some(Secret::new(format!("https://localhost:{}", squid.secure.port())));
        assert_says(&run(probe, 10_000).await, Bad, "certificate not valid for name");
    }
}
