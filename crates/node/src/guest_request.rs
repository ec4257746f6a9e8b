//! The few requests that a node itself sends to a guest.
//!
//! Any process in the sandbox may reply in the guest's place. A reply has a size limit, and the whole exchange, from
//! connecting to the last byte, has one deadline. So a peer that sends endlessly or very slowly costs neither memory
//! nor a thread.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use isopod_guest_client::Connector;
use isopod_guest_client::checkpoint::Checkpoint;
use isopod_guest_client::guest::Guest;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The guest's socket in the execution's directory.
pub(crate) const GUEST_SOCKET: &str = "guest.sock";
/// A guest that has not replied completely within this time counts as dead.
const DEADLINE: Duration = Duration::from_secs(10);
/// The maximum size of a reply, including its head. Guests reply to these requests with a few hundred bytes.
const MAX_REPLY: u64 = 64 << 10;
/// How much of an unexpected reply an error shows.
const MAX_SHOWN: usize = 200;

/// Connects to the guest of an execution. Fails if the guest does not accept at once.
pub(crate) async fn connect(directory: &std::fs::File) -> io::Result<UnixStream> {
    UnixStream::connect(socket_in(directory)).await
}

/// A client of the guest of an execution.
pub(crate) fn client(directory: &std::fs::File) -> io::Result<Guest> {
    connector(directory).map(Guest::over)
}

/// A client of the guest of an execution, for checkpoints.
pub(crate) fn checkpoint_client(directory: &std::fs::File) -> io::Result<Checkpoint> {
    connector(directory).map(Checkpoint::over)
}

fn connector(directory: &std::fs::File) -> io::Result<Connector> {
    Ok(Connector::unix_in(directory.try_clone()?.into(), GUEST_SOCKET))
}

/// The path of the guest's socket through the open directory, because the full path may be too long for a socket
/// address. It is valid for as long as the directory is open.
pub(crate) fn socket_in(directory: &std::fs::File) -> String {
    format!("/proc/self/fd/{}/{GUEST_SOCKET}", directory.as_raw_fd())
}

/// Connects to the guest of an open socket, even if its path is gone.
pub(crate) async fn connect_to(socket: &OwnedFd) -> io::Result<UnixStream> {
    UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await
}

/// Opens the guest's socket in an execution's directory, without connecting to it.
pub(crate) fn open_socket(directory: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(
        directory.join(GUEST_SOCKET),
        OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
    )?)
}

/// Whether a warm interpreter is parked in the sandbox of this directory.
pub(crate) async fn is_interpreter_parked(directory: &Path) -> io::Result<bool> {
    #[derive(Deserialize)]
    struct Interpreter {
        parked: bool,
    }
    let directory = std::fs::File::open(directory)?;
    let request = "GET /interpreter HTTP/1.1\r\nHost: guest\r\nX-Isopod-Control: 1\r\nConnection: close\r\n\r\n";
    let reply = exchange(&directory, request.as_bytes()).await?;
    let body = reply.windows(4).position(|window| window == b"\r\n\r\n").map_or(&[][..], |at| &reply[at + 4..]);
    Ok(serde_json::from_slice::<Interpreter>(body)?.parked)
}

/// Posts a JSON body to a path of the guest and expects success.
pub(crate) async fn post(directory: &std::fs::File, path: &str, body: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(body)?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: guest\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         X-Isopod-Control: 1\r\nConnection: close\r\n\r\n",
        body.len()
    );
    exchange(directory, &[head.as_bytes(), &body].concat()).await.map(drop)
}

/// Sends a request and reads the whole reply. Fails unless the reply has a success status.
async fn exchange(directory: &std::fs::File, request: &[u8]) -> io::Result<Vec<u8>> {
    let work = async {
        let mut stream = connect(directory).await?;
        stream.write_all(request).await?;
        read_reply(stream).await
    };
    let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no reply within {} s", DEADLINE.as_secs()));
    tokio::time::timeout(DEADLINE, work).await.map_err(timed_out)?
}

