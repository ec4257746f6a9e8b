//! `isopod snapshot`, `isopod fork` and `isopod rollback`, run as a person would.
//!
//! Those with memory need the CRIU that `cargo xtask setup` builds. Where that is not possible, they say so and pass; CI has
//! it.

use crate::common::has_criu;
use crate::served;

use std::collections::{BTreeMap, BTreeSet};

use isopod_testkit::{Finished, StateDir};
use serde_json::{Value, json};
use served::{BINARY, Served};

fn start(state: &StateDir) -> Served {
    Served::start(state, &["--listen", "127.0.0.1:0"])
}

fn finish(server: Served, state: &StateDir) {
    server.run(&["kill", "--all"]).ok();
    server.stop();
    state.assert_nothing_left();
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The words of each line of a table.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect()).collect()
}

fn sh(server: &Served, id: &str, command: &str) -> Finished {
    server.run(&["exec", id, "--", "sh", "-c", command])
}

/// Starts something that only memory keeps. Returns its pid.
fn start_program(server: &Served, id: &str) -> String {
    sh(server, id, "setsid --fork sleep 6000 < /dev/null > /dev/null 2>&1").ok();
    for _ in 0..100 {
        let pid = program(server, id);
        if !pid.is_empty() {
            return pid;
        }
    }
    panic!("the program does not run");
}

/// The pid of the program, or nothing if it does not run.
fn program(server: &Served, id: &str) -> String {
    server.run(&["exec", id, "--", "pgrep", "-fx", "sleep 6000"]).stdout()
}

#[test]
fn a_snapshot_is_taken_shown_used_and_deleted() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = start(&state);
    assert_eq!(parse(&server.run(&["snapshot", "ls", "--json"]).ok()), json!([]));
    let id = server.create(&[]);
    let pid = start_program(&server, &id);
    sh(&server, &id, "echo before > file").ok();
    let taken = parse(&server.run(&["snapshot", "create", &id, "--name", "kept", "--json"]).ok());
    assert_eq!((&taken["snapshotID"], &taken["sandboxID"]), (&json!("kept:default"), &json!(id)), "{taken}");
    let (size, memory) = (taken["bytes"].as_u64(), taken["memoryBytes"].as_u64());
    assert!(taken["memory"] == true && memory > Some(0) && size > memory, "{taken}");
    assert_eq!(program(&server, &id), pid, "the source goes on");

    let listed = server.run(&["snapshot", "ls"]).ok();
    let table = rows(&listed);
    assert_eq!(table[0], ["ID", "SANDBOX", "KEEPS", "SIZE", "TAKEN"]);
    assert!(table.len() == 2 && table[1].starts_with(&["kept:default", &id, "memory"]), "{listed}");
    let listed = parse(&server.run(&["snapshot", "ls", &id, "--name", "kept", "--json"]).ok());
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!((&listed[0]["buildID"], &listed[0]["bytes"]), (&taken["buildID"], &taken["bytes"]));
    assert_eq!(server.run(&["snapshot", "ls", "--quiet", "--name", "other"]).ok(), "");
    let shown = server.run(&["snapshot", "inspect", "kept"]).ok();
    let shown: BTreeMap<&str, &str> = shown.lines().filter_map(|line| line.split_once(' ')).collect();
    let value = |name: &str| shown.get(name).copied().unwrap_or_default().trim();
    assert_eq!((value("id"), value("sandbox"), value("keeps")), ("kept:default", id.as_str(), "memory"), "{shown:?}");
    assert!(value("size").ends_with(" MiB") && value("memory").ends_with(" MiB"), "{shown:?}");
    let inspected = parse(&server.run(&["snapshot", "inspect", "kept:default", "--json"]).ok());
    assert_eq!(inspected, listed[0]);

    let copy = server.create(&["--template", "kept"]);
    assert_eq!((program(&server, &copy), sh(&server, &copy, "cat file").ok()), (pid.clone(), "before\n".to_owned()));
    sh(&server, &id, "echo after > file; pkill -fx 'sleep 6000'").ok();
    assert_eq!(server.run(&["rollback", &id, "kept"]).ok().trim(), id);
    assert_eq!((program(&server, &id), sh(&server, &id, "cat file").ok()), (pid.clone(), "before\n".to_owned()));
    let again = parse(&server.run(&["rollback", &id, "kept:default", "--json"]).ok());
    assert_eq!(again, json!({ "sandboxID": id, "snapshotID": "kept:default" }));

    assert_eq!(server.run(&["snapshot", "rm", "kept"]).ok(), "kept\n");
    assert_eq!(server.run(&["snapshot", "ls", "--quiet"]).ok(), "");
    assert_eq!(program(&server, &copy), pid, "what came from it goes on");
    finish(server, &state);
}

