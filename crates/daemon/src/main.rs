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
        Command::Status(args) => status::run(args.api.unwrap_or_else(|| api_of(&args.config)), args.json),
        Command::Demo(args) => demo::run(demo::Options { fast: args.fast, json: args.json, keep: args.keep }),
    }
}

/// Where the daemon of a configuration listens. A file that is missing or broken does not hide a daemon that runs.
fn api_of(config: &std::path::Path) -> std::net::SocketAddr {
    let fallback = ([127, 0, 0, 1], 59179).into();
    if !config.exists() {
        return fallback;
    }
    cli::load(config).map_or_else(
        || {
            eprintln!("standfast: asking {fallback}; name another address with --api ADDRESS:PORT\n");
            fallback
        },
        |loaded| loaded.daemon.api.listen,
    )
}
