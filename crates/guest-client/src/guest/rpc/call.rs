//! Calls methods: headers, codec, and the status of the reply.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use isopod_wire::rpc::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::codec::Codec;
use super::frames::frame;
use super::stream::{MessageStream, StreamLimits};
use crate::guest::GuestError;
use crate::transport::{BoxError, Http, full_body, read_limited};

/// The default limit of a reply. A listing of a very large directory tree may need it.
const MAX_REPLY: usize = 256 << 20;
const MAX_REFUSAL: usize = 64 << 10;

const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("connect-protocol-version");
const TIMEOUT: HeaderName = HeaderName::from_static("connect-timeout-ms");
const KEEPALIVE: HeaderName = HeaderName::from_static("keepalive-ping-interval");
/// The interval of keepalives on an idle stream.
const KEEPALIVE_SECONDS: u16 = 50;
/// The protocol allows ten digits for milliseconds.
const MAX_MILLIS: u64 = 9_999_999_999;

/// The options of a call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options<'a> {
    /// The user of the call. `None` is the sandbox's default user.
    pub(crate) user: Option<&'a str>,
    /// When the guest should give up.
    pub(crate) deadline: Option<Duration>,
}

/// Calls methods of one guest.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) http: Http,
    codec: Codec,
    /// Set if the guest does not support the binary codec.
    json_only: Arc<AtomicBool>,
    /// How long a stream may be silent.
    pub(crate) silence: Option<Duration>,
    /// The maximum size of a reply in bytes.
    pub(crate) max_reply: usize,
}

impl Caller {
    pub(crate) fn new(http: Http, silence: Option<Duration>) -> Self {
        Self { http, codec: Codec::default(), json_only: Arc::default(), silence, max_reply: MAX_REPLY }
    }

    pub(crate) fn set_codec(&mut self, codec: Codec) {
        self.codec = codec;
    }

    /// Sends one message and receives one.
    pub(crate) async fn unary<Req, Res>(
        &self,
        method: &str,
        options: Options<'_>,
        message: &Req,
    ) -> Result<Res, GuestError>
    where
        Req: Message + Serialize,
        Res: Message + DeserializeOwned,
    {
        self.http.within(self.http.timeout(), self.unary_unlimited(method, options, message)).await
    }

    /// Like [`Self::unary`], without a time limit.
    pub(crate) async fn unary_unlimited<Req, Res>(
        &self,
        method: &str,
        options: Options<'_>,
        message: &Req,
    ) -> Result<Res, GuestError>
    where
        Req: Message + Serialize,
        Res: Message + DeserializeOwned,
    {
        let write = |codec: Codec| (codec.unary_type(), codec.encode(message).into());
        let (codec, reply) = self.post(method, options, write).await?;
        let body = read_limited(reply.into_body(), self.max_reply).await.map_err(|error| self.http.broken(error))?;
        codec.decode(body)
    }

    /// Sends one message and receives many.
    pub(crate) async fn stream<Req, Res>(
        &self,
        method: &str,
        options: Options<'_>,
        message: &Req,
    ) -> Result<MessageStream<Res>, GuestError>
    where
        Req: Message + Serialize,
        Res: Message + DeserializeOwned,
    {
        let write = |codec: Codec| (codec.stream_type(), frame(&codec.encode(message)));
        let limits = StreamLimits::new(self.silence, options.deadline);
        let (codec, reply) = self.http.within(self.http.timeout(), self.post(method, options, write)).await?;
        check_stream_type(codec, &reply)?;
        Ok(MessageStream::new(self.http.clone(), codec, reply.into_body(), limits))
    }

