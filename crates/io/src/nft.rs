//! Public addresses of the listener's VIPs: translated with nftables, in a table of our own.
//!
//! The table is text for `nft -f -`: one transaction takes the old one's place, so that there is no moment without it, and flows
//! that are known to conntrack keep their translation whatever the rules say. `nft` runs on a thread of its own, because it takes
//! milliseconds. Our table is read back and compared with what it was after it was written, so that a change by somebody else
//! is found without understanding it.

use standfast_core::plan::{ListenerVip, Public};
use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

/// The name of our table, of family `inet`.
pub const TABLE: &str = "standfast_public";

/// What the rules are to be, and the thread that writes them.
#[derive(Debug)]
pub struct Translation {
    jobs: Sender<Job>,
    answers: Receiver<Answer>,
    /// Jobs without an answer.
    waiting: usize,
    /// What the table is to be; `None`: there is nothing to translate.
    rules: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Job {
    /// From now on the table is to be this one.
    Change(Option<String>),
    /// Look whether the table is as it was written, and write it if not.
    Check,
    Remove,
}

/// What came of it: whether somebody else had changed the table, or why it could not be written.
pub type Answer = Result<bool, String>;

impl Translation {
    /// Begins to translate the public addresses of these VIPs. Without any, what an earlier run translated ends.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn new<'a>(vips: impl Iterator<Item = &'a ListenerVip>) -> io::Result<Self> {
        let rules = rules(vips);
        let (jobs, work) = channel::<Job>();
        let (answer, answers) = channel();
        // It ends when `jobs` is dropped, and belongs to the network namespace of this thread.
        let first = rules.clone();
        thread::Builder::new().name("nft".to_owned()).spawn(move || {
            let mut table = Table { rules: first, written: None };
            for job in work {
                let done = match job {
                    Job::Change(rules) => {
                        (table.rules, table.written) = (rules, None);
                        table.check()
                    }
                    Job::Check => table.check(),
                    Job::Remove => remove(TABLE).map(|()| false),
                };
                let done = done.map_err(|why| format!("cannot translate public addresses: {why}"));
                if answer.send(done).is_err() {
                    return;
                }
            }
        })?;
        let mut translation = Self { jobs, answers, waiting: 0, rules };
        translation.ask(Job::Check);
        Ok(translation)
    }

    /// Translates the public addresses of these VIPs from now on. Connections that are translated stay so.
    pub fn change<'a>(&mut self, vips: impl Iterator<Item = &'a ListenerVip>) {
        let rules = rules(vips);
        if rules != self.rules {
            self.rules.clone_from(&rules);
            self.ask(Job::Change(rules));
        }
    }

    /// Has the table looked at, unless that is being done or there is none.
    pub fn check(&mut self) {
        if self.waiting == 0 && self.rules.is_some() {
            self.ask(Job::Check);
        }
    }

    fn ask(&mut self, job: Job) {
        if self.jobs.send(job).is_ok() {
            self.waiting += 1;
        }
    }

    /// Whether an answer is still to come.
    pub const fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// The next answer, if there is one.
    pub fn answer(&mut self) -> Option<Answer> {
        let answer = match self.answers.try_recv() {
            Ok(answer) => answer,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) if self.waiting == 0 => return None,
            Err(TryRecvError::Disconnected) => Err("the thread of nft ended".to_owned()),
        };
        self.waiting = self.waiting.saturating_sub(1);
        Some(answer)
    }

    /// Takes the table away, waiting for it.
    ///
    /// # Errors
    /// Why it is still there.
    pub fn remove(mut self) -> Result<(), String> {
        if self.rules.is_some() {
            self.ask(Job::Remove);
        }
        let mut last = Ok(false);
        while self.waiting > 0 {
            last = self.answers.recv().map_err(|e| e.to_string())?;
            self.waiting -= 1;
        }
        last.map(drop)
    }
}

/// The thread's side: what the table is to be, and how it looked when it was written.
struct Table {
    rules: Option<String>,
    written: Option<String>,
}

impl Table {
    fn check(&mut self) -> Answer {
        let Some(rules) = &self.rules else {
            // Without nft there is no table of ours either.
            return if list().is_ok() { remove(TABLE).map(|()| false) } else { Ok(false) };
        };
        if self.written.is_some() && list().ok() == self.written {
            return Ok(false);
        }
        nft(&["-f", "-"], rules)?;
        let changed = self.written.is_some();
        self.written = Some(list()?);
        Ok(changed)
    }
}

/// Our table as nft shows it, without counters.
fn list() -> Result<String, String> {
    nft(&["-s", "list", "table", "inet", TABLE], "")
}

