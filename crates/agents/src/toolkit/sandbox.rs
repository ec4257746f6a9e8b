//! What the tools do with the sandbox of their execution: use, restart, end and describe it.

use std::sync::Arc;
use std::time::Duration;

use isopod_control::lifecycle::{GuestConnection, Sandbox};
use isopod_files::workspace::Workspace;
use isopod_guest_client::MemoryBudget;
use isopod_store::clock::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::errors::ToolError;
use super::lease::{Healthy, Lessee};
use super::tool::Toolkit;

/// A sandbox that replied a moment ago.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) inside: GuestConnection,
    /// For the output that its team's calls collect.
    pub(super) memory: MemoryBudget,
    /// The sandbox of the last call, if it was another one.
    pub(super) restarted_from: Option<String>,
}

/// How much longer than its own limit a call may take.
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

/// Which sandbox the tools have.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StartedToolkit {
    sandbox_id: String,
    /// Whether another one was there before, which is gone.
    restarted: bool,
    old_sandbox_id: Option<String>,
}

impl Toolkit {
    /// Gets the sandbox, healthy and with enough time for work of this length.
    pub(super) async fn hold(&self, needed: Duration) -> Result<Held, ToolError> {
        let duration = self.config.timeout().max(if needed.is_zero() { needed } else { needed + LEEWAY });
        self.lease(Lessee { toolkit: self.clone(), duration, replace: false }).await
    }

    async fn lease(&self, lessee: Lessee) -> Result<Held, ToolError> {
        let store = &self.app.fleet.store;
        let last = store.toolkit_sandbox(&self.execution).await?;
        let Healthy { sandbox, inside } = match lessee.find_current().await? {
            Some(healthy) => healthy,
            None => self.app.fleet.leases.hold(lessee).await?.sandbox,
        };
        let restarted_from = last.clone().filter(|last| last != sandbox.id().as_str());
        // Here and not in the lease, which continues without its caller: the change must be recorded by a call that
        // reports it.
        if last.as_deref() != Some(sandbox.id().as_str()) {
            store.set_toolkit_sandbox(&self.execution, sandbox.id()).await?;
        }
        let memory = self.app.fleet.memory.of(&self.team);
        Ok(Held { sandbox, inside, memory, restarted_from })
    }

    /// Says what the sandbox is, and made it if need be.
    pub(crate) async fn start(&self) -> Result<StartedToolkit, ToolError> {
        let held = self.hold(Duration::ZERO).await?;
        Ok(StartedToolkit {
            sandbox_id: held.sandbox.id().to_string(),
            restarted: held.restarted_from.is_some(),
            old_sandbox_id: held.restarted_from,
        })
    }

    pub(super) async fn restart(&self) -> Result<Value, ToolError> {
        let last = self.app.fleet.store.toolkit_sandbox(&self.execution).await?;
        let held = self.lease(Lessee { toolkit: self.clone(), duration: self.config.timeout(), replace: true }).await?;
        Ok(json!({
            "success": true,
            "ok": true,
            "message": "Sandbox restarted",
            "old_sandbox_id": last,
            "new_sandbox_id": held.sandbox.id(),
        }))
    }

    /// Ends the sandbox. Returns whether there was one.
    pub(crate) async fn end(&self) -> Result<bool, ToolError> {
        self.app.fleet.leases.end(Lessee { toolkit: self.clone(), duration: Duration::ZERO, replace: false }).await
    }

    /// Describes the sandbox. Includes the health of the workspace, but never an environment.
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
            Ok(files) => isopod_files::blocking(move || files.ensure().map(|_| files.root_path())).await,
            Err(error) => Err(error),
        };
        match found {
            Ok(path) => json!({ "configured": true, "healthy": true, "path": path }),
            Err(error) => {
                tracing::warn!(error = isopod_wire::error_chain(&error), "the workspace is not healthy");
                json!({ "configured": true, "healthy": false })
            }
        }
    }

    pub(super) async fn live(&self) -> Result<Option<Arc<Sandbox>>, ToolError> {
        let row = self.app.fleet.store.find_session(&self.team, &self.session_key()).await?;
        Ok(row.and_then(|row| self.app.fleet.find(&row.id)))
    }

    /// The workspace, if it is enabled. Without it, the tools work without storage.
    pub(super) fn workspace(&self) -> Option<&Workspace> {
        self.app.workspace.as_ref().filter(|workspace| workspace.reads_metadata())
    }

    pub(super) fn session_key(&self) -> String {
        format!("toolkit:{}", self.execution)
    }
}
