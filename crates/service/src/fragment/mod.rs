//! Fragments: code that a model wrote, with all that it takes to run it. One call goes through all steps:
//!
//! ```text
//! create ──► write (manifests) ──► install ──► write (code) ──┬──► run    code in the interpreter, to its end
//!    │             │                  │             │         └──► start  an app, until its port opens
//!    └─────────────┴──────────────────┴─────────────┴──► a step fails: the sandbox is removed, the error names the step
//! ```
//!
//! The code is written after the dependencies are installed, because most app servers reload at once when it changes.

mod execute_script;
mod failure;
mod install;
mod run_code;
mod start_app;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use isopod_guest_client::Reservation;
use isopod_guest_client::interpreter::Executed;
use isopod_store::service::ServiceSandbox;

use crate::access::Access;
use crate::backend::Command;
use crate::failed_step::{FailedStep, Step};
use crate::{NewServiceSandbox, Service, ServiceError};
pub(crate) use execute_script::ScriptRun;

/// A checked fragment.
#[derive(Clone, Debug)]
pub(crate) struct Fragment {
    pub(crate) template: String,
    /// For people who look at the list of sandboxes.
    pub(crate) title: Option<String>,
    /// Files that the install commands read.
    pub(crate) manifests: Vec<FragmentFile>,
    /// Shell lines that install dependencies.
    pub(crate) install: Vec<String>,
    pub(crate) files: Vec<FragmentFile>,
    pub(crate) action: FragmentAction,
    /// How long the sandbox lives.
    pub(crate) lifetime: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FragmentFile {
    pub(crate) path: String,
    pub(crate) contents: String,
}

/// What to do when everything is in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FragmentAction {
    /// Run code in the interpreter. `None` means Python.
    RunCode { code: String, language: Option<String> },
    /// Wait until an app listens on this port. The template starts it, or this shell line.
    StartApp { port: u16, start: Option<String> },
}

/// A fragment that runs or has run. Its sandbox lives on.
#[derive(Debug)]
pub(crate) struct FragmentRun {
    pub(crate) row: ServiceSandbox,
    pub(crate) outcome: FragmentOutcome,
}

#[derive(Debug)]
pub(crate) enum FragmentOutcome {
    Executed {
        executed: Executed,
        took: Duration,
        /// For the results, until the reply is sent.
        _memory: Reservation,
    },
    Serving {
        port: u16,
        /// The host name of the port, if it isn't below this server's domain.
        host: Option<String>,
    },
}

impl Service {
    /// Waits until the fragment's sandbox can be created. Nothing is begun until then.
    pub(crate) async fn wait_to_run(&self, access: &Access, fragment: &Fragment) -> Result<(), ServiceError> {
        self.check_commands(fragment)?;
        let waited = self.wait_to_create(access, &sandbox_of(access, fragment)).await;
        waited.map_err(|error| error.in_step(Step::Create))
    }

    /// Creates a sandbox and runs a fragment in it. If a step fails, nothing is left.
    pub(crate) async fn run_fragment(
        self: &Arc<Self>,
        access: &Access,
        fragment: Fragment,
    ) -> Result<FragmentRun, ServiceError> {
        self.check_commands(&fragment)?;
        let created = self.create(access, sandbox_of(access, &fragment)).await;
        let row = created.map_err(|error| error.in_step(Step::Create))?;
        match self.set_up(access, &row, &fragment).await {
            Ok(outcome) => Ok(FragmentRun { row, outcome }),
            Err(error) => {
                self.end_failed(row).await;
                Err(error)
            }
        }
    }

    async fn set_up(
        self: &Arc<Self>,
        access: &Access,
        row: &ServiceSandbox,
        fragment: &Fragment,
    ) -> Result<FragmentOutcome, ServiceError> {
        self.write_fragment_files(row, &fragment.manifests).await?;
        for line in &fragment.install {
            self.install(access, row, line).await?;
        }
        self.write_fragment_files(row, &fragment.files).await?;
        match &fragment.action {
            FragmentAction::RunCode { code, language } => self.run_code(row, code, language.as_deref()).await,
            FragmentAction::StartApp { port, start } => self.start_app(access, row, *port, start.as_deref()).await,
        }
    }

    /// Checks all command lines before anything is created.
    fn check_commands(&self, fragment: &Fragment) -> Result<(), ServiceError> {
        let start = match &fragment.action {
            FragmentAction::StartApp { start: Some(line), .. } => Some(line),
            _ => None,
        };
        for line in fragment.install.iter().chain(start) {
            self.config.policy.check(&Command::shell(line))?;
        }
        Ok(())
    }

    /// The caller gets the error that led here. If this fails too, the sandbox ends by its own timeout.
    async fn end_failed(self: &Arc<Self>, row: ServiceSandbox) {
        let id = row.id.clone();
        if let Err(error) = self.end(row, "fragment_failed").await {
            let error = isopod_wire::error_chain(&error);
            tracing::warn!(sandbox = id, error, "could not end the sandbox of a fragment that failed");
        }
    }
}

/// Labelled as E2B's fragments label theirs. The people and teams in the labels come from the key, never from the
/// request.
fn sandbox_of(access: &Access, fragment: &Fragment) -> NewServiceSandbox {
    let mut metadata = BTreeMap::from([("template".to_owned(), fragment.template.clone())]);
    metadata.extend(fragment.title.clone().map(|title| ("title".to_owned(), title)));
    NewServiceSandbox {
        agent: access.scope.agent().map(str::to_owned),
        template: Some(fragment.template.clone()),
        timeout: Some(fragment.lifetime),
        metadata,
        ..NewServiceSandbox::default()
    }
}
