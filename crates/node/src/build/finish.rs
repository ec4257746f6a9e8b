//! Finishes a build: tries the start command once and writes the manifest.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use isopod_wire::Bytes;
use isopod_wire::build::BuiltTemplate;

use super::Build;
use super::build_sandbox::BuildSandbox;
use super::stack::{Settings, Stack};
use super::step_error::{StepError, chain};
use crate::start::{START_TIMEOUT, bring_up, set_up_without_owner};
use crate::template::{Manifest, Template};

/// A start command that is ready in the build's sandbox.
struct Started {
    template: Arc<Template>,
    took: Duration,
}

impl Build<'_> {
    pub(super) async fn finish(&mut self, stack: Stack, settings: Settings) -> Result<BuiltTemplate, StepError> {
        // The sandbox of the last step must not interfere.
        self.close().await;
        let template = BuiltTemplate {
            id: String::new(),
            layers: stack.layers.iter().map(|layer| layer.id().to_owned()).collect(),
            env: settings.env,
            user: settings.user,
            workdir: settings.workdir,
            start_cmd: self.spec.start_cmd.clone().filter(|command| !command.trim().is_empty()),
            ready_cmd: self.spec.ready_cmd.clone().filter(|command| !command.trim().is_empty()),
            limits: self.spec.limits,
            size: Bytes(stack.bytes),
            made_at: SystemTime::now(),
        };
        let manifest = Manifest::new(
            template,
            stack.on_host,
            stack.has_interpreter,
            stack.chain.clone(),
            settings.onbuild,
            settings.container,
        );
        let manifest = manifest.built_by(self.spec.cache_scope.clone(), stack.has_others_layers);
        let started = self.try_start(&manifest, &stack).await?;
        // Layers were written through the page cache. A template that is reported as ready must survive a power
        // failure.
        let templates = self.sandboxes.templates_directory();
        let saved = self.work.run(move || {
            if let Ok(earlier) = Manifest::load(&templates, &manifest.template.id) {
                return Ok(earlier);
            }
            let directory = std::fs::File::open(&templates);
            let synced = directory.and_then(|directory| Ok(rustix::fs::syncfs(&directory)?));
            synced.map_err(|error| StepError::internal("write the layers to disk", error))?;
            manifest.save(&templates).map_err(|error| StepError::internal("save the template", error))
        });
        let built = saved.await?.template;
        self.save_start(started).await;
        // Do not log its id: clients know their templates by other ids, and a log may be shown to anyone.
        self.log.info("the template is ready").await;
        Ok(built)
    }

    /// Runs the start command once. If it fails, it is better to learn that now than at every create.
    async fn try_start(&mut self, manifest: &Manifest, stack: &Stack) -> Result<Option<Started>, StepError> {
        let wanted = &manifest.template;
        if wanted.start_cmd.is_none() && wanted.ready_cmd.is_none() {
            return Ok(None);
        }
        if let Some(command) = &wanted.start_cmd {
            self.log.info(format!("starting {command}")).await;
        }
        let base = self.sandboxes.template_pools.base().template();
        let template = Template::built(&base, manifest.clone(), &self.sandboxes.templates_directory());
        let template = template.map_err(|error| StepError::internal("open the template", error))?;
        let opened = Arc::clone(&template);
        let sandbox =
            BuildSandbox::on_template(self.sandboxes, opened, stack.chain.clone(), self.limits, &self.work).await?;
        let environment = self.sandboxes.provisioner.environment_for(manifest.on_host);
        let began = Instant::now();
        let up = async {
            // What it sees belongs to no sandbox in particular, because it may be saved.
            set_up_without_owner(sandbox.directory(), wanted).await?;
            bring_up(&sandbox.guest, sandbox.init(), wanted, &environment, START_TIMEOUT).await
        };
        let up = up.await;
        self.sandbox = Some(sandbox);
        match up {
            Ok(()) => {
                self.log.info("it is ready").await;
                Ok(Some(Started { template, took: began.elapsed() }))
            }
            Err(error) => Err(StepError::step(chain(&error))),
        }
    }

    /// Saves the sandbox in which the start command runs, so that the template's sandboxes start from there. A template
    /// without it is complete too.
    async fn save_start(&mut self, started: Option<Started>) {
        let (Some(Started { template, took }), Some(sandbox)) = (started, &self.sandbox) else { return };
        match self.sandboxes.make_start_image(sandbox.incarnation(), &template, took).await {
            Ok(Some(outcome)) => self.log.info(outcome.to_string()).await,
            Ok(None) => {}
            Err(error) => self.log.info(format!("sandboxes will run the start command: {}", chain(&error))).await,
        }
    }
}
