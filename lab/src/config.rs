//! Configurations of the daemon under test, as an operator would write them.

use std::net::IpAddr;
use std::path::Path;

use crate::daemons::{API, Spec, standfast};
use crate::host::Host;

/// An announcer's configuration in the making: hold time 9 s, IPv4 and IPv6 next hops of its host, the API on its loopback.
#[derive(Debug, Clone)]
pub struct Announcer {
    router: String,
    api: String,
    bgp: String,
    neighbors: String,
    count: usize,
    vips: String,
}

impl Announcer {
    /// With the host's addresses and this AS.
    pub fn new(host: &Host, asn: u32) -> Self {
        Self {
            router: format!(
                "asn: {asn}, router_id: {v4}, local_address: {v4}, local_address_ipv6: \"{v6}\"",
                v4 = host.v4,
                v6 = host.v6
            ),
            api: format!("listen: \"{API}\""),
            bgp: "  hold_time: 9s\n".to_owned(),
            neighbors: String::new(),
            count: 0,
            vips: String::new(),
        }
    }

    /// Replaces the `router` section.
    pub fn router(self, section: &str) -> Self {
        Self { router: section.to_owned(), ..self }
    }

    /// Replaces the `api` section.
    pub fn api(self, section: &str) -> Self {
        Self { api: section.to_owned(), ..self }
    }

    /// Replaces the keys of the `bgp` section other than `neighbors`.
    pub fn bgp(self, keys: &str) -> Self {
        Self { bgp: format!("  {keys}\n"), ..self }
    }

    /// Adds a neighbour: `n1`, `n2` and so on, with further keys such as `passive: true`.
    pub fn neighbor(mut self, address: impl Into<IpAddr>, asn: u32, more: &str) -> Self {
        self.count += 1;
        let comma = if more.is_empty() { "" } else { ", " };
        self.neighbors += &format!(
            "    - {{ name: n{}, address: \"{}\", peer_asn: {asn}{comma}{more} }}\n",
            self.count,
            address.into()
        );
        self
    }

    /// Adds a VIP that is as good as `path` at port 80 of the loopback address, asked every 100 ms with rise and fall 2,
    /// with further keys such as `policy: {...}`.
    pub fn vip(self, name: &str, prefixes: &[&str], path: &str, more: &str) -> Self {
        let check = format!(
            "check: {{ type: http, interval: 100ms, timeout: 90ms, rise: 2, fall: 2, \
             http: {{ host: 127.0.0.1, port: 80, url: \"{path}\" }} }}"
        );
        self.vip_with(name, prefixes, &check, more)
    }

    /// Adds a VIP with these lines for its checks.
    pub fn vip_with(mut self, name: &str, prefixes: &[&str], checks: &str, more: &str) -> Self {
        let quoted: Vec<_> = prefixes.iter().map(|prefix| format!("\"{prefix}\"")).collect();
        self.vips += &format!("  - name: {name}\n    prefixes: [{}]\n    {checks}\n", quoted.join(", "));
        if !more.is_empty() {
            self.vips += &format!("    {more}\n");
        }
        self
    }

    /// The file.
    pub fn yaml(&self) -> String {
        format!(
            "schema: v1\nrouter: {{ {} }}\napi: {{ {} }}\nlogging: {{ level: debug, timestamps: true }}\n\
             bgp:\n{}  neighbors:\n{}vips:\n{}",
            self.router, self.api, self.bgp, self.neighbors, self.vips
        )
    }

    /// What to spawn.
    pub fn spec(&self) -> Spec {
        standfast(&self.yaml())
    }
}

/// A policy that withdraws when unhealthy and pessimises while `file` exists: 100 and 1:2:3 attached, three prepends and 666 more
/// in the second case.
pub fn policy(file: &Path) -> String {
    format!(
        "policy: {{ fail_action: withdraw, lower_priority_file: \"{}\", \
         announce: {{ communities: [\"64513:100\"], large_communities: [\"64513:1:2\"], med: 5 }}, \
         lower_priority: {{ as_path_prepend: 3, communities: [\"64513:666\"] }} }}",
        file.display()
    )
}

/// A policy that withdraws when unhealthy, and nothing more.
pub const WITHDRAW: &str = "policy: { fail_action: withdraw }";

/// A listener's configuration: AS 64512 on `host` with these ranges, as flow mappings, and the VIPs `web` (198.51.100.10/32), `web6`
/// (2001:db8:100::10/128) and `other` (198.51.100.20/32).
pub fn accepting(host: &Host, ranges: &[&str]) -> Spec {
    let ranges = ranges.iter().fold(String::new(), |text, line| text + &format!("    - {{ {line} }}\n"));
    standfast(&format!(
        "schema: v1\nrouter: {{ asn: 64512, router_id: {} }}\napi: {{ listen: \"{API}\" }}\n\
         logging: {{ level: info, timestamps: true }}\nbgp: {{ hold_time: 9s }}\nlistener:\n  accept:\n{ranges}  vips:\n\
         \x20   - {{ name: web, prefix: 198.51.100.10/32 }}\n    - {{ name: web6, prefix: \"2001:db8:100::10/128\" }}\n\
         \x20   - {{ name: other, prefix: 198.51.100.20/32 }}\n",
        host.v4
    ))
}

/// A listener's configuration: AS 64512 on `host`, which routes the two VIPs over members of AS 64513 that dial from `range`,
/// with further keys of the range such as `auth_password: k1`.
pub fn listener(host: &Host, range: &str, more: &str) -> Spec {
    let comma = if more.is_empty() { "" } else { ", " };
    standfast(&format!(
        "schema: v1\nrouter: {{ asn: 64512, router_id: {v4}, local_address: {v4}, local_address_ipv6: \"{v6}\" }}\n\
         api: {{ listen: \"{API}\" }}\nlogging: {{ level: debug, timestamps: true }}\nlistener:\n  accept:\n\
         \x20   - {{ name: members, range: \"{range}\", peer_asn: 64513, hold_time: 9s{comma}{more} }}\n  vips:\n\
         \x20   - {{ name: web, prefix: 198.51.100.10/32 }}\n    - {{ name: web6, prefix: \"2001:db8:100::10/128\" }}\n",
        v4 = host.v4,
        v6 = host.v6
    ))
}
