//! Builds a template's layer: its recipe runs in a sandbox of the base, and the changed files are committed as a layer.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use isopod_disk::DiskError;
use isopod_guest_client::guest::{Event, GuestError, OutputLines, OutputTail, StartProcess};
use isopod_image::unpack::Quota;
use isopod_isolation::cgroup::SandboxCgroup;
use isopod_wire::node::{CreateError, Incarnation, NodeError, PauseMode, SandboxSpec};
use isopod_wire::{Bytes, KernelFeatures, Limits, NetworkPolicy, SandboxId};

use super::Sandboxes;
use crate::boot::ProcessIdentity;
use crate::guest_request;
use crate::template::{
    BASE, CommitError, Existing, Layer, Part, Recipe, RecipeLayers, STEP, Step, Template, commit_area, layer_bounds,
    read_progress, remove_layer,
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
    #[error("could not reach its sandbox: {0}")]
    Directory(#[source] std::io::Error),
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

/// A layer of a recipe that is to be built.
#[derive(Debug)]
pub(crate) struct WantedLayer<'a> {
    pub(crate) recipe: &'a Recipe,
    pub(crate) part: Part,
    pub(crate) id: &'a str,
    /// The layer that this one is on top of.
    pub(crate) below: Option<&'a Arc<Layer>>,
}

impl Sandboxes {
    /// Runs a part of a recipe and commits its changes as a layer.
    pub(crate) async fn build_layer(
        self: &Arc<Self>,
        wanted: &WantedLayer<'_>,
        existing: Existing,
        on_step: impl Fn(Step),
    ) -> Result<Layer, BuildError> {
        let below = wanted.below.cloned().into_iter().collect();
        let template = Template::for_recipe(&self.template_pools.base().template(), below);
        let incarnation = self.create_on(template, spec()).await?;
        let built = self.run_and_commit(wanted, existing, &incarnation, on_step).await;
        if let Err(error) = self.kill(&incarnation).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "could not remove the sandbox of a build");
        }
        built
    }

    /// Builds all layers of a recipe that do not exist, or all of them anew. `on_step` is told the steps of all layers
    /// as steps of one build.
    pub(crate) async fn build_all_layers(
        self: &Arc<Self>,
        recipe: &Recipe,
        layers: &RecipeLayers,
        existing: Existing,
        on_step: impl Fn(Step),
    ) -> Result<(), BuildError> {
        let earlier = Cell::new(0);
        let on_step = |step: Step| {
            let before = earlier.get();
            if step.done == step.total {
                earlier.set(before + step.total);
            }
            on_step(Step { done: before + step.done, total: before + step.total, ..step });
        };
        let core = self.find_or_build_core(recipe, layers, existing, &on_step).await?;
        if let Some(more) = &layers.more {
            let wanted = WantedLayer { recipe, part: Part::More, id: more, below: Some(&core) };
            self.build_layer(&wanted, existing, &on_step).await?;
        }
        Ok(())
    }

    /// A new core makes what was built on top of an earlier one useless.
    pub(crate) async fn find_or_build_core(
        self: &Arc<Self>,
        recipe: &Recipe,
        layers: &RecipeLayers,
        existing: Existing,
        on_step: impl Fn(Step),
    ) -> Result<Arc<Layer>, BuildError> {
        let templates = self.templates_directory();
        if matches!(existing, Existing::Take)
            && let Ok(layer) = Layer::open(&templates, &layers.core)
        {
            return Ok(Arc::new(layer));
        }
        let wanted = WantedLayer { recipe, part: Part::Core, id: &layers.core, below: None };
        let core = self.build_layer(&wanted, existing, on_step).await?;
        if let Some(Err(error)) = layers.more.as_ref().map(|more| remove_layer(&templates, more))
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, template = recipe.name, "could not remove the layer on top of an earlier core");
        }
        Ok(Arc::new(core))
    }

    async fn run_and_commit(
        &self,
        wanted: &WantedLayer<'_>,
        existing: Existing,
        incarnation: &Incarnation,
        on_step: impl Fn(Step),
    ) -> Result<Layer, BuildError> {
        let directory = self.guest_directory(incarnation).ok_or(BuildError::Gone)?;
        let run = run_recipe(wanted, self.state_path(), &directory, on_step);
        tokio::time::timeout(DEADLINE, run).await.map_err(|_| BuildError::TooLong)??;
        self.pause(incarnation, PauseMode::Filesystem).await?;
        let area = incarnation.execution.as_str();
        let area = self.provisioner.host.disk.area(area)?.path().to_owned();
        let templates = self.provisioner.host.state.templates();
        let (id, below) = (wanted.id.to_owned(), wanted.below.map(|layer| layer.id().to_owned()));
        let quota = Quota::new(layer_bounds(None));
        let commit = move || commit_area(&area, &templates, &id, below.as_deref(), existing, &quota);
        Ok(tokio::task::spawn_blocking(commit).await??)
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
        snapshot: None,
    }
}

async fn run_recipe(
    wanted: &WantedLayer<'_>,
    state: &Path,
    directory: &File,
    on_step: impl Fn(Step),
) -> Result<(), BuildError> {
    let guest = guest_request::client(directory).map_err(BuildError::Directory)?.with_user("root");
    for (name, text) in wanted.recipe.texts(state) {
        guest.write_file(&format!("{PLACE}/{name}"), text.as_bytes().to_vec()).await?;
    }
    // Standard error goes to the same stream, so that an error includes everything.
    let line = format!("exec bash {PLACE}/build.sh {} 2>&1", wanted.part.argument());
    let mut process = guest.start(StartProcess::new("/bin/bash").args(["-c"]).arg(line).user("root")).await?;
    let mut output = OutputLines::new(MAX_ERROR_BYTES);
    while let Some(event) = process.next().await? {
        match event {
            Event::Stdout(bytes) | Event::Stderr(bytes) | Event::Pty(bytes) => {
                output.push(&bytes).iter().filter_map(|line| read_progress(line)).for_each(&on_step);
            }
            Event::End(ended) if ended.exit_code == 0 => return Ok(()),
            Event::End(ended) => {
                return Err(BuildError::Recipe { status: ended.exit_code, output: without_steps(&output.tail) });
            }
            Event::Started(_) => {}
        }
    }
    Err(BuildError::Gone)
}

/// The end of an output, without the lines that tell the progress.
fn without_steps(tail: &OutputTail) -> String {
    tail.text().lines().filter(|line| !line.starts_with(STEP)).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_output_without_the_progress() {
        let mut tail = OutputTail::new(MAX_ERROR_BYTES);
        tail.push(b"::step 0/2 Looking\nERROR: no index\n::step 1/2 Going\nERROR: gone\n");
        assert_eq!(without_steps(&tail), "ERROR: no index\nERROR: gone");
    }
}
