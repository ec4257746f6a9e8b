//! Writing files.

use std::pin::pin;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, header};
use http_body_util::BodyExt as _;
use serde::{Deserialize, Serialize};

use super::{FileStorage, METADATA_HEADER, Metadata, StorageError};
use crate::guest::Upload;
use crate::guest::upload_progress::{Progress, Watched};
use crate::sandbox::ApiError;
use crate::transport::{TransportError, read_limited};

const MAX_REPLY: usize = 1 << 20;

#[derive(Deserialize)]
struct Written {
    path: String,
}

impl FileStorage {
    /// Writes a file, whole or not at all, in place of what had the key. Says where it is.
    ///
    /// # Errors
    /// 413 when it is larger than the server takes, 507 when the execution's quota is used up.
    pub async fn put(
        &self,
        key: &str,
        contents: impl Into<Upload>,
        metadata: Option<&Metadata>,
    ) -> Result<String, StorageError> {
        let url = self.file_url(key)?;
        let http = self.client.http();
        let progress = Arc::new(Progress::default());
        let body = Watched::new(contents.into().0, Arc::clone(&progress)).boxed_unsync();
        let request = http.request(Method::PUT, &url, headers_of(metadata)?, body).map_err(ApiError::from)?;
        let work = pin!(async {
            let (head, body) = http.send(request).await?.into_parts();
            let body = read_limited(body, MAX_REPLY).await.map_err(|error| http.broken(error))?;
            if !head.status.is_success() {
                return Err(ApiError::from_reply(head.status, &head.headers, &body));
            }
            let written: Written =
                serde_json::from_slice(&body).map_err(|error| ApiError::Protocol(error.to_string()))?;
            Ok(written.path)
        });
        let waited = http.timeout();
        tokio::select! {
            path = work => Ok(path?),
            // A large file may take long; one that does not move may not.
            () = progress.stalled_for(waited) => {
                let target = http.target().to_owned();
                Err(ApiError::from(TransportError::Timeout { target, waited }).into())
            }
        }
    }

    /// Writes a text.
    ///
    /// # Errors
    /// Like [`Self::put`].
    pub async fn put_text(&self, key: &str, text: &str) -> Result<String, StorageError> {
        self.put(key, text, None).await
    }

    /// Writes a value as JSON.
    ///
    /// # Errors
    /// Like [`Self::put`], and [`StorageError::Content`] when the value has no form in JSON.
    pub async fn put_json(&self, key: &str, value: &impl Serialize) -> Result<String, StorageError> {
        let wrong = |source: serde_json::Error| StorageError::Content { key: key.to_owned(), source: source.into() };
        let text = serde_json::to_vec_pretty(value).map_err(wrong)?;
        self.put(key, text, None).await
    }
}

fn headers_of(metadata: Option<&Metadata>) -> Result<HeaderMap, ApiError> {
    let kind = HeaderValue::from_static("application/octet-stream");
    let mut headers = HeaderMap::from_iter([(header::CONTENT_TYPE, kind)]);
    if let Some(metadata) = metadata {
        let text = serde_json::to_vec(metadata).map_err(|error| ApiError::Protocol(error.to_string()))?;
        let value = HeaderValue::from_bytes(&text).map_err(|error| ApiError::Protocol(error.to_string()))?;
        headers.insert(METADATA_HEADER, value);
    }
    Ok(headers)
}
