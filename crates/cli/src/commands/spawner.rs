//! `isopod __spawner`: the process without threads that starts sandboxes. Its standard input is a listening socket.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use isopod_isolation::launch::{SpawnerOptions, run_spawner};

use crate::args::SpawnerArgs;

pub(crate) fn run(args: &SpawnerArgs) -> ExitCode {
    let when_orphaned = args.sweep_when_orphaned.as_ref().map(|state_dir| {
        let state_dir = CString::new(state_dir.as_os_str().as_bytes()).unwrap_or_default();
        vec![CString::from(c"/proc/self/exe"), CString::from(c"--state-dir"), state_dir, CString::from(c"__sweep")]
    });
    let served = rustix::io::dup(std::io::stdin())
        .map_err(std::io::Error::from)
        .and_then(|listener| run_spawner(listener, &SpawnerOptions { when_orphaned }));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spawner: {error}");
            ExitCode::FAILURE
        }
    }
}
