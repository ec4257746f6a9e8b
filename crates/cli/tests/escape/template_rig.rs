//! Sandboxes made straight from directories, without a node, so that a template can be as hostile as it likes.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use isopod_client::guest::Guest;
use isopod_isolation::launch::{
    Launch, LaunchError, Launched, Preparation, ProcOverrides, Role, RootLayers, RootStyle, Spawner, read_failure,
};
use isopod_isolation::sys::ns::{Namespaces, unshare};
use isopod_wire::Limits;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, connect, listen, socket};
use rustix::process::{Signal, pidfd_send_signal};

use crate::raw_http::request;

/// Host ids behind those that the node's slots use.
const FIRST_ID: u32 = 0x7fb0_0000;

/// A spawner and a place for layers.
pub(crate) struct Rig {
    pub(crate) directory: tempfile::TempDir,
    process: Child,
    spawner: Option<Spawner>,
    guest: OwnedFd,
}

/// A sandbox of the rig. It ends when this is dropped.
pub(crate) struct RigSandbox {
    launched: Launched,
    socket: PathBuf,
}

impl Rig {
    /// With the spawner as a node would start it.
    pub(crate) fn start(binary: &str) -> Self {
        let mut command = Command::new(binary);
        command.arg("__spawner");
        Self::start_with(command)
    }

    /// With a spawner that is started in some other way.
    pub(crate) fn start_with(mut command: Command) -> Self {
        isopod_testkit::require_root();
        let directory = tempfile::Builder::new().prefix("isopod-rig-").tempdir_in("/var/tmp").expect("a directory");
        let address = SocketAddrUnix::new(directory.path().join("spawner.sock")).expect("a short path");
        let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
        bind(&listener, &address).expect("the name is free");
        listen(&listener, 1).expect("it listens");
        let process = command.env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").stdin(Stdio::from(listener));
        let process = process.spawn().expect("it starts");
        let client = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
        connect(&client, &address).expect("it listens");
        let spawner = Some(Spawner::connect(client).expect("a spawner of this version"));
        Self { directory, process, spawner, guest: guest_program() }
    }

    /// A template that is as it should be. Tests then spoil it.
    pub(crate) fn template(&self, name: &str) -> PathBuf {
        let root = self.directory.path().join(name);
        for directory in ["", "dev", "proc", "sys", "tmp", "run", "usr", "etc", "root"] {
            fs::create_dir(root.join(directory)).expect("a directory");
        }
        for link in ["bin", "sbin", "lib", "lib64"] {
            symlink(format!("usr/{link}"), root.join(link)).expect("a link");
        }
        fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n").expect("a file");
        root
    }

    /// Prepares and launches, as a node does, and waits until the guest listens.
    pub(crate) fn launch(&self, template: &Path) -> Result<RigSandbox, LaunchError> {
        let own = tempfile::tempdir_in(self.directory.path()).expect("a directory").keep();
        for part in ["root", "root.work", "usr", "usr.work"] {
            fs::create_dir(own.join(part)).expect("a directory");
        }
        let spawner = self.spawner.as_ref().expect("it is there until the end");
        let netns = new_netns();
        let mut launcher = spawner.prepare(&Preparation {
            role: Role::Sandbox { owner: FIRST_ID },
            first_id: FIRST_ID,
            netns: Some(netns.as_fd()),
            cgroup_entrances: &[],
            cgroup_views: &[],
            features: isopod_wire::KernelFeatures::default(),
            boot_id: None,
            last_pid: None,
            clocks: None,
            layers: RootLayers {
                root: vec![template],
                usr: vec![Path::new("/usr")],
                kept: None,
                upper: &own,
                style: RootStyle::default(),
            },
            guest: self.guest.as_fd(),
            tmpfs_bytes: 1 << 24,
            host_name: "rig",
            proc_overrides: &ProcOverrides::for_limits(&Limits::default()),
        })?;
        launcher.wait()?;
        let socket = own.join("guest.sock");
        let listener = UnixListener::bind(&socket).expect("a short path");
        let launched = launcher.launch(&Launch {
            listener: listener.as_fd(),
            interpreter: None,
            stat_files: None,
            proc_overrides: None,
            cpus: None,
            tmpfs_bytes: None,
        })?;
        let mut said = Vec::new();
        let mut ready = File::from(launched.ready.try_clone().expect("a descriptor"));
        let mut buffer = [0; 512];
        let length = ready.read(&mut buffer).expect("a pipe can be read");
        said.extend_from_slice(&buffer[..length]);
        if said != b"1" {
            return Err(read_failure(&said));
        }
        Ok(RigSandbox { launched, socket })
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.spawner.take());
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl RigSandbox {
    /// Its guest, introduced.
    pub(crate) async fn guest(&self) -> Guest {
        let answer = request(&self.socket, "POST", b"/init", "{}").await;
        assert!(answer.starts_with("HTTP/1.1 2"), "{answer}");
        Guest::over_unix(&self.socket).with_user("root")
    }
}

impl Drop for RigSandbox {
    fn drop(&mut self) {
        let _ = pidfd_send_signal(&self.launched.pidfd, Signal::KILL);
    }
}

fn guest_program() -> OwnedFd {
    let file = memfd_create("guest", MemfdFlags::empty()).expect("memory");
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    fs::write(&path, isopod_node::guest_program_bytes()).expect("memory");
    // The kernel does not execute what is open for writing.
    File::open(path).expect("it is there").into()
}

fn new_netns() -> OwnedFd {
    let made = std::thread::spawn(|| {
        unshare(Namespaces::NET).expect("root may");
        File::open("/proc/thread-self/ns/net").expect("it is there")
    });
    made.join().expect("it does not panic").into()
}
