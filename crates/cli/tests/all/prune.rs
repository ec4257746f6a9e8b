//! `isopod prune` and `isopod uninstall` beside sandboxes whose server is down: in use is what the records say.

use crate::builds;
use crate::{common, memory};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use builds::context;
use builds::registry::{Registry, small_system};
use common::{KEY, Server, has_criu};
use isopod_client::guest::StartProcess;
use isopod_client::sandbox::{Client, NewSandbox, NewSnapshot};
use isopod_node::PoolSize;
use isopod_testkit::{Finished, StateDir};
use isopod_wire::SandboxId;
use isopod_wire::build::RemoveTemplateError;
use isopod_wire::node::NodeApi;
use memory::{record_of, until, user_of};
use serde_json::{Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

/// Serves a sandbox that runs and one that is stopped, and then dies.
async fn leave_sandboxes(state: &StateDir) -> [SandboxId; 2] {
    let server = serve(state);
    let client = server.client();
    let running = client.create(NewSandbox::new("base")).await.unwrap().id().clone();
    let stopped = client.create(NewSandbox::new("base")).await.unwrap().id().clone();
    client.pause(&stopped, false).await.unwrap();
    server.kill();
    [running, stopped]
}

fn serve(state: &StateDir) -> Server {
    Server::start(state.isopod().command(&["serve", "--pool-ready", "1", "--pool-prepared", "1"]))
}

/// It has its files and runs commands that it did not run before.
async fn assert_is_whole(client: &Client, id: &SandboxId) {
    let sandbox = client.connect(id, None).await.unwrap();
    let guest = sandbox.guest().clone().with_user("user");
    let looked = guest.run("grep -c user: /etc/passwd && sudo id -un && python3 -c 'print(6 * 7)'").await.unwrap();
    assert_eq!(String::from_utf8_lossy(&looked.stdout), "1\nroot\n42\n");
}

/// As after an upgrade of the host's packages or of this program: the sandboxes' generation is not the current one.
fn pretend_that_the_host_changed(state: &StateDir) {
    let path = state.path().join("layers/base-keys.json");
    let known: BTreeMap<String, String> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let other: BTreeMap<String, String> = known.into_keys().map(|key| (key, "f".repeat(64))).collect();
    std::fs::write(&path, serde_json::to_vec(&other).unwrap()).unwrap();
}

async fn prune_keeps_sandboxes(arguments: &[&str], host_changed: bool) {
    let state = StateDir::new(BINARY);
    let sandboxes = leave_sandboxes(&state).await;
    if host_changed {
        pretend_that_the_host_changed(&state);
    }
    let said = state.isopod().run(arguments).ok();
    assert!(said.contains("kept 2 sandboxes"), "{said}");

    let server = serve(&state);
    for id in &sandboxes {
        assert_is_whole(&server.client(), id).await;
    }
    // Beside a server too: a stopped sandbox is held by no process.
    server.client().pause(&sandboxes[1], false).await.unwrap();
    state.isopod().run(arguments).ok();
    for id in &sandboxes {
        assert_is_whole(&server.client(), id).await;
        assert!(server.client().kill(id).await.unwrap());
    }
    server.stop();
    let said = state.isopod().run(&["prune", "--all"]).ok();
    assert!(said.contains("and 1 templates") && !said.contains("kept"), "{said}");
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn prune_of_everything_keeps_sandboxes_whose_server_is_down() {
    prune_keeps_sandboxes(&["prune", "--all"], false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prune_keeps_sandboxes_on_a_generation_that_is_no_longer_current() {
    prune_keeps_sandboxes(&["prune"], true).await;
}

/// A verb that asks the server.
fn ask(state: &StateDir, server: &Server, words: &[&str]) -> Finished {
    let url = format!("http://127.0.0.1:{}", server.port());
    let mut command = state.isopod().command(words);
    command.env("E2B_API_KEY", KEY).env("E2B_API_URL", &url).output().unwrap().into()
}

/// Pulls an image of a registry of our own, which is gone afterwards.
fn pull_image(state: &StateDir) -> String {
    let registry = Registry::start(None);
    registry.push("team/tiny", &[small_system("of the image")], json!({}));
    let name = format!("{}/team/tiny:latest", registry.address);
    let mut pull = state.isopod().command(&["image", "pull", &name]);
    let pulled = pull.env("ISOPOD_REGISTRY_MIRRORS", format!("{0}=http://{0}", registry.address)).output().unwrap();
    Finished::from(pulled).ok();
    name
}

/// It has the files of the image, of the build's own step, and its own, and starts programs of the image.
async fn assert_is_whole_of_the_image(client: &Client, id: &SandboxId) {
    let sandbox = client.connect(id, None).await.unwrap();
    let guest = sandbox.guest().clone().with_user("root");
    let looked = guest.run("cat /etc/marker /made /own; ls /bin/touch").await.unwrap();
    assert_eq!(String::from_utf8_lossy(&looked.stdout), "of the imagemade\nown\n/bin/touch\n");
}

/// What builds have left: manifests and layers.
fn built(state: &StateDir) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let names = std::fs::read_dir(state.path().join("templates")).unwrap().map(|entry| entry.unwrap().path());
    let starts = |path: &PathBuf, with: &str| path.file_name().unwrap().to_str().unwrap().starts_with(with);
    let (manifests, others): (Vec<_>, Vec<_>) = names.partition(|path| starts(path, "tpl-"));
    (manifests, others.into_iter().filter(|path| starts(path, "l-")).collect())
}

fn remove_image_and_everything_unused(state: &StateDir, image: &str) {
    state.isopod().run(&["image", "rm", image]);
    state.isopod().run(&["image", "gc"]).ok();
    state.isopod().run(&["prune", "--all"]).ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_of_a_template_that_was_built_of_an_image_outlive_the_image_a_prune_and_the_template() {
    let state = StateDir::new(BINARY);
    let image = pull_image(&state);
    let (_keep, directory) = context(&[("Dockerfile", &format!("FROM {image}\nRUN echo made > /made\n"))]);
    let server = serve(&state);
    ask(&state, &server, &["template", "build", directory.to_str().unwrap(), "--name", "mine"]).ok();
    let mut sandboxes = Vec::new();
    for _ in 0..2 {
        let sandbox = server.client().create(NewSandbox::new("mine")).await.unwrap();
        let guest = sandbox.guest().clone().with_user("root");
        assert!(guest.run("echo own > /own").await.unwrap().ended.is_success());
        sandboxes.push(sandbox.id().clone());
    }
    server.client().pause(&sandboxes[1], false).await.unwrap();
    server.kill();
    let (manifests, layers) = built(&state);
    assert!(manifests.len() == 1 && !layers.is_empty(), "{manifests:?} {layers:?}");

    // Without its manifest nobody knows what the sandboxes stand on, and nothing is removed.
    let manifest = std::fs::read(&manifests[0]).unwrap();
    std::fs::write(&manifests[0], "{").unwrap();
    let refused = state.isopod().run(&["prune", "--all"]);
    assert!(refused.code() != 0 && refused.stderr().contains("cannot tell which layers"), "{}", refused.stderr());
    std::fs::write(&manifests[0], manifest).unwrap();
    remove_image_and_everything_unused(&state, &image);
    assert_eq!(built(&state), (manifests.clone(), layers.clone()));

    let server = serve(&state);
    for id in &sandboxes {
        assert_is_whole_of_the_image(&server.client(), id).await;
    }
    assert!(server.client().kill(&sandboxes[0]).await.unwrap());
    server.client().pause(&sandboxes[1], false).await.unwrap();
    server.stop();

    // No process holds the layers of the paused one.
    let node = state.open_node(PoolSize::NONE).await;
    let id = Path::new(&manifests[0]).file_stem().unwrap().to_str().unwrap();
    let refused = node.remove_template(id).await.unwrap_err();
    assert!(matches!(refused, RemoveTemplateError::InUse(_)), "{refused}");
    node.close().await;
    let server = serve(&state);
    // The name goes; what the sandbox stands on does not.
    ask(&state, &server, &["template", "rm", "mine"]).ok();
    assert!(server.client().create(NewSandbox::new("mine")).await.is_err(), "the template is gone");
    server.kill();
    remove_image_and_everything_unused(&state, &image);
    assert_eq!(built(&state), (manifests, layers));
    let server = serve(&state);
    assert_is_whole_of_the_image(&server.client(), &sandboxes[1]).await;
    assert!(server.client().kill(&sandboxes[1]).await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_cannot_be_read_stops_a_prune() {
    let state = StateDir::new(BINARY);
    let sandboxes = leave_sandboxes(&state).await;
    let boxes = std::fs::read_dir(state.path().join("homes/serve/boxes")).unwrap().map(|entry| entry.unwrap().path());
    let records: Vec<_> = boxes.map(|path| path.join("record.json")).filter(|path| path.exists()).collect();
    let kept: Vec<_> = records.iter().map(|path| std::fs::read(path).unwrap()).collect();
    records.iter().for_each(|path| std::fs::write(path, "{").unwrap());
    let refused = state.isopod().run(&["prune", "--all"]);
    assert!(refused.code() != 0 && refused.stderr().contains("cannot be read"), "{}", refused.stderr());
    records.iter().zip(kept).for_each(|(path, text)| std::fs::write(path, text).unwrap());

    let server = serve(&state);
    for id in &sandboxes {
        assert_is_whole(&server.client(), id).await;
        assert!(server.client().kill(id).await.unwrap());
    }
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn uninstall_tells_of_sandboxes_and_removes_nothing_without_a_yes() {
    let state = StateDir::new(BINARY);
    let sandboxes = leave_sandboxes(&state).await;
    let refused = state.isopod().run(&["uninstall"]);
    assert_ne!(refused.code(), 0);
    assert!(refused.stderr().contains("2 sandboxes run or are paused"), "{}", refused.stderr());
    let server = serve(&state);
    for id in &sandboxes {
        assert_is_whole(&server.client(), id).await;
    }
    let refused = state.isopod().run(&["uninstall", "--yes"]);
    assert!(refused.stderr().contains("in use by another isopod process"), "{}", refused.stderr());
    server.kill();
    state.isopod().run(&["uninstall", "--yes"]).ok();
    assert!(!state.path().exists());
    state.assert_nothing_left();
    std::fs::create_dir(state.path()).unwrap();
}

/// The names in the rows of `isopod df` of this kind, all of which take space.
fn names_in_df(state: &StateDir, kind: &str) -> Vec<String> {
    let rows: Vec<Value> = serde_json::from_str(&state.isopod().run(&["df", "--json"]).ok()).unwrap();
    let rows: Vec<&Value> = rows.iter().filter(|row| row["kind"] == kind).collect();
    assert!(rows.iter().all(|row| row["bytes"].as_u64() > Some(0) && row["in_use"] == true), "{rows:?}");
    rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn saved_memory_is_shown_outlives_a_prune_and_is_named_before_an_uninstall() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = memory::serve(&state, &["--save-paused-after", "1"]);
    let sandbox = memory::create(&server.client(), "base").await;
    let id = sandbox.id().as_str();
    let program = user_of(&sandbox).start(StartProcess::shell("exec sleep 6000")).await.unwrap().pid();
    let runs = format!("tr '\\0' ' ' < /proc/{program}/cmdline");
    sandbox.snapshot(&NewSnapshot { name: Some("kept".to_owned()), ..NewSnapshot::default() }).await.unwrap();
    sandbox.pause(true).await.unwrap();
    until("its memory is saved", async || record_of(&state, id).filter(|record| record["state"] == "saved")).await;

    let check = |said: String| {
        let said: Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&said["kept"], &said["kept_snapshots"]), (&json!(1), &json!(1)), "{said}");
        assert_eq!(names_in_df(&state, "paused"), [id]);
        assert_eq!(names_in_df(&state, "snapshot").len(), 1);
    };
    check(state.isopod().run(&["prune", "--all", "--json"]).ok());
    server.kill();
    check(state.isopod().run(&["prune", "--all", "--json"]).ok());
    assert!(state.isopod().run(&["prune", "--all"]).ok().contains("kept 1 snapshots"));
    let refused = state.isopod().run(&["uninstall"]);
    assert_eq!((refused.code(), refused.stdout().starts_with("nothing was removed")), (1, true));
    let asked = refused.stderr();
    assert!(asked.contains("1 sandbox runs or is paused") && asked.contains("1 snapshot is lost too"), "{asked}");

    let server = memory::serve(&state, &[]);
    let client = server.client();
    let resumed = client.connect(sandbox.id(), None).await.unwrap();
    let copy = memory::create(&client, "kept").await;
    for one in [&resumed, &copy] {
        assert_eq!(user_of(one).run(runs.as_str()).await.unwrap().text(), "sleep 6000 ");
        assert!(one.kill().await.unwrap());
    }
    assert!(names_in_df(&state, "paused").is_empty());
    assert!(client.remove_snapshot("kept").await.unwrap());
    assert!(names_in_df(&state, "snapshot").is_empty());
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn uninstall_beside_a_command_removes_nothing() {
    let state = StateDir::new(BINARY);
    let mut command = state.isopod().command(&["run", "--", "sh", "-c", "echo ready; read line; cat /etc/passwd"]);
    let piped = command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut running = piped.spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(running.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let refused = state.isopod().run(&["uninstall", "--yes"]);
    assert!(refused.stderr().contains("in use by another isopod process"), "{}", refused.stderr());
    std::io::Write::write_all(&mut running.stdin.take().unwrap(), b"go\n").unwrap();
    assert!(lines.any(|line| line.unwrap().starts_with("user:")), "the sandbox lost its files");
    assert!(running.wait().unwrap().success());
    state.assert_nothing_left();
}
