//! `isopod restore`: makes a state directory of what `isopod backup` wrote.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use isopod_node::StateRoot;

use super::backup::{AS_IT_IS, DESCRIPTION, Description, FORMAT, run_tar};
use super::show::moment;
use crate::args::BackupArgs;
use crate::failure::Hint;

pub(super) fn run(state_dir: &Path, args: &BackupArgs) -> anyhow::Result<ExitCode> {
    let description = description(&args.file)?;
    check_empty(state_dir)?;
    // Gives it a tag of its own: another one may be on this machine, and its sandboxes are not this one's.
    let state = StateRoot::open(state_dir)?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--file"]).arg(&args.file).args(AS_IT_IS).args(["--same-owner", "--preserve-permissions"]);
    tar.arg(format!("--exclude={DESCRIPTION}")).arg("--directory").arg(state.path());
    run_tar(&mut tar).context("could not read the backup; remove the state directory before you try again")?;
    say!("restored {} as it was at {}", state_dir.display(), moment(description.created_at));
    say!("its sandboxes are not in the backup; start the server with: isopod serve");
    Ok(ExitCode::SUCCESS)
}

fn description(file: &Path) -> anyhow::Result<Description> {
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--to-stdout", "--occurrence=1", "--file"]).arg(file).arg(DESCRIPTION);
    let output = tar.output().context("could not run tar")?;
    let description: Description = match serde_json::from_slice(&output.stdout) {
        Ok(description) if output.status.success() => description,
        _ => {
            return Err(Hint::new(
                format!("{} is no backup of Isopod", file.display()),
                "isopod backup FILE writes one",
            ));
        }
    };
    if description.format > FORMAT {
        let message = format!("{} was written by version {}", file.display(), description.version);
        return Err(Hint::new(message, "restore it with that version or a later one"));
    }
    Ok(description)
}

/// Nothing that is there is mixed with what comes.
fn check_empty(state_dir: &Path) -> anyhow::Result<()> {
    let is_empty = match fs::read_dir(state_dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(error).with_context(|| format!("could not look into {}", state_dir.display())),
    };
    if is_empty {
        return Ok(());
    }
    Err(Hint::new(
        format!("{} is not empty", state_dir.display()),
        "name another directory with --state-dir, or remove this one with: isopod uninstall",
    ))
}
