//! The start images of a node: makes them, keeps those that are worth it, and gives them to the pools.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use isopod_wire::NetworkPolicy;
use isopod_wire::node::{CreateError, Incarnation, NodeError, SnapshotKind};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Sandboxes;
use super::build_recipe::build_spec;
use super::snapshot::Snapshot;
use crate::generation_name::GenerationName;
use crate::guest_request;
use crate::provision::{Plan, ProvisionError, Provisioner};
use crate::record::{Record, random_execution_id};
use crate::start::{START_TIMEOUT, StartError, bring_up, set_up_without_owner};
use crate::start_image::{StartImage, has_something_to_start};
use crate::template::{Manifest, ManifestError, Template};
use crate::template_pool::{Entry, TemplatePool};

/// How long to wait for the interpreter, and how often to check.
const INTERPRETER_DEADLINE: Duration = Duration::from_secs(60);
const INTERPRETER_POLL: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct StartImages {
    is_enabled: bool,
    by_template: Mutex<HashMap<String, Arc<StartImage>>>,
    /// The generations for which one is being made, or was not worth it.
    tried: Mutex<HashSet<String>>,
    /// What is being started in the background, by template.
    making: Mutex<HashMap<String, Making>>,
    tasks: TaskTracker,
    /// Cancelled when the node closes.
    closing: CancellationToken,
}

/// The making of an image, in a sandbox of its own.
#[derive(Clone, Debug, Default)]
struct Making {
    task: TaskTracker,
    /// Ends the wait for the start command.
    cancel: CancellationToken,
}

impl StartImages {
    pub(super) fn new(is_enabled: bool) -> Self {
        let (by_template, tried, making, tasks, closing) = Default::default();
        Self { is_enabled, by_template, tried, making, tasks, closing }
    }

