//! The `udp` check: one datagram, and an answer, or the silence that was asked for.
//!
//! Silence is what a service that answers nothing and a host that is gone have in common, so it is good only where the
//! operator said so. An ICMP error is bad in any case. Each run has a port of its own, so that no late answer to an earlier
//! run can be taken for one to this.

use standfast_core::plan::{Expect, UdpProbe};
use tokio::time::{Instant, timeout_at};

use super::pattern::Pattern;
use super::run::{Doing, Failure};
use super::{icmp, reach};

/// A datagram to send, with what its answer must hold.
#[derive(Debug)]
pub(super) struct Udp {
    probe: UdpProbe,
    regex: Option<Pattern>,
}

impl Udp {
    /// Compiles the expression.
    pub(super) fn prepare(probe: &UdpProbe) -> Result<Self, String> {
        let regex = match &probe.expect {
            Some(Expect::Regex(text)) => Some(Pattern::compile(text)?),
            _ => None,
        };
        Ok(Self { probe: probe.clone(), regex })
    }

    /// Sends the datagram and judges what comes back.
    pub(super) async fn run(&self, doing: &Doing<'_>) -> Result<String, Failure> {
        let (socket, remote) = reach::udp(&self.probe.target, doing).await?;
        icmp::listen(&socket, remote.ip());
        let failed = |e| icmp::failed(&socket, &remote.to_string(), remote.ip(), &e);
        doing.set_with("waiting for the answer of", remote);
        let sent = Instant::now();
        socket.send(&self.probe.payload).await.map_err(failed)?;
        let mut answer = Vec::new();
        let latest = doing.before_the_end();
        let end = self.probe.silence.map_or(latest, |wait| latest.min(sent + wait));
        match timeout_at(end, reach::receive(&socket, &mut answer)).await {
            Ok(received) => received.map_err(failed)?,
            Err(_) if let Some(stalled) = doing.stalled(end) => return Err(stalled),
            Err(_) if self.probe.silence.is_some() => {
                let waited = sent.elapsed().as_millis();
                return Ok(format!("{remote} did not answer within {waited} ms, which may be"));
            }
            Err(_) => {
                let waited = sent.elapsed().as_millis();
                return Err(Failure::Bad(format!("no answer from {remote} within {waited} ms")));
            }
        };
        let length = answer.len();
        doing.note(|saw| {
            saw.first_byte = Some(sent.elapsed());
            saw.body_bytes = Some(length as u64);
        });
        let held = match (&self.probe.expect, &self.regex) {
            (Some(Expect::Bytes(octets)), _) => {
                octets.is_empty() || answer.windows(octets.len()).any(|w| w == octets)
            }
            (_, Some(regex)) => {
                doing.set("looking for what is expected");
                regex.matches(vec![answer]).await?.0
            }
            _ => true,
        };
        if held {
            Ok(format!("{remote} answered {length} bytes"))
        } else {
            Err(Failure::Bad(format!("{remote} answered {length} bytes, which do not hold what is expected")))
        }
    }
}
