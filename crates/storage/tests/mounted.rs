//! The file system as programs see it, through real mounts of a daemon in a separate process.

#![allow(clippy::unwrap_used, reason = "a panic fails the test, also in the helpers")]

#[path = "../examples/storaged.rs"]
#[expect(dead_code, reason = "its `main` is for manual use")]
mod storaged;
mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use support::Random;
use support::process::{ARGUMENTS, Process, can_mount};

/// Not a test: the daemon that `Process` starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it is the daemon of the other tests"]
async fn daemon_of_the_other_tests() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let arguments: Vec<String> = arguments.lines().map(str::to_owned).collect();
    storaged::run(&arguments).await.expect("the daemon failed");
}

struct World {
    /// The first field, so that its mounts are gone before the directory is removed.
    process: Option<Process>,
    mounts: Vec<String>,
    directory: tempfile::TempDir,
}

impl World {
    /// `a` shows everything, `b` the execution `one`, and `c` the execution `two` with a quota of one megabyte.
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        let mounts = vec![at("a"), format!("{}=one", at("b")), format!("{}=two:1000000", at("c"))];
        let mut world = Self { process: None, mounts, directory };
        world.start();
        world
    }

    fn start(&mut self) {
        let bucket = self.path("bucket").display().to_string();
        self.process = Some(Process::start(&self.path("state"), &bucket, &self.mounts, &[]));
    }

    fn crash_and_restart(&mut self) {
        self.process.take().unwrap().kill();
        self.start();
    }

    fn settle(&mut self) {
        self.process.as_mut().unwrap().settle();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

#[test]
fn programs_find_what_they_expect_of_a_file_system() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let top = world.path("b");
    fs::write(top.join("f"), b"hello").unwrap();
    let mut file = OpenOptions::new().append(true).open(top.join("f")).unwrap();
    file.write_all(b" world").unwrap();
    assert_eq!(fs::read(top.join("f")).unwrap(), b"hello world");
    let mut file = OpenOptions::new().read(true).write(true).open(top.join("f")).unwrap();
    file.seek(SeekFrom::Start(6)).unwrap();
    file.write_all(b"WORLD").unwrap();
    file.set_len(100).unwrap();
    file.rewind().unwrap();
    let mut all = Vec::new();
    file.read_to_end(&mut all).unwrap();
    assert_eq!((&all[..11], all.len(), all[99]), (&b"hello WORLD"[..], 100, 0));

    assert_eq!(fs::create_dir(top.join("f")).unwrap_err().kind(), ErrorKind::AlreadyExists);
    fs::create_dir_all(top.join("d/e")).unwrap();
    assert_eq!(fs::remove_dir(top.join("d")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    assert_eq!(fs::remove_file(top.join("d")).unwrap_err().kind(), ErrorKind::IsADirectory);
    assert_eq!(fs::read(top.join("nothing")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fs::hard_link(top.join("f"), top.join("g")).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(fs::rename(top.join("d"), top.join("d/e/x")).unwrap_err().kind(), ErrorKind::InvalidInput);

    fs::rename(top.join("f"), top.join("d/e/f")).unwrap();
    fs::rename(top.join("d"), top.join("moved")).unwrap();
    assert_eq!(fs::read(top.join("moved/e/f")).unwrap().len(), 100);
    assert!(!top.join("d").exists() && !top.join("f").exists());

    symlink("moved/e/f", top.join("link")).unwrap();
    assert_eq!(fs::read_link(top.join("link")).unwrap(), Path::new("moved/e/f"));
    assert_eq!(fs::read(top.join("link")).unwrap().len(), 100);
    fs::set_permissions(top.join("link"), PermissionsExt::from_mode(0o751)).unwrap();
    let stat = fs::metadata(top.join("moved/e/f")).unwrap();
    assert_eq!((stat.mode(), stat.nlink(), stat.len()), (0o100_751, 1, 100));
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    File::options().write(true).open(top.join("link")).unwrap().set_modified(then).unwrap();
    assert_eq!(fs::metadata(top.join("link")).unwrap().modified().unwrap(), then);
}

#[test]
fn a_removed_file_lives_while_it_is_open() {
    if !can_mount() {
        return;
    }
    let mut world = World::new();
    let path = world.path("b").join("f");
    fs::write(&path, b"still here").unwrap();
    world.settle();
    let mut file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, b"another").unwrap();
    world.settle();
    file.write_all_at(b"STILL", 0).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), file.metadata().unwrap().nlink()), ("STILL here", 0));
    assert_eq!(fs::read(&path).unwrap(), b"another");
}

