//! `standfast notify`: what a script says of its service, in one line.
//!
//! It asks no configuration where the daemon's socket is at its usual place, so that any user whom the socket's group lets in
//! can say it, and it costs a few milliseconds.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::check::{self, Report};
use crate::client::Api;
use crate::{cli, config};

/// Where the daemon's unix socket is unless somebody says otherwise.
pub const SOCKET: &str = "/run/standfast/api.sock";

/// Says how a service is, for a check of type push.
///
/// Exit code 0: it was taken. 2: it was refused, and nothing has changed. 3: the daemon cannot be reached; the lease of what
/// was said last goes on. A token, where the daemon wants one, is taken from STANDFAST_TOKEN.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  standfast notify web ok                               the VIP's only check of type push
  standfast notify web/app bad --reason 'queue is full'
  standfast notify web/app ok --share 40                take 40 % of my bandwidth's share
  standfast notify web/app ok --lease 3s                silence for 3 s is a bad verdict")]
pub struct Notify {
    /// The VIP, or VIP/NAME for one of several checks of type push.
    #[arg(value_name = "VIP[/NAME]")]
    pub vip: String,
    /// How the service is.
    #[arg(value_enum, value_name = "VERDICT")]
    pub verdict: Word,
    /// Why, for status and the log.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    /// The percentage of the VIP's bandwidth that it asks traffic for; 0: no new connections. It stands until another one is said.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub share: Option<u8>,
    /// For how long this holds, such as 3s; the check's lease is the longest.
    #[arg(long, value_name = "DURATION", value_parser = config::duration)]
    pub lease: Option<Duration>,
    /// Which daemon.
    #[command(flatten)]
    pub daemon: cli::Daemon,
}

/// What can be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Word {
    /// It can serve.
    Ok,
    /// It cannot.
    Bad,
}

/// Says it. An error is the exit code of what was printed already.
pub fn run(args: &Notify) -> Result<ExitCode, ExitCode> {
    let api = args.daemon.running()?;
    let report = Report {
        vip: &args.vip,
        check: None,
        ok: args.verdict == Word::Ok,
        reason: &args.reason,
        share: args.share,
        lease: args.lease,
    };
    let code = check::report(&api, &report);
    if code == ExitCode::from(cli::UNREACHABLE)
        && let Api::Unix(path) = &api
        && let Some(help) = locked_out(path)
    {
        eprintln!("{help}");
    }
    Ok(code)
}

/// Who may write to a socket that we may not, and how to become one of them.
fn locked_out(path: &Path) -> Option<String> {
    use std::os::unix::net::UnixStream;
    let denied = UnixStream::connect(path).is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied);
    if !denied {
        return None;
    }
    let Ok(socket) = path.metadata() else {
        let directory = path.parent().unwrap_or(path).display();
        return Some(format!(
            "  this user may not enter {directory}: its group is the one to be in (ls -ld {directory})"
        ));
    };
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let group = group(&groups, socket.gid()).unwrap_or_else(|| socket.gid().to_string());
    let mode = socket.mode() & 0o777;
    Some(match mode & 0o020 {
        0 => format!(
            "  the socket's mode is {mode:04o}, so its group may not write to it: set api.socket_mode: \"0660\""
        ),
        _ => format!(
            "  this user is not in the group {group}, which may: usermod -aG {group} USER, and log in anew"
        ),
    })
}

/// The name of a group in the text of `/etc/group`.
fn group(groups: &str, gid: u32) -> Option<String> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(gid)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[test]
    fn a_group_is_found_by_its_number() {
        let groups = "root:x:0:\nbroken\nweb:x:1000:alice,bob\n:x:x:\n";
        assert_eq!((group(groups, 1000).as_deref(), group(groups, 7)), (Some("web"), None));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_before_anybody_is_asked() {
        let parse = |args: &[&str]| cli::Cli::try_parse_from(["standfast", "notify"].iter().chain(args));
        assert!(parse(&["web/app", "ok", "--share", "0", "--lease", "3s"]).is_ok());
        for args in [
            &["web"][..],
            &["web", "good"],
            &["web", "ok", "--share", "101"],
            &["web", "ok", "--share", "-1"],
            &["web", "ok", "--lease", "3"],
            &["web", "ok", "app"],
        ] {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }
}
