//! Everything in standfast that touches the world: sockets, netlink, probes, the one driver loop; the only `unsafe`.

#[cfg(feature = "probe")]
pub mod dial;
#[cfg(feature = "probe")]
pub mod probe;
