//! The policy expression: when several checks together are healthy.
//!
//! Grammar, loosest first; names are those of the VIP's checks:
//!
//! ```text
//! or    = and  { ("||" | "or")  and }
//! and   = not  { ("&&" | "and") not }
//! not   = [ "!" | "not" ] atom
//! atom  = NAME | "(" or ")" | "all" [ list ] | "any" [ list ] | NUMBER "of" list
//! list  = "(" or { "," or } ")"
//! ```
//!
//! `all` and `any` without a list mean every check. The value has three states (Kleene's logic): a check that has not
//! reported is unknown, and so is an expression whose value still depends on it. Text is bounded in length and depth.

use std::fmt;
use std::ops::Range;

use super::Health;
use crate::spelling::closest;

/// A policy over check names: true, false or unknown.
///
/// Grammar: names, `all`, `any` (over every check of the VIP), `&&`/`and`, `||`/`or`, `!`/`not`, `N of (a, b, c)`, parentheses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    /// One check.
    Check(String),
    /// Every one.
    All(Vec<Expr>),
    /// At least one.
    Any(Vec<Expr>),
    /// The opposite; unknown stays unknown.
    Not(Box<Expr>),
    /// At least so many.
    AtLeast(usize, Vec<Expr>),
}

/// Why a policy text is refused, and where in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExprError {
    /// Bytes of the text that are to blame.
    pub span: Range<usize>,
    /// What is wrong.
    pub message: String,
    /// What to do about it, if that is clear.
    pub help: Option<String>,
}

impl Expr {
    /// The policy that `text` writes, over checks of these `names`.
    ///
    /// # Errors
    /// The first of [`parse_all`](Self::parse_all)'s.
    pub fn parse(text: &str, names: &[&str]) -> Result<Self, ExprError> {
        Self::parse_all(text, names).map_err(|mut all| all.remove(0))
    }

    /// The policy that `text` writes, or everything that is wrong with it: every unknown name, or the first place where the grammar ends.
    ///
    /// # Errors
    /// At least one [`ExprError`], in the order of the text.
    pub fn parse_all(text: &str, names: &[&str]) -> Result<Self, Vec<ExprError>> {
        let mut parser = Parser { text, names, at: 0, depth: 0, errors: Vec::new() };
        let parsed = if text.len() > MAX_TEXT {
            Err(ExprError::new(0..0, format!("the policy is longer than {MAX_TEXT} bytes")))
        } else {
            parser.whole()
        };
        match parsed {
            Ok(expr) if parser.errors.is_empty() => Ok(expr),
            Ok(_) => Err(parser.errors),
            Err(syntax) => {
                parser.errors.push(syntax);
                Err(parser.errors)
            }
        }
    }

    /// Its value, given each check's health.
    pub fn evaluate(&self, of: &impl Fn(&str) -> Health) -> Health {
        match self {
            Self::Check(name) => of(name),
            Self::All(parts) => at_least(parts.len(), parts, of),
            Self::Any(parts) => at_least(1, parts, of),
            Self::Not(part) => match part.evaluate(of) {
                Health::Unknown => Health::Unknown,
                Health::Healthy => Health::Unhealthy,
                Health::Unhealthy => Health::Healthy,
            },
            Self::AtLeast(n, parts) => at_least(*n, parts, of),
        }
    }

    /// The checks it names, in order, each once.
    pub fn checks(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.collect(&mut names);
        names
    }

    /// The checks that make its value what it is, in order, each once: those that are bad while it does not hold, those that
    /// are good while it does (for `!` the other way round), and those that are not known while it depends on them.
    pub fn deciding(&self, of: &impl Fn(&str) -> Health) -> Vec<&str> {
        let mut names = Vec::new();
        self.decide(of, &mut names);
        names
    }

    fn decide<'a>(&'a self, of: &impl Fn(&str) -> Health, names: &mut Vec<&'a str>) {
        match self {
            Self::Check(name) if names.contains(&name.as_str()) => {}
            Self::Check(name) => names.push(name),
            Self::All(parts) | Self::Any(parts) | Self::AtLeast(_, parts) => {
                let value = self.evaluate(of);
                for part in parts.iter().filter(|part| part.evaluate(of) == value) {
                    part.decide(of, names);
                }
            }
            Self::Not(part) => part.decide(of, names),
        }
    }

    fn collect<'a>(&'a self, names: &mut Vec<&'a str>) {
        match self {
            Self::Check(name) if names.contains(&name.as_str()) => {}
            Self::Check(name) => names.push(name),
            Self::All(parts) | Self::Any(parts) | Self::AtLeast(_, parts) => {
                for part in parts {
                    part.collect(names);
                }
            }
            Self::Not(part) => part.collect(names),
        }
    }

    fn is_simple(&self) -> bool {
        match self {
            Self::Check(_) | Self::Not(_) | Self::AtLeast(..) => true,
            Self::All(parts) | Self::Any(parts) => parts.len() < 2,
        }
    }
}

