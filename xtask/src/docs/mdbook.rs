//! mdBook, which renders the site: one version, installed once below the cache directory.

use std::path::PathBuf;
use std::process::Command;

use crate::program::{cache_directory, cargo, run};

const VERSION: &str = "0.5.4";

/// Returns the program, and installs it first if it is missing or another version. That takes a few minutes.
pub(crate) fn ensure() -> Result<PathBuf, String> {
    let tools = cache_directory()?.join("tools");
    let program = tools.join("bin/mdbook");
    if is_wanted_version(&program) {
        return Ok(program);
    }
    eprintln!("installing mdBook {VERSION} into {}", tools.display());
    let mut install = cargo(&["install", "mdbook", "--version", VERSION, "--locked", "--force", "--quiet"]);
    // Without its own server and watcher, mdBook needs half the crates.
    install.args(["--no-default-features", "--features", "search", "--root"]).arg(&tools);
    // Its build must not fill the target directory of the workspace.
    run(install.env_remove("CARGO_TARGET_DIR"))?;
    Ok(program)
}

fn is_wanted_version(program: &PathBuf) -> bool {
    let said = Command::new(program).arg("--version").output();
    said.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim() == format!("mdbook v{VERSION}"))
}
