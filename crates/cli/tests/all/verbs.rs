//! The verbs that speak with a server, run as a person would.

use crate::served;

use std::fs;
use std::io::{BufRead as _, BufReader, Write};
use std::net::TcpListener;
use std::process::Stdio;

use isopod_testkit::StateDir;
use serde_json::Value;
use served::{BINARY, Served};

const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn finish(server: Served, state: &StateDir) {
    server.run(&["kill", "--all"]).ok();
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn without_a_server_or_a_key_the_advice_is_clear() {
    let state = StateDir::new(BINARY);
    let run = |key: &str| {
        let mut command = state.isopod().command(&["ls"]);
        command.env("E2B_API_KEY", key).env("E2B_API_URL", "http://127.0.0.1:1").env_remove("E2B_SANDBOX_URL");
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run("");
    assert!(code == Some(125) && said.contains("hint: set E2B_API_KEY"), "{said}");
    let (code, said) = run("e2b_secret");
    assert!(code == Some(125) && said.contains("isopod serve starts one"), "{said}");
    assert!(!said.contains("e2b_secret"), "{said}");
    assert!(run("two\nlines").1.contains("key cannot be used"));
    for bad in [vec!["info", "../etc"], vec!["kill"], vec!["kill", "ia", "--all"], vec!["exec", "ia"], vec!["cp", "a"]]
    {
        assert_eq!(state.isopod().run(&bad).code(), 2, "{bad:?}");
    }
    for (bad, expected) in [(["a", "b"], "ID:PATH"), (["ia:/x", "ib:/y"], "copy to this machine first")] {
        let refused = state.isopod().run(&["cp", bad[0], bad[1]]);
        assert!(refused.code() == 125 && refused.stderr().contains(expected), "{}", refused.stderr());
    }
    assert!(state.isopod().run(&["key", "list", "--local"]).stderr().contains("no server has kept its state"));
}

/// A server that answers its first request with a refusal of several lines.
fn server_that_refuses(message: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let body = serde_json::json!({ "code": 400, "message": message }).to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = BufReader::new(stream.try_clone().unwrap()).lines();
        while request.next().unwrap().unwrap() != "" {}
        let length = body.len();
        let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close";
        write!(stream, "{head}\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
    });
    format!("http://{address}")
}

#[test]
fn errors_of_several_lines_stay_on_several_lines() {
    let state = StateDir::new(BINARY);
    let url = server_that_refuses("step 2 failed\npip: no such package\nerror: not ours");
    let mut command = state.isopod().command(&["ls"]);
    command.env("E2B_API_KEY", "e2b_x").env("E2B_API_URL", url).env_remove("E2B_SANDBOX_URL");
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("step 2 failed\n      pip: no such package\n      error: not ours\n"), "{said}");
    assert!(!said.contains(['\u{fffd}', '\\']), "{said}");
}

#[test]
fn sandboxes_are_made_listed_shown_paused_and_ended() {
    let state = StateDir::new(BINARY);
    let server = Served::start(&state, &LISTEN);
    assert_eq!(json(&server.run(&["ls", "--json"]).ok()), Value::Array(Vec::new()));
    let missing = server.run(&["info", "inone"]);
    assert!(missing.code() == 125 && missing.stderr().contains("hint: isopod ls"), "{}", missing.stderr());
    assert_eq!(server.run(&["kill", "inone"]).code(), 1);

    let one = server.create(&["--metadata", "who=me too", "--timeout", "60", "-e", "A=1"]);
    let two = server.create(&["--metadata", "who=you"]);
    let listed = server.run(&["ls"]).ok();
    assert!(listed.contains(&one) && listed.contains(&two) && listed.contains("who=me too"), "{listed}");
    assert_eq!(server.run(&["ls", "-q", "--metadata", "who=me too"]).ok().trim(), one);
    let detail = json(&server.run(&["info", "--json", &one]).ok());
    assert_eq!((detail["sandboxID"].as_str(), detail["state"].as_str()), (Some(one.as_str()), Some("running")));
    assert!(detail.get("envdAccessToken").is_none(), "tokens are not shown");
    assert_eq!(server.run(&["exec", &one, "--", "sh", "-c", "echo $A"]).ok(), "1\n");

    server.run(&["pause", &one]).ok();
    assert!(server.run(&["pause", &one]).stderr().contains("paused already"));
    assert_eq!(server.run(&["ls", "-q", "--state", "paused"]).ok().trim(), one);
    server.run(&["resume", &one]).ok();
    assert_eq!(server.run(&["ls", "-q", "--state", "paused"]).ok(), "");
    assert_eq!(server.run(&["kill", "--all", "--metadata", "who=you"]).ok().trim(), two);
    assert_eq!(server.run(&["kill", &one]).ok().trim(), one);
    assert_eq!(server.run(&["ls", "-q"]).ok(), "");
    finish(server, &state);
}