/// Nothing at all is never healthy: a policy without parts fails closed.
fn at_least(n: usize, parts: &[Expr], of: &impl Fn(&str) -> Health) -> Health {
    let (mut healthy, mut unknown) = (0, 0);
    for part in parts {
        match part.evaluate(of) {
            Health::Healthy => healthy += 1,
            Health::Unknown => unknown += 1,
            Health::Unhealthy => {}
        }
    }
    if parts.is_empty() || healthy + unknown < n {
        Health::Unhealthy
    } else if healthy >= n {
        Health::Healthy
    } else {
        Health::Unknown
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |f: &mut fmt::Formatter<'_>, e: &Self| {
            if e.is_simple() { write!(f, "{e}") } else { write!(f, "({e})") }
        };
        match self {
            Self::Check(name) => f.write_str(name),
            Self::All(parts) | Self::Any(parts) => {
                let word = if matches!(self, Self::All(_)) { " && " } else { " || " };
                for (i, e) in parts.iter().enumerate() {
                    f.write_str(if i == 0 { "" } else { word })?;
                    part(f, e)?;
                }
                Ok(())
            }
            Self::Not(e) => {
                f.write_str("!")?;
                part(f, e)
            }
            Self::AtLeast(n, parts) => {
                write!(f, "{n} of (")?;
                for (i, e) in parts.iter().enumerate() {
                    write!(f, "{}{e}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str(")")
            }
        }
    }
}

impl ExprError {
    fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), help: None }
    }

    fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

impl fmt::Display for ExprError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ExprError {}

/// Whether `name` can name a check: a letter or `_`, then letters, digits, `_`, `-` and `.`; not a word of the grammar.
pub fn is_check_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(in_name)
        && !RESERVED.contains(&name)
}

/// Words of the grammar that cannot name a check.
pub const RESERVED: [&str; 6] = ["all", "any", "and", "or", "not", "of"];

const fn in_name(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.')
}

struct Parser<'a> {
    text: &'a str,
    names: &'a [&'a str],
    at: usize,
    depth: usize,
    errors: Vec<ExprError>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Number(&'a str),
    And,
    Or,
    Not,
    Open,
    Close,
    Comma,
    End,
}

impl<'a> Parser<'a> {
    fn whole(&mut self) -> Result<Expr, ExprError> {
        if self.peek()?.0 == Token::End {
            return Err(ExprError::new(0..self.text.len(), "the policy is empty")
                .help("write `all`, `any`, or names of checks joined with && and ||"));
        }
        let expr = self.or()?;
        match self.peek()? {
            (Token::End, _) => Ok(expr),
            (Token::Close, span) => Err(ExprError::new(span, "this `)` closes nothing")),
            (Token::Comma, span) => Err(ExprError::new(span, "a comma belongs in a list only")
                .help("join checks with && or ||, or write e.g. 2 of (a, b, c)")),
            (_, span) => {
                Err(ExprError::new(span, "expected && or || before this").help("join checks with && or ||"))
            }
        }
    }

    fn or(&mut self) -> Result<Expr, ExprError> {
        self.joined(Token::Or, Expr::Any, Self::and)
    }

    fn and(&mut self) -> Result<Expr, ExprError> {
        self.joined(Token::And, Expr::All, Self::not)
    }

    fn joined(
        &mut self,
        by: Token<'_>,
        into: fn(Vec<Expr>) -> Expr,
        part: fn(&mut Self) -> Result<Expr, ExprError>,
    ) -> Result<Expr, ExprError> {
        let first = part(self)?;
        let mut parts = Vec::new();
        while self.peek()?.0 == by {
            self.take()?;
            parts.push(part(self)?);
        }
        if parts.is_empty() {
            return Ok(first);
        }
        parts.insert(0, first);
        Ok(into(parts))
    }

    fn not(&mut self) -> Result<Expr, ExprError> {
        let mut negated = false;
        while self.peek()?.0 == Token::Not {
            self.take()?;
            negated = !negated;
        }
        let expr = self.atom()?;
        Ok(if negated { Expr::Not(Box::new(expr)) } else { expr })
    }

