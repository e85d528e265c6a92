//! A router that is not standfast: it listens, keeps an Adj-RIB-In of what it is told, and can misbehave on request.

use std::collections::BTreeMap;
use std::time::Duration;

use standfast_core::Time;

use crate::bench::octets::{
    self, KEEPALIVE, NOTIFICATION, OPEN, Parsed, Table, UPDATE, keepalive, notification,
};

/// A connection of this world.
pub(crate) type Wire = u64;

#[derive(Debug)]
struct Session {
    from: usize,
    buffer: Vec<u8>,
    open: bool,
    up: bool,
    table: Table,
    heard: Time,
    spoke: Time,
}

/// What it wants done.
pub(crate) enum Act {
    Send(Wire, Vec<u8>),
    Close(Wire),
}

pub(crate) struct Foreign {
    pub(crate) asn: u16,
    pub(crate) id: [u8; 4],
    /// Whether it knows 4-octet AS numbers and capabilities at all.
    pub(crate) modern: bool,
    sessions: BTreeMap<Wire, Session>,
}

const HOLD: Duration = Duration::from_secs(9);

impl Foreign {
    pub(crate) fn new(asn: u16, id: [u8; 4], modern: bool) -> Self {
        Self { asn, id, modern, sessions: BTreeMap::new() }
    }

    pub(crate) fn accepted(&mut self, now: Time, wire: Wire, from: usize) -> Vec<Act> {
        let caps =
            [octets::cap_mp(1), octets::cap_mp(2), octets::cap_refresh(), octets::cap_as4(self.asn.into())];
        let open = match self.modern {
            true => octets::open(self.asn, 9, self.id, &caps),
            false => octets::bare_open(self.asn, 9, self.id),
        };
        let session = Session {
            from,
            buffer: Vec::new(),
            open: false,
            up: false,
            table: Table::default(),
            heard: now,
            spoke: now,
        };
        self.sessions.insert(wire, session);
        vec![Act::Send(wire, open)]
    }

    pub(crate) fn received(&mut self, now: Time, wire: Wire, octets: &[u8]) -> Vec<Act> {
        let mut acts = Vec::new();
        let from = self.sessions.get(&wire).map(|s| s.from);
        let taken = self.sessions.iter().any(|(w, s)| *w != wire && s.up && Some(s.from) == from);
        let Some(session) = self.sessions.get_mut(&wire) else { return acts };
        session.heard = now;
        session.buffer.extend_from_slice(octets);
        for message in octets::split(&mut session.buffer) {
            match message[18] {
                OPEN if taken => {
                    acts.push(Act::Send(wire, notification(6, 7, &[])));
                    acts.push(Act::Close(wire));
                    self.sessions.remove(&wire);
                    return acts;
                }
                OPEN => {
                    session.open = true;
                    acts.push(Act::Send(wire, keepalive()));
                }
                KEEPALIVE => session.up = session.open,
                UPDATE => {
                    assert!(session.up, "an UPDATE before the session was up");
                    session.table.apply(&Parsed::new(&message));
                }
                NOTIFICATION => {
                    acts.push(Act::Close(wire));
                    self.sessions.remove(&wire);
                    return acts;
                }
                _ => {}
            }
        }
        acts
    }

    pub(crate) fn closed(&mut self, wire: Wire) {
        self.sessions.remove(&wire);
    }

    /// Every half second.
    pub(crate) fn tick(&mut self, now: Time) -> Vec<Act> {
        let mut acts = Vec::new();
        for (&wire, session) in &mut self.sessions {
            if now.since(session.heard) >= HOLD {
                acts.push(Act::Send(wire, notification(4, 0, &[])));
                acts.push(Act::Close(wire));
            } else if session.open && now.since(session.spoke) >= HOLD / 3 {
                session.spoke = now;
                acts.push(Act::Send(wire, keepalive()));
            }
        }
        self.sessions.retain(|_, s| now.since(s.heard) < HOLD);
        acts
    }

    /// Ten thousand routes of other people, on one session.
    pub(crate) fn flood(&self) -> Vec<Act> {
        let path = [0x40, 1, 1, 0, 0x40, 2];
        let asn = self.asn.to_be_bytes();
        let segment = match self.modern {
            true => vec![6, 2, 1, 0, 0, asn[0], asn[1]],
            false => vec![4, 2, 1, asn[0], asn[1]],
        };
        let attributes = [&path[..], &segment, &[0x40, 3, 4], &self.id].concat();
        let mut acts = Vec::new();
        for (&wire, _) in self.sessions.iter().filter(|(_, s)| s.up).take(1) {
            for block in 0..25u32 {
                let nlri: Vec<u8> = (0..400u32)
                    .flat_map(|i| [&[32][..], &(0x0a00_0000 + block * 400 + i).to_be_bytes()].concat())
                    .collect();
                acts.push(Act::Send(wire, octets::update(&[], &attributes, &nlri)));
            }
            // One of the VIPs too: told by us, it must never come back.
            acts.push(Act::Send(wire, octets::update(&[], &attributes, &[32, 198, 51, 100, 10])));
        }
        acts
    }

    pub(crate) fn refresh(&self) -> Vec<Act> {
        let ask = |wire: &Wire| Act::Send(*wire, octets::message(5, &[0, 1, 0, 1]));
        self.sessions.iter().filter(|(_, s)| s.up && self.modern).map(|(w, _)| ask(w)).collect()
    }

    pub(crate) fn up(&self) -> Vec<Wire> {
        self.sessions.iter().filter(|(_, s)| s.up).map(|(w, _)| *w).collect()
    }

    pub(crate) fn table(&self, wire: Wire) -> Option<&Table> {
        self.sessions.get(&wire).map(|s| &s.table)
    }

    pub(crate) fn forget(&mut self) {
        self.sessions.clear();
    }
}
