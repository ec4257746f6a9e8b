//! Sandboxes of another server: E2B's cloud, a second `isopod serve`, or anything with the same API.
//!
//! Each call is sent once; retries happen in the layer above. A create carries its key in a header, for servers that
//! support it, and in the sandbox's metadata, for all others.

mod error;
mod handles;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use isopod_client::sandbox::{ListSandboxes, SandboxDetail, SandboxInfo, SandboxState};
use isopod_client::{ApiError, Client, GuestError, NewSandbox, Sandbox};
use isopod_guest_client::Reservation;
use isopod_guest_client::interpreter::{Executed, RunCode};
use isopod_wire::SandboxId;

use super::{
    Backend, BackendError, BackendSandbox, BackendState, Command, CommandStream, CreateSpec, Effect, FileBody,
    FileRead, Place, guest_calls,
};
use error::of_api;
use handles::Handles;

/// The limit on one call, and on a transfer that makes no progress.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Another server's sandboxes. Clones share their state.
#[derive(Clone, Debug)]
pub struct RemoteBackend {
    client: Client,
    handles: Arc<Handles>,
}

impl RemoteBackend {
    /// The sandboxes of this client's server and key. Nothing is sent yet.
    pub fn new(client: Client) -> Self {
        Self::with_call_timeout(client, CALL_TIMEOUT)
    }

    /// As [`Self::new`], with another limit on one call.
    pub fn with_call_timeout(client: Client, timeout: Duration) -> Self {
        let client = client.without_retries().with_request_timeout(timeout);
        Self { client, handles: Arc::default() }
    }

    /// A handle with the sandbox's token.
    async fn handle(&self, id: &SandboxId) -> Result<Sandbox, BackendError> {
        if let Some(handle) = self.handles.get(id) {
            return Ok(handle);
        }
        let (handle, detail) = self.client.attach(id).await.map_err(of_api)?;
        check_runs(&detail)?;
        self.handles.keep(handle.clone());
        Ok(handle)
    }

    /// The edge only reports that nothing runs there. The API knows why.
    async fn why_not_running(&self, id: &SandboxId, error: BackendError) -> BackendError {
        self.handles.forget(id);
        match self.client.info(id).await.map(|detail| check_runs(&detail)) {
            Ok(Ok(())) => BackendError::Unavailable {
                message: format!("sandbox {id} does not reply"),
                retry_after: None,
                effect: Effect::None,
                place: Place::Sandbox,
                source: Some(Box::new(error)),
            },
            Ok(Err(paused)) => paused,
            Err(error) => of_api(error),
        }
    }

    /// The result of a call into a sandbox, with a better error if the sandbox is not running.
    async fn explained<T>(&self, id: &SandboxId, done: Result<T, BackendError>) -> Result<T, BackendError> {
        match done {
            Err(error) if says_not_running(&error) => Err(self.why_not_running(id, error).await),
            other => other,
        }
    }
}

