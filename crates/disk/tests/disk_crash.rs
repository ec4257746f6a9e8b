//! What a killed process, a half-made image or a second process leaves behind, and how it is handled.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that cannot go on fails; timings are printed")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use isopod_disk::{Disk, DiskError, NoLimit};
use isopod_wire::Bytes;
use support::{State, small};

/// Not a test: this is the process that the tests below start and kill.
#[test]
#[ignore = "run by other tests as a process of its own"]
fn process_that_works_until_killed() {
    let state_dir = PathBuf::from(std::env::var_os("DISK_TEST_STATE").expect("only run by other tests"));
    let disk = Disk::open(&state_dir, &small()).unwrap();
    println!("open");
    for round in 0.. {
        let name = format!("p{}r{round}", std::process::id());
        disk.create_area(&name, Some(Bytes::mib(16))).unwrap();
        if round == 0 {
            println!("made");
        }
        if round % 3 != 0 {
            disk.remove_area(&name).unwrap();
        }
    }
}

fn worker(state: &State) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "process_that_works_until_killed", "--nocapture"])
        .env("DISK_TEST_STATE", state.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_kill_at_any_instant_leaves_only_areas_that_can_be_removed() {
    let state = State::new();
    for round in 0..40 {
        let mut child = worker(&state);
        // On a busy machine, no process would create its first area in so short a time. So the test waits for every
        // other one.
        if round % 2 == 1 {
            let mut said = BufReader::new(child.stdout.as_mut().unwrap()).lines().map_while(Result::ok);
            assert!(said.any(|line| line.ends_with("made")), "it ended before its first area");
        }
        std::thread::sleep(Duration::from_millis(round * 3));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(state.mounts() <= 1 && state.loop_devices() <= 1);
    }
    let disk = state.open();
    assert!(disk.can_limit());
    assert_eq!((state.mounts(), state.loop_devices()), (1, 1));
    let names = disk.area_names().unwrap();
    assert!(!names.is_empty(), "some of the processes came so far");
    for name in names {
        disk.remove_area(name.as_str()).unwrap();
    }
    state.close(disk);
    let disk = state.open();
    state.destroy(disk);
}

#[test]
fn a_kill_during_set_up_is_repaired_by_the_next_process() {
    for milliseconds in 0..40 {
        let state = State::new();
        let mut child = worker(&state);
        std::thread::sleep(Duration::from_millis(milliseconds));
        child.kill().unwrap();
        child.wait().unwrap();
        let disk = state.open();
        assert_eq!(disk.no_limit(), None, "killed after {milliseconds} ms");
        disk.create_area("a", Some(Bytes::mib(16))).unwrap();
        state.destroy(disk);
    }
}

#[test]
fn processes_that_open_at_once_share_one_mount() {
    let state = State::new();
    let mut children = (0..6).map(|_| worker(&state)).collect::<Vec<_>>();
    for child in &mut children {
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("open")), "a process could not open");
    }
    assert_eq!((state.mounts(), state.loop_devices()), (1, 1));
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let disk = state.open();
    state.destroy(disk);
}

#[test]
fn threads_that_open_and_destroy_at_once_leave_nothing() {
    let state = State::new();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..5 {
                    match state.open().destroy() {
                        Ok(()) | Err(DiskError::StillInUse(_)) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                }
            });
        }
    });
    let disk = state.open();
    state.destroy(disk);
}

#[test]
fn a_half_made_image_is_made_anew() {
    let state = State::new();
    std::fs::write(state.path().join("disk.btrfs.new"), "half").unwrap();
    std::fs::write(state.path().join("disk.btrfs"), "never mounted").unwrap();
    let disk = state.open();
    assert!(disk.can_limit());
    state.destroy(disk);
}

