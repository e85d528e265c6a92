//! What runs on the announcer's thread beside the node: reports become samples, silence becomes a bad one, a drain takes its course.
//!
//! It reads what waits in the slots, looks at the node, and gives it inputs; the driver calls it after each of its rounds.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use standfast_core::announce::Draining;
use standfast_core::health;
use standfast_core::machine::Time;
use standfast_core::node::{self, Input, Node};
use standfast_core::plan::CheckId;
use standfast_core::prefix::Prefix;
use standfast_io::netlink::Sockets;

use crate::builder::{Builder, Count, Healthy, OnEvent};
use crate::drain::Leaving;
use crate::event::{Event, Events, Level, Reader, VipState};
use crate::plan::SERVICE;
use crate::report::{Slot, Verdict};

/// How often it looks although nothing is due, to notice that the process stood still.
const PULSE: Duration = Duration::from_secs(1);
/// A look that is later than this was not late by itself: the process was stopped, and its silence was nobody's fault.
const STALL: Duration = Duration::from_secs(2);
/// How long a drained VIP stays at least, for routers to hear of it before its connections are counted.
/// A moment longer than the node's own, which begins a moment later.
const SETTLE: Duration = Duration::from_millis(1050);
/// How often connections are counted during a drain.
const COUNT: Duration = Duration::from_millis(50);
/// A drain without a deadline.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How often the progress of a drain is told.
const PROGRESS: Duration = Duration::from_secs(1);

/// What all handles and the announcer's thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// By the number of the VIP, in the order of their names.
    pub(crate) slots: Vec<Slot>,
    pub(crate) leaving: Arc<Leaving>,
    readers: Mutex<Vec<Reader>>,
    /// The thread that asks the closure, if there is one.
    pub(crate) asker: Mutex<Option<Thread>>,
}

impl Shared {
    pub(crate) fn new(vips: usize, epoch: Instant) -> Self {
        Self {
            slots: (0..vips).map(|_| Slot::new(epoch)).collect(),
            leaving: Arc::default(),
            readers: Mutex::default(),
            asker: Mutex::default(),
        }
    }

    /// Events from now on; none if it is over.
    pub(crate) fn events(&self) -> Events {
        let (reader, events) = Reader::new();
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.leaving.is_over() {
            readers.push(reader);
        }
        events
    }

    fn tell(&self, event: &Event) {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).retain_mut(|reader| reader.tell(event));
    }

    /// The announcer's thread ends: everybody who waits for it need wait no longer.
    fn finish(&self) {
        self.leaving.finish();
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        if let Some(asker) = &*self.asker.lock().unwrap_or_else(PoisonError::into_inner) {
            asker.unpark();
        }
    }
}

/// Says that all is over when it is dropped, however the announcer's thread ends.
pub(crate) struct Over(pub(crate) Arc<Shared>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// Whom events are told to: the closure, and those who read.
pub(crate) struct Teller {
    shared: Arc<Shared>,
    on_event: Option<OnEvent>,
}

impl Teller {
    pub(crate) fn new(shared: Arc<Shared>, on_event: Option<OnEvent>) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { shared, on_event }))
    }

    pub(crate) fn tell(&mut self, event: &Event) {
        if let Some(on_event) = &mut self.on_event
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| on_event(event)))
        {
            // What it left behind is in no state to be called again; the announcer goes on.
            self.on_event = None;
            let message = format!("on_event panicked, and is called no more: {}", words(&*panic));
            self.shared.tell(&Event::Note { level: Level::Warn, about: "on_event".to_owned(), message });
        }
        self.shared.tell(event);
    }
}

/// A VIP as it was last looked at.
struct Watched {
    name: String,
    id: CheckId,
    /// Whether a bad report was counted since the last sample.
    counted: bool,
    /// Silence counts from here if nothing was reported since.
    silent: Instant,
    share: Option<u8>,
    state: VipState,
}

/// How far a drain is.
enum Phase {
    Serving,
    Draining { settled: Instant, told: Instant, count: Instant },
    Stopping,
}

/// The companion of the node.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    teller: Arc<Mutex<Teller>>,
    vips: Vec<Watched>,
    interval: Duration,
    lease: Option<Duration>,
    /// Everything that is announced.
    prefixes: Vec<Prefix>,
    connections: Option<Count>,
    /// What the kernel counts during a drain, where the service counts nothing.
    census: Option<Arc<Census>>,
    sample: Instant,
    looked: Instant,
    phase: Phase,
}

