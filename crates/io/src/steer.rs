//! New connections of VIPs of which a member drains: kept from it, and remembered for as long as they live.
//!
//! A group of the kernel's knows a connection by the bucket it falls into alone, so that a new one may fall into a bucket that the
//! member that drains keeps for an old one. While somebody drains, nftables therefore gives each new TCP connection of the VIP
//! to a member that serves, by its addresses and ports, and remembers which: `rules`. What it remembers is a mark, and a rule of
//! policy routing leads each mark to a table with the member as the next hop: `ways`. When the drain is over no new ones are
//! remembered, those that are go on, and with the last of them all of it goes. A restart touches none of them.
//!
//! All of it is written by a thread, because `nft` takes milliseconds; until it has, and where it cannot, a drain is what the
//! group makes of it. It decides nothing: who drains and who serves is what the group says.

mod rules;
mod ways;

use standfast_core::listen::Hop;
use standfast_core::plan::Listener;
use standfast_core::prefix::Prefix;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::netlink::{Element, Netlink};
use crate::nft::{self, nft};
pub use rules::TABLE;
use rules::{MAPS, Marks, memory, rules, silence};
use ways::Ways;

/// The first eight bits of marks, if the plan says nothing: to know our tables by, which have such numbers.
const MARK: u32 = 0x5f00_0000;
/// How often the connections are counted while somebody drains.
const DRAINING: Duration = Duration::from_secs(1);
/// And otherwise, to see the last of them go.
const CALM: Duration = Duration::from_secs(30);
/// How soon what was refused is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// The most routes in all of our tables: a VIP whose members would be more goes by its group.
const ROUTES: usize = 16_384;

/// How the connections of a VIP are spread.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spread {
    /// Its next hops that can be reached, each with its weight for new connections; `None`: it drains.
    pub hops: BTreeMap<Hop, Option<u16>>,
    /// For how long a connection must have been silent to be none any more.
    pub idle: Duration,
}

impl Spread {
    /// Whether new connections are to be kept from somebody, and have somewhere to go.
    fn drains(&self) -> bool {
        self.hops.values().any(Option::is_none) && self.hops.values().any(Option::is_some)
    }
}

/// The connections of each VIP that are given to each next hop, and were heard of lately.
type Counts = BTreeMap<Prefix, BTreeMap<Hop, u32>>;

/// What the thread has been told, and the way to it.
#[derive(Debug)]
pub struct Steer {
    jobs: Sender<Job>,
    answers: Receiver<Answer>,
    off: bool,
    /// VIPs in which other VIPs are: they go by their groups.
    wide: BTreeSet<Prefix>,
    /// VIPs of which somebody drained, with the number of the job that told of them last.
    told: BTreeMap<Prefix, (Spread, u64)>,
    queue: Vec<(Prefix, Spread)>,
    asked: u64,
    done: u64,
    counts: Counts,
    counted: u64,
    refused: bool,
    ended: bool,
}

#[derive(Debug)]
enum Job {
    /// These VIPs are spread otherwise.
    Spread(Vec<(Prefix, Spread)>),
    /// Look whether all is as it was written, and write it if not.
    Check,
    Remove,
}

#[derive(Debug)]
enum Answer {
    /// What came of the jobs up to this one.
    Done(u64, Outcome),
    /// The connections, as they were after this job.
    Counted(u64, Counts),
}

/// What came of it: whether somebody else had changed something, or why it could not be written.
pub type Outcome = Result<bool, String>;

impl Steer {
    /// Takes over what an earlier run left; it stays as it is until the VIPs it is of are [updated](Self::update).
    ///
    /// # Errors
    /// The system gives no socket or thread, or does not answer.
    pub fn new(plan: &Listener) -> io::Result<Self> {
        let (jobs, work) = channel();
        let (answer, answers) = channel();
        let off = plan.drain_mark.is_none();
        let marks = Marks::new(plan.drain_mark.unwrap_or(MARK));
        let ways = Ways::new(marks)?;
        let left = if off { BTreeSet::new() } else { ways.vips() };
        let told: BTreeMap<_, _> = left.into_iter().map(|prefix| (prefix, (Spread::default(), 0))).collect();
        let mut desk = Desk {
            off,
            marks,
            ways,
            netfilter: Netlink::netfilter().ok(),
            vips: told.keys().map(|prefix| (*prefix, Spread::default())).collect(),
            table: false,
            written: None,
            shown: None,
            able: false,
            count_at: None,
            rest_until: Instant::now(),
            retry_at: None,
        };
        // It ends when `jobs` is dropped, and belongs to the network namespace of this thread.
        thread::Builder::new().name("drain".to_owned()).spawn(move || desk.work(&work, &answer))?;
        Ok(Self {
            jobs,
            answers,
            off,
            wide: wide(&plan.vips.values().map(|vip| vip.prefix).collect()),
            told,
            queue: Vec::new(),
            asked: 0,
            done: 0,
            counts: Counts::new(),
            counted: 0,
            refused: false,
            ended: false,
        })
    }

