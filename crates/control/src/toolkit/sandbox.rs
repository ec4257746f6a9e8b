//! The sandbox of an execution: found, looked after, replaced when it is gone or too old, and told about.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::errors::ToolError;
use super::tool::Toolkit;
use crate::clock::Timestamp;
use crate::lifecycle::{Inside, NetworkSettings, NewSandbox, SESSION_KEY, Sandbox};
use crate::store::ExecutionClaim;
use crate::workspace::{EXECUTION_KEY, Workspace};

/// A sandbox that answered a moment ago.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) inside: Inside,
    /// The one that the last call had, if it was another.
    pub(super) restarted_from: Option<String>,
}

/// A guest that has not said that it is well by then is not.
const HEALTH_PATIENCE: Duration = Duration::from_secs(5);
/// What a call may take beyond its own limit.
const LEEWAY: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UrlArguments {
    #[serde(default = "default_port")]
    port: u16,
}

fn default_port() -> u16 {
    8000
}

impl Toolkit {
    /// The sandbox, healthy and with time enough for something that takes so long.
    pub(super) async fn hold(&self, needed: Duration) -> Result<Held, ToolError> {
        let last = self.app.fleet.store.toolkit_sandbox(&self.execution).await?;
        if !self.config.auto_reinitialize && last.is_some() && self.live().await?.is_none() {
            return Err(ToolError::Gone);
        }
        self.end_if_old().await?;
        let lease = self.config.timeout().max(if needed.is_zero() { needed } else { needed + LEEWAY });
        let (sandbox, inside) = self.ensure_healthy(lease).await?;
        // It may have been removed, and taken by another team, while its sandbox was being made.
        if self.app.fleet.store.claim_execution(&self.team, &self.execution).await? != ExecutionClaim::Ours {
            sandbox.kill().await?;
            return Err(ToolError::Gone);
        }
        let id = sandbox.id();
        let restarted_from = last.filter(|last| last != id.as_str());
        self.app.fleet.store.set_toolkit_sandbox(&self.execution, id).await?;
        Ok(Held { sandbox, inside, restarted_from })
    }

    /// Says what the sandbox is, and made it if need be.
    pub(crate) async fn start(&self) -> Result<Value, ToolError> {
        let held = self.hold(Duration::ZERO).await?;
        Ok(json!({
            "sandbox_id": held.sandbox.id(),
            "restarted": held.restarted_from.is_some(),
            "old_sandbox_id": held.restarted_from,
        }))
    }

    pub(super) async fn restart(&self) -> Result<Value, ToolError> {
        let last = self.app.fleet.store.toolkit_sandbox(&self.execution).await?;
        if let Some(live) = self.live().await? {
            live.kill().await?;
        }
        let (sandbox, _) = self.ensure_healthy(self.config.timeout()).await?;
        self.app.fleet.store.set_toolkit_sandbox(&self.execution, sandbox.id()).await?;
        Ok(json!({
            "success": true,
            "ok": true,
            "message": "Sandbox restarted",
            "old_sandbox_id": last,
            "new_sandbox_id": sandbox.id(),
        }))
    }

