//! Creates a sandbox for a client that has no other way to find it. If the client hangs up before it has the whole
//! response, the sandbox is removed.

use std::sync::Arc;

use isopod_api::{Receipt, until_answered};

use crate::lifecycle::{CreateRefusal, Fleet, NewSandbox, Sandbox};

pub(crate) async fn create_acknowledged(
    fleet: &Arc<Fleet>,
    wanted: NewSandbox,
) -> Result<(Arc<Sandbox>, Receipt), CreateRefusal> {
    // While its template is being built, only a place is taken: a client that hangs up then leaves nothing.
    let reservation = fleet.reserve_and_wait(&wanted).await?;
    let fleet = Arc::clone(fleet);
    let making = async move { fleet.create_reserved(wanted, reservation).await };
    let made = until_answered(making, |sandbox| async move { remove(&sandbox).await }).await;
    made.unwrap_or(Err(CreateRefusal::Aborted))
}

/// Removes a sandbox whose client cannot know it.
pub(super) async fn remove(sandbox: &Sandbox) {
    tracing::info!(sandbox = %sandbox.id(), "the client hung up before it got the response; removing the sandbox");
    if let Err(error) = sandbox.kill().await {
        tracing::warn!(sandbox = %sandbox.id(), error = isopod_wire::error_chain(&error), "could not remove a sandbox whose client hung up");
    }
}