#[test]
fn a_snapshot_of_the_files_keeps_no_program() {
    let state = StateDir::new(BINARY);
    let server = start(&state);
    let id = server.create(&[]);
    start_program(&server, &id);
    sh(&server, &id, "echo kept > file; head -c 3M /dev/urandom > large").ok();
    let taken = server.run(&["snapshot", "create", &id, "--name", "files:v1", "--filesystem-only"]).ok();
    assert_eq!(taken, "files:v1\n");
    let listed = server.run(&["snapshot", "ls"]).ok();
    assert!(rows(&listed)[1].starts_with(&["files:v1", &id, "files"]), "{listed}");
    let sizes = parse(&server.run(&["snapshot", "inspect", "files", "--json"]).ok());
    assert_eq!(sizes["memoryBytes"], 0, "{sizes}");
    assert!((3 << 20..8 << 20).contains(&sizes["bytes"].as_u64().unwrap()), "what the sandbox wrote: {sizes}");
    let copy = server.create(&["--template", "files:v1"]);
    assert_eq!((program(&server, &copy), sh(&server, &copy, "cat file").ok()), (String::new(), "kept\n".to_owned()));
    server.run(&["snapshot", "rm", "files"]).ok();
    finish(server, &state);
}

/// Writes a line and its number to a file that stays open, until the file `enough` is there.
const WRITER: &str = "i=0; exec 3>>lines; echo ready > ready; \
    while [ ! -e enough ]; do i=$((i + 1)); echo line $i >&3; echo $i > last; done; echo $i > done";

#[test]
fn a_snapshot_on_a_disk_without_snapshots_has_files_and_memory_of_one_moment() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let options = ["serve", "--pool-ready", "1", "--pool-prepared", "1", "--listen", "127.0.0.1:0"];
    let command = state.isopod().command(&options);
    // An area of an earlier time, which an image would hide. The server removes it.
    std::fs::create_dir_all(state.path().join("disk/areas/older")).unwrap();
    let server = Served::start_command(&state, command);
    let id = server.create(&[]);
    let prepare = "head -c 30000000 /dev/urandom > large && ln large linked && ln -s large link && \
        mkdir one && echo kept > one/file && md5sum large > sum";
    sh(&server, &id, prepare).ok();
    let writer = format!("setsid --fork sh -c '{WRITER}' < /dev/null > /dev/null 2>&1; until [ -e ready ]; do :; done");
    sh(&server, &id, &writer).ok();
    server.run(&["snapshot", "create", &id, "--name", "kept"]).ok();

    let check = "md5sum --check --status sum && [ linked -ef large ] && [ link -ef large ] && \
        cat one/file && touch enough && until [ -e done ]; do :; done && [ $(wc -l < lines) = $(cat done) ] && \
        [ \"$(tail -n 1 lines)\" = \"line $(cat done)\" ] && echo whole";
    let copy = server.create(&["--template", "kept"]);
    assert_eq!(sh(&server, &copy, check).ok(), "kept\nwhole\n", "no line is missing or twice in the copy");
    assert_eq!(sh(&server, &id, check).ok(), "kept\nwhole\n", "nor in the source");
    sh(&server, &id, "rm -r large linked one && echo broken > one").ok();
    server.run(&["rollback", &id, "kept"]).ok();
    assert_eq!(sh(&server, &id, check).ok(), "kept\nwhole\n", "nor after a rollback");
    let forked = server.run(&["fork", &copy, "-n", "2", "--timeout", "60"]).ok();
    for one in forked.lines() {
        assert_eq!(sh(&server, one, "md5sum --check --status sum && cat one/file").ok(), "kept\n");
    }
    server.run(&["snapshot", "rm", "kept"]).ok();
    server.run(&["kill", "--all"]).ok();
    let log = server.stop_and_read_log();
    assert!(log.contains("sandboxes write to a plain directory"), "{log}");
    state.assert_nothing_left();
}

