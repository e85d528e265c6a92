//! The listener's part of the status: its members and what they are to each VIP, and each VIP's group.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use super::{age, table, word};

/// A member that announces more VIPs has them counted by what it is to them.
const ONE_BY_ONE: usize = 8;
/// So many announcements that were ignored are named for each reason.
const NAMED: usize = 3;

/// Whether every VIP is routed to somebody who announces it.
pub(super) fn is_fine(listener: &Value) -> bool {
    let vips = listener["vips"].as_array().into_iter().flatten();
    vips.into_iter()
        .all(|v| v["hops"].as_array().is_some_and(|hops| !hops.is_empty()) && v["held"] == 0 && !all_fail(v))
}

/// The tables of members and of VIPs, and the orders that stand.
pub(super) fn render(listener: &Value) -> String {
    let mut members = table(&["member", "AS", "range", "session", "for", "vips", "ignored", "last end"]);
    for member in listener["members"].as_array().into_iter().flatten() {
        members.add_row([
            address(member),
            member.get("asn").map_or_else(|| "-".to_owned(), word),
            word(&member["accept"]),
            word(&member["session_state"]),
            age(&member["since"]),
            standings(&member["vips"]),
            ignored(member),
            member.get("last_end").map_or_else(|| "-".to_owned(), end),
        ]);
    }
    let mut gone = table(&["gone", "range", "for", "times", "last"]);
    for address_of in listener["gone"].as_array().into_iter().flatten() {
        gone.add_row([
            address(address_of),
            address_of.get("accept").map_or_else(|| "none".to_owned(), word),
            age(&address_of["since"]),
            word(&address_of["times"]),
            end(address_of),
        ]);
    }
    let mut vips =
        table(&["listener vip", "prefix", "hashing", "members", "next hops", "busy", "balance", "last"]);
    for vip in listener["vips"].as_array().into_iter().flatten() {
        let since = vip.get("since").map_or_else(String::new, |s| format!(", {} ago", age(s)));
        vips.add_row([
            word(&vip["name"]),
            word(&vip["prefix"]),
            match &vip["buckets"] {
                Value::Null => word(&vip["hashing"]),
                buckets => format!("{} {}", word(&vip["hashing"]), word(buckets)),
            },
            count(vip),
            hops(vip),
            busy(vip),
            balance(vip),
            format!("{}{since}", word(&vip["reason"])),
        ]);
    }
    let mut text = format!("\n{members}\n\n{vips}\n");
    if !gone.is_empty() {
        // Writing to a String does not fail.
        let _ = writeln!(text, "\n{gone}");
    }
    for order in listener["orders"].as_array().into_iter().flatten() {
        let vip = order.get("vip").map_or_else(|| "every VIP".to_owned(), |v| format!("VIP {}", word(v)));
        let away = if order["connected"] == true { "" } else { ", and not connected" };
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "\nordered to drain: {} for {vip}, {} ago{away}; `standfast undrain {}` takes it back",
            word(&order["member"]),
            age(&order["since"]),
            word(&order["member"])
        );
    }
    if let Some(why) = listener["unsteered"].as_str() {
        let _ = writeln!(text, "\na drain cannot keep all new connections from its member: {why}");
    }
    text
}

/// Whether every member says that its checks fail: a floor of theirs holds them.
fn all_fail(vip: &Value) -> bool {
    vip["failing"].as_u64().is_some_and(|n| n > 0 && Some(n) == vip["members"].as_u64())
}

/// What a member is to a VIP: `web draining (by command), 42s left, 12 busy`.
pub(crate) fn standing(vip: &Value) -> String {
    let mut text = format!("{} {}", word(&vip["vip"]), word(&vip["state"]));
    if let Some(why) = vip["drains"].as_str() {
        let _ = write!(text, " ({why})");
    }
    if let Some(why) = vip["unrouted"].as_str() {
        let _ = write!(text, ", NOT ROUTED: {why}");
    } else if let Some(share) = vip["share"].as_f64().filter(|_| vip["state"] == "serving") {
        let _ = write!(text, " {}", percent(&json!(share)));
    }
    if vip["left"].is_number() {
        let _ = write!(text, ", {} left", age(&vip["left"]));
    }
    if let Some(busy) = vip["busy"].as_u64().filter(|_| vip["state"] == "draining") {
        let _ = write!(text, ", {busy} busy");
        if let Some(moved) = vip["moved"].as_u64().filter(|&n| n > 0) {
            let _ = write!(text, " and {moved} moved");
        }
    }
    text
}

