//! What nftables can be asked for by nfnetlink alone.
//!
//! The elements of a map are read here, because the program `nft` makes text of each of them first. Rules that write to a map are
//! made here, because `nft` 1.0.6 gives up where the key of a map has more than 16 octets, as that of an IPv6 connection has. Both
//! are on tables of family `inet`; everything else is left to `nft`.

use std::io;
use std::time::Duration;

use netlink_packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP};
use standfast_core::prefix::Afi;

use super::batch::Batch;
use super::{Netlink, Step, attributes, named, number, refusal, word};

/// NFNL_SUBSYS_NFTABLES.
const NFTABLES: u16 = 10;
const GET_ELEMENTS: u16 = (NFTABLES << 8) | 13;
const NEW_RULE: u16 = (NFTABLES << 8) | 6;
const DELETE_RULE: u16 = (NFTABLES << 8) | 8;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
/// NFPROTO_INET, the version of nfnetlink, and no resource.
const FIXED: [u8; 4] = [1, 0, 0, 0];
const NESTED: u16 = 0x8000;

/// A rule that does something with the connection that a TCP packet belongs to, in a map from source address and port, destination
/// address and port to a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory<'a> {
    /// The chain that has this rule and no other.
    pub chain: &'a str,
    /// The map.
    pub map: &'a str,
    /// The family of the packets.
    pub afi: Afi,
    /// What it does.
    pub deed: Deed,
}

/// What becomes of a connection in a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    /// It is remembered with the mark of the packet, for so long; if it was, nothing changes.
    Add(Duration),
    /// The same, but it is remembered for so long from now on if it was.
    Refresh(Duration),
    /// It is forgotten.
    Forget,
}

/// An element of a map with time-outs whose values are marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Element<'a> {
    /// Its key: each part of it is padded to four octets.
    pub key: &'a [u8],
    /// What it leads to.
    pub mark: u32,
    /// When it goes.
    pub expires: Duration,
}

impl Netlink {
    /// Gives the elements of a map in a table of family `inet` to `take`, on a socket of [`netfilter`](Self::netfilter). Those that
    /// come or go meanwhile may be missed, or given twice. Without such a map there are none.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub fn elements(&mut self, table: &str, map: &str, mut take: impl FnMut(Element<'_>)) -> io::Result<()> {
        let mut ask = Batch::default();
        ask.begin(GET_ELEMENTS, NLM_F_DUMP, &FIXED);
        for (kind, name) in [(1, table), (2, map)] {
            ask.attribute(kind, &text(name));
        }
        let ask = ask.message(0).to_vec();
        match self.raw_dump_once(&ask, |message| each(message, &mut take)) {
            Err(e) if number(&e) == Some(libc::ENOENT) => Ok(()),
            done => done.map(drop).map_err(|e| named(&e, &format!("read the map {map} of nftables"))),
        }
    }
}

