//! How a sandbox comes to life.
//!
//! Three processes stand between a server, which has many threads and may die at any time, and a sandbox:
//!
//! ```text
//! server ── asks ──▶ spawner (one thread, outlives the server, reaps)
//!                       └─ forks ──▶ launcher (one per sandbox: joins cgroups and netns, builds the root, exits)
//!                                        └─ clones ──▶ init (enters the root, drops rights, waits, becomes the guest)
//! ```
//!
//! All that is slow (a move between cgroups waits for an RCU grace period, 15 ms here) is done while nobody waits. The
//! launcher exits once it has cloned, and the spawner inherits the sandbox. A launch is one message and one exec.

mod admission;
mod boot_clock;
mod channel;
mod enter;
mod init;
mod launcher;
mod message;
mod proc_overrides;
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
pub use boot_clock::has_time_namespaces;
use channel::Channel;
pub use enter::{Enter, ZygoteMessage, ZygoteSocket, namespaces_of, zygote_pair};
use isopod_wire::KernelFeatures;
use message::{InterpreterOrder, LaunchOrder, PrepareOrder, Progress, RoleOrder, SpawnerReply, SpawnerRequest};
pub use proc_overrides::ProcOverrides;
pub use root::takes_many_layers;
use serde::{Deserialize, Serialize};
pub use spawner::{SpawnerOptions, run_spawner};
use workspace::WorkspaceOrder;
pub use workspace::{MountingWorkspace, WorkspaceConnection, WorkspaceRequest};

use crate::cgroup::CgroupView;
use crate::sys::mount::clone_tree;

/// Whether this host makes processes readable by others that have just changed their rights (`fs.suid_dumpable` is 1). The
/// trusted processes that make a sandbox would then be open to whoever owns its user namespace.
pub fn exposes_privileged_processes() -> bool {
    std::fs::read_to_string("/proc/sys/fs/suid_dumpable").is_ok_and(|setting| makes_dumpable(&setting))
}

/// 0 makes nobody dumpable who changed rights, 2 only for the host's root.
fn makes_dumpable(suid_dumpable: &str) -> bool {
    suid_dumpable.trim() == "1"
}

/// How long a launcher may take to build a root or to clone.
const LAUNCHER_DEADLINE: Duration = Duration::from_secs(20);

/// Why a sandbox could not be prepared or launched.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The spawner or the launcher is gone or does not answer.
    #[error("could not talk to the {peer}")]
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

/// The directories that make up a root file system. Ids on disk are those seen inside.
#[derive(Clone, Debug)]
pub struct RootLayers<'a> {
    /// Layers of `/`, topmost first.
    pub root: Vec<&'a Path>,
    /// Layers of `/usr` where that is an overlay of its own, topmost first; the last may be the host's `/usr`.
    pub usr: Vec<&'a Path>,
    /// Layers that stand on those.
    pub kept: Option<KeptLayers<'a>>,
    /// An empty directory of its own for what the sandbox writes.
    pub upper: &'a Path,
    /// How it is put together.
    pub style: RootStyle,
}

/// Layers that are directories of one tree: however many there are, they take one mount.
#[derive(Clone, Debug)]
pub struct KeptLayers<'a> {
    /// The tree.
    pub directory: &'a Path,
    /// Layers of `/`, topmost first, as paths below the tree.
    pub root: Vec<String>,
    /// Layers of `/usr`, where that is an overlay of its own.
    pub usr: Vec<String>,
}

/// How a root is put together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootStyle {
    /// `/tmp` and `/run` are directories of the root, as in a container, instead of memory.
    pub scratch_on_disk: bool,
    /// A directory of a layer is not moved by a mark, but refused with `EXDEV`, so that the writable layer can become
    /// several layers. Marks of lower layers count.
    pub no_redirects: bool,
}

