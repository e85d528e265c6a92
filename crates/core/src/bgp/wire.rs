//! Octets to messages and back: the only file that names the codec crate.
//!
//! Frames are cut here and bounded at 4096 octets, the length of each message type is checked (RFC 4271 §6.1), and
//! every decode error is the NOTIFICATION to send. UPDATEs go through both the revised parse and the attribute
//! validation of the codec: a missing AS_PATH is caught only by the second.

use bytes::{Bytes, BytesMut};
use rustbgpd_wire as w;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::{AS_TRANS, Notification, Path};
use crate::prefix::{Afi, Prefix};

/// Longest message: extended messages are not offered.
pub(super) const MAX_MESSAGE: u16 = 4096;

/// A decoded message.
#[derive(Debug)]
pub(super) enum Message {
    Open(Open),
    Update(w::UpdateMessage),
    Notification(Notification),
    Keepalive,
    /// `None`: a family or kind that is not ours to answer.
    RouteRefresh(Option<Afi>),
}

/// The parts of an OPEN that we offer or understand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Open {
    pub(super) asn: u32,
    pub(super) two_octet_asn: u16,
    pub(super) four_octet_as: bool,
    pub(super) hold: Duration,
    pub(super) router_id: Ipv4Addr,
    /// IPv4 and IPv6 unicast; `None`: no multiprotocol capability at all, which means IPv4 alone (RFC 4760 §8).
    pub(super) families: Option<(bool, bool)>,
    pub(super) extended_next_hop: bool,
    /// Always offered.
    pub(super) route_refresh: bool,
    pub(super) graceful_restart: Option<GracefulRestart>,
}

/// The graceful restart capability (RFC 4724 §3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GracefulRestart {
    pub(super) restarting: bool,
    pub(super) notification: bool,
    pub(super) time: Duration,
}

impl Open {
    pub(super) fn encode(&self) -> Bytes {
        let (v4, v6) = self.families.unwrap_or((true, false));
        let families: Vec<_> = [(v4, w::Afi::Ipv4), (v6, w::Afi::Ipv6)]
            .into_iter()
            .filter_map(|(on, afi)| on.then_some((afi, w::Safi::Unicast)))
            .collect();
        let mut capabilities: Vec<w::Capability> =
            families.iter().map(|&(afi, safi)| w::Capability::MultiProtocol { afi, safi }).collect();
        capabilities.push(w::Capability::RouteRefresh);
        capabilities.push(w::Capability::FourOctetAs { asn: self.asn });
        if self.extended_next_hop {
            capabilities.push(w::Capability::ExtendedNextHop(vec![w::ExtendedNextHopFamily {
                nlri_afi: w::Afi::Ipv4,
                nlri_safi: w::Safi::Unicast,
                next_hop_afi: w::Afi::Ipv6,
            }]));
        }
        if let Some(gr) = self.graceful_restart {
            let family = |&(afi, safi)| w::GracefulRestartFamily { afi, safi, forwarding_preserved: true };
            capabilities.push(w::Capability::GracefulRestart {
                restart_state: gr.restarting,
                notification: gr.notification,
                restart_time: u16::try_from(gr.time.as_secs()).unwrap_or(4095).min(4095),
                families: families.iter().map(family).collect(),
            });
        }
        encode(&w::Message::Open(w::OpenMessage {
            version: 4,
            my_as: u16::try_from(self.asn).unwrap_or(AS_TRANS),
            hold_time: u16::try_from(self.hold.as_secs()).unwrap_or(u16::MAX),
            bgp_identifier: self.router_id,
            capabilities,
        }))
    }

    fn decode(open: &w::OpenMessage) -> Self {
        let mut this = Self {
            asn: open.four_byte_as(),
            two_octet_asn: open.my_as,
            four_octet_as: false,
            hold: Duration::from_secs(open.hold_time.into()),
            router_id: open.bgp_identifier,
            families: None,
            extended_next_hop: false,
            route_refresh: false,
            graceful_restart: None,
        };
        for capability in &open.capabilities {
            match capability {
                w::Capability::MultiProtocol { afi, safi } => {
                    let families = this.families.get_or_insert((false, false));
                    match (afi, safi) {
                        (w::Afi::Ipv4, w::Safi::Unicast) => families.0 = true,
                        (w::Afi::Ipv6, w::Safi::Unicast) => families.1 = true,
                        _ => {}
                    }
                }
                // A multiprotocol capability of a family the codec does not know is still an explicit list.
                w::Capability::Unknown { code: 1, .. } => {
                    this.families.get_or_insert((false, false));
                }
                w::Capability::RouteRefresh => this.route_refresh = true,
                w::Capability::FourOctetAs { .. } => this.four_octet_as = true,
                w::Capability::ExtendedNextHop(list) => {
                    let ours = (w::Afi::Ipv4, w::Safi::Unicast, w::Afi::Ipv6);
                    this.extended_next_hop |=
                        list.iter().any(|f| (f.nlri_afi, f.nlri_safi, f.next_hop_afi) == ours);
                }
                w::Capability::GracefulRestart { restart_state, notification, restart_time, .. } => {
                    this.graceful_restart = Some(GracefulRestart {
                        restarting: *restart_state,
                        notification: *notification,
                        time: Duration::from_secs((*restart_time).into()),
                    });
                }
                _ => {}
            }
        }
        this
    }
}

