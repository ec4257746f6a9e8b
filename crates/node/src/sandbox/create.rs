//! Assigns a sandbox to an owner.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use isopod_wire::node::{CreateError, Incarnation, NodeState, SandboxSpec};
use rustix::io::Errno;
use serde::Serialize;

use super::watch::blockable_exit;
use super::{Inner, Processes, Sandbox, Sandboxes};
use crate::admission::why_full;
use crate::guest_request;
use crate::provision::{Plan, ProvisionError, ReadySandbox};
use crate::record::random_execution_id;
use crate::start::CREATE_TIMEOUT;
use crate::start_image::StartImage;
use crate::template::Template;
use crate::template_pool::TemplatePool;
use crate::workspace::{Mounting, WorkspaceError};

/// The request that sets up the guest. The names are those of E2B's daemon.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct InitRequest<'a> {
    env_vars: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    access_token: Option<&'a str>,
    default_user: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    default_workdir: Option<&'a str>,
}

const DEFAULT_USER: &str = "user";

impl Sandboxes {
    pub(crate) async fn create(self: &Arc<Self>, spec: SandboxSpec) -> Result<Incarnation, CreateError> {
        self.check(&spec)?;
        if let Some(snapshot) = spec.snapshot.clone() {
            return self.create_from_snapshot(snapshot, spec).await;
        }
        let template_pool = self.template_pool(&spec.template).await?;
        let created = self.take_and_assign(Arc::clone(&template_pool), spec).await;
        template_pool.pool.refill();
        created
    }

    /// As [`Sandboxes::create`], on a template that has no name yet, and without its start command. For builds.
    pub(crate) async fn create_on(
        self: &Arc<Self>,
        template: Arc<Template>,
        spec: SandboxSpec,
    ) -> Result<Incarnation, CreateError> {
        self.check(&spec)?;
        if let Some(reason) = why_full(&self.provisioner.host) {
            return Err(CreateError::Full(reason));
        }
        let sandboxes = Arc::clone(self);
        let wanted = spec.clone();
        let made = tokio::task::spawn_blocking(move || {
            let plan = Plan { features: wanted.features, ..Plan::new(&template, &wanted.limits) };
            sandboxes.make_on(plan, &wanted, Mounting::First)
        })
        .await;
        let ready = made.map_err(failed)?.map_err(full_or_failed)?;
        self.assign(ready, spec).await
    }

    async fn take_and_assign(
        self: &Arc<Self>,
        template_pool: Arc<TemplatePool>,
        spec: SandboxSpec,
    ) -> Result<Incarnation, CreateError> {
        let sandboxes = Arc::clone(self);
        let wanted = spec.clone();
        let made = tokio::task::spawn_blocking(move || sandboxes.take_or_make(&template_pool, &wanted)).await;
        let ready = made.map_err(failed)??;
        self.assign(ready, spec).await
    }

    fn check(&self, spec: &SandboxSpec) -> Result<(), CreateError> {
        spec.limits.check().map_err(|error| CreateError::Limits(error.to_string()))?;
        if let (Some(_), Some(reason)) = (spec.limits.disk, self.provisioner.host.disk.no_limit()) {
            return Err(CreateError::Limits(format!("the disk cannot be limited on this host: {reason}")));
        }
        crate::workspace::check(&spec.mounts).map_err(|error| CreateError::Mounts(error.to_string()))?;
        if self.by_id().contains_key(&spec.sandbox) {
            return Err(CreateError::Exists(spec.sandbox.clone()));
        }
        Ok(())
    }

