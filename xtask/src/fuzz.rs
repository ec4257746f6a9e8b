//! `cargo xtask fuzz`: builds the fuzz targets and runs them, as many at once as there are processors.
//!
//! Works without `cargo-fuzz`: libFuzzer needs only a few flags, which the stable compiler supports.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use crate::program::{cache_directory, cargo_program, processors, root, run};

/// How long each target runs by default.
const DEFAULT_SECONDS: u32 = 5;
const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// Counters at every edge, and traced comparisons, so that the search sees how close it came.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";
/// The limits of one input. Parsers are bounded, so exceeding them is a finding.
const LIMITS: [&str; 2] = ["-timeout=10", "-rss_limit_mb=1024"];
/// How much of a failed target's output is shown, starting at the failure.
const SHOWN_LINES: usize = 60;

/// The parsed arguments.
#[derive(Debug, Default)]
struct Options<'a> {
    seconds: Option<u32>,
    /// A single input to run once.
    input: Option<&'a str>,
    targets: BTreeSet<&'a str>,
}

pub(crate) fn fuzz(arguments: &[&str]) -> Result<(), String> {
    let options = Options::parse(arguments)?;
    let directories = Directories::find()?;
    let known = directories.targets()?;
    if let Some(unknown) = options.targets.iter().find(|name| !known.contains(**name)) {
        return Err(format!("unknown target {unknown}; the targets are {}", join(&known)));
    }
    let chosen = known.into_iter().filter(|name| options.targets.is_empty() || options.targets.contains(name.as_str()));
    let chosen: Vec<String> = chosen.collect();
    directories.build(&chosen)?;
    match options.input {
        Some(input) => chosen.iter().try_for_each(|target| directories.replay(target, input)),
        None => directories.run_all(chosen, options.seconds.unwrap_or(DEFAULT_SECONDS)),
    }
}

/// Builds all targets without running them.
pub(crate) fn build_all() -> Result<(), String> {
    let directories = Directories::find()?;
    let targets: Vec<String> = directories.targets()?.into_iter().collect();
    directories.build(&targets)
}

impl<'a> Options<'a> {
    fn parse(arguments: &[&'a str]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match *argument {
                "--seconds" => {
                    let seconds = rest.next().and_then(|text| text.parse().ok()).filter(|seconds| *seconds > 0);
                    options.seconds = Some(seconds.ok_or("--seconds takes a number")?);
                }
                "--input" => options.input = Some(rest.next().ok_or("--input takes a file")?),
                unknown if unknown.starts_with('-') => return Err(format!("unknown option {unknown}")),
                target => drop(options.targets.insert(target)),
            }
        }
        Ok(options)
    }
}

/// The directories.
struct Directories {
    /// `/fuzz` of the repository.
    source: PathBuf,
    /// What is kept between runs: build results, interesting inputs, findings.
    cache: PathBuf,
}

impl Directories {
    fn find() -> Result<Self, String> {
        Ok(Self { source: root().join("fuzz"), cache: cache_directory()?.join("fuzz") })
    }

    /// Returns the names of all targets. Each has a source, a line in the manifest, a row in the README and seeds.
    fn targets(&self) -> Result<BTreeSet<String>, String> {
        let names = names_in(&self.source.join("fuzz_targets"))?;
        let names: BTreeSet<String> =
            names.iter().filter_map(|name| name.strip_suffix(".rs")).map(str::to_owned).collect();
        let manifest = read(&self.source.join("Cargo.toml"))?;
        let readme = read(&self.source.join("README.md"))?;
        for name in &names {
            if !manifest.contains(&format!("name = \"{name}\"")) {
                return Err(format!("fuzz/Cargo.toml has no [[bin]] for {name}"));
            }
            if !readme.contains(&format!("| `{name}` |")) {
                return Err(format!("the table in fuzz/README.md has no row for {name}"));
            }
            if names_in(&self.source.join("seeds").join(name))?.is_empty() {
                return Err(format!("fuzz/seeds/{name} is empty; add an input or two"));
            }
        }
        Ok(names)
    }

