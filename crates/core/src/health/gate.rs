//! The gate between the verdicts of one check and its health: so many good ones in a row, so many bad ones, and silence.

use serde::Serialize;
use std::time::Duration;

use super::{Health, Outcome, Verdict};
use crate::machine::Time;
use crate::plan::{Check, Probe, Slow};

/// Turns verdicts into health.
///
/// It opens after `rise` good verdicts in a row and closes after `fall` bad ones; a run of the other kind starts the count
/// anew. `NoResult` changes no count and breaks no silence. Silence for longer than [`Check::stale`] counts as one bad
/// verdict, and again after as long, so that a wedged prober is a bad verdict too; a verdict may have a shorter [`Verdict::lease`]. Health is unknown until one threshold was
/// reached. The order of reports is the order of time: the last one counts last, whoever asked for its run.
#[derive(Debug, Clone)]
pub struct Gate {
    rise: u32,
    fall: u32,
    slow: Option<Slow>,
    /// Silence that is tolerated: at the normal pace, and while hurried.
    stale: [Option<Duration>; 2],
    /// And what the last verdict allows itself.
    lease: Option<Duration>,
    interval: [Duration; 2],
    health: Health,
    good: u32,
    bad: u32,
    sluggish: u32,
    heard: Time,
    /// When a run last had a result.
    ran: Time,
    doubtful: bool,
    /// Whether silence was forgiven since the last result, because what runs the check was held up.
    forgiven: bool,
    /// How many wait for its next results.
    pressed: u32,
    last: Option<(Time, Verdict)>,
    /// Why there was no result, since there last was one; empty if nothing came at all.
    why: String,
    /// The words of the last bad verdict.
    blame: String,
    /// Whether others report, so that nothing runs here.
    reported: bool,
    changed: Time,
    runs: Runs,
}

/// How the runs of a check came out since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Runs {
    /// Runs that counted as good.
    pub good: u64,
    /// Runs that counted as bad, those that were too slow too often included.
    pub bad: u64,
    /// Runs that said nothing, for a local reason.
    pub no_result: u64,
    /// Runs that ended because their time was up.
    pub timed_out: u64,
    /// Good and bad runs that contradicted the health and were not enough to change it.
    pub absorbed: u64,
    /// Good runs that took longer than the check's `slow` allows, whether they counted as bad or not yet.
    pub slow: u64,
    /// Times that silence counted as a bad verdict; no run is among them.
    pub silent: u64,
}

impl Gate {
    /// A gate that has heard nothing. `rise` and `fall` below 1 count as 1.
    pub fn new(now: Time, check: &Check) -> Self {
        Self {
            rise: check.rise.max(1),
            fall: check.fall.max(1),
            slow: check.slow,
            stale: [check.stale(false), check.stale(true)],
            lease: None,
            interval: [check.interval, check.fast_interval],
            health: Health::Unknown,
            good: 0,
            bad: 0,
            sluggish: 0,
            heard: now,
            ran: now,
            doubtful: false,
            forgiven: false,
            pressed: 0,
            last: None,
            why: String::new(),
            blame: String::new(),
            reported: check.probe == Probe::External,
            changed: now,
            runs: Runs::default(),
        }
    }

    /// Goes on by other numbers of a check that asks what it asked before: what it knows still counts.
    pub fn adopt(&mut self, check: &Check) {
        (self.rise, self.fall, self.slow) = (check.rise.max(1), check.fall.max(1), check.slow);
        self.stale = [check.stale(false), check.stale(true)];
        self.interval = [check.interval, check.fast_interval];
        (self.good, self.bad) = (self.good.min(self.rise), self.bad.min(self.fall));
        if self.slow.is_none() {
            self.sluggish = 0;
        }
    }

    /// Takes a verdict; the new health if it flipped.
    pub fn push(&mut self, now: Time, verdict: Verdict) -> Option<Health> {
        self.runs.timed_out += u64::from(verdict.timed_out);
        if verdict.outcome == Outcome::NoResult {
            self.runs.no_result += 1;
            self.why.clone_from(&verdict.detail);
            self.last = Some((now, verdict));
            return None;
        }
        self.why.clear();
        let verdict = self.hold_to_pace(verdict);
        self.ran = now;
        self.lease = verdict.lease.filter(|lease| !lease.is_zero());
        (self.doubtful, self.forgiven) = (false, false);
        let good = verdict.outcome == Outcome::Good;
        *if good { &mut self.runs.good } else { &mut self.runs.bad } += 1;
        let flip = self.take(now, verdict);
        let agrees = self.health == if good { Health::Healthy } else { Health::Unhealthy };
        self.runs.absorbed += u64::from(!agrees);
        flip
    }

