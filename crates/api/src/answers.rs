//! Answers whose types say what they are: the status, the kind of their contents, and the schema where there is one.

use std::marker::PhantomData;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use crate::describe::{DescribeAnswer, Description};

/// 201, with what was made.
#[derive(Debug)]
pub struct Created<T>(pub T);

/// 202, with what is known of what was begun.
#[derive(Debug)]
pub struct Accepted<T>(pub T);

/// A status alone.
#[derive(Clone, Copy, Debug)]
pub struct Empty<const STATUS: u16>;

/// 204.
pub type NoContent = Empty<204>;

/// A JSON array.
#[derive(Debug)]
pub struct Listing<T>(pub Vec<T>);

/// 201 if it had to be made or woken for this request, 200 if it was there.
#[derive(Debug)]
pub enum MadeOrFound<T> {
    Made(T),
    Found(T),
}

/// The contents of a file.
#[derive(Debug)]
pub struct Download(pub Response);

/// What is known of a file without its contents, in headers.
#[derive(Debug)]
pub struct Headers(pub Response);

/// Server-sent events.
#[derive(Debug)]
pub struct EventStream(pub Response);

/// A line of JSON each.
#[derive(Debug)]
pub struct JsonLines(pub Response);

/// Counts for Prometheus.
#[derive(Debug)]
pub struct MetricsText(pub String);

/// The other protocol that the client asked for.
#[derive(Debug)]
pub struct Upgraded(pub Response);

/// An answer that is put together already, and looks like `A` to the client.
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
        const { assert!(STATUS >= 200 && STATUS < 300, "an answer, not a refusal") };
        StatusCode::from_u16(STATUS).expect("checked when it was compiled").into_response()
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

impl<T: Serialize> IntoResponse for MadeOrFound<T> {
    fn into_response(self) -> Response {
        match self {
            Self::Made(made) => Created(made).into_response(),
            Self::Found(found) => Json(found).into_response(),
        }
    }
}

impl<T: ToSchema> DescribeAnswer for MadeOrFound<T> {
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
