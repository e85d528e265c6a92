//! The `dns` check: questions to one server, by UDP, TCP or TLS.
//!
//! Each question has an identifier and a port of its own. By UDP, what does not answer it is passed over: another
//! identifier, another question, another sender. An answer that is cut is asked for once more by TCP (RFC 7766 §5). Answers
//! are not validated (DNSSEC). What an answer must hold is in [`answer`].

mod answer;

use std::net::SocketAddr;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use standfast_core::plan::{DnsProbe, DnsRcode, DnsTransport, DnsType, DnsWant, Target};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

use super::run::{Doing, Failure, clean, failed, random};
use super::tls::Tls;
use super::{icmp, reach};
use crate::dial::Purpose;
use answer::{Judge, Seen, look, plain};

/// The most answers that are told, and the most octets of each.
const TOLD: (usize, usize) = (16, 128);

/// Names as they go on the wire, with what is asked of each and wanted of every answer.
#[derive(Debug)]
pub(super) struct Dns {
    probe: DnsProbe,
    names: Vec<Name>,
    kind: RecordType,
    judge: Judge,
    tls: Option<Tls>,
}

impl Dns {
    /// Takes the names apart, compiles the expression and reads the files of TLS.
    pub(super) fn prepare(probe: &DnsProbe) -> Result<Self, String> {
        if probe.names.is_empty() {
            return Err("a dns check asks for at least one name".into());
        }
        let parse = |name: &String| {
            let mut parsed = Name::from_utf8(name).map_err(|e| format!("DNS name {name:?}: {e}"))?;
            parsed.set_fqdn(true);
            Ok::<_, String>(parsed)
        };
        let tls = match &probe.transport {
            DnsTransport::Tls(options) => Some(Tls::prepare(options, &[])?),
            DnsTransport::Udp | DnsTransport::Tcp => None,
        };
        Ok(Self {
            probe: probe.clone(),
            names: probe.names.iter().map(parse).collect::<Result<_, _>>()?,
            kind: RecordType::from(probe.query_type.number()),
            judge: Judge::prepare(&probe.want, probe.query_type)?,
            tls,
        })
    }

    /// Asks for every name, one after the other.
    pub(super) async fn run(&self, doing: &Doing<'_>) -> Result<String, Failure> {
        let mut records = 0;
        for name in &self.names {
            let question = Query::query(name.clone(), self.kind);
            let answer = match self.ask(&question, self.probe.udp_size, doing).await? {
                // Servers from before EDNS know nothing better to say.
                a if a.metadata.response_code == ResponseCode::FormErr && self.probe.udp_size > 0 => {
                    self.ask(&question, 0, doing).await?
                }
                a => a,
            };
            let found = self.judge.found(&question, &answer);
            doing.note(|saw| {
                saw.rcode = Some(answer::rcode(&answer).to_string());
                let room = TOLD.0.saturating_sub(saw.answers.len());
                let short = |text: &String| {
                    text[..text.floor_char_boundary(TOLD.1)].chars().map(clean).collect::<String>()
                };
                saw.answers.extend(found.iter().take(room).map(short));
            });
            let why = |why| Failure::Bad(format!("{} {}: {why}", plain(name), self.kind));
            self.judge.judge(&question, &answer, &found).map_err(why)?;
            records += found.len();
            self.judge.judge_text(found).await.map_err(|e| match e {
                Failure::Bad(text) => why(text),
                local @ Failure::Local(_) => local,
            })?;
        }
        let n = self.names.len();
        let names = if n == 1 { "name" } else { "names" };
        Ok(match self.probe.want.rcode {
            DnsRcode::NOERROR => {
                format!("{records} {} records for {n} {names}", self.kind)
            }
            code => format!("{code} for {n} {names}, as wanted"),
        })
    }

