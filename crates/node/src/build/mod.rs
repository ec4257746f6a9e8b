//! Builds templates: from the SDK's steps or a Dockerfile to layers and a manifest.
//!
//! ```text
//! base (host, image, template) ── step ── step ── … ── image set up ── start command tried ── manifest
//!                                  └ key of base and instructions ─▶ cached: its layer
//!                                                                └▶ new: run in a sandbox, commit what changed
//! ```
//!
//! Steps run in ordinary sandboxes. Files are copied from outside, by paths that the kernel resolves inside the
//! sandbox's root. A build that fails, is cancelled or times out leaves only the layers of its finished steps.

mod account_files;
mod accounts;
mod add;
mod base;
mod build_sandbox;
mod cache;
mod copy;
mod dockerfile;
mod ensure_user;
mod export;
mod finish;
mod host_base;
mod image;
mod image_setup;
mod log;
mod source;
mod stack;
mod step;
mod step_error;
mod steps;
mod view;
mod work;

use std::sync::Arc;

use isopod_wire::Limits;
use isopod_wire::build::{BuildError, BuildEvent, BuildPhase, BuildSource, BuildSpec, BuiltTemplate};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::images::Images;
use crate::sandbox::Sandboxes;
use build_sandbox::BuildSandbox;
use cache::{BuildLocks, Cache};
use log::Log;
use step_error::StepError;
use work::{Work, until_stopped};

/// State shared by all builds of a node.
#[derive(Debug)]
pub(crate) struct TemplateBuilder {
    images: Images,
    locks: BuildLocks,
}

impl TemplateBuilder {
    pub(crate) fn new(images: Images) -> Self {
        Self { images, locks: BuildLocks::default() }
    }

    /// Builds a template. See [`isopod_wire::node::NodeApi::build_template`].
    pub(crate) async fn build(
        &self,
        sandboxes: &Arc<Sandboxes>,
        spec: BuildSpec,
        events: mpsc::Sender<BuildEvent>,
        cancel: CancellationToken,
    ) -> Result<BuiltTemplate, BuildError> {
        let mut build = Build::new(self, sandboxes, &spec, events);
        let outcome = until_stopped(build.execute(), spec.timeout, &cancel).await;
        build.work.stop();
        build.close().await;
        // The build counts as running until its threads have ended. Otherwise cancelled builds would pile up.
        build.work.end().await;
        match outcome {
            Ok(built) => Ok(built),
            Err(error) => Err(build.explain(error).await),
        }
    }
}

/// A running build.
#[derive(Debug)]
struct Build<'a> {
    shared: &'a TemplateBuilder,
    sandboxes: &'a Arc<Sandboxes>,
    spec: &'a BuildSpec,
    log: Log,
    cache: Cache,
    work: Arc<Work>,
    limits: Limits,
    /// The sandbox for steps, once a step needed one.
    sandbox: Option<BuildSandbox>,
    /// The current file and line, for errors.
    place: Option<(String, u32)>,
    /// Set by the first forced step, because later steps depend on it.
    is_forced: bool,
}

impl<'a> Build<'a> {
    fn new(
        shared: &'a TemplateBuilder,
        sandboxes: &'a Arc<Sandboxes>,
        spec: &'a BuildSpec,
        events: mpsc::Sender<BuildEvent>,
    ) -> Self {
        let templates = sandboxes.templates_directory();
        Self {
            shared,
            sandboxes,
            spec,
            log: Log::new(events),
            cache: Cache::new(&templates),
            work: Arc::new(Work::new(&templates)),
            limits: spec.limits,
            sandbox: None,
            place: None,
            is_forced: spec.force,
        }
    }

    async fn execute(&mut self) -> Result<BuiltTemplate, StepError> {
        self.limits.check().map_err(|error| StepError::invalid(format!("limits: {error}")))?;
        let spec = self.spec;
        let (stack, settings) = match &spec.source {
            BuildSource::Steps { from, steps } => self.build_steps(from, steps).await?,
            BuildSource::Dockerfile(source) => self.build_dockerfile(source).await?,
        };
        self.enter(BuildPhase::Finalize, None);
        self.finish(stack, settings).await
    }

    /// Sets the phase and the line that messages and errors refer to.
    fn enter(&mut self, phase: BuildPhase, place: Option<(String, u32)>) {
        self.log = self.log.at(phase);
        self.place = place;
    }

    async fn explain(&self, error: StepError) -> BuildError {
        let StepError { failure, message } = error;
        let error = BuildError { failure, phase: self.log.phase(), place: self.place.clone(), message };
        self.log.error(error.to_string()).await;
        error
    }

    async fn close(&mut self) {
        if let Some(sandbox) = self.sandbox.take() {
            sandbox.close().await;
        }
    }
}
