//! Removes a whole state directory.

use std::fs;

use isopod_disk::{Disk, DiskOptions};
use isopod_network::NetworkConfig;

use crate::base::{list_generations, remove_generation};
use crate::disposal::dispose;
use crate::home::{Home, HomeError, HomeKind};
use crate::host::{Host, HostError};
use crate::node::OpenError;
use crate::state::{StateRoot, remove_template_user};
use crate::sweep::{Sweeper, remains_of, sweep};

/// Ends all sandboxes, removes what was set up on the host, and removes the state directory.
///
/// Calls `unmount` when no sandbox is left and before files are removed. It must unmount whatever is mounted in the
/// directory, so that the files behind the mount are not removed.
///
/// # Errors If a server or a command still uses it. Nothing is changed then.
pub fn remove_everything(state: StateRoot, unmount: impl FnOnce() -> std::io::Result<()>) -> Result<(), OpenError> {
    let server = Home::open(&state, HomeKind::Server)?;
    if let Some(path) = Home::of_living_command(&state).map_err(OpenError::Sweep)? {
        return Err(HomeError::InUse { path }.into());
    }
    let network = NetworkConfig::new(state.tag().parse().map_err(HostError::from)?);
    let host = open_host(&state, network)?;
    for execution in server.executions().map_err(OpenError::Sweep)? {
        dispose(&host, &remains_of(&server, &execution));
    }
    // We hold the server's home, so we act as the server.
    sweep(&host, Sweeper::Server).map_err(OpenError::Sweep)?;
    for generation in list_generations(&state.layers())? {
        remove_generation(&state.layers(), &generation.id)?;
    }
    host.close();
    // A broken disk keeps its files and its mount.
    Disk::abandon(state.path()).map_err(|error| HostError::Disk(Box::new(error)))?;
    drop(server);
    unmount().map_err(OpenError::Sweep)?;
    remove_template_user(state.path(), &state.templates());
    fs::remove_dir_all(state.path()).map_err(OpenError::Sweep)
}

/// Replaces a broken disk with a new one, because everything on it is removed anyway.
fn open_host(state: &StateRoot, network: NetworkConfig) -> Result<Host, OpenError> {
    match Host::open(state.clone(), network.clone(), &DiskOptions::default()) {
        Err(HostError::Disk(error)) => {
            tracing::warn!(error = &*error as &dyn std::error::Error, "cannot open the disk of sandboxes; removing it");
            Disk::abandon(state.path()).map_err(|error| HostError::Disk(Box::new(error)))?;
            Ok(Host::open(state.clone(), network, &DiskOptions::default())?)
        }
        other => Ok(other?),
    }
}
