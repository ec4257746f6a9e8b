//! The settings file of the server, and what comes before what.

use crate::served;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::mpsc;

use isopod_testkit::StateDir;
use serde_json::{Value, json};
use served::{BINARY, Served, host, text};

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_file_that_is_not_understood_is_refused() {
    let state = StateDir::new(BINARY);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("isopod.toml");
    for (text, expected) in [
        ("lisen = '127.0.0.1:1'", "unknown field `lisen`"),
        ("[tls]\ncert = 'only.pem'", "only one of tls.cert and tls.key"),
        ("[sandbox]\nmemory = '1x'", "not a size"),
        ("listen = '0.0.0.0:3000'", "not encrypted"),
    ] {
        std::fs::write(&path, text).unwrap();
        let refused = state.isopod().run(&["serve", "--config", path.to_str().unwrap()]);
        assert_eq!(refused.code(), 125, "{text}");
        assert!(refused.stderr().contains(expected), "{text}: {}", refused.stderr());
    }
    let missing = state.isopod().run(&["serve", "--config", "/no/such/file"]);
    assert!(missing.stderr().contains("could not read /no/such/file"), "{}", missing.stderr());
}

#[test]
fn flags_come_before_the_environment_and_that_before_the_file() {
    let state = StateDir::new(BINARY);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("isopod.toml");
    let (flag, variable, file) = (free_port(), free_port(), free_port());
    let text = format!(
        "listen = '127.0.0.1:{file}'\n[pool]\nready = 1\nprepared = 0\n[sandbox]\ncpus = 1.0\nmemory = '256M'\n"
    );
    std::fs::write(&path, text).unwrap();
    let config = path.to_str().unwrap();
    let listens_on = |arguments: &[&str], environment: Option<String>, expected: u16| {
        let mut command = state.isopod().command(&[&["serve"], arguments].concat());
        command.env("ISOPOD_CONFIG", config);
        match environment {
            Some(address) => command.env("ISOPOD_LISTEN", address),
            None => command.env_remove("ISOPOD_LISTEN"),
        };
        let server = Served::start_command(&state, command);
        assert_eq!(server.port(), expected.to_string());
        server
    };
    let variable_text = || Some(format!("127.0.0.1:{variable}"));
    let key = "e2b_0000000000000000000000000000000000000000";
    listens_on(&["--api-key", key, "--listen", &format!("127.0.0.1:{flag}")], variable_text(), flag).stop();
    listens_on(&["--api-key", key], variable_text(), variable).stop();
    let server = listens_on(&["--api-key", key], None, file);

    let with_key = |arguments: &[&str]| {
        let output = server.command(arguments).env("E2B_API_KEY", key).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let id = with_key(&["create", "--detach"]);
    let detail: Value = serde_json::from_str(&with_key(&["info", "--json", id.trim()])).unwrap();
    assert_eq!((detail["cpuCount"].as_u64(), detail["memoryMB"].as_u64()), (Some(1), Some(256)));
    with_key(&["kill", "--all"]);
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn log_lines_are_json_on_request_and_never_coloured_in_a_pipe() {
    let state = StateDir::new(BINARY);
    let lines_of = |format: &str| {
        let mut command = state.isopod().command(&["--log-format", format, "serve", "--listen", "127.0.0.1:0"]);
        command.args(["--prepare", "none", "--pool-ready", "0", "--pool-prepared", "0"]).env("ISOPOD_LOG", "info");
        let mut server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(server.stdout.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap().contains("E2B_API_KEY")));
        let pid = rustix::process::Pid::from_child(&server);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        said.for_each(drop);
        String::from_utf8(server.wait_with_output().unwrap().stderr).unwrap()
    };
    let json = lines_of("json");
    let events: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert!(!events.is_empty());
    assert!(events.iter().all(|event| event["level"].is_string() && event["timestamp"].is_string()), "{json}");
    assert_eq!(lines_of("auto").lines().next().map(|line| line.starts_with('{')), Some(true));
    let text = lines_of("text");
    assert!(!text.is_empty() && !text.contains(['\u{1b}', '{']), "{text}");
    assert!(state.isopod().run(&["--log-format", "xml", "doctor"]).stderr().contains("possible values"));
}

#[test]
fn the_log_names_a_request_by_the_id_that_its_client_got() {
    let state = StateDir::new(BINARY);
    let options = ["--log-format", "json", "serve", "--listen", "127.0.0.1:0", "--prepare", "none"];
    let mut command = state.isopod().command(&options);
    command.args(["--pool-ready", "0", "--pool-prepared", "0"]).env("ISOPOD_LOG", "debug");
    let server = Served::start_command(&state, command);
    let ask = |path: &str| {
        let url = format!("http://{}{path}", server.address());
        let head = text(&host("curl", &["--silent", "--output", "/dev/null", "--dump-header", "-", &url]));
        let head = head.to_ascii_lowercase();
        let id = head.lines().find_map(|line| line.strip_prefix("x-request-id: ")).expect("the client gets the id");
        id.trim().to_owned()
    };
    let (healthy, refused) = (ask("/api/v1/health"), ask("/v2/sandboxes"));
    assert_ne!(healthy, refused);
    let log = server.log();
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    for (id, path, status) in [(healthy, "/api/v1/health", 200), (refused, "/v2/sandboxes", 401)] {
        let answered = events.iter().find(|event| event["span"]["id"] == *id && event["message"] == "answered");
        let answered = answered.unwrap_or_else(|| panic!("{id} is not in {log}"));
        assert_eq!((&answered["span"]["url.path"], &answered["status"]), (&json!(path), &json!(status)), "{answered}");
    }
    server.stop();
    state.assert_nothing_left();
}

/// Answers searches as SearXNG does. Returns its address, and the heads of the requests as they come.
fn start_search() -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, heads) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = BufReader::new(&stream).lines().map(Result::unwrap);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let body = json!({ "results": [{ "title": "one", "url": "https://one.example/", "content": "words" }] });
            let body = body.to_string();
            let about = "content-type: application/json\r\nconnection: close";
            let length = body.len();
            write!(stream, "HTTP/1.1 200 OK\r\n{about}\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
            // The test may have ended.
            let _ = sender.send(head.join("\n"));
        }
    });
    (address, heads)
}

