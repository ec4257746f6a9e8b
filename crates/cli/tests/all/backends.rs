//! The backends of the service on real sandboxes: one suite for this node and for another server, and a way to that server
//! that breaks.

use crate::cable;
use crate::common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use isopod_client::{Client, ClientConfig};
use isopod_control::ServeConfig;
use isopod_node::{Node, PoolSize};
use isopod_service::backend::{
    Backend, BackendState, Command, CreateSpec, ErrorKind, FileBody, LocalBackend, RemoteBackend, ResilienceConfig,
    Resilient,
};
use isopod_store::{Store, TeamId};
use isopod_testkit::StateDir;
use isopod_wire::{Limits, SandboxId};

use cable::Cable;
use common::{KEY, Server, raw};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");
const SECOND: Duration = Duration::from_secs(1);

/// What every backend does with a real sandbox.
async fn suite(backend: &dyn Backend, team: &TeamId) {
    let env = BTreeMap::from([("GREETING".to_owned(), "hello".to_owned())]);
    let spec = CreateSpec { env, timeout: 600 * SECOND, ..CreateSpec::new(team.clone(), "base") };
    let id = backend.create(&spec).await.unwrap().id;
    commands(backend, &id).await;
    slow_commands(backend, &id).await;
    files(backend, &id).await;
    pause_and_end(backend, &id).await;
}

async fn commands(backend: &dyn Backend, id: &SandboxId) {
    let no_such = Command::argv("no-such-program", ["x"]);
    assert_eq!(backend.execute(id, no_such).await.unwrap_err().kind(), ErrorKind::Invalid);
    let nowhere = Command { cwd: Some("/no/such/place".into()), ..Command::shell("pwd") };
    assert_eq!(backend.execute(id, nowhere).await.unwrap_err().kind(), ErrorKind::Invalid);
    let no_time = Command { timeout: Duration::ZERO, ..Command::shell("true") };
    assert_eq!(backend.execute(id, no_time).await.unwrap_err().kind(), ErrorKind::Invalid);

    let output = backend.execute(id, Command::shell("echo $GREETING; echo no >&2; exit 7")).await.unwrap();
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"hello\n"[..], &b"no\n"[..]));
    assert_eq!((output.exit_code, output.timed_out, output.truncated), (7, false, false));
    let literal = backend.execute(id, Command::argv("echo", ["$GREETING; id"])).await.unwrap();
    assert_eq!(literal.stdout, b"$GREETING; id\n", "no shell around an argv");
    let placed = Command {
        cwd: Some("/tmp".into()),
        env: BTreeMap::from([("X".into(), "1 2".into())]),
        user: Some("root".into()),
        stdin: Some(Bytes::from_static(b"typed")),
        ..Command::shell("pwd; id -un; echo \"$X\"; cat")
    };
    assert_eq!(backend.execute(id, placed).await.unwrap().stdout, b"/tmp\nroot\n1 2\ntyped");
    let much = Command { max_output: 1000, ..Command::shell("head -c 3000000 /dev/zero; exit 2") };
    let output = backend.execute(id, much).await.unwrap();
    assert_eq!((output.stdout.len(), output.truncated, output.exit_code), (1000, true, 2));
}

async fn slow_commands(backend: &dyn Backend, id: &SandboxId) {
    let slow = Command { timeout: SECOND, ..Command::shell("echo begun; sleep 100; echo done") };
    let output = backend.execute(id, slow).await.unwrap();
    assert!(output.timed_out && output.exit_code == -1, "{output:?}");
    assert_eq!(output.stdout, b"begun\n", "what was written until then is kept");
    // It was told to end; the kernel may need a moment.
    let is_gone =
        async { while backend.execute(id, Command::shell("pgrep -x sleep")).await.unwrap().exit_code == 0 {} };
    tokio::time::timeout(60 * SECOND, is_gone).await.expect("the command is gone");
}

async fn files(backend: &dyn Backend, id: &SandboxId) {
    const MOST: usize = 32 << 20;
    let missing = backend.read_file(id, "/home/user/missing", None).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    assert_eq!(backend.read_file(id, "/home/user", None).await.unwrap_err().kind(), ErrorKind::Invalid);
    backend.write_file(id, "/home/user/a/b.txt", None, "short".into()).await.unwrap();
    let file = backend.read_file(id, "/home/user/a/b.txt", None).await.unwrap();
    assert_eq!((file.size, file.collect(MOST).await.unwrap()), (Some(5), b"short".to_vec()));
    let large: Vec<Bytes> = (0..128u8).map(|piece| vec![piece; 64 << 10].into()).collect();
    let pieces = futures::stream::iter(large.clone().into_iter().map(Ok));
    backend.write_file(id, "/tmp/large", Some("root"), FileBody::stream(pieces)).await.unwrap();
    let back = backend.read_file(id, "/tmp/large", Some("root")).await.unwrap().collect(MOST).await.unwrap();
    assert_eq!(back, large.concat());
    let too_long = backend.read_file(id, "/tmp/large", None).await.unwrap().collect(1000).await.unwrap_err();
    assert_eq!(too_long.kind(), ErrorKind::Invalid);
}

