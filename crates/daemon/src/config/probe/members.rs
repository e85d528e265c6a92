//! The `members` section.

use standfast_core::plan::{MembersProbe, Probe};

use super::super::file::Members;
use super::super::read::{At, Findings};
use super::Context;
use super::push::is_given;

pub(super) fn members(at: &Members, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    let check = cx.check;
    let given = |at: Option<At<()>>| at.filter(|at| is_given(at, cx));
    for (key, field) in [
        ("interval", check.interval.as_ref().map(At::whole)),
        ("timeout", check.timeout.as_ref().map(At::whole)),
        ("rise", check.rise.as_ref().map(At::whole)),
        ("fall", check.fall.as_ref().map(At::whole)),
        ("fast_interval", check.fast_interval.as_ref().map(At::whole)),
        ("slow", check.slow.as_ref().map(At::whole)),
    ] {
        if let Some(at) = given(field) {
            let message =
                format!("{key} has no effect on a check of type members, which the listener decides at once");
            out.error(&at, message)
                .help("take it away; `policy.damping` holds back a VIP whose members flap, and `floor` of the listener's VIP holds members");
        }
    }
    let vip = at.vip.as_ref()?.value.0.clone();
    let at_least = at.at_least.as_ref()?.to();
    Some(Probe::Members(MembersProbe { vip, at_least }))
}
