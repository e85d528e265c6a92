//! One HTTP/1.1 request and its answer over a connection that is open (RFC 9112), as a check needs it.
//!
//! Nothing here opens connections, follows redirects or judges. Interim answers are skipped. Whatever an answer says
//! about its own length is taken literally or refused: what two readers could understand in two ways is a failure.

mod framing;

use std::cell::Cell;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::task::{Context, Poll};
use std::time::Duration;

use httparse::{Header, ParserConfig, Response, Status};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Join};
use tokio::time::Instant;

use super::run::{Failure, failed};
pub(super) use framing::{Decoder, Framing, Next};

/// What every answer begins with.
const START: &[u8] = b"HTTP/1.";

/// The most octets of a head, and of everything in a chunked body that is not body.
pub(super) const HEAD_LIMIT: usize = 64 << 10;

/// The most fields of a head.
const FIELDS: usize = 128;

/// The most interim answers (1xx) before the final one.
const INTERIM: usize = 64;

/// Room made for a read while the head is awaited, and while a body is.
const HEAD_READ: usize = 2 << 10;
const BODY_READ: usize = 16 << 10;

/// A buffer that grew beyond this is not kept for the next answer.
const SPARE_LIMIT: usize = 64 << 10;

thread_local! {
    /// The buffer of an earlier answer on this thread.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Leaves a buffer to a later answer.
pub(super) fn put_back(mut buffer: Vec<u8>) {
    if buffer.capacity() <= SPARE_LIMIT {
        buffer.clear();
        SPARE.set(buffer);
    }
}

/// Something to read an answer from, that may know when one comes.
pub(super) trait Source: AsyncRead + AsyncWrite + Unpin {
    /// Waits until a read may find something. What does not know that says so at once.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Source for Join<R, W> {}

/// The head of an answer.
#[derive(Debug)]
pub(super) struct Head<'a> {
    /// 100..=999.
    pub(super) status: u16,
    /// 0 or 1, of HTTP/1.x.
    pub(super) minor: u8,
    fields: &'a [Header<'a>],
}

impl<'a> Head<'a> {
    /// The values of every field of this name, in order.
    pub(super) fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.fields.iter().filter(move |f| f.name.eq_ignore_ascii_case(name)).map(|f| f.value)
    }

    /// The elements of a field that is a list, without white space around them (RFC 9110 §5.6.1).
    fn list(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let all = self.values(name).flat_map(|v| v.split(|&b| b == b','));
        all.map(<[u8]>::trim_ascii).filter(|e| !e.is_empty())
    }

    /// Whether the server leaves the connection open after this answer (RFC 9112 §9.3). HTTP/1.0 is taken not to.
    fn is_persistent(&self) -> bool {
        self.minor == 1 && !self.list("connection").any(|option| option.eq_ignore_ascii_case(b"close"))
    }
}

