//! A drain in every way that it begins, goes on and ends.

use std::collections::BTreeSet;

use super::*;
use crate::announce::{AnnounceInput, Reason, Turn};
use crate::health::Verdict;
use crate::machine::Machine;
use crate::node::LocalAddress;
use crate::plan::{Attributes, Check, CheckId, Damping, FailAction, Probe, Vip};
use crate::prefix::Prefix;

const LEAVES: u32 = 0xffff_0000;

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn address() -> LocalAddress {
    LocalAddress { address: "198.51.100.10".parse().unwrap(), interface: "lo".into() }
}

/// An announcer of one VIP with a managed address, and everything that it said.
struct Bench {
    announcer: Announcer,
    now: Time,
    out: Vec<AnnounceOutput>,
}

impl Bench {
    /// Its VIP is drained as `drain` says, and announced since a second.
    fn new(drain: Drain) -> Self {
        Self::of(Vip { drain, ..Self::vip() })
    }

    fn vip() -> Vip {
        Vip {
            manage: Some("lo".into()),
            lower_priority: Attributes { as_path_prepend: 3, ..Attributes::default() },
            ..Vip::new("web", vec!["198.51.100.10/32".parse().unwrap()], &["up"])
        }
    }

    fn of(vip: Vip) -> Self {
        // No lease: it may stay silent for ever.
        let check = Check { interval: Duration::ZERO, fall: 1, ..Check::new(Probe::External) };
        let checks = [(CheckId::new("web", "up"), check)].into();
        let announcer = Announcer::new(Time::ZERO, &[("web".into(), vip)].into(), &checks);
        let mut bench = Self { announcer, now: Time::ZERO, out: Vec::new() };
        bench.tell(AnnounceInput::Addresses(BTreeSet::from([address()])));
        bench.report(true);
        bench.run(secs(1));
        bench.out.clear();
        bench
    }

    fn tell(&mut self, input: AnnounceInput) {
        self.announcer.handle(self.now, input, &mut self.out);
    }

    fn report(&mut self, good: bool) {
        let verdict = if good { Verdict::good("200") } else { Verdict::bad("503") };
        self.tell(AnnounceInput::Reported(CheckId::new("web", "up"), verdict));
    }

    fn count(&mut self, n: u64) {
        self.tell(AnnounceInput::Connections("web".into(), Ok(n)));
    }

    fn order(&mut self, most: Option<u64>) {
        self.tell(AnnounceInput::Drain(Some("web".into()), most.map(secs)));
    }

    fn undrain(&mut self) {
        self.tell(AnnounceInput::Undrain(Some("web".into())));
    }

    /// So much later.
    fn run(&mut self, d: Duration) {
        let end = self.now + d;
        while let Some((at, _)) = self.announcer.deadline().filter(|(at, _)| *at <= end) {
            self.now = self.now.max(at);
            self.announcer.tick(self.now, &mut self.out);
        }
        self.now = end;
    }

    fn state(&self) -> VipState {
        self.announcer.vip("web").unwrap().state
    }

    fn reason(&self) -> Reason {
        self.announcer.reason(self.now, "web").unwrap()
    }

    fn over(&self) -> Option<End> {
        self.announcer.vip("web").unwrap().drain.as_ref().and_then(|d| d.over.clone())
    }

    /// What a peer is told of it.
    fn told(&self) -> Option<Attributes> {
        let rib = self.announcer.rib(None, |_| true);
        rib.get(&Prefix::host(address().address)).cloned()
    }

    /// Whether its address was asked for last; `None` if nothing was said of it.
    fn asked(&self) -> Option<bool> {
        self.out
            .iter()
            .rev()
            .find_map(|o| if let AnnounceOutput::Address(_, on) = o { Some(*on) } else { None })
    }

    fn news(&self) -> Vec<String> {
        let news =
            |o: &AnnounceOutput| if let AnnounceOutput::Drain(_, n) = o { Some(n.to_string()) } else { None };
        self.out.iter().filter_map(news).collect()
    }

    fn counts(&self) -> Vec<bool> {
        let count = |o: &AnnounceOutput| if let AnnounceOutput::Count(_, on) = o { Some(*on) } else { None };
        self.out.iter().filter_map(count).collect()
    }
}

