//! The promise of the testkit itself: a test that fails half-way leaves nothing on the machine.

use std::path::PathBuf;
use std::sync::mpsc;

use isopod_node::PoolSize;
use isopod_testkit::{Platform, Residue};

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
