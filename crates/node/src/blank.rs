//! Making a sandbox that has no owner yet: first everything that is slow and the same for all, then the first process.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use isopod_isolation::backend::{Backend, Prepared as PreparedLaunch};
use isopod_isolation::cgroup::{CgroupError, SandboxCgroup, StatFiles};
use isopod_isolation::launch::{
    Figures, Interpreter, Launch, LaunchError, Launched, Preparation, Role, read_failure, zygote_pair,
};
use isopod_wire::node::WorkspaceMount;
use isopod_wire::{ExecutionId, Limits};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use crate::boot::ProcessIdentity;
use crate::disk::DiskError;
use crate::disposal::{Remains, dispose};
use crate::home::Home;
use crate::host::Host;
use crate::netns;
use crate::network::NetworkError;
use crate::record::Record;
use crate::slot::{Slot, SlotError};
use crate::spare::SandboxNetwork;
use crate::state::{StateError, make_private_directory};
use crate::template::Template;
use crate::workspace::{self, WorkspaceError};
use crate::zygote;

/// The name that programs inside see as the host's.
const HOST_NAME: &str = "isopod";
/// How long the guest may take to listen.
const GUEST_DEADLINE: Duration = Duration::from_secs(15);
/// Where the guest listens, inside the execution's directory.
pub(crate) const GUEST_SOCKET: &str = "guest.sock";

