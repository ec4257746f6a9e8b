//! How often templates were used. A trigger in the database counts this when a sandbox is recorded as running.

use super::{Store, StoreError};
use crate::clock::Timestamp;
use crate::database::query;

/// How often one template was used, by all teams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spawns {
    pub count: i64,
    pub last_at: Option<Timestamp>,
}

impl Store {
    pub async fn spawns_of(&self, template: &str) -> Result<Spawns, StoreError> {
        let row = query("SELECT count, last_at FROM template_spawns WHERE template = ?")
            .bind(template)
            .fetch_optional(&self.read)
            .await
            .map_err(StoreError::doing("read how often a template was used"))?;
        Ok(row.map_or_else(Spawns::default, |row| Spawns { count: row.get(0), last_at: Some(Timestamp(row.get(1))) }))
    }
}