/// Takes the next whole message out of `buffer`; `None` if more octets are needed.
pub(super) fn next_message(buffer: &mut BytesMut) -> Option<Result<Message, Notification>> {
    let length = match w::peek_message_length(buffer, MAX_MESSAGE) {
        Ok(length) => usize::from(length?),
        Err(e) => return Some(Err(notification_of(&e))),
    };
    let fits = match buffer[18] {
        1 => length >= 29,
        2 => length >= 23,
        3 => length >= 21,
        // RFC 2918 §3; what makes it longer (RFC 5291) is not offered.
        5 => length == 23,
        _ => length == 19,
    };
    if !fits {
        let data = Bytes::copy_from_slice(&buffer[16..18]);
        return Some(Err(Notification { code: 1, subcode: 2, data }));
    }
    if buffer.len() < length {
        return None;
    }
    let mut frame = buffer.split_to(length).freeze();
    Some(match w::decode_message(&mut frame, MAX_MESSAGE) {
        Ok(w::Message::Open(open)) => Ok(Message::Open(Open::decode(&open))),
        Ok(w::Message::Update(update)) => Ok(Message::Update(update)),
        Ok(w::Message::Notification(n)) => {
            Ok(Message::Notification(Notification { code: n.code.as_u8(), subcode: n.subcode, data: n.data }))
        }
        Ok(w::Message::Keepalive) => Ok(Message::Keepalive),
        Ok(w::Message::RouteRefresh(r)) => Ok(Message::RouteRefresh(match (r.afi(), r.safi()) {
            _ if r.subtype_raw != 0 => None,
            (Some(w::Afi::Ipv4), Some(w::Safi::Unicast)) => Some(Afi::Ipv4),
            (Some(w::Afi::Ipv6), Some(w::Safi::Unicast)) => Some(Afi::Ipv6),
            _ => None,
        })),
        // The length field was whole, so a body that ends early contradicts itself.
        Err(w::DecodeError::Incomplete { .. }) => Err(Notification::new(1, 2)),
        Ok(_) => Err(Notification::new(1, 3)),
        Err(e) => Err(notification_of(&e)),
    })
}

fn notification_of(e: &w::DecodeError) -> Notification {
    let (code, subcode, data) = e.to_notification();
    Notification { code: code.as_u8(), subcode, data }
}

/// What an UPDATE says, after RFC 7606.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Update {
    /// Prefixes with their path.
    pub announced: Vec<(Prefix, Path)>,
    /// Prefixes that are gone, those of a malformed announcement included (treat-as-withdraw).
    pub withdrawn: Vec<Prefix>,
    /// Of these, prefixes that an external peer announced with an AS_PATH that does not begin with its own AS.
    pub not_its_path: Vec<Prefix>,
    /// What was wrong with it, if the session can go on all the same.
    pub malformed: Option<String>,
}

