//! Creates a sandbox that has no owner yet: first everything slow that is the same for all, then the first process.

mod area;
mod launch;
mod workspace;
mod zygote;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use isopod_checkpoint::{ForRestore, MemoryError, PackedMemory};
use isopod_disk::DiskError;
use isopod_isolation::backend::{Backend, Prepared as PreparedLaunch};
use isopod_isolation::cgroup::{CgroupError, SandboxCgroup, StatFiles};
use isopod_isolation::launch::{AdmissionError, LaunchError, Preparation, ProcOverrides, Role};
use isopod_network::{NetworkError, make_network_namespace};
use isopod_wire::{ExecutionId, KernelFeatures, Limits};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) use workspace::lost_mounts;

use crate::boot::boot_id;
use crate::disposal::{Remains, dispose};
use crate::guest_request::socket_in;
use crate::home::Home;
use crate::host::Host;
use crate::record::Record;
use crate::recycle::SandboxNetwork;
use crate::slot::{Slot, SlotError};
use crate::start_image::StartImage;
use crate::state::{StateError, make_private_directory};
use crate::template::Template;
use crate::workspace::WorkspaceError;
use crate::zygote::{Zygote, role};

/// The host name that programs in a sandbox see.
pub(crate) const HOST_NAME: &str = "isopod";
/// Why a sandbox could not be created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProvisionError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("could not write the sandbox's record")]
    Record(#[source] io::Error),
    #[error(transparent)]
    Slot(#[from] SlotError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error("could not create the writable layer")]
    Area(#[from] DiskError),
    #[error("could not fill the writable layer")]
    Fill(#[source] io::Error),
    #[error("could not create a network namespace")]
    Netns(#[source] io::Error),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("could not mount the workspace")]
    Workspace(#[from] WorkspaceError),
    #[error("could not create the guest's socket")]
    Socket(#[source] io::Error),
    #[error("the guest did not start")]
    Guest(#[source] io::Error),
    #[error(transparent)]
    Interpreter(#[from] AdmissionError),
    #[error("could not read the boot id of the host")]
    BootId(#[source] io::Error),
    #[error("could not restore the start image")]
    StartImage(#[source] MemoryError),
}

/// What is needed to create sandboxes.
#[derive(Debug)]
pub(crate) struct Provisioner {
    pub(crate) host: Arc<Host>,
    pub(crate) home: Arc<Home>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) guest: OwnedFd,
    /// Variables that every sandbox gets before its own.
    pub(crate) environment: BTreeMap<String, String>,
    /// The certificates that this host trusts, for images that have none of their own.
    pub(crate) certificates: Option<Vec<u8>>,
    /// Saved memory that takes less space.
    pub(crate) packed: Arc<PackedMemory>,
}

/// The path of the host's certificates in the sandbox of an image. It is never part of a layer.
const CERTIFICATES: &str = "etc/isopod/certificates.pem";

/// A sandbox with everything but the guest.
#[derive(Debug)]
pub(crate) struct PreparedSandbox {
    pub(crate) record: Record,
    template: Arc<Template>,
    /// The zygote that may enter it.
    zygote: Option<Arc<Zygote>>,
    /// What it starts from.
    pub(crate) image: Option<Arc<StartImage>>,
    pub(crate) directory: PathBuf,
    pub(crate) slot: Slot,
    cgroup: SandboxCgroup,
    network: SandboxNetwork,
    listener: UnixListener,
    stat_files: Option<StatFiles>,
    launcher: Box<dyn PreparedLaunch>,
}

/// What is being prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Sandbox(KernelFeatures),
    Zygote,
}

impl Purpose {
    fn features(self) -> KernelFeatures {
        match self {
            Self::Sandbox(features) => features,
            Self::Zygote => KernelFeatures::default(),
        }
    }
}

/// Where a network namespace comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetworkSource {
    /// Created here, or recycled from another sandbox that never used it.
    Host,
    /// The launcher creates it. The network namespace that a zygote enters must belong to the sandbox's own user
    /// namespace.
    Launcher,
    /// A zygote has no network.
    Nothing,
}

impl NetworkSource {
    fn of(purpose: Purpose, zygote: Option<&Arc<Zygote>>, is_restored: bool) -> Self {
        match (purpose, zygote) {
            (Purpose::Zygote, _) => Self::Nothing,
            (Purpose::Sandbox(_), Some(_)) => Self::Launcher,
            // Restoring connections takes rights over the network namespace.
            (Purpose::Sandbox(_), None) if is_restored => Self::Launcher,
            (Purpose::Sandbox(_), None) => Self::Host,
        }
    }
}

/// Where the writable layer of a sandbox comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerSource<'a> {
    /// It is empty.
    New,
    /// It belongs to an earlier execution until the new one has an owner.
    Of(&'a str),
    /// It has the content of another one.
    CopyOf(&'a str),
}

/// A sandbox to prepare.
#[derive(Clone, Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) template: &'a Arc<Template>,
    pub(crate) limits: &'a Limits,
    pub(crate) features: KernelFeatures,
    pub(crate) layer: LayerSource<'a>,
    /// If it is not the usual one.
    pub(crate) host_name: Option<String>,
    pub(crate) restored: Option<&'a ForRestore>,
    /// What it starts from. Then the two above come from there.
    pub(crate) image: Option<&'a Arc<StartImage>>,
}

impl<'a> Plan<'a> {
    /// An ordinary sandbox.
    pub(crate) fn new(template: &'a Arc<Template>, limits: &'a Limits) -> Self {
        Self {
            template,
            limits,
            features: KernelFeatures::default(),
            layer: LayerSource::New,
            host_name: None,
            restored: None,
            image: None,
        }
    }
}

/// A sandbox whose guest listens and that has no owner yet.
#[derive(Debug)]
pub(crate) struct ReadySandbox {
    pub(crate) record: Record,
    /// Protects its layers from being pruned.
    pub(crate) template: Arc<Template>,
    /// What it starts from.
    pub(crate) image: Option<Arc<StartImage>>,
    pub(crate) directory: PathBuf,
    pub(crate) slot: Slot,
    pub(crate) cgroup: SandboxCgroup,
    pub(crate) network: SandboxNetwork,
    pub(crate) pidfd: OwnedFd,
}

impl Provisioner {
    /// The variables of a sandbox. Values that are paths name files of the host's base. An image has the certificates
    /// elsewhere.
    pub(crate) fn environment_for(&self, on_host: bool) -> BTreeMap<String, String> {
        if on_host {
            return self.environment.clone();
        }
        let adapt = |(name, value): (&String, &String)| match (value.starts_with('/'), &self.certificates) {
            (true, Some(_)) if !name.ends_with("DIR") && !name.ends_with("CAPATH") => {
                Some((name.clone(), format!("/{CERTIFICATES}")))
            }
            (true, _) => None,
            (false, _) => Some((name.clone(), value.clone())),
        };
        self.environment.iter().filter_map(adapt).collect()
    }

    /// Prepares a sandbox. On an error, nothing is left.
    pub(crate) fn prepare(&self, execution: ExecutionId, plan: Plan<'_>) -> Result<PreparedSandbox, ProvisionError> {
        let Plan { template, limits, features, host_name, image, .. } = plan;
        let (layer, restored) = match image {
            Some(image) => (LayerSource::CopyOf(&image.area), Some(&image.restored)),
            None => (plan.layer, plan.restored),
        };
        let mut record = Record::new(execution, &template.name, template.generation(), *limits);
        let is_own = !matches!(layer, LayerSource::Of(_));
        record.area = is_own.then(|| record.execution.as_str().to_owned());
        record.host_name = host_name;
        let remains = Remains::of(&record, &self.home);
        let prepared = self.prepare_steps(record, template, limits, layer, Purpose::Sandbox(features), restored);
        let prepared = prepared.inspect_err(|_| dispose(&self.host, &remains))?;
        Ok(PreparedSandbox { image: image.cloned(), ..prepared })
    }

    fn prepare_steps(
        &self,
        mut record: Record,
        template: &Arc<Template>,
        limits: &Limits,
        layer: LayerSource<'_>,
        purpose: Purpose,
        restored: Option<&ForRestore>,
    ) -> Result<PreparedSandbox, ProvisionError> {
        let name = record.execution.as_str().to_owned();
        let directory = self.home.execution_directory(&record.execution);
        if !self.host.recycled_directories.take(&directory) {
            make_private_directory(&directory)?;
        }
        // A writable layer that comes back is its owner's work: nothing that has rights for a moment may read from it. And
        // who enters has the usual filter, whatever the sandbox's own is.
        let is_usual = purpose == Purpose::Sandbox(KernelFeatures::default()) && layer == LayerSource::New;
        let zygote = template.zygote().filter(|_| is_usual).cloned();
        record.owner = zygote.as_ref().map(|zygote| zygote.slot());
        record.save(&directory).map_err(ProvisionError::Record)?;
        let source = NetworkSource::of(purpose, zygote.as_ref(), restored.is_some());
        let (slot, recycled) = match source {
            NetworkSource::Host => self.host.take_slot(&name)?,
            NetworkSource::Launcher | NetworkSource::Nothing => (Slot::claim(&self.host.claim(&name))?, None),
        };
        // Saved once the sandbox has an owner. Until then, the claim tells who uses the slot.
        record.slot = Some(slot);

        let cgroup = self.host.cgroups.create(&name)?;
        let upper = self.ensure_area(&name, layer, template.is_on_host())?;
        if purpose == Purpose::Zygote {
            self.host.disk.set_limit(&name, limits.disk)?;
        }
        let role = match purpose {
            Purpose::Sandbox(_) => {
                Role::Sandbox { owner: zygote.as_ref().map_or(slot.first_id(), |zygote| zygote.owner()) }
            }
            Purpose::Zygote => role(slot.first_id()),
        };
        let network = match (source, recycled) {
            (_, Some(network)) => Some(network),
            (NetworkSource::Host, None) => Some(self.make_network(slot)?),
            (NetworkSource::Launcher, None) => None,
            (NetworkSource::Nothing, None) => {
                Some(SandboxNetwork { netns: make_network_namespace().map_err(ProvisionError::Netns)?, counters: None })
            }
        };
        let templates = self.host.state.templates();
        let saved_clocks = restored.and_then(|restored| restored.clocks.as_ref());
        let clocks =
            saved_clocks.map(|saved| Ok(saved.offsets(&boot_id()?))).transpose().map_err(ProvisionError::BootId)?;
        let mut launcher = self.backend.prepare(&Preparation {
            role,
            first_id: slot.first_id(),
            netns: network.as_ref().map(|network| network.netns.as_fd()),
            cgroup_entrances: &cgroup.entrances()?,
            cgroup_views: &self.host.cgroups.views(),
            layers: template.root_with(&templates, &upper),
            guest: self.guest.as_fd(),
            tmpfs_bytes: tmpfs_bytes(limits),
            host_name: record.host_name.as_deref().unwrap_or(HOST_NAME),
            proc_overrides: &ProcOverrides::for_limits(limits),
            features: purpose.features(),
            boot_id: restored.and_then(|restored| restored.boot_id.as_deref()),
            last_pid: restored.and_then(|restored| restored.last_pid),
            clocks,
        })?;
        let listener = listen_in(&directory).map_err(ProvisionError::Socket)?;
        let stat_files = cgroup.stat_files()?;
        let network = match network {
            Some(network) => network,
            None => {
                let netns = launcher.network()?;
                self.host.network.plumb(slot.on_network(), netns.as_fd())?;
                // It belongs to this sandbox and cannot be recycled.
                SandboxNetwork { netns, counters: None }
            }
        };
        launcher.wait()?;
        // Not earlier, so that a small CPU limit does not slow down the preparation.
        cgroup.set_limits(limits)?;
        let template = Arc::clone(template);
        Ok(PreparedSandbox {
            record,
            template,
            zygote,
            image: None,
            directory,
            slot,
            cgroup,
            network,
            listener,
            stat_files,
            launcher,
        })
    }

    fn make_network(&self, slot: Slot) -> Result<SandboxNetwork, ProvisionError> {
        let netns = make_network_namespace().map_err(ProvisionError::Netns)?;
        let plumbed = self.host.network.plumb(slot.on_network(), netns.as_fd())?;
        Ok(SandboxNetwork { netns, counters: Some(plumbed.counters) })
    }

    /// Removes a prepared sandbox that is not needed.
    pub(crate) fn discard_prepared(&self, prepared: PreparedSandbox) {
        let remains = Remains::of(&prepared.record, &self.home);
        drop(prepared);
        dispose(&self.host, &remains);
    }

    /// Removes a ready sandbox that is not needed.
    pub(crate) fn discard_ready(&self, ready: ReadySandbox) {
        let remains = Remains::of(&ready.record, &self.home);
        drop(ready);
        dispose(&self.host, &remains);
    }
}

impl ReadySandbox {
    /// Whether its first process still runs.
    pub(crate) fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
    }
}

/// The path of the state directory may be too long for a socket address, so bind through an open directory.
fn listen_in(directory: &Path) -> io::Result<UnixListener> {
    let open = File::open(directory)?;
    UnixListener::bind(socket_in(&open))
}

/// Linux's default: a full tmpfs leaves half of the memory.
fn tmpfs_bytes(limits: &Limits) -> u64 {
    limits.memory.0 / 2
}
