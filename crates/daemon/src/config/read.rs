//! From the tree to typed sections: every key known, every value of its type, every problem collected.
//!
//! A section is a struct made by [`section!`]: one declaration gives the field, its default, its documentation, the JSON
//! Schema and the check for unknown keys, so none of them can disagree. Reading never stops at the first problem: a value
//! that is wrong is reported and reads as absent, or as its default.

use std::ops::Range;

use serde_json::{Map as Json, Value as JsonValue, json};
use standfast_core::spelling::closest;

use super::problem::Severity;
use super::tree::{Entry, Node, Scalar, Value};

/// A value with its path and place.
#[derive(Debug, Clone)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) path: String,
    pub(crate) place: Range<usize>,
    /// Where the value's text begins in the file, if it stands there letter for letter.
    pub(crate) verbatim: Option<usize>,
}

impl<T> At<T> {
    pub(crate) fn new(value: T, node: &Node, path: &str) -> Self {
        let verbatim = match &node.value {
            Value::Scalar(s) if !s.foreign => s.verbatim,
            _ => None,
        };
        Self { value, path: path.to_owned(), place: node.place.clone(), verbatim }
    }
}

impl<T> At<T> {
    /// The place alone.
    pub(crate) fn whole(&self) -> At<()> {
        At { value: (), path: self.path.clone(), place: self.place.clone(), verbatim: self.verbatim }
    }
}

impl<T> std::ops::Deref for At<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

/// A problem before it knows its file.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    pub(crate) path: String,
    pub(crate) place: Option<Range<usize>>,
    pub(crate) message: String,
    pub(crate) help: Option<String>,
    pub(crate) note: Option<(Range<usize>, String)>,
}

impl Finding {
    pub(crate) fn help(&mut self, help: impl Into<String>) -> &mut Self {
        self.help = Some(help.into());
        self
    }

    pub(crate) fn note(&mut self, place: &Range<usize>, word: impl Into<String>) -> &mut Self {
        self.note = Some((place.clone(), word.into()));
        self
    }
}

/// Everything found so far.
#[derive(Debug, Default)]
pub(crate) struct Findings(pub(crate) Vec<Finding>);

impl Findings {
    fn add(
        &mut self,
        severity: Severity,
        path: &str,
        place: Option<Range<usize>>,
        message: String,
    ) -> &mut Finding {
        let finding = Finding { severity, path: path.to_owned(), place, message, help: None, note: None };
        // A hostile file cannot fill the memory; whatever comes after this many replaces the last one.
        if self.0.len() == MAX_FINDINGS {
            self.0.pop();
        }
        self.0.push(finding);
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    pub(crate) fn at(
        &mut self,
        path: &str,
        place: &Range<usize>,
        message: impl Into<String>,
    ) -> &mut Finding {
        self.add(Severity::Error, path, Some(place.clone()), message.into())
    }

    /// An error about the whole of `what`.
    pub(crate) fn error<T>(&mut self, what: &At<T>, message: impl Into<String>) -> &mut Finding {
        self.at(&what.path, &what.place, message)
    }

    /// An error about a part of the text of `what`.
    pub(crate) fn error_in<T>(
        &mut self,
        what: &At<T>,
        part: Range<usize>,
        message: impl Into<String>,
    ) -> &mut Finding {
        let place = what.verbatim.map_or(what.place.clone(), |start| start + part.start..start + part.end);
        self.at(&what.path, &place, message)
    }

    pub(crate) fn warn<T>(&mut self, what: &At<T>, message: impl Into<String>) -> &mut Finding {
        self.add(Severity::Warning, &what.path, Some(what.place.clone()), message.into())
    }

    /// Whether anything below `path` was reported.
    pub(crate) fn under(&self, path: &str) -> bool {
        self.0.iter().any(|f| f.path.starts_with(path))
    }

    pub(crate) fn errors(&self) -> usize {
        self.0.iter().filter(|f| f.severity == Severity::Error).count()
    }
}

/// Something that a value of the file can be read as.
pub(crate) trait Read: Sized {
    /// Reads it, or reports why not.
    fn read(node: &Node, path: &str, out: &mut Findings) -> Option<Self>;
    /// Its JSON Schema.
    fn schema() -> JsonValue;
    /// Its type in words, for the reference.
    fn kind() -> String;
    /// Its own keys, if it is a section or a list of sections.
    fn keys() -> Vec<Key> {
        Vec::new()
    }
    /// Whether an empty text means that the key is not given.
    const EMPTY_IS_ABSENT: bool = false;
}

/// A key of a section, for the reference and the schema.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) presence: Presence,
    pub(crate) kind: String,
    pub(crate) schema: JsonValue,
    pub(crate) keys: Vec<Key>,
}

