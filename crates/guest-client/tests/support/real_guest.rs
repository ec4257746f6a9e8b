//! The guest's daemon as a child process with its own socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use isopod_guest_client::Guest;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

/// A running guest; killed when dropped.
pub struct RealGuest {
    pub guest: Guest,
    pub directory: TempDir,
    child: Child,
}

impl RealGuest {
    /// Starts one, configured for root.
    pub async fn start() -> Self {
        let program = find_program();
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("guest.sock");
        let mut command = Command::new(program);
        command.arg("init").arg("--listen-path").arg(&socket).kill_on_drop(true);
        let child = command.spawn().unwrap();
        set_up(&socket).await;
        Self { guest: Guest::over_unix(socket), directory, child }
    }

    /// A path in a directory of this test's own.
    pub fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }
}

/// Beside the test's own program: `target/debug/deps/test` and `target/debug/isopod-guest`.
fn find_program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("isopod-guest");
    assert!(program.exists(), "{} does not exist; build it: cargo build -p isopod-guest", program.display());
    program
}

/// Initializes the guest, as the host does.
async fn set_up(socket: &Path) {
    let mut stream = connect(socket).await;
    let body = r#"{"defaultUser":"root","defaultWorkdir":"/tmp"}"#;
    let head = "POST /init HTTP/1.1\r\nhost: localhost\r\nx-isopod-control: 1\r\ncontent-type: application/json\r\n";
    let request = format!("{head}connection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 204"), "{reply}");
}

async fn connect(socket: &Path) -> UnixStream {
    for _ in 0..500 {
        if let Ok(stream) = UnixStream::connect(socket).await {
            return stream;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the guest did not listen on {}", socket.display());
}
