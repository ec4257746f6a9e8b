//! `isopod uninstall`: removes everything that Isopod has made on this machine.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use isopod_node::{StateRoot, remove_everything};

use crate::args::UninstallArgs;

pub(super) fn run(state_dir: &Path, args: &UninstallArgs) -> anyhow::Result<ExitCode> {
    if !state_dir.exists() {
        say!("there is nothing in {}", state_dir.display());
        return Ok(ExitCode::SUCCESS);
    }
    if !args.yes && !confirmed(state_dir)? {
        say!("nothing was removed");
        return Ok(ExitCode::FAILURE);
    }
    remove_everything(StateRoot::open(state_dir)?).context("could not remove everything")?;
    say!("removed {} and all sandboxes in it", state_dir.display());
    Ok(ExitCode::SUCCESS)
}

fn confirmed(state_dir: &Path) -> anyhow::Result<bool> {
    eprint!("This ends all sandboxes and removes {} with all templates. Go on? [y/N] ", state_dir.display());
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
