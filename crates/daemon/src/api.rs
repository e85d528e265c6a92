//! The HTTP API on loopback: `/healthz`, `/readyz`, `/status`. It only reads, and the speaker never waits for it.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use standfast_core::bgp;
use standfast_core::node::{Node, Status};
use standfast_io::drive::Handle;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a request waits for the speaker's answer before it says that there is none.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the API needs to know.
#[derive(Clone)]
pub struct Api {
    handle: Handle,
    started: SystemTime,
    started_at: Instant,
}

impl Api {
    /// An API over a running node.
    pub fn new(handle: Handle) -> Self {
        Self { handle, started: SystemTime::now(), started_at: Instant::now() }
    }

    /// Serves on `listener` until the process ends.
    ///
    /// # Errors
    /// If the listening socket fails.
    pub async fn serve(self, listener: tokio::net::TcpListener) -> std::io::Result<()> {
        let router = Router::new()
            .route("/healthz", get(|| async { Json(json!({ "status": "ok" })) }))
            .route("/readyz", get(readyz))
            .route("/status", get(status))
            .fallback(|| async {
                let paths = json!({ "error": "no such path", "paths": ["/healthz", "/readyz", "/status"] });
                (StatusCode::NOT_FOUND, Json(paths))
            })
            .with_state(self);
        axum::serve(listener, router).await
    }

    /// The node's status, read on a thread that may wait.
    async fn read(&self) -> Option<Status> {
        let handle = self.handle.clone();
        let ask = move || handle.query(PATIENCE, Node::status);
        tokio::task::spawn_blocking(ask).await.ok().flatten()
    }
}

/// Binds the API's address.
///
/// # Errors
/// If it cannot be bound; the message names it and says what to do.
pub async fn bind(address: SocketAddr) -> Result<tokio::net::TcpListener, String> {
    tokio::net::TcpListener::bind(address).await.map_err(|e| {
        format!(
            "api.listen: cannot listen on {address}: {e}; choose another address or stop the other program"
        )
    })
}

fn silent() -> Response {
    let body = json!({ "error": "the speaker did not answer within 2 s" });
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

/// Ready while every required peer is established and the daemon is not leaving.
async fn readyz(State(api): State<Api>) -> Response {
    let Some(status) = api.read().await else { return silent() };
    let unready: Vec<Value> = status
        .peers
        .iter()
        .filter(|p| p.required && p.session_state != bgp::State::Established)
        .map(|p| json!({ "name": p.name, "session_state": p.session_state, "last_down": p.last_down }))
        .collect();
    let ready = unready.is_empty() && status.stopping.is_none();
    let mut body = json!({ "status": if ready { "ready" } else { "not_ready" }, "peers": status.peers });
    if !ready {
        body["unready"] = unready.into();
        body["stopping"] = json!(status.stopping);
    }
    (if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, Json(body)).into_response()
}

async fn status(State(api): State<Api>) -> Response {
    let Some(status) = api.read().await else { return silent() };
    let mut body = json!(status);
    let since_epoch = api.started.duration_since(UNIX_EPOCH).unwrap_or_default();
    body["version"] = env!("CARGO_PKG_VERSION").into();
    body["start_time"] = since_epoch.as_secs().into();
    body["uptime"] = api.started_at.elapsed().as_secs_f64().into();
    Json(body).into_response()
}
