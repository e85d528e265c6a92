//! The parts of the standfast daemon.

pub mod api;
pub mod check;
pub mod checks;
pub mod cli;
pub mod client;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod drain;
pub mod metrics;
pub mod notify;
pub mod reload;
pub mod run;
pub mod state;
pub mod status;
pub mod telemetry;
pub mod timing;
