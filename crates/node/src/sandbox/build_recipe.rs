//! Builds a template's layer: its recipe runs in a sandbox of the base, and the changed files are committed as a layer.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use isopod_disk::DiskError;
use isopod_guest_client::guest::{Event, GuestError, StartProcess};
use isopod_image::unpack::Quota;
use isopod_isolation::cgroup::SandboxCgroup;
use isopod_wire::node::{CreateError, Incarnation, NodeError, PauseMode, SandboxSpec};
use isopod_wire::{Bytes, KernelFeatures, Limits, NetworkPolicy, SandboxId};

use super::Sandboxes;
use crate::boot::ProcessIdentity;
use crate::guest_request;
use crate::output_tail::OutputTail;
use crate::template::{
    BASE, CommitError, Existing, Layer, Recipe, STEP, Step, commit_area, layer_bounds, read_progress,
};

/// A recipe that takes longer is stopped.
const DEADLINE: Duration = Duration::from_secs(20 * 60);
/// The directory of the recipe's files. It is on a tmpfs, so that they do not become part of the layer.
const PLACE: &str = "/tmp/recipe";
/// Marks the sandbox of a build. Only the process that builds can use it.
const LABEL: &str = "isopod.build";
/// How much of the output an error includes.
const MAX_ERROR_BYTES: usize = 2000;

