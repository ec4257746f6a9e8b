//! Plain requests, one connection each, for what no client would send.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    /// 0 when the connection was closed without one.
    pub(crate) status: u16,
    /// Everything after the head.
    pub(crate) body: String,
}

impl Answer {
    /// The JSON of the body, chunked or not; null when it is none.
    pub(crate) fn json(&self) -> serde_json::Value {
        let (Some(start), Some(end)) = (self.body.find(['{', '[']), self.body.rfind(['}', ']'])) else {
            return serde_json::Value::Null;
        };
        serde_json::from_str(&self.body[start..=end]).unwrap_or_default()
    }
}

/// Asks and reads to the end of the connection.
pub(crate) async fn ask(port: u16, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("the server listens");
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    // The server may refuse before it has read everything.
    let _ = stream.write_all(head.as_bytes()).await;
    let _ = stream.write_all(body).await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await;
    assert!(read.is_ok(), "no end to the answer of {method} {path}");
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, body: body.to_owned() }
}
