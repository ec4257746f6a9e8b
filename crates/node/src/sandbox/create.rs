//! Giving a sandbox to an owner.

use std::collections::BTreeMap;
use std::sync::Arc;

use isopod_wire::node::{CreateError, Incarnation, NodeState, SandboxSpec, TEAM_LABEL};
use serde::Serialize;

use super::{Fleet, Life, Processes, Sandbox};
use crate::admission::why_full;
use crate::blank::{Blank, MakeError};
use crate::guest_request;
use crate::kind::Kind;
use crate::node::random_execution_id;
use crate::start::CREATE_PATIENCE;
use crate::template::Template;

/// What the guest is told. The names are those of E2B's daemon.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Introduction<'a> {
    env_vars: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    access_token: Option<&'a str>,
    default_user: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    default_workdir: Option<&'a str>,
}

const DEFAULT_USER: &str = "user";

impl Fleet {
    pub(crate) async fn create(self: &Arc<Self>, spec: SandboxSpec) -> Result<Incarnation, CreateError> {
        self.check(&spec)?;
        let team = spec.labels.get(TEAM_LABEL).map_or("", String::as_str);
        let kind = self.kind(&spec.template, team).await?;
        let created = self.take_and_hand_over(Arc::clone(&kind), spec).await;
        kind.pool.refill();
        created
    }

    /// As [`Fleet::create`], on a template that has no name yet, and without its start command: for builds.
    pub(crate) async fn create_on(
        self: &Arc<Self>,
        template: Arc<Template>,
        spec: SandboxSpec,
    ) -> Result<Incarnation, CreateError> {
        self.check(&spec)?;
        if let Some(reason) = why_full(&self.workshop.host) {
            return Err(CreateError::Full(reason));
        }
        let fleet = Arc::clone(self);
        let wanted = spec.clone();
        let made = tokio::task::spawn_blocking(move || fleet.make_on(&template, &wanted, None)).await;
        let blank = made.map_err(failed)?.map_err(full_or_failed)?;
        self.hand_over(blank, spec).await
    }

    async fn take_and_hand_over(
        self: &Arc<Self>,
        kind: Arc<Kind>,
        spec: SandboxSpec,
    ) -> Result<Incarnation, CreateError> {
        let fleet = Arc::clone(self);
        let wanted = spec.clone();
        let made = tokio::task::spawn_blocking(move || fleet.take_or_make(&kind, &wanted)).await;
        let blank = made.map_err(failed)??;
        self.hand_over(blank, spec).await
    }

    fn check(&self, spec: &SandboxSpec) -> Result<(), CreateError> {
        spec.limits.check().map_err(|error| CreateError::Limits(error.to_string()))?;
        if let (Some(_), Some(reason)) = (spec.limits.disk, self.workshop.host.disk.no_limit()) {
            return Err(CreateError::Limits(format!("the disk cannot be limited on this host: {reason}")));
        }
        crate::workspace::check(&spec.mounts).map_err(|error| CreateError::Mounts(error.to_string()))?;
        if self.sandboxes().contains_key(&spec.sandbox) {
            return Err(CreateError::Exists(spec.sandbox.clone()));
        }
        Ok(())
    }

    /// The quickest way to a sandbox of this kind, with its limits set.
    fn take_or_make(&self, kind: &Kind, spec: &SandboxSpec) -> Result<Blank, CreateError> {
        if let Some(reason) = why_full(&self.workshop.host) {
            return Err(CreateError::Full(reason));
        }
        let blank = match kind.pool.take_ready(kind.template().generation(), &spec.limits) {
            Some(blank) => Ok(blank),
            None => {
                let _waiting = kind.pool.wait();
                self.make(kind, spec)
            }
        };
        let blank = blank.map_err(full_or_failed)?;
        match self.equip(&blank, spec) {
            Ok(()) => Ok(blank),
            Err(error) => {
                self.workshop.discard_blank(blank);
                Err(full_or_failed(error))
            }
        }
    }

