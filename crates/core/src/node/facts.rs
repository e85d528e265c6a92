//! What a host knows that nobody tells it again after a restart: orders of operators, what its floors hold, who flaps, and what it
//! announces that a crash would end.
//!
//! A new fact is a field of [`Facts`] with what it needs, filled in [`Node::facts`] and taken in [`Node::recall`];
//! whoever changes it pushes [`Output::Remember`], upon which the driver's owner asks for the facts and keeps them where it likes.
//! They are handed in again as [`Input::Recalled`], before members can come. Ages are seconds, so that neither end needs the
//! other's clock. What does not fit the plan any more is left out. At most [`MOST`] of each kind are told.

use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use super::host::event;
use super::members::few;
use super::{Level, Node, Output};
use crate::announce::{AnnounceInput, Flapped};
use crate::listen::{Hop, Withdrawal};
use crate::machine::Time;

/// So many facts of each kind are told.
const MOST: usize = 8192;

/// What a host should know after a restart.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Orders to drain members of the listener.
    pub orders: Vec<OrderFact>,
    /// What members of the listener withdrew while their sessions lived, as far as floors may hold it.
    pub withdrawn: Vec<WithdrawnFact>,
    /// VIPs of this host that are ordered to drain, by name, where the order is to outlive the process.
    pub drained: Vec<String>,
    /// VIPs of this host that flapped too often.
    pub flapped: Vec<FlapFact>,
    /// VIPs of this host with damping that are announced, or failed lately.
    pub standing: Vec<StandingFact>,
}

/// An order to drain a member.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OrderFact {
    /// The member, by its address.
    pub member: IpAddr,
    /// The VIP, by name; `None`: every one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vip: Option<String>,
    /// Seconds since it was given.
    pub ago: f64,
    /// Seconds that the member may keep its flows; `None`: as the VIP says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<f64>,
}

/// Something that a member withdrew.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WithdrawnFact {
    /// The member, by its address.
    pub member: IpAddr,
    /// The interface of a link-local address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The VIP, by name.
    pub vip: String,
    /// Seconds since it was withdrawn.
    pub ago: f64,
    /// What it was.
    pub path: Withdrawal,
}

/// The failures of a VIP, which were too many.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlapFact {
    /// The VIP, by name.
    pub vip: String,
    /// Failures that were counted.
    pub flaps: u32,
    /// Seconds from the first of them to the last.
    pub over: f64,
    /// Seconds since the last of them.
    pub ago: f64,
    /// Seconds for which it is held from the last of them on.
    pub hold: f64,
}

/// A VIP with damping, as it stands. A process that ends without a word has failed it, if it was announced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StandingFact {
    /// The VIP, by name.
    pub vip: String,
    /// Whether it is announced.
    #[serde(default)]
    pub announced: bool,
    /// Seconds since each of its failures that do not hold it, the oldest first.
    #[serde(default)]
    pub failures: Vec<f64>,
}

impl Facts {
    /// Whether there is nothing to remember.
    pub const fn is_empty(&self) -> bool {
        let Self { orders, withdrawn, drained, flapped, standing } = self;
        orders.is_empty()
            && withdrawn.is_empty()
            && drained.is_empty()
            && flapped.is_empty()
            && standing.is_empty()
    }

    /// The same facts where the process ends in order: that fails nothing.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        self.standing.retain_mut(|vip| {
            vip.announced = false;
            !vip.failures.is_empty()
        });
        self
    }

    /// The same facts when they are older.
    #[must_use]
    pub fn aged(mut self, by: Duration) -> Self {
        let Self { orders, withdrawn, drained: _, flapped, standing } = &mut self;
        let ages = orders.iter_mut().map(|o| &mut o.ago).chain(withdrawn.iter_mut().map(|w| &mut w.ago));
        let ages = ages.chain(flapped.iter_mut().map(|f| &mut f.ago));
        let ages = ages.chain(standing.iter_mut().flat_map(|s| &mut s.failures));
        ages.for_each(|ago| *ago += by.as_secs_f64());
        self
    }
}