/// Whether a key must, can or cannot be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    Required,
    Optional,
    Default(&'static str),
    /// Known, and without effect.
    Ignored,
    /// Known, and refused.
    Unavailable,
}

/// Why a scalar's text is not a value of a type. The text itself is put before the message.
pub(crate) struct Complaint {
    pub(crate) message: String,
    pub(crate) help: Option<String>,
}

impl Complaint {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), help: None }
    }

    pub(crate) fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

/// A value written as one word.
pub(crate) trait FromText: Sized {
    /// What it is called in messages: "a duration such as 500ms, 5s or 1m30s".
    const WHAT: &'static str;
    /// Whether an unquoted word of the file's own types (number, boolean) is meant, so that quotes are a mistake.
    const BARE: bool = false;
    /// See [`Read::EMPTY_IS_ABSENT`].
    const EMPTY_IS_ABSENT: bool = false;
    /// Whether messages must never quote it.
    const SECRET: bool = false;
    fn from_text(text: &str) -> Result<Self, Complaint>;
    fn text_schema() -> JsonValue;
    fn text_kind() -> String;
}

impl<T: FromText> Read for T {
    const EMPTY_IS_ABSENT: bool = T::EMPTY_IS_ABSENT;

    fn read(node: &Node, path: &str, out: &mut Findings) -> Option<Self> {
        let Value::Scalar(scalar) = &node.value else {
            out.at(path, &node.place, format!("expected {}, found {}", T::WHAT, node.value.what()));
            return None;
        };
        if scalar.failed {
            return None;
        }
        if T::BARE && !scalar.plain && !scalar.foreign {
            let bare = T::from_text(&scalar.text).is_ok();
            let finding = out.at(path, &node.place, format!("expected {}, found a text", T::WHAT));
            if bare {
                finding.help("leave the quotes away");
            }
            return None;
        }
        match T::from_text(&scalar.text) {
            Ok(value) => Some(value),
            Err(complaint) => {
                let what = quote(scalar, T::SECRET);
                let finding = out.at(path, &node.place, format!("{what} {}", complaint.message));
                finding.help = complaint.help;
                None
            }
        }
    }

    fn schema() -> JsonValue {
        T::text_schema()
    }

    fn kind() -> String {
        T::text_kind()
    }
}

/// A scalar as a message may show it.
fn quote(scalar: &Scalar, secret: bool) -> String {
    let shown: String = scalar.shown.chars().take(80).collect();
    if secret {
        "this secret".into()
    } else if scalar.foreign {
        format!("the value of `{shown}`")
    } else if scalar.text.is_empty() {
        "an empty text".into()
    } else if shown.len() < scalar.shown.len() {
        format!("`{shown}…`")
    } else {
        format!("`{shown}`")
    }
}

impl Value {
    fn what(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Scalar(_) => "a single value",
            Self::List(_) => "a list",
            Self::Map(_) => "a section with keys",
        }
    }
}

