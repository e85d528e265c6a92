//! Entry points for fuzzing: what a hostile server can send, without a network.

/// A DNS answer, by UDP or TCP, to a question for each type of record.
pub fn dns(octets: &[u8]) {
    super::dns::fuzz(octets);
}

/// An ICMP packet in answer to an echo request.
pub fn icmp(octets: &[u8]) {
    super::ping::fuzz(octets);
}
