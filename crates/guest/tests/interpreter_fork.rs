//! `POST /contexts/{id}/fork`: copies of Python contexts, and kernels that do not do what they are asked.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::interpreter::{Cell, Sandbox};
use common::{Reply, wait_until};
use serde_json::{Value, json};

/// On the command line of the forkserver and of all kernels.
const FORKSERVER: &str = "run.py mother";

fn ask(sandbox: &Sandbox, id: &str, body: &str) -> Reply {
    sandbox.request("POST", &format!("/contexts/{id}/fork"), &[], body)
}

/// Forks a context, which must succeed. Returns the ids of the copies.
fn fork(sandbox: &Sandbox, id: &str, count: usize) -> Vec<String> {
    let reply = ask(sandbox, id, &json!({"count": count}).to_string());
    assert_eq!(reply.status, 201, "{}", reply.text());
    let made = reply.json();
    assert_eq!(made["errors"], json!([]));
    let ids: Vec<String> = ids(&made["contexts"]);
    assert_eq!(ids.len(), count);
    ids
}

fn ids(contexts: &Value) -> Vec<String> {
    contexts.as_array().unwrap().iter().map(|context| context["id"].as_str().unwrap().to_owned()).collect()
}

fn listed(sandbox: &Sandbox) -> Vec<String> {
    ids(&sandbox.request("GET", "/contexts", &[], "").json())
}

fn remove(sandbox: &Sandbox, id: &str) {
    assert_eq!(sandbox.request("DELETE", &format!("/contexts/{id}"), &[], "").status, 200);
}

/// Starts a cell that prints its pid and then waits for the file `/home/user/go`.
fn waiter(sandbox: &Sandbox, id: &str) -> (Cell, String) {
    let code = "
import os, time
print(os.getpid())
while not os.path.exists('/home/user/go'): time.sleep(0.01)
waited = True";
    let mut cell = sandbox.start(&json!({"code": code, "context_id": id}));
    let pid = cell.printed().trim().to_owned();
    (cell, pid)
}

#[test]
fn invalid_forks_are_refused() {
    let sandbox = Sandbox::new();
    let id = sandbox.create(&json!({}));
    let refused = |id: &str, body: &str| {
        let reply = ask(&sandbox, id, body);
        assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
        (reply.status, reply.text())
    };
    assert_eq!(refused("unknown", ""), (404, "Context unknown not found".to_owned()));
    for count in ["0", "21", "1000000"] {
        let expected = (400, "count must be from 1 to 20".to_owned());
        assert_eq!(refused(&id, &format!("{{\"count\":{count}}}")), expected, "{count}");
    }
    for body in ["{", "[1]x", "null", "{\"count\":-1}", "{\"count\":\"2\"}", "{\"count\":1.5}", "{\"count\":null}"] {
        let (status, text) = refused(&id, body);
        assert!(status == 422 && text.starts_with("invalid request body"), "{body}: {status} {text}");
    }
    assert_eq!(sandbox.request("GET", &format!("/contexts/{id}/fork"), &[], "").status, 405);
    assert_eq!(sandbox.request("POST", &format!("/contexts/{id}/fork/x"), &[], "").status, 404);
    assert_eq!(listed(&sandbox).last(), Some(&id));
}

#[test]
fn other_languages_cannot_be_forked() {
    let bridge = r#"
import json, os, socket, sys
if sys.argv[1] == 'kernels':
    print(json.dumps([{'name': 'ir', 'language': 'R'}]))
    sys.exit()
stream = socket.socket(fileno=3).makefile('rw')
stream.write(json.dumps({'type': 'hello', 'pid': os.getpid()}) + '\n')
stream.flush()
stream.read()
"#;
    let sandbox = Sandbox::scripted(bridge);
    let id = sandbox.create(&json!({"language": "r"}));
    let reply = ask(&sandbox, &id, "");
    let text = "only Python contexts can be forked, and this one is of the language 'r'";
    assert_eq!((reply.status, reply.text().as_str()), (400, text));
}