#[test]
fn exec_passes_output_input_signals_and_exit_codes() {
    let state = StateDir::new(BINARY);
    let server = Served::start(&state, &LISTEN);
    let id = server.create(&[]);
    let both = server.run(&["exec", &id, "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((both.stdout().as_str(), both.stderr().as_str(), both.code()), ("out\n", "err\n", 7));
    assert_eq!(server.run(&["exec", &id, "--", "no-such-program"]).code(), 125);
    let options = ["exec", "-u", "root", "-w", "/tmp", "-e", "B=2 3", &id, "--", "sh", "-c", "id -u; pwd; echo $B"];
    assert_eq!(server.run(&options).ok(), "0\n/tmp\n2 3\n");
    assert_eq!(server.run(&["exec", "--timeout", "0.3", &id, "--", "sleep", "1000"]).code(), 124);
    let reported = json(&server.run(&["exec", "--json", &id, "--", "sh", "-c", "echo x; exit 3"]).stdout());
    assert_eq!((reported["stdout"].as_str(), reported["exit_code"].as_i64()), (Some("x\n"), Some(3)));

    let mut piped = server.command(&["exec", &id, "--", "wc", "-c"]);
    let mut piped = piped.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    piped.stdin.take().unwrap().write_all(&vec![b'x'; 1 << 20]).unwrap();
    assert_eq!(String::from_utf8_lossy(&piped.wait_with_output().unwrap().stdout).trim(), "1048576");

    let trap = "trap 'echo asked; exit 5' TERM; echo ready; while :; do sleep 0.1; done";
    let mut waiting = server.command(&["exec", &id, "--", "bash", "-c", trap]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(waiting.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    rustix::process::kill_process(rustix::process::Pid::from_child(&waiting), rustix::process::Signal::TERM).unwrap();
    assert_eq!((lines.next().unwrap().unwrap().as_str(), waiting.wait().unwrap().code()), ("asked", Some(5)));
    finish(server, &state);
}

#[test]
fn terminals_are_real_and_refused_where_there_is_none() {
    let state = StateDir::new(BINARY);
    let server = Served::start(&state, &LISTEN);
    for arguments in [vec!["create"], vec!["connect", "ia"]] {
        let refused = server.run(&arguments);
        assert!(refused.code() == 125 && refused.stderr().contains("no terminal"), "{}", refused.stderr());
    }
    assert_eq!(server.run(&["ls", "-q"]).ok(), "", "nothing was made");
    let id = server.create(&[]);
    assert_eq!(server.run(&["exec", "-t", &id, "--", "true"]).code(), 125);

    let typed = |verb: &str, keys: &str| {
        let line = format!("{BINARY} --state-dir {} {verb}", state.path().display());
        let mut script = std::process::Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        for name in ["E2B_API_KEY", "E2B_API_URL", "E2B_SANDBOX_URL"] {
            script.env(name, server.export(name));
        }
        let mut child = script.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(keys.as_bytes()).unwrap();
        // A terminal whose other end is closed is hung up; the shell leaves before.
        let output = child.wait_with_output().unwrap();
        drop(input);
        (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
    };
    let (seen, code) = typed(&format!("connect {id}"), "tty; echo sum-$((40+2)); exit 3\n");
    assert!(seen.contains("/dev/pts/") && seen.contains("sum-42"), "{seen}");
    assert_eq!(code, Some(3), "{seen}");
    let (seen, _) = typed("create --metadata made=here", "exit\n");
    assert!(seen.contains("ends with this shell"), "{seen}");
    assert_eq!(server.run(&["ls", "-q"]).ok().trim(), id, "the sandbox went with its shell");
    finish(server, &state);
}

#[test]
fn files_and_directories_are_copied_both_ways() {
    let state = StateDir::new(BINARY);
    let server = Served::start(&state, &LISTEN);
    let id = server.create(&[]);
    let here = tempfile::tempdir().unwrap();
    let path = |name: &str| here.path().join(name).to_str().unwrap().to_owned();
    let large: Vec<u8> = (0..20_000_000u32).map(|number| (number >> 3) as u8).collect();
    fs::create_dir_all(here.path().join("tree/sub/empty")).unwrap();
    fs::write(path("tree/sub/odd\nname"), "odd").unwrap();
    fs::write(path("tree/large"), &large).unwrap();
    std::os::unix::fs::symlink(here.path(), path("tree/circle")).unwrap();
    std::os::unix::fs::symlink("large", path("tree/link")).unwrap();

    let copied = server.run(&["cp", &path("tree"), &format!("{id}:/tmp/")]);
    copied.ok();
    assert!(copied.stderr().contains("circle"), "{}", copied.stderr());
    let listed = server.run(&[
        "exec",
        &id,
        "--",
        "sh",
        "-c",
        "cd /tmp/tree && find . -type f -printf x | wc -c && ls sub/empty",
    ]);
    assert_eq!(listed.ok(), "3\n");
    server.run(&["exec", &id, "--", "ln", "-s", "/etc/passwd", "/tmp/tree/passwd"]).ok();
    let back = server.run(&["cp", &format!("{id}:/tmp/tree"), &path("back")]);
    back.ok();
    assert!(back.stderr().contains("passwd") && !here.path().join("back/passwd").exists());
    assert_eq!(fs::read(path("back/large")).unwrap(), large);
    assert_eq!(fs::read(path("back/link")).unwrap().len(), large.len());
    assert_eq!(fs::read_to_string(path("back/sub/odd\nname")).unwrap(), "odd");
    assert!(here.path().join("back/sub/empty").is_dir());

    server.run(&["cp", &path("tree/large"), &format!("{id}:renamed")]).ok();
    server.run(&["cp", &format!("{id}:renamed"), here.path().to_str().unwrap()]).ok();
    assert_eq!(fs::read(path("renamed")).unwrap(), large);
    let missing = server.run(&["cp", &format!("{id}:/no/such"), &path("x")]);
    assert_eq!((missing.code(), here.path().join("x").exists()), (125, false));
    let names: Vec<_> = fs::read_dir(here.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "nothing half-copied is left: {names:?}");
    finish(server, &state);
}

#[test]
fn logs_are_followed_until_the_sandbox_ends_and_metrics_are_figures() {
    let state = StateDir::new(BINARY);
    let server = Served::start(&state, &LISTEN);
    let id = server.create(&[]);
    let following = server.command(&["logs", "-f", "--json", &id]).stdout(Stdio::piped()).spawn().unwrap();
    let first_sample = || json(&server.run(&["metrics", "--json", &id]).ok())[0].clone();
    let mut sample = first_sample();
    while sample.is_null() {
        std::thread::sleep(std::time::Duration::from_millis(200));
        sample = first_sample();
    }
    assert!(sample["memTotal"].as_u64().unwrap() > 0, "{sample}");
    assert!(server.run(&["metrics", &id]).ok().starts_with("TIME"));
    server.run(&["kill", &id]).ok();
    let followed = following.wait_with_output().unwrap();
    let lines: Vec<Value> = String::from_utf8(followed.stdout).unwrap().lines().map(json).collect();
    let has = |word: &str| lines.iter().any(|line| line["message"].as_str().unwrap().contains(word));
    assert!(has("created") && has("ended"), "{lines:?}");
    let again = server.run(&["logs", &id]).ok();
    assert_eq!(again.lines().count(), lines.len(), "each entry once, also after the end: {again}");
    finish(server, &state);
}

#[test]
fn keys_are_made_listed_and_revoked_with_and_without_a_server() {
    let state = StateDir::new(BINARY);
    let server = Served::start(&state, &LISTEN);
    let made = json(&server.run(&["key", "create", "--name", "second", "--json"]).ok());
    let key = made["key"].as_str().unwrap();
    let works = |key: &str| server.command(&["ls"]).env("E2B_API_KEY", key).output().unwrap().status.success();
    assert!(works(key));
    let listed = server.run(&["key", "list"]).ok();
    assert!(listed.contains("second") && !listed.contains(key), "{listed}");
    server.run(&["key", "revoke", made["id"].as_str().unwrap()]).ok();
    assert!(!works(key));
    assert_eq!(server.run(&["key", "revoke", "none"]).code(), 1);

    let lost = server.run(&["key", "create", "--local"]).ok();
    assert!(works(lost.trim()), "a key that is made beside the server counts at once");
    let keys = json(&server.run(&["key", "list", "--local", "--json"]).ok());
    assert_eq!(keys.as_array().unwrap().len(), 2);
    let id = keys[1]["id"].as_str().unwrap();
    server.run(&["key", "revoke", "--local", id]).ok();
    assert!(!works(lost.trim()));
    finish(server, &state);
}
