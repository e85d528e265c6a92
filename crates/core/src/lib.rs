//! Verdicts in, tables out: everything in standfast that is a pure function of (state, input, now).

pub mod announce;
pub mod bfd;
pub mod bgp;
pub mod hash;
pub mod health;
pub mod listen;
pub mod machine;
pub mod node;
pub mod plan;
pub mod prefix;
pub mod reflect;
pub mod spelling;
pub mod table;
pub mod timing;

pub use machine::{Machine, Time};
pub use prefix::{Afi, Prefix};