#[async_trait]
impl Backend for RemoteBackend {
    fn name(&self) -> &'static str {
        "remote"
    }

    async fn create(&self, spec: &CreateSpec) -> Result<BackendSandbox, BackendError> {
        if spec.limits.is_some() {
            let message = "a remote backend takes the limits from the template; omit limits";
            return Err(BackendError::invalid(message));
        }
        let made = self.client.create(new_sandbox(spec)).await.map_err(of_api)?;
        let id = made.id().clone();
        self.handles.keep(made);
        self.status(&id).await
    }

    async fn status(&self, id: &SandboxId) -> Result<BackendSandbox, BackendError> {
        let detail = self.client.info(id).await.map_err(of_api)?;
        Ok(shown(detail.info))
    }

    async fn list(&self, metadata: &BTreeMap<String, String>) -> Result<Vec<BackendSandbox>, BackendError> {
        let which = ListSandboxes { metadata: metadata.clone(), ..ListSandboxes::default() };
        let found = self.client.list(which).collect().await.map_err(of_api)?;
        Ok(found.into_iter().map(shown).collect())
    }

    async fn start(&self, id: &SandboxId, command: Command) -> Result<CommandStream, BackendError> {
        let handle = self.handle(id).await?;
        self.explained(id, guest_calls::start(handle.guest(), command).await).await
    }

    async fn run_code(
        &self,
        id: &SandboxId,
        code: RunCode,
        memory: &mut Reservation,
    ) -> Result<Executed, BackendError> {
        let handle = self.handle(id).await?;
        self.explained(id, guest_calls::run_code(handle.interpreter(), code, memory).await).await
    }

    async fn host(&self, id: &SandboxId, port: u16) -> Result<Option<String>, BackendError> {
        Ok(Some(self.handle(id).await?.host(port)))
    }

    async fn write_file(
        &self,
        id: &SandboxId,
        path: &str,
        user: Option<&str>,
        contents: FileBody,
    ) -> Result<(), BackendError> {
        let handle = self.handle(id).await?;
        self.explained(id, guest_calls::write_file(handle.guest().clone(), path, user, contents).await).await
    }

    async fn read_file(&self, id: &SandboxId, path: &str, user: Option<&str>) -> Result<FileRead, BackendError> {
        let handle = self.handle(id).await?;
        self.explained(id, guest_calls::read_file(handle.guest().clone(), path, user).await).await
    }

    async fn pause(&self, id: &SandboxId) -> Result<(), BackendError> {
        if self.client.pause(id, true).await.map_err(of_api)? {
            return Ok(());
        }
        // A conflict: it is already paused, or it is changing its state.
        match self.status(id).await?.state {
            BackendState::Paused => Ok(()),
            BackendState::Running => Err(error::busy(format!("sandbox {id} is changing its state"))),
        }
    }

    async fn resume(&self, id: &SandboxId, timeout: Duration) -> Result<BackendSandbox, BackendError> {
        let handle = self.client.connect(id, Some(timeout)).await.map_err(of_api)?;
        self.handles.keep(handle);
        self.status(id).await
    }

    async fn set_timeout(&self, id: &SandboxId, timeout: Duration) -> Result<(), BackendError> {
        match self.client.set_timeout(id, timeout).await {
            // E2B's API does not find a paused sandbox here.
            Err(missing @ ApiError::NotFound { .. }) => {
                let detail = self.client.info(id).await.map_err(of_api)?;
                Err(check_runs(&detail).err().unwrap_or_else(|| of_api(missing)))
            }
            other => other.map_err(of_api),
        }
    }

    async fn destroy(&self, id: &SandboxId) -> Result<bool, BackendError> {
        self.handles.forget(id);
        self.client.kill(id).await.map_err(of_api)
    }
}

fn new_sandbox(spec: &CreateSpec) -> NewSandbox {
    NewSandbox {
        timeout: Some(spec.timeout),
        auto_pause: spec.auto_pause,
        allow_internet_access: spec.allow_internet,
        metadata: spec.labelled_metadata(),
        envs: spec.env.clone(),
        idempotency_key: Some(spec.key.to_string()),
        ..NewSandbox::new(&spec.template)
    }
}

fn says_not_running(error: &BackendError) -> bool {
    let BackendError::Unavailable { source: Some(source), .. } = error else { return false };
    matches!(source.downcast_ref(), Some(GuestError::SandboxNotRunning { .. }))
}

/// Traffic resumes a paused sandbox only if it was created that way.
fn check_runs(detail: &SandboxDetail) -> Result<(), BackendError> {
    let wakes = detail.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.auto_resume);
    match detail.info.state {
        SandboxState::Paused if !wakes => Err(BackendError::conflict("the sandbox is paused; resume it first")),
        _ => Ok(()),
    }
}

fn shown(info: SandboxInfo) -> BackendSandbox {
    BackendSandbox {
        id: info.id,
        template: info.alias.unwrap_or(info.template_id),
        state: match info.state {
            SandboxState::Paused => BackendState::Paused,
            _ => BackendState::Running,
        },
        started_at: SystemTime::from(info.started_at),
        ends_at: SystemTime::from(info.end_at),
        metadata: info.metadata,
    }
}