    /// Asks one question.
    async fn ask(&self, question: &Query, udp_size: u16, doing: &Doing<'_>) -> Result<Message, Failure> {
        let mut message = Message::new(random() as u16, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = self.probe.recursion;
        message.add_query(question.clone());
        if udp_size > 0 {
            let mut edns = Edns::new();
            edns.set_max_payload(udp_size);
            message.set_edns(edns);
        }
        let asked = Asked {
            id: message.metadata.id,
            question,
            wire: message.to_vec().map_err(|e| Failure::Bad(format!("{}: {e}", plain(question.name()))))?,
        };
        let resolver = &self.probe.resolver;
        match (&self.probe.transport, &self.tls) {
            (DnsTransport::Udp, _) => match self.by_udp(&asked, doing).await? {
                Ok(answer) => Ok(answer),
                Err(remote) => {
                    let cut = |failure| match failure {
                        Failure::Bad(why) => Failure::Bad(format!("truncated by UDP, and {why}")),
                        local @ Failure::Local(_) => local,
                    };
                    self.by_tcp(&Target::Address(remote), &asked, " by TCP, for it was truncated", doing)
                        .await
                        .map_err(cut)
                }
            },
            (DnsTransport::Tls(_), Some(tls)) => {
                let stream = reach::tcp(resolver, Purpose::Talk, doing).await?;
                doing.set(format!("shaking hands with {resolver}"));
                let start = Instant::now();
                let stream = tls.connect(stream, doing).await?;
                doing.note(|saw| saw.tls = Some(start.elapsed()));
                self.by_stream(stream, resolver, &asked, " by TLS", doing).await
            }
            _ => self.by_tcp(resolver, &asked, " by TCP", doing).await,
        }
    }

    /// The answer by UDP, or who it is that has cut it.
    async fn by_udp(
        &self,
        asked: &Asked<'_>,
        doing: &Doing<'_>,
    ) -> Result<Result<Message, SocketAddr>, Failure> {
        let (socket, remote) = reach::udp(&self.probe.resolver, doing).await?;
        icmp::listen(&socket, remote.ip());
        let failed = |e| icmp::failed(&socket, &remote.to_string(), remote.ip(), &e);
        doing.set(asked.waiting(remote, ""));
        let sent = Instant::now();
        socket.send(&asked.wire).await.map_err(failed)?;
        let mut buffer = Vec::new();
        let mut others = 0;
        loop {
            reach::receive(&socket, &mut buffer).await.map_err(failed)?;
            match look(&buffer, asked.id, asked.question) {
                Seen::Other => {
                    others += 1;
                    doing.set(asked.waiting(remote, &format!("; {others} that came were none")));
                }
                Seen::Broken => return Err(asked.bad("the answer cannot be read")),
                Seen::Cut => return Ok(Err(remote)),
                Seen::Answer(answer) => {
                    doing.note(|saw| saw.first_byte = Some(sent.elapsed()));
                    return Ok(Ok(*answer));
                }
            }
        }
    }

    async fn by_tcp(
        &self,
        resolver: &Target,
        asked: &Asked<'_>,
        how: &str,
        doing: &Doing<'_>,
    ) -> Result<Message, Failure> {
        let stream = reach::tcp(resolver, Purpose::Talk, doing).await?;
        self.by_stream(stream, resolver, asked, how, doing).await
    }

    /// The answer over a stream, where two octets of length are before each message (RFC 1035 §4.2.2).
    async fn by_stream(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        resolver: &Target,
        asked: &Asked<'_>,
        how: &str,
        doing: &Doing<'_>,
    ) -> Result<Message, Failure> {
        doing.set(asked.waiting(resolver, how));
        let io = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                Failure::Bad(format!("{resolver} closed without an answer{how}"))
            }
            _ => failed(&format!("{resolver}{how}"), &e),
        };
        let mut framed = u16::try_from(asked.wire.len()).unwrap_or(u16::MAX).to_be_bytes().to_vec();
        framed.extend_from_slice(&asked.wire);
        stream.write_all(&framed).await.map_err(io)?;
        stream.flush().await.map_err(io)?;
        let sent = Instant::now();
        let length = stream.read_u16().await.map_err(io)?;
        doing.note(|saw| saw.first_byte = Some(sent.elapsed()));
        let mut buffer = vec![0; usize::from(length)];
        stream.read_exact(&mut buffer).await.map_err(io)?;
        match look(&buffer, asked.id, asked.question) {
            Seen::Answer(answer) => Ok(*answer),
            Seen::Cut => Err(asked.bad(&format!("the answer{how} is truncated"))),
            Seen::Broken => Err(asked.bad(&format!("the answer{how} cannot be read"))),
            Seen::Other => Err(asked.bad(&format!("the answer{how} is to another question"))),
        }
    }
}

/// A question on its way.
struct Asked<'a> {
    id: u16,
    question: &'a Query,
    wire: Vec<u8>,
}

impl Asked<'_> {
    fn waiting(&self, whom: impl std::fmt::Display, how: &str) -> String {
        format!("waiting for the answer of {whom} about {}{how}", plain(self.question.name()))
    }

    fn bad(&self, what: &str) -> Failure {
        Failure::Bad(format!("{} {}: {what}", plain(self.question.name()), self.question.query_type()))
    }
}

/// Reads `octets` as an answer to a question for `www.example.net`, with identifier 0x1234, of each type.
pub(super) fn fuzz(octets: &[u8]) {
    for (_, kind) in DnsType::ALL {
        let Ok(mut name) = Name::from_ascii("www.example.net.") else { return };
        name.set_fqdn(true);
        let question = Query::query(name, RecordType::from(kind.number()));
        if let Seen::Answer(answer) = look(octets, 0x1234, &question)
            && let Ok(judge) = Judge::prepare(&DnsWant::default(), kind)
        {
            let found = judge.found(&question, &answer);
            let _ = judge.judge(&question, &answer, &found);
        }
    }
}
