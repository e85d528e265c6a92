//! Placeholders: `%{NAME}`, `%{NAME:-default}`, `%{file:/path}`, and `%%{` for a literal `%{`.
//!
//! They are hidden from the parser behind tokens of the same length and filled in where a scalar's value is read, so
//! a value can never change the document's structure, positions stay those of the file, and comments are left alone.

use std::ops::Range;

/// The document with every placeholder hidden behind a token of the same number of octets.
pub(crate) struct Hidden {
    /// What the parser reads.
    pub(crate) text: String,
    placeholders: Vec<Placeholder>,
}

struct Placeholder {
    place: Range<usize>,
    what: What,
}

enum What {
    /// `%%{`
    Escape,
    Variable {
        name: String,
        default: Option<String>,
    },
    File(String),
    /// Neither, as it is written.
    Malformed,
}

/// Where the values of placeholders come from.
pub trait Environment {
    /// The variable's value; `None` if it is not set.
    fn variable(&self, name: &str) -> Option<String>;
    /// The file's content.
    ///
    /// # Errors
    /// Why it cannot be read, in words.
    fn file(&self, path: &str) -> Result<String, String>;
}

/// The process's environment and file system.
pub struct Process;

impl Environment for Process {
    fn variable(&self, name: &str) -> Option<String> {
        // A value that is not UTF-8 cannot be part of the document.
        std::env::var(name).ok()
    }

    fn file(&self, path: &str) -> Result<String, String> {
        super::read_bounded(std::path::Path::new(path), MAX_FILE)
    }
}

/// A scalar's value with its placeholders filled in.
pub(crate) struct Expanded {
    pub(crate) value: String,
    /// Whether anything from outside the document is in it, so that it must not be printed.
    pub(crate) foreign: bool,
    /// What could not be filled in: where, what is wrong, what to do.
    pub(crate) failures: Vec<Failure>,
}

/// A placeholder that could not be filled in.
pub(crate) struct Failure {
    pub(crate) place: Range<usize>,
    pub(crate) message: String,
    pub(crate) help: String,
}

impl Hidden {
    /// Hides the placeholders of `source`.
    ///
    /// # Errors
    /// A character of the document that is used for the tokens, or too many placeholders.
    pub(crate) fn new(source: &str) -> Result<Self, (Range<usize>, String)> {
        if let Some((at, c)) = source.char_indices().find(|&(_, c)| is_token(c)) {
            let message = format!("the private-use character U+{:04X} cannot be used here", u32::from(c));
            return Err((at..at + c.len_utf8(), message));
        }
        let mut text = String::with_capacity(source.len());
        let mut placeholders = Vec::new();
        let mut at = 0;
        while let Some(found) = source[at..].find("%").map(|i| at + i) {
            text.push_str(&source[at..found]);
            let Some((len, what)) = placeholder(&source[found..]) else {
                text.push('%');
                at = found + 1;
                continue;
            };
            let token = u32::try_from(placeholders.len()).ok().and_then(|i| char::from_u32(FIRST + i));
            let Some(token) = token.filter(|&c| is_token(c)) else {
                return Err((found..found + len, "there are too many placeholders".into()));
            };
            text.push(token);
            text.extend(std::iter::repeat_n(PAD, len - token.len_utf8()));
            placeholders.push(Placeholder { place: found..found + len, what });
            at = found + len;
        }
        text.push_str(&source[at..]);
        Ok(Self { text, placeholders })
    }

    /// The placeholder in a range of the document, if there is one.
    pub(crate) fn placeholder_in(&self, range: &Range<usize>) -> bool {
        self.placeholders
            .iter()
            .any(|p| p.place.start < range.end.max(range.start + 1) && range.start < p.place.end)
    }

    /// Fills in the placeholders of a scalar that the parser read.
    pub(crate) fn expand(&self, scalar: &str, env: &dyn Environment) -> Expanded {
        let mut out = Expanded { value: String::new(), foreign: false, failures: Vec::new() };
        let mut rest = scalar;
        while let Some((i, c)) = rest.char_indices().find(|&(_, c)| is_token(c)) {
            out.value.push_str(&rest[..i]);
            rest = &rest[i + c.len_utf8()..];
            // An escape such as "\uE001" can name a token that stands for nothing.
            let Some(p) = self.placeholders.get((u32::from(c) - FIRST) as usize) else { continue };
            let pad = p.place.len() - c.len_utf8();
            rest = rest.get(pad..).unwrap_or_default();
            out.foreign |= !matches!(p.what, What::Escape);
            match fill(&p.what, env) {
                Ok(value) => out.value.push_str(&value),
                Err((message, help)) => out.failures.push(Failure { place: p.place.clone(), message, help }),
            }
        }
        out.value.push_str(rest);
        out
    }

    /// A scalar that the parser read, with its placeholders as they are written in `source`.
    pub(crate) fn reveal(&self, scalar: &str, source: &str) -> String {
        let mut out = String::new();
        let mut rest = scalar;
        while let Some((i, c)) = rest.char_indices().find(|&(_, c)| is_token(c)) {
            out.push_str(&rest[..i]);
            rest = &rest[i + c.len_utf8()..];
            if let Some(p) = self.placeholders.get((u32::from(c) - FIRST) as usize) {
                rest = rest.get(p.place.len() - c.len_utf8()..).unwrap_or_default();
                out.push_str(&source[p.place.clone()]);
            }
        }
        out + rest
    }
}

