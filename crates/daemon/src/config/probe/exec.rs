//! The `exec` section.

use std::collections::BTreeMap;
use std::path::PathBuf;

use standfast_core::plan::{ExecProbe, Probe};

use super::super::file::Exec;
use super::super::read::{At, Findings};
use super::super::resolve::{list, or};
use super::Context;

/// More arguments than these are a mistake.
const MOST_ARGUMENTS: usize = 256;

pub(super) fn exec(at: &Exec, _: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    let command = at.command.as_ref()?;
    match command.first() {
        None => {
            out.error(command, "`command` is empty: there is nothing to run");
        }
        Some(program) if !program.value.0.starts_with('/') => {
            let finding = out.error(program, format!("`{}` is not an absolute path", program.value.0));
            if program.value.0.contains(' ') {
                finding.help("write the program by its full path and each argument apart: [/usr/bin/x, --fast]; or [/bin/sh, -c, \"...\"]");
            } else {
                finding.help("no PATH is searched and no shell is between: write e.g. [/usr/bin/x, --fast]");
            }
        }
        Some(_) if command.len() > MOST_ARGUMENTS => {
            out.error(command, format!("{} arguments are more than {MOST_ARGUMENTS}", command.len()));
        }
        Some(_) => {}
    }
    let mut env = BTreeMap::new();
    for (name, text) in at.env.iter().flat_map(|env| &env.0) {
        variable(name, out);
        env.insert(name.value.clone(), text.value.clone());
    }
    Some(Probe::Exec(Box::new(ExecProbe {
        argv: list(&at.command).iter().map(|a| a.value.0.clone()).collect(),
        env,
        directory: or(&at.directory, PathBuf::from("/")),
        user: at.user.as_ref().map(|u| u.value.0.clone()),
        output_limit: at.output_limit.as_ref().map_or(4096, |l| l.to()),
        nagios: or(&at.nagios, false),
    })))
}

fn variable(name: &At<String>, out: &mut Findings) {
    let fine = !name.value.is_empty() && name.value.chars().all(|c| c.is_ascii_graphic() && c != '=');
    if !fine {
        out.error(name, format!("`{}` cannot name an environment variable", name.value));
    } else if ["STANDFAST_VIP", "STANDFAST_CHECK"].contains(&name.value.as_str()) {
        out.error(name, format!("`{}` is set by standfast itself", name.value));
    }
}

/// What a run is about, for the command that runs.
pub(crate) fn about(probe: &mut Probe, vip: &str, check: &str) {
    if let Probe::Exec(exec) = probe {
        exec.env.insert("STANDFAST_VIP".into(), vip.into());
        exec.env.insert("STANDFAST_CHECK".into(), check.into());
    }
}

/// Says that a command cannot be run, at the key that is to blame.
pub(super) fn refuse(at: &Exec, reason: &str, out: &mut Findings) -> bool {
    match (&at.command, &at.user, &at.directory) {
        (_, Some(user), _) if reason.starts_with("user `") => out.error(user, reason),
        (_, _, Some(directory)) if reason.contains("working directory") => out.error(directory, reason),
        (Some(command), ..) => out.error(command, format!("this command cannot run: {reason}")),
        _ => return false,
    };
    true
}
