//! The `dns` section.

use std::collections::BTreeSet;

use standfast_core::plan::{DnsProbe, DnsRcode, DnsTransport, DnsType, DnsWant, Probe, Target};

use super::super::file::Dns;
use super::super::read::{At, Findings};
use super::super::resolve::{list, or};
use super::super::value::{self, Text};
use super::{Context, Tls, regex};

pub(super) fn dns(at: &Dns, cx: &Context<'_>, out: &mut Findings) -> Option<Probe> {
    let transport = or(&at.transport, value::DnsTransport::Udp);
    let port =
        at.port.as_ref().map_or(if transport == value::DnsTransport::Tls { 853 } else { 53 }, |p| p.to());
    let resolver = cx.target(&at.resolver, port, "resolver", out);
    if let (Some(at), Some(written), Some(Target::Address(a))) = (&at.port, &at.resolver, &resolver)
        && a.port() != port
    {
        two_ports(at, written, out);
    }
    if let (Some(at), Some(written), Some(Target::Name(_, p))) = (&at.port, &at.resolver, &resolver)
        && *p != port
    {
        two_ports(at, written, out);
    }
    names(at, out);
    let query_type = or(&at.query_type, DnsType::A);
    let want = want(at, query_type, out);
    let udp_size: u16 = at.udp_size.as_ref().map_or(DnsProbe::UDP_SIZE, |n| n.to());
    if let Some(at) = at.udp_size.as_ref().filter(|n| n.verbatim.is_some()) {
        if transport != value::DnsTransport::Udp {
            out.error(at, "udp_size has no effect: no UDP is used")
                .help("leave it away, or write transport: udp");
        } else if (1..512).contains(&udp_size) {
            out.error(at, "udp_size is at least 512, what every server may send (RFC 6891)")
                .help("0 asks without EDNS0");
        }
    }
    let tls = Tls {
        insecure: &at.tls_insecure,
        ca_cert: &at.tls_ca_cert,
        client: Some((&at.tls_client_cert, &at.tls_client_key)),
        server_name: &at.tls_server_name,
        min_remaining: &at.tls_min_remaining,
    };
    let host = resolver.as_ref().map(Target::host).unwrap_or_default();
    let tls = tls.options(transport == value::DnsTransport::Tls, "transport: tls", host, out);
    Some(Probe::Dns(Box::new(DnsProbe {
        resolver: resolver?,
        transport: match (transport, tls) {
            (_, Some(tls)) => DnsTransport::Tls(tls),
            (value::DnsTransport::Tcp, None) => DnsTransport::Tcp,
            _ => DnsTransport::Udp,
        },
        names: list(&at.names).iter().map(|n| n.value.0.trim_end_matches('.').to_owned()).collect(),
        query_type,
        recursion: or(&at.recursion, true),
        udp_size,
        want,
    })))
}

fn two_ports<T>(port: &At<T>, resolver: &At<Text>, out: &mut Findings) {
    out.error(port, "`resolver` has a port too, and it is another one")
        .note(&resolver.place, "the resolver")
        .help("take one of them away");
}

fn names(at: &Dns, out: &mut Findings) {
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
}

/// What every answer must be.
fn want(at: &Dns, kind: DnsType, out: &mut Findings) -> DnsWant {
    let rcode = or(&at.rcode, DnsRcode::NOERROR);
    let mut records = |list: &[At<Text>]| -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for at in list {
            match kind.canonical(&at.value.0) {
                Some(text) if all.contains(&text) => {
                    out.error(at, format!("{text} is in this list twice"));
                }
                Some(text) => {
                    all.insert(text);
                }
                None => {
                    out.error(at, format!("`{}` is no {kind} record", at.value.0))
                        .help(format!("write it like `{}`", kind.example()));
                }
            }
        }
        all
    };
    let answers = at.answers.as_ref().map(|all| records(all));
    let contain = records(list(&at.answers_contain));
    let given = |out: &mut Findings, message: &str| {
        let mut refuse = |path: &str, place| {
            let key = path.rsplit('.').next().unwrap_or(path);
            out.at(path, place, format!("{key} has no effect: {message}")).help("take it away");
        };
        at.answers_contain.iter().for_each(|a| refuse(&a.path, &a.place));
        at.answers_regex.iter().for_each(|a| refuse(&a.path, &a.place));
        at.min_answers.iter().for_each(|a| refuse(&a.path, &a.place));
    };
    if let Some(at) = &at.answers {
        given(out, "`answers` says every record already");
        if rcode != DnsRcode::NOERROR && !at.is_empty() {
            out.error(at, format!("an answer with {rcode} has no records"));
        }
    } else if rcode != DnsRcode::NOERROR {
        given(out, &format!("an answer with {rcode} has no records"));
    }
    let least = match &answers {
        Some(all) => u16::try_from(all.len()).unwrap_or(u16::MAX),
        None => u16::from(rcode == DnsRcode::NOERROR),
    };
    DnsWant {
        rcode,
        authoritative: or(&at.authoritative, false),
        min_answers: at.min_answers.as_ref().map_or(least, |n| n.to()),
        answers,
        contain,
        regex: regex(&at.answers_regex, out),
    }
}
