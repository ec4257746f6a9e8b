//! `isopod df`: what is kept on disk.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

use isopod_node::base::list_generations;
use isopod_node::{Kept, KeptEntry, StateRoot, list_kept, list_layers};
use serde::Serialize;

use crate::args::JsonArgs;
use crate::say::print_json_pretty;

#[derive(Debug, Serialize)]
struct Row {
    kind: &'static str,
    name: String,
    bytes: u64,
    in_use: bool,
}

pub(super) fn run(state_dir: &Path, args: &JsonArgs) -> anyhow::Result<ExitCode> {
    let state = StateRoot::open(state_dir)?;
    let mut rows = Vec::new();
    for generation in list_generations(&state.layers())? {
        let bytes = allocated(&state.layers().join(&generation.id));
        rows.push(Row { kind: "template", name: generation.id, bytes, in_use: generation.in_use });
    }
    for layer in list_layers(&state.templates())? {
        let bytes = allocated(&state.templates().join(&layer.id));
        rows.push(Row { kind: "template", name: layer.id, bytes, in_use: layer.in_use });
    }
    rows.push(Row {
        kind: "sandboxes",
        name: "writable layers".to_owned(),
        bytes: disk_bytes(state.path()),
        in_use: true,
    });
    let kept = list_kept(&state).unwrap_or_else(|error| {
        tracing::warn!(%error, "saved memory is not shown");
        Kept::default()
    });
    rows.extend(kept.sandboxes.iter().filter_map(|sandbox| memory_row("paused", sandbox)));
    rows.extend(kept.start_images.iter().filter_map(|image| memory_row("start", image)));
    rows.extend(kept.snapshots.iter().filter_map(|snapshot| memory_row("snapshot", snapshot)));
    rows.extend(kept.packed_memory.as_deref().map(|packed| Row {
        kind: "packed",
        name: "saved memory of all of these".to_owned(),
        bytes: allocated(packed),
        in_use: true,
    }));
    if args.json {
        print_json_pretty(&rows);
    } else {
        say!("{:<10} {:<38} {:>12}  IN USE", "KIND", "NAME", "SIZE");
        for row in rows {
            say!(
                "{:<10} {:<38} {:>8} MiB  {}",
                row.kind,
                row.name,
                row.bytes >> 20,
                if row.in_use { "yes" } else { "no" }
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What saved memory takes by itself. The files of paused sandboxes and of snapshots are among the writable layers.
fn memory_row(kind: &'static str, kept: &KeptEntry) -> Option<Row> {
    let bytes = allocated(kept.memory.as_ref()?);
    Some(Row { kind, name: kept.id.clone(), bytes, in_use: true })
}

/// The image where there is one, else the plain directories.
fn disk_bytes(state: &Path) -> u64 {
    match std::fs::metadata(state.join("disk.btrfs")) {
        Ok(image) => image.blocks() * 512,
        Err(_) => allocated(&state.join("disk")),
    }
}

/// Blocks that a tree takes. What cannot be read is not counted.
fn allocated(path: &Path) -> u64 {
    let Ok(metadata) = path.symlink_metadata() else { return 0 };
    let own = metadata.blocks() * 512;
    if !metadata.is_dir() {
        return own;
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    own + entries.map(|entry| allocated(&entry.path())).sum::<u64>()
}