    fn atom(&mut self) -> Result<Expr, ExprError> {
        let (token, span) = self.take()?;
        match token {
            Token::Word(word @ ("all" | "any")) => {
                let into = if word == "all" { Expr::All } else { Expr::Any };
                if self.peek()?.0 == Token::Open {
                    return Ok(into(self.list()?.0));
                }
                Ok(into(self.names.iter().map(|&n| Expr::Check(n.to_owned())).collect()))
            }
            Token::Word("of") => {
                Err(ExprError::new(span, "`of` needs a number before it").help("write e.g. 2 of (a, b, c)"))
            }
            Token::Word(name) => {
                if !self.names.contains(&name) {
                    let error = ExprError::new(span, format!("no check named `{name}`"));
                    self.errors.push(match closest(name, self.names.iter().copied()) {
                        Some(meant) => error.help(format!("did you mean `{meant}`?")),
                        None => error.help(format!("the checks are: {}", self.names.join(", "))),
                    });
                }
                Ok(Expr::Check(name.to_owned()))
            }
            Token::Number(number) => self.quorum(number, span),
            Token::Open => {
                self.deeper(&span)?;
                let expr = self.or()?;
                self.close(span)?;
                Ok(expr)
            }
            Token::End => Err(ExprError::new(span, "the policy ends where a check is expected")),
            Token::And | Token::Or | Token::Not | Token::Close | Token::Comma => {
                Err(ExprError::new(span, "expected a check before this"))
            }
        }
    }

    fn quorum(&mut self, number: &str, span: Range<usize>) -> Result<Expr, ExprError> {
        match self.take()? {
            (Token::Word("of"), _) => {}
            (_, next) => {
                return Err(ExprError::new(next, format!("expected `of` after {number}"))
                    .help("write e.g. 2 of (a, b, c)"));
            }
        }
        let (parts, list) = self.list()?;
        let n = number.parse().unwrap_or(usize::MAX);
        if n == 0 || n > parts.len() {
            let message = match (n, parts.len()) {
                (0, _) => "0 checks out of any are always reached".to_owned(),
                (_, 1) => format!("{number} of one check can never be reached"),
                (_, many) => format!("{number} of {many} checks can never be reached"),
            };
            return Err(ExprError::new(span.start..list.end, message)
                .help(format!("write a number from 1 to {}", parts.len())));
        }
        Ok(Expr::AtLeast(n, parts))
    }

    fn list(&mut self) -> Result<(Vec<Expr>, Range<usize>), ExprError> {
        let (token, open) = self.take()?;
        if token != Token::Open {
            return Err(
                ExprError::new(open, "expected a list in parentheses").help("write e.g. 2 of (a, b, c)")
            );
        }
        self.deeper(&open)?;
        let mut parts = vec![self.or()?];
        while self.peek()?.0 == Token::Comma {
            self.take()?;
            parts.push(self.or()?);
        }
        self.close(open.clone())?;
        Ok((parts, open.start..self.at))
    }

    fn deeper(&mut self, open: &Range<usize>) -> Result<(), ExprError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(ExprError::new(
                open.clone(),
                format!("parentheses are nested deeper than {MAX_DEPTH}"),
            ));
        }
        Ok(())
    }

    fn close(&mut self, open: Range<usize>) -> Result<(), ExprError> {
        match self.peek()? {
            (Token::Close, _) => {
                self.take()?;
                self.depth -= 1;
                Ok(())
            }
            (Token::End, _) => Err(ExprError::new(open, "this `(` is never closed")),
            (_, span) => Err(ExprError::new(span, "expected `)`, && or || before this")),
        }
    }

    fn peek(&mut self) -> Result<(Token<'a>, Range<usize>), ExprError> {
        let at = self.at;
        let token = self.take();
        self.at = at;
        token
    }

    fn take(&mut self) -> Result<(Token<'a>, Range<usize>), ExprError> {
        let text = self.text;
        let rest = text[self.at..].trim_start();
        let start = text.len() - rest.len();
        let bytes = rest.as_bytes();
        let word = bytes.iter().position(|&b| !in_name(b)).unwrap_or(bytes.len());
        let (token, len) = match bytes.first() {
            None => (Token::End, 0),
            Some(b'(') => (Token::Open, 1),
            Some(b')') => (Token::Close, 1),
            Some(b',') => (Token::Comma, 1),
            Some(b'!') => (Token::Not, 1),
            Some(b'&') if rest.starts_with("&&") => (Token::And, 2),
            Some(b'|') if rest.starts_with("||") => (Token::Or, 2),
            Some(b) if b.is_ascii_digit() && rest[..word].bytes().all(|b| b.is_ascii_digit()) => {
                (Token::Number(&rest[..word]), word)
            }
            Some(b) if b.is_ascii_alphabetic() || *b == b'_' => match &rest[..word] {
                "and" => (Token::And, word),
                "or" => (Token::Or, word),
                "not" => (Token::Not, word),
                name => (Token::Word(name), word),
            },
            Some(b) => {
                let c = rest.chars().next().unwrap_or('?');
                let span = start..start + c.len_utf8().max(word);
                let error =
                    ExprError::new(span, format!("`{}` has no meaning in a policy", c.escape_default()));
                return Err(match b {
                    b'&' => error.help("write && for `and`"),
                    b'|' => error.help("write || for `or`"),
                    _ => error.help("a policy is made of names of checks, &&, ||, ! and parentheses"),
                });
            }
        };
        self.at = start + len;
        Ok((token, start..self.at))
    }
}