/// A list, each item with its place.
impl<T: Read> Read for Vec<At<T>> {
    fn read(node: &Node, path: &str, out: &mut Findings) -> Option<Self> {
        let Value::List(items) = &node.value else {
            let finding = out.at(path, &node.place, format!("expected a list, found {}", node.value.what()));
            finding.help("write [a, b], or one item per line with `- ` before each");
            return None;
        };
        let mut list = Self::new();
        for (i, item) in items.iter().enumerate() {
            let path = format!("{path}[{i}]");
            if let Some(value) = T::read(item, &path, out) {
                list.push(At::new(value, item, &path));
            }
        }
        Some(list)
    }

    fn schema() -> JsonValue {
        json!({ "type": "array", "items": T::schema() })
    }

    fn kind() -> String {
        format!("list of {}", T::kind())
    }

    fn keys() -> Vec<Key> {
        T::keys()
    }
}

/// Names and texts, in the order of the file.
pub(crate) struct Pairs(pub(crate) Vec<(At<String>, At<String>)>);

impl Read for Pairs {
    fn read(node: &Node, path: &str, out: &mut Findings) -> Option<Self> {
        let entries = entries(node, path, out)?;
        let mut pairs = Vec::new();
        for entry in entries {
            let path = format!("{path}.{}", entry.key);
            let name = At {
                value: entry.key.clone(),
                path: path.clone(),
                place: entry.place.clone(),
                verbatim: None,
            };
            if let Some(value) = super::value::Text::read(&entry.node, &path, out) {
                pairs.push((name, At::new(value.0, &entry.node, &path)));
            }
        }
        Some(Self(pairs))
    }

    fn schema() -> JsonValue {
        json!({ "type": "object", "additionalProperties": { "type": ["string", "number", "boolean"] } })
    }

    fn kind() -> String {
        "name: text".into()
    }
}

/// Any value at all.
pub(crate) struct Anything;

impl Read for Anything {
    fn read(_: &Node, _: &str, _: &mut Findings) -> Option<Self> {
        Some(Self)
    }

    fn schema() -> JsonValue {
        json!({})
    }

    fn kind() -> String {
        "anything".into()
    }
}

/// The entries of a section; an empty value is an empty section.
fn entries<'n>(node: &'n Node, path: &str, out: &mut Findings) -> Option<&'n [Entry]> {
    match &node.value {
        Value::Map(entries) => Some(entries),
        Value::Null => Some(&[]),
        other => {
            out.at(path, &node.place, format!("expected a section with keys, found {}", other.what()));
            None
        }
    }
}

/// A section while it is read, field by field.
pub(crate) struct Fields<'n, 'o> {
    entries: &'n [Entry],
    path: String,
    place: Range<usize>,
    out: &'o mut Findings,
}

impl<'n, 'o> Fields<'n, 'o> {
    /// Opens a section whose keys are `known`, and reports every other key.
    pub(crate) fn open(node: &'n Node, path: &str, known: &[&str], out: &'o mut Findings) -> Option<Self> {
        let entries = entries(node, path, out)?;
        let fields = Self { entries, path: path.to_owned(), place: node.place.clone(), out };
        // Next to a type, the section of that type is the nearest.
        let kind = fields.find("type").and_then(|e| match &e.node.value {
            Value::Scalar(kind) => known.iter().find(|k| **k == kind.text),
            _ => None,
        });
        let near = kind.map_or_else(|| path.to_owned(), |kind| fields.join(kind));
        for entry in entries.iter().filter(|e| !known.contains(&e.key.as_str())) {
            let message = format!("unknown key `{}`", entry.key);
            let finding = fields.out.at(&fields.join(&entry.key), &entry.place, message);
            match closest(&entry.key, known.iter().copied()) {
                Some(meant) => finding.help(format!("did you mean `{meant}`?")),
                None => match super::reference::home(&entry.key, &near) {
                    Some((meant, "")) => finding.help(format!("`{meant}` belongs at the top of the file")),
                    Some((meant, section)) => finding.help(format!("`{meant}` belongs in `{section}`")),
                    None => finding.help(format!("the keys here are: {}", known.join(", "))),
                },
            };
        }
        Some(fields)
    }

