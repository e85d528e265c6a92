//! The rules that keep new connections from members that drain, as text for `nft`, and the marks that they give. Pure.
//!
//! A connection is *moved* when its first packet, a SYN, came while a member of its VIP drained: a map remembers by its addresses
//! and ports which of the members that serve it was given to, for as long as it is heard of. Whatever else goes to the VIP is left
//! to the VIP's group, which still knows the connections of the member that drains.

use standfast_core::prefix::{Afi, Prefix};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use crate::netlink::{Deed, Memory};

/// The name of our table, of family `inet`.
pub const TABLE: &str = "standfast_drain";

/// How many connections of each family are remembered at a time; what comes beyond goes by the group. Each takes some 150 octets.
const SIZE: u32 = 262_144;
/// How long a silent one is remembered: longer than the two hours after which TCP asks whether anybody is there.
const OPEN: Duration = Duration::from_secs(3 * 3600);
/// How long one of which nothing but a SYN has come, so that a flood of them is soon forgotten.
const OPENING: Duration = Duration::from_secs(30);
/// How long one that a FIN or a RST has gone through: longer than TIME_WAIT. Others may forge a RST, so it is not forgotten at once.
const CLOSING: Duration = Duration::from_secs(120);

/// In the mark of a connection that a FIN or a RST has gone through.
const CLOSES: u32 = 0x0080_0000;

/// The marks of moved connections: the first eight bits say that one is ours, the last sixteen which member it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marks(u32);

impl Marks {
    /// The bits of a mark that name the member: all but one.
    pub(super) const MASK: u32 = !CLOSES;

    /// Those with these first eight bits.
    pub(super) const fn new(first: u32) -> Self {
        Self(first & 0xff00_0000)
    }

    /// That of a member's connections, which is the number of its table, too.
    pub(super) const fn of(self, member: u16) -> u32 {
        self.0 | member as u32
    }

    /// The member of a mark, if it is one of ours.
    pub(super) const fn member(self, mark: u32) -> Option<u16> {
        if mark & 0xff7f_0000 == self.0 { Some((mark & 0xffff) as u16) } else { None }
    }
}

/// For how long nothing was heard of a moved connection that is forgotten after `expires`.
pub(super) const fn silence(mark: u32, expires: Duration) -> Duration {
    let lasts = match (mark & CLOSES, expires.as_secs()) {
        (0, secs) if secs < OPENING.as_secs() => OPENING,
        (0, _) => OPEN,
        _ => CLOSING,
    };
    lasts.saturating_sub(expires)
}

/// Where the new connections of a VIP go, by the members' numbers and weights. If nobody drains they go nowhere in particular: then all
/// weights are 0, and the members are those that are there.
pub(super) type Shares = Vec<(u16, u16)>;

/// What differs between the families.
struct Family {
    afi: Afi,
    ip: &'static str,
    address: &'static str,
    map: &'static str,
    /// The chains that write to the map.
    new: &'static str,
    live: &'static str,
    close: &'static str,
    forget: &'static str,
}

const FAMILIES: [Family; 2] = [
    Family {
        afi: Afi::Ipv4,
        ip: "ip",
        address: "ipv4_addr",
        map: "moved4",
        new: "new4",
        live: "live4",
        close: "close4",
        forget: "forget4",
    },
    Family {
        afi: Afi::Ipv6,
        ip: "ip6",
        address: "ipv6_addr",
        map: "moved6",
        new: "new6",
        live: "live6",
        close: "close6",
        forget: "forget6",
    },
];

/// The maps of both families, with the octet at which the address of the VIP is in their keys.
pub(super) const MAPS: [(&str, Afi, usize); 2] = [("moved4", Afi::Ipv4, 8), ("moved6", Afi::Ipv6, 20)];