    fn build(&self, targets: &[String]) -> Result<(), String> {
        // Use the same versions as the shipped binary. Cargo adds libFuzzer's own.
        let (lock, own) = (root().join("Cargo.lock"), self.source.join("Cargo.lock"));
        fs::copy(&lock, &own).map_err(|error| format!("could not copy {}: {error}", lock.display()))?;
        let mut cargo = Command::new(cargo_program());
        cargo.current_dir(&self.source).args(["build", "--release", "--target", TRIPLE]);
        cargo
            .args(targets.iter().flat_map(|target| ["--bin", target]))
            .arg("--target-dir")
            .arg(self.cache.join("target"))
            .env("RUSTFLAGS", FLAGS);
        cargo.env_remove("CARGO_ENCODED_RUSTFLAGS");
        // No parser needs the guest program that a node embeds.
        cargo.env("ISOPOD_GUEST_BINARY", "/dev/null");
        run(&mut cargo)
    }

    /// Runs all targets and reports on each. Fails if one found something.
    fn run_all(&self, targets: Vec<String>, seconds: u32) -> Result<(), String> {
        let at_once = processors();
        let mut waiting = targets.into_iter();
        let mut running: Vec<Running> = Vec::new();
        let mut failed = Vec::new();
        loop {
            while running.len() < at_once
                && let Some(target) = waiting.next()
            {
                running.push(self.start(&target, seconds)?);
            }
            if running.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            let mut still_running = Vec::new();
            for mut one in running {
                match one.child.try_wait().map_err(|error| format!("could not wait for {}: {error}", one.target))? {
                    None => still_running.push(one),
                    Some(status) if one.tell(status)? => {}
                    Some(_) => failed.push(one.target),
                }
            }
            running = still_running;
        }
        if failed.is_empty() { Ok(()) } else { Err(format!("the fuzzer found something in {}", failed.join(", "))) }
    }

    fn start(&self, target: &str, seconds: u32) -> Result<Running, String> {
        let [corpus, findings] = ["corpus", "findings"].map(|kind| self.cache.join(kind).join(target));
        for directory in [&corpus, &findings] {
            fs::create_dir_all(directory)
                .map_err(|error| format!("could not create {}: {error}", directory.display()))?;
        }
        let log = self.cache.join(format!("{target}.log"));
        let output = File::create(&log).map_err(|error| format!("could not write {}: {error}", log.display()))?;
        let errors = output.try_clone().map_err(|error| format!("could not write {}: {error}", log.display()))?;
        let mut command = self.program(target);
        command.arg(corpus).arg(self.source.join("seeds").join(target)).args(LIMITS);
        command.args([format!("-max_total_time={seconds}"), format!("-artifact_prefix={}/", findings.display())]);
        command.args(["-print_final_stats=1", "-max_len=8192"]).stdout(output).stderr(errors);
        let child = command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?;
        Ok(Running { target: target.to_owned(), child, log })
    }

    fn replay(&self, target: &str, input: &str) -> Result<(), String> {
        run(self.program(target).args(LIMITS).arg(input))
    }

    fn program(&self, target: &str) -> Command {
        let mut command = Command::new(self.cache.join("target").join(TRIPLE).join("release").join(target));
        command.env("RUST_BACKTRACE", "1");
        command
    }
}

/// A running target.
struct Running {
    target: String,
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Prints one line about a target without findings, or the end of the output of one with findings. Returns true for
    /// the former.
    fn tell(&self, status: ExitStatus) -> Result<bool, String> {
        let bytes = fs::read(&self.log).map_err(|error| format!("could not read {}: {error}", self.log.display()))?;
        let output = String::from_utf8_lossy(&bytes);
        if status.success() {
            let figure = |name: &str| output.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim();
            eprintln!("{:18} {} inputs", self.target, figure("stat::number_of_executed_units:"));
            return Ok(true);
        }
        eprintln!("{:18} {status}", self.target);
        let is_first = |line: &&str| line.contains("panicked at") || line.contains("ERROR: libFuzzer");
        let found =
            output.lines().skip_while(|line| !is_first(line)).filter(|line| !line.trim_start().starts_with("at "));
        found.take(SHOWN_LINES).for_each(|line| eprintln!("    {line}"));
        eprintln!("    the whole output is in {}", self.log.display());
        Ok(false)
    }
}

fn names_in(directory: &Path) -> Result<Vec<String>, String> {
    let failed = |error| format!("could not read {}: {error}", directory.display());
    let entries = fs::read_dir(directory).map_err(failed)?;
    entries.map(|entry| Ok(entry.map_err(failed)?.file_name().to_string_lossy().into_owned())).collect()
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("could not read {}: {error}", path.display()))
}

fn join(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}
