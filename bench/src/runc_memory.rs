//! `runc checkpoint` and `runc restore` of the program whose memory we save too, with our CRIU.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::peers::runc_bundle;
use crate::samples::Samples;

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// What runc took.
#[derive(Debug, Default)]
pub(crate) struct RuncMemory {
    pub(crate) checkpoint: Samples,
    pub(crate) restore: Samples,
}

/// A container, and where its state and its images are.
struct Container {
    directory: tempfile::TempDir,
    bundle: tempfile::TempDir,
    search_path: OsString,
}

/// Measures a program of this text with these megabytes. The error says why runc can't do it here.
pub(crate) fn measure(criu: &Path, program: &str, megabytes: u32, calls: usize) -> anyhow::Result<RuncMemory> {
    let container = Container::start(criu, program, megabytes)?;
    let mut measured = RuncMemory::default();
    for _ in 0..calls {
        measured.checkpoint.push(container.checkpoint()?);
        measured.restore.push(container.restore()?);
    }
    Ok(measured)
}

impl Container {
    const ID: &str = "holder";

    fn start(criu: &Path, program: &str, megabytes: u32) -> anyhow::Result<Self> {
        let bundle = runc_bundle(&["/usr/bin/python3", "-c", program, &megabytes.to_string()])?;
        let directory = tempfile::Builder::new().prefix("isopod-bench-runc-").tempdir()?;
        let programs = directory.path().join("programs");
        fs::create_dir(&programs)?;
        // runc takes the first one of this name.
        symlink(criu, programs.join("criu"))?;
        let rest = std::env::var_os("PATH").unwrap_or_default();
        let search_path = std::env::join_paths(std::iter::once(programs).chain(std::env::split_paths(&rest)))?;
        let container = Self { directory, bundle, search_path };
        run(container.runc("run").arg("--detach").arg("--bundle").arg(container.bundle.path()).arg(Self::ID))?;
        container.wait_until_it_counts()?;
        Ok(container)
    }

    fn runc(&self, verb: &str) -> Command {
        let mut command = Command::new("runc");
        command.arg("--root").arg(self.directory.path().join("state")).arg(verb).env("PATH", &self.search_path);
        command
    }

    fn memory_command(&self, verb: &str) -> Command {
        let mut command = self.runc(verb);
        command.arg("--image-path").arg(self.images()).arg("--work-path").arg(self.directory.path().join("work"));
        command
    }

    fn images(&self) -> PathBuf {
        self.directory.path().join("images")
    }

    fn checkpoint(&self) -> anyhow::Result<Duration> {
        if self.images().exists() {
            fs::remove_dir_all(self.images())?;
        }
        run(self.memory_command("checkpoint").arg(Self::ID))
    }

    fn restore(&self) -> anyhow::Result<Duration> {
        let taken =
            run(self.memory_command("restore").arg("--detach").arg("--bundle").arg(self.bundle.path()).arg(Self::ID))?;
        self.wait_until_it_counts()?;
        Ok(taken)
    }

    fn wait_until_it_counts(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        let mut exec = self.runc("exec");
        exec.args([Self::ID, "/usr/bin/test", "-e", "/tmp/longest"]).stderr(Stdio::null());
        while !exec.status()?.success() {
            if Instant::now() > deadline {
                bail!("its program did not start");
            }
        }
        Ok(())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = run(self.runc("delete").arg("--force").arg(Self::ID));
    }
}

/// The container's program gets these files, and CRIU restores only those that it finds in the container.
fn run(command: &mut Command) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let status = status.context("runc cannot be started")?;
    if status.success() { Ok(start.elapsed()) } else { bail!("{command:?} ended with {status}") }
}
