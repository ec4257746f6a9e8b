//! Builds a sandbox's root file system, in the launcher's own mount namespace.
//!
//! The result is a namespace with four mounts at its top: a small tmpfs as `/`, an empty directory, the finished root
//! at `/new`, and the host's `/proc`, without which the kernel would not let the sandbox mount its own. No host path is
//! reachable in it.
//!
//! A template is not trusted: every mount point inside it is opened without following symbolic links, and mounts go
//! onto the opened directory, not onto a name.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use isopod_wire::KernelFeatures;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chmodat, chownat, mkdirat, mknodat, open, openat2,
    symlinkat,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, UnmountFlags, fsconfig_create,
    fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount, mount_change, unmount,
};
use rustix::process::{chdir, fchdir};

use super::RootStyle;
use super::message::PrepareOrder;
use super::step::{Failure, Step};
use crate::sys::cred::set_file_ids;
use crate::sys::mount::{TreeOptions, attach, clone_tree, pivot_to_current_directory, set_tree_options};
use crate::sys::ns::{Namespaces, unshare};

/// Detached copies of the directories of the root.
pub(super) struct Trees {
    /// Where the sandbox writes.
    pub(super) upper: OwnedFd,
    /// The tree of the layers on top of the others.
    pub(super) kept: Option<OwnedFd>,
    /// Layers of `/`, topmost first.
    pub(super) root: Vec<OwnedFd>,
    /// Layers of `/usr`, topmost first. Empty if `/usr` is part of the root's layers.
    pub(super) usr: Vec<OwnedFd>,
}

/// The directory in which launchers start, in a namespace that contains nothing else.
const SPAWNER_STAGE: &str = "/tmp";
/// The finished root in the launcher's namespace.
pub(super) const NEW_ROOT: &str = "/new";
/// A tmpfs allows as many files as it has pages, like one that is mounted without options.
const BYTES_PER_FILE: u64 = 4096;
/// An empty directory in the launcher's namespace that nobody can write to. It covers other directories.
pub(super) const EMPTY_DIRECTORY: &str = "/empty";
/// Where the tree of kept layers is attached.
const KEPT: &str = "k";
/// Where the file system of the sandbox's memory is attached while its directories are copied.
const MEMORY: &str = "m";
/// The options of a mount must fit into a page, together with some of the kernel's own.
const MAX_OPTIONS: usize = 4000;
/// The option that adds one layer below those that were named before.
const ONE_LAYER: &str = "lowerdir+";
/// The group that owns terminals, on Debian and everywhere else.
const TTY_GROUP: u32 = 5;

