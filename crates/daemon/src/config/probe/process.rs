//! The `process` section.

use standfast_core::plan::{Followed, Probe, ProcessProbe};

use super::super::file::Process;
use super::super::read::{At, Findings};
use super::super::value::Text;
use super::Context;

/// Octets of a name that the kernel keeps (TASK_COMM_LEN, without its end).
const NAME: usize = 15;
/// Kinds of units that have no main process.
const OTHERS: [&str; 10] =
    ["socket", "target", "timer", "mount", "automount", "path", "slice", "scope", "device", "swap"];

pub(super) fn process(at: &Process, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    if let Some(slow) = &cx.check.slow {
        out.error(slow, "slow has no effect on a check of type process, which asks nobody")
            .help("take it away");
    }
    let name = at.name.as_ref().filter(|name| fits(name, out)).map(|name| name.value.0.clone());
    let follows = match (&at.pid_file, &at.unit) {
        (Some(file), Some(unit)) => {
            out.error(unit, "pid_file and unit say the same thing")
                .note(&file.place, "the other one")
                .help("take one of them away");
            return None;
        }
        (Some(file), None) => Followed::PidFile(file.value.clone()),
        (None, Some(unit)) => Followed::Unit(service(unit, out)?),
        // It is there, and wrong.
        (None, None) if out.under(&format!("{}.process", cx.check.path)) => return None,
        (None, None) => {
            let why = "write `process: { unit: web.service }` or `process: { pid_file: /run/web.pid }`";
            cx.missing("unit", why, out);
            return None;
        }
    };
    Some(Probe::Process(ProcessProbe { follows, name }))
}

/// The full name of a service, which may be written without its ending.
fn service(unit: &At<Text>, out: &mut Findings) -> Option<String> {
    let text = &unit.value.0;
    let fine = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    let (stem, kind) = match text.rsplit_once('.') {
        Some((stem, kind)) if kind == "service" || OTHERS.contains(&kind) => (stem, kind),
        _ => (text.as_str(), "service"),
    };
    if stem.is_empty() || text.len() > 255 || !text.chars().all(fine) || text.starts_with('-') {
        out.error(unit, format!("`{text}` cannot name a unit"))
            .help("write it as systemctl does: web.service");
    } else if kind != "service" {
        out.error(unit, format!("a {kind} has no main process: only a service can be followed"));
    } else if stem.ends_with('@') {
        out.error(unit, format!("`{text}` is a template, and no unit that runs"))
            .help(format!("name an instance of it, e.g. {stem}1.service"));
    } else {
        return Some(format!("{stem}.service"));
    }
    None
}

fn fits(name: &At<Text>, out: &mut Findings) -> bool {
    if name.value.0.len() <= NAME {
        return true;
    }
    let kept = name.value.0.floor_char_boundary(NAME);
    out.error(name, format!("the kernel keeps {NAME} octets of a process's name: this one is never seen"))
        .help(format!("write what /proc/PID/comm says, e.g. `{}`", &name.value.0[..kept]));
    false
}
