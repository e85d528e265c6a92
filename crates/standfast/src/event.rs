//! What can be seen of an announcer: its state when asked, and events as they happen.

use std::fmt;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use standfast_core::announce::VipState as Stand;
use standfast_core::{bgp, node};

/// What a VIP is to the peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VipState {
    /// Not told to anybody. Every VIP begins like this.
    Withdrawn,
    /// Told to the peers.
    Announced,
    /// Told still, with GRACEFUL_SHUTDOWN (RFC 8326), so that connections can end while no new ones come.
    Draining,
}

impl VipState {
    pub(crate) const fn of(state: Stand, drains: bool) -> Self {
        match (state, drains) {
            (Stand::Withdrawn, _) => Self::Withdrawn,
            (Stand::Announced | Stand::Pessimised, false) => Self::Announced,
            (Stand::Announced | Stand::Pessimised, true) => Self::Draining,
        }
    }
}

impl fmt::Display for VipState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Withdrawn => "withdrawn",
            Self::Announced => "announced",
            Self::Draining => "draining",
        })
    }
}

/// What an announcer is at one moment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct State {
    /// Its VIPs, by name.
    pub vips: Vec<VipStatus>,
    /// Its peers, by name.
    pub peers: Vec<PeerStatus>,
    /// Why it leaves, if it does.
    pub stopping: Option<String>,
}

impl State {
    /// The VIP of this name.
    pub fn vip(&self, name: &str) -> Option<&VipStatus> {
        self.vips.iter().find(|vip| vip.name == name)
    }

    /// Whether every VIP is announced, and told to every peer that is established, of which there is one.
    pub fn is_announced(&self) -> bool {
        let told = |vip: &VipStatus| vip.state == VipState::Announced && !vip.told.is_empty();
        self.vips.iter().all(told)
    }

    pub(crate) fn of(status: node::Status) -> Self {
        let duration = |secs: f64| Duration::try_from_secs_f64(secs).unwrap_or_default();
        let vip = |vip: node::VipStatus| {
            let check = vip.checks.first();
            VipStatus {
                state: VipState::of(
                    vip.state_name,
                    vip.drain.as_ref().is_some_and(|drain| drain.over.is_none()),
                ),
                reason: vip.reason,
                since: duration(vip.since),
                good: check.map_or(0, |check| check.consecutive_ok),
                bad: check.map_or(0, |check| check.consecutive_fail),
                prefixes: vip.prefixes.iter().map(ToString::to_string).collect(),
                share: vip.share,
                told: vip.told,
                pending: vip.pending,
                name: vip.name,
            }
        };
        let peer = |peer: node::PeerStatus| PeerStatus {
            established: peer.session_state == bgp::State::Established,
            since: duration(peer.uptime.or(peer.down_for).unwrap_or_default()),
            hold_time: peer.hold_time.map(Duration::from_secs),
            last_down: peer.last_down,
            address: peer.address,
            asn: peer.peer_asn,
            name: peer.name,
        };
        Self {
            vips: status.vips.into_iter().map(vip).collect(),
            peers: status.peers.into_iter().map(peer).collect(),
            stopping: status.stopping,
        }
    }
}

/// A VIP at one moment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct VipStatus {
    /// Its name.
    pub name: String,
    /// Its prefixes, as text.
    pub prefixes: Vec<String>,
    /// What it is to the peers.
    pub state: VipState,
    /// Why.
    pub reason: String,
    /// For how long.
    pub since: Duration,
    /// Good samples in a row, up to the rise.
    pub good: u32,
    /// Bad ones in a row, up to the fall.
    pub bad: u32,
    /// The share of its bandwidth that is told, in percent; `None` if the service asked for none.
    pub share: Option<u8>,
    /// Established peers that were told it, by name.
    pub told: Vec<String>,
    /// Whether any peer has not been told yet what it should be.
    pub pending: bool,
}

/// A peer at one moment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Its AS number.
    pub asn: u32,
    /// Whether the session is established.
    pub established: bool,
    /// For how long it is, or is not.
    pub since: Duration,
    /// The hold time agreed on, while established; zero: never expires.
    pub hold_time: Option<Duration>,
    /// Why it is not established, or why it last was not.
    pub last_down: String,
}

