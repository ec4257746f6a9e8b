//! The interface between the code that drives sandboxes and the mechanism that isolates them.
//!
//! `namespaces` is the only mechanism today, through the spawner and its launchers. A second kernel or a virtual
//! machine could be others: the guest and everything above this trait would stay the same.

use std::fmt;
use std::os::fd::OwnedFd;

use crate::launch::{
    CriuRequest, Launch, LaunchError, Launched, Launcher, Preparation, WorkspaceConnection, WorkspaceRequest,
};

/// A mechanism to isolate sandboxes.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Starts to prepare everything that does not depend on the sandbox's owner.
    fn prepare(&self, preparation: &Preparation<'_>) -> Result<Box<dyn Prepared>, LaunchError>;

    /// Mounts a part of the workspace in a running sandbox.
    fn mount_workspace(&self, request: &WorkspaceRequest<'_>) -> Result<WorkspaceConnection, LaunchError>;

    /// Runs CRIU in a sandbox. Returns false if it failed, for reasons that its log has.
    fn run_criu(&self, request: &CriuRequest<'_>) -> Result<bool, LaunchError>;
}

/// A sandbox without a guest. Dropping it releases what it holds.
pub trait Prepared: fmt::Debug + Send {
    /// Waits for the network namespace, if the preparation provided none.
    fn network(&mut self) -> Result<OwnedFd, LaunchError>;

    /// Waits until it is ready to be launched.
    fn wait(&mut self) -> Result<(), LaunchError>;

    /// Starts the guest.
    fn launch(self: Box<Self>, launch: &Launch<'_>) -> Result<Launched, LaunchError>;
}

impl Prepared for Launcher {
    fn network(&mut self) -> Result<OwnedFd, LaunchError> {
        Self::network(self)
    }

    fn wait(&mut self) -> Result<(), LaunchError> {
        Self::wait(self)
    }

    fn launch(self: Box<Self>, launch: &Launch<'_>) -> Result<Launched, LaunchError> {
        Self::launch(*self, launch)
    }
}
