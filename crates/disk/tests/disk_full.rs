//! A host whose disk fills up, from inside sandboxes and from outside. Written data is kept, and writing continues
//! later.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use isopod_disk::{Disk, DiskOptions, is_disk_full};
use isopod_wire::Bytes;
use support::{HostDisk, MIB, State, eventually, run};

const SIZE: u64 = 1 << 30;

/// The acknowledged files, and the seeds of their contents.
#[derive(Default)]
struct Acknowledged {
    files: BTreeMap<PathBuf, u64>,
}

impl Acknowledged {
    /// Writes files of 4 MiB until one fails. Those that were closed without an error count. Every other one is synced.
    fn write_until_full(&mut self, directory: &Path) -> io::Error {
        for number in 0_u64.. {
            let seed = self.files.len() as u64 + number;
            let path = directory.join(format!("file-{seed}"));
            match write_file(&path, seed, number % 2 == 0) {
                Ok(()) => drop(self.files.insert(path, seed)),
                Err(error) => {
                    // It may have failed before the file was created.
                    let _ = std::fs::remove_file(&path);
                    return error;
                }
            }
        }
        unreachable!("a disk has an end")
    }

    /// Reads everything back from the device.
    fn check(&self) {
        for (path, seed) in &self.files {
            let text = read_from_device(path).unwrap_or_else(|error| panic!("{} is lost: {error}", path.display()));
            assert!(text == contents(*seed), "{} has changed", path.display());
        }
    }
}

/// Drops the page cache first, so that the data comes from the device.
fn read_from_device(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).map(|_| text)
}

fn write_file(path: &Path, seed: u64, is_synced: bool) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(path)?;
    file.write_all(&contents(seed))?;
    if is_synced { file.sync_all() } else { Ok(()) }
}

/// Bytes that differ in every page of every file.
fn contents(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0xa5; 4 * MIB];
    for (number, page) in bytes.chunks_exact_mut(4096).enumerate() {
        page[..16].copy_from_slice(&((u128::from(seed) << 64) | number as u128).to_le_bytes());
    }
    bytes
}

#[test]
fn files_written_before_and_after_the_host_is_full_are_all_kept() {
    let host = HostDisk::new(SIZE);
    let disk = Disk::open(&host.state(), &DiskOptions::default()).unwrap();
    assert!(disk.can_limit(), "{:?}", disk.no_limit());
    let area = disk.create_area("a", None).unwrap();
    let mut written = Acknowledged::default();
    for seed in 0..20 {
        let path = area.path().join(format!("before-{seed}"));
        write_file(&path, seed, false).unwrap();
        written.files.insert(path, seed);
    }

    let others = host.fill();
    let error = written.write_until_full(area.path());
    assert!(is_disk_full(&error), "{error}");
    // Overwrite files while nothing is free outside. That takes new blocks, so some are freed first.
    let doomed: Vec<PathBuf> = written.files.keys().take(10).cloned().collect();
    for path in &doomed {
        std::fs::remove_file(path).unwrap();
        written.files.remove(path);
    }
    for (path, seed) in written.files.iter_mut().take(5) {
        *seed += 1_000_000;
        eventually("room after a removal", || write_file(path, *seed, true).is_ok());
    }
    written.check();

    std::fs::remove_file(others).unwrap();
    eventually("room for more", || {
        let path = area.path().join("after");
        write_file(&path, 77, true).is_ok()
    });
    written.files.insert(area.path().join("after"), 77);
    written.check();

    drop(disk);
    let disk = Disk::open(&host.state(), &DiskOptions::default()).unwrap();
    written.check();
    disk.remove_area("a").unwrap();
    disk.destroy().unwrap();
}

