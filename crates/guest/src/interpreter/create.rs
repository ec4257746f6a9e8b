//! `POST /contexts`: creates a context and starts its kernel.

use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;

use super::context::Context;
use super::language::{self, Language, LanguageError};
use super::route::{failed, no_context, read};
use super::{Interpreter, driver, start};
use crate::http::{HttpError, MAX_JSON, Reply, json_reply};
use crate::paths;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CreateRequest {
    language: Option<String>,
    cwd: Option<String>,
}

pub(super) async fn create(interpreter: &Arc<Interpreter>, request: Request<Incoming>) -> Result<Reply, HttpError> {
    let wanted: CreateRequest = read(request, MAX_JSON).await?;
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let language = match given(wanted.language) {
        Some(wanted) => language::find(interpreter, &wanted).await.map_err(LanguageError::into_http)?,
        None => Language::python(),
    };
    let cwd = match given(wanted.cwd) {
        Some(cwd) => resolve(interpreter, &cwd)?,
        None => start::home(interpreter),
    };
    let context = Arc::new(Context::new(interpreter, language, cwd));
    let prepared = context.prepare().await.map_err(|_| no_context(&context.view.id))?;
    prepared.map_err(|error| failed(&error))?;
    interpreter.contexts.add(Arc::clone(&context));
    Ok(json_reply(&context.view))
}

fn resolve(interpreter: &Arc<Interpreter>, cwd: &str) -> Result<String, HttpError> {
    let user = driver::default_user(interpreter).map_err(|error| failed(&error))?;
    let path = paths::resolve(cwd, &user, None);
    path.map(|path| path.to_string_lossy().into_owned())
        .map_err(|error| HttpError::new(StatusCode::BAD_REQUEST, error.to_string()))
}