const DEVICES: &[(&str, u32, u32)] =
    &[("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
/// In a sandbox with `fuse`.
const FUSE: (&str, u32, u32) = ("fuse", 10, 229);
const DEVICE_LINKS: &[(&str, &str)] = &[
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Returns the caller's current mount namespace, in order to come back to it.
pub(super) fn host_mounts() -> io::Result<OwnedFd> {
    Ok(open("/proc/self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Leaves the host's mount namespace for one that contains only `/proc`.
///
/// A long-lived copy of the host's mounts would keep file systems busy that the host wants to unmount, and every launch
/// would copy and drop them again.
pub(super) fn enter_spawner_root() -> Result<(), Failure> {
    leave_mount_namespace()?;
    let host_proc = clone_tree(CWD, c"/proc").step("copy /proc")?;
    let root = tmpfs("mode=0755,size=1m", MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    // Any directory works, because no other process is in this namespace.
    attach(&root, open_directory(CWD, "/tmp")?).step("attach the spawner's root")?;
    for directory in ["proc", "tmp"] {
        mkdirat(&root, directory, Mode::from_raw_mode(0o755)).step("make a directory for the spawner")?;
    }
    attach(&host_proc, open_directory(&root, "proc")?).step("attach the host's /proc")?;
    forget_the_host(&root)
}

/// Builds the root for one sandbox and makes it the only visible file system. The result is for [`resize_memory`].
pub(super) fn build(trees: &Trees, order: &PrepareOrder, user_namespace: &OwnedFd) -> Result<OwnedFd, Failure> {
    let PrepareOrder { first_id, tmpfs_bytes, .. } = *order;
    leave_mount_namespace()?;
    let host_proc = clone_tree(CWD, c"/proc").step("copy /proc")?;
    let stage = build_stage(first_id, order.features)?;
    attach_layers(trees, user_namespace, &stage)?;
    mount_overlays(trees, order)?;

    let root = open_directory(CWD, "new")?;
    show(&stage, c"dev", &root, "dev", TreeOptions { read_only: true, no_set_uid: true, ..TreeOptions::default() })?;
    attach(terminals(first_id)?, directory_in(&root, "dev/pts")?).step("attach /dev/pts")?;
    let plain = TreeOptions { no_set_uid: true, no_devices: true, ..TreeOptions::default() };
    show(&stage, c"sys", &root, "sys", plain)?;
    let memory = new_filesystem("tmpfs", &memory_options(tmpfs_bytes))?;
    let files = mounted(&memory, MountAttrFlags::empty())?;
    // Before Linux 6.15, only mounts that are attached in the caller's namespace can be copied.
    attach(&files, open_directory(CWD, MEMORY)?).step("attach the sandbox's memory file system")?;
    let places = [(c"shm", "dev/shm", 0o1777), (c"tmp", "tmp", 0o1777), (c"run", "run", 0o755)];
    let in_memory = if order.style.scratch_on_disk { 1 } else { places.len() };
    for (name, place, mode) in places.into_iter().take(in_memory) {
        own_directory(&files, name, mode, first_id)?;
        show(&files, name, &root, place, plain)?;
    }
    unmount(MEMORY, UnmountFlags::DETACH).step("detach the sandbox's memory file system")?;
    attach(&host_proc, open_directory(CWD, "proc")?).step("attach the host's /proc")?;
    forget_the_host(&stage)?;
    Ok(memory)
}

/// Mounts a directory of one of our file systems in the new root. File systems are expensive to create and to remove,
/// but mounts of them are not.
fn show(files: &OwnedFd, name: &CStr, root: &OwnedFd, place: &str, options: TreeOptions<'_>) -> Result<(), Failure> {
    let view = clone_tree(files, name).step("copy a directory of the sandbox's own")?;
    set_tree_options(&view, options).step("set the options of a directory of the sandbox's own")?;
    attach(view, directory_in(root, place)?).step("attach a directory of the sandbox's own")
}

/// Creates a directory that belongs to the sandbox's root.
fn own_directory(files: &OwnedFd, name: &CStr, mode: u32, first_id: u32) -> Result<(), Failure> {
    mkdirat(files, name, Mode::from_raw_mode(mode)).step("make a directory of the sandbox's own")?;
    let (user, group) = (Uid::from_raw(first_id), Gid::from_raw(first_id));
    chownat(files, name, Some(user), Some(group), AtFlags::empty()).step("give a directory to the sandbox")?;
    // mkdir is subject to the umask.
    chmodat(files, name, Mode::from_raw_mode(mode), AtFlags::empty()).step("open a directory to the sandbox")
}

/// The limits of `/tmp`, `/run` and `/dev/shm` together. An empty file needs memory too.
fn memory_options(bytes: u64) -> String {
    format!("mode=0755,size={bytes},nr_inodes={}", bytes / BYTES_PER_FILE)
}

/// Changes the limit of a sandbox's memory file system. The kernel refuses less than it already holds.
pub(super) fn resize_memory(memory: &OwnedFd, bytes: u64) -> Result<(), Failure> {
    set_options(memory, &memory_options(bytes))?;
    fsconfig_reconfigure(memory).step("resize the sandbox's memory file system")
}

/// The host's root creates the nodes of `/dev`, because a user namespace cannot create devices. Each sandbox has its
/// own, because locks and watches on a shared node would affect other sandboxes.
fn make_devices(stage: &OwnedFd, features: KernelFeatures) -> Result<(), Failure> {
    mkdirat(stage, "dev", Mode::from_raw_mode(0o755)).step("make /dev")?;
    let devices = open_directory(stage, "dev")?;
    let everyone = Mode::from_raw_mode(0o666);
    for (name, major, minor) in DEVICES.iter().chain(features.fuse.then_some(&FUSE)) {
        let device = rustix::fs::makedev(*major, *minor);
        mknodat(&devices, *name, FileType::CharacterDevice, everyone, device).step("make a device node")?;
        // mknod is subject to the umask.
        chmodat(&devices, *name, everyone, AtFlags::empty()).step("open a device node to everyone")?;
    }
    for (name, target) in DEVICE_LINKS {
        symlinkat(*target, &devices, *name).step("link a device")?;
    }
    for directory in ["pts", "shm", "mqueue"] {
        mkdirat(&devices, directory, Mode::from_raw_mode(0o755)).step("make a directory in /dev")?;
    }
    Ok(())
}

pub(super) fn leave_mount_namespace() -> Result<(), Failure> {
    unshare(Namespaces::MOUNT).step("make a mount namespace")?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).step("make mounts private")
}

/// Creates the tmpfs that becomes the launcher's root, with directories for the layers, the device nodes, and the
/// content of `/sys`.
fn build_stage(first_id: u32, features: KernelFeatures) -> Result<OwnedFd, Failure> {
    let stage = tmpfs("mode=0755,size=1m,nr_inodes=1024", MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    attach(&stage, open_directory(CWD, SPAWNER_STAGE)?).step("attach the stage")?;
    fchdir(&stage).step("go to the stage")?;
    for directory in ["new", "proc", "w", MEMORY] {
        mkdirat(CWD, directory, Mode::from_raw_mode(0o755)).step("make a directory on the stage")?;
    }
    make_empty_directory(&stage)?;
    make_devices(&stage, features)?;
    own_directory(&stage, c"sys", 0o755, first_id)?;
    Ok(stage)
}

fn make_empty_directory(stage: &OwnedFd) -> Result<(), Failure> {
    mkdirat(stage, "empty", Mode::from_raw_mode(0o555)).step("make an empty directory")?;
    let empty = clone_tree(stage, c"empty").step("copy the empty directory")?;
    let nothing = TreeOptions { read_only: true, no_set_uid: true, no_devices: true, id_map: None };
    set_tree_options(&empty, nothing).step("make the empty directory read-only")?;
    attach(empty, open_directory(stage, "empty")?).step("attach the empty directory")
}

fn layer_names(prefix: char, count: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |index| format!("{prefix}{index}"))
}

fn attach_layers(trees: &Trees, user_namespace: &OwnedFd, stage: &OwnedFd) -> Result<(), Failure> {
    let read_only = TreeOptions {
        read_only: true,
        no_devices: true,
        id_map: Some(user_namespace.as_fd()),
        ..TreeOptions::default()
    };
    let names = layer_names('r', trees.root.len()).chain(layer_names('u', trees.usr.len()));
    for (name, tree) in names.zip(trees.root.iter().chain(&trees.usr)) {
        set_tree_options(tree, read_only).step("map the ids of a layer")?;
        mkdirat(stage, &name, Mode::from_raw_mode(0o755)).step("make a place for a layer")?;
        attach(tree, open_directory(stage, &name)?).step("attach a layer")?;
    }
    if let Some(kept) = &trees.kept {
        set_tree_options(kept, read_only).step("map the ids of the kept layers")?;
        mkdirat(stage, KEPT, Mode::from_raw_mode(0o755)).step("make a place for the kept layers")?;
        attach(kept, open_directory(stage, KEPT)?).step("attach the kept layers")?;
    }
    set_tree_options(&trees.upper, TreeOptions { read_only: false, ..read_only })
        .step("map the ids of the upper layer")?;
    attach(&trees.upper, open_directory(stage, "w")?).step("attach the upper layer")
}

/// Overlays keep the credentials of the process that mounts them: ids of the sandbox's range, which exist behind the
/// mapped layers, with all capabilities. Mounted by plain root, they would silently be read-only.
fn mount_overlays(trees: &Trees, order: &PrepareOrder) -> Result<(), Failure> {
    set_file_ids(order.first_id, order.first_id).step("take the file ids of the range")?;
    let names = |kept: &[String], prefix: char, count: usize| -> Vec<String> {
        kept.iter().map(|name| format!("{KEPT}/{name}")).chain(layer_names(prefix, count)).collect()
    };
    let root = names(&order.kept_root, 'r', trees.root.len());
    let usr = names(&order.kept_usr, 'u', trees.usr.len());
    let result = mount_overlay(&root, "root", "new", order.style).and_then(|()| {
        if usr.is_empty() {
            return Ok(());
        }
        let root = open_directory(CWD, "new")?;
        fchdir_into_checked(&root, "usr")?;
        mount_overlay(&usr, "usr", "new/usr", order.style)
    });
    set_file_ids(0, 0).step("take back root's file ids")?;
    result
}

/// Ensures that a directory inside the new root is a real one, because the mount below names it by path.
fn fchdir_into_checked(root: &OwnedFd, name: &str) -> Result<(), Failure> {
    directory_in(root, name).map(drop)
}

fn mount_overlay(layers: &[String], upper: &str, target: &str, style: RootStyle) -> Result<(), Failure> {
    // Relative names, because the sandbox can read them in its mountinfo. Volatile, because files live as long as the
    // sandbox, so nothing in it needs to wait for the disk. Without it, the kernel syncs the whole disk when a sandbox
    // ends.
    let lower = layers.join(":");
    let redirects = if style.no_redirects { "follow" } else { "on" };
    let options = format!(
        "lowerdir={lower},upperdir=w/{upper},workdir=w/{upper}.work,index=off,metacopy=off,\
         redirect_dir={redirects},volatile"
    );
    if options.len() > MAX_OPTIONS {
        return mount_many(layers, &options, target);
    }
    let options = std::ffi::CString::new(options).map_err(|_| Errno::INVAL).step("name the layers")?;
    mount("overlay", target, "overlay", MountFlags::NODEV, Some(options.as_c_str())).step("mount an overlay")
}

/// Mounts an overlay with more layers than fit into one page. Newer kernels accept them one by one.
fn mount_many(layers: &[String], options: &str, target: &str) -> Result<(), Failure> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).step("open a file system")?;
    fsconfig_set_string(&context, "source", "overlay").step("set an option of a file system")?;
    for layer in layers {
        fsconfig_set_string(&context, ONE_LAYER, layer).step("add a layer to an overlay")?;
    }
    let others: Vec<&str> = options.split(',').filter(|option| !option.starts_with("lowerdir=")).collect();
    set_options(&context, &others.join(","))?;
    fsconfig_create(&context).step("make an overlay")?;
    let overlay = mounted(&context, MountAttrFlags::MOUNT_ATTR_NODEV)?;
    attach(&overlay, open_directory(CWD, target)?).step("mount an overlay")
}

/// Whether this kernel accepts the layers of an overlay one by one, so that there can be hundreds.
pub fn takes_many_layers() -> bool {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC);
    context.is_ok_and(|context| fsconfig_set_string(&context, ONE_LAYER, "/").is_ok())
}

fn tmpfs(options: &str, attributes: MountAttrFlags) -> Result<OwnedFd, Failure> {
    filesystem("tmpfs", options, attributes)
}

/// Creates the sandbox's own terminals.
fn terminals(first_id: u32) -> Result<OwnedFd, Failure> {
    let group = first_id + TTY_GROUP;
    let options = format!("ptmxmode=0666,mode=0620,gid={group},max=64");
    filesystem("devpts", &options, MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC)
}

/// Creates a file system that is not attached yet.
pub(super) fn filesystem(kind: &str, options: &str, attributes: MountAttrFlags) -> Result<OwnedFd, Failure> {
    mounted(&new_filesystem(kind, options)?, attributes)
}

fn new_filesystem(kind: &str, options: &str) -> Result<OwnedFd, Failure> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).step("open a file system")?;
    set_options(&context, options)?;
    fsconfig_create(&context).step("make a file system")?;
    Ok(context)
}

fn mounted(context: &OwnedFd, attributes: MountAttrFlags) -> Result<OwnedFd, Failure> {
    fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).step("mount a file system")
}

