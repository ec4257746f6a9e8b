//! Writing a file's contents, from memory or from a stream.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, stream};
use http::{HeaderMap, HeaderValue, Method, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::upload_progress::{Progress, Watched};
use super::{Guest, GuestError};
use crate::transport::{Body, BoxError, Query, TransportError, full_body, read_limited};

/// How much is read from a reader at once.
const PIECE: usize = 256 << 10;
/// A form may have many files, and each is named in the reply.
const MAX_REPLY: usize = 64 << 20;

/// What to write.
#[derive(Debug)]
pub struct Upload(pub(crate) Body);

impl Upload {
    /// What a stream gives, as fast as the guest takes it.
    pub fn stream(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Self {
        let frames = pieces.map(|piece| piece.map(Frame::data).map_err(BoxError::from));
        Self(BodyExt::boxed_unsync(StreamBody::new(frames)))
    }

    /// What a reader gives until its end.
    pub fn reader(reader: impl AsyncRead + Send + Unpin + 'static) -> Self {
        Self::stream(stream::try_unfold(reader, |mut reader| async move {
            let mut piece = BytesMut::with_capacity(PIECE);
            match reader.read_buf(&mut piece).await? {
                0 => Ok(None),
                _ => Ok(Some((piece.freeze(), reader))),
            }
        }))
    }
}

impl Upload {
    pub(crate) fn into_body(self) -> Body {
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

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct WrittenFile {
    /// The last part of its path.
    pub name: String,
    /// The whole path.
    pub path: String,
}

impl Guest {
    /// Writes a file: the directories above it are made, what was there is replaced.
    ///
    /// # Errors
    /// [`Code::ResourceExhausted`](super::Code::ResourceExhausted) when the disk is full;
    /// [`TransportError::Source`] when the stream to be written failed.
    pub async fn write_file(&self, path: &str, contents: impl Into<Upload>) -> Result<WrittenFile, GuestError> {
        let query = Query::new().with("path", path).with_some("username", self.user.as_deref());
        let kind = HeaderValue::from_static("application/octet-stream");
        let written = self.send_files(&query.behind("/files"), kind, contents.into()).await?;
        written.into_iter().next().ok_or_else(|| GuestError::Protocol("the reply names no file".to_owned()))
    }

    pub(super) async fn send_files(
        &self,
        path: &str,
        kind: HeaderValue,
        contents: Upload,
    ) -> Result<Vec<WrittenFile>, GuestError> {
        let http = &self.caller.http;
        let progress = Arc::new(Progress::default());
        let body = BodyExt::boxed_unsync(Watched::new(contents.0, Arc::clone(&progress)));
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, kind)]);
        let request = http.request(Method::POST, path, headers, body)?;
        let work = pin!(async {
            let reply = self.caller.accept(http.send(request).await?).await?;
            let body = read_limited(reply.into_body(), MAX_REPLY).await.map_err(|error| http.broken(error))?;
            parse_written(&body)
        });
        let waited = http.timeout();
        tokio::select! {
            written = work => written,
            // A large file may take long; one that does not move may not.
            () = progress.stalled_for(waited) => {
                Err(TransportError::Timeout { target: http.target().to_owned(), waited }.into())
            }
        }
    }
}

fn parse_written(body: &[u8]) -> Result<Vec<WrittenFile>, GuestError> {
    serde_json::from_slice(body).map_err(|error| GuestError::Protocol(format!("unreadable reply: {error}")))
}