fn fill(what: &What, env: &dyn Environment) -> Result<String, (String, String)> {
    match what {
        What::Escape => Ok("%{".into()),
        What::Variable { name, default } => match (env.variable(name), default) {
            (Some(value), Some(default)) if value.is_empty() => Ok(default.clone()),
            (Some(value), _) => Ok(value),
            (None, Some(default)) => Ok(default.clone()),
            (None, None) => Err((
                format!("the environment variable `{name}` is not set"),
                format!("set it, or give a default: %{{{name}:-value}}"),
            )),
        },
        What::File(path) => match env.file(path) {
            Ok(content) => Ok(content.trim_end_matches(['\n', '\r']).to_owned()),
            Err(e) => {
                Err((format!("cannot read `{path}`: {e}"), "the file must be readable by standfast".into()))
            }
        },
        What::Malformed => Err((
            "this is not a placeholder".into(),
            "write %{NAME}, %{NAME:-default} or %{file:/path}; for a literal %{ write %%{".into(),
        )),
    }
}

/// The placeholder at the start of `text`: its length in octets, and what it is.
fn placeholder(text: &str) -> Option<(usize, What)> {
    if text.starts_with("%%{") {
        return Some((3, What::Escape));
    }
    let inner = text.strip_prefix("%{")?;
    let end = inner.find(['}', '\n'])?;
    if inner.as_bytes()[end] != b'}' {
        return None;
    }
    let inner = &inner[..end];
    let what = if let Some(path) = inner.strip_prefix("file:") {
        if path.starts_with('/') { What::File(path.to_owned()) } else { What::Malformed }
    } else {
        let (name, default) = match inner.split_once(":-") {
            Some((name, default)) => (name, Some(default.to_owned())),
            None => (inner, None),
        };
        let mut bytes = name.bytes();
        let valid = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
            && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_');
        // A quote in place of a name: the brace was never closed, and hiding up to the next one would hide structure.
        if !valid && name.contains(['"', '\'']) {
            return None;
        }
        if valid { What::Variable { name: name.to_owned(), default } } else { What::Malformed }
    };
    Some((end + 3, what))
}

fn is_token(c: char) -> bool {
    ('\u{E000}'..='\u{F8FF}').contains(&c)
}

const FIRST: u32 = 0xE000;
const PAD: char = 'x';
const MAX_FILE: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;
    impl Environment for Fixed {
        fn variable(&self, name: &str) -> Option<String> {
            match name {
                "SET" => Some("a: b\n}".into()),
                "EMPTY" => Some(String::new()),
                _ => None,
            }
        }
        fn file(&self, path: &str) -> Result<String, String> {
            if path == "/key" { Ok("secret\n".into()) } else { Err("no such file".into()) }
        }
    }

    fn expand(text: &str) -> Result<String, String> {
        let hidden = Hidden::new(text).unwrap();
        assert_eq!(hidden.text.len(), text.len(), "positions move");
        assert_eq!(hidden.reveal(&hidden.text, text), text);
        let e = hidden.expand(&hidden.text, &Fixed);
        match e.failures.first() {
            None => Ok(e.value),
            Some(f) => Err(format!("{}: {}", &text[f.place.clone()], f.message)),
        }
    }

    #[test]
    fn placeholders_become_their_values() {
        for (text, value) in [
            ("x%{SET}y", "xa: b\n}y"),
            ("%{EMPTY}", ""),
            ("%{EMPTY:-d}", "d"),
            ("%{NONE:-}", ""),
            ("%{NONE:-a: [b]}%{SET}", "a: [b]a: b\n}"),
            ("%{file:/key}", "secret"),
            ("%%{SET}", "%{SET}"),
            ("100%", "100%"),
            ("%{open", "%{open"),
            ("\"%{open\", a: {}", "\"%{open\", a: {}"),
            ("é%{NONE:-é}é", "ééé"),
        ] {
            assert_eq!(expand(text).as_deref(), Ok(value), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_filled_in_is_named_with_its_place() {
        for (text, error) in [
            ("a %{NONE} b", "%{NONE}: the environment variable `NONE` is not set"),
            ("%{file:/none}", "%{file:/none}: cannot read `/none`: no such file"),
            ("%{file:rel}", "%{file:rel}: this is not a placeholder"),
            ("%{1X}", "%{1X}: this is not a placeholder"),
            ("%{}", "%{}: this is not a placeholder"),
        ] {
            assert_eq!(expand(text), Err(error.to_owned()), "{text}");
        }
    }

    #[test]
    fn characters_that_hide_placeholders_are_refused_in_the_document() {
        assert!(Hidden::new("a\u{E000}").is_err());
        let none = Hidden::new("plain").unwrap();
        assert_eq!(none.expand("\u{E123}x", &Fixed).value, "x");
    }
}
