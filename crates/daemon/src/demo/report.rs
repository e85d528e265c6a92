//! What the demo says: a line per step while it plays, a table or a JSON object at the end.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use super::connections::Fate;

/// Lines on standard error, each with the time since the start.
pub(super) struct Progress {
    start: Instant,
    colours: bool,
}

/// What came out.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Requests answered, by gateway.
    pub(super) gateways: BTreeMap<String, u64>,
    /// What the client noticed of each event, in order.
    pub(super) events: Vec<Measured>,
    /// What became of connections that were held open, by hashing and event.
    pub(super) connections: Vec<Fate>,
    /// Expectations that did not hold.
    pub(super) problems: Vec<String>,
}

/// What the client noticed of an event, until the next one.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) name: &'static str,
    pub(super) about: String,
    /// Requests lost.
    pub(super) lost: u64,
    /// Their reasons, counted.
    pub(super) why: String,
    /// The longest time without any answer.
    pub(super) gap: Duration,
    /// When the last one that was lost began, after the event.
    pub(super) settled: Duration,
}

impl Progress {
    pub(super) fn new() -> Self {
        let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { start: Instant::now(), colours }
    }

    /// Something is so.
    pub(super) fn say(&self, text: &str) {
        self.line("", text);
    }

    /// Something is done to the fleet.
    pub(super) fn event(&self, text: &str) {
        self.line("\x1b[1;33m", text);
    }

    /// A command to try.
    pub(super) fn hint(&self, about: &str, command: &str) {
        write(&mut io::stderr(), &format!("          {about:<8}{command}\n"));
    }

    /// Lines of somebody else.
    pub(super) fn quote(&self, about: &str, text: &str) {
        self.line("", &format!("{about}:"));
        for line in text.lines() {
            write(&mut io::stderr(), &format!("          | {line}\n"));
        }
    }

    fn line(&self, colour: &str, text: &str) {
        let elapsed = self.start.elapsed().as_secs_f64();
        let line = match (self.colours, colour) {
            (true, "") => format!("\x1b[2m{elapsed:6.1} s\x1b[0m  {text}\n"),
            (true, _) => format!("\x1b[2m{elapsed:6.1} s\x1b[0m  {colour}{text}\x1b[0m\n"),
            (false, _) => format!("{elapsed:6.1} s  {text}\n"),
        };
        write(&mut io::stderr(), &line);
    }
}

impl Outcome {
    /// Prints it to standard output, and the problems to standard error.
    pub(super) fn print(&self, json: bool) {
        for problem in &self.problems {
            write(&mut io::stderr(), &format!("error: {problem}\n"));
        }
        write(&mut io::stdout(), &if json { format!("{:#}\n", self.json()) } else { self.table() });
    }

    fn json(&self) -> serde_json::Value {
        let event = |e: &Measured| {
            serde_json::json!({
                "name": e.name,
                "requests_lost": e.lost,
                "gap_ms": milliseconds(e.gap),
                "last_loss_ms": (e.lost > 0).then(|| milliseconds(e.settled)),
            })
        };
        let fate = |f: &Fate| {
            serde_json::json!({
                "hashing": f.hashing,
                "event": f.event,
                "on_survivors": f.on_survivors,
                "broken": f.broken,
            })
        };
        serde_json::json!({
            "gateways": self.gateways,
            "events": self.events.iter().map(event).collect::<Vec<_>>(),
            "connections": self.connections.iter().map(fate).collect::<Vec<_>>(),
            "problems": self.problems,
            "ok": self.problems.is_empty(),
        })
    }