#[test]
fn the_search_service_and_the_allowed_origins_of_the_file_count() {
    let state = StateDir::new(BINARY);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("isopod.toml");
    let (search, heads) = start_search();
    let origins = "allowed_origins = ['https://app.example']";
    std::fs::write(&path, format!("{origins}\n[tools.search]\nurl = 'http://{search}/search'\n")).unwrap();
    let mut command = state.isopod().command(&["serve", "--listen", "127.0.0.1:0", "--config", path.to_str().unwrap()]);
    command.args(["--pool-ready", "0", "--pool-prepared", "0"]).env("ISOPOD_SEARCH_KEY", "sesame");
    let server = Served::start_command(&state, command);
    let key = format!("x-api-key: {}", server.export("E2B_API_KEY"));
    let ask = |path: &str, options: &[&str]| {
        let url = format!("http://{}{path}", server.address());
        text(&host("curl", &[&["--silent", "--header", &key, &url], options].concat()))
    };

    let tools: Value = serde_json::from_str(&ask("/runtime/tools", &[])).unwrap();
    let is_search = |tool: &Value| tool["name"] == "web_search";
    assert!(tools["tools"].as_array().unwrap().iter().any(is_search), "{tools}");
    let body = ["--header", "content-type: application/json", "--data", r#"{"query":"isopods"}"#];
    let found: Value = serde_json::from_str(&ask("/runtime/r/tools/web_search", &body)).unwrap();
    assert_eq!((&found["success"], &found["results"][0]["title"]), (&json!(true), &json!("one")), "{found}");
    let head = heads.recv().unwrap();
    assert!(head.starts_with("GET /search?q=isopods&format=json "), "{head}");
    assert!(head.lines().any(|line| line.eq_ignore_ascii_case("authorization: Bearer sesame")), "{head}");

    let from = |origin: &str| ask("/v2/sandboxes", &["--include", "--header", &format!("origin: {origin}")]);
    let allowed = from("https://app.example");
    assert!(allowed.starts_with("HTTP/1.1 200"), "{allowed}");
    let is_permission = |line: &str| line.eq_ignore_ascii_case("access-control-allow-origin: https://app.example");
    assert!(allowed.lines().any(is_permission), "{allowed}");
    let refused = from("https://evil.example");
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    assert!(!refused.to_ascii_lowercase().contains("access-control-allow-origin"), "{refused}");
    server.stop();
    state.assert_nothing_left();
}
