//! What a file changes of a running daemon that only a restart can change, as problems with their places.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use standfast_core::node::{Fixed, fixed};
use standfast_core::plan::Plan;

use super::problem::{Problem, Severity, Source};
use super::tree::{Node, Value};
use super::{Api, Daemon, Loaded, Logging};

/// Where everything stands in a file.
pub(super) struct Places {
    root: Node,
    source: Arc<Source>,
}

impl fmt::Debug for Places {
    /// Without the values: some are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Places").field("file", &self.source.name).finish_non_exhaustive()
    }
}

impl Loaded {
    /// Everything in which it differs from what runs, by `plan` and `daemon`, that only a restart can change.
    pub fn fixed(&self, plan: &Plan, daemon: &Daemon) -> Vec<Problem> {
        let all = fixed(plan, &self.plan).into_iter().chain(fixed_settings(daemon, &self.daemon));
        all.map(|fixed| self.places.problem(&fixed)).collect()
    }
}

/// The settings of the daemon itself that differ.
fn fixed_settings(old: &Daemon, new: &Daemon) -> Vec<Fixed> {
    let Daemon { api, logging, state_dir } = old;
    let Api {
        listen,
        read_header_timeout,
        read_timeout,
        write_timeout,
        idle_timeout,
        socket,
        socket_mode,
        tokens,
    } = api;
    let Logging { level, json, timestamps } = logging;
    let same = [
        (*listen == new.api.listen, ["api", "listen"]),
        (*read_header_timeout == new.api.read_header_timeout, ["api", "read_header_timeout"]),
        (*read_timeout == new.api.read_timeout, ["api", "read_timeout"]),
        (*write_timeout == new.api.write_timeout, ["api", "write_timeout"]),
        (*idle_timeout == new.api.idle_timeout, ["api", "idle_timeout"]),
        (*socket == new.api.socket, ["api", "socket"]),
        (*socket_mode == new.api.socket_mode, ["api", "socket_mode"]),
        (*tokens == new.api.tokens, ["api", "tokens"]),
        (*level == new.logging.level, ["logging", "level"]),
        (*json == new.logging.json, ["logging", "format"]),
        (*timestamps == new.logging.timestamps, ["logging", "timestamps"]),
    ];
    let mut fixed: Vec<Fixed> =
        same.into_iter().filter(|(same, _)| !same).map(|(_, path)| Fixed::new(path, "")).collect();
    if *state_dir != new.state_dir {
        fixed.push(Fixed::new(["state_dir"], ""));
    }
    fixed
}

impl Places {
    pub(super) const fn new(root: Node, source: Arc<Source>) -> Self {
        Self { root, source }
    }

    fn problem(&self, fixed: &Fixed) -> Problem {
        let colon = if fixed.why.is_empty() { "" } else { ": " };
        Problem {
            severity: Severity::Error,
            path: fixed.key(),
            message: format!("this cannot be changed while it runs{colon}{}", fixed.why),
            help: Some("restart to change this".to_owned()),
            span: self.find(&fixed.path),
            note: None,
            source: Arc::clone(&self.source),
        }
    }

    /// Where the longest part of a path that is there stands.
    fn find(&self, path: &[String]) -> Option<Range<usize>> {
        let (mut node, mut place) = (&self.root, None);
        for step in path {
            let next = match &node.value {
                Value::Map(entries) => {
                    entries.iter().find(|e| e.key == *step).map(|e| (&e.node, e.place.clone()))
                }
                Value::List(items) => {
                    items.iter().find_map(|item| name(item, step).map(|place| (item, place)))
                }
                Value::Null | Value::Scalar(_) => None,
            };
            let Some((below, at)) = next else { break };
            place = Some(at);
            node = below;
        }
        place
    }
}

/// Where the name of a thing stands, if it has this one.
fn name(node: &Node, wanted: &str) -> Option<Range<usize>> {
    let Value::Map(entries) = &node.value else { return None };
    let name = entries.iter().find(|e| e.key == "name")?;
    matches!(&name.node.value, Value::Scalar(s) if s.text == wanted).then(|| name.node.place.clone())
}
