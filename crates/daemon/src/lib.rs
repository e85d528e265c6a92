//! The parts of the standfast daemon.

pub mod cli;
pub mod config;
