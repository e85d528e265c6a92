//! Next hops as objects of the kernel's, single ones and groups of them (Linux 5.3; resilient groups since 5.13).
//!
//! The library has no words for them, so that their octets are made and read here (include/uapi/linux/nexthop.h). A group is
//! replaced in place: its number, which routes name, stays, and with a resilient group the flows do.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use super::batch::Batch;
use super::{Netlink, PROTOCOL, attributes, named, number, word};

const NEW: u16 = 104;
const DELETE: u16 = 105;
const GET: u16 = 106;
const GET_BUCKETS: u16 = 118;
const NEW_BUCKET: u16 = 116;

const ID: u16 = 1;
const GROUP: u16 = 2;
const GROUP_TYPE: u16 = 3;
const INTERFACE: u16 = 5;
const GATEWAY: u16 = 6;
const RESILIENT: u16 = 12;
const BUCKET: u16 = 13;
const NESTED: u16 = 0x8000;

const BUCKETS: u16 = 1;
const IDLE_TIMER: u16 = 2;
const UNBALANCED_TIMER: u16 = 3;
const BUCKET_IDLE: u16 = 2;
const BUCKET_HOP: u16 = 3;

/// The kernel counts timers in hundredths of a second, and keeps them in ticks of its own: multiples of two hundredths come
/// back as they went, whatever its clock.
const TICK: Duration = Duration::from_millis(20);

/// A next hop object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// A gateway behind an interface.
    Single {
        /// The gateway.
        gateway: IpAddr,
        /// The interface's number.
        interface: u32,
    },
    /// A group.
    Group(Members),
    /// Something that is not made by us: a blackhole, a tunnel.
    Other,
}

/// The next hops of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    /// The numbers of the objects and their weights, in the order in which they divide the hash values.
    pub members: Vec<(u32, u16)>,
    /// What makes it resilient, if it is.
    pub resilient: Option<Resilient>,
}

/// The parameters of a resilient group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resilient {
    /// How many buckets; immutable.
    pub buckets: u16,
    /// [`idle_timer`](standfast_core::plan::Hashing::Resilient) in hundredths of a second.
    idle: u32,
    unbalanced: u32,
}

impl Resilient {
    /// These parameters; timers are rounded up to 20 ms.
    pub fn new(buckets: u16, idle: Duration, unbalanced: Duration) -> Self {
        let ticks = |d: Duration| {
            let ticks = d.as_nanos().div_ceil(TICK.as_nanos());
            u32::try_from(ticks).unwrap_or(u32::MAX / 2).min(u32::MAX / 2) * 2
        };
        Self { buckets, idle: ticks(idle), unbalanced: ticks(unbalanced) }
    }

    /// How long a bucket must have been silent before it may move.
    pub fn idle_timer(&self) -> Duration {
        Duration::from_millis(u64::from(self.idle) * 10)
    }

    /// How long the shares may be wrong before busy buckets move; zero: never.
    pub fn unbalanced_timer(&self) -> Duration {
        Duration::from_millis(u64::from(self.unbalanced) * 10)
    }
}

/// The next hop objects of this host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Objects {
    /// Those with our protocol number.
    pub ours: BTreeMap<u32, Object>,
    /// The numbers of all others.
    pub foreign: std::collections::BTreeSet<u32>,
}

/// A bucket of a resilient group: the number of its next hop, and how long it has been silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// The object that its packets go to.
    pub hop: u32,
    /// Since its last packet; since it moved there, if it had none.
    pub idle: Duration,
}

impl Netlink {
    /// Reads all next hop objects. A kernel without any kind of them has none.
    ///
    /// # Errors
    /// The kernel did not answer.
    pub fn next_hop_objects(&mut self) -> io::Result<Objects> {
        let mut objects = Objects::default();
        let mut ask = Batch::default();
        ask.begin(GET, NLM_F_DUMP, &[0; 8]);
        let take = |message: &[u8], objects: &mut Objects| {
            if let Some((id, ours, object)) = object(message) {
                if ours {
                    objects.ours.insert(id, object);
                } else {
                    objects.foreign.insert(id);
                }
            }
        };
        let read = self.raw_dump(ask.message(0), &mut objects, |o| *o = Objects::default(), take);
        match read {
            Err(e) if number(&e) == Some(libc::EOPNOTSUPP) => Ok(Objects::default()),
            read => read.map_err(|e| named(&e, "read the next hops")).map(|()| objects),
        }
    }

