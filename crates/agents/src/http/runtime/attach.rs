//! `POST /runtime/{run_id}/library`: copies files of the library into the run's input.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, JsonBody};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::client_id::ClientId;
use super::{parse_path, parse_run};
use crate::Agents;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AttachFiles)]
pub(super) struct AttachBody {
    files: Vec<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = AttachedFiles)]
pub(super) struct Attached {
    run_id: String,
    files: Vec<String>,
}

pub(super) async fn attach(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    ClientId(client): ClientId,
    Path(run_id): Path<String>,
    body: JsonBody<AttachBody>,
) -> Result<Json<Attached>, ApiError> {
    let run = parse_run(&run_id)?;
    let files = body.parse()?.files;
    let paths = files.iter().map(|file| parse_path(file)).collect::<Result<Vec<_>, _>>()?;
    app.sessions.attach_library(&caller.team, &run, &client, &paths).await?;
    Ok(Json(Attached { run_id, files }))
}