impl Watch {
    /// `names` in the order of the slots.
    pub(crate) fn new(
        shared: Arc<Shared>,
        teller: Arc<Mutex<Teller>>,
        names: &[String],
        prefixes: Vec<Prefix>,
        builder: &mut Builder,
        lease: Option<Duration>,
    ) -> Self {
        let now = Instant::now();
        let watched = |name: &String| Watched {
            id: CheckId::new(name, SERVICE),
            name: name.clone(),
            counted: false,
            silent: now,
            share: None,
            state: VipState::Withdrawn,
        };
        Self {
            shared,
            teller,
            vips: names.iter().map(watched).collect(),
            interval: builder.interval,
            lease,
            prefixes,
            connections: builder.connections.take(),
            census: None,
            sample: now + builder.interval,
            looked: now,
            phase: Phase::Serving,
        }
    }

    /// Gives the node what is due, tells what came of it, and says when to look again.
    pub(crate) fn look(&mut self, node: &Node, at: Time, inputs: &mut VecDeque<Input>) -> Option<Instant> {
        let now = Instant::now();
        self.observe(node, at);
        if now.duration_since(self.looked) > STALL {
            self.vips.iter_mut().for_each(|vip| vip.silent = now);
        }
        self.looked = now;
        self.drain(now, inputs);
        let next = if matches!(self.phase, Phase::Stopping) {
            now + PULSE
        } else {
            self.hear(now, inputs);
            let heard =
                self.vips.iter().zip(&self.shared.slots).map(|(vip, slot)| vip.silent.max(slot.heard()));
            let silence = self.lease.and_then(|lease| heard.min().map(|heard| heard + lease));
            silence.map_or(self.sample, |silence| silence.min(self.sample))
        };
        let count = match self.phase {
            Phase::Draining { count, .. } => count,
            Phase::Serving | Phase::Stopping => next,
        };
        Some(next.min(count).min(now + PULSE))
    }

    /// Makes samples of what was reported, and of silence.
    fn hear(&mut self, now: Instant, inputs: &mut VecDeque<Input>) {
        let due = now >= self.sample;
        if due {
            // A late one moves those that follow: two samples are never closer than an interval.
            self.sample = now + self.interval;
        }
        for (vip, slot) in self.vips.iter_mut().zip(&self.shared.slots) {
            let verdict = match due || (slot.is_bad() && !vip.counted) {
                true => slot.take(),
                false => None,
            };
            vip.counted = match &verdict {
                Some(Verdict::Bad(_)) => true,
                _ => vip.counted && !due,
            };
            let silence = || {
                let since = vip.silent.max(slot.heard());
                let silent = now.duration_since(since);
                self.lease.filter(|&lease| verdict.is_none() && silent >= lease).map(|_| silent)
            };
            if let Some(silent) = silence() {
                // Counted once, and again after as long.
                vip.silent = now;
                let why = format!("no report for {:.1} s", silent.as_secs_f64());
                inputs.push_back(Input::Reported(vip.id.clone(), health::Verdict::bad(why)));
            }
            if let Some(verdict) = verdict {
                let verdict = match verdict {
                    Verdict::Good => health::Verdict::good(""),
                    Verdict::Bad(why) => health::Verdict::bad(why),
                };
                inputs.push_back(Input::Reported(vip.id.clone(), verdict));
            }
            let share = slot.share();
            if vip.share != share
                && let Some(percent) = share
            {
                vip.share = share;
                inputs.push_back(Input::Share(vip.name.clone(), percent));
            }
        }
    }

    /// Tells which VIPs are something else than before.
    fn observe(&mut self, node: &Node, at: Time) {
        for vip in &mut self.vips {
            let Some((view, _)) = node.vip_view(&vip.name) else { continue };
            let to = VipState::of(view.state, view.drain.as_ref().is_some_and(Draining::goes_on));
            if to != vip.state {
                let reason = node.vip_status(at, &vip.name).map(|vip| vip.reason).unwrap_or_default();
                let from = std::mem::replace(&mut vip.state, to);
                let event = Event::Vip { name: vip.name.clone(), from, to, reason };
                self.teller.lock().unwrap_or_else(PoisonError::into_inner).tell(&event);
            }
        }
    }

