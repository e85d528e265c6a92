//! What services and scripts say by themselves, the process that is followed to its end, and the timing contract against the clock.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use standfast_lab::*;

const VIP: &str = "198.51.100.10/32";
const L: u32 = 64512;
const G: u32 = 64513;
/// What a busy machine may add to a moment.
const SLACK: Duration = Duration::from_secs(1);

/// Runs the command line in `host`: its exit code, and everything that it said.
fn standfast(host: &Host, before: &str, args: &str) -> (i32, String) {
    let bin = standfast_bin().expect("the lab needs it");
    let text = host.attempt(&format!("{before} {} {args} 2>&1; echo \" code $?\"", bin.display()));
    let (said, code) = text.rsplit_once(" code ").expect("a code");
    (code.trim().parse().unwrap_or_else(|_| panic!("no exit code in {text}")), said.to_owned())
}

/// Waits until the kernel of `host` has the route, or has it not any more, looking some thousand times in a second; how long
/// that took.
fn routed(host: &Host, there: bool) -> Duration {
    // The address as the kernel prints it.
    let hex = format!("\t{:08X}\t", u32::from(Ipv4Addr::new(198, 51, 100, 10)).swap_bytes());
    host.enter(move || {
        let start = Instant::now();
        loop {
            let routes = std::fs::read_to_string("/proc/thread-self/net/route").expect("the kernel's routes");
            if routes.contains(&hex) == there {
                return start.elapsed();
            }
            assert!(
                start.elapsed() < secs(20),
                "the route is {}",
                if there { "not there" } else { "still there" }
            );
            std::thread::sleep(Duration::from_micros(200));
        }
    })
}

/// BIRD, which puts what it is told into its kernel.
fn router(l: &Host, g: &Host) -> Spec {
    bird_raw(&format!(
        "log stderr all;\nrouter id {l};\nprotocol device {{}}\nprotocol kernel {{ ipv4 {{ export all; }}; }}\n\
         protocol bgp g {{ local {l} as {L}; neighbor {g} as {G}; direct; passive yes; hold time 9; error wait time 1,4;\n \
         ipv4 {{ import all; export none; }}; }}\n",
        l = l.v4,
        g = g.v4
    ))
}

fn run_now(g: &Host) -> Value {
    let (_, answer) = g.http(API, "POST", "/api/v1/vips/web/check").expect("the API answers");
    serde_json::from_str(&answer).expect("JSON")
}

/// A process that does nothing, and its number in `file`.
fn sleeper(g: &Host, file: &Path) -> Arc<Process> {
    let process = g.process("served", &["sleep", "600"], &[]);
    // It becomes `sleep` in its own time.
    let comm = format!("/proc/{}/comm", process.pid());
    until("the process is itself", secs(5), || std::fs::read_to_string(&comm).is_ok_and(|c| c == "sleep\n"));
    std::fs::write(file, format!("{}\n", process.pid())).expect("a pid file");
    process
}

#[test]
fn a_process_that_is_killed_takes_the_route_along_at_a_real_router() {
    let Some(lab) = lab!("standfast", "bird") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let _bird = l.spawn(router(&l, &g));
    let file = lab.file("web.pid");
    let mut process = sleeper(&g, &file);
    // No schedule could be that fast: the next run is a minute away.
    let check = format!(
        "check: {{ type: process, interval: 60s, timeout: 5s, process: {{ pid_file: {}, name: sleep }} }}",
        file.display()
    );
    let daemon =
        g.spawn(Announcer::new(&g, G).neighbor(l.v4, L, "").vip_with("web", &[VIP], &check, WITHDRAW).spec());
    let mut took = Vec::new();
    for _ in 0..5 {
        routed(&l, true);
        process.signal(Signal::SIGKILL);
        took.push(routed(&l, false));
        until("it says why", secs(5), || {
            let (_, status) = g.get(API, "/status").unwrap_or_default();
            status.contains(&format!("process {} (sleep) has ended", process.pid()))
        });
        process = sleeper(&g, &file);
        assert_eq!(run_now(&g)["state_name"], "announced", "{}", daemon.log());
    }
    took.sort();
    println!(
        "kill -9 of the process to the route gone from BIRD's kernel table: {took:.2?}, computed 10 ms and BIRD's own"
    );
    assert!(took[2] < SLACK, "{took:?}");
    let (_, status) = g.get(API, "/status").expect("the API answers");
    assert!(status.contains("\"type\":\"process\""), "{status}");
}