    /// A good verdict that is one too many of the slow ones becomes a bad one.
    fn hold_to_pace(&mut self, verdict: Verdict) -> Verdict {
        let Some(slow) = self.slow.filter(|_| verdict.outcome == Outcome::Good) else { return verdict };
        if verdict.took <= slow.limit {
            self.sluggish = 0;
            return verdict;
        }
        self.runs.slow += 1;
        self.sluggish = self.sluggish.saturating_add(1);
        if self.sluggish < slow.times {
            return verdict;
        }
        let (runs, limit, took) = (self.sluggish, slow.limit.as_millis(), verdict.took.as_millis());
        let detail = match runs {
            1 => format!("slow: {took}ms, over {limit}ms"),
            _ => format!("slow: {runs} runs in a row over {limit}ms, the last {took}ms"),
        };
        Verdict { outcome: Outcome::Bad, detail, ..verdict }
    }

    /// Counts a good or bad verdict.
    fn take(&mut self, now: Time, verdict: Verdict) -> Option<Health> {
        self.heard = now;
        let to = if verdict.outcome == Outcome::Good {
            self.bad = 0;
            self.good = self.good.saturating_add(1).min(self.rise);
            (self.good >= self.rise).then_some(Health::Healthy)
        } else {
            self.good = 0;
            self.bad = self.bad.saturating_add(1).min(self.fall);
            self.blame.clone_from(&verdict.detail);
            (self.bad >= self.fall).then_some(Health::Unhealthy)
        };
        self.last = Some((now, verdict));
        let to = to.filter(|&to| to != self.health)?;
        self.health = to;
        self.changed = now;
        Some(to)
    }

    /// Counts silence; the new health if it flipped. Does nothing before [`deadline`](Self::deadline).
    pub fn tick(&mut self, now: Time) -> Option<Health> {
        let at = self.deadline()?;
        if now < at {
            return None;
        }
        self.runs.silent += 1;
        let silent = now.since(self.heard).as_secs_f64();
        let what = if self.reported { "report" } else { "result" };
        let colon = if self.why.is_empty() { "" } else { ": " };
        self.take(now, Verdict::bad(format!("no {what} for {silent:.1} s{colon}{}", self.why)))
    }

    /// When silence will count next.
    pub fn deadline(&self) -> Option<Time> {
        let stale = self.stale[usize::from(self.is_hurried())];
        let held = match (stale, self.lease) {
            (Some(stale), Some(lease)) => Some(stale.min(lease)),
            (stale, lease) => stale.or(lease),
        };
        held.map(|held| self.heard + held)
    }

    /// This host did nothing at all until `now`: silence was nobody's fault, and starts anew; a result that is older than an
    /// interval is in doubt until the next one.
    pub fn excuse(&mut self, now: Time) {
        let interval = self.interval[usize::from(self.is_hurried())];
        self.heard = now;
        // A word that stands for ever has no age.
        self.doubtful |= !interval.is_zero() && now.since(self.ran) > interval;
    }

    /// What runs this check was held up until `now`, and this host was not: as [`excuse`](Self::excuse), but only once until
    /// the next result. What is held up again and again runs nothing, and that counts. Reports from outside are not excused.
    pub fn forgive(&mut self, now: Time) {
        if !self.reported && !std::mem::replace(&mut self.forgiven, true) {
            self.excuse(now);
        }
    }

    /// Whether its last result is from before a stall of this host, so that its health is an old story.
    pub const fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    /// Somebody waits for its next results, or does so no longer.
    pub const fn press(&mut self, on: bool) {
        self.pressed = if on { self.pressed + 1 } else { self.pressed.saturating_sub(1) };
    }

    /// Whether it is between two states, so that the next runs should come sooner: nothing is known yet, or some good runs but
    /// not yet `rise`, or some bad ones but not yet `fall`; or somebody waits.
    pub const fn is_hurried(&self) -> bool {
        if self.pressed > 0 {
            return true;
        }
        match self.health {
            Health::Unknown => true,
            Health::Healthy => self.bad > 0,
            Health::Unhealthy => self.good > 0,
        }
    }

    /// The health as it stands.
    pub const fn health(&self) -> Health {
        self.health
    }

    /// Good verdicts in a row that open it.
    pub const fn rise(&self) -> u32 {
        self.rise
    }

    /// Good verdicts in a row, up to `rise`.
    pub const fn consecutive_good(&self) -> u32 {
        self.good
    }

    /// Bad verdicts in a row, up to `fall`.
    pub const fn consecutive_bad(&self) -> u32 {
        self.bad
    }

    /// How its runs came out.
    pub const fn runs(&self) -> &Runs {
        &self.runs
    }

    /// The last verdict and when it came.
    pub fn last(&self) -> Option<&(Time, Verdict)> {
        self.last.as_ref()
    }

    /// What speaks for its health: the words of the last bad verdict while it is unhealthy, of the last good one otherwise.
    pub fn words(&self) -> &str {
        match (self.health, &self.last) {
            (Health::Unhealthy, _) => &self.blame,
            (_, Some((_, verdict))) if verdict.outcome == Outcome::Good => &verdict.detail,
            _ => "",
        }
    }

    /// When the health last changed; the start, if nothing was decided yet.
    pub const fn changed(&self) -> Time {
        self.changed
    }
}

#[cfg(test)]
mod tests;
