//! Checks over the API: a run on demand, verdicts that are reported from outside, and the end of a damping.
//!
//! Both go the way of every other verdict, through the gate. A client that hangs up ends nothing: the run that it asked for
//! goes on, and counts as it comes out.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use standfast_core::health::{Expr, Gate, Health, Outcome, Verdict, disturbs};
use standfast_core::node::Input;
use standfast_core::plan::{CheckId, Probe};
use standfast_io::probe::RunNowError;
use std::time::Duration;

use crate::config;

use super::change::{Changer, Refusal, refused};
use super::serve::{Client, refuse};
use super::{Api, silent};

/// The most characters of a reported reason.
const REASON: usize = 300;

/// The shortest lease of a report, as of a check.
const SHORTEST: Duration = Duration::from_millis(100);

/// Which of a VIP's checks.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    check: Option<String>,
}

/// A verdict from outside.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Report {
    ok: bool,
    #[serde(default)]
    reason: String,
    /// Percent of the VIP's bandwidth.
    share: Option<u64>,
    /// As the configuration writes a duration.
    lease: Option<String>,
}

/// A check that was asked for: what it said, and whether just now.
struct Asked {
    name: String,
    verdict: Verdict,
    ran: bool,
    /// What it counts as, where that is not what it said.
    counted: Option<Verdict>,
}

/// Runs every check of a VIP, or one, and tells what came of it.
pub(super) async fn run(
    State(api): State<Api>,
    Extension(client): Extension<Client>,
    Path(vip): Path<String>,
    which: Result<Query<Which>, QueryRejection>,
) -> Result<Response, Refusal> {
    let Query(which) = which
        .or_else(|e| refused(StatusCode::BAD_REQUEST, format!("{}; write ?check=NAME", e.body_text())))?;
    let checks = api.chosen(&vip, which.check.as_deref())?;
    // All are asked for before any is waited for.
    let mut runs = Vec::new();
    for (name, id) in checks {
        let told = match api.checks.run_now(&id) {
            None => return refused(StatusCode::SERVICE_UNAVAILABLE, "the daemon is stopping"),
            Some(Ok(told)) => Some(told),
            // Nothing runs: what was reported last stands.
            Some(Err(RunNowError::Unknown(_))) => None,
            Some(Err(e @ RunNowError::Busy(_))) => {
                return refused(StatusCode::TOO_MANY_REQUESTS, e.to_string());
            }
        };
        runs.push((name, id, told));
    }
    let mut asked = Vec::new();
    for (name, id, told) in runs {
        let (verdict, ran) = match told {
            Some(told) => match told.await {
                Ok(verdict) => (verdict, true),
                Err(_) => return refused(StatusCode::SERVICE_UNAVAILABLE, "the daemon is stopping"),
            },
            None => (api.last(&id).await, false),
        };
        let counted = if ran { api.counted(&id, &verdict).await } else { None };
        let took = verdict.took.as_secs_f64() * 1e3;
        let word = match verdict.outcome {
            Outcome::Good => "good",
            Outcome::Bad => "bad",
            Outcome::NoResult => "no result",
        };
        if ran {
            let but = counted.as_ref().map_or(String::new(), |c| format!(" (counts as bad: {})", c.detail));
            tracing::info!("check {id}: run for {client}: {word} in {took:.1} ms: {}{but}", verdict.detail);
        }
        asked.push(Asked { name, verdict, ran, counted });
    }
    let healths = api.healths(&vip).await;
    let status = api.vip(&vip).await.ok_or_else(silent)?;
    let results: Map<String, Value> = asked.iter().map(|a| (a.name.clone(), a.json())).collect();
    let result = match &asked[..] {
        [one] => one.json(),
        several => match api.checks.plan().vips.get(&vip) {
            Some(plan) => together(several, &plan.policy, &healths),
            None => return Err(silent().into()),
        },
    };
    let body = json!({
        "vip": vip,
        "result": result,
        "results": results,
        "state": status.state,
        "state_name": status.state_name,
        "health_name": status.health_name,
        "reason": status.reason,
    });
    Ok(Json(body).into_response())
}

impl Asked {
    fn json(&self) -> Value {
        let Verdict { outcome, detail, took, timed_out, details, lease: _ } = &self.verdict;
        let mut value = json!({
            "success": *outcome == Outcome::Good,
            "outcome": outcome,
            "detail": detail,
            "duration": u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            "ran": self.ran,
        });
        if *timed_out {
            value["timed_out"] = true.into();
        }
        if let Some(Verdict { outcome, detail, .. }) = &self.counted {
            value["counted"] = json!({ "outcome": outcome, "detail": detail });
        }
        if let Some(details) = details {
            value["details"] = json!(details);
        }
        value
    }
}

