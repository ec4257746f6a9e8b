//! A bucket of Amazon S3, or of a compatible server.
//!
//! We have our own client because keys must pass through unchanged: the markers of directories end in `/`, and one odd
//! key of another tool must not break a listing. It implements only what the file system needs.

mod buffers;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
#[cfg(test)]
mod hostile;
mod keys;
mod request;
mod sign;
mod upload;
mod xml;

use std::ops::Range;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;
use tokio::sync::{Semaphore, SemaphorePermit};

pub use keys::Keys;
pub use sign::Credentials;

use super::{Content, ListRequest, Listing, ObjectInfo, ObjectStore, StoreError};
use crate::attributes::Metadata;
use buffers::Buffers;
use request::{Answer, Client, Query};

/// The total size of request bodies in memory, in MiB.
const MAX_BODIES_MIB: u32 = 96;
const METADATA: &str = "x-amz-meta-";

/// The location of the bucket and how to talk to it.
#[derive(Clone, Debug)]
pub struct S3Settings {
    pub bucket: String,
    pub region: String,
    /// A server other than Amazon's, for example `http://127.0.0.1:9000`.
    pub endpoint: Option<String>,
    pub keys: Keys,
    /// The number of idle connections that are kept open.
    pub idle_connections: usize,
    /// The time limit of a request up to its last byte. A request with a body may take longer.
    pub request_timeout: Duration,
    /// Larger files are uploaded in parts of this size.
    pub part_size: u64,
    /// The number of parts of one file that are uploaded at once.
    pub parallel_parts: usize,
}

impl S3Settings {
    /// A bucket of Amazon's, with the default settings.
    pub fn new(bucket: &str, region: &str, keys: impl Into<Keys>) -> Self {
        Self {
            bucket: bucket.to_owned(),
            region: region.to_owned(),
            endpoint: None,
            keys: keys.into(),
            idle_connections: 64,
            request_timeout: Duration::from_secs(20),
            part_size: 16 << 20,
            parallel_parts: 4,
        }
    }
}

/// A bucket with the S3 protocol.
#[derive(Debug)]
pub struct S3Store {
    client: Client,
    part_size: u64,
    parallel_parts: usize,
    /// The available memory for bodies, in MiB. All uploads share it.
    room: Semaphore,
    buffers: Buffers,
}

impl S3Store {
    /// Creates the client. Does not contact the server.
    pub fn new(settings: S3Settings) -> Result<Self, StoreError> {
        let part_size = settings.part_size.clamp(5 << 20, u64::from(MAX_BODIES_MIB) << 20);
        let parallel_parts = settings.parallel_parts.max(1);
        let room = Semaphore::new(MAX_BODIES_MIB as usize);
        Ok(Self { client: Client::new(settings)?, part_size, parallel_parts, room, buffers: Buffers::default() })
    }

    /// Waits until there is room for a body.
    async fn room_for(&self, bytes: u64) -> Result<SemaphorePermit<'_>, StoreError> {
        let share = bytes.div_ceil(1 << 20).clamp(1, u64::from(MAX_BODIES_MIB)) as u32;
        self.room.acquire_many(share).await.map_err(|_| StoreError::Garbled { what: "wait for room" })
    }

    /// Uses these keys from now on.
    pub fn set_credentials(&self, credentials: Credentials) {
        self.client.keys.replace(credentials);
    }

    /// Requests the bucket, so that a wrong name, wrong keys and a wrong region are reported as such at the start.
    pub async fn check(&self) -> Result<(), StoreError> {
        self.list(&ListRequest { shallow: true, limit: Some(1), ..ListRequest::default() }).await.map(drop)
    }
}

