//! Where a body ends: its length, its chunks, or the end of the stream (RFC 9112 §6 and §7).

use super::{HEAD_LIMIT, Head};

/// The most hexadecimal digits of a chunk's size.
const SIZE_DIGITS: u8 = 16;

/// How the end of a body is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Framing {
    /// It has so many octets.
    Length(u64),
    /// It comes in chunks.
    Chunked,
    /// It ends with the connection.
    Close,
}

impl Framing {
    /// The framing of the body that follows `head` (RFC 9112 §6.3), or what is contradictory about it.
    pub(super) fn of(head: &Head<'_>, is_head: bool, is_connect: bool) -> Result<Self, String> {
        if is_head || matches!(head.status, 100..200 | 204 | 304) || is_connect && head.status / 100 == 2 {
            return Ok(Self::Length(0));
        }
        let length = length(head)?;
        let mut codings = head.list("transfer-encoding");
        let Some(coding) = codings.next() else { return Ok(length.map_or(Self::Close, Self::Length)) };
        if length.is_some() {
            return Err("both Transfer-Encoding and Content-Length".into());
        }
        if head.minor == 0 {
            return Err("Transfer-Encoding in an answer of HTTP/1.0".into());
        }
        if !coding.eq_ignore_ascii_case(b"chunked") || codings.next().is_some() {
            return Err("a Transfer-Encoding other than chunked".into());
        }
        Ok(Self::Chunked)
    }
}

/// The Content-Length, of which repetitions must agree.
fn length(head: &Head<'_>) -> Result<Option<u64>, String> {
    let mut length = None;
    for value in head.values("content-length").flat_map(|v| v.split(|&b| b == b',')) {
        let digits = std::str::from_utf8(value.trim_ascii()).unwrap_or_default();
        let number = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
        let Some(number) = number else { return Err("Content-Length is not a number".into()) };
        if length.is_some_and(|earlier| earlier != number) {
            return Err("two Content-Lengths that disagree".into());
        }
        length = Some(number);
    }
    Ok(length)
}

/// Finds the body in what comes.
#[derive(Debug)]
pub(in super::super) struct Decoder {
    state: State,
    /// Of a body with a length, all of it.
    total: u64,
    /// Octets between chunks so far that carry nothing: extensions and trailers.
    idle: usize,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// So many octets of the body, then its end.
    Length(u64),
    /// The body, to the end of the stream.
    Close,
    /// The hexadecimal digits of a chunk's size.
    Size { value: u64, digits: u8 },
    /// The rest of the line after the size.
    Extension { value: u64 },
    /// The line feed after it.
    SizeEnd { value: u64 },
    /// So many octets of a chunk.
    Chunk(u64),
    /// Carriage return and line feed after a chunk.
    ChunkEnd { cr: bool },
    /// A line after the last chunk.
    Trailer { empty: bool, cr: bool },
    /// After the end.
    Done,
}

/// What the next octets are.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum Next {
    /// Those from `from` to `to` belong to the body; at least one.
    Data {
        /// The first.
        from: usize,
        /// The one after the last.
        to: usize,
    },
    /// None of them ends the body; all were looked at.
    More,
    /// The body ended after so many of them.
    Done {
        /// How many.
        used: usize,
    },
}

impl Decoder {
    /// Before the first octet of the body.
    pub(super) fn new(framing: Framing) -> Self {
        let (state, total) = match framing {
            Framing::Length(total) => (State::Length(total), total),
            Framing::Chunked => (State::Size { value: 0, digits: 0 }, 0),
            Framing::Close => (State::Close, 0),
        };
        Self { state, total, idle: 0 }
    }

    /// Looks at what comes next.
    pub(super) fn next(&mut self, input: &[u8]) -> Result<Next, String> {
        let mut at = 0;
        loop {
            match self.state {
                State::Length(0) | State::Done => return Ok(Next::Done { used: at }),
                State::Length(left) => return Ok(self.data(input, at, left, State::Length)),
                State::Close => return Ok(self.data(input, at, u64::MAX, |_| State::Close)),
                State::Chunk(left) if left > 0 => return Ok(self.data(input, at, left, State::Chunk)),
                _ => {}
            }
            let Some(&octet) = input.get(at) else { return Ok(Next::More) };
            at += 1;
            self.state = self.between(octet)?;
        }
    }

    /// Whether the body is known to go on.
    pub(super) fn has_more(&self) -> bool {
        matches!(self.state, State::Length(1..) | State::Chunk(1..))
    }

    /// The stream ended after `seen` octets of the body: whether it may.
    pub(super) fn end(&self, seen: usize) -> Result<(), String> {
        match self.state {
            State::Close | State::Done | State::Length(0) => Ok(()),
            State::Length(_) => Err(format!("connection closed after {seen} of its {} bytes", self.total)),
            _ => Err(format!("connection closed after {seen} bytes, before the last chunk")),
        }
    }

    fn data(&mut self, input: &[u8], from: usize, left: u64, state: impl Fn(u64) -> State) -> Next {
        let here = input.len() - from;
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(here);
        if taken == 0 {
            return Next::More;
        }
        self.state = state(left - taken as u64);
        Next::Data { from, to: from + taken }
    }

    /// One octet that is not of the body.
    fn between(&mut self, octet: u8) -> Result<State, String> {
        if let State::Extension { .. } | State::Trailer { empty: false, .. } = self.state {
            self.idle += 1;
            if self.idle > HEAD_LIMIT {
                return Err(format!(
                    "chunk extensions and trailers are longer than {} KiB",
                    HEAD_LIMIT >> 10
                ));
            }
        }
        let control = octet < b' ' && octet != b'\t' || octet == 0x7f;
        Ok(match (self.state, octet) {
            (State::Size { value, digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                if digits == SIZE_DIGITS {
                    return Err("the size of a chunk is too large".into());
                }
                let digit = char::from(octet).to_digit(16).unwrap_or(0);
                State::Size { value: value << 4 | u64::from(digit), digits: digits + 1 }
            }
            (State::Size { value, digits: 1.. }, b';' | b' ' | b'\t') => State::Extension { value },
            (State::Size { value, digits: 1.. } | State::Extension { value }, b'\r') => {
                State::SizeEnd { value }
            }
            (State::Extension { value }, _) if !control => State::Extension { value },
            (State::SizeEnd { value: 0 }, b'\n') => State::Trailer { empty: true, cr: false },
            (State::SizeEnd { value }, b'\n') => State::Chunk(value),
            (State::Chunk(_), b'\r') => State::ChunkEnd { cr: true },
            (State::ChunkEnd { cr: true }, b'\n') => State::Size { value: 0, digits: 0 },
            (State::Chunk(_) | State::ChunkEnd { .. }, _) => {
                return Err("a chunk does not end where its size says".into());
            }
            (State::Trailer { empty, cr: false }, b'\r') => State::Trailer { empty, cr: true },
            (State::Trailer { empty: true, cr: true }, b'\n') => State::Done,
            (State::Trailer { empty: false, cr: true }, b'\n') => State::Trailer { empty: true, cr: false },
            (State::Trailer { cr: false, .. }, _) if !control => State::Trailer { empty: false, cr: false },
            (State::Trailer { .. }, _) => return Err("a trailer is malformed".into()),
            _ => return Err("the size of a chunk is malformed".into()),
        })
    }
}
