//! Big objects: files are uploaded in parts, several at once, and copies that are too large for one request are made in
//! parts too.
//!
//! Parts become an object only when the last request succeeds. The parts of a failed upload are deleted.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use http::{HeaderMap, Method};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::buffers::Buffer;
use super::{S3Store, header, metadata_headers, xml};
use crate::attributes::Metadata;
use crate::object::{ObjectInfo, StoreError};

/// The maximum size that S3 copies in one request.
pub(super) const COPY_LIMIT: u64 = 5 << 30;

/// The maximum number of parts in S3.
const MAX_PARTS: u64 = 10_000;

/// An upload that was started longer ago than this is no longer in progress.
const STALE: Duration = Duration::from_secs(24 * 3600);

/// Reads a part of a file into memory.
pub(super) async fn read_part(file: Arc<File>, range: Range<u64>, mut buffer: Buffer) -> Result<Bytes, StoreError> {
    let read = move || file.read_exact_at(buffer.as_mut(), range.start).map(|()| buffer.into_bytes());
    let failed = |source| StoreError::Local { what: "read", path: "a local copy".to_owned(), source };
    tokio::task::spawn_blocking(read).await.map_err(|error| failed(std::io::Error::other(error)))?.map_err(failed)
}

impl S3Store {
    pub(super) async fn put_parts(
        &self,
        key: &str,
        file: Arc<File>,
        size: u64,
        metadata: &Metadata,
    ) -> Result<String, StoreError> {
        let upload = self.begin(key, metadata).await?;
        let send = |number: usize, range: Range<u64>| {
            let (file, upload) = (file.clone(), upload.clone());
            async move {
                let _room = self.room_for(range.end - range.start).await?;
                let buffer = self.buffers.take((range.end - range.start) as usize);
                let body = read_part(file, range, buffer).await?;
                let query = part_query(number, &upload);
                let answer =
                    self.client.ask("put part", Method::PUT, Some(key), &query, HeaderMap::new(), body).await?;
                answer.tag().ok_or(StoreError::Garbled { what: "put part" })
            }
        };
        let tags = self.all_parts(size, send).await;
        self.buffers.clear();
        self.finish(key, &upload, tags).await
    }

    pub(super) async fn copy_parts(
        &self,
        from: &ObjectInfo,
        to: &str,
        metadata: &Metadata,
    ) -> Result<String, StoreError> {
        let upload = self.begin(to, metadata).await?;
        let send = |number: usize, range: Range<u64>| {
            let upload = upload.clone();
            async move {
                let mut headers = HeaderMap::new();
                header(&mut headers, "x-amz-copy-source", &self.client.copy_source(&from.key))?;
                header(&mut headers, "x-amz-copy-source-if-match", &from.tag)?;
                header(&mut headers, "x-amz-copy-source-range", &format!("bytes={}-{}", range.start, range.end - 1))?;
                let query = part_query(number, &upload);
                let answer = self.client.ask("copy part", Method::PUT, Some(to), &query, headers, Bytes::new()).await?;
                let text = answer.text();
                xml::text(&text, "ETag").map(xml::unescape).ok_or(StoreError::Garbled { what: "copy part" })
            }
        };
        let tags = self.all_parts(from.size, send).await;
        self.finish(to, &upload, tags).await
    }

    async fn begin(&self, key: &str, metadata: &Metadata) -> Result<String, StoreError> {
        let headers = metadata_headers(key, metadata)?;
        let query = vec![("uploads", String::new())];
        let answer = self.client.ask("begin an upload", Method::POST, Some(key), &query, headers, Bytes::new()).await?;
        let text = answer.text();
        xml::text(&text, "UploadId").map(xml::unescape).ok_or(StoreError::Garbled { what: "begin an upload" })
    }

    /// Sends all parts, several at once, and returns their tags in order.
    async fn all_parts<F>(&self, size: u64, send: impl Fn(usize, Range<u64>) -> F) -> Result<Vec<String>, StoreError>
    where
        F: Future<Output = Result<String, StoreError>>,
    {
        let part = self.part_size.max(size.div_ceil(MAX_PARTS));
        let ranges = (0..size.div_ceil(part)).map(|index| index * part..((index + 1) * part).min(size));
        futures::stream::iter(ranges.enumerate().map(|(index, range)| send(index + 1, range)))
            .buffered(self.parallel_parts)
            .try_collect()
            .await
    }

    async fn finish(
        &self,
        key: &str,
        upload: &str,
        tags: Result<Vec<String>, StoreError>,
    ) -> Result<String, StoreError> {
        let query = vec![("uploadId", upload.to_owned())];
        let completed = match tags {
            Ok(tags) => self.complete(key, &query, &tags).await,
            Err(error) => Err(error),
        };
        if completed.is_err() {
            // Amazon charges for the parts until they are deleted. If this fails too, the bucket's lifecycle rules must
            // delete them.
            let abort =
                self.client.ask("abort", Method::DELETE, Some(key), &query, HeaderMap::new(), Bytes::new()).await;
            if let Err(error) = abort {
                tracing::debug!(key, %error, "could not delete the parts of a failed upload; they stay in the bucket");
            }
        }
        completed
    }

    async fn complete(&self, key: &str, query: &super::request::Query, tags: &[String]) -> Result<String, StoreError> {
        let parts: String = tags
            .iter()
            .enumerate()
            .map(|(index, tag)| {
                format!("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", index + 1, xml::escape(tag))
            })
            .collect();
        let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        let answer = self.client.ask("complete", Method::POST, Some(key), query, HeaderMap::new(), body.into()).await?;
        let text = answer.text();
        // As with copies, the server may send 200 first and fail afterwards.
        xml::text(&text, "ETag").map(xml::unescape).ok_or(StoreError::Garbled { what: "complete" })
    }
}

impl S3Store {
    /// Deletes the parts of uploads that were started long ago and interrupted. Returns the number of these uploads.
    pub async fn abort_stale_uploads(&self) -> Result<u64, StoreError> {
        let query = vec![("uploads", String::new())];
        let listed = self.client.ask("list uploads", Method::GET, None, &query, HeaderMap::new(), Bytes::new()).await;
        let answer = match listed {
            // A server that cannot list uploads has nothing that we could delete.
            Err(StoreError::Refused { status: 501, .. }) => return Ok(0),
            other => other?,
        };
        let text = answer.text();
        let mut aborted = 0;
        for upload in xml::elements(&text, "Upload") {
            let (Some(key), Some(id)) = (xml::text(upload, "Key"), xml::text(upload, "UploadId")) else { continue };
            if !began_long_ago(xml::text(upload, "Initiated").unwrap_or_default()) {
                continue;
            }
            let (key, query) = (xml::unescape(key), vec![("uploadId", xml::unescape(id))]);
            self.client.ask("abort", Method::DELETE, Some(&key), &query, HeaderMap::new(), Bytes::new()).await?;
            aborted += 1;
        }
        Ok(aborted)
    }
}

/// An upload in progress is younger, however slow the connection is. One without a readable time is left alone.
fn began_long_ago(time: &str) -> bool {
    let began = OffsetDateTime::parse(time.trim(), &Rfc3339);
    began.is_ok_and(|began| SystemTime::from(began) + STALE < SystemTime::now())
}

fn part_query(number: usize, upload: &str) -> super::request::Query {
    vec![("partNumber", number.to_string()), ("uploadId", upload.to_owned())]
}
