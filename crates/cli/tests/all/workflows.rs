//! Workflows as people run them: the examples on real sandboxes, a real agent, and a server that is killed in mid-run.

use crate::common;
use crate::served;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isopod_client::Client;
use isopod_testkit::StateDir;
use serde_json::{Value, json};
use served::{BINARY, Served};

const TEMPLATE: &str = "code-interpreter-v1";

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/workflows").join(name)
}

fn state() -> StateDir {
    let state = StateDir::new(BINARY).with_shared_templates();
    state.isopod().run(&["template", "build", TEMPLATE]).ok();
    state
}

fn serve(state: &StateDir) -> Served {
    Served::start(state, &["--listen", "127.0.0.1:0", "--prepare", TEMPLATE])
}

/// No sandbox is left although nobody killed one.
fn finish(server: Served, state: &StateDir) {
    assert_eq!(server.run(&["ls", "--quiet"]).ok().trim(), "");
    server.stop();
    state.assert_nothing_left();
}

/// Waits until the run's cleanup is confirmed.
fn cleaned_up(server: &Served, run: &str) -> Value {
    for _ in 0..600 {
        let state: Value = serde_json::from_str(&server.run(&["runs", "show", run, "--json"]).ok()).unwrap();
        if state["cleaned_up"] == true {
            return state;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{run} is not cleaned up");
}

fn until(condition: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "it did not come true");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn run_of(output: &str) -> String {
    output.lines().find_map(|line| line.strip_prefix("run ")).unwrap().trim().to_owned()
}

#[test]
fn the_example_workflows_run_and_leave_no_sandbox() {
    let state = state();
    let server = serve(&state);
    let files = tempfile::tempdir().unwrap();
    let report = example("report.yaml");
    let fetched = files.path().to_str().unwrap();
    let done = server.run(&["run-workflow", report.to_str().unwrap(), "--artifacts", fetched]).ok();
    assert!(done.contains("3 people, 40.7 years on average") && done.contains("grace,45"), "{done}");
    assert_eq!(done.lines().last(), Some("completed"));
    let run = run_of(&done);
    assert_eq!(std::fs::read_to_string(files.path().join("report.txt")).unwrap(), "average age: 40.7\n");
    assert!(server.run(&["runs", "artifacts", &run]).ok().contains("report.txt"));
    let promoted = server.run(&["runs", "promote", &run, "report.txt", "--client", "desk-1"]).ok();
    assert!(promoted.starts_with("report.txt is in the library of desk-1 until 2"), "{promoted}");
    let listed = server.run(&["runs", "library", "--client", "desk-1", "--json"]).ok();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((&listed["files"][0]["run_id"], &listed["files"][0]["size_bytes"]), (&json!(run), &json!(18)));
    assert!(server.run(&["runs", "library", "--client", "desk-1"]).ok().contains("report.txt"));
    assert!(!server.run(&["runs", "library"]).ok().contains("report.txt"), "the public library has no such file");
    cleaned_up(&server, &run);

    let retries = server.run(&["run-workflow", example("retries.yaml").to_str().unwrap(), "--json"]).ok();
    let last: Value = serde_json::from_str(retries.lines().last().unwrap()).unwrap();
    assert_eq!((&last["status"], &last["nodes"][0]["attempts"]), (&json!("completed"), &json!(3)));
    assert!(retries.contains("it took 3 tries"), "{retries}");
    cleaned_up(&server, last["run_id"].as_str().unwrap());

    let approved = server.run(&["run-workflow", example("approval.yaml").to_str().unwrap(), "--approve-all"]).ok();
    assert!(approved.contains("SystemIntervention publish pause"), "{approved}");
    cleaned_up(&server, &run_of(&approved));
    finish(server, &state);
}

/// The first attempt breaks a file and a variable. The second one finds them whole: it can tell that it is the second by its
/// pid, because those of a restored sandbox begin far above.
#[test]
fn a_node_with_a_checkpoint_is_undone_before_it_is_tried_again() {
    if let Err(reason) = isopod_testkit::criu() {
        assert!(std::env::var_os("CI").is_none(), "CI tests memory: {reason}");
        return;
    }
    let flow = "
nodes:
  - {id: prepare, code: 'open(\"table\", \"w\").write(\"intact\"); rows = [1, 2]'}
  - id: risky
    code: |
      import os, subprocess
      table, before = open('table').read(), len(rows)
      open('table', 'w').write('broken')
      rows.clear()
      assert int(subprocess.check_output('echo $$', shell=True)) > 20000, 'the first attempt'
      print(table, before)
    depends_on: [prepare]
    checkpoint: true
    retries: 1
";
    let state = state();
    let server = serve(&state);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), flow).unwrap();
    let shown = server.run(&["run-workflow", file.path().to_str().unwrap(), "--json"]).ok();
    let last: Value = serde_json::from_str(shown.lines().last().unwrap()).unwrap();
    assert_eq!((&last["status"], &last["nodes"][1]["attempts"]), (&json!("completed"), &json!(2)), "{shown}");
    assert!(shown.contains("intact 2"), "{shown}");
    cleaned_up(&server, last["run_id"].as_str().unwrap());
    assert_eq!(server.run(&["snapshot", "ls", "--quiet"]).ok().trim(), "", "the run's checkpoints are gone with it");

    let migrated = server.run(&["run-workflow", example("checkpoint.yaml").to_str().unwrap()]).ok();
    assert!(migrated.contains("migrated"), "{migrated}");
    cleaned_up(&server, &run_of(&migrated));
    finish(server, &state);
}

