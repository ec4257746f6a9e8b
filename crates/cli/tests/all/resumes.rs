//! Resumes from saved memory that something came between: the death of the server, or a reboot of the host.
//!
//! These need the CRIU that `cargo xtask setup` builds. Where that is not possible, they say so and pass; CI has it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use crate::{common, memory};

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{Server, has_criu};
use isopod_client::guest::{Guest, StartProcess};
use isopod_client::sandbox::{ApiError, Client, NewSandbox, NewSnapshot, Sandbox};
use isopod_testkit::StateDir;
use memory::{boxes, connect_without_memory, executions, python_programs, record, until, user_of};
use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");
/// Longer than any machine that runs these tests has been up.
const LONG_UPTIME: i64 = 1_000_000_000;
const NANOS: i64 = 1_000_000_000;

fn serve(state: &StateDir) -> Server {
    memory::serve(state, &["--save-paused-after", "1"])
}

async fn create(client: &Client) -> Sandbox {
    memory::create(client, "base").await
}

async fn output(guest: &Guest, command: &str) -> String {
    String::from_utf8(guest.run(command).await.unwrap().stdout.to_vec()).unwrap().trim().to_owned()
}

/// The execution that is saved, if its record says so.
fn saved_execution(state: &StateDir) -> Option<PathBuf> {
    executions(state).into_iter().find(|execution| {
        let record = record(execution);
        record["state"] == "saved" && record["init"].is_null()
    })
}

