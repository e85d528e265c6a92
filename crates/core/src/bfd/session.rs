//! One BFD session (RFC 5880 §6): its state, its timers in both directions, its polls and its sequence numbers.
//!
//! It is told of packets that are for it and says which to send. Who a packet is for, when its timers are looked at and
//! who else must know is decided above.

use std::time::Duration;

use super::wire::{self, Authentication, Diagnostic, Packet, Refusal};
use super::{Reason, Report, State};
use crate::machine::{Rng, Time, earliest};
use crate::plan::Bfd;

/// The least interval of a session that is not up (RFC 5880 §6.8.3).
const SLOW: Duration = Duration::from_secs(1);
/// What is known of the other end's intervals before it says so (§6.8.1).
const UNKNOWN_MIN_RX: Duration = Duration::from_micros(1);
/// The shortest interval that is kept to, whatever a plan says.
const SHORTEST: Duration = Duration::from_millis(1);
/// The longest detection time that another end may ask for, more than the slowest end that is not up has (255 packets of 1 s): with
/// a longer one BFD would say that a path is alive long after it died.
const LONGEST: Duration = Duration::from_secs(300);
/// Polls that are answered however close they follow each other; from then on the pace is twice what the other end may send at.
const POLLS: u32 = 4;
/// So often, at the least, the other end is told that the session is switched off: one packet may be lost.
const GOODBYES: u8 = 3;
/// For so long, at the most: an end is waited for.
const FAREWELL: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Session {
    plan: Bfd,
    pub(super) discriminator: u32,
    state: State,
    diagnostic: Diagnostic,
    reason: Reason,
    remote: Remote,
    /// What we say, and what we keep to until the other end has taken note of it (§6.8.3).
    desired_tx: Duration,
    tx_in_use: Duration,
    min_rx: Duration,
    rx_in_use: Duration,
    polling: bool,
    /// The last packet but for its poll and final bits.
    said: Option<Packet>,
    send_at: Option<Time>,
    /// The interval by which the next packet was planned.
    paced: Duration,
    heard: Time,
    expires: Option<Time>,
    /// The detection time was over when we were late ourselves: the other end was given another one.
    spared: bool,
    /// Until when the answers to polls that were given suffice.
    answers_until: Time,
    sequence: u32,
    remote_sequence: Option<u32>,
    goodbyes: u8,
    /// Until when they go on (§6.8.16).
    leaves_at: Time,
    losses: u64,
    pub(super) refused: u64,
    pub(super) last_refusal: Option<Refusal>,
}

/// What the other end said last.
#[derive(Debug, Clone, Copy)]
struct Remote {
    state: State,
    diagnostic: Diagnostic,
    discriminator: u32,
    desired_tx: Duration,
    min_rx: Duration,
    multiplier: u8,
    demand: bool,
    control_plane_independent: bool,
}

impl Remote {
    const UNKNOWN: Self = Self {
        state: State::Down,
        diagnostic: Diagnostic::NONE,
        discriminator: 0,
        desired_tx: Duration::ZERO,
        min_rx: UNKNOWN_MIN_RX,
        multiplier: 0,
        demand: false,
        control_plane_independent: false,
    };
}

impl Session {
    /// A session that is down and begins to say so at once, unless it is passive. `discriminator` is not 0.
    pub(super) fn new(now: Time, plan: Bfd, discriminator: u32, sequence: u32) -> Self {
        let tx = plan.interval.max(SLOW);
        Self {
            discriminator,
            state: State::Down,
            diagnostic: Diagnostic::NONE,
            reason: Reason::New,
            remote: Remote::UNKNOWN,
            desired_tx: tx,
            tx_in_use: tx,
            min_rx: plan.min_rx,
            rx_in_use: plan.min_rx,
            polling: false,
            said: None,
            send_at: (!plan.passive).then_some(now),
            paced: tx,
            heard: now,
            expires: None,
            spared: false,
            answers_until: now,
            sequence,
            remote_sequence: None,
            goodbyes: 0,
            leaves_at: now,
            losses: 0,
            refused: 0,
            last_refusal: None,
            plan,
        }
    }

