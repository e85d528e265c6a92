use super::catalog::Catalog;
use super::wire::put;
use super::*;

/// Its sources are beside it; see there how it was made.
const BANK: &[u8] = include_bytes!("../../../tests/grpc/bank.pb");
const ETCD: &[u8] = include_bytes!("../../../tests/grpc/etcd.pb");

/// Nothing here is given up.
static WAITED: AtomicBool = AtomicBool::new(false);

fn hex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|h| u8::from_str_radix(std::str::from_utf8(h).unwrap(), 16).unwrap())
        .collect()
}

fn look() -> Method {
    Catalog::of_set(BANK).unwrap().method("/bank.v1.Ledger/Look").unwrap()
}

/// A length-delimited field.
fn field(number: u32, octets: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put(number, octets, &mut out);
    out
}

#[test]
fn a_health_answer_is_read_whatever_surrounds_it() {
    assert_eq!(health_answer(b""), Some(0));
    assert_eq!(health_answer(b"\x08\x01"), Some(1));
    assert_eq!(
        health_answer(b"\x12\x02hi\x1d1234\x21\x31\x32\x33\x34\x35\x36\x37\x38\x18\x05\x08\x02"),
        Some(2)
    );
    for broken in [&b"\x08"[..], b"\x12\x7fhi", b"\x0b", b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"]
    {
        assert_eq!(health_answer(broken), None, "{broken:?}");
    }
}

// The bytes of these two were made by protobuf's own library for Python from the same JSON and the same descriptors.

#[test]
fn a_request_becomes_the_bytes_that_protobuf_makes_of_it() {
    let json = r#"{"account": "a-1", "depth": 3, "packed": [1, 300], "expanded": [1, 2],
        "filter": {"only": "x", "also": {"only": "y"}}, "limits": {"day": "5"},
        "since": "2026-01-02T03:04:05Z", "kind": "LOAN", "token": "AAE="}"#;
    let want =
        "0a03612d3110031a0301ac02200120022b0a0178130a0179142c32070a036461791005420608a5ebdcca06480252020001";
    assert_eq!(look().encode(json).unwrap(), hex(want));
}

#[test]
fn an_answer_becomes_the_json_that_protobuf_makes_of_it() {
    let bytes = hex(concat!(
        "0a0f080c130a0341204214180122020102120608a5ebdcca061a040a02686922270a21747970652e676f6f676c65",
        "617069732e636f6d2f62616e6b2e76312e456e747279120208072a020201350000003f3a05350000c03f"
    ));
    let json: serde_json::Value = serde_json::from_slice(&look().decode(&bytes, &WAITED).unwrap()).unwrap();
    let want = serde_json::json!({
        "entry": {"balance": "12", "owner": {"fullName": "A B"}, "kind": "SAVINGS", "days": [1, 2]},
        "at": "2026-01-02T03:04:05Z", "note": "hi",
        "extra": {"@type": "type.googleapis.com/bank.v1.Entry", "balance": "7"},
        "kinds": ["LOAN", "SAVINGS"], "rate": 0.5, "previous": {"rate": 1.5}
    });
    assert_eq!(json, want);
    assert_eq!(look().decode(b"", &WAITED).unwrap(), b"{}");
}