#[test]
fn connections_are_waited_for_and_then_the_vip_is_withdrawn_and_its_address_let_go() {
    let mut b = Bench::new(Drain::default());
    b.order(None);
    assert_eq!((b.state(), b.reason()), (VipState::Announced, Reason::Draining(Cause::Command)));
    let told = b.told().unwrap();
    assert_eq!((told.communities, told.local_pref), ([LEAVES].into(), Some(0)));
    for (after, left) in [(0, 200), (1, 150), (1, 3), (1, 1)] {
        b.run(secs(after));
        b.count(left);
        assert_eq!((b.state(), b.over(), b.asked()), (VipState::Announced, None, None), "{left} left");
    }
    b.run(secs(1));
    b.count(0);
    assert_eq!((b.state(), b.over()), (VipState::Withdrawn, Some(End::Few(0))));
    assert_eq!((b.told(), b.asked()), (None, Some(false)));
    assert_eq!(b.counts(), [true, false]);
    assert_eq!(
        b.news(),
        [
            "drains (by command): graceful_shutdown, until its connections are over, for 30 s at most",
            "drains: 200 connections left",
            "drained: no connection is left",
        ]
    );
    // It stays so, however healthy, until somebody wants it back.
    b.report(true);
    b.run(secs(1000));
    assert_eq!(b.state(), VipState::Withdrawn);
    b.undrain();
    assert_eq!((b.state(), b.reason()), (VipState::Announced, Reason::Healthy(Turn::Undrained)));
    assert_eq!((b.told().unwrap(), b.asked()), (Attributes::default(), Some(true)));
}

#[test]
fn a_count_from_before_the_routers_knew_ends_nothing() {
    let mut b = Bench::new(Drain::default());
    b.order(None);
    b.count(0);
    b.run(Duration::from_millis(900));
    b.count(0);
    assert_eq!(b.over(), None);
    b.run(Duration::from_millis(100));
    b.count(0);
    assert_eq!(b.over(), Some(End::Few(0)));
}

#[test]
fn each_mode_tells_the_peers_its_own_and_the_floor_is_few_enough() {
    for (mode, floor) in
        [(DrainMode::Withdraw, 0), (DrainMode::Weight(64513), 5), (DrainMode::GracefulShutdown, 1)]
    {
        let mut b = Bench::new(Drain { mode, floor, ..Drain::default() });
        b.order(None);
        let gone = mode == DrainMode::Withdraw;
        assert_eq!(
            b.told(),
            Drain { mode, ..Drain::default() }.attributes(Attributes::default()),
            "{mode:?}"
        );
        assert_eq!(b.state(), if gone { VipState::Withdrawn } else { VipState::Announced }, "{mode:?}");
        assert_eq!(b.reason(), Reason::Draining(Cause::Command), "{mode:?}");
        b.run(secs(2));
        b.count(floor + 1);
        assert_eq!((b.over(), b.asked()), (None, None), "{mode:?}: the address stays for who is left");
        b.count(floor);
        assert_eq!((b.over(), b.asked()), (Some(End::Few(floor)), Some(false)), "{mode:?}");
    }
}

#[test]
fn the_deadline_cuts_what_is_left_and_says_so() {
    let rough = |end: &End| end.is_rough();
    let mut b = Bench::new(Drain { deadline: secs(10), ..Drain::default() });
    b.order(None);
    b.run(Duration::from_millis(9_999));
    b.count(12);
    assert_eq!(b.over(), None);
    b.run(Duration::from_millis(1));
    assert_eq!(b.over(), Some(End::Deadline(Some(12))));
    assert!(b.over().as_ref().is_some_and(rough));
    assert_eq!(b.news().last().unwrap(), "drained: its time is up, with 12 connections left");
    // By order it may take longer, or less long from then on.
    b.undrain();
    b.order(Some(60));
    b.run(secs(59));
    assert_eq!(b.over(), None);
    b.order(Some(5));
    b.run(secs(4));
    assert_eq!(b.over(), None);
    b.run(secs(1));
    assert_eq!(
        b.over(),
        Some(End::Deadline(None)),
        "connections of the last drain are not those of this one"
    );
}

#[test]
fn nothing_is_counted_where_only_the_deadline_counts() {
    let mut b = Bench::new(Drain { until: DrainUntil::Deadline, deadline: secs(3), ..Drain::default() });
    b.order(None);
    assert!(b.counts().is_empty());
    b.run(Duration::from_millis(2_999));
    assert_eq!(b.over(), None);
    b.run(Duration::from_millis(1));
    assert_eq!(b.over(), Some(End::Deadline(None)));
    assert!(b.over().is_some_and(|end| !end.is_rough()));
}

#[test]
fn connections_that_cannot_be_counted_are_told_once_and_take_the_whole_time() {
    let mut b = Bench::new(Drain::default());
    b.order(None);
    for _ in 0..20 {
        b.run(secs(1));
        b.tell(AnnounceInput::Connections("web".into(), Err("no sock_diag".into())));
    }
    assert_eq!(b.over(), None);
    let told: Vec<_> = b.news().into_iter().filter(|n| n.contains("no sock_diag")).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    b.run(secs(10));
    assert_eq!(b.over(), Some(End::Deadline(None)));
}

#[test]
fn progress_is_told_each_ten_seconds_at_most() {
    let mut b = Bench::new(Drain { deadline: secs(100), ..Drain::default() });
    b.order(None);
    for n in 0..30 {
        b.count(200 - n);
        b.run(secs(1));
    }
    let left: Vec<_> = b.news().into_iter().filter(|n| n.contains(" left")).collect();
    assert_eq!(
        left,
        ["drains: 200 connections left", "drains: 190 connections left", "drains: 180 connections left"]
    );
}