fn standings(vips: &Value) -> String {
    let vips = vips.as_array().map(Vec::as_slice).unwrap_or_default();
    match vips.len() {
        0 => "-".to_owned(),
        1..=ONE_BY_ONE => vips.iter().map(standing).collect::<Vec<_>>().join("\n"),
        _ => {
            let mut counts: BTreeMap<String, usize> = BTreeMap::new();
            for vip in vips {
                *counts.entry(word(&vip["state"])).or_default() += 1;
            }
            counts.iter().map(|(state, n)| format!("{n} {state}")).collect::<Vec<_>>().join("\n")
        }
    }
}

/// What a member announced in vain: how often for which reason, and the latest of each.
fn ignored(member: &Value) -> String {
    let because = member["ignored_because"].as_object().into_iter().flatten();
    let line = |(why, n): (&String, &Value)| {
        let last = member["ignored_last"].as_array().into_iter().flatten();
        let of = last.filter(|i| i["because"].as_str() == Some(why)).take(NAMED);
        let via = |i: &Value| i.get("next_hop").map_or_else(String::new, |hop| format!(" via {}", word(hop)));
        let names: Vec<String> = of.map(|i| word(&i["prefix"]) + &via(i)).collect();
        match names.is_empty() {
            true => format!("{n}: {why}"),
            false => format!("{n}: {why} ({})", names.join(", ")),
        }
    };
    let lines: Vec<String> = because.map(line).collect();
    if lines.is_empty() { "-".to_owned() } else { lines.join("\n") }
}

/// Why a session ended, or none came up.
fn end(end: &Value) -> String {
    format!("{} ago: {}", age(&end["ago"]), word(&end["why"]))
}

/// How full the buckets are, and when that was counted.
fn busy(vip: &Value) -> String {
    let Some(share) = vip.get("busy_share") else { return "-".to_owned() };
    format!("{}, {} ago", percent(share), age(&vip["counted"]))
}

/// Whether the buckets are where they should be, and since when; else how many are not, and for how long yet.
fn balance(vip: &Value) -> String {
    let since = age(&vip["balance_since"]);
    match vip["to_move"].as_u64() {
        None => "-".to_owned(),
        Some(0) => format!("balanced {since}"),
        Some(n) => match vip.get("balanced_in") {
            Some(left) => format!("{n} to move, about {}", age(left)),
            None => format!("{n} to move, none did for {since}"),
        },
    }
}

fn count(vip: &Value) -> String {
    let mut text = word(&vip["members"]);
    if let Some(floor) = vip["floor"].as_u64() {
        let _ = write!(text, " (floor {floor})");
    }
    if let Some(held) = vip["held"].as_u64().filter(|&n| n > 0) {
        let _ = write!(text, ", {held} HELD");
    }
    if let Some(failing) = vip["failing"].as_u64().filter(|&n| n > 0) {
        let sick = if all_fail(vip) { "ALL OF THEM FAILING" } else { "failing" };
        let _ = write!(text, ", {failing} {sick}");
    }
    if let Some(draining) = vip["draining"].as_u64().filter(|&n| n > 0) {
        let _ = write!(text, ", {draining} draining");
    }
    text
}

fn hops(vip: &Value) -> String {
    let hop = |hop: &Value| {
        let mut text = address(hop);
        if hop["unrouted"].is_string() {
            text += " NOT ROUTED";
        } else if hop["draining"] == true {
            text += " draining";
        } else {
            let _ = write!(text, " {}", percent(&hop["share"]));
        }
        match (hop["busy"].as_u64(), hop["buckets"].as_u64()) {
            (Some(busy), Some(buckets)) => {
                let _ = write!(text, ", {busy} of {buckets} busy");
                if let Some(moved) = hop["moved"].as_u64().filter(|&n| n > 0) {
                    let _ = write!(text, " and {moved} moved");
                }
                // What rounding makes of shares is nothing.
                if let Some(wanted) = hop["wanted"].as_u64().filter(|w| w.abs_diff(buckets) > 1) {
                    let _ = write!(text, ", {wanted} due");
                }
            }
            (None, Some(slots)) => {
                let _ = write!(text, ", {slots} slots");
            }
            _ => {}
        }
        text
    };
    let hops = vip["hops"].as_array().map(Vec::as_slice).unwrap_or_default();
    if hops.is_empty() { "NONE".to_owned() } else { hops.iter().map(hop).collect::<Vec<_>>().join("\n") }
}

fn address(of: &Value) -> String {
    let address = word(&of["address"]);
    of["interface"].as_str().map_or_else(|| address.clone(), |interface| format!("{address}%{interface}"))
}

