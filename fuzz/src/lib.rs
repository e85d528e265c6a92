//! Every parser of bytes from the network, as a function that takes any bytes and must end soon, in little memory, without a panic.
//!
//! `tests/replay.rs` gives them the corpus in `corpus/NAME/` and changes of it; `libfuzzer/` lets a fuzzer find more. What
//! is not here: TLS, which is rustls's, and the configuration file, which is the operator's own.

#[path = "../../crates/core/tests/bench/mod.rs"]
mod bench;

use standfast_io::probe::fuzz;

/// A parser, by the name of its corpus.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 14] = [
    ("api", standfast_daemon::api::fuzz),
    ("bfd", bench::fuzz::datagrams),
    ("bgp", bench::fuzz::octets),
    ("body", fuzz::body),
    ("certificate", fuzz::certificate),
    ("descriptors", fuzz::descriptors),
    ("dns", fuzz::dns),
    ("grpc", fuzz::grpc),
    ("http1", fuzz::http1),
    ("icmp", |octets| _ = fuzz::icmp(octets)),
    ("netlink", standfast_io::netlink::fuzz),
    ("node", bench::fuzz::inputs),
    ("process", fuzz::process),
    ("protobuf", fuzz::protobuf),
];

/// Gives `octets` to the parser called `name`.
///
/// # Panics
/// There is none of this name, or it is wrong.
pub fn run(name: &str, octets: &[u8]) {
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    let Some((_, parse)) = target else { panic!("there is no parser called {name}") };
    parse(octets);
}