/// A systemd that runs a host's unit `web.service`, in namespaces and a control group of its own; the test's files are in them too.
struct Systemd<'a> {
    host: &'a Host,
    process: Arc<Process>,
    group: String,
}

/// A view of all control groups, where there is none yet.
const CGROUP: &str = "[ -e /sys/fs/cgroup/cgroup.procs ] || mount -t cgroup2 cgroup2 /sys/fs/cgroup";

impl<'a> Systemd<'a> {
    /// `None` if this machine does not let one run, with a skip.
    fn start(test: &str, lab: &Lab, host: &'a Host) -> Option<Self> {
        let (outside, inside) = (lab.file("outside.sh"), lab.file("inside.sh"));
        let group = format!("standfast-lab-{}", std::process::id());
        std::fs::write(
            &outside,
            format!(
                "set -e\n{CGROUP}\nmkdir /sys/fs/cgroup/{group}\n\
                 echo $$ >/sys/fs/cgroup/{group}/cgroup.procs\n\
                 exec unshare --pid --mount --cgroup --uts --ipc --fork --kill-child --mount-proc sh {}\n",
                inside.display()
            ),
        )
        .expect("a script");
        std::fs::write(
            &inside,
            "set -e\nmount -t tmpfs tmpfs /run\numount /sys/fs/cgroup\nmount -t cgroup2 cgroup2 /sys/fs/cgroup\nmkdir -p /run/systemd/system\n\
             printf '[Unit]\\nDefaultDependencies=no\\n' >/run/systemd/system/lab.target\n\
             printf '[Unit]\\nDefaultDependencies=no\\n[Service]\\nExecStart=/bin/sleep 600\\n' \
             >/run/systemd/system/web.service\n\
             exec env container=lab /lib/systemd/systemd --system --unit=lab.target --log-target=console --show-status=no\n",
        )
        .expect("a script");
        let process = host.process("systemd", &["sh", &outside.display().to_string()], &[]);
        let systemd = Self { host, process, group };
        let runs = || systemd.ask("start web.service").is_some_and(|said| said.is_empty());
        until("systemd runs, or cannot", secs(30), || !systemd.process.alive() || runs());
        if systemd.process.alive() {
            return Some(systemd);
        }
        skip(test, &format!("systemd cannot run here: {}", systemd.process.log()));
        None
    }

    /// What enters its namespaces.
    fn within(&self) -> Option<String> {
        let pid = self.process.pid();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        Some(format!("nsenter -t {} -p -m", children.split_whitespace().next()?))
    }

    /// What `systemctl` says.
    fn ask(&self, arguments: &str) -> Option<String> {
        Some(self.host.attempt(&format!("{} systemctl {arguments} 2>&1", self.within()?)))
    }
}