/// What is to be made of a root, its namespaces and its cgroups.
#[derive(Clone, Debug)]
pub enum Role {
    /// A sandbox with a user namespace of its own.
    Sandbox {
        /// The host id that may enter the user namespace: the first id of the sandbox's own range, or the user of the
        /// zygote that its interpreter comes from.
        owner: u32,
    },
    /// A process outside of all sandboxes, without any right, that forks itself into those whose owner it is.
    Zygote(ZygoteProgram),
}

/// What a zygote runs. The socket that it serves is its descriptor 3.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ZygoteProgram {
    /// The host id that it runs as.
    pub id: u32,
    /// A path in its root, and the arguments with the program's name.
    pub program: String,
    pub arguments: Vec<String>,
    /// `NAME=value`, and nothing else.
    pub environment: Vec<String>,
}

/// What a launcher needs before it is known who will use the sandbox.
#[derive(Debug)]
pub struct Preparation<'a> {
    /// Sandbox or zygote.
    pub role: Role,
    /// The first host id of the sandbox's range of 65,536.
    pub first_id: u32,
    /// The network namespace, made and plumbed. Without it the launcher makes one that belongs to the sandbox's user
    /// namespace, as a zygote needs it to enter: see [`Launcher::network`].
    pub netns: Option<BorrowedFd<'a>>,
    /// `cgroup.procs` of each group to join.
    pub cgroup_entrances: &'a [File],
    /// What the sandbox sees of these groups.
    pub cgroup_views: &'a [CgroupView],
    /// The root file system.
    pub layers: RootLayers<'a>,
    /// The guest's program.
    pub guest: BorrowedFd<'a>,
    /// A bound on `/tmp`, `/run` and `/dev/shm` together; it also bounds how many files they hold.
    pub tmpfs_bytes: u64,
    /// The name that programs inside see.
    pub host_name: &'a str,
    /// What `/proc` and `/sys` say about CPUs and memory.
    pub proc_overrides: &'a ProcOverrides,
    /// What of the kernel the sandbox has besides.
    pub features: KernelFeatures,
}

/// What is handed to the sandbox's first process.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The listening socket of the guest; of a zygote, the socket that it serves.
    pub listener: BorrowedFd<'a>,
    /// Set where the guest is to serve a code interpreter.
    pub interpreter: Option<Interpreter<'a>>,
    /// Figures of the sandbox's cgroups, where the host has them.
    pub stat_files: Option<&'a crate::cgroup::StatFiles>,
    /// What `/proc` and `/sys` say about CPUs and memory, where it differs from the preparation.
    pub proc_overrides: Option<&'a ProcOverrides>,
    /// Which CPUs the sandbox may use; `None` for all.
    pub cpus: Option<Vec<u32>>,
    /// The bound on `/tmp`, `/run` and `/dev/shm`, where it differs from the preparation.
    pub tmpfs_bytes: Option<u64>,
}

/// How a guest comes to its code interpreter.
#[derive(Clone, Copy, Debug)]
pub struct Interpreter<'a> {
    /// The guest's end of a connection to a warm one, which a zygote brings. Without it the guest starts its own.
    pub forkserver: Option<BorrowedFd<'a>>,
}

/// A connection to the spawner of a state directory.
#[derive(Debug)]
pub struct Spawner {
    channel: Channel,
}

impl Spawner {
    /// Takes over a connected socket to a spawner and makes sure that it speaks this version.
    pub fn connect(socket: OwnedFd) -> Result<Self, LaunchError> {
        let channel = Channel::with_timeout(socket, LAUNCHER_DEADLINE).map_err(LaunchError::channel("spawner"))?;
        let spawner = Self { channel };
        match spawner.ask(&SpawnerRequest::Hello { version: message::VERSION }, &[])? {
            SpawnerReply::Hello { version: message::VERSION } => Ok(spawner),
            _ => Err(LaunchError::channel("spawner")(io::ErrorKind::Unsupported.into())),
        }
    }

