//! Areas in the btrfs image: limits, overlay, adoption, and nothing left behind.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that cannot go on fails; timings are printed")]

mod support;

use std::os::fd::AsFd;
use std::process::Command;
use std::time::Instant;

use isopod_disk::{Disk, DiskError, DiskKind, DiskOptions, NoLimit, is_disk_full};
use isopod_isolation::sys::btrfs::{self, QuotaState};
use isopod_wire::Bytes;
use support::{MIB, State, eventually, fill};

fn limit(mib: u64) -> Option<Bytes> {
    Some(Bytes::mib(mib))
}

#[test]
fn a_write_past_the_limit_fails_and_leaves_the_other_areas_alone() {
    let state = State::new();
    let disk = state.open();
    assert!(disk.can_limit());
    assert_eq!(disk.kind(), DiskKind::Image);
    let full = disk.create_area("full", limit(16)).unwrap();
    let other = disk.create_area("other", limit(16)).unwrap();

    let (written, error) = fill(&full.path().join("file"), 64 * MIB);
    assert!(is_disk_full(&error.unwrap()));
    assert!((12 * MIB..=16 * MIB).contains(&written), "{written}");
    assert!(fill(&other.path().join("file"), 8 * MIB).1.is_none());

    let usage = disk.usage("full").unwrap();
    assert_eq!(usage.limit, limit(16));
    assert!(usage.used.unwrap() >= Bytes::mib(12) && usage.used.unwrap() <= Bytes::mib(17), "{usage:?}");
    state.destroy(disk);
}

#[test]
fn a_full_area_can_be_tidied_and_written_again() {
    let state = State::new();
    let disk = state.open();
    let area = disk.create_area("a", limit(16)).unwrap();
    let file = area.path().join("file");
    assert!(fill(&file, 64 * MIB).1.is_some());
    std::fs::remove_file(&file).unwrap();
    eventually("room after deleting", || fill(&file, 8 * MIB).1.is_none());
    state.destroy(disk);
}

#[test]
fn a_limit_can_be_changed_and_lifted() {
    let state = State::new();
    let disk = state.open();
    let area = disk.create_area("a", None).unwrap();
    assert_eq!(disk.usage("a").unwrap().limit, None);
    disk.set_limit("a", limit(16)).unwrap();
    assert_eq!(disk.usage("a").unwrap().limit, limit(16));
    assert!(fill(&area.path().join("one"), 32 * MIB).1.is_some());
    disk.set_limit("a", limit(64)).unwrap();
    assert!(fill(&area.path().join("two"), 24 * MIB).1.is_none());
    disk.set_limit("a", None).unwrap();
    assert_eq!(disk.usage("a").unwrap().limit, None);
    assert!(fill(&area.path().join("three"), 80 * MIB).1.is_none());
    state.destroy(disk);
}

#[test]
fn the_size_of_a_copy_is_what_it_would_keep_without_the_other() {
    let state = State::new();
    let disk = state.open();
    let area = disk.create_area("a", None).unwrap();
    assert!(fill(&area.path().join("file"), 8 * MIB).1.is_none());
    disk.copy_area("a", "b").unwrap();
    disk.sync_area("b").unwrap();
    let sizes = ["a", "b"].map(|name| disk.size(name).unwrap());
    assert!(sizes.iter().all(|size| (Bytes::mib(8)..Bytes::mib(9)).contains(size)), "{sizes:?}");
    disk.remove_area("a").unwrap();
    assert_eq!(disk.size("b").unwrap(), sizes[1]);
    state.destroy(disk);
}

#[test]
fn a_flood_of_empty_files_ends_at_the_limit_too() {
    let state = State::new();
    let disk = state.open();
    let area = disk.create_area("a", limit(16)).unwrap();
    let error = (0..400_000).find_map(|n| std::fs::File::create(area.path().join(format!("{n:0200}"))).err());
    assert!(is_disk_full(&error.expect("the metadata of files counts")));
    disk.remove_area("a").unwrap();
    state.destroy(disk);
}

