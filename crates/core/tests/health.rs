//! Laws of the way from verdicts to a decision, against a recount of everything that happened by a rule of one line each.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a broken test may stop")]

use std::collections::BTreeMap;
use std::time::Duration;

use standfast_core::announce::{AnnounceInput, AnnounceOutput, Announcer, Reason, VipState};
use standfast_core::health::{Health, Outcome, Verdict};
use standfast_core::machine::Rng;
use standfast_core::plan::{Check, CheckId, Damping, Probe, Slow, Target, TcpProbe, Vip};
use standfast_core::{Machine, Time};

const SEEDS: u64 = 300;

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn id() -> CheckId {
    CheckId::new("web", "tcp")
}

fn check(rng: &mut Rng) -> Check {
    let target = Target::Address("127.0.0.1:80".parse().unwrap());
    Check {
        rise: 1 + rng.below(3) as u32,
        fall: 1 + rng.below(3) as u32,
        fast_interval: [millis(1000), millis(200)][rng.below(2) as usize],
        slow: [None, Some(Slow { limit: millis(50), times: 1 + rng.below(3) as u32 })][rng.below(2) as usize],
        ..Check::new(Probe::Tcp(Box::new(TcpProbe::new(target))))
    }
}

/// What the gate of a check must say, counted anew from everything that ever happened.
struct Recount {
    check: Check,
    story: Vec<(bool, Duration)>,
    heard: Time,
    alive: Time,
}

impl Recount {
    /// The kinds of the verdicts that counted: slow ones too many are bad.
    fn counted(&self) -> Vec<bool> {
        let mut slow = 0;
        let judge = |&(good, took): &(bool, Duration)| {
            let Some(limit) = self.check.slow.filter(|_| good) else { return good };
            slow = if took > limit.limit { slow + 1 } else { 0 };
            slow < limit.times
        };
        self.story.iter().map(judge).collect()
    }

    /// The health after them: that of the last row of equal ones that was long enough.
    fn health(&self) -> (Health, bool) {
        let counted = self.counted();
        let mut health = Health::Unknown;
        let mut row = 0;
        for (i, &good) in counted.iter().enumerate() {
            row = if i > 0 && counted[i - 1] == good { row + 1 } else { 1 };
            match good {
                true if row >= self.check.rise => health = Health::Healthy,
                false if row >= self.check.fall => health = Health::Unhealthy,
                _ => {}
            }
        }
        let last = counted.last().map(|&g| if g { Health::Healthy } else { Health::Unhealthy });
        (health, last.is_none_or(|l| l != health))
    }

    /// Time passes, with a look at every deadline.
    fn wait(&mut self, until: Time) {
        while self.heard + self.check.stale(self.health().1).unwrap() <= until {
            self.heard = self.heard + self.check.stale(self.health().1).unwrap();
            self.story.push((false, Duration::ZERO));
        }
        self.alive = until;
    }

    /// The host stood still until now.
    fn stood(&mut self, now: Time) {
        if now.since(self.alive) >= millis(2000) {
            self.heard = now;
        }
        self.alive = now;
        if self.heard + self.check.stale(self.health().1).unwrap() <= now {
            self.heard = now;
            self.story.push((false, Duration::ZERO));
        }
    }
}

/// Ticks at every deadline until `until`, as a driver does.
fn wait(announcer: &mut Announcer, until: Time, out: &mut Vec<AnnounceOutput>) {
    while let Some((due, _)) = announcer.deadline().filter(|(due, _)| *due <= until) {
        announcer.tick(due, out);
    }
    // Something else happened to the host.
    announcer.wake(until, out);
}

fn one_vip(now: Time, vip: Vip, check: &Check) -> Announcer {
    Announcer::new(now, &[("web".to_owned(), vip)].into(), &[(id(), check.clone())].into())
}

fn web() -> Vip {
    Vip::new("web", vec!["198.51.100.10/32".parse().unwrap()], &["tcp"])
}

