//! A reload over the API.

use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::change::{Changer, Refusal, refused};

/// Has the daemon read its file again; tells what changed, or every reason why nothing did.
pub(super) async fn reload(by: Changer) -> Result<Response, Refusal> {
    let (reloads, client) = (Arc::clone(&by.api.reloads), by.client.to_string());
    // It goes on although the client may be gone.
    match tokio::task::spawn_blocking(move || reloads.reload(&client)).await {
        Ok(outcome) => {
            let status = if outcome.done { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
            Ok((status, Json(outcome.answer)).into_response())
        }
        Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR, "the reload broke off: see the log"),
    }
}