/// Gives `see` the head at the beginning of `bytes` and its length; `None` if its end is not there yet.
pub(super) fn parse<T>(bytes: &[u8], see: impl FnOnce(&Head<'_>, usize) -> T) -> Result<Option<T>, String> {
    let start = &bytes[..bytes.len().min(START.len())];
    if !START.starts_with(start) {
        return Err(match start {
            [0x15 | 0x16, 3, ..] => "the server speaks TLS, and this is a plain request".into(),
            _ => "this is not an answer of HTTP/1: invalid HTTP version".into(),
        });
    }
    let mut fields = [const { MaybeUninit::<Header<'_>>::uninit() }; FIELDS];
    let mut response = Response::new(&mut []);
    let parsed =
        ParserConfig::default().parse_response_with_uninit_headers(&mut response, bytes, &mut fields);
    let length = match parsed {
        Ok(Status::Complete(length)) if length <= HEAD_LIMIT => length,
        Ok(Status::Partial) if bytes.len() <= HEAD_LIMIT => return Ok(None),
        Ok(_) => return Err(format!("the head is longer than {} KiB", HEAD_LIMIT >> 10)),
        Err(httparse::Error::TooManyHeaders) => return Err(format!("more than {FIELDS} fields")),
        Err(e) => return Err(e.to_string()),
    };
    let (Some(status), Some(minor)) = (response.code, response.version) else {
        return Err("no status".into());
    };
    if status < 100 {
        return Err(format!("status {status:03} is no status"));
    }
    Ok(Some(see(&Head { status, minor, fields: response.headers }, length)))
}

/// The final head of an answer, and what the caller took from it.
#[derive(Debug)]
pub(super) struct Answer<T> {
    /// What the caller took.
    pub(super) taken: T,
    /// How long the body is.
    pub(super) framing: Framing,
    /// Where the body begins in the buffer.
    pub(super) at: usize,
    /// Whether another request may follow on this connection once the body is read.
    pub(super) persistent: bool,
    /// From the request's last octet to the answer's first.
    pub(super) first_byte: Duration,
}

/// Why there is no final head.
#[derive(Debug)]
pub(super) struct NoHead {
    /// In words.
    pub(super) failure: Failure,
    /// Whether not one octet of an answer came: an idle connection that the server had closed looks like this.
    pub(super) silent: bool,
}

/// Sends `request` in one write and reads into `buffer` to the end of the final head, from which `take` takes what it needs. A
/// buffer without room is replaced by a spare one once there is something to read: of many who wait few need one.
///
/// `what` names the answer in failures. `told` hears the number of interim answers each time that one came.
pub(super) async fn ask<S, T>(
    io: &mut S,
    request: &[u8],
    buffer: &mut Vec<u8>,
    what: &str,
    told: impl Fn(usize),
    take: impl Fn(&Head<'_>) -> T,
) -> Result<Answer<T>, NoHead>
where
    S: Source,
{
    buffer.clear();
    let sent = match io.write_all(request).await {
        Ok(()) => io.flush().await,
        Err(e) => Err(e),
    };
    let asked = Instant::now();
    poll_fn(|cx| io.poll_ready(cx)).await;
    if buffer.capacity() == 0 {
        *buffer = SPARE.take();
    }
    let mut first_byte = None;
    let mut interim = 0;
    loop {
        let old = buffer.len();
        buffer.reserve(HEAD_READ);
        let read = io.read_buf(buffer).await;
        let silent = first_byte.is_none();
        // A server that refuses before it has read everything may have closed; what it said is worth more than that.
        let read = match (read, &sent) {
            (Ok(0) | Err(_), Err(e)) => return Err(NoHead { failure: failed(what, e), silent }),
            // So says TLS of an end that came without its own.
            (Err(e), _) if e.kind() == ErrorKind::UnexpectedEof => Ok(0),
            (read, _) => read,
        };
        match read {
            Ok(0) => {
                let failure = match silent {
                    true => format!("{what}: connection closed without an answer"),
                    false if interim > 0 && buffer.is_empty() => {
                        format!(
                            "{what}: connection closed after an interim answer (1xx), without a final one"
                        )
                    }
                    false => format!("{what}: connection closed before they were complete"),
                };
                return Err(NoHead { failure: Failure::Bad(failure), silent });
            }
            Ok(_) => {}
            Err(e) => return Err(NoHead { failure: failed(what, &e), silent }),
        }
        let first_byte = *first_byte.get_or_insert_with(|| asked.elapsed());
        // Without the end of a line there is nothing new to parse, so that octets that drip in cost no more than that.
        let mut fresh = old < START.len() || buffer.len() > HEAD_LIMIT || buffer[old..].contains(&b'\n');
        while std::mem::take(&mut fresh) {
            let bad = |text| NoHead { failure: Failure::Bad(format!("{what}: {text}")), silent: false };
            let is_head = request.starts_with(b"HEAD ");
            let is_connect = request.starts_with(b"CONNECT ");
            let seen = parse(buffer, |head, at| match head.status {
                101 => Err("101 Switching Protocols, which nobody asked for".into()),
                100..200 => Ok((None, at)),
                _ => {
                    let framing = Framing::of(head, is_head, is_connect)?;
                    let persistent = head.is_persistent() && framing != Framing::Close;
                    let taken = take(head);
                    Ok((Some(Answer { taken, framing, at, persistent, first_byte }), at))
                }
            });
            match seen.map_err(bad)? {
                None => {}
                Some(Err(text)) => return Err(bad(text)),
                Some(Ok((Some(answer), _))) => return Ok(answer),
                Some(Ok((None, at))) => {
                    interim += 1;
                    if interim > INTERIM {
                        return Err(bad(format!("more than {INTERIM} interim answers (1xx)")));
                    }
                    told(interim);
                    buffer.drain(..at);
                    fresh = !buffer.is_empty();
                }
            }
        }
    }
}

/// How the reading of a body ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    /// Octets of it that were read.
    pub(super) length: usize,
    /// Whether there is more of it, beyond the bound.
    pub(super) cut: bool,
    /// Whether nothing follows it: not the end of the stream, and no octet that was not asked for.
    pub(super) clean: bool,
}

/// Reads the body that begins at `at` in `buffer`, to its end or to `limit` octets.
///
/// Afterwards it is what `buffer` begins with if `keep`; otherwise it is counted and thrown away.
pub(super) async fn body<S>(
    io: &mut S,
    buffer: &mut Vec<u8>,
    at: usize,
    framing: Framing,
    limit: usize,
    keep: bool,
) -> Result<Ended, Failure>
where
    S: AsyncRead + Unpin,
{
    let mut decoder = Decoder::new(framing);
    let mut length = 0;
    // The buffer holds what is kept of the body, then (from `raw` on) what came and was not looked at.
    let (mut kept, mut raw) = (0, at);
    loop {
        match decoder.next(&buffer[raw..]).map_err(|text| Failure::Bad(format!("body: {text}")))? {
            Next::Data { from, to } => {
                let fits = (to - from).min(limit - length);
                if keep {
                    buffer.copy_within(raw + from..raw + from + fits, kept);
                    kept += fits;
                }
                length += fits;
                if fits < to - from || length == limit && decoder.has_more() {
                    buffer.truncate(kept);
                    return Ok(Ended { length, cut: true, clean: false });
                }
                raw += to;
            }
            Next::Done { used } => {
                let clean = raw + used == buffer.len();
                buffer.truncate(kept);
                return Ok(Ended { length, cut: false, clean });
            }
            Next::More => {
                buffer.truncate(kept);
                raw = kept;
                buffer.reserve(BODY_READ);
                match io.read_buf(buffer).await {
                    Ok(0) => {
                        decoder.end(length).map_err(|text| Failure::Bad(format!("body: {text}")))?;
                        return Ok(Ended { length, cut: false, clean: false });
                    }
                    Ok(_) => {}
                    // Only TLS says this of an end that came without its own.
                    Err(e) if e.kind() == ErrorKind::UnexpectedEof => {
                        return Err(Failure::Bad(match decoder.end(length) {
                            Ok(()) => {
                                "body: TLS ended without close_notify, so there may be more of it".into()
                            }
                            Err(text) => format!("body: {text}"),
                        }));
                    }
                    Err(e) => return Err(failed("body", &e)),
                }
            }
        }
    }
}

/// Reads `bytes` as an answer in pieces of `piece` octets, for tests with bytes that nobody chose: what came of it,
/// or why nothing did.
pub(super) fn replay(bytes: &[u8], piece: usize, method: &str, limit: usize) -> Result<String, String> {
    let request = format!("{method} / HTTP/1.1\r\n\r\n");
    let mut io = tokio::io::join(Pieces { rest: bytes, piece: piece.max(1) }, tokio::io::sink());
    let work = async {
        let mut buffer = Vec::new();
        let see = |head: &Head<'_>| (head.status, head.minor, head.values("location").count());
        let answer = ask(&mut io, request.as_bytes(), &mut buffer, "head", |_| (), see).await;
        let answer = answer.map_err(|e| e.failure)?;
        let ended = body(&mut io, &mut buffer, answer.at, answer.framing, limit, true).await?;
        Ok::<_, Failure>(format!("{:?} {} {:?}", answer.taken, ended.length, buffer))
    };
    let mut work = std::pin::pin!(work);
    match work.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(Ok(text)) => Ok(text),
        std::task::Poll::Ready(Err(Failure::Bad(text) | Failure::Local(text))) => Err(text),
        std::task::Poll::Pending => Err("pending".into()),
    }
}

/// Bytes that come in pieces, never late.
struct Pieces<'a> {
    rest: &'a [u8],
    piece: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        into: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        let (now, later) = self.rest.split_at(self.piece.min(into.remaining()).min(self.rest.len()));
        into.put_slice(now);
        self.rest = later;
        std::task::Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
