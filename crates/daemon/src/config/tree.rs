//! One tree for YAML, JSON and TOML, every scalar and key with its place in the file.
//!
//! Scalars keep their text: what a value means is decided by the key that reads it, so `no`, `010` or `1.10` are
//! never anything but what is written. The tree is bounded in depth and in nodes, aliases counted as often as they are used.

use std::collections::BTreeMap;
use std::ops::Range;

use granit_parser::{Event, Options, Parser, ScalarStyle};
use toml::de::{DeTable, DeValue};

/// A value with its place.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// What to underline: the scalar's token, or the key or first token of a collection.
    pub(crate) place: Range<usize>,
    pub(crate) value: Value,
}

#[derive(Debug, Clone)]
pub(crate) enum Value {
    Null,
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A scalar as it is written, and what it is worth.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scalar {
    /// The value.
    pub(crate) text: String,
    /// The value as messages may quote it: placeholders as they are written.
    pub(crate) shown: String,
    /// Whether it stands without quotes, so that it can be a number or a boolean.
    pub(crate) plain: bool,
    /// Whether a placeholder gave part of it; then quotes do not matter and `text` must not be printed.
    pub(crate) foreign: bool,
    /// Whether a placeholder of it could not be filled in, which is reported; there is no value then.
    pub(crate) failed: bool,
    /// Where the value begins in the file, if it stands there letter for letter.
    pub(crate) verbatim: Option<usize>,
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) place: Range<usize>,
    pub(crate) node: Node,
    /// Whether a merge key brought it, so that the section's own entry replaces it.
    merged: bool,
}

/// Why a text is no document, and where.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    pub(crate) place: Option<Range<usize>>,
    pub(crate) message: String,
    pub(crate) help: Option<&'static str>,
}

impl SyntaxError {
    fn at(place: Range<usize>, message: impl Into<String>) -> Self {
        Self { place: Some(place), message: message.into(), help: None }
    }

    fn help(self, help: &'static str) -> Self {
        Self { help: Some(help), ..self }
    }
}

/// Reads YAML 1.2, and so JSON.
pub(crate) fn yaml(text: &str) -> Result<Node, SyntaxError> {
    let mut options = Options::default();
    options.set_emit_comments(false);
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    let mut builder = Yaml { text, stack: Vec::new(), root: None, anchors: BTreeMap::new(), nodes: 0 };
    for next in Parser::new_from_str_with_options(text, options) {
        let (event, span) = next.map_err(|e| {
            let at = e.marker().byte_offset().unwrap_or(text.len());
            let help = if text[at.min(text.len())..].starts_with('\t')
                || text[..at.min(text.len())].ends_with('\t')
            {
                Some("YAML is indented with spaces, never with tabs")
            } else {
                None
            };
            SyntaxError { place: Some(at..at + 1), message: sentence(&e.info()), help }
        })?;
        let span = span.byte_range().unwrap_or(0..0);
        builder.event(event, span)?;
    }
    Ok(builder.root.unwrap_or(Node { place: 0..0, value: Value::Null }))
}

struct Yaml<'t> {
    text: &'t str,
    stack: Vec<Frame>,
    root: Option<Node>,
    anchors: BTreeMap<usize, (Node, usize)>,
    nodes: usize,
}

struct Frame {
    node: Node,
    key: Option<(String, Range<usize>)>,
    anchor: usize,
    nodes_before: usize,
    /// Whether a merge key brought entries.
    merged: bool,
}

impl Yaml<'_> {
    fn event(&mut self, event: Event<'_>, span: Range<usize>) -> Result<(), SyntaxError> {
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                Err(SyntaxError::at(span, "a second document begins here")
                    .help("the configuration is one document"))
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && tag.is_none();
                let value = if plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL") {
                    Value::Null
                } else {
                    let token = self.text.get(span.clone()).unwrap_or_default();
                    let verbatim = token.find(&*text).filter(|_| !text.is_empty()).map(|i| span.start + i);
                    Value::Scalar(Scalar { text: text.into_owned(), plain, verbatim, ..Scalar::default() })
                };
                self.complete(Node { place: span, value }, anchor, 1)
            }
            Event::SequenceStart(_, anchor, _) => self.open(Value::List(Vec::new()), span, anchor),
            Event::MappingStart(_, anchor, _) => self.open(Value::Map(Vec::new()), span, anchor),
            Event::SequenceEnd | Event::MappingEnd => match self.stack.pop() {
                Some(frame) => {
                    let nodes = self.nodes - frame.nodes_before;
                    self.complete(frame.node, frame.anchor, nodes)
                }
                None => Ok(()),
            },
            Event::Alias(id) => {
                let Some((node, nodes)) = self.anchors.get(&id) else {
                    return Err(SyntaxError::at(span, "an alias inside the very value that it names"));
                };
                let (node, nodes) = (node.clone(), *nodes);
                self.nodes += nodes;
                if self.nodes > MAX_NODES {
                    return Err(SyntaxError::at(
                        span,
                        format!("aliases make this document larger than {MAX_NODES} values"),
                    ));
                }
                self.complete(node, 0, nodes)
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self, value: Value, span: Range<usize>, anchor: usize) -> Result<(), SyntaxError> {
        if self.stack.len() >= MAX_DEPTH {
            return Err(SyntaxError::at(span, format!("values are nested deeper than {MAX_DEPTH}")));
        }
        let nodes_before = self.nodes;
        self.nodes += 1;
        self.stack.push(Frame {
            node: Node { place: span, value },
            key: None,
            anchor,
            nodes_before,
            merged: false,
        });
        Ok(())
    }

    /// Puts a whole node where it belongs.
    fn complete(&mut self, mut node: Node, anchor: usize, nodes: usize) -> Result<(), SyntaxError> {
        if matches!(node.value, Value::Scalar(_) | Value::Null) {
            self.nodes += 1;
        }
        if self.nodes > MAX_NODES {
            return Err(SyntaxError::at(
                node.place,
                format!("the document holds more than {MAX_NODES} values"),
            ));
        }
        node.place = first_token(&node);
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), nodes));
        }
        let Some(frame) = self.stack.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match &mut frame.node.value {
            Value::List(items) => items.push(node),
            Value::Map(entries) => match frame.key.take() {
                None => match node.value {
                    Value::Scalar(s) => frame.key = Some((s.text, node.place)),
                    _ => return Err(SyntaxError::at(node.place, "a key must be a word")),
                },
                Some((key, _)) if key == "<<" => {
                    frame.merged = true;
                    merge(entries, node)?;
                }
                Some((key, place)) => {
                    if frame.merged {
                        entries.retain(|e| !(e.merged && e.key == key));
                    }
                    entries.push(Entry {
                        key,
                        place: place.clone(),
                        node: under(node, place),
                        merged: false,
                    });
                }
            },
            Value::Null | Value::Scalar(_) => {}
        }
        Ok(())
    }
}

