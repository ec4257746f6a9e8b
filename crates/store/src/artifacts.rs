//! The artifacts of runs. Their contents are files; the store only describes them.

use super::{Store, StoreError, TeamId};
use crate::ArtifactInfo;
use crate::clock::Timestamp;
use crate::database::{Row, query};

impl Store {
    /// Records artifacts. Replaces the description of an artifact that is already recorded.
    pub async fn save_artifacts(&self, team: &TeamId, run: &str, artifacts: &[ArtifactInfo]) -> Result<(), StoreError> {
        if artifacts.is_empty() {
            return Ok(());
        }
        let failed = StoreError::doing("record artifacts");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        for artifact in artifacts {
            query(
                "INSERT INTO artifacts (team, run, path, agent, size, content_type, generated_at, server) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (team, run, path) DO UPDATE SET agent = excluded.agent, \
                 size = excluded.size, content_type = excluded.content_type, generated_at = excluded.generated_at, \
                 server = excluded.server",
            )
            .bind(&team.0)
            .bind(run)
            .bind(&artifact.filename)
            .bind(artifact.agent_id.as_deref())
            .bind(artifact.size_bytes.cast_signed())
            .bind(&artifact.content_type)
            .bind(artifact.generated_at.0)
            .bind(self.server())
            .execute(&mut transaction)
            .await
            .map_err(&failed)?;
        }
        transaction.commit().await.map_err(&failed)
    }

    /// The artifacts of one run, ordered by name.
    pub async fn artifacts_of(&self, team: &TeamId, run: &str) -> Result<Vec<ArtifactInfo>, StoreError> {
        let rows = query(
            "SELECT path, agent, size, content_type, generated_at FROM artifacts WHERE team = ? AND run = ? \
             ORDER BY path",
        )
        .bind(&team.0)
        .bind(run)
        .fetch_all(&self.read)
        .await
        .map_err(StoreError::doing("read artifacts"))?;
        Ok(rows.iter().map(read_row).collect())
    }

    /// The description of one artifact of a run.
    pub async fn artifact_of(
        &self,
        team: &TeamId,
        run: &str,
        filename: &str,
    ) -> Result<Option<ArtifactInfo>, StoreError> {
        let row = query(
            "SELECT path, agent, size, content_type, generated_at FROM artifacts WHERE team = ? AND run = ? AND path = ?",
        )
        .bind(&team.0)
        .bind(run)
        .bind(filename)
        .fetch_optional(&self.read)
        .await
        .map_err(StoreError::doing("read an artifact"))?;
        Ok(row.as_ref().map(read_row))
    }

    /// The team's runs that have artifacts, with their number and the time of the last one. The latest run comes first.
    pub async fn runs_with_artifacts(&self, team: &TeamId) -> Result<Vec<(String, i64, Timestamp)>, StoreError> {
        let rows = query(
            "SELECT run, count(*), max(generated_at) AS last FROM artifacts WHERE team = ? \
             GROUP BY run ORDER BY last DESC, run LIMIT 1000",
        )
        .bind(&team.0)
        .fetch_all(&self.read)
        .await
        .map_err(StoreError::doing("list the runs with artifacts"))?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1), Timestamp(row.get(2)))).collect())
    }

    /// The runs on this server whose last artifact is older than `before`.
    pub async fn runs_with_old_artifacts(&self, before: Timestamp) -> Result<Vec<(TeamId, String)>, StoreError> {
        let rows = query("SELECT team, run FROM artifacts WHERE server = ? GROUP BY team, run HAVING max(generated_at) < ? LIMIT 100")
            .bind(self.server()).bind(before.0)
            .fetch_all(&self.read)
            .await
            .map_err(StoreError::doing("list old artifacts"))?;
        Ok(rows.iter().map(|row| (TeamId(row.get(0)), row.get(1))).collect())
    }

    /// Deletes the records of a run's artifacts. Returns how many there were.
    pub async fn forget_artifacts(&self, team: &TeamId, run: &str) -> Result<u64, StoreError> {
        let done = query("DELETE FROM artifacts WHERE team = ? AND run = ?")
            .bind(&team.0)
            .bind(run)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("delete artifacts"))?;
        Ok(done.rows_affected())
    }
}

/// Reads the first five columns.
pub(super) fn read_row(row: &Row) -> ArtifactInfo {
    ArtifactInfo {
        filename: row.get(0),
        agent_id: row.get(1),
        size_bytes: row.get::<i64>(2).cast_unsigned(),
        content_type: row.get(3),
        generated_at: Timestamp(row.get(4)),
    }
}