#[test]
fn a_sandbox_starts_from_the_files_of_a_snapshot_that_has_memory_if_it_is_told_to() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = start(&state);
    let id = server.create(&[]);
    start_program(&server, &id);
    sh(&server, &id, "echo kept > file").ok();
    server.run(&["snapshot", "create", &id, "--name", "kept"]).ok();
    let copy = server.create(&["--template", "kept", "--filesystem-only"]);
    assert_eq!((program(&server, &copy), sh(&server, &copy, "cat file").ok()), (String::new(), "kept\n".to_owned()));
    sh(&server, &id, "echo changed > file").ok();
    assert_eq!(server.run(&["rollback", &id, "kept", "--filesystem-only"]).ok().trim(), id);
    assert_eq!((program(&server, &id), sh(&server, &id, "cat file").ok()), (String::new(), "kept\n".to_owned()));
    server.run(&["snapshot", "rm", "kept"]).ok();
    finish(server, &state);
}

#[test]
fn a_drained_server_saves_what_is_paused_and_creates_nothing_until_it_is_uncordoned() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = start(&state);
    let (running, paused) = (server.create(&[]), server.create(&[]));
    let pid = start_program(&server, &paused);
    server.run(&["pause", &paused]).ok();
    assert_refused(&server.run(&["node", "drain"]), &["hint: set E2B_API_KEY to an admin key"]);
    let created = state.isopod().run(&["key", "create", "--local", "--scope", "admin", "--json"]).ok();
    let admin = parse(&created)["key"].as_str().unwrap().to_owned();
    let as_admin = |words: &[&str]| {
        let mut command = state.isopod().command(words);
        command.env("E2B_API_KEY", &admin).env("E2B_API_URL", server.export("E2B_API_URL"));
        command.output().unwrap()
    };
    let drained = as_admin(&["node", "drain", "--json"]);
    assert!(drained.status.success(), "{drained:?}");
    let expected = json!({ "running": [running], "saved": [paused], "notSaved": [] });
    assert_eq!(parse(&String::from_utf8(drained.stdout).unwrap()), expected);
    let again = as_admin(&["node", "drain", "--deadline", "1"]);
    let table = String::from_utf8(again.stdout).unwrap();
    assert!(again.status.success() && rows(&table)[0] == ["SANDBOX", "STATE", "REASON"], "{table}");
    let rows: BTreeSet<Vec<&str>> = rows(&table).into_iter().skip(1).collect();
    assert_eq!(rows, BTreeSet::from([vec![running.as_str(), "running"], vec![paused.as_str(), "saved"]]), "{table}");

    let draining = "this server is being drained for maintenance";
    assert_refused(&server.run(&["create", "--detach"]), &[draining]);
    assert_refused(&server.run(&["resume", &paused]), &[draining]);
    assert_eq!(sh(&server, &running, "echo goes on").ok(), "goes on\n");
    assert!(as_admin(&["node", "uncordon"]).status.success());
    server.run(&["resume", &paused]).ok();
    assert_eq!(program(&server, &paused), pid, "it was only moved to disk");
    finish(server, &state);
}

/// The boot id, the address and the id that new commands get. The last one is the sandbox's own id.
const OWN: &str = "cat /proc/sys/kernel/random/boot_id; hostname -I; echo $E2B_SANDBOX_ID";

#[test]
fn copies_of_a_fork_go_on_and_have_their_own_ids_and_addresses() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = start(&state);
    let id = server.create(&[]);
    let pid = start_program(&server, &id);
    let forked = parse(&server.run(&["fork", &id, "-n", "5", "--json"]).ok());
    let copies: Vec<&str> = forked.as_array().unwrap().iter().filter_map(|copy| copy["sandboxID"].as_str()).collect();
    assert_eq!(copies.len(), 5, "{forked}");
    let mut seen = BTreeSet::new();
    for one in copies.iter().copied().chain([id.as_str()]) {
        assert_eq!(program(&server, one), pid);
        let own = sh(&server, one, OWN).ok();
        assert_eq!(own.lines().last(), Some(one));
        assert_eq!(own.lines().filter(|line| !line.trim().is_empty()).count(), 3, "{own}");
        seen.extend(own.lines().map(str::to_owned));
    }
    assert_eq!(seen.len(), 3 * 6, "each has its own: {seen:?}");
    let printed = server.run(&["fork", &id, "--count", "2", "--timeout", "60"]).ok();
    let running = server.run(&["ls", "--quiet"]).ok();
    assert_eq!(printed.lines().count(), 2);
    assert!(printed.lines().all(|copy| running.lines().any(|one| one == copy)), "{printed} {running}");
    assert_eq!(server.run(&["snapshot", "ls", "--quiet"]).ok(), "", "a fork keeps no snapshot");
    finish(server, &state);
}

