//! Requests that change what is announced: who may make them, and how one is refused.

use axum::Json;
use axum::extract::{Extension, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use standfast_core::plan::Secret;

use super::Api;
use super::serve::{Client, refuse};

/// Why a request was refused, as it is answered.
#[derive(Debug)]
pub(super) struct Refusal(Box<Response>);

impl Refusal {
    /// One with more than words to it.
    pub(super) fn with(status: StatusCode, body: Value) -> Self {
        (status, Json(body)).into_response().into()
    }
}

impl From<Response> for Refusal {
    fn from(response: Response) -> Self {
        Self(Box::new(response))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        *self.0
    }
}

/// Refuses a request, and says why.
pub(super) fn refused<T>(status: StatusCode, why: impl Into<String>) -> Result<T, Refusal> {
    Err(refuse(status, why).into())
}

/// A client that may change what is announced: over the unix socket, with a token, or from this host where there is none.
#[derive(Clone)]
pub(super) struct Changer {
    pub(super) api: Api,
    pub(super) client: Client,
}

impl FromRequestParts<Api> for Changer {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Refusal> {
        let Extension(client) = Extension::<Client>::from_request_parts(parts, api)
            .await
            .map_err(|e| Refusal::from(e.into_response()))?;
        may_change(client, &parts.headers, &api.tokens)?;
        Ok(Self { api: api.clone(), client })
    }
}

fn may_change(client: Client, headers: &HeaderMap, tokens: &[Secret]) -> Result<(), Refusal> {
    if matches!(client, Client::Unix(_)) || (tokens.is_empty() && client.is_local()) {
        return Ok(());
    }
    if tokens.is_empty() {
        return refused(StatusCode::FORBIDDEN, "changes from other hosts need a token: set api.tokens");
    }
    let given = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    let given = given.and_then(|v| v.strip_prefix("Bearer ")).unwrap_or_default();
    // Every token is compared whole, so that no time tells how much of one was right.
    if tokens.iter().fold(false, |fits, token| fits | same(token.reveal(), given)) {
        return Ok(());
    }
    refused(StatusCode::UNAUTHORIZED, "this needs one of api.tokens: Authorization: Bearer TOKEN")
}

/// Compares in a time that depends on the lengths alone.
fn same(a: &str, b: &str) -> bool {
    let differences = a.bytes().zip(b.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    std::hint::black_box(differences) == 0 && a.len() == b.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_compared_whole() {
        assert!(same("token", "token"));
        for other in ["", "toke", "tokens", "Token"] {
            assert!(!same("token", other), "{other}");
        }
        assert!(!same("", "x"));
    }
}
