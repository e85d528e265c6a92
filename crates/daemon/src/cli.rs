//! The command line: what can be asked for, and the commands that need no running daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

mod plan;

use crate::client::Api;
use crate::{config, drain, notify, reload, timing};

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
    /// Have the running daemon run a VIP's checks now, and show what they say.
    Check(Check),
    /// Tell the running daemon how a service is, for a check of type push.
    Report(Report),
    /// The same, in the fewest words, for scripts: `notify web ok`.
    Notify(notify::Notify),
    /// Compute how long each kind of failure can last at most, VIP by VIP, and what would make it shorter.
    Timing(timing::Timing),
    /// Look for what would fail silently on this host, and say what mends it.
    Doctor(Doctor),
    /// Have the running daemon forget the failures for which a VIP is held back by its damping.
    Undamp(Undamp),
    /// Have the running daemon read its configuration again.
    Reload(reload::Reload),
    /// Have a VIP of this host, or a member of its listener, leave without breaking connections.
    Drain(drain::Drain),
    /// Have a VIP of this host, or a member of its listener, serve again.
    Undrain(drain::Undrain),
    /// Show a whole fleet at work in private namespaces.
    Demo(Demo),
}

/// The configuration file.
#[derive(Debug, Args)]
pub struct Config {
    /// The configuration file [default: /etc/standfast/config.yaml].
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The configuration file, as for the other commands.
    #[arg(short = 'c', long = "config", value_name = "FILE", conflicts_with = "file")]
    pub config: Option<PathBuf>,
}

impl Config {
    /// The file that is meant.
    pub fn path(&self) -> PathBuf {
        self.file.as_ref().or(self.config.as_ref()).cloned().unwrap_or_else(|| PathBuf::from(DEFAULT_CONFIG))
    }
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

/// Which daemon is asked.
#[derive(Debug, Args)]
pub struct Daemon {
    /// The configuration file, which says where the daemon listens [default: /etc/standfast/config.yaml, if it is there].
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The daemon's API, instead of the configuration's: ADDRESS:PORT, a URL, or unix:/path/of/the/socket.
    #[arg(long, value_name = "API", env = "STANDFAST_API")]
    pub api: Option<Api>,
}

/// What `status` shows.
#[derive(Debug, Args)]
pub struct Status {
    /// Which daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What `check` runs.
#[derive(Debug, Args)]
pub struct Check {
    /// The VIP, or VIP/NAME as the log and the metrics have it.
    #[arg(value_name = "VIP")]
    pub vip: String,
    /// The check's name; without it, every check of the VIP.
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Which daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What `report` tells. A token, where the daemon wants one, is taken from STANDFAST_TOKEN.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("verdict").args(["ok", "bad"]).required(true))]
pub struct Report {
    /// The VIP.
    #[arg(value_name = "VIP")]
    pub vip: String,
    /// The check's name; without it, the VIP's only check of type push.
    #[arg(value_name = "CHECK")]
    pub check: Option<String>,
    /// The service is good.
    #[arg(long)]
    pub ok: bool,
    /// The service is bad.
    #[arg(long)]
    pub bad: bool,
    /// Why, for status and the log.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    /// Which daemon.
    #[command(flatten)]
    pub daemon: Daemon,
}

/// How `doctor` looks.
#[derive(Debug, Args)]
pub struct Doctor {
    /// The configuration, which says what this host is to be, and where its daemon can be asked about the peers.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Set the sysctls that are safe to set, until the next boot, and print the lines that keep them.
    #[arg(long)]
    pub fix: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Whom `undamp` lets go. A token, where the daemon wants one, is taken from STANDFAST_TOKEN.
#[derive(Debug, Args)]
pub struct Undamp {
    /// The VIP.
    #[arg(value_name = "VIP")]
    pub vip: String,
    /// Which daemon.
    #[command(flatten)]
    pub daemon: Daemon,
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

/// The daemon cannot be reached.
pub const UNREACHABLE: u8 = 3;

/// Says that the daemon cannot be reached, and what to look at.
pub fn unreachable(api: &Api, why: &str) -> ExitCode {
    eprintln!("standfast: cannot reach the daemon at {api}: {why}");
    eprintln!(
        "  is it running? does it listen elsewhere? name it with --api ADDRESS:PORT or --api unix:/path"
    );
    ExitCode::from(UNREACHABLE)
}

impl Daemon {
    /// The configuration file that is meant.
    pub fn path(&self) -> PathBuf {
        self.config.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_CONFIG))
    }