async fn pause_and_end(backend: &dyn Backend, id: &SandboxId) {
    let writing = Command::shell("touch /tmp/first; while true; do sleep 0.1; echo tick; done");
    let endless = backend.start(id, writing).await.unwrap();
    let watching = tokio::spawn(endless.collect(1000));
    backend.pause(id).await.unwrap();
    let cut = tokio::time::timeout(60 * SECOND, watching).await.unwrap().unwrap().unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::Unavailable, "a stream of a sandbox that stops ends: {cut}");
    let refused = backend.execute(id, Command::shell("true")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert_eq!(backend.resume(id, 300 * SECOND).await.unwrap().state, BackendState::Running);
    let kept = backend.execute(id, Command::shell("ls /tmp/first")).await.unwrap();
    assert_eq!(kept.exit_code, 0);
    assert!(backend.destroy(id).await.unwrap());
    assert!(!backend.destroy(id).await.unwrap());
    let gone = backend.execute(id, Command::shell("true")).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_backend_works_on_real_sandboxes() {
    let state = StateDir::new(BINARY);
    let node = Arc::new(state.open_node(PoolSize::NONE).await);
    let store = Store::open(state.path().join("isopod.db")).await.unwrap();
    let team = store.ensure_team().await.unwrap();
    let local = Arc::new(LocalBackend::open(&ServeConfig::new(store.clone()), Arc::clone(&node) as _).await.unwrap());
    let backend = Resilient::new(Arc::clone(&local) as _, ResilienceConfig::default());
    suite(&backend, &team).await;
    let limits = Limits { cpu_millis: 1000, ..Limits::default() };
    let small = CreateSpec { limits: Some(limits), ..CreateSpec::new(team, "base") };
    let id = backend.create(&small).await.unwrap().id;
    assert_eq!(backend.execute(&id, Command::argv::<&str>("nproc", [])).await.unwrap().stdout, b"1\n");
    backend.destroy(&id).await.unwrap();
    drop(backend);
    Arc::into_inner(local).expect("the only one left").close().await;
    store.close().await;
    close(node).await;
    state.assert_nothing_left();
}

/// Tasks that just ended may hold it for a moment.
async fn close(mut node: Arc<Node>) {
    for _ in 0..1000 {
        node = match Arc::try_unwrap(node) {
            Ok(node) => return node.close().await,
            Err(shared) => shared,
        };
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("something still holds the node");
}

fn remote(url: &str, call: Duration) -> Resilient {
    let config = ClientConfig {
        api_url: url.to_owned(),
        api_key: KEY.to_owned(),
        sandbox_url: Some(url.to_owned()),
        domain: None,
    };
    let remote = RemoteBackend::with_call_timeout(Client::new(config).unwrap(), call);
    let first_wait = Duration::from_millis(50);
    Resilient::new(Arc::new(remote), ResilienceConfig { first_wait, ..ResilienceConfig::default() })
}

fn second_server(state: &StateDir) -> Server {
    Server::start(state.isopod().command(&["serve", "--pool-ready", "1", "--pool-prepared", "1", "--prepare", "none"]))
}

/// The remote server has its own books.
async fn some_team(state: &StateDir) -> TeamId {
    Store::open(state.path().join("other.db")).await.unwrap().ensure_team().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_remote_backend_works_on_a_second_servers_sandboxes() {
    let state = StateDir::new(BINARY);
    let server = second_server(&state);
    suite(&remote(&format!("http://127.0.0.1:{}", server.port()), 20 * SECOND), &some_team(&state).await).await;
    server.stop();
}

/// The way to the server is cut or falls silent under a command.
#[tokio::test(flavor = "multi_thread")]
async fn a_way_that_breaks_under_a_command_ends_it_with_an_error_and_works_again() {
    let state = StateDir::new(BINARY);
    let server = second_server(&state);
    let cable = Cable::to(server.port()).await;
    let backend = remote(&cable.url(), 8 * SECOND);
    let id = backend.create(&CreateSpec::new(some_team(&state).await, "base")).await.unwrap().id;
    let command = Command::shell("echo begun; sleep 30");
    let running = backend.start(&id, command.clone()).await.unwrap();
    let waiting = tokio::spawn(running.collect(100));
    cable.cut();
    let broken = tokio::time::timeout(60 * SECOND, waiting).await.unwrap().unwrap().unwrap_err();
    assert_eq!(broken.kind(), ErrorKind::Unavailable, "{broken}");
    assert!(!broken.blames_backend(), "one stream is not the backend");
    let output = backend.execute(&id, Command::shell("echo back")).await.unwrap();
    assert_eq!(output.stdout, b"back\n", "idle connections that broke are replaced");
    // Half-open: bytes go nowhere, and nobody says so. Only the deadline helps.
    cable.freeze(true);
    let silent = backend.start(&id, Command { timeout: SECOND, ..command }).await.unwrap_err();
    assert_eq!(silent.kind(), ErrorKind::Timeout, "{silent}");
    cable.freeze(false);
    cable.cut();
    assert!(backend.destroy(&id).await.unwrap());
    server.stop();
}

/// The server's own settings: the key comes from the environment and goes nowhere else.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_a_remote_backend_says_so_and_needs_its_key() {
    let state = StateDir::new(BINARY);
    let options = ["serve", "--prepare", "none", "--pool-ready", "0", "--pool-prepared", "0", "--backend", "remote"];
    let mut command = state.isopod().command(&options);
    let refused = command.env_remove("E2B_API_KEY").output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("E2B_API_KEY"), "{said}");
    let mut command = state.isopod().command(&options);
    command.args(["--open-metrics", "--backend-url", "http://127.0.0.1:9"]).env("E2B_API_KEY", "e2b_theirsecret");
    let server = Server::start(command);
    let answer = raw::ask(server.port(), "GET", "/metrics", &[], b"").await;
    assert!(answer.body.contains("isopod_backend_breaker_state{backend=\"remote\",state=\"closed\"} 1"), "{answer:?}");
    assert!(!answer.body.contains("theirsecret"));
    server.stop();
}
