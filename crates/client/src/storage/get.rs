//! Reads files and their metadata. A missing file is `None`, not an error.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use isopod_guest_client::transport::{Http, empty_body, read_limited};
use serde::de::DeserializeOwned;

use super::{FileStorage, METADATA_HEADER, Metadata, StorageError};
use crate::sandbox::{ApiError, Call};

const MAX_REFUSAL: usize = 64 << 10;

/// A file that is being read. A slow reader slows the server down.
#[derive(Debug)]
pub struct StoredFile {
    http: Http,
    body: Incoming,
    size: u64,
    metadata: Option<Metadata>,
}

impl FileStorage {
    /// Opens a file for reading. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn open_file(&self, key: &str) -> Result<Option<StoredFile>, StorageError> {
        let http = self.client.http();
        let request =
            http.request(Method::GET, &self.file_url(key)?, HeaderMap::new(), empty_body()).map_err(ApiError::from)?;
        let reply = http.exchange(request, |reply| async { Ok::<_, ApiError>(reply) }).await?;
        let (head, body) = reply.into_parts();
        if head.status.is_success() {
            let (size, metadata) = (size_of(&head.headers)?, metadata_of(&head.headers));
            return Ok(Some(StoredFile { http: http.clone(), body, size, metadata }));
        }
        let body = read_limited(body, MAX_REFUSAL).await.map_err(|error| ApiError::from(http.broken(error)))?;
        none_if_missing(ApiError::from_reply(head.status, &head.headers, &body))
    }

    /// Reads a file. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// Like [`Self::open_file`].
    pub async fn get(&self, key: &str) -> Result<Option<Bytes>, StorageError> {
        match self.open_file(key).await? {
            Some(file) => Ok(Some(file.collect().await?)),
            None => Ok(None),
        }
    }

    /// Reads a text file. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// [`StorageError::Content`] if it is not UTF-8.
    pub async fn get_text(&self, key: &str) -> Result<Option<String>, StorageError> {
        let Some(bytes) = self.get(key).await? else { return Ok(None) };
        let wrong = |source| StorageError::Content { key: key.to_owned(), source };
        Ok(Some(String::from_utf8(bytes.into()).map_err(|error| wrong(error.into()))?))
    }

    /// Reads a value from a JSON file. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// [`StorageError::Content`] if it is not the JSON of such a value.
    pub async fn get_json<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, StorageError> {
        let Some(bytes) = self.get(key).await? else { return Ok(None) };
        let wrong = |source: serde_json::Error| StorageError::Content { key: key.to_owned(), source: source.into() };
        Ok(Some(serde_json::from_slice(&bytes).map_err(wrong)?))
    }

    /// Whether the file exists.
    ///
    /// # Errors
    /// Like [`Self::open_file`].
    pub async fn exists(&self, key: &str) -> Result<bool, StorageError> {
        Ok(self.head(key).await?.is_some())
    }

    /// Returns the size of a file, or `None` if it does not exist.
    ///
    /// # Errors
    /// Like [`Self::open_file`].
    pub async fn get_size(&self, key: &str) -> Result<Option<u64>, StorageError> {
        Ok(self.head(key).await?.map(|headers| size_of(&headers)).transpose()?)
    }

    /// Returns the metadata of a file, or `None` if there is none.
    ///
    /// # Errors
    /// Like [`Self::open_file`].
    pub async fn get_metadata(&self, key: &str) -> Result<Option<Metadata>, StorageError> {
        Ok(self.head(key).await?.and_then(|headers| metadata_of(&headers)))
    }

    /// Removes a file. Returns false if there was none.
    ///
    /// # Errors
    /// Like [`Self::open_file`].
    pub async fn delete(&self, key: &str) -> Result<bool, StorageError> {
        match self.client.call(Call::new(Method::DELETE, self.file_url(key)?)).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn head(&self, key: &str) -> Result<Option<HeaderMap>, StorageError> {
        match self.client.call(Call::new(Method::HEAD, self.file_url(key)?)).await {
            Ok(reply) => Ok(Some(reply.headers)),
            Err(error) => none_if_missing(error),
        }
    }
}

impl StoredFile {
    /// Its size.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Its metadata.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    /// Returns the next piece, or `None` at the end of the file.
    ///
    /// # Errors
    /// If the connection broke before the end, or the server fell silent.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StorageError> {
        loop {
            let work = async { Ok::<_, ApiError>(self.body.frame().await) };
            let frame = self.http.within(self.http.timeout(), work).await?;
            let frame = frame.transpose().map_err(|error| ApiError::from(self.http.broken(error)))?;
            match frame.map(http_body::Frame::into_data) {
                Some(Ok(data)) => return Ok(Some(data)),
                Some(Err(_)) => {}
                None => return Ok(None),
            }
        }
    }

    /// Reads the rest into memory.
    ///
    /// # Errors
    /// Like [`Self::next`].
    pub async fn collect(mut self) -> Result<Bytes, StorageError> {
        let mut all = BytesMut::new();
        while let Some(piece) = self.next().await? {
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    }
}

fn none_if_missing<T>(error: ApiError) -> Result<Option<T>, StorageError> {
    if error.is_not_found() { Ok(None) } else { Err(error.into()) }
}

fn size_of(headers: &HeaderMap) -> Result<u64, ApiError> {
    let size = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    size.ok_or_else(|| ApiError::Protocol("the reply has no file size".to_owned()))
}

fn metadata_of(headers: &HeaderMap) -> Option<Metadata> {
    serde_json::from_slice(headers.get(METADATA_HEADER)?.as_bytes()).ok()
}
