//! A VIP's way out on purpose: who wants it, what it waits for, and how it ended.
//!
//! It begins with an order, the drain file or the end of the daemon, and lasts until the connections are few enough or the
//! time is up. Then the VIP is withdrawn and stays so until nobody wants the drain any more. Connections are counted by
//! others; a count only counts if it was taken a moment after the peers were told, when new connections go elsewhere.

use std::fmt;
use std::time::Duration;

use super::{AnnounceOutput, Announcer, VipState};
use crate::machine::Time;
use crate::plan::{Drain, DrainMode, DrainUntil};

/// Connections that the routers sent before they knew are here by then.
const SETTLE: Duration = Duration::from_secs(1);
/// How often the connections that are left are told of at most.
const NEWS_PAUSE: Duration = Duration::from_secs(10);

/// Who wants a VIP to drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// Somebody ordered it.
    Command,
    /// The drain file is there.
    File,
    /// The daemon leaves, for this reason.
    Stop(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Command => "by command",
            Self::File => "lower_priority_file exists",
            Self::Stop(why) => why,
        })
    }
}

/// A drain as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draining {
    /// Who wants it.
    pub cause: Cause,
    /// When it began.
    pub since: Time,
    /// When it is over at the latest.
    pub until: Time,
    /// The connections at the last count, or why they could not be counted; `None` before the first.
    pub connections: Option<Result<u64, String>>,
    /// How it ended, if it has.
    pub over: Option<End>,
    said: Option<Time>,
}

/// How a drain ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// So many connections are left, which is few enough.
    Few(u64),
    /// Its time was up, with so many connections left; `None`: nobody knows how many.
    Deadline(Option<u64>),
    /// The VIP was not announced, or left by itself.
    Absent,
    /// It was cut short, with so many connections left; `None`: nobody knows how many.
    Cut(Option<u64>),
}

impl End {
    /// Whether connections were broken by it, or may have been.
    pub const fn is_rough(&self) -> bool {
        matches!(self, Self::Cut(None | Some(1..)) | Self::Deadline(Some(1..)))
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Few(0) => f.write_str("no connection is left"),
            Self::Few(n) => write!(f, "{} left, which is few enough", connections(*n)),
            Self::Deadline(None) => f.write_str("its time is up"),
            Self::Deadline(Some(n)) => write!(f, "its time is up, with {} left", connections(*n)),
            Self::Absent => f.write_str("it was not announced"),
            Self::Cut(None) => f.write_str("cut short"),
            Self::Cut(Some(n)) => write!(f, "cut short, with {} left", connections(*n)),
        }
    }
}

/// So many connections, in words.
pub fn connections(n: u64) -> String {
    format!("{n} connection{}", if n == 1 { "" } else { "s" })
}

/// What is new about a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrainNews {
    /// It began: for whom, how, and for how long at most.
    Begun(Cause, Drain, Duration),
    /// So many connections are left.
    Left(u64),
    /// The connections cannot be counted.
    Uncounted(String),
    /// It is over.
    Over(End),
    /// Nobody wants it any more.
    Undone,
}

impl fmt::Display for DrainNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begun(cause, drain, most) => {
                let most = most.as_secs_f64();
                write!(f, "drains ({cause}): {}, ", mode(drain.mode))?;
                match (drain.until, drain.floor) {
                    (DrainUntil::Deadline, _) => write!(f, "for {most} s"),
                    (_, 0) => {
                        write!(f, "until its connections are over, for {most} s at most")
                    }
                    (_, n) => {
                        write!(f, "until {} or less are left, for {most} s at most", connections(n))
                    }
                }
            }
            Self::Left(n) => write!(f, "drains: {} left", connections(*n)),
            Self::Uncounted(why) => {
                write!(f, "drains: its connections cannot be counted, so it takes all of its time: {why}")
            }
            Self::Over(end) => write!(f, "drained: {end}"),
            Self::Undone => f.write_str("drains no longer"),
        }
    }
}

/// The name of a mode, as the configuration has it.
pub const fn mode(mode: DrainMode) -> &'static str {
    match mode {
        DrainMode::Withdraw => "withdraw",
        DrainMode::Weight(_) => "weight",
        DrainMode::GracefulShutdown => "graceful_shutdown",
    }
}

impl Draining {
    /// Whether it still goes on.
    pub const fn goes_on(&self) -> bool {
        self.over.is_none()
    }

    /// The connections at the last count.
    pub fn left(&self) -> Option<u64> {
        self.connections.as_ref().and_then(|c| c.as_ref().ok()).copied()
    }
}

impl Announcer {
    /// Takes an order to drain a VIP for so long at most (`None`: as its plan says), or takes it back.
    pub(super) fn order(
        &mut self,
        now: Time,
        v: usize,
        order: Option<Option<Duration>>,
        out: &mut Vec<AnnounceOutput>,
    ) {
        let view = &mut self.vips[v].view;
        view.ordered = order;
        if let (Some(Some(most)), Some(drain)) = (order, &mut view.drain) {
            drain.until = now + most;
        }
        self.follow(now, v, out);
    }

