//! A real Redis for one test.

#![allow(clippy::unwrap_used, reason = "only tests use it")]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A Redis server on a free loopback port, with a directory of its own.
#[derive(Debug)]
pub struct RedisServer {
    dir: tempfile::TempDir,
    port: u16,
    process: Option<Child>,
}

impl RedisServer {
    pub fn start() -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = Self { dir: tempfile::tempdir().unwrap(), port, process: None };
        server.start_again();
        server
    }

    pub fn start_again(&mut self) {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--save", "", "--appendonly", "no"]);
        command.arg("--dir").arg(self.dir.path()).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(command.spawn().expect("redis-server is needed: apt-get install redis-server"));
        let deadline = Instant::now() + TIMEOUT;
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < deadline, "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn ask(&self, words: &[&str]) -> String {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let answer: redis::Value = command.query(&mut connection).unwrap();
        redis::from_redis_value::<Option<String>>(answer).unwrap().unwrap_or_default()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.stop();
    }
}