    /// Where the daemon can be asked: as told, or where its configuration says, by its socket if `local`. A file that is
    /// broken or not for us does not hide a daemon that runs, nor does one that is missing where it is looked for unasked.
    ///
    /// # Errors
    /// The file that was named is not there, which is said.
    pub fn api(&self, local: bool) -> Result<Api, ExitCode> {
        if let Some(api) = &self.api {
            return Ok(api.clone());
        }
        let path = self.path();
        let fallback = Api::from(std::net::SocketAddr::from(([127, 0, 0, 1], 59179)));
        match std::fs::File::open(&path) {
            Ok(_) => {}
            Err(e) if self.config.is_some() && e.kind() == std::io::ErrorKind::NotFound => {
                let path = path.display();
                eprintln!(
                    "standfast: {path}: there is no such file, so it cannot say where the daemon listens"
                );
                eprintln!(
                    "  name the file that the daemon runs with, or its API with --api ADDRESS:PORT or --api unix:/path"
                );
                return Err(ExitCode::from(WRONG));
            }
            Err(_) => return Ok(fallback),
        }
        Ok(match load(&path) {
            Some(loaded) => {
                let api = loaded.daemon.api;
                api.socket.filter(|_| local).map_or_else(|| Api::from(api.listen), Api::Unix)
            }
            None => {
                eprintln!("standfast: asking {fallback}; name another address with --api ADDRESS:PORT\n");
                fallback
            }
        })
    }
}

impl Daemon {
    /// Where a daemon can be asked whose file may be broken just then: as told, by its usual socket if nothing is told, or as
    /// with [`api`](Self::api).
    ///
    /// # Errors
    /// As with [`api`](Self::api).
    pub fn running(&self) -> Result<Api, ExitCode> {
        let usual = std::path::Path::new(notify::SOCKET);
        let is_socket =
            || usual.metadata().is_ok_and(|m| std::os::unix::fs::FileTypeExt::is_socket(&m.file_type()));
        match (&self.api, &self.config) {
            (None, None) if is_socket() => Ok(Api::Unix(usual.into())),
            _ => self.api(true),
        }
    }
}

/// `validate`: prints every problem, or that there is none.
pub fn validate(args: &Config) -> ExitCode {
    let path = args.path();
    let Some(loaded) = load(&path) else { return ExitCode::from(WRONG) };
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
    println!("{}: valid: {}", path.display(), parts.join(", "));
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
    let (changes, fixed) = match &old {
        Some(old) => (changes(&old.plan, &old.daemon, &new), new.fixed(&old.plan, &old.daemon)),
        None => (Changes(plan::changes(None, (&new.plan, &new.daemon))), Vec::new()),
    };
    if args.json {
        let mut json = changes.json();
        if old.is_some() {
            let restart = fixed.iter().map(|p| serde_json::json!({ "path": p.path, "message": p.message }));
            json["restart"] = restart.collect();
        }
        return print(&format!("{json:#}\n"));
    }
    let restart = fixed.iter().map(|p| format!("! {}: {}; restart to change this\n", p.path, p.message));
    print(&(changes.text() + &restart.collect::<String>()))
}

/// What a reload changes: the same that `plan --against` shows.
pub struct Changes(Vec<plan::Difference>);

/// What `new` changes of what runs.
pub fn changes(
    running: &standfast_core::plan::Plan,
    daemon: &config::Daemon,
    new: &config::Loaded,
) -> Changes {
    Changes(plan::changes(Some((running, daemon)), (&new.plan, &new.daemon)))
}

impl Changes {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As a person reads them.
    pub fn text(&self) -> String {
        plan::text(&self.0)
    }

    /// As a program reads them.
    pub fn json(&self) -> serde_json::Value {
        plan::json(&self.0)
    }

    /// Each in one line.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(plan::Difference::line)
    }

    /// How many they are.
    pub fn summary(&self) -> String {
        plan::summary(&self.0)
    }
}

/// What a configuration does, in the words of `plan`.
pub fn describe(loaded: &config::Loaded) -> String {
    plan::text(&plan::changes(None, (&loaded.plan, &loaded.daemon)))
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
pub fn print(text: &str) -> ExitCode {
    use std::io::Write as _;
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("error: cannot write: {e}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
