//! `standfast status`: what a running daemon says of itself, as tables or as JSON.

mod bfd;
pub(crate) mod listener;

use comfy_table::{Table, presets};
use hyper::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::cli;
use crate::client::Api;

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Prints the status of the daemon at `api`; exit code 1 if something is not as it should be, 3 if it cannot be reached.
pub fn run(api: &Api, json: bool) -> ExitCode {
    let value = match fetch(api) {
        Ok(value) => value,
        Err(why) => return cli::unreachable(api, &why),
    };
    let text = if json { format!("{value:#}\n") } else { render(&value) };
    match cli::print(&text) {
        code if code != ExitCode::SUCCESS => code,
        _ if is_fine(&value) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn fetch(api: &Api) -> Result<Value, String> {
    let answer = api.ask(&Method::GET, "/status", None, PATIENCE)?;
    match answer.error() {
        Some(error) => Err(error.to_owned()),
        None => Ok(answer.value),
    }
}

/// Whether every VIP is announced, every required peer established, every VIP of the listener routed without anybody held,
/// nothing pends, and the last reload was not refused.
fn is_fine(status: &Value) -> bool {
    let list = |key: &str| status[key].as_array().cloned().unwrap_or_default();
    list("vips").iter().all(|v| v["state_name"] == "announced" && v["drain"].is_null())
        && list("peers").iter().all(|p| p["required"] == false || p["session_state"] == "established")
        && (status["listener"].is_null() || listener::is_fine(&status["listener"]))
        && status["reload"]["done"] != false
        && status["kernel_pending"].as_object().is_none_or(serde_json::Map::is_empty)
}

/// The status as a person reads it.
fn render(status: &Value) -> String {
    let mut text = String::new();
    let write = |text: &mut String, line: String| {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{line}");
    };
    write(
        &mut text,
        format!(
            "standfast {}  router {}  AS {}  up {}",
            word(&status["version"]),
            word(&status["router_id"]),
            word(&status["asn"]),
            age(&status["uptime"])
        ),
    );
    if let Some(why) = status["stopping"].as_str() {
        write(&mut text, format!("stopping: {why}"));
    }
    if status["reload"]["done"] == false {
        let ago = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let ago = json!(ago.saturating_sub(status["reload"]["at"].as_u64().unwrap_or(ago)));
        write(&mut text, format!("configuration: {} ({} ago)", word(&status["reload"]["result"]), age(&ago)));
    }
    let rows = |key: &str| status[key].as_array().cloned().unwrap_or_default();
    let vips = rows("vips");
    if !vips.is_empty() {
        let mut table = table(&["vip", "prefix", "state", "for", "reason", "told to"]);
        let users = users(&vips);
        let mut told = BTreeSet::new();
        let mut checks =
            self::table(&["check", "type", "every", "health", "for", "good", "bad", "last result"]);
        for vip in &vips {
            let prefixes = join(&vip["prefixes"]);
            let nobody = vip["told"].as_array().is_none_or(Vec::is_empty) && vip["state_name"] != "withdrawn";
            let pending = match (nobody, vip["pending"] == true) {
                (true, _) => " (to nobody)",
                (false, true) => " (pending)",
                (false, false) => "",
            };
            table.add_row([
                word(&vip["name"]),
                prefixes,
                format!("{}{pending}", state(vip)),
                age(&vip["since"]),
                word(&vip["reason"]),
                join(&vip["told"]),
            ]);
            for check in vip["checks"].as_array().into_iter().flatten() {
                let shared = check["shared"] == true;
                if shared && !told.insert(word(&check["name"])) {
                    continue;
                }
                checks.add_row([
                    if shared {
                        let name = word(&check["name"]);
                        let of = users.get(&name).map_or(String::new(), |vips| few(vips));
                        format!("{name} (of {of})")
                    } else {
                        format!("{}/{}", word(&vip["name"]), word(&check["name"]))
                    },
                    word(&check["type"]),
                    interval(&check["interval"]),
                    word(&check["health_name"]),
                    age(&check["since"]),
                    word(&check["consecutive_ok"]),
                    word(&check["consecutive_fail"]),
                    last_result(check),
                ]);
            }
        }
        write(&mut text, format!("\n{table}\n\n{checks}"));
    }
    let peers = rows("peers");
    if !peers.is_empty() {
        let mut table = table(&["peer", "address", "AS", "session", "for", "told", "note"]);
        for peer in &peers {
            table.add_row([
                word(&peer["name"]),
                word(&peer["address"]),
                word(&peer["peer_asn"]),
                word(&peer["session_state"]),
                age(peer.get("uptime").unwrap_or(&peer["down_for"])),
                peer["told"].as_array().map_or(0, Vec::len).to_string(),
                note(peer),
            ]);
        }
        write(&mut text, format!("\n{table}"));
    }
    if status["listener"].is_object() {
        text += &listener::render(&status["listener"]);
    }
    if let Some(sessions) = bfd::sessions(status) {
        write(&mut text, format!("\n{sessions}"));
    }
    for (what, why) in status["kernel_pending"].as_object().into_iter().flatten() {
        write(&mut text, format!("pending in the kernel: {what}: {}", word(why)));
    }
    text
}

/// What a VIP is, in a word.
pub(crate) fn state(vip: &Value) -> String {
    match &vip["drain"] {
        Value::Object(drain) if drain.contains_key("over") => "drained".to_owned(),
        Value::Object(_) => "draining".to_owned(),
        _ => word(&vip["state_name"]),
    }
}

/// The VIPs that use each shared check.
fn users(vips: &[Value]) -> BTreeMap<String, Vec<String>> {
    let mut users: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for vip in vips {
        for check in vip["checks"].as_array().into_iter().flatten().filter(|c| c["shared"] == true) {
            users.entry(word(&check["name"])).or_default().push(word(&vip["name"]));
        }
    }
    users
}

/// The first of some names, and how many more there are.
fn few(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().map(|h| h.to_uppercase()));
    table
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn join(values: &Value) -> String {
    values.as_array().into_iter().flatten().map(word).collect::<Vec<_>>().join(" ")
}

fn age(seconds: &Value) -> String {
    let Some(s) = seconds.as_f64() else { return "-".to_owned() };
    match s {
        s if s < 10.0 => format!("{s:.1}s"),
        s if s < 120.0 => format!("{s:.0}s"),
        s if s < 7200.0 => format!("{:.0}m", s / 60.0),
        s if s < 172_800.0 => format!("{:.0}h", s / 3600.0),
        s => format!("{:.0}d", s / 86_400.0),
    }
}

fn interval(seconds: &Value) -> String {
    seconds.as_f64().map_or_else(|| "-".into(), |s| crate::config::show(Duration::from_secs_f64(s)))
}

/// What a check said last, and what is odd about it.
fn last_result(check: &Value) -> String {
    let mut text = match check["last_check_outcome"].as_str() {
        None => "none yet".to_owned(),
        Some(outcome) => format!(
            "{} {} ago: {}",
            outcome.replace('_', " "),
            age(&check["last_check_age"]),
            word(&check["last_check_detail"])
        ),
    };
    if check["insecure"] == true {
        text += " (insecure: any certificate will do)";
    }
    let runs: u64 = check["runs"].as_object().map_or(0, |runs| {
        ["good", "bad", "no_result"].iter().filter_map(|how| runs.get(*how)?.as_u64()).sum()
    });
    if let Some(n) = check["overruns"].as_u64().filter(|&n| n > 0) {
        let _ = write!(text, " ({n} due runs did not start)");
    }
    // A few are the ordinary life of a busy host.
    if let Some(n) = check["late"].as_u64().filter(|&n| n > runs / 10) {
        let _ = write!(text, " ({n} of {runs} runs started late)");
    }
    text
}

fn note(peer: &Value) -> String {
    let mut notes = Vec::new();
    if peer["session_state"] != "established" {
        notes.push(word(&peer["last_down"]));
    } else if peer["pending"] == true {
        notes.push("pending".to_owned());
    }
    for (prefix, why) in peer["held"].as_object().into_iter().flatten() {
        notes.push(format!("{prefix} held: {}", word(why)));
    }
    notes.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status() -> Value {
        json!({
            "version": "0.1.0", "router_id": "192.0.2.11", "asn": 64513, "uptime": 65.0, "stopping": null,
            "vips": [{ "name": "web", "prefixes": ["198.51.100.10/32"], "state_name": "announced", "since": 3.25,
                "reason": "web: rise threshold reached", "told": ["front"], "pending": false, "checks": [
                { "name": "web", "type": "http", "interval": 0.2, "insecure": true, "late": 3, "overruns": 2, "runs": { "good": 8, "bad": 2, "no_result": 0, "silent": 1 }, "health_name": "healthy", "since": 720.0, "consecutive_ok": 3, "consecutive_fail": 0,
                  "last_check_success": true, "last_check_outcome": "good", "last_check_age": 0.5, "last_check_detail": "status 200" }] }],
            "peers": [{ "name": "front", "address": "192.0.2.1", "peer_asn": 64512, "required": true,
                "session_state": "established", "uptime": 60.0, "told": ["198.51.100.10/32"], "pending": false,
                "held": {}, "last_down": "not up since the start" }],
            "listener": null, "kernel_pending": {}
        })
    }

    #[test]
    fn a_person_finds_state_reason_and_last_result() {
        let text = render(&status());
        for part in [
            "announced",
            "3.2s",
            "web: rise threshold reached",
            "good 0.5s ago: status 200 (insecure",
            "(3 of 10 runs started late)",
            "(2 due runs did not start)",
            "http  200ms",
            "healthy  12m",
            "60s",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn a_drain_is_told_in_the_state() {
        let mut status = status();
        for (drain, told) in [(json!({ "left": 3.0 }), "draining"), (json!({ "over": "no" }), "drained")] {
            status["vips"][0]["drain"] = drain;
            assert_eq!(state(&status["vips"][0]), told);
        }
    }

    #[test]
    fn a_shared_check_stands_once_with_the_vips_that_use_it() {
        let mut status = status();
        let vip = status["vips"][0].clone();
        for n in 0..6 {
            let mut vip = vip.clone();
            vip["name"] = format!("v{n}").into();
            vip["checks"][0]["shared"] = true.into();
            vip["checks"][0]["name"] = "uplink".into();
            status["vips"].as_array_mut().unwrap().push(vip);
        }
        let text = render(&status);
        assert!(text.contains("uplink (of v0, v1, v2, v3 and 2 more)"), "{text}");
        assert_eq!(text.matches("uplink").count(), 1, "{text}");
    }

    #[test]
    fn no_result_is_not_told_as_a_bad_one() {
        let told = |outcome: Value| {
            let words = "this process may not ping";
            last_result(&json!({ "last_check_success": outcome == "good", "last_check_outcome": outcome,
                "last_check_age": 0.3, "last_check_detail": words }))
        };
        assert_eq!(told(json!("no_result")), "no result 0.3s ago: this process may not ping");
        assert_eq!(told(json!("bad")), "bad 0.3s ago: this process may not ping");
        assert_eq!(told(Value::Null), "none yet");
    }

    #[test]
    fn anything_that_is_not_as_it_should_be_is_not_fine() {
        assert!(is_fine(&status()));
        for (pointer, value) in [
            ("/vips/0/state_name", json!("pessimized")),
            ("/vips/0", json!({ "state_name": "announced", "drain": { "left": 3.0 } })),
            ("/peers/0/session_state", json!("active")),
            ("/kernel_pending", json!({ "route 10.0.0.0/8": "network is unreachable" })),
        ] {
            let mut broken = status();
            *broken.pointer_mut(pointer).unwrap() = value;
            assert!(!is_fine(&broken), "{pointer}");
        }
    }
}