    fn join(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn find(&self, key: &str) -> Option<&'n Entry> {
        self.entries.iter().find(|e| e.key == key)
    }

    fn given<T: Read>(&mut self, key: &str) -> Option<Option<At<T>>> {
        let node = &self.find(key)?.node;
        match &node.value {
            Value::Null if T::keys().is_empty() => return None,
            Value::Scalar(s) if s.text.is_empty() && !s.failed && T::EMPTY_IS_ABSENT => return None,
            _ => {}
        }
        let path = self.join(key);
        Some(T::read(node, &path, self.out).map(|value| At::new(value, node, &path)))
    }

    /// A key that must be given. `None`: reported.
    pub(crate) fn required<T: Read>(&mut self, key: &str) -> Option<At<T>> {
        self.given(key).unwrap_or_else(|| {
            let section =
                if self.path.is_empty() { "the file".to_owned() } else { format!("`{}`", self.path) };
            let path = self.path.clone();
            let place = self.find(key).map_or(self.place.clone(), |e| e.place.clone());
            self.out.at(&path, &place, format!("`{key}` is missing: {section} needs it"));
            None
        })
    }

    /// A key that may be given. `None`: not given, or reported.
    pub(crate) fn optional<T: Read>(&mut self, key: &str) -> Option<At<T>> {
        self.given(key).flatten()
    }

    /// A key with a default, which is read just like what a file says.
    pub(crate) fn default<T: Read>(&mut self, key: &str, default: &str) -> Option<At<T>> {
        if let Some(Some(value)) = self.given(key) {
            return Some(value);
        }
        let scalar = Scalar { text: default.into(), shown: default.into(), plain: true, ..Scalar::default() };
        let node = Node { place: self.place.clone(), value: Value::Scalar(scalar) };
        let path = self.join(key);
        T::read(&node, &path, self.out).map(|value| At { verbatim: None, ..At::new(value, &node, &path) })
    }

    /// A section all of whose keys can be left away.
    pub(crate) fn section<T: Read>(&mut self, key: &str) -> Option<At<T>> {
        if let Some(given) = self.given(key) {
            return given;
        }
        let node = Node { place: self.place.clone(), value: Value::Null };
        let path = self.join(key);
        T::read(&node, &path, self.out).map(|value| At::new(value, &node, &path))
    }

    /// A key that is known and has no effect.
    pub(crate) fn ignored(&mut self, key: &str, why: &str) {
        if let Some(entry) = self.find(key) {
            let at = At { value: (), path: self.join(key), place: entry.place.clone(), verbatim: None };
            self.out.warn(&at, format!("`{key}` has no effect: {why}"));
        }
    }

    /// A key that is known and refused.
    pub(crate) fn unavailable(&mut self, key: &str, why: &str) {
        if let Some(entry) = self.find(key) {
            let path = self.join(key);
            self.out.at(&path, &entry.place, format!("`{key}` is not available in this version")).help(why);
        }
    }
}

