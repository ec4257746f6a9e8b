//! How long a request's body may be silent: an API's for a while, a sandbox's forever.

use crate::support;

use std::time::Duration;

use serde_json::json;
use support::Server;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const BODY_TIMEOUT: Duration = Duration::from_secs(1);

async fn start() -> Server {
    Server::start_with(|config| config.control.connections.body_timeout = BODY_TIMEOUT).await
}

async fn begin(server: &Server, request: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head =
        format!("{request} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: 8\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

async fn answer(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    stream.read_to_end(&mut text).await.unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn a_body_that_stops_coming_is_given_up_and_leaves_nothing() {
    let server = start().await;
    let key = format!("X-API-Key: {}\r\n", server.client.key);
    let requests = ["PUT /runtime/r/files/a.txt", "POST /v2/sandboxes", "POST /isopod/templates/builds?name=x"];
    for request in requests {
        let mut stream = begin(&server, request, &key).await;
        stream.write_all(b"half").await.unwrap();
        let told = answer(stream).await;
        assert!(told.starts_with("HTTP/1.1 408 "), "{request}: {told}");
    }
    assert_eq!(server.client.get("/runtime/r/files").await.json["files"], json!([]));
    assert_eq!((server.node.count(), server.node.builder.count()), (0, 0));
}

#[tokio::test]
async fn a_body_that_comes_slowly_is_taken() {
    let server = start().await;
    let key = format!("X-API-Key: {}\r\n", server.client.key);
    let mut stream = begin(&server, "PUT /runtime/r/files/a.txt", &key).await;
    for byte in b"12345678" {
        tokio::time::sleep(BODY_TIMEOUT / 5).await;
        stream.write_all(&[*byte]).await.unwrap();
    }
    assert!(answer(stream).await.starts_with("HTTP/1.1 201 "));
    assert_eq!(server.client.get("/runtime/r/files/a.txt").await.text, "12345678");
}

#[tokio::test]
async fn what_goes_into_a_sandbox_may_be_silent() {
    let server = start().await;
    let id = server.create(json!({})).await;
    let headers = format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 8080\r\n");
    let mut stream = begin(&server, "POST /echo", &headers).await;
    stream.write_all(b"1234").await.unwrap();
    tokio::time::sleep(BODY_TIMEOUT * 2).await;
    stream.write_all(b"5678").await.unwrap();
    assert!(answer(stream).await.ends_with("12345678"));
}
