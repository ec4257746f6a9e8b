//! Getting a kernel: from a mother for Python, as a process of its own for every other language.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use super::Host;
use super::contexts::{hex, random_bytes};
use super::driver::{self, Start};
use super::kernel::{Kernel, Nature, Order, Wires};
use super::language::Language;
use crate::process::basic_environment;

/// Where code works when nobody says otherwise.
const HOME: &str = "/home/user";
/// A mother may die while she is asked for a kernel; then another one is asked, this often in all.
const TRIES: usize = 2;

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
    #[error("cannot connect to the kernel: {0}")]
    Wires(io::Error),
    #[error("the interpreter did not start: {0}")]
    Mother(String),
    #[error("{0}")]
    Refused(String),
    #[error("the kernel ended before it was ready{0}")]
    Closed(String),
    #[error("the kernel was not ready after {} s", .0.as_secs())]
    Silent(Duration),
    #[error("the kernel did not say what it is")]
    Nonsense,
}

/// Starts a kernel and waits until it says hello.
pub(super) async fn kernel(host: &Host, language: &Language, cwd: &str) -> Result<Kernel, StartError> {
    let Some(kernelspec) = &language.kernelspec else { return forked(host, cwd).await };
    bridge(host, kernelspec, cwd).await
}

async fn forked(host: &Host, cwd: &str) -> Result<Kernel, StartError> {
    let mothers = &host.interpreter().mothers;
    let mut tries = 0;
    loop {
        tries += 1;
        let mother = mothers.ready(host).await?;
        let (wires, ends) = Wires::new().map_err(StartError::Wires)?;
        let env = driver::user(host).map(|user| basic_environment(&user)).unwrap_or_default();
        let asked = mother.start_kernel(cwd, &env, ends).await;
        match asked {
            Ok(told) => match wires.greet(Nature::Forked).await {
                Ok(mut kernel) => {
                    kernel.told = Some(told);
                    kernel.collected = Some(host.guest().processes.watch(kernel.pid()));
                    return Ok(kernel);
                }
                Err(StartError::Closed(_)) if tries < TRIES => mothers.forget(&mother).await,
                Err(error) => return Err(error),
            },
            Err(_) if tries < TRIES => mothers.forget(&mother).await,
            Err(error) => return Err(StartError::Mother(error.to_string())),
        }
    }
}

async fn bridge(host: &Host, kernelspec: &str, cwd: &str) -> Result<Kernel, StartError> {
    let user = driver::user(host)?;
    let env = environment(host);
    let (wires, ends) = Wires::new().map_err(StartError::Wires)?;
    let start = Start {
        arguments: &["jupyter", kernelspec],
        env: &env,
        cwd,
        stdout: ends.stdout.as_fd(),
        stderr: ends.stderr.as_fd(),
        extra: Some(ends.stream.as_fd()),
    };
    let pid = driver::spawn(host, &user, &start)?;
    let collected = host.guest().processes.watch(pid);
    drop(ends);
    let mut kernel = wires.greet(Nature::Bridge).await?;
    kernel.collected = Some(collected);
    Ok(kernel)
}

/// Tells a kernel whose it is, once: until then it could be anybody's.
pub(super) async fn begin(host: &Host, kernel: &mut Kernel) -> io::Result<()> {
    if kernel.begun {
        return Ok(());
    }
    kernel.begun = true;
    let seed = hex(&random_bytes::<32>());
    kernel.send(&Order::Begin { env: &environment(host), seed: &seed }).await
}

/// The basics of the user, then the sandbox's variables.
pub(super) fn environment(host: &Host) -> BTreeMap<String, String> {
    let mut env = driver::user(host).map(|user| basic_environment(&user)).unwrap_or_default();
    if let Some(settings) = host.guest().settings() {
        env.extend(settings.env.clone());
    }
    env
}

/// Where default contexts work.
pub(super) fn home(host: &Host) -> String {
    driver::user(host).map_or_else(|_| HOME.to_owned(), |user| user.home)
}
