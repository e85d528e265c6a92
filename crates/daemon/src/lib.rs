//! The parts of the standfast daemon.

pub mod api;
pub mod cli;
pub mod config;
pub mod demo;
pub mod run;
pub mod status;
pub mod telemetry;
