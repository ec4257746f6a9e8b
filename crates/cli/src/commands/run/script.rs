//! Telling a script from a command, and taking it into the sandbox.

use std::path::Path;

use anyhow::Context;
use isopod_client::guest::{Guest, StartProcess};

use super::plain;

/// What runs files with this ending.
const INTERPRETERS: &[(&str, &str)] =
    &[("py", "python3"), ("js", "node"), ("mjs", "node"), ("cjs", "node"), ("sh", "bash"), ("bash", "bash")];
/// Where scripts are put.
const HOME: &str = "/home/user";

/// The process to start. A file of this machine with a known ending is copied in and given to its interpreter.
pub(super) async fn command_for(guest: &Guest, command: &[String]) -> anyhow::Result<StartProcess> {
    let path = Path::new(&command[0]);
    let ending = path.extension().and_then(|ending| ending.to_str());
    let interpreter = INTERPRETERS.iter().find(|(known, _)| Some(*known) == ending).map(|(_, program)| *program);
    let (Some(interpreter), true) = (interpreter, path.is_file()) else { return Ok(plain(command)) };

    let name = path.file_name().context("a file has a name")?.to_string_lossy();
    let inside = format!("{HOME}/{name}");
    let text = tokio::fs::read(path).await.with_context(|| format!("could not read {}", path.display()))?;
    guest.write_file(&inside, text).await.with_context(|| format!("could not copy {name} into the sandbox"))?;
    let mut start = StartProcess::new(interpreter);
    start.args = std::iter::once(inside).chain(command[1..].iter().cloned()).collect();
    Ok(start)
}
