//! The numbers of BFD: each session's state, and packets over all of them. Nothing where BFD is not used.

use std::fmt;

use standfast_core::bfd::Counters;
use standfast_core::bfd::wire::Refusal;
use standfast_core::machine::Time;
use standfast_core::node::{BfdStatus, Node};

use super::{Page, counter, gauge};

/// What a scrape copies out of the node.
#[derive(Debug)]
pub(super) struct Seen {
    /// With whom (`peer` or `member`, and the name), and how it is.
    sessions: Vec<(&'static str, String, BfdStatus)>,
    counters: Counters,
}

impl Seen {
    pub(super) fn of(node: &Node, now: Time) -> Self {
        Self { sessions: node.bfd_sessions(now), counters: node.bfd_counters().clone() }
    }

    pub(super) fn encode(&self, out: &mut Page<'_, '_>) -> fmt::Result {
        if self.sessions.is_empty() && self.counters == Counters::default() {
            return Ok(());
        }
        let all = || {
            self.sessions.iter().map(|(kind, name, s)| (vec![("with", *kind), ("name", name.as_str())], s))
        };
        let mut family = gauge(out, "standfast_bfd_state", "0 administratively down, 1 down, 2 init, 3 up")?;
        for (labels, session) in all() {
            family.gauge(&labels, session.state as u32)?;
        }
        let mut family = gauge(
            out,
            "standfast_bfd_detection_seconds",
            "The silence after which the other end is held for dead; absent while nothing is heard",
        )?;
        for (labels, session) in all() {
            if let Some(seconds) = session.detection_time {
                family.gauge(&labels, seconds)?;
            }
        }
        let mut family = counter(
            out,
            "standfast_bfd_losses",
            "How often a BFD session was up and was lost, unless it was switched off",
        )?;
        for (labels, session) in all() {
            family.counter(&labels, session.losses)?;
        }
        let mut family = counter(out, "standfast_bfd_packets_sent", "BFD packets sent")?;
        family.counter(&Vec::new(), self.counters.sent)?;
        let mut family = counter(out, "standfast_bfd_packets_received", "BFD packets received and taken")?;
        family.counter(&Vec::new(), self.counters.received)?;
        let mut family =
            counter(out, "standfast_bfd_packets_refused", "BFD packets received and dropped, by reason")?;
        for reason in Refusal::ALL {
            let count = self.counters.refused.get(&reason).copied().unwrap_or(0);
            family.counter(&vec![("reason", reason.name())], count)?;
        }
        Ok(())
    }
}