    /// Starts a launcher. Returns when it has been started, not when it is prepared: see [`Launcher::wait`].
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

    /// Begins to mount a part of the workspace in a sandbox that runs.
    pub fn mount_workspace(&self, request: &WorkspaceRequest<'_>) -> Result<MountingWorkspace, LaunchError> {
        let (channel, theirs) = open_channel().map_err(LaunchError::channel("mounter"))?;
        let order =
            WorkspaceOrder { path: request.path.to_owned(), read_only: request.read_only, replace: request.replace };
        let fds = [theirs.as_fd(), request.user_namespace, request.mount_namespace, request.device];
        match self.ask(&SpawnerRequest::Workspace(order), &fds)? {
            SpawnerReply::Started { .. } => {}
            SpawnerReply::Failed(failure) => return Err(failure.into()),
            SpawnerReply::Hello { .. } => return Err(nonsense()),
        }
        Ok(MountingWorkspace::new(channel))
    }

    fn ask(&self, request: &SpawnerRequest, fds: &[BorrowedFd<'_>]) -> Result<SpawnerReply, LaunchError> {
        self.channel.send(request, fds).map_err(LaunchError::channel("spawner"))?;
        let (reply, _) = self.channel.receive().map_err(LaunchError::channel("spawner"))?;
        Ok(reply)
    }
}

/// The server's end of a connection to a process that is to be started, and the other one.
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

/// A first process that waits for the word to become the guest. It goes away when this is dropped.
#[derive(Debug)]
pub struct Launcher {
    channel: Channel,
    /// Known once it has been waited for.
    init: Option<Init>,
    is_waiting: bool,
}

/// A first process that waits.
#[derive(Debug)]
struct Init {
    pid: u32,
    pidfd: OwnedFd,
    /// Its memory file system, to be resized.
    memory: OwnedFd,
}

/// The first process of a sandbox.
#[derive(Debug)]
pub struct Launched {
    /// Its pid on the host.
    pub pid: u32,
    /// A handle that cannot come to mean another process.
    pub pidfd: OwnedFd,
    /// Gives `1` when the guest listens, or the step that failed.
    pub ready: OwnedFd,
}

impl Launcher {
    /// Waits until there is a first process and it is ready for the word.
    pub fn wait(&mut self) -> Result<(), LaunchError> {
        while self.init.is_none() || !self.is_waiting {
            self.listen()?;
        }
        Ok(())
    }

    /// Waits for the network namespace that the launcher was to make.
    pub fn network(&mut self) -> Result<OwnedFd, LaunchError> {
        loop {
            if let Some(netns) = self.listen()? {
                return Ok(netns);
            }
            if self.is_waiting {
                return Err(nonsense());
            }
        }
    }

    /// Takes in one piece of news. That of a network namespace is handed on.
    fn listen(&mut self) -> Result<Option<OwnedFd>, LaunchError> {
        let (progress, mut fds) = self.channel.receive().map_err(LaunchError::channel("launcher"))?;
        match progress {
            Progress::Network => return fds.pop().map(Some).ok_or_else(nonsense),
            Progress::Cloned { pid } => {
                let [pidfd, memory] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| nonsense())?;
                self.init = Some(Init { pid, pidfd, memory });
            }
            Progress::Waiting => self.is_waiting = true,
            Progress::Failed(failure) => return Err(failure.into()),
        }
        Ok(None)
    }

    /// Gives the word. The first process has become the guest when [`Launched::ready`] says so.
    pub fn launch(self, launch: &Launch<'_>) -> Result<Launched, LaunchError> {
        let Init { pid, pidfd, memory } = self.init.ok_or_else(nonsense)?;
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

/// The other side does not keep to the protocol, or this one did not wait.
fn nonsense() -> LaunchError {
    LaunchError::channel("launcher")(io::ErrorKind::InvalidData.into())
}

/// Reads what the first process wrote to its ready pipe, when it was not the `1` of a guest that listens.
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
