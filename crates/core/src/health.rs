//! From verdicts to health: the gate (rise, fall, stale) and the policy expression over several checks.

mod details;
mod expr;
mod gate;

use serde::Serialize;
use std::time::Duration;

pub use details::{Details, disturbs};
pub use expr::{Expr, ExprError, RESERVED, is_check_name};
pub use gate::{Gate, Runs};

/// What one run of a check said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The service answered as it should.
    Good,
    /// It did not.
    Bad,
    /// The check itself could not run for a local reason (no descriptors, own stall): neither good nor bad.
    NoResult,
}

/// One run of a check, with its reason in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// What it said.
    pub outcome: Outcome,
    /// Why, in words for an operator; never a body or a secret. At most a few hundred bytes.
    pub detail: String,
    /// How long the run took.
    #[serde(rename = "duration_ns", serialize_with = "nanos")]
    pub took: Duration,
    /// Whether the run ended because its time was up.
    pub timed_out: bool,
    /// For how long it holds, where that is less than what its check tolerates in silence; `None`: no less.
    #[serde(skip)]
    pub lease: Option<Duration>,
    /// What the run saw; `None` if there is nothing to tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Box<Details>>,
}

fn nanos<S: serde::Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u64(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

impl Verdict {
    /// A good verdict without a duration.
    pub fn good(detail: impl Into<String>) -> Self {
        Self {
            outcome: Outcome::Good,
            detail: detail.into(),
            took: Duration::ZERO,
            timed_out: false,
            lease: None,
            details: None,
        }
    }

    /// A bad verdict without a duration.
    pub fn bad(detail: impl Into<String>) -> Self {
        Self { outcome: Outcome::Bad, ..Self::good(detail) }
    }
}

/// Three-valued health of a check or a VIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Nothing was reported yet.
    Unknown,
    /// Good since its rise threshold was reached.
    Healthy,
    /// Bad since its fall threshold was reached.
    Unhealthy,
}
