//! Programs that the verbs start, and where things are.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Runs it to its end; a failure is an error.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("cannot start {command:?}: {error}")),
    }
}

/// Standard output of a program that succeeds. Its errors go to the terminal.
pub(crate) fn output_of(command: &mut Command) -> Result<String, String> {
    let output = command.stderr(std::process::Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cannot start {command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?} ended with {}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("{command:?} printed something else than text: {error}"))
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

/// This very program lies in `<target>/<profile>`, wherever the target directory was put.
pub(crate) fn target_directory() -> Result<PathBuf, String> {
    let own = own_program()?;
    own.ancestors().nth(2).map(PathBuf::from).ok_or_else(|| format!("{} is in no target directory", own.display()))
}

pub(crate) fn own_program() -> Result<PathBuf, String> {
    env::current_exe().map_err(|error| format!("cannot find this program: {error}"))
}

/// The directory for what stays between runs.
pub(crate) fn cache_directory() -> Result<PathBuf, String> {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    Ok(cache.ok_or("neither HOME nor XDG_CACHE_HOME is set")?.join("isopod"))
}

/// The path of a program that a person could call by its name.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// How many things at once keep this machine busy.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
