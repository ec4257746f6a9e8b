//! The code interpreter's port, tested with the real binary and driver: cells, events, contexts, bad input.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::TOKEN;
use common::interpreter::Sandbox;
use serde_json::json;

#[test]
fn variables_live_from_cell_to_cell() {
    let sandbox = Sandbox::new();
    let first = sandbox.run("x = 20");
    assert!(first.results.is_empty() && first.error.is_none());
    assert_eq!(sandbox.run("x + 22").value(), "42");
    assert_eq!(sandbox.run("import os; os.getuid(), os.getcwd()").value(), "(0, '/home/user')");
    assert_eq!(sandbox.run("1/0").failure().0, "ZeroDivisionError");
    assert_eq!(sandbox.run("x").value(), "20");
}

#[test]
fn code_is_root_and_imports_what_the_user_has_installed() {
    let sandbox = Sandbox::new();
    let identity = "import os, site; (os.getresuid(), os.getresgid(), os.environ['HOME'])";
    assert_eq!(sandbox.run(identity).value(), "((0, 0, 0), (0, 0, 0), '/root')");
    let context = sandbox.create(&json!({"cwd": "/root"}));
    assert_eq!(sandbox.run_in(&context, "import os; os.getcwd()").value(), "/root");
    let packages = sandbox.run("site.getusersitepackages()").value().to_owned();
    assert!(packages.starts_with("/home/user/.local/"), "{packages}");
    sandbox.guest.run(&format!("mkdir -p {packages}; echo answer = 42 > {packages}/tiny_of_user.py"));
    assert_eq!(sandbox.run("import tiny_of_user; tiny_of_user.answer").value(), "42");
}

#[test]
fn events_arrive_in_the_order_in_which_they_happened() {
    let sandbox = Sandbox::new();
    let executed = sandbox.run("print('one'); import sys; print('two', file=sys.stderr); 3");
    assert_eq!(executed.events, ["number_of_executions", "stdout:one\n", "stderr:two\n", "result", "end_of_execution"]);
    let executed = sandbox.run("print('before')\n1/0");
    assert_eq!(executed.events, ["number_of_executions", "stdout:before\n", "error", "end_of_execution"]);
    // The same with a child process, which does not use Python's buffers.
    let executed = sandbox.run("import os; print('a'); os.system('echo b; echo c >&2'); print('d')");
    assert_eq!((executed.stdout.as_str(), executed.stderr.as_str()), ("a\nb\nd\n", "c\n"));
}

#[test]
fn output_is_streamed_while_the_cell_runs() {
    let sandbox = Sandbox::new();
    let code =
        "import os, time\nprint('here')\nwhile not os.path.exists('/home/user/go'): time.sleep(0.01)\nprint('there')";
    let mut cell = sandbox.start(&json!({"code": code}));
    assert_eq!(cell.printed(), "here\n");
    sandbox.write("/home/user/go", "");
    assert_eq!(cell.finish().stdout, "there\n");
}

#[test]
fn a_silent_cell_sends_keepalives() {
    let sandbox = Sandbox::new();
    let executed = sandbox.run("import time; time.sleep(6)");
    assert_eq!(executed.events[..2], ["number_of_executions", "keepalive"]);
}

#[test]
fn output_between_cells_is_dropped_and_does_not_block() {
    let sandbox = Sandbox::new();
    let code = "
import threading, time, os
flag = False
def chatter():
    global flag
    while not os.path.exists('/home/user/go'): time.sleep(0.01)
    for _ in range(64):
        os.write(1, b'z' * (1 << 16))
    flag = True
threading.Thread(target=chatter).start()
";
    assert_eq!(sandbox.run(code).stdout, "");
    sandbox.write("/home/user/go", "");
    // The thread has written more than the pipes can hold, so the guest must have read them.
    common::wait_until(|| sandbox.run("flag").value() == "True");
    assert_eq!(sandbox.run("print('clean')").stdout, "clean\n");
}

#[test]
fn bytes_that_are_not_utf8_are_replaced() {
    let sandbox = Sandbox::new();
    let executed = sandbox.run("import os; os.write(1, b'a\\xff\\xc3'); os.write(1, b'\\xa9\\xe2\\x82')");
    assert_eq!(executed.stdout, "a\u{fffd}\u{e9}\u{fffd}");
}

