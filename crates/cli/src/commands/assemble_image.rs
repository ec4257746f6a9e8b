//! `isopod assemble-image`: an OCI image of finished layers, as an archive. `cargo xtask dist oci` makes Isopod's own image with it.
//!
//! The same layers, settings and time give the same bytes. Needs no root and no state directory.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use isopod_image::layout::Layout;
use isopod_image::{Digest, Reference, RunConfig};
use serde_json::Value;

use crate::args::AssembleImageArgs;

pub(super) fn run(args: &AssembleImageArgs) -> anyhow::Result<ExitCode> {
    let name: Reference = args.name.parse().with_context(|| format!("{:?} names no image", args.name))?;
    let config = read_config(&args.config)?;
    let assembled = assemble(args, &name, config);
    if assembled.is_err() {
        let _ = fs::remove_file(&args.output);
    }
    say!("{name} {}", assembled?);
    Ok(ExitCode::SUCCESS)
}

fn assemble(args: &AssembleImageArgs, name: &Reference, config: RunConfig) -> anyhow::Result<Digest> {
    let writing = || format!("could not write {}", args.output.display());
    let file = File::create(&args.output).with_context(writing)?;
    let mut layout = Layout::begin(file).with_context(writing)?;
    for layer in &args.layers {
        let adding = || format!("could not add the layer {}", layer.display());
        let tar = File::open(layer).with_context(adding)?;
        let mut tar = BufReader::with_capacity(1 << 18, tar);
        layout.layer(|out| io::copy(&mut tar, out).map(drop)).with_context(adding)?;
    }
    let created = SystemTime::UNIX_EPOCH + Duration::from_secs(args.created.into());
    let (_, digest) = layout.finish(name, config, created).with_context(writing)?;
    Ok(digest)
}

/// Images of others may have anything in their configuration, so its types ignore what they don't know. Our own must be right.
fn read_config(path: &Path) -> anyhow::Result<RunConfig> {
    let text = fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
    let reading = || format!("{} is not the configuration of an image", path.display());
    let given: Value = serde_json::from_slice(&text).with_context(reading)?;
    let config: RunConfig = serde_json::from_value(given.clone()).with_context(reading)?;
    let understood = serde_json::to_value(&config).with_context(reading)?;
    ensure!(
        understood == given,
        "{} has settings that images don't have; these are known: {understood}",
        path.display()
    );
    Ok(config)
}