#[test]
fn an_overlay_with_its_upper_in_an_area_is_limited() {
    let state = State::new();
    let disk = state.open();
    let area = disk.create_area("upper", limit(16)).unwrap();
    let spare = disk.create_area("spare", limit(16)).unwrap();
    let script = r#"
        cd "$1" && mkdir u w m && mount -t overlay overlay -o lowerdir=/etc,upperdir=u,workdir=w m || exit 10
        echo changed > m/hostname && [ "$(cat m/hostname)" = changed ] || exit 11
        rm m/passwd && [ ! -e m/passwd ] && [ -c u/passwd ] || exit 12
        said=$(dd if=/dev/zero of=m/big bs=1M count=64 2>&1) && exit 13
        echo "$said" | grep -qE 'No space left|Disk quota exceeded' || exit 14
        [ "$(stat -c %s m/big)" -le 16777216 ] || exit 15
        dd if=/dev/zero of="$2/file" bs=1M count=8 2>/dev/null || exit 16
        rm m/big && umount m || exit 17
    "#;
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
        .args([area.path(), spare.path()])
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(0), "the number is the step that failed");
    assert!(disk.usage("spare").unwrap().used.unwrap() >= Bytes::mib(8));
    state.destroy(disk);
}

#[test]
fn removing_an_area_gives_its_space_back_to_the_disk_and_the_host() {
    let state = State::new();
    let disk = state.open();
    let image = state.path().join("disk.btrfs");
    let on_host = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&image).unwrap()) * 512;
    let free_before = disk.free_space().unwrap();
    let size_before = on_host();
    assert!(size_before < 512 * MIB as u64, "it begins small");
    let area = disk.create_area("a", None).unwrap();
    for part in 0..6 {
        let file = area.path().join(format!("file{part}"));
        eventually("room for a part of the file", || fill(&file, 100 * MIB).1.is_none());
    }
    assert!(disk.free_space().unwrap() < Bytes(free_before.0 - 500 * MIB as u64));
    assert!(on_host() > 600 * MIB as u64, "it has grown");

    disk.remove_area("a").unwrap();
    let root = std::fs::File::open(state.path().join("disk")).unwrap();
    eventually("free space as before", || {
        btrfs::sync(root.as_fd()).unwrap();
        disk.free_space().unwrap().0 + (50 * MIB as u64) > free_before.0
    });
    eventually("a smaller image", || on_host() < 600 * MIB as u64);
    drop(root);
    state.destroy(disk);
}

#[test]
fn an_image_that_takes_much_of_the_hosts_disk_goes_with_its_last_user() {
    let host = support::HostDisk::new(2 << 30);
    let disk = Disk::open(&host.state(), &DiskOptions::default()).unwrap();
    assert!(disk.can_limit(), "{:?}", disk.no_limit());
    assert!(host.state().join("disk.btrfs").exists());
    assert!(disk.close_if_unused().unwrap());
    assert!(!host.state().join("disk.btrfs").exists());
    let disk = Disk::open(&host.state(), &DiskOptions::default()).unwrap();
    disk.destroy().unwrap();
}

#[test]
fn the_qgroups_of_removed_areas_do_not_pile_up() {
    let state = State::new();
    let disk = state.open();
    for n in 0..130 {
        disk.create_area(&format!("a{n}"), limit(16)).unwrap();
    }
    for n in 0..130 {
        disk.remove_area(&format!("a{n}")).unwrap();
    }
    let root = std::fs::File::open(state.path().join("disk")).unwrap();
    let count = || {
        let (mut count, mut first) = (0, 0);
        loop {
            let some = btrfs::subvolume_qgroups(root.as_fd(), first).unwrap();
            let Some(last) = some.last() else { return count };
            (count, first) = (count + some.len(), last + 1);
        }
    };
    // The kernel frees removed subvolumes at its own pace. Later removals then sweep.
    eventually("the qgroups of the first areas are forgotten", || {
        btrfs::sync(root.as_fd()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
        for _ in 0..64 {
            disk.create_area("b", None).unwrap();
            disk.remove_area("b").unwrap();
        }
        count() <= 70
    });
    drop(root);
    state.destroy(disk);
}

#[test]
fn a_second_open_finds_the_mount_and_the_areas() {
    let state = State::new();
    let disk = state.open();
    let area = disk.create_area("kept", limit(32)).unwrap();
    std::fs::write(area.path().join("file"), "still here").unwrap();
    drop(disk);
    assert_eq!((state.mounts(), state.loop_devices()), (1, 1), "the mount outlives the disk");

    let disk = state.open();
    assert_eq!((state.mounts(), state.loop_devices()), (1, 1), "it is used again");
    assert_eq!(disk.area_names().unwrap().iter().map(|name| name.as_str()).collect::<Vec<_>>(), ["kept"]);
    assert_eq!(disk.area("kept").unwrap(), area);
    assert_eq!(disk.usage("kept").unwrap().limit, limit(32));
    assert_eq!(std::fs::read_to_string(area.path().join("file")).unwrap(), "still here");
    state.destroy(disk);
}

#[test]
fn an_unmounted_image_keeps_areas_and_limits() {
    let state = State::new();
    let disk = state.open();
    std::fs::write(disk.create_area("kept", limit(32)).unwrap().path().join("file"), "still here").unwrap();
    drop(disk);
    rustix::mount::unmount(state.path().join("disk"), rustix::mount::UnmountFlags::empty()).unwrap();
    state.assert_nothing_left();

    let disk = state.open();
    assert_eq!(disk.usage("kept").unwrap().limit, limit(32));
    let (written, error) = fill(&disk.area("kept").unwrap().path().join("more"), 64 * MIB);
    assert!(is_disk_full(&error.unwrap()) && written <= 32 * MIB);
    state.destroy(disk);
}

#[test]
fn closing_unmounts_only_when_there_is_no_area_and_no_other_user() {
    let state = State::new();
    let disk = state.open();
    disk.create_area("a", None).unwrap();
    assert!(!disk.close_if_unused().unwrap());
    let (disk, other) = (state.open(), state.open());
    disk.remove_area("a").unwrap();
    assert!(!disk.close_if_unused().unwrap(), "the other one still uses it");
    state.close(other);
    assert!(state.path().join("disk.btrfs").exists());

    let disk = state.open();
    state.destroy(disk);
}

#[test]
fn areas_are_for_root_only_and_their_mount_is_nosuid_nodev() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let state = State::new();
    let disk = state.open();
    let area = disk.create_area("a", None).unwrap();
    let metadata = std::fs::metadata(area.path()).unwrap();
    assert_eq!((metadata.permissions().mode() & 0o7777, metadata.uid(), metadata.gid()), (0o700, 0, 0));
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(state.path().to_str().unwrap())).unwrap();
    assert!(line.contains("nosuid,nodev,noatime"), "{line}");
    state.destroy(disk);
}

