//! From a probe's target to a socket, telling what goes on.

use std::net::SocketAddr;

use standfast_core::plan::Target;
use tokio::net::{TcpStream, UdpSocket};

use super::run::{Doing, Failure};
use crate::dial::{dial, dial_udp, lookup};

/// The addresses of `target`, never empty; a name is looked up for each run.
async fn addresses(target: &Target, doing: &Doing) -> Result<Vec<SocketAddr>, Failure> {
    match target {
        Target::Address(address) => Ok(vec![*address]),
        Target::Name(name, port) => {
            doing.set(format!("looking up {name}"));
            Ok(lookup(name).await?.into_iter().map(|a| SocketAddr::new(a, *port)).collect())
        }
    }
}

/// Connects to `target`; of a name's addresses to the first that answers.
pub(super) async fn tcp(target: &Target, doing: &Doing) -> Result<TcpStream, Failure> {
    let mut failure = Failure::Bad("no address to connect to".into());
    for address in addresses(target, doing).await? {
        doing.set(format!("connecting to {address}"));
        match dial(address, None).await {
            Ok(dialled) => return Ok(dialled.stream),
            Err(e) => failure = e.into(),
        }
    }
    Err(failure)
}

/// A datagram socket that talks to `target` alone; of a name's addresses to the first.
pub(super) async fn udp(target: &Target, doing: &Doing) -> Result<(UdpSocket, SocketAddr), Failure> {
    let Some(address) = addresses(target, doing).await?.first().copied() else {
        return Err(Failure::Bad("no address to send to".into()));
    };
    Ok((dial_udp(address).await?, address))
}
