//! `standfast drain` and `undrain`: orders to a running listener about one of its members.

use std::fmt::Write;
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use hyper::Method;
use serde_json::{Value, json};

use crate::check::asked;
use crate::client::Api;
use crate::{cli, config, status};

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which member is drained. A token, where the daemon wants one, is taken from STANDFAST_TOKEN.
#[derive(Debug, Args)]
pub struct Drain {
    /// The member, by the address of its session.
    #[arg(value_name = "MEMBER")]
    pub member: IpAddr,
    /// The VIP; without it, every one.
    #[arg(long, value_name = "VIP")]
    pub vip: Option<String>,
    /// How long it may keep its connections, such as 30s; without it, as long as each VIP says.
    #[arg(long, value_name = "DURATION", value_parser = config::duration)]
    pub timeout: Option<Duration>,
    /// Which daemon.
    #[command(flatten)]
    pub daemon: cli::Daemon,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Which member serves again. A token, where the daemon wants one, is taken from STANDFAST_TOKEN.
#[derive(Debug, Args)]
pub struct Undrain {
    /// The member, by the address of its session.
    #[arg(value_name = "MEMBER")]
    pub member: IpAddr,
    /// The VIP that it was drained for; without it, every one.
    #[arg(long, value_name = "VIP")]
    pub vip: Option<String>,
    /// Which daemon.
    #[command(flatten)]
    pub daemon: cli::Daemon,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Orders a member to drain and prints what has become of it. Exit code 2 if that was refused, 3 if the daemon cannot be reached.
pub fn drain(api: &Api, args: &Drain) -> ExitCode {
    let mut order = serde_json::Map::new();
    order.extend(args.vip.as_ref().map(|vip| ("vip".to_owned(), json!(vip))));
    order.extend(args.timeout.map(|t| ("timeout".to_owned(), json!(config::show(t)))));
    send(api, args.member, "drain", order.into(), args.json)
}

/// Takes the order back.
pub fn undrain(api: &Api, args: &Undrain) -> ExitCode {
    let order = args.vip.as_ref().map_or_else(|| json!({}), |vip| json!({ "vip": vip }));
    send(api, args.member, "undrain", order, args.json)
}

fn send(api: &Api, member: IpAddr, what: &str, order: Value, json: bool) -> ExitCode {
    let path = format!("/api/v1/listener/members/{member}/{what}");
    match asked(api, api.ask(&Method::POST, &path, Some(&order), PATIENCE)) {
        Ok(answer) if json => cli::print(&format!("{:#}\n", answer.value)),
        Ok(answer) => cli::print(&render(&answer.value)),
        Err(code) => code,
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
        assert!(away.contains("it drains when it comes"), "{away}");
    }
}