const MAX_TEXT: usize = 4096;
const MAX_DEPTH: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; 4] = ["web", "app", "dns", "android"];

    fn parse(text: &str) -> Expr {
        Expr::parse(text, &NAMES).unwrap()
    }

    fn value(text: &str, states: &[(&str, Health)]) -> Health {
        parse(text)
            .evaluate(&|name| states.iter().find(|(n, _)| *n == name).map_or(Health::Unknown, |&(_, h)| h))
    }

    fn refused(text: &str) -> (String, String, String) {
        let e = Expr::parse(text, &NAMES).unwrap_err();
        (text[e.span].to_owned(), e.message, e.help.unwrap_or_default())
    }

    const H: Health = Health::Healthy;
    const U: Health = Health::Unhealthy;
    const Q: Health = Health::Unknown;

    #[test]
    fn and_binds_tighter_than_or_and_not_tightest() {
        assert_eq!(parse("web || app && !dns"), parse("web or (app and (not dns))"));
        assert_ne!(parse("web || app && dns"), parse("(web || app) && dns"));
    }

    #[test]
    fn all_and_any_mean_every_check_unless_a_list_follows() {
        assert_eq!(parse("all").checks(), NAMES);
        assert_eq!(parse("any(web, app)"), parse("web || app"));
        assert_eq!(parse("all"), parse("web && app && dns && android"));
    }

    #[test]
    fn a_name_may_begin_with_a_word_of_the_grammar() {
        assert_eq!(parse("android"), Expr::Check("android".into()));
        let names = ["orbit", "notary", "allowed"];
        assert_eq!(Expr::parse("orbit&&notary||allowed", &names).unwrap().checks(), names);
    }

    #[test]
    fn every_pair_of_states_follows_the_three_valued_tables() {
        for (a, b, and, or) in [
            (H, H, H, H),
            (H, U, U, H),
            (H, Q, Q, H),
            (U, H, U, H),
            (U, U, U, U),
            (U, Q, U, Q),
            (Q, H, Q, H),
            (Q, U, U, Q),
            (Q, Q, Q, Q),
        ] {
            let states = [("web", a), ("app", b)];
            assert_eq!(value("web && app", &states), and, "{a:?} and {b:?}");
            assert_eq!(value("web || app", &states), or, "{a:?} or {b:?}");
        }
        for (a, not) in [(H, U), (U, H), (Q, Q)] {
            assert_eq!(value("!web", &[("web", a)]), not);
            assert_eq!(value("!!web", &[("web", a)]), a);
        }
    }

    #[test]
    fn a_quorum_is_known_as_soon_as_the_missing_reports_cannot_change_it() {
        let two = "2 of (web, app, dns)";
        assert_eq!(value(two, &[("web", H), ("app", H)]), H);
        assert_eq!(value(two, &[("web", U), ("app", U)]), U);
        assert_eq!(value(two, &[("web", H), ("app", U)]), Q);
        assert_eq!(value(two, &[("web", H), ("app", U), ("dns", U)]), U);
    }

    #[test]
    fn the_checks_that_decide_are_those_whose_word_is_the_policys() {
        for (text, states, want) in [
            ("web && app", [("web", U), ("app", H)], vec!["web"]),
            ("web && app", [("web", U), ("app", U)], vec!["web", "app"]),
            ("web || app", [("web", U), ("app", H)], vec!["app"]),
            ("web && (app || dns)", [("web", H), ("app", U)], vec!["dns"]),
            ("web && !app", [("web", H), ("app", H)], vec!["app"]),
            ("2 of (web, app, dns)", [("web", U), ("dns", U)], vec!["web", "dns"]),
            ("web && app && dns", [("web", H), ("dns", Q)], vec!["app", "dns"]),
            ("web || web", [("web", H), ("app", U)], vec!["web"]),
        ] {
            let of = |name: &str| states.iter().find(|(n, _)| *n == name).map_or(Q, |&(_, h)| h);
            assert_eq!(parse(text).deciding(&of), want, "{text}");
        }
    }

    #[test]
    fn a_policy_without_checks_is_never_healthy() {
        assert_eq!(Expr::All(vec![]).evaluate(&|_| H), U);
        assert_eq!(Expr::Any(vec![]).evaluate(&|_| H), U);
        assert_eq!(Expr::AtLeast(0, vec![]).evaluate(&|_| H), U);
    }

    #[test]
    fn every_unknown_name_is_reported_with_its_place() {
        let text = "wed || (dns && ping)";
        let all = Expr::parse_all(text, &NAMES).unwrap_err();
        let seen: Vec<_> = all.iter().map(|e| (&text[e.span.clone()], e.help.as_deref().unwrap())).collect();
        assert_eq!(
            seen,
            [("wed", "did you mean `web`?"), ("ping", "the checks are: web, app, dns, android")]
        );
    }

    #[test]
    fn a_syntax_error_underlines_its_token() {
        for (text, token, message) in [
            ("web app", "app", "expected && or || before this"),
            ("web &", "&", "`&` has no meaning in a policy"),
            ("web &&", "", "the policy ends where a check is expected"),
            ("(web", "(", "this `(` is never closed"),
            ("web)", ")", "this `)` closes nothing"),
            ("(web app)", "app", "expected `)`, && or || before this"),
            ("&& web", "&&", "expected a check before this"),
            ("web, app", ",", "a comma belongs in a list only"),
            ("5 of (web, app)", "5 of (web, app)", "5 of 2 checks can never be reached"),
            ("0 of (web)", "0 of (web)", "0 checks out of any are always reached"),
            ("2 (web)", "(", "expected `of` after 2"),
            ("2 of web", "web", "expected a list in parentheses"),
            ("of (web)", "of", "`of` needs a number before it"),
            ("web == 1", "=", "`=` has no meaning in a policy"),
            ("web é", "é", "`\\u{e9}` has no meaning in a policy"),
            ("2x", "2x", "`2` has no meaning in a policy"),
            ("", "", "the policy is empty"),
            ("  ", "  ", "the policy is empty"),
        ] {
            let (t, m, _) = refused(text);
            assert_eq!((t.as_str(), m.as_str()), (token, message), "{text:?}");
        }
    }

    #[test]
    fn length_and_depth_are_bounded() {
        assert!(refused(&format!("{}web{}", "(".repeat(500), ")".repeat(500))).1.contains("deeper than 32"));
        assert!(refused(&"!".repeat(5000)).1.contains("longer than 4096"));
        assert_eq!(value(&format!("{}web", "!".repeat(4000)), &[("web", H)]), H);
    }

    #[test]
    fn names_of_checks_are_identifiers_and_no_words_of_the_grammar() {
        assert!(is_check_name("web_1") && is_check_name("_x") && is_check_name("tcp-443.a"));
        for bad in ["", "1a", "all", "any", "of", "a b", "é", "-a"] {
            assert!(!is_check_name(bad), "{bad:?}");
        }
    }

    fn exprs() -> impl Strategy<Value = Expr> {
        let leaf = (0..NAMES.len()).prop_map(|i| Expr::Check(NAMES[i].into()));
        leaf.prop_recursive(4, 24, 4, |inner| {
            let list = || prop::collection::vec(inner.clone(), 2..4);
            prop_oneof![
                list().prop_map(Expr::All),
                list().prop_map(Expr::Any),
                (1..3usize, list()).prop_map(|(n, v)| Expr::AtLeast(n, v)),
                inner
                    .clone()
                    .prop_filter("folded", |e| !matches!(e, Expr::Not(_)))
                    .prop_map(|e| Expr::Not(Box::new(e))),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_printed_parses_back(expr in exprs()) {
            prop_assert_eq!(Expr::parse(&expr.to_string(), &NAMES), Ok(expr));
        }

        #[test]
        fn no_text_panics_and_every_span_lies_in_it(text in "[a-z0-9&|!(), é]{0,60}") {
            if let Err(all) = Expr::parse_all(&text, &NAMES) {
                for e in all {
                    prop_assert!(text.get(e.span).is_some());
                }
            }
        }
    }
}
