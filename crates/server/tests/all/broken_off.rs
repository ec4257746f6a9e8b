//! Streams whose sandbox is gone: what their clients still get, and how their connections end.

use crate::support;

use std::io::ErrorKind;
use std::time::Duration;

use isopod_isolation::sys::socket::unacknowledged;
use isopod_wire::delivery::Report;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use support::Server;
use support::guest::{BREAKS_OFF, MUCH};
use support::server::until;

/// The library of E2B's Python SDKs since 2.38, and the one before it.
const RESETS: &str = "connectrpc/0.9.0";
const ENDS: &str = "e2b-python-sdk/2.34.0";
/// The first frame of the fake guest's streams.
const FRAME: &str = "\0\0\0\0\u{2}{}";

async fn start() -> Server {
    Server::start_with(|config| config.control.unacknowledged = unacknowledged).await
}

async fn ask(stream: &mut TcpStream, id: &str, port: u16, path: &str, agent: &str) {
    let inside = format!("e2b-sandbox-id: {id}\r\ne2b-sandbox-port: {port}\r\nuser-agent: {agent}\r\n");
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{inside}content-length: 0\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
}

/// A stream of which the first frame has arrived.
async fn opened(server: &Server, id: &str, port: u16, path: &str, agent: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    ask(&mut stream, id, port, path, agent).await;
    let mut got = String::new();
    while !got.contains(FRAME) && !got.contains("first\n") {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).await.unwrap();
        assert!(length > 0, "{got}");
        got += std::str::from_utf8(&piece[..length]).unwrap();
    }
    stream
}

/// The rest of a connection, and how it ends: `None` for an orderly end.
async fn rest(stream: &mut TcpStream) -> (Vec<u8>, Option<ErrorKind>) {
    let mut rest = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest)).await.unwrap();
    (rest, read.err().map(|error| error.kind()))
}

async fn kill(server: &Server, id: &str) {
    assert_eq!(server.client.delete(&format!("/sandboxes/{id}")).await.status, 204);
}

#[tokio::test]
async fn a_stream_of_a_killed_sandbox_ends_as_its_client_understands_it() {
    let server = start().await;
    for (path, agent, expected) in
        [("/connect", RESETS, Some(ErrorKind::ConnectionReset)), ("/connect", ENDS, None), ("/stream", RESETS, None)]
    {
        let id = server.create(json!({})).await;
        let mut stream = opened(&server, &id, 8080, path, agent).await;
        kill(&server, &id).await;
        assert_eq!(rest(&mut stream).await, (vec![], expected), "{path} {agent}");
    }
}

/// After the last frame, which says what to do, its chunked body ends.
#[tokio::test]
async fn a_stream_of_a_paused_sandbox_is_not_reset() {
    let server = start().await;
    let id = server.create(json!({})).await;
    let mut stream = opened(&server, &id, 8080, "/connect", RESETS).await;
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
    let mut told = String::new();
    while !told.ends_with("\r\n0\r\n\r\n") {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).await.unwrap();
        assert!(length > 0, "{told}");
        told += std::str::from_utf8(&piece[..length]).unwrap();
    }
    assert!(told.contains("unavailable"), "{told}");
}

#[tokio::test]
async fn a_client_that_reads_slowly_gets_everything_before_the_reset() {
    let server = start().await;
    let (id, mut stream) = filled(&server).await;
    kill(&server, &id).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let (got, end) = rest(&mut stream).await;
    assert_eq!((zeros(&got), end), (MUCH, Some(ErrorKind::ConnectionReset)));
}

/// A reset would take from it what it has not read.
#[tokio::test]
async fn a_client_that_does_not_read_is_not_waited_for_and_not_reset() {
    let server = start().await;
    let (id, mut stream) = filled(&server).await;
    kill(&server, &id).await;
    until("the server has closed the connection", || async { servers_side(&stream).0 == FIN_WAIT1 }).await;
    let (got, end) = rest(&mut stream).await;
    assert_eq!((zeros(&got), end), (MUCH, None));
}

