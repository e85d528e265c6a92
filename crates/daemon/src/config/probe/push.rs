//! The `push` section.

use std::time::Duration;

use standfast_core::plan::Probe;

use super::super::file::Push;
use super::super::read::{At, Findings};
use super::super::value::show;
use super::Context;

/// Shorter leases end between two reports of anybody.
const SHORTEST: Duration = Duration::from_millis(100);
/// Longer ones are no liveness.
const LONGEST: Duration = Duration::from_secs(86_400);

pub(super) fn push(at: &Push, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    let lease = at.lease.as_ref()?;
    if lease.value < SHORTEST {
        out.error(lease, format!("lease is less than {}", show(SHORTEST)))
            .help("silence for longer than the lease is a bad verdict: write about three times the interval of the reports");
    } else if lease.value > LONGEST {
        out.error(lease, "lease is longer than a day");
    }
    let check = cx.check;
    let given = |field: &Option<At<Duration>>| field.as_ref().filter(|at| is_given(at, cx)).map(At::whole);
    for (key, field) in [
        ("interval", given(&check.interval)),
        ("timeout", given(&check.timeout)),
        ("fast_interval", given(&check.fast_interval)),
        ("slow", check.slow.as_ref().map(At::whole)),
    ] {
        if let Some(at) = field {
            out.error(&at, format!("{key} has no effect on a check of type push, which runs nothing"))
                .help("take it away; how long a report holds is `push.lease`");
        }
    }
    Some(Probe::External)
}

/// Whether a key of the check stands in the file; a default stands where the section does.
pub(super) fn is_given<T>(at: &At<T>, cx: &Context<'_>) -> bool {
    at.place != cx.check.place
}