    /// Takes another plan without losing the session, if only its timers differ; else says that it cannot.
    pub(super) fn adopt(&mut self, now: Time, plan: &Bfd, rng: &mut Rng) -> bool {
        let timers = Bfd {
            interval: plan.interval,
            min_rx: plan.min_rx,
            multiplier: plan.multiplier,
            ..self.plan.clone()
        };
        let strict = Bfd { strict: plan.strict, ..timers };
        if strict != *plan || self.is_leaving() {
            return false;
        }
        self.plan = strict;
        self.retime();
        self.schedule(now, rng, true);
        true
    }

    /// Begins to switch the session off: the other end is told, and does not hold us for dead (§6.8.16).
    pub(super) fn leave(&mut self, now: Time) {
        if self.is_leaving() {
            return;
        }
        let known = self.remote.discriminator != 0;
        // For a detection time of either end. It is said that we are slow, and kept to the pace that the other end knows (§6.8.3).
        let theirs = self.tx_interval() * u32::from(self.plan.multiplier);
        self.leaves_at = now + self.detection_time().max(theirs).min(FAREWELL);
        self.desired_tx = self.plan.interval.max(SLOW);
        self.state = State::AdminDown;
        self.diagnostic = Diagnostic::ADMIN_DOWN;
        self.reason = Reason::AdminDown;
        self.expires = None;
        self.polling = false;
        self.goodbyes = if known { GOODBYES } else { 0 };
        self.send_at = known.then_some(now);
    }

    pub(super) const fn is_leaving(&self) -> bool {
        matches!(self.state, State::AdminDown)
    }

    /// The least hop limit that its packets must have.
    pub(super) const fn min_ttl(&self) -> u8 {
        self.plan.min_ttl
    }

    /// Whether it was switched off and has said so.
    pub(super) const fn is_over(&self) -> bool {
        self.is_leaving() && self.send_at.is_none()
    }

    /// Takes a packet that says it is for this session, in the octets that it was read from.
    ///
    /// # Errors
    /// It is not authentic, asks for too much patience, or the session is switched off: nothing changed.
    pub(super) fn receive(
        &mut self,
        now: Time,
        packet: &Packet,
        (octets, section): (&[u8], Option<Authentication>),
        rng: &mut Rng,
        out: &mut Vec<Vec<u8>>,
    ) -> Result<(), Refusal> {
        self.authenticate(now, packet.multiplier, octets, section)?;
        if self.is_leaving() {
            return Err(Refusal::AdminDown);
        }
        if packet.desired_min_tx.saturating_mul(u32::from(packet.multiplier)) > LONGEST {
            return Err(Refusal::Slow);
        }
        self.heard = now;
        self.spared = false;
        self.remote = Remote {
            state: packet.state,
            diagnostic: packet.diagnostic,
            discriminator: packet.my_discriminator,
            desired_tx: packet.desired_min_tx,
            min_rx: packet.required_min_rx,
            multiplier: packet.multiplier,
            demand: packet.demand,
            control_plane_independent: packet.control_plane_independent,
        };
        if self.polling && packet.is_final {
            self.polling = false;
            (self.tx_in_use, self.rx_in_use) = (self.desired_tx, self.min_rx);
        }
        let before = self.state;
        self.follow(packet);
        self.expires = Some(now + self.detection_time());
        if packet.poll && self.may_answer(now) {
            out.push(self.packet(true));
        }
        let news = self.state != before && !packet.poll;
        self.schedule(now, rng, news);
        Ok(())
    }

    /// Whether a poll is answered. One that is not is repeated by an end that means it (§6.5).
    fn may_answer(&mut self, now: Time) -> bool {
        let pace = self.rx_in_use.max(SHORTEST) / 2;
        let may = self.answers_until <= now + pace * (POLLS - 1);
        if may {
            self.answers_until = self.answers_until.max(now) + pace;
        }
        may
    }

    /// The state machine (§6.2, §6.8.6): our state by the other end's.
    fn follow(&mut self, packet: &Packet) {
        let (next, diagnostic, reason) = match (self.state, packet.state) {
            (State::Down, State::AdminDown) => {
                self.reason = Reason::PeerAdminDown;
                return;
            }
            (State::Init | State::Up, State::AdminDown) => {
                (State::Down, Diagnostic::SIGNALLED, Reason::PeerAdminDown)
            }
            (State::Down, State::Down) => (State::Init, Diagnostic::NONE, Reason::New),
            (State::Down, State::Init) | (State::Init, State::Init | State::Up) => {
                (State::Up, Diagnostic::NONE, Reason::Up)
            }
            (State::Up, State::Down) => {
                (State::Down, Diagnostic::SIGNALLED, Reason::Signalled(packet.diagnostic))
            }
            (State::Down, State::Up)
            | (State::Init, State::Down)
            | (State::Up, State::Init | State::Up)
            | (State::AdminDown, _) => return,
        };
        match (next, &self.reason) {
            // Halfway up, what brought it down is still what there is to say.
            (State::Init, Reason::Silent(_) | Reason::Signalled(_)) => {
                self.enter(next, self.diagnostic, self.reason.clone());
            }
            _ => self.enter(next, diagnostic, reason),
        }
    }