    /// Goes through the buckets of the resilient group with this number, which may be tens of thousands.
    ///
    /// # Errors
    /// There is no such group, or the kernel did not answer.
    pub fn buckets(&mut self, group: u32, mut take: impl FnMut(Bucket)) -> io::Result<()> {
        let mut ask = Batch::default();
        ask.begin(GET_BUCKETS, NLM_F_DUMP, &[0; 8]);
        ask.attribute(ID, &group.to_ne_bytes());
        // What moves meanwhile is counted once, here or there: a reading that was disturbed is good enough.
        self.raw_dump_once(ask.message(0), |message| {
            if let Some(bucket) = bucket(message) {
                take(bucket);
            }
        })
        .map_err(|e| named(&e, &format!("read the buckets of group {group}")))
        .map(drop)
    }
}

/// How an object is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It is not there yet; one of somebody else's with its number is not touched.
    Create,
    /// It is there, and keeps its number and its flows.
    Replace,
}

impl Batch {
    /// Asks for an object.
    pub(crate) fn set_object(&mut self, id: u32, object: &Object, mode: Mode) {
        let flags = match mode {
            Mode::Create => NLM_F_CREATE | NLM_F_EXCL,
            Mode::Replace => NLM_F_REPLACE,
        };
        let family = match object {
            Object::Single { gateway: IpAddr::V4(_), .. } => libc::AF_INET,
            Object::Single { gateway: IpAddr::V6(_), .. } => libc::AF_INET6,
            Object::Group(_) | Object::Other => libc::AF_UNSPEC,
        };
        self.begin(NEW, flags, &[family as u8, 0, PROTOCOL, 0, 0, 0, 0, 0]);
        self.attribute(ID, &id.to_ne_bytes());
        match object {
            Object::Single { gateway, interface } => {
                self.attribute(INTERFACE, &interface.to_ne_bytes());
                match gateway {
                    IpAddr::V4(a) => self.attribute(GATEWAY, &a.octets()),
                    IpAddr::V6(a) => self.attribute(GATEWAY, &a.octets()),
                }
            }
            Object::Group(Members { members, resilient }) => {
                let mut entries = Vec::with_capacity(members.len() * 8);
                for (id, weight) in members {
                    // A weight of 0 is none; its high octet is known since Linux 6.12 and must be 0 before.
                    let [low, high] = weight.saturating_sub(1).to_le_bytes();
                    entries.extend(id.to_ne_bytes());
                    entries.extend([low, high, 0, 0]);
                }
                self.attribute(GROUP, &entries);
                self.attribute(GROUP_TYPE, &u16::from(resilient.is_some()).to_ne_bytes());
                if let Some(r) = resilient {
                    let mut nested = Vec::with_capacity(24);
                    for (kind, value) in [
                        (BUCKETS, &r.buckets.to_ne_bytes()[..]),
                        (IDLE_TIMER, &r.idle.to_ne_bytes()),
                        (UNBALANCED_TIMER, &r.unbalanced.to_ne_bytes()),
                    ] {
                        nested.extend((value.len() as u16 + 4).to_ne_bytes());
                        nested.extend(kind.to_ne_bytes());
                        nested.extend(value);
                        nested.resize(nested.len().next_multiple_of(4), 0);
                    }
                    self.attribute(RESILIENT | NESTED, &nested);
                }
            }
            Object::Other => {}
        }
    }

    /// Asks for an object to be removed. The kernel removes the routes that use it, too, and takes it out of its groups.
    pub(crate) fn remove_object(&mut self, id: u32) {
        self.begin(DELETE, 0, &[0; 8]);
        self.attribute(ID, &id.to_ne_bytes());
    }
}

