//! `/api/v1/git`: git in a sandbox. A token is used and not stored.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::{Extension, Json};
use isopod_api::{ApiError, Caller, JsonBody, audit::Subject};
use isopod_wire::node::Secret;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::Access;
use crate::Service;
use crate::{GitAction, GitReply};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = GitClone)]
pub(super) struct CloneBody {
    sandbox_id: String,
    repo_url: String,
    branch: Option<String>,
    token: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = GitBranch)]
pub(super) struct BranchBody {
    sandbox_id: String,
    name: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = GitCommit)]
pub(super) struct CommitBody {
    sandbox_id: String,
    message: String,
    paths: Option<Vec<String>>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = GitPush)]
pub(super) struct PushBody {
    sandbox_id: String,
    token: Option<String>,
}

/// What git said, in the form of the action.
type Answer = Result<(Extension<Subject>, Json<Value>), ApiError>;

pub(super) async fn clone(state: State<Arc<Service>>, caller: Caller, body: JsonBody<CloneBody>) -> Answer {
    let body = body.parse()?;
    let token = body.token.map(checked_token).transpose()?;
    let action = GitAction::Clone { repo_url: body.repo_url, branch: body.branch, token };
    act(state, caller, &body.sandbox_id, action).await
}

pub(super) async fn branch(state: State<Arc<Service>>, caller: Caller, body: JsonBody<BranchBody>) -> Answer {
    let body = body.parse()?;
    act(state, caller, &body.sandbox_id, GitAction::Branch { name: body.name }).await
}

pub(super) async fn commit(state: State<Arc<Service>>, caller: Caller, body: JsonBody<CommitBody>) -> Answer {
    let body = body.parse()?;
    let paths = body.paths.unwrap_or_default();
    if body.message.contains('\0') || paths.iter().any(|path| path.is_empty() || path.contains('\0')) {
        return Err(ApiError::bad_request("a message or path cannot be empty or contain zero bytes"));
    }
    act(state, caller, &body.sandbox_id, GitAction::Commit { message: body.message, paths }).await
}

pub(super) async fn push(state: State<Arc<Service>>, caller: Caller, body: JsonBody<PushBody>) -> Answer {
    let body = body.parse()?;
    let token = body.token.map(checked_token).transpose()?;
    act(state, caller, &body.sandbox_id, GitAction::Push { token }).await
}

pub(super) async fn history(State(service): State<Arc<Service>>, caller: Caller, Path(id): Path<String>) -> Answer {
    Ok(answer(service.git_history(&Access::from(&caller), &id).await?))
}

async fn act(State(service): State<Arc<Service>>, caller: Caller, id: &str, action: GitAction) -> Answer {
    Ok(answer(service.git(&Access::from(&caller), id, action).await?))
}

fn answer(reply: GitReply) -> (Extension<Subject>, Json<Value>) {
    (Extension(Subject { sandbox: Some(reply.sandbox), ..Subject::default() }), Json(reply.data))
}

/// It becomes part of a header.
fn checked_token(token: String) -> Result<Secret, ApiError> {
    let is_fine = (1..=4096).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic());
    if is_fine { Ok(Secret(token)) } else { Err(ApiError::bad_request("token must be 1 to 4096 visible characters")) }
}