#[test]
fn a_hundred_megabytes_arrive_to_the_byte() {
    let sandbox = Sandbox::new();
    let code = "
import hashlib, sys
digest = hashlib.sha256()
for number in range(100):
    line = ('%07d' % number + 'é€😀x' * 10 + '\\n') * 10000
    line = line[:1000000]
    sys.stdout.write(line)
    digest.update(line.encode())
";
    let executed = sandbox.run(code);
    assert!(executed.error.is_none(), "{:?}", executed.error);
    assert!(executed.stdout.len() > 100_000_000, "{}", executed.stdout.len());
    use sha2::{Digest, Sha256};
    let digest = hex::encode(Sha256::digest(executed.stdout.as_bytes()));
    assert_eq!(sandbox.run("digest.hexdigest()").value(), digest);
}

#[test]
fn a_large_result_and_large_code_pass() {
    let sandbox = Sandbox::new();
    let executed = sandbox.run("'y' * 3_000_000");
    assert_eq!(executed.value().len(), 3_000_000);
    let code = format!("text = '{}'\nlen(text)", "é".repeat(4 << 20));
    assert_eq!(sandbox.run(&code).value(), (4 << 20).to_string());
}

#[test]
fn variables_of_the_sandbox_and_of_a_call() {
    let sandbox = Sandbox::new();
    let read = "import os; [os.environ.get(n) for n in ('SANDBOX', 'CALL', 'HOME', 'USER')]";
    assert_eq!(sandbox.run(read).value(), "['yes', None, '/root', 'root']");
    let executed = sandbox.start(&json!({"code": read, "env_vars": {"CALL": "1", "SANDBOX": "no"}})).finish();
    assert_eq!(executed.value(), "['no', '1', '/root', 'root']");
    assert_eq!(sandbox.run(read).value(), "['yes', None, '/root', 'root']");
    sandbox.guest.init(&json!({"envVars": {"SANDBOX": "later"}}));
    let context = sandbox.create(&json!({}));
    assert_eq!(sandbox.run_in(&context, read).value(), "['later', None, '/root', 'root']");
    let refused = sandbox.request("POST", "/execute", &[], &json!({"code": "1", "env_vars": {"A=B": "1"}}).to_string());
    assert_eq!((refused.status, refused.text().as_str()), (400, "invalid environment variable 'A=B'"));
}

#[test]
fn contexts_are_made_listed_restarted_and_removed() {
    let sandbox = Sandbox::new();
    // Each language has a default context. Which ones there are depends on this machine; Python comes first.
    let all = || sandbox.request("GET", "/contexts", &[], "").json().as_array().unwrap().clone();
    let listed = all();
    let others: Vec<_> = listed[1..].to_vec();
    assert!(others.iter().all(|context| context["language"] != "python"), "{listed:?}");
    assert_eq!((&listed[0]["language"], &listed[0]["cwd"]), (&json!("python"), &json!("/home/user")));
    sandbox.run("y = 1");
    let made = sandbox.request("POST", "/contexts", &[], &json!({"cwd": "/tmp", "language": "Python3"}).to_string());
    assert_eq!(made.status, 200);
    let made = made.json();
    assert_eq!((&made["language"], &made["cwd"]), (&json!("python"), &json!("/tmp")));
    let id = made["id"].as_str().unwrap();
    assert_eq!(sandbox.run_in(id, "import os; y = 2; os.getcwd()").value(), "/tmp");
    assert_eq!(sandbox.run("y").value(), "1");
    assert_eq!(sandbox.run_in(listed[0]["id"].as_str().unwrap(), "y").value(), "1");
    assert_eq!(all().last(), Some(&made));

    let restarted = sandbox.request("POST", &format!("/contexts/{id}/restart"), &[], "");
    assert_eq!((restarted.status, restarted.text().as_str()), (200, "null"));
    assert_eq!(sandbox.run_in(id, "y").failure().0, "NameError");
    assert_eq!(sandbox.run("y").value(), "1");

    let removed = sandbox.request("DELETE", &format!("/contexts/{id}"), &[], "");
    assert_eq!((removed.status, removed.text().as_str()), (200, "null"));
    let gone = format!("Context {id} not found");
    for (method, path, body) in [
        ("DELETE", format!("/contexts/{id}"), String::new()),
        ("POST", format!("/contexts/{id}/restart"), String::new()),
        ("POST", "/execute".to_owned(), json!({"code": "1", "context_id": id}).to_string()),
    ] {
        let reply = sandbox.request(method, &path, &[], &body);
        assert_eq!((reply.status, reply.text()), (404, gone.clone()), "{method} {path}");
    }
    // The default context is created again when it is needed.
    let default = listed[0]["id"].as_str().unwrap();
    assert_eq!(sandbox.request("DELETE", &format!("/contexts/{default}"), &[], "").status, 200);
    assert_eq!(all(), others);
    assert_eq!(sandbox.run("'y' in globals()").value(), "False");
}

