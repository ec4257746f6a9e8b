//! Runs the code of a fragment in the sandbox's interpreter.

use std::time::Instant;

use isopod_guest_client::interpreter::RunCode;
use isopod_store::service::{Record, ServiceSandbox};

use super::{FailedStep, FragmentOutcome, Step};
use crate::backend::BackendError;
use crate::pause::live_sandbox;
use crate::{Service, ServiceError};

impl Service {
    pub(super) async fn run_code(
        &self,
        row: &ServiceSandbox,
        code: &str,
        language: Option<&str>,
    ) -> Result<FragmentOutcome, ServiceError> {
        let sandbox = live_sandbox(row)?;
        let limit = self.config.command_timeout;
        let mut wanted = RunCode::new(code).timeout(limit);
        wanted.language = language.map(str::to_owned);
        let mut memory = self.fleet.memory.of(&row.team).reserve();
        let started = Instant::now();
        let executed = match self.backend.run_code(&sandbox, wanted, &mut memory).await {
            Ok(executed) => executed,
            Err(BackendError::Timeout { .. }) => {
                let message = format!("the code took longer than {} s", limit.as_secs());
                return Err(ServiceError::StepFailed(Box::new(FailedStep::new(Step::Run, message).timed_out())));
            }
            Err(error) => return Err(self.explain(row, error).await.in_step(Step::Run)),
        };
        let bytes_out = i64::try_from(executed.stdout.len() + executed.stderr.len()).unwrap_or(i64::MAX);
        self.recorder.note(Record::Bytes { sandbox: sandbox.to_string(), bytes_in: 0, bytes_out }).await;
        Ok(FragmentOutcome::Executed { executed, took: started.elapsed(), _memory: memory })
    }
}
