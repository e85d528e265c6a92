//! `standfast drain` and `undrain`: orders to a running daemon about a VIP of its host, or a member of its listener.

use std::fmt::Write;
use std::net::IpAddr;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Args;
use hyper::Method;
use serde_json::{Value, json};

use crate::check::{asked, encode};
use crate::client::Api;
use crate::{cli, config, status};

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often progress is shown.
const PERIOD: Duration = Duration::from_secs(1);

/// What is drained. A token, where the daemon wants one, is taken from STANDFAST_TOKEN.
#[derive(Debug, Args)]
pub struct Drain {
    /// Who: a VIP of this host by its name, or a member of its listener by the address of its session.
    #[arg(value_name = "VIP|MEMBER", required_unless_present = "all")]
    pub who: Option<String>,
    /// Every VIP of this host.
    #[arg(long, conflicts_with_all = ["who", "vip"])]
    pub all: bool,
    /// The listener's VIP that the member is drained for; without it, every one.
    #[arg(long, value_name = "VIP")]
    pub vip: Option<String>,
    /// How long connections may take to end, such as 30s; without it, as long as the configuration says.
    #[arg(long, visible_alias = "deadline", value_name = "DURATION", value_parser = config::duration)]
    pub timeout: Option<Duration>,
    /// Show each second how far it is, until it is over; exit code 1 if connections were cut off.
    #[arg(long)]
    pub wait: bool,
    /// Which daemon.
    #[command(flatten)]
    pub daemon: cli::Daemon,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What serves again. A token, where the daemon wants one, is taken from STANDFAST_TOKEN.
#[derive(Debug, Args)]
pub struct Undrain {
    /// Who: a VIP of this host by its name, or a member of its listener by the address of its session.
    #[arg(value_name = "VIP|MEMBER", required_unless_present = "all")]
    pub who: Option<String>,
    /// Every VIP of this host.
    #[arg(long, conflicts_with_all = ["who", "vip"])]
    pub all: bool,
    /// The listener's VIP that the member was drained for; without it, every one.
    #[arg(long, value_name = "VIP")]
    pub vip: Option<String>,
    /// Which daemon.
    #[command(flatten)]
    pub daemon: cli::Daemon,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Whom an order is about.
enum Who<'a> {
    /// A VIP of the daemon's host; `None`: every one.
    Vip(Option<&'a str>),
    /// A member of its listener.
    Member(IpAddr),
}

impl<'a> Who<'a> {
    /// Whom the arguments name, or why that makes no sense.
    fn of(who: Option<&'a str>, vip: Option<&str>) -> Result<Self, String> {
        let Some(who) = who else { return Ok(Self::Vip(None)) };
        match (who.parse(), vip) {
            (Ok(member), _) => Ok(Self::Member(member)),
            (Err(_), None) => Ok(Self::Vip(Some(who))),
            (Err(_), Some(vip)) => Err(format!(
                "--vip says for which of the listener's VIPs a member is meant, and `{who}` is no address of a member; \
                 to drain the VIP {vip} of this host: standfast drain {vip}"
            )),
        }
    }