/// Why a template was not built. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildError {
    #[error("could not start a sandbox for it: {0}")]
    Create(#[from] CreateError),
    #[error("could not talk to its sandbox: {0}")]
    Guest(#[from] GuestError),
    #[error("its recipe failed with status {status}: {output}")]
    Recipe { status: i32, output: String },
    #[error("its recipe took more than {} minutes", DEADLINE.as_secs() / 60)]
    TooLong,
    #[error("could not stop its sandbox: {0}")]
    Stop(#[from] NodeError),
    #[error("could not find its files: {0}")]
    Area(#[from] DiskError),
    #[error("could not commit its files: {0}")]
    Commit(#[from] CommitError),
    #[error("could not commit its files: {0}")]
    Task(#[from] tokio::task::JoinError),
    #[error("its sandbox vanished")]
    Gone,
}

impl Sandboxes {
    /// Runs a recipe and commits its changes as the layer `id`.
    pub(crate) async fn build_layer(
        self: &Arc<Self>,
        recipe: &Recipe,
        id: &str,
        existing: Existing,
        on_step: impl Fn(Step),
    ) -> Result<Layer, BuildError> {
        let incarnation = self.create(spec()).await?;
        let built = self.run_and_commit(recipe, id, existing, &incarnation, on_step).await;
        if let Err(error) = self.kill(&incarnation).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "could not remove the sandbox of a build");
        }
        built
    }

    async fn run_and_commit(
        &self,
        recipe: &Recipe,
        id: &str,
        existing: Existing,
        incarnation: &Incarnation,
        on_step: impl Fn(Step),
    ) -> Result<Layer, BuildError> {
        let directory = self.guest_directory(incarnation).ok_or(BuildError::Gone)?;
        let run = run_recipe(recipe, self.state_path(), &directory, on_step);
        tokio::time::timeout(DEADLINE, run).await.map_err(|_| BuildError::TooLong)??;
        self.pause(incarnation, PauseMode::Filesystem).await?;
        let area = incarnation.execution.as_str();
        let area = self.provisioner.host.disk.area(area)?.path().to_owned();
        let (templates, id) = (self.provisioner.host.state.templates(), id.to_owned());
        let quota = Quota::new(layer_bounds(None));
        Ok(tokio::task::spawn_blocking(move || commit_area(&area, &templates, &id, existing, &quota)).await??)
    }

    /// What a build must know about its sandbox.
    pub(crate) async fn parts_of_build(&self, incarnation: &Incarnation) -> Option<BuildParts> {
        let sandbox = self.find(incarnation)?;
        let inner = sandbox.inner.lock().await;
        let processes = inner.processes.as_ref()?;
        let area = self.provisioner.host.disk.area(inner.record.area.as_deref()?).ok()?;
        Some(BuildParts {
            directory: sandbox.directory.clone(),
            area: area.path().to_owned(),
            cgroup: processes.cgroup.clone(),
            init: inner.record.init.clone()?,
            first_id: processes.slot.first_id(),
        })
    }

    pub(crate) fn state_path(&self) -> &Path {
        self.provisioner.host.state.path()
    }

    pub(crate) fn templates_directory(&self) -> PathBuf {
        self.provisioner.host.state.templates()
    }

    fn guest_directory(&self, incarnation: &Incarnation) -> Option<File> {
        File::open(self.guest_socket(incarnation)?.parent()?).ok()
    }
}

/// The parts of a sandbox that a build uses.
#[derive(Debug)]
pub(crate) struct BuildParts {
    /// The directory of its guest's socket.
    pub(crate) directory: PathBuf,
    /// Its writable layer.
    pub(crate) area: PathBuf,
    pub(crate) cgroup: SandboxCgroup,
    pub(crate) init: ProcessIdentity,
    pub(crate) first_id: u32,
}

/// Whether a sandbox was created for a build.
pub(super) fn is_of_a_build(spec: &SandboxSpec) -> bool {
    spec.labels.contains_key(LABEL)
}

/// Enough resources to build packages, whatever the default limits are.
fn spec() -> SandboxSpec {
    let limits = Limits { memory: Bytes(4 << 30), disk: None, ..Limits::default() };
    build_spec(limits, NetworkPolicy::default(), BTreeMap::new())
}

/// The spec of a sandbox for a build.
pub(crate) fn build_spec(limits: Limits, network: NetworkPolicy, env: BTreeMap<String, String>) -> SandboxSpec {
    let mut bytes = [0; 20];
    getrandom::fill(&mut bytes).expect("the kernel provides random numbers after boot");
    SandboxSpec {
        sandbox: SandboxId::from_random(bytes),
        template: BASE.to_owned(),
        limits,
        network,
        env,
        access_token: None,
        labels: BTreeMap::from([(LABEL.to_owned(), String::new())]),
        mounts: Vec::new(),
        features: KernelFeatures::default(),
    }
}

async fn run_recipe(recipe: &Recipe, state: &Path, directory: &File, on_step: impl Fn(Step)) -> Result<(), BuildError> {
    let guest = guest_request::client(directory).with_user("root");
    for (name, text) in recipe.texts(state) {
        guest.write_file(&format!("{PLACE}/{name}"), text.as_bytes().to_vec()).await?;
    }
    // Standard error goes to the same stream, so that an error includes everything.
    let line = format!("exec bash {PLACE}/build.sh 2>&1");
    let mut process = guest.start(StartProcess::new("/bin/bash").args(["-c"]).arg(line).user("root")).await?;
    let mut output = Tail::default();
    while let Some(event) = process.next().await? {
        match event {
            Event::Stdout(bytes) | Event::Stderr(bytes) | Event::Pty(bytes) => {
                output.push(&bytes).iter().filter_map(|line| read_progress(line)).for_each(&on_step);
            }
            Event::End(ended) if ended.exit_code == 0 => return Ok(()),
            Event::End(ended) => {
                return Err(BuildError::Recipe { status: ended.exit_code, output: output.text() });
            }
            Event::Started(_) => {}
        }
    }
    Err(BuildError::Gone)
}

/// The end of an output, and its lines as they arrive.
#[derive(Debug)]
struct Tail {
    kept: OutputTail,
    line: Vec<u8>,
}

impl Default for Tail {
    fn default() -> Self {
        Self { kept: OutputTail::new(MAX_ERROR_BYTES), line: Vec::new() }
    }
}

impl Tail {
    /// Returns the lines that these bytes complete.
    fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.kept.push(bytes);
        let mut lines = Vec::new();
        for byte in bytes {
            match byte {
                b'\n' => lines.push(String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned()),
                // An endless line is not a progress line.
                _ if self.line.len() < MAX_ERROR_BYTES => self.line.push(*byte),
                _ => {}
            }
        }
        lines
    }

    fn text(&self) -> String {
        let text = self.kept.text();
        text.lines().filter(|line| !line.starts_with(STEP)).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_output_without_the_progress() {
        let mut tail = Tail::default();
        tail.push(b"::step 0/2 Looking\nERROR: no index\n::step 1/2 Going\nERROR: gone\n");
        assert_eq!(tail.text(), "ERROR: no index\nERROR: gone");
    }

    #[test]
    fn a_tail_gives_whole_lines_and_keeps_the_end() {
        let mut tail = Tail::default();
        assert!(tail.push(b"::step 1/2 ").is_empty());
        assert_eq!(tail.push(b"one\ntwo\nthr"), ["::step 1/2 one", "two"]);
        tail.push(&[b'x'; 5000]);
        assert_eq!(tail.text(), "x".repeat(MAX_ERROR_BYTES));
    }
}
