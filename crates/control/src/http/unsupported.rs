//! Parts of E2B that are not there yet. Each says so, instead of being a route that does not exist.

use std::sync::Arc;

use axum::Router;
use axum::routing::{any, get, post};

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
        .route("/templates/{id}/tags/{*rest}", says!(any, "the history of tags"))
        .route("/secrets", says!(any, "keeping secrets"))
        .route("/secrets/{id}", says!(any, "keeping secrets"))
}
