//! From this machine into a sandbox. A link to a file of the same directory tree is copied as that file. Other links are
//! left out: they may lead to anything on this machine, or in circles.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use isopod_client::guest::{Guest, Upload};

use super::HostTree;
use super::host_tree::HostKind;
use crate::printable::printable;

/// Copies all that is in a directory.
pub(in crate::commands) async fn upload_tree(guest: &Guest, from: &HostTree, to: &str) -> anyhow::Result<()> {
    let mut todo = vec![(PathBuf::new(), to.to_owned())];
    while let Some((below, to)) = todo.pop() {
        // The top of a sandbox is always there, and has no name.
        if !to.is_empty() {
            guest.make_dir(&to).await.with_context(|| format!("could not make {to}"))?;
        }
        for (name, kind) in from.list(&below).with_context(|| unreadable(from, &below))? {
            let below = below.join(&name);
            let name = name.to_str().with_context(|| format!("the name {} is not UTF-8", below.display()))?;
            let inside = format!("{to}/{name}");
            match kind {
                HostKind::Directory => todo.push((below, inside)),
                HostKind::File => {
                    let file = from.file(&below).with_context(|| unreadable(from, &below))?;
                    upload_file(guest, file, &inside).await?;
                }
                HostKind::Link => match from.file(&below) {
                    Ok(file) => upload_file(guest, file, &inside).await?,
                    Err(error) => leave_out(from, &below, why_left_out(&error)),
                },
                HostKind::Other => leave_out(from, &below, "it is neither a file nor a directory"),
            }
        }
    }
    Ok(())
}

/// Copies one file.
pub(in crate::commands) async fn upload_file(guest: &Guest, from: File, to: &str) -> anyhow::Result<()> {
    write(guest, to, Upload::reader(tokio::fs::File::from_std(from))).await
}

pub(super) async fn write(guest: &Guest, to: &str, contents: Upload) -> anyhow::Result<()> {
    if to.is_empty() || to.ends_with('/') {
        bail!("{to:?} is no path of a file");
    }
    guest.write_file(to, contents).await.with_context(|| format!("could not write {to}"))?;
    Ok(())
}

fn why_left_out(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::CrossesDevices => "it is a link that leads out of the directory",
        io::ErrorKind::NotFound => "it is a link to nothing",
        _ => "it is a link to something that is no file",
    }
}

fn leave_out(from: &HostTree, below: &Path, why: &str) {
    say_error!("isopod: {} was not copied: {why}", printable(&from.shown(below).to_string_lossy()));
}

fn unreadable(from: &HostTree, below: &Path) -> String {
    format!("could not read {}", from.shown(below).display())
}
