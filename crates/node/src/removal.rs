//! Removing a whole state directory.

use std::fs;

use crate::base::{list_generations, remove_generation};
use crate::disk::DiskOptions;
use crate::disposal::dispose;
use crate::home::{Home, HomeKind};
use crate::host::{Host, HostError};
use crate::network::NetworkConfig;
use crate::node::OpenError;
use crate::state::StateRoot;
use crate::sweep::{Sweeper, remains_of, sweep};

/// Ends all sandboxes, takes down what was set up on the host, and removes the state directory.
///
/// # Errors
/// When a server or a command still uses it; nothing has been touched then.
///
/// `let_go` is called when no sandbox is left and before files are removed: whoever has something mounted in there takes it
/// away, lest the files behind the mount be removed as well.
pub fn remove_everything(state: StateRoot, let_go: impl FnOnce() -> std::io::Result<()>) -> Result<(), OpenError> {
    let server = Home::open(&state, HomeKind::Server)?;
    let network = NetworkConfig::new(state.tag().parse().map_err(HostError::from)?);
    let host = Host::open(state.clone(), network, &DiskOptions::default())?;
    for execution in server.executions().map_err(OpenError::Sweep)? {
        dispose(&host, &remains_of(&server, &execution));
    }
    // We have the server's home, so we are the server.
    sweep(&host, Sweeper::Server).map_err(OpenError::Sweep)?;
    for generation in list_generations(&state.layers())? {
        remove_generation(&state.layers(), &generation.id)?;
    }
    host.close();
    drop(server);
    let_go().map_err(OpenError::Sweep)?;
    fs::remove_dir_all(state.path()).map_err(OpenError::Sweep)
}
