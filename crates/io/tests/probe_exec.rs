//! Commands as checks: every way in which one can misbehave, and what is left of it afterwards.
#![cfg(feature = "probe")]
#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod probe_support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use probe_support::*;
use standfast_core::health::Outcome::{Bad, Good, NoResult};
use standfast_core::health::Verdict;
use standfast_core::plan::{Check, ExecProbe, Probe};
use standfast_io::probe::{Prober, prepare};
use tempfile::TempDir;

const SECOND: Duration = Duration::from_secs(1);

/// The tests count what the whole process holds, so they take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn exec(argv: &[&str]) -> ExecProbe {
    ExecProbe {
        argv: argv.iter().map(|&a| a.to_owned()).collect(),
        env: BTreeMap::new(),
        directory: PathBuf::from("/"),
        user: None,
        output_limit: 4096,
        nagios: false,
    }
}

fn shell(script: &str) -> ExecProbe {
    exec(&["/bin/sh", "-c", &marked(script)])
}

/// Makes each `@` of a text this process's own, so that nothing of another one is taken for ours.
fn marked(text: &str) -> String {
    text.replace('@', &std::process::id().to_string())
}

fn probe(exec: ExecProbe) -> Probe {
    Probe::Exec(Box::new(exec))
}

/// Runs once, on a runtime that must not be held up.
fn run(exec: ExecProbe, limit: Duration) -> Verdict {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(once(probe(exec), u64::try_from(limit.as_millis()).unwrap()))
}

fn output(verdict: &Verdict) -> &str {
    verdict.details.as_ref().and_then(|d| d.output.as_deref()).unwrap_or_default()
}

/// Processes that have `marker` in their command line and have not ended.
fn alive(marker: &str) -> usize {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter(|p| {
        let line = fs::read(p.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&marked(marker))
    })
    .count()
}

