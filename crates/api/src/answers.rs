//! Response types that declare their status, content type and schema.

use std::marker::PhantomData;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use crate::describe::{DescribeAnswer, Description};

/// 201, with what was created.
#[derive(Debug)]
pub struct Created<T>(pub T);

/// 202, with what is known about the operation that was started.
#[derive(Debug)]
pub struct Accepted<T>(pub T);

/// A status without a body.
#[derive(Clone, Copy, Debug)]
pub struct Empty<const STATUS: u16>;

pub type NoContent = Empty<204>;

/// A JSON array.
#[derive(Debug)]
pub struct Listing<T>(pub Vec<T>);

/// 201 if it was created or resumed for this request, 200 if it already existed.
#[derive(Debug)]
pub enum CreatedOrFound<T> {
    Created(T),
    Found(T),
}

/// The content of a file.
#[derive(Debug)]
pub struct Download(pub Response);

/// The attributes of a file without its content, in headers.
#[derive(Debug)]
pub struct Headers(pub Response);

/// Server-sent events.
#[derive(Debug)]
pub struct EventStream(pub Response);

/// One JSON value per line.
#[derive(Debug)]
pub struct JsonLines(pub Response);

/// Metrics for Prometheus.
#[derive(Debug)]
pub struct MetricsText(pub String);

/// The protocol that the client requested to switch to.
#[derive(Debug)]
pub struct Upgraded(pub Response);

/// A finished response that has the form of `A` for the client.
#[derive(Debug)]
pub struct Prepared<A>(Response, PhantomData<fn() -> A>);

impl<A> Prepared<A> {
    pub fn new(response: Response) -> Self {
        Self(response, PhantomData)
    }
}

impl<T: Serialize> IntoResponse for Created<T> {
    fn into_response(self) -> Response {
        (StatusCode::CREATED, Json(self.0)).into_response()
    }
}

impl<T: ToSchema> DescribeAnswer for Created<T> {
    fn describe(operation: &mut Description) {
        operation.json_answer::<T>(201);
    }
}

impl<T: Serialize> IntoResponse for Accepted<T> {
    fn into_response(self) -> Response {
        (StatusCode::ACCEPTED, Json(self.0)).into_response()
    }
}

impl<T: ToSchema> DescribeAnswer for Accepted<T> {
    fn describe(operation: &mut Description) {
        operation.json_answer::<T>(202);
    }
}

impl<const STATUS: u16> IntoResponse for Empty<STATUS> {
    fn into_response(self) -> Response {
        const { assert!(STATUS >= 200 && STATUS < 300, "a success status") };
        StatusCode::from_u16(STATUS).expect("checked at compile time").into_response()
    }
}

impl<const STATUS: u16> DescribeAnswer for Empty<STATUS> {
    fn describe(operation: &mut Description) {
        operation.empty_answer(STATUS);
    }
}

impl<T: Serialize> IntoResponse for Listing<T> {
    fn into_response(self) -> Response {
        Json(self.0).into_response()
    }
}

impl<T: ToSchema> DescribeAnswer for Listing<T> {
    fn describe(operation: &mut Description) {
        operation.json_list::<T>(200);
    }
}

impl<T: Serialize> IntoResponse for CreatedOrFound<T> {
    fn into_response(self) -> Response {
        match self {
            Self::Created(created) => Created(created).into_response(),
            Self::Found(found) => Json(found).into_response(),
        }
    }
}

impl<T: ToSchema> DescribeAnswer for CreatedOrFound<T> {
    fn describe(operation: &mut Description) {
        operation.json_answer::<T>(200);
        operation.json_answer::<T>(201);
    }
}

impl IntoResponse for MetricsText {
    fn into_response(self) -> Response {
        ([(http::header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], self.0).into_response()
    }
}

impl DescribeAnswer for MetricsText {
    fn describe(operation: &mut Description) {
        operation.text_answer(200, "text/plain");
    }
}

impl<A> IntoResponse for Prepared<A> {
    fn into_response(self) -> Response {
        self.0
    }
}

impl<A: DescribeAnswer> DescribeAnswer for Prepared<A> {
    fn describe(operation: &mut Description) {
        A::describe(operation);
    }
}

macro_rules! responses {
    ($($name:ident: $describe:expr;)*) => {
        $(
            impl IntoResponse for $name {
                fn into_response(self) -> Response {
                    self.0
                }
            }

            impl DescribeAnswer for $name {
                fn describe(operation: &mut Description) {
                    let describe: fn(&mut Description) = $describe;
                    describe(operation);
                }
            }
        )*
    };
}

responses! {
    Download: |operation| operation.raw_answer(200, "application/octet-stream");
    Headers: |operation| operation.empty_answer(200);
    EventStream: |operation| operation.text_answer(200, "text/event-stream");
    JsonLines: |operation| operation.text_answer(200, "application/jsonl");
    Upgraded: |operation| operation.empty_answer(101);
}