fn percent(part: &Value) -> String {
    let percent = part.as_f64().unwrap_or_default() * 100.0;
    if percent > 0.0 && percent < 1.0 { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener() -> Value {
        json!({
            "members": [
                { "address": "192.0.2.11", "accept": "gateways", "asn": 64513, "session_state": "established", "since": 300.0,
                  "ignored_because": { "no VIP of this listener": 3, "the next hop is not the member": 1 },
                  "ignored_last": [
                    { "prefix": "198.51.100.10/32", "next_hop": "192.0.2.9", "because": "the next hop is not the member", "ago": 1.0 },
                    { "prefix": "10.0.0.0/8", "because": "no VIP of this listener", "ago": 2.0 },
                    { "prefix": "10.0.0.0/9", "because": "no VIP of this listener", "ago": 3.0 } ],
                  "last_end": { "why": "connection closed: reset by the peer", "ago": 320.0, "times": 1, "was_established": true },
                  "vips": [
                    { "vip": "web", "state": "serving", "share": 0.25 },
                    { "vip": "dns", "state": "held", "left": 500.0, "share": 1.0 },
                    { "vip": "six", "state": "serving", "share": 1.0,
                      "unrouted": "the next hop 2001:db8::11 is on no network of this host" } ] },
                { "address": "fe80::12", "interface": "eth0", "accept": "gateways", "session_state": "opensent", "since": 1.0,
                  "ignored_because": {}, "vips": [
                    { "vip": "web", "state": "draining", "drains": "GRACEFUL_SHUTDOWN", "left": 42.0, "busy": 12, "share": 0.0 } ] },
            ],
            "vips": [
                { "name": "web", "prefix": "198.51.100.10/32", "hashing": "resilient", "buckets": 1024, "members": 1, "held": 0,
                  "draining": 1, "floor": 2, "busy_share": 0.125, "counted": 7.0, "to_move": 200, "balance_since": 40.0,
                  "balanced_in": 130.0, "since": 5.0,
                  "reason": "192.0.2.12 drains (GRACEFUL_SHUTDOWN)",
                  "hops": [{ "address": "192.0.2.11", "share": 1.0, "draining": false, "buckets": 1012, "busy": 116, "moved": 7, "wanted": 1024 },
                           { "address": "fe80::12", "interface": "eth0", "share": 0.0, "draining": true, "buckets": 12, "busy": 12 }] },
                { "name": "pair", "prefix": "198.51.100.11/32", "hashing": "consistent", "buckets": 120, "members": 0, "held": 0,
                  "draining": 0, "reason": "no member yet", "hops": [] },
                { "name": "six", "prefix": "2001:db8:100::10/128", "hashing": "plain", "members": 1, "held": 0, "draining": 0,
                  "reason": "192.0.2.11 serves", "hops": [{ "address": "2001:db8::11", "share": 1.0, "draining": false,
                  "unrouted": "the next hop 2001:db8::11 is on no network of this host" }] },
            ],
            "orders": [{ "member": "192.0.2.13", "since": 61.0, "connected": false }],
            "gone": [
                { "address": "192.0.2.13", "accept": "gateways", "since": 600.0, "ago": 3.0, "times": 40, "was_established": true,
                  "why": "the AS is 64999 (sent NOTIFICATION 2/2 bad peer AS)" },
                { "address": "203.0.113.9", "since": 1.0, "ago": 1.0, "times": 1, "was_established": false,
                  "why": "no neighbor has this address and no range covers it" } ],
            "unsteered": "there is no program nft (install the package nftables)",
        })
    }

    #[test]
    fn a_person_finds_members_groups_countdowns_and_reasons() {
        let text = render(&listener());
        for part in [
            "64513",
            "web serving 25%",
            "dns held, 8m left",
            "3: no VIP of this listener (10.0.0.0/8, 10.0.0.0/9)",
            "1: the next hop is not the member (198.51.100.10/32 via 192.0.2.9)",
            "5m ago: connection closed: reset by the peer",
            "192.0.2.13   gateways  10m   40     3.0s ago: the AS is 64999",
            "203.0.113.9  none ",
            "six serving, NOT ROUTED: the next hop 2001:db8::11 is on no network of this host",
            "2001:db8::11 NOT ROUTED",
            "fe80::12%eth0",
            "web draining (GRACEFUL_SHUTDOWN), 42s left, 12 busy",
            "resilient 1024",
            "1 (floor 2), 1 draining",
            "192.0.2.11 100%, 116 of 1012 busy and 7 moved, 1024 due",
            "fe80::12%eth0 draining, 12 of 12 busy",
            "12%, 7.0s ago",
            "200 to move, about 2m",
            "192.0.2.12 drains (GRACEFUL_SHUTDOWN), 5.0s ago",
            "NONE",
            "ordered to drain: 192.0.2.13 for every VIP, 61s ago, and not connected",
            "a drain cannot keep all new connections from its member: there is no program nft",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }

    #[test]
    fn a_vip_without_a_hop_or_with_one_that_is_held_is_not_fine() {
        let mut status = listener();
        assert!(!is_fine(&status));
        status["vips"].as_array_mut().unwrap().remove(1);
        assert!(is_fine(&status));
        status["vips"][0]["held"] = 1.into();
        assert!(!is_fine(&status));
    }
}
