//! The command line: what can be asked for, and the commands that need no running daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

mod plan;

use crate::config;

/// Announces a service's addresses by BGP from exactly those machines that can serve it.
#[derive(Debug, Parser)]
#[command(name = "standfast", version, about, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon.
    Run(Config),
    /// Check a configuration and report everything that is wrong with it.
    Validate(Config),
    /// Show what a configuration would do, or what a reload would change.
    Plan(Plan),
    /// Print the JSON Schema of the configuration.
    Schema(Schema),
    /// Ask the running daemon how things are.
    Status(Status),
    /// Show a whole fleet at work in private namespaces.
    Demo(Demo),
}

/// The configuration file.
#[derive(Debug, Args)]
pub struct Config {
    /// The configuration file.
    #[arg(short = 'c', long = "config", value_name = "FILE", default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
}

/// What `plan` shows.
#[derive(Debug, Args)]
pub struct Plan {
    /// The configuration file.
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The configuration file, as for the other commands.
    #[arg(short = 'c', long = "config", value_name = "FILE", conflicts_with = "file")]
    pub config: Option<PathBuf>,
    /// The configuration that runs; without it, everything is new.
    #[arg(long, value_name = "OLD")]
    pub against: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What `schema` prints.
#[derive(Debug, Args)]
pub struct Schema {
    /// Print the table of keys in Markdown instead.
    #[arg(long)]
    pub keys: bool,
}

/// What `status` shows.
#[derive(Debug, Args)]
pub struct Status {
    /// The configuration file, which says where the daemon listens.
    #[arg(short = 'c', long = "config", value_name = "FILE", default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
    /// The daemon's API, instead of the configuration's `api.listen`.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub api: Option<std::net::SocketAddr>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// How `demo` runs.
#[derive(Debug, Args)]
pub struct Demo {
    /// Shorten the waits: less than 20 seconds in all.
    #[arg(long)]
    pub fast: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Keep everything running until Ctrl-C, and say how to look at it.
    #[arg(long)]
    pub keep: bool,
}

/// Where the configuration is unless the command says otherwise.
pub const DEFAULT_CONFIG: &str = "/etc/standfast/config.yaml";

/// Wrong use or configuration.
pub const WRONG: u8 = 2;

/// `validate`: prints every problem, or that there is none.
pub fn validate(args: &Config) -> ExitCode {
    let Some(loaded) = load(&args.config) else { return ExitCode::from(WRONG) };
    let plan = &loaded.plan;
    let count = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let mut parts = vec![
        count(plan.bgp.peers.len(), "neighbour"),
        count(plan.vips.len(), "VIP"),
        count(plan.checks.len(), "check"),
    ];
    if let Some(listener) = &plan.listener {
        parts.push(format!("a listener for {}", count(listener.vips.len(), "VIP")));
    }
    println!("{}: valid: {}", args.config.display(), parts.join(", "));
    ExitCode::SUCCESS
}

/// `plan`: prints what would be added, changed and removed.
pub fn plan(args: &Plan) -> ExitCode {
    let file = args.file.as_ref().or(args.config.as_ref());
    let file = file.cloned().unwrap_or_else(|| PathBuf::from(DEFAULT_CONFIG));
    let Some(new) = load(&file) else { return ExitCode::from(WRONG) };
    let old = match &args.against {
        Some(path) => match load(path) {
            Some(old) => Some(old),
            None => return ExitCode::from(WRONG),
        },
        None => None,
    };
    let changes = plan::changes(old.as_ref(), &new);
    if args.json { print(&format!("{:#}\n", plan::json(&changes))) } else { print(&plan::text(&changes)) }
}

/// What a configuration does, in the words of `plan`.
pub fn describe(loaded: &config::Loaded) -> String {
    plan::text(&plan::changes(None, loaded))
}

/// `schema`: prints the JSON Schema, or the table of keys.
pub fn schema(args: &Schema) -> ExitCode {
    if args.keys {
        print(&config::reference::keys())
    } else {
        print(&format!("{:#}\n", config::reference::schema()))
    }
}

/// Loads a configuration; its problems or warnings go to standard error.
pub fn load(path: &std::path::Path) -> Option<config::Loaded> {
    let colours =
        std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("NO_COLOR").is_none();
    match config::load(path) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                eprintln!("{}\n", warning.render(colours));
            }
            Some(loaded)
        }
        Err(problems) => {
            eprint!("{}", problems.render(colours));
            None
        }
    }
}

/// Prints to standard output; a reader that has gone is no failure of ours.
fn print(text: &str) -> ExitCode {
    use std::io::Write as _;
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("error: cannot write: {e}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