/// What several checks say together: the policy's word, with what was not asked standing as it is.
fn together(asked: &[Asked], policy: &Expr, healths: &[(String, Health)]) -> Value {
    let of = |name: &str| match asked.iter().find(|a| a.name == name && a.ran).map(|a| a.verdict.outcome) {
        Some(Outcome::Good) => Health::Healthy,
        Some(Outcome::Bad) => Health::Unhealthy,
        Some(Outcome::NoResult) => Health::Unknown,
        None => healths.iter().find(|(n, _)| n == name).map_or(Health::Unknown, |(_, health)| *health),
    };
    let bad: Vec<String> = asked
        .iter()
        .filter(|a| a.verdict.outcome != Outcome::Good)
        .map(|a| format!("{}: {}", a.name, a.verdict.detail))
        .collect();
    let longest = asked.iter().map(|a| a.verdict.took.as_nanos()).max().unwrap_or_default();
    json!({
        "success": policy.evaluate(&of) == Health::Healthy,
        "detail": if bad.is_empty() { format!("all {} checks are good", asked.len()) } else { bad.join("; ") },
        "duration": u64::try_from(longest).unwrap_or(u64::MAX),
    })
}

/// Takes a verdict for a check of type push.
pub(super) async fn report(
    by: Changer,
    Path((vip, check)): Path<(String, String)>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let chosen = by.api.chosen(&vip, Some(&check))?;
    by.report(&vip, &chosen, &body).await
}

/// Takes a verdict for the only check of type push of a VIP.
pub(super) async fn report_only(
    by: Changer,
    Path(vip): Path<String>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let mut chosen = by.api.chosen(&vip, None)?;
    let plan = by.api.checks.plan();
    let checks = &plan.checks;
    chosen.retain(|(_, id)| checks.get(id).is_some_and(|c| c.probe == Probe::External));
    match chosen.len() {
        1 => by.report(&vip, &chosen, &body).await,
        0 => refused(StatusCode::CONFLICT, format!("VIP {vip} has no check of type push")),
        _ => {
            let names: Vec<_> = chosen.into_iter().map(|(name, _)| name).collect();
            let error = format!("VIP {vip} has several checks of type push: say which one");
            Err(Refusal::with(StatusCode::CONFLICT, json!({ "error": error, "checks": names })))
        }
    }
}

/// Forgets the failures for which a VIP is held back.
pub(super) async fn undamp(by: Changer, Path(vip): Path<String>) -> Result<Response, Refusal> {
    let Changer { api, client } = by;
    api.chosen(&vip, None)?;
    if api.checks.plan().vips.get(&vip).is_some_and(|plan| plan.damping.is_none()) {
        let why = format!("VIP {vip} has no damping: nothing holds it back for its failures");
        return refused(StatusCode::CONFLICT, why);
    }
    let before = api.vip(&vip).await.ok_or_else(silent)?;
    api.hand_in(Input::Undamp(vip.clone()))?;
    tracing::info!("vip {vip}: {client} has its failures forgotten");
    let status = api.vip(&vip).await.ok_or_else(silent)?;
    let mut body = json!({
        "vip": vip,
        "state_name": status.state_name,
        "health_name": status.health_name,
        "reason": status.reason,
    });
    if let Some(seconds) = before.damped {
        body["was_held"] = seconds.into();
    }
    Ok(Json(body).into_response())
}

/// Reads a body as a report, whatever it is.
pub(super) async fn fuzz(Path(path): Path<String>, Query(which): Query<Which>, body: Bytes) -> Response {
    let report = serde_json::from_slice::<Report>(&body)
        .map(|r| (r.ok, clean(&r.reason), r.lease.map(|l| shorter(&l).is_ok())));
    let order = super::members::fuzz(&body) || super::drains::fuzz(&body);
    let report = report.map_err(|e| e.to_string()).ok();
    Json(json!({ "path": path, "check": which.check, "report": report, "order": order })).into_response()
}

/// The lease that a report writes.
fn shorter(text: &str) -> Result<Duration, String> {
    let lease = config::duration(text).map_err(|why| format!("lease: {why}"))?;
    if lease < SHORTEST {
        return Err(format!("lease {text} is less than {}", config::show(SHORTEST)));
    }
    Ok(lease)
}

/// A reason that disturbs no log and no terminal.
fn clean(reason: &str) -> String {
    let clean = |c: char| if disturbs(c) { ' ' } else { c };
    reason.trim().chars().take(REASON).map(clean).collect()
}

