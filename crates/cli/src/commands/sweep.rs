//! `isopod __sweep`: removes what a killed process left.

use std::path::Path;
use std::process::ExitCode;

use isopod_disk::DiskOptions;
use isopod_node::{StateRoot, sweep_abandoned};

pub(super) fn run(state_dir: &Path) -> anyhow::Result<ExitCode> {
    sweep_abandoned(StateRoot::open(state_dir)?, &DiskOptions::default())?;
    Ok(ExitCode::SUCCESS)
}
