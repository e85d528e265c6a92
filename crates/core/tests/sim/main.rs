//! Whole nodes in virtual time: random faults, and the promises that must hold throughout and once it is quiet.
//!
//! `STANDFAST_SEED=17 cargo test --test sim` replays one seed, with everything that was said.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a broken test may stop")]

#[path = "../bench/mod.rs"]
mod bench;

mod crowd;
mod faults;
mod floor;
mod foreign;
mod liveness;
mod reload;
mod spread;
mod walks;
mod world;