#[test]
fn a_copy_has_the_variables_and_changes_stay_with_whom_made_them() {
    let sandbox = Sandbox::new();
    let id = sandbox.create(&json!({"cwd": "/tmp"}));
    sandbox.run_in(&id, "import os; x = [1]; os.environ['MINE'] = '1'");
    // Without a body, one copy.
    let reply = ask(&sandbox, &id, "");
    assert_eq!(reply.status, 201);
    let made = reply.json();
    let copy = made["contexts"][0]["id"].as_str().unwrap();
    assert_eq!(made, json!({"contexts": [{"id": copy, "language": "python", "cwd": "/tmp"}], "errors": []}));
    assert_eq!(listed(&sandbox)[listed(&sandbox).len() - 2..], [id.clone(), copy.to_owned()]);

    let facts = "os.getcwd(), os.environ['MINE'], os.environ['SANDBOX'], os.getuid(), x";
    assert_eq!(sandbox.run_in(copy, facts).value(), "('/tmp', '1', 'yes', 0, [1])");
    sandbox.run_in(copy, "x.append('copy')");
    sandbox.run_in(&id, "x.append('source')");
    assert_eq!(sandbox.run_in(copy, "x").value(), "[1, 'copy']");
    assert_eq!(sandbox.run_in(&id, "x").value(), "[1, 'source']");
    // What one prints does not reach the other.
    assert_eq!(sandbox.run_in(copy, "print('copy'); os.system('echo program');").stdout, "copy\nprogram\n");
    assert_eq!(sandbox.run_in(&id, "print('source')").stdout, "source\n");
}

#[test]
fn many_copies_and_copies_of_copies_are_separate_kernels() {
    let sandbox = Sandbox::new();
    sandbox.run("import os, random, tempfile; path = []; random.seed(1)");
    let root = listed(&sandbox)[0].clone();
    let copies = fork(&sandbox, &root, 20);
    let draw = "os.getpid(), random.random(), tempfile.NamedTemporaryFile().name";
    let mut drawn: Vec<String> = copies.iter().map(|id| sandbox.run_in(id, draw).value().to_owned()).collect();
    drawn.push(sandbox.run(draw).value().to_owned());
    drawn.sort();
    drawn.dedup();
    assert_eq!(drawn.len(), 21);
    // A tree: each copy takes a step and is copied.
    let mut level = vec![copies[0].clone()];
    for _ in 0..3 {
        level = level.iter().flat_map(|id| fork(&sandbox, id, 2)).collect();
        for (step, id) in level.iter().enumerate() {
            sandbox.run_in(id, &format!("path.append({step})"));
        }
    }
    assert_eq!(sandbox.run_in(&level[5], "path").value(), "[1, 2, 5]");
    assert_eq!(sandbox.run_in(&level[2], "path").value(), "[0, 1, 2]");
    assert_eq!(sandbox.run("path").value(), "[]");
}

#[test]
fn a_fork_waits_for_the_cells_before_it() {
    let sandbox = Sandbox::new();
    let id = sandbox.create(&json!({}));
    let (running, _) = waiter(&sandbox, &id);
    std::thread::scope(|scope| {
        let forked = scope.spawn(|| fork(&sandbox, &id, 1).remove(0));
        // The guest works on other requests meanwhile.
        assert_eq!(sandbox.run("1+1").value(), "2");
        sandbox.write("/home/user/go", "");
        assert!(running.finish().error.is_none());
        assert_eq!(sandbox.run_in(&forked.join().unwrap(), "waited").value(), "True");
    });
}

#[test]
fn a_fork_whose_client_left_is_not_made() {
    let sandbox = Sandbox::new();
    let id = sandbox.create(&json!({}));
    let (running, _) = waiter(&sandbox, &id);
    let before = sandbox.descriptors();
    {
        use std::io::Write;
        let mut connection = sandbox.connect();
        write!(connection, "POST /contexts/{id}/fork HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").unwrap();
        wait_until(|| sandbox.descriptors() > before);
    }
    wait_until(|| sandbox.descriptors() <= before);
    sandbox.write("/home/user/go", "");
    running.finish();
    assert_eq!(sandbox.run_in(&id, "waited").value(), "True");
    assert_eq!(listed(&sandbox).last(), Some(&id));
}

#[test]
fn a_removed_context_has_no_copies() {
    let sandbox = Sandbox::new();
    let id = sandbox.create(&json!({}));
    let (running, _) = waiter(&sandbox, &id);
    let before = sandbox.descriptors();
    std::thread::scope(|scope| {
        let forked = scope.spawn(|| ask(&sandbox, &id, ""));
        wait_until(|| sandbox.descriptors() > before);
        remove(&sandbox, &id);
        let reply = forked.join().unwrap();
        assert_eq!((reply.status, reply.text()), (404, format!("Context {id} not found")));
    });
    running.finish();
}

