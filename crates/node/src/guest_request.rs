//! The few requests that a node itself makes of a guest.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::blank::GUEST_SOCKET;

/// A guest that does not answer within this time is taken for dead.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens a connection to the guest of an execution.
pub(crate) async fn connect(directory: &std::fs::File) -> io::Result<UnixStream> {
    // Through the open directory: the path may be longer than a socket's address.
    UnixStream::connect(format!("/proc/self/fd/{}/{GUEST_SOCKET}", directory.as_raw_fd())).await
}

/// Whether a warm interpreter waits in the sandbox of this directory. Blocks for the moment that the guest takes.
pub(crate) fn is_interpreter_parked(directory: &Path) -> io::Result<bool> {
    #[derive(Deserialize)]
    struct Interpreter {
        parked: bool,
    }
    let directory = std::fs::File::open(directory)?;
    let path = format!("/proc/self/fd/{}/{GUEST_SOCKET}", directory.as_raw_fd());
    let mut stream = std::os::unix::net::UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let request = "GET /interpreter HTTP/1.1\r\nHost: guest\r\nX-Isopod-Control: 1\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes())?;
    let mut reply = Vec::with_capacity(512);
    stream.read_to_end(&mut reply)?;
    check_status(&reply)?;
    let body = reply.windows(4).position(|window| window == b"\r\n\r\n").map_or(&[][..], |at| &reply[at + 4..]);
    Ok(serde_json::from_slice::<Interpreter>(body)?.parked)
}

/// Posts a JSON body to a path of the guest and expects success.
pub(crate) async fn post(directory: &std::fs::File, path: &str, body: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(body)?;
    let exchange = async {
        let mut stream = connect(directory).await?;
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: guest\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             X-Isopod-Control: 1\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), &body].concat()).await?;
        let mut reply = Vec::with_capacity(512);
        stream.read_to_end(&mut reply).await?;
        check_status(&reply)
    };
    tokio::time::timeout(PATIENCE, exchange).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

fn check_status(reply: &[u8]) -> io::Result<()> {
    let line = reply.split(|byte| *byte == b'\r').next().unwrap_or_default();
    if line.starts_with(b"HTTP/1.1 2") {
        return Ok(());
    }
    let line = String::from_utf8_lossy(line);
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("the guest answered {line:?}")))
}
