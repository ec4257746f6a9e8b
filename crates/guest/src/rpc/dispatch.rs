//! Calls a method with the messages of a request, and turns its result into a reply. `server` chooses the method by the path.

use std::future::Future;
use std::sync::Arc;

use http::{HeaderValue, Method, Request, StatusCode, header};
use hyper::body::Incoming;
use isopod_wire::rpc::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::deadline::at;
use crate::http::{Reply, status_reply};
use crate::rpc::body::{read_single, read_unary};
use crate::rpc::codec::{failed_stream, single_message_stream, unary_reply};
use crate::rpc::{Call, Code, Codec, MessageStream, RpcError};
use crate::settings::Settings;

/// One message in, one message out.
pub(crate) async fn unary<Req, Res, Fut>(
    settings: &Arc<Settings>,
    request: Request<Incoming>,
    method: impl FnOnce(Call, Req) -> Fut,
) -> Reply
where
    Req: Message + DeserializeOwned,
    Res: Message + Serialize,
    Fut: Future<Output = Result<Res, RpcError>>,
{
    let codec = match accept(&request, Codec::unary_from) {
        Ok(codec) => codec,
        Err(refused) => return refused.into_reply(),
    };
    let (head, body) = request.into_parts();
    let result = async {
        let call = Call::new(settings, codec, &head.headers)?;
        let deadline = call.deadline;
        let work = async { method(call, read_unary(codec, body).await?).await };
        tokio::select! {
            result = work => result,
            () = at(deadline) => Err(RpcError::deadline_exceeded()),
        }
    };
    unary_reply(codec, result.await)
}

/// One message in, a stream of messages out.
pub(crate) async fn server_stream<Req, Fut>(
    settings: &Arc<Settings>,
    request: Request<Incoming>,
    method: impl FnOnce(Call, Req) -> Fut,
) -> Reply
where
    Req: Message + DeserializeOwned,
    Fut: Future<Output = Result<Reply, RpcError>>,
{
    let codec = match accept(&request, Codec::stream_from) {
        Ok(codec) => codec,
        Err(refused) => return refused.into_reply(),
    };
    let (head, body) = request.into_parts();
    let result = async { method(Call::new(settings, codec, &head.headers)?, read_single(codec, body).await?).await };
    result.await.unwrap_or_else(|error| failed_stream(codec, &error))
}

/// A stream of messages in, one message out.
pub(crate) async fn client_stream<Req, Res, Fut>(
    settings: &Arc<Settings>,
    request: Request<Incoming>,
    method: impl FnOnce(Call, MessageStream<Req>) -> Fut,
) -> Reply
where
    Req: Message + DeserializeOwned,
    Res: Message + Serialize,
    Fut: Future<Output = Result<Res, RpcError>>,
{
    let codec = match accept(&request, Codec::stream_from) {
        Ok(codec) => codec,
        Err(refused) => return refused.into_reply(),
    };
    let (head, body) = request.into_parts();
    let result = async {
        let call = Call::new(settings, codec, &head.headers)?;
        let deadline = call.deadline;
        tokio::select! {
            result = method(call, MessageStream::new(codec, body)) => result,
            () = at(deadline) => Err(RpcError::deadline_exceeded()),
        }
    };
    match result.await {
        Ok(message) => single_message_stream(codec, &message),
        Err(error) => failed_stream(codec, &error),
    }
}

/// Refuses other HTTP methods and content types before it reads anything.
fn accept(request: &Request<Incoming>, codec: fn(&str) -> Option<Codec>) -> Result<Codec, Refused> {
    if request.method() != Method::POST {
        return Err(Refused::Method);
    }
    let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.and_then(codec).ok_or(Refused::ContentType)
}

/// A request that is not a call.
enum Refused {
    Method,
    ContentType,
}

impl Refused {
    fn into_reply(self) -> Reply {
        let accepted = "application/json, application/proto, application/connect+json, application/connect+proto";
        let (status, name, value) = match self {
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, header::ALLOW, "POST"),
            Self::ContentType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, http::HeaderName::from_static("accept-post"), accepted)
            }
        };
        let mut reply = status_reply(status);
        reply.headers_mut().insert(name, HeaderValue::from_static(value));
        reply
    }
}

/// The reply to a path that looks like a call but names no method.
pub(crate) fn unknown_method(path: &str) -> Reply {
    let error = RpcError::new(Code::Unimplemented, format!("{path} is not implemented"));
    unary_reply::<isopod_wire::rpc::process::ListRequest>(Codec::Json, Err(error))
}