#[test]
fn an_image_that_was_in_use_is_never_replaced() {
    let state = State::new();
    let disk = state.open();
    disk.create_area("a", None).unwrap();
    drop(disk);
    rustix::mount::unmount(state.path().join("disk"), rustix::mount::UnmountFlags::empty()).unwrap();
    let image = state.path().join("disk.btrfs");
    let kept = state.path().join("kept");
    std::fs::rename(&image, &kept).unwrap();
    assert!(matches!(Disk::open(state.path(), &small()), Err(DiskError::ImageUnusable { .. })), "missing");
    std::fs::write(&image, "damaged").unwrap();
    assert!(matches!(Disk::open(state.path(), &small()), Err(DiskError::ImageUnusable { .. })), "damaged");
    assert_eq!(std::fs::read(&image).unwrap(), b"damaged");
    state.assert_nothing_left();

    std::fs::rename(&kept, &image).unwrap();
    let disk = state.open();
    assert_eq!(disk.area_names().unwrap().len(), 1);
    state.destroy(disk);
}

#[test]
fn a_mount_that_is_not_ours_is_left_alone() {
    let state = State::new();
    let root = state.path().join("disk");
    std::fs::create_dir(&root).unwrap();
    rustix::mount::mount("none", &root, c"tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    assert!(matches!(Disk::open(state.path(), &small()), Err(DiskError::ForeignMount(_))));
    assert_eq!(state.mounts(), 1);
    rustix::mount::unmount(&root, rustix::mount::UnmountFlags::empty()).unwrap();
}

#[test]
fn a_disk_in_use_elsewhere_is_not_destroyed() {
    let state = State::new();
    let disk = state.open();
    let area = disk.create_area("a", None).unwrap();
    let held = std::fs::File::create(area.path().join("file")).unwrap();
    assert!(matches!(disk.destroy(), Err(DiskError::StillInUse(_))));
    drop(held);
    let disk = state.open();
    assert_eq!(disk.area_names().unwrap().len(), 1, "nothing was removed");
    state.destroy(disk);
}

#[test]
fn a_copy_of_the_mount_in_another_namespace_is_told_and_does_no_harm() {
    let state = State::new();
    let disk = state.open();
    // It keeps only our copies of mounts, so that the disks of servers and other tests on this machine do not stay
    // busy.
    let script = r#"awk -v own="$0/" '$1 ~ "^/dev/loop" && $2 != "/" && index($2, own) != 1 { print $2 }' /proc/self/mounts |
        tac | xargs -r -n 1 umount -l; echo ready; exec sleep 1000"#;
    let mut holder = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .arg(state.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    assert!(matches!(disk.close_if_unused(), Err(DiskError::StillInUse(_))));
    assert_eq!((state.mounts(), state.loop_devices()), (0, 1));

    let disk = state.open();
    assert_eq!((state.mounts(), state.loop_devices()), (1, 1), "the same loop device, not a second one");
    disk.create_area("a", Some(Bytes::mib(16))).unwrap();
    assert!(matches!(disk.destroy(), Err(DiskError::StillInUse(_))));
    let fresh = state.open();
    assert!(fresh.can_limit() && fresh.area_names().unwrap().is_empty(), "a new image");
    holder.kill().unwrap();
    holder.wait().unwrap();
    state.destroy(fresh);
}

#[test]
fn an_mkfs_that_fails_gives_plain_directories_and_leaves_no_file() {
    let state = State::new();
    let options = isopod_disk::DiskOptions { mkfs_program: PathBuf::from("/bin/false"), ..small() };
    let disk = Disk::open(state.path(), &options).unwrap();
    assert!(matches!(disk.no_limit(), Some(NoLimit::MkfsFailed(_))));
    assert!(!state.path().join("disk.btrfs.new").exists());
    state.destroy(disk);

    let options = isopod_disk::DiskOptions { mkfs_program: PathBuf::from("/bin/true"), ..small() };
    let disk = Disk::open(state.path(), &options).unwrap();
    assert!(matches!(disk.no_limit(), Some(NoLimit::MountRefused(_))), "{:?}", disk.no_limit());
    state.destroy(disk);

    let options = isopod_disk::DiskOptions { image_size: Some(Bytes::mib(8)), ..small() };
    let disk = Disk::open(state.path(), &options).unwrap();
    assert!(matches!(disk.no_limit(), Some(NoLimit::NoRoom { .. })));
    state.destroy(disk);
}
