use super::*;
use standfast_core::plan::Via;
use std::os::unix::fs::PermissionsExt;
use std::process::Child;
use std::time::{Duration, Instant};

/// A process of ours; killed and buried at the end.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Self {
        let new = Self(Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap());
        // It has its own memory a moment before it has its own name.
        let comm = format!("/proc/{}/comm", new.pid());
        let start = Instant::now();
        while std::fs::read_to_string(&comm).unwrap().trim() != "sleep" {
            assert!(start.elapsed() < Duration::from_secs(10), "it has another name");
            std::thread::sleep(Duration::from_millis(1));
        }
        new
    }

    fn pid(&self) -> i32 {
        self.0.id().try_into().unwrap()
    }

    /// Killed, and not buried.
    fn kill(&mut self) {
        self.0.kill().unwrap();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a run says within `millis`: good or bad, and the words. `None`: its time was up.
async fn run(process: &Process, millis: u64) -> Option<(bool, String)> {
    let (limit, via) = (Duration::from_millis(millis), Via::default());
    let doing = Doing::new(tokio::time::Instant::now(), limit, &via);
    match tokio::time::timeout(limit, process.run(&doing)).await.ok()? {
        Ok(words) => Some((true, words)),
        Err(Failure::Bad(words)) => Some((false, words)),
        Err(Failure::Local(words)) => panic!("{words}"),
    }
}

async fn within_reason(ended: impl Future<Output = u64>) -> u64 {
    tokio::time::timeout(Duration::from_secs(10), ended).await.expect("the end is told")
}

const PATIENCE: u64 = 10_000;

#[tokio::test]
async fn the_end_of_a_process_is_told_once_even_before_it_is_buried() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("web.pid");
    let process = Process::prepare(&ProcessProbe::pid_file(&file));
    let (good, why) = run(&process, PATIENCE).await.unwrap();
    assert!(!good && why.contains("there is no such file"), "{why}");
    let mut first = Sleeper::new();
    std::fs::write(&file, format!("{}\n", first.pid())).unwrap();
    let runs = (true, format!("process {} (sleep) runs", first.pid()));
    assert_eq!(run(&process, PATIENCE).await.unwrap(), runs);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(run(&process, PATIENCE).await.unwrap(), runs, "a file that is gone is no end of the process");
    std::fs::write(&file, format!("{}\n", first.pid())).unwrap();
    tokio::select! {
        _ = process.ended(0) => panic!("it lives"),
        () = tokio::time::sleep(Duration::from_millis(50)) => {}
    }
    first.kill();
    assert_eq!(within_reason(process.ended(0)).await, 1);
    // Somebody has taken its place already, and it is an end all the same.
    let second = Sleeper::new();
    std::fs::write(&file, second.pid().to_string()).unwrap();
    assert_eq!(
        run(&process, PATIENCE).await.unwrap(),
        (false, format!("process {} (sleep) has ended", first.pid()))
    );
    assert_eq!(
        run(&process, PATIENCE).await.unwrap(),
        (true, format!("process {} (sleep) runs", second.pid()))
    );
    std::fs::write(&file, first.pid().to_string()).unwrap();
    assert!(
        run(&process, PATIENCE).await.unwrap().0,
        "a number that leads nowhere says nothing against who is held"
    );
    drop(second);
    assert_eq!(within_reason(process.ended(1)).await, 2);
    assert!(!run(&process, PATIENCE).await.unwrap().0);
    let (good, why) = run(&process, PATIENCE).await.unwrap();
    assert!(!good && why.ends_with("does not run"), "{why}");
}

#[tokio::test]
async fn who_takes_over_is_followed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("web.pid");
    let process = Process::prepare(&ProcessProbe::pid_file(&file));
    let (mut old, mut new) = (Sleeper::new(), Sleeper::new());
    std::fs::write(&file, old.pid().to_string()).unwrap();
    assert!(run(&process, PATIENCE).await.unwrap().0);
    let process = Arc::new(process);
    let follower = Arc::clone(&process);
    let ended = tokio::spawn(async move { follower.ended(0).await });
    tokio::task::yield_now().await;
    std::fs::write(&file, new.pid().to_string()).unwrap();
    assert_eq!(run(&process, PATIENCE).await.unwrap(), (true, format!("process {} (sleep) runs", new.pid())));
    new.kill();
    assert_eq!(within_reason(async { ended.await.unwrap() }).await, 2, "the end of the new one");
    old.kill();
    assert_eq!(
        run(&process, PATIENCE).await.unwrap(),
        (false, format!("process {} (sleep) has ended", new.pid()))
    );
}

#[tokio::test]
async fn a_process_of_another_name_is_another_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("web.pid");
    let mut probe = ProcessProbe::pid_file(&file);
    probe.name = Some("nginx".into());
    let sleeper = Sleeper::new();
    std::fs::write(&file, sleeper.pid().to_string()).unwrap();
    let (good, why) = run(&Process::prepare(&probe), PATIENCE).await.unwrap();
    assert!(!good && why.ends_with("is sleep and not nginx"), "{why}");
    probe.name = Some("sleep".into());
    assert!(run(&Process::prepare(&probe), PATIENCE).await.unwrap().0);
}

