//! Memory that lasts: what a sandbox was doing goes on after its memory was on disk, in itself and in copies.
//!
//! These need the CRIU that `cargo xtask setup` builds. Where that is not possible, they say so and pass; CI has it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use crate::{common, memory, served};

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::raw::ask;
use common::{KEY, Server, has_criu};
use isopod_client::guest::{Event, Guest, Process, StartProcess};
use isopod_client::sandbox::{ApiError, Client, ListSnapshots, NewSandbox, NewSnapshot, Sandbox};
use isopod_testkit::StateDir;
use memory::{executions, python_programs, record_of, until, user_of};
use served::Served;

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

fn serve(state: &StateDir) -> Server {
    memory::serve(state, &["--save-paused-after", "1"])
}

async fn create(client: &Client) -> Sandbox {
    memory::create(client, "base").await
}

async fn text(guest: &Guest, path: &str) -> String {
    let bytes = guest.read_file(path).await.unwrap().collect().await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn output(guest: &Guest, command: &str) -> String {
    String::from_utf8(guest.run(command).await.unwrap().stdout.to_vec()).unwrap()
}

/// The directories of saved processes below a state directory.
fn saved(state: &StateDir) -> Vec<PathBuf> {
    let memories = executions(state).into_iter().map(|execution| execution.join("memory"));
    memories.filter(|memory| memory.join("saved.json").exists()).collect()
}

/// It is for root alone, each file by itself too: it has what a sandbox has in memory.
fn assert_private(path: &Path) {
    let found = path.symlink_metadata().unwrap();
    let mode = if found.is_dir() { 0o700 } else { 0o600 };
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (0, 0, mode), "{}", path.display());
    if found.is_dir() {
        std::fs::read_dir(path).unwrap().for_each(|entry| assert_private(&entry.unwrap().path()));
    }
}

/// Two commands that talk over a Unix socket and over TCP, and count together: the server's end is one process, the client's
/// another.
const PAIR: &str = r#"
cat > pair.py <<'END'
import socket, sys, threading, time, os
def serve(connection):
    while data := connection.recv(100):
        connection.sendall(data.upper())
def accept(listener):
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],)).start()
if sys.argv[1] == 'serve':
    local = socket.socket(socket.AF_UNIX); local.bind('/tmp/pair.sock'); local.listen()
    tcp = socket.create_server(('127.0.0.1', 9000))
    threading.Thread(target=accept, args=(tcp,)).start()
    accept(local)
while not os.path.exists('/tmp/pair.sock'): time.sleep(0.01)
local = socket.socket(socket.AF_UNIX); local.connect('/tmp/pair.sock')
tcp = socket.create_connection(('127.0.0.1', 9000))
n = 0
while not os.path.exists('enough'):
    n += 1
    for end in (local, tcp):
        end.sendall(b'n%d' % n)
        assert end.recv(100) == b'N%d' % n
    with open('n.new', 'w') as file: file.write(str(n))
    os.rename('n.new', 'n')
    print(n, flush=True)
    time.sleep(0.01)
END
"#;

/// Counting commands in a sandbox.
struct Counting {
    process: Process,
    output: String,
}

