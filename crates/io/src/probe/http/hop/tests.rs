use std::time::Duration;

use super::*;

/// What is asked next, in words: where to, with which TLS name, and the request.
struct Next(Result<Hop, Failure>);

impl Next {
    #[track_caller]
    fn goes(&self, target: &str, begins: &str) -> String {
        let hop = self.0.as_ref().unwrap();
        let request = String::from_utf8(hop.request.to_vec()).unwrap();
        assert_eq!(hop.target.to_string(), target, "{request}");
        assert!(request.starts_with(begins), "{begins:?} does not begin {request:?}");
        request
    }

    #[track_caller]
    fn fails(&self, words: &str) {
        let Err(Failure::Bad(text)) = &self.0 else { panic!("{:?} is no failure", self.0) };
        assert!(text.contains(words), "{words:?} is not in {text:?}");
    }
}

/// A check of `scheme://web.example.test` at a fixed address, with credentials, that is told to go to `location`.
fn from(scheme: &str, method: &str, status: u16, location: &str) -> Next {
    let options = TlsOptions {
        insecure: true,
        ca_cert: None,
        client_cert: None,
        server_name: "web.example.test".into(),
        min_remaining: Duration::ZERO,
    };
    let https = scheme == "https";
    let port = if https { 443 } else { 80 };
    let mut probe =
        HttpProbe::new(Target::Address(SocketAddr::from(([192, 0, 2, 1], port))), "web.example.test");
    probe.method = method.into();
    probe.path = "/a/b?c".into();
    probe.headers = vec![
        ("Authorization".into(), "Bearer s3cret".into()),
        ("X-Token".into(), "s3cret".into()),
        ("Accept-Language".into(), "en".into()),
        ("Content-Type".into(), "text/plain".into()),
    ];
    probe.body = (method == "POST").then(|| "body".into());
    let tls = https.then(|| Tls::prepare(&options, &[]).unwrap());
    let asked = Request::prepare(&probe, method.parse().unwrap()).unwrap();
    let first = Hop::new(probe.target.clone(), tls, &probe.host, &probe.path, asked, None).unwrap();
    let follow = Follow { limit: 3, downgrade: false, tls: options };
    let follower = Follower::prepare(&follow, &first, &[]).unwrap();
    Next(follower.next(&first, &first, status, location.as_bytes(), None))
}

#[test]
fn the_own_host_stays_at_the_checked_address_with_everything() {
    for location in
        ["/x?y#z", "http://web.example.test/x?y", "HTTP://WEB.example.test:80/x?y", "//web.example.test/x?y"]
    {
        let request = from("http", "GET", 302, location).goes(
            "192.0.2.1:80",
            "GET /x?y HTTP/1.1\r\nHost: web.example.test\r\nAuthorization: Bearer s3cret\r\n",
        );
        assert!(request.contains("X-Token"), "{request}");
    }
    from("http", "GET", 302, "x").goes("192.0.2.1:80", "GET /a/x HTTP/1.1\r\n");
    from("http", "GET", 302, "?x").goes("192.0.2.1:80", "GET /a/b?x HTTP/1.1\r\n");
    from("http", "GET", 302, "").goes("192.0.2.1:80", "GET /a/b?c HTTP/1.1\r\n");
}

#[test]
fn the_own_host_over_tls_stays_too_and_is_verified_by_its_name() {
    let next = from("http", "GET", 301, "https://web.example.test/");
    let request = next.goes("192.0.2.1:443", "GET / HTTP/1.1\r\nHost: web.example.test\r\nAuthorization");
    assert!(next.0.unwrap().tls.is_some(), "{request}");
    // Another port is another service, which learns no secret.
    let request = from("http", "GET", 301, "https://web.example.test:8443/")
        .goes("192.0.2.1:8443", "GET / HTTP/1.1\r\nHost: web.example.test:8443\r\n");
    assert!(!request.contains("s3cret"), "{request}");
}