/// A stream whose response is with the kernel, and of which nothing was read and most has no room on the client's side.
async fn filled(server: &Server) -> (String, TcpStream) {
    let id = server.create(json!({})).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    ask(&mut stream, &id, 8080, "/connect-much", RESETS).await;
    until("everything was written", || async {
        let received = usize::try_from(rustix::io::ioctl_fionread(&stream).unwrap()).unwrap();
        received + servers_side(&stream).1 > MUCH
    })
    .await;
    assert!(servers_side(&stream).1 > MUCH / 4);
    (id, stream)
}

const FIN_WAIT1: u8 = 4;

/// The state of the other side of a connection, and how many bytes it has that were not acknowledged.
fn servers_side(stream: &TcpStream) -> (u8, usize) {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let client = format!("0100007F:{:04X}", stream.local_addr().unwrap().port());
    let fields =
        table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|fields| fields[2] == client);
    let Some(fields) = fields else { return (0, 0) };
    let unacknowledged = fields[4].split(':').next().unwrap();
    (u8::from_str_radix(fields[3], 16).unwrap(), usize::from_str_radix(unacknowledged, 16).unwrap())
}

fn zeros(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == 0).count()
}

/// Some SDKs read nothing before they have sent everything, and a reset would take the answer from the others.
#[tokio::test]
async fn an_upload_to_a_killed_sandbox_is_read_to_its_end_and_answered() {
    const SIZE: usize = 16 << 20;
    let server = start().await;
    let id = server.create(json!({})).await;
    for (to, is_killed_under_it) in [(id.as_str(), true), ("inobody", false)] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let inside = format!("e2b-sandbox-id: {to}\r\ne2b-sandbox-port: 49983\r\ncontent-length: {SIZE}\r\n");
        stream.write_all(format!("POST /files HTTP/1.1\r\nhost: localhost\r\n{inside}\r\n").as_bytes()).await.unwrap();
        stream.write_all(&vec![0; SIZE / 2]).await.unwrap();
        if is_killed_under_it {
            kill(&server, to).await;
        }
        stream.write_all(&vec![0; SIZE / 2]).await.unwrap();
        let mut got = String::new();
        while !got.ends_with('}') {
            let mut piece = [0; 4096];
            let length = stream.read(&mut piece).await.unwrap();
            assert!(length > 0, "{to}: {got}");
            got += std::str::from_utf8(&piece[..length]).unwrap();
        }
        assert!(got.starts_with("HTTP/1.1 502 ") && got.contains("The sandbox was not found"), "{to}: {got}");
    }
}

/// The connection into the sandbox breaks, and nobody knows yet whether the sandbox is gone.
#[tokio::test]
async fn a_stream_that_breaks_inside_ends_as_its_client_understands_it() {
    let server = start().await;
    server.node.open_ports.lock().unwrap().insert(BREAKS_OFF);
    let id = server.create(json!({})).await;
    for (agent, expected) in [(RESETS, Some(ErrorKind::ConnectionReset)), (ENDS, None)] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        ask(&mut stream, &id, BREAKS_OFF, "/", agent).await;
        let (got, end) = rest(&mut stream).await;
        assert!(String::from_utf8_lossy(&got).contains(FRAME), "{agent}: {got:?}");
        assert_eq!(end, expected, "{agent}");
    }
}

#[tokio::test]
async fn what_was_read_before_a_reset_counts_as_delivered() {
    let server = start().await;
    let id = server.create(json!({})).await;
    let mut stream = opened(&server, &id, 49983, "/process.Process/Connect", RESETS).await;
    kill(&server, &id).await;
    assert_eq!(rest(&mut stream).await.1, Some(ErrorKind::ConnectionReset));
    let last = Report { stream: 1, bytes: 7, last: true };
    until("the last report", || async { server.node.printed.reports.lock().unwrap().contains(&last) }).await;
}
