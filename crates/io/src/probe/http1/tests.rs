use super::*;

fn get(bytes: &[u8]) -> Result<String, String> {
    replay(bytes, usize::MAX, "GET", 1 << 20)
}

#[track_caller]
fn good(bytes: impl AsRef<[u8]>, status: u16, body: &str) {
    let said = get(bytes.as_ref()).unwrap();
    let want = format!("({status}, ");
    let (length, kept) = (body.len(), body.as_bytes());
    assert!(said.starts_with(&want) && said.ends_with(&format!(" {length} {kept:?}")), "{said}");
}

#[track_caller]
fn bad(bytes: impl AsRef<[u8]>, words: &str) {
    let said = get(bytes.as_ref()).unwrap_err();
    assert!(said.contains(words), "{words:?} is not in {said:?}");
}

#[test]
fn a_body_ends_with_its_length_its_chunks_or_the_stream() {
    good("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef", 200, "abc");
    good("HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\ncontent-length: 3\r\n\r\nabc", 200, "abc");
    good("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200, "");
    good("HTTP/1.0 200 OK\r\n\r\nabc", 200, "abc");
    good("HTTP/1.1 200 OK\n\nabc", 200, "abc");
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n";
    good(format!("{chunked}3\r\nabc\r\n00A;x=\"y\"\r\n0123456789\r\n0\r\n\r\n"), 200, "abc0123456789");
    good(format!("{chunked}3 \r\nabc\r\n0\r\nTrailer: x\r\nOther: y\r\n\r\nmore"), 200, "abc");
}

#[test]
fn what_has_no_body_has_none_whatever_its_headers_say() {
    for status in [204, 304] {
        good(format!("HTTP/1.1 {status} No\r\nContent-Length: 3\r\n\r\nabc"), status, "");
    }
    let said = replay(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", 1, "HEAD", 100).unwrap();
    assert!(said.starts_with("(200") && said.ends_with(" 0 []"), "{said}");
    let said = replay(b"HTTP/1.1 200 Go\r\nTransfer-Encoding: chunked\r\n\r\n", 1, "CONNECT", 100).unwrap();
    assert!(said.starts_with("(200") && said.ends_with(" 0 []"), "{said}");
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    let head = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    bad(head("Content-Length: 3\r\nTransfer-Encoding: chunked"), "both Transfer-Encoding and Content-Length");
    bad(head("Content-Length: 3\r\nContent-Length: 4"), "two Content-Lengths that disagree");
    bad(head("Content-Length: 3, 4"), "two Content-Lengths that disagree");
    for wrong in ["-1", "+3", "3x", "0x3", "", "3,", "99999999999999999999"] {
        bad(head(&format!("Content-Length: {wrong}")), "Content-Length is not a number");
    }
    for wrong in ["gzip", "gzip, chunked", "chunked, chunked", "chunked;q=1", "identity"] {
        bad(head(&format!("Transfer-Encoding: {wrong}")), "a Transfer-Encoding other than chunked");
    }
    bad("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "in an answer of HTTP/1.0");
}

#[test]
fn malformed_chunks_are_refused() {
    let chunked = |body: &str| format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
    for wrong in
        ["zz\r\n", "\r\n", " 3\r\nabc\r\n", "3\nabc\n", "3\r\r\n", "-3\r\nabc\r\n", "0x3\r\nabc", ";x\r\n"]
    {
        bad(chunked(wrong), "the size of a chunk is malformed");
    }
    bad(chunked("10000000000000000\r\n"), "the size of a chunk is too large");
    bad(chunked("3\r\nabcd\r\n0\r\n\r\n"), "a chunk does not end where its size says");
    bad(chunked("3\r\nabc\n0\r\n\r\n"), "a chunk does not end where its size says");
    bad(chunked("0\r\nTrailer: x\n\r\n"), "a trailer is malformed");
    bad(chunked(&format!("0\r\n{}", "T: x\r\n".repeat(20_000))), "trailers are longer than 64 KiB");
    bad(
        chunked(&format!("3;{}", "x".repeat(70_000))),
        "chunk extensions and trailers are longer than 64 KiB",
    );
    bad(chunked("3\r\nab"), "connection closed after 2 bytes, before the last chunk");
    bad(chunked("3\r\nabc\r\n0\r\n"), "connection closed after 3 bytes, before the last chunk");
    // A size that no machine has is a body that goes on, and is cut.
    let said = replay(chunked("FFFFFFFFFFFFFFFF\r\nabcdef").as_bytes(), 1, "GET", 3).unwrap();
    assert!(said.starts_with("(200") && said.ends_with("3 [97, 98, 99]"), "{said}");
}

#[test]
fn interim_answers_are_skipped_and_never_the_final_one() {
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    good(format!("HTTP/1.1 100 Continue\r\n\r\n{ok}"), 200, "ok");
    good(format!("{}{ok}", "HTTP/1.1 102 Processing\r\n\r\n".repeat(20)), 200, "ok");
    good("HTTP/1.1 103 Hints\r\nLink: </a>\r\nContent-Length: 9\r\n\r\nHTTP/1.1 503 No\r\n\r\n", 503, "");
    bad("HTTP/1.1 100 Continue\r\n\r\n", "closed after an interim answer (1xx), without a final one");
    bad("HTTP/1.1 101 Go\r\nUpgrade: x\r\n\r\n", "101 Switching Protocols, which nobody asked for");
    bad(format!("{}{ok}", "HTTP/1.1 102 Wait\r\n\r\n".repeat(65)), "more than 64 interim answers");
}

#[test]
fn heads_are_bounded_and_begin_as_http_does() {
    bad("", "connection closed without an answer");
    bad("HTTP/1.1 200 OK\r\nX: y", "connection closed before they were complete");
    bad(format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "a".repeat(70_000)), "the head is longer than 64 KiB");
    bad(format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(129)), "more than 128 fields");
    good(format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(128)), 200, "");
    bad("220 smtp ready\r\n", "invalid HTTP version");
    bad("\r\nHTTP/1.1 200 OK\r\n\r\n", "invalid HTTP version");
    bad("HTTP/2 200\r\n\r\n", "invalid HTTP version");
    bad("HTTP/1.2 200\r\n\r\n", "invalid HTTP version");
    bad([0x15, 3, 1, 0, 2, 2, 70], "the server speaks TLS");
    bad("HTTP/1.1 042 X\r\n\r\n", "status 042 is no status");
    bad("HTTP/1.1 2000 X\r\n\r\n", "invalid response status");
    bad("HTTP/1.1 200 OK\r\nA b: c\r\n\r\n", "invalid header name");
    bad("HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n", "invalid header name");
    bad("HTTP/1.1 200 OK\r\nA: \0\r\n\r\n", "invalid header value");
}

#[test]
fn what_is_missing_of_a_body_is_said() {
    bad("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "connection closed after 3 of its 9 bytes");
}

#[test]
fn octets_that_drip_in_cost_no_more_than_their_number() {
    // Parsing again at each octet would take minutes.
    let bytes = format!("HTTP/1.1 200 OK\r\nX: {}", "a".repeat(1 << 20));
    let start = std::time::Instant::now();
    assert!(replay(bytes.as_bytes(), 1, "GET", 100).unwrap_err().contains("longer than 64 KiB"));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn persistence_is_what_the_answer_says() {
    let persistent = |bytes: &str| parse(bytes.as_bytes(), |head, _| head.is_persistent()).unwrap().unwrap();
    assert!(persistent("HTTP/1.1 200 OK\r\n\r\n"));
    assert!(!persistent("HTTP/1.1 200 OK\r\nConnection: x, Close\r\n\r\n"));
    assert!(!persistent("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n"));
}