    fn path(&self, what: &str) -> String {
        match self {
            Self::Vip(None) => format!("/api/v1/{what}"),
            Self::Vip(Some(vip)) => format!("/api/v1/vips/{}/{what}", encode(vip)),
            Self::Member(member) => format!("/api/v1/listener/members/{member}/{what}"),
        }
    }
}

/// Orders a drain and prints what has become of it. Exit code 2 if that was refused, 3 if the daemon cannot be reached.
pub fn drain(api: &Api, args: &Drain) -> ExitCode {
    let who = match Who::of(args.who.as_deref(), args.vip.as_deref()) {
        Ok(Who::Member(_)) if args.wait => {
            return wrong("--wait is for VIPs of this host; `standfast status` counts a member's time down");
        }
        Ok(who) => who,
        Err(why) => return wrong(&why),
    };
    let time = if matches!(who, Who::Member(_)) { "timeout" } else { "deadline" };
    let mut order = serde_json::Map::new();
    order.extend(args.vip.as_ref().map(|vip| ("vip".to_owned(), json!(vip))));
    order.extend(args.timeout.map(|t| (time.to_owned(), json!(config::show(t)))));
    match send(api, &who, "drain", order.into(), args.json) {
        Ok(answer) if args.wait => wait(api, &answer, args.json),
        Ok(_) => ExitCode::SUCCESS,
        Err(code) => code,
    }
}

/// Takes the order back.
pub fn undrain(api: &Api, args: &Undrain) -> ExitCode {
    let who = match Who::of(args.who.as_deref(), args.vip.as_deref()) {
        Ok(who) => who,
        Err(why) => return wrong(&why),
    };
    let order = args.vip.as_ref().map_or_else(|| json!({}), |vip| json!({ "vip": vip }));
    send(api, &who, "undrain", order, args.json).map_or_else(|code| code, |_| ExitCode::SUCCESS)
}

fn wrong(why: &str) -> ExitCode {
    eprintln!("standfast: {why}");
    ExitCode::from(cli::WRONG)
}

/// Sends an order and prints the answer.
fn send(api: &Api, who: &Who<'_>, what: &str, order: Value, json: bool) -> Result<Value, ExitCode> {
    let answer = asked(api, api.ask(&Method::POST, &who.path(what), Some(&order), PATIENCE))?.value;
    let text = match who {
        _ if json => format!("{answer:#}\n"),
        Who::Vip(_) => answer["vips"].as_array().into_iter().flatten().map(line).collect(),
        Who::Member(_) => render(&answer),
    };
    match cli::print(&text) {
        code if code == ExitCode::SUCCESS => Ok(answer),
        code => Err(code),
    }
}

/// Shows how the VIPs of an answer drain, until none does any more.
fn wait(api: &Api, answer: &Value, json: bool) -> ExitCode {
    let names: Vec<&str> =
        answer["vips"].as_array().into_iter().flatten().filter_map(|vip| vip["name"].as_str()).collect();
    let mut over: Vec<&str> = Vec::new();
    let mut fine = true;
    while over.len() < names.len() {
        thread::sleep(PERIOD);
        let status = match asked(api, api.ask(&Method::GET, "/status", None, PATIENCE)) {
            Ok(answer) => answer.value,
            Err(code) => return code,
        };
        let vips = status["vips"].as_array().map(Vec::as_slice).unwrap_or_default();
        for vip in vips {
            let Some(name) = vip["name"].as_str().and_then(|n| names.iter().find(|name| **name == n)) else {
                continue;
            };
            if over.contains(name) {
                continue;
            }
            let drain = &vip["drain"];
            if drain.is_null() || !drain["over"].is_null() {
                over.push(name);
                fine &= drain.is_object() && drain["rough"] != true;
            }
            let text = if json { format!("{vip}\n") } else { line(vip) };
            if cli::print(&text) != ExitCode::SUCCESS {
                return ExitCode::FAILURE;
            }
        }
    }
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A VIP and why it is what it is, as a line.
fn line(vip: &Value) -> String {
    let word = |key: &str| vip[key].as_str().unwrap_or_default();
    match vip["drain"].is_object() {
        // The reason says it already.
        true if word("reason").starts_with("drain") => format!("{} {}\n", word("name"), word("reason")),
        _ => format!("{} {}: {}\n", word("name"), status::state(vip), word("reason")),
    }
}

/// The answer as a person reads it.
fn render(answer: &Value) -> String {
    let mut text = String::new();
    let member = answer["member"].as_str().unwrap_or_default();
    let vips = answer["vips"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ordered = answer["orders"].as_array().is_some_and(|orders| !orders.is_empty());
    // Writing to a String does not fail.
    let _ = match (answer["connected"] == true, ordered) {
        (true, _) if vips.is_empty() => writeln!(text, "{member} announces no VIP"),
        (true, _) => Ok(()),
        (false, true) if answer["known"] == false => writeln!(
            text,
            "{member} is not connected and was not within the last hour, or since the start: is it the right address? It drains when it comes"
        ),
        (false, true) => writeln!(text, "{member} is not connected: it drains when it comes"),
        (false, false) => writeln!(text, "{member} is not connected: it serves when it comes"),
    };
    for vip in vips {
        let _ = writeln!(text, "{member} {}", status::listener::standing(vip));
        if vip["state"] == "last" {
            let _ = writeln!(
                text,
                "    nobody else is left: it goes on taking new connections until another one announces the VIP"
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vip_and_a_member_are_told_apart() {
        let path = |who, vip| Who::of(who, vip).map(|who| who.path("drain"));
        assert_eq!(path(None, None).unwrap(), "/api/v1/drain");
        assert_eq!(path(Some("web"), None).unwrap(), "/api/v1/vips/web/drain");
        for member in ["192.0.2.11", "2001:db8::11"] {
            let whole = format!("/api/v1/listener/members/{member}/drain");
            assert_eq!(path(Some(member), Some("web")).unwrap(), whole);
        }
        assert!(path(Some("web"), Some("dns")).unwrap_err().contains("standfast drain dns"));
    }

    #[test]
    fn a_vip_is_one_line_in_the_words_of_its_reason() {
        let draining = json!({ "name": "web", "state_name": "announced", "drain": { "left": 3.0 },
            "reason": "draining (by command): 12 connections, 3 s left" });
        assert_eq!(line(&draining), "web draining (by command): 12 connections, 3 s left\n");
        let back =
            json!({ "name": "web", "state_name": "announced", "reason": "healthy, and no longer drained" });
        assert_eq!(line(&back), "web announced: healthy, and no longer drained\n");
    }

    #[test]
    fn a_person_learns_what_has_become_of_the_member() {
        let text = render(&json!({ "member": "192.0.2.11", "connected": true, "orders": [{}], "vips": [
            { "vip": "web", "state": "draining", "drains": "by command", "left": 29.6, "busy": 12, "share": 0.0 },
            { "vip": "dns", "state": "last", "drains": "by command", "share": 1.0 },
            { "vip": "api", "state": "serving", "share": 0.25 },
        ] }));
        for part in [
            "192.0.2.11 web draining (by command), 30s left, 12 busy\n",
            "192.0.2.11 dns last (by command)\n    nobody else is left",
            "192.0.2.11 api serving 25%\n",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        let away = render(&json!({ "member": "192.0.2.11", "connected": false, "orders": [{}], "vips": [] }));
        assert!(away.contains("is not connected: it drains when it comes"), "{away}");
        let unknown = render(
            &json!({ "member": "192.0.2.11", "connected": false, "known": false, "orders": [{}], "vips": [] }),
        );
        assert!(unknown.contains("is it the right address? It drains when it comes"), "{unknown}");
    }
}