/// How much an event matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// Of interest when looking closely.
    Debug,
    /// Something changed its state.
    Info,
    /// An operator may be woken.
    Warn,
}

/// What happened. It prints as one line for a log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A VIP is something else to the peers than before.
    Vip {
        /// Its name.
        name: String,
        /// What it was.
        from: VipState,
        /// What it is.
        to: VipState,
        /// Why, in the words of [`VipStatus::reason`].
        reason: String,
    },
    /// Anything else: sessions, reports that turned, a drain's progress.
    Note {
        /// How much it matters.
        level: Level,
        /// What it is about: `peer front`, `vip web`, `drain`.
        about: String,
        /// What happened, and why.
        message: String,
    },
    /// So many events were lost to this reader, who was too slow.
    Lost(u64),
}

impl Event {
    /// How much it matters.
    pub fn level(&self) -> Level {
        match self {
            Self::Vip { to: VipState::Withdrawn, .. } | Self::Lost(_) => Level::Warn,
            Self::Vip { .. } => Level::Info,
            Self::Note { level, .. } => *level,
        }
    }

    /// What the announcer says, unless [`Event::Vip`] says it.
    pub(crate) fn of(event: &node::Event) -> Option<Self> {
        if event.about.starts_with("vip ") && event.message.contains(" -> ") {
            return None;
        }
        let level = match event.level {
            node::Level::Debug => Level::Debug,
            node::Level::Info => Level::Info,
            node::Level::Warn => Level::Warn,
        };
        Some(Self::Note { level, about: event.about.clone(), message: event.message.clone() })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vip { name, from, to, reason } => write!(f, "vip {name}: {from} -> {to}: {reason}"),
            Self::Note { about, message, .. } => write!(f, "{about}: {message}"),
            Self::Lost(n) => write!(f, "{n} events were lost: they were not read in time"),
        }
    }
}

/// Events as they happen, from the moment it was asked for; ends when the announcer is over.
///
/// Up to 1,024 wait to be read; those beyond are counted, and told as [`Event::Lost`] once there is room.
#[derive(Debug)]
pub struct Events(Receiver<Event>);

impl Events {
    /// The next one, if it is there already.
    pub fn try_next(&mut self) -> Option<Event> {
        self.0.try_recv().ok()
    }

    /// The next one within `timeout`; `None` if there is none, or the announcer is over.
    pub fn next_within(&mut self, timeout: Duration) -> Option<Event> {
        self.0.recv_timeout(timeout).ok()
    }
}

impl Iterator for Events {
    type Item = Event;

    /// Waits for the next one.
    fn next(&mut self) -> Option<Event> {
        self.0.recv().ok()
    }
}

/// Events that may wait for one reader.
const WAITING: usize = 1024;

/// Somebody who reads events.
#[derive(Debug)]
pub(crate) struct Reader {
    sender: SyncSender<Event>,
    lost: u64,
}

impl Reader {
    pub(crate) fn new() -> (Self, Events) {
        let (sender, receiver) = sync_channel(WAITING);
        (Self { sender, lost: 0 }, Events(receiver))
    }

    /// Hands it an event, never waiting; false if it reads no more.
    pub(crate) fn tell(&mut self, event: &Event) -> bool {
        if self.lost > 0 {
            match self.sender.try_send(Event::Lost(self.lost)) {
                Ok(()) => self.lost = 0,
                Err(TrySendError::Full(_)) => {
                    self.lost += 1;
                    return true;
                }
                Err(TrySendError::Disconnected(_)) => return false,
            }
        }
        match self.sender.try_send(event.clone()) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.lost += 1;
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_reader_that_is_too_slow_learns_how_much_it_lost() {
        let (mut reader, mut events) = Reader::new();
        let note =
            |n: usize| Event::Note { level: Level::Info, about: n.to_string(), message: String::new() };
        for n in 0..WAITING + 5 {
            assert!(reader.tell(&note(n)));
        }
        assert_eq!(events.next(), Some(note(0)));
        assert_eq!(events.next(), Some(note(1)));
        assert!(reader.tell(&note(7777)));
        let rest: Vec<_> = std::iter::from_fn(|| events.try_next()).collect();
        assert_eq!(rest[rest.len() - 2..], [Event::Lost(5), note(7777)]);
        drop(events);
        assert!(!reader.tell(&note(1)));
    }
}
