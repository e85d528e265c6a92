//! Entry points for fuzzing: what a hostile server can send, without a network.

/// A DNS answer, by UDP or TCP, to a question for each type of record.
pub fn dns(octets: &[u8]) {
    super::dns::fuzz(octets);
}

/// An ICMP packet in answer to an echo request; whether it was one to the request of the token `STANDFAS`.
pub fn icmp(octets: &[u8]) -> bool {
    super::ping::fuzz(octets)
}

/// Data of a gRPC call, which must mean the same whole and in pieces.
pub fn grpc(octets: &[u8]) {
    super::grpc::fuzz::frames(octets);
}

/// Descriptors of a gRPC server: a set of them, or one, and calls of the methods that they define.
pub fn descriptors(octets: &[u8]) {
    super::grpc::fuzz::descriptors(octets);
}

/// A message of a gRPC server, of a type that is known.
pub fn protobuf(octets: &[u8]) {
    super::grpc::fuzz::answer(octets);
}

/// A body, which rules of every kind are to judge.
pub fn body(octets: &[u8]) {
    super::body::fuzz(octets);
}

/// A server's certificate, in DER.
pub fn certificate(octets: &[u8]) {
    super::tls::fuzz(octets);
}

/// An answer of HTTP/1, which must mean the same whole and in pieces.
pub fn http1(octets: &[u8]) {
    for method in ["GET", "HEAD", "CONNECT"] {
        for limit in [64, 1 << 20] {
            // A failure may be noticed sooner or later, and said in other words.
            let whole = super::http1::replay(octets, usize::MAX, method, limit).ok();
            for piece in [1, 2, 3, 7, 64] {
                let pieces = super::http1::replay(octets, piece, method, limit).ok();
                assert_eq!(whole, pieces, "{method}, at most {limit} octets, in pieces of {piece}");
            }
        }
    }
}

/// A pid file, or what systemd says of a unit.
pub fn process(octets: &[u8]) {
    super::process::fuzz(octets);
}
