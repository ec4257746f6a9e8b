//! Parts of E2B's API that are not supported. Each route returns an error that says so, rather than 404.

use std::sync::Arc;

use isopod_api::{ApiError, Needs::TeamKey, Routes, any, refuses};

use super::app::App;

macro_rules! says {
    ($what:literal) => {
        [any(refuses(TeamKey), || async { ApiError::unsupported($what) })]
    };
}

pub(super) fn routes() -> Routes<Arc<App>> {
    Routes::new()
        .route("/templates/{id}/tags/{*rest}", says!("the history of tags"))
        .route("/secrets", says!("keeping secrets"))
        .route("/secrets/{id}", says!("keeping secrets"))
}
