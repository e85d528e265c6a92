//! A value in JSON: written as a section, or as a text.

use std::ops::Range;

use serde_json::{Value as JsonValue, json};

use super::super::read::{Findings, Read};
use super::super::tree::{Node, Scalar, Value};

/// A value in JSON.
#[derive(Debug, Clone)]
pub(crate) struct Json {
    /// The value itself.
    pub(crate) text: String,
    /// Where the keys of a section stand; none for a text.
    keys: Vec<(String, Range<usize>)>,
}

impl Json {
    /// Whether it is written as a section, so that lines and columns of `text` mean nothing to its author.
    pub(crate) fn is_section(&self) -> bool {
        !self.keys.is_empty()
    }

    /// The place of the first key of this name.
    pub(crate) fn key(&self, name: &str) -> Option<&Range<usize>> {
        self.keys.iter().find(|(key, _)| key == name).map(|(_, place)| place)
    }
}

impl Read for Json {
    fn read(node: &Node, path: &str, out: &mut Findings) -> Option<Self> {
        let mut keys = Vec::new();
        match &node.value {
            Value::Null => None,
            Value::Scalar(scalar) if scalar.failed => None,
            Value::Scalar(scalar) if scalar.text.is_empty() => None,
            Value::Scalar(scalar) => match serde_json::from_str::<JsonValue>(&scalar.text) {
                Ok(_) => Some(Self { text: scalar.text.clone(), keys }),
                Err(e) => {
                    let at = offset(&scalar.text, e.line(), e.column());
                    let place =
                        scalar.verbatim.map_or(node.place.clone(), |start| start + at..start + at + 1);
                    let mut reason = e.to_string();
                    if scalar.verbatim.is_some() {
                        reason.truncate(reason.find(" at line ").unwrap_or(reason.len()));
                    }
                    out.at(path, &place, format!("this is not JSON: {reason}"))
                        .help("write the fields as keys of a section, or a whole JSON object as a text");
                    None
                }
            },
            Value::List(_) | Value::Map(_) => {
                let value = value(node, &mut keys)?;
                Some(Self { text: value.to_string(), keys })
            }
        }
    }

    fn schema() -> JsonValue {
        json!({ "type": ["object", "array", "string"] })
    }

    fn kind() -> String {
        "JSON, or a section".into()
    }
}

/// The value of a node; `None` if a placeholder in it could not be filled in, which is reported.
fn value(node: &Node, keys: &mut Vec<(String, Range<usize>)>) -> Option<JsonValue> {
    Some(match &node.value {
        Value::Null => JsonValue::Null,
        Value::Scalar(scalar) if scalar.failed => return None,
        Value::Scalar(Scalar { text, plain: true, .. }) => match serde_json::from_str(text) {
            Ok(value @ (JsonValue::Bool(_) | JsonValue::Number(_))) => value,
            _ => JsonValue::String(text.clone()),
        },
        Value::Scalar(scalar) => JsonValue::String(scalar.text.clone()),
        Value::List(all) => all.iter().map(|node| value(node, keys)).collect::<Option<_>>()?,
        Value::Map(entries) => {
            let mut object = serde_json::Map::new();
            for entry in entries {
                keys.push((entry.key.clone(), entry.place.clone()));
                object.insert(entry.key.clone(), value(&entry.node, keys)?);
            }
            JsonValue::Object(object)
        }
    })
}

/// The byte offset of a line and column, both from 1, within `text`.
fn offset(text: &str, line: usize, column: usize) -> usize {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    (before + column.saturating_sub(1)).min(text.len().saturating_sub(1))
}
