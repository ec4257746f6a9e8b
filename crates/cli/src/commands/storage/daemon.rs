//! `isopod __storaged`: the keeper of the storage daemon, and the daemon itself. Not for people.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use isopod_storage::{run_keeper, run_worker};

use crate::args::StoragedArgs;

/// Below the daemon's directory: the journal and the local copies.
const FILES: &str = "vfs";

pub(crate) fn run(args: &StoragedArgs) -> anyhow::Result<ExitCode> {
    let listener = rustix::io::dup(std::io::stdin()).context("there is no listening socket")?;
    if !args.worker {
        let directory = args.directory.display().to_string();
        let arguments = ["__storaged", "--worker", &directory];
        run_keeper(&listener, Path::new("/proc/self/exe"), &arguments).context("the keeper cannot go on")?;
        return Ok(ExitCode::SUCCESS);
    }
    let keeper = rustix::io::dup(std::io::stdout()).context("there is no keeper")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("could not start")?;
    let _runtime = runtime.enter();
    run_worker(&args.directory.join(FILES), &listener, keeper)?;
    Ok(ExitCode::SUCCESS)
}
