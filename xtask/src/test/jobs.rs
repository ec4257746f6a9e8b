//! The list of everything that can run, and what of it is selected.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::build::Built;
use super::filter::Selection;
use super::options::Extent;
use super::suites::{Program, SUITES, Suite};
use super::workspace::{JOINED, Package, Workspace};
use super::{Options, Tier};
use crate::criu;
use crate::node;
use crate::program::{cargo_program, is_root, output_of, own_program, processors, root};

/// A process to run.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) tier: Tier,
    /// Jobs of a group never run at the same time.
    pub(crate) group: Option<String>,
    /// An estimate of its time, for a machine without times of earlier runs.
    pub(crate) seconds: f64,
    /// Whether it runs all its tests, so that its time is meaningful.
    pub(crate) is_whole: bool,
    /// The file of a joined binary that has its tests.
    pub(crate) module: Option<String>,
    program: PathBuf,
    arguments: Vec<OsString>,
    directory: PathBuf,
    variables: Vec<(&'static str, OsString)>,
}

/// How long a fuzz target runs with `--full`.
const FULL_FUZZ_SECONDS: &str = "120";

pub(crate) fn choose(
    workspace: &Workspace,
    built: &Built,
    options: &Options,
    tiers: &BTreeSet<Tier>,
) -> Result<Vec<Job>, String> {
    let mut jobs = Vec::new();
    for binary in &built.tests {
        let package = workspace.find(&binary.directory);
        let package = package.ok_or_else(|| format!("{} is not a crate of this workspace", binary.directory))?;
        for name in package.parts_of(&binary.name) {
            jobs.extend(of_binary(package, name, &binary.path, options)?);
        }
    }
    let is_full = options.extent == Extent::Full;
    for suite in SUITES.iter().filter(|suite| tiers.contains(&suite.tier) && (is_full || !suite.needs_full)) {
        jobs.extend(of_suite(suite, built, options)?);
    }
    jobs.retain(|job| tiers.contains(&job.tier) && options.filter.has_variant(&job.name));
    if let Some(path) = node::search_path() {
        let of_sdks = jobs.iter_mut().filter(|job| job.tier == Tier::Sdk);
        of_sdks.for_each(|job| job.variables.push(("PATH", path.clone())));
    }
    name_criu(&mut jobs, criu::program().filter(|_| env::var_os(criu::VARIABLE).is_none()));
    if is_full {
        jobs.iter_mut().for_each(|job| job.variables.push(("ISOPOD_FULL", "1".into())));
    }
    Ok(jobs)
}

fn name_criu(jobs: &mut [Job], program: Option<PathBuf>) {
    for job in jobs {
        job.variables.extend(program.clone().map(|program| (criu::VARIABLE, program.into())));
    }
}

