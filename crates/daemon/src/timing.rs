//! `standfast timing`: the worst case of every VIP in every kind of failure, computed from the configuration and, where a
//! daemon answers, from what it agreed with its peers.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use hyper::Method;
use serde_json::{Value, json};
use standfast_core::timing::{Agreed, Basis, Effect, Known, Member, Row, contract, show};

use crate::{cli, status};

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// What `timing` computes.
#[derive(Debug, Args)]
pub struct Timing {
    /// The VIP; without it, every one.
    #[arg(value_name = "VIP")]
    pub vip: Option<String>,
    /// The configuration, and the daemon that runs with it, if one does.
    #[command(flatten)]
    pub daemon: cli::Daemon,
    /// Ask no daemon: what follows from the configuration alone.
    #[arg(long)]
    pub offline: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Prints the worst cases. Exit code 1 if there is a failure that nothing notices, 2 if the configuration is wrong or has no such
/// VIP; an error is the exit code of what was printed already.
pub fn run(args: &Timing) -> Result<ExitCode, ExitCode> {
    let wrong = ExitCode::from(cli::WRONG);
    let path = args.daemon.path();
    let loaded = cli::load(&path).ok_or(wrong)?;
    let (known, asked) = if args.offline {
        (Known::default(), "computed from the configuration alone".to_owned())
    } else {
        let api = args.daemon.api.clone().unwrap_or_else(|| loaded.daemon.api.listen.into());
        match api.ask(&Method::GET, "/status", None, PATIENCE) {
            Ok(answer) if answer.status.is_success() => {
                (known(&answer.value), format!("what was negotiated is from the daemon at {api}"))
            }
            Ok(answer) => {
                (Known::default(), unasked(&api.to_string(), answer.error().unwrap_or("it refused")))
            }
            Err(why) => (Known::default(), unasked(&api.to_string(), &why)),
        }
    };
    let mut rows = contract(&loaded.plan, &known);
    if let Some(vip) = &args.vip {
        rows.retain(|row| row.vip == *vip);
        if rows.is_empty() {
            let mut names: Vec<&str> = loaded.plan.vips.keys().map(String::as_str).collect();
            names.extend(loaded.plan.listener.iter().flat_map(|l| l.vips.keys().map(String::as_str)));
            eprintln!("standfast: there is no VIP named `{vip}`\n  there is: {}", names.join(", "));
            return Err(wrong);
        }
    }
    let text = if args.json { format!("{:#}\n", as_json(&rows, &asked)) } else { render(&rows, &asked) };
    Ok(match cli::print(&text) {
        code if code != ExitCode::SUCCESS => code,
        _ if rows.iter().any(|row| row.terms.is_none()) => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

fn unasked(api: &str, why: &str) -> String {
    format!("computed from the configuration alone: no daemon answers at {api} ({why})")
}

/// What a status says of the sessions that are established.
fn known(status: &Value) -> Known {
    let list = |key: &Value| key.as_array().cloned().unwrap_or_default();
    let seconds = |value: &Value| value.as_f64().and_then(|s| Duration::try_from_secs_f64(s).ok());
    let up = |of: &Value| of["session_state"] == "established";
    let bfd = |of: &Value, key: &str| seconds(&of["bfd"][key]).filter(|_| of["bfd"]["state"] == "up");
    let peers = list(&status["peers"]).into_iter().filter(up).filter_map(|peer| {
        let agreed = Agreed {
            hold: seconds(&peer["hold_time"])?,
            bfd: bfd(&peer, "tx_interval"),
            graceful_restart: peer["graceful_restart"] == true,
        };
        Some((peer["name"].as_str()?.to_owned(), agreed))
    });
    let members = list(&status["listener"]["members"]).into_iter().filter(up).filter_map(|member| {
        Some(Member {
            range: member["accept"].as_str()?.to_owned(),
            name: member["address"].as_str()?.to_owned(),
            hold: seconds(&member["hold_time"])?,
            detection: bfd(&member, "detection_time"),
        })
    });
    Known { peers: peers.collect(), members: members.collect() }
}

/// The table, and for each longest part what would make it shorter.
fn render(rows: &[Row], asked: &str) -> String {
    let mut text = String::new();
    let mut table = status::table(&["vip", "failure", "worst", "then", "formula", "dominated by"]);
    let mut vip = None;
    for row in rows {
        let is_new = vip != Some((&row.vip, row.listener));
        vip = Some((&row.vip, row.listener));
        let name = match (is_new, row.listener) {
            (false, _) => String::new(),
            (true, false) => row.vip.clone(),
            (true, true) => format!("{} (listener)", row.vip),
        };
        let worst = row.worst().map_or_else(|| "never".to_owned(), show);
        let dominant = row.dominant().map_or("-", |term| term.knob.as_str()).to_owned();
        table.add_row([name, row.class.words().to_owned(), worst, then(row), row.formula(), dominant]);
    }
    // Writing to a String does not fail.
    let _ = writeln!(text, "{table}\n\n{asked}");
    let mut advice: Vec<String> = Vec::new();
    for row in rows {
        let line = match row.dominant() {
            Some(term) if term.knob == "nothing" => continue,
            Some(term) => format!("{}: {}", term.knob, term.advice),
            None => format!("{} of {}: {}", row.class.words(), row.vip, row.never),
        };
        if !advice.contains(&line) {
            advice.push(line);
        }
    }
    if !advice.is_empty() {
        let _ = writeln!(text, "\nwhat would help:");
        for line in advice {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

/// What has become of the VIP by then, and by whose doing.
fn then(row: &Row) -> String {
    let what = match (row.effect, row.withdrawn_after) {
        (Effect::Withdrawn, _) => "withdrawn".to_owned(),
        (Effect::Pessimized, Some(after)) => format!("pessimized, withdrawn {} later", show(after)),
        (Effect::Pessimized, None) => "pessimized".to_owned(),
        (Effect::TakenOut, _) => "member out".to_owned(),
    };
    match &row.by {
        Some(by) => format!("{what} ({by})"),
        None => what,
    }
}

fn as_json(rows: &[Row], asked: &str) -> Value {
    let row = |row: &Row| {
        let mut value = json!(row);
        value["worst_seconds"] = json!(row.worst().map(|d| d.as_secs_f64()));
        value["formula"] = row.formula().into();
        value["dominated_by"] = json!(row.dominant().map(|term| &term.knob));
        value["advice"] = json!(row.dominant().map(|term| &term.advice));
        value["withdrawn_after"] = json!(row.withdrawn_after.map(|d| d.as_secs_f64()));
        value["negotiated"] = (row.basis == Basis::Negotiated).into();
        value
    };
    json!({ "source": asked, "rows": rows.iter().map(row).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Format, Process, parse};

    const FILE: &str = "schema: v1
router: { asn: 64513, router_id: 192.0.2.11, local_address: 192.0.2.11 }
bgp:
  hold_time: 9s
  neighbors:
    - { name: front, address: 192.0.2.1, peer_asn: 64512, bfd: { interval: 50ms, multiplier: 3 } }
    - { name: back, address: 192.0.2.2, peer_asn: 64512 }
vips:
  - name: web
    prefix: 198.51.100.10/32
    address: { manage: true }
    check: { type: tcp, fall: 2, tcp: { port: 80 } }
    policy: { withdraw_after: 30s }
";

    fn rows(status: &Value) -> Vec<Row> {
        let loaded = parse("t.yaml", Format::Yaml, FILE, &Process).unwrap();
        contract(&loaded.plan, &known(status))
    }

    fn peer(name: &str, state: &str, bfd: &Value) -> Value {
        json!({ "name": name, "session_state": state, "hold_time": 6, "graceful_restart": false, "bfd": bfd })
    }

    #[test]
    fn what_was_negotiated_is_taken_from_the_status_of_established_sessions() {
        let up = json!({ "state": "up", "tx_interval": 0.3, "detection_time": 0.9 });
        let status = json!({ "peers": [peer("front", "established", &up), peer("back", "active", &Value::Null)],
            "listener": { "members": [{ "accept": "gateways", "address": "192.0.2.11", "session_state": "established",
                "hold_time": 9, "bfd": up }] } });
        let known = known(&status);
        let agreed = Agreed {
            hold: Duration::from_secs(6),
            bfd: Some(Duration::from_millis(300)),
            graceful_restart: false,
        };
        assert_eq!(known.peers, [("front".to_owned(), agreed)].into());
        assert_eq!(known.members[0].detection, Some(Duration::from_millis(900)));
        let down = json!({ "peers": [peer("front", "established", &json!({ "state": "down", "tx_interval": 1.0 }))] });
        assert_eq!(super::known(&down).peers["front"].bfd, None);
        assert_eq!(super::known(&json!({})), Known::default());
    }

    #[test]
    fn a_person_reads_one_row_for_each_failure_and_what_would_help() {
        let text = render(&rows(&json!({})), "computed");
        for part in [
            "process dies",
            "1.1 x interval 1s + 1.1 x fast_interval 1s + timeout 100ms + told 10ms = 2.31s",
            "pessimized, withdrawn 30s later",
            "hold_time 9s = 9s",
            "withdrawn (back)",
            "hold_time of neighbor back: bfd: { enabled: true } at both ends",
            "\ncomputed\n",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        assert_eq!(text.matches("hold_time of neighbor back: bfd").count(), 1, "said once\n{text}");
    }

    #[test]
    fn json_has_the_same_in_numbers() {
        let value = as_json(&rows(&json!({})), "computed");
        let host =
            value["rows"].as_array().unwrap().iter().find(|r| r["class"] == "host_dies").unwrap().clone();
        assert_eq!((&host["worst_seconds"], &host["by"]), (&json!(9.0), &json!("back")));
        assert_eq!((&host["negotiated"], &host["effect"]), (&json!(false), &json!("withdrawn")));
        assert_eq!(host["terms"][0]["ns"], 9_000_000_000_u64);
    }
}
