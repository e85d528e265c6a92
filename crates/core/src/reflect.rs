//! What a listener tells its members of each other, and a member of itself, so that a floor can be held: in large communities
//! (RFC 8092) of the listener's or the member's own AS.
//!
//! A listener that reflects announces each VIP back to its members, with [`VIEW`] and one community for each member that
//! announces it. The route is no route: it has NO_ADVERTISE (RFC 1997), is told to members of a range that asks for it
//! alone, and standfast, which imports nothing, reads its communities and nothing else. A member whose checks fail
//! marks what it still announces with [`failing`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use crate::plan::Attributes;

/// A large community.
type Large = (u32, u32, u32);

/// The function of the community that says: this is a view, of this version.
pub const VIEW: u32 = 0x7366_0000;
/// Of one that names a member whose checks hold, by its BGP identifier.
const SOUND: u32 = 0x7366_0001;
/// Of one that names a member that stays although its checks fail.
const FAILING: u32 = 0x7366_0002;
/// The version.
const VERSION: u32 = 1;
/// NO_ADVERTISE (RFC 1997).
const NO_ADVERTISE: u32 = 0xffff_ff02;

/// The most members in one view: they fit into one UPDATE. Of more the first by identifier are told, of the sound ones
/// before the others.
pub const MOST: usize = 256;

/// The members that announce a VIP, by BGP identifier, and whether the checks of each hold.
pub type View = BTreeMap<Ipv4Addr, bool>;

/// What a member that announces although its checks fail adds to its route.
pub fn failing(asn: u32) -> Large {
    (asn, FAILING, 0)
}

/// Whether a route of a member is marked so.
pub fn is_failing(communities: &[Large]) -> bool {
    communities.iter().any(|&(_, function, value)| (function, value) == (FAILING, 0))
}

/// A view as the listener of this AS tells it.
pub fn attributes(asn: u32, view: &View) -> Attributes {
    let of = |sound: bool| view.iter().filter(move |(_, s)| **s == sound).map(|(id, _)| u32::from(*id));
    let members = of(true).map(|id| (asn, SOUND, id)).chain(of(false).map(|id| (asn, FAILING, id)));
    let members = members.filter(|&(_, _, id)| id != 0).take(MOST);
    Attributes {
        communities: BTreeSet::from([NO_ADVERTISE]),
        large_communities: members.chain([(asn, VIEW, VERSION)]).collect(),
        ..Attributes::default()
    }
}

/// The view in a route; `None` if it is none, or of a version that is not understood.
pub fn view(communities: &[Large]) -> Option<View> {
    communities.iter().find(|&&(_, function, value)| (function, value) == (VIEW, VERSION))?;
    let members = communities.iter().filter_map(|&(_, function, id)| match function {
        SOUND => Some((id.into(), true)),
        FAILING if id != 0 => Some((id.into(), false)),
        _ => None,
    });
    Some(members.take(MOST).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_read_as_it_was_written_and_nothing_else_is_one() {
        let some: View = (1..=5u32).map(|n| (Ipv4Addr::from(n), n % 2 == 0)).collect();
        for members in [View::new(), some] {
            let a = attributes(64512, &members);
            assert!(a.communities.contains(&NO_ADVERTISE));
            let told: Vec<Large> = a.large_communities.into_iter().collect();
            assert_eq!(view(&told), Some(members));
            assert!(!is_failing(&told), "a view is no mark");
        }
        assert_eq!(view(&[(64512, SOUND, 1)]), None, "a route of somebody else");
        assert_eq!(view(&[(64512, VIEW, VERSION + 1)]), None, "another version");
        assert!(is_failing(&[(1, 2, 3), failing(64513)]) && view(&[failing(64513)]).is_none());
    }

    #[test]
    fn a_view_of_very_many_fits_and_keeps_the_sound_ones() {
        let crowd: View = (1..=2000u32).map(|n| (Ipv4Addr::from(n), n > 1900)).collect();
        let told: Vec<Large> = attributes(64512, &crowd).large_communities.into_iter().collect();
        assert_eq!(told.len(), MOST + 1);
        let read = view(&told).unwrap();
        assert_eq!(read.values().filter(|s| **s).count(), 100);
    }
}
