//! The `tcp` section.

use standfast_core::plan::{Expect, Probe, Target, TcpProbe};

use super::super::file::Tcp;
use super::super::read::Findings;
use super::super::resolve::or;
use super::super::value::Close;
use super::{Context, Tls, octets, one_of, place, regex, unix_socket};

pub(super) fn tcp(at: &Tcp, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    let target = target(at, cx, out);
    let tls = Tls {
        insecure: &at.tls_insecure,
        ca_cert: &at.tls_ca_cert,
        client: Some((&at.tls_client_cert, &at.tls_client_key)),
        server_name: &at.tls_server_name,
        min_remaining: &at.tls_min_remaining,
    };
    let name = target.as_ref().map_or(String::new(), Target::host);
    let tls = tls.options(or(&at.tls, false), "`tls: true`", name, out);
    one_of([place(&at.send), place(&at.send_hex), None], out);
    one_of([place(&at.expect), place(&at.expect_hex), place(&at.expect_regex)], out);
    let send = octets(&at.send, out);
    let send = send.or_else(|| at.send_hex.as_ref().map(|s| s.value.0.clone())).unwrap_or_default();
    let expect = octets(&at.expect, out).map(Expect::Bytes);
    let expect = expect.or_else(|| at.expect_hex.as_ref().map(|e| Expect::Bytes(e.value.0.clone())));
    let expect = expect.or_else(|| regex(&at.expect_regex, out).map(Expect::Regex));
    let close = at.close.as_ref().map_or(Close::Fin, |c| c.value);
    let reset = close == Close::Reset;
    if let (Some(close), Some(Target::Unix(_)), true) = (&at.close, &target, reset) {
        out.error(close, "a unix socket has no reset").help("take it away");
    }
    Some(Probe::Tcp(Box::new(TcpProbe { target: target?, tls, send, expect, reset })))
}

/// Where to connect.
fn target(at: &Tcp, cx: &Context<'_>, out: &mut Findings) -> Option<Target> {
    if let Some(host) = &at.host
        && let Some(target) = unix_socket(host, out)
    {
        if let Some(port) = &at.port {
            out.error(port, "port has no effect with a unix socket").help("take it away");
        }
        return target;
    }
    if at.port.is_none() {
        cx.missing("port", "it is the TCP port to connect to", out);
    }
    let port = at.port.as_ref().map(|p| p.to::<u16>());
    let target = cx.target(&at.host, port.unwrap_or(1), "host", out);
    port.and(target)
}
