//! `POST /contexts/{id}/restart`: starts a new kernel for a context. A running cell ends with an error.

use http::Request;
use hyper::body::Incoming;

use super::Interpreter;
use super::route::{failed, no_context};
use crate::http::{HttpError, Reply, drain, json_reply};

pub(super) async fn restart(
    interpreter: &Interpreter,
    id: &str,
    request: Request<Incoming>,
) -> Result<Reply, HttpError> {
    drain(request.into_body()).await;
    let context = interpreter.contexts.get(id).ok_or_else(|| no_context(id))?;
    let restarted = context.restart().await.map_err(|_| no_context(id))?;
    restarted.map_err(|error| failed(&error))?;
    Ok(json_reply(&()))
}