    /// Begins, goes on with or ends a drain.
    fn drain(&mut self, now: Instant, inputs: &mut VecDeque<Input>) {
        let leaving = Arc::clone(&self.shared.leaving);
        match self.phase {
            Phase::Serving if leaving.is_draining() => {
                let most = leaving.deadline().map_or(FOR_EVER, |at| at.saturating_duration_since(now));
                inputs.push_back(Input::DrainVip { vip: None, deadline: Some(most) });
                if self.connections.is_none() && leaving.connections().is_none() {
                    self.census = Census::begin(&self.shared, std::mem::take(&mut self.prefixes));
                }
                self.phase = Phase::Draining { settled: now + SETTLE, told: now, count: now };
            }
            Phase::Draining { settled, told, count } if now >= count => {
                let left = self.count(settled);
                let late = leaving.deadline().is_some_and(|deadline| now >= deadline);
                if late || (left == Some(0) && now >= settled) {
                    // With nothing to count by, what is left is not known.
                    let left = left.unwrap_or(0);
                    leaving.leave(left);
                    let why = match left {
                        0 => "drained".to_owned(),
                        n => format!("the drain's deadline passed with {n} connections left"),
                    };
                    self.note(if left == 0 { Level::Info } else { Level::Warn }, why.clone());
                    self.phase = Phase::Stopping;
                    // The node hears how its drains end, so that its words are right; the second stop waits for none of them.
                    if late {
                        inputs.push_back(Input::DrainVip { vip: None, deadline: Some(Duration::ZERO) });
                    } else {
                        let count = |vip: &Watched| Input::Connections(vip.name.clone(), Ok(left as u64));
                        inputs.extend(self.vips.iter().map(count));
                    }
                    inputs.extend([Input::Stop(why.clone()), Input::Stop(why)]);
                    return;
                }
                let mut told = told;
                if now.duration_since(told) >= PROGRESS {
                    told = now;
                    let left = left.map_or("connections are not counted".to_owned(), |n| {
                        format!("{n} connections left")
                    });
                    self.note(Level::Info, left);
                }
                let next = leaving.deadline().map_or(now + COUNT, |deadline| deadline.min(now + COUNT));
                self.phase = Phase::Draining { settled, told, count: next.max(now) };
            }
            Phase::Serving | Phase::Draining { .. } | Phase::Stopping => {}
        }
    }

    /// Connections that are left; `None` if it is not known. The kernel's count must have been taken `since`.
    fn count(&mut self, since: Instant) -> Option<usize> {
        let own = self.shared.leaving.connections();
        let counted = match &self.connections {
            None => return own.or_else(|| self.census.as_ref()?.taken(since)),
            Some(count) => catch_unwind(AssertUnwindSafe(count)),
        };
        match counted {
            Ok(n) => Some(n.saturating_add(own.unwrap_or(0))),
            Err(panic) => {
                self.connections = None;
                self.note(
                    Level::Warn,
                    format!("connections panicked, and is asked no more: {}", words(&*panic)),
                );
                own
            }
        }
    }

    fn note(&self, level: Level, message: String) {
        let event = Event::Note { level, about: "drain".to_owned(), message };
        self.teller.lock().unwrap_or_else(PoisonError::into_inner).tell(&event);
    }
}

/// The TCP connections of the VIPs, counted again and again by a thread of its own: the kernel may take its time.
#[derive(Debug, Default)]
struct Census(Mutex<Option<(Instant, usize)>>);

impl Census {
    /// Counts until the announcer is over; `None` if that cannot be, and then only the deadline ends the drain.
    fn begin(shared: &Arc<Shared>, prefixes: Vec<Prefix>) -> Option<Arc<Self>> {
        let mut sockets = Sockets::new().ok()?;
        let census = Arc::<Self>::default();
        let (ours, shared) = (Arc::clone(&census), Arc::clone(shared));
        let count = move || {
            while !shared.leaving.is_over() {
                let at = Instant::now();
                let counted =
                    sockets.connections(&[&prefixes]).ok().and_then(|counts| counts.first().copied());
                let counted = counted.map(|n| (at, usize::try_from(n).unwrap_or(usize::MAX)));
                *ours.0.lock().unwrap_or_else(PoisonError::into_inner) = counted;
                // Where there are a million it takes a second, and rests for as long and longer.
                std::thread::sleep((at.elapsed() * 4).max(COUNT * 2));
            }
        };
        std::thread::Builder::new().name("standfast-counts".to_owned()).spawn(count).ok()?;
        Some(census)
    }

    /// What was counted last, if that was after `since`.
    fn taken(&self, since: Instant) -> Option<usize> {
        let counted = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counted.filter(|&(at, _)| at >= since).map(|(_, n)| n)
    }
}

/// Tells what the node and the driver say.
pub(crate) fn on_event(teller: Arc<Mutex<Teller>>) -> impl FnMut(&node::Event) + Send + 'static {
    move |event| {
        if let Some(event) = Event::of(event) {
            teller.lock().unwrap_or_else(PoisonError::into_inner).tell(&event);
        }
    }
}

/// Asks the closure how the service is, once in each interval, until the announcer is over.
pub(crate) fn ask(mut healthy: Healthy, interval: Duration, shared: &Shared, wake: impl Fn()) {
    let mut next = Instant::now();
    while !shared.leaving.is_over() {
        let verdict = catch_unwind(AssertUnwindSafe(&mut healthy))
            .unwrap_or_else(|panic| Verdict::bad(format!("the closure panicked: {}", words(&*panic))));
        let news = shared.slots.iter().fold(false, |news, slot| slot.put(&verdict) | news);
        if news {
            wake();
        }
        let now = Instant::now();
        next = (next + interval).max(now);
        while Instant::now() < next && !shared.leaving.is_over() {
            std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
        }
    }
}

/// What a panic said.
fn words(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a word")
}
