//! The `tcp` check: a connection that opens and, where something is expected, what the server says over it.
//!
//! What comes is looked at as it comes, so that a server that waits for more is not waited for. At most [`LIMIT`] octets
//! are read.

use std::fmt::{self, Write as _};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use standfast_core::health::Details;
use standfast_core::plan::{Expect, Target, TcpProbe, Via};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

use super::pattern::Pattern;
use super::reach;
use super::run::{Begun, Doing, Failure, failed};
use super::tls::Tls;
use crate::dial::{Purpose, Stream};

/// The most octets that are read before what is expected must have come.
const LIMIT: usize = 64 << 10;

/// How much of what came is shown.
const SHOWN: usize = 60;

/// Words that are shorter are no secrets.
const SECRET: usize = 4;

/// Octets that drip in are looked at together, this long after the last look at the earliest.
const PAUSE: Duration = Duration::from_millis(5);

/// The pause after a look that took long is this many times as long, so that looking is a small part of all time.
const REST: u32 = 10;

/// A `tcp` check, ready to run.
#[derive(Debug)]
pub(super) struct Tcp {
    target: Target,
    tls: Option<Tls>,
    send: Vec<u8>,
    /// What of it is never repeated.
    secrets: Vec<Vec<u8>>,
    expect: Option<Want>,
    reset: bool,
}

#[derive(Debug)]
enum Want {
    Bytes(Vec<u8>),
    Regex(Pattern),
}

impl Tcp {
    /// Reads the files and compiles the expression of `probe`.
    pub(super) fn prepare(probe: &TcpProbe) -> Result<Self, String> {
        let TcpProbe { target, tls, send, expect, reset } = probe;
        let expect = match expect {
            None => None,
            Some(Expect::Bytes(octets)) => Some(Want::Bytes(octets.clone())),
            Some(Expect::Regex(text)) => Some(Want::Regex(Pattern::compile(text)?)),
        };
        Ok(Self {
            target: target.clone(),
            tls: tls.as_ref().map(|tls| Tls::prepare(tls, &[])).transpose()?,
            send: send.clone(),
            secrets: secrets(send),
            expect,
            reset: *reset,
        })
    }

    /// Whether nothing is read or written.
    fn only_connects(&self) -> bool {
        self.tls.is_none() && self.send.is_empty() && self.expect.is_none()
    }

    /// The address that it connects to, if that is known.
    pub(super) fn opens(&self) -> Option<SocketAddr> {
        if let Target::Address(address) = self.target { Some(address) } else { None }
    }

    /// Begins to connect; it has ended if that is all, and is over.
    pub(super) fn begin(&self, via: &Via, saw: &mut Details) -> Begun {
        let address = self.opens().ok_or(None)?;
        let opening = reach::begin(address, via, self.purpose(), saw);
        if !self.only_connects() {
            return opening.map_or_else(|e| Ok(Err(e)), |opening| Err(Some(Box::new(opening))));
        }
        let dialled = match opening {
            Ok(opening) => opening.at_once(via).map_err(Some)?,
            Err(e) => return Ok(Err(e)),
        };
        Ok(dialled.map_err(Failure::from).map(|dialled| {
            (saw.connect, saw.local) = (Some(dialled.took), dialled.local);
            if self.reset {
                dialled.stream.reset_on_drop();
            }
            let mut text = String::with_capacity(48);
            // Writing to a string cannot fail.
            let _ = write!(text, "connected to {address}");
            text
        }))
    }

    fn purpose(&self) -> Purpose {
        match &self.tls {
            None if self.only_connects() && self.reset => Purpose::Knock,
            None => Purpose::Ask(self.send.len()),
            Some(_) => Purpose::Talk,
        }
    }

    /// Connects, says what is to be said, and listens.
    pub(super) async fn run(&self, doing: &Doing<'_>) -> Result<String, Failure> {
        let mut stream = reach::tcp(&self.target, self.purpose(), doing).await?;
        if self.reset {
            stream.reset_on_drop();
        }
        let peer = stream.peer();
        match &self.tls {
            None => self.talk(&mut stream, &peer, doing).await?,
            // What TLS takes is only there where there is TLS.
            Some(tls) => Box::pin(self.talk_over(tls, stream, &peer, doing)).await?,
        }
        let how = if self.tls.is_some() { "connected with TLS to" } else { "connected to" };
        let heard = if self.expect.is_some() { ", which said what was expected" } else { "" };
        Ok(format!("{how} {peer}{heard}"))
    }

    async fn talk_over(
        &self,
        tls: &Tls,
        stream: Stream,
        peer: &str,
        doing: &Doing<'_>,
    ) -> Result<(), Failure> {
        doing.set("waiting for the TLS handshake");
        let mut stream = tls.connect(stream, doing).await?;
        self.talk(&mut stream, peer, doing).await?;
        if !self.reset {
            // The end of TLS is told as far as there is room for it; nobody waits for it.
            poll_fn(|cx| {
                let _ = Pin::new(&mut stream).poll_shutdown(cx);
                Poll::Ready(())
            })
            .await;
        }
        Ok(())
    }

    async fn talk<S>(&self, stream: &mut S, peer: &str, doing: &Doing<'_>) -> Result<(), Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        if !self.send.is_empty() {
            doing.set(format!("sending to {peer}"));
            let sent = match stream.write_all(&self.send).await {
                Ok(()) => stream.flush().await,
                Err(e) => Err(e),
            };
            sent.map_err(|e| failed(&format!("send to {peer}"), &e))?;
        }
        match &self.expect {
            Some(want) => want.hear(stream, peer, &self.secrets, doing).await,
            None => Ok(()),
        }
    }
}

