//! The library as its callers meet it: the header that they include, a program in C and one in Python against a router that speaks
//! raw BGP on loopback, and what a caller can do wrong.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by it")]

#[path = "../../standfast/tests/router/mod.rs"]
mod router;

use router::{Door, LEAVING, NOTIFICATION, UPDATE, WITHDRAWAL, has};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The library, made by the cargo that runs this test: a test is linked to no library that is for others alone.
fn library(name: &str) -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let directory = MADE.get_or_init(|| {
        let here = std::env::current_exe().unwrap();
        let profile = here.ancestors().nth(2).unwrap();
        let flag = profile.ends_with("release").then_some("--release");
        let out = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--offline", "--package", "standfast-capi", "--lib"])
            .args(flag)
            .arg("--target-dir")
            .arg(profile.parent().unwrap())
            .current_dir(root())
            .output()
            .unwrap();
        succeeded(&out);
        profile.to_owned()
    });
    directory.join(name)
}

/// Whether a program is here; says so if it is not.
fn has_program(test: &str, program: &str) -> bool {
    let here =
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !here {
        eprintln!("SKIP {test}: {program} is not installed");
    }
    here
}

fn succeeded(out: &Output) {
    let said = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
    assert!(out.status.success(), "{}\n{}{}", out.status, said(&out.stdout), said(&out.stderr));
}

/// Compiles a program against the header and the static library.
fn compile(source: &Path, to: &Path) {
    let out = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-o"])
        .arg(to)
        .arg(source)
        .arg("-I")
        .arg(root().join("include"))
        .arg(library("libstandfast.a"))
        .args(["-lpthread", "-ldl", "-lm"])
        .output()
        .unwrap();
    succeeded(&out);
}

#[test]
fn the_header_is_what_the_library_has() {
    let config = cbindgen::Config::from_file(root().join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    cbindgen::Builder::new()
        .with_config(config)
        .with_src(root().join("src/lib.rs"))
        .generate()
        .unwrap()
        .write(&mut made);
    let (made, path) = (String::from_utf8(made).unwrap(), root().join("include/standfast.h"));
    if std::env::var_os("GOLDEN").is_some_and(|v| v == "write") {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(kept, made, "GOLDEN=write cargo test -p standfast-capi writes it anew");
    let source = std::fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let exported = source.split("#[unsafe(no_mangle)]").skip(1);
    let names = exported.map(|rest| rest.split("fn ").nth(1).unwrap().split('(').next().unwrap());
    let missing: Vec<&str> = names.filter(|name| !kept.contains(&format!("{name}("))).collect();
    assert!(missing.is_empty(), "the header does not have {missing:?}");
}

/// A program of ours; killed at the end, if it has not ended.
struct Running(Child);

impl Running {
    fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    fn wait(mut self) -> String {
        let status = self.0.wait().unwrap();
        let said = std::io::read_to_string(self.0.stdout.take().unwrap()).unwrap();
        assert!(status.success(), "{status}: {said}");
        said
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Announced once it has served, withdrawn when it is sick, drained at SIGTERM.
fn lives_and_leaves(door: &Door, command: &mut Command) {
    let gateway = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut router = door.accept();
    router.announced();
    gateway.signal("USR1");
    router.withdrawn();
    gateway.signal("USR2");
    router.announced();
    gateway.signal("TERM");
    let (kind, body) = router.note();
    assert!(kind == UPDATE && has(&body, &LEAVING), "GRACEFUL_SHUTDOWN first: {kind} {body:?}");
    assert_eq!(router.note(), (UPDATE, WITHDRAWAL.to_vec()));
    assert_eq!(router.note().0, NOTIFICATION);
    assert_eq!(gateway.wait(), "drained, 0 connections left\n");
}

#[test]
fn a_gateway_in_c_lives_and_leaves() {
    if !has_program("a_gateway_in_c_lives_and_leaves", "cc") {
        return;
    }
    let directory = scratch("gateway");
    let program = directory.join("gateway");
    compile(&root().join("examples/gateway.c"), &program);
    let door = Door::open();
    lives_and_leaves(&door, Command::new(program).args(["127.0.0.1", &door.port().to_string()]));
}

#[test]
fn a_gateway_in_python_lives_and_leaves() {
    if !has_program("a_gateway_in_python_lives_and_leaves", "python3") {
        return;
    }
    let door = Door::open();
    let mut python = Command::new("python3");
    python.arg(root().join("examples/gateway.py")).arg(library("libstandfast.so"));
    lives_and_leaves(&door, python.args(["127.0.0.1", &door.port().to_string()]));
}

#[test]
fn what_a_caller_does_wrong_is_told_and_harms_nobody() {
    if !has_program("what_a_caller_does_wrong_is_told_and_harms_nobody", "cc") {
        return;
    }
    let program = scratch("misuse").join("misuse");
    compile(&root().join("tests/misuse.c"), &program);
    let door = Door::open();
    let out = Command::new(program).arg(door.port().to_string()).output().unwrap();
    succeeded(&out);
    assert_eq!(out.stdout, b"fine\n");
}

#[test]
fn the_header_is_one_for_c99_and_for_cpp() {
    let test = "the_header_is_one_for_c99_and_for_cpp";
    for (language, standard, compiler) in [("c", "-std=c99", "cc"), ("c++", "-std=c++11", "c++")] {
        if !has_program(test, compiler) {
            continue;
        }
        let header = root().join("include/standfast.h");
        let arguments =
            ["-x", language, standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"];
        succeeded(&Command::new(compiler).args(arguments).arg(header).output().unwrap());
    }
}

/// A directory of this test's own in cargo's for tests.
fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}
