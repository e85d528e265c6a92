//! Conformance: one test for each MUST that a session relies on, against a scripted peer in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a broken test may stop")]

#[path = "../bench/mod.rs"]
mod bench;

mod bfd;
mod collision;
mod hostile;
mod open;
mod restart;
mod retry;
mod tables;
mod timers;
mod update;
