//! Parts of E2B that are not there yet. Each says so, instead of being a route that does not exist.

use std::sync::Arc;

use axum::Router;
use axum::routing::{MethodRouter, any, delete, get, patch, post};

use super::auth::Caller;
use super::error::ApiError;
use crate::app::App;

macro_rules! says {
    ($method:ident, $what:literal) => {
        $method(|_: Caller| async { ApiError::unsupported($what) })
    };
}

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/sandboxes/{id}/fork", says!(post, "forking a sandbox"))
        .route("/sandboxes/{id}/snapshots", says!(post, "making a snapshot"))
        .route("/snapshots", says!(get, "listing snapshots"))
        .route("/v3/templates", says!(post, "building a template"))
        .route("/v2/templates", says!(post, "building a template"))
        .route("/templates", says!(post, "building a template"))
        .route("/templates/{id}", changes())
        .route("/v2/templates/{id}", says!(patch, "changing a template"))
        .route("/templates/{id}/files/{hash}", says!(get, "building a template"))
        .route("/templates/{id}/builds/{build}", says!(post, "building a template"))
        .route("/v2/templates/{id}/builds/{build}", says!(post, "building a template"))
        .route("/templates/{id}/builds/{build}/status", says!(get, "building a template"))
        .route("/templates/{id}/builds/{build}/logs", says!(get, "building a template"))
        .route("/templates/tags", says!(any, "tagging templates"))
        .route("/templates/{id}/tags", says!(any, "tagging templates"))
        .route("/templates/{id}/tags/{*rest}", says!(any, "tagging templates"))
        .route("/secrets", says!(any, "keeping secrets"))
        .route("/secrets/{id}", says!(any, "keeping secrets"))
        .route("/volumes", says!(any, "keeping volumes"))
        .route("/volumes/{id}", says!(any, "keeping volumes"))
        .route("/volumecontent/{*rest}", says!(any, "keeping volumes"))
}

fn changes() -> MethodRouter<Arc<App>> {
    says!(delete, "removing a template").patch(|_: Caller| async { ApiError::unsupported("changing a template") })
}
