//! A guest for each test, and just enough HTTP to talk to it.
#![allow(dead_code, reason = "each test file uses its own part of this")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

pub(crate) mod interpreter;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub(crate) const TOKEN: &str = "secret-token";

/// A running guest. Killed when dropped.
pub(crate) struct Guest {
    child: Child,
    pub(crate) dir: tempfile::TempDir,
}

impl Guest {
    /// A guest after `/init`: without a token, and processes run as root.
    pub(crate) fn new() -> Self {
        let guest = Self::bare(&[]);
        guest.init(&json!({"defaultUser": "root", "envVars": {"SANDBOX": "yes"}}));
        guest
    }

    /// A guest before `/init`, started through `wrapper`.
    pub(crate) fn bare(wrapper: &[&str]) -> Self {
        Self::with_options(wrapper, &[])
    }

    /// The same, with more options.
    pub(crate) fn with_options(wrapper: &[&str], options: &[&str]) -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests need root");
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("guest.sock");
        let binary = env!("CARGO_BIN_EXE_isopod-guest");
        let line: Vec<&str> = wrapper.iter().copied().chain([binary, "init", "--listen-path"]).collect();
        let child =
            Command::new(line[0]).args(&line[1..]).arg(&socket).args(options).stdin(Stdio::null()).spawn().unwrap();
        let guest = Self { child, dir };
        wait_until(|| UnixStream::connect(&socket).is_ok());
        guest
    }

    pub(crate) fn init(&self, settings: &Value) {
        let reply = self.request("POST", "/init", &[("X-Isopod-Control", "1")], settings.to_string().as_bytes());
        assert_eq!(reply.status, 204, "{}", reply.text());
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path("guest.sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// One request on a connection of its own.
    pub(crate) fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        Incoming::send(self.connect(), method, path, headers, body).into_reply()
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.request("GET", path, &[], b"")
    }

    /// A unary call.
    pub(crate) fn call(&self, method: &str, message: &Value) -> Reply {
        let headers = [("Content-Type", "application/json"), ("Connect-Protocol-Version", "1")];
        self.request("POST", &format!("/{method}"), &headers, message.to_string().as_bytes())
    }

    /// A server stream.
    pub(crate) fn stream(&self, method: &str, headers: &[(&str, &str)], message: &Value) -> Events {
        let mut all = vec![("Content-Type", "application/connect+json")];
        all.extend(headers);
        let incoming = Incoming::send(self.connect(), "POST", &format!("/{method}"), &all, &envelope(message));
        assert_eq!(incoming.status, 200);
        Events::new(incoming)
    }

    /// Starts a shell command.
    pub(crate) fn start(&self, script: &str) -> Events {
        self.stream("process.Process/Start", &[], &shell(script))
    }

    /// Runs a shell command to its end.
    pub(crate) fn run(&self, script: &str) -> Outcome {
        self.start(script).finish()
    }
}

impl Drop for Guest {
    /// In a sandbox, everything ends with the guest. Here, what it started for a checkpoint would stay on the host.
    fn drop(&mut self) {
        let roots = roots_of(self.child.id());
        let _ = self.child.kill();
        let _ = self.child.wait();
        for (pid, program) in roots {
            let _ = Command::new("kill").args(["-KILL", &pid]).stderr(Stdio::null()).status();
            let _ = std::fs::remove_file(program);
        }
    }
}

/// The pids and programs of a guest's children that hold the place of a dumped tree of processes.
fn roots_of(guest: u32) -> Vec<(String, String)> {
    let threads = std::fs::read_dir(format!("/proc/{guest}/task")).into_iter().flatten().flatten();
    let children = threads.map(|thread| std::fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    let pids: Vec<String> =
        children.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect();
    let with_program = |pid: String| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        let program = line.split('\0').next()?.to_owned();
        program.starts_with("/run/isopod-checkpoint-root-").then_some((pid, program))
    };
    pids.into_iter().filter_map(with_program).collect()
}

pub(crate) fn shell(script: &str) -> Value {
    json!({"process": {"cmd": "/bin/sh", "args": ["-c", script]}, "stdin": false})
}

pub(crate) fn envelope(message: &Value) -> Vec<u8> {
    let text = message.to_string();
    let mut frame = vec![0];
    frame.extend((text.len() as u32).to_be_bytes());
    frame.extend(text.as_bytes());
    frame
}

/// Waits for a condition that must become true soon.
pub(crate) fn wait_until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "it did not happen in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    /// The status and message of an error.
    pub(crate) fn error(&self) -> (u16, String) {
        (self.status, self.json()["message"].as_str().unwrap_or_default().to_owned())
    }

    /// The code and message of a refused call.
    pub(crate) fn rpc_error(&self) -> (String, String) {
        let json = self.json();
        (json["code"].as_str().unwrap_or_default().to_owned(), json["message"].as_str().unwrap_or_default().to_owned())
    }
}

/// A reply whose body is not read yet.
pub(crate) struct Incoming {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    reader: BufReader<Box<dyn Read + Send>>,
    chunked: bool,
    left: usize,
}

impl Incoming {
    pub(crate) fn send(
        mut stream: impl Read + Write + Send + 'static,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Self {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: guest\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        // The guest may refuse before it has read everything.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        Self::read_head(stream)
    }

