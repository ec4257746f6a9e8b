//! `isopod __env`: makes the view of the command, and stays until the command has ended. It has no threads.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};

use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};

use super::namespace::leave_shared_mounts;
use super::plan::Plan;
use super::supervise::supervise;
use super::view::View;
use crate::failure;

pub(crate) fn run(command: &[OsString]) -> ExitCode {
    match run_in_view(command) {
        Ok(status) => pass_on(status),
        Err(error) => failure::report(&error),
    }
}

fn run_in_view(command: &[OsString]) -> anyhow::Result<ExitStatus> {
    let plan = Plan::from_environment()?;
    leave_shared_mounts()?;
    let view = View::make(&plan)?;
    supervise(command, &view)
}

/// Ends as the command has ended: with its code, or by its signal.
fn pass_on(status: ExitStatus) -> ExitCode {
    let Some(number) = status.signal() else {
        return ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX));
    };
    // The command has left what it had to say about its crash; ours says nothing.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), ..getrlimit(Resource::Core) });
    if let Some(signal) = Signal::from_named_raw(number) {
        let _ = kill_process(getpid(), signal);
    }
    // One that is ignored here.
    ExitCode::from(128_u8.saturating_add(u8::try_from(number).unwrap_or_default()))
}