impl Netlink {
    /// Makes each of these rules the only one of its chain, in one transaction, on a socket of [`netfilter`](Self::netfilter).
    ///
    /// # Errors
    /// What is missing or was refused; nothing was changed then.
    pub fn memorise(&mut self, table: &str, rules: &[Memory<'_>]) -> io::Result<()> {
        let mut batch = Batch::default();
        // The subsystem that the transaction is of, in the network's order.
        let bracket = [0, 0, 0, NFTABLES as u8];
        batch.begin(BATCH_BEGIN, 0, &bracket);
        for (nth, rule) in rules.iter().enumerate() {
            let place = |batch: &mut Batch| {
                batch.attribute(1, &text(table));
                batch.attribute(2, &text(rule.chain));
            };
            batch.begin(DELETE_RULE, 0, &FIXED);
            place(&mut batch);
            // Not every kernel acknowledges the end of a transaction.
            let ack = if nth + 1 == rules.len() { NLM_F_ACK } else { 0 };
            batch.begin(NEW_RULE, NLM_F_CREATE | NLM_F_APPEND | ack, &FIXED);
            place(&mut batch);
            batch.attribute(4 | NESTED, &rule.expressions());
        }
        batch.begin(BATCH_END, 0, &bracket);
        self.commit(&batch)
            .map_err(|e| named(&e, &format!("make the rules of the table {table} of nftables")))
    }

    /// Sends a transaction and waits until the message before its end is acknowledged, or any is refused.
    fn commit(&mut self, batch: &Batch) -> io::Result<()> {
        let first = self.sequence.wrapping_add(1);
        let mut octets = Vec::new();
        for i in 0..batch.len() {
            self.sequence = self.sequence.wrapping_add(1);
            let start = octets.len();
            octets.extend(batch.message(i));
            octets[start + 8..start + 12].copy_from_slice(&self.sequence.to_ne_bytes());
        }
        let last = self.sequence.wrapping_sub(1);
        self.socket.send(&octets, 0)?;
        let mut end = Ok(());
        self.listen(|message| {
            const ERROR: u32 = 2;
            let sequence = word(message, 8);
            // Others are leftovers of a request that was given up.
            if word(message, 4) & 0xffff != ERROR || sequence.wrapping_sub(first) > last.wrapping_sub(first) {
                return Step::Next;
            }
            match word(message, 16).cast_signed() {
                0 if sequence != last => Step::Next,
                0 => Step::End,
                code => {
                    end = Err(refusal(code, message.get(20..).unwrap_or_default()));
                    Step::End
                }
            }
        })?;
        end
    }
}

impl Memory<'_> {
    /// The rule as nftables has it: a small program for registers of four octets.
    fn expressions(&self) -> Vec<u8> {
        const REGISTER: u32 = 8;
        // Where the addresses are in the header, their length, and what nftables calls the family.
        let (source, destination, len, family) = match self.afi {
            Afi::Ipv4 => (12, 16, 4, libc::NFPROTO_IPV4 as u8),
            Afi::Ipv6 => (8, 24, 16, libc::NFPROTO_IPV6 as u8),
        };
        let equal = |value: u8| {
            let fields =
                [number_of(1, REGISTER), number_of(2, 0), attribute(3 | NESTED, &attribute(1, &[value]))];
            expression("cmp", &fields.concat())
        };
        let meta = |key, register| expression("meta", &[number_of(1, register), number_of(2, key)].concat());
        let payload = |register, base, offset, len| {
            let fields = [(1, register), (2, base), (3, offset), (4, len)];
            expression("payload", &fields.map(|(kind, value)| number_of(kind, value)).concat())
        };
        const NFPROTO: u32 = 15;
        const L4PROTO: u32 = 16;
        const MARK: u32 = 3;
        const NETWORK: u32 = 1;
        const TRANSPORT: u32 = 2;
        let words = len / 4;
        let mark = REGISTER + 2 * words + 2;
        let (operation, lasts) = match self.deed {
            Deed::Add(lasts) => (0, lasts),
            Deed::Refresh(lasts) => (1, lasts),
            Deed::Forget => (2, Duration::ZERO),
        };
        let mut write = vec![
            attribute(1, &text(self.map)),
            number_of(3, operation),
            number_of(4, REGISTER),
            number_of(5, mark),
        ];
        if !lasts.is_zero() {
            let milliseconds = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
            write.push(attribute(6, &milliseconds.to_be_bytes()));
        }
        [
            meta(NFPROTO, REGISTER),
            equal(family),
            meta(L4PROTO, REGISTER),
            equal(libc::IPPROTO_TCP as u8),
            payload(REGISTER, NETWORK, source, len),
            payload(REGISTER + words, TRANSPORT, 0, 2),
            payload(REGISTER + words + 1, NETWORK, destination, len),
            payload(REGISTER + 2 * words + 1, TRANSPORT, 2, 2),
            meta(MARK, mark),
            expression("dynset", &write.concat()),
        ]
        .concat()
    }
}

fn expression(name: &str, fields: &[u8]) -> Vec<u8> {
    attribute(1 | NESTED, &[attribute(1, &text(name)), attribute(2 | NESTED, fields)].concat())
}

/// A number of 32 bits, in the network's order.
fn number_of(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

fn text(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    // What is written here is short.
    let mut octets = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
    octets.extend(kind.to_ne_bytes());
    octets.extend(value);
    octets.resize(octets.len().next_multiple_of(4), 0);
    octets
}

/// The elements in one message of the dump.
pub(super) fn each(message: &[u8], take: &mut impl FnMut(Element<'_>)) {
    const ELEMENTS: u16 = 3;
    let of = attributes(message.get(16 + FIXED.len()..).unwrap_or_default());
    for (_, list) in of.filter(|(kind, _)| *kind == ELEMENTS) {
        for (_, element) in attributes(list) {
            if let Some(element) = read(element) {
                take(element);
            }
        }
    }
}

fn read(element: &[u8]) -> Option<Element<'_>> {
    const KEY: u16 = 1;
    const DATA: u16 = 2;
    const EXPIRATION: u16 = 5;
    let value = |nested| attributes(nested).find(|(kind, _)| *kind == 1).map(|(_, value)| value);
    let (mut key, mut mark, mut expires) = (None, None, 0);
    for (kind, octets) in attributes(element) {
        match kind {
            KEY => key = value(octets),
            DATA => mark = value(octets).and_then(|v| v.try_into().ok()).map(u32::from_ne_bytes),
            // In milliseconds, and of the network's order as everything that nftables counts.
            EXPIRATION => expires = octets.try_into().map_or(0, u64::from_be_bytes),
            _ => {}
        }
    }
    Some(Element { key: key?, mark: mark?, expires: Duration::from_millis(expires) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_read_and_what_is_none_is_passed_over() {
        let whole = [
            attribute(1 | 0x8000, &attribute(1, &[1, 2, 3, 4])),
            attribute(2 | 0x8000, &attribute(1, &7_u32.to_ne_bytes())),
            attribute(5, &1500_u64.to_be_bytes()),
        ]
        .concat();
        let without_data = attribute(1 | 0x8000, &attribute(1, &[9; 4]));
        let list = [attribute(1, &whole), attribute(1, &without_data), attribute(1, &[1, 2])].concat();
        let mut message = vec![0; 16];
        message.extend(FIXED);
        message.extend(attribute(1, b"table\0"));
        message.extend(attribute(3 | 0x8000, &list));
        let mut seen = Vec::new();
        each(&message, &mut |e| seen.push((e.key.to_vec(), e.mark, e.expires)));
        assert_eq!(seen, [(vec![1, 2, 3, 4], 7, Duration::from_millis(1500))]);
        for end in 0..message.len() {
            each(&message[..end], &mut |_| {});
        }
    }
}
