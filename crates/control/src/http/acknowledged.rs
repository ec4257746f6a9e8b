//! Creates a sandbox for a client that has nothing else to find it by: if the client hangs up before it has the whole answer,
//! the sandbox is removed.

use std::sync::Arc;

use isopod_api::{Receipt, until_answered};

use crate::lifecycle::{CreateRefusal, Fleet, NewSandbox, Sandbox};

pub(crate) async fn make_for_answer(
    fleet: &Arc<Fleet>,
    wanted: NewSandbox,
) -> Result<(Arc<Sandbox>, Receipt), CreateRefusal> {
    let fleet = Arc::clone(fleet);
    let making = async move { fleet.create(wanted).await };
    let made = until_answered(making, |sandbox| async move { remove(&sandbox).await }).await;
    made.unwrap_or(Err(CreateRefusal::Aborted))
}

async fn remove(sandbox: &Sandbox) {
    tracing::info!(sandbox = %sandbox.id(), "its client hung up before it was told of it: removed");
    if let Err(error) = sandbox.kill().await {
        tracing::warn!(sandbox = %sandbox.id(), error = isopod_wire::error_chain(&error), "nobody knows of it, and it is not gone");
    }
}
