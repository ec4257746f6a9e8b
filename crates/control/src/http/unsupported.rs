//! Parts of E2B's API that are not supported. Each route returns an error that says so, rather than 404.

use std::sync::Arc;

use isopod_api::{ApiError, Needs::TeamKey, Routes, any, get, post, reads, refuses};

use super::app::App;

macro_rules! says {
    (any, $rule:expr, $what:literal) => {
        [any($rule, || async { ApiError::unsupported($what) })]
    };
    ($method:ident, $rule:expr, $what:literal) => {
        [$method($rule, concat!("Not supported: ", $what), || async { ApiError::unsupported($what) })
            .never_refuses(404)
            .may_refuse(&[501])]
    };
}

pub(super) fn routes() -> Routes<Arc<App>> {
    Routes::new()
        .route("/sandboxes/{id}/fork", says!(post, refuses(TeamKey), "forking a sandbox"))
        .route("/sandboxes/{id}/snapshots", says!(post, refuses(TeamKey), "making a snapshot"))
        .route("/snapshots", says!(get, reads(TeamKey), "listing snapshots"))
        .route("/templates/{id}/tags/{*rest}", says!(any, refuses(TeamKey), "the history of tags"))
        .route("/secrets", says!(any, refuses(TeamKey), "keeping secrets"))
        .route("/secrets/{id}", says!(any, refuses(TeamKey), "keeping secrets"))
}