/// An agent that uses the sandbox of its run while the run waits for it.
#[test]
fn an_agent_of_a_workflow_shares_the_sandbox_of_its_run() {
    let state = state();
    let options = ["--listen", "127.0.0.1:0", "--prepare", TEMPLATE, "--allow-outbound", "127.0.0.1"];
    let server = Served::start(&state, &options);
    let agent = Agent::start(&server);
    let url = format!("agent: http://{}\n    prompt:", agent.address);
    let text = std::fs::read_to_string(example("agent.yaml")).unwrap().replace("prompt:", &url);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let done = server.run(&["run-workflow", file.path().to_str().unwrap()]).ok();
    assert!(done.contains("55"), "{done}");
    let seen = agent.invocations.lock().unwrap().clone();
    assert_eq!(
        (seen.len(), &seen[0]["agent_id"], &seen[0]["tools"]),
        (1, &json!("thinker"), &json!(["execute_python"]))
    );
    let run = run_of(&done);
    cleaned_up(&server, &run);
    let cleanups = agent.cleanups.lock().unwrap().clone();
    assert_eq!(
        cleanups.iter().map(|line| line.trim_end()).collect::<Vec<_>>(),
        [format!("DELETE /runtime/{run}/cleanup HTTP/1.1")]
    );
    // What the agent's tool call wrote is in the log of the run.
    let logs = server.run(&["runs", "logs", &run]).ok();
    assert!(logs.contains("thinker stdout │ 55"), "{logs}");
    finish(server, &state);
}

/// The run has ended well, but somebody has to look after its agent service.
#[test]
fn a_cleanup_that_failed_is_shown_with_the_service_and_its_answer() {
    let state = StateDir::new(BINARY);
    let settings = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(settings.path(), "runs.allow_internal_agents = true\nruns.cleanup_deadline_seconds = 0\n").unwrap();
    let settings = settings.path().to_str().unwrap();
    let server = Served::start(&state, &["--listen", "127.0.0.1:0", "--prepare", "none", "--config", settings]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (first, _) = read_message(&stream);
            if first.starts_with("DELETE ") {
                stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").unwrap();
            } else {
                answer(stream, r#"{"success": true, "output": "well"}"#);
            }
        }
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("nodes: [{{id: a, agent: '{url}', prompt: x}}]")).unwrap();
    let run = run_of(&server.run(&["run-workflow", file.path().to_str().unwrap()]).ok());
    let show = || server.run(&["runs", "show", &run]).ok();
    until(|| show().contains("cleanup_failed"));
    let shown = show();
    let line = shown.lines().find(|line| line.starts_with("cleanup_failed")).unwrap();
    assert!(line.contains(&format!("{url}, attempts: 1, last error: ")) && line.contains("503"), "{shown}");
    for (label, value) in [("status", "completed"), ("cleaned up", "false")] {
        assert!(shown.lines().any(|line| line.starts_with(label) && line.ends_with(value)), "{shown}");
    }
    server.stop();
    state.assert_nothing_left();
}

