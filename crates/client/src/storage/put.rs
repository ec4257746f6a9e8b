//! Writes files.

use http::{HeaderMap, HeaderValue, Method, header};
use hyper::body::Incoming;
use isopod_guest_client::guest::Upload;
use isopod_guest_client::transport::read_limited;
use serde::{Deserialize, Serialize};

use super::{FileStorage, METADATA_HEADER, Metadata, StorageError};
use crate::sandbox::ApiError;

const MAX_REPLY: usize = 1 << 20;

#[derive(Deserialize)]
struct Written {
    path: String,
}

impl FileStorage {
    /// Writes a file atomically, replacing an existing one. Returns its path.
    ///
    /// # Errors
    /// 413 if it is larger than the server allows, 507 if the execution's quota is exhausted.
    pub async fn put(
        &self,
        key: &str,
        contents: impl Into<Upload>,
        metadata: Option<&Metadata>,
    ) -> Result<String, StorageError> {
        let url = self.file_url(key)?;
        let http = self.client.http();
        let body = contents.into().into_body();
        let request = http.request(Method::PUT, &url, headers_of(metadata)?, body).map_err(ApiError::from)?;
        let read = |reply: http::Response<Incoming>| async {
            let (head, body) = reply.into_parts();
            let body = read_limited(body, MAX_REPLY).await.map_err(|error| http.broken(error))?;
            if !head.status.is_success() {
                return Err(ApiError::from_reply(head.status, &head.headers, &body));
            }
            let written: Written =
                serde_json::from_slice(&body).map_err(|error| ApiError::Protocol(error.to_string()))?;
            Ok::<_, ApiError>(written.path)
        };
        Ok(http.upload(request, read).await?)
    }

    /// Writes a text file.
    ///
    /// # Errors
    /// Like [`Self::put`].
    pub async fn put_text(&self, key: &str, text: &str) -> Result<String, StorageError> {
        self.put(key, text, None).await
    }

    /// Writes a value as JSON.
    ///
    /// # Errors
    /// Like [`Self::put`], and [`StorageError::Content`] if the value cannot be represented in JSON.
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