    /// Goes on by another plan.
    pub fn change(&mut self, plan: &Listener) {
        self.wide = wide(&plan.vips.values().map(|vip| vip.prefix).collect());
    }

    /// The VIPs of which connections may be remembered.
    pub fn vips(&self) -> impl Iterator<Item = &Prefix> {
        self.told.keys()
    }

    /// Whether it matters how a VIP is spread, if nobody drains.
    pub fn knows(&self, prefix: &Prefix) -> bool {
        self.told.contains_key(prefix)
    }

    /// Takes note of how a VIP is spread; [`flush`](Self::flush) has it done.
    pub fn update(&mut self, prefix: Prefix, spread: Spread) {
        let before = self.told.get(&prefix);
        let matters = before.map_or_else(|| spread.drains(), |(before, _)| *before != spread);
        if self.off || self.wide.contains(&prefix) || !matters {
            return;
        }
        // The job that it goes with is the next one.
        self.told.insert(prefix, (spread.clone(), self.asked + 1));
        self.queue.push((prefix, spread));
    }

    /// Has what was noted done.
    pub fn flush(&mut self) {
        if !self.queue.is_empty() {
            let list = std::mem::take(&mut self.queue);
            self.ask(Job::Spread(list));
        }
    }

    /// Has everything looked at, unless something is being done or there is nothing; and what was refused tried again.
    pub fn check(&mut self) {
        if !self.is_waiting() && (self.refused || !self.told.is_empty()) {
            self.ask(Job::Check);
        }
    }

    fn ask(&mut self, job: Job) {
        if self.jobs.send(job).is_ok() {
            self.asked += 1;
        }
    }

    /// Whether an answer is still to come.
    pub const fn is_waiting(&self) -> bool {
        self.done < self.asked
    }

    /// The next outcome, if there is one.
    pub fn answer(&mut self) -> Option<Outcome> {
        loop {
            match self.answers.try_recv() {
                Ok(Answer::Counted(upto, counts)) => (self.counted, self.counts) = (upto, counts),
                Ok(Answer::Done(upto, outcome)) => {
                    (self.done, self.refused) = (upto, outcome.is_err());
                    return Some(outcome);
                }
                Err(TryRecvError::Disconnected) if !self.ended => {
                    (self.ended, self.done, self.counted) = (true, u64::MAX, u64::MAX);
                    return Some(Err("its thread ended".to_owned()));
                }
                Err(_) => return None,
            }
        }
    }

    /// How many remembered connections of a VIP each next hop has that were heard of lately; `None` until they were counted after
    /// the VIP was spread as it is.
    pub fn counted(&self, prefix: &Prefix) -> Option<BTreeMap<Hop, u32>> {
        match self.told.get(prefix) {
            Some((_, job)) if *job > self.counted => None,
            _ => Some(self.counts.get(prefix).cloned().unwrap_or_default()),
        }
    }

    /// Takes everything away, waiting for it.
    ///
    /// # Errors
    /// Why something is still there.
    pub fn remove(mut self) -> Result<(), String> {
        self.ask(Job::Remove);
        while self.is_waiting() {
            match self.answers.recv().map_err(|e| e.to_string())? {
                Answer::Done(upto, outcome) if upto >= self.asked => return outcome.map(drop),
                Answer::Done(upto, _) => self.done = upto,
                Answer::Counted(..) => {}
            }
        }
        Ok(())
    }
}

/// The prefixes in which others are: the first one after each of them is, if any is.
fn wide(all: &BTreeSet<Prefix>) -> BTreeSet<Prefix> {
    let wide = all.iter().zip(all.iter().skip(1)).filter(|(prefix, next)| prefix.overlaps(next));
    wide.map(|(prefix, _)| *prefix).collect()
}

