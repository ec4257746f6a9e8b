//! Which files there are.

use http::Method;
use isopod_guest_client::transport::Query;
use serde::Deserialize;
use time::OffsetDateTime;

use super::{FileStorage, StorageError};
use crate::sandbox::{ApiError, Call};

/// A file in a list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ListedFile {
    /// What it is found by.
    pub key: String,
    /// In bytes.
    pub size: u64,
    /// When it was last written.
    #[serde(with = "time::serde::rfc3339")]
    pub modified_at: OffsetDateTime,
}

impl FileStorage {
    /// The keys that begin so, in order. A prefix is read as a key: `plots` means `artifacts/plots`.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn list_keys(&self, prefix: &str) -> Result<Vec<String>, StorageError> {
        Ok(self.list(prefix, None).await?.into_iter().map(|file| file.key).collect())
    }

    /// The files whose keys begin so and that were written at that time or later.
    ///
    /// # Errors
    /// When the server cannot be asked.
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
                // A server that does not go on would keep us for ever.
                Some(token) if next.as_deref() != Some(&*token) => next = Some(token.into_owned()),
                _ => return Ok(all),
            }
        }
    }
}
