//! The `standfast` program.

use std::process::ExitCode;

use clap::Parser as _;
use standfast_daemon::cli::{self, Cli, Command};

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Validate(args) => cli::validate(&args),
        Command::Plan(args) => cli::plan(&args),
        Command::Schema(args) => cli::schema(&args),
        Command::Run(_) | Command::Status(_) | Command::Demo(_) => {
            eprintln!("error: this command is not available in this version");
            ExitCode::from(cli::WRONG)
        }
    }
}
