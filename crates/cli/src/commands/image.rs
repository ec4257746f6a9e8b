//! `isopod image`: the local store of images, from which templates are built.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use isopod_image::archive::{ScratchDirectory, export, import};
use isopod_image::registry::{Credentials, pull};
use isopod_image::{Collected, Named, PrivateStore, Reference, Store};
use isopod_node::{StateRoot, image_store};
use serde_json::json;

use super::node_config;
use crate::args::{ImageArgs, ImageCommand, ImageExportArgs, ImageImportArgs, ImageListArgs, ImagePullArgs};
use crate::failure::Hint;
use crate::printable::printable;
use crate::say::print_json_pretty;

pub(super) async fn run(state_dir: &Path, args: ImageArgs) -> anyhow::Result<ExitCode> {
    let state = StateRoot::open(state_dir)?;
    let store = image_store(state.path())?;
    match args.command {
        ImageCommand::Pull(args) => pull_one(&store, &args).await,
        ImageCommand::Import(args) => import_one(&store, &state, &args),
        ImageCommand::Export(args) => export_one(&store, &args),
        ImageCommand::Ls(args) => ls(&store, &args),
        ImageCommand::Rm(args) => rm(&store, &args.names),
        ImageCommand::Gc => {
            let collected = collect_all(&store)?;
            say!("removed {} blobs, {} MB", collected.blobs, collected.bytes.div_ceil(1 << 20));
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn pull_one(store: &Store, args: &ImagePullArgs) -> anyhow::Result<ExitCode> {
    let reference = parse(&args.name)?;
    let credentials = args.username.clone().map(read_password).transpose()?;
    let mut settings = node_config::parse_mirrors(&args.registry_mirror)?;
    settings.outbound = node_config::parse_outbound(&args.allow_outbound)?;
    let tell = |progress: isopod_image::registry::Progress| {
        say_error!("{}", printable(&progress.message));
    };
    let pulled = pull(store, &reference, credentials.as_ref(), &settings, &tell).await;
    let digest = pulled.with_context(|| format!("could not pull {reference}"))?;
    say!("{reference} {digest}");
    Ok(ExitCode::SUCCESS)
}

fn read_password(username: String) -> anyhow::Result<Credentials> {
    let mut password = String::new();
    std::io::stdin().take(1 << 16).read_to_string(&mut password).context("could not read the password")?;
    Ok(Credentials { username, password: password.trim_end_matches(['\r', '\n']).to_owned() })
}

fn import_one(store: &Store, state: &StateRoot, args: &ImageImportArgs) -> anyhow::Result<ExitCode> {
    let name = args.name.as_deref().map(parse).transpose()?;
    let file = File::open(&args.file).with_context(|| format!("could not open {}", args.file.display()))?;
    let scratch = ScratchDirectory::make(state.path()).context("could not make room for the archive")?;
    let names = import(store, BufReader::with_capacity(1 << 18, file), scratch.path(), name.as_ref())?;
    names.iter().for_each(|name| say!("{}", printable(&name.to_string())));
    Ok(ExitCode::SUCCESS)
}

fn export_one(store: &Store, args: &ImageExportArgs) -> anyhow::Result<ExitCode> {
    let reference = parse(&args.name)?;
    let image = store.find(&reference).ok_or_else(|| missing(&reference))?;
    let file = File::create(&args.file).with_context(|| format!("could not make {}", args.file.display()))?;
    let written = export(store, &image, &reference, std::io::BufWriter::new(file));
    if let Err(error) = written {
        let _ = std::fs::remove_file(&args.file);
        return Err(error.into());
    }
    Ok(ExitCode::SUCCESS)
}

fn ls(store: &Store, args: &ImageListArgs) -> anyhow::Result<ExitCode> {
    let mut rows: Vec<(Named, Option<String>)> = store.list()?.into_iter().map(|name| (name, None)).collect();
    for PrivateStore { team, store } in store.privates()? {
        rows.extend(store.list()?.into_iter().map(|name| (name, Some(team.clone()))));
    }
    if args.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|(name, team)| {
                let digest = name.manifest.as_str();
                json!({ "name": name.reference, "digest": digest, "bytes": name.bytes, "team": team })
            })
            .collect();
        print_json_pretty(&rows);
        return Ok(ExitCode::SUCCESS);
    }
    say!("{:<56} {:<20} {:>8}  TEAM", "NAME", "DIGEST", "MB");
    for (name, team) in rows {
        say!(
            "{:<56} {:<20} {:>8}  {}",
            printable(&name.reference),
            &name.manifest.digits()[..12],
            name.bytes.div_ceil(1 << 20),
            printable(team.as_deref().unwrap_or("(all)"))
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes names away, from the shared store and from those of teams.
fn rm(store: &Store, names: &[String]) -> anyhow::Result<ExitCode> {
    for name in names {
        let reference = parse(name)?;
        let mut is_removed = store.untag(&reference)?;
        for private in store.privates()? {
            is_removed |= private.store.untag(&reference)?;
        }
        if !is_removed {
            return Err(missing(&reference));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn collect_all(store: &Store) -> anyhow::Result<Collected> {
    let mut all = store.collect()?;
    for private in store.privates()? {
        let collected = private.store.collect()?;
        all.blobs += collected.blobs;
        all.bytes += collected.bytes;
    }
    Ok(all)
}

fn parse(name: &str) -> anyhow::Result<Reference> {
    name.parse().with_context(|| format!("{name:?} names no image"))
}

fn missing(reference: &Reference) -> anyhow::Error {
    Hint::new(format!("there is no image {reference}"), "isopod image ls lists those that there are")
}
