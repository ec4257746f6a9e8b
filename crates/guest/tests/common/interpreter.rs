//! A guest with an interpreter in namespaces of its own: with its real port, a user and a home. No process outlives it.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

use super::{Guest, Incoming, Reply};

/// The driver's directory in the sandbox of a test.
pub(crate) const DRIVER: &str = "/home/driver";
const PORT: u16 = 49999;
/// Sets up the sandbox (a loopback interface, a home, a user) and then runs the guest. It unmounts loop devices first: its
/// mounts are copies of the host's, which would keep the disks of other servers and tests busy.
const SETUP: &str = r#"
set -e
awk '$1 ~ "^/dev/loop" && $2 != "/" { print $2 }' /proc/self/mounts | tac | xargs -r -n 1 umount -l
ip link set lo up
mount -t tmpfs tmpfs /home
mkdir /home/user
chown 1000:1000 /home/user
cp -r "$0" /home/driver
chmod -R a+rX /home/driver
printf 'root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n' > /home/passwd
mount --bind /home/passwd /etc/passwd
exec "$@"
"#;

/// A running guest with an interpreter.
pub(crate) struct Sandbox {
    pub(crate) guest: Guest,
}

impl Sandbox {
    /// A sandbox after `/init`.
    pub(crate) fn new() -> Self {
        let sandbox = Self::bare(&[]);
        sandbox.guest.init(&json!({"envVars": {"SANDBOX": "yes"}}));
        sandbox
    }

    /// A sandbox before `/init`.
    pub(crate) fn bare(options: &[&str]) -> Self {
        Self::with_driver(concat!(env!("CARGO_MANIFEST_DIR"), "/driver"), options)
    }

    /// A sandbox after `/init` whose driver is this script.
    pub(crate) fn scripted(script: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("run.py"), script).unwrap();
        let sandbox = Self::with_driver(directory.path().to_str().unwrap(), &[]);
        sandbox.guest.init(&json!({"envVars": {"SANDBOX": "yes"}}));
        sandbox
    }

    fn with_driver(driver: &str, options: &[&str]) -> Self {
        assert!(Path::new(driver).join("run.py").exists(), "there is no driver in {driver}");
        let wrapper = ["unshare", "--pid", "--net", "--mount", "--fork", "--mount-proc", "--kill-child", "sh", "-c"];
        let wrapper: Vec<&str> = wrapper.into_iter().chain([SETUP, driver]).collect();
        let options: Vec<&str> =
            ["--interpreter", "--driver", DRIVER].into_iter().chain(options.iter().copied()).collect();
        Self { guest: Guest::with_options(&wrapper, &options) }
    }

    /// The guest's pid on the host.
    pub(crate) fn guest_pid(&self) -> String {
        let pid = self.guest.pid();
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap().trim().to_owned()
    }

    /// Connects to the interpreter's port from inside the sandbox.
    pub(crate) fn connect(&self) -> TcpStream {
        let namespace = std::fs::File::open(format!("/proc/{}/ns/net", self.guest.pid())).unwrap();
        let inside = std::thread::spawn(move || {
            use std::os::fd::AsFd;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            // The guest answers on its own socket a moment before this port is open.
            let deadline = Instant::now() + Duration::from_secs(30);
            loop {
                match TcpStream::connect(("127.0.0.1", PORT)) {
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused && Instant::now() < deadline => {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    connected => return connected.unwrap(),
                }
            }
        });
        let stream = inside.join().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    pub(crate) fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        Incoming::send(self.connect(), method, path, headers, body.as_bytes()).into_reply()
    }

    /// Starts a cell.
    pub(crate) fn start(&self, request: &Value) -> Cell {
        let body = request.to_string();
        let incoming = Incoming::send(self.connect(), "POST", "/execute", &[], body.as_bytes());
        if incoming.status != 200 {
            panic!("{}", incoming.into_reply().text());
        }
        Cell { incoming, rest: Vec::new() }
    }

    /// Runs a cell in the default context.
    pub(crate) fn run(&self, code: &str) -> Executed {
        self.start(&json!({"code": code})).finish()
    }

    /// Runs a cell in a context.
    pub(crate) fn run_in(&self, context: &str, code: &str) -> Executed {
        self.start(&json!({"code": code, "context_id": context})).finish()
    }

    /// Creates a context and returns its id.
    pub(crate) fn create(&self, request: &Value) -> String {
        let reply = self.request("POST", "/contexts", &[], &request.to_string());
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()["id"].as_str().unwrap().to_owned()
    }

    pub(crate) fn status(&self) -> Value {
        self.guest.request("GET", "/interpreter", &[("X-Isopod-Control", "1")], b"").json()
    }

    /// The text of a file inside; empty if there is none.
    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/root{path}", self.guest_pid())).unwrap_or_default()
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        std::fs::write(format!("/proc/{}/root{path}", self.guest_pid()), text).unwrap();
    }

    /// How many descriptors the guest has open.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.guest_pid())).unwrap().count()
    }

    /// Kills a process by its pid inside the sandbox.
    pub(crate) fn kill(&self, pid: &str) {
        self.signal(pid, Signal::KILL);
    }

    pub(crate) fn signal(&self, pid: &str, signal: Signal) {
        let found = self.all_processes().into_iter().find(|process| process.inside == pid);
        let pid = found.unwrap_or_else(|| panic!("no process {pid}")).outside;
        rustix::process::kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// The pids inside of processes whose command line contains `text`.
    pub(crate) fn processes(&self, text: &str) -> Vec<String> {
        let all = self.all_processes().into_iter();
        all.filter(|process| process.command.contains(text)).map(|process| process.inside).collect()
    }

    fn all_processes(&self) -> Vec<Process> {
        let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let own = namespace(&self.guest_pid());
        let entries = std::fs::read_dir("/proc").unwrap();
        let pids = entries.filter_map(|entry| entry.unwrap().file_name().into_string().ok());
        pids.filter(|pid| pid.parse::<i32>().is_ok() && namespace(pid) == own)
            .filter_map(|pid| Process::read(&pid))
            .collect()
    }
}