    /// Takes a sandbox of this template from the pool or creates one, and applies its limits.
    fn take_or_make(&self, template_pool: &TemplatePool, spec: &SandboxSpec) -> Result<ReadySandbox, CreateError> {
        if let Some(reason) = why_full(&self.provisioner.host) {
            return Err(CreateError::Full(reason));
        }
        // Those that wait have the usual filter and devices.
        let pooled = spec
            .features
            .is_none()
            .then(|| template_pool.pool.take_ready(template_pool.template().generation(), &spec.limits));
        let ready = match pooled.flatten() {
            Some(ready) => Ok(ready),
            None => {
                let _waiting = template_pool.pool.wait();
                self.make(template_pool, spec)
            }
        };
        let ready = ready.map_err(full_or_failed)?;
        match self.apply_spec(&ready, spec, Mounting::First) {
            Ok(()) => Ok(ready),
            Err(error) => {
                self.provisioner.discard_ready(ready);
                Err(full_or_failed(error))
            }
        }
    }

    fn make(&self, template_pool: &TemplatePool, spec: &SandboxSpec) -> Result<ReadySandbox, ProvisionError> {
        let template = template_pool.template();
        let ready = match self.launch_prepared(template_pool, &template, spec) {
            Some(ready) => ready,
            None => {
                let image =
                    spec.features.is_none().then(|| template_pool.pool.image(template.generation(), &spec.limits));
                self.launch_new(&template, spec, image.flatten().as_ref())?
            }
        };
        match self.provisioner.start(&ready, CREATE_TIMEOUT) {
            Ok(()) => Ok(ready),
            Err(error) => {
                self.provisioner.discard_ready(ready);
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, template = template.name, "removed a start image; starting without it");
                let ready = self.launch_new(&template, spec, None)?;
                self.provisioner.run_start_command(&ready, CREATE_TIMEOUT);
                Ok(ready)
            }
        }
    }

    fn launch_new(
        &self,
        template: &Arc<Template>,
        spec: &SandboxSpec,
        image: Option<&Arc<StartImage>>,
    ) -> Result<ReadySandbox, ProvisionError> {
        let plan = Plan { features: spec.features, image, ..Plan::new(template, &spec.limits) };
        let prepared = self.provisioner.prepare(random_execution_id(), plan)?;
        self.provisioner.launch(prepared, &spec.limits)
    }

    /// Launches the first of the pool's prepared sandboxes that can be launched. A launcher may have died in the pool.
    fn launch_prepared(
        &self,
        template_pool: &TemplatePool,
        template: &Template,
        spec: &SandboxSpec,
    ) -> Option<ReadySandbox> {
        if !spec.features.is_none() {
            return None;
        }
        while let Some(prepared) = template_pool.pool.take_prepared(template.generation(), &spec.limits) {
            match self.provisioner.launch(prepared, &spec.limits) {
                Ok(ready) => return Some(ready),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "a prepared sandbox could not be launched; trying the next one");
                }
            }
        }
        None
    }

    /// Applies everything that depends on the owner but not on the guest.
    pub(super) fn apply_spec(
        &self,
        ready: &ReadySandbox,
        spec: &SandboxSpec,
        mounting: Mounting,
    ) -> Result<(), ProvisionError> {
        self.set_disk_and_network(ready, spec)?;
        Ok(self.provisioner.mount_workspace(&ready.record, &spec.mounts, mounting)?)
    }

    fn set_disk_and_network(&self, ready: &ReadySandbox, spec: &SandboxSpec) -> Result<(), ProvisionError> {
        let host = &self.provisioner.host;
        if let (Some(limit), Some(area)) = (spec.limits.disk, &ready.record.area) {
            host.disk.set_limit(area, Some(limit))?;
        }
        host.network.set_policy(ready.slot.on_network(), &spec.network)?;
        Ok(())
    }

    /// Passes the owner's settings to the guest and registers the sandbox.
    async fn assign(self: &Arc<Self>, ready: ReadySandbox, spec: SandboxSpec) -> Result<Incarnation, CreateError> {
        let incarnation = Incarnation { sandbox: spec.sandbox.clone(), execution: ready.record.execution.clone() };
        match self.init_guest(&ready, &spec).await {
            Ok(()) => self.enter(ready, spec, incarnation).await,
            Err(error) => {
                self.discard(ready).await;
                Err(failed(error))
            }
        }
    }

    /// Sends the owner's settings to the guest.
    pub(super) async fn init_guest(&self, ready: &ReadySandbox, spec: &SandboxSpec) -> std::io::Result<()> {
        let own = [("E2B_SANDBOX", "true"), ("E2B_SANDBOX_ID", spec.sandbox.as_str())];
        let built = ready.template.manifest().map(|manifest| &manifest.template);
        let mut given = self.provisioner.environment_for(ready.template.is_on_host());
        given.extend(built.map(|built| built.env.clone()).unwrap_or_default());
        given.extend(spec.env.clone());
        let mut env_vars: BTreeMap<&str, &str> =
            given.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        env_vars.extend(own);
        // A caller that knows the template by another id has set it already.
        env_vars.entry("E2B_TEMPLATE_ID").or_insert(&spec.template);
        let request = InitRequest {
            env_vars,
            access_token: spec.access_token.as_ref().map(|secret| secret.0.as_str()),
            default_user: built.map_or(DEFAULT_USER, |built| &built.user),
            default_workdir: built.map(|built| built.workdir.as_str()),
        };
        let directory = File::open(&ready.directory)?;
        guest_request::post(&directory, "/init", &request).await
    }

    pub(super) async fn enter(
        self: &Arc<Self>,
        mut ready: ReadySandbox,
        spec: SandboxSpec,
        incarnation: Incarnation,
    ) -> Result<Incarnation, CreateError> {
        let directory = ready.directory.clone();
        ready.record.spec = Some(spec);
        ready.record.state = NodeState::Running;
        let opened = guest_request::open_socket(&directory);
        let socket = match opened.and_then(|socket| ready.record.save(&directory).map(|()| socket)) {
            Ok(socket) => socket,
            Err(error) => {
                self.discard(ready).await;
                return Err(failed(error));
            }
        };
        let (processes, record) = Processes::of(ready, socket);
        let (pidfd, blockable) = (Arc::clone(&processes.pidfd), blockable_exit(&record));
        let inner = Inner { record, processes: Some(processes), ending: false };
        let sandbox = Sandbox::new(incarnation.clone(), directory, inner);
        self.by_id().insert(incarnation.sandbox.clone(), Arc::clone(&sandbox));
        self.watch(sandbox, pidfd, blockable);
        Ok(incarnation)
    }

    pub(super) async fn discard(&self, ready: ReadySandbox) {
        let provisioner = Arc::clone(&self.provisioner);
        // A panic leaves a record without an owner, which the next sweep removes.
        let _ = tokio::task::spawn_blocking(move || provisioner.discard_ready(ready)).await;
    }
}

