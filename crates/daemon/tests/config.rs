//! What the configuration accepts, what it refuses, and the very words of each refusal.
//!
//! `tests/config/broken/` holds files that must be refused, each with the report that an operator reads (`.stderr`), and
//! `tests/config/good/` files that must be accepted, each with its plan or its warnings (`.stdout`). `GOLDEN=write` writes
//! the expected texts anew: read the difference before committing it.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use standfast_core::plan::{GrpcCall, Probe};
use standfast_daemon::config::{self, Environment, Format, Problems};

struct Fixed;

impl Environment for Fixed {
    fn variable(&self, name: &str) -> Option<String> {
        match name {
            "ASN" => Some("64513".into()),
            "BGP_MD5" => Some("hunter2".into()),
            "TOO_LONG" => Some("x".repeat(81)),
            "EMPTY" => Some(String::new()),
            "DESCRIPTORS" => Some(concat!(env!("CARGO_MANIFEST_DIR"), "/../io/tests/grpc").into()),
            "INJECT" => Some("web\"\n    prefix: 0.0.0.0/0 # ".into()),
            _ => None,
        }
    }

    fn file(&self, path: &str) -> Result<String, String> {
        if path == "/etc/standfast/md5" { Ok("hunter2\n".into()) } else { Err("no such file".into()) }
    }
}

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config").join(name)
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| Format::of(path).is_some())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no files in {}", directory.display());
    files
}

fn parse(path: &Path) -> Result<config::Loaded, Problems> {
    let name = path.file_name().unwrap().to_str().unwrap();
    config::parse(name, Format::of(path).unwrap(), &std::fs::read_to_string(path).unwrap(), &Fixed)
}

/// The golden file of a file: its whole name and one more extension.
fn beside(path: &Path, extension: &str) -> PathBuf {
    PathBuf::from(format!("{}.{extension}", path.display()))
}

/// Compares `actual` with the golden file, or writes it; returns what differs.
fn golden(path: &Path, actual: &str) -> Option<String> {
    if std::env::var_os("GOLDEN").is_some_and(|v| v == "write") {
        std::fs::write(path, actual).unwrap();
        return None;
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    (expected != actual)
        .then(|| format!("{}\n--- expected\n{expected}\n--- actual\n{actual}\n", path.display()))
}

fn none(failures: &[String]) {
    assert!(
        failures.is_empty(),
        "{} files differ; GOLDEN=write rewrites\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn every_broken_file_is_refused_in_these_words() {
    let mut failures = Vec::new();
    let files = files(&directory("broken"));
    assert!(files.len() >= 40, "only {} broken files", files.len());
    for path in files {
        match parse(&path) {
            Ok(_) => failures.push(format!("{} is accepted", path.display())),
            Err(problems) => failures.extend(golden(&beside(&path, "stderr"), &problems.to_string())),
        }
    }
    none(&failures);
}

#[test]
fn no_report_holds_a_secret() {
    for path in files(&directory("broken")) {
        if let Err(problems) = parse(&path) {
            let report = problems.to_string();
            for secret in ["hunter2", "s3cret", "xxxxxxxxxxxxxxxxxxxx"] {
                assert!(!report.contains(secret), "{} tells {secret}:\n{report}", path.display());
            }
        }
    }
}

#[test]
fn every_good_file_is_accepted_with_these_warnings() {
    let mut failures = Vec::new();
    for path in files(&directory("good")) {
        match parse(&path) {
            Err(problems) => failures.push(format!("{} is refused\n{problems}", path.display())),
            Ok(loaded) => {
                let mut report = String::new();
                for warning in &loaded.warnings {
                    writeln!(report, "{warning}\n").unwrap();
                }
                report.push_str(&standfast_daemon::cli::describe(&loaded));
                for secret in ["hunter2", "s3cret"].into_iter().filter(|s| report.contains(s)) {
                    failures.push(format!("{} tells {secret}:\n{report}", path.display()));
                }
                failures.extend(golden(&beside(&path, "stdout"), &report));
            }
        }
    }
    none(&failures);
}

fn standfast(args: &[&str]) -> (i32, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_standfast"))
        .args(args)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .env_remove("BGP_MD5")
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (out.status.code().unwrap(), text(out.stdout), text(out.stderr))
}

#[test]
fn every_example_validates_without_a_word() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let files: Vec<_> = std::fs::read_dir(examples)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| Format::of(p).is_some())
        .collect();
    assert!(files.len() >= 4);
    for path in files {
        let (code, out, err) = standfast(&["validate", "-c", path.to_str().unwrap()]);
        assert_eq!((code, err.as_str()), (0, ""), "{}", path.display());
        assert!(out.contains(": valid: "), "{out}");
        let bare = standfast(&["validate", path.to_str().unwrap()]);
        assert_eq!(bare, (code, out, err), "as people type it");
    }
}