#[test]
fn writers_inside_stop_before_the_hosts_disk_is_full() {
    let host = HostDisk::new(SIZE);
    let disk = Disk::open(&host.state(), &DiskOptions::default()).unwrap();
    let area = disk.create_area("a", None).unwrap();
    let mut written = Acknowledged::default();
    // For a moment, a writer may be faster than the image grows.
    eventually("the image has taken what it may", || {
        let error = written.write_until_full(area.path());
        assert!(is_disk_full(&error), "{error}");
        disk.free_space().unwrap() < Bytes::mib(64)
    });
    assert!(written.files.len() > 120, "a disk of 1 GiB has room for more than {} files", written.files.len());
    assert!(host.free() >= 250 * MIB as u64, "only {} bytes are left for records", host.free());
    File::create(host.state().join("record")).unwrap().write_all(&[1; 4096]).unwrap();
    written.check();

    let doomed: Vec<PathBuf> = written.files.keys().take(50).cloned().collect();
    for path in &doomed {
        std::fs::remove_file(path).unwrap();
        written.files.remove(path);
    }
    eventually("room for others after a removal", || write_file(&doomed[0], 5, true).is_ok());
    written.files.insert(doomed[0].clone(), 5);
    written.check();
    std::fs::remove_file(host.state().join("record")).unwrap();
    disk.remove_area("a").unwrap();
    disk.destroy().unwrap();
}

#[test]
fn small_files_end_at_the_same_border_and_can_be_removed_there() {
    let host = HostDisk::new(SIZE);
    let disk = Disk::open(&host.state(), &DiskOptions::default()).unwrap();
    assert!(disk.can_limit(), "{:?}", disk.no_limit());
    let area = disk.create_area("a", None).unwrap();
    let others = host.fill();
    let write = |name: String| std::fs::write(area.path().join(name), [7; 3000]);
    let (mut count, mut error) = (0, None);
    while error.is_none() {
        error = write(format!("{count:0100}")).err();
        count += 1;
    }
    let error = error.unwrap();
    assert!(is_disk_full(&error), "{error}");
    assert_eq!(std::fs::read(area.path().join(format!("{:0100}", 0))).unwrap(), [7; 3000]);
    for number in 0..count / 2 {
        std::fs::remove_file(area.path().join(format!("{number:0100}"))).unwrap();
    }
    eventually("room after removals", || write("again".to_owned()).is_ok());
    std::fs::remove_file(others).unwrap();
    disk.remove_area("a").unwrap();
    disk.destroy().unwrap();
}

#[test]
fn an_image_with_holes_from_an_earlier_version_is_filled_in() {
    let state = State::new();
    let disk = state.open();
    let file = disk.create_area("a", None).unwrap().path().join("file");
    write_file(&file, 1, true).unwrap();
    drop(disk);
    rustix::mount::unmount(state.path().join("disk"), rustix::mount::UnmountFlags::empty()).unwrap();
    state.assert_nothing_left();
    // As an earlier version left it: mounted with discards, on a file that is larger than its content.
    let image = state.path().join("disk.btrfs");
    OpenOptions::new().write(true).open(&image).unwrap().set_len(4 << 30).unwrap();
    let (image_name, root) = (image.to_str().unwrap(), state.path().join("disk"));
    run("mount", &["-o", "loop,discard=async", image_name, root.to_str().unwrap()]);
    run("btrfs", &["filesystem", "resize", "1:max", root.to_str().unwrap()]);
    run("fstrim", &[root.to_str().unwrap()]);
    let allocated = || std::fs::metadata(&image).map(|file| (file.blocks() * 512, file.len())).unwrap();
    assert!(allocated().0 < 100 * MIB as u64, "the test makes no holes any more");

    let disk = state.open();
    let (blocks, length) = allocated();
    assert!(blocks >= length && length <= 1 << 30, "{blocks} of {length} bytes are allocated");
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(state.path().to_str().unwrap())).unwrap();
    assert!(!line.contains("discard"), "{line}");
    assert!(std::fs::read(file).unwrap() == contents(1));
    state.destroy(disk);
}

#[test]
fn a_disk_that_cannot_be_opened_can_be_abandoned() {
    let state = State::new();
    let disk = state.open();
    disk.create_area("a", None).unwrap();
    drop(disk);
    rustix::mount::unmount(state.path().join("disk"), rustix::mount::UnmountFlags::empty()).unwrap();
    std::fs::write(state.path().join("disk.btrfs"), "damaged").unwrap();
    assert!(Disk::open(state.path(), &support::small()).is_err());
    Disk::abandon(state.path()).unwrap();
    let disk = state.open();
    assert!(disk.area_names().unwrap().is_empty());
    disk.create_area("a", None).unwrap();
    drop(disk);
    Disk::abandon(state.path()).unwrap();
    state.assert_nothing_left();
    let disk = state.open();
    state.destroy(disk);
}
