//! The `udp` section.

use std::time::Duration;

use standfast_core::plan::{Expect, Probe, UdpProbe};

use super::super::file::Udp;
use super::super::read::Findings;
use super::super::value::Silence;
use super::{Context, octets, one_of, place, regex};

/// What fits in a datagram of a path for 1500 octets.
const ROOM: usize = 1472;

pub(super) fn udp(at: &Udp, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    let port = at.port.as_ref().map(|p| p.to::<u16>());
    let target = cx.target(&at.host, port.unwrap_or(1), "host", out);
    one_of([place(&at.payload), place(&at.payload_hex), place(&at.payload_base64)], out);
    one_of([place(&at.expect), place(&at.expect_hex), place(&at.expect_regex)], out);
    let payload = octets(&at.payload, out);
    let payload = payload.or_else(|| at.payload_hex.as_ref().map(|p| p.value.0.clone()));
    let payload =
        payload.or_else(|| at.payload_base64.as_ref().map(|p| p.value.0.clone())).unwrap_or_else(|| vec![0]);
    if payload.len() > ROOM {
        let given = [place(&at.payload), place(&at.payload_hex), place(&at.payload_base64)];
        if let Some((path, place)) = given.into_iter().flatten().next() {
            let message = format!("the payload has {} octets, and {ROOM} fit in a datagram", payload.len());
            out.at(path, place, message);
        }
    }
    let expect = octets(&at.expect, out).map(Expect::Bytes);
    let expect = expect.or_else(|| at.expect_hex.as_ref().map(|e| Expect::Bytes(e.value.0.clone())));
    let expect = expect.or_else(|| regex(&at.expect_regex, out).map(Expect::Regex));
    let wait = Duration::from_millis(500).min(cx.timeout * 4 / 5);
    let good = silence_is_good(at, expect.is_some(), cx, out);
    port?;
    Some(Probe::Udp(UdpProbe { target: target?, payload, expect, silence: good.then_some(wait) }))
}

/// What silence means, which the file should say.
fn silence_is_good(at: &Udp, expects: bool, cx: &Context<'_>, out: &mut Findings) -> bool {
    match (&at.silence, &at.require_response) {
        (Some(silence), required) => {
            let good = silence.value == Silence::Good;
            if let Some(required) = required.as_ref().filter(|r| r.value == good) {
                let word = if good { "good" } else { "bad" };
                out.error(
                    required,
                    format!("require_response: {} contradicts silence: {word}", required.value),
                )
                .note(&silence.place, "what silence means")
                .help("take require_response away");
            }
            good
        }
        (None, Some(required)) => !required.value,
        (None, None) => {
            // Whoever wants to hear something certain wants to hear something.
            if !expects {
                out.warn(cx.kind, "silence is bad for this udp check; pathosd takes it for good")
                    .help("write `silence: bad` if an answer must come, or `silence: good` if the service never answers");
            }
            false
        }
    }
}