    /// Ends the sandbox, if there is one. Says whether there was.
    pub(crate) async fn end(&self) -> Result<bool, ToolError> {
        match self.live().await? {
            Some(live) => {
                live.kill().await?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Never what is in anybody's environment: the health of the workspace instead (S4.38).
    pub(super) async fn status(&self) -> Result<Value, ToolError> {
        let last = self.app.fleet.store.toolkit_sandbox(&self.execution).await?;
        let live = self.live().await?;
        let mut status = json!({
            "success": true,
            "ok": true,
            "timeout": self.config.timeout,
            "max_lifetime_hours": self.config.max_lifetime_hours,
            "template": self.config.template,
            "storage": self.storage_health().await,
        });
        let (word, id) = match (&live, last) {
            (Some(live), _) if live.view().life.is_some() => ("running", Some(live.id().to_string())),
            (Some(live), _) => ("stopped", Some(live.id().to_string())),
            (None, Some(last)) => ("stopped", Some(last)),
            (None, None) => ("no_sandbox", None),
        };
        status["status"] = json!(word);
        match id {
            Some(id) => status["sandbox_id"] = json!(id),
            None => status["message"] = json!("No sandbox created yet"),
        }
        if let Some(live) = live {
            let up = live.view().row.started_at.until(Timestamp::now()).as_secs_f64();
            status["uptime_seconds"] = json!((up * 10.0).round() / 10.0);
            status["uptime_hours"] = json!((up / 36.0).round() / 100.0);
        }
        Ok(status)
    }

    pub(super) async fn url(&self, arguments: UrlArguments) -> Result<Value, ToolError> {
        if arguments.port == 0 {
            return Err(ToolError::Arguments("port must be 1 to 65535".to_owned()));
        }
        let held = self.hold(Duration::ZERO).await?;
        let host = format!("{}-{}.{}", arguments.port, held.sandbox.id(), self.app.domain_text);
        Ok(json!({
            "success": true,
            "ok": true,
            "url": host,
            "port": arguments.port,
            "sandbox_id": held.sandbox.id(),
            "restarted": held.restarted_from.is_some(),
        }))
    }

    async fn storage_health(&self) -> Value {
        let (Some(files), Some(_)) = (&self.app.files, self.workspace()) else {
            return json!({ "configured": false });
        };
        let found = match files.files(self.execution.clone()).await {
            Ok(files) => crate::files::blocking(move || files.ensure().map(|_| files.root_path())).await,
            Err(error) => Err(error),
        };
        match found {
            Ok(path) => json!({ "configured": true, "healthy": true, "path": path }),
            Err(error) => {
                tracing::warn!(error = crate::chain(&error), "the workspace is not healthy");
                json!({ "configured": true, "healthy": false })
            }
        }
    }

    async fn live(&self) -> Result<Option<Arc<Sandbox>>, ToolError> {
        let row = self.app.fleet.store.find_session(&self.team, &self.session_key()).await?;
        Ok(row.and_then(|row| self.app.fleet.find(&row.id)))
    }

    /// Before the platform would end it in the middle of something.
    async fn end_if_old(&self) -> Result<(), ToolError> {
        let Some(live) = self.live().await? else { return Ok(()) };
        if live.view().row.created_at.until(Timestamp::now()) >= self.config.max_lifetime() {
            live.kill().await?;
        }
        Ok(())
    }

    async fn ensure_healthy(&self, lease: Duration) -> Result<(Arc<Sandbox>, Inside), ToolError> {
        let first = self.get_or_create(lease).await?;
        if let Some(inside) = self.inside_if_healthy(&first).await {
            return Ok((first, inside));
        }
        if !self.config.auto_reinitialize {
            return Err(ToolError::Gone);
        }
        // It is of no use to anybody, so nobody loses anything by its end.
        let _ = first.kill().await;
        let second = self.get_or_create(lease).await?;
        match self.inside_if_healthy(&second).await {
            Some(inside) => Ok((second, inside)),
            None => Err(ToolError::Stopped),
        }
    }

    async fn inside_if_healthy(&self, sandbox: &Sandbox) -> Option<Inside> {
        let inside = sandbox.view().inside(&self.app.fleet.node)?;
        let answer = tokio::time::timeout(HEALTH_PATIENCE, inside.guest.health()).await;
        matches!(answer, Ok(Ok(()))).then_some(inside)
    }

    async fn get_or_create(&self, lease: Duration) -> Result<Arc<Sandbox>, ToolError> {
        let fleet = &self.app.fleet;
        let key = self.session_key();
        let id = self.execution.to_string();
        let metadata = [(SESSION_KEY.to_owned(), key.clone()), (EXECUTION_KEY.to_owned(), id)];
        let wanted = NewSandbox {
            team: self.team.clone(),
            template: self.app.catalogue.usable(&self.team, &self.config.template).await?,
            timeout: lease.min(fleet.max_lifetime()),
            auto_pause: false,
            auto_pause_memory: true,
            auto_resume: false,
            secure: true,
            allow_internet: None,
            network: NetworkSettings::default(),
            metadata: BTreeMap::from(metadata),
            env: BTreeMap::new(),
            session_key: Some(key.clone()),
            idempotency_key: None,
            mounts: self.workspace().map(|it| it.execution_mount(self.execution.as_str())).into_iter().collect(),
            volume_mounts: Vec::new(),
        };
        Ok(fleet.get_or_create(key, wanted).await?)
    }

    /// The one that was asked for; without it the tools work without storage (S4.20).
    fn workspace(&self) -> Option<&Workspace> {
        self.app.workspace.as_ref().filter(|workspace| workspace.reads_metadata())
    }

    fn session_key(&self) -> String {
        format!("toolkit:{}", self.execution)
    }
}