    fn enter(&mut self, state: State, diagnostic: Diagnostic, reason: Reason) {
        if self.state == State::Up && !matches!(reason, Reason::PeerAdminDown) {
            self.losses += 1;
        }
        (self.state, self.diagnostic, self.reason) = (state, diagnostic, reason);
        self.retime();
    }

    /// Fits the intervals to plan and state; a change is told by a poll (§6.8.3).
    fn retime(&mut self) {
        let tx = match self.state {
            State::Up => self.plan.interval,
            _ => self.plan.interval.max(SLOW),
        }
        .max(SHORTEST);
        let rx = self.plan.min_rx;
        if (tx, rx) == (self.desired_tx, self.min_rx) {
            return;
        }
        (self.desired_tx, self.min_rx) = (tx, rx);
        let up = self.state == State::Up;
        // Up, we neither slow down nor expect more before the other end knows.
        if !(up && tx > self.tx_in_use) {
            self.tx_in_use = tx;
        }
        if !(up && rx < self.rx_in_use) {
            self.rx_in_use = rx;
        }
        self.polling = self.remote.discriminator != 0;
        if !self.polling {
            (self.tx_in_use, self.rx_in_use) = (tx, rx);
        }
    }

    /// §6.7.4: the sequence number first, then the digest.
    fn authenticate(
        &mut self,
        now: Time,
        multiplier: u8,
        octets: &[u8],
        section: Option<Authentication>,
    ) -> Result<(), Refusal> {
        let (auth, section) = match (&self.plan.auth, section) {
            (None, None) => return Ok(()),
            (Some(auth), Some(section)) => (auth, section),
            _ => return Err(Refusal::AuthType),
        };
        if section.meticulous != auth.meticulous {
            return Err(Refusal::AuthType);
        }
        if section.key_id != auth.key_id {
            return Err(Refusal::AuthKey);
        }
        // After a long silence the other end may have begun anew (§6.8.1, bfd.AuthSeqKnown).
        let silence = self.detection_time() * 2;
        let known = self.remote_sequence.filter(|_| now.since(self.heard) < silence);
        if let Some(last) = known {
            let ahead = section.sequence.wrapping_sub(last);
            if !(u32::from(auth.meticulous)..=3 * u32::from(multiplier)).contains(&ahead) {
                return Err(Refusal::AuthSequence);
            }
        }
        if !wire::is_authentic(octets, auth) {
            return Err(Refusal::AuthDigest);
        }
        self.remote_sequence = Some(section.sequence);
        Ok(())
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, now: Time, rng: &mut Rng, out: &mut Vec<Vec<u8>>) {
        if let Some(at) = self.expires.filter(|&at| at <= now) {
            let before = self.state;
            self.expire(now, at);
            self.schedule(now, rng, self.state != before);
        }
        self.send(now, rng, out);
    }

    /// Sends the packet that is due, if one is. It judges nobody.
    pub(super) fn send(&mut self, now: Time, rng: &mut Rng, out: &mut Vec<Vec<u8>>) {
        if self.send_at.is_some_and(|at| at <= now) {
            out.push(self.packet(false));
            if self.goodbyes > 1 || now >= self.leaves_at {
                self.goodbyes = self.goodbyes.saturating_sub(1);
            }
            self.send_at = None;
            self.schedule(now, rng, false);
        }
    }

