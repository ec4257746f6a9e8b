//! Reads the messages of a request, with limits on size and time.

use std::marker::PhantomData;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use isopod_wire::rpc::Message;
use serde::de::DeserializeOwned;

use crate::rpc::{Code, Codec, RpcError};

/// The largest message.
const MAX_MESSAGE: usize = 64 << 20;
/// How long the rest of a message may take to arrive.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the guest waits for the rest of a body after the last message.
const REST_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the whole body as one message.
pub(crate) async fn read_unary<M: Message + DeserializeOwned>(codec: Codec, mut body: Incoming) -> Result<M, RpcError> {
    if body.size_hint().lower() > MAX_MESSAGE as u64 {
        return Err(too_large());
    }
    let mut bytes = BytesMut::new();
    while let Some(more) =
        tokio::time::timeout(MESSAGE_TIMEOUT, next_data(&mut body)).await.map_err(|_| timed_out())??
    {
        if bytes.len() + more.len() > MAX_MESSAGE {
            return Err(too_large());
        }
        bytes.extend_from_slice(&more);
    }
    codec.decode(&bytes)
}

/// Reads the only message of a server stream's request.
pub(crate) async fn read_single<M: Message + DeserializeOwned>(codec: Codec, body: Incoming) -> Result<M, RpcError> {
    let mut messages = MessageStream::new(codec, body);
    let next = tokio::time::timeout(MESSAGE_TIMEOUT, messages.next()).await.map_err(|_| timed_out())?;
    next?.ok_or_else(|| RpcError::new(Code::InvalidArgument, "the request has no message"))
}

/// The messages of a client stream.
///
/// When this is dropped, the rest of the body is still read: a connection can serve another request only after the last one
/// was read to its end.
#[derive(Debug)]
pub(crate) struct MessageStream<M> {
    codec: Codec,
    /// None once it was read to its end.
    body: Option<Incoming>,
    buffer: BytesMut,
    ended: bool,
    message: PhantomData<fn() -> M>,
}

impl<M: Message + DeserializeOwned> MessageStream<M> {
    pub(crate) fn new(codec: Codec, body: Incoming) -> Self {
        Self { codec, body: Some(body), buffer: BytesMut::new(), ended: false, message: PhantomData }
    }

    /// The next message; none at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<M>, RpcError> {
        loop {
            if self.ended {
                return Ok(None);
            }
            if let Some((flags, payload)) = take_frame(&mut self.buffer)? {
                if flags & 2 != 0 {
                    self.ended = true;
                    continue;
                }
                return self.codec.decode(&payload).map(Some);
            }
            let more = match &mut self.body {
                Some(body) => next_data(body).await?,
                None => None,
            };
            match more {
                Some(more) => self.buffer.extend_from_slice(&more),
                None if self.buffer.is_empty() => {
                    self.body = None;
                    self.ended = true;
                }
                None => {
                    return Err(RpcError::new(Code::InvalidArgument, "the request ends in the middle of a message"));
                }
            }
        }
    }
}

impl<M> Drop for MessageStream<M> {
    fn drop(&mut self) {
        if let Some(mut body) = self.body.take() {
            tokio::spawn(tokio::time::timeout(REST_TIMEOUT, async move {
                while let Ok(Some(_)) = next_data(&mut body).await {}
            }));
        }
    }
}

pub(super) fn take_frame(buffer: &mut BytesMut) -> Result<Option<(u8, BytesMut)>, RpcError> {
    let Some((&[flags, a, b, c, d], _)) = buffer.split_first_chunk::<5>() else { return Ok(None) };
    if flags & 1 != 0 {
        return Err(RpcError::new(Code::Unimplemented, "compressed messages are not supported"));
    }
    let len = u32::from_be_bytes([a, b, c, d]) as usize;
    if len > MAX_MESSAGE {
        return Err(too_large());
    }
    if buffer.len() < 5 + len {
        return Ok(None);
    }
    buffer.advance(5);
    Ok(Some((flags, buffer.split_to(len))))
}

async fn next_data(body: &mut Incoming) -> Result<Option<bytes::Bytes>, RpcError> {
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| RpcError::new(Code::InvalidArgument, format!("cannot read the request: {error}")))?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

fn too_large() -> RpcError {
    RpcError::new(Code::ResourceExhausted, format!("the message is larger than {MAX_MESSAGE} bytes"))
}

fn timed_out() -> RpcError {
    RpcError::new(Code::DeadlineExceeded, "the request did not arrive in time")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_come_out_only_when_complete() {
        let mut buffer = BytesMut::from(&[0u8, 0, 0, 0, 2, b'{'][..]);
        assert_eq!(take_frame(&mut buffer).unwrap(), None);
        buffer.extend_from_slice(b"}\x02");
        assert_eq!(take_frame(&mut buffer).unwrap(), Some((0, BytesMut::from("{}"))));
        assert_eq!(&buffer[..], [2]);
    }

    #[test]
    fn huge_and_compressed_frames_are_refused() {
        assert!(take_frame(&mut BytesMut::from(&[0u8, 255, 255, 255, 255][..])).is_err());
        assert!(take_frame(&mut BytesMut::from(&[1u8, 0, 0, 0, 0][..])).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_frames_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = take_frame(&mut buffer) {}
        }
    }
}
