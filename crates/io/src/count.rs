//! Counts the connections of VIPs that drain, each second, on a thread of its own: a host with a million of them keeps nobody
//! waiting but this thread, which rests nine times as long as it takes.

use standfast_core::node::Input;
use standfast_core::prefix::Prefix;
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::drive::Handle;
use crate::netlink::{Sockets, Tracked};

/// From the start of one count to the start of the next.
const PERIOD: Duration = Duration::from_secs(1);

/// A VIP, whether what is forwarded to it is counted and not this host's own sockets, and its prefixes if it is to be counted.
type Want = (String, bool, Option<Vec<Prefix>>);
/// VIPs with their prefixes.
type Vips = BTreeMap<String, Vec<Prefix>>;
/// The connections at each of some sets of prefixes.
type Count<'a> = &'a mut dyn FnMut(&[&[Prefix]]) -> io::Result<Vec<u64>>;

/// Whoever counts. The thread ends when this is dropped.
pub(crate) struct Counter(Sender<Want>);

impl Counter {
    /// Starts the thread, in this thread's network namespace.
    pub(crate) fn start(handle: Handle) -> io::Result<Self> {
        let (sender, receiver) = channel();
        thread::Builder::new().name("count".to_owned()).spawn(move || run(&receiver, &handle))?;
        Ok(Self(sender))
    }

    /// Counts the connections at the prefixes of `vip` from now on, or none of it any more.
    pub(crate) fn want(&self, vip: String, tracked: bool, prefixes: Option<Vec<Prefix>>) {
        // The thread ends after this only.
        let _ = self.0.send((vip, tracked, prefixes));
    }
}

fn run(receiver: &Receiver<Want>, handle: &Handle) {
    let (mut own, mut forwarded) = (Vips::new(), Vips::new());
    let mut next = Instant::now();
    loop {
        let change = if own.is_empty() && forwarded.is_empty() {
            next = Instant::now();
            receiver.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            receiver.recv_timeout(next.saturating_duration_since(Instant::now()))
        };
        match change {
            Ok((vip, tracked, prefixes)) => {
                let vips = if tracked { &mut forwarded } else { &mut own };
                match prefixes {
                    Some(prefixes) => drop(vips.insert(vip, prefixes)),
                    None => [&mut own, &mut forwarded].into_iter().for_each(|v| drop(v.remove(&vip))),
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                let begun = Instant::now();
                let mut told = count(&own, &mut |at| Sockets::new()?.connections(at));
                told.extend(count(&forwarded, &mut |at| Tracked::new()?.connections(at)));
                handle.send_all(told);
                next = begun + PERIOD.max(begun.elapsed() * 10);
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// What the speaker is told of the connections of each VIP: how many, or why nobody knows.
fn count(vips: &Vips, count: Count<'_>) -> Vec<Input> {
    if vips.is_empty() {
        return Vec::new();
    }
    let at: Vec<&[Prefix]> = vips.values().map(Vec::as_slice).collect();
    let counts: Vec<Result<u64, String>> = match count(&at) {
        Ok(counts) => counts.into_iter().map(Ok).collect(),
        Err(e) => vec![Err(e.to_string()); vips.len()],
    };
    vips.keys().zip(counts).map(|(vip, n)| Input::Connections(vip.clone(), n)).collect()
}
