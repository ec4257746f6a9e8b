//! Writes the files of a fragment, one after the other: when this returns, all are there.

use isopod_store::service::{Record, ServiceSandbox};

use super::{FragmentFile, Step};
use crate::pause::live_sandbox;
use crate::{Service, ServiceError};

impl Service {
    pub(super) async fn write_fragment_files(
        &self,
        row: &ServiceSandbox,
        files: &[FragmentFile],
    ) -> Result<(), ServiceError> {
        let sandbox = live_sandbox(row)?;
        for FragmentFile { path, contents } in files {
            let written = self.backend.write_file(&sandbox, path, None, contents.clone().into()).await;
            if let Err(error) = written {
                return Err(named(path, self.explain(row, error).await.in_step(Step::Write)));
            }
            let bytes_in = i64::try_from(contents.len()).unwrap_or(i64::MAX);
            self.recorder.note(Record::Bytes { sandbox: sandbox.to_string(), bytes_in, bytes_out: 0 }).await;
        }
        Ok(())
    }
}

/// Says which file could not be written.
fn named(path: &str, error: ServiceError) -> ServiceError {
    match error {
        ServiceError::StepFailed(mut failed) => {
            failed.message = format!("could not write {path:?}: {}", failed.message);
            ServiceError::StepFailed(failed)
        }
        other => other,
    }
}
