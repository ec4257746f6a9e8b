//! `/api/v1/agents`: the agents of a team.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Created, Empty, JsonBody, NoContent, NoParams, Query};
use isopod_store::clock::Timestamp;
use isopod_store::secrets::new_uuid;
use isopod_store::service::AgentRow;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::names::{checked_option, checked_text};
use crate::Access;
use crate::Service;
use crate::{Operation, ServiceError};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewAgent)]
pub(super) struct NewAgentBody {
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9_.:@-]+$")]
    id: Option<String>,
    #[schema(min_length = 1, max_length = 128)]
    name: String,
    #[schema(min_length = 1, max_length = 128)]
    role: Option<String>,
    #[schema(min_length = 1, max_length = 2048)]
    avatar_url: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Agents)]
pub(super) struct AgentList {
    agents: Vec<AgentRow>,
}

const MAX_AGENTS: u32 = 1000;

pub(super) async fn create(
    State(service): State<Arc<Service>>,
    caller: Caller,
    body: JsonBody<NewAgentBody>,
) -> Result<Created<AgentRow>, ApiError> {
    let body = body.parse()?;
    let now = Timestamp::now();
    let row = AgentRow {
        id: checked_option("id", body.id)?.unwrap_or_else(new_uuid),
        team: caller.team,
        name: checked_text("name", body.name, 128)?,
        role: checked_text("role", body.role.unwrap_or_else(|| "agent".to_owned()), 128)?,
        status: "idle".to_owned(),
        current_task_id: None,
        sandbox_id: None,
        avatar_url: body.avatar_url.map(|url| checked_text("avatar_url", url, 2048)).transpose()?,
        created_at: now,
        updated_at: now,
    };
    if !service.store.insert_agent(&row).await? {
        return Err(ServiceError::conflict("agent_exists", format!("agent {:?} already exists", row.id)).into());
    }
    Ok(Created(row))
}

pub(super) async fn list(
    State(service): State<Arc<Service>>,
    caller: Caller,
    _: Query<NoParams>,
) -> Result<Json<AgentList>, ApiError> {
    let access = Access::from(&caller);
    let mut agents = service.store.list_agents(&caller.team, MAX_AGENTS).await?;
    agents.retain(|agent| access.check(Operation::Read, &agent.team, Some(&agent.id)).is_ok());
    Ok(Json(AgentList { agents }))
}

pub(super) async fn get(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<AgentRow>, ApiError> {
    Ok(Json(service.find_agent(&Access::from(&caller), Operation::Read, &id).await?))
}

pub(super) async fn remove(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<NoContent, ApiError> {
    let row = service.find_agent(&Access::from(&caller), Operation::Write, &id).await?;
    if !service.store.remove_agent(&row.team, &id).await? {
        return Err(ServiceError::conflict("agent_busy", "the agent has a task").into());
    }
    Ok(Empty)
}
