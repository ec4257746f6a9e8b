//! Helpers to start programs and to find directories.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Runs a command to its end. A failure is an error.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("cannot start {command:?}: {error}")),
    }
}

/// Returns the standard output of a successful program. Its errors go to the terminal.
pub(crate) fn output_of(command: &mut Command) -> Result<String, String> {
    let output = command.stderr(std::process::Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cannot start {command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?} ended with {}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("the output of {command:?} is not text: {error}"))
}

/// Cargo, in the root of the workspace.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo_program());
    command.current_dir(root()).args(arguments);
    command
}

pub(crate) fn cargo_program() -> String {
    env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

pub(crate) fn root() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    own.parent().map_or_else(|| own.join(".."), PathBuf::from)
}

/// Returns the target directory: this program is in `<target>/<profile>`, wherever the target directory is.
pub(crate) fn target_directory() -> Result<PathBuf, String> {
    let own = own_program()?;
    own.ancestors().nth(2).map(PathBuf::from).ok_or_else(|| format!("{} is not in a target directory", own.display()))
}

pub(crate) fn own_program() -> Result<PathBuf, String> {
    env::current_exe().map_err(|error| format!("cannot find this program: {error}"))
}

/// The directory for what is kept between runs.
pub(crate) fn cache_directory() -> Result<PathBuf, String> {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    Ok(cache.ok_or("neither HOME nor XDG_CACHE_HOME is set")?.join("isopod"))
}

/// Finds a program in the path.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// How many processes keep this machine busy.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Reads it from the kernel, which needs no library.
pub(crate) fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.and_then(|ids| ids.split_whitespace().nth(1)) == Some("0")
}
