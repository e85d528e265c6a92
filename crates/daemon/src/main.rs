//! The `standfast` program.

use std::process::ExitCode;

use clap::Parser as _;
use standfast_daemon::cli::{self, Cli, Command};
use standfast_daemon::{check, demo, doctor, drain, notify, reload, run, status, timing};

fn main() -> ExitCode {
    if let Some(code) = demo::child(std::env::args_os().skip(1)) {
        return code;
    }
    ask(Cli::parse().command).unwrap_or_else(|code| code)
}

/// Does what was asked; an error is the exit code of what was said already.
fn ask(command: Command) -> Result<ExitCode, ExitCode> {
    Ok(match command {
        Command::Validate(args) => cli::validate(&args),
        Command::Plan(args) => cli::plan(&args),
        Command::Schema(args) => cli::schema(&args),
        Command::Run(args) => run::run(&args.path()),
        Command::Status(args) => status::run(&args.daemon.api(false)?, args.json),
        Command::Check(args) => {
            check::run(&args.daemon.api(false)?, &args.vip, args.name.as_deref(), args.json)
        }
        Command::Report(args) => {
            let report = check::Report {
                vip: &args.vip,
                check: args.check.as_deref(),
                ok: args.ok,
                reason: &args.reason,
                share: None,
                lease: None,
            };
            check::report(&args.daemon.api(true)?, &report)
        }
        Command::Notify(args) => notify::run(&args)?,
        Command::Timing(args) => timing::run(&args)?,
        Command::Doctor(args) => {
            let options = doctor::Options { fix: args.fix, json: args.json };
            doctor::run(&args.daemon, options)
        }
        Command::Undamp(args) => check::undamp(&args.daemon.api(true)?, &args.vip),
        Command::Reload(args) => reload::run(&args)?,
        Command::Drain(args) => drain::drain(&args.daemon.api(true)?, &args),
        Command::Undrain(args) => drain::undrain(&args.daemon.api(true)?, &args),
        Command::Demo(args) => demo::run(demo::Options { fast: args.fast, json: args.json, keep: args.keep }),
    })
}
