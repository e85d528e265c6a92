//! Durations, as they are written, read and shown: `500ms`, `1m30s`, `200ms x 5`.

use std::time::Duration;

use serde_json::{Value as JsonValue, json};
use standfast_core::plan;

use super::{Complaint, FromText, integer, pattern};

impl FromText for Duration {
    const WHAT: &'static str = "a duration such as 500ms, 5s or 1m30s";
    fn from_text(text: &str) -> Result<Self, Complaint> {
        let not = || {
            other_unit(text).map_or_else(
                || Complaint::new("is not a duration; write it like 500ms, 5s or 1m30s"),
                |right| {
                    Complaint::new("is not a duration in h, m, s, ms, us or ns")
                        .help(format!("write {right}"))
                },
            )
        };
        if text == "0" {
            return Ok(Self::ZERO);
        }
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            return Err(Complaint::new("has no unit")
                .help(format!("write {text}s for seconds or {text}ms for milliseconds")));
        }
        if text.starts_with('-') {
            return Err(Complaint::new("is negative"));
        }
        let mut total: u128 = 0;
        let mut rest = text;
        let mut last = u128::MAX;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(not)?;
            let (number, after) = rest.split_at(digits);
            let unit_len = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
            let (unit, after) = after.split_at(unit_len);
            let nanos: u128 = match unit {
                "ns" => 1,
                "us" | "µs" | "μs" => 1_000,
                "ms" => 1_000_000,
                "s" => 1_000_000_000,
                "m" => 60_000_000_000,
                "h" => 3_600_000_000_000,
                _ => return Err(not()),
            };
            if nanos >= last {
                return Err(not());
            }
            last = nanos;
            total += part(number, nanos).ok_or_else(not)?;
            rest = after;
        }
        match u64::try_from(total) {
            Ok(nanos) if !text.is_empty() && nanos <= MAX_DURATION => Ok(Self::from_nanos(nanos)),
            Ok(_) if text.is_empty() => Err(not()),
            _ => Err(Complaint::new("is longer than a year")),
        }
    }
    fn text_schema() -> JsonValue {
        let part = |unit: &str| format!(r"(?:[0-9]+(?:\.[0-9]+)?{unit})?");
        let parts: String = ["h", "m", "s", "ms", "(?:us|µs|μs)", "ns"].map(part).concat();
        json!({ "anyOf": [pattern(&format!("0|(?=[0-9]){parts}")), { "const": 0 }] })
    }
    fn text_kind() -> String {
        "duration".into()
    }
}

/// A limit and how many runs in a row may exceed it: `200ms x 5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slow(pub(crate) plan::Slow);

impl FromText for Slow {
    const WHAT: &'static str = "a duration and a number of runs such as `200ms x 5`";
    const EMPTY_IS_ABSENT: bool = true;
    fn from_text(text: &str) -> Result<Self, Complaint> {
        let (limit, times) = match text.split_once('x') {
            Some((limit, times)) => (limit.trim_end(), times.trim_start()),
            None => (text, "1"),
        };
        let wrong =
            || Complaint::new("is not a duration and a number of runs").help("write it like 200ms x 5");
        let limit = Duration::from_text(limit).map_err(|_| wrong())?;
        let times = integer(times).ok().and_then(|n| u32::try_from(n).ok()).ok_or_else(wrong)?;
        if limit.is_zero() {
            return Err(Complaint::new("makes every run a slow one").help("write a limit of more than 0"));
        }
        if !(1..=1000).contains(&times) {
            return Err(Complaint::new(format!("has {times} runs, which is not between 1 and 1000")));
        }
        Ok(Self(plan::Slow { limit, times }))
    }
    fn text_schema() -> JsonValue {
        pattern("[0-9].*")
    }
    fn text_kind() -> String {
        "duration x number".into()
    }
}

/// A duration in a unit that others know, as it is written here.
fn other_unit(text: &str) -> Option<String> {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = (&text[..at], text[at..].trim());
    let nanos = match unit.to_ascii_lowercase().as_str() {
        "d" | "day" | "days" => 86_400_000_000_000,
        "w" | "week" | "weeks" => 604_800_000_000_000,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3_600_000_000_000,
        "m" | "min" | "mins" | "minute" | "minutes" => 60_000_000_000,
        "s" | "sec" | "secs" | "second" | "seconds" => 1_000_000_000,
        "ms" | "msec" | "msecs" | "millis" | "milliseconds" => 1_000_000,
        "us" | "usec" | "usecs" | "micros" | "microseconds" => 1_000,
        _ => return None,
    };
    let whole = part(number, nanos).filter(|&nanos| nanos <= u128::from(MAX_DURATION))?;
    Some(show(Duration::from_nanos(u64::try_from(whole).ok()?)))
}

fn part(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || whole.len() > 12 || fraction.len() > 9 {
        return None;
    }
    let whole: u128 = whole.parse().ok()?;
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    Some(whole * unit + fraction.parse::<u128>().ok()? * unit / scale)
}

/// A duration that is written as in the configuration.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    Duration::from_text(text).map_err(|c| {
        let help = c.help.map(|help| format!("; {help}")).unwrap_or_default();
        format!("`{text}` {}{help}", c.message)
    })
}

/// A duration as the configuration writes it.
pub(crate) fn show(d: Duration) -> String {
    let nanos = d.as_nanos();
    if nanos == 0 {
        return "0s".into();
    }
    let mut out = String::new();
    let mut rest = nanos;
    for (unit, size) in [
        ("h", 3_600_000_000_000),
        ("m", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
        ("ns", 1),
    ] {
        if rest >= size {
            out.push_str(&format!("{}{unit}", rest / size));
            rest %= size;
        }
    }
    out
}

/// A year, in nanoseconds.
const MAX_DURATION: u64 = 366 * 24 * 3_600 * 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn ok<T: FromText>(text: &str) -> Option<T> {
        T::from_text(text).ok()
    }

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, nanos) in [
            ("500ms", 500_000_000),
            ("5s", 5_000_000_000),
            ("1m30s", 90_000_000_000),
            ("1h0m5s", 3_605_000_000_000),
            ("1.5s", 1_500_000_000),
            ("0.25ms", 250_000),
            ("10us", 10_000),
            ("10µs", 10_000),
            ("7ns", 7),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(ok::<Duration>(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
        for text in [
            "",
            "5",
            "s",
            "1.s",
            ".5s",
            "1s1s",
            "1s1m",
            "-1s",
            "2 sec",
            "1d",
            "99999999h",
            "1e3s",
            "9999999999999999999s",
            "1..5s",
        ] {
            assert_eq!(ok::<Duration>(text), None, "{text}");
        }
    }

    #[test]
    fn a_duration_is_shown_as_it_is_read() {
        for text in ["500ms", "5s", "1m30s", "1h5s", "1s500ms", "0s", "7ns"] {
            assert_eq!(show(ok::<Duration>(text).unwrap()), text);
        }
    }
}
