//! What the tests of this crate share: octets read by a second, independent reading of the RFCs, and a session on a bench.

#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a broken test may stop")]

pub(crate) mod bfd;
pub(crate) mod fuzz;
pub(crate) mod octets;
pub(crate) mod peer;
pub(crate) mod plan;
