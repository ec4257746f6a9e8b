//! Starts sandboxes.
//!
//! Three processes are between a server, which has many threads and may die at any time, and a sandbox:
//!
//! ```text
//! server ── asks ──▶ spawner (one thread, outlives the server, reaps)
//!                       └─ forks ──▶ launcher (one per sandbox: joins cgroups and netns, builds the root, exits)
//!                                        └─ clones ──▶ init (enters the root, drops rights, waits, becomes the guest)
//! ```
//!
//! Everything slow happens in advance: a move between cgroups waits for an RCU grace period, 15 ms here. The launcher
//! exits after it has cloned, and the spawner inherits the sandbox. A launch is one message and one exec.

mod admission;
mod boot_clock;
mod channel;
mod criu;
mod enter;
mod init;
mod launcher;
mod message;
mod proc_overrides;
mod restored;
mod root;
mod spawner;
mod step;
mod user_namespace;
mod workspace;
mod zygote;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

pub use admission::{Admission, AdmissionError, Expected, socket_number};
pub use boot_clock::{ClockOffsets, has_time_namespaces};
use channel::Channel;
pub use criu::{CriuRequest, CriuTask, FIRST_INHERITED_FD, IMAGES_FD, MAX_GUEST_FDS, RunningCriu, WORK_FD};
pub use enter::{Enter, ZygoteMessage, ZygoteSocket, namespaces_of, zygote_pair};
use isopod_wire::KernelFeatures;
use message::{InterpreterOrder, LaunchOrder, PrepareOrder, Progress, RoleOrder, SpawnerReply, SpawnerRequest};
pub use proc_overrides::ProcOverrides;
pub use restored::{RestoredRights, SandboxFilters};
pub use root::takes_many_layers;
use serde::{Deserialize, Serialize};
pub use spawner::{SpawnerOptions, run_spawner};
use workspace::WorkspaceOrder;
pub use workspace::{MountingWorkspace, WorkspaceConnection, WorkspaceRequest};

use crate::cgroup::CgroupView;
use crate::sys::mount::clone_tree;

/// Whether this host makes processes readable by others after they have changed their rights (`fs.suid_dumpable` is 1).
/// Then the trusted processes that create a sandbox would be open to the owner of its user namespace.
pub fn exposes_privileged_processes() -> bool {
    std::fs::read_to_string("/proc/sys/fs/suid_dumpable").is_ok_and(|setting| makes_dumpable(&setting))
}

/// With 0, no process that changed rights is dumpable. With 2, only for the host's root.
fn makes_dumpable(suid_dumpable: &str) -> bool {
    suid_dumpable.trim() == "1"
}

/// How long a launcher may take to build a root or to clone.
const LAUNCHER_DEADLINE: Duration = Duration::from_secs(20);

/// Why a sandbox could not be prepared or launched.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The spawner or the launcher is gone or does not answer.
    #[error("could not communicate with the {peer}")]
    Channel {
        peer: &'static str,
        #[source]
        source: io::Error,
    },
    /// A step failed in the launcher or in the sandbox's first process.
    #[error("could not {step}")]
    Step {
        step: String,
        #[source]
        source: io::Error,
    },
    /// A directory of the root file system cannot be used.
    #[error("could not open layer {path}")]
    Layer {
        path: String,
        #[source]
        source: io::Error,
    },
}

impl LaunchError {
    fn channel(peer: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Channel { peer, source }
    }
}

/// The directories of a root file system. Ids on disk are those seen inside.
#[derive(Clone, Debug)]
pub struct RootLayers<'a> {
    /// Layers of `/`, topmost first.
    pub root: Vec<&'a Path>,
    /// Layers of `/usr` if that is a separate overlay, topmost first. The last may be the host's `/usr`.
    pub usr: Vec<&'a Path>,
    /// Layers on top of those.
    pub kept: Option<KeptLayers<'a>>,
    /// An empty directory for what the sandbox writes.
    pub upper: &'a Path,
    /// How it is assembled.
    pub style: RootStyle,
}

/// Layers that are directories of one tree. They need only one mount, however many there are.
#[derive(Clone, Debug)]
pub struct KeptLayers<'a> {
    /// The root of the tree.
    pub directory: &'a Path,
    /// Layers of `/`, topmost first, as paths below the tree.
    pub root: Vec<String>,
    /// Layers of `/usr`, if that is a separate overlay.
    pub usr: Vec<String>,
}

