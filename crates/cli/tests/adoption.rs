//! A server that is killed loses no sandbox: the next one adopts them with their processes, files, tokens and ports.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may panic, and says how long it took")]

mod common;

use std::time::Instant;

use common::Server;
use isopod_client::guest::{Event, GuestError, Process, StartProcess};
use isopod_client::sandbox::{Client, ListSandboxes, NewSandbox, Sandbox};
use isopod_testkit::StateDir;

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

/// How many sandboxes run when the server is killed: a hundred in a full run.
fn crowd() -> usize {
    if std::env::var_os("ISOPOD_FULL").is_some() { 100 } else { 10 }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_loses_no_sandbox() {
    let state = StateDir::new(BINARY);
    let server = Server::start(state.isopod().command(&["serve"]));
    let client = server.client();
    let mut running = Vec::new();
    for _ in 0..crowd() {
        running.push(Running::start(client.create(NewSandbox::new("base")).await.unwrap()).await);
    }
    let kept = running[0].sandbox.guest().clone().with_user("user");
    kept.write_file("/home/user/kept", "kept").await.unwrap();

    server.kill();
    for one in &mut running {
        one.see_the_stream_break().await;
    }

    let started = Instant::now();
    let server = Server::start(state.isopod().command(&["serve"]));
    let client = server.client();
    let answers = started.elapsed();
    let adopted = client.list(ListSandboxes::default()).collect().await.unwrap();
    let told = format!("{} sandboxes: a new server answered after {answers:?}", adopted.len());
    assert_eq!(adopted.len(), running.len(), "{told}");
    for one in &mut running {
        one.read_the_rest(&client).await;
    }
    // Shown by `--nocapture`; how long it takes depends on what else the machine does.
    eprintln!("{told}, all were adopted and all output was read after {:?}", started.elapsed());

    let guest = client.connect(running[0].sandbox.id(), None).await.unwrap().guest().clone().with_user("user");
    assert_eq!(guest.read_file("/home/user/kept").await.unwrap().collect().await.unwrap(), "kept");
    for one in &running {
        assert!(client.kill(one.sandbox.id()).await.unwrap());
    }
    server.stop();
    state.assert_nothing_left();
}

/// A sandbox in which a command counts until it is told to stop.
struct Running {
    sandbox: Sandbox,
    process: Process,
    output: String,
}

impl Running {
    async fn start(sandbox: Sandbox) -> Self {
        let guest = sandbox.guest().clone().with_user("user");
        let counting = "i=0; until [ -e enough ]; do i=$((i+1)); echo $i; sleep 0.1; done; echo 1000000";
        let mut process = guest.start(StartProcess::shell(counting)).await.unwrap();
        let mut output = String::new();
        while output.lines().count() < 3 {
            if let Some(Event::Stdout(bytes)) = process.next().await.unwrap() {
                output.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
        Self { sandbox, process, output }
    }

    /// With an error after which one may try again, and not as if the command had ended.
    async fn see_the_stream_break(&mut self) {
        let broken = loop {
            match self.process.next().await {
                Ok(Some(Event::Stdout(bytes))) => self.output.push_str(&String::from_utf8_lossy(&bytes)),
                Ok(Some(_)) => {}
                other => break other,
            }
        };
        assert!(matches!(broken, Err(GuestError::Transport(_))), "{broken:?}");
    }

    async fn read_the_rest(&mut self, client: &Client) {
        let again = client.connect(self.sandbox.id(), None).await.unwrap();
        assert!(again.is_running().await.unwrap());
        let guest = again.guest().clone().with_user("user");
        let rest = guest.connect(self.process.pid()).await.unwrap();
        assert_eq!(guest.run("touch enough; echo alive").await.unwrap().stdout, b"alive\n");
        let rest = rest.collect().await.unwrap();
        self.output.push_str(&String::from_utf8_lossy(&rest.stdout));
        let seen: Vec<u32> = self.output.lines().map(|line| line.parse().unwrap()).collect();
        assert!(seen.is_sorted(), "out of order: {seen:?}");
        assert_eq!((seen.last(), rest.ended.exit_code), (Some(&1_000_000), 0));
    }
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