/// A server on loopback has no exception: whoever has a team key could otherwise read what listens on the host.
#[test]
fn a_workflow_cannot_name_an_agent_on_the_host_unless_the_operator_allows_it() {
    let state = state();
    let server = serve(&state);
    let agent = Agent::start(&server);
    let file = tempfile::NamedTempFile::new().unwrap();
    let flow = format!("nodes: [{{id: a, agent: 'http://{}', prompt: x}}]", agent.address);
    std::fs::write(file.path(), flow).unwrap();
    let refused = server.run(&["run-workflow", file.path().to_str().unwrap()]);
    assert_ne!(refused.code(), 0);
    let told = refused.stdout() + &refused.stderr();
    assert!(told.contains("internal address"), "{told}");
    assert!(agent.invocations.lock().unwrap().is_empty(), "the server called it");
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn runs_are_listed_shown_stopped_approved_and_refused_with_advice() {
    let state = state();
    let server = serve(&state);
    let flow = |text: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    };
    let cycle = flow("nodes: [{id: a, command: x, depends_on: [b]}, {id: b, command: x, depends_on: [a]}]");
    let refused = server.run(&["run-workflow", cycle.path().to_str().unwrap()]);
    assert!(refused.code() == 125 && refused.stderr().contains("cycle"), "{}", refused.stderr());
    assert!(refused.stderr().contains("hint: docs/workflows.md"), "{}", refused.stderr());
    assert_eq!(server.run(&["runs", "show", "nobody"]).code(), 125);

    let fails = flow("nodes: [{id: a, command: 'echo no >&2; exit 3'}]");
    let failed = server.run(&["run-workflow", fails.path().to_str().unwrap()]);
    assert_eq!(failed.code(), 1, "{}", failed.stderr());
    let sleeps = flow("name: sleeper\nnodes: [{id: a, command: 'echo so tired; sleep 600'}]");
    let sleeper = server.run(&["run-workflow", "--detach", sleeps.path().to_str().unwrap()]).ok().trim().to_owned();
    // It was taken on; its node begins a moment later.
    until(|| server.run(&["runs", "ls", "--status", "running"]).ok().contains(&sleeper));
    until(|| server.run(&["runs", "logs", &sleeper]).ok().contains("AgentStarted"));
    // What it prints is there while it goes on.
    until(|| server.run(&["runs", "logs", &sleeper]).ok().contains("a stdout │ so tired"));
    server.run(&["runs", "stop", &sleeper]).ok();
    assert_eq!(cleaned_up(&server, &sleeper)["reason"], "stopped");
    let shown = server.run(&["runs", "show", &sleeper]).ok();
    assert!(shown.contains("sleeper") && shown.contains("stopped"), "{shown}");

    let asks = flow("nodes: [{id: a, command: 'true', approval: true}]");
    for (options, reason) in [(vec![], "completed"), (vec!["--reject"], "rejected")] {
        let run = server.run(&["run-workflow", "--detach", asks.path().to_str().unwrap()]).ok().trim().to_owned();
        let waiting = || server.run(&["runs", "ls", "--status", "awaitingapproval"]).ok().contains(&run);
        while !waiting() {
            std::thread::sleep(Duration::from_millis(20));
        }
        server.run(&[&["runs", "approve", run.as_str()], options.as_slice()].concat()).ok();
        assert_eq!(cleaned_up(&server, &run)["reason"], reason);
    }
    finish(server, &state);
}

