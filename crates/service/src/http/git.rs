//! `/api/v1/git`: git in a sandbox. A token is used and not stored.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use isopod_control::audit::Subject;
use isopod_control::http::{ApiError, Caller, JsonBody};
use isopod_wire::node::Secret;
use serde::Deserialize;
use serde_json::Value;

use crate::Access;
use crate::Service;
use crate::{GitAction, GitReply};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CloneBody {
    sandbox_id: String,
    repo_url: String,
    branch: Option<String>,
    token: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BranchBody {
    sandbox_id: String,
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommitBody {
    sandbox_id: String,
    message: String,
    paths: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PushBody {
    sandbox_id: String,
    token: Option<String>,
}

pub(super) async fn clone(state: State<Arc<Service>>, caller: Caller, body: JsonBody) -> Result<Response, ApiError> {
    let body: CloneBody = body.parse()?;
    let token = body.token.map(checked_token).transpose()?;
    let action = GitAction::Clone { repo_url: body.repo_url, branch: body.branch, token };
    act(state, caller, &body.sandbox_id, action).await
}

pub(super) async fn branch(state: State<Arc<Service>>, caller: Caller, body: JsonBody) -> Result<Response, ApiError> {
    let body: BranchBody = body.parse()?;
    act(state, caller, &body.sandbox_id, GitAction::Branch { name: body.name }).await
}

pub(super) async fn commit(state: State<Arc<Service>>, caller: Caller, body: JsonBody) -> Result<Response, ApiError> {
    let body: CommitBody = body.parse()?;
    let paths = body.paths.unwrap_or_default();
    if body.message.contains('\0') || paths.iter().any(|path| path.is_empty() || path.contains('\0')) {
        return Err(ApiError::bad_request("a message or path cannot be empty or contain zero bytes"));
    }
    act(state, caller, &body.sandbox_id, GitAction::Commit { message: body.message, paths }).await
}

pub(super) async fn push(state: State<Arc<Service>>, caller: Caller, body: JsonBody) -> Result<Response, ApiError> {
    let body: PushBody = body.parse()?;
    let token = body.token.map(checked_token).transpose()?;
    act(state, caller, &body.sandbox_id, GitAction::Push { token }).await
}

pub(super) async fn history(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    Ok(answer(service.git_history(&Access::from(&caller), &id).await?))
}

async fn act(
    State(service): State<Arc<Service>>,
    caller: Caller,
    id: &str,
    action: GitAction,
) -> Result<Response, ApiError> {
    Ok(answer(service.git(&Access::from(&caller), id, action).await?))
}

fn answer(reply: GitReply) -> Response {
    let mut response = Json::<Value>(reply.data).into_response();
    response.extensions_mut().insert(Subject { sandbox: Some(reply.sandbox), ..Subject::default() });
    response
}

/// It becomes part of a header.
fn checked_token(token: String) -> Result<Secret, ApiError> {
    let is_fine = (1..=4096).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic());
    if is_fine { Ok(Secret(token)) } else { Err(ApiError::bad_request("token must be 1 to 4096 visible characters")) }
}