#[test]
fn xattrs_are_kept_and_limited() {
    if !can_mount() {
        return;
    }
    use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
    let world = World::new();
    let path = world.path("b").join("f");
    fs::write(&path, b"").unwrap();
    setxattr(&path, "user.a", b"one\0two", XattrFlags::CREATE).unwrap();
    assert_eq!(setxattr(&path, "user.a", b"", XattrFlags::CREATE), Err(rustix::io::Errno::EXIST));
    assert_eq!(setxattr(&path, "trusted.a", b"", XattrFlags::empty()), Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!(setxattr(&path, "user.big", &[1; 4000], XattrFlags::empty()), Err(rustix::io::Errno::NOSPC));
    let mut buffer = [0; 100];
    let length = getxattr(&path, "user.a", &mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"one\0two");
    let length = listxattr(&path, &mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"user.a\0");
    removexattr(&path, "user.a").unwrap();
    assert_eq!(getxattr(&path, "user.a", &mut buffer), Err(rustix::io::Errno::NODATA));
}

#[test]
fn what_one_mount_changes_the_other_sees_at_once() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let (host, sandbox) = (world.path("a/executions/one"), world.path("b"));
    for round in 0..50_u32 {
        let text = format!("round {round} {}", "x".repeat(round as usize * 7));
        fs::write(host.join("f"), &text).unwrap();
        assert_eq!(fs::read_to_string(sandbox.join("f")).unwrap(), text);
        // In the other direction, through an open file and its cached pages.
        let file = OpenOptions::new().read(true).write(true).open(sandbox.join("f")).unwrap();
        file.write_all_at(b"ROUND", 0).unwrap();
        assert!(fs::read_to_string(host.join("f")).unwrap().starts_with("ROUND"));
        fs::rename(host.join("f"), host.join("g")).unwrap();
        assert!(!sandbox.join("f").exists() && sandbox.join("g").exists());
        fs::remove_file(sandbox.join("g")).unwrap();
        assert_eq!(fs::read(host.join("g")).unwrap_err().kind(), ErrorKind::NotFound);
    }
}

#[test]
fn appends_through_two_mounts_never_overwrite_each_other() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let (host, sandbox) = (world.path("a/executions/one/log"), world.path("b/log"));
    fs::write(&host, b"").unwrap();
    std::thread::scope(|scope| {
        for (path, word) in [(&host, "host\n"), (&sandbox, "sand\n")] {
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).open(path).unwrap();
                (0..200).for_each(|_| file.write_all(word.as_bytes()).unwrap());
            });
        }
    });
    let text = fs::read_to_string(&host).unwrap();
    assert_eq!(text.lines().filter(|line| *line == "host").count(), 200);
    assert_eq!(text.lines().filter(|line| *line == "sand").count(), 200);
}

#[test]
fn an_execution_sees_only_its_own_files() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    fs::write(world.path("a/executions/two/secret"), b"of two").unwrap();
    fs::write(world.path("a/executions/one/own"), b"of one").unwrap();
    let names: Vec<_> = fs::read_dir(world.path("b")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["own"]);
    for way in ["../two/secret", "executions/two/secret", "secret", "..\\two\\secret"] {
        assert!(fs::read(world.path("b").join(way)).is_err(), "{way}");
    }
    symlink("/executions/two/secret", world.path("b/link")).unwrap();
    assert!(fs::read(world.path("b/link")).is_err());
}

#[test]
fn a_quota_is_kept() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let top = world.path("c");
    fs::write(top.join("f"), vec![0; 900_000]).unwrap();
    let error = fs::write(top.join("g"), vec![0; 200_000]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::DQUOT.raw_os_error()));
    let stat = rustix::fs::statvfs(&top).unwrap();
    assert!(stat.f_blocks * stat.f_frsize <= 1_000_000, "the room is that of the quota");
    fs::remove_file(top.join("f")).unwrap();
    fs::write(top.join("g"), vec![0; 800_000]).unwrap();
    fs::write(world.path("b/g"), vec![0; 2_000_000]).unwrap();

    // A file without a name takes as much disk space as any other, for as long as it is open.
    let mut nameless = File::create(top.join("u")).unwrap();
    fs::remove_file(top.join("u")).unwrap();
    nameless.write_all(&[0; 100_000]).unwrap();
    let error = nameless.write_all(&[0; 200_000]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::DQUOT.raw_os_error()));
    drop(nameless);
    fs::write(top.join("h"), vec![0; 190_000]).unwrap();
}

