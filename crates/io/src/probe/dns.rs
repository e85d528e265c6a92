//! The `dns` check: questions to one server, by UDP and, where an answer is cut, by TCP.
//!
//! What comes back counts only if it answers what was asked: same id, same question, from the address that was asked.
//! An alias alone is no answer to a question for another type. Answers are not validated (DNSSEC).

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use standfast_core::plan::DnsProbe;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::reach;
use super::run::{Doing, Failure, failed, random};

/// The UDP answer that we can take without fragments on any path (the size that DNS software agreed on).
const PAYLOAD: u16 = 1232;

/// Names as they go on the wire, with what is asked of each.
#[derive(Debug)]
pub(super) struct Dns {
    probe: DnsProbe,
    names: Vec<Name>,
    kind: RecordType,
}

impl Dns {
    /// Takes the names apart.
    pub(super) fn prepare(probe: &DnsProbe) -> Result<Self, String> {
        if probe.names.is_empty() {
            return Err("a dns check asks for at least one name".into());
        }
        let parse = |name: &String| {
            let mut parsed = Name::from_utf8(name).map_err(|e| format!("DNS name {name:?}: {e}"))?;
            parsed.set_fqdn(true);
            Ok::<_, String>(parsed)
        };
        let names = probe.names.iter().map(parse).collect::<Result<_, _>>()?;
        Ok(Self { probe: probe.clone(), names, kind: RecordType::from(probe.query_type.number()) })
    }

    /// Asks for every name, one after the other.
    pub(super) async fn run(&self, doing: &Doing<'_>) -> Result<String, Failure> {
        let mut records = 0;
        for name in &self.names {
            let answer = match self.ask(name, true, doing).await? {
                // Servers from before EDNS know nothing better to say.
                a if a.metadata.response_code == ResponseCode::FormErr => {
                    self.ask(name, false, doing).await?
                }
                a => a,
            };
            let kind = self.kind;
            if answer.metadata.response_code != ResponseCode::NoError {
                return Err(Failure::Bad(format!("{name} {kind}: {}", rcode(answer.metadata.response_code))));
            }
            let found = answer.answers.iter().filter(|r| r.record_type() == kind).count();
            if found == 0 {
                return Err(Failure::Bad(format!("{name} {kind}: no such record in the answer")));
            }
            records += found;
        }
        let n = self.names.len();
        Ok(format!("{records} {} records for {n} {}", self.kind, if n == 1 { "name" } else { "names" }))
    }

    /// Asks one question.
    async fn ask(&self, name: &Name, edns: bool, doing: &Doing<'_>) -> Result<Message, Failure> {
        let question = Query::query(name.clone(), self.kind);
        let mut message = Message::new(random() as u16, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(question);
        if edns {
            let mut edns = Edns::new();
            edns.set_max_payload(PAYLOAD);
            message.set_edns(edns);
        }
        let wire = message.to_vec().map_err(|e| Failure::Bad(format!("{name}: {e}")))?;
        let bad = |what: &str| Failure::Bad(format!("{name} {}: {what}", self.kind));

        let (socket, address) = reach::udp(&self.probe.resolver, doing).await?;
        doing.set(format!("waiting for the answer of {address} about {name}"));
        socket.send(&wire).await.map_err(|e| failed(&format!("send to {address}"), &e))?;
        let mut buffer = vec![0; usize::from(u16::MAX)];
        loop {
            let length = socket.recv(&mut buffer).await.map_err(|e| failed(&format!("{address}"), &e))?;
            let datagram = &buffer[..length];
            // Whatever carries another id is not for this question; a late answer to an earlier one cannot come
            // here, for every question has its own port.
            if datagram.get(..2) != Some(&wire[..2]) {
                continue;
            }
            // A cut answer need not be readable.
            if datagram.get(2).is_some_and(|flags| flags & 0x82 == 0x82) {
                break;
            }
            let answer = Message::from_vec(datagram).map_err(|_| bad("the answer cannot be read"))?;
            if answers(&answer, &message) {
                return Ok(answer);
            }
        }
        drop(socket);

        let mut stream = reach::tcp(&self.probe.resolver, doing).await?;
        doing.set(format!("waiting for the answer of {address} about {name} by TCP"));
        let io = |e: std::io::Error| failed(&format!("{address} by TCP"), &e);
        let mut framed = u16::try_from(wire.len()).unwrap_or(u16::MAX).to_be_bytes().to_vec();
        framed.extend_from_slice(&wire);
        stream.write_all(&framed).await.map_err(io)?;
        let length = stream.read_u16().await.map_err(io)?;
        let mut buffer = vec![0; usize::from(length)];
        stream.read_exact(&mut buffer).await.map_err(io)?;
        let answer = Message::from_vec(&buffer).map_err(|_| bad("the answer by TCP cannot be read"))?;
        if answers(&answer, &message) {
            Ok(answer)
        } else {
            Err(bad("the answer by TCP is to another question"))
        }
    }
}

/// Whether `answer` is one to `question`. An error may leave the question out.
fn answers(answer: &Message, question: &Message) -> bool {
    answer.metadata.id == question.metadata.id
        && answer.metadata.message_type == MessageType::Response
        && (answer.queries == question.queries
            || answer.queries.is_empty() && answer.metadata.response_code != ResponseCode::NoError)
}

/// A response code by the name that RFC 1035 and the tools give it.
fn rcode(code: ResponseCode) -> String {
    match code {
        ResponseCode::FormErr => "FORMERR".into(),
        ResponseCode::ServFail => "SERVFAIL".into(),
        ResponseCode::NXDomain => "NXDOMAIN".into(),
        ResponseCode::NotImp => "NOTIMP".into(),
        ResponseCode::Refused => "REFUSED".into(),
        other => format!("response code {}", u16::from(other)),
    }
}
