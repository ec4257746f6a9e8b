//! A server that is killed loses no sandbox: the next one adopts them with their processes, files, tokens and ports.

mod common;

use common::Server;
use isopod_client::guest::{Event, StartProcess};
use isopod_client::sandbox::NewSandbox;
use isopod_testkit::StateDir;

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_loses_no_sandbox() {
    let state = StateDir::new(BINARY);
    let server = Server::start(state.isopod().command(&["serve"]));
    let client = server.client();
    let mut sandboxes = Vec::new();
    for _ in 0..10 {
        sandboxes.push(client.create(NewSandbox::new("base")).await.unwrap());
    }
    let guest = sandboxes[0].guest().clone().with_user("user");
    guest.write_file("/home/user/kept", "kept").await.unwrap();
    let counting = StartProcess::shell("for i in $(seq 1 40); do echo $i; sleep 0.1; done");
    let mut process = guest.start(counting).await.unwrap();
    let pid = process.pid();
    let mut output = String::new();
    while output.lines().count() < 3 {
        if let Some(Event::Stdout(bytes)) = process.next().await.unwrap() {
            output.push_str(&String::from_utf8_lossy(&bytes));
        }
    }

    server.kill();
    let broken = loop {
        match process.next().await {
            Ok(Some(Event::Stdout(bytes))) => output.push_str(&String::from_utf8_lossy(&bytes)),
            Ok(Some(_)) => {}
            other => break other,
        }
    };
    assert!(broken.is_err(), "the stream of a dead server ends with an error, not as if the command had ended");

    let server = Server::start(state.isopod().command(&["serve"]));
    let client = server.client();
    let mut found = 0;
    for sandbox in &sandboxes {
        let again = client.connect(sandbox.id(), None).await.unwrap();
        found += u32::from(again.is_running().await.unwrap());
        assert_eq!(again.guest().clone().with_user("user").run("echo alive").await.unwrap().stdout, b"alive\n");
    }
    assert_eq!(found, 10);

    let guest = client.connect(sandboxes[0].id(), None).await.unwrap().guest().clone().with_user("user");
    assert_eq!(guest.read_file("/home/user/kept").await.unwrap().collect().await.unwrap(), "kept");
    let rest = guest.connect(pid).await.unwrap().collect().await.unwrap();
    output.push_str(&String::from_utf8_lossy(&rest.stdout));
    let seen: Vec<u32> = output.lines().map(|line| line.parse().unwrap()).collect();
    assert!(seen.is_sorted(), "out of order: {seen:?}");
    assert_eq!(seen.last(), Some(&40));
    assert_eq!(rest.ended.exit_code, 0);

    for sandbox in &sandboxes {
        assert!(client.kill(sandbox.id()).await.unwrap());
    }
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_server_leaves_running_sandboxes_and_takes_the_rest() {
    let state = StateDir::new(BINARY);
    let server = Server::start(state.isopod().command(&["serve"]));
    let id = server.client().create(NewSandbox::new("base")).await.unwrap().id().clone();
    server.stop();
    let server = Server::start(state.isopod().command(&["serve"]));
    let sandbox = server.client().connect(&id, None).await.unwrap();
    assert_eq!(sandbox.guest().clone().with_user("user").run("echo alive").await.unwrap().stdout, b"alive\n");
    let refused = state.isopod().run(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(refused.stderr().contains("in use by another isopod process"), "{}", refused.stderr());
    assert!(server.client().kill(&id).await.unwrap());
    server.stop();
    state.assert_nothing_left();
}
