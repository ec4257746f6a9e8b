//! `DELETE /contexts/{id}`: ends a context and its kernel.

use http::Request;
use hyper::body::Incoming;

use super::Host;
use super::route::no_context;
use crate::http::{HttpError, Reply, drain, json_reply};

pub(super) async fn remove(host: &Host, id: &str, request: Request<Incoming>) -> Result<Reply, HttpError> {
    drain(request.into_body()).await;
    let context = host.interpreter().contexts.remove(id).ok_or_else(|| no_context(id))?;
    context.remove().await;
    Ok(json_reply(&()))
}
