//! Other programs that start sandboxes: `bwrap`, `runc` and `docker run`, each running `true`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::samples::Samples;

/// A program to compare with.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    kind: Kind,
    pub(crate) samples: Samples,
}

#[derive(Debug)]
enum Kind {
    Bwrap,
    Runc { bundle: tempfile::TempDir },
    Docker,
}

/// Returns those that work on this machine, and why the others do not.
pub(crate) fn find() -> (Vec<Peer>, Vec<String>) {
    let mut peers = Vec::new();
    let mut missing = Vec::new();
    let candidates = [
        ("bwrap --unshare-all", Ok(Kind::Bwrap)),
        ("runc run", runc_bundle(&["/usr/bin/true"]).map(|bundle| Kind::Runc { bundle })),
        ("docker run", Ok(Kind::Docker)),
    ];
    for (name, kind) in candidates {
        let peer = kind.map(|kind| Peer { name, kind, samples: Samples::default() });
        match peer.and_then(|peer| peer.run_once().map(|_| peer)) {
            Ok(peer) => peers.push(peer),
            Err(error) => missing.push(format!("{name}: not available ({error:#})")),
        }
    }
    (peers, missing)
}

impl Peer {
    /// Starts and ends one sandbox.
    pub(crate) fn measure(&mut self) -> anyhow::Result<()> {
        let sample = self.run_once()?;
        self.samples.push(sample);
        Ok(())
    }

    fn run_once(&self) -> anyhow::Result<Duration> {
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let start = Instant::now();
        let output = command.output().context("cannot be started")?;
        let taken = start.elapsed();
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{}", said.lines().next().unwrap_or("failed").trim());
        }
        Ok(taken)
    }

    fn command(&self) -> Command {
        match &self.kind {
            Kind::Bwrap => command("bwrap", &["--unshare-all", "--ro-bind", "/", "/", "true"]),
            Kind::Runc { bundle } => {
                let mut runc = command("runc", &["run", "--bundle"]);
                runc.arg(bundle.path()).arg(format!("isopod-bench-{}", std::process::id()));
                runc
            }
            Kind::Docker => command("docker", &["run", "--rm", "--pull=never", "busybox", "true"]),
        }
    }
}

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Creates a minimal bundle that runs a program: the host's /usr, and a /tmp in memory.
pub(crate) fn runc_bundle(program: &[&str]) -> anyhow::Result<tempfile::TempDir> {
    let bundle = tempfile::Builder::new().prefix("isopod-bench-runc-").tempdir()?;
    let made = command("runc", &["spec"]).current_dir(bundle.path()).status().context("cannot be started")?;
    if !made.success() {
        bail!("runc spec failed");
    }
    let root = bundle.path().join("rootfs");
    fs::create_dir_all(root.join("usr"))?;
    for name in ["bin", "lib", "lib64"] {
        symlink(Path::new("usr").join(name), root.join(name))?;
    }
    let file = bundle.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&file)?)?;
    config["process"]["terminal"] = json!(false);
    config["process"]["args"] = json!(program);
    config["mounts"].as_array_mut().context("the bundle has no mounts")?.extend([
        json!({"destination": "/usr", "type": "bind", "source": "/usr", "options": ["bind", "ro"]}),
        json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}),
    ]);
    fs::write(&file, serde_json::to_vec(&config)?)?;
    Ok(bundle)
}