#[test]
fn closed_files_survive_the_death_of_the_daemon() {
    if !can_mount() {
        return;
    }
    let mut world = World::new();
    for round in 0..3_u32 {
        for index in 0..40_u32 {
            fs::write(world.path("b").join(format!("{round}-{index}")), format!("{round} {index}")).unwrap();
        }
        fs::create_dir(world.path("b").join(format!("d{round}"))).unwrap();
        fs::rename(world.path("b").join(format!("{round}-0")), world.path("b").join(format!("d{round}/moved")))
            .unwrap();
        fs::remove_file(world.path("b").join(format!("{round}-1"))).unwrap();
        let open = File::create(world.path("b").join(format!("open{round}"))).unwrap();
        (&open).write_all(b"written, not closed").unwrap();
        world.crash_and_restart();
        assert!((&open).write_all(b"x").is_err(), "the old connection is dead, and says so");
        for index in 2..40_u32 {
            let text = fs::read_to_string(world.path("b").join(format!("{round}-{index}"))).unwrap();
            assert_eq!(text, format!("{round} {index}"));
        }
        assert_eq!(fs::read_to_string(world.path("b").join(format!("d{round}/moved"))).unwrap(), format!("{round} 0"));
        assert!(!world.path("b").join(format!("{round}-0")).exists());
        assert!(!world.path("b").join(format!("{round}-1")).exists());
        assert_eq!(fs::read(world.path("b").join(format!("open{round}"))).unwrap(), b"written, not closed");
    }
    world.settle();
    assert_eq!(fs::read(world.path("bucket/executions/one/2-39")).unwrap(), b"2 39");
}

#[test]
fn a_new_daemon_takes_over_the_mount_of_a_dead_one() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let mount = at("mount");
    fs::create_dir(&mount).unwrap();
    // This test holds the descriptor: it mounts, and keeps the descriptor when the daemon dies.
    let fd = isopod_storage::mount(&mount).unwrap();
    let bucket = at("bucket").display().to_string();
    let mut first = Process::serve(&at("state"), &bucket, "serve=run", fd.try_clone().unwrap());
    fs::write(mount.join("f"), b"written through the first").unwrap();
    fs::create_dir(mount.join("d")).unwrap();
    fs::write(mount.join("d/g"), b"below").unwrap();
    let mut dirty = OpenOptions::new().read(true).append(true).open(mount.join("f")).unwrap();
    while !at("bucket/executions/run/d/g").exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let clean = File::open(mount.join("d/g")).unwrap();
    first.kill();
    let blocked = std::thread::spawn({
        let path = mount.join("f");
        move || fs::read(path).unwrap()
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!blocked.is_finished(), "nobody answers meanwhile");
    let mut second = Process::serve(&at("state"), &bucket, "take-over=run", fd.try_clone().unwrap());
    assert_eq!(blocked.join().unwrap(), b"written through the first");
    dirty.write_all(b" and the second").unwrap();
    assert_eq!(fs::read(mount.join("f")).unwrap(), b"written through the first and the second");
    let mut buffer = [0; 5];
    clean.read_exact_at(&mut buffer, 0).unwrap();
    assert_eq!(&buffer, b"below");
    fs::write(mount.join("d/h"), b"new").unwrap();
    assert_eq!(fs::read_dir(mount.join("d")).unwrap().count(), 2);
    drop((dirty, clean));
    isopod_storage::unmount(&mount).unwrap();
    drop(fd);
    second.kill();
}

/// Like a sandbox: `/dev/fuse` is opened and mounted inside, and only the descriptor is passed out.
#[test]
fn a_mount_made_in_another_user_namespace_is_served_from_outside() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("mount")).unwrap();
    let script = "exec 3<>/dev/fuse && \
        mount -i -n -t fuse.isopod -o fd=3,rootmode=40000,user_id=0,group_id=0,allow_other,nosuid,nodev isopod \"$0\" && \
        echo mounted && read served && echo inside > \"$0/f\" && chmod 600 \"$0/f\" && cat \"$0/f\"";
    let mut inside = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(at("mount"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = std::io::BufReader::new(inside.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "mounted\n", "the mount inside");
    let pid = rustix::process::Pid::from_child(&inside);
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    let fd = rustix::process::pidfd_getfd(&process, 3, rustix::process::PidfdGetfdFlags::empty()).unwrap();
    let bucket = at("bucket").display().to_string();
    let mut daemon = Process::serve(&at("state"), &bucket, "serve=run", fd);
    inside.stdin.take().unwrap().write_all(b"go\n").unwrap();
    line.clear();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "inside\n");
    assert!(inside.wait().unwrap().success());
    assert_eq!(fs::read_dir(at("mount")).unwrap().count(), 0, "outside nothing is mounted");
    daemon.kill();
    let mount = format!("{}=run", at("mount").display());
    let again = Process::start(&at("state"), &bucket, &[mount], &[]);
    assert_eq!(fs::read(at("mount/f")).unwrap(), b"inside\n");
    drop(again);
}