/// Parses an UPDATE from a peer: whole, with attributes dropped, as a withdrawal, or a session reset (RFC 7606 §2). From an
/// `external` peer, of this AS, LOCAL_PREF does not count (RFC 4271 §5.1.5), and an AS_PATH that does not begin with its AS is a
/// withdrawal (RFC 4271 §6.3). Of two next hops (RFC 2545 §3) the link-local one counts if `link_local`, else the global one.
pub(super) fn parse_update(
    message: &w::UpdateMessage,
    four_octet_as: bool,
    external: Option<u32>,
    link_local: bool,
) -> Result<Update, Notification> {
    let internal = external.is_none();
    let revised =
        message.parse_revised(four_octet_as, internal, false, &[]).map_err(|e| notification_of(&e))?;
    let mut parsed = revised.update;
    for attribute in &mut parsed.attributes {
        // The first next hop is nothing (::) where the speaker has no global address on the link, as BIRD does it.
        if let w::PathAttribute::MpReachNlri(mp) = attribute
            && let Some(second) = mp.link_local_next_hop.filter(|_| link_local)
        {
            mp.next_hop = IpAddr::V6(second);
        }
    }
    let mut update = Update::default();
    let mut worst = None;
    for malformed in revised.malformed {
        worst = worst.max(Some(malformed.disposition));
        update.malformed = Some(format!("attribute {}: {}", malformed.type_code, malformed.error));
    }
    let mut path = Path::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let mut its_path = internal;
    let mut announced: Vec<(Prefix, Option<IpAddr>)> =
        parsed.announced.iter().map(|e| (prefix_of(&w::Prefix::V4(e.prefix)), None)).collect();
    update.withdrawn.extend(parsed.withdrawn.iter().map(|e| prefix_of(&w::Prefix::V4(e.prefix))));
    for attribute in &parsed.attributes {
        match attribute {
            w::PathAttribute::AsPath(p) => {
                // A path with sets does not come this far: it is a withdrawal (RFC 9774 §3).
                let asns = |s: &w::AsPathSegment| match s {
                    w::AsPathSegment::AsSet(a) | w::AsPathSegment::AsSequence(a) => a.clone(),
                };
                path.as_path = p.segments.iter().flat_map(asns).collect();
                its_path = internal || path.as_path.first().copied() == external;
            }
            w::PathAttribute::NextHop(a) => path.next_hop = IpAddr::V4(*a),
            w::PathAttribute::LocalPref(v) if internal => path.local_pref = Some(*v),
            w::PathAttribute::Med(v) => path.med = Some(*v),
            w::PathAttribute::Communities(v) | w::PathAttribute::CommunitiesPartial(v) => {
                path.communities.clone_from(v);
            }
            w::PathAttribute::LargeCommunities(v) | w::PathAttribute::LargeCommunitiesPartial(v) => {
                path.large_communities =
                    v.iter().map(|c| (c.global_admin, c.local_data1, c.local_data2)).collect();
            }
            w::PathAttribute::ExtendedCommunities(v) | w::PathAttribute::ExtendedCommunitiesPartial(v) => {
                path.extended_communities = v.iter().map(|c| c.as_u64().to_be_bytes()).collect();
            }
            w::PathAttribute::MpReachNlri(mp) if mp.safi == w::Safi::Unicast => {
                announced.extend(mp.announced.iter().map(|e| (prefix_of(&e.prefix), Some(mp.next_hop))));
            }
            w::PathAttribute::MpUnreachNlri(mp) if mp.safi == w::Safi::Unicast => {
                update.withdrawn.extend(mp.withdrawn.iter().map(|e| prefix_of(&e.prefix)));
            }
            _ => {}
        }
    }
    // On a link-local session a link-local next hop alone is what many speakers send.
    let mut options = w::validate::UpdateValidationOptions::default();
    options.link_local_next_hop = link_local;
    options.allow_ipv4_link_local_mp_reach_next_hop = link_local;
    if let Err(e) = w::validate::validate_update_attributes_with_options(
        &parsed.attributes,
        !announced.is_empty(),
        !parsed.announced.is_empty(),
        !internal,
        options,
    ) {
        if e.disposition == w::ErrorDisposition::SessionReset {
            return Err(Notification { code: 3, subcode: e.subcode, data: e.data.into() });
        }
        worst = worst.max(Some(e.disposition));
        update.malformed.get_or_insert_with(|| describe(&Notification::new(3, e.subcode)).to_owned());
    }
    match worst {
        Some(w::ErrorDisposition::SessionReset) => return Err(Notification::new(3, 1)),
        Some(w::ErrorDisposition::TreatAsWithdraw) => {
            update.withdrawn.extend(announced.into_iter().map(|(prefix, _)| prefix));
        }
        Some(w::ErrorDisposition::AttributeDiscard) | None if !its_path => {
            update.not_its_path.extend(announced.iter().map(|(prefix, _)| *prefix));
            update.withdrawn.extend(&update.not_its_path);
        }
        Some(w::ErrorDisposition::AttributeDiscard) | None => {
            for (prefix, next_hop) in announced {
                let next_hop = next_hop.unwrap_or(path.next_hop);
                update.announced.push((prefix, Path { next_hop, ..path.clone() }));
            }
        }
    }
    Ok(update)
}