#[test]
fn the_source_and_its_copies_end_and_restart_separately() {
    let sandbox = Sandbox::new();
    let source = sandbox.create(&json!({}));
    sandbox.run_in(&source, "import os; kept = 1");
    let copies = fork(&sandbox, &source, 3);
    let restart = |id: &str| sandbox.request("POST", &format!("/contexts/{id}/restart"), &[], "").status;

    // A restarted copy is an empty context.
    assert_eq!(restart(&copies[0]), 200);
    assert_eq!(sandbox.run_in(&copies[0], "kept").failure().0, "NameError");
    assert_eq!(sandbox.run_in(&source, "kept").value(), "1");

    // A killed copy is reported, and only its own state is lost.
    let (running, pid) = waiter(&sandbox, &copies[1]);
    sandbox.kill(&pid);
    let executed = running.finish();
    assert!(executed.failure().1.contains("kernel died (signal 9)"), "{executed:?}");
    assert_eq!(sandbox.run_in(&copies[1], "kept").failure().0, "NameError");

    // Without its source, a copy goes on, and can be copied.
    let pid = sandbox.run_in(&source, "os.getpid()").value().to_owned();
    sandbox.kill(&pid);
    assert_eq!(sandbox.run_in(&copies[2], "kept").value(), "1");
    assert_eq!(sandbox.run_in(&source, "kept").failure().0, "NameError");
    assert_eq!(restart(&source), 200);
    remove(&sandbox, &source);
    let copy = fork(&sandbox, &copies[2], 1).remove(0);
    assert_eq!(sandbox.run_in(&copy, "kept").value(), "1");
}

#[test]
fn an_interrupt_stops_only_the_cell_of_its_context() {
    let sandbox = Sandbox::new();
    let source = sandbox.create(&json!({}));
    sandbox.run_in(&source, "kept = 1");
    let copy = fork(&sandbox, &source, 1).remove(0);
    let (in_source, _) = waiter(&sandbox, &source);
    let (in_copy, _) = waiter(&sandbox, &copy);
    drop(in_copy);
    assert_eq!(sandbox.run_in(&copy, "kept, 'waited' in globals()").value(), "(1, False)");
    sandbox.write("/home/user/go", "");
    assert!(in_source.finish().error.is_none());
    assert_eq!(sandbox.run_in(&source, "waited").value(), "True");
}

#[test]
fn nothing_is_left_of_removed_copies() {
    let sandbox = Sandbox::new();
    sandbox.run("1");
    let root = listed(&sandbox)[0].clone();
    let before = sandbox.descriptors();
    for _ in 0..3 {
        for id in fork(&sandbox, &root, 5) {
            sandbox.run_in(&id, "import os; os.system('sleep 1000 &')");
            remove(&sandbox, &id);
        }
    }
    wait_until(|| sandbox.descriptors() <= before);
    // One forkserver and one kernel. Zombies have no command line, so this also shows that copies were reaped or are.
    wait_until(|| sandbox.processes(FORKSERVER).len() == 2);
    wait_until(|| sandbox.processes("sleep 1000").is_empty());
    wait_until(|| sandbox.processes("").len() == 3);
}

/// Replaces the function of the driver that makes copies.
fn sabotage(sandbox: &Sandbox, id: &str, body: &str) {
    let code = format!(
        "import os, sys, json, time\ndef make(kernel, seeds, fds):\n    {body}\nsys.modules['isopod_driver.copies'].make = make"
    );
    assert!(sandbox.run_in(id, &code).error.is_none());
}

#[test]
fn kernels_that_answer_nonsense_make_no_context() {
    let sandbox = Sandbox::new();
    let victim = sandbox.create(&json!({}));
    let pid = sandbox.run_in(&victim, "import os; kept = 1; os.getpid()").value().to_owned();
    let hello = |pid: &str| format!("os.write(fds[0], b'{{\"type\":\"hello\",\"pid\":%d}}\\n' % {pid})");
    for (body, reason) in [
        ("for fd in fds: os.close(fd)".to_owned(), "exited before it was ready"),
        ("os.write(fds[0], b'garbage\\n')".to_owned(), "invalid first message"),
        (hello("1"), "invalid first message"),
        (hello("-5"), "invalid first message"),
        // Another context would end with the new one.
        (hello("os.getpid()"), "another process answered"),
        (hello(&pid), "another process answered"),
        ("os.write(fds[0], b'{\"type\":\"failed\",\"message\":\"no luck\"}\\n')".to_owned(), "no luck"),
        (
            "os.set_blocking(fds[0], False); [os.write(fds[0], b'x' * 65536) for _ in range(3)]".to_owned(),
            "before it was",
        ),
    ] {
        let id = sandbox.create(&json!({}));
        sabotage(&sandbox, &id, &body);
        let contexts = listed(&sandbox);
        let reply = ask(&sandbox, &id, "");
        assert_eq!(reply.status, 500, "{body}: {}", reply.text());
        assert!(reply.text().contains(reason), "{body}: {}", reply.text());
        assert_eq!(listed(&sandbox), contexts);
        assert_eq!(sandbox.run_in(&id, "1+1").value(), "2", "{body}");
    }
    assert_eq!(sandbox.run_in(&victim, "kept").value(), "1");
}

