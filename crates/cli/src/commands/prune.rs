//! `isopod prune`: frees what is not in use.

use std::path::Path;
use std::process::ExitCode;

use isopod_disk::DiskOptions;
use isopod_node::base::{BaseError, BaseOptions, Generation, current_fingerprint, list_generations, remove_generation};
use isopod_node::{
    StateRoot, guest_program_bytes, list_kept, list_layers, remove_layer, remove_unfinished, sweep_abandoned,
};
use serde_json::json;

use crate::args::PruneArgs;

pub(super) fn run(state_dir: &Path, args: &PruneArgs) -> anyhow::Result<ExitCode> {
    let state = StateRoot::open(state_dir)?;
    let report = sweep_abandoned(state.clone(), &DiskOptions::default())?;
    let mut templates = Vec::new();
    // The next sandbox would need the current one at once.
    let current = match args.all {
        true => None,
        false => current_fingerprint(&state.layers(), guest_program_bytes(), &BaseOptions::default()).ok(),
    };
    let is_needless = |generation: &Generation| !generation.in_use && Some(&generation.id) != current.as_ref();
    for generation in list_generations(&state.layers())?.into_iter().filter(is_needless) {
        match remove_generation(&state.layers(), &generation.id) {
            Ok(()) => templates.push(generation.id),
            // It has come into use in between, and stays; or somebody else has removed it.
            Err(BaseError::InUse(_) | BaseError::NoSuchGeneration(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    remove_unfinished(&state.templates())?;
    // Minutes of work and a download: only when everything is to go.
    if args.all {
        for layer in list_layers(&state.templates())?.into_iter().filter(|layer| !layer.in_use) {
            if remove_layer(&state.templates(), &layer.id).is_ok() {
                templates.push(layer.id);
            }
        }
    }
    let kept = list_kept(&state)?;
    let (sandboxes, snapshots) = (kept.sandboxes.len(), kept.snapshots.len());
    if args.json {
        let value = json!({"homes": report.homes, "sandboxes": report.executions, "templates": templates, "kept": sandboxes, "kept_snapshots": snapshots});
        crate::say::print_json(&value);
    } else {
        say!("removed {} abandoned sandboxes and {} templates", report.executions, templates.len());
        if sandboxes > 0 {
            say!("kept {sandboxes} sandboxes that run or are paused, with the templates that they stand on");
        }
        if snapshots > 0 {
            say!("kept {snapshots} snapshots; remove those that you don't need with `isopod snapshot rm`");
        }
    }
    Ok(ExitCode::SUCCESS)
}