/// How a root is assembled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootStyle {
    /// Whether `/tmp` and `/run` are directories of the root, as in a container, instead of memory.
    pub scratch_on_disk: bool,
    /// Whether moving a directory of a layer is refused with `EXDEV` instead of recorded as a redirect, so that the
    /// writable layer can be split into several layers. Redirects of lower layers are followed.
    pub no_redirects: bool,
}

/// What to create from a root, its namespaces and its cgroups.
#[derive(Clone, Debug)]
pub enum Role {
    /// A sandbox with its own user namespace.
    Sandbox {
        /// The host id that may enter the user namespace: the first id of the sandbox's range, or the user of the
        /// zygote that its interpreter comes from.
        owner: u32,
    },
    /// A process outside of all sandboxes, without any rights, that forks itself into those that its user owns.
    Zygote(ZygoteProgram),
}

/// The program of a zygote. Its socket is descriptor 3.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ZygoteProgram {
    /// The host id that it runs as.
    pub id: u32,
    /// A path in its root, and the arguments including the program's name.
    pub program: String,
    pub arguments: Vec<String>,
    /// `NAME=value`, and nothing else.
    pub environment: Vec<String>,
}

/// What a launcher needs before the user of the sandbox is known.
#[derive(Debug)]
pub struct Preparation<'a> {
    /// Sandbox or zygote.
    pub role: Role,
    /// The first host id of the sandbox's range of 65,536.
    pub first_id: u32,
    /// The network namespace, created and configured. Without it, the launcher creates one that belongs to the
    /// sandbox's user namespace, as a zygote needs it to enter: see [`Launcher::network`].
    pub netns: Option<BorrowedFd<'a>>,
    /// `cgroup.procs` of each group to join.
    pub cgroup_entrances: &'a [File],
    /// The hierarchies of these cgroups that the sandbox sees.
    pub cgroup_views: &'a [CgroupView],
    /// The root file system.
    pub layers: RootLayers<'a>,
    /// The guest's program.
    pub guest: BorrowedFd<'a>,
    /// The limit of `/tmp`, `/run` and `/dev/shm` together. It also limits the number of their files.
    pub tmpfs_bytes: u64,
    /// The host name inside.
    pub host_name: &'a str,
    /// What `/proc` and `/sys` show about CPUs and memory.
    pub proc_overrides: &'a ProcOverrides,
    /// What of the kernel the sandbox has besides.
    pub features: KernelFeatures,
    /// What the sandbox shows as its boot id, if not a new one.
    pub boot_id: Option<&'a str>,
    /// Pids of the sandbox begin after this one, so that those of processes that are restored later are free.
    pub last_pid: Option<u32>,
    /// The clocks of processes that are restored later.
    pub clocks: Option<ClockOffsets>,
}

/// What is passed to the sandbox's first process.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The listening socket of the guest, or the socket of a zygote.
    pub listener: BorrowedFd<'a>,
    /// Set if the guest should serve a code interpreter.
    pub interpreter: Option<Interpreter<'a>>,
    /// The usage files of the sandbox's cgroups, if the host has them.
    pub stat_files: Option<&'a crate::cgroup::StatFiles>,
    /// What `/proc` and `/sys` show about CPUs and memory, if it differs from the preparation.
    pub proc_overrides: Option<&'a ProcOverrides>,
    /// The CPUs that the sandbox may use. `None` for all.
    pub cpus: Option<Vec<u32>>,
    /// The limit of `/tmp`, `/run` and `/dev/shm`, if it differs from the preparation.
    pub tmpfs_bytes: Option<u64>,
}

/// How a guest gets its code interpreter.
#[derive(Clone, Copy, Debug)]
pub struct Interpreter<'a> {
    /// The guest's end of a connection to a warm one, which a zygote provides. Without it, the guest starts its own.
    pub forkserver: Option<BorrowedFd<'a>>,
}

/// A connection to the spawner of a state directory.
#[derive(Debug)]
pub struct Spawner {
    channel: Channel,
}

impl Spawner {
    /// Takes a socket connected to a spawner, and checks its version.
    pub fn connect(socket: OwnedFd) -> Result<Self, LaunchError> {
        let channel = Channel::with_timeout(socket, LAUNCHER_DEADLINE).map_err(LaunchError::channel("spawner"))?;
        let spawner = Self { channel };
        match spawner.ask(&SpawnerRequest::Hello { version: message::VERSION }, &[])? {
            SpawnerReply::Hello { version: message::VERSION } => Ok(spawner),
            _ => Err(LaunchError::channel("spawner")(io::ErrorKind::Unsupported.into())),
        }
    }

