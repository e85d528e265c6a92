//! The header of the PROXY protocol, versions 1 and 2, as a health check sends it.
//!
//! Source: The PROXY protocol, versions 1 & 2 (haproxy.org/download/2.9/doc/proxy-protocol.txt), §2.1 and §2.2.

use std::net::SocketAddr;

use standfast_core::plan::ProxyProtocol;

/// What version 2 begins with (§2.2).
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// The header of a connection from `local` to `remote`.
///
/// Version 1 tells both ends; version 2 has the command LOCAL, which says that nobody is proxied.
pub(super) fn header(version: ProxyProtocol, local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    match version {
        ProxyProtocol::V1 => {
            let family = if remote.is_ipv4() { "TCP4" } else { "TCP6" };
            let (source, target) = (local.ip(), remote.ip());
            format!("PROXY {family} {source} {target} {} {}\r\n", local.port(), remote.port()).into_bytes()
        }
        // Version 2, command LOCAL; no family, no addresses.
        ProxyProtocol::V2 => [SIGNATURE, &[0x20, 0, 0, 0]].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_is_a_line_with_both_ends() {
        let line = |local: &str, remote: &str| {
            let octets = header(ProxyProtocol::V1, local.parse().unwrap(), remote.parse().unwrap());
            String::from_utf8(octets).unwrap()
        };
        assert_eq!(
            line("192.0.2.1:49152", "198.51.100.7:443"),
            "PROXY TCP4 192.0.2.1 198.51.100.7 49152 443\r\n"
        );
        assert_eq!(line("[2001:db8::1]:1", "[::1]:80"), "PROXY TCP6 2001:db8::1 ::1 1 80\r\n");
    }

    #[test]
    fn version_2_is_16_octets_that_say_local() {
        let octets =
            header(ProxyProtocol::V2, "192.0.2.1:1".parse().unwrap(), "192.0.2.2:2".parse().unwrap());
        assert_eq!(octets, b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a\x20\x00\x00\x00");
    }
}