pub(super) fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> CreateError {
    let error = error.into();
    match shortage(&*error) {
        Some(reason) => CreateError::Full(reason.to_owned()),
        None => CreateError::Failed(error),
    }
}

/// The resource that the host lacks, if that is why a step failed. A later attempt may succeed.
fn shortage(error: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    let errno = |error: &(dyn std::error::Error + 'static)| {
        let of_io = error.downcast_ref::<std::io::Error>().and_then(Errno::from_io_error);
        of_io.or_else(|| error.downcast_ref::<Errno>().copied())
    };
    std::iter::successors(Some(error), |error| error.source()).find_map(|error| match errno(error)? {
        Errno::MFILE | Errno::NFILE => Some("no file descriptors are left; raise the limit (ulimit -n, LimitNOFILE)"),
        Errno::NOSPC | Errno::DQUOT => Some("no space is left on the state directory's disk"),
        _ => None,
    })
}

pub(super) fn full_or_failed(error: ProvisionError) -> CreateError {
    match error {
        ProvisionError::Slot(crate::slot::SlotError::None) => CreateError::Full(error.to_string()),
        ProvisionError::Workspace(WorkspaceError::Serve { source, subtree }) => {
            tracing::warn!(
                subtree,
                error = &*source.source,
                "could not create a sandbox because its files are not served"
            );
            CreateError::Workspace(source.reason)
        }
        other => failed(other),
    }
}