    /// Begins no more, and does not wait for start commands.
    pub(super) fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
    }

    /// Waits for those that are being saved.
    pub(super) async fn wait(&self) {
        self.tasks.wait().await;
    }

    fn table(&self) -> MutexGuard<'_, HashMap<String, Arc<StartImage>>> {
        self.by_template.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, template: &str) -> Option<Arc<StartImage>> {
        self.table().get(template).cloned()
    }

    /// Returns the image that it replaces.
    fn add(&self, image: Arc<StartImage>) -> Option<Arc<StartImage>> {
        self.table().insert(image.record.template.clone(), image)
    }

    fn begin(&self, template: &str) -> Making {
        let making = Making { task: TaskTracker::new(), cancel: self.closing.child_token() };
        self.making.lock().unwrap_or_else(PoisonError::into_inner).insert(template.to_owned(), making.clone());
        making
    }

    /// Ends the making of an image, whose sandbox uses the template.
    pub(super) async fn cancel(&self, template: &str) {
        let making = self.making.lock().unwrap_or_else(PoisonError::into_inner).remove(template);
        if let Some(Making { task, cancel }) = making {
            cancel.cancel();
            task.close();
            task.wait().await;
        }
    }

    /// Whether the caller is the first to try this generation.
    fn try_once(&self, generation: &str) -> bool {
        self.tried().insert(generation.to_owned())
    }

    fn tried(&self) -> MutexGuard<'_, HashSet<String>> {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why there is no start image.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartImageError {
    #[error("could not create a sandbox")]
    Create(#[from] CreateError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("could not save the memory")]
    Save(#[source] NodeError),
    #[error("could not start from it")]
    Trial(#[source] ProvisionError),
    #[error("could not read it")]
    Read(#[from] std::io::Error),
    #[error("it ended unexpectedly")]
    Gone,
}

/// What was found when a start image was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartImageOutcome {
    /// How long starting everything took.
    started_in: Duration,
    /// How long a sandbox takes to start from the image.
    restored_in: Duration,
}

impl StartImageOutcome {
    fn is_worth_it(self) -> bool {
        self.restored_in < self.started_in
    }
}

impl fmt::Display for StartImageOutcome {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (started, restored) = (self.started_in.as_millis(), self.restored_in.as_millis());
        match self.is_worth_it() {
            true => write!(text, "sandboxes start from its saved memory: {restored} ms instead of {started} ms"),
            false => write!(text, "sandboxes start it: {started} ms, and {restored} ms from its saved memory"),
        }
    }
}

impl Sandboxes {
    /// Keeps the image of an earlier process if it can still be used.
    pub(super) async fn keep_start_image(&self, record: Record, directory: &Path) {
        let current = self.template_of(&record).is_ok_and(|template| self.is_current(&record, &template));
        let opened = match self.criu.get() {
            Ok(criu) if current && self.start_images.is_enabled => {
                StartImage::open(criu, record.clone(), directory).ok()
            }
            _ => None,
        };
        match opened {
            Some(image) => drop(self.start_images.add(Arc::new(image))),
            None => self.discard_snapshot(record).await,
        }
    }

    /// Whether neither the template nor what its processes were started with has changed.
    fn is_current(&self, record: &Record, template: &Template) -> bool {
        let base = self.template_pools.base().template();
        let is_same_base = !template.is_on_host() || template.has_base_of(&base);
        let conditions = self.provisioner.start_conditions(template.is_on_host()).ok();
        is_same_base && record.generation == template.generation() && record.start_image == conditions
    }

    /// Lets a pool start its sandboxes from an image. If there is none, makes one in the background.
    pub(super) fn use_start_image(self: &Arc<Self>, template_pool: &TemplatePool) {
        let template = template_pool.template();
        match self.start_images.get(&template.name).filter(|image| !image.is_bad()) {
            Some(image) if self.is_current(&image.record, &template) => {
                template_pool.pool.set_image(template.generation(), image);
            }
            _ => self.make_start_image_later(template),
        }
    }

    fn makes_start_images(&self, template: &Template) -> bool {
        self.start_images.is_enabled && self.criu.is_usable() && has_something_to_start(template)
    }

    /// Makes the image of a template that has none, once.
    pub(crate) fn make_start_image_later(self: &Arc<Self>, template: Arc<Template>) {
        if !self.makes_start_images(&template) || !self.start_images.try_once(template.generation()) {
            return;
        }
        let (sandboxes, making) = (Arc::clone(self), self.start_images.begin(&template.name));
        let cancel = making.cancel;
        self.start_images.tasks.spawn(making.task.track_future(async move {
            if cancel.is_cancelled() {
                return;
            }
            match sandboxes.start_and_save(&template, &cancel).await {
                Ok(Some(outcome)) => tracing::info!(template = template.name, "{outcome}"),
                Ok(None) => {}
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, template = template.name, "a template has no start image");
                }
            }
        }));
    }

    /// Starts everything in a sandbox of its own.
    async fn start_and_save(
        self: &Arc<Self>,
        template: &Arc<Template>,
        cancel: &CancellationToken,
    ) -> Result<Option<StartImageOutcome>, StartImageError> {
        let Some(manifest) = template.manifest() else { return Ok(None) };
        let spec = build_spec(manifest.template.limits, NetworkPolicy::default(), Default::default());
        let incarnation = self.create_on(Arc::clone(template), spec).await?;
        let made = async {
            let parts = self.parts_of_build(&incarnation).await.ok_or(StartImageError::Gone)?;
            let directory = std::fs::File::open(&parts.directory)?;
            let environment = self.provisioner.environment_for(manifest.on_host);
            set_up_without_owner(&directory, &manifest.template).await?;
            let (guest, began) = (guest_request::client(&directory)?, Instant::now());
            let up = bring_up(&guest, parts.init.pid, &manifest.template, &environment, START_TIMEOUT);
            match cancel.run_until_cancelled(up).await {
                Some(up) => up?,
                None => return Ok(None),
            }
            self.make_start_image(&incarnation, template, began.elapsed()).await
        };
        let made = made.await;
        // It may have ended by itself.
        let _ = self.kill(&incarnation).await;
        made
    }

    /// Makes the image of a template from a sandbox in which its start command is ready, unless starting from it is slower
    /// than the time that starting took. Returns `None` if this node makes none. Whoever calls it may go away: then it still
    /// ends as it should.
    pub(crate) async fn make_start_image(
        self: &Arc<Self>,
        incarnation: &Incarnation,
        template: &Arc<Template>,
        started_in: Duration,
    ) -> Result<Option<StartImageOutcome>, StartImageError> {
        let (sandboxes, incarnation, template) = (Arc::clone(self), incarnation.clone(), Arc::clone(template));
        let saving = async move { sandboxes.save_and_try(&incarnation, &template, started_in).await };
        self.start_images.tasks.spawn(saving).await.map_err(|_| StartImageError::Gone)?
    }

    async fn save_and_try(
        &self,
        incarnation: &Incarnation,
        template: &Arc<Template>,
        started_in: Duration,
    ) -> Result<Option<StartImageOutcome>, StartImageError> {
        let Ok(criu) = self.criu.get() else { return Ok(None) };
        if !self.makes_start_images(template) {
            return Ok(None);
        }
        self.start_images.try_once(template.generation());
        let started_in = started_in + self.start_interpreter(incarnation, template).await?;
        let conditions = self.provisioner.start_conditions(template.is_on_host())?;
        let mark = |record: &mut Record| record.start_image = Some(conditions);
        let copied = self.copy_running(incarnation, SnapshotKind::Memory, mark).await.map_err(StartImageError::Save)?;
        let Snapshot { record, directory, .. } = copied;
        let image = match StartImage::open(criu, record.clone(), &directory) {
            Ok(image) => Arc::new(image),
            Err(error) => {
                self.discard_snapshot(record).await;
                return Err(error.into());
            }
        };
        let (provisioner, tried, on) = (Arc::clone(&self.provisioner), Arc::clone(&image), Arc::clone(template));
        let trial = tokio::task::spawn_blocking(move || try_image(&provisioner, &on, &tried)).await;
        match trial.map_err(|_| StartImageError::Gone)? {
            Ok(restored_in) => {
                let outcome = StartImageOutcome { started_in, restored_in };
                match outcome.is_worth_it() {
                    true => self.keep_new_image(template, image).await,
                    false => self.discard_start_image(image).await,
                }
                Ok(Some(outcome))
            }
            Err(error) => {
                self.discard_start_image(image).await;
                Err(StartImageError::Trial(error))
            }
        }
    }

    /// Starts the interpreter, if the template has one, and returns how long that took. Without Python, there is none.
    async fn start_interpreter(
        &self,
        incarnation: &Incarnation,
        template: &Template,
    ) -> Result<Duration, StartImageError> {
        let began = Instant::now();
        if template.interpreter().is_none() {
            return Ok(Duration::ZERO);
        }
        let parts = self.parts_of_build(incarnation).await.ok_or(StartImageError::Gone)?;
        let directory = std::fs::File::open(&parts.directory)?;
        guest_request::post(&directory, "/interpreter", &serde_json::json!({})).await?;
        while began.elapsed() < INTERPRETER_DEADLINE && !self.start_images.closing.is_cancelled() {
            if guest_request::is_interpreter_parked(&parts.directory).await? {
                return Ok(began.elapsed());
            }
            tokio::time::sleep(INTERPRETER_POLL).await;
        }
        Ok(Duration::ZERO)
    }

    async fn keep_new_image(&self, template: &Template, image: Arc<StartImage>) {
        if let Some(Entry::Open(template_pool)) = self.template_pools.get(&template.name) {
            template_pool.pool.set_image(template.generation(), Arc::clone(&image));
        }
        if let Some(earlier) = self.start_images.add(image) {
            self.discard_start_image(earlier).await;
        }
        // Whoever removes a template looks here after it is gone.
        if let Err(ManifestError::Missing(_)) = Manifest::load(&self.templates_directory(), &template.name) {
            self.forget_start_image(&template.name).await;
        }
    }

    pub(super) async fn forget_start_image(&self, template: &str) {
        let image = self.start_images.table().remove(template);
        self.start_images.tried().retain(|generation| GenerationName::parse(generation).top != Some(template));
        if let Some(image) = image {
            self.discard_start_image(image).await;
        }
    }

    async fn discard_start_image(&self, image: Arc<StartImage>) {
        let provisioner = Arc::clone(&self.provisioner);
        // A panic leaves a record, which the next start finds.
        let _ = tokio::task::spawn_blocking(move || provisioner.remove_start_image(&image)).await;
    }
}

/// Starts a sandbox from the image and removes it. Returns how long the start took.
fn try_image(
    provisioner: &Provisioner,
    template: &Arc<Template>,
    image: &Arc<StartImage>,
) -> Result<Duration, ProvisionError> {
    let limits = image.record.limits;
    let began = Instant::now();
    let plan = Plan { image: Some(image), ..Plan::new(template, &limits) };
    let ready = provisioner.launch(provisioner.prepare(random_execution_id(), plan)?, &limits)?;
    let restored = provisioner.restore_start_image(&ready, image);
    let took = began.elapsed();
    provisioner.discard_ready(ready);
    restored.map(|()| took)
}
