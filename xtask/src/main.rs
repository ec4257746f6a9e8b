//! `cargo xtask check|test|bench`: the few long commands of this workspace, under short names.

#![expect(clippy::print_stderr, reason = "it talks to people")]

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo xtask check | test [--full] | bench [--quick] [--only PART]...";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        ["check"] => check(),
        ["test"] => test(Extent::Usual),
        ["test", "--full"] => test(Extent::Full),
        ["bench", rest @ ..] => bench(rest),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

/// Everything that must hold before a change goes in.
fn check() -> Result<(), String> {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    test(Extent::Usual)
}

/// How far the heavy cases go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    Usual,
    Full,
}

/// All tests. Those that make real sandboxes need root, and share the host's network and slots: one at a time.
fn test(extent: Extent) -> Result<(), String> {
    let mut test = Command::new(cargo_program());
    test.current_dir(root()).args(["test", "--workspace", "--no-fail-fast", "--", "--test-threads=1"]);
    if extent == Extent::Full {
        test.env("ISOPOD_FULL", "1");
    }
    run(&mut test)?;
    test_on_postgresql()
}

/// What is recorded is the same in both databases, so the same tests say whether it is. They start PostgreSQL themselves.
fn test_on_postgresql() -> Result<(), String> {
    let mut test = Command::new(cargo_program());
    test.current_dir(root()).env("ISOPOD_TEST_STORE", "postgres");
    test.args(["test", "--package", "isopod-control", "--no-fail-fast", "--lib"]);
    for suite in ["lifecycle", "runs", "sandboxes", "service", "sessions", "webhooks"] {
        test.args(["--test", suite]);
    }
    run(test.args(["--", "--test-threads=1"]))
}

/// Builds for speed, measures, and writes the report to `docs/bench/results.md`; a quick run is only printed.
fn bench(options: &[&str]) -> Result<(), String> {
    cargo(&["build", "--release", "--package", "isopod", "--package", "isopod-bench"])?;
    let built = target_directory()?.join("release");
    let mut bench = Command::new(built.join("isopod-bench"));
    bench.current_dir(root()).arg("--isopod").arg(built.join("isopod")).args(options);
    if options.is_empty() {
        bench.args(["--output", "docs/bench/results.md"]);
    }
    run(&mut bench)
}

fn cargo(arguments: &[&str]) -> Result<(), String> {
    run(Command::new(cargo_program()).current_dir(root()).args(arguments))
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("{command:?} could not be started: {error}")),
    }
}

fn cargo_program() -> String {
    env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// This very program lies in `<target>/<profile>`, wherever the target directory was put.
fn target_directory() -> Result<PathBuf, String> {
    let own = env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    own.ancestors().nth(2).map(PathBuf::from).ok_or_else(|| format!("{} is in no target directory", own.display()))
}