impl Want {
    /// Reads until what is wanted has come.
    async fn hear<S: AsyncRead + Unpin>(
        &self,
        stream: &mut S,
        peer: &str,
        secrets: &[Vec<u8>],
        doing: &Doing<'_>,
    ) -> Result<(), Failure> {
        let shown = |heard: &[u8]| Shown(hidden(heard, secrets));
        doing.set(format!("waiting for the expected answer of {peer}"));
        let start = Instant::now();
        let mut heard = Vec::with_capacity(512);
        // How much of it was looked at.
        let mut seen = 0;
        let mut next_look = start;
        loop {
            let unseen = heard.len() > seen;
            let mut bounded = (&mut *stream).take((LIMIT - heard.len()) as u64);
            let reading = bounded.read_buf(&mut heard);
            // `None`: what came before is due to be looked at.
            let read = if unseen { timeout_at(next_look, reading).await.ok() } else { Some(reading.await) };
            if !heard.is_empty() && seen == 0 {
                doing.note(|saw| saw.first_byte = saw.first_byte.or(Some(start.elapsed())));
            }
            let over = !matches!(read, Some(Ok(1..))) || heard.len() == LIMIT;
            // Looking again after each of many single octets would cost more than reading them.
            let look = Instant::now();
            if !over && look < next_look && heard.len() < 2 * seen {
                continue;
            }
            let found = match self {
                Self::Bytes(octets) => holds(&heard, octets, seen),
                Self::Regex(regex) => {
                    let (found, mut back) = regex.matches(vec![heard]).await?;
                    // The one that was given.
                    heard = back.pop().unwrap_or_default();
                    found
                }
            };
            next_look = Instant::now() + PAUSE.max(look.elapsed() * REST);
            if found {
                doing.note(|saw| saw.body_bytes = Some(heard.len() as u64));
                return Ok(());
            }
            seen = heard.len();
            doing.set(format!("waiting for the expected answer of {peer}, which said {}", shown(&heard)));
            match read {
                Some(Ok(0)) if heard.is_empty() => {
                    return Err(Failure::Bad(format!("{peer} closed without a word")));
                }
                Some(Ok(0)) if seen < LIMIT => {
                    let heard = shown(&heard);
                    return Err(Failure::Bad(format!(
                        "{peer} closed after {heard}, which is not as expected"
                    )));
                }
                Some(Err(e)) => {
                    return Err(failed(&format!("waiting for the expected answer of {peer}"), &e));
                }
                _ if seen == LIMIT => {
                    return Err(Failure::Bad(format!(
                        "what is expected is not in the first {LIMIT} bytes from {peer}, and the rest was not read: {}",
                        shown(&heard)
                    )));
                }
                _ => {}
            }
        }
    }
}

/// Whether `octets` are in `heard`; it is known that they are not in the first `seen` of it.
fn holds(heard: &[u8], octets: &[u8], seen: usize) -> bool {
    let from = (seen + 1).saturating_sub(octets.len());
    octets.is_empty() || heard[from.min(heard.len())..].windows(octets.len()).any(|w| w == octets)
}

/// What of `send` is never repeated, although a server may say it back: everything but the first word of each line, which is
/// a command.
fn secrets(send: &[u8]) -> Vec<Vec<u8>> {
    let lines = send.split(|&b| b == b'\n');
    let words = lines.flat_map(|line| line.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty()).skip(1));
    words.filter(|word| word.len() >= SECRET).map(<[u8]>::to_vec).collect()
}

/// The beginning of `heard`, with stars where a secret was.
fn hidden(heard: &[u8], secrets: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = heard;
    while let Some(&octet) = rest.first().filter(|_| out.len() <= SHOWN) {
        match secrets.iter().find(|secret| rest.starts_with(secret)) {
            Some(secret) => {
                out.extend_from_slice(b"***");
                rest = &rest[secret.len()..];
            }
            None => {
                out.push(octet);
                rest = &rest[1..];
            }
        }
    }
    out
}

/// Octets as a person can read them: escaped, and only the first of many.
struct Shown(Vec<u8>);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = &self.0[..self.0.len().min(SHOWN)];
        let more = if cut.len() < self.0.len() { "..." } else { "" };
        write!(f, "\"{}\"{more}", cut.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_are_found_wherever_they_were_cut() {
        let text = b"220 mail.example.test ESMTP";
        for cut in 0..=text.len() {
            let first = holds(&text[..cut], b"mail", 0);
            assert_eq!(first, cut >= 8);
            assert!(first || holds(text, b"mail", cut), "cut at {cut}");
        }
        assert!(!holds(text, b"mailx", 0));
        assert!(holds(b"", b"", 0));
    }

    #[test]
    fn what_is_shown_is_escaped_and_cut() {
        let shown = |heard: &[u8]| Shown(hidden(heard, &[])).to_string();
        assert_eq!(shown(b"-ERR \"x\"\r\n\x1b\xff"), r#""-ERR \"x\"\r\n\x1b\xff""#);
        assert_eq!(shown(&[b'a'; 100]), format!("\"{}\"...", "a".repeat(60)));
    }

    #[test]
    fn what_was_sent_after_a_command_is_not_repeated() {
        let secrets = secrets(b"AUTH hunter2\r\nPING\r\nEHLO me\r\n");
        assert_eq!(secrets, [b"hunter2"]);
        let heard = b"-ERR unknown command 'AUTH', with args: 'hunter2' 'hunter2'";
        assert_eq!(hidden(heard, &secrets), b"-ERR unknown command 'AUTH', with args: '***' '***'");
        assert_eq!(hidden(&[b'a'; 1000], &secrets).len(), SHOWN + 1);
    }
}
