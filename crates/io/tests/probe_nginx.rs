//! HTTP checks against a real nginx with name-based hosts and TLS, on loopback.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use probe_support::*;
use standfast_core::health::Outcome::{Bad, Good};
use standfast_core::plan::HttpProbe;

/// An nginx with its own directory; ends when dropped.
struct Nginx {
    child: Child,
    dir: tempfile::TempDir,
    plain: SocketAddr,
    tls: SocketAddr,
}

impl Nginx {
    /// `None`, said aloud, where there is no nginx.
    fn start(test: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display();
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (plain, tls) = (free(), free());
        for name in ["a", "b"] {
            let key = rcgen::generate_simple_self_signed(vec![format!("{name}.example.test")]).unwrap();
            std::fs::write(dir.path().join(format!("{name}.pem")), key.cert.pem()).unwrap();
            std::fs::write(dir.path().join(format!("{name}.key")), key.signing_key.serialize_pem()).unwrap();
        }
        let host = |name: &str| {
            format!(
                r#"server {{
                    listen {plain}; listen {tls} ssl http2; server_name {name}.example.test;
                    ssl_certificate {at}/{name}.pem; ssl_certificate_key {at}/{name}.key;
                    location / {{ return 200 "{name} over $server_protocol, Host $http_host, SNI $ssl_server_name"; }}
                    location /json {{ default_type application/json; return 200 '{{"host":"{name}","up":3}}'; }}
                    location /gone {{ return 410; }}
                    location /moved {{ return 301 http://b.example.test/; }}
                    location /big {{ root {at}; }}
                }}"#
            )
        };
        let config = format!(
            r#"daemon off; master_process off; pid {at}/pid; error_log {at}/error.log;
            events {{ worker_connections 64; }}
            http {{
                access_log off; keepalive_requests 5;
                client_body_temp_path {at}/t1; proxy_temp_path {at}/t2; fastcgi_temp_path {at}/t3;
                uwsgi_temp_path {at}/t4; scgi_temp_path {at}/t5;
                server {{ listen {plain} default_server; return 421; }}
                {} {}
            }}"#,
            host("a"),
            host("b")
        );
        std::fs::write(dir.path().join("nginx.conf"), config).unwrap();
        std::fs::write(dir.path().join("big"), vec![b'x'; 3 << 20]).unwrap();
        let program =
            if std::path::Path::new("/usr/sbin/nginx").exists() { "/usr/sbin/nginx" } else { "nginx" };
        let spawned = Command::new(program)
            .arg("-p")
            .arg(dir.path())
            .arg("-e")
            .arg(dir.path().join("error.log"))
            .arg("-c")
            .arg(dir.path().join("nginx.conf"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match spawned {
            Ok(child) => child,
            Err(e) => {
                eprintln!("SKIP {test}: nginx cannot be started: {e}");
                return None;
            }
        };
        let mut nginx = Self { child, dir, plain, tls };
        let end = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(nginx.tls).is_err() {
            let ended = nginx.child.try_wait().unwrap();
            let log = std::fs::read_to_string(nginx.dir.path().join("error.log")).unwrap_or_default();
            assert!(ended.is_none() && Instant::now() < end, "nginx does not serve: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(nginx)
    }

    fn plain(&self, name: &str, path: &str) -> HttpProbe {
        let mut probe = get(self.plain);
        (probe.host, probe.path) = (format!("{name}.example.test"), path.into());
        probe
    }

    fn secure(&self, name: &str, path: &str) -> HttpProbe {
        let mut probe = self.plain(name, path);
        probe.target = standfast_core::plan::Target::Address(self.tls);
        let ca = self.dir.path().join(format!("{name}.pem"));
        probe.tls = Some(tls(&format!("{name}.example.test"), Some(ca)));
        probe
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn nginx_serves_the_host_that_the_check_names() {
    let Some(nginx) = Nginx::start("nginx_serves_the_host_that_the_check_names") else { return };
    for name in ["a", "b"] {
        let mut probe = nginx.plain(name, "/");
        probe.text = Some(format!("{name} over HTTP/1.1, Host {name}.example.test"));
        assert_says(&run(probe, 2000).await, Good, "status 200");
        // TLS agrees on HTTP/2, where the host is a pseudo-header.
        let mut probe = nginx.secure(name, "/");
        probe.text = Some(format!("{name} over HTTP/2.0, Host {name}.example.test, SNI {name}.example.test"));
        assert_says(&run(probe, 2000).await, Good, "status 200");
    }
    assert_says(&run(nginx.plain("nobody", "/"), 2000).await, Bad, "status 421, want 200");
    // The name of one with the authority of the other.
    let mut wrong = nginx.secure("a", "/");
    wrong.tls.as_mut().unwrap().server_name = "b.example.test".into();
    assert_says(&run(wrong, 2000).await, Bad, "TLS handshake: invalid peer certificate");
}

#[tokio::test]
async fn nginx_answers_are_judged_in_both_versions() {
    let Some(nginx) = Nginx::start("nginx_answers_are_judged_in_both_versions") else { return };
    for probe in [nginx.plain("a", "/"), nginx.secure("a", "/")] {
        let at = |path: &str| HttpProbe { path: path.into(), ..probe.clone() };
        assert_says(&run(at("/gone"), 2000).await, Bad, "status 410, want 200");
        assert_says(&run(at("/moved"), 2000).await, Bad, "status 301 (redirects are not followed)");
        assert_says(&run(at("/big"), 5000).await, Good, "body 1048576 bytes, the rest not read");
        let json = HttpProbe { jq: Some(".up > 2 and .host == \"a\"".into()), ..at("/json") };
        assert_says(&run(json, 3000).await, Good, "status 200");
        let head = HttpProbe { method: "HEAD".into(), ..at("/big") };
        assert_says(&run(head, 2000).await, Good, "status 200, body 0 bytes");
    }
}

#[tokio::test]
async fn nginx_closing_a_kept_connection_fails_no_check() {
    let Some(nginx) = Nginx::start("nginx_closing_a_kept_connection_fails_no_check") else { return };
    for mut probe in [nginx.plain("b", "/"), nginx.secure("b", "/")] {
        probe.keep_alive = true;
        let prepared = standfast_io::probe::prepare(&standfast_core::plan::Check::new(
            standfast_core::plan::Probe::Http(Box::new(probe)),
        ))
        .unwrap();
        // nginx closes after every fifth request.
        for _ in 0..23 {
            assert_says(&prepared.run(Duration::from_secs(2)).await, Good, "status 200");
        }
    }
}
