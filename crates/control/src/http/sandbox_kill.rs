//! `DELETE /sandboxes/{id}`

use std::sync::Arc;

use axum::extract::{Path, State};

use super::answers::{Empty, NoContent};
use super::app::App;
use super::auth::Caller;
use super::error::ApiError;

pub(super) async fn kill(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<NoContent, ApiError> {
    caller.sandbox(&app.fleet, &id).await?.kill().await?;
    Ok(Empty)
}
