//! The `tcp` section.

use std::net::SocketAddr;

use standfast_core::plan::{Probe, Target, TcpProbe};

use super::super::file::Tcp;
use super::super::read::Findings;
use super::Context;

pub(super) fn tcp(at: &Tcp, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    let host = match &at.host {
        Some(host) => Some(host.value),
        None => cx.address("host", out),
    };
    Some(Probe::Tcp(Box::new(TcpProbe::new(Target::Address(SocketAddr::new(host?, at.port.as_ref()?.to()))))))
}
