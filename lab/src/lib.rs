//! The laboratory: private networks in namespaces, foreign daemons, scripted peers and captures.
//!
//! A test opens a [`Lab`] with [`lab!`], adds hosts to it, spawns daemons on them and asks what they believe:
//!
//! ```no_run
//! # use standfast_lab::*;
//! fn a_route_reaches_bird() {
//!     let Some(lab) = lab!("bird", "exabgp") else { return };
//!     let (l, g) = (lab.host("l", 1), lab.host("g", 11));
//!     let bird = l.spawn(bird(64512, &[Neighbor::new(g.v4, 64513)]));
//!     g.spawn(exabgp(64513, l.v4, 64512, &["route 198.51.100.10/32 next-hop self"]));
//!     until("the route is there", secs(10), || bird.route("198.51.100.10/32").is_some());
//! }
//! ```
//!
//! Everything a lab made ends with it, also when the test panics; then it first prints what every host knew.
//! What it does not do: delay and reordering (those belong to the simulation), and it needs root.
//!
//! Environment: `STANDFAST_BIN` names the binary under test, `LAB_SKIPS` a file to which every skipped test is appended.

mod capture;
mod config;
mod crowd;
mod daemons;
mod downloads;
mod fleet;
mod flows;
mod host;
mod lab;
mod message;
mod peer;
mod query;
mod said;
mod scene;
mod service;

pub use capture::{Capture, Event, Seen};
pub use config::{Announcer, WITHDRAW, accepting, listener, policy};
pub use crowd::{CROWDED, Crowd, crowd_addresses, many_files};
pub use daemons::{
    API, Daemon, Kind, Neighbor, Spec, bird, bird_bfd, bird_raw, exabgp, frr, frr_raw, gobgp, nginx,
    nginx_at, router, standfast, standfast_bin, use_standfast,
};
pub use downloads::{Download, Downloads, PAUSE, Shelf};
pub use fleet::{Fate, Fleet, Member, Told};
pub use flows::{Broken, Echo, Flow, Flows, land};
pub use host::{Host, Process};
pub use lab::{Lab, missing, secs, skip, until, until_some, while_holds};
pub use message::{Kind as MessageKind, Message, Update, hex};
pub use peer::{Acceptor, OpenBytes, Read, Session};
pub use query::Route;
pub use said::{announce, announce_nlri, announce_via, attribute, community, med, update, withdraw};
pub use scene::{Scene, Table, updates};
pub use service::Service;

/// Opens a lab named after the calling test, or skips the test aloud and gives `None` if something it needs is missing.
///
/// `lab!("bird", "nginx")`; `lab!(alone; "bird")` also keeps every other lab of this machine away, for tests that measure time.
#[macro_export]
macro_rules! lab {
    (alone; $($need:literal),*) => { $crate::lab!(@ true, $($need),*) };
    ($($need:literal),*) => { $crate::lab!(@ false, $($need),*) };
    (@ $alone:literal, $($need:literal),*) => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here).trim_end_matches("::here");
        match $crate::missing(&["root", "ip", "nft", "tcpdump", $($need),*]) {
            Some(reason) => { $crate::skip(name, &reason); None }
            None => Some($crate::Lab::new(name, $alone)),
        }
    }};
}
