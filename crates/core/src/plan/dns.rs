//! What a DNS check asks, and what it wants to hear.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::{Target, TlsOptions};

/// DNS questions, asked one after the other; good if every answer is as wanted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DnsProbe {
    /// The server asked: the VIP's own address and the transport's port by default.
    pub resolver: Target,
    /// How it is asked.
    pub transport: DnsTransport,
    /// The names asked for, at least one; valid names of at most 253 octets, without the root's dot.
    pub names: Vec<String>,
    /// The type of every question; default A.
    pub query_type: DnsType,
    /// Ask for recursion (RD); default yes.
    pub recursion: bool,
    /// The largest UDP answer that the server may send (EDNS0, RFC 6891), at least 512; default 1232. 0: ask without EDNS0.
    pub udp_size: u16,
    /// What every answer must be.
    pub want: DnsWant,
}

impl DnsProbe {
    /// Questions for `names` to `resolver` by UDP that are good if each is answered with a record.
    pub fn new(resolver: Target, names: Vec<String>, query_type: DnsType) -> Self {
        Self {
            resolver,
            transport: DnsTransport::Udp,
            names,
            query_type,
            recursion: true,
            udp_size: Self::UDP_SIZE,
            want: DnsWant::default(),
        }
    }

    /// The UDP answer that passes every path without fragments: what DNS software agreed on.
    pub const UDP_SIZE: u16 = 1232;
}

/// How a DNS server is asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DnsTransport {
    /// UDP, and TCP for an answer that is cut (RFC 7766).
    Udp,
    /// TCP alone.
    Tcp,
    /// TLS (RFC 7858).
    Tls(TlsOptions),
}

/// What a DNS answer must be to be good.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DnsWant {
    /// The response code; default NOERROR.
    pub rcode: DnsRcode,
    /// The server must speak with authority (AA); default no.
    pub authoritative: bool,
    /// The least number of records of the type asked for; default 1.
    pub min_answers: u16,
    /// The records must be exactly these, in any order, each as [`DnsType::canonical`] writes it; `None`: any.
    pub answers: Option<BTreeSet<String>>,
    /// These must be among the records, each as [`DnsType::canonical`] writes it.
    pub contain: BTreeSet<String>,
    /// A regular expression that at least one record must match.
    pub regex: Option<String>,
}

impl Default for DnsWant {
    fn default() -> Self {
        Self {
            rcode: DnsRcode::NOERROR,
            authoritative: false,
            min_answers: 1,
            answers: None,
            contain: BTreeSet::new(),
            regex: None,
        }
    }
}

/// A DNS response code (RFC 1035 §4.1.1, RFC 6895 §2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DnsRcode(pub u16);

impl DnsRcode {
    /// No error.
    pub const NOERROR: Self = Self(0);

    /// Every code of a question's answer that has a name.
    pub const ALL: [(&str, Self); 12] = [
        ("NOERROR", Self(0)),
        ("FORMERR", Self(1)),
        ("SERVFAIL", Self(2)),
        ("NXDOMAIN", Self(3)),
        ("NOTIMP", Self(4)),
        ("REFUSED", Self(5)),
        ("YXDOMAIN", Self(6)),
        ("NXRRSET", Self(8)),
        ("NOTAUTH", Self(9)),
        ("NOTZONE", Self(10)),
        ("BADVERS", Self(16)),
        ("BADCOOKIE", Self(23)),
    ];
}

impl fmt::Display for DnsRcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::ALL.iter().find(|(_, code)| code == self) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "response code {}", self.0),
        }
    }
}

/// A DNS record type that a check can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum DnsType {
    A,
    Aaaa,
    Cname,
    Ptr,
    Ns,
    Mx,
    Soa,
    Txt,
    Srv,
    Https,
    Svcb,
    Caa,
}

impl DnsType {
    /// Every type, by its mnemonic in capitals.
    pub const ALL: [(&str, Self); 12] = [
        ("A", Self::A),
        ("AAAA", Self::Aaaa),
        ("CNAME", Self::Cname),
        ("PTR", Self::Ptr),
        ("NS", Self::Ns),
        ("MX", Self::Mx),
        ("SOA", Self::Soa),
        ("TXT", Self::Txt),
        ("SRV", Self::Srv),
        ("HTTPS", Self::Https),
        ("SVCB", Self::Svcb),
        ("CAA", Self::Caa),
    ];

    /// The number on the wire (RFC 1035 §3.2.2, RFC 2782, RFC 3596, RFC 8659, RFC 9460).
    pub const fn number(self) -> u16 {
        match self {
            Self::A => 1,
            Self::Ns => 2,
            Self::Cname => 5,
            Self::Soa => 6,
            Self::Ptr => 12,
            Self::Mx => 15,
            Self::Txt => 16,
            Self::Aaaa => 28,
            Self::Srv => 33,
            Self::Svcb => 64,
            Self::Https => 65,
            Self::Caa => 257,
        }
    }

