//! What a router believes: one answer for BIRD, FRR and GoBGP.

use std::net::IpAddr;

use serde_json::Value;

use crate::daemons::{Daemon, Kind};

/// The best path of a prefix, as a router shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Route {
    /// AS numbers from the nearest on.
    pub as_path: Vec<u32>,
    /// Standard communities.
    pub communities: Vec<(u16, u16)>,
    /// Large communities.
    pub large: Vec<(u32, u32, u32)>,
    /// MULTI_EXIT_DISC, if it has one. FRR shows 0 for none.
    pub med: Option<u32>,
    /// LOCAL_PREF, if the router shows one.
    pub local_pref: Option<u32>,
    /// NEXT_HOP.
    pub next_hop: Option<IpAddr>,
}

impl Daemon {
    /// The best path to exactly this prefix; `None` if it knows none.
    pub fn route(&self, prefix: &str) -> Option<Route> {
        match self.kind() {
            Kind::Bird => bird(&self.ask(&format!("show route {prefix} all"))),
            Kind::Frr => {
                let family = if prefix.contains(':') { "ipv6" } else { "ipv4" };
                frr(&self.ask(&format!("show bgp {family} unicast {prefix} json")))
            }
            Kind::Gobgp => {
                let family = if prefix.contains(':') { "ipv6" } else { "ipv4" };
                gobgp(&self.ask(&format!("global rib {prefix} -a {family}")), prefix)
            }
            other => panic!("{other:?} has no routes to ask for"),
        }
    }

    /// Whether the session with this address is established.
    pub fn established(&self, peer: impl Into<IpAddr>) -> bool {
        let peer = peer.into();
        match self.kind() {
            // BIRD names protocols, so the details tell which is whose.
            Kind::Bird => self.ask("show protocols all").split("\n\n").any(|protocol| {
                protocol.contains("Established")
                    && protocol.lines().any(|line| line.trim() == format!("Neighbor address: {peer}"))
            }),
            Kind::Frr => {
                let answer = parse(&self.ask(&format!("show bgp neighbors {peer} json")));
                answer[peer.to_string()]["bgpState"] == "Established"
            }
            Kind::Gobgp => {
                let answer = parse(&self.ask(&format!("neighbor {peer}")));
                answer["state"]["session_state"] == 6
            }
            other => panic!("{other:?} has no sessions to ask for"),
        }
    }

    /// How many prefixes it learned from this neighbour.
    pub fn learned(&self, peer: impl Into<IpAddr>) -> usize {
        let peer = peer.into();
        match self.kind() {
            Kind::Bird => {
                // One line per table: `2 of 7 routes for 7 networks in table master4`.
                let answer = self.ask(&format!("show route where from = {peer} count"));
                let tables = answer.lines().filter(|line| line.contains(" in table "));
                tables
                    .filter_map(|line| line.split_whitespace().find_map(|word| word.parse::<usize>().ok()))
                    .sum()
            }
            other => panic!("{other:?} is not asked for counts"),
        }
    }
}

/// Reads `show route … all` of birdc. The best path comes first.
fn bird(text: &str) -> Option<Route> {
    let start = text.find("BGP.origin").or_else(|| text.find("BGP.as_path"))?;
    let mut route = Route::default();
    let mut seen = false;
    for line in text[start..].lines() {
        let Some((key, value)) = line.trim().split_once(':') else {
            // The first line of a further path.
            if seen && !line.starts_with('\t') {
                break;
            }
            continue;
        };
        let value = value.trim();
        match key {
            "BGP.as_path" => route.as_path = numbers(value),
            "BGP.next_hop" => route.next_hop = value.split(' ').next().and_then(|a| a.parse().ok()),
            "BGP.med" => route.med = value.parse().ok(),
            "BGP.local_pref" => route.local_pref = value.parse().ok(),
            "BGP.community" => route.communities = pairs(value),
            "BGP.large_community" => route.large = triples(value),
            _ => {}
        }
        seen = true;
    }
    Some(route)
}

fn frr(text: &str) -> Option<Route> {
    let answer = parse(text);
    let paths = answer["paths"].as_array()?;
    let best = paths.iter().find(|path| path["bestpath"]["overall"] == true).or_else(|| paths.first())?;
    Some(Route {
        as_path: numbers(best["aspath"]["string"].as_str()?),
        communities: best["community"]["string"].as_str().map_or_else(Vec::new, pairs),
        large: best["largeCommunity"]["string"].as_str().map_or_else(Vec::new, triples),
        med: small(&best["metric"]),
        local_pref: small(&best["locPrf"]),
        next_hop: best["nexthops"][0]["ip"].as_str().and_then(|a| a.parse().ok()),
    })
}

fn gobgp(text: &str, prefix: &str) -> Option<Route> {
    let answer = parse(text);
    let paths = answer[prefix].as_array()?;
    let best = paths.iter().find(|path| path["best"] == true).or_else(|| paths.first())?;
    let mut route = Route::default();
    for attribute in best["attrs"].as_array()? {
        match attribute["type"].as_u64()? {
            2 => {
                let segments = attribute["as_paths"].as_array().into_iter().flatten();
                let numbers = segments.filter_map(|segment| segment["asns"].as_array()).flatten();
                route.as_path = numbers.filter_map(small).collect();
            }
            3 => route.next_hop = attribute["nexthop"].as_str().and_then(|a| a.parse().ok()),
            4 => route.med = small(&attribute["metric"]),
            5 => route.local_pref = small(&attribute["value"]),
            8 => {
                let values = attribute["communities"].as_array().into_iter().flatten().filter_map(small);
                route.communities = values.map(|c| ((c >> 16) as u16, (c & 0xffff) as u16)).collect();
            }
            14 => route.next_hop = attribute["nexthop"].as_str().and_then(|a| a.parse().ok()),
            32 => {
                let values = attribute["value"].as_array().into_iter().flatten();
                let part = |value: &Value, key: &str| small(&value[key]);
                route.large = values
                    .filter_map(|v| Some((part(v, "ASN")?, part(v, "LocalData1")?, part(v, "LocalData2")?)))
                    .collect();
            }
            _ => {}
        }
    }
    Some(route)
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or(Value::Null)
}

fn small(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|n| u32::try_from(n).ok())
}

/// Every number of a text, whatever stands between them.
fn numbers(text: &str) -> Vec<u32> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

fn pairs(text: &str) -> Vec<(u16, u16)> {
    let halves: Vec<_> = numbers(text).into_iter().filter_map(|n| u16::try_from(n).ok()).collect();
    halves.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
}

fn triples(text: &str) -> Vec<(u32, u32, u32)> {
    numbers(text).chunks_exact(3).map(|three| (three[0], three[1], three[2])).collect()
}
