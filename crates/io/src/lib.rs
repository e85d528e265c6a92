//! Everything in standfast that touches the world: sockets, netlink, probes, the one driver loop; the only `unsafe`.
//!
//! | module | does |
//! |---|---|
//! | [`drive`] | runs a node: event or deadline, hand in, perform |
//! | [`signals`] | waiting that Ctrl-C ends in order |
//! | [`survey`] | what the host is like, for whoever judges it |
//! | [`tcp`] | sockets of the speaker: dial, listen, hop limits, MD5 keys |
//! | [`memory`] | giving back what is not used any more |
//! | [`netlink`] | addresses, routes, next hops and links of the kernel |
//! | [`fib`] | the listener's routes and groups: what is wanted against what the kernel holds |
//! | [`nft`] | public addresses, translated |
//! | [`steer`] | new connections, kept from members that drain |
//! | [`netns`] | network namespaces, and processes inside them |
//! | `probe`, `dial`, `resolve` | health checks (feature `probe`) |
//! | `watch` | whether files are there (feature `probe`) |

mod bfd;
mod clock;
mod count;
#[cfg(feature = "probe")]
pub mod dial;
pub mod drive;
pub mod fib;
mod kernel;
pub mod memory;
pub mod netlink;
pub mod netns;
pub mod nft;
#[cfg(feature = "probe")]
pub mod probe;
#[cfg(feature = "probe")]
pub mod resolve;
pub mod signals;
pub mod steer;
pub mod survey;
pub mod tcp;
#[cfg(feature = "probe")]
pub mod watch;
