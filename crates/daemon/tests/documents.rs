//! The examples in `docs/` and in the README are accepted as they stand.
//!
//! A block marked `yaml` is a whole file, and one marked `yaml vip` is part of a VIP; anything else is not looked at. Files
//! below `/etc/standfast/` are made up: certificates and keys by their extension, `.pem`, and commands by theirs, `.sh`.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use standfast_daemon::config::{self, Environment, Format};

const AROUND: &str = "schema: v1
router: { asn: 64513, router_id: 192.0.2.11, local_address: 192.0.2.11, local_address_ipv6: \"2001:db8::11\" }
bgp: { neighbors: [{ name: tor, address: 192.0.2.1, peer_asn: 64512 }] }
vips:
  - name: web
    prefix: 198.51.100.10/32
    address: { manage: true }
";

struct Anything;

impl Environment for Anything {
    fn variable(&self, _: &str) -> Option<String> {
        Some("64513".into())
    }

    fn file(&self, _: &str) -> Result<String, String> {
        Ok("secret\n".into())
    }
}

/// The blocks of a document: the line of each, what it is marked with, and its text.
fn blocks(text: &str) -> Vec<(usize, &str, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, &str, String)> = None;
    for (n, line) in text.lines().enumerate() {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(mark)) => open = Some((n + 1, mark.trim(), String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some((.., body)), None) => *body += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    blocks
}

/// Puts the files that an example names below `directory`, and the example's text with their new paths.
fn with_files(text: &str, directory: &Path) -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate =
        rcgen::CertificateParams::new(vec!["www.example.com".to_owned()]).unwrap().self_signed(&key).unwrap();
    let named = text.split(|c: char| c.is_whitespace() || "\"',[]{}".contains(c));
    let named = named.filter_map(|word| word.strip_prefix("/etc/standfast/"));
    for command in named.clone().filter(|p| p.ends_with(".sh")) {
        let path = directory.join(command);
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    for set in named.clone().filter(|p| p.ends_with(".pb")) {
        let known = Path::new(env!("CARGO_MANIFEST_DIR")).join("../io/tests/grpc").join(set);
        std::fs::copy(known, directory.join(set)).unwrap();
    }
    for path in named.filter(|p| p.ends_with(".pem")) {
        let path = directory.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let pem =
            if path.display().to_string().contains("key") { key.serialize_pem() } else { certificate.pem() };
        std::fs::write(path, pem).unwrap();
    }
    text.replace("/etc/standfast/", &format!("{}/", directory.display()))
}

#[test]
fn examples_in_documents_are_accepted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut documents: Vec<PathBuf> =
        std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    documents.push(root.join("README.md"));
    documents.sort();
    let (mut seen, mut refused) = (0, Vec::new());
    for document in documents.iter().filter(|d| d.extension().is_some_and(|e| e == "md")) {
        let text = std::fs::read_to_string(document).unwrap();
        for (line, mark, body) in blocks(&text) {
            let whole = match mark {
                "yaml" => body,
                "yaml vip" => {
                    AROUND.to_owned() + &body.lines().map(|l| format!("    {l}\n")).collect::<String>()
                }
                _ => continue,
            };
            seen += 1;
            let directory = tempfile::tempdir().unwrap();
            let whole = with_files(&whole, directory.path());
            let name = format!("{}:{line}", document.file_name().unwrap().display());
            if let Err(problems) = config::parse(&name, Format::Yaml, &whole, &Anything) {
                refused.push(problems.to_string());
            }
        }
    }
    assert!(refused.is_empty(), "{} of {seen} examples are refused:\n{}", refused.len(), refused.join("\n"));
    println!("{seen} examples");
}

/// The cells of each row of the tables in the section of `docs/checks.md` of this title, whatever follows a colon.
fn table(document: &str, title: &str) -> Vec<Vec<String>> {
    let section =
        document.split("\n## ").find(|s| s.lines().next().unwrap().split(':').next() == Some(title));
    let rows = section.unwrap_or_default().lines().filter_map(|line| line.strip_prefix("| "));
    // A bar that is escaped is part of a cell.
    let cells =
        |row: &str| row.replace("\\|", "\u{1}").split('|').map(|cell| cell.trim().to_owned()).collect();
    rows.map(cells).collect()
}

#[test]
fn the_page_of_checks_lists_every_key_with_its_default() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let document = std::fs::read_to_string(root.join("docs/checks.md")).unwrap();
    let (mut seen, mut wrong) = (0, Vec::new());
    for row in config::reference::keys().lines() {
        let cells: Vec<&str> = row.split(" | ").collect();
        let Some(path) = cells[0].strip_prefix("| `checks[].").map(|p| p.trim_end_matches('`')) else {
            continue;
        };
        let default = cells[2].trim_matches(['`', '*']);
        let (section, key) = match path.split_once('.') {
            // Its keys are told as those of the section.
            None if cells[1] == "section" => continue,
            None => ("Keys of every check", path),
            Some((kind, key)) => (kind, key.split('.').next().unwrap()),
        };
        seen += 1;
        let named = format!("`{key}`");
        let rows = table(&document, section);
        let row = rows.iter().find(|cells| cells[0].contains(&named)).or_else(|| {
            // Keys that mean what they mean elsewhere are named together.
            rows.iter().find(|cells| cells.iter().any(|cell| cell.contains(&named)))
        });
        match row {
            None => wrong.push(format!("{section}: `{key}` is not there")),
            Some(cells) if cells[0] == named && !default.is_empty() => {
                let told = cells[1].trim_matches(['`', '*']);
                // One that is told in words, or as a number without its unit of zero.
                if told != default && !(told.contains(default) || default == "0s" && told == "0") {
                    wrong.push(format!("{section}: `{key}` is {default} by default, and not {told}"));
                }
            }
            Some(_) => {}
        }
    }
    assert!(seen > 80, "only {seen} keys");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
