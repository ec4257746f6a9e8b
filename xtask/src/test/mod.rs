//! `cargo xtask test`: builds all tests once and runs them in parallel.
//!
//! A *job* is one process: a test binary, or one of the Python suites. Each belongs to a tier, which its crate declares
//! (`declared.rs`) or which the table of suites names (`suites.rs`). Lanes take jobs, the longest first (`lanes.rs`).

mod build;
mod declared;
mod filter;
mod jobs;
mod lanes;
mod log;
mod options;
mod report;
mod suites;
mod times;
mod workspace;

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::tier::Tier;
pub(crate) use options::Options;

use crate::steps::Steps;
use crate::{fuzz, program, setup};
use build::Built;
use jobs::Job;
use lanes::Lanes;
use times::Times;
use workspace::Workspace;

pub(crate) fn test(arguments: &[&str]) -> Result<(), String> {
    let options = Options::parse(arguments)?;
    run(&options, &mut Steps::default())
}

pub(crate) fn run(options: &Options, steps: &mut Steps) -> Result<(), String> {
    let tiers = prepare_tiers(options)?;
    let workspace = Workspace::read()?;
    let built = steps.time("build the tests", || Built::build(&workspace, options))?;
    let jobs = jobs::choose(&workspace, &built, options, &tiers)?;
    if jobs.is_empty() {
        return Err(options.filter.no_match());
    }
    refuse_obstacles(options, &jobs)?;
    if jobs.iter().any(Job::is_fuzz) {
        steps.time("build the fuzz targets", fuzz::build_all)?;
    }
    let outcomes = steps.time("run the tests", || run_jobs(jobs, options))?;
    report::print(&outcomes);
    report::verdict(&outcomes)
}

/// Returns the tiers to run. A tier that was not requested by name and cannot run here is left out, with the reason.
fn prepare_tiers(options: &Options) -> Result<BTreeSet<Tier>, String> {
    if options.may_install() && setup::can_install() {
        setup::setup()?;
    }
    let mut tiers = BTreeSet::new();
    for tier in options.tiers() {
        let obstacles = setup::obstacles(tier);
        // A filter may need no test of this tier. `refuse_obstacles` checks that later.
        if obstacles.is_empty() || !options.filter.is_empty() {
            tiers.insert(tier);
        } else if options.must_run(tier) {
            return Err(cannot_run(tier, &obstacles));
        } else {
            eprintln!("skipped: {}", cannot_run(tier, &obstacles));
        }
    }
    Ok(tiers)
}

fn refuse_obstacles(options: &Options, jobs: &[Job]) -> Result<(), String> {
    if options.filter.is_empty() {
        return Ok(());
    }
    let tiers: BTreeSet<Tier> = jobs.iter().map(|job| job.tier).collect();
    let reasons = tiers.into_iter().map(|tier| (tier, setup::obstacles(tier)));
    match reasons.into_iter().find(|(_, obstacles)| !obstacles.is_empty()) {
        Some((tier, obstacles)) => Err(cannot_run(tier, &obstacles)),
        None => Ok(()),
    }
}

fn cannot_run(tier: Tier, obstacles: &[String]) -> String {
    let hint = if setup::can_install() { "\n  hint: `cargo xtask setup` installs what apt and npm have" } else { "" };
    format!("the {tier} tests cannot run here:\n  {}{hint}", obstacles.join("\n  "))
}

fn run_jobs(jobs: Vec<Job>, options: &Options) -> Result<Vec<lanes::Outcome>, String> {
    let place = directory()?;
    let mut times = Times::read(place.join("times.json"));
    let lanes = Lanes::new(place.join("logs"), options.extent)?;
    let outcomes = lanes.run(jobs, &times);
    times.learn(&outcomes)?;
    Ok(outcomes)
}

/// The directory of logs and of the times of earlier runs.
fn directory() -> Result<PathBuf, String> {
    Ok(program::target_directory()?.join("xtask"))
}