/// Takes away a table of family `inet`, if it is there.
pub(crate) fn remove(table: &str) -> Result<(), String> {
    // To declare it first makes its removal succeed whether or not it is there.
    nft(&["-f", "-"], &format!("table inet {table}\ndelete table inet {table}\n")).map(drop)
}

/// Runs nft; its output, or what it said.
pub(crate) fn nft(arguments: &[&str], input: &str) -> Result<String, String> {
    run("nft", arguments, input)
}

fn run(program: &str, arguments: &[&str], input: &str) -> Result<String, String> {
    let run = || {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let mut stdin = child.stdin.take();
        // It reads everything before it says anything, so that this cannot block for ever.
        let written = stdin.as_mut().map_or(Ok(()), |s| s.write_all(input.as_bytes()));
        drop(stdin);
        let output = child.wait_with_output()?;
        // One that fails early need not read.
        if output.status.success() { written.map(|()| output) } else { Ok(output) }
    };
    match run() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Err("there is no program nft (install the package nftables)".to_owned())
        }
        Err(e) => Err(format!("nft: {e}")),
        Ok(output) if !output.status.success() => {
            let mut words = String::new();
            // Its first lines say what is wrong; the rest quotes the rules.
            let _ = output.stderr.take(2048).read_to_string(&mut words);
            let first = words.lines().next().unwrap_or("it says nothing");
            Err(format!("nft: {first}"))
        }
        Ok(output) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
    }
}

/// The whole table in one transaction.
fn rules<'a>(vips: impl Iterator<Item = &'a ListenerVip>) -> Option<String> {
    let (mut lines, mut answers) = (String::new(), String::new());
    for vip in vips {
        let Some(Public { address, ports }) = &vip.public else { continue };
        let family = if address.is_ipv4() { "ip" } else { "ip6" };
        let to: IpAddr = vip.prefix.address();
        let list = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
        let matched = |port: &str| match &list[..] {
            "" => String::new(),
            list => format!("meta l4proto {{ tcp, udp }} th {port} {{ {list} }} "),
        };
        // Writing to a String does not fail.
        let _ = writeln!(lines, "    {family} daddr {address} {}dnat {family} to {to}", matched("dport"));
        let _ = writeln!(answers, "    {family} saddr {to} {}snat {family} to {address}", matched("sport"));
    }
    if lines.is_empty() {
        return None;
    }
    let chain =
        |hook: &str| format!("  chain {hook} {{\n    type nat hook {hook} priority -100;\n{lines}  }}\n");
    // Packets of this host itself, such as checks, pass through the second chain alone. The last one is for a flow that comes over
    // from another listener and whose gateway speaks first: conntrack would take its answer for a flow of its own.
    Some(format!(
        "table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n{}{}  \
         chain postrouting {{\n    type nat hook postrouting priority 100;\n{answers}  }}\n}}\n",
        chain("prerouting"),
        chain("output")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vip(prefix: &str, public: Option<(&str, &[u16])>) -> ListenerVip {
        let public = public.map(|(a, ports)| Public { address: a.parse().unwrap(), ports: ports.to_vec() });
        ListenerVip { public, ..ListenerVip::new(prefix.parse().unwrap()) }
    }

    #[test]
    fn rules_are_one_transaction_over_a_table_of_our_own() {
        let vips = [
            vip("198.51.100.10/32", Some(("203.0.113.5", &[80, 443]))),
            vip("198.51.100.11/32", None),
            vip("2001:db8:100::10/128", Some(("2001:db8:200::5", &[]))),
        ];
        let text = rules(vips.iter()).unwrap();
        assert!(
            text.starts_with("table inet standfast_public\ndelete table inet standfast_public\ntable inet")
        );
        for line in [
            "ip daddr 203.0.113.5 meta l4proto { tcp, udp } th dport { 80, 443 } dnat ip to 198.51.100.10\n",
            "ip6 daddr 2001:db8:200::5 dnat ip6 to 2001:db8:100::10\n",
        ] {
            assert_eq!(text.matches(line).count(), 2, "{text}");
        }
        for line in [
            "ip saddr 198.51.100.10 meta l4proto { tcp, udp } th sport { 80, 443 } snat ip to 203.0.113.5\n",
            "ip6 saddr 2001:db8:100::10 snat ip6 to 2001:db8:200::5\n",
        ] {
            assert_eq!(text.matches(line).count(), 1, "{text}");
        }
        assert_eq!(rules(vips[1..2].iter()), None);
    }

    #[test]
    fn where_nft_is_missing_or_refuses_it_is_said_what_to_do() {
        let words = run("nft-is-not-here", &[], "").unwrap_err();
        assert!(words.contains("install the package nftables"), "{words}");
        let words = run("sh", &["-c", "echo 'Error: no' >&2; exit 1"], &"x".repeat(1 << 20)).unwrap_err();
        assert_eq!(words, "nft: Error: no");
    }
}
