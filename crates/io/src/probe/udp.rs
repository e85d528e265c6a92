//! The `udp` check: a datagram, and whether something or nothing comes back.
//!
//! A host that is gone looks like a silent service, unless an answer is required.

use standfast_core::plan::UdpProbe;
use tokio::time::timeout;

use super::reach;
use super::run::{Doing, Failure, failed};

/// Sends the payload and waits.
pub(super) async fn run(probe: &UdpProbe, doing: &Doing<'_>) -> Result<String, Failure> {
    let UdpProbe { target, payload, wait, require_response } = probe;
    let (socket, address) = reach::udp(target, doing).await?;
    doing.set(format!("waiting for an answer from {address}"));
    socket.send(payload).await.map_err(|e| failed(&format!("send to {address}"), &e))?;
    let mut answer = [0; 2048];
    match timeout(*wait, socket.recv(&mut answer)).await {
        Ok(Ok(length)) => Ok(format!("{address} answered {length} bytes")),
        // An ICMP unreachable is told as an error of the socket.
        Ok(Err(e)) => Err(failed(&format!("{address}"), &e)),
        Err(_) if *require_response => {
            Err(Failure::Bad(format!("no answer from {address} within {} ms", wait.as_millis())))
        }
        Err(_) => Ok(format!("{address} did not refuse and did not answer within {} ms", wait.as_millis())),
    }
}
