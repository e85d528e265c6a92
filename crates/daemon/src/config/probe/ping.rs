//! The `ping` section.

use standfast_core::plan::{PingProbe, Probe};

use super::super::file::Ping;
use super::super::read::Findings;
use super::super::resolve::{or, value};
use super::super::value::{Ratio, show};
use super::Context;

pub(super) fn ping(at: &Ping, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    let target = match &at.dst_ip {
        Some(dst) => Some(dst.value),
        None => cx.address("dst_ip", out),
    };
    if let (Some(src), Some(dst)) = (&at.src_ip, target)
        && src.is_ipv4() != dst.is_ipv4()
    {
        out.error(src, format!("src_ip and the address that is asked, {dst}, are of different families"));
    }
    let count: u32 = at.count.as_ref().map_or(1, |c| c.to());
    let interval = or(&at.interval, cx.timeout / count.max(1));
    let sending = interval * (count.max(1) - 1);
    if let Some(i) = &at.interval
        && sending >= cx.timeout
    {
        let message = format!(
            "{count} packets, one every {}, do not fit in the check's timeout, {}",
            show(interval),
            show(cx.timeout)
        );
        out.error(i, message).help("leave `interval` away, or raise the check's timeout");
    }
    let timeout = or(&at.timeout, cx.timeout);
    if let Some(t) = &at.timeout
        && (t.is_zero() || t.value > cx.timeout)
    {
        out.error(t, format!("a packet is waited for up to the check's timeout, {}", show(cx.timeout)))
            .help("leave it away, or write more than 0 and at most that");
    }
    if let Some(m) = &at.max_rtt
        && (m.is_zero() || m.value >= timeout)
    {
        out.error(m, format!("max_rtt has no effect: a packet that takes {} is lost", show(timeout)))
            .help("write more than 0 and less than that");
    }
    Some(Probe::Ping(PingProbe {
        target: target?,
        source: value(&at.src_ip),
        privileged: or(&at.privileged, false),
        count,
        interval,
        timeout,
        max_loss_permille: or(&at.max_loss_ratio, Ratio(0)).0,
        max_rtt: value(&at.max_rtt),
    }))
}
