//! The `udp` section.

use std::time::Duration;

use standfast_core::plan::{Probe, UdpProbe};

use super::super::file::Udp;
use super::super::read::Findings;
use super::super::resolve::or;
use super::Context;

pub(super) fn udp(at: &Udp, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    let port = at.port.as_ref().map(|p| p.to::<u16>());
    let target = cx.target(&at.host, port.unwrap_or(1), "host", out);
    let payload = at.payload.as_ref().map_or(vec![0], |p| p.value.0.clone().into_bytes());
    if let Some(p) = at.payload.as_ref().filter(|_| payload.len() > 1472) {
        out.error(p, format!("the payload has {} octets, and 1472 fit in a datagram", payload.len()));
    }
    port?;
    Some(Probe::Udp(UdpProbe {
        target: target?,
        payload,
        wait: Duration::from_millis(500).min(cx.timeout * 4 / 5),
        require_response: or(&at.require_response, false),
    }))
}