/// Each node has its own time, and what it started ends with it.
#[test]
fn a_command_that_takes_longer_than_its_node_may_fails_the_run() {
    let state = state();
    let server = serve(&state);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "nodes: [{id: a, command: 'echo begun; sleep 60', timeout: 1}]").unwrap();
    let failed = server.run(&["run-workflow", file.path().to_str().unwrap()]);
    assert_eq!(failed.code(), 1, "{}", failed.stderr());
    let ended = cleaned_up(&server, &run_of(&failed.stdout()));
    assert_eq!((&ended["status"], &ended["reason"]), (&json!("failed"), &json!("node_failed")), "{ended}");
    let error = ended["nodes"][0]["error"].as_str().unwrap();
    assert!(error.contains("TimeoutError: it ran longer than 1 seconds and was stopped"), "{error}");
    let logs = server.run(&["runs", "logs", ended["run_id"].as_str().unwrap()]).ok();
    assert!(logs.contains("a stdout │ begun"), "what it printed before is not lost: {logs}");
    finish(server, &state);
}

/// `runs logs --follow` prints while the run goes on and ends with it.
#[test]
fn logs_are_followed_until_the_run_ends() {
    let state = state();
    let server = serve(&state);
    let file = tempfile::NamedTempFile::new().unwrap();
    let flow = "nodes: [{id: a, command: echo one}, {id: b, command: 'echo two; sleep 600', depends_on: [a]}]";
    std::fs::write(file.path(), flow).unwrap();
    let run = server.run(&["run-workflow", "--detach", file.path().to_str().unwrap()]).ok().trim().to_owned();
    let mut following = server.command(&["runs", "logs", "-f", &run]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines().map(Result::unwrap);
    let before: Vec<String> = lines.by_ref().take_while(|line| !line.ends_with("b stdout │ two")).collect();
    assert!(before.iter().any(|line| line.ends_with("a stdout │ one")), "{before:#?}");
    assert!(server.run(&["runs", "ls", "--status", "running"]).ok().contains(&run), "it ended: {before:#?}");
    assert!(following.try_wait().unwrap().is_none(), "nobody follows any more");

    server.run(&["runs", "stop", &run]).ok();
    let after: Vec<String> = lines.collect();
    assert!(after.last().is_some_and(|line| line.contains("RunEnded") && line.contains("stopped")), "{after:#?}");
    assert!(following.wait().unwrap().success());
    cleaned_up(&server, &run);
    finish(server, &state);
}

/// The two streams of a cell and its value are lines of their own, while the next node still runs.
#[test]
fn what_a_cell_writes_and_returns_is_followed_stream_by_stream() {
    let state = state();
    let server = serve(&state);
    let file = tempfile::NamedTempFile::new().unwrap();
    let code = "import sys\nprint('to stdout')\nprint('to stderr', file=sys.stderr)\n6 * 7\n";
    let flow = json!({ "nodes": [
        { "id": "cell", "code": code },
        { "id": "next", "command": "echo begun; sleep 600", "depends_on": ["cell"] },
    ] });
    std::fs::write(file.path(), flow.to_string()).unwrap();
    let run = server.run(&["run-workflow", "--detach", file.path().to_str().unwrap()]).ok().trim().to_owned();
    let mut following = server.command(&["runs", "logs", "-f", &run]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines().map(Result::unwrap);
    let seen: Vec<String> = lines.by_ref().take_while(|line| !line.ends_with("next stdout │ begun")).collect();
    let at = |end: &str| {
        let found: Vec<usize> = (0..seen.len()).filter(|index| seen[*index].ends_with(end)).collect();
        assert_eq!(found.len(), 1, "{end} is once in {seen:#?}");
        found[0]
    };
    let (stdout, stderr) = (at("cell stdout │ to stdout"), at("cell stderr │ to stderr"));
    let result = at("cell result │ 42");
    let ended = seen.iter().position(|line| line.contains("AgentCompleted")).unwrap();
    assert!(stdout.max(stderr) < result && result < ended, "{seen:#?}");

    server.run(&["runs", "stop", &run]).ok();
    assert!(lines.last().is_some_and(|line| line.contains("RunEnded")));
    assert!(following.wait().unwrap().success());
    cleaned_up(&server, &run);
    finish(server, &state);
}

/// A restart does not fail a run: it goes on from what was recorded, and its sandbox is removed at its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_after_its_server_was_killed_and_finished_nodes_do_not_run_again() {
    let state = state();
    let start = || {
        let arguments = ["serve", "--pool-ready", "1", "--pool-prepared", "1", "--prepare", TEMPLATE];
        common::Server::start(state.isopod().command(&arguments))
    };
    let flow = "nodes: [{id: first, command: echo first >> ran}, {id: slow, command: 'echo slow >> ran; sleep 2', \
                depends_on: [first]}, {id: last, command: cat ran, depends_on: [slow]}]";
    let server = start();
    let run = server.client().start_run(flow).await.unwrap();
    reaches(&server.client(), &run, |state| state["active_agents"] == json!(["slow"])).await;
    // Until the command has begun: what it wrote tells afterwards that it was started twice.
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.kill();
    let server = start();
    let client = server.client();
    let ended = reaches(&client, &run, |state| state["cleaned_up"] == true).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let printed = ended["nodes"][2]["output"]["stdout"].as_str().unwrap().to_owned();
    assert_eq!(printed.matches("first").count(), 1, "{printed:?}");
    assert!((1..=2).contains(&printed.matches("slow").count()), "{printed:?}");
    let left = client.list(isopod_client::sandbox::ListSandboxes::default()).collect().await.unwrap();
    assert!(left.is_empty(), "{left:?}");
    server.stop();
    state.assert_nothing_left();
}

async fn reaches(client: &Client, run: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..1200 {
        let state = client.run_state(run).await.unwrap();
        if is_it(&state) {
            return state;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("waited in vain: {}", client.run_state(run).await.unwrap());
}

/// An agent service that adds up numbers with the tools of the run that invokes it.
struct Agent {
    address: String,
    invocations: Arc<Mutex<Vec<Value>>>,
    /// The first lines of requests to clean up.
    cleanups: Arc<Mutex<Vec<String>>>,
}

impl Agent {
    fn start(server: &Served) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let invocations = Arc::new(Mutex::new(Vec::new()));
        let cleanups = Arc::<Mutex<Vec<String>>>::default();
        let (seen, cleaned) = (Arc::clone(&invocations), Arc::clone(&cleanups));
        let (api, key) = (server.address().to_owned(), server.export("E2B_API_KEY").to_owned());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (first, invocation) = read_message(&stream);
                if first.starts_with("DELETE ") {
                    cleaned.lock().unwrap().push(first);
                    answer(stream, "{}");
                    continue;
                }
                let code = "print(sum(int(line) for line in open('numbers.txt')))";
                let path = format!("/runtime/{}/execute", invocation["run_id"].as_str().unwrap());
                let result = post(&api, &key, &path, &json!({ "code": code, "agent_id": "thinker" }));
                seen.lock().unwrap().push(invocation);
                let reply = json!({ "success": true, "output": result["result"], "tokens_used": 12,
                    "executed_tools": ["execute_python"] });
                answer(stream, &reply.to_string());
            }
        });
        Self { address, invocations, cleanups }
    }
}

/// The first line and the JSON behind the headers.
fn read_message(stream: &TcpStream) -> (String, Value) {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).unwrap();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (first, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

fn answer(mut stream: TcpStream, body: &str) {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
}

fn post(address: &str, key: &str, path: &str, body: &Value) -> Value {
    let mut stream = TcpStream::connect(address).unwrap();
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    read_message(&stream).1
}