impl Api {
    /// The checks of a VIP, or the one of this name, or what there is instead.
    fn chosen(&self, vip: &str, check: Option<&str>) -> Result<Vec<(String, CheckId)>, Refusal> {
        let plan = self.checks.plan();
        let vips = &plan.vips;
        let Some(plan) = vips.get(vip) else {
            let names: Vec<_> = vips.keys().take(1000).collect();
            // A shared check is printed by its name alone.
            let of = vips.iter().find(|(_, plan)| plan.checks.contains_key(vip));
            let hint = of.map_or(String::new(), |(of, _)| {
                format!("; it is a check: ask for VIP and NAME, {of} {vip}")
            });
            let body = json!({ "error": format!("VIP not found: {vip}{hint}"), "vips": names });
            return Err(Refusal::with(StatusCode::NOT_FOUND, body));
        };
        let chosen: Vec<_> = plan
            .checks
            .iter()
            .filter(|(name, _)| check.is_none_or(|check| check == *name))
            .map(|(name, id)| (name.clone(), id.clone()))
            .collect();
        if chosen.is_empty() {
            let names: Vec<_> = plan.checks.keys().collect();
            let error = format!("check not found: {}", check.unwrap_or_default());
            let body = json!({ "error": error, "checks": names });
            return Err(Refusal::with(StatusCode::NOT_FOUND, body));
        }
        Ok(chosen)
    }

    /// A share that can be asked for: in percent, of a bandwidth that the VIP announces.
    fn share(&self, vip: &str, percent: u64) -> Result<u8, Refusal> {
        let Some(percent) = u8::try_from(percent).ok().filter(|&percent| percent <= 100) else {
            let why = format!("share {percent} is not 0 to 100: it is a percentage of the VIP's bandwidth");
            return refused(StatusCode::BAD_REQUEST, why);
        };
        let plan = self.checks.plan();
        let communities = plan.vips.get(vip).map(|vip| &vip.announce.extended_communities);
        if communities.is_some_and(|all| all.iter().any(|c| matches!(c, [0x00 | 0x40, 0x04, ..]))) {
            return Ok(percent);
        }
        let why = format!(
            "VIP {vip} has no bandwidth to share: give it policy.announce.extended_communities: [\"bandwidth:ASN:BYTES_PER_SECOND\"]"
        );
        refused(StatusCode::CONFLICT, why)
    }

    /// The last verdict of a check.
    async fn last(&self, id: &CheckId) -> Verdict {
        let id = id.clone();
        let last =
            self.ask(move |node, _| node.gate(&id).and_then(|gate| gate.last().map(|(_, v)| v.clone())));
        let nothing = || Verdict { outcome: Outcome::NoResult, ..Verdict::good("nothing was reported yet") };
        last.await.flatten().unwrap_or_else(nothing)
    }

    /// What the gate made of a run that has ended, as [`counted`] tells it.
    async fn counted(&self, id: &CheckId, verdict: &Verdict) -> Option<Verdict> {
        if verdict.outcome != Outcome::Good {
            return None;
        }
        let (id, verdict) = (id.clone(), Verdict { details: None, ..verdict.clone() });
        self.ask(move |node, _| node.gate(&id).and_then(|gate| counted(gate, &verdict))).await.flatten()
    }

    /// The health of each check of a VIP, by name.
    async fn healths(&self, vip: &str) -> Vec<(String, Health)> {
        let checks = self.checks.plan().vips.get(vip).map(|plan| plan.checks.clone()).unwrap_or_default();
        let of = move |node: &standfast_core::node::Node, _| {
            let health = |id| node.gate(id).map_or(Health::Unknown, Gate::health);
            checks.iter().map(|(name, id)| (name.clone(), health(id))).collect()
        };
        self.ask(of).await.unwrap_or_default()
    }
}

