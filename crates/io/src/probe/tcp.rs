//! The `tcp` check: a connection that opens, closed at once.

use standfast_core::plan::TcpProbe;

use super::reach;
use super::run::{Doing, Failure};

/// Connects and closes.
pub(super) async fn run(probe: &TcpProbe, doing: &Doing<'_>) -> Result<String, Failure> {
    let stream = reach::tcp(&probe.target, doing).await?;
    Ok(format!("connected to {}", stream.peer()))
}
