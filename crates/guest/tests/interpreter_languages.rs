//! Other languages: the guest's part, with a fake bridge to a Jupyter kernel as the driver.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::interpreter::Sandbox;
use common::wait_until;
use serde_json::json;

const BRIDGE: &str = r#"
import json, os, signal, socket, sys, time
if sys.argv[1] == 'kernels':
    print(json.dumps([
        {'name': 'deno', 'language': 'typescript', 'display': 'Deno'},
        {'name': 'ir', 'language': 'R', 'display': 'R'},
    ]))
    sys.exit()
if sys.argv[1] != 'jupyter':
    sys.exit('only bridges')
stream = socket.socket(fileno=3).makefile('rw')
def say(**event):
    stream.write(json.dumps(event) + '\n')
    stream.flush()
def interrupt(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupt)
say(type='hello', pid=os.getpid())
count = 0
for line in stream:
    order = json.loads(line)
    if order['op'] == 'begin':
        env = order['env']
        continue
    count += 1
    say(type='number_of_executions', execution_count=count)
    try:
        if order['code'] == 'sleep':
            say(type='stdout', text='sleeping\n', timestamp='2024-01-01T00:00:00Z')
            time.sleep(1000)
        facts = [sys.argv[2], os.getcwd(), os.getuid(), env.get('SANDBOX'), order['env'], sorted(os.listdir('/proc/self/fd'))]
        say(type='stdout', text=order['code'], timestamp='2024-01-01T00:00:00Z')
        say(type='result', text=json.dumps(facts), is_main_result=True)
    except KeyboardInterrupt:
        say(type='error', name='Interrupted', value='', traceback='')
    say(type='end_of_execution')
open('/home/user/ended', 'w').write('well')
"#;

#[test]
fn a_language_runs_in_a_process_of_its_own() {
    let sandbox = Sandbox::scripted(BRIDGE);
    let run =
        |language: &str| sandbox.start(&json!({"code": "x", "language": language, "env_vars": {"A": "1"}})).finish();
    let facts = run("R");
    assert_eq!(facts.stdout, "x");
    // It has its standard streams and the kernel stream; one more descriptor reads the directory.
    let expected = r#"["ir", "/home/user", 0, "yes", {"A": "1"}, ["0", "1", "2", "3", "4"]]"#;
    assert_eq!(facts.value(), expected);
    assert!(run("ts").value().starts_with("[\"deno\""));
    assert!(run("JS").value().starts_with("[\"deno\""));
    assert_eq!(sandbox.processes("jupyter deno").len(), 2, "each context has its own");
    let listed = sandbox.request("GET", "/contexts", &[], "").json();
    let languages: Vec<&str> = listed.as_array().unwrap().iter().map(|c| c["language"].as_str().unwrap()).collect();
    // As on E2B, where these two are there from the start.
    assert_eq!(languages, ["python", "javascript", "r", "typescript"]);
}

#[test]
fn javascript_is_listed_before_it_is_used() {
    let sandbox = Sandbox::scripted(BRIDGE);
    let listed = sandbox.request("GET", "/contexts", &[], "").json();
    assert_eq!((&listed[0]["language"], &listed[1]["language"]), (&json!("python"), &json!("javascript")));
    assert!(sandbox.processes("jupyter").is_empty());
    let id = listed[1]["id"].as_str().unwrap();
    assert!(sandbox.run_in(id, "x").value().starts_with("[\"deno\""));
}

#[test]
fn a_bridge_is_interrupted_restarted_and_ended_in_its_own_way() {
    let sandbox = Sandbox::scripted(BRIDGE);
    let id = sandbox.create(&json!({"language": "r", "cwd": "/tmp"}));
    let mut cell = sandbox.start(&json!({"code": "sleep", "context_id": id}));
    assert_eq!(cell.printed(), "sleeping\n");
    drop(cell);
    assert!(sandbox.run_in(&id, "x").value().starts_with(r#"["ir", "/tmp""#));

    let mut cell = sandbox.start(&json!({"code": "sleep", "context_id": id}));
    cell.printed();
    let bridge = sandbox.processes("jupyter ir").remove(0);
    sandbox.kill(&bridge);
    assert!(cell.finish().failure().1.contains("signal 9"));
    assert_eq!(sandbox.run_in(&id, "again").stdout, "again");

    assert_eq!(sandbox.request("DELETE", &format!("/contexts/{id}"), &[], "").status, 200);
    // It had time to end its kernel.
    wait_until(|| sandbox.processes("jupyter ir").is_empty());
    assert_eq!(sandbox.read("/home/user/ended"), "well");
}

#[test]
fn a_bridge_that_does_not_end_is_killed() {
    let sandbox = Sandbox::scripted(BRIDGE);
    let id = sandbox.create(&json!({"language": "r"}));
    let mut cell = sandbox.start(&json!({"code": "sleep", "context_id": id}));
    cell.printed();
    // It sleeps and does not read its stream.
    assert_eq!(sandbox.request("DELETE", &format!("/contexts/{id}"), &[], "").status, 200);
    assert_eq!(cell.finish().failure().0, "UnexpectedEndOfExecution");
    wait_until(|| sandbox.processes("jupyter ir").is_empty());
}

#[test]
fn a_missing_directory_and_a_missing_language_are_named() {
    let sandbox = Sandbox::scripted(BRIDGE);
    let reply = sandbox.request("POST", "/contexts", &[], &json!({"language": "r", "cwd": "/no/such"}).to_string());
    assert!(reply.status == 500 && reply.text().contains("cwd '/no/such'"), "{}", reply.text());
    // Official clients show the text of a 404.
    for path in ["/contexts", "/execute"] {
        let request = json!({"language": "java", "code": "1"}).to_string();
        let reply = sandbox.request("POST", path, &[], &request);
        let text = reply.text();
        assert!(reply.status == 404 && text.contains("languages: javascript, python, r, typescript."), "{text}");
        assert!(text.contains("'java'") && text.contains("'code-interpreter-full'"), "{text}");
    }
}
