//! The configuration: a file in, a [`Plan`] or *all* its problems out.
//!
//! `file --parse--> tree --read--> sections --resolve--> Plan`. YAML (and JSON) or TOML, by the file's extension. Every problem
//! carries its dotted path and its place in the file; nothing stops at the first one. Named files are opened and
//! expressions compiled here, so that what was accepted runs. It does not watch the file: that is reload's.

mod expand;
mod file;
mod probe;
mod problem;
mod read;
pub mod reference;
mod resolve;
mod restart;
mod tree;
mod value;

use std::collections::BTreeSet;
use std::io::Read as _;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use standfast_core::plan::Plan;

pub use expand::{Environment, Process};
pub use problem::{Problem, Problems, Severity};

use expand::Hidden;
use file::Root;
use problem::Source;
use read::{Findings, Read};
use tree::{Node, Value};
use value::{LogFormat, LogLevel};
pub(crate) use value::{duration, show};

/// A configuration that can run.
#[derive(Debug)]
pub struct Loaded {
    /// What to do.
    pub plan: Plan,
    /// How the daemon itself behaves.
    pub daemon: Daemon,
    /// What is not as the file may be meant.
    pub warnings: Vec<Problem>,
    /// Where everything stands.
    places: restart::Places,
}

impl Loaded {
    /// What runs. Where everything stands in the file, which takes more memory than the rest, is gone then.
    pub fn into_running(self) -> (Plan, Daemon) {
        (self.plan, self.daemon)
    }
}

/// How the daemon itself behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Daemon {
    /// The HTTP API.
    pub api: Api,
    /// The log.
    pub logging: Logging,
    /// Where what outlives the process is kept; `None`: where the system says.
    pub state_dir: Option<std::path::PathBuf>,
}

/// The HTTP API. `None` is no limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Api {
    /// Where it listens.
    pub listen: SocketAddr,
    /// For the head of a request.
    pub read_header_timeout: Option<Duration>,
    /// For a whole request.
    pub read_timeout: Option<Duration>,
    /// For an answer.
    pub write_timeout: Option<Duration>,
    /// Between two requests of a connection.
    pub idle_timeout: Option<Duration>,
    /// A unix socket besides.
    pub socket: Option<std::path::PathBuf>,
    /// The socket's mode.
    pub socket_mode: u32,
    /// One of these is needed to report over TCP; none: only this host may.
    pub tokens: Vec<standfast_core::plan::Secret>,
}

/// The log, on standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logging {
    /// The least level that is written.
    pub level: tracing::Level,
    /// Whether each entry is a JSON object.
    pub json: bool,
    /// Whether each entry begins with the time; `None`: unless the journal takes it.
    pub timestamps: Option<bool>,
}

/// How a text is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// YAML 1.2, which includes JSON.
    Yaml,
    /// TOML.
    Toml,
}

impl Format {
    /// The format that a file's extension names: `.yaml`, `.yml`, `.json` or `.toml`.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "yaml" | "yml" | "json" => Some(Self::Yaml),
            "toml" => Some(Self::Toml),
            _ => None,
        }
    }
}

/// Reads and resolves the file at `path`.
///
/// # Errors
/// Everything that is wrong with it, warnings included.
pub fn load(path: impl AsRef<Path>) -> Result<Loaded, Problems> {
    let path = path.as_ref();
    let name = path.display().to_string();
    let refuse = |message: String, help: &str| {
        let source = Arc::new(Source { name: name.clone(), text: String::new() });
        let help = (!help.is_empty()).then(|| help.to_owned());
        Problems(vec![Problem {
            severity: Severity::Error,
            path: String::new(),
            message,
            help,
            span: None,
            note: None,
            source,
        }])
    };
    let format = Format::of(path).ok_or_else(|| {
        refuse("the file's name does not say its format".into(), "end it in .yaml, .yml, .json or .toml")
    })?;
    let text = read_bounded(path, MAX_FILE)
        .map_err(|e| refuse(format!("cannot read the configuration: {e}"), ""))?;
    parse(&name, format, &text, &Process)
}

/// Resolves a text that is already read; `name` stands for the file in reports.
///
/// # Errors
/// Everything that is wrong with it, warnings included.
pub fn parse(name: &str, format: Format, text: &str, env: &dyn Environment) -> Result<Loaded, Problems> {
    let mut findings = Findings::default();
    let mut blanked = text.as_bytes().to_vec();
    let loaded = sections(format, text, env, &mut findings, &mut blanked).map(|(root, node)| {
        let plan = resolve::plan(&root, &mut findings);
        let daemon = daemon(&root, &plan, &mut findings);
        (plan, daemon, node)
    });
    let errors = findings.errors();
    // Only whole values are blanked, so what is left is still UTF-8.
    let source =
        Arc::new(Source { name: name.to_owned(), text: String::from_utf8_lossy(&blanked).into_owned() });
    let problems = problems(findings, &source);
    match loaded {
        Some((plan, daemon, node)) if errors == 0 => {
            let places = restart::Places::new(node, source);
            Ok(Loaded { plan, daemon, warnings: problems, places })
        }
        _ => Err(Problems(problems)),
    }
}