#[test]
fn a_vip_that_fails_while_it_drains_is_gone_at_once() {
    for fail_action in [FailAction::Withdraw, FailAction::LowerPriority] {
        let mut b = Bench::of(Vip { fail_action, ..Bench::vip() });
        b.order(None);
        b.run(secs(1));
        b.count(7);
        b.report(false);
        match fail_action {
            FailAction::Withdraw => {
                assert_eq!((b.state(), b.over()), (VipState::Withdrawn, Some(End::Absent)));
                assert_eq!(b.reason(), Reason::Drained(Cause::Command, End::Absent));
            }
            FailAction::LowerPriority => {
                assert_eq!((b.state(), b.over()), (VipState::Pessimised, None));
                let told = b.told().unwrap();
                assert_eq!((told.as_path_prepend, told.communities), (3, [LEAVES].into()));
            }
        }
    }
}

#[test]
fn one_that_is_not_announced_is_drained_at_once_and_stays_so() {
    let mut b = Bench::new(Drain::default());
    b.report(false);
    b.order(None);
    assert_eq!(b.over(), Some(End::Absent));
    assert!(b.counts().is_empty());
    b.report(true);
    b.run(secs(100));
    assert_eq!(b.state(), VipState::Withdrawn);
    b.undrain();
    assert_eq!(b.state(), VipState::Announced);
}

#[test]
fn a_service_that_is_stopped_while_drained_does_not_flap() {
    let damping = Some(Damping { flaps: 1, within: secs(60), hold: secs(60), max: secs(60) });
    let mut b = Bench::of(Vip { damping, ..Bench::vip() });
    b.order(Some(1));
    b.run(secs(2));
    b.report(false);
    b.run(secs(1));
    b.report(true);
    b.undrain();
    assert_eq!(b.state(), VipState::Announced, "{}", b.reason());
}

#[test]
fn the_file_drains_where_it_is_to_and_its_end_takes_no_order_back() {
    let file = |b: &mut Bench, is| b.tell(AnnounceInput::LowerPriorityFile("web".into(), is));
    let mut b = Bench::new(Drain::default());
    file(&mut b, true);
    assert_eq!((b.state(), b.reason()), (VipState::Pessimised, Reason::LowerPriorityFile));

    let mut b = Bench::new(Drain { on_file: true, ..Drain::default() });
    file(&mut b, true);
    assert_eq!((b.state(), b.reason()), (VipState::Announced, Reason::Draining(Cause::File)));
    b.undrain();
    assert_eq!(b.reason(), Reason::Draining(Cause::File), "an order that nobody gave is taken back in vain");
    b.order(None);
    file(&mut b, false);
    assert_eq!(b.reason(), Reason::Draining(Cause::Command));
    b.undrain();
    assert_eq!(b.reason(), Reason::Healthy(Turn::Undrained));
}

#[test]
fn a_leave_drains_those_that_are_to_and_withdraws_the_rest() {
    let leave = |b: &mut Bench| b.tell(AnnounceInput::Leave("received SIGTERM".into()));
    let cause = Cause::Stop("received SIGTERM".into());
    let mut b = Bench::new(Drain { on_stop: true, ..Drain::default() });
    leave(&mut b);
    assert!(b.announcer.drains());
    assert_eq!((b.state(), b.reason()), (VipState::Announced, Reason::Draining(cause)));
    b.undrain();
    b.run(secs(2));
    b.count(0);
    assert!(!b.announcer.drains());
    assert_eq!(b.state(), VipState::Withdrawn);

    let mut b = Bench::new(Drain::default());
    leave(&mut b);
    assert!(!b.announcer.drains());
    assert_eq!((b.state(), b.asked()), (VipState::Withdrawn, Some(false)));
    assert_eq!(b.reason(), Reason::Stopping("received SIGTERM".into()));
    b.report(true);
    assert_eq!(b.state(), VipState::Withdrawn);

    // Who was ordered to drain before is waited for all the same.
    let mut b = Bench::new(Drain::default());
    b.order(None);
    leave(&mut b);
    assert!(b.announcer.drains());
    b.tell(AnnounceInput::Stop("told twice".into()));
    assert_eq!((b.state(), b.over()), (VipState::Withdrawn, Some(End::Cut(None))));
    assert_eq!(b.news().last().unwrap(), "drained: cut short");
    assert_eq!(b.counts(), [true, false]);
}

#[test]
fn nobody_drains_a_vip_that_is_not_there() {
    let mut b = Bench::new(Drain::default());
    b.tell(AnnounceInput::Drain(Some("none".into()), None));
    b.tell(AnnounceInput::Connections("none".into(), Ok(0)));
    b.count(0);
    assert!(b.out.is_empty(), "{:?}", b.out);
    b.tell(AnnounceInput::Drain(None, None));
    assert!(b.announcer.drains());
}
