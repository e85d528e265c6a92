//! What a DNS answer says: whether it is one to the question, what its records are, and whether they are wanted.
//!
//! Aliases (CNAME) are followed inside the answer; a record that hangs on no name of that chain does not count, and an alias
//! alone is no answer to a question for another type.

use std::collections::BTreeSet;

use hickory_proto::op::{Header, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::SVCB;
use hickory_proto::rr::rdata::svcb::SvcParamValue;
use hickory_proto::rr::{DNSClass, Name, RData, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};
use standfast_core::plan::{DnsRcode, DnsType, DnsWant};

use super::super::pattern::Pattern;
use super::super::run::Failure;

/// How many aliases are followed: more than any resolver does, and so few that a circle of them costs nothing.
const ALIASES: usize = 16;

/// What a message is to a question.
pub(super) enum Seen {
    /// An answer to it.
    Answer(Box<Message>),
    /// An answer to it that is cut (TC).
    Cut,
    /// None to it: another identifier, another question, or itself a question.
    Other,
    /// One that cannot be read.
    Broken,
}

/// Looks at `octets`, which came from the server that was asked `question` with the identifier `id`.
pub(super) fn look(octets: &[u8], id: u16, question: &Query) -> Seen {
    let mut decoder = BinDecoder::new(octets);
    let Ok(header) = Header::read(&mut decoder) else {
        return if octets.starts_with(&id.to_be_bytes()) { Seen::Broken } else { Seen::Other };
    };
    let metadata = header.metadata;
    if metadata.id != id
        || metadata.message_type != MessageType::Response
        || metadata.op_code != OpCode::Query
    {
        return Seen::Other;
    }
    // Names are equal whatever their case (RFC 4343). An error may leave the question out, and so may an answer that is cut.
    let same = match header.counts.queries {
        0 => metadata.truncation || metadata.response_code != ResponseCode::NoError,
        1 => match Query::read(&mut decoder) {
            Ok(asked) => asked == *question,
            // A cut may be anywhere.
            Err(_) if metadata.truncation => return Seen::Cut,
            Err(_) => return Seen::Broken,
        },
        _ => false,
    };
    if !same {
        return Seen::Other;
    }
    if metadata.truncation {
        // What is left of it need not be readable.
        return Seen::Cut;
    }
    match Message::from_vec(octets) {
        Ok(message) => Seen::Answer(Box::new(message)),
        Err(_) => Seen::Broken,
    }
}

/// The response code of an answer, that of EDNS included.
pub(super) fn rcode(answer: &Message) -> DnsRcode {
    DnsRcode(u16::from(answer.metadata.response_code))
}

/// What is wanted of every answer, compiled.
#[derive(Debug)]
pub(super) struct Judge {
    want: DnsWant,
    kind: DnsType,
    regex: Option<Pattern>,
}

impl Judge {
    /// Compiles the expression and brings the records that are wanted into the form in which records are compared.
    pub(super) fn prepare(want: &DnsWant, kind: DnsType) -> Result<Self, String> {
        let canonical = |text: &String| {
            kind.canonical(text)
                .ok_or_else(|| format!("{text:?} is no {kind} record; write it like {:?}", kind.example()))
        };
        let all = |set: &BTreeSet<String>| set.iter().map(canonical).collect::<Result<BTreeSet<_>, _>>();
        let mut want = want.clone();
        want.answers = want.answers.as_ref().map(all).transpose()?;
        want.contain = all(&want.contain)?;
        let regex = want.regex.as_deref().map(Pattern::compile).transpose()?;
        Ok(Self { want, kind, regex })
    }

    /// The records of the type asked for that hang on the name asked for, as text.
    pub(super) fn found(&self, question: &Query, answer: &Message) -> Vec<String> {
        let owner = end_of_chain(question, answer);
        let kind = question.query_type();
        let hangs = answer
            .answers
            .iter()
            .filter(|r| r.record_type() == kind && r.dns_class == DNSClass::IN && r.name == owner);
        hangs.map(|r| text(&r.data)).collect()
    }

    /// Why `answer`, in which `found` was found, is not what is wanted.
    pub(super) fn judge(&self, question: &Query, answer: &Message, found: &[String]) -> Result<(), String> {
        let Self { want, .. } = self;
        let code = rcode(answer);
        if code != want.rcode {
            return Err(match want.rcode {
                DnsRcode::NOERROR => code.to_string(),
                wanted => format!("{code}, want {wanted}"),
            });
        }
        if want.authoritative && !answer.metadata.authoritative {
            return Err("the server does not speak with authority (AA) for it".into());
        }
        if found.len() < usize::from(want.min_answers) {
            let end = end_of_chain(question, answer);
            return Err(match found.len() {
                0 if end != *question.name() => {
                    format!("no such record in the answer, only an alias to {}", plain(&end))
                }
                0 => "no such record in the answer".into(),
                n => format!("{n} records, at least {} are wanted", want.min_answers),
            });
        }
        let set: BTreeSet<&str> = found.iter().map(String::as_str).collect();
        if let Some(missing) =
            want.contain.iter().chain(want.answers.iter().flatten()).find(|w| !set.contains(w.as_str()))
        {
            return Err(format!("{missing} is not among the {} records", found.len()));
        }
        if let Some(extra) = want.answers.as_ref().and_then(|all| found.iter().find(|f| !all.contains(*f))) {
            return Err(format!("{extra} is among the records and is not wanted"));
        }
        Ok(())
    }

    /// The same of what the expression says of `found`, which it gives back.
    pub(super) async fn judge_text(&self, found: Vec<String>) -> Result<Vec<String>, Failure> {
        let Some(regex) = &self.regex else { return Ok(found) };
        let (is_in, found) = regex.matches(found).await?;
        if is_in {
            return Ok(found);
        }
        let (count, kind) = (found.len(), self.kind);
        Err(Failure::Bad(format!("none of {count} {kind} records matches {:?}", regex.as_str())))
    }
}

/// The name that the aliases in `answer` lead to from the name asked for; that name itself if there are none.
fn end_of_chain(question: &Query, answer: &Message) -> Name {
    let mut name = question.name().clone();
    if question.query_type() == RecordType::CNAME {
        return name;
    }
    for _ in 0..ALIASES {
        let next = answer.answers.iter().find_map(|r| match &r.data {
            RData::CNAME(alias) if r.name == name && r.dns_class == DNSClass::IN => Some(alias.0.clone()),
            _ => None,
        });
        match next {
            Some(next) => name = next,
            None => break,
        }
    }
    name
}

/// A name as it is compared: in lower case, without the root's dot.
pub(super) fn plain(name: &Name) -> String {
    let text = name.to_ascii().to_ascii_lowercase();
    match text.strip_suffix('.') {
        Some("") | None => text,
        Some(bare) => bare.to_owned(),
    }
}

/// A record's value in the form of [`DnsType::canonical`].
fn text(data: &RData) -> String {
    match data {
        RData::A(a) => a.0.to_string(),
        RData::AAAA(a) => a.0.to_string(),
        RData::CNAME(name) => plain(&name.0),
        RData::NS(name) => plain(&name.0),
        RData::PTR(name) => plain(&name.0),
        RData::MX(mx) => format!("{} {}", mx.preference, plain(&mx.exchange)),
        RData::SRV(srv) => format!("{} {} {} {}", srv.priority, srv.weight, srv.port, plain(&srv.target)),
        RData::SOA(soa) => format!(
            "{} {} {} {} {} {} {}",
            plain(&soa.mname),
            plain(&soa.rname),
            soa.serial,
            // Unsigned on the wire (RFC 1035 §3.3.13).
            soa.refresh.cast_unsigned(),
            soa.retry.cast_unsigned(),
            soa.expire.cast_unsigned(),
            soa.minimum
        ),
        RData::TXT(txt) => String::from_utf8_lossy(&txt.txt_data.concat()).into_owned(),
        RData::HTTPS(https) => service(&https.0),
        RData::SVCB(svcb) => service(svcb),
        RData::CAA(caa) => format!(
            "{} {} \"{}\"",
            caa.flags(),
            caa.tag.to_ascii_lowercase(),
            String::from_utf8_lossy(&caa.value)
        ),
        other => other.to_string(),
    }
}

/// A service binding as zone files write it (RFC 9460 §2.1).
fn service(svcb: &SVCB) -> String {
    let mut out = format!("{} {}", svcb.svc_priority, plain(&svcb.target_name));
    for (key, value) in &svcb.svc_params {
        let value = match value {
            SvcParamValue::Alpn(alpn) => alpn.0.join(","),
            SvcParamValue::Ipv4Hint(hint) => join(hint.0.iter().map(|a| a.0)),
            SvcParamValue::Ipv6Hint(hint) => join(hint.0.iter().map(|a| a.0)),
            SvcParamValue::Mandatory(keys) => join(keys.0.iter()),
            other => other.to_string(),
        };
        out.push_str(&format!(" {key}"));
        if !value.is_empty() {
            out.push_str(&format!("={value}"));
        }
    }
    out
}

fn join(items: impl Iterator<Item = impl ToString>) -> String {
    items.map(|i| i.to_string()).collect::<Vec<_>>().join(",")
}
