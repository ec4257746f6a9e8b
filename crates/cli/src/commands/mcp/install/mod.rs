//! `isopod mcp install`: writes an entry into the configuration of a coding agent, after showing it. Everything else in
//! the file stays as it is.

mod codex;
mod entry;
mod json;
mod place;

use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use crate::args::McpInstallArgs;
use crate::failure::Hint;
use entry::Entry;
use place::Place;

/// The name of our entry.
const NAME: &str = "isopod";

pub(super) fn run(args: &McpInstallArgs) -> anyhow::Result<ExitCode> {
    let place = Place::of(args.client, args.scope)?;
    let entry = Entry::new(args, place.holds_secrets())?;
    if args.print {
        print_as_it_is(&place.render(None, &entry)?);
        return Ok(ExitCode::SUCCESS);
    }
    let path = place.path();
    let before = read(path)?;
    let after = place.render(before.as_deref(), &entry)?;
    if before.as_deref() == Some(after.as_str()) {
        say!("{} has this entry already", path.display());
        return Ok(ExitCode::SUCCESS);
    }
    say!("{}:\n\n{}", path.display(), place.render(None, &entry.without_secrets())?);
    if !args.yes && !confirmed(path)? {
        say!("nothing was written; answer y, or add --yes");
        return Ok(ExitCode::FAILURE);
    }
    write(path, &after).with_context(|| format!("could not write {}", path.display()))?;
    say!("wrote {}; {}", path.display(), place.next_step(entry.has_key));
    Ok(ExitCode::SUCCESS)
}

/// For a file, or to paste.
fn print_as_it_is(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("could not read {}", path.display())),
    }
}

fn confirmed(path: &Path) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Err(Hint::new("there is nobody to ask", "add --yes to write, or --print to see the configuration"));
    }
    crate::say::print(format_args!("Add this entry to {}? [y/N] ", path.display()));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("could not read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// A new file takes the place of the old one when it is complete, so that nothing is lost. It may have a key in it.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    // A link stays, as people have them who keep their settings elsewhere.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mode = fs::metadata(&path).map_or(0o600, |metadata| metadata.permissions().mode() & 0o7777);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let part = path.with_extension(format!("isopod-{}", std::process::id()));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.set_permissions(fs::Permissions::from_mode(mode)))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&part, &path));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_is_for_its_owner_and_an_old_one_keeps_its_mode_and_its_links() {
        let directory = tempfile::tempdir().unwrap();
        let (old, link, new) =
            (directory.path().join("old"), directory.path().join("link"), directory.path().join("a/new"));
        fs::write(&old, "").unwrap();
        fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("old", &link).unwrap();
        write(&link, "x").unwrap();
        write(&new, "y").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((fs::read_to_string(&old).unwrap().as_str(), mode(&old), mode(&new)), ("x", 0o640, 0o600));
        assert!(link.is_symlink());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3, "no part is left");
    }
}
