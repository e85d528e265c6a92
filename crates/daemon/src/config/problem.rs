//! A problem with the configuration, with its place: the file's line with the token underlined.
//!
//! Values of secret keys are blanked in every line that is printed, and placeholders are printed as they are written.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

/// The text that problems point into.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// The file's name as the user gave it.
    pub(crate) name: String,
    /// What may be printed of it: the file with the values of secrets blanked out, octet for octet.
    pub(crate) text: String,
}

/// Whether the configuration can run with the problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It cannot.
    Error,
    /// It can, though not as the file may be meant.
    Warning,
}

/// One thing that is wrong, where, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Whether the configuration is refused for it.
    pub severity: Severity,
    /// Key by key from the document's root, e.g. `vips[0].check.timeout`; empty for the document itself.
    pub path: String,
    /// What is wrong, in one line.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
    /// Bytes of the text, if the place is known.
    pub(crate) span: Option<Range<usize>>,
    /// Another place that belongs to it, with a word about it.
    pub(crate) note: Option<(Range<usize>, String)>,
    pub(crate) source: Arc<Source>,
}

impl Problem {
    /// Line and column, both from 1, columns in characters.
    pub fn position(&self) -> Option<(usize, usize)> {
        let before = self.source.text.get(..self.span.as_ref()?.start)?;
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Some((line, column))
    }

    /// The file's name as the user gave it.
    pub fn file(&self) -> &str {
        &self.source.name
    }

    /// What is underlined, if the place is known.
    pub fn token(&self) -> Option<&str> {
        self.source.text.get(self.clip(self.span.as_ref()?))
    }

    /// The whole report of it, for a terminal with or without colours.
    pub fn render(&self, colours: bool) -> String {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let title = if self.path.is_empty() {
            printable(&self.message)
        } else {
            format!("{}: {}", printable(&self.path), printable(&self.message))
        };
        let mut group = Group::with_title(level.primary_title(title));
        if let Some(span) = &self.span {
            let mut snippet = Snippet::source(self.source.text.as_str())
                .path(self.source.name.as_str())
                .annotation(AnnotationKind::Primary.span(self.clip(span)));
            if let Some((place, word)) = &self.note {
                snippet =
                    snippet.annotation(AnnotationKind::Context.span(self.clip(place)).label(word.as_str()));
            }
            group = group.element(snippet);
        }
        if let Some(help) = &self.help {
            group = group.element(Level::HELP.message(printable(help)));
        }
        let renderer = if colours { Renderer::styled() } else { Renderer::plain() };
        let mut out = renderer.decor_style(DecorStyle::Ascii).render(&[group]);
        if self.span.is_none() && !self.source.name.is_empty() {
            out.push_str(&format!("\n --> {}", self.source.name));
        }
        out
    }

    /// A span inside the text and within one line, so that a report stays a few lines long.
    fn clip(&self, span: &Range<usize>) -> Range<usize> {
        let text = &self.source.text;
        let start = floor(text, span.start);
        let end = floor(text, span.end.max(start));
        let end = text[start..end].find('\n').map_or(end, |line| start + line);
        start..end.max(start)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

/// Everything that is wrong with a configuration, in the order of the file; at least one is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// Every report and a last line that counts them.
    pub fn render(&self, colours: bool) -> String {
        let mut out = String::new();
        for problem in &self.0 {
            out.push_str(&problem.render(colours));
            out.push_str("\n\n");
        }
        let errors = self.0.iter().filter(|p| p.severity == Severity::Error).count();
        let warnings = self.0.len() - errors;
        let count = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
        if let Some(first) = self.0.first() {
            out.push_str(&first.source.name);
            out.push_str(": ");
        }
        out.push_str(&count(errors, "error"));
        if warnings > 0 {
            out.push_str(&format!(", {}", count(warnings, "warning")));
        }
        out.push('\n');
        out
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Problems {}

/// Text for a terminal: no control characters, and not endless.
fn printable(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(MAX_MESSAGE) {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    if text.chars().nth(MAX_MESSAGE).is_some() {
        out.push('…');
    }
    out
}

fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

const MAX_MESSAGE: usize = 600;