#[async_trait]
impl ObjectStore for S3Store {
    async fn list(&self, request: &ListRequest) -> Result<Listing, StoreError> {
        let mut query: Query = vec![
            ("list-type", "2".to_owned()),
            ("encoding-type", "url".to_owned()),
            ("prefix", request.prefix.clone()),
        ];
        if request.shallow {
            query.push(("delimiter", "/".to_owned()));
        }
        if let Some(limit) = request.limit {
            query.push(("max-keys", limit.to_string()));
        }
        if let Some(after) = &request.after {
            query.push(("continuation-token", after.clone()));
        }
        let answer = self.client.ask("list", Method::GET, None, &query, HeaderMap::new(), Bytes::new()).await?;
        let text = answer.text();
        xml::listing(&text).ok_or(StoreError::Garbled { what: "list" })
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>, StoreError> {
        match self.client.ask("head", Method::HEAD, Some(key), &vec![], HeaderMap::new(), Bytes::new()).await {
            Ok(answer) => object_info(key, &answer).map(Some),
            Err(StoreError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn get(&self, key: &str, tag: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let mut headers = HeaderMap::new();
        header(&mut headers, "range", &format!("bytes={}-{}", range.start, range.end - 1))?;
        header(&mut headers, "if-match", tag)?;
        let length = range.end - range.start;
        let _room = self.room_for(length).await?;
        let answer = self.client.get(key, headers, length).await?;
        if answer.header("etag").is_some_and(|other| other.trim_matches('"') != tag.trim_matches('"')) {
            // A server that ignores the condition responds anyway.
            return Err(StoreError::Changed(key.to_owned()));
        }
        // A server without range support responds with the whole object, and a proxy may send less. Some respond to a
        // range with 200.
        let told = format!("bytes {}-{}/", range.start, range.end - 1);
        let body = match (answer.status, answer.header("content-range")) {
            (_, Some(found)) if found.starts_with(&told) => answer.body,
            (StatusCode::PARTIAL_CONTENT, None) => answer.body,
            (_, None) if answer.body.len() as u64 >= range.end => {
                answer.body.slice(range.start as usize..range.end as usize)
            }
            _ => return Err(StoreError::Garbled { what: "get" }),
        };
        if body.len() as u64 != length {
            return Err(StoreError::Garbled { what: "get" });
        }
        Ok(body)
    }

    async fn put(&self, key: &str, content: Content, metadata: &Metadata) -> Result<String, StoreError> {
        match content {
            Content::Bytes(bytes) => self.put_bytes(key, bytes, metadata).await,
            Content::File(file, size) if size <= self.part_size => {
                let _room = self.room_for(size).await?;
                let bytes = upload::read_part(file, 0..size, Buffers::default().take(size as usize)).await?;
                self.put_bytes(key, bytes, metadata).await
            }
            Content::File(file, size) => self.put_parts(key, file, size, metadata).await,
        }
    }

    async fn copy(&self, from: &ObjectInfo, to: &str, metadata: &Metadata) -> Result<String, StoreError> {
        if from.size > upload::COPY_LIMIT {
            return self.copy_parts(from, to, metadata).await;
        }
        let mut headers = metadata_headers(to, metadata)?;
        header(&mut headers, "x-amz-copy-source", &self.client.copy_source(&from.key))?;
        header(&mut headers, "x-amz-copy-source-if-match", &from.tag)?;
        header(&mut headers, "x-amz-metadata-directive", "REPLACE")?;
        let answer = self.client.ask("copy", Method::PUT, Some(to), &vec![], headers, Bytes::new()).await?;
        let text = answer.text();
        // A copy can fail after the server has sent 200. Then the response contains no tag.
        xml::text(&text, "ETag").map(xml::unescape).ok_or(StoreError::Garbled { what: "copy" })
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        match self.client.ask("delete", Method::DELETE, Some(key), &vec![], HeaderMap::new(), Bytes::new()).await {
            Ok(_) | Err(StoreError::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl S3Store {
    async fn put_bytes(&self, key: &str, bytes: Bytes, metadata: &Metadata) -> Result<String, StoreError> {
        let headers = metadata_headers(key, metadata)?;
        let answer = self.client.ask("put", Method::PUT, Some(key), &vec![], headers, bytes).await?;
        answer.tag().ok_or(StoreError::Garbled { what: "put" })
    }
}

fn metadata_headers(key: &str, metadata: &Metadata) -> Result<HeaderMap, StoreError> {
    let mut headers = HeaderMap::new();
    let kind = if key.ends_with('/') { "application/x-directory" } else { "application/octet-stream" };
    header(&mut headers, "content-type", kind)?;
    for (name, value) in metadata {
        header(&mut headers, &format!("{METADATA}{name}"), value)?;
    }
    Ok(headers)
}

fn header(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), StoreError> {
    let name = http::HeaderName::from_bytes(name.as_bytes());
    let value = http::HeaderValue::from_str(value);
    let (Ok(name), Ok(value)) = (name, value) else { return Err(StoreError::Garbled { what: "write a header" }) };
    headers.insert(name, value);
    Ok(())
}

fn object_info(key: &str, answer: &Answer) -> Result<ObjectInfo, StoreError> {
    let text = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok());
    let size = text("content-length").and_then(|size| size.parse().ok());
    let modified = text("last-modified").and_then(|date| OffsetDateTime::parse(date, &Rfc2822).ok());
    let (Some(size), Some(tag)) = (size, answer.tag()) else { return Err(StoreError::Garbled { what: "head" }) };
    let metadata = answer.headers.iter().filter_map(|(name, value)| {
        let name = name.as_str().strip_prefix(METADATA)?;
        Some((name.to_owned(), value.to_str().ok()?.to_owned()))
    });
    Ok(ObjectInfo {
        key: key.to_owned(),
        size,
        tag,
        modified: modified.map_or(SystemTime::UNIX_EPOCH, SystemTime::from),
        metadata: Some(metadata.collect()),
    })
}
