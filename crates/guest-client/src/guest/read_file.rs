//! Reads the content of a file, piece by piece or at once.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::{Guest, GuestError};
use crate::transport::{Http, Query, TransportError, empty_body};

/// A file that is being read. A slow reader slows the guest down.
#[derive(Debug)]
pub struct Download {
    http: Http,
    body: Incoming,
    size: Option<u64>,
    silence: Option<Duration>,
}

impl Guest {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// [`Code::NotFound`](super::Code::NotFound) if it does not exist,
    /// [`Code::InvalidArgument`](super::Code::InvalidArgument) if it is a directory.
    pub async fn read_file(&self, path: &str) -> Result<Download, GuestError> {
        let http = &self.caller.http;
        let query = Query::new().with("path", path).with_some("username", self.user.as_deref());
        let request = http.request(Method::GET, &query.behind("/files"), HeaderMap::new(), empty_body())?;
        let reply = http.exchange(request, |reply| self.caller.accept(reply)).await?;
        let size = reply.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(Download { http: http.clone(), body: reply.into_body(), size, silence: self.caller.silence })
    }
}

impl Download {
    /// Its size, if the guest reports it.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// Returns the next piece, or `None` at the end of the file.
    ///
    /// # Errors
    /// If the connection broke before the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, GuestError> {
        while let Some(frame) = self.next_frame().await? {
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Reads the rest into memory.
    ///
    /// # Errors
    /// Like [`Self::next`].
    pub async fn collect(mut self) -> Result<Bytes, GuestError> {
        let Some(first) = self.next().await? else { return Ok(Bytes::new()) };
        let mut all = BytesMut::from(first);
        while let Some(more) = self.next().await? {
            all.extend_from_slice(&more);
        }
        Ok(all.freeze())
    }

    async fn next_frame(&mut self) -> Result<Option<http_body::Frame<Bytes>>, TransportError> {
        let frame = match self.silence {
            None => self.body.frame().await,
            Some(waited) => tokio::time::timeout(waited, self.body.frame())
                .await
                .map_err(|_| TransportError::Silent { target: self.http.target().to_owned(), waited })?,
        };
        frame.transpose().map_err(|error| self.http.broken(error))
    }
}
