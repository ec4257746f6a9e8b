//! The seam between those who drive sandboxes and the means by which a sandbox is isolated.
//!
//! `namespaces` is the only means today, through the spawner and its launchers. A second kernel or a virtual machine
//! would be others: the guest and everything above this trait stays the same.

use std::fmt;
use std::os::fd::OwnedFd;

use crate::launch::{Launch, LaunchError, Launched, Launcher, Preparation, WorkspaceConnection, WorkspaceRequest};

/// A means to isolate sandboxes.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Begins to make everything ready that does not depend on the sandbox's owner.
    fn prepare(&self, preparation: &Preparation<'_>) -> Result<Box<dyn Prepared>, LaunchError>;

    /// Mounts a part of the workspace in a sandbox that runs.
    fn mount_workspace(&self, request: &WorkspaceRequest<'_>) -> Result<WorkspaceConnection, LaunchError>;
}

/// A sandbox without a guest. What it holds goes when it is dropped.
pub trait Prepared: fmt::Debug + Send {
    /// Waits for the network namespace, where the preparation brought none.
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
