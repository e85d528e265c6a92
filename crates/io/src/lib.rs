//! Everything in standfast that touches the world: sockets, netlink, probes, the one driver loop; the only `unsafe`.