/// YAML's merge key: the entries of the mapping, or of each mapping of the list, that are not there yet.
fn merge(entries: &mut Vec<Entry>, node: Node) -> Result<(), SyntaxError> {
    match node.value {
        Value::Map(more) => {
            for entry in more {
                if !entries.iter().any(|e| e.key == entry.key) {
                    entries.push(Entry { merged: true, ..entry });
                }
            }
            Ok(())
        }
        Value::List(nodes) => nodes.into_iter().try_for_each(|n| merge(entries, n)),
        Value::Null | Value::Scalar(_) => {
            Err(SyntaxError::at(node.place, "`<<` takes a mapping, as in `<<: *name`"))
        }
    }
}

fn first_token(node: &Node) -> Range<usize> {
    match &node.value {
        Value::Map(entries) => entries.first().map_or(node.place.clone(), |e| e.place.clone()),
        Value::List(items) => items.first().map_or(node.place.clone(), |n| n.place.clone()),
        Value::Null | Value::Scalar(_) => node.place.clone(),
    }
}

/// A collection, and an empty value, is underlined by its key.
fn under(node: Node, key: Range<usize>) -> Node {
    match node.value {
        Value::Scalar(_) => node,
        Value::Null | Value::List(_) | Value::Map(_) => Node { place: key, ..node },
    }
}

/// A parser's message, with its limits in plain words.
fn sentence(message: &str) -> String {
    if message.contains("recursion") {
        "values are nested too deeply".into()
    } else {
        message.replace('\n', ", ")
    }
}

/// Reads TOML 1.1.
pub(crate) fn toml(text: &str) -> Result<Node, SyntaxError> {
    let table = DeTable::parse(text).map_err(|e| SyntaxError {
        place: e.span(),
        message: sentence(e.message()),
        help: None,
    })?;
    let span = table.span();
    let mut nodes = 0;
    toml_node(text, DeValue::Table(table.into_inner()), span, &mut nodes)
}

fn toml_node(
    text: &str,
    value: DeValue<'_>,
    span: Range<usize>,
    nodes: &mut usize,
) -> Result<Node, SyntaxError> {
    *nodes += 1;
    if *nodes > MAX_NODES {
        return Err(SyntaxError::at(span, format!("the document holds more than {MAX_NODES} values")));
    }
    let token = text.get(span.clone()).unwrap_or_default();
    let scalar = |s: String, plain| {
        let verbatim = token.find(&s).filter(|_| !s.is_empty()).map(|i| span.start + i);
        Value::Scalar(Scalar { text: s, plain, verbatim, ..Scalar::default() })
    };
    let value = match value {
        DeValue::String(s) => scalar(s.into_owned(), false),
        DeValue::Integer(i) => {
            let number = i128::from_str_radix(i.as_str(), i.radix());
            scalar(number.map_or_else(|_| i.as_str().to_owned(), |n| n.to_string()), true)
        }
        DeValue::Float(f) => scalar(f.as_str().to_owned(), true),
        DeValue::Boolean(b) => scalar(b.to_string(), true),
        DeValue::Datetime(d) => scalar(d.to_string(), true),
        DeValue::Array(items) => Value::List(
            items
                .into_iter()
                .map(|v| {
                    let span = v.span();
                    toml_node(text, v.into_inner(), span, nodes)
                })
                .collect::<Result<_, _>>()?,
        ),
        DeValue::Table(table) => {
            let mut entries = Vec::new();
            for (key, v) in table {
                let (place, span) = (key.span(), v.span());
                let node = toml_node(text, v.into_inner(), span, nodes)?;
                let node = under(node, place.clone());
                entries.push(Entry { key: key.into_inner().into_owned(), place, node, merged: false });
            }
            entries.sort_by_key(|e| e.place.start);
            Value::Map(entries)
        }
    };
    let mut node = Node { place: span, value };
    node.place = first_token(&node);
    Ok(node)
}

const MAX_DEPTH: usize = 32;
const MAX_NODES: usize = 500_000;