impl Node {
    /// What should be known after a restart, as it is at `now`; `None` once this host leaves, and forgets.
    pub fn facts(&self, now: Time) -> Option<Facts> {
        if self.stop.is_some() {
            return None;
        }
        let flapped = self.announcer.flapped(now).map(|(vip, f)| FlapFact {
            vip: vip.to_owned(),
            flaps: f.flaps,
            over: f.over.as_secs_f64(),
            ago: f.ago.as_secs_f64(),
            hold: f.hold.as_secs_f64(),
        });
        let standing = self.announcer.standing(now).map(|(vip, announced, failures)| StandingFact {
            vip: vip.to_owned(),
            announced,
            failures: failures.iter().map(Duration::as_secs_f64).collect(),
        });
        let own = Facts {
            drained: self.announcer.persistent().take(MOST).map(str::to_owned).collect(),
            flapped: flapped.take(MOST).collect(),
            standing: standing.take(MOST).collect(),
            ..Facts::default()
        };
        let Some(listener) = &self.listener else { return Some(own) };
        let ago = |at: Time| now.since(at).as_secs_f64();
        let orders = listener.orders().map(|(member, vip, order)| OrderFact {
            member,
            vip: vip.map(str::to_owned),
            ago: ago(order.at),
            timeout: order.timeout.map(|t| t.as_secs_f64()),
        });
        let withdrawn = listener.withdrawn(now).map(|(vip, member, at, path)| WithdrawnFact {
            member: member.address,
            interface: self.links.get(&member.scope).map(|link| link.name.clone()),
            vip: vip.to_owned(),
            ago: ago(at),
            path,
        });
        Some(Facts { orders: orders.take(MOST).collect(), withdrawn: withdrawn.take(MOST).collect(), ..own })
    }

    /// Takes what was known before a restart.
    pub(super) fn recall(&mut self, now: Time, facts: Facts, out: &mut Vec<Output>) {
        let Facts { orders, withdrawn, drained, flapped, standing } = facts;
        for FlapFact { vip, flaps, over, ago, hold } in flapped {
            let [over, ago, hold] = [over, ago, hold].map(seconds);
            self.announcer.recall(now, &vip, Flapped { flaps, over, ago, hold });
        }
        for StandingFact { vip, announced, failures } in standing {
            let failures = failures.into_iter().map(seconds);
            let held = self.announcer.recall_standing(now, &vip, announced, failures);
            if announced && self.announcer.is_damped(&vip) {
                let mut message = "announced by a process that ended without a word: a failure".to_owned();
                if let Some(held) = held {
                    // Writing to a string cannot fail.
                    let _ = write!(message, "; {held}, held for {} s", held.until.since(now).as_secs_f64());
                }
                out.push(event(Level::Warn, format!("vip {vip}"), message));
                out.push(Output::Remember);
            }
        }
        for vip in drained {
            // One that is not to be kept any more is not.
            if self.plan.vips.get(&vip).is_some_and(|plan| plan.drain.persist) {
                let message = "ordered to drain before the restart, and still".to_owned();
                out.push(event(Level::Info, format!("vip {vip}"), message));
                self.announce(now, AnnounceInput::Drain(Some(vip), None), out);
            }
        }
        let Some(listener) = &mut self.listener else { return };
        let mut stand = Vec::new();
        for OrderFact { member, vip, ago, timeout } in orders {
            let timeout = timeout.map(seconds);
            // One whose VIP is gone from the plan has no meaning any more.
            if listener.drain(now.before(seconds(ago)), member, vip.as_deref(), timeout).is_ok() {
                stand.push(vip.map_or_else(|| member.to_string(), |vip| format!("{member} (VIP {vip})")));
            }
        }
        for WithdrawnFact { member, interface, vip, ago, path } in withdrawn {
            let scope = match &interface {
                None => Some(0),
                Some(name) => self.links.iter().find(|(_, link)| link.name == *name).map(|(scope, _)| *scope),
            };
            if let Some(scope) = scope {
                listener.recall(&vip, Hop { address: member, scope }, now.before(seconds(ago)), path);
            }
        }
        if !stand.is_empty() {
            let message = format!("ordered to drain before the restart, and still: {}", few(&stand));
            out.push(event(Level::Info, "listener".to_owned(), message));
        }
    }
}

/// Seconds of a file, whatever stands there: what is too long for a clock is very long ago.
fn seconds(number: f64) -> Duration {
    const LONGEST: f64 = 1e9;
    if number.is_nan() { Duration::ZERO } else { Duration::from_secs_f64(number.clamp(0.0, LONGEST)) }
}
