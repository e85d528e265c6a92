//! `standfast doctor`: what would fail silently on this host, why, and the command that mends it.
//!
//! It looks ([`Survey`]), asks the running daemon what its peers agreed to, and judges both by the configuration. `--fix`
//! sets the sysctls that are safe to set; nothing else is changed. It says nothing about what is fine.

mod judge;

use serde::Serialize;
use serde_json::{Value, json};
use standfast_core::plan::Plan;
use standfast_io::survey::{Survey, set_sysctl};
use std::fmt::Write;
use std::process::ExitCode;

use crate::cli;
use crate::client::Api;

pub use judge::judge;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Traffic is lost, or will be.
    Fault,
    /// It works, until something else happens.
    Warning,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A name that does not change between versions.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What it was found on: an interface, a VIP, a peer; `host` otherwise.
    pub on: String,
    /// What is the case.
    pub what: String,
    /// Why nobody would notice until it hurts.
    pub why: &'static str,
    /// The command, or the line of the configuration, that mends it.
    pub mend: String,
    /// The sysctls that `--fix` sets, if that breaks nothing that works now, in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sysctls: Vec<(String, String)>,
}

/// How the command was asked.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Set what is safe to set.
    pub fix: bool,
    /// Print JSON.
    pub json: bool,
}

/// Looks for what would fail silently, and prints it. Exit code 1 if something was found (and not mended), 2 if the configuration
/// is broken or cannot be read.
pub fn run(daemon: &cli::Daemon, options: Options) -> ExitCode {
    let Some(loaded) = cli::load(&daemon.path()) else { return ExitCode::from(cli::WRONG) };
    let listener = loaded.plan.listener.as_ref();
    let watched: Vec<_> = listener.iter().flat_map(|l| l.vips.values()).map(|v| v.prefix).collect();
    let survey = match Survey::take(listener.map_or(254, |l| l.table), &watched) {
        Ok(survey) => survey,
        Err(e) => {
            eprintln!("standfast: cannot look at this host: {e}");
            return ExitCode::FAILURE;
        }
    };
    let api = daemon.api.clone().unwrap_or_else(|| Api::from(loaded.daemon.api.listen));
    let status = api.ask(&hyper::Method::GET, "/status", None, std::time::Duration::from_secs(2));
    let status = status.ok().filter(|a| a.error().is_none()).map(|a| a.value);
    let mut findings = judge(&loaded, &survey, status.as_ref());
    let mut mended = Vec::new();
    if options.fix {
        findings.retain(|finding| {
            let mut stays = finding.sysctls.is_empty();
            for (name, value) in &finding.sysctls {
                match set_sysctl(name, value) {
                    Ok(()) => mended.push((name.clone(), value.clone())),
                    Err(e) => {
                        eprintln!("standfast: cannot set {name} to {value}: {e}");
                        stays = true;
                    }
                }
            }
            stays
        });
    }
    let said = Said { plan: &loaded.plan, findings: &findings, mended: &mended, asked: status.is_some() };
    let text = if options.json { format!("{:#}\n", said.json()) } else { said.text() };
    match cli::print(&text) {
        code if code != ExitCode::SUCCESS => code,
        _ if findings.is_empty() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// What is printed.
struct Said<'a> {
    plan: &'a Plan,
    findings: &'a [Finding],
    mended: &'a [(String, String)],
    /// Whether a daemon could be asked about its peers.
    asked: bool,
}

impl Said<'_> {
    fn json(&self) -> Value {
        let mended: Vec<_> = self.mended.iter().map(|(n, v)| json!({ "sysctl": n, "value": v })).collect();
        json!({ "findings": self.findings, "mended": mended, "daemon_asked": self.asked })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut say = |line: &str| {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{line}");
        };
        let roles: Vec<_> =
            [(!self.plan.vips.is_empty(), "announcer"), (self.plan.listener.is_some(), "listener")]
                .into_iter()
                .filter_map(|(is, role)| is.then_some(role))
                .collect();
        say(&format!("looked at this host as {}", roles.join(" and ")));
        if !self.asked {
            say(
                "no daemon answers here, so what its peers agreed to is not known; looked at everything else",
            );
        }
        for finding in self.findings {
            let severity = match finding.severity {
                Severity::Fault => "FAULT",
                Severity::Warning => "warning",
            };
            say("");
            say(&format!("{severity}  {}: {}", finding.on, finding.what));
            say(&format!("  why   {}", finding.why));
            say(&format!("  mend  {}", finding.mend));
        }
        if !self.mended.is_empty() {
            say("");
            say(
                "These were set, until the next boot. To keep them, write to /etc/sysctl.d/60-standfast.conf:",
            );
            say("");
            for (name, value) in self.mended {
                say(&format!("{name} = {value}"));
            }
        }
        say("");
        let count = |severity| self.findings.iter().filter(|f| f.severity == severity).count();
        let plural = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
        if self.findings.is_empty() {
            say("nothing is wrong here");
        } else {
            let safe = self.findings.iter().filter(|f| !f.sysctls.is_empty()).count();
            let hint = match safe {
                0 => String::new(),
                n => format!("; `standfast doctor --fix` mends {n} of them"),
            };
            say(&format!(
                "{}, {}{hint}",
                plural(count(Severity::Fault), "fault"),
                plural(count(Severity::Warning), "warning")
            ));
        }
        text
    }
}