#[test]
fn contexts_run_at_the_same_time_and_cells_of_one_context_do_not() {
    let sandbox = Sandbox::new();
    let ids: Vec<String> = (0..3).map(|_| sandbox.create(&json!({}))).collect();
    // Each cell waits for all the others.
    let code = "
import os, time
open('/home/user/%d' % os.getpid(), 'w').close()
while len(os.listdir('/home/user')) < 3: time.sleep(0.01)
'met'";
    let cells: Vec<_> = ids.iter().map(|id| sandbox.start(&json!({"code": code, "context_id": id}))).collect();
    for cell in cells {
        assert_eq!(cell.finish().value(), "met");
    }
    sandbox.run("seen = []");
    let code = |number| format!("seen.append({number}); import time; time.sleep(0.1); seen.append({number})");
    let mut first = sandbox.start(&json!({"code": format!("print(); {}", code(0))}));
    first.printed();
    let cells: Vec<_> = (1..4).map(|number| sandbox.start(&json!({"code": code(number)}))).collect();
    first.finish();
    for cell in cells {
        assert!(cell.finish().error.is_none());
    }
    assert_eq!(sandbox.run("seen").value(), "[0, 0, 1, 1, 2, 2, 3, 3]");
}

#[test]
fn an_error_about_a_missing_language_lists_the_installed_ones() {
    let sandbox = Sandbox::new();
    for (path, body) in
        [("/execute", json!({"code": "1", "language": "Cobol"})), ("/contexts", json!({"language": "Cobol"}))]
    {
        let reply = sandbox.request("POST", path, &[], &body.to_string());
        assert_eq!(reply.status, 404);
        let text = reply.text();
        assert!(
            text.contains("'cobol'") && text.contains("Available languages: ") && text.contains("python"),
            "{text}"
        );
    }
    assert_eq!(sandbox.start(&json!({"code": "1+1", "language": "PY"})).finish().value(), "2");
}

#[test]
fn bad_requests_are_refused_in_plain_text() {
    let sandbox = Sandbox::new();
    let refused = |method: &str, path: &str, body: &str| {
        let reply = sandbox.request(method, path, &[], body);
        assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
        (reply.status, reply.text())
    };
    for body in ["", "{", "[]", "null", "{\"code\":1}", "{\"code\":\"1\",\"env_vars\":{\"A\":1}}", "\u{0}"] {
        let (status, text) = refused("POST", "/execute", body);
        assert!(status == 422 && text.starts_with("invalid request body"), "{body}: {status} {text}");
    }
    assert_eq!(refused("POST", "/contexts", "{\"cwd\":[]}").0, 422);
    let both = json!({"code": "1", "context_id": "a", "language": "python"}).to_string();
    assert_eq!(
        refused("POST", "/execute", &both),
        (400, "Only one of context_id or language can be provided".to_owned())
    );
    assert_eq!(refused("POST", "/execute", "{\"code\":\"\",\"context_id\":\"../x\"}").0, 404);
    assert_eq!(refused("GET", "/nothing", "").0, 404);
    assert_eq!(refused("GET", "/execute", "").0, 405);
    assert_eq!(refused("PUT", "/contexts", "").0, 405);
    assert_eq!(refused("POST", "/contexts", "{\"cwd\":\"/a\\u0000b\"}").0, 400);
    let (status, text) = refused("POST", "/contexts", "{\"cwd\":\"/no/such\"}");
    assert!(status == 500 && text.contains("/no/such"), "{status} {text}");
    let (status, text) = refused("POST", "/contexts", &json!({"cwd": "/".repeat(100_000)}).to_string());
    assert!(status == 500, "{status} {text}");
    let empty = json!({"code": "1+1", "context_id": "", "language": null, "env_vars": null});
    assert_eq!(sandbox.start(&empty).finish().value(), "2");
    assert!(sandbox.run("").error.is_none());
}

