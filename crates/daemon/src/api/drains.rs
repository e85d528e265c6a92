//! VIPs of this host over the API: to drain one or all, and to let them serve again.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use standfast_core::node::{Input, Node};

use super::change::{Changer, Refusal, refused};
use super::silent;
use crate::config;

/// What is ordered. Every field can be left away, and so can the body.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    /// The longest that it may take, such as `30s`; without it, as long as each VIP says.
    deadline: Option<String>,
}

/// Drains a VIP.
pub(super) async fn drain(by: Changer, Path(vip): Path<String>, body: Bytes) -> Result<Response, Refusal> {
    by.drain(Some(vip), &body, true).await
}

/// Takes the order to drain a VIP back.
pub(super) async fn undrain(by: Changer, Path(vip): Path<String>, body: Bytes) -> Result<Response, Refusal> {
    by.drain(Some(vip), &body, false).await
}

/// Drains every VIP.
pub(super) async fn drain_all(by: Changer, body: Bytes) -> Result<Response, Refusal> {
    by.drain(None, &body, true).await
}

/// Takes every order to drain a VIP back.
pub(super) async fn undrain_all(by: Changer, body: Bytes) -> Result<Response, Refusal> {
    by.drain(None, &body, false).await
}

/// Reads a body as an order, whatever it is.
pub(super) fn fuzz(body: &[u8]) -> bool {
    read(body, true).is_ok()
}

/// The longest that the drain may take.
fn read(body: &[u8], drain: bool) -> Result<Option<Duration>, String> {
    let like = r#"send {}, or {"deadline": "30s"}"#;
    let Order { deadline } = match body {
        [] => Order::default(),
        body => serde_json::from_slice(body).map_err(|e| format!("this is no order: {e}; {like}"))?,
    };
    if deadline.is_some() && !drain {
        return Err("an undrain has no deadline: it counts at once".to_owned());
    }
    deadline.map(|text| config::duration(&text)).transpose()
}

/// Why the order to drain these VIPs cannot be taken back.
fn not_ordered(node: &Node, vips: &[String]) -> Option<String> {
    let view = |vip: &String| node.vip_view(vip).map(|(view, _)| view);
    if vips.iter().filter_map(view).any(|view| view.is_ordered()) {
        return None;
    }
    let drains = vips.iter().filter_map(|vip| Some((vip, view(vip)?.drain.as_ref()?)));
    let mut drains = drains.map(|(vip, drain)| format!("{vip} drains: {}", drain.cause));
    Some(drains.next().unwrap_or_else(|| "nobody ordered a drain".to_owned()))
}

impl Changer {
    async fn drain(self, vip: Option<String>, body: &[u8], drain: bool) -> Result<Response, Refusal> {
        let Self { api, client } = self;
        let deadline = read(body, drain).or_else(|why| refused(StatusCode::BAD_REQUEST, why))?;
        let all: Vec<String> = api.checks.plan().vips.keys().cloned().collect();
        let vips = match &vip {
            None if all.is_empty() => return refused(StatusCode::NOT_FOUND, "this host announces no VIPs"),
            None => all,
            Some(name) if all.contains(name) => vec![name.clone()],
            Some(name) => {
                let mut error = format!("this host announces no VIP named {name}");
                if api.checks.plan().listener.is_some() {
                    error += "; a member of its listener is drained by its address";
                }
                let vips: Vec<_> = all.iter().take(1000).collect();
                return Err(Refusal::with(StatusCode::NOT_FOUND, json!({ "error": error, "vips": vips })));
            }
        };
        let asked = vips.clone();
        let state = move |node: &Node, _| {
            let why = if drain { None } else { not_ordered(node, &asked) };
            (why, node.stopping().map(str::to_owned))
        };
        match api.ask(state).await.ok_or_else(silent)? {
            (_, Some(why)) if drain => {
                return refused(StatusCode::CONFLICT, format!("the daemon leaves already: {why}"));
            }
            (Some(why), _) => return refused(StatusCode::CONFLICT, why),
            _ => {}
        }
        let about = vip.as_deref().unwrap_or("every one");
        tracing::info!("vip {about}: {client} {}", if drain { "orders a drain" } else { "ends the drain" });
        let input = match drain {
            true => Input::DrainVip { vip, deadline },
            false => Input::UndrainVip { vip },
        };
        api.hand_in(input)?;
        let status = move |node: &Node, now| {
            vips.iter().filter_map(|vip| node.vip_status(now, vip)).map(|vip| told(&vip)).collect::<Vec<_>>()
        };
        let vips = api.ask(status).await.ok_or_else(silent)?;
        Ok(Json(json!({ "vips": vips })).into_response())
    }
}

/// What has become of a VIP.
fn told(vip: &standfast_core::node::VipStatus) -> Value {
    json!({
        "name": vip.name,
        "state_name": vip.state_name,
        "health_name": vip.health_name,
        "reason": vip.reason,
        "drain": vip.drain,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_is_meant_or_not_at_all() {
        let secs = Duration::from_secs;
        assert_eq!(read(b"", true), Ok(None));
        assert_eq!(read(b"{}", false), Ok(None));
        assert_eq!(read(br#"{"deadline": "1m30s"}"#, true), Ok(Some(secs(90))));
        for (body, drain, words) in [
            (r#"{"deadline": "30"}"#, true, "has no unit"),
            (r#"{"timeout": "30s"}"#, true, "unknown field `timeout`"),
            (r#"{"deadline": "30s"}"#, false, "counts at once"),
            ("[1", true, "this is no order"),
        ] {
            let why = read(body.as_bytes(), drain).unwrap_err();
            assert!(why.contains(words), "{body}: {why}");
        }
    }
}