/// The JSON Schema of a section with these keys.
pub(crate) fn object_schema(keys: &[Key]) -> JsonValue {
    let mut properties = Json::new();
    let mut required = Vec::new();
    for key in keys {
        if key.presence == Presence::Unavailable {
            continue;
        }
        let mut schema = key.schema.clone();
        if let Some(object) = schema.as_object_mut() {
            object.insert("description".into(), key.doc.trim().into());
            if let Presence::Default(text) = key.presence {
                let value = serde_json::from_str(text).unwrap_or_else(|_| JsonValue::from(text));
                object.insert("default".into(), value);
            }
        }
        if key.presence == Presence::Required {
            required.push(key.name);
        } else {
            nullable(&mut schema);
        }
        properties.insert(key.name.into(), schema);
    }
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// Lets a key stand without a value, which is as if it were not there.
fn nullable(schema: &mut JsonValue) {
    let null = || json!({ "type": "null" });
    if let Some(any) = schema.get_mut("anyOf").and_then(JsonValue::as_array_mut) {
        any.push(null());
    } else if let Some(one) = schema.get_mut("type") {
        let mut types = one.as_array().cloned().unwrap_or_else(|| vec![one.take()]);
        types.push("null".into());
        *one = types.into();
    }
}

const MAX_FINDINGS: usize = 1000;

/// Declares a section of the file: its struct, how it is read, its reference and its JSON Schema.
///
/// ```text
/// section! {
///     /// What the section is.
///     Name {
///         /// What the key is.
///         key: required Type;               // Option<At<Type>>: `None` was reported
///         key: optional Type;               // Option<At<Type>>
///         key: default Type = "text";       // Option<At<Type>>: `None` was reported
///         key: section Type;                // Option<At<Type>>: `None` was reported
///         key: ignored "why";               // ()
///         key: unavailable "what to do";    // ()
///     }
/// }
/// ```
macro_rules! section {
    ($(#[doc = $about:literal])+ $name:ident {
        $($(#[doc = $doc:literal])+ $field:ident : $mode:ident $($ty:path)? $([$list:ty])? $(= $default:literal)? $(, $why:literal)?;)*
    }) => {
        $(#[doc = $about])+
        // Some keys are only read, to be checked.
        #[allow(dead_code)]
        pub(crate) struct $name {
            $(pub(crate) $field: section!(@type $mode $($ty)? $([$list])?),)*
        }

        impl crate::config::read::Read for $name {
            fn read(
                node: &crate::config::tree::Node,
                path: &str,
                out: &mut crate::config::read::Findings,
            ) -> Option<Self> {
                let known = [$(section!(@name $field)),*];
                let mut fields = crate::config::read::Fields::open(node, path, &known, out)?;
                Some(Self {
                    $($field: section!(@read fields $mode section!(@name $field), $($default)? $($why)?),)*
                })
            }

            fn schema() -> serde_json::Value {
                crate::config::read::object_schema(&Self::keys())
            }

            fn kind() -> String {
                "section".into()
            }

            fn keys() -> Vec<crate::config::read::Key> {
                vec![$(crate::config::read::Key {
                    name: section!(@name $field),
                    doc: concat!($($doc),+),
                    presence: section!(@presence $mode $($default)?),
                    kind: <section!(@inner $($ty)? $([$list])?) as crate::config::read::Read>::kind(),
                    schema: <section!(@inner $($ty)? $([$list])?) as crate::config::read::Read>::schema(),
                    keys: <section!(@inner $($ty)? $([$list])?) as crate::config::read::Read>::keys(),
                }),*]
            }
        }
    };
    (@name $field:ident) => {{
        // A field that is a word of Rust is written r#type.
        let name: &'static str = stringify!($field);
        match name.strip_prefix("r#") { Some(bare) => bare, None => name }
    }};
    (@type ignored) => { () };
    (@type unavailable) => { () };
    (@type $mode:ident $ty:path) => { Option<crate::config::read::At<$ty>> };
    (@type $mode:ident [$list:ty]) => { Option<crate::config::read::At<Vec<crate::config::read::At<$list>>>> };
    (@inner) => { crate::config::read::Anything };
    (@inner $ty:path) => { $ty };
    (@inner [$list:ty]) => { Vec<crate::config::read::At<$list>> };
    (@read $fields:ident $mode:ident $name:expr, $($text:literal)?) => { $fields.$mode($name $(, $text)?) };
    (@presence required) => { crate::config::read::Presence::Required };
    (@presence optional) => { crate::config::read::Presence::Optional };
    (@presence section) => { crate::config::read::Presence::Optional };
    (@presence default $text:literal) => { crate::config::read::Presence::Default($text) };
    (@presence ignored) => { crate::config::read::Presence::Ignored };
    (@presence unavailable) => { crate::config::read::Presence::Unavailable };
}
pub(crate) use section;
