//! How a VIP leaves on purpose: what its peers are told meanwhile, what is waited for, and for how long.

use std::time::Duration;

use super::Attributes;

/// GRACEFUL_SHUTDOWN (RFC 8326 §3).
const GRACEFUL_SHUTDOWN: u32 = 0xffff_0000;

/// How a VIP is drained. By command every VIP can be; the defaults are for those whose file says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drain {
    /// What the peers are told while connections are waited for; default GRACEFUL_SHUTDOWN.
    pub mode: DrainMode,
    /// What ends it before the deadline; default connections.
    pub until: DrainUntil,
    /// So many connections that are left are few enough; default 0.
    pub floor: u64,
    /// The longest that it takes; default 30 s.
    pub deadline: Duration,
    /// Whether the daemon, when it is told to stop, drains the VIP first; default no.
    pub on_stop: bool,
    /// Whether `lower_priority_file` drains the VIP, and does not just make it a worse choice; default no.
    pub on_file: bool,
    /// Whether an order to drain it outlives the daemon; default no.
    pub persist: bool,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            mode: DrainMode::GracefulShutdown,
            until: DrainUntil::Connections,
            floor: 0,
            deadline: Duration::from_secs(30),
            on_stop: false,
            on_file: false,
            persist: false,
        }
    }
}

/// What the peers are told of a VIP that drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainMode {
    /// That it is gone: for routers that understand neither of the others. What they sent here goes elsewhere at once.
    Withdraw,
    /// A link bandwidth of 0 (draft-ietf-idr-link-bandwidth) of this AS number: no share of the new traffic.
    Weight(u16),
    /// GRACEFUL_SHUTDOWN, and LOCAL_PREF 0 on iBGP (RFC 8326).
    GracefulShutdown,
}

/// What a drain waits for, besides its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainUntil {
    /// The TCP connections of this host's own sockets at the VIP's addresses.
    Connections,
    /// The TCP connections to the VIP's addresses that this host's connection tracking knows: those that it forwards.
    Conntrack,
    /// Nothing: it takes all of its time.
    Deadline,
}

impl Drain {
    /// What the peers are told of a VIP that stands with the attributes `of` while it drains; `None`: that it is gone.
    pub fn attributes(&self, mut of: Attributes) -> Option<Attributes> {
        match self.mode {
            DrainMode::Withdraw => return None,
            DrainMode::GracefulShutdown => {
                of.communities.insert(GRACEFUL_SHUTDOWN);
                of.local_pref = Some(0);
            }
            DrainMode::Weight(asn) => {
                // In place of the one that it has, transitive or not: of two the lesser does not count everywhere.
                of.extended_communities.retain(|c| !matches!(c, [0x00 | 0x40, 0x04, ..]));
                let [high, low] = asn.to_be_bytes();
                of.extended_communities.insert([0x40, 0x04, high, low, 0, 0, 0, 0]);
            }
        }
        Some(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_learn_that_it_leaves_in_each_mode() {
        let speed = [0x40, 0x04, 0xfc, 0x01, 0x4c, 0, 0, 0];
        let target = [0x00, 0x02, 0, 1, 0, 0, 0, 1];
        let of = Attributes {
            communities: [7].into(),
            extended_communities: [speed, target].into(),
            local_pref: Some(200),
            ..Attributes::default()
        };
        let told = |mode| Drain { mode, ..Drain::default() }.attributes(of.clone());
        assert_eq!(told(DrainMode::Withdraw), None);
        let leaving = told(DrainMode::GracefulShutdown).unwrap();
        assert_eq!((leaving.local_pref, leaving.communities), (Some(0), [7, 0xffff_0000].into()));
        let weightless = told(DrainMode::Weight(64513)).unwrap();
        assert_eq!(
            weightless.extended_communities,
            [[0x40, 0x04, 0xfc, 0x01, 0, 0, 0, 0], target].into(),
            "the bandwidth of before is gone, other communities are not"
        );
        assert_eq!(weightless.local_pref, Some(200));
    }
}
