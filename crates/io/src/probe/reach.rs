//! From a probe's target to a socket, telling what goes on.

use std::io;
use std::net::SocketAddr;

use standfast_core::health::Details;
use standfast_core::plan::{Target, Via};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout};

use super::run::{Doing, Failure};
use crate::dial::{Opening, Purpose, Stream, dial_udp, dial_unix};
use crate::resolve::Resolver;

/// The addresses of `target`, never empty.
async fn addresses(target: &Target, doing: &Doing<'_>) -> Result<Vec<SocketAddr>, Failure> {
    match target {
        Target::Address(address) => Ok(vec![*address]),
        Target::Name(name, port) => {
            doing.set(format!("looking up {name}"));
            let start = Instant::now();
            let found = Resolver::system().lookup(name, doing.patience()).await;
            doing.note(|saw| saw.resolve = Some(start.elapsed()));
            let found = found?;
            if let Some(old) = found.old {
                doing.remark(format!("address of {name} from {} s ago: {}", old.age.as_secs(), old.why));
            }
            let mut addresses = found.addresses;
            if let Some(source) = doing.via.source {
                // Nothing goes from an address of one family to one of the other.
                addresses.retain(|a| a.is_ipv4() == source.is_ipv4());
                if addresses.is_empty() {
                    let family = if source.is_ipv4() { "IPv4" } else { "IPv6" };
                    return Err(Failure::Bad(format!(
                        "{name} has no {family} address to reach from {source}"
                    )));
                }
            }
            Ok(addresses.into_iter().map(|a| SocketAddr::new(a, *port)).collect())
        }
        Target::Unix(path) => {
            Err(Failure::Bad(format!("{} is a unix socket, which has no address", path.display())))
        }
    }
}

/// Connects to `target`; of a name's addresses to the first that answers.
pub(super) async fn tcp(target: &Target, purpose: Purpose, doing: &Doing<'_>) -> Result<Stream, Failure> {
    match target {
        Target::Address(address) => one(*address, purpose, doing).await,
        // What this takes is only there where it is needed.
        _ => Box::pin(far(target, purpose, doing)).await,
    }
}

/// Connects to a unix socket, or to the first address of a name that answers.
async fn far(target: &Target, purpose: Purpose, doing: &Doing<'_>) -> Result<Stream, Failure> {
    if let Target::Unix(path) = target {
        doing.set(format!("connecting to {}", path.display()));
        let dialled = dial_unix(path).await?;
        doing.note(|saw| saw.connect = Some(dialled.took));
        return Ok(dialled.stream);
    }
    let mut failure = Failure::Bad("no address to connect to".into());
    let mut left = addresses(target, doing).await?;
    while !left.is_empty() {
        let address = left.remove(0);
        let dialling = one(address, purpose, doing);
        // An address that is silent must leave time for the next one.
        let dialled = match u32::try_from(left.len()) {
            Ok(others @ 1..) => match timeout(doing.left() / (others + 1), dialling).await {
                Ok(dialled) => dialled,
                Err(_) => Err(Failure::Bad(format!("connect {address}: no answer"))),
            },
            _ => dialling.await,
        };
        match dialled {
            Ok(stream) => return Ok(stream),
            Err(e) => failure = e,
        }
    }
    Err(failure)
}

/// Begins to connect to one address.
pub(super) fn begin(
    address: SocketAddr,
    via: &Via,
    purpose: Purpose,
    saw: &mut Details,
) -> Result<Opening, Failure> {
    saw.remote = Some(address);
    Ok(Opening::begin(address, via, purpose)?)
}

/// Connects to one address.
async fn one(address: SocketAddr, purpose: Purpose, doing: &Doing<'_>) -> Result<Stream, Failure> {
    doing.set_with("connecting to", address);
    doing.note(|saw| saw.remote = Some(address));
    let opening = match doing.take_opening() {
        Some(opening) => opening,
        None => Box::new(Opening::begin(address, doing.via, purpose)?),
    };
    let dialled = opening.finish(doing.via).await?;
    doing.note(|saw| {
        saw.connect = Some(dialled.took);
        saw.local = dialled.local;
    });
    Ok(dialled.stream)
}

/// A datagram socket that talks to `target` alone; of a name's addresses to the first.
pub(super) async fn udp(target: &Target, doing: &Doing<'_>) -> Result<(UdpSocket, SocketAddr), Failure> {
    let Some(address) = addresses(target, doing).await?.first().copied() else {
        return Err(Failure::Bad("no address to send to".into()));
    };
    let socket = dial_udp(address, doing.via).await?;
    doing.note(|saw| {
        saw.remote = Some(address);
        saw.local = socket.local_addr().ok();
    });
    Ok((socket, address))
}

/// Waits for a datagram, which replaces what is in `buffer`, or for an error. While it waits it holds no memory for it.
pub(super) async fn receive(socket: &UdpSocket, buffer: &mut Vec<u8>) -> io::Result<()> {
    socket.ready(Interest::READABLE | Interest::ERROR).await?;
    buffer.resize(usize::from(u16::MAX), 0);
    let length = socket.recv(buffer).await?;
    buffer.truncate(length);
    Ok(())
}
