//! The `standfast` program.

use std::process::ExitCode;

use clap::Parser as _;
use standfast_daemon::cli::{self, Cli, Command};
use standfast_daemon::{demo, run, status};

fn main() -> ExitCode {
    if let Some(code) = demo::child(std::env::args_os().skip(1)) {
        return code;
    }
    match Cli::parse().command {
        Command::Validate(args) => cli::validate(&args),
        Command::Plan(args) => cli::plan(&args),
        Command::Schema(args) => cli::schema(&args),
        Command::Run(args) => run::run(&args.config),
        Command::Status(args) => match args.api.map_or_else(|| api_of(&args.config), Ok) {
            Ok(api) => status::run(api, args.json),
            Err(code) => code,
        },
        Command::Demo(args) => demo::run(demo::Options { fast: args.fast, json: args.json, keep: args.keep }),
    }
}

/// Where the daemon of a configuration listens; without the file, the default address.
fn api_of(config: &std::path::Path) -> Result<std::net::SocketAddr, ExitCode> {
    if !config.exists() {
        return Ok(([127, 0, 0, 1], 59179).into());
    }
    cli::load(config).map(|loaded| loaded.daemon.api.listen).ok_or(ExitCode::from(cli::WRONG))
}