fn prefix_of(p: &w::Prefix) -> Prefix {
    let (address, len) = match p {
        w::Prefix::V4(p) => (IpAddr::V4(p.addr), p.len),
        w::Prefix::V6(p) => (IpAddr::V6(p.addr), p.len),
    };
    // The codec zeroes host bits and bounds the length, so `new` does not refuse.
    Prefix::new(address, len).unwrap_or(Prefix::host(address))
}

fn nlri_of(p: &Prefix) -> w::NlriEntry {
    let prefix = match p.address() {
        IpAddr::V4(a) => w::Prefix::V4(w::Ipv4Prefix::new(a, p.len())),
        IpAddr::V6(a) => w::Prefix::V6(w::Ipv6Prefix::new(a, p.len())),
    };
    w::NlriEntry { path_id: 0, prefix }
}

fn body_nlri(prefixes: &[Prefix]) -> Vec<w::Ipv4NlriEntry> {
    prefixes
        .iter()
        .filter_map(|p| match p.address() {
            IpAddr::V4(a) => Some(w::Ipv4NlriEntry { path_id: 0, prefix: w::Ipv4Prefix::new(a, p.len()) }),
            IpAddr::V6(_) => None,
        })
        .collect()
}

/// One UPDATE that announces `prefixes`, all of one family, with `path`; `None` if it does not fit one message.
pub(super) fn announce(prefixes: &[Prefix], path: &Path, four_octet_as: bool) -> Option<Bytes> {
    let afi = prefixes.first()?.afi();
    let classic = afi == Afi::Ipv4 && path.next_hop.is_ipv4();
    let sequence = || vec![w::AsPathSegment::AsSequence(path.as_path.clone())];
    let segments = if path.as_path.is_empty() { vec![] } else { sequence() };
    let mut attributes =
        vec![w::PathAttribute::Origin(w::Origin::Igp), w::PathAttribute::AsPath(w::AsPath { segments })];
    if let (true, IpAddr::V4(next_hop)) = (classic, path.next_hop) {
        attributes.push(w::PathAttribute::NextHop(next_hop));
    }
    attributes.extend(path.med.map(w::PathAttribute::Med));
    attributes.extend(path.local_pref.map(w::PathAttribute::LocalPref));
    if !path.communities.is_empty() {
        attributes.push(w::PathAttribute::Communities(path.communities.clone()));
    }
    if !classic {
        attributes.push(w::PathAttribute::MpReachNlri(Box::new(w::MpReachNlri {
            afi: afi_of(afi),
            safi: w::Safi::Unicast,
            next_hop: path.next_hop,
            link_local_next_hop: None,
            announced: prefixes.iter().map(nlri_of).collect(),
            flowspec_announced: vec![],
            evpn_announced: vec![],
            bgpls_announced: vec![],
            vpn_announced: vec![],
            labeled_announced: vec![],
            rtc_announced: vec![],
        })));
    }
    if !path.extended_communities.is_empty() {
        let community = |c: &[u8; 8]| w::ExtendedCommunity::new(u64::from_be_bytes(*c));
        attributes.push(w::PathAttribute::ExtendedCommunities(
            path.extended_communities.iter().map(community).collect(),
        ));
    }
    if !path.large_communities.is_empty() {
        let community = |&(a, b, c): &(u32, u32, u32)| w::LargeCommunity::new(a, b, c);
        attributes
            .push(w::PathAttribute::LargeCommunities(path.large_communities.iter().map(community).collect()));
    }
    let body = if classic { body_nlri(prefixes) } else { vec![] };
    build(&body, &[], &attributes, four_octet_as)
}

/// Whether a route fits one message at all.
pub(super) fn fits(prefix: Prefix, path: &Path, four_octet_as: bool) -> bool {
    let octets = path.as_path.len() * 8
        + path.communities.len() * 4
        + path.extended_communities.len() * 8
        + path.large_communities.len() * 12;
    // Everything else in an UPDATE is far below 500 octets.
    octets + 500 < usize::from(MAX_MESSAGE) || announce(&[prefix], path, four_octet_as).is_some()
}

/// One UPDATE that withdraws `prefixes`, all of one family; `multiprotocol` for IPv4 routes told with an IPv6 next hop.
pub(super) fn withdraw(prefixes: &[Prefix], multiprotocol: bool) -> Option<Bytes> {
    let afi = prefixes.first()?.afi();
    if afi == Afi::Ipv4 && !multiprotocol {
        return build(&[], &body_nlri(prefixes), &[], true);
    }
    build(&[], &[], &[unreach(afi, prefixes)], true)
}

