//! `POST /restore/finish`: the processes are there, as the guest's children. From here on they are like its own.

use http::StatusCode;

use crate::checkpoint::restore::Restoration;
use crate::checkpoint::{Checkpoint, Phase, conflict};
use crate::http::{HttpError, Reply, status_reply};

/// `is_copy` means that the source goes on too, `has_log` that its log is this sandbox's own.
pub(super) async fn finish(checkpoint: &Checkpoint, is_copy: bool, has_log: bool) -> Result<Reply, HttpError> {
    let mut phase = checkpoint.phase.lock().await;
    let restoration = match std::mem::take(&mut *phase) {
        Phase::Restoring(restoration) => *restoration,
        other => {
            *phase = other;
            return Err(conflict("the sandbox is not being restored"));
        }
    };
    let Restoration { processes, contexts, watchers, log, .. } = restoration;
    if has_log {
        checkpoint.logs.restore(log);
    }
    checkpoint.processes.finish_restore(processes);
    if let (Some(interpreter), Some(contexts)) = (&checkpoint.interpreter, contexts) {
        interpreter.finish_restore(contexts, is_copy);
    }
    checkpoint.watchers.restore(watchers).await;
    Ok(status_reply(StatusCode::NO_CONTENT))
}
