//! `isopod serve` of a test, found by the lines that it prints for people to paste.

#![allow(dead_code, reason = "each test that includes this uses a part of it")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use isopod_client::sandbox::{Client, ClientConfig};
use isopod_testkit::{Finished, Isopod, StateDir};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

pub(crate) struct Served {
    child: Child,
    isopod: Isopod,
    /// Kept open: a server whose reader is gone would be another case.
    output: BufReader<ChildStdout>,
    pub(crate) lines: Vec<String>,
    errors: tempfile::NamedTempFile,
}

impl Served {
    pub(crate) fn start(state: &StateDir, options: &[&str]) -> Self {
        let arguments = [&["serve", "--pool-ready", "1", "--pool-prepared", "1"], options].concat();
        Self::start_command(state, state.isopod().command(&arguments))
    }

    pub(crate) fn start_command(state: &StateDir, mut command: Command) -> Self {
        let errors = tempfile::NamedTempFile::new().unwrap();
        let log = errors.reopen().unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = Vec::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        for line in output.by_ref().lines() {
            lines.push(line.unwrap());
            // The last of the lines to paste.
            if lines.last().unwrap().contains("E2B_VOLUME_API_URL=") {
                break;
            }
        }
        let served = Self { child, isopod: state.isopod(), output, lines, errors };
        assert!(served.lines.len() >= 3, "the server did not start: {:?} {}", served.lines, served.log());
        served
    }

    /// Reads on until a line with these words, which is the last of `lines` then.
    pub(crate) fn read_until(&mut self, words: &str) {
        while !self.lines.last().is_some_and(|line| line.contains(words)) {
            let mut line = String::new();
            let length = self.output.read_line(&mut line).unwrap();
            assert_ne!(length, 0, "the server ended: {:?} {}", self.lines, self.log());
            self.lines.push(line.trim_end().to_owned());
        }
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.errors.path()).unwrap_or_default()
    }

    /// What a line gives to paste.
    pub(crate) fn export(&self, name: &str) -> &str {
        let found = self.lines.iter().find_map(|line| line.trim().strip_prefix(&format!("export {name}=")));
        found.unwrap_or_else(|| panic!("{name} is not in {:?}", self.lines))
    }

    /// Makes verbs use the key of an earlier server, because only the first start shows one.
    pub(crate) fn use_key(&mut self, key: &str) {
        self.lines.insert(1, format!("export E2B_API_KEY={key}"));
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn address(&self) -> &str {
        self.export("E2B_API_URL").split_once("://").unwrap().1
    }

    pub(crate) fn port(&self) -> &str {
        self.address().rsplit_once(':').unwrap().1
    }

    /// The Rust client, with what the lines give to paste.
    pub(crate) fn client(&self) -> Client {
        let config = ClientConfig {
            api_url: self.export("E2B_API_URL").to_owned(),
            api_key: self.export("E2B_API_KEY").to_owned(),
            sandbox_url: Some(self.export("E2B_SANDBOX_URL").to_owned()),
            ..ClientConfig::default()
        };
        Client::new(config).unwrap()
    }

    /// A verb, with the settings of this server in the environment.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.isopod.command(arguments);
        for name in ["E2B_API_KEY", "E2B_API_URL", "E2B_SANDBOX_URL"] {
            command.env(name, self.export(name));
        }
        command.env_remove("E2B_DOMAIN").env_remove("ISOPOD_CA_FILE");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Finished {
        self.command(arguments).output().unwrap().into()
    }

    /// An id that a test made.
    pub(crate) fn create(&self, options: &[&str]) -> String {
        self.run(&[&["create", "--detach"], options].concat()).ok().trim().to_owned()
    }

    /// As a person would stop it.
    pub(crate) fn stop(self) {
        self.stop_and_read();
    }

    /// As [`Served::stop`]; returns what it said in the end.
    pub(crate) fn stop_and_read(mut self) -> String {
        self.end()
    }

    /// As [`Served::stop`]; returns all that it has logged.
    pub(crate) fn stop_and_read_log(mut self) -> String {
        self.end();
        self.log()
    }

    fn end(&mut self) -> String {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success());
        said
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // A test that failed before it stopped the server.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program of the host.
pub(crate) fn host(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
