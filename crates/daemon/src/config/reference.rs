//! The reference of every key and the JSON Schema, made from the declarations of the sections.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::file::Root;
use super::read::{Key, Presence, Read};

/// The JSON Schema (2020-12) of the file.
pub fn schema() -> Value {
    let mut schema = Root::schema();
    if let Some(object) = schema.as_object_mut() {
        object.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
        object.insert("title".into(), "standfast configuration, schema v1".into());
        // A key may be left without a value; merge keys of YAML are gone before a validator sees them.
        object.insert("type".into(), json!("object"));
    }
    schema
}

/// A Markdown table of every key.
pub fn keys() -> String {
    let mut out = String::from("| key | type | default | meaning |\n| --- | --- | --- | --- |\n");
    rows(&Root::keys(), "", &mut out);
    out
}

fn rows(keys: &[Key], path: &str, out: &mut String) {
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
        let doc = key.doc.trim().replace('|', "\\|");
        // Writing to a String never fails.
        let _ = writeln!(out, "| `{path}` | {} | {default} | {doc} |", kind.replace('|', "\\|"));
        let path = if key.kind.starts_with("list of") { format!("{path}[]") } else { path };
        rows(&key.keys, &path, out);
    }
}