/// SDKs may be newer than the guest.
#[test]
fn fields_that_nobody_knows_are_ignored() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.start(&json!({"code": "1+1", "fromTheFuture": {}})).finish().value(), "2");
    let id = sandbox.create(&json!({"cwd": "/tmp", "code": "1", "fromTheFuture": {}}));
    assert_eq!(sandbox.run_in(&id, "import os; os.getcwd()").value(), "/tmp");
}

#[test]
fn too_long_code_is_refused() {
    let sandbox = Sandbox::new();
    let code = "#".repeat((64 << 20) + 1);
    let reply = sandbox.request("POST", "/execute", &[], &format!("{{\"code\":\"{code}\"}}"));
    assert_eq!((reply.status, reply.text().as_str()), (413, "code is longer than 64 MiB"));
    assert_eq!(sandbox.run("1+1").value(), "2");
}

#[test]
fn code_needs_the_token_and_contexts_do_not() {
    let sandbox = Sandbox::bare(&[]);
    let health = sandbox.request("GET", "/health", &[], "");
    assert_eq!((health.status, health.text().as_str()), (200, "\"OK\""));
    assert_eq!(sandbox.request("GET", "/contexts", &[], "").status, 503);
    assert_eq!(sandbox.request("POST", "/execute", &[], "{\"code\":\"1\"}").status, 503);
    sandbox.guest.init(&json!({"accessToken": TOKEN}));
    let body = json!({"code": "1+1"}).to_string();
    for headers in [&[][..], &[("X-Access-Token", "wrong")], &[("X-Access-Token", "")]] {
        let reply = sandbox.request("POST", "/execute", headers, &body);
        assert_eq!(reply.status, 401);
        assert!(reply.text().contains("access token"), "{}", reply.text());
    }
    let reply = sandbox.request("POST", "/execute", &[("X-Access-Token", TOKEN)], &body);
    assert_eq!(reply.status, 200);
    assert!(reply.text().contains("\"2\""));
    assert_eq!(sandbox.request("GET", "/contexts", &[], "").status, 200);
    assert_eq!(sandbox.request("GET", "/health", &[], "").status, 200);
}

#[test]
fn browsers_may_call() {
    let sandbox = Sandbox::new();
    let headers = [("Origin", "http://x"), ("Access-Control-Request-Headers", "x-access-token")];
    let reply = sandbox.request("OPTIONS", "/execute", &headers, "");
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (204, Some("*")));
    let reply = sandbox.request("POST", "/execute", &headers[..1], "{\"code\":\"1\"}");
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, Some("*")));
}

#[test]
fn the_port_does_not_serve_the_guests_own_paths() {
    let sandbox = Sandbox::new();
    for path in ["/init", "/interpreter", "/files", "/envs", "/metrics"] {
        let reply = sandbox.request("GET", path, &[("X-Isopod-Control", "1")], "");
        assert_eq!(reply.status, 404, "{path}");
    }
    assert_eq!(sandbox.guest.get("/interpreter").status, 404);
}

#[test]
fn a_template_without_python_or_driver_says_so() {
    let sandbox = Sandbox::bare(&["--python", "/no/python3"]);
    sandbox.guest.init(&json!({}));
    let (name, value) = {
        let executed = sandbox.run("1");
        let (n, v) = executed.failure();
        (n.to_owned(), v.to_owned())
    };
    assert!(name == "KernelNotStarted" && value.contains("/no/python3 is missing"), "{name} {value}");
    let reply = sandbox.request("POST", "/contexts", &[], "{}");
    assert!(reply.status == 500 && reply.text().contains("/no/python3"), "{}", reply.text());
    assert_eq!(sandbox.request("GET", "/contexts", &[], "").status, 200);

    let sandbox = Sandbox::bare(&["--driver", "/no/driver"]);
    sandbox.guest.init(&json!({}));
    let executed = sandbox.run("1");
    assert!(executed.failure().1.contains("/no/driver/run.py is missing"), "{executed:?}");

    let sandbox = Sandbox::bare(&[]);
    sandbox.guest.init(&json!({"defaultUser": "nobody-here"}));
    // Code runs as root, but a relative path needs the home of this user.
    assert_eq!(sandbox.run("import os; os.getuid()").value(), "0");
    let reply = sandbox.request("POST", "/contexts", &[], r#"{"cwd": "below"}"#);
    assert!(reply.status == 500 && reply.text().contains("nobody-here"), "{}", reply.text());
}
