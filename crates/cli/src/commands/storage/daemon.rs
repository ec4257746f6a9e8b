//! `isopod __storaged`: the supervisor of the storage daemon, and the daemon itself. Not for people.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use isopod_storage::{SupervisorProgram, run_supervisor, run_worker};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::args::StoragedArgs;

const PROGRAM: &str = "/proc/self/exe";

pub(crate) fn run(args: &StoragedArgs) -> anyhow::Result<ExitCode> {
    raise_descriptor_limit();
    let listener = rustix::io::dup(std::io::stdin()).context("there is no listening socket")?;
    if !args.worker {
        let directory = args.directory.display().to_string();
        let arguments = ["__storaged", "--worker", &directory];
        let running =
            args.adopt.then(|| rustix::io::dup(std::io::stdout()).context("there is no daemon")).transpose()?;
        run_supervisor(&listener, Path::new(PROGRAM), &arguments, running).context("the supervisor cannot go on")?;
        return Ok(ExitCode::SUCCESS);
    }
    let supervisor = rustix::io::dup(std::io::stdout()).context("there is no supervisor")?;
    let arguments = vec!["__storaged".into(), "--adopt".into(), args.directory.clone().into()];
    let supervisor_program = SupervisorProgram { program: PROGRAM.into(), arguments };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("could not start")?;
    let _runtime = runtime.enter();
    run_worker(&args.directory, listener, supervisor, supervisor_program)?;
    Ok(ExitCode::SUCCESS)
}

/// Every mount takes several descriptors, in both processes.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // With fewer there is room for fewer mounts.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
