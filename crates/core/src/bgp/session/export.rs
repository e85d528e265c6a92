//! What a session tells its peer: the wanted table resolved for this peer, and the difference to what it was told.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::{Session, SessionOutput, WINDOW, is_link_local};
use crate::bgp::wire;
use crate::bgp::{Negotiated, Path};
use crate::machine::{Time, earliest};
use crate::plan::Attributes;
use crate::prefix::{Afi, Prefix};
use crate::table::{Change, diff};

/// At most one answer to route refresh requests in this time.
const REFRESH_PAUSE: Duration = Duration::from_secs(1);

impl Session {
    /// Works out what each wanted prefix looks like on this session, and which cannot be told and why.
    pub(super) fn resolve(&mut self) {
        self.wanted.clear();
        self.held.clear();
        let Some(i) = self.established() else { return };
        let connection = &self.connections[i];
        let Some(n) = &connection.negotiated else { return };
        for (&prefix, attributes) in self.rib.iter() {
            let path = self
                .next_hop(prefix.afi(), n, connection.local.ip())
                .map(|next_hop| self.path(next_hop, attributes, self.internal(n.asn)))
                .and_then(|path| match wire::fits(prefix, &path, n.four_octet_as) {
                    true => Ok(path),
                    false => Err("its attributes are too long for one message: use fewer communities".into()),
                });
            match path {
                Ok(path) => {
                    self.wanted.insert(prefix, path);
                }
                Err(why) => {
                    self.held.insert(prefix, why);
                }
            }
        }
    }

    fn next_hop(&self, afi: Afi, n: &Negotiated, local: IpAddr) -> Result<IpAddr, String> {
        if !n.has(afi) {
            return Err(format!("the peer does not take {afi} routes on this session"));
        }
        let v4 = self.config.next_hop_v4.or(match local {
            IpAddr::V4(a) => Some(a),
            IpAddr::V6(a) => a.to_ipv4_mapped(),
        });
        let v6 = self.config.next_hop_v6.or(match local {
            IpAddr::V6(a) if !is_link_local(a) && a.to_ipv4_mapped().is_none() => Some(a),
            _ => None,
        });
        match afi {
            Afi::Ipv4 if n.extended_next_hop && v4.is_none() => {
                v6.map(IpAddr::V6).ok_or_else(|| "there is no IPv6 next hop: set router.local_address_ipv6".into())
            }
            Afi::Ipv4 => v4.map(IpAddr::V4).ok_or_else(|| {
                "there is no IPv4 next hop on this IPv6 session: set router.local_address to an IPv4 address, \
                 or extended_next_hop on the neighbor"
                    .into()
            }),
            Afi::Ipv6 => v6.map(IpAddr::V6).ok_or_else(|| {
                "there is no IPv6 next hop on this IPv4 session: set router.local_address_ipv6".into()
            }),
        }
    }

    fn path(&self, next_hop: IpAddr, a: &Attributes, internal: bool) -> Path {
        let count = if internal { 0 } else { 1 + usize::from(a.as_path_prepend) };
        Path {
            next_hop,
            as_path: vec![self.config.local_asn; count],
            local_pref: internal.then(|| a.local_pref.unwrap_or(100)),
            med: a.med,
            communities: a.communities.iter().copied().collect(),
            large_communities: a.large_communities.iter().copied().collect(),
            extended_communities: a.extended_communities.iter().copied().collect(),
        }
    }

