//! The reference of every key and the JSON Schema, made from the declarations of the sections.

use std::fmt::Write as _;
use std::sync::OnceLock;

use serde_json::Value;
use standfast_core::spelling::closest;

use super::file::Root;
use super::read::{Key, Presence, Read};

/// The JSON Schema (2020-12) of the file.
pub fn schema() -> Value {
    let mut schema = Root::schema();
    if let Some(object) = schema.as_object_mut() {
        object.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
        object.insert("title".into(), "standfast configuration, schema v1".into());
    }
    schema
}

/// A Markdown table of every key.
pub fn keys() -> String {
    let mut out = String::from("| key | type | default | meaning |\n| --- | --- | --- | --- |\n");
    rows(&Root::keys(), "", &mut Vec::new(), &mut out);
    out
}

/// `told` are the sections that were told already, by their keys, and where.
fn rows(keys: &[Key], path: &str, told: &mut Vec<(Vec<&'static str>, String)>, out: &mut String) {
    for key in keys {
        let path = if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) };
        let default = match key.presence {
            Presence::Required => "**required**".to_owned(),
            Presence::Optional => String::new(),
            Presence::Default(text) => format!("`{text}`"),
            Presence::Ignored => "no effect".to_owned(),
            Presence::Unavailable => "not available yet".to_owned(),
        };
        let kind = match key.presence {
            Presence::Ignored | Presence::Unavailable => "",
            _ => &key.kind,
        };
        let list = if key.kind.starts_with("list of") { "[]" } else { "" };
        let below: Vec<&str> = key.keys.iter().map(|k| k.name).collect();
        let same = told.iter().find(|(keys, _)| *keys == below && below.len() > LONG);
        let doc = key.doc.trim().replace('|', "\\|");
        let doc = same.map_or(doc.clone(), |(_, first)| format!("{doc} Its keys are those of `{first}`."));
        // Writing to a String never fails.
        let _ = writeln!(out, "| `{path}` | {} | {default} | {doc} |", kind.replace('|', "\\|"));
        if same.is_none() {
            let path = format!("{path}{list}");
            told.push((below, path.clone()));
            rows(&key.keys, &path, told, out);
        }
    }
}

/// A section of more keys than this is told once.
const LONG: usize = 10;

/// Where a key belongs that is not known at `path`: its name and its section. The section nearest to `path` wins.
pub(super) fn home(key: &str, path: &str) -> Option<(&'static str, &'static str)> {
    static ALL: OnceLock<Vec<(&'static str, String)>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let mut all = Vec::new();
        homes(&Root::keys(), "", &mut all);
        all
    });
    let meant = closest(key, all.iter().map(|(name, _)| *name))?;
    let path: String = path.chars().filter(|c| !c.is_ascii_digit()).collect();
    let shared = |section: &str| section.split('.').zip(path.split('.')).take_while(|(a, b)| a == b).count();
    let nearest = all
        .iter()
        .filter(|(name, _)| *name == meant)
        .max_by_key(|(_, s)| (shared(s), std::cmp::Reverse(s.len())))?;
    Some((nearest.0, nearest.1.as_str()))
}