/// A host whose `systemctl` is this script.
fn systemd(directory: &Path, script: &str) -> Systemd {
    let program = directory.join("systemctl");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    Systemd { booted: directory.into(), program }
}

#[tokio::test]
async fn a_unit_is_followed_by_its_main_process_and_asked_for_only_while_there_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let mut sleeper = Sleeper::new();
    let asked = directory.path().join("asked");
    let script = format!(
        "echo \"$*\" >>{}\necho MainPID={}\necho LoadState=loaded\necho ActiveState=active\necho SubState=running",
        asked.display(),
        sleeper.pid()
    );
    let systemd = systemd(directory.path(), &script);
    let process = Process::with(&ProcessProbe::unit("web.service"), systemd);
    for _ in 0..3 {
        assert_eq!(
            run(&process, PATIENCE).await.unwrap(),
            (true, format!("process {} (sleep) runs", sleeper.pid()))
        );
    }
    let arguments = std::fs::read_to_string(asked).unwrap();
    assert_eq!(arguments, "show --property=LoadState,ActiveState,SubState,MainPID -- web.service\n");
    sleeper.kill();
    within_reason(process.ended(0)).await;
    assert!(run(&process, PATIENCE).await.unwrap().1.ends_with("has ended"));
}

#[tokio::test]
async fn an_answer_that_is_too_late_for_one_run_is_the_next_ones() {
    let directory = tempfile::tempdir().unwrap();
    let systemd = systemd(
        directory.path(),
        "sleep 0.5; echo LoadState=loaded; echo ActiveState=failed; echo SubState=failed",
    );
    let process = Process::with(&ProcessProbe::unit("web.service"), systemd);
    assert_eq!(run(&process, 20).await, None);
    let start = Instant::now();
    let mut runs = 1;
    let (good, why) = loop {
        if let Some(said) = run(&process, 20).await {
            break said;
        }
        runs += 1;
        assert!(start.elapsed() < Duration::from_secs(20), "it never comes");
    };
    assert_eq!((good, why.as_str()), (false, "web.service is failed (failed)"));
    assert!(runs > 1);
}

#[tokio::test]
async fn where_there_is_no_systemd_it_is_said_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let systemd = Systemd { booted: directory.path().join("none"), ..Systemd::default() };
    let process = Process::with(&ProcessProbe::unit("web.service"), systemd);
    let why = "there is no systemd on this host: follow the service's pid_file instead of its unit";
    assert_eq!(run(&process, PATIENCE).await.unwrap(), (false, why.to_owned()));
    let systemd =
        self::systemd(directory.path(), "echo 'Failed to connect to bus: No such file' >&2; exit 1");
    let process = Process::with(&ProcessProbe::unit("web.service"), systemd);
    let (_, why) = run(&process, PATIENCE).await.unwrap();
    assert_eq!(why, "systemctl show web.service: Failed to connect to bus: No such file");
}

#[test]
fn a_pid_file_begins_with_a_number() {
    for (text, pid) in
        [("1234", 1234), ("1234\n", 1234), (" 7 \n/var/lib/postgresql\n5432", 7), ("4194304", 4_194_304)]
    {
        assert_eq!(number(text.as_bytes()), Ok(pid), "{text:?}");
    }
    for text in ["", "\n1234", "0", "-1", "+1", "4194305", "99999999999", "12 34", "nginx", "0x10", "1234\0"]
    {
        assert!(number(text.as_bytes()).is_err(), "{text:?}");
    }
}

#[test]
fn what_systemd_says_of_a_unit_leads_to_its_main_process() {
    let of = |load: &str, active: &str, sub: &str, pid: &str| {
        let said = format!("MainPID={pid}\nLoadState={load}\nActiveState={active}\nSubState={sub}\n");
        main_process("web.service", said.as_bytes())
    };
    assert_eq!(of("loaded", "active", "running", "1234"), Ok(1234));
    assert_eq!(of("loaded", "reloading", "reload", "1234"), Ok(1234));
    for (said, why) in [
        (of("not-found", "inactive", "dead", "0"), "systemd knows no web.service"),
        (of("loaded", "inactive", "dead", "0"), "web.service is inactive (dead)"),
        (of("loaded", "activating", "start-pre", "99"), "web.service is activating (start-pre)"),
        (of("loaded", "deactivating", "stop-sigterm", "99"), "web.service is deactivating (stop-sigterm)"),
        (of("loaded", "active", "exited", "0"), "web.service is active (exited) and has no main process"),
        (of("loaded", "active", "running", "x"), "systemd says nothing of the main process of web.service"),
        (main_process("web.service", b""), "systemd says nothing of web.service"),
    ] {
        assert_eq!(said, Err(why.to_owned()));
    }
}
