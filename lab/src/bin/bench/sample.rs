//! Figures: medians, percentiles, and the table that shows them.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// One line of the table: what one program took for one thing.
pub(crate) struct Row {
    what: &'static str,
    who: &'static str,
    runs: String,
    median: f64,
    p99: Option<f64>,
    unit: Unit,
}

#[derive(Clone, Copy)]
enum Unit {
    Milliseconds,
    Megabytes,
    Percent,
    Microseconds,
}

impl Row {
    /// From how long each of `wanted` runs took; fewer if some did not end.
    pub(crate) fn times(what: &'static str, who: &'static str, wanted: usize, times: &[Duration]) -> Self {
        let runs =
            if times.len() == wanted { wanted.to_string() } else { format!("{} of {wanted}", times.len()) };
        let (median, p99) = (percentile(times, 50), Some(percentile(times, 99)));
        Self { what, who, runs, median, p99, unit: Unit::Milliseconds }
    }

    /// From one reading of memory.
    pub(crate) fn memory(what: &'static str, who: &'static str, kib: u64) -> Self {
        let median = f64::from(u32::try_from(kib).unwrap_or(u32::MAX)) / 1024.0;
        Self { what, who, runs: "1".to_owned(), median, p99: None, unit: Unit::Megabytes }
    }

    /// From one share of a whole, in percent: of one processor, or of all runs.
    pub(crate) fn share(what: &'static str, who: &'static str, percent: f64) -> Self {
        Self { what, who, runs: "1".to_owned(), median: percent, p99: None, unit: Unit::Percent }
    }

    /// The same, of so many runs.
    pub(crate) fn share_of(what: &'static str, who: &'static str, runs: u64, percent: f64) -> Self {
        Self { runs: runs.to_string(), ..Self::share(what, who, percent) }
    }

    /// From what so many runs took together, in microseconds for each.
    pub(crate) fn each(what: &'static str, who: &'static str, runs: u64, micros: f64) -> Self {
        Self { what, who, runs: runs.to_string(), median: micros, p99: None, unit: Unit::Microseconds }
    }

    /// The same, of other runs.
    pub(crate) fn of(self, runs: String) -> Self {
        Self { runs, ..self }
    }

    /// Where there is no figure, and why.
    pub(crate) fn nothing(what: &'static str, who: &'static str, why: &str) -> Self {
        Self { what, who, runs: why.to_owned(), median: f64::NAN, p99: None, unit: Unit::Percent }
    }

    fn show(&self, figure: f64) -> String {
        match self.unit {
            _ if figure.is_nan() => String::new(),
            Unit::Milliseconds => format!("{figure:.2} ms"),
            Unit::Megabytes => format!("{figure:.1} MiB"),
            Unit::Percent => format!("{figure:.2} %"),
            Unit::Microseconds => format!("{figure:.1} us"),
        }
    }
}

/// The time, in milliseconds, that so many percent of these do not exceed; not a number without any.
pub(crate) fn percentile(times: &[Duration], percent: usize) -> f64 {
    let mut sorted: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(rank).copied().unwrap_or(f64::NAN)
}

/// The rows as Markdown, with everybody's figure for one thing together. Each peer's line says what share of the peer's median standfast's is.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text =
        "| what | who | runs | median | p99 | standfast / peer |\n|---|---|---|---|---|---|\n".to_owned();
    let place = |row: &Row| rows.iter().position(|other| other.what == row.what);
    let mut together: Vec<&Row> = rows.iter().collect();
    together.sort_by_key(|row| place(row));
    for row in together {
        let ours = rows.iter().find(|other| other.what == row.what && other.who == STANDFAST);
        let ratio = match ours {
            Some(ours) if row.who != STANDFAST && !row.median.is_nan() => ratio(ours.median / row.median),
            _ => String::new(),
        };
        let p99 = row.p99.map_or_else(String::new, |p99| row.show(p99));
        let (what, who, runs, median) = (row.what, row.who, &row.runs, row.show(row.median));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {what} | {who} | {runs} | {median} | {p99} | {ratio} |");
    }
    text
}

/// A ratio with two digits that mean something.
pub(crate) fn ratio(ratio: f64) -> String {
    if ratio < 0.1 { format!("{ratio:.4}") } else { format!("{ratio:.2}") }
}

/// The wall clock, which is also the clock of captured packets.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970")
}

/// How standfast is called in the table.
pub(crate) const STANDFAST: &str = "standfast";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_the_99th_percentile_are_those_of_the_sorted_times() {
        let times: Vec<_> = (1..=200).rev().map(Duration::from_millis).collect();
        let row = Row::times("x", STANDFAST, 200, &times);
        assert_eq!((row.median, row.p99), (100.0, Some(198.0)));
        assert_eq!(Row::times("x", STANDFAST, 3, &times[..1]).runs, "1 of 3");
    }

    #[test]
    fn a_peers_line_holds_our_share_of_its_median() {
        let rows = [
            Row::times("x", STANDFAST, 1, &[Duration::from_millis(1)]),
            Row::times("x", "BIRD", 1, &[Duration::from_millis(4)]),
        ];
        let text = table(&rows);
        assert_eq!(text.lines().last(), Some("| x | BIRD | 1 | 4.00 ms | 4.00 ms | 0.25 |"));
    }
}
