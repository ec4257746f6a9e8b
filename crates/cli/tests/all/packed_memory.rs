//! Saved memory that rests is packed, and whatever uses it finds it as it was.
//!
//! These need the CRIU that `cargo xtask setup` builds. Where that is not possible, they say so and pass; CI has it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use crate::{common, memory};

use std::path::{Path, PathBuf};

use common::{Server, has_criu};
use isopod_client::guest::StartProcess;
use isopod_client::sandbox::{ApiError, NewSandbox, NewSnapshot, Sandbox};
use isopod_testkit::StateDir;
use memory::{connect_without_memory, create, executions, record_of, until, user_of};
use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

/// A program that holds random bytes, and writes how often it has done so with their hash.
const HOLDER: &str = "exec python3 -c \"
import hashlib, os, time
data = os.urandom(8 << 20)
n = 0
while True:
    n += 1
    open('n.new', 'w').write(f'{n} {hashlib.sha256(data).hexdigest()}'); os.rename('n.new', 'n')
    time.sleep(0.01)\"";

fn serve(state: &StateDir) -> Server {
    memory::serve(state, &["--save-paused-after", "1", "--pack-memory-after", "1"])
}

/// What the program has written since `after`.
async fn goes_on(sandbox: &Sandbox, after: u32) -> (u32, String) {
    let user = user_of(sandbox);
    until("it goes on", async || {
        let text = user.run("cat n").await.unwrap().text().to_owned();
        let (n, hash) = text.trim().split_once(' ')?;
        Some((n.parse().unwrap(), hash.to_owned())).filter(|(n, _)| *n > after)
    })
    .await
}

/// The directories of saved memory.
fn memories(state: &StateDir) -> Vec<PathBuf> {
    executions(state).into_iter().map(|execution| execution.join("memory")).filter(|memory| memory.exists()).collect()
}

fn has_pages(memory: &Path) -> bool {
    let images = std::fs::read_dir(memory.join("images")).into_iter().flatten();
    images.flatten().any(|image| image.file_name().to_string_lossy().starts_with("pages-"))
}

async fn until_packed(state: &StateDir, number: usize) {
    until("all saved memory is packed", async || {
        let all = memories(state);
        let is_packed = |memory: &PathBuf| memory.join("packed.json").exists() && !has_pages(memory);
        (all.len() == number && all.iter().all(is_packed)).then_some(())
    })
    .await;
}

fn kinds_in_df(state: &StateDir) -> Vec<String> {
    let rows: Vec<Value> = serde_json::from_str(&state.isopod().run(&["df", "--json"]).ok()).unwrap();
    rows.iter().map(|row| row["kind"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_and_a_snapshot_share_chunks_survive_kills_and_leave_none() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let sandbox = create(&server.client(), "base").await;
    user_of(&sandbox).start(StartProcess::shell(HOLDER)).await.unwrap();
    let (counted, hash) = goes_on(&sandbox, 0).await;
    sandbox.snapshot(&NewSnapshot { name: Some("kept".to_owned()), ..NewSnapshot::default() }).await.unwrap();
    sandbox.pause(true).await.unwrap();
    until_packed(&state, 2).await;
    let chunks = state.path().join("homes/serve/chunks");
    let size = |path: &Path| -> u64 {
        let output = std::process::Command::new("du").args(["-sb"]).arg(path).output().unwrap();
        String::from_utf8(output.stdout).unwrap().split_whitespace().next().unwrap().parse().unwrap()
    };
    // Each has 8 MiB that do not compress.
    let kept = size(&chunks);
    assert!((8 << 20..15 << 20).contains(&kept), "{kept} bytes for two times the same memory");
    assert!(kinds_in_df(&state).contains(&"packed".to_owned()));

    server.kill();
    let server = serve(&state);
    let client = server.client();
    assert!(!memories(&state).iter().any(|memory| has_pages(memory)), "the next server leaves it packed");
    let kept = || create(&client, "kept");
    let (resumed, first, second) = tokio::join!(client.connect(sandbox.id(), None), kept(), kept());
    let all = [resumed.unwrap(), first, second];
    for one in &all {
        assert_eq!(goes_on(one, counted).await.1, hash);
    }
    // It may be made again in part when a server dies, and the next one begins anew.
    server.kill();
    for memory in memories(&state).into_iter().filter(|memory| has_pages(memory)) {
        std::fs::write(memory.join("images/pages-1.img"), "a part").unwrap();
    }
    let server = serve(&state);
    let client = server.client();
    let copy = create(&client, "kept").await;
    assert_eq!(goes_on(&copy, counted).await.1, hash);

    for one in all.iter().chain([&copy]) {
        assert!(client.kill(one.id()).await.unwrap());
    }
    assert!(client.remove_snapshot("kept").await.unwrap());
    until("no chunk is left", async || (!chunks.exists()).then_some(())).await;
    assert!(!kinds_in_df(&state).contains(&"packed".to_owned()));
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_chunk_is_told_and_the_files_are_kept() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let client = server.client();
    let sandbox = create(&client, "base").await;
    user_of(&sandbox).write_file("file", "its files are there").await.unwrap();
    user_of(&sandbox).start(StartProcess::shell(HOLDER)).await.unwrap();
    goes_on(&sandbox, 0).await;
    sandbox.pause(true).await.unwrap();
    until_packed(&state, 1).await;
    let damage = "for chunk in $(find homes/serve/chunks -type f); do truncate -s 10 $chunk; done";
    let damaged = std::process::Command::new("sh").args(["-c", damage]).current_dir(state.path()).status();
    assert!(damaged.unwrap().success());

    let refused = client.connect(sandbox.id(), None).await.unwrap_err();
    let ApiError::Conflict { message, error_code, .. } = &refused else { panic!("{refused:?}") };
    assert!(message.contains("could not unpack the memory") && message.contains("its files are kept"), "{message}");
    assert_eq!(error_code.as_deref(), Some("memory_not_saved"));
    assert_eq!(record_of(&state, sandbox.id().as_str()).unwrap()["state"], "saved");

    let again = connect_without_memory(&server, &sandbox).await;
    assert_eq!(user_of(&again).run("cat file").await.unwrap().text(), "its files are there");
    assert!(again.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_setting_nothing_is_packed_and_what_is_packed_can_be_used() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let sandbox = create(&server.client(), "base").await;
    user_of(&sandbox).start(StartProcess::shell(HOLDER)).await.unwrap();
    let (counted, hash) = goes_on(&sandbox, 0).await;
    sandbox.snapshot(&NewSnapshot { name: Some("kept".to_owned()), ..NewSnapshot::default() }).await.unwrap();
    until_packed(&state, 1).await;
    assert!(server.client().kill(sandbox.id()).await.unwrap());
    server.stop();

    let server = memory::serve(&state, &["--pack-memory-after", "0"]);
    let client = server.client();
    let copy = client.create(NewSandbox::new("kept")).await.unwrap();
    assert_eq!(goes_on(&copy, counted).await.1, hash);
    assert!(memories(&state).iter().all(|memory| has_pages(memory)));
    assert!(copy.kill().await.unwrap());
    assert!(client.remove_snapshot("kept").await.unwrap());
    server.stop();
    // Chunks that nothing names go when a server starts.
    let server = serve(&state);
    assert!(!state.path().join("homes/serve/chunks").exists());
    server.stop();
    state.assert_nothing_left();
}
