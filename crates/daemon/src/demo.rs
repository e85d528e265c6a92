//! `standfast demo`: a whole fleet in private namespaces, and what its client notices when members come, fail and die.
//!
//! The daemons are this very program with generated configurations. The demo only makes the stage, plays the story and
//! measures at the client; it knows nothing of the daemons but the front's kernel routes.

mod connections;
mod report;
mod responder;
mod stage;
mod traffic;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use standfast_io::signals::Signals;

use connections::{Fate, Held};
use report::{Outcome, Progress};
use stage::Stage;
use traffic::Traffic;

/// How the demo runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Shorten the waits: less than 20 s in all.
    pub fast: bool,
    /// Print one JSON object to standard output, and nothing else there.
    pub json: bool,
    /// Leave it running until it is interrupted.
    pub keep: bool,
}

/// The first argument of the gateway's service.
const RESPONDER: &str = "demo-responder";
const GATEWAYS: u8 = 3;
/// How long a change may take until it is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks at the front's routes.
const POLL: Duration = Duration::from_millis(10);

/// Does what a child of the demo does, if these arguments (without the program's name) are one's.
pub fn child(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let is_child = arguments.next()? == RESPONDER;
    is_child.then(|| responder::serve(&arguments.next().unwrap_or_default().to_string_lossy()))
}