#[test]
fn names_that_could_be_paths_are_refused_everywhere() {
    let state = State::new();
    let disk = state.open();
    for name in ["", "..", "a/b", "A", "a.b", "areas/../x", &"a".repeat(65)] {
        assert!(matches!(disk.create_area(name, None), Err(DiskError::Name(_))), "{name:?}");
        assert!(matches!(disk.remove_area(name), Err(DiskError::Name(_))));
        assert!(matches!(disk.usage(name), Err(DiskError::Name(_))));
        assert!(matches!(disk.set_limit(name, None), Err(DiskError::Name(_))));
    }
    assert!(matches!(disk.usage("a"), Err(DiskError::NoSuchArea(_))));
    assert!(matches!(disk.remove_area("a"), Err(DiskError::NoSuchArea(_))));
    disk.create_area("a", None).unwrap();
    assert!(matches!(disk.create_area("a", None), Err(DiskError::AreaExists(_))));
    state.destroy(disk);
}

#[test]
fn an_area_with_subvolumes_inside_is_removed_even_when_full() {
    let state = State::new();
    let disk = state.open();
    let area = disk.create_area("a", limit(16)).unwrap();
    let inner = area.path().join("deep/inner");
    std::fs::create_dir_all(area.path().join("deep")).unwrap();
    for (parent, name) in [(area.path().join("deep"), "inner"), (inner.clone(), "innermost")] {
        btrfs::create_subvolume(std::fs::File::open(parent).unwrap().as_fd(), name).unwrap();
    }
    std::fs::write(inner.join("file"), "x").unwrap();
    std::fs::create_dir_all(inner.join("innermost/x/y/z")).unwrap();
    fill(&area.path().join("file"), 64 * MIB);
    disk.remove_area("a").unwrap();
    assert!(disk.area_names().unwrap().is_empty());
    let trash = state.path().join("disk/trash");
    eventually("an empty trash", || std::fs::read_dir(&trash).unwrap().count() == 0);
    state.destroy(disk);
}

#[test]
fn areas_on_a_btrfs_with_quotas_need_no_image() {
    let outer = State::new();
    let outer_disk = outer.open();
    let state_dir = outer_disk.create_area("state", None).unwrap();
    let disk = Disk::open(state_dir.path(), &support::without_mkfs()).unwrap();
    assert!(disk.can_limit());
    assert_eq!(outer.mounts(), 1);
    let area = disk.create_area("a", limit(16)).unwrap();
    assert!(is_disk_full(&fill(&area.path().join("file"), 64 * MIB).1.unwrap()));
    assert!(fill(&state_dir.path().join("file"), 32 * MIB).1.is_none());
    disk.destroy().unwrap();
    outer.destroy(outer_disk);
}

