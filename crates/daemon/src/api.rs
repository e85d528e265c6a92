//! The HTTP API: how things are, metrics, runs on demand, reports, drains, and the end of a damping. The speaker never waits for it.

mod change;
mod drains;
mod members;
mod reload;
mod serve;
mod verdicts;

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use standfast_core::bgp;
use standfast_core::machine::Time;
use standfast_core::node::{Input, ListenerStatus, Node, Status, VipStatus};
use standfast_core::plan::{CheckId, Plan, Probe, Secret};
use standfast_io::drive::Handle;
use standfast_io::memory;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;

use crate::checks::{self, Checks};
use crate::metrics;
use crate::reload::Reloads;
use change::Refusal;
pub use serve::{Listeners, bind, serve};

/// What a client sends to the API, over TCP and over the unix socket: for fuzzing.
#[doc(hidden)]
pub fn fuzz(octets: &[u8]) {
    serve::fuzz(octets, Router::new().route("/{*path}", get(verdicts::fuzz).post(verdicts::fuzz)));
}

/// How long a request waits for the speaker's answer before it says that there is none.
const PATIENCE: Duration = Duration::from_secs(2);

/// A text that is longer than this, in octets, is a long one.
const LONG: usize = 1 << 20;

/// VIPs that are asked for in one question.
const VIPS: usize = 50;

/// The listener's VIPs that are asked for in one question.
const SPREAD: usize = 100;

/// Every path, for whoever asks for another one.
const PATHS: [&str; 15] = [
    "/healthz",
    "/readyz",
    "/status",
    "/metrics",
    "POST /api/v1/vips/{vip}/check",
    "POST /api/v1/vips/{vip}/report",
    "POST /api/v1/vips/{vip}/checks/{check}/report",
    "POST /api/v1/vips/{vip}/undamp",
    "POST /api/v1/vips/{vip}/drain",
    "POST /api/v1/vips/{vip}/undrain",
    "POST /api/v1/reload",
    "POST /api/v1/drain",
    "POST /api/v1/undrain",
    "POST /api/v1/listener/members/{address}/drain",
    "POST /api/v1/listener/members/{address}/undrain",
];

/// What the API needs to know.
#[derive(Clone)]
pub struct Api {
    handle: Handle,
    checks: Arc<Checks>,
    reloads: Arc<Reloads>,
    tokens: Arc<Vec<Secret>>,
    started: SystemTime,
    started_at: Instant,
    /// Long answers are made one at a time.
    turn: Arc<Semaphore>,
}

