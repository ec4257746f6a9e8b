//! A real server with clients that mean no good: crowds of idle connections, heads that never end, broken frames. Others
//! are served meanwhile, and nothing is kept for those who left.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may panic, and says what it saw")]

use crate::common;

use std::time::Duration;

use common::raw::ask;
use common::{KEY, Server};
use isopod_client::sandbox::NewSandbox;
use isopod_testkit::StateDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

/// How many connections: ten thousand in a full run.
fn crowd() -> usize {
    if std::env::var_os("ISOPOD_FULL").is_some() { 10_000 } else { 1_000 }
}

fn serve(state: &StateDir) -> Server {
    Server::start(state.isopod().command(&["serve", "--prepare", "none", "--pool-ready", "1", "--pool-prepared", "1"]))
}

async fn connect(server: &Server) -> TcpStream {
    for _ in 0..100 {
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", server.port())).await {
            return stream;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the server takes no more connections");
}

/// Reads until there is a whole head.
async fn head(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while !text.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut byte = [0; 1024];
        match tokio::time::timeout(Duration::from_secs(20), stream.read(&mut byte)).await.expect("an answer") {
            Ok(0) | Err(_) => break,
            Ok(length) => text.extend_from_slice(&byte[..length]),
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

async fn until(condition: impl Fn() -> bool, what: &str) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("waited in vain: {what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_and_endless_heads_leave_room_for_others() {
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let client = server.client();
    let sandbox = client.create(NewSandbox::new("base")).await.unwrap();
    let before = server.open_files();
    let (mut idle, mut slow) = (Vec::new(), Vec::new());
    for number in 0..crowd() {
        let mut stream = connect(&server).await;
        if number % 10 == 0 {
            stream.write_all(b"GET /health HTTP/1.1\r\nhost: lo").await.unwrap();
            slow.push(stream);
        } else {
            idle.push(stream);
        }
    }
    until(|| server.open_files() >= before + crowd(), "they are all there").await;
    eprintln!("{} connections: the server has {} kB", crowd(), server.memory_kib());
    let other = client.create(NewSandbox::new("base")).await.unwrap();
    for sandbox in [&sandbox, &other] {
        let guest = sandbox.guest().clone().with_user("user");
        assert_eq!(guest.run("echo served").await.unwrap().stdout, b"served\n");
    }
    // Each of the idle ones is still good for a request.
    for stream in idle.iter_mut().step_by(100) {
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        assert!(head(stream).await.starts_with("HTTP/1.1 200"));
    }
    // The slow ones lose their connection, one byte after the other or not.
    for stream in &mut slow {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(40), stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "a head that never ends holds its connection");
    }
    drop((idle, slow));
    until(|| server.open_files() <= before + 50, "none stays open").await;
    for sandbox in [sandbox, other] {
        assert!(client.kill(sandbox.id()).await.unwrap());
    }
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_frames_huge_heads_and_wrong_types_get_answers_through_the_edge() {
    let state = StateDir::new(BINARY);
    let server = serve(&state);
    let client = server.client();
    let sandbox = client.create(NewSandbox::new("base")).await.unwrap();
    let id = sandbox.id().as_str();
    let detail = ask(server.port(), "GET", &format!("/sandboxes/{id}"), &[("x-api-key", KEY)], b"").await.json();
    let token = detail["envdAccessToken"].as_str().unwrap().to_owned();
    let start = async |kind: &str, extra: &[(&str, &str)], body: &[u8]| {
        let ours = [("e2b-sandbox-id", id), ("e2b-sandbox-port", "49983"), ("x-access-token", &token)];
        let headers = [&ours[..], &[("content-type", kind)], extra].concat();
        ask(server.port(), "POST", "/process.Process/Start", &headers, body).await
    };
    let frames: [(&[u8], &str); 6] = [
        (b"", "invalid_argument"),
        (b"\0\0\0\0\x05{", "invalid_argument"),
        (b"\0\0\0\0\x02{]", "invalid_argument"),
        (b"\0\xff\xff\xff\xff", "resource_exhausted"),
        (b"\x01\0\0\0\x02{}", "unimplemented"),
        (b"\xff\0\0\0\x02{}\0\0", "unimplemented"),
    ];
    for (frame, code) in frames {
        let answer = start("application/connect+json", &[], frame).await;
        assert!(answer.status == 200 && answer.body.contains(code), "{frame:?}: {answer:?}");
    }
    assert_eq!(start("text/plain", &[], b"x").await.status, 415);
    let huge = "y".repeat(1 << 20);
    let refused = start("application/connect+json", &[("x-long", &huge)], b"").await;
    assert!([0, 431].contains(&refused.status), "{refused:?}");
    let names: Vec<String> = (0..5000).map(|number| format!("x-{number}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "y")).collect();
    let refused = start("application/connect+json", &many, b"").await;
    assert!([0, 400, 431].contains(&refused.status), "{refused:?}");
    assert_eq!(sandbox.guest().clone().with_user("user").run("echo whole").await.unwrap().stdout, b"whole\n");
    assert_eq!(ask(server.port(), "GET", "/v2/sandboxes", &[("x-api-key", KEY)], b"").await.status, 200);
    assert!(client.kill(sandbox.id()).await.unwrap());
    server.stop();
    state.assert_nothing_left();
}
