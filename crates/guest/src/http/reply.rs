//! Replies: bodies, JSON, and errors as `{"code":…,"message":…}`.

use std::future::Future;
use std::io;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use serde::Serialize;

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;
pub(crate) type Reply = Response<Body>;

pub(crate) fn empty_body() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

pub(crate) fn full_body(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// A streamed body: `next` returns a chunk and the state for the following one.
pub(crate) fn stream_body<S, F, Fut>(state: S, next: F) -> Body
where
    S: Send + 'static,
    F: FnMut(S) -> Fut + Send + 'static,
    Fut: Future<Output = Option<(io::Result<Bytes>, S)>> + Send + 'static,
{
    StreamBody::new(stream::unfold(state, next).map(|piece| piece.map(Frame::data))).boxed_unsync()
}

pub(crate) fn status_reply(status: StatusCode) -> Reply {
    let mut reply = Response::new(empty_body());
    *reply.status_mut() = status;
    reply
}

pub(crate) fn json_reply(value: &impl Serialize) -> Reply {
    match serde_json::to_vec(value) {
        Ok(json) => with_type(StatusCode::OK, json),
        Err(error) => HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_reply(),
    }
}

/// A reply with JSON that is already written.
pub(crate) fn json_bytes_reply(json: Vec<u8>) -> Reply {
    with_type(StatusCode::OK, json)
}

fn with_type(status: StatusCode, json: Vec<u8>) -> Reply {
    typed(status, "application/json", json)
}

/// Plain text.
pub(crate) fn text_reply(status: StatusCode, text: String) -> Reply {
    typed(status, "text/plain; charset=utf-8", text.into_bytes())
}

fn typed(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Reply {
    let mut reply = Response::new(full_body(body.into()));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

/// A refusal or failure outside RPC.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct HttpError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    code: u16,
    message: &'a str,
}

impl HttpError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(crate) fn into_reply(self) -> Reply {
        let body = ErrorBody { code: self.status.as_u16(), message: &self.message };
        let json = serde_json::to_vec(&body).expect("a number and a string always serialize");
        with_type(self.status, json)
    }
}
