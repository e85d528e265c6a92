//! One BFD machine with a session to a peer that says what a test wants, in virtual time.

use std::net::IpAddr;
use std::time::Duration;

use standfast_core::bfd::wire::{Diagnostic, Packet};
use standfast_core::bfd::{Bfd, Config, Counters, Input, Key, Output, Report, State};
use standfast_core::machine::{Machine, Time};
use standfast_core::plan;
use standfast_core::table::Change;

pub(crate) const THEIRS: u32 = 0x7777;

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn key() -> Key {
    Key { address: IpAddr::from([192, 0, 2, 1]), scope: 0, multihop: false }
}

/// 50 ms, three packets.
pub(crate) fn plan() -> plan::Bfd {
    plan::Bfd { interval: ms(50), min_rx: ms(50), ..plan::Bfd::new() }
}

pub(crate) fn wanted(key: Key, plan: plan::Bfd) -> Input {
    Input::Wanted(Change::Set(key, Config { plan, local: None, interface: None }))
}

/// What the peer says in `state` if it knows nothing of us: 1 s, as much as we like, 50 ms, three packets.
pub(crate) fn their(state: State) -> Packet {
    Packet {
        diagnostic: Diagnostic::NONE,
        state,
        poll: false,
        is_final: false,
        control_plane_independent: false,
        demand: false,
        multiplier: 3,
        my_discriminator: THEIRS,
        your_discriminator: 0,
        desired_min_tx: ms(50),
        required_min_rx: ms(50),
        required_min_echo_rx: Duration::ZERO,
    }
}

pub(crate) struct BfdBench {
    pub(crate) machine: Bfd,
    pub(crate) now: Time,
    pub(crate) plan: plan::Bfd,
    /// Packets that were sent, with their octets, and when.
    pub(crate) sent: Vec<(Time, Packet, Vec<u8>)>,
    pub(crate) report: Option<Report>,
    pub(crate) counters: Counters,
    pub(crate) stopped: bool,
}

impl BfdBench {
    pub(crate) fn new(plan: plan::Bfd) -> Self {
        Self::seeded(plan, 1)
    }

    pub(crate) fn seeded(plan: plan::Bfd, seed: u64) -> Self {
        let mut bench = Self {
            machine: Bfd::new(seed),
            now: Time::from_secs(100),
            plan: plan.clone(),
            sent: Vec::new(),
            report: None,
            counters: Counters::default(),
            stopped: false,
        };
        bench.handle(wanted(key(), plan));
        bench.run(Duration::ZERO);
        bench
    }

    /// One whose session is up, all polls answered.
    pub(crate) fn up(plan: plan::Bfd) -> Self {
        let mut bench = Self::new(plan);
        bench.say(their(State::Down));
        bench.say(their(State::Init));
        bench.answer();
        assert_eq!(bench.state(), State::Up);
        bench
    }

    /// Answers the poll that goes on, if one does.
    pub(crate) fn answer(&mut self) {
        if self.last().poll {
            self.say(Packet { is_final: true, ..their(self.state()) });
        }
    }

    pub(crate) fn handle(&mut self, input: Input) {
        let mut out = Vec::new();
        self.machine.handle(self.now, input, &mut out);
        self.take(out);
    }

    fn take(&mut self, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Send(to, octets) => {
                    assert_eq!(to, key());
                    let (packet, _) = Packet::decode(&octets).expect("a packet that may be sent");
                    assert!(!(packet.poll && packet.is_final), "RFC 5880 §6.5");
                    self.sent.push((self.now, packet, octets));
                }
                Output::Report(_, report) => self.report = Some(report),
                Output::Counted(counters) => self.counters = counters,
                Output::Closed(_) => {}
                Output::Stopped => self.stopped = true,
            }
        }
    }

    /// The peer sends this, with our discriminator unless it is down.
    pub(crate) fn say(&mut self, packet: Packet) {
        let ours = self.last().my_discriminator;
        let packet = match packet.state {
            State::Down | State::AdminDown => packet,
            _ => Packet { your_discriminator: ours, ..packet },
        };
        self.arrive(Some(255), &packet.encode(None));
    }

    pub(crate) fn arrive(&mut self, ttl: Option<u8>, octets: &[u8]) {
        self.handle(Input::Received { from: key(), ttl, octets: octets.to_vec() });
    }

    /// Lets `d` pass, every timer on time.
    pub(crate) fn run(&mut self, d: Duration) {
        let end = self.now + d;
        while let Some((at, _)) = self.machine.deadline().filter(|(at, _)| *at <= end) {
            self.now = self.now.max(at);
            self.tick();
        }
        self.now = end;
    }

    /// As [`run`](Self::run), while the peer says `packet` each 40 ms.
    pub(crate) fn run_alive(&mut self, d: Duration, packet: Packet) {
        let end = self.now + d;
        while self.now < end {
            self.run(ms(40));
            self.say(packet);
        }
    }

    pub(crate) fn tick(&mut self) {
        let mut out = Vec::new();
        self.machine.tick(self.now, &mut out);
        self.take(out);
    }

    pub(crate) fn last(&self) -> Packet {
        self.sent.last().expect("a packet was sent").1
    }

    /// Packets that were sent since this moment.
    pub(crate) fn since(&self, at: Time) -> Vec<Packet> {
        self.sent.iter().filter(|s| s.0 > at).map(|s| s.1).collect()
    }

    /// The times between packets since this moment.
    pub(crate) fn gaps(&self, at: Time) -> Vec<Duration> {
        let times: Vec<Time> = self.sent.iter().map(|s| s.0).filter(|t| *t > at).collect();
        times.windows(2).map(|w| w[1].since(w[0])).collect()
    }

    pub(crate) fn report(&self) -> &Report {
        self.report.as_ref().expect("a report")
    }

    pub(crate) fn state(&self) -> State {
        self.report().state
    }

    /// Packets that were dropped, by the name of the reason.
    pub(crate) fn refused(&self) -> Vec<(&'static str, u64)> {
        self.machine.counters().refused.iter().map(|(reason, n)| (reason.name(), *n)).collect()
    }
}
