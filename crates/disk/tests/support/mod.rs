//! A state directory that checks, when it is dropped, that nothing of it is mounted or attached.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use isopod_disk::{Disk, DiskError, DiskOptions};
use isopod_wire::Bytes;
use tempfile::TempDir;

pub(crate) const MIB: usize = 1 << 20;

pub(crate) struct State {
    place: TempDir,
}

impl State {
    pub(crate) fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests mount: run them as root");
        let mkfs = std::process::Command::new("mkfs.btrfs").arg("--version").output();
        assert!(mkfs.is_ok(), "mkfs.btrfs is missing: install btrfs-progs");
        Self { place: TempDir::new().unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.place.path()
    }

    pub(crate) fn open(&self) -> Disk {
        Disk::open(self.path(), &small()).unwrap()
    }

    pub(crate) fn open_plain(&self) -> Disk {
        let disk = Disk::open(self.path(), &without_mkfs()).unwrap();
        assert!(!disk.can_limit());
        disk
    }

    /// Removes everything and checks that the state directory is empty.
    pub(crate) fn destroy(&self, disk: Disk) {
        match disk.destroy() {
            Ok(()) => assert_eq!(std::fs::read_dir(self.path()).unwrap().count(), 0, "destroy leaves nothing"),
            Err(DiskError::StillInUse(_)) => self.wait_for_other_namespaces(),
            Err(error) => panic!("{error:?}"),
        }
        self.assert_nothing_left();
    }

    /// Unmounts, and checks that it was unused.
    pub(crate) fn close(&self, disk: Disk) {
        match disk.close_if_unused() {
            Ok(closed) => assert!(closed, "the disk is in use"),
            Err(DiskError::StillInUse(_)) => self.wait_for_other_namespaces(),
            Err(error) => panic!("{error:?}"),
        }
        self.assert_nothing_left();
    }

    /// A program beside the tests may have created a mount namespace at the wrong moment, which is not our fault.
    fn wait_for_other_namespaces(&self) {
        assert_eq!(self.mounts(), 0, "it is unmounted here");
        eventually(&format!("the other namespaces end ({:?})", self.holders()), || self.loop_devices() == 0);
    }

    /// The mount namespaces of other processes that have a copy of our mount, because they were created at the wrong
    /// moment.
    pub(crate) fn holders(&self) -> Vec<String> {
        let own = std::fs::read_link("/proc/self/ns/mnt").unwrap();
        let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        let holds = |process: &PathBuf| {
            let table = std::fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
            std::fs::read_link(process.join("ns/mnt")).is_ok_and(|namespace| namespace != own)
                && self.is_named_in(&table)
        };
        let words = |process: PathBuf| std::fs::read_to_string(process.join("cmdline")).unwrap_or_default();
        processes.filter(holds).map(words).collect()
    }

    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.mounts(), 0, "no mount is left");
        eventually("no loop device is left", || self.loop_devices() == 0);
    }

    pub(crate) fn mounts(&self) -> usize {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.lines().filter(|line| self.is_named_in(line)).count()
    }

    pub(crate) fn loop_devices(&self) -> usize {
        let devices = std::fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path());
        let file = |device: PathBuf| std::fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
        devices.filter(|device| self.is_named_in(&file(device.clone()))).count()
    }

    /// Whether a text of the kernel names something in this directory, and not in another one whose name starts the
    /// same.
    fn is_named_in(&self, text: &str) -> bool {
        text.contains(&format!("{}/", self.path().to_str().unwrap()))
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let (mounts, devices) = (self.mounts(), self.loop_devices());
        // Leave nothing on the machine, even after a failed test.
        while rustix::mount::unmount(self.path().join("disk"), rustix::mount::UnmountFlags::DETACH).is_ok() {}
        if !std::thread::panicking() {
            assert_eq!((mounts, devices), (0, 0), "the test left mounts or loop devices");
        }
    }
}

/// An ext4 file system in a file: the small disk of a host. It reserves no blocks for root.
pub(crate) struct HostDisk {
    place: TempDir,
}

impl HostDisk {
    pub(crate) fn new(size: u64) -> Self {
        let place = tempfile::Builder::new().prefix("isopod-host-").tempdir_in("/var/tmp").unwrap();
        let file = place.path().join("host.ext4");
        // Allocate its blocks, because the disk of this machine may get full too.
        let blocks = std::fs::File::create(&file).unwrap();
        rustix::fs::fallocate(blocks, rustix::fs::FallocateFlags::empty(), 0, size).unwrap();
        run("mkfs.ext4", &["-q", "-m", "0", file.to_str().unwrap()]);
        std::fs::create_dir(place.path().join("host")).unwrap();
        let host = Self { place };
        run("mount", &["-o", "loop", file.to_str().unwrap(), host.path().to_str().unwrap()]);
        std::fs::create_dir(host.state()).unwrap();
        host
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.place.path().join("host")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path().join("state")
    }

    pub(crate) fn free(&self) -> u64 {
        let figures = rustix::fs::statvfs(self.path()).unwrap();
        figures.f_bavail * figures.f_frsize
    }

    /// Takes all the remaining space, as another program on the host would.
    pub(crate) fn fill(&self) -> PathBuf {
        let file = self.path().join("others");
        let (_, error) = fill(&file, usize::MAX);
        assert_eq!(error.unwrap().kind(), std::io::ErrorKind::StorageFull);
        // Fill the last blocks, for which a quarter of a MiB was too much.
        let mut last = std::fs::OpenOptions::new().append(true).open(&file).unwrap();
        while last.write_all(&[0x5a; 512]).is_ok() {}
        assert!(last.sync_all().is_ok() && self.free() < 4096, "{} bytes are left", self.free());
        file
    }
}

impl Drop for HostDisk {
    fn drop(&mut self) {
        let unmount = |path: PathBuf| rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
        // Leave nothing on the machine, even after a failed test.
        while unmount(self.state().join("disk")).is_ok() {}
        unmount(self.path()).unwrap();
    }
}

pub(crate) fn run(program: &str, arguments: &[&str]) {
    let output = std::process::Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn small() -> DiskOptions {
    DiskOptions { image_size: Some(Bytes::mib(1024)), ..DiskOptions::default() }
}

pub(crate) fn without_mkfs() -> DiskOptions {
    DiskOptions { mkfs_program: PathBuf::from("/nonexistent/mkfs.btrfs"), ..small() }
}

/// Writes until it fails or `most` is reached. Returns how much was written, and the error.
pub(crate) fn fill(path: &Path, most: usize) -> (usize, Option<std::io::Error>) {
    let mut file = std::fs::File::create(path).unwrap();
    let block = vec![0x5a; MIB / 4];
    let mut written = 0;
    while written < most {
        if let Err(error) = file.write_all(&block) {
            return (written, Some(error));
        }
        written += block.len();
    }
    (written, file.sync_all().err())
}

pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}