/// Returns a job for each tier in which the binary has tests, and one more if it also runs on PostgreSQL.
fn of_binary(package: &Package, binary: &str, path: &Path, options: &Options) -> Result<Vec<Job>, String> {
    let name = format!("{}::{binary}", package.short);
    let declared = &package.declared;
    let is_split = declared.is_split(binary);
    let is_joined = package.is_joined(binary);
    let has_to_be_listed = is_split || is_joined || !options.filter.matches(&name);
    let mut tests = if has_to_be_listed { list_tests(path)? } else { Vec::new() };
    if is_joined {
        tests = tests_of_module(&tests, binary);
    }
    if is_joined && tests.is_empty() {
        return Err(format!("{name} has no tests, or tests/{JOINED}/main.rs does not name it"));
    }
    if let Some(path) = declared.stale_path(binary, &tests).filter(|_| is_split) {
        return Err(format!("{name} has no test {path}, which [package.metadata.isopod-tests] names"));
    }
    let Some(selection) = options.filter.select(&name, &tests) else { return Ok(Vec::new()) };
    let whole = declared.tier_of(binary);
    let parts = if is_split {
        split(selection.clone(), &tests, |test| declared.tier_of_test(binary, test))
    } else {
        BTreeMap::from([(whole, selection.clone())])
    };
    let make = |name: String, tier, selection| {
        let threads = if tier == Tier::Unit && !declared.is_one_thread(binary) { processors() } else { 1 };
        let is_whole = selection == Selection::All || is_split;
        let names = match selection {
            Selection::All if is_joined => Some(tests.clone()),
            Selection::All => None,
            Selection::Only(names) => Some(names),
        };
        let full = |name: String| if is_joined { format!("{binary}::{name}") } else { name };
        let names = names.map(|names| names.into_iter().map(full).collect());
        Job::of_tests(name, tier, package, binary, path, Tests { names, threads, is_whole })
    };
    // If the tier is not the binary's own, the name has it, because both are jobs of the same run.
    let suffix = |tier| if tier == whole { String::new() } else { format!("@{tier}") };
    let mut jobs: Vec<Job> =
        parts.into_iter().map(|(tier, tests)| make(format!("{name}{}", suffix(tier)), tier, tests)).collect();
    if declared.runs_on_postgres(binary) {
        let mut job = make(format!("{name}@postgres"), Tier::Fake, selection);
        job.variables.push(("ISOPOD_TEST_STORE", "postgres".into()));
        jobs.push(job);
    }
    Ok(jobs)
}

struct Tests {
    /// All of the binary's if there is no list.
    names: Option<Vec<String>>,
    threads: usize,
    is_whole: bool,
}

/// The tests of a file of [`JOINED`], without its name.
fn tests_of_module(tests: &[String], module: &str) -> Vec<String> {
    let inside = |test: &String| Some(test.strip_prefix(module)?.strip_prefix("::")?.to_owned());
    tests.iter().filter_map(inside).collect()
}

/// Splits the selected tests by tier.
fn split(selection: Selection, all: &[String], tier_of: impl Fn(&str) -> Tier) -> BTreeMap<Tier, Selection> {
    let chosen = match selection {
        Selection::All => all.to_vec(),
        Selection::Only(chosen) => chosen,
    };
    let mut parts: BTreeMap<Tier, Vec<String>> = BTreeMap::new();
    for test in chosen {
        parts.entry(tier_of(&test)).or_default().push(test);
    }
    parts.into_iter().map(|(tier, tests)| (tier, Selection::Only(tests))).collect()
}