    /// Starts a launcher. Returns when it was started, not when it is prepared: see [`Launcher::wait`].
    pub fn prepare(&self, preparation: &Preparation<'_>) -> Result<Launcher, LaunchError> {
        let (channel, theirs) = open_channel().map_err(LaunchError::channel("launcher"))?;
        let root = clone_layers(&preparation.layers.root)?;
        let usr = clone_layers(&preparation.layers.usr)?;
        let upper = clone_layers(&[preparation.layers.upper])?;
        let kept = preparation.layers.kept.as_ref();
        let kept_tree = clone_layers(&kept.map(|kept| kept.directory).into_iter().collect::<Vec<_>>())?;
        let role = match &preparation.role {
            Role::Sandbox { owner } => RoleOrder::Sandbox { owner: *owner },
            Role::Zygote(program) => RoleOrder::Zygote(program.clone()),
        };
        let order = PrepareOrder {
            role,
            first_id: preparation.first_id,
            has_netns: preparation.netns.is_some(),
            tmpfs_bytes: preparation.tmpfs_bytes,
            kept_root: kept.map_or_else(Vec::new, |kept| kept.root.clone()),
            kept_usr: kept.map_or_else(Vec::new, |kept| kept.usr.clone()),
            style: preparation.layers.style,
            root_layers: root.len(),
            usr_layers: usr.len(),
            cgroups: preparation.cgroup_entrances.len(),
            cgroup_views: preparation.cgroup_views.to_vec(),
            host_name: preparation.host_name.to_owned(),
            proc_overrides: preparation.proc_overrides.clone(),
            features: preparation.features,
            last_pid: preparation.last_pid,
            clocks: preparation.clocks,
            boot_id: preparation.boot_id.map(str::to_owned),
        };
        let mut fds = vec![theirs.as_fd(), preparation.guest];
        fds.extend(preparation.netns);
        fds.extend(upper.iter().chain(&kept_tree).chain(&root).chain(&usr).map(AsFd::as_fd));
        fds.extend(preparation.cgroup_entrances.iter().map(AsFd::as_fd));
        match self.ask(&SpawnerRequest::Prepare(Box::new(order)), &fds)? {
            SpawnerReply::Started { .. } => Ok(Launcher { channel, init: None, is_waiting: false }),
            SpawnerReply::Failed(failure) => Err(failure.into()),
            SpawnerReply::Hello { .. } => Err(LaunchError::channel("spawner")(io::ErrorKind::InvalidData.into())),
        }
    }

    /// Starts to mount a part of the workspace in a running sandbox.
    pub fn mount_workspace(&self, request: &WorkspaceRequest<'_>) -> Result<MountingWorkspace, LaunchError> {
        let (channel, theirs) = open_channel().map_err(LaunchError::channel("mounter"))?;
        let order = WorkspaceOrder {
            path: request.path.to_owned(),
            read_only: request.read_only,
            ready_file: request.ready_file.map(str::to_owned),
            replace: request.replace,
        };
        let fds = [theirs.as_fd(), request.user_namespace, request.mount_namespace, request.device];
        match self.ask(&SpawnerRequest::Workspace(order), &fds)? {
            SpawnerReply::Started { .. } => {}
            SpawnerReply::Failed(failure) => return Err(failure.into()),
            SpawnerReply::Hello { .. } => return Err(protocol_error()),
        }
        Ok(MountingWorkspace::new(channel))
    }

