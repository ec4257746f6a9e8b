//! `GET /contexts`: lists all contexts, with the default ones.

use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;

use super::Interpreter;
use super::context::View;
use super::language::{self, JAVASCRIPT};
use crate::http::{Reply, drain, json_reply};

pub(super) async fn list(interpreter: &Arc<Interpreter>, request: Request<Incoming>) -> Reply {
    drain(request.into_body()).await;
    let contexts = &interpreter.contexts;
    if language::is_installed(interpreter, JAVASCRIPT).await
        && let Ok(javascript) = language::find(interpreter, JAVASCRIPT).await
    {
        contexts.ensure_first(interpreter, &javascript);
    }
    let views: Vec<View> = contexts.all().iter().map(|context| context.view.clone()).collect();
    json_reply(&views)
}
