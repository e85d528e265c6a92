//! Members of the listener over the API: to drain one, for maintenance, and to let it serve again.

use std::net::IpAddr;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use standfast_core::node::{Input, ListenerStatus, Node};

use super::change::{Changer, Refusal, refused};
use super::silent;
use crate::config;

/// What is ordered. Every field can be left away, and so can the body.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    /// The VIP; without it, every one.
    vip: Option<String>,
    /// How long the member may keep its flows, such as `30s`; without it, as long as each VIP says.
    timeout: Option<String>,
}

/// Drains a member.
pub(super) async fn drain(by: Changer, Path(member): Path<String>, body: Bytes) -> Result<Response, Refusal> {
    by.order(&member, &body, true).await
}

/// Takes the order to drain a member back.
pub(super) async fn undrain(
    by: Changer,
    Path(member): Path<String>,
    body: Bytes,
) -> Result<Response, Refusal> {
    by.order(&member, &body, false).await
}

/// Reads a body as an order, whatever it is.
pub(super) fn fuzz(body: &[u8]) -> bool {
    read(body, true).is_ok()
}

/// The VIP, and the time in which the flows may end.
fn read(body: &[u8], drain: bool) -> Result<(Option<String>, Option<Duration>), String> {
    let like = r#"send {}, or {"vip": "web", "timeout": "30s"} with what is meant"#;
    let Order { vip, timeout } = match body {
        [] => Order::default(),
        body => serde_json::from_slice(body).map_err(|e| format!("this is no order: {e}; {like}"))?,
    };
    if timeout.is_some() && !drain {
        return Err("an undrain has no timeout: it counts at once".to_owned());
    }
    Ok((vip, timeout.map(|text| config::duration(&text)).transpose()?))
}

impl Changer {
    async fn order(self, member: &str, body: &[u8], drain: bool) -> Result<Response, Refusal> {
        let Self { api, client } = self;
        let Ok(member) = member.parse::<IpAddr>() else {
            let why = format!("{member} is no address: a member is named by the address of its session");
            return refused(StatusCode::BAD_REQUEST, why);
        };
        let (vip, timeout) = read(body, drain).or_else(|why| refused(StatusCode::BAD_REQUEST, why))?;
        let plan = api.checks.plan();
        let Some(listener) = &plan.listener else {
            return refused(StatusCode::NOT_FOUND, "this host has no listener, and so no members");
        };
        let covered = listener.accept.iter().any(|a| a.range.contains(member));
        if let Some(name) = vip.as_ref().filter(|name| !listener.vips.contains_key(*name)) {
            let names: Vec<_> = listener.vips.keys().take(1000).collect();
            let body = json!({ "error": format!("the listener has no VIP named {name}"), "vips": names });
            return Err(Refusal::with(StatusCode::NOT_FOUND, body));
        }
        if !covered {
            let there = api.ask(Node::listener_head).await.flatten();
            let members: Vec<_> =
                there.iter().flat_map(|l| &l.members).map(|m| m.address).take(1000).collect();
            let error = format!("{member} is no member: no range of the listener covers it");
            return Err(Refusal::with(StatusCode::NOT_FOUND, json!({ "error": error, "members": members })));
        }
        let of = vip.clone();
        let may = move |node: &Node, _| node.may_order(member, of.as_deref(), drain);
        if let Err(why) = api.ask(may).await.ok_or_else(silent)? {
            return refused(StatusCode::CONFLICT, format!("{member}: {why}"));
        }
        tracing::info!(
            "member {member}: {client} {}",
            if drain { "orders a drain" } else { "ends the drain" }
        );
        let input = match drain {
            true => Input::Drain { member, vip, timeout },
            false => Input::Undrain { member, vip },
        };
        api.hand_in(input)?;
        let status = api.listener().await.ok_or_else(silent)?;
        Ok(Json(told(&status, member)).into_response())
    }
}

/// What has become of a member.
fn told(status: &ListenerStatus, member: IpAddr) -> Value {
    let members: Vec<_> = status.members.iter().filter(|m| m.address == member).collect();
    let vips: Vec<_> = members.iter().flat_map(|m| &m.vips).collect();
    let orders: Vec<_> = status.orders.iter().filter(|o| o.member == member).collect();
    let gone = status.gone.iter().find(|g| g.address == member);
    let (connected, known) = (!members.is_empty(), !members.is_empty() || gone.is_some());
    json!({ "member": member, "connected": connected, "known": known, "gone": gone, "vips": vips, "orders": orders })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_is_meant_or_not_at_all() {
        let secs = Duration::from_secs;
        for (body, want) in [
            ("", Ok((None, None))),
            ("{}", Ok((None, None))),
            (r#"{"vip": "web"}"#, Ok((Some("web".to_owned()), None))),
            (r#"{"timeout": "1m30s"}"#, Ok((None, Some(secs(90))))),
            (r#"{"timeout": "0"}"#, Ok((None, Some(secs(0))))),
            (r#"{"timeout": 30}"#, Err(())),
            (r#"{"timeout": "30"}"#, Err(())),
            (r#"{"vips": "web"}"#, Err(())),
            ("web", Err(())),
        ] {
            assert_eq!(read(body.as_bytes(), true).map_err(drop), want, "{body}");
        }
        assert!(read(br#"{"timeout": "3s"}"#, false).is_err());
    }
}
