//! Between JSON and a method's messages: the request that the operator wrote, and the answer that is judged.
//!
//! The mapping is protobuf's own (protobuf.dev/programming-guides/json): names in lowerCamelCase or as declared,
//! 64-bit integers as text, bytes in base64, and fields that are not sent left out. The order in a map is any.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use prost_reflect::prost::Message;
use prost_reflect::{
    DeserializeOptions, DynamicMessage, MessageDescriptor, ReflectMessage, SerializeOptions, Value,
};

/// How deep an answer may be nested, `Any`s included: each level is some stack.
const DEPTH: usize = 100;

/// The most octets of JSON that an answer may become: a number of one octet may stand for a long name.
const JSON_LIMIT: usize = 4 << 20;

/// How much of [`DEPTH`] an `Any` takes: each holds a copy of all that is within it.
const ANY: usize = 10;

/// The types of a unary method.
#[derive(Debug, Clone)]
pub(super) struct Method {
    pub(super) input: MessageDescriptor,
    pub(super) output: MessageDescriptor,
}

impl Method {
    /// The message that `json` is.
    pub(super) fn encode(&self, json: &str) -> Result<Vec<u8>, String> {
        let mut reader = serde_json::Deserializer::from_str(json);
        let options = DeserializeOptions::new().deny_unknown_fields(true);
        let message = DynamicMessage::deserialize_with_options(self.input.clone(), &mut reader, &options);
        let message = message.and_then(|message| reader.end().map(|()| message));
        let wrong = |e: serde_json::Error| {
            format!("this is no {}: {}", self.input.full_name(), without_values(&e.to_string()))
        };
        let message = message.map_err(wrong)?;
        Ok(message.encode_to_vec())
    }

    /// The JSON that `message` is, at most [`JSON_LIMIT`] octets. Stops when it is `abandoned`.
    pub(super) fn decode(&self, message: &[u8], abandoned: &AtomicBool) -> Result<Vec<u8>, String> {
        let wrong = |e: String| format!("the answer is no {}: {e}", self.output.full_name());
        let mut dynamic = DynamicMessage::new(self.output.clone());
        dynamic.merge(message).map_err(|e| wrong(e.to_string()))?;
        bounded(&dynamic, DEPTH).map_err(wrong)?;
        let mut json = Json { octets: Vec::new(), abandoned };
        let mut writer = serde_json::Serializer::new(&mut json);
        let written = dynamic.serialize_with_options(&mut writer, &SerializeOptions::new());
        // The writer's own errors are all about the bounds of it.
        written.map_err(|e| if e.is_io() { e.to_string() } else { wrong(e.to_string()) })?;
        Ok(json.octets)
    }
}

/// Takes JSON up to [`JSON_LIMIT`], and none when it is abandoned.
struct Json<'a> {
    octets: Vec<u8>,
    abandoned: &'a AtomicBool,
}

impl io::Write for Json<'_> {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        if self.abandoned.load(Ordering::Relaxed) {
            return Err(io::Error::other("the answer took too long to become JSON"));
        }
        if part.len() > JSON_LIMIT - self.octets.len() {
            return Err(io::Error::other(format!("the answer as JSON is longer than {JSON_LIMIT} bytes")));
        }
        self.octets.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is wrong with a request, without the values in it: one may be a password.
fn without_values(reason: &str) -> String {
    let mut out = reason.to_owned();
    for quote in ['"', '`'] {
        if let (Some(first), Some(last)) = (out.find(quote), out.rfind(quote)) {
            out.replace_range(first..=last, "");
        }
    }
    if let (true, Some(last)) = (out.starts_with("unrecognized enum value '"), out.rfind('\'')) {
        out.replace_range("unrecognized enum value ".len() - 1..=last, "");
    }
    out.replace(" ,", ",")
}

/// Whether `message` is nested at most this deep, what its `Any`s hold included: decoding bounds each of them alone.
fn bounded(message: &DynamicMessage, depth: usize) -> Result<(), String> {
    let depth = depth.checked_sub(1).ok_or("it is nested too deep")?;
    let descriptor = message.descriptor();
    if descriptor.full_name() == "google.protobuf.Any" {
        let url = message.get_field_by_name("type_url");
        let held = message.get_field_by_name("value");
        let (Some(url), Some(held)) = (url, held) else { return Ok(()) };
        let name = url.as_str().and_then(|url| url.rsplit('/').next()).unwrap_or_default();
        let Some(kind) = descriptor.parent_pool().get_message_by_name(name) else {
            let name: String = name.chars().take(100).collect();
            return Err(format!("it holds a google.protobuf.Any of {name:?}, which no descriptor defines"));
        };
        let mut inner = DynamicMessage::new(kind);
        let held = held.as_bytes().cloned().unwrap_or_default();
        inner.merge(held).map_err(|e| e.to_string())?;
        return bounded(&inner, depth.saturating_sub(ANY));
    }
    message.fields().try_for_each(|(_, value)| bounded_value(value, depth))
}

fn bounded_value(value: &Value, depth: usize) -> Result<(), String> {
    match value {
        Value::Message(message) => bounded(message, depth),
        Value::List(all) => all.iter().try_for_each(|value| bounded_value(value, depth)),
        Value::Map(all) => all.values().try_for_each(|value| bounded_value(value, depth)),
        _ => Ok(()),
    }
}
