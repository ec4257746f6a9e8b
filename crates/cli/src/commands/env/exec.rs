//! `isopod __env-exec`: the last step before the command. It gives back what the supervisor has changed for itself, and
//! becomes the command.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use isopod_isolation::sys::signal::unblock;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::supervise::PASSED_ON;
use crate::printable::printable;

/// As shells have it.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

pub(crate) fn run(command: &[OsString]) -> ExitCode {
    let Some((program, arguments)) = command.split_first() else { return ExitCode::FAILURE };
    let error = match prepare() {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(error) => error,
    };
    say_error!("isopod: could not run {}: {error}", printable(&program.to_string_lossy()));
    match error.kind() {
        io::ErrorKind::NotFound => ExitCode::from(NOT_FOUND),
        _ => ExitCode::from(NOT_EXECUTABLE),
    }
}

fn prepare() -> io::Result<()> {
    unblock(&PASSED_ON.map(Signal::as_raw))?;
    // Whoever kills `isopod env` by force means the command: there is nobody left to keep its view.
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}
