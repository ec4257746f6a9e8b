//! `GET /contexts`: every context there is. Those that are there without being asked for are listed too.

use http::Request;
use hyper::body::Incoming;

use super::Host;
use super::context::View;
use super::language::{self, JAVASCRIPT};
use crate::http::{Reply, drain, json_reply};

pub(super) async fn list(host: &Host, request: Request<Incoming>) -> Reply {
    drain(request.into_body()).await;
    let contexts = &host.interpreter().contexts;
    if language::is_installed(host, JAVASCRIPT).await
        && let Ok(javascript) = language::find(host, JAVASCRIPT).await
    {
        contexts.ensure_first(host, &javascript);
    }
    let views: Vec<View> = contexts.all().iter().map(|context| context.view.clone()).collect();
    json_reply(&views)
}