/// The number of an object, whether it is ours, and what it is.
fn object(message: &[u8]) -> Option<(u32, bool, Object)> {
    let fixed = message.get(16..24).filter(|_| (word(message, 4) & 0xffff) as u16 == NEW)?;
    let (mut id, mut gateway, mut interface, mut other) = (None, None, None, false);
    let (mut members, mut resilient) = (None, None);
    for (kind, value) in attributes(&message[24..]) {
        match kind {
            ID => id = Some(word(value, 0)),
            GATEWAY => gateway = address(value),
            INTERFACE => interface = Some(word(value, 0)),
            GROUP => {
                let entries = value.chunks_exact(8);
                let entry = |e: &[u8]| (word(e, 0), u16::from_le_bytes([e[4], e[5]]).saturating_add(1));
                members = Some(entries.map(entry).collect());
            }
            GROUP_TYPE => {}
            RESILIENT => resilient = parameters(value),
            _ => other = true,
        }
    }
    let object = match (members, gateway, interface) {
        (Some(members), ..) => Object::Group(Members { members, resilient }),
        (None, Some(gateway), Some(interface)) if !other => Object::Single { gateway, interface },
        _ => Object::Other,
    };
    Some((id?, fixed[2] == PROTOCOL, object))
}

fn parameters(nested: &[u8]) -> Option<Resilient> {
    let (mut buckets, mut idle, mut unbalanced) = (None, 0, 0);
    for (kind, value) in attributes(nested) {
        match (kind, value) {
            (BUCKETS, &[a, b, ..]) => buckets = Some(u16::from_ne_bytes([a, b])),
            (IDLE_TIMER, v) => idle = word(v, 0),
            (UNBALANCED_TIMER, v) => unbalanced = word(v, 0),
            _ => {}
        }
    }
    buckets.map(|buckets| Resilient { buckets, idle, unbalanced })
}

fn bucket(message: &[u8]) -> Option<Bucket> {
    let rest = message.get(24..).filter(|_| (word(message, 4) & 0xffff) as u16 == NEW_BUCKET)?;
    let (_, nested) = attributes(rest).find(|(kind, _)| *kind == BUCKET)?;
    let (mut hop, mut idle) = (None, 0);
    for (kind, value) in attributes(nested) {
        match kind {
            BUCKET_HOP => hop = Some(word(value, 0)),
            BUCKET_IDLE => idle = value.try_into().map_or(0, u64::from_ne_bytes),
            _ => {}
        }
    }
    hop.map(|hop| Bucket { hop, idle: Duration::from_millis(idle.saturating_mul(10)) })
}

fn address(value: &[u8]) -> Option<IpAddr> {
    let four = value.try_into().map(|a: [u8; 4]| a.into());
    four.or_else(|_| value.try_into().map(|a: [u8; 16]| a.into())).ok()
}

/// Reads a message as an object and as a bucket, whatever it is.
pub(super) fn fuzz(message: &[u8]) {
    if let Some((id, _, object)) = object(message) {
        let mut batch = Batch::default();
        batch.set_object(id, &object, Mode::Replace);
    }
    let _ = bucket(message);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(object: &Object) {
        let mut batch = Batch::default();
        batch.set_object(77, object, Mode::Create);
        assert_eq!(super::object(batch.message(0)), Some((77, true, object.clone())));
    }

    #[test]
    fn what_is_written_is_read_back() {
        for gateway in ["192.0.2.2", "2001:db8::2", "fe80::2"] {
            round_trip(&Object::Single { gateway: gateway.parse().unwrap(), interface: 3 });
        }
        let members = vec![(1, 1), (0xb000_0000, 256), (3, 65535)];
        let resilient = Resilient::new(16384, Duration::from_secs(120), Duration::ZERO);
        for resilient in [None, Some(resilient)] {
            round_trip(&Object::Group(Members { members: members.clone(), resilient }));
        }
    }

    #[test]
    fn timers_are_rounded_up_to_what_every_kernel_keeps() {
        let timer = |d| Resilient::new(8, d, Duration::ZERO).idle_timer();
        assert_eq!(timer(Duration::from_millis(1)), Duration::from_millis(20));
        assert_eq!(timer(Duration::from_millis(5020)), Duration::from_millis(5020));
        assert_eq!(timer(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn what_others_made_is_told_apart() {
        let mut batch = Batch::default();
        batch.set_object(5, &Object::Other, Mode::Create);
        let mut message = batch.message(0).to_vec();
        assert_eq!(super::object(&message), Some((5, true, Object::Other)));
        message[18] = 3;
        assert_eq!(super::object(&message), Some((5, false, Object::Other)));
        assert_eq!(super::object(&message[..20]), None);
    }
}