#[test]
fn a_wrong_configuration_or_use_is_exit_code_2() {
    for args in [
        &["validate", "-c", "/nonexistent/config.yaml"][..],
        &["validate", "-c", "Cargo.lock"],
        &["validate", "-c", "/dev"],
        &["validate", "--no-such-flag"],
        &["plan", "/nonexistent/config.yaml"],
        &["plan", "examples/minimal.yaml", "--against", "/nonexistent/config.yaml"],
        &["status", "-c", "/nonexistent/config.yaml"],
        &["check", "web", "-c", "/nonexistent/config.yaml"],
        &["report", "web", "--ok", "-c", "/nonexistent/config.yaml"],
        &["undamp", "web", "-c", "/nonexistent/config.yaml"],
        &[],
    ] {
        let (code, out, err) = standfast(args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}");
        assert!(!err.is_empty(), "{args:?}");
    }
}

#[test]
fn a_plan_against_itself_changes_nothing() {
    let (code, out, _) = standfast(&["plan", "examples/gateway.yaml", "--against", "examples/gateway.yaml"]);
    assert_eq!((code, out.as_str()), (0, "nothing changes\n"));
}

#[test]
fn a_plan_names_what_is_added_changed_and_removed() {
    let (code, out, _) = standfast(&["plan", "examples/gateway.yaml", "--against", "examples/minimal.yaml"]);
    assert_eq!(code, 0);
    let golden_file = directory("").join("plan.stdout");
    none(&golden(&golden_file, &out).into_iter().collect::<Vec<_>>());
    let (_, json, _) = standfast(&["plan", "examples/gateway.yaml", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["changes"].as_array().unwrap().iter().all(|c| c["action"] == "add"));
    assert_eq!(json["changes"][1]["what"], "router");
    assert_eq!(json["changes"][1]["fields"]["asn"]["new"], "64513");
}

#[test]
fn a_changed_secret_is_seen_and_never_shown() {
    let dir = std::env::temp_dir().join(format!("standfast-config-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/gateway.yaml"))
            .unwrap();
    let (old, new) = (dir.join("old.yaml"), dir.join("new.yaml"));
    std::fs::write(&old, &text).unwrap();
    std::fs::write(&new, text.replace("change me", "hunter2")).unwrap();
    let (code, out, _) = standfast(&["plan", new.to_str().unwrap(), "--against", old.to_str().unwrap()]);
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(code, 0);
    assert_eq!(
        out,
        "~ neighbour front-a\n    auth_password: (secret) (changed)\n0 added, 1 changed, 0 removed\n"
    );
}

#[test]
fn a_value_cannot_change_the_document() {
    let path = directory("broken").join("placeholder-injection.yaml");
    let problems = parse(&path).unwrap_err();
    assert_eq!(problems.0.len(), 1, "{problems}");
    assert_eq!(problems.0[0].path, "vips[0].name");
}

#[test]
fn hostile_documents_end_soon_in_one_error() {
    let bomb = {
        let mut text = String::from("a: &a [x,x,x,x,x,x,x,x,x]\n");
        for (new, old) in
            ["b", "c", "d", "e", "f", "g", "h", "i"].iter().zip(["a", "b", "c", "d", "e", "f", "g", "h"])
        {
            let uses = vec![format!("*{old}"); 9].join(",");
            writeln!(text, "{new}: &{new} [{uses}]").unwrap();
        }
        text
    };
    let million = 1 << 20;
    let cases: Vec<(&str, Format, String)> = vec![
        ("alias bomb", Format::Yaml, bomb),
        ("flow depth", Format::Yaml, "[".repeat(million)),
        ("map depth", Format::Yaml, "{a: ".repeat(million / 4)),
        ("block depth", Format::Yaml, (0..2000).map(|i| format!("{}a:\n", " ".repeat(i))).collect()),
        ("list depth", Format::Yaml, "- ".repeat(million / 2)),
        ("TOML depth", Format::Toml, format!("a = {}", "[".repeat(million))),
        ("TOML table depth", Format::Toml, format!("a = {}", "{a=".repeat(million / 3))),
        ("TOML dots", Format::Toml, format!("{}a = 1", "a.".repeat(million / 2))),
        ("garbage", Format::Yaml, (0..million).map(|i| char::from((33 + i * 7 % 94) as u8)).collect()),
        ("garbage TOML", Format::Toml, (0..million).map(|i| char::from((33 + i * 7 % 94) as u8)).collect()),
        ("many keys", Format::Yaml, (0..600_000).map(|i| format!("k{i}: 1\n")).collect()),
        ("many placeholders", Format::Yaml, "%{A}".repeat(million / 4)),
        ("one word", Format::Yaml, "a".repeat(million)),
        ("nul", Format::Yaml, "\0".repeat(million)),
        ("anchor in itself", Format::Yaml, "a: &a [*a]".into()),
        ("many vips", Format::Yaml, format!("schema: v1\nvips:\n{}", "- {}\n".repeat(30_000))),
    ];
    for (name, format, text) in cases {
        let start = std::time::Instant::now();
        let problems = config::parse(name, format, &text, &Fixed).unwrap_err();
        let report = problems.to_string();
        assert!(start.elapsed().as_secs() < 20, "{name} took {:?}", start.elapsed());
        assert!(!problems.0.is_empty() && problems.0.len() <= 101, "{name}: {}", problems.0.len());
        assert!(report.len() < 4 << 20, "{name} reports {} bytes", report.len());
        eprintln!(
            "{name}: {:?}, {} bytes: {}",
            start.elapsed(),
            report.len(),
            report.chars().take(90).collect::<String>()
        );
    }
}

#[test]
fn no_change_of_a_good_file_panics() {
    let seed = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(7);
    let mut rng = standfast_core::machine::Rng::new(seed);
    let words = [
        "",
        ":",
        "- ",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "'",
        "%{",
        "}",
        "&a ",
        "*a",
        "<<: ",
        "#",
        "\n",
        "\t",
        "~",
        "0",
        "-1",
        "é",
        "\u{e000}",
        "|\n ",
        "!!str ",
        "99999999999999999999",
        "/129",
        "::",
        "1e9",
        "\0",
    ];
    for name in ["full.yaml", "additions.yaml", "minimal.json"] {
        let good = std::fs::read_to_string(directory("good").join(name)).unwrap();
        for round in 0..150 {
            let mut text = good.clone();
            for _ in 0..=rng.below(3) {
                let mut at = usize::try_from(rng.below(text.len() as u64)).unwrap();
                while !text.is_char_boundary(at) {
                    at -= 1;
                }
                let end = text[at..]
                    .char_indices()
                    .nth(usize::try_from(rng.below(6)).unwrap())
                    .map_or(text.len(), |(i, _)| at + i);
                let word = words[usize::try_from(rng.below(words.len() as u64)).unwrap()];
                text.replace_range(at..end, word);
            }
            if let Err(problems) = config::parse(name, Format::Yaml, &text, &Fixed) {
                let report = problems.to_string();
                assert!(!problems.0.is_empty() && !report.is_empty(), "SEED={seed} {name} round {round}");
            }
        }
    }
}

#[test]
fn a_request_of_a_grpc_method_is_the_same_as_section_and_as_text() {
    let request = |request: &str| {
        let text = format!(
            r#"{{ schema: v1, router: {{ asn: 64513, router_id: 192.0.2.11 }},
                bgp: {{ neighbors: [ {{ name: a, address: 192.0.2.1, peer_asn: 64512, local_address: 192.0.2.11 }} ] }},
                vips: [ {{ name: a, prefix: 198.51.100.10/32, check: {{ type: grpc, grpc: {{ port: 1,
                    method: etcdserverpb.KV/Range, descriptor_set: "%{{DESCRIPTORS}}/etcd.pb", request: {request} }} }} }} ] }}"#
        );
        let plan =
            config::parse("a.yaml", Format::Yaml, &text, &Fixed).map_err(|e| panic!("{e}")).unwrap().plan;
        let Probe::Grpc(grpc) = &plan.checks.values().next().unwrap().probe else { panic!("no grpc") };
        let GrpcCall::Method(method) = &grpc.call else { panic!("no method") };
        serde_json::from_str::<serde_json::Value>(method.request.as_deref().unwrap()).unwrap()
    };
    let want = serde_json::json!({ "key": "Zm9v", "limit": 3 });
    assert_eq!(request("{ key: Zm9v, limit: 3 }"), want);
    assert_eq!(request(r#"'{"key": "Zm9v", "limit": 3}'"#), want);
    assert_eq!(request(r#"{ key: Zm9v, limit: "3" }"#)["limit"], "3");
}

#[test]
fn thousands_of_resilient_vips_earn_a_word_about_their_memory() {
    let words = |more: &str, n: u32| {
        let mut text = String::from(
            "schema: v1\nrouter: { asn: 64512, router_id: 192.0.2.1, local_address: 192.0.2.1 }\nbgp: { hold_time: 9s }\n\
             listener:\n  accept: [{ name: a, range: 192.0.2.0/24, peer_asn: 64513 }]\n  vips:\n",
        );
        for i in 0..n {
            let address = std::net::Ipv4Addr::from(0x0a00_0000 + i);
            writeln!(text, "    - {{ name: v{i}, prefix: {address}/32{more} }}").unwrap();
        }
        let loaded = config::parse("a.yaml", Format::Yaml, &text, &Fixed).map_err(|e| panic!("{e}")).unwrap();
        loaded.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let many = words(", buckets: 16384", 3000);
    assert!(many.len() == 1 && many[0].contains("3000 resilient VIPs need 1.5 GiB"), "{many:?}");
    assert_eq!(words("", 3000), [] as [&str; 0]);
    assert_eq!(words(", hashing: plain", 3000), [] as [&str; 0]);
}
