//! From the path of a request to the method it names.

use std::future::Future;
use std::sync::Arc;

use http::{HeaderValue, Method, Request, StatusCode, header};
use hyper::body::Incoming;
use isopod_wire::rpc::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::deadline::at;
use crate::guest::Guest;
use crate::http::{Reply, status_reply};
use crate::rpc::body::{read_single, read_unary};
use crate::rpc::codec::{failed_stream, single_message_stream, unary_reply};
use crate::rpc::{Call, Code, Codec, MessageStream, RpcError};
use crate::{fs, process};

/// Answers a call; none when the path names no method.
pub(crate) async fn serve(guest: &Arc<Guest>, request: Request<Incoming>) -> Option<Reply> {
    if let Some(method) = request.uri().path().strip_prefix("/process.Process/") {
        return match method {
            "List" => Some(unary(guest, request, process::list).await),
            "Start" => Some(server_stream(guest, request, process::start).await),
            "Connect" => Some(server_stream(guest, request, process::connect).await),
            "SendInput" => Some(unary(guest, request, process::send_input).await),
            "StreamInput" => Some(client_stream(guest, request, process::stream_input).await),
            "CloseStdin" => Some(unary(guest, request, process::close_stdin).await),
            "SendSignal" => Some(unary(guest, request, process::send_signal).await),
            "Update" => Some(unary(guest, request, process::update).await),
            _ => None,
        };
    }
    match request.uri().path().strip_prefix("/filesystem.Filesystem/")? {
        "Stat" => Some(unary(guest, request, fs::stat).await),
        "ListDir" => Some(unary(guest, request, fs::list_dir).await),
        "MakeDir" => Some(unary(guest, request, fs::make_dir).await),
        "Move" => Some(unary(guest, request, fs::move_entry).await),
        "Remove" => Some(unary(guest, request, fs::remove).await),
        "WatchDir" => Some(server_stream(guest, request, fs::watch_dir).await),
        "CreateWatcher" => Some(unary(guest, request, fs::create_watcher).await),
        "GetWatcherEvents" => Some(unary(guest, request, fs::get_watcher_events).await),
        "RemoveWatcher" => Some(unary(guest, request, fs::remove_watcher).await),
        _ => None,
    }
}

async fn unary<Req, Res, Fut>(guest: &Arc<Guest>, request: Request<Incoming>, method: fn(Call, Req) -> Fut) -> Reply
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
        let call = Call::new(guest, codec, &head.headers)?;
        let deadline = call.deadline;
        let work = async { method(call, read_unary(codec, body).await?).await };
        tokio::select! {
            result = work => result,
            () = at(deadline) => Err(RpcError::deadline_exceeded()),
        }
    };
    unary_reply(codec, result.await)
}

async fn server_stream<Req, Fut>(guest: &Arc<Guest>, request: Request<Incoming>, method: fn(Call, Req) -> Fut) -> Reply
where
    Req: Message + DeserializeOwned,
    Fut: Future<Output = Result<Reply, RpcError>>,
{
    let codec = match accept(&request, Codec::stream_from) {
        Ok(codec) => codec,
        Err(refused) => return refused.into_reply(),
    };
    let (head, body) = request.into_parts();
    let result = async { method(Call::new(guest, codec, &head.headers)?, read_single(codec, body).await?).await };
    result.await.unwrap_or_else(|error| failed_stream(codec, &error))
}

async fn client_stream<Req, Res, Fut>(
    guest: &Arc<Guest>,
    request: Request<Incoming>,
    method: fn(Call, MessageStream<Req>) -> Fut,
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
        let call = Call::new(guest, codec, &head.headers)?;
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

/// Refuses other verbs and content types before anything is read.
fn accept(request: &Request<Incoming>, codec: fn(&str) -> Option<Codec>) -> Result<Codec, Refused> {
    if request.method() != Method::POST {
        return Err(Refused::Method);
    }
    let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.and_then(codec).ok_or(Refused::ContentType)
}

/// A request that is no call.
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

/// The reply to a path that looks like a call and names no method.
pub(crate) fn unknown_method(path: &str) -> Reply {
    let error = RpcError::new(Code::Unimplemented, format!("{path} is not implemented"));
    unary_reply::<isopod_wire::rpc::process::ListRequest>(Codec::Json, Err(error))
}