/// The address at the beginning of some octets of a key.
pub(super) fn address(afi: Afi, octets: &[u8]) -> Option<IpAddr> {
    match afi {
        Afi::Ipv4 => octets.first_chunk::<4>().map(|a| IpAddr::from(*a)),
        Afi::Ipv6 => octets.first_chunk::<16>().map(|a| IpAddr::from(*a)),
    }
}

impl Family {
    /// What names a connection.
    fn key(&self) -> String {
        format!("{0} saddr . tcp sport . {0} daddr . tcp dport", self.ip)
    }

    fn to(&self, vips: &[Prefix]) -> String {
        // Of single addresses nft makes a table of hashes, of prefixes a tree.
        let one = |p: &Prefix| if p.is_host() { p.address().to_string() } else { p.to_string() };
        let list: Vec<String> = vips.iter().map(one).collect();
        format!("{} daddr {{ {} }}", self.ip, list.join(", "))
    }

    /// The map is made if there is none; no element of one that is there is touched.
    fn declare(&self, text: &mut String) {
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "  map {} {{ type {address} . inet_service . {address} . inet_service : mark; size {SIZE}; \
             flags dynamic,timeout; timeout {}; }}",
            self.map,
            time(OPEN),
            address = self.address,
        );
    }

    /// Which packets are looked at, and that those of a moved connection get its mark.
    fn look(&self, vips: &[Prefix]) -> [String; 2] {
        let map = self.map;
        let others = match (self.afi, vips) {
            (Afi::Ipv4, []) => "meta nfproto ipv4 accept".to_owned(),
            (Afi::Ipv6, []) => "meta nfproto ipv6 accept".to_owned(),
            _ => format!("{} accept", self.to(vips).replacen("daddr {", "daddr != {", 1)),
        };
        [others, format!("meta mark set {} map @{map} goto {map}", self.key())]
    }

    /// What becomes of a SYN for VIPs of which somebody drains: it is moved, unless it was moved to one that still serves.
    fn move_new(&self, marks: Marks, vips: &[Prefix], shares: &Shares) -> [String; 5] {
        let (to, key, map) = (self.to(vips), self.key(), self.map);
        let serving: Vec<String> = shares.iter().map(|(n, _)| format!("{:#x}", marks.of(*n))).collect();
        [
            format!("{to} meta mark != {{ {} }} jump {}", serving.join(", "), self.forget),
            format!("{to} meta mark set {}", spread(marks, self.ip, shares)),
            format!("{to} jump {}", self.new),
            // One that was there keeps its mark; when the map is full there is none.
            format!("{to} meta mark set {key} map @{map} accept"),
            format!("{to} meta mark set 0 accept"),
        ]
    }

    /// What becomes of a SYN for VIPs of which nobody drains: a connection that was moved to a member that is not there any more is
    /// over, and this one has its addresses and ports. It would be led there when the member comes back.
    fn forget_lost(&self, marks: Marks, vips: &[Prefix], there: &Shares) -> [String; 2] {
        let there: Vec<String> = there.iter().map(|(n, _)| format!("{:#x}", marks.of(*n))).collect();
        let lost = format!(
            "{} meta mark & 0xff000000 == {:#x} meta mark & {:#x} != {{ {} }}",
            self.to(vips),
            marks.0,
            Marks::MASK,
            there.join(", ")
        );
        [format!("{lost} jump {}", self.forget), format!("{lost} meta mark set 0")]
    }

    /// For how long a moved connection is remembered from this packet of its on.
    fn remember(&self) -> [String; 5] {
        let ends = "tcp flags & (fin | rst) != 0";
        let open = format!("meta mark & {CLOSES:#x} == 0");
        [
            format!("{SYN} accept"),
            format!("{ends} {open} jump {}", self.forget),
            format!("{ends} meta mark set meta mark | {CLOSES:#x}"),
            format!("{open} goto {}", self.live),
            format!("goto {}", self.close),
        ]
    }

    /// The rules that write to the map.
    const fn memory(&self) -> [Memory<'static>; 4] {
        let Self { afi, map, .. } = *self;
        [
            Memory { chain: self.new, map, afi, deed: Deed::Add(OPENING) },
            Memory { chain: self.live, map, afi, deed: Deed::Refresh(OPEN) },
            Memory { chain: self.close, map, afi, deed: Deed::Refresh(CLOSING) },
            Memory { chain: self.forget, map, afi, deed: Deed::Forget },
        ]
    }
}