    /// Sends what differs between told and wanted, as long as the peer reads.
    pub(super) fn pump(&mut self, now: Time, out: &mut Vec<SessionOutput>) {
        let Some(i) = self.established() else { return };
        let four_octet_as = self.connections[i].negotiated.as_ref().is_none_or(|n| n.four_octet_as);
        if self.connections[i].queued >= WINDOW {
            return;
        }
        if !self.refresh.is_empty() && self.refresh_after <= now {
            let refresh = std::mem::take(&mut self.refresh);
            self.resend.extend(self.told.keys().filter(|p| refresh.contains(&p.afi())));
            self.refresh_after = now + REFRESH_PAUSE;
        }
        let mut withdrawals: BTreeMap<(Afi, bool), Vec<Prefix>> = BTreeMap::new();
        let mut announcements: Vec<(Path, Afi, Vec<Prefix>)> = Vec::new();
        let again = |p: &Prefix| {
            let path = self.wanted.get(p).filter(|&path| self.told.get(p) == Some(path))?;
            Some(Change::Set(*p, path.clone()))
        };
        for change in diff(&self.told, &self.wanted).into_iter().chain(self.resend.iter().filter_map(again)) {
            match change {
                Change::Remove(p) => {
                    let multiprotocol = self.told.get(&p).is_some_and(|t| t.next_hop.is_ipv6());
                    withdrawals.entry((p.afi(), multiprotocol)).or_default().push(p);
                }
                Change::Set(p, path) => {
                    let group = announcements.iter_mut().rev().take(64);
                    match group.into_iter().find(|(of, afi, _)| *of == path && *afi == p.afi()) {
                        Some((_, _, prefixes)) => prefixes.push(p),
                        None => announcements.push((path, p.afi(), vec![p])),
                    }
                }
            }
        }
        // What must go goes first.
        for ((_, multiprotocol), prefixes) in withdrawals {
            for (octets, prefixes) in pack(&prefixes, |p| wire::withdraw(p, multiprotocol)) {
                if self.connections[i].queued >= WINDOW {
                    return;
                }
                self.connections[i].send(now, octets, out);
                self.updates_sent += 1;
                for p in prefixes {
                    self.told.remove(p);
                    self.resend.remove(p);
                }
            }
        }
        for (path, _, prefixes) in announcements {
            for (octets, prefixes) in pack(&prefixes, |p| wire::announce(p, &path, four_octet_as)) {
                if self.connections[i].queued >= WINDOW {
                    return;
                }
                self.connections[i].send(now, octets, out);
                self.updates_sent += 1;
                for &p in prefixes {
                    self.told.insert(p, path.clone());
                    self.resend.remove(&p);
                }
            }
        }
        if self.end_of_rib_due.is_some_and(|at| at <= now || self.settled) && self.stopped.is_none() {
            self.end_of_rib_due = None;
            let families = self.connections[i].negotiated.as_ref().map(|n| (n.ipv4, n.ipv6));
            for (on, afi) in families.map_or(vec![], |(v4, v6)| vec![(v4, Afi::Ipv4), (v6, Afi::Ipv6)]) {
                if on {
                    self.connections[i].send(now, wire::end_of_rib(afi), out);
                }
            }
        }
    }

    /// When the pump has something to do that no input brings: only while the peer reads, else `Written` comes first.
    pub(super) fn pump_deadline(&self) -> Option<(Time, &'static str)> {
        let i = self.established()?;
        if self.connections[i].queued >= WINDOW {
            return None;
        }
        let refresh = (!self.refresh.is_empty()).then_some((self.refresh_after, "route refresh"));
        earliest(refresh, self.end_of_rib_due.map(|t| (t, "end of rib")))
    }
}

/// Cuts `prefixes` into as few messages as fit; one prefix that fits no message is left out.
fn pack(prefixes: &[Prefix], encode: impl Fn(&[Prefix]) -> Option<Bytes>) -> Vec<(Bytes, &[Prefix])> {
    let mut messages = Vec::new();
    let mut rest = prefixes;
    let mut size = prefixes.len();
    while !rest.is_empty() {
        size = size.clamp(1, rest.len());
        match encode(&rest[..size]) {
            Some(octets) => {
                messages.push((octets, &rest[..size]));
                rest = &rest[size..];
            }
            None if size == 1 => rest = &rest[1..],
            None => size = size.div_ceil(2).min(size - 1),
        }
    }
    messages
}
