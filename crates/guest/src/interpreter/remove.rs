//! `DELETE /contexts/{id}`: removes a context and kills its kernel.

use http::Request;
use hyper::body::Incoming;

use super::Interpreter;
use super::route::no_context;
use crate::http::{HttpError, Reply, drain, json_reply};

pub(super) async fn remove(
    interpreter: &Interpreter,
    id: &str,
    request: Request<Incoming>,
) -> Result<Reply, HttpError> {
    drain(request.into_body()).await;
    let context = interpreter.contexts.remove(id).ok_or_else(|| no_context(id))?;
    context.remove().await;
    Ok(json_reply(&()))
}