    /// What a record of this type looks like, for a message: `10 mail.example.com`.
    pub const fn example(self) -> &'static str {
        match self {
            Self::A => "192.0.2.1",
            Self::Aaaa => "2001:db8::1",
            Self::Cname | Self::Ptr => "www.example.com",
            Self::Ns => "ns.example.com",
            Self::Mx => "10 mail.example.com",
            Self::Soa => "ns.example.com hostmaster.example.com 2026010100 3600 600 604800 300",
            Self::Txt => "v=spf1 -all",
            Self::Srv => "10 60 5060 sip.example.com",
            Self::Https | Self::Svcb => "1 . alpn=h2,h3",
            Self::Caa => "0 issue \"letsencrypt.org\"",
        }
    }

    /// A record's value in the one form in which values are compared; `None` if it cannot be of this type.
    ///
    /// Addresses are in their shortest form, names in lower case without the root's dot, and fields are one space apart. Text
    /// (TXT) stays as it is: the strings of one record joined, without quotes.
    pub fn canonical(self, text: &str) -> Option<String> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        // Numbers and names, as the letters of `form` say.
        let fields = |form: &str| {
            let one = |(kind, word): (char, &&str)| match kind {
                'n' => word.parse::<u32>().ok().map(|n| n.to_string()),
                _ => Some(name(word)),
            };
            let all: Option<Vec<String>> = form.chars().zip(&words).map(one).collect();
            (words.len() == form.len()).then_some(all?.join(" "))
        };
        match self {
            Self::A => text.trim().parse::<Ipv4Addr>().ok().map(|a| a.to_string()),
            Self::Aaaa => text.trim().parse::<Ipv6Addr>().ok().map(|a| a.to_string()),
            Self::Cname | Self::Ptr | Self::Ns => fields("d"),
            Self::Mx => fields("nd"),
            Self::Srv => fields("nnnd"),
            Self::Soa => fields("ddnnnnn"),
            Self::Txt => Some(text.to_owned()),
            Self::Https | Self::Svcb => {
                let [priority, target, parameters @ ..] = &words[..] else { return None };
                let mut all = vec![priority.parse::<u16>().ok()?.to_string(), name(target)];
                all.extend(parameters.iter().map(|p| (*p).to_owned()));
                Some(all.join(" "))
            }
            Self::Caa => {
                let [flags, tag, _, ..] = &words[..] else { return None };
                let value = text.trim_start().strip_prefix(flags)?.trim_start().strip_prefix(tag)?.trim();
                let bare = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value);
                Some(format!("{} {} \"{bare}\"", flags.parse::<u8>().ok()?, tag.to_ascii_lowercase()))
            }
        }
    }
}

impl fmt::Display for DnsType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(_, t)| t == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

fn name(word: &str) -> String {
    let lower = word.to_ascii_lowercase();
    match lower.strip_suffix('.') {
        Some("") | None => lower,
        Some(bare) => bare.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_compared_in_one_form() {
        for (kind, text, canonical) in [
            (DnsType::A, " 192.0.2.1 ", Some("192.0.2.1")),
            (DnsType::A, "192.0.2.01", None),
            (DnsType::A, "2001:db8::1", None),
            (DnsType::Aaaa, "2001:DB8:0::0001", Some("2001:db8::1")),
            (DnsType::Cname, "Www.Example.COM.", Some("www.example.com")),
            (DnsType::Ns, "a b", None),
            (DnsType::Mx, "010  Mail.example.", Some("10 mail.example")),
            (DnsType::Mx, "0 .", Some("0 .")),
            (DnsType::Mx, "mail.example", None),
            (DnsType::Srv, "1 2 3 Sip.example.", Some("1 2 3 sip.example")),
            (DnsType::Soa, "A. B. 1 2 3 4 5", Some("a b 1 2 3 4 5")),
            (DnsType::Soa, "a b 1 2 3 4", None),
            (DnsType::Txt, "V=Spf1  x", Some("V=Spf1  x")),
            (DnsType::Https, "1  . alpn=h2,h3", Some("1 . alpn=h2,h3")),
            (DnsType::Svcb, "x .", None),
            (DnsType::Caa, "0 ISSUE  letsencrypt.org", Some("0 issue \"letsencrypt.org\"")),
            (DnsType::Caa, "0 issue \"ca.example; a b\"", Some("0 issue \"ca.example; a b\"")),
            (DnsType::Caa, "0 issue", None),
        ] {
            assert_eq!(kind.canonical(text).as_deref(), canonical, "{kind} {text}");
        }
    }

    #[test]
    fn the_example_of_each_type_is_canonical() {
        for (_, kind) in DnsType::ALL {
            assert_eq!(kind.canonical(kind.example()).as_deref(), Some(kind.example()), "{kind}");
        }
    }
}