/// The file's sections, if its syntax allows to read any.
fn sections(
    format: Format,
    text: &str,
    env: &dyn Environment,
    out: &mut Findings,
    blanked: &mut [u8],
) -> Option<(Root, Node)> {
    let hidden = match Hidden::new(text) {
        Ok(hidden) => hidden,
        Err((place, message)) => {
            out.at("", &place, message);
            return None;
        }
    };
    let parsed = match format {
        Format::Yaml => tree::yaml(&hidden.text),
        Format::Toml => tree::toml(&hidden.text),
    };
    let mut node = match parsed {
        Ok(node) => node,
        Err(e) => {
            blank_lines(text, blanked);
            let near = e.place.as_ref().is_some_and(|p| hidden.placeholder_in(p));
            let finding = out.at("", &e.place.unwrap_or(0..0), hidden.reveal(&e.message, text));
            finding.help = e.help.map(str::to_owned);
            if near && format == Format::Toml {
                finding.message = "a placeholder stands outside quotes".into();
                finding.help("in TOML write it inside, as in \"%{NAME}\", also for a number");
            }
            return None;
        }
    };
    if matches!(node.value, Value::Null) {
        out.at("", &(0..0), "the file is empty").help("begin with `schema: v1`; see examples/minimal.yaml");
        return None;
    }
    let mut fill = Fill { text, hidden: &hidden, env, out, blanked, secret: false };
    fill.node(&mut node, "");
    Root::read(&node, "", out).map(|root| (root, node))
}

/// Fills in placeholders, blanks secrets and reports keys that are given twice.
struct Fill<'a> {
    text: &'a str,
    hidden: &'a Hidden,
    env: &'a dyn Environment,
    out: &'a mut Findings,
    blanked: &'a mut [u8],
    secret: bool,
}

impl Fill<'_> {
    fn node(&mut self, node: &mut Node, path: &str) {
        match &mut node.value {
            Value::Null => {}
            Value::Scalar(scalar) => {
                scalar.shown = self.hidden.reveal(&scalar.text, self.text);
                let filled = self.hidden.expand(&scalar.text, self.env);
                scalar.failed = !filled.failures.is_empty();
                for failure in filled.failures {
                    self.out.at(path, &failure.place, failure.message).help(failure.help);
                }
                scalar.text = filled.value;
                scalar.foreign = filled.foreign;
                if scalar.shown != scalar.text {
                    scalar.verbatim = None;
                }
                if let Some(at) =
                    scalar.text.find("%{").filter(|_| !scalar.foreign && scalar.shown == scalar.text)
                {
                    let place = scalar.verbatim.map_or(node.place.clone(), |v| v + at..v + at + 2);
                    self.out
                        .at(path, &place, "this placeholder never ends")
                        .help("close it with }, or write %%{ for a literal %{");
                }
                if self.secret && !scalar.foreign {
                    blank(self.blanked, node.place.clone());
                }
            }
            Value::List(items) => {
                for (i, item) in items.iter_mut().enumerate() {
                    self.node(item, &format!("{path}[{i}]"));
                }
            }
            Value::Map(entries) => {
                let mut seen: std::collections::BTreeMap<String, Range<usize>> =
                    std::collections::BTreeMap::new();
                for entry in entries {
                    let below =
                        if path.is_empty() { entry.key.clone() } else { format!("{path}.{}", entry.key) };
                    if let Some(first) = seen.get(&entry.key) {
                        self.out
                            .at(&below, &entry.place, format!("`{}` is given twice", entry.key))
                            .note(first, "the first one");
                    }
                    seen.insert(entry.key.clone(), entry.place.clone());
                    let outer = self.secret;
                    self.secret |= SECRETS.contains(&entry.key.as_str());
                    self.node(&mut entry.node, &below);
                    self.secret = outer;
                }
            }
        }
    }
}

/// Replaces a token's inside by stars; its quotes and everything around it stay.
fn blank(text: &mut [u8], place: Range<usize>) {
    for b in text.get_mut(place).unwrap_or_default() {
        if !matches!(*b, b'"' | b'\'' | b'\n') {
            *b = b'*';
        }
    }
}

/// In a text without structure, blanks the rest of every line that names a secret.
fn blank_lines(text: &str, blanked: &mut [u8]) {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let secret = SECRETS.iter().filter_map(|s| line.find(s).map(|i| i + s.len())).min();
        if let Some(from) = secret {
            let value = line[from..].trim_start_matches(['"', '\'', ' ', ':', '=']);
            let from = start + line.len() - value.len();
            blank(blanked, from..start + line.trim_end_matches('\n').len());
        }
        start += line.len();
    }
}