struct Process {
    outside: i32,
    inside: String,
    command: String,
}

impl Process {
    fn read(pid: &str) -> Option<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?.replace('\0', " ");
        let inside = numbers.split_whitespace().next_back()?.to_owned();
        Some(Self { outside: pid.parse().ok()?, inside, command })
    }
}

/// A running cell.
pub(crate) struct Cell {
    incoming: Incoming,
    rest: Vec<u8>,
}

impl Cell {
    /// The next event. `None` at the end of the body.
    pub(crate) fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(at) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=at).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let mut buffer = vec![0; 256 << 10];
            match self.incoming.read(&mut buffer) {
                0 => {
                    assert!(self.rest.is_empty(), "a line is cut: {}", String::from_utf8_lossy(&self.rest));
                    return None;
                }
                n => self.rest.extend_from_slice(&buffer[..n]),
            }
        }
    }

    /// Waits for a line on standard output. Returns all that was printed until then: a line may come in parts.
    pub(crate) fn printed(&mut self) -> String {
        let mut printed = String::new();
        while !printed.contains('\n') {
            let event = self.next().expect("the cell ended");
            if event["type"] == "stdout" {
                printed.push_str(event["text"].as_str().unwrap());
            }
        }
        printed
    }

    pub(crate) fn finish(mut self) -> Executed {
        let mut executed = Executed::default();
        while let Some(event) = self.next() {
            assert!(!executed.ended, "something after the end: {event}");
            executed.take(event);
        }
        assert!(executed.ended, "no end: {:?}", executed.events);
        executed
    }
}

/// The events of a cell.
#[derive(Debug, Default)]
pub(crate) struct Executed {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) results: Vec<Value>,
    pub(crate) error: Option<Value>,
    /// The types of all events. Output also has its text; what one stream gives without another event in between is one.
    pub(crate) events: Vec<String>,
    pub(crate) ended: bool,
}

impl Executed {
    fn take(&mut self, event: Value) {
        let kind = event["type"].as_str().unwrap().to_owned();
        let text = || event["text"].as_str().unwrap();
        match kind.as_str() {
            "stdout" | "stderr" => {
                assert!(event["timestamp"].as_str().unwrap().ends_with('Z'));
                let sink = if kind == "stdout" { &mut self.stdout } else { &mut self.stderr };
                sink.push_str(text());
                return self.take_output(&kind, text());
            }
            "result" => self.results.push(event.clone()),
            "error" => self.error = Some(event.clone()),
            "end_of_execution" => self.ended = true,
            _ => {}
        }
        self.events.push(kind);
    }

    fn take_output(&mut self, stream: &str, text: &str) {
        match self.events.last_mut() {
            Some(last) if last.starts_with(&format!("{stream}:")) => last.push_str(text),
            _ => self.events.push(format!("{stream}:{text}")),
        }
    }

    /// The text of the value.
    pub(crate) fn value(&self) -> &str {
        let main = self.results.iter().find(|result| result["is_main_result"] == true);
        main.and_then(|result| result["text"].as_str()).unwrap_or_else(|| panic!("no value: {self:?}"))
    }

    /// The name and value of the error.
    pub(crate) fn failure(&self) -> (&str, &str) {
        let error = self.error.as_ref().unwrap_or_else(|| panic!("no error: {self:?}"));
        assert!(error["traceback"].is_string());
        (error["name"].as_str().unwrap(), error["value"].as_str().unwrap())
    }
}