/// The thread's side: what is to be, and what was written.
struct Desk {
    off: bool,
    marks: Marks,
    ways: Ways,
    netfilter: Option<Netlink>,
    /// VIPs of which somebody drains, or connections may be remembered.
    vips: BTreeMap<Prefix, Spread>,
    /// Whether there may be a table of ours.
    table: bool,
    /// The rules as they were written, and as nft showed them then.
    written: Option<String>,
    shown: Option<String>,
    /// Whether it was found out that it can be done.
    able: bool,
    count_at: Option<Instant>,
    rest_until: Instant,
    retry_at: Option<Instant>,
}

impl Desk {
    fn work(&mut self, jobs: &Receiver<Job>, answers: &Sender<Answer>) {
        let mut upto = 0;
        let mut outcome = Some(self.begin().map(|()| false));
        loop {
            self.retry_at = match &outcome {
                Some(Err(_)) if !self.vips.is_empty() => Some(Instant::now() + RETRY),
                Some(_) => None,
                None => self.retry_at,
            };
            if outcome.take().is_some_and(|outcome| answers.send(Answer::Done(upto, outcome)).is_err()) {
                return;
            }
            if self.count_at.is_some_and(|at| at <= Instant::now())
                && answers.send(Answer::Counted(upto, self.count())).is_err()
            {
                return;
            }
            let job = match self.count_at.into_iter().chain(self.retry_at).min() {
                None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => jobs.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            let (mut check, mut some) = (false, false);
            match job {
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(job) => {
                    for job in std::iter::once(job).chain(jobs.try_iter()) {
                        (upto, some) = (upto + 1, true);
                        match job {
                            Job::Spread(list) => {
                                list.into_iter().for_each(|(p, spread)| self.take(p, spread))
                            }
                            Job::Check => check = true,
                            Job::Remove => {
                                // Nobody asks for more.
                                let _ = answers.send(Answer::Done(upto, self.remove().map(|()| false)));
                                return;
                            }
                        }
                    }
                }
            }
            if some || self.retry_at.is_some_and(|at| at <= Instant::now()) {
                outcome = Some(self.write(check));
            }
        }
    }

    /// Finds out whether it can be done, before anybody drains; what is left of an earlier run for nothing goes.
    fn begin(&mut self) -> Result<(), String> {
        self.table = self.list().is_ok();
        if self.vips.is_empty() {
            self.remove()?;
        }
        if self.off {
            return Ok(());
        }
        let sample = ["192.0.2.1", "2001:db8::1"].into_iter().flat_map(str::parse);
        let sample = sample.map(|address| (Prefix::host(address), vec![(1, 1), (2, 2)])).collect();
        self.able = false;
        nft(&["-c", "-f", "-"], &rules(self.marks, &sample))?;
        self.able = true;
        Ok(())
    }

    fn take(&mut self, prefix: Prefix, spread: Spread) {
        if spread.drains() || self.vips.contains_key(&prefix) {
            self.vips.insert(prefix, spread);
        }
    }

    /// Writes what differs; with `check` what was written is looked at first.
    fn write(&mut self, check: bool) -> Outcome {
        if self.vips.is_empty() {
            let done = if self.able { self.remove() } else { self.begin() };
            return done.map(|()| false);
        }
        self.count_at = Some(self.rest_until.max(Instant::now()));
        let mut mended = check && !self.ways.check().map_err(|e| e.to_string())?;
        let (mut routes, mut shares) = (BTreeMap::new(), BTreeMap::new());
        let mut left_out = 0;
        for (prefix, spread) in &self.vips {
            let numbered: Vec<_> =
                spread.hops.iter().filter_map(|(hop, w)| Some((self.ways.number(*hop)?, *hop, *w))).collect();
            if routes.len() + numbered.len() > ROUTES {
                left_out += 1;
                continue;
            }
            routes.extend(numbered.iter().map(|(n, hop, _)| ((*n, *prefix), *hop)));
            let serving = numbered.iter().filter_map(|(n, _, weight)| Some((*n, (*weight)?)));
            let there = numbered.iter().map(|(n, ..)| (*n, 0));
            shares.insert(*prefix, if spread.drains() { serving.collect() } else { there.collect() });
        }
        let ways = self.ways.set(&routes);
        let text = rules(self.marks, &shares);
        let changed = check && self.shown.is_some() && self.list().ok() != self.shown;
        if changed || self.written.as_ref() != Some(&text) {
            (self.written, self.shown) = (None, None);
            let netfilter = self.netfilter.as_mut().ok_or("the kernel has no nfnetlink")?;
            if !std::mem::replace(&mut self.table, true) {
                // What writes to the maps is there before the first SYN is looked at. If it cannot be, the rest says why.
                let empty = rules(self.marks, &BTreeMap::new());
                let _ = nft(&["-f", "-"], &empty).map(|_| netfilter.memorise(TABLE, &memory()));
            }
            // What cannot be changed as it stands, since it was made by somebody else or another version, is made anew.
            let anew =
                |_| nft(&["-f", "-"], &format!("table inet {TABLE}\ndelete table inet {TABLE}\n{text}"));
            nft(&["-f", "-"], &text).or_else(anew)?;
            netfilter.memorise(TABLE, &memory()).map_err(|e| e.to_string())?;
            self.shown = Some(self.list()?);
            self.written = Some(text);
            mended |= changed;
        }
        ways?;
        self.able = true;
        match left_out {
            0 => Ok(mended),
            n => Err(format!("{n} VIPs would need more than {ROUTES} routes")),
        }
    }

    /// Our table as nft shows it, without what it remembers.
    fn list(&self) -> Result<String, String> {
        nft(&["-s", "-t", "list", "table", "inet", TABLE], "")
    }

    /// Counts the connections. When nobody drains and there are none, all of it goes.
    fn count(&mut self) -> Counts {
        let begun = Instant::now();
        let (mut counts, mut total) = (Counts::new(), 0_usize);
        let Self { ways, vips, netfilter, .. } = self;
        let mut read = netfilter.is_some();
        for (map, afi, at) in MAPS {
            let Some(netfilter) = netfilter else { break };
            let done = netfilter.elements(TABLE, map, |element: Element<'_>| {
                total += 1;
                let Some(address) = rules::address(afi, element.key.get(at..).unwrap_or_default()) else {
                    return;
                };
                let host = Prefix::host(address);
                let vip =
                    vips.get_key_value(&host).or_else(|| vips.iter().find(|(p, _)| p.contains(address)));
                if let (Some((prefix, spread)), Some(hop)) = (vip, ways.member(element.mark))
                    && silence(element.mark, element.expires) < spread.idle
                {
                    *counts.entry(*prefix).or_default().entry(hop).or_default() += 1;
                }
            });
            read &= done.is_ok();
        }
        let drains = self.vips.values().any(Spread::drains);
        if read && !drains && total == 0 && self.written.is_some() {
            self.vips.clear();
            // What cannot be removed now is looked for when there is a next drain, and does nothing meanwhile.
            let _ = self.remove();
            self.count_at = None;
            return counts;
        }
        // At most a tenth of the time goes into it, or a fiftieth.
        let (every, part) = if drains { (DRAINING, 9) } else { (CALM, 49) };
        let now = Instant::now();
        self.rest_until = now + now.saturating_duration_since(begun) * part;
        self.count_at = Some(self.rest_until.max(now + every));
        counts
    }

    fn remove(&mut self) -> Result<(), String> {
        (self.written, self.shown) = (None, None);
        // First those that give marks.
        let rules = if self.table { nft::remove(TABLE) } else { Ok(()) };
        self.table &= rules.is_err();
        let ways = if self.ways.is_empty() { Ok(()) } else { self.ways.set(&BTreeMap::new()) };
        self.ways.forget();
        rules.and(ways)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_wide_if_another_is_in_it() {
        let set = |texts: &[&str]| texts.iter().map(|p| p.parse().unwrap()).collect::<BTreeSet<Prefix>>();
        let all = [
            "10.0.0.0/8",
            "10.0.0.0/9",
            "10.1.0.0/16",
            "10.1.2.3/32",
            "10.2.0.0/16",
            "::/0",
            "2001:db8::/64",
        ];
        assert_eq!(wide(&set(&all)), set(&["10.0.0.0/8", "10.0.0.0/9", "10.1.0.0/16", "::/0"]));
        assert_eq!(wide(&set(&["192.0.2.0/25", "192.0.2.128/25", "192.0.2.1/32"])), set(&["192.0.2.0/25"]));
        assert_eq!(wide(&set(&[])), set(&[]));
    }
}
