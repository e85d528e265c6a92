//! The scene of most scripted tests: a daemon `g` (192.0.2.11) whose neighbour `p` (192.0.2.1, AS 64512) the test plays.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use crate::config::Announcer;
use crate::daemons::{API, Daemon};
use crate::host::Host;
use crate::lab::{Lab, secs};
use crate::message::{Message, Update};
use crate::peer::{Acceptor, OpenBytes, Session};
use crate::service::Service;

/// A daemon and its scripted neighbour.
pub struct Scene {
    /// The neighbour's host.
    pub p: Host,
    /// The daemon's host.
    pub g: Host,
    /// What its checks ask.
    pub service: Service,
    /// Where it dials.
    pub acceptor: Acceptor,
    /// The daemon.
    pub daemon: Daemon,
}

impl Scene {
    /// The AS of the neighbour.
    pub const P: u32 = 64512;

    /// Starts a daemon of AS `asn` whose first neighbour is the peer, with what `configure` adds.
    pub fn new(lab: &Lab, asn: u32, configure: impl FnOnce(Announcer) -> Announcer) -> Self {
        let (p, g) = (lab.host("p", 1), lab.host("g", 11));
        let acceptor = Acceptor::new(&p, p.v4);
        let service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
        let config = configure(Announcer::new(&g, asn).neighbor(p.v4, Self::P, ""));
        let daemon = g.spawn(config.spec());
        Self { p, g, service, acceptor, daemon }
    }

    /// An ordinary OPEN of the peer.
    pub fn open() -> OpenBytes {
        OpenBytes::new(Self::P, Ipv4Addr::new(192, 0, 2, 1))
    }

    /// The next connection, established with an ordinary OPEN.
    #[track_caller]
    pub fn establish(&self) -> Session {
        let mut session = self.acceptor.accept(secs(10));
        session.establish(&Self::open());
        session
    }

    /// What the daemon's API says of `vip`.
    pub fn state_of(&self, vip: &str) -> String {
        let (_, body) = self.g.get(API, "/status").unwrap_or_default();
        let status: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
        let vips = status["vips"].as_array().cloned().unwrap_or_default();
        let found = vips.iter().find(|one| one["name"] == vip).cloned().unwrap_or_default();
        found["state_name"].as_str().unwrap_or_default().to_owned()
    }
}

/// What a peer knows after everything it was told: prefixes and their AS paths (four octets).
#[derive(Debug, Default)]
pub struct Table(pub BTreeMap<String, Vec<u32>>);

impl Table {
    /// Takes what the UPDATEs among `messages` say.
    pub fn apply(&mut self, messages: &[Message]) {
        for update in updates(messages) {
            update.withdrawn.iter().for_each(|prefix| drop(self.0.remove(prefix)));
            let path = update.as_path(4);
            self.0.extend(update.announced.into_iter().map(|prefix| (prefix, path.clone())));
        }
    }
}

/// The UPDATEs among messages, but for End-of-RIB.
pub fn updates(messages: &[Message]) -> Vec<Update> {
    messages.iter().filter_map(Message::update).filter(|update| update.end_of_rib.is_none()).collect()
}
