//! The archives that were uploaded for builds. The archives are files; a row says that one is complete.

use super::{Store, StoreError, TeamId};
use crate::clock::Timestamp;
use crate::database::query;

impl Store {
    pub async fn record_template_file(&self, team: &TeamId, hash: &str, size: i64) -> Result<(), StoreError> {
        query(
            "INSERT INTO template_files (server, team, hash, size, uploaded_at) VALUES (?, ?, ?, ?, ?) \
             ON CONFLICT (server, team, hash) DO UPDATE SET size = excluded.size, uploaded_at = excluded.uploaded_at",
        )
        .bind(self.server())
        .bind(&team.0)
        .bind(hash)
        .bind(size)
        .bind(Timestamp::now().0)
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("record an upload"))?;
        Ok(())
    }

    /// Whether the archive exists. The caller is going to use it, so its retention starts again.
    pub async fn touch_template_file(&self, team: &TeamId, hash: &str) -> Result<bool, StoreError> {
        let done = query("UPDATE template_files SET uploaded_at = ? WHERE server = ? AND team = ? AND hash = ?")
            .bind(Timestamp::now().0)
            .bind(self.server())
            .bind(&team.0)
            .bind(hash)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("look up an upload"))?;
        Ok(done.rows_affected() > 0)
    }

    /// The number of bytes that a team has uploaded.
    pub async fn template_files_size(&self, team: &TeamId) -> Result<u64, StoreError> {
        let row =
            query("SELECT CAST(coalesce(sum(size), 0) AS BIGINT) FROM template_files WHERE server = ? AND team = ?")
                .bind(self.server())
                .bind(&team.0)
                .fetch_one(&self.read)
                .await
                .map_err(StoreError::doing("sum up the uploads of a team"))?;
        Ok(row.get::<i64>(0).unsigned_abs())
    }

    /// Deletes the records of older uploads and returns them, so that their files can be removed.
    pub async fn forget_template_files(&self, before: Timestamp) -> Result<Vec<(TeamId, String)>, StoreError> {
        let rows = query("DELETE FROM template_files WHERE server = ? AND uploaded_at < ? RETURNING team, hash")
            .bind(self.server())
            .bind(before.0)
            .fetch_all(&self.write)
            .await
            .map_err(StoreError::doing("delete the records of old uploads"))?;
        Ok(rows.iter().map(|row| (TeamId(row.get(0)), row.get(1))).collect())
    }
}