/// The End-of-RIB marker of a family (RFC 4724 §2).
pub(super) fn end_of_rib(afi: Afi) -> Bytes {
    let attributes = if afi == Afi::Ipv4 { vec![] } else { vec![unreach(afi, &[])] };
    build(&[], &[], &attributes, true).unwrap_or_default()
}

fn unreach(afi: Afi, prefixes: &[Prefix]) -> w::PathAttribute {
    w::PathAttribute::MpUnreachNlri(Box::new(w::MpUnreachNlri {
        afi: afi_of(afi),
        safi: w::Safi::Unicast,
        withdrawn: prefixes.iter().map(nlri_of).collect(),
        flowspec_withdrawn: vec![],
        evpn_withdrawn: vec![],
        bgpls_withdrawn: vec![],
        vpn_withdrawn: vec![],
        labeled_withdrawn: vec![],
        rtc_withdrawn: vec![],
    }))
}

const fn afi_of(afi: Afi) -> w::Afi {
    match afi {
        Afi::Ipv4 => w::Afi::Ipv4,
        Afi::Ipv6 => w::Afi::Ipv6,
    }
}

fn build(
    announced: &[w::Ipv4NlriEntry],
    withdrawn: &[w::Ipv4NlriEntry],
    attributes: &[w::PathAttribute],
    four_octet_as: bool,
) -> Option<Bytes> {
    let mode = w::Ipv4UnicastMode::Body;
    let mut update =
        w::UpdateMessage::try_build(announced, withdrawn, attributes, four_octet_as, false, mode).ok()?;
    if !four_octet_as {
        update.path_attributes = ascending(update.path_attributes);
    }
    let mut buffer = BytesMut::with_capacity(update.encoded_len());
    update.encode_with_limit(&mut buffer, MAX_MESSAGE).ok()?;
    Some(buffer.freeze())
}

/// Attributes in ascending order of type (RFC 4271 §5): the codec writes AS4_PATH right after AS_PATH.
fn ascending(mut attributes: Bytes) -> Bytes {
    let mut list = Vec::new();
    while let &[flags, _, first, ..] = &attributes[..] {
        let length = match (flags & 0x10 != 0, attributes.get(3)) {
            (true, Some(&second)) => 4 + usize::from(u16::from_be_bytes([first, second])),
            _ => 3 + usize::from(first),
        };
        list.push(attributes.split_to(length.min(attributes.len())));
    }
    list.sort_by_key(|attribute| attribute[1]);
    list.concat().into()
}

/// A KEEPALIVE.
pub(super) fn keepalive() -> Bytes {
    encode(&w::Message::Keepalive)
}

/// A ROUTE-REFRESH's octets: say everything of this family again (RFC 2918 §3).
pub(super) fn route_refresh(afi: Afi) -> Bytes {
    let afi = match afi {
        Afi::Ipv4 => w::Afi::Ipv4,
        Afi::Ipv6 => w::Afi::Ipv6,
    };
    encode(&w::Message::RouteRefresh(w::RouteRefreshMessage::new(afi, w::Safi::Unicast)))
}

/// A NOTIFICATION's octets.
pub(super) fn notification(n: &Notification) -> Bytes {
    encode(&w::Message::Notification(codec_notification(n)))
}

fn codec_notification(n: &Notification) -> w::NotificationMessage {
    w::NotificationMessage::new(w::NotificationCode::from_u8(n.code), n.subcode, n.data.clone())
}

/// Encodes what this file built: an OPEN or a NOTIFICATION of ours is always far below the limit.
fn encode(message: &w::Message) -> Bytes {
    w::encode_message(message).map(BytesMut::freeze).unwrap_or_default()
}

/// The data of a Cease with a text (RFC 9003).
pub(super) fn shutdown_text(text: &str) -> Bytes {
    w::notification::encode_shutdown_communication(text)
}

/// The registered name of a NOTIFICATION's code and subcode.
pub(super) fn describe(n: &Notification) -> &'static str {
    w::notification::description(w::NotificationCode::from_u8(n.code), n.subcode)
}

/// The RFC 9003 text of a NOTIFICATION, if there is a well-formed one.
pub(super) fn text_of(n: &Notification) -> Option<String> {
    w::notification::extract_shutdown_communication(&codec_notification(n)).ok().flatten().map(String::from)
}

#[cfg(test)]
mod tests;
