//! The checks of a running daemon: their prober, and what is kept of their runs beside the gates.
//!
//! Every verdict passes here on its way to the node, the prober's and those that were reported from outside. What a run saw
//! stays here; nothing is decided on it. A verdict costs one look-up and a lock that nobody else holds for long.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use standfast_core::health::{Details, Outcome, Verdict};
use standfast_core::node::Input;
use standfast_core::plan::{CheckId, Plan, Probe, TlsOptions};
use standfast_io::drive::Handle;
use standfast_io::probe::{Prober, RunCounts, RunNowError};
use tokio::sync::oneshot;

/// Upper bounds of the histogram of run times, in seconds; one more bucket holds the rest.
pub const BUCKETS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// How long the node may take to tell which checks are in a hurry.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is kept of the runs of a check.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// Runs by how long they took, after [`BUCKETS`]. Runs without a result are not among them.
    pub took: [u64; BUCKETS.len() + 1],
    /// The sum of their times.
    pub sum: Duration,
    /// What the last run saw.
    pub details: Option<Box<Details>>,
    /// When the certificate that was seen last expires, in seconds since 1970: also while none can be seen.
    pub certificate_expires: Option<i64>,
}

impl Record {
    fn note(&mut self, verdict: &mut Verdict) {
        if let Some(details) = verdict.details.take() {
            self.certificate_expires = details.certificate_expires.or(self.certificate_expires);
            self.details = Some(details);
        }
        if verdict.outcome != Outcome::NoResult {
            let seconds = verdict.took.as_secs_f64();
            let bucket = BUCKETS.iter().position(|&most| seconds <= most).unwrap_or(BUCKETS.len());
            self.took[bucket] += 1;
            self.sum += verdict.took;
        }
    }
}

/// The checks of a running daemon.
pub struct Checks {
    plan: Mutex<Arc<Plan>>,
    kept: Kept,
    handle: Handle,
    /// `None`: the daemon leaves.
    prober: Mutex<Option<Arc<Prober>>>,
}

/// Records by check: as many as there are checks. The map has room for more, so that it does not hold them itself.
#[derive(Debug, Clone, Default)]
struct Kept(Arc<RwLock<HashMap<CheckId, Box<Mutex<Record>>>>>);

impl Kept {
    fn note(&self, id: &CheckId, verdict: &mut Verdict) {
        if let Some(record) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(id) {
            record.lock().unwrap_or_else(PoisonError::into_inner).note(verdict);
        }
    }

