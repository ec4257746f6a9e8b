//! A server of a test.

#![allow(dead_code, reason = "each test that includes this uses a part of it")]

pub(crate) mod raw;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use isopod_client::sandbox::{Client, ClientConfig};

/// The key that the server is started with.
pub(crate) const KEY: &str = "e2b_00000000000000000000000000000000000000aa";

/// Whether memory can be saved here. If not, says why.
#[allow(clippy::print_stderr, reason = "a test says why it does nothing")]
pub(crate) fn has_criu() -> bool {
    match isopod_testkit::criu() {
        Ok(_) => true,
        Err(reason) => {
            assert!(std::env::var_os("CI").is_none(), "CI tests memory: {reason}");
            eprintln!("not tested: {reason}");
            false
        }
    }
}

/// `isopod serve` on a free port.
pub(crate) struct Server {
    child: Child,
    port: u16,
}

/// A test that failed before it stopped the server.
impl Drop for Server {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        if let Some(pid) = self.server_pid() {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts the command, which must be `… serve` without `--listen`, and waits until it accepts connections. `None`
    /// when it ended before that.
    pub(crate) fn try_start(mut command: Command) -> Option<Self> {
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
        command.args(["--listen", &format!("127.0.0.1:{port}"), "--api-key", KEY]);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let mut server = Self { child, port };
        let mut was_there = false;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = server.child.try_wait().expect("our own child").is_some();
            if ended || (was_there && server.has_ended()) {
                server.kill();
                return None;
            }
            was_there |= !server.has_ended();
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(server)
    }

    pub(crate) fn start(command: Command) -> Self {
        Self::try_start(command).expect("the server starts")
    }

    pub(crate) fn client(&self) -> Client {
        let url = format!("http://127.0.0.1:{}", self.port);
        let config = ClientConfig {
            api_url: url.clone(),
            api_key: KEY.to_owned(),
            sandbox_url: Some(url),
            ..ClientConfig::default()
        };
        Client::new(config).expect("a good address").with_request_timeout(Duration::from_secs(20))
    }

    /// As a crash would. A tracer in front of the server would leave it running, so the server goes first.
    pub(crate) fn kill(mut self) {
        if let Some(pid) = self.server_pid() {
            // It may just have been killed by its tracer.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = self.child.kill();
        self.child.wait().expect("our own child");
    }

    /// The server itself, which may have a tracer in front of it that outlives it.
    fn server_pid(&self) -> Option<rustix::process::Pid> {
        let own = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
        let candidates = children.split_whitespace().filter_map(|pid| pid.parse().ok()).chain([own.cast_signed()]);
        candidates.filter_map(rustix::process::Pid::from_raw).find(|pid| {
            let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            arguments.contains("\0serve\0") && !arguments.starts_with("strace")
        })
    }

    /// As a person would.
    pub(crate) fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        assert!(self.child.wait().expect("our own child").success());
    }

    /// As [`Server::stop`], for a server with a tracer in front of it, which ends with the server.
    pub(crate) fn stop_traced(mut self) {
        let pid = self.server_pid().expect("it runs");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        assert!(self.child.wait().expect("our own child").success());
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// How many files and connections it has open.
    pub(crate) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).map_or(0, Iterator::count)
    }

    /// Its memory.
    pub(crate) fn memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.server_pid().is_none()
    }
}
