//! A backend that isolates nothing and fails on demand, for tests of cleanup code.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::backend::{Backend, Prepared};
use crate::launch::{CriuRequest, Launch, LaunchError, Launched, Preparation, WorkspaceConnection, WorkspaceRequest};

/// Where the backend fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No launcher can be started.
    Prepare,
    /// The root cannot be built.
    Wait,
    /// The first process cannot be created.
    Launch,
    /// The first process dies before the guest listens.
    DiesAtOnce,
    /// The guest listens, reports that, and dies.
    DiesWhenReady,
}

#[derive(Clone, Copy, Debug)]
pub struct FakeBackend {
    fault: Fault,
}

impl FakeBackend {
    /// Creates a backend that fails there.
    pub fn failing_at(fault: Fault) -> Self {
        Self { fault }
    }
}

impl Backend for FakeBackend {
    fn prepare(&self, _: &Preparation<'_>) -> Result<Box<dyn Prepared>, LaunchError> {
        match self.fault {
            Fault::Prepare => Err(refused("prepare a sandbox")),
            _ => Ok(Box::new(*self)),
        }
    }

    fn mount_workspace(&self, _: &WorkspaceRequest<'_>) -> Result<WorkspaceConnection, LaunchError> {
        Err(refused("mount the workspace"))
    }

    fn run_criu(&self, _: &CriuRequest<'_>) -> Result<bool, LaunchError> {
        Err(refused("run CRIU"))
    }
}

impl Prepared for FakeBackend {
    fn network(&mut self) -> Result<OwnedFd, LaunchError> {
        Err(refused("make a network namespace"))
    }

    fn wait(&mut self) -> Result<(), LaunchError> {
        if self.fault == Fault::Wait { Err(refused("build the root")) } else { Ok(()) }
    }

    fn launch(self: Box<Self>, _: &Launch<'_>) -> Result<Launched, LaunchError> {
        match self.fault {
            Fault::DiesAtOnce => start("exit 1"),
            Fault::DiesWhenReady => start("printf 1; exit 1"),
            _ => Err(refused("clone the first process")),
        }
    }
}

fn refused(step: &str) -> LaunchError {
    LaunchError::Step { step: step.to_owned(), source: io::ErrorKind::PermissionDenied.into() }
}

/// Starts a shell as the first process. Its output is the ready pipe. It waits until it is ended.
fn start(script: &str) -> Result<Launched, LaunchError> {
    let failed = |source| LaunchError::Step { step: "start a shell".to_owned(), source };
    let mut child =
        Command::new("sh").args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
    let ready: OwnedFd =
        child.stdout.take().map(OwnedFd::from).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let pid = child.id();
    // A thread reaps it. The pidfd shows its end to all others.
    std::thread::spawn(move || child.wait());
    Ok(Launched { pid, pidfd, ready })
}