    fn look(&self, id: &CheckId, see: impl Fn(&Record) -> Record) -> Option<Record> {
        let records = self.0.read().unwrap_or_else(PoisonError::into_inner);
        records.get(id).map(|record| see(&record.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Makes room for the checks of `new`, anew for those that ask something else than in `old`.
    fn change(&self, old: &Plan, new: &Plan) {
        let mut records = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let same = |id: &CheckId| {
            let (old, new) = (old.checks.get(id), new.checks.get(id));
            old.zip(new).is_some_and(|(old, new)| old.asks_as(new))
        };
        records.retain(|id, _| same(id));
        for id in new.checks.keys() {
            records.entry(id.clone()).or_default();
        }
    }
}

impl Checks {
    /// Starts the checks of `plan`, which report to the node behind `handle`.
    ///
    /// # Errors
    /// Every check that cannot run, with the reason.
    pub fn start(plan: &Arc<Plan>, handle: &Handle) -> Result<Self, String> {
        let kept = Kept::default();
        kept.change(plan, plan);
        let (noted, node) = (kept.clone(), handle.clone());
        let note = move |id: &CheckId, verdict: &mut Verdict| noted.note(id, verdict);
        let report = move |ended: Vec<(CheckId, Verdict)>| {
            node.send_all(ended.into_iter().map(|(id, verdict)| Input::Reported(id, verdict)));
        };
        let node = handle.clone();
        let held_up = move |gone| {
            // A node that has no room for it hears what follows.
            node.send(Input::HeldUp(gone));
        };
        let prober = Prober::start_telling(note, report, held_up)
            .map_err(|e| format!("cannot start the checks: {e}"))?;
        prober.set(&plan.checks).map_err(|problems| words(&problems).join("; "))?;
        Ok(Self {
            plan: Mutex::new(Arc::clone(plan)),
            kept,
            handle: handle.clone(),
            prober: Mutex::new(Some(Arc::new(prober))),
        })
    }

    /// Goes on by the checks of `plan`, once `take` has had the node go on by it: no verdict of a check that is another one by
    /// then is taken for one of its successor, and none is lost of one that stays. The files of all of them are read again.
    ///
    /// # Errors
    /// Every check that cannot run, or what `take` says. Then nothing has changed.
    pub fn reload(
        &self,
        plan: &Arc<Plan>,
        take: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), Vec<String>> {
        let leaving = || vec!["this host is leaving".to_owned()];
        let prober = self.prober().ok_or_else(leaving)?;
        let ready = Prober::ready(&plan.checks).map_err(|problems| words(&problems))?;
        let old = self.plan();
        prober.retire(&ready);
        if let Err(why) = take() {
            // They ran until this moment, and can again.
            let _ = prober.set(&old.checks);
            self.match_pace(&prober, &old);
            return Err(vec![why]);
        }
        self.kept.change(&old, plan);
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(plan);
        prober.put(ready);
        self.match_pace(&prober, plan);
        Ok(())
    }

    /// Checks that start anew hurry; those whose health is known need not.
    fn match_pace(&self, prober: &Prober, plan: &Arc<Plan>) {
        let ids = Arc::clone(plan);
        let calm = self.handle.query(PATIENCE, move |node, _| {
            let calm = |id: &&CheckId| node.gate(id).is_some_and(|gate| !gate.is_hurried());
            ids.checks.keys().filter(calm).cloned().collect::<Vec<_>>()
        });
        calm.iter().flatten().for_each(|id| prober.hurry(id, false));
    }

    /// Ends every run; no verdict comes any more.
    pub fn stop(&self) {
        drop(self.prober.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Runs a check at its `fast_interval`, or at its interval again.
    pub fn hurry(&self, id: &CheckId, on: bool) {
        if let Some(prober) = self.prober() {
            prober.hurry(id, on);
        }
    }

    /// A handle of its own, so that nobody waits for what another does with it.
    fn prober(&self) -> Option<Arc<Prober>> {
        self.prober.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What runs.
    pub fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.plan.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs a check now, as [`Prober::run_now`] does. `None`: the daemon leaves.
    pub fn run_now(&self, id: &CheckId) -> Option<Result<oneshot::Receiver<Verdict>, RunNowError>> {
        self.prober().map(|prober| prober.run_now(id))
    }

    /// Takes a verdict from outside, and the share in percent that is asked for a VIP with it; false if the node has no room for
    /// them, or is gone.
    pub fn report(&self, id: &CheckId, verdict: Verdict, share: Option<(&str, u8)>) -> bool {
        // The share first: what is announced by the verdict is announced with it.
        let share = share.map(|(vip, percent)| Input::Share(vip.to_owned(), percent));
        self.handle.send_all(share.into_iter().chain([Input::Reported(id.clone(), verdict)]))
    }

    /// How often each check ran, and how often not in time.
    pub fn counts(&self) -> BTreeMap<CheckId, RunCounts> {
        self.prober().map(|prober| prober.counts()).unwrap_or_default()
    }

    /// What is kept of a check.
    pub fn record(&self, id: &CheckId) -> Option<Record> {
        self.kept.look(id, Record::clone)
    }

    /// The same without what its last run saw, which takes most of the memory.
    pub fn tally(&self, id: &CheckId) -> Option<Record> {
        self.kept.look(id, |record| {
            let &Record { took, sum, certificate_expires, .. } = record;
            Record { took, sum, certificate_expires, details: None }
        })
    }
}

fn words(problems: &[(CheckId, String)]) -> Vec<String> {
    problems.iter().map(|(id, why)| format!("check {id}: {why}")).collect()
}

/// The type of a check, as the file writes it.
pub const fn kind(probe: &Probe) -> &'static str {
    match probe {
        Probe::Http(_) => "http",
        Probe::Tcp(_) => "tcp",
        Probe::Exec(_) => "exec",
        Probe::Dns(_) => "dns",
        Probe::Ping(_) => "ping",
        Probe::Udp(_) => "udp",
        Probe::Grpc(_) => "grpc",
        Probe::Process(_) => "process",
        Probe::External => "push",
        Probe::Members(_) => "members",
    }
}

/// Whether it takes any certificate.
pub fn is_insecure(probe: &Probe) -> bool {
    let tls: Option<&TlsOptions> = match probe {
        Probe::Http(http) => http.tls.as_ref(),
        Probe::Tcp(tcp) => tcp.tls.as_ref(),
        Probe::Grpc(grpc) => grpc.tls.as_ref(),
        Probe::Exec(_)
        | Probe::Process(_)
        | Probe::Dns(_)
        | Probe::Ping(_)
        | Probe::Udp(_)
        | Probe::Members(_)
        | Probe::External => None,
    };
    tls.is_some_and(|tls| tls.insecure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_certificate_is_known_while_none_is_seen() {
        let mut record = Record::default();
        for (seen, kept) in [(None, None), (Some(7), Some(7)), (None, Some(7)), (Some(9), Some(9))] {
            let details = Some(Box::new(Details { certificate_expires: seen, ..Details::default() }));
            record.note(&mut Verdict { details, ..Verdict::bad("") });
            assert_eq!(record.certificate_expires, kept);
        }
    }

    #[test]
    fn every_run_with_a_result_is_in_one_bucket() {
        let mut record = Record::default();
        for (millis, outcome) in [
            (1, Outcome::Good),
            (2, Outcome::Bad),
            (100, Outcome::Good),
            (7000, Outcome::Bad),
            (3, Outcome::NoResult),
        ] {
            let took = Duration::from_millis(millis);
            let details = Some(Box::default());
            let mut verdict = Verdict { outcome, took, details, ..Verdict::good("") };
            record.note(&mut verdict);
            assert_eq!(verdict.details, None, "the node has no use for it");
        }
        assert_eq!(record.took, [1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]);
        assert_eq!(record.sum, Duration::from_millis(7103));
        assert!(record.details.is_some());
    }
}
