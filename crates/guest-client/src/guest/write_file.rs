//! Writes the content of a file, from memory or from a stream.

use std::io;

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, stream};
use http::{HeaderMap, HeaderValue, Method, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::{Guest, GuestError};
use crate::transport::{Body, BoxError, Query, full_body, read_limited};

/// How much is read from a reader at once.
const PIECE: usize = 256 << 10;
/// The maximum size of one file's entry in the reply.
const MAX_NAME: usize = 64 << 10;

/// The content to write.
#[derive(Debug)]
pub struct Upload(pub(super) Body);

impl Upload {
    /// The content of a stream, as fast as the guest takes it.
    pub fn stream(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Self {
        let frames = pieces.map(|piece| piece.map(Frame::data).map_err(BoxError::from));
        Self(BodyExt::boxed_unsync(StreamBody::new(frames)))
    }

    /// The content of a reader until its end.
    pub fn reader(reader: impl AsyncRead + Send + Unpin + 'static) -> Self {
        Self::stream(stream::try_unfold(reader, |mut reader| async move {
            let mut piece = BytesMut::with_capacity(PIECE);
            match reader.read_buf(&mut piece).await? {
                0 => Ok(None),
                _ => Ok(Some((piece.freeze(), reader))),
            }
        }))
    }

    /// Converts it into the body of a request.
    pub fn into_body(self) -> Body {
        self.0
    }
}

impl From<Bytes> for Upload {
    fn from(bytes: Bytes) -> Self {
        Self(full_body(bytes))
    }
}

impl From<Vec<u8>> for Upload {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<String> for Upload {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&str> for Upload {
    fn from(text: &str) -> Self {
        Bytes::copy_from_slice(text.as_bytes()).into()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct WrittenFile {
    /// The last component of its path.
    pub name: String,
    /// The whole path.
    pub path: String,
}

impl Guest {
    /// Writes a file. Creates missing directories, and replaces an existing file.
    ///
    /// # Errors
    /// [`Code::ResourceExhausted`](super::Code::ResourceExhausted) if the disk is full;
    /// [`TransportError::Source`](crate::TransportError::Source) if the source stream failed.
    pub async fn write_file(&self, path: &str, contents: impl Into<Upload>) -> Result<WrittenFile, GuestError> {
        let query = Query::new().with("path", path).with_some("username", self.user.as_deref());
        let kind = HeaderValue::from_static("application/octet-stream");
        let written = self.send_files(&query.behind("/files"), kind, contents.into(), 1).await?;
        written.into_iter().next().ok_or_else(|| GuestError::Protocol("the reply names no file".to_owned()))
    }

    pub(super) async fn send_files(
        &self,
        path: &str,
        kind: HeaderValue,
        contents: Upload,
        count: usize,
    ) -> Result<Vec<WrittenFile>, GuestError> {
        let http = &self.caller.http;
        let max_reply = count.saturating_mul(MAX_NAME).min(self.caller.max_reply);
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, kind)]);
        let request = http.request(Method::POST, path, headers, contents.into_body())?;
        let read = |reply| async {
            let reply = self.caller.accept(reply).await?;
            let body = read_limited(reply.into_body(), max_reply).await.map_err(|error| http.broken(error))?;
            parse_written(&body)
        };
        http.upload(request, read).await
    }
}

pub(super) fn parse_written(body: &[u8]) -> Result<Vec<WrittenFile>, GuestError> {
    serde_json::from_slice(body).map_err(|error| GuestError::Protocol(format!("unreadable reply: {error}")))
}