async fn pause_to_disk(state: &StateDir, sandbox: &Sandbox) -> PathBuf {
    sandbox.pause(true).await.unwrap();
    until("its memory is saved", async || saved_execution(state)).await
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// A command that counts in memory, so that only one state is right.
const COUNTER: &str = "exec python3 -c \"
import time
n = 0
while True:
    n += 1
    open('n.new', 'w').write(str(n)); __import__('os').rename('n.new', 'n')
    time.sleep(0.01)\"";

async fn goes_on(guest: &Guest, after: u32) -> u32 {
    until("it counts on", async || {
        let n: u32 = output(guest, "cat n").await.parse().unwrap_or(0);
        (n > after).then_some(n)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_after_a_resume_removes_only_what_the_sandbox_was() {
    if !has_criu() {
        return;
    }
    // What is left of the former execution: all of it, or what its removal had not reached.
    for with_record in [true, false] {
        let state = StateDir::new(BINARY);
        let server = serve(&state);
        let sandbox = create(&server.client()).await;
        user_of(&sandbox).start(StartProcess::shell(COUNTER)).await.unwrap();
        let counted = goes_on(&user_of(&sandbox), 3).await;
        let former = pause_to_disk(&state, &sandbox).await;
        let kept = tempfile::tempdir_in(state.path()).unwrap();
        copy(&former, kept.path());
        let resumed = server.client().connect(sandbox.id(), None).await.unwrap();
        let counted = goes_on(&user_of(&resumed), counted).await;
        server.kill();
        copy(&kept.path().join(former.file_name().unwrap()), &boxes(&state));
        if !with_record {
            std::fs::remove_file(former.join("record.json")).unwrap();
        }
        drop(kept);

        let server = serve(&state);
        let again = server.client().connect(sandbox.id(), None).await.unwrap();
        goes_on(&user_of(&again), counted + 1).await;
        assert!(!former.exists(), "with its record: {with_record}");
        user_of(&again).write_file("file", "its files are there").await.unwrap();
        assert_eq!(output(&user_of(&again), "cat file").await, "its files are there");
        assert!(again.kill().await.unwrap());
        server.stop();
        state.assert_nothing_left();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resume_that_did_not_survive_the_server_leaves_what_was_saved() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let sandbox = create(&server.client()).await;
    user_of(&sandbox).start(StartProcess::shell(COUNTER)).await.unwrap();
    goes_on(&user_of(&sandbox), 3).await;
    let former = pause_to_disk(&state, &sandbox).await;
    server.stop();
    let before = tempfile::tempdir_in(state.path()).unwrap();
    copy(&former, before.path());
    let files_of = state.path().join("disk/areas").join(record(&former)["area"].as_str().unwrap());
    let kept_files = before.path().join("files");
    copy(&files_of, &kept_files);
    let database = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("isopod.db");
    let files = std::fs::read_dir(state.path()).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<PathBuf> = files.filter(|path| database(path.file_name().unwrap())).collect();
    files.iter().for_each(|file| copy(file, before.path()));

    let server = serve(&state);
    server.client().connect(sandbox.id(), None).await.unwrap();
    server.kill();
    // A power cut before its processes went on ends the new execution, and the answer never reaches the database.
    let (_, init) = running_execution(&state, &sandbox);
    signal("KILL", init);
    // The kernel ends the others first. Until then, the counter writes to the files that come back below.
    until("all its processes have ended", async || has_ended(init).then_some(())).await;
    assert!(Command::new("find").arg(&files_of).args(["-mindepth", "1", "-delete"]).status().unwrap().success());
    copy(&kept_files.join("."), &files_of);
    copy(&before.path().join(former.file_name().unwrap()), &boxes(&state));
    files.iter().for_each(|file| copy(&before.path().join(file.file_name().unwrap()), state.path()));
    drop(before);

    let server = serve(&state);
    let again = server.client().connect(sandbox.id(), None).await.unwrap();
    goes_on(&user_of(&again), 3).await;
    assert!(again.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

/// The directory of a sandbox's execution and the pid of its first process.
fn running_execution(state: &StateDir, sandbox: &Sandbox) -> (PathBuf, u32) {
    let mut running = executions(state).into_iter().filter_map(|execution| {
        let record = record(&execution);
        let is_it = record["spec"]["sandbox"] == sandbox.id().as_str();
        is_it.then(|| record["init"]["pid"].as_u64())?.map(|pid| (execution, u32::try_from(pid).unwrap()))
    });
    running.next().unwrap()
}

fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().unwrap().success());
}

/// Whether a process is gone, or waits for its parent to take notice.
fn has_ended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let lists = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("children")).unwrap());
    lists.flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_programs_go_on_under_the_next_server_if_theirs_died_before() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let sandbox = create(&server.client()).await;
    let guest = user_of(&sandbox);
    guest.start(StartProcess::shell(COUNTER)).await.unwrap();
    let stopped = guest.start(StartProcess::shell("kill -STOP $$; exec sleep 600")).await.unwrap().pid();
    let state_of = format!("cut -d' ' -f3 /proc/{stopped}/stat");
    until("it stops itself", async || (output(&guest, &state_of).await == "T").then_some(())).await;
    let counted = goes_on(&guest, 3).await;
    pause_to_disk(&state, &sandbox).await;
    let resumed = server.client().connect(sandbox.id(), None).await.unwrap();
    let counted = goes_on(&user_of(&resumed), counted).await;
    server.kill();
    // As they are before the server lets them go on.
    let (execution, init) = running_execution(&state, &sandbox);
    let programs = children(init);
    assert_eq!(programs.len(), 2, "{programs:?}");
    programs.into_iter().for_each(|program| signal("STOP", program));
    let mut changed = record(&execution);
    assert!(changed.get("not_continued").is_none(), "{changed}");
    changed["not_continued"] = [stopped].as_slice().into();
    std::fs::write(execution.join("record.json"), serde_json::to_vec(&changed).unwrap()).unwrap();

    let server = serve(&state);
    let again = server.client().connect(sandbox.id(), None).await.unwrap();
    goes_on(&user_of(&again), counted + 1).await;
    assert_eq!(output(&user_of(&again), &state_of).await, "T", "it had stopped itself");
    assert!(record(&execution).get("not_continued").is_none());
    assert!(again.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

/// Several hundred milliseconds of a dump.
const MUCH_MEMORY: &str = "exec python3 -c \"
import os, time
memory = bytearray(os.urandom(1 << 20)) * 200
open('filled', 'w')
time.sleep(600)\"";

#[tokio::test(flavor = "multi_thread")]
async fn what_had_stopped_itself_stays_stopped_if_the_server_dies_while_it_saves() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let sandbox = create(&server.client()).await;
    let guest = user_of(&sandbox);
    guest.start(StartProcess::shell(COUNTER)).await.unwrap();
    guest.start(StartProcess::shell(MUCH_MEMORY)).await.unwrap();
    until("it has its memory", async || (output(&guest, "ls filled").await == "filled").then_some(())).await;
    let stopped = guest.start(StartProcess::shell("kill -STOP $$; exec sleep 600")).await.unwrap().pid();
    let state_of = format!("cut -d' ' -f3 /proc/{stopped}/stat");
    until("it stops itself", async || (output(&guest, &state_of).await == "T").then_some(())).await;
    let counted = goes_on(&guest, 3).await;
    let (execution, _) = running_execution(&state, &sandbox);
    let saving = sandbox.clone();
    let saving = tokio::spawn(async move { saving.snapshot(&NewSnapshot::default()).await });
    let noted = || record(&execution)["stopped_before_saving"] == serde_json::json!([stopped]);
    while !noted() {
        assert!(!saving.is_finished(), "it was saved without a note");
        tokio::task::yield_now().await;
    }
    server.kill();
    assert!(saving.await.unwrap().is_err());
    assert!(noted() && record(&execution)["saving"] == true, "it had been saved before: {}", record(&execution));

    let server = serve(&state);
    let again = server.client().connect(sandbox.id(), None).await.unwrap();
    goes_on(&user_of(&again), counted + 1).await;
    until("the next server is done", async || record(&execution).get("saving").is_none().then_some(())).await;
    assert_eq!(output(&user_of(&again), &state_of).await, "T", "it had stopped itself");
    assert!(record(&execution).get("stopped_before_saving").is_none());
    assert!(again.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_would_come_back_without_the_sandboxs_filter_does_not_run() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let client = server.client();
    let sandbox = create(&client).await;
    user_of(&sandbox).start(StartProcess::shell(COUNTER)).await.unwrap();
    let counted = goes_on(&user_of(&sandbox), 3).await;
    let saved = pause_to_disk(&state, &sandbox).await.join("memory/saved.json");
    let right = std::fs::read(&saved).unwrap();
    let mut wrong: Value = serde_json::from_slice(&right).unwrap();
    let filters = wrong["filters"].as_array_mut().unwrap();
    assert!(!filters.is_empty());
    // What it was saved with is another one, as if its images had been changed.
    filters.iter_mut().for_each(|filter| *filter = filter.as_str().unwrap().replacen("20", "21", 1).into());
    std::fs::write(&saved, serde_json::to_vec(&wrong).unwrap()).unwrap();
    let refused = client.connect(sandbox.id(), None).await.unwrap_err().to_string();
    assert!(refused.contains("its system call filter is not the sandbox's"), "{refused}");
    std::fs::write(&saved, right).unwrap();
    let resumed = client.connect(sandbox.id(), None).await.unwrap();
    goes_on(&user_of(&resumed), counted).await;
    assert!(resumed.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

/// A file of a sandbox that is saved, on the host.
fn file_of(state: &StateDir, execution: &Path, path: &str) -> PathBuf {
    let area = state.path().join("disk/areas").join(record(execution)["area"].as_str().unwrap());
    let found = Command::new("find").arg(area).args(["-path", &format!("*/{path}")]).output().unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    let mut paths = found.lines();
    let file = paths.next().unwrap_or_else(|| panic!("there is no {path}"));
    assert_eq!(paths.next(), None, "{found}");
    file.into()
}

/// A number as images have it.
fn varint(mut number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 128 {
        bytes.push(number as u8 | 128);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// The first half of `cap_bnd` in the credentials of a task.
fn bounding_set(number: u32) -> Vec<u8> {
    const FIELD: u8 = 12;
    [vec![FIELD << 3], varint(number)].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_whose_image_gives_it_more_capabilities_does_not_run() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let client = server.client();
    let sandbox = create(&client).await;
    let guest = user_of(&sandbox);
    let program = guest.start(StartProcess::shell(COUNTER)).await.unwrap().pid();
    let counted = goes_on(&guest, 3).await;
    let own = output(&guest, &format!("sed -n 's/^CapBnd:\\s*//p' /proc/{program}/status")).await;
    let own = bounding_set(u64::from_str_radix(&own, 16).unwrap() as u32);
    let all = bounding_set(u32::MAX);
    assert_eq!(own.len(), all.len(), "lengths before it would change");

    let saved = pause_to_disk(&state, &sandbox).await;
    let (image, written) = (saved.join(format!("memory/images/core-{program}.img")), file_of(&state, &saved, "user/n"));
    let right = std::fs::read(&image).unwrap();
    let places: Vec<usize> = (0..right.len()).filter(|place| right[*place..].starts_with(&own)).collect();
    let &[place] = &places[..] else { panic!("its bounding set is at {places:?}") };
    let wrong = [&right[..place], &all[..], &right[place + all.len()..]].concat();
    std::fs::write(&image, wrong).unwrap();
    let before = std::fs::read(&written).unwrap();
    let refused = client.connect(sandbox.id(), None).await.unwrap_err().to_string();
    assert!(refused.contains("more than its sandbox allows: CapBnd"), "{refused}");
    assert_eq!(std::fs::read(&written).unwrap(), before, "it has run");
    assert_eq!(python_programs(&state), 0);
    assert_eq!(saved_execution(&state), Some(saved));

    std::fs::write(&image, right).unwrap();
    let resumed = client.connect(sandbox.id(), None).await.unwrap();
    goes_on(&user_of(&resumed), counted).await;
    assert!(resumed.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_has_changed_since_is_named_and_the_files_can_be_started_without_it() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let client = server.client();
    let sandbox = create(&client).await;
    let guest = user_of(&sandbox);
    assert!(guest.run("cp /bin/sleep own-program && echo kept > file").await.unwrap().ended.is_success());
    guest.start(StartProcess::shell("exec ./own-program 6000")).await.unwrap();
    until("it runs", async || {
        output(&guest, "ps axo args").await.lines().any(|line| line == "./own-program 6000").then_some(())
    })
    .await;
    let saved = pause_to_disk(&state, &sandbox).await;
    // As an upgrade does with a library.
    std::fs::write(file_of(&state, &saved, "user/own-program"), "#!/bin/sh\necho changed\n").unwrap();
    let refused = client.connect(sandbox.id(), None).await.unwrap_err().to_string();
    let says = ["own-program", "its files are kept", "on_resume=\"reboot\""];
    assert!(says.iter().all(|words| refused.contains(words)), "{refused}");
    assert_eq!(saved_execution(&state), Some(saved));

    let guest = user_of(&connect_without_memory(&server, &sandbox).await);
    assert_eq!(
        output(&guest, "cat file && ./own-program && ps axo args | grep -c '[o]wn-program 6000'").await,
        "kept\nchanged\n0"
    );
    assert_eq!(saved_execution(&state), None);
    assert!(sandbox.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

#[track_caller]
fn assert_unavailable(error: &ApiError, words: &[&str]) {
    let ApiError::Server { code: 501, error_code, message } = error else { panic!("{error:?}") };
    assert_eq!(error_code.as_deref(), Some("memory_snapshots_unavailable"));
    assert!(words.iter().all(|words| message.contains(words)), "{message}");
}

#[track_caller]
fn assert_not_restorable(error: &ApiError, words: &[&str]) {
    let ApiError::Conflict { message, .. } = error else { panic!("{error:?}") };
    assert!(words.iter().all(|words| message.contains(words)), "{message}");
}

fn files_of(snapshot: &str) -> NewSandbox {
    NewSandbox { files_only: true, ..NewSandbox::new(snapshot) }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_criu_saved_memory_is_unavailable_with_the_fix_and_its_files_can_be_started() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let (paused, running) = (create(&server.client()).await, create(&server.client()).await);
    for sandbox in [&paused, &running] {
        user_of(sandbox).write_file("file", "kept\n").await.unwrap();
        user_of(sandbox).start(StartProcess::shell("exec sleep 6000")).await.unwrap();
    }
    let saved = pause_to_disk(&state, &paused).await;
    let snapshot = running.snapshot(&NewSnapshot::default()).await.unwrap();
    server.stop();

    let server = memory::serve(&state, &["--criu", "/nonexistent/criu"]);
    let client = server.client();
    let fix = ["/nonexistent/criu", "install an Isopod package", "--criu"];
    let refused = client.connect(paused.id(), None).await.unwrap_err();
    assert_unavailable(&refused, &[&fix[..], &["on_resume=\"reboot\""]].concat());
    assert_eq!(record(&saved)["state"], "saved", "it stays as it is");
    let files_only = [&fix[..], &["with `memory: false`"]].concat();
    assert_unavailable(&client.create(NewSandbox::new(snapshot.id.clone())).await.unwrap_err(), &files_only);
    assert_unavailable(&client.rollback(running.id(), &snapshot.id).await.unwrap_err(), &files_only);

    let copy = client.create(files_of(&snapshot.id)).await.unwrap();
    let again = client.connect(running.id(), None).await.unwrap();
    user_of(&again).write_file("file", "changed").await.unwrap();
    client.rollback_files(running.id(), &snapshot.id).await.unwrap();
    let rebooted = connect_without_memory(&server, &paused).await;
    for sandbox in [&copy, &running, &rebooted] {
        let guest = user_of(&client.connect(sandbox.id(), None).await.unwrap());
        assert_eq!(output(&guest, "cat file; pgrep -fxc 'sleep 6000'").await, "kept\n0");
    }
    assert!(client.remove_snapshot(&snapshot.id).await.unwrap());
    for sandbox in [copy, running, rebooted] {
        assert!(client.kill(sandbox.id()).await.unwrap());
    }
    server.stop();
    state.assert_nothing_left();
}

/// The directory of the only snapshot.
fn snapshot_directory(state: &StateDir) -> PathBuf {
    executions(state).into_iter().find(|execution| !record(execution)["snapshot"].is_null()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_whose_programs_or_template_have_changed_still_has_its_files() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let client = server.client();
    let sandbox = create(&client).await;
    let guest = user_of(&sandbox);
    assert!(guest.run("cp /bin/sleep own-program && echo kept > file").await.unwrap().ended.is_success());
    guest.start(StartProcess::shell("exec ./own-program 6000")).await.unwrap();
    until("it runs", async || {
        output(&guest, "ps axo args").await.lines().any(|line| line == "./own-program 6000").then_some(())
    })
    .await;
    let snapshot = sandbox.snapshot(&NewSnapshot::default()).await.unwrap();
    let directory = snapshot_directory(&state);
    // As an upgrade does with a library.
    std::fs::write(file_of(&state, &directory, "user/own-program"), "#!/bin/sh\necho changed\n").unwrap();
    let says = ["own-program", "its files are kept", "with `memory: false`"];
    assert_not_restorable(&client.create(NewSandbox::new(snapshot.id.clone())).await.unwrap_err(), &says);
    assert_not_restorable(&sandbox.rollback(&snapshot.id).await.unwrap_err(), &says);
    assert_eq!(output(&guest, "ps axo args | grep -c '[o]wn-program 6000'").await, "1", "it goes on");
    let shown = "cat file && ./own-program && ps axo args | grep -c '[o]wn-program 6000'";
    let copy = client.create(files_of(&snapshot.id)).await.unwrap();
    assert_eq!(output(&user_of(&copy), shown).await, "kept\nchanged\n0");

    // As if the host's packages had changed, and nothing used the earlier generation of the base.
    server.stop();
    let mut changed = record(&directory);
    changed["generation"] = "0123456789abcdef".into();
    std::fs::write(directory.join("record.json"), serde_json::to_vec(&changed).unwrap()).unwrap();
    let server = serve(&state);
    let client = server.client();
    let says = ["its template is no longer there", "its files are kept", "with `memory: false`"];
    assert_not_restorable(&client.create(NewSandbox::new(snapshot.id.clone())).await.unwrap_err(), &says);
    let later = client.create(files_of(&snapshot.id)).await.unwrap();
    client.rollback_files(sandbox.id(), &snapshot.id).await.unwrap();
    for sandbox in [&later, &sandbox] {
        let guest = user_of(&client.connect(sandbox.id(), None).await.unwrap());
        assert_eq!(output(&guest, shown).await, "kept\nchanged\n0");
    }
    assert!(client.remove_snapshot(&snapshot.id).await.unwrap());
    for sandbox in [copy, later, sandbox] {
        assert!(client.kill(sandbox.id()).await.unwrap());
    }
    server.stop();
    state.assert_nothing_left();
}

/// Makes it look as if the host had been rebooted since, after it had been up for a long time or not.
fn reboot(saved: &Path, longer_up: i64) {
    let path = saved.join("memory/saved.json");
    let mut description: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let clocks = &mut description["clocks"];
    clocks["host_boot"] = "another".into();
    let time = clocks["monotonic"]["time"].as_i64().unwrap();
    clocks["monotonic"]["time"] = (time + longer_up * NANOS).into();
    std::fs::write(path, serde_json::to_vec(&description).unwrap()).unwrap();
}

/// The monotonic clock and the boot clock, in seconds.
async fn clocks(guest: &Guest) -> (f64, f64) {
    let shown =
        output(guest, "python3 -c 'import time; print(time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))'")
            .await;
    let mut words = shown.split(' ').map(|word| word.parse().unwrap());
    (words.next().unwrap(), words.next().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_go_on_after_a_reboot_and_programs_wait_as_long_as_they_meant_to() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let client = server.client();
    let sandbox = create(&client).await;
    let (monotonic, boot) = clocks(&user_of(&sandbox)).await;
    reboot(&pause_to_disk(&state, &sandbox).await, LONG_UPTIME);
    let resumed = client.connect(sandbox.id(), None).await.unwrap();
    let guest = user_of(&resumed);
    let after = clocks(&guest).await;
    assert!(after.0 - monotonic > LONG_UPTIME as f64 && after.1 > boot, "{monotonic} {boot}, then {after:?}");

    // Their deadlines are far beyond what this host's clock shows.
    let mut waiting = Vec::new();
    for program in ["import time; time.sleep(5)", "import asyncio; asyncio.run(asyncio.sleep(5))"] {
        let command = StartProcess::shell(format!("exec python3 -c '{program}; print(\"waited\")'"));
        waiting.push(guest.start(command).await.unwrap());
    }
    waiting.push(guest.start(StartProcess::shell("timeout 5 sleep 600; echo waited")).await.unwrap());
    let snapshot = resumed.snapshot(&NewSnapshot::default()).await.unwrap();
    reboot(&pause_to_disk(&state, &resumed).await, 0);
    let resumed = client.connect(sandbox.id(), None).await.unwrap();
    let guest = user_of(&resumed);
    let again = clocks(&guest).await;
    assert!(again.0 > after.0 && again.1 > after.1, "{after:?}, then {again:?}");
    assert!(again.0 < after.0 + 1000.0, "{after:?}, then {again:?}");
    for process in &waiting {
        let process = guest.connect(process.pid()).await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(60), process.collect()).await;
        assert_eq!(ended.expect("it waits for another boot's clock").unwrap().stdout, b"waited\n");
    }
    let copy = client.create(NewSandbox::new(snapshot.id.clone())).await.unwrap();
    let copied = clocks(&user_of(&copy)).await;
    assert!(copied.0 > after.0 && copied.1 > after.1, "{after:?}, then {copied:?}");
    assert!(client.remove_snapshot(&snapshot.id).await.unwrap());
    for sandbox in [copy, resumed] {
        assert!(sandbox.kill().await.unwrap());
    }
    server.stop();
    state.assert_nothing_left();
}
