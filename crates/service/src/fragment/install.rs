//! Installs the dependencies of a fragment.

use std::sync::Arc;

use isopod_store::service::ServiceSandbox;

use super::{FailedStep, Step};
use crate::access::Access;
use crate::backend::Command;
use crate::{Service, ServiceError};

/// Package managers write a lot.
const KEPT_OUTPUT: usize = 1 << 20;

impl Service {
    pub(super) async fn install(
        self: &Arc<Self>,
        access: &Access,
        row: &ServiceSandbox,
        line: &str,
    ) -> Result<(), ServiceError> {
        let mut command = Command::shell(line);
        command.timeout = self.config.command_timeout;
        command.max_output = KEPT_OUTPUT;
        let done = self.run(access, row, command).await.map_err(|error| error.in_step(Step::Install))?;
        let output = &done.output;
        if output.exit_code == 0 {
            return Ok(());
        }
        let message = match output.timed_out {
            true => format!("{line:?} took longer than {} s", self.config.command_timeout.as_secs()),
            false => format!("{line:?} ended with {}", output.status),
        };
        let failed = FailedStep::new(Step::Install, message).with_output(output);
        Err(ServiceError::StepFailed(Box::new(failed)))
    }
}