#[test]
fn another_host_is_connected_to_under_its_own_name_and_learns_no_secret() {
    for (location, target, host) in [
        ("http://b.example.test/x", "b.example.test:80", "b.example.test"),
        ("http://b.example.test:8080/x", "b.example.test:8080", "b.example.test:8080"),
        ("https://b.example.test/x", "b.example.test:443", "b.example.test"),
        ("http://[2001:db8::1]/x", "[2001:db8::1]:80", "[2001:db8::1]"),
        ("http://192.0.2.9:81/x", "192.0.2.9:81", "192.0.2.9:81"),
        (
            "http://web.example.test.evil.test/x",
            "web.example.test.evil.test:80",
            "web.example.test.evil.test",
        ),
    ] {
        let begins = format!("GET /x HTTP/1.1\r\nHost: {host}\r\nAccept-Language: en\r\nUser-Agent: ");
        let request = from("http", "GET", 307, location).goes(target, &begins);
        assert!(!request.contains("s3cret"), "{request}");
    }
}

#[test]
fn a_post_becomes_a_get_or_stays_as_its_status_says() {
    for (method, status, next) in [
        ("POST", 301, "GET"),
        ("POST", 302, "GET"),
        ("POST", 303, "GET"),
        ("POST", 307, "POST"),
        ("POST", 308, "POST"),
        ("HEAD", 303, "HEAD"),
        ("HEAD", 301, "HEAD"),
        ("GET", 303, "GET"),
    ] {
        let request = from("http", method, status, "/x").goes("192.0.2.1:80", &format!("{next} /x "));
        assert_eq!(request.ends_with("\r\n\r\nbody"), next == "POST", "{request}");
        assert_eq!(request.contains("Content-Length: 4"), next == "POST", "{request}");
        if method == "POST" {
            assert_eq!(request.contains("Content-Type"), next == "POST", "{request}");
        }
    }
}

#[test]
fn a_body_goes_to_no_other_host_port_or_scheme() {
    for status in [307, 308] {
        for location in [
            "http://b.example.test/x",
            "//b.example.test/x",
            "http://web.example.test:8080/x",
            "https://web.example.test:8443/x",
            "https://b.example.test/x",
            "http://192.0.2.1/x",
        ] {
            from("http", "POST", status, location).fails("another server, which must not see the body");
        }
        from("https", "POST", status, "https://web.example.test:444/").fails("must not see the body");
        // Where everything goes along, and where there is no body any more.
        let request = from("http", "POST", status, "https://web.example.test/x");
        assert!(request.goes("192.0.2.1:443", "POST /x ").ends_with("\r\n\r\nbody"));
    }
    from("http", "POST", 302, "http://b.example.test/x").goes("b.example.test:80", "GET /x ");
}

#[test]
fn what_is_not_followed_says_so() {
    from("https", "GET", 302, "http://web.example.test/").fails("from https to http://web.example.test/");
    from("https", "GET", 302, "http://web.example.test/?token=s3cret").fails("without allow_downgrade");
    from("http", "GET", 302, "ftp://web.example.test/").fails("scheme ftp");
    from("http", "GET", 302, "file:///etc/passwd").fails("scheme file");
    from("http", "GET", 302, "http://me:pw@b.example.test/").fails("a user name");
    from("http", "GET", 302, "http://[fe80::1%25eth0]/").fails("no URL");
    from("http", "GET", 302, "http://").fails("no URL");
    from("http", "GET", 302, &format!("/{}", "x".repeat(9000))).fails("longer than 8 KiB");
}

#[test]
fn a_location_adds_no_line_to_a_request() {
    let request =
        from("http", "GET", 302, "/x\r\nX-Evil: 1").goes("192.0.2.1:80", "GET /xX-Evil:%201 HTTP/1.1\r\n");
    assert!(!request.contains("\nX-Evil"), "{request}");
}

#[test]
fn nothing_that_is_shown_holds_a_query() {
    let next = from("http", "GET", 302, "http://b.example.test/x?token=s3cret");
    assert_eq!(next.0.unwrap().shown(), "http://b.example.test/x");
}