#[test]
fn copies_beyond_the_teams_limit_are_errors_and_the_others_are_there() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let settings = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(settings.path(), "[team]\nconcurrent = 3\n").unwrap();
    let config = settings.path().to_str().unwrap();
    let server = Served::start(&state, &["--listen", "127.0.0.1:0", "--config", config]);
    let id = server.create(&[]);
    let pid = start_program(&server, &id);
    let limit = "you have reached the maximum number of concurrent sandboxes (3)";
    let forked = server.run(&["fork", &id, "-n", "5", "--timeout", "600"]);
    let (copies, said) = (forked.stdout(), forked.stderr());
    assert_eq!((forked.code(), copies.lines().count()), (1, 2), "{copies}{said}");
    let is_expected = |line: &str| line.starts_with("isopod: a copy was not created: ") && line.contains(limit);
    assert!(said.lines().count() == 3 && said.lines().all(is_expected), "{said}");
    for copy in copies.lines() {
        assert_eq!(program(&server, copy), pid, "the others are not affected");
    }

    let none = server.run(&["fork", &id, "-n", "2", "--json"]);
    let (shown, said) = (parse(&none.stdout()), none.stderr());
    assert_eq!((none.code(), said.as_str()), (1, ""), "{shown}");
    let errors: Vec<&str> = shown.as_array().unwrap().iter().filter_map(|copy| copy["error"].as_str()).collect();
    assert!(errors.len() == 2 && errors.iter().all(|error| error.contains(limit)), "{shown}");
    assert!(shown[0].get("sandboxID").is_none(), "{shown}");
    assert_eq!(server.run(&["ls", "--quiet"]).ok().lines().count(), 3);
    assert_eq!(program(&server, &id), pid, "the source goes on");
    finish(server, &state);
}

#[track_caller]
fn assert_refused(finished: &Finished, words: &[&str]) {
    let said = finished.stderr();
    assert_eq!((finished.code(), finished.stdout().as_str()), (125, ""), "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
}

#[test]
fn what_does_not_exist_is_refused_with_a_hint() {
    let state = StateDir::new(BINARY);
    let server = start(&state);
    for wrong in [
        vec!["snapshot"],
        vec!["snapshot", "create"],
        vec!["snapshot", "create", "../etc"],
        vec!["snapshot", "rm"],
        vec!["snapshot", "inspect"],
        vec!["snapshot", "ls", "--quiet", "--json"],
        vec!["fork", "ia", "-n", "0"],
        vec!["fork", "ia", "-n", "21"],
        vec!["rollback", "ia"],
    ] {
        assert_eq!(server.run(&wrong).code(), 2, "{wrong:?}");
    }
    let sandboxes = "hint: isopod ls shows the sandboxes";
    assert_refused(&server.run(&["snapshot", "create", "inone"]), &[sandboxes]);
    assert_refused(&server.run(&["fork", "inone"]), &[sandboxes]);
    assert_refused(&server.run(&["rollback", "inone", "none"]), &[sandboxes, "isopod snapshot ls the snapshots"]);
    let no_snapshot = ["there is no snapshot \"none\" of yours", "hint: isopod snapshot ls"];
    assert_refused(&server.run(&["snapshot", "inspect", "none"]), &no_snapshot);
    assert_refused(&server.run(&["snapshot", "rm", "none"]), &no_snapshot);

    let (id, other) = (server.create(&[]), server.create(&[]));
    let missing = server.run(&["rollback", &id, "none"]);
    assert_refused(&missing, &["snapshot 'none' not found", "isopod snapshot ls the snapshots"]);
    server.run(&["snapshot", "create", &other, "--name", "others", "--filesystem-only"]).ok();
    let foreign = server.run(&["rollback", &id, "others"]);
    assert_refused(&foreign, &["is a snapshot of another sandbox; create a sandbox from it instead"]);
    server.run(&["pause", &id]).ok();
    let paused = "the sandbox is paused; connect to it first";
    assert_refused(&server.run(&["snapshot", "create", &id, "--filesystem-only"]), &[paused]);
    server.run(&["snapshot", "rm", "others"]).ok();
    server.run(&["kill", &id]).ok();
    finish(server, &state);
}
