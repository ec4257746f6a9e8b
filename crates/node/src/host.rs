//! What all sandboxes of a state directory share on this host: cgroups, network, disk. Several processes may have it
//! open at once. The last one removes it, unless sandboxes are still running.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use isopod_disk::{Disk, DiskError, DiskOptions};
use isopod_isolation::cgroup::{CgroupError, Cgroups, Layout, LayoutError};
use isopod_network::{Network, NetworkConfig, NetworkError, NotATag};
use rustix::fs::{FlockOperation, flock};

use crate::recycle::{RecycledDirectories, RecycledNetwork, RecycledNetworks, SandboxNetwork, SlotReleaser};
use crate::slot::{Slot, SlotError};
use crate::state::{StateError, StateRoot};
use crate::workspace::WorkspaceServer;

/// The open shared resources.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) state: StateRoot,
    pub(crate) cgroups: Cgroups,
    pub(crate) network: Arc<Network>,
    pub(crate) slot_releaser: SlotReleaser,
    pub(crate) recycled_networks: RecycledNetworks,
    pub(crate) recycled_directories: RecycledDirectories,
    pub(crate) disk: Disk,
    /// The server of the workspace, if there is one. The node sets it once.
    pub(crate) workspace: OnceLock<Arc<dyn WorkspaceServer>>,
    /// Held shared by every process that has the host open.
    lock: File,
}

/// Why the host cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The state directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// No cgroups.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The cgroups could not be created.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The tag of the state directory is damaged.
    #[error(transparent)]
    Tag(#[from] NotATag),
    /// The network could not be set up.
    #[error("could not set up the network")]
    Network(#[source] Box<NetworkError>),
    /// A thread could not be started.
    #[error("could not start a thread")]
    Thread(#[source] std::io::Error),
    /// The directory for writable layers could not be set up.
    #[error("could not set up the disk")]
    Disk(#[source] Box<DiskError>),
}

impl Host {
    pub(crate) fn open(state: StateRoot, network: NetworkConfig, disk: &DiskOptions) -> Result<Self, HostError> {
        let lock = lock_shared(state.path())?;
        let cgroups = Cgroups::open(Layout::detect()?, state.tag())?;
        let disk = Disk::open(state.path(), disk).map_err(|error| HostError::Disk(Box::new(error)))?;
        let network = Network::open(network).map_err(|error| HostError::Network(Box::new(error)))?;
        let network = Arc::new(network);
        let slot_releaser = SlotReleaser::new(Arc::clone(&network)).map_err(HostError::Thread)?;
        Ok(Self {
            state,
            cgroups,
            network,
            slot_releaser,
            recycled_networks: RecycledNetworks::default(),
            recycled_directories: RecycledDirectories::default(),
            disk,
            workspace: OnceLock::new(),
            lock,
        })
    }

    /// A connected slot for an execution: a recycled one, or a new one.
    pub(crate) fn take_slot(&self, execution: &str) -> Result<(Slot, Option<SandboxNetwork>), SlotError> {
        let claim = self.claim(execution);
        while let Some(RecycledNetwork { slot, claim: old, network }) = self.recycled_networks.take() {
            match slot.reclaim(&old, &claim) {
                Ok(()) => return Ok((slot, Some(network))),
                // Another process removed our claim. The slot can no longer be trusted, so release it.
                Err(error) => {
                    tracing::warn!(slot = slot.0, %error, "lost the claim of a recycled slot");
                    self.slot_releaser.release(slot, old);
                }
            }
        }
        Ok((Slot::claim(&claim)?, None))
    }

    /// Takes back the slot of an execution that has no processes left.
    pub(crate) fn release_slot(&self, slot: Slot, execution: &str, network: Option<SandboxNetwork>) {
        let claim = self.claim(execution);
        let recycled = network.filter(|_| self.recycled_networks.has_room()).and_then(|mut network| {
            let is_as_new = network.counters.as_mut().is_some_and(|counters| self.network.is_as_new(counters));
            is_as_new.then(|| RecycledNetwork { slot, claim: claim.clone(), network })
        });
        let is_kept = recycled.is_some_and(|recycled| self.recycled_networks.put(recycled).is_ok());
        if !is_kept {
            self.slot_releaser.release(slot, claim);
        }
    }

    /// Slots that are claimed without a record, because this process recycles them or is about to release them.
    pub(crate) fn held_slots(&self) -> BTreeSet<Slot> {
        &self.recycled_networks.slots() | &self.slot_releaser.slots()
    }

    /// The text that claims a slot for an execution of this state directory.
    pub(crate) fn claim(&self, execution: &str) -> String {
        format!("{}/{execution}", self.state.tag())
    }

    /// Slots that sandboxes of this state directory hold, in any home.
    pub(crate) fn claimed_slots(&self) -> std::io::Result<Vec<(Slot, String)>> {
        claimed_slots(&self.state)
    }

    /// Closes the host. The last process removes what was set up, unless a sandbox still needs it.
    pub(crate) fn close(self) {
        let Self {
            state,
            cgroups,
            network,
            slot_releaser,
            recycled_networks,
            recycled_directories,
            disk,
            lock,
            workspace: _,
        } = self;
        drop(recycled_directories);
        while let Some(RecycledNetwork { slot, claim, .. }) = recycled_networks.take() {
            slot_releaser.release(slot, claim);
        }
        drop(slot_releaser);
        let is_last = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        let is_idle = claimed_slots(&state).is_ok_and(|claims| claims.is_empty());
        if !(is_last && is_idle) {
            return;
        }
        if let Some(Err(error)) = Arc::into_inner(network).map(Network::close) {
            tracing::warn!(error = &error as &dyn std::error::Error, "could not remove the network");
        }
        if let Err(error) = disk.close_if_unused() {
            tracing::warn!(error = &error as &dyn std::error::Error, "could not release the disk");
        }
        if let Err(error) = cgroups.remove() {
            tracing::warn!(error = &error as &dyn std::error::Error, "could not remove the cgroups");
        }
        state.forget_tag();
        drop(lock);
    }
}

fn claimed_slots(state: &StateRoot) -> std::io::Result<Vec<(Slot, String)>> {
    let prefix = format!("{}/", state.tag());
    let ours = |(slot, claim): (Slot, String)| Some((slot, claim.strip_prefix(&prefix)?.to_owned()));
    Ok(Slot::claims()?.into_iter().filter_map(ours).collect())
}

fn lock_shared(state: &Path) -> Result<File, StateError> {
    let path = state.join("host.lock");
    let open = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = open.map_err(StateError::on("open", &path))?;
    // Blocks while the last process cleans up.
    flock(&file, FlockOperation::LockShared).map_err(|error| StateError::on("lock", &path)(error.into()))?;
    Ok(file)
}