#[test]
fn a_kernel_that_does_not_answer_costs_its_own_context_a_while() {
    let sandbox = Sandbox::new();
    let id = sandbox.create(&json!({}));
    sandbox.run_in(&id, "kept = 1");
    sabotage(&sandbox, &id, "pass");
    std::thread::scope(|scope| {
        let forked = scope.spawn(|| ask(&sandbox, &id, "{\"count\":3}"));
        assert_eq!(sandbox.run("1+1").value(), "2");
        let reply = forked.join().unwrap();
        assert_eq!((reply.status, reply.text().as_str()), (500, "the copy was not ready after 20 s"));
    });
    assert_eq!(sandbox.run_in(&id, "kept").value(), "1");
}

#[test]
fn a_restart_ends_a_fork_that_hangs() {
    let sandbox = Sandbox::new();
    let id = sandbox.create(&json!({}));
    sabotage(&sandbox, &id, "open('/home/user/asked', 'w').write('yes'); time.sleep(1000)");
    std::thread::scope(|scope| {
        let forked = scope.spawn(|| ask(&sandbox, &id, ""));
        wait_until(|| sandbox.read("/home/user/asked") == "yes");
        assert_eq!(sandbox.request("POST", &format!("/contexts/{id}/restart"), &[], "").status, 200);
        let reply = forked.join().unwrap();
        assert_eq!((reply.status, reply.text().as_str()), (409, "the context was restarted"));
    });
    assert_eq!(sandbox.run_in(&fork(&sandbox, &id, 1)[0], "1+1").value(), "2");
}

#[test]
fn copies_that_cannot_be_forked_are_reported_beside_the_others() {
    let sandbox = Sandbox::new();
    let id = sandbox.create(&json!({}));
    let code = "
import sys
copies = sys.modules['isopod_driver.copies']
real, calls = copies.fork, 0
def fork():
    global calls
    calls += 1
    if calls in (2, 4): raise BlockingIOError(11, 'Resource temporarily unavailable')
    return real()
copies.fork = fork";
    assert!(sandbox.run_in(&id, code).error.is_none());
    let reply = ask(&sandbox, &id, "{\"count\":4}");
    assert_eq!(reply.status, 201, "{}", reply.text());
    let made = reply.json();
    let error = "cannot fork the kernel: [Errno 11] Resource temporarily unavailable";
    assert_eq!(made["errors"], json!([error, error]));
    for copy in ids(&made["contexts"]) {
        assert_eq!(sandbox.run_in(&copy, "1+1").value(), "2");
    }
    assert_eq!(made["contexts"].as_array().unwrap().len(), 2);
}

/// Templates keep the driver that they were built with.
#[test]
fn a_driver_that_cannot_fork_kernels_says_what_to_do() {
    let sandbox = Sandbox::scripted(
        "
import json, os, socket, sys
forkserver = socket.socket(fileno=3)
forkserver.send(json.dumps({'op': 'ready', 'pid': 1}).encode())
while True:
    message, fds, _, _ = socket.recv_fds(forkserver, 65536, 16)
    if not message:
        sys.exit()
    if os.fork() == 0:
        stream = socket.socket(fileno=fds[0])
        stream.send(b'{\"type\":\"hello\",\"pid\":%d}\\n' % os.getpid())
        while stream.recv(65536): pass
        os._exit(0)
    for fd in fds:
        os.close(fd)
",
    );
    let id = sandbox.create(&json!({}));
    let reply = ask(&sandbox, &id, "");
    assert_eq!(reply.status, 500);
    assert!(reply.text().ends_with("If the template was built by an earlier version of Isopod, build it again"));
}
