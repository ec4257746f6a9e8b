//! Finds the sandbox that a request names. Sandboxes of other teams do not exist for the caller.

use std::sync::Arc;

use isopod_api::{ApiError, Caller};
use isopod_store::Resource;
use isopod_wire::SandboxId;

use crate::lifecycle::{Fleet, Sandbox};

/// Returns the caller's live sandbox with this id.
pub(super) async fn live_sandbox(fleet: &Fleet, caller: &Caller, id: &str) -> Result<Arc<Sandbox>, ApiError> {
    let not_found = || ApiError::sandbox_not_found(id);
    let parsed = parse_id(id).ok_or_else(not_found)?;
    let found = fleet.find_of(&caller.team, &parsed);
    // A sandbox that is being removed no longer exists for its clients.
    if let Some(found) = found.filter(|sandbox| sandbox.view().row.state.shown().is_some()) {
        return Ok(found);
    }
    fleet.store.check_here(Resource::Sandbox(&parsed, Some(&caller.team))).await?;
    Err(not_found())
}

/// Returns the id of a sandbox that the caller has or had.
pub(super) async fn known_sandbox(fleet: &Fleet, caller: &Caller, id: &str) -> Result<SandboxId, ApiError> {
    let not_found = || ApiError::sandbox_not_found(id);
    let parsed = parse_id(id).ok_or_else(not_found)?;
    if fleet.find_of(&caller.team, &parsed).is_some() {
        return Ok(parsed);
    }
    let row = fleet.store.find_sandbox(&caller.team, &parsed).await?;
    row.map(|row| row.id).ok_or_else(not_found)
}

/// Old SDKs append a client id after a dash.
fn parse_id(text: &str) -> Option<SandboxId> {
    text.split('-').next()?.parse().ok()
}
