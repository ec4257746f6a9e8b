//! Servers and Python environments for measurements through an SDK.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};
use isopod_testkit::StateDir;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

/// A child process that ends with this value.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGTERM, because our server has pooled sandboxes to remove.
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// The directory of the Python programs.
pub(crate) fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python")
}

/// Creates a Python environment with these packages.
pub(crate) fn make_venv(directory: &Path, packages: &[&str]) -> anyhow::Result<PathBuf> {
    run(Command::new("python3").args(["-m", "venv"]).arg(directory))
        .context("could not create a Python environment")?;
    let python = directory.join("bin/python");
    let install = ["-m", "pip", "install", "--quiet"];
    run(Command::new(&python).args(install).args(packages)).context("could not install the SDK")?;
    Ok(python)
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { bail!("it ended with {status}") }
}

/// Starts `isopod serve` on a free port.
pub(crate) fn start_ours(binary: &Path, state: &StateDir, options: &[&str]) -> anyhow::Result<Server> {
    let mut command = Command::new(binary);
    command.arg("--state-dir").arg(state.path());
    command.args(["serve", "--listen", "127.0.0.1:0", "--api-key", KEY]).args(options).env("ISOPOD_LOG", "warn");
    start(command, |line| Some(line.split_once("E2B_API_URL=http://")?.1.trim().to_owned()))
}

/// Starts a server and reads lines until one contains its address.
pub(crate) fn start(mut command: Command, address: impl Fn(&str) -> Option<String>) -> anyhow::Result<Server> {
    let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn()?;
    let stdout = child.stdout.take().context("its output is piped")?;
    let mut server = Server { child, address: String::new() };
    for line in BufReader::new(stdout).lines() {
        if let Some(found) = address(&line?) {
            server.address = found;
            return Ok(server);
        }
    }
    bail!("the server ended without printing its address")
}

/// Runs one of the Python programs against a server, with JSON as input and output.
pub(crate) fn drive<T: DeserializeOwned>(
    python: &Path,
    script: &str,
    orders: &Value,
    address: &str,
) -> anyhow::Result<T> {
    let output = Command::new(python)
        .arg(scripts().join(script))
        .arg(orders.to_string())
        .env("E2B_API_KEY", KEY)
        .env("E2B_API_URL", format!("http://{address}"))
        .env("E2B_SANDBOX_URL", format!("http://{address}"))
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        bail!("the SDK's program ended with {}", output.status);
    }
    serde_json::from_slice(&output.stdout).context("the SDK's program printed no JSON")
}
