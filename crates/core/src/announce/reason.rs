//! Why a VIP is what it is, in the words of status, log and metrics.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use super::{Cause, End, Held, Stay};
use crate::health::Health;

/// The most names of checks in one reason.
const NAMES: usize = 8;

/// Why a VIP is what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The policy is not decided yet, for want of these checks; none are named while no check of the VIP has decided.
    Initial(Vec<String>),
    /// The policy holds; what brought the VIP back.
    Healthy(Turn),
    /// The policy does not hold.
    Unhealthy(Blame),
    /// It was never healthy since the start, so there is nothing to pessimise.
    NeverHealthy(Blame),
    /// Unhealthy for so long that the second stage withdraws it.
    WithdrawAfter(Duration, Blame),
    /// The drain file is there.
    LowerPriorityFile,
    /// An address of it is not on this host, or not usable.
    AddressMissing(IpAddr, Option<String>),
    /// Its address is here again, and what the checks said without it does not count.
    AddressBack(IpAddr),
    /// Its address is being put on the interface.
    AddressPending(IpAddr),
    /// It failed too often lately.
    Damped(Held),
    /// It drains, for this one.
    Draining(Cause),
    /// It was drained, and is until nobody wants it any more.
    Drained(Cause, End),
    /// It would leave for this reason, and stays.
    Floor(Stay, Box<Self>),
    /// The configuration has no such VIP any more.
    Removed,
    /// The daemon leaves.
    Stopping(String),
}

/// What brought a healthy VIP back to what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// Nothing in particular.
    None,
    /// This check turned, to this health, and decides still.
    Check(String, Health),
    /// These checks decide; the one that turned it does so no longer.
    Checks(Vec<String>),
    /// The drain file is gone.
    FileGone,
    /// It is held no longer.
    Calm,
    /// Nobody wants it to drain any more.
    Undrained,
    /// This address is here.
    Address(IpAddr),
    /// It was healthy before the configuration was reloaded, and these checks, which are others since, have not decided yet.
    Kept(Vec<String>),
}

/// The checks for which a policy does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blame {
    /// The check that turned the policy if it is one of them, else their first; empty if there is none.
    pub check: String,
    /// Its health. It is good where the policy wants the check not to be.
    pub health: Health,
    /// What it says.
    pub words: String,
    /// The others.
    pub others: Vec<String>,
}

impl Turn {
    /// What made a VIP healthy that was something else for `before`.
    pub(super) fn after(before: &Reason, check: Self) -> Self {
        match before {
            Reason::LowerPriorityFile => Self::FileGone,
            Reason::Damped(_) => Self::Calm,
            Reason::Draining(_) | Reason::Drained(..) => Self::Undrained,
            Reason::AddressMissing(a, _) | Reason::AddressBack(a) | Reason::AddressPending(a) => {
                Self::Address(*a)
            }
            _ => check,
        }
    }
}

impl Blame {
    /// The first check and what it says.
    fn first(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = if self.words.is_empty() { "" } else { ": " };
        write!(f, "{}{colon}{}", self.check, self.words)
    }

    fn others(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.others[..] {
            [] => Ok(()),
            others => write!(f, " (and {})", names(others)),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Initial(waiting) if waiting.is_empty() => f.write_str("initial: no check has decided yet"),
            Self::Initial(waiting) => write!(f, "initial: not decided yet: {}", names(waiting)),
            Self::Healthy(turn) => turn.fmt(f),
            Self::Unhealthy(blame) if blame.check.is_empty() => f.write_str("unhealthy"),
            Self::Unhealthy(blame) => {
                write!(f, "{}: {}", blame.check, threshold(blame.health))?;
                if !blame.words.is_empty() {
                    write!(f, ": {}", blame.words)?;
                }
                blame.others(f)
            }
            Self::NeverHealthy(blame) => {
                f.write_str("unhealthy, and never healthy since the start: ")?;
                blame.first(f)?;
                blame.others(f)
            }
            Self::WithdrawAfter(limit, blame) => {
                write!(f, "unhealthy for {} s (withdraw_after): ", limit.as_secs_f64())?;
                blame.first(f)?;
                blame.others(f)
            }
            Self::LowerPriorityFile => f.write_str("lower_priority_file exists"),
            Self::AddressMissing(a, None) => write!(f, "address {a} is not on this host, or not usable"),
            Self::AddressMissing(a, Some(i)) => write!(f, "address {a} is not on {i}, or not usable"),
            Self::AddressBack(a) => write!(f, "address {a} is back: waiting for the checks to rise again"),
            Self::Damped(held) => held.fmt(f),
            Self::Floor(stay, why) => write!(f, "{why}; {stay}"),
            Self::AddressPending(a) => write!(f, "address {a} is being added"),
            Self::Draining(cause) => write!(f, "draining ({cause})"),
            Self::Drained(cause, end) => write!(f, "drained ({cause}): {end}"),
            Self::Removed => f.write_str("removed from the configuration"),
            Self::Stopping(why) => write!(f, "stopping: {why}"),
        }
    }
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("healthy"),
            Self::Check(check, health) => write!(f, "{check}: {}", threshold(*health)),
            Self::Checks(checks) => write!(f, "healthy: {}", names(checks)),
            Self::FileGone => f.write_str("healthy, and lower_priority_file is gone"),
            Self::Calm => f.write_str("healthy, and no longer damped"),
            Self::Undrained => f.write_str("healthy, and no longer drained"),
            Self::Address(a) => write!(f, "healthy, and address {a} is here"),
            Self::Kept(checks) => {
                write!(f, "healthy before the reload, and not decided since: {}", names(checks))
            }
        }
    }
}

const fn threshold(health: Health) -> &'static str {
    match health {
        Health::Healthy => "rise threshold reached",
        Health::Unhealthy => "fall threshold reached",
        Health::Unknown => "not decided yet",
    }
}

/// Names with commas between them, and how many more there are.
fn names(all: &[String]) -> String {
    let shown = all.iter().take(NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
