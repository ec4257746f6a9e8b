//! Sandboxes of this server's own node, through the same fleet as the E2B API.
//!
//! When a sandbox stops, calls in progress fail at once. Nothing waits for a sandbox that will not reply.

mod create;
mod error;
mod open;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures::{Stream, StreamExt as _, stream};
use isopod_control::lifecycle::{ActError, Fleet, Life, Refusal, Sandbox, View};
use isopod_control::templates::Catalogue;
use isopod_guest_client::interpreter::{Executed, RunCode};
use isopod_guest_client::{Guest, Reservation};
use isopod_store::TeamId;
use isopod_wire::SandboxId;
use isopod_wire::node::{PauseMode, Target};
use tokio_util::sync::CancellationToken;

use super::{
    Backend, BackendError, BackendSandbox, BackendState, Command, CommandStream, CreateSpec, Effect, FileBody,
    FileRead, Place, guest_calls,
};
use error::of_act;
use open::Standalone;

/// This server's own sandboxes.
#[derive(Debug)]
pub struct LocalBackend {
    fleet: Arc<Fleet>,
    catalogue: Arc<Catalogue>,
    /// Set if no server owns the fleet.
    standalone: Option<Standalone>,
}

impl LocalBackend {
    pub(crate) fn new(fleet: Arc<Fleet>, catalogue: Arc<Catalogue>) -> Self {
        Self { fleet, catalogue, standalone: None }
    }

    fn find(&self, id: &SandboxId) -> Result<Arc<Sandbox>, BackendError> {
        self.fleet.find(id).ok_or_else(|| gone(id))
    }

    /// The guest of a running sandbox, and a token that is cancelled when it stops. A paused sandbox is resumed if it
    /// allows that.
    async fn guest(&self, id: &SandboxId) -> Result<(Guest, CancellationToken), BackendError> {
        let (view, life) = self.running(id).await?;
        let inside = life.guest_connection(&self.fleet.node, view.row.access_token.as_ref());
        Ok((inside.guest, life.gate.clone()))
    }

    async fn running(&self, id: &SandboxId) -> Result<(Arc<View>, Arc<Life>), BackendError> {
        let sandbox = self.find(id)?;
        let mut view = sandbox.view();
        if view.life.is_none() {
            sandbox.wake().await.map_err(|error| of_act(id, error))?;
            view = sandbox.view();
        }
        let life = view.life.clone().ok_or_else(|| stopped(id))?;
        Ok((view, life))
    }

    async fn listens(&self, id: &SandboxId, life: &Life, target: Target) -> Result<bool, BackendError> {
        life.is_listening(&self.fleet.node, target).await.map_err(|error| BackendError::Unavailable {
            message: format!("sandbox {id} cannot be reached"),
            retry_after: None,
            effect: Effect::None,
            place: Place::Sandbox,
            source: Some(Box::new(error)),
        })
    }
}