impl Counting {
    async fn start(guest: &Guest) -> Self {
        guest.run(PAIR).await.unwrap();
        guest.start(StartProcess::shell("exec python3 pair.py serve")).await.unwrap();
        let mut process = guest.start(StartProcess::shell("exec python3 pair.py count")).await.unwrap();
        let mut output = String::new();
        while output.lines().count() < 3 {
            if let Some(Event::Stdout(bytes)) = process.next().await.unwrap() {
                output.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
        Self { process, output }
    }

    /// Reads until the stream breaks.
    async fn lose(&mut self) {
        while let Ok(Some(event)) = self.process.next().await {
            if let Event::Stdout(bytes) = event {
                self.output.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
    }

    /// Joins it again by its pid, has it end, and compares all of its output.
    async fn join_and_finish(mut self, guest: &Guest) {
        self.process = guest.connect(self.process.pid()).await.unwrap();
        self.finish(guest).await;
    }

    /// Has it end, and compares all of its output.
    async fn finish(mut self, guest: &Guest) {
        let before = count(guest).await;
        until("it counts on", async || (count(guest).await > before + 3).then_some(())).await;
        guest.run("touch enough").await.unwrap();
        let rest = self.process.collect().await.unwrap();
        assert_eq!(rest.ended.exit_code, 0, "{}", String::from_utf8_lossy(&rest.stderr));
        self.output.push_str(&String::from_utf8_lossy(&rest.stdout));
        let seen: Vec<u32> = self.output.lines().map(|line| line.parse().unwrap()).collect();
        let all: Vec<u32> = (1..=seen.len() as u32).collect();
        assert_eq!(seen, all, "something is missing, repeated or out of order");
    }
}

async fn count(guest: &Guest) -> u32 {
    text(guest, "n").await.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_lasts_on_disk_and_everything_goes_on_after_it() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let sandbox = create(&server.client()).await;
    let (id, guest) = (sandbox.id().clone(), user_of(&sandbox));
    let mut counting = Counting::start(&guest).await;
    guest.write_file("/tmp/in-memory", "kept").await.unwrap();
    // A process that somebody has stopped stays stopped.
    let stopped = guest.start(StartProcess::shell("kill -STOP $$; echo continued")).await.unwrap();
    until("it is stopped", async || {
        output(&guest, &format!("ps -o stat= {}", stopped.pid())).await.contains('T').then_some(())
    })
    .await;
    let boot_id = text(&guest, "/proc/sys/kernel/random/boot_id").await;

    sandbox.pause(true).await.unwrap();
    counting.lose().await;
    until("its memory is saved", async || (!saved(&state).is_empty()).then_some(())).await;
    until("its processes are gone", async || (python_programs(&state) == 0).then_some(())).await;
    assert_private(&saved(&state)[0]);
    // Whoever pauses sandboxes counts on it: not even the server has to live on.
    server.kill();
    let server = serve(&state);
    let resumed = server.client().connect(&id, None).await.unwrap();
    let guest = user_of(&resumed);
    assert_eq!(text(&guest, "/tmp/in-memory").await, "kept");
    assert_eq!(text(&guest, "/proc/sys/kernel/random/boot_id").await, boot_id);
    assert!(output(&guest, &format!("ps -o stat= {}", stopped.pid())).await.contains('T'));
    counting.join_and_finish(&guest).await;
    guest.run(format!("kill -CONT {}", stopped.pid()).as_str()).await.unwrap();
    let ended = guest.connect(stopped.pid()).await.unwrap().collect().await.unwrap();
    assert_eq!(ended.stdout, b"continued\n");
    assert!(saved(&state).is_empty(), "the memory is used up");
    assert!(resumed.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

/// Its systemd stops all services because the host shuts down, and says so to those who ask.
fn path_of_a_host_that_stops(programs: &Path) -> String {
    use std::os::unix::fs::PermissionsExt;
    let systemctl = programs.join("systemctl");
    std::fs::write(&systemctl, "#!/bin/sh\n[ \"$*\" = is-system-running ] && echo stopping\nexit 1\n").unwrap();
    std::fs::set_permissions(&systemctl, PermissionsExt::from_mode(0o755)).unwrap();
    format!("{}:{}", programs.display(), std::env::var("PATH").unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_paused_is_saved_when_the_host_shuts_down() {
    if !has_criu() {
        return;
    }
    let (state, programs) = (StateDir::new(BINARY), tempfile::tempdir().unwrap());
    let mut command = state.isopod().command(&["serve", "--prepare", "none", "--save-paused-after", "0"]);
    command.env("PATH", path_of_a_host_that_stops(programs.path()));
    let server = Server::start(command);
    let sandbox = create(&server.client()).await;
    let (id, guest) = (sandbox.id().clone(), user_of(&sandbox));
    let mut counting = Counting::start(&guest).await;
    let running = create(&server.client()).await;
    let _of_running = Counting::start(&user_of(&running)).await;
    sandbox.pause(true).await.unwrap();
    counting.lose().await;
    assert!(saved(&state).is_empty(), "nothing saves it while the server runs");
    server.stop();
    assert_eq!(saved(&state).len(), 1);
    // The host would wait for those that run.
    assert_eq!(python_programs(&state), 0);
    let server = serve(&state);
    assert!(server.client().connect(running.id(), None).await.is_err(), "it has ended with the host");
    let resumed = server.client().connect(&id, None).await.unwrap();
    counting.join_and_finish(&user_of(&resumed)).await;
    assert!(resumed.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_paused_is_saved_early_when_the_host_is_short_of_memory() {
    if !has_criu() {
        return;
    }
    let (state, settings) = (StateDir::new(BINARY), tempfile::NamedTempFile::new().unwrap());
    // More than any host has.
    std::fs::write(settings.path(), "[sandbox]\nkeep_memory_free = \"900T\"\n").unwrap();
    let config = settings.path().to_str().unwrap();
    let arguments = ["serve", "--prepare", "none", "--save-paused-after", "0", "--config", config];
    let server = Server::start(state.isopod().command(&arguments));
    let sandbox = create(&server.client()).await;
    let guest = user_of(&sandbox);
    let mut counting = Counting::start(&guest).await;
    sandbox.pause(true).await.unwrap();
    counting.lose().await;
    until("its memory is saved", async || (!saved(&state).is_empty()).then_some(())).await;
    let resumed = server.client().connect(sandbox.id(), None).await.unwrap();
    counting.join_and_finish(&user_of(&resumed)).await;
    assert!(resumed.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_from_a_snapshot_go_on_from_there_and_are_apart() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let client = server.client();
    let source = create(&client).await;
    let guest = user_of(&source);
    let counting = Counting::start(&guest).await;
    guest.write_file("file", "before").await.unwrap();
    let snapshot = source.snapshot(&NewSnapshot::default()).await.unwrap();
    guest.write_file("file", "after").await.unwrap();

    let mut copies = Vec::new();
    for _ in 0..2 {
        copies.push(client.create(NewSandbox::new(snapshot.id.clone())).await.unwrap());
    }
    let forked = source.fork(3, Some(Duration::from_secs(120))).await.unwrap();
    let forked: Vec<Sandbox> = forked.into_iter().map(Result::unwrap).collect();
    for (copy, content) in copies.iter().map(|copy| (copy, "before")).chain(forked.iter().map(|copy| (copy, "after"))) {
        let inside = user_of(copy);
        assert_eq!(text(&inside, "file").await, content);
        let before = count(&inside).await;
        until("a copy counts", async || (count(&inside).await > before + 3).then_some(())).await;
        inside.write_file("file", copy.id().as_str()).await.unwrap();
    }
    for copy in copies.iter().chain(&forked) {
        assert_eq!(text(&user_of(copy), "file").await, copy.id().as_str());
        assert!(copy.kill().await.unwrap());
    }
    assert_eq!(text(&guest, "file").await, "after");
    source.rollback(&snapshot.id).await.unwrap();
    assert_eq!(text(&guest, "file").await, "before");
    assert!(client.remove_snapshot(&snapshot.id).await.unwrap());
    assert!(!client.remove_snapshot(&snapshot.id).await.unwrap());
    // Its own life ended with the rollback, and what it printed until then was complete.
    drop(counting);
    assert!(source.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_copies_go_on_from_the_source_and_each_is_a_sandbox_of_its_own() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    // Twenty restores at once take a while on a small machine.
    let client = server.client().with_request_timeout(Duration::from_secs(120));
    let source = create(&client).await;
    let guest = user_of(&source);
    let counting = Counting::start(&guest).await;
    until("it has counted for a while", async || (count(&guest).await >= 20).then_some(())).await;
    let before = count(&guest).await;
    let copies = source.fork(20, Some(Duration::from_secs(300))).await.unwrap();
    let copies: Vec<Sandbox> = copies.into_iter().map(Result::unwrap).collect();
    let mut own = BTreeSet::new();
    for copy in &copies {
        let inside = user_of(copy);
        let found = count(&inside).await;
        assert!(found >= before, "it counts again: {before}, then {found}");
        until("a copy counts", async || (count(&inside).await > found).then_some(())).await;
        own.insert(copy.id().as_str().to_owned());
        own.insert(output(&inside, "hostname -I").await);
        own.insert(text(&inside, "/proc/sys/kernel/random/boot_id").await);
    }
    assert_eq!((copies.len(), own.len()), (20, 3 * 20), "{own:?}");
    counting.finish(&guest).await;
    for sandbox in copies.iter().chain([&source]) {
        assert!(sandbox.kill().await.unwrap());
    }
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_outlast_a_resume_which_is_for_paused_sandboxes_only() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let sandbox = server.client().create(NewSandbox::new("base").env("GIVEN", "of the sandbox")).await.unwrap();
    let guest = user_of(&sandbox);
    let line = "export OWN='of the process'; echo ready; until [ -e enough ]; do sleep 0.05; done; env";
    let mut waiting = guest.start(StartProcess::shell(line)).await.unwrap();
    while !matches!(waiting.next().await.unwrap(), Some(Event::Stdout(_))) {}
    let resume = async || {
        let headers = [("x-api-key", KEY), ("content-type", "application/json")];
        let path = format!("/sandboxes/{}/resume", sandbox.id());
        ask(server.port(), "POST", &path, &headers, br#"{"timeout": 300}"#).await
    };
    assert_eq!(resume().await.status, 409, "it runs");
    sandbox.pause(true).await.unwrap();
    until("its memory is saved", async || (!saved(&state).is_empty()).then_some(())).await;
    until("its processes are gone", async || {
        record_of(&state, sandbox.id().as_str()).filter(|record| record["init"].is_null())
    })
    .await;
    let resumed = resume().await;
    assert_eq!(resumed.status, 201, "{resumed:?}");
    assert_eq!(resumed.json()["sandboxID"], sandbox.id().as_str());
    assert_eq!(output(&guest, "echo \"$GIVEN, $OWN\"").await, "of the sandbox, \n", "new commands get the sandbox's");
    guest.run("touch enough").await.unwrap();
    let ended = guest.connect(waiting.pid()).await.unwrap().collect().await.unwrap().text();
    for variable in ["OWN=of the process", "GIVEN=of the sandbox"] {
        assert!(ended.lines().any(|line| line == variable), "{ended}");
    }
    assert!(sandbox.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_criu_files_are_kept_and_pauses_stay_in_ram() {
    let state = StateDir::new(BINARY);
    let server = memory::serve(&state, &["--criu", "/nonexistent/criu", "--save-paused-after", "1"]);
    let client = server.client();
    let sandbox = create(&client).await;
    let guest = user_of(&sandbox);
    let mut counting = Counting::start(&guest).await;
    guest.write_file("file", "kept").await.unwrap();
    let memory = sandbox.snapshot(&NewSnapshot::default()).await.unwrap_err();
    assert_unavailable(&memory, &["/nonexistent/criu", "with `memory: false`, a snapshot of the files can be taken"]);
    assert_unavailable(&sandbox.fork(2, None).await.unwrap_err(), &["/nonexistent/criu"]);
    assert!(client.list_snapshots(&ListSnapshots::default()).await.unwrap().is_empty());

    let snapshot = sandbox.snapshot(&NewSnapshot { files_only: true, ..NewSnapshot::default() }).await.unwrap();
    let copy = client.create(NewSandbox::new(snapshot.id.clone())).await.unwrap();
    assert_eq!(text(&user_of(&copy), "file").await, "kept");
    assert_eq!(python_programs(&state), 2, "those of the source");
    sandbox.rollback(&snapshot.id).await.unwrap();
    assert_eq!(text(&guest, "file").await, "kept");
    assert_eq!(python_programs(&state), 0, "nothing has kept them");
    drop(counting);

    guest.run("rm -f n").await.unwrap();
    counting = Counting::start(&guest).await;
    sandbox.pause(true).await.unwrap();
    counting.lose().await;
    assert_eq!(record_of(&state, sandbox.id().as_str()).unwrap()["state"], "frozen");
    assert_eq!((python_programs(&state), saved(&state).len()), (2, 0));
    let resumed = client.connect(sandbox.id(), None).await.unwrap();
    counting.join_and_finish(&user_of(&resumed)).await;
    assert!(client.remove_snapshot(&snapshot.id).await.unwrap());
    for sandbox in [copy, resumed] {
        assert!(sandbox.kill().await.unwrap());
    }
    server.stop();
    state.assert_nothing_left();
}

#[track_caller]
fn assert_unavailable(error: &ApiError, words: &[&str]) {
    let ApiError::Server { code: 501, error_code, message } = error else { panic!("{error:?}") };
    assert_eq!(error_code.as_deref(), Some("memory_snapshots_unavailable"));
    assert!(words.iter().all(|words| message.contains(words)), "{message}");
}

/// A program that cannot be saved, with its pid.
async fn start_from_memory(guest: &Guest) -> (Process, String) {
    let from_memory = "python3 -c \"import os; fd = os.memfd_create('program'); os.write(fd, open('/bin/sleep', 'rb').read()); \
        os.execve(fd, ['odd-program', '600'], {})\"";
    let odd = guest.start(StartProcess::shell(from_memory)).await.unwrap();
    let pid = until("it runs", async || {
        let processes = output(guest, "ps axo pid,args").await;
        let line = processes.lines().find_map(|line| line.strip_suffix(" odd-program 600"));
        line.map(|pid| pid.trim().to_owned())
    })
    .await;
    (odd, pid)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_saved_is_named_and_the_sandbox_goes_on() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let sandbox = create(&server.client()).await;
    let guest = user_of(&sandbox);
    let counting = Counting::start(&guest).await;
    let (odd, pid) = start_from_memory(&guest).await;
    let refused = sandbox.snapshot(&NewSnapshot::default()).await.unwrap_err();
    let ApiError::Conflict { message, error_code, .. } = &refused else { panic!("{refused:?}") };
    assert_eq!(error_code.as_deref(), Some("memory_not_saved"));
    assert!(
        message.contains(&format!("process {pid} (")) && message.contains("runs a program from memory"),
        "{message}"
    );
    assert!(server.client().list_snapshots(&ListSnapshots::default()).await.unwrap().is_empty());
    guest.run(format!("kill -KILL {}", odd.pid()).as_str()).await.unwrap();
    counting.finish(&guest).await;
    assert!(sandbox.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

/// A server whose log can be read.
fn serve_with_log(state: &StateDir, save_paused_after: &str, path: Option<String>) -> Served {
    let options = ["--listen", "127.0.0.1:0", "--prepare", "none", "--save-paused-after", save_paused_after];
    let mut command = state.isopod().command(&[&["serve"], &options[..]].concat());
    command.envs(path.map(|path| ("PATH", path)));
    Served::start_command(state, command)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_of_what_cannot_be_saved_stays_in_ram_and_the_log_says_why() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let served = serve_with_log(&state, "1", None);
    let client = served.client();
    let sandbox = create(&client).await;
    let guest = user_of(&sandbox);
    let mut counting = Counting::start(&guest).await;
    let (odd, pid) = start_from_memory(&guest).await;
    for _ in 0..2 {
        let told = served.log().len();
        sandbox.pause(true).await.unwrap();
        counting.lose().await;
        let why = format!("process {pid} (");
        until("the log says why", async || served.log()[told..].contains(&why).then_some(())).await;
        let log = served.log()[told..].to_owned();
        let line = log.lines().find(|line| line.contains(&why)).unwrap();
        assert!(line.contains("could not save the memory of a paused sandbox"), "{line}");
        assert!(line.contains("runs a program from memory") && line.contains(sandbox.id().as_str()), "{line}");
        assert_eq!(record_of(&state, sandbox.id().as_str()).unwrap()["state"], "frozen");
        assert_eq!(saved(&state).len(), 0);
        client.connect(sandbox.id(), None).await.unwrap();
        counting.process = guest.connect(counting.process.pid()).await.unwrap();
    }
    guest.run(format!("kill -KILL {}", odd.pid()).as_str()).await.unwrap();
    counting.finish(&guest).await;
    assert!(sandbox.kill().await.unwrap());
    served.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_host_that_shuts_down_cannot_save_is_said_and_the_rest_is_saved() {
    if !has_criu() {
        return;
    }
    let (state, programs) = (StateDir::new(BINARY), tempfile::tempdir().unwrap());
    let mut served = serve_with_log(&state, "0", Some(path_of_a_host_that_stops(programs.path())));
    let key = served.export("E2B_API_KEY").to_owned();
    let client = served.client();
    let (odd, good) = (create(&client).await, create(&client).await);
    let mut counting = Counting::start(&user_of(&good)).await;
    let (_running, pid) = start_from_memory(&user_of(&odd)).await;
    for sandbox in [&odd, &good] {
        sandbox.pause(true).await.unwrap();
    }
    counting.lose().await;
    let log = served.stop_and_read_log();
    let why = log.lines().find(|line| line.contains(&format!("process {pid} ("))).unwrap_or_else(|| panic!("{log}"));
    assert!(why.contains("runs a program from memory") && why.contains(odd.id().as_str()), "{why}");
    let told = "some paused sandboxes could not be saved and lose their memory";
    assert!(log.lines().any(|line| line.contains(told) && line.contains("lost=1")), "{log}");
    assert_eq!(saved(&state).len(), 1);

    served = serve_with_log(&state, "0", None);
    served.use_key(&key);
    let client = served.client();
    assert!(client.connect(odd.id(), None).await.is_err(), "it has ended with the host");
    let resumed = client.connect(good.id(), None).await.unwrap();
    counting.join_and_finish(&user_of(&resumed)).await;
    assert!(resumed.kill().await.unwrap());
    served.stop();
    state.assert_nothing_left();
}

const KERNEL_OBJECTS: &str = include_str!("kernel_objects.py");

/// Starts a program that holds all kinds of things, and waits until it does.
async fn hold_kernel_objects(guest: &Guest, kinds: &str) {
    guest.write_file("kernel_objects.py", KERNEL_OBJECTS).await.unwrap();
    guest.write_file("errors", "").await.unwrap();
    guest.start(StartProcess::shell(format!("exec python3 kernel_objects.py {kinds} 2> errors"))).await.unwrap();
    until("it holds everything", async || {
        assert_eq!(text(guest, "errors").await, "");
        output(guest, "ls").await.lines().any(|name| name == "ready").then_some(())
    })
    .await;
}

/// Has it use what it holds.
async fn assert_everything_works(guest: &Guest, place: &str) {
    guest.write_file("go", "").await.unwrap();
    until("it has used everything", async || {
        output(guest, "ls").await.lines().any(|name| name == "verdict").then_some(())
    })
    .await;
    let (verdict, kinds) = (text(guest, "verdict").await, text(guest, "ready").await);
    let wrong: Vec<&str> = verdict.lines().filter(|line| !line.ends_with(" ok")).collect();
    assert!(wrong.is_empty(), "{place}: {wrong:#?}");
    assert_eq!(verdict.lines().count(), kinds.split(' ').count(), "{place}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_programs_hold_goes_on() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let sandbox = create(&server.client()).await;
    let guest = user_of(&sandbox);
    hold_kernel_objects(&guest, "").await;
    let snapshot = sandbox.snapshot(&NewSnapshot::default()).await.unwrap();
    let copy = server.client().create(NewSandbox::new(snapshot.id.clone())).await.unwrap();
    assert_everything_works(&user_of(&copy), "in a copy").await;
    assert!(copy.kill().await.unwrap());
    assert!(server.client().remove_snapshot(&snapshot.id).await.unwrap());

    sandbox.pause(true).await.unwrap();
    until("its memory is saved", async || (!saved(&state).is_empty()).then_some(())).await;
    until("its processes are gone", async || (python_programs(&state) == 0).then_some(())).await;
    server.client().connect(sandbox.id(), None).await.unwrap();
    assert_everything_works(&guest, "after a resume").await;
    assert!(sandbox.kill().await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_programs_hold_that_cannot_be_saved_is_named() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    for (kind, words) in
        [("system_v_shared_memory", "has System V shared memory"), ("inotify_elsewhere", "Can't dump that handle")]
    {
        let sandbox = create(&server.client()).await;
        let guest = user_of(&sandbox);
        hold_kernel_objects(&guest, kind).await;
        let refused = sandbox.snapshot(&NewSnapshot::default()).await.unwrap_err();
        let ApiError::Conflict { message, error_code, .. } = &refused else { panic!("{refused:?}") };
        assert_eq!(error_code.as_deref(), Some("memory_not_saved"));
        assert!(message.contains("(python3)") && message.contains(words), "{message}");
        assert_everything_works(&guest, "after it was refused").await;
        assert!(sandbox.kill().await.unwrap());
    }
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_while_it_saves_loses_nothing_and_leaves_nothing() {
    if !has_criu() {
        return;
    }
    for delay in [5, 40, 120] {
        let state = StateDir::new(BINARY);
        let server = serve(&state);
        let sandbox = create(&server.client()).await;
        let (id, guest) = (sandbox.id().clone(), user_of(&sandbox));
        let mut counting = Counting::start(&guest).await;
        // Enough memory to take a while.
        let large = "exec python3 -c \"import time; x = bytearray(b'x') * 200_000_000; time.sleep(600)\"";
        guest.start(StartProcess::shell(large)).await.unwrap();
        let taking = tokio::spawn(async move { sandbox.snapshot(&NewSnapshot::default()).await });
        tokio::time::sleep(Duration::from_millis(delay)).await;
        server.kill();
        taking.abort();
        counting.lose().await;
        let server = serve(&state);
        let adopted = server.client().connect(&id, None).await.unwrap();
        let guest = user_of(&adopted);
        counting.join_and_finish(&guest).await;
        assert!(adopted.kill().await.unwrap());
        for snapshot in server.client().list_snapshots(&ListSnapshots::default()).await.unwrap() {
            assert!(server.client().remove_snapshot(&snapshot.id).await.unwrap());
        }
        server.stop();
        state.assert_nothing_left();
    }
}