/// Plays it. To be called before the process has a second thread.
///
/// Success means that every expectation held.
pub fn run(options: Options) -> ExitCode {
    let progress = Progress::new();
    let outcome = match Play::new(options, &progress).and_then(|mut play| play.run()) {
        Ok(outcome) => outcome,
        Err(End::Interrupted) => {
            progress.say("interrupted; everything is gone again");
            return ExitCode::from(INTERRUPTED);
        }
        // Before there was a stage: nothing has been reported.
        Err(End::Failed(why)) => {
            let outcome = Outcome { problems: vec![why], ..Outcome::default() };
            outcome.print(options.json);
            outcome
        }
    };
    if outcome.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Why a story ends early.
enum End {
    /// A signal.
    Interrupted,
    /// What did not happen, in words.
    Failed(String),
}

impl From<String> for End {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// Something that happens to the fleet, and what the client may notice of it.
struct Event {
    name: &'static str,
    about: String,
    /// Requests that may be lost.
    allowed: u64,
    at: Instant,
}

struct Play<'a> {
    options: Options,
    progress: &'a Progress,
    signals: Signals,
    stage: Stage,
    events: Vec<Event>,
    fates: Vec<Fate>,
    problems: Vec<String>,
}

impl<'a> Play<'a> {
    fn new(options: Options, progress: &'a Progress) -> Result<Self, End> {
        let signals = Signals::hold().map_err(|e| format!("cannot hold back signals: {e}"))?;
        let stage = Stage::new(GATEWAYS)?;
        progress.say("a client, a front and three gateways stand in private namespaces");
        Ok(Self {
            options,
            progress,
            signals,
            stage,
            events: Vec::new(),
            fates: Vec::new(),
            problems: Vec::new(),
        })
    }

    /// Plays the story, reports, and keeps the stage if that was asked for.
    fn run(&mut self) -> Result<Outcome, End> {
        let mut outcome = Outcome::default();
        match self.story() {
            Ok(traffic) => outcome = self.judge(traffic),
            Err(End::Interrupted) => return Err(End::Interrupted),
            Err(End::Failed(why)) => self.problems.push(why),
        }
        outcome.problems.append(&mut self.problems);
        if !outcome.problems.is_empty() {
            for host in self.stage.hosts() {
                self.progress.quote(&format!("the log of {}", host.name), &self.stage.log(host));
            }
        }
        outcome.print(self.options.json);
        if self.options.keep {
            self.keep();
        }
        Ok(outcome)
    }

    fn story(&mut self) -> Result<Traffic, End> {
        self.stage.start_front()?;
        self.stage.start_gateway(0)?;
        self.wait_for(&[0], "gw1 is a member")?;
        let target = (stage::VIP, responder::PORT).into();
        let traffic = Traffic::start(target).map_err(|e| format!("cannot start the client: {e}"))?;
        self.progress.say("the client sends a request on a new connection every 5 ms");

        self.event("join", "gw2 and gw3 join", REHASHED);
        self.stage.start_gateway(1)?;
        self.stage.start_gateway(2)?;
        self.wait_for(&[0, 1, 2], "gw2 and gw3 are members too")?;
        self.calm()?;
        self.expect_answers(&traffic, &[0, 1, 2], "the requests are spread")?;

        self.event("unhealthy", "the service of gw2 fails", FAILED);
        self.stage.switch(1, false)?;
        self.wait_for(&[0, 2], "gw2 has withdrawn: its service answers with errors")?;
        self.calm()?;
        self.expect_answers(&traffic, &[0, 2], "gw1 and gw3 answer for it")?;

        self.event("recovered", "the service of gw2 works again", REHASHED);
        self.stage.switch(1, true)?;
        self.wait_for(&[0, 1, 2], "gw2 is back")?;
        self.calm()?;
        self.expect_answers(&traffic, &[0, 1, 2], "the requests are spread")?;

        let held = self.hold()?;
        self.progress.event("gw2 drains: it asks for no new connections");
        self.stage.drain(1, true)?;
        self.wait_heard("drains (GRACEFUL_SHUTDOWN)", "the front has heard of it")?;
        self.pause(SETTLE)?;
        self.release(held, "drained", None);
        self.stage.drain(1, false)?;
        self.wait_heard("drains no longer", "gw2 stays after all")?;
        self.wait_for(&[0, 1, 2], "the front uses it as before")?;

        let held = self.hold()?;
        self.event("killed", "gw3 is killed: its standfast and its service at once", FAILED);
        self.stage.kill(2);
        self.wait_for(&[0, 1], "gw3 is no member any more")?;
        self.calm()?;
        self.release(held, "killed", Some(2));
        self.expect_answers(&traffic, &[0, 1], "gw1 and gw2 answer for it")?;

        let held = self.hold()?;
        self.event("returned", "gw3 starts again", REHASHED);
        self.stage.start_gateway(2)?;
        self.wait_for(&[0, 1, 2], "gw3 is back")?;
        self.calm()?;
        self.release(held, "joined", None);
        self.expect_answers(&traffic, &[0, 1, 2], "the requests are spread")?;
        Ok(traffic)
    }

    fn event(&mut self, name: &'static str, about: &str, allowed: u64) {
        self.progress.event(about);
        self.events.push(Event { name, about: about.to_owned(), allowed, at: Instant::now() });
    }

    /// Opens connections to each VIP, to be held over what comes next.
    fn hold(&self) -> Result<Vec<Held>, End> {
        let held = Held::open().map_err(|e| format!("cannot open {} connections: {e}", connections::HELD))?;
        self.progress
            .say(&format!("the client holds {} connections open to each of the VIPs", connections::HELD));
        Ok(held)
    }

    /// Sees what has become of them; those on the gateway that was lost are no matter.
    fn release(&mut self, held: Vec<Held>, event: &'static str, lost: Option<usize>) {
        let lost = lost.map(|g| &*self.stage.gateways[g].host.name);
        for held in held {
            let fate = held.fate(event, lost);
            self.progress.say(&format!(
                "{} hashing: {} of {} connections broke on gateways that are still there",
                fate.hashing, fate.broken, fate.on_survivors
            ));
            self.fates.push(fate);
        }
    }

    /// Waits until exactly these gateways are both VIPs' next hops in the front's kernel.
    fn wait_for(&mut self, gateways: &[usize], then: &str) -> Result<(), End> {
        let start = Instant::now();
        self.wait(start, stage::PLAIN_VIP, gateways, "")?;
        self.wait(start, stage::VIP, gateways, then)
    }

    /// Waits until exactly these gateways are the next hops of a VIP in the front's kernel, and says so if there is something to say.
    fn wait(&mut self, start: Instant, vip: Ipv4Addr, gateways: &[usize], then: &str) -> Result<(), End> {
        let wanted: BTreeSet<IpAddr> =
            gateways.iter().map(|&g| IpAddr::from(self.stage.gateways[g].host.address)).collect();
        loop {
            let found = self.stage.next_hops(vip)?;
            if found == wanted {
                if !then.is_empty() {
                    self.progress.say(&format!("{then} (after {} ms)", start.elapsed().as_millis()));
                }
                return Ok(());
            }
            if let Some(ended) = self.stage.ended() {
                return Err(End::Failed(format!("{ended} while waiting until {then}")));
            }
            if start.elapsed() > PATIENCE {
                let found: Vec<String> = found.iter().map(IpAddr::to_string).collect();
                return Err(End::Failed(format!(
                    "not within {} s: {then}; the front's next hops are [{}]",
                    PATIENCE.as_secs(),
                    found.join(", ")
                )));
            }
            self.pause(POLL)?;
        }
    }

    /// Waits until the front's log says this of gw2 and the later of both VIPs.
    fn wait_heard(&mut self, words: &str, then: &str) -> Result<(), End> {
        let gateway = self.stage.gateways[1].host.address;
        let wanted = format!("vip plain: {}/32: {gateway} {words}", stage::PLAIN_VIP);
        let start = Instant::now();
        while !self.stage.log(&self.stage.front).contains(&wanted) {
            if start.elapsed() > PATIENCE {
                return Err(End::Failed(format!("not within {} s: {then}", PATIENCE.as_secs())));
            }
            self.pause(POLL)?;
        }
        self.progress.say(&format!("{then} (after {} ms)", start.elapsed().as_millis()));
        Ok(())
    }

    /// Lets things settle, then lets them go on for a while.
    fn calm(&self) -> Result<(), End> {
        self.pause(if self.options.fast { Duration::from_millis(1500) } else { Duration::from_secs(6) })
    }

    /// Expects a second in which these gateways answer, each a fair part, nobody else does, and hardly a request is lost.
    ///
    /// On a busy machine a check may fail for lack of time, so the first such second need not be the next one.
    fn expect_answers(&mut self, traffic: &Traffic, gateways: &[usize], then: &str) -> Result<(), End> {
        let names: Vec<&str> = gateways.iter().map(|&g| self.stage.gateways[g].host.name.as_str()).collect();
        let mut problems = Vec::new();
        for _ in 0..SECONDS {
            let from = Instant::now();
            self.pause(Duration::from_secs(1))?;
            let seen = traffic.since(from);
            problems = unexpected(&seen, &names);
            if problems.is_empty() {
                let part = |n: &&str| format!("{n} {}", seen.answers.get(*n).unwrap_or(&0));
                let parts: Vec<String> = names.iter().map(part).collect();
                self.progress.say(&format!("{then}: {}", parts.join(", ")));
                break;
            }
        }
        self.problems.append(&mut problems);
        Ok(())
    }

    /// Ends the traffic and holds what the client saw against what was expected.
    fn judge(&mut self, traffic: Traffic) -> Outcome {
        for fate in self.fates.iter().filter(|f| f.hashing != "plain" && f.broken > 0) {
            let (broken, of, hashing) = (fate.broken, fate.on_survivors, fate.hashing);
            let when = match fate.event {
                "drained" => "gw2 drained",
                "killed" => "gw3 was killed",
                _ => "gw3 joined",
            };
            self.problems
                .push(format!("{broken} of {of} connections broke with {hashing} hashing when {when}"));
        }
        let moments: Vec<Instant> = self.events.iter().map(|e| e.at).collect();
        let mut outcome = Outcome { connections: std::mem::take(&mut self.fates), ..Outcome::default() };
        for (event, seen) in self.events.iter().zip(traffic.finish(&moments)) {
            for (name, count) in &seen.answers {
                *outcome.gateways.entry(name.clone()).or_default() += count;
            }
            let lost: u64 = seen.losses.values().sum();
            let mut why: Vec<String> = seen.losses.iter().map(|(why, n)| format!("{n} {why}")).collect();
            // What a machine misses while it stands still says nothing about the fleet.
            let stood_still = if seen.stall > STALL { seen.stall } else { Duration::ZERO };
            if !stood_still.is_zero() {
                why.push(format!("the machine itself stood still for {} ms", stood_still.as_millis()));
            }
            let why = why.join(", ");
            let missed =
                u64::try_from(stood_still.as_nanos() / traffic::PERIOD.as_nanos()).unwrap_or(u64::MAX);
            let allowed = event.allowed.saturating_add(missed);
            let mut problem = |what: String| {
                let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
                outcome.problems.push(format!("when {}, {what}{why}", event.about));
            };
            if lost > allowed {
                problem(format!("{lost} requests were lost, more than {allowed}"));
            }
            if seen.gap > SILENCE + stood_still {
                problem(format!("nothing was answered for {} ms", seen.gap.as_millis()));
            }
            outcome.events.push(report::Measured {
                name: event.name,
                about: event.about.clone(),
                lost,
                why,
                gap: seen.gap,
                settled: seen.settled,
            });
        }
        outcome
    }

    /// Leaves everything running until a signal, and says how to look at it.
    fn keep(&mut self) {
        let me = std::process::id();
        // Without root it is a user namespace whose only other door is its own parameters.
        let user = if self.stage.unprivileged { " -U --preserve-credentials" } else { "" };
        let program = self.stage.program.display().to_string();
        self.progress.say("it keeps running until Ctrl-C; to look around:");
        self.progress.hint(
            "client",
            &format!("nsenter -t {me} -n{user} curl -s http://{}:{}/", stage::VIP, responder::PORT),
        );
        for host in self.stage.hosts() {
            let Some(pid) = host.pid() else { continue };
            let enter = format!("nsenter -t {pid} -n{user}");
            let look = if host.name == self.stage.front.name { "ip route" } else { "ip -brief address" };
            self.progress.hint(&host.name, &format!("{enter} {look}"));
            self.progress.hint("", &format!("{enter} {program} status --api {}", stage::API));
        }
        self.progress.hint("files", &self.stage.directory().display().to_string());
        while !self.signals.sleep(Duration::from_secs(3600)) {}
        self.progress.say("everything is gone again");
    }

    fn pause(&self, duration: Duration) -> Result<(), End> {
        if self.signals.sleep(duration) { Err(End::Interrupted) } else { Ok(()) }
    }
}

/// What is not as it should be in a second in which `names` alone are members.
fn unexpected(seen: &traffic::Summary, names: &[&str]) -> Vec<String> {
    let mut problems = Vec::new();
    let total: u64 = seen.answers.values().sum();
    for name in names {
        // A third or a half is expected; a quarter of that is far outside of what chance does.
        let fair = (total / (4 * names.len() as u64)).max(1);
        let part = *seen.answers.get(*name).unwrap_or(&0);
        if part < fair {
            problems.push(format!("{name} answered {part} of {total} requests within a second"));
        }
    }
    let lost: u64 = seen.losses.values().sum();
    // If a gateway took its part in vain, a third of the requests at least would be lost.
    if lost * 10 > total {
        problems
            .push(format!("{lost} requests were lost, and {total} answered, when it should have been over"));
    }
    for (other, count) in seen.answers.iter().filter(|(n, _)| !names.contains(&n.as_str())) {
        problems.push(format!("{other} answered {count} requests although it is not a member"));
    }
    problems
}

/// Time in which a drain would break what it breaks.
const SETTLE: Duration = Duration::from_millis(300);
/// One of so many seconds must be as it should; more would take a fast demo past its 20 s.
const SECONDS: u32 = 2;
/// Exit code after Ctrl-C: 128 and the number of SIGINT.
const INTERRUPTED: u8 = 130;
/// A member that comes moves connections to it, and those that are open at that moment may break: of requests that take a
/// millisecond seldom one, on a busy machine a few.
const REHASHED: u64 = 10;
/// A member that fails takes a third of the requests with it for as long as that stays unnoticed: 200 a second come, and two
/// checks in 200 ms find out. This is three times that, for a busy machine.
const FAILED: u64 = 40;
/// A machine that stands still for longer than this is to be judged by it.
const STALL: Duration = Duration::from_millis(50);
/// The longest that the client may wait for any answer at all.
const SILENCE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(answers: &[(&str, u64)], lost: u64) -> Vec<String> {
        let summary = traffic::Summary {
            answers: answers.iter().map(|&(name, n)| (name.to_owned(), n)).collect(),
            losses: [("reset".to_owned(), lost)].into(),
            ..traffic::Summary::default()
        };
        unexpected(&summary, &["gw1", "gw2"])
    }

    #[test]
    fn a_second_of_fair_parts_is_as_expected() {
        assert_eq!(seen(&[("gw1", 70), ("gw2", 130)], 1), Vec::<String>::new());
    }

    #[test]
    fn a_silent_gateway_a_stranger_and_many_losses_are_not() {
        assert!(seen(&[("gw1", 200)], 0)[0].contains("gw2 answered 0 of 200"));
        assert!(seen(&[], 200).iter().any(|p| p.contains("gw1 answered 0 of 0")));
        assert!(seen(&[("gw1", 100), ("gw2", 90), ("gw3", 1)], 0)[0].contains("gw3 answered 1"));
        assert!(seen(&[("gw1", 60), ("gw2", 70)], 70)[0].contains("70 requests were lost"));
    }
}
