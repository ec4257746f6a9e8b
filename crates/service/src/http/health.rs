//! `GET /api/v1/health`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use isopod_api::{DescribeAnswer, Description};
use serde::Serialize;
use utoipa::ToSchema;

use crate::Service;

/// How the service is.
#[derive(Serialize, ToSchema)]
pub(super) struct Health {
    status: &'static str,
}

pub(super) async fn health(State(service): State<Arc<Service>>) -> Health {
    match service.recorder.is_ready() {
        Ok(()) => Health { status: OK },
        Err(_) => Health { status: "audit_unavailable" },
    }
}

const OK: &str = "ok";

impl IntoResponse for Health {
    fn into_response(self) -> Response {
        let status = if self.status == OK { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        (status, Json(self)).into_response()
    }
}

impl DescribeAnswer for Health {
    fn describe(operation: &mut Description) {
        operation.json_answer::<Self>(200);
        operation.json_answer::<Self>(503);
    }
}