impl Changer {
    /// Hands a report to the one check that was chosen.
    async fn report(
        &self,
        vip: &str,
        chosen: &[(String, CheckId)],
        body: &[u8],
    ) -> Result<Response, Refusal> {
        let Self { api, client } = self;
        let plan = api.checks.plan();
        let found = chosen.first().and_then(|(name, id)| Some((name, id, plan.checks.get(id)?)));
        let (name, id, plan) = found.ok_or_else(silent)?;
        if plan.probe != Probe::External {
            let kind = crate::checks::kind(&plan.probe);
            let why = format!(
                "check {id} is of type {kind} and decides by itself: only checks of type push take reports"
            );
            return refused(StatusCode::CONFLICT, why);
        }
        let bad = |why| refuse(StatusCode::BAD_REQUEST, why);
        let Report { ok, reason, share, lease } = serde_json::from_slice(body).map_err(|e| {
            let like = r#"{"ok": true} or {"ok": false, "reason": "...", "share": 40, "lease": "2s"}"#;
            bad(format!("this is no report: {e}; send {like}"))
        })?;
        let share = share.map(|percent| api.share(vip, percent)).transpose()?;
        let lease = lease.map(|lease| shorter(&lease)).transpose().map_err(bad)?;
        let reason = match (clean(&reason), ok) {
            (reason, true) if reason.is_empty() => "reported good".to_owned(),
            (reason, false) if reason.is_empty() => "reported bad".to_owned(),
            (reason, _) => reason,
        };
        tracing::debug!("check {id}: {client} reports {}: {reason}", if ok { "good" } else { "bad" });
        let verdict = if ok { Verdict::good(reason) } else { Verdict::bad(reason) };
        let share = share.map(|percent| (vip, percent));
        if !api.checks.report(id, Verdict { lease, ..verdict }, share) {
            let why = "the speaker takes no report: it is busy or stopping";
            return refused(StatusCode::SERVICE_UNAVAILABLE, why);
        }
        let status = api.vip(vip).await.ok_or_else(silent)?;
        let body = json!({
            "vip": vip,
            "check": name,
            "accepted": true,
            "share": status.share,
            "lease": lease.map_or(plan.interval, |lease| lease.min(plan.interval)).as_secs_f64(),
            "state_name": status.state_name,
            "health_name": status.health_name,
            "reason": status.reason,
        });
        Ok(Json(body).into_response())
    }
}

/// The bad verdict that a good one counts as, because it was one too many of the slow ones; `None` as well if another run has
/// ended since.
fn counted(gate: &Gate, verdict: &Verdict) -> Option<Verdict> {
    let (_, last) = gate.last()?;
    // The gate keeps the time that a run took, and to the nanosecond it is that of this run.
    (last.outcome == Outcome::Bad && verdict.outcome == Outcome::Good && last.took == verdict.took)
        .then(|| last.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(name: &str, outcome: Outcome) -> Asked {
        let verdict = Verdict { outcome, took: Duration::from_millis(2), ..Verdict::good("words") };
        Asked { name: name.into(), verdict, ran: true, counted: None }
    }

    #[test]
    fn several_results_are_judged_by_the_policy() {
        let policy = Expr::parse("a && (b || c)", &["a", "b", "c"]).unwrap();
        let healths = [("c".to_owned(), Health::Healthy)];
        let value = together(&[asked("a", Outcome::Good), asked("b", Outcome::Bad)], &policy, &healths);
        assert_eq!(value["success"], true);
        assert_eq!(value["detail"], "b: words");
        let value = together(&[asked("a", Outcome::NoResult), asked("b", Outcome::Good)], &policy, &healths);
        assert_eq!(value["success"], false);
        assert_eq!(value["duration"], 2_000_000);
    }

    #[test]
    fn a_good_run_that_counts_as_bad_says_so() {
        use standfast_core::machine::Time;
        use standfast_core::plan::{Check, Slow};
        let slow = Some(Slow { limit: Duration::from_millis(1), times: 2 });
        let mut gate = Gate::new(Time::ZERO, &Check { slow, ..Check::new(Probe::External) });
        let run = |micros| Verdict { took: Duration::from_micros(micros), ..Verdict::good("status 200") };
        let told = |gate: &mut Gate, verdict: Verdict| {
            gate.push(Time::ZERO, verdict.clone());
            counted(gate, &verdict)
        };
        assert_eq!(
            (told(&mut gate, run(900)), told(&mut gate, run(2000))),
            (None, None),
            "one slow run is allowed"
        );
        let bad = told(&mut gate, run(3000)).unwrap();
        assert_eq!(bad.detail, "slow: 2 runs in a row over 1ms, the last 3ms");
        let value = Asked { name: "a".into(), verdict: run(3000), ran: true, counted: Some(bad) }.json();
        assert_eq!((&value["outcome"], &value["counted"]["outcome"]), (&json!("good"), &json!("bad")));
        assert_eq!(counted(&gate, &run(2500)), None, "the last word is of another run");
        assert_eq!(told(&mut gate, run(800)), None);
    }

    #[test]
    fn reasons_are_bounded_and_hold_no_control_characters() {
        assert_eq!(clean(" a\x1b[2J\nb "), "a [2J b");
        assert_eq!(clean(&"ä".repeat(1000)).chars().count(), REASON);
    }

    #[test]
    fn a_lease_is_written_as_in_the_configuration() {
        assert_eq!(shorter("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(shorter("50ms").unwrap_err(), "lease 50ms is less than 100ms");
        for text in ["", "2", "-1s", "0s", "forever", "99999999999999999999h"] {
            assert!(shorter(text).is_err(), "{text}");
        }
    }
}
