//! How VIPs are drained: each key of a VIP's own section where it has it, else of the file's.

use std::time::Duration;

use standfast_core::plan::{self, DrainMode, DrainUntil};

use super::super::file::{Drain, Vip};
use super::super::read::{At, Findings};
use super::super::value::{DrainModes, DrainUntils, show};

const DAY: Duration = Duration::from_secs(86_400);

/// Checks what a section says by itself.
pub(super) fn section(at: &At<Drain>, out: &mut Findings) {
    if let Some(deadline) =
        at.deadline.as_ref().filter(|d| !(Duration::from_secs(1)..=DAY).contains(&d.value))
    {
        out.error(deadline, format!("a deadline of {} is not between 1s and a day", show(deadline.value)))
            .help("to leave at once, stop the daemon with `on_stop: false`");
    }
    if let (Some(DrainUntils::Deadline), Some(floor)) = (at.until.as_ref().map(|u| u.value), &at.floor) {
        out.error(floor, "floor has no effect with `until: deadline`, which counts no connections")
            .help("take it away, or write `until: connections`");
    }
}

/// How a VIP is drained. `whole` is the file's section.
pub(super) fn of_vip(vip: &At<Vip>, whole: Option<&At<Drain>>, asn: u32, out: &mut Findings) -> plan::Drain {
    let own = vip.drain.as_ref();
    let default = plan::Drain { on_stop: own.or(whole).is_some(), ..plan::Drain::default() };
    if let Some(own) = own {
        section(own, out);
        useless(vip, own, out);
    }
    let both = || own.into_iter().chain(whole);
    let mode = both().find_map(|d| d.mode.as_ref()).map(|m| m.value);
    let until = both().find_map(|d| d.until.as_ref()).map(|u| u.value);
    plan::Drain {
        mode: match mode {
            Some(DrainModes::Withdraw) => DrainMode::Withdraw,
            // AS_TRANS (RFC 6793): the community has two octets for it.
            Some(DrainModes::Weight) => DrainMode::Weight(u16::try_from(asn).unwrap_or(23456)),
            Some(DrainModes::GracefulShutdown) | None => default.mode,
        },
        until: match until {
            Some(DrainUntils::Deadline) => DrainUntil::Deadline,
            Some(DrainUntils::Conntrack) => DrainUntil::Conntrack,
            Some(DrainUntils::Connections) | None => default.until,
        },
        floor: both().find_map(|d| d.floor.as_ref()).map_or(default.floor, |f| f.to()),
        deadline: both().find_map(|d| d.deadline.as_ref()).map_or(default.deadline, |d| d.value),
        on_stop: both().find_map(|d| d.on_stop.as_ref()).map_or(default.on_stop, |o| o.value),
        on_file: both().find_map(|d| d.on_file.as_ref()).is_some_and(|o| o.value),
        persist: both().find_map(|d| d.persist.as_ref()).is_some_and(|p| p.value),
    }
}

/// Keys of a VIP's own section that can do nothing for it.
fn useless(vip: &At<Vip>, own: &At<Drain>, out: &mut Findings) {
    let file = vip.policy.as_ref().and_then(|p| p.lower_priority_file.as_ref());
    if let (Some(on_file), None) = (own.on_file.as_ref().filter(|o| o.value), file) {
        out.error(on_file, "on_file has no effect without policy.lower_priority_file")
            .help("add e.g. `policy: { lower_priority_file: /run/standfast/drain-web }`");
    }
}

/// Says so where a drain would change nothing for the peers, or would wait for connections that are not here.
pub(super) fn idle(vips: &[At<Vip>], plan: &plan::Plan, out: &mut Findings) {
    for at in vips {
        let Some(vip) = at.name.as_ref().and_then(|n| plan.vips.get(&n.value.0)) else { continue };
        let Some(own) = &at.drain else { continue };
        let told = vip.drain.attributes(vip.announce.clone());
        let external = told.map(|a| plan::Attributes { local_pref: vip.announce.local_pref, ..a });
        if external.as_ref() == Some(&vip.announce) {
            let message = "the drain tells the peers nothing new: policy.announce says it all the time";
            out.error(own, message)
                .help("take `graceful-shutdown`, or the bandwidth of 0, out of policy.announce");
        }
        let members = |id| matches!(plan.checks.get(id).map(|c| &c.probe), Some(plan::Probe::Members(_)));
        if vip.drain.until == DrainUntil::Connections && vip.checks.values().any(members) {
            out.warn(own, "the members of this host's listener have the connections of this VIP, and this host's own sockets none")
                .help("write `until: conntrack` to count what is forwarded, or `until: deadline`");
        }
    }
}