async fn read_reply(stream: UnixStream) -> io::Result<Vec<u8>> {
    let mut reply = Vec::with_capacity(512);
    let length = stream.take(MAX_REPLY + 1).read_to_end(&mut reply).await?;
    if length as u64 > MAX_REPLY {
        let message = format!("the guest's reply is longer than {MAX_REPLY} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    check_status(&reply)?;
    Ok(reply)
}

fn check_status(reply: &[u8]) -> io::Result<()> {
    let line = reply.split(|byte| *byte == b'\r').next().unwrap_or_default();
    if line.starts_with(b"HTTP/1.1 2") {
        return Ok(());
    }
    let line = String::from_utf8_lossy(&line[..line.len().min(MAX_SHOWN)]);
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("the guest answered {line:?}")))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use tempfile::TempDir;
    use tokio::net::UnixListener;

    use super::*;

    /// A fake guest that replies as the test says.
    fn fake_guest<F>(answer: impl Fn(UnixStream) -> F + Send + 'static) -> TempDir
    where
        F: Future<Output = io::Result<()>> + Send,
    {
        let directory = TempDir::new().unwrap();
        let listener = UnixListener::bind(directory.path().join(GUEST_SOCKET)).unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let _ = answer(stream).await;
            }
        });
        directory
    }

    /// The errors of both requests.
    async fn errors_of(directory: &TempDir) -> [io::Error; 2] {
        let open = File::open(directory.path()).unwrap();
        let posted = post(&open, "/init", &serde_json::json!({})).await.unwrap_err();
        [posted, is_interpreter_parked(directory.path()).await.unwrap_err()]
    }

    const OK: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";

    #[tokio::test]
    async fn an_answer_without_end_is_refused_once_it_is_too_long() {
        let directory = fake_guest(async |mut stream| {
            stream.write_all(OK).await?;
            loop {
                stream.write_all(&[b' '; 4096]).await?;
            }
        });
        for error in errors_of(&directory).await {
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
            assert!(error.to_string().contains("longer than"), "{error}");
        }
    }

    /// The clock advances whenever everything waits, so the test takes no time.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_drips_is_given_up_at_the_deadline() {
        let directory = fake_guest(async |mut stream| {
            stream.write_all(OK).await?;
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                stream.write_all(b" ").await?;
            }
        });
        for error in errors_of(&directory).await {
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_says_nothing_is_given_up_at_the_deadline() {
        let directory = fake_guest(async |stream| {
            let _stream = stream;
            std::future::pending().await
        });
        for error in errors_of(&directory).await {
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_accepts_nobody_holds_nobody_up() {
        let directory = TempDir::new().unwrap();
        let _deaf = std::os::unix::net::UnixListener::bind(directory.path().join(GUEST_SOCKET)).unwrap();
        let path = directory.path().join(GUEST_SOCKET);
        let mut waiting = Vec::new();
        while let Ok(stream) = UnixStream::connect(&path).await {
            waiting.push(stream);
        }
        for error in errors_of(&directory).await {
            assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{error}");
        }
    }

    #[tokio::test]
    async fn nonsense_is_an_error_and_a_proper_answer_is_not() {
        let answers: [&[u8]; 5] = [
            b"",
            b"\0\xff\xfe",
            b"HTTP/1.1 500 Internal Server Error\r\n\r\n{\"parked\":true}",
            b"HTTP/1.1 2",
            b"HTTP/1.1 200 OK\r\n\r\n{\"parked\":\"\"}",
        ];
        for answer in answers {
            let directory = fake_guest(async move |mut stream| stream.write_all(answer).await);
            assert!(is_interpreter_parked(directory.path()).await.is_err(), "{answer:?}");
        }
        let directory = fake_guest(async |mut stream| stream.write_all(&[OK, b"{\"parked\":true}"].concat()).await);
        assert!(is_interpreter_parked(directory.path()).await.unwrap());
        post(&File::open(directory.path()).unwrap(), "/init", &()).await.unwrap();
    }
}
