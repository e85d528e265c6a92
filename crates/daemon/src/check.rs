//! `standfast check`, `report` and `undamp`: a run on demand, a verdict from outside, and the end of a damping, asked of a
//! running daemon.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use crate::client::{Answer, Api};
use crate::{cli, config};

/// How long a run, and those before it, may take.
const RUN: Duration = Duration::from_secs(120);
/// How long a report, or the end of a damping, may take.
const REPORT: Duration = Duration::from_secs(5);

/// What is reported.
#[derive(Debug)]
pub struct Report<'a> {
    /// The VIP.
    pub vip: &'a str,
    /// Its check of type push; `None`: its only one.
    pub check: Option<&'a str>,
    /// Whether the service is good.
    pub ok: bool,
    /// Why.
    pub reason: &'a str,
    /// The share of the VIP's bandwidth that it asks for, in percent; `None`: as it asked last.
    pub share: Option<u8>,
    /// For how long it holds; `None`: for as long as the check says.
    pub lease: Option<Duration>,
}

/// Runs the checks of a VIP, or one of them, and prints what they said. Exit code 1 if that is not good, 2 if there is no such
/// check, 3 if the daemon cannot be reached.
pub fn run(api: &Api, vip: &str, name: Option<&str>, json: bool) -> ExitCode {
    let (vip, name) = named(vip, name);
    let mut path = format!("/api/v1/vips/{}/check", encode(vip));
    if let Some(name) = name {
        let _ = write!(path, "?check={}", encode(name));
    }
    let answer = match asked(api, api.ask(&Method::POST, &path, None, RUN)) {
        Ok(answer) => answer,
        Err(code) => return code,
    };
    let text = if json { format!("{:#}\n", answer.value) } else { render(&answer.value) };
    match cli::print(&text) {
        code if code != ExitCode::SUCCESS => code,
        _ if answer.value["result"]["success"] == true => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Reports a verdict. Exit code 2 if it was refused, 3 if the daemon cannot be reached.
pub fn report(api: &Api, report: &Report<'_>) -> ExitCode {
    let (vip, check) = named(report.vip, report.check);
    let vip = encode(vip);
    let path = match check {
        Some(check) => format!("/api/v1/vips/{vip}/checks/{}/report", encode(check)),
        None => format!("/api/v1/vips/{vip}/report"),
    };
    let mut body = json!({ "ok": report.ok, "reason": report.reason });
    if let Some(share) = report.share {
        body["share"] = share.into();
    }
    if let Some(lease) = report.lease {
        body["lease"] = config::show(lease).into();
    }
    match asked(api, api.ask(&Method::POST, &path, Some(&body), REPORT)) {
        Ok(_) => ExitCode::SUCCESS,
        Err(code) => code,
    }
}

/// Has the daemon forget the failures of a VIP, and prints what became of it. Exit code 2 if it was refused, 3 if the daemon
/// cannot be reached.
pub fn undamp(api: &Api, vip: &str) -> ExitCode {
    let path = format!("/api/v1/vips/{}/undamp", encode(vip));
    match asked(api, api.ask(&Method::POST, &path, None, REPORT)) {
        Ok(answer) => {
            let word = |key: &str| answer.value[key].as_str().unwrap_or_default().to_owned();
            let held = match answer.value["was_held"].as_f64() {
                Some(seconds) => format!("was held for {seconds:.0} s more"),
                None => "was not held".to_owned(),
            };
            cli::print(&format!("{vip} {held}; it is {}: {}\n", word("state_name"), word("reason")))
        }
        Err(code) => code,
    }
}

/// The answer, or why there is none, said on standard error.
pub(crate) fn asked(api: &Api, answer: Result<Answer, String>) -> Result<Answer, ExitCode> {
    match answer {
        Ok(answer) if answer.status.is_success() => Ok(answer),
        Ok(answer) => {
            eprintln!("standfast: {}", answer.error().unwrap_or("the daemon refused"));
            for key in ["vips", "checks", "members"] {
                let names: Vec<_> =
                    answer.value[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                if !names.is_empty() {
                    eprintln!("  there is: {}", names.join(", "));
                }
            }
            let server = answer.status.is_server_error();
            Err(ExitCode::from(if server { cli::UNREACHABLE } else { cli::WRONG }))
        }
        Err(why) => Err(cli::unreachable(api, &why)),
    }
}

/// A VIP and one of its checks, which may be given as VIP/NAME too: no name holds a slash.
fn named<'a>(vip: &'a str, check: Option<&'a str>) -> (&'a str, Option<&'a str>) {
    match (check, vip.split_once('/')) {
        (None, Some((vip, check))) => (vip, Some(check)),
        (check, _) => (vip, check),
    }
}

/// A name as it stands in a URL.
pub(crate) fn encode(name: &str) -> String {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    name.bytes().map(|b| if fine(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// The answer as a person reads it.
fn render(answer: &Value) -> String {
    let mut text = String::new();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for (name, result) in answer["results"].as_object().into_iter().flatten() {
        let how = match (result["ran"] == false, word(&result["outcome"]).as_str()) {
            (true, "good") => "good (reported)",
            (true, "bad") => "bad (reported)",
            (true, _) => "unknown",
            (false, "good") => "good",
            (false, "bad") => "bad",
            (false, _) => "no result",
        };
        let took = result["duration"].as_u64().filter(|_| result["ran"] != false);
        let took = took.map_or(String::new(), |nanos| format!(" in {}", time(nanos)));
        let but = match result["counted"]["detail"].as_str() {
            Some(why) => format!(" (counts as {}: {why})", word(&result["counted"]["outcome"])),
            None => String::new(),
        };
        let _ = writeln!(text, "{name}: {how}{took}: {}{but}", word(&result["detail"]));
        for line in details(&result["details"]) {
            let _ = writeln!(text, "    {line}");
        }
    }
    let _ = writeln!(
        text,
        "{} is {} and {}: {}",
        word(&answer["vip"]),
        word(&answer["health_name"]),
        word(&answer["state_name"]),
        word(&answer["reason"])
    );
    text
}

/// What a run saw, line by line: first what it asked, then how long that took, then the answer.
fn details(details: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let text = |key: &str| details[key].as_str().map(str::to_owned);
    // An end without a port, as of an echo request, is an address.
    let end = |key: &str| {
        let end = text(key)?;
        let bare = end.strip_suffix(":0").map(|ip| ip.trim_matches(['[', ']']).to_owned());
        Some(bare.unwrap_or(end))
    };
    match (end("remote"), end("local")) {
        (Some(remote), Some(local)) => lines.push(format!("asked {remote} from {local}")),
        (Some(remote), None) => lines.push(format!("asked {remote}")),
        _ => {}
    }
    let phases = [
        ("resolve_ns", "resolve"),
        ("connect_ns", "connect"),
        ("tls_ns", "TLS"),
        ("first_byte_ns", "first byte"),
    ];
    let phases =
        phases.into_iter().filter_map(|(key, name)| Some(format!("{name} {}", time(details[key].as_u64()?))));
    let phases: Vec<_> = phases.collect();
    if !phases.is_empty() {
        lines.push(phases.join(", "));
    }
    if let Some(at) = details["certificate_expires"].as_i64() {
        lines.push(format!("certificate expires {}", when(at)));
    }
    let rtts: Vec<_> =
        details["rtts_ns"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    if let Some(sent) = details["sent"].as_u64() {
        let times: Vec<_> = rtts.iter().map(|&rtt| time(rtt)).collect();
        lines.push(format!("{} of {sent} answered: {}", rtts.len(), times.join(", ")));
    }
    let known = [
        "remote",
        "local",
        "resolve_ns",
        "connect_ns",
        "tls_ns",
        "first_byte_ns",
        "certificate_expires",
        "sent",
        "rtts_ns",
        "output",
    ];
    for (key, value) in
        details.as_object().into_iter().flatten().filter(|(k, _)| !known.contains(&k.as_str()))
    {
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Array(items) => items
                .iter()
                .map(|i| i.as_str().map_or_else(|| i.to_string(), str::to_owned))
                .collect::<Vec<_>>()
                .join(", "),
            other => other.to_string(),
        };
        lines.push(format!("{}: {value}", key.replace('_', " ")));
    }
    if let Some(output) = text("output") {
        lines.extend(output.lines().take(50).map(|line| format!("| {line}")));
    }
    lines
}

fn time(nanos: u64) -> String {
    let d = Duration::from_nanos(nanos);
    match d.as_micros() {
        0..1000 => format!("{} us", d.as_micros()),
        1000..10_000 => format!("{:.2} ms", d.as_secs_f64() * 1e3),
        10_000..1_000_000 => format!("{:.0} ms", d.as_secs_f64() * 1e3),
        _ => format!("{:.2} s", d.as_secs_f64()),
    }
}

/// A moment, in seconds since 1970, as seen from now.
fn when(at: i64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let left = at.saturating_sub(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    let span = match left.unsigned_abs() {
        s if s >= 2 * 86_400 => format!("{} days", s / 86_400),
        s if s >= 2 * 3600 => format!("{} hours", s / 3600),
        s => format!("{} minutes", s / 60),
    };
    if left < 0 { format!("{span} ago") } else { format!("in {span}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_finds_result_reason_and_phases() {
        let text = render(&json!({
            "vip": "web", "state_name": "announced", "health_name": "healthy", "reason": "http: rise threshold reached",
            "results": {
                "app": { "success": false, "outcome": "bad", "ran": false, "detail": "no report for 5.0 s", "duration": 0 },
                "dear": { "success": true, "outcome": "good", "ran": true, "detail": "status 200", "duration": 80_000_000,
                    "counted": { "outcome": "bad", "detail": "slow: 80ms, over 50ms" } },
                "http": { "success": true, "outcome": "good", "ran": true, "detail": "status 200", "duration": 2_340_000,
                    "details": { "remote": "127.0.0.1:80", "local": "127.0.0.1:4000", "connect_ns": 120_000,
                        "first_byte_ns": 15_000_000, "http_status": 200, "answers": ["a", "b"], "output": "one\ntwo" } }
            }
        }));
        for part in [
            "app: bad (reported): no report for 5.0 s\n",
            "http: good in 2.34 ms: status 200\n",
            "dear: good in 80 ms: status 200 (counts as bad: slow: 80ms, over 50ms)\n",
            "    asked 127.0.0.1:80 from 127.0.0.1:4000\n",
            "    connect 120 us, first byte 15 ms\n",
            "    http status: 200\n",
            "    answers: a, b\n",
            "    | one\n    | two\n",
            "web is healthy and announced: http: rise threshold reached\n",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn an_end_without_a_port_is_an_address() {
        let ends = |remote: &str| details(&json!({ "remote": remote, "local": "192.0.2.1:0" })).join("");
        assert_eq!(ends("[2001:db8::1]:0"), "asked 2001:db8::1 from 192.0.2.1");
        assert_eq!(ends("192.0.2.7:80"), "asked 192.0.2.7:80 from 192.0.2.1");
    }

    #[test]
    fn a_check_is_named_by_two_words_or_as_it_is_printed() {
        assert_eq!(named("web", None), ("web", None));
        assert_eq!(named("web", Some("http")), ("web", Some("http")));
        assert_eq!(named("web/http", None), ("web", Some("http")));
    }

    #[test]
    fn names_are_encoded() {
        assert_eq!(encode("web-1.a_b"), "web-1.a_b");
        assert_eq!(encode("a/b c?ä"), "a%2Fb%20c%3F%C3%A4");
    }
}
