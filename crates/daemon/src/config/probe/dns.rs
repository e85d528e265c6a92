//! The `dns` section.

use standfast_core::plan::{DnsProbe, DnsType, Probe};

use super::super::file::Dns;
use super::super::read::Findings;
use super::super::resolve::{list, or};
use super::Context;

pub(super) fn dns(at: &Dns, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    let port = at.port.as_ref().map_or(53, |p| p.to());
    let resolver = cx.target(&at.resolver, port, "resolver", out);
    for name in list(&at.names) {
        let dotless = name.value.0.strip_suffix('.').unwrap_or(&name.value.0);
        let fine =
            dotless.len() <= 253 && dotless.split('.').all(|l| (1..=63).contains(&l.len()) && l.is_ascii());
        if !fine && name.value.0 != "." {
            out.error(name, "this is not a DNS name")
                .help("labels have 1 to 63 ASCII characters, a name at most 253");
        }
    }
    if let Some(names) = at.names.as_ref() {
        if names.is_empty() {
            out.error(names, "`names` is empty: there is nothing to ask");
        } else if names.len() > 100 {
            out.error(names, format!("{} names are more than 100", names.len()));
        }
    }
    Some(Probe::Dns(DnsProbe {
        resolver: resolver?,
        names: list(&at.names).iter().map(|n| n.value.0.trim_end_matches('.').to_owned()).collect(),
        query_type: or(&at.query_type, DnsType::A),
    }))
}