fn problems(findings: Findings, source: &Arc<Source>) -> Vec<Problem> {
    let mut all = findings.0;
    all.sort_by_key(|f| f.place.as_ref().map_or(0, |p| p.start));
    let mut seen = BTreeSet::new();
    all.retain(|f| seen.insert((f.place.as_ref().map(|p| (p.start, p.end)), f.message.clone())));
    let more = all.len().saturating_sub(MAX_PROBLEMS);
    all.truncate(MAX_PROBLEMS);
    let mut problems: Vec<Problem> = all
        .into_iter()
        .map(|f| Problem {
            severity: f.severity,
            path: f.path,
            message: f.message,
            help: f.help,
            // An empty file has no line to underline.
            span: f.place.filter(|_| !source.text.is_empty()),
            note: f.note,
            source: source.clone(),
        })
        .collect();
    if more > 0 {
        problems.push(Problem {
            severity: Severity::Error,
            path: String::new(),
            message: format!("and {more} more"),
            help: None,
            span: None,
            note: None,
            source: source.clone(),
        });
    }
    problems
}

fn daemon(root: &Root, plan: &Plan, out: &mut Findings) -> Daemon {
    let bounded = |d: Option<Duration>| d.filter(|d| !d.is_zero());
    let api = root.api.as_ref();
    let of = |f: fn(&file::Api) -> &Option<read::At<Duration>>| {
        bounded(api.and_then(|a| f(a).as_ref()).map(|d| d.value))
    };
    let write_timeout = of(|a| &a.write_timeout);
    let longest = plan.checks.iter().max_by_key(|(_, c)| c.timeout);
    if let (Some(write), Some((id, check)), Some(at)) =
        (write_timeout, longest, api.and_then(|a| a.write_timeout.as_ref()))
        && write <= check.timeout
    {
        let message = format!(
            "write_timeout, {}, must be longer than the timeout of the check {id}, {}",
            value::show(write),
            value::show(check.timeout)
        );
        out.error(at, message).help("a triggered check answers when its run has ended");
    }
    if let Some((api, mode)) = api.and_then(|a| Some((a, a.socket_mode.as_ref()?)))
        && api.socket.is_none()
        && mode.place != api.place
    {
        out.error(mode, "socket_mode has no effect without socket")
            .help("add e.g. `socket: /run/standfast/api.sock`");
    }
    if let Some(dir) = root.state_dir.as_ref().filter(|dir| !dir.value.is_absolute()) {
        out.error(
            dir,
            format!(
                "state_dir is {}, which is somewhere else wherever standfast is started",
                dir.value.display()
            ),
        )
        .help("write an absolute path, such as /var/lib/standfast");
    }
    let logging = root.logging.as_ref();
    Daemon {
        state_dir: root.state_dir.as_ref().map(|dir| dir.value.clone()),
        api: Api {
            listen: api
                .and_then(|a| a.listen.as_ref())
                .map_or(SocketAddr::from(([127, 0, 0, 1], 59179)), |l| l.value.0),
            read_header_timeout: of(|a| &a.read_header_timeout),
            read_timeout: of(|a| &a.read_timeout),
            write_timeout,
            idle_timeout: of(|a| &a.idle_timeout),
            socket: api.and_then(|a| a.socket.as_ref()).map(|s| s.value.clone()),
            socket_mode: api.and_then(|a| a.socket_mode.as_ref()).map_or(0o660, |m| m.value.0),
            tokens: api
                .and_then(|a| a.tokens.as_ref())
                .map(|t| t.value.iter().map(|t| t.value.clone()).collect())
                .unwrap_or_default(),
        },
        logging: Logging {
            level: match logging.and_then(|l| l.level.as_ref()).map(|l| l.value) {
                Some(LogLevel::Debug) => tracing::Level::DEBUG,
                None | Some(LogLevel::Info) => tracing::Level::INFO,
                Some(LogLevel::Warn) => tracing::Level::WARN,
                Some(LogLevel::Error) => tracing::Level::ERROR,
            },
            json: logging.and_then(|l| l.format.as_ref()).is_some_and(|f| f.value == LogFormat::Json),
            timestamps: logging.and_then(|l| l.timestamps.as_ref()).map(|t| t.value),
        },
    }
}

/// Reads a regular file of at most `most` bytes, without ever blocking on a pipe.
fn read_bounded(path: &Path, most: u64) -> Result<String, String> {
    let meta = std::fs::metadata(path).map_err(|e| in_words(&e))?;
    if !meta.is_file() {
        return Err("it is not a regular file".into());
    }
    let file = std::fs::File::open(path).map_err(|e| in_words(&e))?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(|e| in_words(&e))?;
    if bytes.len() as u64 > most {
        return Err(format!("it is larger than {} KiB", most / 1024));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        let line = e.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count() + 1;
        format!("it is not UTF-8 text (line {line}, octet {at} of the file)")
    })
}

/// An I/O error without its number.
fn in_words(e: &std::io::Error) -> String {
    match e.kind() {
        std::io::ErrorKind::NotFound => "no such file".into(),
        std::io::ErrorKind::PermissionDenied => "permission denied".into(),
        std::io::ErrorKind::IsADirectory => "it is a directory".into(),
        _ => e.to_string(),
    }
}

/// Keys whose values are never printed.
const SECRETS: [&str; 10] = [
    "auth_password",
    "auth_key_ao",
    "password",
    "proxy",
    "headers",
    "metadata",
    "keys",
    "tokens",
    "body",
    "env",
];
const MAX_FILE: u64 = 8 * 1024 * 1024;
const MAX_PROBLEMS: usize = 100;