    pub(crate) fn read_head(stream: impl Read + Send + 'static) -> Self {
        let stream: Box<dyn Read + Send> = Box::new(stream);
        let mut reader = BufReader::with_capacity(1 << 20, stream);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            lines.push(line.trim().to_owned());
        }
        let status = lines.first().and_then(|line| line.split(' ').nth(1)).and_then(|s| s.parse().ok()).unwrap_or(0);
        let headers: Vec<(String, String)> = lines
            .iter()
            .skip(1)
            .filter_map(|line| line.split_once(": "))
            .map(|(k, v)| (k.to_lowercase(), v.to_owned()))
            .collect();
        let get = |name: &str| headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let chunked = get("transfer-encoding") == Some("chunked");
        let left = get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        Self { status, headers, reader, chunked, left }
    }

    /// The next bytes of the body; empty at its end.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> usize {
        if self.left == 0 && self.chunked {
            let mut line = String::new();
            self.reader.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                line.clear();
                self.reader.read_line(&mut line).unwrap();
            }
            self.left = usize::from_str_radix(line.trim(), 16).unwrap_or(0);
            if self.left == 0 {
                self.chunked = false;
            }
        }
        let most = self.left.min(buffer.len());
        let n = if most == 0 { 0 } else { self.reader.read(&mut buffer[..most]).unwrap() };
        self.left -= n;
        n
    }

    pub(crate) fn read_exactly(&mut self, buffer: &mut [u8]) -> bool {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..]) {
                0 => return false,
                n => filled += n,
            }
        }
        true
    }

    pub(crate) fn into_reply(mut self) -> Reply {
        let mut body = Vec::new();
        let mut buffer = vec![0; 256 << 10];
        loop {
            match self.read(&mut buffer) {
                0 => break,
                n => body.extend(&buffer[..n]),
            }
        }
        Reply { status: self.status, headers: self.headers, body }
    }
}

/// The connection on which the edge reports what its clients have received.
pub(crate) struct Channel {
    pub(crate) name: String,
    stream: UnixStream,
}

impl Channel {
    pub(crate) fn open(guest: &Guest) -> Self {
        Self::open_on(guest.connect())
    }

    /// Attaches a descriptor, which should be memory for positions.
    pub(crate) fn open_with(guest: &Guest, memory: impl AsFd) -> Self {
        let stream = guest.connect();
        isopod_positions::Positions::send(&stream, isopod_wire::delivery::PREAMBLE, memory).unwrap();
        Self::open_on(stream)
    }

    fn open_on(stream: UnixStream) -> Self {
        let headers = [("X-Isopod-Control", "1"), ("Connection", "upgrade"), ("Upgrade", "isopod-delivery")];
        let answer = Incoming::send(stream.try_clone().unwrap(), "POST", "/delivery", &headers, b"");
        assert_eq!(answer.status, 101);
        let name = answer.headers.iter().find(|(key, _)| key == "x-isopod-delivery").unwrap().1.clone();
        Self { name, stream }
    }

    pub(crate) fn report(&mut self, report: isopod_wire::delivery::Report) {
        self.stream.write_all(&report.encode()).unwrap();
    }
}

/// The frames of a stream.
pub(crate) struct Events {
    pub(crate) incoming: Incoming,
    received: u64,
}

impl Events {
    pub(crate) fn new(incoming: Incoming) -> Self {
        Self { incoming, received: 0 }
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.incoming.headers.iter().find(|(key, _)| key == name);
        &found.unwrap_or_else(|| panic!("no {name}: {:?}", self.incoming.headers)).1
    }

    pub(crate) fn has_header(&self, name: &str) -> bool {
        self.incoming.headers.iter().any(|(key, _)| key == name)
    }

    /// How many bytes of the body have been read.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// The standard output of the next message.
    pub(crate) fn next_text(&mut self) -> String {
        let mut outcome = Outcome::default();
        outcome.take(&self.next().unwrap().1["event"]);
        outcome.text()
    }

    /// The next message, and whether it is the end of the stream.
    pub(crate) fn next(&mut self) -> Option<(bool, Value)> {
        let mut head = [0; 5];
        if !self.incoming.read_exactly(&mut head) {
            return None;
        }
        let mut payload = vec![0; u32::from_be_bytes(head[1..].try_into().unwrap()) as usize];
        assert!(self.incoming.read_exactly(&mut payload), "a frame is cut short");
        self.received += (head.len() + payload.len()) as u64;
        Some((head[0] == 2, serde_json::from_slice(&payload).unwrap()))
    }

    /// The pid in the `start` event, which must be the first one.
    pub(crate) fn pid(&mut self) -> u64 {
        let (_, message) = self.next().unwrap();
        message["event"]["start"]["pid"].as_u64().unwrap_or_else(|| panic!("no start: {message}"))
    }

    /// Reads the stream to its end.
    pub(crate) fn finish(mut self) -> Outcome {
        let mut outcome = Outcome::default();
        while let Some((last, message)) = self.next() {
            if last {
                outcome.error = message["error"].clone();
                return outcome;
            }
            outcome.take(&message["event"]);
        }
        panic!("the stream has no end: {outcome:?}");
    }
}

/// The output and result of a process.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) pid: u64,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) pty: Vec<u8>,
    pub(crate) end: Value,
    /// The error that ended the stream; null if there was none.
    pub(crate) error: Value,
    pub(crate) keepalives: usize,
    pub(crate) longest: usize,
}

impl Outcome {
    fn take(&mut self, event: &Value) {
        use base64::Engine;
        let decode = |text: &Value| base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap()).unwrap();
        if let Some(pid) = event["start"]["pid"].as_u64() {
            self.pid = pid;
        }
        for (name, sink) in [("stdout", &mut self.stdout), ("stderr", &mut self.stderr), ("pty", &mut self.pty)] {
            if event["data"][name].is_string() {
                let data = decode(&event["data"][name]);
                self.longest = self.longest.max(data.len());
                sink.extend(data);
            }
        }
        if event["end"].is_object() {
            assert!(self.end.is_null(), "two ends");
            self.end = event["end"].clone();
        }
        self.keepalives += usize::from(event["keepalive"].is_object());
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}
