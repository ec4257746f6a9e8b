//! `POST /contexts`: a context of one's own, with a kernel that is ready.

use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;

use super::context::Context;
use super::language::{self, Language};
use super::route::{failed, no_context, read};
use super::{Host, driver, start};
use crate::http::{HttpError, MAX_JSON, Reply, json_reply};
use crate::paths;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CreateRequest {
    language: Option<String>,
    cwd: Option<String>,
}

pub(super) async fn create(host: &Host, request: Request<Incoming>) -> Result<Reply, HttpError> {
    let wanted: CreateRequest = read(request, MAX_JSON).await?;
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let language = match given(wanted.language) {
        Some(wanted) => language::find(host, &wanted).await.map_err(|error| failed(&error))?,
        None => Language::python(),
    };
    let cwd = match given(wanted.cwd) {
        Some(cwd) => resolve(host, &cwd)?,
        None => start::home(host),
    };
    let context = Arc::new(Context::new(host, language, cwd));
    let prepared = context.prepare().await.map_err(|_| no_context(&context.view.id))?;
    prepared.map_err(|error| failed(&error))?;
    host.interpreter().contexts.add(Arc::clone(&context));
    Ok(json_reply(&context.view))
}

fn resolve(host: &Host, cwd: &str) -> Result<String, HttpError> {
    let user = driver::user(host).map_err(|error| failed(&error))?;
    let path = paths::resolve(cwd, &user, None);
    path.map(|path| path.to_string_lossy().into_owned())
        .map_err(|error| HttpError::new(StatusCode::BAD_REQUEST, error.to_string()))
}