    /// Nothing was heard for the detection time (§6.8.4), unless it was us who did not listen.
    fn expire(&mut self, now: Time, at: Time) {
        let detection = self.detection_time();
        if now.since(at) >= detection / u32::from(self.remote.multiplier.max(1)) && !self.spared {
            self.spared = true;
            self.expires = Some(now + detection);
            return;
        }
        self.expires = None;
        // How long a detection time was is still needed.
        let Remote { desired_tx, multiplier, .. } = self.remote;
        self.remote = Remote { desired_tx, multiplier, ..Remote::UNKNOWN };
        self.polling = false;
        if matches!(self.state, State::Init | State::Up) {
            self.enter(State::Down, Diagnostic::EXPIRED, Reason::Silent(detection));
        }
        (self.tx_in_use, self.rx_in_use) = (self.desired_tx, self.min_rx);
    }

    /// Plans the next packet; with `news` it leaves at once (§6.8.7).
    fn schedule(&mut self, now: Time, rng: &mut Rng, news: bool) {
        if !self.speaks() {
            self.send_at = None;
        } else if news {
            self.send_at = Some(now);
        } else if self.send_at.is_none() || self.paced != self.tx_interval() {
            let next = now + self.jittered(rng);
            let shorter = self.tx_interval() < self.paced;
            self.send_at = Some(self.send_at.filter(|&at| shorter && at < next).unwrap_or(next));
            self.paced = self.tx_interval();
        }
    }

    /// Whether packets are sent by the clock at all (§6.8.7).
    fn speaks(&self) -> bool {
        if self.is_leaving() {
            return self.goodbyes > 0;
        }
        let demanded = self.remote.demand && self.state == State::Up && self.remote.state == State::Up;
        let silent = self.plan.passive && self.remote.discriminator == 0;
        !silent && !self.remote.min_rx.is_zero() && (!demanded || self.polling)
    }

    /// The time between two packets: what we wish or the other end can take, whichever is longer.
    fn tx_interval(&self) -> Duration {
        let interval = self.tx_in_use.max(self.remote.min_rx);
        // A farewell takes an end, however slow the other one is.
        if self.is_leaving() { interval.min(SLOW) } else { interval }
    }

    /// A quarter of it at random is taken off; with a multiplier of 1 a tenth at least, so that one packet is in time (§6.8.7).
    fn jittered(&self, rng: &mut Rng) -> Duration {
        let interval = self.tx_interval();
        if self.plan.multiplier == 1 {
            let spread = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX) / 100 * 15;
            return interval / 4 * 3 + Duration::from_nanos(rng.below(spread + 1));
        }
        rng.jitter(interval, 75)
    }

    /// How long silence is borne (§6.8.4).
    fn detection_time(&self) -> Duration {
        self.rx_in_use.max(self.remote.desired_tx) * u32::from(self.remote.multiplier)
    }

    /// The next packet, with its sequence number.
    fn packet(&mut self, is_final: bool) -> Vec<u8> {
        let packet = Packet {
            diagnostic: self.diagnostic,
            state: self.state,
            poll: false,
            is_final: false,
            control_plane_independent: false,
            demand: false,
            multiplier: self.plan.multiplier,
            my_discriminator: self.discriminator,
            your_discriminator: self.remote.discriminator,
            desired_min_tx: self.desired_tx,
            required_min_rx: self.min_rx,
            required_min_echo_rx: Duration::ZERO,
        };
        let news = self.said.replace(packet) != Some(packet);
        let packet = Packet { poll: self.polling && !is_final, is_final, ..packet };
        let auth = self.plan.auth.as_ref();
        if auth.is_some_and(|auth| auth.meticulous || news) {
            self.sequence = self.sequence.wrapping_add(1);
        }
        packet.encode(auth.map(|auth| (auth, self.sequence)))
    }

    pub(super) fn deadline(&self) -> Option<(Time, &'static str)> {
        earliest(self.expires.map(|t| (t, "bfd detection")), self.send_at.map(|t| (t, "bfd packet")))
    }

    /// What others may want to know.
    pub(super) fn report(&self) -> Report {
        let heard = self.remote.discriminator != 0;
        Report {
            state: self.state,
            diagnostic: self.diagnostic,
            reason: self.reason.clone(),
            losses: self.losses,
            peer_state: heard.then_some(self.remote.state),
            peer_diagnostic: self.remote.diagnostic,
            tx_interval: self.tx_interval(),
            rx_interval: heard.then(|| self.rx_in_use.max(self.remote.desired_tx)),
            detection_time: heard.then(|| self.detection_time()),
            demanded: self.remote.demand,
            control_plane_independent: self.remote.control_plane_independent,
            refused: self.refused,
            last_refusal: self.last_refusal,
        }
    }
}
