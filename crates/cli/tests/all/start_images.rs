//! Start images: sandboxes of a built template start from the memory that its start command and its interpreter had, once.
//!
//! These need the CRIU that `cargo xtask setup` builds. Where that is not possible, they say so and pass; CI has it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use crate::builds;
use crate::{common, memory};

use std::path::PathBuf;
use std::time::Duration;

use isopod_client::sandbox::{NewSandbox, NewSnapshot, Sandbox};
use isopod_testkit::{Finished, StateDir};

use builds::context;
use common::{KEY, Server, has_criu};
use memory::{executions, record};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

/// A service that takes a while to start, has made up a number by then, and answers with it and its host's name.
const SERVICE: &str = r#"
import http.server, os, random, socket, time
time.sleep(3)
number = random.random()
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(f"{number} {os.environ.get('E2B_SANDBOX_ID')} {os.environ['COLOUR']}".encode())
    def log_message(self, *_): pass
http.server.HTTPServer(('', 3000), Answer).serve_forever()
"#;

fn serve(state: &StateDir, options: &[&str]) -> Server {
    memory::serve(state, &[&["--registry-mirror", "offline"], options].concat())
}

fn cli(state: &StateDir, server: &Server, words: &[&str]) -> Finished {
    let url = format!("http://127.0.0.1:{}", server.port());
    let mut command = state.isopod().command(words);
    command.env("E2B_API_KEY", KEY).env("E2B_API_URL", &url).env("E2B_SANDBOX_URL", &url);
    command.output().unwrap().into()
}

/// The directories of start images below a state directory.
fn images(state: &StateDir) -> Vec<PathBuf> {
    let is_image =
        |path: &PathBuf| record(path).get("start_image").is_some() && path.join("memory/saved.json").exists();
    executions(state).into_iter().filter(is_image).collect()
}

fn build_service(state: &StateDir, server: &Server) -> Finished {
    let (_keep, directory) =
        context(&[("e2b.Dockerfile", "FROM debian\nCOPY service.py /\nENV COLOUR=blue\n"), ("service.py", SERVICE)]);
    let words = ["template", "build", directory.to_str().unwrap(), "--name", "service", "--cmd", "python3 /service.py"];
    cli(state, server, &[&words[..], &["--ready-cmd", "curl -sf localhost:3000"]].concat())
}

async fn create(server: &Server, template: &str) -> Sandbox {
    memory::create(&server.client(), template).await
}

async fn output(sandbox: &Sandbox, command: &str) -> String {
    String::from_utf8(sandbox.guest().run(command).await.unwrap().stdout.to_vec()).unwrap()
}

async fn answer(sandbox: &Sandbox) -> String {
    output(sandbox, "curl -s localhost:3000").await
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_start_from_the_memory_of_the_start_command() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state, &["--pool-ready", "1", "--pool-prepared", "1"]);
    let built = build_service(&state, &server);
    built.ok();
    assert!(built.stderr().contains("sandboxes start from its saved memory"), "{}", built.stderr());
    assert_eq!(images(&state).len(), 1);

    // From the pool and not, all go on from the same memory, and each is a sandbox of its own.
    let mut sandboxes = Vec::new();
    for _ in 0..4 {
        sandboxes.push(create(&server, "service").await);
    }
    let mut answers = Vec::new();
    let mut ids = std::collections::BTreeSet::new();
    for sandbox in &sandboxes {
        answers.push(answer(sandbox).await);
        ids.insert(output(sandbox, "cat /proc/sys/kernel/random/boot_id /etc/machine-id 2>/dev/null").await);
        let own = output(sandbox, "echo $E2B_SANDBOX_ID $(hostname)").await;
        assert_eq!(own, format!("{} isopod\n", sandbox.id()));
    }
    assert!(answers[0].ends_with(" None blue"), "{answers:?}");
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(ids.len(), sandboxes.len());
    assert!(state.isopod().run(&["df"]).ok().lines().any(|line| line.starts_with("start ")));

    // What started from memory can be saved again.
    let snapshot = sandboxes[0].snapshot(&NewSnapshot::default()).await.unwrap();
    let copy = create(&server, &snapshot.id).await;
    assert_eq!(answer(&copy).await, answers[0]);
    copy.kill().await.unwrap();
    assert!(server.client().remove_snapshot(&snapshot.id).await.unwrap());

    // A server that was killed uses the same image.
    server.kill();
    let server = serve(&state, &["--pool-ready", "0", "--pool-prepared", "0"]);
    let again = create(&server, "service").await;
    assert_eq!(answer(&again).await, answers[0]);
    let (first, _) = server.client().attach(sandboxes[0].id()).await.unwrap();
    assert_eq!(answer(&first).await, answers[0], "and nothing has changed for those that run");

    again.kill().await.unwrap();
    for sandbox in &sandboxes {
        server.client().attach(sandbox.id()).await.unwrap().0.kill().await.unwrap();
    }
    cli(&state, &server, &["template", "rm", "service"]).ok();
    assert_eq!(images(&state).len(), 0, "a template that is removed takes its image along");
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_image_costs_a_start_and_nothing_else() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state, &["--pool-ready", "0", "--pool-prepared", "0"]);
    build_service(&state, &server).ok();
    let image = images(&state).pop().unwrap();
    let tree = image.join("memory/images/pstree.img");
    std::fs::write(tree, b"nothing").unwrap();
    let sandbox = create(&server, "service").await;
    assert!(answer(&sandbox).await.ends_with(" None blue"));
    assert_eq!(images(&state).len(), 0);
    sandbox.kill().await.unwrap();
    let sandbox = create(&server, "service").await;
    assert!(answer(&sandbox).await.ends_with(" None blue"));
    sandbox.kill().await.unwrap();
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_command_that_is_faster_than_its_memory_is_started() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let server = serve(&state, &["--pool-ready", "0", "--pool-prepared", "0"]);
    let (_keep, directory) = context(&[("e2b.Dockerfile", "FROM debian\n")]);
    let words = ["template", "build", directory.to_str().unwrap(), "--name", "quick", "--cmd", "sleep 100000"];
    let built = cli(&state, &server, &[&words[..], &["--ready-cmd", "true"]].concat());
    built.ok();
    assert!(built.stderr().contains("sandboxes start it: "), "{}", built.stderr());
    assert_eq!(images(&state).len(), 0);
    server.stop();
    state.assert_nothing_left();
}

