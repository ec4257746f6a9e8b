//! Runs a script in a sandbox of its own, which ends with it.

use std::sync::Arc;
use std::time::Duration;

use isopod_control::lifecycle::sample_now;
use isopod_store::service::ServiceSandbox;

use super::{Fragment, FragmentOutcome, FragmentRun};
use crate::access::Access;
use crate::{Service, ServiceError};

/// A script that has run.
#[derive(Debug)]
pub(crate) struct ScriptRun {
    pub(crate) run: FragmentRun,
    /// The sandbox's memory at the end of the script. `None` if it is not on this server.
    pub(crate) memory_bytes: Option<i64>,
}

impl ScriptRun {
    pub(crate) fn took(&self) -> Duration {
        match &self.run.outcome {
            FragmentOutcome::Executed { took, .. } => *took,
            FragmentOutcome::Serving { .. } => Duration::ZERO,
        }
    }
}

impl Service {
    /// Runs a script and removes its sandbox, also if the caller goes away.
    pub(crate) async fn execute_script(
        self: &Arc<Self>,
        access: &Access,
        script: Fragment,
    ) -> Result<ScriptRun, ServiceError> {
        let (service, access) = (Arc::clone(self), access.clone());
        let running = tokio::spawn(async move {
            let run = service.run_fragment(&access, script).await?;
            let memory_bytes = service.memory_of(&run.row).await;
            service.end(run.row.clone(), "script_ended").await?;
            Ok(ScriptRun { run, memory_bytes })
        });
        running.await.unwrap_or(Err(ServiceError::Aborted))
    }

    async fn memory_of(&self, row: &ServiceSandbox) -> Option<i64> {
        let sandbox = self.fleet.find(row.sandbox.as_ref()?)?;
        Some(sample_now(&self.fleet, &sandbox).await?.mem_used)
    }
}