/// Why a sandbox could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MakeError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("could not write the sandbox's record")]
    Record(#[source] io::Error),
    #[error(transparent)]
    Slot(#[from] SlotError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error("could not make the writable layer")]
    Area(#[from] DiskError),
    #[error("could not fill the writable layer")]
    Fill(#[source] io::Error),
    #[error("could not make a network namespace")]
    Netns(#[source] io::Error),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("could not mount the workspace")]
    Workspace(#[from] WorkspaceError),
    #[error("could not make the guest's socket")]
    Socket(#[source] io::Error),
    #[error("the guest did not come up")]
    Guest(#[source] io::Error),
}

/// What is needed to make sandboxes.
#[derive(Debug)]
pub(crate) struct Workshop {
    pub(crate) host: Arc<Host>,
    pub(crate) home: Arc<Home>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) guest: OwnedFd,
    /// Variables that every sandbox gets before its own.
    pub(crate) environment: BTreeMap<String, String>,
    /// Whom this host trusts, for images that do not know.
    pub(crate) certificates: Option<Vec<u8>>,
}

/// Where an image's sandbox finds the certificates of the host. Never part of a layer.
const CERTIFICATES: &str = "etc/isopod/certificates.pem";

/// Everything but the guest.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) record: Record,
    template: Arc<Template>,
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
    Sandbox,
    Zygote,
}

/// Where a network namespace comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetworkSource {
    /// Made here, or left unused by another sandbox.
    Host,
    /// What a zygote enters must belong to the sandbox's own user namespace, which the launcher makes.
    Launcher,
    /// A zygote talks to nobody.
    Nothing,
}

impl NetworkSource {
    fn of(purpose: Purpose, template: &Template) -> Self {
        match purpose {
            Purpose::Zygote => Self::Nothing,
            Purpose::Sandbox if template.zygote().is_some() => Self::Launcher,
            Purpose::Sandbox => Self::Host,
        }
    }
}

/// A sandbox whose guest listens and that nobody has been given.
#[derive(Debug)]
pub(crate) struct Blank {
    pub(crate) record: Record,
    /// Keeps its layers from being pruned.
    pub(crate) template: Arc<Template>,
    pub(crate) directory: PathBuf,
    pub(crate) slot: Slot,
    pub(crate) cgroup: SandboxCgroup,
    pub(crate) network: SandboxNetwork,
    pub(crate) pidfd: OwnedFd,
}

impl Workshop {
    /// The variables of a sandbox: files that they name are those of the host's base, and an image has its own place.
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

    /// Prepares a sandbox on a new writable layer, or on one that exists. Nothing is left on an error.
    pub(crate) fn prepare(
        &self,
        execution: ExecutionId,
        template: &Arc<Template>,
        limits: &Limits,
        area: Option<&str>,
    ) -> Result<Prepared, MakeError> {
        let mut record = Record::new(execution, &template.name, template.generation(), *limits);
        record.area = area.is_none().then(|| record.execution.as_str().to_owned());
        let remains = Remains::of(&record, &self.home);
        let prepared = self.prepare_steps(record, template, limits, area, Purpose::Sandbox);
        prepared.inspect_err(|_| dispose(&self.host, &remains))
    }

    /// Prepares a zygote, which has all that a sandbox has but a network.
    pub(crate) fn prepare_zygote(
        &self,
        execution: ExecutionId,
        template: &Arc<Template>,
        limits: &Limits,
    ) -> Result<Prepared, MakeError> {
        let mut record = Record::new(execution, &template.name, template.generation(), *limits);
        record.area = Some(record.execution.as_str().to_owned());
        let remains = Remains::of(&record, &self.home);
        let prepared = self.prepare_steps(record, template, limits, None, Purpose::Zygote);
        prepared.inspect_err(|_| dispose(&self.host, &remains))
    }

    fn prepare_steps(
        &self,
        mut record: Record,
        template: &Arc<Template>,
        limits: &Limits,
        area: Option<&str>,
        purpose: Purpose,
    ) -> Result<Prepared, MakeError> {
        let name = record.execution.as_str().to_owned();
        let directory = self.home.box_directory(&record.execution);
        if !self.host.boxes.take(&directory) {
            make_private_directory(&directory)?;
        }
        record.save(&directory).map_err(MakeError::Record)?;
        let source = NetworkSource::of(purpose, template);
        let (slot, spare) = match source {
            NetworkSource::Host => self.host.take_slot(&name)?,
            NetworkSource::Launcher | NetworkSource::Nothing => (Slot::claim(&self.host.claim(&name))?, None),
        };
        // Saved when it has an owner. Until then a claim tells whose the slot is.
        record.slot = Some(slot);

        let cgroup = self.host.cgroups.create(&name)?;
        let upper = self.ensure_area(&name, area, template.is_on_host())?;
        let role = match purpose {
            Purpose::Sandbox => {
                Role::Sandbox { owner: template.zygote().map_or(slot.first_id(), |zygote| zygote.owner()) }
            }
            Purpose::Zygote => zygote::role(slot.first_id()),
        };
        let network = match (source, spare) {
            (_, Some(network)) => Some(network),
            (NetworkSource::Host, None) => Some(self.make_network(slot)?),
            (NetworkSource::Launcher, None) => None,
            (NetworkSource::Nothing, None) => {
                Some(SandboxNetwork { netns: netns::make().map_err(MakeError::Netns)?, witness: None })
            }
        };
        let templates = self.host.state.templates();
        let mut launcher = self.backend.prepare(&Preparation {
            role,
            first_id: slot.first_id(),
            netns: network.as_ref().map(|network| network.netns.as_fd()),
            cgroup_entrances: &cgroup.entrances()?,
            layers: template.root_with(&templates, &upper),
            guest: self.guest.as_fd(),
            tmpfs_bytes: tmpfs_bytes(limits),
            host_name: HOST_NAME,
            figures: &Figures::for_limits(limits),
        })?;
        let listener = listen_in(&directory).map_err(MakeError::Socket)?;
        let stat_files = cgroup.stat_files()?;
        let network = match network {
            Some(network) => network,
            None => {
                let netns = launcher.network()?;
                self.host.network.plumb(crate::network::Slot(slot.0), netns.as_fd())?;
                // It belongs to this sandbox and can go to no other.
                SandboxNetwork { netns, witness: None }
            }
        };
        launcher.wait()?;
        // Not earlier: a small share of the CPU is for the sandbox, not for making it.
        cgroup.set_limits(limits)?;
        let template = Arc::clone(template);
        Ok(Prepared { record, template, directory, slot, cgroup, network, listener, stat_files, launcher })
    }

    fn make_network(&self, slot: Slot) -> Result<SandboxNetwork, MakeError> {
        let netns = netns::make().map_err(MakeError::Netns)?;
        let plumbed = self.host.network.plumb(crate::network::Slot(slot.0), netns.as_fd())?;
        Ok(SandboxNetwork { netns, witness: Some(plumbed.witness) })
    }

    /// The writable layer: a new one with the directories that overlays need, or the one named.
    fn ensure_area(&self, name: &str, existing: Option<&str>, on_host: bool) -> Result<PathBuf, MakeError> {
        let path = match existing {
            Some(existing) => self.host.disk.area(existing)?.path().to_owned(),
            None => self.host.disk.create_area(name, None)?.path().to_owned(),
        };
        self.fill_area(&path, on_host).map_err(MakeError::Fill)?;
        Ok(path)
    }

    /// A layer that comes back may hold anything, also links to places of the host: nothing in it is followed.
    fn fill_area(&self, area: &Path, on_host: bool) -> io::Result<()> {
        for part in ["root", "usr"] {
            make_directory(CWD, &area.join(part))?;
            make_work_directory(&area.join(format!("{part}.work")))?;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = openat(CWD, area.join("root"), flags, Mode::empty())?;
        make_directory(&root, Path::new("etc"))?;
        let etc = match openat(&root, "etc", flags, Mode::empty()) {
            // Its owner removed it or put something else there.
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            other => other?,
        };
        let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        match openat(&etc, "resolv.conf", new, Mode::from_raw_mode(0o644)) {
            Err(Errno::EXIST) => {}
            other => File::from(other?).write_all(self.host.network.resolvers().resolv_conf_text().as_bytes())?,
        }
        match &self.certificates {
            Some(certificates) if !on_host => write_certificates(&etc, certificates),
            _ => Ok(()),
        }
    }

    /// Starts the first process and waits until the guest listens. Nothing is left on an error.
    pub(crate) fn launch(&self, prepared: Prepared, limits: &Limits) -> Result<Blank, MakeError> {
        let remains = Remains::of(&prepared.record, &self.home);
        self.launch_steps(prepared, limits).inspect_err(|_| dispose(&self.host, &remains))
    }

    fn launch_steps(&self, prepared: Prepared, limits: &Limits) -> Result<Blank, MakeError> {
        let Prepared { mut record, template, directory, slot, cgroup, network, listener, stat_files, launcher } =
            prepared;
        let changed = (record.limits != *limits).then(|| Figures::for_limits(limits));
        if changed.is_some() {
            cgroup.set_limits(limits)?;
            record.limits = *limits;
        }
        let mothers = template.zygote().map(|zygote| Ok((zygote, zygote_pair()?))).transpose();
        let mothers = mothers.map_err(MakeError::Socket)?;
        let mother = mothers.as_ref().map(|(_, (guest_end, _))| guest_end.as_fd());
        let launched = launcher.launch(&Launch {
            listener: listener.as_fd(),
            interpreter: template.interpreter().map(|_| Interpreter { mother }),
            stat_files: stat_files.as_ref(),
            figures: changed.as_ref(),
            cpus: cpus_for(slot, limits),
            tmpfs_bytes: changed.is_some().then(|| tmpfs_bytes(limits)),
        })?;
        // On disk once it has an owner: what has none is removed by its cgroups, not adopted.
        record.init = Some(ProcessIdentity::of(launched.pid).map_err(MakeError::Guest)?);
        if let Some((zygote, (_, mother_end))) = &mothers
            && let Err(error) = zygote.enter(launched.pid, &cgroup, mother_end)
        {
            // The guest sees that nobody comes and starts its own.
            tracing::warn!(%error, "the zygote does not answer");
        }
        drop(mothers);
        wait_until_ready(&launched.ready)?;
        Ok(Blank { record, template, directory, slot, cgroup, network, pidfd: launched.pidfd })
    }

    /// Starts a zygote's program, which serves the given socket.
    pub(crate) fn launch_zygote(&self, prepared: Prepared, socket: BorrowedFd<'_>) -> Result<Launched, MakeError> {
        let launch = Launch {
            listener: socket,
            interpreter: None,
            stat_files: None,
            figures: None,
            cpus: None,
            tmpfs_bytes: None,
        };
        let launched = prepared.launcher.launch(&launch)?;
        // Its end is closed by the program's start. Anything written there is a failure.
        let mut text = [0; 512];
        match rustix::io::read(&launched.ready, &mut text).map_err(|error| MakeError::Guest(error.into()))? {
            0 => Ok(launched),
            length => Err(read_failure(&text[..length]).into()),
        }
    }

    /// Shows an owner's parts of the workspace in a sandbox whose guest runs.
    pub(crate) fn mount_workspace(
        &self,
        record: &Record,
        mounts: &[WorkspaceMount],
        replace: bool,
    ) -> Result<(), WorkspaceError> {
        let Some(init) = &record.init else { return Err(WorkspaceError::None) };
        let server = self.host.workspace.get().map(Arc::as_ref);
        workspace::mount_all(&*self.backend, server, &record.execution, init.pid, mounts, replace)
    }

    /// Mounts anew what nobody serves any more, as after the death of the one who did.
    pub(crate) fn restore_workspace(&self, record: &Record) {
        let Some(spec) = record.spec.as_ref().filter(|spec| !spec.mounts.is_empty()) else { return };
        if self.host.workspace.get().is_none_or(|server| server.serves(record.execution.as_str())) {
            return;
        }
        tracing::info!(execution = %record.execution, "nobody serves its workspace, mounting it anew");
        if let Err(error) = self.mount_workspace(record, &spec.mounts, true) {
            tracing::warn!(execution = %record.execution, error = &error as &dyn std::error::Error, "its workspace stays away");
        }
    }

    /// Removes a prepared sandbox that is not needed.
    pub(crate) fn discard_prepared(&self, prepared: Prepared) {
        let remains = Remains::of(&prepared.record, &self.home);
        drop(prepared);
        dispose(&self.host, &remains);
    }

    /// Removes a blank that is not needed.
    pub(crate) fn discard_blank(&self, blank: Blank) {
        let remains = Remains::of(&blank.record, &self.home);
        drop(blank);
        dispose(&self.host, &remains);
    }
}

impl Blank {
    /// Whether its first process still runs.
    pub(crate) fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
    }
}

/// Into a layer that may come back with anything in it: no link is followed, and what is there stays.
fn write_certificates(etc: &OwnedFd, certificates: &[u8]) -> io::Result<()> {
    make_directory(etc, Path::new("isopod"))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match openat(etc, "isopod", flags, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        other => other?,
    };
    let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    match openat(&directory, "certificates.pem", new, Mode::from_raw_mode(0o644)) {
        Err(Errno::EXIST) => Ok(()),
        other => File::from(other?).write_all(certificates),
    }
}

/// One that is there, or something in its place, is left alone.
fn make_directory(at: impl AsFd, path: &Path) -> io::Result<()> {
    match mkdirat(at, path, Mode::from_raw_mode(0o755)) {
        Err(Errno::EXIST) => Ok(()),
        other => Ok(other?),
    }
}

/// Where the overlay keeps what is under way, always empty: a volatile overlay leaves a mark in it that stops the next
/// one. What the mark warns of cannot be, because a layer is synced before it is kept for another life.
fn make_work_directory(path: &Path) -> io::Result<()> {
    match mkdirat(CWD, path, Mode::from_raw_mode(0o755)) {
        Err(Errno::EXIST) => {
            std::fs::remove_dir_all(path)?;
            Ok(mkdirat(CWD, path, Mode::from_raw_mode(0o755))?)
        }
        other => Ok(other?),
    }
}

/// A path below a state directory may be longer than a socket's address: go through an open directory.
fn listen_in(directory: &Path) -> io::Result<UnixListener> {
    let open = File::open(directory)?;
    UnixListener::bind(format!("/proc/self/fd/{}/{GUEST_SOCKET}", open.as_raw_fd()))
}

/// As on any Linux: a full tmpfs leaves half of the memory to clean up with.
fn tmpfs_bytes(limits: &Limits) -> u64 {
    limits.memory.0 / 2
}

/// Which CPUs a sandbox with fewer than the host's is placed on. Neighbouring slots are spread over all of them.
fn cpus_for(slot: Slot, limits: &Limits) -> Option<Vec<u32>> {
    let all = u32::try_from(std::thread::available_parallelism().map_or(1, std::num::NonZero::get)).unwrap_or(1);
    let wanted = limits.whole_cpus();
    (wanted < all).then(|| (0..wanted).map(|index| (slot.0 * wanted + index) % all).collect())
}

fn wait_until_ready(ready: &OwnedFd) -> Result<(), MakeError> {
    let deadline = Timespec { tv_sec: GUEST_DEADLINE.as_secs().cast_signed(), tv_nsec: 0 };
    let mut fds = [PollFd::new(ready, PollFlags::IN)];
    if poll(&mut fds, Some(&deadline)).map_err(|error| MakeError::Guest(error.into()))? == 0 {
        return Err(MakeError::Guest(io::ErrorKind::TimedOut.into()));
    }
    let mut text = [0; 512];
    match rustix::io::read(ready, &mut text).map_err(|error| MakeError::Guest(error.into()))? {
        1 if text[0] == b'1' => Ok(()),
        length => Err(read_failure(&text[..length]).into()),
    }
}