    fn table(&self) -> String {
        let mut text = String::new();
        if self.events.is_empty() {
            return text;
        }
        let total = self.gateways.values().sum::<u64>().max(1);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n{:<44}{:>8}{:>8}", "gateway", "answered", "share");
        for (name, count) in &self.gateways {
            let _ = writeln!(text, "{name:<44}{count:>8}{:>6} %", (count * 100 + total / 2) / total);
        }
        let head = ["event", "requests lost", "longest gap", "last loss after"];
        let _ = writeln!(text, "\n{:<44}{:>15}{:>14}{:>17}", head[0], head[1], head[2], head[3]);
        for event in &self.events {
            let last =
                if event.lost == 0 { "-".to_owned() } else { format!("{} ms", milliseconds(event.settled)) };
            let _ = writeln!(
                text,
                "{:<44}{:>15}{:>14}{last:>17}   {}",
                event.name_and_about(),
                event.lost,
                format!("{} ms", milliseconds(event.gap)),
                event.why
            );
        }
        text += &self.fates();
        let verdict = if self.problems.is_empty() { "Everything held." } else { "Not everything held." };
        let _ = writeln!(text, "\n{verdict}");
        text
    }
}

impl Outcome {
    /// A line for each hashing: how many of the connections broke that were on gateways still there.
    fn fates(&self) -> String {
        let mut events: Vec<&str> = self.connections.iter().map(|f| f.event).collect();
        events.dedup();
        let mut lines = BTreeMap::<&str, String>::new();
        for fate in &self.connections {
            let cell = format!("{} of {}", fate.broken, fate.on_survivors);
            // Writing to a string cannot fail.
            let _ = write!(lines.entry(fate.hashing).or_default(), "{cell:>14}");
        }
        let mut text = String::new();
        if !lines.is_empty() {
            let head: String = events.iter().map(|event| format!("{event:>14}")).collect();
            let _ = writeln!(text, "\n{:<44}{head}", "connections broken on gateways still there");
        }
        for (hashing, cells) in lines {
            let _ = writeln!(text, "{hashing:<44}{cells}");
        }
        text
    }
}

impl Measured {
    fn name_and_about(&self) -> String {
        format!("{:<10} {}", self.name, self.about.split(':').next().unwrap_or_default())
    }
}

fn milliseconds(duration: Duration) -> u64 {
    // A demo lasts seconds.
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A reader that has gone is no failure of ours.
fn write(to: &mut dyn io::Write, text: &str) {
    let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(problems: Vec<String>) -> Outcome {
        let event = Measured {
            name: "killed",
            about: "gw3 is killed".to_owned(),
            lost: 2,
            why: "2 refused".to_owned(),
            gap: Duration::from_micros(8900),
            settled: Duration::from_millis(7),
        };
        Outcome {
            gateways: [("gw1".to_owned(), 3), ("gw2".to_owned(), 1)].into(),
            events: vec![event],
            connections: ["drained", "killed"]
                .into_iter()
                .flat_map(|event| {
                    let fate = |hashing, broken| Fate { hashing, event, on_survivors: 400, broken };
                    [fate("plain", 120), fate("resilient", 0)]
                })
                .collect(),
            problems,
        }
    }

    #[test]
    fn the_object_names_gateways_and_events_and_is_ok_without_problems() {
        let json = outcome(Vec::new()).json();
        assert_eq!(json["gateways"], serde_json::json!({ "gw1": 3, "gw2": 1 }));
        assert_eq!(
            json["events"],
            serde_json::json!([{ "name": "killed", "requests_lost": 2, "gap_ms": 8, "last_loss_ms": 7 }])
        );
        assert_eq!(
            json["connections"][2],
            serde_json::json!({ "hashing": "plain", "event": "killed", "on_survivors": 400, "broken": 120 })
        );
        assert_eq!(json["ok"], true);
        assert_eq!(outcome(vec!["gw1 slept".to_owned()]).json()["ok"], false);
    }

    #[test]
    fn the_table_shows_shares_and_losses() {
        let table = outcome(Vec::new()).table();
        assert!(table.lines().any(|l| l.starts_with("gw1") && l.ends_with("75 %")), "{table}");
        assert!(
            table.lines().any(|l| l.starts_with("killed") && l.contains("8 ms") && l.ends_with("2 refused"))
        );
        let words = |start: &str| {
            let line = table.lines().find(|l| l.starts_with(start)).unwrap_or_default();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert!(words("connections broken").ends_with("drained killed"), "{table}");
        assert_eq!(words("plain"), "plain 120 of 400 120 of 400");
        assert_eq!(words("resilient"), "resilient 0 of 400 0 of 400");
        assert!(table.ends_with("Everything held.\n"));
    }
}
