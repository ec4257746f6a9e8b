//! A part of a bucket as if it were a bucket. A prefix is added to every key in requests and removed in responses.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::{Content, ListRequest, Listing, ObjectInfo, ObjectStore, StoreError};
use crate::attributes::Metadata;

/// The part of a bucket below a prefix.
#[derive(Debug)]
pub struct Prefixed {
    store: Arc<dyn ObjectStore>,
    /// Ends in `/`.
    prefix: String,
}

impl Prefixed {
    /// `prefix` must not end in `/`.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str) -> Self {
        Self { store, prefix: format!("{prefix}/") }
    }

    fn inner(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn outer(&self, mut info: ObjectInfo) -> Option<ObjectInfo> {
        info.key = info.key.strip_prefix(&self.prefix)?.to_owned();
        // The marker of the prefix itself is not below it.
        (!info.key.is_empty()).then_some(info)
    }
}

#[async_trait]
impl ObjectStore for Prefixed {
    async fn list(&self, request: &ListRequest) -> Result<Listing, StoreError> {
        let request = ListRequest { prefix: self.inner(&request.prefix), ..request.clone() };
        let listing = self.store.list(&request).await?;
        Ok(Listing {
            objects: listing.objects.into_iter().filter_map(|info| self.outer(info)).collect(),
            prefixes: listing
                .prefixes
                .iter()
                .filter_map(|prefix| prefix.strip_prefix(&self.prefix).map(str::to_owned))
                .collect(),
            next: listing.next,
        })
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>, StoreError> {
        let found = self.store.head(&self.inner(key)).await?;
        Ok(found.map(|info| ObjectInfo { key: key.to_owned(), ..info }))
    }

    async fn get(&self, key: &str, tag: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.store.get(&self.inner(key), tag, range).await
    }

    async fn put(&self, key: &str, content: Content, metadata: &Metadata) -> Result<String, StoreError> {
        self.store.put(&self.inner(key), content, metadata).await
    }

    async fn copy(&self, from: &ObjectInfo, to: &str, metadata: &Metadata) -> Result<String, StoreError> {
        let from = ObjectInfo { key: self.inner(&from.key), ..from.clone() };
        self.store.copy(&from, &self.inner(to), metadata).await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.store.delete(&self.inner(key)).await
    }

    fn longest_part(&self) -> usize {
        self.store.longest_part()
    }
}
