//! The table of BFD sessions: with peers and members alike.

use comfy_table::Table;
use serde_json::Value;

use super::{age, interval, table, word};

/// Every BFD session of a status; `None` if it has none.
pub(super) fn sessions(status: &Value) -> Option<Table> {
    let mut rows =
        table(&["bfd", "state", "for", "sends each", "hears each", "notices in", "losses", "note"]);
    let peers = status["peers"].as_array().into_iter().flatten();
    let peers = peers.map(|p| (format!("peer {}", word(&p["name"])), &p["bfd"]));
    let members = status["listener"]["members"].as_array().into_iter().flatten();
    let members = members.map(|m| (format!("member {}", word(&m["address"])), &m["bfd"]));
    for (name, bfd) in peers.chain(members).filter(|(_, bfd)| bfd.is_object()) {
        rows.add_row([
            name,
            word(&bfd["state"]),
            age(&bfd["since"]),
            interval(&bfd["tx_interval"]),
            interval(&bfd["rx_interval"]),
            interval(&bfd["detection_time"]),
            word(&bfd["losses"]),
            note(bfd),
        ]);
    }
    (!rows.is_empty()).then_some(rows)
}

/// What is not as it should be.
fn note(bfd: &Value) -> String {
    let mut notes = Vec::new();
    if bfd["state"] != "up" {
        notes.push(word(&bfd["reason"]));
        if let Some(refusal) = bfd["last_refusal"].as_str() {
            notes.push(format!("what the peer sends is dropped: {refusal}"));
        }
    }
    if let Some(why) = bfd["unsent"].as_str() {
        notes.push(format!("cannot send: {why}"));
    }
    if bfd["demanded"] == true {
        notes.push("the peer asks for demand mode".to_owned());
    }
    notes.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_person_sees_how_fast_a_dead_peer_is_noticed_and_what_is_wrong() {
        let up = json!({ "state": "up", "since": 12.0, "tx_interval": 0.05, "rx_interval": 0.05, "detection_time": 0.15,
            "losses": 2, "reason": "up", "refused": 1, "last_refusal": "its packets are cut off" });
        let down = json!({ "state": "down", "since": 3.0, "tx_interval": 1.0, "losses": 0, "reason": "not up yet",
            "refused": 9, "last_refusal": "its packets are made with another key" });
        let status = json!({ "peers": [{ "name": "front", "bfd": up }, { "name": "plain" }],
            "listener": { "members": [{ "address": "192.0.2.11", "bfd": down }] } });
        let text = sessions(&status).unwrap().to_string();
        for part in
            ["peer front", "50ms", "150ms", "member 192.0.2.11", "not up yet; what the peer sends is dropped"]
        {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains("plain") && !text.contains("cut off"), "{text}");
        assert!(sessions(&json!({ "peers": [{ "name": "plain" }], "listener": null })).is_none());
    }
}