fn set_options(context: &OwnedFd, options: &str) -> Result<(), Failure> {
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let set = match option.split_once('=') {
            Some((key, value)) => fsconfig_set_string(context, key, value),
            None => fsconfig_set_flag(context, option),
        };
        set.step("set an option of a file system")?;
    }
    Ok(())
}

fn open_directory(at: impl AsFd, path: &str) -> Result<OwnedFd, Failure> {
    rustix::fs::openat(at, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .step("open a mount point")
}

/// Opens a directory inside a root that may be hostile. Creates it if it is missing.
pub(super) fn directory_in(root: impl AsFd, path: &str) -> Result<OwnedFd, Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    let open = || openat2(&root, path, flags, Mode::empty(), resolve);
    let what = format!("use /{path} of the template, which must be a directory");
    match open() {
        Err(Errno::NOENT) => {
            mkdirat(&root, path, Mode::from_raw_mode(0o755)).step(&what)?;
            open().step(&what)
        }
        other => other.step(&what),
    }
}

fn forget_the_host(stage: &OwnedFd) -> Result<(), Failure> {
    fchdir(stage).step("go to the stage")?;
    pivot_to_current_directory().step("make the stage the root")?;
    unmount(".", UnmountFlags::DETACH).step("detach the host's mounts")?;
    chdir("/").step("go to the new root")
}