fn homes(keys: &[Key], path: &str, all: &mut Vec<(&'static str, String)>) {
    for key in keys.iter().filter(|k| k.presence != Presence::Unavailable) {
        all.push((key.name, path.to_owned()));
        let list = if key.kind.starts_with("list of") { "[]" } else { "" };
        let dot = if path.is_empty() { "" } else { "." };
        homes(&key.keys, &format!("{path}{dot}{}{list}", key.name), all);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Format, tree};
    use super::*;
    use std::path::{Path, PathBuf};

    /// A file as a validator of JSON sees it.
    fn document(path: &Path) -> Option<Value> {
        let text = std::fs::read_to_string(path).unwrap();
        let node = match Format::of(path)? {
            Format::Yaml => tree::yaml(&text).ok()?,
            Format::Toml => tree::toml(&text).ok()?,
        };
        Some(to_json(&node))
    }

    fn to_json(node: &tree::Node) -> Value {
        match &node.value {
            tree::Value::Null => Value::Null,
            tree::Value::Scalar(s) if s.plain => serde_json::from_str(&s.text)
                .ok()
                .filter(|v: &Value| !v.is_array() && !v.is_object())
                .unwrap_or_else(|| Value::from(s.text.as_str())),
            tree::Value::Scalar(s) => Value::from(s.text.as_str()),
            tree::Value::List(items) => items.iter().map(to_json).collect(),
            tree::Value::Map(entries) => entries
                .iter()
                .map(|e| (e.key.clone(), to_json(&e.node)))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        }
    }

    fn files(directory: &str) -> Vec<PathBuf> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
        let entries = std::fs::read_dir(directory).unwrap().map(|e| e.unwrap().path());
        let files: Vec<_> = entries.filter(|p| Format::of(p).is_some()).collect();
        assert!(!files.is_empty());
        files
    }

    #[test]
    fn a_key_in_the_wrong_section_is_led_home() {
        assert_eq!(home("timeout", "vips[3].check.http"), Some(("timeout", "vips[].check")));
        assert_eq!(home("hold_tme", "router"), Some(("hold_time", "bgp")));
        assert_eq!(home("neighbours", ""), Some(("neighbors", "bgp")));
        assert_eq!(home("banana", ""), None);
    }

    #[test]
    fn the_schema_accepts_what_the_program_accepts() {
        let validator = jsonschema::draft202012::new(&schema()).unwrap();
        // A bare placeholder begins with %, which only our own reader takes.
        let plain = |p: &PathBuf| !std::fs::read_to_string(p).unwrap().contains(": %{");
        for path in files("../../examples").into_iter().chain(files("tests/config/good")).filter(plain) {
            let document = document(&path).unwrap();
            let errors: Vec<String> =
                validator.iter_errors(&document).map(|e| format!("{}: {e}", e.instance_path())).collect();
            assert!(errors.is_empty(), "{}: {errors:#?}", path.display());
        }
    }

    #[test]
    fn the_schema_rejects_what_is_wrong_in_structure() {
        let validator = jsonschema::draft202012::new(&schema()).unwrap();
        let mut seen = 0;
        for path in files("tests/config/broken") {
            if std::fs::read_to_string(&path).unwrap().starts_with("# The schema rejects this too.") {
                seen += 1;
                assert!(!validator.is_valid(&document(&path).unwrap()), "{} is valid", path.display());
            }
        }
        assert!(seen >= 10, "only {seen} files");
    }

    #[test]
    fn every_default_reads_as_its_own_type() {
        fn walk(keys: &[Key], seen: &mut usize) {
            for key in keys {
                if let Presence::Default(text) = key.presence {
                    let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
                    let validator = jsonschema::draft202012::new(&key.schema).unwrap();
                    assert!(validator.is_valid(&value), "default of {}: {value}", key.name);
                    *seen += 1;
                }
                walk(&key.keys, seen);
            }
        }
        let mut seen = 0;
        walk(&Root::keys(), &mut seen);
        assert!(seen > 40, "only {seen}");
    }

    #[test]
    fn the_reference_holds_every_key() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
        let text = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = text.split_once("<!-- keys: standfast schema --keys -->\n").unwrap();
        let (table, after) = rest.split_once("<!-- end of keys -->").unwrap();
        if std::env::var_os("GOLDEN").is_some_and(|v| v == "write") {
            let text = format!(
                "{before}<!-- keys: standfast schema --keys -->\n{}<!-- end of keys -->{after}",
                keys()
            );
            std::fs::write(&path, text).unwrap();
        } else {
            assert!(
                table == keys(),
                "docs/configuration.md is behind the declarations: run this test with GOLDEN=write"
            );
        }
    }
}
