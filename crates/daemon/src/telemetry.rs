//! Structured logs on standard error: text for people, JSON for programs.
//!
//! Each line says what it is about (`vip web`, `peer front`) and what happened, in the words that status shows too.

use standfast_core::node::{Event, Level};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::Logging;

/// Starts logging for the whole process. A second call changes nothing.
pub fn start(logging: &Logging) {
    // journald stamps lines itself.
    let timestamps = logging.timestamps.unwrap_or_else(|| std::env::var_os("JOURNAL_STREAM").is_none());
    let builder = tracing_subscriber::fmt()
        .with_max_level(logging.level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()));
    // Libraries log what our own words say better.
    let ours = Targets::new().with_target("standfast", logging.level);
    // An error means that logging was started before, by a test or an embedding program.
    let _ = match (logging.json, timestamps) {
        (true, true) => builder.json().flatten_event(true).finish().with(ours).try_init(),
        (true, false) => builder.json().flatten_event(true).without_time().finish().with(ours).try_init(),
        (false, true) => builder.finish().with(ours).try_init(),
        (false, false) => builder.without_time().finish().with(ours).try_init(),
    };
}

/// Logs what the node said. In text the line begins with what it is about; in JSON that is a field of its own.
pub fn log(json: bool, event: &Event) {
    let (about, message) = (event.about.as_str(), event.message.as_str());
    match (event.level, json) {
        (Level::Debug, true) => tracing::debug!(about, "{message}"),
        (Level::Info, true) => tracing::info!(about, "{message}"),
        (Level::Warn, true) => tracing::warn!(about, "{message}"),
        (Level::Debug, false) => tracing::debug!("{about}: {message}"),
        (Level::Info, false) => tracing::info!("{about}: {message}"),
        (Level::Warn, false) => tracing::warn!("{about}: {message}"),
    }
}