#[test]
fn quotas_of_a_whole_file_system_are_turned_on_only_when_allowed() {
    let outer = State::new();
    let large = DiskOptions { image_size: limit(4096), ..DiskOptions::default() };
    let outer_disk = Disk::open(outer.path(), &large).unwrap();
    let state_dir = outer_disk.create_area("state", None).unwrap();
    let directory = std::fs::File::open(state_dir.path()).unwrap();
    btrfs::set_quota_state(directory.as_fd(), QuotaState::Off).unwrap();
    let careful = support::without_mkfs();
    let disk = Disk::open(state_dir.path(), &careful).unwrap();
    assert_eq!(disk.no_limit(), Some(&NoLimit::NoMkfs));
    assert_eq!(btrfs::quota_state(directory.as_fd()).unwrap(), QuotaState::Off);
    disk.create_area("older", None).unwrap();
    drop(disk);

    let disk = Disk::open(state_dir.path(), &DiskOptions { may_enable_quota: true, ..careful }).unwrap();
    assert!(disk.can_limit());
    assert_eq!(btrfs::quota_state(directory.as_fd()).unwrap(), QuotaState::Full);
    let area = disk.create_area("a", limit(16)).unwrap();
    assert_eq!(disk.usage("a").unwrap().limit, limit(16));
    assert!(is_disk_full(&fill(&area.path().join("file"), 64 * MIB).1.unwrap()));
    let older = disk.set_limit("older", limit(16));
    assert!(matches!(older, Err(DiskError::CannotLimit { .. })), "a plain directory shares its subvolume with others");
    assert_eq!(disk.usage("older").unwrap().limit, None);
    disk.remove_area("older").unwrap();
    disk.destroy().unwrap();
    drop(directory);
    outer.destroy(outer_disk);
}

#[test]
fn figures_in_the_quota_tree_agree_with_the_live_ones() {
    let state = State::new();
    let disk = state.open();
    let area = disk.create_area("a", limit(64)).unwrap();
    assert!(fill(&area.path().join("file"), 20 * MIB).1.is_none());
    let directory = std::fs::File::open(area.path()).unwrap();
    btrfs::sync(directory.as_fd()).unwrap();
    let id = btrfs::subvolume_id(directory.as_fd()).unwrap();
    let figures = btrfs::qgroup_figures(directory.as_fd(), id).unwrap().unwrap();
    assert_eq!(Some(Bytes(figures.referenced)), disk.usage("a").unwrap().used);
    assert_eq!(figures.max_referenced, Some(64 * MIB as u64));
    assert_eq!(btrfs::qgroup_figures(directory.as_fd(), 9999).unwrap(), None);
    drop(directory);
    state.destroy(disk);
}

#[test]
fn many_threads_use_one_disk() {
    let state = State::new();
    let disk = state.open();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let disk = &disk;
            scope.spawn(move || {
                for round in 0..20 {
                    let name = format!("t{thread}r{round}");
                    let area = disk.create_area(&name, limit(16)).unwrap();
                    std::fs::write(area.path().join("file"), name.as_bytes()).unwrap();
                    assert_eq!(disk.usage(&name).unwrap().limit, limit(16));
                    disk.area_names().unwrap();
                    disk.remove_area(&name).unwrap();
                }
            });
        }
    });
    assert!(disk.area_names().unwrap().is_empty());
    state.destroy(disk);
}

#[test]
fn timing_of_200_areas() {
    let state = State::new();
    let opening = Instant::now();
    let disk = state.open();
    let opened = opening.elapsed();
    let mut times = [const { Vec::new() }; 3];
    let mut timed = |kind: usize, step: &dyn Fn(&str)| {
        for n in 0..200 {
            let start = Instant::now();
            step(&format!("a{n}"));
            times[kind].push(start.elapsed());
        }
    };
    timed(0, &|name| drop(disk.create_area(name, limit(64)).unwrap()));
    timed(1, &|name| assert_eq!(disk.usage(name).unwrap().limit, limit(64)));
    timed(2, &|name| disk.remove_area(name).unwrap());
    let devices = std::fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path().join("loop"));
    for device in devices.filter(|device| device.exists()) {
        if std::fs::read_to_string(device.join("backing_file"))
            .is_ok_and(|file| file.contains(state.path().to_str().unwrap()))
        {
            println!("direct I/O below the image: {}", std::fs::read_to_string(device.join("dio")).unwrap().trim());
        }
    }
    println!("open with mkfs and mount: {opened:?}");
    for (what, times) in ["create + limit", "usage", "remove"].iter().zip(&mut times) {
        times.sort();
        println!("{what}: p50 {:?}, p99 {:?}, worst {:?} of {}", times[100], times[197], times[199], times.len());
    }
    state.destroy(disk);
}
