//! Executions belong to the team that used their id first.

use std::time::Duration;

use isopod_store::{ExecutionClaim, ExecutionName, Store};

use crate::auth::Caller;
use crate::error::ApiError;

/// Returns an execution that the caller has used before.
pub async fn known_execution(store: &Store, caller: &Caller, id: &str) -> Result<ExecutionName, ApiError> {
    let execution = checked(id)?;
    let claim = store.find_execution(&caller.team, &execution).await?;
    ours(claim.unwrap_or(ExecutionClaim::Theirs), execution)
}

/// Claims an execution for the caller, unless it belongs to another team.
pub async fn claimed_execution(store: &Store, caller: &Caller, id: &str) -> Result<ExecutionName, ApiError> {
    let execution = checked(id)?;
    let claim = store.claim_execution(&caller.team, &execution).await?;
    ours(claim, execution)
}

fn checked(id: &str) -> Result<ExecutionName, ApiError> {
    ExecutionName::parse(id).map_err(|error| ApiError::bad_request(error.to_string()))
}

fn ours(claim: ExecutionClaim, execution: ExecutionName) -> Result<ExecutionName, ApiError> {
    match claim {
        ExecutionClaim::Ours => Ok(execution),
        ExecutionClaim::Theirs => {
            Err(ApiError::not_found(format!("execution \"{execution}\" doesn't exist or you don't have access to it")))
        }
        ExecutionClaim::Removing => {
            let wait = Duration::from_secs(1);
            Err(ApiError::conflict(format!("the files of execution \"{execution}\" are being removed")).retry_in(wait))
        }
    }
}
