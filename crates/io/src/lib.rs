//! Everything in standfast that touches the world: sockets, netlink, probes, the one driver loop; the only `unsafe`.
//!
//! | module | does |
//! |---|---|
//! | [`drive`] | runs a node: event or deadline, hand in, perform |
//! | [`tcp`] | sockets of the speaker: dial, listen, hop limits, MD5 keys |
//! | [`netlink`] | addresses and routes of the kernel |
//! | `probe`, `dial` | health checks (feature `probe`) |

#[cfg(feature = "probe")]
pub mod dial;
pub mod drive;
mod kernel;
pub mod netlink;
#[cfg(feature = "probe")]
pub mod probe;
pub mod tcp;
