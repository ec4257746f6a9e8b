//! `isopod prune`: frees what is not in use.

use std::path::Path;
use std::process::ExitCode;

use isopod_node::base::{list_generations, remove_generation};
use isopod_node::disk::DiskOptions;
use isopod_node::{StateRoot, sweep_abandoned};
use serde_json::json;

use crate::args::PruneArgs;

pub(super) fn run(state_dir: &Path, args: &PruneArgs) -> anyhow::Result<ExitCode> {
    let state = StateRoot::open(state_dir)?;
    let report = sweep_abandoned(state.clone(), &DiskOptions::default())?;
    let mut templates = Vec::new();
    for generation in list_generations(&state.layers())?.into_iter().filter(|generation| !generation.in_use) {
        // It may have come into use in between, and then it stays.
        if remove_generation(&state.layers(), &generation.id).is_ok() {
            templates.push(generation.id);
        }
    }
    if args.json {
        let value = json!({"homes": report.homes, "sandboxes": report.executions, "templates": templates});
        println!("{value}");
    } else {
        println!("removed {} abandoned sandboxes and {} templates", report.executions, templates.len());
    }
    Ok(ExitCode::SUCCESS)
}