/// Whoever asks for runs, however long each takes and whenever this host stands still: what counts is the order in which they
/// ended, and the VIP is what the last ones say.
#[test]
fn health_is_what_the_order_of_the_reports_makes_it() {
    let mut flips = 0;
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed);
        let check = check(&mut rng);
        let mut now = Time::from_secs(1);
        let mut announcer = one_vip(now, web(), &check);
        let mut recount = Recount { check, story: Vec::new(), heard: now, alive: now };
        // Runs of the schedule and of triggers that are under way, by when they end.
        let mut running: BTreeMap<(Time, u64), (Outcome, Duration)> = BTreeMap::new();
        let mut bias = 1;
        let mut out = Vec::new();
        for n in 0..300 {
            if rng.below(20) == 0 {
                bias = [1, 5, 9][rng.below(3) as usize];
            }
            match rng.below(12) {
                0 => {
                    // Nothing happens at all for a while, in this process or on this host.
                    now = now + millis(rng.below(9_000));
                    recount.stood(now);
                    announcer.wake(now, &mut out);
                    announcer.tick(now, &mut out);
                }
                1 => {
                    now = now + millis(rng.below(5_000));
                    wait(&mut announcer, now, &mut out);
                    recount.wait(now);
                }
                _ => {
                    let outcome = match rng.below(10) {
                        0 => Outcome::NoResult,
                        n if n <= bias => Outcome::Bad,
                        _ => Outcome::Good,
                    };
                    let took = millis(rng.below(100));
                    running.insert((now + took, n), (outcome, took));
                    now = now + millis(rng.below(300));
                }
            }
            while let Some(entry) = running.first_entry().filter(|e| e.key().0 <= now) {
                let ((at, _), (outcome, took)) = entry.remove_entry();
                let at = at.max(recount.alive);
                wait(&mut announcer, at, &mut out);
                recount.wait(at);
                let verdict = Verdict { outcome, took, ..Verdict::good("said") };
                announcer.handle(at, AnnounceInput::Reported(id(), verdict), &mut out);
                if outcome != Outcome::NoResult {
                    recount.story.push((outcome == Outcome::Good, took));
                    recount.heard = at;
                }
            }
            wait(&mut announcer, now, &mut out);
            recount.wait(now);
            let gate = announcer.gate(&id()).unwrap();
            let (health, hurried) = recount.health();
            assert_eq!(
                (gate.health(), gate.is_hurried()),
                (health, hurried),
                "seed {seed} at {now}: {gate:?}"
            );
            let told = announcer.vip("web").unwrap().state == VipState::Announced;
            assert_eq!(told, health == Health::Healthy, "seed {seed} at {now}");
            let rib = announcer.rib(None, |_| true);
            assert_eq!(rib.len(), usize::from(told), "seed {seed} at {now}");
        }
        flips += out.iter().filter(|o| matches!(o, AnnounceOutput::Check(..))).count();
        let runs = announcer.gate(&id()).unwrap().runs();
        let counted = recount.counted();
        let bad = counted.iter().filter(|good| !**good).count() as u64;
        assert_eq!((runs.good, runs.bad + runs.silent), (counted.len() as u64 - bad, bad), "seed {seed}");
        assert_eq!(said_paces(&out), paces(&recount, &out), "seed {seed}");
    }
    assert!(flips > 2_000, "only {flips} flips: this proves little");
}

/// Every pace that was said, in order.
fn said_paces(out: &[AnnounceOutput]) -> Vec<bool> {
    out.iter().filter_map(|o| if let AnnounceOutput::Pace(_, on) = o { Some(*on) } else { None }).collect()
}

/// What should have been said: one change after the other from the hurry of the start.
fn paces(recount: &Recount, out: &[AnnounceOutput]) -> Vec<bool> {
    let said = said_paces(out);
    let last = recount.health().1;
    let alternating: Vec<bool> = (0..said.len()).map(|i| i % 2 == 1).collect();
    assert!(said.last().is_none_or(|l| *l == last), "the last pace said is not the one in force");
    alternating
}

/// However it flaps: a VIP that has been healthy for as long as the longest hold is not held, it is never held without flaps
/// enough in time, and never told while it is.
#[test]
fn damping_holds_only_what_flaps_and_never_for_longer_than_its_most() {
    let (mut holds, mut free) = (0, 0);
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed);
        let check = Check { fall: 1, rise: 1, slow: None, ..check(&mut rng) };
        let hold = millis(1_000 + rng.below(20_000));
        let damping = Damping {
            flaps: 1 + rng.below(4) as u32,
            within: millis(1_000 + rng.below(30_000)),
            hold,
            max: hold + millis(rng.below(60_000)),
        };
        let mut now = Time::from_secs(1);
        let mut announcer = one_vip(now, Vip { damping: Some(damping), ..web() }, &check);
        let mut downs: Vec<Time> = Vec::new();
        let mut healthy: Option<Time> = None;
        let mut out = Vec::new();
        let mut calm = 500;
        for _ in 0..400 {
            if rng.below(40) == 0 {
                calm = [500, 3_000, 30_000][rng.below(3) as usize];
            }
            let good = rng.below(3) > 0;
            let until = now + millis(rng.below(calm));
            // In between it says the same each second.
            loop {
                let verdict = if good { Verdict::good("") } else { Verdict::bad("") };
                if !good && healthy.is_some() {
                    downs.push(now);
                }
                healthy = if good { healthy.or(Some(now)) } else { None };
                announcer.handle(now, AnnounceInput::Reported(id(), verdict), &mut out);
                let view = announcer.vip("web").unwrap();
                let held = matches!(view.reason, Reason::Damped(_));
                assert_eq!(held, good && view.held(now).is_some(), "seed {seed} at {now}: {:?}", view.reason);
                let told = view.state == VipState::Announced;
                assert_eq!(told, good && !held, "seed {seed} at {now}");
                if held {
                    holds += 1;
                    let since = healthy.unwrap();
                    assert!(
                        now.since(since) < damping.max,
                        "seed {seed}: healthy since {since}, held at {now}"
                    );
                    let enough = downs
                        .windows(damping.flaps as usize)
                        .any(|w| w[w.len() - 1].since(w[0]) <= damping.within);
                    assert!(enough, "seed {seed} at {now}: held without flaps enough: {downs:?}");
                } else {
                    free += usize::from(good && downs.len() >= damping.flaps as usize);
                }
                if now >= until {
                    break;
                }
                now = until.min(now + millis(900));
                wait(&mut announcer, now, &mut out);
            }
        }
        // It calms down for good, and comes back at the latest when the longest hold is over.
        let calm = now;
        while now.since(calm) <= damping.max {
            announcer.handle(now, AnnounceInput::Reported(id(), Verdict::good("")), &mut out);
            now = now + millis(900);
            wait(&mut announcer, now, &mut out);
        }
        assert_eq!(announcer.vip("web").unwrap().state, VipState::Announced, "seed {seed}");
    }
    assert!(holds > 1_000 && free > 1_000, "held {holds} times, free {free} times: this proves little");
}