#[test]
fn names_of_any_bytes_come_back() {
    if !can_mount() {
        return;
    }
    let mut world = World::new();
    let mut names: Vec<Vec<u8>> =
        (1..=255_u8).filter(|byte| *byte != b'/').map(|byte| vec![b'x', byte, b'y']).collect();
    names.extend([b"%0A".to_vec(), b"%25".to_vec(), b" ".to_vec(), vec![0xff; 85], "日本語".into(), b"a%00".to_vec()]);
    for name in &names {
        let path = world.path("b").join(std::ffi::OsString::from_vec(name.clone()));
        fs::write(path, name).unwrap();
    }
    world.settle();
    // A new state directory knows only what is in the bucket.
    world.process.take().unwrap().kill();
    fs::remove_dir_all(world.path("state")).unwrap();
    world.start();
    let mut found: Vec<Vec<u8>> =
        fs::read_dir(world.path("b")).unwrap().map(|entry| entry.unwrap().file_name().into_vec()).collect();
    found.sort();
    names.sort();
    assert!(found == names, "the names differ");
    for name in &names {
        let path = world.path("b").join(std::ffi::OsString::from_vec(name.clone()));
        assert_eq!(&fs::read(path).unwrap(), name);
    }
    // In a directory of this host, the escaped name must fit too. An S3 bucket accepts it.
    let long = std::ffi::OsString::from_vec(vec![0xff; 86]);
    assert_eq!(fs::write(world.path("b").join(long), b"").unwrap_err().kind(), ErrorKind::InvalidFilename);
    assert_eq!(fs::write(world.path("b").join("x".repeat(256)), b"").unwrap_err().kind(), ErrorKind::InvalidFilename);
}

#[test]
fn twelve_thousand_files_in_a_directory() {
    if !can_mount() {
        return;
    }
    let mut world = World::new();
    let directory = world.path("b/many");
    fs::create_dir(&directory).unwrap();
    for index in 0..12_000_u32 {
        fs::write(directory.join(format!("f{index:05}")), index.to_string()).unwrap();
    }
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 12_000);
    fs::rename(&directory, world.path("b/renamed")).unwrap();
    world.settle();
    assert_eq!(fs::read_dir(world.path("bucket/executions/one/renamed")).unwrap().count(), 12_000);
    assert_eq!(fs::read_to_string(world.path("b/renamed/f11999")).unwrap(), "11999");
    fs::remove_dir_all(world.path("b/renamed")).unwrap();
    world.settle();
    assert!(!world.path("bucket/executions/one/renamed").exists());
}

/// Random reads, writes and truncations through two mounts, compared with a plain buffer.
#[test]
fn random_edits_through_two_mounts_keep_every_byte() {
    if !can_mount() {
        return;
    }
    for seed in 1..=4 {
        let mut world = World::new();
        let mut random = Random(seed);
        let mut expected: Vec<u8> = Vec::new();
        let paths = [world.path("a/executions/one/f"), world.path("b/f")];
        fs::write(&paths[0], b"").unwrap();
        let open = || paths.clone().map(|path| OpenOptions::new().read(true).write(true).open(path).unwrap());
        let mut files = open();
        for step in 0..600 {
            let file = &files[random.below(2) as usize];
            let offset = random.below(300_000);
            let length = random.below(70_000) as usize;
            match random.below(10) {
                0..5 => {
                    let data = random.bytes(length);
                    file.write_all_at(&data, offset).unwrap();
                    if !data.is_empty() {
                        let end = offset as usize + data.len();
                        expected.resize(expected.len().max(end), 0);
                        expected[offset as usize..end].copy_from_slice(&data);
                    }
                }
                5..8 => {
                    let mut buffer = vec![0; length];
                    let got = read_full(file, &mut buffer, offset);
                    let end = expected.len().min(offset as usize + length);
                    let wanted = expected.get(offset as usize..end).unwrap_or_default();
                    assert!(buffer[..got] == *wanted, "seed {seed} step {step}: {length} bytes at {offset} differ");
                }
                8 => {
                    file.set_len(offset).unwrap();
                    expected.resize(offset as usize, 0);
                }
                _ if random.below(10) == 0 => {
                    files[0].sync_all().unwrap();
                    world.crash_and_restart();
                    files = open();
                }
                _ => assert_eq!(file.metadata().unwrap().len(), expected.len() as u64, "seed {seed} step {step}"),
            }
        }
        world.settle();
        assert!(fs::read(world.path("bucket/executions/one/f")).unwrap() == expected, "the object differs");
    }
}

fn read_full(file: &File, buffer: &mut [u8], offset: u64) -> usize {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64).unwrap() {
            0 => break,
            count => done += count,
        }
    }
    done
}
