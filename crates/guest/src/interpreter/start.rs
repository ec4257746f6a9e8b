//! Starts kernels: the forkserver forks those for Python; every other language gets a bridge process.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use super::Interpreter;
use super::contexts::random_bytes;
use super::driver::{self, Start};
use super::kernel::{Command, Kernel, KernelConnection, KernelKind};
use super::language::Language;

/// The working directory if the user is not known.
const DEFAULT_HOME: &str = "/home/user";
/// How often to ask for a kernel: the forkserver may die on the way, and then another one is asked.
const MAX_ATTEMPTS: usize = 2;

/// Why there is no kernel.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("{} is missing: the code interpreter needs Python 3 in the template", .0.display())]
    NoPython(PathBuf),
    #[error("{} is missing: the template has no code interpreter", .0.display())]
    NoDriver(PathBuf),
    #[error("user '{0}' does not exist in this sandbox")]
    NoUser(String),
    #[error("cwd '{cwd}' cannot be used: {source}")]
    Cwd { cwd: String, source: io::Error },
    #[error("cannot start {}: {source}", .program.display())]
    Spawn { program: PathBuf, source: io::Error },
    #[error("a NUL byte is not allowed in paths and variables")]
    Nul,
    #[error("cannot create the kernel's pipes: {0}")]
    Connection(io::Error),
    #[error("the interpreter did not start: {0}")]
    Forkserver(String),
    #[error("{0}")]
    Refused(String),
    #[error("the kernel exited before it was ready{0}")]
    Closed(String),
    #[error("the kernel was not ready after {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("the kernel sent an invalid first message")]
    Malformed,
}

/// Starts a kernel and waits for its hello.
pub(super) async fn kernel(interpreter: &Interpreter, language: &Language, cwd: &str) -> Result<Kernel, StartError> {
    let Some(kernelspec) = &language.kernelspec else { return forked(interpreter, cwd).await };
    bridge(interpreter, kernelspec, cwd).await
}

async fn forked(interpreter: &Interpreter, cwd: &str) -> Result<Kernel, StartError> {
    let forkserver = &interpreter.forkserver;
    let mut attempts = 0;
    loop {
        attempts += 1;
        let server = forkserver.ready(interpreter).await?;
        let (connection, ends) = KernelConnection::new().map_err(StartError::Connection)?;
        let env = driver::environment(interpreter);
        let asked = server.start_kernel(cwd, &env, ends).await;
        match asked {
            Ok(exit_from_forkserver) => match connection.wait_for_hello(KernelKind::Forked).await {
                Ok(mut kernel) => {
                    kernel.exit_from_forkserver = Some(exit_from_forkserver);
                    kernel.exit_from_wait = Some(interpreter.processes.watch_exit(kernel.pid()));
                    return Ok(kernel);
                }
                Err(StartError::Closed(_)) if attempts < MAX_ATTEMPTS => forkserver.forget(&server).await,
                Err(error) => return Err(error),
            },
            Err(_) if attempts < MAX_ATTEMPTS => forkserver.forget(&server).await,
            Err(error) => return Err(StartError::Forkserver(error.to_string())),
        }
    }
}

async fn bridge(interpreter: &Interpreter, kernelspec: &str, cwd: &str) -> Result<Kernel, StartError> {
    let env = environment(interpreter);
    let (connection, ends) = KernelConnection::new().map_err(StartError::Connection)?;
    let start = Start {
        arguments: &["jupyter", kernelspec],
        env: &env,
        cwd,
        stdout: ends.stdout.as_fd(),
        stderr: ends.stderr.as_fd(),
        extra: Some(ends.stream.as_fd()),
    };
    let pid = driver::spawn(interpreter, &start)?;
    let exit_from_wait = interpreter.processes.watch_exit(pid);
    drop(ends);
    let mut kernel = connection.wait_for_hello(KernelKind::Bridge).await?;
    kernel.exit_from_wait = Some(exit_from_wait);
    Ok(kernel)
}

/// Sends a kernel its environment and random seed, once. Until then it is not specific to this sandbox.
pub(super) async fn begin(interpreter: &Interpreter, kernel: &mut Kernel) -> io::Result<()> {
    if kernel.link().has_begun() {
        return Ok(());
    }
    kernel.link().set_begun();
    let seed = hex::encode(random_bytes::<32>());
    kernel.send(&Command::Begin { env: &environment(interpreter), seed: &seed }).await
}

/// The basic variables, then the sandbox's.
pub(super) fn environment(interpreter: &Interpreter) -> BTreeMap<String, String> {
    let mut env = driver::environment(interpreter);
    if let Some(settings) = interpreter.settings.get() {
        env.extend(settings.env.clone());
    }
    env
}

/// The working directory of default contexts.
pub(super) fn home(interpreter: &Interpreter) -> String {
    driver::default_user(interpreter).map_or_else(|_| DEFAULT_HOME.to_owned(), |user| user.home)
}