/// Returns the names of a binary's tests.
fn list_tests(binary: &Path) -> Result<Vec<String>, String> {
    let listed = output_of(Command::new(binary).args(["--list", "--format", "terse"]))?;
    Ok(listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

fn of_suite(suite: &Suite, built: &Built, options: &Options) -> Result<Option<Job>, String> {
    let name = format!("suite::{}", suite.name);
    let Some(cases) = options.filter.select_suite(&name, suite.choose.is_some()) else { return Ok(None) };
    let mut arguments: Vec<OsString> = suite.arguments.iter().map(OsString::from).collect();
    if let Some((option, program)) = suite.given {
        arguments.extend([option.into(), built.program(program)?.into()]);
    }
    if let Some(option) = suite.choose {
        arguments.extend(cases.iter().flat_map(|case| [option.into(), case.into()]));
    }
    if suite.name == "fuzz" && options.extent == Extent::Full {
        arguments.extend(["--seconds", FULL_FUZZ_SECONDS].map(OsString::from));
    }
    Ok(Some(Job {
        name,
        tier: suite.tier,
        group: suite.group.map(str::to_owned),
        seconds: suite.seconds.into(),
        is_whole: cases.is_empty(),
        module: None,
        program: suite.program.path()?,
        arguments,
        directory: root(),
        variables: vec![("PYTHONUNBUFFERED", "1".into())],
    }))
}

impl Program {
    fn path(self) -> Result<PathBuf, String> {
        match self {
            Self::Cargo => Ok(cargo_program().into()),
            Self::Python => Ok("python3".into()),
            Self::Xtask => own_program(),
        }
    }
}

impl Job {
    fn of_tests(name: String, tier: Tier, package: &Package, binary: &str, path: &Path, tests: Tests) -> Self {
        let mut arguments: Vec<OsString> = vec![format!("--test-threads={}", tests.threads).into()];
        if let Some(names) = tests.names {
            arguments.push("--exact".into());
            arguments.extend(names.into_iter().map(OsString::from));
        }
        Self {
            name,
            tier,
            group: package.declared.group_of(binary).map(str::to_owned),
            seconds: if tier == Tier::Real { 20.0 } else { 5.0 },
            is_whole: tests.is_whole,
            module: package.is_joined(binary).then(|| binary.to_owned()),
            program: path.to_owned(),
            arguments,
            // As under `cargo test`.
            directory: package.directory.clone(),
            variables: vec![("CARGO_MANIFEST_DIR", package.directory.clone().into())],
        }
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = match self.has_own_mounts() {
            true => Command::new("unshare"),
            false => Command::new(&self.program),
        };
        if self.has_own_mounts() {
            command.arg("--mount").arg(&self.program);
        }
        command.args(&self.arguments).current_dir(&self.directory);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Whether it is in a mount namespace of its own. Without it, namespaces that other jobs create would have copies of its
    /// mounts and keep its disks busy.
    fn has_own_mounts(&self) -> bool {
        is_root() && matches!(self.tier, Tier::Real | Tier::Sdk | Tier::Stress)
    }

    pub(crate) fn is_fuzz(&self) -> bool {
        self.name == "suite::fuzz"
    }

    #[cfg(test)]
    pub(crate) fn for_test(name: &str, seconds: f64, group: Option<&str>) -> Self {
        Self {
            name: name.to_owned(),
            tier: Tier::Unit,
            group: group.map(str::to_owned),
            seconds,
            is_whole: true,
            module: None,
            program: PathBuf::from("sh"),
            arguments: vec!["-c".into(), name.into()],
            directory: PathBuf::from("/"),
            variables: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_is_split_by_the_tiers_of_its_tests() {
        let all: Vec<String> = ["a::x", "b::x", "b::y"].map(str::to_owned).into();
        let tier_of = |test: &str| if test.starts_with('b') { Tier::Real } else { Tier::Unit };
        let parts = split(Selection::All, &all, tier_of);
        assert_eq!(parts[&Tier::Unit], Selection::Only(vec!["a::x".to_owned()]));
        assert_eq!(parts[&Tier::Real], Selection::Only(vec!["b::x".to_owned(), "b::y".to_owned()]));
        let parts = split(Selection::Only(vec!["b::y".to_owned()]), &all, tier_of);
        assert_eq!(parts.len(), 1);
    }

    #[test]
    fn a_file_of_a_joined_binary_has_the_tests_below_its_name() {
        let all: Vec<String> = ["runs::x", "runs::deep::y", "runs_too::x", "x"].map(str::to_owned).into();
        assert_eq!(tests_of_module(&all, "runs"), ["x", "deep::y"]);
        assert!(tests_of_module(&all, "support").is_empty());
    }

    #[test]
    fn every_job_is_told_where_criu_is_if_it_is_there() {
        let mut jobs = [Job::for_test("a", 1.0, None), Job::for_test("b", 1.0, None)];
        name_criu(&mut jobs, None);
        assert!(jobs.iter().all(|job| job.command().get_envs().next().is_none()));
        name_criu(&mut jobs, Some("/tools/criu".into()));
        let told = ("ISOPOD_CRIU".as_ref(), Some("/tools/criu".as_ref()));
        assert!(jobs.iter().all(|job| job.command().get_envs().eq([told])));
    }

    #[test]
    fn suites_have_names_of_their_own() {
        let names: BTreeSet<&str> = SUITES.iter().map(|suite| suite.name).collect();
        assert_eq!(names.len(), SUITES.len());
    }
}
