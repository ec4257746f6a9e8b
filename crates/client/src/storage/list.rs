//! Lists files.

use http::Method;
use isopod_guest_client::transport::Query;
use serde::Deserialize;
use time::OffsetDateTime;

use super::{FileStorage, StorageError};
use crate::sandbox::{ApiError, Call};

/// A file in a list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ListedFile {
    /// Its key.
    pub key: String,
    /// Its size in bytes.
    pub size: u64,
    /// When it was last modified.
    #[serde(with = "time::serde::rfc3339")]
    pub modified_at: OffsetDateTime,
}

impl FileStorage {
    /// Lists the keys with this prefix, sorted. A prefix is normalized like a key: `plots` means `artifacts/plots`.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn list_keys(&self, prefix: &str) -> Result<Vec<String>, StorageError> {
        Ok(self.list(prefix, None).await?.into_iter().map(|file| file.key).collect())
    }

    /// Lists the files with this prefix that were modified at that time or later.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn list(&self, prefix: &str, since: Option<OffsetDateTime>) -> Result<Vec<ListedFile>, StorageError> {
        let format = &time::format_description::well_known::Rfc3339;
        let since = since.map(|since| since.format(format)).transpose();
        let since = since.map_err(|error| ApiError::Protocol(error.to_string()))?;
        let (mut all, mut next) = (Vec::new(), None::<String>);
        loop {
            let query = Query::new().with("prefix", prefix).with_some("modifiedSince", since.as_deref());
            let query = query.with_some("nextToken", next.as_deref());
            let reply = self.client.call(Call::new(Method::GET, query.behind(&self.url("/files")))).await?;
            let page: Vec<ListedFile> = reply.parse()?;
            all.extend(page);
            let token = reply.headers.get("x-next-token").map(|token| String::from_utf8_lossy(token.as_bytes()));
            match token {
                // Stop if the server makes no progress.
                Some(token) if next.as_deref() != Some(&*token) => next = Some(token.into_owned()),
                _ => return Ok(all),
            }
        }
    }
}
