//! `POST /checkpoint/release`: the sandbox goes on as if nothing had happened.

use http::StatusCode;

use crate::checkpoint::{Checkpoint, Phase, conflict};
use crate::http::{HttpError, Reply, status_reply};

pub(super) async fn release(checkpoint: &Checkpoint) -> Result<Reply, HttpError> {
    let mut phase = checkpoint.phase.lock().await;
    let Phase::Held(_) = *phase else { return Err(conflict("the sandbox is not held")) };
    *phase = Phase::Running;
    Ok(status_reply(StatusCode::NO_CONTENT))
}