impl Drop for Systemd<'_> {
    fn drop(&mut self) {
        // With its first process all others of its namespace end, and then the group is empty.
        self.process.signal(Signal::SIGKILL);
        self.process.wait(secs(5));
        let group = format!("/sys/fs/cgroup/{}", self.group);
        let remove = format!("find {group} -depth -type d -exec rmdir {{}} ';'; [ -e {group} ] || echo gone");
        let command = format!("unshare --mount sh -c \"{CGROUP}; {remove}\"");
        let mut said = String::new();
        for _ in 0..50 {
            said = self.host.attempt(&command);
            if said.contains("gone") {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        eprintln!("{group} is left: {said}");
    }
}

#[test]
fn a_unit_of_systemd_is_followed_to_its_end_and_found_again() {
    const HERE: &str = "say::a_unit_of_systemd_is_followed_to_its_end_and_found_again";
    let Some(lab) = lab!("standfast", "bird", "/lib/systemd/systemd", "systemctl", "unshare") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    let _bird = l.spawn(router(&l, &g));
    let Some(systemd) = Systemd::start(HERE, &lab, &g) else { return };
    let check = "check: { type: process, interval: 60s, timeout: 5s, process: { unit: web.service } }";
    let config = Announcer::new(&g, G).neighbor(l.v4, L, "").vip_with("web", &[VIP], check, WITHDRAW);
    let file = lab.file("units.yaml");
    std::fs::write(&file, config.yaml()).expect("a configuration");
    let (within, program) = (systemd.within().expect("it runs"), standfast_bin().expect("a program"));
    let command = format!("{within} {} run -c {}", program.display(), file.display());
    let daemon = g.process("standfast", &command.split(' ').collect::<Vec<_>>(), &[]);
    for (end, words) in [("kill --signal=KILL", "has ended"), ("stop", "has ended"), ("restart", "has ended")]
    {
        routed(&l, true);
        let start = Instant::now();
        systemd.ask(&format!("{end} web.service"));
        routed(&l, false);
        let took = start.elapsed();
        println!("systemctl {end}: the route was gone {took:.2?} after it was called");
        assert!(took < SLACK, "{end}: {took:?}");
        until("it says why", secs(5), || daemon.log().contains(words));
        systemd.ask("reset-failed web.service");
        systemd.ask("start web.service");
        assert_eq!(run_now(&g)["state_name"], "announced", "{}", daemon.log());
    }
    systemd.ask("stop web.service");
    routed(&l, false);
    let said = run_now(&g)["result"]["detail"].as_str().expect("words").to_owned();
    assert!(said.contains("web.service") && said.contains("inactive"), "{said}");
}

/// The worst case that `standfast timing` computes of a class, in seconds, and its formula.
fn worst(timing: &Value, class: &str) -> (f64, String) {
    let rows = timing["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["class"] == class).expect("the class");
    (row["worst_seconds"].as_f64().expect("a time"), row["formula"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn what_is_measured_is_within_what_was_computed() {
    let Some(lab) = lab!("standfast") else { return };
    let (l, g) = (lab.host("l", 1), lab.host("g", 11));
    // Our own listener: other routers take time of their own.
    let listener = l.spawn(listener(&l, "192.0.2.11/32", ""));
    let service = Service::start(&g, (Ipv4Addr::LOCALHOST, 80));
    let check = "check: { type: http, interval: 400ms, timeout: 200ms, fast_interval: 250ms, rise: 2, fall: 2, http: { host: 127.0.0.1, port: 80 } }";
    let config = Announcer::new(&g, G).bgp("hold_time: 3s").neighbor(l.v4, L, "").vip_with(
        "web",
        &[VIP],
        check,
        WITHDRAW,
    );
    let daemon = g.spawn(config.spec());
    routed(&l, true);
    let file = daemon.config();
    let (code, text) = standfast(&g, "", &format!("timing -c {}", file.display()));
    assert!(code == 0 && text.contains("what was negotiated is from the daemon at"), "{code} {text}");
    println!("{text}");
    let (code, text) = standfast(&g, "", &format!("timing web --json -c {}", file.display()));
    assert_eq!(code, 0, "{text}");
    let timing: Value = serde_json::from_str(&text).expect("JSON");
    let host = timing["rows"].as_array().and_then(|rows| rows.iter().find(|r| r["class"] == "host_dies"));
    assert_eq!(host.map(|row| &row["negotiated"]), Some(&Value::Bool(true)), "{timing:#}");
    let (code, text) = standfast(&l, "", &format!("timing --json -c {}", listener.config().display()));
    let at_listener: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (code, worst(&at_listener, "host_dies").1.as_str()),
        (0, "hold_time 3s + told 10ms = 3.01s"),
        "{text}"
    );
    let measure = |class: &str, fail: &mut dyn FnMut(), back: &mut dyn FnMut()| {
        let (computed, formula) = worst(&timing, class);
        fail();
        let took = routed(&l, false);
        println!("{class}: measured {took:.3?}, computed {formula}");
        assert!(
            took <= Duration::from_secs_f64(computed) + SLACK,
            "{class}: {took:?}, computed {computed} s"
        );
        back();
        routed(&l, true);
        took
    };
    measure("service_sick", &mut || service.set("/", false), &mut || service.set("/", true));
    let stopped = measure("standfast_hangs", &mut || daemon.process().signal(Signal::SIGSTOP), &mut || {
        daemon.process().signal(Signal::SIGCONT)
    });
    assert!(stopped > secs(1), "a hold time of three seconds cannot be over by then: {stopped:?}");
    measure("standfast_dies", &mut || daemon.kill(), &mut || daemon.start_again());
    // Without a daemon, and for a VIP that is not there.
    daemon.kill();
    let (code, text) = standfast(&g, "", &format!("timing -c {}", file.display()));
    assert!(
        code == 0 && text.contains("from the configuration alone: no daemon answers at"),
        "{code} {text}"
    );
    let (code, text) = standfast(&g, "", &format!("timing nix --offline -c {}", file.display()));
    assert!(code == 2 && text.contains("there is: web"), "{code} {text}");
    daemon.write_config(
        &config
            .vip_with(
                "blind",
                &["198.51.100.11/32"],
                "check: { type: ping, ping: { dst_ip: 127.0.0.1 } }",
                "",
            )
            .yaml(),
    );
    let (code, text) = standfast(&g, "", &format!("timing blind --offline -c {}", file.display()));
    assert!(code == 1 && text.contains("never") && text.contains("ask the service itself"), "{code} {text}");
}

/// The blocks of a document that are marked so.
fn blocks(document: &str, mark: &str) -> Vec<String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs").join(document);
    let text = std::fs::read_to_string(path).expect("the document");
    let mark = format!("```{mark}\n");
    let opened = text.split(&mark).skip(1);
    opened.map(|rest| rest.split("```").next().unwrap_or_default().to_owned()).collect()
}

/// A daemon whose VIP `web` is reported by `app`, over the socket that is given back.
fn reported(lab: &Lab, policy: &str) -> (Scene, PathBuf) {
    let socket = lab.file("api.sock");
    let directory = socket.parent().expect("a directory");
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let check = "check: { name: app, type: push, push: { lease: 3s } }";
    let scene = Scene::new(lab, G, |config| {
        config
            .vip_with("web", &[VIP], check, policy)
            .api(&format!("listen: \"{API}\", socket: {}", socket.display()))
    });
    (scene, socket)
}

fn is(scene: &Scene, state: &str) {
    until(&format!("the VIP is {state}"), secs(10), || scene.state_of("web") == state);
}

#[test]
fn the_examples_of_the_document_say_what_they_promise() {
    let Some(lab) = lab!("standfast", "python3", "curl") else { return };
    let (scene, socket) = reported(&lab, WITHDRAW);
    let there = |text: &str| text.replace("/run/standfast/api.sock", &socket.display().to_string());
    let shell = there(&blocks("push.md", "sh")[0]).replace(":8080", ":80");
    let script = lab.file("reporter.sh");
    std::fs::write(&script, shell).expect("a script");
    let reporter = scene.g.process("reporter", &["sh", &script.display().to_string()], &[]);
    is(&scene, "announced");
    scene.service.set("/healthz", false);
    is(&scene, "withdrawn");
    scene.service.set("/healthz", true);
    is(&scene, "announced");
    reporter.signal(Signal::SIGKILL);
    reporter.wait(secs(5));
    is(&scene, "withdrawn");
    let python = there(&blocks("push.md", "python")[0])
        + "\nanswer = report(True, 'warm', lease='1s')\nprint(answer['state_name'], answer['lease'])\n\
           print(report('yes')['error'])\n";
    let script = lab.file("report.py");
    std::fs::write(&script, python).expect("a script");
    let said = scene.g.run(&format!("python3 {}", script.display()));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "announced 1.0");
    assert!(lines[1].starts_with("this is no report: invalid type: string"), "{said}");
    // The lease of the report, and not the check's.
    let start = Instant::now();
    is(&scene, "withdrawn");
    assert!(start.elapsed() < Duration::from_millis(2800), "{:?}", start.elapsed());
}

#[test]
fn the_go_example_says_what_it_promises() {
    let Some(lab) = lab!("standfast", "go") else { return };
    let (scene, socket) = reported(&lab, WITHDRAW);
    let body = blocks("push.md", "go").concat();
    let body = body.replace("/run/standfast/api.sock", &socket.display().to_string());
    let imports =
        ["context", "io", "net", "net/http", "strings", "time"].map(|name| format!("import \"{name}\"\n"));
    let (source, program) = (lab.file("reporter.go"), lab.file("reporter"));
    std::fs::write(&source, format!("package main\n{}func main() {{\n{body}}}\n", imports.concat()))
        .expect("a program");
    let built = std::process::Command::new("go")
        .args(["build", "-o"])
        .args([&program, &source])
        .env("GOCACHE", lab.file("go-cache"))
        .env("GOPATH", lab.file("go-path"))
        .output()
        .expect("go");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let reporter = scene.g.process("reporter", &[&program.display().to_string()], &[]);
    is(&scene, "announced");
    while_holds("it says so each second", secs(5), || scene.state_of("web") == "announced");
    reporter.signal(Signal::SIGKILL);
    reporter.wait(secs(5));
    is(&scene, "withdrawn");
}

#[test]
fn a_script_of_another_user_says_it_where_the_group_lets_it() {
    let Some(lab) = lab!("standfast") else { return };
    let (scene, socket) = reported(&lab, WITHDRAW);
    let api = format!("--api unix:{}", socket.display());
    scene.g.run(&format!("chgrp 65533 {}", socket.display()));
    let (member, stranger) = (
        "setpriv --reuid 65534 --regid 65533 --clear-groups",
        "setpriv --reuid 65534 --regid 65534 --clear-groups",
    );
    assert_eq!(
        standfast(&scene.g, member, &format!("notify web ok --reason warm {api}")),
        (0, String::new())
    );
    is(&scene, "announced");
    let (code, text) = standfast(&scene.g, stranger, &format!("notify web bad {api}"));
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("Permission denied") && text.contains("not in the group 65533"), "{text}");
    assert_eq!(scene.state_of("web"), "announced");
    assert_eq!(standfast(&scene.g, member, &format!("notify web/app bad --reason full {api}")).0, 0);
    is(&scene, "withdrawn");
    for (args, code, words) in [
        ("notify web/nix ok", 2, "check not found: nix\n  there is: app"),
        ("notify nix ok", 2, "VIP not found: nix"),
        ("notify web ok --share 40", 2, "VIP web has no bandwidth to share: give it policy.announce"),
        ("notify web ok --lease 10ms", 2, "lease 10ms is less than 100ms"),
        ("notify web perhaps", 2, "possible values: ok, bad"),
        ("notify web", 2, "<VERDICT>"),
    ] {
        let (found, text) = standfast(&scene.g, member, &format!("{args} {api}"));
        assert!(found == code && text.contains(words), "{args}: {found} {text}");
    }
    let (code, text) = standfast(&scene.g, "", "notify web ok --api unix:/nowhere/api.sock");
    assert!(code == 3 && text.contains("cannot reach the daemon"), "{code} {text}");
    let (code, text) = standfast(&scene.g, "", "notify --help");
    assert!(code == 0 && text.contains("standfast notify web/app bad --reason"), "{text}");
}

#[test]
fn a_share_that_is_asked_for_is_told_as_bandwidth() {
    let Some(lab) = lab!("standfast") else { return };
    let policy = "policy: { fail_action: withdraw, announce: { extended_communities: [\"bandwidth:64513:125000000\"] } }";
    let (scene, socket) = reported(&lab, policy);
    let mut session = scene.establish();
    let told = |session: &mut Session, bytes: f32| {
        let community = [&[0x40, 0x04, 0xfc, 0x01][..], &bytes.to_be_bytes()].concat();
        until(&format!("the peer is told {bytes} bytes per second"), secs(20), || {
            session.keepalive();
            notify(&scene, &socket, "ok");
            session
                .drain(Duration::from_millis(100))
                .iter()
                .any(|message| message.body().windows(8).any(|octets| octets == community))
        });
    };
    notify(&scene, &socket, "ok --share 40");
    told(&mut session, 50e6);
    notify(&scene, &socket, "ok --share 0");
    told(&mut session, 0.0);
    notify(&scene, &socket, "ok --share 100");
    told(&mut session, 125e6);
}

fn notify(scene: &Scene, socket: &Path, what: &str) {
    let said = standfast(&scene.g, "", &format!("notify web {what} --api unix:{}", socket.display()));
    assert_eq!(said, (0, String::new()), "{what}");
}