#[async_trait]
impl Backend for LocalBackend {
    fn name(&self) -> &'static str {
        "local"
    }

    async fn create(&self, spec: &CreateSpec) -> Result<BackendSandbox, BackendError> {
        let sandbox = create::create(&self.fleet, &self.catalogue, spec).await?;
        shown(&sandbox.view()).ok_or_else(|| gone(sandbox.id()))
    }

    async fn wait_for_template(&self, team: &TeamId, template: &str) -> Result<(), BackendError> {
        match self.catalogue.usable(team, template).await {
            Ok(template) => self.fleet.wait_for_template(&template).await.map_err(error::of_create),
            Err(_) => Ok(()),
        }
    }

    async fn status(&self, id: &SandboxId) -> Result<BackendSandbox, BackendError> {
        shown(&self.find(id)?.view()).ok_or_else(|| gone(id))
    }

    async fn list(&self, metadata: &BTreeMap<String, String>) -> Result<Vec<BackendSandbox>, BackendError> {
        let has_all =
            |found: &BackendSandbox| metadata.iter().all(|(key, value)| found.metadata.get(key) == Some(value));
        let all = self.fleet.all().into_iter().filter_map(|sandbox| shown(&sandbox.view()));
        Ok(all.filter(has_all).collect())
    }

    async fn start(&self, id: &SandboxId, command: Command) -> Result<CommandStream, BackendError> {
        let (guest, gate) = self.guest(id).await?;
        let events = while_running(id, &gate, guest_calls::start(&guest, command)).await?;
        Ok(CommandStream::new(until_stopped(id, gate, events)))
    }

    async fn run_code(
        &self,
        id: &SandboxId,
        code: RunCode,
        memory: &mut Reservation,
    ) -> Result<Executed, BackendError> {
        let (view, life) = self.running(id).await?;
        if !self.listens(id, &life, Target::Interpreter).await? {
            return Err(BackendError::invalid(NO_INTERPRETER));
        }
        let inside = life.guest_connection(&self.fleet.node, view.row.access_token.as_ref());
        let interpreter = inside.interpreter.with_memory(self.fleet.memory.of(&view.row.team));
        while_running(id, &life.gate, guest_calls::run_code(&interpreter, code, memory)).await
    }

    async fn is_listening(&self, id: &SandboxId, port: u16) -> Result<bool, BackendError> {
        let (_, life) = self.running(id).await?;
        self.listens(id, &life, Target::Port(port)).await
    }

    async fn write_file(
        &self,
        id: &SandboxId,
        path: &str,
        user: Option<&str>,
        contents: FileBody,
    ) -> Result<(), BackendError> {
        let (guest, gate) = self.guest(id).await?;
        while_running(id, &gate, guest_calls::write_file(guest, path, user, contents)).await
    }

    async fn read_file(&self, id: &SandboxId, path: &str, user: Option<&str>) -> Result<FileRead, BackendError> {
        let (guest, gate) = self.guest(id).await?;
        let file = while_running(id, &gate, guest_calls::read_file(guest, path, user)).await?;
        Ok(FileRead { size: file.size, body: until_stopped(id, gate, file.body).boxed() })
    }

    async fn pause(&self, id: &SandboxId) -> Result<(), BackendError> {
        match self.find(id)?.pause(PauseMode::Memory, false).await {
            Err(ActError::Refused(Refusal::AlreadyPaused)) => Ok(()),
            other => other.map_err(|error| of_act(id, error)),
        }
    }

    async fn resume(&self, id: &SandboxId, timeout: Duration) -> Result<BackendSandbox, BackendError> {
        let sandbox = self.find(id)?;
        create::check_timeout(&self.fleet, timeout)?;
        sandbox.connect(timeout, true, None).await.map_err(|error| of_act(id, error))?;
        shown(&sandbox.view()).ok_or_else(|| gone(id))
    }

    async fn set_timeout(&self, id: &SandboxId, timeout: Duration) -> Result<(), BackendError> {
        create::check_timeout(&self.fleet, timeout)?;
        self.find(id)?.set_timeout(timeout).await.map_err(|error| of_act(id, error))
    }

    async fn destroy(&self, id: &SandboxId) -> Result<bool, BackendError> {
        let Some(sandbox) = self.fleet.find(id) else { return Ok(false) };
        match sandbox.kill().await {
            Ok(()) => Ok(true),
            Err(ActError::Refused(Refusal::NotFound)) => Ok(false),
            Err(error) => Err(of_act(id, error)),
        }
    }
}

const NO_INTERPRETER: &str =
    "the template has no code interpreter; use code-interpreter-v1, nodejs or a template built on one of them";

/// Returns `None` while it is being created or removed.
fn shown(view: &View) -> Option<BackendSandbox> {
    let row = &view.row;
    let state = match row.state.shown()? {
        "running" => BackendState::Running,
        _ => BackendState::Paused,
    };
    Some(BackendSandbox {
        id: row.id.clone(),
        template: row.template.clone(),
        state,
        started_at: SystemTime::from(row.started_at),
        ends_at: SystemTime::from(row.ends_at),
        metadata: row.metadata.clone(),
    })
}

fn gone(id: &SandboxId) -> BackendError {
    BackendError::not_found(format!("sandbox {id} does not exist"))
}

fn stopped(id: &SandboxId) -> BackendError {
    BackendError::Unavailable {
        message: format!("sandbox {id} was paused or ended"),
        retry_after: None,
        effect: Effect::Unknown,
        place: Place::Sandbox,
        source: None,
    }
}

/// Does the work, unless the sandbox stops first.
async fn while_running<T>(
    id: &SandboxId,
    gate: &CancellationToken,
    work: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    tokio::select! {
        done = work => done,
        () = gate.cancelled() => Err(stopped(id)),
    }
}

/// The same items, with an error at the end if the sandbox stops.
fn until_stopped<T: Send + 'static>(
    id: &SandboxId,
    gate: CancellationToken,
    items: impl Stream<Item = Result<T, BackendError>> + Send + Unpin + 'static,
) -> impl Stream<Item = Result<T, BackendError>> + Send + 'static {
    stream::unfold(Some((items, gate, id.clone())), |state| async move {
        let (mut items, gate, id) = state?;
        tokio::select! {
            biased;
            item = items.next() => item.map(|item| (item, Some((items, gate, id)))),
            () = gate.cancelled() => Some((Err(stopped(&id)), None)),
        }
    })
}
