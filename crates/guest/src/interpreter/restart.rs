//! `POST /contexts/{id}/restart`: the context forgets everything. What runs in it is told so.

use http::Request;
use hyper::body::Incoming;

use super::Host;
use super::route::{failed, no_context};
use crate::http::{HttpError, Reply, drain, json_reply};

pub(super) async fn restart(host: &Host, id: &str, request: Request<Incoming>) -> Result<Reply, HttpError> {
    drain(request.into_body()).await;
    let context = host.interpreter().contexts.get(id).ok_or_else(|| no_context(id))?;
    let restarted = context.restart().await.map_err(|_| no_context(id))?;
    restarted.map_err(|error| failed(&error))?;
    Ok(json_reply(&()))
}
