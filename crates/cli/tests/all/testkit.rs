//! The promises of the testkit itself: a test that fails half-way leaves nothing on the machine, and what other servers
//! have on it is not taken for residue.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;

use isopod_node::PoolSize;
use isopod_testkit::{Platform, Residue, StateDir};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

#[test]
fn a_test_that_panics_with_sandboxes_leaves_neither_them_nor_its_directory() {
    let (sender, receiver) = mpsc::channel::<PathBuf>();
    let failing = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let platform = Platform::start_with(BINARY, PoolSize { ready: 1, prepared: 1 }).await;
            let sandbox = platform.sandbox().await;
            sender.send(platform.state().path().to_owned()).unwrap();
            assert_eq!(sandbox.sh("echo one").await.ok(), "two\n", "on purpose");
        });
    });
    let state = receiver.recv().unwrap();
    failing.join().expect_err("it panicked");
    assert!(Residue::of(&state).is_empty(), "{:?}", Residue::of(&state));
    assert!(!state.exists(), "{} is still there", state.display());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_ends_clean_beside_a_server_that_goes_on() {
    let other = Platform::start(BINARY).await;
    let theirs = other.sandbox().await;
    let platform = Platform::start(BINARY).await;
    let ours = platform.sandbox().await;
    assert_eq!(ours.sh("echo ours").await.ok(), "ours\n");
    assert!(!Residue::of(platform.state().path()).is_empty(), "a sandbox that runs is something");
    platform.finish().await;
    assert!(!Residue::of(other.state().path()).is_empty());
    assert_eq!(theirs.sh("echo theirs").await.ok(), "theirs\n", "nothing of the other was removed");
    other.finish().await;
}

/// A loop device on a file, until it is dropped.
struct Attached(String);

impl Attached {
    fn new(file: &Path) -> Self {
        std::fs::File::create(file).and_then(|file| file.set_len(1 << 20)).expect("a file");
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output().expect("util-linux");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Self(String::from_utf8_lossy(&made.stdout).trim().to_owned())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn only_loop_devices_of_the_state_directory_are_residue() {
    let state = StateDir::new(BINARY);
    // The worst case: a path that begins like ours.
    let name = format!("{}-other", state.path().file_name().expect("it has a name").to_string_lossy());
    let other = tempfile::Builder::new().prefix(&name).tempdir_in("/var/tmp").expect("a directory");
    let theirs = Attached::new(&other.path().join("disk.btrfs"));
    assert!(Residue::of(state.path()).is_empty(), "{:?}", Residue::of(state.path()));
    let ours = Attached::new(&state.path().join("disk.btrfs"));
    let seen = format!("{:?}", Residue::of(state.path()));
    let own = format!("loop device {}\"", ours.0.trim_start_matches("/dev/"));
    assert!(seen.contains(&own) && seen.matches("loop device").count() == 1, "{seen}");
    drop((ours, theirs));
    state.assert_nothing_left();
}