    /// Who wants a VIP to drain.
    fn wish(&self, v: usize) -> Option<Cause> {
        let vip = &self.vips[v];
        let (view, plan) = (&vip.view, &vip.plan.drain);
        let stop = self.leaving.as_ref().filter(|_| plan.on_stop);
        let wishes = [
            view.ordered.map(|_| Cause::Command),
            (view.file && plan.on_file).then_some(Cause::File),
            stop.map(|why| Cause::Stop(why.clone())),
        ];
        let standing = view.drain.as_ref().map(|d| &d.cause);
        let mut wishes = wishes.into_iter().flatten();
        let first = wishes.next()?;
        // The one for whom it began stays the one, as long as that one wants it.
        Some(wishes.find(|w| Some(w) == standing).unwrap_or(first))
    }

    /// Begins or ends the drain of a VIP as it is wanted, and decides anew.
    pub(super) fn follow(&mut self, now: Time, v: usize, out: &mut Vec<AnnounceOutput>) {
        let wish = self.wish(v);
        let vip = &mut self.vips[v];
        let (view, plan) = (&mut vip.view, vip.plan.drain);
        let mut tell = |news| out.push(AnnounceOutput::Drain(vip.plan.name.clone(), news));
        match (wish, &mut view.drain) {
            (Some(cause), None) => {
                let most = view.ordered.flatten().unwrap_or(plan.deadline);
                let absent = view.state == VipState::Withdrawn;
                tell(DrainNews::Begun(cause.clone(), plan, most));
                if absent {
                    tell(DrainNews::Over(End::Absent));
                }
                view.drain = Some(Draining {
                    cause,
                    since: now,
                    until: now + most,
                    connections: None,
                    over: absent.then_some(End::Absent),
                    said: None,
                });
            }
            (Some(cause), Some(drain)) => drain.cause = cause,
            (None, Some(_)) => {
                view.drain = None;
                tell(DrainNews::Undone);
            }
            (None, None) => {}
        }
        self.decide(now, v, out);
    }

    /// The connections of a VIP were counted, or could not be.
    pub(super) fn counted(
        &mut self,
        now: Time,
        v: usize,
        count: Result<u64, String>,
        out: &mut Vec<AnnounceOutput>,
    ) {
        let vip = &mut self.vips[v];
        let Some(drain) = vip.view.drain.as_mut().filter(|d| d.goes_on()) else { return };
        let before = drain.connections.replace(count.clone());
        let news = match count {
            Err(why) if before != Some(Err(why.clone())) => Some(DrainNews::Uncounted(why)),
            Ok(n) if before != Some(Ok(n)) && drain.said.is_none_or(|at| now.since(at) >= NEWS_PAUSE) => {
                drain.said = Some(now);
                Some(DrainNews::Left(n))
            }
            _ => None,
        };
        out.extend(news.map(|news| AnnounceOutput::Drain(vip.plan.name.clone(), news)));
        let few = drain.left().is_some_and(|n| n <= vip.plan.drain.floor);
        if few && now.since(drain.since) >= SETTLE {
            let end = End::Few(drain.left().unwrap_or(0));
            self.end_drain(v, end, out);
            self.decide(now, v, out);
        }
    }

    /// Ends a drain whose time is up.
    pub(super) fn end_if_late(&mut self, now: Time, v: usize, out: &mut Vec<AnnounceOutput>) {
        let late = self.vips[v].view.drain.as_ref().filter(|d| d.goes_on() && d.until <= now);
        if let Some(end) = late.map(|d| End::Deadline(d.left())) {
            self.end_drain(v, end, out);
        }
    }

    /// Ends a drain, if one goes on.
    pub(super) fn end_drain(&mut self, v: usize, end: End, out: &mut Vec<AnnounceOutput>) {
        let vip = &mut self.vips[v];
        if let Some(drain) = vip.view.drain.as_mut().filter(|d| d.goes_on()) {
            drain.over = Some(end.clone());
            out.push(AnnounceOutput::Drain(vip.plan.name.clone(), DrainNews::Over(end)));
        }
    }

    /// Says whether the connections of a VIP are to be counted.
    pub(super) fn say_count(&mut self, v: usize, out: &mut Vec<AnnounceOutput>) {
        let vip = &mut self.vips[v];
        let wanted = vip.plan.drain.until != DrainUntil::Deadline
            && vip.view.drain.as_ref().is_some_and(Draining::goes_on);
        if wanted != vip.view.counted {
            vip.view.counted = wanted;
            out.push(AnnounceOutput::Count(vip.plan.name.clone(), wanted));
        }
    }

    /// Whether any VIP drains at this time.
    pub fn drains(&self) -> bool {
        self.vips.iter().any(|v| v.view.drain.as_ref().is_some_and(Draining::goes_on))
    }
}

#[cfg(test)]
mod tests;
