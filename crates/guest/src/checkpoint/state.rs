//! `POST /checkpoint/state`: what another guest needs to go on where this one is. All processes are stopped now.

use http::StatusCode;
use isopod_wire::checkpoint::MAX_STATE;
use serde::{Deserialize, Serialize};

use crate::checkpoint::{Checkpoint, Phase, conflict, failed};
use crate::fs::SavedWatcher;
use crate::http::{HttpError, Reply, json_bytes_reply};
use crate::interpreter::SavedContexts;
use crate::logs::SavedBlock;
use crate::process::SavedProcesses;

/// The version that this guest writes. It reads this and all earlier ones; fields that an earlier one did not have need a
/// default.
pub(super) const VERSION: u32 = 1;

/// Everything a guest knows that is not in its processes and files.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct GuestState {
    pub(super) version: u32,
    /// The random part of the name of the root's program.
    pub(super) root: String,
    #[serde(default)]
    pub(super) processes: SavedProcesses,
    #[serde(default)]
    pub(super) contexts: SavedContexts,
    #[serde(default)]
    pub(super) watchers: Vec<SavedWatcher>,
    #[serde(default)]
    pub(super) log: Vec<SavedBlock>,
}

pub(super) async fn state(checkpoint: &Checkpoint) -> Result<Reply, HttpError> {
    let phase = checkpoint.phase.lock().await;
    let Phase::Held(hold) = &*phase else { return Err(conflict("the sandbox is not held")) };
    let processes = checkpoint.processes.save();
    let state = GuestState {
        version: VERSION,
        root: hold.root.program.suffix.clone(),
        processes: processes.map_err(|error| failed(format!("cannot read what processes have: {error}")))?,
        contexts: checkpoint.interpreter.as_ref().map(|interpreter| interpreter.save()).unwrap_or_default(),
        watchers: checkpoint.watchers.save(),
        log: checkpoint.logs.save(),
    };
    let json = serde_json::to_vec(&state).map_err(|error| failed(format!("cannot write the state: {error}")))?;
    if json.len() > MAX_STATE {
        let message = "the output that clients have not received is too large for a checkpoint (64 MiB)";
        return Err(HttpError::new(StatusCode::INSUFFICIENT_STORAGE, message));
    }
    Ok(json_bytes_reply(json))
}