/// The rules that write to the maps, which never change.
pub(super) fn memory() -> Vec<Memory<'static>> {
    FAMILIES.iter().flat_map(Family::memory).collect()
}

/// The first packet of a connection.
const SYN: &str = "tcp flags & (fin | syn | rst | ack) == syn";

/// The whole table in one transaction, for these VIPs, but for what writes to its [memory]. The maps stay as they are if they are there.
pub(super) fn rules(marks: Marks, vips: &BTreeMap<Prefix, Shares>) -> String {
    let (mut look, mut found) = (vec!["meta l4proto != tcp accept".to_owned()], Vec::new());
    let mut new = Vec::new();
    let mut text = format!("table inet {TABLE} {{\n");
    for family in &FAMILIES {
        family.declare(&mut text);
        let of = || vips.iter().filter(|(prefix, _)| prefix.afi() == family.afi);
        let [others, moved] = family.look(&of().map(|(prefix, _)| *prefix).collect::<Vec<_>>());
        look.push(others);
        found.push(moved);
        let mut alike: BTreeMap<&Shares, Vec<Prefix>> = BTreeMap::new();
        for (prefix, shares) in of().filter(|(_, shares)| !shares.is_empty()) {
            alike.entry(shares).or_default().push(*prefix);
        }
        new.push(format!("meta mark set {} map @{}", family.key(), family.map));
        for (shares, vips) in alike {
            match shares.iter().any(|(_, weight)| *weight > 0) {
                true => new.extend(family.move_new(marks, &vips, shares)),
                false => new.extend(family.forget_lost(marks, &vips, shares)),
            }
        }
    }
    // The other VIPs: if a connection was moved and closed, another one has its addresses and ports.
    let closed = format!("meta mark & {:#x} == {:#x}", 0xff00_0000 | CLOSES, marks.0 | CLOSES);
    new.extend(FAMILIES.iter().map(|family| format!("{closed} jump {}", family.forget)));
    new.push(format!("{closed} meta mark set 0"));
    look.push(format!("{SYN} jump opening"));
    look.extend(found);
    // After the translation of destinations, so that a VIP is seen as the VIP, and before anything is routed.
    text.push_str("  chain prerouting { type filter hook prerouting priority -90; policy accept; }\n");
    let [four, six] = FAMILIES.map(|family| (family.map, family.remember().to_vec()));
    let chains = [("prerouting", look), ("opening", new), four, six];
    let written = memory();
    for name in chains[1..].iter().map(|(name, _)| *name).chain(written.iter().map(|memory| memory.chain)) {
        let _ = writeln!(text, "  chain {name} {{ }}");
    }
    text.push_str("}\n");
    for (name, _) in &chains {
        let _ = writeln!(text, "flush chain inet {TABLE} {name}");
    }
    let _ = writeln!(text, "table inet {TABLE} {{");
    for (name, rules) in chains {
        let _ = writeln!(text, "  chain {name} {{\n    {}\n  }}", rules.join("\n    "));
    }
    text.push_str("}\n");
    text
}

/// The mark of the member that a connection falls to. It follows from the client's end alone: nft has no room for more of IPv6.
fn spread(marks: Marks, ip: &str, shares: &Shares) -> String {
    if let [(member, _)] = shares[..] {
        return format!("{:#x}", marks.of(member));
    }
    let mut end = 0_u32;
    let range = |&(member, weight): &(u16, u16)| {
        let begin = end;
        end += u32::from(weight.max(1));
        let mark = marks.of(member);
        if end - begin == 1 {
            format!("{begin} : {mark:#x}")
        } else {
            format!("{begin}-{} : {mark:#x}", end - 1)
        }
    };
    let ranges: Vec<String> = shares.iter().map(range).collect();
    format!("jhash {ip} saddr . tcp sport mod {end} seed 0x5f map {{ {} }}", ranges.join(", "))
}

