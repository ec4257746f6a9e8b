//! A second S3 server for tests: s3rver from npm, which refuses keys that it does not know. It is installed under the user's cache directory at
//! the first need, and keeps its objects in a directory of the test.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(crate) const BUCKET: &str = "workspace";
/// The only key that it knows. It takes any signature made for it, so the secret can be one that is easily searched for.
pub(crate) const ACCESS_KEY: &str = "S3RVER";
pub(crate) const SECRET_KEY: &str = "secret-of-this-test-58b1c0";

pub(crate) struct S3rver {
    child: Child,
    endpoint: String,
    _directory: tempfile::TempDir,
}

impl S3rver {
    pub(crate) fn start() -> Self {
        Self::start_by("http", &[])
    }

    /// With `server.pem` and `server.key` of a directory.
    pub(crate) fn start_with_tls(certificates: &Path) -> Self {
        let path = |name: &str| certificates.join(name).display().to_string();
        Self::start_by("https", &["--cert".to_owned(), path("server.pem"), "--key".to_owned(), path("server.key")])
    }

    fn start_by(scheme: &str, options: &[String]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
        let child = Command::new(program())
            .args(["-a", "127.0.0.1", "-p", &port.to_string(), "--configure-bucket", BUCKET, "-d"])
            .arg(directory.path())
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("s3rver starts");
        let server = Self { child, endpoint: format!("{scheme}://localhost:{port}"), _directory: directory };
        for _ in 0..600 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return server;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("s3rver does not listen");
    }

    /// Puts an object as a tool does that knows nothing of modes and markers.
    pub(crate) fn write_as_another_tool(&self, key: &str, body: &str) {
        let address = self.endpoint.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).expect("it listens");
        let signed =
            "AWS4-HMAC-SHA256 Credential=S3RVER/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x";
        let request = format!(
            "PUT /{BUCKET}/{key} HTTP/1.1\r\nHost: {address}\r\nAuthorization: {signed}\r\n\
            x-amz-content-sha256: UNSIGNED-PAYLOAD\r\nx-amz-date: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            date(),
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.contains(" 200 "), "{answer}");
    }

    pub(crate) fn endpoint(&self) -> String {
        self.endpoint.clone()
    }
}

impl Drop for S3rver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Now, as requests are dated.
fn date() -> String {
    let told = Command::new("date").args(["-u", "+%Y%m%dT%H%M%SZ"]).output().expect("a clock");
    String::from_utf8_lossy(&told.stdout).trim().to_owned()
}

fn program() -> PathBuf {
    let home = std::env::var_os("HOME").expect("a home to keep s3rver in");
    let directory = PathBuf::from(home).join(".cache/isopod/s3rver");
    let program = directory.join("node_modules/.bin/s3rver");
    if !program.exists() {
        std::fs::create_dir_all(&directory).expect("a directory");
        let installed = Command::new("npm")
            .args(["install", "--no-audit", "--no-fund", "s3rver@3.7.1"])
            .current_dir(&directory)
            .status();
        assert!(
            installed.is_ok_and(|status| status.success()),
            "install s3rver: npm (package npm) is needed, with a registry"
        );
    }
    program
}
