//! The `tcp` check: a connection that opens, closed at once.

use std::net::SocketAddr;

use super::run::{Doing, Failure};
use crate::dial::dial;

/// Connects to `target` and closes.
pub(super) async fn run(target: SocketAddr, doing: &Doing) -> Result<String, Failure> {
    doing.set(format!("connecting to {target}"));
    dial(target, None).await?;
    Ok(format!("connected to {target}"))
}