#[test]
fn what_a_request_must_not_hold_is_named() {
    for (json, want) in [
        (r#"{"acount": "x"}"#, "unrecognized field name 'acount' at line 1 column 9"),
        (r#"{"depth": "many"}"#, "invalid digit"),
        (r#"{"kind": "CREDIT"}"#, "unrecognized enum value at line 1 column 17"),
        (r#"{"name": "x", "since": "2026-01-02T03:04:05Z"}"#, "by"),
        (r#"{"account": "x"} {}"#, "trailing characters"),
        (r"[]", "invalid type"),
        (
            r#"{"filter": {"also": {"also": {"only": 1}}}}"#,
            "invalid type: integer, expected a string at line 1 column 39",
        ),
        (r#"{"depth": {"many": 1}}"#, "invalid type: map, expected a 32-bit signed integer"),
        (r#"{"since": true}"#, "invalid type: boolean, expected"),
        (r#"{"limits": {"a": "many \" many"}}"#, "invalid digit"),
        (r#"{"packed": "many \" many"}"#, "invalid type: string, expected a list"),
    ] {
        let e = look().encode(json).unwrap_err();
        assert!(!e.contains("CREDIT") && !e.contains("many"), "{e:?} tells a value");
        assert!(
            e.starts_with("this is no bank.v1.LookRequest: ") && e.contains(want),
            "{want:?} is not in {e:?}"
        );
    }
}

#[test]
fn methods_that_are_not_there_or_stream_are_refused_with_those_that_are() {
    let etcd = Catalog::of_set(ETCD).unwrap();
    for (path, want) in [
        ("/etcdserverpb.KV/Get", "etcdserverpb.KV has no method Get (it has: Range)"),
        (
            "/etcd.KV/Range",
            "there is no service etcd.KV (there is: etcdserverpb.KV, etcdserverpb.Maintenance, etcdserverpb.Watch)",
        ),
        (
            "/etcdserverpb.Watch/Watch",
            "/etcdserverpb.Watch/Watch is a streaming method: only unary ones can be checked",
        ),
    ] {
        assert_eq!(etcd.method(path).unwrap_err(), want);
    }
    for (bytes, want) in [
        (&b""[..], "there is no descriptor in it"),
        (b"syntax = \"proto3\";", "this is no descriptor set"),
        (&ETCD[..300], "this is no descriptor set"),
    ] {
        assert_eq!(Catalog::of_set(bytes).unwrap_err(), want);
    }
}

/// A file with one service that takes and gives `.x.M`, and these messages.
fn file(messages: &[Vec<u8>]) -> Vec<u8> {
    let method = [field(1, b"Do"), field(2, b".x.M"), field(3, b".x.M")].concat();
    let service = [field(1, b"S"), field(2, &method)].concat();
    let messages: Vec<u8> = messages.iter().flat_map(|m| field(4, m)).collect();
    [field(1, b"x.proto"), field(2, b"x"), messages, field(6, &service)].concat()
}

/// A field of a message: its number, label and type, and the name of that.
fn member(name: &str, number: u8, label: u8, kind: u8, type_name: &str) -> Vec<u8> {
    let mut out = field(1, name.as_bytes());
    out.extend([3 << 3, number, 4 << 3, label, 5 << 3, kind]);
    if !type_name.is_empty() {
        out.extend(field(6, type_name.as_bytes()));
    }
    field(2, &out)
}

fn message(name: &str, parts: &[Vec<u8>]) -> Vec<u8> {
    [field(1, name.as_bytes()), parts.concat()].concat()
}

#[test]
fn descriptors_that_contradict_themselves_lose_only_what_cannot_be() {
    let map_entry = |key: u8| {
        let options = field(7, &[7 << 3, 1]);
        message("E", &[member("key", 1, 1, key, ""), member("value", 2, 1, 5, ""), options])
    };
    // Numbers and names twice, numbers out of range, types that are not there, a oneof that is not there.
    let odd = message(
        "M",
        &[
            member("a", 1, 1, 5, ""),
            member("a", 2, 1, 5, ""),
            member("b", 1, 1, 5, ""),
            member("c", 0, 1, 5, ""),
            member("d", 4, 1, 77, ""),
            member("e", 5, 1, 5, ".x.M"),
            member("f", 6, 3, 11, ".x.E"),
            field(2, &[field(1, b"g"), vec![3 << 3, 7, 4 << 3, 1, 5 << 3, 5, 9 << 3, 9]].concat()),
            member("h", 8, 1, 14, ".x.M"),
            member("i", 9, 1, 11, ".google.protobuf.Timestamp"),
        ],
    );
    // A float cannot be the key of a map: it is a list of entries then.
    for (key, want) in [(9, r#"{"f":{"k":3}}"#), (2, r#"{"f":[{"value":3}]}"#)] {
        let mut catalog = Catalog::default();
        catalog.add(&file(&[odd.clone(), map_entry(key)])).unwrap();
        let method = catalog.method("/x.S/Do").unwrap();
        let bytes = method.encode(want).unwrap();
        assert_eq!(String::from_utf8(method.decode(&bytes, &WAITED).unwrap()).unwrap(), want);
        let all = r#"{"a":1,"e":2,"g":3,"h":{"a":1},"i":"1970-01-01T00:00:00Z"}"#;
        assert_eq!(
            String::from_utf8(method.decode(&method.encode(all).unwrap(), &WAITED).unwrap()).unwrap(),
            all
        );
        assert!(method.encode(r#"{"b": 1}"#).is_err() && method.encode(r#"{"d": 1}"#).is_err());
    }
}

#[test]
fn a_type_that_no_descriptor_defines_is_named() {
    let mut catalog = Catalog::default();
    catalog.add(&file(&[message("M", &[member("a", 1, 1, 11, ".y.N")])])).unwrap();
    assert_eq!(catalog.missing("/x.S/Do").unwrap().into_iter().collect::<Vec<_>>(), ["y.N"]);
    let e = catalog.method("/x.S/Do").unwrap_err();
    assert_eq!(e, "/x.S/Do needs the type y.N, which no descriptor defines");
    let mut catalog = Catalog::default();
    catalog.add(&file(&[])).unwrap();
    assert!(catalog.method("/x.S/Do").unwrap_err().contains("needs the type x.M"));
}

#[test]
fn descriptors_cost_no_more_than_their_budget() {
    // Two octets for a message each, nothing in it.
    let many = [file(&[]), [0x22, 0x00].repeat(1 << 20)].concat();
    assert!(Catalog::default().add(&many).unwrap_err().contains("more than 65536 elements"));
    let mut nested = Vec::new();
    for _ in 0..1000 {
        nested = field(3, &nested);
    }
    assert!(Catalog::default().add(&file(&[nested])).unwrap_err().contains("nested too deep"));
    let mut catalog = Catalog::default();
    let long = field(9, &vec![0; 5 << 20]);
    catalog.add(&[field(1, b"1"), long.clone()].concat()).unwrap();
    assert!(catalog.add(&[field(1, b"2"), long].concat()).unwrap_err().contains("longer than 8388608 bytes"));
}

#[test]
fn an_answer_that_hides_its_depth_in_anys_is_refused() {
    let url = b"type.googleapis.com/google.protobuf.Any";
    let mut any = [field(1, b"t/bank.v1.Entry"), field(2, b"\x08\x07")].concat();
    let mut deepest = 0;
    for depth in 1..2000 {
        if look().decode(&field(4, &any), &WAITED).is_err() {
            deepest = depth;
            break;
        }
        any = [field(1, url), field(2, &any)].concat();
    }
    assert!((2..20).contains(&deepest), "{deepest}");
    for _ in 0..10_000 {
        any = [field(1, url), field(2, &any)].concat();
    }
    assert!(look().decode(&field(4, &any), &WAITED).unwrap_err().contains("nested too deep"));
    let e = look().decode(&field(4, &field(1, b"x/no.Such")), &WAITED).unwrap_err();
    assert!(e.contains("google.protobuf.Any of \"no.Such\", which no descriptor defines"), "{e}");
}

/// A method whose answer is a list of one enum, and the answer with so many values of it.
fn repeated_enum(name: &[u8], values: usize) -> (Result<Method, String>, Vec<u8>) {
    let value = [field(1, name), vec![2 << 3, 0]].concat();
    let one = [field(1, b"E"), field(2, &value)].concat();
    let file = [file(&[message("M", &[member("e", 1, 3, 14, ".x.E")])]), field(5, &one)].concat();
    let mut catalog = Catalog::default();
    let method = catalog.add(&file).and_then(|()| catalog.method("/x.S/Do"));
    (method, field(1, &vec![0; values]))
}

#[test]
fn an_answer_becomes_json_up_to_a_bound_and_not_when_nobody_waits() {
    // A name in quotes and a comma are 512 octets, and around the list are a few.
    let (method, answer) = repeated_enum(&[b'A'; 509], 8191);
    let json = method.unwrap().decode(&answer, &WAITED).unwrap();
    assert!(json.len() > (4 << 20) - 1024, "{}", json.len());
    let (method, answer) = repeated_enum(&[b'A'; 509], 8192);
    let method = method.unwrap();
    assert_eq!(
        method.decode(&answer, &WAITED).unwrap_err(),
        "the answer as JSON is longer than 4194304 bytes"
    );
    let e = method.decode(b"", &AtomicBool::new(true)).unwrap_err();
    assert_eq!(e, "the answer took too long to become JSON");
}

#[test]
fn descriptors_with_long_names_are_refused() {
    let fits = |name: &[u8]| repeated_enum(name, 1).0.map(|_| ());
    assert_eq!(fits(&[b'A'; 512]), Ok(()));
    let want = Err("the descriptors have a name that is longer than 512 bytes".to_owned());
    assert_eq!(fits(&[b'A'; 513]), want);
    // What is not UTF-8 grows as it is replaced.
    assert_eq!(fits(&[0xff; 512]), want);
    let long = "a".repeat(513);
    let half = "b".repeat(300);
    for odd in [
        message("M", &[member(&long, 1, 1, 5, "")]),
        message("M", &[member("a", 1, 1, 11, &long)]),
        message("M", &[field(2, &field(10, long.as_bytes()))]),
        message("M", &[field(8, &field(1, long.as_bytes()))]),
        message(&long, &[]),
        // Each is short enough, and together they are not.
        message(&half, &[field(3, &message(&half, &[]))]),
        message(&half, &[field(4, &message(&half, &[]))]),
    ] {
        assert_eq!(Catalog::default().add(&file(&[odd])), want);
    }
    for number in [1, 2, 3, 12] {
        assert_eq!(Catalog::default().add(&field(number, long.as_bytes())), want, "{number}");
    }
}

#[tokio::test]
async fn work_that_nobody_waits_for_is_told_and_makes_room() {
    let unary = Unary::prepare(&GrpcMethod::new("/x.S/Do")).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let work = unary.apart(move |abandoned| {
        while !abandoned.load(Ordering::Relaxed) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    assert!(tokio::time::timeout(Duration::from_millis(50), work).await.is_err());
    while unary.apart(|_| ()).await.is_err() {
        assert!(Instant::now() < end - Duration::from_secs(30), "the work still runs");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