/// Children of ours that ended and were not waited for.
fn zombies() -> usize {
    let us = std::process::id().to_string();
    let stats = fs::read_dir("/proc").unwrap().flatten().map(|p| fs::read_to_string(p.path().join("stat")));
    stats
        .filter(|stat| {
            let stat = stat.as_deref().unwrap_or_default();
            let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
            rest.starts_with(&format!("Z {us} "))
        })
        .count()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

fn memory(what: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[track_caller]
fn until(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < 5 * SECOND, "{what} is not so after 5 s");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn script(dir: &TempDir, name: &str, text: &str, mode: u32) -> String {
    let path = dir.path().join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn an_exit_status_decides_and_the_first_line_explains() {
    let _alone = alone();
    let v = run(shell("echo; echo all is well; echo more"), 5 * SECOND);
    assert_says(&v, Good, "exit 0: all is well");
    assert_eq!(output(&v), "\nall is well\nmore\n");
    assert_eq!(v.details.as_ref().unwrap().exit_code, Some(0));
    assert_says(&run(exec(&["/bin/true"]), 5 * SECOND), Good, "exit 0");
    let v = run(shell("echo 'the disk is full' >&2; exit 7"), 5 * SECOND);
    assert_says(&v, Bad, "exit 7: the disk is full");
    assert_eq!(v.details.as_ref().unwrap().exit_code, Some(7));
    assert_says(&run(shell("kill -SEGV $$"), 5 * SECOND), Bad, "killed by SIGSEGV");
}

#[test]
fn a_command_whose_time_is_up_is_killed_with_all_its_children() {
    let _alone = alone();
    let one = |script: &str| once(probe(shell(script)), 3000);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let all = runtime.block_on(async {
        let (a, b, c, d) = tokio::join!(
            one("echo waiting; sleep 3500@.0"),
            one("trap '' TERM; echo waiting; sleep 3500@.1"),
            one("sleep 3500@.2 & echo waiting; sleep 3500@.3 & wait"),
            one("(trap '' HUP INT TERM; exec sleep 3500@.4) & echo waiting; exec sleep 3500@.5"),
        );
        [a, b, c, d]
    });
    for v in all {
        assert_says(&v, Bad, "timed out after 3000 ms while running /bin/sh");
        assert!(v.timed_out && v.took < 6 * SECOND, "{v:?}");
        assert_eq!(output(&v), "waiting\n");
    }
    until("nobody is left", || alive("3500@.") == 0);
    until("nobody waits to be buried", || zombies() == 0);
}

#[test]
fn a_child_that_keeps_the_pipe_open_delays_nothing_and_is_killed() {
    let _alone = alone();
    let v = run(shell("echo started; sleep 3501@ & exit 0"), 10 * SECOND);
    assert_says(&v, Good, "exit 0: started");
    assert!(v.took < 5 * SECOND, "{v:?}");
    until("nobody is left", || alive("3501@") == 0);
    // One that writes without end, too.
    let v = run(shell("yes 3502@ & exit 0"), 10 * SECOND);
    assert_says(&v, Good, "exit 0");
    assert!(v.took < 5 * SECOND, "{v:?}");
    until("nobody is left", || alive("3502@") == 0);
}

#[test]
fn output_without_end_neither_blocks_nor_grows() {
    let _alone = alone();
    run(exec(&["/bin/true"]), 5 * SECOND);
    let before = memory("VmHWM:");
    let v = run(shell("yes 3503@"), 2 * SECOND);
    assert_says(&v, Bad, "timed out after 2000 ms");
    assert_eq!(output(&v).len(), 4096);
    let v = run(shell("head -c 500M /dev/zero; echo; echo end"), 60 * SECOND);
    assert_says(&v, Good, "exit 0");
    assert!(output(&v).chars().all(|c| c == '\u{fffd}') && output(&v).chars().count() == 4096);
    let grown = memory("VmHWM:") - before;
    assert!(grown < 8 << 10, "memory grew by {grown} KiB");
    until("nobody is left", || alive("3503@") == 0);
}

#[test]
fn what_cannot_be_run_says_why_before_and_at_the_run() {
    let _alone = alone();
    let dir = TempDir::new().unwrap();
    let refused = |exec: ExecProbe| prepare(&Check::new(probe(exec))).unwrap_err();
    let absent = dir.path().join("absent");
    assert_eq!(refused(exec(&[absent.to_str().unwrap()])), format!("{}: no such file", absent.display()));
    let plain = script(&dir, "plain", "#!/bin/sh\n", 0o644);
    assert_eq!(refused(exec(&[&plain])), format!("{plain}: this file is not executable: chmod +x"));
    assert!(refused(exec(&["/tmp"])).ends_with("this is not a file"));
    let strange = ExecProbe { user: Some("nobody-at-all".into()), ..exec(&["/bin/true"]) };
    assert!(refused(strange).contains("user `nobody-at-all` is not in /etc/passwd"));
    let nowhere = ExecProbe { directory: absent, ..exec(&["/bin/true"]) };
    assert!(refused(nowhere).ends_with("the working directory is no directory"));
    // And if it happens between the start and the run.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let goes = script(&dir, "goes", "#!/bin/sh\n", 0o755);
    let prepared = prepare(&Check::new(probe(exec(&[&goes])))).unwrap();
    assert_says(&runtime.block_on(prepared.run(5 * SECOND)), Good, "exit 0");
    fs::set_permissions(&goes, fs::Permissions::from_mode(0o644)).unwrap();
    let v = runtime.block_on(prepared.run(5 * SECOND));
    assert_says(&v, Bad, &format!("{goes}: permission denied"));
    fs::remove_file(&goes).unwrap();
    let v = runtime.block_on(prepared.run(5 * SECOND));
    assert_says(&v, Bad, &format!("{goes}: no such file or directory"));
    let strange = script(&dir, "strange", "#!/no/such/interpreter\n", 0o755);
    assert_says(&run(exec(&[&strange]), 5 * SECOND), Bad, "its interpreter is missing");
    until("nobody waits to be buried", || zombies() == 0);
}

#[test]
fn nothing_is_inherited_but_the_path() {
    let _alone = alone();
    let mut probe = exec(&["/usr/bin/env"]);
    probe.env.insert("STANDFAST_VIP".into(), "web".into());
    let v = run(probe, 5 * SECOND);
    let mut names: Vec<_> = output(&v).lines().filter_map(|l| l.split_once('=')).collect();
    names.sort_unstable();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names[0].0 == "PATH" && names[0].1.contains("/bin"), "{names:?}");
    assert_eq!(names[1], ("STANDFAST_VIP", "web"));
    // No descriptor of ours either, no signal blocked or ignored, standard input at its end, and a group of its own.
    let script = "ls /proc/self/fd | wc -l; cat; grep -E 'SigBlk|SigIgn' /proc/self/status | cut -f2; pwd";
    let v = run(shell(script), 5 * SECOND);
    let lines: Vec<_> = output(&v).lines().collect();
    // Three, and the directory itself.
    assert_eq!((lines[0], lines[1], lines[3]), ("4", "0000000000000000", "/"), "{lines:?}");
    // The C library keeps two signals to itself.
    assert_eq!(u64::from_str_radix(lines[2], 16).unwrap() & !(0b11 << 31), 0, "{lines:?}");
    assert!(output(&run(shell("ulimit -Sn"), 5 * SECOND)).trim().parse::<u32>().unwrap() <= 1024);
    let mut here = shell("pwd; cut -d' ' -f5 /proc/$$/stat; echo $$");
    here.directory = PathBuf::from("/usr");
    let v = run(here, 5 * SECOND);
    let lines: Vec<_> = output(&v).lines().collect();
    assert_eq!(lines[0], "/usr");
    assert_eq!(lines[1], lines[2], "not the leader of its group");
}

#[test]
fn a_command_runs_as_who_it_should_with_the_groups_of_a_login() {
    let _alone = alone();
    // Only root can read it.
    if fs::read("/etc/shadow").is_err() {
        eprintln!("SKIP a_command_runs_as_who_it_should_with_the_groups_of_a_login: needs root");
        return;
    }
    let nobody =
        ExecProbe { user: Some("nobody".into()), ..shell("id -u; id -g; id -G; echo $$; sleep 3504@") };
    let v = run(nobody, 3 * SECOND);
    assert_says(&v, Bad, "timed out");
    let ids: Vec<_> = output(&v).lines().collect();
    assert_eq!(ids[..3], ["65534", "65534", "65534"], "{ids:?}");
    until("nobody is left", || alive("3504@") == 0);
    let number = ExecProbe { user: Some("12345".into()), ..shell("id -u; id -G") };
    assert_eq!(output(&run(number, 5 * SECOND)), "12345\n12345\n");
    // What the user may not execute says so.
    let dir = TempDir::new().unwrap();
    let private = script(&dir, "private", "#!/bin/sh\n", 0o700);
    let denied = ExecProbe { user: Some("nobody".into()), ..exec(&[&private]) };
    assert_says(&run(denied, 5 * SECOND), Bad, "permission denied");
}

#[test]
fn nagios_plugins_are_understood() {
    let _alone = alone();
    let plugin = |code: i32, text: &str| {
        run(ExecProbe { nagios: true, ..shell(&format!("echo '{text}'; exit {code}")) }, 5 * SECOND)
    };
    assert_says(&plugin(0, "DISK OK - 5 GB free | used=5GB;8;9"), Good, "DISK OK - 5 GB free");
    assert_says(&plugin(1, "DISK WARNING"), Good, "DISK WARNING");
    assert_says(&plugin(2, ""), Bad, "CRITICAL");
    assert_says(&plugin(3, "cannot tell"), NoResult, "cannot tell");
    assert_says(&plugin(127, "sh: not found"), Bad, "exit 127, which no plugin returns: sh: not found");
    assert!(!plugin(0, "OK | a=1").detail.contains('|'));
}

#[test]
fn a_run_that_is_given_up_takes_its_command_with_it() {
    let _alone = alone();
    let prober = Prober::start(drop).unwrap();
    let hangs = check(probe(shell("sleep 3505@ & sleep 3505@")), 60_000, 50_000);
    prober.set(&[(id("hangs"), hangs)].into()).unwrap();
    until("it runs", || alive("3505@") >= 2);
    prober.set(&BTreeMap::new()).unwrap();
    until("it does not run", || alive("3505@") == 0);
    until("nobody waits to be buried", || zombies() == 0);
}

#[test]
fn runs_of_a_check_never_pile_up_and_leave_nothing_behind() {
    let _alone = alone();
    let prober = Prober::start(drop).unwrap();
    let hangs = |marker: &str| check(probe(shell(&format!("sleep {marker} & sleep {marker}"))), 100, 90);
    let quick = check(probe(shell("echo quick; yes | head -c 200000; sleep 3507@ & exit 1")), 20, 19);
    let mut checks: BTreeMap<_, _> = [(id("quick"), quick)].into();
    checks.insert(id("hangs"), hangs("3506@"));
    prober.set(&checks).unwrap();
    let runs = |name: &str| prober.counts()[&id(name)].runs;
    until("they run", || runs("hangs") > 5 && runs("quick") > 10);
    let (fds, tasks, rss) = (descriptors(), threads(), memory("VmRSS:"));
    let (hung, done) = (runs("hangs"), runs("quick"));
    let mut most = 0;
    let start = Instant::now();
    while start.elapsed() < 5 * SECOND {
        most = most.max(alive("sleep 3506@"));
        std::thread::sleep(Duration::from_millis(7));
    }
    let (hung, done) = (runs("hangs") - hung, runs("quick") - done);
    println!("{hung} killed and {done} ended commands, at most {most} processes of one check at a time");
    assert!(hung >= 10 && done >= 10, "{hung} {done}");
    // The shell and its two children; a fork is seen before it is a sleep.
    assert!(most <= 3, "{most} processes of one check at a time");
    let grown = memory("VmRSS:").saturating_sub(rss);
    assert!(grown < 4 << 10, "memory grew by {grown} KiB");
    prober.set(&BTreeMap::new()).unwrap();
    until("nobody is left", || alive("3506@") + alive("3507@") == 0);
    until("nobody waits to be buried", || zombies() == 0);
    until("every descriptor and thread is back", || descriptors() <= fds && threads() <= tasks);
}

#[test]
fn what_leaves_the_group_is_found_ended_and_told_by_the_next_run() {
    let _alone = alone();
    // Each in a session of its own, and one of them with a child.
    let script = "setsid sleep 3508@ & setsid sh -c 'sleep 3509@ & sleep 3509@; :' & \
                  until [ \"$(pgrep -c -f '^sleep 350[89]@')\" = 3 ]; do sleep 0.02; done; \
                  echo started; [ -z \"$HANG\" ] || sleep 3510@";
    for hang in ["", "1"] {
        let mut exec = shell(script);
        exec.env = [("HANG".to_owned(), hang.to_owned())].into();
        let prepared = prepare(&check(probe(exec), 60_000, 5000)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for n in 0..3 {
            let v = runtime.block_on(prepared.run(4 * SECOND));
            let told = v.detail.contains("(the last run left 4 processes outside its group: ended)");
            assert_eq!(told, n > 0, "{n}: {v:?}");
            assert_eq!(v.timed_out, hang == "1", "{v:?}");
            assert_eq!(output(&v), "started\n");
        }
        until("nobody is left", || alive("3508@") + alive("3509@") + alive("3510@") == 0);
    }
    // Where nothing is left, nothing is said.
    let prepared = prepare(&check(probe(shell("sleep 3511@ & echo fine")), 60_000, 5000)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for _ in 0..3 {
        assert_says(&runtime.block_on(prepared.run(5 * SECOND)), Good, "exit 0: fine");
        assert!(!runtime.block_on(prepared.run(5 * SECOND)).detail.contains("left"));
    }
    until("nobody waits to be buried", || zombies() == 0);
}

/// Names the command that becomes root, where the test below runs as another user.
const BECOMES_ROOT: &str = "STANDFAST_TEST_BECOMES_ROOT";

#[test]
fn a_command_that_cannot_be_killed_keeps_its_turn() {
    let name = "a_command_that_cannot_be_killed_keeps_its_turn";
    let _alone = alone();
    if let Ok(script) = std::env::var(BECOMES_ROOT) {
        return keeps_its_turn(&script);
    }
    // SAFETY: has no conditions.
    let root = unsafe { libc::geteuid() } == 0;
    let setpriv = PathBuf::from("/usr/bin/setpriv");
    if !root || !setpriv.exists() {
        eprintln!("SKIP {name}: needs root and {}", setpriv.display());
        return;
    }
    // This test once more, as a user that is not root, with a command that may become root.
    let dir = TempDir::new().unwrap();
    let (ours, becomes) = (dir.path().join("test"), dir.path().join("setpriv"));
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(std::env::current_exe().unwrap(), &ours).unwrap();
    fs::copy(setpriv, &becomes).unwrap();
    fs::set_permissions(&becomes, fs::Permissions::from_mode(0o4755)).unwrap();
    let script = format!("{} --reuid 0 --regid 0 --clear-groups sleep", becomes.display());
    let mut again = Command::new(ours);
    again.args(["--exact", name, "--nocapture"]).env(BECOMES_ROOT, script).current_dir("/");
    let out = again.uid(65534).gid(65534).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    print!("{text}");
}

/// Runs a check whose shell can be killed, while what it started cannot.
fn keeps_its_turn(becomes_root: &str) {
    // It ends by itself, since nobody may end it.
    let marker = "sleep 4.000@";
    let script = format!("{becomes_root} 4.000@ & wait");
    let hangs = check(probe(shell(&script)), 60_000, 1000);
    let prepared = prepare(&hangs).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let run = |limit| runtime.block_on(prepared.run(limit));
    let first = run(SECOND);
    assert_says(&first, Bad, "timed out after 1000 ms while running /bin/sh");
    let left = || alive(&format!("\0{}", marker.replace(' ', "\0"))) + alive(&marker.replace(' ', "\0"));
    assert!(left() > 0, "nothing has become root: {}", output(&first));
    let before = left();
    for _ in 0..4 {
        let verdict = run(SECOND / 5);
        println!("{}", verdict.detail);
        assert_eq!(verdict.outcome, Bad);
        assert!(verdict.detail.contains("the command could not be killed"), "{}", verdict.detail);
        assert_eq!(left(), before, "another run was started");
    }
    until("it ends by itself", || left() == 0);
    assert_says(&run(SECOND), Bad, "timed out after 1000 ms while running /bin/sh");
    assert_eq!(left(), before, "the next run has its turn");
}