    /// Sends many messages and receives one, without a time limit.
    ///
    /// Unlike other calls, it cannot be repeated in JSON, because the messages are consumed. It uses the codec that
    /// earlier calls have found to work.
    pub(crate) async fn client_stream<Req, Res>(
        &self,
        method: &str,
        options: Options<'_>,
        messages: impl Stream<Item = io::Result<Req>> + Send + 'static,
    ) -> Result<Res, GuestError>
    where
        Req: Message + Serialize,
        Res: Message + DeserializeOwned,
    {
        let codec = self.current_codec();
        let frames = messages.map(move |message| match message {
            Ok(message) => Ok(Frame::data(frame(&codec.encode(&message)))),
            Err(error) => Err(BoxError::from(error)),
        });
        let body = BodyExt::boxed_unsync(StreamBody::new(frames));
        let request = self.http.request(Method::POST, method, headers(codec.stream_type(), options), body)?;
        let reply = self.accept_rpc(self.http.send(request).await?).await?;
        check_stream_type(codec, &reply)?;
        let limits = StreamLimits::new(self.silence, None);
        let mut replies = MessageStream::new(self.http.clone(), codec, reply.into_body(), limits);
        let first = replies.next().await?;
        first.ok_or_else(|| GuestError::Protocol("the call ended without a reply".to_owned()))
    }

    fn current_codec(&self) -> Codec {
        if self.json_only.load(Ordering::Relaxed) { Codec::Json } else { self.codec }
    }

    /// Sends the request in the preferred codec, and again in JSON if the guest does not support that codec. A refused
    /// content type means that nothing was executed.
    async fn post(
        &self,
        method: &str,
        options: Options<'_>,
        write: impl Fn(Codec) -> (&'static str, Bytes),
    ) -> Result<(Codec, Response<Incoming>), GuestError> {
        let codec = self.current_codec();
        let reply = self.post_in(method, options, write(codec)).await?;
        if reply.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE && codec != Codec::Json {
            self.json_only.store(true, Ordering::Relaxed);
            let reply = self.post_in(method, options, write(Codec::Json)).await?;
            return Ok((Codec::Json, self.accept_rpc(reply).await?));
        }
        Ok((codec, self.accept_rpc(reply).await?))
    }

    async fn post_in(
        &self,
        method: &str,
        options: Options<'_>,
        (content_type, body): (&'static str, Bytes),
    ) -> Result<Response<Incoming>, GuestError> {
        let headers = headers(content_type, options);
        let request = self.http.request(Method::POST, method, headers, full_body(body))?;
        Ok(self.http.send(request).await?)
    }

    /// Converts an unsuccessful reply into an error.
    pub(crate) async fn accept(&self, reply: Response<Incoming>) -> Result<Response<Incoming>, GuestError> {
        self.accept_or(reply, GuestError::from_reply).await
    }

    async fn accept_rpc(&self, reply: Response<Incoming>) -> Result<Response<Incoming>, GuestError> {
        self.accept_or(reply, GuestError::from_rpc_reply).await
    }

    async fn accept_or(
        &self,
        reply: Response<Incoming>,
        error: fn(StatusCode, &[u8]) -> GuestError,
    ) -> Result<Response<Incoming>, GuestError> {
        if reply.status().is_success() {
            return Ok(reply);
        }
        let status = reply.status();
        let body = read_limited(reply.into_body(), MAX_REFUSAL).await.map_err(|error| self.http.broken(error))?;
        Err(error(status, &body))
    }
}

/// A page that does not come from a guest must not be parsed as frames.
fn check_stream_type(codec: Codec, reply: &Response<Incoming>) -> Result<(), GuestError> {
    let given = reply.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim();
    match essence.eq_ignore_ascii_case(codec.stream_type()) {
        true => Ok(()),
        false => Err(GuestError::Protocol(format!("{given:?} is not the content type of a stream"))),
    }
}

fn headers(content_type: &'static str, options: Options<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(PROTOCOL_VERSION, HeaderValue::from_static("1"));
    headers.insert(KEEPALIVE, HeaderValue::from(KEEPALIVE_SECONDS));
    if let Some(user) = options.user {
        headers.insert(header::AUTHORIZATION, basic(user));
    }
    if let Some(deadline) = options.deadline {
        let millis = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        headers.insert(TIMEOUT, HeaderValue::from(millis.clamp(1, MAX_MILLIS)));
    }
    headers
}

/// Returns the user's name in envd's format: Basic authorization without a password.
fn basic(user: &str) -> HeaderValue {
    let encoded = STANDARD.encode(format!("{user}:"));
    HeaderValue::try_from(format!("Basic {encoded}")).expect("base64 is always a valid header value")
}