/// The first cell of a template of one's own needs no second of imports.
#[tokio::test(flavor = "multi_thread")]
async fn the_interpreter_of_ones_own_template_waits_for_its_first_cell() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY).with_shared_templates();
    state.isopod().run(&["template", "build", "code-interpreter-v1"]).ok();
    let (_keep, directory) = context(&[("e2b.Dockerfile", "FROM e2bdev/code-interpreter\nENV COLOUR=blue\n")]);
    let server = serve(&state, &["--pool-ready", "0", "--pool-prepared", "0"]);
    cli(&state, &server, &["template", "build", directory.to_str().unwrap(), "--name", "own"]).ok();
    // The first create opens the template. An image is made meanwhile, and tried.
    let has_interpreter = async |sandbox: &Sandbox| output(sandbox, "ps -eo args").await.contains("python");
    for tries in 0.. {
        let sandbox = create(&server, "own").await;
        let is_there = has_interpreter(&sandbox).await;
        sandbox.kill().await.unwrap();
        if is_there {
            break;
        }
        assert!(tries < 300, "no interpreter runs before its first cell");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    let code = "import os, random, numpy\nprint(os.environ['COLOUR'], os.environ['OWN'], os.environ['E2B_SANDBOX_ID'])\n\
                print(random.random(), numpy.random.random())";
    let mut random = std::collections::BTreeSet::new();
    for own in ["one", "two"] {
        let new = NewSandbox::new("own").timeout(Duration::from_secs(300)).env("OWN", own);
        let sandbox = server.client().create(new).await.unwrap();
        assert!(has_interpreter(&sandbox).await);
        let executed = sandbox.interpreter().run(code).await.unwrap().collect().await.unwrap();
        let (variables, numbers) = executed.stdout.split_once('\n').unwrap_or_else(|| panic!("{executed:?}"));
        assert_eq!(variables, format!("blue {own} {}", sandbox.id()));
        random.insert(numbers.to_owned());
        sandbox.kill().await.unwrap();
    }
    assert_eq!(random.len(), 2, "each has random numbers of its own");
    cli(&state, &server, &["template", "rm", "own"]).ok();

    // A template that is removed while its image is being made leaves none behind.
    for wait in [0, 300, 600, 900, 1200] {
        cli(&state, &server, &["template", "build", directory.to_str().unwrap(), "--name", "own"]).ok();
        create(&server, "own").await.kill().await.unwrap();
        tokio::time::sleep(Duration::from_millis(wait)).await;
        cli(&state, &server, &["template", "rm", "own"]).ok();
    }
    server.stop();
    state.assert_nothing_left();
}
