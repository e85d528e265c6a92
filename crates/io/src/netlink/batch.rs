//! Many requests in one system call: the kernel is asked for one acknowledgement, and tells of each refusal by itself.

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage};
use netlink_packet_route::RouteNetlinkMessage;
use std::collections::BTreeMap;
use std::io;

use super::{Netlink, Step, refusal, word};

/// Most octets in one system call; the socket takes about 200 KiB.
const OCTETS: usize = 64 * 1024;
/// Most requests in one system call: if all are refused, their refusals must find room in the socket.
const REQUESTS: usize = 128;
/// Length of a message's header.
const HEADER: usize = 16;
const ERROR: u16 = 2;

/// Requests that are to be performed in order. Each is known by its number, from 0.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    octets: Vec<u8>,
    starts: Vec<usize>,
}

impl Batch {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.starts.len()
    }

    /// Appends a request for which the library has words.
    pub(super) fn push(&mut self, payload: RouteNetlinkMessage, flags: u16) {
        let mut message = NetlinkMessage::from(payload);
        message.header.flags = NLM_F_REQUEST | flags;
        message.finalize();
        let start = self.octets.len();
        self.starts.push(start);
        self.octets.resize(start + message.buffer_len().next_multiple_of(4), 0);
        message.serialize(&mut self.octets[start..]);
    }

    /// Appends a request of a `kind` with this fixed part; its attributes follow by [`attribute`](Self::attribute).
    pub(super) fn begin(&mut self, kind: u16, flags: u16, fixed: &[u8]) {
        self.starts.push(self.octets.len());
        self.octets.extend(0_u32.to_ne_bytes());
        self.octets.extend(kind.to_ne_bytes());
        self.octets.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        self.octets.extend([0; 8]);
        self.octets.extend(fixed);
        self.close();
    }

    /// Appends an attribute to the last request.
    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) {
        // No attribute of ours is longer than a group of 4096 next hops.
        let len = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.octets.extend(len.to_ne_bytes());
        self.octets.extend(kind.to_ne_bytes());
        self.octets.extend(value);
        self.close();
    }

    /// Appends an attribute whose value `fill` appends.
    pub(super) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.octets.len();
        self.attribute(kind, &[]);
        fill(self);
        self.lengthen(start);
    }

    /// Appends a next hop of a route over several: `gateway` appends where it leads.
    pub(super) fn leg(&mut self, weight: u8, interface: u32, gateway: impl FnOnce(&mut Self)) {
        let start = self.octets.len();
        self.octets.extend([0, 0, 0, weight]);
        self.octets.extend(interface.to_ne_bytes());
        gateway(self);
        self.lengthen(start);
    }

    /// Writes the length of what begins at `start`, in two octets.
    fn lengthen(&mut self, start: usize) {
        // No attribute of ours is longer than a group of 4096 next hops.
        let len = u16::try_from(self.octets.len() - start).unwrap_or(u16::MAX);
        self.octets[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.close();
    }

    /// Pads the last request and writes its length.
    fn close(&mut self) {
        self.octets.resize(self.octets.len().next_multiple_of(4), 0);
        let Some(&start) = self.starts.last() else { return };
        let len = (self.octets.len() - start) as u32;
        self.octets[start..start + 4].copy_from_slice(&len.to_ne_bytes());
    }

    /// The octets of request `i`.
    pub(super) fn message(&self, i: usize) -> &[u8] {
        let end = self.starts.get(i + 1).copied().unwrap_or(self.octets.len());
        &self.octets[self.starts[i]..end]
    }

    /// Where the system call that begins with request `from` ends.
    fn chunk(&self, from: usize) -> usize {
        let start = self.starts[from];
        let fits = |&i: &usize| {
            let end = self.starts.get(i).copied().unwrap_or(self.octets.len());
            i - from <= REQUESTS && end - start <= OCTETS
        };
        (from + 1..=self.len()).take_while(fits).last().unwrap_or(from + 1)
    }
}

impl Netlink {
    /// Performs the requests in order; those that were refused, with why. One that is refused does not keep the next from being made.
    ///
    /// # Errors
    /// The kernel did not take them or did not answer: nothing is known of any.
    pub(crate) fn perform(&mut self, mut batch: Batch) -> io::Result<BTreeMap<usize, io::Error>> {
        let mut refused = BTreeMap::new();
        let mut from = 0;
        while from < batch.len() {
            let to = batch.chunk(from);
            let first = self.sequence.wrapping_add(1);
            for i in from..to {
                self.sequence = self.sequence.wrapping_add(1);
                let at = batch.starts[i];
                if i + 1 == to {
                    let flags = batch.octets[at + 6] | NLM_F_ACK as u8;
                    batch.octets[at + 6] = flags;
                }
                batch.octets[at + 8..at + 12].copy_from_slice(&self.sequence.to_ne_bytes());
            }
            let end = batch.starts.get(to).copied().unwrap_or(batch.octets.len());
            self.socket.send(&batch.octets[batch.starts[from]..end], 0)?;
            let last = self.sequence;
            self.listen(|message| {
                let (kind, sequence) = ((word(message, 4) & 0xffff) as u16, word(message, 8));
                let i = sequence.wrapping_sub(first) as usize;
                if kind != ERROR || i >= to - from {
                    return Step::Next;
                }
                match word(message, HEADER).cast_signed() {
                    0 => {}
                    code => {
                        _ = refused.insert(from + i, refusal(code, message.get(HEADER + 4..).unwrap_or(&[])))
                    }
                }
                if sequence == last { Step::End } else { Step::Next }
            })?;
            from = to;
        }
        Ok(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_cut_into_calls_by_number_and_by_length() {
        let mut batch = Batch::default();
        for _ in 0..300 {
            batch.begin(104, 0, &[0; 8]);
        }
        assert_eq!([batch.chunk(0), batch.chunk(128), batch.chunk(256)], [128, 256, 300]);
        let mut batch = Batch::default();
        for _ in 0..20 {
            batch.begin(104, 0, &[0; 8]);
            batch.attribute(2, &[0; 30_000]);
        }
        assert_eq!([batch.chunk(0), batch.chunk(18), batch.chunk(19)], [2, 20, 20]);
    }

    #[test]
    fn a_request_is_padded_and_says_its_length() {
        let mut batch = Batch::default();
        batch.begin(104, 5, &[0; 8]);
        batch.attribute(1, &[7]);
        batch.begin(105, 0, &[0; 8]);
        assert_eq!(batch.message(0).len(), 16 + 8 + 8);
        assert_eq!(word(batch.message(0), 0), 32);
        assert_eq!(&batch.message(0)[24..30], [5, 0, 1, 0, 7, 0]);
        assert_eq!(word(batch.message(1), 0), 24);
    }
}