fn time(duration: Duration) -> String {
    format!("{}s", duration.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: Marks = Marks::new(0x5f00_0000);

    fn text(vips: &[(&str, &[(u16, u16)])]) -> String {
        let vips = vips.iter().map(|(prefix, shares)| (prefix.parse().unwrap(), shares.to_vec()));
        rules(MARKS, &vips.collect())
    }

    #[test]
    fn a_mark_tells_its_member_and_whether_it_closes() {
        assert_eq!(MARKS.of(7), 0x5f00_0007);
        assert_eq!(MARKS.member(0x5f00_0007), Some(7));
        assert_eq!(MARKS.member(0x5f00_0007 | CLOSES), Some(7));
        for other in [0, 7, 0x5e00_0007, 0x5f01_0007] {
            assert_eq!(MARKS.member(other), None, "{other:#x}");
        }
        let silent = |mark, secs| silence(mark, Duration::from_secs(secs)).as_secs();
        assert_eq!(silent(0x5f00_0007, 3 * 3600 - 5), 5);
        assert_eq!(silent(0x5f00_0007, 20), 10);
        assert_eq!(silent(0x5f80_0007, 100), 20);
        assert_eq!(silent(0x5f80_0007, 9999), 0);
    }

    #[test]
    fn shares_are_ranges_and_vips_with_the_same_ones_have_one_rule() {
        let text = text(&[
            ("198.51.100.10/32", &[(1, 1), (2, 3), (3, 1)]),
            ("198.51.100.11/32", &[(1, 1), (2, 3), (3, 1)]),
            ("198.51.100.12/32", &[(2, 9)]),
            ("198.51.100.13/32", &[]),
        ]);
        for part in [
            "ip daddr != { 198.51.100.10, 198.51.100.11, 198.51.100.12, 198.51.100.13 } accept\n",
            "mod 5 seed 0x5f map { 0 : 0x5f000001, 1-3 : 0x5f000002, 4 : 0x5f000003 }\n",
            "ip daddr { 198.51.100.12 } meta mark set 0x5f000002\n",
            "meta nfproto ipv6 accept\n",
        ] {
            assert_eq!(text.matches(part).count(), 1, "{part} in\n{text}");
        }
        assert_eq!(text.matches("ip daddr { 198.51.100.10, 198.51.100.11 }").count(), 5, "{text}");
        assert!(!text.contains("{ 198.51.100.13"), "{text}");
        assert!(!text.contains("delete table") && !text.contains("flush table"), "{text}");
    }

    #[test]
    fn without_a_drain_what_was_moved_to_one_that_is_gone_is_forgotten_with_the_next_syn() {
        let text = text(&[("198.51.100.10/32", &[(1, 0), (3, 0)])]);
        let lost = "ip daddr { 198.51.100.10 } meta mark & 0xff000000 == 0x5f000000 \
                    meta mark & 0xff7fffff != { 0x5f000001, 0x5f000003 }";
        assert!(text.contains(&format!("{lost} jump forget4\n    {lost} meta mark set 0\n")), "{text}");
        assert!(!text.contains("jhash"), "{text}");
    }

    #[test]
    fn a_restart_gives_the_same_text() {
        let vips: &[(&str, &[(u16, u16)])] =
            &[("2001:db8::10/128", &[(1, 1)]), ("198.51.100.10/32", &[(1, 2)])];
        assert_eq!(text(vips), text(vips));
        assert!(text(vips).contains("ip6 daddr { 2001:db8::10 } meta mark set 0x5f000001\n"));
    }
}
