//! HTTP checks against a real nginx with name-based hosts and TLS, on loopback.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;
mod tls_support;

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use probe_support::*;
use standfast_core::health::Outcome::{Bad, Good};
use standfast_core::plan::{Check, Follow, HttpProbe, HttpVersion, Probe, ProxyProtocol, Target, TlsOptions};
use tls_support::{Authority, DAY};

/// An nginx with its own directory; ends when dropped.
struct Nginx {
    child: Child,
    dir: tempfile::TempDir,
    plain: SocketAddr,
    tls: SocketAddr,
    /// HTTP/2 without TLS.
    prior: SocketAddr,
    /// Wants a certificate of `ca`.
    mutual: SocketAddr,
    /// Wants a PROXY header first; without TLS, and with it.
    header: [SocketAddr; 2],
    /// Each with a certificate that is wrong in one way, which a check says in these words.
    wrong: Vec<(SocketAddr, &'static str)>,
    ca: Authority,
}

impl Nginx {
    /// `None`, said aloud, where there is no nginx.
    fn start(test: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display();
        let (plain, tls, prior, mutual) = (free(), free(), free(), free());
        let header = [free(), free()];
        let (ca, stranger) = (Authority::new(), Authority::new());
        let (now, second) = (SystemTime::now(), Duration::from_secs(1));
        let name = "a.example.test";
        let leaves = [
            (ca.good(name), ""),
            (ca.issue(name, now - 2 * DAY, now - second), "certificate expired"),
            (ca.issue(name, now + DAY, now + 9 * DAY), "certificate not valid yet"),
            (ca.good("b.example.test"), "certificate not valid for name"),
            (ca.good("127.0.0.1"), "certificate not valid for name"),
            (stranger.good(name), "invalid peer certificate"),
        ];
        let (mut wrong, mut more) = (Vec::new(), String::new());
        for (n, ((certificate, key), words)) in leaves.iter().enumerate() {
            std::fs::write(dir.path().join(format!("{n}.pem")), certificate.pem()).unwrap();
            std::fs::write(dir.path().join(format!("{n}.key")), key.serialize_pem()).unwrap();
            let port = if n == 0 { mutual } else { free() };
            let client = if n == 0 {
                format!("ssl_verify_client on; ssl_client_certificate {};", ca.file().display())
            } else {
                wrong.push((port, *words));
                String::new()
            };
            more.push_str(&format!(
                r#"server {{ listen {port} ssl; ssl_certificate {at}/{n}.pem; ssl_certificate_key {at}/{n}.key;
                    {client} location / {{ return 200 "client $ssl_client_s_dn, $ssl_client_verify"; }} }}"#
            ));
        }
        for name in ["a", "b"] {
            let key = rcgen::generate_simple_self_signed(vec![format!("{name}.example.test")]).unwrap();
            std::fs::write(dir.path().join(format!("{name}.pem")), key.cert.pem()).unwrap();
            std::fs::write(dir.path().join(format!("{name}.key")), key.signing_key.serialize_pem()).unwrap();
        }
        let tls_port = tls.port();
        let host = |name: &str| {
            format!(
                r#"server {{
                    listen {plain}; listen {tls} ssl http2; listen {prior} http2; listen unix:{at}/{name}.sock;
                    server_name {name}.example.test;
                    ssl_certificate {at}/{name}.pem; ssl_certificate_key {at}/{name}.key;
                    location / {{ return 200 "{name} over $server_protocol, Host $http_host, SNI $ssl_server_name"; }}
                    location /json {{ default_type application/json; return 200 '{{"host":"{name}","up":3}}'; }}
                    location /gone {{ return 410; }}
                    location /moved {{ return 301 http://b.example.test/; }}
                    location /upgrade {{ return 301 https://{name}.example.test:{tls_port}/json; }}
                    location /loop {{ return 302 /loop; }}
                    location /headers {{ add_header X-Host {name}; return 200; }}
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
                server {{ listen {} proxy_protocol; listen {} ssl proxy_protocol;
                    ssl_certificate {at}/0.pem; ssl_certificate_key {at}/0.key;
                    location / {{ return 200 "client $proxy_protocol_addr, over $remote_addr"; }} }}
                {} {} {more}
            }}"#,
            header[0],
            header[1],
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
        let mut nginx = Self { child, dir, plain, tls, prior, mutual, header, wrong, ca };
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

#[tokio::test]
async fn nginx_speaks_the_version_that_the_check_insists_on() {
    let Some(nginx) = Nginx::start("nginx_speaks_the_version_that_the_check_insists_on") else { return };
    let mut prior = nginx.plain("b", "/");
    prior.target = Target::Address(nginx.prior);
    for (base, version, seen) in [
        (nginx.secure("b", "/"), HttpVersion::Auto, "2"),
        (nginx.secure("b", "/"), HttpVersion::Http2, "2"),
        (nginx.secure("b", "/"), HttpVersion::Http1, "1.1"),
        (nginx.plain("b", "/"), HttpVersion::Auto, "1.1"),
        (prior, HttpVersion::Http2, "2"),
    ] {
        let mut probe = HttpProbe { version, ..base };
        probe.text = Some("Host b.example.test".into());
        let v = run(probe, 3000).await;
        assert_says(&v, Good, "status 200");
        assert_eq!(v.details.unwrap().http_version, Some(seen));
    }
}

#[tokio::test]
async fn nginx_behind_a_unix_socket_serves_the_host_that_the_check_names() {
    let Some(nginx) = Nginx::start("nginx_behind_a_unix_socket_serves_the_host_that_the_check_names") else {
        return;
    };
    for name in ["a", "b"] {
        let mut probe = nginx.plain(name, "/json");
        probe.target = Target::Unix(nginx.dir.path().join(format!("{name}.sock")));
        probe.jq = Some(format!(".host == \"{name}\""));
        probe.response_headers = vec![("content-type".into(), "application/json".into())];
        assert_says(&run(probe, 3000).await, Good, "status 200");
    }
}

#[tokio::test]
async fn nginx_takes_only_the_client_that_it_knows() {
    let Some(nginx) = Nginx::start("nginx_takes_only_the_client_that_it_knows") else { return };
    let mut probe = nginx.plain("a", "/");
    probe.target = Target::Address(nginx.mutual);
    probe.tls = Some(tls("a.example.test", Some(nginx.ca.file())));
    // nginx lets the handshake pass and refuses the request.
    assert_says(&run(probe.clone(), 3000).await, Bad, "status 400, want 200");
    let client = nginx.ca.good("client.example.test");
    let at = |name: &str| nginx.dir.path().join(name);
    std::fs::write(at("client.pem"), client.0.pem()).unwrap();
    std::fs::write(at("client.key"), client.1.serialize_pem()).unwrap();
    probe.tls.as_mut().unwrap().client_cert = Some((at("client.pem"), at("client.key")));
    probe.text = Some("SUCCESS".into());
    assert_says(&run(probe, 3000).await, Good, "status 200");
}

#[tokio::test]
async fn nginx_with_any_wrong_certificate_is_bad_and_says_why() {
    let Some(nginx) = Nginx::start("nginx_with_any_wrong_certificate_is_bad_and_says_why") else { return };
    assert_eq!(nginx.wrong.len(), 5);
    for (target, words) in &nginx.wrong {
        let mut probe = nginx.plain("a", "/");
        probe.target = Target::Address(*target);
        probe.tls = Some(tls("a.example.test", Some(nginx.ca.file())));
        let v = run(probe.clone(), 3000).await;
        assert_says(&v, Bad, "TLS handshake: invalid peer certificate");
        assert_says(&v, Bad, words);
        probe.tls = Some(tls("a.example.test", None));
        probe.tls.as_mut().unwrap().insecure = true;
        assert_says(&run(probe, 3000).await, Good, "certificate not verified");
    }
}

#[tokio::test]
async fn nginx_redirects_are_followed_in_both_versions_without_a_resolver() {
    let test = "nginx_redirects_are_followed_in_both_versions_without_a_resolver";
    let Some(nginx) = Nginx::start(test) else { return };
    for (mut probe, version) in [(nginx.plain("a", "/"), "1.1"), (nginx.secure("a", "/"), "2")] {
        let ca = nginx.dir.path().join("a.pem");
        let tls: TlsOptions = tls("a.example.test", Some(ca));
        probe.follow = Some(Follow { limit: 4, downgrade: false, tls });
        let at = |path: &str| HttpProbe { path: path.into(), ..probe.clone() };
        // To the same host over TLS, which is where the check itself connects and not where a name leads.
        let mut upgrade = at("/upgrade");
        upgrade.jq = Some(".host == \"a\"".into());
        let v = run(upgrade, 3000).await;
        assert_says(&v, Good, "after 1 redirect");
        assert_eq!(v.details.unwrap().http_version, Some("2"));
        let v = run(at("/loop"), 5000).await;
        assert_says(&v, Bad, "more than 4 redirects, the last with status 302");
        assert_eq!(v.details.unwrap().http_version, Some(version));
        let mut headers = at("/headers");
        headers.response_headers = vec![("x-host".into(), "a".into())];
        assert_says(&run(headers, 3000).await, Good, "status 200, body 0 bytes");
        let words = if version == "2" {
            "redirected from https to http"
        } else {
            "redirected to http://b.example.test/"
        };
        assert_says(&run(at("/moved"), 5000).await, Bad, words);
    }
}

#[tokio::test]
async fn nginx_that_wants_a_proxy_header_gets_it_before_tls_and_http() {
    let Some(nginx) = Nginx::start("nginx_that_wants_a_proxy_header_gets_it_before_tls_and_http") else {
        return;
    };
    for (at, target) in nginx.header.into_iter().enumerate() {
        let mut probe = nginx.plain("a", "/");
        probe.target = Target::Address(target);
        probe.tls = (at == 1).then(|| tls("a.example.test", Some(nginx.ca.file())));
        // nginx cuts off whoever comes without.
        assert_eq!(run(probe.clone(), 3000).await.outcome, Bad);
        // The binary form of a health check names no client.
        for (version, client) in [(ProxyProtocol::V1, "client 127.0.0.1,"), (ProxyProtocol::V2, "client ,")] {
            probe.text = Some(client.into());
            let mut check = Check::new(Probe::Http(Box::new(probe.clone())));
            check.via.proxy_protocol = Some(version);
            let v = standfast_io::probe::prepare(&check).unwrap().run(Duration::from_secs(3)).await;
            assert_says(&v, Good, "status 200");
        }
        // To a server that wants none it is no request.
        let mut check = Check::new(Probe::Http(Box::new(nginx.plain("a", "/"))));
        check.via.proxy_protocol = Some(ProxyProtocol::V1);
        let v = standfast_io::probe::prepare(&check).unwrap().run(Duration::from_secs(3)).await;
        assert_eq!(v.outcome, Bad, "{v:?}");
    }
}