    fn ask(&self, request: &SpawnerRequest, fds: &[BorrowedFd<'_>]) -> Result<SpawnerReply, LaunchError> {
        self.channel.send(request, fds).map_err(LaunchError::channel("spawner"))?;
        let (reply, _) = self.channel.receive().map_err(LaunchError::channel("spawner"))?;
        Ok(reply)
    }
}

/// Returns the server's end of a connection to a process that will be started, and the other end.
fn open_channel() -> io::Result<(Channel, OwnedFd)> {
    let (ours, theirs) = isopod_channel::pair()?;
    Ok((Channel::with_timeout(ours, LAUNCHER_DEADLINE)?, theirs))
}

fn clone_layers(paths: &[&Path]) -> Result<Vec<OwnedFd>, LaunchError> {
    let clone = |path: &&Path| {
        let failed = |source: io::Error| LaunchError::Layer { path: path.display().to_string(), source };
        let directory = File::open(path).map_err(failed)?;
        clone_tree(&directory, c"").map_err(failed)
    };
    paths.iter().map(clone).collect()
}

/// A first process that waits for the order to become the guest. It ends when this is dropped.
#[derive(Debug)]
pub struct Launcher {
    channel: Channel,
    /// Set after it was waited for.
    init: Option<Init>,
    is_waiting: bool,
}

/// A waiting first process.
#[derive(Debug)]
struct Init {
    pid: u32,
    pidfd: OwnedFd,
    /// Its memory file system, for resizing.
    memory: OwnedFd,
}

/// The first process of a sandbox.
#[derive(Debug)]
pub struct Launched {
    /// Its pid on the host.
    pub pid: u32,
    /// A handle that is never reused for another process.
    pub pidfd: OwnedFd,
    /// Yields `1` when the guest listens, or the step that failed.
    pub ready: OwnedFd,
}

impl Launcher {
    /// Waits until the first process exists and is ready for the order.
    pub fn wait(&mut self) -> Result<(), LaunchError> {
        while self.init.is_none() || !self.is_waiting {
            self.listen()?;
        }
        Ok(())
    }

    /// Waits for the network namespace that the launcher creates.
    pub fn network(&mut self) -> Result<OwnedFd, LaunchError> {
        loop {
            if let Some(netns) = self.listen()? {
                return Ok(netns);
            }
            if self.is_waiting {
                return Err(protocol_error());
            }
        }
    }

    /// Receives one progress message. Returns the network namespace if it contains one.
    fn listen(&mut self) -> Result<Option<OwnedFd>, LaunchError> {
        let (progress, mut fds) = self.channel.receive().map_err(LaunchError::channel("launcher"))?;
        match progress {
            Progress::Network => return fds.pop().map(Some).ok_or_else(protocol_error),
            Progress::Cloned { pid } => {
                let [pidfd, memory] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| protocol_error())?;
                self.init = Some(Init { pid, pidfd, memory });
            }
            Progress::Waiting => self.is_waiting = true,
            Progress::Failed(failure) => return Err(failure.into()),
        }
        Ok(None)
    }

    /// Sends the order. The first process has become the guest when [`Launched::ready`] reports it.
    pub fn launch(self, launch: &Launch<'_>) -> Result<Launched, LaunchError> {
        let Init { pid, pidfd, memory } = self.init.ok_or_else(protocol_error)?;
        if let Some(bytes) = launch.tmpfs_bytes {
            root::resize_memory(&memory, bytes)?;
        }
        let (ready, ready_writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| LaunchError::channel("sandbox")(error.into()))?;
        let forkserver = launch.interpreter.and_then(|interpreter| interpreter.forkserver);
        let interpreter = launch.interpreter.map(|_| InterpreterOrder { has_forkserver: forkserver.is_some() });
        let order =
            LaunchOrder { interpreter, proc_overrides: launch.proc_overrides.cloned(), cpus: launch.cpus.clone() };
        let mut fds = vec![launch.listener, ready_writer.as_fd()];
        fds.extend(forkserver);
        if let Some(files) = launch.stat_files {
            fds.extend([files.memory.as_fd(), files.cpu.as_fd(), files.memory_stat.as_fd()]);
        }
        self.channel.send(&order, &fds).map_err(LaunchError::channel("sandbox"))?;
        Ok(Launched { pid, pidfd, ready })
    }
}

/// The other side violates the protocol, or the caller did not wait.
fn protocol_error() -> LaunchError {
    LaunchError::channel("launcher")(io::ErrorKind::InvalidData.into())
}

/// Parses what the first process wrote to its ready pipe, if it was not the `1` of a listening guest.
pub fn read_failure(text: &[u8]) -> LaunchError {
    match serde_json::from_slice::<step::Failure>(text) {
        Ok(failure) => failure.into(),
        Err(_) => LaunchError::channel("guest")(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_setting_makes_privileged_processes_dumpable() {
        let settings = ["0\n", "1\n", "2\n", "1", ""];
        assert_eq!(settings.map(makes_dumpable), [false, true, false, true, false]);
    }
}
