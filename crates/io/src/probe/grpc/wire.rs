//! The two formats that a call is made of, read without trust: messages in their frames, and fields in a message.
//!
//! Sources: grpc/grpc doc/PROTOCOL-HTTP2.md (Length-Prefixed-Message), protobuf.dev/programming-guides/encoding.
//! Nothing is decompressed: no compression is offered, so none may be used. Groups are no part of what is read here.

/// Takes messages out of the data of a call, however it is cut.
#[derive(Debug)]
pub(super) struct Frames {
    pending: Vec<u8>,
    /// Octets that may still come, prefixes included.
    room: usize,
    limit: usize,
}

/// Octets before each message: whether it is compressed, and its length.
const PREFIX: usize = 5;

impl Frames {
    /// Takes `limit` octets together, prefixes included.
    pub(super) fn new(limit: usize) -> Self {
        Self { pending: Vec::new(), room: limit, limit }
    }

    /// Takes `data`, and puts the messages that it completes into `out`.
    pub(super) fn feed(&mut self, data: &[u8], out: &mut Vec<Vec<u8>>) -> Result<(), String> {
        let too_long = || format!("the answer is longer than {} bytes", self.limit);
        self.room = self.room.checked_sub(data.len()).ok_or_else(too_long)?;
        self.pending.extend_from_slice(data);
        let mut rest = self.pending.as_slice();
        while let Some((prefix, after)) = rest.split_first_chunk::<PREFIX>() {
            let [flag, length @ ..] = *prefix;
            match flag {
                0 => {}
                1 => return Err("the answer is compressed, which was not asked for".into()),
                other => return Err(format!("the answer is no gRPC message (its flags are {other})")),
            }
            let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
            if length > self.limit {
                return Err(format!("a message of {length} bytes is longer than {}", self.limit));
            }
            let Some((message, after)) = after.split_at_checked(length) else { break };
            out.push(message.to_vec());
            rest = after;
        }
        let taken = self.pending.len() - rest.len();
        self.pending.drain(..taken);
        Ok(())
    }

    /// Whether the data ended within a message.
    pub(super) fn is_cut(&self) -> bool {
        !self.pending.is_empty()
    }
}

/// A message with its prefix: not compressed, this long. Appended to `out`.
pub(super) fn frame(message: &[u8], out: &mut Vec<u8>) {
    out.push(0);
    out.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(message);
}

/// The value of a field as the wire has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    /// A number: whole, or of four or eight octets.
    Number(u64),
    /// Text, octets, a message, or packed numbers.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// The octets; none if it is a number.
    pub(super) fn bytes(self) -> &'a [u8] {
        match self {
            Self::Number(_) => &[],
            Self::Bytes(bytes) => bytes,
        }
    }

    /// The text, with what is not UTF-8 replaced.
    pub(super) fn text(self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    /// The number as an `int32`; 0 if there is none.
    pub(super) fn int(self) -> i32 {
        match self {
            // An int32 is sent as 64 bits, of which the lower half counts.
            Self::Number(n) => n as u32 as i32,
            Self::Bytes(_) => 0,
        }
    }
}

/// The fields of a message, in order; `None` in place of one that cannot be read, and then the end.
#[derive(Debug)]
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Self {
        Self(message)
    }

    fn read(&mut self) -> Option<(u32, Value<'a>)> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok().filter(|n| *n > 0)?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => Value::Number(u64::from_le_bytes(*self.take(8)?.first_chunk()?)),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Number(u32::from_le_bytes(*self.take(4)?.first_chunk()?).into()),
            _ => return None,
        };
        Some((number, value))
    }

    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    /// Takes a base-128 number off the front.
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u32, Value<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// Appends a field of octets to `out`.
pub(super) fn put(number: u32, octets: &[u8], out: &mut Vec<u8>) {
    varint(u64::from(number) << 3 | 2, out);
    varint(octets.len() as u64, out);
    out.extend_from_slice(octets);
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        frame(message, &mut out);
        out
    }

    #[test]
    fn messages_come_out_however_the_data_is_cut() {
        assert_eq!(framed(b"\x08\x01"), [0, 0, 0, 0, 2, 8, 1]);
        let all = [framed(b"one"), framed(b""), framed(b"three")].concat();
        for size in 1..=all.len() {
            let (mut frames, mut out) = (Frames::new(100), Vec::new());
            for piece in all.chunks(size) {
                frames.feed(piece, &mut out).unwrap();
            }
            assert_eq!(out, [&b"one"[..], b"", b"three"], "cut to {size}");
            assert!(!frames.is_cut());
        }
    }

    #[test]
    fn what_is_too_long_compressed_or_no_frame_is_refused() {
        let feed = |data: &[u8]| Frames::new(10).feed(data, &mut Vec::new()).unwrap_err();
        assert!(feed(b"\x01\0\0\0\0").contains("compressed"));
        assert!(feed(b"\x02\0\0\0\0").contains("flags are 2"));
        assert!(feed(b"\0\xff\xff\xff\xff").contains("a message of 4294967295 bytes is longer than 10"));
        assert!(feed(&[0; 11]).contains("longer than 10"));
        let mut frames = Frames::new(10);
        frames.feed(b"\0\0\0\0\x01", &mut Vec::new()).unwrap();
        assert!(frames.is_cut());
    }

    #[test]
    fn fields_of_every_kind_are_read_and_a_broken_one_is_the_end() {
        let all: Vec<_> = Fields::of(b"\x08\x96\x01\x12\x02hi\x1d\x01\0\0\0\x21\x02\0\0\0\0\0\0\0")
            .map(Option::unwrap)
            .collect();
        let want =
            [(1, Value::Number(150)), (2, Value::Bytes(b"hi")), (3, Value::Number(1)), (4, Value::Number(2))];
        assert_eq!(all, want);
        for broken in [
            &b"\x08"[..],
            b"\x12\x7fhi",
            b"\x0b",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x00\x01",
        ] {
            assert_eq!(Fields::of(broken).collect::<Vec<_>>(), [None], "{broken:?}");
        }
    }

    #[test]
    fn what_was_put_is_what_is_read() {
        let long = "x".repeat(300);
        let mut out = Vec::new();
        put(1, b"a.B", &mut out);
        assert_eq!(out, b"\x0a\x03a.B");
        put(200, long.as_bytes(), &mut out);
        let all: Vec<_> = Fields::of(&out).map(Option::unwrap).collect();
        assert_eq!(all, [(1, Value::Bytes(b"a.B")), (200, Value::Bytes(long.as_bytes()))]);
    }
}