impl Api {
    /// An API over a running node. One of `tokens`, if there are any, is needed to change anything over TCP.
    pub fn new(handle: Handle, checks: Arc<Checks>, reloads: Arc<Reloads>, tokens: Vec<Secret>) -> Self {
        Self {
            handle,
            checks,
            reloads,
            tokens: Arc::new(tokens),
            started: SystemTime::now(),
            started_at: Instant::now(),
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    /// What answers.
    pub fn router(self) -> Router {
        Router::new()
            .route("/healthz", get(|| async { Json(json!({ "status": "ok" })) }))
            .route("/readyz", get(readyz))
            .route("/status", get(status))
            .route("/metrics", get(scrape))
            .route("/api/v1/vips/{vip}/check", post(verdicts::run))
            .route("/api/v1/vips/{vip}/report", post(verdicts::report_only))
            .route("/api/v1/vips/{vip}/checks/{check}/report", post(verdicts::report))
            .route("/api/v1/vips/{vip}/undamp", post(verdicts::undamp))
            .route("/api/v1/vips/{vip}/drain", post(drains::drain))
            .route("/api/v1/vips/{vip}/undrain", post(drains::undrain))
            .route("/api/v1/reload", post(reload::reload))
            .route("/api/v1/drain", post(drains::drain_all))
            .route("/api/v1/undrain", post(drains::undrain_all))
            .route("/api/v1/listener/members/{address}/drain", post(members::drain))
            .route("/api/v1/listener/members/{address}/undrain", post(members::undrain))
            .fallback(|| async {
                let paths = json!({ "error": "no such path", "paths": PATHS });
                (StatusCode::NOT_FOUND, Json(paths))
            })
            .with_state(self)
    }

    /// Asks the node on a thread that may wait; `None` if it does not answer.
    async fn ask<R: Send + 'static>(&self, ask: impl FnOnce(&Node, Time) -> R + Send + 'static) -> Option<R> {
        let handle = self.handle.clone();
        tokio::task::spawn_blocking(move || handle.query(PATIENCE, ask)).await.ok().flatten()
    }

    /// The whole status, asked for in parts: no question keeps the node for long.
    async fn read(&self) -> Option<Status> {
        let mut status = self.ask(Node::host_status).await?;
        let names: Vec<String> = self.checks.plan().vips.keys().cloned().collect();
        for names in names.chunks(VIPS) {
            let names = names.to_vec();
            let some = move |node: &Node, now| {
                names.iter().filter_map(|name| node.vip_status(now, name)).collect::<Vec<_>>()
            };
            status.vips.extend(self.ask(some).await?);
        }
        status.listener = self.spread(status.listener).await?;
        Some(status)
    }

    /// What is known of the listener, with its VIPs, which are asked for in parts.
    async fn spread(&self, head: Option<ListenerStatus>) -> Option<Option<ListenerStatus>> {
        let Some(mut status) = head else { return Some(None) };
        let mut after = None;
        loop {
            let slice = self.ask(move |node, now| node.listener_slice(now, after, SPREAD)).await?;
            after = slice.last();
            if after.is_none() {
                return Some(Some(status));
            }
            status.add(slice);
        }
    }

    /// The whole status of the listener; `None` if the node does not answer, or has none.
    async fn listener(&self) -> Option<ListenerStatus> {
        let head = self.ask(Node::listener_head).await?;
        self.spread(head).await?
    }

    /// Every number that metrics are made of, asked for in parts too.
    async fn numbers(&self) -> Option<metrics::Seen> {
        let mut seen = self.ask(metrics::Seen::of).await?;
        seen.listener = self.spread(seen.listener.take()).await?;
        for n in 0..seen.plan.checks.len().div_ceil(metrics::SLICE) {
            let plan = Arc::clone(&seen.plan);
            seen.add(self.ask(move |node, _| metrics::Seen::slice(node, &plan, n)).await?);
        }
        Some(seen)
    }

    /// Hands the node an input that a client asks for.
    fn hand_in(&self, input: Input) -> Result<(), Refusal> {
        if self.handle.send(input) {
            return Ok(());
        }
        change::refused(StatusCode::SERVICE_UNAVAILABLE, "the speaker takes nothing: it is busy or stopping")
    }

    async fn vip(&self, name: &str) -> Option<VipStatus> {
        let name = name.to_owned();
        self.ask(move |node, now| node.vip_status(now, &name)).await.flatten()
    }
}

/// A long answer. Once it is sent, what it took and what it was made of, which is many times as large, goes back to the system.
struct Long(String);

impl AsRef<[u8]> for Long {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl Drop for Long {
    fn drop(&mut self) {
        drop(std::mem::take(&mut self.0));
        memory::give_back();
    }
}

fn body(text: String) -> Body {
    if text.len() > LONG { Body::from(Bytes::from_owner(Long(text))) } else { Body::from(text) }
}

fn silent() -> Response {
    let body = json!({ "error": "the speaker did not answer within 2 s" });
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

/// Ready while every required peer is established and the daemon is not leaving.
async fn readyz(State(api): State<Api>) -> Response {
    let asked = |node: &Node, now| (node.peers_status(now), node.stopping().map(str::to_owned));
    let Some((peers, stopping)) = api.ask(asked).await else { return silent() };
    let unready: Vec<Value> = peers
        .iter()
        .filter(|p| p.required && p.session_state != bgp::State::Established)
        .map(|p| json!({ "name": p.name, "session_state": p.session_state, "last_down": p.last_down }))
        .collect();
    let ready = unready.is_empty() && stopping.is_none();
    let mut body = json!({ "status": if ready { "ready" } else { "not_ready" }, "peers": peers });
    if !ready {
        body["unready"] = unready.into();
        body["stopping"] = json!(stopping);
    }
    (if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, Json(body)).into_response()
}

async fn status(State(api): State<Api>) -> Response {
    let Ok(_turn) = api.turn.acquire().await else { return silent() };
    let Some(status) = api.read().await else { return silent() };
    let since_epoch = api.started.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (uptime, reload) = (api.started_at.elapsed(), api.reloads.last());
    let checks = Arc::clone(&api.checks);
    let whole = tokio::task::spawn_blocking(move || {
        let mut body = json!(status);
        body["version"] = env!("CARGO_PKG_VERSION").into();
        body["start_time"] = since_epoch.as_secs().into();
        body["uptime"] = uptime.as_secs_f64().into();
        if let Some(reload) = reload {
            body["reload"] = reload;
        }
        describe(&mut body, &checks);
        body.to_string()
    });
    match whole.await {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], self::body(text)).into_response(),
        Err(_) => silent(),
    }
}

/// Adds to each check of a status what the node does not know: what it is, how it runs, and what its last run saw.
fn describe(status: &mut Value, checks: &Checks) {
    let (counts, plan) = (checks.counts(), checks.plan());
    for vip in status["vips"].as_array_mut().into_iter().flatten() {
        let Some(of) = vip["name"].as_str().and_then(|name| plan.vips.get(name)) else { continue };
        for check in vip["checks"].as_array_mut().into_iter().flatten() {
            let id = check["name"].as_str().and_then(|name| of.checks.get(name));
            if let Some(id) = id {
                about(check, id, &plan, checks);
                if let Some(counts) = counts.get(id) {
                    check["overruns"] = counts.overruns.into();
                    check["late"] = counts.late.into();
                }
            }
        }
    }
}

fn about(check: &mut Value, id: &CheckId, plan: &Plan, known: &Checks) {
    let Some(plan) = plan.checks.get(id) else { return };
    let hurried = check["hurried"] == true;
    check["type"] = checks::kind(&plan.probe).into();
    let decides = matches!(plan.probe, Probe::Members(_));
    if !decides {
        check["interval"] = plan.interval_in_force(hurried).as_secs_f64().into();
    }
    if !decides && plan.probe != Probe::External {
        check["timeout"] = plan.timeout.as_secs_f64().into();
    }
    check["rise"] = plan.rise.into();
    check["fall"] = plan.fall.into();
    if checks::is_insecure(&plan.probe) {
        check["insecure"] = true.into();
    }
    if let Some(details) = known.record(id).and_then(|record| record.details) {
        check["details"] = json!(details);
    }
}

/// All metrics, or the families that are named: `?name[]=standfast_check_late&name[]=...`.
async fn scrape(
    State(api): State<Api>,
    Query(asked): Query<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Response {
    let names = asked.into_iter().filter(|(key, _)| key == "name[]").map(|(_, name)| name).collect();
    let accepts = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let open = accepts.contains("application/openmetrics-text");
    let Ok(_turn) = api.turn.acquire().await else { return silent() };
    let Some(seen) = api.numbers().await else { return silent() };
    let (checks, started) = (Arc::clone(&api.checks), api.started);
    let made = move || metrics::render(seen, &checks, started, open, names);
    let text = tokio::task::spawn_blocking(made).await;
    match text {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::content_type(open))], body(text)).into_response(),
        Err(_) => silent(),
    }
}