    fn make(&self, kind: &Kind, spec: &SandboxSpec) -> Result<Blank, MakeError> {
        let template = kind.template();
        let prepared = match kind.pool.take_prepared(template.generation()) {
            Some(prepared) => prepared,
            None => self.workshop.prepare(random_execution_id(), &template, &spec.limits, None)?,
        };
        let blank = self.workshop.launch(prepared, &spec.limits)?;
        self.workshop.bring_up(&blank, CREATE_PATIENCE);
        Ok(blank)
    }

    /// Everything that depends on the owner and not on the guest.
    pub(super) fn equip(&self, blank: &Blank, spec: &SandboxSpec) -> Result<(), MakeError> {
        self.set_disk_and_network(blank, spec)?;
        Ok(self.workshop.mount_workspace(&blank.record, &spec.mounts, false)?)
    }

    fn set_disk_and_network(&self, blank: &Blank, spec: &SandboxSpec) -> Result<(), MakeError> {
        let host = &self.workshop.host;
        if let (Some(limit), Some(area)) = (spec.limits.disk, &blank.record.area) {
            host.disk.set_limit(area, Some(limit))?;
        }
        host.network.set_policy(crate::network::Slot(blank.slot.0), &spec.network)?;
        Ok(())
    }

    /// Introduces the owner to the guest and enters the sandbox into the list.
    async fn hand_over(self: &Arc<Self>, blank: Blank, spec: SandboxSpec) -> Result<Incarnation, CreateError> {
        let incarnation = Incarnation { sandbox: spec.sandbox.clone(), execution: blank.record.execution.clone() };
        match self.introduce(&blank, &spec).await {
            Ok(()) => self.enter(blank, spec, incarnation),
            Err(error) => {
                self.discard(blank).await;
                Err(failed(error))
            }
        }
    }

    /// Tells the guest for whom it works.
    pub(super) async fn introduce(&self, blank: &Blank, spec: &SandboxSpec) -> std::io::Result<()> {
        let own = [("E2B_SANDBOX", "true"), ("E2B_SANDBOX_ID", spec.sandbox.as_str())];
        let built = blank.template.manifest().map(|manifest| &manifest.template);
        let mut given = self.workshop.environment_for(blank.template.is_on_host());
        given.extend(built.map(|built| built.env.clone()).unwrap_or_default());
        given.extend(spec.env.clone());
        let mut env_vars: BTreeMap<&str, &str> =
            given.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        env_vars.extend(own);
        // Whoever knows the template by another id has said so.
        env_vars.entry("E2B_TEMPLATE_ID").or_insert(&spec.template);
        let introduction = Introduction {
            env_vars,
            access_token: spec.access_token.as_ref().map(|secret| secret.0.as_str()),
            default_user: built.map_or(DEFAULT_USER, |built| &built.user),
            default_workdir: built.map(|built| built.workdir.as_str()),
        };
        let directory = std::fs::File::open(&blank.directory)?;
        guest_request::post(&directory, "/init", &introduction).await
    }

    fn enter(
        self: &Arc<Self>,
        blank: Blank,
        spec: SandboxSpec,
        incarnation: Incarnation,
    ) -> Result<Incarnation, CreateError> {
        let directory = blank.directory.clone();
        let (processes, mut record) = Processes::of(blank).map_err(failed)?;
        record.spec = Some(spec);
        record.state = NodeState::Running;
        record.save(&directory).map_err(failed)?;
        let pidfd = Arc::clone(&processes.pidfd);
        let life = tokio::sync::Mutex::new(Life { record, processes: Some(processes), ending: false });
        let sandbox = Arc::new(Sandbox { incarnation: incarnation.clone(), directory, life });
        self.sandboxes().insert(incarnation.sandbox.clone(), Arc::clone(&sandbox));
        self.watch(sandbox, pidfd);
        Ok(incarnation)
    }

    pub(super) async fn discard(&self, blank: Blank) {
        let workshop = Arc::clone(&self.workshop);
        // A panic in there leaves a record without owner, which the next sweep removes.
        let _ = tokio::task::spawn_blocking(move || workshop.discard_blank(blank)).await;
    }
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> CreateError {
    CreateError::Failed(error.into())
}

fn full_or_failed(error: MakeError) -> CreateError {
    match error {
        MakeError::Slot(crate::slot::SlotError::None) => CreateError::Full(error.to_string()),
        other => failed(other),
    }
}
